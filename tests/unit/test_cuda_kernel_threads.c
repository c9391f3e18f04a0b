/* Kernels with a thread for each of a block's threads, and barriers where a GPU has them: at the
 * end of a phase for the block, and around what a warp does together. Under ThreadSanitizer this
 * shows what a phase-by-phase run cannot: threads that share memory inside a phase, or write in one
 * what others still read behind the last. */
#include <pthread.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

/* ---- kernels/phase.h, lanes.h and mma.h, third form --------------------------------------- */

#define MP_KERNELS_PHASE_H
#define MP_KERNELS_LANES_H
#define MP_KERNELS_MMA_H
#define MP_ON_GPU 0
#define MP_GPU static inline

enum { MOST_THREADS = 256, MOST_WARPS = MOST_THREADS / 32 };

/* Barriers take turns: a thread that is late out of one must not seem to be behind what others did
 * before they came to the next. */
typedef struct meeting {
    pthread_barrier_t at[2];
} meeting;

typedef struct team {
    uint32_t n_threads;
    meeting block, warps[MOST_WARPS];
    uint32_t operands[MOST_WARPS][32][6]; /* of a product */
} team;

typedef struct member {
    team *team;
    uint32_t thread;
} member;

static _Thread_local uint32_t phases_done, meetings_done;

static void meet(meeting *all, uint32_t *done)
{
    pthread_barrier_wait(&all->at[(*done)++ % 2]);
}

static void warp_meets(const member *me)
{
    meet(&me->team->warps[me->thread / 32], &meetings_done);
}

#define MP_BLOCK_PARAMETERS(args_type, shared_type, thread_type)                            \
    const args_type *args, shared_type *shared, thread_type *threads, const uint32_t block, \
        const uint32_t n_blocks, const member *cpu
#define MP_BLOCK_PASS(b, n) args, shared, threads, (b), (n), cpu
#define MP_BLOCK_THREADS cpu->team->n_threads
#define MP_PHASE                             \
    {                                        \
        const uint32_t thread = cpu->thread; \
        __typeof__(threads) self = threads;  \
        (void)self;                          \
        (void)thread;
#define MP_PHASE_END                       \
    meet(&cpu->team->block, &phases_done); \
    }

