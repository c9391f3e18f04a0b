/* Every form in which routing can be given holds the same trace, damage is refused in a sentence,
 * and streams hand out what was recorded. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "moepage.h"
#include "sim/trace.h"
#include "testing.h"
#include "trace/trace.h"

enum { LAYERS = 3, EXPERTS = 7, TOP_K = 2, WIDTH = LAYERS * TOP_K };
#define SHAPE ((sim_trace_shape){LAYERS, EXPERTS, TOP_K})

/* Three requests of 2, 1 and 3 tokens. */
static const uint8_t ids[6][WIDTH] = {{0, 1, 2, 3, 4, 6}, {1, 0, 3, 2, 6, 4}, {5, 1, 2, 0, 1, 3},
                                      {6, 5, 4, 3, 2, 1}, {0, 6, 1, 5, 2, 4}, {3, 0, 0, 3, 5, 6}};
static const uint32_t lengths[3] = {2, 1, 3};

typedef struct place {
    char dir[32];
    char path[128];
} place;

static const char *in(place *p, const char *name)
{
    snprintf(p->path, sizeof p->path, "%s/%s", p->dir, name);
    return p->path;
}

static void place_open(place *p)
{
    strcpy(p->dir, "/tmp/trace-XXXXXX");
    assert_non_null(mkdtemp(p->dir));
}

static void place_close(place *p)
{
    static const char *const names[] = {"experts.u8", "probs.bf16", "requests.csv", "x.trace",
                                        "x.csv",      "x.u8",       "x.txt"};
    for (size_t i = 0; i < sizeof names / sizeof *names; i++)
        unlink(in(p, names[i]));
    assert_int_equal(rmdir(p->dir), 0);
}

static void write_file(const char *path, const void *data, size_t size)
{
    FILE *file = fopen(path, "wb");
    assert_non_null(file);
    assert_int_equal(fwrite(data, 1, size, file), size);
    assert_int_equal(fclose(file), 0);
}

static void write_text(const char *path, const char *text)
{
    write_file(path, text, strlen(text));
}

/* ---- The forms ------------------------------------------------------------------------------- */

#define REQUESTS                                                                              \
    "request,category,first_row,decode_tokens,prompt_tokens\n0,a,0,2,10\n1,\"b, c\",2,1,20\n" \
    "2,a,3,3,30\n"

/* Of two experts the first has 3/4. */
static void write_directory(place *p)
{
    uint16_t probs[6 * WIDTH];
    for (int i = 0; i < 6 * WIDTH; i++)
        probs[i] = i % 2 ? 0x3e80 : 0x3f40;
    write_file(in(p, "experts.u8"), ids, sizeof ids);
    write_file(in(p, "probs.bf16"), probs, sizeof probs);
    write_text(in(p, "requests.csv"), REQUESTS);
}

static size_t csv_text(char *out, size_t room)
{
    size_t used = (size_t)snprintf(out, room, "layer,experts,token,request\n");
    for (int r = 0, row = 0; r < 3; r++)
        for (uint32_t t = 0; t < lengths[r]; t++, row++)
            for (int l = 0; l < LAYERS; l++)
                used += (size_t)snprintf(out + used, room - used, "%d,%d %d,%u,%d\n", l,
                                         ids[row][l * TOP_K], ids[row][l * TOP_K + 1], t, 10 * r);
    return used;
}

/* Step after step as a server decodes: prompts first, then all that are not at their end, the last
 * one first. Sequence ids are 5, 6, 7. */
