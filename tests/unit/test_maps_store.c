/* The store of expert maps: what is found and replaced in six bits per value against brute force in
 * double precision over the maps themselves, kernels against each other, sizes, files. */

#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "base/floats.h"
#include "map_maker.h"
#include "policy/maps.h"
#include "policy/maps_kernels.h"
#include "policy/maps_sketch.h"
#include "testing.h"

#define CLOSE 0.01

static void *zeroed(uint64_t bytes)
{
    void *memory = aligned_alloc(64, (bytes + 63) / 64 * 64);
    assert_non_null(memory);
    return memset(memory, 0, bytes);
}

static uint32_t rounds(uint32_t plain, uint32_t many)
{
    return getenv("MP_TEST_LONG") ? many : plain;
}

/* A store, and beside it what was put into each slot. */
typedef struct rig {
    map_world world;
    uint64_t width;
    mp_maps *maps;
    mp_maps_query *query;
    float *map, *embedding;  /* the query's */
    float *truth, *meanings; /* [capacity][width], [capacity][dim] */
} rig;

static rig make(map_world world, uint32_t capacity, uint32_t distance)
{
    const mp_maps_shape shape = {world.layers, world.experts, capacity, world.dim, distance};
    rig r = {.world = world, .width = (uint64_t)world.layers * world.experts};
    map_world_make(&r.world);
    r.maps = zeroed(mp_maps_bytes(&shape));
    r.query = zeroed(mp_maps_query_bytes(&shape));
    r.map = zeroed(r.width * sizeof(float));
    r.embedding = zeroed((world.dim + 1) * sizeof(float));
    r.truth = zeroed(capacity * r.width * sizeof(float));
    r.meanings = zeroed(((uint64_t)capacity * world.dim + 1) * sizeof(float));
    mp_maps_init(r.maps, &shape);
    return r;
}

static void drop(rig *r)
{
    map_world_free(&r->world);
    free(r->maps);
    free(r->query);
    free(r->map);
    free(r->embedding);
    free(r->truth);
    free(r->meanings);
}

static void begin(rig *r, mp_maps_query *query, uint64_t sample)
{
    map_world_sample(&r->world, sample, r->map, r->embedding);
    mp_maps_begin(r->maps, query, r->world.dim ? r->embedding : NULL);
}

static void observe_all(rig *r, mp_maps_query *query)
{
    for (uint32_t layer = 0; layer < r->world.layers; layer++)
        mp_maps_observe(r->maps, query, layer, r->map + (uint64_t)layer * r->world.experts);
}

static uint32_t learn(rig *r, uint64_t sample)
{
    begin(r, r->query, sample);
    observe_all(r, r->query);
    const uint32_t slot = mp_maps_learn(r->maps, r->query);
    memcpy(r->truth + slot * r->width, r->map, r->width * sizeof(float));
    memcpy(r->meanings + (uint64_t)slot * r->world.dim, r->embedding, r->world.dim * sizeof(float));
    return slot;
}

/* ---- Search ---- */

/* Eq. 4 and 5. */
static double exact_score(const rig *r, uint32_t slot, uint32_t layers)
{
    if (!layers)
        return map_cosine(r->embedding, r->meanings + (uint64_t)slot * r->world.dim, r->world.dim);
    return map_cosine(r->map, r->truth + slot * r->width, (uint64_t)layers * r->world.experts);
}

static void expect_near_the_best(rig *r, uint32_t layers)
{
    float score = -9;
    double best = -1;
    const uint32_t slot = mp_maps_find(r->maps, r->query, &score);
    for (uint32_t i = 0; i < r->maps->used; i++)
        best = fmax(best, exact_score(r, i, layers));
    assert_true(slot < r->maps->used);
    const double chosen = exact_score(r, slot, layers);
    if (chosen < best - CLOSE || fabs((double)score - chosen) > CLOSE)
        fail_msg("seed %llu, %u x %u, after %u layers: slot %u scores %f, said %f, best %f",
                 (unsigned long long)r->world.seed, r->world.layers, r->world.experts, layers, slot,
                 chosen, (double)score, best);
}

