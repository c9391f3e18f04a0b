/* control_rig.h — a controller over live pools on one device: an expert pool, a KV pool or none, and a
 * session that uses both. */
#ifndef CONTROL_RIG_H
#define CONTROL_RIG_H

#include "pool_rig.h"

#define CONTROL_RIG_SEQUENCES 16
#define CONTROL_RIG_EXPERTS 32

typedef struct control_rig_config {
    bank_shape bank;
    pool_rig_config pool;
    uint64_t blocks; /* of the KV pool, 0 = there is none */
    uint32_t block_tokens;
    uint32_t blocks_per_slot;    /* a block is such a part of a slot */
    uint32_t blocks_per_granule; /* 0 = 1 */
    uint32_t regime;             /* of the session */
} control_rig_config;

typedef struct control_rig {
    bank_model bank;
    pool_rig pools;
    moepage_kv_pool *kv;
    uint32_t block_tokens;
    moepage_session *session;
    moepage_controller *controller;
} control_rig;

void control_rig_open(control_rig *rig, const control_rig_config *config);
/* A controller may be there or not. */
void control_rig_close(control_rig *rig);

/* A controller with `config`, whose struct_size is filled in. */
void control_rig_attach(control_rig *rig, moepage_controller_config config);

moepage_controller_report control_rig_tick(control_rig *rig);
moepage_controller_info control_rig_info(control_rig *rig);
double control_rig_misses(control_rig *rig, uint32_t kv, uint64_t size);

/* The pools are so now, and the device's bytes never passed its budget. Without KV `blocks` is 0. */
void control_rig_expect(control_rig *rig, uint64_t slots, uint64_t blocks);
uint64_t control_rig_blocks(control_rig *rig);

/* A sequence of so many full blocks. */
moepage_seq control_rig_sequence(control_rig *rig, uint32_t blocks);

/* A step with a token for each of these sequences (of none: one token) through layers
 * [first, first + n_layers), each token to the same n experts. What every plan shows is compared with
 * the bank, byte for byte. */
void control_rig_step(control_rig *rig, uint32_t first, uint32_t n_layers, const int32_t *ids,
                      uint32_t n, const moepage_seq *seqs, uint32_t n_seqs);

#endif
