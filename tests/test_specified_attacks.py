"""Claims `Specified` that an attack of November 2026 got proved, though numbers say otherwise: none is any more."""

from __future__ import annotations

from itertools import pairwise
from math import prod

import numpy as np
import pytest

from shardproof.backends.execution.reference import run_graph
from shardproof.models.problem.claims import Verdict
from shardproof.models.program.graph import Graph, Role, Tensor
from shardproof.models.program.index import Access, Affine, Axis, Combine
from shardproof.models.program.operators import Operator
from shardproof.models.program.specified import Placed, Specified
from shardproof.verify.budget import Budget
from shardproof.verify.specified.uses import specified_result


def judged(graph: Graph) -> Verdict:
    found = specified_result(Graph.from_json(graph.to_json()), Budget.with_large())
    assert found is not None
    return found.verdict


def tensor(name: str, shape: tuple[int, ...], role: Role = Role.INPUT, dtype: str = "float64") -> Tensor:
    return Tensor(name, shape, dtype, role)


def one_operator(
    formula: str,
    function: str = "copy",
    attributes: tuple[tuple[str, str], ...] = (),
    reads: str = "float64",
    sizes: tuple[tuple[str, str], ...] = (),
) -> Graph:
    """y = function(x) of four numbers, specified as `formula`."""
    at = (Affine.axis("a"),)
    op = Operator("y", function, (Axis("a", 4),), (Access("x", at),), Access("y", at), attributes)
    named = "t" if sizes else "i"
    use = Specified("own", formula, (("x", (named,), Placed("x", ((0,),))),), sizes, False, Placed("y", ((0,),)))
    tensors = tensor("x", (4,), dtype=reads), tensor("y", (4,), Role.VALUE)
    return Graph("g", tensors, (op,), ("y",), specified=(use,)).check()


@pytest.mark.parametrize(
    ("outside", "result", "read", "size"),
    [(False, (2, 2), (2, 3), "t - 2"), (True, (3, 2), (2, 3), "t"), (False, (2, 2, 2), (2, 3, 2), "8")],
)
def test_digits_of_another_axis(outside: bool, result: tuple[int, ...], read: tuple[int, ...], size: str) -> None:
    """y[a, b] = x[a, b] is no y[i] = x[i] where the two axes are cut otherwise."""
    axes = tuple(Axis(f"a{k}", n) for k, n in enumerate(result))
    at = tuple(Affine.axis(a.name) for a in axes)
    op = Operator("y", "copy", axes, (Access("x", at),), Access("y", at))
    whole = tuple(range(len(read)))
    use = Specified(
        "own", "y[i] = x[i]", (("x", ("t",), Placed("x", (whole,))),), (("i", size),), outside, Placed("y", (whole,))
    )
    graph = Graph("g", (tensor("x", read), tensor("y", result, Role.VALUE)), (op,), ("y",), specified=(use,))
    if prod(result) <= prod(read) and all(n <= m for n, m in zip(result, read, strict=True)):
        x = np.arange(prod(read), dtype=float).reshape(read)
        assert run_graph(graph.check(), {"x": x})["y"].ravel().tolist() != x.ravel()[: prod(result)].tolist()
    assert judged(graph) is not Verdict.PROVED


@pytest.mark.parametrize(
    "formula", ["y[i] = x[i]\u00b2", "y[i] = \u00bd x[i]", "y[i] = 1\u00b2*x[i]", "y[i] = (x[i])\u00be"]
)
def test_characters_that_are_no_token(formula: str) -> None:
    assert judged(one_operator("y[i] = x[i]")) is Verdict.PROVED
    assert judged(one_operator(formula)) is Verdict.REFUTED


@pytest.mark.parametrize("size", ["t\u00b2", "t \u00bd", "8//2\u00b2"])
def test_characters_of_sizes_that_are_no_token(size: str) -> None:
    assert judged(one_operator("y[i] = x[i]", sizes=(("i", "t"),))) is Verdict.PROVED
    assert judged(one_operator("y[i] = x[i]", sizes=(("i", size),))) is not Verdict.PROVED


def test_a_window_of_a_scalar_result_that_leaves_its_operand() -> None:
    axes = (Axis("k", 3, Combine.SUM),)
    op = Operator("y", "sum", axes, (Access("x", (Affine.axis("k").shift(1),)),), Access("y", ()))
    use = Specified(
        "own", "y[] = sum k: x[k + 1]", (("x", ("t",), Placed("x", ((0,),))),), (("k", "t"),), False, Placed("y", ())
    )
    graph = Graph("g", (tensor("x", (3,)), tensor("y", (), Role.VALUE)), (op,), ("y",), specified=(use,)).check()
    assert judged(graph) is Verdict.REFUTED


@pytest.mark.parametrize("dtype", ["int32", "bool", "uint8", "float16", "nothing"])
def test_a_cast_to_another_type_than_its_result_has(dtype: str) -> None:
    assert judged(one_operator("y[i] = x[i]", "cast", (("dtype", "float64"),))) is Verdict.PROVED
    assert judged(one_operator("y[i] = x[i]", "cast", (("dtype", dtype),))) is not Verdict.PROVED
    assert judged(one_operator("y[i] = x[i]", "cast")) is not Verdict.PROVED


@pytest.mark.parametrize("reads", ["int8", "uint8", "int64", "bool"])
@pytest.mark.parametrize("function", ["erf", "abs", "sigmoid", "silu"])
def test_functions_of_integers(function: str, reads: str) -> None:
    assert judged(one_operator(f"y[i] = {function}(x[i])", function)) is Verdict.PROVED
    assert judged(one_operator(f"y[i] = {function}(x[i])", function, reads=reads)) is Verdict.UNDECIDED


def test_a_number_beyond_all_floats_is_no_error() -> None:
    assert judged(one_operator("y[i] = 2*x[i]", "scale", (("scale", 10**400),))) is not Verdict.PROVED  # type: ignore[arg-type]


def test_a_chain_that_doubles_with_every_link_ends() -> None:
    """24 links of maximum(v, v) were unfolded for more than a minute."""
    at = (Affine.axis("a"),)
    names = ["x", *(f"v{k}" for k in range(24))]
    ops = tuple(
        Operator(new, "maximum", (Axis("a", 4),), (Access(old, at), Access(old, at)), Access(new, at))
        for old, new in pairwise(names)
    )
    use = Specified("own", "y[i] = x[i]", (("x", ("i",), Placed("x", ((0,),))),), (), False, Placed("v23", ((0,),)))
    tensors = tensor("x", (4,)), *(tensor(op.name, (4,), Role.VALUE) for op in ops)
    graph = Graph("g", tensors, ops, ("v23",), specified=(use,)).check()
    assert judged(graph) is Verdict.UNDECIDED


def test_where_both_are_defined_is_named() -> None:
    found = specified_result(one_operator("y[i] = x[i] + log(x[i]) - log(x[i])"), Budget.with_large())
    assert found is not None and found.verdict is Verdict.PROVED and "where-defined" in found.assumptions
