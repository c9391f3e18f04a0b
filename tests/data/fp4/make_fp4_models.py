"""A small Qwen3-MoE model quantised by ModelOpt and by compressed-tensors, and what transformers makes of it.

    python3 tests/data/fp4/make_fp4_models.py                  (from the project's root)

Writes the directories modelopt and packed, NVFP4 as the two packages store it, stacked, ModelOpt's with the experts
of a layer in stacks, and fp8, experts of which ModelOpt stores one scale for a matrix; and modelopt.gguf, the first in
GGUF's blocks, with the scales of matrices beside them. In the directories are values.json, a checksum of every matrix
or stack as the package itself decodes it to floats, and the logits and tokens of transformers with those floats
(../hf/README.md). With the packages torch, numpy, safetensors, transformers and gguf as ../hf/README.md lists them,
nvidia-modelopt 0.47.0 and compressed-tensors 0.20.0."""

import json
import pathlib
import sys
import tempfile
import warnings

import gguf
import numpy as np
import torch
import transformers
from compressed_tensors.compressors.nvfp4.base import NVFP4PackedCompressor
from compressed_tensors.compressors.nvfp4.helpers import unpack_fp4_from_uint8
from compressed_tensors.config import CompressionFormat
from compressed_tensors.quantization import (QuantizationArgs, QuantizationConfig, QuantizationScheme,
                                             preset_name_to_scheme)
from compressed_tensors.quantization.lifecycle.forward import dequantize
from safetensors.torch import save_file

warnings.simplefilter("ignore")
from modelopt.torch.export.convert_hf_config import convert_hf_quant_config_format
from modelopt.torch.quantization.qtensor.fp8_tensor import FP8QTensor
from modelopt.torch.quantization.qtensor.nvfp4_tensor import NVFP4QTensor

HERE = pathlib.Path(__file__).resolve().parent
sys.path += [str(HERE.parent / "hf"), str(HERE.parent / "blocks")]
sys.dont_write_bytecode = True
from common import checksum
from make_fixtures import COMMON, make_reference

HIDDEN, EXPERTS, TOP_K, LAYERS, VOCABULARY = 64, 8, 2, 2, 96
HEADS, KV_HEADS, HEAD = 2, 1, 32
CONFIG = {
    "model_type": "qwen3_moe", **COMMON, "architectures": ["Qwen3MoeForCausalLM"],
    "vocab_size": VOCABULARY, "hidden_size": HIDDEN, "head_dim": HEAD, "num_hidden_layers": LAYERS,
    "num_attention_heads": HEADS, "num_key_value_heads": KV_HEADS, "intermediate_size": 64,
    "num_experts": EXPERTS, "num_experts_per_tok": TOP_K,
    "norm_topk_prob": True, "decoder_sparse_step": 1, "mlp_only_layers": [], "attention_bias": False,
    "rms_norm_eps": 1e-6, "rope_theta": 1000000.0, "rope_scaling": None, "sliding_window": None,
    "use_sliding_window": False, "max_position_embeddings": 256, "tie_word_embeddings": False,
    "eos_token_id": VOCABULARY - 1, "torch_dtype": "bfloat16",
}
PACKED = QuantizationScheme(targets=["Linear"], **preset_name_to_scheme("NVFP4", ["Linear"]).model_dump(
    exclude={"targets"}))


def as_modelopt(weight):
    stored, scales, factor = NVFP4QTensor.quantize(weight.clone(), 16)
    value = stored.dequantize(torch.float32, scale=scales, double_scale=factor, block_sizes={-1: 16})
    return {"weight": stored._quantized_data, "weight_scale": scales, "weight_scale_2": factor,
            "input_scale": torch.tensor(0.01)}, value


