/* Random programs over shared memory cells: with a wait for every hazard (read after write, write
 * after read, write after write), the outcome must be that of running the program in order.
 *
 * Streams of all classes read and write the same cells at once: kernels those in device memory,
 * cold fills those in host memory, transfers both. The oracle is the program run one operation
 * after the other on plain arrays. */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "rig.h"

enum { CELLS = 16, HOST_CELLS = 4, STREAMS = 9, OPS = 160, FLOATS = 4096 };

/* The first HOST_CELLS cells are in host memory. */
static const mp_stream_class classes[STREAMS] = {MP_STREAM_DEMAND,     MP_STREAM_DEMAND,
                                                 MP_STREAM_PREFETCH,   MP_STREAM_PREFETCH,
                                                 MP_STREAM_COMPUTE,    MP_STREAM_COMPUTE,
                                                 MP_STREAM_BACKGROUND, MP_STREAM_COLD,
                                                 MP_STREAM_COLD};

typedef struct mark {
    uint32_t stream;
    mp_tick tick; /* 0: none */
} mark;

typedef struct program {
    rig r;
    mp_stream *streams[STREAMS];
    float *cells[CELLS]; /* FLOATS each */
    float model[CELLS][FLOATS];
    mark written[CELLS];          /* by the last write */
    mp_tick read[CELLS][STREAMS]; /* the last read since then, by stream */
} program;

static bool computes(uint32_t stream)
{
    return classes[stream] == MP_STREAM_COMPUTE || classes[stream] == MP_STREAM_BACKGROUND;
}

static bool is_cold(uint32_t stream)
{
    return classes[stream] == MP_STREAM_COLD;
}

/* Makes `stream` wait for the last write of the cell and, before a write, for all reads of it. */
static void wait_for_cell(program *p, uint32_t stream, uint32_t cell, bool to_write)
{
    const mp_device_ops *ops = p->r.ops;
    mark w = p->written[cell];
    if (w.tick)
        MUST(ops->wait(p->streams[stream], p->streams[w.stream], w.tick));
    for (uint32_t s = 0; to_write && s < STREAMS; s++) {
        if (p->read[cell][s])
            MUST(ops->wait(p->streams[stream], p->streams[s], p->read[cell][s]));
    }
}

static void note_done(program *p, uint32_t stream, uint32_t from, uint32_t to, mp_tick tick)
{
    if (from < CELLS)
        p->read[from][stream] = tick;
    memset(p->read[to], 0, sizeof p->read[to]);
    p->written[to] = (mark){.stream = stream, .tick = tick};
}

/* The value that a fill writes: the same for the same key. */
static float fill_value(const uint32_t key[3], uint32_t i)
{
    return (float)((key[0] * 31 + i * 7) % 1000);
}

static moepage_status fill_cell(const mp_copy *copy, void *out)
{
    float *values = out;
    for (uint32_t i = 0; i < copy->bytes / sizeof *values; i++)
        values[i] = fill_value(copy->fill_key, (uint32_t)(copy->fill_offset / sizeof *values) + i);
    return 0;
}

static mp_tick submit_fill(program *p, uint32_t stream, uint32_t to, uint32_t n, uint32_t number)
{
    mp_copy copy = {.dst = p->cells[to],
                    .bytes = n * sizeof(float),
                    .fill = fill_cell,
                    .fill_key = {number, 0, 0}};
    for (uint32_t i = 0; i < n; i++)
        p->model[to][i] = fill_value(copy.fill_key, i);
    mp_tick tick = 0;
    MUST(p->r.ops->copy(p->streams[stream], &copy, 1, &tick));
    return tick;
}

static mp_tick submit_copy(program *p, uint32_t stream, uint32_t to, uint32_t from, uint32_t n)
{
    memcpy(p->model[to], p->model[from], n * sizeof(float));
    return rig_copy(&p->r, p->streams[stream], p->cells[to], p->cells[from], n * sizeof(float));
}

