/* What a pool's sessions did, and why they waited: worked out by hand, in a simulated machine's time;
 * and the counters of what was fetched ahead, refused, resized and read through the page cache. */
#include <string.h>

#include "arena/home.h"
#include "pool_rig.h"
#include "stack_rig.h"
#include "testing.h"

/* ---- a machine with times by hand ---- */

/* As in machine_rig.h: a transfer of a slot takes LOAD ns, a read of one from the cold tier READ; one
 * row of one expert takes ONE ns. */
enum { SLOT = 3 * 64 * 32 * 2, LOAD = 100 + SLOT, READ = 1000 + SLOT, ONE = 10 + 6 * 64 * 32 / 2 };

/* `exph_ratio`: of what crosses the bus to what it is decoded to; 0 = nothing is coded. */
static void open_coded(stack *s, uint64_t slots, uint64_t tier_experts, double exph_ratio)
{
    mp_phantom_shape shape = {.name = "small",
                              .layers = 2,
                              .moe_layers = 2,
                              .experts = 16,
                              .top_k = 3,
                              .hidden = 64,
                              .expert_intermediate = 32,
                              .dtype = MOEPAGE_DTYPE_BF16,
                              .exph_ratio = exph_ratio,
                              .cold = tier_experts > 0};
    moepage_expert_pool_config config = {.struct_size = sizeof config,
                                         .slots = slots,
                                         .host_tier_bytes = tier_experts * SLOT};
    mp_sim_profile profile = machine_profile();
    stack_open_shape(s, &shape);
    assert_int_equal(s->shape.slot_bytes, SLOT);
    stack_open_device(s, &profile, 1 << 20, 1 << 20);
    stack_open_pool(s, &config, 1);
}

static void open_stack(stack *s, uint64_t slots, uint64_t tier_experts)
{
    open_coded(s, slots, tier_experts, 0);
}

/* The caller's own work. */
static void work(stack *s, uint64_t ns)
{
    uint64_t began = stack_now_ns(s);
    mp_sim_work(s->device, 2.0 * (double)ns, 0);
    assert_int_equal(stack_now_ns(s) - began, ns);
}

static void expect_stalls(const moepage_session_stats *stats, uint64_t slot, uint64_t load,
                          uint64_t late, uint64_t cold)
{
    assert_int_equal(stats->stall_slot_ns, slot);
    assert_int_equal(stats->stall_load_ns, load);
    assert_int_equal(stats->stall_late_ns, late);
    assert_int_equal(stats->stall_cold_ns, cold);
    assert_int_equal(stats->stall_ns, slot + load + late + cold);
}

static moepage_expert_pool_info info_of(moepage_expert_pool *pool)
{
    moepage_expert_pool_info info = {.struct_size = sizeof info};
    MUST(moepage_expert_pool_get_info(pool, &info));
    return info;
}

static moepage_session_stats sums_of(moepage_expert_pool *pool)
{
    moepage_session_stats stats = {.struct_size = sizeof stats};
    MUST(moepage_expert_pool_get_stats(pool, &stats));
    return stats;
}

/* ---- stalls by cause ---- */

static void test_stats_wait_for_absent_experts_is_load(void **state)
{
    (void)state;
    stack s;
    open_stack(&s, 16, 0);
    moepage_session_stats stats = stack_step(&s, (int32_t[]){4, 9, 2});
    expect_stalls(&stats, 0, LOAD + 2 * (LOAD - ONE), 0, 0);
    stats = stack_step(&s, (int32_t[]){4, 9, 2});
    expect_stalls(&stats, 0, 0, 0, 0);
    stack_close(&s);
}

static void test_stats_wait_for_the_cold_tier_is_cold(void **state)
{
    (void)state;
    stack s;
    open_stack(&s, 3, 16);
    moepage_session_stats stats = stack_step(&s, (int32_t[]){12, 12, 12});
    expect_stalls(&stats, 0, 0, 0, READ + LOAD);
    (void)stack_step(&s, (int32_t[]){13, 14, 15});
    stats = stack_step(&s, (int32_t[]){12, 12, 12}); /* still in the tier */
    assert_int_equal(stats.misses, 1);
    expect_stalls(&stats, 0, LOAD, 0, 0);
    stack_close(&s);
}

