/* Every metric, in the order of the text. docs/metrics.md documents the same list. */
#include <stddef.h>
#include <stdio.h>

#include "metrics/metrics.h"
#include "moepage_cuda.h"

#define GAUGE(metric, text) .name = (metric), .help = (text)
#define COUNTER(metric, text) .name = (metric), .help = (text), .counter = true
#define LABELS(text) .labels = (text)
#define SECONDS .unit = MP_UNIT_SECONDS
#define RATIO .unit = MP_UNIT_RATIO
#define INFO(which, how) .of = (which), .describe = (how)

#define FIELD(which, type_name, field)                 \
    .of = (which), .at = offsetof(type_name, field),   \
    .type = _Generic(((type_name *)0)->field, uint32_t \
                     : MP_FIELD_U32, int32_t           \
                     : MP_FIELD_I32, uint64_t          \
                     : MP_FIELD_U64, double            \
                     : MP_FIELD_F64)
#define DEVICE(field) FIELD(MP_METRICS_OF_DEVICE, moepage_device_info, field)
#define CUDA(field) FIELD(MP_METRICS_OF_CUDA, moepage_cuda_info, field)
#define EXPERTS(field) FIELD(MP_METRICS_OF_EXPERTS, moepage_expert_pool_info, field)
#define EXPERTS_LESS(field, other) EXPERTS(field), .less = offsetof(moepage_expert_pool_info, other)
#define SESSIONS(field) FIELD(MP_METRICS_OF_SESSIONS, moepage_session_stats, field)
#define KV(field) FIELD(MP_METRICS_OF_KV, moepage_kv_pool_info, field)
#define CONTROLLER(field) FIELD(MP_METRICS_OF_CONTROLLER, moepage_controller_info, field)
#define PREDICTOR(field) FIELD(MP_METRICS_OF_PREDICTOR, moepage_predictor_info, field)

/* ---- labels of info metrics ---- */

static void describe_build(const void *of, mp_text *text)
{
    (void)of;
    mp_text_label(text, "version", moepage_version_text());
}

static void describe_device(const void *of, mp_text *text)
{
    const moepage_device_info *info = of;
    mp_text_label(text, "name", info->name);
    mp_text_put(text, ",");
    mp_text_label(text, "kernels", info->kernels);
}

static void describe_cuda(const void *of, mp_text *text)
{
    const moepage_cuda_info *info = of;
    char cublas[16] = "none";
    if (info->cublas_version)
        snprintf(cublas, sizeof cublas, "%u", info->cublas_version);
    mp_text_label(text, "gpu", info->name);
    mp_text_put(text, ",");
    mp_text_label(text, "arena", info->arena_kind == MOEPAGE_CUDA_ARENA_VMM ? "vmm" : "malloc");
    mp_text_put(text, ",");
    mp_text_label(text, "cublas", cublas);
}

static const char *form_name(uint32_t form)
{
    switch (form) {
    case MOEPAGE_FORM_DENSE: return "dense";
    case MOEPAGE_FORM_EXPH: return "exph";
    case MOEPAGE_FORM_INT8: return "int8";
    case MOEPAGE_FORM_INT4: return "int4";
    case MOEPAGE_FORM_INT2: return "int2";
    default: return "none";
    }
}

static void describe_experts(const void *of, mp_text *text)
{
    const moepage_expert_pool_info *info = of;
    mp_text_label(text, "bus_form", form_name(info->bus_form));
    mp_text_put(text, ",");
    mp_text_label(text, "slot_form", form_name(info->slot_form));
    mp_text_put(text, ",");
    mp_text_label(text, "high_form", form_name(info->hi_form));
    mp_text_put(text, ",");
    mp_text_label(text, "low_form", form_name(info->lo_form));
    mp_text_put(text, ",");
    mp_text_label(text, "cold_engine", info->host_tier_bytes ? "pread" : "none");
}

