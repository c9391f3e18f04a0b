/* The public handle: its life, the routers it reads, and its file, byte by byte. */
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "bank_model.h"
#include "features/shared_predictor.h"
#include "numbers.h"
#include "predict_model.h"
#include "testing.h"

static predict_model made;

static int make(void **state)
{
    (void)state;
    predict_model_open(&made);
    return 0;
}

static int unmake(void **state)
{
    (void)state;
    predict_model_close(&made);
    return 0;
}

static void expect(moepage_status found, moepage_status status, const char *words)
{
    if (found != status)
        fail_msg("status %d, not %d: %s", found, status, moepage_last_error());
    if (status)
        expect_sentence(words);
}

static moepage_predictor *create(const char *name)
{
    moepage_predictor_config config = {.struct_size = sizeof config, .name = name};
    moepage_predictor *predictor = NULL;
    expect(moepage_predictor_create(made.model, &config, &predictor), MOEPAGE_OK, "");
    assert_non_null(predictor);
    return predictor;
}

static void destroy(moepage_predictor *predictor)
{
    assert_int_equal(moepage_predictor_destroy(predictor), MOEPAGE_OK);
}

static moepage_predictor_info info_of(moepage_predictor *predictor)
{
    moepage_predictor_info info = {.struct_size = sizeof info};
    assert_int_equal(moepage_predictor_get_info(predictor, &info), MOEPAGE_OK);
    return info;
}

/* `n` passes of one request: layer 0 to {0, 1}, layer 1 to {2, i % 4}. */
static void teach(moepage_predictor *predictor, uint32_t n)
{
    mp_predict_context context = {0};
    assert_int_equal(mp_predictor_context_open(predictor, &context), MOEPAGE_OK);
    mp_predictor_request(predictor, &context);
    for (uint32_t i = 0; i < n; i++) {
        const uint32_t first[] = {0, 1}, second[] = {2, i % 2 ? 3 : 1};
        mp_seen seen = {.layer = 0, .n_experts = 2, .experts = first};
        mp_guess guesses[MOE_EXPERTS];
        mp_predictor_begin(predictor, &context, NULL);
        mp_predictor_observe(predictor, &context, &seen);
        mp_predictor_predict(predictor, &context, 1, guesses, NULL);
        seen = (mp_seen){.layer = 1, .n_experts = 2, .experts = second};
        mp_predictor_observe(predictor, &context, &seen);
        mp_predictor_end(predictor, &context);
    }
    mp_predictor_context_close(&context);
}

/* ---- Life -------------------------------------------------------------------------------- */

static void test_predictor_is_what_its_config_says(void **state)
{
    (void)state;
    for (uint32_t i = 0; mp_predictor_name(i); i++) {
        moepage_predictor *predictor = create(mp_predictor_name(i));
        moepage_predictor_info info = info_of(predictor);
        assert_string_equal(info.name, mp_predictor_name(i));
        assert_int_equal(info.distance, 2); /* 3, but for two layers */
        assert_true(info.bytes >= sizeof *predictor);
        assert_true(info.iterations == 0 && info.asked == 0);
        assert_int_equal((uintptr_t)predictor->state % 64, 0);
        teach(predictor, 3);
        info = info_of(predictor);
        assert_true(info.iterations == 3 && info.asked == 3);
        destroy(predictor);
    }
    moepage_predictor *predictor = NULL;
    expect(moepage_predictor_create(made.model, NULL, &predictor), MOEPAGE_OK, "");
    assert_string_equal(info_of(predictor).name, "maps");
    assert_int_equal(predictor->config.capacity, 1024);
    destroy(predictor);
}

