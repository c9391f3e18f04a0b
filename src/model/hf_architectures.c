/* The table of architectures. */
#include <stddef.h>

#include "model/hf.h"

#define LAYER "model.layers.{L}."
#define EXPERTS LAYER "mlp.experts."
#define EXPERT LAYER "mlp.experts.{E}."
#define NUMBERED LAYER "block_sparse_moe.experts.{E}."

#define DIMS(...)   \
    {               \
        __VA_ARGS__ \
    }
#define NAMES(...)  \
    {               \
        __VA_ARGS__ \
    }
#define PART(role, dtype, when, dims, names)                                          \
    {                                                                                 \
        MOEPAGE_ROLE_##role, MOEPAGE_DTYPE_##dtype, MP_WHEN_##when, dims, names, NULL \
    }
#define COMPUTED(role, dtype, dims, names, repack)                                      \
    {                                                                                   \
        MOEPAGE_ROLE_##role, MOEPAGE_DTYPE_##dtype, MP_WHEN_ALWAYS, dims, names, repack \
    }

/* clang-format off */

/* One tensor per expert and projection: Qwen, OLMoE, DeepSeek and GLM. */
static const mp_hf_layout separate = {
    .router = LAYER "mlp.gate.weight",
    .router_bias = LAYER "mlp.gate.e_score_correction_bias",
    .prefix = EXPERTS,
    .n_parts = 4,
    .parts = {
        PART(GATE_UP, NONE, ALWAYS, DIMS(MP_DIM_I, MP_DIM_H),
             NAMES(EXPERT "gate_proj.weight", EXPERT "up_proj.weight")),
        PART(DOWN, NONE, ALWAYS, DIMS(MP_DIM_H, MP_DIM_I),
             NAMES(EXPERT "down_proj.weight")),
        PART(GATE_UP_SCALE, NONE, FP8, DIMS(MP_DIM_I_BLOCK_ROWS, MP_DIM_H_BLOCK_COLUMNS),
             NAMES(EXPERT "gate_proj.weight_scale_inv", EXPERT "up_proj.weight_scale_inv")),
        PART(DOWN_SCALE, NONE, FP8, DIMS(MP_DIM_H_BLOCK_ROWS, MP_DIM_I_BLOCK_COLUMNS),
             NAMES(EXPERT "down_proj.weight_scale_inv")),
    },
};

/* One tensor per projection with all experts of a layer, as some newer writers produce. */
#define STACKED_PARTS                                                                              \
    .prefix = EXPERTS, .stacked = true, .n_parts = 4, .parts = {                                   \
        PART(GATE_UP, NONE, ALWAYS, DIMS(MP_DIM_2I, MP_DIM_H), NAMES(EXPERTS "gate_up_proj")),     \
        PART(DOWN, NONE, ALWAYS, DIMS(MP_DIM_H, MP_DIM_I), NAMES(EXPERTS "down_proj")),            \
        PART(GATE_UP_SCALE, NONE, FP8, DIMS(MP_DIM_2I_BLOCK_ROWS, MP_DIM_H_BLOCK_COLUMNS),         \
             NAMES(EXPERTS "gate_up_proj_scale_inv")),                                             \
        PART(DOWN_SCALE, NONE, FP8, DIMS(MP_DIM_H_BLOCK_ROWS, MP_DIM_I_BLOCK_COLUMNS),             \
             NAMES(EXPERTS "down_proj_scale_inv")),                                                \
    }

static const mp_hf_layout stacked = {
    .router = LAYER "mlp.gate.weight",
    .router_bias = LAYER "mlp.gate.e_score_correction_bias",
    STACKED_PARTS,
};

static const mp_hf_layout stacked_phimoe = {
    .router = LAYER "mlp.router.weight",
    STACKED_PARTS,
};

static const mp_hf_layout stacked_minimax = {
    .router = LAYER "mlp.gate.weight",
    .router_bias = LAYER "mlp.e_score_correction_bias",
    STACKED_PARTS,
};

