"""Makes the checkpoints of this directory that are described, not run: their experts are stored in
formats that hold more than plain matrices. README.md says what they are.

    python3 make_layouts.py [DIRECTORY]      (default: the directory of this file)

expected.json states what a reader must find: the tensors of an expert, gate and up joined in that
order, and the CRC-32 of every one of them. That the names and shapes are those of the hub is
checked by transformers, which loads each checkpoint without a tensor missing or left over."""

import json
import math
import os
import sys
import tempfile
import zlib

import torch
import transformers

from make_fixtures import fresh_directory, write_config, write_weights

BLOCK = 16  # rows and columns of weights that share a scale; 128 in the published checkpoints

DEEPSEEK = {
    "vocab_size": 48,
    "hidden_size": 40,
    "intermediate_size": 56,
    "moe_intermediate_size": 24,
    "num_attention_heads": 2,
    "num_key_value_heads": 2,
    "kv_lora_rank": 16,
    "qk_nope_head_dim": 8,
    "qk_rope_head_dim": 4,
    "v_head_dim": 8,
    "n_routed_experts": 6,
    "num_experts_per_tok": 2,
    "moe_layer_freq": 1,
    "first_k_dense_replace": 1,
    "routed_scaling_factor": 1.0,
    "hidden_act": "silu",
    "rms_norm_eps": 1e-6,
    "rope_theta": 10000,
    "rope_scaling": None,
    "max_position_embeddings": 256,
    "attention_bias": False,
    "tie_word_embeddings": False,
    "torch_dtype": "bfloat16",
}

MODELS = {
    "deepseek_v2": {
        "architectures": ["DeepseekV2ForCausalLM"],
        **DEEPSEEK,
        "num_hidden_layers": 3,
        "n_shared_experts": 2,
        "q_lora_rank": None,
        "n_group": 1,
        "topk_group": 1,
        "topk_method": "greedy",
        "scoring_func": "softmax",
        "norm_topk_prob": False,
    },
    "deepseek_v3": {
        "architectures": ["DeepseekV3ForCausalLM"],
        **DEEPSEEK,
        "num_hidden_layers": 3,
        "num_nextn_predict_layers": 1,
        "n_shared_experts": 1,
        "q_lora_rank": 12,
        "n_group": 2,
        "topk_group": 1,
        "topk_method": "noaux_tc",
        "scoring_func": "sigmoid",
        "norm_topk_prob": True,
        "routed_scaling_factor": 2.5,
        "quantization_config": {
            "activation_scheme": "dynamic",
            "fmt": "e4m3",
            "quant_method": "fp8",
            "weight_block_size": [BLOCK, BLOCK],
        },
    },
    "gpt_oss": {
        "architectures": ["GptOssForCausalLM"],
        "vocab_size": 48,
        "hidden_size": 64,
        "intermediate_size": 96,
        "head_dim": 16,
        "num_hidden_layers": 2,
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
        "num_local_experts": 4,
        "num_experts_per_tok": 2,
        "experts_per_token": 2,
        "layer_types": ["sliding_attention", "full_attention"],
        "sliding_window": 128,
        "swiglu_limit": 7.0,
        "hidden_act": "silu",
        "rms_norm_eps": 1e-5,
        "rope_theta": 150000,
        "rope_scaling": None,
        "max_position_embeddings": 256,
        "attention_bias": True,
        "tie_word_embeddings": False,
        "quantization_config": {
            "quant_method": "mxfp4",
            "modules_to_not_convert": [
                "model.layers.*.self_attn",
                "model.layers.*.mlp.router",
                "model.embed_tokens",
                "lm_head",
            ],
        },
    },
}


