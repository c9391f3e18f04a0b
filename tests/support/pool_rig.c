/* Devices, a pool, and a look behind its handle. */
#include "pool_rig.h"

#include <sched.h>
#include <stdlib.h>
#include <string.h>

#include "codec/exph.h"
#include "device_rig.h"
#include "policy/ring.h"
#include "pool_inside.h"
#include "testing.h"

#define WORKSPACE_BYTES (4u << 20)
#define MAX_ROUTED 64

static uint64_t round_up(uint64_t bytes, uint64_t unit)
{
    return (bytes + unit - 1) / unit * unit;
}

/* What the host tiers and the compressed experts take, in bytes. */
static uint64_t tier_bytes(const bank_model *bank, const pool_rig_config *config)
{
    uint32_t form = config->bus_form                                    ? config->bus_form
                    : mp_model_has_form(bank->model, MOEPAGE_FORM_EXPH) ? MOEPAGE_FORM_EXPH
                                                                        : MOEPAGE_FORM_DENSE;
    uint32_t devices = config->n_devices ? config->n_devices : 1;
    return devices * config->host_experts * mp_model_image_room(bank->model, form);
}

static uint64_t compressed_bytes(const bank_model *bank, const pool_rig_config *config)
{
    uint64_t unit = round_up(mp_model_most_bytes(bank->model, MOEPAGE_FORM_EXPH), 256);
    return round_up((uint64_t)config->compressed * bank->shape.layers * unit,
                    bank->model->info.slot_bytes);
}

void pool_rig_open(pool_rig *rig, bank_model *bank, const pool_rig_config *config)
{
    moepage_model_info model = {.struct_size = sizeof model};
    assert_int_equal(moepage_model_get_info(bank->model, &model), MOEPAGE_OK);
    uint64_t experts = (uint64_t)bank->shape.layers * bank->shape.experts;
    const uint64_t most_slots = config->arena_slots ? config->arena_slots : experts;
    *rig = (pool_rig){.bank = bank, .n_devices = config->n_devices ? config->n_devices : 1};
    if (device_rig_is_cuda() && !device_rig_is_simulated()) /* there may be one alone */
        rig->n_devices = 1;
    device_rig_allow_peers(!config->no_peers);
    for (uint32_t d = 0; d < rig->n_devices; d++) {
        uint64_t slots = d > 0 && config->smaller_slots ? config->smaller_slots : most_slots;
        const moepage_device_config device = {
            .struct_size = sizeof device,
            .threads = config->threads ? config->threads : 1,
            .workspace_bytes = WORKSPACE_BYTES,
            .budget_bytes = WORKSPACE_BYTES +
                            round_up(slots * model.slot_bytes + compressed_bytes(bank, config),
                                     device_rig_is_cuda() ? 2u << 20 : 4096),
            .bus_bytes_per_s = config->bus_bytes_per_s,
            .io_threads = config->io_threads,
        };
        rig->devices[d] = device_rig_open_nth(&device, d);
    }
    moepage_expert_pool_config pool = {
        .struct_size = sizeof pool,
        .scope = config->scope,
        .slots = config->slots,
        .policy = config->policy,
        .scan_percent = config->scan_percent,
        .chunk_bytes = config->chunk_bytes,
        .host_tier_bytes = tier_bytes(bank, config),
        .bus_form = config->bus_form,
        .compressed_experts = config->compressed,
        .staging_experts = config->staging,
        .slot_form = config->slot_form,
        .precision = config->precision,
    };
    assert_int_equal(moepage_expert_pool_create(rig->devices, rig->n_devices, bank->model, &pool,
                                                &rig->pool),
                     MOEPAGE_OK);
}

moepage_expert_pool_info pool_rig_info(pool_rig *rig)
{
    moepage_expert_pool_info info = {.struct_size = sizeof info};
    assert_int_equal(moepage_expert_pool_get_info(rig->pool, &info), MOEPAGE_OK);
    return info;
}

uint32_t pool_rig_state(pool_rig *rig, uint32_t layer, uint32_t expert)
{
    moepage_residency residency = {.struct_size = sizeof residency};
    assert_int_equal(moepage_expert_pool_lookup(rig->pool, layer, expert, &residency), MOEPAGE_OK);
    assert_int_equal(residency.state == MOEPAGE_EXPERT_ABSENT, residency.slot < 0);
    return residency.state;
}

