/* From the router's top-k to groups: which distinct experts a layer needs, in which order, in how
 * many turns, and which rows each of them sees.
 *
 * One group holds everything when it fits. Otherwise the experts come in waves (each expert once,
 * with all its rows; resident ones first, so that they compute while the others load), or, for
 * plan readers who ask for it, the tokens come in groups whose experts fit together (WiSP 3.2). */
#include <string.h>

#include "base/floats.h"
#include "base/status.h"
#include "session/session.h"

/* What may be held at once, per device and in all. */
typedef struct mp_limits {
    uint32_t shard[MOEPAGE_MAX_DEVICES];
    uint32_t total;
} mp_limits;

/* ---- collecting ---- */

static uint32_t next_stamp(struct moepage_session *session)
{
    if (++session->stamp == 0) {
        memset(session->local_stamp, 0, session->pool->experts * sizeof *session->local_stamp);
        session->stamp = 1;
    }
    return session->stamp;
}

moepage_status mp_groups_collect(struct moepage_session *session, mp_flight *flight,
                                 const moepage_routing *routing, uint32_t *n_distinct)
{
    uint32_t experts = session->pool->experts, top_k = flight->top_k;
    uint32_t n_rows = flight->n_tokens * top_k;
    uint32_t bad = (uint32_t)mp_first_not_finite(routing->weights, n_rows);
    if (bad < n_rows)
        return mp_fail(MOEPAGE_E_ARGUMENT,
                       "layer %u: weight %u of token %u is %f, it must be finite", flight->layer,
                       bad % top_k, bad / top_k, (double)routing->weights[bad]);
    uint32_t stamp = next_stamp(session), n = 0;
    for (uint32_t r = 0; r < n_rows; r++) {
        uint32_t id = (uint32_t)routing->ids[r];
        if (id >= experts) {
            if (routing->ids[r] == MOEPAGE_NO_EXPERT)
                continue;
            return mp_fail(MOEPAGE_E_ARGUMENT,
                           "layer %u: id %u of token %u is %d, it must be below "
                           "%u (or MOEPAGE_NO_EXPERT)",
                           flight->layer, r % top_k, r / top_k, (int)routing->ids[r], experts);
        }
        if (session->local_stamp[id] != stamp) {
            session->local_stamp[id] = stamp;
            session->local[id] = n;
            session->distinct[n] = id;
            session->counts[n++] = 0;
        }
        session->counts[session->local[id]]++;
    }
    memcpy(flight->ids, routing->ids, n_rows * sizeof *flight->ids);
    memcpy(flight->weights, routing->weights, n_rows * sizeof *flight->weights);
    *n_distinct = n;
    return MOEPAGE_OK;
}

/* ---- limits ---- */

static moepage_status find_limits(struct moepage_session *session, uint32_t layer,
                                  mp_limits *limits)
{
    const struct moepage_expert_pool *pool = session->pool;
    bool scan = session->all_scan;
    limits->total =
        session->config.max_group_experts ? session->config.max_group_experts : UINT32_MAX;
    for (uint32_t d = 0; d < pool->n_shards; d++) {
        limits->shard[d] = mp_pool_quota(pool, &session->client, layer, d, scan);
        if (limits->shard[d] == 0)
            return mp_fail(MOEPAGE_E_BUSY,
                           "layer %u: this session's share of the slots is in its "
                           "open plans; retire a layer first",
                           layer);
    }
    return MOEPAGE_OK;
}

static bool halve(mp_limits *limits, uint32_t n_shards)
{
    bool both_fit = limits->total >= 2;
    for (uint32_t d = 0; d < n_shards; d++)
        both_fit = both_fit && limits->shard[d] >= 2;
    if (!both_fit)
        return false;
    limits->total /= 2;
    for (uint32_t d = 0; d < n_shards; d++)
        limits->shard[d] /= 2;
    return true;
}

/* Adds one expert to a group's tally if it fits. */
static bool tally(const struct moepage_session *session, const mp_limits *limits,
                  uint32_t used[MOEPAGE_MAX_DEVICES], uint32_t *total, uint32_t expert)
{
    uint32_t d = mp_pool_shard_of(session->pool, expert);
    if (*total == limits->total || used[d] == limits->shard[d])
        return false;
    used[d]++;
    (*total)++;
    return true;
}

/* ---- entries ---- */

static void set_entry(struct moepage_session *session, mp_flight *flight, uint32_t entry,
                      uint32_t expert, bool scan)
{
    struct moepage_expert_pool *pool = session->pool;
    uint32_t key = flight->layer * pool->experts + expert;
    flight->holds[entry] =
        (mp_hold){.key = key, .shard = mp_pool_shard_of(pool, key), .scan = scan};
}

