"""Reads strategies that users bring.

For a model: a JSON object, key -> placement

    key        operator name, or glob over operator names ('*', '?', '[..]'); 'tensor:NAME' or 'tensor:GLOB' for a
               tensor's copy
    placement  {axis: {level: degree}}: fully determined by what is listed, other axes have degree 1, the rest of each
               level
               replicates.  Axes of a copy are the dimensions "0", "1", ..   null: left to the solver
    level      name of a level of the machine, or its number as text, outermost "0"

A key that is exactly a name beats every glob; among globs the later one wins; an entry replaces, it does not merge.
Under a glob that matches several names, axes that some of them lack are ignored there if at least one has the axis.
Operators and copies without an entry are free: the solver completes them.

In a training step a glob that matches operators of the forward pass leaves gradients, recomputed values and the
optimizer's operators, which share their prefixes, to the solver: pinned by such a glob, an update without the axes it
names would be replicated, and ZeRO could not be found.  A glob that matches only derived ones means them: `grad:*`,
`*.next`.  Both are said (`Applied.derived`).

For a selection problem: a JSON list with one choice index per vertex; null leaves the vertex free.

>>> parse_strategy('{"fc*": {"b": {"gpus": 8}}, "relu1": null}').rules[0].split
(('b', (('gpus', 8),)),)
"""

from __future__ import annotations

import json
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from difflib import get_close_matches
from fnmatch import fnmatchcase
from math import prod
from typing import Final

from ...models.cost.selection import Planning
from ...models.files.json_text import JsonError, parse_json
from ...models.layout.classes import COPY, copy_key, operator_key
from ...models.layout.placement import Placement, SpaceError
from ...models.machine.machine import Machine
from ...models.problem.selection_problem import ProblemError, SelectionProblem
from ...models.sources.frameworks.settings import Settings
from ...models.sources.training.derived import derived_keys

MAX_FILE: Final = 1 << 24

Split = tuple[tuple[str, tuple[tuple[str, int], ...]], ...]
"""axis -> level -> degree, as nested pairs in the order written."""


class StrategyError(ValueError):
    """A strategy that cannot be read or does not fit.  `place` names file and key, `hint` the next step."""

    def __init__(self, place: str, message: str, hint: str = "") -> None:
        super().__init__(f"{place}: {message}" + (f" ({hint})" if hint else ""))
        self.place, self.message, self.hint = place, message, hint


@dataclass(frozen=True)
class Rule:
    """One entry; `split` None: left to the solver."""

    key: str
    split: Split | None


@dataclass(frozen=True)
class Strategy:
    """Entries in the order of the file.  `place` is used in messages; `settings`: what the entries were made of, where
    the file is a framework's configuration.
    """

    rules: tuple[Rule, ...]
    place: str = "strategy"
    settings: Settings | None = None

    def to_json(self) -> str:
        """Text that `parse_strategy` reads back."""
        return json.dumps(
            {r.key: None if r.split is None else {a: dict(d) for a, d in r.split} for r in self.rules}, indent=1
        )


@dataclass(frozen=True)
class ChoiceList:
    """One choice per vertex of a selection problem, None where it is free."""

    choices: tuple[int | None, ...]
    place: str = "strategy"


@dataclass(frozen=True)
class Derived:
    """What the glob `key` did with derived operators and copies: `pinned` where it names only such, `left` to the
    solver where it names others too.
    """

    key: str
    pinned: tuple[str, ...]
    left: tuple[str, ...]

    def words(self) -> str:
        """One sentence."""
        names = self.pinned or self.left
        shown = ", ".join(names[:4]) + (", .." if len(names) > 4 else "")
        if self.pinned:
            return f"{len(names)} gradient or optimizer operators pinned by {self.key!r}: {shown}"
        return (
            f"{len(names)} gradient or optimizer operators match {self.key!r} and are not pinned by it (name them, "
            f"such as 'grad:*' or '*.next'): {shown}"
        )


@dataclass(frozen=True)
class Applied:
    """`allowed`: choices per vertex that the strategy decides; `free`: names it leaves to the solver (copies as
    `tensor:NAME`); `ignored`: (name, axis) pairs of globs that do not apply there; `bare`: names that have no axis of
    their glob at all, which replicates them; `derived`: what globs did with gradients and the optimizer's operators."""

    allowed: dict[int, tuple[int, ...]]
    free: tuple[str, ...]
    ignored: tuple[tuple[str, str], ...]
    bare: tuple[str, ...] = ()
    derived: tuple[Derived, ...] = ()


