"""`Session`: steps a batch through a model's layers, one thread at a time."""
import ctypes
from contextlib import nullcontext, suppress
from dataclasses import dataclass
from typing import Any, Optional, Sequence as Seq, Union

from . import _abi, errors
from ._info import PrefetchInfo, SessionStats
from .enums import Gate, Group, Math, Miss, Phase, Prefetch, Regime, choose
from .experts import ExpertPool
from .handles import Handle, State, library_of, refuse_open_steps, setup
from .kv import KVPool, Sequence
from .model import Model
from .predictor import Predictor
from .step import Step, step_struct
from .structs import make, report
from .trace import Trace
from .units import int32


@dataclass(frozen=True)
class Remap:
    """Remapping of decode batches (docs/remapping.md). It changes outputs. `alphas` and `betas`
    have one number per MoE layer, instead of `alpha` and `beta`; 0 leaves a layer alone."""

    alpha: float = 0.0
    beta: float = 0.0
    gate: Union[Gate, str, int] = Gate.SOFTMAX
    alphas: Optional[Seq[float]] = None
    betas: Optional[Seq[float]] = None
    resident: float = 0.0

    def _struct(self, layers: int) -> Any:
        struct = make(_abi.moepage_remap_config, gate=choose(Gate, self.gate, "gate"),
                      alpha=self.alpha, beta=self.beta, resident=self.resident)
        for name in ("alphas", "betas"):
            values = getattr(self, name)
            if values is not None:
                if len(values) != layers:
                    raise ValueError("%s has %d numbers for %d layers"
                                     % (name, len(values), layers))
                held = (ctypes.c_float * layers)(*values)
                setattr(struct, name, ctypes.addressof(held))
                setattr(struct, "held_" + name, held)
        return struct


def session_config(*, max_tokens: int = 0, max_sequences: int = 0, max_top_k: int = 0,
            math: Union[Math, str, int] = Math.FP32,
            prefetch: Union[Prefetch, str, int] = Prefetch.OFF, prefetch_depth: int = 0,
            grouping: Union[Group, str, int] = Group.EXPERTS, max_group_experts: int = 0,
            regime: Union[Regime, str, int] = Regime.AUTO,
            miss: Union[Miss, str, int] = Miss.WAIT) -> Any:
    return make(_abi.moepage_session_config, max_tokens=max_tokens, max_sequences=max_sequences,
                max_top_k=max_top_k, math=choose(Math, math, "math"),
                prefetch=choose(Prefetch, prefetch, "prefetch"), prefetch_depth=prefetch_depth,
                grouping=choose(Group, grouping, "grouping"), max_group_experts=max_group_experts,
                regime=choose(Regime, regime, "regime"), miss=choose(Miss, miss, "miss"))


