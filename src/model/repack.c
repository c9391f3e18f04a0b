/* Ranges of computed pieces, cut into runs of whole rows that fit a room. */
#include "model/repack.h"

#include <assert.h>
#include <pthread.h>
#include <string.h>

#include "base/alloc.h"
#include "base/status.h"

/* A run's reads and its rows stay in a core's cache. */
#define ROOM_BYTES ((uint64_t)1 << 20)

#define ROOM_ALIGN 16u

/* ---- rooms ---- */

typedef struct room {
    struct room *next;
    unsigned char bytes[] __attribute__((aligned(ROOM_ALIGN)));
} room;

struct mp_repack_rooms {
    pthread_mutex_t lock;
    room *free;
    uint64_t bytes;
};

moepage_status mp_repack_rooms_create(uint64_t bytes, mp_repack_rooms **out)
{
    mp_repack_rooms *rooms = mp_alloc(sizeof *rooms);
    if (!rooms)
        return mp_fail(MOEPAGE_E_NO_MEMORY, "no memory for a list of scratch");
    pthread_mutex_init(&rooms->lock, NULL);
    rooms->bytes = bytes;
    *out = rooms;
    return MOEPAGE_OK;
}

void mp_repack_rooms_free(mp_repack_rooms *rooms)
{
    if (!rooms)
        return;
    while (rooms->free) {
        room *next = rooms->free->next;
        mp_free(rooms->free);
        rooms->free = next;
    }
    pthread_mutex_destroy(&rooms->lock);
    mp_free(rooms);
}

static room *take(mp_repack_rooms *rooms)
{
    pthread_mutex_lock(&rooms->lock);
    room *taken = rooms->free;
    if (taken)
        rooms->free = taken->next;
    pthread_mutex_unlock(&rooms->lock);
    return taken ? taken : mp_realloc(NULL, sizeof *taken + rooms->bytes);
}

static void give_back(mp_repack_rooms *rooms, room *taken)
{
    pthread_mutex_lock(&rooms->lock);
    taken->next = rooms->free;
    rooms->free = taken;
    pthread_mutex_unlock(&rooms->lock);
}

/* ---- runs ---- */

static uint64_t round_up(uint64_t bytes)
{
    return (bytes + ROOM_ALIGN - 1) / ROOM_ALIGN * ROOM_ALIGN;
}

/* What a run of n rows needs: the kind's scratch, and the rows themselves if only a part of them is asked for. */
static uint64_t run_bytes(const mp_repack *how, uint64_t n)
{
    return round_up(how->kind->room(how, n)) + n * how->row_bytes;
}

/* Returns the most rows of a run: 1, or as many as fit a room. */
static uint64_t most_rows(const mp_repack *how)
{
    uint64_t low = 1, high = how->rows;
    while (low < high) {
        const uint64_t middle = high - (high - low) / 2;
        if (run_bytes(how, middle) <= ROOM_BYTES)
            low = middle;
        else
            high = middle - 1;
    }
    return low;
}

uint64_t mp_repack_room(const mp_repack *how)
{
    return run_bytes(how, most_rows(how));
}

/* Fills rows [first, first + n) of the piece, which are all of one half if it is interleaved. */
static moepage_status fill(const mp_repack *how, const mp_file_span *stored, uint64_t first,
                           uint64_t n, unsigned char *scratch, unsigned char *out)
{
    const uint64_t half = how->rows / 2;
    mp_repack_rows rows = {first, 1, n};
    if (how->interleaved)
        rows = (mp_repack_rows){first < half ? 2 * first : 2 * (first - half) + 1, 2, n};
    return how->kind->fill(how, stored, &rows, scratch, out);
}

/* Returns the rows of the run that begins at `first` and is to reach past row `last`, if it may. */
static uint64_t run_rows(const mp_repack *how, uint64_t most, uint64_t first, uint64_t last)
{
    const uint64_t half = how->rows / 2;
    uint64_t end = last + 1;
    if (how->interleaved && first < half && end > half)
        end = half;
    return end - first < most ? end - first : most;
}

