/* Experts that lie in files of any format: what is served is what the places hold, and what cannot be
 * is refused with a sentence. */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "descriptors.h"
#include "moe_maker.h"
#include "pool_rig.h"
#include "testing.h"

/* ---- what is served ---- */

#define LAYERS 3
#define EXPERTS 6
#define HIDDEN 24

static bank_model bank;
static pool_rig rig;

static const bank_shape shapes[] = {
    {.dtype = MOEPAGE_DTYPE_F32, .seed = 3},
    {.dtype = MOEPAGE_DTYPE_BF16, .split = true, .bias = true, .seed = 4},
    {.dtype = MOEPAGE_DTYPE_F16, .odd_dtype = MOEPAGE_DTYPE_F32, .bias = true, .seed = 5},
    {.dtype = MOEPAGE_DTYPE_BF16, .pack_forms = 1u << MOEPAGE_FORM_EXPH, .seed = 6},
};
enum { SHAPES = sizeof shapes / sizeof *shapes };

static void open_shape(uint32_t i)
{
    bank_shape shape = shapes[i];
    shape.layers = LAYERS;
    shape.experts = EXPERTS;
    shape.top_k = 2;
    shape.hidden = HIDDEN;
    shape.intermediate = 20;
    shape.files = true;
    bank_model_open(&bank, &shape);
}

static void test_bank_files_are_read_where_the_places_say(void **state)
{
    (void)state;
    for (uint32_t i = 0; i < SHAPES; i++) {
        moepage_model_info info = MOEPAGE_MODEL_INFO();
        moepage_expert_tensor layout[MOEPAGE_MAX_EXPERT_TENSORS];
        const void *tensors[MOEPAGE_MAX_EXPERT_TENSORS];
        open_shape(i);
        assert_int_equal(moepage_model_get_info(bank.model, &info), MOEPAGE_OK);
        assert_int_equal(info.layouts, shapes[i].odd_dtype ? 2 : 1);
        unsigned char *slot = malloc(info.slot_bytes);
        assert_non_null(slot);
        for (uint32_t key = 0; key < LAYERS * EXPERTS; key++) {
            const uint32_t layer = key / EXPERTS, expert = key % EXPERTS;
            assert_int_equal(moepage_model_get_layer_tensors(bank.model, layer, layout,
                                                             MOEPAGE_MAX_EXPERT_TENSORS),
                             MOEPAGE_OK);
            for (uint32_t t = 0; t < bank.n_tensors; t++)
                tensors[t] = slot + layout[t].offset;
            memset(slot, 0xee, info.slot_bytes);
            assert_int_equal(moepage_model_read_expert(bank.model, layer, expert, slot,
                                                       info.slot_bytes),
                             MOEPAGE_OK);
            assert_true(bank_model_matches(&bank, layer, expert, tensors));
        }
        free(slot);
        bank_model_close(&bank);
    }
}

static void visit(moepage_session *session, uint32_t layer, int32_t expert)
{
    moepage_plan plan = MOEPAGE_PLAN();
    pool_rig_begin(session, 1, MOEPAGE_PHASE_DECODE);
    if (pool_rig_route(session, layer, &expert, 1, &plan))
        fail_msg("not routed: %s", moepage_last_error());
    assert_int_equal(plan.experts[0].expert, expert);
    assert_true(bank_model_matches(&bank, layer, (uint32_t)expert, plan.experts[0].tensors));
    assert_int_equal(moepage_session_retire(session, layer), MOEPAGE_OK);
    assert_int_equal(moepage_session_end(session, NULL), MOEPAGE_OK);
}

