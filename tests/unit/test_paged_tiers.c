/* A PagedTensor's steady state, and what feeds it: the compressed tier, the host tier, and an arena that it
 * shares with a KV pool. */
#include <string.h>

#include "gpu.h"
#include "kv_tokens.h"
#include "paged_case.h"
#include "paged_tensor/paged.h"
#include "testing.h"

static const bank_shape coded = {.layers = 6,
                                 .experts = 4,
                                 .top_k = 2,
                                 .hidden = 64,
                                 .intermediate = 64,
                                 .bias = true,
                                 .dtype = MOEPAGE_DTYPE_BF16,
                                 .pack_forms = 1u << MOEPAGE_FORM_EXPH};

/* A step of a host: each layer in turn, the one after the next requested behind it. */
static void run_step(uint32_t layers, uint32_t ahead)
{
    for (uint32_t i = 0; i < layers; i++) {
        visit(i);
        OK(materialise((i + ahead) % layers));
    }
}

static void begin(uint32_t ahead)
{
    for (uint32_t i = 0; i < ahead; i++)
        OK(materialise(i));
}

/* ---- views ---- */

static uint64_t driver_calls(void)
{
    return rig.where == PAGED_ON_SIM ? atomic_load(&mp_cuda_of(rig.device->device)->memory_calls)
                                     : 0;
}

static void test_paged_views_are_mapped_once_where_buffers_divide_the_layers(void **state)
{
    (void)state;
    static const paged_where where[] = {PAGED_ON_HOST, PAGED_LATE, PAGED_ON_SIM};
    for (uint32_t w = 0; w < 3; w++)
        for (uint32_t buffers = 2; buffers <= 3; buffers++) {
            paged_rig_open(&rig, &coded,
                           &(paged_rig_config){.where = where[w], .buffers = buffers});
            begin(buffers);
            run_step(coded.layers, buffers);
            paged_rig_idle(&rig);
            unsigned char *bytes = paged_rig_alloc(&rig);
            uint64_t calls = driver_calls();
            assert_int_equal(paged_rig_info(&rig).mappings, coded.layers);
            for (uint32_t turn = 0; turn < 3 * coded.layers; turn++) {
                const uint32_t layer = turn % coded.layers;
                OK(acquire(layer));
                paged_rig_read(&rig, layer, bytes);
                OK(release(layer));
                OK(materialise((layer + buffers) % coded.layers));
                paged_rig_wait(&rig);
                assert_true(paged_rig_is_layer(&rig, layer, bytes));
            }
            paged_rig_idle(&rig);
            assert_int_equal(paged_rig_info(&rig).mappings, coded.layers);
            assert_int_equal(driver_calls(), calls);
            paged_rig_free(&rig, bytes);
            for (uint32_t i = 0; i < coded.layers; i++)
                assert_true(paged_rig_all_readable(&rig, i));
            paged_rig_check(&rig);
            paged_rig_close(&rig);
        }
}

static void test_paged_views_follow_their_buffers_where_these_change(void **state)
{
    (void)state;
    bank_shape odd = coded;
    odd.layers = 5;
    paged_rig_open(&rig, &odd, &(paged_rig_config){0});
    begin(2);
    for (uint32_t step = 0; step < 4;
         step++) /* with two buffers each layer's changes from step to step */
        run_step(odd.layers, 2);
    paged_rig_idle(&rig);
    assert_true(paged_rig_info(&rig).mappings >= 4 * odd.layers);
    paged_rig_close(&rig);
}

/* ---- compressed experts ---- */

static void test_paged_compressed_experts_need_no_bus(void **state)
{
    (void)state;
    const uint32_t steps = 3, compressed = 3, experts = coded.experts;
    paged_rig_open(&rig, &coded, &(paged_rig_config){.compressed = experts});
    paged_rig_resize(&rig, compressed);
    begin(2);
    moepage_paged_info before = paged_rig_info(&rig);
    assert_int_equal(before.compressed_experts, compressed);
    for (uint32_t step = 0; step < steps; step++)
        run_step(coded.layers, 2);
    paged_rig_idle(&rig);
    moepage_paged_info after = paged_rig_info(&rig);
    const uint64_t loads = steps * coded.layers + 2; /* two are ahead */
    assert_int_equal(after.compressed_loads, loads * compressed);
    assert_int_equal(after.decodes, loads * experts);
    uint64_t one = 0; /* the images that cross the bus: those of one expert of each layer */
    paged_rig_resize(&rig, experts);
    run_step(coded.layers, 2);
    paged_rig_idle(&rig);
    while (paged_rig_info(&rig).compressed_experts < experts)
        paged_rig_idle(&rig);
    run_step(coded.layers, 2); /* the last two were requested before */
    one = paged_rig_info(&rig).loaded_bytes;
    run_step(coded.layers, 2);
    assert_int_equal(paged_rig_info(&rig).loaded_bytes, one);
    paged_rig_check(&rig);
    paged_rig_close(&rig);
}

