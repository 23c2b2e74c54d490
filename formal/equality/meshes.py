"""Finds the mesh on which ranks do the same but for where they are, and says once what all of them do.

    classes     ranks whose programs are the same but for words: all, or those of one stage of a pipeline
    mesh        its sizes from the groups of collectives: ranks of a group that are s apart, n of them, end a dimension
                at s and at s n
    moves       numbers, places of parts: one for the rank at the origin, and how much greater it is for one step along
                each dimension; compared with every rank
    relations   found for the origin, its neighbour along each dimension and the last rank; what fits all is said

The checker believes none of it (`verify/equality/meshes.py`).
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from math import prod
from typing import Any, TypeVar

import numpy as np

from ...models.equality.pair import Given, Known, Mesh, Moves, Pair, Part, Relation, Runs
from ...models.equality.program import COLLECTIVES, RankProgram, Step, Word
from .numbers import Array
from .parts import Places
from .relations import Relations

K = TypeVar("K")
G = TypeVar("G", Part, Given)

TOGETHER = COLLECTIVES | {"barrier"}
MOVING = {"number": ("number",), "value": ("value",), "start": ("start", "stop")}
"""Words that may move, and those that move with them."""


@dataclass(frozen=True)
class Classes:
    """`ranks` of every class, in order; `sizes` of the mesh that each of them is."""

    ranks: tuple[tuple[int, ...], ...]
    sizes: tuple[int, ...]

    @property
    def strides(self) -> tuple[int, ...]:
        """How far neighbours along each dimension are apart among the ranks of a class."""
        return tuple(prod(self.sizes[j + 1 :]) for j in range(len(self.sizes)))

    @property
    def corners(self) -> list[int]:
        """Places in a class of the origin, of its neighbours, and of the last rank."""
        near = [s for s, n in zip(self.strides, self.sizes, strict=True) if n > 1]
        return list(dict.fromkeys([0, *near, prod(self.sizes) - 1]))

    def moves(self, values: Mapping[int, int]) -> tuple[int, ...] | None:
        """How much greater numbers, by the place of their rank in its class, are for one step along each dimension;
        None where they are not so.

        >>> Classes(((0, 1, 2, 3),), (2, 2)).moves({0: 5, 1: 5, 2: 8, 3: 8})
        (3, 0)
        """
        by = tuple(values[s] - values[0] if n > 1 else 0 for s, n in zip(self.strides, self.sizes, strict=True))
        coordinates = np.unravel_index(np.fromiter(values, np.int64, len(values)), self.sizes)
        there = values[0] + sum(m * c for m, c in zip(by, coordinates, strict=True))
        return by if np.array_equal(there, np.fromiter(values.values(), np.int64, len(values))) else None


def classes_of(programs: Sequence[RankProgram]) -> Classes | None:
    """Ranks that do the same, and the mesh that they are; None where they are no mesh."""
    alike = dict[object, list[int]]()
    for rank, p in enumerate(programs):
        steps = tuple((s.operator, s.reads, s.makes, tuple(name for name, _ in s.words)) for s in p.steps)
        alike.setdefault((steps, p.sources, p.outputs, p.tensors), []).append(rank)
    ranks = tuple(tuple(r) for r in alike.values())
    (many, *others) = {len(r) for r in ranks}
    if others or many < 2:
        return None
    edges = {1, many}
    for mine in ranks:
        at = {r: k for k, r in enumerate(mine)}
        for step in programs[mine[0]].steps:
            group = dict(step.words).get("ranks")
            if not isinstance(group, tuple) or len(group) < 2 or any(r not in at for r in group):
                continue
            apart = {at[b] - at[a] for a, b in pairwise(group)}
            if len(apart) == 1 and (stride := apart.pop()) > 0:
                edges |= {stride, stride * len(group)}
    ends = sorted(edges)
    if any(b % a for a, b in pairwise(ends)):
        return None
    return Classes(ranks, tuple(b // a for a, b in reversed(list(pairwise(ends)))))


@dataclass(frozen=True)
class Alone:
    """What is known of one rank: its program, what it is given and makes, its tensors in every run, its places."""

    program: RankProgram
    given: Mapping[int, Given]
    results: Sequence[tuple[str, Part]]
    runs: Sequence[Mapping[int, Array]]
    places: Places


def mesh_pair(seen: Mapping[int, Alone], classes: Classes, found: Relations, plain: Pair) -> Pair | None:
    """The pair of a mesh, of what is known of ranks: of all, or of the corners of the mesh; `plain`: without what ranks
    do.  None where they differ otherwise than by moves.
    """
    stated, mine, theirs, rows = (list[Any](), list[Any](), list[Any](), list[Any]())
    for ranks in classes.ranks:
        here = {k: seen[r] for k, r in enumerate(ranks) if r in seen}
        program = mesh_program({k: a.program for k, a in here.items()}, classes, ranks)
        sources = moving_parts({k: a.given for k, a in here.items()}, classes)
        outputs = moving_parts({k: dict(a.results) for k, a in here.items()}, classes)
        if program is None or sources is None or outputs is None:
            return None
        stated.append(program)
        mine.append(tuple(sorted(sources.items())))
        theirs.append(tuple(outputs.items()))
        corners = {k: here[k] for k in classes.corners}
        each = {k: found.of(ranks[k], a.program, a.given, a.runs, a.places) for k, a in corners.items()}
        rows.append(tuple(_relations(each, corners, classes, found)))
    return replace(
        plain,
        single=found.single_with_changed(),
        ranks=tuple(stated),
        given=tuple(mine),
        results=tuple(theirs),
        relations=tuple(rows),
        mesh=Mesh(classes.sizes, classes.ranks, tuple(sorted(seen))),
    )


def mesh_program(programs: Mapping[int, RankProgram], classes: Classes, ranks: Sequence[int]) -> RankProgram | None:
    """What all ranks of a class do, of programs by place; None where they differ otherwise than a mesh can say."""
    first, steps, groups = programs[0], list[Step](), dict[tuple[object, ...], tuple[int, ...] | None]()
    for k, step in enumerate(first.steps):
        said = {place: p.steps[k].words for place, p in programs.items()}
        if step.operator not in TOGETHER and all(w == step.words for w in said.values()):
            steps.append(step)
            continue
        words = _moving_words(step, {place: dict(w) for place, w in said.items()}, classes, ranks, groups)
        if words is None:
            return None
        steps.append(replace(step, words=tuple(words.items())))
    return replace(first, steps=tuple(steps))


def _moving_words(
    step: Step,
    said: Mapping[int, Mapping[str, Word]],
    classes: Classes,
    ranks: Sequence[int],
    groups: dict[tuple[object, ...], tuple[int, ...] | None],
) -> dict[str, Word] | None:
    """Words of a step of all ranks of a class; None where they differ otherwise than a mesh can say."""
    words, moved = dict[str, Word](), dict[str, tuple[int, ...]]()
    for name, word in said[0].items():
        values = {k: s[name] for k, s in said.items()}
        if name == "ranks":
            key = tuple(values.values())
            if key not in groups:
                groups[key] = _along(values, classes, ranks)
            along = groups[key]
            if along is None:
                return None
            words["along"] = along
        elif name == "source":
            at = {s["ranks"].index(s[name]) for s in said.values()}  # type: ignore[union-attr,arg-type]
            if len(at) > 1:
                return None
            words[name] = at.pop()
        elif name in ("to", "of"):
            there = [c for c, others in enumerate(classes.ranks) if all(others[k] == v for k, v in values.items())]
            if not there:
                return None
            words[name] = there[0]
        elif all(type(v) is type(word) and v == word for v in values.values()):
            words[name] = word
        else:
            numbers = {k: v for k, v in values.items() if type(v) is int}
            by = classes.moves(numbers) if len(numbers) == len(values) else None
            if by is None:
                return None
            moved[name] = by
            words[name] = word
    for name, others in MOVING.items():
        if name in moved:
            by = moved[name]
            if any(moved.pop(other, None) != by for other in others):
                return None
            words[f"{name}_moves"] = by
    return None if moved else words


def _along(values: Mapping[int, Word], classes: Classes, ranks: Sequence[int]) -> tuple[int, ...] | None:
    """The dimensions of the mesh along which groups lie, one of every place; None where they are not so."""
    at = {r: k for k, r in enumerate(ranks)}
    first = values[0]
    if not isinstance(first, tuple) or any(r not in at for r in first):
        return None
    coordinates = np.array(np.unravel_index([at[r] for r in first], classes.sizes))
    along = tuple(j for j in range(len(classes.sizes)) if len(set(coordinates[j])) > 1)
    table = np.asarray(ranks).reshape(classes.sizes)
    for k, group in values.items():
        here = np.unravel_index(k, classes.sizes)
        line = table[tuple(slice(None) if j in along else here[j] for j in range(len(classes.sizes)))]
        if group != tuple(line.reshape(-1).tolist()):
            return None
    return along


def moving_parts(rows: Mapping[int, Mapping[K, G]], classes: Classes) -> dict[K, G] | None:
    """What ranks are given, or make, by place, as parts that move; None where they do otherwise."""
    found = dict[K, G]()
    if any(set(r) != set(rows[0]) for r in rows.values()):
        return None
    for key, first in rows[0].items():
        each = {k: row[key] for k, row in rows.items()}
        if isinstance(first, Known):
            if any(g != first for g in each.values()):
                return None
            found[key] = first
            continue
        parts = {k: g for k, g in each.items() if isinstance(g, Part) and g.of == first.of}
        moves = _part_moves({k: p.runs for k, p in parts.items()}, classes) if len(parts) == len(each) else None
        if moves is None:
            return None
        found[key] = replace(first, moves=moves)
    return found


def _part_moves(runs: Mapping[int, tuple[Runs, ...]], classes: Classes) -> Moves | None:
    """How parts of ranks, by their places in the class, move; () where they do not."""
    found = list[tuple[int, ...]]()
    for dim, lines in enumerate(runs[0]):
        each = {k: r[dim] for k, r in runs.items()}
        if all(r == lines for r in each.values()):
            found.append((0,) * len(classes.sizes))
            continue
        if any(len(r) != 1 or r[0][2] != lines[0][2] for r in each.values()):
            return None
        by = classes.moves({k: r[0][1] for k, r in each.items()})
        if by is None or min(by) < 0:
            return None
        found.append(by)
    return tuple(found) if any(map(any, found)) else ()


def _relations(
    each: Mapping[int, Sequence[Relation]], corners: Mapping[int, Alone], classes: Classes, found: Relations
) -> Iterator[Relation]:
    """Relations that hold for the corners of a class, as ones that move; where another rank's is to another tensor, it
    is looked for in the first one's.
    """
    others = {k: {r.number: r for r in rows} for k, rows in each.items()}
    for first in each[0]:
        runs = dict[int, tuple[Runs, ...]]()
        for k, mine in others.items():
            other, alone = mine.get(first.number), corners[k]
            if other is not None and other.whole == first.whole:
                runs[k] = other.runs
                continue
            values = [v[first.number] for v in alone.runs]
            if (place := found.place(values, first.whole, alone.places)) is not None:
                runs[k] = place
        if len(runs) == len(others) and (moves := _part_moves(runs, classes)) is not None:
            yield replace(first, moves=moves)
