/* pool_rig.h — host devices with an expert pool over a bank model, and what must always hold of
 * them. */
#ifndef POOL_RIG_H
#define POOL_RIG_H

#include "bank_model.h"

#define POOL_RIG_DEVICES 4

/* Zero means: one device, one thread, global LRU, all experts resident. */
typedef struct pool_rig_config {
    uint32_t n_devices;
    uint32_t threads;
    uint64_t slots;
    uint64_t arena_slots;   /* room of each device's arena; 0 = every expert */
    uint64_t smaller_slots; /* room of all arenas but the first; 0 = the same */
    uint32_t scope;
    const char *policy;
    uint32_t scan_percent;
    uint32_t chunk_bytes;
    uint64_t bus_bytes_per_s;
    uint32_t host_experts; /* that each device's host tier holds; 0 = no tier */
    uint32_t bus_form;
    uint32_t compressed; /* experts per layer */
    uint32_t staging;
    uint32_t io_threads;
    uint32_t slot_form;
    const moepage_precision_config *precision;
    bool no_peers; /* of simulated GPUs: none reaches another's memory */
} pool_rig_config;

typedef struct pool_rig {
    bank_model *bank;
    uint32_t n_devices;
    moepage_device *devices[POOL_RIG_DEVICES];
    moepage_expert_pool *pool;
} pool_rig;

void pool_rig_open(pool_rig *rig, bank_model *bank, const pool_rig_config *config);

/* Checks the rig, destroys it, and sees that the devices' bytes went down to nothing. */
void pool_rig_close(pool_rig *rig);

/* Waits until nothing is queued or under way. */
void pool_rig_wait(pool_rig *rig);

/* Does the plan's slot hold its expert, byte for byte, as read on the plan's stream (NULL)? */
bool pool_rig_holds(const pool_rig *rig, uint32_t layer, const moepage_plan_expert *expert);

/* No plan is open: waits for loads under way, then every slot is free or holds, byte for byte, the
 * expert that the map says; none has a user but for its pin; and the ledger counts the slots. */
void pool_rig_check(pool_rig *rig);

moepage_expert_pool_info pool_rig_info(pool_rig *rig);
uint32_t pool_rig_state(pool_rig *rig, uint32_t layer, uint32_t expert); /* MOEPAGE_EXPERT_* */

/* A session with `config` (NULL: defaults, struct_size filled in either way). */
moepage_session *pool_rig_session(pool_rig *rig, const moepage_session_config *config);

/* Begins a step of n tokens of one anonymous sequence. */
void pool_rig_begin(moepage_session *session, uint32_t n_tokens, uint32_t phase);

/* Routes one token to `n` experts with equal weights. */
moepage_status pool_rig_route(moepage_session *session, uint32_t layer, const int32_t *ids,
                              uint32_t n, moepage_plan *plan);

/* begin, route, retire and end of a step of one token through one layer; all must succeed. */
void pool_rig_visit(moepage_session *session, uint32_t layer, const int32_t *ids, uint32_t n);

#endif