/* A hint for layer 1 that layer 1 comes `ns` after. */
static moepage_session_stats hint_and_use(stack *s, uint64_t ns)
{
    const int32_t expert[3] = {7, 7, 7};
    stack_begin(s, 1);
    stack_layer(s, 0, expert);
    MUST(moepage_session_hint(s->session, 1, expert, 1));
    work(s, ns);
    stack_layer(s, 1, expert);
    return stack_end(s);
}

static void test_stats_wait_for_a_prefetch_under_way_is_late(void **state)
{
    (void)state;
    stack s;
    open_stack(&s, 16, 0);
    moepage_session_stats stats = hint_and_use(&s, 5000);
    assert_int_equal(stats.late, 1);
    expect_stalls(&stats, 0, LOAD, LOAD - 5000, 0);
    moepage_expert_pool_info info = info_of(s.pool);
    assert_int_equal(info.prefetch_useful_bytes, 0);
    assert_int_equal(info.prefetch_late_bytes, SLOT);
    assert_int_equal(info.prefetch_wasted_bytes, 0);
    stack_close(&s);
}

/* Its cold read is still to end; or has ended, and the bus alone is waited for. */
static void test_stats_wait_for_a_prefetchs_read_is_cold(void **state)
{
    (void)state;
    stack s;
    open_stack(&s, 16, 16);
    moepage_session_stats stats = hint_and_use(&s, 5000);
    assert_int_equal(stats.late, 1);
    expect_stalls(&stats, 0, 0, 0, READ + LOAD + READ - 5000 + LOAD);
    stack_close(&s);
    open_stack(&s, 16, 16);
    stats = hint_and_use(&s, READ + 50);
    assert_int_equal(stats.late, 1);
    expect_stalls(&stats, 0, 0, LOAD - 50, READ + LOAD);
    stack_close(&s);
}

/* With one entry in the host tier a second cold expert waits for the first one's whole load before
 * it has anything to be loaded through. */
static void test_stats_wait_for_room_is_slot(void **state)
{
    (void)state;
    stack s;
    open_stack(&s, 16, 1);
    moepage_session_stats stats = stack_step(&s, (int32_t[]){12, 13, 13});
    assert_int_equal(stats.misses, 2);
    expect_stalls(&stats, READ + LOAD, 0, 0, READ + LOAD - ONE);
    stack_close(&s);
}

/* Callers with kernels of their own wait in route. */
static void test_stats_plans_wait_for_the_same_causes(void **state)
{
    (void)state;
    for (uint32_t cold = 0; cold < 2; cold++) {
        const int32_t ids[3] = {12, 13, 14};
        stack s;
        open_stack(&s, 16, cold ? 16 : 0);
        moepage_routing routing = {.struct_size = sizeof routing,
                                   .top_k = 3,
                                   .ids = ids,
                                   .weights = s.weights};
        moepage_plan plan = {.struct_size = sizeof plan};
        stack_begin(&s, 1);
        MUST(moepage_session_route(s.session, 0, &routing, &plan));
        MUST(moepage_session_retire(s.session, 0));
        moepage_session_stats stats = stack_end(&s);
        if (cold)
            expect_stalls(&stats, 0, 0, 0, 1000 + 3 * SLOT + 3 * LOAD);
        else
            expect_stalls(&stats, 0, 3 * LOAD, 0, 0);
        stack_close(&s);
    }
}

/* ---- sums ---- */

static void add_up(moepage_session_stats *sum, moepage_session *session)
{
    moepage_session_stats one = {.struct_size = sizeof one};
    MUST(moepage_session_get_stats(session, &one));
    uint64_t *to = &sum->steps;
    const uint64_t *from = &one.steps;
    for (size_t i = 0; i < (sizeof one - offsetof(moepage_session_stats, steps)) / 8; i++)
        to[i] += from[i];
}

