"""`Device`: what experts and KV live on, under one byte budget."""
import ctypes
import logging
import threading
from typing import Any, Callable, Tuple, Union

from . import _abi, dlpack, library
from ._info import CudaInfo, DeviceInfo
from .enums import LogLevel
from .handles import Handle, State, calling_back, created
from .structs import make, report
from .units import size, text, uint

Log = Union[None, logging.Logger, Callable[[LogLevel, str], Any]]
#: Where devices and models log unless told otherwise; silent unless logging is set up.
logger = logging.getLogger("moepage")
logger.addHandler(logging.NullHandler())
_LEVELS = {LogLevel.ERROR: logging.ERROR, LogLevel.WARNING: logging.WARNING,
           LogLevel.INFO: logging.INFO}


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
                  ranges: bool = False) -> Any:
    """moepage_device_config without what a budget is divided into."""
    return make(_abi.moepage_device_config, threads=threads, io_threads=io_threads,
                bus_bytes_per_s=size(bus_bytes_per_s, "bus_bytes_per_s"), ranges=int(ranges))


class Device(Handle):
    """Opens a device by name: "host" or "cuda:N".

    `budget` is the hard limit of all its bytes, as a number or a text such as "2GiB"; `workspace`
    the part that is kept for sessions (0 = a sixteenth, at most 256 MiB). `threads` of the host's
    kernels (0 = one per CPU), `io_threads` that read the cold tier, `bus_bytes_per_s` a throttle
    for studies, `ranges` names work to NVIDIA's profilers. `log` is a logger or a function
    (level, text), by default the logger "moepage"; it is called from the library's threads.

    Any thread may use a device. Closing it is Busy while pools, or arrays of its memory, live.
    """

    def __init__(self, name: str = "host", *, budget: Union[int, str], threads: int = 0,
                 workspace: Union[int, str] = 0, io_threads: int = 0,
                 bus_bytes_per_s: Union[int, str] = 0, ranges: bool = False,
                 log: Log = logger) -> None:
        lib = library.get()
        callback = log_callback(log)
        config = device_config(threads=threads, io_threads=io_threads,
                               bus_bytes_per_s=bus_bytes_per_s, ranges=ranges)
        config.budget_bytes = size(budget, "budget")
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

    @property
    def cuda_info(self) -> CudaInfo:
        """What there is to know of a GPU; Unsupported on other devices."""
        with self._state as raw:
            return report(self._state.library.moepage_cuda_get_info, CudaInfo, raw)

    @property
    def has_bytes(self) -> bool:
        """Whether its memory can be read: that of "sim:" devices is an idea."""
        return not self.name.startswith("sim:")
