/* How many decode steps a second the stack does over the simulated device, on one thread.
 * Not part of any suite; docs/format-machine.md has the command and what came out.
 *
 *   bench_sim [steps] [machine]
 *
 * The shape is Qwen3-30B-A3B's: 48 layers of 128 experts, top 8, one token a step; the pool holds
 * half of the experts, under LRU. Routing follows itself: each token keeps some of the experts that
 * the one before it had in that layer and takes others by a skewed draw, so that a tenth to a third
 * misses. Every step begins, routes, runs and retires each layer, and ends. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "arena/home.h"
#include "moepage.h"
#include "simulated/phantom.h"
#include "simulated/sim.h"

enum { LAYERS = 48, EXPERTS = 128, TOP_K = 8, HIDDEN = 2048 };

static const mp_phantom_shape shape = {
    .name = "qwen3-30b-a3b",
    .layers = LAYERS,
    .moe_layers = LAYERS,
    .experts = EXPERTS,
    .top_k = TOP_K,
    .hidden = HIDDEN,
    .expert_intermediate = 768,
    .dtype = MOEPAGE_DTYPE_BF16,
};

static void must(moepage_status status, const char *what)
{
    if (!status)
        return;
    fprintf(stderr, "%s: %s\n", what, moepage_last_error());
    exit(1);
}
#define MUST(call) must((call), #call)

static double cpu_seconds(void)
{
    struct timespec now;
    clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &now);
    return (double)now.tv_sec + (double)now.tv_nsec * 1e-9;
}

static uint64_t random_next(uint64_t *state)
{
    uint64_t x = *state += 0x9e3779b97f4a7c15u;
    x = (x ^ x >> 30) * 0xbf58476d1ce4e5b9u;
    x = (x ^ x >> 27) * 0x94d049bb133111ebu;
    return x ^ x >> 31;
}

/* The lower of three draws: low ranks are routed more often. Each layer has its own ranking. */
static int32_t draw(uint64_t *state, uint32_t layer)
{
    uint64_t bits = random_next(state);
    uint32_t rank = EXPERTS;
    for (int i = 0; i < 3; i++, bits >>= 16) {
        uint32_t one = (uint32_t)(bits & 0xffff) * EXPERTS >> 16;
        rank = one < rank ? one : rank;
    }
    return (int32_t)((rank * 37 + layer * 11) % EXPERTS);
}

static void route(uint64_t *state, uint32_t layer, int32_t ids[TOP_K])
{
    for (uint32_t k = 0; k < TOP_K; k++) {
        if (random_next(state) % 100 < 40) /* adjacent tokens agree that often */
            continue;
        bool again = true;
        while (again) {
            ids[k] = draw(state, layer);
            again = false;
            for (uint32_t j = 0; j < TOP_K; j++)
                again |= j != k && ids[j] == ids[k];
        }
    }
}

typedef struct trail {
    uint32_t steps;
    uint8_t (*ids)[LAYERS][TOP_K];
} trail;

/* Drawn ahead, so that it is not timed. */
static trail draw_trail(uint32_t steps)
{
    trail out = {steps, malloc(steps * sizeof *out.ids)};
    static int32_t now[LAYERS][TOP_K];
    uint64_t state = 1;
    if (!out.ids)
        exit(1);
    for (uint32_t l = 0; l < LAYERS; l++)
        for (uint32_t k = 0; k < TOP_K; k++)
            now[l][k] = (int32_t)k;
    for (uint32_t s = 0; s < steps; s++)
        for (uint32_t l = 0; l < LAYERS; l++) {
            route(&state, l, now[l]);
            for (uint32_t k = 0; k < TOP_K; k++)
                out.ids[s][l][k] = (uint8_t)now[l][k];
        }
    return out;
}

