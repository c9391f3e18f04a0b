"""`Tensor`: memory of the library as an array, for NumPy, torch and whoever reads DLPack.

Nothing is copied, and neither NumPy nor torch is imported before it is asked for. Arrays made of a
tensor are counted for as long as they live, and hold what they show: what they show cannot be
closed, nor be given up for other bytes, while one of them is alive (`moepage.ExportsAlive`).
"""
import contextlib
import ctypes
import math
import operator
import sys
import weakref
from typing import Any, Iterable, Iterator, Optional, Sequence, Set, Tuple, Union

from . import dlpack, errors
from .dtypes import DType, dtype as dtype_of, from_format, from_typestr, uint8, uint16
from .units import uint

CPU = (dlpack.CPU, 0)


class Scope:
    """How long the memory behind tensors shows what it should: `states` cannot close, and the
    scope cannot end, while arrays show it."""

    __slots__ = ("what", "states", "alive", "exports", "refused")

    def __init__(self, what: str, states: Iterable[Any] = (),
                 refused: Optional[str] = None) -> None:
        self.what, self.states, self.refused = what, tuple(states), refused
        self.alive = True
        self.exports: Set[Any] = set()  # weak references to what counts arrays

    def check(self) -> None:
        """Raises unless arrays may be made now."""
        if self.refused:
            raise errors.Unsupported(self.refused)
        self.check_alive()

    def check_alive(self) -> None:
        """Raises once the scope has ended."""
        if not self.alive or any(each.raw is None for each in self.states):
            raise errors.Closed("%s has ended: its memory shows something else now" % self.what)

    @contextlib.contextmanager
    def ending(self) -> Iterator[None]:
        """Ends it for a call that gives its memory up, and not if the library refuses that; raises
        ExportsAlive instead while arrays show it. An interrupt may come after the fact."""
        before, self.alive = self.alive, False
        try:
            if self.exports:
                dlpack.forget_unused()
            if self.exports:
                raise errors.ExportsAlive(
                    "%d arrays that show memory of %s are still alive: delete them, or keep copies"
                    % (len(self.exports), self.what))
            yield
        except errors.Error:
            self.alive = before
            raise

    def abandon(self) -> None:
        """Ends it whatever is alive: arrays stay readable, and show what comes next."""
        self.alive = False


class _Exporter:
    """Counts one array for as long as it lives."""

    __slots__ = ("keep", "__weakref__")

    def __init__(self, scope: Scope, keep: Any) -> None:
        self.keep = keep
        for each in (scope, *scope.states):
            # a method of C's, which no interrupt can stop half way
            each.exports.add(weakref.ref(self, each.exports.discard))
        scope.check()  # counted first: a scope that ends meanwhile has seen it