/* ---- what must hold ---- */

void pool_rig_wait(pool_rig *rig)
{
    /* In this order: a want that is just becoming a load is for a moment not pending. */
    while (atomic_load(&rig->pool->ahead->pending) > 0 || pool_rig_info(rig).loading > 0)
        sched_yield();
}

/* Is that the expert's image in an integer form, as the model's file has it? */
static bool integers_match(const pool_rig *rig, uint32_t key, uint32_t form,
                           const unsigned char *image)
{
    const moepage_model *model = rig->pool->model;
    uint32_t layer = key / model->info.experts, expert = key % model->info.experts;
    uint64_t room = mp_model_image_room(model, form), read_bytes;
    unsigned char *read = aligned_alloc(4096, (room + 4095) / 4096 * 4096);
    assert_non_null(read);
    mp_image found;
    mp_model_find_image(model, layer, expert, form, &found);
    assert_int_equal(mp_model_read_image(model, layer, expert, form, read, room, &read_bytes),
                     MOEPAGE_OK);
    bool matches = !memcmp(read + found.skew, image, found.bytes);
    free(read);
    return matches;
}

static bool slot_matches(const pool_rig *rig, moepage_device *device, uint32_t key,
                         const unsigned char *slot)
{
    if (mp_quant_bits_of(rig->pool->slot_form)) {
        unsigned char *image = malloc(rig->pool->slot_bytes);
        assert_non_null(image);
        device_rig_read(device, slot, image, rig->pool->slot_bytes);
        bool same = integers_match(rig, key, rig->pool->slot_form, image);
        free(image);
        return same;
    }
    const bank_model *bank = rig->bank;
    const void *tensors[MOEPAGE_MAX_EXPERT_TENSORS];
    const mp_layout *layout = mp_model_layout(rig->pool->model, key / bank->shape.experts);
    unsigned char *bytes = malloc(layout->slot_bytes);
    assert_non_null(bytes);
    device_rig_read(device, slot, bytes, layout->slot_bytes);
    for (uint32_t t = 0; t < bank->n_tensors; t++)
        tensors[t] = bytes + layout->tensors[t].offset;
    bool matches =
        bank_model_matches(bank, key / bank->shape.experts, key % bank->shape.experts, tensors);
    free(bytes);
    return matches;
}

bool pool_rig_holds(const pool_rig *rig, uint32_t layer, const moepage_plan_expert *expert)
{
    const unsigned char *slot = expert->tensors[0];
    if (expert->device > 0)
        device_rig_wait(rig->devices[0]);
    return slot_matches(rig, rig->devices[expert->device],
                        layer * rig->bank->shape.experts + expert->expert,
                        slot - mp_model_layout(rig->pool->model, layer)->tensors[0].offset);
}

static void check_resident(pool_rig *rig, mp_shard *shard, uint32_t slot, uint64_t word)
{
    uint32_t key = MP_WORD_KEY(word);
    assert_int_equal(atomic_load(&rig->pool->cache->entry[key]), slot);
    assert_int_equal(MP_WORD_USERS(word), shard->slots[slot].pins > 0);
    assert_true(slot_matches(rig, shard->transfer->home, key, shard->address[slot]));
}

/* Is this image, in that form, the expert? */
static bool image_matches(const pool_rig *rig, uint32_t key, uint32_t form,
                          const unsigned char *image)
{
    if (mp_quant_bits_of(form))
        return integers_match(rig, key, form, image);
    const struct moepage_model *model = rig->pool->model;
    uint32_t layer = key / rig->pool->experts, expert = key % rig->pool->experts;
    const void *tensors[MOEPAGE_MAX_EXPERT_TENSORS];
    unsigned char *slot = calloc(1, model->info.slot_bytes);
    assert_non_null(slot);
    if (form == MOEPAGE_FORM_DENSE)
        memcpy(slot, image, mp_model_layout(model, layer)->slot_bytes);
    mp_decode_job jobs[MOEPAGE_MAX_EXPERT_TENSORS];
    if (form == MOEPAGE_FORM_EXPH)
        mp_decode_describe(rig->pool->transfers[0], key, image, slot, jobs);
    for (uint32_t t = 0; t < model->info.expert_tensors; t++) {
        tensors[t] = slot + mp_model_layout(model, layer)->tensors[t].offset;
        if (form == MOEPAGE_FORM_EXPH && jobs[t].form == MOEPAGE_FORM_EXPH)
            mp_exph_decode(mp_exph_decoder_best(), jobs[t].src, jobs[t].src_bytes, jobs[t].dtype,
                           jobs[t].elements, 0, mp_exph_chunks(jobs[t].elements), jobs[t].dst);
        else if (form == MOEPAGE_FORM_EXPH)
            memcpy(jobs[t].dst, jobs[t].src, jobs[t].src_bytes);
    }
    bool matches = bank_model_matches(rig->bank, layer, expert, tensors);
    free(slot);
    return matches;
}

