"""The reverse pass: contributions to the gradient of every tensor, and how they add up.

    grad:T  =  sum over the uses of T of the adjoint of that use                                             (chain
               rule)

A use contributes either a tensor that exists already (`x + y` hands its gradient on) or an operator that is not yet
part of the graph.  When every use of T is known, `Backward.finish` decides:

    one contribution        it is `grad:T`
    several                 those that `contributions` makes one are one; each is computed, then one `sum_inputs`

Source: Griewank and Walther, Evaluating Derivatives (2008), chapter 3 (reverse mode).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

from ...program.graph import Graph, Role, Tensor
from ...program.index import Access, Axis, access
from ...program.operators import Operator, Value
from ...program.scan import Result
from ..building.dimensions import dimension_names
from .contributions import Contribution, Existing, Pending, merge_products, side_by_side


class Backward:
    """State of a reverse pass over `graph`.  `active`: tensors whose gradient is wanted.  `seed`: the scalar 1 that it
    starts from.

    `taken`: what a loop writes -> (the copy that takes one result out of it, the result, the gradient of the copy).
    `recomputed`: forward tensor -> the tensor that the reverse pass reads in its place (`recompute.compute_again`).
    `typed`: no gradient is wider than its tensor, so that it is rounded where torch rounds it; else one that is handed
    on keeps its type.
    """

    def __init__(self, graph: Graph, active: set[str], typed: bool = False) -> None:
        self.graph, self.active, self.typed = graph, active, typed
        self.recomputed: dict[str, str] = {}
        self.tensors: dict[str, Tensor] = {t.name: t for t in graph.tensors}
        self.operators: list[Operator] = []
        self.gradient: dict[str, str] = {}
        self.names = dimension_names(graph)
        self.seed = ""
        self.taken: dict[str, list[tuple[Operator, Result, str]]] = {}
        self.adjoint_of: dict[str, str] = {}
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

    def add(self, tensor: str, part: Contribution) -> None:
        """Contribute to the gradient of a tensor."""
        self._parts.setdefault(tensor, []).append(part)

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
        t = self.tensors[tensor]
        parts = merge_products(self._parts.pop(tensor, []))
        whole = dict(zip(self.names[tensor], t.shape, strict=True))
        parts = side_by_side(parts, whole, lambda n: self.tensors[n].elements, lambda p: self._part(p, t.dtype))
        if not parts:
            return
        if len(parts) == 1:
            only = parts[0]
            if self.typed and isinstance(only, Existing) and self.tensors[only.tensor].element_bytes > t.element_bytes:
                only = self._narrowed(only, t, whole)
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
                if t.role is Role.PARAMETER:
                    self.adjoint_of[names[-1]] = part.label
        out = self.names[tensor]
        axes = [Axis(a, n) for a, n in zip(out, t.shape, strict=True)]
        self.gradient[tensor] = self.emit(
            f"grad:{tensor}", "sum_inputs", axes, [access(n, *out) for n in names], out, (), t.dtype, t.source_shape
        )

    def _narrowed(self, part: Existing, t: Tensor, whole: Mapping[str, int]) -> Pending:
        axes = tuple(Axis(a, n) for a, n in whole.items())
        return Pending("cast", "cast", axes, (access(part.tensor, *whole),), tuple(whole), (("dtype", t.dtype),))

    def _part(self, part: Pending, dtype: str) -> str:
        return self.emit(
            f"grad:{part.label}/place", part.function, part.axes, part.inputs, part.out, part.attributes, dtype
        )

    def _add(self, name: str, part: Pending, like: Tensor) -> str:
        return self.emit(
            name, part.function, part.axes, part.inputs, part.out, part.attributes, like.dtype, like.source_shape
        )
