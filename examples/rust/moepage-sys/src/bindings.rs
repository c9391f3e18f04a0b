//! The C interface of libmoepage, as its ABI tables record it.
//!
//! Generated from lib/abi by `python3 lib/abi/bindings/rust.py`; do not edit.

use std::marker::{PhantomData, PhantomPinned};
use std::os::raw::{c_char, c_void};

pub type moepage_status = i32;
pub type moepage_seq = u64;

pub const MOEPAGE_OK: moepage_status = 0;
pub const MOEPAGE_E_ARGUMENT: moepage_status = -1;
pub const MOEPAGE_E_STATE: moepage_status = -2;
pub const MOEPAGE_E_HANDLE: moepage_status = -3;
pub const MOEPAGE_E_BUSY: moepage_status = -4;
pub const MOEPAGE_E_NO_MEMORY: moepage_status = -5;
pub const MOEPAGE_E_BUDGET: moepage_status = -6;
pub const MOEPAGE_E_WOULD_NOT_FIT: moepage_status = -7;
pub const MOEPAGE_E_NOT_FOUND: moepage_status = -8;
pub const MOEPAGE_E_IO: moepage_status = -9;
pub const MOEPAGE_E_FORMAT: moepage_status = -10;
pub const MOEPAGE_E_UNSUPPORTED: moepage_status = -11;
pub const MOEPAGE_E_VERSION: moepage_status = -12;
pub const MOEPAGE_E_CALLBACK: moepage_status = -13;
pub const MOEPAGE_E_DEVICE: moepage_status = -14;
pub const MOEPAGE_E_END: moepage_status = -15;
pub const MOEPAGE_LOG_ERROR: i32 = 1;
pub const MOEPAGE_LOG_WARNING: i32 = 2;
pub const MOEPAGE_LOG_INFO: i32 = 3;
pub const MOEPAGE_DTYPE_NONE: u32 = 0;
pub const MOEPAGE_DTYPE_F32: u32 = 1;
pub const MOEPAGE_DTYPE_F16: u32 = 2;
pub const MOEPAGE_DTYPE_BF16: u32 = 3;
pub const MOEPAGE_DTYPE_F8_E4M3: u32 = 4;
pub const MOEPAGE_DTYPE_F8_E5M2: u32 = 5;
pub const MOEPAGE_DTYPE_F8_E8M0: u32 = 6;
pub const MOEPAGE_DTYPE_U8: u32 = 7;
pub const MOEPAGE_DTYPE_I8: u32 = 8;
pub const MOEPAGE_DTYPE_I32: u32 = 9;
pub const MOEPAGE_DTYPE_I64: u32 = 10;
pub const MOEPAGE_DTYPE_INT8: u32 = 11;
pub const MOEPAGE_DTYPE_INT4: u32 = 12;
pub const MOEPAGE_DTYPE_INT2: u32 = 13;
pub const MOEPAGE_DTYPE_Q4_0: u32 = 16;
pub const MOEPAGE_DTYPE_Q4_1: u32 = 17;
pub const MOEPAGE_DTYPE_Q5_0: u32 = 18;
pub const MOEPAGE_DTYPE_Q5_1: u32 = 19;
pub const MOEPAGE_DTYPE_Q8_0: u32 = 20;
pub const MOEPAGE_DTYPE_Q2_K: u32 = 21;
pub const MOEPAGE_DTYPE_Q3_K: u32 = 22;
pub const MOEPAGE_DTYPE_Q4_K: u32 = 23;
pub const MOEPAGE_DTYPE_Q5_K: u32 = 24;
pub const MOEPAGE_DTYPE_Q6_K: u32 = 25;
pub const MOEPAGE_DTYPE_IQ4_NL: u32 = 26;
pub const MOEPAGE_DTYPE_IQ4_XS: u32 = 27;
pub const MOEPAGE_DTYPE_MXFP4: u32 = 28;
pub const MOEPAGE_DTYPE_NVFP4: u32 = 29;
pub const MOEPAGE_DTYPE_W4G32_F16: u32 = 30;
pub const MOEPAGE_DTYPE_W4G64_F16: u32 = 31;
pub const MOEPAGE_DTYPE_W4G128_F16: u32 = 32;
pub const MOEPAGE_DTYPE_W4G32_BF16: u32 = 33;
pub const MOEPAGE_DTYPE_W4G64_BF16: u32 = 34;
pub const MOEPAGE_DTYPE_W4G128_BF16: u32 = 35;
pub const MOEPAGE_DTYPE_NVFP4G64_F32: u32 = 36;
pub const MOEPAGE_DTYPE_NVFP4G128_F32: u32 = 37;
pub const MOEPAGE_DTYPE_NVFP4G256_F32: u32 = 38;
pub const MOEPAGE_ROLE_NONE: u32 = 0;
pub const MOEPAGE_ROLE_GATE_UP: u32 = 1;
pub const MOEPAGE_ROLE_GATE: u32 = 2;
pub const MOEPAGE_ROLE_UP: u32 = 3;
pub const MOEPAGE_ROLE_DOWN: u32 = 4;
pub const MOEPAGE_ROLE_GATE_UP_SCALE: u32 = 5;
pub const MOEPAGE_ROLE_GATE_SCALE: u32 = 6;
pub const MOEPAGE_ROLE_UP_SCALE: u32 = 7;
pub const MOEPAGE_ROLE_DOWN_SCALE: u32 = 8;
pub const MOEPAGE_ROLE_GATE_UP_BIAS: u32 = 9;
pub const MOEPAGE_ROLE_GATE_BIAS: u32 = 10;
pub const MOEPAGE_ROLE_UP_BIAS: u32 = 11;
pub const MOEPAGE_ROLE_DOWN_BIAS: u32 = 12;
pub const MOEPAGE_ACTIVATION_SWIGLU: u32 = 0;
pub const MOEPAGE_ACTIVATION_SWIGLU_CLAMPED: u32 = 1;
pub const MOEPAGE_ACTIVATION_OTHER: u32 = 2;
pub const MOEPAGE_FORM_NONE: u32 = 0;
pub const MOEPAGE_FORM_DENSE: u32 = 1;
pub const MOEPAGE_FORM_EXPH: u32 = 2;
pub const MOEPAGE_FORM_INT8: u32 = 3;
pub const MOEPAGE_FORM_INT4: u32 = 4;
pub const MOEPAGE_FORM_INT2: u32 = 5;
pub const MOEPAGE_METADATA_INTEGER: u32 = 1;
pub const MOEPAGE_METADATA_REAL: u32 = 2;
pub const MOEPAGE_METADATA_TRUTH: u32 = 3;
pub const MOEPAGE_METADATA_TEXT: u32 = 4;
pub const MOEPAGE_SCOPE_GLOBAL: u32 = 0;
pub const MOEPAGE_SCOPE_LAYER: u32 = 1;
pub const MOEPAGE_PLACEMENT_EXPLICIT: u32 = 0;
pub const MOEPAGE_PLACEMENT_BANDWIDTH: u32 = 1;
pub const MOEPAGE_EXPERT_ABSENT: u32 = 0;
pub const MOEPAGE_EXPERT_LOADING: u32 = 1;
pub const MOEPAGE_EXPERT_RESIDENT: u32 = 2;
pub const MOEPAGE_MATH_FP32: u32 = 0;
pub const MOEPAGE_MATH_BF16: u32 = 1;
pub const MOEPAGE_MATH_BF16_FAST: u32 = 2;
pub const MOEPAGE_MATH_INT8: u32 = 3;
pub const MOEPAGE_PREFETCH_OFF: u32 = 0;
pub const MOEPAGE_PREFETCH_HINT: u32 = 1;
pub const MOEPAGE_PREFETCH_PREVIOUS: u32 = 2;
pub const MOEPAGE_PREFETCH_PREDICTOR: u32 = 3;
pub const MOEPAGE_GROUP_EXPERTS: u32 = 0;
pub const MOEPAGE_GROUP_TOKENS: u32 = 1;
pub const MOEPAGE_MISS_WAIT: u32 = 0;
pub const MOEPAGE_MISS_LOW: u32 = 1;
pub const MOEPAGE_MISS_HOST: u32 = 2;
pub const MOEPAGE_REGIME_AUTO: u32 = 0;
pub const MOEPAGE_REGIME_CACHE: u32 = 1;
pub const MOEPAGE_REGIME_STREAM: u32 = 2;
pub const MOEPAGE_PHASE_DECODE: u32 = 0;
pub const MOEPAGE_PHASE_PREFILL: u32 = 1;
pub const MOEPAGE_ROWS_TOKENS: u32 = 0;
pub const MOEPAGE_ROWS_CHOICES: u32 = 1;
pub const MOEPAGE_ROWS_GROUP: u32 = 2;
pub const MOEPAGE_CONTROL_MV_WSA: u32 = 0;
pub const MOEPAGE_CONTROL_DUAL_RESIZE: u32 = 1;
pub const MOEPAGE_CONTROL_PLANNER: u32 = 2;
pub const MOEPAGE_CONTROL_OBSERVE: u32 = 3;
pub const MOEPAGE_CONTROL_FIXED: u32 = 4;
pub const MOEPAGE_CONTROL_FLUX: u32 = 5;
pub const MOEPAGE_KV_MISS_SWAP: u32 = 0;
pub const MOEPAGE_KV_MISS_RECOMPUTE: u32 = 1;
pub const MOEPAGE_CONTROL_WAITS: u32 = 0;
pub const MOEPAGE_CONTROL_STAYS: u32 = 1;
pub const MOEPAGE_CONTROL_MOVED: u32 = 2;
pub const MOEPAGE_CONTROL_DRAINING: u32 = 3;
pub const MOEPAGE_CONTROL_REFUSED: u32 = 4;
pub const MOEPAGE_CONTROL_INFEASIBLE: u32 = 5;
pub const MOEPAGE_PAGED_UNMAPPED: u32 = 0;
pub const MOEPAGE_PAGED_LOADING: u32 = 1;
pub const MOEPAGE_PAGED_RESIDENT: u32 = 2;
pub const MOEPAGE_PAGED_EVICTING: u32 = 3;
pub const MOEPAGE_SERVE_VERSIONS: u32 = 0;
pub const MOEPAGE_SERVE_CACHE: u32 = 1;
pub const MOEPAGE_HOTNESS_CHOICES: u32 = 0;
pub const MOEPAGE_HOTNESS_WEIGHTS: u32 = 1;
pub const MOEPAGE_GATE_SOFTMAX: u32 = 0;
pub const MOEPAGE_GATE_SIGMOID: u32 = 1;
pub const MOEPAGE_CUDA_ARENA_VMM: u32 = 1;
pub const MOEPAGE_CUDA_ARENA_MALLOC: u32 = 2;
pub const MOEPAGE_CUDA_GATE_SOFTMAX_ALL: u32 = 0;
pub const MOEPAGE_CUDA_GATE_SOFTMAX_ALL_NORM: u32 = 1;
pub const MOEPAGE_CUDA_GATE_SOFTMAX_TOP: u32 = 2;
pub const MOEPAGE_CUDA_GATE_SIGMOID_NORM: u32 = 3;
pub const MOEPAGE_MAX_EXPERT_TENSORS: usize = 8;
pub const MOEPAGE_MAX_RANK: usize = 4;
pub const MOEPAGE_MAX_DEVICES: usize = 16;
pub const MOEPAGE_NO_EXPERT: i32 = -1;
pub const MOEPAGE_BUDGET_AUTO: u64 = 9223372036854775807;
pub const MOEPAGE_STATS_TEXT_BYTES: usize = 65536;

