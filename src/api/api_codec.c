/* Entry points of the exponent-Huffman codec, and of block formats. */
#include "base/status.h"
#include "codec/blocks.h"
#include "codec/exph.h"

static moepage_status check_tensor(uint32_t dtype, const void *memory, const char *name, uint64_t n)
{
    if (!mp_exph_bound(dtype, 0))
        return mp_fail(MOEPAGE_E_ARGUMENT,
                       "dtype is %u, it must be BF16 (%u), F16 (%u), F8_E4M3 (%u) or F8_E5M2 (%u)",
                       dtype, MOEPAGE_DTYPE_BF16, MOEPAGE_DTYPE_F16, MOEPAGE_DTYPE_F8_E4M3,
                       MOEPAGE_DTYPE_F8_E5M2);
    if (!mp_exph_bound(dtype, n))
        return mp_fail(MOEPAGE_E_ARGUMENT, "n is %llu, it must be at most 2^40",
                       (unsigned long long)n);
    if (!memory && n)
        return mp_fail(MOEPAGE_E_ARGUMENT, "%s is NULL", name);
    return MOEPAGE_OK;
}

uint64_t moepage_exph_bound(uint32_t dtype, uint64_t n)
{
    return mp_exph_bound(dtype, n);
}

moepage_status moepage_exph_encode(uint32_t dtype, const void *in, uint64_t n, void *out,
                                   uint64_t capacity, uint64_t *out_bytes)
{
    moepage_status status = check_tensor(dtype, in, "in", n);
    if (status)
        return status;
    if (!out || !out_bytes)
        return mp_fail(MOEPAGE_E_ARGUMENT, "%s is NULL", out ? "out_bytes" : "out");
    const uint64_t bound = mp_exph_bound(dtype, n);
    if (capacity < bound)
        return mp_fail(MOEPAGE_E_ARGUMENT, "capacity is %llu, it must be at least %llu",
                       (unsigned long long)capacity, (unsigned long long)bound);
    *out_bytes = mp_exph_encode(dtype, in, n, out);
    return MOEPAGE_OK;
}

moepage_status moepage_exph_decode(const char *decoder, uint32_t dtype, const void *in,
                                   uint64_t bytes, void *out, uint64_t n)
{
    moepage_status status = check_tensor(dtype, out, "out", n);
    if (status)
        return status;
    if (!in)
        return mp_fail(MOEPAGE_E_ARGUMENT, "in is NULL");
    const mp_exph_decoder *found = decoder ? mp_exph_decoder_find(decoder) : mp_exph_decoder_best();
    if (!found)
        return mp_fail(MOEPAGE_E_NOT_FOUND,
                       "no decoder \"%s\" runs here: there are portable, avx2 and avx512", decoder);
    status = mp_exph_check(in, bytes, dtype, n);
    if (status)
        return status;
    mp_exph_decode(found, in, bytes, dtype, n, 0, mp_exph_chunks(n), out);
    return MOEPAGE_OK;
}

moepage_status moepage_blocks_decode(uint32_t dtype, const void *in, uint64_t bytes, float *out,
                                     uint64_t n)
{
    const mp_block_format *format = mp_block_format_of(dtype);
    if (!format)
        return mp_fail(
            MOEPAGE_E_ARGUMENT,
            "dtype is %u, it must be one of a block format: %d (Q4_0) to %d (NVFP4G256_F32)", dtype,
            MOEPAGE_DTYPE_Q4_0, MOEPAGE_DTYPE_NVFP4G256_F32);
    if (n % format->weights)
        return mp_fail(MOEPAGE_E_ARGUMENT, "n is %llu, it must be a multiple of %u for %s",
                       (unsigned long long)n, format->weights, format->name);
    const uint64_t blocks = n / format->weights;
    if (bytes % format->bytes || bytes / format->bytes != blocks)
        return mp_fail(MOEPAGE_E_ARGUMENT, "bytes is %llu, but %llu blocks of %s have %u each",
                       (unsigned long long)bytes, (unsigned long long)blocks, format->name,
                       format->bytes);
    if (n && (!in || !out))
        return mp_fail(MOEPAGE_E_ARGUMENT, "%s is NULL", in ? "out" : "in");
    if (n)
        mp_block_decode(format, in, blocks, out);
    return MOEPAGE_OK;
}
