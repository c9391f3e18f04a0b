/* The kernel that plans a layer on the device, in its CPU form, against a planner written from the
 * description in device_paths/path.h. The test is the host: whenever the kernel waits, it looks at
 * the mail and acts on it. */
#include <stdlib.h>
#include <string.h>

#include "bank_model.h"
#include "cpu_clock.h"
#include "kernels/path.h"
#include "testing.h"

#define LAYERS 3
#define MAX_EXPERTS MP_PATH_EXPERTS
#define MAX_ROWS 700
#define SLOT_BYTES 512
#define TIMEOUT_NS 1000000

MP_CPU_ENTRY(path_plan, mp_gpu_path_plan_args, mp_gpu_path_plan_shared, mp_gpu_path_plan_thread)
static const mp_cpu_kernel kernel =
    MP_CPU_ROW(path_plan, mp_gpu_path_plan_args, mp_gpu_path_plan_shared, mp_gpu_path_plan_thread);

/* What the host does with a message. */
typedef enum answer { PUBLISH, REFUSE, IGNORE, FORGET_ONE } answer;

typedef struct bench {
    uint64_t random;
    uint32_t experts, layer, n_rows;
    int32_t ids[MAX_ROWS];
    mp_path_state state;
    mp_path_mail mail;
    uint32_t mail_stamps[LAYERS * MAX_EXPERTS];
    int32_t map[LAYERS * MAX_EXPERTS];
    uint32_t stamps[LAYERS * MAX_EXPERTS];
    mp_gpu_expert table[MAX_EXPERTS];
    uint32_t rows[MAX_ROWS];
    mp_path_layout layout;
    /* The host. */
    uint64_t now_ns;
    answer answer;
    uint32_t pauses_before; /* it acts */
    uint32_t pauses;
    uint32_t served; /* the last message */
    uint32_t messages;
    int32_t next_slot;
} bench;

static bench b;
static unsigned char slots[1]; /* addresses alone are looked at */

/* ---- the naive planner ---- */

static uint32_t naive_rows(uint32_t expert)
{
    uint32_t n = 0;
    for (uint32_t r = 0; r < b.n_rows; r++)
        n += b.ids[r] == (int32_t)expert;
    return n;
}

static uint32_t naive_distinct(void)
{
    uint32_t n = 0;
    for (uint32_t e = 0; e < b.experts; e++)
        n += naive_rows(e) > 0;
    return n;
}

static uint32_t naive_missing(void)
{
    uint32_t n = 0;
    for (uint32_t e = 0; e < b.experts; e++)
        n += naive_rows(e) > 0 && b.map[b.layer * b.experts + e] < 0;
    return n;
}

/* ---- the host ---- */

static uint64_t host_now(void *user)
{
    (void)user;
    return b.now_ns;
}

static void expect_message(void)
{
    assert_int_equal(b.mail.layer, b.layer);
    assert_int_equal(b.mail.n, naive_distinct());
    assert_int_equal(b.mail.now, b.state.now);
    bool named[MAX_EXPERTS] = {false};
    for (uint32_t i = 0; i < b.mail.n; i++) {
        uint32_t e = b.mail.experts[i];
        assert_true(e < b.experts && !named[e] && naive_rows(e) > 0);
        named[e] = true;
    }
    for (uint32_t k = 0; k < LAYERS * b.experts; k++) {
        bool now = k / b.experts == b.layer && naive_rows(k % b.experts) > 0;
        assert_int_equal(b.stamps[k] == b.state.now, now);
        assert_int_equal(b.mail_stamps[k], b.stamps[k]);
    }
}

static void act(void)
{
    b.served = b.mail.sequence;
    b.messages++;
    if (b.answer == IGNORE)
        return;
    bool forgot = b.answer != FORGET_ONE;
    for (uint32_t i = 0; i < b.mail.n && b.answer != REFUSE; i++) {
        int32_t *word = &b.map[b.mail.layer * b.experts + b.mail.experts[i]];
        if (*word < 0 && forgot)
            *word = b.next_slot++;
        else if (*word < 0)
            forgot = true;
    }
    b.state.answer = MP_PATH_ANSWER(b.served, b.answer == REFUSE);
}

static void host_pause(void *user)
{
    (void)user;
    b.now_ns += 100;
    if (b.mail.sequence == b.served || ++b.pauses <= b.pauses_before)
        return;
    expect_message();
    act();
}

static const cpu_clock host = {.now_ns = host_now, .pause = host_pause};

/* ---- running ---- */

