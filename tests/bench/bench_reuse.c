/* What a use costs the estimators of reuse distances, exact and sampled, on one thread. Not part of
 * any suite; docs/working-sets.md has the command and what came out.
 *
 * Streams: layer by layer, each layer routing to eight of its experts, some of them oftener than
 * others; and keys in no order. One estimator after the other, round after round; the median round
 * and the 10th and 90th percentile. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "planning/reuse.h"
#include "planning/sampled.h"

#define USES (1u << 20)
#define ROUNDS 21
#define SET 8u

typedef struct stream {
    const char *name;
    uint32_t keys, set;
    uint32_t *uses; /* [USES] */
} stream;

static uint64_t random_bits(uint64_t *state)
{
    *state ^= *state >> 12;
    *state ^= *state << 25;
    *state ^= *state >> 27;
    return *state * 2685821657736338717u;
}

static uint32_t below(uint64_t *state, uint32_t n)
{
    return (uint32_t)((random_bits(state) >> 32) * n >> 32);
}

static void *memory(uint64_t bytes)
{
    void *block = calloc(1, bytes);
    if (!block)
        exit(1);
    return block;
}

/* Distinct experts of a layer, the low ones oftener. */
static stream routed(const char *name, uint32_t layers, uint32_t experts)
{
    stream s = {name, layers * experts, SET, memory(USES * sizeof(uint32_t))};
    uint64_t random = 1;
    for (uint32_t i = 0; i < USES; i++) {
        const uint32_t start = i - i % SET, layer = i / SET % layers;
        uint32_t j;
        do {
            const uint32_t expert = below(&random, SET + below(&random, experts - SET + 1));
            s.uses[i] = layer * experts + expert;
            for (j = start; j < i && s.uses[j] != s.uses[i]; j++)
                ;
        } while (j < i);
    }
    return s;
}

static stream scattered(const char *name, uint32_t keys)
{
    stream s = {name, keys, 1, memory(USES * sizeof(uint32_t))};
    uint64_t random = 1;
    for (uint32_t i = 0; i < USES; i++)
        s.uses[i] = below(&random, 1 + below(&random, keys));
    return s;
}

static double now_ns(void)
{
    struct timespec now;
    clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &now);
    return (double)now.tv_sec * 1e9 + (double)now.tv_nsec;
}

static uint64_t checksum; /* keeps results alive */

static double run_exact(const stream *s, mp_reuse *reuse)
{
    uint32_t distances[SET];
    const double start = now_ns();
    for (uint32_t i = 0; i < USES; i += s->set) {
        mp_reuse_use(reuse, s->uses + i, s->set, distances);
        checksum += distances[0];
    }
    return (now_ns() - start) / USES;
}

/* Each call's time in us goes to calls_us [USES / set], if there is one. */
static double run_sampled(const stream *s, mp_sampled *sampled, double *calls_us)
{
    mp_sampled_use set[SET];
    mp_sample samples[SET];
    const double start = now_ns();
    for (uint32_t i = 0; i < USES; i += s->set) {
        for (uint32_t k = 0; k < s->set; k++)
            set[k] = (mp_sampled_use){.key = s->uses[i + k], .size = 1};
        const double before = calls_us ? now_ns() : 0;
        checksum += mp_sampled_use_set(sampled, set, s->set, samples);
        if (calls_us)
            calls_us[i / s->set] = (now_ns() - before) * 1e-3;
    }
    return (now_ns() - start) / USES;
}

static int by_value(const void *a, const void *b)
{
    const double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

static void print_row(const char *what, double *ns)
{
    qsort(ns, ROUNDS, sizeof *ns, by_value);
    printf("  %-28s %7.1f ns per use  (%.1f .. %.1f)\n", what, ns[ROUNDS / 2], ns[ROUNDS / 10],
           ns[ROUNDS - 1 - ROUNDS / 10]);
}

static void bench_stream(const stream *s)
{
    static const struct {
        uint32_t divisor; /* max_keys = keys / divisor */
        const char *name;
    } kinds[] = {{1, "sampled, all keys fit"},
                 {2, "sampled, half of them"},
                 {4, "sampled, a quarter"},
                 {16, "sampled, a sixteenth"}};
    enum { KINDS = sizeof kinds / sizeof *kinds };
    double exact_ns[ROUNDS], ns[KINDS][ROUNDS];
    double *calls_us = memory(USES / s->set * sizeof *calls_us);
    mp_reuse *reuse = mp_reuse_init(memory(mp_reuse_bytes(s->keys)), s->keys);
    mp_sampled *sampled[KINDS];
    for (uint32_t k = 0; k < KINDS; k++) {
        const uint32_t max_keys = s->keys / kinds[k].divisor;
        sampled[k] = mp_sampled_init(memory(mp_sampled_bytes(max_keys)), max_keys, 1, 1);
    }
    for (uint32_t round = 0; round < ROUNDS; round++) {
        exact_ns[round] = run_exact(s, reuse);
        for (uint32_t k = 0; k < KINDS; k++)
            ns[k][round] = run_sampled(s, sampled[k], NULL);
    }
    run_sampled(s, sampled[0], calls_us);
    qsort(calls_us, USES / s->set, sizeof *calls_us, by_value);
    printf("%s (%u keys, sets of %u)\n", s->name, s->keys, s->set);
    print_row("exact", exact_ns);
    for (uint32_t k = 0; k < KINDS; k++) {
        print_row(kinds[k].name, ns[k]);
        free(sampled[k]);
    }
    /* There are more than 60 that compact; some of the longest were interrupted. */
    printf("  %-28s %7.1f us\n", "a call that compacts", calls_us[USES / s->set - 32]);
    free(calls_us);
    free(reuse);
}

int main(void)
{
    const stream streams[] = {routed("gpt-oss-20b", 24, 32), routed("Qwen3-30B-A3B", 48, 128),
                              routed("128 x 128", 128, 128), scattered("in no order", 16384)};
    for (size_t i = 0; i < sizeof streams / sizeof *streams; i++) {
        bench_stream(&streams[i]);
        free(streams[i].uses);
    }
    printf("checksum %llu\n", (unsigned long long)checksum);
    return 0;
}
