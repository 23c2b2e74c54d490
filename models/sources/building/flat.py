"""Builds operators over flat dimensions: what the importers of ONNX and PyTorch share, before digits are
recovered.

    node of the file -> operators over the dimensions it names, reshapes as views -> `digits.split_digits`

Every function here adds one operator of a node and returns the name of the tensor it writes.  Misuse (shapes that do
not fit) is a `GraphError` with the reason; the importer adds the node's name.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from math import prod
from typing import Protocol

from ...program.graph import Graph, GraphError
from ...program.index import Access, Affine, Axis, Combine
from ...program.operators import FUNCTIONS, Value
from ...program.specified import with_specified
from .builder import Builder


class Unsupported(Exception):
    """A node uses a variant of its operator that we cannot represent; `reason` goes into the list of all of them."""

    def __init__(self, reason: str) -> None:
        super().__init__(reason)
        self.reason = reason


class Named(Protocol):
    """A node of the file: here only its name matters."""

    @property
    def name(self) -> str: ...


class Flat:
    """The graph being built.  `reserved`: names that only their owner may take.  `where`: operator -> node it came
    from.
    """

    g: Builder
    reserved: frozenset[str]
    where: dict[str, str]

    def unique(self, name: str, own: bool = False) -> str:
        """A free tensor name; names of the file's inputs and weights stay free for them (`own`)."""
        free, k = name, 1
        while free in self.g.tensors or (not own and free in self.reserved):
            k += 1
            free = f"{name}#{k}"
        return free

    def name(self, node: Named, part: str = "") -> str:
        """Name of a new operator of a node: the node's name, or `name.part`; remembers where it came from."""
        name = self.unique(f"{node.name}.{part}" if part else node.name)
        self.where[name] = node.name
        return name

    def operator(
        self,
        node: Named,
        part: str,
        function: str,
        axes: Sequence[Axis],
        inputs: Sequence[Access],
        out: Sequence[str],
        attributes: Mapping[str, Value] | None = None,
        dtype: str | None = None,
    ) -> str:
        """Add an operator of the node; its element type is that of its first input, unless given or logical."""
        if dtype is None:
            dtype = "bool" if FUNCTIONS[function].logical else self.g.tensors[inputs[0].tensor].dtype
        return self.g.operator(self.name(node, part), function, axes, inputs, out, dict(attributes or {}), dtype)

    def view(self, node: Named, part: str, tensor: str, shape: Sequence[int]) -> str:
        """`tensor` in another shape, row-major; the tensor itself if it has this shape."""
        if self.g.tensors[tensor].shape == tuple(shape):
            return tensor
        return self.g.view(self.name(node, part), tensor, shape)


def letters(rank: int) -> list[str]:
    """Axis names for a tensor of this rank, as the zoo uses them.

    >>> letters(4)
    ['b', 'c', 'y', 'x']
    """
    named = {0: "", 1: "n", 2: "b n", 3: "b s m", 4: "b c y x", 5: "b c z y x"}
    return named[rank].split() if rank in named else [f"i{k}" for k in range(rank)]


def broadcast(tensor: str, shape: Sequence[int], names: Sequence[str], extents: Sequence[int]) -> Access:
    """Access to an operand aligned to the right of the axes `names`; a dimension of extent 1 is read at 0 where the
    axis is longer.

    >>> broadcast("bias", (3, 1), ["b", "c", "x"], [2, 3, 5]).index
    (Affine(terms=(('c', 1),), offset=0, whole=False), Affine(terms=(), offset=0, whole=False))
    """
    first = len(names) - len(shape)
    return Access(
        tensor,
        tuple(Affine.axis(names[first + k]) if n == extents[first + k] else Affine() for k, n in enumerate(shape)),
    )


def _axes(names: Sequence[str], extents: Sequence[int]) -> list[Axis]:
    return [Axis(a, n) for a, n in zip(names, extents, strict=True)]


def common_shape(shapes: Sequence[Sequence[int]]) -> list[int]:
    """The shape that operands have under NumPy broadcasting, at least one dimension.  Raises `GraphError` if there is
    none.

    >>> common_shape([(3, 1), (2, 1, 5)])
    [2, 3, 5]
    """
    rank = max(len(s) for s in shapes) or 1
    padded = [(1,) * (rank - len(s)) + tuple(s) for s in shapes]
    extents = [max(s[k] for s in padded) for k in range(rank)]
    for s in padded:
        if any(n not in (1, extents[k]) for k, n in enumerate(s)):
            raise GraphError("node", f"operands of shapes {[tuple(s) for s in shapes]} cannot be broadcast")
    return extents


