"""DLPack in ctypes: capsules made for tensors of the library, and capsules of others read.

A capsule that is handed out owns an `Exporter`, which is let go when the consumer calls the
deleter. At interpreter exit the deleters of what is still out are taken away: consumers then call
nothing, since there may be no interpreter to call into.

Capsules have no destructor: one in Python would lose the exception that a consumer is raising while
it drops a capsule that it could not use. Those that nobody took are looked for instead. Deleters
cannot do without Python; `Tensor.torch` does without them in host memory.
"""
import atexit
import ctypes
import sys
from ctypes import (CFUNCTYPE, POINTER, Structure, byref, c_char_p, c_int32, c_int64, c_uint8,
                    c_uint16, c_uint32, c_uint64, c_void_p, py_object)
from typing import Any, Dict, NamedTuple, Optional, Tuple

from .dtypes import DType, from_dlpack

CPU, CUDA, CUDA_HOST, CUDA_MANAGED = 1, 2, 3, 13
READ_ONLY = 1  # a flag of versioned tensors
_VERSION = (1, 0)
_NAMES = {False: b"dltensor", True: b"dltensor_versioned"}

_destructor = CFUNCTYPE(None, c_void_p)


class _DLDevice(Structure):
    _fields_ = [("type", c_int32), ("id", c_int32)]


class _DLDataType(Structure):
    _fields_ = [("code", c_uint8), ("bits", c_uint8), ("lanes", c_uint16)]


class _DLTensor(Structure):
    _fields_ = [("data", c_void_p), ("device", _DLDevice), ("ndim", c_int32),
                ("dtype", _DLDataType), ("shape", POINTER(c_int64)), ("strides", POINTER(c_int64)),
                ("byte_offset", c_uint64)]


class _Managed(Structure):
    _fields_ = [("tensor", _DLTensor), ("context", c_void_p), ("deleter", c_void_p)]


class _Versioned(Structure):
    _fields_ = [("major", c_uint32), ("minor", c_uint32), ("context", c_void_p),
                ("deleter", c_void_p), ("flags", c_uint64), ("tensor", _DLTensor)]


_api = ctypes.pythonapi
_new = _api.PyCapsule_New
_new.restype, _new.argtypes = py_object, (c_void_p, c_char_p, c_void_p)
_is_valid = _api.PyCapsule_IsValid
_is_valid.restype, _is_valid.argtypes = ctypes.c_int, (py_object, c_char_p)
_get = _api.PyCapsule_GetPointer
_get.restype, _get.argtypes = c_void_p, (py_object, c_char_p)

_out: Dict[int, Tuple[Any, Any, Any]] = {}  # address -> what keeps an export alive


def _deleted(address: int, _out: Any = _out) -> None:
    _out.pop(address, None)


_deleter = _destructor(_deleted)
for _each in (_deleter, _out):  # called as long as there is an interpreter
    _api.Py_IncRef(py_object(_each))

_untaken: Dict[int, Any] = {}  # address -> a capsule that nobody may have taken yet
_held = [object()]
_OURS = sys.getrefcount(_held[0])  # references to what only a list refers to


def forget_unused() -> None:
    """Lets go of what was exported in capsules that are no more, and that nobody took."""
    for at in list(_untaken):
        held = [_untaken.pop(at, None)]  # by one thread alone
        if any(_is_valid(held[0], name) for name in _NAMES.values()):
            if sys.getrefcount(held[0]) == _OURS:
                _deleted(at)
            else:
                _untaken.setdefault(at, held[0])


@atexit.register
def _let_go() -> None:
    for managed, _, _ in list(_out.values()):
        managed.deleter = None


def export(address: int, shape: Tuple[int, ...], strides: Tuple[int, ...], dtype: DType,
           device: Tuple[int, int], read_only: bool, versioned: bool, exporter: Any) -> Any:
    """A capsule over memory that `exporter` keeps."""
    forget_unused()
    managed = _Versioned() if versioned else _Managed()
    n = len(shape)
    sizes = (c_int64 * (2 * n))(*shape, *strides)
    tensor = managed.tensor
    tensor.data = address
    tensor.device.type, tensor.device.id = device
    tensor.ndim = n
    tensor.dtype.code, tensor.dtype.bits = dtype.dlpack
    tensor.dtype.lanes = 1
    tensor.shape = ctypes.cast(sizes, POINTER(c_int64))
    tensor.strides = ctypes.cast(byref(sizes, 8 * n), POINTER(c_int64))
    managed.deleter = ctypes.cast(_deleter, c_void_p)
    if versioned:
        managed.major, managed.minor = _VERSION
        managed.flags = READ_ONLY if read_only else 0
    at = ctypes.addressof(managed)
    _out[at] = (managed, sizes, exporter)
    capsule = _untaken[at] = _new(at, _NAMES[versioned], None)
    return capsule


class Imported(NamedTuple):
    """What a capsule of another library holds; its memory lives as long as `keep`."""
    address: int
    shape: Tuple[int, ...]
    strides: Optional[Tuple[int, ...]]
    dtype: DType
    device: Tuple[int, int]
    read_only: bool
    keep: Any


def read(capsule: Any) -> Imported:
    """Reads a capsule without taking it: the memory lives as long as the capsule."""
    versioned = bool(_is_valid(capsule, _NAMES[True]))
    if not versioned and not _is_valid(capsule, _NAMES[False]):
        raise TypeError("not an unused DLPack capsule")
    kind = _Versioned if versioned else _Managed
    managed = kind.from_address(_get(capsule, _NAMES[versioned]))
    if versioned and managed.major != _VERSION[0]:
        raise BufferError("DLPack version %d.%d is not supported" % (managed.major, managed.minor))
    tensor = managed.tensor
    if tensor.dtype.lanes != 1:
        raise TypeError("arrays of DLPack vectors are not supported")
    n = tensor.ndim
    return Imported((tensor.data or 0) + tensor.byte_offset, tuple(tensor.shape[:n]),
                    tuple(tensor.strides[:n]) if tensor.strides else None,
                    from_dlpack(tensor.dtype.code, tensor.dtype.bits),
                    (tensor.device.type, tensor.device.id),
                    versioned and bool(managed.flags & READ_ONLY), capsule)