static void expect_searches_close(map_world world, uint32_t capacity, uint32_t queries)
{
    rig r = make(world, capacity, 1);
    for (uint32_t i = 0; i < capacity; i++)
        assert_int_equal(learn(&r, i), i);
    for (uint32_t q = 0; q < queries; q++) {
        begin(&r, r.query, UINT64_C(1000000) + q);
        if (world.dim)
            expect_near_the_best(&r, 0);
        for (uint32_t layer = 0; layer < world.layers; layer++) {
            mp_maps_observe(r.maps, r.query, layer, r.map + (uint64_t)layer * world.experts);
            expect_near_the_best(&r, layer + 1);
        }
    }
    drop(&r);
}

static void test_maps_store_finds_what_brute_force_finds(void **state)
{
    (void)state;
    static const struct {
        uint32_t layers, experts, dim, clusters, capacity;
    } shapes[] = {
        {4, 128, 256, 24, 2048}, {3, 128, 512, 3000, 3000}, {6, 60, 100, 8, 700},
        {3, 6, 64, 5, 300},      {2, 256, 768, 3, 200},     {5, 1, 0, 2, 70},
        {2, 33, 1, 4, 129},
    };
    for (uint32_t seed = 1; seed <= rounds(2, 12); seed++) {
        for (uint32_t i = 0; i < sizeof shapes / sizeof *shapes; i++)
            expect_searches_close((map_world){shapes[i].layers, shapes[i].experts, shapes[i].dim,
                                              shapes[i].clusters, seed, NULL, NULL},
                                  shapes[i].capacity, 4);
    }
    if (getenv("MP_TEST_LONG")) {
        expect_searches_close((map_world){48, 128, 2048, 64, 1, NULL, NULL}, 4096, 8);
        expect_searches_close((map_world){24, 32, 2880, 64, 2, NULL, NULL}, 4096, 8);
    }
}

/* The integers of a search hold the widest and the narrowest router there is. */
static void test_maps_store_survives_extreme_routers(void **state)
{
    (void)state;
    const uint32_t experts = 65536;
    rig r = make((map_world){1, experts, 0, 1, 1, NULL, NULL}, 2, 1);
    float score = 0;
    for (uint32_t e = 0; e < experts; e++)
        r.map[e] = 1.0f / (float)experts;
    for (uint32_t kind = 0; kind < 2; kind++) { /* even, then all on one */
        mp_maps_begin(r.maps, r.query, NULL);
        mp_maps_observe(r.maps, r.query, 0, r.map);
        mp_maps_learn(r.maps, r.query);
        mp_maps_begin(r.maps, r.query, NULL);
        mp_maps_observe(r.maps, r.query, 0, r.map);
        assert_int_equal(mp_maps_find(r.maps, r.query, &score), kind);
        assert_true(score > 0.9999f && score <= 1);
        memset(r.map, 0, experts * sizeof(float));
        r.map[experts - 1] = 1;
    }
    const float odd[] = {NAN, INFINITY, -1, 1e-30f, 7};
    memset(r.map, 0, experts * sizeof(float));
    memcpy(r.map, odd, sizeof odd);
    mp_maps_begin(r.maps, r.query, NULL);
    mp_maps_observe(r.maps, r.query, 0, r.map); /* as 0, 1, 0, 0, 1 */
    assert_int_equal(mp_maps_find(r.maps, r.query, &score), 0);
    assert_true(fabs((double)score - 2 / sqrt(2.0 * experts)) < 1e-4);
    drop(&r);
}

