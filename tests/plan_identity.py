"""The hash of a whole problem, from its numbers and the numbering of docs/certificate-format.md, section 9.

What a certificate is about is a hash, and messages speak of rows of tables: so a second checker of plans needs not only
the entries but the order of layouts, tables, vertices, edges and usages.  This is that order, written from the document.
"""

from __future__ import annotations

import hashlib
import json
import struct
from collections.abc import Sequence
from itertools import count
from math import prod

from second_builder.description import BYTES, Index, Operand
from second_builder.placements import Matrix
from second_builder.tables import Edge, Tables, Vertex
from second_builder.tilings import Tiling

Layouts = tuple[list[int], int]
"""Number of every choice's layout, and how many layouts there are."""


def patterns(matrices: Sequence[Matrix], row: int) -> list[tuple[int, ...]]:
    """Per choice the degrees of a row per level, then its strides (1 where the degree is 1)."""
    out = []
    for m in matrices:
        strides = [prod(below[j] for below in m[row + 1 :]) for j in range(len(m[row]))]
        out.append((*m[row], *(s if x > 1 else 1 for s, x in zip(strides, m[row], strict=True))))
    return out


def numbered(keys: Sequence[object], order: Sequence[object]) -> list[int]:
    """Per key its place among the distinct ones of `order`, by first appearance."""
    known: dict[object, int] = {}
    for key in order:
        known.setdefault(key, len(known))
    return [known[key] for key in keys]


def ascending(keys: Sequence[tuple[object, ...]]) -> list[int]:
    return numbered(keys, sorted(set(keys)))  # type: ignore[type-var]


def layouts(
    matrices: Sequence[Matrix], tilings: Sequence[Tiling], operand: Operand, rows: dict[str, int], reduced: list[int]
) -> Layouts:
    """The layouts of an operand under all choices, in the document's order."""
    number = {r: ascending(patterns(matrices, r)) for r in rows.values()}
    parts = []
    for k, index in enumerate(operand.index):
        involved = sorted({rows[axis] for axis, _ in index.terms})
        keys = [tuple(number[r][c] for r in involved) for c in range(len(matrices))]
        table = {key: tuple(box[k] for box in t.boxes) for key, t in zip(keys, tilings, strict=True)}
        parts.append(numbered([table[key] for key in keys], [table[key] for key in sorted(table)]))
    signature = [0] * len(matrices)
    if reduced:
        found = [patterns(matrices, r) for r in reduced]
        levels = len(matrices[0][0])
        keys = [
            (*(d for f in found for d in f[c][:levels]), *(s for f in found for s in f[c][levels:]))
            for c in range(len(matrices))
        ]
        digits = {key: t.open for key, t in zip(keys, tilings, strict=True)}
        signature = numbered([digits[key] for key in keys], [digits[key] for key in sorted(digits)])
    of = ascending([(*(p[c] for p in parts), signature[c]) for c in range(len(matrices))])
    return of, max(of) + 1


