/* What a store of expert maps takes and what a search in it costs, on one thread, and how far the
 * maps it finds are from the best ones. Not part of any suite; docs/expert-maps.md has the command
 * and what came out.
 *
 *     bench_maps [maps [layers [experts [dim]]]]       32768 48 128 2048
 *
 * Samples of clustered, peaked routing (tests/support/map_maker.h). Exact scores are computed in
 * double precision from the probabilities themselves, as the store is filled. Times are medians, with
 * the 10th and 90th percentile. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "map_maker.h"
#include "policy/maps.h"
#include "policy/maps_kernels.h"
#include "policy/predictors.h"

enum { QUERIES = 8, CLUSTERS = 64, TOP_K = 8, DISTANCE = 3, ENDS = 21 };

typedef struct bench {
    uint32_t capacity;
    map_world world;
    uint64_t width;    /* of a map */
    float *queries;    /* [QUERIES][width] */
    float *embeddings; /* [QUERIES][dim] */
    float *exact;      /* [QUERIES][1 + layers][capacity]: of embeddings, then after each layer */
} bench;

static void *memory(uint64_t bytes)
{
    void *block = aligned_alloc(64, (bytes + 63) / 64 * 64);
    if (!block)
        exit(1);
    return memset(block, 0, bytes);
}

static double now_ns(void)
{
    struct timespec now;
    clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &now);
    return (double)now.tv_sec * 1e9 + (double)now.tv_nsec;
}

