/* FineMoE's measurements on a recorded trace with probabilities and embeddings: whether similar
 * iterations route alike, the contribution of each part of the search, and the effects of distance,
 * capacity, batch and cache size. Seven of ten requests are for training, three for testing. */
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "common/fail.h"
#include "policy/predictors.h"
#include "sim/iterations.h"
#include "sim/map_cache.h"
#include "sim/predict_state.h"
#include "sim/study.h"

#define MOST_BATCH 8u
#define DISTANCE 3u
#define CAPACITY 1024u

/* One way of predicting, and its test. */
typedef struct trial {
    const char *kind;
    uint32_t flags, distance, capacity, batch;
    uint32_t cache; /* experts resident; 0 = a named expert counts as a hit */
    sim_map_policy policy;
    bool empty;  /* nothing is learnt before the test */
    bool learns; /* during the test */
} trial;

typedef struct outcome {
    double hit;         /* fraction of routed experts, per layer and step of the batch */
    double near, far;   /* of the first `distance` layers, and of the others */
    double named;       /* experts per layer and sequence */
    double early, late; /* hit rate in the first and the last quarter of the test */
    double r;           /* correlation of a prediction's score and its hit rate; NAN: no scores */
} outcome;

/* Pearson's correlation, accumulated pair by pair. */
typedef struct pairs {
    double n, x, y, xx, yy, xy;
} pairs;

static void add_pair(pairs *p, double x, double y)
{
    p->n++;
    p->x += x;
    p->y += y;
    p->xx += x * x;
    p->yy += y * y;
    p->xy += x * y;
}

static double pearson(const pairs *p)
{
    double vx = p->n * p->xx - p->x * p->x, vy = p->n * p->yy - p->y * p->y;
    return vx > 0 && vy > 0 ? (p->n * p->xy - p->x * p->y) / sqrt(vx * vy) : NAN;
}

static bool is_tested(uint32_t request)
{
    return request % 10 >= 7;
}

/* ---- One trial --------------------------------------------------------------------------- */

typedef struct player {
    const sim_iterations *all;
    const trial *trial;
    const mp_predictor *kind;
    mp_predict_config config;
    void *state, *contexts[MOST_BATCH];
    mp_guess *guesses;
    uint8_t *named, *routed; /* [experts] of the layer, any sequence's */
    sim_map_cache cache;
    pairs scores;
    uint64_t needed, hits, said, asked;
    uint64_t quarter_needed[4], quarter_hits[4];
    uint64_t part_needed[2], part_hits[2]; /* the first `distance` layers, and the others */
    uint32_t quarter;
} player;

static int open_player(const sim_iterations *all, const trial *t, player *p)
{
    *p = (player){
        .all = all,
        .trial = t,
        .kind = mp_predictor_find(t->kind),
        .config = {.layers = all->layers,
                   .experts = all->experts,
                   .top_k = all->top_k,
                   .distance = t->distance,
                   .capacity = t->capacity,
                   .semantic_dim = all->semantic ? all->semantic_dim : 0,
                   .flags = t->flags},
        .guesses = calloc(all->experts, sizeof *p->guesses),
        .named = calloc(all->experts, 1),
        .routed = calloc(all->experts, 1),
    };
    bool ok = p->guesses && p->named && p->routed;
    p->state = sim_alloc_state(p->kind->state_bytes(&p->config));
    for (uint32_t b = 0; b < t->batch && ok; b++)
        ok = (p->contexts[b] = sim_alloc_state(p->kind->context_bytes(&p->config))) != NULL;
    if (!ok || !p->state || sim_map_cache_open(all->layers * all->experts, t->cache, &p->cache))
        return fail_memory();
    p->kind->init(p->state, &p->config);
    return RUN_OK;
}

static void close_player(player *p)
{
    sim_map_cache_close(&p->cache);
    free(p->guesses);
    free(p->named);
    free(p->routed);
    free(p->state);
    for (uint32_t b = 0; b < MOST_BATCH; b++)
        free(p->contexts[b]);
}

