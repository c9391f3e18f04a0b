/* Traces: what was recorded is read back bit for bit, and what cannot be recorded is reported when
 * the trace is closed, never before, and leaves no file. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <dirent.h>
#include <pthread.h>
#include <signal.h>
#include <stdatomic.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

#include "base/status.h"
#include "moepage.h"
#include "testing.h"
#include "trace/trace.h"

static char directory[256], path[300];

static int make_directory(void **state)
{
    (void)state;
    const char *parent = getenv("TMPDIR");
    snprintf(directory, sizeof directory, "%s/moepage-trace-XXXXXX", parent ? parent : P_tmpdir);
    if (!mkdtemp(directory))
        return -1;
    snprintf(path, sizeof path, "%s/steps.moetrace", directory);
    return 0;
}

static int remove_directory(void **state)
{
    (void)state;
    unlink(path);
    return rmdir(directory);
}

static int count_files(void)
{
    int n = 0;
    DIR *dir = opendir(directory);
    assert_non_null(dir);
    while (readdir(dir))
        n++;
    closedir(dir);
    return n - 2; /* "." and ".." */
}

static moepage_trace_info shape(uint32_t layers, uint32_t experts, uint32_t max_top_k,
                                uint32_t semantic_dim, uint32_t probabilities)
{
    return (moepage_trace_info){.struct_size = sizeof(moepage_trace_info),
                                .moe_layers = layers,
                                .experts = experts,
                                .max_top_k = max_top_k,
                                .semantic_dim = semantic_dim,
                                .has_probabilities = probabilities,
                                .model = "test_moe"};
}

/* ---- Random steps, kept as the reader must give them back ------------------------------- */

static uint64_t random_state;

static uint32_t bits(void)
{
    random_state = random_state * 6364136223846793005u + 1442695040888963407u;
    return (uint32_t)(random_state >> 32);
}

static uint32_t below(uint32_t n)
{
    return bits() % n;
}

static void fill_bits(float *out, size_t n)
{
    for (size_t i = 0; i < n; i++) {
        uint32_t pattern = bits(); /* any pattern: NaN payloads and denormals included */
        memcpy(&out[i], &pattern, sizeof pattern);
    }
}

typedef struct kept {
    uint32_t n_tokens, n_sequences, top_k;
    bool probabilities_present, semantic_present;
    moepage_step_sequence *sequences;
    uint8_t *layer_present;
    int32_t *ids;
    float *weights, *probabilities, *semantic;
} kept;

static void *zeroed(size_t count, size_t bytes)
{
    void *block = calloc(count + 1, bytes);
    assert_non_null(block);
    return block;
}

static void draw_head(kept *k, const moepage_trace_info *info, uint32_t most_tokens)
{
    k->n_tokens = 1 + below(most_tokens);
    k->n_sequences = 1 + below(k->n_tokens);
    k->sequences = zeroed(k->n_sequences, sizeof *k->sequences);
    uint32_t left = k->n_tokens;
    for (uint32_t i = 0; i < k->n_sequences; i++) {
        uint32_t n = i + 1 == k->n_sequences ? left : below(left + 1);
        k->sequences[i] = (moepage_step_sequence){(uint64_t)bits() << 32 | bits(), n, below(2)};
        left -= n;
    }
    k->semantic = zeroed((size_t)k->n_sequences * info->semantic_dim, sizeof(float));
    k->semantic_present = info->semantic_dim && below(3);
    fill_bits(k->semantic, (size_t)k->n_sequences * info->semantic_dim);
}

