"""Overlap: reshardings run beside instructions that do not depend on them.

    Move(source, target, n)   becomes   Start(source, n)  ..  Finish(target, n)

1. `Start` goes up to just behind the instruction that makes its source, `Finish` down to just before the first
   instruction that reads or forgets its target.
2. Where nothing is computed between the two, later instructions that depend on nothing they would pass are drawn in
   between.

Each step passes at most `FLIGHTS` computations, so that a rank does not hold many blocks more than `models.cost.memory`
counts.  A Move that gains nothing stays a Move.  All ranks get the same list, so every rank starts the same collectives
in the same order and waits for them in the same order, whatever passes what.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Final, assert_never

from .program import Compute, Finish, Free, Fused, Instruction, Load, Move, Program, Start

FLIGHTS: Final = 4
"""Computations that one end of a resharding may pass."""

_WINDOW: Final = 64
"""Instructions behind a Finish among which independent ones are sought."""

_Item = tuple[int, Instruction]
"""Number of the instruction in the given program, and what stands there now."""


def overlap(program: Program) -> Program:
    """The same program with reshardings started early and finished late.

    >>> from ...models.sources.building.builder import Builder
    >>> from ...models.communication.choices import Choices
    >>> from ...models.layout.placement import Placement
    >>> from .program import lower
    >>> g = Builder("g")
    >>> s, t = (g.reduce(n, "i -> ", g.input("x" + n, (8,))) for n in "st")
    >>> cut, none = Placement(("i",), ((2,), (1,))), Placement((), ((2,),))
    >>> one = lower(g.build(s, t), (2,), Choices((("s", cut), ("t", cut)), (("s", none), ("t", none))))
    >>> [type(i).__name__ for i in overlap(one).ranks[0]]
    ['Load', 'Compute', 'Start', 'Free', 'Free', 'Load', 'Compute', 'Move', 'Free', 'Free', 'Finish']
    """
    order: list[_Item] = []
    for at, step in enumerate(program.ranks[0]):
        if isinstance(step, Move) and program.movements[step.movement].plan.steps:
            order += [(at, Start(step.source, step.movement)), (at, Finish(step.target, step.movement))]
        else:
            order.append((at, step))
    for item in [i for i in order if isinstance(i[1], Start)]:
        here = order.index(item)
        order.insert(_highest(order, here, item[1].source), order.pop(here))  # type: ignore[union-attr]
    for item in reversed([i for i in order if isinstance(i[1], Finish)]):
        here = order.index(item)
        down = _lowest(order, here, item[1].target)  # type: ignore[union-attr]
        order.insert(down - 1, order.pop(here))
    for item in [i for i in order if isinstance(i[1], Finish)]:
        here = order.index(item)
        start = next(k for k in range(here) if order[k][0] == item[0])
        if not any(_computes(step) for _, step in order[start:here]):
            _draw(order, here)
    return _written(program, order)


def _computes(step: Instruction) -> bool:
    return isinstance(step, (Compute, Fused))


def _written(program: Program, order: list[_Item]) -> Program:
    """The program in this order; ends of a resharding with no computation between them are one Move again,
    where it starts.
    """
    begun = {at: k for k, (at, step) in enumerate(order) if isinstance(step, Start)}
    ended = {at: k for k, (at, step) in enumerate(order) if isinstance(step, Finish)}
    whole = {at for at, k in begun.items() if not any(_computes(step) for _, step in order[k : ended[at]])}
    kept = [(at, step) for at, step in order if not (at in whole and isinstance(step, Finish))]
    return replace(
        program,
        ranks=tuple(
            tuple(step if isinstance(step, (Start, Finish)) and at not in whole else rank[at] for at, step in kept)
            for rank in program.ranks
        ),
    )


def _draw(order: list[_Item], here: int) -> None:
    """Draw instructions from behind `here` to before it, if one of them computes: those independent of everything
    they pass.
    """
    passed_reads, passed_writes = set(reads(order[here][1])), set(writes(order[here][1]))
    drawn: list[int] = []
    computed = 0
    for k in range(here + 1, min(len(order), here + 1 + _WINDOW)):
        step = order[k][1]
        needs, makes = reads(step), writes(step) | ({step.slot} if isinstance(step, Free) else set())
        if isinstance(step, Finish) or needs & passed_writes or makes & (passed_reads | passed_writes):
            passed_reads |= needs
            passed_writes |= makes
            continue
        drawn.append(k)
        computed += _computes(step)
        if computed == FLIGHTS:
            break
    if computed:
        moved = [order[k] for k in drawn]
        for k in reversed(drawn):
            del order[k]
        order[here:here] = moved


def _highest(order: list[_Item], here: int, source: str) -> int:
    """Position that the start can have."""
    passed, at = 0, here
    while at > 0 and source not in writes(order[at - 1][1]):
        passed += isinstance(order[at - 1][1], (Compute, Fused))
        if passed > FLIGHTS:
            break
        at -= 1
    return at


def _lowest(order: list[_Item], here: int, target: str) -> int:
    """Position before which the finish must stand."""
    passed, at = 0, here + 1
    while at < len(order) and target not in reads(order[at][1]):
        passed += isinstance(order[at][1], (Compute, Fused))
        if passed > FLIGHTS:
            break
        at += 1
    return at


def writes(step: Instruction) -> set[str]:
    """Slots that an instruction fills."""
    match step:
        case Load(slot=slot) | Compute(slot=slot):
            return {slot}
        case Move(target=target) | Finish(target=target):
            return {target}
        case Fused(results=results):
            return {slot for slot, _ in results}
        case Free() | Start():
            return set()
        case _:
            assert_never(step)


def reads(step: Instruction) -> set[str]:
    """Slots that an instruction needs; forgetting one counts."""
    match step:
        case Compute(operands=operands):
            return {slot for slot, _ in operands}
        case Fused(members=members):
            return {slot for m in members for slot, _ in m.operands}
        case Move(source=source) | Start(source=source):
            return {source}
        case Free(slot=slot):
            return {slot}
        case Load() | Finish():
            return set()
        case _:
            assert_never(step)
