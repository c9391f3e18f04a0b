"""Exceptions: one per status of the library, each also the built-in that it resembles.

Every `Error` has `status`, the library's code, and `text`, its sentence on what was wrong and what
would be right. Arguments that the package itself refuses (a wrong dtype, shape or device) are
TypeError and ValueError, raised before the library is reached.
"""
from typing import Dict, Type

from . import _abi


class Error(Exception):
    """A call that the library refused or could not do."""

    status: int = 0

    def __init__(self, text: str, status: int = 0) -> None:
        super().__init__(text)
        self.text = text
        if status:
            self.status = status


class ArgumentError(Error, ValueError):
    """An argument is out of its documented range."""
    status = _abi.MOEPAGE_E_ARGUMENT


class StateError(Error, RuntimeError):
    """The call is out of order for this object."""
    status = _abi.MOEPAGE_E_STATE


class HandleError(Error, ValueError):
    """A stale or foreign handle, or sequence."""
    status = _abi.MOEPAGE_E_HANDLE


class Busy(Error, RuntimeError):
    """Other objects, open plans or exported tensors still depend on this one."""
    status = _abi.MOEPAGE_E_BUSY


class NoMemory(Error, MemoryError):
    """Host memory could not be allocated."""
    status = _abi.MOEPAGE_E_NO_MEMORY


class BudgetError(Error, MemoryError):
    """The device's budget cannot hold what was asked for."""
    status = _abi.MOEPAGE_E_BUDGET


class WouldNotFit(Error):
    """The KV pool has too few free blocks; nothing was taken."""
    status = _abi.MOEPAGE_E_WOULD_NOT_FIT


class NotFound(Error, LookupError):
    """No such file, tensor, device, policy or decoder."""
    status = _abi.MOEPAGE_E_NOT_FOUND


class IOFailed(Error, OSError):
    """The operating system failed a read, write or map."""
    status = _abi.MOEPAGE_E_IO

    def __str__(self) -> str:
        return self.text


class FormatError(Error, ValueError):
    """A file is malformed, truncated or contradicts itself."""
    status = _abi.MOEPAGE_E_FORMAT


class Unsupported(Error, NotImplementedError):
    """Well-formed, but not something this build, model or device can do."""
    status = _abi.MOEPAGE_E_UNSUPPORTED


class VersionError(Error):
    """A file, struct or library is from an incompatible version."""
    status = _abi.MOEPAGE_E_VERSION


class CallbackError(Error):
    """A callback failed; __cause__ is what it raised."""
    status = _abi.MOEPAGE_E_CALLBACK


class DeviceError(Error):
    """The device failed; its handle is poisoned."""
    status = _abi.MOEPAGE_E_DEVICE


class End(Error):
    """No more records in a trace."""
    status = _abi.MOEPAGE_E_END


class Closed(HandleError):
    """The object was closed."""


class ConcurrentUse(Busy):
    """Two threads used an object that is for one at a time, or closed one in use."""


class ExportsAlive(Busy, BufferError):
    """Arrays that show this object's memory are still alive."""


class LibraryNotFound(Error, ImportError):
    """libmoepage could not be found or loaded, or lacks what was asked of it."""
    status = _abi.MOEPAGE_E_NOT_FOUND


_BY_STATUS: Dict[int, Type[Error]] = {
    each.status: each
    for each in (ArgumentError, StateError, HandleError, Busy, NoMemory, BudgetError, WouldNotFit,
                 NotFound, IOFailed, FormatError, Unsupported, VersionError, CallbackError,
                 DeviceError, End)
}


def from_status(status: int, text: str) -> Error:
    """The exception for a status."""
    return _BY_STATUS.get(status, Error)(text, status)
