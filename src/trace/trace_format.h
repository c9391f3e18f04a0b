/* trace_format.h — the bytes of a trace file: numbers and limits that the writer and the reader
 * share. docs/format-trace.md is the specification.
 *
 *   header | frame | frame | ... | trailer
 *   frame  = 24-byte head, zstd frame, XXH3-64 of both
 *   record = one step; a frame holds whole records
 *
 * Little-endian; values lie unaligned and are copied in and out. */
#ifndef MP_TRACE_TRACE_FORMAT_H
#define MP_TRACE_TRACE_FORMAT_H

#include <stdbool.h>
#include <string.h>

#include "moepage.h"

_Static_assert(__BYTE_ORDER__ == __ORDER_LITTLE_ENDIAN__, "trace files are copied as they lie");
_Static_assert(sizeof(moepage_step_sequence) == 16, "a sequence in a record is this struct");

#define MP_TRACE_MAGIC "MOETRACE"
#define MP_TRACE_MAJOR 1
#define MP_TRACE_MINOR 0
#define MP_TRACE_FRAME_MAGIC UINT32_C(0x4d52464d)   /* "MFRM" */
#define MP_TRACE_TRAILER_MAGIC UINT32_C(0x444e454d) /* "MEND" */

enum {
    MP_TRACE_HEADER_BYTES = 128,
    MP_TRACE_FRAME_HEAD_BYTES = 24,
    MP_TRACE_CHECKSUM_BYTES = 8,
    MP_TRACE_TRAILER_BYTES = 32,
    MP_TRACE_RECORD_HEAD_BYTES = 20,
    MP_TRACE_LAYER_HEAD_BYTES = 12,
    MP_TRACE_NO_EXPERT = 0xFFFF
};

/* Flags of the header, of records and of layers. */
enum { MP_TRACE_HAS_PROBABILITIES = 1 };
enum { MP_TRACE_RECORD_SEMANTIC = 1 };
enum { MP_TRACE_LAYER_PROBABILITIES = 1 };

/* Limits, so that no field of a file makes a reader allocate unreasonable memory and no product of
 * the limits overflows 64 bits. */
#define MP_TRACE_MAX_LAYERS 4096
#define MP_TRACE_MAX_EXPERTS 65535
#define MP_TRACE_MAX_TOP_K 4096
#define MP_TRACE_MAX_SEMANTIC_DIM (1u << 20)
#define MP_TRACE_MAX_TOKENS (1u << 24)
#define MP_TRACE_MAX_STEP_BYTES (UINT64_C(1) << 30) /* of a record, and of its arrays in memory */
#define MP_TRACE_FRAME_BYTES (UINT64_C(1) << 20)    /* raw; a writer ends a frame past this size */
#define MP_TRACE_MAX_FRAME_BYTES (MP_TRACE_MAX_STEP_BYTES + MP_TRACE_FRAME_BYTES)

static inline void mp_trace_put32(unsigned char *at, uint32_t value)
{
    memcpy(at, &value, sizeof value);
}

static inline void mp_trace_put64(unsigned char *at, uint64_t value)
{
    memcpy(at, &value, sizeof value);
}

static inline uint16_t mp_trace_get16(const unsigned char *at)
{
    uint16_t value;
    memcpy(&value, at, sizeof value);
    return value;
}

static inline uint32_t mp_trace_get32(const unsigned char *at)
{
    uint32_t value;
    memcpy(&value, at, sizeof value);
    return value;
}

static inline uint64_t mp_trace_get64(const unsigned char *at)
{
    uint64_t value;
    memcpy(&value, at, sizeof value);
    return value;
}

/* Checks a trace's shape; fails with `status` (ARGUMENT or FORMAT) and a sentence. */
moepage_status mp_trace_check_info(const moepage_trace_info *info, moepage_status status);

void mp_trace_header_encode(const moepage_trace_info *info,
                            unsigned char header[MP_TRACE_HEADER_BYTES]);

/* Decodes and checks a header. FORMAT, VERSION for another major version, UNSUPPORTED for flags of
 * a later minor version. */
moepage_status mp_trace_header_decode(const unsigned char header[MP_TRACE_HEADER_BYTES],
                                      moepage_trace_info *info);

/* Folds a frame's checksum into the checksum of the file so far; the header's checksum
 * is the first. */
uint64_t mp_trace_chain(uint64_t chain, uint64_t checksum);

/* Returns the bytes of a step's arrays in memory, padded to `top_k` in every layer; cannot overflow
 * within the limits above. */
uint64_t mp_trace_step_bytes(const moepage_trace_info *info, uint64_t n_tokens, uint64_t top_k,
                             uint64_t n_sequences, bool probabilities);

#endif
