"""Describes experts that the caller holds: moepage_banks from arrays, a reader, or places in files."""
import collections
import ctypes
import itertools
import json
import os
from typing import Any, Callable, Deque, Iterable, List, Mapping, Optional, Sequence, Tuple

from . import _abi
from .device import Log, logger
from .dtypes import BLOCKS, DType, dtype
from .enums import Activation, Role, choose
from .handles import calling_back
from .structs import make
from .tensors import CPU, array, check_array, same_strides
from .units import int32, text, uint, whole

_Spec = Tuple[int, DType, Tuple[int, ...]]  # role, dtype, shape of one expert's tensor
MAX_RANK, MAX_TENSORS = _abi.MOEPAGE_MAX_RANK, _abi.MOEPAGE_MAX_EXPERT_TENSORS


def describe(specs: Sequence[Sequence[_Spec]], moe_layers: int, experts: int, top_k: int,
             keep: List[Any], *,
             hidden: int = 0, expert_intermediate: int = 0, architecture: Optional[str] = None,
             config: Any = None, layer_index: Optional[Sequence[int]] = None, layers: int = 0,
             shared_experts: int = 0, vocabulary: int = 0,
             dense: Optional[Mapping[str, Any]] = None, activation: Any = Activation.SWIGLU,
             activation_alpha: float = 0, activation_limit: float = 0) -> Any:
    """The struct, without where the experts are. `specs` has an expert's tensors, once or for
    each MoE layer.

    `hidden` and `expert_intermediate` default to the shape of "down". The rest is for models that
    are to be packed and served like checkpoints: `architecture` ("qwen3_moe"), `config` (the
    config.json: text or a dict), `layer_index` (the transformer layer of each MoE layer) of
    `layers` in all, `shared_experts`, `vocabulary`, and `dense`, every other tensor by name. With
    `activation` "swiglu_clamped", 0 for the numbers are gpt-oss's.
    """
    if all(each == specs[0] for each in specs):
        specs = specs[:1]
    for role, _, shape in specs[0]:
        if role == Role.DOWN and len(shape) >= 2:
            hidden, expert_intermediate = hidden or shape[-2], expert_intermediate or shape[-1]
    if config is not None and not isinstance(config, (str, bytes)):
        config = json.dumps(config)
    tensors = (_abi.moepage_expert_tensor * sum(map(len, specs)))()
    for each, (role, kind, shape) in zip(tensors, itertools.chain(*specs)):
        each.role, each.dtype, each.rank = role, kind.code, len(shape)
        each.shape[:len(shape)] = [uint(n, "a shape", 64) for n in shape]
    if layer_index is not None and len(layer_index) != moe_layers:
        raise ValueError("layer_index has %d numbers for %d MoE layers"
                         % (len(layer_index), moe_layers))
    index = (ctypes.c_int32 * moe_layers)(*(int32(each, "layer_index") for each in layer_index)) \
        if layer_index is not None else None
    held = _dense(dense or {}, keep)
    keep += [tensors, index, held]
    return make(_abi.moepage_banks, moe_layers=moe_layers, experts=experts, top_k=top_k,
                hidden=hidden, expert_intermediate=expert_intermediate, n_tensors=len(specs[0]),
                tensors=tensors if len(specs) == 1 else None,
                layer_tensors=tensors if len(specs) > 1 else None,
                architecture=text(architecture, "architecture") if architecture else None,
                config_json=config.encode() if isinstance(config, str) else config,
                layer_index=ctypes.addressof(index) if index is not None else None, layers=layers,
                shared_experts=shared_experts, vocabulary=vocabulary, n_dense=len(held),
                dense=held, activation=choose(Activation, activation, "an activation"),
                activation_alpha=activation_alpha, activation_limit=activation_limit)


def _dense(dense: Mapping[str, Any], keep: List[Any]) -> Any:
    held = (_abi.moepage_dense_tensor * len(dense))()
    for each, (name, of) in zip(held, dense.items()):
        found = array(of)
        _check(found, "tensor %r" % name, found.dtype)
        each.name = text(name, "a tensor's name")
        each.dtype, each.rank = found.dtype.code, len(found.shape)
        each.shape[:len(found.shape)] = found.shape
        each.data = found.address
        keep.append(_hold(found))
    return held