static void write_library(const char *path)
{
    static const float weights[8 * TOP_K] = {0.75f, 0.25f, 0.75f, 0.25f,
                                             0.75f, 0.25f, 0.75f, 0.25f};
    const moepage_trace_info info = {.struct_size = sizeof info,
                                     .moe_layers = LAYERS,
                                     .experts = EXPERTS,
                                     .max_top_k = TOP_K,
                                     .model = "made"};
    static const uint32_t first_row[3] = {0, 2, 3};
    moepage_trace *trace;
    assert_int_equal(moepage_trace_create(path, &info, &trace), MOEPAGE_OK);
    for (uint32_t step = 0; step < 4; step++) {
        moepage_step_sequence sequences[3];
        uint32_t n = 0, rows[8], tokens = 0;
        for (uint32_t r = 0; r < 3; r++) {
            uint32_t of = step == 0 ? r : 2 - r; /* requests are numbered as they are met */
            if (step > 0 && step > lengths[of])
                continue;
            sequences[n] =
                (moepage_step_sequence){5 + of, step ? 1 : of + 1,
                                        step ? MOEPAGE_PHASE_DECODE : MOEPAGE_PHASE_PREFILL};
            for (uint32_t t = 0; t < sequences[n].n_tokens; t++)
                rows[tokens++] = step ? first_row[of] + step - 1 : 0;
            n++;
        }
        mp_trace_step_begin(trace, tokens, sequences, n, NULL, 0);
        for (uint32_t layer = 0; layer < LAYERS; layer++) {
            int32_t routed[8 * TOP_K];
            for (uint32_t i = 0; i < tokens * TOP_K; i++)
                routed[i] = ids[rows[i / TOP_K]][layer * TOP_K + i % TOP_K];
            mp_trace_step_layer(trace, layer, TOP_K, routed, weights, NULL);
        }
        mp_trace_step_end(trace);
    }
    assert_int_equal(moepage_trace_close(trace), MOEPAGE_OK);
}

/* ---- What is read ---------------------------------------------------------------------------- */

static void assert_same(const sim_trace *trace, bool one_request, bool probabilities)
{
    assert_non_null(trace);
    assert_int_equal(trace->source.layers, LAYERS);
    assert_int_equal(trace->source.experts, EXPERTS);
    assert_int_equal(trace->source.top_k, TOP_K);
    assert_int_equal(trace->rows, 6);
    for (int i = 0; i < 6 * WIDTH; i++)
        assert_int_equal(trace->ids[i], ids[i / WIDTH][i % WIDTH]);
    assert_int_equal(trace->source.n_requests, one_request ? 1 : 3);
    uint64_t row = 0;
    for (uint32_t r = 0; r < trace->source.n_requests; r++) {
        assert_int_equal(trace->requests[r].first_row, row);
        assert_int_equal(trace->requests[r].rows, one_request ? 6 : lengths[r]);
        row += trace->requests[r].rows;
    }
    assert_int_equal(trace->probabilities != NULL, probabilities);
    for (int i = 0; i < 6 * WIDTH && probabilities; i++)
        assert_true(trace->probabilities[i] == (i % 2 ? 0.25f : 0.75f));
}

static void check_form(sim_trace *trace, bool one_request, bool probabilities)
{
    assert_same(trace, one_request, probabilities);
    trace->source.close(&trace->source);
}

static void test_trace_sources_hold_the_same_in_every_form(void **state)
{
    (void)state;
    place p;
    char text[1024];
    place_open(&p);
    write_directory(&p);
    check_form(sim_trace_open(p.dir), false, true);
    check_form(sim_trace_open_as(p.dir, &SHAPE), false, true);
    unlink(in(&p, "probs.bf16"));
    check_form(sim_trace_open_as(p.dir, &SHAPE), false, false);
    write_file(in(&p, "x.u8"), ids, sizeof ids);
    check_form(sim_trace_open_as(p.path, &SHAPE), true, false);
    write_file(in(&p, "x.csv"), text, csv_text(text, sizeof text));
    check_form(sim_trace_open(p.path), false, false);
    write_library(in(&p, "x.trace"));
    check_form(sim_trace_open(p.path), false, true);
    place_close(&p);
}

static void test_trace_sources_know_requests(void **state)
{
    (void)state;
    place p;
    place_open(&p);
    write_directory(&p);
    sim_trace *trace = sim_trace_open(p.dir);
    assert_non_null(trace);
    assert_string_equal(trace->source.name, p.dir + strlen("/tmp/"));
    assert_int_equal(trace->n_groups, 2);
    assert_string_equal(trace->groups[0], "a");
    assert_string_equal(trace->groups[1], "b, c");
    for (uint32_t r = 0; r < 3; r++) {
        assert_int_equal(trace->requests[r].group, r == 1);
        assert_int_equal(trace->requests[r].prompt_tokens, 10 * (r + 1));
    }
    sim_trace_keep(trace, 0);
    sim_trace_keep(trace, 4);
    assert_int_equal(trace->source.n_requests, 3);
    sim_trace_keep(trace, 2);
    assert_int_equal(trace->source.n_requests, 2);
    assert_int_equal(trace->rows, 3);
    trace->source.close(&trace->source);
    write_library(in(&p, "x.trace"));
    trace = sim_trace_open(p.path);
    assert_non_null(trace);
    for (uint32_t r = 0; r < 3; r++)
        assert_int_equal(trace->requests[r].prompt_tokens, r + 1);
    trace->source.close(&trace->source);
    place_close(&p);
}

