"""Every invariant of graphs is broken by a graph of its own, and the error shows the operator in index notation."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import pytest

from shardproof.__main__ import run
from shardproof.models.program.contents import Contents
from shardproof.models.program.graph import Graph, GraphError, Role, Tensor
from shardproof.models.program.index import Access, Affine, Axis, Combine, access
from shardproof.models.program.invariants import INVARIANTS, first_broken
from shardproof.models.program.notation import MOST, operator_text
from shardproof.models.program.operator_invariants import MOST_AXIS
from shardproof.models.program.operators import Operator
from shardproof.models.program.specified import Placed, Specified

N, K = Axis("n", 4), Axis("k", 3, Combine.SUM)
AXES: dict[str, tuple[Axis, ...]] = {"relu": (N,), "product": (N, K)}


def graph() -> Graph:
    """y[n] = relu(x[n]);  z[n] = sum k: product(x[n], w[k]);  v[n] = scale(p[n]), the next value of p."""
    return Graph(
        "g",
        (
            Tensor("x", (4,), role=Role.INPUT),
            Tensor("w", (3,), role=Role.INPUT),
            Tensor("p", (4,), role=Role.PARAMETER),
            Tensor("y", (4,)),
            Tensor("z", (4,)),
            Tensor("v", (4,)),
        ),
        (
            Operator("a", "relu", (N,), (access("x", "n"),), access("y", "n")),
            Operator("b", "product", (N, K), (access("x", "n"), access("w", "k")), access("z", "n")),
            Operator("c", "scale", (N,), (access("p", "n"),), access("v", "n"), (("scale", 2.0),)),
        ),
        ("y", "z"),
        (("p", "v"),),
    )


def tensor(index: int, **changes: object) -> Callable[[Graph], Graph]:
    return lambda g: replace(
        g, tensors=tuple(replace(t, **changes) if i == index else t for i, t in enumerate(g.tensors))
    )


def operator(index: int, **changes: object) -> Callable[[Graph], Graph]:
    return lambda g: replace(
        g, operators=tuple(replace(op, **changes) if i == index else op for i, op in enumerate(g.operators))
    )


def with_ids(change: Callable[[Operator], Operator], function: str) -> Callable[[Graph], Graph]:
    """The graph with e[k, n] = sum r: function(.., ids[k]) for a function that goes by data."""

    def made(g: Graph) -> Graph:
        rows = Axis("r", 5, Combine.SUM)
        reads = (access("t", "r", "n"), access("i", "k"))
        op = Operator("d", function, (Axis("k", 3), N, rows), reads, access("e", "k", "n"), (("rows", "r"),))
        tensors = (Tensor("t", (5, 4), role=Role.INPUT), Tensor("i", (3,), "int64", Role.INPUT), Tensor("e", (3, 4)))
        return replace(g, tensors=g.tensors + tensors, operators=(*g.operators, change(op)))

    return made


def attention(g: Graph) -> Graph:
    axes = (Axis("q", 4), Axis("t", 4, Combine.SUM), Axis("f", 2, Combine.SUM), Axis("e", 2))
    reads = (access("Q", "q", "f"), access("K", "t", "f"), access("V", "t", "e"))
    op = Operator("d", "attention", axes, reads, access("o", "q", "e"), (("key", 7),))
    tensors = tuple(Tensor(n, (4, 2), role=Role.INPUT) for n in "QKV")
    return replace(g, tensors=(*g.tensors, *tensors, Tensor("o", (4, 2))), operators=(*g.operators, op))


def huge(g: Graph) -> Graph:
    axes = tuple(Axis(f"h{i}", 1 << 22, Combine.SUM) for i in range(3))
    op = Operator("d", "product", (N, *axes), (access("x", "n"),), access("u", "n"))
    return replace(g, tensors=(*g.tensors, Tensor("u", (4,))), operators=(*g.operators, op))


def late(g: Graph) -> Graph:
    op = Operator("d", "relu", (N,), (access("p", "n"),), access("u", "n"))
    return replace(g, tensors=(*g.tensors, Tensor("u", (4,))), operators=(*g.operators, op))


def drawn(g: Graph) -> Graph:
    """Random numbers of no distribution."""
    words = (("distribution", "none"), ("draw", 0), ("seed", 1))
    op = Operator("d", "random", (Axis("n", 4),), (), access("u", "n"), words)
    return replace(g, tensors=(*g.tensors, Tensor("u", (4,), "float64")), operators=(*g.operators, op))


def used(x: Placed, axes: tuple[str, ...] = ("a",)) -> Specified:
    """A use of an operator of the user's own."""
    return Specified("own", "y[a] = x[a]", (("x", axes, x),), (), False, Placed.plain("y", 1))


