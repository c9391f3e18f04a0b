#!/usr/bin/env python3
"""Writes a GGUF file of Qwen3-30B-A3B's shape with fewer layers and random BF16 weights, and with --quantize
another of it by llama.cpp itself. Needs numpy and gguf, and llama-cpp-python for --quantize.

    make_gguf.py OUT.gguf [--layers 8] [--attention 1] [--quantize Q4_K_M OUT2.gguf]

Attention gives neighbouring tokens a part in common, and so many of the same experts: with eight layers, an eighth, a
quarter and a half of the experts resident, LRU hits 35, 58 and 86 % of them, and on gpt-oss-20b's real routes 37, 64
and 92 %. --attention 0.1 makes that part small: every token then has experts of its own, and the hits are nearly the
share that is resident.
"""
import argparse
import os

import gguf
import numpy

HIDDEN, EXPERTS, TOP_K, INTERMEDIATE = 2048, 128, 8, 768
HEADS, KV_HEADS, HEAD_DIM, VOCABULARY = 32, 4, 128, 151936
DEVIATION = 0.02


class Weights:
    """BF16 numbers from a normal distribution: stretches of one long table, each from a place of its own."""

    def __init__(self, seed):
        self.random = numpy.random.default_rng(seed)
        table = self.random.standard_normal((1 << 25) + 4099, dtype=numpy.float32)
        self.table = table * numpy.float32(DEVIATION)

    def draw(self, shape, scale=1.0):
        n = int(numpy.prod(shape))
        out = numpy.empty(n, dtype=numpy.uint16)
        for at in range(0, n, 1 << 24):
            size = min(1 << 24, n - at)
            start = int(self.random.integers(0, len(self.table) - size + 1))
            bits = (self.table[start:start + size] * numpy.float32(scale)).view(numpy.uint32)
            out[at:at + size] = bits >> 16
        return out.reshape(shape)


def tensors(layers, weights, attention):
    """Name, shape, type, and a function that makes the values: one tensor at a time is in memory."""
    bf16, f32 = gguf.GGMLQuantizationType.BF16, gguf.GGMLQuantizationType.F32

    def matrix(name, *shape, **how):
        return name, shape, bf16, lambda: weights.draw(shape, **how)

    def ones(name, n):
        return name, (n,), f32, lambda: numpy.ones(n, dtype=numpy.float32)

    def router(name):
        shape = (EXPERTS, HIDDEN)
        return name, shape, f32, lambda: (weights.draw(shape).astype(numpy.uint32) << 16).view(numpy.float32)

    yield matrix("token_embd.weight", VOCABULARY, HIDDEN, scale=1 / DEVIATION)
    yield matrix("output.weight", VOCABULARY, HIDDEN)
    yield ones("output_norm.weight", HIDDEN)
    for layer in range(layers):
        part = "blk.%d." % layer
        yield ones(part + "attn_norm.weight", HIDDEN)
        yield ones(part + "ffn_norm.weight", HIDDEN)
        yield ones(part + "attn_q_norm.weight", HEAD_DIM)
        yield ones(part + "attn_k_norm.weight", HEAD_DIM)
        yield matrix(part + "attn_q.weight", HEADS * HEAD_DIM, HIDDEN)
        yield matrix(part + "attn_k.weight", KV_HEADS * HEAD_DIM, HIDDEN)
        yield matrix(part + "attn_v.weight", KV_HEADS * HEAD_DIM, HIDDEN)
        yield matrix(part + "attn_output.weight", HIDDEN, HEADS * HEAD_DIM, scale=attention)
        yield router(part + "ffn_gate_inp.weight")
        yield matrix(part + "ffn_gate_exps.weight", EXPERTS, INTERMEDIATE, HIDDEN)
        yield matrix(part + "ffn_up_exps.weight", EXPERTS, INTERMEDIATE, HIDDEN)
        yield matrix(part + "ffn_down_exps.weight", EXPERTS, HIDDEN, INTERMEDIATE)


def write(path, layers, seed, attention):
    writer = gguf.GGUFWriter(path, "qwen3moe")
    writer.add_block_count(layers)
    writer.add_context_length(32768)
    writer.add_embedding_length(HIDDEN)
    writer.add_feed_forward_length(6144)
    writer.add_expert_feed_forward_length(INTERMEDIATE)
    writer.add_head_count(HEADS)
    writer.add_head_count_kv(KV_HEADS)
    writer.add_key_length(HEAD_DIM)
    writer.add_value_length(HEAD_DIM)
    writer.add_expert_count(EXPERTS)
    writer.add_expert_used_count(TOP_K)
    writer.add_layer_norm_rms_eps(1e-6)
    writer.add_rope_freq_base(1e6)
    writer.add_vocab_size(VOCABULARY)
    writer.add_file_type(gguf.LlamaFileType.MOSTLY_BF16)
    writer.add_tokenizer_model("none")
    listed = list(tensors(layers, Weights(seed), attention))
    for name, shape, kind, _ in listed:
        size = 2 if kind == gguf.GGMLQuantizationType.BF16 else 4
        writer.add_tensor_info(name, shape, numpy.dtype(numpy.float32), size * int(numpy.prod(shape)), kind)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_ti_data_to_file()
    for _, _, _, make in listed:
        writer.write_tensor_data(make())
    writer.close()


def quantize(source, kind, path):
    import ctypes

    import llama_cpp
    params = llama_cpp.llama_model_quantize_default_params()
    params.ftype = getattr(llama_cpp, "LLAMA_FTYPE_MOSTLY_" + kind)
    params.nthread = os.cpu_count()
    if llama_cpp.llama_model_quantize(source.encode(), path.encode(), ctypes.byref(params)):
        raise SystemExit("llama.cpp does not quantise %s to %s" % (source, kind))


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("out")
    parser.add_argument("--layers", type=int, default=8)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--attention", type=float, default=1.0)
    parser.add_argument("--quantize", nargs=2, metavar=("KIND", "OUT"))
    args = parser.parse_args()
    if not os.path.exists(args.out):
        write(args.out + ".part", args.layers, args.seed, args.attention)
        os.rename(args.out + ".part", args.out)
    if args.quantize and not os.path.exists(args.quantize[1]):
        quantize(args.out, args.quantize[0], args.quantize[1] + ".part")
        os.rename(args.quantize[1] + ".part", args.quantize[1])
