/* The host's half of a device-driven path: a thread of the device reads messages, makes room, loads
 * the missing experts, and answers. */
#include <stdio.h>

#include "base/status.h"
#include "device_paths/path.h"

static moepage_status write_map(moepage_cuda_path *path, uint32_t key, int32_t slot)
{
    return path->device->ops->cuda->write32(path->answers,
                                            (uint64_t)(uintptr_t)&path->memory.map[key],
                                            (uint32_t)slot);
}

/* ---- room ---- */

/* A heap of the oldest experts found so far, with the youngest of them on top. */
typedef struct oldest {
    moepage_cuda_path *path;
    uint32_t *keys;
    uint32_t n;
    uint32_t most;
} oldest;

/* Returns how many layers ago an expert was needed; the clock may wrap around. */
static uint32_t age_of(const moepage_cuda_path *path, uint32_t key)
{
    return path->mail->now - path->mail_stamps[key];
}

static bool younger(const oldest *heap, uint32_t a, uint32_t b)
{
    return age_of(heap->path, heap->keys[a]) < age_of(heap->path, heap->keys[b]);
}

static void swap(oldest *heap, uint32_t a, uint32_t b)
{
    uint32_t key = heap->keys[a];
    heap->keys[a] = heap->keys[b];
    heap->keys[b] = key;
}

static void sink(oldest *heap, uint32_t at)
{
    for (;;) {
        uint32_t least = at, left = 2 * at + 1, right = left + 1;
        if (left < heap->n && younger(heap, left, least))
            least = left;
        if (right < heap->n && younger(heap, right, least))
            least = right;
        if (least == at)
            return;
        swap(heap, at, least);
        at = least;
    }
}

static void offer(oldest *heap, uint32_t key)
{
    if (heap->n < heap->most) {
        uint32_t at = heap->n++;
        heap->keys[at] = key;
        for (; at > 0 && younger(heap, at, (at - 1) / 2); at = (at - 1) / 2)
            swap(heap, at, (at - 1) / 2);
    } else if (heap->most > 0 && age_of(heap->path, key) > age_of(heap->path, heap->keys[0])) {
        heap->keys[0] = key;
        sink(heap, 0);
    }
}

/* Takes an expert off the map and releases it. */
static moepage_status take_off(moepage_cuda_path *path, uint32_t key)
{
    moepage_status status = write_map(path, key, -1);
    if (status) /* the device may still find it on the map, so it stays held */
        return status;
    mp_pool_release(path->pool, &path->published[key], 1);
    path->n_published--;
    atomic_fetch_add(&path->evictions, 1);
    return MOEPAGE_OK;
}

/* Takes the `most` least recently needed of keys [first, first + n) off the map. None of them
 * belongs to the message: the device has just stamped the message's experts, and there are enough
 * others, because a layer's worst case fits. Their slots may be overwritten at once: see path.h. */
static moepage_status evict(moepage_cuda_path *path, uint32_t first, uint32_t n, uint32_t most)
{
    oldest heap = {.path = path, .keys = path->victims, .most = most};
    for (uint32_t key = first; key < first + n && most > 0; key++)
        if (path->published[key].kind != MP_HOLD_NONE)
            offer(&heap, key);
    moepage_status status = MOEPAGE_OK;
    for (uint32_t i = 0; i < heap.n && !status; i++)
        status = take_off(path, heap.keys[i]);
    return status;
}

/* Gives up experts in slots that the pool wants back, except the message's own, which the device
 * has just stamped. */
static moepage_status leave_drained(moepage_cuda_path *path)
{
    if (!mp_pool_any_draining(path->pool))
        return MOEPAGE_OK;
    for (uint32_t key = 0; key < path->shape.keys; key++) {
        const mp_hold *hold = &path->published[key];
        if (hold->kind == MP_HOLD_NONE || age_of(path, key) == 0)
            continue;
        moepage_status status =
            mp_pool_is_draining(path->pool, hold) ? take_off(path, key) : MOEPAGE_OK;
        if (status)
            return status;
    }
    return MOEPAGE_OK;
}

static uint32_t excess(uint32_t held, uint32_t wanted, uint32_t limit)
{
    return held + wanted > limit ? held + wanted - limit : 0;
}