/* Records one layer with random content, and keeps it at its place in arrays of top-k `top_k`. */
static void record_layer(moepage_trace *trace, kept *k, uint32_t layer, uint32_t layer_k,
                         bool with_probabilities)
{
    const moepage_trace_info *info = &trace->info;
    size_t n = (size_t)k->n_tokens * layer_k, full = (size_t)k->n_tokens * info->experts;
    int32_t *ids = zeroed(n, sizeof *ids);
    float *weights = zeroed(n, sizeof *weights), *probabilities = zeroed(full, sizeof(float));
    for (size_t i = 0; i < n; i++)
        ids[i] = below(9) ? (int32_t)below(info->experts) : MOEPAGE_NO_EXPERT;
    fill_bits(weights, n);
    fill_bits(probabilities, full);
    for (size_t t = 0; t < k->n_tokens; t++)
        for (size_t j = 0; j < layer_k; j++) {
            size_t at = ((size_t)layer * k->n_tokens + t) * k->top_k + j;
            k->ids[at] = ids[t * layer_k + j];
            k->weights[at] = weights[t * layer_k + j];
        }
    k->layer_present[layer] = 1;
    if (with_probabilities && info->has_probabilities) {
        memcpy(k->probabilities + layer * full, probabilities, full * sizeof(float));
        k->probabilities_present = true;
    }
    mp_trace_step_layer(trace, layer, layer_k, ids, weights,
                        with_probabilities ? probabilities : NULL);
    free(ids);
    free(weights);
    free(probabilities);
}

static void record_layers(moepage_trace *trace, kept *k)
{
    const moepage_trace_info *info = &trace->info;
    uint32_t *layer_k = zeroed(info->moe_layers, sizeof *layer_k);
    uint32_t style = below(3); /* probabilities in no, some or all layers */
    for (uint32_t l = 0; l < info->moe_layers; l++) {
        layer_k[l] = below(5) ? 1 + below(info->max_top_k) : 0;
        if (layer_k[l] > k->top_k)
            k->top_k = layer_k[l];
    }
    size_t slots = (size_t)info->moe_layers * k->n_tokens * k->top_k;
    k->layer_present = zeroed(info->moe_layers, 1);
    k->ids = zeroed(slots, sizeof *k->ids);
    k->weights = zeroed(slots, sizeof *k->weights);
    k->probabilities =
        zeroed((size_t)info->moe_layers * k->n_tokens * info->experts, sizeof(float));
    for (size_t i = 0; i < slots; i++)
        k->ids[i] = MOEPAGE_NO_EXPERT;
    uint32_t first = below(info->moe_layers); /* layers need not come in order */
    for (uint32_t i = 0; i < info->moe_layers; i++) {
        uint32_t l = (first + info->moe_layers - i) % info->moe_layers;
        if (layer_k[l])
            record_layer(trace, k, l, layer_k[l], style == 2 || (style == 1 && below(2)));
    }
    free(layer_k);
}

static kept record_step(moepage_trace *trace, uint32_t most_tokens)
{
    kept k = {0};
    draw_head(&k, &trace->info, most_tokens);
    mp_trace_step_begin(trace, k.n_tokens, k.sequences, k.n_sequences,
                        k.semantic_present ? k.semantic : NULL, trace->info.semantic_dim);
    record_layers(trace, &k);
    return k;
}

static void forget(kept *k)
{
    free(k->sequences);
    free(k->layer_present);
    free(k->ids);
    free(k->weights);
    free(k->probabilities);
    free(k->semantic);
}

static void assert_step_equal(const moepage_trace_step *step, const kept *k,
                              const moepage_trace_info *info)
{
    assert_int_equal(step->n_tokens, k->n_tokens);
    assert_int_equal(step->n_sequences, k->n_sequences);
    assert_int_equal(step->top_k, k->top_k);
    assert_memory_equal(step->sequences, k->sequences, k->n_sequences * sizeof *k->sequences);
    assert_memory_equal(step->layer_present, k->layer_present, info->moe_layers);
    size_t tokens = (size_t)info->moe_layers * k->n_tokens;
    if (k->top_k) {
        assert_memory_equal(step->ids, k->ids, tokens * k->top_k * sizeof *k->ids);
        assert_memory_equal(step->weights, k->weights, tokens * k->top_k * sizeof *k->weights);
    }
    assert_int_equal(step->probabilities != NULL, k->probabilities_present);
    if (k->probabilities_present)
        assert_memory_equal(step->probabilities, k->probabilities,
                            tokens * info->experts * sizeof(float));
    assert_int_equal(step->semantic != NULL, k->semantic_present);
    if (k->semantic_present)
        assert_memory_equal(step->semantic, k->semantic,
                            (size_t)k->n_sequences * info->semantic_dim * sizeof(float));
}

