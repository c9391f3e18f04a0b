/* Cycle: evict the expert whose next use is worth least, as learnt from past routing.
 *
 * A forward pass visits the layers in turn, so an expert has one chance to be used on each visit of
 * its layer, and none between. For every key, resident or not, the policy keeps an estimate
 *
 *   g = E[ beta^(visits of its layer until its next use - 1) ],   0 < g < 1
 *
 * updated on each visit. Of each layer the key with the least g is the candidate; of these, the
 * victim is the one with the least g * (1 - (1 - beta) / layers * ahead), `ahead` being the
 * distance of its layer from the one being routed: 1 for the next layer, a whole turn for that
 * layer itself. Ties go to the lowest key.
 *
 * g is the logistic function of a sum with separate weights for each layer, added in this order:
 *   - a constant of the key's own;
 *   - weighted, averages of the key's own uses, a := a + rate * (used - a) on each visit of its
 *     layer, each as 2 (a - m) / (a + m), where m is the share of the layer's experts that a visit
 *     uses;
 *   - weighted, 1 / (1 + v m) and 1 / (1 + v m/10), v being the visits since its last use, at most
 *     1000; and a constant of the layer's;
 *   - one weight for each expert of the set that this layer routed, and of the latest sets of the
 *     layers before it, the last of the previous pass behind the first of this one: `reach` layers
 *     in all. A set of n enters with 1/sqrt(n) for each member.
 *
 * It is learnt as it goes, by temporal differences: on a visit, the last estimate should have been
 * 1 for the keys that are used, and beta times the new estimate for the others; the weights move
 * along the earlier inputs by their rate times the error (Sutton, Machine Learning 3, 1988; the
 * logistic function's slope is left out). So nothing is trained beforehand, and the estimates
 * follow the workload. beta is 1 - 0.44 m keys/resident, within 0.5 and 0.95: the more passes' uses
 * the cache holds, the longer a dropped key would have stayed.
 *
 * Prefill other than a scan and large batches are learnt from like any set, but at most MOST_INPUTS
 * members of a set are inputs. A prefetched expert, inserted without being routed, is ranked like
 * any other. With one layer per scope there is no cycle, only the layer's own history.
 *
 * Costs. A visit: reach * n * experts multiplications twice, and O(experts); insert: O(1); remove:
 * O(experts); victim: O(layers), and O(experts) for each layer whose best candidate is refused.
 * reach falls as 768/experts, which keeps a visit of the usual sets at 6000 to 12000
 * multiplications, and rows are shared from 256 experts on (e and e + 256). Memory: 24 x 32 keys
 * 2.6 MB, 48 x 128 keys 19.4 MB, 60 x 384 keys 48.8 MB, 48 x 512 keys 26.9 MB; one layer of 128 0.1
 * MB.
 *
 * Sums run in the order written here and use only + - * / and square roots: the same calls give the
 * same victims everywhere. docs/adding-a-policy.md derives the constants. */
#include <assert.h>
#include <math.h>
#include <stddef.h>
#include <string.h>

#include "policy/policies.h"

#define MOST_WEIGHTS 768u /* of one estimate, from sets: reach * rows */
#define MOST_ROWS 256u
#define MOST_INPUTS 32u /* of one set */
#define LONG_AGO 1000.0f
#define LOSS_OF_A_PASS 0.44f /* 1 - beta where the cache holds what one pass uses */
#define LEAST_BETA 0.5f
#define MOST_BETA 0.95f
#define STEP_SETS 0.1f      /* learning rates: of the sets' weights together, */
#define STEP_FEATURES 0.06f /* of the features', for the layer's mean error, */
#define STEP_OFFSET 0.002f  /* and of a key's own constant */
#define FIRST_WEIGHT 0.2f   /* of each average, before anything is learnt */

enum { AVERAGES = 5, FEATURES = 8, LANES = 8 };

static const float rates[AVERAGES] = {0.3f, 0.1f, 0.03f, 0.01f, 0.003f};

typedef float lanes __attribute__((vector_size(LANES * sizeof(float)), aligned(4), may_alias));

/* A member of a set: the row of weights that it contributes, and by which factor. */
typedef struct input {
    uint32_t row;
    float value;
} input;

typedef struct layer_state {
    uint32_t visits;
    uint32_t least; /* resident key with the least estimate, or MP_NO_KEY */
    uint32_t probe; /* best known candidate that may be evicted, for victim() */
    uint32_t n_set; /* its latest set */
    uint32_t n_inputs;
    float share; /* of its experts that a visit uses, 0..1 */
    float weights[FEATURES];
    uint16_t set[MOST_INPUTS];
} layer_state;