static void test_stats_of_a_pool_are_those_of_all_its_sessions(void **state)
{
    (void)state;
    stack s;
    open_stack(&s, 16, 16);
    moepage_session *first = s.session;
    moepage_session_config config = {.struct_size = sizeof config, .max_tokens = 4};
    moepage_session_stats sum = {.struct_size = sizeof sum}, all;
    (void)hint_and_use(&s, 5000);
    MUST(moepage_session_create(s.pool, NULL, &config, &s.session));
    (void)stack_step(&s, (int32_t[]){1, 2, 3});
    stack_begin(&s, 1);
    stack_layer(&s, 0, (int32_t[]){4, 5, 6});
    all = sums_of(s.pool);
    assert_int_equal(all.steps, 2); /* an open one is not counted */
    assert_int_equal(all.layers, 3);
    MUST(moepage_session_cancel(s.session)); /* a cancelled one is */
    add_up(&sum, first);
    add_up(&sum, s.session);
    all = sums_of(s.pool);
    assert_int_equal(all.steps, 3);
    assert_int_equal(all.layers, 4);
    assert_int_equal(all.misses, 7);
    assert_int_equal(all.late, 1);
    assert_memory_equal(&all, &sum, sizeof all);

    MUST(moepage_session_destroy(s.session)); /* what it did stays the pool's */
    s.session = first;
    all = sums_of(s.pool);
    assert_memory_equal(&all, &sum, sizeof all);
    MUST(moepage_session_create(s.pool, NULL, &config, &s.session));
    all = sums_of(s.pool);
    assert_memory_equal(&all, &sum, sizeof all);
    (void)stack_step(&s, (int32_t[]){1, 2, 3});
    all = sums_of(s.pool);
    assert_int_equal(all.steps, 4);
    assert_int_equal(all.hits, sum.hits + 3);
    MUST(moepage_session_destroy(s.session));
    s.session = first;
    MUST(moepage_session_hint(first, 0, (int32_t[]){15}, 1)); /* between steps */
    assert_int_equal(sums_of(s.pool).hint_experts, sum.hint_experts + 1);
    stack_close(&s);
}

static void test_stats_write_no_further_than_their_caller_knows(void **state)
{
    (void)state;
    enum { FIRST = offsetof(moepage_session_stats, streamed_layers) };
    stack s;
    open_stack(&s, 16, 0);
    (void)stack_step(&s, (int32_t[]){4, 9, 2});
    moepage_session_stats stats;
    memset(&stats, 0xee, sizeof stats);
    stats.struct_size = FIRST;
    MUST(moepage_expert_pool_get_stats(s.pool, &stats));
    assert_int_equal(stats.misses, 3);
    for (size_t i = FIRST; i < sizeof stats; i++)
        assert_int_equal(((unsigned char *)&stats)[i], 0xee);
    stats.struct_size = FIRST - 1;
    assert_int_equal(moepage_expert_pool_get_stats(s.pool, &stats), MOEPAGE_E_VERSION);
    assert_int_equal(moepage_expert_pool_get_stats(s.pool, NULL), MOEPAGE_E_ARGUMENT);
    assert_int_equal(moepage_expert_pool_get_stats((moepage_expert_pool *)s.home, &stats),
                     MOEPAGE_E_HANDLE);
    moepage_device_info device = {.struct_size = offsetof(moepage_device_info, pageable_bytes)};
    MUST(moepage_device_get_info(s.home, &device));
    device.struct_size--;
    assert_int_equal(moepage_device_get_info(s.home, &device), MOEPAGE_E_VERSION);
    stack_close(&s);
}

/* ---- what was fetched ahead ---- */

static void test_stats_prefetched_bytes_are_useful_or_wasted(void **state)
{
    (void)state;
    stack s;
    open_stack(&s, 5, 0);
    (void)stack_step(&s, (int32_t[]){0, 1, 2});
    MUST(moepage_session_hint(s.session, 0, (int32_t[]){5, 6}, 2));
    work(&s, 2 * LOAD + 100);
    (void)stack_step(&s, (int32_t[]){5, 5, 5});
    moepage_expert_pool_info info = info_of(s.pool);
    assert_int_equal(info.prefetch_useful_bytes, SLOT);
    assert_int_equal(info.prefetch_late_bytes + info.prefetch_wasted_bytes, 0);
    (void)stack_step(&s, (int32_t[]){9, 10, 11});
    (void)stack_step(&s, (int32_t[]){12, 13, 14});
    info = info_of(s.pool);
    assert_int_equal(info.prefetch_bytes, 2 * SLOT);
    assert_int_equal(info.prefetch_useful_bytes, SLOT);
    assert_int_equal(info.prefetch_late_bytes, 0);
    assert_int_equal(info.prefetch_wasted_bytes, SLOT);
    stack_close(&s);
}

