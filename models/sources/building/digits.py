"""Digits: reshapes, transposes and expansions disappear, because axes are written in the digits that
the reshapes name.

A view  t2 = reshape(t1)  is the identity once both sides have the same digits (extents, most significant first,
        dimensions of
extent 1 left out).  So every tensor becomes an alias of one stored tensor, digit by digit:

    t2[.., j, ..] = stored[.., source(j), ..]

and its readers read the stored tensor.  A digit along which an expansion repeats elements has no source: readers leave
its axis out, so that keys shared by a group of heads are read as such and never copied.  A view whose boundaries
contradict the rest (`digits_cuts`) stays as a `copy`:  affine, stored[17 g + c], where a flat dimension is read as
digits; else the dimensions concerned are read whole (opaque).

Steps: views in graph order are offered to the cut system -> `_accepted`; the graph is written again in digits ->
`_Writer`.  A cut only names a part of an axis, so superfluous cuts enlarge the search space and never change a value.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from ...program.attention import ROLES, role
from ...program.graph import Graph, Role, Tensor
from ...program.index import Access, Affine, Axis
from ...program.operators import NodeKind, Operator, Value
from ...program.specified import Placed, Specified
from .digits_cuts import CutSystem, groups, is_view, named_digits


@dataclass(frozen=True)
class Digits:
    """A graph in digits, and how it came about.

    `stored`: old tensor name -> tensor of the new graph that holds its elements (row-major equal unless a transpose was
    removed).  `removed`: views and transposes that disappeared.  `affine`: views kept as copies of a flat dimension
    read in digits.  `opaque`: views kept as copies that read dimensions whole.
    """

    graph: Graph
    stored: Mapping[str, str]
    removed: tuple[str, ...]
    affine: tuple[str, ...]
    opaque: tuple[str, ...]


def split_digits(graph: Graph) -> Digits:
    """The same computation with reshapes and transposes removed where digits allow it.

    >>> from .builder import Builder
    >>> g = Builder("flatten")
    >>> x = g.view("flat", g.input("x", (8, 16, 3, 3)), (8, 144))
    >>> y = g.contract("fc", "b k, n k -> b n", x, g.parameter("w", (10, 144)))
    >>> d = split_digits(g.build(y))
    >>> [op.name for op in d.graph.operators], d.graph.tensor("w").shape, d.graph.tensor("w").source_shape
    (['fc'], (10, 16, 3, 3), (10, 144))
    """
    cuts = CutSystem(graph)
    return _Writer(graph, cuts, _accepted(graph, cuts)).write_graph()


def _accepted(graph: Graph, cuts: CutSystem) -> frozenset[str]:
    """Names of the views that become aliases."""
    readers = graph.readers()
    out: list[str] = []
    for op in graph.operators:
        if is_view(op):
            result = graph.tensor(op.output.tensor)
            units = [k for k, n in enumerate(result.shape) if n == 1]
            plain = all(_always_zero(graph.operators[i], j, k) for i, j in readers[result.name] for k in units)
            if plain and cuts.accept(op):
                out.append(op.name)
    return frozenset(out)


def _always_zero(op: Operator, position: int, dim: int) -> bool:
    """Whether an operand's dimension of extent 1 is read at index 0 only (no padding around it)."""
    index = op.inputs[position].index[dim]
    return index.whole or (index.offset == 0 and all(op.axis(a).extent == 1 for a, _ in index.terms))


def _rearranged(graph: Graph, op: Operator) -> tuple[int | None, ...] | None:
    """For a pure transpose or expansion, the input dimension of every output dimension (None: repeated); else None."""
    if op.kind is not NodeKind.LAYOUT or len(op.inputs) != 1 or is_view(op):
        return None
    old = graph.tensor(op.inputs[0].tensor).shape
    where: dict[str, int] = {}
    for k, (index, extent) in enumerate(zip(op.inputs[0].index, old, strict=True)):
        axis = index.single
        if axis is not None and op.axis(axis).extent == extent and axis not in where:
            where[axis] = k
        elif index != Affine() or extent != 1:
            return None
    return tuple(where.get(i.single or "") for i in op.output.index)


