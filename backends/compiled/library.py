"""Computes chains of maps and reductions as compiled loops, and everything else with the kernels of this package."""

from __future__ import annotations

from typing import Final

from ..kernels.library import OURS
from .chains import ChainLibrary
from .recipes import run

NUMBA: Final = ChainLibrary(OURS.execute, OURS.functions, chain=run)
"""numba's loops, and our kernels for the rest."""
