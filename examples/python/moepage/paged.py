"""`PagedTensor`: a layer's experts as dense tensors at addresses that never change."""
import contextlib
import ctypes
from typing import Any, Dict, Iterator, Tuple, Union

from . import _abi, errors
from ._info import ControllerReport, PagedInfo
from .device import Device
from .dtypes import dtype as dtype_of
from .enums import Form, PagedState, Role, choose
from .handles import Handle, State, library_of, setup
from .kv import KVPool
from .model import Model
from .structs import make, report
from .tensors import Scope, Tensor
from .units import below, stream as stream_of


def _config(buffers: int, bus_form: Union[Form, str, int], compressed_experts: int,
            staging_experts: int, host_tier_bytes: int) -> Any:
    return make(_abi.moepage_paged_config, buffers=buffers,
                bus_form=choose(Form, bus_form, "bus_form") if bus_form else 0,
                compressed_experts=compressed_experts, staging_experts=staging_experts,
                host_tier_bytes=host_tier_bytes)


class PagedTensor(Handle):
    """Shows a model's experts, a few layers at a time (docs/design.md, FluxMoE 4.1).

        paged.materialise(0); paged.materialise(1)
        for i in layers:
            with paged.acquired(i) as tensors:     # {"gate_up": [experts, 2I, H], ...}
                ...
            paged.materialise((i + 2) % n)

    `buffers` layers have memory at once; 0 = 2. The rest, of the tiers that feed them, is as
    moepage_paged_config in moepage.h. One thread at a time. Its tensors cannot be written; arrays
    made of them hold their layer: releasing it raises ExportsAlive until they are gone.
    """

    def __init__(self, device: Device, model: Model, *, buffers: int = 0,
                 bus_form: Union[Form, str, int] = 0, compressed_experts: int = 0,
                 staging_experts: int = 0, host_tier_bytes: int = 0) -> None:
        lib = library_of(device, model)
        config = _config(buffers, bus_form, compressed_experts, staging_experts, host_tier_bytes)
        states = (device._state, model._state)
        state = State("PagedTensor", lib, lib.moepage_paged_destroy, None, states, exclusive=True)
        self._own(state, (device, model))
        with setup(*states), device._state as raw, model._state as raw_model:
            state.create(lib.moepage_paged_create, raw, raw_model, ctypes.byref(config))
        self.device, self.model = device, model
        self._scopes: Dict[int, Scope] = {}
        with state as raw:
            self._tensors = tuple(self._tensor(raw, i)
                                  for i in range(len(model.expert_tensors)))

    @staticmethod
    def sizes(device: Device, model: Model, *, buffers: int = 0,
              bus_form: Union[Form, str, int] = 0, compressed_experts: int = 0,
              staging_experts: int = 0, host_tier_bytes: int = 0) -> Tuple[int, int]:
        """Bytes of workspace and of arena that it would take."""
        lib = library_of(device, model)
        config = _config(buffers, bus_form, compressed_experts, staging_experts, host_tier_bytes)
        workspace, arena = ctypes.c_uint64(), ctypes.c_uint64()
        with device._state as raw, model._state as raw_model:
            lib.moepage_paged_sizes(raw, raw_model, ctypes.byref(config), ctypes.byref(workspace),
                                    ctypes.byref(arena))
        return workspace.value, arena.value

    def _tensor(self, raw: int, index: int) -> Any:
        struct = make(_abi.moepage_paged_tensor)
        self._state.library.moepage_paged_get_tensor(raw, index, ctypes.byref(struct))
        return struct

    def address(self, tensor: int, layer: int, expert: int = 0) -> int:
        """Where an expert's tensor always is; only an acquired layer may be read."""
        struct, info = self._tensors[tensor], self.model.info
        layer = below(layer, info.moe_layers, "layer")
        expert = below(expert, info.experts, "expert")
        return (struct.base or 0) + layer * struct.layer_stride + expert * struct.expert_stride

    def materialise(self, layer: int) -> None:
        """Begins to bring a layer, into the buffer of the one materialised longest ago."""
        with self._state as raw:
            self._state.library.moepage_paged_materialise(raw, layer)

    def acquire(self, layer: int, *, stream: Any = None) -> Dict[str, Tensor]:
        """Waits for a layer; its tensors by role, [experts, ...] each, good until `release`."""
        at = stream_of(stream)
        with self._state as raw:
            try:
                self._state.library.moepage_paged_acquire(raw, layer, at)
            except errors.Error:
                raise
            except BaseException:  # it may have been acquired, and nobody would know
                with contextlib.suppress(errors.Error):
                    self._state.library.moepage_paged_release(raw, layer, at)
                raise
            scope = self._scopes[layer] = Scope("layer %d" % layer,
                                                (self._state, self.device._state))
        n = self.model.info.experts
        return {Role(struct.role).name.lower():
                Tensor(self.address(i, layer), (n,) + tuple(struct.shape[:struct.rank]),
                       dtype_of(struct.dtype), device=self.device._place, readonly=True,
                       faults=True, scope=scope, keep=self, stream=at)
                for i, struct in enumerate(self._tensors)}

    def release(self, layer: int, *, stream: Any = None) -> None:
        """Gives a layer back: its buffer may go once work submitted so far is done."""
        with self._state as raw:
            scope = self._scopes.get(layer)
            with scope.ending() if scope is not None else contextlib.nullcontext():
                self._state.library.moepage_paged_release(raw, layer, stream_of(stream))
            self._scopes.pop(layer, None)

    def resize(self, compressed: int) -> None:
        """Keeps so many experts of each layer compressed in device memory."""
        with self._state as raw:
            self._state.library.moepage_paged_resize(raw, compressed)

    def balance(self, kv: KVPool, *, headroom_permille: int = 100,
                stream: Any = None) -> ControllerReport:
        """At the end of a burst: KV gets its peak with headroom, compressed experts the rest."""
        struct = make(_abi.moepage_controller_report)
        with setup(self._state, kv._state), self._state as raw:
            self._state.library.moepage_paged_balance(raw, kv.handle, headroom_permille,
                                                      stream_of(stream), ctypes.byref(struct))
        return ControllerReport.of(struct)

    @property
    def info(self) -> PagedInfo:
        """Its memory, and what it has done."""
        with self._state as raw:
            return report(self._state.library.moepage_paged_get_info, PagedInfo, raw)

    @contextlib.contextmanager
    def acquired(self, layer: int, *, stream: Any = None) -> Iterator[Dict[str, Tensor]]:
        """Acquires a layer for the length of a block."""
        tensors = self.acquire(layer, stream=stream)
        try:
            yield tensors
        finally:
            self.release(layer, stream=stream)

    def state(self, layer: int) -> PagedState:
        """Where a layer is now."""
        out = ctypes.c_uint32()
        with self._state as raw:
            self._state.library.moepage_paged_get_state(raw, layer, ctypes.byref(out))
        return PagedState(out.value)
