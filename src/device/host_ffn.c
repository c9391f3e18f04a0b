/* EXPERTS and LINEAR on the host: which dot products are computed when, and in which share.
 *
 * A phase is a list of units, 16 or 32 weight rows of one expert each, dealt to the shares in
 * order. A share runs its weight rows of an expert in panels; a panel meets the expert's rows in
 * groups; and a (panel, group) runs tile after tile over one piece of the length before the next. So
 * weights come from memory once and stay in the second-level cache while all groups pass. A group is
 * the rows of a tile; where weights are converted first, of several tiles, which share the work. None
 * of this is visible in the results: a dot product's lanes go through `acc` unchanged from piece to
 * piece. A dense product is the second phase of one expert. */
#include <assert.h>
#include <string.h>

#include "codec/blocks.h"
#include "device/host_kernel_set.h"

#define MP_UNIT 16
#define MP_UNIT_ROUNDED MP_INT8_GROUP /* of rows whose results are rounded to 8 bits in groups */
/* Most weight rows of one matrix in a panel, and most bytes unless that leaves no whole tile:
 * gate's and up's panels and the rows that meet them share a second-level cache of 1 MiB. */
#define MP_PANEL 32
#define MP_PANEL_BYTES (256u << 10)
/* Bytes that lone rows in integers fetch ahead at least: they are faster than memory's latency. */
#define MP_AHEAD_BYTES (16u << 10)
/* Most rows of a group whose weights are converted, and most sums of a group with a panel. */
#define MP_GROUP_ROWS (4 * MP_TILE_ROWS)
#define MP_SUMS (MP_PANEL * MP_TILE_ROWS)
/* The same of a group whose products are in integers. */
#define MP_INT8_SUMS (MP_PANEL * MP_INT8_ROWS)
/* Bytes of a row of x per piece. Shorter ones lose more to reloading lanes than they gain in the
 * first-level cache. */
#define MP_PIECE_BYTES 4096
/* Elements converted at a time, of weight rows that tiles cannot read in place. All groups of
 * integers and all blocks end there. */
#define MP_CONVERTED 1024

/* Dot products of activation rows with the rows of a weight matrix. */
typedef struct mp_dots {
    const mp_host_kernel_set *set;
    mp_tile_kind kind;
    uint32_t weight_dtype;
    mp_block_scale scale;          /* of the weights */
    uint32_t bits, group;          /* of weights that are integers; 0 = they are not */
    const mp_block_format *blocks; /* of weights in blocks, or NULL */
    mp_run_tile *direct;           /* reads integers or blocks as they lie; or NULL, */
    mp_value_integers *integers;   /* and this makes operands of integers, */
    mp_value_blocks *decode;       /* or this floats of blocks */
    bool in_integers;   /* blocks meet rows of x in 8 bits: host_int8.h; nothing of the above */
    bool convert;       /* weights, to the operand type: tiles cannot read them as they lie */
    bool lone;          /* one tile's rows only */
    uint32_t k;         /* length of every row */
    uint32_t piece;     /* elements of it at a time */
    uint32_t panel;     /* most weight rows at a time */
    uint32_t ahead;     /* rows that a lone group fetches ahead */
    uint64_t x_element; /* bytes */
    uint64_t x_bytes;   /* of a row */
    uint64_t w_element; /* of `weight_dtype`, unless its weights are in blocks */
    uint64_t row_bytes; /* of weights */
} mp_dots;

/* A weight matrix. */
typedef struct mp_matrix {
    const char *weights;
    const char *scales; /* of blocks or groups, or NULL */
} mp_matrix;

/* Rows of an expert. */
typedef struct mp_group {
    const void *x[MP_INT8_ROWS];
    uint32_t n_rows;
} mp_group;

/* Sums of a group with a panel of one matrix: a slice's panel to each row. */
typedef float mp_sums[MP_INT8_SUMS];

/* A share of one expert's weight rows. */
typedef struct mp_slice {
    const mp_ffn_expert *expert;
    uint32_t begin;
    uint32_t end;
    uint32_t panel;      /* weight rows at a time, of each matrix */
    uint32_t group_rows; /* most rows at a time */
} mp_slice;