static int by_value(const void *a, const void *b)
{
    const double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

static void print_row(const char *what, double *ns, uint32_t n)
{
    qsort(ns, n, sizeof *ns, by_value);
    printf("  %-44s %9.1f us  (%.1f .. %.1f, n = %u)\n", what, ns[n / 2] * 1e-3, ns[n / 10] * 1e-3,
           ns[n - 1 - n / 10] * 1e-3, n);
}

static float *exact_at(const bench *b, uint32_t query, uint32_t layers)
{
    return b->exact + ((uint64_t)query * (b->world.layers + 1) + layers) * b->capacity;
}

/* Similarities over the first 1, 2, ... layers, each from running sums. */
static void compare(const bench *b, uint32_t query, uint32_t slot, const float *map,
                    const float *embedding)
{
    const float *mine = b->queries + query * b->width;
    double dot = 0, power = 0, mine_power = 0;
    if (b->world.dim)
        exact_at(b, query, 0)[slot] =
            (float)map_cosine(embedding, b->embeddings + (uint64_t)query * b->world.dim,
                              b->world.dim);
    for (uint32_t layer = 0; layer < b->world.layers; layer++) {
        for (uint32_t e = 0; e < b->world.experts; e++, mine++, map++) {
            dot += (double)*mine * *map;
            power += (double)*map * *map;
            mine_power += (double)*mine * *mine;
        }
        exact_at(b, query, layer + 1)[slot] =
            (float)(dot / __builtin_sqrt(power) / __builtin_sqrt(mine_power));
    }
}

static void fill(bench *b, mp_maps *maps)
{
    const mp_maps_shape *shape = &maps->shape;
    mp_maps_query *query = memory(mp_maps_query_bytes(shape));
    float *embedding = memory(b->world.dim * sizeof *embedding + 1);
    float *map = memory(b->width * sizeof *map);
    for (uint32_t q = 0; q < QUERIES; q++)
        map_world_sample(&b->world, UINT64_C(1) << 40 | q, b->queries + q * b->width,
                         b->embeddings + (uint64_t)q * b->world.dim);
    for (uint32_t slot = 0; slot < b->capacity; slot++) {
        map_world_sample(&b->world, slot, map, embedding);
        mp_maps_begin(maps, query, b->world.dim ? embedding : NULL);
        memcpy(query->map, map, b->width * sizeof *map);
        for (uint32_t q = 0; q < QUERIES; q++)
            compare(b, q, slot, map, embedding);
        mp_maps_learn(maps, query);
    }
    free(query);
    free(map);
    free(embedding);
}

static double gap(const bench *b, uint32_t query, uint32_t layers, uint32_t slot)
{
    const float *exact = exact_at(b, query, layers);
    float best = exact[0];
    for (uint32_t i = 1; i < b->capacity; i++)
        best = exact[i] > best ? exact[i] : best;
    return slot == MP_MAPS_NONE ? 2 : (double)best - (double)exact[slot];
}

/* How far below the best one the exact score of the map that is found lies. */
static void print_gaps(const bench *b, const mp_maps *maps)
{
    mp_maps_query *query = memory(mp_maps_query_bytes(&maps->shape));
    double worst = 0, mean = 0, worst_semantic = 0;
    float score;
    for (uint32_t q = 0; q < QUERIES; q++) {
        mp_maps_begin(maps, query, b->embeddings + (uint64_t)q * b->world.dim);
        if (b->world.dim) {
            const double one = gap(b, q, 0, mp_maps_find(maps, query, &score));
            worst_semantic = one > worst_semantic ? one : worst_semantic;
        }
        for (uint32_t layer = 0; layer < b->world.layers; layer++) {
            mp_maps_observe(maps, query, layer,
                            b->queries + q * b->width + (uint64_t)layer * b->world.experts);
            const double one = gap(b, q, layer + 1, mp_maps_find(maps, query, &score));
            worst = one > worst ? one : worst;
            mean += one / (QUERIES * b->world.layers);
        }
    }
    printf(
        "  exact score below the best: trajectory %.6f at most, %.6f on average; semantic %.6f at "
        "most\n",
        worst, mean, worst_semantic);
    free(query);
}

/* One layer of one sequence: observe it, predict the layer DISTANCE ahead. */
static void time_queries(const bench *b, const mp_predictor *p, void *state, void *context,
                         bool only_ids)
{
    const uint32_t n = QUERIES * b->world.layers;
    double *ns = memory(n * sizeof *ns), semantic_ns[QUERIES];
    mp_guess *out = memory(b->world.experts * sizeof *out);
    uint32_t ids[TOP_K];
    for (uint32_t i = 0; i < TOP_K; i++)
        ids[i] = (i * 29 + 3) % b->world.experts;
    for (uint32_t q = 0; q < QUERIES; q++) {
        const double first = now_ns();
        p->begin(state, context, b->embeddings + (uint64_t)q * b->world.dim);
        p->predict(state, context, 0, out, NULL);
        semantic_ns[q] = now_ns() - first;
        for (uint32_t layer = 0; layer < b->world.layers; layer++) {
            const float *row = b->queries + q * b->width + (uint64_t)layer * b->world.experts;
            const mp_seen seen = {layer, TOP_K, ids, only_ids ? NULL : row, NULL};
            const double start = now_ns();
            p->observe(state, context, &seen);
            p->predict(state, context, (layer + DISTANCE) % b->world.layers, out, NULL);
            ns[q * b->world.layers + layer] = now_ns() - start;
        }
    }
    print_row(only_ids ? "query: observe + predict, ids only" : "query: observe + predict", ns, n);
    if (b->world.dim && !only_ids)
        print_row("first query: begin + predict by embedding", semantic_ns, QUERIES);
    free(ns);
    free(out);
}

static void time_ends(const bench *b, const mp_predictor *p, void *state, void *context)
{
    double ns[ENDS];
    for (uint32_t i = 0; i < ENDS; i++) {
        p->begin(state, context, b->embeddings);
        for (uint32_t layer = 0; layer < b->world.layers; layer++) {
            const mp_seen seen = {.layer = layer,
                                  .probabilities = b->queries + (uint64_t)layer * b->world.experts};
            p->observe(state, context, &seen);
        }
        const double start = now_ns();
        p->end(state, context);
        ns[i] = now_ns() - start;
    }
    print_row("end: the most redundant of all is replaced", ns, ENDS);
}

static void time_kernel(const bench *b, mp_maps *maps, const mp_maps_kernels *kernels)
{
    mp_maps_query *query = memory(mp_maps_query_bytes(&maps->shape));
    const mp_maps_kernels *kept = maps->kernels;
    const uint32_t n = b->world.layers;
    double *ns = memory(n * sizeof *ns);
    char what[64];
    maps->kernels = kernels;
    mp_maps_begin(maps, query, NULL);
    for (uint32_t layer = 0; layer < n; layer++) {
        const double start = now_ns();
        mp_maps_observe(maps, query, layer, b->queries + (uint64_t)layer * b->world.experts);
        ns[layer] = now_ns() - start;
    }
    maps->kernels = kept;
    snprintf(what, sizeof what, "observe, %s", kernels->name);
    print_row(what, ns, n);
    free(query);
    free(ns);
}

/* The vtable's store, by way of what is saved. */
static void time_predictor(const bench *b, mp_maps *maps)
{
    const mp_predictor *p = &mp_predictor_maps;
    const mp_predict_config config = {.layers = b->world.layers,
                                      .experts = b->world.experts,
                                      .top_k = TOP_K,
                                      .distance = DISTANCE,
                                      .capacity = b->capacity,
                                      .semantic_dim = b->world.dim};
    const uint64_t saved = mp_maps_save_bytes(maps);
    unsigned char *bytes = memory(saved);
    mp_maps_save(maps, bytes);
    void *state = memory(p->state_bytes(&config)), *context = memory(p->context_bytes(&config));
    p->init(state, &config);
    if (p->load(state, bytes, saved))
        exit(1);
    free(bytes);
    printf("  state %.1f MB, of a context %.1f KB, saved %.1f MB\n",
           (double)p->state_bytes(&config) * 1e-6, (double)p->context_bytes(&config) * 1e-3,
           (double)saved * 1e-6);
    time_queries(b, p, state, context, false);
    time_queries(b, p, state, context, true);
    time_ends(b, p, state, context);
    free(state);
    free(context);
}

int main(int argc, char **argv)
{
    uint32_t args[] = {32768, 48, 128, 2048};
    for (int i = 1; i < argc && i <= 4; i++)
        args[i - 1] = (uint32_t)strtoul(argv[i], NULL, 10);
    bench b = {.capacity = args[0],
               .world = {args[1], args[2], args[3], CLUSTERS, 1, NULL, NULL},
               .width = (uint64_t)args[1] * args[2]};
    const mp_maps_shape shape = {args[1], args[2], args[0], args[3], DISTANCE};
    map_world_make(&b.world);
    b.queries = memory(QUERIES * b.width * sizeof *b.queries);
    b.embeddings = memory((uint64_t)QUERIES * b.world.dim * sizeof *b.embeddings + 1);
    b.exact = memory((uint64_t)QUERIES * (args[1] + 1) * args[0] * sizeof *b.exact);
    mp_maps *maps = memory(mp_maps_bytes(&shape));
    mp_maps_init(maps, &shape);
    fill(&b, maps);
    printf("%u maps of %u x %u, embeddings of %u\n", args[0], args[1], args[2], args[3]);
    print_gaps(&b, maps);
    time_kernel(&b, maps, &mp_maps_portable);
    if (maps->kernels != &mp_maps_portable)
        time_kernel(&b, maps, maps->kernels);
    time_predictor(&b, maps);
    free(maps);
    free(b.queries);
    free(b.embeddings);
    free(b.exact);
    map_world_free(&b.world);
    return 0;
}
