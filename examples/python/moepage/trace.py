"""`Trace`: recorded routing, written by sessions and read step by step (docs/format-trace.md)."""
import ctypes
import os
from dataclasses import dataclass
from typing import Any, Iterator, NamedTuple, Optional, Tuple, Union

from . import _abi, errors, library
from ._info import TraceInfo
from .dtypes import float32, int32, uint8
from .enums import Phase
from .handles import Handle, State, created
from .structs import make, report
from .tensors import Tensor, copy_of
from .units import text


class TraceSequence(NamedTuple):
    """A sequence's share of a recorded step."""

    sequence: int
    n_tokens: int
    phase: Phase


@dataclass(frozen=True)
class TraceStep:
    """A recorded step; its arrays are copies."""

    step: int
    n_tokens: int
    top_k: int
    sequences: Tuple[TraceSequence, ...]
    layer_present: Tensor  #: [moe_layers] 1 where the layer was routed
    ids: Tensor  #: [moe_layers, n_tokens, top_k]
    weights: Tensor  #: [moe_layers, n_tokens, top_k]
    probabilities: Optional[Tensor]  #: [moe_layers, n_tokens, experts]
    semantic: Optional[Tensor]  #: [sequences, semantic_dim]


class Trace(Handle):
    """Opens a trace for reading: iterate over it. `Trace.create` makes one for `Session.record`.

    One thread at a time. Closing a trace that was written finishes the file, and reports what went
    wrong with it; it is Busy while a session records to it.
    """

    def __init__(self, path: "Union[str, os.PathLike[str]]") -> None:
        lib = library.get()
        self._opened(lib, created(lib.moepage_trace_open, lib.moepage_trace_close,
                                  os.fsencode(path)))

    @classmethod
    def create(cls, path: "Union[str, os.PathLike[str]]", *, moe_layers: int, experts: int,
               max_top_k: int, semantic_dim: int = 0, probabilities: bool = False,
               model: str = "") -> "Trace":
        """Begins a trace of a model of this shape; the file appears when it is closed."""
        lib = library.get()
        info = make(_abi.moepage_trace_info, moe_layers=moe_layers, experts=experts,
                    max_top_k=max_top_k, semantic_dim=semantic_dim,
                    has_probabilities=int(probabilities))
        name = text(model, "model")
        if len(name) > 63:
            raise ValueError("model is %d bytes long, and not at most 63" % len(name))
        info.model = name
        self = cls.__new__(cls)
        self._opened(lib, created(lib.moepage_trace_create, lib.moepage_trace_close,
                                  os.fsencode(path), ctypes.byref(info)))
        return self

    def _opened(self, lib: Any, raw: int) -> None:
        self._own(State("trace", lib, lib.moepage_trace_close, raw, exclusive=True,
                        frees_always=True))
        self.info = self._info()

    def _info(self) -> TraceInfo:
        with self._state as raw:
            return report(self._state.library.moepage_trace_get_info, TraceInfo, raw)

    def __iter__(self) -> Iterator[TraceStep]:
        return self

    def __next__(self) -> TraceStep:
        step = make(_abi.moepage_trace_step)
        with self._state as raw:
            try:
                self._state.library.moepage_trace_next(raw, ctypes.byref(step))
            except errors.End:
                raise StopIteration from None
            return self._copied(step)

    def _copied(self, step: _abi.moepage_trace_step) -> TraceStep:
        layers, tokens, info = self.info.moe_layers, step.n_tokens, self.info
        shape = (layers, tokens, step.top_k)
        return TraceStep(
            step.step, tokens, step.top_k,
            tuple(TraceSequence(each.seq, each.n_tokens, Phase(each.phase))
                  for each in step.sequences[:step.n_sequences]),
            copy_of(step.layer_present, (layers,), uint8), copy_of(step.ids, shape, int32),
            copy_of(step.weights, shape, float32),
            copy_of(step.probabilities, (layers, tokens, info.experts), float32)
            if step.probabilities else None,
            copy_of(step.semantic, (step.n_sequences, info.semantic_dim), float32)
            if step.semantic else None)
