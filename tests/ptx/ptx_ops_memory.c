/* Loads, stores, atomics, cp.async and fences. Every access is looked at: whose memory it is, its alignment,
 * and what ptx_checks.c keeps of it. */
#include <string.h>

#include "ptx_lanes.h"

/* ---- Opcodes: ld or st, then modifiers in the order of the PTX ISA ---- */

static bool next_is(const char **at, const char *modifier)
{
    const size_t n = strlen(modifier);
    if (strncmp(*at, modifier, n) || ((*at)[n] && (*at)[n] != '.'))
        return false;
    *at += n;
    return true;
}

static bool read_order(ptx_insn *insn, const char **at, bool load)
{
    if (load ? next_is(at, ".acquire") : next_is(at, ".release"))
        insn->order = load ? PTX_ACQUIRE : PTX_RELEASE;
    else if (next_is(at, ".relaxed"))
        insn->order = PTX_RELAXED;
    else
        return true;
    return next_is(at, ".sys");
}

static bool read_type(ptx_insn *insn, const char *at)
{
    static const struct {
        const char *name;
        uint8_t bytes;
        bool sign;
    } types[] = {{".u8", 1, false},  {".s8", 1, true},
                 {".b8", 1, false},  {".u16", 2, false},
                 {".s16", 2, true},  {".b16", 2, false},
                 {".u32", 4, false}, {".s32", 4, true},
                 {".b32", 4, false}, {".f32", 4, false},
                 {".u64", 8, false}, {".s64", 8, true},
                 {".b64", 8, false}, {0}};
    for (int i = 0; types[i].name; i++) {
        if (!strcmp(at, types[i].name)) {
            insn->bytes = types[i].bytes;
            insn->sign = types[i].sign;
            return true;
        }
    }
    return false;
}

bool ptx_memory_opcode(ptx_insn *insn)
{
    const char *at = insn->opcode + 2;
    const bool load = !strncmp(insn->opcode, "ld.", 3);
    if ((!load && strncmp(insn->opcode, "st.", 3)) || !read_order(insn, &at, load))
        return false;
    insn->space = next_is(&at, ".global")          ? PTX_GLOBAL
                  : next_is(&at, ".shared")        ? PTX_SHARED
                  : load && next_is(&at, ".param") ? PTX_PARAM
                                                   : PTX_GENERIC;
    insn->nc = load && insn->space == PTX_GLOBAL && insn->order == PTX_WEAK && next_is(&at, ".nc");
    if (load && insn->space == PTX_GLOBAL && insn->order == PTX_WEAK)
        (void)(next_is(&at, ".L1::no_allocate") && next_is(&at, ".L2::128B"));
    insn->count = next_is(&at, ".v2") ? 2 : next_is(&at, ".v4") ? 4 : 1;
    return read_type(insn, at) && insn->bytes * insn->count <= 16;
}

/* ---- Addresses ---- */

static uint64_t address(const ptx_warp *warp, const ptx_insn *insn, uint32_t op, uint32_t nth,
                        uint32_t lane)
{
    const uint64_t base =
        insn->wide[op] ? PTX_REG(const uint64_t, op)[lane] : PTX_REG(const uint32_t, op)[lane];
    return base + (uint64_t)insn->disp[nth];
}

static bool in_shared(uint64_t at)
{
    return at >= PTX_SHARED_WINDOW && at < PTX_SHARED_WINDOW + (1 << 24);
}

static bool in_param(uint64_t at)
{
    return at >= PTX_PARAM_BASE && at < PTX_PARAM_BASE + (1 << 20);
}

static bool aligned(ptx_warp *warp, uint32_t lane, uint64_t at, uint32_t bytes)
{
    if (at % bytes == 0)
        return true;
    ptx_find(warp, lane, PTX_FOUND_ALIGNMENT, "%u bytes at %#llx", bytes, (unsigned long long)at);
    return false;
}

/* The place of bytes in the block's shared memory; false: they are not there. */
static bool shared_place(ptx_warp *warp, uint32_t lane, uint64_t at, uint32_t bytes, uint32_t *out)
{
    const uint32_t size = warp->block->grid->shared_bytes;
    if (!aligned(warp, lane, at, bytes))
        return false;
    *out = (uint32_t)(at - PTX_SHARED_BASE);
    if (at >= PTX_SHARED_BASE && at - PTX_SHARED_BASE <= size && bytes <= size - *out)
        return true;
    ptx_find(warp, lane, PTX_FOUND_BOUNDS, "%u bytes at %lld of shared memory of %u bytes", bytes,
             (long long)(at - PTX_SHARED_BASE), size);
    return false;
}

