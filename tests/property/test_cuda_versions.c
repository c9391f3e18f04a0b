/* Two versions of every expert on a CUDA device whose streams lag behind: steps have ended, experts have
 * become high and low again and their places and slots have changed hands, before the kernels of those
 * steps have run. Each must read the version that its plan showed, when its turn comes. One thread acts,
 * so that a seed is a program; streams of the simulated driver run it with delays of their own. */
#include <sched.h>
#include <stdlib.h>
#include <string.h>

#include "device_rig.h"
#include "gpu.h"
#include "model/model.h"
#include "pool_inside.h"
#include "pool_rig.h"
#include "session/inside.h"
#include "sim_cuda.h"
#include "testing.h"
#include "versions_rig.h"

enum {
    LAYERS = 3,
    EXPERTS = 8,
    KEYS = LAYERS * EXPERTS,
    SESSIONS = 2,
    READS = 300, /* of experts, between two checks */
    LAG = 12,    /* copies that a stream has to do before it reads */
    ACTIONS = 900,
    MOST_ACTIONS = 20 * ACTIONS,
    MOST_STEPS = 100000
};

/* A session of a caller with a stream of its own. */
typedef struct actor {
    moepage_session *session;
    mp_cu_stream native;
    bool step, planned;
    uint32_t layer;
} actor;

/* What the file has of an expert in a form. */
typedef struct image {
    unsigned char *memory;
    const unsigned char *tensors[MOEPAGE_MAX_EXPERT_TENSORS];
    uint64_t bytes[MOEPAGE_MAX_EXPERT_TENSORS];
} image;

typedef struct promise {
    const image *image;
    unsigned char *seen; /* pinned: the expert's tensors, one after the other */
} promise;

static struct {
    uint64_t seed, random;
    versions_rig rig;
    actor actors[SESSIONS];
    image images[MP_FORMS][KEYS];
    promise promises[READS];
    uint32_t n_promises, hot;
    uint64_t room;       /* of one expert's tensors */
    unsigned char *seen; /* [READS][room] pinned */
    unsigned char *idle; /* [SESSIONS][2][room] pinned: what lagging streams copy */
} w;

#define must(condition)                                                                       \
    do {                                                                                      \
        if (!(condition))                                                                     \
            fail_msg("%s; seed %llu; last error: %s", #condition, (unsigned long long)w.seed, \
                     moepage_last_error());                                                   \
    } while (0)

static uint32_t below(uint32_t n)
{
    return bank_below(&w.random, n);
}

static mp_cuda *gpu(void)
{
    return mp_cuda_of(w.rig.device->device);
}

/* ---- what the file has ---- */

static uint32_t form_of(uint32_t dtype)
{
    return dtype == MOEPAGE_DTYPE_INT8   ? MOEPAGE_FORM_INT8
           : dtype == MOEPAGE_DTYPE_INT4 ? MOEPAGE_FORM_INT4
           : dtype == MOEPAGE_DTYPE_INT2 ? MOEPAGE_FORM_INT2
                                         : MOEPAGE_FORM_DENSE;
}

static void read_image(uint32_t form, uint32_t key, image *out)
{
    const struct moepage_model *model = w.rig.pool->model;
    const uint64_t room = (mp_model_image_room(model, form) + 4095) / 4096 * 4096;
    const mp_layout *layout = mp_model_layout(model, key / EXPERTS);
    mp_image_part parts[MOEPAGE_MAX_EXPERT_TENSORS];
    mp_image where;
    uint64_t read;
    out->memory = aligned_alloc(4096, room);
    must(out->memory &&
         !mp_model_read_image(model, key / EXPERTS, key % EXPERTS, form, out->memory, room, &read));
    mp_model_find_image(model, key / EXPERTS, key % EXPERTS, form, &where);
    if (form != MOEPAGE_FORM_DENSE)
        mp_model_find_parts(model, key / EXPERTS, key % EXPERTS, form, parts);
    for (uint32_t t = 0; t < model->info.expert_tensors; t++) {
        const bool dense = form == MOEPAGE_FORM_DENSE;
        out->bytes[t] = dense ? layout->tensors[t].bytes : parts[t].bytes;
        out->tensors[t] =
            out->memory + where.skew + (dense ? layout->tensors[t].offset : parts[t].offset);
    }
}

