/* pack_format.h — the bytes of a .moepack file: sizes, alignments and the storage of numbers.
 * docs/format-moepack.md specifies the file. */
#ifndef MP_MODEL_PACK_FORMAT_H
#define MP_MODEL_PACK_FORMAT_H

#include <stdbool.h>
#include <stdint.h>

#include "base/bytes.h"
#include "moepage.h"

#define MP_PACK_MAGIC "MOEPACK" /* with its NUL, 8 bytes */

enum {
    MP_PACK_ALIKE = 1,          /* major version of a file whose experts are alike */
    MP_PACK_MIXED = 2,          /* and of one whose experts differ from layer to layer */
    MP_PACK_METADATA_MINOR = 1, /* minor version, of ALIKE, from which on there is METADATA */
    MP_PACK_HEADER_BYTES = 128,
    MP_PACK_ENTRY_BYTES = 32, /* of the section table */
    MP_PACK_PAGE = 4096,      /* sections start at multiples of this; the file's length is one */
    MP_PACK_MAX_SECTIONS = (MP_PACK_PAGE - MP_PACK_HEADER_BYTES) / MP_PACK_ENTRY_BYTES,
    MP_PACK_SHAPE_BYTES = 128,       /* before the section's tensors */
    MP_PACK_SHAPE_TENSOR_BYTES = 64, /* each; the layers follow them */
    MP_PACK_CLAMPED_BYTES = 8,       /* alpha and limit, two floats */
    MP_PACK_SHAPE_LAYOUT_BYTES = 24, /* of a further layout, before its tensors */
    MP_PACK_METADATA_HEAD_BYTES = 8, /* before the keys */
    MP_PACK_NAME_BYTES = 64,         /* of the architecture, NUL included */
    MP_PACK_DENSE_HEAD_BYTES = 16,   /* of the directory */
    MP_PACK_DENSE_TENSOR_BYTES = 80, /* each; the names follow them */
    MP_PACK_DENSE_ALIGN = 256,       /* of a tensor in DENSE DATA */
    MP_PACK_INDEX_HEAD_BYTES = 32,   /* of an expert index */
    MP_PACK_RECORD_BYTES = 24,       /* of its entries, before the parts */
    MP_PACK_RECORD_ALIGN = 64,       /* of a record in EXPERT DATA */
    MP_PACK_PART_ALIGN = 16,         /* of a part in an image */
    MP_PACK_STORED_PLAIN = 0,        /* storage of a record's image: verbatim, or */
    MP_PACK_STORED_ZSTD = 1          /* as one zstd frame of their byte planes */
};

/* Of SHAPE. Without one of the first two the activation is OTHER. */
#define MP_PACK_FLAG_SWIGLU 1u      /* and fused tensors are in order */
#define MP_PACK_FLAG_CLAMPED 2u     /* SWIGLU_CLAMPED: its numbers end the section */
#define MP_PACK_FLAG_INTERLEAVED 4u /* with CLAMPED: fused tensors are not in order */
#define MP_PACK_FLAGS (MP_PACK_FLAG_SWIGLU | MP_PACK_FLAG_CLAMPED | MP_PACK_FLAG_INTERLEAVED)

#define MP_PACK_PART_RAW 0x80000000u /* in a part's size */
#define MP_PACK_PART_UNITS 0x7fffffffu

typedef enum mp_pack_section_type {
    MP_PACK_SHAPE = 1,
    MP_PACK_CONFIG = 2,
    MP_PACK_DENSE_DIRECTORY = 3,
    MP_PACK_DENSE_DATA = 4,
    MP_PACK_EXPERT_INDEX = 5, /* this and the next: one section each per form */
    MP_PACK_EXPERT_DATA = 6,
    MP_PACK_METADATA = 7
} mp_pack_section_type;

typedef struct mp_pack_section {
    uint32_t type; /* mp_pack_section_type */
    uint32_t form; /* MOEPAGE_FORM_* of expert sections, else 0 */
    uint64_t offset;
    uint64_t bytes;
    uint64_t xxh3; /* 0 for the two data sections, whose parts have their own checksums */
} mp_pack_section;

/* A section's name, returned by value for use inside the call that prints it. */
typedef struct mp_pack_section_text {
    char text[32];
} mp_pack_section_text;

/* Returns a name such as "EXPERT DATA (exph)". */
mp_pack_section_text mp_pack_section_name(uint32_t type, uint32_t form);

void mp_pack_section_encode(const mp_pack_section *section, unsigned char *out);
void mp_pack_section_decode(const unsigned char *in, mp_pack_section *out);

typedef struct mp_pack_version {
    uint32_t major, minor;
} mp_pack_version;

/* Returns the oldest version that can hold experts of several layouts, or metadata. */
mp_pack_version mp_pack_version_of(bool mixed, bool metadata);

/* Returns true if files of this version can have such a section. */
bool mp_pack_section_is_known(const mp_pack_section *section, mp_pack_version version);

/* Returns the newest minor version of this major that is known. */
uint32_t mp_pack_newest_minor(uint32_t major);

/* Writes the header; `table_xxh3` is the section table's checksum. */
void mp_pack_header_encode(mp_pack_version version, uint64_t file_bytes, uint32_t n_sections,
                           uint64_t table_xxh3, unsigned char *out);

static inline uint64_t mp_pack_round_up(uint64_t value, uint64_t to)
{
    return (value + to - 1) / to * to;
}

#endif