/* Codes go to their places and come back, whatever lies beside them. */
static void test_maps_store_keeps_probabilities_to_half_a_step(void **state)
{
    (void)state;
    rig r = make((map_world){2, 13, 0, 4, 5, NULL, NULL}, 131, 1);
    for (uint32_t i = 0; i < 131; i++)
        learn(&r, i);
    for (uint32_t at = 0; at < 131 * 26; at++) {
        const uint32_t slot = at / 26, layer = at / 13 % 2, e = at % 13;
        const float *row = r.truth + slot * r.width + layer * 13;
        double peak = 0;
        for (uint32_t i = 0; i < 13; i++)
            peak = fmax(peak, row[i]);
        const double top = mp_from_bf16(r.maps->peaks[mp_maps_at(r.maps, layer, slot)]);
        assert_true(top >= peak && top <= peak * (1 + 1.0 / 128));
        const double kept = sqrt(row[e] / top) * 63; /* squares are rounded: 0 up to 1/2 */
        const uint32_t code = mp_maps_code(r.maps, slot, layer, e);
        if (fabs(code - kept) > (code ? 0.6 : sqrt(0.5)))
            fail_msg("slot %u layer %u expert %u: code %u for %f", slot, layer, e, code, kept);
    }
    drop(&r);
}

/* ---- Kernels ---- */

static uint32_t random_byte(uint32_t *state)
{
    *state = *state * 1664525 + 1013904223;
    return *state >> 24;
}

static void test_maps_store_kernels_agree(void **state)
{
    (void)state;
    enum { QUADS = 9, COORDS = 832, SKETCHES = 5 };
    uint32_t random = 1;
    uint8_t codes[QUADS * 3 * MP_MAPS_TILE], sketches[SKETCHES * COORDS / 2];
    for (uint32_t round = 0; round < rounds(50, 5000); round++) {
        int16_t weights[QUADS * 4];
        int8_t query[COORDS];
        int32_t got[MP_MAPS_TILE], expected[MP_MAPS_TILE];
        for (uint32_t i = 0; i < sizeof codes; i++)
            codes[i] = (uint8_t)(round ? random_byte(&random) : 255);
        for (uint32_t i = 0; i < sizeof sketches; i++)
            sketches[i] = (uint8_t)(round ? random_byte(&random) : 255);
        for (uint32_t i = 0; i < QUADS * 4; i++)
            weights[i] = (int16_t)(random_byte(&random) % 3 ? random_byte(&random) * 55 : 0);
        for (uint32_t i = 0; i < COORDS; i++)
            query[i] = (int8_t)(round ? (int32_t)(random_byte(&random) % 255) - 127 : 127);
        mp_maps_portable.tile(codes, weights, QUADS, expected);
        mp_maps_kernels_best()->tile(codes, weights, QUADS, got);
        assert_memory_equal(got, expected, sizeof got);
        const uint32_t coords = 64 * (1 + round % (COORDS / 64));
        mp_maps_portable.sketch(sketches, COORDS / 2, SKETCHES, query, coords, expected);
        mp_maps_kernels_best()->sketch(sketches, COORDS / 2, SKETCHES, query, coords, got);
        assert_memory_equal(got, expected, SKETCHES * sizeof *got);
    }
}

/* ---- Replacement ---- */

static double exact_redundancy(const rig *r, uint32_t slot)
{
    const double part = (double)r->maps->shape.distance / r->world.layers;
    return part * (r->world.dim ? exact_score(r, slot, 0) : 0) +
           (1 - part) * exact_score(r, slot, r->world.layers);
}

/* Three sequences in turn: each has begun, and is observed, before the other two end. */
static void expect_replacements_close(map_world world, uint32_t capacity, uint32_t distance)
{
    rig r = make(world, capacity, distance);
    mp_maps_query *queries[3];
    for (uint32_t i = 0; i < capacity; i++)
        learn(&r, i);
    for (uint32_t k = 0; k < 3; k++) {
        queries[k] = zeroed(mp_maps_query_bytes(&r.maps->shape));
        begin(&r, queries[k], capacity + k);
        observe_all(&r, queries[k]);
    }
    for (uint64_t i = capacity; i < capacity * UINT64_C(6); i++) {
        mp_maps_query *query = queries[(i - capacity) % 3];
        map_world_sample(&r.world, i, r.map, r.embedding);
        double best = -1;
        for (uint32_t slot = 0; slot < capacity; slot++)
            best = fmax(best, exact_redundancy(&r, slot));
        const uint32_t slot = mp_maps_learn(r.maps, query);
        assert_true(slot < capacity);
        if (exact_redundancy(&r, slot) < best - CLOSE)
            fail_msg("seed %llu, iteration %llu: slot %u is %f redundant, the most is %f",
                     (unsigned long long)world.seed, (unsigned long long)i, slot,
                     exact_redundancy(&r, slot), best);
        memcpy(r.truth + slot * r.width, r.map, r.width * sizeof(float));
        memcpy(r.meanings + (uint64_t)slot * world.dim, r.embedding, world.dim * sizeof(float));
        begin(&r, query, i + 3);
        observe_all(&r, query);
    }
    for (uint32_t k = 0; k < 3; k++)
        free(queries[k]);
    drop(&r);
}

