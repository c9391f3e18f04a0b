/* host_bf16_x86.h — the instructions of AVX512-BF16, as assembly: files that hold kernels of several sets are
 * compiled without it, so that it is in no function but those that ask for it here. */
#ifndef MP_DEVICE_HOST_BF16_X86_H
#define MP_DEVICE_HOST_BF16_X86_H

#include <immintrin.h>

#define MP_BF16_INLINE \
    __attribute__((target("avx512f"))) static inline __attribute__((always_inline))

/* VDPBF16PS: every lane plus the products of a pair of x and one of w. */
MP_BF16_INLINE __m512 mp_dot_pairs(__m512 lanes, __m512i x, __m512i w)
{
    __asm__("vdpbf16ps %2, %1, %0" : "+v"(lanes) : "v"(x), "v"(w));
    return lanes;
}

/* VCVTNE2PS2BF16: 32 floats rounded, those of `low` first. */
MP_BF16_INLINE __m512i mp_round_pairs(__m512 high, __m512 low)
{
    __m512i out;
    __asm__("vcvtne2ps2bf16 %2, %1, %0" : "=v"(out) : "v"(high), "v"(low));
    return out;
}

/* VCVTNEPS2BF16: 16 floats rounded. */
MP_BF16_INLINE __m256i mp_round_16(__m512 in)
{
    __m256i out;
    __asm__("vcvtneps2bf16 %1, %0" : "=v"(out) : "v"(in));
    return out;
}

#endif