/* Records random steps, some of them cancelled, and reads them back. */
static void round_trip(moepage_trace_info info, uint64_t frame_bytes, uint32_t n_steps,
                       uint32_t most_tokens)
{
    struct moepage_trace writer = {.info = info};
    kept *steps = zeroed(n_steps, sizeof *steps);
    assert_int_equal(mp_trace_writer_create(path, &info, frame_bytes, &writer.writer), 0);
    for (uint32_t i = 0; i < n_steps; i++) {
        if (below(4) == 0) {
            kept dropped = record_step(&writer, most_tokens);
            mp_trace_step_cancel(&writer);
            forget(&dropped);
        }
        steps[i] = record_step(&writer, most_tokens);
        mp_trace_step_end(&writer);
    }
    assert_int_equal(mp_trace_writer_close(writer.writer), 0);

    moepage_trace *trace;
    moepage_trace_step step = {.struct_size = sizeof step};
    moepage_trace_info found = {.struct_size = sizeof found};
    assert_int_equal(moepage_trace_open(path, &trace), MOEPAGE_OK);
    assert_int_equal(moepage_trace_get_info(trace, &found), MOEPAGE_OK);
    assert_memory_equal(&found, &info, sizeof info);
    for (uint32_t i = 0; i < n_steps; i++) {
        assert_int_equal(moepage_trace_next(trace, &step), MOEPAGE_OK);
        assert_int_equal(step.step, i);
        assert_step_equal(&step, &steps[i], &info);
        forget(&steps[i]);
    }
    assert_int_equal(moepage_trace_next(trace, &step), MOEPAGE_E_END);
    assert_int_equal(moepage_trace_next(trace, &step), MOEPAGE_E_END);
    assert_int_equal(moepage_trace_close(trace), MOEPAGE_OK);
    free(steps);
}

static void test_trace_reads_back_what_was_recorded(void **state)
{
    (void)state;
    random_state = 4711;
    for (int round = 0; round < 60; round++) {
        moepage_trace_info info =
            shape(1 + below(9), 1 + below(40), 1 + below(8), below(2) * below(20), below(2));
        round_trip(info, 1 + below(5000), below(25), 1 + below(12));
    }
    round_trip(shape(1, 65535, 8, 0, 0), 1 << 20, 5, 40); /* ids use all of 16 bits */
    round_trip(shape(3, 300, 8, 0, 1), 1 << 20, 9, 700);  /* records larger than a frame */
}

static void test_trace_of_no_steps_is_valid(void **state)
{
    (void)state;
    moepage_trace_info info = shape(2, 4, 2, 0, 0);
    moepage_trace *trace;
    moepage_trace_step step = {.struct_size = sizeof step};
    assert_int_equal(moepage_trace_create(path, &info, &trace), MOEPAGE_OK);
    assert_int_equal(moepage_trace_close(trace), MOEPAGE_OK);
    assert_int_equal(moepage_trace_open(path, &trace), MOEPAGE_OK);
    assert_int_equal(moepage_trace_next(trace, &step), MOEPAGE_E_END);
    assert_int_equal(moepage_trace_close(trace), MOEPAGE_OK);
}

/* ---- The life of the file and the handle ------------------------------------------------- */

static void record_plain_step(moepage_trace *trace, uint32_t n_tokens)
{
    const moepage_step_sequence sequence = {0, n_tokens, MOEPAGE_PHASE_DECODE};
    int32_t *ids = zeroed(n_tokens, sizeof *ids);
    float *weights = zeroed(n_tokens, sizeof *weights);
    fill_bits(weights, n_tokens); /* does not compress */
    mp_trace_step_begin(trace, n_tokens, &sequence, 1, NULL, 0);
    mp_trace_step_layer(trace, 0, 1, ids, weights, NULL);
    mp_trace_step_end(trace);
    free(ids);
    free(weights);
}

