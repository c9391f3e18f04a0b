/* A live world's life, its moves, and what must hold when all is quiet. */
#include <stdlib.h>
#include <string.h>

#include "live_inside.h"
#include "testing.h"

#define SETTLING 4 /* attempts after which a move must be through once nothing is in use */

/* ---- life ---- */

static void open_pools(live_world *w)
{
    moepage_expert_pool_config experts = {.struct_size = sizeof experts,
                                          .slots = w->config.scope == MOEPAGE_SCOPE_LAYER ? 12 : 6,
                                          .scope = w->config.scope,
                                          .policy = w->config.policy,
                                          .chunk_bytes = w->config.chunk_bytes,
                                          .scan_percent = w->config.scan_percent,
                                          .staging_experts = 2};
    w->rig = (pool_rig){.bank = w->bank, .n_devices = 1};
    w->budget.now = w->config.arena_bytes ? w->config.arena_bytes : ARENA_BYTES;
    w->budget.aim = w->budget.now;
    w->rig.devices[0] = loose_open_parts(&w->loose, ARENA_BYTES, w->config.part_bytes,
                                         w->budget.now, WORKSPACE_BYTES);
    w->loose.side = MP_SIDE_EXPERTS;
    assert_int_equal(moepage_expert_pool_create(w->rig.devices, 1, w->bank->model, &experts,
                                                &w->rig.pool),
                     MOEPAGE_OK);
    moepage_kv_pool_config kv = {.struct_size = sizeof kv,
                                 .block_tokens = BLOCK_TOKENS,
                                 .layers = KV_LAYERS,
                                 .bytes_per_token = live_bytes_per_token,
                                 .blocks_per_granule = 3,
                                 .blocks = 24};
    w->loose.side = MP_SIDE_KV;
    assert_int_equal(moepage_kv_pool_create(w->rig.devices[0], &kv, &w->kv), MOEPAGE_OK);
    kv_tokens_open(&w->tokens, w->kv, KV_LAYERS, live_bytes_per_token);
    w->loose.side = MP_SIDE_EXPERTS;
}

uint32_t live_sessions(const live_world *w)
{
    uint32_t n = 0;
    for (uint32_t i = 0; i < w->config.sessions; i++)
        n += w->sessions[i].session != NULL;
    return n;
}

static bool takes_tokens_whole(const live_world *w)
{
    return w->config.seed % 8 == 5;
}

uint32_t live_needed(const live_world *w, uint32_t sessions)
{
    return takes_tokens_whole(w) ? sessions * w->bank->shape.top_k : sessions;
}

static moepage_status join(live_world *w, uint32_t i)
{
    live_session *s = &w->sessions[i];
    bool odd = i % 2;
    s->regime = (w->config.regime + i) % 3;
    s->grouping = takes_tokens_whole(w) ? MOEPAGE_GROUP_TOKENS : MOEPAGE_GROUP_EXPERTS;
    moepage_session_config config = {.struct_size = sizeof config,
                                     .max_tokens = 4,
                                     .max_sequences = 4,
                                     .prefetch = w->config.prefetch,
                                     .prefetch_depth = 1 + i,
                                     .grouping = s->grouping,
                                     .max_group_experts = odd ? w->config.max_group_experts : 0,
                                     .regime = s->regime};
    moepage_status status = moepage_session_create(w->rig.pool, w->kv, &config, &s->session);
    s->session = status ? NULL : s->session;
    return status;
}

/* With what it has counted. */
static bool leave(live_world *w, live_session *s)
{
    moepage_session_stats stats = {.struct_size = sizeof stats};
    MUST(w, !moepage_session_get_stats(s->session, &stats));
    w->counts.streamed += stats.streamed_layers;
    w->counts.changes += stats.regime_changes;
    MUST(w, !moepage_session_destroy(s->session));
    s->session = NULL;
    return true;
}

live_world *live_open(bank_model *bank, const live_config *config)
{
    live_world *w = calloc(1, sizeof *w);
    assert_non_null(w);
    w->config = *config;
    w->bank = bank;
    atomic_store(&bank->fail_every, 11); /* of those that are read through a callback */
    atomic_store(&bank->calls, 0);
    open_pools(w);
    loose_seed(&w->loose, config->seed);
    for (uint32_t i = 0; i < config->sessions; i++) {
        assert_int_equal(join(w, i), MOEPAGE_OK);
        assert_int_equal(w->loose.device.ops->stream_create(&w->loose.device, MP_STREAM_COMPUTE,
                                                            &w->sessions[i].native),
                         MOEPAGE_OK);
    }
    w->open = w->rig.pool->cache->shards[0].open;
    return w;
}

