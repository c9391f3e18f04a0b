"""`Device`: what experts and KV live on, under one byte budget."""
import ctypes
import logging
import threading
import math as arithmetic
from typing import Any, Callable, Optional, Tuple, Union

from . import _abi, dlpack, library
from ._info import CudaInfo, DeviceInfo
from .dtypes import bfloat16, float16, float32, float8_e4m3, uint8
from .enums import LogLevel, Math, choose
from .handles import Handle, State, calling_back, created, setup
from .structs import make, report
from .tensors import CPU, Tensor, array, check_array, empty, same_strides
from .units import size, stream as stream_of, text, uint

Log = Union[None, logging.Logger, Callable[[LogLevel, str], Any]]
#: Where devices and models log unless told otherwise; silent unless logging is set up.
logger = logging.getLogger("moepage")
logger.addHandler(logging.NullHandler())
_LEVELS = {LogLevel.ERROR: logging.ERROR, LogLevel.WARNING: logging.WARNING,
           LogLevel.INFO: logging.INFO}

_AUTO = _abi.MOEPAGE_BUDGET_AUTO

# weights and bytes of a block of each format: docs/format-blocks.md
_BLOCKS = {"Q4_0": (32, 18), "Q4_1": (32, 20), "Q5_0": (32, 22), "Q5_1": (32, 24),
           "Q8_0": (32, 34), "Q2_K": (256, 84), "Q3_K": (256, 110), "Q4_K": (256, 144),
           "Q5_K": (256, 176), "Q6_K": (256, 210), "IQ4_NL": (32, 18), "IQ4_XS": (256, 136),
           "MXFP4": (32, 17), "NVFP4": (64, 36),
           "W4G32_F16": (32, 20), "W4G64_F16": (64, 36), "W4G128_F16": (128, 68),
           "W4G32_BF16": (32, 20), "W4G64_BF16": (64, 36), "W4G128_BF16": (128, 68),
           "NVFP4G64_F32": (64, 40), "NVFP4G128_F32": (128, 76), "NVFP4G256_F32": (256, 148)}


def log_callback(log: Log) -> Any:
    """The C callback for a logger or a function (level, text); it runs on library threads."""
    if log is None:
        return _abi.moepage_log_fn()

    def write(user: Any, level: int, line: bytes) -> None:
        with calling_back():
            sentence = (line or b"").decode("utf-8", "replace")
            if isinstance(log, logging.Logger):
                log.log(_LEVELS.get(LogLevel(level), logging.INFO), "%s", sentence)
            else:
                log(LogLevel(level), sentence)
    return _abi.moepage_log_fn(write)


def device_config(*, threads: int = 0, io_threads: int = 0, bus_bytes_per_s: Union[int, str] = 0,
                  ranges: bool = False, max_budget: Union[int, str] = 0,
                  reserve: Union[int, str] = 0) -> Any:
    """moepage_device_config without what a budget is divided into."""
    return make(_abi.moepage_device_config, threads=threads, io_threads=io_threads,
                bus_bytes_per_s=size(bus_bytes_per_s, "bus_bytes_per_s"), ranges=int(ranges),
                max_budget_bytes=size(max_budget, "max_budget"),
                reserve_bytes=size(reserve, "reserve"))


def budget_bytes(budget: Union[int, str]) -> int:
    """A budget's bytes, of a number, a text such as "2GiB", or "auto"."""
    return _AUTO if budget == "auto" else size(budget, "budget")


