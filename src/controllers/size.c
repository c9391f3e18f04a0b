/* What users need: windows over their predictors' counts, and the union. */
#include "controllers/size.h"

#include <string.h>

#include "base/alloc.h"
#include "base/status.h"

#define EPOCH_BURSTS 16u
#define FALL 16u /* a cap falls by more than one part in so many */

static uint64_t keys_of(const mp_size *size)
{
    return (uint64_t)size->layers * size->experts;
}

/* ---- life ---- */

static void close_user(mp_size_user *user)
{
    if (user->predictor)
        mp_predictor_release(user->predictor);
    mp_free(user->known);
    mp_free(user->older);
    mp_free(user->newer);
    mp_free(user->needs);
}

static moepage_status open_user(mp_size_user *user, const struct moepage_model *model,
                                struct moepage_predictor *predictor, uint64_t keys)
{
    moepage_status status = mp_predictor_check_uses(predictor);
    if (!status)
        status = mp_predictor_hold(predictor, &model->info);
    if (status)
        return status;
    *user = (mp_size_user){.predictor = predictor, .set = {.unseen = 1}, .idle = EPOCH_BURSTS};
    user->known = mp_alloc_array(keys, sizeof *user->known);
    user->older = mp_alloc_array(keys, sizeof *user->older);
    user->newer = mp_alloc_array(keys, sizeof *user->newer);
    user->needs = mp_alloc_array(keys, sizeof *user->needs);
    bool whole = user->known && user->older && user->newer && user->needs;
    return whole ? MOEPAGE_OK : mp_fail(MOEPAGE_E_NO_MEMORY, "no memory to size a working set");
}

static moepage_status open_scratch(mp_size *size)
{
    const uint64_t keys = keys_of(size);
    size->users = mp_alloc_array(size->n, sizeof *size->users);
    size->uses = mp_alloc_array(keys, sizeof *size->uses);
    size->recent = mp_alloc_array(keys, sizeof *size->recent);
    size->needs = mp_alloc_array(keys, sizeof *size->needs);
    bool whole = size->users && size->uses && size->recent && size->needs;
    return whole ? MOEPAGE_OK
                 : mp_fail(MOEPAGE_E_NO_MEMORY, "no memory to size %u working sets", size->n);
}

moepage_status mp_size_open(mp_size *size, const struct moepage_model *model,
                            struct moepage_predictor *const *predictors, uint32_t n,
                            double coverage)
{
    *size = (mp_size){.n = n,
                      .layers = model->info.moe_layers,
                      .experts = model->info.experts,
                      .coverage = coverage};
    moepage_status status = n ? open_scratch(size) : MOEPAGE_OK;
    for (uint32_t i = 0; i < n && !status; i++) {
        status = open_user(&size->users[i], model, predictors[i], keys_of(size));
        if (status)
            status = mp_fail_within(status, "predictors[%u]", i);
    }
    if (status)
        mp_size_close(size);
    return status;
}

void mp_size_close(mp_size *size)
{
    for (uint32_t i = 0; size->users && i < size->n; i++)
        close_user(&size->users[i]);
    mp_free(size->users);
    mp_free(size->uses);
    mp_free(size->recent);
    mp_free(size->needs);
    *size = (mp_size){0};
}

/* ---- one user ---- */

static uint32_t add(uint32_t a, uint32_t b)
{
    return a < UINT32_MAX - b ? a + b : UINT32_MAX;
}

static uint64_t count_marks(const uint8_t *marks, uint64_t n)
{
    uint64_t marked = 0;
    for (uint64_t i = 0; i < n; i++)
        marked += marks[i];
    return marked;
}

/* Computes the uses since the last burst's end, in size->recent, and adds them to the window. Returns false if there are
 * none. Counts that have fallen are those of a file that was loaded. */
static bool take_uses(mp_size *size, mp_size_user *user)
{
    bool any = false;
    mp_predictor_uses(user->predictor, size->uses);
    for (uint64_t i = 0; i < keys_of(size); i++) {
        const uint32_t now = size->uses[i], known = user->known[i];
        size->recent[i] = now >= known ? now - known : now;
        user->known[i] = now;
        user->newer[i] = add(user->newer[i], size->recent[i]);
        any = any || size->recent[i];
    }
    return any;
}

/* Forgets the older part once the newer one is long enough, and enough. */
static void turn_window(const mp_size *size, mp_size_user *user)
{
    mp_working_set set;
    if (user->bursts < EPOCH_BURSTS ||
        !mp_rightsize_surely(user->newer, keys_of(size), size->coverage, &set))
        return;
    uint32_t *older = user->older;
    user->older = user->newer;
    user->newer = older;
    memset(user->newer, 0, keys_of(size) * sizeof *user->newer);
    user->bursts = 0;
}

static void size_user(mp_size *size, mp_size_user *user)
{
    const uint64_t keys = keys_of(size);
    if (!take_uses(size, user)) {
        user->idle += user->idle < EPOCH_BURSTS;
        return;
    }
    user->idle = 0;
    user->bursts++;
    for (uint64_t i = 0; i < keys; i++)
        size->uses[i] = add(user->older[i], user->newer[i]);
    const bool sure = mp_rightsize_surely(size->uses, keys, size->coverage, &user->set);
    memset(user->needs, 0, keys);
    mp_rightsize_mark(size->uses, keys, user->set.experts, user->needs);
    mp_rightsize_mark(size->recent, keys, mp_rightsize_seen(size->recent, keys, size->coverage),
                      user->needs);
    user->experts = sure ? count_marks(user->needs, keys) : 0;
    turn_window(size, user);
}

/* ---- all of them ---- */

/* Returns the experts that compete with each other: the fullest layer's if layers do not, else all. */
static uint64_t competing(const mp_size *size, bool divided)
{
    uint64_t most = 0;
    for (uint32_t l = 0; divided && l < size->layers; l++) {
        const uint64_t n = count_marks(size->needs + (uint64_t)l * size->experts, size->experts);
        most = n > most ? n : most;
    }
    return divided ? most : size->needed;
}

static void unite(mp_size *size)
{
    bool sure = true;
    memset(size->needs, 0, keys_of(size));
    for (uint32_t u = 0; u < size->n; u++) {
        const mp_size_user *user = &size->users[u];
        if (user->idle == EPOCH_BURSTS)
            continue;
        sure = sure && user->experts;
        for (uint64_t i = 0; i < keys_of(size); i++)
            size->needs[i] |= user->needs[i];
    }
    size->needed = sure ? count_marks(size->needs, keys_of(size)) : 0;
}

void mp_size_burst(mp_size *size, bool divided)
{
    if (!size->n)
        return;
    for (uint32_t i = 0; i < size->n; i++)
        size_user(size, &size->users[i]);
    unite(size);
    const uint64_t next = size->needed ? competing(size, divided) : 0;
    if (!next || next > size->competing || next < size->competing - size->competing / FALL)
        size->competing = next;
}
