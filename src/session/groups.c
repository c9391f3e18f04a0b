/* From the router's top-k to groups: finds a layer's distinct experts and their rows, and divides
 * them into groups that can be held.
 *
 * One group holds everything if it fits. Otherwise the experts come in waves: each expert
 * once, with all its rows, and resident ones first, so that they compute while the others
 * load. For plan readers with MOEPAGE_GROUP_TOKENS, the tokens come in groups whose experts
 * fit together (WiSP 3.2). */
#include <string.h>

#include "base/floats.h"
#include "base/status.h"
#include "session/inside.h"

/* All of its bits are set in infinities and NaNs. */
#define FLOAT_EXPONENT 0x7f800000u

/* What may be held at once, per device and in all. */
typedef struct mp_limits {
    uint32_t device[MOEPAGE_MAX_DEVICES];
    uint32_t total;
} mp_limits;

/* ---- collecting ---- */

/* Clears all stamps after the counter has wrapped around, and continues at 1. */
static void restart_stamps(struct moepage_session *session)
{
    memset(session->local_stamp, 0, session->step.shape.experts * sizeof *session->local_stamp);
    session->stamp = 1;
}

static moepage_status refuse_weight(const mp_flight *flight, const float *weights, uint32_t n_rows)
{
    uint32_t bad = (uint32_t)mp_first_not_finite(weights, n_rows);
    return mp_fail(MOEPAGE_E_ARGUMENT, "layer %u: weight %u of token %u is %f, it must be finite",
                   flight->layer, bad % flight->top_k, bad / flight->top_k, (double)weights[bad]);
}

moepage_status mp_groups_collect(struct moepage_session *session, mp_flight *flight,
                                 const moepage_routing *routing)
{
    const uint32_t experts = session->step.shape.experts, top_k = flight->top_k;
    const uint32_t n_rows = flight->n_tokens * top_k;
    uint32_t n = 0, bad = 0;
    /* Without branches, since this runs over whole batches. */
    for (uint32_t r = 0; r < n_rows; r++) {
        uint32_t bits;
        memcpy(&bits, &routing->weights[r], sizeof bits);
        bad |= (bits & FLOAT_EXPONENT) == FLOAT_EXPONENT;
    }
    if (bad)
        return refuse_weight(flight, routing->weights, n_rows);
    if (++session->stamp == 0)
        restart_stamps(session);
    const uint32_t stamp = session->stamp;
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
    flight->n_distinct = n;
    flight->distinct = session->distinct;
    return MOEPAGE_OK;
}

/* ---- limits ---- */

static bool halve(mp_limits *limits, uint32_t n_devices)
{
    bool both_fit = limits->total >= 2;
    for (uint32_t d = 0; d < n_devices; d++)
        both_fit = both_fit && limits->device[d] >= 2;
    if (!both_fit)
        return false;
    limits->total /= 2;
    for (uint32_t d = 0; d < n_devices; d++)
        limits->device[d] /= 2;
    return true;
}

/* Adds one expert to a group's tally if it fits. */
static bool tally(const struct moepage_session *session, const mp_limits *limits,
                  uint32_t used[MOEPAGE_MAX_DEVICES], uint32_t *total, uint32_t expert)
{
    uint32_t d = mp_deal_device(session->step.shape.deal, expert);
    if (*total == limits->total || used[d] == limits->device[d])
        return false;
    used[d]++;
    (*total)++;
    return true;
}

static bool fits_on_all_devices(struct moepage_session *session, const mp_limits *limits,
                                uint32_t n)
{
    uint32_t used[MOEPAGE_MAX_DEVICES] = {0}, total = 0;
    for (uint32_t i = 0; i < n; i++)
        if (!tally(session, limits, used, &total, session->distinct[i]))
            return false;
    return true;
}

/* Marks the experts that prefill alone needs: in a mixed batch, those to which no
 * decoding token routes. */
