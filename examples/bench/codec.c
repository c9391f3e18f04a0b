/* moepage-bench codec: exph beside general coders and memcpy, on the same weights in one run.
 *
 * Every coder takes its turn in every round, so that disturbances of the machine affect all of
 * them. Figures of one core are of its thread's CPU time, which other programs disturb less.
 * Decoding restores the weights' bits, which is checked before it is timed. exph's decoding
 * includes checking the stream and its checksums; that of byte planes includes joining them. */
#include <inttypes.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "bench/bench.h"
#include "bench/coders.h"
#include "common/clock.h"
#include "common/fail.h"
#include "common/flags.h"
#include "common/workers.h"

enum { MAX_CODERS = 16, DECODE_ROUNDS = 11, ENCODE_ROUNDS = 3, MAX_MB = 4096 };

typedef struct codec_options {
    const char *model;
    uint32_t mb;
    uint32_t threads;
} codec_options;

/* One coder's streams and times. */
typedef struct contestant {
    const coder *coder;
    struct contestant *encoded_by; /* itself, or the contestant whose streams it decodes */
    bool runs;
    unsigned char **streams;            /* [n_tensors] */
    uint64_t *bytes;                    /* [n_tensors] */
    double encode_ns[2][ENCODE_ROUNDS]; /* on one core, and on all cores */
    double decode_ns[2][DECODE_ROUNDS];
    double ratio;
} contestant;

typedef struct contest {
    bench_weights weights;
    contestant entrants[MAX_CODERS];
    unsigned char *out; /* as large as all weights */
    workers *crew[2];   /* of one thread, and of all */
    uint32_t threads;
    const contestant *now; /* the contestant being measured */
    _Atomic uint32_t failures;
} contest;

/* ---- Turns ------------------------------------------------------------------------------- */

static void encode_one(void *arg, uint32_t item, float *scratch)
{
    contest *c = arg;
    const contestant *e = c->now;
    e->bytes[item] =
        e->coder->encode(e->coder, &c->weights.tensors[item], scratch, e->streams[item]);
    c->failures += e->bytes[item] == 0;
}

static void decode_one(void *arg, uint32_t item, float *scratch)
{
    contest *c = arg;
    const contestant *e = c->now, *by = e->encoded_by;
    const bench_tensor *t = &c->weights.tensors[item];
    unsigned char *out = c->out + (t->data - c->weights.memory);
    c->failures += !e->coder->decode(e->coder, t, by->streams[item], by->bytes[item], scratch, out);
}

static int turn(contest *c, const contestant *e, uint32_t crew, workers_fn what, double *ns)
{
    uint64_t (*const clock)(void) = crew ? clock_now_ns : clock_thread_ns;
    c->now = e;
    uint64_t began = clock();
    workers_run(c->crew[crew], c->weights.n_tensors, c->weights.bytes, what, c);
    *ns = (double)(clock() - began);
    return c->failures ? fail(RUN_FAILED, "%s failed", e->coder->name) : RUN_OK;
}

static int encode_round(contest *c, int round)
{
    int code = RUN_OK;
    for (uint32_t i = 0; i < n_coders && !code; i++)
        for (uint32_t crew = 0; crew < 2 && !code && c->entrants[i].coder->encode; crew++)
            code =
                turn(c, &c->entrants[i], crew, encode_one, &c->entrants[i].encode_ns[crew][round]);
    return code;
}

static int decode_round(contest *c, int round)
{
    int code = RUN_OK;
    for (uint32_t crew = 0; crew < 2; crew++)
        for (uint32_t i = 0; i < n_coders && !code; i++)
            if (c->entrants[i].runs)
                code = turn(c, &c->entrants[i], crew, decode_one,
                            &c->entrants[i].decode_ns[crew][round]);
    return code;
}

/* ---- Preparation ------------------------------------------------------------------------ */

static int prepare(contest *c, contestant *e, const coder *which)
{
    uint32_t n = c->weights.n_tensors;
    e->coder = which;
    e->encoded_by = which->encode ? e : (e - 1)->encoded_by;
    if (!which->encode)
        return RUN_OK;
    e->streams = calloc(n, sizeof *e->streams);
    e->bytes = calloc(n, sizeof *e->bytes);
    if (!e->streams || !e->bytes)
        return fail_memory();
    for (uint32_t t = 0; t < n; t++)
        if (!(e->streams[t] = malloc(coder_room(c->weights.tensors[t].elements))))
            return fail_memory();
    return RUN_OK;
}

/* Finds this CPU's decoders, and checks that all give the same bits. */
static int check(contest *c)
{
    double ns;
    for (uint32_t i = 0; i < n_coders; i++) {
        contestant *e = &c->entrants[i];
        const contestant *by = e->encoded_by;
        const bench_tensor *t = &c->weights.tensors[0];
        if (e->coder->decoder &&
            moepage_exph_decode(e->coder->decoder, t->dtype, by->streams[0], by->bytes[0], c->out,
                                t->elements) == MOEPAGE_E_NOT_FOUND)
            continue;
        e->runs = true;
        memset(c->out, 0xa5, c->weights.bytes);
        int code = turn(c, e, 1, decode_one, &ns);
        if (code)
            return code;
        if (memcmp(c->out, c->weights.memory, c->weights.bytes) != 0)
            return fail(RUN_FAILED, "%s does not give the weights back", e->coder->name);
        uint64_t sum = 0;
        for (uint32_t n = 0; n < c->weights.n_tensors; n++)
            sum += by->bytes[n];
        e->ratio = (double)sum / (double)c->weights.bytes;
    }
    return RUN_OK;
}