/* to += from: what is run twice, or too early or late, shows. */
static mp_tick submit_sum(program *p, uint32_t stream, uint32_t to, uint32_t from, uint32_t n)
{
    const float one = 1;
    const int32_t zero = 0;
    mp_kernel_combine_args args = {
        .partial = p->cells[from],
        .weights = rig_table(&p->r, &one, sizeof one),
        .ids = rig_table(&p->r, &zero, sizeof zero),
        .y = p->cells[to],
        .y_stride = n,
        .y_dtype = MOEPAGE_DTYPE_F32,
        .n_tokens = 1,
        .top_k = 1,
        .hidden = n,
        .accumulate = 1,
    };
    for (uint32_t i = 0; i < n; i++)
        p->model[to][i] += p->model[from][i];
    return rig_launch(&p->r, p->streams[stream], MP_KERNEL_COMBINE, &args);
}

static void submit_random_op(program *p, uint64_t *seed, uint32_t number)
{
    uint32_t stream = random_below(seed, STREAMS);
    uint32_t first = computes(stream) ? HOST_CELLS : 0; /* of those within reach */
    uint32_t within = is_cold(stream) ? HOST_CELLS : CELLS - first;
    uint32_t to = random_below(seed, within);
    uint32_t from = (to + 1 + random_below(seed, within - 1)) % within;
    uint32_t n = random_below(seed, 3) ? 1 + random_below(seed, 64) : FLOATS;
    bool fills = is_cold(stream) || (!computes(stream) && random_below(seed, 3) == 0);
    to += first;
    from += first;
    wait_for_cell(p, stream, to, true);
    if (!fills)
        wait_for_cell(p, stream, from, false);
    mp_tick tick;
    if (fills)
        tick = submit_fill(p, stream, to, n, number);
    else if (computes(stream) && random_below(seed, 4))
        tick = submit_sum(p, stream, to, from, n);
    else
        tick = submit_copy(p, stream, to, from, n);
    note_done(p, stream, fills ? CELLS : from, to, tick);
    if (random_below(seed, 16) == 0)
        MUST(p->r.ops->sync(p->streams[stream], tick));
}

static void run_program(program *p, uint64_t seed)
{
    uint64_t origin = seed;
    float got[FLOATS];
    memset(p->model, 0, sizeof p->model);
    memset(p->written, 0, sizeof p->written);
    memset(p->read, 0, sizeof p->read);
    for (uint32_t c = 0; c < CELLS; c++)
        rig_write(&p->r, p->cells[c], p->model[c], sizeof p->model[c]);
    for (uint32_t i = 0; i < OPS; i++)
        submit_random_op(p, &seed, i);
    for (uint32_t c = 0; c < CELLS; c++) {
        if (p->written[c].tick)
            MUST(p->r.ops->sync(p->streams[p->written[c].stream], p->written[c].tick));
    }
    for (uint32_t c = 0; c < CELLS; c++) {
        rig_read(&p->r, p->cells[c], got, sizeof got);
        if (memcmp(got, p->model[c], sizeof got))
            fail_msg("cell %u differs after the program of seed %llu", c,
                     (unsigned long long)origin);
    }
}

void test_hazards_are_kept_by_waits(void **state)
{
    (void)state;
    NEEDS(holds_bytes);
    program *p = calloc(1, sizeof *p);
    assert_non_null(p);
    rig_open(&p->r, 2, 0);
    for (uint32_t s = 0; s < STREAMS; s++)
        p->streams[s] = rig_stream(&p->r, classes[s]);
    for (uint32_t c = 0; c < CELLS; c++)
        p->cells[c] = rig_alloc(&p->r, c < HOST_CELLS ? MP_MEMORY_HOST : MP_MEMORY_WORKSPACE,
                                FLOATS * sizeof(float));
    for (uint32_t i = 0; i < rounds(150); i++)
        run_program(p, 1000 + i);
    rig_close(&p->r);
    free(p);
}