static void mark_scans(struct moepage_session *session, mp_flight *flight)
{
    for (uint32_t r = 0; r < flight->n_tokens * flight->top_k; r++)
        if (flight->ids[r] >= 0 && !session->scan_token[r / flight->top_k])
            flight->holds[session->local[flight->ids[r]]].scan = false;
}

/* ---- waves of experts ---- */

static void reverse(uint32_t *values, uint32_t n)
{
    for (uint32_t i = 0; i < n / 2; i++) {
        uint32_t value = values[i];
        values[i] = values[n - 1 - i];
        values[n - 1 - i] = value;
    }
}

/* Renumbers the distinct experts: resident ones first, each part in the set's order. */
static void order_resident_first(struct moepage_session *session, const mp_flight *flight)
{
    const uint32_t first_key = flight->layer * session->step.shape.experts, n = flight->n_distinct;
    uint32_t *order = session->order, *counts = session->order_counts, front = 0, back = n;
    /* Each is looked up once, since the answer may change at any time. */
    for (uint32_t i = 0; i < n; i++) {
        bool has = mp_pool_has(session->step.pool, first_key + session->distinct[i]);
        uint32_t at = has ? front++ : --back;
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

static void cut_waves(struct moepage_session *session, mp_flight *flight, const mp_limits *limits)
{
    uint32_t used[MOEPAGE_MAX_DEVICES] = {0}, total = 0, first = 0, n = flight->n_distinct;
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

/* Makes one entry for each distinct expert, with its rows in the tokens' order. */
static void make_entries(struct moepage_session *session, mp_flight *flight)
{
    const mp_step_view *step = &session->step;
    const uint32_t first_key = flight->layer * step->shape.experts, n = flight->n_distinct;
    uint32_t row = 0;
    flight->n_entries = n;
    for (uint32_t i = 0; i < n; i++) {
        uint32_t expert = session->distinct[i], count = session->counts[i];
        flight->holds[i] = (mp_hold){.key = first_key + expert,
                                     .shard = mp_deal_device(step->shape.deal, expert),
                                     .scan = step->any_scan};
        flight->first_row[i] = row;
        session->counts[i] = row; /* from here on a cursor */
        row += count;
    }
    flight->first_row[n] = row;
    if (step->any_scan && !step->all_scan)
        mark_scans(session, flight);
    const uint32_t n_rows = flight->n_tokens * flight->top_k;
    for (uint32_t r = 0; r < n_rows; r++)
        if (flight->ids[r] >= 0)
            flight->rows[session->counts[session->local[flight->ids[r]]]++] = r;
}

/* ---- groups of tokens ---- */

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

/* Adds a token's experts to the group marked by session->stamp, or none of them if they do
 * not all fit. */
static bool add_token(struct moepage_session *session, mp_flight *flight, uint32_t token,
                      const mp_limits *limits, uint32_t used[MOEPAGE_MAX_DEVICES], uint32_t *total)
{
    const mp_pool_shape *shape = &session->step.shape;
    uint32_t tried[MOEPAGE_MAX_DEVICES], tried_total = *total;
    uint32_t before = flight->n_entries;
    memcpy(tried, used, sizeof tried);
    for (uint32_t k = 0; k < flight->top_k; k++) {
        int32_t id = flight->ids[token * flight->top_k + k];
        if (id < 0 || session->local_stamp[id] == session->stamp)
            continue;
        if (!tally(session, limits, tried, &tried_total, (uint32_t)id)) {
            while (flight->n_entries > before) /* take the token's experts out again */
                session->local_stamp[flight->holds[--flight->n_entries].key % shape->experts] = 0;
            return false;
        }
        session->local_stamp[id] = session->stamp;
        session->local[id] = flight->n_entries;
        session->counts[flight->n_entries] = 0;
        flight->holds[flight->n_entries++] =
            (mp_hold){.key = flight->layer * shape->experts + (uint32_t)id,
                      .shard = mp_deal_device(shape->deal, (uint32_t)id),
                      .scan = session->step.all_scan};
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
    if (++session->stamp == 0)
        restart_stamps(session);
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
                           flight->layer, limits->device[0]);
        flight->n_groups++;
    }
    return MOEPAGE_OK;
}

/* ---- forming ---- */

/* Cuts the flight: one group if everything fits; otherwise groups of tokens, if a plan's reader
 * asked for them, or waves, of which one computes while the next one loads. */
static moepage_status cut(struct moepage_session *session, mp_flight *flight, mp_limits limits)
{
    const mp_step_view *step = &session->step;
    const uint32_t n = flight->n_distinct, n_devices = step->shape.n_devices;
    bool fits = n_devices == 1 ? n <= limits.total && n <= limits.device[0]
                               : fits_on_all_devices(session, &limits, n);
    flight->overlap = false;
    flight->by_tokens = !fits && flight->planned && step->config.grouping == MOEPAGE_GROUP_TOKENS;
    if (flight->by_tokens)
        return form_token_groups(session, flight, &limits);
    if (fits) {
        flight->n_groups = 1;
        flight->groups[0] = (mp_group){.n_entries = n};
    } else {
        order_resident_first(session, flight);
        flight->overlap = !flight->planned && halve(&limits, n_devices);
        cut_waves(session, flight, &limits);
    }
    make_entries(session, flight);
    return MOEPAGE_OK;
}

void mp_groups_reserve(struct moepage_session *session, const mp_flight *opening)
{
    const mp_bundle *bundle = session->step.shape.bundle;
    uint32_t reserved[MOEPAGE_MAX_DEVICES * MP_MAX_LAYOUTS], widest = 0;
    memset(reserved, 0, session->step.shape.n_devices * bundle->n_classes * sizeof *reserved);
    for (uint32_t i = 0; i < MP_MAX_FLIGHTS; i++) {
        const mp_flight *flight = &session->flights[i];
        if (!flight->open && flight != opening)
            continue;
        uint32_t *of_class = &reserved[bundle->class_of_layer[flight->layer]];
        for (uint32_t d = 0; d < session->step.shape.n_devices; d++) {
            widest = flight->reserved[d] > widest ? flight->reserved[d] : widest;
            of_class[d * bundle->n_classes] += flight->reserved[d];
        }
    }
    mp_client_reserve(session->step.client, reserved, widest);
}

moepage_status mp_groups_form(struct moepage_session *session, mp_flight *flight)
{
    const mp_step_view *step = &session->step;
    const uint32_t n_devices = step->shape.n_devices, most = step->config.max_group_experts;
    mp_limits limits = {.total = most ? most : UINT32_MAX};
    moepage_status status = MOEPAGE_OK;
    mp_client_begin_routing(step->client);
    for (uint32_t d = 0; d < n_devices; d++) {
        limits.device[d] = mp_client_quota(step->client, flight->layer, d, step->all_scan);
        if (limits.device[d] == 0)
            status = mp_fail(MOEPAGE_E_BUSY,
                             "layer %u: the session's open plans use all of its share of the "
                             "slots; retire a layer first",
                             flight->layer);
    }
    if (!status)
        status = cut(session, flight, limits);

    /* Reserve the most that the flight will hold while it is open, since later groups may be bigger
     * than the first. Even if there is a slot for every expert: the pool may shrink. */
    for (uint32_t d = 0; d < n_devices && !status; d++) {
        uint32_t at_once = limits.device[d] < limits.total ? limits.device[d] : limits.total;
        at_once = at_once < flight->n_entries ? at_once : flight->n_entries;
        flight->reserved[d] = flight->n_groups == 1 ? 0 : at_once;
    }
    for (uint32_t i = 0; i < flight->n_entries && flight->n_groups == 1 && !status; i++)
        flight->reserved[flight->holds[i].shard]++;
    memset(flight->takes_part, 0, n_devices * sizeof *flight->takes_part);
    for (uint32_t i = 0; i < flight->n_entries && n_devices > 1 && !status; i++)
        flight->takes_part[flight->holds[i].shard] = true;
    /* A shrinking pool can count on the reservation from here on. */
    mp_groups_reserve(session, status ? NULL : flight);
    return status;
}
