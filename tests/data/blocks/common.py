"""What the scripts of this directory share: scales, checksums, files, and the library's decoders."""

import ctypes
import glob
import os
import pathlib
import struct
import subprocess
import sys
import tempfile

import numpy as np

# Zero, minus zero, least denormals, largest denormal, least normal, 1, -1, largest, infinity, NaN.
HALF_EDGES = [0x0000, 0x8000, 0x0001, 0x8001, 0x03FF, 0x0400, 0x3C00, 0xBC00, 0x7BFF, 0xFBFF,
              0x7C00, 0xFC00, 0x7E00]


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


def write(name, blocks, values):
    """The file of a format: blocks, and of each block's values a checksum and four of them."""
    bits = canonical(values)
    weights = bits.shape[1]
    with open(pathlib.Path(__file__).parent / f"{name}.bin", "wb") as out:
        for block, row in zip(blocks, bits):
            out.write(block.tobytes() + struct.pack("<Q", checksum(row)))
            for i in range(4):
                out.write(struct.pack("<I", row[i * (weights + 1) // 4]))


class Format(ctypes.Structure):
    """The beginning of an mp_block_format."""
    _fields_ = [("name", ctypes.c_char_p), ("dtype", ctypes.c_uint32),
                ("weights", ctypes.c_uint32), ("bytes", ctypes.c_uint32)]


class Library:
    """The library's decoders, compiled from src/codec."""

    def __init__(self):
        self.folder = tempfile.TemporaryDirectory()
        path = os.path.join(self.folder.name, "blocks.so")
        subprocess.run([os.environ.get("CC", "cc").split()[-1], "-std=gnu11", "-O2",
                        "-ffp-contract=off", "-fPIC", "-shared", "-Isrc", "-Iinclude", "-o", path,
                        *sorted(glob.glob("src/codec/blocks*.c"))], check=True)
        self.code = ctypes.CDLL(path)
        for find in (self.code.mp_block_format_of, self.code.mp_block_format_of_ggml):
            find.argtypes = [ctypes.c_uint32]
            find.restype = ctypes.POINTER(Format)
        self.code.mp_block_decode.argtypes = [ctypes.POINTER(Format), ctypes.c_void_p,
                                              ctypes.c_uint64, ctypes.c_void_p]

    def differing(self, found, name, weights, blocks, values):
        """How many of the blocks have other values in the format that was found."""
        if not found:
            raise SystemExit(f"{name}: the library has no such format")
        form = found.contents
        n, size = blocks.shape
        if (form.weights, form.bytes, form.name.decode()) != (weights, size, name):
            raise SystemExit(f"{name}: the library's block is {form.name.decode()}, "
                             f"{form.weights} weights in {form.bytes} bytes")
        own = np.full((n, weights), np.float32(-1))
        blocks = np.ascontiguousarray(blocks)
        self.code.mp_block_decode(found, blocks.ctypes.data, n, own.ctypes.data)
        bad = canonical(own) != canonical(values)
        print(f"{name}: {n} blocks, {bad.any(axis=1).sum()} differ")
        if bad.any():
            b, i = np.argwhere(bad)[0]
            print(f"  block {b} {blocks[b].tobytes().hex()}, weight {i}: "
                  f"{own[b, i]!r}, the package {values[b, i]!r}")
        return int(bad.any(axis=1).sum())


def arguments():
    """None to write; or how many blocks of each format to check, and the seed to draw them by."""
    if sys.argv[1:2] != ["--check"]:
        return None
    seed = int(sys.argv[3]) if len(sys.argv) > 3 else int.from_bytes(os.urandom(4), "little")
    print(f"seed {seed}")
    return int(sys.argv[2]) if len(sys.argv) > 2 else 2048, seed
