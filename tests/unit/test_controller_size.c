/* Caps per user: against counting and sorting, over live pools. */
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "control_rig.h"
#include "features/shared_predictor.h"
#include "moe_maker.h"
#include "testing.h"

enum { LAYERS = 2, EXPERTS = 32, KEYS = LAYERS * EXPERTS, TOP_K = 4, ARENA = 80, USERS = 3 };

/* A part that a small sample can bound, so that caps are there after a thousand choices. */
#define PERMILLE 900u
#define EPOCH 16 /* bursts that a user is remembered for, at least */

typedef struct user {
    moepage_predictor *predictor;
    mp_predict_context context;
    uint32_t uses[KEYS]; /* what it has been taught */
} user;

static control_rig rig;
static user users[USERS];
static uint64_t random_state;
static uint32_t steps; /* of a burst */

#define OK(call) assert_int_equal(call, MOEPAGE_OK)

static void open_user(user *u, const char *name)
{
    memset(u, 0, sizeof *u);
    OK(moepage_predictor_create(rig.bank.model, &MOEPAGE_PREDICTOR_CONFIG(.name = name),
                                &u->predictor));
    OK(mp_predictor_context_open(u->predictor, &u->context));
    mp_predictor_request(u->predictor, &u->context);
}

static void close_user(user *u)
{
    mp_predictor_context_close(&u->context);
    OK(moepage_predictor_destroy(u->predictor));
}

static void open_all(moepage_controller_config control, uint32_t scope)
{
    random_state = 11;
    control_rig_open(
        &rig, &(control_rig_config){.bank = {.layers = LAYERS,
                                             .experts = EXPERTS,
                                             .top_k = TOP_K,
                                             .hidden = 16,
                                             .intermediate = 8,
                                             .seed = 5},
                                    .pool = {.slots = 40, .arena_slots = ARENA, .scope = scope},
                                    .blocks = ARENA - 40,
                                    .block_tokens = 4,
                                    .blocks_per_slot = 1,
                                    .regime = MOEPAGE_REGIME_CACHE});
    control.burst_steps = control.burst_steps ? control.burst_steps : 1;
    steps = control.burst_steps;
    control.context_tokens = 4;
    control_rig_attach(&rig, control);
    for (uint32_t i = 0; i < USERS; i++)
        open_user(&users[i], "coactivation");
}

static void close_all(void)
{
    OK(moepage_controller_destroy(rig.controller));
    rig.controller = NULL;
    for (uint32_t i = 0; i < USERS; i++)
        close_user(&users[i]);
    control_rig_close(&rig);
}

static void serve(uint32_t n, uint32_t permille)
{
    moepage_predictor *predictors[USERS];
    for (uint32_t i = 0; i < n; i++)
        predictors[i] = users[i].predictor;
    OK(moepage_controller_rightsize(rig.controller, predictors, n, permille));
}

/* Draws one of n, the i-th as often as 1 / (i + 1). */
static uint32_t draw_zipf(uint32_t n)
{
    double all = 0, at;
    for (uint32_t i = 0; i < n; i++)
        all += 1.0 / (i + 1);
    at = (double)(bank_random(&random_state) >> 11) / 0x1p53 * all;
    for (uint32_t i = 0; i < n; i++)
        if ((at -= 1.0 / (i + 1)) < 0)
            return i;
    return n - 1;
}

/* A token's experts of [first, first + support). */
static void draw_set(uint32_t first, uint32_t support, uint32_t *chosen)
{
    for (uint32_t n = 0; n < TOP_K;) {
        bool again = false;
        chosen[n] = first + draw_zipf(support);
        for (uint32_t j = 0; j < n; j++)
            again = again || chosen[j] == chosen[n];
        n += !again;
    }
}

/* Passes of the user's, through experts of each layer. */
static void teach(user *u, uint32_t first, uint32_t support, uint32_t passes)
{
    for (uint32_t i = 0; i < passes; i++) {
        mp_predictor_begin(u->predictor, &u->context, NULL);
        for (uint32_t layer = 0; layer < LAYERS; layer++) {
            uint32_t chosen[TOP_K];
            draw_set(first, support, chosen);
            for (uint32_t j = 0; j < TOP_K; j++)
                u->uses[layer * EXPERTS + chosen[j]]++;
            mp_predictor_observe(u->predictor, &u->context,
                                 &(mp_seen){.layer = layer, .n_experts = TOP_K, .experts = chosen});
        }
        mp_predictor_end(u->predictor, &u->context);
    }
}

