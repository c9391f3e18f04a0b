/* The simulated driver's memory: device memory between guard pages, pinned host memory, registered
 * host memory; and what a copy or a kernel reaches. */
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#include "sim_inside.h"

#define PAGE 4096u
#define ALIGN 256u      /* of mem_alloc, as the driver promises */
#define MAX_FREED 64u   /* freed ranges that are remembered, and kept from being given out again */
#define FRESH_BYTE 0xcb /* fresh memory is full of it: nobody may count on zeros */
#define FILL_MAX (1u << 20)

/* ---- Ranges ----------------------------------------------------------------------------- */

sim_range *sim_range_add(sim_range_kind kind, uint64_t at, uint64_t bytes, int gpu)
{
    sim_range *range = sim_new(sizeof *range);
    *range = (sim_range){.kind = kind, .at = at, .bytes = bytes, .gpu = gpu, .next = sim.ranges};
    sim.ranges = range;
    return range;
}

sim_range *sim_range_find(sim_range_kind kind, uint64_t at)
{
    sim_range *range = sim.ranges;
    while (range && (range->kind != kind || range->at != at))
        range = range->next;
    return range;
}

void sim_range_remove(sim_range *range)
{
    sim_range **link = &sim.ranges;
    while (*link != range)
        link = &(*link)->next;
    *link = range->next;
    if (range->outer_bytes)
        munmap((void *)range->outer, range->outer_bytes);
    free(range);
}

static sim_range *oldest_freed(void)
{
    sim_range *oldest = NULL;
    for (sim_range *r = sim.ranges; r; r = r->next) {
        if (r->kind == SIM_RANGE_FREED)
            oldest = r;
    }
    return oldest;
}

/* From now on every access faults, and for a while the addresses are not given out again. */
static void range_retire(sim_range *range)
{
    mmap((void *)range->outer, range->outer_bytes, PROT_NONE,
         MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE | MAP_FIXED, -1, 0);
    sim_range **link = &sim.ranges;
    while (*link != range)
        link = &(*link)->next;
    *link = range->next;
    range->next = sim.ranges;
    sim.ranges = range;
    range->kind = SIM_RANGE_FREED;
    if (++sim.n_freed > MAX_FREED) {
        sim_range_remove(oldest_freed());
        sim.n_freed--;
    }
}

/* Is it memory, all of it? */
static bool is_in(const sim_range *range, uint64_t at, uint64_t bytes)
{
    if (!sim_lies_within(at, bytes, range->at, range->bytes))
        return false;
    if (range->kind == SIM_RANGE_RESERVED)
        return sim_mapped(SIM_ANY_GPU, at, bytes);
    return range->kind != SIM_RANGE_FREED;
}

/* May the GPU touch what is there? */
static bool is_open_to(const sim_range *range, int gpu, uint64_t at, uint64_t bytes)
{
    if (gpu == SIM_ANY_GPU || (range->kind != SIM_RANGE_RESERVED && range->gpu == gpu))
        return true;
    if (range->kind == SIM_RANGE_RESERVED)
        return sim_mapped(gpu, at, bytes);
    if (range->kind == SIM_RANGE_DEVICE)
        return sim.contexts[gpu].peers >> range->gpu & 1;
    return range->portable;
}

static bool overlaps(const sim_range *range, uint64_t at, uint64_t bytes)
{
    return at < range->at + range->bytes && range->at < at + bytes;
}

sim_reach sim_reach_of(int gpu, uint64_t at, uint64_t bytes)
{
    bool touched = false;
    for (sim_range *r = sim.ranges; r; r = r->next) {
        if (is_in(r, at, bytes))
            return is_open_to(r, gpu, at, bytes) ? SIM_REACH_OK : SIM_REACH_FOREIGN;
        touched |= overlaps(r, at, bytes);
    }
    return touched ? SIM_REACH_BAD : SIM_REACH_PLAIN;
}

bool sim_cuda_accessible(const void *at, uint64_t bytes)
{
    SIM_LOCKED();
    return sim_reach_of(SIM_ANY_GPU, (uint64_t)(uintptr_t)at, bytes) == SIM_REACH_OK;
}

/* The range of pinned memory that an address lies in; a device's too with `device`. */
static sim_range *range_around(uint64_t at, bool device)
{
    for (sim_range *r = sim.ranges; r; r = r->next) {
        bool host = r->kind == SIM_RANGE_HOST || r->kind == SIM_RANGE_REGISTERED;
        if ((host || (device && r->kind != SIM_RANGE_FREED)) && at >= r->at &&
            at - r->at < r->bytes)
            return r;
    }
    return NULL;
}

