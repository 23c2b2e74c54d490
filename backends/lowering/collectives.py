"""Which collectives a program uses, movement by movement, and why.

    nothing                          every rank holds what it needs
    reduction, nothing scattered     one all-reduce if the sum stays inside one block of levels; else reduce-scatter
                                     inwards out, all-gather back
    reduction, scattered             reduce-scatter per block, all-gather per block with replicated digits
                                     (blocks: one level each, or those of the program that the machine lets it choose)
    exchange                         per group of linked ranks: `transport.patterns`
    statistics of an operator        all-reduces, one per statistic; the last two of a centred norm's gradient in one
                                     where the ranks can cut them evenly

`calls` counts what one rank calls; groups of the same step work side by side.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace

from ...models.communication.resharding import CommunicationPlan, Reduction, Step
from ...models.communication.transfers import Exchange
from ..transport.patterns import patterns
from ..transport.received import is_even
from .program import Compute, Fused, Program


@dataclass(frozen=True)
class Use:
    """`kind` of collective of one step, carried out `calls` times by a rank that takes part, in `groups` groups of
    up to `members` ranks.
    """

    place: str
    kind: str
    calls: int
    groups: int
    members: int
    reason: str


def of_plan(place: str, plan: CommunicationPlan) -> Iterator[Use]:
    """The collectives of one resharding; none where nothing moves."""
    for step in plan.steps:
        match step:
            case Reduction():
                yield from _of_reduction(place, step, plan.source.hierarchy)
            case Exchange():
                found: dict[tuple[str, str], list[int]] = {}
                for p in patterns(step):
                    found.setdefault((p.kind.value, p.reason), []).append(len(p.group))
                for (kind, reason), sizes in found.items():
                    yield Use(place, kind, 1, len(sizes), max(sizes), reason)


def _of_reduction(place: str, step: Reduction, hierarchy: tuple[int, ...]) -> Iterator[Use]:
    groups = step.groups(hierarchy)
    size = (len(groups), len(groups[0]))
    blocks = step.blocks(len(hierarchy))
    if len(blocks) == 1 and not any(step.scattered):
        yield Use(place, "all-reduce", 1, *size, "every member wants the whole sum")
        return
    back = [block for block in blocks if not all(step.scattered[k] for k in block)]
    reason = (
        "every member wants its own part of the sum"
        if not back
        else "the sum crosses levels: each member sums a part, parts are collected again"
    )
    yield Use(place, "reduce-scatter", len(blocks), *size, reason)
    if back:
        yield Use(place, "all-gather", len(back), *size, reason)


def uses(program: Program) -> tuple[Use, ...]:
    """Every collective of the program, in execution order."""
    out: list[Use] = []
    for instruction in program.ranks[0]:
        out.extend(_of_instruction(program, instruction))
    return tuple(out)


def _of_instruction(program: Program, instruction: object) -> Iterator[Use]:
    from .program import Finish, Move

    match instruction:
        case Move(movement=n) | Finish(movement=n):
            yield from of_plan(program.place(instruction), program.movements[n].plan)
        case Compute(statistics=steps) if steps:
            pair = program.graph.operators[instruction.operator].function == "layer_norm_gradient"
            even = all(is_even(steps[-1], group) for group in steps[-1].groups(program.hierarchy))
            for step in steps[:-1] if pair and even else steps:  # its last two are one message
                yield from _of_reduction(f"statistics of {program.place(instruction)}", step, program.hierarchy)
        case Fused(members=members):
            for member in members:
                yield from _of_instruction(program, member)


def partitions(program: Program) -> tuple[tuple[tuple[int, ...], ...], ...]:
    """The sets of disjoint groups that the program's collectives go over, the first used first: what communicators are
    split into before the first step.
    """
    steps: list[Step] = [step for m in program.movements for step in m.plan.steps]
    for instruction in program.ranks[0]:
        for member in instruction.members if isinstance(instruction, Fused) else (instruction,):
            steps += member.statistics if isinstance(member, Compute) else ()
    return tuple(dict.fromkeys(p for step in steps for p in step_partitions(step, program.hierarchy)))


def step_partitions(step: Step, hierarchy: tuple[int, ...]) -> Iterator[tuple[tuple[int, ...], ...]]:
    """Of one step: of a reduction the groups of every block of its program, there and back.

    >>> from ...models.communication.resharding import Reduction
    >>> from ...models.layout.layout import OpenDigit
    >>> from ...models.program.index import Combine
    >>> both = OpenDigit(0, 1, 2), OpenDigit(1, 1, 2)
    >>> list(step_partitions(Reduction(Combine.SUM, both, (False, False), (), 4), (2, 2)))
    [((0, 2), (1, 3)), ((0, 1), (2, 3))]
    """
    match step:
        case Reduction():
            for block in step.blocks(len(hierarchy)):
                for part in dict.fromkeys((block, tuple(k for k in block if not step.scattered[k]))):
                    if part:
                        digits = tuple(step.digits[k] for k in part)
                        yield tuple(replace(step, digits=digits).groups(hierarchy))
        case Exchange():
            yield tuple(p.group for p in patterns(step))


def count(program: Program) -> dict[str, int]:
    """Calls per kind of collective that a rank makes at most, over the whole program.

    >>> from ...models.sources.building.builder import Builder
    >>> from ...models.communication.choices import Choices
    >>> from ...models.layout.placement import Placement
    >>> from .program import lower
    >>> g = Builder("g")
    >>> graph = g.build(g.contract("y", "m k, k n -> m n", g.input("a", (4, 8)), g.input("b", (8, 4))))
    >>> rows = Choices((("y", Placement(("m", "n", "k"), ((1,), (1,), (4,), (1,)))),), (("y", Placement(("0", "1"),
    ...     ((1,), (1,), (4,)))),))
    >>> count(lower(graph, (4,), rows))
    {'all-reduce': 1}
    """
    total: dict[str, int] = {}
    for use in uses(program):
        total[use.kind] = total.get(use.kind, 0) + use.calls
    return dict(sorted(total.items()))