#[repr(C)]
pub struct moepage_controller {
    _bytes: [u8; 0],
    _marker: PhantomData<(*mut u8, PhantomPinned)>,
}

#[repr(C)]
pub struct moepage_cuda_path {
    _bytes: [u8; 0],
    _marker: PhantomData<(*mut u8, PhantomPinned)>,
}

#[repr(C)]
pub struct moepage_device {
    _bytes: [u8; 0],
    _marker: PhantomData<(*mut u8, PhantomPinned)>,
}

#[repr(C)]
pub struct moepage_engine {
    _bytes: [u8; 0],
    _marker: PhantomData<(*mut u8, PhantomPinned)>,
}

#[repr(C)]
pub struct moepage_expert_pool {
    _bytes: [u8; 0],
    _marker: PhantomData<(*mut u8, PhantomPinned)>,
}

#[repr(C)]
pub struct moepage_kv_pool {
    _bytes: [u8; 0],
    _marker: PhantomData<(*mut u8, PhantomPinned)>,
}

#[repr(C)]
pub struct moepage_model {
    _bytes: [u8; 0],
    _marker: PhantomData<(*mut u8, PhantomPinned)>,
}

#[repr(C)]
pub struct moepage_paged {
    _bytes: [u8; 0],
    _marker: PhantomData<(*mut u8, PhantomPinned)>,
}

#[repr(C)]
pub struct moepage_predictor {
    _bytes: [u8; 0],
    _marker: PhantomData<(*mut u8, PhantomPinned)>,
}

#[repr(C)]
pub struct moepage_session {
    _bytes: [u8; 0],
    _marker: PhantomData<(*mut u8, PhantomPinned)>,
}

#[repr(C)]
pub struct moepage_trace {
    _bytes: [u8; 0],
    _marker: PhantomData<(*mut u8, PhantomPinned)>,
}

pub type moepage_log_fn = Option<unsafe extern "C" fn(
    user: *mut c_void,
    level: i32,
    text: *const c_char,
)>;

pub type moepage_external_alloc_fn = Option<unsafe extern "C" fn(
    user: *mut c_void,
    bytes: u64,
    base: *mut *mut c_void,
) -> moepage_status>;

pub type moepage_external_free_fn = Option<unsafe extern "C" fn(
    user: *mut c_void,
    base: *mut c_void,
    bytes: u64,
)>;

pub type moepage_external_write_fn = Option<unsafe extern "C" fn(
    user: *mut c_void,
    to: *mut c_void,
    from: *const c_void,
    bytes: u64,
) -> moepage_status>;

pub type moepage_read_fn = Option<unsafe extern "C" fn(
    user: *mut c_void,
    layer: u32,
    expert: u32,
    tensor: u32,
    offset: u64,
    bytes: u64,
    out: *mut c_void,
) -> i32>;

pub type moepage_progress_fn = Option<unsafe extern "C" fn(
    user: *mut c_void,
    done_bytes: u64,
    total_bytes: u64,
) -> i32>;

pub type moepage_moments_fn = Option<unsafe extern "C" fn(
    user: *mut c_void,
    layer: u32,
    expert: u32,
    tensor: u32,
    slot: *const c_void,
    columns: u64,
    out: *mut f32,
) -> i32>;

#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct moepage_engine_config {
    pub struct_size: u32,
    pub dtype: u32,
    pub budget_bytes: u64,
    pub budget_percent: f64,
    pub device_name: *const c_char,
    pub device: *const moepage_device_config,
    pub experts: *const moepage_expert_pool_config,
    pub kv: *const moepage_kv_pool_config,
    pub session: *const moepage_session_config,
    pub predictor: *const moepage_predictor_config,
    pub model: *mut moepage_model,
    pub extra_workspace_bytes: u64,
    pub extra_arena_bytes: u64,
    pub sessions: u32,
    pub reserved: u32,
    pub stream: *mut c_void,
}
plain!(moepage_engine_config, 112, struct_size);