static void test_maps_store_replaces_the_most_redundant(void **state)
{
    (void)state;
    for (uint32_t seed = 1; seed <= rounds(3, 40); seed++) {
        expect_replacements_close((map_world){6, 32, 64, 7, seed, NULL, NULL}, 16, 3);
        expect_replacements_close((map_world){4, 16, 96, 3, seed, NULL, NULL}, 66, 4);
        expect_replacements_close((map_world){3, 10, 0, 4, seed, NULL, NULL}, 3, 1);
        expect_replacements_close((map_world){2, 8, 64, 2, seed, NULL, NULL}, 1, 1);
    }
}

/* ---- Sizes and files ---- */

/* 48 x 128 at six bits and 6 bytes per row, 2048 coordinates at four bits: 194 MB. */
static void test_maps_store_of_32k_fits_200_megabytes(void **state)
{
    (void)state;
    const mp_maps_shape shape = {48, 128, 32768, 2048, 3};
    assert_true(mp_maps_bytes(&shape) < 200000000);
    assert_true(mp_maps_query_bytes(&shape) < 400000);
}

typedef struct file {
    unsigned char *bytes;
    uint64_t n;
} file;

static file saved(const rig *r)
{
    file f = {NULL, mp_maps_save_bytes(r->maps)};
    f.bytes = zeroed(f.n);
    mp_maps_save(r->maps, f.bytes);
    return f;
}

static rig filled(uint32_t capacity, uint32_t maps)
{
    rig r = make((map_world){3, 10, 64, 4, 9, NULL, NULL}, capacity, 1);
    for (uint32_t i = 0; i < maps; i++)
        learn(&r, i);
    return r;
}

static void expect_same_answers(rig *a, rig *b)
{
    float of_a, of_b;
    for (uint32_t q = 0; q < 20; q++) {
        begin(a, a->query, 100000 + q);
        begin(b, b->query, 100000 + q);
        for (uint32_t layer = 0; layer <= a->world.layers; layer++) {
            assert_int_equal(mp_maps_find(a->maps, a->query, &of_a),
                             mp_maps_find(b->maps, b->query, &of_b));
            assert_true(of_a == of_b);
            if (layer < a->world.layers) {
                mp_maps_observe(a->maps, a->query, layer, a->map + layer * a->world.experts);
                mp_maps_observe(b->maps, b->query, layer, b->map + layer * b->world.experts);
            }
        }
    }
}

static void test_maps_store_loads_what_it_saved(void **state)
{
    (void)state;
    rig from = filled(80, 70), to = filled(100, 5), small = filled(7, 0), first = filled(7, 7);
    file f = saved(&from);
    assert_int_equal(mp_maps_load(to.maps, f.bytes, f.n), MOEPAGE_OK);
    expect_same_answers(&from, &to);
    file again = saved(&to);
    assert_int_equal(again.n, f.n);
    assert_memory_equal(again.bytes, f.bytes, f.n);
    assert_int_equal(mp_maps_load(small.maps, f.bytes, f.n), MOEPAGE_OK);
    expect_same_answers(&first, &small);
    begin(&to, to.query, 7); /* open when another store is loaded: not searched, and does no harm */
    observe_all(&to, to.query);
    file other = saved(&first);
    float score;
    assert_int_equal(mp_maps_load(to.maps, other.bytes, other.n), MOEPAGE_OK);
    assert_int_equal(mp_maps_find(to.maps, to.query, &score), MP_MAPS_NONE);
    assert_int_equal(mp_maps_learn(to.maps, to.query), 7);
    rig empty = filled(4, 0);
    file nothing = saved(&empty);
    begin(&to, to.query, 7);
    assert_int_not_equal(mp_maps_find(to.maps, to.query, &score), MP_MAPS_NONE);
    assert_int_equal(mp_maps_load(to.maps, nothing.bytes, nothing.n), MOEPAGE_OK);
    assert_int_equal(mp_maps_find(to.maps, to.query, &score), MP_MAPS_NONE);
    free(nothing.bytes);
    drop(&empty);
    free(f.bytes);
    free(again.bytes);
    free(other.bytes);
    drop(&from);
    drop(&to);
    drop(&small);
    drop(&first);
}

