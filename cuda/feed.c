/* The host's part of transfers: fills, and bytes from or to memory that the GPU does not reach.
 * They go through a ring of pinned memory, in pieces.
 *
 * There are two feeders, each a thread with a ring: one for COMPUTE and DEMAND streams, and one for
 * all others, which begins nothing while the first has work. There are two rings so that pieces of
 * a prefetch never take the room that a demand needs. */
#include <assert.h>
#include <string.h>

#include "base/alloc.h"
#include "base/status.h"
#include "device/thread.h"
#include "issue.h"

#define PIECE_BYTES (4ull << 20)
#define RING_BYTES (8 * PIECE_BYTES)
#define PIECES 64u /* that can be under way */
#define ALIGN 256u

struct mp_cuda_feeder {
    mp_cuda *cuda;
    mp_cuda_feeder *before, *behind; /* the more urgent feeder, the less urgent one; or NULL */
    mp_cuda_inbox inbox;
    bool busy, stop, started; /* [issuer's lock] */
    pthread_t thread;

    unsigned char *ring;
    uint64_t head, tail; /* bytes ever taken and given back */
    struct {
        mp_cu_event event; /* after the GPU's last use of the piece */
        uint64_t end;
    } pieces[PIECES];
    uint32_t first, n; /* oldest piece, pieces */
};

/* ---- Which transfers need the host ------------------------------------------------------- */

typedef enum place { PLACE_DEVICE, PLACE_PINNED, PLACE_PAGEABLE } place;

/* Asks the driver for the kind of memory. INVALID_VALUE means that it does not know the
 * address: pageable memory. */
static place place_of(mp_cuda *cuda, const void *memory)
{
    unsigned kind = 0;
    mp_cu_result result = cuda->driver->pointer_attribute(&kind, MP_CU_POINTER_MEMORY_TYPE,
                                                          (mp_cu_ptr)(uintptr_t)memory);
    if (result && result != MP_CU_INVALID_VALUE)
        mp_cuda_poison_on(cuda, mp_cuda_check(cuda, result, "asking what memory is"));
    if (result)
        return PLACE_PAGEABLE;
    return kind == MP_CU_MEMORY_HOST ? PLACE_PINNED : PLACE_DEVICE;
}

mp_cuda_op_kind mp_cuda_copy_kind(mp_cuda *cuda, const mp_copy *copy)
{
    if (!copy->bytes && !copy->fill)
        return MP_CUDA_OP_MARK;
    place to = place_of(cuda, copy->dst);
    if (copy->fill)
        return to == PLACE_DEVICE ? MP_CUDA_OP_UPLOAD : MP_CUDA_OP_HOST;
    place from = place_of(cuda, copy->src);
    if (to != PLACE_DEVICE && from != PLACE_DEVICE) /* the driver would copy it within the call */
        return MP_CUDA_OP_HOST;
    if (from == PLACE_PAGEABLE)
        return MP_CUDA_OP_UPLOAD;
    return to == PLACE_PAGEABLE ? MP_CUDA_OP_DOWNLOAD : MP_CUDA_OP_COPY;
}

/* ---- The ring (by the feeder's thread, with the context current) ------------------------- */

/* Waits for the oldest piece. If that fails, the GPU may still be using the piece and read the next
 * contents in place of it, so the device is poisoned. */
static void give_oldest_back(mp_cuda_feeder *feeder)
{
    mp_cuda *cuda = feeder->cuda;
    mp_cu_result result = cuda->driver->event_sync(feeder->pieces[feeder->first].event);
    mp_cuda_poison_on(cuda, mp_cuda_check(cuda, result, "waiting for a transfer"));
    feeder->tail = feeder->pieces[feeder->first].end;
    feeder->first = (feeder->first + 1) % PIECES;
    feeder->n--;
}