/* Makes room for `wanted` more experts of the message's layer in the path's share. */
static moepage_status make_room(moepage_cuda_path *path, uint32_t wanted)
{
    const mp_pool_shape *shape = &path->shape;
    uint32_t first = path->mail->layer * shape->experts, held = 0;
    moepage_status status = leave_drained(path);
    if (!status && shape->n_scopes > 1) {
        for (uint32_t e = 0; e < shape->experts; e++)
            held += path->published[first + e].kind != MP_HOLD_NONE;
        status = evict(path, first, shape->experts, excess(held, wanted, path->share.per_scope));
    }
    if (!status)
        status = evict(path, 0, shape->keys, excess(path->n_published, wanted, path->share.slots));
    return status;
}

/* ---- experts ---- */

/* Puts a held expert on the map, for the device to see once its bytes are there. */
static moepage_status publish(moepage_cuda_path *path, mp_hold *hold)
{
    moepage_status status = mp_pool_wait(path->pool, hold, path->answers);
    if (!status)
        status = write_map(path, hold->key, (int32_t)hold->slot);
    if (status) {
        mp_pool_release(path->pool, hold, 1);
        return status;
    }
    path->published[hold->key] = *hold;
    path->n_published++;
    return MOEPAGE_OK;
}

static void note_failure(moepage_cuda_path *path, moepage_status status)
{
    mp_path_failure *failure = &path->failure;
    pthread_mutex_lock(&failure->lock);
    failure->status = status;
    snprintf(failure->text, sizeof failure->text, "%s", moepage_last_error());
    pthread_mutex_unlock(&failure->lock);
}

/* Loads n experts that are not on the map. Those that can be loaded are published even
 * if others fail. */
static moepage_status bring(moepage_cuda_path *path, uint32_t n)
{
    struct moepage_expert_pool *pool = path->pool;
    mp_hold *holds = path->missing;
    moepage_status status = MOEPAGE_OK;
    if (mp_client_hold_resident(path->client, holds, n) < n)
        status = mp_pool_hold_rest(pool, holds, n, mp_client_decodes(path->client));
    if (status) {
        note_failure(path, status);
        return status;
    }
    for (uint32_t i = 0; i < n; i++) {
        moepage_status one = publish(path, &holds[i]);
        if (one && !status)
            note_failure(path, status = one);
    }
    return status;
}

/* ---- messages ---- */

/* Collects in path->missing the experts of the message that are not on the map;
 * returns their number. */
static uint32_t read_message(moepage_cuda_path *path)
{
    const mp_path_mail *mail = path->mail;
    uint32_t n = 0;
    for (uint32_t i = 0; i < mail->n; i++) {
        uint32_t key = mail->layer * path->shape.experts + mail->experts[i];
        if (path->published[key].kind == MP_HOLD_NONE)
            path->missing[n++] = (mp_hold){.key = key};
    }
    return n;
}

static moepage_status serve(moepage_cuda_path *path)
{
    uint32_t n = read_message(path);
    moepage_status status = make_room(path, n);
    if (status) {
        note_failure(path, status);
        return status;
    }
    return n ? bring(path, n) : MOEPAGE_OK;
}

/* Returns true if the load may succeed before the device gives up: other sessions' plans
 * may release slots. */
static bool worth_another_try(const moepage_cuda_path *path, moepage_status status)
{
    uint64_t passed_ns = path->device->ops->now_ns(path->device) - path->seen_ns;
    return status == MOEPAGE_E_BUSY && passed_ns < path->timeout_ms * 1000000ull;
}

/* Returns true if the device has run layers since the last time. */
static bool has_gone_on(moepage_cuda_path *path)
{
    uint64_t told = path->told;
    path->told = __atomic_load_n(&path->mail->layers, __ATOMIC_RELAXED);
    return path->told != told;
}

bool mp_path_poll(void *user)
{
    moepage_cuda_path *path = user;
    uint32_t sequence = __atomic_load_n(&path->mail->sequence, __ATOMIC_ACQUIRE);
    if (sequence == path->served)
        return has_gone_on(path);
    if (sequence != path->seen)
        path->seen_ns = path->device->ops->now_ns(path->device);
    path->seen = sequence;
    moepage_status status = serve(path);
    if (worth_another_try(path, status))
        return true;
    path->served = sequence;
    /* If the device refuses this, its timeout ends the layer. */
    (void)path->device->ops->cuda->write32(path->answers,
                                           (uint64_t)(uintptr_t)&path->memory.state->answer,
                                           MP_PATH_ANSWER(sequence, status ? 1u : 0u));
    return true;
}