#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct moepage_external_memory {
    pub struct_size: u32,
    pub reserved: u32,
    pub alloc: moepage_external_alloc_fn,
    pub free: moepage_external_free_fn,
    pub write: moepage_external_write_fn,
    pub user: *mut c_void,
}
plain!(moepage_external_memory, 40, struct_size);

#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct moepage_device_config {
    pub struct_size: u32,
    pub threads: u32,
    pub budget_bytes: u64,
    pub workspace_bytes: u64,
    pub bus_bytes_per_s: u64,
    pub log: moepage_log_fn,
    pub log_user: *mut c_void,
    pub io_threads: u32,
    pub ranges: u32,
    pub external: *const moepage_external_memory,
    pub max_budget_bytes: u64,
    pub reserve_bytes: u64,
}
plain!(moepage_device_config, 80, struct_size);

#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct moepage_device_info {
    pub struct_size: u32,
    pub threads: u32,
    pub budget_bytes: u64,
    pub arena_bytes: u64,
    pub workspace_bytes: u64,
    pub used_bytes: u64,
    pub peak_bytes: u64,
    pub arena_expert_bytes: u64,
    pub arena_kv_bytes: u64,
    pub bus_bytes_per_s: u64,
    pub name: *const c_char,
    pub kernels: *const c_char,
    pub pageable_bytes: u64,
    pub budget_aim_bytes: u64,
    pub max_budget_bytes: u64,
    pub reserve_bytes: u64,
}
plain!(moepage_device_info, 120, struct_size);

#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct moepage_linear {
    pub struct_size: u32,
    pub math: u32,
    pub n_rows: u32,
    pub n_in: u32,
    pub n_out: u32,
    pub x_dtype: u32,
    pub w_dtype: u32,
    pub bias_dtype: u32,
    pub x: *const c_void,
    pub x_stride: u64,
    pub w: *const c_void,
    pub bias: *const c_void,
    pub out: *mut f32,
    pub scales: *const c_void,
    pub scale_dtype: u32,
    pub block_rows: u32,
    pub block_columns: u32,
    pub reserved: u32,
}
plain!(moepage_linear, 96, struct_size);

#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct moepage_model_config {
    pub struct_size: u32,
    pub reserved: u32,
    pub log: moepage_log_fn,
    pub log_user: *mut c_void,
}
plain!(moepage_model_config, 24, struct_size);

#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct moepage_expert_tensor {
    pub role: u32,
    pub dtype: u32,
    pub rank: u32,
    pub reserved: u32,
    pub shape: [u64; 4],
    pub bytes: u64,
    pub offset: u64,
}
plain!(moepage_expert_tensor, 64);

#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct moepage_model_info {
    pub struct_size: u32,
    pub layers: u32,
    pub moe_layers: u32,
    pub experts: u32,
    pub top_k: u32,
    pub hidden: u32,
    pub expert_intermediate: u32,
    pub shared_experts: u32,
    pub expert_tensors: u32,
    pub vocabulary: u32,
    pub expert_bytes: u64,
    pub slot_bytes: u64,
    pub routed_bytes: u64,
    pub dense_bytes: u64,
    pub architecture: *const c_char,
    pub ffn_supported: u32,
    pub layouts: u32,
    pub activation: u32,
    pub activation_alpha: f32,
    pub activation_limit: f32,
    pub reserved: u32,
}
plain!(moepage_model_info, 104, struct_size);

#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct moepage_tensor_view {
    pub struct_size: u32,
    pub dtype: u32,
    pub rank: u32,
    pub reserved: u32,
    pub shape: [u64; 4],
    pub bytes: u64,
    pub data: *const c_void,
}
plain!(moepage_tensor_view, 64, struct_size);

#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct moepage_dense_tensor {
    pub name: *const c_char,
    pub dtype: u32,
    pub rank: u32,
    pub shape: [u64; 4],
    pub data: *const c_void,
}
plain!(moepage_dense_tensor, 56);

#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct moepage_file_place {
    pub file: u32,
    pub reserved: u32,
    pub offset: u64,
}
plain!(moepage_file_place, 16);

#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct moepage_banks {
    pub struct_size: u32,
    pub moe_layers: u32,
    pub experts: u32,
    pub top_k: u32,
    pub hidden: u32,
    pub expert_intermediate: u32,
    pub n_tensors: u32,
    pub reserved: u32,
    pub tensors: *const moepage_expert_tensor,
    pub data: *const *const c_void,
    pub read: moepage_read_fn,
    pub read_user: *mut c_void,
    pub architecture: *const c_char,
    pub config_json: *const c_char,
    pub layer_index: *const i32,
    pub layers: u32,
    pub shared_experts: u32,
    pub vocabulary: u32,
    pub n_dense: u32,
    pub dense: *const moepage_dense_tensor,
    pub layer_tensors: *const moepage_expert_tensor,
    pub activation: u32,
    pub activation_alpha: f32,
    pub activation_limit: f32,
    pub n_files: u32,
    pub files: *const *const c_char,
    pub places: *const moepage_file_place,
}
plain!(moepage_banks, 152, struct_size);

#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct moepage_metadata {
    pub type_: u32,
    pub is_array: u32,
    pub integer: i64,
    pub real: f64,
    pub text: *const c_char,
    pub text_bytes: u64,
}
plain!(moepage_metadata, 40);

#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct moepage_form_info {
    pub struct_size: u32,
    pub form: u32,
    pub present: u32,
    pub group_size: u32,
    pub image_bytes: u64,
    pub most_bytes: u64,
    pub stored_bytes: u64,
}
plain!(moepage_form_info, 40, struct_size);

#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct moepage_expert_pool_config {
    pub struct_size: u32,
    pub scope: u32,
    pub slots: u64,
    pub policy: *const c_char,
    pub scan_percent: u32,
    pub chunk_bytes: u32,
    pub tp_rank: u32,
    pub tp_size: u32,
    pub host_tier_bytes: u64,
    pub bus_form: u32,
    pub compressed_experts: u32,
    pub placement: u32,
    pub staging_experts: u32,
    pub precision: *const moepage_precision_config,
    pub slot_form: u32,
    pub reserved: u32,
}
plain!(moepage_expert_pool_config, 80, struct_size);

#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct moepage_expert_pool_info {
    pub struct_size: u32,
    pub devices: u32,
    pub slots: u64,
    pub resident: u64,
    pub loading: u64,
    pub pinned: u64,
    pub slot_bytes: u64,
    pub hits: u64,
    pub misses: u64,
    pub late: u64,
    pub evictions: u64,
    pub demand_bytes: u64,
    pub prefetch_bytes: u64,
    pub prefetch_useful: u64,
    pub prefetch_late: u64,
    pub prefetch_wasted: u64,
    pub prefetch_cancelled: u64,
    pub prefetch_refused: u64,
    pub failed_loads: u64,
    pub bus_form: u32,
    pub compressed_experts: u32,
    pub compressed_bytes: u64,
    pub staging_bytes: u64,
    pub host_tier_bytes: u64,
    pub host_tier_experts: u64,
    pub host_tier_resident: u64,
    pub host_page_bytes: u32,
    pub host_node: i32,
    pub host_hits: u64,
    pub cold_reads: u64,
    pub cold_bytes: u64,
    pub decodes: u64,
    pub compressed_loads: u64,
    pub bus_bytes_per_s: u64,
    pub decode_bytes_per_s: u64,
    pub cold_bytes_per_s: u64,
    pub live_bus_bytes_per_s: u64,
    pub live_decode_bytes_per_s: u64,
    pub live_cold_bytes_per_s: u64,
    pub hi_form: u32,
    pub lo_form: u32,
    pub hi_experts: u32,
    pub slot_form: u32,
    pub hi_published: u64,
    pub lo_bytes: u64,
    pub promotions: u64,
    pub demotions: u64,
    pub transitions_refused: u64,
    pub transitions_failed: u64,
    pub transition_bytes: u64,
    pub decisions: u64,
    pub windows: u64,
    pub prefetch_useful_bytes: u64,
    pub prefetch_late_bytes: u64,
    pub prefetch_wasted_bytes: u64,
    pub resizes: u64,
    pub resizes_refused: u64,
    pub pins_refused: u64,
    pub cold_buffered_reads: u64,
    pub slot_step: u64,
    pub indirect_devices: u64,
}
plain!(moepage_expert_pool_info, 448, struct_size);

