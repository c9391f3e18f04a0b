/* fuzz.h — what the fuzz targets share. A target is one property of the library that must hold for
 * any bytes: it is run by libFuzzer (`make fuzz`), and over the committed corpus by replay.c. */
#ifndef FUZZ_H
#define FUZZ_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "checkpoint_maker.h"
#include "moepage.h"

/* The property. Returns 0; where it does not hold, the process ends by a signal. */
int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

/* Not an assert: it must hold in every build. */
#define FUZZ_CHECK(holds, ...) \
    ((holds) ? (void)0 : fuzz_fail(__FILE__, __LINE__, #holds, " " __VA_ARGS__))

_Noreturn void fuzz_fail(const char *file, int line, const char *claim, const char *format, ...)
    __attribute__((format(printf, 4, 5)));

/* Counts the inputs that were good enough to be looked at: a corpus without one tests nothing but
 * refusals, which replay.c takes for a failure. */
extern unsigned fuzz_accepted;

/* A directory of this process alone, made by the first call and removed when the process ends. */
const char *fuzz_dir(void);

/* Writes a file there and returns its path, which lives until the next call. */
const char *fuzz_put(const char *name, const void *bytes, size_t n_bytes);

/* That `status` is one that bad bytes may have, and comes with a sentence. */
void fuzz_check_refusal(moepage_status status);

/* Opens fuzz_dir() or a file as a model; NULL when it was refused as it should be. */
moepage_model *fuzz_open(const char *path);

/* Reads every byte, in a way that no compiler leaves out. */
void fuzz_touch(const void *bytes, uint64_t n_bytes);

/* What every opened model must be: numbers that agree, all tensors there in full. */
void fuzz_check_model(const moepage_model *model);

/* Memory of which the last byte is followed by an inaccessible page, and the bytes before the first
 * are known: instructions that a sanitizer does not see through are caught as well. */
typedef struct fuzz_fence {
    unsigned char *bytes;
    size_t n_bytes;
    unsigned char *map;
    size_t map_bytes;
} fuzz_fence;

/* n_bytes zero is allowed. The first byte is as aligned as n_bytes is. */
fuzz_fence fuzz_fence_make(size_t n_bytes);
fuzz_fence fuzz_fence_copy(const void *bytes, size_t n_bytes);
/* Checks that nothing was written before the first byte, and gives the memory back. */
void fuzz_fence_free(fuzz_fence *fence);

/* Takes numbers off the front of the input; zero once it has run out. */
typedef struct fuzz_input {
    const uint8_t *at;
    size_t left;
} fuzz_input;

uint64_t fuzz_take(fuzz_input *in, unsigned n_bytes); /* little-endian, at most 8 bytes */

#endif