/* A prompt of three tokens, of which the last layer has one, and then a decoded token. */
static void test_trace_sources_count_prompts_without_their_last_layer(void **state)
{
    (void)state;
    place p;
    moepage_trace *writer;
    const moepage_trace_info info = {
        .struct_size = sizeof info, .moe_layers = 2, .experts = 4, .max_top_k = 2, .model = "made"};
    static const int32_t routed[6] = {0, 1, 1, 2, 3, 0};
    static const float weights[6] = {0.5f, 0.5f, 0.5f, 0.5f, 0.5f, 0.5f};
    place_open(&p);
    assert_int_equal(moepage_trace_create(in(&p, "x.trace"), &info, &writer), MOEPAGE_OK);
    for (uint32_t step = 0; step < 3; step++) {
        const uint32_t n = step == 0 ? 3 : 1;
        mp_trace_step_begin(writer, n, &(moepage_step_sequence){1, n, MOEPAGE_PHASE_DECODE}, 1,
                            NULL, 0);
        for (uint32_t layer = 0; layer < 2; layer++)
            if (step == 2 || layer == step)
                mp_trace_step_layer(writer, layer, 2, routed, weights, NULL);
        mp_trace_step_end(writer);
    }
    assert_int_equal(moepage_trace_close(writer), MOEPAGE_OK);
    sim_trace *trace = sim_trace_open(p.path);
    assert_non_null(trace);
    assert_int_equal(trace->rows, 1);
    assert_int_equal(trace->source.n_requests, 1);
    assert_int_equal(trace->requests[0].prompt_tokens, 3);
    trace->source.close(&trace->source);
    place_close(&p);
}

/* ---- Streams --------------------------------------------------------------------------------- */

static bool is_row(const int32_t *routed, uint32_t row)
{
    for (uint32_t i = 0; i < WIDTH; i++)
        if (routed[i] != ids[row][i])
            return false;
    return true;
}

static void test_trace_sources_stream_what_was_recorded(void **state)
{
    (void)state;
    place p;
    int32_t routed[2][WIDTH];
    place_open(&p);
    write_directory(&p);
    sim_trace *trace = sim_trace_open(p.dir);
    assert_non_null(trace);
    const sim_source *source = &trace->source;
    void *streams[2] = {malloc(source->stream_bytes), malloc(source->stream_bytes)};
    for (uint32_t r = 0; r < 3; r++) {
        uint32_t first = r == 0 ? 0 : r == 1 ? 2 : 3, seen = 0;
        for (int i = 0; i < 2; i++)
            source->open(source, r, streams[i]);
        for (uint32_t token = 0; token < 40; token++) {
            bool prefill = token % 3 == 0; /* between decoded tokens, which go on undisturbed */
            for (int i = 0; i < 2; i++)
                source->next(source, streams[i], prefill, routed[i]);
            assert_memory_equal(routed[0], routed[1], sizeof routed[0]);
            uint32_t row = first;
            while (row < first + lengths[r] && !is_row(routed[0], row))
                row++;
            assert_true(row < first + lengths[r]); /* the request's own, always */
            if (!prefill && seen < lengths[r])
                assert_int_equal(row, first + seen++);
        }
        assert_int_equal(seen, lengths[r]);
    }
    free(streams[0]);
    free(streams[1]);
    trace->source.close(&trace->source);
    place_close(&p);
}

/* ---- Damage ---------------------------------------------------------------------------------- */

/* What was said on standard error while `path` was refused. */
static void assert_refused(const char *path, const sim_trace_shape *shape, const char *named)
{
    char said[1024] = {0};
    fflush(stderr);
    int kept = dup(STDERR_FILENO);
    FILE *file = tmpfile();
    assert_non_null(file);
    assert_true(dup2(fileno(file), STDERR_FILENO) >= 0);
    sim_trace *trace = sim_trace_open_as(path, shape);
    fflush(stderr);
    dup2(kept, STDERR_FILENO);
    close(kept);
    rewind(file);
    assert_true(fread(said, 1, sizeof said - 1, file) > 0);
    fclose(file);
    assert_null(trace);
    if (!strstr(said, named) || strchr(said, '\n') != said + strlen(said) - 1)
        fail_msg("\"%s\" is not named in one line: %s", named, said);
}