/* Nothing is under way: no staging buffer is taken, no entry has a user, and every image is its
 * expert's. */
static void check_tier(pool_rig *rig, mp_shard *shard)
{
    mp_host_tier *tier = shard->transfer->tier;
    for (uint32_t b = 0; b < shard->transfer->staging.n; b++)
        assert_int_equal(shard->transfer->staging.buffers[b].passage, MP_NO_PASSAGE);
    for (uint32_t e = 0; tier && e < tier->n_entries; e++) {
        const mp_host_entry *entry = &tier->entries[e];
        assert_int_equal(entry->users, 0);
        if (entry->state == MP_ENTRY_VALID)
            assert_true(image_matches(rig, entry->key, tier->form, mp_host_tier_image(tier, e)));
    }
    const mp_compressed *compressed = &shard->transfer->compressed;
    unsigned char *image = malloc(compressed->unit + 1);
    assert_non_null(image);
    for (uint32_t key = 0; compressed->place_of && key < rig->pool->keys; key++) {
        if (compressed->place_of[key] == MP_NO_SLOT)
            continue;
        device_rig_read(shard->transfer->home,
                        compressed->memory + compressed->place_of[key] * compressed->unit, image,
                        compressed->unit);
        assert_true(image_matches(rig, key, MOEPAGE_FORM_EXPH, image));
    }
    free(image);
}

static uint32_t ring_length(const mp_shard *shard, uint32_t sentinel)
{
    uint32_t n = 0;
    for (uint32_t at = shard->window[sentinel].next; at != sentinel; at = shard->window[at].next)
        n++;
    return n;
}

/* Every slot in use is kept or in the window, and is counted there. */
static void check_window(pool_rig *rig, const mp_shard *shard)
{
    uint32_t places[3] = {0}, transients = 0;
    for (uint32_t l = 0; l < rig->pool->layers; l++) {
        uint32_t kept = 0;
        for (uint32_t s = 0; s < shard->max_slots; s++) {
            uint64_t word = atomic_load(&shard->words[s]);
            if (word == 0 || MP_WORD_KEY(word) / rig->pool->experts != l)
                continue;
            places[shard->slots[s].place]++;
            kept += shard->slots[s].place == MP_PLACE_KEPT;
            assert_int_equal(shard->slots[s].ranked, shard->slots[s].place == MP_PLACE_KEPT);
        }
        assert_int_equal(shard->kept[l], kept);
    }
    for (uint32_t i = 0; i < rig->pool->cache->n_scopes; i++)
        transients += shard->scopes[i].transients;
    assert_int_equal(transients, places[MP_PLACE_AHEAD] + places[MP_PLACE_PAST]);
    assert_int_equal(ring_length(shard, shard->max_slots), places[MP_PLACE_AHEAD]);
    assert_int_equal(ring_length(shard, shard->max_slots + 1), places[MP_PLACE_PAST]);
}

