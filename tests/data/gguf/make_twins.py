"""Makes GGUF files of checkpoints in ../hf, with the same values under the names and metadata that
llama.cpp's converter gives them: their reference is the checkpoint's.

    python3 make_twins.py [DIRECTORY [MODEL...]]    (the packages of ../../hf/README.md; default: beside this file)

deepseek2-lite.gguf has the keys and values of its latents in one tensor, as older files do;
deepseek2-groups.gguf has them apart, the keys transposed. Both have these in Q8_0, which holds the
checkpoint's values exactly. glm4moe.gguf and deepseek2-groups.gguf have a layer behind the last."""

import json
import os
import sys

import gguf
import numpy as np
import torch
from safetensors.torch import load_file

HERE = os.path.dirname(os.path.abspath(__file__))
HF = os.path.join(HERE, "..", "hf")

Type = gguf.GGMLQuantizationType

TWINS = {
    "deepseek2-lite": ("deepseek2", "deepseek_v2-lite"),
    "deepseek2-groups": ("deepseek2", "deepseek_v3-groups"),
    "glm4moe": ("glm4moe", "glm4_moe"),
}

NAMES = {
    "input_layernorm.weight": "attn_norm.weight",
    "self_attn.q_proj": "attn_q",
    "self_attn.k_proj": "attn_k",
    "self_attn.v_proj": "attn_v",
    "self_attn.o_proj": "attn_output",
    "self_attn.q_norm": "attn_q_norm",
    "self_attn.k_norm": "attn_k_norm",
    "self_attn.q_a_proj": "attn_q_a",
    "self_attn.q_a_layernorm": "attn_q_a_norm",
    "self_attn.q_b_proj": "attn_q_b",
    "self_attn.kv_a_proj_with_mqa": "attn_kv_a_mqa",
    "self_attn.kv_a_layernorm": "attn_kv_a_norm",
    "self_attn.kv_b_proj": "attn_kv_b",
    "mlp.gate.weight": "ffn_gate_inp.weight",
    "mlp.gate.e_score_correction_bias": "exp_probs_b.bias",
    "mlp.gate_proj": "ffn_gate",
    "mlp.up_proj": "ffn_up",
    "mlp.down_proj": "ffn_down",
    "mlp.shared_experts.gate_proj": "ffn_gate_shexp",
    "mlp.shared_experts.up_proj": "ffn_up_shexp",
    "mlp.shared_experts.down_proj": "ffn_down_shexp",
    "eh_proj": "nextn.eh_proj",
    "enorm": "nextn.enorm",
    "hnorm": "nextn.hnorm",
    "shared_head.norm": "nextn.shared_head_norm",
}
WHOLE = {
    "model.embed_tokens.weight": "token_embd.weight",
    "model.norm.weight": "output_norm.weight",
    "lm_head.weight": "output.weight",
}


def new_name(kind, part):
    """A tensor's name within its layer."""
    if part == "post_attention_layernorm.weight":
        return "ffn_norm.weight" if kind == "deepseek2" else "post_attention_norm.weight"
    if part in NAMES:
        return NAMES[part]
    stem, suffix = part.rsplit(".", 1)
    return f"{NAMES[stem]}.{suffix}"


def add(writer, name, tensor, blocks=False):
    """Vectors and routers in F32, matrices as they are stored, or in Q8_0."""
    exact = tensor.float().numpy()
    kind = Type.Q8_0 if blocks else Type.F32
    if not blocks and tensor.dtype == torch.bfloat16 and tensor.dim() > 1 and "_inp" not in name:
        kind = Type.BF16
    data = gguf.quants.quantize(exact, kind)
    assert np.array_equal(gguf.quants.dequantize(data, kind).reshape(exact.shape), exact), name
    writer.add_tensor(name, data, raw_dtype=kind)


def add_latent_heads(writer, at, tensor, config):
    """Keys and values of each head, together or apart. The further layer's are not in blocks."""
    blocks = tensor.dtype == torch.float32
    if not config["q_lora_rank"]:
        add(writer, f"{at}.attn_kv_b.weight", tensor, blocks)
        return
    heads = tensor.view(config["num_attention_heads"], -1, config["kv_lora_rank"])
    keys, values = heads.split([config["qk_nope_head_dim"], config["v_head_dim"]], dim=1)
    add(writer, f"{at}.attn_k_b.weight", keys.transpose(1, 2).contiguous(), blocks)
    add(writer, f"{at}.attn_v_b.weight", values.contiguous(), blocks)