static void open_bench(uint32_t experts, uint64_t seed)
{
    memset(&b, 0, sizeof b);
    b.random = seed;
    b.experts = experts;
    memset(b.map, 0xff, sizeof b.map);
    memset(b.stamps, 0xee, sizeof b.stamps);
    b.state.now = 5;
    b.layout = (mp_path_layout){.gate = 0,
                                .up = 64,
                                .down = 128,
                                .gate_bias = 192,
                                .up_bias = UINT64_MAX,
                                .down_bias = 200,
                                .gate_scale = UINT64_MAX,
                                .up_scale = 300,
                                .down_scale = UINT64_MAX};
    cpu_clock_set(&host);
}

static void shuffle(uint32_t *order, uint32_t n)
{
    for (uint32_t i = 0; i < n; i++)
        order[i] = i;
    for (uint32_t i = n; i > 1; i--) {
        uint32_t other = bank_below(&b.random, i), value = order[i - 1];
        order[i - 1] = order[other];
        order[other] = value;
    }
}

static void plan(void)
{
    static unsigned char shared[MP_PATH_SHARED];
    static mp_gpu_path_plan_thread threads[MP_PATH_THREADS];
    uint32_t order[MP_PATH_THREADS];
    shuffle(order, MP_PATH_THREADS);
    memset(shared, (int)bank_below(&b.random, 256), sizeof shared);
    memset(threads, 0xa5, sizeof threads);
    memset(b.table, 0x5a, sizeof b.table);
    memset(b.rows, 0xff, sizeof b.rows);
    b.pauses = 0;
    mp_gpu_path_plan_args args = {.ids = b.ids,
                                  .state = &b.state,
                                  .mail = &b.mail,
                                  .mail_stamps = b.mail_stamps,
                                  .map = b.map,
                                  .stamps = b.stamps,
                                  .table = b.table,
                                  .rows = b.rows,
                                  .slots = slots,
                                  .slot_bytes = SLOT_BYTES,
                                  .layout = b.layout,
                                  .timeout_ns = TIMEOUT_NS,
                                  .n_keys = LAYERS * b.experts,
                                  .experts = b.experts,
                                  .layer = b.layer,
                                  .n_rows = b.n_rows};
    mp_cpu_block cpu = {.n_threads = MP_PATH_THREADS, .order = order};
    assert_true(kernel.shared_bytes <= sizeof shared);
    kernel.run(&args, shared, threads, 0, 1, &cpu);
}

/* Random ids, some of them none, from the first `of` experts. */
static void route(uint32_t layer, uint32_t n_rows, uint32_t of)
{
    b.layer = layer;
    b.n_rows = n_rows;
    for (uint32_t r = 0; r < n_rows; r++)
        b.ids[r] = bank_below(&b.random, 8) ? (int32_t)bank_below(&b.random, of) : -1;
}

static void expect_operand(const void *found, int32_t slot, uint64_t offset)
{
    const unsigned char *base = slots + (uint64_t)slot * SLOT_BYTES;
    assert_ptr_equal(found, offset == UINT64_MAX ? NULL : base + offset);
}

/* The table and the rows are those of the layer; a row in its expert's part, once. */
static void expect_plan(void)
{
    uint32_t at = 0, row = 0;
    assert_int_equal(b.state.failed, 0);
    assert_int_equal(b.state.n_experts, naive_distinct());
    for (uint32_t e = 0; e < b.experts; e++) {
        uint32_t n = naive_rows(e);
        if (!n)
            continue;
        const mp_gpu_expert *expert = &b.table[at++];
        int32_t slot = b.map[b.layer * b.experts + e];
        assert_true(slot >= 0);
        expect_operand(expert->gate, slot, b.layout.gate);
        expect_operand(expert->up, slot, b.layout.up);
        expect_operand(expert->down, slot, b.layout.down);
        expect_operand(expert->gate_bias, slot, b.layout.gate_bias);
        expect_operand(expert->up_bias, slot, b.layout.up_bias);
        expect_operand(expert->down_bias, slot, b.layout.down_bias);
        expect_operand(expert->gate_scale, slot, b.layout.gate_scale);
        expect_operand(expert->up_scale, slot, b.layout.up_scale);
        expect_operand(expert->down_scale, slot, b.layout.down_scale);
        assert_int_equal(expert->first_row, row);
        assert_int_equal(expert->n_rows, n);
        bool seen[MAX_ROWS] = {false};
        for (uint32_t i = row; i < row + n; i++) {
            assert_true(b.rows[i] < b.n_rows && !seen[b.rows[i]]);
            assert_int_equal(b.ids[b.rows[i]], e);
            seen[b.rows[i]] = true;
        }
        row += n;
    }
}