def as_packed(weight):
    factor = (6 * 448 / weight.abs().max()).reshape(1)
    scales = weight.reshape(weight.shape[0], -1, 16).abs().amax(-1) / 6 * factor
    parts = NVFP4PackedCompressor.compress(
        {"weight": weight, "weight_scale": scales.to(torch.float8_e4m3fn).float(),
         "weight_global_scale": factor}, PACKED)
    weights = unpack_fp4_from_uint8(parts["weight_packed"], *weight.shape, dtype=torch.float32) + 0.0
    value = dequantize(weights, parts["weight_scale"].float(), args=PACKED.weights, dtype=torch.float32,
                       global_scale=factor)
    decoded = NVFP4PackedCompressor.decompress(dict(parts), PACKED)["weight"]
    assert torch.equal(value.to(decoded.dtype), decoded)
    return {**parts, "input_global_scale": torch.tensor([100.0])}, value


def as_fp8(weight):
    stored, scale = FP8QTensor.quantize(weight)
    value = stored.dequantize(torch.float32, scale=scale)
    return {"weight": stored._quantized_data, "weight_scale": scale.reshape(()),
            "input_scale": torch.tensor(0.01)}, value


def modelopt_config(algorithm, ignored):
    return convert_hf_quant_config_format({
        "producer": {"name": "modelopt", "version": "0.47.0"},
        "quantization": {"quant_algo": algorithm, "kv_cache_quant_algo": "FP8",
                         **({"group_size": 16} if algorithm == "NVFP4" else {}),
                         "exclude_modules": ignored}})


def packed_config(ignored):
    config = QuantizationConfig(config_groups={"group_0": PACKED}, ignore=ignored,
                                format=CompressionFormat.nvfp4_pack_quantized.value)
    return json.loads(config.model_dump_json())


WIDTHS = {"modelopt": 128, "packed": 64, "fp8": 64, "stacked": 192}
GATES = [f"model.layers.{layer}.mlp.gate" for layer in range(LAYERS)]
MODELS = {
    "modelopt": (as_modelopt, ("self_attn", "experts"), modelopt_config("NVFP4", ["lm_head", *GATES])),
    "packed": (as_packed, ("self_attn", "experts"), packed_config(["lm_head", "re:.*mlp.gate$"])),
    "fp8": (as_fp8, ("experts",),
            modelopt_config("FP8", ["lm_head", "model.layers.*.self_attn*", *GATES])),
    "stacked": (as_modelopt, ("self_attn",), modelopt_config("NVFP4", ["lm_head", *GATES])),
}


def draw(random, width):
    """All tensors, in floats that BF16 holds."""
    shapes = {"model.embed_tokens": (VOCABULARY, HIDDEN), "lm_head": (VOCABULARY, HIDDEN),
              "model.norm": (HIDDEN,)}
    for layer in range(LAYERS):
        at = f"model.layers.{layer}."
        shapes |= {f"{at}input_layernorm": (HIDDEN,), f"{at}post_attention_layernorm": (HIDDEN,),
                   f"{at}self_attn.q_norm": (HEAD,), f"{at}self_attn.k_norm": (HEAD,),
                   f"{at}mlp.gate": (EXPERTS, HIDDEN),
                   f"{at}self_attn.q_proj": (HEADS * HEAD, HIDDEN),
                   f"{at}self_attn.k_proj": (KV_HEADS * HEAD, HIDDEN),
                   f"{at}self_attn.v_proj": (KV_HEADS * HEAD, HIDDEN),
                   f"{at}self_attn.o_proj": (HIDDEN, HEADS * HEAD)}
        for expert in range(EXPERTS):
            shapes |= {f"{at}mlp.experts.{expert}.gate_proj": (width, HIDDEN),
                       f"{at}mlp.experts.{expert}.up_proj": (width, HIDDEN),
                       f"{at}mlp.experts.{expert}.down_proj": (HIDDEN, width)}
    out = {}
    for name, shape in shapes.items():
        numbers = random.uniform(0.5, 1.5, shape) if len(shape) == 1 else \
            random.normal(size=shape) * 2 / np.sqrt(shape[1])
        out[name] = torch.from_numpy(numbers).to(torch.bfloat16)
    return out