static uint64_t steps_in_file(void)
{
    moepage_trace *trace;
    moepage_trace_step step = {.struct_size = sizeof step};
    uint64_t n = 0;
    assert_int_equal(moepage_trace_open(path, &trace), MOEPAGE_OK);
    while (moepage_trace_next(trace, &step) == MOEPAGE_OK)
        n++;
    assert_int_equal(moepage_trace_next(trace, &step), MOEPAGE_E_END);
    assert_int_equal(moepage_trace_close(trace), MOEPAGE_OK);
    return n;
}

static void test_trace_file_appears_when_it_is_closed(void **state)
{
    (void)state;
    moepage_trace_info info = shape(1, 4, 1, 0, 0);
    moepage_trace *first, *second;
    unlink(path);
    assert_int_equal(moepage_trace_create(path, &info, &first), MOEPAGE_OK);
    record_plain_step(first, 3);
    assert_int_not_equal(access(path, F_OK), 0);
    /* Two writers of one path do not meet before each is closed; the last one stays. */
    assert_int_equal(moepage_trace_create(path, &info, &second), MOEPAGE_OK);
    record_plain_step(second, 3);
    record_plain_step(second, 3);
    assert_int_equal(moepage_trace_close(first), MOEPAGE_OK);
    assert_int_equal(steps_in_file(), 1);
    assert_int_equal(moepage_trace_close(second), MOEPAGE_OK);
    assert_int_equal(steps_in_file(), 2);
    assert_int_equal(count_files(), 1);
}

static void test_trace_calls_out_of_order_are_refused(void **state)
{
    (void)state;
    moepage_trace_info info = shape(1, 4, 1, 0, 0), found = {.struct_size = sizeof found};
    moepage_trace_step step = {.struct_size = sizeof step};
    moepage_trace *trace;
    assert_int_equal(moepage_trace_create(path, &info, &trace), MOEPAGE_OK);
    assert_int_equal(moepage_trace_get_info(trace, &found), MOEPAGE_OK);
    assert_memory_equal(&found, &info, sizeof info);
    assert_int_equal(moepage_trace_next(trace, &step), MOEPAGE_E_STATE);
    atomic_fetch_add(&trace->users, 1);
    assert_int_equal(moepage_trace_close(trace), MOEPAGE_E_BUSY);
    atomic_fetch_sub(&trace->users, 1);
    record_plain_step(trace, 1);
    assert_int_equal(moepage_trace_close(trace), MOEPAGE_OK);
    assert_int_equal(moepage_trace_open(path, &trace), MOEPAGE_OK);
    assert_int_equal(moepage_trace_next(trace, NULL), MOEPAGE_E_ARGUMENT);
    step.struct_size = 8;
    assert_int_equal(moepage_trace_next(trace, &step), MOEPAGE_E_VERSION);
    step.struct_size = sizeof step; /* the refused calls have not used up the step */
    assert_int_equal(moepage_trace_next(trace, &step), MOEPAGE_OK);
    assert_int_equal(step.step, 0);
    assert_int_equal(moepage_trace_close(trace), MOEPAGE_OK);
    assert_int_equal(moepage_trace_close(NULL), MOEPAGE_OK);
    assert_int_equal(moepage_trace_next(NULL, &step), MOEPAGE_E_ARGUMENT);
    assert_int_equal(moepage_trace_get_info(NULL, &found), MOEPAGE_E_ARGUMENT);
    mp_handle foreign;
    mp_handle_open(&foreign, MP_KIND_MODEL);
    assert_int_equal(moepage_trace_close((moepage_trace *)&foreign), MOEPAGE_E_HANDLE);
}