def read_strategy(text: str, place: str = "strategy") -> Strategy | ChoiceList:
    """Object or list from JSON text.  Raises `StrategyError`."""
    try:
        data = parse_json(text)
    except JsonError as e:
        raise StrategyError(place, f"is not a JSON strategy: {str(e).splitlines()[0][:200]}") from None
    if isinstance(data, list):
        choices: list[int | None] = []
        for i, x in enumerate(data):
            if x is not None and type(x) is not int:
                raise StrategyError(
                    f"{place}, entry {i}", f"{x!r} is not a choice index", "write an integer, or null for a free vertex"
                )
            choices.append(x)
        return ChoiceList(tuple(choices), place)
    if not isinstance(data, dict):
        raise StrategyError(place, "must be an object (for a model) or a list (for a selection problem)")
    return Strategy(
        tuple(
            Rule(key, None if value is None else _split(value, f"{place}, key {key!r}")) for key, value in data.items()
        ),
        place,
    )


def parse_strategy(text: str, place: str = "strategy") -> Strategy:
    """A strategy for a model.  Raises `StrategyError`."""
    found = read_strategy(text, place)
    if isinstance(found, ChoiceList):
        raise StrategyError(
            place,
            "is a list of choices, which belongs to a selection problem",
            'write {"operator": {"axis": {"level": degree}}}',
        )
    return found


def parse_config(text: str, levels: tuple[str, ...]) -> Split:
    """One placement: JSON `{axis: {level: degree}}`, or the words that plans print, `b over nodes, h over 2 of gpus`.

    A whole level is written with degree 0 here; `placement` fills it in.  Raises `StrategyError`.

    >>> parse_config("b over nodes, h over 2 of gpus", ("nodes", "gpus"))
    (('b', (('nodes', 0),)), ('h', (('gpus', 2),)))
    """
    place, stripped = f"configuration {text[:200]!r}", text.strip()
    if stripped.startswith("{"):
        try:
            return _split(parse_json(stripped), place)
        except JsonError as e:
            raise StrategyError(place, f"is not JSON: {str(e).splitlines()[0]}") from None
    rows: dict[str, list[tuple[str, int]]] = {}
    for part in [] if stripped in ("one device", "replicated") else stripped.split(","):
        words = part.split()
        if len(words) == 3 and words[1] == "over":
            axis, level, degree = words[0], words[2], 0
        elif (
            len(words) == 5
            and words[1] == "over"
            and words[3] == "of"
            and words[2].isascii()
            and words[2].isdigit()
            and len(words[2]) < 10
            and int(words[2]) > 0
        ):
            axis, level, degree = words[0], words[4], int(words[2])
        else:
            raise StrategyError(
                place,
                f"{part.strip()!r} is not understood",
                f"write 'axis over {levels[-1]}', 'axis over 2 of {levels[-1]}', or JSON",
            )
        if axis != "replicated":
            rows.setdefault(axis, []).append((level, degree))
    return tuple((a, tuple(d)) for a, d in rows.items())


def matches(key: str, names: Collection[str], later: Collection[str]) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """The names that a key decides, and those that it matches and leaves alone; `later`: derived names.

    >>> matches("fc*", ["fc1", "fc1.weight.next", "relu"], {"fc1.weight.next"})
    (('fc1',), ('fc1.weight.next',))
    >>> matches("*.next", ["fc1", "fc1.weight.next"], {"fc1.weight.next"})
    (('fc1.weight.next',), ())
    """
    if key in names:
        return (key,), ()
    found = tuple(n for n in names if n.startswith(COPY) == key.startswith(COPY) and fnmatchcase(n, key))
    forward = tuple(n for n in found if n not in later)
    return (forward, tuple(n for n in found if n in later)) if forward else (found, ())


def apply(strategy: Strategy, planning: Planning) -> dict[int, tuple[int, ...]]:
    """Allowed choices per vertex that the strategy decides.  Raises as `resolve`."""
    return resolve(strategy, planning).allowed