def _check(found: Any, what: str, kind: DType) -> None:
    check_array(found, what, (kind,), CPU)
    if not kind.code:
        raise TypeError("%s is %s, which the library does not have" % (what, kind))
    if not 1 <= len(found.shape) <= MAX_RANK:
        raise ValueError("%s has %d dimensions, and not 1 to %d"
                         % (what, len(found.shape), MAX_RANK))
    if found.strides is not None and not same_strides(found.shape, found.strides):
        raise ValueError("%s is not contiguous" % what)


# ---- Arrays ----------------------------------------------------------------------------------

def of_arrays(layers: Sequence[Mapping[Any, Any]], *, top_k: int, log: Log = logger,
              **about: Any) -> Tuple[Any, Tuple[Any, ...], Log]:
    """The struct for experts in memory, and what must live as long as the model."""
    layers = list(layers)
    if not layers:
        raise ValueError("a model has at least one MoE layer")
    keep: List[Any] = []
    roles = [choose(Role, role, "a role") for role in layers[0]]
    if not 1 <= len(roles) <= MAX_TENSORS:
        raise ValueError("an expert has 1 to %d tensors, and not %d" % (MAX_TENSORS, len(roles)))
    specs: List[List[_Spec]] = []
    columns: List[List[int]] = []  # one per layer and tensor: an address per expert
    for i, layer in enumerate(layers):
        named = {choose(Role, role, "a role"): of for role, of in layer.items()}
        if sorted(named) != sorted(roles):
            raise ValueError("layer %d has other tensors than layer 0" % i)
        specs.append([])
        for j, role in enumerate(roles):
            what = "%s of layer %d" % (Role(role).name.lower(), i)
            kind, shape, column = _column(named[role], what, keep)
            specs[i].append((role, kind, shape))
            if shape != specs[0][j][2]:
                raise ValueError("%s is %s, and that of layer 0 is %s"
                                 % (what, list(shape), list(specs[0][j][2])))
            columns.append(column)
    experts = len(columns[0])
    if any(len(column) != experts for column in columns):
        raise ValueError("the arrays are not of the same number of experts")
    n = len(roles)
    data = (ctypes.c_void_p * (len(layers) * experts * n))(
        *(columns[i * n + j][e] for i in range(len(layers)) for e in range(experts)
          for j in range(n)))
    struct = describe(specs, len(layers), experts, top_k, keep, **about)
    struct.data = ctypes.addressof(data)
    return struct, (keep, data), log


def _column(of: Any, what: str, keep: List[Any]) -> Tuple[DType, Tuple[int, ...], List[int]]:
    """Of one tensor of all experts of a layer: dtype and shape of one, and all their addresses."""
    if isinstance(of, (list, tuple)):
        parts = [array(each) for each in of]
        if not parts:
            raise ValueError("%s has no experts" % what)
        for each in parts:
            _check(each, what, parts[0].dtype)
            if tuple(each.shape) != tuple(parts[0].shape):
                raise ValueError("%s: experts of different shapes" % what)
            keep.append(_hold(each))
        return parts[0].dtype, tuple(parts[0].shape), [each.address for each in parts]
    whole = array(of)
    if len(whole.shape) < 2 or not whole.shape[0]:
        raise ValueError("%s has shape %s, and not [experts, ...]" % (what, list(whole.shape)))
    strides = whole.strides
    one = whole._replace(shape=whole.shape[1:], strides=strides[1:] if strides else None)
    _check(one, what, whole.dtype)
    step = strides[0] if strides else _count(one.shape)
    keep.append(_hold(whole))
    return (whole.dtype, tuple(one.shape),
            [whole.address + e * step * whole.dtype.itemsize for e in range(whole.shape[0])])


def _hold(found: Any) -> Any:
    """What keeps the memory itself: a parameter of torch may be given other memory."""
    return found.keep.detach() if hasattr(found.keep, "detach") else found.keep


def _count(shape: Iterable[int]) -> int:
    n = 1
    for each in shape:
        n *= each
    return n


# ---- A reader --------------------------------------------------------------------------------

def of_reader(read: Callable[..., Any], tensors: Optional[Iterable[Any]],
              layer_tensors: Optional[Iterable[Iterable[Any]]], *, moe_layers: int, experts: int,
              top_k: int, log: Log = logger,
              **about: Any) -> Tuple[Any, Tuple[Any, ...], Log]:
    """The struct for experts that a function reads, and what must live as long as the model."""
    if not callable(read):
        raise TypeError("read is a function, not %s" % type(read).__name__)
    specs = _specs(tensors, layer_tensors, moe_layers)
    failures: Deque[BaseException] = collections.deque(maxlen=16)
    callback = _read_callback(read, failures)
    keep: List[Any] = []
    struct = describe(specs, moe_layers, experts, top_k, keep, **about)
    struct.read = callback
    return struct, (keep, failures, callback), log


