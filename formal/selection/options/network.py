"""The options of the phase `network`: the tree of small networks without resource rows."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final


@dataclass(frozen=True)
class NetworkOptions:
    """The tree of small networks without resource rows."""

    cells: int = 1 << 23
    """table entries, 0 and more: larger networks go to the factored search, whose tables are shared"""
    root_sweeps: int = 200
    """double sweeps, 1 and more: at the root, where everything below begins"""
    sweeps: int = 6
    """double sweeps, 1 and more: at a node below"""
    share: tuple[int, ...] = (500, 20)
    """one part in so many of the gap, 1 and more: sweeps end when one gains less, at the root and at a node below"""
    again: float = 0.5
    """share of the labels, 0 to 1: a node is swept again when fixing took at least so many"""
    rounds: int = 8
    """rounds, 1 and more: of sweeps and fixing at a node"""
    candidates: int = 6
    """vertices, 1 and more: tried before one is branched on; a record costs its checker more than a trial costs here"""
    singles: int = 64
    """labels, 1 and more: up to so many are branched on one by one, more as the cheapest and the rest: 4 make two to
    ten times as many records of radio links, pedigrees and auctions"""
    dive: int = 64
    """nodes, 1 and more: searched depth first before the open node of least bound is next"""
    first: int = 64
    """nodes, 0 and more: after so many without an end, the linear relaxation is asked for messages"""
    relaxed: int = 50_000
    """table entries, 0 and more: largest linear relaxation; it takes a second at 30,000"""
    shrink: float = 0.9
    """share of the labels, 0 to 1: what is left is presolved again when it is at most so much, or half of it where
    presolve has made more table entries than there were: of colourings it took two thirds of the time"""
    work: int = 1 << 16
    """entries of all joint tables, 0 and more: elimination of what presolve leaves is allowed up to it, and up
    to a 32nd of what sweeps have read so far; 2^22 and all of that made the check of auctions take three times as long
    """
    held: int = 1 << 31
    """bytes, 0 and more: of messages in the proof tree; a larger tree stays open"""
    records: int = 50_000
    """records, 1 and more: of the tree; a file holds 100,000"""
    check: float = 0.6
    """share of the time that the search has taken, 0 and more: for writing and checking what it found (0.3 to 0.6 were
    measured); the search ends in time for it
    """


NETWORK: Final = NetworkOptions()
"""As they are unless `solve` is told otherwise."""