static void begin(player *p, uint32_t b, uint64_t i)
{
    const float *semantic = p->all->semantic ? p->all->semantic + i * p->all->semantic_dim : NULL;
    p->kind->begin(p->state, p->contexts[b], semantic);
}

static void observe(player *p, uint32_t b, uint64_t i, uint32_t layer)
{
    mp_seen seen = {.layer = layer,
                    .n_experts = p->all->top_k,
                    .experts = sim_iterations_chosen(p->all, i, layer),
                    .probabilities = sim_iterations_map(p->all, i, layer)};
    p->kind->observe(p->state, p->contexts[b], &seen);
}

static void learn(player *p, uint32_t request)
{
    p->kind->request(p->state, p->contexts[0]);
    for (uint64_t i = p->all->first[request]; i < p->all->first[request + 1]; i++) {
        begin(p, 0, i);
        for (uint32_t l = 0; l < p->all->layers; l++)
            observe(p, 0, i, l);
        p->kind->end(p->state, p->contexts[0]);
    }
}

/* Judges one sequence's guesses for a layer. */
static void judge_guesses(player *p, uint64_t i, uint32_t layer, uint32_t n, float score)
{
    const uint32_t *chosen = sim_iterations_chosen(p->all, i, layer);
    uint32_t right = 0;
    for (uint32_t g = 0; g < n; g++)
        for (uint32_t k = 0; k < p->all->top_k; k++)
            right += p->guesses[g].expert == chosen[k];
    p->said += n;
    p->asked++;
    if (n)
        add_pair(&p->scores, score, (double)right / p->all->top_k);
}

/* Requests predictions for every sequence; every named expert is fetched. */
static void ask(player *p, const uint64_t *at, uint32_t n_sequences, uint32_t layer)
{
    for (uint32_t b = 0; b < n_sequences; b++) {
        float score = 1;
        uint32_t n = p->kind->predict(p->state, p->contexts[b], layer, p->guesses, &score);
        judge_guesses(p, at[b], layer, n, score);
        for (uint32_t g = 0; g < n; g++) {
            uint32_t key = layer * p->all->experts + p->guesses[g].expert;
            sim_map_cache_expect(&p->cache, key, p->guesses[g].p);
            p->cache.named[key] = true;
        }
        for (uint32_t g = 0; g < n && p->trial->cache; g++)
            sim_map_cache_fetch(&p->cache, layer * p->all->experts + p->guesses[g].expert,
                                p->trial->policy);
    }
}

/* Processes the layer's actual routing. */
static void demand(player *p, const uint64_t *at, uint32_t n_sequences, uint32_t layer)
{
    memset(p->routed, 0, p->all->experts);
    for (uint32_t b = 0; b < n_sequences; b++)
        for (uint32_t k = 0; k < p->all->top_k; k++)
            p->routed[sim_iterations_chosen(p->all, at[b], layer)[k]] = 1;
    for (uint32_t e = 0; e < p->all->experts; e++) {
        uint32_t key = layer * p->all->experts + e;
        bool there = p->trial->cache ? p->cache.resident[key] : p->cache.named[key];
        p->cache.named[key] = false;
        if (!p->routed[e])
            continue;
        p->needed++;
        p->hits += there;
        p->part_needed[layer >= p->trial->distance]++;
        p->part_hits[layer >= p->trial->distance] += there;
        p->quarter_needed[p->quarter]++;
        p->quarter_hits[p->quarter] += there;
        if (p->trial->cache)
            sim_map_cache_use(&p->cache, key, p->trial->policy);
    }
}

