/* The value of a user's own routing history (WiSP 5.4, G.1): after one, two and four sessions, a
 * table of the user's own against one of the others', and the predicted working set and cap against
 * those of later sessions. */
#include <inttypes.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "common/fail.h"
#include "planning/rightsize.h"
#include "policy/predictors.h"
#include "sim/csv.h"
#include "sim/predict_state.h"
#include "sim/shape.h"
#include "sim/stack.h"
#include "sim/study.h"
#include "sim/trace.h"

#define EXCERPT "tests/data/gpt-oss-20b-20requests"
#define MODEL "gpt-oss-20b"
#define MOST_USERS 256u
#define MOST_TOP_K 64u
#define BUDGETS 3u
#define COVERAGE 0.99 /* moepage_predictor_rightsize's default */

static const uint32_t budgets[BUDGETS] = {1, 2, 4}; /* sessions */

/* Requests are sessions; a column of requests.csv identifies the user. */
typedef struct session {
    uint64_t first_row, rows;
    uint32_t user;
} session;

typedef struct sessions {
    const sim_trace *trace;
    session *all;
    uint32_t n, n_users;
    char names[MOST_USERS][64];
    uint32_t count[MOST_USERS];
} sessions;

/* ---- Whose sessions ------------------------------------------------------------------------ */

static int find_user(sessions *s, const char *name, uint32_t *out)
{
    char text[sizeof *s->names];
    snprintf(text, sizeof text, "%s", name);
    for (*out = 0; *out < s->n_users; ++*out)
        if (!strcmp(s->names[*out], text))
            return RUN_OK;
    if (s->n_users == MOST_USERS)
        return fail(RUN_REFUSED, "more than %u users", MOST_USERS);
    memcpy(s->names[s->n_users++], text, sizeof text);
    return RUN_OK;
}

static int add_session(const sim_csv *csv, const uint32_t *at, sessions *s)
{
    session own;
    uint64_t rows = s->trace->rows;
    int code = sim_csv_number(csv, at[0], rows, &own.first_row);
    if (!code)
        code = sim_csv_number(csv, at[1], rows - own.first_row, &own.rows);
    if (!code)
        code = find_user(s, csv->fields[at[2]], &own.user);
    session *more = code ? NULL : reallocarray(s->all, s->n + 1u, sizeof *more);
    if (code || !more)
        return code ? code : fail_memory();
    s->all = more;
    s->all[s->n++] = own;
    s->count[own.user]++;
    return RUN_OK;
}

static int read_sessions(const sim_trace *trace, const char *path, const char *column, sessions *s)
{
    const char *const names[3] = {"first_row", "decode_tokens", column};
    uint32_t at[3];
    sim_csv csv;
    bool more = true;
    *s = (sessions){.trace = trace};
    int code = sim_csv_open(&csv, path, names, 3, 3, at);
    while (!code && !(code = sim_csv_next(&csv, &more)) && more)
        code = add_session(&csv, at, s);
    sim_csv_close(&csv);
    return code;
}

/* ---- A table ------------------------------------------------------------------------------- */

/* Learning during a test goes into a second table, which is never used for predictions. */
typedef struct table {
    mp_predict_config config;
    void *state, *aside, *context;
    mp_guess *guesses; /* [experts] */
} table;

static void close_table(table *t)
{
    free(t->state);
    free(t->aside);
    free(t->context);
    free(t->guesses);
}

static int open_table(const sim_trace *trace, table *t)
{
    const mp_predictor *kind = &mp_predictor_coactivation;
    const sim_source *source = &trace->source;
    *t = (table){.config = {.layers = source->layers,
                            .experts = source->experts,
                            .top_k = source->top_k,
                            .distance = 1}};
    t->state = sim_alloc_state(kind->state_bytes(&t->config));
    t->aside = sim_alloc_state(kind->state_bytes(&t->config));
    t->context = sim_alloc_state(kind->context_bytes(&t->config));
    t->guesses = calloc(source->experts, sizeof *t->guesses);
    if (!t->state || !t->aside || !t->context || !t->guesses)
        return fail_memory();
    kind->init(t->state, &t->config);
    kind->init(t->aside, &t->config);
    return RUN_OK;
}

