"""Loads a model and has it compared with the program that it came from."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

from ..program.graph import Graph
from .building.original import Comparer, Comparison, Original
from .load import Attention, load_model
from .loads import read_counts, with_counts


@dataclass
class _Taken:
    """Takes the original that a loader hands back."""

    original: Original | None = field(default=None)

    def __call__(self, original: Original) -> None:
        self.original = original


def load_compared(
    comparer: Comparer,
    spec: str,
    batch: int | None = None,
    tell: Callable[[str], None] | None = None,
    attention: Attention | None = None,
    expert_places: int | None = None,
    compare: bool = True,
    trained: bool = False,
    kept: bool = False,
) -> tuple[Graph, Comparison | None]:
    """`load_model`, and what came of the comparison; None for what is no program of a framework (zoo, JSON).
    `compare`: whether it is wanted; `trained`: whether gradients count; `kept`: the graph is written, so that a plan
    may train it.  Raises `Differs` too.
    """
    taken = _Taken()
    graph = load_model(spec, batch, tell, attention, expert_places, taken, trained or kept)
    if taken.original is None:
        return graph, None
    return graph, comparer.compare_import(graph, taken.original, compare, trained)


def note_comparison(
    comparer: Comparer,
    spec: str,
    batch: int | None,
    notes: list[str],
    attention: Attention | None,
    compare: bool,
    trained: bool = False,
    loads: Path | None = None,
) -> Graph:
    """The graph; its comparison is the last of the notes.  `loads`: a file of counts of experts."""
    graph, found = load_compared(comparer, spec, batch, notes.append, attention, None, compare, trained)
    if found is not None:
        notes.append(found.words)
    return graph if loads is None else with_counts(graph, read_counts(loads), str(loads))
