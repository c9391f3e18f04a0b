"""The module that takes a bank's place: the same call, with paged experts behind it.

It holds no parameters. `state_dict` gives the original's, so that what is saved is complete;
whatever would change the weights, or copy the module without its pages, is refused.
"""
from __future__ import annotations

from typing import Any, Callable

import torch
from torch import nn

from .. import errors

_ADVICE = "restore() the model first"


class NotCopied:
    """Has pages on a device, which no copy would have."""

    def __deepcopy__(self, memo: Any) -> Any:
        raise errors.Unsupported("a model whose experts are paged cannot be copied: " + _ADVICE)

    def __reduce_ex__(self, protocol: Any) -> Any:
        raise errors.Unsupported("a model whose experts are paged cannot be copied or pickled: %s, "
                                 "or save its state_dict()" % _ADVICE)


class PagedBank(NotCopied, nn.Module):
    """Routed experts of one layer, paged."""

    def __init__(self, index: int, original: nn.Module, run: Callable[..., torch.Tensor],
                 like: torch.Tensor) -> None:
        super().__init__()
        self.index = index
        self.num_experts = original.num_experts
        self.training = original.training
        # not submodules: their parameters are not this module's
        self.__dict__.update(original=original, _run=run, _like=like)

    @torch.compiler.disable
    def forward(self, hidden_states: torch.Tensor, top_k_index: torch.Tensor,
                top_k_weights: torch.Tensor) -> torch.Tensor:
        return self._run(self.index, hidden_states, top_k_index, top_k_weights)

    def extra_repr(self) -> str:
        return "layer=%d, experts=%d" % (self.index, self.num_experts)

    def _apply(self, fn: Callable[..., Any], recurse: bool = True) -> "PagedBank":
        refuse_change(fn, self._like)
        return self

    def _save_to_state_dict(self, destination: Any, prefix: str, keep_vars: bool) -> None:
        self.original._save_to_state_dict(destination, prefix, keep_vars)

    def _load_from_state_dict(self, *args: Any) -> None:
        refuse_loading()


def refuse_change(fn: Callable[..., Any], before: torch.Tensor) -> None:
    """Raises if `fn`, of nn.Module._apply, would change the dtype or device of such a tensor."""
    after = fn(before)
    if (after.dtype, after.device) != (before.dtype, before.device):
        raise errors.StateError(
            "the model's experts are paged as %s on %s and cannot become %s on %s: %s"
            % (before.dtype, before.device, after.dtype, after.device, _ADVICE))


def refuse_loading(*args: Any) -> None:
    """A load_state_dict pre-hook, and what banks do about it."""
    raise errors.StateError("the model's experts are paged: copies of the old weights are on the "
                            "device, and new ones cannot be loaded: " + _ADVICE)


def guard(module: nn.Module, like: torch.Tensor) -> Callable[[], None]:
    """Refuses to convert or load a module above a paged bank before any part of it has been; gives
    what ends that."""
    apply = module._apply

    def guarded(fn: Callable[..., Any], *args: Any, **kwargs: Any) -> nn.Module:
        refuse_change(fn, like)
        return apply(fn, *args, **kwargs)

    def undo() -> None:
        hook.remove()
        del module._apply
    hook = module.register_load_state_dict_pre_hook(refuse_loading)
    module._apply = guarded  # type: ignore[method-assign]
    return undo