/* The tiles that read weights of the matrix's dtype, or their converted form. */
static void choose_tiles(mp_dots *dots, uint32_t math)
{
    const uint32_t dtype = dots->weight_dtype;
    dots->w_element = mp_element_bytes(dtype);
    if (math == MOEPAGE_MATH_BF16) {
        dots->kind = MP_TILE_DOT;
        dots->convert = dtype != MOEPAGE_DTYPE_BF16;
        dots->x_element = 2;
    } else {
        dots->kind = dtype == MOEPAGE_DTYPE_BF16  ? MP_TILE_BF16
                     : dtype == MOEPAGE_DTYPE_F16 ? MP_TILE_F16
                                                  : MP_TILE_F32;
        dots->convert = dtype == MOEPAGE_DTYPE_F8_E4M3;
        dots->x_element = 4;
    }
    dots->row_bytes = dots->k * dots->w_element;
}

/* Tiles that read integers, or tiles of the operands that integers are converted to. */
static void choose_integers(mp_dots *dots, const mp_kernel_experts_args *args, uint32_t math)
{
    const mp_integer_set *integers = dots->set->integers;
    const uint32_t which = args->form - MOEPAGE_FORM_INT8;
    const bool narrow = math == MOEPAGE_MATH_BF16;
    dots->kind = narrow ? MP_TILE_DOT : MP_TILE_F32;
    dots->x_element = narrow ? 2 : 4;
    dots->direct = narrow ? integers->tile_dot[which] : integers->tile_f32[which];
    dots->integers = narrow ? integers->as_bf16[which] : integers->as_f32[which];
    dots->bits = mp_quant_bits_of(args->form);
    dots->group = args->group;
    dots->convert = !dots->direct;
    dots->row_bytes = ((uint64_t)dots->k * dots->bits + 7) / 8;
}

/* Tiles that read blocks, which are for few rows, or tiles of the operands that blocks are decoded
 * to. */
static void choose_blocks(mp_dots *dots, uint32_t math, uint32_t n_rows)
{
    const mp_block_set *blocks = dots->set->blocks;
    const uint32_t which = dots->weight_dtype - MOEPAGE_DTYPE_Q4_0;
    const bool narrow = math == MOEPAGE_MATH_BF16;
    dots->kind = narrow ? MP_TILE_DOT : MP_TILE_F32;
    dots->x_element = narrow ? 2 : 4;
    if (n_rows <= blocks->tile_rows)
        dots->direct = narrow ? blocks->tile_dot[which] : blocks->tile_f32[which];
    dots->decode = blocks->as_f32[which];
    dots->convert = !dots->direct;
    dots->row_bytes = dots->k / dots->blocks->weights * dots->blocks->bytes;
}

/* Returns true if the matrix meets rows of x in 8 bits. */
static bool is_in_integers(const mp_kernel_experts_args *args, uint32_t which)
{
    return args->math == MOEPAGE_MATH_INT8 && !mp_quant_bits_of(args->form) &&
           mp_block_format_of(args->dtypes[which]);
}

static mp_dots dots_of(const mp_host_kernel_set *set, const mp_kernel_experts_args *args,
                       uint32_t which, uint32_t n_rows)
{
    const uint32_t math = args->math == MOEPAGE_MATH_INT8 ? MOEPAGE_MATH_BF16 : args->math;
    mp_dots dots = {.set = set, .weight_dtype = args->dtypes[which], .scale = args->scale};
    dots.k = which == MP_DOWN ? args->intermediate : args->hidden;
    dots.blocks = mp_block_format_of(dots.weight_dtype);
    dots.in_integers = is_in_integers(args, which);
    if (mp_quant_bits_of(args->form))
        choose_integers(&dots, args, math);
    else if (dots.blocks)
        choose_blocks(&dots, math, n_rows);
    else
        choose_tiles(&dots, math);
    dots.x_bytes =
        args->math == MOEPAGE_MATH_INT8 ? mp_int8_row_bytes(dots.k) : dots.k * dots.x_element;
    /* A single group reads each weight once: without reuse, the whole length in one piece is best. */
    dots.lone = n_rows <= (dots.in_integers ? 1 : MP_TILE_ROWS);
    dots.piece = dots.convert ? MP_CONVERTED
                 : dots.lone  ? dots.k
                              : MP_PIECE_BYTES / (uint32_t)dots.x_element;
    dots.ahead = MP_TILE_WEIGHTS;
    while (dots.in_integers && dots.ahead < MP_PANEL &&
           dots.ahead * dots.row_bytes < MP_AHEAD_BYTES)
        dots.ahead += MP_TILE_WEIGHTS;
    const uint64_t fit = MP_PANEL_BYTES / dots.row_bytes & ~(MP_TILE_WEIGHTS - 1ull);
    dots.panel = MP_PANEL;
    if (!dots.lone && fit < MP_PANEL)
        dots.panel = fit > 0 ? (uint32_t)fit : MP_TILE_WEIGHTS;
    return dots;
}