static bool global_reached(ptx_warp *warp, uint32_t lane, uint64_t at, uint32_t bytes)
{
    ptx_grid *grid = warp->block->grid;
    if (!aligned(warp, lane, at, bytes))
        return false;
    const uint64_t i = at >> 12 & (PTX_INTERVALS - 1);
    if (at >= grid->first[i] && at < grid->end[i] && bytes <= grid->end[i] - at)
        return true;
    uint64_t first = at, end = at + bytes;
    if (at >= PTX_SHARED_WINDOW || !grid->world.reach(grid->world.user, at, bytes, &first, &end)) {
        ptx_find(warp, lane, PTX_FOUND_BOUNDS,
                 "%u bytes at %#llx, which is no memory of the kernel's", bytes,
                 (unsigned long long)at);
        return false;
    }
    grid->first[i] = first;
    grid->end[i] = end;
    return true;
}

/* ---- Loads and stores ---- */

static void load_shared(ptx_warp *warp, uint32_t lane, uint64_t at, void *out, uint32_t bytes)
{
    uint32_t place;
    if (!shared_place(warp, lane, at, bytes, &place))
        return;
    ptx_shared_read(warp, lane, place, bytes);
    ptx_copy_bytes(out, warp->block->shared + place, bytes);
}

static void load_param(ptx_warp *warp, uint32_t lane, uint64_t at, void *out, uint32_t bytes)
{
    const ptx_grid *grid = warp->block->grid;
    const uint64_t place = at - PTX_PARAM_BASE;
    if (at < PTX_PARAM_BASE || place > grid->args_bytes || bytes > grid->args_bytes - place)
        ptx_find(warp, lane, PTX_FOUND_BOUNDS, "%u bytes at %lld of %u bytes of parameters", bytes,
                 (long long)place, grid->args_bytes);
    else if (place % bytes)
        ptx_find(warp, lane, PTX_FOUND_ALIGNMENT, "%u bytes at %lld of the parameters", bytes,
                 (long long)place);
    else
        ptx_copy_bytes(out, grid->args + place, bytes);
}

static void load_lane(ptx_warp *warp, const ptx_insn *insn, uint32_t lane, void *out)
{
    const uint32_t bytes = (uint32_t)insn->bytes * insn->count;
    const uint64_t at = address(warp, insn, insn->count, 0, lane);
    if (insn->space == PTX_PARAM || (insn->space == PTX_GENERIC && in_param(at)))
        load_param(warp, lane, at, out, bytes);
    else if (insn->space == PTX_SHARED)
        load_shared(warp, lane, at, out, bytes);
    else if (insn->space == PTX_GENERIC && in_shared(at))
        load_shared(warp, lane, at - PTX_SHARED_WINDOW, out, bytes);
    else if (global_reached(warp, lane, at, bytes)) {
        ptx_global_touch(warp, lane, at, bytes,
                         insn->nc      ? PTX_READS_CONSTANT
                         : insn->order ? PTX_STRONG
                                       : PTX_READS);
        ptx_load_global(warp, lane, at, out, bytes, insn->order);
    }
}

/* An element into a register of at least its size: the rest is zeros, or the sign. */
static void put(ptx_warp *warp, const ptx_insn *insn, uint32_t op, uint32_t lane,
                const unsigned char *from)
{
    uint64_t value = 0;
    ptx_copy_element(&value, from, insn->bytes);
    if (insn->sign && insn->bytes < 8) {
        const uint32_t unused = 64 - 8u * insn->bytes;
        value = (uint64_t)((int64_t)(value << unused) >> unused);
    }
    if (insn->wide[op])
        PTX_REG(uint64_t, op)[lane] = value;
    else
        PTX_REG(uint32_t, op)[lane] = (uint32_t)value;
}

PTX_HANDLER(ld)
{
    unsigned char bytes[16] = {0};
    for (uint32_t lanes = warp->active; lanes && !warp->block->grid->found; lanes &= lanes - 1) {
        const uint32_t lane = (uint32_t)__builtin_ctz(lanes);
        load_lane(warp, insn, lane, bytes);
        for (uint32_t i = 0; i < insn->count; i++)
            put(warp, insn, i, lane, bytes + i * insn->bytes);
    }
}

static void store_shared(ptx_warp *warp, uint32_t lane, uint64_t at, const void *value,
                         uint32_t bytes)
{
    uint32_t place;
    if (!shared_place(warp, lane, at, bytes, &place))
        return;
    ptx_shared_write(warp, lane, place, bytes, value, false);
    ptx_copy_bytes(warp->block->shared + place, value, bytes);
}

static void store_lane(ptx_warp *warp, const ptx_insn *insn, uint32_t lane, const void *value)
{
    const uint32_t bytes = (uint32_t)insn->bytes * insn->count;
    const uint64_t at = address(warp, insn, 0, 0, lane);
    if (insn->space == PTX_SHARED)
        store_shared(warp, lane, at, value, bytes);
    else if (insn->space == PTX_GENERIC && in_shared(at))
        store_shared(warp, lane, at - PTX_SHARED_WINDOW, value, bytes);
    else if (global_reached(warp, lane, at, bytes)) {
        ptx_global_touch(warp, lane, at, bytes, insn->order ? PTX_WRITES | PTX_STRONG : PTX_WRITES);
        ptx_store_global(warp, lane, at, value, bytes, insn->order);
    }
}