static void test_trace_sources_refuse_damaged_directories(void **state)
{
    (void)state;
    static const struct {
        const char *requests, *named;
    } cases[] = {
        {"", "empty"},
        {"request,first_row\n", "decode_tokens"},
        {"first_row,decode_tokens\n", "0 tokens"},
        {"first_row,decode_tokens\n0,2\n3,3\n", "line 3: first_row is 3"},
        {"first_row,decode_tokens\n0,2\n2,5\n", "cannot be 7 tokens"},
        {"first_row,decode_tokens\n0,6\n6,0\n", "0 tokens from 6"},
        {"first_row,decode_tokens\n0,-6\n", "\"-6\""},
        {"first_row,decode_tokens\n0,6x\n", "\"6x\""},
        {"first_row,decode_tokens\n0\n", "1 fields"},
        {"first_row,decode_tokens\n0,\"6\n", "double quote"},
        {"first_row,decode_tokens\n0,99999999999999999999\n", "99999999999999999999"},
    };
    place p;
    place_open(&p);
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        write_directory(&p);
        write_text(in(&p, "requests.csv"), cases[i].requests);
        assert_refused(p.dir, &(sim_trace_shape){0}, cases[i].named);
    }
    write_directory(&p);
    write_file(in(&p, "experts.u8"), ids, sizeof ids - 1);
    assert_refused(p.dir, &(sim_trace_shape){0}, "35 bytes cannot be 6 tokens");
    write_directory(&p);
    write_file(in(&p, "probs.bf16"), ids, sizeof ids);
    assert_refused(p.dir, &(sim_trace_shape){0}, "probs.bf16");
    write_directory(&p);
    unlink(in(&p, "probs.bf16"));
    assert_refused(p.dir, &(sim_trace_shape){0}, "--shape");
    assert_refused(p.dir, &(sim_trace_shape){LAYERS + 1, EXPERTS, TOP_K}, "4 layers of 2");
    unlink(in(&p, "experts.u8"));
    assert_refused(p.dir, &SHAPE, "experts.u8: No such file");
    write_directory(&p);
    unlink(in(&p, "requests.csv"));
    assert_refused(p.dir, &SHAPE, "requests.csv: No such file");
    place_close(&p);
}

static void test_trace_sources_refuse_impossible_ids(void **state)
{
    (void)state;
    place p;
    uint8_t bad[6][WIDTH];
    place_open(&p);
    memcpy(bad, ids, sizeof bad);
    bad[4][3] = bad[4][2];
    write_file(in(&p, "x.u8"), bad, sizeof bad);
    assert_refused(p.path, &SHAPE, "token 4, layer 1: expert 1 twice");
    bad[4][3] = EXPERTS;
    write_file(in(&p, "x.u8"), bad, sizeof bad);
    assert_refused(p.path, &SHAPE, "token 4, layer 1: expert 7, there are 7");
    write_file(in(&p, "x.u8"), ids, sizeof ids);
    assert_refused(p.path, &(sim_trace_shape){0}, "--shape");
    assert_refused(p.path, &(sim_trace_shape){5, EXPERTS, TOP_K}, "not a whole number of tokens");
    assert_refused(p.path, &(sim_trace_shape){LAYERS, 1, TOP_K}, "1 experts");
    write_text(in(&p, "x.txt"), "nothing");
    assert_refused(p.path, &SHAPE, ".csv or .u8");
    assert_refused("/nowhere/at/all.trace", &SHAPE, "No such file");
    place_close(&p);
}