def add_layer(writer, kind, layer, tensors, config):
    at, prefix = f"blk.{layer}", f"model.layers.{layer}."
    parts = {name[len(prefix):]: tensor for name, tensor in tensors.items()
             if name.startswith(prefix)}
    for part, tensor in parts.items():
        if part == "self_attn.kv_b_proj.weight":
            add_latent_heads(writer, at, tensor, config)
        elif ".experts." not in part:
            add(writer, f"{at}.{new_name(kind, part)}", tensor)
    if "mlp.experts.0.gate_proj.weight" in parts:
        for role in ("gate", "up", "down"):
            experts = [parts[f"mlp.experts.{e}.{role}_proj.weight"]
                       for e in range(config["n_routed_experts"])]
            add(writer, f"{at}.ffn_{role}_exps.weight", torch.stack(experts))


def add_latent_metadata(writer, config):
    rank, turned = config["kv_lora_rank"], config["qk_rope_head_dim"]
    key, value = config["qk_nope_head_dim"] + turned, config["v_head_dim"]
    apart = bool(config["q_lora_rank"])
    writer.add_head_count_kv(1 if apart else config["num_attention_heads"])
    writer.add_kv_lora_rank(rank)
    writer.add_key_length(rank + turned if apart else key)
    writer.add_value_length(rank if apart else value)
    if apart:
        writer.add_q_lora_rank(config["q_lora_rank"])
        writer.add_key_length_mla(key)
        writer.add_value_length_mla(value)
    writer.add_rope_dimension_count(turned)
    scaling = config["rope_scaling"]
    writer.add_rope_scaling_type(gguf.RopeScalingType.YARN)
    writer.add_rope_scaling_factor(scaling["factor"])
    writer.add_rope_scaling_orig_ctx_len(scaling["original_max_position_embeddings"])
    writer.add_rope_scaling_yarn_log_mul(0.1 * scaling["mscale_all_dim"])


def add_head_metadata(writer, config):
    writer.add_head_count_kv(config["num_key_value_heads"])
    writer.add_key_length(config["head_dim"])
    writer.add_value_length(config["head_dim"])
    writer.add_rope_dimension_count(int(config["head_dim"] * config["partial_rotary_factor"]))


def add_metadata(writer, kind, config):
    sigmoid = kind == "glm4moe" or config["scoring_func"] == "sigmoid"
    further = config.get("num_nextn_predict_layers", 0)
    writer.add_block_count(config["num_hidden_layers"] + further)
    if further:
        writer.add_nextn_predict_layers(further)
    writer.add_vocab_size(config["vocab_size"])
    writer.add_context_length(config["max_position_embeddings"])
    writer.add_embedding_length(config["hidden_size"])
    writer.add_feed_forward_length(config["intermediate_size"])
    writer.add_head_count(config["num_attention_heads"])
    writer.add_layer_norm_rms_eps(config["rms_norm_eps"])
    writer.add_rope_freq_base(config["rope_theta"])
    writer.add_leading_dense_block_count(config["first_k_dense_replace"])
    writer.add_expert_count(config["n_routed_experts"])
    writer.add_expert_used_count(config["num_experts_per_tok"])
    writer.add_expert_feed_forward_length(config["moe_intermediate_size"])
    writer.add_expert_shared_count(config["n_shared_experts"])
    writer.add_expert_weights_scale(config["routed_scaling_factor"])
    writer.add_expert_weights_norm(config["norm_topk_prob"])
    if sigmoid:
        writer.add_expert_gating_func(gguf.ExpertGatingFuncType.SIGMOID)
    if config["n_group"] > 1:
        writer.add_expert_group_count(config["n_group"])
        writer.add_expert_group_used_count(config["topk_group"])
    writer.add_eos_token_id(config["eos_token_id"])
    (add_latent_metadata if kind == "deepseek2" else add_head_metadata)(writer, config)


def make_twin(root, name):
    kind, source = TWINS[name]
    directory = os.path.join(HF, source)
    with open(os.path.join(directory, "config.json"), encoding="utf-8") as file:
        config = json.load(file)
    tensors = load_file(os.path.join(directory, "model.safetensors"))
    writer = gguf.GGUFWriter(os.path.join(root, f"{name}.gguf"), kind)
    add_metadata(writer, kind, config)
    for layer in range(config["num_hidden_layers"] + config.get("num_nextn_predict_layers", 0)):
        add_layer(writer, kind, layer, tensors, config)
    for old, new in WHOLE.items():
        add(writer, new, tensors[old])
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


def main():
    root = sys.argv[1] if len(sys.argv) > 1 else HERE
    for name in sys.argv[2:] or TWINS:
        make_twin(root, name)


if __name__ == "__main__":
    main()