/* Turns session->counts into flight->first_row for entries [first, first + n). */
static void lay_out_rows(struct moepage_session *session, mp_flight *flight, uint32_t first,
                         uint32_t n)
{
    uint32_t row = first == 0 ? 0 : flight->first_row[first];
    for (uint32_t i = first; i < first + n; i++) {
        uint32_t count = session->counts[i];
        flight->first_row[i] = row;
        session->counts[i] = row; /* from here on a cursor */
        row += count;
    }
    flight->first_row[first + n] = row;
}

/* In a mixed batch an expert is a scan's only if no decoding token routes to it. */
static void mark_scans(struct moepage_session *session, mp_flight *flight)
{
    if (!session->any_scan || session->all_scan)
        return;
    for (uint32_t r = 0; r < flight->n_tokens * flight->top_k; r++)
        if (flight->ids[r] >= 0 && !session->scan_token[r / flight->top_k])
            flight->holds[session->local[flight->ids[r]]].scan = false;
}

/* ---- waves of experts ---- */

static bool fits_at_once(struct moepage_session *session, const mp_limits *limits, uint32_t n)
{
    uint32_t used[MOEPAGE_MAX_DEVICES] = {0}, total = 0;
    if (session->pool->n_shards == 1)
        return n <= limits->total && n <= limits->shard[0];
    for (uint32_t i = 0; i < n; i++)
        if (!tally(session, limits, used, &total, session->distinct[i]))
            return false;
    return true;
}

static void reverse(uint32_t *values, uint32_t n)
{
    for (uint32_t i = 0; i < n / 2; i++) {
        uint32_t value = values[i];
        values[i] = values[n - 1 - i];
        values[n - 1 - i] = value;
    }
}

/* Renumbers the distinct experts: resident ones first, each part in the set's order. */
static void order_resident_first(struct moepage_session *session, mp_flight *flight, uint32_t n)
{
    const struct moepage_expert_pool *pool = session->pool;
    uint32_t *order = session->order, *counts = session->order_counts, front = 0, back = n;
    for (uint32_t i = 0; i < n; i++) { /* each is asked once: the answer may change at any time */
        uint32_t key = flight->layer * pool->experts + session->distinct[i];
        bool absent = atomic_load(&pool->entry[key]) == MP_NO_SLOT;
        uint32_t at = absent ? --back : front++;
        counts[at] = session->counts[i];
        order[at] = session->distinct[i];
    }
    reverse(order + back, n - back);
    reverse(counts + back, n - back);
    for (uint32_t i = 0; i < n; i++) {
        session->distinct[i] = order[i];
        session->counts[i] = counts[i];
        session->local[order[i]] = i;
    }
}

static void cut_waves(struct moepage_session *session, mp_flight *flight, const mp_limits *limits,
                      uint32_t n)
{
    uint32_t used[MOEPAGE_MAX_DEVICES] = {0}, total = 0, first = 0;
    flight->n_groups = 0;
    for (uint32_t i = 0; i <= n; i++) {
        if (i < n && tally(session, limits, used, &total, session->distinct[i]))
            continue;
        flight->groups[flight->n_groups++] =
            (mp_group){.first_entry = first, .n_entries = i - first};
        if (i == n)
            break;
        first = i;
        memset(used, 0, sizeof used);
        total = 0;
        tally(session, limits, used, &total, session->distinct[i]);
    }
}

static void form_waves(struct moepage_session *session, mp_flight *flight, uint32_t n,
                       mp_limits *limits, bool for_plan)
{
    flight->overlap = false;
    if (fits_at_once(session, limits, n)) {
        flight->n_groups = 1;
        flight->groups[0] = (mp_group){.n_entries = n};
    } else {
        order_resident_first(session, flight, n);
        /* Two half-size waves at a time: one computes while the next one loads. */
        if (!for_plan)
            flight->overlap = halve(limits, session->pool->n_shards);
        cut_waves(session, flight, limits, n);
    }
    flight->n_entries = n;
    for (uint32_t i = 0; i < n; i++)
        set_entry(session, flight, i, session->distinct[i], session->any_scan);
    mark_scans(session, flight);
    lay_out_rows(session, flight, 0, n);
    uint32_t n_rows = flight->n_tokens * flight->top_k;
    for (uint32_t r = 0; r < n_rows; r++)
        if (flight->ids[r] >= 0)
            flight->rows[session->counts[session->local[flight->ids[r]]]++] = r;
}

/* ---- groups of tokens ---- */

