/* What sessions do in a live world, and what must come of it. */
#include "live_inside.h"
#include "session/inside.h"

#define MAX_STEP_TOKENS 4

const uint32_t live_bytes_per_token[KV_LAYERS] = {40, 24};

/* ---- KV ---- */

static bool wait_for_caller(live_world *w, live_session *s)
{
    mp_tick tick;
    const mp_device_ops *ops = w->loose.device.ops;
    MUST(w, !ops->mark(s->native, &tick));
    MUST(w, !ops->sync(s->native, tick));
    return true;
}

static live_sequence *pick_sequence(live_world *w, live_session *s, bool want)
{
    uint32_t first = live_below(w, MAX_SEQUENCES);
    for (uint32_t i = 0; i < MAX_SEQUENCES; i++) {
        live_sequence *q = &s->sequences[(first + i) % MAX_SEQUENCES];
        if ((q->id != 0) == want)
            return q;
    }
    return NULL;
}

bool live_get_table(live_world *w, const live_sequence *q, moepage_kv_table *table)
{
    *table = (moepage_kv_table){.struct_size = sizeof *table};
    MUST(w, !moepage_kv_get_table(w->kv, q->id, table));
    MUST(w, table->n_tokens == q->n && table->swapped == q->swapped);
    return true;
}

/* What the caller's attention does in a step: writes the new tokens, and reads all. */
static bool attend(live_world *w, live_session *s, const live_sequence *q, uint64_t written)
{
    moepage_kv_table table;
    if (!live_get_table(w, q, &table))
        return false;
    for (uint64_t t = 0; t < q->n; t++)
        for (uint32_t l = 0; l < KV_LAYERS; l++) {
            unsigned char bytes[64];
            for (uint32_t i = 0; i < live_bytes_per_token[l]; i++)
                bytes[i] = kv_tokens_byte(q->tags[t], l, i);
            unsigned char *at = kv_tokens_at(&w->tokens, &table, l, t);
            if (t >= written)
                loose_write(s->native, MP_SIDE_KV, at, bytes, live_bytes_per_token[l]);
            loose_read(s->native, MP_SIDE_KV, at, bytes, live_bytes_per_token[l]);
        }
    return true;
}

bool live_kv(live_world *w, live_session *s)
{
    live_sequence *q = pick_sequence(w, s, true), *other = pick_sequence(w, s, false);
    uint32_t what = live_below(w, 5);
    if (s->step || !q || !wait_for_caller(w, s))
        return !*live_failure(w);
    if (what == 0 && other && !q->swapped) {
        *other = *q;
        MUST(w, !moepage_kv_fork(w->kv, q->id, &other->id));
    } else if (what == 1) {
        uint64_t n = live_below(w, (uint32_t)q->n + 1);
        MUST(w, !moepage_kv_truncate(w->kv, q->id, n));
        q->n = n;
    } else if (what == 2) {
        MUST(w, !moepage_kv_free(w->kv, q->id));
        q->id = 0;
    } else if (q->swapped) {
        moepage_status status = moepage_kv_swap_in(w->kv, q->id, s->native);
        MUST(w, !status || status == MOEPAGE_E_WOULD_NOT_FIT);
        q->swapped = status != MOEPAGE_OK;
    } else if (what == 3) {
        MUST(w, !moepage_kv_swap_out(w->kv, q->id, s->native));
        q->swapped = true;
    }
    return true;
}

/* ---- steps ---- */

/* Steps are for sessions that are there, and not a path's. */
static bool takes_steps(const live_world *w, const live_session *s)
{
    return s->session && !(w->path.on && &w->sessions[w->path.owner] == s);
}

static uint32_t open_flights(const live_session *s)
{
    uint32_t n = 0;
    for (uint32_t i = 0; i < MAX_FLIGHTS; i++)
        n += s->flights[i].open;
    return n;
}

bool live_is_idle(const live_world *w)
{
    for (uint32_t s = 0; s < w->config.sessions; s++)
        if (open_flights(&w->sessions[s]))
            return false;
    return true;
}