static float scale_at(const mp_dots *dots, const char *scales, uint64_t i)
{
    float scale;
    if (dots->scale.dtype == MOEPAGE_DTYPE_BF16)
        dots->set->widen[MOEPAGE_DTYPE_BF16](scales + i * 2, &scale, 1);
    else
        memcpy(&scale, scales + i * sizeof scale, sizeof scale);
    return scale;
}

/* FP8 weights [from, from + n) of a row, each times the scale of its block. */
static void widen_scaled(const mp_dots *dots, const mp_matrix *matrix, uint32_t row, uint32_t from,
                         uint32_t n, float *out)
{
    const char *weights = matrix->weights + (uint64_t)row * dots->k;
    if (!matrix->scales) {
        dots->set->widen_f8(weights + from, 1, out, n);
        return;
    }
    const uint32_t columns = dots->scale.columns, end = from + n;
    const uint64_t blocks = (dots->k - 1) / columns + 1;
    const uint64_t first = row / dots->scale.rows * blocks;
    while (from < end) {
        const uint32_t left = columns - from % columns;
        const uint32_t run = left < end - from ? left : end - from;
        const float scale = scale_at(dots, matrix->scales, first + from / columns);
        dots->set->widen_f8(weights + from, scale, out, run);
        from += run;
        out += run;
    }
}

/* Weights [from, from + n) of a row, as they lie; integers and blocks are cut between bytes. */
static const char *weights_at(const mp_dots *dots, const mp_matrix *matrix, uint32_t row,
                              uint32_t from)
{
    const uint64_t at = dots->bits     ? from * dots->bits / 8
                        : dots->blocks ? from / dots->blocks->weights * dots->blocks->bytes
                                       : from * dots->w_element;
    return matrix->weights + row * dots->row_bytes + at;
}

static void decode_blocks(const mp_dots *dots, const char *weights, uint32_t n,
                          uint64_t ahead_bytes, float *out)
{
    const mp_blocks in = {.blocks = (const uint8_t *)weights,
                          .dtype = dots->weight_dtype,
                          .n = n,
                          .ahead_bytes = ahead_bytes};
    dots->decode(&in, out);
}

/* Weights [from, from + n) of a row to the tiles' operand type: `out` is 4 bytes per weight. */
static void convert_weights(const mp_dots *dots, const mp_matrix *matrix, uint32_t row,
                            uint32_t from, uint32_t n, uint64_t ahead_bytes, float *out)
{
    const bool narrow = dots->kind == MP_TILE_DOT;
    float wide[MP_CONVERTED];
    float *to = narrow ? wide : out;
    assert(n <= MP_CONVERTED);
    if (dots->blocks)
        decode_blocks(dots, weights_at(dots, matrix, row, from), n, ahead_bytes, to);
    else if (dots->weight_dtype == MOEPAGE_DTYPE_F8_E4M3)
        widen_scaled(dots, matrix, row, from, n, to);
    else
        dots->set->widen[dots->weight_dtype](weights_at(dots, matrix, row, from), to, n);
    if (narrow)
        dots->set->narrow[MOEPAGE_DTYPE_BF16](wide, out, n);
}

/* Integer weights [from, from + n) of a row to the tiles' operand type; `from` starts a group. */
static void convert_integers(const mp_dots *dots, const void *weights, const void *scales,
                             uint32_t n, uint64_t ahead_bytes, void *out)
{
    const mp_integers in = {.packed = weights,
                            .scales = scales,
                            .ahead_bytes = ahead_bytes,
                            .group = dots->group,
                            .n = n};
    dots->integers(&in, out);
}