/* Adds a token's experts to the group that session->stamp marks, or nothing if they do not fit. */
static bool add_token(struct moepage_session *session, mp_flight *flight, uint32_t token,
                      const mp_limits *limits, uint32_t used[MOEPAGE_MAX_DEVICES], uint32_t *total)
{
    uint32_t tried[MOEPAGE_MAX_DEVICES], tried_total = *total;
    uint32_t before = flight->n_entries;
    memcpy(tried, used, sizeof tried);
    for (uint32_t k = 0; k < flight->top_k; k++) {
        int32_t id = flight->ids[token * flight->top_k + k];
        if (id < 0 || session->local_stamp[id] == session->stamp)
            continue;
        if (!tally(session, limits, tried, &tried_total, (uint32_t)id)) {
            while (flight->n_entries > before) /* take the token's experts out again */
                session
                    ->local_stamp[flight->holds[--flight->n_entries].key % session->pool->experts] =
                    0;
            return false;
        }
        session->local_stamp[id] = session->stamp;
        session->local[id] = flight->n_entries;
        session->counts[flight->n_entries] = 0;
        set_entry(session, flight, flight->n_entries++, (uint32_t)id, session->all_scan);
    }
    for (uint32_t k = 0; k < flight->top_k; k++) {
        int32_t id = flight->ids[token * flight->top_k + k];
        if (id >= 0)
            session->counts[session->local[id]]++;
    }
    memcpy(used, tried, sizeof tried);
    *total = tried_total;
    return true;
}

/* Fills one group with every token not yet placed that fits, in ascending order. */
static void fill_token_group(struct moepage_session *session, mp_flight *flight,
                             const mp_limits *limits, uint32_t *placed)
{
    uint32_t used[MOEPAGE_MAX_DEVICES] = {0}, total = 0;
    mp_group *group = &flight->groups[flight->n_groups];
    *group = (mp_group){.first_entry = flight->n_entries, .first_token = *placed};
    next_stamp(session);
    for (uint32_t t = 0; t < flight->n_tokens; t++) {
        if (session->token_placed[t] || !add_token(session, flight, t, limits, used, &total))
            continue;
        session->token_placed[t] = true;
        flight->tokens[(*placed)++] = t;
        group->n_tokens++;
    }
    group->n_entries = flight->n_entries - group->first_entry;
    lay_out_rows(session, flight, group->first_entry, group->n_entries);
    for (uint32_t i = 0; i < group->n_tokens; i++) {
        uint32_t first = flight->tokens[group->first_token + i] * flight->top_k;
        for (uint32_t r = first; r < first + flight->top_k; r++)
            if (flight->ids[r] >= 0)
                flight->rows[session->counts[session->local[flight->ids[r]]]++] = r;
    }
}

static moepage_status form_token_groups(struct moepage_session *session, mp_flight *flight,
                                        const mp_limits *limits)
{
    uint32_t placed = 0;
    flight->overlap = false;
    flight->n_entries = flight->n_groups = 0;
    flight->first_row[0] = 0;
    memset(session->token_placed, 0, flight->n_tokens * sizeof *session->token_placed);
    while (placed < flight->n_tokens) {
        uint32_t before = placed;
        fill_token_group(session, flight, limits, &placed);
        if (placed == before)
            return mp_fail(MOEPAGE_E_BUDGET,
                           "layer %u: the experts of a single token do not fit "
                           "together in what this session may hold (%u on the first device): give "
                           "the pool more slots, or group by experts",
                           flight->layer, limits->shard[0]);
        flight->n_groups++;
    }
    return MOEPAGE_OK;
}

/* Sets aside what the flight will hold at most, for as long as it is open: later groups may be
 * bigger than the first. Also where there is a slot for every expert: the pool may shrink. */
static void reserve(struct moepage_session *session, mp_flight *flight, const mp_limits *limits)
{
    for (uint32_t d = 0; d < session->pool->n_shards; d++) {
        uint32_t most = limits->shard[d] < limits->total ? limits->shard[d] : limits->total;
        most = most < flight->n_entries ? most : flight->n_entries;
        flight->reserved[d] = flight->n_groups == 1 ? 0 : most;
    }
    for (uint32_t i = 0; i < flight->n_entries && flight->n_groups == 1; i++)
        flight->reserved[flight->holds[i].shard]++;
}

moepage_status mp_groups_form(struct moepage_session *session, mp_flight *flight,
                              uint32_t n_distinct, bool for_plan)
{
    mp_limits limits = {0};
    moepage_status status = find_limits(session, flight->layer, &limits);
    if (status)
        return status;
    bool by_tokens = for_plan && session->config.grouping == MOEPAGE_GROUP_TOKENS;
    mp_limits whole = limits;
    flight->by_tokens = by_tokens && !fits_at_once(session, &limits, n_distinct);
    if (flight->by_tokens)
        status = form_token_groups(session, flight, &limits);
    else
        form_waves(session, flight, n_distinct, &limits, for_plan);
    if (!status)
        reserve(session, flight, &whole);
    return status;
}
