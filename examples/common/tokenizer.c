/* Byte-level text, and the choice between it and the model's tokenizer. */
#include "common/tokenizer.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "common/fail.h"

/* Returns true if the model's directory has a file of that name. */
static bool has_file(const char *path, const char *name)
{
    char file[4096];
    const int length = snprintf(file, sizeof file, "%s/%s", path, name);
    return length < 0 || (size_t)length >= sizeof file || access(file, F_OK) == 0;
}

bool tokenizer_is_bytes(const char *path, const model_config *config)
{
    const uint32_t vocabulary = config->vocabulary;
    static const char *const files[] = {"tokenizer.json", "tokenizer.model", "vocab.json"};
    if (config->has_tokens || vocabulary < 256 || vocabulary > 256 + TOKENIZER_MAX_SPECIAL)
        return false;
    for (size_t i = 0; i < sizeof files / sizeof *files; i++)
        if (has_file(path, files[i]))
            return false;
    return true;
}

static int open_directory(const char *path, tokenizer *out)
{
    char file[4096];
    const int length = snprintf(file, sizeof file, "%s/tokenizer.json", path);
    if (length < 0 || (size_t)length >= sizeof file)
        return fail(RUN_REFUSED, "%s: the name is too long", path);
    int code = bpe_open_file(file, &out->bpe, &out->why);
    if (!code && !out->bpe && !out->why.text[0])
        snprintf(out->why.text, sizeof out->why.text, "it has no tokenizer.json%s",
                 has_file(path, "tokenizer.model") ? ", and tokenizer.model is not read" : "");
    return code;
}

int tokenizer_open(const char *path, const moepage_model *model, const model_config *config,
                   tokenizer *out)
{
    *out = (tokenizer){.bytes = tokenizer_is_bytes(path, config)};
    for (uint32_t b = 0; b < 256; b++)
        out->byte[b] = (unsigned char)b;
    if (config->has_tokens)
        return bpe_open(model, &out->bpe, &out->why);
    return out->bytes ? RUN_OK : open_directory(path, out);
}

void tokenizer_close(tokenizer *t)
{
    bpe_close(t->bpe);
}

bool tokenizer_has_text(const tokenizer *t)
{
    return t->bytes || t->bpe;
}

int tokenizer_encode(const tokenizer *t, const char *text, uint32_t **out, size_t *n)
{
    if (t->bpe)
        return bpe_encode(t->bpe, text, out, n);
    *n = strlen(text);
    *out = calloc(*n + 1, sizeof **out);
    for (size_t i = 0; *out && i < *n; i++)
        (*out)[i] = (unsigned char)text[i];
    return *out ? RUN_OK : fail_memory();
}

const unsigned char *tokenizer_text(const tokenizer *t, uint32_t token, size_t *n)
{
    if (t->bpe)
        return bpe_text(t->bpe, token, n);
    *n = t->bytes && token < 256;
    return *n ? &t->byte[token] : NULL;
}

/* Returns the length of a well-formed sequence that starts with `lead`, and the range of its second
 * byte (Unicode, table 3-7); 0 if no sequence starts with it. */
static size_t sequence_length(unsigned char lead, unsigned char *low, unsigned char *high)
{
    *low = 0x80;
    *high = 0xbf;
    if (lead < 0x80)
        return 1;
    if (lead >= 0xc2 && lead <= 0xdf)
        return 2;
    if (lead >= 0xe0 && lead <= 0xef) {
        *low = lead == 0xe0 ? 0xa0 : 0x80;
        *high = lead == 0xed ? 0x9f : 0xbf;
        return 3;
    }
    if (lead >= 0xf0 && lead <= 0xf4) {
        *low = lead == 0xf0 ? 0x90 : 0x80;
        *high = lead == 0xf4 ? 0x8f : 0xbf;
        return 4;
    }
    return 0;
}

size_t tokenizer_to_utf8(const unsigned char *bytes, size_t n, char *out)
{
    size_t length = 0;
    for (size_t i = 0; i < n;) {
        unsigned char low, high;
        size_t whole = sequence_length(bytes[i], &low, &high);
        size_t good = 1;
        while (good < whole && i + good < n && bytes[i + good] >= low && bytes[i + good] <= high) {
            good++;
            low = 0x80;
            high = 0xbf;
        }
        bool valid = good == whole;
        memcpy(out + length, valid ? (const char *)bytes + i : "\xef\xbf\xbd", valid ? good : 3);
        length += valid ? good : 3;
        i += good;
    }
    return length;
}
