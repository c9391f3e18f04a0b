"""When a step of the session begins and ends: one forward of the decoder is one step.

The decoder is the module under which all banks lie (Qwen3MoeModel, ...). Its forward is wrapped, so
that whatever leaves it also ends or cancels the step; the first bank begins the step, since only
there the number of tokens is known for sure. A bank that is called on its own is a step of its own.
"""
from __future__ import annotations

import functools
import threading
from typing import Any, Callable, NamedTuple, Optional, Tuple

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


class Forward(NamedTuple):
    """One under way; no two are the same object."""
    thread: threading.Thread
    batch: Optional[Batch]


class Steps(NotCopied):
    """Opens and closes the steps of one session, for one thread at a time."""

    _forward: Optional[Forward] = None  # the one under way is the instance's

    def __init__(self, session: Session, max_tokens: int) -> None:
        self._session, self._max_tokens = session, max_tokens
        self._step: Optional[Step] = None
        self.forwards = 0  # that ended well

    def attach(self, decoder: nn.Module) -> Callable[[], None]:
        """Wraps the decoder's forward; gives what takes the wrapper off again."""
        inner, own = decoder.forward, vars(decoder).get("forward")

        @functools.wraps(inner)
        def forward(*args: Any, **kwargs: Any) -> Any:
            output = self._alone(_batch(args, kwargs), lambda: inner(*args, **kwargs))
            self.forwards += 1
            return output

        def detach() -> None:
            del decoder.forward
            if own is not None:
                decoder.forward = own
        decoder.forward = forward  # type: ignore[method-assign]
        return detach

    def layer(self, n_tokens: int, work: Callable[[Step], Any]) -> Any:
        """One bank's work, in the open step, which has as many tokens as a chunk."""
        now = self._forward
        if now is not None and now.thread is threading.current_thread():
            return work(self._step_for(n_tokens))
        return self._alone(None, lambda: work(self._step_for(n_tokens)))

    @property
    def batch(self) -> Optional[Batch]:
        """Of the forward under way."""
        now = self._forward
        return now.batch if now is not None else None

    @property
    def busy(self) -> bool:
        """Whether a forward is under way."""
        return self._forward is not None

    # ---- steps ---------------------------------------------------------------------------

    def _alone(self, batch: Optional[Batch], work: Callable[[], Any]) -> Any:
        """Does it for this thread alone; leaves no step open. An interrupt may come at every call:
        the first is inside `try`, and the last block has none."""
        mine = Forward(threading.current_thread(), batch)
        try:
            self._begin_forward(mine)
            output = work()
            self._end()
            return output
        except BaseException:
            if self._forward is mine:
                self._cancel()
            raise
        finally:
            if self._forward is mine:
                del self._forward

    def _begin_forward(self, mine: Forward) -> None:
        now = vars(self).setdefault("_forward", mine)  # an interrupt could leave a lock held
        if now is not mine:
            raise errors.ConcurrentUse(
                "the paged model is in a forward of thread %r: a model whose experts are paged is "
                "for one thread at a time" % now.thread.name)
        self._cancel()  # what an interrupted cancellation has left

    def _cancel(self) -> None:
        self._step, step = None, self._session._open  # also one that was never returned
        if step is not None:
            step.cancel()

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
    cache = kwargs.get("past_key_values")
    seen = int(cache.get_seq_length()) if hasattr(cache, "get_seq_length") else 0
    # one that is longer, as a static cache's may be, does not end with these tokens
    if not isinstance(mask, torch.Tensor) or mask.shape != (sequences, seen + length):
        return Batch(sequences, length, None)
    return Batch(sequences, length, mask[:, seen:] != 0)
