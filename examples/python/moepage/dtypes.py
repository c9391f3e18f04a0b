"""Element types: the library's codes, and what DLPack, NumPy and torch call them."""
from dataclasses import dataclass
from typing import Any, Dict, Optional, Tuple

from . import _abi

# DLPack's type codes
_INT, _UINT, _FLOAT, _BFLOAT, _BOOL = 0, 1, 2, 4, 6
_E4M3, _E5M2, _E8M0 = 10, 12, 14


@dataclass(frozen=True)
class DType:
    """An element type."""

    name: str
    itemsize: int
    code: int  #: MOEPAGE_DTYPE_*; NONE for types that the library does not have
    dlpack: Tuple[int, int]  #: type code and bits
    typestr: Optional[str]  #: of __array_interface__; None where NumPy has no such type
    torch: Optional[str]  #: attribute of the torch module
    format: Optional[str]  #: of the struct module and memoryview

    def __repr__(self) -> str:
        return "moepage." + self.name

    def __str__(self) -> str:
        return self.name


float32 = DType("float32", 4, _abi.MOEPAGE_DTYPE_F32, (_FLOAT, 32), "<f4", "float32", "f")
float16 = DType("float16", 2, _abi.MOEPAGE_DTYPE_F16, (_FLOAT, 16), "<f2", "float16", "e")
bfloat16 = DType("bfloat16", 2, _abi.MOEPAGE_DTYPE_BF16, (_BFLOAT, 16), None, "bfloat16", None)
float8_e4m3 = DType("float8_e4m3", 1, _abi.MOEPAGE_DTYPE_F8_E4M3, (_E4M3, 8), None,
                    "float8_e4m3fn", None)
float8_e5m2 = DType("float8_e5m2", 1, _abi.MOEPAGE_DTYPE_F8_E5M2, (_E5M2, 8), None, "float8_e5m2",
                    None)
float8_e8m0 = DType("float8_e8m0", 1, _abi.MOEPAGE_DTYPE_F8_E8M0, (_E8M0, 8), None,
                    "float8_e8m0fnu", None)
uint8 = DType("uint8", 1, _abi.MOEPAGE_DTYPE_U8, (_UINT, 8), "|u1", "uint8", "B")
int8 = DType("int8", 1, _abi.MOEPAGE_DTYPE_I8, (_INT, 8), "|i1", "int8", "b")
int32 = DType("int32", 4, _abi.MOEPAGE_DTYPE_I32, (_INT, 32), "<i4", "int32", "i")
int64 = DType("int64", 8, _abi.MOEPAGE_DTYPE_I64, (_INT, 64), "<i8", "int64", "q")
# what arrays may come with, to be refused by name
uint16 = DType("uint16", 2, 0, (_UINT, 16), "<u2", "uint16", "H")
uint32 = DType("uint32", 4, 0, (_UINT, 32), "<u4", "uint32", "I")
uint64 = DType("uint64", 8, 0, (_UINT, 64), "<u8", "uint64", "Q")
int16 = DType("int16", 2, 0, (_INT, 16), "<i2", "int16", "h")
float64 = DType("float64", 8, 0, (_FLOAT, 64), "<f8", "float64", "d")
bool_ = DType("bool", 1, 0, (_BOOL, 8), "|b1", "bool", "?")

ALL = (float32, float16, bfloat16, float8_e4m3, float8_e5m2, float8_e8m0, uint8, int8, int32,
       int64, uint16, uint32, uint64, int16, float64, bool_)
_BY_CODE = {each.code: each for each in ALL if each.code}
# block formats, of GGUF files and of W4A16 weights: experts may be of these, arrays of them are bytes
BLOCKS = tuple(DType(name.rpartition("DTYPE_")[2].lower(), 0, code, (_UINT, 8), None, None, None)
               for name, code in vars(_abi).items()
               if name.startswith("MOEPAGE_DTYPE_") and code >= _abi.MOEPAGE_DTYPE_Q4_0)
_BY_CODE.update({each.code: each for each in BLOCKS})
_BY_DLPACK = {each.dlpack: each for each in ALL}
_BY_TYPESTR = {each.typestr: each for each in ALL if each.typestr}
_BY_FORMAT = {each.format: each for each in ALL if each.format}
_BY_FORMAT["l"], _BY_FORMAT["L"] = int64, uint64
_BY_NAME: Dict[str, DType] = {each.name: each for each in ALL}
_BY_NAME.update({each.torch: each for each in ALL if each.torch})
_BY_NAME.update(f32=float32, f16=float16, bf16=bfloat16, f8_e4m3=float8_e4m3, f8_e5m2=float8_e5m2,
                f8_e8m0=float8_e8m0, u8=uint8, i8=int8, i32=int32, i64=int64, half=float16,
                float=float32)


def shown(shape: Tuple[int, ...], kind: DType, n_bytes: int) -> Tuple[Tuple[int, ...], DType]:
    """What an array of a tensor is like: one in blocks is a row of bytes."""
    return ((n_bytes,), uint8) if kind in BLOCKS else (shape, kind)


def dtype(of: Any) -> DType:
    """The DType that a name ("bf16", "bfloat16"), a code of the library, or a dtype of NumPy or
    torch stands for."""
    if isinstance(of, DType):
        return of
    found = None
    if isinstance(of, int):
        found = _BY_CODE.get(of)
    else:
        name = of if isinstance(of, str) else getattr(of, "name", None) or str(of)
        found = _BY_NAME.get(name.rpartition(".")[2].lower())
        if found is None and isinstance(of, type):  # numpy.float32 itself
            found = _BY_NAME.get(of.__name__)
    if found is None:
        raise TypeError("no element type %r: one of %s"
                        % (of, ", ".join(each.name for each in ALL if each.code)))
    return found


def from_dlpack(code: int, bits: int) -> DType:
    found = _BY_DLPACK.get((code, bits))
    if found is None:
        raise TypeError("arrays of DLPack type %d with %d bits are not supported" % (code, bits))
    return found


def from_typestr(typestr: str) -> DType:
    found = _BY_TYPESTR.get(typestr)
    if found is None:
        raise TypeError("arrays of type %r are not supported" % typestr)
    return found


def from_format(format: str) -> DType:
    found = _BY_FORMAT.get(format.lstrip("@=<"))
    if found is None:
        raise TypeError("buffers of format %r are not supported" % format)
    return found
