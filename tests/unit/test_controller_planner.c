/* The residency planner on live pools: wherever experts are at the start it comes to a plan and stays,
 * never past the budget, with every slot's bytes those of its expert; and KV is served first. */
#include <string.h>

#include "control_rig.h"
#include "testing.h"

/* A bus so slow that a step of a host without kernels is nothing beside one expert's load. */
enum { EXPERTS = 8, BLOCK_TOKENS = 4, BUS = 40u << 20, MOST_BURSTS = 400 };

static const int32_t all_ids[EXPERTS] = {0, 1, 2, 3, 4, 5, 6, 7};

typedef struct start {
    uint32_t layers;
    uint32_t scope;
    bool coded;          /* the model's form is EXPH, and compressed experts can be had */
    uint32_t compressed; /* per layer, at the start */
    uint64_t slots;
    uint64_t blocks;
    uint32_t blocks_per_granule;
    uint64_t arena_slots;
} start;

static void open_start(control_rig *rig, const start *s)
{
    control_rig_config config = {
        .bank = {.layers = s->layers,
                 .experts = EXPERTS,
                 .top_k = 2,
                 .hidden = 64,
                 .intermediate = 32,
                 .dtype = MOEPAGE_DTYPE_BF16,
                 .pack_forms = s->coded ? 1u << MOEPAGE_FORM_EXPH : 0,
                 .seed = 9},
        .pool = {.slots = s->slots,
                 .arena_slots = s->arena_slots,
                 .scope = s->scope,
                 .compressed = s->compressed,
                 .bus_bytes_per_s = BUS},
        .blocks = s->blocks,
        .block_tokens = BLOCK_TOKENS,
        .blocks_per_slot = 4,
        .blocks_per_granule = s->blocks_per_granule,
        .regime = MOEPAGE_REGIME_STREAM,
    };
    control_rig_open(rig, &config);
    control_rig_attach(rig, (moepage_controller_config){.mode = MOEPAGE_CONTROL_PLANNER,
                                                        .burst_steps = 1,
                                                        .context_tokens = 2 * BLOCK_TOKENS});
}

/* Steps until nothing has moved for some bursts; the report then. */
static moepage_controller_report settle(control_rig *rig, const start *s, const moepage_seq *seq)
{
    moepage_controller_report report;
    uint32_t same = 0;
    for (uint32_t burst = 0; same < 5; burst++) {
        assert_true(burst < MOST_BURSTS);
        control_rig_step(rig, 0, s->layers, all_ids, EXPERTS, seq, seq != NULL);
        report = control_rig_tick(rig);
        assert_int_not_equal(report.outcome, MOEPAGE_CONTROL_REFUSED);
        assert_int_not_equal(report.outcome, MOEPAGE_CONTROL_INFEASIBLE);
        bool measured = control_rig_info(rig).rho > 0; /* else it has nothing to go by yet */
        same = measured && report.outcome == MOEPAGE_CONTROL_STAYS ? same + 1 : 0;
        control_rig_expect(rig, report.expert_slots, report.kv_blocks);
    }
    return report;
}

/* Experts are brought in as long as a step clearly waits for loads and there is room. */
static void check_plan(control_rig *rig, const start *s, const moepage_controller_report *report)
{
    uint64_t resident = report->expert_slots + report->compressed_experts * s->layers;
    uint64_t more = 4 * (s->layers + 2); /* one expert of each layer, and what is not whole */
    bool room = report->kv_blocks > control_rig_info(rig).floor_blocks + more;
    assert_true(resident >= s->layers * EXPERTS || control_rig_info(rig).rho >= 0.5 || !room);
}

static void check_settles(const start *s)
{
    control_rig rig;
    open_start(&rig, s);
    moepage_seq seq = s->blocks ? control_rig_sequence(&rig, 2) : 0;
    moepage_controller_report report = settle(&rig, s, s->blocks ? &seq : NULL);
    check_plan(&rig, s, &report);
    control_rig_close(&rig);
}

