/* How fast the host kernels run experts of every block format, and of floats, beside ggml's CPU backend and
 * beside plain reading: the same bytes, shapes and rows, taking turns. Not part of any suite; compare_ggml.sh builds and runs it.
 *
 *   compare_ggml [set=NAME] [format=NAME] [math=fp32|bf16|int8] [shape=HxI] [threads=1|2] [rows=N]
 *
 * ggml's side is three matrix products and SwiGLU of one expert, weights in the file's layout. It rounds
 * activations to 8 bits per block first, so results agree roughly: by how much is printed. Shapes that are
 * no whole blocks of a format leave it out. */
#include <math.h>
#include <pthread.h>
#include <sched.h>
#include <stdatomic.h>
#include <stdio.h>

#include "cold_experts.h"
#include "ggml-cpu.h"
#include "ggml.h"

#define TURNS 7
#define TURN_SECONDS 0.08
#define N_COUNTS 5

static const uint32_t counts[N_COUNTS] = {1, 4, 8, 64, 512};

/* ---- ggml's side ---- */

/* The products of one expert; the weights' addresses are set for each. */
typedef struct peer {
    struct ggml_context *context;
    struct ggml_cgraph *graph;
    struct ggml_cplan plan;
    struct ggml_threadpool *threads;
    struct ggml_tensor *gate, *up, *down;
    void *memory[4];
    float *out;
} peer;

static enum ggml_type peer_type(uint32_t dtype)
{
    const mp_block_format *format = mp_block_format_of(dtype);
    return format                       ? (enum ggml_type)format->ggml_type
           : dtype == MOEPAGE_DTYPE_F32 ? GGML_TYPE_F32
           : dtype == MOEPAGE_DTYPE_F16 ? GGML_TYPE_F16
                                        : GGML_TYPE_BF16;
}

static struct ggml_tensor *placed(struct ggml_tensor *tensor, void **memory)
{
    *memory = cold_memory(ggml_nbytes(tensor));
    tensor->data = *memory;
    return tensor;
}

static void open_peer(peer *p, const cold_experts *c, uint32_t n_rows)
{
    const struct ggml_init_params settings = {.mem_size = 1 << 20, .no_alloc = true};
    const enum ggml_type type = peer_type(c->dtype);
    struct ggml_threadpool_params threads = ggml_threadpool_params_default((int)c->n_threads);
    threads.paused = true;
    *p = (peer){.context = ggml_init(settings)};
    p->gate = ggml_new_tensor_2d(p->context, type, c->hidden, c->intermediate);
    p->up = ggml_new_tensor_2d(p->context, type, c->hidden, c->intermediate);
    p->down = ggml_new_tensor_2d(p->context, type, c->intermediate, c->hidden);
    struct ggml_tensor *x = ggml_new_tensor_2d(p->context, GGML_TYPE_F32, c->hidden, n_rows);
    x->data = c->from;
    struct ggml_tensor *g = placed(ggml_mul_mat(p->context, p->gate, x), &p->memory[0]);
    struct ggml_tensor *u = placed(ggml_mul_mat(p->context, p->up, x), &p->memory[1]);
    struct ggml_tensor *inner = placed(ggml_swiglu_split(p->context, g, u), &p->memory[2]);
    struct ggml_tensor *out = placed(ggml_mul_mat(p->context, p->down, inner), &p->memory[3]);
    p->out = out->data;
    p->graph = ggml_new_graph(p->context);
    ggml_build_forward_expand(p->graph, out);
    p->threads = ggml_threadpool_new(&threads);
    p->plan = ggml_graph_plan(p->graph, (int)c->n_threads, p->threads);
    p->plan.work_data = cold_memory(p->plan.work_size + 64);
}

static void close_peer(peer *p)
{
    for (size_t i = 0; i < 4; i++)
        free(p->memory[i]);
    free(p->plan.work_data);
    ggml_threadpool_free(p->threads);
    ggml_free(p->context);
}

static void run_peer(peer *p, const cold_experts *c, uint32_t e)
{
    uint8_t *at = c->weights + e * c->expert_bytes;
    p->gate->data = at;
    p->up->data = at + c->matrix_bytes;
    p->down->data = at + 2 * c->matrix_bytes;
    if (ggml_graph_compute(p->graph, &p->plan) != GGML_STATUS_SUCCESS)
        exit(1);
}