static void test_predictor_refuses_what_it_cannot_be(void **state)
{
    (void)state;
    moepage_predictor *predictor = NULL;
    moepage_predictor_config config = {.struct_size = sizeof config, .name = "oracle"};
    expect(moepage_predictor_create(made.model, &config, &predictor), MOEPAGE_E_NOT_FOUND,
           "oracle|none, previous, hit-count, gate, coactivation, maps");
    config = (moepage_predictor_config){.struct_size = sizeof config, .distance = 3};
    expect(moepage_predictor_create(made.model, &config, &predictor), MOEPAGE_E_ARGUMENT,
           "distance is 3|2 MoE layers");
    config = (moepage_predictor_config){.struct_size = sizeof config, .semantic_dim = 1u << 20};
    expect(moepage_predictor_create(made.model, &config, &predictor), MOEPAGE_E_ARGUMENT,
           "semantic_dim is 1048576|below 1048576");
    expect(moepage_predictor_create(made.model, NULL, NULL), MOEPAGE_E_ARGUMENT, "out is NULL");
    expect(moepage_predictor_create(NULL, NULL, &predictor), MOEPAGE_E_ARGUMENT, "model");
    config.struct_size = 4;
    expect(moepage_predictor_create(made.model, &config, &predictor), MOEPAGE_E_VERSION,
           "struct_size");
    assert_null(predictor);
}

static void test_predictor_refuses_misuse(void **state)
{
    (void)state;
    moepage_predictor *predictor = create("hit-count"), *other = NULL;
    moepage_predictor_info info = {.struct_size = sizeof info};
    void *foreign = made.model;
    assert_int_equal(moepage_predictor_destroy(NULL), MOEPAGE_OK);
    expect(moepage_predictor_destroy(foreign), MOEPAGE_E_HANDLE, "is a model|predictor is needed");
    expect(moepage_predictor_get_info(foreign, &info), MOEPAGE_E_HANDLE, "predictor");
    expect(moepage_predictor_save(foreign, made.path), MOEPAGE_E_HANDLE, "predictor");
    expect(moepage_predictor_load(foreign, made.path), MOEPAGE_E_HANDLE, "predictor");
    expect(moepage_predictor_get_info(NULL, &info), MOEPAGE_E_ARGUMENT, "predictor|NULL");
    expect(moepage_predictor_get_info(predictor, NULL), MOEPAGE_E_ARGUMENT, "info is NULL");
    expect(moepage_predictor_save(predictor, NULL), MOEPAGE_E_ARGUMENT, "path is NULL");
    expect(moepage_predictor_load(predictor, ""), MOEPAGE_E_ARGUMENT, "path is empty");
    expect(moepage_predictor_create((void *)predictor, NULL, &other), MOEPAGE_E_HANDLE,
           "is a predictor");
    destroy(predictor);
}

static void test_predictor_stays_while_it_is_used(void **state)
{
    (void)state;
    moepage_predictor *predictor = create("gate");
    moepage_model_info info = made.model->info;
    expect(mp_predictor_hold(predictor, &info), MOEPAGE_OK, "");
    expect(mp_predictor_hold(predictor, &info), MOEPAGE_OK, "");
    expect(moepage_predictor_destroy(predictor), MOEPAGE_E_BUSY,
           "2 sessions or controllers still use");
    info.experts++;
    expect(mp_predictor_hold(predictor, &info), MOEPAGE_E_ARGUMENT, "2 layers of 4|2 of 5");
    info = made.model->info;
    info.hidden++;
    expect(mp_predictor_hold(predictor, &info), MOEPAGE_E_ARGUMENT, "routers");
    mp_predictor_release(predictor);
    expect(moepage_predictor_destroy(predictor), MOEPAGE_E_BUSY,
           "1 session or controller still uses");
    mp_predictor_release(predictor);
    destroy(predictor);
}

/* ---- Routers ----------------------------------------------------------------------------- */

static void reopen(void)
{
    assert_int_equal(moepage_model_close(made.model), MOEPAGE_OK);
    moe_maker_write(&made.maker);
    made.model = moe_expect_open(&made.maker);
}

static void expect_widened(const float *values, const moepage_tensor_view *view)
{
    for (uint64_t i = 0; i < view->shape[0] * (view->rank > 1 ? view->shape[1] : 1); i++)
        assert_true(values[i] == num_get(view->dtype, view->data, i));
}