static void test_bank_files_fill_the_slots_of_plans(void **state)
{
    (void)state;
    static const pool_rig_config pools[] = {
        {.slots = 2},
        {.slots = 3, .host_experts = 4, .io_threads = 2},
        {.slots = 4, .n_devices = 2},
        {.slots = LAYERS * EXPERTS},
    };
    for (uint32_t i = 0; i < SHAPES; i++)
        for (size_t p = 0; p < sizeof pools / sizeof *pools; p++) {
            uint64_t random = i * 10 + p;
            open_shape(i);
            pool_rig_open(&rig, &bank, &pools[p]);
            moepage_session *session = pool_rig_session(&rig, NULL);
            for (uint32_t v = 0; v < 60; v++) {
                uint32_t key = bank_below(&random, LAYERS * EXPERTS);
                visit(session, key / EXPERTS, (int32_t)(key % EXPERTS));
            }
            assert_true(pool_rig_info(&rig).misses > 0);
            assert_int_equal(moepage_session_destroy(session), MOEPAGE_OK);
            pool_rig_close(&rig); /* compares every slot and the tier */
            bank_model_close(&bank);
        }
}

static void check_ffn(moepage_session *session, uint32_t layer, uint64_t *random)
{
    enum { TOKENS = 3, TOP_K = 2, N = TOKENS * HIDDEN };
    int32_t ids[TOKENS * TOP_K];
    float weights[TOKENS * TOP_K], x[N], y[N];
    double expected[N], bound[N];
    bank_model_route(&bank, random, TOKENS, TOP_K, false, ids, weights);
    for (uint32_t i = 0; i < N; i++)
        x[i] = (float)bank_below(random, 64) / 16 - 2;
    bank_model_reference(&bank, layer, TOKENS, TOP_K, ids, weights, x, MOEPAGE_MATH_FP32, expected,
                         bound);
    moepage_routing routing = MOEPAGE_ROUTING(TOP_K, ids, weights);
    moepage_ffn ffn = MOEPAGE_FFN(MOEPAGE_DTYPE_F32, x, y);
    assert_int_equal(moepage_session_route(session, layer, &routing, NULL), MOEPAGE_OK);
    assert_int_equal(moepage_session_ffn(session, layer, &ffn), MOEPAGE_OK);
    assert_int_equal(moepage_session_retire(session, layer), MOEPAGE_OK);
    for (uint32_t i = 0; i < N; i++)
        assert_true(fabs(y[i] - expected[i]) <= bound[i]);
}

static void test_bank_files_are_computed_with(void **state)
{
    (void)state;
    for (uint32_t i = 0; i < SHAPES; i++)
        for (int in_place = 0; in_place < 2; in_place++) {
            const uint32_t miss = in_place ? MOEPAGE_MISS_HOST : MOEPAGE_MISS_WAIT;
            uint64_t random = i;
            open_shape(i);
            pool_rig_open(&rig, &bank, &(pool_rig_config){.slots = 3});
            moepage_session *session =
                pool_rig_session(&rig, &(moepage_session_config){.max_tokens = 3, .miss = miss});
            pool_rig_begin(session, 3, MOEPAGE_PHASE_DECODE);
            for (uint32_t layer = 0; layer < LAYERS; layer++)
                check_ffn(session, layer, &random);
            assert_int_equal(moepage_session_end(session, NULL), MOEPAGE_OK);
            assert_int_equal(moepage_session_destroy(session), MOEPAGE_OK);
            pool_rig_close(&rig);
            bank_model_close(&bank);
        }
}

/* ---- what is refused ---- */

enum { FEW = 2, TENSORS = 2, SIZE = 6 * sizeof(float), PLACES = FEW * FEW * TENSORS };

static char dir[64], paths[2][80];
static const char *files[2];
static moepage_file_place places[PLACES];
static moepage_expert_tensor tensors[FEW * TENSORS];
static moepage_banks banks;