/* ---- Turns ---- */

/* Of two threads the second takes part in whatever the counter says has begun. It waits without sleep, and so lives only
 * as long as a turn: ggml's threads are paused then, and it is gone while they run. */
typedef struct helper {
    pthread_t thread;
    const cold_experts *c;
    uint32_t expert, phase;
    atomic_uint begun, ended;
    atomic_bool stop;
} helper;

enum { CONVERT = 2, READ = 3 };

static void do_share(const cold_experts *c, uint32_t expert, uint32_t phase, uint32_t part)
{
    if (phase == CONVERT)
        cold_convert(c, part);
    else if (phase == READ)
        cold_read(c, expert, part);
    else
        cold_run(c, expert, phase, part);
}

static void *help(void *argument)
{
    helper *h = argument;
    for (unsigned seen = 0;; seen++) {
        while (atomic_load(&h->begun) == seen && !atomic_load(&h->stop))
            sched_yield();
        if (atomic_load(&h->stop))
            return NULL;
        do_share(h->c, h->expert, h->phase, 1);
        atomic_fetch_add(&h->ended, 1);
    }
}

static void open_helper(helper *h)
{
    atomic_store(&h->begun, 0);
    atomic_store(&h->ended, 0);
    atomic_store(&h->stop, false);
    if (h->c->n_threads > 1 && pthread_create(&h->thread, NULL, help, h))
        exit(1);
}

static void close_helper(helper *h)
{
    atomic_store(&h->stop, true);
    if (h->c->n_threads > 1)
        pthread_join(h->thread, NULL);
}

static void do_phase(helper *h, uint32_t expert, uint32_t phase)
{
    if (h->c->n_threads == 1) {
        do_share(h->c, expert, phase, 0);
        return;
    }
    h->expert = expert;
    h->phase = phase;
    const unsigned turn = atomic_fetch_add(&h->begun, 1) + 1;
    do_share(h->c, expert, phase, 0);
    while (atomic_load(&h->ended) != turn)
        sched_yield();
}

/* Activations are converted for every expert, as ggml does. */
static void run_ours(helper *h, uint32_t e)
{
    if (h->c->math != MOEPAGE_MATH_FP32)
        do_phase(h, e, CONVERT);
    do_phase(h, e, 0);
    do_phase(h, e, 1);
}