static void test_predictor_gate_reads_routers_of_every_dtype(void **state)
{
    (void)state;
    static const char *const dtypes[] = {"BF16", "F16", "F32"};
    static const uint32_t types[] = {MOEPAGE_DTYPE_BF16, MOEPAGE_DTYPE_F16, MOEPAGE_DTYPE_F32};
    const uint64_t shape[] = {MOE_EXPERTS, MOE_HIDDEN};
    for (uint32_t d = 0; d < 3; d++) {
        for (uint32_t l = 0; l < MOE_LAYERS; l++) {
            char name[64];
            snprintf(name, sizeof name, "model.layers.%u.mlp.gate.weight", l);
            maker_reshape(maker_find(&made.maker.shard, name), dtypes[d], 2, shape);
        }
        reopen();
        moepage_predictor *predictor = create("gate");
        assert_int_equal(predictor->config.hidden, MOE_HIDDEN);
        assert_null(predictor->config.gate_biases);
        for (uint32_t l = 0; l < MOE_LAYERS; l++) {
            char name[64];
            snprintf(name, sizeof name, "model.layers.%u.mlp.gate.weight", l);
            moepage_tensor_view view = {.struct_size = sizeof view};
            expect(moepage_model_find_tensor(made.model, name, &view), MOEPAGE_OK, "");
            assert_true(view.dtype == types[d] && view.shape[1] == MOE_HIDDEN);
            expect_widened(predictor->config.gates[l], &view);
        }
        destroy(predictor);
    }
}

/* Those of MoE layer i, where the first layer is dense, and a bias that is added to the logits. */
static void test_predictor_gate_reads_routers_of_other_architectures(void **state)
{
    (void)state;
    static const char *const dirs[] = {"tests/data/hf/gpt_oss", "tests/data/hf/deepseek_v3",
                                       "tests/data/hf/mixtral"};
    static const char *const names[] = {"mlp.router", "mlp.gate", "block_sparse_moe.gate"};
    for (uint32_t i = 0; i < 3; i++) {
        moepage_model *fixture = NULL;
        moepage_predictor *predictor = NULL;
        moepage_predictor_config config = {.struct_size = sizeof config, .name = "gate"};
        expect(moepage_model_open(dirs[i], NULL, &fixture), MOEPAGE_OK, "");
        expect(moepage_predictor_create(fixture, &config, &predictor), MOEPAGE_OK, "");
        assert_int_equal(predictor->config.gate_biases != NULL, i == 0);
        for (uint32_t l = 0; l < fixture->info.moe_layers; l++) {
            char name[64];
            moepage_tensor_view view = {.struct_size = sizeof view};
            int layer = moepage_model_layer_index(fixture, l);
            snprintf(name, sizeof name, "model.layers.%d.%s.weight", layer, names[i]);
            expect(moepage_model_find_tensor(fixture, name, &view), MOEPAGE_OK, "");
            expect_widened(predictor->config.gates[l], &view);
            if (i)
                continue;
            snprintf(name, sizeof name, "model.layers.%d.%s.bias", layer, names[i]);
            expect(moepage_model_find_tensor(fixture, name, &view), MOEPAGE_OK, "");
            expect_widened(predictor->config.gate_biases[l], &view);
        }
        assert_int_equal(moepage_model_close(fixture), MOEPAGE_OK); /* it has its own copy */
        destroy(predictor);
    }
}

static void test_predictor_gate_needs_routers(void **state)
{
    (void)state;
    const bank_shape shape = {
        .layers = 2, .experts = 3, .top_k = 1, .hidden = 8, .intermediate = 4};
    bank_model bank;
    bank_model_open(&bank, &shape);
    moepage_predictor *predictor = NULL;
    moepage_predictor_config config = {.struct_size = sizeof config, .name = "gate"};
    expect(moepage_predictor_create(bank.model, &config, &predictor), MOEPAGE_E_UNSUPPORTED,
           "\"gate\"|routers|\"banks\"");
    assert_null(predictor);
    config.name = "coactivation";
    expect(moepage_predictor_create(bank.model, &config, &predictor), MOEPAGE_OK, "");
    destroy(predictor);
    bank_model_close(&bank);
}

/* ---- Files ------------------------------------------------------------------------------- */

static const char *const learners[] = {"hit-count", "coactivation"};

/* What the predictor would save. */
static unsigned char *learnt(moepage_predictor *predictor, uint64_t *n)
{
    *n = predictor->kind->save_bytes(predictor->state);
    unsigned char *bytes = calloc(1, *n);
    assert_non_null(bytes);
    predictor->kind->save(predictor->state, bytes);
    return bytes;
}

