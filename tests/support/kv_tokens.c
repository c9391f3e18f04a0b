/* Recognisable tokens in a KV pool. */
#include "kv_tokens.h"

#include <assert.h>

void kv_tokens_open(kv_tokens *tokens, moepage_kv_pool *pool, uint32_t layers,
                    const uint32_t *bytes_per_token)
{
    moepage_kv_pool_info info = {.struct_size = sizeof info};
    moepage_status status = moepage_kv_pool_get_info(pool, &info);
    assert(!status && layers <= KV_TOKENS_MAX_LAYERS);
    *tokens = (kv_tokens){.pool = pool, .block_tokens = info.block_tokens, .layers = layers};
    for (uint32_t layer = 0; layer < layers; layer++) {
        tokens->bytes_per_token[layer] = bytes_per_token[layer];
        tokens->views[layer].struct_size = sizeof tokens->views[layer];
        status = moepage_kv_pool_get_layer(pool, layer, &tokens->views[layer]);
        assert(!status);
    }
}

unsigned char *kv_tokens_block(const kv_tokens *tokens, uint32_t layer, uint32_t id)
{
    const moepage_kv_layer_view *view = &tokens->views[layer];
    return (unsigned char *)view->base + id / view->id_stride * view->granule_bytes +
           id % view->id_stride * view->block_bytes;
}

unsigned char kv_tokens_byte(uint64_t tag, uint32_t layer, uint32_t place)
{
    uint64_t mixed = (tag + 1) * 0x9e3779b97f4a7c15u;
    mixed ^= (layer * 131u + place + 1) * 0xbf58476d1ce4e5b9u;
    return (unsigned char)((mixed * 0x94d049bb133111ebu) >> 56);
}

static moepage_kv_table table_of(const kv_tokens *tokens, moepage_seq seq)
{
    moepage_kv_table table = {.struct_size = sizeof table};
    moepage_status status = moepage_kv_get_table(tokens->pool, seq, &table);
    assert(!status && !table.swapped);
    (void)status;
    return table;
}

unsigned char *kv_tokens_at(const kv_tokens *tokens, const moepage_kv_table *table, uint32_t layer,
                            uint64_t token)
{
    return kv_tokens_block(tokens, layer, table->blocks[token / tokens->block_tokens]) +
           token % tokens->block_tokens * tokens->bytes_per_token[layer];
}

void kv_tokens_write(const kv_tokens *tokens, moepage_seq seq, uint64_t first, uint64_t n,
                     const uint64_t *tags)
{
    moepage_kv_table table = table_of(tokens, seq);
    for (uint64_t i = 0; i < n; i++) {
        for (uint32_t layer = 0; layer < tokens->layers; layer++) {
            if (!tokens->bytes_per_token[layer])
                continue;
            unsigned char *out = kv_tokens_at(tokens, &table, layer, first + i);
            for (uint32_t place = 0; place < tokens->bytes_per_token[layer]; place++)
                out[place] = kv_tokens_byte(tags[i], layer, place);
        }
    }
}

bool kv_tokens_match(const kv_tokens *tokens, moepage_seq seq, uint64_t n, const uint64_t *tags)
{
    moepage_kv_table table = table_of(tokens, seq);
    if (table.n_tokens != n ||
        table.n_blocks != (n + tokens->block_tokens - 1) / tokens->block_tokens)
        return false;
    for (uint64_t i = 0; i < n; i++) {
        for (uint32_t layer = 0; layer < tokens->layers; layer++) {
            if (!tokens->bytes_per_token[layer])
                continue;
            const unsigned char *in = kv_tokens_at(tokens, &table, layer, i);
            for (uint32_t place = 0; place < tokens->bytes_per_token[layer]; place++) {
                if (in[place] != kv_tokens_byte(tags[i], layer, place))
                    return false;
            }
        }
    }
    return true;
}
