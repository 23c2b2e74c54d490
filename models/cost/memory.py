"""Memory per device as resource usages, in bytes.

Step t is the t-th operator; T operators in all.  Per device, the largest box counts (the fullest device decides).

    parameter                 in its reader's layout, or its one copy's layout, over [0, T)
    input                     likewise, over [0, last reader]
    value with one reader     in its writer's layout over [step of writer, step of reader]
    value that nobody reads   in its writer's layout at the writer's step
    value with a copy         in its writer's layout at the writer's step; the copy over [step of writer, last reader],
                              to the end if it is a graph output
    next value of a parameter in its writer's layout at the writer's step; then it is the parameter's copy, whose
    storage it
                              takes over in place (flag `donated-state`)
    operand that is moved     in the layout it is read in, at the reader's step: the buffer it is received in; one for
                              each time it is read

An input or parameter that nobody reads, without a next value, is nowhere.

An operand that is read where it lies needs no buffer, but whether it does depends on two choices, and a usage on one:
it is counted all the same (flag `every-operand-received`), so a plan that fits the rows fits, and a limit that is too
small for the rows may not be too small for the machine, by at most the operands of one operator.  Not counted: what a
transport packs into messages (flag `packing-not-counted`), and operands that are fetched ahead of their step while
something else is computed.
Source: the ASPLOS/EuroSys 2025 contest's usage intervals.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np

from ..layout.layout import LayoutSet
from ..problem.selection_problem import Ints, Usage
from ..program.graph import Graph, Role

FLAGS = ("every-operand-received", "packing-not-counted")


def flags(graph: Graph) -> tuple[str, ...]:
    """Assumptions of the memory rows of a graph."""
    return (*FLAGS, "donated-state") if graph.state else FLAGS


def usages(
    graph: Graph,
    decisions_of: Mapping[str, int],
    copies: Mapping[str, int],
    written: Sequence[LayoutSet],
    read: Sequence[Sequence[LayoutSet]],
    copied: Mapping[str, LayoutSet],
) -> tuple[Usage, ...]:
    """Usages of every tensor, then of every operator's operands.  `written[i]`, `read[i][j]`: layouts of operator
    i's output and j-th input; `copied`: of copies.
    """
    end = len(graph.operators)
    readers, writer = graph.readers(), graph.writer()
    following = {value for _, value in graph.state}
    volumes: dict[int, Ints] = {}
    amounts: dict[object, Ints] = {}

    def amount(layouts: LayoutSet, element_bytes: int) -> Ints:
        key = (id(layouts), element_bytes)
        if key not in amounts:
            if id(layouts) not in volumes:
                volumes[id(layouts)] = layouts.volumes()
            amounts[key] = (volumes[id(layouts)] * element_bytes)[layouts.of_choice]
        return amounts[key]

    def received_bytes(i: int) -> Ints | None:
        moved = [
            (read[i][j], graph.tensor(a.tensor).element_bytes)
            for j, a in enumerate(graph.operators[i].inputs)
            if a.tensor in writer or a.tensor in copies
        ]
        key = tuple((id(layouts), element_bytes) for layouts, element_bytes in moved)
        if moved and key not in amounts:
            amounts[key] = np.sum([amount(*m) for m in moved], axis=0, dtype=np.int64)
        return amounts[key] if moved else None

    out = []
    for t in graph.tensors:
        uses = [i for i, _ in readers[t.name]]
        last = end if t.name in graph.outputs or t.role is Role.PARAMETER else max(uses, default=0) + 1
        start = writer.get(t.name, 0)
        if t.name in copies:
            out.append(Usage(copies[t.name], start, last, amount(copied[t.name], t.element_bytes), t.name))
        if t.name in writer:
            stop = (
                start + 1 if t.name in copies or t.name in following else max(last, start + 1)
            )  # what nobody reads is written all the same
            name = graph.operators[start].name
            out.append(
                Usage(decisions_of[name], start, stop, amount(written[start], t.element_bytes), f"{t.name} as written")
            )
        elif t.name not in copies and uses:
            ((i, j),) = readers[t.name]
            out.append(
                Usage(decisions_of[graph.operators[i].name], 0, last, amount(read[i][j], t.element_bytes), t.name)
            )
    for i, op in enumerate(graph.operators):
        if (buffers := received_bytes(i)) is not None:
            out.append(Usage(decisions_of[op.name], i, i + 1, buffers, f"operands of {op.name}"))
    return tuple(out)
