/* Writing packs: what the call says of itself is true, bad orders are refused, and a call that fails,
 * is stopped or killed leaves what was there before. */
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <signal.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include "moe_maker.h"
#include "pack_maker.h"
#include "testing.h"

static const uint64_t TWO_BY_FOUR[] = {2, 4};
static pack_source source;
static char directory[64], path[80];

static int make(void **state)
{
    (void)state;
    pack_source_init(&source);
    maker_dir_create(directory);
    snprintf(path, sizeof path, "%s/a.moepack", directory);
    return 0;
}

static int unmake(void **state)
{
    (void)state;
    pack_source_close(&source);
    maker_dir_remove(directory);
    return 0;
}

static void write_pack(const moepage_model *model, const moepage_pack_config *config,
                       moepage_pack_stats *stats)
{
    if (moepage_pack_write(model, path, config, stats))
        fail_msg("not packed: %s", moepage_last_error());
}

static void test_pack_stats_are_what_the_file_says(void **state)
{
    (void)state;
    pack_source_open(&source);
    moepage_pack_config config =
        pack_config(PACK_FORM(DENSE) | PACK_FORM(EXPH) | PACK_FORM(INT2), 9);
    moepage_pack_stats stats = {.struct_size = sizeof stats};
    write_pack(source.model, &config, &stats);
    struct stat info;
    assert_int_equal(stat(path, &info), 0);
    assert_int_equal(stats.file_bytes, info.st_size);
    assert_int_equal(stats.threads, 2);
    assert_int_equal(stats.dense_bytes, 5 * 4 + 11 * 13 * 2 + 4);
    assert_int_equal(stats.routed_bytes, 6 * 9216);
    assert_int_equal(stats.raw_parts, 0);
    assert_true(stats.wall_ns > 0);
    moepage_model *pack = pack_open(path);
    for (uint32_t form = 0; form < 8; form++) {
        moepage_form_info of = {.struct_size = sizeof of};
        if (form >= MOEPAGE_FORM_DENSE && form <= MOEPAGE_FORM_INT2)
            assert_int_equal(moepage_model_get_form(pack, form, &of), MOEPAGE_OK);
        assert_int_equal(stats.form_bytes[form], of.stored_bytes);
    }
    /* packed 2-bit integers, 4 to a byte, and one scale per 64 or fewer */
    assert_int_equal(stats.form_bytes[MOEPAGE_FORM_INT2], 6 * (48 * 16 + 48 * 2 + 64 * 6 + 64 * 2));
    assert_true(stats.form_bytes[MOEPAGE_FORM_DENSE] < stats.routed_bytes);
    assert_int_equal(moepage_model_close(pack), MOEPAGE_OK);
}

typedef struct watch {
    uint64_t calls, done, total;
    uint64_t stop_at; /* call */
} watch;

static int32_t progress(void *user, uint64_t done_bytes, uint64_t total_bytes)
{
    watch *w = user;
    assert_true(done_bytes >= w->done);
    assert_true(!w->total || w->total == total_bytes);
    w->done = done_bytes;
    w->total = total_bytes;
    return ++w->calls == w->stop_at ? -5 : 0;
}

static void test_pack_progress_ends_at_the_total_and_can_stop_the_call(void **state)
{
    (void)state;
    pack_source_open(&source);
    maker_write_text(directory, "a.moepack", "before");
    moepage_pack_config config = pack_config(PACK_FORM(DENSE) | PACK_FORM(EXPH), 0);
    config.verify = 1;
    config.progress = progress;
    for (uint64_t stop_at = 1;; stop_at++) {
        watch w = {.stop_at = stop_at};
        config.progress_user = &w;
        moepage_status status = moepage_pack_write(source.model, path, &config, NULL);
        assert_int_equal(pack_files_in(directory), 1);
        if (status == MOEPAGE_OK) {
            assert_true(stop_at > 5);
            assert_int_equal(w.calls, stop_at - 1);
            assert_int_equal(w.done, w.total);
            break;
        }
        assert_int_equal(status, MOEPAGE_E_CALLBACK);
        expect_sentence("progress|-5");
        size_t n;
        unsigned char *bytes = maker_read(directory, "a.moepack", &n);
        assert_int_equal(n, 6);
        free(bytes);
    }
}

static int32_t die(void *user, uint64_t done_bytes, uint64_t total_bytes)
{
    (void)done_bytes, (void)total_bytes;
    if (++*(int *)user == 4)
        kill(getpid(), SIGKILL);
    return 0;
}

static void test_pack_write_that_is_killed_leaves_the_target(void **state)
{
    (void)state;
    int calls = 0, ended;
    pack_source_open(&source);
    maker_write_text(directory, "a.moepack", "before");
    moepage_pack_config config = pack_config(PACK_FORM(DENSE) | PACK_FORM(EXPH), 0);
    config.threads = 1;
    config.progress = die;
    config.progress_user = &calls;
    pid_t child = fork();
    assert_true(child >= 0);
    if (child == 0) {
        moepage_pack_write(source.model, path, &config, NULL);
        _exit(0);
    }
    assert_int_equal(waitpid(child, &ended, 0), child);
    assert_true(WIFSIGNALED(ended) && WTERMSIG(ended) == SIGKILL);
    size_t n;
    unsigned char *bytes = maker_read(directory, "a.moepack", &n);
    assert_int_equal(n, 6);
    assert_memory_equal(bytes, "before", 6);
    free(bytes);
}