class Identity:
    """Everything that the hash is taken of."""

    def __init__(self, tables: Tables) -> None:
        self.t, self.program = tables, tables.program
        self.copied = list(dict.fromkeys(tables.copies.values()))
        self.vertices = list(self._vertices())
        self.number = dict(zip(self.vertices, count()))

    def _vertices(self) -> list[Vertex]:
        first = [t.name for t in self.program.tensors.values() if t.role != "value" and t.name in self.copied]
        out: list[Vertex] = [("copy", name) for name in first]
        for op in self.program.operators:
            out.append(("operator", op.name))
            if op.output.tensor in self.copied:
                out.append(("copy", op.output.tensor))
        return out

    def end(self, vertex: Vertex, position: int | None) -> tuple[object, Layouts, list[Tiling]]:
        """(form, layouts, tilings per choice) of what a vertex leaves (position None), or wants as an input."""
        kind, name = vertex
        chosen = self.t.choices[vertex]
        rows = {axis: i for i, axis in enumerate(chosen.axes)}
        if kind == "copy":
            shape = self.program.tensors[name].shape
            index = Operand(name, tuple(Index(((str(k), 1),)) for k in range(len(shape))))
            extents = tuple((shape[int(a)], None, True) for a in chosen.axes)
            tilings, reduced = self.t.leaves(vertex), []
        else:
            op = self.t.operators[name]
            index = op.output if position is None else op.inputs[position]
            shape = self.program.tensors[index.tensor].shape
            reduced = [rows[a] for a in chosen.axes if position is None and op.axes[a].combine is not None]
            extents = tuple(
                (op.axes[a].extent, op.axes[a].combine if rows[a] in reduced else None, op.axes[a].splittable)
                for a in chosen.axes
            )
            tilings = self.t.leaves(vertex) if position is None else self.t.wants(vertex, position)
        maps = tuple((tuple((rows[a], c) for a, c in i.terms), i.offset, i.whole) for i in index.index)
        left = () if kind == "copy" else tuple(r for _, r in self._own_order(name, rows) if r in reduced)
        form = (extents, maps, shape, left, kind == "copy")
        return form, layouts(chosen.matrices, tilings, index, rows, reduced), tilings

    def _own_order(self, name: str, rows: dict[str, int]) -> list[tuple[str, int]]:
        """Rows of an operator's axes, in the order in which it lists them."""
        return [(axis, rows[axis]) for axis in self.t.operators[name].axes if axis in rows]

    def edges(self) -> list[Edge]:
        """Copied inputs and parameters to their uses; then per operator into the copy, and on to the uses."""
        every = self.t.edges
        out = []
        for tensor in self.program.tensors.values():
            if tensor.role != "value" and tensor.name in self.copied:
                out += [e for e in every if e.tensor == tensor.name]
        for op in self.program.operators:
            out += [e for e in every if e.tensor == op.output.tensor]
        return out

    def usages(self) -> list[tuple[int, int, int, str, list[int]]]:
        """Tensor by tensor, the copy before the original; then what every operator receives."""
        p, out = self.program, []
        end = len(p.operators)
        step = {op.name: i for i, op in enumerate(p.operators)}
        writer = {op.output.tensor: op.name for op in p.operators}
        uses = {
            name: [(op.name, k) for op in p.operators for k, a in enumerate(op.inputs) if a.tensor == name]
            for name in p.tensors
        }
        replacing = set(p.state.values())

        def amount(vertex: Vertex, position: int | None, dtype: str) -> list[int]:
            return [t.largest * BYTES[dtype] for t in self.end(vertex, position)[2]]

        for t in p.tensors.values():
            start = step[writer[t.name]] if t.name in writer else 0
            forever = t.name in p.outputs or t.role == "parameter"
            last = end if forever else max([start, *(step[reader] for reader, _ in uses[t.name])]) + 1
            if t.name in self.copied:
                out.append((self.number["copy", t.name], start, last, t.name, amount(("copy", t.name), None, t.dtype)))
            if t.name in writer:
                vertex: Vertex = ("operator", writer[t.name])
                stop = start + 1 if t.name in self.copied or t.name in replacing else last
                out.append((self.number[vertex], start, stop, f"{t.name} as written", amount(vertex, None, t.dtype)))
            elif t.name not in self.copied and uses[t.name]:
                reader, position = uses[t.name][0]
                vertex = ("operator", reader)
                out.append((self.number[vertex], 0, last, t.name, amount(vertex, position, t.dtype)))
        for op in p.operators:
            moved = [(k, a.tensor) for k, a in enumerate(op.inputs) if a.tensor in writer or a.tensor in self.copied]
            if moved:
                each = [amount(("operator", op.name), k, p.tensors[name].dtype) for k, name in moved]
                total = [sum(column) for column in zip(*each, strict=True)]
                at = step[op.name]
                out.append((self.number["operator", op.name], at, at + 1, f"operands of {op.name}", total))
        return out


def sha256(tables: Tables, head: dict[str, object], limited: bool) -> str:
    """The hash; `head` holds name, limit, unit, scale, space, assumptions."""
    found = Identity(tables)
    numbers: dict[object, int] = {}
    contents, edges, maps = [], [], []
    for e in found.edges():
        source, left, _ = found.end(e.source, None)
        target, right, _ = found.end(e.target, e.position)
        key = (source, target, BYTES[tables.program.tensors[e.tensor].dtype])
        if key not in numbers:
            numbers[key] = len(numbers)
            costs = tables.edge_costs(e)
            rows, cols = ([of.index(k) for k in range(n)] for of, n in (left, right))
            contents.append([[costs[i][j] for j in cols] for i in rows])
        both = [None if of == list(range(len(of))) else of for of, _ in (left, right)]
        maps += [of for of in both if of is not None]
        ends = found.number[e.source], found.number[e.target]
        edges.append([*ends, numbers[key], *(of is not None for of in both)])
    usages = found.usages() if limited else []
    said = {
        **head,
        "constant": 0,
        "vertices": [name if kind == "operator" else f"copy of {name}" for kind, name in found.vertices],
        "edges": edges,
        "usages": [list(u[:4]) for u in usages],
    }
    h = hashlib.sha256(json.dumps(said, sort_keys=True, separators=(",", ":")).encode())

    def add(shape: str, entries: Sequence[int]) -> None:
        h.update(hashlib.sha256(shape.encode() + struct.pack(f"<{len(entries)}q", *entries)).digest())

    for vertex in found.vertices:
        costs = tables.costs(vertex)
        add(f"({len(costs)},)", costs)
    for table in contents:
        add(f"({len(table)}, {len(table[0])})", [n for row in table for n in row])
    for of in (*maps, *(u[4] for u in usages)):
        add(f"({len(of)},)", of)
    return h.hexdigest()
