/* GGUF files that are wrong in one way. */
#include "gguf_wrong.h"

#include <stdlib.h>
#include <string.h>

#define SHAPE(...) ((const uint64_t[]){__VA_ARGS__})

static void two_keys(gguf_writer *w)
{
    gguf_u32(w, "same", 1);
    gguf_text(w, "between", "x");
    gguf_u32(w, "same", 1);
}

static void empty_key(gguf_writer *w)
{
    gguf_u32(w, "", 1);
}

static void key_with_nul(gguf_writer *w)
{
    gguf_u32(w, "abc", 1);
    w->values.at[9] = 0;
}

static void long_key(gguf_writer *w)
{
    char *key = calloc(1, 65537);
    memset(key, 'k', 65536);
    gguf_u32(w, key, 1);
    free(key);
}

static void key_of_all_memory(gguf_writer *w)
{
    gguf_u32(w, "abc", 1);
    memset(w->values.at, 0xff, 8);
}

static void text_of_all_memory(gguf_writer *w)
{
    gguf_key(w, "text", W_TEXT);
    gguf_append_uint(&w->values, UINT64_MAX, 8);
}

static void unknown_type(gguf_writer *w)
{
    gguf_key(w, "odd", 13);
    gguf_append_uint(&w->values, 0, 64);
}

static void unknown_element(gguf_writer *w)
{
    gguf_array(w, "odd", 77, 0);
}

static void nested_arrays(gguf_writer *w)
{
    gguf_array(w, "nested", W_ARRAY, 1);
    gguf_append_uint(&w->values, W_U8, 4);
    gguf_append_uint(&w->values, 0, 8);
}

static void long_array(gguf_writer *w)
{
    gguf_array(w, "long", W_U64, 5);
    gguf_append_uint(&w->values, 0, 8);
}

static void wrapping_array(gguf_writer *w)
{
    gguf_array(w, "wraps", W_U64, (UINT64_MAX >> 3) + 2); /* times 8 is 8 */
    gguf_append_uint(&w->values, 0, 8);
}

static void texts_past_the_end(gguf_writer *w)
{
    gguf_array(w, "texts", W_TEXT, 3);
    gguf_append_text(&w->values, "one");
    gguf_append_text(&w->values, "two");
}

static void many_texts(gguf_writer *w)
{
    gguf_array(w, "texts", W_TEXT, UINT64_MAX);
}

static void half_truth(gguf_writer *w)
{
    gguf_array(w, "truths", W_BOOL, 3);
    gguf_append_uint(&w->values, 0x020001, 3);
}

static void more_values(gguf_writer *w)
{
    gguf_text(w, "only", "long enough for two by the count of the bytes");
    w->more_values = 1;
}

static void all_values(gguf_writer *w)
{
    w->more_values = UINT64_MAX;
}

static void all_tensors(gguf_writer *w)
{
    w->more_tensors = UINT64_C(1) << 61;
}

static void more_tensors(gguf_writer *w)
{
    gguf_tensor(w, GGML_F32, 1, SHAPE(64), "only");
    memset(w->tensors[0].data, 'x', w->tensors[0].bytes);
    w->more_tensors = 1;
}

static void alignment_of(gguf_writer *w, uint32_t alignment)
{
    gguf_u32(w, "general.alignment", alignment);
    gguf_tensor(w, GGML_F32, 1, SHAPE(8), "t");
}

static void alignment_0(gguf_writer *w)
{
    alignment_of(w, 0);
}

static void alignment_4(gguf_writer *w)
{
    alignment_of(w, 4);
}

static void alignment_48(gguf_writer *w)
{
    alignment_of(w, 48);
}

static void alignment_2_31(gguf_writer *w)
{
    alignment_of(w, UINT32_C(1) << 31);
}

static void alignment_text(gguf_writer *w)
{
    gguf_text(w, "general.alignment", "32");
}