static void test_pack_write_leaves_others_parts_alone(void **state)
{
    (void)state;
    pack_source_open(&source);
    maker_write_text(directory, "a.moepack.part0", "another's");
    maker_write_text(directory, "a.moepack", "old");
    moepage_pack_config config = pack_config(0, 0);
    write_pack(source.model, &config, NULL);
    moepage_model *pack = pack_open(path);
    pack_expect_same(source.model, pack);
    assert_int_equal(moepage_model_close(pack), MOEPAGE_OK);
    size_t n;
    free(maker_read(directory, "a.moepack.part0", &n));
    assert_int_equal(n, 9);
    assert_int_equal(pack_files_in(directory), 2);
}

/* A full disk, by a limit on the size of files; the signal that comes with it must not show. */
static void test_pack_on_a_full_disk_fails_and_leaves_nothing(void **state)
{
    (void)state;
    struct rlimit before, little;
    pack_source_open(&source);
    moepage_pack_config config = pack_config(PACK_FORM(DENSE), 0);
    moepage_pack_stats stats = {.struct_size = sizeof stats};
    write_pack(source.model, &config, &stats);
    assert_int_equal(unlink(path), 0);
    assert_int_equal(getrlimit(RLIMIT_FSIZE, &before), 0);
    for (uint64_t limit = 0; limit < stats.file_bytes; limit += 1000) {
        little = (struct rlimit){.rlim_cur = limit, .rlim_max = before.rlim_max};
        assert_int_equal(setrlimit(RLIMIT_FSIZE, &little), 0);
        moepage_status status = moepage_pack_write(source.model, path, &config, NULL);
        assert_int_equal(setrlimit(RLIMIT_FSIZE, &before), 0);
        assert_int_equal(status, MOEPAGE_E_IO);
        expect_sentence("a.moepack|writing|File too large");
        assert_int_equal(pack_files_in(directory), 0);
    }
}

static int32_t read_anew(void *user, uint32_t layer, uint32_t expert, uint32_t tensor,
                         uint64_t offset, uint64_t bytes, void *out)
{
    static _Atomic uint8_t calls;
    (void)user, (void)layer, (void)expert, (void)tensor, (void)offset;
    memset(out, atomic_fetch_add(&calls, 1) & 63, bytes);
    return 0;
}

static void test_pack_verify_finds_a_model_that_is_another_by_then(void **state)
{
    (void)state;
    static const uint32_t forms[] = {PACK_FORM(DENSE), PACK_FORM(EXPH),
                                     PACK_FORM(EXPH) | PACK_FORM(INT4)};
    source.banks.read = read_anew;
    pack_source_open(&source);
    for (int i = 0; i < 3; i++) {
        moepage_pack_config config = pack_config(forms[i], 0);
        config.verify = 1;
        assert_int_equal(moepage_pack_write(source.model, path, &config, NULL), MOEPAGE_E_IO);
        expect_sentence("reading back|EXPERT DATA|layer 0, expert|is not the model's");
        assert_int_equal(pack_files_in(directory), 0);
        config.verify = 0;
        assert_int_equal(moepage_pack_write(source.model, path, &config, NULL), MOEPAGE_OK);
        assert_int_equal(unlink(path), 0);
    }
}