class Device(Handle):
    """Opens a device by name: "host" or "cuda:N".

    `budget` is the hard limit of all its bytes, as a number or a text such as "2GiB", or "auto", what
    follow_memory would set; set_budget raises it up to `max_budget` (0 = the budget), and `reserve` is what
    follow_memory leaves to others (0 = a sixteenth of max_budget). `workspace`
    the part that is kept for sessions (0 = a sixteenth, at most 256 MiB). `threads` of the host's
    kernels (0 = one per CPU), `io_threads` that read the cold tier, `bus_bytes_per_s` a throttle
    for studies, `ranges` names work to NVIDIA's profilers. `log` is a logger or a function
    (level, text), by default the logger "moepage"; it is called from the library's threads.

    Any thread may use a device. Closing it is Busy while pools, or arrays of its memory, live.
    """

    def __init__(self, name: str = "host", *, budget: Union[int, str], threads: int = 0,
                 workspace: Union[int, str] = 0, io_threads: int = 0,
                 bus_bytes_per_s: Union[int, str] = 0, ranges: bool = False,
                 max_budget: Union[int, str] = 0, reserve: Union[int, str] = 0,
                 log: Log = logger) -> None:
        lib = library.get()
        callback = log_callback(log)
        config = device_config(threads=threads, io_threads=io_threads,
                               bus_bytes_per_s=bus_bytes_per_s, ranges=ranges,
                               max_budget=max_budget, reserve=reserve)
        config.budget_bytes = budget_bytes(budget)
        config.workspace_bytes = size(workspace, "workspace")
        config.log = callback
        raw = created(lib.moepage_device_open, lib.moepage_device_close, text(name, "name"),
                      ctypes.byref(config))
        state = State("device", lib, lib.moepage_device_close, raw, keep=(callback,))
        state.locks = (threading.RLock(),)
        self._opened(state, name)

    def _opened(self, state: State, name: str, parents: Tuple[Handle, ...] = ()) -> None:
        self._own(state, parents)
        self.name = name
        self._place: Tuple[int, int] = (dlpack.CPU, 0)
        if name.startswith("cuda:"):
            self._place = (dlpack.CUDA, uint(int(name[5:]), "the GPU"))

    @property
    def info(self) -> DeviceInfo:
        """Its bytes and who holds them, now."""
        with self._state as raw:
            return report(self._state.library.moepage_device_get_info, DeviceInfo, raw)

    def set_budget(self, budget: Union[int, str], *, stream: Any = None) -> None:
        """Moves the budget while pools serve. Busy while something in use is in the way of a smaller one,
        which is then the aim (info.budget_aim_bytes): the same call, between steps, goes on."""
        with setup(self._state), self._state as raw:
            self._state.library.moepage_device_set_budget(raw, size(budget, "budget"),
                                                          stream_of(stream))

    def follow_memory(self, *, stream: Any = None) -> None:
        """Sets the budget that leaves the reserve of free memory to others; for between steps, now and
        then. Errors are set_budget's."""
        with setup(self._state), self._state as raw:
            self._state.library.moepage_device_follow_memory(raw, stream_of(stream))

    @property
    def cuda_info(self) -> CudaInfo:
        """What there is to know of a GPU; Unsupported on other devices."""
        with self._state as raw:
            return report(self._state.library.moepage_cuda_get_info, CudaInfo, raw)

    @property
    def has_bytes(self) -> bool:
        """Whether its memory can be read: that of "sim:" devices is an idea."""
        return not self.name.startswith("sim:")

    def linear(self, x: Any, w: Any, bias: Any = None, *, format: Optional[str] = None,
               math: Union[Math, str, int] = Math.FP32, scales: Any = None,
               block: Tuple[int, int] = (128, 128)) -> Tensor:
        """x times a dense weight matrix, plus bias: float32 [..., n_out], by a host device's threads.

        `x` is [..., n_in] of float32 or bfloat16, `w` [n_out, n_in] of float32, float16 or bfloat16,
        or with a `format` ("Q4_K", ...) the bytes of n_out rows of blocks; `bias` [n_out] of floats.
        `w` of float8_e4m3 has `scales` of float32 or bfloat16, one for each `block` of rows and columns.
        The bits of a row depend on it and the weights alone (docs/host-kernels.md)."""
        found = _dense(x, "x", (float32, bfloat16))
        weights = _dense(w, "w", (uint8,) if format else (float32, float16, bfloat16, float8_e4m3))
        if not found.shape or not found.shape[-1]:
            raise ValueError("x has no rows")
        n_in = found.shape[-1]
        code, n_out = _weight_rows(weights, format, n_in)
        shift = None if bias is None else _dense(bias, "bias", (float32, float16, bfloat16))
        if shift is not None and shift.shape != (n_out,):
            raise ValueError("bias has the shape %s, and not (%d,)" % (shift.shape, n_out))
        factors = None if scales is None else _scales(scales, (n_out, n_in), block)
        out = empty(found.shape[:-1] + (n_out,), "f32")
        struct = make(_abi.moepage_linear, math=choose(Math, math, "math"),
                      n_rows=uint(arithmetic.prod(found.shape[:-1]), "rows"), n_in=n_in, n_out=n_out,
                      x_dtype=found.dtype.code, w_dtype=code,
                      bias_dtype=shift.dtype.code if shift is not None else 0, x=found.address,
                      w=weights.address, bias=shift.address if shift is not None else None,
                      out=out.address)
        if factors is not None:
            struct.scales, struct.scale_dtype = factors.address, factors.dtype.code
            struct.block_rows, struct.block_columns = block
        with self._state as raw:
            self._state.library.moepage_device_linear(raw, ctypes.byref(struct))
        return out


def _dense(of: Any, what: str, dtypes: Tuple[Any, ...]) -> dlpack.Imported:
    """An array in host memory without gaps."""
    found = array(of)
    check_array(found, what, dtypes, CPU)
    if found.strides is not None and not same_strides(found.shape, found.strides):
        raise ValueError("%s is not contiguous" % what)
    return found


def _scales(of: Any, shape: Tuple[int, int], block: Tuple[int, int]) -> dlpack.Imported:
    """One scale for each block of a matrix."""
    found = _dense(of, "scales", (float32, bfloat16))
    rows, columns = (uint(side, "a block's side") for side in block)
    if not rows or not columns:
        raise ValueError("a block of %d by %d has no weights" % (rows, columns))
    wanted = (-(-shape[0] // rows), -(-shape[1] // columns))
    if found.shape != wanted:
        raise ValueError("scales have the shape %s, and not %s" % (found.shape, wanted))
    return found


def _weight_rows(weights: dlpack.Imported, format: Optional[str], n_in: int) -> Tuple[int, int]:
    """The code of the weights' type, and how many rows of n_in they are."""
    if format is None:
        if len(weights.shape) != 2 or weights.shape[1] != n_in:
            raise ValueError("w has the shape %s, and x rows of %d" % (weights.shape, n_in))
        return weights.dtype.code, weights.shape[0]
    if format.upper() not in _BLOCKS:
        raise ValueError("there is no block format %r" % format)
    per_block, size_of_block = _BLOCKS[format.upper()]
    row = n_in // per_block * size_of_block
    n = arithmetic.prod(weights.shape)
    if n_in % per_block or n % row:
        raise ValueError("%d bytes of %s are no rows of %d weights" % (n, format, n_in))
    return getattr(_abi, "MOEPAGE_DTYPE_" + format.upper()), n // row
