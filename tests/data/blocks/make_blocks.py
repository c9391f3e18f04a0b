"""Blocks of every format of GGUF files, and what the format's own package makes of them.

    python3 tests/data/blocks/make_blocks.py                       (from the project's root)
    python3 tests/data/blocks/make_blocks.py --check [BLOCKS [SEED]]

Without --check it writes the files NAME.bin in this directory; README.md says what is in them. Nothing
of libmoepage runs then.

With --check it draws fresh random blocks of every format (BLOCKS of each, default 2048), decodes them
with the package gguf and with the library's decoders, compiled from src/codec, and compares the floats
bit for bit. NaNs compare equal whatever their bits. Exit status 1 at a difference, 77 without numpy or
gguf."""

import ctypes
import glob
import os
import pathlib
import struct
import subprocess
import sys
import tempfile

try:
    import numpy as np
    from gguf import GGML_QUANT_SIZES, GGMLQuantizationType
    from gguf.quants import dequantize
except ImportError as missing:
    print(f"{sys.executable}: {missing}")
    sys.exit(77)

# Name, and where the halves of a block are.
HALVES = {
    "Q4_0": [0], "Q4_1": [0, 2], "Q5_0": [0], "Q5_1": [0, 2], "Q8_0": [0],
    "Q2_K": [80, 82], "Q3_K": [108], "Q4_K": [0, 2], "Q5_K": [0, 2], "Q6_K": [208],
    "IQ4_NL": [0], "IQ4_XS": [0], "MXFP4": [], "NVFP4": [],
}
# Zero, minus zero, least denormals, largest denormal, least normal, 1, -1, largest, infinity, NaN.
HALF_EDGES = [0x0000, 0x8000, 0x0001, 0x8001, 0x03FF, 0x0400, 0x3C00, 0xBC00, 0x7BFF, 0xFBFF,
              0x7C00, 0xFC00, 0x7E00]
# Bytes at the front that are scales, and their edges.
BYTE_SCALES = {"MXFP4": (1, [0, 1, 2, 3, 126, 127, 128, 252, 253, 254, 255]),
               "NVFP4": (4, [0x00, 0x01, 0x07, 0x08, 0x38, 0x7E, 0x7F, 0x80, 0x81, 0xFE, 0xFF])}


def draw(name, n, random):
    """n blocks of random bytes. The first of them have edges for scales, in turn; of the others
    every second has halves as trained weights have, the rest any halves at all."""
    weights, size = GGML_QUANT_SIZES[GGMLQuantizationType[name]]
    blocks = random.integers(0, 256, (n, size), dtype=np.uint8)
    for k, at in enumerate(HALVES[name]):
        halves = random.integers(0, 1 << 16, n).astype(np.uint16)
        usual = (random.normal(size=n) * 0.01).astype(np.float16).view(np.uint16)
        halves[::2] = usual[::2]
        # Two halves are at different edges, and the second at the usual ones first.
        edges = np.roll(np.array(HALF_EDGES, dtype=np.uint16), 6 * k)[:n]
        halves[:len(edges)] = edges
        blocks[:, at:at + 2] = halves.astype("<u2")[:, None].view(np.uint8)
    if name in BYTE_SCALES:
        count, edges = BYTE_SCALES[name]
        for k in range(count):
            turned = np.roll(np.array(edges, dtype=np.uint8), 3 * k)[:n]
            blocks[:len(turned), k] = turned
    return blocks


def decode(name, blocks):
    with np.errstate(all="ignore"):
        values = dequantize(blocks, GGMLQuantizationType[name])
    assert values.dtype == np.float32
    return values


def canonical(values):
    """The bits of floats, all NaNs alike."""
    bits = values.view(np.uint32).copy()
    bits[np.isnan(values)] = 0x7FC00000
    return bits


def checksum(bits):
    """FNV-1a over the bytes of the bits, little-endian."""
    total = 0xCBF29CE484222325
    for byte in bits.astype("<u4").tobytes():
        total = (total ^ byte) * 0x100000001B3 & (1 << 64) - 1
    return total


def write(directory, blocks_of_each=16):
    for number, name in enumerate(HALVES):
        blocks = draw(name, blocks_of_each, np.random.default_rng(number + 1))
        bits = canonical(decode(name, blocks))
        weights = bits.shape[1]
        with open(directory / f"{name}.bin", "wb") as out:
            for block, row in zip(blocks, bits):
                out.write(block.tobytes() + struct.pack("<Q", checksum(row)))
                for i in range(4):
                    out.write(struct.pack("<I", row[i * (weights + 1) // 4]))


class Format(ctypes.Structure):
    DECODE = ctypes.CFUNCTYPE(None, ctypes.c_void_p, ctypes.c_uint64, ctypes.c_void_p)
    _fields_ = [("name", ctypes.c_char_p), ("dtype", ctypes.c_uint32),
                ("weights", ctypes.c_uint32), ("bytes", ctypes.c_uint32),
                ("ggml_type", ctypes.c_uint32), ("decode", DECODE)]


def library(folder):
    path = os.path.join(folder, "blocks.so")
    subprocess.run([os.environ.get("CC", "cc").split()[-1], "-std=gnu11", "-O2",
                    "-ffp-contract=off", "-fPIC", "-shared", "-Isrc", "-Iinclude", "-o", path,
                    *sorted(glob.glob("src/codec/blocks*.c"))], check=True)
    of_ggml = ctypes.CDLL(path).mp_block_format_of_ggml
    of_ggml.restype = ctypes.POINTER(Format)
    return of_ggml


def check(n, seed):
    print(f"seed {seed}")
    random = np.random.default_rng(seed)
    differing = 0
    with tempfile.TemporaryDirectory() as folder:
        of_ggml = library(folder)
        for name in HALVES:
            kind = GGMLQuantizationType[name]
            known = of_ggml(int(kind))
            if not known:
                raise SystemExit(f"{name}: the library has no format {int(kind)}")
            form = known.contents
            if (form.weights, form.bytes) != tuple(GGML_QUANT_SIZES[kind]) or \
                    form.name.decode() != name:
                raise SystemExit(f"{name}: the library's block is {form.name.decode()}, "
                                 f"{form.weights} weights in {form.bytes} bytes")
            blocks = draw(name, n, random)
            own = np.full((n, form.weights), np.float32(-1))
            form.decode(blocks.ctypes.data, n, own.ctypes.data)
            bad = canonical(own) != canonical(decode(name, blocks))
            differing += bad.any(axis=1).sum()
            print(f"{name}: {n} blocks, {bad.any(axis=1).sum()} differ")
            if bad.any():
                b, i = np.argwhere(bad)[0]
                print(f"  block {b} {blocks[b].tobytes().hex()}, weight {i}: "
                      f"{own[b, i]!r}, gguf {decode(name, blocks)[b, i]!r}")
    return 1 if differing else 0


if sys.argv[1:2] == ["--check"]:
    seed = int(sys.argv[3]) if len(sys.argv) > 3 else int.from_bytes(os.urandom(4), "little")
    sys.exit(check(int(sys.argv[2]) if len(sys.argv) > 2 else 2048, seed))
write(pathlib.Path(__file__).parent)
