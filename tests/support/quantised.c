/* Quantised checkpoints, and expectations of them. */
#include "quantised.h"

#include <stdio.h>
#include <string.h>

#include "numbers.h"
#include "testing.h"

/* ---- numbers ---- */

/* Many numbers of one name are asked for in turn. */
static uint64_t hash_name(const char *name)
{
    static char last[128];
    static uint64_t h;
    if (strcmp(name, last) == 0)
        return h;
    h = 0xcbf29ce484222325u;
    for (const char *at = name; *at; at++)
        h = (h ^ (unsigned char)*at) * 0x100000001b3u;
    snprintf(last, sizeof last, "%s", name);
    return h;
}

uint32_t quantised_number(const char *name, uint32_t what, uint64_t row, uint64_t column)
{
    uint64_t h = (hash_name(name) ^ what) * 0x100000001b3u;
    h = (h ^ row) * 0x100000001b3u;
    h = (h ^ column) * 0x9e3779b97f4a7c15u;
    return (uint32_t)(h >> 40);
}

/* ---- the checkpoint ---- */

void quantised_name(uint32_t layer, uint32_t expert, uint32_t piece, char *out)
{
    static const char *const parts[] = {"gate", "up", "down"};
    snprintf(out, 128, "model.layers.%u.mlp.experts.%u.%s_proj", layer, expert, parts[piece]);
}

void quantised_init(moe_maker *maker, const quantised_sizes *sizes, const char *quantisation,
                    quantised_add *add, const void *of)
{
    const uint64_t router[] = {sizes->experts, sizes->hidden};
    char name[128];
    moe_maker_init_empty(maker);
    snprintf(maker->config, sizeof maker->config,
             "{\"model_type\": \"qwen3_moe\", \"num_hidden_layers\": %u, \"num_experts\": %u, "
             "\"num_experts_per_tok\": 1, \"hidden_size\": %u, \"moe_intermediate_size\": %u, "
             "\"vocab_size\": 16, \"quantization_config\": {%s}}",
             sizes->layers, sizes->experts, sizes->hidden, sizes->intermediate, quantisation);
    for (uint32_t l = 0; l < sizes->layers; l++) {
        maker_add(&maker->shard, "BF16", 2, router, "model.layers.%u.mlp.gate.weight", l);
        snprintf(name, sizeof name, "model.layers.%u.self_attn.q_proj", l);
        add(&maker->shard, of, name, 24, sizes->hidden);
        for (uint32_t e = 0; e < sizes->experts; e++)
            for (uint32_t p = 0; p < 3; p++) {
                quantised_name(l, e, p, name);
                add(&maker->shard, of, name, p < 2 ? sizes->intermediate : sizes->hidden,
                    p < 2 ? sizes->hidden : sizes->intermediate);
            }
    }
}

/* ---- what is read ---- */

void quantised_expect_piece(const struct moepage_model *model, uint32_t layer, uint32_t expert,
                            uint32_t piece, const unsigned char *want, uint64_t bytes)
{
    static unsigned char got[1 << 17];
    assert_int_equal(model->layouts[0].pieces[piece].bytes, bytes);
    assert_true(bytes < sizeof got);
    for (uint32_t round = 0; round < 12; round++) {
        const uint64_t from = round ? num_random_bits() % bytes : 0;
        const uint64_t n = round ? 1 + num_random_bits() % (bytes - from) : bytes;
        memset(got, 0xa5, sizeof got);
        assert_int_equal(mp_model_read_piece(model, layer, expert, piece, from, n, got),
                         MOEPAGE_OK);
        assert_memory_equal(got, want + from, n);
        assert_int_equal(got[n], 0xa5);
    }
}

void quantised_expect_dense(const struct moepage_model *model, const char *name, uint32_t dtype,
                            uint64_t rows, uint64_t columns, const unsigned char *want,
                            uint64_t bytes)
{
    moepage_tensor_view view = {.struct_size = sizeof view};
    assert_int_equal(moepage_model_find_tensor(model, name, &view), MOEPAGE_OK);
    assert_int_equal(view.dtype, dtype);
    assert_int_equal(view.rank, 2);
    assert_int_equal(view.shape[0], rows);
    assert_int_equal(view.shape[1], columns);
    assert_int_equal(view.bytes, bytes);
    assert_memory_equal(view.data, want, bytes);
}

void quantised_expect_names(const struct moepage_model *model)
{
    char name[128];
    for (uint64_t i = 0; i < 4; i++) {
        assert_int_equal(moepage_model_get_tensor_name(model, i, name, sizeof name), MOEPAGE_OK);
        assert_non_null(strstr(name, i % 2 ? "self_attn.q_proj.weight" : "mlp.gate.weight"));
    }
    assert_int_equal(moepage_model_get_tensor_name(model, 4, name, sizeof name),
                     MOEPAGE_E_NOT_FOUND);
}

/* ---- what is refused ---- */

void quantised_expect_bad_config(moe_maker *maker, const quantised_bad_config *bad)
{
    moe_maker_replace(maker, bad->from, bad->to);
    moe_maker_write(maker);
    moe_expect_refusal(maker, bad->status, bad->words);
    moe_maker_free(maker);
}

void quantised_expect_bad_part(moe_maker *maker, const quantised_bad_part *bad)
{
    char name[128];
    snprintf(name, sizeof name, "model.layers.1.mlp.experts.1.%s", bad->part);
    if (bad->dtype)
        maker_reshape(maker_find(&maker->shard, name), bad->dtype, bad->shape[1] ? 2 : 1,
                      bad->shape);
    else
        maker_remove(&maker->shard, name);
    moe_maker_write(maker);
    moe_expect_refusal(maker, bad->status, bad->words);
    moe_maker_free(maker);
}

void quantised_expect_failed_load(moe_maker *maker, const char *words)
{
    unsigned char out[64];
    moe_maker_write(maker);
    moepage_model *model = moe_expect_open(maker);
    for (uint32_t p = 0; p < 3; p++)
        assert_int_equal(mp_model_read_piece(model, 1, 1, p, 0, sizeof out, out),
                         p == 1 ? MOEPAGE_E_FORMAT : MOEPAGE_OK);
    assert_int_equal(mp_model_read_piece(model, 1, 1, 1, 0, sizeof out, out), MOEPAGE_E_FORMAT);
    expect_sentence(words);
    assert_int_equal(mp_model_check_image(model, 1, 1, MOEPAGE_FORM_DENSE), MOEPAGE_E_FORMAT);
    expect_sentence(words);
    assert_int_equal(moepage_model_close(model), MOEPAGE_OK);
    moe_maker_free(maker);
}