def resolve(strategy: Strategy, planning: Planning) -> Applied:
    """`apply` with what it leaves free.  Raises `StrategyError` for keys, axes, levels and degrees that do not fit,
    `SpaceError` for a placement outside the space."""
    names = vertex_names(planning)
    later = derived_keys(planning.graph)
    chosen: dict[str, tuple[Rule, tuple[str, ...]]] = {}
    spared: list[tuple[str, tuple[str, ...]]] = []
    for rule in exact_keys(strategy, names):
        place = f"{strategy.place}, key {rule.key!r}"
        matched, alone = matches(rule.key, names, later)
        if not matched:
            raise StrategyError(
                place,
                "matches no operator"
                if not rule.key.startswith(COPY)
                else "matches no tensor with a layout of its own",
                f"closest: {', '.join(_closest(rule.key, list(names)))}",
            )
        if rule.split is not None:
            spared.append((rule.key, alone))
        if rule.split is not None:
            have = {a for n in matched for a in planning.decisions[names[n]].axes}
            for axis, _ in rule.split:
                if axis not in have:
                    listed = sorted(have)
                    raise StrategyError(place, f"no axis {axis!r}", f"axes: {', '.join(listed)}")
        for n in matched:
            if n == rule.key or n not in chosen or chosen[n][0].key != n:
                chosen[n] = (rule, matched)
    allowed: dict[int, tuple[int, ...]] = {}
    ignored: list[tuple[str, str]] = []
    bare: list[str] = []
    for n, v in names.items():
        if n not in chosen or chosen[n][0].split is None:
            continue
        split = chosen[n][0].split or ()
        axes = planning.decisions[v].axes
        ignored.extend((n, a) for a, _ in split if a not in axes)
        if split and not any(a in axes for a, _ in split):
            bare.append(n)
        here = placement(
            tuple((a, d) for a, d in split if a in axes), axes, planning.machine, f"{strategy.place}, {n!r}"
        )
        allowed[v] = (planning.decisions[v].choice(here),)
    free = tuple(n for n, v in names.items() if v not in allowed)
    said = [Derived(key, (), left) for key, alone in spared if (left := tuple(n for n in alone if n not in chosen))]
    for rule in strategy.rules:
        if pinned := tuple(
            n for n, (by, _) in chosen.items() if by is rule and by.split is not None and n in later and n != by.key
        ):
            said.append(Derived(rule.key, pinned, ()))
    return Applied(allowed, free, tuple(ignored), tuple(bare), tuple(said))


def choices_of(found: ChoiceList, problem: SelectionProblem) -> dict[int, tuple[int, ...]]:
    """Allowed choices of a list.  Raises `ProblemError` when it does not fit the problem."""
    if len(found.choices) != len(problem.vertices):
        raise ProblemError(found.place, f"has {len(found.choices)} choices for {len(problem.vertices)} vertices")
    for v, a in enumerate(found.choices):
        if a is not None and not 0 <= a < problem.domain_size(v):
            raise ProblemError(
                f"{found.place}, vertex {v} {problem.vertices[v].name!r}",
                f"choice {a} is not in 0..{problem.domain_size(v) - 1}",
            )
    return {v: (a,) for v, a in enumerate(found.choices) if a is not None}


def placement(split: Split, axes: tuple[str, ...], machine: Machine, place: str) -> Placement:
    """The placement with the listed degrees, other axes 1, the rest replicated.  Degree 0: all of the level that is
    left.

    Raises `StrategyError` for unknown axes and levels, and for degrees that do not divide the level.
    """
    matrix = [[1] * len(machine.levels) for _ in range(len(axes) + 1)]
    for axis, degrees in split:
        if axis not in axes:
            raise StrategyError(place, f"no axis {axis!r}", f"axes: {', '.join(axes)}")
        for name, degree in degrees:
            matrix[axes.index(axis)][_level(name, machine, place)] = degree
    for j, level in enumerate(machine.levels):
        used = prod(row[j] for row in matrix if row[j])
        if level.size % used:
            sizes = list(machine.hierarchy)
            sizes[j] = level.size // used * used or used
            left = machine.devices - prod(sizes)
            idle = f"leaves {left} devices idle" if left > 0 else "has enough"
            raise StrategyError(
                place,
                f"degrees over {level.name!r} multiply to {used}, which does not divide its size {level.size}",
                f"a machine that {idle}: --machine {machine.name}:{'x'.join(map(str, sizes))}",
            )
        rest = level.size // used
        if sum(row[j] == 0 for row in matrix) > 1:
            raise StrategyError(
                place, f"two axes take all of {level.name!r}", f"say how much each takes: 'axis over 2 of {level.name}'"
            )
        for row in matrix:
            if row[j] == 0:
                row[j], rest = rest, 1
        matrix[-1][j] = rest
    return Placement(axes, tuple(tuple(row) for row in matrix))


