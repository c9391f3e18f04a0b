/* A session of a live world that holds experts for good, as a device-driven path does: out of slots
 * set aside for it, and giving up what lies behind a fence only when it is next asked for something. */
#include "live_inside.h"
#include "session/inside.h"

static moepage_session *session_of(const live_world *w)
{
    return w->sessions[w->path.owner].session;
}

/* All work that the device was told to do with the expert ends before its slot is written again. */
static void take_off(live_world *w, uint32_t key)
{
    live_path *path = &w->path;
    moepage_session *session = session_of(w);
    mp_pool_read_until(w->rig.pool, session->step.client, &path->held[key],
                       session->scratch[0].last);
    mp_pool_release(w->rig.pool, &path->held[key], 1);
}

static uint32_t count_held(const live_world *w, uint32_t first, uint32_t n)
{
    uint32_t held = 0;
    for (uint32_t key = first; key < first + n; key++)
        held += w->path.held[key].kind != MP_HOLD_NONE;
    return held;
}

/* The least recently asked for go first; what the message asks for is younger than all. */
static void evict(live_world *w, uint32_t first, uint32_t n, uint32_t most)
{
    live_path *path = &w->path;
    for (; most > 0; most--) {
        uint32_t oldest = UINT32_MAX;
        for (uint32_t key = first; key < first + n; key++)
            if (path->held[key].kind != MP_HOLD_NONE &&
                (oldest == UINT32_MAX || path->asked[key] < path->asked[oldest]))
                oldest = key;
        take_off(w, oldest);
    }
}

void live_path_leave_drained(live_world *w)
{
    const moepage_expert_pool *pool = w->rig.pool;
    for (uint32_t key = 0; w->path.on && key < pool->keys; key++) {
        const mp_hold *hold = &w->path.held[key];
        if (hold->kind == MP_HOLD_NONE)
            continue;
        uint64_t word = atomic_load(&pool->cache->shards[0].words[hold->slot]);
        if (MP_WORD_STATE(word) == MP_SLOT_DRAINING && w->path.asked[key] < w->path.now)
            take_off(w, key);
    }
}

static uint32_t excess(uint32_t held, uint32_t wanted, uint32_t limit)
{
    return held + wanted > limit ? held + wanted - limit : 0;
}

static bool bring(live_world *w, uint32_t key)
{
    live_path *path = &w->path;
    moepage_session *session = session_of(w);
    mp_hold *hold = &path->held[key];
    *hold = (mp_hold){.key = key};
    moepage_status status = MOEPAGE_OK;
    if (mp_client_hold_resident(session->step.client, hold, 1) == 0)
        status = mp_pool_hold_rest(w->rig.pool, hold, 1, 0);
    MUST(w, !status); /* its share is there, whatever others do */
    status = mp_pool_wait(w->rig.pool, hold, session->scratch[0].compute);
    MUST(w, !status || (w->bank->shape.callback && status == MOEPAGE_E_CALLBACK));
    if (status)
        mp_pool_release(w->rig.pool, hold, 1);
    return true;
}

static void read_held(live_world *w, uint32_t key)
{
    const bank_model *bank = w->bank;
    const moepage_expert_pool *pool = w->rig.pool;
    if (w->path.held[key].kind == MP_HOLD_NONE)
        return;
    const unsigned char *slot = pool->cache->shards[0].address[w->path.held[key].slot];
    const uint32_t layer = key / pool->experts;
    for (uint32_t t = 0; t < bank->n_tensors; t++)
        loose_read(session_of(w)->scratch[0].compute, MP_SIDE_EXPERTS,
                   slot + mp_model_layout(pool->model, layer)->tensors[t].offset,
                   bank_model_tensor(bank, layer, key % pool->experts, t),
                   bank_model_tensor_bytes(bank, layer, t));
}

/* A message: some experts of a layer, as many as its share has room for at once. */
static bool ask(live_world *w)
{
    live_path *path = &w->path;
    uint32_t experts = w->bank->shape.experts, layers = w->bank->shape.layers;
    uint32_t first = live_below(w, layers) * experts, at = live_below(w, experts), absent = 0;
    uint32_t n = 1 + live_below(w, path->aside.per_scope < 4 ? path->aside.per_scope : 4);
    path->now++;
    for (uint32_t i = 0; i < n; i++) {
        uint32_t key = first + (at + i) % experts;
        path->asked[key] = path->now;
        absent += path->held[key].kind == MP_HOLD_NONE;
    }
    live_path_leave_drained(w);
    if (w->rig.pool->cache->n_scopes > 1)
        evict(w, first, experts,
              excess(count_held(w, first, experts), absent, path->aside.per_scope));
    evict(w, 0, layers * experts,
          excess(count_held(w, 0, layers * experts), absent, path->aside.slots));
    for (uint32_t i = 0; i < n; i++) {
        uint32_t key = first + (at + i) % experts;
        if (path->held[key].kind == MP_HOLD_NONE && !bring(w, key))
            return false;
        read_held(w, key);
    }
    mp_device_scratch *scratch = &session_of(w)->scratch[0];
    MUST(w, !w->loose.device.ops->mark(scratch->compute, &scratch->last));
    w->counts.asked += n;
    return true;
}

void live_path_close(live_world *w)
{
    if (!w->path.on)
        return;
    mp_session_give_back(session_of(w));
    evict(w, 0, w->rig.pool->keys, count_held(w, 0, w->rig.pool->keys));
    mp_pool_put_back(w->rig.pool, &w->path.aside);
    w->path = (live_path){0};
}

bool live_path_act(live_world *w, uint32_t owner)
{
    live_session *s = &w->sessions[owner];
    if (w->path.on && live_below(w, 12) == 0) {
        live_path_close(w);
        return true;
    }
    if (w->path.on)
        return ask(w);
    if (!s->session || s->step || live_below(w, 4) > 0 || w->rig.pool->bundle.n_slots > 1)
        return true;
    mp_set_aside aside;
    moepage_status status =
        mp_pool_set_aside(w->rig.pool, s->session->step.client, live_below(w, 4), 1, &aside);
    MUST(w, !status || status == MOEPAGE_E_BUDGET);
    if (status)
        return true;
    w->path = (live_path){.on = true, .owner = owner, .aside = aside};
    mp_session_scratch scratch;
    MUST(w, !mp_session_take(s->session, &w->path, &scratch));
    return true;
}