/* After a failure nothing is expected of anything. */
void live_close(live_world *w)
{
    if (*live_failure(w))
        return; /* what is wrong may be anything: it stays as it is */
    live_path_close(w);
    for (uint32_t i = 0; i < w->config.sessions; i++) {
        if (w->sessions[i].session)
            assert_true(leave(w, &w->sessions[i]));
        w->loose.device.ops->stream_destroy(w->sessions[i].native);
    }
    assert_int_equal(moepage_kv_pool_destroy(w->kv), MOEPAGE_OK);
    assert_int_equal(moepage_expert_pool_destroy(w->rig.pool), MOEPAGE_OK);
    loose_close(&w->loose);
    free(w);
}

const char *live_failure(const live_world *w)
{
    return *w->failure ? w->failure : w->loose.failure;
}

void live_count(const live_world *w, live_counts *sum)
{
    sum->routed += w->counts.routed;
    sum->refused_routes += w->counts.refused_routes;
    sum->moves += w->counts.moves;
    sum->busy += w->counts.busy;
    sum->refused += w->counts.refused;
    sum->compressions += w->counts.compressions;
    sum->abandoned += w->counts.abandoned;
    sum->drained += w->counts.drained;
    sum->asked += w->counts.asked;
    sum->failed += w->counts.failed;
    sum->joined += w->counts.joined;
    sum->streamed += w->counts.streamed;
    sum->changes += w->counts.changes;
    sum->shrunk += w->counts.shrunk;
    sum->grown += w->counts.grown;
    sum->budget_waits += w->counts.budget_waits;
    sum->budget_refused += w->counts.budget_refused;
    sum->memory_refused += w->counts.memory_refused;
    sum->slots_taken += w->counts.slots_taken;
    sum->blocks_taken += w->counts.blocks_taken;
    sum->relocated += w->kv->counters.relocated;
    sum->overlaps += w->loose.overlaps;
}

/* ---- moves ---- */

static bool check_split(live_world *w, uint64_t slots, uint64_t blocks, uint32_t per_layer)
{
    const mp_shard *shard = &w->rig.pool->cache->shards[0];
    const mp_kv_blocks *kv = &w->kv->blocks;
    MUST(w, !slots || pool_slots(shard) == slots);
    MUST(w, !blocks || mp_kv_blocks_capacity(kv) == (blocks + 2) / 3 * 3);
    MUST(w, shard->transfer->compressed.n == per_layer * w->bank->shape.layers);
    const mp_bundle *bundle = &w->rig.pool->bundle;
    MUST(w, mp_bundle_bytes(bundle, shard->all.first) >=
                shard->transfer->compressed.n * shard->transfer->compressed.unit);
    MUST(w,
         w->loose.home->arena.claimed[MP_SIDE_EXPERTS] == mp_bundle_bytes(bundle, shard->all.end));
    MUST(w, w->loose.home->arena.claimed[MP_SIDE_KV] ==
                mp_kv_blocks_capacity(kv) / 3 * w->kv->shape.granule_bytes);
    return true;
}

static bool is_unfenced(const live_world *w)
{
    const mp_shard *shard = &w->rig.pool->cache->shards[0];
    return w->rig.pool->move.slots == 0 && shard->open.first == shard->all.first &&
           shard->open.end == shard->all.end;
}