static void test_step(player *p, const uint64_t *at, uint32_t n_sequences)
{
    uint32_t d = p->trial->distance;
    for (uint32_t b = 0; b < n_sequences; b++)
        begin(p, b, at[b]);
    for (uint32_t l = 0; l < d && l < p->all->layers; l++)
        ask(p, at, n_sequences, l);
    for (uint32_t l = 0; l < p->all->layers; l++) {
        demand(p, at, n_sequences, l);
        for (uint32_t b = 0; b < n_sequences; b++)
            observe(p, b, at[b], l);
        if (l + d < p->all->layers)
            ask(p, at, n_sequences, l + d);
    }
    for (uint32_t b = 0; b < n_sequences && p->trial->learns; b++)
        p->kind->end(p->state, p->contexts[b]);
}

/* Runs `batch` requests side by side, as long as the shortest of them. */
static void test_batch(player *p, const uint32_t *requests, uint32_t n)
{
    uint64_t at[MOST_BATCH], steps = UINT64_MAX;
    for (uint32_t b = 0; b < n; b++) {
        uint64_t length = p->all->first[requests[b] + 1] - p->all->first[requests[b]];
        steps = length < steps ? length : steps;
        p->kind->request(p->state, p->contexts[b]);
    }
    for (uint64_t s = 0; s < steps; s++) {
        for (uint32_t b = 0; b < n; b++)
            at[b] = p->all->first[requests[b]] + s;
        test_step(p, at, n);
    }
}

static double part(uint64_t hits, uint64_t needed)
{
    return needed ? (double)hits / (double)needed : NAN;
}

static int run_trial(const sim_iterations *all, const trial *t, outcome *out)
{
    player p;
    uint32_t batch[MOST_BATCH], n = 0, tested = 0, so_far = 0;
    int code = open_player(all, t, &p);
    for (uint32_t r = 0; r < all->n_requests && !code; r++) {
        tested += is_tested(r);
        if (!is_tested(r) && !t->empty)
            learn(&p, r);
    }
    for (uint32_t r = 0; r < all->n_requests && !code; r++) {
        if (!is_tested(r))
            continue;
        p.quarter = so_far++ * 4 / tested;
        batch[n++] = r;
        if (n == t->batch) {
            test_batch(&p, batch, n);
            n = 0;
        }
    }
    *out = (outcome){.hit = part(p.hits, p.needed),
                     .near = part(p.part_hits[0], p.part_needed[0]),
                     .far = part(p.part_hits[1], p.part_needed[1]),
                     .named = part(p.said, p.asked),
                     .early = part(p.quarter_hits[0], p.quarter_needed[0]),
                     .late = part(p.quarter_hits[3], p.quarter_needed[3]),
                     .r = pearson(&p.scores)};
    close_player(&p);
    return code;
}

/* ---- The report -------------------------------------------------------------------------- */

static trial default_trial(void)
{
    return (trial){.kind = "maps", .distance = DISTANCE, .capacity = CAPACITY, .batch = 1};
}

static double cosine(const float *a, const float *b, uint64_t n)
{
    double ab = 0, aa = 0, bb = 0;
    for (uint64_t i = 0; i < n; i++) {
        ab += (double)a[i] * b[i];
        aa += (double)a[i] * a[i];
        bb += (double)b[i] * b[i];
    }
    return aa > 0 && bb > 0 ? ab / sqrt(aa * bb) : 0;
}

static double overlap(const sim_iterations *all, uint64_t a, uint64_t b)
{
    uint32_t same = 0;
    for (uint32_t l = 0; l < all->layers; l++)
        for (uint32_t i = 0; i < all->top_k; i++)
            for (uint32_t j = 0; j < all->top_k; j++)
                same += sim_iterations_chosen(all, a, l)[i] == sim_iterations_chosen(all, b, l)[j];
    return (double)same / (all->layers * all->top_k);
}

