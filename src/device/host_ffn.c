/* EXPERTS and LINEAR on the host: which dot products are computed when, and in which share.
 *
 * A phase is a list of units, 16 or 32 weight rows of one expert each, dealt to the shares in
 * order. A share runs its weight rows of an expert in panels; a panel meets the expert's rows in
 * groups, in integers several panels each of them in turn; and a (panel, group) runs tile after tile
 * over one piece of the length before the next. So weights come from memory once and stay in the
 * second-level cache while all groups pass. A group is the rows of a tile; where weights are converted
 * first, of several tiles, which share the work. None of this is visible in the results: a dot product's
 * lanes go through `acc` unchanged from piece to piece. A dense product is the second phase of one
 * expert. */
#include <assert.h>
#include <string.h>

#include "device/host_dots.h"

#define MP_UNIT 16
#define MP_UNIT_ROUNDED MP_INT8_GROUP /* of rows whose results are rounded to 8 bits in groups */
/* Most bytes of a tile's rows of weights that are fetched to the first-level cache while those before them are
 * multiplied. */
#define MP_NEAR_BYTES (16u << 10)
/* Most bytes of weights that a group in integers meets before the next: they and its rows share that cache. */
#define MP_BLOCK_BYTES (512u << 10)
/* Most rows of a group whose weights are converted, and most sums of a group with a panel. */
#define MP_GROUP_ROWS (4 * MP_TILE_ROWS)
#define MP_SUMS (MP_PANEL * MP_TILE_ROWS)
/* The same of a group whose products are in integers. */
#define MP_INT8_SUMS (MP_PANEL * MP_INT8_ROWS)

/* Rows of an expert. */
typedef struct mp_group {
    const void *x[MP_INT8_ROWS];
    uint32_t n_rows;
} mp_group;

/* Sums of a group with a panel of one matrix: a slice's panel to each row. */
typedef float mp_sums[MP_INT8_SUMS];

/* A group's turn with rows of weights [first, first + n), a panel. Meanwhile it fetches for those after it. */
typedef struct mp_turn {
    const mp_group *group;
    const mp_matrix *matrix;
    uint32_t first, n;
    uint32_t stride;       /* of the sums */
    uint64_t ahead_bytes;  /* as mp_tile.ahead_bytes; the rest is of floats alone: */
    uint32_t end;          /* of the slice's rows of weights */
    const char *far;       /* of several groups: the group's share of the next panel */
    uint64_t far_bytes;    /* of it */
    const mp_group *after; /* the next group; or NULL */
} mp_turn;

/* A share of one expert's weight rows. */
typedef struct mp_slice {
    const mp_ffn_expert *expert;
    uint32_t begin;
    uint32_t end;
    uint32_t panel;      /* weight rows at a time, of each matrix */
    uint32_t block;      /* whole panels, which a group meets before the next group */
    uint32_t group_rows; /* most rows at a time */
} mp_slice;

/* Deals rows to groups, or to tiles, evenly, because one of few rows is inefficient. */
static uint32_t group_size(uint32_t n_rows, uint32_t done, uint32_t most)
{
    uint32_t left = n_rows - done;
    uint32_t groups = (left + most - 1) / most;
    return (left + groups - 1) / groups;
}

/* Of a lone group, which reads each weight once: the tiles behind weight row `first`, whole rows in the order
 * of their addresses. */
static void fetch_rows(const mp_dots *dots, const mp_turn *turn, uint32_t first, mp_fetch *fetch)
{
    const uint32_t left = turn->end - first, tile = MP_TILE_WEIGHTS;
    const uint64_t step = MP_TILE_STEP * dots->w_element, tile_bytes = tile * dots->row_bytes;
    const char *at = turn->matrix->weights + first * dots->row_bytes;
    const bool is_near = tile_bytes <= MP_NEAR_BYTES;
    const uint32_t far = is_near ? 2 * tile : tile;
    if (is_near && left >= 2 * tile) {
        fetch->near = at + tile_bytes;
        fetch->near_row = step;
        fetch->near_step = tile * step;
    }
    if (left >= far + tile) {
        fetch->far = at + far * dots->row_bytes;
        fetch->far_lines = (uint32_t)(tile * step / 64);
    }
}

/* Of one group of several, whose tile t runs over the piece from element `from` on: its share of the next panel,
 * so much for each of the turn's tiles. */