/* Does the move ask for more than there is, or leave either side less than it needs? */
static bool is_infeasible(const live_world *w)
{
    const live_move *m = &w->move;
    const moepage_expert_pool *pool = w->rig.pool;
    const mp_shard *shard = &pool->cache->shards[0];
    uint64_t layers = w->bank->shape.layers, keys = layers * w->bank->shape.experts;
    uint64_t places = m->compress ? m->per_layer * layers : shard->transfer->compressed.n;
    uint64_t first =
        (places * shard->transfer->compressed.unit + pool->slot_bytes - 1) / pool->slot_bytes;
    uint64_t slots = m->slots || m->compress ? m->slots : pool_slots(shard);
    uint64_t kv = mp_kv_blocks_capacity(&w->kv->blocks);
    kv = m->blocks && !m->compress ? (m->blocks + 2) / 3 * 3 : kv;
    if (slots < 1 || slots > keys || slots % pool->step_slots ||
        mp_kv_blocks_used(&w->kv->blocks) > kv)
        return true;
    if (!live_fits(w, w->budget.aim, mp_bundle_bytes(&pool->bundle, first + slots),
                   kv / 3 * w->kv->shape.granule_bytes))
        return true;
    uint64_t from = first > shard->all.first ? first : shard->all.first;
    uint64_t end = shard->all.end;
    end = first + slots < end ? first + slots : end;
    for (uint32_t i = 0; i < pool->cache->n_scopes; i++) {
        const mp_scope *scope = &shard->scopes[i];
        uint32_t kept = live_capacity(pool, scope, (mp_span){(uint32_t)from, (uint32_t)end});
        uint32_t sharers = live_sessions(w) - w->path.on;
        bool takes = kept < live_capacity(pool, scope, shard->all);
        uint32_t needed = takes ? live_needed(w, sharers) : sharers;
        if (kept < scope->members && kept < needed + atomic_load(&scope->pinned))
            return true;
    }
    return false;
}

/* One attempt at the move under way. */
static bool attempt(live_world *w, mp_stream *native, bool once)
{
    live_move *m = &w->move;
    const mp_shard *shard = &w->rig.pool->cache->shards[0];
    uint32_t was_slots = pool_slots(shard), was_first = shard->all.first;
    uint32_t was_places = shard->transfer->compressed.n;
    uint32_t was_blocks = mp_kv_blocks_capacity(&w->kv->blocks);
    bool infeasible = is_infeasible(w);
    moepage_status status;
    if (m->compress)
        status = mp_split_compress(w->rig.pool, m->per_layer, m->slots);
    else if (once)
        status = moepage_split_set(w->rig.pool, w->kv, m->slots, m->blocks, native);
    else
        status = mp_split_move(w->rig.pool, w->kv, m->slots, m->blocks, native);
    bool never =
        status == MOEPAGE_E_UNSUPPORTED && shard->transfer->compressed.unit == 0 && m->per_layer;
    MUST(w, !status || status == MOEPAGE_E_BUSY || status == MOEPAGE_E_BUDGET || never);
    MUST(w, never || (status == MOEPAGE_E_BUDGET) == infeasible);
    w->counts.busy += status == MOEPAGE_E_BUSY;
    w->counts.refused += status == MOEPAGE_E_BUDGET;
    w->counts.drained += atomic_load(&w->rig.pool->cache->n_draining) > 0;
    if (!status) {
        w->counts.moves += !m->compress;
        w->counts.compressions += m->compress;
        if (!check_split(w, m->slots, m->compress ? 0 : m->blocks,
                         m->compress ? m->per_layer : was_places / w->bank->shape.layers))
            return false;
    } else {
        /* Under a budget that waits to shrink, what has gone before the refusal need not come back. */
        const bool waits = w->budget.aim < w->budget.now;
        const uint32_t slots = pool_slots(shard), blocks = mp_kv_blocks_capacity(&w->kv->blocks);
        MUST(w, slots == was_slots || (waits && slots < was_slots && slots == m->slots));
        MUST(w, blocks == was_blocks);
        MUST(w, shard->all.first == was_first && shard->transfer->compressed.n == was_places);
    }
    m->waits = status == MOEPAGE_E_BUSY && !once;
    MUST(w, m->waits || is_unfenced(w));
    return true;
}

static bool move(live_world *w, live_session *s, bool compress)
{
    live_move *m = &w->move;
    const mp_shard *shard = &w->rig.pool->cache->shards[0];
    uint32_t step = w->rig.pool->step_slots, layers = w->bank->shape.layers;
    if (m->waits && live_below(w, 8) == 0) {
        mp_split_abandon(w->rig.pool);
        w->counts.abandoned++;
        m->waits = false;
        MUST(w, is_unfenced(w));
        return true;
    }
    bool once = live_below(w, 12) == 0;
    if (!m->waits || once || live_below(w, 12) == 0) {
        uint32_t least = live_below(w, 8) ? w->config.sessions : 1;
        m->slots = live_below(w, 16) ? (least + live_below(w, 20 / step - least)) * step : 0;
        uint32_t used = live_below(w, 8) ? mp_kv_blocks_used(&w->kv->blocks) : 0;
        m->blocks = live_below(w, 3) ? 1 + used + live_below(w, 24) : 0;
        m->per_layer = live_below(w, w->bank->shape.experts + 1);
        if (live_below(w, 10) == 0) /* what it has already: the fence must go */
            *m = (live_move){.slots = pool_slots(shard),
                             .per_layer = shard->transfer->compressed.n / layers};
        m->compress = compress;
    }
    return attempt(w, s->native, once && !m->compress);
}