bool live_begin(live_world *w, live_session *s)
{
    bool fresh = live_below(w, 3) == 0;
    live_sequence *q = pick_sequence(w, s, !fresh);
    if (s->step || !takes_steps(w, s))
        return true;
    if (q && fresh) {
        *q = (live_sequence){0};
        MUST(w, !moepage_kv_create(w->kv, &q->id));
    }
    s->n_tokens = w->config.dense ? MAX_STEP_TOKENS : 1 + live_below(w, MAX_STEP_TOKENS);
    moepage_step_sequence named[2] = {{.n_tokens = s->n_tokens}};
    moepage_step step = {.struct_size = sizeof step, .n_tokens = s->n_tokens};
    uint64_t written = q ? q->n : 0, n = 1 + live_below(w, 6);
    bool uses = q && !q->swapped;
    if (uses && q->n + n <= MAX_TOKENS) {
        moepage_status status = moepage_kv_append(w->kv, q->id, n, s->native);
        MUST(w, !status || status == MOEPAGE_E_WOULD_NOT_FIT);
        for (uint64_t t = 0; !status && t < n; t++)
            q->tags[q->n++] = w->next_tag++;
    }
    if (uses) { /* some decode, and perhaps prefill of a sequence that nobody names */
        named[0].seq = q->id;
        named[0].n_tokens = 1 + live_below(w, s->n_tokens);
        named[1] = (moepage_step_sequence){.n_tokens = s->n_tokens - named[0].n_tokens, .phase = 1};
        step.sequences = named;
        step.n_sequences = 1 + (named[1].n_tokens > 0);
    } else {
        step.phase = live_below(w, 4) == 0;
    }
    MUST(w, !moepage_session_begin(s->session, &step));
    s->step = true;
    s->routed = false;
    return !uses || attend(w, s, q, written);
}

/* The caller's kernels read what the plan says, whenever they get to it. */
static void read_plan(live_world *w, live_session *s, const moepage_plan *plan)
{
    const bank_model *bank = w->bank;
    for (uint32_t e = 0; e < plan->n_experts; e++)
        for (uint32_t t = 0; t < bank->n_tensors; t++)
            loose_read(s->native, MP_SIDE_EXPERTS, plan->experts[e].tensors[t],
                       bank_model_tensor(bank, plan->layer, plan->experts[e].expert, t),
                       bank_model_tensor_bytes(bank, plan->layer, t));
    w->counts.routed += plan->n_experts;
}

static live_flight *pick_flight(live_world *w, live_session *s, bool open)
{
    uint32_t first = live_below(w, MAX_FLIGHTS);
    for (uint32_t i = 0; i < MAX_FLIGHTS; i++)
        if (s->flights[(first + i) % MAX_FLIGHTS].open == open)
            return &s->flights[(first + i) % MAX_FLIGHTS];
    return NULL;
}

/* Loads fail where the bank is told to. */
static bool may_fail(live_world *w, moepage_status status)
{
    bool failed = w->bank->shape.callback && status == MOEPAGE_E_CALLBACK;
    w->counts.failed += failed;
    return failed;
}

bool live_route(live_world *w, live_session *s)
{
    live_flight *flight = pick_flight(w, s, false);
    uint32_t experts = w->bank->shape.experts, layer = live_below(w, w->bank->shape.layers);
    uint32_t top_k = 1 + live_below(w, w->bank->shape.top_k), first = live_below(w, experts);
    top_k = w->config.dense ? w->bank->shape.top_k : top_k;
    uint32_t n_rows = s->n_tokens * top_k;
    int32_t ids[MAX_STEP_TOKENS * 4];
    float weights[MAX_STEP_TOKENS * 4];
    if (!s->step || !flight)
        return true;
    for (uint32_t i = 0; i < MAX_FLIGHTS; i++)
        if (s->flights[i].open && s->flights[i].layer == layer)
            return true;
    for (uint32_t r = 0; r < n_rows; r++) {
        ids[r] = (int32_t)((first + r / top_k + r % top_k * (1 + layer % 2)) % experts);
        weights[r] = 1;
    }
    moepage_plan plan = {.struct_size = sizeof plan};
    moepage_routing routing = {.struct_size = sizeof routing,
                               .top_k = top_k,
                               .ids = ids,
                               .weights = weights,
                               .stream = s->native};
    moepage_status status = moepage_session_route(s->session, layer, &routing, &plan);
    /* A session that has nothing open is never refused, whatever moves; only that one token's
     * experts do not fit together, where they have to. */
    bool together = s->grouping == MOEPAGE_GROUP_TOKENS && status == MOEPAGE_E_BUDGET;
    MUST(w, !status || (status == MOEPAGE_E_BUSY && open_flights(s) > 0) || together ||
                may_fail(w, status));
    w->counts.refused_routes += status != MOEPAGE_OK;
    if (status)
        return true;
    read_plan(w, s, &plan);
    s->routed = true;
    *flight = (live_flight){.open = true, .layer = layer, .n_groups = plan.n_groups};
    return true;
}

