/* moepage-generate while its model's file changes: it ends with one sentence that names the file, not
 * with a signal and not with other tokens.
 *
 * The tool opens its output files last, before it generates. Two of them are FIFOs here: once the test
 * has opened the first, the tool is at the second, and stays there while the file is changed. */
#include <fcntl.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "checkpoint_maker.h"
#include "testing.h"
#include "tool.h"

#define TINY "examples/models/tiny-qwen3moe"
#define FLAGS(...) ((const char *const[]){__VA_ARGS__, NULL})

typedef enum file_change { NONE, CUT, OVERWRITE, REMOVE, REPLACE } file_change;

typedef struct run_case {
    const char *name;       /* of the file that changes */
    const char *pack_flags; /* the forms of a pack; NULL: the checkpoint itself */
    const char *cold_level; /* of zstd, or NULL */
    const char *const *flags;
} run_case;

static const run_case cases[] = {
    {"model-00002-of-00002.safetensors", NULL, NULL, FLAGS("--budget", "10%")},
    {"model-00002-of-00002.safetensors", NULL, NULL,
     FLAGS("--budget", "10%", "--host-tier", "2M", "--prefetch", "previous")},
    {"model-00002-of-00002.safetensors", NULL, NULL, FLAGS("--budget", "10%", "--miss", "host")},
    {"x.moepack", "bf16", NULL, FLAGS("--budget", "10%")},
    {"x.moepack", "bf16", "3", FLAGS("--budget", "10%", "--host-tier", "2M")},
    {"x.moepack", "exph", NULL, FLAGS("--budget", "10%", "--prefetch", "gate")},
    {"x.moepack", "exph", NULL, FLAGS("--budget", "10%", "--host-tier", "2M")},
};

typedef struct scene {
    char dir[64];
    char model[128], file[192], metrics[128], logits[128];
    file_change change;
} scene;

static void copy_file(const char *dir, const char *name)
{
    size_t n;
    unsigned char *bytes = maker_read(TINY, name, &n);
    maker_write(dir, name, bytes, n);
    free(bytes);
}

static void open_scene(scene *s, const run_case *c)
{
    static const char *const names[] = {"config.json", "model.safetensors.index.json",
                                        "model-00001-of-00002.safetensors",
                                        "model-00002-of-00002.safetensors"};
    maker_dir_create(s->dir);
    snprintf(s->model, sizeof s->model, "%s", s->dir);
    snprintf(s->file, sizeof s->file, "%s/%s", s->dir, c->name);
    snprintf(s->metrics, sizeof s->metrics, "%s/metrics", s->dir);
    snprintf(s->logits, sizeof s->logits, "%s/logits", s->dir);
    assert_int_equal(mkfifo(s->metrics, 0600), 0);
    assert_int_equal(mkfifo(s->logits, 0600), 0);
    if (!c->pack_flags) {
        for (size_t i = 0; i < sizeof names / sizeof *names; i++)
            copy_file(s->dir, names[i]);
        return;
    }
    tool_result packed;
    snprintf(s->model, sizeof s->model, "%s", s->file);
    tool_run("moepage-pack",
             FLAGS(TINY, s->file, "--expert-versions", c->pack_flags,
                   c->cold_level ? "--cold-level" : NULL, c->cold_level),
             &packed);
    assert_int_equal(packed.exit_status, 0);
    tool_result_free(&packed);
}

static void change_file(const scene *s)
{
    struct stat before, after;
    unsigned char noise[4096];
    assert_int_equal(stat(s->file, &before), 0);
    int file;
    switch (s->change) {
    case NONE: return;
    case CUT: assert_int_equal(truncate(s->file, before.st_size / 8), 0); return;
    case REMOVE: assert_int_equal(unlink(s->file), 0); return;
    case REPLACE:
        assert_int_equal(unlink(s->file), 0);
        maker_write_text(s->dir, strrchr(s->file, '/') + 1, "another file of this name");
        return;
    case OVERWRITE:
        file = open(s->file, O_WRONLY | O_CLOEXEC);
        assert_true(file >= 0);
        memset(noise, 0x3c, sizeof noise);
        do { /* until the file's time has moved: it moves in ticks */
            for (off_t at = before.st_size / 4; at < before.st_size - 4096; at += 4096)
                assert_int_equal(pwrite(file, noise, sizeof noise, at), sizeof noise);
            assert_int_equal(fstat(file, &after), 0);
        } while (!memcmp(&before.st_mtim, &after.st_mtim, sizeof after.st_mtim));
        close(file);
    }
}

/* Waits until the tool has opened the FIFO for writing. */
static int meet(const char *path)
{
    int fifo = open(path, O_RDONLY | O_CLOEXEC);
    assert_true(fifo >= 0);
    return fifo;
}

/* Reads until the tool has closed it. */
static void drain(int fifo)
{
    char bytes[4096];
    while (read(fifo, bytes, sizeof bytes) > 0)
        ;
    close(fifo);
}

static void *change_in_time(void *user)
{
    const scene *s = user;
    int metrics = meet(s->metrics);
    change_file(s);
    int logits = meet(s->logits);
    drain(logits);
    drain(metrics);
    return NULL;
}

static void run(const run_case *c, file_change change, tool_result *out)
{
    scene s = {.change = change};
    pthread_t other;
    const char *arguments[32] = {"--model",   s.model,   "--prompt",     "the cat sat on the",
                                 "--threads", "2",       "--max-tokens", "40",
                                 "--metrics", s.metrics, "--logits-out", s.logits};
    size_t n = 12;
    for (size_t i = 0; c->flags[i]; i++)
        arguments[n++] = c->flags[i];
    open_scene(&s, c);
    assert_int_equal(pthread_create(&other, NULL, change_in_time, &s), 0);
    tool_run("moepage-generate", arguments, out);
    assert_int_equal(pthread_join(other, NULL), 0);
    maker_dir_remove(s.dir);
}

static void test_generate_ends_with_a_sentence_when_its_file_changes(void **state)
{
    (void)state;
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++)
        for (file_change how = CUT; how <= OVERWRITE; how++) {
            tool_result found;
            run(&cases[i], how, &found);
            if (found.exit_status == 0 || found.exit_status >= 128)
                fail_msg("%s, case %zu, change %d: exit status %d: %s", cases[i].name, i, how,
                         found.exit_status, found.err);
            if (!strstr(found.err, cases[i].name) ||
                !strstr(found.err, how == CUT ? "was truncated since it was opened"
                                              : "was changed since it was opened"))
                fail_msg("%s, case %zu, change %d: \"%s\"", cases[i].name, i, how, found.err);
            tool_result_free(&found);
        }
}

/* A file that is replaced or deleted is not changed: the same tokens as without. */
static void test_generate_goes_on_when_its_file_loses_its_name(void **state)
{
    (void)state;
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i += 3) {
        tool_result right;
        run(&cases[i], NONE, &right);
        assert_int_equal(right.exit_status, 0);
        for (file_change how = REMOVE; how <= REPLACE; how++) {
            tool_result found;
            run(&cases[i], how, &found);
            if (found.exit_status)
                fail_msg("%s, case %zu, change %d: %s", cases[i].name, i, how, found.err);
            size_t n = strcspn(right.out, "\n"); /* the text; times follow */
            assert_memory_equal(found.out, right.out, n);
            tool_result_free(&found);
        }
        tool_result_free(&right);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_generate_ends_with_a_sentence_when_its_file_changes),
        cmocka_unit_test(test_generate_goes_on_when_its_file_loses_its_name),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
