"""Makes the checkpoints and reference outputs in this directory; README.md says what they are.

    python3 make_fixtures.py [DIRECTORY [MODEL...]]   (default: the directory of this file, all)

Each model has seeded random weights, written under the names that checkpoints on the Hugging Face
hub use, and is then loaded back by transformers, which evaluates it. Nothing of libmoepage runs
here: what is written is an independent answer to compare with.

Prompts are searched, not drawn: a prompt is kept only if no routing decision and no greedy choice
on its path is close, so that rounding differences between two correct implementations can never
choose another expert or token."""

import json
import math
import os
import shutil
import sys
import zlib

import gguf
import numpy as np
import torch
import transformers
from safetensors.torch import save_file

PROMPT_TOKENS = (12, 19)
GREEDY_TOKENS = 8
# Gap between the last expert or token chosen and the first not chosen, or between an expert and the
# edge of PhiMoE's bands, as a fraction of the largest magnitude in the row: more than BF16's noise.
MARGIN = 0.02

DTYPES = {"bfloat16": torch.bfloat16, "float16": torch.float16, "float32": torch.float32}

COMMON = {
    "hidden_act": "silu",
    "attention_dropout": 0.0,
    "initializer_range": 0.02,
    "use_cache": True,
    "bos_token_id": 0,
    "output_router_logits": False,
}

