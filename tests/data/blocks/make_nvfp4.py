"""Blocks of every NVFP4G format, and what ModelOpt and compressed-tensors make of their nibbles and scales.

    python3 tests/data/blocks/make_nvfp4.py                    (from the project's root)
    python3 tests/data/blocks/make_nvfp4.py --check [BLOCKS [SEED]]

As make_blocks.py, with the packages torch, nvidia-modelopt and compressed-tensors: each block is a row of a matrix
with one scale for all, by which ModelOpt multiplies (blocks of a positive factor), and compressed-tensors divides
(of a negative one), to floats. The nibble 8, a zero with a sign to compressed-tensors, counts as 0."""

import contextlib
import os
import sys
import warnings

try:
    import numpy as np
    import torch
    from common import Library, arguments, write
    from compressed_tensors.compressors.nvfp4.helpers import unpack_fp4_from_uint8
    from compressed_tensors.quantization import QuantizationArgs
    from compressed_tensors.quantization.lifecycle.forward import dequantize
    with warnings.catch_warnings(), contextlib.redirect_stderr(open(os.devnull, "w")):
        warnings.simplefilter("ignore")
        from modelopt.torch.quantization.qtensor.nvfp4_tensor import NVFP4QTensor
except ImportError as missing:
    print(f"{sys.executable}: {missing}")
    sys.exit(77)

FORMATS = [(f"NVFP4G{group}_F32", 36 + i, group) for i, group in enumerate((64, 128, 256))]
ARGS = QuantizationArgs(num_bits=4, type="float", symmetric=True, strategy="tensor_group", group_size=16)
FACTOR_EDGES = [0.0, 1.0, 2.0**-100, 2.0**100, -1.0, -(2.0**-100), -(2.0**100), -3.0]


def draw(group, n, random):
    """n rows of one block: nibbles, scales and factors. The first factors are edges; of the others every second
    is as trained weights have them, the rest any at all."""
    q = random.integers(0, 16, (n, group), dtype=np.uint8)
    scales = random.integers(0, 127, (n, group // 16), dtype=np.uint8)
    factors = (random.uniform(1, 2, n) * 2.0 ** random.integers(-100, 100, n)).astype(np.float32)
    factors[::2] = random.uniform(1e-5, 1e-3, n).astype(np.float32)[::2]
    factors[n // 2:] *= np.float32(-1)
    factors[n // 2::2] = -1 / factors[n // 2::2] * np.float32(-1)
    edges = np.array(FACTOR_EDGES, dtype=np.float32)[:n]
    factors[:len(edges)] = edges
    return q, scales, factors


def blocks_of(q, scales, factors):
    """The layout of docs/format-blocks.md."""
    n, group = q.shape
    halves = q.reshape(n, group // 16, 2, 8)
    packed = (halves[:, :, 0] | halves[:, :, 1] << 4).reshape(n, group // 2)
    return np.concatenate([factors.astype("<f4")[:, None].view(np.uint8), scales, packed], axis=1)


def values_of(q, scales, factors):
    n, group = q.shape
    stored = torch.from_numpy(q[:, 0::2] | q[:, 1::2] << 4)
    of_groups = torch.from_numpy(scales).view(torch.float8_e4m3fn)
    out = np.empty((n, group), dtype=np.float32)
    for i, factor in enumerate(factors):
        row, own = stored[i:i + 1], of_groups[i:i + 1]
        if np.signbit(factor):
            weights = unpack_fp4_from_uint8(row, 1, group, dtype=torch.float32) + 0.0
            value = dequantize(weights, own.to(torch.float32), args=ARGS, dtype=torch.float32,
                               global_scale=torch.tensor([-factor]))
        else:
            value = NVFP4QTensor(torch.Size([1, group]), torch.float32, row).dequantize(
                torch.float32, scale=own, double_scale=torch.tensor(factor), block_sizes={-1: 16})
        assert value.dtype == torch.float32
        out[i] = value.numpy()
    return out


def write_all():
    for name, number, group in FORMATS:
        numbers = draw(group, 16, np.random.default_rng(number))
        write(name, blocks_of(*numbers), values_of(*numbers))


def check(n, seed):
    random = np.random.default_rng(seed)
    library = Library()
    differing = 0
    for name, number, group in FORMATS:
        numbers = draw(group, n, random)
        differing += library.differing(library.code.mp_block_format_of(number), name, group,
                                       blocks_of(*numbers), values_of(*numbers))
    return 1 if differing else 0


checked = arguments()
sys.exit(check(*checked) if checked else write_all())
