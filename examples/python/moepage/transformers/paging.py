"""`page_experts`: takes a loaded model's expert banks out and puts paged ones in their place."""
from __future__ import annotations

import contextlib
from typing import Any, Dict, List, Mapping, Optional, Set, Union

import torch
from torch import nn

from .. import errors
from .._info import SessionStats
from ..step import Step
from .bank import NotCopied, PagedBank, guard
from .compute import LibraryCompute, TorchCompute
from .machinery import Machinery
from .recognise import Bank, Layout, find
from .stepping import Steps
from .storage import Storage


def page_experts(model: nn.Module, budget: Union[str, int] = "25%", device: Optional[str] = None,
                 *, policy: str = "lru", compute: str = "auto", prefetch: str = "off",
                 max_tokens: int = 1024, math: str = "fp32", threads: int = 0,
                 skip_padding: bool = False, **pool: Any) -> "PagedExperts":
    """Pages the routed experts of a loaded transformers model, in place.

    budget        what experts may take on the device: a percentage of them, "25%", or bytes,
                  "2GiB"; a forward's workspace comes on top (`PagedExperts.device_bytes`)
    device        "host", "cpu" or "cuda:N": where experts are paged to and computed; the rest of
                  the model is moved there. None = where the model's experts are
    policy        which expert to evict: "lru", "lfu", "lfu-aged", "sieve", "s3fifo", "lirs",
                  "cycle"
    compute       "library": its kernels, for SwiGLU experts; "torch": the bank's own arithmetic in
                  the slots; "auto": the library's where it can
    prefetch      "off", or "previous": the experts that a layer used in the last step
    max_tokens    of one step; longer forwards are paged in chunks of equal size
    math          of "library": "fp32", "bf16", "bf16_fast" or "int8"
    threads       of the library's kernels; 0 = one per CPU
    skip_padding  True: tokens that the attention mask hides get no experts, and with that other
                  (unread) values than without
    pool          what else moepage.ExpertPool and Session take: scan_percent, regime, ...

    Weights are read from the parameters' own memory, on the host; nothing is copied there. The
    model must be called without gradients and by one thread at a time. Errors: Unsupported for a
    model that is not recognised, BudgetError for a budget without room for an expert.
    """
    if not isinstance(model, nn.Module):
        raise TypeError("a model is needed, not %s" % type(model).__name__)
    paged = [name for name, each in model.named_modules() if isinstance(each, PagedBank)]
    if paged:
        raise errors.StateError("%s is paged already: restore() it first" % paged[0])
    if max_tokens < 1:
        raise ValueError("max_tokens is %d, and not 1 or more" % max_tokens)
    banks, layout = find(model)
    chosen = _choose_compute(compute, layout)
    return PagedExperts(model, banks, layout, chosen, skip_padding,
                        dict(budget=budget, device=_device_name(device, layout), policy=policy,
                             prefetch=prefetch, max_tokens=max_tokens, math=math, threads=threads,
                             **pool))


def _choose_compute(compute: str, layout: Layout) -> Any:
    if compute not in ("auto", "torch", "library"):
        raise ValueError('compute is %r, and not "auto", "torch" or "library"' % (compute,))
    if compute == "library" and not layout.swiglu:
        raise errors.Unsupported("the library computes SwiGLU experts without biases, which those "
                                 'of %s are not: compute="torch"' % layout.architecture)
    library = layout.swiglu and compute != "torch"
    return LibraryCompute() if library else TorchCompute(layout)


def _device_name(device: Optional[str], layout: Layout) -> str:
    name = str(layout.device if device is None else device)
    if name == "cuda":
        name = "cuda:0"
    return "host" if name == "cpu" else name