/* Figures 8 and 9: all pairs of some iterations of different requests. */
static void correlate(const sim_iterations *all, bool brief, sim_findings *out)
{
    pairs semantic = {0}, trajectory = {0};
    uint64_t stride = all->n / (brief ? 60 : 500) + 1;
    uint64_t length = (uint64_t)all->layers * all->experts;
    for (uint32_t r = 0; r < all->n_requests; r++)
        for (uint64_t a = all->first[r]; a < all->first[r + 1]; a++)
            for (uint64_t b = all->first[r + 1]; b < all->n && a % stride == 0; b++) {
                if (b % stride)
                    continue;
                double alike = overlap(all, a, b);
                add_pair(&trajectory,
                         cosine(all->maps + a * length, all->maps + b * length, length), alike);
                if (all->semantic)
                    add_pair(&semantic,
                             cosine(all->semantic + a * all->semantic_dim,
                                    all->semantic + b * all->semantic_dim, all->semantic_dim),
                             alike);
            }
    double traj = pearson(&trajectory), sem = pearson(&semantic);
    sim_find(out, traj, NAN, "Pearson r with the overlap of experts", "trajectory similarity");
    sim_find(out, sem, NAN, "Pearson r with the overlap of experts", "semantic similarity");
    sim_claim_that(out, traj > 0.3 && sem > 0.1,
                   "similar iterations route alike (fig. 9): r = %.2f by trajectory, %.2f by "
                   "embedding",
                   traj, sem);
}

/* Without embeddings the first layers cannot be predicted, which in a model with few layers is a
 * large part, so T is compared only where it predicts. */
static void judge_ablation(const outcome *of, sim_findings *out)
{
    sim_claim_that(out, of[0].far < of[1].far,
                   "beyond the distance, hit count < T (fig. 14a): %.1f < %.1f %%", 100 * of[0].far,
                   100 * of[1].far);
    sim_claim_that(out, of[1].hit < of[2].hit && of[2].hit <= of[3].hit,
                   "over all layers, T < T+S <= T+S+delta: %.1f, %.1f, %.1f %%", 100 * of[1].hit,
                   100 * of[2].hit, 100 * of[3].hit);
}

/* Figure 14a. The speculative gate needs hidden states, which a trace does not have: it is measured
 * live, with moepage-eval --prefetch gate. */
static int ablate(const sim_iterations *all, sim_findings *out)
{
    static const struct {
        const char *name, *kind;
        uint32_t flags;
    } arms[] = {
        {"hit count", "hit-count", 0},
        {"map (T)", "maps", MP_MAPS_NO_SEMANTIC | MP_MAPS_NO_DELTA},
        {"map (T+S)", "maps", MP_MAPS_NO_DELTA},
        {"map (T+S+delta)", "maps", 0},
        {"co-activation", "coactivation", 0},
        {"previous", "previous", 0},
    };
    outcome of[6];
    int code = RUN_OK;
    for (uint32_t a = 0; a < 6 && !code; a++) {
        trial t = default_trial();
        outcome o;
        t.kind = arms[a].kind;
        t.flags = arms[a].flags;
        t.learns = strcmp(t.kind, "maps") != 0; /* a request's own counts need no training */
        code = run_trial(all, &t, &o);
        of[a] = o;
        sim_find(out, 100 * o.hit, NAN, "% of routed experts named", "%s", arms[a].name);
        sim_find(out, 100 * o.far, NAN, "% named, layers beyond the distance", "%s", arms[a].name);
        sim_find(out, o.named, NAN, "experts named per layer", "%s", arms[a].name);
        if (a == 3)
            sim_find(out, o.r, NAN, "Pearson r of score and hit rate", "%s", arms[a].name);
    }
    if (!code)
        judge_ablation(of, out);
    return code;
}