MUTANTS: dict[str, Callable[[Graph], Graph]] = {
    "tensor names": tensor(1, name="x"),
    "operator names": operator(1, name="a"),
    "tensor extents": tensor(0, shape=(0,)),
    "contents": tensor(2, contents=Contents("0" * 64)),
    "frozen": tensor(0, frozen=True),
    "element type": tensor(0, dtype="float8"),
    "tensor bytes": tensor(0, shape=(1 << 30, 1 << 30, 4)),
    "source shape": tensor(0, source_shape=(5,)),
    "function": operator(0, function="sing"),
    "arity": operator(0, inputs=()),
    "axes": operator(0, axes=(N, N)),
    "accesses": operator(0, inputs=(access("nobody", "n"),)),
    "order": operator(0, inputs=(access("z", "n"),)),
    "one writer": operator(1, output=access("y", "n")),
    "output index": operator(0, output=Access("y", (Affine.axis("n", 2),))),
    "combine": operator(1, axes=(N, replace(K, combine=Combine.MAX))),
    "taps": operator(1, function="max_pool", axes=(N, replace(K, combine=Combine.MAX)), inputs=(access("x", "n"),)),
    "over": operator(0, function="softmax", attributes=(("over", ("m",)),)),
    "rows": with_ids(lambda op: replace(op, attributes=()), "embedding"),
    "groups": with_ids(lambda op: replace(op, attributes=(("load", "some"), ("rows", "r"))), "grouped_product"),
    "attention": attention,
    "pairs": operator(1, function="product_sum", inputs=(access("x", "n"), access("w", "k"), access("w", "k"))),
    "arithmetic": operator(1, attributes=(("arithmetic", "float16"),)),
    "scan": operator(1, function="scan", attributes=(("turn", "k"),)),
    "epilogue": operator(1, function="fused_product", attributes=(("epilogue", ("relu",)), ("factors", 1))),
    "random": drawn,
    "host": operator(0, function="to_host"),
    "leading": lambda g: replace(g, leading=(("x", 7),)),
    "work": huge,
    "computed": lambda g: replace(g, outputs=("nothing",)),
    "next value": lambda g: replace(g, state=(("x", "v"),)),
    "one pair": lambda g: replace(g, state=(("p", "v"), ("p", "z"))),
    "same storage": tensor(2, shape=(2, 2), source_shape=None),
    "late reader": late,
    "places": lambda g: replace(g, specified=(used(Placed.plain("nothing", 1)),)),
    "operand axes": lambda g: replace(g, specified=(used(Placed.plain("x", 1), ("a", "b")),)),
}


def test_the_graph_is_well_formed() -> None:
    assert first_broken(graph()) is None
    assert graph().check() == graph()


@pytest.mark.parametrize("name", [name for level in INVARIANTS for name, _ in level.names])
def test_every_invariant_is_broken_by_a_graph(name: str) -> None:
    made = MUTANTS[name](graph())
    if name == "same storage":  # a parameter of another shape, read as such
        read = operator(2, inputs=(Access("p", (Affine.axis("n"), Affine())),))
        made = read(made)
    broken = first_broken(made)
    assert broken is not None and broken.invariant == name
    with pytest.raises(GraphError) as caught:
        made.check()
    assert str(caught.value) == f"{broken.place}: {broken.message}"
    assert getattr(caught.value, "__notes__", []) == ([broken.notation] if broken.notation else [])


def test_names_and_reasons() -> None:
    rows = [row for level in INVARIANTS for row in level.names]
    assert len({name for name, _ in rows}) == len(rows) == len(MUTANTS)
    assert all(why for _, why in rows)


def test_too_long_axes_name_the_next_step() -> None:
    with pytest.raises(GraphError, match="reshape it into two axes"):
        tensor(0, shape=(MOST_AXIS + 1,))(graph()).check()


def test_the_error_shows_the_operator(tmp_path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "g.json"
    path.write_text(MUTANTS["combine"](graph()).to_json())
    assert run(["plan", str(path), "--machine", "cloud-a100:2x2", "-o", str(tmp_path / "p.spz")]) == 3
    lines = capsys.readouterr().err.splitlines()
    at = next(i for i, line in enumerate(lines) if "axis 'k' says max" in line)
    assert lines[at + 1] == "    z[n] = max k: product(x[n], w[k])    n < 4, k < 3"


def test_notation_of_hostile_operators_is_one_short_line() -> None:
    axes = tuple(Axis(f"a\n{i}", i) for i in range(1000))
    text = operator_text(Operator("d", "\x1b[1A", axes, (), Access("", ()), (("values", tuple(range(9999))),)))
    assert text.isprintable() and len(text) < MOST