GGUF_NAMES = {
    "input_layernorm": "attn_norm", "post_attention_layernorm": "ffn_norm", "self_attn.q_proj": "attn_q",
    "self_attn.k_proj": "attn_k", "self_attn.v_proj": "attn_v", "self_attn.o_proj": "attn_output",
    "self_attn.q_norm": "attn_q_norm", "self_attn.k_norm": "attn_k_norm", "mlp.gate": "ffn_gate_inp",
    "model.embed_tokens": "token_embd", "model.norm": "output_norm", "lm_head": "output",
}


def nvfp4_blocks(nibbles, scales):
    """The bytes of GGUF's blocks: four scales, then of each group first the low halves and then the high ones."""
    nibbles, scales = nibbles.numpy(), scales.view(torch.uint8).numpy()
    weights = np.stack([nibbles & 15, nibbles >> 4], -1).reshape(*nibbles.shape[:-1], -1, 4, 2, 8)
    packed = (weights[..., 0, :] | weights[..., 1, :] << 4).reshape(*nibbles.shape[:-1], -1, 32)
    blocks = np.concatenate([scales.reshape(*nibbles.shape[:-1], -1, 4), packed], -1)
    return np.ascontiguousarray(blocks.reshape(*nibbles.shape[:-1], -1))


def add_to_gguf(writer, name, parts):
    """A matrix, or those of all experts, with its scales beside it."""
    blocks = [nvfp4_blocks(each["weight"], each["weight_scale"]) for each in parts]
    stacked = blocks[0] if len(parts) == 1 else np.stack(blocks)
    writer.add_tensor(f"{name}.weight", stacked, raw_dtype=gguf.GGMLQuantizationType.NVFP4)
    for end, part in (("scale", "weight_scale_2"), ("input_scale", "input_scale")):
        writer.add_tensor(f"{name}.{end}", np.array([each[part] for each in parts], dtype=np.float32))


def write_gguf(stored, config, path):
    """The matrices of the directory modelopt in GGUF's blocks."""
    writer = gguf.GGUFWriter(path, "qwen3moe")
    writer.add_block_count(LAYERS)
    writer.add_vocab_size(VOCABULARY)
    writer.add_context_length(config["max_position_embeddings"])
    writer.add_embedding_length(HIDDEN)
    writer.add_feed_forward_length(config["intermediate_size"])
    writer.add_head_count(HEADS)
    writer.add_head_count_kv(KV_HEADS)
    writer.add_key_length(HEAD)
    writer.add_value_length(HEAD)
    writer.add_layer_norm_rms_eps(config["rms_norm_eps"])
    writer.add_rope_freq_base(config["rope_theta"])
    writer.add_expert_count(EXPERTS)
    writer.add_expert_used_count(TOP_K)
    writer.add_expert_feed_forward_length(config["moe_intermediate_size"])
    writer.add_eos_token_id(config["eos_token_id"])

    def parts_of(name):
        return {part: stored[f"{name}.{part}"]
                for part in ("weight", "weight_scale", "weight_scale_2", "input_scale")}

    for full in [name[:-len(".weight")] for name in stored if name.endswith(".weight")]:
        at, name = "", full
        if full.startswith("model.layers."):
            layer, name = full[len("model.layers."):].split(".", 1)
            at = f"blk.{layer}."
        tensor = stored[f"{full}.weight"]
        if name.startswith("mlp.experts.0."):
            role = name[len("mlp.experts.0."):-len("_proj")]
            add_to_gguf(writer, f"{at}ffn_{role}_exps", [
                parts_of(full.replace(".experts.0.", f".experts.{e}.")) for e in range(EXPERTS)])
        elif tensor.dtype == torch.uint8 and ".experts." not in name:
            add_to_gguf(writer, at + GGUF_NAMES[name], [parts_of(full)])
        elif ".experts." not in name:
            floats = tensor.dim() == 1 or name == "mlp.gate"
            data = tensor.float().numpy()
            kind = gguf.GGMLQuantizationType.F32 if floats else gguf.GGMLQuantizationType.BF16
            writer.add_tensor(f"{at}{GGUF_NAMES[name]}.weight", gguf.quants.quantize(data, kind), raw_dtype=kind)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


