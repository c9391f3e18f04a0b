/* versions_rig.h — a pool with two versions of every expert of a bank model, on the devices of
 * device_rig.h, and what must always hold of it: whatever a plan shows is the expert in that form, byte
 * for byte, as the file has it. */
#ifndef VERSIONS_RIG_H
#define VERSIONS_RIG_H

#include "bank_model.h"
#include "pool_inside.h"

#define VERSIONS_RIG_DEVICES 3

typedef struct versions_rig {
    bank_model bank;
    moepage_device *device; /* the first */
    moepage_device *devices[VERSIONS_RIG_DEVICES];
    uint32_t n_devices; /* 0 = 1; for versions_rig_open_over */
    moepage_expert_pool *pool;
    moepage_precision_config precision;
    uint32_t n_high;          /* per layer */
    uint64_t host_tier_bytes; /* 0 = none; for versions_rig_open_over */
    uint64_t spare_bytes;     /* of the arena, beside what the pool begins with; likewise */
} versions_rig;

/* 3 layers of 8 experts unless `shape` says otherwise, packed DENSE, INT8, INT4 and INT2. A precision
 * config of zeros means: low INT2, a decision after every step. `threads` of the device. */
void versions_rig_open(versions_rig *rig, const bank_shape *shape,
                       const moepage_precision_config *precision);
/* The same with that much more of an arena. */
void versions_rig_open_wide(versions_rig *rig, const bank_shape *shape,
                            const moepage_precision_config *precision, uint64_t spare_bytes);
/* The same on several devices. */
void versions_rig_open_on(versions_rig *rig, uint32_t n_devices, const bank_shape *shape,
                          const moepage_precision_config *precision, uint64_t spare_bytes);
/* The same over a model that is open already. */
void versions_rig_open_over(versions_rig *rig, moepage_model *model,
                            const moepage_precision_config *precision, uint64_t slots);
void versions_rig_close(versions_rig *rig);

moepage_expert_pool_info versions_rig_info(versions_rig *rig);
moepage_session *versions_rig_session(versions_rig *rig, uint32_t max_tokens);

/* Is this what the model's file has of the expert, as read on the plan's stream (NULL)? Fails the test
 * if not. Returns the form. */
uint32_t versions_rig_check(const versions_rig *rig, uint32_t layer,
                            const moepage_plan_expert *expert);

/* Reads one tensor of an expert as the plan shows it, and returns its bytes. */
uint64_t versions_rig_tensor(const versions_rig *rig, const moepage_plan_expert *expert,
                             uint32_t tensor, void *out, uint64_t most);

/* Routes one token to every one of `ids`, checks what the plan shows, retires. forms[i]: the form
 * of ids[i]; may be NULL. */
void versions_rig_layer(versions_rig *rig, moepage_session *session, uint32_t layer,
                        const int32_t *ids, uint32_t n, uint8_t *forms);

/* begin, the same ids in every layer, end; checks that nothing was waited for. */
moepage_session_stats versions_rig_step(versions_rig *rig, moepage_session *session,
                                        const int32_t *ids, uint32_t n);

/* High versions of a layer that are there, or on their way: never more than n_high. */
uint32_t versions_rig_count_high(versions_rig *rig, uint32_t layer);

#endif