static void test_trace_sources_refuse_damaged_text(void **state)
{
    (void)state;
#define HEAD "request,token,layer,experts\n"
    static const struct {
        const char *text, *named;
    } cases[] = {
        {"", "empty"},
        {"request,token,layer\n", "\"experts\""},
        {HEAD, "no decoded token"},
        {HEAD "0,0,0,1 2\n0,0,2,1 2\n", "line 3: layer 2: 1 is expected"},
        {HEAD "0,0,1,1 2\n", "line 2: layer 1: 0 is expected"},
        {HEAD "0,1,0,1 2\n", "token 1 is out of order"},
        {HEAD "0,0,0,1 2\n0,2,0,1 2\n", "token 2 is out of order"},
        {HEAD "1,0,0,1 2\n0,0,0,1 2\n", "request 0, token 0 is out of order"},
        {HEAD "0,0,0,1 2\n0,1,0,1 2\n0,1,1,1 2\n", "other than 1 layers"},
        {HEAD "0,0,0,1 2\n0,0,1,1 2\n0,1,0,1 2\n", "ends inside a token"},
        {HEAD "0,0,0,1 2\n0,0,1,1\n", "1 experts, other layers have 2"},
        {HEAD "0,0,0,1 x\n", "\"1 x\""},
        {HEAD "0,0,0,\n", "no expert"},
        {HEAD "0,0,0,1 65535\n", "65535"},
        {HEAD "0,0,0,1 1\n", "expert 1 twice"},
        {HEAD "0,0,0\n", "3 fields"},
    };
    place p;
    place_open(&p);
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        write_text(in(&p, "x.csv"), cases[i].text);
        assert_refused(p.path, &(sim_trace_shape){0}, cases[i].named);
    }
    place_close(&p);
}

static void test_trace_sources_refuse_damaged_library_files(void **state)
{
    (void)state;
    place p;
    unsigned char bytes[4096];
    place_open(&p);
    write_library(in(&p, "x.trace"));
    FILE *file = fopen(p.path, "rb");
    assert_non_null(file);
    size_t size = fread(bytes, 1, sizeof bytes, file);
    fclose(file);
    assert_true(size > 200 && size < sizeof bytes);
    for (size_t at = 0; at < size; at += 7) {
        bytes[at] ^= 1;
        write_file(p.path, bytes, size);
        assert_refused(p.path, &(sim_trace_shape){0}, p.path);
        bytes[at] ^= 1;
    }
    for (size_t cut = 0; cut < size; cut += 9) {
        write_file(p.path, bytes, cut);
        assert_refused(p.path, &(sim_trace_shape){0}, p.path);
    }
    place_close(&p);
}

/* Tokens that were not routed whole cannot be replayed; steps without some layer are prefill's. */
static void test_trace_sources_refuse_rows_with_gaps(void **state)
{
    (void)state;
    place p;
    const moepage_trace_info info = {
        .struct_size = sizeof info, .moe_layers = 2, .experts = 4, .max_top_k = 2, .model = "made"};
    static const int32_t routed[2] = {0, 1}, gap[2] = {0, MOEPAGE_NO_EXPERT};
    static const float weights[2] = {0.5f, 0.5f};
    place_open(&p);
    for (int i = 0; i < 3; i++) {
        moepage_trace *trace;
        const moepage_step_sequence one = {1, 1,
                                           i == 2 ? MOEPAGE_PHASE_PREFILL : MOEPAGE_PHASE_DECODE};
        assert_int_equal(moepage_trace_create(in(&p, "x.trace"), &info, &trace), MOEPAGE_OK);
        mp_trace_step_begin(trace, 1, &one, 1, NULL, 0);
        mp_trace_step_layer(trace, 0, 2, i == 0 ? gap : routed, weights, NULL);
        if (i != 1)
            mp_trace_step_layer(trace, 1, 2, routed, weights, NULL);
        mp_trace_step_end(trace);
        assert_int_equal(moepage_trace_close(trace), MOEPAGE_OK);
        assert_refused(p.path, &(sim_trace_shape){0}, i > 0 ? "no decoded token" : "step 0, layer");
    }
    place_close(&p);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_trace_sources_hold_the_same_in_every_form),
        cmocka_unit_test(test_trace_sources_know_requests),
        cmocka_unit_test(test_trace_sources_count_prompts_without_their_last_layer),
        cmocka_unit_test(test_trace_sources_stream_what_was_recorded),
        cmocka_unit_test(test_trace_sources_refuse_damaged_directories),
        cmocka_unit_test(test_trace_sources_refuse_impossible_ids),
        cmocka_unit_test(test_trace_sources_refuse_damaged_text),
        cmocka_unit_test(test_trace_sources_refuse_damaged_library_files),
        cmocka_unit_test(test_trace_sources_refuse_rows_with_gaps),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