/* Whole rows are filled where they belong; a run that is cut is filled beside and copied. */
static moepage_status read_runs(const mp_repack *how, const mp_file_span *stored,
                                unsigned char *scratch, uint64_t offset, uint64_t bytes,
                                unsigned char *out)
{
    const uint64_t most = most_rows(how), end = offset + bytes;
    while (offset < end) {
        const uint64_t first = offset / how->row_bytes, skip = offset % how->row_bytes;
        const uint64_t n = run_rows(how, most, first, (end - 1) / how->row_bytes);
        const uint64_t run_end = (first + n) * how->row_bytes;
        const uint64_t part = (run_end < end ? run_end : end) - offset;
        const bool cut = skip || run_end > end;
        unsigned char *rows = cut ? scratch + round_up(how->kind->room(how, n)) : out;
        moepage_status status = fill(how, stored, first, n, scratch, rows);
        if (status)
            return status;
        if (cut)
            memcpy(out, rows + skip, part);
        offset += part;
        out += part;
    }
    return MOEPAGE_OK;
}

static moepage_status no_room(const mp_repack_rooms *rooms)
{
    return mp_fail(MOEPAGE_E_NO_MEMORY, "no memory for %llu bytes of scratch",
                   (unsigned long long)rooms->bytes);
}

moepage_status mp_repack_read(const mp_repack *how, const mp_file_span *stored,
                              mp_repack_rooms *rooms, uint64_t offset, uint64_t bytes, void *out)
{
    room *scratch = take(rooms);
    if (!scratch)
        return no_room(rooms);
    moepage_status status = read_runs(how, stored, scratch->bytes, offset, bytes, out);
    give_back(rooms, scratch);
    return status;
}

moepage_status mp_repack_check(const mp_repack *how, const mp_file_span *stored,
                               mp_repack_rooms *rooms)
{
    const uint64_t most = most_rows(how);
    moepage_status status = MOEPAGE_OK;
    room *scratch = take(rooms);
    if (!scratch)
        return no_room(rooms);
    for (uint64_t first = 0; first < how->rows && !status;) {
        const uint64_t n = run_rows(how, most, first, how->rows - 1);
        unsigned char *rows = scratch->bytes + round_up(how->kind->room(how, n));
        status = fill(how, stored, first, n, scratch->bytes, rows);
        first += n;
    }
    give_back(rooms, scratch);
    return status;
}

mp_repack mp_repack_one_of(const mp_repack *how, uint32_t n)
{
    mp_repack one = *how;
    one.rows /= n;
    for (uint32_t s = 0; s < one.n_sources; s++)
        one.sources[s].rows /= one.sources[s].rows % n ? 1 : n;
    return one;
}

bool mp_repack_is_same(const mp_repack *a, const mp_repack *b)
{
    return a->kind == b->kind && a->rows == b->rows && a->row_bytes == b->row_bytes &&
           a->interleaved == b->interleaved && a->n_sources == b->n_sources &&
           memcmp(a->sources, b->sources, sizeof a->sources) == 0;
}

moepage_status mp_computed_read(const mp_computed *tensor, uint64_t offset, uint64_t bytes,
                                void *out)
{
    const mp_repack *how = &tensor->how;
    mp_repack_rooms *rooms;
    moepage_status status = mp_repack_rooms_create(mp_repack_room(how), &rooms);
    if (status)
        return status;
    status = mp_repack_read(how, tensor->stored, rooms, offset, bytes, out);
    mp_repack_rooms_free(rooms);
    return status;
}

moepage_status mp_repack_window(const mp_repack *how, const mp_file_span *stored, uint32_t s,
                                const mp_repack_range *range, void *out)
{
    const mp_repack_source *source = &how->sources[s];
    assert(s < how->n_sources && range->n <= source->rows &&
           range->first <= source->rows - range->n);
    assert(range->bytes <= source->row_bytes && range->at <= source->row_bytes - range->bytes);
    const uint64_t offset = stored[s].offset + range->first * source->row_bytes + range->at;
    if (range->bytes == source->row_bytes)
        return mp_model_file_read(stored[s].file, offset, range->n * range->bytes, out);
    return mp_model_file_read_strided(stored[s].file, offset, source->row_bytes, range->bytes,
                                      range->n, out);
}
