"""Compares moepage-generate's logits of the twins here with llama.cpp's.

    python3 compare_llama.py [GENERATE]    (default: build/bin/moepage-generate)

It needs the packages gguf 0.19.0, numpy and llama-cpp-python 0.3.36.

Both run copies with all weights in F32, for llama.cpp multiplies others by rounded activations. The copies
differ from the twins in what llama.cpp asks of a model: a tokenizer of no kind, the epsilon that it gives
all norms, no layer behind the last without experts, and 26 layers where queries have no low rank. One
more has no groups of experts. Logits may differ by 1e-5 of the largest."""

import json
import os
import subprocess
import sys
import tempfile

import gguf
import numpy as np
from llama_cpp import llama_cpp as llama

HERE = os.path.dirname(os.path.abspath(__file__))
TOKENS = [3, 17, 22, 41, 8, 60, 9, 31, 12, 5, 44, 27]
LITE_LAYERS = 26
BAR = 1e-5


def names_of(name, layers):
    """Names that a tensor has in the copy: its own, and of the last layer those of layers added."""
    parts = name.split(".")
    if parts[0] != "blk":
        return [name]
    layer, last = int(parts[1]), 2
    if layer > last:
        return []
    added = range(last + 1, layers) if layer == last else []
    return [name] + [".".join(["blk", str(i)] + parts[2:]) for i in added]


def weaker(name, values):
    """Layers that are added add little to the residual stream, else nothing remains of the first."""
    return values * np.float32(0.3) if "attn_output" in name or "_down" in name else values


def make_copy(source, path, grouped):
    reader = gguf.GGUFReader(source)
    architecture = reader.fields["general.architecture"].contents()
    low = f"{architecture}.attention.q_lora_rank" in reader.fields
    layers = 3 if low or architecture != "deepseek2" else LITE_LAYERS
    changed = {"block_count": layers, "nextn_predict_layers": 0,
               "attention.layer_norm_rms_epsilon": 1e-6}
    if not grouped:
        changed |= {"expert_group_count": 1, "expert_group_used_count": 1}
    writer = gguf.GGUFWriter(path, architecture)
    writer.add_tokenizer_model("none")
    for name, field in reader.fields.items():
        if not name.startswith(architecture + "."):
            if name.startswith("tokenizer."):
                writer.add_key_value(name, field.contents(), field.types[0])
            continue
        value = changed.get(name.removeprefix(architecture + "."), field.contents())
        writer.add_key_value(name, value, field.types[0])
    for tensor in reader.tensors:
        values = gguf.quants.dequantize(tensor.data, tensor.tensor_type).astype(np.float32)
        values = values.reshape([int(n) for n in reversed(tensor.shape)])
        for name in names_of(tensor.name, layers):
            writer.add_tensor(name, values if name == tensor.name else weaker(name, values))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


def llama_logits(path):
    params = llama.llama_model_default_params()
    params.n_gpu_layers = 0
    model = llama.llama_model_load_from_file(path.encode(), params)
    assert model, path
    params = llama.llama_context_default_params()
    params.n_ctx = params.n_batch = 256
    params.type_k = params.type_v = gguf.GGMLQuantizationType.F32
    params.flash_attn_type = 0
    context = llama.llama_init_from_model(model, params)
    vocabulary = llama.llama_vocab_n_tokens(llama.llama_model_get_vocab(model))
    batch = llama.llama_batch_init(len(TOKENS), 0, 1)
    batch.n_tokens = len(TOKENS)
    for i, token in enumerate(TOKENS):
        batch.token[i], batch.pos[i], batch.n_seq_id[i], batch.logits[i] = token, i, 1, 1
        batch.seq_id[i][0] = 0
    assert llama.llama_decode(context, batch) == 0
    return np.array([np.ctypeslib.as_array(llama.llama_get_logits_ith(context, i),
                                           shape=(vocabulary,)).copy()
                     for i in range(len(TOKENS))])


def own_logits(generate, path, directory):
    out = os.path.join(directory, "logits")
    subprocess.run([generate, "--model", path, "--max-tokens", "1", "--logits-out", out, "--tokens",
                    ",".join(map(str, TOKENS))], check=True, stdout=subprocess.DEVNULL)
    return np.fromfile(out, "<f4").reshape(len(TOKENS), -1)


def main():
    generate = sys.argv[1] if len(sys.argv) > 1 else "build/bin/moepage-generate"
    quiet = llama.llama_log_callback(lambda *_: None)
    llama.llama_log_set(quiet, None)
    llama.llama_backend_init()
    with tempfile.TemporaryDirectory() as directory:
        for name, grouped in (("deepseek2-lite", True), ("deepseek2-groups", True),
                              ("deepseek2-groups", False), ("glm4moe", True)):
            path = os.path.join(directory, "copy.gguf")
            make_copy(os.path.join(HERE, f"{name}.gguf"), path, grouped)
            theirs, own = llama_logits(path), own_logits(generate, path, directory)
            share = float(np.abs(own - theirs).max() / np.abs(theirs).max())
            print(json.dumps({"model": name, "grouped": grouped, "max_diff_of_largest": share}))
            assert share <= BAR, name


if __name__ == "__main__":
    main()