def take_stack(drawn, layer, names):
    """Takes out the experts' matrices of these names; those of an expert are joined: [experts, rows, columns]."""
    return torch.stack([torch.cat([drawn.pop(f"model.layers.{layer}.mlp.experts.{expert}.{name}")
                                   for name in names]) for expert in range(EXPERTS)]).float()


def as_stack(layer, matrices):
    """The parts of a stack, with a scale for each expert's matrix or, in odd layers, one for all."""
    if layer % 2:
        return as_modelopt(matrices)
    parts, values = zip(*(as_modelopt(matrix) for matrix in matrices))
    return {part: torch.stack([each[part] for each in parts]) if part != "input_scale" else parts[0][part]
            for part in parts[0]}, torch.stack(values)


def stack_experts(drawn):
    """What is stored of the experts, the floats of each expert, and checksums of the stacks."""
    stored, floats, sums = {}, {}, {}
    for layer in range(LAYERS):
        at = f"model.layers.{layer}.mlp.experts."
        for stack, names in (("gate_up_proj", ("gate_proj", "up_proj")), ("down_proj", ("down_proj",))):
            parts, values = as_stack(layer, take_stack(drawn, layer, names))
            stored |= {f"{at}{stack}" + (f"_{part}" if part != "weight" else ""): each.contiguous()
                       for part, each in parts.items()}
            sums[f"{at}{stack}"] = f"{checksum(values.numpy().reshape(-1).view(np.uint32)):016x}"
            for name, joined in zip(names, values.chunk(len(names), dim=1)):
                floats |= {f"{at}{expert}.{name}.weight": value.contiguous()
                           for expert, value in enumerate(joined)}
    return stored, floats, sums


def make(kind, seed):
    encode, quantised, quantization = MODELS[kind]
    config = {**CONFIG, "moe_intermediate_size": WIDTHS[kind]}
    drawn = draw(np.random.default_rng(seed), WIDTHS[kind])
    stored, floats, sums = stack_experts(drawn) if kind == "stacked" else ({}, {}, {})
    for name, tensor in drawn.items():
        if name.endswith("_proj") and any(f".{part}." in name for part in quantised):
            parts, value = encode(tensor.float())
            assert value.dtype == torch.float32 and value.shape == tensor.shape
            stored |= {f"{name}.{part}": each.contiguous() for part, each in parts.items()}
            floats[f"{name}.weight"] = value
            sums[f"{name}.weight"] = f"{checksum(value.numpy().reshape(-1).view(np.uint32)):016x}"
        else:
            stored[f"{name}.weight"] = tensor
            floats[f"{name}.weight"] = tensor.float()
    if kind != "packed":
        stored |= {f"model.layers.{layer}.self_attn.{each}_proj.{each}_scale": torch.tensor(1.0)
                   for layer in range(LAYERS) for each in "kv"}
    folder = HERE / kind
    folder.mkdir(exist_ok=True)
    save_file(stored, folder / "model.safetensors")
    (folder / "model.safetensors").chmod(0o644)
    (folder / "config.json").write_text(
        json.dumps({**config, "quantization_config": quantization}, indent=2) + "\n")
    (folder / "values.json").write_text(json.dumps(sums, indent=0) + "\n")
    with tempfile.TemporaryDirectory() as place:
        save_file(floats, pathlib.Path(place, "model.safetensors"), metadata={"format": "pt"})
        pathlib.Path(place, "config.json").write_text(json.dumps(config))
        expected = make_reference(place, config, seed)
        for name in ("expected.json", "logits.f32"):
            (folder / name).write_bytes(pathlib.Path(place, name).read_bytes())
    if kind == "modelopt":
        write_gguf(stored, config, HERE / "modelopt.gguf")
    print(kind, {key: value for key, value in expected.items() if key != "prompts"}, flush=True)


torch.set_num_threads(1)
transformers.logging.set_verbosity_error()
transformers.logging.disable_progress_bar()
for number, kind in enumerate(MODELS):
    make(kind, 11 + number)
