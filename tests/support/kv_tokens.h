/* kv_tokens.h — writes recognisable tokens into a KV pool and finds them again, through the public
 * layer views alone, as a host's attention kernels would. For devices whose memory the caller can
 * touch. */
#ifndef KV_TOKENS_H
#define KV_TOKENS_H

#include <stdbool.h>
#include <stdint.h>

#include "moepage.h"

#define KV_TOKENS_MAX_LAYERS 8

typedef struct kv_tokens {
    moepage_kv_pool *pool;
    uint32_t block_tokens;
    uint32_t layers;
    uint32_t bytes_per_token[KV_TOKENS_MAX_LAYERS];
    moepage_kv_layer_view views[KV_TOKENS_MAX_LAYERS];
} kv_tokens;

void kv_tokens_open(kv_tokens *tokens, moepage_kv_pool *pool, uint32_t layers,
                    const uint32_t *bytes_per_token);

/* The documented address of a block in a layer. */
unsigned char *kv_tokens_block(const kv_tokens *tokens, uint32_t layer, uint32_t id);

/* Where a token of a sequence with this table lies, bytes_per_token[layer] of it. */
unsigned char *kv_tokens_at(const kv_tokens *tokens, const moepage_kv_table *table, uint32_t layer,
                            uint64_t token);
/* And what is there, byte by byte. */
unsigned char kv_tokens_byte(uint64_t tag, uint32_t layer, uint32_t place);

/* Writes tokens first..first + n - 1 of a sequence. Every byte of a token follows from its tag, its
 * layer and its place, so no two tokens with different tags look alike. */
void kv_tokens_write(const kv_tokens *tokens, moepage_seq seq, uint64_t first, uint64_t n,
                     const uint64_t *tags);

/* True if the sequence is exactly the n tokens with these tags. */
bool kv_tokens_match(const kv_tokens *tokens, moepage_seq seq, uint64_t n, const uint64_t *tags);

#endif