#define MP_LANES 32u
#define MP_LANES_PARAMETERS(thread_type) thread_type *const mp_own, const member *const mp_me
#define MP_LANES_PASS mp_own, mp_me
#define MP_EACH_LANE(thread_type)                 \
    {                                             \
        thread_type *const own = mp_own;          \
        const uint32_t lane = mp_me->thread % 32; \
        (void)own;                                \
        (void)lane;
#define MP_EACH_LANE_END }
#define MP_WARPS(thread_type)                   \
    {                                           \
        thread_type *const mp_own = threads;    \
        const member *const mp_me = cpu;        \
        const uint32_t warp = cpu->thread / 32; \
        const uint32_t n_warps = cpu->team->n_threads / 32;
#define MP_WARPS_END                       \
    meet(&cpu->team->block, &phases_done); \
    }

/* The sum of `value` over the lanes up to this one. */
static uint32_t scan(const member *me, uint32_t value)
{
    uint32_t(*all)[6] = me->team->operands[me->thread / 32], sum = 0;
    all[me->thread % 32][0] = value;
    warp_meets(me);
    for (uint32_t lane = 0; lane <= me->thread % 32; lane++)
        sum += all[lane][0];
    warp_meets(me);
    return sum;
}

#define MP_LANES_SCAN(field) (mp_own->field = scan(mp_me, mp_own->field))
#define MP_LANES_MEET() warp_meets(this_member)
static _Thread_local const member *this_member;

static float half_of(uint32_t word, uint32_t upper)
{
    const uint32_t bits = upper ? word & 0xffff0000u : word << 16;
    float value;
    memcpy(&value, &bits, sizeof value);
    return value;
}

/* As mma.h says which lane has what: this lane's four elements of D. */
static void multiply(const member *me, float *d, const uint32_t *mine)
{
    uint32_t(*all)[6] = me->team->operands[me->thread / 32];
    const uint32_t lane = me->thread % 32;
    memcpy(all[lane], mine, sizeof all[lane]);
    warp_meets(me);
    for (uint32_t i = 0; i < 4; i++) {
        const uint32_t upper_row = i / 2, column = lane % 4 * 2 + i % 2;
        for (uint32_t k = 0; k < 16; k++) {
            const uint32_t holder = k % 8 / 2, word = k / 8;
            const float a = half_of(all[lane / 4 * 4 + holder][word * 2 + upper_row], k % 2);
            const float b = half_of(all[column * 4 + holder][4 + word], k % 2);
            d[i] += a * b;
        }
    }
    warp_meets(me);
}

#define MP_LANES_MMA(thread_type, D, A0, A1, A2, A3, B0, B1)              \
    MP_EACH_LANE(thread_type)                                             \
        const uint32_t mp_mine[6] = {(A0), (A1), (A2), (A3), (B0), (B1)}; \
        multiply(mp_me, (D), mp_mine);                                    \
    MP_EACH_LANE_END

#include "kernels/experts.h"
#include "kernels/path.h"
#include "kernels/quant.h"

/* ---- Blocks ------------------------------------------------------------------------------- */

typedef struct launch {
    void (*run)(const struct launch *of, void *own, const member *me);
    const void *args;
    void *shared;
    size_t own_bytes;
    uint32_t block, n_blocks;
} launch;

typedef struct seat {
    const launch *of;
    member me;
} seat;

static void *run_thread(void *user)
{
    const seat *own = user;
    void *registers = malloc(own->of->own_bytes);
    assert_non_null(registers);
    memset(registers, 0x77, own->of->own_bytes);
    this_member = &own->me;
    own->of->run(own->of, registers, &own->me);
    free(registers);
    return NULL;
}

static void open_meeting(meeting *all, uint32_t n)
{
    for (uint32_t i = 0; i < 2; i++)
        assert_int_equal(pthread_barrier_init(&all->at[i], NULL, n), 0);
}

static void close_meeting(meeting *all)
{
    for (uint32_t i = 0; i < 2; i++)
        pthread_barrier_destroy(&all->at[i]);
}

static void run_blocks(launch of, uint32_t n_threads, uint32_t shared_bytes, uint32_t n_blocks)
{
    static team together;
    pthread_t threads[MOST_THREADS];
    seat seats[MOST_THREADS];
    of.shared = aligned_alloc(128, (shared_bytes + 127) / 128 * 128);
    assert_non_null(of.shared);
    of.n_blocks = n_blocks;
    together.n_threads = n_threads;
    open_meeting(&together.block, n_threads);
    for (uint32_t w = 0; w < n_threads / 32; w++)
        open_meeting(&together.warps[w], 32);
    for (of.block = 0; of.block < n_blocks; of.block++) {
        memset(of.shared, 0x77, shared_bytes);
        for (uint32_t i = 0; i < n_threads; i++) {
            seats[i] = (seat){&of, {&together, i}};
            assert_int_equal(pthread_create(&threads[i], NULL, run_thread, &seats[i]), 0);
        }
        for (uint32_t i = 0; i < n_threads; i++)
            pthread_join(threads[i], NULL);
    }
    close_meeting(&together.block);
    for (uint32_t w = 0; w < n_threads / 32; w++)
        close_meeting(&together.warps[w]);
    free(of.shared);
}

#define RUN(name, shared_type, thread_type)                                                    \
    static void run_##name(const launch *of, void *own, const member *me)                      \
    {                                                                                          \
        mp_gpu_##name##_block(of->args, of->shared, own, of->block, of->n_blocks, me);         \
    }                                                                                          \
    static const launch name##_launch = {.run = run_##name, .own_bytes = sizeof(thread_type)}; \
    enum { name##_shared = sizeof(shared_type) }
RUN(path_plan, mp_gpu_path_plan_shared, mp_gpu_path_plan_thread);
RUN(gemv_4, mp_gpu_gemv_4_shared, mp_gpu_gemv_thread);
RUN(experts_thin_bf16, mp_experts_thin_shared, mp_experts_thread);
RUN(experts_broad_bf16, mp_experts_broad_shared, mp_experts_thread);
RUN(experts_plain_bf16, mp_experts_plain_shared, mp_experts_plain_thread);

static void run(launch of, const void *args, uint32_t n_threads, uint32_t shared_bytes,
                uint32_t n_blocks)
{
    of.args = args;
    run_blocks(of, n_threads, shared_bytes, n_blocks);
}

static uint32_t random_state = 1;

static uint32_t below(uint32_t n)
{
    random_state = random_state * 1664525u + 1013904223u;
    return (random_state >> 8) % n;
}

/* ---- Paths -------------------------------------------------------------------------------- */

enum { EXPERTS = 300, KEYS = 2 * EXPERTS, ROWS = 700 };

static struct {
    mp_path_state state;
    mp_path_mail mail;
    int32_t ids[ROWS], map[KEYS];
    uint32_t stamps[KEYS], mail_stamps[KEYS], rows[ROWS];
    mp_gpu_expert table[EXPERTS];
    uint32_t stop;
} path;

/* What a message asks for is brought, in the order of a stream's writes. */
static void *serve(void *unused)
{
    uint32_t served = 0;
    while (!__atomic_load_n(&path.stop, __ATOMIC_ACQUIRE)) {
        const uint32_t sequence = __atomic_load_n(&path.mail.sequence, __ATOMIC_ACQUIRE);
        if (sequence == served) {
            mp_cpu_pause();
            continue;
        }
        for (uint32_t i = 0; i < path.mail.n; i++) {
            const uint32_t key = path.mail.layer * EXPERTS + path.mail.experts[i];
            if (path.mail_stamps[key] == path.mail.now)
                __atomic_store_n(&path.map[key], (int32_t)(key + 7), __ATOMIC_RELAXED);
        }
        served = sequence;
        __atomic_store_n(&path.state.answer, MP_PATH_ANSWER(sequence, 0), __ATOMIC_RELEASE);
    }
    return unused;
}

static void expect_layer(uint32_t layer)
{
    uint32_t at = 0, row = 0;
    assert_int_equal(path.state.failed, 0);
    for (uint32_t e = 0; e < EXPERTS; e++) {
        uint32_t n = 0;
        for (uint32_t r = 0; r < ROWS; r++)
            n += path.ids[r] == (int32_t)e;
        if (!n)
            continue;
        assert_ptr_equal(path.table[at].gate, (uintptr_t)(layer * EXPERTS + e + 7) * 64);
        assert_int_equal(path.table[at].first_row, row);
        assert_int_equal(path.table[at++].n_rows, n);
        for (uint32_t i = 0; i < n; i++)
            assert_int_equal(path.ids[path.rows[row++]], e);
    }
    assert_int_equal(path.state.n_experts, at);
}

static void test_cuda_kernel_threads_plan_a_layer(void **state)
{
    (void)state;
    pthread_t host;
    memset(&path, 0, sizeof path);
    memset(path.map, 0xff, sizeof path.map);
    assert_int_equal(pthread_create(&host, NULL, serve, NULL), 0);
    for (uint32_t step = 0; step < 4; step++) {
        const mp_gpu_path_plan_args args = {
            .ids = path.ids,
            .state = &path.state,
            .mail = &path.mail,
            .mail_stamps = path.mail_stamps,
            .map = path.map,
            .stamps = path.stamps,
            .table = path.table,
            .rows = path.rows,
            .slot_bytes = 64,
            .layout = {.gate_bias = UINT64_MAX, .up_bias = UINT64_MAX, .down_bias = UINT64_MAX},
            .timeout_ns = UINT64_MAX,
            .n_keys = KEYS,
            .experts = EXPERTS,
            .layer = step % 2,
            .n_rows = ROWS,
        };
        for (uint32_t r = 0; r < ROWS; r++)
            path.ids[r] = (int32_t)below(EXPERTS / 2 + step * 40) - 1;
        run(path_plan_launch, &args, MP_PATH_THREADS, path_plan_shared, 1);
        expect_layer(step % 2);
    }
    __atomic_store_n(&path.stop, 1, __ATOMIC_RELEASE);
    pthread_join(host, NULL);
    assert_int_equal(path.mail.layers, 4);
}

/* ---- Products with quantised weights ------------------------------------------------------ */

/* Small integers: any order of sums is exact. */
static void test_cuda_kernel_threads_multiply_quantised_weights(void **state)
{
    (void)state;
    enum { ROWS_OF_W = 37, COLUMNS = 1056, TOKENS = 3 };
    static _Alignas(16) int8_t w[ROWS_OF_W * COLUMNS];
    static uint16_t scales[ROWS_OF_W * COLUMNS / 32];
    static float x[TOKENS * COLUMNS], y[TOKENS * ROWS_OF_W];
    for (uint32_t i = 0; i < sizeof w; i++)
        w[i] = (int8_t)((int32_t)below(9) - 4);
    for (uint32_t i = 0; i < sizeof scales / sizeof *scales; i++)
        scales[i] = 0x3c00; /* 1 */
    for (uint32_t i = 0; i < TOKENS * COLUMNS; i++)
        x[i] = (float)below(9) - 4;
    const mp_gpu_gemv_args args = {
        .packed = (const uint8_t *)w,
        .scales = scales,
        .x = x,
        .y = y,
        .rows = ROWS_OF_W,
        .columns = COLUMNS,
        .row_bytes = COLUMNS,
        .row_groups = COLUMNS / 32,
        .bits = 8,
        .group_shift = 5,
        .dtype = MP_SCALAR_F32,
        .n_tokens = TOKENS,
        .n_threads = MP_GEMV_THREADS,
        .whole = 1,
    };
    run(gemv_4_launch, &args, MP_GEMV_THREADS, gemv_4_shared,
        (ROWS_OF_W + MP_GEMV_THREADS / 32 * MP_GEMV_ROWS - 1) /
            (MP_GEMV_THREADS / 32 * MP_GEMV_ROWS));
    for (uint32_t t = 0; t < TOKENS; t++) {
        for (uint32_t r = 0; r < ROWS_OF_W; r++) {
            float sum = 0;
            for (uint32_t c = 0; c < COLUMNS; c++)
                sum += (float)w[r * COLUMNS + c] * x[t * COLUMNS + c];
            assert_true(y[t * ROWS_OF_W + r] == sum);
        }
    }
}

/* ---- Experts ------------------------------------------------------------------------------ */

enum {
    HIDDEN = 96,
    INTERMEDIATE = 72,
    SIZE = HIDDEN * INTERMEDIATE,
    TOKENS_OF_X = 70,
    N_EXPERTS = 3
};

static _Alignas(16) uint16_t weights[N_EXPERTS][3][SIZE];
static _Alignas(16) uint16_t x_narrow[TOKENS_OF_X * HIDDEN];
static _Alignas(16) float x_wide[TOKENS_OF_X * HIDDEN];
static mp_gpu_expert experts[N_EXPERTS];
static uint32_t order_of_rows[TOKENS_OF_X];

static void fill_experts(void)
{
    static const uint32_t n_rows[N_EXPERTS] = {1, 0, TOKENS_OF_X - 1};
    uint32_t first = 0;
    for (uint32_t e = 0; e < N_EXPERTS; e++) {
        for (uint32_t i = 0; i < 3 * SIZE; i++)
            weights[e][i / SIZE][i % SIZE] = mp_scalar_to_bf16(((float)below(2001) - 1000) / 4000);
        experts[e] = (mp_gpu_expert){.gate = weights[e][0],
                                     .up = weights[e][1],
                                     .down = weights[e][2],
                                     .first_row = first,
                                     .n_rows = n_rows[e]};
        first += n_rows[e];
    }
    for (uint32_t i = 0; i < TOKENS_OF_X * HIDDEN; i++) {
        x_narrow[i] = mp_scalar_to_bf16(((float)below(2001) - 1000) / 1000);
        x_wide[i] = mp_scalar_from_bf16(x_narrow[i]);
    }
    for (uint32_t i = 0; i < TOKENS_OF_X; i++)
        order_of_rows[i] = TOKENS_OF_X - 1 - i;
}

static void run_experts(launch form, uint32_t shared_bytes, const void *x, float *partial)
{
    static _Alignas(16) float inner[TOKENS_OF_X * INTERMEDIATE];
    mp_gpu_experts_args args = {
        .x = x,
        .experts = experts,
        .rows = order_of_rows,
        .inner = inner,
        .partial = partial,
        .n_experts = N_EXPERTS,
        .top_k = 1,
        .hidden = HIDDEN,
        .intermediate = INTERMEDIATE,
        .dtype = MP_SCALAR_BF16,
        .bias_dtype = MP_SCALAR_BF16,
        .least_rows = 1,
        .most_rows = UINT32_MAX,
    };
    for (args.down = 0; args.down < 2; args.down++)
        run(form, &args, MP_EXPERTS_THREADS, shared_bytes, 2);
}

/* Both forms of BF16 math have the same bits, and FP32 math is close to them. */
static void test_cuda_kernel_threads_run_experts(void **state)
{
    (void)state;
    static float thin[TOKENS_OF_X * HIDDEN], broad[TOKENS_OF_X * HIDDEN],
        plain[TOKENS_OF_X * HIDDEN];
    fill_experts();
    run_experts(experts_thin_bf16_launch, experts_thin_bf16_shared, x_narrow, thin);
    run_experts(experts_broad_bf16_launch, experts_broad_bf16_shared, x_narrow, broad);
    run_experts(experts_plain_bf16_launch, experts_plain_bf16_shared, x_wide, plain);
    assert_memory_equal(thin, broad, sizeof thin);
    float most = 0, worst = 0;
    for (uint32_t i = 0; i < TOKENS_OF_X * HIDDEN; i++) {
        const float size = plain[i] < 0 ? -plain[i] : plain[i];
        const float apart = plain[i] < thin[i] ? thin[i] - plain[i] : plain[i] - thin[i];
        most = size > most ? size : most;
        worst = apart > worst ? apart : worst;
    }
    assert_true(most > 0.5f && worst < most / 100);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_cuda_kernel_threads_plan_a_layer),
        cmocka_unit_test(test_cuda_kernel_threads_multiply_quantised_weights),
        cmocka_unit_test(test_cuda_kernel_threads_run_experts),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