static void expect_refused(rig *to, const file *f, uint64_t n, const file *before)
{
    assert_int_equal(mp_maps_load(to->maps, f->bytes, n), MOEPAGE_E_FORMAT);
    file now = saved(to);
    assert_int_equal(now.n, before->n);
    assert_memory_equal(now.bytes, before->bytes, now.n);
    free(now.bytes);
}

static void test_maps_store_refuses_what_it_did_not_save(void **state)
{
    (void)state;
    enum { ROW = 2 + 9, SKETCH = 4 + 512, HEADER = 24 };
    rig from = filled(4, 2), to = filled(4, 3);
    file f = saved(&from), before = saved(&to);
    assert_int_equal(f.n, HEADER + 2 * (3 * ROW + SKETCH));
    for (uint64_t n = 0; n < f.n; n++)
        expect_refused(&to, &f, n, &before);
    for (uint32_t i = 0; i < HEADER * 8; i++) { /* any bit of the header */
        f.bytes[i / 8] ^= (unsigned char)(1 << i % 8);
        expect_refused(&to, &f, f.n, &before);
        f.bytes[i / 8] ^= (unsigned char)(1 << i % 8);
    }
    static const struct {
        uint32_t at;
        uint8_t to[4], n;
    } damages[] = {
        {HEADER, {0, 0}, 2},                       /* no peak, and codes */
        {HEADER, {0x81, 0x3f}, 2},                 /* a probability above 1 */
        {HEADER, {0xc0, 0x7f}, 2},                 /* none at all */
        {HEADER + 2 + 8, {0x3f}, 1},               /* an expert that is not there: the eleventh */
        {HEADER + 3 * ROW, {0, 0, 0xc0, 0x7f}, 4}, /* a gain that is no number */
        {HEADER + 3 * ROW, {0, 0, 0, 0x80}, 4},    /* -0 */
        {HEADER + 3 * ROW, {0, 0, 0, 0}, 4},       /* no embedding, and codes */
        {HEADER + 3 * ROW, {0, 0, 0x80, 0x3f}, 4}, /* 1 */
    };
    for (uint32_t i = 0; i < sizeof damages / sizeof *damages; i++) {
        unsigned char kept[4];
        memcpy(kept, f.bytes + damages[i].at, sizeof kept);
        memcpy(f.bytes + damages[i].at, damages[i].to, damages[i].n);
        expect_refused(&to, &f, f.n, &before);
        memcpy(f.bytes + damages[i].at, kept, sizeof kept);
    }
    assert_int_equal(mp_maps_load(to.maps, f.bytes, f.n), MOEPAGE_OK);
    free(f.bytes);
    free(before.bytes);
    drop(&from);
    drop(&to);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_maps_store_finds_what_brute_force_finds),
        cmocka_unit_test(test_maps_store_survives_extreme_routers),
        cmocka_unit_test(test_maps_store_keeps_probabilities_to_half_a_step),
        cmocka_unit_test(test_maps_store_kernels_agree),
        cmocka_unit_test(test_maps_store_replaces_the_most_redundant),
        cmocka_unit_test(test_maps_store_of_32k_fits_200_megabytes),
        cmocka_unit_test(test_maps_store_loads_what_it_saved),
        cmocka_unit_test(test_maps_store_refuses_what_it_did_not_save),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
