//! The names of all fields and constants, for the test beside it.
//!
//! Generated from lib/abi by `python3 lib/abi/bindings/rust.py`; do not edit.

use moepage_sys::*;

pub fn structs(tell: &mut dyn FnMut(String)) {
    fields!(tell, moepage_engine_config, struct_size, dtype, budget_bytes, budget_percent,
        device_name, device, experts, kv, session, predictor, model, extra_workspace_bytes,
        extra_arena_bytes, sessions, reserved, stream);
    fields!(tell, moepage_external_memory, struct_size, reserved, alloc, free, write, user);
    fields!(tell, moepage_device_config, struct_size, threads, budget_bytes, workspace_bytes,
        bus_bytes_per_s, log, log_user, io_threads, ranges, external, max_budget_bytes,
        reserve_bytes);
    fields!(tell, moepage_device_info, struct_size, threads, budget_bytes, arena_bytes,
        workspace_bytes, used_bytes, peak_bytes, arena_expert_bytes, arena_kv_bytes,
        bus_bytes_per_s, name, kernels, pageable_bytes, budget_aim_bytes, max_budget_bytes,
        reserve_bytes);
    fields!(tell, moepage_linear, struct_size, math, n_rows, n_in, n_out, x_dtype, w_dtype,
        bias_dtype, x, x_stride, w, bias, out, scales, scale_dtype, block_rows, block_columns,
        reserved);
    fields!(tell, moepage_model_config, struct_size, reserved, log, log_user);
    fields!(tell, moepage_expert_tensor, role, dtype, rank, reserved, shape, bytes, offset);
    fields!(tell, moepage_model_info, struct_size, layers, moe_layers, experts, top_k, hidden,
        expert_intermediate, shared_experts, expert_tensors, vocabulary, expert_bytes, slot_bytes,
        routed_bytes, dense_bytes, architecture, ffn_supported, layouts, activation,
        activation_alpha, activation_limit, reserved);
    fields!(tell, moepage_tensor_view, struct_size, dtype, rank, reserved, shape, bytes, data);
    fields!(tell, moepage_dense_tensor, name, dtype, rank, shape, data);
    fields!(tell, moepage_file_place, file, reserved, offset);
    fields!(tell, moepage_banks, struct_size, moe_layers, experts, top_k, hidden,
        expert_intermediate, n_tensors, reserved, tensors, data, read, read_user, architecture,
        config_json, layer_index, layers, shared_experts, vocabulary, n_dense, dense, layer_tensors,
        activation, activation_alpha, activation_limit, n_files, files, places);
    fields!(tell, moepage_metadata, type_, is_array, integer, real, text, text_bytes);
    fields!(tell, moepage_form_info, struct_size, form, present, group_size, image_bytes,
        most_bytes, stored_bytes);
    fields!(tell, moepage_expert_pool_config, struct_size, scope, slots, policy, scan_percent,
        chunk_bytes, tp_rank, tp_size, host_tier_bytes, bus_form, compressed_experts, placement,
        staging_experts, precision, slot_form, reserved);
    fields!(tell, moepage_expert_pool_info, struct_size, devices, slots, resident, loading, pinned,
        slot_bytes, hits, misses, late, evictions, demand_bytes, prefetch_bytes, prefetch_useful,
        prefetch_late, prefetch_wasted, prefetch_cancelled, prefetch_refused, failed_loads,
        bus_form, compressed_experts, compressed_bytes, staging_bytes, host_tier_bytes,
        host_tier_experts, host_tier_resident, host_page_bytes, host_node, host_hits, cold_reads,
        cold_bytes, decodes, compressed_loads, bus_bytes_per_s, decode_bytes_per_s,
        cold_bytes_per_s, live_bus_bytes_per_s, live_decode_bytes_per_s, live_cold_bytes_per_s,
        hi_form, lo_form, hi_experts, slot_form, hi_published, lo_bytes, promotions, demotions,
        transitions_refused, transitions_failed, transition_bytes, decisions, windows,
        prefetch_useful_bytes, prefetch_late_bytes, prefetch_wasted_bytes, resizes, resizes_refused,
        pins_refused, cold_buffered_reads, slot_step, indirect_devices);
    fields!(tell, moepage_residency, struct_size, state, slot, device);
    fields!(tell, moepage_kv_pool_config, struct_size, block_tokens, layers, blocks_per_granule,
        bytes_per_token, blocks, max_sequences);
    fields!(tell, moepage_kv_pool_info, struct_size, block_tokens, blocks, free_blocks, peak_blocks,
        block_bytes, granule_bytes, blocks_per_granule, sequences, swapped, reserved, swap_bytes,
        copies_on_write, relocated_blocks, swapped_out_blocks, swapped_in_blocks, refused, resizes,
        lent_blocks);
    fields!(tell, moepage_kv_layer_view, struct_size, id_stride, base, block_bytes, granule_bytes);
    fields!(tell, moepage_kv_table, struct_size, swapped, blocks, n_blocks, n_tokens);
    fields!(tell, moepage_kv_admission, struct_size, fits, needed_blocks, free_blocks,
        target_running, running);
    fields!(tell, moepage_session_config, struct_size, max_tokens, max_sequences, max_top_k, math,
        prefetch, prefetch_depth, grouping, max_group_experts, regime, miss, reserved, predictor);
    fields!(tell, moepage_step_sequence, seq, n_tokens, phase);
    fields!(tell, moepage_step, struct_size, n_tokens, n_sequences, phase, sequences, semantic,
        semantic_dim, reserved);
    fields!(tell, moepage_routing, struct_size, top_k, ids, weights, probabilities, stream, logits,
        hidden);
    fields!(tell, moepage_plan_expert, expert, slot, device, dtype, first_row, n_rows, tensors);
    fields!(tell, moepage_plan, struct_size, layer, group, n_groups, n_experts, n_rows, n_tokens,
        top_k, experts, rows, tokens, ids, weights, expert_map, slot_base, slot_stride_bytes);
    fields!(tell, moepage_ffn, struct_size, dtype, x, y, x_stride, y_stride, accumulate, reserved,
        stream);
    fields!(tell, moepage_session_stats, struct_size, reserved, steps, tokens, layers, routed, hits,
        misses, late, groups, demand_bytes, stall_ns, compute_ns, wall_ns, hint_experts,
        streamed_layers, regime_changes, low_experts, low_rows, host_experts, remap_layers,
        remap_before, remap_after, remap_tokens, remap_rows, remap_ns, predict_refused,
        stall_slot_ns, stall_load_ns, stall_late_ns, stall_cold_ns);
    fields!(tell, moepage_product, struct_size, math, tensor, x_rows, out_rows, reserved, x,
        x_stride, out, operands);
    fields!(tell, moepage_stats_source, struct_size, reserved, device, experts, kv, controller,
        predictor, labels);
    fields!(tell, moepage_prefetch_info, struct_size, layer, distance, backoffs, useful_bytes,
        late_bytes, wasted_bytes, guessed, right);
    fields!(tell, moepage_predictor_config, struct_size, distance, name, capacity, semantic_dim);
    fields!(tell, moepage_predictor_info, struct_size, distance, name, bytes, iterations, asked);
    fields!(tell, moepage_controller_config, struct_size, mode, burst_steps, kv_miss,
        context_tokens, concurrency, expert_percent, decay_permille, gate_permille, rate_permille,
        dead_zone, headroom_permille, theta_permille, max_samples, admission, target_ttft_ns,
        target_tpot_ns);
    fields!(tell, moepage_controller_report, struct_size, outcome, expert_slots, kv_blocks,
        target_slots, target_blocks, compressed_experts, target_compressed, target_running,
        reserved);
    fields!(tell, moepage_controller_info, struct_size, mode, steps, bursts, moves, refused,
        floor_blocks, peak_blocks, expert_accesses, expert_first, kv_accesses, kv_first,
        expert_miss_ns, kv_miss_ns, recompute_ns, layer_compute_ns, predicted_now_ns,
        predicted_best_ns, rho, alpha, target_tokens_per_s, target_running, reserved, users,
        sized_users, largest_user_experts, needed_experts, cap_slots, recalls, predicted_ttft_ns,
        predicted_tpot_ns);
    fields!(tell, moepage_paged_config, struct_size, buffers, bus_form, compressed_experts,
        staging_experts, reserved, host_tier_bytes);
    fields!(tell, moepage_paged_tensor, struct_size, role, dtype, rank, shape, base, expert_stride,
        layer_stride);
    fields!(tell, moepage_paged_info, struct_size, buffers, bus_form, compressed_experts,
        compressed_target, reserved, mappings, arena_bytes, staging_bytes, loaded_bytes, decodes,
        compressed_loads, host_tier_bytes, host_tier_experts, host_tier_resident, host_hits,
        cold_reads, cold_bytes);
    fields!(tell, moepage_pack_config, struct_size, forms, cold_level, group_size, threads, verify,
        scale_search, reserved, progress, progress_user, moments, moments_user);
    fields!(tell, moepage_pack_stats, struct_size, threads, file_bytes, dense_bytes, routed_bytes,
        form_bytes, raw_parts, wall_ns);
    fields!(tell, moepage_precision_config, struct_size, serve, hi_form, lo_form, lo_fetched,
        hi_experts, interval_us, window_steps, alpha, margin, transitions, hotness);
    fields!(tell, moepage_remap_config, struct_size, gate, alpha, beta, alphas, betas, resident);
    fields!(tell, moepage_rightsize, struct_size, layers, coverage, experts, bytes, freed, unseen);
    fields!(tell, moepage_trace_info, struct_size, moe_layers, experts, max_top_k, semantic_dim,
        has_probabilities, model);
    fields!(tell, moepage_trace_step, struct_size, n_tokens, n_sequences, top_k, step, sequences,
        layer_present, ids, weights, probabilities, semantic);
    fields!(tell, moepage_cuda_info, struct_size, ordinal, compute_major, compute_minor,
        multiprocessors, driver_version, toolkit_version, cublas_version, arena_kind, copy_engines,
        numa_node, poisoned, handle_bytes, handle_ns, device_bytes, driver_calls, name);
    fields!(tell, moepage_cuda_decode_job, src, src_bytes, dst, elements, form, dtype);
    fields!(tell, moepage_cuda_decode, struct_size, n_jobs, jobs, total_elements);
    fields!(tell, moepage_cuda_dequant, struct_size, form, group, src_dtype, dst_dtype, scale_dtype,
        rows, columns, block_rows, src, scales, dst);
    fields!(tell, moepage_cuda_gemv, struct_size, form, group, dtype, n_tokens, reserved, rows,
        columns, w, x, y);
    fields!(tell, moepage_cuda_rows, struct_size, n, limit, row_bytes, index, in_, out, in_stride,
        out_stride);
    fields!(tell, moepage_cuda_topk, struct_size, gate, dtype, n_tokens, experts, top_k, logits,
        bias, scale, reserved, ids, weights);
    fields!(tell, moepage_cuda_remap, struct_size, gate, dtype, n_tokens, experts, top_k, keep,
        alpha, beta, base, bonus, scale, logits, bias, preferred, ids, weights, scratch);
    fields!(tell, moepage_cuda_path_config, struct_size, max_tokens, slots, timeout_ms);
    fields!(tell, moepage_cuda_path_stats, struct_size, status, layers, all_hit, routed, misses,
        evictions);
    fields!(tell, moepage_cuda_layer, struct_size, layer, n_tokens, top_k, dtype, accumulate, ids,
        weights, x, y, x_stride, y_stride);
}

