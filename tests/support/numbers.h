/* numbers.h — floating-point test data: the narrow types in plain arithmetic, and arrays that end
 * at an inaccessible page, so that reading or writing one element too far is a crash. */
#ifndef NUMBERS_H
#define NUMBERS_H

#include <stdbool.h>
#include <stdint.h>

/* The same sequence in every run. */
uint32_t num_random_bits(void);

/* Either sign, 2^-6 to 2^2: sums of these round at every step. */
float num_random(void);

float num_of_bits(uint32_t bits);
uint32_t num_bits(float value);

/* The same bits, or both NaN. */
int num_same(float a, float b);

/* The value of F8_E4M3 bits, the variant without infinities. */
double num_e4m3(uint8_t bits);

/* Random F8_E4M3 numbers, all of them finite, that end where readable memory does. */
uint8_t *num_e4m3_array(uint64_t n);

/* Of an element of MOEPAGE_DTYPE_F32, _F16 or _BF16, as in all functions below. */
uint64_t num_bytes(uint32_t dtype);

/* x rounded to nearest even, in double arithmetic. */
double num_rounded(uint32_t dtype, float x);

float num_get(uint32_t dtype, const void *array, uint64_t i);

/* Stores a value that has been rounded; of halves, normal ones only. */
void num_put(uint32_t dtype, void *array, uint64_t i, double value);

/* Memory whose last byte is the last before an inaccessible page. Freed with its size; NULL is a
 * no-op. */
void *guarded_alloc(uint64_t bytes);
void guarded_free(void *memory, uint64_t bytes);

/* Told of every such array, of whole pages, when it is made and before it goes; NULL = nobody
 * is. */
extern void (*guarded_notice)(void *base, uint64_t bytes, bool made);

/* A guarded array of n random numbers. */
void *num_array(uint32_t dtype, uint64_t n);

#endif
