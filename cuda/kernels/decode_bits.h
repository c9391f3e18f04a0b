/* decode_bits.h — how the decoder moves words, bytes and 16-byte vectors: as single instructions of
 * the GPU, and in plain C. */
#ifndef MP_KERNELS_DECODE_BITS_H
#define MP_KERNELS_DECODE_BITS_H

#include "phase.h"

/* For loops over arrays that must stay in registers: they are unrolled completely. */
#if MP_ON_GPU
#define MP_BITS_UNROLL _Pragma("unroll")
#define MP_BITS_ROLLED _Pragma("unroll 1")
#define MP_BITS_UNROLL_4 _Pragma("unroll 4")
#else
#define MP_BITS_UNROLL
#define MP_BITS_ROLLED
#define MP_BITS_UNROLL_4
#endif

typedef struct mp_bits_pair {
    uint32_t low, high;
} mp_bits_pair;

typedef struct mp_bits_vector {
    uint32_t word[4];
} mp_bits_vector;

MP_GPU uint32_t mp_bits_aligned(const void *at, uint32_t to)
{
    return ((uint64_t)at & (to - 1)) == 0;
}

/* Accesses on which a GPU faults. */
#if !MP_ON_GPU
static inline const void *mp_bits_must_align(const void *at, uint32_t to)
{
    if (!mp_bits_aligned(at, to))
        __builtin_trap();
    return at;
}
#endif

/* ---- In registers ---- */

/* The low word of high:low >> by % 32. */
MP_GPU uint32_t mp_bits_funnel(uint32_t low, uint32_t high, uint32_t by)
{
#if MP_ON_GPU
    return __funnelshift_r(low, high, by);
#else
    return (uint32_t)(((uint64_t)high << 32 | low) >> (by & 31));
#endif
}

/* Four of the eight bytes of b:a, each named by a nibble of `pick`. */
MP_GPU uint32_t mp_bits_permute(uint32_t a, uint32_t b, uint32_t pick)
{
#if MP_ON_GPU
    return __byte_perm(a, b, pick);
#else
    const uint64_t both = (uint64_t)b << 32 | a;
    uint32_t out = 0;
    for (uint32_t i = 0; i < 4; i++)
        out |= (uint32_t)(both >> 8 * (pick >> 4 * i & 7) & 0xff) << 8 * i;
    return out;
#endif
}

/* The bits of a under the mask, and those of b elsewhere. */
MP_GPU uint32_t mp_bits_select(uint32_t mask, uint32_t a, uint32_t b)
{
#if MP_ON_GPU
    uint32_t out; /* a compiler takes two steps where the mask is a constant */
    asm("lop3.b32 %0, %1, %2, %3, 0xe4;" : "=r"(out) : "r"(a), "r"(b), "r"(mask));
    return out;
#else
    return (a & mask) | (b & ~mask);
#endif
}

/* sum + the four bytes of a word. */
MP_GPU uint32_t mp_bits_add_bytes(uint32_t word, uint32_t sum)
{
#if MP_ON_GPU
    return __dp4a(word, 0x01010101u, sum);
#else
    for (uint32_t i = 0; i < 4; i++)
        sum += word >> 8 * i & 0xff;
    return sum;
#endif
}

/* A byte's bits in the opposite order. */
MP_GPU uint32_t mp_bits_reversed(uint32_t byte)
{
#if MP_ON_GPU
    return __brev(byte) >> 24;
#else
    uint32_t out = 0;
    for (uint32_t i = 0; i < 8; i++)
        out |= (byte >> i & 1u) << (7 - i);
    return out;
#endif
}

/* ---- Global memory: loads of data that the launch only reads, and stores ---- */

MP_GPU uint32_t mp_bits_load8(const void *at)
{
#if MP_ON_GPU
    return __ldg((const unsigned char *)at);
#else
    return *(const uint8_t *)at;
#endif
}

MP_GPU uint32_t mp_bits_load16(const void *at) /* 2-byte aligned */
{
#if MP_ON_GPU
    return __ldg((const unsigned short *)at);
#else
    uint16_t value;
    __builtin_memcpy(&value, mp_bits_must_align(at, 2), sizeof value);
    return value;
#endif
}

MP_GPU uint32_t mp_bits_load32(const void *at) /* 4-byte aligned */
{
#if MP_ON_GPU
    return __ldg((const unsigned int *)at);
#else
    uint32_t value;
    __builtin_memcpy(&value, mp_bits_must_align(at, 4), sizeof value);
    return value;
#endif
}

/* 8-byte aligned; read once, so no cache needs to keep it. */
MP_GPU mp_bits_pair mp_bits_load64(const void *at)
{
    mp_bits_pair value;
#if MP_ON_GPU
    asm("ld.global.nc.L1::no_allocate.v2.u32 {%0, %1}, [%2];"
        : "=r"(value.low), "=r"(value.high)
        : "l"(at));
#else
    __builtin_memcpy(&value, mp_bits_must_align(at, 8), sizeof value);
#endif
    return value;
}

MP_GPU mp_bits_vector mp_bits_load128(const void *at) /* 16-byte aligned; the same */
{
    mp_bits_vector value;
#if MP_ON_GPU
    asm("ld.global.nc.L1::no_allocate.v4.u32 {%0, %1, %2, %3}, [%4];"
        : "=r"(value.word[0]), "=r"(value.word[1]), "=r"(value.word[2]), "=r"(value.word[3])
        : "l"(at));
#else
    __builtin_memcpy(&value, mp_bits_must_align(at, 16), sizeof value);
#endif
    return value;
}