static void ask(table *t, uint32_t layer, const uint32_t *routed, mp_next_expert *count)
{
    uint32_t predicted[MOST_TOP_K], k = t->config.top_k;
    uint32_t n = mp_predictor_coactivation.predict(t->state, t->context, layer, t->guesses, NULL);
    n = n < k ? n : k;
    for (uint32_t i = 0; i < n; i++)
        predicted[i] = t->guesses[i].expert;
    mp_next_expert_count(count, predicted, n, k, routed, k);
}

/* Plays one session through the table; with `count` every layer is predicted from the preceding
 * one, and nothing is learnt. */
static void play(const sim_trace *trace, const session *s, table *t, mp_next_expert *count)
{
    const mp_predictor *kind = &mp_predictor_coactivation;
    uint32_t routed[MOST_TOP_K], k = t->config.top_k;
    kind->request(t->state, t->context);
    for (uint64_t row = s->first_row; row < s->first_row + s->rows; row++) {
        kind->begin(t->state, t->context, NULL);
        for (uint32_t layer = 0; layer < t->config.layers; layer++) {
            const uint16_t *ids = sim_trace_ids(trace, row, layer);
            for (uint32_t j = 0; j < k; j++)
                routed[j] = ids[j];
            if (count)
                ask(t, layer, routed, count);
            kind->observe(t->state, t->context,
                          &(mp_seen){.layer = layer, .n_experts = k, .experts = routed});
        }
        kind->end(count ? t->aside : t->state, t->context);
    }
}

/* ---- One user ------------------------------------------------------------------------------ */

/* The source of learning: n sessions of the user's own, of one other user's, of each other user's,
 * or all sessions of the others. */
typedef enum { OWN, ANOTHER, OTHERS, EVERYBODY, KINDS } lesson_kind;

typedef struct lesson {
    lesson_kind kind;
    uint32_t n;
    uint32_t other; /* the user, for ANOTHER */
} lesson;

/* Users with enough sessions; the first `most` of each are for training, the rest for testing. */
typedef struct plan {
    const sessions *sessions;
    uint32_t least, most;
} plan;

static bool takes_part(const plan *p, uint32_t user)
{
    return p->sessions->count[user] >= p->least;
}

/* Returns true if the session is part of the lesson. `before`: the owner's earlier sessions. */
static bool is_taught(const plan *p, const lesson *l, uint32_t user, uint32_t owner,
                      uint32_t before)
{
    switch (l->kind) {
    case OWN: return owner == user && before < l->n;
    case ANOTHER: return owner == l->other && before < l->n;
    case OTHERS: return owner != user && takes_part(p, owner) && before < l->n;
    default: return owner != user;
    }
}

static void train(const plan *p, const lesson *l, uint32_t user, table *t)
{
    const sessions *s = p->sessions;
    uint32_t before[MOST_USERS] = {0};
    for (uint32_t i = 0; i < s->n; i++) {
        uint32_t owner = s->all[i].user;
        if (is_taught(p, l, user, owner, before[owner]++))
            play(s->trace, &s->all[i], t, NULL);
    }
}

/* Tests on the user's later sessions. */
static double test(const plan *p, uint32_t user, table *t)
{
    const sessions *s = p->sessions;
    mp_next_expert count = {0};
    for (uint32_t i = 0, before = 0; i < s->n; i++)
        if (s->all[i].user == user && before++ >= p->most)
            play(s->trace, &s->all[i], t, &count);
    return mp_next_expert_precision(&count);
}

/* Counts the choices of each expert in the user's later sessions. */
static void count_later(const plan *p, uint32_t user, uint32_t *choices)
{
    const sessions *s = p->sessions;
    const sim_source *source = &s->trace->source;
    for (uint32_t i = 0, before = 0; i < s->n; i++) {
        const session *own = &s->all[i];
        if (own->user != user || before++ < p->most)
            continue;
        for (uint64_t row = own->first_row; row < own->first_row + own->rows; row++)
            for (uint32_t l = 0; l < source->layers; l++)
                for (uint32_t j = 0; j < source->top_k; j++)
                    choices[l * source->experts + sim_trace_ids(s->trace, row, l)[j]]++;
    }
}