static int sweep(const sim_iterations *all, sim_findings *out)
{
    static const uint32_t distances[] = {1, 2, 3, 4, 6};
    static const uint32_t capacities[] = {64, 256, 1024, 4096};
    static const uint32_t batches[] = {1, 2, 4, 8};
    int code = RUN_OK;
    outcome o;
    for (uint32_t i = 0; i < 5 && !code && distances[i] < all->layers; i++) {
        trial t = default_trial();
        t.distance = distances[i];
        code = run_trial(all, &t, &o);
        sim_find(out, 100 * o.hit, NAN, "% of routed experts named", "distance %u", t.distance);
    }
    for (uint32_t i = 0; i < 4 && !code; i++) {
        trial t = default_trial();
        t.capacity = capacities[i];
        code = run_trial(all, &t, &o);
        sim_find(out, 100 * o.hit, NAN, "% of routed experts named", "capacity %u", t.capacity);
    }
    for (uint32_t i = 0; i < 4 && !code; i++) {
        trial t = default_trial();
        t.batch = batches[i];
        code = run_trial(all, &t, &o);
        sim_find(out, 100 * o.hit, NAN, "% of the batch's experts named", "batch %u", t.batch);
    }
    if (!code) {
        trial t = default_trial();
        t.empty = t.learns = true;
        code = run_trial(all, &t, &o);
        sim_find(out, 100 * o.early, NAN, "% named in the first quarter", "from an empty store");
        sim_find(out, 100 * o.late, NAN, "% named in the last quarter", "from an empty store");
    }
    return code;
}

/* Figures 12 and 14b: the fraction resident when needed, including prefetches, at several sizes. */
static int limit_cache(const sim_iterations *all, sim_findings *out)
{
    static const char *const names[] = {"LRU", "LFU", "1/(p freq)"};
    uint32_t keys = all->layers * all->experts;
    int code = RUN_OK;
    for (uint32_t percent = 25; percent <= 75 && !code; percent += 25) {
        double hit[3];
        for (uint32_t policy = 0; policy < 3 && !code; policy++) {
            trial t = default_trial();
            outcome o;
            t.cache = keys * percent / 100;
            t.policy = (sim_map_policy)policy;
            code = run_trial(all, &t, &o);
            hit[policy] = o.hit;
            sim_find(out, 100 * o.hit, NAN, "% of routed experts resident", "cache %u %%, maps, %s",
                     percent, names[policy]);
        }
        trial none = default_trial();
        outcome alone = {0};
        none.kind = "none";
        none.cache = keys * percent / 100;
        code = code ? code : run_trial(all, &none, &alone);
        sim_find(out, 100 * alone.hit, NAN, "% of routed experts resident",
                 "cache %u %%, none, LRU", percent);
        if (!code)
            sim_claim_that(out, hit[0] > alone.hit,
                           "cache %u %%: maps find more there than LRU alone: %.1f, %.1f %%",
                           percent, 100 * hit[0], 100 * alone.hit);
        if (!code && hit[2] < hit[0])
            sim_set(out, "cache %u %%: 1/(p freq) does not beat LRU here (fig. 14b): %.1f, %.1f %%",
                    percent, 100 * hit[2], 100 * hit[0]);
    }
    return code;
}

int sim_study_maps(bool brief, uint64_t seed, sim_findings *out)
{
    (void)seed;
    sim_iterations all;
    if (!out->traces)
        return fail(RUN_REFUSED, "this study needs a trace with probabilities: --trace FILE, as "
                                 "moepage-eval --trace-out writes it");
    int code = sim_iterations_open(out->traces, &all);
    if (code)
        return code;
    sim_set(out, "%u layers of %u experts, top-%u; %llu iterations of %u requests, 7 of 10 learnt",
            all.layers, all.experts, all.top_k, (unsigned long long)all.n, all.n_requests);
    sim_set(out, "distance %u, capacity %u unless the case says otherwise", DISTANCE, CAPACITY);
    correlate(&all, brief, out);
    code = ablate(&all, out);
    if (!code && !brief)
        code = sweep(&all, out);
    if (!code)
        code = limit_cache(&all, out);
    sim_iterations_close(&all);
    return code;
}