/* ---- sessions that come and go ---- */

/* One that comes while layers are open may have to wait for them: only between layers. */
static bool come_or_go(live_world *w, live_session *s)
{
    const moepage_expert_pool *pool = w->rig.pool;
    if (s->session && live_sessions(w) > 1 && !s->step &&
        !(w->path.on && s == &w->sessions[w->path.owner]))
        return leave(w, s);
    if (s->session || !live_is_idle(w))
        return true;
    uint32_t dividing = live_sessions(w) + 1 - w->path.on;
    bool fits = true;
    for (uint32_t i = 0; i < pool->cache->n_scopes; i++) {
        const mp_scope *scope = &pool->cache->shards[0].scopes[i];
        uint32_t aim = atomic_load(&scope->aim);
        fits = fits && (aim >= scope->members || aim >= dividing + atomic_load(&scope->pinned));
    }
    moepage_status status = join(w, (uint32_t)(s - w->sessions));
    MUST(w, status == (fits ? MOEPAGE_OK : MOEPAGE_E_BUDGET));
    w->counts.joined += !status;
    return true;
}

/* ---- everything ---- */

enum {
    BEGIN,
    ROUTE,
    GO_ON,
    END,
    CANCEL,
    HINT,
    PIN,
    KV,
    MOVE,
    COMPRESS,
    BUDGET,
    SWITCH,
    LIFE,
    PATH,
    RUN,
    KINDS
};

static const uint8_t shares[KINDS] = {
    [BEGIN] = 12, [ROUTE] = 22, [GO_ON] = 14, [END] = 6,  [CANCEL] = 2,
    [HINT] = 6,   [PIN] = 1,    [KV] = 5,     [MOVE] = 9, [COMPRESS] = 3,
    [BUDGET] = 6, [SWITCH] = 1, [LIFE] = 1,   [PATH] = 3, [RUN] = 9};

static uint32_t kind_of(uint64_t action)
{
    uint32_t at = (uint32_t)(action >> 8) % 100, kind = 0;
    while (at >= shares[kind])
        at -= shares[kind++];
    return kind;
}

const char *live_name(uint64_t action)
{
    static const char *const names[KINDS] = {"begin",  "route",  "go on", "end",  "cancel",
                                             "hint",   "pin",    "KV",    "move", "compress",
                                             "budget", "switch", "life",  "path", "run"};
    return names[kind_of(action)];
}

bool live_act(live_world *w, uint64_t action)
{
    live_session *s = &w->sessions[(uint32_t)(action >> 40) % w->config.sessions];
    bool ok = true;
    w->random = action;
    loose_seed(&w->loose, action ^ w->config.seed);
    switch (kind_of(action)) {
    case BEGIN: ok = live_begin(w, s); break;
    case ROUTE: ok = live_route(w, s); break;
    case GO_ON: ok = live_go_on(w, s); break;
    case END: ok = live_end(w, s, false); break;
    case CANCEL: ok = live_end(w, s, true); break;
    case HINT: ok = live_hint(w, s); break;
    case PIN: ok = live_pin(w); break;
    case KV: ok = live_kv(w, s); break;
    case MOVE: ok = move(w, s, false); break;
    case COMPRESS: ok = move(w, s, true); break;
    case BUDGET: ok = live_budget_act(w, s->native); break;
    case SWITCH: ok = live_switch(w, s); break;
    case LIFE: ok = come_or_go(w, s); break;
    case PATH: ok = live_path_act(w, (uint32_t)(s - w->sessions)); break;
    default: loose_run(&w->loose, live_below(w, 30)); break;
    }
    loose_check(&w->loose);
    return ok && live_check(w) && !*live_failure(w);
}