static void test_paged_compressed_experts_come_and_go_while_layers_do(void **state)
{
    (void)state;
    static const paged_where where[] = {PAGED_ON_HOST, PAGED_LATE, PAGED_ON_SIM};
    static const uint32_t numbers[] = {4, 0, 2, 3, 1, 4, 0, 1};
    for (uint32_t w = 0; w < 3; w++) {
        paged_rig_open(&rig, &coded, &(paged_rig_config){.where = where[w], .compressed = 4});
        begin(2);
        for (uint32_t i = 0; i < 8; i++) {
            paged_rig_resize(&rig, numbers[i]);
            run_step(coded.layers, 2);
            paged_rig_check(&rig);
        }
        paged_rig_close(&rig);
    }
}

static void test_paged_compressed_experts_are_refused_with_a_reason(void **state)
{
    (void)state;
    moepage_paged_config config = {.struct_size = sizeof config, .compressed_experts = 1};
    moepage_paged *paged = NULL;
    paged_rig_open(&rig, &coded, &(paged_rig_config){.compressed = 1});
    REFUSED(moepage_paged_resize(rig.paged, 5), ARGUMENT);
    SAYS("a layer has 4");
    REFUSED(moepage_paged_resize(rig.paged, 4), BUDGET);
    SAYS("4 compressed experts per layer");
    assert_int_equal(paged_rig_info(&rig).compressed_target, 1);
    paged_rig_check(&rig);
    paged_rig_close(&rig);

    paged_rig_open(&rig, &plain, &(paged_rig_config){0}); /* no EXPH */
    REFUSED(moepage_paged_resize(rig.paged, 1), UNSUPPORTED);
    OK(moepage_paged_resize(rig.paged, 0));
    OK(moepage_paged_destroy(rig.paged));
    rig.paged = NULL;
    REFUSED(moepage_paged_create(rig.device, rig.bank.model, &config, &paged), UNSUPPORTED);
    config.compressed_experts = 0;
    config.bus_form = MOEPAGE_FORM_EXPH;
    REFUSED(moepage_paged_create(rig.device, rig.bank.model, &config, &paged), UNSUPPORTED);
    config.bus_form = 77;
    REFUSED(moepage_paged_create(rig.device, rig.bank.model, &config, &paged), ARGUMENT);
    paged_rig_close(&rig);

    bank_shape odd = coded;
    odd.intermediate = 61;
    paged_rig_open_device(&rig, &odd, &(paged_rig_config){0});
    config.bus_form = MOEPAGE_FORM_EXPH;
    REFUSED(moepage_paged_create(rig.device, rig.bank.model, &config, &paged), UNSUPPORTED);
    SAYS("no multiple of 16");
    paged_rig_close(&rig);
}

/* ---- the host tier ---- */

/* What does not fit is read again in each step, and so may be what the two layers under way displace; all other
 * entries stay. (The least recently used one would be the next to be needed: everything would be read.) */
static void test_paged_host_tier_keeps_what_is_needed_soonest(void **state)
{
    (void)state;
    bank_shape shape = coded;
    shape.pack_forms = 1u << MOEPAGE_FORM_DENSE;
    shape.cold_level = 1;
    const uint32_t keys = shape.layers * shape.experts;
    for (uint32_t entries = 1; entries <= keys; entries += 5) {
        paged_rig_open(&rig, &shape, &(paged_rig_config){.host_tier = entries});
        assert_int_equal(paged_rig_info(&rig).host_tier_experts, entries);
        begin(2);
        for (uint32_t step = 0; step < 3; step++)
            run_step(shape.layers, 2);
        paged_rig_idle(&rig);
        uint64_t before = paged_rig_info(&rig).cold_reads;
        for (uint32_t step = 0; step < 8; step++)
            run_step(shape.layers, 2);
        paged_rig_idle(&rig);
        uint64_t reads = paged_rig_info(&rig).cold_reads - before;
        uint32_t moving = 2 * shape.experts, staying = entries > moving ? entries - moving : 0;
        /* The two layers ahead may or may not have been read when the count begins, and when it ends. */
        assert_true(reads + moving >= 8 * (keys - entries));
        assert_true(reads <= 8 * (keys - staying) + moving);
        paged_rig_check(&rig);
        paged_rig_close(&rig);
    }
}