/* An image crosses the bus smaller than what it becomes. */
static void test_stats_prefetched_bytes_are_those_of_the_bus(void **state)
{
    (void)state;
    stack s;
    mp_image image;
    open_coded(&s, 16, 0, 0.75);
    mp_model_find_image(s.model, 1, 7, MOEPAGE_FORM_EXPH, &image);
    (void)hint_and_use(&s, 4 * LOAD);
    moepage_expert_pool_info info = info_of(s.pool);
    assert_true(image.bytes < SLOT);
    assert_int_equal(info.prefetch_useful, 1);
    assert_int_equal(info.prefetch_bytes, image.bytes);
    assert_int_equal(info.prefetch_useful_bytes, image.bytes);
    assert_int_equal(info.prefetch_late_bytes + info.prefetch_wasted_bytes, 0);
    stack_close(&s);
}

/* Where decode is protected from scans, nothing tells how much of its share prefill has left. */
static void test_stats_count_refused_hints_of_prefill(void **state)
{
    (void)state;
    const bank_shape shape = {
        .layers = 1, .experts = 8, .top_k = 2, .hidden = 8, .intermediate = 4, .seed = 3};
    const moepage_session_config config = {.struct_size = sizeof config,
                                           .prefetch = MOEPAGE_PREFETCH_HINT};
    bank_model bank;
    pool_rig rig;
    bank_model_open(&bank, &shape);
    pool_rig_open(&rig, &bank, &(pool_rig_config){.slots = 6, .scan_percent = 50});
    moepage_session *session = pool_rig_session(&rig, &config);
    pool_rig_begin(session, 1, MOEPAGE_PHASE_PREFILL);
    MUST(moepage_session_hint(session, 0, (int32_t[]){1, 2, 3}, 3));
    assert_int_equal(pool_rig_info(&rig).prefetch_refused, 3);
    MUST(moepage_session_cancel(session));
    assert_int_equal(sums_of(rig.pool).hint_experts, 0);
    MUST(moepage_session_destroy(session));
    pool_rig_close(&rig);
    bank_model_close(&bank);
}

/* ---- refusals and moves ---- */

static void test_stats_count_pins_and_moves(void **state)
{
    (void)state;
    stack s;
    open_stack(&s, 8, 0);
    for (uint32_t e = 0; e < 5; e++)
        MUST(moepage_expert_pool_pin(s.pool, 0, e));
    assert_int_equal(info_of(s.pool).pins_refused, 0);
    for (uint32_t e = 5; e < 7; e++) /* 3 slots must be left for a token */
        assert_int_equal(moepage_expert_pool_pin(s.pool, 1, e), MOEPAGE_E_BUDGET);
    assert_int_equal(moepage_expert_pool_pin(s.pool, 2, 0), MOEPAGE_E_ARGUMENT); /* no such layer */
    assert_int_equal(info_of(s.pool).pins_refused, 2);
    for (uint32_t e = 0; e < 5; e++)
        MUST(moepage_expert_pool_unpin(s.pool, 0, e));

    MUST(moepage_split_set(s.pool, NULL, 6, 0, NULL));
    MUST(moepage_split_set(s.pool, NULL, 10, 0, NULL));
    assert_int_equal(moepage_split_set(s.pool, NULL, 1000, 0, NULL), MOEPAGE_E_BUDGET);
    assert_int_equal(info_of(s.pool).resizes, 2);
    assert_int_equal(info_of(s.pool).resizes_refused, 1);
    stack_close(&s);
}

static void expect_moves(pool_rig *rig, uint64_t done, uint64_t refused)
{
    assert_int_equal(pool_rig_info(rig).resizes, done);
    assert_int_equal(pool_rig_info(rig).resizes_refused, refused);
}

