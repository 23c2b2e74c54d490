"""A small builder for graphs: every method adds one operator and returns the name of its result.

Axes are named by the caller, einsum-like, so that a graph written by hand reads like its mathematics.

>>> g = Builder("mlp")
>>> x = g.input("x", (64, 784))
>>> w = g.parameter("w", (784, 512))
>>> h = g.contract("fc1", "b k, k n -> b n", x, w)
>>> y = g.map("relu1", "relu", h)
>>> g.build(y).operators[0].axes
(Axis(name='b', extent=64, combine=None, splittable=True), Axis(name='n', extent=512, combine=None, splittable=True),
Axis(name='k', extent=784, combine=<Combine.SUM: 'sum'>, splittable=True))
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from math import prod

from ...program.graph import Graph, GraphError, Role, Tensor
from ...program.index import Access, Affine, Axis, Combine, access
from ...program.operators import EVEN, FUNCTIONS, Operator, Value


class Builder:
    """Collects tensors and operators; `build` checks and freezes them.  Raises `GraphError` on misuse."""

    def __init__(self, name: str, dtype: str = "float32") -> None:
        self.name, self.dtype = name, dtype
        self.tensors: dict[str, Tensor] = {}
        self.operators: list[Operator] = []

    def input(
        self, name: str, shape: Sequence[int], dtype: str | None = None, source_shape: Sequence[int] | None = None
    ) -> str:
        """A graph input."""
        return self._tensor(name, shape, dtype, Role.INPUT, source_shape)

    def parameter(
        self, name: str, shape: Sequence[int], dtype: str | None = None, source_shape: Sequence[int] | None = None
    ) -> str:
        """A stored weight."""
        return self._tensor(name, shape, dtype, Role.PARAMETER, source_shape)

    def _tensor(
        self, name: str, shape: Sequence[int], dtype: str | None, role: Role, source: Sequence[int] | None = None
    ) -> str:
        if name in self.tensors:
            raise GraphError(f"tensor {name!r}", "name is used twice")
        self.tensors[name] = Tensor(
            name, tuple(shape), dtype or self.dtype, role, None if source is None else tuple(source)
        )
        return name

    def operator(
        self,
        name: str,
        function: str,
        axes: Sequence[Axis],
        inputs: Sequence[Access],
        out: Sequence[str],
        attributes: dict[str, Value] | None = None,
        dtype: str | None = None,
    ) -> str:
        """Add any operator; the result is a new tensor `name` indexed by the axes `out`."""
        extents = {a.name: a.extent for a in axes}
        spec = FUNCTIONS.get(function)
        result = self._tensor(
            name, [extents[a] for a in out], dtype or ("bool" if spec and spec.logical else None), Role.VALUE
        )
        if function == "to_host":
            self.tensors[result] = replace(self.tensors[result], host=True)
        attrs = tuple(sorted((attributes or {}).items()))
        self.operators.append(Operator(name, function, tuple(axes), tuple(inputs), access(result, *out), attrs))
        return result

    def _letters(
        self, name: str, text: str, tensors: Sequence[str]
    ) -> tuple[list[list[str]], list[str], dict[str, int]]:
        left, arrow, right = text.partition("->")
        operands = [part.split() for part in left.split(",")]
        if not arrow or len(operands) != len(tensors):
            raise GraphError(f"operator {name!r}", f"{text!r} needs one index list per input and '->'")
        extents: dict[str, int] = {}
        for letters, t in zip(operands, tensors, strict=True):
            shape = self.tensors[t].shape
            if len(letters) != len(shape):
                raise GraphError(
                    f"operator {name!r}", f"{t!r} has shape {shape}, index list has {len(letters)} letters"
                )
            for a, n in zip(letters, shape, strict=True):
                if extents.setdefault(a, n) != n:
                    raise GraphError(f"operator {name!r}", f"axis {a!r} has extents {extents[a]} and {n}")
        return operands, right.split(), extents

    def contract(self, name: str, text: str, *tensors: str) -> str:
        """Einsum: letters missing on the right are summed."""
        return self._einsum(name, "product", text, tensors, Combine.SUM)

    def reduce(self, name: str, text: str, tensor: str, combine: Combine = Combine.SUM, scale: float = 1.0) -> str:
        """Reduce one tensor: `reduce("m", "b s -> b", x, Combine.MAX)`; `scale` multiplies a sum (mean = 1/n)."""
        return self._einsum(name, combine.value, text, (tensor,), combine, {} if scale == 1.0 else {"scale": scale})

    def _einsum(
        self,
        name: str,
        function: str,
        text: str,
        tensors: Sequence[str],
        combine: Combine,
        attributes: dict[str, Value] | None = None,
    ) -> str:
        operands, right, extents = self._letters(name, text, tensors)
        order = [*right, *[a for a in extents if a not in right]]
        axes = [Axis(a, extents[a], None if a in right else combine) for a in order]
        return self.operator(
            name, function, axes, [access(t, *o) for t, o in zip(tensors, operands, strict=True)], right, attributes
        )

    def iota(
        self,
        name: str,
        shape: Sequence[int],
        along: int,
        start: float = 0,
        step: float = 1,
        dtype: str | None = None,
    ) -> str:
        """Positions: element i is `start + step * i[along]`; no input."""
        axes = [Axis(f"i{k}", n) for k, n in enumerate(shape)]
        attributes: dict[str, Value] = {"along": f"i{along}", "start": start, "step": step}
        return self.operator(name, "iota", axes, [], [a.name for a in axes], attributes, dtype)

    def map(
        self,
        name: str,
        function: str,
        *tensors: str,
        text: str | None = None,
        dtype: str | None = None,
        **attributes: Value,
    ) -> str:
        """Elementwise function.  Without `text` all inputs have the first one's shape; `text` broadcasts by letters.

        `dtype`: element type of the result (without it the builder's, and bool for comparisons); `cast` converts to it.
        """
        if text is None:
            letters = " ".join(f"i{k}" for k in range(len(self.tensors[tensors[0]].shape)))
            text = ", ".join([letters] * len(tensors)) + " -> " + letters
        operands, right, extents = self._letters(name, text, tensors)
        axes = [Axis(a, extents[a]) for a in right]
        inputs = [access(t, *o) for t, o in zip(tensors, operands, strict=True)]
        if function == "cast":
            attributes["dtype"] = dtype or self.dtype
        return self.operator(name, function, axes, inputs, right, attributes, dtype)

    def normalise(
        self,
        name: str,
        function: str,
        text: str,
        *tensors: str,
        over: Sequence[str],
        dtype: str | None = None,
        **attributes: Value,
    ) -> str:
        """Statistics over the axes `over`: `normalise("p", "softmax", "b h s t -> b h s t", x, over="t")`.

        A function without statistics (top_k_mask, cumulative_sum) makes `over` unsplittable.
        """
        operands, right, extents = self._letters(name, text, tensors)
        whole = function in FUNCTIONS and not FUNCTIONS[function].statistics
        return self.operator(
            name,
            function,
            [Axis(a, extents[a], None, not (whole and a in over)) for a in right],
            [access(t, *o) for t, o in zip(tensors, operands, strict=True)],
            right,
            {"over": tuple(over), **attributes},
            dtype,
        )

    def embedding(self, name: str, text: str, table: str, ids: str) -> str:
        """Gather rows: `embedding("e", "v m, b s -> b s m", table, ids)`; the first letter is the row axis.

        Letters of the ids that are missing on the right are bags: their rows are summed (`"v m, b q -> b m"`).
        """
        operands, right, extents = self._letters(name, text, (table, ids))
        rows = operands[0][0]
        bags = [a for a in extents if a not in right and a != rows]
        axes = [*(Axis(a, extents[a]) for a in right), *(Axis(a, extents[a], Combine.SUM) for a in (rows, *bags))]
        return self.operator(
            name,
            "embedding",
            axes,
            [access(table, *operands[0]), access(ids, *operands[1])],
            right,
            {"rows": rows},
            self.tensors[table].dtype,
        )

    def grouped_product(self, name: str, text: str, *tensors: str, rows: str, load: str = EVEN) -> str:
        """Grouped product: `grouped_product("h", "t k, e k n, t j -> t j n", x, w, ids, rows="e")`; the last tensor
        names groups.
        """
        return self._einsum(name, "grouped_product", text, tensors, Combine.SUM, {"rows": rows, "load": load})

    def convolution(
        self,
        name: str,
        x: str,
        w: str,
        stride: tuple[int, int] = (1, 1),
        pad: tuple[int, int] = (0, 0),
        dilation: tuple[int, int] = (1, 1),
        pad_end: tuple[int, int] | None = None,
    ) -> str:
        """x[b, c, y, x] * w[o, c, ky, kx]; grouped: x[b, g, c, y, x] * w[g, o, c, ky, kx] -> [b, g, o, y, x]."""
        grouped = len(self.tensors[x].shape) == 5
        xs, ws = self.tensors[x].shape, self.tensors[w].shape
        end = pad if pad_end is None else pad_end
        (h, v), (kh, kw) = xs[-2:], ws[-2:]
        oh = (h + pad[0] + end[0] - dilation[0] * (kh - 1) - 1) // stride[0] + 1
        ow = (v + pad[1] + end[1] - dilation[1] * (kw - 1) - 1) // stride[1] + 1
        g = [Axis("g", ws[0])] if grouped else []
        axes = [
            Axis("b", xs[0]),
            *g,
            Axis("o", ws[1 if grouped else 0]),
            Axis("y", oh),
            Axis("x", ow),
            Axis("c", xs[2 if grouped else 1], Combine.SUM),
            Axis("ky", kh, Combine.SUM, False),
            Axis("kx", kw, Combine.SUM, False),
        ]
        lead = ["g"] if grouped else []
        rows = Affine.axis("y", stride[0]).plus("ky", dilation[0]).shift(-pad[0])
        cols = Affine.axis("x", stride[1]).plus("kx", dilation[1]).shift(-pad[1])
        return self.operator(
            name,
            "product",
            axes,
            [access(x, "b", *lead, "c", rows, cols), access(w, *lead, "o", "c", "ky", "kx")],
            ["b", *lead, "o", "y", "x"],
        )

    def pool(
        self,
        name: str,
        function: str,
        x: str,
        kernel: tuple[int, int],
        stride: tuple[int, int],
        pad: tuple[int, int] = (0, 0),
        pad_end: tuple[int, int] | None = None,
        **attributes: Value,
    ) -> str:
        """max_pool or average_pool over the last two dimensions of x[b, c, y, x]."""
        b, c, h, v = self.tensors[x].shape
        end = pad if pad_end is None else pad_end
        oh = (h + pad[0] + end[0] - kernel[0]) // stride[0] + 1
        ow = (v + pad[1] + end[1] - kernel[1]) // stride[1] + 1
        combine = Combine.MAX if function == "max_pool" else Combine.SUM
        axes = [
            Axis("b", b),
            Axis("c", c),
            Axis("y", oh),
            Axis("x", ow),
            Axis("ky", kernel[0], combine, False),
            Axis("kx", kernel[1], combine, False),
        ]
        rows = Affine.axis("y", stride[0]).plus("ky").shift(-pad[0])
        cols = Affine.axis("x", stride[1]).plus("kx").shift(-pad[1])
        return self.operator(
            name, function, axes, [access(x, "b", "c", rows, cols)], ["b", "c", "y", "x"], dict(attributes)
        )

    def view(self, name: str, x: str, shape: Sequence[int]) -> str:
        """Row-major view of `x` in another shape (a reshape): an opaque copy, which `digits` removes where it can.

        Raises `GraphError` if the number of elements differs.
        """
        if prod(shape) != self.tensors[x].elements:
            raise GraphError(
                f"operator {name!r}", f"cannot view {x!r} of shape {self.tensors[x].shape} as {tuple(shape)}"
            )
        axes = [Axis(f"d{k}", n, None, False) for k, n in enumerate(shape)]
        whole = Access(x, tuple(Affine.everything() for _ in self.tensors[x].shape))
        return self.operator(name, "copy", axes, [whole], [a.name for a in axes], dtype=self.tensors[x].dtype)

    def build(self, *outputs: str) -> Graph:
        """The checked graph."""
        return Graph(self.name, tuple(self.tensors.values()), tuple(self.operators), tuple(outputs)).check()
