/* Random schedules over a PagedTensor against a model of its rules: which calls succeed, which
 * layers have memory, what their addresses show. The caller's reads run as late as it can get:
 * behind gates that stay shut while its buffers are asked for. Every byte that a released layer's
 * reader got must be the layer's. */
#include <stdlib.h>
#include <string.h>

#include "paged_rig.h"
#include "testing.h"

#define MAX_LAYERS 7
#define MAX_READS 64

typedef struct model_layer {
    bool has; /* memory */
    bool wanted, acquired, used;
    uint64_t order;
    uint32_t read_behind; /* number of the gate that its last readers may be behind */
    bool back;            /* it has come back since it lost its last buffer */
} model_layer;

typedef struct late_look {
    uint32_t layer;
    unsigned char *bytes;
} late_look;

typedef struct walk {
    paged_rig rig;
    uint64_t random;
    uint32_t n_layers, n_buffers;
    uint32_t most_compressed;
    model_layer layers[MAX_LAYERS];
    uint64_t clock;
    uint32_t gate; /* its number, 0 = open */
    uint32_t gates;
    late_look looks[MAX_READS];
    uint32_t n_looks;
    uint32_t acquired, evicted, refused;
} walk;

/* ---- the model ---- */

static uint32_t owners(const walk *w)
{
    uint32_t n = 0;
    for (uint32_t i = 0; i < w->n_layers; i++)
        n += w->layers[i].has;
    return n;
}

static uint32_t oldest(const walk *w)
{
    uint32_t found = UINT32_MAX;
    for (uint32_t i = 0; i < w->n_layers; i++)
        if (w->layers[i].has &&
            (found == UINT32_MAX || w->layers[i].order < w->layers[found].order))
            found = i;
    return found;
}

static void model_materialise(walk *w, uint32_t layer, moepage_status status)
{
    model_layer *it = &w->layers[layer];
    if (!it->has && owners(w) == w->n_buffers) {
        model_layer *loser = &w->layers[oldest(w)];
        bool refused = loser->acquired || loser->wanted;
        assert_int_equal(status, refused ? MOEPAGE_E_BUSY : MOEPAGE_OK);
        w->refused += refused;
        if (refused)
            return;
        loser->has = false;
        loser->back = false;
        w->evicted++;
    }
    assert_int_equal(status, MOEPAGE_OK);
    it->back |= !it->has;
    it->has = it->wanted = true;
    it->order = ++w->clock;
}

/* ---- operations ---- */

static void open_gate(walk *w)
{
    paged_rig_open_gate(&w->rig);
    w->gate = 0;
}

static void check_looks(walk *w)
{
    open_gate(w);
    paged_rig_wait(&w->rig);
    for (uint32_t i = 0; i < w->n_looks; i++) {
        assert_true(paged_rig_is_layer(&w->rig, w->looks[i].layer, w->looks[i].bytes));
        paged_rig_free(&w->rig, w->looks[i].bytes);
    }
    w->n_looks = 0;
}

static void materialise(walk *w, uint32_t layer)
{
    model_materialise(w, layer, moepage_paged_materialise(w->rig.paged, layer));
}

static void acquire(walk *w, uint32_t layer)
{
    model_layer *it = &w->layers[layer];
    bool fills = w->rig.bank.shape.callback || w->rig.bank.shape.pack_forms;
    /* It would wait for what this thread alone can let go. */
    if (w->gate && (fills || (it->back && it->read_behind == w->gate)))
        open_gate(w);
    moepage_status status = moepage_paged_acquire(w->rig.paged, layer, paged_rig_stream(&w->rig));
    bool right = it->has && !it->acquired;
    assert_int_equal(status, right ? MOEPAGE_OK : MOEPAGE_E_STATE);
    if (!right)
        return;
    it->acquired = true;
    it->wanted = false;
    w->acquired++;
}

static void release(walk *w, uint32_t layer)
{
    model_layer *it = &w->layers[layer];
    moepage_status status = moepage_paged_release(w->rig.paged, layer, paged_rig_stream(&w->rig));
    assert_int_equal(status, it->acquired ? MOEPAGE_OK : MOEPAGE_E_STATE);
    if (it->acquired)
        it->read_behind = w->gate;
    it->acquired = false;
}

static void look(walk *w, uint32_t layer)
{
    if (!w->layers[layer].acquired)
        return;
    if (w->n_looks == MAX_READS)
        check_looks(w);
    unsigned char *bytes = paged_rig_alloc(&w->rig);
    paged_rig_read(&w->rig, layer, bytes);
    w->looks[w->n_looks++] = (late_look){.layer = layer, .bytes = bytes};
}