static void test_pack_write_refuses_bad_configs(void **state)
{
    (void)state;
    static const struct {
        size_t field;
        uint32_t value;
        moepage_status status;
        const char *words;
    } bad[] = {
        {offsetof(moepage_pack_config, forms), 1, MOEPAGE_E_ARGUMENT, "forms is 0x1"},
        {offsetof(moepage_pack_config, forms), 1u << 6 | 2, MOEPAGE_E_ARGUMENT, "forms is 0x42"},
        {offsetof(moepage_pack_config, forms), PACK_FORM(INT8), MOEPAGE_E_ARGUMENT, "forms is 0x8"},
        {offsetof(moepage_pack_config, cold_level), 20, MOEPAGE_E_ARGUMENT, "cold_level is 20"},
        {offsetof(moepage_pack_config, cold_level), UINT32_MAX, MOEPAGE_E_ARGUMENT, "is -1"},
        {offsetof(moepage_pack_config, cold_level), 3, MOEPAGE_E_ARGUMENT, "no DENSE"},
        {offsetof(moepage_pack_config, group_size), 64, MOEPAGE_E_ARGUMENT,
         "group_size is 64, but forms 0x4 has no integer form"},
        {offsetof(moepage_pack_config, scale_search), 1, MOEPAGE_E_ARGUMENT,
         "scale_search is 1, but forms 0x4 has no integer form"},
        {offsetof(moepage_pack_config, threads), 1025, MOEPAGE_E_ARGUMENT, "threads is 1025"},
        {offsetof(moepage_pack_config, verify), 2, MOEPAGE_E_ARGUMENT, "verify is 2"},
        {offsetof(moepage_pack_config, scale_search), 2, MOEPAGE_E_ARGUMENT, "scale_search 2"},
        {offsetof(moepage_pack_config, reserved), 1, MOEPAGE_E_ARGUMENT, "reserved 1"},
        {0, 8, MOEPAGE_E_VERSION, "struct_size is 8"},
    };
    pack_source_open(&source);
    for (size_t i = 0; i < sizeof bad / sizeof *bad; i++) {
        moepage_pack_config config = {.struct_size = sizeof config};
        memcpy((char *)&config + bad[i].field, &bad[i].value, 4);
        assert_int_equal(moepage_pack_write(source.model, path, &config, NULL), bad[i].status);
        expect_sentence(bad[i].words);
    }
    moepage_pack_config integers = pack_config(PACK_FORM(EXPH) | PACK_FORM(INT8), 0);
    integers.group_size = 48;
    assert_int_equal(moepage_pack_write(source.model, path, &integers, NULL), MOEPAGE_E_ARGUMENT);
    expect_sentence("group_size is 48");
    moepage_pack_stats stats = {.struct_size = 4};
    assert_int_equal(moepage_pack_write(source.model, path, NULL, &stats), MOEPAGE_E_VERSION);
    assert_int_equal(moepage_pack_write(source.model, "", NULL, NULL), MOEPAGE_E_ARGUMENT);
    assert_int_equal(moepage_pack_write(source.model, NULL, NULL, NULL), MOEPAGE_E_ARGUMENT);
    assert_int_equal(moepage_pack_write(NULL, path, NULL, NULL), MOEPAGE_E_ARGUMENT);
    assert_int_equal(pack_files_in(directory), 0);
}

static void test_pack_write_refuses_targets_that_are_no_files(void **state)
{
    (void)state;
    char no_such[128];
    pack_source_open(&source);
    assert_int_equal(moepage_pack_write(source.model, directory, NULL, NULL), MOEPAGE_E_ARGUMENT);
    expect_sentence("not a regular file");
    snprintf(no_such, sizeof no_such, "%s/none/a.moepack", directory);
    assert_int_equal(moepage_pack_write(source.model, no_such, NULL, NULL), MOEPAGE_E_NOT_FOUND);
    expect_sentence("none/a.moepack");
    assert_int_equal(pack_files_in(directory), 0);
}

/* Integers are made of floating-point matrices; the lossless forms take anything. */
static void test_pack_integer_forms_refuse_other_weights(void **state)
{
    (void)state;
    source.banks.n_tensors = 0;
    pack_source_tensor(&source, MOEPAGE_ROLE_GATE_UP, MOEPAGE_DTYPE_BF16, 2, TWO_BY_FOUR);
    pack_source_tensor(&source, MOEPAGE_ROLE_DOWN, MOEPAGE_DTYPE_F8_E4M3, 2, TWO_BY_FOUR);
    pack_source_open(&source);
    moepage_pack_config config = pack_config(PACK_FORM(EXPH) | PACK_FORM(INT4), 0);
    assert_int_equal(moepage_pack_write(source.model, path, &config, NULL), MOEPAGE_E_UNSUPPORTED);
    expect_sentence("tensor 1 is F8_E4M3 of rank 2");
    assert_int_equal(pack_files_in(directory), 0);
    config.forms = PACK_FORM(EXPH) | PACK_FORM(DENSE);
    write_pack(source.model, &config, NULL);
}

static void test_pack_integer_forms_refuse_infinities(void **state)
{
    (void)state;
    pack_source_open(&source);
    memcpy(source.bytes[2 * 3 + 1] + 20, (unsigned char[]){0x80, 0x7f}, 2);
    moepage_pack_config config = pack_config(PACK_FORM(EXPH) | PACK_FORM(INT4), 0);
    assert_int_equal(moepage_pack_write(source.model, path, &config, NULL), MOEPAGE_E_UNSUPPORTED);
    expect_sentence("layer 1, expert 0|tensor 1");
    assert_int_equal(pack_files_in(directory), 0);
    config.forms = PACK_FORM(EXPH);
    write_pack(source.model, &config, NULL);
}

int main(void)
{
#define CASE(f) cmocka_unit_test_setup_teardown(f, make, unmake)
    const struct CMUnitTest tests[] = {
        CASE(test_pack_stats_are_what_the_file_says),
        CASE(test_pack_progress_ends_at_the_total_and_can_stop_the_call),
        CASE(test_pack_write_that_is_killed_leaves_the_target),
        CASE(test_pack_write_leaves_others_parts_alone),
        CASE(test_pack_on_a_full_disk_fails_and_leaves_nothing),
        CASE(test_pack_verify_finds_a_model_that_is_another_by_then),
        CASE(test_pack_write_refuses_bad_configs),
        CASE(test_pack_write_refuses_targets_that_are_no_files),
        CASE(test_pack_integer_forms_refuse_other_weights),
        CASE(test_pack_integer_forms_refuse_infinities),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