def exact_keys(strategy: Strategy, names: Collection[str]) -> list[Rule]:
    """The rules, with `operator:` before plain names of operators that begin like a tensor's and name nothing else."""
    return [
        replace(r, key=operator_key(r.key)) if r.key not in names and operator_key(r.key) in names else r
        for r in strategy.rules
    ]


def vertex_names(planning: Planning) -> dict[str, int]:
    """What a strategy file calls every vertex: operators first, then copies."""
    return {
        **{operator_key(n): v for n, v in planning.operators.items()},
        **{copy_key(n): v for n, v in planning.copies.items()},
    }


def strategy_of(planning: Planning, x: tuple[int, ...]) -> Strategy:
    """The strategy that decides every operator and copy as the solution `x` does."""
    names = vertex_names(planning)
    levels = [level.name for level in planning.machine.levels]
    rules = []
    for n, v in names.items():
        rules.append(Rule(n, split_of(planning.decisions[v].placement(x[v]), levels)))
    return Strategy(tuple(rules))


def split_of(chosen: Placement, levels: Sequence[str]) -> Split:
    """What a strategy file says of a placement.

    >>> split_of(Placement(("b", "h"), ((4, 1), (1, 8), (1, 1))), ("nodes", "gpus"))
    (('b', (('nodes', 4),)), ('h', (('gpus', 8),)))
    """
    rows = (
        (a, tuple((name, d) for name, d in zip(levels, row, strict=True) if d > 1))
        for a, row in zip(chosen.axes, chosen.matrix, strict=False)
    )
    return tuple((a, d) for a, d in rows if d)


def _level(text: str, machine: Machine, place: str) -> int:
    names = [level.name for level in machine.levels]
    if text in names:
        return names.index(text)
    if text.isascii() and text.isdigit() and len(text) < 4 and int(text) < len(names):
        return int(text)
    singular = text.lower().removesuffix("s")  # "node" means "nodes"
    near = [i for i, n in enumerate(names) if n.lower().removesuffix("s") == singular]
    if len(near) == 1:
        return near[0]
    raise StrategyError(
        place,
        f"machine {machine.name!r} has no level {text!r}",
        f"levels: {', '.join(f'{n} (or {i})' for i, n in enumerate(names))}",
    )


def _split(value: object, place: str) -> Split:
    shape = 'write {"axis": {"level": degree}}'
    if not isinstance(value, Mapping):
        raise StrategyError(place, f"{str(value)[:80]!r} is not a placement", shape)
    out = []
    for axis, degrees in value.items():
        if not isinstance(degrees, Mapping):
            raise StrategyError(place, f"axis {axis!r}: {str(degrees)[:80]!r} is not a table of degrees", shape)
        row = []
        for level, degree in degrees.items():
            if type(degree) is not int or not 1 <= degree <= 1 << 30:
                raise StrategyError(
                    place, f"axis {axis!r}, level {level!r}: {str(degree)[:80]!r} is not a degree of at least 1", shape
                )
            row.append((str(level), degree))
        out.append((str(axis), tuple(row)))
    return tuple(out)


def _closest(key: str, names: list[str]) -> list[str]:
    plain = key.translate(str.maketrans("", "", "*?[]"))
    return get_close_matches(plain, names, n=3, cutoff=0.0) or names[:3]


__all__ = [
    "Applied",
    "ChoiceList",
    "Derived",
    "Rule",
    "SpaceError",
    "Split",
    "Strategy",
    "StrategyError",
    "apply",
    "choices_of",
    "exact_keys",
    "matches",
    "parse_config",
    "parse_strategy",
    "placement",
    "read_strategy",
    "resolve",
    "split_of",
    "strategy_of",
    "vertex_names",
]