static void test_trace_shapes_that_no_file_has_are_refused(void **state)
{
    (void)state;
    moepage_trace_info good = shape(1, 4, 1, 0, 0), bad[9];
    moepage_trace *trace = NULL;
    for (size_t i = 0; i < 9; i++)
        bad[i] = good;
    bad[0].moe_layers = 0;
    bad[1].moe_layers = 4097;
    bad[2].experts = 0;
    bad[3].experts = 65536;
    bad[4].max_top_k = 0;
    bad[5].max_top_k = 4097;
    bad[6].semantic_dim = (1 << 20) + 1;
    bad[7].has_probabilities = 2;
    memset(bad[8].model, 'x', sizeof bad[8].model);
    unlink(path);
    for (size_t i = 0; i < 9; i++)
        assert_int_equal(moepage_trace_create(path, &bad[i], &trace), MOEPAGE_E_ARGUMENT);
    good.struct_size = 12;
    assert_int_equal(moepage_trace_create(path, &good, &trace), MOEPAGE_E_VERSION);
    assert_int_equal(moepage_trace_create(path, NULL, &trace), MOEPAGE_E_ARGUMENT);
    good.struct_size = sizeof good;
    assert_int_equal(moepage_trace_create(NULL, &good, &trace), MOEPAGE_E_ARGUMENT);
    assert_int_equal(moepage_trace_create("", &good, &trace), MOEPAGE_E_ARGUMENT);
    assert_int_equal(moepage_trace_create(path, &good, NULL), MOEPAGE_E_ARGUMENT);
    assert_null(trace);
    assert_int_equal(count_files(), 0);
}

static void test_trace_paths_that_lead_nowhere_are_named(void **state)
{
    (void)state;
    moepage_trace_info info = shape(1, 4, 1, 0, 0);
    moepage_trace *trace = NULL;
    char missing[400];
    snprintf(missing, sizeof missing, "%s/no/such", directory);
    assert_int_equal(moepage_trace_create(missing, &info, &trace), MOEPAGE_E_NOT_FOUND);
    assert_non_null(strstr(moepage_last_error(), missing));
    assert_int_equal(moepage_trace_open(missing, &trace), MOEPAGE_E_NOT_FOUND);
    assert_non_null(strstr(moepage_last_error(), missing));
    assert_int_equal(moepage_trace_open(directory, &trace), MOEPAGE_E_FORMAT);
    assert_null(trace);
    /* What is not a file is not replaced by one. */
    assert_int_equal(moepage_trace_create(directory, &info, &trace), MOEPAGE_E_ARGUMENT);
    assert_int_equal(moepage_trace_create("/dev/null", &info, &trace), MOEPAGE_E_ARGUMENT);
    assert_non_null(strstr(moepage_last_error(), "/dev/null"));
    /* The name becomes a directory while recording: found out at the end, nothing is left. */
    unlink(path);
    assert_int_equal(moepage_trace_create(path, &info, &trace), MOEPAGE_OK);
    assert_int_equal(mkdir(path, 0700), 0);
    assert_int_equal(moepage_trace_close(trace), MOEPAGE_E_IO);
    assert_int_equal(count_files(), 1);
    assert_int_equal(rmdir(path), 0);
}

/* ---- Failures while recording ------------------------------------------------------------ */

/* A full disk, by a limit on the size of files; the signal that comes with it must not show. */
typedef struct signal_state {
    int blocked, pending;
} signal_state;

/* What is so of SIGXFSZ, whose default is to end the program. */
static signal_state signals_now(void)
{
    sigset_t blocked, pending;
    assert_int_equal(pthread_sigmask(SIG_BLOCK, NULL, &blocked), 0);
    assert_int_equal(sigpending(&pending), 0);
    return (signal_state){sigismember(&blocked, SIGXFSZ), sigismember(&pending, SIGXFSZ)};
}

