/* Experts in memory of another runtime's: what plans name lies there byte for byte, whatever it comes from, and is
 * written by the runtime alone; failures of that runtime are those of the loads; what it cannot do is refused. */
#include <sched.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

#include "bank_model.h"
#include "testing.h"

enum {
    LAYERS = 3,
    EXPERTS = 12,
    SLOTS = 9, /* a quarter of the experts */
    TOP_K = 3,
    STEPS = 60,
    NOT_OK = MOEPAGE_E_IO
};

/* The runtime: addresses that fault, and bytes that are kept elsewhere. */
typedef struct runtime {
    unsigned char *base, *bytes;
    uint64_t n;
    uint32_t n_allocs, n_frees;
    _Atomic uint32_t n_writes;
    _Atomic uint64_t longest; /* write */
    atomic_bool astray;       /* a write began at no multiple of 64 */
    atomic_bool fails;        /* to write */
    moepage_status fail_with; /* of alloc; OK = it works */
    uint64_t shift;           /* of the address that alloc gives */
} runtime;

static moepage_status runtime_alloc(void *user, uint64_t bytes, void **base)
{
    runtime *r = user;
    if (r->fail_with)
        return r->fail_with;
    r->n_allocs++;
    r->n = bytes;
    r->base = mmap(NULL, bytes, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    r->bytes = malloc(bytes);
    assert_true(r->base != MAP_FAILED && r->bytes);
    *base = r->base + r->shift;
    return MOEPAGE_OK;
}

static void runtime_free(void *user, void *base, uint64_t bytes)
{
    runtime *r = user;
    assert_ptr_equal(base, r->base + r->shift);
    assert_int_equal(bytes, r->n);
    assert_int_equal(munmap(r->base, bytes), 0);
    free(r->bytes);
    r->n_frees++;
}

static moepage_status runtime_write(void *user, void *to, const void *from, uint64_t bytes)
{
    runtime *r = user;
    const uint64_t offset = (uint64_t)((unsigned char *)to - r->base);
    assert_true(offset <= r->n && bytes <= r->n - offset);
    if (offset % 64)
        atomic_store(&r->astray, true);
    r->n_writes++;
    r->longest = bytes > r->longest ? bytes : r->longest;
    if (atomic_load(&r->fails))
        return NOT_OK;
    memcpy(r->bytes + offset, from, bytes);
    return MOEPAGE_OK;
}

static moepage_external_memory memory_of(runtime *r)
{
    return MOEPAGE_EXTERNAL_MEMORY(.alloc = runtime_alloc, .free = runtime_free,
                                   .write = runtime_write, .user = r);
}

static moepage_device_config config_of(const moepage_external_memory *memory, uint64_t arena)
{
    return MOEPAGE_DEVICE_CONFIG(.threads = 1, .workspace_bytes = 1 << 20,
                                 .budget_bytes = (1 << 20) + arena, .external = memory);
}

typedef struct stand {
    bank_model bank;
    runtime runtime;
    moepage_device *device;
    moepage_expert_pool *pool;
    moepage_session *session;
} stand;

/* `chunk_bytes`: of what comes ahead; 0 = the library's choice. */
static void open_stand(stand *s, const bank_shape *shape, uint64_t tier_experts,
                       uint32_t chunk_bytes)
{
    *s = (stand){0};
    bank_model_open(&s->bank, shape);
    const moepage_external_memory memory = memory_of(&s->runtime);
    moepage_model_info info = MOEPAGE_MODEL_INFO();
    assert_int_equal(moepage_model_get_info(s->bank.model, &info), MOEPAGE_OK);
    const moepage_device_config config =
        config_of(&memory, (SLOTS * info.slot_bytes + 4095) & ~4095ull);
    assert_int_equal(moepage_device_open("external", &config, &s->device), MOEPAGE_OK);
    const moepage_expert_pool_config pool =
        MOEPAGE_EXPERT_POOL_CONFIG(.slots = SLOTS, .bus_form = MOEPAGE_FORM_DENSE,
                                   .host_tier_bytes = tier_experts * info.slot_bytes,
                                   .chunk_bytes = chunk_bytes);
    assert_int_equal(moepage_expert_pool_create(&s->device, 1, s->bank.model, &pool, &s->pool),
                     MOEPAGE_OK);
    const moepage_session_config session =
        MOEPAGE_SESSION_CONFIG(.max_tokens = 4, .prefetch = MOEPAGE_PREFETCH_HINT);
    assert_int_equal(moepage_session_create(s->pool, NULL, &session, &s->session), MOEPAGE_OK);
}

static void close_stand(stand *s)
{
    assert_int_equal(moepage_session_destroy(s->session), MOEPAGE_OK);
    assert_int_equal(moepage_expert_pool_destroy(s->pool), MOEPAGE_OK);
    assert_int_equal(moepage_device_close(s->device), MOEPAGE_OK);
    bank_model_close(&s->bank);
    assert_int_equal(s->runtime.n_allocs, 1);
    assert_int_equal(s->runtime.n_frees, 1);
    assert_false(atomic_load(&s->runtime.astray));
}

/* Is the expert there, as the runtime sees it? */
static bool holds(const stand *s, uint32_t layer, const moepage_plan_expert *expert)
{
    const void *seen[MOEPAGE_MAX_EXPERT_TENSORS];
    for (uint32_t t = 0; t < s->bank.n_tensors; t++)
        seen[t] = s->runtime.bytes + ((const unsigned char *)expert->tensors[t] - s->runtime.base);
    return bank_model_matches(&s->bank, layer, expert->expert, seen);
}

/* One layer of a step; the plan's experts are checked if all goes well. */
static moepage_status visit(stand *s, uint32_t layer, const int32_t *ids)
{
    moepage_plan plan = MOEPAGE_PLAN();
    const moepage_routing routing = MOEPAGE_ROUTING(TOP_K, ids, NULL);
    moepage_status status = moepage_session_route(s->session, layer, &routing, &plan);
    if (!status) {
        assert_int_equal(plan.n_experts, TOP_K);
        for (uint32_t e = 0; e < plan.n_experts; e++)
            assert_true(holds(s, layer, &plan.experts[e]));
    }
    moepage_status end = moepage_session_retire(s->session, layer);
    return status ? status : end;
}

static void check_steps(stand *s)
{
    uint64_t random = 1;
    for (uint32_t step = 0; step < STEPS; step++) {
        assert_int_equal(moepage_session_begin(s->session, &MOEPAGE_STEP(1)), MOEPAGE_OK);
        for (uint32_t l = 0; l < LAYERS; l++) {
            int32_t ids[TOP_K];
            float weights[TOP_K];
            bank_model_route(&s->bank, &random, 1, TOP_K, false, ids, weights);
            assert_int_equal(visit(s, l, ids), MOEPAGE_OK);
        }
        assert_int_equal(moepage_session_end(s->session, NULL), MOEPAGE_OK);
    }
}

static bank_shape shape_of(void)
{
    return (bank_shape){.layers = LAYERS,
                        .experts = EXPERTS,
                        .top_k = TOP_K,
                        .hidden = 64,
                        .intermediate = 32,
                        .dtype = MOEPAGE_DTYPE_BF16,
                        .odd_dtype = MOEPAGE_DTYPE_F32,
                        .bias = true,
                        .seed = 5};
}

static void check_source(bank_shape shape, uint64_t tier_experts)
{
    stand *s = malloc(sizeof *s);
    assert_non_null(s);
    open_stand(s, &shape, tier_experts, 0);
    check_steps(s);
    assert_true(s->runtime.n_writes >= (uint32_t)SLOTS);
    close_stand(s);
    free(s);
}

static void test_external_holds_what_plans_name_whatever_it_comes_from(void **state)
{
    (void)state;
    bank_shape shape = shape_of();
    check_source(shape, 0);
    check_source(shape, 4);
    shape.callback = true;
    check_source(shape, 0);
    check_source(shape, 4);
    shape.callback = false;
    shape.files = true;
    check_source(shape, 0);
    check_source(shape, 4);
    shape.files = false;
    shape.pack_forms = 1u << MOEPAGE_FORM_DENSE;
    shape.cold_level = 3;
    check_source(shape, 4);
}

/* What a callback fills passes through memory of a mebibyte: an expert of more comes in parts. */
static void test_external_takes_large_tensors_in_parts(void **state)
{
    (void)state;
    bank_shape shape = shape_of();
    shape.callback = true;
    shape.hidden = 512;
    shape.intermediate = 300; /* 1.2 MiB of F32 for gate and up: no whole number of parts */
    shape.dtype = MOEPAGE_DTYPE_F32;
    stand *s = malloc(sizeof *s);
    assert_non_null(s);
    open_stand(s, &shape, 0, 0);
    check_steps(s);
    assert_int_equal(s->runtime.longest, 1 << 20);
    close_stand(s);
    free(s);
}

/* What is hinted comes in chunks, of which the last of a tensor may be shorter than a multiple of 64. */
static void test_external_takes_what_comes_ahead(void **state)
{
    (void)state;
    static const uint32_t chunk_bytes[] = {1, 100, 1000, 1 << 20};
    static const int32_t ids[TOP_K] = {1, 4, 11};
    stand *s = malloc(sizeof *s);
    assert_non_null(s);
    for (uint32_t i = 0; i < 2 * sizeof chunk_bytes / sizeof *chunk_bytes; i++) {
        bank_shape shape = shape_of();
        moepage_expert_pool_info info = MOEPAGE_EXPERT_POOL_INFO();
        shape.hidden = 72;
        shape.callback = i % 2;
        open_stand(s, &shape, 0, chunk_bytes[i / 2]);
        assert_int_equal(moepage_session_hint(s->session, 1, ids, TOP_K), MOEPAGE_OK);
        do {
            sched_yield();
            assert_int_equal(moepage_expert_pool_get_info(s->pool, &info), MOEPAGE_OK);
        } while (info.resident < TOP_K);
        assert_int_equal(moepage_session_begin(s->session, &MOEPAGE_STEP(1)), MOEPAGE_OK);
        assert_int_equal(visit(s, 1, ids), MOEPAGE_OK);
        assert_int_equal(moepage_session_end(s->session, NULL), MOEPAGE_OK);
        close_stand(s);
    }
    free(s);
}

static void test_external_failures_are_those_of_loads(void **state)
{
    (void)state;
    const bank_shape shape = shape_of();
    const int32_t ids[TOP_K] = {3, 7, 1};
    stand *s = malloc(sizeof *s);
    assert_non_null(s);
    open_stand(s, &shape, 0, 0);
    for (uint32_t l = 0; l < LAYERS; l++) {
        atomic_store(&s->runtime.fails, true);
        assert_int_equal(moepage_session_begin(s->session, &MOEPAGE_STEP(1)), MOEPAGE_OK);
        assert_int_equal(visit(s, l, ids), NOT_OK);
        assert_int_equal(moepage_session_cancel(s->session), MOEPAGE_OK);
        atomic_store(&s->runtime.fails, false);
        assert_int_equal(moepage_session_begin(s->session, &MOEPAGE_STEP(1)), MOEPAGE_OK);
        assert_int_equal(visit(s, l, ids), MOEPAGE_OK);
        assert_int_equal(moepage_session_cancel(s->session), MOEPAGE_OK);
    }
    check_steps(s);
    close_stand(s);
    free(s);
}

static void test_external_refuses_what_needs_kernels_or_reads(void **state)
{
    (void)state;
    bank_shape shape = shape_of();
    const int32_t ids[TOP_K] = {3, 7, 1};
    stand *s = malloc(sizeof *s);
    assert_non_null(s);
    open_stand(s, &shape, 0, 0);

    float x[64] = {1}, y[64] = {0};
    const float weights[TOP_K] = {1, 1, 1};
    const moepage_ffn ffn = {.struct_size = sizeof ffn, .dtype = MOEPAGE_DTYPE_F32, .x = x, .y = y};
    const moepage_routing routing = MOEPAGE_ROUTING(TOP_K, ids, weights);
    moepage_plan plan = MOEPAGE_PLAN();
    assert_int_equal(moepage_session_begin(s->session, &MOEPAGE_STEP(1)), MOEPAGE_OK);
    assert_int_equal(moepage_session_route(s->session, 0, &routing, &plan), MOEPAGE_OK);
    _Alignas(64) char operands[4 * TOP_K * 64];
    float out[TOP_K * 64];
    const moepage_product product = {.struct_size = sizeof product,
                                     .x = x,
                                     .x_rows = MOEPAGE_ROWS_TOKENS,
                                     .operands = operands,
                                     .out_rows = MOEPAGE_ROWS_GROUP,
                                     .out = out};
    assert_int_equal(moepage_session_convert(s->session, 0, &product, 0, 1), MOEPAGE_E_UNSUPPORTED);
    assert_int_equal(moepage_session_ffn(s->session, 0, &ffn), MOEPAGE_E_UNSUPPORTED);
    assert_non_null(strstr(moepage_last_error(), "no kernels"));
    assert_int_equal(moepage_session_cancel(s->session), MOEPAGE_OK);
    check_steps(s);

    const uint32_t bytes[] = {64};
    const moepage_kv_pool_config kv =
        MOEPAGE_KV_POOL_CONFIG(.layers = 1, .bytes_per_token = bytes, .blocks = 1);
    moepage_kv_pool *kv_pool = NULL;
    assert_int_equal(moepage_kv_pool_create(s->device, &kv, &kv_pool), MOEPAGE_E_UNSUPPORTED);
    moepage_paged *paged = NULL;
    const moepage_paged_config paged_config = MOEPAGE_PAGED_CONFIG();
    assert_int_equal(moepage_paged_create(s->device, s->bank.model, &paged_config, &paged),
                     MOEPAGE_E_UNSUPPORTED);
    close_stand(s);

    /* Compressed experts would have to be decoded. */
    shape.odd_dtype = 0;
    shape.pack_forms = 1u << MOEPAGE_FORM_EXPH;
    *s = (stand){0};
    bank_model_open(&s->bank, &shape);
    const moepage_external_memory memory = memory_of(&s->runtime);
    const moepage_device_config config = config_of(&memory, 1 << 20);
    const moepage_expert_pool_config pool = MOEPAGE_EXPERT_POOL_CONFIG(.slots = SLOTS);
    assert_int_equal(moepage_device_open("external", &config, &s->device), MOEPAGE_OK);
    assert_int_equal(moepage_expert_pool_create(&s->device, 1, s->bank.model, &pool, &s->pool),
                     MOEPAGE_E_UNSUPPORTED);
    assert_non_null(strstr(moepage_last_error(), "decodes nothing"));
    assert_int_equal(moepage_device_close(s->device), MOEPAGE_OK);
    bank_model_close(&s->bank);
    free(s);
}

static void test_external_refuses_memory_that_is_incomplete(void **state)
{
    (void)state;
    runtime r = {0};
    moepage_external_memory memory = memory_of(&r);
    moepage_device_config config = config_of(&memory, 1 << 20);
    moepage_device *device = NULL;
    assert_int_equal(moepage_device_open("host", &config, &device), MOEPAGE_E_ARGUMENT);
    assert_non_null(strstr(moepage_last_error(), "external is not NULL"));
    assert_int_equal(moepage_device_open("external:0", &config, &device), MOEPAGE_E_NOT_FOUND);
    config.external = NULL;
    assert_int_equal(moepage_device_open("external", &config, &device), MOEPAGE_E_ARGUMENT);
    config.external = &memory;
    memory.write = NULL;
    assert_int_equal(moepage_device_open("external", &config, &device), MOEPAGE_E_ARGUMENT);
    assert_non_null(strstr(moepage_last_error(), "write is NULL"));
    memory = memory_of(&r);
    memory.reserved = 1;
    assert_int_equal(moepage_device_open("external", &config, &device), MOEPAGE_E_ARGUMENT);
    memory = memory_of(&r);
    memory.struct_size--;
    assert_int_equal(moepage_device_open("external", &config, &device), MOEPAGE_E_VERSION);
    memory = memory_of(&r);
    r.fail_with = MOEPAGE_E_NO_MEMORY;
    assert_int_equal(moepage_device_open("external", &config, &device), MOEPAGE_E_NO_MEMORY);
    assert_int_equal(r.n_allocs, 0);
    r.fail_with = MOEPAGE_OK;
    r.shift = 4;
    assert_int_equal(moepage_device_open("external", &config, &device), MOEPAGE_E_ARGUMENT);
    assert_non_null(strstr(moepage_last_error(), "multiple"));
    assert_int_equal(r.n_allocs, r.n_frees);
    assert_null(device);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_external_holds_what_plans_name_whatever_it_comes_from),
        cmocka_unit_test(test_external_takes_large_tensors_in_parts),
        cmocka_unit_test(test_external_takes_what_comes_ahead),
        cmocka_unit_test(test_external_failures_are_those_of_loads),
        cmocka_unit_test(test_external_refuses_what_needs_kernels_or_reads),
        cmocka_unit_test(test_external_refuses_memory_that_is_incomplete),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