/* Mixtral's names, which Phi-3.5-MoE and MiniMax-M2 adopted: w1 is the gate, w3 up, w2 down. */
#define NUMBERED_PARTS                                                                             \
    .prefix = LAYER "block_sparse_moe.experts.", .n_parts = 4, .parts = {                          \
        PART(GATE_UP, NONE, ALWAYS, DIMS(MP_DIM_I, MP_DIM_H),                                      \
             NAMES(NUMBERED "w1.weight", NUMBERED "w3.weight")),                                   \
        PART(DOWN, NONE, ALWAYS, DIMS(MP_DIM_H, MP_DIM_I), NAMES(NUMBERED "w2.weight")),           \
        PART(GATE_UP_SCALE, NONE, FP8, DIMS(MP_DIM_I_BLOCK_ROWS, MP_DIM_H_BLOCK_COLUMNS),          \
             NAMES(NUMBERED "w1.weight_scale_inv", NUMBERED "w3.weight_scale_inv")),               \
        PART(DOWN_SCALE, NONE, FP8, DIMS(MP_DIM_H_BLOCK_ROWS, MP_DIM_I_BLOCK_COLUMNS),             \
             NAMES(NUMBERED "w2.weight_scale_inv")),                                               \
    }

static const mp_hf_layout numbered = {
    .router = LAYER "block_sparse_moe.gate.weight",
    NUMBERED_PARTS,
};

/* The bias is stored beside the gate module, not inside it. */
static const mp_hf_layout numbered_minimax = {
    .router = LAYER "block_sparse_moe.gate.weight",
    .router_bias = LAYER "block_sparse_moe.e_score_correction_bias",
    NUMBERED_PARTS,
};

/* gpt-oss's fused rows take turns: gate at even, up at odd indices. */
#define GPT_OSS                                                                                    \
    .router = LAYER "mlp.router.weight", .router_bias = LAYER "mlp.router.bias",                   \
    .prefix = EXPERTS, .stacked = true, .n_parts = 4

#define TAKE_TURNS true
#define IN_ORDER false

static const mp_hf_repack biases = {
    &mp_repack_reordered, TAKE_TURNS, 1, {{"_bias", MOEPAGE_DTYPE_NONE, DIMS(MP_DIM_2I)}},
};

static const mp_hf_repack mxfp4_gate_up = {
    &mp_repack_mxfp4, TAKE_TURNS, 2,
    {{"_blocks", MOEPAGE_DTYPE_U8, DIMS(MP_DIM_2I, MP_DIM_H_MX_GROUPS, MP_DIM_MXFP4_BYTES)},
     {"_scales", MOEPAGE_DTYPE_U8, DIMS(MP_DIM_2I, MP_DIM_H_MX_GROUPS)}},
};

static const mp_hf_repack mxfp4_down = {
    &mp_repack_mxfp4, IN_ORDER, 2,
    {{"_blocks", MOEPAGE_DTYPE_U8, DIMS(MP_DIM_H, MP_DIM_I_MX_GROUPS, MP_DIM_MXFP4_BYTES)},
     {"_scales", MOEPAGE_DTYPE_U8, DIMS(MP_DIM_H, MP_DIM_I_MX_GROUPS)}},
};

static const mp_hf_layout gpt_oss_mxfp4 = {
    GPT_OSS,
    .parts = {
        COMPUTED(GATE_UP, MXFP4, DIMS(MP_DIM_2I, MP_DIM_H), NAMES(EXPERTS "gate_up_proj"),
                 &mxfp4_gate_up),
        COMPUTED(DOWN, MXFP4, DIMS(MP_DIM_H, MP_DIM_I), NAMES(EXPERTS "down_proj"), &mxfp4_down),
        COMPUTED(GATE_UP_BIAS, NONE, DIMS(MP_DIM_2I), NAMES(EXPERTS "gate_up_proj"), &biases),
        PART(DOWN_BIAS, NONE, ALWAYS, DIMS(MP_DIM_H), NAMES(EXPERTS "down_proj_bias")),
    },
};

/* gpt-oss in floats: the input dimension first, the fused columns take turns. */
static const mp_hf_repack turned_gate_up = {
    &mp_repack_transposed, TAKE_TURNS, 1, {{"", MOEPAGE_DTYPE_NONE, DIMS(MP_DIM_H, MP_DIM_2I)}},
};