static int by_size(const void *a, const void *b)
{
    const double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

/* Whose turn it is. */
typedef enum { OURS, PEERS, READING, N_KINDS } turn_kind;

/* Seconds per expert. */
static double one_turn(turn_kind kind, cold_experts *c, helper *h, peer *p)
{
    static uint32_t next;
    uint32_t n = 0;
    if (kind == PEERS)
        ggml_threadpool_resume(p->threads);
    else
        open_helper(h);
    const double begin = cold_seconds(c->n_threads);
    double end;
    do {
        next = (next + 1) % c->n_experts;
        if (kind == OURS)
            run_ours(h, next);
        else if (kind == PEERS)
            run_peer(p, c, next);
        else
            do_phase(h, next, READ);
        n++;
        end = cold_seconds(c->n_threads);
    } while (end - begin < TURN_SECONDS);
    if (kind == PEERS)
        ggml_threadpool_pause(p->threads);
    else
        close_helper(h);
    return (end - begin) / n;
}

/* Their medians. */
static void take_turns(cold_experts *c, helper *h, peer *p, double *seconds)
{
    double all[N_KINDS][TURNS];
    for (uint32_t turn = 0; turn < TURNS; turn++)
        for (turn_kind kind = OURS; kind < N_KINDS; kind++)
            all[kind][turn] = one_turn(kind, c, h, p);
    for (turn_kind kind = OURS; kind < N_KINDS; kind++) {
        qsort(all[kind], TURNS, sizeof(double), by_size);
        seconds[kind] = all[kind][TURNS / 2];
    }
}

/* Root mean square of the difference over that of ggml's results. */
static double difference(const cold_experts *c, const peer *p)
{
    double error = 0, size = 0;
    for (uint64_t i = 0; i < (uint64_t)c->n_rows * c->hidden; i++) {
        const double d = (double)c->out[i] - (double)p->out[i];
        error += d * d;
        size += (double)p->out[i] * (double)p->out[i];
    }
    return sqrt(error / size);
}

static void compare(cold_experts *c, uint32_t only_rows)
{
    const double bytes = (double)c->expert_bytes * 1e-9;
    double most = 0;
    printf("%-7s", c->name);
    for (uint32_t i = 0; i < N_COUNTS; i++) {
        double seconds[N_KINDS];
        peer p;
        helper h = {.c = c};
        c->n_rows = counts[i];
        if (only_rows && c->n_rows != only_rows)
            continue;
        for (uint32_t part = 0; part < c->n_threads && c->math == MOEPAGE_MATH_FP32; part++)
            cold_convert(c, part);
        open_peer(&p, c, c->n_rows);
        take_turns(c, &h, &p, seconds);
        ggml_threadpool_resume(p.threads);
        run_peer(&p, c, 0);
        const double off = difference(c, &p);
        most = off > most ? off : most;
        if (c->n_rows == 1)
            printf("  %6.1f %4.2f", bytes / seconds[READING], seconds[READING] / seconds[OURS]);
        printf("  %6.1f %6.1f %5.2f", bytes / seconds[OURS], bytes / seconds[PEERS],
               seconds[PEERS] / seconds[OURS]);
        fflush(stdout);
        close_peer(&p);
    }
    printf("  %.4f\n", most);
}

/* Floats first. */
static void compare_all(cold_experts *c, const char *only, uint32_t only_rows)
{
    static const char *const floats[] = {"F32", "F16", "BF16"};
    static const uint32_t dtypes[] = {MOEPAGE_DTYPE_F32, MOEPAGE_DTYPE_F16, MOEPAGE_DTYPE_BF16};
    const uint32_t n_blocks = MOEPAGE_DTYPE_NVFP4 - MOEPAGE_DTYPE_Q4_0 + 1;
    for (uint32_t i = 0; i < 3 + n_blocks; i++) {
        c->dtype = i < 3 ? dtypes[i] : MOEPAGE_DTYPE_Q4_0 + i - 3;
        const mp_block_format *format = mp_block_format_of(c->dtype);
        const uint32_t weights = format ? format->weights : 1;
        c->name = format ? format->name : floats[i];
        if ((only && strcmp(only, c->name) != 0) || c->hidden % weights ||
            c->intermediate % weights)
            continue;
        cold_open(c);
        compare(c, only_rows);
        cold_close(c);
    }
}

int main(int argc, char **argv)
{
    const char *set = cold_option(argc, argv, "set"), *math = cold_option(argc, argv, "math");
    const char *only = cold_option(argc, argv, "format");
    const char *shape = cold_option(argc, argv, "shape"),
               *threads = cold_option(argc, argv, "threads"),
               *rows = cold_option(argc, argv, "rows");
    cold_experts c = {.hidden = 2048, .intermediate = 768, .n_threads = 1};
    c.math = cold_math(math);
    c.n_threads = threads ? (uint32_t)atoi(threads) : 1;
    c.set = set ? mp_host_kernels_find(set) : mp_host_kernels_best();
    if (!c.set || c.n_threads > 2 ||
        (shape && sscanf(shape, "%ux%u", &c.hidden, &c.intermediate) != 2)) {
        fprintf(stderr,
                "usage: %s [set=portable|avx2|avx512|avx512-bf16] [format=Q4_K] "
                "[math=fp32|bf16|int8] [shape=2048x768] [threads=1|2] "
                "[rows=1|4|8|64|512]\n",
                argv[0]);
        return 1;
    }
    ggml_cpu_init();
    printf("%s, H %u, I %u, math %s, %u threads, ggml %s: at 1, 4, 8, 64 and 512 rows GB/s of "
           "weights, "
           "ours and ggml's, and how many times as fast, before those of 1 row GB/s of reading and "
           "our share of it; the greatest difference\n",
           mp_host_kernels_name(c.set), c.hidden, c.intermediate, math ? math : "fp32", c.n_threads,
           ggml_version());
    compare_all(&c, only, rows ? (uint32_t)atoi(rows) : 0);
    return 0;
}