static void two_tensors(gguf_writer *w)
{
    gguf_tensor(w, GGML_F32, 1, SHAPE(8), "same");
    gguf_tensor(w, GGML_F32, 1, SHAPE(8), "other");
    gguf_tensor(w, GGML_F32, 1, SHAPE(8), "same");
}

static void tensor_without_name(gguf_writer *w)
{
    gguf_tensor(w, GGML_F32, 1, SHAPE(8), "%s", "");
}

static void tensor_with_escape(gguf_writer *w)
{
    gguf_tensor(w, GGML_F32, 1, SHAPE(8), "a\033[2J");
}

static void five_dimensions(gguf_writer *w)
{
    gguf_tensor(w, GGML_F32, 5, SHAPE(1, 1, 1, 1, 1), "t");
}

static void size_overflows(gguf_writer *w)
{
    gguf_tensor(w, GGML_F32, 2, SHAPE(1, 1), "t");
    w->tensors[0].shape[0] = w->tensors[0].shape[1] = UINT64_C(1) << 32;
}

static void size_wraps(gguf_writer *w)
{
    gguf_tensor(w, GGML_F32, 1, SHAPE(1), "t");
    w->tensors[0].shape[0] = (UINT64_C(1) << 62) + 1;
}

static void part_of_a_block(gguf_writer *w)
{
    gguf_tensor(w, GGML_Q8_0, 2, SHAPE(32, 4), "t");
    w->tensors[0].shape[0] = 33;
}

static void tensor_at_3(gguf_writer *w)
{
    gguf_tensor(w, GGML_F32, 1, SHAPE(8), "t");
    w->tensors[0].lie = 3;
}

static void tensor_past_the_end(gguf_writer *w)
{
    gguf_tensor(w, GGML_F32, 1, SHAPE(8), "t");
    w->tensors[0].lie = 32;
}

static void tensor_at_2_63(gguf_writer *w)
{
    gguf_tensor(w, GGML_F32, 1, SHAPE(8), "t");
    w->tensors[0].lie = UINT64_C(1) << 63;
}

static void tensor_too_long(gguf_writer *w)
{
    gguf_tensor(w, GGML_F32, 1, SHAPE(8), "t");
    w->tensors[0].shape[0] = 9;
}

static void tensors_overlap(gguf_writer *w)
{
    gguf_tensor(w, GGML_F32, 1, SHAPE(24), "a");
    gguf_tensor(w, GGML_F32, 1, SHAPE(8), "b");
    w->tensors[1].lie = (uint64_t)-64;
}

static void tensors_in_one_place(gguf_writer *w)
{
    gguf_tensor(w, GGML_F32, 1, SHAPE(8), "a");
    gguf_tensor(w, GGML_UNKNOWN, 1, SHAPE(32), "b");
    w->tensors[1].lie = (uint64_t)-32;
}

static void no_data(gguf_writer *w)
{
    gguf_tensor(w, GGML_F32, 1, SHAPE(8), "t");
    w->tensors[0].bytes = 0;
    w->alignment = 1; /* no padding is written */
}

