"""Instances of what reads and writes where data says: scatters, grouped products, orders; sizes drawn."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from shardproof.models.program.graph import Graph
from shardproof.models.program.index import Axis, Combine, access
from shardproof.models.sources.building.builder import Builder

Rng = np.random.Generator


def scatter(function: str) -> Callable[[Rng], Graph]:
    """x[b, s, m] at ids[b, s] into [v, m], or x[b, s] at ids[b, s] into [b, v]: along one dimension."""

    def make(rng: Rng) -> Graph:
        g = Builder("scatter", "float64")
        v, b, s, m = (int(n) for n in rng.integers(1, 5, 4))
        how = Combine.SUM if function == "scatter_add" else Combine(function.removeprefix("scatter_"))
        ids = g.input("ids", (b, s), "int32")
        if rng.integers(0, 2):
            axes = [Axis("v", v), Axis("m", m), Axis("b", b, how), Axis("s", s, how)]
            x, out = access(g.parameter("x", (b, s, m)), "b", "s", "m"), ["v", "m"]
        else:
            axes = [Axis("b", b), Axis("v", v), Axis("s", s, how)]
            x, out = access(g.parameter("x", (b, s)), "b", "s"), ["b", "v"]
        y = g.operator("y", function, axes, [x, access(ids, "b", "s")], out, {"rows": "v"})
        if function == "scatter_add":
            return g.build(y)
        return g.build(g.map("z", "clip", y, low=-9.0, high=9.0))  # where nothing goes there is no finite number

    return make


def grouped(rng: Rng) -> Graph:
    """Tokens through the experts they chose; with gates, and the sum over the choices; the transposed weights."""
    g = Builder("grouped", "float64")
    t, j, e, k, n = (int(x) for x in rng.integers(1, 5, 5))
    ids = g.input("ids", (t, j), "int64")
    shared = [Axis("t", t), Axis("n", n), Axis("e", e, Combine.SUM), Axis("k", k, Combine.SUM)]
    kind = int(rng.integers(0, 3))
    if kind < 2:
        x, w = g.parameter("x", (t, k)), g.parameter("w", (e, k, n))
        reads = [access(x, "t", "k"), access(w, "e", "k", "n")]
    if kind == 0:
        axes, out = [Axis("t", t), Axis("j", j), *shared[1:]], ["t", "j", "n"]
    elif kind == 1:
        reads.append(access(g.parameter("gate", (t, j)), "t", "j"))
        axes, out = [*shared, Axis("j", j, Combine.SUM)], ["t", "n"]
    else:  # a weight of its own for every expert and output, nothing summed but the groups
        reads, out = [access(g.parameter("gain", (e, n)), "e", "n")], ["j", "t", "n"]
        axes = [Axis("j", j), *shared[:3]]
    attributes = {"rows": "e", **({"load": "any"} if rng.integers(0, 2) else {})}
    return g.build(g.operator("y", "grouped_product", axes, [*reads, access(ids, "t", "j")], out, attributes))


def order(rng: Rng) -> Graph:
    """Positions in order; a few values, so that equal ones occur."""
    g = Builder("order", "float64")
    a, b = (int(x) for x in rng.integers(1, 6, 2))
    attributes = {"over": ("b",), **({"descending": 1} if rng.integers(0, 2) else {})}
    axes = [Axis("b", b, None, False), Axis("a", a)]
    x = access(g.input("x", (a, b)), "a", "b")
    return g.build(g.operator("y", "argsort", axes, [x], ["b", "a"], attributes, "int64"))


CASES: dict[str, Callable[[Rng], Graph]] = {
    **{f"scatter_{how}": scatter(f"scatter_{how}") for how in ("add", "max", "min")},
    "grouped_product": grouped,
}