class PagedExperts(NotCopied):
    """What `page_experts` did to a model. A context manager: leaving it closes it.

    Keep it, or not: the model's banks do.
    """

    def __init__(self, model: nn.Module, banks: List[Bank], layout: Layout, compute: Any,
                 skip_padding: bool, config: Dict[str, Any]) -> None:
        self.model, self.architecture, self.compute = model, layout.architecture, compute.name
        self._banks, self._layout, self._compute = banks, layout, compute
        self._skip_padding = skip_padding
        self._storage = Storage(banks, layout)
        self._restored = False
        with contextlib.ExitStack() as undo:
            undo.callback(self._storage.give_back)
            self._machinery = undo.enter_context(Machinery(self._storage, layout, **config))
            name = config["device"]
            self.device = torch.device("cpu" if name == "host" else name)
            self._like = torch.empty(0, dtype=layout.dtype, device=self.device)
            self._steps = Steps(self._machinery.session, config["max_tokens"])
            self._installed = contextlib.ExitStack()
            with self._installed:
                self._install(self._installed)
                self._installed = self._installed.pop_all()
            undo.pop_all()

    # ---- what it does ----------------------------------------------------------------------

    @property
    def slots(self) -> int:
        """Experts that can be on the device at once."""
        return self._machinery.pool.info.slots

    @property
    def experts(self) -> int:
        """Routed experts of the model."""
        return len(self._banks) * self._layout.experts

    @property
    def device_bytes(self) -> int:
        """Bytes of the device's budget: slots and workspace."""
        return self._machinery.device.info.budget_bytes

    @property
    def forwards(self) -> int:
        """Of the model, that ended well."""
        return self._steps.forwards

    def stats(self) -> SessionStats:
        """Sums over all steps so far; a forward is a step."""
        return self._machinery.session.stats

    @property
    def hit_rate(self) -> float:
        """Part of the routed experts that were on the device when routed; 0 before any."""
        stats = self.stats()
        return stats.hits / stats.routed if stats.routed else 0.0

    def stats_text(self, labels: Optional[Mapping[str, str]] = None) -> str:
        """Every counter in the text format that Prometheus scrapes, `labels` in each sample."""
        return self._machinery.stats_text(labels)

    def restore(self) -> nn.Module:
        """Gives the model its own banks back, the same modules as before, and frees the device;
        the model. StateError when that has been done, ConcurrentUse inside a forward."""
        if self._restored:
            raise errors.StateError("the model has been restored already")
        if self._steps.busy:
            raise errors.ConcurrentUse("a forward of the model is under way")
        self._restored = True
        try:
            self._machinery.close()
        finally:
            self._installed.close()
            self._storage.give_back()
        return self.model

    def close(self) -> None:
        """Restores the model, if that has not been done."""
        if not self._restored:
            self.restore()

    @property
    def closed(self) -> bool:
        """Whether the model has been restored."""
        return self._restored

    def __enter__(self) -> "PagedExperts":
        return self

    def __exit__(self, *error: Any) -> None:
        self.close()

    def __repr__(self) -> str:
        if self._restored:
            return "<moepage.transformers.PagedExperts of %s, closed>" % self.architecture
        return "<moepage.transformers.PagedExperts of %s, %d of %d experts in slots, %s on %s>" % (
            self.architecture, self.slots, self.experts, self.compute, self.device)

    # ---- how --------------------------------------------------------------------------------

    def _install(self, undo: contextlib.ExitStack) -> None:
        """Puts the paged banks in; `undo` takes them out again."""
        model, moves = self.model, self._layout.device != self.device
        if moves:  # what is not an expert goes to where the experts are computed
            undo.callback(model.to, self._layout.device)
        for index, bank in enumerate(self._banks):
            undo.callback(setattr, bank.parent, bank.attribute, bank.module)
            setattr(bank.parent, bank.attribute,
                    PagedBank(index, bank.module, self._forward, self._like))
        if moves:
            model.to(self.device)
        undo.callback(self._steps.attach(_decoder(model, self._banks)))
        for module in _above(model, self._banks):
            undo.callback(guard(module, self._like))

    def _forward(self, layer: int, hidden_states: torch.Tensor, ids: torch.Tensor,
                 weights: torch.Tensor) -> torch.Tensor:
        self._check(layer, hidden_states, weights)
        rows = hidden_states.reshape(-1, self._layout.hidden)
        if not len(rows):
            return torch.empty_like(hidden_states)
        ids = self._host_ids(ids)

        def work(step: Step) -> List[torch.Tensor]:
            bank, n = self._banks[layer].module, step.n_tokens
            return [self._compute.run(step, layer, bank, *_filled(n, part))
                    for part in zip(rows.split(n), ids.split(n), weights.split(n))]
        parts = self._steps.layer(len(rows), work)
        out = parts[0] if len(parts) == 1 else torch.cat(parts)
        return out[: len(rows)].view_as(hidden_states)

    def _check(self, layer: int, hidden_states: torch.Tensor, weights: torch.Tensor) -> None:
        if self._restored:
            raise errors.Closed("the paged experts are closed: this module is no longer the "
                                "model's")
        if torch.is_grad_enabled() and (hidden_states.requires_grad or weights.requires_grad):
            raise errors.Unsupported("paged experts have no gradients: call the model under "
                                     "torch.no_grad() or torch.inference_mode()")
        if (hidden_states.dtype, hidden_states.device) != (self._like.dtype, self._like.device):
            raise errors.StateError("experts are paged as %s on %s, and were called with %s on %s"
                                    % (self._like.dtype, self._like.device, hidden_states.dtype,
                                       hidden_states.device))
        self._storage.check(layer)

    def _host_ids(self, ids: torch.Tensor) -> torch.Tensor:
        """Where the library can read them; without those of padding, if asked."""
        # a wrong id must be one still when it has 32 bits
        ids = ids.clamp(-2, self._layout.experts).to("cpu", torch.int32)
        batch = self._steps.batch
        if self._skip_padding and batch is not None and batch.mask is not None:
            hidden = ~batch.mask.reshape(-1, 1).cpu()
            if len(hidden) == len(ids):
                ids = ids.masked_fill(hidden, -1)
        return ids.contiguous()


def _filled(size: int, part: Any) -> Any:
    """Rows, ids and weights of a chunk, filled up to `size` with rows of no expert."""
    rows, ids, weights = part
    missing = size - len(rows)
    if not missing:
        return part
    pad = torch.nn.functional.pad
    return (pad(rows, (0, 0, 0, missing)), pad(ids, (0, 0, 0, missing), value=-1),
            pad(weights, (0, 0, 0, missing)))


def _above(model: nn.Module, banks: List[Bank]) -> Set[nn.Module]:
    """All modules in which a bank is, at whatever depth."""
    paths = [bank.name.split(".") for bank in banks]
    return {model.get_submodule(".".join(path[:depth])) for path in paths
            for depth in range(len(path))}


def _decoder(model: nn.Module, banks: List[Bank]) -> nn.Module:
    """The innermost module with a forward of its own under which all banks lie."""
    paths = [bank.name.split(".")[:-1] for bank in banks]
    shared: List[str] = []
    for steps in zip(*paths):
        if len(set(steps)) > 1:
            break
        shared.append(steps[0])
    while shared and isinstance(model.get_submodule(".".join(shared)),
                                (nn.ModuleList, nn.ModuleDict)):
        shared.pop()
    return model.get_submodule(".".join(shared))
