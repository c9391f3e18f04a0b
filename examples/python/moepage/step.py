"""`Step`: one pass of a batch through the layers."""
import contextlib
import ctypes
from typing import Any, ContextManager, Dict, Iterator, List, Optional, Sequence as Seq, Tuple

from . import _abi, dlpack, errors
from ._info import SessionStats
from .dtypes import bfloat16, float16, float32, int32
from .enums import Phase, choose
from .plan import Plan, plan_struct
from .structs import make
from .tensors import (CPU, array, check_array, contiguous_address, empty, fitting_address,
                      same_strides)
from .units import stream as stream_of, uint

_FFN_DTYPES = (float32, float16, bfloat16)
_ROUTING_BYTES = ctypes.sizeof(_abi.moepage_routing)
_FFN_BYTES = ctypes.sizeof(_abi.moepage_ffn)


def step_struct(n_tokens: Optional[int], sequences: Optional[Seq[Any]], phase: int,
                semantic: Any) -> Tuple[Any, Any]:
    """moepage_step, and what it points to."""
    keep: List[Any] = []
    shares = [_share(each, phase) for each in sequences or ()]
    total = sum(each[1] for each in shares)
    if sequences is None and n_tokens is None:
        raise TypeError("a step needs n_tokens, or sequences")
    if sequences is not None and n_tokens is not None and n_tokens != total:
        raise ValueError("n_tokens is %d, and the sequences have %d" % (n_tokens, total))
    struct = make(_abi.moepage_step, n_tokens=total if n_tokens is None else n_tokens,
                  n_sequences=len(shares), phase=phase)
    if shares:
        held = (_abi.moepage_step_sequence * len(shares))()
        for each, (seq, n, what) in zip(held, shares):
            each.seq = uint(seq, "a sequence", 64)
            each.n_tokens, each.phase = uint(n, "its tokens"), what
        struct.sequences = held
        keep.append(held)
    if semantic is not None:
        found = array(semantic)
        if len(found.shape) != 2:
            raise ValueError("semantic has shape %s, and not [sequences, dimension]"
                             % list(found.shape))
        shape = (max(len(shares), 1), found.shape[1])
        struct.semantic, held = contiguous_address(semantic, "semantic", float32, shape)
        struct.semantic_dim = found.shape[1]
        keep += [held, found]
    return struct, keep


def _share(of: Any, phase: int) -> Tuple[int, int, int]:
    sequence, n_tokens, *rest = of
    if len(rest) > 1:
        raise ValueError("a sequence's share is (sequence, n_tokens[, phase])")
    seq = getattr(sequence, "id", sequence)
    return seq or 0, n_tokens, choose(Phase, rest[0], "phase") if rest else phase