static void fetch_panel(const mp_dots *dots, const mp_turn *turn, uint32_t t, uint32_t from,
                        mp_fetch *fetch)
{
    const uint32_t n_tiles = (turn->n + MP_TILE_WEIGHTS - 1) / MP_TILE_WEIGHTS;
    const uint32_t tile_steps = (dots->piece + MP_TILE_STEP - 1) / MP_TILE_STEP;
    const uint32_t pieces = (dots->k + dots->piece - 1) / dots->piece;
    const uint64_t steps = (uint64_t)n_tiles * pieces * tile_steps;
    const uint64_t lines = (turn->far_bytes / 64 + steps - 1) / steps;
    const uint64_t done = ((uint64_t)from / dots->piece * n_tiles + t) * tile_steps * lines * 64;
    if (done < turn->far_bytes) {
        fetch->far = turn->far + done;
        fetch->far_lines = (uint32_t)lines;
    }
}

/* Rows of the next group, in the place of those from `begin` on: tile t fetches its share. */
static void fetch_group(const mp_dots *dots, const mp_turn *turn, uint32_t t, uint32_t begin,
                        uint32_t from, mp_tile *tile)
{
    const uint32_t n_tiles = (turn->n + MP_TILE_WEIGHTS - 1) / MP_TILE_WEIGHTS;
    const mp_group *after = turn->after;
    tile->fetch.n_x = 0;
    if (!after)
        return;
    for (uint32_t r = 0; r < tile->n_rows && begin + r < after->n_rows; r++)
        if ((begin + r) % n_tiles == t)
            tile->fetch.x[tile->fetch.n_x++] =
                (const char *)after->x[begin + r] + from * dots->x_element;
}

/* A turn's tiles over the piece that starts at element `from`, with the panel's weight rows from 4 * t on. */
static void run_tiles(const mp_dots *dots, const mp_turn *turn, uint32_t t, uint32_t from,
                      float *acc)
{
    const mp_group *group = turn->group;
    const uint32_t first = t * MP_TILE_WEIGHTS;
    float converted[MP_TILE_WEIGHTS][MP_CONVERTED];
    mp_tile tile = {.resume = from > 0};
    tile.k = dots->k - from < dots->piece ? dots->k - from : dots->piece;
    mp_dots_take_weights(dots, turn->matrix, turn->first + first, turn->n - first, from,
                         turn->ahead_bytes, &tile, converted);
    if (!dots->lone)
        fetch_panel(dots, turn, t, from, &tile.fetch);
    else if (!dots->convert && !dots->direct)
        fetch_rows(dots, turn, turn->first + first, &tile.fetch);
    for (uint32_t begin = 0; begin < group->n_rows; begin += tile.n_rows) {
        tile.n_rows = group_size(group->n_rows, begin, MP_TILE_ROWS);
        tile.acc = acc + begin * MP_TILE_WEIGHTS * MP_LANES;
        for (uint32_t r = 0; r < tile.n_rows; r++)
            tile.x[r] = (const char *)group->x[begin + r] + from * dots->x_element;
        fetch_group(dots, turn, t, begin, from, &tile);
        if (dots->direct)
            dots->direct(&tile);
        else
            dots->set->tile[dots->kind](&tile);
        tile.ahead_bytes = 0;
        tile.fetch.far_lines = 0;
    }
}

static void run_integers(const mp_dots *dots, const mp_turn *turn, mp_sums out)
{
    const mp_group *group = turn->group;
    const mp_int8_product product = {.weights = (const uint8_t *)turn->matrix->weights +
                                                turn->first * dots->row_bytes,
                                     .row_bytes = dots->row_bytes,
                                     .dtype = dots->weight_dtype,
                                     .k = dots->k,
                                     .n_weights = turn->n,
                                     .n_rows = group->n_rows,
                                     .x = group->x,
                                     .ahead_bytes = turn->ahead_bytes,
                                     .out = out,
                                     .stride = turn->stride};
    assert(turn->stride * group->n_rows <= MP_INT8_SUMS);
    dots->set->int8->multiply(&product);
}

static void run_tiles_of_panel(const mp_dots *dots, const mp_turn *turn, mp_sums out)
{
    _Alignas(64) float acc[MP_SUMS * MP_LANES];
    float sums[MP_SUMS];
    const uint32_t n_rows = turn->group->n_rows, stride = turn->stride;
    const uint32_t tile_sums = n_rows * MP_TILE_WEIGHTS;
    const uint32_t n_tiles = (turn->n + MP_TILE_WEIGHTS - 1) / MP_TILE_WEIGHTS;
    assert(stride * n_rows <= MP_SUMS);
    for (uint32_t from = 0;; from += dots->piece) {
        for (uint32_t t = 0; t < n_tiles; t++)
            run_tiles(dots, turn, t, from, acc + t * tile_sums * MP_LANES);
        if (dots->k - from <= dots->piece)
            break;
    }
    dots->set->reduce(acc, sums, n_tiles * tile_sums);
    for (uint32_t t = 0; t < n_tiles; t++) {
        for (uint32_t r = 0; r < n_rows; r++)
            memcpy(&out[r * stride + t * MP_TILE_WEIGHTS],
                   sums + t * tile_sums + r * MP_TILE_WEIGHTS, MP_TILE_WEIGHTS * sizeof(float));
    }
}