/* Finds room for `bytes`. It is given back with the next call unless `send` keeps it. */
static unsigned char *room_for(mp_cuda_feeder *feeder, uint64_t bytes)
{
    assert(bytes <= PIECE_BYTES);
    for (;;) {
        if (!feeder->n)
            feeder->head = feeder->tail = 0;
        uint64_t at = feeder->head % RING_BYTES;
        uint64_t skipped =
            at + bytes > RING_BYTES ? RING_BYTES - at : 0; /* a piece does not wrap */
        if (feeder->n < PIECES && feeder->head + skipped + bytes - feeder->tail <= RING_BYTES) {
            feeder->head += skipped;
            return feeder->ring + (skipped ? 0 : at);
        }
        give_oldest_back(feeder);
    }
}

/* Puts a copy from or to the room that was found last on the stream, and keeps the room until the
 * copy is done. */
static moepage_status send(mp_cuda_feeder *feeder, mp_cuda_stream *stream, void *dst,
                           const void *src, uint64_t bytes)
{
    mp_cuda *cuda = feeder->cuda;
    /* `head` moves only once the copy is on the stream, so the room of a copy that failed
     * is used again. */
    uint32_t last = (feeder->first + feeder->n) % PIECES;
    moepage_status status =
        mp_cuda_check(cuda,
                      cuda->driver->copy((mp_cu_ptr)(uintptr_t)dst, (mp_cu_ptr)(uintptr_t)src,
                                         bytes, stream->handle),
                      "a transfer");
    if (status)
        return status;
    feeder->head += (bytes + ALIGN - 1) / ALIGN * ALIGN;
    status =
        mp_cuda_check(cuda, cuda->driver->event_record(feeder->pieces[last].event, stream->handle),
                      "marking a transfer");
    /* Without an event, only the end of the whole stream shows that the room is free. */
    if (status) {
        mp_cuda_poison_on(cuda, status);
        mp_cuda_log_failure(cuda, cuda->driver->stream_sync(stream->handle),
                            "waiting for a stream");
        return status;
    }
    feeder->pieces[last].end = feeder->head;
    feeder->n++;
    return MOEPAGE_OK;
}

/* ---- Transfers -------------------------------------------------------------------------- */

static moepage_status enter(const mp_cuda_feeder *feeder)
{
    moepage_status status = mp_cuda_enter(feeder->cuda);
    mp_cuda_poison_on(feeder->cuda, status);
    return status;
}

/* The piece of a transfer that begins at `offset`. */
static mp_copy part_of(const mp_copy *copy, uint64_t offset)
{
    uint64_t left = copy->bytes - offset;
    mp_copy part = *copy;
    part.dst = (unsigned char *)copy->dst + offset;
    part.src = copy->src ? (const unsigned char *)copy->src + offset : NULL;
    part.bytes = left < PIECE_BYTES ? left : PIECE_BYTES;
    part.fill_offset += offset;
    return part;
}

static moepage_status produce(const mp_copy *copy, void *out)
{
    if (copy->fill)
        return copy->fill(copy, out);
    assert(copy->src);
    memcpy(out, copy->src, copy->bytes);
    return MOEPAGE_OK;
}

/* Fills a piece and sends it. The context is left while `fill` runs: it may block, and call
 * into the library. */
static moepage_status upload(mp_cuda_feeder *feeder, mp_cuda_stream *stream, const mp_copy *part)
{
    moepage_status status = enter(feeder);
    if (status)
        return status;
    unsigned char *room = room_for(feeder, part->bytes);
    mp_cuda_leave(feeder->cuda);
    status = produce(part, room);
    if (!status)
        status = enter(feeder);
    if (status)
        return status;
    status = send(feeder, stream, part->dst, room, part->bytes);
    mp_cuda_leave(feeder->cuda);
    return status;
}