typedef struct key_state {
    float average[AVERAGES];
    float feature[FEATURES]; /* of its estimate; all 0 before the first */
    float offset;
    float since; /* visits since its last use */
    float estimate;
    uint32_t resident;
} key_state;

typedef struct cycle_state {
    uint32_t n_keys, experts, layers;
    uint32_t reach, rows; /* number of input sets, and rows of weights for each */
    uint32_t width;       /* experts, in whole lanes */
    uint32_t resident;
    uint32_t at;        /* most recently routed layer */
    layer_state *layer; /* [layers] */
    key_state *key;     /* [n_keys] */
    input *inputs;      /* [layers][reach * MOST_INPUTS] of the latest estimates */
    input *old;         /* [reach * MOST_INPUTS] */
    float *weights;     /* [layers][reach * rows][width] */
    float *used;        /* [width] 1 if used, else 0 */
    float *sum;         /* [width] arguments of the logistic function */
    float *error;       /* [width] */
    float *features;    /* [width][FEATURES] of the last estimates */
} cycle_state;

/* ---- Memory ------------------------------------------------------------------------------- */

static cycle_state shape(uint32_t keys, uint32_t experts)
{
    cycle_state s = {.n_keys = keys, .experts = experts, .layers = keys / experts};
    s.rows = experts < MOST_ROWS ? experts : MOST_ROWS;
    s.reach = MOST_WEIGHTS / experts;
    s.reach = s.reach < 1 ? 1 : s.reach > s.layers ? s.layers : s.reach;
    s.width = (experts + LANES - 1) / LANES * LANES;
    s.at = s.layers - 1;
    return s;
}

static uint64_t weights_of_layer(const cycle_state *s)
{
    return (uint64_t)s->reach * s->rows * s->width;
}

static uint64_t cycle_state_bytes(uint32_t keys, uint32_t experts)
{
    const cycle_state s = shape(keys, experts);
    uint64_t bytes =
        sizeof s + s.layers * sizeof(layer_state) + (uint64_t)keys * sizeof(key_state) +
        ((uint64_t)s.layers + 1) * s.reach * MOST_INPUTS * sizeof(input) +
        (s.layers * weights_of_layer(&s) + (3 + (uint64_t)FEATURES) * s.width) * sizeof(float);
    return (bytes + 7) & ~UINT64_C(7);
}

static void cycle_init(void *state, uint32_t keys, uint32_t experts)
{
    cycle_state *s = state;
    memset(state, 0, cycle_state_bytes(keys, experts));
    *s = shape(keys, experts);
    s->layer = (layer_state *)(s + 1);
    s->key = (key_state *)(s->layer + s->layers);
    s->inputs = (input *)(s->key + keys);
    s->old = s->inputs + (uint64_t)s->layers * s->reach * MOST_INPUTS;
    s->weights = (float *)(s->old + s->reach * MOST_INPUTS);
    s->used = s->weights + s->layers * weights_of_layer(s);
    s->sum = s->used + s->width;
    s->error = s->sum + s->width;
    s->features = s->error + s->width;
    for (uint32_t l = 0; l < s->layers; l++) {
        s->layer[l].least = MP_NO_KEY;
        for (uint32_t i = 0; i < AVERAGES; i++)
            s->layer[l].weights[i] = FIRST_WEIGHT;
    }
    for (uint32_t k = 0; k < keys; k++) {
        s->key[k].estimate = 0.5f;
        s->key[k].since = LONG_AGO;
    }
}

/* ---- Estimates ---------------------------------------------------------------------------- */

static float beta_of(const cycle_state *s, uint32_t l)
{
    if (s->resident == 0)
        return LEAST_BETA;
    float beta = 1 - LOSS_OF_A_PASS * s->layer[l].share * (float)s->n_keys / (float)s->resident;
    return beta < LEAST_BETA ? LEAST_BETA : beta > MOST_BETA ? MOST_BETA : beta;
}

/* Returns 1 / (1 + e^-x), with e^-x as (1 - x/256)^256. */
static float logistic(float x)
{
    x = x > 30 ? 30 : x < -30 ? -30 : x;
    float power = 1 - x * (1.0f / 256);
    for (int i = 0; i < 8; i++)
        power *= power;
    return 1 / (1 + power);
}

