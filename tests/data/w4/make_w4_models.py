"""A small Qwen3-MoE model of random 4-bit weights in the layouts of GPTQ, AWQ and compressed-tensors.

    python3 tests/data/w4/make_w4_models.py                       (from the project's root)

Writes the directories gptq, awq and packed, which store the same integers, scales and zero-points, and
floats: the weights that the decoders of the three packages make of them, in F16. The script stops unless
all three make the same. With the packages torch, numpy, safetensors, compressed-tensors 0.20.0,
auto-gptq 0.7.1 and autoawq 0.2.9; of the last two single files are loaded, which need no GPU and none of
what the packages ask for."""

import importlib.util
import json
import pathlib

import numpy as np
import torch
from compressed_tensors.compressors.pack_quantized.base import PackedQuantizationCompressor
from compressed_tensors.compressors.pack_quantized.helpers import pack_to_int32
from compressed_tensors.quantization import QuantizationArgs, QuantizationScheme
from safetensors.torch import save_file

GROUP = 32
HIDDEN, WIDTH, EXPERTS, TOP_K, LAYERS, VOCABULARY = 64, 32, 3, 2, 2, 48
HEADS, KV_HEADS, HEAD = 2, 1, 32
AWQ_ORDER = [0, 2, 4, 6, 1, 3, 5, 7]