class Checkpoint:
    """Named random tensors in one stored form."""

    def __init__(self, seed, fp8):
        self.generator = torch.Generator().manual_seed(seed)
        self.fp8 = fp8
        self.tensors = {}

    def random(self, shape):
        return torch.randn(shape, generator=self.generator)

    def dense(self, name, *shape, dtype=torch.bfloat16):
        self.tensors[name] = self.random(shape).to(dtype)

    def linear(self, name, rows, columns):
        """A projection: BF16, or FP8 with one scale for each block, edges rounded up."""
        if not self.fp8:
            self.dense(f"{name}.weight", rows, columns)
            return
        blocks = (math.ceil(rows / BLOCK), math.ceil(columns / BLOCK))
        self.tensors[f"{name}.weight"] = self.random((rows, columns)).to(torch.float8_e4m3fn)
        self.tensors[f"{name}.weight_scale_inv"] = self.random(blocks).abs()

    def swiglu(self, name, hidden, inner):
        self.linear(f"{name}.gate_proj", inner, hidden)
        self.linear(f"{name}.up_proj", inner, hidden)
        self.linear(f"{name}.down_proj", hidden, inner)

    def integers(self, name, low, high, *shape):
        values = torch.randint(low, high, shape, generator=self.generator)
        self.tensors[name] = values.to(torch.uint8)


# ---- DeepSeek -----------------------------------------------------------------------------------


def deepseek_attention(made, config, at):
    hidden, heads = config["hidden_size"], config["num_attention_heads"]
    query = heads * (config["qk_nope_head_dim"] + config["qk_rope_head_dim"])
    if config["q_lora_rank"]:
        made.linear(f"{at}.q_a_proj", config["q_lora_rank"], hidden)
        made.dense(f"{at}.q_a_layernorm.weight", config["q_lora_rank"])
        made.linear(f"{at}.q_b_proj", query, config["q_lora_rank"])
    else:
        made.linear(f"{at}.q_proj", query, hidden)
    latent = config["kv_lora_rank"]
    made.linear(f"{at}.kv_a_proj_with_mqa", latent + config["qk_rope_head_dim"], hidden)
    made.dense(f"{at}.kv_a_layernorm.weight", latent)
    made.linear(f"{at}.kv_b_proj", heads * (config["qk_nope_head_dim"] + config["v_head_dim"]),
                latent)
    made.linear(f"{at}.o_proj", hidden, heads * config["v_head_dim"])


def deepseek_feed_forward(made, config, layer):
    hidden, at = config["hidden_size"], f"model.layers.{layer}.mlp"
    if layer < config["first_k_dense_replace"]:
        made.swiglu(at, hidden, config["intermediate_size"])
        return
    experts, inner = config["n_routed_experts"], config["moe_intermediate_size"]
    made.dense(f"{at}.gate.weight", experts, hidden)
    if config["topk_method"] == "noaux_tc":
        made.dense(f"{at}.gate.e_score_correction_bias", experts, dtype=torch.float32)
    for expert in range(experts):
        made.swiglu(f"{at}.experts.{expert}", hidden, inner)
    made.swiglu(f"{at}.shared_experts", hidden, inner * config["n_shared_experts"])


def deepseek_layer(made, config, layer):
    hidden = config["hidden_size"]
    for norm in ("input_layernorm", "post_attention_layernorm"):
        made.dense(f"model.layers.{layer}.{norm}.weight", hidden)
    deepseek_attention(made, config, f"model.layers.{layer}.self_attn")
    deepseek_feed_forward(made, config, layer)


def make_deepseek(made, config):
    hidden, vocabulary = config["hidden_size"], config["vocab_size"]
    made.dense("model.embed_tokens.weight", vocabulary, hidden)
    for layer in range(config["num_hidden_layers"]):
        deepseek_layer(made, config, layer)
    made.dense("model.norm.weight", hidden)
    made.dense("lm_head.weight", vocabulary, hidden)
    # The layer that predicts a second token comes after the last and has experts of its own,
    # which are not part of the model proper.
    for extra in range(config.get("num_nextn_predict_layers", 0)):
        layer = config["num_hidden_layers"] + extra
        deepseek_layer(made, config, layer)
        at = f"model.layers.{layer}"
        made.dense(f"{at}.embed_tokens.weight", vocabulary, hidden)
        made.dense(f"{at}.enorm.weight", hidden)
        made.dense(f"{at}.hnorm.weight", hidden)
        made.dense(f"{at}.eh_proj.weight", hidden, 2 * hidden)
        made.dense(f"{at}.shared_head.norm.weight", hidden)
        made.dense(f"{at}.shared_head.head.weight", vocabulary, hidden)


