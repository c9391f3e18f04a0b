/* Readers: sessions that read a KV pool's blocks, from a step's begin to its end, and the sequences
 * that steps use. */
#include "base/alloc.h"
#include "base/status.h"
#include "kv/kv_pool.h"

/* Steps that name the same sequences again count as one use in SAME_STEPS. */
#define SAME_STEPS 64u

moepage_status mp_kv_reader_open(struct moepage_kv_pool *pool, uint32_t max_sequences,
                                 mp_stream *stream, mp_kv_reader **out)
{
    mp_kv_reader *reader = mp_alloc(sizeof *reader);
    mp_kv_use *uses = mp_alloc_array(max_sequences, sizeof *uses);
    if (!reader || !uses) {
        mp_free(reader);
        mp_free(uses);
        return mp_fail(MOEPAGE_E_NO_MEMORY, "no memory to read the KV of %u sequences",
                       max_sequences);
    }
    pthread_mutex_lock(&pool->lock);
    *reader = (mp_kv_reader){.pool = pool, .next = pool->readers, .stream = stream, .uses = uses};
    pool->readers = reader;
    atomic_fetch_add(&pool->n_readers, 1);
    pthread_mutex_unlock(&pool->lock);
    *out = reader;
    return MOEPAGE_OK;
}

void mp_kv_reader_close(mp_kv_reader *reader)
{
    if (!reader)
        return;
    struct moepage_kv_pool *pool = reader->pool;
    /* Until then a pool that becomes smaller waits for it. On a failed device nothing runs any more. */
    if (reader->stream && reader->tick)
        (void)pool->home->device->ops->sync(reader->stream, reader->tick);
    pthread_mutex_lock(&pool->lock);
    mp_kv_reader **at = &pool->readers;
    while (*at != reader)
        at = &(*at)->next;
    *at = reader->next;
    pthread_mutex_unlock(&pool->lock);
    atomic_fetch_sub(&pool->n_readers, 1); /* last access: the pool may be destroyed now */
    mp_free(reader->uses);
    mp_free(reader);
}

uint32_t mp_kv_pool_readers(const struct moepage_kv_pool *pool)
{
    return atomic_load(&pool->n_readers);
}

/* ---- steps ---- */

uint32_t mp_kv_running(const struct moepage_kv_pool *pool)
{
    uint32_t n = 0;
    for (uint32_t i = 0; i < pool->n_slots; i++) {
        const mp_kv_sequence *sequence = &pool->sequences[i];
        n += sequence->live && !sequence->swapped && !sequence->used;
    }
    for (const mp_kv_reader *reader = pool->readers; reader; reader = reader->next)
        for (uint32_t i = 0; i < reader->n_uses; i++) {
            uint32_t slot = (reader->uses[i].seq & MP_KV_INDEX_MASK) - 1;
            const mp_kv_sequence *sequence = &pool->sequences[slot];
            n += sequence->live && sequence->id == reader->uses[i].seq && !sequence->swapped &&
                 sequence->used;
        }
    return n;
}

static bool is_same(const mp_kv_reader *reader, const moepage_step *step)
{
    uint32_t n = 0;
    for (uint32_t i = 0; i < step->n_sequences; i++) {
        if (!step->sequences[i].seq)
            continue;
        if (n == reader->n_uses || reader->uses[n].seq != step->sequences[i].seq)
            return false;
        n++;
    }
    return n == reader->n_uses;
}

/* Tells the watch which sequences a step uses; all of them are live. */
static void tell_watch(mp_kv_reader *reader, const moepage_step *step)
{
    struct moepage_kv_pool *pool = reader->pool;
    mp_kv_watch *watch = pool->watch;
    if (!watch)
        return;
    bool again = is_same(reader, step) && ++reader->same_steps < SAME_STEPS;
    reader->same_steps = again ? reader->same_steps : 0;
    reader->n_uses = 0;
    for (uint32_t i = 0; i < step->n_sequences; i++) {
        mp_kv_sequence *sequence;
        if (!step->sequences[i].seq || mp_kv_sequence_find(pool, step->sequences[i].seq, &sequence))
            continue;
        mp_kv_sequence_use(pool, sequence, &step->sequences[i]);
        reader->uses[reader->n_uses++] =
            (mp_kv_use){.seq = sequence->id, .blocks = sequence->n_blocks};
    }
    if (reader->n_uses)
        watch->used(watch, reader->uses, reader->n_uses, mp_kv_blocks_used(&pool->blocks), again);
}

/* Stale sequences are refused here, before their KV is read. */
moepage_status mp_kv_reader_begin(mp_kv_reader *reader, const moepage_step *step)
{
    struct moepage_kv_pool *pool = reader->pool;
    moepage_status status = MOEPAGE_OK;
    pthread_mutex_lock(&pool->lock);
    for (uint32_t i = 0; i < step->n_sequences && !status; i++) {
        mp_kv_sequence *sequence;
        if (step->sequences[i].seq)
            status = mp_kv_sequence_find(pool, step->sequences[i].seq, &sequence);
    }
    if (!status) {
        tell_watch(reader, step);
        reader->step_open = true;
    }
    pthread_mutex_unlock(&pool->lock);
    return status;
}

void mp_kv_reader_end(mp_kv_reader *reader, mp_tick tick)
{
    pthread_mutex_lock(&reader->pool->lock);
    reader->step_open = false;
    reader->tick = tick;
    pthread_mutex_unlock(&reader->pool->lock);
}
