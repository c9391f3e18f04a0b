/* Finding what can be computed in host memory, and keeping it there meanwhile. */
#include "pool/in_place.h"

#include "model/dtype.h"

static mp_shard *shard_of(struct moepage_expert_pool *pool, const mp_hold *hold)
{
    return &pool->shards[hold->shard];
}

/* Kernels ask for the alignment of an element; a checkpoint's mapping promises nothing. */
static bool has_pieces(const struct moepage_model *model, uint32_t layer, uint32_t expert)
{
    if (!model->sources)
        return false;
    const void **sources = model->sources + mp_model_source_index(model, layer, expert);
    for (uint32_t p = 0; p < model->n_pieces; p++) {
        const moepage_expert_tensor *tensor = &model->tensors[model->pieces[p].tensor];
        if ((uintptr_t)sources[p] % mp_dtype_bytes(tensor->dtype))
            return false;
    }
    return true;
}

/* An image whose bytes are not what they should be is loaded in vain: that says what is wrong. */
static const unsigned char *mapped_image(const struct moepage_expert_pool *pool, uint32_t shard,
                                         uint32_t layer, uint32_t expert)
{
    mp_image image;
    mp_model_find_image(pool->model, layer, expert, MOEPAGE_FORM_DENSE, &image);
    if (!image.mapped)
        return NULL;
    if (mp_home_has_bytes(pool->shards[shard].home) &&
        mp_model_check_mapped(pool->model, layer, expert, MOEPAGE_FORM_DENSE))
        return NULL;
    return image.mapped;
}

void mp_pool_mark_in_place(const struct moepage_expert_pool *pool, mp_hold *holds, uint32_t n,
                           bool pieces)
{
    for (uint32_t i = 0; i < n; i++) {
        mp_hold *hold = &holds[i];
        const uint32_t layer = hold->key / pool->experts, expert = hold->key % pool->experts;
        hold->may_run_in_place = false;
        if (hold->kind != MP_HOLD_NONE)
            continue;
        hold->address = NULL;
        if (pool->shards[hold->shard].tier) {
            hold->may_run_in_place = pool->shards[hold->shard].tier->form == MOEPAGE_FORM_DENSE;
        } else if (mp_model_keeps_images(pool->model)) {
            hold->address = mapped_image(pool, hold->shard, layer, expert);
            hold->may_run_in_place = hold->address != NULL;
        } else {
            hold->may_run_in_place = pieces && has_pieces(pool->model, layer, expert);
        }
    }
}

/* Does a slot have the expert, all of it? */
static bool is_resident(mp_shard *shard, uint32_t key)
{
    uint32_t index = atomic_load(&shard->pool->entry[key]);
    if (index == MP_NO_SLOT)
        return false;
    mp_pool_settle(shard, index);
    return atomic_load(&shard->pool->entry[key]) == index &&
           MP_WORD_STATE(atomic_load(&shard->words[index])) == MP_SLOT_RESIDENT;
}

/* Is there an entry for others, besides those in use and this one? Loads let go of theirs when they
 * end; what is computed in its entry keeps it until its plan ends, which may itself need another. */
static bool leaves_room(const mp_host_tier *tier, uint32_t index)
{
    uint32_t other = tier->valid.oldest;
    if (tier->n_empty > 0)
        return true;
    while (other != MP_NO_ENTRY && (other == index || tier->entries[other].users > 0))
        other = tier->entries[other].newer;
    return other != MP_NO_ENTRY;
}

/* The tier keeps an image for as long as it has a user. */
static bool use_entry(mp_host_tier *tier, mp_hold *hold)
{
    uint32_t entry = mp_host_tier_find(tier, hold->key);
    if (entry == MP_NO_ENTRY || tier->entries[entry].state != MP_ENTRY_VALID ||
        !leaves_room(tier, entry))
        return false;
    mp_host_tier_use(tier, entry);
    hold->slot = entry;
    hold->address = mp_host_tier_image(tier, entry);
    return true;
}

bool mp_in_place_hold(struct moepage_expert_pool *pool, mp_hold *hold)
{
    mp_shard *shard = shard_of(pool, hold);
    if (!hold->may_run_in_place || is_resident(shard, hold->key))
        return false;
    hold->slot = MP_NO_SLOT;
    if (shard->tier && !use_entry(shard->tier, hold))
        return false;
    hold->kind = MP_HOLD_HOST;
    hold->form = MOEPAGE_FORM_DENSE;
    hold->ready = true;
    if (!(hold->scan && pool->scan_percent)) /* prefill alone does not push out what decode uses */
        mp_pool_want_missed(pool, hold->key);
    mp_prefetcher_start(&shard->prefetcher);
    return true;
}

void mp_in_place_release(struct moepage_expert_pool *pool, mp_hold *hold)
{
    hold->kind = MP_HOLD_NONE;
    hold->ready = false;
    if (hold->slot == MP_NO_SLOT)
        return;
    pthread_mutex_lock(&pool->lock);
    mp_host_tier_let_go(shard_of(pool, hold)->tier, hold->slot);
    pthread_mutex_unlock(&pool->lock);
}