static void record_into_little_space(rlim_t bytes, uint32_t n_steps)
{
    struct rlimit before, little;
    moepage_trace_info info = shape(1, 4, 1, 0, 0);
    moepage_trace *trace;
    unlink(path);
    assert_int_equal(getrlimit(RLIMIT_FSIZE, &before), 0);
    little = (struct rlimit){bytes, before.rlim_max};
    signal_state signals = signals_now();
    assert_int_equal(moepage_trace_create(path, &info, &trace), MOEPAGE_OK);
    mp_error_set("an older failure");
    assert_int_equal(setrlimit(RLIMIT_FSIZE, &little), 0);
    for (uint32_t i = 0; i < n_steps; i++)
        record_plain_step(trace, 1000);
    assert_string_equal(moepage_last_error(), "an older failure");
    moepage_status status = moepage_trace_close(trace);
    assert_int_equal(setrlimit(RLIMIT_FSIZE, &before), 0);
    signal_state after = signals_now();
    assert_memory_equal(&after, &signals, sizeof signals);
    assert_int_equal(status, MOEPAGE_E_IO);
    assert_non_null(strstr(moepage_last_error(), path));
    assert_int_equal(count_files(), 0);
}

static void test_trace_on_a_full_disk_fails_at_close_and_leaves_nothing(void **state)
{
    (void)state;
    record_into_little_space(100000, 1000); /* on the way, and many steps after */
    record_into_little_space(130, 1);       /* in the last frame */
    record_into_little_space(140, 0);       /* in the trailer */
}

static void test_trace_on_a_full_disk_leaves_the_callers_signal_pending(void **state)
{
    (void)state;
    sigset_t limit, before;
    sigemptyset(&limit);
    sigaddset(&limit, SIGXFSZ);
    assert_int_equal(pthread_sigmask(SIG_BLOCK, &limit, &before), 0);
    record_into_little_space(130, 1);
    assert_int_equal(raise(SIGXFSZ), 0);
    record_into_little_space(130, 1);
    assert_int_equal(sigtimedwait(&limit, NULL, &(struct timespec){0}), SIGXFSZ);
    assert_int_equal(pthread_sigmask(SIG_SETMASK, &before, NULL), 0);
}

static void begin_plain(moepage_trace *trace)
{
    const moepage_step_sequence sequence = {0, 2, MOEPAGE_PHASE_DECODE};
    mp_trace_step_begin(trace, 2, &sequence, 1, NULL, 0);
}

static const int32_t good_ids[4] = {0, 3, MOEPAGE_NO_EXPERT, 1};
static const float some_weights[8];

static void mistake_layer_twice(moepage_trace *trace)
{
    begin_plain(trace);
    mp_trace_step_layer(trace, 1, 2, good_ids, some_weights, NULL);
    mp_trace_step_layer(trace, 1, 2, good_ids, some_weights, NULL);
}

static void mistake_two_steps(moepage_trace *trace)
{
    begin_plain(trace);
    begin_plain(trace);
}

static void mistake_expert(moepage_trace *trace)
{
    static const int32_t ids[4] = {0, 1, 2, 4};
    begin_plain(trace);
    mp_trace_step_layer(trace, 0, 2, ids, some_weights, NULL);
}

static void mistake_negative_expert(moepage_trace *trace)
{
    static const int32_t ids[4] = {0, 1, -65534, 3}; /* 2 in its lower 16 bits */
    begin_plain(trace);
    mp_trace_step_layer(trace, 0, 2, ids, some_weights, NULL);
}

static void mistake_top_k(moepage_trace *trace)
{
    begin_plain(trace);
    mp_trace_step_layer(trace, 0, 3, good_ids, some_weights, NULL);
}

static void mistake_layer(moepage_trace *trace)
{
    begin_plain(trace);
    mp_trace_step_layer(trace, 2, 1, good_ids, some_weights, NULL);
}

static void mistake_semantic(moepage_trace *trace)
{
    const moepage_step_sequence sequence = {0, 2, MOEPAGE_PHASE_DECODE};
    mp_trace_step_begin(trace, 2, &sequence, 1, some_weights, 5);
}