/* Predictions from n sessions, and later observations. */
typedef struct sized {
    double experts; /* the working set, over all layers */
    double cap;     /* the largest layer's */
    double unseen;  /* estimated chance of a new expert */
    double support; /* experts that later sessions use */
    double held;    /* fraction of later choices that fall into the working set */
    double wanted;  /* experts, most used first, that would have covered COVERAGE of them */
} sized;

static double experts_wanted(const uint32_t *uses, const uint32_t *later, uint64_t n)
{
    uint64_t low = 0, high = n;
    while (low < high) {
        uint64_t middle = (low + high) / 2;
        if (mp_rightsize_covered(uses, later, n, middle) >= COVERAGE)
            high = middle;
        else
            low = middle + 1;
    }
    return (double)low;
}

static void size_up(const table *t, const uint32_t *later, sized *out)
{
    const uint32_t *uses = mp_predictor_coactivation_uses(t->state);
    uint32_t layers = t->config.layers, experts = t->config.experts, n = layers * experts;
    mp_working_set set;
    mp_rightsize(uses, n, COVERAGE, &set);
    *out = (sized){.experts = (double)set.experts,
                   .cap = (double)mp_rightsize_per_layer(uses, layers, experts, COVERAGE),
                   .unseen = set.unseen,
                   .held = mp_rightsize_covered(uses, later, n, set.experts),
                   .wanted = experts_wanted(uses, later, n)};
    for (uint32_t i = 0; i < n; i++)
        out->support += later[i] > 0;
}

/* Findings for one user; precision by lesson and budget. */
typedef struct findings_of_user {
    double right[KINDS][BUDGETS];
    sized sized[BUDGETS];
} findings_of_user;

static int try_lesson(const plan *p, const lesson *l, uint32_t user, const uint32_t *later,
                      double *precision, sized *set)
{
    table t;
    int code = open_table(p->sessions->trace, &t);
    if (!code) {
        train(p, l, user, &t);
        *precision = test(p, user, &t);
        if (set)
            size_up(&t, later, set);
    }
    close_table(&t);
    return code;
}

/* Averages over all others, one at a time. */
static int try_another(const plan *p, uint32_t user, uint32_t n, double *precision)
{
    uint32_t tried = 0;
    int code = RUN_OK;
    *precision = 0;
    for (uint32_t other = 0; other < p->sessions->n_users && !code; other++) {
        double right = 0;
        if (other == user || !takes_part(p, other))
            continue;
        code = try_lesson(p, &(lesson){ANOTHER, n, other}, user, NULL, &right, NULL);
        *precision += right;
        tried++;
    }
    *precision /= tried ? tried : 1;
    return code;
}

static int study_user(const plan *p, uint32_t user, uint32_t n_budgets, findings_of_user *out)
{
    const sim_source *source = &p->sessions->trace->source;
    uint32_t *later = calloc((size_t)source->layers * source->experts, sizeof *later);
    if (!later)
        return fail_memory();
    count_later(p, user, later);
    int code = RUN_OK;
    for (uint32_t b = 0; b < n_budgets && !code; b++) {
        const lesson own = {OWN, budgets[b], 0}, others = {OTHERS, budgets[b], 0};
        code = try_lesson(p, &own, user, later, &out->right[OWN][b], &out->sized[b]);
        if (!code)
            code = try_another(p, user, budgets[b], &out->right[ANOTHER][b]);
        if (!code)
            code = try_lesson(p, &others, user, NULL, &out->right[OTHERS][b], NULL);
    }
    if (!code)
        code =
            try_lesson(p, &(lesson){EVERYBODY, 0, 0}, user, NULL, &out->right[EVERYBODY][0], NULL);
    free(later);
    return code;
}

