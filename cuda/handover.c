/* Ownership of streams: references, lists, and the places where a stream waits that cannot go on.
 *
 * A stream whose oldest entry is not ready is left in a feeder's inbox or in a list of the stream
 * that it waits for; the thread that takes it out owns it. The condition is checked again under the
 * issuer's lock. A tick is published before the list is searched under that lock, so a stream
 * either sees the tick and goes on, or is in the list in time. The GPU publishes without a lock;
 * such streams are watched, and the watcher looks again until the tick is there.
 *
 * The stream that another waits for may be one of another device. Its lists are guarded by its own device's
 * issuer, and its device's threads may then issue from the stream that waited. */
#include "base/alloc.h"
#include "issue.h"

/* ---- Lists ------------------------------------------------------------------------------ */

static void list_add(mp_cuda_list *list, mp_cuda_stream *stream)
{
    stream->next = NULL;
    if (list->last)
        list->last->next = stream;
    else
        list->first = stream;
    list->last = stream;
}

mp_cuda_stream *mp_cuda_list_take(mp_cuda_list *list)
{
    mp_cuda_stream *stream = list->first;
    if (stream) {
        list->first = stream->next;
        if (!list->first)
            list->last = NULL;
    }
    return stream;
}

void mp_cuda_list_split(mp_cuda_list *from, mp_tick tick, mp_cuda_list *to)
{
    mp_cuda_list all = *from;
    mp_cuda_stream *i;
    *from = (mp_cuda_list){0};
    while ((i = mp_cuda_list_take(&all)))
        list_add(i->wait_tick <= tick ? to : from, i);
}

bool mp_cuda_list_remove(mp_cuda_list *list, const mp_cuda_stream *stream)
{
    mp_cuda_list all = *list;
    mp_cuda_stream *i;
    bool found = false;
    *list = (mp_cuda_list){0};
    while ((i = mp_cuda_list_take(&all))) {
        found |= i == stream;
        if (i != stream)
            list_add(list, i);
    }
    return found;
}

/* ---- References ------------------------------------------------------------------------- */

void mp_cuda_retain(mp_cuda_stream *stream)
{
    atomic_fetch_add_explicit(&stream->references, 1, memory_order_relaxed);
}

void mp_cuda_release(mp_cuda_stream *stream)
{
    mp_cuda_issuer *issuer = stream->cuda->issuer;
    if (atomic_fetch_sub_explicit(&stream->references, 1, memory_order_acq_rel) > 1)
        return;
    /* The word is given back only now, since a stream that still waits for this one reads it. */
    pthread_mutex_lock(&issuer->lock);
    issuer->taken[stream->slot / 64] &= ~(1ull << stream->slot % 64);
    pthread_mutex_unlock(&issuer->lock);
    pthread_mutex_destroy(&stream->lock);
    pthread_mutex_destroy(&stream->events_lock);
    pthread_cond_destroy(&stream->progress);
    mp_free(stream);
}

/* ---- Parking ----------------------------------------------------------------------------- */

bool mp_cuda_park_until_issued(mp_cuda_stream *stream, mp_cuda_stream *other, mp_tick tick)
{
    mp_cuda_issuer *issuer = other->cuda->issuer;
    pthread_mutex_lock(&issuer->lock);
    bool parks = atomic_load_explicit(&other->issued, memory_order_acquire) < tick;
    if (parks) {
        stream->wait_tick = tick;
        list_add(&other->until_issued, stream);
    }
    pthread_mutex_unlock(&issuer->lock);
    return parks;
}

void mp_cuda_watch(mp_cuda_issuer *issuer, mp_cuda_stream *stream)
{
    if (!stream->watched) {
        stream->watched = true;
        stream->next_watched = issuer->watched;
        issuer->watched = stream;
    }
    issuer->has_news = true;
    pthread_cond_signal(&issuer->watch);
}

bool mp_cuda_park_until_completed(mp_cuda_stream *stream, mp_cuda_stream *other, mp_tick tick)
{
    mp_cuda_issuer *issuer = other->cuda->issuer;
    pthread_mutex_lock(&issuer->lock);
    bool parks = mp_cuda_completed(other) < tick;
    if (parks) {
        stream->wait_tick = tick;
        list_add(&other->until_completed, stream);
        mp_cuda_watch(issuer, other);
    }
    pthread_mutex_unlock(&issuer->lock);
    return parks;
}

bool mp_cuda_park_until_room(mp_cuda_stream *stream)
{
    mp_cuda_issuer *issuer = stream->cuda->issuer;
    pthread_mutex_lock(&issuer->lock);
    bool parks = stream->passed - mp_cuda_completed(stream) >= MP_CUDA_COLD_DEPTH;
    if (parks) {
        /* Half of the depth, so that the watcher wakes the stream once for many transfers. */
        stream->wait_tick = stream->passed - MP_CUDA_COLD_DEPTH / 2;
        list_add(&stream->until_completed, stream);
        mp_cuda_watch(issuer, stream);
    }
    pthread_mutex_unlock(&issuer->lock);
    return parks;
}

void mp_cuda_feed(mp_cuda_inbox *inbox, mp_cuda_stream *stream)
{
    mp_cuda_issuer *issuer = stream->cuda->issuer;
    pthread_mutex_lock(&issuer->lock);
    list_add(&inbox->ready, stream);
    pthread_cond_signal(&inbox->work);
    pthread_mutex_unlock(&issuer->lock);
}