static void shut_gate(walk *w)
{
    if (w->rig.where == PAGED_ON_HOST || w->gate)
        return;
    paged_rig_shut(&w->rig);
    w->gate = ++w->gates;
}

static void check_layer(walk *w, uint32_t layer)
{
    uint32_t state = paged_rig_state(&w->rig, layer);
    if (w->layers[layer].has)
        assert_true(state == MOEPAGE_PAGED_LOADING || state == MOEPAGE_PAGED_RESIDENT);
    else
        assert_true(state == MOEPAGE_PAGED_EVICTING || state == MOEPAGE_PAGED_UNMAPPED);
    if (w->layers[layer].acquired)
        assert_true(paged_rig_all_readable(&w->rig, layer));
    /* Its readers are behind a shut gate: it cannot have gone. */
    if (w->gate && w->layers[layer].read_behind == w->gate && !w->layers[layer].has)
        assert_int_equal(state, MOEPAGE_PAGED_EVICTING);
}

/* Behind a shut gate a decoding may wait for what this thread alone can let go. */
static void resize(walk *w)
{
    if (!w->most_compressed)
        return;
    open_gate(w);
    paged_rig_resize(&w->rig, bank_below(&w->random, w->most_compressed + 1));
}

static void step(walk *w)
{
    uint32_t layer = bank_below(&w->random, w->n_layers);
    switch (bank_below(&w->random, 16)) {
    case 0:
    case 1:
    case 2:
    case 3: materialise(w, layer); break;
    case 4:
    case 5:
    case 6: acquire(w, layer); break;
    case 7:
    case 8:
    case 9: release(w, layer); break;
    case 10: look(w, layer); break;
    case 11: shut_gate(w); break;
    case 12: open_gate(w); break;
    case 13: bank_below(&w->random, 2) ? resize(w) : paged_rig_quiesce(&w->rig); break;
    case 14:
        for (uint32_t i = 0; i < w->n_layers; i++)
            check_layer(w, i);
        break;
    default: paged_rig_check(&w->rig);
    }
}

/* A turn as a forward pass takes it; what random calls rarely hit on. */
static void turn(walk *w, uint32_t layer)
{
    materialise(w, layer);
    acquire(w, layer);
    if (bank_below(&w->random, 4) == 0)
        shut_gate(w);
    look(w, layer);
    release(w, layer);
    if (bank_below(&w->random, 4) == 0)
        paged_rig_quiesce(&w->rig);
}

static void walk_once(const bank_shape *shape, const paged_rig_config *config, uint64_t seed)
{
    walk w = {.random = seed, .n_layers = shape->layers};
    paged_rig_open(&w.rig, shape, config);
    w.n_buffers = config->buffers ? config->buffers : 2;
    w.most_compressed = config->compressed;
    for (uint32_t i = 0; i < 60; i++) {
        if (bank_below(&w.random, 3))
            step(&w);
        else
            turn(&w, bank_below(&w.random, w.n_layers));
    }
    check_looks(&w);
    for (uint32_t i = 0; i < w.n_layers; i++)
        if (w.layers[i].acquired)
            release(&w, i);
    paged_rig_quiesce(&w.rig);
    for (uint32_t i = 0; i < w.n_layers; i++) {
        if (!w.layers[i].has)
            paged_rig_await(&w.rig, i, MOEPAGE_PAGED_UNMAPPED);
        check_layer(&w, i);
    }
    paged_rig_check(&w.rig);
    assert_true(w.acquired > 0);
    paged_rig_close(&w.rig);
}

/* ---- cases ---- */

static uint32_t rounds(uint32_t usual)
{
    return getenv("MP_TEST_LONG") ? usual * 20 : usual;
}

static void walk_all(const bank_shape *shape, paged_where where, uint64_t seed)
{
    for (uint32_t i = 0; i < rounds(where == PAGED_ON_SIM ? 5 : 25); i++) {
        bank_shape own = *shape;
        own.layers = 2 + i % (MAX_LAYERS - 1);
        paged_rig_config config = {.where = where, .buffers = 2 + i / 2 % (own.layers - 1)};
        bool coded = shape->pack_forms & 1u << MOEPAGE_FORM_EXPH;
        bool either = coded && shape->pack_forms & 1u << MOEPAGE_FORM_DENSE;
        if (coded)
            config.compressed = i % (shape->experts + 1);
        if (either)
            config.bus_form = MOEPAGE_FORM_DENSE;
        if (shape->callback || shape->pack_forms)
            config.host_tier = i % 3 ? 1 + i % (shape->experts * own.layers) : 0;
        own.seed = seed + i;
        walk_once(&own, &config, seed + i);
    }
}

static const bank_shape from_pointers = {
    .experts = 5, .top_k = 2, .hidden = 24, .intermediate = 12, .bias = true};
