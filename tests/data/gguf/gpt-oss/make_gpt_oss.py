"""Makes gpt-oss.gguf, a random gpt-oss of three layers, the same as a checkpoint in checkpoint/, and what
transformers computes with its weights: expected.json and logits.f32, as ../../hf/README.md describes them.

    python3 make_gpt_oss.py    (the packages of ../../hf/README.md, and gguf)

Experts are in MXFP4, whose values are exact in the floats that transformers gets. The model varies what a
reader may get wrong: sinks that matter, a window shorter than the prompts on every other layer, YaRN
whose range is not rounded, biases everywhere, and sums that reach the activation's limit."""

import math
import os
import sys
import tempfile
import zlib

import gguf
import torch
import transformers

HERE = os.path.dirname(os.path.abspath(__file__))
sys.path.insert(0, os.path.join(HERE, "..", "..", "hf"))
import make_fixtures as fixtures  # noqa: E402

Type = gguf.GGMLQuantizationType

HIDDEN, INNER, EXPERTS, LAYERS, HEADS, PAIRS, HEAD = 64, 32, 6, 3, 4, 2, 16
YARN = {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 64,
        "beta_fast": 32.0, "beta_slow": 1.0, "truncate": False}
CONFIG = {
    "model_type": "gpt_oss",
    "architectures": ["GptOssForCausalLM"],
    **fixtures.COMMON,
    "vocab_size": 64,
    "eos_token_id": 63,
    "hidden_size": HIDDEN,
    "intermediate_size": INNER,
    "head_dim": HEAD,
    "num_hidden_layers": LAYERS,
    "num_attention_heads": HEADS,
    "num_key_value_heads": PAIRS,
    "num_local_experts": EXPERTS,
    "num_experts_per_tok": 2,
    "layer_types": ["sliding_attention", "full_attention", "sliding_attention"],
    "sliding_window": 8,
    "swiglu_limit": 7.0,
    "rms_norm_eps": 1e-3,
    "rope_theta": 5000.0,
    "rope_scaling": YARN,
    "max_position_embeddings": 256,
    "attention_bias": True,
    "tie_word_embeddings": False,
    "torch_dtype": "float32",
}


def random(name, *shape, scale=1.0):
    generator = torch.Generator().manual_seed(zlib.crc32(name.encode()))
    return scale * torch.randn(shape, generator=generator)


