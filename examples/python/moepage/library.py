"""Finds and loads libmoepage: prototypes from _abi, failed statuses as exceptions.

`moepage.use(path)`, then $MOEPAGE_LIBRARY, then lib/ of the source tree that the package lies in,
then the system's. Nothing is loaded before something needs it.
"""
import ctypes
import ctypes.util
import os
import threading
from pathlib import Path
from typing import Any, Iterator, Optional

from . import _abi, errors
from .units import uint, whole

SONAME = "libmoepage.so.0"
#: The header that this package was made for: its structs are at least what the library must know.
HEADER_VERSION = (0, 7)


def _raise_if_failed(status: int, function: Any, arguments: tuple) -> int:
    if status < 0:
        last = function.library.moepage_last_error()
        raise errors.from_status(status, last.decode("utf-8", "replace"))
    return status


_BITS = {ctypes.c_uint32: 32, ctypes.c_uint64: 64}


def _checked(function: Any, parameters: Any, names: str) -> Any:
    """Refuses numbers that do not fit a parameter, and texts with a NUL: ctypes would cut them."""
    named = list(enumerate(zip(parameters, names.split(","))))
    numbers = [(i, name, _BITS[kind]) for i, (kind, name) in named if kind in _BITS]
    texts = [(i, name) for i, (kind, name) in named if kind is ctypes.c_char_p]
    if not numbers and not texts:
        return function

    def call(*arguments: Any) -> Any:
        checked = list(arguments)
        for i, name, bits in numbers:
            checked[i] = uint(checked[i], name, bits)
        for i, name in texts:
            if checked[i] is not None:
                whole(checked[i], name)
        return function(*checked)
    return call


class Library:
    """A loaded library: its functions are attributes, bound when first used."""

    def __init__(self, path: str) -> None:
        try:
            self._cdll = ctypes.CDLL(path)
        except OSError as error:
            raise errors.LibraryNotFound("%s cannot be loaded: %s" % (path, error)) from error
        self.path = path
        number = self.moepage_version()
        have = (number // 10000, number // 100 % 100)
        if have[0] != HEADER_VERSION[0] or have < HEADER_VERSION:
            raise errors.VersionError(
                "%s is version %s, and this package needs %d.%d or a later %d.x"
                % (path, self.moepage_version_text().decode(), *HEADER_VERSION, HEADER_VERSION[0]))

    def __getattr__(self, name: str) -> Any:
        if name not in _abi.FUNCTIONS:
            raise AttributeError(name)
        result, parameters, names = _abi.FUNCTIONS[name]
        try:
            function: Any = self._cdll[name]
        except AttributeError:
            raise errors.LibraryNotFound("%s has no %s" % (self.path, name)) from None
        function.argtypes = parameters
        function.restype = result
        if result is _abi.moepage_status:
            function.library = self
            function.errcheck = _raise_if_failed
        call = _checked(function, parameters, names)
        setattr(self, name, call)
        return call

    def version(self) -> str:
        """The library's version, "0.8.0"."""
        return self.moepage_version_text().decode()


_lock = threading.Lock()
_loaded: Optional[Library] = None


def _candidates() -> Iterator[str]:
    named = os.environ.get("MOEPAGE_LIBRARY")
    if named:
        yield named
        return
    here = Path(__file__).resolve()
    for folder in here.parents:
        if (folder / "include" / "moepage.h").is_file():
            built = folder / "lib" / SONAME
            if built.is_file():
                yield str(built)
            break
    yield SONAME
    found = ctypes.util.find_library("moepage")
    if found and found != SONAME:
        yield found


def use(path: "str | os.PathLike[str]") -> Library:
    """Loads the library from `path`, for everything that is opened from now on."""
    global _loaded
    library = Library(os.fspath(path))
    with _lock:
        _loaded = library
    return library


def get() -> Library:
    """The library, loaded if it is not yet; LibraryNotFound lists where it was looked for."""
    global _loaded
    if _loaded is None:
        with _lock:
            if _loaded is None:
                _loaded = _find()
    return _loaded


def _find() -> Library:
    tried = []
    for path in _candidates():
        try:
            return Library(path)
        except errors.LibraryNotFound as error:
            tried.append(error.text)
    raise errors.LibraryNotFound(
        "no libmoepage: set MOEPAGE_LIBRARY to its path, or install it; tried:\n  "
        + "\n  ".join(tried))


def version() -> str:
    """The library's version, "0.8.0"."""
    return get().version()
