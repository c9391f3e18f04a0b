"""Small models whose matrices are in FP8 with a scale for each block, and what transformers makes of them.

    python3 tests/data/fp8/make_fp8_models.py                  (from the project's root)

The models are those of ../hf/make_fixtures.py, with the same weights; all their projections are stored in E4M3, as
DeepSeek-V3 and Qwen3's FP8 models have them. The logits and tokens are those of transformers with the values in
floats (../hf/README.md), for its FP8 kernels need a GPU. That those are the values is asked of its own loader, which
wants blocks that divide every matrix. With the packages of ../hf/README.md, and accelerate 1.15.0 for that loader."""

import json
import pathlib
import sys
import tempfile

import torch
import transformers

HERE = pathlib.Path(__file__).resolve().parent
sys.path.append(str(HERE.parent / "hf"))
sys.dont_write_bytecode = True
from make_fixtures import (COMMON, MODELS, fresh_directory, make_reference, make_weights, write_config,
                           write_weights)

# the model, rows and columns of a block, which divide few of its matrices, and the scales' type
STORED = {
    "qwen3_moe": ("qwen3_moe", (24, 20), torch.bfloat16),
    "deepseek_v3": ("deepseek_v3-groups", (4, 24), torch.float32),
}


def is_projection(name):
    return name.endswith("_proj.weight") or name.endswith("_mqa.weight")


def blocks_of(tensor, block):
    """The matrix in blocks [rows of blocks, columns of blocks, rows, columns], the last ones filled up with zeros."""
    (rows, columns), (high, wide) = tensor.shape, block
    filled = torch.zeros(-(-rows // high) * high, -(-columns // wide) * wide)
    filled[:rows, :columns] = tensor
    return filled.unflatten(0, (-1, high)).unflatten(2, (-1, wide)).transpose(1, 2)


def as_fp8(tensor, block, scale_type):
    """E4M3 numbers, scales, and the floats that they stand for."""
    most = torch.finfo(torch.float8_e4m3fn).max
    blocks = blocks_of(tensor.float(), block)
    scales = (blocks.abs().amax((2, 3)) / most).to(scale_type)
    wide = scales.float()[:, :, None, None]
    numbers = (blocks / wide).clamp(-most, most).to(torch.float8_e4m3fn)

    def matrix(of):
        joined = of.transpose(1, 2).flatten(2, 3).flatten(0, 1)
        return joined[:tensor.shape[0], :tensor.shape[1]].contiguous()

    return matrix(numbers.view(torch.uint8)).view(torch.float8_e4m3fn), scales, matrix(numbers.float() * wide)


def write_both(model, config, block, scale_type, in_fp8, in_floats):
    """The checkpoint, and the one of the values that it stands for."""
    stored, floats = {}, {}
    for name, tensor in make_weights(model, config).items():
        if is_projection(name):
            stored[name], stored[f"{name}_scale_inv"], floats[name] = as_fp8(tensor, block, scale_type)
        else:
            stored[name], floats[name] = tensor, tensor.float()
    write_config(in_fp8, {**config, "quantization_config": {
        "activation_scheme": "dynamic", "fmt": "e4m3", "quant_method": "fp8", "weight_block_size": list(block)}})
    write_weights(in_fp8, stored)
    write_config(in_floats, config)
    write_weights(in_floats, floats)


def logits_of(folder, **options):
    model = transformers.AutoModelForCausalLM.from_pretrained(
        folder, dtype=torch.float32, attn_implementation="eager", experts_implementation="eager", **options)
    with torch.no_grad():
        return model.float()(torch.tensor([list(range(2, 30))])).logits


def compare_loaders(model, config, scale_type):
    """transformers makes the same of FP8 as of the floats."""
    block = (4, 4)
    with tempfile.TemporaryDirectory() as in_fp8, tempfile.TemporaryDirectory() as in_floats:
        write_both(model, config, block, scale_type, in_fp8, in_floats)
        own = transformers.FineGrainedFP8Config(dequantize=True, weight_block_size=block)
        assert torch.equal(logits_of(in_fp8, quantization_config=own), logits_of(in_floats))


def make(kind):
    model, block, scale_type = STORED[kind]
    config = {"model_type": model, **COMMON, **MODELS[model]}
    config["eos_token_id"] = config["vocab_size"] - 1
    compare_loaders(model, config, scale_type)
    folder = pathlib.Path(fresh_directory(HERE, kind))
    with tempfile.TemporaryDirectory() as place:
        write_both(model, config, block, scale_type, folder, place)
        expected = make_reference(place, config, seed=len(kind))
        for name in ("expected.json", "logits.f32"):
            (folder / name).write_bytes(pathlib.Path(place, name).read_bytes())
    print(kind, json.dumps({key: value for key, value in expected.items() if key != "prompts"}), flush=True)


torch.set_num_threads(1)
transformers.logging.set_verbosity_error()
transformers.logging.disable_progress_bar()
for kind in STORED:
    make(kind)
