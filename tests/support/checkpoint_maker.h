/* checkpoint_maker.h — writes small checkpoints, right or wrong on purpose, to a temporary
 * directory.
 *
 * A tensor's bytes are a fixed function of its name and of their place, so that a test can say what
 * a reader must find without keeping a copy. As F32, F16 or BF16 they are all finite. */
#ifndef CHECKPOINT_MAKER_H
#define CHECKPOINT_MAKER_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#define MAKER_MAX_TENSORS 256
#define MAKER_MAX_RANK 6

typedef struct maker_tensor {
    char name[128];
    char dtype[16];
    uint32_t rank;
    uint64_t shape[MAKER_MAX_RANK];
    uint64_t bytes;
    unsigned char *data;
} maker_tensor;

/* One .safetensors file to be. */
typedef struct maker_shard {
    uint32_t n_tensors;
    uint32_t padding; /* spaces after the header: 0 makes the header's length a multiple of 8 */
    maker_tensor tensors[MAKER_MAX_TENSORS];
} maker_shard;

/* A fresh directory; `path` has room for 64 bytes. */
void maker_dir_create(char *path);
/* Removes it and the files in it. */
void maker_dir_remove(const char *path);

void maker_write(const char *dir, const char *name, const void *bytes, size_t n_bytes);
void maker_write_text(const char *dir, const char *name, const char *text);
/* The whole file, to be freed. */
unsigned char *maker_read(const char *dir, const char *name, size_t *n_bytes);

/* What byte `i` of tensor `name` is. */
unsigned char maker_byte(const char *name, uint64_t i);

/* Adds a tensor filled with maker_byte; for type names such as "BF16". */
maker_tensor *maker_add(maker_shard *shard, const char *dtype, uint32_t rank, const uint64_t *shape,
                        const char *format, ...) __attribute__((format(printf, 5, 6)));
/* Asserts that it is there. */
maker_tensor *maker_find(maker_shard *shard, const char *name);
void maker_remove(maker_shard *shard, const char *name);
/* Changes shape and dtype and fills afresh. */
void maker_reshape(maker_tensor *tensor, const char *dtype, uint32_t rank, const uint64_t *shape);

void maker_write_shard(const maker_shard *shard, const char *dir, const char *name);
/* `n_bytes` of header after their length, then `data_bytes` of 0x11. */
void maker_write_raw(const char *dir, const char *name, const char *header, size_t n_bytes,
                     uint64_t data_bytes);
void maker_shard_free(maker_shard *shard);

#endif