const gguf_wrong gguf_wrongs[] = {
    {"two-keys", two_keys, MOEPAGE_E_FORMAT, "\"same\"|twice"},
    {"empty-key", empty_key, MOEPAGE_E_FORMAT, "key 0 of 1|0 bytes"},
    {"key-with-nul", key_with_nul, MOEPAGE_E_FORMAT, "key 0 of 1|byte 1|0x00"},
    {"long-key", long_key, MOEPAGE_E_FORMAT, "key 0 of 1|65536 bytes"},
    {"key-of-all-memory", key_of_all_memory, MOEPAGE_E_FORMAT,
     "key 0 of 1|18446744073709551615 bytes|truncated"},
    {"text-of-all-memory", text_of_all_memory, MOEPAGE_E_FORMAT,
     "\"text\"|18446744073709551615 bytes|0 remain"},
    {"unknown-type", unknown_type, MOEPAGE_E_UNSUPPORTED, "\"odd\"|type is 13"},
    {"unknown-element", unknown_element, MOEPAGE_E_UNSUPPORTED, "\"odd\"|type is 77"},
    {"nested-arrays", nested_arrays, MOEPAGE_E_UNSUPPORTED, "\"nested\"|array of arrays"},
    {"long-array", long_array, MOEPAGE_E_FORMAT, "\"long\"|5 elements of 8 bytes|8 bytes remain"},
    {"wrapping-array", wrapping_array, MOEPAGE_E_FORMAT, "\"wraps\"|2305843009213693953 elements"},
    {"texts-past-the-end", texts_past_the_end, MOEPAGE_E_FORMAT, "\"texts\"|text 2 of 3|0 remain"},
    {"many-texts", many_texts, MOEPAGE_E_FORMAT, "\"texts\"|text 0 of 18446744073709551615"},
    {"half-truth", half_truth, MOEPAGE_E_FORMAT, "\"truths\"|is 2|0 or 1"},
    {"more-values", more_values, MOEPAGE_E_FORMAT, "key 1 of 2|0 remain"},
    {"all-values", all_values, MOEPAGE_E_FORMAT, "claims 18446744073709551615 metadata keys"},
    {"all-tensors", all_tensors, MOEPAGE_E_FORMAT, "claims 2305843009213693952 tensors"},
    {"more-tensors", more_tensors, MOEPAGE_E_FORMAT, "tensor 1 of 2"},
    {"alignment-0", alignment_0, MOEPAGE_E_FORMAT, "general.alignment|is 0"},
    {"alignment-4", alignment_4, MOEPAGE_E_FORMAT, "general.alignment|is 4|8 to"},
    {"alignment-48", alignment_48, MOEPAGE_E_FORMAT, "general.alignment|is 48|power of two"},
    {"alignment-2-31", alignment_2_31, MOEPAGE_E_FORMAT, "data begins at 2147483648|truncated"},
    {"alignment-text", alignment_text, MOEPAGE_E_FORMAT, "general.alignment|integer"},
    {"two-tensors", two_tensors, MOEPAGE_E_FORMAT, "\"same\"|twice"},
    {"tensor-without-name", tensor_without_name, MOEPAGE_E_FORMAT, "tensor 0 of 1|0 bytes"},
    {"tensor-with-escape", tensor_with_escape, MOEPAGE_E_FORMAT, "tensor 0 of 1|byte 1|0x1b"},
    {"five-dimensions", five_dimensions, MOEPAGE_E_UNSUPPORTED, "\"t\"|5 dimensions|at most 4"},
    {"size-overflows", size_overflows, MOEPAGE_E_FORMAT, "\"t\"|overflows"},
    {"size-wraps", size_wraps, MOEPAGE_E_FORMAT, "\"t\"|overflows"},
    {"part-of-a-block", part_of_a_block, MOEPAGE_E_FORMAT, "\"t\"|is 33|32 weights"},
    {"tensor-at-3", tensor_at_3, MOEPAGE_E_FORMAT, "\"t\"|offset 3|alignment of 32"},
    {"tensor-past-the-end", tensor_past_the_end, MOEPAGE_E_FORMAT,
     "\"t\"|32 bytes from offset 32|of 32"},
    {"tensor-at-2-63", tensor_at_2_63, MOEPAGE_E_FORMAT, "\"t\"|offset 9223372036854775808|of 32"},
    {"tensor-too-long", tensor_too_long, MOEPAGE_E_FORMAT, "\"t\"|36 bytes from offset 0|of 32"},
    {"tensors-overlap", tensors_overlap, MOEPAGE_E_FORMAT, "\"a\"|\"b\"|overlap"},
    {"tensors-in-one-place", tensors_in_one_place, MOEPAGE_E_FORMAT, "\"a\"|\"b\"|overlap"},
    {"no-data", no_data, MOEPAGE_E_FORMAT, "data begins at|truncated"},
    {NULL, NULL, MOEPAGE_OK, NULL},
};
