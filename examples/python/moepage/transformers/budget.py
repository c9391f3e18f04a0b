"""How many expert slots a budget gives."""
from __future__ import annotations

import re
from typing import Union

from .. import errors, units

Budget = Union[str, int]


def slots(budget: Budget, experts: int, slot_bytes: int) -> int:
    """Slots for `experts` experts in all: a percentage of them, "25%", or what has room in so many
    bytes, "2GiB". Rounded down, at least one, at most all."""
    if isinstance(budget, str) and budget.strip().endswith("%"):
        count = int(_percent(budget) * experts / 100)
    else:
        count = units.size(budget, "the budget") // slot_bytes
    if count < 1:
        raise errors.BudgetError("the budget %r has no room for one expert: the least is %d bytes "
                                 "or %.3g%%" % (budget, slot_bytes, 100 / experts))
    return min(count, experts)


def _percent(budget: str) -> float:
    found = re.fullmatch(r"\s*(\d+(?:\.\d+)?)\s*%\s*", budget)
    percent = float(found[1]) if found else 0.0
    if not 0 < percent <= 100:
        raise ValueError("the budget is %r, and not a percentage above 0%% and up to 100%%"
                         % budget)
    return percent
