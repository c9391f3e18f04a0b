/* tiers.h — setting up what stands behind a shard's slots: the form that crosses the bus,
 * the host tier, staging for the decoder, and the experts that stay compressed in device memory. Used
 * while a pool is created and destroyed. */
#ifndef MP_POOL_TIERS_H
#define MP_POOL_TIERS_H

#include "pool/expert_pool.h"

/* Checks the config's tier fields against the model and chooses the form that crosses the bus. */
moepage_status mp_tiers_choose(const struct moepage_model *model,
                               const moepage_expert_pool_config *config, uint32_t *bus_form);

/* Bytes of the workspace, and slots of the arena for compressed experts, that one device of
 * n_devices gives; the config has passed mp_tiers_choose. */
void mp_tiers_sizes(const struct moepage_model *model, const moepage_expert_pool_config *config,
                    uint32_t bus_form, uint32_t n_devices, uint64_t *workspace_bytes,
                    uint64_t *image_slots);

/* Opens pipes, host tier and staging of a shard whose side of the arena is attached and still
 * empty, measures them, and chooses which experts stay compressed. */
moepage_status mp_tiers_open(mp_shard *shard, uint32_t shard_index,
                             const moepage_expert_pool_config *config);

/* Brings the compressed experts into device memory; blocks. */
moepage_status mp_tiers_fill(mp_shard *shard);

/* Waits for what is under way. Safe on a half-opened shard. */
void mp_tiers_close(mp_shard *shard);

#endif