def deepseek_expert(config, tensors, layer, expert):
    """(role, tensor) of one expert as a reader joins them."""
    at = f"model.layers.{layer}.mlp.experts.{expert}"
    roles = [("gate_up", "weight", ("gate_proj", "up_proj")), ("down", "weight", ("down_proj",))]
    if config.get("quantization_config"):
        roles += [("gate_up_scale", "weight_scale_inv", ("gate_proj", "up_proj")),
                  ("down_scale", "weight_scale_inv", ("down_proj",))]
    for role, suffix, parts in roles:
        joined = [tensors[f"{at}.{part}.{suffix}"].view(torch.uint8) for part in parts]
        dtype = tensors[f"{at}.{parts[0]}.{suffix}"].dtype
        yield role, torch.cat(joined).view(dtype)


# ---- gpt-oss ------------------------------------------------------------------------------------


def gpt_oss_layer(made, config, layer):
    hidden, inner = config["hidden_size"], config["intermediate_size"]
    heads, pairs = config["num_attention_heads"], config["num_key_value_heads"]
    experts, head, at = config["num_local_experts"], config["head_dim"], f"model.layers.{layer}"
    for norm in ("input_layernorm", "post_attention_layernorm"):
        made.dense(f"{at}.{norm}.weight", hidden)
    shapes = {"q": (heads * head, hidden), "k": (pairs * head, hidden),
              "v": (pairs * head, hidden), "o": (hidden, heads * head)}
    for part, (rows, columns) in shapes.items():
        made.dense(f"{at}.self_attn.{part}_proj.weight", rows, columns)
        made.dense(f"{at}.self_attn.{part}_proj.bias", rows)
    made.dense(f"{at}.self_attn.sinks", heads)
    made.dense(f"{at}.mlp.router.weight", experts, hidden)
    made.dense(f"{at}.mlp.router.bias", experts)
    # MXFP4: 32 values of 4 bits and one power-of-two scale, all experts of a layer in one tensor.
    for part, rows, columns in (("gate_up", 2 * inner, hidden), ("down", hidden, inner)):
        name = f"{at}.mlp.experts.{part}_proj"
        made.integers(f"{name}_blocks", 0, 256, experts, rows, columns // 32, 16)
        made.integers(f"{name}_scales", 118, 124, experts, rows, columns // 32)
        made.dense(f"{name}_bias", experts, rows)


def make_gpt_oss(made, config):
    hidden, vocabulary = config["hidden_size"], config["vocab_size"]
    made.dense("model.embed_tokens.weight", vocabulary, hidden)
    for layer in range(config["num_hidden_layers"]):
        gpt_oss_layer(made, config, layer)
    made.dense("model.norm.weight", hidden)
    made.dense("lm_head.weight", vocabulary, hidden)


def mxfp4_blocks(nibbles, scales):
    """[rows, columns / 32, 17]: each scale before its 32 weights, of which the first 16 are in the low
    halves of the bytes. Stored are pairs of neighbours."""
    weights = torch.stack((nibbles & 15, nibbles >> 4), dim=-1).flatten(-2)
    packed = weights[..., :16] | weights[..., 16:] << 4
    return torch.cat((scales[..., None], packed), dim=-1)


def gate_then_up(rows):
    """Gate's rows, which are stored at even places, and up's behind them."""
    return torch.cat((rows[::2], rows[1::2]))


def gpt_oss_expert(_config, tensors, layer, expert):
    def of(part, what):
        return tensors[f"model.layers.{layer}.mlp.experts.{part}_proj_{what}"][expert].contiguous()

    for part, order in (("gate_up", gate_then_up), ("down", lambda rows: rows)):
        blocks = order(mxfp4_blocks(of(part, "blocks"), of(part, "scales")))
        yield part, blocks, "MXFP4", [blocks.shape[0], blocks.shape[1] * 32]
    yield "gate_up_bias", gate_then_up(of("gate_up", "bias"))
    yield "down_bias", of("down", "bias")


# ---- Checks and files ---------------------------------------------------------------------------


def check_loads(kind, config, tensors):
    """transformers must find every tensor it wants, and want every tensor there is."""
    with tempfile.TemporaryDirectory() as directory:
        options = {}
        if kind == "gpt_oss":
            options["quantization_config"] = transformers.Mxfp4Config(dequantize=True)
        if kind == "deepseek_v3":  # FP8 kernels need a GPU: only names and shapes are checked
            config = {key: config[key] for key in config if key != "quantization_config"}
            tensors = {name: tensor.to(torch.bfloat16) for name, tensor in tensors.items()
                       if not name.endswith("scale_inv")}
        write_config(directory, config)
        write_weights(directory, tensors)
        model, info = transformers.AutoModelForCausalLM.from_pretrained(
            directory, dtype=torch.bfloat16, output_loading_info=True, **options)
    extra = f"model.layers.{config['num_hidden_layers']}."
    left_over = {key: [name for name in names if not str(name).startswith(extra)]
                 for key, names in info.items()}
    assert not any(left_over.values()), f"{kind}: {left_over}"
    with torch.no_grad():
        assert bool(model(torch.tensor([[1, 2, 3]])).logits.isfinite().all())


NAMES = {torch.bfloat16: "BF16", torch.float32: "F32", torch.uint8: "U8",
         torch.float8_e4m3fn: "F8_E4M3"}


def described(role, tensor, dtype=None, shape=None):
    return {"role": role, "dtype": dtype or NAMES[tensor.dtype],
            "shape": shape or list(tensor.shape)}


def expected_of(config, tensors, first_moe, expert_tensors):
    experts = config.get("n_routed_experts") or config["num_local_experts"]
    layers = range(first_moe, config["num_hidden_layers"])
    checksums = [[[zlib.crc32(tensor.view(torch.uint8).numpy().tobytes())
                   for _, tensor, *_ in expert_tensors(config, tensors, layer, expert)]
                  for expert in range(experts)] for layer in layers]
    return {
        "transformers": transformers.__version__,
        "layers": config["num_hidden_layers"],
        "first_moe_layer": first_moe,
        "experts": experts,
        "top_k": config["num_experts_per_tok"],
        "hidden": config["hidden_size"],
        "expert_intermediate": config.get("moe_intermediate_size", config["intermediate_size"]),
        "shared_experts": config.get("n_shared_experts", 0),
        "vocabulary": config["vocab_size"],
        "tensors": [described(*of) for of in expert_tensors(config, tensors, first_moe, 0)],
        "crc32": checksums,
    }


def make_layout(root, kind):
    config = {"model_type": kind, **MODELS[kind]}
    made = Checkpoint(seed=len(kind), fp8=kind == "deepseek_v3")
    is_deepseek = kind.startswith("deepseek")
    (make_deepseek if is_deepseek else make_gpt_oss)(made, config)
    check_loads(kind, config, made.tensors)
    directory = fresh_directory(root, kind)
    write_config(directory, config)
    write_weights(directory, made.tensors)
    expected = expected_of(config, made.tensors, config.get("first_k_dense_replace", 0),
                           deepseek_expert if is_deepseek else gpt_oss_expert)
    with open(os.path.join(directory, "expected.json"), "w", encoding="utf-8") as file:
        lines = [f'  "{key}": {json.dumps(value)}' for key, value in expected.items()]
        file.write("{\n" + ",\n".join(lines) + "\n}\n")
    print(kind, expected["tensors"], flush=True)


def main():
    root = sys.argv[1] if len(sys.argv) > 1 else os.path.dirname(os.path.abspath(__file__))
    transformers.logging.set_verbosity_error()
    transformers.logging.disable_progress_bar()
    for kind in MODELS:
        make_layout(root, kind)


if __name__ == "__main__":
    main()