#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct moepage_residency {
    pub struct_size: u32,
    pub state: u32,
    pub slot: i32,
    pub device: u32,
}
plain!(moepage_residency, 16, struct_size);

#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct moepage_kv_pool_config {
    pub struct_size: u32,
    pub block_tokens: u32,
    pub layers: u32,
    pub blocks_per_granule: u32,
    pub bytes_per_token: *const u32,
    pub blocks: u64,
    pub max_sequences: u64,
}
plain!(moepage_kv_pool_config, 40, struct_size);

#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct moepage_kv_pool_info {
    pub struct_size: u32,
    pub block_tokens: u32,
    pub blocks: u64,
    pub free_blocks: u64,
    pub peak_blocks: u64,
    pub block_bytes: u64,
    pub granule_bytes: u64,
    pub blocks_per_granule: u32,
    pub sequences: u32,
    pub swapped: u32,
    pub reserved: u32,
    pub swap_bytes: u64,
    pub copies_on_write: u64,
    pub relocated_blocks: u64,
    pub swapped_out_blocks: u64,
    pub swapped_in_blocks: u64,
    pub refused: u64,
    pub resizes: u64,
    pub lent_blocks: u64,
}
plain!(moepage_kv_pool_info, 128, struct_size);

#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct moepage_kv_layer_view {
    pub struct_size: u32,
    pub id_stride: u32,
    pub base: *mut c_void,
    pub block_bytes: u64,
    pub granule_bytes: u64,
}
plain!(moepage_kv_layer_view, 32, struct_size);

#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct moepage_kv_table {
    pub struct_size: u32,
    pub swapped: u32,
    pub blocks: *const u32,
    pub n_blocks: u64,
    pub n_tokens: u64,
}
plain!(moepage_kv_table, 32, struct_size);

#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct moepage_kv_admission {
    pub struct_size: u32,
    pub fits: u32,
    pub needed_blocks: u64,
    pub free_blocks: u64,
    pub target_running: u32,
    pub running: u32,
}
plain!(moepage_kv_admission, 32, struct_size);

#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct moepage_session_config {
    pub struct_size: u32,
    pub max_tokens: u32,
    pub max_sequences: u32,
    pub max_top_k: u32,
    pub math: u32,
    pub prefetch: u32,
    pub prefetch_depth: u32,
    pub grouping: u32,
    pub max_group_experts: u32,
    pub regime: u32,
    pub miss: u32,
    pub reserved: u32,
    pub predictor: *mut moepage_predictor,
}
plain!(moepage_session_config, 56, struct_size);

#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct moepage_step_sequence {
    pub seq: moepage_seq,
    pub n_tokens: u32,
    pub phase: u32,
}
plain!(moepage_step_sequence, 16);

#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct moepage_step {
    pub struct_size: u32,
    pub n_tokens: u32,
    pub n_sequences: u32,
    pub phase: u32,
    pub sequences: *const moepage_step_sequence,
    pub semantic: *const f32,
    pub semantic_dim: u32,
    pub reserved: u32,
}
plain!(moepage_step, 40, struct_size);

#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct moepage_routing {
    pub struct_size: u32,
    pub top_k: u32,
    pub ids: *const i32,
    pub weights: *const f32,
    pub probabilities: *const f32,
    pub stream: *mut c_void,
    pub logits: *const f32,
    pub hidden: *const f32,
}
plain!(moepage_routing, 56, struct_size);

#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct moepage_plan_expert {
    pub expert: u32,
    pub slot: i32,
    pub device: u32,
    pub dtype: u32,
    pub first_row: u32,
    pub n_rows: u32,
    pub tensors: *const *const c_void,
}
plain!(moepage_plan_expert, 32);

#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct moepage_plan {
    pub struct_size: u32,
    pub layer: u32,
    pub group: u32,
    pub n_groups: u32,
    pub n_experts: u32,
    pub n_rows: u32,
    pub n_tokens: u32,
    pub top_k: u32,
    pub experts: *const moepage_plan_expert,
    pub rows: *const u32,
    pub tokens: *const u32,
    pub ids: *const i32,
    pub weights: *const f32,
    pub expert_map: *const i32,
    pub slot_base: *mut c_void,
    pub slot_stride_bytes: u64,
}
plain!(moepage_plan, 96, struct_size);

#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct moepage_ffn {
    pub struct_size: u32,
    pub dtype: u32,
    pub x: *const c_void,
    pub y: *mut c_void,
    pub x_stride: u64,
    pub y_stride: u64,
    pub accumulate: u32,
    pub reserved: u32,
    pub stream: *mut c_void,
}
plain!(moepage_ffn, 56, struct_size);

#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct moepage_session_stats {
    pub struct_size: u32,
    pub reserved: u32,
    pub steps: u64,
    pub tokens: u64,
    pub layers: u64,
    pub routed: u64,
    pub hits: u64,
    pub misses: u64,
    pub late: u64,
    pub groups: u64,
    pub demand_bytes: u64,
    pub stall_ns: u64,
    pub compute_ns: u64,
    pub wall_ns: u64,
    pub hint_experts: u64,
    pub streamed_layers: u64,
    pub regime_changes: u64,
    pub low_experts: u64,
    pub low_rows: u64,
    pub host_experts: u64,
    pub remap_layers: u64,
    pub remap_before: u64,
    pub remap_after: u64,
    pub remap_tokens: u64,
    pub remap_rows: u64,
    pub remap_ns: u64,
    pub predict_refused: u64,
    pub stall_slot_ns: u64,
    pub stall_load_ns: u64,
    pub stall_late_ns: u64,
    pub stall_cold_ns: u64,
}
plain!(moepage_session_stats, 240, struct_size);

#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct moepage_product {
    pub struct_size: u32,
    pub math: u32,
    pub tensor: u32,
    pub x_rows: u32,
    pub out_rows: u32,
    pub reserved: u32,
    pub x: *const f32,
    pub x_stride: u64,
    pub out: *mut f32,
    pub operands: *mut c_void,
}
plain!(moepage_product, 56, struct_size);

#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct moepage_stats_source {
    pub struct_size: u32,
    pub reserved: u32,
    pub device: *mut moepage_device,
    pub experts: *mut moepage_expert_pool,
    pub kv: *mut moepage_kv_pool,
    pub controller: *mut moepage_controller,
    pub predictor: *mut moepage_predictor,
    pub labels: *const c_char,
}
plain!(moepage_stats_source, 56, struct_size);

#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct moepage_prefetch_info {
    pub struct_size: u32,
    pub layer: u32,
    pub distance: u32,
    pub backoffs: u32,
    pub useful_bytes: u64,
    pub late_bytes: u64,
    pub wasted_bytes: u64,
    pub guessed: u64,
    pub right: u64,
}
plain!(moepage_prefetch_info, 56, struct_size);

