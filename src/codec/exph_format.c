/* What the encoder, the checker and the decoders must agree on: the coded types and the
 * checksums. */
#include "codec/exph_format.h"

#include <xxhash.h>

mp_exph_type mp_exph_type_of(uint32_t dtype)
{
    switch (dtype) {
    case MOEPAGE_DTYPE_BF16: return (mp_exph_type){2, 8, 7, 8};
    case MOEPAGE_DTYPE_F16: return (mp_exph_type){2, 5, 10, 11};
    case MOEPAGE_DTYPE_F8_E4M3: return (mp_exph_type){1, 4, 3, 4};
    case MOEPAGE_DTYPE_F8_E5M2: return (mp_exph_type){1, 5, 2, 3};
    default: return (mp_exph_type){0};
    }
}

uint32_t mp_exph_front_checksum(const uint8_t *stream, uint64_t front_bytes)
{
    return (uint32_t)XXH3_64bits_withSeed(stream + MP_EXPH_AT_EXPONENTS,
                                          front_bytes - MP_EXPH_AT_EXPONENTS,
                                          mp_exph_get64(stream));
}

uint32_t mp_exph_chunk_checksum(const uint8_t *chunk, uint64_t bytes)
{
    return (uint32_t)XXH3_64bits(chunk, bytes);
}