/* ---- beside KV ---- */

enum { KV_LAYERS = 2, TOKENS = 4 };
static const uint32_t bytes_per_token[KV_LAYERS] = {512, 512};
static moepage_kv_pool *kv;
static kv_tokens tokens;
static uint64_t tags[512];

static void open_kv(uint64_t blocks)
{
    moepage_kv_pool_config config = {.struct_size = sizeof config,
                                     .block_tokens = TOKENS,
                                     .layers = KV_LAYERS,
                                     .blocks_per_granule = 1,
                                     .bytes_per_token = bytes_per_token,
                                     .blocks = blocks};
    OK(moepage_kv_pool_create(rig.device, &config, &kv));
    kv_tokens_open(&tokens, kv, KV_LAYERS, bytes_per_token);
    for (uint32_t i = 0; i < 512; i++)
        tags[i] = 1000 + i;
}

static moepage_seq fill(uint64_t blocks)
{
    moepage_seq seq;
    OK(moepage_kv_create(kv, &seq));
    OK(moepage_kv_append(kv, seq, blocks * TOKENS, NULL));
    kv_tokens_write(&tokens, seq, 0, blocks * TOKENS, tags);
    return seq;
}

static moepage_controller_report balance(void)
{
    moepage_controller_report report = {.struct_size = sizeof report};
    do
        OK(moepage_paged_balance(rig.paged, kv, 100, NULL, &report));
    while (report.outcome == MOEPAGE_CONTROL_DRAINING);
    rig.used_bytes = rig.device->ledger.used; /* of both sides */
    return report;
}

static void share_the_arena(bool roomy)
{
    paged_rig_open(&rig, &coded, &(paged_rig_config){.compressed = 4, .roomy = roomy});
    paged_rig_resize(&rig, 0);
    open_kv(4);
    begin(2);
    moepage_controller_report report = balance(); /* no KV is used: all experts are kept */
    assert_int_equal(report.outcome, MOEPAGE_CONTROL_MOVED);
    assert_true(report.compressed_experts >= 3);
    uint32_t most = report.compressed_experts;
    run_step(coded.layers, 2);

    moepage_paged_info info = paged_rig_info(&rig);
    uint64_t images = info.arena_bytes / (most + 1); /* KV for more than an expert of each layer */
    uint64_t blocks = images / (TOKENS * 1024) + 4;
    while (moepage_paged_resize(rig.paged, 0) == MOEPAGE_E_BUSY) /* a burst that needs them */
        ;
    OK(moepage_split_set(NULL, kv, 0, blocks, NULL));
    moepage_seq seq = fill(blocks);
    report = balance();
    assert_true(report.compressed_experts < most);
    assert_true(report.kv_blocks >= blocks);
    run_step(coded.layers, 2);
    assert_true(kv_tokens_match(&tokens, seq, blocks * TOKENS, tags));
    moepage_seq more = fill(report.kv_blocks - blocks);
    assert_int_equal(balance().outcome, MOEPAGE_CONTROL_MOVED); /* headroom over the new peak */
    assert_true(kv_tokens_match(&tokens, seq, blocks * TOKENS, tags));
    OK(moepage_kv_free(kv, more));
    OK(moepage_kv_free(kv, seq));

    balance(); /* the peak is that of the burst that ends */
    report = balance();
    assert_int_equal(report.compressed_experts, most);
    run_step(coded.layers, 2);
    report = balance();
    assert_int_equal(report.outcome, MOEPAGE_CONTROL_STAYS);
    run_step(coded.layers, 2);
    OK(moepage_kv_pool_destroy(kv));
    paged_rig_close(&rig);
}

static void test_paged_shares_the_arena_with_kv(void **state)
{
    (void)state;
    share_the_arena(false);
}

static void test_paged_shares_no_more_than_the_budget_of_the_moment(void **state)
{
    (void)state;
    share_the_arena(true);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_paged_views_are_mapped_once_where_buffers_divide_the_layers),
        cmocka_unit_test(test_paged_views_follow_their_buffers_where_these_change),
        cmocka_unit_test(test_paged_compressed_experts_need_no_bus),
        cmocka_unit_test(test_paged_compressed_experts_come_and_go_while_layers_do),
        cmocka_unit_test(test_paged_compressed_experts_are_refused_with_a_reason),
        cmocka_unit_test(test_paged_host_tier_keeps_what_is_needed_soonest),
        cmocka_unit_test(test_paged_shares_the_arena_with_kv),
        cmocka_unit_test(test_paged_shares_no_more_than_the_budget_of_the_moment),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