void pool_rig_check(pool_rig *rig)
{
    pool_rig_wait(rig);
    const bank_model *bank = rig->bank; /* its smallest experts */
    uint64_t bank_bytes =
        bank->odd_bytes < bank->expert_bytes ? bank->odd_bytes : bank->expert_bytes;
    uint32_t mapped = 0, resident = 0;
    for (uint32_t key = 0; key < rig->pool->keys; key++)
        mapped += atomic_load(&rig->pool->cache->entry[key]) != MP_NO_SLOT;
    for (uint32_t d = 0; d < rig->n_devices; d++) {
        mp_shard *shard = &rig->pool->cache->shards[d];
        uint32_t free_slots = 0, stacked = 0, used = 0;
        for (uint32_t s = shard->all.first; s < shard->all.end; s++) {
            uint64_t word = atomic_load(&shard->words[s]);
            free_slots += word == 0;
            if (word == 0)
                continue;
            assert_int_equal(MP_WORD_STATE(word), MP_SLOT_RESIDENT);
            check_resident(rig, shard, s, word);
            resident++;
        }
        for (uint32_t c = 0; c < rig->pool->bundle.n_classes; c++)
            stacked += shard->free[c].n;
        assert_int_equal(stacked, free_slots);
        for (uint32_t i = 0; i < rig->pool->cache->n_scopes; i++) {
            assert_true(shard->scopes[i].used <= atomic_load(&shard->scopes[i].capacity));
            used += shard->scopes[i].used;
        }
        assert_int_equal(used + free_slots, pool_slots(shard));
        moepage_device_info device = {.struct_size = sizeof device};
        assert_int_equal(moepage_device_get_info(rig->devices[d], &device), MOEPAGE_OK);
        assert_int_equal(device.arena_expert_bytes,
                         mp_bundle_bytes(&rig->pool->bundle, shard->all.end));
        assert_true(shard->transfer->compressed.n * shard->transfer->compressed.unit <=
                    shard->all.first * rig->pool->slot_bytes);
        check_tier(rig, shard);
        check_window(rig, shard);
        assert_true(device.peak_bytes <= device.budget_bytes);
    }
    assert_int_equal(mapped, resident);
    moepage_expert_pool_info info = pool_rig_info(rig);
    assert_int_equal(info.resident, resident);
    assert_true(info.prefetch_late <= info.prefetch_useful);
    assert_true(info.prefetch_useful_bytes + info.prefetch_late_bytes +
                    info.prefetch_wasted_bytes <=
                info.prefetch_bytes);
    if (rig->pool->slot_form == MOEPAGE_FORM_DENSE && rig->pool->bus_form == MOEPAGE_FORM_DENSE &&
        !info.compressed_experts)
        assert_true(info.evictions * bank_bytes <= info.demand_bytes + info.prefetch_bytes);
}

void pool_rig_close(pool_rig *rig)
{
    pool_rig_check(rig);
    assert_int_equal(moepage_expert_pool_destroy(rig->pool), MOEPAGE_OK);
    for (uint32_t d = 0; d < rig->n_devices; d++) {
        moepage_device_info device = {.struct_size = sizeof device};
        assert_int_equal(moepage_device_get_info(rig->devices[d], &device), MOEPAGE_OK);
        assert_int_equal(device.used_bytes, 0);
        device_rig_close(rig->devices[d]);
    }
}

/* ---- sessions ---- */

moepage_session *pool_rig_session(pool_rig *rig, const moepage_session_config *config)
{
    moepage_session_config own = {0};
    if (config)
        own = *config;
    own.struct_size = sizeof own;
    moepage_session *session = NULL;
    assert_int_equal(moepage_session_create(rig->pool, NULL, &own, &session), MOEPAGE_OK);
    return session;
}

void pool_rig_begin(moepage_session *session, uint32_t n_tokens, uint32_t phase)
{
    moepage_step step = {.struct_size = sizeof step, .n_tokens = n_tokens, .phase = phase};
    assert_int_equal(moepage_session_begin(session, &step), MOEPAGE_OK);
}

moepage_status pool_rig_route(moepage_session *session, uint32_t layer, const int32_t *ids,
                              uint32_t n, moepage_plan *plan)
{
    float weights[MAX_ROUTED];
    assert_true(n <= MAX_ROUTED);
    for (uint32_t i = 0; i < n; i++)
        weights[i] = 1.0f / (float)n;
    moepage_routing routing = {.struct_size = sizeof routing,
                               .top_k = n,
                               .ids = ids,
                               .weights = weights};
    return moepage_session_route(session, layer, &routing, plan);
}

void pool_rig_visit(moepage_session *session, uint32_t layer, const int32_t *ids, uint32_t n)
{
    moepage_plan plan = {.struct_size = sizeof plan};
    pool_rig_begin(session, 1, MOEPAGE_PHASE_DECODE);
    assert_int_equal(pool_rig_route(session, layer, ids, n, &plan), MOEPAGE_OK);
    while (plan.group + 1 < plan.n_groups)
        assert_int_equal(moepage_session_next_group(session, layer, &plan), MOEPAGE_OK);
    assert_int_equal(moepage_session_retire(session, layer), MOEPAGE_OK);
    assert_int_equal(moepage_session_end(session, NULL), MOEPAGE_OK);
}
