"""A small model as GGUF files, written by the format's own package.

    python3 tests/data/gguf/make_gguf.py      (from the project's root; needs numpy and gguf)

README.md says what is in the files. Nothing of libmoepage runs."""

import pathlib

import numpy as np
from gguf import GGUFEndian, GGUFWriter, GGMLQuantizationType as Type
from gguf.constants import GGML_QUANT_SIZES

HERE = pathlib.Path(__file__).parent
LAYERS, EXPERTS, HIDDEN, WIDTH = 3, 2, 32, 64
MASK = (1 << 64) - 1


def name_hash(name):
    """What tests/support/checkpoint_maker.c makes of a name."""
    value = 5381
    for character in name.encode():
        value = (value * 33 + character) & MASK
    return value


def data(name, n_bytes):
    first = name_hash(name)
    return np.array([((first + i) * 0x9E3779B97F4A7C15 & MASK) >> 58 for i in range(n_bytes)],
                    dtype=np.uint8)


def add(writer, name, type, *shape):
    """Adds a tensor whose bytes are a function of its name; `shape` has the rows first."""
    weights, size = GGML_QUANT_SIZES[type]
    rows = int(np.prod(shape[:-1], dtype=np.int64))
    stored = data(name, rows * shape[-1] // weights * size)
    if type == Type.F32:
        writer.add_tensor(name, stored.view(np.float32).reshape(shape))
    else:
        writer.add_tensor(name, stored.reshape(*shape[:-1], -1), raw_dtype=type)


def values(writer):
    writer.add_block_count(LAYERS)
    writer.add_embedding_length(HIDDEN)
    writer.add_expert_count(EXPERTS)
    writer.add_expert_used_count(1)
    writer.add_expert_feed_forward_length(WIDTH)
    writer.add_leading_dense_block_count(1)
    writer.add_expert_shared_count(1)
    writer.add_rope_freq_base(10000.5)
    writer.add_token_list(["<s>", "\u0120the", "", b"\xff\xfe", "\u65e5"])
    writer.add_token_types([3, 1, 1, 6, -1])
    writer.add_add_bos_token(True)
    writer.add_uint64("moepage.largest", MASK)


def tensors(writer):
    add(writer, "token_embd.weight", Type.Q8_0, 5, HIDDEN)
    add(writer, "blk.0.ffn_up.weight", Type.BF16, 3, HIDDEN)
    for layer in range(1, LAYERS):
        at = f"blk.{layer}.ffn_"
        add(writer, at + "gate_inp.weight", Type.F32, EXPERTS, HIDDEN)
        add(writer, at + "gate_exps.weight", Type.Q4_0, EXPERTS, WIDTH, HIDDEN)
        add(writer, at + "up_exps.weight", Type.Q4_0, EXPERTS, WIDTH, HIDDEN)
        add(writer, at + "down_exps.weight", [Type.MXFP4, Type.Q5_1][layer % 2], EXPERTS, HIDDEN, WIDTH)


def write(name, endian=GGUFEndian.LITTLE, **split):
    writer = GGUFWriter(HERE / name, "deepseek2", endianess=endian, **split)
    values(writer)
    if endian == GGUFEndian.LITTLE:
        tensors(writer)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


write("whole.gguf")
write("split.gguf", split_max_tensors=4)
write("big-endian.gguf", endian=GGUFEndian.BIG)
