"""`Controller`: moves the split between experts and KV while they serve; and moving it by hand."""
import ctypes
from contextlib import ExitStack
from typing import Any, List, Optional, Sequence as Seq, Union

from . import _abi
from ._info import ControllerInfo, ControllerReport, Rightsize
from .enums import Control, KVMiss, choose
from .experts import ExpertPool
from .handles import Handle, State, library_of, refuse_open_steps, setup
from .kv import KVPool
from .predictor import Predictor
from .structs import make, report
from .units import stream as stream_of, uint


class Controller(Handle):
    """Watches a pair of pools (`kv` may be None) until it is closed (docs/working-sets.md).

    `mode` is "mv_wsa", "dual_resize", "planner", "observe", "fixed" or "flux"; `kv_miss` says
    what the host does about KV that is not on the device: "swap" or "recompute". The rest is as
    moepage_controller_config in moepage.h; 0 = the default. With `admission` it also decides how
    many sequences run at once, which KVPool.admit heeds, and may have targets of times.

    Call `tick` between steps, one thread at a time.
    """

    def __init__(self, experts: ExpertPool, kv: Optional[KVPool] = None, *,
                 mode: Union[Control, str, int] = Control.MV_WSA,
                 kv_miss: Union[KVMiss, str, int] = KVMiss.SWAP, burst_steps: int = 0,
                 context_tokens: int = 0, concurrency: int = 0, expert_percent: int = 0,
                 decay_permille: int = 0, gate_permille: int = 0, rate_permille: int = 0,
                 dead_zone: int = 0, headroom_permille: int = 0, theta_permille: int = 0,
                 max_samples: int = 0, admission: bool = False, target_ttft_ns: int = 0,
                 target_tpot_ns: int = 0) -> None:
        if not isinstance(experts, ExpertPool):
            raise TypeError("an ExpertPool is needed, not %s" % type(experts).__name__)
        config = make(_abi.moepage_controller_config, mode=choose(Control, mode, "mode"),
                      kv_miss=choose(KVMiss, kv_miss, "kv_miss"), burst_steps=burst_steps,
                      context_tokens=context_tokens, concurrency=concurrency,
                      expert_percent=expert_percent, decay_permille=decay_permille,
                      gate_permille=gate_permille, rate_permille=rate_permille,
                      dead_zone=dead_zone, headroom_permille=headroom_permille,
                      theta_permille=theta_permille, max_samples=max_samples,
                      admission=int(admission), target_ttft_ns=target_ttft_ns,
                      target_tpot_ns=target_tpot_ns)
        parents = tuple(each for each in (experts, kv) if each is not None)
        lib = library_of(*parents)
        states = [each._state for each in parents]
        state = State("controller", lib, lib.moepage_controller_destroy, None, states)
        self._own(state, parents)
        with setup(*states):
            refuse_open_steps(*states)
            state.create(lib.moepage_controller_create, experts.handle,
                         kv.handle if kv else None, ctypes.byref(config))
        self.experts, self.kv = experts, kv
        # A tick is for one thread at a time; what else there is, for any.
        self._ticking = State("controller's tick", lib, _nothing, 1, exclusive=True)

    def tick(self, *, stream: Any = None) -> ControllerReport:
        """Between steps: counts what has been, and at a burst's end decides and acts."""
        struct = make(_abi.moepage_controller_report)
        with setup(self._state), self._ticking, self._state as raw:
            self._state.library.moepage_controller_tick(raw, stream_of(stream),
                                                        ctypes.byref(struct))
        return ControllerReport.of(struct)

    def kv_use(self, key: int, tokens: int) -> None:
        """Says that the host used the prefix `key`, of so many tokens."""
        with self._state as raw:
            self._state.library.moepage_controller_kv_use(raw, key, tokens)

    @property
    def info(self) -> ControllerInfo:
        """What it has measured."""
        with self._state as raw:
            return report(self._state.library.moepage_controller_get_info, ControllerInfo, raw)

    def rightsize(self, predictors: "Seq[Predictor]", coverage_permille: int = 0) -> None:
        """Names the users that it serves: "coactivation" predictors, one for each, of their own
        sessions. Experts get no more slots than these need to cover so much of their choices
        (0 = 990). Replaces those named before; none end it. They cannot be closed meanwhile."""
        for each in predictors:
            if not isinstance(each, Predictor):
                raise TypeError("a Predictor is needed, not %s" % type(each).__name__)
        library_of(self, *predictors)
        with ExitStack() as entered:
            raw = entered.enter_context(self._state)
            held = [entered.enter_context(each._state) for each in predictors]
            self._state.library.moepage_controller_rightsize(
                raw, (ctypes.c_void_p * len(held))(*held), len(held), coverage_permille)

    def user(self, index: int) -> Rightsize:
        """What the user of predictors[index] needs; `experts` 0 = not sure yet."""
        struct = make(_abi.moepage_rightsize)
        with self._state as raw:
            self._state.library.moepage_controller_get_rightsize(raw, uint(index, "index"),
                                                                 ctypes.byref(struct))
        return Rightsize.of(struct)

    def curve(self, sizes: Seq[int], *, kv: bool = False) -> List[float]:
        """Predicted warm misses of a burst at each size, in slots of experts or blocks of KV."""
        held = (ctypes.c_uint64 * len(sizes))(*(uint(each, "a size", 64) for each in sizes))
        out = (ctypes.c_double * len(sizes))()
        with self._state as raw:
            self._state.library.moepage_controller_get_curve(raw, int(kv), held, len(sizes), out)
        return list(out)


def _nothing(raw: int) -> None:
    pass


def set_split(experts: Optional[ExpertPool] = None, kv: Optional[KVPool] = None, *,
              expert_slots: int = 0, kv_blocks: int = 0, stream: Any = None) -> None:
    """Moves the boundary between the two pools of one device; 0 leaves a pool as it is. A refused
    move leaves the old split."""
    pools = [each for each in (experts, kv) if each is not None]
    if not pools:
        raise TypeError("a pool is needed")
    with setup(*(each._state for each in pools)):
        library_of(*pools).moepage_split_set(
            experts.handle if experts else None, kv.handle if kv else None,
            expert_slots, kv_blocks, stream_of(stream))