static const image *image_of(uint32_t layer, const moepage_plan_expert *expert)
{
    const uint32_t form = form_of(expert->dtype), key = layer * EXPERTS + expert->expert;
    image *found = &w.images[form][key];
    if (!found->memory)
        read_image(form, key, found);
    return found;
}

/* ---- the caller's side ---- */

static void copy_on(mp_cu_stream stream, void *to, const void *from, uint64_t bytes)
{
    must(!gpu()->driver->copy((mp_cu_ptr)(uintptr_t)to, (mp_cu_ptr)(uintptr_t)from, bytes, stream));
}

/* The stream is behind, then reads all tensors of the plan's experts. */
static void read_plan(const actor *a, const moepage_plan *plan)
{
    unsigned char *idle = w.idle + (uint64_t)(a - w.actors) * 2 * w.room;
    must(!mp_cuda_enter(gpu()));
    for (uint32_t i = 0; i < LAG; i++)
        copy_on(a->native, idle, idle + w.room, w.room);
    for (uint32_t e = 0; e < plan->n_experts; e++) {
        promise *p = &w.promises[w.n_promises];
        *p = (promise){image_of(plan->layer, &plan->experts[e]), w.seen + w.n_promises++ * w.room};
        unsigned char *to = p->seen;
        for (uint32_t t = 0; t < w.rig.bank.n_tensors; to += p->image->bytes[t++])
            copy_on(a->native, to, plan->experts[e].tensors[t], p->image->bytes[t]);
    }
    mp_cuda_leave(gpu());
}

static void check_promises(void)
{
    must(!mp_cuda_enter(gpu()));
    for (uint32_t i = 0; i < SESSIONS; i++)
        must(!gpu()->driver->stream_sync(w.actors[i].native));
    mp_cuda_leave(gpu());
    for (uint32_t i = 0; i < w.n_promises; i++) {
        const promise *p = &w.promises[i];
        const unsigned char *seen = p->seen;
        for (uint32_t t = 0; t < w.rig.bank.n_tensors; seen += p->image->bytes[t++])
            must(!memcmp(seen, p->image->tensors[t], p->image->bytes[t]));
    }
    w.n_promises = 0;
}

static void route(const actor *a, uint32_t layer, const int32_t *ids, uint32_t n,
                  moepage_plan *plan)
{
    float weights[EXPERTS];
    for (uint32_t i = 0; i < n; i++)
        weights[i] = 1.0f / (float)n;
    const moepage_routing routing = {.struct_size = sizeof routing,
                                     .top_k = n,
                                     .ids = ids,
                                     .weights = weights,
                                     .stream = a->native};
    must(!moepage_session_route(a->session, layer, &routing, plan));
}

static void open_actor(actor *a)
{
    const bool low = w.rig.precision.serve == MOEPAGE_SERVE_CACHE;
    const moepage_session_config config = {.struct_size = sizeof config,
                                           .max_tokens = 1,
                                           .max_top_k = EXPERTS,
                                           .miss = low ? MOEPAGE_MISS_LOW : MOEPAGE_MISS_WAIT};
    must(!moepage_session_create(w.rig.pool, NULL, &config, &a->session));
    a->step = a->planned = false;
}

/* ---- life ---- */

static void open_world(const moepage_precision_config *precision, uint64_t slots,
                       uint64_t host_tier_bytes, uint64_t seed)
{
    const bank_shape shape = {.layers = LAYERS,
                              .experts = EXPERTS,
                              .top_k = 2,
                              .hidden = 64,
                              .intermediate = 32,
                              .dtype = MOEPAGE_DTYPE_BF16,
                              .bias = true,
                              .pack_forms = 1u << MOEPAGE_FORM_DENSE | 1u << MOEPAGE_FORM_INT8 |
                                            1u << MOEPAGE_FORM_INT2,
                              .seed = seed};
    memset(&w, 0, sizeof w);
    w.seed = w.random = seed;
    w.rig.host_tier_bytes = host_tier_bytes;
    bank_model_open(&w.rig.bank, &shape);
    versions_rig_open_over(&w.rig, w.rig.bank.model, precision, slots);
    sim_cuda_jitter(seed);
    w.room = w.rig.pool->slot_bytes;
    must(!mp_cuda_enter(gpu()));
    must(!gpu()->driver->host_alloc((void **)&w.seen, (READS + 2 * SESSIONS) * w.room,
                                    MP_CU_HOST_PORTABLE));
    w.idle = w.seen + READS * w.room;
    for (uint32_t i = 0; i < SESSIONS; i++)
        must(!gpu()->driver->stream_create(&w.actors[i].native, MP_CU_STREAM_NON_BLOCKING, 0));
    mp_cuda_leave(gpu());
    for (uint32_t i = 0; i < SESSIONS; i++)
        open_actor(&w.actors[i]);
}