static void expect_same(moepage_predictor *a, moepage_predictor *b)
{
    uint64_t n, m;
    unsigned char *x = learnt(a, &n), *y = learnt(b, &m);
    assert_int_equal(n, m);
    assert_memory_equal(x, y, n);
    assert_int_equal(info_of(a).iterations, info_of(b).iterations);
    free(x);
    free(y);
}

static void test_predictor_file_keeps_what_was_learnt(void **state)
{
    (void)state;
    for (uint32_t i = 0; i < 2; i++) {
        moepage_predictor *first = create(learners[i]), *second = create(learners[i]);
        teach(first, 5);
        teach(second, 2);
        expect(moepage_predictor_save(second, made.path), MOEPAGE_OK, "");
        expect(moepage_predictor_save(first, made.path), MOEPAGE_OK, ""); /* in its place */
        expect(moepage_predictor_load(second, made.path), MOEPAGE_OK, "");
        expect_same(first, second);
        teach(first, 3);
        teach(second, 3);
        expect_same(first, second);
        destroy(first);
        destroy(second);
    }
}

/* Every byte of the file of `n` changed, one too many, every length cut; in place, for rewriting a
 * file makes some file systems wait for the disk. */
static void expect_damage_found(moepage_predictor *predictor, const unsigned char *bytes, size_t n)
{
    const unsigned char more = 0;
    int fd = open(made.path, O_RDWR);
    assert_true(fd >= 0);
    for (size_t at = 0; at < n; at++) {
        unsigned char other = bytes[at] ^ (unsigned char)(1u << at % 8);
        assert_int_equal(pwrite(fd, &other, 1, (off_t)at), 1);
        expect(moepage_predictor_load(predictor, made.path), MOEPAGE_E_FORMAT, made.path);
        assert_int_equal(pwrite(fd, bytes + at, 1, (off_t)at), 1);
    }
    assert_int_equal(pwrite(fd, &more, 1, (off_t)n), 1);
    expect(moepage_predictor_load(predictor, made.path), MOEPAGE_E_FORMAT, made.path);
    for (size_t length = n; length-- > 0;) {
        assert_int_equal(ftruncate(fd, (off_t)length), 0);
        expect(moepage_predictor_load(predictor, made.path), MOEPAGE_E_FORMAT, made.path);
    }
    assert_int_equal(pwrite(fd, bytes, n, 0), n);
    close(fd);
}

static void test_predictor_file_is_whole_or_refused(void **state)
{
    (void)state;
    for (uint32_t i = 0; i < 2; i++) {
        moepage_predictor *first = create(learners[i]), *second = create(learners[i]),
                          *third = create(learners[i]);
        size_t n;
        teach(first, 5);
        teach(second, 2);
        teach(third, 2);
        expect(moepage_predictor_save(first, made.path), MOEPAGE_OK, "");
        unsigned char *bytes = maker_read(made.maker.dir, "learnt", &n);
        expect_damage_found(second, bytes, n);
        expect_same(second, third);
        expect(moepage_predictor_load(second, made.path), MOEPAGE_OK, "");
        expect_same(second, first);
        free(bytes);
        destroy(first);
        destroy(second);
        destroy(third);
    }
}

static void test_predictor_file_of_another_is_refused(void **state)
{
    (void)state;
    const bank_shape shape = {
        .layers = 2, .experts = 3, .top_k = 1, .hidden = 8, .intermediate = 4};
    bank_model bank;
    moepage_predictor *counts = create("hit-count"), *pairs = create("coactivation"), *small = NULL;
    moepage_predictor_config config = {.struct_size = sizeof config, .name = "hit-count"};
    bank_model_open(&bank, &shape);
    expect(moepage_predictor_create(bank.model, &config, &small), MOEPAGE_OK, "");
    expect(moepage_predictor_save(counts, made.path), MOEPAGE_OK, "");
    expect(moepage_predictor_load(pairs, made.path), MOEPAGE_E_ARGUMENT,
           "\"hit-count\"|not of \"coactivation\"");
    expect(moepage_predictor_load(small, made.path), MOEPAGE_E_ARGUMENT, "2 layers of 4|2 of 3");
    destroy(small);
    config.semantic_dim = 7;
    expect(moepage_predictor_create(made.model, &config, &small), MOEPAGE_OK, "");
    expect(moepage_predictor_load(small, made.path), MOEPAGE_E_ARGUMENT, "semantic_dim 0|7");
    destroy(small);
    destroy(counts);
    destroy(pairs);
    bank_model_close(&bank);
}