/* Steps that use 12 experts of each layer, and the burst's end; a move may take a few ticks. */
static void end_burst(void)
{
    for (uint32_t i = 0; i < steps; i++) {
        uint32_t chosen[TOP_K];
        int32_t ids[TOP_K];
        draw_set(4, 12, chosen);
        for (uint32_t j = 0; j < TOP_K; j++)
            ids[j] = (int32_t)chosen[j];
        control_rig_step(&rig, 0, LAYERS, ids, TOP_K, NULL, 0);
    }
    for (int i = 0; i < 8 && control_rig_tick(&rig).outcome == MOEPAGE_CONTROL_DRAINING; i++)
        ;
}

/* ---- counting and sorting ---- */

static const uint32_t *sorted_uses;

static int by_uses(const void *a, const void *b)
{
    const uint32_t x = *(const uint32_t *)a, y = *(const uint32_t *)b;
    if (sorted_uses[x] != sorted_uses[y])
        return sorted_uses[x] < sorted_uses[y] ? 1 : -1;
    return x < y ? -1 : 1;
}

/* Adds the experts, most used first, that cover PERMILLE with what may be unseen left out. Returns false if all
 * do not. */
static bool add_needed(const uint32_t *uses, bool *needed)
{
    uint32_t order[KEYS];
    double choices = 0, once = 0, held = 0;
    for (uint32_t i = 0; i < KEYS; i++) {
        order[i] = i;
        choices += uses[i];
        once += uses[i] == 1;
    }
    sorted_uses = uses;
    qsort(order, KEYS, sizeof *order, by_uses);
    const double unseen = once / choices + (1 + sqrt(2)) * sqrt(log(40) / choices);
    for (uint32_t i = 0; i < KEYS && (1 - unseen) * held / choices < PERMILLE / 1000.0; i++) {
        held += uses[order[i]];
        needed[order[i]] = uses[order[i]] > 0;
    }
    return (1 - unseen) * held / choices >= PERMILLE / 1000.0;
}

static uint64_t count_needed(const bool *needed, uint32_t from, uint32_t to)
{
    uint64_t n = 0;
    for (uint32_t i = from; i < to; i++)
        n += needed[i];
    return n;
}

static moepage_rightsize of_user(uint32_t i)
{
    moepage_rightsize size = MOEPAGE_RIGHTSIZE();
    OK(moepage_controller_get_rightsize(rig.controller, i, &size));
    return size;
}

/* ---- tests ---- */

/* What a user chooses is 12 experts a layer: KV gets the other slots' bytes. */
static void test_controller_size_kv_gets_what_the_working_set_does_not_need(void **state)
{
    (void)state;
    static const uint32_t modes[] = {MOEPAGE_CONTROL_MV_WSA, MOEPAGE_CONTROL_DUAL_RESIZE,
                                     MOEPAGE_CONTROL_FIXED, MOEPAGE_CONTROL_FLUX};
    for (size_t m = 0; m < sizeof modes / sizeof *modes; m++) {
        bool needed[KEYS] = {false};
        open_all((moepage_controller_config){.mode = modes[m],
                                             .burst_steps = 48,
                                             .expert_percent = 75},
                 0);
        serve(1, PERMILLE);
        for (int i = 0; i < 4; i++)
            end_burst();
        const uint64_t before = pool_rig_info(&rig.pools).slots;
        assert_int_equal(control_rig_info(&rig).cap_slots, 0);
        teach(&users[0], 4, 12, 4000);
        for (int i = 0; i < 4; i++)
            end_burst();
        assert_true(add_needed(users[0].uses, needed));
        const uint64_t cap = count_needed(needed, 0, KEYS);
        const moepage_controller_info info = control_rig_info(&rig);
        assert_true(cap <= 24); /* the support */
        assert_int_equal(info.users, 1);
        assert_int_equal(info.sized_users, 1);
        assert_int_equal(info.needed_experts, cap);
        assert_int_equal(info.largest_user_experts, cap);
        assert_int_equal(info.cap_slots, cap);
        assert_int_equal(of_user(0).experts, cap);
        assert_true(before > cap);
        control_rig_expect(&rig, cap, ARENA - cap);
        close_all();
    }
}