class Step:
    """An open step of a session. As a context manager it ends itself, or is cancelled when an
    exception leaves the block."""

    def __init__(self, session: Any, n_tokens: int, keep: Any = None) -> None:
        self.session = session
        self._keep = keep  # the sequences, which must not be freed under the step
        self.n_tokens: int = n_tokens
        self.stats: Optional[SessionStats] = None  #: what it did, once it has ended
        self._layers: Dict[int, Optional[Plan]] = {}  # open ones

    @property
    def open(self) -> bool:
        """Whether it has neither ended nor been cancelled."""
        return self.session._open is self

    def __enter__(self) -> "Step":
        self._library()
        return self

    def __exit__(self, kind: Any, error: Any, trace: Any) -> None:
        if not self.open:
            return
        if kind is not None:
            self.cancel()
            return
        try:
            self.end()
        except BaseException:
            if self.open:
                self.cancel()
            raise

    def _library(self) -> Any:
        if not self.open:
            raise errors.StateError("the step has ended")
        return self.session._state.library

    # ---- Layers --------------------------------------------------------------------------

    def route(self, layer: int, ids: Any, weights: Any = None, *, probabilities: Any = None,
              logits: Any = None, hidden: Any = None, stream: Any = None,
              plan: bool = True) -> Optional[Plan]:
        """Announces the routing of a MoE layer: ids [n_tokens, top_k] of int32 and weights of
        float32, both on the host. Waits for the first group's experts and returns the plan that
        says where they are; with plan=False the loads only start, for `ffn` to wait on. A plan needs
        no weights: without them they are 1.

        `probabilities` and `logits` are [n_tokens, experts], `hidden` [n_tokens, hidden], float32
        on the host, for predictors and remapping. `stream`: of the caller's CUDA kernels that read
        the plan's slots."""
        lib = self._library()
        found = array(ids)
        if len(found.shape) != 2 or found.shape[0] != self.n_tokens:
            raise ValueError("ids has shape %s, and not [%d, top_k]"
                             % (list(found.shape), self.n_tokens))
        info = self.session.experts.model.info
        n, top_k = found.shape
        struct = _abi.moepage_routing(_ROUTING_BYTES, top_k)
        struct.stream = stream_of(stream)
        struct.ids, held = fitting_address(found, "ids", int32, (n, top_k))
        keep = [held]
        if weights is not None:
            struct.weights, held = contiguous_address(weights, "weights", float32, (n, top_k))
            keep.append(held)
        for name, of, width in (("probabilities", probabilities, info.experts),
                                ("logits", logits, info.experts), ("hidden", hidden, info.hidden)):
            if of is not None:
                address, held = contiguous_address(of, name, float32, (n, width))
                setattr(struct, name, address)
                keep.append(held)
        out: Any = plan_struct() if plan else None
        with self.session._state as raw:
            lib.moepage_session_route(raw, layer, ctypes.byref(struct),
                                      ctypes.byref(out) if plan else None)
            made = Plan(self.session, out, self.n_tokens, struct.stream) if plan else None
            self._layers[layer] = made
        return made

    def next_group(self, layer: int) -> Plan:
        """Gives the current group's slots back and takes the next one; StateError after the
        last."""
        lib = self._library()
        old = self._layers.get(layer)
        out = plan_struct()
        with self.session._state as raw:
            with _ending(old):
                try:
                    lib.moepage_session_next_group(raw, layer, ctypes.byref(out))
                    failed = None
                except errors.StateError:
                    raise  # there is no next group, and the old one is there still
                except errors.Error as error:
                    failed = error  # no group is held
            if failed is not None:
                raise failed
            made = Plan(self.session, out, self.n_tokens, old.stream if old else None)
            self._layers[layer] = made
        return made

    def groups(self, layer: int, ids: Any, weights: Any = None, **routing: Any) -> Iterator[Plan]:
        """Routes a layer, goes through its groups and retires it, also when the loop is left early:
        for kernels of one's own.

            for plan in step.groups(layer, ids, weights):
                for expert in plan.experts: ...
        """
        plan = self.route(layer, ids, weights, plan=True, **routing)
        assert plan is not None
        n = plan.n_groups
        try:
            yield plan
            for _ in range(1, n):
                plan = self.next_group(layer)
                yield plan
        except GeneratorExit:
            if self.open and self._layers.get(layer) is plan:
                self.retire(layer)
            raise
        self.retire(layer)

    def ffn(self, layer: int, x: Any, y: Any = None, *, accumulate: bool = False,
            stream: Any = None) -> Any:
        """Runs a layer's routed experts, SwiGLU: y = sum over k of weight_k * expert_k(x).

        `x` and `y` are [n_tokens, hidden] (or [..., hidden] without gaps) of float32, float16 or
        bfloat16, on the pool's device. `y` is made like `x` if there is none, and returned; with
        `accumulate` the sum is added to it. `stream`: the CUDA stream that x comes from, and that
        y is complete on."""
        lib = self._library()
        if y is None and accumulate:
            raise ValueError("there is no y to add to")
        struct, y, keep = self._ffn_struct(x, y)
        struct.accumulate = int(accumulate)
        struct.stream = stream_of(stream)
        plan = self._layers.get(layer)
        with self.session._state as raw:
            if plan is not None and plan.n_groups > 1:
                with _ending(plan):  # it goes through the groups itself
                    pass
            try:
                lib.moepage_session_ffn(raw, layer, ctypes.byref(struct))
            except BaseException:
                if plan is not None:
                    plan._scope.abandon()  # no group is held
                raise
        del keep
        return y

    def _ffn_struct(self, x: Any, y: Any) -> Tuple[Any, Any, Any]:
        """moepage_ffn, y, and what keeps the memory of both where it is."""
        device = self.session.experts.devices[0]._place
        found_x = array(x)
        check_array(found_x, "x", _FFN_DTYPES, device)
        if y is None:
            y = _empty_like(x)
        found_y = array(y)
        check_array(found_y, "y", (found_x.dtype,), device)
        if found_y.read_only:
            raise ValueError("y is read-only")
        hidden = self.session.experts.model.info.hidden
        struct = _abi.moepage_ffn(_FFN_BYTES, found_x.dtype.code, found_x.address, found_y.address,
                                  _row_stride(found_x, "x", self.n_tokens, hidden),
                                  _row_stride(found_y, "y", self.n_tokens, hidden))
        x_end = _end(found_x, struct.x_stride, self.n_tokens, hidden)
        y_end = _end(found_y, struct.y_stride, self.n_tokens, hidden)
        if found_x.address < y_end and found_y.address < x_end:
            raise ValueError("x and y share memory")
        return struct, y, (found_x.keep, found_y.keep)

    def retire(self, layer: int) -> None:
        """Ends a layer: its slots may be given to other experts. ExportsAlive while arrays made
        of its plan are alive."""
        lib = self._library()
        plan = self._layers.get(layer)
        with self.session._state as raw, _ending(plan):
            lib.moepage_session_retire(raw, layer)
            self._layers.pop(layer, None)

    def run(self, layer: int, ids: Any, weights: Any, x: Any, y: Any = None, *,
            accumulate: bool = False, stream: Any = None, **routing: Any) -> Any:
        """A whole layer: route, ffn, retire. Returns y. The layer is retired whatever fails."""
        self.route(layer, ids, weights, stream=stream, plan=False, **routing)
        try:
            y = self.ffn(layer, x, y, accumulate=accumulate, stream=stream)
        except BaseException:
            with contextlib.suppress(errors.Error):
                self.retire(layer)
            raise
        self.retire(layer)
        return y

    # ---- Its end -------------------------------------------------------------------------

    def end(self) -> SessionStats:
        """Closes the step; StateError while a layer is not retired."""
        lib = self._library()
        stats = make(_abi.moepage_session_stats)
        with self.session._state as raw:
            try:
                lib.moepage_session_end(raw, ctypes.byref(stats))
            except errors.Error:
                raise
            except BaseException:
                self._drop(raw)
                raise
            self.session._closed_step()
        self.stats = SessionStats.of(stats)
        return self.stats

    def cancel(self) -> None:
        """Drops the step and retires every open layer. Arrays made of its plans stay readable,
        and show whatever comes into the slots."""
        lib = self._library()
        with self.session._state as raw:
            try:
                lib.moepage_session_cancel(raw)
            except errors.Error:
                raise
            except BaseException:
                self._drop(raw)
                raise
            self._abandon()
            self.session._closed_step()

    def _drop(self, raw: int) -> None:
        """After an interrupt, which leaves open whether the library has ended the step."""
        self._abandon()
        try:
            with contextlib.suppress(errors.Error):
                self.session._state.library.moepage_session_cancel(raw)
        finally:
            self.session._closed_step()

    def _abandon(self) -> None:
        for plan in self._layers.values():
            if plan is not None:
                plan._scope.abandon()
        self._layers.clear()


