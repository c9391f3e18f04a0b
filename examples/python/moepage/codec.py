"""The exponent-Huffman codec on arrays (docs/format-exph.md), and weights out of blocks
(docs/format-blocks.md)."""
import ctypes
from typing import Any, Optional, Sequence as Seq, Union

from . import _abi, library
from .dtypes import bfloat16, dtype as dtype_of, float16, float8_e4m3, float8_e5m2, uint8, uint16
from .tensors import CPU, Tensor, array, check_array, empty, same_strides
from .units import text

_DTYPES = (bfloat16, float16, float8_e4m3, float8_e5m2)


def exph_encode(values: Any, *, dtype: Any = None) -> bytes:
    """Codes an array of bfloat16, float16, float8_e4m3 or float8_e5m2 without loss. `dtype` says
    what unsigned integers hold, for NumPy, which lacks most of these."""
    found = array(values)
    kind = found.dtype if dtype is None else dtype_of(dtype)
    if found.dtype not in (kind, uint8 if kind.itemsize == 1 else uint16):
        raise TypeError("values of %s are no %s" % (found.dtype, kind))
    check_array(found._replace(dtype=kind), "values", _DTYPES, CPU)
    if found.strides is not None and not same_strides(found.shape, found.strides):
        raise ValueError("values is not contiguous")
    n = 1
    for each in found.shape:
        n *= each
    lib = library.get()
    out = ctypes.create_string_buffer(lib.moepage_exph_bound(kind.code, n))
    written = ctypes.c_uint64()
    lib.moepage_exph_encode(kind.code, found.address, n, out, len(out), ctypes.byref(written))
    return ctypes.string_at(out, written.value)


def exph_decode(stream: Any, dtype: Any, shape: Union[int, Seq[int]], *,
                decoder: Optional[str] = None) -> Tensor:
    """Decodes a stream to a tensor of this dtype and shape. `decoder` is None for the fastest, or
    "portable", "avx2", "avx512"."""
    found = array(stream)
    if found.dtype.itemsize != 1 or len(found.shape) != 1 or found.device != CPU:
        raise TypeError("a stream is a row of bytes")
    if found.strides is not None and not same_strides(found.shape, found.strides):
        raise ValueError("the stream is not contiguous")
    out = empty(shape, dtype)
    check_array(array(out), "the output", _DTYPES, CPU)
    library.get().moepage_exph_decode(text(decoder, "decoder") if decoder else None, out.dtype.code,
                                      found.address, found.shape[0], out.address, out.size)
    return out


def blocks_decode(blocks: Any, format: str, shape: Union[int, Seq[int]]) -> Tensor:
    """Decodes weights of a block format of GGUF files ("Q4_K", ...) to a float32 tensor."""
    found = array(blocks)
    if found.dtype.itemsize != 1 or len(found.shape) != 1 or found.device != CPU:
        raise TypeError("blocks are a row of bytes")
    if found.strides is not None and not same_strides(found.shape, found.strides):
        raise ValueError("the blocks are not contiguous")
    code = getattr(_abi, "MOEPAGE_DTYPE_" + format.upper(), 0)
    out = empty(shape, "f32")
    library.get().moepage_blocks_decode(code, found.address, found.shape[0],
                                        ctypes.cast(out.address, ctypes.POINTER(ctypes.c_float)),
                                        out.size)
    return out
