"""Counts of the points of every group (tokens of every expert) as data: `--expert-loads FILE.json`.

    [120, 80, 95, ..]                          a count per expert, the same in every layer
    [[120, 80, ..], [60, 140, ..]]             a list per layer with experts, in the order of the graph
    {"layer0.*": [120, ..], "*": [..]}         by names of operators; the first glob that fits counts

Counts are shares: only their ratios count, over as many steps as they were counted.  A layer is the grouped products
that read one tensor of ids.  What is counted takes the place of the assumption `even-groups`; the slowest block of
experts then decides the time of an operator.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Final

from ..files.input import regular
from ..files.json_text import JsonError, parse_json
from ..program.graph import Graph
from ..program.operators import EVEN, MOST_COUNTED, NodeKind, Operator, Value
from ..text import InputError

Counts = tuple[int, ...]

MAX_BYTES: Final = 1 << 24
"""Of a file of counts: thousands of layers with hundreds of experts."""


def read_counts(path: Path) -> object:
    """What a file of counts holds.  Raises `InputError` with the place."""
    try:
        with regular(path).open("rb") as file:
            data = file.read(MAX_BYTES + 1)
        if len(data) > MAX_BYTES:
            raise InputError(f"{path}: more than {MAX_BYTES} bytes, which no counts of experts are")
        return parse_json(data, floats=False)
    except JsonError as error:
        raise InputError(f"{path}: {error}") from None
    except OSError as error:
        raise InputError(f"{path}: {error.strerror}") from None


def with_counts(graph: Graph, found: object, place: str) -> Graph:
    """The graph with counts of its groups in place of even ones.  Raises `InputError` where they are not of this graph.

    >>> from .zoo import build
    >>> graph = with_counts(build("moe", layers=1, experts=4, capacity_percent=0), [3, 1, 1, 1], "counts.json")
    >>> {op.loads for op in graph.operators if op.loads}
    {(3, 1, 1, 1)}
    """
    grouped = [op for op in graph.operators if op.even]
    if not grouped:
        held = "all of a kind" if any(op.kind is NodeKind.GROUPED for op in graph.operators) else "none"
        raise InputError(
            f"{place}: {graph.name} has no grouped products whose loads are open ({held}): experts of a fixed capacity "
            "take as many tokens each; leave it out, or plan one that drops none (of the zoo: capacity_percent=0)"
        )
    layers = list(dict.fromkeys(op.inputs[-1].tensor for op in grouped))
    given = _by_operator(grouped, layers, found, place)
    operators = tuple(
        _counted(op, given[op.name], place) if op.even and op.name in given else op for op in graph.operators
    )
    return replace(graph, operators=operators).check()


def layers_of(found: object, place: str) -> list[tuple[str, Counts]]:
    """Every list of counts of a file with its name; one for all layers is one.  Raises `InputError`.

    >>> layers_of([[3, 1], [2, 2]], "counts.json")
    [('layer 0', (3, 1)), ('layer 1', (2, 2))]
    """
    if isinstance(found, dict) and found:
        return [(str(glob), _counts(one, f"{place}, {glob!r}")) for glob, one in found.items()]
    if not isinstance(found, list) or not found:
        raise InputError(f"{place}: is no list of counts, no list of such lists, and no object of them")
    if not isinstance(found[0], list):
        return [("every layer", _counts(found, place))]
    return [(f"layer {k}", _counts(one, f"{place}, layer {k}")) for k, one in enumerate(found)]


def _by_operator(grouped: list[Operator], layers: list[str], found: object, place: str) -> Mapping[str, Counts]:
    if isinstance(found, dict):
        by_glob = {str(glob): _counts(one, f"{place}, {glob!r}") for glob, one in found.items()}
        out, used = dict[str, Counts](), set[str]()
        for op in grouped:
            glob = next((g for g in by_glob if fnmatchcase(op.name, g)), None)
            if glob is not None:
                out[op.name] = by_glob[glob]
                used.add(glob)
        for glob in by_glob:
            if glob not in used:
                names = ", ".join(op.name for op in grouped[:3])
                raise InputError(f"{place}: {glob!r} fits no grouped product first; they are called {names}, ..")
        return out
    if not isinstance(found, list) or not found:
        raise InputError(f"{place}: is no list of counts, no list of such lists, and no object of them")
    if not isinstance(found[0], list):
        one = _counts(found, place)
        return {op.name: one for op in grouped}
    if len(found) != len(layers):
        raise InputError(f"{place}: {len(found)} lists of counts; {len(layers)} layers have experts")
    each = {name: _counts(one, f"{place}, layer {k}") for k, (name, one) in enumerate(zip(layers, found, strict=True))}
    return {op.name: each[op.inputs[-1].tensor] for op in grouped}


def _counts(found: object, place: str) -> Counts:
    numbers = found if isinstance(found, list) else []
    if not numbers or not all(type(n) is int and n >= 0 for n in numbers):
        raise InputError(f"{place}: is no list of whole numbers that are at least 0")
    total = sum(numbers)
    if not 0 < total <= MOST_COUNTED:
        raise InputError(f"{place}: {total} points in all; between 1 and {MOST_COUNTED} are read: divide the counts")
    return tuple(numbers)


def _counted(op: Operator, counts: Counts, place: str) -> Operator:
    experts = op.axis(op.rows).extent
    if len(counts) != experts:
        raise InputError(f"{place}: {len(counts)} counts for {op.name}, which has {experts} experts")
    value: Value = counts
    kept = {k: v for k, v in op.attributes if k != "load" or v != EVEN}
    return replace(op, attributes=tuple(sorted({**kept, "load": value}.items())))
