"""Builds experts with a capacity: tokens take numbered places at their experts, so that every expert is an
axis of its own.

A mixture of experts without capacity is a chain of grouped products over points l (token and choice), ids[l] = e.  The
points are divided into groups g of consecutive ones (sentences); in each, an expert has C places:

    place[g, l]   number of l' < l of the group with ids[g, l'] = ids[g, l]
    slot[g, l]    ids[g, l] C + place[g, l]  where place < C, else none: the point is dropped by this expert
    at[g, e C + c]  the point of this slot        (MAX over the points of the slot; none where it is free)

    x'[g, e, c]   x[g, at[g, e, c]]               dispatch, a gather inside the group
    y'            the chain, with axes g, e, c for l, and grouped products as products with e as a parallel axis
    y[g, l]       y'[g, slot[g, l]]               combine, a gather inside the group; 0 for what was dropped

Where groups are split over ranks before and after, and experts between, both changes are all-to-alls of e C rows per
group: expert parallelism.  With C = points of a group nothing is dropped whatever the routing; with less it is exact as
long as no expert overflows.  Free places compute rows of zeros that nobody reads.

Source: Lepikhin et al., GShard (2020), Algorithm 1, with gathers in the place of products by masks.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from ...program.graph import Graph, GraphError, Role, Tensor
from ...program.index import Access, Affine, Axis, Combine, access
from ...program.operators import NodeKind, Operator, Value
from .digits_cuts import is_view
from .flat import used


@dataclass(frozen=True)
class Places:
    """The capacity of an expert in a group: `percent` of the even share, rounded up; 0: as many places as points.

    `groups`: how many; 0: the first extent of the first input, its sentences.
    """

    percent: int = 0
    groups: int = 0


def with_slots(graph: Graph, places: Places) -> Graph:
    """The graph with places for the points of grouped products whose ids have one dimension.  Raises `GraphError`
    where groups do not divide the points.
    """
    inputs = [t.shape[0] for t in graph.tensors if t.role is Role.INPUT and t.shape]
    groups = places.groups or (inputs[0] if inputs else 1)
    named = dict.fromkeys(op.inputs[-1].tensor for op in graph.operators if op.kind is NodeKind.GROUPED)
    for ids in named:
        if len(graph.tensor(ids).shape) == 1:
            graph = _Region(graph, ids, groups, places.percent).rewritten()
    return used(graph).check()


class _Region:
    """The operators between the grouped products of one tensor of ids, these included."""

    def __init__(self, graph: Graph, ids: str, groups: int, percent: int) -> None:
        self.graph, self.ids = graph, ids
        self.tensors = {t.name: t for t in graph.tensors}
        self.operators: list[Operator] = []
        (self.points,) = graph.tensor(ids).shape
        first = next(op for op in graph.operators if op.kind is NodeKind.GROUPED and op.inputs[-1].tensor == ids)
        self.name, self.experts = first.name, first.axis(first.rows).extent
        if self.points % groups:
            raise GraphError(f"operator {first.name!r}", f"{self.points} tokens and choices are not {groups} groups")
        self.groups, self.length = groups, self.points // groups
        share = -(-percent * self.length // (100 * self.experts)) if percent else self.length
        self.places = max(1, min(share, self.length))
        self.rows = {ids}  # tensors whose dimension 0 is the points
        self.inside = self._inside()
        self._slots: dict[str, str] = {}

    def _inside(self) -> set[str]:
        """Names of the operators of the region; fills `rows`."""
        after: set[str] = set()  # tensors that a grouped product of these ids, or a gather by them, leads to
        candidates: list[Operator] = []
        for op in self.graph.operators:
            read = {a.tensor for a in op.inputs}
            starts = op.kind in (NodeKind.GROUPED, NodeKind.GATHER) and op.inputs[-1].tensor == self.ids
            if not (starts or read & after) or is_view(op):
                continue
            if not self._by_point(op):
                continue
            self.rows.add(op.output.tensor)
            after.add(op.output.tensor)
            candidates.append(op)
        needed: set[str] = set()
        found: set[str] = set()
        for op in reversed(candidates):
            grouped = op.kind is NodeKind.GROUPED and op.inputs[-1].tensor == self.ids
            if grouped or op.output.tensor in needed:
                found.add(op.name)
                needed.update(a.tensor for a in op.inputs)
        return found

    def _by_point(self, op: Operator) -> bool:
        """Whether an operator works point by point, the points in dimension 0 of all that has them."""
        if op.kind is NodeKind.LAYOUT and (op.function != "copy" or len(op.inputs) != 1):
            return False
        found = {a.index[0].single for a in op.inputs if a.tensor in self.rows}
        if len(found) != 1 or None in found:
            return False
        (row,) = found
        axis = op.axis(str(row))
        plain = axis.extent == self.points and axis.combine is None and row not in op.over
        return plain and all(
            row not in dict(i.terms) if k else row not in a.axes or i.single == row
            for a in (*op.inputs, op.output)
            for k, i in enumerate(a.index)
        )

    def rewritten(self) -> Graph:
        """Dispatch before the region, combine after it."""
        outside = {a.tensor for op in self.graph.operators if op.name not in self.inside for a in op.inputs} | set(
            self.graph.outputs
        )
        slot = ""
        for op in self.graph.operators:
            if op.name not in self.inside:
                self.operators.append(op)
                continue
            slot = slot or self._places()
            self._translate(op)
            if op.output.tensor in outside:
                self._back(op.output.tensor, slot)
        return replace(self.graph, tensors=tuple(self.tensors.values()), operators=tuple(self.operators))

    def _emit(
        self,
        part: str,
        function: str,
        axes: Sequence[Axis],
        inputs: Sequence[Access],
        out: Sequence[str],
        dtype: str,
        attributes: dict[str, Value] | None = None,
    ) -> str:
        name = part
        while name in self.tensors:
            name += "'"
        extent = {a.name: a.extent for a in axes}
        self.tensors[name] = Tensor(name, tuple(extent[a] for a in out), dtype, Role.VALUE, host=function == "to_host")
        listed = tuple(sorted((attributes or {}).items()))
        self.operators.append(Operator(name, function, tuple(axes), tuple(inputs), access(name, *out), listed))
        return name

    def _view(self, part: str, tensor: str, shape: Sequence[int], name: str | None = None) -> str:
        """A tensor in another shape; `name`: of a tensor that exists."""
        axes = [Axis(f"d{k}", n, None, False) for k, n in enumerate(shape)]
        whole = Access(tensor, tuple(Affine.everything() for _ in self.tensors[tensor].shape))
        names = [a.name for a in axes]
        if name is None:
            return self._emit(part, "copy", axes, [whole], names, self.tensors[tensor].dtype)
        self.operators.append(Operator(name, "copy", tuple(axes), (whole,), access(name, *names)))
        return name

    def _places(self) -> str:
        """slot[g, l]; the point of every slot is kept for `_dispatched`."""
        g, point = Axis("g", self.groups), Axis("l", self.length)
        ids = self._view(f"{self.name}.ids", self.ids, (self.groups, self.length))
        place = self._place_among(ids)
        start = self._emit(
            f"{self.name}.start",
            "scale",
            [g, point],
            [access(ids, "g", "l")],
            ["g", "l"],
            "int64",
            {"scale": float(self.places)},
        )
        read = [access(start, "g", "l"), access(place, "g", "l")]
        end = self._emit(f"{self.name}.end", "add", [g, point], read, ["g", "l"], "int64")
        free = self._emit(
            f"{self.name}.free",
            "less",
            [g, point],
            [access(place, "g", "l")],
            ["g", "l"],
            "bool",
            {"value": self.places},
        )
        slot = self._emit(
            f"{self.name}.slot",
            "mask_fill",
            [g, point],
            [access(end, "g", "l"), access(free, "g", "l")],
            ["g", "l"],
            "int64",
            {"value": -1},
        )
        order = self._emit(
            f"{self.name}.points", "iota", [point], [], ["l"], "int64", {"along": "l", "start": 0, "step": 1}
        )
        self.at = self._emit(
            f"{self.name}.at",
            "scatter_max",
            [g, Axis("r", self.experts * self.places), replace(point, combine=Combine.MAX)],
            [access(order, "l"), access(slot, "g", "l")],
            ["g", "r"],
            "int64",
            {"rows": "r"},
        )
        return slot

    def _place_among(self, ids: str) -> str:
        """place[g, l]: how many points before it chose the same expert."""
        g, point, e = Axis("g", self.groups), Axis("l", self.length), Axis("e", self.experts)
        along = Axis("l", self.length, None, False)
        number = self._emit(
            f"{self.name}.experts", "iota", [e], [], ["e"], "int64", {"along": "e", "start": 0, "step": 1}
        )
        chosen = self._emit(
            f"{self.name}.chosen",
            "equal",
            [g, point, e],
            [access(ids, "g", "l"), access(number, "e")],
            ["g", "l", "e"],
            "bool",
        )
        before = self._emit(
            f"{self.name}.before",
            "cumulative_sum",
            [g, along, e],
            [access(chosen, "g", "l", "e")],
            ["g", "l", "e"],
            "int32",
            {"over": ("l",), "exclusive": 1},
        )
        return self._emit(
            f"{self.name}.place",
            "embedding",
            [g, point, replace(e, combine=Combine.SUM)],
            [access(before, "g", "l", "e"), access(ids, "g", "l")],
            ["g", "l"],
            "int32",
            {"rows": "e"},
        )

    def _dispatched(self, tensor: str) -> str:
        """Rows of a tensor, its dimension 0 the points, at their slots: [g, e, c, rest]."""
        if tensor in self._slots:
            return self._slots[tensor]
        source, rest, at = tensor, self.tensors[tensor].shape[1:], self.at
        length, step = self.length, self._step(tensor)
        if step > 1:  # every row stands `step` times: read it where it stands once
            source, length = self._single(tensor), self.length // step
            axes = [Axis("g", self.groups), Axis("r", self.experts * self.places)]
            at = self._emit(
                f"{self.name}.token",
                "floor_divide",
                axes,
                [access(self.at, "g", "r")],
                ["g", "r"],
                "int64",
                {"value": step},
            )
        table = self._view(f"{tensor}.groups", source, (self.groups, length, *rest))
        inner = [f"m{k}" for k in range(len(rest))]
        axes = [
            Axis("g", self.groups),
            Axis("r", self.experts * self.places),
            *(Axis(a, n) for a, n in zip(inner, rest, strict=True)),
            Axis("v", length, Combine.SUM),
        ]
        reads = [access(table, "g", "v", *inner), access(at, "g", "r")]
        dtype = self.tensors[tensor].dtype
        rows = self._emit(f"{tensor}.dispatch", "embedding", axes, reads, ["g", "r", *inner], dtype, {"rows": "v"})
        shape = (self.groups, self.experts, self.places, *rest)
        self._slots[tensor] = self._view(f"{tensor}.slots", rows, shape)
        return self._slots[tensor]

    def _writer(self, tensor: str) -> Operator | None:
        return next((op for op in self.operators if op.output.tensor == tensor), None)

    def _step(self, tensor: str) -> int:
        """How often every row stands in a tensor that is a flattened expansion of rows (`unsorted`), else 1."""
        flat = self._writer(tensor)
        wide = self._writer(flat.inputs[0].tensor) if flat is not None and is_view(flat) else None
        if wide is None or not wide.name.endswith("/rows") or wide.function != "copy":
            return 1
        return int(wide.axis(wide.output.axes[1]).extent)

    def _single(self, tensor: str) -> str:
        flat = self._writer(tensor)
        wide = self._writer(flat.inputs[0].tensor) if flat is not None else None
        return tensor if wide is None else wide.inputs[0].tensor

    def _translate(self, op: Operator) -> None:
        """An operator of the region, with the axes g, e, c in the place of its points."""
        row = str(op.output.index[0].single)
        own = [Axis("g'", self.groups), Axis("e'", self.experts), Axis("c'", self.places)]
        names = [a.name for a in own]
        by_ids = op.kind in (NodeKind.GROUPED, NodeKind.GATHER) and op.inputs[-1].tensor == self.ids
        gone = op.rows if by_ids else ""
        axes = [x for a in op.axes if a.name != gone for x in (own if a.name == row else (a,))]
        inputs = []
        for a in op.inputs[: -1 if by_ids else None]:
            index = tuple(Affine.axis("e'") if gone and i.single == gone else i for i in a.index)
            if row not in a.axes:
                inputs.append(Access(a.tensor, index))
            else:
                inputs.append(Access(self._dispatched(a.tensor), (*map(Affine.axis, names), *index[1:])))
        out = [x for n in op.output.axes for x in (names if n == row else (n,))]
        function = {NodeKind.GROUPED: "product", NodeKind.GATHER: "copy"}[op.kind] if by_ids else op.function
        kept = {k: v for k, v in op.attributes if not by_ids}
        dtype = self.tensors[op.output.tensor].dtype
        self._slots[op.output.tensor] = self._emit(f"{op.name}.slots", function, axes, inputs, out, dtype, kept)

    def _back(self, tensor: str, slot: str) -> None:
        """Rows of the region at the points they belong to, 0 where a point was dropped."""
        inner = self.tensors[tensor].shape[1:]
        names = [f"m{k}" for k in range(len(inner))]
        flat = self._view(f"{tensor}.rows", self._slots[tensor], (self.groups, self.experts * self.places, *inner))
        axes = [
            Axis("g", self.groups),
            Axis("l", self.length),
            *(Axis(a, n) for a, n in zip(names, inner, strict=True)),
            Axis("v", self.experts * self.places, Combine.SUM),
        ]
        reads = [access(flat, "g", "v", *names), access(slot, "g", "l")]
        dtype = self.tensors[tensor].dtype
        rows = self._emit(f"{tensor}.combine", "embedding", axes, reads, ["g", "l", *names], dtype, {"rows": "v"})
        self._view("", rows, (self.points, *inner), tensor)