class Tensor:
    """An array of `shape` and `dtype` in memory of the library, or in memory of its own.

    `numpy()`, `torch()`, `numpy.from_dlpack(tensor)` and whatever else reads DLPack or NumPy's
    array interface share its memory. `readonly` arrays cannot be written through NumPy.
    """

    __slots__ = ("shape", "dtype", "strides", "readonly", "_address", "_device", "_scope", "_keep",
                 "_faults", "_stream", "__weakref__")

    def __init__(self, address: int, shape: Sequence[int], dtype: DType, *,
                 device: Tuple[int, int] = CPU, strides: Optional[Sequence[int]] = None,
                 readonly: bool = False, faults: bool = False, scope: Optional[Scope] = None,
                 keep: Any = None, stream: Optional[int] = None) -> None:
        self.shape = tuple(shape)
        self.dtype = dtype
        self.strides = tuple(strides) if strides is not None else contiguous(self.shape)
        self.readonly = readonly
        self._address, self._device = address, device
        self._faults = faults  # a write would be a segmentation fault, not a mere mistake
        self._scope, self._keep, self._stream = scope or Scope("a tensor"), keep, stream

    @property
    def ndim(self) -> int:
        """Number of dimensions."""
        return len(self.shape)

    @property
    def size(self) -> int:
        """Number of elements."""
        return math.prod(self.shape)

    @property
    def nbytes(self) -> int:
        """Bytes of the elements."""
        return self.size * self.dtype.itemsize

    @property
    def device(self) -> str:
        """"cpu", or "cuda:N"."""
        return "cuda:%d" % self._device[1] if self._device[0] == dlpack.CUDA else "cpu"

    @property
    def is_contiguous(self) -> bool:
        """Whether elements lie without gaps, the last dimension fastest."""
        return self.strides == contiguous(self.shape)

    @property
    def address(self) -> int:
        """Where it starts, for kernels; raises once the memory shows something else."""
        self._scope.check()
        return self._address

    def __len__(self) -> int:
        if not self.shape:
            raise TypeError("a tensor without dimensions has no length")
        return self.shape[0]

    def __repr__(self) -> str:
        return "<moepage.Tensor %s %s on %s>" % (list(self.shape), self.dtype, self.device)

    def __copy__(self) -> "Tensor":
        return self._like(self._address, self.shape, self.dtype, self.strides)

    def __deepcopy__(self, memo: Any) -> "Tensor":
        if self._device != CPU or not self.is_contiguous:
            raise TypeError("%r cannot be copied: it is no contiguous array of host memory" % self)
        return copy_of(self.address, self.shape, self.dtype)

    def __reduce_ex__(self, protocol: Any) -> Any:
        raise TypeError("a moepage.Tensor cannot be pickled: it shows memory. Pickle numpy()")

    def __getitem__(self, index: int) -> "Tensor":
        """Part `index` of the first dimension, in the same memory."""
        index = operator.index(index)
        if not -len(self) <= index < len(self):
            raise IndexError("index %d of %d" % (index, len(self)))
        at = self._address + index % len(self) * self.strides[0] * self.dtype.itemsize
        return self._like(at, self.shape[1:], self.dtype, self.strides[1:])

    def reshape(self, *shape: int) -> "Tensor":
        """The same contiguous memory with another shape."""
        if not self.is_contiguous or math.prod(shape) != self.size or min(shape, default=0) < 0:
            raise ValueError("%r cannot be shown as %s" % (self, list(shape)))
        return self._like(self._address, shape, self.dtype, None)

    def bits(self) -> "Tensor":
        """The same memory as unsigned integers of the same width: NumPy has no bfloat16."""
        kind = {1: uint8, 2: uint16}.get(self.dtype.itemsize)
        if kind is None:
            raise TypeError("bits() is for elements of 1 and 2 bytes, not %s" % self.dtype)
        return self._like(self._address, self.shape, kind, self.strides)

    def _like(self, address: int, shape: Sequence[int], dtype: DType,
              strides: Optional[Sequence[int]]) -> "Tensor":
        return Tensor(address, shape, dtype, device=self._device, strides=strides,
                      readonly=self.readonly, faults=self._faults, scope=self._scope, keep=self,
                      stream=self._stream)

    # ---- Arrays that share its memory ------------------------------------------------------

    def _span(self) -> int:
        """Bytes from the first element to the end of the last."""
        if not self.size:
            return 0
        last = sum((n - 1) * stride for n, stride in zip(self.shape, self.strides))
        return (last + 1) * self.dtype.itemsize

    def _buffer(self) -> Any:
        if self._device != CPU:
            raise BufferError("%r is not in host memory" % self)
        return memoryview(self._memory()).toreadonly() if self.readonly else self._memory()

    def _memory(self) -> Any:
        exporter = _Exporter(self._scope, self)
        n = self._span()
        kind: Any = ctypes.c_char * n
        memory = kind.from_address(self._address) if n else kind()
        memory.exporter = exporter
        return memory

    def memoryview(self) -> memoryview:
        """A memoryview of a contiguous tensor; bfloat16 and float8 as `bits()`."""
        if not self.is_contiguous:
            raise BufferError("%r is not contiguous" % self)
        shown = self if self.dtype.format else self.bits()
        view: Any = memoryview(shown._buffer()).cast("B")
        return view.cast(shown.dtype.format, list(self.shape) or [1]) if shown.size else view

    @property
    def __array_interface__(self) -> dict:
        if self.dtype.typestr is None:
            raise AttributeError("NumPy has no %s: use torch(), or bits()" % self.dtype)
        itemsize = self.dtype.itemsize
        return {"version": 3, "shape": self.shape, "typestr": self.dtype.typestr,
                "data": self._buffer(), "offset": 0,
                "strides": tuple(stride * itemsize for stride in self.strides)}

    def __array__(self, dtype: Any = None, copy: Optional[bool] = None) -> Any:
        # Only asked where there is no __array_interface__; NumPy would make an array of objects.
        raise TypeError("NumPy has no %s: use torch(), or bits()" % self.dtype)

    def __dlpack_device__(self) -> Tuple[int, int]:
        return self._device

    def __dlpack__(self, *, stream: Optional[int] = None,
                   max_version: Optional[Tuple[int, int]] = None,
                   dl_device: Optional[Tuple[int, int]] = None,
                   copy: Optional[bool] = None) -> Any:
        if dl_device not in (None, self._device):
            raise BufferError("%r cannot be exported to another device" % self)
        if copy:
            raise BufferError("%r is exported without a copy" % self)
        if self._faults:  # consumers forget that memory is read-only
            raise BufferError("%r cannot be written: use numpy(), or torch(copy=True)" % self)
        versioned = max_version is not None and max_version[0] >= 1
        self._check_stream(stream)
        exporter = _Exporter(self._scope, self)
        return dlpack.export(self._address, self.shape, self.strides, self.dtype, self._device,
                             self.readonly, versioned, exporter)

    def _check_stream(self, stream: Optional[int]) -> None:
        if self._device[0] != dlpack.CUDA or stream == -1 or self._stream is None:
            return
        if (stream or 1) != (self._stream or 1):  # 1 is DLPack's name for the default stream
            raise BufferError("%r is there for work on stream %#x: make it the current one"
                              % (self, self._stream))

    def numpy(self) -> Any:
        """A NumPy array of the same memory. NumPy has no bfloat16 and float8: see `bits`."""
        if self.dtype.typestr is None:
            raise TypeError("NumPy has no %s: use torch(), or bits().numpy()" % self.dtype)
        if self._device != CPU:
            raise BufferError("%r is not in host memory" % self)
        import numpy
        return numpy.asarray(self)

    def torch(self, *, copy: bool = False) -> Any:
        """A torch tensor of the same memory; with `copy`, of memory of its own.

        Memory that faults when written (tensors of a checkpoint, PagedTensors) is copied or
        refused, since torch has no read-only tensors."""
        import torch
        if self._faults and not copy:
            raise BufferError("%r cannot be written, and torch has no read-only tensors: use "
                              "torch(copy=True)" % self)
        kind = getattr(torch, self.dtype.torch or "")
        if self._device != CPU:
            stream = torch.cuda.current_stream(self._device[1]).cuda_stream or 1
            shown = self.bits() if self.dtype.name.startswith("float8") else self
            tensor = torch.utils.dlpack.from_dlpack(shown.__dlpack__(stream=stream)).view(kind)
        elif self.size:
            # no DLPack: its deleter, in Python, would lose an exception that the tensor dies by
            flat = torch.frombuffer(self._memory(), dtype=kind)
            tensor = flat.as_strided(self.shape, self.strides)
        else:
            tensor = torch.empty(self.shape, dtype=kind)
        return tensor.clone() if copy else tensor

    def tobytes(self) -> bytes:
        """A copy of a contiguous tensor's bytes."""
        view = self.memoryview()
        try:
            return view.tobytes()
        finally:
            view.release()

    def tolist(self) -> list:
        """The elements as nested lists."""
        if self.dtype.format is None:
            raise TypeError("Python has no %s: use torch(), or bits().tolist()" % self.dtype)
        return self.memoryview().tolist()