def load(package, path):
    """A single file of a package."""
    folder = importlib.util.find_spec(package).submodule_search_locations[0]
    spec = importlib.util.spec_from_file_location(path.replace("/", "_"), f"{folder}/{path}.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


GPTQ = load("auto_gptq", "nn_modules/qlinear/qlinear_cuda_old").QuantLinear
AWQ = load("awq", "utils/packing_utils")
ARGS = QuantizationArgs(num_bits=4, type="int", symmetric=False, strategy="group", group_size=GROUP)
SCHEME = QuantizationScheme(targets=["Linear"], weights=ARGS)


def as_gptq(q, scales, zeros):
    """Packed and decoded by auto-gptq, by multiplying an identity matrix."""
    rows, columns = q.shape
    linear = torch.nn.Linear(columns, rows, bias=False, dtype=torch.float32)
    spread = [each.repeat_interleave(GROUP, 1).float() for each in (scales, zeros)]
    linear.weight.data = (q - spread[1]) * spread[0]
    module = GPTQ(4, GROUP, columns, rows, False)
    module.pack(linear, scales.clone().float(), zeros.clone().float(), None)
    module.scales = module.scales.to(torch.float16)
    value = module.forward(torch.eye(columns, dtype=torch.float16)).t().contiguous()
    assert torch.equal(module.scales, scales.t())
    return {"qweight": module.qweight, "qzeros": module.qzeros, "scales": module.scales,
            "g_idx": module.g_idx}, value


def words(numbers):
    """Eight numbers of a row to a word, the first in its lowest bits."""
    eight = numbers.reshape(numbers.shape[0], -1, 8).astype(np.uint32)
    packed = sum(eight[:, :, i] << np.uint32(4 * i) for i in range(8))
    return torch.from_numpy(np.ascontiguousarray(packed).view(np.int32))


def as_awq(q, scales, zeros):
    """Packed as autoawq's WQLinear_GEMM does, decoded by the package."""
    def reordered(numbers):
        columns = np.arange(numbers.shape[1]).reshape(-1, 8)[:, AWQ_ORDER].reshape(-1)
        return words(numbers[:, columns])
    parts = {"qweight": reordered(q.t().numpy()), "qzeros": reordered(zeros.t().numpy()),
             "scales": scales.t().contiguous()}
    value = AWQ.dequantize_gemm(parts["qweight"], parts["qzeros"], parts["scales"], 4, GROUP)
    return parts, value.t().contiguous()


def as_packed(q, scales, zeros):
    """Packed and decoded by compressed-tensors."""
    parts = {"weight_packed": pack_to_int32((q - 8).to(torch.int8), 4),
             "weight_scale": scales,
             "weight_zero_point":
                 pack_to_int32((zeros - 8).to(torch.int8), 4, packed_dim=0).contiguous(),
             "weight_shape": torch.tensor(q.shape)}
    value = PackedQuantizationCompressor.decompress(dict(parts), SCHEME)["weight"]
    return parts, value


def matrix(random, rows, columns):
    q = torch.from_numpy(random.integers(0, 16, (rows, columns), dtype=np.int32))
    zeros = torch.from_numpy(random.integers(1, 16, (rows, columns // GROUP), dtype=np.int32))
    scales = torch.from_numpy(random.uniform(0.01, 0.03, zeros.shape)).to(torch.float16)
    return q, scales, zeros


def main():
    random = np.random.default_rng(7)
    out = {"gptq": {}, "awq": {}, "packed": {}, "floats": {}}

    def quantised(name, rows, columns):
        numbers = matrix(random, rows, columns)
        values = []
        for kind, encode in (("gptq", as_gptq), ("awq", as_awq), ("packed", as_packed)):
            parts, value = encode(*numbers)
            assert value.dtype == torch.float16 and value.shape == (rows, columns)
            out[kind].update({f"{name}.{part}": tensor for part, tensor in parts.items()})
            values.append(value)
        assert all(torch.equal(values[0], value) for value in values[1:]), name
        out["floats"][f"{name}.weight"] = values[2]

    def plain(name, values):
        tensor = torch.from_numpy(values).to(torch.float16)
        for tensors in out.values():
            tensors[name] = tensor

    plain("model.embed_tokens.weight", random.normal(size=(VOCABULARY, HIDDEN)))
    plain("lm_head.weight", random.normal(size=(VOCABULARY, HIDDEN)))
    plain("model.norm.weight", random.uniform(0.5, 1.5, HIDDEN))
    for layer in range(LAYERS):
        at = f"model.layers.{layer}."
        for norm in ("input_layernorm", "post_attention_layernorm"):
            plain(f"{at}{norm}.weight", random.uniform(0.5, 1.5, HIDDEN))
        for norm in ("q_norm", "k_norm"):
            plain(f"{at}self_attn.{norm}.weight", random.uniform(0.5, 1.5, HEAD))
        plain(f"{at}mlp.gate.weight", random.normal(size=(EXPERTS, HIDDEN)))
        quantised(f"{at}self_attn.q_proj", HEADS * HEAD, HIDDEN)
        quantised(f"{at}self_attn.k_proj", KV_HEADS * HEAD, HIDDEN)
        quantised(f"{at}self_attn.v_proj", KV_HEADS * HEAD, HIDDEN)
        quantised(f"{at}self_attn.o_proj", HIDDEN, HEADS * HEAD)
        for expert in range(EXPERTS):
            name = f"{at}mlp.experts.{expert}."
            quantised(f"{name}gate_proj", WIDTH, HIDDEN)
            quantised(f"{name}up_proj", WIDTH, HIDDEN)
            quantised(f"{name}down_proj", HIDDEN, WIDTH)

    config = {
        "architectures": ["Qwen3MoeForCausalLM"], "model_type": "qwen3_moe", "hidden_act": "silu",
        "vocab_size": VOCABULARY, "hidden_size": HIDDEN, "head_dim": HEAD,
        "num_hidden_layers": LAYERS, "num_attention_heads": HEADS, "num_key_value_heads": KV_HEADS,
        "intermediate_size": 64, "moe_intermediate_size": WIDTH, "num_experts": EXPERTS,
        "num_experts_per_tok": TOP_K, "norm_topk_prob": True, "decoder_sparse_step": 1,
        "mlp_only_layers": [], "attention_bias": False, "rms_norm_eps": 1e-6,
        "rope_theta": 1000000.0, "rope_scaling": None, "sliding_window": None,
        "use_sliding_window": False, "max_position_embeddings": 256, "tie_word_embeddings": False,
        "torch_dtype": "float16",
    }
    quantization = {
        "gptq": {"quant_method": "gptq", "bits": 4, "group_size": GROUP, "desc_act": False,
                 "sym": False, "checkpoint_format": "gptq", "lm_head": False,
                 "dynamic": {"-:.*mlp.gate$": {}}},
        "awq": {"quant_method": "awq", "bits": 4, "group_size": GROUP, "version": "gemm",
                "zero_point": True, "modules_to_not_convert": ["gate"]},
        "packed": {"quant_method": "compressed-tensors", "format": "pack-quantized",
                   "quantization_status": "compressed", "ignore": ["lm_head", "re:.*mlp.gate$"],
                   "kv_cache_scheme": None, "config_groups": {"group_0": {
                       "targets": ["Linear"], "input_activations": None,
                       "output_activations": None,
                       "weights": {"num_bits": 4, "type": "int", "symmetric": False,
                                   "strategy": "group", "group_size": GROUP, "dynamic": False,
                                   "actorder": None, "observer": "minmax"}}}},
    }
    for kind, tensors in out.items():
        folder = pathlib.Path(__file__).parent / kind
        folder.mkdir(exist_ok=True)
        save_file(tensors, folder / "model.safetensors")
        own = dict(config)
        if kind in quantization:
            own["quantization_config"] = quantization[kind]
        (folder / "config.json").write_text(json.dumps(own, indent=2) + "\n")


main()
