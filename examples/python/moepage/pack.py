"""Writing .moepack files (docs/pack.md)."""
import collections
import ctypes
import os
from typing import Any, Callable, Deque, Iterable, List, Optional, Union

from . import _abi, errors
from ._info import PackStats
from .dtypes import dtype
from .enums import Form, choose
from .handles import calling_back
from .model import Model
from .structs import make
from .tensors import CPU, array, same_strides

Progress = Callable[[int, int], Any]
Moments = Callable[[int, int, int, memoryview, int], Any]


def write_pack(model: Model, path: "Union[str, os.PathLike[str]]", *,
               forms: Iterable[Union[Form, str, int]] = (), cold_level: int = 0,
               group_size: int = 0, threads: int = 0, verify: bool = False,
               scale_search: bool = False, progress: Optional[Progress] = None,
               moments: Optional[Moments] = None) -> PackStats:
    """Writes a model to a pack; an interrupted call leaves what was under `path` as it was.

    `forms` of the experts, at least one lossless; () = EXPH, or DENSE for types that
    EXPH does not code. `cold_level` is the zstd level of DENSE images (0 = plain), `group_size` that of the integer forms (0 = 64), whose scales
    `scale_search` finds by least squares. `progress(done, total)` is told bytes; what it raises
    ends the call, and is raised here. It must not call the library.

    `moments(layer, expert, tensor, slot, columns)` gives the second moments of what an expert's
    matrix is multiplied with, the sum of x x' over inputs x, as float32 of shape [columns, columns]:
    integer forms are then rounded for these inputs (GPTQ). `slot` has the expert's bytes, where
    `Model.layer_tensors` says. It is called on threads of the library, several at a time, and is as
    `progress` otherwise.
    """
    failures: Deque[BaseException] = collections.deque()

    def tell(user: Any, done: int, total: int) -> int:
        try:
            with calling_back(failures):
                assert progress is not None
                progress(done, total)
            return 0
        except BaseException:  # in `failures`
            return -1
    def gather(user: Any, layer: int, expert: int, tensor: int, slot: int, columns: int,
               out: Any) -> int:
        try:
            with calling_back(failures):
                assert moments is not None
                held = memoryview(ctypes.string_at(slot, ends[layer]))
                found = array(moments(layer, expert, tensor, held, columns))
                _check_moments(found, columns)
                ctypes.memmove(out, found.address, columns * columns * 4)
            return 0
        except BaseException:  # in `failures`
            return -1
    ends = [] if moments is None else _ends(model)
    gathering = _abi.moepage_moments_fn(gather) if moments else _abi.moepage_moments_fn()
    callback = _abi.moepage_progress_fn(tell) if progress else _abi.moepage_progress_fn()
    wanted = 0
    for form in forms:
        wanted |= 1 << choose(Form, form, "a form")
    config = make(_abi.moepage_pack_config, forms=wanted, cold_level=cold_level,
                  group_size=group_size, threads=threads, verify=int(verify),
                  scale_search=int(scale_search), progress=callback, moments=gathering)
    stats = make(_abi.moepage_pack_stats)
    with model._state as raw:
        try:
            model._state.library.moepage_pack_write(raw, os.fsencode(path), ctypes.byref(config),
                                                    ctypes.byref(stats))
        except errors.CallbackError:
            if failures:  # the caller's own exception, on the caller's own thread
                raise failures[0] from None
            raise
    return PackStats.of(stats)


def _ends(model: Model) -> List[int]:
    """The bytes of each layer's slots, up to the last tensor's end."""
    return [max(each.offset + each.bytes for each in model.layer_tensors(layer))
            for layer in range(model.info.moe_layers)]


def _check_moments(found: Any, columns: int) -> None:
    if found.device != CPU or found.dtype != dtype("float32") or \
            tuple(found.shape) != (columns, columns):
        raise ValueError("moments returned %s of shape %s, and not float32 of [%d, %d] in host memory"
                         % (found.dtype, list(found.shape), columns, columns))
    if found.strides is not None and not same_strides(found.shape, found.strides):
        raise ValueError("what moments returned is not contiguous")
