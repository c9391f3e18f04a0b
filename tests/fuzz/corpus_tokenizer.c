/* Seeds of the target tokenizer: of each kind, odd ones, and what is wrong with others. */
#include <stdlib.h>
#include <string.h>

#include "corpus.h"

#define BYTES "\"pre_tokenizer\":{\"type\":\"ByteLevel\",\"add_prefix_space\":false}"

static const struct {
    const char *name, *text, *tokenizer;
} seeds[] = {
    {"ranks", "abab ab\n\n12345", "b gpt2 qwen2\nt10 ab\nt10 abab\nma b\nmab ab\n"},
    {"ranks-around", "<s>a</s>b", "bBE gpt2 llama-bpe\nt30 <s>\nt40 </s>\nt10 ab\nma b\n"},
    {"ranks-cased", "HelloWORLD\u01c5'S 'll/\r\n", "b gpt2 gpt-4o\nt10 el\nme l\n"},
    {"ranks-of-many-cuts", "\u8a9e\u30ab x\u0301 !y  ", "b gpt2 deepseek-v3\nt10 \u00e8\u00aa\n"},
    {"ranks-at-ends", "a  \r\n b   ", "b gpt2 deepseek-llm\n"},
    {"scores", "ab a b\u2581\u00e9",
     "b llama x\nt1-1 a\nt1-2 b\nt1-3 \u2581\nt1-4 ab\nt1-5 \u2581a\n"},
    {"scores-as-it-is", "xx xxx", "bS llama x\nt1-1 x\nt10 xx\nt10 xxx\nt10 \u2581\n"},
    {"scores-huge", "xyxy", "bS llama x\nt13e38 x\nt1-3e38 xy\nt13e38 y\nt10 yx\n"},
    {"scores-nan", "x", "b llama x\nt1nan x\n"},
    {"scores-infinite", "x", "b llama x\nt1inf x\n"},
    {"special-nested", "<a><<a>>", "b gpt2 gpt-2\nt30 <a>\nt40 <\nt40 <a>>\nt20 >>\n"},
    {"twice", "abab", "b gpt2 gpt-2\nt10 ab\nt10 ab\nma b\nma b\n"},
    {"circle", "ababab", "b gpt2 gpt-2\nt10 ab\nt10 ba\nt10 aba\nma b\nmb a\nmab a\nma ba\n"},
    {"empty-half", "ab", "b gpt2 gpt-2\nt10 \nm b\n"},
    {"merge-of-no-token", "ab", "b gpt2 gpt-2\nma b\n"},
    {"merge-of-one", "ab", "b gpt2 gpt-2\nmab\n"},
    {"bytes-missing", "ab", " gpt2 gpt-2\nt10 a\n"},
    {"no-tokens", "ab", "x llama x\n"},
    {"not-utf8-tokens", "ab", "b gpt2 gpt-2\nt10 \xff\xfe\xc4\n"},
    {"not-utf8-special", "\u00e9\u8a9e", "b gpt2 gpt-2\nt30 \xc3\nt40 \xaa\x9e\n"},
    {"not-utf8-text", "a\xc4", "b gpt2 gpt-2\n"},
    {"bos-out-of-range", "ab", "B gpt2 gpt-2\nt10 a\n"},
    {"unknown-cuts", "ab", "b gpt2 falcon\n"},
    {"unknown-model", "ab", "b bert x\n"},
    {"kinds-of-none", "ab", "b gpt2 gpt-2\nt~0 ab\nt 0 ba\n"},
    {"json-model", "ab", "{\"model\":{\"type\":\"Unigram\"}}"},
    {"json-without-bytes", "ab", "{" BYTES ",\"model\":{\"type\":\"BPE\",\"vocab\":{\"a\":0}}}"},
    {"json-id-huge", "ab", "{" BYTES ",\"model\":{\"vocab\":{\"a\":4194304}}}"},
    {"json-id-negative", "ab", "{" BYTES ",\"model\":{\"vocab\":{\"a\":-1}}}"},
    {"json-twice", "ab", "{" BYTES ",\"model\":{\"vocab\":{\"a\":1,\"a\":2}}}"},
    {"json-ids-shared", "ab", "{" BYTES ",\"model\":{\"vocab\":{\"a\":1,\"b\":1}}}"},
    {"json-added-without-text", "ab", "{" BYTES ",\"added_tokens\":[{\"id\":0}],\"model\":{}}"},
    {"json-deep", "ab",
     "{\"normalizer\":{\"type\":\"Sequence\",\"normalizers\":[{\"type\":\"Sequence\","
     "\"normalizers\":[{\"type\":\"NFKC\"}]}]}}"},
    {"json-unknown-split", "ab",
     "{\"pre_tokenizer\":{\"type\":\"Split\",\"pattern\":{\"Regex\":\"a+\"},\"behavior\":"
     "\"Isolated\"}}"},
    {"json-cut", "ab", "{\"model\":{"},
};

static void add_seed(const char *name, const char *text, const corpus_bytes *tokenizer)
{
    corpus_bytes seed = {0};
    corpus_add_uint(&seed, strlen(text), 2);
    corpus_add(&seed, text, strlen(text));
    corpus_add(&seed, tokenizer->at, tokenizer->n);
    corpus_finish(&seed, "tokenizer", name);
}

/* A whole tokenizer.json: bytes by name, composed, with tokens around and spaces taken. */
static void make_whole(const char *name, const char *merge, const char *ids)
{
    corpus_bytes json = {0};
    corpus_add_text(
        &json,
        "{\"normalizer\":{\"type\":\"Sequence\",\"normalizers\":[{\"type\":\"NFC\"},"
        "{\"type\":\"Prepend\",\"prepend\":\"\u2581\"},{\"type\":\"Replace\",\"pattern\":"
        "{\"String\":\" \"},\"content\":\"\u2581\"}]},\"added_tokens\":[{\"id\":300,"
        "\"content\":\"<s>\",\"special\":true,\"lstrip\":true,\"rstrip\":true}],"
        "\"post_processor\":{\"type\":\"TemplateProcessing\",\"single\":[{\"SpecialToken\":"
        "{\"id\":\"<s>\"}},{\"Sequence\":{\"id\":\"A\"}}],\"special_tokens\":{\"<s>\":"
        "{\"ids\":[%s]}}},\"model\":{\"type\":\"BPE\",\"byte_fallback\":true,\"vocab\":{",
        ids);
    for (int b = 0; b < 256; b++)
        corpus_add_text(&json, "\"<0x%02X>\":%d,", b, b);
    corpus_add_text(&json, "\"a\":256,\"b\":257,\"ab\":258,\"\u2581\":259},\"merges\":[%s]}}",
                    merge);
    add_seed(name, "ab <s>  a\u030ab", &json);
    free(json.at);
}

void corpus_make_tokenizers(void)
{
    for (size_t i = 0; i < sizeof seeds / sizeof *seeds; i++) {
        corpus_bytes tokenizer = {0};
        corpus_add_text(&tokenizer, "%s", seeds[i].tokenizer);
        add_seed(seeds[i].name, seeds[i].text, &tokenizer);
        free(tokenizer.at);
    }
    make_whole("json-whole", "[\"a\",\"b\"]", "300");
    make_whole("json-merge-of-number", "7", "300");
    make_whole("json-around-out-of-range", "\"a b\"", "301");
}
