"""Lists the casts of operands that float8 products read: each once, but weights, which are cast once a step."""

from __future__ import annotations

from collections.abc import Collection, Iterator
from fractions import Fraction

from ....models.cost.alone import Device
from ....models.program.operators import Operator


def casts(
    device: Device, once: Collection[str], inside: Collection[str], learns: bool
) -> Iterator[tuple[Operator, Fraction]]:
    """Product that reads an operand first, and seconds of its cast.

    `once`: operators that a step runs once; `inside`: those whose kernel casts its result; `learns`: gradients of
    weights are computed.
    """
    graph = device.graph
    written, done = graph.writer(), set[str]()
    for op in graph.operators:
        if op.name not in device.eight:
            continue
        for position, a in enumerate(op.inputs):
            i = written.get(a.tensor)
            source = None if i is None else graph.operators[i].name
            if a.tensor in done or source is None or source in inside or source in once:
                continue
            if graph.tensor(a.tensor).dtype == "bfloat16":
                done.add(a.tensor)
                yield op, device.cast_seconds(device.read_by(op, position), learns)
