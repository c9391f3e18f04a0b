"""Fills in structs of the library from keyword arguments, and reads its reports."""
import ctypes
import functools
from typing import Any, Dict, Type, TypeVar

from . import _abi
from ._info import Info
from .units import int32, uint, whole

_S = TypeVar("_S", bound=ctypes.Structure)
_I = TypeVar("_I", bound=Info)
_BITS = {ctypes.c_uint32: 32, ctypes.c_uint64: 64}


@functools.lru_cache(maxsize=None)
def _types(kind: Type[ctypes.Structure]) -> Dict[str, Any]:
    return {name: of for name, of, *_ in kind._fields_}


def make(kind: Type[_S], **fields: Any) -> _S:
    """A struct with its struct_size and `fields` set. ctypes truncates numbers; this refuses
    those that do not fit, and texts with a NUL."""
    struct = kind(struct_size=ctypes.sizeof(kind))
    types = _types(kind)
    for name, value in fields.items():
        field_type = types[name]
        if field_type in _BITS:
            value = uint(value, name, _BITS[field_type])
        elif field_type is ctypes.c_int32:
            value = int32(value, name)
        elif field_type is ctypes.c_char_p and value is not None:
            value = whole(value, name)
        setattr(struct, name, value)
    return struct


def report(function: Any, kind: Type[_I], *arguments: Any) -> _I:
    """Calls a function that fills in the struct behind `kind`, its last argument."""
    struct = make(getattr(_abi, kind.STRUCT))
    function(*arguments, ctypes.byref(struct))
    return kind.of(struct)