static int set_up(const codec_options *o, contest *c)
{
    int code = bench_weights_open(o->model, (uint64_t)o->mb << 20, &c->weights);
    if (code)
        return code;
    long cpus = sysconf(_SC_NPROCESSORS_ONLN);
    c->threads = o->threads ? o->threads : cpus > 0 ? (uint32_t)cpus : 1;
    c->out = malloc(c->weights.bytes);
    c->crew[0] = workers_start(1, (c->weights.longest + 1) / 2);
    c->crew[1] = workers_start(c->threads, (c->weights.longest + 1) / 2);
    if (!c->out || !c->crew[0] || !c->crew[1])
        return fail_memory();
    for (uint32_t i = 0; i < n_coders && !code; i++)
        code = prepare(c, &c->entrants[i], &coders[i]);
    return code;
}

static void tear_down(contest *c)
{
    for (uint32_t i = 0; i < n_coders; i++) {
        contestant *e = &c->entrants[i];
        for (uint32_t t = 0; e->streams && t < c->weights.n_tensors; t++)
            free(e->streams[t]);
        free(e->streams);
        free(e->bytes);
    }
    for (int i = 0; i < 2; i++)
        if (c->crew[i])
            workers_stop(c->crew[i]);
    free(c->out);
    bench_weights_close(&c->weights);
}

/* ---- Results ---------------------------------------------------------------------------- */

/* Converts times to rates: the fastest time is the 90th percentile of rates. */
static spread rates(const contest *c, double *ns, size_t n)
{
    spread t = bench_spread(ns, n);
    double bytes = (double)c->weights.bytes;
    return (spread){bytes / t.high, bytes / t.median, bytes / t.low};
}

static void print_row(contest *c, contestant *e, double decode[2])
{
    printf("%-21s ", e->coder->name);
    if (!e->runs) {
        printf(" not on this CPU\n");
        return;
    }
    printf("%6.2f%%  ", 100 * e->ratio);
    for (int crew = 0; crew < 2; crew++)
        if (e->coder->encode)
            printf("%7.2f ", rates(c, e->encode_ns[crew], ENCODE_ROUNDS).median);
        else
            printf("%7s ", "\"");
    for (int crew = 0; crew < 2; crew++) {
        spread r = rates(c, e->decode_ns[crew], DECODE_ROUNDS);
        printf("  %6.2f %6.2f %6.2f", r.low, r.median, r.high);
        decode[crew] = r.median;
    }
    putchar('\n');
}

static void print_quotient(const double decode[][2], const char *above, const char *below)
{
    uint32_t a = 0, b = 0;
    while (a < n_coders && strcmp(coders[a].name, above))
        a++;
    while (b < n_coders && strcmp(coders[b].name, below))
        b++;
    if (a < n_coders && b < n_coders && decode[a][0] > 0 && decode[b][0] > 0)
        printf("  %-14s / %-21s %6.2f %8.2f\n", above, below, decode[a][0] / decode[b][0],
               decode[a][1] / decode[b][1]);
}

static void print_contest(const codec_options *o, contest *c)
{
    double decode[MAX_CODERS][2] = {{0}};
    printf("codec: %.0f MB of %s in %" PRIu32 " tensors; %d rounds of decoding, in turn; GB/s of "
           "weights,\nmedians with the 10th and 90th percentile; one core by CPU time\n\n",
           (double)c->weights.bytes / 1e6,
           o->model ? o->model : "Gaussian BF16 weights (sigma 0.02)", c->weights.n_tensors,
           DECODE_ROUNDS);
    printf(
        "                                  encode           decode, one core      decode, %3" PRIu32
        " threads\n"
        "                         size  1 core     all     p10    p50    p90     p10    p50    "
        "p90\n",
        c->threads);
    for (uint32_t i = 0; i < n_coders; i++)
        print_row(c, &c->entrants[i], decode[i]);
    printf("\ndecoding, medians                        one core      all\n");
    print_quotient(decode, "exph, avx512", "zstd -1");
    print_quotient(decode, "exph, avx512", "zstd -1, byte planes");
    print_quotient(decode, "exph, avx512", "memcpy");
    print_quotient(decode, "exph, avx2", "zstd -1");
    print_quotient(decode, "exph, avx2", "zstd -1, byte planes");
    print_quotient(decode, "exph, portable", "zstd -1");
}

#define AT(member) .offset = offsetof(codec_options, member)

int bench_codec(int argc, char **argv)
{
    static const flag flags[] = {
        {"--model", flag_text, AT(model)},
        {"--mb", flag_u32, AT(mb), .least = 1, .most = MAX_MB},
        {"--threads", flag_u32, AT(threads), .most = 1024},
    };
    codec_options o = {.mb = 128};
    static contest c;
    int code = flags_read(flags, sizeof flags / sizeof *flags, argc, argv, NULL, &o);
    if (code)
        return code;
    code = set_up(&o, &c);
    for (int round = 0; round < ENCODE_ROUNDS && !code; round++)
        code = encode_round(&c, round);
    if (!code)
        code = check(&c);
    for (int round = 0; round < DECODE_ROUNDS && !code; round++)
        code = decode_round(&c, round);
    if (!code)
        print_contest(&o, &c);
    tear_down(&c);
    return code;
}