def hub_blocks(data, shape):
    """MXFP4 as the hub has it: a tensor of blocks, in which neighbours share a byte, and one of scales. In
    the file a block is its scale, and its first half in the lower halves of bytes."""
    stored = torch.from_numpy(data.copy()).reshape(*shape[:-1], shape[-1] // 32, 17)
    halves = stored[..., 1:]
    values = torch.cat([halves & 15, halves >> 4], dim=-1)
    return values[..., 0::2] | values[..., 1::2] << 4, stored[..., 0].contiguous()


class Made:
    """The tensors of all: transformers' as floats, the file's and the checkpoint's in their types."""

    def __init__(self):
        self.tensors, self.stored, self.hub = {}, [], {}

    def add(self, hf, name, values, kind):
        """Stores `values` as `kind`; transformers gets what that holds."""
        data = gguf.quants.quantize(values.numpy(), kind)
        exact = torch.from_numpy(gguf.quants.dequantize(data, kind).copy()).reshape(values.shape)
        self.stored.append((name, data, kind))
        if hf:
            self.tensors[hf] = exact
            self.hub[hf] = exact if kind == Type.F32 else exact.bfloat16()
        return exact

    def matrix(self, hf, name, rows, columns, scale):
        self.add(hf, name, random(hf, rows, columns, scale=scale / math.sqrt(columns)), Type.BF16)

    def vector(self, hf, name, n, scale, at=0.0):
        self.add(hf, name, at + random(hf, n, scale=scale), Type.F32)

    def layer(self, layer):
        hf, name = f"model.layers.{layer}", f"blk.{layer}"
        self.vector(f"{hf}.input_layernorm.weight", f"{name}.attn_norm.weight", HIDDEN, 0.1, 1.0)
        self.vector(f"{hf}.post_attention_layernorm.weight",
                    f"{name}.post_attention_norm.weight", HIDDEN, 0.1, 1.0)
        for part, to, rows, columns in (("q", "attn_q", HEADS * HEAD, HIDDEN),
                                        ("k", "attn_k", PAIRS * HEAD, HIDDEN),
                                        ("v", "attn_v", PAIRS * HEAD, HIDDEN),
                                        ("o", "attn_output", HIDDEN, HEADS * HEAD)):
            self.matrix(f"{hf}.self_attn.{part}_proj.weight", f"{name}.{to}.weight", rows, columns,
                        1.2)
            self.vector(f"{hf}.self_attn.{part}_proj.bias", f"{name}.{to}.bias", rows, 0.2)
        self.vector(f"{hf}.self_attn.sinks", f"{name}.attn_sinks.weight", HEADS, 1.0, 1.0)
        self.matrix(f"{hf}.mlp.router.weight", f"{name}.ffn_gate_inp.weight", EXPERTS, HIDDEN, 2.0)
        self.vector(f"{hf}.mlp.router.bias", f"{name}.ffn_gate_inp.bias", EXPERTS, 0.5)
        self.experts(f"{hf}.mlp.experts", f"{name}.ffn")

    def experts(self, hf, name):
        """transformers has the input dimension first, and gate and up in turns."""
        parts, blocks, biases = {}, {}, {}
        for part, rows, columns, scale in (("gate", INNER, HIDDEN, 4.0), ("up", INNER, HIDDEN, 4.0),
                                           ("down", HIDDEN, INNER, 0.5)):
            values = random(hf + part, EXPERTS, rows, columns, scale=scale / math.sqrt(columns))
            parts[part] = self.add(None, f"{name}_{part}_exps.weight", values, Type.MXFP4)
            blocks[part] = hub_blocks(self.stored[-1][1], values.shape)
            biases[part] = self.add(None, f"{name}_{part}_exps.bias",
                                    random(hf + part + "b", EXPERTS, rows, scale=0.5), Type.F32)
        both = in_turns(parts["gate"], parts["up"])
        self.tensors[f"{hf}.gate_up_proj"] = both.transpose(1, 2).contiguous()
        self.tensors[f"{hf}.down_proj"] = parts["down"].transpose(1, 2).contiguous()
        own = {"gate_up_proj_bias": in_turns(biases["gate"], biases["up"]),
               "down_proj_bias": biases["down"]}
        self.tensors |= {f"{hf}.{part}": bias for part, bias in own.items()}
        for i, part in enumerate(("blocks", "scales")):
            own[f"gate_up_proj_{part}"] = in_turns(blocks["gate"][i], blocks["up"][i])
            own[f"down_proj_{part}"] = blocks["down"][i]
        self.hub |= {f"{hf}.{part}": tensor for part, tensor in own.items()}


def in_turns(gate, up):
    """Rows of both, gate first."""
    both = torch.stack([gate, up], dim=2)
    return both.reshape(len(gate), 2 * gate.shape[1], *gate.shape[2:])


def make():
    made = Made()
    vocabulary = CONFIG["vocab_size"]
    made.matrix("model.embed_tokens.weight", "token_embd.weight", vocabulary, HIDDEN,
                math.sqrt(HIDDEN))
    for layer in range(LAYERS):
        made.layer(layer)
    made.vector("model.norm.weight", "output_norm.weight", HIDDEN, 0.1, 1.0)
    made.matrix("lm_head.weight", "output.weight", vocabulary, HIDDEN, 2.0)
    return made


def write_gguf(made, path):
    writer = gguf.GGUFWriter(path, "gpt-oss")
    writer.add_block_count(LAYERS)
    writer.add_context_length(CONFIG["max_position_embeddings"])
    writer.add_embedding_length(HIDDEN)
    writer.add_expert_feed_forward_length(INNER)
    writer.add_expert_count(EXPERTS)
    writer.add_expert_used_count(CONFIG["num_experts_per_tok"])
    writer.add_head_count(HEADS)
    writer.add_head_count_kv(PAIRS)
    writer.add_key_length(HEAD)
    writer.add_value_length(HEAD)
    writer.add_layer_norm_rms_eps(CONFIG["rms_norm_eps"])
    writer.add_sliding_window(CONFIG["sliding_window"])
    writer.add_rope_freq_base(CONFIG["rope_theta"])
    writer.add_rope_scaling_type(gguf.RopeScalingType.YARN)
    writer.add_rope_scaling_factor(YARN["factor"])
    writer.add_rope_scaling_orig_ctx_len(YARN["original_max_position_embeddings"])
    writer.add_vocab_size(CONFIG["vocab_size"])
    writer.add_eos_token_id(CONFIG["eos_token_id"])
    for name, data, kind in made.stored:
        writer.add_tensor(name, data, raw_dtype=kind)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


def check_checkpoint(made, directory):
    """transformers must find the same experts in it."""
    loaded = transformers.AutoModelForCausalLM.from_pretrained(
        directory, dtype=torch.bfloat16,
        quantization_config=transformers.Mxfp4Config(dequantize=True)).state_dict()
    experts = [name for name in made.tensors if name.endswith("_proj") and "experts" in name]
    assert len(experts) == 2 * LAYERS
    for name in experts:
        assert torch.equal(loaded[name].float(), made.tensors[name]), name


def main():
    torch.set_num_threads(1)
    transformers.logging.set_verbosity_error()
    transformers.logging.disable_progress_bar()
    made = make()
    with tempfile.TemporaryDirectory() as directory:
        fixtures.write_config(directory, CONFIG)
        fixtures.write_weights(directory, made.tensors)
        expected = fixtures.make_reference(directory, CONFIG, seed=4)
        for name in ("expected.json", "logits.f32"):
            with open(os.path.join(directory, name), "rb") as file:
                content = file.read()
            with open(os.path.join(HERE, name), "wb") as file:
                file.write(content)
    write_gguf(made, os.path.join(HERE, "gpt-oss.gguf"))
    checkpoint = fixtures.fresh_directory(HERE, "checkpoint")
    fixtures.write_config(checkpoint, CONFIG | {"quantization_config": {"quant_method": "mxfp4"}})
    fixtures.write_weights(checkpoint, made.hub)
    check_checkpoint(made, checkpoint)
    print({key: value for key, value in expected.items() if key != "prompts"})


if __name__ == "__main__":
    main()