/* out[r * stride + c] = row r of the group times weight row first + c, c < n <= stride. */
static void run_panel(const mp_dots *dots, const mp_turn *turn, mp_sums out)
{
    if (dots->in_integers)
        run_integers(dots, turn, out);
    else
        run_tiles_of_panel(dots, turn, out);
}

/* The turn of the group of rows [i, i + n_rows) with a panel, and what it fetches. Of weights that are no
 * floats a single group's tile fetches the next tile; of several groups, the first one's tiles fetch the next
 * panel. */
static mp_turn turn_of(const mp_dots *dots, const mp_slice *slice, const mp_matrix *matrix,
                       uint32_t panel, uint32_t n, uint32_t i, const mp_group *group)
{
    const uint64_t distance = dots->lone ? dots->ahead : slice->panel;
    const bool exists = panel + slice->panel + distance <= slice->end;
    mp_turn turn = {.group = group,
                    .matrix = matrix,
                    .first = panel,
                    .n = n,
                    .stride = slice->panel,
                    .end = slice->end};
    if (dots->bits || dots->blocks || dots->weight_dtype == MOEPAGE_DTYPE_F8_E4M3) {
        turn.ahead_bytes = exists && i == 0 ? distance * dots->row_bytes : 0;
    } else if (!dots->lone && panel + slice->panel < slice->end) {
        const uint32_t left = slice->end - panel - slice->panel, all = slice->expert->n_rows;
        const uint64_t bytes = (left < slice->panel ? left : slice->panel) * dots->row_bytes;
        const char *next = matrix->weights + (panel + slice->panel) * dots->row_bytes;
        turn.far = next + bytes * i / all;
        turn.far_bytes = bytes * group->n_rows / all;
    }
    return turn;
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
    if (mp_dots_in_integers(args, MP_DOWN))
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

/* Points a group at rows of x from the expert's row i on. */
static void gather(const mp_dots *dots, const mp_kernel_experts_args *args,
                   const mp_ffn_expert *expert, uint32_t i, uint32_t n_rows, mp_group *group)
{
    group->n_rows = n_rows;
    for (uint32_t r = 0; r < n_rows; r++) {
        uint64_t token = args->rows[expert->first_row + i + r] / args->top_k;
        group->x[r] = (const char *)args->x + token * dots->x_bytes;
    }
}

/* The same of lines of `inner`. */
static void gather_inner(const mp_dots *dots, const mp_kernel_experts_args *args,
                         const mp_ffn_expert *expert, uint32_t i, uint32_t n_rows, mp_group *group)
{
    const uint64_t line = expert->first_row + i - args->inner_base;
    group->n_rows = n_rows;
    for (uint32_t r = 0; r < n_rows; r++)
        group->x[r] = (const char *)args->inner + (line + r) * dots->x_bytes;
}

/* Weight rows [panel, panel + n) of gate and up, for the group that starts at row i. `dots` are of
 * all matrices. */
static void gate_up_group(const mp_dots *dots, const mp_kernel_experts_args *args,
                          const mp_slice *slice, uint32_t panel, uint32_t n, uint32_t i,
                          uint32_t n_rows, uint32_t n_after)
{
    const mp_ffn_expert *expert = slice->expert;
    const mp_matrix gate_matrix = {expert->gate, expert->gate_scale};
    const mp_matrix up_matrix = {expert->up, expert->up_scale};
    const mp_host_kernel_set *set = dots->set;
    const uint32_t stride = slice->panel;
    const uint32_t n_sums = (n_rows * stride + MP_LANES - 1) / MP_LANES * MP_LANES;
    const mp_dots *gate_dots = &dots[MP_GATE], *up_dots = &dots[MP_UP];
    mp_sums gate, up;
    mp_group group, after;
    memset(gate, 0, n_sums * sizeof *gate); /* the activation reads whole vectors */
    memset(up, 0, n_sums * sizeof *up);
    gather(gate_dots, args, expert, i, n_rows, &group);
    gather(gate_dots, args, expert, i + n_rows, n_after, &after);
    mp_turn gate_turn = turn_of(gate_dots, slice, &gate_matrix, panel, n, i, &group);
    const mp_turn up_turn = turn_of(up_dots, slice, &up_matrix, panel, n, i, &group);
    gate_turn.after = &after;
    run_panel(gate_dots, &gate_turn, gate);
    run_panel(up_dots, &up_turn, up);
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
                       uint32_t n_rows, uint32_t n_after)
{
    const mp_ffn_expert *expert = slice->expert;
    const mp_dots *down = &dots[MP_DOWN];
    const mp_matrix matrix = {expert->down, expert->down_scale};
    const uint64_t line = expert->first_row + i - args->inner_base;
    mp_sums sums;
    mp_group group, after;
    gather_inner(down, args, expert, i, n_rows, &group);
    gather_inner(down, args, expert, i + n_rows, n_after, &after);
    mp_turn turn = turn_of(down, slice, &matrix, panel, n, i, &group);
    turn.after = &after;
    run_panel(down, &turn, sums);
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
    const bool rounds = first == MP_GATE && mp_dots_in_integers(args, MP_DOWN);
    bool in_integers = true;
    uint64_t bytes = 0;
    slice->panel = MP_PANEL;
    slice->group_rows = MP_TILE_ROWS;
    for (uint32_t m = first; m <= last; m++) {
        in_integers = in_integers && dots[m].in_integers;
        bytes += dots[m].row_bytes;
        if (dots[m].panel < slice->panel && !rounds)
            slice->panel = dots[m].panel;
        if (dots[m].convert && !dots[m].lone && !rounds)
            slice->group_rows = MP_GROUP_ROWS;
    }
    if (in_integers)
        slice->group_rows = MP_INT8_ROWS;
    else if (slice->panel > MP_SUMS / slice->group_rows)
        slice->panel = MP_SUMS / slice->group_rows;
    const uint64_t fit = MP_BLOCK_BYTES / (bytes * slice->panel);
    slice->block = (in_integers && fit > 1 ? (uint32_t)fit : 1) * slice->panel;
}

/* The panels of a block, for the group that starts at row i; `after` rows are of the next group. */
static void run_block(const mp_dots *dots, const mp_kernel_experts_args *args, uint32_t phase,
                      const mp_slice *slice, uint32_t block, uint32_t i, uint32_t n_rows,
                      uint32_t after)
{
    const uint32_t left = slice->end - block;
    const uint32_t end = block + (left < slice->block ? left : slice->block);
    for (uint32_t panel = block; panel < end; panel += slice->panel) {
        const uint32_t n = end - panel < slice->panel ? end - panel : slice->panel;
        if (phase == 0)
            gate_up_group(dots, args, slice, panel, n, i, n_rows, after);
        else
            down_group(dots, args, slice, panel, n, i, n_rows, after);
    }
}

static void run_slice(const mp_host_kernel_set *set, const mp_kernel_experts_args *args,
                      uint32_t phase, mp_slice *slice)
{
    const uint32_t n_rows = slice->expert->n_rows;
    const uint32_t first = phase == 0 ? MP_GATE : MP_DOWN, last = phase == 0 ? MP_UP : MP_DOWN;
    mp_dots dots[MP_MATRICES];
    for (uint32_t m = first; m <= last; m++)
        dots[m] = mp_dots_of(set, args, m, n_rows);
    size_slice(args, dots, first, last, slice);
    for (uint32_t block = slice->begin; block < slice->end; block += slice->block)
        for (uint32_t i = 0, size, after; i < n_rows; i += size) {
            size = group_size(n_rows, i, slice->group_rows);
            after = i + size < n_rows ? group_size(n_rows, i + size, slice->group_rows) : 0;
            run_block(dots, args, phase, slice, block, i, size, after);
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
    const uint32_t unit =
        phase == 0 && mp_dots_in_integers(args, MP_DOWN) ? MP_UNIT_ROUNDED : MP_UNIT;
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
        .scale = args->scale,
    };
}

void mp_host_linear(const mp_host_kernel_set *set, const mp_kernel_linear_args *args, uint32_t part,
                    uint32_t n_parts)
{
    const mp_ffn_expert expert = {.down = args->w,
                                  .down_scale = args->scales,
                                  .down_bias = args->bias,
                                  .n_rows = args->n_rows};
    const mp_kernel_experts_args down = down_alone(args, &expert);
    mp_host_experts(set, &down, 1, part, n_parts);
}
