"""Runs ahead what of a loop counts: its condition, and where every turn reads and writes parts of arrays.

    i < 5:  x[4 - i], y.at[4 - i].set(..), i + 1          ->       5 turns; x at 4 3 2 1 0, y at 4 3 2 1 0

A *counter* is a number that is known before the loop and follows, in every turn, from counters alone.  What else a
counter does than count, end the loop and say places, makes turns differ, and is no loop of the language: `Differs`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final

import numpy as np

from .ir import Block, Op, Result, dialect, elements, inside, text

Number = int | bool
Function = Callable[..., Number]

_FUNCTIONS: Final[Mapping[str, Function]] = {
    "stablehlo.add": lambda a, b: a + b,
    "stablehlo.subtract": lambda a, b: a - b,
    "stablehlo.multiply": lambda a, b: a * b,
    "stablehlo.negate": lambda a: -a,
    "stablehlo.minimum": min,
    "stablehlo.maximum": max,
    "stablehlo.and": lambda a, b: a & b,
    "stablehlo.or": lambda a, b: a | b,
    "stablehlo.select": lambda p, a, b: a if p else b,
    "stablehlo.clamp": lambda low, x, high: min(max(x, low), high),
    "stablehlo.convert": lambda a: int(a),
    "stablehlo.reshape": lambda a: a,
}
_COMPARISONS: Final[Mapping[str, Function]] = {
    "EQ": lambda a, b: a == b,
    "NE": lambda a, b: a != b,
    "LT": lambda a, b: a < b,
    "LE": lambda a, b: a <= b,
    "GT": lambda a, b: a > b,
    "GE": lambda a, b: a >= b,
}
_WHOLE: Final = frozenset({"i1", "i32", "i64"})
_LARGEST: Final = (1 << 31) - 1
"""Types of counters, and the greatest that is sure not to have wrapped around."""


class Differs(Exception):
    """Turns that do not all do the same; its text says what differs."""


@dataclass
class _Step:
    """A number made of others, by their slots."""

    function: Function
    inputs: tuple[int, ...]
    out: int


@dataclass
class _Plan:
    """Numbers that are worked out in every turn: `steps`; `constants`, by slot; `parts`: the slots of every part that
    is read or written, in the order in which a turn meets them, None where they count nothing.
    """

    slots: int = 0
    steps: list[_Step] = field(default_factory=list)
    constants: dict[int, Number] = field(default_factory=dict)
    parts: list[tuple[int, ...] | None] = field(default_factory=list)


@dataclass(frozen=True)
class Counted:
    """`turns`; `counters`: their arguments and values after the last turn; `places`: per part, in the order in which a
    turn meets them, where it stands in every turn along every dimension, or None.
    """

    turns: int
    counters: Mapping[int, Number]
    places: tuple[tuple[tuple[int, ...], ...] | None, ...]


def count_turns(
    op: Op, starts: Mapping[int, Number], outer: Mapping[Result, Number], functions: Mapping[str, Op], most: int
) -> Counted:
    """The turns of a while loop.  `starts`: arguments that are known numbers; `outer`: known numbers around it; `most`
    turns.  Raises `Differs`.
    """
    condition, body = (r.blocks[0] for r in op.regions)
    counters = {*starts}
    while True:
        plan, ends = _Plan(), _Plan()
        slots = {k: _new(plan) for k in sorted(counters)}
        returned = _walked(plan, body, {body.arguments[k]: s for k, s in slots.items()}, outer, functions, slots)
        lost = {k for k in counters if returned[k] is None}
        if not lost:
            break
        counters -= lost
    tests = {k: _new(ends) for k in sorted(counters)}
    going = _walked(ends, condition, {condition.arguments[k]: s for k, s in tests.items()}, outer, functions, tests)
    if going[0] is None:
        raise Differs("its number of iterations is no count")
    now = {k: starts[k] for k in counters}
    places: list[list[tuple[int, ...]]] = [[] for _ in plan.parts]
    turns = 0
    while bool(_values(ends, tests, now)[going[0]]):
        if (turns := turns + 1) > most:
            raise Differs(f"it turns more than {most} times")
        values = _values(plan, slots, now)
        for part, known in zip(plan.parts, places, strict=True):
            known.append(() if part is None else tuple(int(values[s]) for s in part))
        now = {k: values[s] for k in counters if (s := returned[k]) is not None}
    found = tuple(
        None if part is None else tuple(zip(*known, strict=True))
        for part, known in zip(plan.parts, places, strict=True)
    )
    return Counted(turns, now, found)


def _new(plan: _Plan) -> int:
    plan.slots += 1
    return plan.slots - 1


def _values(plan: _Plan, slots: Mapping[int, int], now: Mapping[int, Number]) -> list[Number]:
    values: list[Number] = [0] * plan.slots
    for slot, number in plan.constants.items():
        values[slot] = number
    for k, slot in slots.items():
        values[slot] = now[k]
    for step in plan.steps:
        values[step.out] = step.function(*[values[s] for s in step.inputs])
    if any(abs(v) > _LARGEST for v in values):
        raise Differs("a counter that leaves 32 bits")
    return values


def _walked(
    plan: _Plan,
    block: Block,
    known: dict[Result, int],
    outer: Mapping[Result, Number],
    functions: Mapping[str, Op],
    counters: Mapping[int, int],
) -> list[int | None]:
    """The slots of what a block returns; `known`: slots of numbers.  Slots of constants do not count: what they are
    given to is the same in every turn.
    """
    moving = {s for s in known.values() if s not in plan.constants}

    def slot(value: Result) -> int | None:
        if value not in known and value in outer:
            known[value] = _new(plan)
            plan.constants[known[value]] = outer[value]
        return known.get(value)

    for view in block.operations:
        op = view.operation
        slots = [slot(o) for o in op.operands]
        if op.name in ("func.return", "stablehlo.return"):
            return slots
        counts = any(s in moving for s in slots)
        if op.name in ("func.call", "call"):
            inner = functions[text(op, "callee")].regions[0].blocks[0]
            given = {a: s for a, s in zip(inner.arguments, slots, strict=True) if s is not None}
            for result, s in zip(op.results, _walked(plan, inner, given, {}, functions, counters), strict=True):
                if s is not None:
                    known[result] = s
                    moving |= set() if s in plan.constants else {s}
        elif op.name == "stablehlo.constant" and _number(op.results[0]):
            known[op.results[0]] = _new(plan)
            plan.constants[known[op.results[0]]] = int(elements(op, "value", "int64", ()).item())
        elif op.name in ("stablehlo.dynamic_slice", "stablehlo.dynamic_update_slice"):
            data = 1 if op.name == "stablehlo.dynamic_slice" else 2
            at = [s for s in slots[data:] if s is not None]
            if any(s in moving for s in slots[:data]):
                raise Differs("a part of a counter")
            plan.parts.append(tuple(at) if len(at) == len(slots) - data else None)
        elif _number(op.results[0]) and None not in slots and slots and (function := _function(op)) is not None:
            known[op.results[0]] = _new(plan)
            plan.steps.append(_Step(function, tuple(s for s in slots if s is not None), known[op.results[0]]))
            moving |= {known[op.results[0]]} if counts else set()
        elif counts:
            raise Differs(f"{op.name} of a counter")
        elif any(_reads(region_op, moving, known) for region_op in inside(op)):
            raise Differs(f"{op.name} around a counter")
    return []


def _reads(op: Op, moving: set[int], known: Mapping[Result, int]) -> bool:
    return any(known.get(o) in moving for o in op.operands if o in known)


def _number(value: Result) -> bool:
    """Whether it is one whole number."""
    return not tuple(getattr(value.type, "shape", (0,))) and str(value.type.element_type) in _WHOLE


def _function(op: Op) -> Function | None:
    if op.name == "stablehlo.compare":
        how = dialect().ComparisonDirectionAttr(op.attributes["comparison_direction"]).value
        return _COMPARISONS[str(how)]
    if op.name == "stablehlo.convert" and str(op.results[0].type.element_type) == "i1":
        return lambda a: a != 0
    return _FUNCTIONS.get(op.name)


def progression(places: Sequence[int]) -> int | None:
    """The step of numbers that go on by the same step, or None.

    >>> progression([4, 3, 2]), progression([0, 0]), progression([0, 1, 3])
    (-1, 0, None)
    """
    steps = {int(n) for n in np.diff(places)}
    return steps.pop() if len(steps) == 1 else None if steps else 0
