/* How fast the host kernels run experts of every block format beside the same in BF16, and beside plain
 * reading of the same memory. Not part of any suite; docs/host-kernels.md has the command and what came
 * out.
 *
 *   bench_blocks [set=NAME] [format=NAME] [math=fp32|bf16|int8] [threads=1|2] [shape=HxI] [rows=N]
 *
 * Experts are taken in turn from a set larger than the last-level cache, as paging finds them. Reading
 * and each number of rows take turns; each figure is its best turn. One thread is timed by the process's
 * own time, two by the clock. */
#include <immintrin.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdio.h>

#include "cold_experts.h"

#define TURNS 7
#define TURN_SECONDS 0.06
#define N_COUNTS 4

static const uint32_t counts[N_COUNTS] = {1, 4, 8, 64};

/* ---- Two threads ---- */

/* The second thread takes part in whatever the counter says has begun. */
typedef struct helper {
    pthread_t thread;
    const cold_experts *b;
    uint32_t expert, phase;
    atomic_uint begun, ended;
    atomic_bool stop;
} helper;

enum { READ = 2, CONVERT = 3 };

static void do_share(const cold_experts *b, uint32_t expert, uint32_t phase, uint32_t part)
{
    if (phase == READ)
        cold_read(b, expert, part);
    else if (phase == CONVERT)
        cold_convert(b, part);
    else
        cold_run(b, expert, phase, part);
}

static void *help(void *argument)
{
    helper *h = argument;
    for (unsigned seen = 0;; seen++) {
        while (atomic_load(&h->begun) == seen && !atomic_load(&h->stop))
            _mm_pause();
        if (atomic_load(&h->stop))
            return NULL;
        do_share(h->b, h->expert, h->phase, 1);
        atomic_fetch_add(&h->ended, 1);
    }
}

static void do_phase(helper *h, uint32_t expert, uint32_t phase)
{
    if (h->b->n_threads == 1) {
        do_share(h->b, expert, phase, 0);
        return;
    }
    h->expert = expert;
    h->phase = phase;
    const unsigned turn = atomic_fetch_add(&h->begun, 1) + 1;
    do_share(h->b, expert, phase, 0);
    while (atomic_load(&h->ended) != turn)
        _mm_pause();
}

/* ---- Times ---- */

/* Seconds per expert; rows 0 is reading. */
static double one_turn(cold_experts *b, helper *h, uint32_t n_rows)
{
    static uint32_t next;
    uint32_t n = 0;
    b->n_rows = n_rows;
    if (n_rows)
        do_phase(h, 0, CONVERT);
    const double begin = cold_seconds(b->n_threads);
    double end;
    do {
        next = (next + 1) % b->n_experts;
        if (n_rows == 0) {
            do_phase(h, next, READ);
        } else {
            do_phase(h, next, 0);
            do_phase(h, next, 1);
        }
        n++;
        end = cold_seconds(b->n_threads);
    } while (end - begin < TURN_SECONDS);
    return (end - begin) / n;
}

static void measure(cold_experts *b, uint32_t only_rows)
{
    double best[1 + N_COUNTS];
    helper h = {.b = b};
    if (b->n_threads > 1 && pthread_create(&h.thread, NULL, help, &h))
        exit(1);
    for (uint32_t i = 0; i <= N_COUNTS; i++)
        best[i] = 1e9;
    for (uint32_t turn = 0; turn < TURNS; turn++)
        for (uint32_t i = 0; i <= N_COUNTS; i++) {
            if (i > 0 && only_rows && counts[i - 1] != only_rows)
                continue;
            const double each = one_turn(b, &h, i ? counts[i - 1] : 0);
            best[i] = each < best[i] ? each : best[i];
        }
    if (b->n_threads > 1) {
        atomic_store(&h.stop, true);
        pthread_join(h.thread, NULL);
    }
    const double bytes = (double)b->expert_bytes * 1e-9;
    const double flops = 6.0 * b->hidden * b->intermediate * 1e-9;
    printf("%-7s %5.1f ", b->name, bytes / best[0]);
    for (uint32_t i = 0; i < N_COUNTS; i++)
        printf(" %6.1f %6.1f", bytes / best[1 + i], flops * counts[i] / best[1 + i]);
    printf("  %3.0f%%\n", 100 * best[0] / best[1]);
    fflush(stdout);
}

/* ---- Which ---- */

static void measure_formats(cold_experts b, const char *only, uint32_t only_rows)
{
    printf("%s, H %u, I %u, math %s, %u threads: GB/s of reading; at 1, 4, 8 and 64 rows GB/s of "
           "weights and GFLOP/s; one row's share of reading\n",
           mp_host_kernels_name(b.set), b.hidden, b.intermediate,
           b.math == MOEPAGE_MATH_FP32   ? "FP32"
           : b.math == MOEPAGE_MATH_BF16 ? "BF16"
                                         : "INT8",
           b.n_threads);
    for (uint32_t dtype = MOEPAGE_DTYPE_Q4_0 - 1; dtype <= MOEPAGE_DTYPE_NVFP4G256_F32; dtype++) {
        const mp_block_format *format = mp_block_format_of(dtype);
        b.dtype = format ? dtype : MOEPAGE_DTYPE_BF16;
        b.name = format ? format->name : "BF16";
        if (only && strcmp(only, b.name) != 0)
            continue;
        cold_open(&b);
        measure(&b, only_rows);
        cold_close(&b);
    }
}

int main(int argc, char **argv)
{
    const char *set = cold_option(argc, argv, "set"), *math = cold_option(argc, argv, "math");
    const char *threads = cold_option(argc, argv, "threads"),
               *shape = cold_option(argc, argv, "shape");
    const char *rows = cold_option(argc, argv, "rows");
    static const uint32_t maths[] = {MOEPAGE_MATH_FP32, MOEPAGE_MATH_BF16, MOEPAGE_MATH_INT8};
    cold_experts b = {.hidden = 2048, .intermediate = 768};
    b.set = set ? mp_host_kernels_find(set) : mp_host_kernels_best();
    if (!b.set || (shape && sscanf(shape, "%ux%u", &b.hidden, &b.intermediate) != 2)) {
        fprintf(stderr,
                "usage: %s [set=portable|avx2|avx512|avx512-bf16] [format=Q4_K] "
                "[math=fp32|bf16|int8] [threads=1|2] [shape=2048x768] [rows=1|4|8|64]\n",
                argv[0]);
        return 1;
    }
    for (uint32_t t = 1; t <= 2; t++)
        for (uint32_t m = 0; m < 3; m++) {
            b.n_threads = t;
            b.math = maths[m];
            if ((threads && (uint32_t)atoi(threads) != t) || (math && cold_math(math) != b.math))
                continue;
            measure_formats(b, cold_option(argc, argv, "format"), rows ? (uint32_t)atoi(rows) : 0);
        }
    return 0;
}