# Between them the models vary everything that a reader may get wrong: head size against
# hidden / heads, widths that are no multiple of 16, biases, tied embeddings, dense layers, a
# sliding window, clipped projections, normalised and raw router weights, weight types, RoPE bases
# and scaling, and both spellings of RoPE and dtype. The norms' epsilons are large enough to show.
MODELS = {
    "qwen3_moe": {
        "architectures": ["Qwen3MoeForCausalLM"],
        "vocab_size": 96,
        "hidden_size": 32,
        "head_dim": 16,
        "num_hidden_layers": 3,
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
        "intermediate_size": 44,
        "moe_intermediate_size": 24,
        "num_experts": 8,
        "num_experts_per_tok": 3,
        "norm_topk_prob": True,
        "decoder_sparse_step": 1,
        "mlp_only_layers": [1],
        "attention_bias": False,
        "rms_norm_eps": 1e-3,
        "rope_theta": 1000000.0,
        "rope_scaling": None,
        "sliding_window": None,
        "use_sliding_window": False,
        "max_window_layers": 3,
        "max_position_embeddings": 256,
        "router_aux_loss_coef": 0.001,
        "tie_word_embeddings": False,
        "torch_dtype": "bfloat16",
    },
    "qwen2_moe": {
        "architectures": ["Qwen2MoeForCausalLM"],
        "vocab_size": 80,
        "hidden_size": 40,
        "num_hidden_layers": 4,
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
        "intermediate_size": 36,
        "moe_intermediate_size": 20,
        "shared_expert_intermediate_size": 28,
        "num_experts": 8,
        "num_experts_per_tok": 4,
        "norm_topk_prob": False,
        "decoder_sparse_step": 2,
        "mlp_only_layers": [],
        "rms_norm_eps": 5e-4,
        "rope_theta": 5000.0,
        "sliding_window": 256,
        "use_sliding_window": False,
        "max_window_layers": 4,
        "max_position_embeddings": 256,
        "router_aux_loss_coef": 0.001,
        "tie_word_embeddings": False,
        "torch_dtype": "bfloat16",
    },
    "mixtral": {
        "architectures": ["MixtralForCausalLM"],
        "vocab_size": 72,
        "hidden_size": 32,
        "num_hidden_layers": 2,
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
        "intermediate_size": 40,
        "num_local_experts": 8,
        "num_experts_per_tok": 2,
        "rms_norm_eps": 2e-3,
        "rope_theta": 1000000.0,
        "sliding_window": 10,
        "max_position_embeddings": 256,
        "router_aux_loss_coef": 0.02,
        "tie_word_embeddings": False,
        "torch_dtype": "float16",
    },
    # The spelling of config.json that transformers writes since version 5.
    "olmoe": {
        "architectures": ["OlmoeForCausalLM"],
        "vocab_size": 128,
        "hidden_size": 32,
        "num_hidden_layers": 2,
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
        "intermediate_size": 16,
        "num_experts": 16,
        "num_experts_per_tok": 4,
        "norm_topk_prob": False,
        "attention_bias": False,
        "clip_qkv": 1.5,
        "rms_norm_eps": 1e-3,
        "rope_parameters": {"rope_theta": 500.0, "rope_type": "default"},
        "max_position_embeddings": 256,
        "router_aux_loss_coef": 0.01,
        "pad_token_id": 1,
        "tie_word_embeddings": True,
        "dtype": "bfloat16",
    },
    # A wide jitter band: several experts share the softmax from which a weight is taken.
    "phimoe": {
        "architectures": ["PhiMoEForCausalLM"],
        "vocab_size": 64,
        "hidden_size": 32,
        "num_hidden_layers": 2,
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
        "intermediate_size": 20,
        "num_local_experts": 8,
        "num_experts_per_tok": 2,
        "router_jitter_noise": 0.2,
        "input_jitter_noise": 0.01,
        "attention_bias": True,
        "lm_head_bias": True,
        "rms_norm_eps": 3e-3,
        "rope_theta": 10000.0,
        "rope_scaling": {
            "type": "longrope",
            "short_factor": [1.0, 1.05, 1.2, 1.4],
            "long_factor": [1.1, 1.5, 3.0, 7.0],
            "short_mscale": 1.2431631210161224,
            "long_mscale": 1.3,
            "original_max_position_embeddings": 256,
        },
        "original_max_position_embeddings": 256,
        "sliding_window": 4096,
        "max_position_embeddings": 4096,
        "router_aux_loss_coef": 0.0,
        "tie_word_embeddings": False,
        "torch_dtype": "float32",
    },
    # Attention with latents: queries at once, YaRN, a softmax, a scale, two shared experts.
    "deepseek_v2-lite": {
        "model_type": "deepseek_v2",
        "architectures": ["DeepseekV2ForCausalLM"],
        "vocab_size": 64,
        "hidden_size": 32,
        "num_hidden_layers": 3,
        "num_attention_heads": 4,
        "num_key_value_heads": 4,
        "q_lora_rank": None,
        "kv_lora_rank": 32,
        "qk_nope_head_dim": 12,
        "qk_rope_head_dim": 8,
        "v_head_dim": 20,
        "intermediate_size": 44,
        "moe_intermediate_size": 20,
        "n_routed_experts": 8,
        "num_experts_per_tok": 3,
        "n_shared_experts": 2,
        "first_k_dense_replace": 1,
        "moe_layer_freq": 1,
        "n_group": 1,
        "topk_group": 1,
        "topk_method": "greedy",
        "scoring_func": "softmax",
        "norm_topk_prob": False,
        "routed_scaling_factor": 1.5,
        "attention_bias": False,
        "rms_norm_eps": 1e-3,
        "rope_theta": 10000,
        "rope_scaling": {
            "type": "yarn",
            "factor": 4,
            "original_max_position_embeddings": 64,
            "beta_fast": 32,
            "beta_slow": 1,
            "mscale": 0.707,
            "mscale_all_dim": 0.707,
        },
        "max_position_embeddings": 256,
        "tie_word_embeddings": False,
        "torch_dtype": "bfloat16",
    },
    # Queries of a low rank, sigmoids with a bias, groups of experts, and a layer behind the last.
    "deepseek_v3-groups": {
        "model_type": "deepseek_v3",
        "architectures": ["DeepseekV3ForCausalLM"],
        "vocab_size": 64,
        "hidden_size": 32,
        "num_hidden_layers": 3,
        "num_nextn_predict_layers": 1,
        "num_attention_heads": 4,
        "num_key_value_heads": 4,
        "q_lora_rank": 24,
        "kv_lora_rank": 32,
        "qk_nope_head_dim": 32,
        "qk_rope_head_dim": 8,
        "v_head_dim": 12,
        "intermediate_size": 44,
        "moe_intermediate_size": 16,
        "n_routed_experts": 12,
        "num_experts_per_tok": 3,
        "n_shared_experts": 1,
        "first_k_dense_replace": 1,
        "moe_layer_freq": 1,
        "n_group": 4,
        "topk_group": 2,
        "topk_method": "noaux_tc",
        "scoring_func": "sigmoid",
        "norm_topk_prob": True,
        "routed_scaling_factor": 2.5,
        "attention_bias": False,
        "rms_norm_eps": 1e-3,
        "rope_theta": 10000,
        "rope_scaling": {
            "type": "yarn",
            "factor": 8,
            "original_max_position_embeddings": 32,
            "beta_fast": 32,
            "beta_slow": 1,
            "mscale": 1.0,
            "mscale_all_dim": 1.0,
        },
        "max_position_embeddings": 256,
        "tie_word_embeddings": False,
        "torch_dtype": "bfloat16",
    },
    # Half of each head is rotated; heads are normalised, and q, k and v have biases.
    "glm4_moe": {
        "architectures": ["Glm4MoeForCausalLM"],
        "vocab_size": 64,
        "hidden_size": 32,
        "head_dim": 16,
        "num_hidden_layers": 3,
        "num_nextn_predict_layers": 1,
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
        "intermediate_size": 44,
        "moe_intermediate_size": 20,
        "n_routed_experts": 8,
        "num_experts_per_tok": 3,
        "n_shared_experts": 1,
        "first_k_dense_replace": 1,
        "n_group": 1,
        "topk_group": 1,
        "norm_topk_prob": True,
        "routed_scaling_factor": 1.3,
        "use_qk_norm": True,
        "attention_bias": True,
        "partial_rotary_factor": 0.5,
        "rms_norm_eps": 1e-3,
        "rope_theta": 1000000,
        "rope_scaling": None,
        "max_position_embeddings": 256,
        "tie_word_embeddings": False,
        "torch_dtype": "bfloat16",
    },
}