static moepage_status download(mp_cuda_feeder *feeder, mp_cuda_stream *stream, const mp_copy *part)
{
    mp_cuda *cuda = feeder->cuda;
    moepage_status status = enter(feeder);
    if (status)
        return status;
    unsigned char *room = room_for(feeder, part->bytes);
    status = send(feeder, stream, room, part->src, part->bytes);
    if (!status) { /* the bytes have to be here before they can be copied on */
        uint32_t last = (feeder->first + feeder->n - 1) % PIECES;
        status = mp_cuda_check(cuda, cuda->driver->event_sync(feeder->pieces[last].event),
                               "waiting for a transfer");
    }
    mp_cuda_leave(cuda);
    if (!status)
        memcpy(part->dst, room, part->bytes);
    return status;
}

/* Writes host memory in the stream's order: waits until the GPU has done all that is before it. */
static moepage_status work_in_place(mp_cuda_feeder *feeder, mp_cuda_stream *stream,
                                    const mp_copy *copy)
{
    mp_cuda *cuda = feeder->cuda;
    moepage_status status = enter(feeder);
    if (status)
        return status;
    status = mp_cuda_check(cuda, cuda->driver->event_record(stream->pause, stream->handle),
                           "marking a stream");
    if (!status)
        status =
            mp_cuda_check(cuda, cuda->driver->event_sync(stream->pause), "waiting for a stream");
    mp_cuda_leave(cuda);
    return status ? status : produce(copy, copy->dst);
}

/* Does a transfer piece by piece, without any lock, because fills may block for long. */
static moepage_status transfer(mp_cuda_feeder *feeder, mp_cuda_stream *stream, mp_cuda_op_kind kind,
                               const mp_copy *copy)
{
    moepage_status status = MOEPAGE_OK;
    if (kind == MP_CUDA_OP_HOST)
        return mp_cuda_is_poisoned(feeder->cuda) ? MOEPAGE_E_DEVICE
                                                 : work_in_place(feeder, stream, copy);
    for (uint64_t offset = 0; offset < copy->bytes && !status; offset += PIECE_BYTES) {
        mp_copy part = part_of(copy, offset);
        if (mp_cuda_is_poisoned(feeder->cuda))
            status = MOEPAGE_E_DEVICE;
        else if (kind == MP_CUDA_OP_UPLOAD)
            status = upload(feeder, stream, &part);
        else
            status = download(feeder, stream, &part);
    }
    return status;
}

/* ---- The thread ------------------------------------------------------------------------- */

/* Does the oldest entry of a stream, then issues what is behind it: the feeder owns the stream, and
 * gives it up in mp_cuda_pump. */
static void work_on(mp_cuda_feeder *feeder, mp_cuda_stream *stream)
{
    mp_cuda *cuda = feeder->cuda;
    const mp_cuda_op *op = mp_cuda_oldest(stream);
    mp_cuda_list freed = {0};
    const char *range = mp_cuda_transfer_range(stream);
    mp_cuda_range_push(cuda->ranges, range, op->copy.bytes);
    moepage_status status = transfer(feeder, stream, op->kind, &op->copy);
    mp_cuda_range_pop(cuda->ranges, range);
    /* The entry is read without the stream's lock: it is the oldest, which is its owner's. */
    if (status)
        mp_cuda_fail_copy(cuda, &op->copy, status);
    bool inside = mp_cuda_enter_for(stream);
    pthread_mutex_lock(&stream->lock);
    stream->passed = op->tick;
    mp_cuda_pop_op(stream);
    mp_cuda_pump(stream, &freed);
    pthread_mutex_unlock(&stream->lock);
    if (inside)
        mp_cuda_leave(cuda);
    mp_cuda_pump_all(&freed);
}

/* With the issuer's lock. */
static bool has_work(const mp_cuda_feeder *feeder)
{
    return feeder->busy || feeder->inbox.ready.first;
}

