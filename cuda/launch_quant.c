/* Grids of the kernels over quantised weights. */
#include "codec/quant.h"
#include "kernels/quant.h"
#include "launch.h"

_Static_assert((int)MP_SCALAR_F32 == (int)MOEPAGE_DTYPE_F32 &&
                   (int)MP_SCALAR_F16 == (int)MOEPAGE_DTYPE_F16 &&
                   (int)MP_SCALAR_BF16 == (int)MOEPAGE_DTYPE_BF16,
               "kernels and library number the types alike");

static uint64_t divide_up(uint64_t n, uint64_t by)
{
    return n / by + (n % by != 0);
}

static bool is_aligned(const void *memory, uint64_t to)
{
    return (uintptr_t)memory % to == 0;
}

/* ---- Dequantisation ---- */

static void describe_integers(const moepage_cuda_dequant *args, mp_gpu_dequant_args *out)
{
    out->row_bytes = divide_up(args->columns * out->bits, 8);
    out->row_scales = divide_up(args->columns, args->group);
    out->scales = out->packed + divide_up(args->rows * out->row_bytes, 16) * 16;
    out->group_shift = (uint32_t)__builtin_ctz(args->group);
}

static void describe_f8(const moepage_cuda_dequant *args, mp_gpu_dequant_args *out)
{
    out->row_bytes = args->columns;
    if (args->scale_dtype == MOEPAGE_DTYPE_NONE)
        return;
    out->scales = args->scales;
    out->row_scales = divide_up(args->columns, args->group);
    out->scale_dtype = args->scale_dtype;
    out->block_rows = (uint32_t)args->block_rows;
    out->block_columns = args->group;
}

/* Returns true if the rows can be treated as one long row, because neither groups nor
 * blocks distinguish them. */
static bool is_one_row(const moepage_cuda_dequant *args, const mp_gpu_dequant_args *described)
{
    return described->bits ? args->columns % args->group == 0 : !described->scales;
}

moepage_status mp_cuda_call_dequant(mp_cuda *cuda, mp_cu_stream stream,
                                    const moepage_cuda_dequant *args)
{
    mp_gpu_dequant_args gpu = {
        .packed = args->src,
        .out = args->dst,
        .columns = args->columns,
        .rows = (uint32_t)args->rows,
        .bits = mp_quant_bits_of(args->form),
        .out_dtype = args->dst_dtype,
    };
    if (gpu.bits)
        describe_integers(args, &gpu);
    else
        describe_f8(args, &gpu);
    if (is_one_row(args, &gpu)) {
        gpu.columns *= gpu.rows;
        gpu.row_bytes *= gpu.rows;
        gpu.rows = 1;
    }
    gpu.row_pieces = (uint32_t)divide_up(gpu.columns, MP_DEQUANT_PIECE);
    if (gpu.columns % MP_DEQUANT_PIECE == 0 && is_aligned(gpu.packed, 8))
        gpu.whole |= MP_DEQUANT_WHOLE_IN;
    if (gpu.columns % MP_DEQUANT_PIECE == 0 && is_aligned(gpu.out, 16))
        gpu.whole |= MP_DEQUANT_WHOLE_OUT;
    const uint64_t blocks = divide_up((uint64_t)gpu.rows * gpu.row_pieces,
                                      (uint64_t)MP_DEQUANT_THREADS * MP_DEQUANT_PIECES);
    return mp_cuda_launch(cuda, stream, "mp_gpu_dequant", mp_cuda_grid(blocks), MP_DEQUANT_THREADS,
                          sizeof(mp_gpu_dequant_shared), &gpu);
}

/* ---- y = W x ---- */

/* Small matrices are cut finer, so that every multiprocessor gets a part. */
static uint32_t gemv_warps(const mp_cuda *cuda, uint64_t rows)
{
    uint32_t warps = MP_GEMV_THREADS / MP_LANES;
    while (warps > 1 && rows < 2ull * cuda->info.multiprocessors * warps * MP_GEMV_ROWS)
        warps /= 2;
    return warps;
}

moepage_status mp_cuda_call_gemv(mp_cuda *cuda, mp_cu_stream stream, const moepage_cuda_gemv *args)
{
    static const struct {
        uint32_t tokens, shared_bytes;
        const char *name;
    } kernels[] = {{1, sizeof(mp_gpu_gemv_1_shared), "mp_gpu_gemv_1"},
                   {4, sizeof(mp_gpu_gemv_4_shared), "mp_gpu_gemv_4"},
                   {8, sizeof(mp_gpu_gemv_8_shared), "mp_gpu_gemv_8"},
                   {16, sizeof(mp_gpu_gemv_16_shared), "mp_gpu_gemv_16"}};
    if (!args->n_tokens)
        return MOEPAGE_OK;
    const uint32_t bits = mp_quant_bits_of(args->form), warps = gemv_warps(cuda, args->rows);
    mp_gpu_gemv_args gpu = {
        .packed = args->w,
        .x = args->x,
        .y = args->y,
        .rows = args->rows,
        .columns = args->columns,
        .row_bytes = divide_up(args->columns * bits, 8),
        .row_groups = divide_up(args->columns, args->group),
        .bits = bits,
        .group_shift = (uint32_t)__builtin_ctz(args->group),
        .dtype = args->dtype,
        .n_tokens = args->n_tokens,
        .n_threads = warps * MP_LANES,
        .whole = args->columns % MP_GEMV_CHUNK(bits) == 0,
    };
    gpu.scales = (const uint16_t *)(gpu.packed + divide_up(gpu.rows * gpu.row_bytes, 16) * 16);
    uint32_t i = 0;
    while (kernels[i].tokens < args->n_tokens)
        i++;
    return mp_cuda_launch(cuda, stream, kernels[i].name,
                          (uint32_t)divide_up(gpu.rows, (uint64_t)warps * MP_GEMV_ROWS),
                          gpu.n_threads, kernels[i].shared_bytes, &gpu);
}
