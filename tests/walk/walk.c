/* Which functions of the library one routed layer enters: "hit" with all of its experts in slots, "miss"
 * with none, "tier" with none and a host tier between them and the checkpoint. Prints the address of
 * each function entered, once, as an offset into this program; walk.sh gives them names.
 *
 * The library is built so that every function reports its entry (-finstrument-functions). */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <moepage.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define OK(call)                                               \
    if (call) {                                                \
        fprintf(stderr, #call ": %s\n", moepage_last_error()); \
        exit(1);                                               \
    }

enum { EXPERTS = 8, MOST = 4096 };

static _Atomic int watching;
static _Atomic(void *) entered[MOST];

__attribute__((no_instrument_function)) void __cyg_profile_func_enter(void *function, void *caller);
__attribute__((no_instrument_function)) void __cyg_profile_func_exit(void *function, void *caller);

void __cyg_profile_func_enter(void *function, void *caller)
{
    (void)caller;
    for (int i = 0; atomic_load(&watching) && i < MOST; i++) {
        void *none = NULL;
        if (atomic_load(&entered[i]) == function ||
            atomic_compare_exchange_strong(&entered[i], &none, function) || none == function)
            return;
    }
}

void __cyg_profile_func_exit(void *function, void *caller)
{
    (void)function;
    (void)caller;
}

static void route(moepage_session *session, int watched)
{
    static const int32_t ids[EXPERTS] = {0, 1, 2, 3, 4, 5, 6, 7};
    static const float weights[EXPERTS] = {1, 1, 1, 1, 1, 1, 1, 1};
    moepage_step step = {.struct_size = sizeof step, .n_tokens = 1};
    moepage_routing routing = {.struct_size = sizeof routing,
                               .top_k = EXPERTS,
                               .ids = ids,
                               .weights = weights};
    moepage_plan plan = {.struct_size = sizeof plan};
    OK(moepage_session_begin(session, &step));
    atomic_store(&watching, watched);
    OK(moepage_session_route(session, 0, &routing, &plan));
    atomic_store(&watching, 0);
    OK(moepage_session_retire(session, 0));
    OK(moepage_session_end(session, NULL));
}

int main(int argc, char **argv)
{
    const char *what = argc > 2 ? argv[2] : "";
    moepage_model *model = NULL;
    moepage_device *device = NULL;
    moepage_expert_pool *pool = NULL;
    moepage_session *session = NULL;
    moepage_device_config budget = {.struct_size = sizeof budget,
                                    .budget_bytes = 256u << 20,
                                    .workspace_bytes = 64u << 20};
    moepage_expert_pool_config slots = {.struct_size = sizeof slots,
                                        .host_tier_bytes = strcmp(what, "tier") ? 0 : 64u << 20};
    moepage_session_config config = {.struct_size = sizeof config,
                                     .max_tokens = 4,
                                     .max_top_k = EXPERTS,
                                     .regime = MOEPAGE_REGIME_CACHE};
    Dl_info self;
    if (argc != 3 || (strcmp(what, "hit") && strcmp(what, "miss") && strcmp(what, "tier"))) {
        fprintf(stderr, "usage: walk CHECKPOINT hit|miss|tier\n");
        return 2;
    }
    OK(moepage_model_open(argv[1], NULL, &model));
    OK(moepage_device_open("host", &budget, &device));
    OK(moepage_expert_pool_create(&device, 1, model, &slots, &pool));
    OK(moepage_session_create(pool, NULL, &config, &session));
    if (!strcmp(what, "hit"))
        route(session, 0);
    route(session, 1);
    if (!dladdr((void *)(uintptr_t)main, &self))
        return 1;
    for (int i = 0; i < MOST && entered[i]; i++)
        printf("%#zx\n", (size_t)((char *)entered[i] - (char *)self.dli_fbase));
    OK(moepage_session_destroy(session));
    OK(moepage_expert_pool_destroy(pool));
    OK(moepage_device_close(device));
    OK(moepage_model_close(model));
    return 0;
}