bool sim_cuda_reach(uint64_t at, uint64_t bytes, uint64_t *first, uint64_t *end, bool *open)
{
    SIM_LOCKED();
    *open = sim.open && !sim.config.kernels_reach_host;
    for (sim_range *r = sim.open ? sim.ranges : NULL; r; r = r->next) {
        if (!is_in(r, at, bytes) || !is_open_to(r, sim_running_gpu, at, bytes))
            continue;
        const bool whole = r->kind != SIM_RANGE_RESERVED; /* else all of a page is mapped */
        *first = whole ? r->at : at / PAGE * PAGE;
        *end = whole ? r->at + r->bytes : (at + bytes + PAGE - 1) / PAGE * PAGE;
        return true;
    }
    return false;
}

bool sim_cuda_pinned(uint64_t at)
{
    SIM_LOCKED();
    return sim.open && range_around(at, false);
}

bool sim_page_is_there(uint64_t at)
{
    unsigned char resident;
    return !mincore((void *)(at & ~(uint64_t)(PAGE - 1)), PAGE, &resident);
}

/* Words below the addresses where programs live are numbers, or the sanitizers' own memory. */
bool sim_word_is_stray(int gpu, uint64_t word, bool *foreign)
{
    *foreign = false;
    if (word < 0x550000000000u || word >= 0x800000000000u)
        return false;
    bool freed = false; /* one that was may end where one that is begins */
    for (sim_range *r = sim.ranges; r; r = r->next) {
        uint64_t at = r->outer_bytes ? r->outer : r->at;
        uint64_t bytes = r->outer_bytes ? r->outer_bytes : r->bytes;
        if (word < at || word > at + bytes)
            continue;
        *foreign = is_in(r, word, 1) && !is_open_to(r, gpu, word, 1);
        if (r->kind != SIM_RANGE_FREED)
            return *foreign;
        freed = true;
    }
    return freed || sim_page_is_there(word);
}

void sim_memory_drop(int gpu)
{
    for (sim_range *r = sim.ranges, *next; r; r = next) {
        next = r->next;
        if (gpu >= 0 && (r->gpu != gpu || r->kind == SIM_RANGE_FREED))
            continue;
        if (r->kind == SIM_RANGE_DEVICE)
            sim.used[r->gpu] -= r->bytes;
        else if (r->kind == SIM_RANGE_HOST || r->kind == SIM_RANGE_REGISTERED)
            sim.stats.pinned -= r->bytes;
        sim_range_remove(r);
    }
}

/* ---- Device memory ---------------------------------------------------------------------- */