static void *run_feeder(void *arg)
{
    mp_cuda_feeder *feeder = arg;
    mp_cuda_issuer *issuer = feeder->cuda->issuer;
    pthread_mutex_lock(&issuer->lock);
    for (;;) {
        /* Checked before every transfer, so that a demand waits for at most one of the other feeder. */
        if (feeder->inbox.ready.first && !(feeder->before && has_work(feeder->before))) {
            mp_cuda_stream *stream = mp_cuda_list_take(&feeder->inbox.ready);
            feeder->busy = true;
            pthread_mutex_unlock(&issuer->lock);
            work_on(feeder, stream);
            pthread_mutex_lock(&issuer->lock);
            feeder->busy = false;
            /* The less urgent feeder may go on; it calls has_work itself. */
            if (feeder->behind && !feeder->inbox.ready.first)
                pthread_cond_signal(&feeder->behind->inbox.work);
        } else if (feeder->stop && !feeder->inbox.ready.first) { /* what was submitted is done */
            break;
        } else {
            pthread_cond_wait(&feeder->inbox.work, &issuer->lock);
        }
    }
    pthread_mutex_unlock(&issuer->lock);
    return NULL;
}

/* ---- Life ------------------------------------------------------------------------------- */

static moepage_status create_events(mp_cuda_feeder *feeder)
{
    mp_cuda *cuda = feeder->cuda;
    moepage_status status = mp_cuda_enter(cuda);
    if (status)
        return status;
    for (uint32_t i = 0; i < PIECES && !status; i++)
        status = mp_cuda_event_create(cuda, &feeder->pieces[i].event);
    mp_cuda_leave(cuda);
    return status;
}

static void set_behind(mp_cuda_feeder *before, mp_cuda_feeder *behind)
{
    if (!before)
        return;
    pthread_mutex_lock(&before->cuda->issuer->lock);
    before->behind = behind;
    pthread_mutex_unlock(&before->cuda->issuer->lock);
}

moepage_status mp_cuda_feeder_create(mp_cuda *cuda, mp_cuda_feeder *before, const char *name,
                                     mp_cuda_feeder **out)
{
    mp_cuda_feeder *feeder = mp_alloc(sizeof *feeder);
    void *ring = NULL;
    if (!feeder)
        return mp_fail(MOEPAGE_E_NO_MEMORY, "%s: no memory for a feeder of streams", cuda->name);
    feeder->cuda = cuda;
    feeder->before = before;
    pthread_cond_init(&feeder->inbox.work, NULL);
    moepage_status status = mp_cuda_alloc(&cuda->device, MP_MEMORY_HOST, RING_BYTES, &ring);
    feeder->ring = ring;
    if (!status)
        status = create_events(feeder);
    if (!status)
        status = mp_thread_start(&feeder->thread, name, run_feeder, feeder);
    if (status) {
        mp_cuda_feeder_destroy(feeder);
        return status;
    }
    feeder->started = true;
    set_behind(before, feeder);
    *out = feeder;
    return MOEPAGE_OK;
}

mp_cuda_inbox *mp_cuda_feeder_inbox(mp_cuda_feeder *feeder)
{
    return &feeder->inbox;
}

static void stop(mp_cuda_feeder *feeder)
{
    mp_cuda_issuer *issuer = feeder->cuda->issuer;
    pthread_mutex_lock(&issuer->lock);
    feeder->stop = true;
    pthread_cond_signal(&feeder->inbox.work);
    pthread_mutex_unlock(&issuer->lock);
    pthread_join(feeder->thread, NULL);
}

void mp_cuda_feeder_destroy(mp_cuda_feeder *feeder)
{
    if (!feeder)
        return;
    mp_cuda *cuda = feeder->cuda;
    if (feeder->started)
        stop(feeder);
    set_behind(feeder->before, NULL);
    if (mp_cuda_enter(cuda) == MOEPAGE_OK) {
        for (uint32_t i = 0; i < PIECES; i++)
            mp_cuda_event_destroy(cuda, &feeder->pieces[i].event);
        mp_cuda_leave(cuda);
    }
    if (feeder->ring)
        mp_cuda_free(&cuda->device, MP_MEMORY_HOST, feeder->ring, RING_BYTES);
    pthread_cond_destroy(&feeder->inbox.work);
    mp_free(feeder);
}
