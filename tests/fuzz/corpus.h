/* corpus.h — the parts of make_corpus, which writes the committed corpus: for each target inputs
 * that are right, and inputs that are wrong in one way that their name says. */
#ifndef CORPUS_H
#define CORPUS_H

#include <stddef.h>
#include <stdint.h>

/* Writes corpus/<target>/<name>. */
void corpus_write(const char *target, const char *name, const void *bytes, size_t n_bytes);

/* A growing string of bytes. */
typedef struct corpus_bytes {
    uint8_t *at;
    size_t n, room;
} corpus_bytes;

void corpus_add(corpus_bytes *to, const void *bytes, size_t n_bytes);
void corpus_add_uint(corpus_bytes *to, uint64_t value, unsigned n_bytes); /* little-endian */
void corpus_add_text(corpus_bytes *to, const char *format, ...)
    __attribute__((format(printf, 2, 3)));
/* Writes and frees them. */
void corpus_finish(corpus_bytes *bytes, const char *target, const char *name);

/* n weights as they are in models, to be freed: signs and mantissas at random, each exponent half as
 * frequent as the one above; one in `rare` has any exponent (0: none). */
enum { CORPUS_BF16, CORPUS_F16, CORPUS_E4M3, CORPUS_E5M2 };
uint8_t *corpus_weights(unsigned type, uint64_t n, uint32_t rare);

void corpus_make_checkpoints(void); /* safetensors, config, index */
void corpus_make_w4(void);
void corpus_make_ggufs(void);
void corpus_make_tokenizers(void);
void corpus_make_traces(void);
void corpus_make_codec(void); /* exph_decode, exph_roundtrip, quant */
void corpus_make_packs(void);

#endif