static const char *scales_at(const mp_dots *dots, const mp_matrix *matrix, uint32_t row,
                             uint32_t from)
{
    const uint64_t groups = (dots->k - 1) / dots->group + 1;
    return matrix->scales + (row * groups + from / dots->group) * sizeof(uint16_t);
}

/* Points a tile at four weight rows from `first` on, of which n_weights exist, from element `from` on;
 * or at `converted`, where it puts what they become. */
static void take_weights(const mp_dots *dots, const mp_matrix *matrix, uint32_t first,
                         uint32_t n_weights, uint32_t from, uint64_t ahead_bytes, mp_tile *tile,
                         float (*converted)[MP_CONVERTED])
{
    tile->group = dots->group;
    tile->ahead_bytes = dots->convert ? 0 : ahead_bytes;
    for (uint32_t c = 0; c < MP_TILE_WEIGHTS; c++) {
        const uint32_t row = c < n_weights ? first + c : first;
        tile->w[c] =
            dots->convert ? (const void *)converted[c] : weights_at(dots, matrix, row, from);
        tile->scales[c] = dots->bits ? scales_at(dots, matrix, row, from) : NULL;
        if (dots->convert && dots->bits)
            convert_integers(dots, weights_at(dots, matrix, row, from), tile->scales[c], tile->k,
                             ahead_bytes, converted[c]);
        else if (dots->convert)
            convert_weights(dots, matrix, row, from, tile->k, ahead_bytes, converted[c]);
    }
}

/* Deals rows to groups, or to tiles, evenly, because one of few rows is inefficient. */
static uint32_t group_size(uint32_t n_rows, uint32_t done, uint32_t most)
{
    uint32_t left = n_rows - done;
    uint32_t groups = (left + most - 1) / most;
    return (left + groups - 1) / groups;
}

/* A group's tiles over the piece that starts at element `from`, with weight rows [first, first +
 * n_weights), of which they take four at most. */
static void run_tiles(const mp_dots *dots, const mp_group *group, const mp_matrix *matrix,
                      uint32_t first, uint32_t n_weights, uint32_t from, uint64_t ahead_bytes,
                      float *acc)
{
    float converted[MP_TILE_WEIGHTS][MP_CONVERTED];
    mp_tile tile = {.resume = from > 0};
    tile.k = dots->k - from < dots->piece ? dots->k - from : dots->piece;
    take_weights(dots, matrix, first, n_weights, from, ahead_bytes, &tile, converted);
    for (uint32_t begin = 0; begin < group->n_rows; begin += tile.n_rows) {
        tile.n_rows = group_size(group->n_rows, begin, MP_TILE_ROWS);
        tile.acc = acc + begin * MP_TILE_WEIGHTS * MP_LANES;
        for (uint32_t r = 0; r < tile.n_rows; r++)
            tile.x[r] = (const char *)group->x[begin + r] + from * dots->x_element;
        if (dots->direct)
            dots->direct(&tile);
        else
            dots->set->tile[dots->kind](&tile);
        tile.ahead_bytes = 0;
    }
}

static void run_integers(const mp_dots *dots, const mp_group *group, const mp_matrix *matrix,
                         uint32_t first, uint32_t n, uint32_t stride, uint64_t ahead_bytes,
                         mp_sums out)
{
    const mp_int8_product product = {.weights =
                                         (const uint8_t *)matrix->weights + first * dots->row_bytes,
                                     .row_bytes = dots->row_bytes,
                                     .dtype = dots->weight_dtype,
                                     .k = dots->k,
                                     .n_weights = n,
                                     .n_rows = group->n_rows,
                                     .x = group->x,
                                     .ahead_bytes = ahead_bytes,
                                     .out = out,
                                     .stride = stride};
    assert(stride * group->n_rows <= MP_INT8_SUMS);
    dots->set->int8->multiply(&product);
}

