"""`ExpertPool`: the slots that experts are paged through."""
import ctypes
from dataclasses import dataclass
from typing import Any, NamedTuple, Optional, Sequence, Tuple, Union

from . import _abi
from ._info import ExpertPoolInfo, SessionStats
from .device import Device
from .enums import ExpertState, Form, Hotness, Placement, Scope, Serve, choose
from .handles import Handle, State, library_of, refuse_open_steps, setup
from .model import Model
from .structs import make, report
from .units import size, text


@dataclass(frozen=True)
class Precision:
    """A second, smaller version of every expert (docs/precision.md): outputs are then
    approximations, and the stats say how much of them is."""

    lo_form: Union[Form, str, int]
    hi_form: Union[Form, str, int] = Form.DENSE
    serve: Union[Serve, str, int] = Serve.VERSIONS
    lo_fetched: bool = False
    hi_experts: int = 0
    interval_us: int = 0
    window_steps: int = 0
    alpha: float = 0.0
    margin: float = 0.0
    transitions: int = 0
    hotness: Union[Hotness, str, int] = Hotness.CHOICES

    def _struct(self) -> Any:
        return make(_abi.moepage_precision_config, serve=choose(Serve, self.serve, "serve"),
                    hi_form=choose(Form, self.hi_form, "hi_form"),
                    lo_form=choose(Form, self.lo_form, "lo_form"),
                    lo_fetched=int(self.lo_fetched), hi_experts=self.hi_experts,
                    interval_us=self.interval_us, window_steps=self.window_steps,
                    alpha=self.alpha, margin=self.margin, transitions=self.transitions,
                    hotness=choose(Hotness, self.hotness, "hotness"))


class Place(NamedTuple):
    """Where an expert is: `slot` is -1 where it has none, `device` indexes the pool's devices."""

    state: ExpertState
    slot: int
    device: int


def pool_config(*, slots: int = 0, policy: Optional[str] = None,
            scope: Union[Scope, str, int] = Scope.GLOBAL, scan_percent: int = 0,
            chunk: Union[int, str] = 0, host_tier: Union[int, str] = 0,
            bus_form: Union[None, Form, str, int] = None, compressed_experts: int = 0,
            placement: Union[Placement, str, int] = Placement.EXPLICIT, staging_experts: int = 0,
            precision: Optional[Precision] = None,
            slot_form: Union[None, Form, str, int] = None) -> Any:
    struct = make(_abi.moepage_expert_pool_config, slots=slots,
                  policy=text(policy, "policy") if policy else None,
                  scope=choose(Scope, scope, "scope"), scan_percent=scan_percent,
                  chunk_bytes=size(chunk, "chunk"), host_tier_bytes=size(host_tier, "host_tier"),
                  bus_form=choose(Form, bus_form, "bus_form") if bus_form is not None else 0,
                  compressed_experts=compressed_experts,
                  placement=choose(Placement, placement, "placement"),
                  staging_experts=staging_experts,
                  slot_form=choose(Form, slot_form, "slot_form") if slot_form is not None else 0)
    if precision is not None:
        struct.precision = ctypes.pointer(precision._struct())
    return struct


class ExpertPool(Handle):
    """Slots for a model's experts, on one device or several.

    slots               experts resident at once; 0 = all that the arena has room for
    policy              "lru", "lfu", "lfu-aged", "sieve", "s3fifo", "lirs", "finemoe", "cycle"
    scope               "global", or "layer": every layer has a share of its own
    scan_percent        of the slots that prefill may take from what decode uses; 0 = off
    chunk               bytes of a prefetch that are copied at once; 0 = 2 MiB
    host_tier           host memory that caches experts, in bytes or as "4GiB"; 0 = none
    bus_form            "dense" or "exph"; None = what the model has
    compressed_experts  per layer, kept as EXPH on the device
    placement           "explicit", or "bandwidth", which finds compressed_experts
    staging_experts     on their way to the decoder at once; 0 = 4
    precision           a Precision; None = none
    slot_form           of the experts in slots: "int8", "int4" or "int2", approximations that a
                        pack may have; None = "dense", as they are in the checkpoint

    Any thread may use a pool. Creating it needs that no step is open on the device; closing it is
    Busy while sessions or controllers use it.
    """

    def __init__(self, devices: Union[Device, Sequence[Device]], model: Model,
                 **config: Any) -> None:
        held = (devices,) if isinstance(devices, Device) else tuple(devices)
        if not held or not all(isinstance(each, Device) for each in held):
            raise TypeError("a Device, or a sequence of them, is needed")
        if not isinstance(model, Model):
            raise TypeError("a Model is needed, not %s" % type(model).__name__)
        struct = pool_config(**config)
        parents: Tuple[Handle, ...] = held + (model,)
        lib = library_of(*parents)
        states = [each._state for each in parents]
        state = State("expert pool", lib, lib.moepage_expert_pool_destroy, None, states)
        self._opened(state, held, model)
        with setup(*states):
            refuse_open_steps(*(each._state for each in held))
            raws = (ctypes.c_void_p * len(held))(*(each.handle for each in held))
            with model._state as raw:
                state.create(lib.moepage_expert_pool_create, raws, len(held), raw,
                             ctypes.byref(struct))

    def _opened(self, state: State, devices: Tuple[Device, ...], model: Model) -> None:
        self._own(state, devices + (model,))
        self.devices = devices
        self.model = model

    @staticmethod
    def sizes(model: Model, *, n_devices: int = 1, **config: Any) -> Tuple[int, int]:
        """Bytes of workspace and of arena that a pool would take from each device."""
        lib = library_of(model)
        workspace, arena = ctypes.c_uint64(), ctypes.c_uint64()
        struct = pool_config(**config)
        with model._state as raw:
            lib.moepage_expert_pool_sizes(raw, ctypes.byref(struct), n_devices,
                                          ctypes.byref(workspace), ctypes.byref(arena))
        return workspace.value, arena.value

    @property
    def info(self) -> ExpertPoolInfo:
        """Its size and what has happened in it, now."""
        with self._state as raw:
            return report(self._state.library.moepage_expert_pool_get_info, ExpertPoolInfo, raw)

    @property
    def stats(self) -> SessionStats:
        """Sums over the ended steps of all sessions that it has had."""
        with self._state as raw:
            return report(self._state.library.moepage_expert_pool_get_stats, SessionStats, raw)

    @property
    def hit_rate(self) -> float:
        """Part of routed experts that were resident, so far; 0 before any."""
        info = self.info
        routed = info.hits + info.misses + info.late
        return info.hits / routed if routed else 0.0

    def lookup(self, layer: int, expert: int) -> Place:
        """Where an expert is; old when it is read."""
        found = make(_abi.moepage_residency)
        with self._state as raw:
            self._state.library.moepage_expert_pool_lookup(raw, layer, expert, ctypes.byref(found))
        return Place(ExpertState(found.state), found.slot, found.device)

    def pin(self, layer: int, expert: int) -> None:
        """Loads an expert and keeps it until `unpin`. Pins count."""
        with self._state as raw:
            self._state.library.moepage_expert_pool_pin(raw, layer, expert)

    def unpin(self, layer: int, expert: int) -> None:
        """Takes one pin back."""
        with self._state as raw:
            self._state.library.moepage_expert_pool_unpin(raw, layer, expert)