def pointwise(
    c: Flat,
    node: Named,
    part: str,
    function: str,
    values: Sequence[tuple[str, Sequence[int]]],
    element: str | None = None,
    **attributes: Value,
) -> str:
    """An elementwise function of (tensor, shape) operands under NumPy broadcasting; `element`: element type of the
    result.
    """
    extents = common_shape([s for _, s in values])
    names = letters(len(extents))
    inputs = [broadcast(t, s or (1,), names, extents) for t, s in values]
    return c.operator(node, part, function, _axes(names, extents), inputs, names, attributes, element)


def normalise(
    c: Flat,
    node: Named,
    part: str,
    function: str,
    values: Sequence[tuple[str, Sequence[int]]],
    over: Sequence[int],
    element: str | None = None,
    **attributes: Value,
) -> str:
    """A normalise function over dimensions of its first operand; the others are aligned to the right."""
    shape = values[0][1]
    names = letters(len(shape))
    whole = not FUNCTIONS[function].statistics
    axes = [Axis(a, n, None, not (whole and k in over)) for k, (a, n) in enumerate(zip(names, shape, strict=True))]
    inputs = [broadcast(t, s, names, shape) for t, s in values]
    return c.operator(
        node, part, function, axes, inputs, names, {"over": tuple(names[k] for k in over), **attributes}, element
    )


def reorder(c: Flat, node: Named, part: str, tensor: str, perm: Sequence[int]) -> str:
    """Transpose: output dimension k is input dimension `perm[k]`."""
    shape = c.g.tensors[tensor].shape
    if sorted(perm) != list(range(len(shape))):
        raise GraphError("node", f"perm {tuple(perm)} is no permutation of the dimensions of {shape}")
    names = letters(len(shape))
    index = tuple(Affine.axis(names[list(perm).index(d)]) for d in range(len(shape)))
    return c.operator(
        node, part, "copy", [Axis(names[k], shape[p]) for k, p in enumerate(perm)], [Access(tensor, index)], names
    )


def part_of(
    c: Flat, node: Named, part: str, tensor: str, extents: Sequence[int], index: Mapping[int, tuple[int, int]]
) -> str:
    """out[..] = input[.., step * a + offset, ..], 0 outside; `index`: dimension -> (step, offset)."""
    names = letters(len(extents))
    reads = tuple(
        Affine(((a, index[k][0]),), index[k][1]) if k in index else Affine.axis(a) for k, a in enumerate(names)
    )
    return c.operator(node, part, "copy", _axes(names, extents), [Access(tensor, reads)], names)


def concatenate(c: Flat, node: Named, part: str, tensors: Sequence[str], dim: int) -> str:
    """Concatenation: the sum of the inputs, each shifted to its place."""
    shapes = [c.g.tensors[t].shape for t in tensors]
    if any(s[:dim] + s[dim + 1 :] != shapes[0][:dim] + shapes[0][dim + 1 :] for s in shapes):
        raise GraphError("node", f"cannot concatenate shapes {shapes} along dimension {dim}")
    names, start, inputs = letters(len(shapes[0])), 0, []
    for tensor, s in zip(tensors, shapes, strict=True):
        index = [Affine.axis(a) for a in names]
        index[dim] = index[dim].shift(-start)
        inputs.append(Access(tensor, tuple(index)))
        start += s[dim]
    extents = [*shapes[0][:dim], start, *shapes[0][dim + 1 :]]
    return c.operator(node, part, "copy", _axes(names, extents), inputs, names)


@dataclass(frozen=True)
class Folding:
    """How dimensions are combined: by sum, max or min, a sum multiplied by `scale`; `keep` leaves extent 1."""

    function: str
    scale: float = 1.0
    keep: bool = False


def reduce_dimensions(
    c: Flat,
    node: Named,
    part: str,
    tensor: str,
    shape: Sequence[int],
    dims: Sequence[int],
    how: Folding,
    **more: Value,
) -> str:
    """Combine the dimensions `dims`; `more`: attributes."""
    names, combine = letters(len(shape)), Combine(how.function)
    kept = [k for k in range(len(shape)) if k not in dims]
    order = [*(Axis(names[k], shape[k]) for k in kept), *(Axis(names[k], shape[k], combine) for k in sorted(dims))]
    attributes: dict[str, Value] = more if how.scale == 1.0 else {"scale": how.scale, **more}
    y = c.operator(
        node, part, how.function, order, [broadcast(tensor, shape, names, shape)], [names[k] for k in kept], attributes
    )
    return c.view(node, "keep", y, [1 if k in dims else n for k, n in enumerate(shape)]) if how.keep else y