static void run_tiles_of_panel(const mp_dots *dots, const mp_group *group, const mp_matrix *matrix,
                               uint32_t first, uint32_t n, uint32_t stride, uint64_t ahead_bytes,
                               mp_sums out)
{
    _Alignas(64) float acc[MP_SUMS * MP_LANES];
    float sums[MP_SUMS];
    const uint32_t tile_sums = group->n_rows * MP_TILE_WEIGHTS;
    const uint32_t n_tiles = (n + MP_TILE_WEIGHTS - 1) / MP_TILE_WEIGHTS;
    assert(stride * group->n_rows <= MP_SUMS);
    for (uint32_t from = 0;; from += dots->piece) {
        for (uint32_t t = 0; t < n_tiles; t++) {
            const uint32_t c = t * MP_TILE_WEIGHTS;
            run_tiles(dots, group, matrix, first + c, n - c, from, ahead_bytes,
                      acc + t * tile_sums * MP_LANES);
        }
        if (dots->k - from <= dots->piece)
            break;
    }
    dots->set->reduce(acc, sums, n_tiles * tile_sums);
    for (uint32_t t = 0; t < n_tiles; t++) {
        for (uint32_t r = 0; r < group->n_rows; r++)
            memcpy(&out[r * stride + t * MP_TILE_WEIGHTS],
                   sums + t * tile_sums + r * MP_TILE_WEIGHTS, MP_TILE_WEIGHTS * sizeof(float));
    }
}

/* out[r * stride + c] = row r of the group times weight row first + c, c < n <= stride. */
static void run_panel(const mp_dots *dots, const mp_group *group, const mp_matrix *matrix,
                      uint32_t first, uint32_t n, uint32_t stride, uint64_t ahead_bytes,
                      mp_sums out)
{
    if (dots->in_integers)
        run_integers(dots, group, matrix, first, n, stride, ahead_bytes, out);
    else
        run_tiles_of_panel(dots, group, matrix, first, n, stride, ahead_bytes, out);
}

/* How far ahead of a panel's weights to prefetch: a single group's tile fetches the next tile; of
 * several groups, the first one's tiles fetch the next panel. */
static uint64_t ahead_of(const mp_dots *dots, const mp_slice *slice, uint32_t panel,
                         uint32_t group_row)
{
    uint64_t distance = dots->lone ? dots->ahead : slice->panel;
    bool exists = panel + slice->panel + distance <= slice->end;
    return exists && group_row == 0 ? distance * dots->row_bytes : 0;
}

/* Adds a bias's elements [first, first + n) to each of the rows of sums. */
static void add_bias(const mp_host_kernel_set *set, uint32_t dtype, const void *bias,
                     uint32_t first, uint32_t n, uint32_t stride, mp_sums rows, uint32_t n_rows)
{
    float wide[MP_PANEL];
    if (!bias)
        return;
    set->widen[dtype]((const char *)bias + first * mp_element_bytes(dtype), wide, n);
    for (uint32_t r = 0; r < n_rows; r++) {
        for (uint32_t c = 0; c < n; c++)
            rows[r * stride + c] += wide[c];
    }
}

/* Elements [panel, panel + n) of a line of `inner`, as what down's products take. */
static void put_inner(const mp_host_kernel_set *set, const mp_kernel_experts_args *args,
                      uint64_t line, uint32_t panel, uint32_t n, const float *values)
{
    const uint64_t bytes = args->intermediate * (args->math == MOEPAGE_MATH_BF16 ? 2ull : 4ull);
    char *row = (char *)args->inner + line * bytes;
    if (is_in_integers(args, MP_DOWN))
        set->int8->quantise(values, n / MP_INT8_GROUP,
                            mp_int8_row_from(mp_int8_row_at(row, args->intermediate),
                                             panel / MP_INT8_GROUP));
    else if (args->math == MOEPAGE_MATH_FP32)
        memcpy(row + panel * sizeof(float), values, n * sizeof(float));
    else
        set->narrow[MOEPAGE_DTYPE_BF16](values, row + panel * sizeof(uint16_t), n);
}

/* gate = the activation's value of n sums of gate and up, a whole number of vectors. */
static void activate(const mp_host_kernel_set *set, const mp_activation *how, const mp_sums up,
                     uint32_t n, mp_sums gate)
{
    if (how->kind == MOEPAGE_ACTIVATION_SWIGLU_CLAMPED)
        set->swiglu_clamped(gate, up, how->alpha, how->limit, gate, n);
    else
        set->swiglu(gate, up, gate, n);
}