class Session(Handle):
    """Steps over an expert pool and, if there is one, a KV pool.

    max_tokens         most in one step; 0 = 256
    max_sequences      most in one step; 0 = max_tokens
    max_top_k          experts per token; 0 = the model's
    math               of Step.ffn: "fp32", "bf16", "bf16_fast", "int8"
    prefetch           "off", "hint", "previous", "predictor"
    prefetch_depth     layers ahead; 0 = the library's choice
    grouping           of plans: "experts", "tokens"
    max_group_experts  held at once for one layer; 0 = as many as go
    regime             "auto", "cache", "stream"
    miss               "wait", "low" (lossy), "host"
    predictor          a Predictor, of prefetch="predictor"

        with session.step(n_tokens) as step:
            step.route(layer, ids, weights)
            step.ffn(layer, x, y)
            step.retire(layer)

    One thread at a time: a second one raises ConcurrentUse. Sessions of one pool may run in
    parallel.
    """

    def __init__(self, experts: ExpertPool, kv: Optional[KVPool] = None, *,
                 predictor: Optional[Predictor] = None, **config: Any) -> None:
        if not isinstance(experts, ExpertPool):
            raise TypeError("an ExpertPool is needed, not %s" % type(experts).__name__)
        if kv is not None and not isinstance(kv, KVPool):
            raise TypeError("a KVPool is needed, not %s" % type(kv).__name__)
        struct = session_config(**config)
        parents = tuple(each for each in (experts, kv, predictor) if each is not None)
        lib = library_of(*parents)
        states = [each._state for each in parents]
        state = State("session", lib, lib.moepage_session_destroy, None, states, exclusive=True)
        self._opened(state, experts, kv, predictor)
        with setup(*states):
            refuse_open_steps(*states)
            with predictor._state if predictor is not None else nullcontext() as learner:
                struct.predictor = learner
                state.create(lib.moepage_session_create, experts.handle,
                             kv.handle if kv else None, ctypes.byref(struct))

    def _opened(self, state: State, experts: ExpertPool, kv: Optional[KVPool],
                predictor: Optional[Predictor]) -> None:
        self._own(state, tuple(each for each in (experts, kv, predictor) if each is not None))
        self.experts, self.kv, self.predictor = experts, kv, predictor
        self._open: Optional[Step] = None
        self._trace: Optional[Trace] = None

    @staticmethod
    def workspace(model: Model, **config: Any) -> int:
        """Bytes that a session takes of the workspace of every device of its pool."""
        lib = library_of(model)
        out = ctypes.c_uint64()
        struct = session_config(**config)
        with model._state as raw:
            lib.moepage_session_workspace(raw, ctypes.byref(struct), ctypes.byref(out))
        return out.value

    def step(self, n_tokens: Optional[int] = None, *, sequences: Optional[Seq[Any]] = None,
             phase: Union[Phase, str, int] = Phase.DECODE, semantic: Any = None) -> Step:
        """Opens a step of `n_tokens` tokens: a context manager, which ends it, or cancels it when
        it is left by an exception.

        `sequences` lists who they belong to, in the order of the batch: (sequence, n_tokens) or
        (sequence, n_tokens, phase), sequence being one of the KV pool or None; `n_tokens` is then
        their sum. `semantic` is an array [sequences, dimension] for predictors that want it."""
        sequences = None if sequences is None else list(sequences)
        struct, keep = step_struct(n_tokens, sequences, choose(Phase, phase, "phase"), semantic)
        for each, *_ in sequences or ():
            if isinstance(each, Sequence) and each.pool is not self.kv:
                raise ValueError("a sequence is of another KV pool than the session's")
        lib = self._state.library
        with setup(self._state), self._state as raw:
            try:
                lib.moepage_session_begin(raw, ctypes.byref(struct))
                self._state.step_open = True
                self._open = Step(self, struct.n_tokens, sequences)
            except errors.Error:
                raise
            except BaseException:  # it may have begun, and nobody would know
                self._closed_step()
                with suppress(errors.Error):
                    lib.moepage_session_cancel(raw)
                raise
        del keep
        return self._open

    def _closed_step(self) -> None:
        self._open = None
        self._state.step_open = False

    def close(self) -> None:
        """Closes it; an open step is cancelled. Again is a no-op."""
        try:
            self._state.close()
        finally:
            if self._open is not None and self.closed:
                self._open._abandon()
                self._open = None

    def hint(self, layer: int, experts: Seq[int]) -> None:
        """Says which experts of a layer will probably be routed next, likeliest first."""
        ids = (ctypes.c_int32 * len(experts))(*(int32(each, "an expert") for each in experts))
        with self._state as raw:
            self._state.library.moepage_session_hint(raw, layer, ids, len(experts))

    def set_remap(self, remap: Optional[Remap]) -> None:
        """Remaps decode batches from the next step on; None turns it off."""
        struct = remap._struct(self.experts.model.info.moe_layers) if remap else None
        with self._state as raw:
            self._state.library.moepage_session_set_remap(
                raw, ctypes.byref(struct) if struct is not None else None)

    def record(self, trace: Optional[Trace]) -> None:
        """Records every step to a trace from now on; None stops."""
        with self._state as raw:
            if trace is None:
                self._state.library.moepage_session_record(raw, None)
            else:
                library_of(self, trace)
                with trace._state as raw_trace:
                    self._state.library.moepage_session_record(raw, raw_trace)
                trace._state.children.add(self._state)  # finalised before it
            if self._trace is not None and self._trace is not trace:
                self._trace._state.children.discard(self._state)
            self._trace = trace

    @property
    def stats(self) -> SessionStats:
        """Sums over all ended or cancelled steps."""
        with self._state as raw:
            return report(self._state.library.moepage_session_get_stats, SessionStats, raw)

    def prefetch_info(self, layer: int) -> PrefetchInfo:
        """What prefetching for a layer has brought, with prefetch="predictor"."""
        with self._state as raw:
            struct = make(_abi.moepage_prefetch_info)
            self._state.library.moepage_session_get_prefetch(raw, layer, ctypes.byref(struct))
        return PrefetchInfo.of(struct)