static void mistake_sequences(moepage_trace *trace)
{
    const moepage_step_sequence sequence = {0, 3, MOEPAGE_PHASE_DECODE};
    mp_trace_step_begin(trace, 2, &sequence, 1, NULL, 0);
}

static void mistake_phase(moepage_trace *trace)
{
    const moepage_step_sequence sequence = {0, 2, 2};
    mp_trace_step_begin(trace, 2, &sequence, 1, NULL, 0);
}

static void test_trace_mistakes_in_recording_are_reported_at_close(void **state)
{
    (void)state;
    static const struct {
        void (*make)(moepage_trace *trace);
        moepage_status status;
    } mistakes[] = {
        {mistake_layer_twice, MOEPAGE_E_STATE}, {mistake_two_steps, MOEPAGE_E_STATE},
        {mistake_expert, MOEPAGE_E_ARGUMENT},   {mistake_negative_expert, MOEPAGE_E_ARGUMENT},
        {mistake_top_k, MOEPAGE_E_ARGUMENT},    {mistake_layer, MOEPAGE_E_ARGUMENT},
        {mistake_semantic, MOEPAGE_E_ARGUMENT}, {mistake_sequences, MOEPAGE_E_ARGUMENT},
        {mistake_phase, MOEPAGE_E_ARGUMENT},
    };
    moepage_trace_info info = shape(2, 4, 2, 4, 0);
    moepage_trace *trace;
    unlink(path);
    for (size_t i = 0; i < sizeof mistakes / sizeof *mistakes; i++) {
        assert_int_equal(moepage_trace_create(path, &info, &trace), MOEPAGE_OK);
        record_plain_step(trace, 2);
        mistakes[i].make(trace);
        mp_trace_step_end(trace);
        record_plain_step(trace, 2); /* later good steps do not heal it */
        assert_int_equal(moepage_trace_close(trace), mistakes[i].status);
        assert_int_equal(count_files(), 0);
    }
}

/* 2^17 tokens of 1024 layers would be 2 GiB to read back, however little was routed. */
static void test_trace_refuses_steps_too_large_to_read_back(void **state)
{
    (void)state;
    moepage_trace_info info = shape(1024, 4, 2, 0, 0);
    moepage_trace *trace;
    unlink(path);
    assert_int_equal(moepage_trace_create(path, &info, &trace), MOEPAGE_OK);
    record_plain_step(trace, 1u << 17);
    assert_int_equal(moepage_trace_close(trace), MOEPAGE_E_UNSUPPORTED);
    assert_int_equal(count_files(), 0);
}

static void test_trace_step_open_at_close_is_forgotten(void **state)
{
    (void)state;
    moepage_trace_info info = shape(1, 4, 1, 0, 0);
    moepage_trace *trace;
    assert_int_equal(moepage_trace_create(path, &info, &trace), MOEPAGE_OK);
    record_plain_step(trace, 2);
    begin_plain(trace);
    assert_int_equal(moepage_trace_close(trace), MOEPAGE_OK);
    assert_int_equal(steps_in_file(), 1);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_trace_reads_back_what_was_recorded),
        cmocka_unit_test(test_trace_of_no_steps_is_valid),
        cmocka_unit_test(test_trace_file_appears_when_it_is_closed),
        cmocka_unit_test(test_trace_calls_out_of_order_are_refused),
        cmocka_unit_test(test_trace_shapes_that_no_file_has_are_refused),
        cmocka_unit_test(test_trace_paths_that_lead_nowhere_are_named),
        cmocka_unit_test(test_trace_on_a_full_disk_fails_at_close_and_leaves_nothing),
        cmocka_unit_test(test_trace_on_a_full_disk_leaves_the_callers_signal_pending),
        cmocka_unit_test(test_trace_mistakes_in_recording_are_reported_at_close),
        cmocka_unit_test(test_trace_refuses_steps_too_large_to_read_back),
        cmocka_unit_test(test_trace_step_open_at_close_is_forgotten),
    };
    return cmocka_run_group_tests(tests, make_directory, remove_directory);
}
