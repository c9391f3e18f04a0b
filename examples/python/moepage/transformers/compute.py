"""One layer's experts for one chunk of tokens: by the library, or by torch in the plan's slots.

Either way a token's result has the same bits whatever is resident, and in however many groups the
experts come: every expert sees all its rows at once, and a token's sum is taken over all its
experts in one order, after the last group.
"""
from __future__ import annotations

from typing import Any, Dict

import torch
from torch import nn
from torch.nn import functional

from ..step import Step
from .recognise import Layout


class LibraryCompute:
    """moepage_session_ffn: SwiGLU experts, loads and kernels overlapped; sums in FP32, in the
    router's order."""

    name = "library"

    def run(self, step: Step, layer: int, bank: nn.Module, x: torch.Tensor, ids: torch.Tensor,
            weights: torch.Tensor) -> torch.Tensor:
        """x [n, H], ids (on the host) and weights [n, k]: the sum of each row's experts, [n, H]."""
        x = x.contiguous()
        return step.run(layer, ids, _on_host(weights), x, torch.empty_like(x), stream=_stream(x))


class TorchCompute:
    """The bank's own arithmetic: what its module does with its fused parameters is done with the
    slots, expert by expert."""

    name = "torch"

    def __init__(self, layout: Layout) -> None:
        self._transposed = layout.transposed

    def run(self, step: Step, layer: int, bank: nn.Module, x: torch.Tensor, ids: torch.Tensor,
            weights: torch.Tensor) -> torch.Tensor:
        """x [n, H], ids (on the host) and weights [n, k]: the sum of each row's experts, [n, H]."""
        eager = bank.config._experts_implementation == "eager"
        n, k = ids.shape
        results = x.new_zeros(n * k, x.shape[1], dtype=torch.promote_types(x.dtype, weights.dtype))
        flat = weights.reshape(-1, 1)
        for plan in step.groups(layer, ids, _on_host(weights), stream=_stream(x)):
            for expert in plan.experts:
                rows = expert.rows.torch().long()
                if eager:  # takes an expert's rows by choice, then token
                    rows = rows[torch.argsort(rows % k * n + rows // k)]
                rows = rows.to(x.device)
                part = self._expert(expert, bank, x[rows // k]) * flat[rows]
                results[rows] = part.to(results.dtype)  # autocast may have made it another
        return _sum(results.view(n, k, -1), ids, eager, x.dtype)

    def _expert(self, expert: Any, bank: nn.Module, x: torch.Tensor) -> torch.Tensor:
        parts = {role: tensor.torch() for role, tensor in expert.tensors.items()}
        try:
            return self._linear(bank._apply_gate(self._linear(x, parts, "gate_up")), parts, "down")
        finally:
            parts.clear()  # a traceback that shows slots would keep the device from closing

    def _linear(self, x: torch.Tensor, parts: Dict[str, torch.Tensor], role: str) -> torch.Tensor:
        out = x @ parts[role] if self._transposed else functional.linear(x, parts[role])
        return out + parts[role + "_bias"] if role + "_bias" in parts else out


def _on_host(weights: torch.Tensor) -> torch.Tensor:
    return weights.to("cpu", torch.float32).contiguous()


def _stream(x: torch.Tensor) -> Any:
    """The stream that the caller works on; the host has none."""
    return torch.cuda.current_stream(x.device) if x.is_cuda else None


def _sum(results: torch.Tensor, ids: torch.Tensor, eager: bool,
         dtype: torch.dtype) -> torch.Tensor:
    """Over a token's experts [n, k, H], as the implementation that the model is configured for
    takes it: in the router's order, rounded once; "eager" by ascending expert, rounded to the
    model's dtype each time."""
    if not eager:
        return results.sum(dim=1).to(dtype)
    order = torch.argsort(ids, dim=1, stable=True).to(results.device)
    results = results.to(dtype).gather(1, order[..., None].expand_as(results))
    total = torch.zeros_like(results[:, 0])
    for choice in range(results.shape[1]):
        total += results[:, choice]
    return total
