/* Reads texts. */
#include "common/corpus.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "common/fail.h"

#define ID_BYTES 4u

static void name_domain(const char *path, domain *out)
{
    const char *slash = strrchr(path, '/'), *base = slash ? slash + 1 : path;
    const char *dot = strrchr(base, '.');
    size_t length = dot && dot != base ? (size_t)(dot - base) : strlen(base);
    snprintf(out->name, sizeof out->name, "%.*s", (int)length, base);
}

static int read_whole(const char *path, unsigned char **out, size_t *n)
{
    FILE *file = fopen(path, "rbe");
    size_t room = 0, got;
    *out = NULL;
    *n = 0;
    if (!file)
        return fail(RUN_REFUSED, "%s: %s", path, strerror(errno));
    do {
        room = room ? room * 2 : 1u << 16;
        unsigned char *grown = realloc(*out, room);
        if (!grown) {
            fclose(file);
            return fail_memory();
        }
        *out = grown;
        got = fread(grown + *n, 1, room - *n, file);
        *n += got;
    } while (*n == room);
    bool failed = ferror(file);
    fclose(file);
    return failed ? fail(RUN_REFUSED, "%s: cannot be read", path) : RUN_OK;
}

static uint32_t token_at(const unsigned char *text, uint64_t i, bool bytes)
{
    if (bytes)
        return text[i];
    const unsigned char *id = text + i * ID_BYTES;
    return id[0] | (uint32_t)id[1] << 8 | (uint32_t)id[2] << 16 | (uint32_t)id[3] << 24;
}

static int cut(const corpus_config *config, const char *path, const unsigned char *text, size_t n,
               domain *out)
{
    const uint64_t tokens = config->bytes ? n : n / ID_BYTES;
    uint64_t windows = tokens / config->window;
    if (!windows)
        return fail(RUN_REFUSED, "%s: %llu tokens are less than one window of %u", path,
                    (unsigned long long)tokens, config->window);
    out->left_over = tokens - windows * config->window;
    if (config->windows && windows > config->windows)
        windows = config->windows;
    if (windows > UINT32_MAX)
        windows = UINT32_MAX;
    out->n_windows = (uint32_t)windows;
    out->tokens = malloc(windows * config->window * sizeof *out->tokens);
    if (!out->tokens)
        return fail_memory();
    for (uint64_t i = 0; i < windows * config->window; i++) {
        out->tokens[i] = token_at(text, i, config->bytes);
        if (out->tokens[i] >= config->vocabulary)
            return fail(RUN_REFUSED, "%s: token %u at %llu is outside the vocabulary of %u", path,
                        out->tokens[i], (unsigned long long)i, config->vocabulary);
    }
    return RUN_OK;
}

int corpus_open(const corpus_config *config, corpus *out)
{
    *out = (corpus){.window = config->window, .bytes = config->bytes};
    out->domains = calloc(config->n_files, sizeof *out->domains);
    if (!out->domains)
        return fail_memory();
    int code = RUN_OK;
    for (uint32_t i = 0; i < config->n_files && !code; i++) {
        unsigned char *text;
        size_t n;
        name_domain(config->files[i], &out->domains[i]);
        out->n_domains = i + 1;
        code = read_whole(config->files[i], &text, &n);
        if (!code)
            code = cut(config, config->files[i], text, n, &out->domains[i]);
        free(text);
    }
    return code;
}

void corpus_close(corpus *c)
{
    for (uint32_t i = 0; i < c->n_domains; i++)
        free(c->domains[i].tokens);
    free(c->domains);
}
