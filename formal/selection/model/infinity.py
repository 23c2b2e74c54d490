"""Names the integers that stand for plus and minus infinity as bounds."""

from __future__ import annotations

from typing import Final

from ....models.problem.selection_problem import FORBIDDEN

NOTHING: Final = -(1 << 62)
"""Stands for minus infinity as a bound."""
INFINITY: Final = FORBIDDEN
"""Stands for plus infinity as a bound: every finite cost is smaller."""
