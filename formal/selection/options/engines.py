"""The options of the phase `engines`: what other engines are asked, and for how long."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final


@dataclass(frozen=True)
class EngineOptions:
    """What other engines are asked, and for how long."""

    ilp_parts: int = 1_500_000
    """variables: of an integer program that is asked about at most: each takes 2 to 8 kB there (measured)"""
    smt_parts: int = 500_000
    """soft constraints: the same of a pseudo-Boolean program"""
    cp_sat_parts: int = 500_000
    """Booleans: the same of a constraint program"""
    whole_parts: int = 20_000
    """parts: up to which the whole problem is asked about at once (measured, transformer-p16: HiGHS had no solution to
    its 1.5 million parts after 60 s, and the cheapest among 4,214 columns after 0.7 s)
    """
    cells: int = 40_000_000
    """table entries: that are looked at for columns (8 bytes each)"""
    first_cutoff: int = 100_000
    """one part in so many of the bound: the first cutoff, where not everything fits: messages that have converged are
    nearer than that
    """
    wider: int = 16
    """factor: of the cutoff after an answer that there is no solution among the columns"""
    messages_share: float = 0.25
    """share of the time limit: for the messages"""
    asked_share: float = 0.6
    """share of the time left: for the engine; the rest is for the proof"""
    smt_share: float = 0.2
    """share of the time left: the same for z3 alone, whose search for the answer ends within seconds or not at all
    (PaSE's larger tables, problems with rows), and whose proof finds solutions too
    """
    rows_at_once: int = 25
    """resource rows: added after a solution that breaks more"""
    turns: int = 5
    """linear programs: of a node of an engine's own proof at most; each gives about seven more digits"""
    cap: int = 64
    """times what is missing to the cheapest known: larger costs count as that much where duals are refined, so that
    digits go to small ones
    """
    alone_again: float = 0.5
    """part: of the choices of a node; where that much or less is left, it is solved again and not split"""


ENGINES: Final = EngineOptions()
"""As they are unless `solve` is told otherwise."""
