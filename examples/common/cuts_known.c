/* The expressions of published tokenizers, and the names that GGUF files call them by.
 *
 * They read as in the models' tokenizer.json; llama.cpp has some in another form, with the same meaning
 * but for gpt4o and tekken (docs/generate.md). */
#include <string.h>

#include "common/cuts.h"

#define ENDINGS "(?i:'s|'t|'re|'ve|'m|'ll|'d)"
#define SPACES "\\s*[\\r\\n]+|\\s+(?!\\S)|\\s+"
#define UPPER "[\\p{Lu}\\p{Lt}\\p{Lm}\\p{Lo}\\p{M}]"
#define LOWER "[\\p{Ll}\\p{Lm}\\p{Lo}\\p{M}]"
#define AHEAD "[^\\r\\n\\p{L}\\p{N}]?"
#define WORDS ENDINGS "|" AHEAD "\\p{L}+|"
#define SIGNS " ?[^\\s\\p{L}\\p{N}]+[\\r\\n]*|"
#define SIGNS_SLASH " ?[^\\s\\p{L}\\p{N}]+[\\r\\n/]*|"

const char cuts_byte_level[] =
    "'s|'t|'re|'ve|'m|'ll|'d| ?\\p{L}+| ?\\p{N}+| ?[^\\s\\p{L}\\p{N}]+|\\s+(?!\\S)|\\s+";
const char cuts_numbers[] = "\\p{N}";
const char cuts_number_runs[] = "\\p{N}+";

static const char qwen2[] = WORDS "\\p{N}|" SIGNS SPACES;
static const char qwen35[] = ENDINGS "|" AHEAD "[\\p{L}\\p{M}]+|\\p{N}|"
                                     " ?[^\\s\\p{L}\\p{M}\\p{N}]+[\\r\\n]*|" SPACES;
static const char llama3[] = WORDS "\\p{N}{1,3}|" SIGNS SPACES;
static const char gpt4o[] = AHEAD UPPER "*" LOWER "+" ENDINGS "?|" AHEAD UPPER "+" LOWER "*" ENDINGS
                                        "?|\\p{N}{1,3}|" SIGNS_SLASH SPACES;
static const char tekken[] =
    AHEAD UPPER "*" LOWER "+|" AHEAD UPPER "+" LOWER "*|\\p{N}|" SIGNS_SLASH SPACES;
static const char threes[] = "\\p{N}{1,3}";
static const char kana[] = "[一-龥぀-ゟ゠-ヿ]+";
/* clang-format off */
static const char deepseek3[] =
    "[!\"#$%&'()*+,\\-./:;<=>?@\\[\\\\\\]^_`{|}~][A-Za-z]+|"
    "[^\\r\\n\\p{L}\\p{P}\\p{S}]?[\\p{L}\\p{M}]+| ?[\\p{P}\\p{S}]+[\\r\\n]*|" SPACES;
/* clang-format on */
static const char lines[] = "[\\r\\n]";
/* clang-format off */
static const char cased[] =
    "\\s?[A-Za-zµÀ-ÖØ-öø-ƺƼ-ƿǄ-ʓʕ-ʯͰ-ͳͶͷͻ-ͽͿΆΈ-ΊΌΎ-ΡΣ-ϵϷ-ҁҊ-ԯԱ-ՖႠ-ჅᎠ-Ᏽᏸ-ᏽᲐ-"
    "ᲺᲽ-Ჿᴀ-ᴫᵫ-ᵷᵹ-ᶚḀ-ἕἘ-Ἕἠ-ὅὈ-Ὅὐ-ὗὙὛὝὟ-\u1f7dᾀ-ᾴᾶ-ᾼ\u1fbeῂ-ῄῆ-ῌῐ-\u1fd3ῖ-"
    "\u1fdbῠ-Ῥῲ-ῴῶ-ῼℂℇℊ-ℓℕℙ-ℝℤ\u2126ℨ\u212a-ℭℯ-ℴℹℼ-ℿⅅ-ⅉⅎↃↄⰀ-ⱻⱾ-ⳤⳫ-ⳮⳲⳳꙀ-ꙭꚀ-ꚛ"
    "Ꜣ-ꝯꝱ-ꞇꞋ-ꞎꭰ-ꮿﬀ-ﬆﬓ-ﬗＡ-Ｚａ-ｚ𐐀-𐑏𐒰-𐓓𐓘-𐓻𐲀-𐲲𐳀-𐳲𑢠-𑣟𞤀-𞥃]+";
