"""Congruence: an operator reads, for each class that another one stands for, that other one.

    f(.., x, ..)  =  f(.., y, ..)      where one operator computes x, and the same operator of the same operands y

Applied after every rewriting until nothing changes, it makes equal operators of equal operands one class, upwards: what
reads the joined class becomes the same itself.  Source: egg (POPL 2021), rebuilding; Downey, Sethi, Tarjan (JACM 1980).
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

from .....models.joint.rules import EQUAL
from .....models.program.operators import Operator
from .growing import Addition, Growing


def equal_operators(g: Growing, op: Operator) -> Iterator[Addition]:
    """`op` with all its operands replaced by the classes that stand for them; nothing where they stand for
    themselves.
    """
    seen, place = op, list[Operator]()
    for tensor in dict.fromkeys(a.tensor for a in op.inputs):
        while (twin := g.twin(tensor)) is not None:
            other = twin[1].output.tensor
            seen = replace(
                seen, inputs=tuple(replace(a, tensor=other) if a.tensor == tensor else a for a in seen.inputs)
            )
            place.extend(twin)
            tensor = other
    if place:
        yield Addition(EQUAL, seen, (op, *place))


def congruence_closure(g: Growing, most: int) -> None:
    """Bring what reads joined classes to those that stand for them, and so on upwards, up to `most` operators."""
    while g.merged:
        for op in g.readers(g.merged.pop(0)):
            for addition in equal_operators(g, op):
                if g.added_operators < most:
                    g.add(addition)