#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct moepage_predictor_config {
    pub struct_size: u32,
    pub distance: u32,
    pub name: *const c_char,
    pub capacity: u32,
    pub semantic_dim: u32,
}
plain!(moepage_predictor_config, 24, struct_size);

#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct moepage_predictor_info {
    pub struct_size: u32,
    pub distance: u32,
    pub name: [c_char; 32],
    pub bytes: u64,
    pub iterations: u64,
    pub asked: u64,
}
plain!(moepage_predictor_info, 64, struct_size);

#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct moepage_controller_config {
    pub struct_size: u32,
    pub mode: u32,
    pub burst_steps: u32,
    pub kv_miss: u32,
    pub context_tokens: u64,
    pub concurrency: u32,
    pub expert_percent: u32,
    pub decay_permille: u32,
    pub gate_permille: u32,
    pub rate_permille: u32,
    pub dead_zone: u32,
    pub headroom_permille: u32,
    pub theta_permille: u32,
    pub max_samples: u32,
    pub admission: u32,
    pub target_ttft_ns: u64,
    pub target_tpot_ns: u64,
}
plain!(moepage_controller_config, 80, struct_size);

#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct moepage_controller_report {
    pub struct_size: u32,
    pub outcome: u32,
    pub expert_slots: u64,
    pub kv_blocks: u64,
    pub target_slots: u64,
    pub target_blocks: u64,
    pub compressed_experts: u32,
    pub target_compressed: u32,
    pub target_running: u32,
    pub reserved: u32,
}
plain!(moepage_controller_report, 56, struct_size);

#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct moepage_controller_info {
    pub struct_size: u32,
    pub mode: u32,
    pub steps: u64,
    pub bursts: u64,
    pub moves: u64,
    pub refused: u64,
    pub floor_blocks: u64,
    pub peak_blocks: u64,
    pub expert_accesses: u64,
    pub expert_first: u64,
    pub kv_accesses: u64,
    pub kv_first: u64,
    pub expert_miss_ns: f64,
    pub kv_miss_ns: f64,
    pub recompute_ns: f64,
    pub layer_compute_ns: f64,
    pub predicted_now_ns: f64,
    pub predicted_best_ns: f64,
    pub rho: f64,
    pub alpha: f64,
    pub target_tokens_per_s: f64,
    pub target_running: u32,
    pub reserved: u32,
    pub users: u32,
    pub sized_users: u32,
    pub largest_user_experts: u64,
    pub needed_experts: u64,
    pub cap_slots: u64,
    pub recalls: u64,
    pub predicted_ttft_ns: f64,
    pub predicted_tpot_ns: f64,
}
plain!(moepage_controller_info, 224, struct_size);

#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct moepage_paged_config {
    pub struct_size: u32,
    pub buffers: u32,
    pub bus_form: u32,
    pub compressed_experts: u32,
    pub staging_experts: u32,
    pub reserved: u32,
    pub host_tier_bytes: u64,
}
plain!(moepage_paged_config, 32, struct_size);

#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct moepage_paged_tensor {
    pub struct_size: u32,
    pub role: u32,
    pub dtype: u32,
    pub rank: u32,
    pub shape: [u64; 4],
    pub base: *mut c_void,
    pub expert_stride: u64,
    pub layer_stride: u64,
}
plain!(moepage_paged_tensor, 72, struct_size);

#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct moepage_paged_info {
    pub struct_size: u32,
    pub buffers: u32,
    pub bus_form: u32,
    pub compressed_experts: u32,
    pub compressed_target: u32,
    pub reserved: u32,
    pub mappings: u64,
    pub arena_bytes: u64,
    pub staging_bytes: u64,
    pub loaded_bytes: u64,
    pub decodes: u64,
    pub compressed_loads: u64,
    pub host_tier_bytes: u64,
    pub host_tier_experts: u64,
    pub host_tier_resident: u64,
    pub host_hits: u64,
    pub cold_reads: u64,
    pub cold_bytes: u64,
}
plain!(moepage_paged_info, 120, struct_size);

#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct moepage_pack_config {
    pub struct_size: u32,
    pub forms: u32,
    pub cold_level: i32,
    pub group_size: u32,
    pub threads: u32,
    pub verify: u32,
    pub scale_search: u32,
    pub reserved: u32,
    pub progress: moepage_progress_fn,
    pub progress_user: *mut c_void,
    pub moments: moepage_moments_fn,
    pub moments_user: *mut c_void,
}
plain!(moepage_pack_config, 64, struct_size);

#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct moepage_pack_stats {
    pub struct_size: u32,
    pub threads: u32,
    pub file_bytes: u64,
    pub dense_bytes: u64,
    pub routed_bytes: u64,
    pub form_bytes: [u64; 8],
    pub raw_parts: u64,
    pub wall_ns: u64,
}
plain!(moepage_pack_stats, 112, struct_size);

#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct moepage_precision_config {
    pub struct_size: u32,
    pub serve: u32,
    pub hi_form: u32,
    pub lo_form: u32,
    pub lo_fetched: u32,
    pub hi_experts: u32,
    pub interval_us: u32,
    pub window_steps: u32,
    pub alpha: f64,
    pub margin: f64,
    pub transitions: u32,
    pub hotness: u32,
}
plain!(moepage_precision_config, 56, struct_size);

#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct moepage_remap_config {
    pub struct_size: u32,
    pub gate: u32,
    pub alpha: f64,
    pub beta: f64,
    pub alphas: *const f32,
    pub betas: *const f32,
    pub resident: f64,
}
plain!(moepage_remap_config, 48, struct_size);

#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct moepage_rightsize {
    pub struct_size: u32,
    pub layers: u32,
    pub coverage: f64,
    pub experts: u64,
    pub bytes: u64,
    pub freed: u64,
    pub unseen: f64,
}
plain!(moepage_rightsize, 48, struct_size);

#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct moepage_trace_info {
    pub struct_size: u32,
    pub moe_layers: u32,
    pub experts: u32,
    pub max_top_k: u32,
    pub semantic_dim: u32,
    pub has_probabilities: u32,
    pub model: [c_char; 64],
}
plain!(moepage_trace_info, 88, struct_size);

#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct moepage_trace_step {
    pub struct_size: u32,
    pub n_tokens: u32,
    pub n_sequences: u32,
    pub top_k: u32,
    pub step: u64,
    pub sequences: *const moepage_step_sequence,
    pub layer_present: *const u8,
    pub ids: *const i32,
    pub weights: *const f32,
    pub probabilities: *const f32,
    pub semantic: *const f32,
}
plain!(moepage_trace_step, 72, struct_size);

#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct moepage_cuda_info {
    pub struct_size: u32,
    pub ordinal: u32,
    pub compute_major: u32,
    pub compute_minor: u32,
    pub multiprocessors: u32,
    pub driver_version: u32,
    pub toolkit_version: u32,
    pub cublas_version: u32,
    pub arena_kind: u32,
    pub copy_engines: u32,
    pub numa_node: i32,
    pub poisoned: u32,
    pub handle_bytes: u64,
    pub handle_ns: u64,
    pub device_bytes: u64,
    pub driver_calls: u64,
    pub name: [c_char; 64],
}
plain!(moepage_cuda_info, 144, struct_size);

#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct moepage_cuda_decode_job {
    pub src: *const c_void,
    pub src_bytes: u64,
    pub dst: *mut c_void,
    pub elements: u64,
    pub form: u32,
    pub dtype: u32,
}
plain!(moepage_cuda_decode_job, 40);

#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct moepage_cuda_decode {
    pub struct_size: u32,
    pub n_jobs: u32,
    pub jobs: *const moepage_cuda_decode_job,
    pub total_elements: u64,
}
plain!(moepage_cuda_decode, 24, struct_size);