static void test_controller_size_counts_a_shared_expert_once(void **state)
{
    (void)state;
    bool needed[2][KEYS] = {{false}}, any[KEYS] = {false};
    open_all((moepage_controller_config){.mode = MOEPAGE_CONTROL_DUAL_RESIZE}, 0);
    serve(3, PERMILLE); /* the third one never comes */
    teach(&users[0], 0, 12, 4000);
    teach(&users[1], 4, 12, 4000);
    end_burst();
    uint64_t sum = 0;
    for (uint32_t u = 0; u < 2; u++) {
        assert_true(add_needed(users[u].uses, needed[u]));
        assert_int_equal(of_user(u).experts, count_needed(needed[u], 0, KEYS));
        sum += count_needed(needed[u], 0, KEYS);
        for (uint32_t i = 0; i < KEYS; i++)
            any[i] = any[i] || needed[u][i];
    }
    assert_int_equal(of_user(2).experts, 0);
    const uint64_t cap = count_needed(any, 0, KEYS);
    assert_true(cap < sum);
    assert_int_equal(control_rig_info(&rig).needed_experts, cap);
    assert_int_equal(control_rig_info(&rig).sized_users, 2);
    control_rig_expect(&rig, cap, ARENA - cap);
    close_all();
}

static void test_controller_size_does_not_bind_before_the_sample_is_enough(void **state)
{
    (void)state;
    bool bound = false;
    open_all((moepage_controller_config){.mode = MOEPAGE_CONTROL_DUAL_RESIZE}, 0);
    serve(1, PERMILLE);
    for (int burst = 0; burst < 40; burst++) {
        bool needed[KEYS] = {false};
        teach(&users[0], 0, 10, 20);
        end_burst();
        /* While nothing is forgotten the window is all that was taught. */
        const bool sure = add_needed(users[0].uses, needed);
        assert_int_equal(control_rig_info(&rig).cap_slots > 0, sure);
        assert_int_equal(control_rig_info(&rig).needed_experts > 0, sure);
        if (!sure) {
            assert_false(bound);
            assert_true(of_user(0).bytes == 0 && of_user(0).freed == 0);
            assert_true(pool_rig_info(&rig.pools).slots >= KEYS); /* the rest is all there is */
        }
        bound = sure;
    }
    assert_true(bound);
    assert_true(pool_rig_info(&rig.pools).slots <= 20);
    teach(&users[1], 0, 10, 20); /* another one comes, of whom little is known */
    serve(2, PERMILLE);
    end_burst();
    assert_int_equal(control_rig_info(&rig).cap_slots, 0);
    assert_int_equal(control_rig_info(&rig).sized_users, 1);
    assert_true(pool_rig_info(&rig.pools).slots >= KEYS);
    close_all();
}

static void test_controller_size_follows_routing_that_changes(void **state)
{
    (void)state;
    open_all((moepage_controller_config){.mode = MOEPAGE_CONTROL_DUAL_RESIZE}, 0);
    serve(1, PERMILLE);
    teach(&users[0], 0, 6, 20000); /* a long history */
    end_burst();
    const uint64_t narrow = control_rig_info(&rig).cap_slots;
    assert_true(narrow > 0 && narrow <= 12);
    bool needed[KEYS] = {false};
    memset(users[0].uses, 0, sizeof users[0].uses);
    uint64_t raised = 0;
    for (int burst = 0; burst < 2; burst++) {
        teach(&users[0], 16, 12, 300);
        end_burst();
        raised = control_rig_info(&rig).cap_slots;
        assert_true(raised == 0 || raised > narrow + 12); /* both, or not sure */
    }
    assert_true(raised > 0);
    for (int burst = 0; burst < 2 * EPOCH + 2; burst++) {
        teach(&users[0], 16, 12, 300);
        end_burst();
    }
    add_needed(users[0].uses, needed);
    const uint64_t cap = control_rig_info(&rig).cap_slots, now = count_needed(needed, 0, KEYS);
    assert_true(cap <= 24 &&
                cap + 3 >= now); /* the old one is forgotten; windows differ in length */
    close_all();
}

static void test_controller_size_of_users_who_are_gone(void **state)
{
    (void)state;
    open_all((moepage_controller_config){.mode = MOEPAGE_CONTROL_DUAL_RESIZE}, 0);
    serve(2, PERMILLE);
    teach(&users[0], 0, 8, 4000);
    teach(&users[1], 16, 8, 4000);
    end_burst();
    assert_true(control_rig_info(&rig).cap_slots > 16);
    for (int burst = 0; burst < EPOCH; burst++) {
        assert_int_equal(control_rig_info(&rig).needed_experts,
                         of_user(0).experts + of_user(1).experts);
        teach(&users[0], 0, 8, 300);
        end_burst();
    }
    assert_true(control_rig_info(&rig).cap_slots <= 16);
    assert_int_equal(control_rig_info(&rig).sized_users, 2);
    teach(&users[1], 16, 8, 1); /* is back, and known */
    end_burst();
    assert_true(control_rig_info(&rig).cap_slots > 16);
    for (int burst = 0; burst < EPOCH; burst++)
        end_burst();
    assert_int_equal(control_rig_info(&rig).cap_slots, 0); /* nobody runs */
    serve(0, 0);
    assert_int_equal(control_rig_info(&rig).users, 0);
    close_all();
}