PTX_HANDLER(st)
{
    unsigned char bytes[16];
    for (uint32_t lanes = warp->active; lanes && !warp->block->grid->found; lanes &= lanes - 1) {
        const uint32_t lane = (uint32_t)__builtin_ctz(lanes);
        for (uint32_t i = 0; i < insn->count; i++) {
            const uint64_t value = insn->wide[1 + i] ? PTX_REG(const uint64_t, 1 + i)[lane]
                                                     : PTX_REG(const uint32_t, 1 + i)[lane];
            ptx_copy_element(bytes + i * insn->bytes, &value, insn->bytes);
        }
        store_lane(warp, insn, lane, bytes);
    }
}

const ptx_opcode ptx_op_ld = {"ld", "", ld, PTX_EFFECT};
const ptx_opcode ptx_op_st = {"st", "", st, PTX_EFFECT};

/* ---- Atomics on shared memory: d = what was there ---- */

typedef uint32_t combine(uint32_t old, uint32_t value);

static void atomic(ptx_warp *warp, const ptx_insn *insn, combine *with)
{
    for (uint32_t lanes = warp->active; lanes && !warp->block->grid->found; lanes &= lanes - 1) {
        const uint32_t lane = (uint32_t)__builtin_ctz(lanes);
        uint32_t place, old;
        if (!shared_place(warp, lane, address(warp, insn, 1, 0, lane), 4, &place))
            return;
        ptx_shared_write(warp, lane, place, 4, NULL, true);
        memcpy(&old, warp->block->shared + place, 4);
        const uint32_t value = with(old, PTX_REG(const uint32_t, 2)[lane]);
        memcpy(warp->block->shared + place, &value, 4);
        PTX_REG(uint32_t, 0)[lane] = old;
    }
}

static uint32_t sum(uint32_t old, uint32_t value)
{
    return old + value;
}
static uint32_t least(uint32_t old, uint32_t value)
{
    return old < value ? old : value;
}
static uint32_t most(uint32_t old, uint32_t value)
{
    return old > value ? old : value;
}
PTX_HANDLER(atom_add)
{
    atomic(warp, insn, sum);
}
PTX_HANDLER(atom_min)
{
    atomic(warp, insn, least);
}
PTX_HANDLER(atom_max)
{
    atomic(warp, insn, most);
}

/* ---- cp.async ---- */

/* [shared], [global], 16, n: n bytes are read, the rest are zeros. They arrive when they are waited for. */
PTX_HANDLER(cp_async_cg)
{
    for (uint32_t lanes = warp->active; lanes && !warp->block->grid->found; lanes &= lanes - 1) {
        const uint32_t lane = (uint32_t)__builtin_ctz(lanes);
        ptx_copy copy = {.thread = warp->index * PTX_LANES + lane,
                         .bytes = PTX_REG(const uint32_t, 2)[lane],
                         .read = PTX_REG(const uint32_t, 3)[lane],
                         .from = address(warp, insn, 1, 1, lane)};
        if (copy.bytes != 16 || copy.read > 16) {
            ptx_find(warp, lane, PTX_FOUND_BOUNDS, "a copy of %u of %u bytes", copy.read,
                     copy.bytes);
            return;
        }
        if (!shared_place(warp, lane, address(warp, insn, 0, 0, lane), 16, &copy.to) ||
            !aligned(warp, lane, copy.from, 16))
            return;
        for (uint32_t i = 0; i < copy.read; i++) {
            if (!global_reached(warp, lane, copy.from + i, 1))
                return;
        }
        if (copy.read)
            ptx_global_touch(warp, lane, copy.from, copy.read, PTX_READS);
        ptx_copy_begin(warp, lane, &copy);
    }
}

PTX_HANDLER(cp_async_wait_all)
{
    (void)insn;
    for (uint32_t lane = 0; lane < PTX_LANES; lane++) {
        if (warp->active >> lane & 1)
            ptx_copy_wait(warp, lane);
    }
}

PTX_HANDLER(membar_sys)
{
    (void)insn;
    for (uint32_t lane = 0; lane < PTX_LANES; lane++) {
        if (warp->active >> lane & 1)
            ptx_stores_fence(warp, lane);
    }
}

const ptx_opcode ptx_ops_memory[] = {
    {"atom.shared.add.u32", "w=aw", atom_add, PTX_EFFECT},
    {"atom.shared.min.u32", "w=aw", atom_min, PTX_EFFECT},
    {"atom.shared.max.u32", "w=aw", atom_max, PTX_EFFECT},
    {"cp.async.cg.shared.global", "aaww", cp_async_cg, PTX_EFFECT},
    {"cp.async.wait_all", "", cp_async_wait_all, PTX_EFFECT},
    {"membar.sys", "", membar_sys, PTX_EFFECT},
    {"fence.sc.sys", "", membar_sys, PTX_EFFECT},
    {"fence.acq_rel.sys", "", membar_sys, PTX_EFFECT},
    {0},
};