#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct moepage_cuda_dequant {
    pub struct_size: u32,
    pub form: u32,
    pub group: u32,
    pub src_dtype: u32,
    pub dst_dtype: u32,
    pub scale_dtype: u32,
    pub rows: u64,
    pub columns: u64,
    pub block_rows: u64,
    pub src: *const c_void,
    pub scales: *const c_void,
    pub dst: *mut c_void,
}
plain!(moepage_cuda_dequant, 72, struct_size);

#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct moepage_cuda_gemv {
    pub struct_size: u32,
    pub form: u32,
    pub group: u32,
    pub dtype: u32,
    pub n_tokens: u32,
    pub reserved: u32,
    pub rows: u64,
    pub columns: u64,
    pub w: *const c_void,
    pub x: *const c_void,
    pub y: *mut c_void,
}
plain!(moepage_cuda_gemv, 64, struct_size);

#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct moepage_cuda_rows {
    pub struct_size: u32,
    pub n: u32,
    pub limit: u32,
    pub row_bytes: u32,
    pub index: *const i32,
    pub in_: *const c_void,
    pub out: *mut c_void,
    pub in_stride: u64,
    pub out_stride: u64,
}
plain!(moepage_cuda_rows, 56, struct_size);

#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct moepage_cuda_topk {
    pub struct_size: u32,
    pub gate: u32,
    pub dtype: u32,
    pub n_tokens: u32,
    pub experts: u32,
    pub top_k: u32,
    pub logits: *const c_void,
    pub bias: *const f32,
    pub scale: f32,
    pub reserved: u32,
    pub ids: *mut i32,
    pub weights: *mut f32,
}
plain!(moepage_cuda_topk, 64, struct_size);

#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct moepage_cuda_remap {
    pub struct_size: u32,
    pub gate: u32,
    pub dtype: u32,
    pub n_tokens: u32,
    pub experts: u32,
    pub top_k: u32,
    pub keep: u32,
    pub alpha: f32,
    pub beta: f32,
    pub base: f32,
    pub bonus: f32,
    pub scale: f32,
    pub logits: *const c_void,
    pub bias: *const f32,
    pub preferred: *const u8,
    pub ids: *mut i32,
    pub weights: *mut f32,
    pub scratch: *mut c_void,
}
plain!(moepage_cuda_remap, 96, struct_size);

#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct moepage_cuda_path_config {
    pub struct_size: u32,
    pub max_tokens: u32,
    pub slots: u32,
    pub timeout_ms: u32,
}
plain!(moepage_cuda_path_config, 16, struct_size);

#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct moepage_cuda_path_stats {
    pub struct_size: u32,
    pub status: i32,
    pub layers: u64,
    pub all_hit: u64,
    pub routed: u64,
    pub misses: u64,
    pub evictions: u64,
}
plain!(moepage_cuda_path_stats, 48, struct_size);

#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct moepage_cuda_layer {
    pub struct_size: u32,
    pub layer: u32,
    pub n_tokens: u32,
    pub top_k: u32,
    pub dtype: u32,
    pub accumulate: u32,
    pub ids: *const i32,
    pub weights: *const f32,
    pub x: *const c_void,
    pub y: *mut c_void,
    pub x_stride: u64,
    pub y_stride: u64,
}
plain!(moepage_cuda_layer, 72, struct_size);