/* Two files of half of the tensors each, one tensor behind the other, and nothing else. */
static int make(void **state)
{
    unsigned char bytes[PLACES / 2 * SIZE];
    (void)state;
    maker_dir_create(dir);
    for (uint32_t f = 0; f < 2; f++) {
        memset(bytes, (int)(f + 1), sizeof bytes);
        maker_write(dir, f ? "b.bin" : "a.bin", bytes, sizeof bytes);
        snprintf(paths[f], sizeof paths[f], "%s/%s", dir, f ? "b.bin" : "a.bin");
        files[f] = paths[f];
    }
    for (uint32_t i = 0; i < PLACES; i++)
        places[i] = (moepage_file_place){.file = i % 2, .offset = i / 2 * SIZE};
    for (uint32_t i = 0; i < FEW * TENSORS; i++)
        tensors[i] =
            (moepage_expert_tensor){.role = i % TENSORS ? MOEPAGE_ROLE_DOWN : MOEPAGE_ROLE_UP,
                                    .dtype = MOEPAGE_DTYPE_F32,
                                    .rank = 2,
                                    .shape = {2, 3}};
    banks = MOEPAGE_BANKS(.moe_layers = FEW, .experts = FEW, .top_k = 1, .hidden = 2,
                          .expert_intermediate = 3, .n_tensors = TENSORS, .tensors = tensors,
                          .n_files = 2, .files = files, .places = places);
    return 0;
}

static int unmake(void **state)
{
    (void)state;
    maker_dir_remove(dir);
    return 0;
}

static void expect_opened(void)
{
    moepage_model *model = NULL;
    if (moepage_model_open_banks(&banks, NULL, &model))
        fail_msg("not opened: %s", moepage_last_error());
    assert_int_equal(moepage_model_close(model), MOEPAGE_OK);
}

static void expect_refusal(moepage_status status, const char *words)
{
    const uint32_t descriptors = count_descriptors();
    moepage_model *model = NULL;
    moepage_status found = moepage_model_open_banks(&banks, NULL, &model);
    if (found != status)
        fail_msg("status %d, not %d, for words %s: %s", found, status, words,
                 found ? moepage_last_error() : "accepted");
    assert_null(model);
    expect_sentence(words);
    assert_int_equal(count_descriptors(), descriptors);
}

#define EXPECT_REFUSED(status, change, words) \
    do {                                      \
        unmake(NULL);                         \
        make(NULL);                           \
        expect_opened();                      \
        change;                               \
        expect_refusal(status, words);        \
    } while (0)

static void test_bank_files_refuse_places_in_no_file(void **state)
{
    (void)state;
    EXPECT_REFUSED(MOEPAGE_E_ARGUMENT, places[3].file = 2,
                   "layer 0, expert 1, tensor 1: it lies in file 2 of 2");
    EXPECT_REFUSED(MOEPAGE_E_ARGUMENT, places[4].file = UINT32_MAX,
                   "layer 1, expert 0, tensor 0: it lies in file 4294967295 of 2");
    EXPECT_REFUSED(MOEPAGE_E_ARGUMENT, places[7].reserved = 9,
                   "layer 1, expert 1, tensor 1: reserved is 9");
    EXPECT_REFUSED(MOEPAGE_E_ARGUMENT, banks.n_files = 1, "it lies in file 1 of 1");
}

static void test_bank_files_refuse_files_that_cannot_be_opened(void **state)
{
    (void)state;
    EXPECT_REFUSED(MOEPAGE_E_ARGUMENT, files[1] = NULL, "files[1] is NULL");
    EXPECT_REFUSED(MOEPAGE_E_NOT_FOUND, strcat(paths[1], ".none"), "b.bin.none|cannot open");
    EXPECT_REFUSED(MOEPAGE_E_NOT_FOUND, files[0] = "", "cannot open");
    EXPECT_REFUSED(MOEPAGE_E_FORMAT, files[1] = dir, "not a regular file");
}

static void test_bank_files_refuse_files_that_are_too_short(void **state)
{
    (void)state;
    const char *const last = "layer 1, expert 1, tensor 1: its 24 bytes at";
    EXPECT_REFUSED(MOEPAGE_E_FORMAT, places[7].offset++, last);
    expect_sentence("24 bytes at 73 do not fit b.bin, which has 96");
    EXPECT_REFUSED(MOEPAGE_E_FORMAT, places[7].offset = 97, last);
    EXPECT_REFUSED(MOEPAGE_E_FORMAT, places[7].offset = UINT64_MAX, last);
    EXPECT_REFUSED(MOEPAGE_E_FORMAT, places[7].offset = UINT64_MAX - SIZE + 1, last);
    EXPECT_REFUSED(MOEPAGE_E_FORMAT, maker_write(dir, "b.bin", "", 0),
                   "layer 0, expert 0, tensor 1: its 24 bytes at 0 do not fit b.bin, which has 0");
}