/* clang-format on */
static const char wide[] = "\\s?[!-/:-~！-／：-～‘-‟　-。]+";
static const char last_spaces[] = "\\s+$";
static const char han[] = "[一-龥ࠀ-一가-퟿]+";
static const char letters[] = "\\s?\\p{L}+";
static const char signs[] = "\\s?\\p{P}+";
static const char sums[] = "[\\p{P}\\$\\+<=>\\^~\\|]+";
static const char digits[] = "[0-9][0-9][0-9]";

static const cuts_kind kinds[] = {
    {.names = " gpt-2 phi-2 olmo mpt jais trillion granite-docling exaone4 mellum modern-bert ",
     .expressions = {cuts_byte_level}},
    {.names = " starcoder refact command-r smollm codeshell exaone minerva-7b mellum2 ",
     .expressions = {cuts_numbers, cuts_byte_level}},
    {.names = " qwen2 deepseek-r1-qwen kormo f2llmv2 megrez stablelm2 hunyuan solar-open grok-2 ",
     .expressions = {qwen2}},
    {.names = " qwen35 ", .expressions = {qwen35}},
    {.names = " llama-bpe llama3 llama-v3 falcon3 falcon-h1 pixtral midm-2.0 lfm2 ",
     .expressions = {llama3},
     .whole_first = true,
     .begins = true},
    {.names = " dbrx smaug-bpe chatglm-bpe ", .expressions = {llama3}},
    {.names = " glm4 glm5 ", .expressions = {llama3}, .whole_first = true},
    {.names = " gpt-4o o200k llama4 kanana2 talkie minimax-m2 ", .expressions = {gpt4o}},
    {.names = " tekken ", .expressions = {tekken}, .whole_first = true, .begins = true},
    {.names = " deepseek-v3 hunyuan-dense joyai-llm ", .expressions = {threes, kana, deepseek3}},
    {.names = " deepseek-llm ",
     .expressions = {lines, cased, wide, last_spaces, han, cuts_numbers}},
    {.names = " deepseek-coder ", .expressions = {lines, letters, signs, han, cuts_numbers}},
    {.names = " default ", .expressions = {sums, cuts_byte_level, cuts_number_runs, digits}},
};

#define N_KINDS (sizeof kinds / sizeof *kinds)

const cuts_kind *cuts_find_kind(const char *name, size_t n)
{
    char found[64];
    if (!n || n > sizeof found - 3 || memchr(name, ' ', n) || memchr(name, 0, n))
        return NULL;
    found[0] = found[n + 1] = ' ';
    memcpy(found + 1, name, n);
    found[n + 2] = 0;
    for (size_t i = 0; i < N_KINDS; i++)
        if (strstr(kinds[i].names, found))
            return &kinds[i];
    return NULL;
}

/* Returns the byte that the expression at *text begins with, and steps behind it: published files have
 * a line's end as itself or as an escape. */
static char next_byte(const char **text)
{
    const char *at = *text;
    *text += at[0] == '\\' && (at[1] == 'r' || at[1] == 'n') ? 2 : 1;
    if (*text - at == 2)
        return at[1] == 'r' ? '\r' : '\n';
    return at[0];
}

static bool same_expression(const char *a, const char *b)
{
    while (*a && *b)
        if (next_byte(&a) != next_byte(&b))
            return false;
    return !*a && !*b;
}

const char *cuts_find_expression(const char *text)
{
    for (size_t i = 0; i < N_KINDS; i++)
        for (const char *const *known = kinds[i].expressions; *known; known++)
            if (same_expression(*known, text))
                return *known;
    return NULL;
}
