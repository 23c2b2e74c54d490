"""Loads a model and has it compared with the program that it came from."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

from ..program.graph import Graph
from ..text import InputError
from .building.original import Comparer, Comparison, Original
from .load import Attention, load_model
from .loads import read_counts, with_counts
from .specified.known import operator_notes, read_operators


@dataclass
class _Taken:
    """Takes the original that a loader hands back."""

    original: Original | None = field(default=None)

    def __call__(self, original: Original) -> None:
        self.original = original


@dataclass(frozen=True, kw_only=True)
class Reading:
    """How a model is read.  `compare`: whether it is run beside its source; `trained`: whether gradients count;
    `kept`: the graph is written, so that a plan may train it; `operators`: files of operators of the user's own that it
    calls.
    """

    batch: int | None = None
    attention: Attention | None = None
    expert_places: int | None = None
    compare: bool = True
    trained: bool = False
    kept: bool = False
    operators: Sequence[Path] = ()


def load_compared(
    comparer: Comparer, spec: str, how: Reading, tell: Callable[[str], None] | None = None
) -> tuple[Graph, Comparison | None]:
    """`load_model`, and what came of the comparison; None for what is no program of a framework (zoo, JSON).  Raises
    `Differs` too, and `InputError` for maps that are too large to be compared.
    """
    taken, specified = _Taken(), read_operators(how.operators)
    graph = load_model(spec, how.batch, tell, how.attention, how.expert_places, taken, how.trained or how.kept)
    for note in operator_notes(specified, graph):
        if tell is not None:
            tell(note)
    if taken.original is None:
        return graph, None
    found = comparer.compare_import(graph, taken.original, how.compare, how.trained)
    if how.compare and taken.original.maps and not found.samples:
        raise InputError(
            f"{spec}: {found.left_out}; its maps are recorded from one iteration, and only the comparison shows that"
            " this is what all iterations do: compare it at smaller sizes, and give --no-compare here"
        )
    return graph, replace(found, schedule=taken.original.schedule)


def note_comparison(comparer: Comparer, spec: str, how: Reading, notes: list[str], loads: Path | None = None) -> Graph:
    """The graph; its comparison is the last of the notes.  `loads`: a file of counts of experts."""
    graph, found = load_compared(comparer, spec, how, notes.append)
    return with_notes(graph, found, notes, loads)


def with_notes(graph: Graph, found: Comparison | None, notes: list[str], loads: Path | None) -> Graph:
    """The graph with counts of experts from a file, if any; `notes` takes what came of the comparison."""
    if found is not None:
        notes.append(found.words)
    return graph if loads is None else with_counts(graph, read_counts(loads), str(loads))