def matrix_product(
    c: Flat, node: Named, part: str, left: tuple[str, Sequence[int]], right: tuple[str, Sequence[int]]
) -> str:
    """Matrix product with broadcast leading dimensions; a vector is a row on the left, a column on the right."""
    (a, p), (b, q) = left, right
    if not p or not q or p[-1] != q[-2 if len(q) > 1 else 0]:
        raise GraphError("node", f"shapes {tuple(p)} and {tuple(q)} do not fit")
    rank = max(len(p), len(q), 2)
    names = ["b", "h", *(f"h{k}" for k in range(rank))][: rank - 2]
    lead = [(1,) * (rank - max(len(s), 2)) + tuple(s[:-2]) for s in (p, q)]
    extents = [max(m, n) for m, n in zip(*lead, strict=True)]
    if any(n not in (1, extents[k]) for s in lead for k, n in enumerate(s)):
        raise GraphError("node", f"leading dimensions of {tuple(p)} and {tuple(q)} cannot be broadcast")
    rows, columns = ["s"] if len(p) > 1 else [], ["n"] if len(q) > 1 else []

    def read(tensor: str, shape: Sequence[int], inner: list[str]) -> Access:
        first = broadcast(tensor, shape[: len(shape) - len(inner)], names, extents)
        return Access(tensor, (*first.index, *map(Affine.axis, inner)))

    outer = [*_axes(names, extents), *(Axis(r, p[-2]) for r in rows), *(Axis(n, q[-1]) for n in columns)]
    if not outer:
        raise Unsupported("two vectors")
    inputs = [read(a, p, [*rows, "k"]), read(b, q, ["k", *columns])]
    return c.operator(node, part, "product", [*outer, Axis("k", p[-1], Combine.SUM)], inputs, [x.name for x in outer])


def lookup(
    c: Flat,
    node: Named,
    part: str,
    table: tuple[str, Sequence[int]],
    dim: int,
    ids: tuple[str, Sequence[int]],
    bag: int | None = None,
    padding: int | None = None,
) -> str:
    """table[.., ids[..], ..] along dimension `dim`; the ids' dimensions take its place.  `bag`: a dimension of the
    ids that is summed.  `padding`: a row that gets no gradient.
    """
    (t, shape), (i, places) = table, ids
    inner = [f"m{k}" for k in range(len(shape) - 1)] if len(shape) != 2 else ["m"]
    where = [["s"], ["b", "s"]][len(places) - 1] if 0 < len(places) < 3 else [f"i{k}" for k in range(len(places))]
    columns = [*inner[:dim], "v", *inner[dim:]]
    out = [*inner[:dim], *(a for k, a in enumerate(where) if k != bag), *inner[dim:]]
    extents = {**dict(zip(columns, shape, strict=True)), **dict(zip(where, places, strict=True))}
    summed = [Axis("v", shape[dim], Combine.SUM)]
    if bag is not None:
        summed.append(Axis(where[bag], places[bag], Combine.SUM))
    attributes: dict[str, Value] = {"rows": "v"} if padding is None else {"padding": padding, "rows": "v"}
    reads = [Access(t, tuple(map(Affine.axis, columns))), Access(i, tuple(map(Affine.axis, where)) or (Affine(),))]
    return c.operator(node, part, "embedding", [*(Axis(a, extents[a]) for a in out), *summed], reads, out, attributes)


def used(graph: Graph) -> Graph:
    """Without what contributes to no output."""
    needed = set(graph.outputs)
    operators = []
    for op in reversed(graph.operators):
        if op.output.tensor in needed:
            needed.update(a.tensor for a in op.inputs)
            operators.append(op)
    kept = Graph(
        graph.name, tuple(t for t in graph.tensors if t.name in needed), tuple(reversed(operators)), graph.outputs
    )
    return with_specified(kept, graph)


def scale_of_mean(shape: Sequence[int], dims: Sequence[int]) -> float:
    """Factor that turns a sum over `dims` into a mean."""
    return 1.0 / prod(shape[k] for k in dims)


LONGEST_AXIS = (1 << 31) - 1
"""Largest extent of an axis: block sizes and collectives count elements in 32-bit integers."""


def check_extents(graph: Graph) -> Graph:
    """The graph, if all axes can be counted in 32 bits.  Raises `GraphError` naming the first that cannot."""
    for t in graph.tensors:
        for k, n in enumerate(t.shape):
            if n > LONGEST_AXIS:
                raise GraphError(
                    f"tensor {t.name!r}",
                    f"dimension {k} has {n} elements, more than 2**31 - 1; split it in the model (a reshape is enough)",
                )
    return graph