static const bank_shape from_callback = {
    .experts = 5, .top_k = 2, .hidden = 24, .intermediate = 12, .split = true, .callback = true};
static const bank_shape from_dense_pack = {.experts = 4,
                                           .top_k = 2,
                                           .hidden = 32,
                                           .intermediate = 16,
                                           .dtype = MOEPAGE_DTYPE_F16,
                                           .pack_forms = 1u << MOEPAGE_FORM_DENSE};
static const bank_shape from_zstd_pack = {.experts = 4,
                                          .top_k = 2,
                                          .hidden = 32,
                                          .intermediate = 16,
                                          .dtype = MOEPAGE_DTYPE_BF16,
                                          .pack_forms = 1u << MOEPAGE_FORM_DENSE,
                                          .cold_level = 3};
static const bank_shape from_exph_pack = {.experts = 4,
                                          .top_k = 2,
                                          .hidden = 64,
                                          .intermediate = 64,
                                          .bias = true,
                                          .dtype = MOEPAGE_DTYPE_BF16,
                                          .pack_forms = 1u << MOEPAGE_FORM_EXPH};

/* Dense over the bus to the place itself, and decoded from device memory. */
static const bank_shape from_both_packs = {.experts = 4,
                                           .top_k = 2,
                                           .hidden = 64,
                                           .intermediate = 64,
                                           .dtype = MOEPAGE_DTYPE_BF16,
                                           .pack_forms =
                                               1u << MOEPAGE_FORM_DENSE | 1u << MOEPAGE_FORM_EXPH};

static void test_paged_keeps_its_invariants_with_late_readers(void **state)
{
    (void)state;
    walk_all(&from_pointers, PAGED_LATE, 1000);
}

static void test_paged_keeps_its_invariants_on_the_host(void **state)
{
    (void)state;
    walk_all(&from_pointers, PAGED_ON_HOST, 2000);
}

static void test_paged_keeps_its_invariants_with_a_callback(void **state)
{
    (void)state;
    walk_all(&from_callback, PAGED_LATE, 3000);
}

static void test_paged_keeps_its_invariants_with_a_dense_pack(void **state)
{
    (void)state;
    walk_all(&from_dense_pack, PAGED_LATE, 4000);
}

static void test_paged_keeps_its_invariants_with_a_zstd_pack(void **state)
{
    (void)state;
    walk_all(&from_zstd_pack, PAGED_LATE, 5000);
}

static void test_paged_keeps_its_invariants_with_coded_experts(void **state)
{
    (void)state;
    walk_all(&from_exph_pack, PAGED_LATE, 6000);
    walk_all(&from_both_packs, PAGED_LATE, 12000);
}

/* So few transfers that all of them together find room in a GPU's pinned memory: no acquire waits
 * for what is behind the gate. */
static const bank_shape few_from_pointers = {.experts = 3,
                                             .top_k = 2,
                                             .hidden = 24,
                                             .intermediate = 12};

static void test_paged_keeps_its_invariants_on_a_gpu(void **state)
{
    (void)state;
    walk_all(&few_from_pointers, PAGED_ON_SIM, 7000);
}

static void test_paged_keeps_its_invariants_on_a_gpu_with_a_callback(void **state)
{
    (void)state;
    walk_all(&from_callback, PAGED_ON_SIM, 8000);
}

static void test_paged_keeps_its_invariants_on_a_gpu_with_packs(void **state)
{
    (void)state;
    walk_all(&from_dense_pack, PAGED_ON_SIM, 9000);
    walk_all(&from_zstd_pack, PAGED_ON_SIM, 10000);
}

static void test_paged_keeps_its_invariants_on_a_gpu_with_coded_experts(void **state)
{
    (void)state;
    walk_all(&from_exph_pack, PAGED_ON_SIM, 11000);
    walk_all(&from_both_packs, PAGED_ON_SIM, 13000);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_paged_keeps_its_invariants_with_late_readers),
        cmocka_unit_test(test_paged_keeps_its_invariants_on_the_host),
        cmocka_unit_test(test_paged_keeps_its_invariants_with_a_callback),
        cmocka_unit_test(test_paged_keeps_its_invariants_with_a_dense_pack),
        cmocka_unit_test(test_paged_keeps_its_invariants_with_a_zstd_pack),
        cmocka_unit_test(test_paged_keeps_its_invariants_with_coded_experts),
        cmocka_unit_test(test_paged_keeps_its_invariants_on_a_gpu),
        cmocka_unit_test(test_paged_keeps_its_invariants_on_a_gpu_with_a_callback),
        cmocka_unit_test(test_paged_keeps_its_invariants_on_a_gpu_with_packs),
        cmocka_unit_test(test_paged_keeps_its_invariants_on_a_gpu_with_coded_experts),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
