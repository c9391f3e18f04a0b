"""The library's objects behind one paged model: device, model, pool and session."""
from __future__ import annotations

import contextlib
from typing import Any, Mapping, Optional

from ..device import Device
from ..enums import Role
from ..experts import ExpertPool
from ..model import Model
from ..session import Session
from ..stats import stats_text
from . import budget as budgets
from .recognise import Layout
from .storage import Storage

_PAGE = 4096  # arenas are whole pages


class Machinery:
    """Opens them in order, sized for what they need and no more, and closes them in reverse."""

    def __init__(self, storage: Storage, layout: Layout, *, device: str, budget: Any,
                 max_tokens: int, math: str, prefetch: str, threads: int, policy: str,
                 **pool: Any) -> None:
        session = dict(max_tokens=max_tokens, math=math, prefetch=prefetch)
        with contextlib.ExitStack() as undo:
            self.model = undo.enter_context(Model.from_banks(
                [{Role(part.role): fused for part, fused in zip(layout.parts, bank)}
                 for bank in storage.weights],
                top_k=layout.top_k, hidden=layout.hidden,
                expert_intermediate=layout.intermediate))
            info = self.model.info
            slots = budgets.slots(budget, info.moe_layers * info.experts, info.slot_bytes)
            pool = dict(policy=policy, slots=slots, **pool)
            staging, arena = ExpertPool.sizes(self.model, **pool)
            workspace = staging + Session.workspace(self.model, **session)
            workspace = max(workspace, _PAGE)  # none at all would mean the default
            self.device = undo.enter_context(Device(
                device, budget=-(-arena // _PAGE) * _PAGE + workspace, workspace=workspace,
                threads=threads))
            self.pool = undo.enter_context(ExpertPool(self.device, self.model, **pool))
            self.session = undo.enter_context(Session(self.pool, **session))
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