static void describe(key_state *k, float share, bool first, float used)
{
    for (uint32_t i = 0; i < AVERAGES; i++) {
        float *average = &k->average[i];
        if (first)
            *average = share;
        *average += rates[i] * (used - *average);
        k->feature[i] = 2 * (*average - share) / (*average + share);
    }
    k->since = used > 0 ? 0 : k->since < LONG_AGO ? k->since + 1 : LONG_AGO;
    k->feature[AVERAGES] = 1 / (1 + k->since * share);
    k->feature[AVERAGES + 1] = 1 / (1 + k->since * share * 0.1f);
    k->feature[AVERAGES + 2] = 1;
}

/* Collects the members of the latest sets of the layer and of those before it. */
static uint32_t gather(const cycle_state *s, uint32_t l, input *out)
{
    uint32_t n = 0;
    for (uint32_t back = 0; back < s->reach; back++) {
        const layer_state *from = &s->layer[(l + s->layers - back) % s->layers];
        float value = from->n_set ? 1 / sqrtf((float)from->n_set) : 0;
        for (uint32_t i = 0; i < from->n_set; i++)
            out[n++] = (input){back * s->rows + from->set[i] % s->rows, value};
    }
    return n;
}

static void add_row(float *restrict sum, const float *restrict row, float value, uint32_t width)
{
    for (uint32_t e = 0; e < width; e += LANES)
        *(lanes *)(sum + e) += value * *(const lanes *)(row + e);
}

static void estimate(cycle_state *s, uint32_t l)
{
    layer_state *here = &s->layer[l];
    key_state *keys = s->key + (uint64_t)l * s->experts;
    const input *inputs = s->inputs + (uint64_t)l * s->reach * MOST_INPUTS;
    const float *weights = s->weights + l * weights_of_layer(s);
    for (uint32_t e = 0; e < s->experts; e++) {
        describe(&keys[e], here->share, here->visits == 0, s->used[e]);
        s->sum[e] = keys[e].offset;
        for (uint32_t i = 0; i < FEATURES; i++)
            s->sum[e] += here->weights[i] * keys[e].feature[i];
    }
    for (uint32_t i = 0; i < here->n_inputs; i++)
        add_row(s->sum, weights + (uint64_t)inputs[i].row * s->width, inputs[i].value, s->width);
    for (uint32_t e = 0; e < s->experts; e++)
        keys[e].estimate = logistic(s->sum[e]);
}

/* ---- Learning ----------------------------------------------------------------------------- */

/* Saves the inputs and the results of the layer's last estimates. */
static uint32_t remember(cycle_state *s, uint32_t l)
{
    const layer_state *here = &s->layer[l];
    const key_state *keys = s->key + (uint64_t)l * s->experts;
    memcpy(s->old, s->inputs + (uint64_t)l * s->reach * MOST_INPUTS,
           here->n_inputs * sizeof(input));
    for (uint32_t e = 0; e < s->experts; e++) {
        memcpy(s->features + (uint64_t)e * FEATURES, keys[e].feature, sizeof keys[e].feature);
        s->error[e] = -keys[e].estimate;
    }
    return here->n_inputs;
}

static void learn(cycle_state *s, uint32_t l, uint32_t n_old)
{
    layer_state *here = &s->layer[l];
    key_state *keys = s->key + (uint64_t)l * s->experts;
    float *weights = s->weights + l * weights_of_layer(s);
    float gradient[FEATURES] = {0}, beta = beta_of(s, l);
    for (uint32_t e = 0; e < s->experts; e++) {
        s->error[e] += s->used[e] > 0 ? 1 : beta * keys[e].estimate;
        keys[e].offset += STEP_OFFSET * s->error[e];
        for (uint32_t i = 0; i < FEATURES; i++)
            gradient[i] += s->error[e] * s->features[e * FEATURES + i];
    }
    for (uint32_t i = 0; i < FEATURES; i++)
        here->weights[i] += STEP_FEATURES / (float)s->experts * gradient[i];
    float step = STEP_SETS / sqrtf((float)s->reach);
    for (uint32_t i = 0; i < n_old; i++)
        add_row(weights + (uint64_t)s->old[i].row * s->width, s->error, step * s->old[i].value,
                s->width);
}

/* ---- The policy --------------------------------------------------------------------------- */

static bool is_less(const cycle_state *s, uint32_t key, uint32_t than)
{
    float a = s->key[key].estimate, b = s->key[than].estimate;
    return a < b || (a == b && key < than);
}

static void find_least(cycle_state *s, uint32_t l)
{
    uint32_t least = MP_NO_KEY, end = (l + 1) * s->experts;
    for (uint32_t k = l * s->experts; k < end; k++)
        if (s->key[k].resident && (least == MP_NO_KEY || is_less(s, k, least)))
            least = k;
    s->layer[l].least = least;
}

