"""`Model`: a checkpoint, a pack, or expert banks that the caller holds."""
import ctypes
import json
import os
from dataclasses import dataclass
from typing import Any, Callable, Dict, Iterable, Iterator, List, Optional, Tuple, Union

from . import _abi, errors, library
from ._info import FormInfo, ModelInfo
from .device import Log, log_callback, logger
from .dtypes import DType, dtype, shown
from .enums import Form, MetadataType, Role, choose
from .handles import Handle, State, created
from .structs import make, report
from .tensors import Scope, Tensor, empty
from .units import text

MAX_NAME = 1024


@dataclass(frozen=True)
class ExpertTensor:
    """One tensor of every expert: `bytes` and `offset` say where it lies in an expert's slot."""

    role: Role
    dtype: DType
    shape: Tuple[int, ...]
    bytes: int = 0
    offset: int = 0


def _value(found: Any) -> Any:
    if found.type == MetadataType.REAL:
        return found.real
    if found.type != MetadataType.TEXT:
        return bool(found.integer) if found.type == MetadataType.TRUTH else found.integer
    raw = ctypes.string_at(found.text, found.text_bytes)
    try:
        return raw.decode()
    except UnicodeDecodeError:
        return raw


class Model(Handle):
    """Opens a Hugging Face checkpoint folder, a .gguf file or a .moepack file. Once a file has been
    truncated or changed, what reads it raises IOFailed; renaming another over it is safe.

    `Model.from_banks` takes experts that lie in memory, `Model.from_reader` a function that reads
    them, `Model.from_files` the places of their tensors in files of any format. Any thread may use
    a model. Closing it is Busy while pools, or arrays of its tensors, live.
    """

    def __init__(self, path: "Union[str, os.PathLike[str]]", *, log: Log = logger) -> None:
        lib = library.get()
        callback = log_callback(log)
        config = make(_abi.moepage_model_config, log=callback)
        raw = created(lib.moepage_model_open, lib.moepage_model_close, os.fsencode(path),
                      ctypes.byref(config))
        self._opened(State("model", lib, lib.moepage_model_close, raw, keep=(callback,)))

    def _opened(self, state: State, parents: Tuple[Handle, ...] = ()) -> None:
        lib = state.library
        self._own(state, parents)
        with state as raw:
            self.info = report(lib.moepage_model_get_info, ModelInfo, raw)
            self.expert_tensors = self._expert_tensors(raw)
        self._layers = {0: self.expert_tensors}
        self._scope = Scope("the model", (state,))

    @classmethod
    def from_banks(cls, layers: Any, *, top_k: int, **about: Any) -> "Model":
        """A model of experts in the caller's memory, which is paged from where it lies. Dtypes may
        differ from layer to layer.

        `layers` has one mapping per MoE layer, from a role ("gate_up", "gate", "up", "down",
        "gate_up_bias", ...) to an array [experts, ...], or a sequence of `experts` arrays. Arrays
        may be of NumPy, torch, or anything with DLPack or a buffer. They are kept alive, and must
        not be changed while the model is open. `about`: see moepage.banks.describe.
        """
        from . import banks
        return cls._from_banks(*banks.of_arrays(layers, top_k=top_k, **about))

    @classmethod
    def from_reader(cls, read: Callable[..., Any], *, tensors: Any = None,
                    layer_tensors: Any = None, moe_layers: int, experts: int, top_k: int,
                    **about: Any) -> "Model":
        """A model of experts that `read(layer, expert, tensor, offset, out)` brings.

        It returns an array or buffer of `len(out)` bytes, a tensor's from byte `offset` on: one of
        its own, or `out`, a writable memoryview, which it has filled. It runs on the library's
        threads, at times on several at once, and must not call the library. What it raises becomes
        the cause of a CallbackError.
        `tensors` lists (role, dtype, shape) of an expert's tensors, which `tensor` indexes; the
        dtype may be a block format of GGUF files, "Q4_K". `layer_tensors` has such a list for each
        MoE layer, in place of `tensors`, where dtypes differ from layer to layer.
        """
        from . import banks
        return cls._from_banks(*banks.of_reader(read, tensors, layer_tensors,
                                                moe_layers=moe_layers, experts=experts,
                                                top_k=top_k, **about))

    @classmethod
    def from_files(cls, files: "Iterable[Union[str, os.PathLike[str]]]", places: Any, *,
                   tensors: Any = None, layer_tensors: Any = None, top_k: int,
                   **about: Any) -> "Model":
        """A model of experts that lie in files of any format, for programs that can read its headers.

        `places[layer][expert]` has a pair `(file, offset)` for each of an expert's tensors: an
        index into `files`, and the byte at which the tensor begins. Its bytes there are those that
        a slot is to hold. `tensors` and `layer_tensors` are as for `Model.from_reader`. The files
        stay open until the model is closed; one that is truncated or changed meanwhile is IOFailed.
        """
        from . import banks
        return cls._from_banks(*banks.of_files(files, places, tensors, layer_tensors, top_k=top_k,
                                               **about))

    @classmethod
    def _from_banks(cls, struct: Any, keep: Tuple[Any, ...], log: Log) -> "Model":
        self = cls.__new__(cls)
        lib = library.get()
        callback = log_callback(log)
        config = make(_abi.moepage_model_config, log=callback)
        raw = created(lib.moepage_model_open_banks, lib.moepage_model_close,
                      ctypes.byref(struct), ctypes.byref(config))
        self._opened(State("model", lib, lib.moepage_model_close, raw, keep=keep + (callback,)))
        failures = next((each for each in keep if hasattr(each, "maxlen")), None)
        if failures is not None:
            self._state.failures = failures
        return self

    def layer_tensors(self, layer: int) -> Tuple[ExpertTensor, ...]:
        """The tensors of an expert of MoE layer `layer`: their types, and so their sizes, may
        differ from layer to layer."""
        with self._state as raw:
            if layer not in self._layers:
                self._layers[layer] = self._expert_tensors(raw, layer)
            return self._layers[layer]

    def _expert_tensors(self, raw: int, layer: int = 0) -> Tuple[ExpertTensor, ...]:
        n = self.info.expert_tensors
        out = (_abi.moepage_expert_tensor * n)()
        if layer:
            self._state.library.moepage_model_get_layer_tensors(raw, layer, out, n)
        else:
            self._state.library.moepage_model_get_expert_tensors(raw, out, n)
        return tuple(ExpertTensor(Role(each.role), dtype(each.dtype),
                                  tuple(each.shape[:each.rank]), each.bytes, each.offset)
                     for each in out)

    @property
    def config(self) -> Optional[Dict[str, Any]]:
        """The checkpoint's config.json, parsed; None where there is none."""
        with self._state as raw:
            text = self._state.library.moepage_model_config_json(raw)
        return None if text is None else json.loads(text)

    def metadata(self, key: str) -> Any:
        """What a GGUF file's metadata has under a key: an int, a float, a bool or a text (bytes
        where it is not UTF-8), or a list of such. NotFound where there is none."""
        get = self._state.library.moepage_model_get_metadata
        count = ctypes.c_uint64()
        with self._state as raw:
            get(raw, text(key, "key"), 0, None, 0, ctypes.byref(count))
            out = (_abi.moepage_metadata * max(count.value, 1))()
            get(raw, text(key, "key"), 0, out, len(out), ctypes.byref(count))
            values = [_value(each) for each in out[:count.value]]
        return values[0] if count.value == 1 and not out[0].is_array else values

    def layer_index(self, moe_layer: int) -> int:
        """The transformer layer that a MoE layer is."""
        with self._state as raw:
            found = self._state.library.moepage_model_layer_index(raw, moe_layer)
        if found < 0:
            raise IndexError("MoE layer %d of %d" % (moe_layer, self.info.moe_layers))
        return found

    def form(self, form: Union[Form, str, int]) -> FormInfo:
        """Whether and how big its experts are in one form."""
        with self._state as raw:
            return report(self._state.library.moepage_model_get_form, FormInfo, raw,
                          choose(Form, form, "form"))

    def tensor(self, name: str) -> Tensor:
        """A tensor of the checkpoint that is never paged, where it lies; KeyError's kin NotFound
        where there is none. One in blocks is a row of bytes, for blocks_decode."""
        view = make(_abi.moepage_tensor_view)
        with self._state as raw:
            self._state.library.moepage_model_find_tensor(raw, text(name, "name"),
                                                         ctypes.byref(view))
        shape, kind = shown(tuple(view.shape[:view.rank]), dtype(view.dtype), view.bytes)
        return Tensor(view.data, shape, kind, readonly=True, faults=True, scope=self._scope,
                      keep=self)

    def read_tensor(self, name: str, offset: int = 0, nbytes: Optional[int] = None) -> Tensor:
        """A copy of bytes of such a tensor, to its end unless `nbytes` says how many; of a file they
        are read, and the model keeps none. For tables of which a step needs a few rows."""
        view = make(_abi.moepage_tensor_view)
        with self._state as raw:
            read = self._state.library.moepage_model_read_tensor
            read(raw, text(name, "name"), offset, 0, None, ctypes.byref(view))
            out = empty((view.bytes - offset if nbytes is None else nbytes,), "u8")
            read(raw, text(name, "name"), offset, out.nbytes, out.address, None)
        return out

    def tensor_names(self) -> Iterator[str]:
        """The names of the tensors that are never paged."""
        out = ctypes.create_string_buffer(MAX_NAME)
        index = 0
        while True:
            with self._state as raw:
                try:
                    self._state.library.moepage_model_get_tensor_name(raw, index, out, MAX_NAME)
                except errors.NotFound:
                    return
            yield out.value.decode()
            index += 1

    def read_expert(self, layer: int, expert: int) -> List[Tensor]:
        """A copy of one expert's tensors, read and checked; in the order of `layer_tensors`. Those
        in blocks are rows of bytes."""
        slot = empty((self.info.slot_bytes,), "u8")
        with self._state as raw:
            self._state.library.moepage_model_read_expert(raw, layer, expert, slot.address,
                                                          slot.nbytes)
        return [Tensor(slot.address + each.offset, *shown(each.shape, each.dtype, each.bytes),
                       keep=slot)
                for each in self.layer_tensors(layer)]
