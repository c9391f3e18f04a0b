/* Entry point for moving the boundary between experts and KV. */
#include "split/split.h"

moepage_status moepage_split_set(moepage_expert_pool *experts, moepage_kv_pool *kv,
                                 uint64_t expert_slots, uint64_t kv_blocks, void *stream)
{
    moepage_status status = experts ? mp_handle_check(experts, MP_KIND_EXPERTS) : MOEPAGE_OK;
    if (!status && kv)
        status = mp_handle_check(kv, MP_KIND_KV);
    return status ? status : mp_split_set(experts, kv, expert_slots, kv_blocks, stream);
}
