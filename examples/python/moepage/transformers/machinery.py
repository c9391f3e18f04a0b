"""The library's objects behind one paged model: device, model, pool and session."""
from __future__ import annotations

import contextlib
from typing import Any, Mapping, Optional

from ..engine import Engine
from ..enums import Role
from ..model import Model
from ..stats import stats_text
from . import budget as budgets
from .recognise import Layout
from .storage import Storage


class Machinery:
    """Opens them in order, sized for what they need and no more, and closes them in reverse."""

    def __init__(self, storage: Storage, layout: Layout, *, device: str, budget: Any,
                 max_tokens: int, math: str, prefetch: str, threads: int, policy: str,
                 **pool: Any) -> None:
        with contextlib.ExitStack() as undo:
            self.model = undo.enter_context(Model.from_banks(
                [{Role(part.role): fused for part, fused in zip(layout.parts, bank)}
                 for bank in storage.weights],
                top_k=layout.top_k, hidden=layout.hidden,
                expert_intermediate=layout.intermediate))
            info = self.model.info
            slots = budgets.slots(budget, info.moe_layers * info.experts, info.slot_bytes)
            engine = undo.enter_context(Engine(
                self.model, slots=slots, device=device, policy=policy, max_tokens=max_tokens,
                math=math, prefetch=prefetch, threads=threads, **pool))
            self.device, self.pool, self.session = engine.device, engine.experts, engine.session
            self._objects = undo.pop_all()

    def stats_text(self, labels: Optional[Mapping[str, str]]) -> str:
        """Every counter, for Prometheus."""
        return stats_text(device=self.device, experts=self.pool, labels=labels)

    def close(self) -> None:
        """Closes them; again is a no-op."""
        self._objects.close()

    def __enter__(self) -> "Machinery":
        return self

    def __exit__(self, *error: Any) -> None:
        self.close()