/* Weight rows [panel, panel + n) of gate and up, for the group that starts at row i. `dots` are of
 * all matrices. */
static void gate_up_group(const mp_dots *dots, const mp_kernel_experts_args *args,
                          const mp_slice *slice, uint32_t panel, uint32_t n, uint32_t i,
                          uint32_t n_rows)
{
    const mp_ffn_expert *expert = slice->expert;
    const mp_matrix gate_matrix = {expert->gate, expert->gate_scale};
    const mp_matrix up_matrix = {expert->up, expert->up_scale};
    const mp_host_kernel_set *set = dots->set;
    const uint32_t stride = slice->panel;
    const uint32_t n_sums = (n_rows * stride + MP_LANES - 1) / MP_LANES * MP_LANES;
    mp_sums gate, up;
    mp_group group;
    group.n_rows = n_rows;
    memset(gate, 0, n_sums * sizeof *gate); /* the activation reads whole vectors */
    memset(up, 0, n_sums * sizeof *up);
    for (uint32_t r = 0; r < n_rows; r++) {
        uint64_t token = args->rows[expert->first_row + i + r] / args->top_k;
        group.x[r] = (const char *)args->x + token * dots[MP_GATE].x_bytes;
    }
    const mp_dots *gate_dots = &dots[MP_GATE], *up_dots = &dots[MP_UP];
    run_panel(gate_dots, &group, &gate_matrix, panel, n, stride,
              ahead_of(gate_dots, slice, panel, i), gate);
    run_panel(up_dots, &group, &up_matrix, panel, n, stride, ahead_of(up_dots, slice, panel, i),
              up);
    add_bias(set, args->bias_dtype, expert->gate_bias, panel, n, stride, gate, n_rows);
    add_bias(set, args->bias_dtype, expert->up_bias, panel, n, stride, up, n_rows);
    activate(set, &args->activation, up, n_sums, gate);
    for (uint32_t r = 0; r < n_rows; r++)
        put_inner(set, args, expert->first_row + i + r - args->inner_base, panel, n,
                  gate + r * stride);
}

/* Weight rows [panel, panel + n) of down, for the group that starts at row i. */
static void down_group(const mp_dots *dots, const mp_kernel_experts_args *args,
                       const mp_slice *slice, uint32_t panel, uint32_t n, uint32_t i,
                       uint32_t n_rows)
{
    const mp_ffn_expert *expert = slice->expert;
    const mp_dots *down = &dots[MP_DOWN];
    const mp_matrix matrix = {expert->down, expert->down_scale};
    const uint64_t line = expert->first_row + i - args->inner_base;
    mp_sums sums;
    mp_group group;
    group.n_rows = n_rows;
    for (uint32_t r = 0; r < n_rows; r++)
        group.x[r] = (const char *)args->inner + (line + r) * down->x_bytes;
    run_panel(down, &group, &matrix, panel, n, slice->panel, ahead_of(down, slice, panel, i), sums);
    add_bias(down->set, args->bias_dtype, expert->down_bias, panel, n, slice->panel, sums, n_rows);
    for (uint32_t r = 0; r < n_rows; r++) {
        const uint64_t row = args->rows ? args->rows[expert->first_row + i + r] : line + r;
        memcpy(args->partial + row * args->hidden + panel, sums + r * slice->panel,
               n * sizeof(float));
    }
}

/* The size of a slice's panels and groups, which suits the matrices [first, last]. A panel that is
 * rounded to 8 bits has whole groups. */
static void size_slice(const mp_kernel_experts_args *args, const mp_dots *dots, uint32_t first,
                       uint32_t last, mp_slice *slice)
{
    const bool rounds = first == MP_GATE && is_in_integers(args, MP_DOWN);
    bool in_integers = true;
    slice->panel = MP_PANEL;
    slice->group_rows = MP_TILE_ROWS;
    for (uint32_t m = first; m <= last; m++) {
        in_integers = in_integers && dots[m].in_integers;
        if (dots[m].panel < slice->panel && !rounds)
            slice->panel = dots[m].panel;
        if (dots[m].convert && !dots[m].lone && !rounds)
            slice->group_rows = MP_GROUP_ROWS;
    }
    if (in_integers)
        slice->group_rows = MP_INT8_ROWS;
    else if (slice->panel > MP_SUMS / slice->group_rows)
        slice->panel = MP_SUMS / slice->group_rows;
}

