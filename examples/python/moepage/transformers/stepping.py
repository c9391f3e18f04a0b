"""When a step of the session begins and ends: one forward of the decoder is one step.

The decoder is the module under which all banks lie (Qwen3MoeModel, ...). Its forward is wrapped, so
that whatever leaves it also ends or cancels the step; the first bank begins the step, since only
there the number of tokens is known for sure. A bank that is called on its own is a step of its own.
"""
from __future__ import annotations

import contextlib
import functools
import threading
from typing import Any, Callable, Iterator, NamedTuple, Optional, Tuple

import torch
from torch import nn

from .. import errors
from ..session import Session
from ..step import Step
from .bank import NotCopied


class Batch(NamedTuple):
    """What a forward was called with."""
    sequences: int
    length: int  #: tokens per sequence, in this forward
    mask: Optional[torch.Tensor]  #: [sequences, length], True where a token is no padding


class Steps(NotCopied):
    """Opens and closes the steps of one session, for one thread at a time."""

    def __init__(self, session: Session, max_tokens: int) -> None:
        self._session, self._max_tokens = session, max_tokens
        self._lock = threading.Lock()
        self._owner: Optional[threading.Thread] = None
        self._step: Optional[Step] = None
        self.batch: Optional[Batch] = None
        self.forwards = 0  # that ended well

    def attach(self, decoder: nn.Module) -> Callable[[], None]:
        """Wraps the decoder's forward; gives what takes the wrapper off again."""
        inner, own = decoder.forward, vars(decoder).get("forward")

        @functools.wraps(inner)
        def forward(*args: Any, **kwargs: Any) -> Any:
            with self._owned(_batch(args, kwargs)):
                output = inner(*args, **kwargs)
            self.forwards += 1
            return output

        def detach() -> None:
            del decoder.forward
            if own is not None:
                decoder.forward = own
        decoder.forward = forward  # type: ignore[method-assign]
        return detach

    @contextlib.contextmanager
    def layer(self, n_tokens: int) -> Iterator[Step]:
        """Around one bank's work: the open step, of as many tokens as a chunk has."""
        inside = self._owner is threading.current_thread()
        with contextlib.nullcontext() if inside else self._owned(None):
            yield self._step_for(n_tokens)

    @property
    def busy(self) -> bool:
        """Whether a forward is under way."""
        return self._owner is not None

    # ---- steps ---------------------------------------------------------------------------

    @contextlib.contextmanager
    def _owned(self, batch: Optional[Batch]) -> Iterator[None]:
        """For this thread alone; leaves no step open."""
        with self._lock:
            if self._owner is not None:
                raise errors.ConcurrentUse(
                    "the paged model is in a forward of thread %r: a model whose experts are paged "
                    "is for one thread at a time" % self._owner.name)
            self._owner = threading.current_thread()
        self.batch = batch
        try:
            yield
            self._end()
        except BaseException:
            step, self._step = self._step, None
            if step is not None and step.open:
                step.cancel()
            raise
        finally:
            self.batch = self._owner = None

    def _step_for(self, n_tokens: int) -> Step:
        # Long forwards go in chunks of equal size, the last filled up: a step's size is fixed.
        chunks = -(-n_tokens // self._max_tokens)
        size = -(-n_tokens // chunks)
        if self._step is None or self._step.n_tokens != size:
            self._end()
            self._step = self._begin(n_tokens, size)
        return self._step

    def _begin(self, n_tokens: int, size: int) -> Step:
        batch = self.batch
        if batch is None or batch.sequences * batch.length != n_tokens:
            return self._session.step(size, phase="prefill" if n_tokens > 1 else "decode")
        phase = "prefill" if batch.length > 1 else "decode"
        if size != n_tokens:  # a chunk is not made of whole sequences
            return self._session.step(size, phase=phase)
        return self._session.step(sequences=[(None, batch.length)] * batch.sequences, phase=phase)

    def _end(self) -> None:
        if self._step is not None:
            self._step.end()
            self._step = None


def _batch(args: Tuple[Any, ...], kwargs: dict) -> Optional[Batch]:
    """The batch of a decoder's arguments; None where they do not tell."""
    tokens = kwargs.get("input_ids")
    if tokens is None:
        tokens = kwargs.get("inputs_embeds")
    if tokens is None and args:
        tokens = args[0]
    if not isinstance(tokens, torch.Tensor) or tokens.dim() < 2:
        return None
    sequences, length = tokens.shape[:2]
    mask = kwargs.get("attention_mask")
    if mask is None and len(args) > 1:
        mask = args[1]
    if (not isinstance(mask, torch.Tensor) or mask.dim() != 2 or mask.shape[0] != sequences
            or mask.shape[1] < length):
        return Batch(sequences, length, None)
    return Batch(sequences, length, mask[:, -length:] != 0)