static void test_predictor_file_may_be_no_file(void **state)
{
    (void)state;
    moepage_predictor *predictor = create("hit-count"), *gate = create("gate");
    expect(moepage_predictor_load(predictor, made.path), MOEPAGE_E_NOT_FOUND, made.path);
    expect(moepage_predictor_load(predictor, made.maker.dir), MOEPAGE_E_FORMAT, made.maker.dir);
    expect(moepage_predictor_save(predictor, made.maker.dir), MOEPAGE_E_ARGUMENT, made.maker.dir);
    expect(moepage_predictor_save(predictor, "/nowhere/at/all"), MOEPAGE_E_NOT_FOUND, "/nowhere");
    expect(moepage_predictor_save(gate, made.path), MOEPAGE_E_UNSUPPORTED,
           "\"gate\" learns nothing");
    expect(moepage_predictor_load(gate, made.path), MOEPAGE_E_UNSUPPORTED,
           "\"gate\" learns nothing");
    assert_int_equal(access(made.path, F_OK), -1);
    /* Far more than could ever have been kept is not read. */
    maker_write(made.maker.dir, "learnt", "MPREDICT", 8);
    assert_int_equal(truncate(made.path, 1ll << 40), 0);
    expect(moepage_predictor_load(predictor, made.path), MOEPAGE_E_FORMAT, "1099511627776 bytes");
    destroy(predictor);
    destroy(gate);
}

/* ---- Right-sizing ------------------------------------------------------------------------ */

static void test_predictor_rightsize_of_a_small_table(void **state)
{
    (void)state;
    moepage_predictor *predictor = create("coactivation"), *counts = create("hit-count");
    moepage_rightsize size = {.struct_size = sizeof size, .coverage = 0.5};
    expect(moepage_predictor_rightsize(predictor, &size), MOEPAGE_E_STATE, "learnt nothing");
    expect(moepage_predictor_rightsize(counts, &size), MOEPAGE_E_UNSUPPORTED, "\"hit-count\"");
    expect(moepage_predictor_rightsize(predictor, NULL), MOEPAGE_E_ARGUMENT, "size is NULL");
    /* 40 choices: 0, 1 and 2 ten times each, (1,1) and (1,3) five times. */
    teach(predictor, 10);
    expect(moepage_predictor_rightsize(predictor, &size), MOEPAGE_OK, "");
    const uint64_t slot = made.model->info.slot_bytes;
    assert_true(size.layers == 2 && size.experts == 2 && size.bytes == 2 * slot);
    assert_true(size.freed == 6 * slot && size.unseen == 0 && size.coverage == 0.5);
    size.coverage = 0;
    expect(moepage_predictor_rightsize(predictor, &size), MOEPAGE_OK, "");
    assert_true(size.experts == 5 && size.freed == 3 * slot && size.coverage == 0.99);
    size.coverage = 1;
    expect(moepage_predictor_rightsize(predictor, &size), MOEPAGE_E_ARGUMENT, "coverage is 1");
    size.coverage = 0.0 / 0.0;
    expect(moepage_predictor_rightsize(predictor, &size), MOEPAGE_E_ARGUMENT, "coverage");
    destroy(predictor);
    destroy(counts);
}

#define EACH(test) cmocka_unit_test_setup_teardown(test, make, unmake)

int main(void)
{
    const struct CMUnitTest tests[] = {
        EACH(test_predictor_is_what_its_config_says),
        EACH(test_predictor_refuses_what_it_cannot_be),
        EACH(test_predictor_refuses_misuse),
        EACH(test_predictor_stays_while_it_is_used),
        EACH(test_predictor_gate_reads_routers_of_every_dtype),
        EACH(test_predictor_gate_reads_routers_of_other_architectures),
        EACH(test_predictor_gate_needs_routers),
        EACH(test_predictor_file_keeps_what_was_learnt),
        EACH(test_predictor_file_is_whole_or_refused),
        EACH(test_predictor_file_of_another_is_refused),
        EACH(test_predictor_file_may_be_no_file),
        EACH(test_predictor_rightsize_of_a_small_table),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
