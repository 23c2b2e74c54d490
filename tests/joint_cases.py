"""Small programs for tests of joint plans, and all programs that rules make of them, by rewriting graphs themselves."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace

from shardproof.models.program.graph import Graph, GraphError, Role
from shardproof.models.program.index import Access
from shardproof.models.program.operators import Operator
from shardproof.models.sources.building.builder import Builder
from shardproof.models.sources.training import build_step


def chain(layers: int = 2, size: int = 8, activation: str = "relu") -> Graph:
    """Products with activations between them."""
    b = Builder(f"chain-{layers}-{activation}")
    x = b.input("x", (2 * size, size))
    for i in range(layers):
        x = b.contract(f"p{i}", "b k, k n -> b n", x, b.parameter(f"w{i}", (size, size)))
        x = b.map(f"a{i}", activation, x)
    return b.build(x)


def biased() -> Graph:
    """A bias and an activation after a product, whose sum is wanted too."""
    b = Builder("biased")
    p = b.contract("p", "b k, k n -> b n", b.input("x", (8, 6)), b.parameter("w", (6, 4)))
    s = b.map("s", "add", p, b.parameter("c", (4,)), text="b n, n -> b n")
    y = b.map("y", "gelu", s)
    return b.build(y, b.map("z", "tanh", p))


def shared() -> Graph:
    """Two readers of one product, of which one is a map."""
    b = Builder("shared")
    p = b.contract("p", "b k, k n -> b n", b.input("x", (8, 4)), b.parameter("w", (4, 8)))
    r = b.map("r", "relu", p)
    q = b.contract("q", "b n, n m -> b m", p, b.parameter("v", (8, 4)))
    return b.build(b.contract("y", "b n, n m -> b m", r, b.parameter("u", (8, 4))), q)


def step(layers: int = 2, size: int = 8) -> Graph:
    """A training step of a chain that ends with a product."""
    b = Builder("step")
    x = b.input("x", (2 * size, size))
    for i in range(layers - 1):
        x = b.contract(f"p{i}", "b k, k n -> b n", x, b.parameter(f"w{i}", (size, size)))
        x = b.map(f"a{i}", "relu", x)
    x = b.contract("last", "b k, k n -> b n", x, b.parameter("w", (size, 4)))
    return build_step(b.build(b.reduce("loss", "b n -> ", x)), "sgd").graph


CASES: dict[str, Callable[[], Graph]] = {
    "one layer": lambda: chain(1),
    "two layers": chain,
    "three layers": lambda: chain(3, 4),
    "gelu": lambda: chain(2, 8, "gelu"),
    "tanh": lambda: chain(2, 16, "tanh"),
    "bias": biased,
    "shared product": shared,
    "small step": lambda: step(2, 4),
    "step": lambda: step(2, 8),
    "uneven": lambda: chain(2, 6),
}


def programs(graph: Graph, applications: int) -> list[Graph]:
    """All programs that at most so many applications of two rules make of a graph: a map after a product becomes its
    epilogue; a gradient of relu is taken from relu's result.  What nobody reads is left out.
    """
    known, now = {_text(graph): graph}, [graph]
    for _ in range(applications):
        found = [new for old in now for new in _rewritten(old) if _text(new) not in known]
        known.update({_text(g): g for g in found})
        now = list({_text(g): g for g in found}.values())
    return list(known.values())


def _text(graph: Graph) -> str:
    named = [replace(op, name=op.output.tensor) for op in graph.operators]
    return replace(graph, operators=tuple(sorted(named, key=lambda op: op.name))).to_json()


def _rewritten(graph: Graph) -> Iterator[Graph]:
    writer = {op.output.tensor: op for op in graph.operators}
    for op in graph.operators:
        chain = op.attribute("epilogue", ())
        for a in op.inputs:
            p = writer.get(a.tensor)
            if p is None or op.kind.value != "map" or p.function not in ("product", "fused_product"):
                continue
            if [i.single for i in a.index] != list(op.output.axes) or (a is not op.inputs[0] and op.function != "add"):
                continue
            if sum(b.tensor == a.tensor for b in op.inputs) > 1 or len(op.inputs) > 2:
                continue
            names = dict(zip(op.output.axes, p.output.axes, strict=True))
            rest = [
                Access(b.tensor, tuple(replace(i, terms=tuple((names[n], c) for n, c in i.terms)) for i in b.index))
                for b in op.inputs
                if b is not a
            ]
            maps = (*p.attribute("epilogue", ()), op.function)  # type: ignore[misc]
            many = p.attribute("factors", len(p.inputs))
            made = Operator(
                f"{op.name}+{p.name}",
                "fused_product",
                tuple(replace(x, splittable=x.combine is None) for x in p.axes),
                (*p.inputs, *rest),
                Access(op.output.tensor, p.output.index),
                (("epilogue", maps), ("factors", many)),
            )
            yield from _replaced(graph, op, made)
        if op.function == "relu_gradient" or "relu_gradient" in chain:  # type: ignore[operator]
            at = len(op.inputs) - 1
            for relu in graph.operators:
                if (
                    relu.output.tensor in writer
                    and relu.output.tensor != op.inputs[at].tensor
                    and _is_relu_of(relu, op.inputs[at].tensor, graph)
                ):
                    inputs = (*op.inputs[:at], Access(relu.output.tensor, op.inputs[at].index))
                    yield from _replaced(graph, op, replace(op, inputs=inputs))


def _is_relu_of(relu: Operator, x: str, graph: Graph) -> bool:
    """Whether an operator, alone or as an epilogue, gives relu of what `x` is."""
    if relu.function == "relu":
        return relu.inputs[0].tensor == x
    if relu.function != "fused_product" or relu.attribute("epilogue", ()) != ("relu",):
        return False
    writer = {op.output.tensor: op for op in graph.operators}
    return x in writer and writer[x].function == "product" and writer[x].inputs == relu.inputs


def _replaced(graph: Graph, old: Operator, new: Operator) -> Iterator[Graph]:
    """The graph with one operator replaced, in an order in which it runs, without what nobody reads."""
    operators = [new if op is old else op for op in graph.operators]
    wanted = {*graph.outputs, *(v for _, v in graph.state)}
    kept: list[Operator] = []
    for op in reversed(operators):
        if op.output.tensor in wanted:
            kept.append(op)
            wanted.update(a.tensor for a in op.inputs)
    stored = dict(graph.state)
    ready = {t.name for t in graph.tensors if t.role is not Role.VALUE}
    left, order = list(reversed(kept)), list[Operator]()
    while left:
        nexts = [
            op
            for op in left
            if all(a.tensor in ready for a in op.inputs)
            and not any(
                stored.get(a.tensor) == op.output.tensor for other in left if other is not op for a in other.inputs
            )
        ]
        order.append(nexts[0])
        ready.add(nexts[0].output.tensor)
        left = [op for op in left if op is not nexts[0]]
    tensors = tuple(t for t in graph.tensors if t.role is not Role.VALUE or t.name in ready)
    try:
        yield replace(graph, tensors=tensors, operators=tuple(order)).check()
    except GraphError:
        return