extern "C" {
    pub fn moepage_blocks_decode(
        dtype: u32,
        in_: *const c_void,
        bytes: u64,
        out: *mut f32,
        n: u64,
    ) -> moepage_status;
    pub fn moepage_controller_create(
        experts: *mut moepage_expert_pool,
        kv: *mut moepage_kv_pool,
        config: *const moepage_controller_config,
        out: *mut *mut moepage_controller,
    ) -> moepage_status;
    pub fn moepage_controller_destroy(controller: *mut moepage_controller) -> moepage_status;
    pub fn moepage_controller_get_curve(
        controller: *mut moepage_controller,
        kv: u32,
        sizes: *const u64,
        n: u32,
        misses: *mut f64,
    ) -> moepage_status;
    pub fn moepage_controller_get_info(
        controller: *mut moepage_controller,
        info: *mut moepage_controller_info,
    ) -> moepage_status;
    pub fn moepage_controller_get_rightsize(
        controller: *mut moepage_controller,
        user: u32,
        size: *mut moepage_rightsize,
    ) -> moepage_status;
    pub fn moepage_controller_kv_use(
        controller: *mut moepage_controller,
        key: u64,
        tokens: u64,
    ) -> moepage_status;
    pub fn moepage_controller_rightsize(
        controller: *mut moepage_controller,
        predictors: *const *mut moepage_predictor,
        n: u32,
        coverage_permille: u32,
    ) -> moepage_status;
    pub fn moepage_controller_tick(
        controller: *mut moepage_controller,
        stream: *mut c_void,
        report: *mut moepage_controller_report,
    ) -> moepage_status;
    pub fn moepage_cuda_dequantise(
        device: *mut moepage_device,
        args: *const moepage_cuda_dequant,
        stream: *mut c_void,
    ) -> moepage_status;
    pub fn moepage_cuda_exph_decode(
        device: *mut moepage_device,
        args: *const moepage_cuda_decode,
        stream: *mut c_void,
    ) -> moepage_status;
    pub fn moepage_cuda_gather(
        device: *mut moepage_device,
        args: *const moepage_cuda_rows,
        stream: *mut c_void,
    ) -> moepage_status;
    pub fn moepage_cuda_gemv_run(
        device: *mut moepage_device,
        args: *const moepage_cuda_gemv,
        stream: *mut c_void,
    ) -> moepage_status;
    pub fn moepage_cuda_get_info(
        device: *mut moepage_device,
        info: *mut moepage_cuda_info,
    ) -> moepage_status;
    pub fn moepage_cuda_path_check(
        path: *mut moepage_cuda_path,
        stats: *mut moepage_cuda_path_stats,
    ) -> moepage_status;
    pub fn moepage_cuda_path_create(
        session: *mut moepage_session,
        config: *const moepage_cuda_path_config,
        out: *mut *mut moepage_cuda_path,
    ) -> moepage_status;
    pub fn moepage_cuda_path_destroy(path: *mut moepage_cuda_path) -> moepage_status;
    pub fn moepage_cuda_path_layer(
        path: *mut moepage_cuda_path,
        layer: *const moepage_cuda_layer,
        stream: *mut c_void,
    ) -> moepage_status;
    pub fn moepage_cuda_path_workspace(
        model: *const moepage_model,
        session: *const moepage_session_config,
        config: *const moepage_cuda_path_config,
        bytes: *mut u64,
    ) -> moepage_status;
    pub fn moepage_cuda_remap_run(
        device: *mut moepage_device,
        args: *const moepage_cuda_remap,
        stream: *mut c_void,
    ) -> moepage_status;
    pub fn moepage_cuda_remap_scratch(n_tokens: u32, experts: u32) -> u64;
    pub fn moepage_cuda_scatter(
        device: *mut moepage_device,
        args: *const moepage_cuda_rows,
        stream: *mut c_void,
    ) -> moepage_status;
    pub fn moepage_cuda_topk_run(
        device: *mut moepage_device,
        args: *const moepage_cuda_topk,
        stream: *mut c_void,
    ) -> moepage_status;
    pub fn moepage_device_close(device: *mut moepage_device) -> moepage_status;
    pub fn moepage_device_follow_memory(
        device: *mut moepage_device,
        stream: *mut c_void,
    ) -> moepage_status;
    pub fn moepage_device_get_info(
        device: *mut moepage_device,
        info: *mut moepage_device_info,
    ) -> moepage_status;
    pub fn moepage_device_linear(
        device: *mut moepage_device,
        linear: *const moepage_linear,
    ) -> moepage_status;
    pub fn moepage_device_open(
        name: *const c_char,
        config: *const moepage_device_config,
        out: *mut *mut moepage_device,
    ) -> moepage_status;
    pub fn moepage_device_set_budget(
        device: *mut moepage_device,
        bytes: u64,
        stream: *mut c_void,
    ) -> moepage_status;
    pub fn moepage_engine_begin(engine: *mut moepage_engine, n_tokens: u32) -> moepage_status;
    pub fn moepage_engine_close(engine: *mut moepage_engine) -> moepage_status;
    pub fn moepage_engine_device(engine: *const moepage_engine) -> *mut moepage_device;
    pub fn moepage_engine_end(
        engine: *mut moepage_engine,
        stats: *mut moepage_session_stats,
    ) -> moepage_status;
    pub fn moepage_engine_expert_pool(engine: *const moepage_engine) -> *mut moepage_expert_pool;
    pub fn moepage_engine_experts(
        engine: *mut moepage_engine,
        layer: u32,
        top_k: u32,
        ids: *const i32,
        weights: *const f32,
        x: *const c_void,
        y: *mut c_void,
    ) -> moepage_status;
    pub fn moepage_engine_kv_pool(engine: *const moepage_engine) -> *mut moepage_kv_pool;
    pub fn moepage_engine_layers(engine: *const moepage_engine) -> u32;
    pub fn moepage_engine_model(engine: *const moepage_engine) -> *mut moepage_model;
    pub fn moepage_engine_open(
        path: *const c_char,
        options: *const c_char,
        config: *const moepage_engine_config,
        out: *mut *mut moepage_engine,
    ) -> moepage_status;
    pub fn moepage_engine_predictor(engine: *const moepage_engine) -> *mut moepage_predictor;
    pub fn moepage_engine_session(engine: *const moepage_engine) -> *mut moepage_session;
    pub fn moepage_expert_pool_create(
        devices: *const *mut moepage_device,
        n_devices: u32,
        model: *mut moepage_model,
        config: *const moepage_expert_pool_config,
        out: *mut *mut moepage_expert_pool,
    ) -> moepage_status;
    pub fn moepage_expert_pool_destroy(pool: *mut moepage_expert_pool) -> moepage_status;
    pub fn moepage_expert_pool_get_info(
        pool: *mut moepage_expert_pool,
        info: *mut moepage_expert_pool_info,
    ) -> moepage_status;
    pub fn moepage_expert_pool_get_stats(
        pool: *mut moepage_expert_pool,
        stats: *mut moepage_session_stats,
    ) -> moepage_status;
    pub fn moepage_expert_pool_lookup(
        pool: *mut moepage_expert_pool,
        layer: u32,
        expert: u32,
        out: *mut moepage_residency,
    ) -> moepage_status;
    pub fn moepage_expert_pool_pin(
        pool: *mut moepage_expert_pool,
        layer: u32,
        expert: u32,
    ) -> moepage_status;
    pub fn moepage_expert_pool_sizes(
        model: *const moepage_model,
        config: *const moepage_expert_pool_config,
        n_devices: u32,
        workspace_bytes: *mut u64,
        arena_bytes: *mut u64,
    ) -> moepage_status;
    pub fn moepage_expert_pool_unpin(
        pool: *mut moepage_expert_pool,
        layer: u32,
        expert: u32,
    ) -> moepage_status;
    pub fn moepage_exph_bound(dtype: u32, n: u64) -> u64;
    pub fn moepage_exph_decode(
        decoder: *const c_char,
        dtype: u32,
        in_: *const c_void,
        bytes: u64,
        out: *mut c_void,
        n: u64,
    ) -> moepage_status;
    pub fn moepage_exph_encode(
        dtype: u32,
        in_: *const c_void,
        n: u64,
        out: *mut c_void,
        capacity: u64,
        out_bytes: *mut u64,
    ) -> moepage_status;
    pub fn moepage_kv_admit(
        pool: *mut moepage_kv_pool,
        tokens: *const u64,
        n_sequences: u32,
        out: *mut moepage_kv_admission,
    ) -> moepage_status;
    pub fn moepage_kv_append(
        pool: *mut moepage_kv_pool,
        seq: moepage_seq,
        n_tokens: u64,
        stream: *mut c_void,
    ) -> moepage_status;
    pub fn moepage_kv_create(pool: *mut moepage_kv_pool, out: *mut moepage_seq) -> moepage_status;
    pub fn moepage_kv_fork(
        pool: *mut moepage_kv_pool,
        parent: moepage_seq,
        out: *mut moepage_seq,
    ) -> moepage_status;
    pub fn moepage_kv_free(pool: *mut moepage_kv_pool, seq: moepage_seq) -> moepage_status;
    pub fn moepage_kv_get_table(
        pool: *mut moepage_kv_pool,
        seq: moepage_seq,
        table: *mut moepage_kv_table,
    ) -> moepage_status;
    pub fn moepage_kv_pool_create(
        device: *mut moepage_device,
        config: *const moepage_kv_pool_config,
        out: *mut *mut moepage_kv_pool,
    ) -> moepage_status;
    pub fn moepage_kv_pool_destroy(pool: *mut moepage_kv_pool) -> moepage_status;
    pub fn moepage_kv_pool_get_info(
        pool: *mut moepage_kv_pool,
        info: *mut moepage_kv_pool_info,
    ) -> moepage_status;
    pub fn moepage_kv_pool_get_layer(
        pool: *mut moepage_kv_pool,
        layer: u32,
        view: *mut moepage_kv_layer_view,
    ) -> moepage_status;
    pub fn moepage_kv_pool_sizes(
        config: *const moepage_kv_pool_config,
        arena_bytes: *mut u64,
    ) -> moepage_status;
    pub fn moepage_kv_swap_in(
        pool: *mut moepage_kv_pool,
        seq: moepage_seq,
        stream: *mut c_void,
    ) -> moepage_status;
    pub fn moepage_kv_swap_out(
        pool: *mut moepage_kv_pool,
        seq: moepage_seq,
        stream: *mut c_void,
    ) -> moepage_status;
    pub fn moepage_kv_truncate(
        pool: *mut moepage_kv_pool,
        seq: moepage_seq,
        n_tokens: u64,
    ) -> moepage_status;
    pub fn moepage_last_error() -> *const c_char;
    pub fn moepage_model_close(model: *mut moepage_model) -> moepage_status;
    pub fn moepage_model_config_json(model: *const moepage_model) -> *const c_char;
    pub fn moepage_model_find_tensor(
        model: *const moepage_model,
        name: *const c_char,
        out: *mut moepage_tensor_view,
    ) -> moepage_status;
    pub fn moepage_model_get_expert_tensors(
        model: *const moepage_model,
        out: *mut moepage_expert_tensor,
        capacity: u32,
    ) -> moepage_status;
    pub fn moepage_model_get_form(
        model: *const moepage_model,
        form: u32,
        info: *mut moepage_form_info,
    ) -> moepage_status;
    pub fn moepage_model_get_info(
        model: *const moepage_model,
        info: *mut moepage_model_info,
    ) -> moepage_status;
    pub fn moepage_model_get_layer_tensors(
        model: *const moepage_model,
        layer: u32,
        out: *mut moepage_expert_tensor,
        capacity: u32,
    ) -> moepage_status;
    pub fn moepage_model_get_metadata(
        model: *const moepage_model,
        key: *const c_char,
        first: u64,
        out: *mut moepage_metadata,
        capacity: u64,
        count: *mut u64,
    ) -> moepage_status;
    pub fn moepage_model_get_tensor_name(
        model: *const moepage_model,
        index: u64,
        out: *mut c_char,
        capacity: u64,
    ) -> moepage_status;
    pub fn moepage_model_layer_index(model: *const moepage_model, moe_layer: u32) -> i32;
    pub fn moepage_model_open(
        path: *const c_char,
        config: *const moepage_model_config,
        out: *mut *mut moepage_model,
    ) -> moepage_status;
    pub fn moepage_model_open_banks(
        banks: *const moepage_banks,
        config: *const moepage_model_config,
        out: *mut *mut moepage_model,
    ) -> moepage_status;
    pub fn moepage_model_read_expert(
        model: *const moepage_model,
        layer: u32,
        expert: u32,
        out: *mut c_void,
        capacity: u64,
    ) -> moepage_status;
    pub fn moepage_model_read_tensor(
        model: *const moepage_model,
        name: *const c_char,
        offset: u64,
        bytes: u64,
        out: *mut c_void,
        view: *mut moepage_tensor_view,
    ) -> moepage_status;
    pub fn moepage_pack_write(
        model: *const moepage_model,
        path: *const c_char,
        config: *const moepage_pack_config,
        stats: *mut moepage_pack_stats,
    ) -> moepage_status;
    pub fn moepage_paged_acquire(
        paged: *mut moepage_paged,
        layer: u32,
        stream: *mut c_void,
    ) -> moepage_status;
    pub fn moepage_paged_balance(
        paged: *mut moepage_paged,
        kv: *mut moepage_kv_pool,
        headroom_permille: u32,
        stream: *mut c_void,
        report: *mut moepage_controller_report,
    ) -> moepage_status;
    pub fn moepage_paged_create(
        device: *mut moepage_device,
        model: *mut moepage_model,
        config: *const moepage_paged_config,
        out: *mut *mut moepage_paged,
    ) -> moepage_status;
    pub fn moepage_paged_destroy(paged: *mut moepage_paged) -> moepage_status;
    pub fn moepage_paged_get_info(
        paged: *mut moepage_paged,
        info: *mut moepage_paged_info,
    ) -> moepage_status;
    pub fn moepage_paged_get_state(
        paged: *mut moepage_paged,
        layer: u32,
        state: *mut u32,
    ) -> moepage_status;
    pub fn moepage_paged_get_tensor(
        paged: *const moepage_paged,
        tensor: u32,
        out: *mut moepage_paged_tensor,
    ) -> moepage_status;
    pub fn moepage_paged_materialise(paged: *mut moepage_paged, layer: u32) -> moepage_status;
    pub fn moepage_paged_release(
        paged: *mut moepage_paged,
        layer: u32,
        stream: *mut c_void,
    ) -> moepage_status;
    pub fn moepage_paged_resize(paged: *mut moepage_paged, compressed: u32) -> moepage_status;
    pub fn moepage_paged_sizes(
        device: *mut moepage_device,
        model: *const moepage_model,
        config: *const moepage_paged_config,
        workspace_bytes: *mut u64,
        arena_bytes: *mut u64,
    ) -> moepage_status;
    pub fn moepage_predictor_create(
        model: *const moepage_model,
        config: *const moepage_predictor_config,
        out: *mut *mut moepage_predictor,
    ) -> moepage_status;
    pub fn moepage_predictor_destroy(predictor: *mut moepage_predictor) -> moepage_status;
    pub fn moepage_predictor_get_info(
        predictor: *mut moepage_predictor,
        info: *mut moepage_predictor_info,
    ) -> moepage_status;
    pub fn moepage_predictor_load(
        predictor: *mut moepage_predictor,
        path: *const c_char,
    ) -> moepage_status;
    pub fn moepage_predictor_rightsize(
        predictor: *mut moepage_predictor,
        size: *mut moepage_rightsize,
    ) -> moepage_status;
    pub fn moepage_predictor_save(
        predictor: *mut moepage_predictor,
        path: *const c_char,
    ) -> moepage_status;
    pub fn moepage_session_begin(
        session: *mut moepage_session,
        step: *const moepage_step,
    ) -> moepage_status;
    pub fn moepage_session_cancel(session: *mut moepage_session) -> moepage_status;
    pub fn moepage_session_convert(
        session: *mut moepage_session,
        layer: u32,
        product: *const moepage_product,
        share: u32,
        n_shares: u32,
    ) -> moepage_status;
    pub fn moepage_session_create(
        experts: *mut moepage_expert_pool,
        kv: *mut moepage_kv_pool,
        config: *const moepage_session_config,
        out: *mut *mut moepage_session,
    ) -> moepage_status;
    pub fn moepage_session_destroy(session: *mut moepage_session) -> moepage_status;
    pub fn moepage_session_end(
        session: *mut moepage_session,
        stats: *mut moepage_session_stats,
    ) -> moepage_status;
    pub fn moepage_session_ffn(
        session: *mut moepage_session,
        layer: u32,
        ffn: *const moepage_ffn,
    ) -> moepage_status;
    pub fn moepage_session_get_prefetch(
        session: *mut moepage_session,
        layer: u32,
        info: *mut moepage_prefetch_info,
    ) -> moepage_status;
    pub fn moepage_session_get_stats(
        session: *mut moepage_session,
        stats: *mut moepage_session_stats,
    ) -> moepage_status;
    pub fn moepage_session_hint(
        session: *mut moepage_session,
        layer: u32,
        experts: *const i32,
        n_experts: u32,
    ) -> moepage_status;
    pub fn moepage_session_multiply(
        session: *mut moepage_session,
        layer: u32,
        product: *const moepage_product,
        share: u32,
        n_shares: u32,
    ) -> moepage_status;
    pub fn moepage_session_next_group(
        session: *mut moepage_session,
        layer: u32,
        plan: *mut moepage_plan,
    ) -> moepage_status;
    pub fn moepage_session_record(
        session: *mut moepage_session,
        trace: *mut moepage_trace,
    ) -> moepage_status;
    pub fn moepage_session_retire(session: *mut moepage_session, layer: u32) -> moepage_status;
    pub fn moepage_session_route(
        session: *mut moepage_session,
        layer: u32,
        routing: *const moepage_routing,
        plan: *mut moepage_plan,
    ) -> moepage_status;
    pub fn moepage_session_set_remap(
        session: *mut moepage_session,
        config: *const moepage_remap_config,
    ) -> moepage_status;
    pub fn moepage_session_workspace(
        model: *const moepage_model,
        config: *const moepage_session_config,
        bytes: *mut u64,
    ) -> moepage_status;
    pub fn moepage_split_set(
        experts: *mut moepage_expert_pool,
        kv: *mut moepage_kv_pool,
        expert_slots: u64,
        kv_blocks: u64,
        stream: *mut c_void,
    ) -> moepage_status;
    pub fn moepage_stats_text(
        source: *const moepage_stats_source,
        out: *mut c_char,
        capacity: u64,
        length: *mut u64,
    ) -> moepage_status;
    pub fn moepage_status_text(status: moepage_status) -> *const c_char;
    pub fn moepage_trace_close(trace: *mut moepage_trace) -> moepage_status;
    pub fn moepage_trace_create(
        path: *const c_char,
        info: *const moepage_trace_info,
        out: *mut *mut moepage_trace,
    ) -> moepage_status;
    pub fn moepage_trace_get_info(
        trace: *const moepage_trace,
        info: *mut moepage_trace_info,
    ) -> moepage_status;
    pub fn moepage_trace_next(
        trace: *mut moepage_trace,
        step: *mut moepage_trace_step,
    ) -> moepage_status;
    pub fn moepage_trace_open(path: *const c_char, out: *mut *mut moepage_trace) -> moepage_status;
    pub fn moepage_version() -> u32;
    pub fn moepage_version_text() -> *const c_char;
}