static void expect_given_up(uint32_t report, uint32_t reason)
{
    assert_int_equal(b.state.failed, 1);
    assert_int_equal(b.state.n_experts, 0);
    assert_int_equal(b.mail.gave_up, report);
    if (reason != MP_PATH_STILL) {
        assert_int_equal(b.mail.reason, reason);
        assert_int_equal(b.mail.in_layer, b.layer);
    }
}

/* ---- the claims ---- */

static void test_cuda_path_kernels_plan_as_a_naive_planner_does(void **state)
{
    (void)state;
    static const uint32_t sizes[] = {1, 7, 64, 255, 256, 257, 300, 1023, 1024};
    uint32_t rounds = getenv("MP_TEST_LONG") ? 400 : 20;
    for (uint32_t s = 0; s < sizeof sizes / sizeof *sizes; s++) {
        open_bench(sizes[s], s + 1);
        uint64_t layers = 0, all_hit = 0, routed = 0, misses = 0, told = 0;
        for (uint32_t i = 0; i < rounds; i++) {
            route(bank_below(&b.random, LAYERS), 1 + bank_below(&b.random, MAX_ROWS),
                  1 + bank_below(&b.random, b.experts));
            b.pauses_before = bank_below(&b.random, 3);
            for (uint32_t k = 0; k < LAYERS * b.experts; k++)
                if (!bank_below(&b.random, 16))
                    b.map[k] = bank_below(&b.random, 2) ? -1 : b.next_slot++;
            uint32_t missing = naive_missing(), messages = b.messages, now = b.state.now;
            uint32_t before = b.state.in_layer;
            plan();
            expect_plan();
            assert_int_equal(b.messages, messages + (missing > 0));
            assert_int_equal(b.state.now, now + 1);
            layers++, all_hit += !missing, routed += naive_distinct(), misses += missing;
            if (missing || b.layer == LAYERS - 1 || b.layer <= before)
                told = layers;
            assert_int_equal(b.mail.layers, told);
            if (told == layers) {
                assert_int_equal(b.mail.all_hit, all_hit);
                assert_int_equal(b.mail.routed, routed);
                assert_int_equal(b.mail.misses, misses);
            }
        }
        assert_int_equal(b.state.layers, layers);
        assert_int_equal(b.state.all_hit, all_hit);
        assert_int_equal(b.state.routed, routed);
        assert_int_equal(b.state.misses, misses);
    }
}

static void test_cuda_path_kernels_leave_the_host_alone_within_a_step_that_has_all(void **state)
{
    (void)state;
    open_bench(64, 1);
    for (uint32_t k = 0; k < LAYERS * 64; k++)
        b.map[k] = (int32_t)k;
    for (uint32_t i = 0; i < 9; i++) {
        mp_path_mail before = b.mail;
        route(i % LAYERS, 40, 64);
        plan();
        expect_plan();
        if (i % LAYERS == 0 || i % LAYERS == LAYERS - 1) { /* a step begins, or ends */
            assert_int_equal(b.mail.all_hit, i + 1);
            assert_int_equal(b.mail.layers, i + 1);
            before.layers = b.mail.layers, before.all_hit = b.mail.all_hit;
            before.routed = b.mail.routed;
        }
        assert_memory_equal(&b.mail, &before, sizeof before);
    }
    assert_int_equal(b.messages, 0);
}

static void test_cuda_path_kernels_give_up_on_ids_that_the_layer_lacks(void **state)
{
    (void)state;
    static const int32_t bad[] = {64, 1 << 30, -2, INT32_MIN};
    open_bench(64, 1);
    for (uint32_t i = 0; i < sizeof bad / sizeof *bad; i++) {
        route(1, 300, 64);
        b.ids[137] = bad[i];
        b.ids[260] = 1000;
        plan();
        expect_given_up(i + 1, MP_PATH_BAD_ID);
        assert_int_equal(b.mail.detail, bad[i]); /* the first of them */
        assert_int_equal(b.messages, 0);
        b.mail.acknowledged = b.mail.gave_up;
    }
    route(1, 300, 64);
    plan();
    expect_plan();
    assert_int_equal(b.mail.layers, 1);
}

static void test_cuda_path_kernels_run_nothing_until_a_refusal_is_acknowledged(void **state)
{
    (void)state;
    open_bench(16, 1);
    b.answer = REFUSE;
    route(0, 8, 16);
    plan();
    expect_given_up(1, MP_PATH_REFUSED);
    b.answer = PUBLISH;
    for (uint32_t i = 0; i < 3; i++) {
        route(i, 8, 16);
        plan();
        expect_given_up(1, MP_PATH_STILL);
        assert_int_equal(b.mail.in_layer, 0); /* the report stays as it is */
    }
    assert_int_equal(b.messages, 1);
    b.mail.acknowledged = 1;
    plan();
    expect_plan();
    assert_int_equal(b.messages, 2);
}

