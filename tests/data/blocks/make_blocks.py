"""Blocks of every format of GGUF files, and what the format's own package makes of them.

    python3 tests/data/blocks/make_blocks.py                       (from the project's root)
    python3 tests/data/blocks/make_blocks.py --check [BLOCKS [SEED]]

Without --check it writes the files NAME.bin in this directory; README.md says what is in them. Nothing
of libmoepage runs then.

With --check it draws fresh random blocks of every format (BLOCKS of each, default 2048), decodes them
with the package gguf and with the library's decoders, compiled from src/codec, and compares the floats
bit for bit. NaNs compare equal whatever their bits. Exit status 1 at a difference, 77 without numpy or
gguf."""

import sys

try:
    import numpy as np
    from common import HALF_EDGES, Library, arguments, write
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


def write_all():
    for number, name in enumerate(HALVES):
        blocks = draw(name, 16, np.random.default_rng(number + 1))
        write(name, blocks, decode(name, blocks))


def check(n, seed):
    random = np.random.default_rng(seed)
    library = Library()
    differing = 0
    for name in HALVES:
        kind = GGMLQuantizationType[name]
        blocks = draw(name, n, random)
        differing += library.differing(library.code.mp_block_format_of_ggml(int(kind)), name,
                                       GGML_QUANT_SIZES[kind][0], blocks, decode(name, blocks))
    return 1 if differing else 0


checked = arguments()
sys.exit(check(*checked) if checked else write_all())