/* What the arena or slots in use stand against is refused; what can never be is the caller's error. */
static void test_stats_count_no_impossible_moves(void **state)
{
    (void)state;
    const bank_shape shape = {
        .layers = 1, .experts = 8, .top_k = 2, .hidden = 8, .intermediate = 4, .seed = 3};
    const uint32_t per_token[1] = {64};
    const moepage_kv_pool_config config = {.struct_size = sizeof config,
                                           .layers = 1,
                                           .bytes_per_token = per_token,
                                           .blocks = 1};
    const moepage_device_config room = {.struct_size = sizeof room, .budget_bytes = 1 << 20};
    moepage_plan plan = {.struct_size = sizeof plan};
    bank_model bank;
    pool_rig rig, two;
    moepage_device *other;
    moepage_kv_pool *elsewhere;
    bank_model_open(&bank, &shape);
    pool_rig_open(&rig, &bank, &(pool_rig_config){.slots = 8});
    pool_rig_open(&two, &bank, &(pool_rig_config){.n_devices = 2, .slots = 8});
    MUST(moepage_device_open("host", &room, &other));
    MUST(moepage_kv_pool_create(other, &config, &elsewhere));
    assert_int_equal(moepage_split_set(rig.pool, elsewhere, 4, 1, NULL), MOEPAGE_E_ARGUMENT);
    assert_int_equal(moepage_split_set(two.pool, NULL, 4, 0, NULL), MOEPAGE_E_UNSUPPORTED);
    expect_moves(&rig, 0, 0);
    expect_moves(&two, 0, 0);
    assert_int_equal(moepage_split_set(rig.pool, NULL, 9, 0, NULL), MOEPAGE_E_BUDGET);
    expect_moves(&rig, 0, 1);

    moepage_session *session = pool_rig_session(&rig, NULL);
    for (int32_t e = 0; e < 8; e += 2)
        pool_rig_visit(session, 0, (int32_t[]){e, e + 1}, 2);
    pool_rig_begin(session, 1, MOEPAGE_PHASE_DECODE);
    MUST(pool_rig_route(session, 0, (int32_t[]){0, 7}, 2, &plan));
    assert_int_equal(moepage_split_set(rig.pool, NULL, 1, 0, NULL), MOEPAGE_E_BUSY);
    expect_moves(&rig, 0, 2);
    MUST(moepage_session_destroy(session));
    assert_int_equal(pool_rig_info(&rig).evictions, 0);
    MUST(moepage_split_set(rig.pool, NULL, 4, 0, NULL));
    expect_moves(&rig, 1, 2);
    assert_int_equal(pool_rig_info(&rig).evictions, 4);
    MUST(moepage_kv_pool_destroy(elsewhere));
    MUST(moepage_device_close(other));
    pool_rig_close(&two);
    pool_rig_close(&rig);
    bank_model_close(&bank);
}

static void test_stats_count_kv_refusals_and_resizes(void **state)
{
    (void)state;
    const uint32_t per_token[1] = {64};
    const moepage_kv_pool_config config = {.struct_size = sizeof config,
                                           .block_tokens = 4,
                                           .layers = 1,
                                           .bytes_per_token = per_token,
                                           .blocks_per_granule = 16,
                                           .blocks = 32,
                                           .max_sequences = 2};
    mp_sim_profile profile = machine_profile();
    stack s = {0};
    moepage_kv_pool *kv;
    moepage_seq a, b, c;
    stack_open_device(&s, &profile, 1 << 20, 1 << 20);
    MUST(moepage_kv_pool_create(s.home, &config, &kv));
    MUST(moepage_kv_create(kv, &a));
    MUST(moepage_kv_create(kv, &b));
    MUST(moepage_kv_append(kv, a, 20 * 4, NULL));
    moepage_kv_pool_info info = {.struct_size = sizeof info};
    MUST(moepage_kv_pool_get_info(kv, &info));
    assert_int_equal(info.blocks, 32);
    assert_int_equal(info.refused + info.resizes, 0);
    assert_int_equal(moepage_kv_append(kv, b, 13 * 4, NULL), MOEPAGE_E_WOULD_NOT_FIT);
    assert_int_equal(moepage_kv_create(kv, &c), MOEPAGE_E_WOULD_NOT_FIT);
    assert_int_equal(moepage_kv_fork(kv, a, &c), MOEPAGE_E_WOULD_NOT_FIT);
    MUST(moepage_kv_swap_out(kv, a, NULL));
    MUST(moepage_kv_append(kv, b, 13 * 4, NULL));
    assert_int_equal(moepage_kv_swap_in(kv, a, NULL), MOEPAGE_E_WOULD_NOT_FIT);
    assert_int_equal(moepage_kv_append(kv, a, 1, NULL), MOEPAGE_E_STATE); /* no question of room */
    MUST(moepage_kv_pool_get_info(kv, &info));
    assert_int_equal(info.refused, 4);
    assert_int_equal(info.resizes, 0);

    MUST(moepage_split_set(NULL, kv, 0, 64, NULL));
    MUST(moepage_split_set(NULL, kv, 0, 16, NULL));
    MUST(moepage_split_set(NULL, kv, 0, 16, NULL)); /* no change */
    assert_int_equal(moepage_split_set(NULL, kv, 0, 1 << 20, NULL), MOEPAGE_E_BUDGET);
    MUST(moepage_kv_pool_get_info(kv, &info));
    assert_int_equal(info.resizes, 2);
    assert_int_equal(info.blocks, 16);
    info.struct_size = offsetof(moepage_kv_pool_info, refused);
    info.refused = 77;
    MUST(moepage_kv_pool_get_info(kv, &info)); /* of a caller that does not know of it */
    assert_int_equal(info.refused, 77);
    MUST(moepage_kv_pool_destroy(kv));
    MUST(moepage_device_close(s.home));
}