pub fn constants(tell: &mut dyn FnMut(&str, i64)) {
    constants!(tell, MOEPAGE_OK, MOEPAGE_E_ARGUMENT, MOEPAGE_E_STATE, MOEPAGE_E_HANDLE,
        MOEPAGE_E_BUSY, MOEPAGE_E_NO_MEMORY, MOEPAGE_E_BUDGET, MOEPAGE_E_WOULD_NOT_FIT,
        MOEPAGE_E_NOT_FOUND, MOEPAGE_E_IO, MOEPAGE_E_FORMAT, MOEPAGE_E_UNSUPPORTED,
        MOEPAGE_E_VERSION, MOEPAGE_E_CALLBACK, MOEPAGE_E_DEVICE, MOEPAGE_E_END, MOEPAGE_LOG_ERROR,
        MOEPAGE_LOG_WARNING, MOEPAGE_LOG_INFO, MOEPAGE_DTYPE_NONE, MOEPAGE_DTYPE_F32,
        MOEPAGE_DTYPE_F16, MOEPAGE_DTYPE_BF16, MOEPAGE_DTYPE_F8_E4M3, MOEPAGE_DTYPE_F8_E5M2,
        MOEPAGE_DTYPE_F8_E8M0, MOEPAGE_DTYPE_U8, MOEPAGE_DTYPE_I8, MOEPAGE_DTYPE_I32,
        MOEPAGE_DTYPE_I64, MOEPAGE_DTYPE_INT8, MOEPAGE_DTYPE_INT4, MOEPAGE_DTYPE_INT2,
        MOEPAGE_DTYPE_Q4_0, MOEPAGE_DTYPE_Q4_1, MOEPAGE_DTYPE_Q5_0, MOEPAGE_DTYPE_Q5_1,
        MOEPAGE_DTYPE_Q8_0, MOEPAGE_DTYPE_Q2_K, MOEPAGE_DTYPE_Q3_K, MOEPAGE_DTYPE_Q4_K,
        MOEPAGE_DTYPE_Q5_K, MOEPAGE_DTYPE_Q6_K, MOEPAGE_DTYPE_IQ4_NL, MOEPAGE_DTYPE_IQ4_XS,
        MOEPAGE_DTYPE_MXFP4, MOEPAGE_DTYPE_NVFP4, MOEPAGE_DTYPE_W4G32_F16, MOEPAGE_DTYPE_W4G64_F16,
        MOEPAGE_DTYPE_W4G128_F16, MOEPAGE_DTYPE_W4G32_BF16, MOEPAGE_DTYPE_W4G64_BF16,
        MOEPAGE_DTYPE_W4G128_BF16, MOEPAGE_DTYPE_NVFP4G64_F32, MOEPAGE_DTYPE_NVFP4G128_F32,
        MOEPAGE_DTYPE_NVFP4G256_F32, MOEPAGE_ROLE_NONE, MOEPAGE_ROLE_GATE_UP, MOEPAGE_ROLE_GATE,
        MOEPAGE_ROLE_UP, MOEPAGE_ROLE_DOWN, MOEPAGE_ROLE_GATE_UP_SCALE, MOEPAGE_ROLE_GATE_SCALE,
        MOEPAGE_ROLE_UP_SCALE, MOEPAGE_ROLE_DOWN_SCALE, MOEPAGE_ROLE_GATE_UP_BIAS,
        MOEPAGE_ROLE_GATE_BIAS, MOEPAGE_ROLE_UP_BIAS, MOEPAGE_ROLE_DOWN_BIAS,
        MOEPAGE_ACTIVATION_SWIGLU, MOEPAGE_ACTIVATION_SWIGLU_CLAMPED, MOEPAGE_ACTIVATION_OTHER,
        MOEPAGE_FORM_NONE, MOEPAGE_FORM_DENSE, MOEPAGE_FORM_EXPH, MOEPAGE_FORM_INT8,
        MOEPAGE_FORM_INT4, MOEPAGE_FORM_INT2, MOEPAGE_METADATA_INTEGER, MOEPAGE_METADATA_REAL,
        MOEPAGE_METADATA_TRUTH, MOEPAGE_METADATA_TEXT, MOEPAGE_SCOPE_GLOBAL, MOEPAGE_SCOPE_LAYER,
        MOEPAGE_PLACEMENT_EXPLICIT, MOEPAGE_PLACEMENT_BANDWIDTH, MOEPAGE_EXPERT_ABSENT,
        MOEPAGE_EXPERT_LOADING, MOEPAGE_EXPERT_RESIDENT, MOEPAGE_MATH_FP32, MOEPAGE_MATH_BF16,
        MOEPAGE_MATH_BF16_FAST, MOEPAGE_MATH_INT8, MOEPAGE_PREFETCH_OFF, MOEPAGE_PREFETCH_HINT,
        MOEPAGE_PREFETCH_PREVIOUS, MOEPAGE_PREFETCH_PREDICTOR, MOEPAGE_GROUP_EXPERTS,
        MOEPAGE_GROUP_TOKENS, MOEPAGE_MISS_WAIT, MOEPAGE_MISS_LOW, MOEPAGE_MISS_HOST,
        MOEPAGE_REGIME_AUTO, MOEPAGE_REGIME_CACHE, MOEPAGE_REGIME_STREAM, MOEPAGE_PHASE_DECODE,
        MOEPAGE_PHASE_PREFILL, MOEPAGE_ROWS_TOKENS, MOEPAGE_ROWS_CHOICES, MOEPAGE_ROWS_GROUP,
        MOEPAGE_CONTROL_MV_WSA, MOEPAGE_CONTROL_DUAL_RESIZE, MOEPAGE_CONTROL_PLANNER,
        MOEPAGE_CONTROL_OBSERVE, MOEPAGE_CONTROL_FIXED, MOEPAGE_CONTROL_FLUX, MOEPAGE_KV_MISS_SWAP,
        MOEPAGE_KV_MISS_RECOMPUTE, MOEPAGE_CONTROL_WAITS, MOEPAGE_CONTROL_STAYS,
        MOEPAGE_CONTROL_MOVED, MOEPAGE_CONTROL_DRAINING, MOEPAGE_CONTROL_REFUSED,
        MOEPAGE_CONTROL_INFEASIBLE, MOEPAGE_PAGED_UNMAPPED, MOEPAGE_PAGED_LOADING,
        MOEPAGE_PAGED_RESIDENT, MOEPAGE_PAGED_EVICTING, MOEPAGE_SERVE_VERSIONS, MOEPAGE_SERVE_CACHE,
        MOEPAGE_HOTNESS_CHOICES, MOEPAGE_HOTNESS_WEIGHTS, MOEPAGE_GATE_SOFTMAX,
        MOEPAGE_GATE_SIGMOID, MOEPAGE_CUDA_ARENA_VMM, MOEPAGE_CUDA_ARENA_MALLOC,
        MOEPAGE_CUDA_GATE_SOFTMAX_ALL, MOEPAGE_CUDA_GATE_SOFTMAX_ALL_NORM,
        MOEPAGE_CUDA_GATE_SOFTMAX_TOP, MOEPAGE_CUDA_GATE_SIGMOID_NORM, MOEPAGE_MAX_EXPERT_TENSORS,
        MOEPAGE_MAX_RANK, MOEPAGE_MAX_DEVICES, MOEPAGE_NO_EXPERT, MOEPAGE_BUDGET_AUTO,
        MOEPAGE_STATS_TEXT_BYTES);
}
