/* The simulated device's rings, and the one place a stream is in. */
#include "simulated/sim_stream.h"

#include <assert.h>
#include <string.h>

#include "base/alloc.h"
#include "base/status.h"

#define FIRST_ROOM 16u

mp_stream *mp_sim_stream_new(mp_sim_queues *queues, mp_stream_class cls)
{
    mp_stream *stream = mp_alloc(sizeof *stream);
    if (!stream)
        return NULL;
    stream->queues = queues;
    stream->cls = cls;
    stream->urgency = cls == MP_STREAM_BACKGROUND || cls == MP_STREAM_PREFETCH;
    stream->references = 1;
    stream->idle = true;
    if (mp_sim_stream_reserve(stream, FIRST_ROOM)) {
        mp_sim_stream_release(stream);
        return NULL;
    }
    return stream;
}

void mp_sim_stream_release(mp_stream *stream)
{
    if (--stream->references)
        return;
    mp_free(stream->entries);
    mp_free(stream->copies);
    mp_free(stream);
}

/* ---- the ring ---- */

/* Entries keep their free-running positions: in a ring of another length they lie elsewhere. */
static void move_entries(const mp_stream *stream, mp_sim_entry *entries, mp_copy *copies,
                         uint32_t room)
{
    for (uint32_t at = stream->tail; at != stream->head; at++) {
        entries[at & (room - 1)] = stream->entries[at & (stream->room - 1)];
        if (copies)
            copies[at & (room - 1)] = stream->copies[at & (stream->room - 1)];
    }
}

static moepage_status grow(mp_stream *stream, uint32_t room)
{
    bool cold = stream->cls == MP_STREAM_COLD;
    mp_sim_entry *entries = mp_alloc_array(room, sizeof *entries);
    mp_copy *copies = cold && entries ? mp_alloc_array(room, sizeof *copies) : NULL;
    if (!entries || (cold && !copies)) {
        mp_free(entries);
        return mp_fail(MOEPAGE_E_NO_MEMORY, "sim: no memory for a queue of %u entries", room);
    }
    move_entries(stream, entries, copies, room);
    mp_free(stream->entries);
    mp_free(stream->copies);
    stream->entries = entries;
    stream->copies = copies;
    stream->room = room;
    return MOEPAGE_OK;
}

moepage_status mp_sim_stream_reserve(mp_stream *stream, uint32_t n)
{
    uint64_t needed = (uint64_t)(stream->head - stream->tail) + n, room = stream->room;
    if (needed <= room)
        return MOEPAGE_OK;
    room = room ? room : FIRST_ROOM;
    while (room < needed)
        room *= 2;
    if (room > UINT32_MAX / 2)
        return mp_fail(MOEPAGE_E_NO_MEMORY, "sim: a stream cannot queue %llu entries",
                       (unsigned long long)needed);
    return grow(stream, (uint32_t)room);
}

static mp_sim_entry *new_entry(mp_stream *stream)
{
    assert(stream->head - stream->tail < stream->room);
    return &stream->entries[stream->head++ & (stream->room - 1)];
}

/* ---- places ---- */

/* Queues a stream at its unit, in the order of submission. */
static void make_ready(mp_stream *stream, const mp_sim_entry *entry)
{
    mp_stream **link = &stream->queues->units[entry->unit].ready[stream->urgency];
    while (*link && mp_sim_stream_oldest(*link)->number < entry->number)
        link = &(*link)->next;
    stream->next = *link;
    *link = stream;
}

mp_stream *mp_sim_unit_take(mp_sim_unit *unit)
{
    mp_stream **link = unit->ready[0] ? &unit->ready[0] : &unit->ready[1];
    mp_stream *stream = *link;
    if (stream)
        *link = stream->next;
    return stream;
}

static void complete(mp_stream *stream);

/* Puts a stream that is in no list where its oldest entry belongs. */
static void place(mp_stream *stream)
{
    stream->idle = false;
    while (stream->tail != stream->head) {
        const mp_sim_entry *entry = mp_sim_stream_oldest(stream);
        if (entry->kind == MP_SIM_WORK) {
            make_ready(stream, entry);
            return;
        }
        if (entry->kind == MP_SIM_MARK) {
            complete(stream);
            continue;
        }
        mp_stream *other = entry->other;
        if (other->completed < entry->tick) {
            stream->parked_behind = other;
            stream->next = other->parked;
            other->parked = stream;
            return;
        }
        stream->tail++;
        mp_sim_stream_release(other);
    }
    stream->idle = true;
}

/* Places the parked streams anew; some park behind this stream again, for a later tick. */
static void release_parked(mp_stream *stream)
{
    mp_stream *parked = stream->parked;
    stream->parked = NULL;
    while (parked) {
        mp_stream *one = parked;
        parked = parked->next;
        one->parked_behind = NULL;
        place(one);
    }
}

/* Ends the oldest entry, which has a tick. */
static void complete(mp_stream *stream)
{
    stream->tail++;
    stream->completed++;
    while (stream->tasks.first && stream->tasks.first->due <= stream->completed) {
        mp_sim_task_due(stream->queues, mp_task_take(&stream->tasks));
        stream->last_due = stream->queues->n_due;
    }
    if (stream->parked)
        release_parked(stream);
}

void mp_sim_stream_finish(mp_stream *stream)
{
    complete(stream);
    place(stream);
}

void mp_sim_stream_drop_waits(mp_stream *stream)
{
    if (stream->parked_behind) {
        mp_stream **link = &stream->parked_behind->parked;
        while (*link != stream)
            link = &(*link)->next;
        *link = stream->next;
        stream->parked_behind = NULL;
    }
    while (stream->tail != stream->head) {
        mp_stream *other = mp_sim_stream_oldest(stream)->other;
        stream->tail++;
        mp_sim_stream_release(other);
    }
    stream->idle = true;
}

/* ---- submissions ---- */

mp_tick mp_sim_stream_work(mp_stream *stream, const mp_sim_entry *entry, const mp_copy *copy)
{
    if (stream->copies)
        stream->copies[stream->head & (stream->room - 1)] = *copy;
    mp_sim_entry *own = new_entry(stream);
    *own = *entry;
    own->kind = MP_SIM_WORK;
    own->number = ++stream->queues->n_work;
    mp_tick tick = ++stream->submitted;
    if (stream->idle)
        place(stream);
    return tick;
}

mp_tick mp_sim_stream_mark(mp_stream *stream)
{
    new_entry(stream)->kind = MP_SIM_MARK;
    mp_tick tick = ++stream->submitted;
    if (stream->idle)
        place(stream);
    return tick;
}

void mp_sim_stream_wait(mp_stream *stream, mp_stream *other, mp_tick tick)
{
    assert(tick <= other->submitted);
    mp_sim_entry *entry = new_entry(stream);
    entry->kind = MP_SIM_WAIT;
    entry->other = other;
    entry->tick = tick;
    other->references++;
    if (stream->idle)
        place(stream);
}

void mp_sim_task_due(mp_sim_queues *queues, mp_task *task)
{
    task->due = ++queues->n_due;
    mp_task_insert(&queues->due, task);
}

void mp_sim_stream_post(mp_stream *stream, mp_tick tick, mp_task *task)
{
    assert(tick <= stream->submitted);
    task->due = tick;
    if (stream->completed < tick) {
        mp_task_insert(&stream->tasks, task);
        return;
    }
    mp_sim_task_due(stream->queues, task);
    stream->last_due = stream->queues->n_due;
}