static void close_world(void)
{
    for (uint32_t i = 0; i < SESSIONS; i++)
        must(!moepage_session_destroy(w.actors[i].session));
    check_promises();
    must(!mp_cuda_enter(gpu()));
    for (uint32_t i = 0; i < SESSIONS; i++)
        must(!gpu()->driver->stream_destroy(w.actors[i].native));
    must(!gpu()->driver->host_free(w.seen));
    mp_cuda_leave(gpu());
    for (uint32_t f = 0; f < MP_FORMS; f++)
        for (uint32_t k = 0; k < KEYS; k++)
            free(w.images[f][k].memory);
    versions_rig_close(&w.rig);
}

/* ---- random steps ---- */

static void open_layer(actor *a)
{
    moepage_plan plan = {.struct_size = sizeof plan};
    const int32_t first = (int32_t)(w.hot % EXPERTS);
    const int32_t ids[] = {first, (first + 1) % EXPERTS,
                           (first + 2 + (int32_t)below(EXPERTS - 2)) % EXPERTS};
    a->layer = (a->layer + 1) % LAYERS;
    route(a, a->layer, ids, 3, &plan);
    read_plan(a, &plan);
    a->planned = true;
}

static void act(actor *a)
{
    const uint32_t chance = below(60);
    if (chance == 0) {
        must(!moepage_session_destroy(a->session));
        open_actor(a);
    } else if (chance == 1) {
        must(!moepage_session_cancel(a->session));
        a->step = a->planned = false;
    } else if (!a->step) {
        pool_rig_begin(a->session, 1, MOEPAGE_PHASE_DECODE);
        a->step = true;
    } else if (a->planned) {
        must(!moepage_session_retire(a->session, a->layer));
        a->planned = false;
    } else if (below(3) == 0) {
        must(!moepage_session_end(a->session, NULL));
        a->step = false;
    } else {
        open_layer(a);
    }
}

/* Have enough versions changed, where they do? They do so in a time of their own. */
static bool has_moved(const moepage_precision_config *precision)
{
    const moepage_expert_pool_info info = versions_rig_info(&w.rig);
    return precision->serve != MOEPAGE_SERVE_VERSIONS ||
           (info.promotions > 5 && info.demotions > 5);
}

static void walk(const moepage_precision_config *precision, uint64_t slots,
                 uint64_t host_tier_bytes)
{
    const char *from = getenv("MP_TEST_SEED");
    const uint64_t first = from ? strtoull(from, NULL, 10) : 1;
    const uint64_t rounds = from ? 1 : getenv("MP_TEST_LONG") ? 100 : 3;
    for (uint64_t seed = first; seed < first + rounds; seed++) {
        open_world(precision, slots, host_tier_bytes, seed);
        for (uint32_t i = 0; i < ACTIONS || (i < MOST_ACTIONS && !has_moved(precision)); i++) {
            w.hot = i / 40 * 2; /* other experts become the hot ones */
            act(&w.actors[below(SESSIONS)]);
            if (w.n_promises + EXPERTS > READS || below(100) == 0)
                check_promises();
            sched_yield();
        }
        const moepage_expert_pool_info info = versions_rig_info(&w.rig);
        if (precision->serve == MOEPAGE_SERVE_VERSIONS)
            must(info.promotions > 5 && info.demotions > 5 && info.transitions_failed == 0);
        close_world();
    }
}

static void test_cuda_versions_are_read_as_they_were_shown(void **state)
{
    (void)state;
    walk(&(moepage_precision_config){.hi_experts = 3}, 0, 0);
    walk(&(moepage_precision_config){.hi_experts = 2,
                                     .window_steps = 2,
                                     .hi_form = MOEPAGE_FORM_INT8,
                                     .transitions = 1},
         0, 1u << 20);
}

