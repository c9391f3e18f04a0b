#!/usr/bin/env python3
"""Writes a GGUF file of Qwen3-30B-A3B's shape with fewer layers and random BF16 weights, and with --quantize
another of it by llama.cpp itself. Needs numpy and gguf, and llama-cpp-python for --quantize.

    make_gguf.py OUT.gguf [--layers 8] [--quantize Q4_K_M OUT2.gguf]
"""
import argparse
import os

import gguf
import numpy

HIDDEN, EXPERTS, TOP_K, INTERMEDIATE = 2048, 128, 8, 768
HEADS, KV_HEADS, HEAD_DIM, VOCABULARY = 32, 4, 128, 151936


class Weights:
    """BF16 numbers from a normal distribution: stretches of one long table, each from a place of its own."""

    def __init__(self, seed):
        self.random = numpy.random.default_rng(seed)
        table = self.random.standard_normal((1 << 25) + 4099, dtype=numpy.float32)
        self.table = table * numpy.float32(0.02)

    def draw(self, shape, scale=1.0):
        n = int(numpy.prod(shape))
        out = numpy.empty(n, dtype=numpy.uint16)
        for at in range(0, n, 1 << 24):
            size = min(1 << 24, n - at)
            start = int(self.random.integers(0, len(self.table) - size + 1))
            bits = (self.table[start:start + size] * numpy.float32(scale)).view(numpy.uint32)
            out[at:at + size] = bits >> 16
        return out.reshape(shape)


def write(path, layers, seed):
    weights = Weights(seed)
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

    def matrix(name, *shape, scale=1.0):
        writer.add_tensor(name, weights.draw(shape, scale).view(numpy.uint8),
                          raw_dtype=gguf.GGMLQuantizationType.BF16)

    def ones(name, n):
        writer.add_tensor(name, numpy.ones(n, dtype=numpy.float32))

    matrix("token_embd.weight", VOCABULARY, HIDDEN, scale=50.0)
    matrix("output.weight", VOCABULARY, HIDDEN)
    ones("output_norm.weight", HIDDEN)
    for layer in range(layers):
        part = "blk.%d." % layer
        ones(part + "attn_norm.weight", HIDDEN)
        ones(part + "ffn_norm.weight", HIDDEN)
        ones(part + "attn_q_norm.weight", HEAD_DIM)
        ones(part + "attn_k_norm.weight", HEAD_DIM)
        matrix(part + "attn_q.weight", HEADS * HEAD_DIM, HIDDEN)
        matrix(part + "attn_k.weight", KV_HEADS * HEAD_DIM, HIDDEN)
        matrix(part + "attn_v.weight", KV_HEADS * HEAD_DIM, HIDDEN)
        matrix(part + "attn_output.weight", HIDDEN, HEADS * HEAD_DIM)
        router = weights.draw((EXPERTS, HIDDEN)).astype(numpy.uint32) << 16
        writer.add_tensor(part + "ffn_gate_inp.weight", router.view(numpy.float32))
        matrix(part + "ffn_gate_exps.weight", EXPERTS, INTERMEDIATE, HIDDEN)
        matrix(part + "ffn_up_exps.weight", EXPERTS, INTERMEDIATE, HIDDEN)
        matrix(part + "ffn_down_exps.weight", EXPERTS, HIDDEN, INTERMEDIATE)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
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
    parser.add_argument("--quantize", nargs=2, metavar=("KIND", "OUT"))
    args = parser.parse_args()
    if not os.path.exists(args.out):
        write(args.out + ".part", args.layers, args.seed)
        os.rename(args.out + ".part", args.out)
    if args.quantize and not os.path.exists(args.quantize[1]):
        quantize(args.out, args.quantize[0], args.quantize[1] + ".part")
        os.rename(args.quantize[1] + ".part", args.quantize[1])