static void test_controller_planner_settles_wherever_it_starts(void **state)
{
    (void)state;
    static const start starts[] = {
        {4, MOEPAGE_SCOPE_GLOBAL, true, 0, 16, 12, 1, 40},     /* nothing but the window */
        {4, MOEPAGE_SCOPE_GLOBAL, true, EXPERTS, 4, 8, 1, 40}, /* all compressed */
        {4, MOEPAGE_SCOPE_GLOBAL, true, 3, 12, 8, 3, 40},      /* some of each; granules */
        {4, MOEPAGE_SCOPE_LAYER, true, 0, 16, 12, 2, 40},      /* shares of layers */
        {4, MOEPAGE_SCOPE_GLOBAL, true, 0, 16, 0, 1, 36},      /* no KV */
        {26, MOEPAGE_SCOPE_GLOBAL, true, 0, 16, 16, 1, 150},   /* a round is more than the window */
        {1, MOEPAGE_SCOPE_GLOBAL, true, 0, 2, 8, 1, 12},       /* fewer than a window */
        {2, MOEPAGE_SCOPE_GLOBAL, true, 0, 16, 8, 1, 20},      /* everything is there already */
        {4, MOEPAGE_SCOPE_GLOBAL, false, 0, 8, 12, 1, 24},     /* no other form */
        {4, MOEPAGE_SCOPE_LAYER, false, 0, 8, 12, 1, 24},
        {4, MOEPAGE_SCOPE_GLOBAL, false, 0, 8, 12, 1, 64}, /* all of them fit */
    };
    for (size_t i = 0; i < sizeof starts / sizeof *starts; i++)
        check_settles(&starts[i]);
}

static void grow_kv(control_rig *rig, moepage_seq seq)
{
    moepage_kv_pool_info kv = {.struct_size = sizeof kv};
    assert_int_equal(moepage_kv_pool_get_info(rig->kv, &kv), MOEPAGE_OK);
    if (kv.free_blocks)
        assert_int_equal(moepage_kv_append(rig->kv, seq, kv.free_blocks * BLOCK_TOKENS, NULL),
                         MOEPAGE_OK);
}

/* Whatever the experts are, and however little of them is left, KV gets what it uses and more. */
static void check_surge(const start *s, uint64_t least_slots)
{
    control_rig rig;
    open_start(&rig, s);
    moepage_seq seq = control_rig_sequence(&rig, 2);
    settle(&rig, s, &seq);
    moepage_device_info device = {.struct_size = sizeof device};
    assert_int_equal(moepage_device_get_info(rig.pools.devices[0], &device), MOEPAGE_OK);
    uint64_t slot_bytes = pool_rig_info(&rig.pools).slot_bytes;
    uint64_t wanted = 4 * (device.arena_bytes / slot_bytes - least_slots);
    wanted -= 2 * s->blocks_per_granule;
    for (uint32_t burst = 0; control_rig_blocks(&rig) < wanted; burst++) {
        assert_true(burst < MOST_BURSTS);
        grow_kv(&rig, seq);
        control_rig_step(&rig, 0, s->layers, all_ids, EXPERTS, &seq, 1);
        moepage_controller_report report = control_rig_tick(&rig);
        assert_int_not_equal(report.outcome, MOEPAGE_CONTROL_REFUSED);
        control_rig_expect(&rig, report.expert_slots, report.kv_blocks);
    }
    assert_int_equal(pool_rig_info(&rig.pools).compressed_experts, 0);
    assert_int_equal(moepage_kv_free(rig.kv, seq), MOEPAGE_OK);
    seq = control_rig_sequence(&rig, 2);
    moepage_controller_report report = settle(&rig, s, &seq);
    check_plan(&rig, s, &report); /* the experts are back */
    control_rig_close(&rig);
}

static void test_controller_planner_serves_kv_first(void **state)
{
    (void)state;
    static const start starts[] = {
        {4, MOEPAGE_SCOPE_GLOBAL, true, 0, 16, 12, 1, 40},
        {4, MOEPAGE_SCOPE_GLOBAL, true, EXPERTS, 4, 8, 3, 40},
        {12, MOEPAGE_SCOPE_GLOBAL, true, 0, 16, 16, 1, 100},
        {4, MOEPAGE_SCOPE_GLOBAL, false, 0, 8, 12, 1, 24},
    };
    for (size_t i = 0; i < sizeof starts / sizeof *starts; i++)
        check_surge(&starts[i], 3);
    check_surge(&(start){4, MOEPAGE_SCOPE_LAYER, true, 0, 16, 12, 2, 40}, 12);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_controller_planner_settles_wherever_it_starts),
        cmocka_unit_test(test_controller_planner_serves_kv_first),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