def _inside(op: Operator, index: Affine, extent: int) -> bool:
    """Whether an operand's dimension is read inside the tensor only."""
    low, high = index.unclipped_interval({a.name: (0, a.extent) for a in op.axes})
    return not index.whole and low >= 0 and high <= extent


@dataclass(frozen=True)
class _Alias:
    """Digits of a tensor inside a stored tensor: `source[j]` is the stored dimension of digit j, None for a
    repeated one or extent 1.
    """

    stored: str
    source: tuple[int | None, ...]


class _Writer:
    """Writes the graph again in digits."""

    def __init__(self, graph: Graph, cuts: CutSystem, accepted: frozenset[str]) -> None:
        self.graph, self.cuts, self.accepted = graph, cuts, accepted
        self.alias: dict[str, _Alias] = {}
        self.tensors: dict[str, Tensor] = {}
        self.operators: list[Operator] = []
        self.removed: list[str] = []
        self.affine: list[str] = []
        self.opaque: list[str] = []
        self.taken: set[str] = set()
        self.maker = {op.output.tensor: op.name for op in graph.operators}

    def write_graph(self) -> Digits:
        for t in self.graph.tensors:
            if t.role is not Role.VALUE:
                self._store(t.name)
        for op in self.graph.operators:
            self._operator(op)
        outputs = [self._output(o) for o in self.graph.outputs]
        for _, value in self.graph.state:
            self._materialise(value)
        order = [*(t.name for t in self.graph.tensors if t.name in self.tensors)]
        graph = Graph(
            self.graph.name,
            tuple(self.tensors[n] for n in order),
            tuple(self.operators),
            tuple(outputs),
            self.graph.state,
            specified=tuple(filter(None, map(self._specified, self.graph.specified))),
        ).check()
        stored = {t.name: self.alias[t.name].stored for t in self.graph.tensors}
        kept = {op.name for op in self.operators}
        return Digits(
            graph, stored, tuple(n for n in self.removed if n not in kept), tuple(self.affine), tuple(self.opaque)
        )

    def _flat(self, tensor: str) -> list[int]:
        """Extents of all digits of a tensor."""
        return [n for digits in self.cuts.dim_digits(tensor) for n in digits]

    def _store(self, name: str) -> None:
        """Make `name` a tensor of the new graph."""
        t, digits = self.graph.tensor(name), tuple(self._flat(name))
        source = t.source_shape if t.source_shape is not None or digits == t.shape else t.shape
        self.tensors[name] = replace(t, shape=digits, source_shape=source)
        self.alias[name] = _Alias(name, tuple(range(len(digits))))

    def _operator(self, op: Operator) -> None:
        result = op.output.tensor
        order = _rearranged(self.graph, op)
        if op.name in self.accepted:
            mine = self.alias[op.inputs[0].tensor]
            solid = iter([s for s, n in zip(mine.source, self._flat(op.inputs[0].tensor), strict=True) if n > 1])
            self.alias[result] = _Alias(mine.stored, tuple(next(solid) if n > 1 else None for n in self._flat(result)))
            self.removed.append(op.name)
        elif order is not None:
            mine, at, runs = self.alias[op.inputs[0].tensor], 0, []
            for digits in self.cuts.dim_digits(op.inputs[0].tensor):
                runs.append(mine.source[at : at + len(digits)])
                at += len(digits)
            new = self.cuts.dim_digits(result)
            source = [s for k, n in zip(order, new, strict=True) for s in ((None,) * len(n) if k is None else runs[k])]
            self.alias[result] = _Alias(mine.stored, tuple(source))
            self.removed.append(op.name)
        elif is_view(op):
            self._copy(op)
        else:
            self._rewrite(op)

    def _rewrite(self, op: Operator) -> None:
        """An ordinary operator: axes become digits, accesses follow."""
        digits = {a.name: named_digits(a.name, a.extent, self.cuts.cuts(("axis", op.name, a.name))) for a in op.axes}
        self._store(op.output.tensor)
        inputs, output = [self._access(op, a) for a in op.inputs], self._access(op, op.output)
        used = {name for a in inputs for name in a.axes}
        taps = (
            {t for a in op.inputs for i in a.index if len(i.terms) > 1 for t, _ in i.terms}
            if op.kind is NodeKind.CONTRACT
            else set()
        )
        mixed = {t for a in inputs for i in a.index if i.single is None for t, _ in i.terms}
        axes = [  # a reduction over one value that no input names any more is none
            # a tap of a contraction that every operand now reads alone is an ordinary axis
            replace(a, name=name, extent=n, splittable=a.splittable or (a.name in taps and name not in mixed))
            for a in op.axes
            for name, _, n in digits[a.name]
            if name in used or a.combine is None or n > 1 or name == op.rows or op.kind is NodeKind.SCAN
        ]
        attributes: list[tuple[str, Value]] = []
        for key, value in op.attributes:
            if key in ROLES and op.kind is NodeKind.ATTENTION:
                kept = {a.name for a in axes}
                value = tuple(name for a in role(op, key) for name, _, _ in digits[a] if name in kept)
            if key == "over":
                value = tuple(name for a in op.over for name, _, _ in digits[a])
            attributes.append((key, value))
        self.operators.append(Operator(op.name, op.function, tuple(axes), tuple(inputs), output, tuple(attributes)))

    def _access(self, op: Operator, a: Access) -> Access:
        """An access in digits of the stored tensor."""
        digits: list[Affine] = []
        if any(
            repeated and not _inside(op, i, n)
            for repeated, i, n in zip(self._repeated(a.tensor, units=True), a.index, self._shape(a.tensor), strict=True)
        ):
            self._materialise(a.tensor)
        for k, index in enumerate(a.index):
            cuts = self.cuts.cuts(("dim", a.tensor, str(k)))
            if index.whole:
                digits += [index] * (len(cuts) + 1)
                continue
            terms = [(("axis", op.name, t), t, c, op.axis(t).extent) for t, c in index.terms]
            split = self.cuts.index(terms, index.offset, cuts)
            if split is None:
                raise AssertionError(f"operator {op.name!r}: cuts of {a.tensor!r} were accepted but are not affine")
            digits += split
        return self._aliased(self.alias[a.tensor], digits)

    def _specified(self, use: Specified) -> Specified | None:
        """A use of an operator of the user's, in digits; None where elements are repeated along an axis of it."""
        placed = [p for p in map(self._placed, use.places) if p is not None]
        return use.in_places(placed) if len(placed) == len(use.places) else None

    def _placed(self, placed: Placed) -> Placed | None:
        alias, runs, at = self.alias[placed.tensor], list[list[int]](), 0
        for digits in self.cuts.dim_digits(placed.tensor):
            sources = list(zip(alias.source[at : at + len(digits)], digits, strict=True))
            if any(s is None and n > 1 for s, n in sources):
                return None
            runs.append([s for s, _ in sources if s is not None])
            at += len(digits)
        return Placed(alias.stored, tuple(tuple(s for k in dims for s in runs[k]) for dims in placed.axes))

    def _shape(self, tensor: str) -> tuple[int, ...]:
        return self.graph.tensor(tensor).shape

    def _repeated(self, tensor: str, units: bool = False) -> list[bool]:
        """For every dimension of a tensor, whether elements are repeated along it; `units`: or it has extent 1 and
        no source.
        """
        at, source, out = 0, self.alias[tensor].source, []
        for digits in self.cuts.dim_digits(tensor):
            out.append(
                any(s is None and (n > 1 or units) for s, n in zip(source[at : at + len(digits)], digits, strict=True))
            )
            at += len(digits)
        return out

    def _aliased(self, alias: _Alias, digits: Sequence[Affine]) -> Access:
        index = [Affine()] * len(self.tensors[alias.stored].shape)
        for source, i in zip(alias.source, digits, strict=True):
            if source is not None:
                index[source] = i
        return Access(alias.stored, tuple(index))

    def _named(self, op: Operator) -> list[Axis]:
        """Output axes of a copy, in digits."""
        return [
            Axis(name, n)
            for a in op.axes
            for name, _, n in named_digits(a.name, a.extent, self.cuts.cuts(("axis", op.name, a.name)))
        ]

    def _copy(self, op: Operator) -> None:
        """A view that stays: affine if every digit of the input is one or several digits of the output, else opaque."""
        x, axes = op.inputs[0].tensor, self._named(op)
        if any(self._repeated(x)):
            self._materialise(x)
        left = self._flat(x)
        runs = groups(left, [a.extent for a in axes])
        opaque = any(len(mine) > 1 for mine, _ in runs)
        single = {mine[0]: theirs[0] for mine, theirs in runs if len(mine) == len(theirs) == 1}
        if opaque:
            seen = [s for k, s in enumerate(self.alias[x].source) if s is not None and k not in single and left[k] > 1]
            if seen != sorted(seen):  # the row-major order of the stored tensor is not that of the view's input
                self._materialise(x)
        digits = [Affine.everything() if opaque else Affine()] * len(left)
        for mine, theirs in runs:
            if not opaque:
                index, weight = Affine(), 1
                for j in reversed(theirs):
                    index, weight = Affine(((axes[j].name, weight), *index.terms)), weight * axes[j].extent
                digits[mine[0]] = index
            elif mine[0] in single:
                digits[mine[0]] = Affine.axis(axes[theirs[0]].name)
        kept = {a for i in digits for a, _ in i.terms}
        access = self._aliased(self.alias[x], digits)
        if opaque:
            index_ = tuple(Affine.everything() if i == Affine() else i for i in access.index)
            access = Access(access.tensor, index_)
            axes = [replace(a, splittable=a.name in kept) for a in axes]
        self._emit(op.output.tensor, op.name, axes, access)
        (self.opaque if opaque else self.affine).append(op.name)

    def _emit(self, tensor: str, name: str, axes: Sequence[Axis], source: Access) -> None:
        self._store(tensor)
        out = Access(tensor, tuple(Affine.axis(a.name) for a in axes))
        self.operators.append(Operator(name, "copy", tuple(axes), (source,), out))

    def _materialise(self, tensor: str) -> None:
        """Store an alias as a tensor of its own: a transpose that is needed after all."""
        alias = self.alias[tensor]
        if alias.stored != tensor:
            axes = [Axis(f"d{k}", n) for k, n in enumerate(self._flat(tensor))]
            self._emit(tensor, self.maker[tensor], axes, self._aliased(alias, [Affine.axis(a.name) for a in axes]))

    def _output(self, name: str) -> str:
        """Stored tensor of a graph output; it remembers the shape that the user asked for."""
        if any(self._repeated(name)):
            self._materialise(name)
        alias = self.alias[name]
        t, order = self.tensors[alias.stored], [s for s in alias.source if s is not None]
        taken = alias.stored in self.taken or alias.stored in self.graph.outputs
        if alias.stored != name and (order != sorted(order) or t.role is not Role.VALUE or taken):
            self._materialise(name)
            return name
        self.taken.add(alias.stored)
        if alias.stored != name:
            shape = self.graph.tensor(name).shape
            self.tensors[alias.stored] = replace(t, source_shape=None if shape == t.shape else shape)
        return alias.stored


def digits_and_tensors(graph: Graph) -> tuple[Graph, dict[str, str]]:
    """The graph with reshapes removed where digits allow it, and the tensor that holds every result."""
    if graph.state or not any(is_view(op) for op in graph.operators):
        return graph, {t: t for t in graph.outputs}
    done = split_digits(graph)
    return done.graph, dict(zip(graph.outputs, done.graph.outputs, strict=True))
