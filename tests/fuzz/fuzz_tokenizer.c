/* Any bytes as a tokenizer, and any text: it is opened or refused with a sentence, never half; what opens
 * encodes every text that is UTF-8, and refuses others; each token has its bytes, and where no token is
 * special those of all tokens together are the text.
 *
 *   u16 the text's length; the text; then a tokenizer.json, which begins with '{', or lines:
 *
 *   the first: flags, and the names of model and pre-tokenizer: "b gpt2 qwen2"; b = with a token for each
 *              byte, before the others; B, E = BOS and EOS are added; S = no space is
 *   others:    a token's kind, score and text: "t1-12 ab"; or a merge: "mleft right" */
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "common/bpe.h"
#include "common/fail.h"
#include "fuzz.h"
#include "gguf_moe.h"

enum { MOST_LINES = 4096 };

/* ---- Sentences, instead of those that the examples print --------------------------------- */

static unsigned said;

int fail(int code, const char *format, ...)
{
    char sentence[2048];
    va_list args;
    va_start(args, format);
    FUZZ_CHECK(vsnprintf(sentence, sizeof sentence, format, args) > 0);
    va_end(args);
    said++;
    return code;
}

int fail_library(int code, const char *doing)
{
    return fail(code, "%s: %s", doing, moepage_last_error());
}

int fail_memory(void)
{
    return fail(RUN_FAILED, "out of memory");
}

/* ---- A GGUF file of lines ---------------------------------------------------------------- */

typedef struct line {
    const char *at;
    size_t n;
} line;

/* What the lines say, before it becomes arrays. */
typedef struct tokenizer_lines {
    line tokens[MOST_LINES], merges[MOST_LINES];
    uint32_t n_tokens, n_merges;
    bool special; /* some token is */
    bool space;   /* some token is one, as U+2581 */
    bool bytes;
} tokenizer_lines;

static void append_text(gguf_writer *w, const char *text, size_t n)
{
    gguf_append_uint(&w->values, n, 8);
    gguf_append(&w->values, text, n);
}

static size_t write_byte(uint32_t b, char *out)
{
    uint32_t others = 0;
    for (uint32_t i = 0; i < b; i++)
        others += !((i > 32 && i < 127) || (i > 160 && i != 173));
    const bool plain = (b > 32 && b < 127) || (b > 160 && b != 173);
    const uint32_t c = plain ? b : 256 + others;
    if (c < 128) {
        out[0] = (char)c;
        return 1;
    }
    out[0] = (char)(0xc0 | c >> 6);
    out[1] = (char)(0x80 | (c & 63));
    return 2;
}

static void write_tokens(gguf_writer *w, const tokenizer_lines *l, bool named)
{
    const uint32_t bytes = l->bytes ? 256 : 0, n = bytes + l->n_tokens;
    gguf_array(w, "tokenizer.ggml.tokens", W_TEXT, n);
    for (uint32_t b = 0; b < bytes; b++) {
        char text[8];
        size_t length = write_byte(b, text);
        if (named)
            length = (size_t)snprintf(text, sizeof text, "<0x%02X>", b);
        append_text(w, text, length);
    }
    for (uint32_t i = 0; i < l->n_tokens; i++) {
        const line *t = &l->tokens[i];
        const char *text = memchr(t->at, ' ', t->n);
        const size_t skip = text ? (size_t)(text + 1 - t->at) : t->n;
        append_text(w, t->at + skip, t->n - skip);
    }
    gguf_array(w, "tokenizer.ggml.token_type", W_I32, n);
    for (uint32_t i = 0; i < n; i++)
        gguf_append_uint(&w->values,
                         i < bytes ? (named ? 6u : 1u) : (uint32_t)l->tokens[i - bytes].at[0] - '0',
                         4);
    gguf_array(w, "tokenizer.ggml.scores", W_F32, n);
    for (uint32_t i = 0; i < n; i++) {
        char number[16] = "0";
        if (i >= bytes && l->tokens[i - bytes].n > 1)
            snprintf(number, sizeof number, "%.*s", (int)l->tokens[i - bytes].n - 1,
                     l->tokens[i - bytes].at + 1);
        const float score = strtof(number, NULL);
        uint32_t bits;
        memcpy(&bits, &score, sizeof bits);
        gguf_append_uint(&w->values, bits, 4);
    }
}

static void write_merges(gguf_writer *w, const tokenizer_lines *l)
{
    gguf_array(w, "tokenizer.ggml.merges", W_TEXT, l->n_merges);
    for (uint32_t i = 0; i < l->n_merges; i++)
        append_text(w, l->merges[i].at, l->merges[i].n);
}

/* Returns true if a token's line has U+2581 as its text. */
static bool is_space(const char *at, size_t n)
{
    const char *text = memchr(at, ' ', n);
    return text && (size_t)(at + n - text) == 4 && !memcmp(text + 1, "\xe2\x96\x81", 3);
}

static void read_lines(const char *at, size_t n, tokenizer_lines *out)
{
    while (n) {
        const char *end = memchr(at, '\n', n);
        const size_t length = end ? (size_t)(end - at) : n;
        if (length > 1 && at[0] == 't' && out->n_tokens < MOST_LINES) {
            out->special |= at[1] != '1';
            out->space |= is_space(at + 1, length - 1);
            out->tokens[out->n_tokens++] = (line){at + 1, length - 1};
        } else if (length && at[0] == 'm' && out->n_merges < MOST_LINES) {
            out->merges[out->n_merges++] = (line){at + 1, length - 1};
        }
        at += end ? length + 1 : length;
        n -= end ? length + 1 : length;
    }
}