static void note_set(cycle_state *s, uint32_t l, const uint32_t *keys, uint32_t n)
{
    layer_state *here = &s->layer[l];
    memset(s->used, 0, s->width * sizeof *s->used);
    for (uint32_t i = 0; i < n; i++) {
        assert(keys[i] / s->experts == l);
        s->used[keys[i] % s->experts] = 1;
    }
    here->n_set = n < MOST_INPUTS ? n : MOST_INPUTS;
    for (uint32_t i = 0; i < here->n_set; i++)
        here->set[i] = (uint16_t)(keys[i] % s->experts);
    float rate = here->visits < 300 ? 1 / (float)(1 + here->visits) : 1.0f / 300;
    here->share += rate * ((float)n / (float)s->experts - here->share);
}

static void cycle_route(void *state, const uint32_t *keys, uint32_t n)
{
    cycle_state *s = state;
    uint32_t l = keys[0] / s->experts;
    layer_state *here = &s->layer[l];
    uint32_t n_old = remember(s, l);
    note_set(s, l, keys, n);
    here->n_inputs = gather(s, l, s->inputs + (uint64_t)l * s->reach * MOST_INPUTS);
    estimate(s, l);
    if (here->visits > 0)
        learn(s, l, n_old);
    here->visits += here->visits < UINT32_MAX;
    s->at = l;
    find_least(s, l);
}

static void cycle_insert(void *state, uint32_t key)
{
    cycle_state *s = state;
    assert(key < s->n_keys && !s->key[key].resident);
    layer_state *here = &s->layer[key / s->experts];
    s->key[key].resident = 1;
    s->resident++;
    if (here->least == MP_NO_KEY || is_less(s, key, here->least))
        here->least = key;
}

/* Nothing to do: cycle_route has already learnt from the set that contains this use. */
static void cycle_touch(void *state, uint32_t key)
{
    const cycle_state *s = state;
    assert(key < s->n_keys && s->key[key].resident);
    (void)s;
    (void)key;
}

static void cycle_remove(void *state, uint32_t key)
{
    cycle_state *s = state;
    assert(key < s->n_keys && s->key[key].resident);
    s->key[key].resident = 0;
    s->resident--;
    if (s->layer[key / s->experts].least == key)
        find_least(s, key / s->experts);
}

/* Returns the layer's best key that may be evicted. */
static uint32_t best_allowed(const cycle_state *s, uint32_t l, mp_may_evict_fn may_evict, void *ctx)
{
    uint32_t best = MP_NO_KEY, end = (l + 1) * s->experts;
    for (uint32_t k = l * s->experts; k < end; k++)
        if (s->key[k].resident && (best == MP_NO_KEY || is_less(s, k, best)) && may_evict(ctx, k))
            best = k;
    return best;
}

/* Returns the layer whose candidate is worth least. */
static uint32_t worst_layer(const cycle_state *s)
{
    uint32_t worst = s->layers;
    float least = 0;
    for (uint32_t l = 0; l < s->layers; l++) {
        if (s->layer[l].probe == MP_NO_KEY)
            continue;
        uint32_t ahead = l > s->at ? l - s->at : l + s->layers - s->at;
        float loss = (1 - beta_of(s, l)) / (float)s->layers;
        float worth = s->key[s->layer[l].probe].estimate * (1 - loss * (float)ahead);
        if (worst == s->layers || worth < least) {
            worst = l;
            least = worth;
        }
    }
    return worst;
}

static uint32_t cycle_victim(void *state, mp_may_evict_fn may_evict, void *ctx)
{
    cycle_state *s = state;
    for (uint32_t l = 0; l < s->layers; l++)
        s->layer[l].probe = s->layer[l].least;
    for (;;) {
        uint32_t l = worst_layer(s);
        if (l == s->layers)
            return MP_NO_KEY;
        layer_state *from = &s->layer[l];
        if (from->probe != from->least || may_evict(ctx, from->probe))
            return from->probe;
        from->probe = best_allowed(s, l, may_evict, ctx); /* the layer's least key was refused */
    }
}

const mp_policy mp_policy_cycle = {
    .name = "cycle",
    .state_bytes = cycle_state_bytes,
    .init = cycle_init,
    .route = cycle_route,
    .insert = cycle_insert,
    .touch = cycle_touch,
    .remove = cycle_remove,
    .victim = cycle_victim,
};