static void test_controller_size_of_a_pool_divided_by_layers(void **state)
{
    (void)state;
    bool needed[KEYS] = {false};
    open_all((moepage_controller_config){.mode = MOEPAGE_CONTROL_DUAL_RESIZE}, MOEPAGE_SCOPE_LAYER);
    serve(1, PERMILLE);
    teach(&users[0], 4, 12, 4000);
    end_burst();
    assert_true(add_needed(users[0].uses, needed));
    const uint64_t first = count_needed(needed, 0, EXPERTS),
                   second = count_needed(needed, EXPERTS, KEYS),
                   cap = LAYERS * (first > second ? first : second);
    assert_int_equal(control_rig_info(&rig).cap_slots, cap);
    control_rig_expect(&rig, cap, ARENA - cap);
    close_all();
}

static void refuse(moepage_predictor *const *predictors, uint32_t n, uint32_t permille,
                   moepage_status status, const char *words)
{
    assert_int_equal(moepage_controller_rightsize(rig.controller, predictors, n, permille), status);
    expect_sentence(words);
    assert_int_equal(control_rig_info(&rig).users, 1); /* as before */
}

static void test_controller_size_refuses_misuse(void **state)
{
    (void)state;
    user maps, other;
    control_rig large = {0};
    moepage_rightsize size = MOEPAGE_RIGHTSIZE();
    open_all((moepage_controller_config){.mode = MOEPAGE_CONTROL_OBSERVE}, 0);
    serve(1, 0);
    assert_float_equal(of_user(0).coverage, 0.99, 1e-12);
    assert_float_equal(of_user(0).unseen, 1, 1e-12);
    open_user(&maps, "maps");
    bank_model_open(&large.bank, &(bank_shape){.layers = 1,
                                               .experts = EXPERTS,
                                               .top_k = 1,
                                               .hidden = 16,
                                               .intermediate = 8});
    memset(&other, 0, sizeof other);
    OK(moepage_predictor_create(large.bank.model, &MOEPAGE_PREDICTOR_CONFIG(.name = "coactivation"),
                                &other.predictor));
    moepage_predictor *mixed[2] = {users[1].predictor, maps.predictor};
    refuse(NULL, 1, 0, MOEPAGE_E_ARGUMENT, "predictors is NULL");
    refuse(mixed, 2, 0, MOEPAGE_E_UNSUPPORTED, "predictors[1]|maps|coactivation");
    mixed[1] = other.predictor;
    refuse(mixed, 2, 0, MOEPAGE_E_ARGUMENT, "predictors[1]|1 layers of 32|the model has 2");
    mixed[1] = NULL;
    refuse(mixed, 2, 0, MOEPAGE_E_ARGUMENT, "predictors[1]|NULL");
    mixed[1] = (void *)rig.bank.model;
    refuse(mixed, 2, 0, MOEPAGE_E_HANDLE, "predictors[1]|predictor is needed");
    refuse(mixed, 1, 1000, MOEPAGE_E_ARGUMENT, "coverage_permille is 1000|below 1000");
    assert_int_equal(moepage_controller_get_rightsize(rig.controller, 1, &size),
                     MOEPAGE_E_ARGUMENT);
    expect_sentence("user is 1|sizes 1");
    assert_int_equal(moepage_predictor_destroy(users[0].predictor), MOEPAGE_E_BUSY);
    expect_sentence("1 session or controller still uses");
    assert_int_equal(moepage_predictor_destroy(other.predictor), MOEPAGE_OK);
    close_user(&maps);
    bank_model_close(&large.bank);
    close_all();
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_controller_size_kv_gets_what_the_working_set_does_not_need),
        cmocka_unit_test(test_controller_size_counts_a_shared_expert_once),
        cmocka_unit_test(test_controller_size_does_not_bind_before_the_sample_is_enough),
        cmocka_unit_test(test_controller_size_follows_routing_that_changes),
        cmocka_unit_test(test_controller_size_of_users_who_are_gone),
        cmocka_unit_test(test_controller_size_of_a_pool_divided_by_layers),
        cmocka_unit_test(test_controller_size_refuses_misuse),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
