"""Blocks of every W4 format, and what compressed-tensors makes of their integers, scales and zero-points.

    python3 tests/data/blocks/make_w4.py                       (from the project's root)
    python3 tests/data/blocks/make_w4.py --check [BLOCKS [SEED]]

As make_blocks.py, with the packages torch and compressed-tensors: each block is a group, of which
`dequantize` computes the values from integers of -8 to 7, a scale and a zero-point. What the decoders of
GPTQ's and AWQ's layouts compute, scales * (weight - zeros) in the scales' type, is computed as well, and
must be the same."""

import sys

try:
    import numpy as np
    import torch
    from common import HALF_EDGES, Library, arguments, write
    from compressed_tensors.quantization import QuantizationArgs
    from compressed_tensors.quantization.lifecycle.forward import dequantize
except ImportError as missing:
    print(f"{sys.executable}: {missing}")
    sys.exit(77)

BF16_EDGES = [0x0000, 0x8000, 0x0001, 0x8001, 0x007F, 0x0080, 0x3F80, 0xBF80, 0x7F7F, 0xFF7F,
              0x7F80, 0xFF80, 0x7FC0]
FORMATS = [(f"W4G{group}_{scale}", 30 + group // 64 + 3 * (scale == "BF16"), group, scale)
           for scale in ("F16", "BF16") for group in (32, 64, 128)]


def draw(group, scale, n, random):
    """n groups: integers, scales and zero-points. The first scales are edges, in turn; of the others
    every second is as trained weights have them, the rest any at all."""
    q = random.integers(0, 16, (n, group), dtype=np.uint8)
    zeros = random.integers(0, 16, n, dtype=np.uint8)
    zeros[::5] = 8
    scales = random.integers(0, 1 << 16, n).astype(np.uint16)
    usual = (torch.from_numpy(random.normal(size=n)) * 0.01).to(type_of(scale))
    scales[::2] = usual.view(torch.uint16).numpy()[::2]
    edges = np.array(HALF_EDGES if scale == "F16" else BF16_EDGES, dtype=np.uint16)[:n]
    scales[:len(edges)] = edges
    return q, scales, zeros


def type_of(scale):
    return torch.float16 if scale == "F16" else torch.bfloat16


def blocks_of(q, scales, zeros):
    """The layout of docs/format-blocks.md."""
    n, group = q.shape
    halves = q.reshape(n, group // 32, 2, 16)
    packed = (halves[:, :, 0] | halves[:, :, 1] << 4).reshape(n, group // 2)
    head = np.zeros((n, 4), dtype=np.uint8)
    head[:, :2] = scales.astype("<u2")[:, None].view(np.uint8)
    head[:, 2] = zeros
    return np.concatenate([head, packed], axis=1)


def values_of(q, scales, zeros, scale):
    """One group to a row, as compressed-tensors decodes it, and as the others say."""
    group = q.shape[1]
    of_type = torch.from_numpy(scales.astype(np.int32)).to(torch.uint16).view(type_of(scale))[:, None]
    whole = torch.from_numpy(q.astype(np.int8)) - 8
    zero = torch.from_numpy(zeros.astype(np.int8))[:, None] - 8
    args = QuantizationArgs(num_bits=4, type="int", symmetric=False, strategy="group",
                            group_size=group)
    values = dequantize(whole, of_type, zero, args)
    others = of_type * (torch.from_numpy(q.astype(np.int8)) -
                        torch.from_numpy(zeros.astype(np.int8))[:, None])
    assert values.dtype == others.dtype == type_of(scale)
    assert torch.equal(torch.nan_to_num(values, nan=1.25), torch.nan_to_num(others, nan=1.25))
    return values.to(torch.float32).numpy()


def write_all():
    for name, number, group, scale in FORMATS:
        q, scales, zeros = draw(group, scale, 16, np.random.default_rng(number))
        write(name, blocks_of(q, scales, zeros), values_of(q, scales, zeros, scale))


def check(n, seed):
    random = np.random.default_rng(seed)
    library = Library()
    differing = 0
    for name, number, group, scale in FORMATS:
        q, scales, zeros = draw(group, scale, n, random)
        differing += library.differing(library.code.mp_block_format_of(number), name, group,
                                       blocks_of(q, scales, zeros),
                                       values_of(q, scales, zeros, scale))
    return 1 if differing else 0


checked = arguments()
sys.exit(check(*checked) if checked else write_all())
