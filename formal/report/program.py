"""Finds the narrow places of a program, and draws the blocks between them.

    reached     operators that depend on the entry from which most is reached, one that reads an input if there is any
    narrow      operators through which every path from there to the results goes: the dominators of the end
    a block     what lies between two narrow places; of a training step the forward pass counts

Behind a narrow place one tensor alone goes on: there a program can be cut into stages or recomputed from.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

import networkx as nx

from ...models.problem.selection_problem import SelectionProblem
from ...models.program.graph import Graph, Role
from ...models.sources.training.derived import derived_keys
from ..plans.report import amount, bytes_text, label, pattern
from .drawing import COLOURS
from .words import escape

MOST_ROWS: Final = 24
_END: Final = ""


@dataclass(frozen=True)
class Block:
    """Operators up to and with the narrow place `last`; `bytes`: of the tensor that goes on from there."""

    last: str
    operators: tuple[str, ...]
    bytes: int


def blocks(graph: Graph) -> tuple[Block, ...]:
    """The blocks in order; one, with everything, where no place is narrow.

    >>> from ...models.sources.zoo import build
    >>> [(b.last, len(b.operators)) for b in blocks(build("mlp-unity", batch=8))]
    [('fc1', 1), ('relu1', 1), ('fc2', 1)]
    """
    later = derived_keys(graph)
    kept = [op for op in graph.operators if op.name not in later]
    writer = {op.output.tensor: op.name for op in kept}
    flow: nx.DiGraph[str] = nx.DiGraph()
    flow.add_nodes_from(op.name for op in kept)
    flow.add_edges_from((writer[a.tensor], op.name) for op in kept for a in op.inputs if a.tensor in writer)
    entries = [n for n in flow if not flow.in_degree(n)]
    if not entries:
        return ()
    given = {op.name for op in kept if any(graph.tensor(a.tensor).role is Role.INPUT for a in op.inputs)}
    root = max(entries, key=lambda n: (n in given, len(nx.descendants(flow, n))))
    flow = flow.subgraph({root, *nx.descendants(flow, root)}).copy()
    flow.add_edges_from([(n, _END) for n in list(flow) if not flow.out_degree(n)])
    above = nx.immediate_dominators(flow, root)
    narrow, at = [], above.get(_END, root)
    while at != root:
        narrow.append(at)
        at = above[at]
    places = [root, *reversed(narrow)]
    out, left = [], {op.name: op for op in kept}
    for place in places:
        inside = {place, *(nx.ancestors(flow, place) & set(left))} & set(left)
        tensor = graph.tensor(left[place].output.tensor)
        names = tuple(op.name for op in kept if op.name in inside)
        out.append(Block(place, names, tensor.elements * tensor.element_bytes))
        left = {n: op for n, op in left.items() if n not in inside}
    return tuple(out)


def program_drawing(graph: Graph, times: Mapping[str, int], problem: SelectionProblem, width: int = 1060) -> str:
    """The blocks as boxes, as wide as their operators take time, and a table of those that differ."""
    found = blocks(graph)
    spent = [sum(times.get(n, 0) for n in b.operators) for b in found]
    whole = sum(spent) or 1
    groups: dict[tuple[str, int, int, int], list[int]] = {}
    for i, b in enumerate(found):
        groups.setdefault((pattern(b.last), len(b.operators), b.bytes, spent[i]), []).append(i)
    colour = {i: COLOURS[k % len(COLOURS)] for k, members in enumerate(groups.values()) for i in members}
    boxes, x = [], 0.0
    for i, b in enumerate(found):
        w = width * spent[i] / whole
        boxes.append(
            f'<rect x="{x:.2f}" width="{max(w - 0.6, 0.3):.2f}" height="26" fill="{colour[i]}">'
            f"<title>{escape(b.last)}: {len(b.operators)} operators, {amount(spent[i], problem)}</title></rect>"
        )
        x += w
    rows = "".join(
        f'<tr><td><i style="display:inline-block;width:12px;height:12px;background:{colour[members[0]]}"></i></td>'
        f'<td class="name">{escape(label([found[i].last for i in members]))}</td>'
        f'<td class="n">{f"x{len(members)}" if len(members) > 1 else ""}</td><td class="n">{count}</td>'
        f'<td class="n">{bytes_text(size)}</td><td class="n">{amount(spent_one * len(members), problem)}</td></tr>'
        for (_, count, size, spent_one), members in sorted(groups.items(), key=lambda g: -g[0][3] * len(g[1]))[
            :MOST_ROWS
        ]
    )
    said = (
        "places through which everything goes; between them lie blocks, drawn as wide as they take time in the forward "
        "pass. At these places one tensor alone goes on: there a program can be cut, or computed again from."
    )
    return (
        f"<p>{len(found)} {said}</p>"
        f'<svg viewBox="0 0 {width} 26" preserveAspectRatio="none" style="width:100%;height:26px" role="img">'
        f"{''.join(boxes)}</svg>"
        '<table><tr><th></th><th>block up to</th><th></th><th class="n">operators in each</th>'
        f'<th class="n">goes on</th><th class="n">time of all</th></tr>{rows}</table>'
    )