/* A layer's tensors have that layer's sizes. */
static void test_bank_files_measure_each_layer_by_its_own_types(void **state)
{
    (void)state;
    banks.tensors = NULL;
    banks.layer_tensors = tensors;
    tensors[TENSORS + 1].dtype = MOEPAGE_DTYPE_F16; /* layer 1's down takes half of what there is */
    expect_opened();
    places[7].offset += SIZE / 2;
    expect_opened();
    tensors[1].dtype = MOEPAGE_DTYPE_F16;
    tensors[TENSORS + 1].dtype = MOEPAGE_DTYPE_F32;
    expect_refusal(MOEPAGE_E_FORMAT, "layer 1, expert 1, tensor 1: its 24 bytes at 84 do not fit");
}

static void test_bank_files_come_with_places_and_alone(void **state)
{
    (void)state;
    static const void *data[PLACES];
    const char *together = "places, files and n_files must be set together";
    const char *more = "more than one of data, read and places is set";
    EXPECT_REFUSED(MOEPAGE_E_ARGUMENT, banks.files = NULL, together);
    EXPECT_REFUSED(MOEPAGE_E_ARGUMENT, banks.n_files = 0, together);
    EXPECT_REFUSED(MOEPAGE_E_ARGUMENT, banks.places = NULL, "none of data, read and places is set");
    EXPECT_REFUSED(MOEPAGE_E_ARGUMENT, banks.data = data, more);
    EXPECT_REFUSED(MOEPAGE_E_ARGUMENT, (banks.places = NULL, banks.data = data), together);
    banks.n_files = 0;
    expect_refusal(MOEPAGE_E_ARGUMENT, together);
    banks.files = NULL;
    for (uint32_t i = 0; i < PLACES; i++)
        data[i] = paths;
    expect_opened();
}

/* Experts may share bytes; a file may be named twice, or hold nothing. */
static void test_bank_files_may_overlap(void **state)
{
    unsigned char slot[1024];
    const uint32_t descriptors = count_descriptors();
    moepage_model *model = NULL;
    (void)state;
    memset(places, 0, sizeof places);
    places[5].file = 1;
    files[1] = files[0];
    assert_int_equal(moepage_model_open_banks(&banks, NULL, &model), MOEPAGE_OK);
    assert_int_equal(count_descriptors(), descriptors + (has_direct_reads(paths[0]) ? 4 : 2));
    for (uint32_t e = 0; e < FEW; e++) {
        assert_int_equal(moepage_model_read_expert(model, 1, e, slot, sizeof slot), MOEPAGE_OK);
        for (uint32_t i = 0; i < SIZE; i++)
            assert_true(slot[i] == 1 && slot[256 + i] == 1);
    }
    assert_int_equal(moepage_model_close(model), MOEPAGE_OK);
    assert_int_equal(count_descriptors(), descriptors);
}

int main(void)
{
#define CASE(f) cmocka_unit_test_setup_teardown(f, make, unmake)
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_bank_files_are_read_where_the_places_say),
        cmocka_unit_test(test_bank_files_fill_the_slots_of_plans),
        cmocka_unit_test(test_bank_files_are_computed_with),
        CASE(test_bank_files_refuse_places_in_no_file),
        CASE(test_bank_files_refuse_files_that_cannot_be_opened),
        CASE(test_bank_files_refuse_files_that_are_too_short),
        CASE(test_bank_files_measure_each_layer_by_its_own_types),
        CASE(test_bank_files_come_with_places_and_alone),
        CASE(test_bank_files_may_overlap),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
