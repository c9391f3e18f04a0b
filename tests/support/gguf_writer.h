/* gguf_writer.h — writes small GGUF files, right or wrong on purpose.
 *
 * It follows the format's description and shares nothing with the reader. A tensor's bytes are
 * maker_byte() of its name and of their place. */
#ifndef GGUF_WRITER_H
#define GGUF_WRITER_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#define GGUF_MAX_TENSORS 256

/* The format's numbers. */
enum {
    W_U8,
    W_I8,
    W_U16,
    W_I16,
    W_U32,
    W_I32,
    W_F32,
    W_BOOL,
    W_TEXT,
    W_ARRAY,
    W_U64,
    W_I64,
    W_F64
};
enum {
    GGML_F32 = 0,
    GGML_F16 = 1,
    GGML_Q4_0 = 2,
    GGML_Q4_1 = 3,
    GGML_Q5_0 = 6,
    GGML_Q5_1 = 7,
    GGML_Q8_0 = 8,
    GGML_Q2_K = 10,
    GGML_Q3_K = 11,
    GGML_Q4_K = 12,
    GGML_Q5_K = 13,
    GGML_Q6_K = 14,
    GGML_IQ4_NL = 20,
    GGML_IQ4_XS = 23,
    GGML_I8 = 24,
    GGML_I16 = 25,
    GGML_I32 = 26,
    GGML_I64 = 27,
    GGML_F64 = 28,
    GGML_BF16 = 30,
    GGML_MXFP4 = 39,
    GGML_NVFP4 = 40,
    GGML_UNKNOWN = 9999 /* the writer gives it one byte per weight */
};

typedef struct gguf_made {
    char name[256];
    uint32_t type, rank;
    uint64_t shape[8]; /* in the file's order */
    uint64_t bytes;
    unsigned char *data;
    uint64_t offset; /* from the data section; set by each writing */
    uint64_t lie;    /* added to the offset that is written */
} gguf_made;

typedef struct gguf_bytes {
    unsigned char *at;
    size_t n;
} gguf_bytes;

typedef struct gguf_writer {
    uint32_t version; /* 3 */
    uint64_t alignment;
    uint64_t more_values, more_tensors; /* added to the counts that are written */
    uint64_t n_values;
    gguf_bytes values; /* keys and values as the file has them */
    uint32_t n_tensors;
    gguf_made tensors[GGUF_MAX_TENSORS];
} gguf_writer;

void gguf_init(gguf_writer *w);
void gguf_free(gguf_writer *w);

void gguf_append(gguf_bytes *to, const void *bytes, size_t n_bytes);
void gguf_append_uint(gguf_bytes *to, uint64_t value, unsigned n_bytes);
/* A length of 8 bytes, then the text. */
void gguf_append_text(gguf_bytes *to, const char *text);

/* ---- Metadata ---- */

/* Appends a key and the type of its value; the caller appends the value to w->values. */
void gguf_key(gguf_writer *w, const char *key, uint32_t type);
void gguf_u32(gguf_writer *w, const char *key, uint32_t value);
void gguf_u16(gguf_writer *w, const char *key, uint16_t value);
void gguf_f32(gguf_writer *w, const char *key, float value);
void gguf_bool(gguf_writer *w, const char *key, bool value);
void gguf_text(gguf_writer *w, const char *key, const char *value);
/* Appends a key, ARRAY, the elements' type and their number; the caller appends the elements. */
void gguf_array(gguf_writer *w, const char *key, uint32_t element, uint64_t n);
/* Forgets all metadata. */
void gguf_clear_values(gguf_writer *w);

/* ---- Tensors ---- */

gguf_made *gguf_tensor(gguf_writer *w, uint32_t type, uint32_t rank, const uint64_t *shape,
                       const char *format, ...) __attribute__((format(printf, 5, 6)));
/* Asserts that it is there. */
gguf_made *gguf_made_of(gguf_writer *w, const char *name);
/* Changes type and dimensions and fills afresh. */
void gguf_reshape(gguf_made *tensor, uint32_t type, uint32_t rank, const uint64_t *shape);
void gguf_remove(gguf_writer *w, const char *name);

/* ---- The file ---- */

/* The whole file, to be freed. */
unsigned char *gguf_whole(gguf_writer *w, size_t *n_bytes);
void gguf_write(gguf_writer *w, const char *dir, const char *name);

/* The bytes of a tensor of `n` weights; asserts that the writer knows the type. */
uint64_t gguf_type_bytes(uint32_t type, uint64_t n);

#endif