# ---- Weights ------------------------------------------------------------------------------------


SIGMOID = ("deepseek_v3-groups", "glm4_moe")


def expert_count(config):
    return next(config[key] for key in ("num_experts", "num_local_experts", "n_routed_experts")
                if key in config)


def is_moe_layer(config, layer):
    step = config.get("decoder_sparse_step", 1)
    if "first_k_dense_replace" in config:
        return layer >= config["first_k_dense_replace"]
    return layer not in config.get("mlp_only_layers", []) and (layer + 1) % step == 0


def attention_shapes(kind, config, at):
    hidden = config["hidden_size"]
    head = config.get("head_dim", hidden // config["num_attention_heads"])
    width = {
        "q": config["num_attention_heads"] * head,
        "k": config["num_key_value_heads"] * head,
        "v": config["num_key_value_heads"] * head,
    }
    biased = {"qwen2_moe": "qkv", "phimoe": "qkvo", "glm4_moe": "qkv"}.get(kind, "")
    shapes = {f"{at}.o_proj.weight": (hidden, width["q"])}
    for part, rows in width.items():
        shapes[f"{at}.{part}_proj.weight"] = (rows, hidden)
    for part in biased:
        shapes[f"{at}.{part}_proj.bias"] = (width.get(part, hidden),)
    # Qwen3 and GLM normalise each head, OLMoE the whole projection.
    if kind in ("qwen3_moe", "glm4_moe"):
        shapes |= {f"{at}.q_norm.weight": (head,), f"{at}.k_norm.weight": (head,)}
    if kind == "olmoe":
        shapes |= {f"{at}.q_norm.weight": (width["q"],), f"{at}.k_norm.weight": (width["k"],)}
    return shapes


def latent_shapes(config, at):
    hidden, heads, rank = (config[key] for key in ("hidden_size", "num_attention_heads",
                                                   "kv_lora_rank"))
    plain, turned, value = (config[key] for key in ("qk_nope_head_dim", "qk_rope_head_dim",
                                                    "v_head_dim"))
    query, low = heads * (plain + turned), config["q_lora_rank"]
    shapes = {
        f"{at}.kv_a_proj_with_mqa.weight": (rank + turned, hidden),
        f"{at}.kv_a_layernorm.weight": (rank,),
        f"{at}.kv_b_proj.weight": (heads * (plain + value), rank),
        f"{at}.o_proj.weight": (hidden, heads * value),
    }
    if not low:
        return shapes | {f"{at}.q_proj.weight": (query, hidden)}
    return shapes | {
        f"{at}.q_a_proj.weight": (low, hidden),
        f"{at}.q_a_layernorm.weight": (low,),
        f"{at}.q_b_proj.weight": (query, low),
    }


def swiglu_shapes(at, hidden, inner, names=("gate_proj", "up_proj", "down_proj")):
    gate, up, down = names
    return {
        f"{at}.{gate}.weight": (inner, hidden),
        f"{at}.{up}.weight": (inner, hidden),
        f"{at}.{down}.weight": (hidden, inner),
    }


def feed_forward_shapes(kind, config, layer):
    hidden = config["hidden_size"]
    at = f"model.layers.{layer}.mlp"
    if not is_moe_layer(config, layer):
        return swiglu_shapes(at, hidden, config["intermediate_size"])
    names = ("gate_proj", "up_proj", "down_proj")
    if kind in ("mixtral", "phimoe"):
        at, names = f"model.layers.{layer}.block_sparse_moe", ("w1", "w3", "w2")
    experts = expert_count(config)
    inner = config.get("moe_intermediate_size", config["intermediate_size"])
    shapes = {f"{at}.gate.weight": (experts, hidden)}
    if kind in SIGMOID:
        shapes[f"{at}.gate.e_score_correction_bias"] = (experts,)
    for expert in range(experts):
        shapes |= swiglu_shapes(f"{at}.experts.{expert}", hidden, inner, names)
    if kind == "qwen2_moe":
        shared = config["shared_expert_intermediate_size"]
        shapes |= swiglu_shapes(f"{at}.shared_expert", hidden, shared)
        shapes[f"{at}.shared_expert_gate.weight"] = (1, hidden)
    if "n_shared_experts" in config:
        shapes |= swiglu_shapes(f"{at}.shared_experts", hidden, config["n_shared_experts"] * inner)
    return shapes


def layer_shapes(kind, config, layer):
    hidden, at = config["hidden_size"], f"model.layers.{layer}"
    norm_parts = ("weight", "bias") if kind == "phimoe" else ("weight",)
    shapes = {}
    for norm in ("input_layernorm", "post_attention_layernorm"):
        shapes |= {f"{at}.{norm}.{part}": (hidden,) for part in norm_parts}
    if "kv_lora_rank" in config:
        shapes |= latent_shapes(config, f"{at}.self_attn")
    else:
        shapes |= attention_shapes(kind, config, f"{at}.self_attn")
    return shapes | feed_forward_shapes(kind, config, layer)


def model_shapes(kind, config):
    hidden, vocabulary = config["hidden_size"], config["vocab_size"]
    norm_parts = ("weight", "bias") if kind == "phimoe" else ("weight",)
    shapes = {"model.embed_tokens.weight": (vocabulary, hidden)}
    for layer in range(config["num_hidden_layers"]):
        shapes |= layer_shapes(kind, config, layer)
    shapes |= {f"model.norm.{part}": (hidden,) for part in norm_parts}
    if not config["tie_word_embeddings"]:
        shapes["lm_head.weight"] = (vocabulary, hidden)
    if config.get("lm_head_bias"):
        shapes["lm_head.bias"] = (vocabulary,)
    return shapes


def random_tensor(name, shape, seed, tied):
    """Seeded by name, so that adding a tensor leaves all others as they were."""
    generator = torch.Generator().manual_seed(zlib.crc32(name.encode()) + seed)
    noise = torch.randn(shape, generator=generator)
    if "norm" in name and name.endswith("weight"):
        return 1.0 + 0.1 * noise
    if name.endswith("bias"):
        return 0.2 * noise
    if name.endswith(("gate.weight", "lm_head.weight")):
        return noise * 2.0 / math.sqrt(shape[-1])  # decisive routers, logits of several units
    if "embed_tokens" in name:
        return noise * (0.4 if tied else 1.0)  # tied and large, every token would predict itself
    return noise * 1.2 / math.sqrt(shape[-1])


def make_weights(kind, config):
    dtype = DTYPES[config.get("torch_dtype") or config["dtype"]]
    seed = zlib.crc32(kind.encode()) & 0xFFFF
    shapes = model_shapes(kind, config)
    tied = config["tie_word_embeddings"]
    made = {name: random_tensor(name, shapes[name], seed, tied) for name in sorted(shapes)}
    return {name: tensor if name.endswith("correction_bias") else in_blocks(config, tensor)
            if name.endswith("kv_b_proj.weight") else tensor.to(dtype)
            for name, tensor in made.items()}


def in_blocks(config, tensor):
    """The nearest values that Q8_0 holds, of rows; where queries have a low rank, of the keys'
    columns: as GGUF files have them."""
    heads, plain = config["num_attention_heads"], config["qk_nope_head_dim"]
    if not config["q_lora_rank"]:
        return as_q8_0(tensor)
    keys, values = tensor.view(heads, -1, config["kv_lora_rank"]).split(
        [plain, config["v_head_dim"]], dim=1)
    keys = as_q8_0(keys.transpose(1, 2).contiguous()).transpose(1, 2)
    return torch.cat([keys, as_q8_0(values.contiguous())], dim=1).reshape(tensor.shape)


def as_q8_0(tensor):
    kind = gguf.GGMLQuantizationType.Q8_0
    stored = gguf.quants.quantize(tensor.numpy(), kind)
    return torch.from_numpy(gguf.quants.dequantize(stored, kind).copy()).reshape(tensor.shape)


def further_layer(kind, config):
    """The layer behind the last, which predicts the next token but one: no part of the model."""
    layer, hidden = config["num_hidden_layers"], config["hidden_size"]
    at, shapes = f"model.layers.{layer}", layer_shapes(kind, config, layer)
    shapes = {name: shape for name, shape in shapes.items() if ".experts." not in name}
    shapes |= {f"{at}.eh_proj.weight": (hidden, 2 * hidden), f"{at}.enorm.weight": (hidden,),
               f"{at}.hnorm.weight": (hidden,), f"{at}.shared_head.norm.weight": (hidden,)}
    return {name: random_tensor(name, shapes[name], 0, False).bfloat16() for name in sorted(shapes)}


def write_config(directory, config):
    with open(os.path.join(directory, "config.json"), "w", encoding="utf-8") as file:
        file.write(json.dumps(config, indent=2) + "\n")


def write_weights(directory, tensors, filename="model.safetensors"):
    path = os.path.join(directory, filename)
    save_file(tensors, path, metadata={"format": "pt"})
    os.chmod(path, 0o644)  # save_file leaves it to its owner alone


# ---- Reference ----------------------------------------------------------------------------------


class Model:
    """transformers' model in one dtype; every forward also collects the routers' logits."""

    def __init__(self, directory, dtype):
        self.model, info = transformers.AutoModelForCausalLM.from_pretrained(
            directory,
            dtype=dtype,
            attn_implementation="eager",
            experts_implementation="eager",
            output_loading_info=True,
        )
        left_over = {key: names for key, names in info.items() if names}
        assert not left_over, f"{directory}: the checkpoint and the model disagree: {left_over}"
        self.model.eval()
        self.router_logits = []
        for module in self.model.modules():
            if type(module).__name__.lower().endswith("topkrouter"):
                module.register_forward_hook(
                    lambda module, _in, out: self.router_logits.append(scores(module, out[0])))

    def run(self, batch):
        """Logits [sequence][position] and router logits [layer][sequence][position]."""
        self.router_logits.clear()
        batch = torch.tensor(batch)
        with torch.no_grad():
            logits = self.model(batch, use_cache=False).logits.float()
        shape = (len(self.router_logits), *batch.shape, -1)
        return logits, torch.stack(self.router_logits).view(shape)

    def run_cached(self, tokens, n_prompt):
        """The logits of one sequence by a prefill and one-token steps over a KV cache."""
        rows, cache = [], None
        with torch.no_grad():
            for piece in [tokens[:n_prompt]] + [[token] for token in tokens[n_prompt:]]:
                out = self.model(torch.tensor([piece]), past_key_values=cache, use_cache=True)
                cache = out.past_key_values
                rows.append(out.logits[0].float())
        return torch.cat(rows)


def scores(router, logits):
    """What a router chooses by: its logits, or the sigmoids with the bias."""
    bias = getattr(router, "e_score_correction_bias", None)
    return logits.float() if bias is None else logits.float().sigmoid() + bias.float()


def allowed(config, router_logits):
    """Scores outside the best groups become the least; and how clear the choice of groups is."""
    groups = config.get("n_group", 1)
    if groups == 1:
        return router_logits, torch.full(router_logits.shape[:-1], math.inf)
    each = router_logits.view(*router_logits.shape[:-1], groups, -1)
    best = each.topk(2, dim=-1).values.sum(dim=-1)
    order = best.sort(dim=-1, descending=True).values
    last, next_best = (order[..., config["topk_group"] - i] for i in (1, 0))
    masked = each.masked_fill((best < last.unsqueeze(-1)).unsqueeze(-1), -math.inf)
    return masked.flatten(-2), last - next_best


def band_edges(config, router_logits):
    """PhiMoE takes each of its two weights from a softmax over the experts in a band below the
    best: how far each expert is inside (+) or outside (-) of either band."""
    best = router_logits.topk(2, dim=-1).values.unsqueeze(-1)
    scores = router_logits.unsqueeze(-2)
    width = 2 * config["router_jitter_noise"] * torch.maximum(scores.abs(), best)
    return width - (best - scores)


def decisions(config, router_logits):
    """Everything discrete that a router decides, as one comparable tensor."""
    chosen = allowed(config, router_logits)[0].topk(config["num_experts_per_tok"], dim=-1).indices
    if not config.get("router_jitter_noise"):
        return chosen.sort(dim=-1).values
    inside = band_edges(config, router_logits) > 0
    return torch.cat([chosen, inside.flatten(-2).long()], dim=-1)


def route_is_clear(config, router_logits):
    """Per position: no layer's router came close to another decision."""
    scale = router_logits.abs().amax(dim=-1)
    gap = torch.minimum(route_gap(config, router_logits), edge_gap(config, router_logits))
    return (gap >= MARGIN * scale).all(dim=0)


def route_gap(config, router_logits):
    k = config["num_experts_per_tok"]
    masked, clear = allowed(config, router_logits)
    best = masked.topk(k + 1, dim=-1).values
    return torch.minimum(best[..., k - 1] - best[..., k], clear)


def edge_gap(config, router_logits):
    if not config.get("router_jitter_noise"):
        return torch.full(router_logits.shape[:-1], math.inf)
    best = router_logits.topk(2, dim=-1).values  # the order of the two decides their bands
    edge = band_edges(config, router_logits).abs().amin(dim=(-2, -1))
    return torch.minimum(edge, best[..., 0] - best[..., 1])


def top2_margin(logits):
    best = logits.topk(2, dim=-1).values
    return (best[..., 0] - best[..., 1]) / logits.abs().amax()


def grow(config, model, prompt):
    """Every one-token extension of the one prompt whose last position routes clearly."""
    tokens = range(2, config["vocab_size"] - 1)
    batch = [prompt + [token] for token in tokens]
    clear = route_is_clear(config, model.run(batch)[1])[:, -1]
    return [sequence for sequence, good in zip(batch, clear) if good]


def extend_greedily(config, model, prompts):
    """Greedy continuations of those prompts on whose way no choice is close."""
    batch = [list(prompt) for prompt in prompts]
    for _ in range(GREEDY_TOKENS):
        if not batch:
            break
        logits, router_logits = model.run(batch)
        good = route_is_clear(config, router_logits)[:, -1] & (top2_margin(logits)[:, -1] >= MARGIN)
        best = logits[:, -1].argmax(dim=-1)
        good &= best != config["eos_token_id"]
        batch = [tokens + [int(token)] for tokens, token, keep in zip(batch, best, good) if keep]
    return batch


def search_prompt(config, model, bf16, length, rng):
    """A prompt and its greedy tokens along decisive routes only, which BF16 takes as well."""
    while True:
        prompt = []
        while len(prompt) < length - 1:
            choices = grow(config, model, prompt)
            prompt = choices[rng.integers(len(choices))] if choices else prompt[:-1]
        for tokens in extend_greedily(config, model, grow(config, model, prompt)):
            greedy, fed = tokens[length:], [tokens[:-1]]
            exact, rounded = model.run(fed), bf16.run(fed)
            same_route = torch.equal(decisions(config, exact[1]), decisions(config, rounded[1]))
            same_tokens = rounded[0][0, length - 1:].argmax(dim=-1).tolist() == greedy
            if same_route and same_tokens and len(set(greedy)) >= GREEDY_TOKENS // 2:
                return tokens[:length], greedy


def experts_used(config, model, sequences):
    """How many experts each layer sends a token to."""
    routers = torch.cat([model.run([tokens])[1].squeeze(1) for tokens in sequences], dim=1)
    chosen = allowed(config, routers)[0].topk(config["num_experts_per_tok"], dim=-1).indices
    return [len(layer.unique()) for layer in chosen]


def search_prompts(config, model, bf16, seed):
    """One prompt of each length, which together touch every expert."""
    rng = np.random.default_rng(seed)
    experts = expert_count(config)
    while True:
        found = [search_prompt(config, model, bf16, length, rng) for length in PROMPT_TOKENS]
        fed = [prompt + greedy[:-1] for prompt, greedy in found]
        if min(experts_used(config, model, fed)) == experts:
            return found


def make_reference(directory, config, seed):
    model, bf16 = Model(directory, torch.float32), Model(directory, torch.bfloat16)
    rope_theta = config.get("rope_theta") or config["rope_parameters"]["rope_theta"]
    assert model.model.config.rope_parameters["rope_theta"] == rope_theta
    logits, routers, greedy_margin, cache_diff, bf16_diff = [], [], [], [], []
    found = search_prompts(config, model, bf16, seed)
    for prompt, greedy in found:
        tokens, last = prompt + greedy[:-1], len(prompt) - 1
        exact, router_logits = (part.squeeze(-3) for part in model.run([tokens]))
        assert exact[last:].argmax(dim=-1).tolist() == greedy
        assert bool(route_is_clear(config, router_logits).all())
        cache_diff.append((model.run_cached(tokens, len(prompt)) - exact).abs())
        bf16_diff.append((bf16.run([tokens])[0][0] - exact).abs())
        greedy_margin.append(top2_margin(exact)[last:])
        logits.append(exact)
        routers.append(router_logits)
    logits, routers, bf16_diff = torch.cat(logits), torch.cat(routers, dim=1), torch.cat(bf16_diff)
    logits.numpy().astype("<f4").tofile(os.path.join(directory, "logits.f32"))
    route_margin = route_gap(config, routers) / routers.abs().amax(dim=-1)
    expected = {
        "transformers": transformers.__version__,
        "torch": torch.__version__.split("+")[0],
        "vocab_size": config["vocab_size"],
        "prompts": [{"tokens": prompt, "greedy": greedy} for prompt, greedy in found],
        "max_abs_logit": float(logits.abs().max()),
        "cached_max_abs_diff": float(torch.cat(cache_diff).max()),
        "bf16_max_abs_diff": float(bf16_diff.max()),
        "bf16_mean_abs_diff": float(bf16_diff.mean()),
        "min_greedy_margin": float(torch.cat(greedy_margin).min()),
        "min_route_margin": float(route_margin.min()),
    }
    write_expected(directory, expected)
    return expected


def write_expected(directory, expected):
    """Indented, with every list of numbers on one line."""
    lines = []
    for key, value in expected.items():
        if key == "prompts":
            rows = ",\n".join("    " + json.dumps(row) for row in value)
            lines.append(f'  "{key}": [\n{rows}\n  ]')
        else:
            lines.append(f'  "{key}": {json.dumps(value)}')
    with open(os.path.join(directory, "expected.json"), "w", encoding="utf-8") as file:
        file.write("{\n" + ",\n".join(lines) + "\n}\n")


# ---- Layouts on disk ----------------------------------------------------------------------------


def fresh_directory(root, name):
    directory = os.path.join(root, name)
    shutil.rmtree(directory, ignore_errors=True)
    os.makedirs(directory)
    return directory


def split_tensors(tensors):
    """Two halves that separate the matrices of one expert, as size-driven sharding does."""
    names = sorted(tensors)
    cut = next(i for i in range(len(names) // 2, len(names))
               if ".experts." in names[i] and ("up_proj" in names[i] or "w2" in names[i]))
    return [{name: tensors[name] for name in part} for part in (names[:cut], names[cut:])]


def write_shards(directory, tensors, with_index):
    weight_map = {}
    for number, part in enumerate(split_tensors(tensors), 1):
        filename = f"model-{number:05d}-of-00002.safetensors"
        write_weights(directory, part, filename)
        weight_map |= {name: filename for name in part}
    if with_index:
        total = sum(tensor.numel() * tensor.element_size() for tensor in tensors.values())
        index = {"metadata": {"total_size": total}, "weight_map": weight_map}
        path = os.path.join(directory, "model.safetensors.index.json")
        with open(path, "w", encoding="utf-8") as file:
            file.write(json.dumps(index, indent=1) + "\n")


def make_model(root, kind):
    config = {"model_type": kind, **COMMON, **MODELS[kind]}
    config["eos_token_id"] = config["vocab_size"] - 1
    tensors = make_weights(kind, config)
    directory = fresh_directory(root, kind)
    write_config(directory, config)
    write_weights(directory, tensors)
    expected = make_reference(directory, config, seed=len(kind))
    if kind == "mixtral":  # two files and no index: transformers would not load this itself
        os.remove(os.path.join(directory, "model.safetensors"))
        write_shards(directory, tensors, with_index=False)
    if kind == "qwen3_moe":
        sharded = fresh_directory(root, "qwen3_moe-sharded")
        write_config(sharded, config)
        write_shards(sharded, tensors, with_index=True)
        compare_loaded(directory, sharded)
    if "num_nextn_predict_layers" in config:  # which transformers would call unexpected
        write_weights(directory, tensors | further_layer(kind, config))
    print(kind, {key: value for key, value in expected.items() if key != "prompts"}, flush=True)


def compare_loaded(directory, other):
    tokens = [list(range(2, 30))]
    assert torch.equal(Model(directory, torch.float32).run(tokens)[0],
                       Model(other, torch.float32).run(tokens)[0])


def main():
    root = sys.argv[1] if len(sys.argv) > 1 else os.path.dirname(os.path.abspath(__file__))
    torch.set_num_threads(1)
    transformers.logging.set_verbosity_error()
    transformers.logging.disable_progress_bar()
    for kind in sys.argv[2:] or MODELS:
        make_model(root, kind)


if __name__ == "__main__":
    main()