def contiguous(shape: Sequence[int]) -> Tuple[int, ...]:
    """Strides, in elements, of an array without gaps."""
    if len(shape) == 2:
        return max(shape[1], 1), 1
    strides, step = [], 1
    for n in reversed(shape):
        strides.append(step)
        step *= max(n, 1)
    return tuple(reversed(strides))


def empty(shape: Union[int, Sequence[int]], dtype: Any = "f32") -> Tensor:
    """A tensor in host memory of its own, of zeros."""
    kind = dtype_of(dtype)
    shape = tuple(uint(n, "a shape", 63) for n in ((shape,) if isinstance(shape, int) else shape))
    memory = ctypes.create_string_buffer(math.prod(shape) * kind.itemsize + 64)
    at = ctypes.addressof(memory)
    return Tensor(at + -at % 64, shape, kind, keep=memory)


def copy_of(address: Optional[int], shape: Sequence[int], dtype: DType) -> Tensor:
    """A tensor of its own with what lies at `address`."""
    tensor = empty(shape, dtype)
    if tensor.nbytes:
        assert address
        ctypes.memmove(tensor._address, address, tensor.nbytes)
    return tensor


def tensor(values: Any, dtype: Any = "f32") -> Tensor:
    """A tensor in host memory of its own, from nested sequences of numbers."""
    shape, flat = [], [values]
    while flat and isinstance(flat[0], (list, tuple)):
        if len({len(each) for each in flat}) != 1:
            raise ValueError("sequences of different lengths make no array")
        shape.append(len(flat[0]))
        flat = [item for each in flat for item in each]
    made = empty(shape, dtype)
    if made.dtype.format is None:
        raise TypeError("Python has no %s: fill in the bits() of an empty tensor" % made.dtype)
    view: Any = memoryview(made._buffer()).cast("B")
    view = view.cast(made.dtype.format)
    for i, value in enumerate(flat):
        view[i] = value
    return made


