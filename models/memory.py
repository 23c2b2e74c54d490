"""Memory per device as resource usages, in bytes.

Step t is the t-th operator; T operators in all.  Per device, the largest box counts (the fullest device decides).

    parameter                 in its reader's layout, or its one copy's layout, over [0, T)
    input                     likewise, over [0, last reader]
    value with one reader     in its writer's layout over [step of writer, step of reader]
    value with a copy         in its writer's layout at the writer's step; the copy over [step of writer, last reader],
                              to the end if it is a graph output

Buffers that an operator receives its operands in are not counted (flag `receive-buffers-not-counted`).
Source: DESIGN.md section 1; the ASPLOS/EuroSys 2025 contest's usage intervals.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from .graph import Graph, Role
from .layout import LayoutSet
from .problems import Ints, Usage

FLAGS = ("receive-buffers-not-counted",)


def usages(
    graph: Graph, decisions_of: Mapping[str, int], copies: Mapping[str, int], written: Sequence[LayoutSet],
    read: Sequence[Sequence[LayoutSet]], copied: Mapping[str, LayoutSet],
) -> tuple[Usage, ...]:
    """Usages of every tensor.  `written[i]`, `read[i][j]`: layouts of operator i's output and j-th input; `copied`: of copies."""
    end = len(graph.operators)
    readers, writer = graph.readers(), graph.writer()
    volumes: dict[int, Ints] = {}

    def amount(layouts: LayoutSet, element_bytes: int) -> Ints:
        if id(layouts) not in volumes:
            volumes[id(layouts)] = layouts.volumes()
        return (volumes[id(layouts)] * element_bytes)[layouts.of_choice]

    out = []
    for t in graph.tensors:
        uses = [i for i, _ in readers[t.name]]
        last = end if t.name in graph.outputs or t.role is Role.PARAMETER else max(uses, default=0) + 1
        start = writer.get(t.name, 0)
        if t.name in copies:
            out.append(Usage(copies[t.name], start, last, amount(copied[t.name], t.element_bytes), t.name))
        if t.name in writer:
            stop = start + 1 if t.name in copies else last
            name = graph.operators[start].name
            out.append(Usage(decisions_of[name], start, stop, amount(written[start], t.element_bytes), f"{t.name} as written"))
        elif t.name not in copies and uses:
            (i, j), = readers[t.name]
            out.append(Usage(decisions_of[graph.operators[i].name], 0, last, amount(read[i][j], t.element_bytes), t.name))
    return tuple(out)
