"""The reverse pass: contributions to the gradient of every tensor, and how they add up.

    grad:T  =  sum over the uses of T of the adjoint of that use                                             (chain
               rule)

A use contributes either a tensor that exists already (`x + y` hands its gradient on) or an operator that is not yet
part of the graph.  When every use of T is known, `Backward.finish` decides:

    one contribution        it is `grad:T`
    several products over the same reduced axes up to renaming (the projections of q, k and v)
                            one `product_sum`: partial sums are added before they travel, since no operator reads them
                            open (flag `closed-reads`)
    several others          each is computed, then one `sum_inputs`

Source: Griewank and Walther, Evaluating Derivatives (2008), chapter 3 (reverse mode).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from ...program.graph import Graph, Role, Tensor
from ...program.index import Access, Affine, Axis, Combine, access
from ...program.operators import Operator, Value


@dataclass(frozen=True)
class Existing:
    """A contribution that is a tensor of the graph already, with the dimensions of the tensor it is the gradient of."""

    tensor: str


@dataclass(frozen=True)
class Pending:
    """A contribution that is an operator to be: `out` names one axis per dimension; `label` tells the uses apart."""

    label: str
    function: str
    axes: tuple[Axis, ...]
    inputs: tuple[Access, ...]
    out: tuple[str, ...]
    attributes: tuple[tuple[str, Value], ...] = ()


Contribution = Existing | Pending


def dimension_names(graph: Graph) -> dict[str, tuple[str, ...]]:
    """Tensor -> a name per dimension, as its writer (else its first plain reader) calls them: added operators read
    like their neighbours.
    """
    names = {op.output.tensor: op.output.axes for op in graph.operators}
    for op in graph.operators:
        for a in op.inputs:
            singles = tuple(i.single for i in a.index if i.single is not None)
            if len(set(singles)) == len(a.index):
                names.setdefault(a.tensor, singles)
    return {t.name: names.get(t.name, tuple(f"i{k}" for k in range(len(t.shape)))) for t in graph.tensors}


class Backward:
    """State of a reverse pass over `graph`.  `active`: tensors whose gradient is wanted.  `seed`: the scalar 1 that it
    starts from.

    `recomputed`: forward tensor -> the tensor that the reverse pass reads in its place (`recompute.compute_again`).
    """

    def __init__(self, graph: Graph, active: set[str]) -> None:
        self.graph, self.active = graph, active
        self.recomputed: dict[str, str] = {}
        self.tensors: dict[str, Tensor] = {t.name: t for t in graph.tensors}
        self.operators: list[Operator] = []
        self.gradient: dict[str, str] = {}
        self.names = dimension_names(graph)
        self.seed = ""
        self._parts: dict[str, list[Contribution]] = {}

    def wants(self, op: Operator, position: int) -> bool:
        """Whether input `position` of a forward operator needs its gradient."""
        return op.inputs[position].tensor in self.active

    def forward(self, a: Access) -> Access:
        """How the reverse pass reads what a forward operator read."""
        return replace(a, tensor=self.recomputed.get(a.tensor, a.tensor))

    def incoming(self, op: Operator) -> Access:
        """The gradient of the operator's output, at the output's indices."""
        return replace(op.output, tensor=self.gradient[op.output.tensor])

    def give(self, op: Operator, position: int, part: Contribution) -> None:
        """Contribute to the gradient of input `position` of a forward operator."""
        self._parts.setdefault(op.inputs[position].tensor, []).append(part)

    def emit(
        self,
        name: str,
        function: str,
        axes: Sequence[Axis],
        inputs: Sequence[Access],
        out: Sequence[str],
        attributes: Sequence[tuple[str, Value]] = (),
        dtype: str = "float32",
        source_shape: tuple[int, ...] | None = None,
    ) -> str:
        """Add an operator; its result is a new tensor of the same name (primed if that is taken), which is returned."""
        while name in self.tensors:
            name += "'"
        extent = {a.name: a.extent for a in axes}
        self.tensors[name] = Tensor(name, tuple(extent[a] for a in out), dtype, Role.VALUE, source_shape)
        self.operators.append(
            Operator(name, function, tuple(axes), tuple(inputs), access(name, *out), tuple(sorted(attributes)))
        )
        return name

    def finish(self, tensor: str) -> None:
        """Add up the contributions to `tensor`; nothing happens when there are none."""
        parts = _merged(self._parts.pop(tensor, []))
        if not parts:
            return
        t = self.tensors[tensor]
        if len(parts) == 1:
            only = parts[0]
            self.gradient[tensor] = only.tensor if isinstance(only, Existing) else self._add(f"grad:{tensor}", only, t)
            return
        names: list[str] = []
        labels: dict[str, int] = {}
        for part in parts:
            if isinstance(part, Existing):
                names.append(part.tensor)
            else:
                labels[part.label] = labels.get(part.label, 0) + 1
                again = f".{labels[part.label]}" if labels[part.label] > 1 else ""
                names.append(self._add(f"grad:{tensor}/{part.label}{again}", part, t))
        out = self.names[tensor]
        axes = [Axis(a, n) for a, n in zip(out, t.shape, strict=True)]
        self.gradient[tensor] = self.emit(
            f"grad:{tensor}", "sum_inputs", axes, [access(n, *out) for n in names], out, (), t.dtype, t.source_shape
        )

    def _add(self, name: str, part: Pending, like: Tensor) -> str:
        return self.emit(
            name, part.function, part.axes, part.inputs, part.out, part.attributes, like.dtype, like.source_shape
        )


def _merged(parts: Sequence[Contribution]) -> list[Contribution]:
    """Products over the same reduced axes, up to renaming, as one `product_sum`, in the place of the first."""
    groups: dict[object, list[Pending]] = {}
    order: list[tuple[object, Contribution]] = []
    for n, part in enumerate(parts):
        key: object = n
        if isinstance(part, Pending) and (form := _form(part)) is not None:
            key = form
            groups.setdefault(key, []).append(part)
        if key == n or len(groups[key]) == 1:
            order.append((key, part))
    out: list[Contribution] = []
    for key, part in order:
        members = groups.get(key, [])
        if len(members) < 2 or not isinstance(part, Pending):
            out.append(part)
            continue
        names = list(_names(part))
        inputs = [_renamed(a, dict(zip(_names(m), names, strict=True))) for m in members for a in m.inputs]
        out.append(
            replace(
                part,
                function="product_sum",
                inputs=tuple(inputs),
                label="+".join(dict.fromkeys(m.label for m in members)),
            )
        )
    return out


def _names(part: Pending) -> tuple[str, ...]:
    """Axes in an order that does not depend on their names: the output's, then by first use in the inputs."""
    return tuple(dict.fromkeys((*part.out, *(a for x in part.inputs for a in x.axes))))


def _form(part: Pending) -> object | None:
    """Equal for products that can share one sum; None for what is no plain product of two with a reduction."""
    reduced = [a for a in part.axes if a.combine is Combine.SUM]
    names = _names(part)
    if (
        part.function != "product"
        or len(part.inputs) != 2
        or part.attributes
        or not reduced
        or len(names) != len(part.axes)
    ):
        return None
    number = {a: str(i) for i, a in enumerate(names)}
    flags = {a.name: (a.extent, a.combine, a.splittable) for a in part.axes}
    return tuple(flags[a] for a in names), tuple(_renamed(x, number).index for x in part.inputs)


def _renamed(a: Access, names: Mapping[str, str]) -> Access:
    return Access(a.tensor, tuple(Affine(tuple((names[n], c) for n, c in i.terms), i.offset, i.whole) for i in a.index))