# ---- Arrays of others ------------------------------------------------------------------------

_torch_dtypes: dict = {}


def array(of: Any) -> dlpack.Imported:
    """What an array of torch, NumPy, DLPack or the buffer protocol is; TypeError for anything
    else. Nothing is copied, and the array must stay alive for as long as its memory is used."""
    if isinstance(of, Tensor):
        return dlpack.Imported(of.address, of.shape, of.strides, of.dtype, of._device, of.readonly,
                               of)
    torch = sys.modules.get("torch")
    if torch is not None and isinstance(of, torch.Tensor):
        return _from_torch(of)
    numpy = sys.modules.get("numpy")
    if numpy is not None and isinstance(of, numpy.ndarray):  # what else has its interface may go
        return _from_numpy(of)
    if hasattr(of, "__dlpack__"):
        return dlpack.read(of.__dlpack__())
    try:
        view = memoryview(of)
    except TypeError:
        view = None
    if view is not None:
        return _from_buffer(view)
    raise TypeError("an array is needed (NumPy, torch, DLPack or the buffer protocol), not %s"
                    % type(of).__name__)


def _from_torch(of: Any) -> dlpack.Imported:
    kind = _torch_dtypes.get(of.dtype)
    if kind is None:
        kind = _torch_dtypes[of.dtype] = dtype_of(str(of.dtype))
    where = of.device
    if where.type == "cpu":
        device = CPU
    elif where.type == "cuda":
        device = (dlpack.CUDA, where.index or 0)
    else:
        raise ValueError("a torch tensor on %s is not in memory that the library can use" % where)
    if of.layout is not sys.modules["torch"].strided:
        raise TypeError("a dense torch tensor is needed, not one of layout %s" % of.layout)
    if of.is_neg():
        raise TypeError("a torch tensor whose sign is not in its memory: use resolve_neg()")
    return dlpack.Imported(of.data_ptr(), tuple(of.shape), of.stride(), kind, device, False, of)


