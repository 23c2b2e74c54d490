"""Lets operators that need the same statistics share them: computed, and all-reduced, once per step.

Two normalisations (`kernels.moments.MOMENTS`) share where they

    read one tensor    at the index they write (a tensor has one value in a program, and no norm reads partial ones)
    over               the same dimensions, with the same epsilon, both centring or both not
    on                 the same output boxes on every rank, with the same all-reduces

The log sums of an attention (`attention_lse`, which its gradients read) are those that the attention itself has taken
where both read the same q, k and mask with the same band, scale and cap, on the same boxes on every rank.

The first in the order of the program keeps them under its name; the others lose the all-reduces of them.  The decision
is one for all ranks, so collectives stay in the same order everywhere.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import replace

from ...models.program.attention import BOUNDS, FORWARD, OPERANDS, role
from ...models.program.operators import Operator
from ..kernels.moments import MOMENTS, centres
from .fusion import output_box, pointwise
from .program import Compute, Instruction, Program

_Key = tuple[object, ...]


def share_moments(program: Program) -> Program:
    """The same program, with `Compute.moments` and without the all-reduces that are not needed.

    >>> from ...models.sources.building.builder import Builder
    >>> from ...models.communication.choices import Choices
    >>> from ...models.layout.placement import Placement
    >>> from .program import lower
    >>> g = Builder("g")
    >>> x = g.input("x", (4, 8))
    >>> y, z = (g.map(n, "layer_norm", x, text="a b -> a b", over=("b",)) for n in "yz")
    >>> halves = Placement(("a", "b"), ((1,), (2,), (1,)))
    >>> rest = Placement(("0", "1"), ((1,), (2,), (1,)))
    >>> split = Choices((("y", halves), ("z", halves)), (("y", rest), ("z", rest), ("x", rest)))
    >>> shared = share_moments(lower(g.build(y, z), (2,), split))
    >>> [(i.moments, len(i.statistics)) for i in shared.ranks[0] if isinstance(i, Compute)]
    [('y', 2), ('y', 0)]
    """
    if program.stored:  # a reader may have what is not rounded yet
        return program
    keys = [_key(program, at) for at in range(len(program.ranks[0]))]
    several = {key for key, n in Counter(keys).items() if n > 1}
    first: dict[_Key, str] = {}
    ranks: list[list[Instruction]] = [list(r) for r in program.ranks]
    for at, key in enumerate(keys):
        if key is None or key not in several or (key in first and _function(program, at) == "attention"):
            continue  # an attention takes its own
        for rank in ranks:
            step = rank[at]
            if isinstance(step, Compute):
                op = program.graph.operators[step.operator]
                rest = step.statistics[_count(op) :] if key in first else step.statistics
                rank[at] = replace(step, statistics=rest, moments=first.get(key, op.name))
        first.setdefault(key, program.graph.operators[_operator(program, at)].name)
    return replace(program, ranks=tuple(tuple(r) for r in ranks))


def _count(op: Operator) -> int:
    """How many statistics the moments are."""
    return 2 if op.function in FORWARD else 1 + centres(op.function)


def _function(program: Program, at: int) -> str:
    return program.graph.operators[_operator(program, at)].function


def _operator(program: Program, at: int) -> int:
    step = program.ranks[0][at]
    return step.operator if isinstance(step, Compute) else -1


def _key(program: Program, at: int) -> _Key | None:
    """What operators that share have in common; None for an instruction that shares nothing."""
    step = program.ranks[0][at]
    if not isinstance(step, Compute):
        return None
    op = program.graph.operators[step.operator]
    if op.function in FORWARD:
        return _attention_key(program, at, op, step)
    j = MOMENTS.get(op.function)
    if j is None or not pointwise(op, j) or {a.name for a in op.axes} != {*op.output.axes}:
        return None
    dims = tuple(sorted(op.output.axes.index(a) for a in op.over))
    boxes = tuple(output_box(program.graph, rank[at]) for rank in program.ranks)
    epsilon = op.attribute("epsilon", 1e-5)
    return op.inputs[j].tensor, dims, epsilon, centres(op.function), boxes, step.statistics[: _count(op)]


def _attention_key(program: Program, at: int, op: Operator, step: Compute) -> _Key:
    """Of attention and of its log sums, whose axes are the same but for the value's features."""
    reads = tuple(a for name, a in zip(OPERANDS[op.function], op.inputs, strict=False) if name != "v")
    bends = tuple(op.attribute(name, "") for name in ("key", "feature", "query", "scale", "softcap", *BOUNDS))
    values = role(op, "value_feature")
    names = tuple(a.name for a in op.axes if a.name not in values)
    boxes = tuple(
        tuple(box for a, box in zip(op.axes, here.box, strict=True) if a.name not in values)
        for here in (rank[at] for rank in program.ranks)
        if isinstance(here, Compute)
    )
    reductions = tuple((s.combine, s.digits, s.scattered) for s in step.statistics)
    return "log sums", reads, bends, names, boxes, reductions
