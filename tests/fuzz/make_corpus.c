/* Writes the seeds of the fuzz targets:  make_corpus [DIRECTORY]   (default tests/fuzz/corpus)
 *
 * Files that are there under other names, such as what fuzzing found, are left alone. */
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

#include "corpus.h"

static const char *root = "tests/fuzz/corpus";
static size_t written;

static _Noreturn void give_up(const char *what)
{
    perror(what);
    exit(1);
}

void corpus_write(const char *target, const char *name, const void *bytes, size_t n_bytes)
{
    char path[512];
    snprintf(path, sizeof path, "%s/%s", root, target);
    mkdir(path, 0777);
    snprintf(path, sizeof path, "%s/%s/%s", root, target, name);
    FILE *file = fopen(path, "wb");
    if (!file || fwrite(bytes, 1, n_bytes, file) != n_bytes || fclose(file))
        give_up(path);
    written++;
}

void corpus_add(corpus_bytes *to, const void *bytes, size_t n_bytes)
{
    if (to->n + n_bytes > to->room) {
        to->room = 2 * (to->n + n_bytes) + 64;
        to->at = realloc(to->at, to->room);
        if (!to->at)
            give_up("memory");
    }
    if (n_bytes)
        memcpy(to->at + to->n, bytes, n_bytes);
    to->n += n_bytes;
}

void corpus_add_uint(corpus_bytes *to, uint64_t value, unsigned n_bytes)
{
    for (unsigned i = 0; i < n_bytes; i++)
        corpus_add(to, &(uint8_t){(uint8_t)(value >> (8 * i))}, 1);
}

void corpus_add_text(corpus_bytes *to, const char *format, ...)
{
    char *text;
    va_list args;
    va_start(args, format);
    int n = vasprintf(&text, format, args);
    va_end(args);
    if (n < 0)
        give_up("memory");
    corpus_add(to, text, (size_t)n);
    free(text);
}

void corpus_finish(corpus_bytes *bytes, const char *target, const char *name)
{
    corpus_write(target, name, bytes->at, bytes->n);
    free(bytes->at);
    *bytes = (corpus_bytes){0};
}

int main(int argc, char **argv)
{
    if (argc > 1)
        root = argv[1];
    mkdir(root, 0777);
    corpus_make_checkpoints();
    corpus_make_w4();
    corpus_make_ggufs();
    corpus_make_tokenizers();
    corpus_make_traces();
    corpus_make_codec();
    corpus_make_packs();
    printf("%zu files in %s\n", written, root);
    return 0;
}
