"""Shows the parallel computation graph of a plan with its prices, as text, as JSON and as SVG.

The prices are those of the plan: every operator's time, every movement's, nothing for given tensors, which start where
they are wanted.  Their sum is the plan's cost.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from html import escape
from math import prod

from ...models.communication.parallel_graph import Change, Parallel, ParallelGraph, Step, parallel_graph
from ...models.cost.selection import Planning
from ...models.layout.placement import Placement
from ...models.text import join_lines, seconds_text

ROW, WIDTH, PILL = 26, 980, 128
COLOURS = {
    Parallel.PARTITION: "#9ecae1",
    Parallel.COMBINE: "#fdae6b",
    Parallel.REDUCE: "#fc9272",
    Parallel.REPLICATE: "#c7e9c0",
    Parallel.REARRANGE: "#d9d9d9",
}


@dataclass(frozen=True)
class PricedGraph:
    """A parallel graph; `times[i]` of operator i, `moves[k]` of change k, in units of 1/`scale` s."""

    of: ParallelGraph
    levels: tuple[str, ...]
    times: tuple[int, ...]
    moves: tuple[int, ...]
    scale: int

    @property
    def cost(self) -> int:
        """Sum of all prices."""
        return sum(self.times) + sum(self.moves)

    def to_json(self) -> dict[str, object]:
        """Operators, copies and changes; degrees are per level."""
        g = self.of
        return {
            "levels": list(self.levels),
            "hierarchy": list(g.hierarchy),
            "scale": self.scale,
            "cost": self.cost,
            "operators": [
                {"name": n, "degrees": _degrees(p), "replicas": list(p.matrix[-1]), "cost": t}
                for (n, p), t in zip(g.operators, self.times, strict=True)
            ],
            "copies": [
                {"tensor": n, "degrees": _degrees(p), "replicas": list(p.matrix[-1])} for n, p in sorted(g.copies)
            ],
            "changes": [
                {
                    "tensor": c.tensor,
                    "from": c.writer,
                    "to": c.reader,
                    "input": c.position,
                    "nodes": [
                        {
                            "kind": s.kind.value,
                            "degree": s.degree,
                            "level": self.levels[s.level],
                            **({} if s.dimension is None else {"dimension": s.dimension}),
                        }
                        for s in c.steps
                    ],
                    "cost": m,
                }
                for c, m in zip(g.changes, self.moves, strict=True)
            ],
        }


def _degrees(p: Placement) -> dict[str, list[int]]:
    return {a: list(row) for a, row in zip(p.axes, p.matrix, strict=False)}


def priced_graph(planning: Planning, x: Sequence[int]) -> PricedGraph:
    """The parallel graph of a solution, with its prices."""
    problem = planning.problem
    g = parallel_graph(planning.graph, planning.machine.hierarchy, planning.choices(tuple(x)))
    edges = iter(problem.edges)
    moves = []
    for c in g.changes:
        if c.given:
            moves.append(0)
            continue
        e = next(edges)
        row = x[e.u] if e.rows is None else int(e.rows[x[e.u]])
        column = x[e.v] if e.cols is None else int(e.cols[x[e.v]])
        moves.append(int(problem.tables[e.table][row, column]))
    times = tuple(int(problem.vertices[planning.operators[n]].cost[x[planning.operators[n]]]) for n, _ in g.operators)
    return PricedGraph(g, tuple(lv.name for lv in planning.machine.levels), times, tuple(moves), problem.scale)


def _step(s: Step, levels: Sequence[str]) -> str:
    where = "" if s.dimension is None else f"dim {s.dimension}, "
    return s.kind.value if s.kind is Parallel.REARRANGE else f"{s.kind.value}({where}{s.degree} over {levels[s.level]})"


def _operator(name: str, p: Placement) -> str:
    split = [f"{a} {prod(row)}" for a, row in zip(p.axes, p.matrix, strict=False) if prod(row) > 1]
    replicas = prod(p.matrix[-1])
    return f"{name}: " + ", ".join([*split, *([f"replicas {replicas}"] if replicas > 1 else [])] or ["one part"])


Line = tuple[str, Sequence[Step], str, int]
"""What it is about, parallel nodes, where to, price."""


def _lines(g: PricedGraph) -> Iterator[tuple[str, Line | None, int]]:
    """Operators (no line) and changes in execution order: before an operator what it reads, behind it its copy."""
    into: dict[tuple[str | None, str], list[tuple[Change, int]]] = {}
    for c, m in zip(g.of.changes, g.moves, strict=True):
        into.setdefault((c.reader, "" if c.reader is not None else c.tensor), []).append((c, m))
    given = [key for key, found in into.items() if key[0] is None and found[0][0].given]
    for key in given:
        for c, m in into.pop(key):
            yield c.tensor, (c.tensor, c.steps, "its copy", m), m
    for (name, p), time in zip(g.of.operators, g.times, strict=True):
        for c, m in into.get((name, ""), ()):
            yield c.tensor, (c.tensor, c.steps, f"input {c.position}", m), m
        yield _operator(name, p), None, time
        for c, m in into.get((None, g.of.graph.operator(name).output.tensor), ()):
            yield c.tensor, (c.tensor, c.steps, "its copy", m), m


def render_parallel(g: PricedGraph) -> str:
    """One line per operator and per change, with prices; changes without parallel nodes are left out."""
    out = []
    for text, line, price in _lines(g):
        if line is None:
            out.append(f"{text}  [{seconds_text(price, g.scale)}]")
        elif line[1]:
            steps = " -> ".join(_step(s, g.levels) for s in line[1])
            paid = f"  [{seconds_text(price, g.scale)}]" if price else ""
            out.append(f"    {line[0]} -> {steps} -> {line[2]}{paid}")
    return join_lines([*out, f"cost {seconds_text(g.cost, g.scale)}"])


def picture(g: PricedGraph, title: str) -> str:
    """The same from top to bottom as SVG: operators are boxes, parallel nodes pills on the way into the next one."""
    body, y = [], 2 * ROW
    for text, line, price in _lines(g):
        if line is not None and not line[1]:
            continue
        if line is None:
            body.append(
                f'<rect x="20" y="{y}" width="{WIDTH - 40}" height="{ROW - 4}" rx="4" fill="#eef" stroke="#88a"/>'
            )
            body.append(f'<text x="30" y="{y + 15}">{escape(text)}</text>')
        else:
            body.append(f'<text x="60" y="{y + 15}" fill="#555">{escape(line[0][:34])}</text>')
            for k, s in enumerate(line[1][:5]):
                at = 300 + k * (PILL + 8)
                colour = COLOURS[s.kind]
                body.append(
                    f'<rect x="{at}" y="{y + 1}" width="{PILL}" height="{ROW - 7}" rx="9" fill="{colour}"/>'
                    f'<text x="{at + 6}" y="{y + 14}" font-size="10">{escape(_short(s, g.levels))}</text>'
                )
            if len(line[1]) > 5:
                body.append(f'<text x="{WIDTH - 60}" y="{y + 14}">+{len(line[1]) - 5}</text>')
        if price:
            body.append(f'<text x="{WIDTH - 30}" y="{y + 15}" text-anchor="end">{seconds_text(price, g.scale)}</text>')
        body.append(f'<line x1="40" y1="{y + ROW - 4}" x2="40" y2="{y + ROW}" stroke="#88a"/>')
        y += ROW
    size, font = f'viewBox="0 0 {WIDTH} {y + ROW}"', 'font-family="sans-serif" font-size="12"'
    head = f'<svg xmlns="http://www.w3.org/2000/svg" {size} {font}>'
    return "\n".join([head, f'<text x="20" y="{ROW}" font-size="15">{escape(title)}</text>', *body, "</svg>", ""])


def _short(s: Step, levels: Sequence[str]) -> str:
    kind: str = s.kind.value
    if s.kind is Parallel.REARRANGE:
        return kind
    return f"{kind}{'' if s.dimension is None else f' {s.dimension}'} x{s.degree} {levels[s.level]}"
