"""Every resharding of a program as a user sees it: index sets, which solver took it and why the
others did not, bytes beside the bound.

The bound of a row is that of the one resharding on its own.  What reshardings of one tensor need together may
be less (two readers of the same elements), so the bound of the program is that of `traffic`, tensor by tensor.  "Least"
is said only where bytes moved equal the bound.

Solvers, in this order; each takes groups of ranks or says why not:

    nothing to do                      every rank holds what it needs
    reduction on sub-grids             values are parts of sums: all-reduce, reduce-scatter, or both level by level
    grid-mapped                        broadcast, scatter, gather: one sender or one receiver per group
    grid-to-grid                       all-gather
    halo exchange with neighbours      single messages between few partners
    general                            all-to-all of box intersections: takes what is left

Where data decides what is read, the index set is an over-approximation, and says so.

Source: thesis on automatic partitioning of array programs, chapters 4 and 5 (over-approximation: 4.7).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Final

from ...models.communication.choices import Choices, Communication, communications
from ...models.communication.resharding import CommunicationPlan, Reduction, is_inside
from ...models.communication.root import RootTransfer
from ...models.communication.transfers import Exchange
from ...models.layout.layout import Layout
from ...models.machine.machine import Machine
from ...models.program.graph import Graph
from ...models.program.operators import NodeKind
from ...models.text import seconds_text
from ..transport.patterns import Pattern, PatternKind, patterns
from .collectives import Use, of_plan
from .traffic import least, received_elements, traffic


@dataclass(frozen=True)
class Attempt:
    """What one solver said.  `groups`: how many groups of ranks it took; 0: none, and `reason` is why."""

    solver: str
    groups: int
    reason: str


@dataclass(frozen=True)
class Row:
    """One resharding; `moved` and `bound` in bytes, over all ranks."""

    tensor: str
    writer: str
    reader: str
    held: str
    wanted: str
    uses: tuple[Use, ...]
    attempts: tuple[Attempt, ...]
    moved: int
    bound: int
    reasons: tuple[str, ...]


_EXCHANGES: Final[tuple[tuple[str, frozenset[PatternKind], str], ...]] = (
    (
        "grid-mapped",
        frozenset({PatternKind.BROADCAST, PatternKind.SCATTER, PatternKind.GATHER}),
        "several ranks of a group send, and several receive",
    ),
    ("grid-to-grid", frozenset({PatternKind.ALL_GATHER}), "a rank does not send the same to all others of its group"),
    (
        "halo exchange with neighbours",
        frozenset({PatternKind.NEIGHBOURS}),
        "a rank talks to all others of its group, or to more than 8",
    ),
    ("general", frozenset({PatternKind.ALL_TO_ALL}), ""),
)


def solver_attempts(plan: CommunicationPlan) -> tuple[Attempt, ...]:
    """The solvers in order, up to the one that left nothing.

    >>> from ...models.program.index import Axis, access
    >>> from ...models.layout.layout import operand_layout
    >>> rows, whole = (operand_layout(access("t", "i"), (8,), [Axis("i", 8)], m, (4,)) for m in (((4,), (1,)), ((1,),
    ...     (4,))))
    >>> from ...models.communication.resharding import derive
    >>> [(a.solver, a.groups) for a in solver_attempts(derive(rows, whole))]
    [('nothing to do', 0), ('reduction on sub-grids', 0), ('grid-mapped', 0), ('grid-to-grid', 1)]
    """
    groups = len(plan.source.boxes)
    if not plan.steps:
        return (Attempt("nothing to do", groups, "every rank holds what it needs"),)
    lacking = int((~is_inside(plan.target, plan.source)).sum())
    out = [
        Attempt(
            "nothing to do",
            0,
            "values are parts of sums" if plan.source.open else f"{lacking} of {groups} ranks lack elements",
        )
    ]
    reductions = [s for s in plan.steps if isinstance(s, Reduction)]
    if reductions:
        use = next(of_plan("", plan))
        out.append(Attempt("reduction on sub-grids", use.groups, use.reason))
    else:
        out.append(Attempt("reduction on sub-grids", 0, "values are whole"))
    left: list[Pattern] = [p for s in plan.steps if isinstance(s, Exchange) for p in patterns(s)]
    for solver, kinds, refusal in _EXCHANGES:
        if not left:
            break
        taken = [p for p in left if p.kind in kinds]
        left = [p for p in left if p.kind not in kinds]
        out.append(Attempt(solver, len(taken), "; ".join(dict.fromkeys(p.reason for p in taken)) or refusal))
    return tuple(out)


def index_sets(layout: Layout) -> str:
    """What the ranks hold, dimension by dimension.

    >>> from ...models.program.index import Access, Affine, Axis
    >>> from ...models.layout.layout import operand_layout
    >>> read = Access("t", (Affine.axis("i").plus("w"), Affine.axis("j")))
    >>> index_sets(operand_layout(read, (9, 4), [Axis("i", 8), Axis("w", 2), Axis("j", 4)], ((2,), (1,), (1,), (1,)),
    ...     (2,)))
    '0 in 2 parts with halo'
    """
    words = []
    for k in range(len(layout.shape)):
        parts = sorted({(int(lo), int(hi)) for lo, hi in layout.boxes[:, k, :] if lo < hi})
        if parts and parts != [(0, layout.shape[k])]:
            steps = [b[0] - a[1] for a, b in pairwise(parts)]
            sizes = len({hi - lo for lo, hi in parts})
            how = (
                " with halo"
                if any(s < 0 for s in steps)
                else " with gaps"
                if any(s > 0 for s in steps)
                else " of unequal size"
                if sizes > 1
                else ""
            )
            ends = f"{parts[0][0]}:{max(hi for _, hi in parts)}"
            span = "" if ends == f"0:{layout.shape[k]}" else f" ({ends})"
            words.append(f"{k}{span} in {len(parts)} parts{how}" if len(parts) > 1 else f"{k}{span} on all")
    empty = int((layout.volumes() == 0).sum())
    if empty and layout.shape:
        words.append(f"nothing on {empty} ranks")
    text = ", ".join(words) or "whole"
    return f"parts of sums, {text}" if layout.open else text


def table(
    graph: Graph, hierarchy: tuple[int, ...], choices: Choices, machine: Machine | None = None
) -> tuple[Row, ...]:
    """Every resharding, in execution order; reasons that concern a tensor with several readers stand at its
    first one.  `machine`: whose collective programs reductions take.
    """
    whole = {t.tensor: t for t in traffic(graph, hierarchy, choices)}
    out, seen = [], set[str]()
    for m in communications(graph, hierarchy, choices, machine):
        size = graph.tensor(m.tensor).element_bytes
        moved, bound = sum(received_elements(m)) * size, least(graph, hierarchy, choices, m) * size
        reasons = [*_over_approximated(graph, m)]
        if m.tensor not in seen and m.tensor in whole and whole[m.tensor].reasons:
            entry = whole[m.tensor]
            reasons.append(
                f"all reshardings of {m.tensor!r} together: {entry.moved * size} bytes, lower bound "
                f"{entry.bound * size}: {'; '.join(entry.reasons)}"
            )
        seen.add(m.tensor)
        reader = "its copy" if m.reader is None else f"input {m.position} of {m.reader}"
        uses = tuple(of_plan(reader, m.plan))
        out.append(
            Row(
                m.tensor,
                m.writer or "its copy",
                reader,
                index_sets(m.plan.source),
                index_sets(m.plan.target),
                uses,
                solver_attempts(m.plan),
                moved,
                bound,
                tuple(reasons),
            )
        )
    return tuple(out)


def _over_approximated(graph: Graph, m: Communication) -> Iterator[str]:
    op = next((op for op in graph.operators if op.name == m.reader), None)
    if op is not None and op.kind is NodeKind.GATHER and m.position == 0:
        ids = next((o for o in graph.operators if o.output.tensor == op.inputs[1].tensor), None)
        known = ids is not None and ids.function == "constant"
        yield (
            "rows are picked "
            + ("at known places: the box around them is read" if known else "by data: any of them may be read")
            + " (over-approximation)"
        )
    elif (
        op is not None
        and any(i.whole for i in op.inputs[m.position].index)
        and op.kind not in (NodeKind.NORMALISE, NodeKind.OPAQUE)
    ):
        yield "a dimension is read whole, whatever is needed of it (over-approximation)"


def render(rows: tuple[Row, ...], say: Callable[[int], str] = str) -> Iterator[str]:
    """The reshardings that move something, as text, those of repeated layers together; the others in one line."""
    moving = [r for r in rows if r.moved or r.bound or len(r.attempts) > 1]
    alike: dict[tuple[object, ...], list[Row]] = {}
    for r in moving:
        alike.setdefault(
            (
                r.held,
                r.wanted,
                tuple((u.kind, u.groups, u.members) for u in r.uses),
                r.attempts,
                r.moved,
                r.bound,
                r.reasons,
            ),
            [],
        ).append(r)
    for r, *others in alike.values():
        names = ", ".join(
            f"{u.kind} in {u.groups} group{'s' if u.groups > 1 else ''} of "
            f"{'up to ' if u.kind == 'neighbours' else ''}{u.members}"
            for u in r.uses
        )
        more = (
            f"   and {len(others)} more like it, each with these bytes: "
            f"{', '.join(o.tensor for o in others[:3])}{', ..' if len(others) > 3 else ''}"
            if others
            else ""
        )
        yield f"{r.tensor}: {r.writer} -> {r.reader}{more}"
        yield f"    index sets   {r.held}  ->  {r.wanted}"
        yield f"    collective   {names}"
        yield f"    bytes        {beside(r.moved, r.bound, ' received by all ranks', say)}"
        for a in r.attempts:
            yield f"    {'took it' if a.groups else 'not    '}      {a.solver}: {a.reason}" + (
                f" ({a.groups} groups)" if a.groups > 1 else ""
            )
        for reason in r.reasons:
            yield f"    why          {reason}"
    yield f"{len(rows) - len(moving)} of {len(rows)} reshardings have nothing to do"


def beside(moved: int, bound: int, what: str, say: Callable[[int], str] = str) -> str:
    """Bytes moved and the bound, in words that are true.

    >>> beside(8, 8, " received"), beside(9, 8, " received")
    ('8 received, the least possible', '9 received; lower bound 8')
    """
    return f"{say(moved)}{what}" + (", the least possible" if moved == bound else f"; lower bound {say(bound)}")


def root_lines(movements: Sequence[RootTransfer]) -> Iterator[str]:
    """What data cost that begin and end on rank 0: no claim of the plan counts it."""
    for kind, words in (("scatter", "inputs scattered from"), ("gather", "outputs gathered to")):
        found = [m for m in movements if m.direction == kind]
        if found:
            units = round(sum(m.seconds for m in found) * 10**12)
            yield (
                f"{words} a root, on top where data are there: "
                f"{beside(sum(m.moved for m in found), sum(m.least for m in found), ' bytes')}, "
                f"{seconds_text(units, 10**12)}"
            )


def total(graph: Graph, hierarchy: tuple[int, ...], choices: Choices) -> tuple[int, int]:
    """Bytes that all reshardings bring to all ranks, and the bound for any program with the same schedule."""
    entries = traffic(graph, hierarchy, choices)
    return sum(t.moved * t.element_bytes for t in entries), sum(t.bound * t.element_bytes for t in entries)


def bytes_by_collective(
    graph: Graph, hierarchy: tuple[int, ...], choices: Choices, machine: Machine | None = None
) -> dict[str, tuple[int, ...]]:
    """Collective -> bytes into the busiest device, per level, of all reshardings of the choices."""
    total: dict[str, tuple[int, ...]] = {}
    for m in communications(graph, hierarchy, choices, machine):
        loads = m.plan.loads()
        if any(loads):
            size = graph.tensor(m.tensor).element_bytes
            name = m.plan.collective()
            before = total.get(name, (0,) * len(loads))
            total[name] = tuple(b + n * size for b, n in zip(before, loads, strict=True))
    return dict(sorted(total.items()))
