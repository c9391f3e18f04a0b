/* pack_maker.h — a small model of caller-held experts, everything that a pack can hold included, and
 * packs of it in memory files. */
#ifndef PACK_MAKER_H
#define PACK_MAKER_H

#include <stdbool.h>
#include <stdint.h>

#include "moepage.h"

#define PACK_FORM(form) (1u << MOEPAGE_FORM_##form)
#define PACK_MAX_DENSE 8

/* The experts' tensors are the caller's to set, before pack_source_open fills them. */
typedef struct pack_source {
    moepage_banks banks;
    moepage_expert_tensor tensors[MOEPAGE_MAX_EXPERT_TENSORS];
    moepage_dense_tensor dense[PACK_MAX_DENSE];
    int32_t layer_index[8];
    uint64_t tensor_bytes[MOEPAGE_MAX_EXPERT_TENSORS];
    unsigned char **bytes; /* [layers][experts][n_tensors] */
    unsigned char *dense_bytes[PACK_MAX_DENSE];
    moepage_model *model;
} pack_source;

/* 2 of 3 layers have 3 experts: GATE_UP [2I, H] and DOWN [H, I] in BF16, H = 64, I = 24; three dense
 * tensors, a config, the architecture "made_up". */
void pack_source_init(pack_source *source);
void pack_source_tensor(pack_source *source, uint32_t role, uint32_t dtype, uint32_t rank,
                        const uint64_t *shape);
/* The same for a dense tensor, which is filled at once; at most PACK_MAX_DENSE. */
void pack_source_dense(pack_source *source, const char *name, uint32_t dtype, uint32_t rank,
                       const uint64_t *shape);
/* The library is to read the experts through a callback. */
void pack_source_read_by_callback(pack_source *source);
/* Fills the experts: floats get numbers as trained weights have them, other types bytes. */
void pack_source_open(pack_source *source);
void pack_source_close(pack_source *source);

/* What a tensor of an expert holds. */
const unsigned char *pack_source_bytes(const pack_source *source, uint32_t layer, uint32_t expert,
                                       uint32_t tensor);

/* A config of these forms, for two threads. */
moepage_pack_config pack_config(uint32_t forms, int32_t cold_level);

/* How many files a directory has. */
uint32_t pack_files_in(const char *directory);

/* Writes a pack of one thread and expects success; returns its bytes, to be freed. */
unsigned char *pack_make(const moepage_model *model, uint32_t forms, int32_t cold_level,
                         uint64_t *n_bytes);

/* A file in memory, its path good for opening; reused for every content. */
const char *pack_memory_file(const void *bytes, uint64_t n_bytes);

/* Opens and expects success. */
moepage_model *pack_open(const char *path);

/* Changes a byte of a stored image in the open pack's file, as a disk that rots does: the file's times
 * stay as they are. `at` counts from the record's beginning. */
void pack_rot(moepage_model *model, uint32_t layer, uint32_t expert, uint32_t form, uint64_t at);

/* The offset in the file of a stored image. */
uint64_t pack_record_offset(const moepage_model *model, uint32_t layer, uint32_t expert,
                            uint32_t form);

/* Both have the same shape, layouts, config, metadata and dense tensors. */
void pack_expect_same_rest(const moepage_model *a, const moepage_model *b);

/* And, bit for bit, the same experts. */
void pack_expect_same(const moepage_model *a, const moepage_model *b);

/* Expects a failure whose sentence holds every one of `words`, separated by '|'. */
void pack_expect_refusal(const void *bytes, uint64_t n_bytes, moepage_status status,
                         const char *words);

/* ---- the file's own structure, by the specification alone ---- */

typedef struct pack_section {
    uint32_t type, form;
    uint64_t offset, bytes;
} pack_section;

uint64_t pack_number(const unsigned char *at, int width);
void pack_set_number(unsigned char *at, uint64_t value, int width);
pack_section pack_find_section(const unsigned char *file, uint32_t type, uint32_t form);
/* The bytes of an expert's record, of models with 3 experts as pack_source_init makes them. */
unsigned char *pack_find_record(unsigned char *file, uint32_t form, uint32_t layer,
                                uint32_t expert);
/* Makes every checksum right again but those of dense tensors and records, after a change. */
void pack_seal(unsigned char *file, uint64_t n_bytes);

#endif