/* ---- how the cold tier was read ---- */

static void test_stats_count_reads_out_of_memory_as_buffered(void **state)
{
    (void)state;
    bank_shape shape = {.layers = 1,
                        .experts = 8,
                        .top_k = 2,
                        .hidden = 8,
                        .intermediate = 4,
                        .callback = true,
                        .seed = 3};
    bank_model bank;
    pool_rig rig;
    bank_model_open(&bank, &shape);
    pool_rig_open(&rig, &bank, &(pool_rig_config){.slots = 4, .host_experts = 8});
    moepage_session *session = pool_rig_session(&rig, NULL);
    uint64_t before = pool_rig_info(&rig).cold_reads; /* to measure the tier */
    assert_int_equal(pool_rig_info(&rig).cold_buffered_reads, before);
    for (int32_t e = 0; e < 8; e += 2)
        pool_rig_visit(session, 0, (int32_t[]){e, e + 1}, 2);
    pool_rig_wait(&rig);
    moepage_expert_pool_info info = pool_rig_info(&rig);
    assert_true(info.cold_reads > before);
    assert_int_equal(info.cold_buffered_reads, info.cold_reads);
    MUST(moepage_session_destroy(session));
    pool_rig_close(&rig);
    bank_model_close(&bank);
}

/* A load that has landed is settled by the question about it: the read behind it counts in the same
 * answer, every read as many bytes as any other. */
static void test_stats_count_a_read_whose_load_was_not_waited_for(void **state)
{
    (void)state;
    stack s;
    open_stack(&s, 3, 16);
    moepage_expert_pool_info before = info_of(s.pool);
    const int32_t ids[3] = {12, 12, 12};
    moepage_routing routing = {.struct_size = sizeof routing,
                               .top_k = 3,
                               .ids = ids,
                               .weights = s.weights};
    assert_true(before.cold_reads > 0); /* to measure the tier */
    stack_begin(&s, 1);
    MUST(moepage_session_route(s.session, 1, &routing, NULL));
    work(&s, READ + LOAD);
    moepage_expert_pool_info info = info_of(s.pool);
    assert_int_equal(info.loading, 0);
    assert_int_equal(info.resident, 1);
    assert_int_equal(info.cold_reads, before.cold_reads + 1);
    assert_int_equal(info.host_tier_resident, before.host_tier_resident + 1);
    assert_int_equal(info.cold_bytes * before.cold_reads, before.cold_bytes * info.cold_reads);
    MUST(moepage_session_cancel(s.session));
    stack_close(&s);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_stats_wait_for_absent_experts_is_load),
        cmocka_unit_test(test_stats_wait_for_the_cold_tier_is_cold),
        cmocka_unit_test(test_stats_wait_for_a_prefetch_under_way_is_late),
        cmocka_unit_test(test_stats_wait_for_a_prefetchs_read_is_cold),
        cmocka_unit_test(test_stats_wait_for_room_is_slot),
        cmocka_unit_test(test_stats_plans_wait_for_the_same_causes),
        cmocka_unit_test(test_stats_of_a_pool_are_those_of_all_its_sessions),
        cmocka_unit_test(test_stats_write_no_further_than_their_caller_knows),
        cmocka_unit_test(test_stats_prefetched_bytes_are_useful_or_wasted),
        cmocka_unit_test(test_stats_prefetched_bytes_are_those_of_the_bus),
        cmocka_unit_test(test_stats_count_refused_hints_of_prefill),
        cmocka_unit_test(test_stats_count_pins_and_moves),
        cmocka_unit_test(test_stats_count_no_impossible_moves),
        cmocka_unit_test(test_stats_count_kv_refusals_and_resizes),
        cmocka_unit_test(test_stats_count_reads_out_of_memory_as_buffered),
        cmocka_unit_test(test_stats_count_a_read_whose_load_was_not_waited_for),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