static void describe_controller(const void *of, mp_text *text)
{
    static const char *const modes[] = {"mv-wsa",  "dual-resize", "planner",
                                        "observe", "fixed",       "flux"};
    const moepage_controller_info *info = of;
    const uint32_t n = sizeof modes / sizeof *modes;
    mp_text_label(text, "mode", info->mode < n ? modes[info->mode] : "unknown");
}

static void describe_predictor(const void *of, mp_text *text)
{
    const moepage_predictor_info *info = of;
    mp_text_label(text, "name", info->name);
}

/* ---- the table ---- */

const mp_metric mp_metric_table[] = {
    {GAUGE("moepage_build_info", "1, with the library's version"),
     INFO(MP_METRICS_OF_BUILD, describe_build)},

    {GAUGE("moepage_device_info", "1, with the device's name and the kernels it runs"),
     INFO(MP_METRICS_OF_DEVICE, describe_device)},
    {GAUGE("moepage_device_threads", "Threads that kernels use"), DEVICE(threads)},
    {GAUGE("moepage_device_budget_bytes", "Hard limit of device memory"), DEVICE(budget_bytes)},
    {GAUGE("moepage_device_budget_aim_bytes", "Budget that it moves to"), DEVICE(budget_aim_bytes)},
    {GAUGE("moepage_device_budget_max_bytes", "Most that the budget may be raised to"),
     DEVICE(max_budget_bytes)},
    {GAUGE("moepage_device_reserve_bytes", "Free memory that a budget which follows leaves"),
     DEVICE(reserve_bytes)},
    {GAUGE("moepage_device_arena_bytes", "Memory that slots and KV blocks are cut from"),
     DEVICE(arena_bytes)},
    {GAUGE("moepage_device_workspace_bytes", "Memory kept for scratch and staging"),
     DEVICE(workspace_bytes)},
    {GAUGE("moepage_device_used_bytes", "Memory held now"), DEVICE(used_bytes)},
    {GAUGE("moepage_device_peak_bytes", "Most memory held since the budget last shrank"),
     DEVICE(peak_bytes)},
    {GAUGE("moepage_device_side_bytes", "Parts of the arena that experts and KV own"),
     LABELS("side=\"experts\""), DEVICE(arena_expert_bytes)},
    {LABELS("side=\"kv\""), DEVICE(arena_kv_bytes)},
    {GAUGE("moepage_device_throttle_bytes_per_second", "Limit set on the bus; 0 = none"),
     DEVICE(bus_bytes_per_s)},
    {GAUGE("moepage_device_pageable_bytes", "Host memory that could not be pinned"),
     DEVICE(pageable_bytes)},

    {GAUGE("moepage_cuda_info", "1, with the GPU's name, its arena's kind and cuBLAS's version"),
     INFO(MP_METRICS_OF_CUDA, describe_cuda)},
    {GAUGE("moepage_cuda_poisoned", "1 = the device has failed and has to be closed"),
     CUDA(poisoned)},
    {GAUGE("moepage_cuda_memory_bytes", "Memory of the whole GPU"), CUDA(device_bytes)},
    {GAUGE("moepage_cuda_handle_bytes",
           "Memory of one handle of the arena; 0 = it is in one piece"),
     CUDA(handle_bytes)},
    {GAUGE("moepage_cuda_handle_seconds", "Time to map one handle"), SECONDS, CUDA(handle_ns)},
    {COUNTER("moepage_cuda_memory_calls_total", "Driver calls that took or gave memory"),
     CUDA(driver_calls)},

    {GAUGE("moepage_expert_pool_info",
           "1, with the forms of experts and the reader of the cold tier"),
     INFO(MP_METRICS_OF_EXPERTS, describe_experts)},
    {GAUGE("moepage_expert_pool_devices", "Devices that the pool is on"), EXPERTS(devices)},
    {GAUGE("moepage_expert_indirect_devices",
           "GPUs whose rows go by host memory to reach the first; 0 = none"),
     EXPERTS(indirect_devices)},
    {GAUGE("moepage_expert_slots", "Experts that can be resident at once"), EXPERTS(slots)},
    {GAUGE("moepage_expert_slot_bytes", "Memory of one slot"), EXPERTS(slot_bytes)},
    {GAUGE("moepage_experts_resident", "Experts complete in a slot"), EXPERTS(resident)},
    {GAUGE("moepage_experts_loading", "Experts on their way to a slot"), EXPERTS(loading)},
    {GAUGE("moepage_experts_pinned", "Experts that the host has pinned"), EXPERTS(pinned)},
    {COUNTER("moepage_expert_evictions_total", "Experts that lost their slot"), EXPERTS(evictions)},
    {COUNTER("moepage_expert_bus_bytes_total", "Bytes moved towards slots, by purpose"),
     LABELS("cause=\"demand\""), EXPERTS(demand_bytes)},
    {LABELS("cause=\"prefetch\""), EXPERTS(prefetch_bytes)},
    {LABELS("cause=\"transition\""), EXPERTS(transition_bytes)},
    {COUNTER("moepage_expert_tier_loads_total", "Loads, by the tier that had the expert"),
     LABELS("tier=\"device\""), EXPERTS(compressed_loads)},
    {LABELS("tier=\"host\""), EXPERTS(host_hits)},
    {LABELS("tier=\"cold\""), EXPERTS(cold_reads)},
    {COUNTER("moepage_expert_cold_bytes_total", "Bytes read from the cold tier"),
     EXPERTS(cold_bytes)},
    {COUNTER("moepage_expert_cold_buffered_reads_total",
             "Cold reads through the page cache, or out of memory"),
     EXPERTS(cold_buffered_reads)},
    {COUNTER("moepage_expert_load_failures_total", "Loads whose source failed"),
     EXPERTS(failed_loads)},
    {COUNTER("moepage_expert_decodes_total", "Experts decoded on the device"), EXPERTS(decodes)},
    {COUNTER("moepage_expert_pins_refused_total", "Pins that found no slot to keep"),
     EXPERTS(pins_refused)},
    {COUNTER("moepage_prefetch_experts_total", "Experts asked for ahead of need, by outcome"),
     LABELS("outcome=\"useful\""), EXPERTS_LESS(prefetch_useful, prefetch_late)},
    {LABELS("outcome=\"late\""), EXPERTS(prefetch_late)},
    {LABELS("outcome=\"wasted\""), EXPERTS(prefetch_wasted)},
    {LABELS("outcome=\"cancelled\""), EXPERTS(prefetch_cancelled)},
    {LABELS("outcome=\"refused\""), EXPERTS(prefetch_refused)},
    {COUNTER("moepage_prefetch_bytes_total", "Bytes fetched ahead of need, by outcome"),
     LABELS("outcome=\"useful\""), EXPERTS(prefetch_useful_bytes)},
    {LABELS("outcome=\"late\""), EXPERTS(prefetch_late_bytes)},
    {LABELS("outcome=\"wasted\""), EXPERTS(prefetch_wasted_bytes)},
    {COUNTER("moepage_split_moves_total", "Moves between experts and KV, by outcome"),
     LABELS("outcome=\"done\""), EXPERTS(resizes)},
    {LABELS("outcome=\"refused\""), EXPERTS(resizes_refused)},
    {GAUGE("moepage_expert_compressed", "Experts per layer kept compressed in device memory"),
     EXPERTS(compressed_experts)},
    {GAUGE("moepage_expert_compressed_bytes", "Device memory of compressed experts"),
     EXPERTS(compressed_bytes)},
    {GAUGE("moepage_expert_staging_bytes", "Device memory for images on their way"),
     EXPERTS(staging_bytes)},
    {GAUGE("moepage_host_tier_bytes", "Host memory that caches the cold tier"),
     EXPERTS(host_tier_bytes)},
    {GAUGE("moepage_host_tier_experts", "Experts that fit in it"), EXPERTS(host_tier_experts)},
    {GAUGE("moepage_host_tier_resident_experts", "Experts that are in it"),
     EXPERTS(host_tier_resident)},
    {GAUGE("moepage_host_tier_page_bytes", "Size of the pages behind it; 0 = no host tier"),
     EXPERTS(host_page_bytes)},
    {GAUGE("moepage_host_tier_numa_node", "NUMA node that it is bound to; -1 = none"),
     EXPERTS(host_node)},
    {GAUGE("moepage_expert_rate_bytes_per_second",
           "Dense expert bytes per second; 0 = not measured"),
     LABELS("of=\"bus\",measured=\"start\""), EXPERTS(bus_bytes_per_s)},
    {LABELS("of=\"decode\",measured=\"start\""), EXPERTS(decode_bytes_per_s)},
    {LABELS("of=\"cold\",measured=\"start\""), EXPERTS(cold_bytes_per_s)},
    {LABELS("of=\"bus\",measured=\"live\""), EXPERTS(live_bus_bytes_per_s)},
    {LABELS("of=\"decode\",measured=\"live\""), EXPERTS(live_decode_bytes_per_s)},
    {LABELS("of=\"cold\",measured=\"live\""), EXPERTS(live_cold_bytes_per_s)},
    {GAUGE("moepage_precision_high_experts", "Experts per layer that may have the high version"),
     EXPERTS(hi_experts)},
    {GAUGE("moepage_precision_high_published", "Experts that compute in the high version"),
     EXPERTS(hi_published)},
    {GAUGE("moepage_precision_low_bytes", "Device memory of the low versions"), EXPERTS(lo_bytes)},
    {COUNTER("moepage_precision_transitions_total", "Changes of version, by outcome"),
     LABELS("outcome=\"promoted\""), EXPERTS(promotions)},
    {LABELS("outcome=\"demoted\""), EXPERTS(demotions)},
    {LABELS("outcome=\"refused\""), EXPERTS(transitions_refused)},
    {LABELS("outcome=\"failed\""), EXPERTS(transitions_failed)},
    {COUNTER("moepage_precision_decisions_total", "Intervals after which hotness was weighed"),
     EXPERTS(decisions)},
    {COUNTER("moepage_precision_windows_total", "Windows in which a version was published"),
     EXPERTS(windows)},

    {COUNTER("moepage_steps_total", "Steps that have ended"), SESSIONS(steps)},
    {COUNTER("moepage_tokens_total", "Tokens of those steps"), SESSIONS(tokens)},
    {COUNTER("moepage_layers_total", "Layers routed"), SESSIONS(layers)},
    {COUNTER("moepage_layers_streamed_total", "Layers served by streaming"),
     SESSIONS(streamed_layers)},
    {COUNTER("moepage_regime_changes_total", "Layers that changed to the other regime"),
     SESSIONS(regime_changes)},
    {COUNTER("moepage_experts_routed_total", "Experts routed to, by how they were found"),
     LABELS("outcome=\"hit\""), SESSIONS(hits)},
    {LABELS("outcome=\"miss\""), SESSIONS(misses)},
    {LABELS("outcome=\"late\""), SESSIONS(late)},
    {LABELS("outcome=\"low\""), SESSIONS(low_experts)},
    {LABELS("outcome=\"host\""), SESSIONS(host_experts)},
    {COUNTER("moepage_groups_total", "Waves of experts, or groups of tokens, run"),
     SESSIONS(groups)},
    {COUNTER("moepage_stall_seconds_total", "Time that steps waited for experts, by cause"),
     LABELS("cause=\"slot\""), SECONDS, SESSIONS(stall_slot_ns)},
    {LABELS("cause=\"load\""), SECONDS, SESSIONS(stall_load_ns)},
    {LABELS("cause=\"late\""), SECONDS, SESSIONS(stall_late_ns)},
    {LABELS("cause=\"cold\""), SECONDS, SESSIONS(stall_cold_ns)},
    {COUNTER("moepage_compute_seconds_total", "Time that steps ran expert kernels"), SECONDS,
     SESSIONS(compute_ns)},
    {COUNTER("moepage_step_seconds_total", "Time from the beginning to the end of steps"), SECONDS,
     SESSIONS(wall_ns)},
    {COUNTER("moepage_prefetch_hints_total", "Absent experts that hints or predictors asked for"),
     SESSIONS(hint_experts)},
    {COUNTER("moepage_predict_refused_total", "Layers that a predictor had no time for"),
     SESSIONS(predict_refused)},
    {COUNTER("moepage_low_rows_total", "Token choices computed in a low version"),
     SESSIONS(low_rows)},
    {COUNTER("moepage_remap_layers_total", "Layers considered for remapping"),
     SESSIONS(remap_layers)},
    {COUNTER("moepage_remap_experts_total", "Distinct experts of those layers"),
     LABELS("when=\"before\""), SESSIONS(remap_before)},
    {LABELS("when=\"after\""), SESSIONS(remap_after)},
    {COUNTER("moepage_remap_tokens_total", "Tokens whose experts changed"), SESSIONS(remap_tokens)},
    {COUNTER("moepage_remap_rows_total", "Token choices that changed"), SESSIONS(remap_rows)},
    {COUNTER("moepage_remap_seconds_total", "Time spent on remapping"), SECONDS,
     SESSIONS(remap_ns)},

    {GAUGE("moepage_kv_block_tokens", "Tokens per block"), KV(block_tokens)},
    {GAUGE("moepage_kv_blocks", "Blocks that the pool has"), KV(blocks)},
    {GAUGE("moepage_kv_free_blocks", "Blocks that are free"), KV(free_blocks)},
    {GAUGE("moepage_kv_lent_blocks", "Of these, blocks whose bytes serve experts"),
     KV(lent_blocks)},
    {GAUGE("moepage_kv_peak_blocks", "Most blocks ever in use"), KV(peak_blocks)},
    {GAUGE("moepage_kv_block_bytes", "Memory of one block over all layers"), KV(block_bytes)},
    {GAUGE("moepage_kv_granule_bytes", "Unit in which the pool takes and returns memory"),
     KV(granule_bytes)},
    {GAUGE("moepage_kv_sequences", "Live sequences, swapped ones included"), KV(sequences)},
    {GAUGE("moepage_kv_swapped_sequences", "Sequences that are swapped out"), KV(swapped)},
    {GAUGE("moepage_kv_swap_bytes", "Host memory of swapped sequences"), KV(swap_bytes)},
    {COUNTER("moepage_kv_copies_on_write_total", "Shared blocks copied before a write"),
     KV(copies_on_write)},
    {COUNTER("moepage_kv_moved_blocks_total", "Blocks copied, by purpose"),
     LABELS("cause=\"relocate\""), KV(relocated_blocks)},
    {LABELS("cause=\"swap_out\""), KV(swapped_out_blocks)},
    {LABELS("cause=\"swap_in\""), KV(swapped_in_blocks)},
    {COUNTER("moepage_kv_refused_total", "Calls that would not fit"), KV(refused)},
    {COUNTER("moepage_kv_resizes_total", "Changes of the number of blocks"), KV(resizes)},

    {GAUGE("moepage_controller_info", "1, with the controller's mode"),
     INFO(MP_METRICS_OF_CONTROLLER, describe_controller)},
    {COUNTER("moepage_controller_steps_total", "Steps that it has seen"), CONTROLLER(steps)},
    {COUNTER("moepage_controller_bursts_total", "Bursts that have ended"), CONTROLLER(bursts)},
    {COUNTER("moepage_controller_moves_total", "Moves that it tried, by outcome"),
     LABELS("outcome=\"done\""), CONTROLLER(moves)},
    {LABELS("outcome=\"refused\""), CONTROLLER(refused)},
    {COUNTER("moepage_controller_recalls_total", "Times that lent KV blocks came back for a call"),
     CONTROLLER(recalls)},
    {GAUGE("moepage_controller_floor_blocks", "KV blocks that it leaves at least"),
     CONTROLLER(floor_blocks)},
    {GAUGE("moepage_controller_peak_blocks", "Most KV blocks used in the last burst"),
     CONTROLLER(peak_blocks)},
    {GAUGE("moepage_controller_accesses", "Uses that its miss curves hold, decayed"),
     LABELS("side=\"experts\""), CONTROLLER(expert_accesses)},
    {LABELS("side=\"kv\""), CONTROLLER(kv_accesses)},
    {GAUGE("moepage_controller_first_accesses", "Of these, first uses"), LABELS("side=\"experts\""),
     CONTROLLER(expert_first)},
    {LABELS("side=\"kv\""), CONTROLLER(kv_first)},
    {GAUGE("moepage_controller_miss_seconds", "Cost of one missing expert or KV block"),
     LABELS("side=\"experts\""), SECONDS, CONTROLLER(expert_miss_ns)},
    {LABELS("side=\"kv\""), SECONDS, CONTROLLER(kv_miss_ns)},
    {GAUGE("moepage_controller_recompute_seconds", "Time of prefill per token"), SECONDS,
     CONTROLLER(recompute_ns)},
    {GAUGE("moepage_controller_layer_seconds", "Computing time of one layer of decode"), SECONDS,
     CONTROLLER(layer_compute_ns)},
    {GAUGE("moepage_controller_predicted_seconds", "Predicted cost of a burst's misses"),
     LABELS("split=\"now\""), SECONDS, CONTROLLER(predicted_now_ns)},
    {LABELS("split=\"best\""), SECONDS, CONTROLLER(predicted_best_ns)},
    {GAUGE("moepage_controller_compute_load_ratio", "The planner's rho: compute to load"), RATIO,
     CONTROLLER(rho)},
    {GAUGE("moepage_controller_device_ratio", "The planner's alpha: experts in device memory"),
     RATIO, CONTROLLER(alpha)},
    {GAUGE("moepage_controller_target_sequences",
           "Sequences that should run at once; 0 = no limit"),
     CONTROLLER(target_running)},
    {GAUGE("moepage_controller_target_tokens_per_second", "Measured with so many; 0 = not known"),
     RATIO, CONTROLLER(target_tokens_per_s)},
    {GAUGE("moepage_controller_predicted_ttft_seconds", "Predicted mean time to the first token"),
     SECONDS, CONTROLLER(predicted_ttft_ns)},
    {GAUGE("moepage_controller_predicted_tpot_seconds",
           "Time between tokens while the target runs, as expected"),
     SECONDS, CONTROLLER(predicted_tpot_ns)},
    {GAUGE("moepage_controller_users", "Users whose working sets it estimates"), CONTROLLER(users)},
    {GAUGE("moepage_controller_sized_users", "Of these, those whose sets are known surely"),
     CONTROLLER(sized_users)},
    {GAUGE("moepage_controller_needed_experts", "Experts that users need; 0 = not sure"),
     LABELS("of=\"largest\""), CONTROLLER(largest_user_experts)},
    {LABELS("of=\"all\""), CONTROLLER(needed_experts)},
    {GAUGE("moepage_controller_cap_slots", "Slots that experts get at most; 0 = no cap"),
     CONTROLLER(cap_slots)},

    {GAUGE("moepage_predictor_info", "1, with the predictor's name"),
     INFO(MP_METRICS_OF_PREDICTOR, describe_predictor)},
    {GAUGE("moepage_predictor_distance_layers", "Layers that it looks ahead"), PREDICTOR(distance)},
    {GAUGE("moepage_predictor_bytes", "Memory that it takes"), PREDICTOR(bytes)},
    {COUNTER("moepage_predictor_iterations_total", "Iterations that it has learnt from"),
     PREDICTOR(iterations)},
    {COUNTER("moepage_predictor_predictions_total", "Predictions that it has made"),
     PREDICTOR(asked)},
};

const uint32_t mp_metric_count = sizeof mp_metric_table / sizeof *mp_metric_table;