/* The next group, or the end of the layer. */
bool live_go_on(live_world *w, live_session *s)
{
    live_flight *flight = pick_flight(w, s, true);
    if (!flight)
        return true;
    if (flight->group + 1 == flight->n_groups || live_below(w, 4) == 0) {
        MUST(w, !moepage_session_retire(s->session, flight->layer));
        flight->open = false;
        return true;
    }
    moepage_plan plan = {.struct_size = sizeof plan};
    moepage_status status = moepage_session_next_group(s->session, flight->layer, &plan);
    MUST(w, !status || may_fail(w, status)); /* what it may hold, it was promised */
    if (status)
        return true;
    flight->group++;
    read_plan(w, s, &plan);
    return true;
}

bool live_end(live_world *w, live_session *s, bool cancel)
{
    if (!s->step)
        return true;
    if (!s->routed && !wait_for_caller(w, s)) /* nothing told the library of the caller's stream */
        return false;
    if (cancel) {
        MUST(w, !moepage_session_cancel(s->session));
    } else {
        for (uint32_t i = 0; i < MAX_FLIGHTS; i++)
            if (s->flights[i].open)
                MUST(w, !moepage_session_retire(s->session, s->flights[i].layer));
        MUST(w, !moepage_session_end(s->session, NULL));
    }
    for (uint32_t i = 0; i < MAX_FLIGHTS; i++)
        s->flights[i].open = false;
    s->step = false;
    return true;
}

bool live_hint(live_world *w, live_session *s)
{
    int32_t ids[3];
    uint32_t n = 1 + live_below(w, 3);
    for (uint32_t i = 0; i < n; i++)
        ids[i] = (int32_t)live_below(w, w->bank->shape.experts);
    if (!takes_steps(w, s))
        return true;
    moepage_status status =
        moepage_session_hint(s->session, live_below(w, w->bank->shape.layers), ids, n);
    bool off = w->config.prefetch == MOEPAGE_PREFETCH_OFF;
    MUST(w, status == (off ? MOEPAGE_E_STATE : MOEPAGE_OK));
    return true;
}

/* As if what a session sees of a layer had made it think otherwise. */
bool live_switch(live_world *w, live_session *s)
{
    if (!takes_steps(w, s) || s->regime != MOEPAGE_REGIME_AUTO)
        return true;
    mp_client *client = s->session->step.client;
    uint32_t layer = live_below(w, w->bank->shape.layers);
    mp_client_stream(client, layer, !client->streams[layer]);
    w->counts.changes++;
    return true;
}

bool live_pin(live_world *w)
{
    uint32_t i = live_below(w, MAX_PINS);
    if (w->pins[i].on) {
        MUST(w, pool_rig_state(&w->rig, w->pins[i].layer, w->pins[i].expert) ==
                    MOEPAGE_EXPERT_RESIDENT);
        MUST(w, !moepage_expert_pool_unpin(w->rig.pool, w->pins[i].layer, w->pins[i].expert));
        w->pins[i].on = false;
        return true;
    }
    w->pins[i].layer = live_below(w, w->bank->shape.layers);
    w->pins[i].expert = live_below(w, w->bank->shape.experts);
    /* A pin among open layers may find no slot, or leave them none: only between steps. */
    if (!live_is_idle(w))
        return true;
    moepage_status status =
        moepage_expert_pool_pin(w->rig.pool, w->pins[i].layer, w->pins[i].expert);
    MUST(w, !status || status == MOEPAGE_E_BUDGET || may_fail(w, status));
    w->pins[i].on = !status;
    return true;
}