static void run_slice(const mp_host_kernel_set *set, const mp_kernel_experts_args *args,
                      uint32_t phase, mp_slice *slice)
{
    const uint32_t n_rows = slice->expert->n_rows;
    const uint32_t first = phase == 0 ? MP_GATE : MP_DOWN, last = phase == 0 ? MP_UP : MP_DOWN;
    mp_dots dots[MP_MATRICES];
    for (uint32_t m = first; m <= last; m++)
        dots[m] = dots_of(set, args, m, n_rows);
    size_slice(args, dots, first, last, slice);
    for (uint32_t panel = slice->begin; panel < slice->end; panel += slice->panel) {
        uint32_t n = slice->end - panel < slice->panel ? slice->end - panel : slice->panel;
        for (uint32_t i = 0, size; i < n_rows; i += size) {
            size = group_size(n_rows, i, slice->group_rows);
            if (phase == 0)
                gate_up_group(dots, args, slice, panel, n, i, size);
            else
                down_group(dots, args, slice, panel, n, i, size);
        }
    }
}

/* The first of an expert's units, which begin at cost `start`, that begins at `cost` or later. */
static uint32_t first_unit(uint64_t cost, uint64_t start, uint64_t each, uint32_t n_units)
{
    if (cost <= start)
        return 0;
    uint64_t unit = (cost - start + each - 1) / each;
    return unit < n_units ? (uint32_t)unit : n_units;
}

void mp_host_experts(const mp_host_kernel_set *set, const mp_kernel_experts_args *args,
                     uint32_t phase, uint32_t part, uint32_t n_parts)
{
    const uint32_t n_weights = phase == 0 ? args->intermediate : args->hidden;
    const uint32_t unit = phase == 0 && is_in_integers(args, MP_DOWN) ? MP_UNIT_ROUNDED : MP_UNIT;
    const uint32_t n_units = (n_weights + unit - 1) / unit;
    uint64_t total = 0;
    for (uint32_t e = 0; e < args->n_experts; e++)
        total += mp_host_rows_cost(args->experts[e].n_rows) * n_units;
    const uint64_t begin = mp_share_start(total, part, n_parts);
    const uint64_t end = mp_share_start(total, part + 1, n_parts);
    uint64_t start = 0;
    for (uint32_t e = 0; e < args->n_experts && start < end; e++) {
        uint64_t cost = mp_host_rows_cost(args->experts[e].n_rows);
        if (cost == 0)
            continue;
        uint32_t first = first_unit(begin, start, cost, n_units);
        uint32_t last = first_unit(end, start, cost, n_units);
        mp_slice slice = {.expert = &args->experts[e], .begin = first * unit, .end = last * unit};
        if (slice.end > n_weights)
            slice.end = n_weights;
        if (first < last)
            run_slice(set, args, phase, &slice);
        start += cost * n_units;
    }
}

/* The product as an expert's down matrix: the phase that reads rows and writes sums. */
static mp_kernel_experts_args down_alone(const mp_kernel_linear_args *args,
                                         const mp_ffn_expert *expert)
{
    return (mp_kernel_experts_args){
        .experts = expert,
        .inner = (void *)args->x,
        .partial = args->out,
        .n_experts = 1,
        .top_k = 1,
        .hidden = args->n_out,
        .intermediate = args->n_in,
        .dtypes[MP_DOWN] = args->dtype,
        .bias_dtype = args->bias_dtype,
        .math = args->math,
    };
}

void mp_host_linear(const mp_host_kernel_set *set, const mp_kernel_linear_args *args, uint32_t part,
                    uint32_t n_parts)
{
    const mp_ffn_expert expert = {.down = args->w, .down_bias = args->bias, .n_rows = args->n_rows};
    const mp_kernel_experts_args down = down_alone(args, &expert);
    mp_host_experts(set, &down, 1, part, n_parts);
}
