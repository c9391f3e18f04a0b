/* Cuts prompts from texts. */
#include "serve/prompts.h"

#include <errno.h>
#include <glob.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "common/fail.h"
#include "common/sampler.h"
#include "common/tokenizer.h"

#define MOST_TEXTS 32
#define MOST_BYTES (64u << 20) /* of one text */

typedef struct text {
    unsigned char *bytes;
    size_t n;
} text;

typedef struct texts {
    text list[MOST_TEXTS];
    uint32_t n;
} texts;

static int read_text(const char *path, texts *out)
{
    FILE *in = fopen(path, "re");
    if (!in)
        return fail(RUN_REFUSED, "%s: %s", path, strerror(errno));
    text *t = &out->list[out->n++];
    size_t room = 0, got = 1;
    int code = RUN_OK;
    while (!code && got && t->n < MOST_BYTES) {
        room = room ? 2 * room : 1 << 16;
        unsigned char *grown = realloc(t->bytes, room);
        if (!grown)
            code = fail_memory();
        else
            t->bytes = grown;
        got = code ? 0 : fread(t->bytes + t->n, 1, room - t->n, in);
        t->n += got;
    }
    if (!code && ferror(in))
        code = fail(RUN_REFUSED, "%s: %s", path, strerror(errno));
    if (!code && !t->n)
        code = fail(RUN_REFUSED, "%s: the text is empty", path);
    fclose(in);
    return code;
}

/* Reads the model's own texts, in the order of their names; it need not have any. */
static int read_own(const char *model, texts *out)
{
    char pattern[4096];
    glob_t found = {0};
    if (snprintf(pattern, sizeof pattern, "%s/eval/*.bin", model) >= (int)sizeof pattern ||
        glob(pattern, 0, NULL, &found))
        return RUN_OK;
    int code = RUN_OK;
    for (size_t i = 0; i < found.gl_pathc && out->n < MOST_TEXTS && !code; i++)
        code = read_text(found.gl_pathv[i], out);
    globfree(&found);
    return code;
}

/* Cuts a window from the text, which repeats after its end. */
static void cut(const text *from, sampler_state *random, uint32_t *tokens, uint32_t n)
{
    uint64_t start = sampler_random(random) % from->n;
    for (uint32_t i = 0; i < n; i++)
        tokens[i] = from->bytes[(start + i) % from->n];
}

static void invent(const model_config *model, sampler_state *random, uint32_t *tokens, uint32_t n)
{
    for (uint32_t i = 0; i < n; i++)
        do
            tokens[i] = (uint32_t)(sampler_random(random) % model->vocabulary);
        while (config_is_eos(model, tokens[i]));
}

static int fill(const serve_options *opts, const model_config *model, const texts *from,
                arrivals *a)
{
    a->tokens = calloc(a->n ? a->n : 1, sizeof *a->tokens);
    if (!a->tokens)
        return fail_memory();
    for (uint32_t i = 0; i < a->n; i++) {
        uint32_t n = a->requests[i].prompt_tokens;
        sampler_state random = sampler_seed(~opts->base.seed, i);
        if (!(a->tokens[i] = calloc(n, sizeof **a->tokens)))
            return fail_memory();
        if (from->n)
            cut(&from->list[i % from->n], &random, a->tokens[i], n);
        else
            invent(model, &random, a->tokens[i], n);
    }
    a->texts = from->n ? "windows of text" : "random tokens";
    return RUN_OK;
}

int prompts_fill(const serve_options *opts, const model_config *model, arrivals *a)
{
    const bool bytes = tokenizer_is_bytes(opts->base.model, model);
    texts from = {.n = 0};
    int code = RUN_OK;
    if (opts->text && !bytes)
        code = fail(RUN_REFUSED, "--text needs a byte-level model; %s has a vocabulary of its own",
                    opts->base.model);
    else if (opts->text)
        code = read_text(opts->text, &from);
    else if (bytes)
        code = read_own(opts->base.model, &from);
    if (!code)
        code = fill(opts, model, &from, a);
    for (uint32_t i = 0; i < from.n; i++)
        free(from.list[i].bytes);
    return code;
}