/* ---- All users ----------------------------------------------------------------------------- */

typedef struct summary {
    uint32_t users;
    uint32_t wins[BUDGETS]; /* users whose own table is at least as accurate as the others' */
    double right[KINDS][BUDGETS];
    sized sized[BUDGETS];
    double least_held[BUDGETS];
} summary;

static void add_user(const findings_of_user *u, uint32_t n_budgets, summary *s)
{
    s->users++;
    for (uint32_t b = 0; b < n_budgets; b++) {
        const sized *from = &u->sized[b];
        sized *to = &s->sized[b];
        s->wins[b] += u->right[OWN][b] >= u->right[OTHERS][b];
        for (uint32_t kind = 0; kind < KINDS; kind++)
            s->right[kind][b] += u->right[kind][b];
        to->experts += from->experts;
        to->cap += from->cap;
        to->unseen += from->unseen;
        to->support += from->support;
        to->held += from->held;
        to->wanted += from->wanted;
        s->least_held[b] = fmin(s->least_held[b], from->held);
    }
}

static void take_means(uint32_t n_budgets, summary *s)
{
    const double n = s->users;
    for (uint32_t b = 0; b < n_budgets; b++) {
        sized *set = &s->sized[b];
        for (uint32_t kind = 0; kind < KINDS; kind++)
            s->right[kind][b] /= n;
        *set = (sized){set->experts / n, set->cap / n,  set->unseen / n,
                       set->support / n, set->held / n, set->wanted / n};
    }
}

/* Computes the slot bytes of `n` experts of the model. */
static int bytes_of(double n, double *gb)
{
    sim_shape shape;
    uint64_t slot;
    int code = sim_shape_find(MODEL, 1, false, &shape);
    if (!code)
        code = sim_slot_bytes(&shape, &slot);
    *gb = code ? 0 : n * (double)slot / 1e9;
    return code;
}

static int report(const char *column, double experts, const summary *s, uint32_t n_budgets,
                  sim_findings *out)
{
    int code = RUN_OK;
    for (uint32_t b = 0; b < n_budgets && !code; b++) {
        const sized *set = &s->sized[b];
        double freed;
        code = bytes_of(experts - set->experts, &freed);
        const struct {
            const char *what;
            double value;
        } figures[] = {
            {"% right, own table", 100 * s->right[OWN][b]},
            {"% right, another user's", 100 * s->right[ANOTHER][b]},
            {"% right, each other user's", 100 * s->right[OTHERS][b]},
            {"users, own at least others'", s->wins[b]},
            {"experts, working set", set->experts},
            {"experts, cap of a layer", set->cap},
            {"% of choices new, estimate", 100 * set->unseen},
            {"% of later choices held", 100 * set->held},
            {"% held, worst user", 100 * s->least_held[b]},
            {"experts for 99 % of later", set->wanted},
            {"experts used later", set->support},
            {"GB freed for KV", freed},
        };
        for (size_t i = 0; i < sizeof figures / sizeof *figures; i++)
            sim_find(out, figures[i].value, NAN, figures[i].what, "by %s, %u session%s", column,
                     budgets[b], budgets[b] > 1 ? "s" : "");
    }
    sim_find(out, 100 * s->right[EVERYBODY][0], NAN, "% right, all other users'",
             "by %s, all sessions", column);
    return code;
}

static void detail(const char *user, const findings_of_user *u, uint32_t n_budgets,
                   sim_findings *out)
{
    for (uint32_t b = 0; b < n_budgets; b++) {
        sim_find(out, 100 * u->right[OWN][b], NAN, "% right, own table", "%s, %u", user,
                 budgets[b]);
        sim_find(out, 100 * u->right[OTHERS][b], NAN, "% right, each other user's", "%s, %u", user,
                 budgets[b]);
    }
}

/* Users are the column's values. */
typedef struct grouping {
    const char *column;
    uint32_t n_budgets, least; /* sessions of a user that takes part */
    bool detail;
} grouping;