static void test_cuda_versions_that_are_fetched_are_read_as_they_were_shown(void **state)
{
    (void)state;
    walk(&(moepage_precision_config){.hi_experts = 3, .lo_fetched = 1, .margin = -1}, 0, 0);
    walk(&(moepage_precision_config){.hi_experts = 6, .lo_fetched = 1, .transitions = 8}, 0, 0);
    walk(&(moepage_precision_config){.hi_experts = 2,
                                     .lo_fetched = 1,
                                     .lo_form = MOEPAGE_FORM_INT8},
         0, 1u << 20);
}

static void test_cuda_versions_beside_a_cache_are_read_as_they_were_shown(void **state)
{
    (void)state;
    walk(&(moepage_precision_config){.serve = MOEPAGE_SERVE_CACHE}, 7, 0);
}

/* ---- one place ---- */

static const mp_swap *find_fetch_to(uint32_t place)
{
    const mp_versions *versions = w.rig.pool->versions[0];
    for (uint32_t i = 0; i < versions->n_swaps; i++)
        if (versions->swaps[i].state == MP_SWAP_FETCH && versions->swaps[i].place == place)
            return &versions->swaps[i];
    return NULL;
}

/* A step of the second session in which these two are chosen in each layer; nothing waits. */
static void step(uint32_t first)
{
    const int32_t ids[2] = {(int32_t)(first % EXPERTS), (int32_t)((first + 1) % EXPERTS)};
    (void)versions_rig_step(&w.rig, w.actors[1].session, ids, 2);
    sched_yield();
}

/* The reader of a low version is held up, its step long over and the expert high, when another's low version
 * is to be fetched to the same place: that copy waits on the device, and no step does. */
static void test_cuda_versions_are_fetched_behind_a_place_s_last_reader(void **state)
{
    (void)state;
    open_world(&(moepage_precision_config){.hi_experts = 2, .lo_fetched = 1, .margin = -1}, 0, 0,
               7);
    sim_cuda_jitter(0);
    const mp_versions *versions = w.rig.pool->versions[0];
    actor *late = &w.actors[0];
    moepage_plan plan = {.struct_size = sizeof plan};
    const int32_t id = 7; /* begins low */
    pool_rig_begin(late->session, 1, MOEPAGE_PHASE_DECODE);
    route(late, 0, &id, 1, &plan);
    must(plan.experts[0].dtype == MOEPAGE_DTYPE_INT2);
    const uint32_t place = versions->published[id];
    sim_cuda_hold(late->native);
    read_plan(late, &plan);
    must(!moepage_session_retire(late->session, 0) && !moepage_session_end(late->session, NULL));

    uint32_t s = 0;
    while (!(versions->published[id] & MP_VERSION_HIGH) && s++ < MOST_STEPS)
        step(6);
    const mp_swap *fetch = NULL;
    while (!fetch &&
           s++ < MOST_STEPS) { /* others become hot, and this one's low version is wanted */
        step(s / 20);
        fetch = find_fetch_to(place);
    }
    must(fetch && fetch->out != (uint32_t)id);
    const mp_swap wanted = *fetch;
    for (uint32_t i = 0; i < 100; i++)
        step(s / 20);
    must(find_fetch_to(place) == fetch && fetch->out == wanted.out);
    sim_cuda_release(late->native);
    check_promises();
    while (find_fetch_to(place) && s++ < MOST_STEPS)
        step(s / 20);
    must(s < MOST_STEPS && versions_rig_info(&w.rig).transitions_failed == 0);
    close_world();
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_cuda_versions_are_read_as_they_were_shown),
        cmocka_unit_test(test_cuda_versions_that_are_fetched_are_read_as_they_were_shown),
        cmocka_unit_test(test_cuda_versions_beside_a_cache_are_read_as_they_were_shown),
        cmocka_unit_test(test_cuda_versions_are_fetched_behind_a_place_s_last_reader),
    };
    setenv("MP_TEST_DEVICE", "sim", 1);
    return cmocka_run_group_tests(tests, NULL, NULL);
}