static void test_cuda_path_kernels_wait_for_what_they_are_owed_after_a_timeout(void **state)
{
    (void)state;
    open_bench(16, 1);
    b.answer = IGNORE;
    route(0, 8, 16);
    plan();
    expect_given_up(1, MP_PATH_LATE);
    assert_true(b.now_ns >= TIMEOUT_NS && b.now_ns < 2 * TIMEOUT_NS);

    /* Acknowledged, but not answered: even a layer that has all its experts may not run, for the
     * host may be about to take their slots away. */
    b.mail.acknowledged = 1;
    for (uint32_t k = 0; k < 16; k++)
        b.map[16 + k] = (int32_t)k;
    route(1, 8, 16);
    plan();
    expect_given_up(2, MP_PATH_LATE);
    assert_int_equal(b.messages, 1);

    b.mail.acknowledged = 2;
    b.state.answer = MP_PATH_ANSWER(b.served, 1); /* late, and a refusal: it is nobody's any more */
    plan();
    expect_plan();

    b.answer = PUBLISH;
    route(2, 8, 16);
    plan();
    expect_plan();
    assert_int_equal(b.messages, 2);
    assert_int_equal(b.mail.layers, 2);
}

static void test_cuda_path_kernels_take_no_other_message_s_answer(void **state)
{
    (void)state;
    open_bench(16, 1);
    b.state.sequence = MP_PATH_SEQUENCE - 1;
    b.served = b.mail.sequence = b.state.sequence;
    b.state.answer = MP_PATH_ANSWER(b.served, 0);
    for (uint32_t i = 0; i < 3; i++) { /* the numbers begin again, at 1 */
        b.answer = IGNORE;
        memset(b.map, 0xff, sizeof b.map);
        route(0, 8, 16);
        plan();
        expect_given_up(i + 1, MP_PATH_LATE);
        assert_int_equal(b.mail.sequence, i ? i : MP_PATH_SEQUENCE);
        b.mail.acknowledged = i + 1;
        b.state.answer = MP_PATH_ANSWER(b.mail.sequence, 0);
    }
}

static void test_cuda_path_kernels_never_plan_an_expert_that_is_not_there(void **state)
{
    (void)state;
    open_bench(16, 1);
    b.answer = FORGET_ONE;
    route(0, 8, 16);
    plan();
    expect_given_up(1, MP_PATH_LOST);
    b.answer = PUBLISH;
    b.mail.acknowledged = 1;
    plan();
    expect_plan();
}

static void test_cuda_path_kernels_count_reports_past_their_last_number(void **state)
{
    (void)state;
    open_bench(16, 1);
    b.state.gave_up = UINT32_MAX - 1;
    for (uint32_t i = 0; i < 3; i++) {
        route(0, 8, 16);
        b.ids[3] = 16;
        plan();
        expect_given_up(i == 0 ? UINT32_MAX : i, MP_PATH_BAD_ID);
        b.mail.acknowledged = b.mail.gave_up;
    }
}

static void test_cuda_path_kernels_plan_tokens_without_experts(void **state)
{
    (void)state;
    open_bench(16, 1);
    b.n_rows = 5;
    for (uint32_t r = 0; r < 5; r++)
        b.ids[r] = -1;
    plan();
    expect_plan();
    assert_int_equal(b.mail.all_hit, 1);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_cuda_path_kernels_plan_as_a_naive_planner_does),
        cmocka_unit_test(test_cuda_path_kernels_leave_the_host_alone_within_a_step_that_has_all),
        cmocka_unit_test(test_cuda_path_kernels_give_up_on_ids_that_the_layer_lacks),
        cmocka_unit_test(test_cuda_path_kernels_run_nothing_until_a_refusal_is_acknowledged),
        cmocka_unit_test(test_cuda_path_kernels_wait_for_what_they_are_owed_after_a_timeout),
        cmocka_unit_test(test_cuda_path_kernels_take_no_other_message_s_answer),
        cmocka_unit_test(test_cuda_path_kernels_never_plan_an_expert_that_is_not_there),
        cmocka_unit_test(test_cuda_path_kernels_count_reports_past_their_last_number),
        cmocka_unit_test(test_cuda_path_kernels_plan_tokens_without_experts),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