static void run_layer(moepage_session *session, mp_device *device, uint32_t layer,
                      const uint8_t *trail_ids, const moepage_ffn *ffn)
{
    static const float weights[TOP_K] = {.125f, .125f, .125f, .125f, .125f, .125f, .125f, .125f};
    int32_t ids[TOP_K];
    for (uint32_t k = 0; k < TOP_K; k++)
        ids[k] = trail_ids[k];
    moepage_routing routing = {.struct_size = sizeof routing,
                               .top_k = TOP_K,
                               .ids = ids,
                               .weights = weights};
    mp_sim_work(device, 75000000, 40000000); /* attention, router */
    MUST(moepage_session_route(session, layer, &routing, NULL));
    MUST(moepage_session_ffn(session, layer, ffn));
    MUST(moepage_session_retire(session, layer));
}

static void run_steps(moepage_session *session, mp_device *device, const trail *from,
                      uint32_t steps)
{
    static uint16_t x[HIDDEN], y[HIDDEN];
    moepage_ffn ffn = {.struct_size = sizeof ffn, .dtype = MOEPAGE_DTYPE_BF16, .x = x, .y = y};
    moepage_step step = {.struct_size = sizeof step, .n_tokens = 1};
    for (uint32_t s = 0; s < steps; s++) {
        MUST(moepage_session_begin(session, &step));
        for (uint32_t l = 0; l < LAYERS; l++)
            run_layer(session, device, l, from->ids[s % from->steps][l], &ffn);
        MUST(moepage_session_end(session, NULL));
    }
}

int main(int argc, char **argv)
{
    const uint32_t steps = argc > 1 ? (uint32_t)atoi(argv[1]) : 20000;
    const char *machine = argc > 2 ? argv[2] : "examples/machines/h100-pcie5.json";
    char name[512];
    mp_sim_register();
    snprintf(name, sizeof name, "sim:%s", machine);
    trail from = draw_trail(4000);

    moepage_model *model;
    MUST(mp_model_open_phantom(&shape, &model));
    moepage_model_info info = {.struct_size = sizeof info};
    MUST(moepage_model_get_info(model, &info));
    const uint64_t slots = LAYERS * EXPERTS / 2;
    moepage_device_config config = {.struct_size = sizeof config,
                                    .workspace_bytes = 64u << 20,
                                    .budget_bytes = (64u << 20) + slots * info.slot_bytes};
    moepage_device *device;
    MUST(moepage_device_open(name, &config, &device));
    moepage_expert_pool_config pool_config = {.struct_size = sizeof pool_config,
                                              .slots = slots,
                                              .policy = "lru"};
    moepage_expert_pool *pool;
    MUST(moepage_expert_pool_create(&device, 1, model, &pool_config, &pool));
    moepage_session_config session_config = {.struct_size = sizeof session_config,
                                             .max_tokens = 1,
                                             .math = MOEPAGE_MATH_BF16,
                                             .regime = MOEPAGE_REGIME_CACHE};
    moepage_session *session;
    MUST(moepage_session_create(pool, NULL, &session_config, &session));

    run_steps(session, device->device, &from, 500);
    moepage_session_stats before = {.struct_size = sizeof before}, after = before;
    MUST(moepage_session_get_stats(session, &before));
    double began = cpu_seconds();
    run_steps(session, device->device, &from, steps);
    double seconds = cpu_seconds() - began;
    MUST(moepage_session_get_stats(session, &after));
    mp_sim_usage usage;
    mp_sim_get_usage(device->device, &usage);
    printf("%u steps in %.2f s of one core: %.0f steps/s, %.0f ns per layer\n", steps, seconds,
           steps / seconds, seconds * 1e9 / steps / LAYERS);
    printf("misses %.1f %%, %.2f ms of virtual time per step, %.1f events per layer\n",
           100.0 * (double)(after.misses - before.misses) / (double)(after.routed - before.routed),
           (double)(after.wall_ns - before.wall_ns) * 1e-6 / steps,
           (double)usage.events / (double)after.layers);

    MUST(moepage_session_destroy(session));
    MUST(moepage_expert_pool_destroy(pool));
    MUST(moepage_device_close(device));
    MUST(moepage_model_close(model));
    free(from.ids);
    return 0;
}