static const mp_hf_repack turned_down = {
    &mp_repack_transposed, IN_ORDER, 1, {{"", MOEPAGE_DTYPE_NONE, DIMS(MP_DIM_I, MP_DIM_H)}},
};

static const mp_hf_layout gpt_oss_dense = {
    GPT_OSS,
    .parts = {
        COMPUTED(GATE_UP, NONE, DIMS(MP_DIM_2I, MP_DIM_H), NAMES(EXPERTS "gate_up_proj"),
                 &turned_gate_up),
        COMPUTED(DOWN, NONE, DIMS(MP_DIM_H, MP_DIM_I), NAMES(EXPERTS "down_proj"), &turned_down),
        COMPUTED(GATE_UP_BIAS, NONE, DIMS(MP_DIM_2I), NAMES(EXPERTS "gate_up_proj"), &biases),
        PART(DOWN_BIAS, NONE, ALWAYS, DIMS(MP_DIM_H), NAMES(EXPERTS "down_proj_bias")),
    },
};

/* clang-format on */

const mp_hf_architecture mp_hf_architectures[] = {
    {
        .model_type = "qwen3_moe",
        .rule = MP_RULE_SPARSE_STEP,
        .experts_keys = {"num_experts", "num_local_experts"},
        .intermediate_key = "moe_intermediate_size",
        .layouts = {&separate, &stacked},
    },
    {
        .model_type = "qwen2_moe",
        .rule = MP_RULE_SPARSE_STEP,
        .experts_keys = {"num_experts", "num_local_experts"},
        .intermediate_key = "moe_intermediate_size",
        .shared_key = "shared_expert_intermediate_size",
        .shared_default = 1,
        .shared_is_width = true,
        .layouts = {&separate, &stacked},
    },
    {
        .model_type = "mixtral",
        .rule = MP_RULE_EVERY_LAYER,
        .experts_keys = {"num_local_experts", "num_experts"},
        .intermediate_key = "intermediate_size",
        .layouts = {&numbered, &stacked},
    },
    {
        .model_type = "olmoe",
        .rule = MP_RULE_EVERY_LAYER,
        .experts_keys = {"num_experts", "num_local_experts"},
        .intermediate_key = "intermediate_size",
        .layouts = {&separate, &stacked},
    },
    {
        .model_type = "phimoe",
        .rule = MP_RULE_EVERY_LAYER,
        .experts_keys = {"num_local_experts", "num_experts"},
        .intermediate_key = "intermediate_size",
        .layouts = {&numbered, &stacked_phimoe},
    },
    {
        .model_type = "deepseek_v2",
        .rule = MP_RULE_FIRST_DENSE,
        .first_dense = 0,
        .experts_keys = {"n_routed_experts", "num_local_experts"},
        .intermediate_key = "moe_intermediate_size",
        .shared_key = "n_shared_experts",
        .layouts = {&separate, &stacked},
    },
    {
        .model_type = "deepseek_v3",
        .rule = MP_RULE_FIRST_DENSE,
        .first_dense = 3,
        .experts_keys = {"n_routed_experts", "num_local_experts"},
        .intermediate_key = "moe_intermediate_size",
        .shared_key = "n_shared_experts",
        .layouts = {&separate, &stacked},
    },
    {
        .model_type = "glm4_moe",
        .rule = MP_RULE_FIRST_DENSE,
        .first_dense = 1,
        .experts_keys = {"n_routed_experts", "num_local_experts"},
        .intermediate_key = "moe_intermediate_size",
        .shared_key = "n_shared_experts",
        .shared_default = 1,
        .layouts = {&separate, &stacked},
    },
    {
        .model_type = "minimax_m2",
        .rule = MP_RULE_EVERY_LAYER,
        .experts_keys = {"num_local_experts", "num_experts"},
        .intermediate_key = "intermediate_size",
        .layouts = {&numbered_minimax, &stacked_minimax},
    },
    {
        .model_type = "gpt_oss",
        .rule = MP_RULE_EVERY_LAYER,
        .experts_keys = {"num_local_experts", "num_experts"},
        .intermediate_key = "intermediate_size",
        .clamped = true,
        .layouts = {&gpt_oss_mxfp4, &gpt_oss_dense},
    },
    {.model_type = NULL},
};
