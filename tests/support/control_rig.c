/* A controller, its pools, and a session that uses them. */
#include "control_rig.h"

#include <string.h>

#include "device_rig.h"
#include "testing.h"

static void open_kv(control_rig *rig, const control_rig_config *config)
{
    moepage_model_info model = {.struct_size = sizeof model};
    assert_int_equal(moepage_model_get_info(rig->bank.model, &model), MOEPAGE_OK);
    uint32_t bytes_per_token =
        (uint32_t)(model.slot_bytes / config->blocks_per_slot / config->block_tokens);
    moepage_kv_pool_config kv = {.struct_size = sizeof kv,
                                 .block_tokens = config->block_tokens,
                                 .layers = 1,
                                 .blocks_per_granule =
                                     config->blocks_per_granule ? config->blocks_per_granule : 1,
                                 .bytes_per_token = &bytes_per_token,
                                 .blocks = config->blocks};
    assert_int_equal(moepage_kv_pool_create(rig->pools.devices[0], &kv, &rig->kv), MOEPAGE_OK);
}

void control_rig_open(control_rig *rig, const control_rig_config *config)
{
    memset(rig, 0, sizeof *rig);
    rig->block_tokens = config->block_tokens;
    bank_model_open(&rig->bank, &config->bank);
    pool_rig_open(&rig->pools, &rig->bank, &config->pool);
    if (config->blocks)
        open_kv(rig, config);
    moepage_session_config session = {.struct_size = sizeof session,
                                      .max_tokens = CONTROL_RIG_SEQUENCES,
                                      .max_top_k = config->bank.experts,
                                      .regime = config->regime};
    assert_int_equal(moepage_session_create(rig->pools.pool, rig->kv, &session, &rig->session),
                     MOEPAGE_OK);
}

void control_rig_close(control_rig *rig)
{
    assert_int_equal(moepage_controller_destroy(rig->controller), MOEPAGE_OK);
    assert_int_equal(moepage_session_destroy(rig->session), MOEPAGE_OK);
    assert_int_equal(moepage_kv_pool_destroy(rig->kv), MOEPAGE_OK);
    pool_rig_close(&rig->pools);
    bank_model_close(&rig->bank);
}

void control_rig_attach(control_rig *rig, moepage_controller_config config)
{
    config.struct_size = sizeof config;
    assert_int_equal(moepage_controller_create(rig->pools.pool, rig->kv, &config, &rig->controller),
                     MOEPAGE_OK);
}

moepage_controller_report control_rig_tick(control_rig *rig)
{
    moepage_controller_report report = {.struct_size = sizeof report};
    assert_int_equal(moepage_controller_tick(rig->controller, NULL, &report), MOEPAGE_OK);
    return report;
}

moepage_controller_info control_rig_info(control_rig *rig)
{
    moepage_controller_info info = {.struct_size = sizeof info};
    assert_int_equal(moepage_controller_get_info(rig->controller, &info), MOEPAGE_OK);
    return info;
}

double control_rig_misses(control_rig *rig, uint32_t kv, uint64_t size)
{
    double misses;
    assert_int_equal(moepage_controller_get_curve(rig->controller, kv, &size, 1, &misses),
                     MOEPAGE_OK);
    return misses;
}

uint64_t control_rig_blocks(control_rig *rig)
{
    moepage_kv_pool_info kv = {.struct_size = sizeof kv};
    if (!rig->kv)
        return 0;
    assert_int_equal(moepage_kv_pool_get_info(rig->kv, &kv), MOEPAGE_OK);
    return kv.blocks;
}

void control_rig_expect(control_rig *rig, uint64_t slots, uint64_t blocks)
{
    moepage_device_info device = {.struct_size = sizeof device};
    assert_int_equal(moepage_device_get_info(rig->pools.devices[0], &device), MOEPAGE_OK);
    assert_int_equal(pool_rig_info(&rig->pools).slots, slots);
    assert_int_equal(control_rig_blocks(rig), blocks);
    assert_true(device.peak_bytes <= device.budget_bytes);
}

moepage_seq control_rig_sequence(control_rig *rig, uint32_t blocks)
{
    moepage_seq seq;
    assert_int_equal(moepage_kv_create(rig->kv, &seq), MOEPAGE_OK);
    assert_int_equal(moepage_kv_append(rig->kv, seq, blocks * rig->block_tokens, NULL), MOEPAGE_OK);
    return seq;
}

/* On "host" the bytes are looked at where they are: its bus may be slow. */
static bool holds(const control_rig *rig, uint32_t layer, const moepage_plan_expert *expert)
{
    return device_rig_is_cuda()
               ? pool_rig_holds(&rig->pools, layer, expert)
               : bank_model_matches(&rig->bank, layer, expert->expert, expert->tensors);
}

static void run_layer(control_rig *rig, uint32_t layer, const moepage_routing *routing)
{
    moepage_plan plan = {.struct_size = sizeof plan};
    assert_int_equal(moepage_session_route(rig->session, layer, routing, &plan), MOEPAGE_OK);
    for (;;) {
        for (uint32_t e = 0; e < plan.n_experts; e++)
            assert_true(holds(rig, layer, &plan.experts[e]));
        if (plan.group + 1 >= plan.n_groups)
            break;
        assert_int_equal(moepage_session_next_group(rig->session, layer, &plan), MOEPAGE_OK);
    }
    assert_int_equal(moepage_session_retire(rig->session, layer), MOEPAGE_OK);
}

void control_rig_step(control_rig *rig, uint32_t first, uint32_t n_layers, const int32_t *ids,
                      uint32_t n, const moepage_seq *seqs, uint32_t n_seqs)
{
    moepage_step_sequence sequences[CONTROL_RIG_SEQUENCES];
    int32_t all[CONTROL_RIG_SEQUENCES * CONTROL_RIG_EXPERTS];
    float weights[CONTROL_RIG_SEQUENCES * CONTROL_RIG_EXPERTS] = {0};
    assert_true(n <= CONTROL_RIG_EXPERTS && n_seqs <= CONTROL_RIG_SEQUENCES);
    for (uint32_t i = 0; i < n_seqs; i++)
        sequences[i] = (moepage_step_sequence){.seq = seqs[i], .n_tokens = 1};
    moepage_step step = {.struct_size = sizeof step,
                         .n_tokens = n_seqs ? n_seqs : 1,
                         .n_sequences = n_seqs,
                         .sequences = n_seqs ? sequences : NULL};
    for (uint32_t t = 0; t < step.n_tokens; t++)
        memcpy(all + t * n, ids, n * sizeof *ids);
    moepage_routing routing = {.struct_size = sizeof routing,
                               .top_k = n,
                               .ids = all,
                               .weights = weights};
    assert_int_equal(moepage_session_begin(rig->session, &step), MOEPAGE_OK);
    for (uint32_t l = first; l < first + n_layers; l++)
        run_layer(rig, l, &routing);
    assert_int_equal(moepage_session_end(rig->session, NULL), MOEPAGE_OK);
}