/* The end of the memory touches a guard page, but for its alignment. */
static sim_range *guarded(sim_range_kind kind, uint64_t bytes, uint64_t align)
{
    uint64_t room = (bytes + align - 1) / align * align;
    uint64_t inner = (room + PAGE - 1) / PAGE * PAGE, outer_bytes = inner + 2 * PAGE;
    unsigned char *outer =
        mmap(NULL, outer_bytes, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (outer == MAP_FAILED)
        return NULL;
    mprotect(outer + PAGE, inner, PROT_READ | PROT_WRITE);
    unsigned char *at = outer + PAGE + inner - room;
    memset(at, FRESH_BYTE, bytes < FILL_MAX ? bytes : FILL_MAX);
    sim_range *range = sim_range_add(kind, (uintptr_t)at, bytes, sim_current()->gpu);
    range->outer = (uintptr_t)outer;
    range->outer_bytes = outer_bytes;
    return range;
}

mp_cu_result sim_do_mem_info(size_t *free_bytes, size_t *total_bytes)
{
    SIM_BEGIN(SIM_mem_info);
    int gpu = sim_current()->gpu;
    *total_bytes = sim.config.gpus[gpu].bytes;
    *free_bytes = *total_bytes - sim.used[gpu];
    return MP_CU_SUCCESS;
}

mp_cu_result sim_do_mem_alloc(mp_cu_ptr *out, size_t bytes)
{
    SIM_BEGIN(SIM_mem_alloc);
    int gpu = sim_current()->gpu;
    if (!bytes)
        return MP_CU_INVALID_VALUE;
    if (bytes > sim.config.gpus[gpu].bytes - sim.used[gpu])
        return MP_CU_OUT_OF_MEMORY;
    sim_range *range = guarded(SIM_RANGE_DEVICE, bytes, ALIGN);
    if (!range)
        return MP_CU_OUT_OF_MEMORY;
    sim.used[gpu] += bytes;
    *out = range->at;
    return MP_CU_SUCCESS;
}

mp_cu_result sim_do_mem_free(mp_cu_ptr memory)
{
    SIM_BEGIN(SIM_mem_free);
    if (!memory)
        return MP_CU_SUCCESS;
    sim_range *range = sim_range_find(SIM_RANGE_DEVICE, memory);
    if (!range) {
        sim_misuse("mem_free of %#llx, which is not allocated", memory);
        return MP_CU_INVALID_VALUE;
    }
    sim.used[range->gpu] -= range->bytes;
    range_retire(range);
    return MP_CU_SUCCESS;
}

/* ---- Host memory ------------------------------------------------------------------------ */

static bool may_pin(uint64_t bytes)
{
    uint64_t limit = sim.config.pinned_limit;
    return !limit || (sim.stats.pinned <= limit && bytes <= limit - sim.stats.pinned);
}

mp_cu_result sim_do_host_alloc(void **out, size_t bytes, unsigned flags)
{
    SIM_BEGIN(SIM_host_alloc);
    if (!bytes || flags & ~7u)
        return MP_CU_INVALID_VALUE;
    sim_range *range = may_pin(bytes) ? guarded(SIM_RANGE_HOST, bytes, PAGE) : NULL;
    if (!range)
        return MP_CU_OUT_OF_MEMORY;
    sim.stats.pinned += bytes;
    range->portable = flags & MP_CU_HOST_PORTABLE;
    *out = (void *)range->at;
    return MP_CU_SUCCESS;
}

mp_cu_result sim_do_host_free(void *memory)
{
    SIM_BEGIN(SIM_host_free);
    if (!memory)
        return MP_CU_SUCCESS;
    sim_range *range = sim_range_find(SIM_RANGE_HOST, (uintptr_t)memory);
    if (!range) {
        sim_misuse("host_free of %p, which is not allocated", memory);
        return MP_CU_INVALID_VALUE;
    }
    sim.stats.pinned -= range->bytes;
    range_retire(range);
    return MP_CU_SUCCESS;
}

static bool all_there(uint64_t at, uint64_t bytes)
{
    for (uint64_t page = at & ~(uint64_t)(PAGE - 1); page < at + bytes; page += PAGE) {
        if (!sim_page_is_there(page))
            return false;
    }
    return true;
}

static mp_cu_result register_range(uint64_t at, uint64_t bytes, unsigned flags)
{
    if (!at || !bytes || flags & ~0xfu)
        return MP_CU_INVALID_VALUE;
    for (sim_range *r = sim.ranges; r; r = r->next) {
        /* The driver pins whole pages. */
        uint64_t first = r->at & ~(uint64_t)(PAGE - 1), after = r->at + r->bytes + PAGE - 1;
        if (r->kind != SIM_RANGE_FREED &&
            (at & ~(uint64_t)(PAGE - 1)) < (after & -(uint64_t)PAGE) && first < at + bytes)
            return MP_CU_HOST_MEMORY_ALREADY_REGISTERED;
    }
    if (!all_there(at, bytes))
        return MP_CU_INVALID_VALUE;
    if ((sim.config.register_limit && bytes > sim.config.register_limit) || !may_pin(bytes))
        return MP_CU_OUT_OF_MEMORY;
    sim_range_add(SIM_RANGE_REGISTERED, at, bytes, sim_current()->gpu)->portable =
        flags & MP_CU_HOST_PORTABLE;
    sim.stats.pinned += bytes;
    return MP_CU_SUCCESS;
}

mp_cu_result sim_do_host_register(void *memory, size_t bytes, unsigned flags)
{
    SIM_BEGIN(SIM_host_register);
    return register_range((uintptr_t)memory, bytes, flags);
}

mp_cu_result sim_do_host_unregister(void *memory)
{
    SIM_BEGIN(SIM_host_unregister);
    sim_range *range = sim_range_find(SIM_RANGE_REGISTERED, (uintptr_t)memory);
    if (!range) {
        sim_misuse("host_unregister of %p, which is not registered", memory);
        return MP_CU_INVALID_VALUE;
    }
    sim.stats.pinned -= range->bytes;
    sim_range_remove(range);
    return MP_CU_SUCCESS;
}

mp_cu_result sim_do_host_device_pointer(mp_cu_ptr *out, void *memory, unsigned flags)
{
    SIM_BEGIN(SIM_host_device_pointer);
    if (flags || !range_around((uintptr_t)memory, false))
        return MP_CU_INVALID_VALUE;
    *out = (uintptr_t)memory;
    return MP_CU_SUCCESS;
}

mp_cu_result sim_do_pointer_attribute(void *value, int attribute, mp_cu_ptr memory)
{
    SIM_BEGIN(SIM_pointer_attribute);
    sim_range *range = range_around(memory, true);
    bool reserved = range && range->kind == SIM_RANGE_RESERVED;
    if (attribute != MP_CU_POINTER_MEMORY_TYPE || !range ||
        (reserved && !sim_mapped(SIM_ANY_GPU, memory, 1)))
        return MP_CU_INVALID_VALUE;
    bool device = range->kind == SIM_RANGE_DEVICE || reserved;
    *(unsigned *)value = device ? MP_CU_MEMORY_DEVICE : MP_CU_MEMORY_HOST;
    return MP_CU_SUCCESS;
}