def _from_numpy(of: Any) -> dlpack.Imported:
    interface = of.__array_interface__
    data, readonly = interface["data"]
    typestr, shape = interface["typestr"], interface["shape"]
    kind = dtype_of(of.dtype) if typestr.startswith(("<V", "|V")) else from_typestr(typestr)
    strides = interface.get("strides")
    if strides is not None:
        if any(stride % kind.itemsize for stride in strides):
            raise ValueError("the array's strides are not whole elements")
        strides = tuple(stride // kind.itemsize for stride in strides)
    return dlpack.Imported(data, shape, strides, kind, CPU, readonly, of)


class _PyBuffer(ctypes.Structure):
    _fields_ = [("buf", ctypes.c_void_p), ("obj", ctypes.c_void_p), ("len", ctypes.c_ssize_t),
                ("itemsize", ctypes.c_ssize_t), ("readonly", ctypes.c_int),
                ("ndim", ctypes.c_int), ("format", ctypes.c_void_p), ("shape", ctypes.c_void_p),
                ("strides", ctypes.c_void_p), ("suboffsets", ctypes.c_void_p),
                ("internal", ctypes.c_void_p)]


def _from_buffer(view: memoryview) -> dlpack.Imported:
    """`view` stays referred to, which keeps its memory where it is."""
    raw = _PyBuffer()
    get = ctypes.pythonapi.PyObject_GetBuffer
    get(ctypes.py_object(view), ctypes.byref(raw), 0x18 | 0x100)  # PyBUF_STRIDES
    ctypes.pythonapi.PyBuffer_Release(ctypes.byref(raw))
    kind = from_format(view.format)
    if kind.itemsize != view.itemsize:
        raise TypeError("buffers of format %r with %d bytes are not supported"
                        % (view.format, view.itemsize))
    if view.suboffsets or any(stride % kind.itemsize for stride in view.strides or ()):
        raise ValueError("the buffer's strides are not whole elements")
    strides = tuple(stride // kind.itemsize for stride in view.strides or ())
    return dlpack.Imported(raw.buf or 0, view.shape or (), strides, kind, CPU, view.readonly, view)


def contiguous_address(of: Any, what: str, dtype: DType, shape: Sequence[int],
                       device: Tuple[int, int] = CPU) -> Tuple[int, Any]:
    """The address of an array that must be just so, and what keeps it alive."""
    return fitting_address(array(of), what, dtype, shape, device)


def fitting_address(found: dlpack.Imported, what: str, dtype: DType, shape: Sequence[int],
                    device: Tuple[int, int] = CPU) -> Tuple[int, Any]:
    """The same of an array that has been looked at."""
    check_array(found, what, (dtype,), device)
    if tuple(found.shape) != tuple(shape):
        raise ValueError("%s has shape %s, and not %s" % (what, list(found.shape), list(shape)))
    if found.strides is not None and not same_strides(found.shape, found.strides):
        raise ValueError("%s is not contiguous" % what)
    return found.address, found.keep


def check_array(found: dlpack.Imported, what: str, dtypes: Sequence[DType],
                device: Tuple[int, int]) -> None:
    """Refuses an array of another dtype or on another device."""
    if found.dtype not in dtypes:
        raise TypeError("%s is %s, and not %s"
                        % (what, found.dtype, " or ".join(str(each) for each in dtypes)))
    if found.address % found.dtype.itemsize:
        raise ValueError("%s is not aligned for %s" % (what, found.dtype))
    if not found.address and 0 not in found.shape:
        raise ValueError("%s has no memory" % what)
    ours = found.device if found.device[0] != dlpack.CUDA_HOST else CPU
    if ours != device and not (ours[0] == dlpack.CUDA_MANAGED):
        raise ValueError("%s is on %s, and not on %s"
                         % (what, device_name(found.device), device_name(device)))


def same_strides(shape: Sequence[int], strides: Sequence[int]) -> bool:
    """Whether strides are those of an array without gaps; those of dimensions of 1 do not
    matter."""
    want = contiguous(shape)
    if tuple(strides) == want:
        return True
    return 0 in shape or all(n == 1 or have == step
                             for n, have, step in zip(shape, strides, want))


def device_name(device: Tuple[int, int]) -> str:
    kinds = {dlpack.CPU: "cpu", dlpack.CUDA: "cuda:%d" % device[1], dlpack.CUDA_HOST: "cpu"}
    return kinds.get(device[0], "a device of DLPack type %d" % device[0])