def _ending(plan: Optional[Plan]) -> ContextManager[None]:
    return plan._scope.ending() if plan is not None else contextlib.nullcontext()


def _row_stride(found: dlpack.Imported, what: str, n_tokens: int, hidden: int) -> int:
    shape, strides = tuple(found.shape), found.strides
    rows = 1
    for n in shape[:-1]:
        rows *= n
    if not shape or shape[-1] != hidden or rows != n_tokens:
        raise ValueError("%s has shape %s, and not [%d, %d]"
                         % (what, list(shape), n_tokens, hidden))
    if strides is None or same_strides(shape, strides):
        return hidden
    if len(shape) == 2 and strides[1] == 1 and strides[0] >= hidden:
        return strides[0]
    raise ValueError("%s is not contiguous, and no matrix of contiguous rows" % what)


def _end(found: dlpack.Imported, stride: int, n_tokens: int, hidden: int) -> int:
    return found.address + ((n_tokens - 1) * stride + hidden) * found.dtype.itemsize


def _empty_like(x: Any) -> Any:
    kind = type(x).__module__.partition(".")[0]
    if kind in ("torch", "numpy"):
        module = __import__(kind)
        return module.empty_like(x)
    found = array(x)
    if found.device != CPU:
        raise ValueError("y is needed: there is no array to be made on %s" % (found.device,))
    return empty(found.shape, found.dtype)