def _specs(tensors: Optional[Iterable[Any]], layer_tensors: Optional[Iterable[Iterable[Any]]],
           moe_layers: int) -> List[List[_Spec]]:
    """An expert's tensors, once or for each MoE layer, as they are given."""
    if (tensors is None) == (layer_tensors is None):
        raise TypeError("exactly one of tensors and layer_tensors is given")
    given = [tensors] if tensors is not None else list(layer_tensors or ())
    specs = [[(choose(Role, role, "a role"), _stored(kind), tuple(shape))
              for role, kind, shape in each] for each in given]
    if layer_tensors is not None and len(specs) != moe_layers:
        raise ValueError("layer_tensors has %d lists for %d MoE layers" % (len(specs), moe_layers))
    if not specs:
        raise ValueError("a model has at least one MoE layer")
    if any(len(each) != len(specs[0]) for each in specs):
        raise ValueError("layers have different numbers of tensors")
    return specs


def _stored(kind: Any) -> DType:
    """A dtype, or a block format by its name."""
    name = kind.lower() if isinstance(kind, str) else None
    return next((each for each in BLOCKS if each.name == name), None) or dtype(kind)


def _read_callback(read: Callable[..., Any], failures: Deque[BaseException]) -> Any:
    def call(user: Any, layer: int, expert: int, tensor: int, offset: int, n: int,
             out: int) -> int:
        try:
            with calling_back(failures):
                # of Python's own, and copied: a reader that keeps a view of it does no harm
                memory = memoryview(bytearray(n))
                result = read(layer, expert, tensor, offset, memory)
                if result is None:  # forgotten: zeros would be served for weights
                    raise TypeError("read returns the bytes, or `out` once it is filled; not None")
                found = array(result)
                _check_bytes(found, n)
                ctypes.memmove(out, found.address, n)
            return 0
        except BaseException:  # in `failures`, for the thread that waits for the bytes
            return -1
    return _abi.moepage_read_fn(call)


def _check_bytes(found: Any, n: int) -> None:
    if found.device != CPU or _count(found.shape) * found.dtype.itemsize != n:
        raise ValueError("read returned %s of shape %s, and not %d bytes of host memory"
                         % (found.dtype, list(found.shape), n))
    if found.strides is not None and not same_strides(found.shape, found.strides):
        raise ValueError("what read returned is not contiguous")


# ---- Files -----------------------------------------------------------------------------------

def of_files(files: Iterable[Any], places: Sequence[Sequence[Sequence[Any]]],
             tensors: Optional[Iterable[Any]],
             layer_tensors: Optional[Iterable[Iterable[Any]]], *, top_k: int, log: Log = logger,
             **about: Any) -> Tuple[Any, Tuple[Any, ...], Log]:
    """The struct for experts in files, and what must live until it has been read."""
    if isinstance(files, (str, bytes, os.PathLike)):
        raise TypeError("files is a list of paths, not one")
    paths = [whole(os.fsencode(path), "a path") for path in files]
    moe_layers = len(places)
    specs = _specs(tensors, layer_tensors, moe_layers)
    if not moe_layers:
        raise ValueError("a model has at least one MoE layer")
    experts, n = len(places[0]), len(specs[0])
    held = (_abi.moepage_file_place * (moe_layers * experts * n))()
    at = iter(held)
    for i, layer in enumerate(places):
        if len(layer) != experts:
            raise ValueError("layer %d has places of %d experts, and layer 0 of %d"
                             % (i, len(layer), experts))
        for e, each in enumerate(layer):
            if len(each) != n:
                raise ValueError("expert %d of layer %d has %d places for %d tensors"
                                 % (e, i, len(each), n))
            for file, offset in each:
                place = next(at)
                place.file = uint(file, "a file's index")
                place.offset = uint(offset, "an offset", 64)
    keep: List[Any] = []
    struct = describe(specs, moe_layers, experts, top_k, keep, **about)
    listed = (ctypes.c_char_p * len(paths))(*paths)
    struct.n_files = len(paths)
    struct.files = ctypes.addressof(listed)
    struct.places = held
    return struct, (keep, listed, held), log