/* Returns true if no token is special, and none is added. */
static bool write_file(const char *text, size_t n)
{
    static tokenizer_lines l;
    gguf_writer w;
    gguf_moe small = gguf_moe_usual();
    char flags[8] = "", name[16] = "", pre[32] = "", first[64] = "";
    const char *end = memchr(text, '\n', n);
    const size_t length = end ? (size_t)(end - text) : n;
    snprintf(first, sizeof first, "%.*s", (int)length, text);
    sscanf(first, "%7s %15s %31s", flags, name, pre);
    memset(&l, 0, sizeof l);
    l.bytes = strchr(flags, 'b');
    read_lines(text + length, n - length, &l);
    small.layers = 1;
    small.experts = 2;
    gguf_init(&w);
    gguf_moe_make(&w, &small);
    gguf_clear_values(&w);
    gguf_moe_values(&w, &small, "tokens");
    gguf_text(&w, "tokenizer.ggml.model", name);
    gguf_text(&w, "tokenizer.ggml.pre", pre);
    write_tokens(&w, &l, !strcmp(name, "llama"));
    write_merges(&w, &l);
    gguf_u32(&w, "tokenizer.ggml.bos_token_id", l.n_tokens);
    gguf_u32(&w, "tokenizer.ggml.eos_token_id", 2);
    gguf_bool(&w, "tokenizer.ggml.add_bos_token", strchr(flags, 'B'));
    gguf_bool(&w, "tokenizer.ggml.add_eos_token", strchr(flags, 'E'));
    gguf_bool(&w, "tokenizer.ggml.add_space_prefix", !strchr(flags, 'S'));
    gguf_write(&w, fuzz_dir(), "m.gguf");
    gguf_free(&w);
    const bool spaced = !strcmp(name, "llama") && (!strchr(flags, 'S') || !l.space);
    return !l.special && !strchr(flags, 'B') && !strchr(flags, 'E') && !spaced;
}

/* ---- The property ------------------------------------------------------------------------ */

static bool is_utf8(const char *text)
{
    const unsigned char *at = (const unsigned char *)text;
    while (*at) {
        const unsigned n = at[0] < 0x80 ? 1 : at[0] < 0xe0 ? 2 : at[0] < 0xf0 ? 3 : 4;
        uint32_t c = n == 1 ? at[0] : at[0] & (0x7fu >> n);
        if (at[0] >= 0x80 && at[0] < 0xc2)
            return false;
        for (unsigned i = 1; i < n; i++) {
            if (at[i] >> 6 != 2)
                return false;
            c = c << 6 | (at[i] & 63);
        }
        if ((n == 3 && c < 0x800) || (n == 4 && (c < 0x10000 || c > 0x10ffff)) || at[0] > 0xf4 ||
            (c >= 0xd800 && c < 0xe000))
            return false;
        at += n;
    }
    return true;
}

/* A vocabulary's U+2581 is a space, in a text as well; without such a token spaces become its bytes. */
static void check_text(const bpe *t, const char *text, bool same)
{
    uint32_t *ids;
    size_t n, at = 0, bytes;
    const unsigned before = said;
    const int code = bpe_encode(t, text, &ids, &n);
    FUZZ_CHECK(code == (is_utf8(text) ? RUN_OK : RUN_REFUSED), "code %d", code);
    FUZZ_CHECK(said == before + (code != RUN_OK));
    same = same && !strstr(text, "\xe2\x96\x81");
    for (size_t i = 0; i < n; i++) {
        const unsigned char *part = bpe_text(t, ids[i], &bytes);
        fuzz_touch(part, bytes);
        FUZZ_CHECK(!same || !strncmp(text + at, (const char *)part, bytes), "token %u", ids[i]);
        at += bytes;
    }
    FUZZ_CHECK(!same || code || at == strlen(text), "%zu bytes", at);
    free(ids);
}

static int open_lines(moepage_model **model, const char *text, size_t n, bpe **t, bool *same,
                      bpe_reason *why)
{
    char path[256];
    *same = write_file(text, n);
    snprintf(path, sizeof path, "%s/m.gguf", fuzz_dir());
    *model = fuzz_open(path);
    return *model ? bpe_open(*model, t, why) : RUN_OK;
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    fuzz_input in = {data, size};
    size_t length = (size_t)fuzz_take(&in, 2);
    length = length < in.left ? length : in.left;
    char *text = strndup((const char *)in.at, length);
    FUZZ_CHECK(text);
    const char *rest = (const char *)in.at + length;
    const size_t n = in.left - length;
    bpe *t = NULL;
    bpe_reason why = {""};
    moepage_model *model = NULL;
    bool same = false;
    said = 0;
    const int code = n && rest[0] == '{'
                         ? bpe_open_file(fuzz_put("tokenizer.json", rest, n), &t, &why)
                         : open_lines(&model, rest, n, &t, &same, &why);
    FUZZ_CHECK(code == RUN_OK || code == RUN_REFUSED);
    FUZZ_CHECK(said == (code != RUN_OK) && (!t || !code), "%u sentences", said);
    FUZZ_CHECK(!t || !why.text[0]);
    if (t) {
        fuzz_accepted++;
        check_text(t, text, same);
        check_text(t, "It's  12345 \xe8\xaa\x9e\xcc\x81\n", same);
    }
    bpe_close(t);
    FUZZ_CHECK(!moepage_model_close(model));
    free(text);
    return 0;
}
