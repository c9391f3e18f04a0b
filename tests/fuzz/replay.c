/* Runs one fuzz target over files, without a fuzzing engine.
 *
 *   fuzz_x [FILE | DIRECTORY]...
 *
 * Without an argument: tests/fuzz/corpus/x. A directory counts with the files in it and must have
 * at least one. Reports in TAP; each file is named before it is run, so that the last line before a
 * crash says which it was. */
#include <dirent.h>
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

#include "fuzz.h"

#define CORPUS "tests/fuzz/corpus/"
#define PREFIX "fuzz_"

static _Noreturn void give_up(const char *path, const char *why)
{
    printf("not ok 1 - %s: %s\n", path, why);
    exit(1);
}

static unsigned run_file(const char *path)
{
    printf("# %s\n", path);
    FILE *file = fopen(path, "rb");
    struct stat info;
    if (!file || fstat(fileno(file), &info))
        give_up(path, strerror(errno));
    /* Of exactly the file's size, so that reading past its end is seen. */
    size_t n_bytes = (size_t)info.st_size;
    uint8_t *bytes = malloc(n_bytes ? n_bytes : 1);
    if (!bytes || fread(bytes, 1, n_bytes, file) != n_bytes)
        give_up(path, "cannot be read");
    fclose(file);
    LLVMFuzzerTestOneInput(bytes, n_bytes);
    free(bytes);
    return 1;
}

static int visible(const struct dirent *entry)
{
    return entry->d_name[0] != '.';
}

static unsigned run_path(const char *path)
{
    struct stat info;
    if (stat(path, &info))
        give_up(path, strerror(errno));
    if (!S_ISDIR(info.st_mode))
        return run_file(path);
    struct dirent **entries;
    int n = scandir(path, &entries, visible, alphasort);
    unsigned files = 0;
    for (int i = 0; i < n; i++) {
        char inner[4096];
        snprintf(inner, sizeof inner, "%s/%s", path, entries[i]->d_name);
        files += run_path(inner);
        free(entries[i]);
    }
    if (n >= 0)
        free(entries);
    if (!files)
        give_up(path, "no file in it");
    return files;
}

int main(int argc, char **argv)
{
    const char *name = strrchr(argv[0], '/');
    name = name ? name + 1 : argv[0];
    unsigned files = 0;
    setvbuf(stdout, NULL, _IOLBF, 0);
    printf("1..1\n");
    if (argc < 2) {
        char corpus[256];
        size_t prefix = strncmp(name, PREFIX, strlen(PREFIX)) == 0 ? strlen(PREFIX) : 0;
        snprintf(corpus, sizeof corpus, CORPUS "%s", name + prefix);
        files = run_path(corpus);
    }
    for (int i = 1; i < argc; i++)
        files += run_path(argv[i]);
    if (argc < 2 && !fuzz_accepted)
        give_up(name, "every file of its corpus is refused");
    printf("ok 1 - %s: %u files, %u of them accepted\n", name, files, fuzz_accepted);
    return 0;
}
