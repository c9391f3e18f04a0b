"""Writing .moepack files (docs/pack.md)."""
import collections
import ctypes
import os
from typing import Any, Callable, Deque, Iterable, Optional, Union

from . import _abi, errors
from ._info import PackStats
from .enums import Form, choose
from .handles import calling_back
from .model import Model
from .structs import make

Progress = Callable[[int, int], Any]


def write_pack(model: Model, path: "Union[str, os.PathLike[str]]", *,
               forms: Iterable[Union[Form, str, int]] = (), cold_level: int = 0,
               group_size: int = 0, threads: int = 0, verify: bool = False,
               scale_search: bool = False, progress: Optional[Progress] = None) -> PackStats:
    """Writes a model to a pack; an interrupted call leaves what was under `path` as it was.

    `forms` of the experts, at least one lossless; () = EXPH, or DENSE for types that
    EXPH does not code. `cold_level` is the zstd level of DENSE images (0 = plain), `group_size` that of the integer forms (0 = 64), whose scales
    `scale_search` finds by least squares. `progress(done, total)` is told bytes; what it raises
    ends the call, and is raised here. It must not call the library.
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
    callback = _abi.moepage_progress_fn(tell) if progress else _abi.moepage_progress_fn()
    wanted = 0
    for form in forms:
        wanted |= 1 << choose(Form, form, "a form")
    config = make(_abi.moepage_pack_config, forms=wanted, cold_level=cold_level,
                  group_size=group_size, threads=threads, verify=int(verify),
                  scale_search=int(scale_search), progress=callback)
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
