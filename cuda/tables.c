/* Host tables of kernels on their way to the GPU. */
#include "tables.h"

#include <assert.h>
#include <string.h>

#include "kernels/small_tables.h"
#include "vmm.h"

#define ALIGN MP_CUDA_TABLES_ALIGN
#define MAX_TABLES 2

_Static_assert(ALIGN == MP_SMALL_ALIGN, "tables keep their distance in a kernel's arguments");

/* A table of a kernel's arguments: the member that points to it, and its size. */
typedef struct table {
    void *member;
    uint64_t bytes;
} table;

static const unsigned char *table_at(const table *t)
{
    const unsigned char *at;
    memcpy(&at, t->member, sizeof at);
    return at;
}

static void set_table(const table *t, const unsigned char *at)
{
    memcpy(t->member, &at, sizeof at);
}

static uint64_t rows_bytes(const mp_kernel_experts_args *args)
{
    uint64_t rows = 0;
    for (uint32_t i = 0; i < args->n_experts; i++) {
        uint64_t end = (uint64_t)args->experts[i].first_row + args->experts[i].n_rows;
        rows = end > rows ? end : rows;
    }
    return rows * sizeof *args->rows;
}

/* Lists a kernel's tables. `args` is in its host form: sizes are read from the tables themselves. */
static uint32_t tables_of(mp_kernel kernel, mp_kernel_args *args, table out[MAX_TABLES])
{
    switch (kernel) {
    case MP_KERNEL_EXPERTS:
        out[0] = (table){&args->experts.experts,
                         (uint64_t)args->experts.n_experts * sizeof *args->experts.experts};
        out[1] = (table){&args->experts.rows, rows_bytes(&args->experts)};
        return 2;
    case MP_KERNEL_COMBINE: {
        uint64_t n = (uint64_t)args->combine.n_tokens * args->combine.top_k;
        out[0] = (table){&args->combine.weights, n * sizeof *args->combine.weights};
        out[1] = (table){&args->combine.ids, n * sizeof *args->combine.ids};
        return 2;
    }
    case MP_KERNEL_DECODE:
        out[0] =
            (table){&args->decode.jobs, (uint64_t)args->decode.n_jobs * sizeof *args->decode.jobs};
        return 1;
    default: return 0;
    }
}

static uint64_t padded(uint64_t bytes)
{
    return (bytes + ALIGN - 1) / ALIGN * ALIGN;
}

uint64_t mp_cuda_tables_need(mp_kernel kernel, const mp_kernel_args *args)
{
    mp_kernel_args copy = *args;
    table tables[MAX_TABLES];
    uint32_t n = tables_of(kernel, &copy, tables);
    uint64_t bytes = 0;
    for (uint32_t i = 0; i < n; i++)
        bytes += padded(tables[i].bytes);
    return bytes;
}

moepage_status mp_cuda_tables_open(mp_cuda *cuda, uint64_t bytes, mp_cuda_tables *tables)
{
    mp_cuda_tables opened = {.head = 0};
    assert(bytes % ALIGN == 0);
    moepage_status status = mp_cuda_shared_alloc(&cuda->device, bytes, &opened.pinned);
    if (status)
        return status;
    status = mp_cuda_alloc(&cuda->device, MP_MEMORY_WORKSPACE, bytes, &opened.mirror);
    if (status) {
        mp_cuda_shared_free(&cuda->device, &opened.pinned);
        return status;
    }
    *tables = opened;
    return MOEPAGE_OK;
}

void mp_cuda_tables_close(mp_cuda *cuda, mp_cuda_tables *tables)
{
    if (!tables->mirror)
        return;
    mp_cuda_free(&cuda->device, MP_MEMORY_WORKSPACE, tables->mirror, tables->pinned.bytes);
    mp_cuda_shared_free(&cuda->device, &tables->pinned);
    tables->mirror = NULL;
}

static void reclaim(mp_cuda_tables *tables, mp_tick completed)
{
    while (tables->n && tables->spans[tables->first].tick <= completed) {
        tables->tail = tables->spans[tables->first].end;
        tables->first = (tables->first + 1) % MP_CUDA_TABLES_SPANS;
        tables->n--;
    }
}

bool mp_cuda_tables_take(mp_cuda_tables *tables, uint64_t bytes, mp_tick tick, mp_tick completed,
                         mp_cuda_span *out)
{
    const uint64_t size = tables->pinned.bytes;
    assert(bytes <= size);
    if (!bytes) {
        *out = (mp_cuda_span){0};
        return true;
    }
    reclaim(tables, completed);
    if (!tables->n)
        tables->head = tables->tail = 0; /* an empty ring is free in one piece */
    uint64_t at = tables->head % size;
    uint64_t skipped = at + bytes > size ? size - at : 0; /* a span does not wrap */
    if (tables->n == MP_CUDA_TABLES_SPANS || tables->head + skipped + bytes - tables->tail > size)
        return false;
    tables->head += skipped + bytes;
    uint32_t last = (tables->first + tables->n++) % MP_CUDA_TABLES_SPANS;
    tables->spans[last].tick = tick;
    tables->spans[last].end = tables->head;
    *out = (mp_cuda_span){.at = skipped ? 0 : at, .bytes = bytes};
    return true;
}

mp_tick mp_cuda_tables_oldest(const mp_cuda_tables *tables)
{
    return tables->n ? tables->spans[tables->first].tick : 0;
}

void mp_cuda_tables_fill(const mp_cuda_tables *tables, const mp_cuda_span *span, mp_kernel kernel,
                         mp_kernel_args *args)
{
    table list[MAX_TABLES];
    uint32_t n = tables_of(kernel, args, list);
    unsigned char *to = (unsigned char *)tables->pinned.host + span->at;
    for (uint32_t i = 0; i < n; i++) {
        if (list[i].bytes)
            memcpy(to, table_at(&list[i]), list[i].bytes);
        set_table(&list[i], to);
        to += padded(list[i].bytes);
    }
}

bool mp_cuda_tables_small(const mp_cuda_span *span, mp_kernel kernel)
{
    switch (kernel) {
    case MP_KERNEL_COMBINE: return span->bytes <= MP_SMALL_COMBINE;
    case MP_KERNEL_DECODE: return span->bytes <= MP_SMALL_DECODE;
    default: return false;
    }
}

moepage_status mp_cuda_tables_send(mp_cuda *cuda, const mp_cuda_tables *tables,
                                   const mp_cuda_span *span, mp_cu_stream stream, mp_kernel kernel,
                                   const mp_kernel_args *args, mp_kernel_args *gpu)
{
    *gpu = *args;
    if (!span->bytes)
        return MOEPAGE_OK;
    table list[MAX_TABLES];
    uint32_t n = tables_of(kernel, gpu, list);
    const unsigned char *host = tables->pinned.host, *mirror = tables->mirror;
    const bool small = mp_cuda_tables_small(span, kernel);
    for (uint32_t i = 0; i < n; i++)
        set_table(&list[i], small ? NULL : mirror + (table_at(&list[i]) - host));
    if (small)
        return MOEPAGE_OK;
    return mp_cuda_check(cuda,
                         cuda->driver->copy((mp_cu_ptr)(uintptr_t)tables->mirror + span->at,
                                            (mp_cu_ptr)(uintptr_t)(host + span->at), span->bytes,
                                            stream),
                         "sending a kernel's tables");
}