MP_GPU void mp_bits_store64(void *at, uint32_t low, uint32_t high) /* 8-byte aligned */
{
#if MP_ON_GPU
    asm volatile("st.global.v2.u32 [%0], {%1, %2};" : : "l"(at), "r"(low), "r"(high) : "memory");
#else
    const uint64_t value = (uint64_t)high << 32 | low;
    mp_bits_must_align(at, 8);
    __builtin_memcpy(at, &value, sizeof value);
#endif
}

MP_GPU void mp_bits_store128(void *at, mp_bits_vector value) /* 16-byte aligned */
{
#if MP_ON_GPU
    asm volatile("st.global.v4.u32 [%0], {%1, %2, %3, %4};"
                 :
                 : "l"(at), "r"(value.word[0]), "r"(value.word[1]), "r"(value.word[2]),
                   "r"(value.word[3])
                 : "memory");
#else
    mp_bits_must_align(at, 16);
    __builtin_memcpy(at, &value, sizeof value);
#endif
}

/* ---- Shared memory ---- */

/* An address in the form that load instructions take. */
#if MP_ON_GPU
typedef uint32_t mp_bits_place;
#else
typedef const uint8_t *mp_bits_place;
#endif

MP_GPU mp_bits_place mp_bits_place_of(const void *shared)
{
#if MP_ON_GPU
    return (uint32_t)__cvta_generic_to_shared(shared);
#else
    return (const uint8_t *)shared;
#endif
}

/* A 2-byte entry of a table of at most `size` bytes, aligned to `size`, a power of two. */
MP_GPU uint32_t mp_bits_look_up(mp_bits_place table, uint32_t offset)
{
#if MP_ON_GPU
    uint16_t entry; /* volatile: not moved before the barrier after which it is valid */
    asm volatile("ld.shared.u16 %0, [%1];" : "=h"(entry) : "r"(table | offset));
    return entry;
#else
    uint16_t entry;
    __builtin_memcpy(&entry, table + offset, sizeof entry);
    return entry;
#endif
}

/* If `moves` is not 0: low becomes high, and high the word at *next, which moves on. */
MP_GPU void mp_bits_advance(uint32_t moves, uint32_t *low, uint32_t *high, mp_bits_place *next)
{
#if MP_ON_GPU
    asm volatile("{.reg .pred moves;\n"
                 " setp.ne.u32 moves, %3, 0;\n"
                 " @moves mov.u32 %0, %1;\n"
                 " @moves ld.shared.u32 %1, [%2];\n"
                 " @moves add.u32 %2, %2, 4;}"
                 : "+r"(*low), "+r"(*high), "+r"(*next)
                 : "r"(moves));
#else
    if (!moves)
        return;
    *low = *high;
    *high = mp_bits_load32(*next);
    *next += 4;
#endif
}

/* Brings 16 bytes from global memory, both ends aligned: the first `bytes` from `from`,
 * zeros behind them. They have arrived once every thread has waited and the block has
 * passed a barrier. */
MP_GPU void mp_bits_stage(void *to, const void *from, uint32_t bytes)
{
#if MP_ON_GPU
    asm volatile("cp.async.cg.shared.global [%0], [%1], 16, %2;"
                 :
                 : "r"(mp_bits_place_of(to)), "l"(from), "r"(bytes)
                 : "memory");
#else
    mp_bits_must_align(to, 16);
    mp_bits_must_align(from, 16);
    __builtin_memset(to, 0, 16);
    __builtin_memcpy(to, from, bytes);
#endif
}

MP_GPU void mp_bits_stage_wait(void)
{
#if MP_ON_GPU
    asm volatile("cp.async.wait_all;" : : : "memory");
#endif
}

/* ---- By a whole block: work spread over `n` threads, of which this is `thread` ---- */

MP_GPU void mp_bits_copy(uint8_t *to, const uint8_t *from, uint64_t bytes, uint32_t thread,
                         uint32_t n)
{
    uint64_t done = 0;
    if (mp_bits_aligned(to, 16) && mp_bits_aligned(from, 16)) {
        done = bytes & ~(uint64_t)15;
        MP_BITS_UNROLL_4
        for (uint64_t at = thread * 16u; at < done; at += n * 16u)
            mp_bits_store128(to + at, mp_bits_load128(from + at));
    }
    MP_BITS_ROLLED
    for (uint64_t at = done + thread; at < bytes; at += n)
        to[at] = (uint8_t)mp_bits_load8(from + at);
}

MP_GPU void mp_bits_fill(uint8_t *to, uint32_t byte, uint64_t bytes, uint32_t thread, uint32_t n)
{
    mp_bits_vector all;
    uint64_t done = 0;
    MP_BITS_UNROLL
    for (uint32_t i = 0; i < 4; i++)
        all.word[i] = byte * 0x01010101u;
    if (mp_bits_aligned(to, 16)) {
        done = bytes & ~(uint64_t)15;
        MP_BITS_ROLLED
        for (uint64_t at = thread * 16u; at < done; at += n * 16u)
            mp_bits_store128(to + at, all);
    }
    MP_BITS_ROLLED
    for (uint64_t at = done + thread; at < bytes; at += n)
        to[at] = (uint8_t)byte;
}

#endif
