/* Slots set aside: a session that holds experts for good gets its share for itself, and the others
 * divide the rest. */
#include "base/status.h"
#include "pool/expert_pool.h"

/* What the session may hold of a scope now. */
static uint32_t share_of(const struct moepage_expert_pool *pool, const mp_client *client,
                         uint32_t scope)
{
    uint32_t members = pool->shards[0].scopes[scope].members;
    uint32_t quota = mp_pool_quota(pool, client, scope, 0, false);
    return quota < members ? quota : members;
}

static void change(struct moepage_expert_pool *pool, uint32_t slots, bool add)
{
    for (uint32_t i = 0; i < pool->n_scopes; i++) {
        _Atomic uint32_t *pinned = &pool->shards[0].scopes[i].pinned;
        atomic_store(pinned, add ? atomic_load(pinned) + slots : atomic_load(pinned) - slots);
    }
    atomic_fetch_add(&pool->n_apart, add ? 1 : -1u);
}

moepage_status mp_pool_set_aside(struct moepage_expert_pool *pool, const mp_client *client,
                                 uint32_t asked, uint32_t least, mp_set_aside *out)
{
    uint32_t per_scope = UINT32_MAX;
    moepage_status status = MOEPAGE_OK;
    pthread_mutex_lock(&pool->lock);
    for (uint32_t i = 0; i < pool->n_scopes; i++) {
        uint32_t share = share_of(pool, client, i);
        per_scope = share < per_scope ? share : per_scope;
    }
    uint32_t most = per_scope * pool->n_scopes; /* no more than the slots there are */
    uint32_t slots = asked ? asked : most;
    per_scope = slots < per_scope ? slots : per_scope;
    if (slots > most)
        status = mp_fail(MOEPAGE_E_BUDGET, "%u slots: the session's share of the pool is %u", slots,
                         most);
    else if (per_scope < least)
        status = mp_fail(MOEPAGE_E_BUDGET,
                         "a layer may need %u experts at once, and no more than %u slots are "
                         "there for one: give the pool or the path more slots, or the path fewer "
                         "tokens",
                         least, per_scope);
    if (!status) {
        change(pool, per_scope, true);
        *out = (mp_set_aside){.slots = slots, .per_scope = per_scope};
    }
    pthread_mutex_unlock(&pool->lock);
    return status;
}

void mp_pool_put_back(struct moepage_expert_pool *pool, const mp_set_aside *aside)
{
    pthread_mutex_lock(&pool->lock);
    change(pool, aside->per_scope, false);
    pthread_mutex_unlock(&pool->lock);
}