static int study_grouping(const sim_trace *trace, const char *path, const grouping *g,
                          sim_findings *out, summary *sum)
{
    sessions s;
    int code = read_sessions(trace, path, g->column, &s);
    plan p = {.sessions = &s, .least = g->least, .most = budgets[g->n_budgets - 1]};
    *sum = (summary){.least_held = {1, 1, 1}};
    for (uint32_t user = 0; user < s.n_users && !code; user++) {
        findings_of_user u = {0};
        if (!takes_part(&p, user))
            continue;
        code = study_user(&p, user, g->n_budgets, &u);
        if (!code)
            add_user(&u, g->n_budgets, sum);
        if (!code && g->detail)
            detail(s.names[user], &u, g->n_budgets, out);
    }
    free(s.all);
    if (!code && sum->users < 2)
        code = fail(RUN_REFUSED, "%s: fewer than two users have %u sessions", path, g->least);
    if (code)
        return code;
    take_means(g->n_budgets, sum);
    return report(g->column, trace->source.layers * trace->source.experts, sum, g->n_budgets, out);
}

/* ---- The study ----------------------------------------------------------------------------- */

/* Judges the results, with the paper's findings printed beside them; the claims are that a user's
 * own sessions are worth more than equally many of another user's, and that each further one adds
 * value. */
static void judge(const grouping *g, const summary *s, sim_findings *out)
{
    for (uint32_t b = 0; b < g->n_budgets; b++) {
        sim_set(out, "by %s, %u: own table at least as right as each other user's: %u of %u users",
                g->column, budgets[b], s->wins[b], s->users);
        sim_claim_that(out, s->right[OWN][b] > s->right[ANOTHER][b],
                       "by %s: %u of a user's own sessions name more (%.1f %%) than as many of "
                       "another's (%.1f %%)",
                       g->column, budgets[b], 100 * s->right[OWN][b], 100 * s->right[ANOTHER][b]);
    }
    uint32_t last = g->n_budgets - 1;
    sim_claim_that(
        out, s->right[OWN][last] > s->right[OWN][0] && s->sized[last].held > s->sized[0].held,
        "by %s: more sessions foretell more: %.1f to %.1f %% named, %.1f to %.1f %% held",
        g->column, 100 * s->right[OWN][0], 100 * s->right[OWN][last], 100 * s->sized[0].held,
        100 * s->sized[last].held);
}

static const grouping whole[] = {{"dataset", 3, 8, true}, {"category", 2, 4, false}};
static const grouping excerpt[] = {{"dataset", 2, 3, false}};

int sim_study_rightsize(bool brief, uint64_t seed, sim_findings *out)
{
    char rows[4096], requests[4096];
    const grouping *groupings = out->traces ? whole : excerpt;
    const uint32_t n = out->traces && !brief ? 2 : 1;
    (void)seed; /* no random numbers */
    snprintf(rows, sizeof rows, "%.4000s%s", out->traces ? out->traces : EXCERPT,
             out->traces ? "/gpt-oss-20b" : ".u8");
    snprintf(requests, sizeof requests, "%.4000s%s", out->traces ? out->traces : EXCERPT,
             out->traces ? "/gpt-oss-20b/requests.csv" : ".csv");
    sim_trace *trace = sim_trace_open_as(rows, &(sim_trace_shape){24, 32, 4});
    if (!trace)
        return RUN_REFUSED;
    sim_set(out, "data sets and subjects of real requests stand for users, requests for sessions");
    sim_set(out, "right: of the k experts named for a layer from those before it, the routed ones");
    sim_set(out, "the paper: own table after one session at least the population's for all users");
    int code = trace->source.top_k > MOST_TOP_K
                   ? fail(RUN_REFUSED, "top-k %u is above %u", trace->source.top_k, MOST_TOP_K)
                   : RUN_OK;
    for (uint32_t i = 0; i < n && !code; i++) {
        summary sum;
        code = study_grouping(trace, requests, &groupings[i], out, &sum);
        if (!code)
            judge(&groupings[i], &sum, out);
    }
    trace->source.close(&trace->source);
    return code;
}