/* Blocks that tables hold are those that are not free, and each table is as long as its tokens. */
static bool check_blocks(live_world *w)
{
    static uint8_t seen[4096];
    uint32_t used = 0;
    memset(seen, 0, sizeof seen);
    for (uint32_t i = 0; i < w->config.sessions; i++)
        for (uint32_t j = 0; j < MAX_SEQUENCES; j++) {
            const live_sequence *q = &w->sessions[i].sequences[j];
            moepage_kv_table table;
            if (!q->id || q->swapped)
                continue;
            if (!live_get_table(w, q, &table))
                return false;
            MUST(w, table.n_blocks == (q->n + BLOCK_TOKENS - 1) / BLOCK_TOKENS);
            for (uint64_t b = 0; b < table.n_blocks; b++) {
                MUST(w, table.blocks[b] < sizeof seen);
                used += !seen[table.blocks[b]]++;
            }
        }
    MUST(w, mp_kv_blocks_used(&w->kv->blocks) == used);
    return true;
}

static bool check_tokens(live_world *w)
{
    for (uint32_t i = 0; i < w->config.sessions; i++)
        for (uint32_t j = 0; j < MAX_SEQUENCES; j++) {
            const live_sequence *q = &w->sessions[i].sequences[j];
            MUST(w, !q->id || q->swapped || kv_tokens_match(&w->tokens, q->id, q->n, q->tags));
        }
    return true;
}

/* With nothing in use but pins, a move that waited goes through at once. */
static bool finish_move(live_world *w)
{
    mp_stream *native = w->sessions[0].native;
    if (w->move.waits && live_below(w, 3) == 0) {
        mp_split_abandon(w->rig.pool);
        w->move.waits = false;
    }
    for (uint32_t i = 0; i < SETTLING && w->move.waits; i++) {
        loose_run(&w->loose, UINT32_MAX);
        if (!attempt(w, native, false))
            return false;
    }
    for (uint32_t i = 0; i < MAX_PINS; i++) /* one may lie beyond the new end */
        if (w->pins[i].on && w->move.waits) {
            MUST(w, !moepage_expert_pool_unpin(w->rig.pool, w->pins[i].layer, w->pins[i].expert));
            w->pins[i].on = false;
        }
    for (uint32_t i = 0; i < SETTLING && w->move.waits; i++) {
        live_path_leave_drained(w);
        loose_run(&w->loose, UINT32_MAX);
        if (!attempt(w, native, false))
            return false;
    }
    MUST(w, !w->move.waits);
    return true;
}

/* The same of the budget. */
static bool finish_budget(live_world *w)
{
    mp_stream *native = w->sessions[0].native;
    if (live_budget_waits(w) && live_below(w, 3) == 0)
        return live_budget_attempt(w, w->budget.now, native);
    for (uint32_t i = 0; i < SETTLING && live_budget_waits(w); i++) {
        loose_run(&w->loose, UINT32_MAX);
        if (!live_budget_attempt(w, w->budget.aim, native))
            return false;
    }
    for (uint32_t i = 0; i < MAX_PINS; i++)
        if (w->pins[i].on && live_budget_waits(w)) {
            MUST(w, !moepage_expert_pool_unpin(w->rig.pool, w->pins[i].layer, w->pins[i].expert));
            w->pins[i].on = false;
        }
    for (uint32_t i = 0; i < SETTLING && live_budget_waits(w); i++) {
        live_path_leave_drained(w);
        loose_run(&w->loose, UINT32_MAX);
        if (!live_budget_attempt(w, w->budget.aim, native))
            return false;
    }
    MUST(w, !live_budget_waits(w));
    return true;
}

bool live_settle(live_world *w, uint64_t action, bool thorough)
{
    w->random = action;
    loose_seed(&w->loose, action ^ w->config.seed);
    for (uint32_t i = 0; i < w->config.sessions; i++)
        if (!live_end(w, &w->sessions[i], false))
            return false;
    loose_run(&w->loose, UINT32_MAX);
    w->path.now++; /* from here on nothing is of the message that it is asked for */
    if (!finish_move(w) || !finish_budget(w))
        return false;
    live_path_leave_drained(w);
    loose_run(&w->loose, UINT32_MAX);
    MUST(w, is_unfenced(w) && atomic_load(&w->rig.pool->cache->n_draining) == 0);
    MUST(w, atomic_load(&w->rig.pool->ahead->pending) == 0);
    if (!check_blocks(w))
        return false;
    if (!live_check(w) || (thorough && !check_tokens(w)))
        return false;
    if (thorough)
        live_path_close(w);
    if (thorough)
        pool_rig_check(&w->rig);
    return !*live_failure(w);
}
