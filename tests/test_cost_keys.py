"""No two things share a price unless all that the price depends on is equal.

Every field of an operator, of its tensors and of the machine is changed in turn (the fields are listed from the
dataclasses, so a new one is tried by itself): what the caches give for the original and the changed one together, in
both orders, is what `verify.plan.entries` gives for each alone, which reads the operator itself and shares no code with
`models.cost.cost`.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import fields, is_dataclass, replace
from enum import Enum
from fractions import Fraction
from functools import cache
from typing import Any

import numpy as np
import pytest

from shardproof.formal.explain.terms import PlanTerms
from shardproof.formal.plans.plan import plan_graph
from shardproof.models.cost import forms
from shardproof.models.cost.forms import LayoutForm, OperatorForm
from shardproof.models.cost.selection import build
from shardproof.models.cost.structures import Structures
from shardproof.models.layout.placement import Placement, space
from shardproof.models.machine.machine import (
    DeviceClass,
    Level,
    Machine,
    Profile,
    ReductionConstants,
    Resource,
    load_machine,
)
from shardproof.models.machine.measured import AttentionForm
from shardproof.models.problem.claims import Verdict
from shardproof.models.program.contents import Contents
from shardproof.models.program.graph import Graph, Role, Tensor
from shardproof.models.program.index import Affine, Axis, Combine, access
from shardproof.models.program.operators import Operator
from shardproof.models.sources.numpy.opaque import opaque
from shardproof.models.sources.numpy.program import ArraySpec
from shardproof.models.sources.numpy.trace import trace
from shardproof.models.sources.zoo import build as zoo
from shardproof.proofs.plan.bundle import write_plan
from shardproof.verify.plan.boxes import DeviceBoxes, read_by, written_by
from shardproof.verify.plan.communication import plain_layout
from shardproof.verify.plan.entries import operator_entry
from shardproof.verify.plan.plan import check_plan

FULL = space("complete,uneven")
MOST_TRIES = 12
"""Changes of one constant of a machine."""


def machine() -> Machine:
    """Two by two devices of two classes, with a measured box and constants of every kind."""
    slow = DeviceClass(
        "slow",
        (("float32", Fraction(10**9)), ("float64", Fraction(10**8)), ("int64", Fraction(10**8))),
        1 << 20,
        Fraction(10**9),
        Fraction(1, 10**9),
        (1,),
    )
    values = (Fraction(n, 10**9) for n in (3, 5, 7, 11, 10**8, 10**8))
    attended = AttentionForm("float32", "forward", 2, *values)
    levels = (
        Level("nodes", 2, Fraction(10**6), Fraction(1, 10**7)),
        Level("gpus", 2, Fraction(10**7), Fraction(1, 10**8)),
    )
    profiles = tuple(
        Profile("product", "float32", e, Fraction(n, 10**9))
        for n, e in enumerate([(2, 3, 2, 5), (2, 3, 5, 2), (4, 3, 4, 5)], start=7)
    )
    profiles += (Profile("softmax", "float32", (3, 6), Fraction(11, 10**9)),)
    return Machine(
        "mixed",
        levels,
        replace(slow, name="fast", bandwidth=Fraction(10**10), launch=Fraction(0), blocks=(), attentions=(attended,)),
        (),
        (Resource("bus", 2, Fraction(10**9), ("gpus",)),),
        ReductionConstants(Fraction(1), Fraction(1), Fraction(1)),
        (slow,),
        profiles,
    )


Case = tuple[Operator, tuple[Tensor, ...]]


def case(
    function: str,
    axes: list[Axis],
    shapes: dict[str, tuple[tuple[int, ...], str]],
    reads: list[Any],
    out: list[str],
    result: str = "float32",
    **attributes: Any,
) -> Case:
    extent = {a.name: a.extent for a in axes}
    op = Operator("op", function, tuple(axes), tuple(reads), access("y", *out), tuple(sorted(attributes.items())))
    tensors = [Tensor(n, s, d, Role.INPUT) for n, (s, d) in shapes.items()]
    return op, (*tensors, Tensor("y", tuple(extent[a] for a in out), result))


SUM = Combine.SUM
CASES: dict[str, Case] = {
    "two sums": case(
        "product",
        [Axis("i", 4), Axis("j", 3), Axis("p", 4, SUM), Axis("k", 5, SUM)],
        {"a": ((4, 4, 5), "float32"), "b": ((4, 5, 3), "float32")},
        [access("a", "i", "p", "k"), access("b", "p", "k", "j")],
        ["i", "j"],
    ),
    "a sum wider than its factors": case(
        "product",
        [Axis("i", 4), Axis("j", 3), Axis("k", 64, SUM)],
        {"a": ((4, 64), "float32"), "b": ((64, 3), "float32")},
        [access("a", "i", "k"), access("b", "k", "j")],
        ["i", "j"],
        result="float64",
        arithmetic="float32",
    ),
    "window": case(
        "product",
        [Axis("i", 4), Axis("o", 2), Axis("t", 3, SUM, False)],
        {"a": ((9,), "float32"), "w": ((2, 3), "float32")},
        [access("a", Affine.axis("i", 2).plus("t").shift(-1)), access("w", "o", "t")],
        ["i", "o"],
    ),
    "diagonal": case("identity", [Axis("i", 4)], {"a": ((4, 4), "float32")}, [access("a", "i", "i")], ["i"]),
    "softmax": case(
        "softmax",
        [Axis("i", 6), Axis("j", 6)],
        {"a": ((6, 6), "float32")},
        [access("a", "i", "j")],
        ["i", "j"],
        over=("j",),
    ),
    "gather": case(
        "embedding",
        [Axis("b", 4), Axis("m", 2), Axis("v", 8, SUM)],
        {"a": ((8, 2), "float32"), "ids": ((4,), "int64")},
        [access("a", "v", "m"), access("ids", "b")],
        ["b", "m"],
        rows="v",
    ),
    "scatter": case(
        "embedding_gradient",
        [Axis("v", 8), Axis("m", 2), Axis("b", 4, SUM)],
        {"g": ((4, 2), "float32"), "ids": ((4,), "int64")},
        [access("g", "b", "m"), access("ids", "b")],
        ["v", "m"],
        rows="v",
    ),
    "grouped": case(
        "grouped_product",
        [Axis("t", 4), Axis("n", 2), Axis("e", 4, SUM), Axis("k", 3, SUM)],
        {"x": ((4, 3), "float32"), "w": ((4, 3, 2), "float32"), "ids": ((4,), "int64")},
        [access("x", "t", "k"), access("w", "e", "k", "n"), access("ids", "t")],
        ["t", "n"],
        result="float64",  # slow to compute: what a device shares of the points shows
        rows="e",
        load="even",
    ),
    "attention": case(
        "attention",
        [Axis("s", 6), Axis("t", 6, SUM), Axis("f", 2, SUM, False), Axis("e", 3, None, False)],
        {"q": ((6, 2), "float32"), "k": ((6, 2), "float32"), "v": ((6, 3), "float32")},
        [access("q", "s", "f"), access("k", "t", "f"), access("v", "t", "e")],
        ["s", "e"],
        query=("s",),
        key=("t",),
        feature=("f",),
        value_feature=("e",),
        ahead=0,
    ),
    "opaque": case(
        "opaque",
        [Axis("i", 6), Axis("j", 4, None, False)],
        {"a": ((6, 4), "float32")},
        [access("a", "i", Affine.everything())],
        ["i", "j"],
        flops=40,
        kernel="m:f",
        positional=("i", "j"),
    ),
}


def changes(value: Any, path: str = "") -> Iterator[tuple[str, Any]]:
    """Every field of a value, however deep, changed in turn: (its path, the changed whole)."""
    if isinstance(value, bool):
        yield path, not value
    elif isinstance(value, Enum):
        yield from ((path, other) for other in type(value) if other is not value)
    elif isinstance(value, int | Fraction):
        yield path, value + 1
    elif isinstance(value, str):
        yield from (
            (path, other)
            for other in (value + "'", "float64", "strided_gradient", "log_softmax", "relu", "any", "i", "k", "m")
            if other != value
        )
    elif value is None and path.endswith(".contents"):
        yield path, Contents("0" * 64)
    elif value is None:
        yield from ((path, other) for other in (*Combine, (2, 2), ReductionConstants()))
    elif isinstance(value, tuple):
        if len({type(one) for one in value}) == 1:  # a list, not a pair of different things
            yield from (
                (path, other) for other in (tuple(reversed(value)), value[1:], value + value[:1]) if other != value
            )
        for k, one in enumerate(value):
            yield from ((p, (*value[:k], other, *value[k + 1 :])) for p, other in changes(one, f"{path}[]"))
    elif is_dataclass(value):
        for f in fields(value):
            if f.init:
                yield from (
                    (p, replace(value, **{f.name: other}))
                    for p, other in changes(getattr(value, f.name), f"{path}.{f.name}")
                )  # type: ignore[type-var]


def renamed(part: Case, suffix: str) -> Case:
    """The same under other names of operator and tensors."""
    op, tensors = part

    def away(a: Any) -> Any:
        return replace(a, tensor=a.tensor + suffix)

    return replace(op, name=op.name + suffix, inputs=tuple(map(away, op.inputs)), output=away(op.output)), tuple(
        replace(t, name=t.name + suffix) for t in tensors
    )


def together(*parts: Case) -> tuple[Graph, dict[str, tuple[str, ...]]]:
    """One graph of several operators; rows in the order of the axes' names, whatever the order in the operator."""
    graph = Graph("g", tuple(t for _, tensors in parts for t in tensors), tuple(op for op, _ in parts), ())
    return graph, {op.name: tuple(sorted(a.name for a in op.axes)) for op, _ in parts}


Seen = tuple[list[int], list[list[DeviceBoxes]]]
"""Times and boxes (inputs, output) under every placement."""


@cache
def truth(part: Case, on: Machine) -> Seen | None:
    """From index sets alone; None if the operator makes no sense."""
    graph, orders = together(part)
    op = part[0]
    try:
        graph.check()
        matrices = Structures(graph, on, FULL, orders).of_operator(op)
        placements = [
            Placement(orders[op.name], tuple(tuple(int(x) for x in row) for row in matrix)) for matrix in matrices
        ]
        boxes = [
            [
                *(read_by(op, j, graph, p, on.hierarchy) for j in range(len(op.inputs))),
                written_by(op, graph, p, on.hierarchy),
            ]
            for p in placements
        ]
        return [operator_entry(op, graph, p, on) for p in placements], boxes
    except (ValueError, LookupError, ArithmeticError, TypeError):
        return None


def cached(structures: Structures, op: Operator) -> Seen:
    """From the caches."""
    sets = [
        s.layouts for s in (*(structures.read(op, j) for j in range(len(op.inputs))), structures.output_layouts(op))
    ]
    boxes = [
        [plain_layout(s.layout(int(s.of_choice[i]))) for s in sets] for i in range(len(structures.of_operator(op)))
    ]
    return structures.costs(op).times.tolist(), boxes


def differing(first: Case, second: Case, on: Machine, expected: Mapping[str, Seen]) -> list[str]:
    """Names of operators for which the caches, filled in this order, give anything but the truth."""
    graph, orders = together(first, second)
    structures = Structures(graph, on, FULL, orders)
    return [op.name for op in graph.operators if cached(structures, op) != expected[op.name]]


def tried(name: str, on: Machine) -> tuple[list[str], set[str]]:
    """(paths whose change is priced or laid out wrongly in some order, paths whose change tells)."""
    base = CASES[name]
    plain, wrong, told = truth(base, on), list[str](), set[str]()
    assert plain is not None
    for path, (op, tensors) in {str(c): (p, c) for p, c in changes(base)}.values():
        if len({t.name for t in tensors}) < len(tensors) or (op, tensors) == base:
            continue
        other = renamed((op, tensors), "2")
        expected = truth(other, on)
        if expected is None:
            continue
        if expected != plain:
            told.add(path)
        both = {base[0].name: plain, other[0].name: expected}
        for pair in ((base, other), (other, base)):
            try:
                right = not differing(*pair, on, both)
            except (ValueError, LookupError):  # layouts of another number of placements
                right = False
            if not right:
                wrong.append(path)
    return wrong, told


@cache
def untouched(name: str) -> tuple[list[str], set[str]]:
    return tried(name, machine())


@pytest.mark.parametrize("name", sorted(CASES))
def test_every_change_of_an_operator_has_its_own_price(name: str) -> None:
    wrong, told = untouched(name)
    assert wrong == [] and len(told) > 3


def test_together_the_cases_tell_every_field() -> None:
    """Fields that change nothing are names and notes, how parts are combined, which costs nothing, and what follows
    from the function (what lies on hosts); all others are seen to matter.
    """
    told = set().union(*(untouched(name)[1] for name in CASES))
    silent = {"Operator.name", "Axis.combine", "Tensor.name", "Tensor.role", "Tensor.source_shape", "Axis.name"}
    silent |= {"Tensor.contents", "Tensor.frozen", "Tensor.host"}
    for kind, prefix in ((Operator, "[]."), (Tensor, "[][]."), (Axis, "[].axes[]."), (Affine, "[].inputs[].index[].")):
        for f in fields(kind):
            if f"{kind.__name__}.{f.name}" not in silent:
                assert any(path.startswith(prefix + f.name) for path in told), (kind.__name__, f.name)


@pytest.mark.slow
@pytest.mark.parametrize("field", [f.name for f in fields(OperatorForm)])
def test_a_key_that_lacks_a_field_is_found(field: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """The prices are kept under the form without one field: some change is priced wrongly then."""
    real = Structures.costs

    def careless(self: Structures, op: Operator) -> Any:
        form = self._forms[op.name]
        key = tuple(getattr(form, f.name) for f in fields(form) if f.name != field)
        known = self.__dict__.setdefault("careless", {})
        if key not in known:
            known[key] = real(self, op)
        return known[key]

    monkeypatch.setattr(Structures, "costs", careless)
    found = any(tried(name, machine())[0] for name in CASES)
    # what lies inside a point, and how many factors it has, is counted in `flops` too
    assert found != (field in ("inner", "factors")), field


@pytest.mark.slow
@pytest.mark.parametrize("field", [f.name for f in fields(LayoutForm)])
def test_a_layout_key_that_lacks_a_field_is_found(field: str, monkeypatch: pytest.MonkeyPatch) -> None:
    real = Structures._keyed

    def careless(self: Structures, form: LayoutForm) -> Any:
        key = tuple(getattr(form, f.name) for f in fields(form) if f.name != field)
        known = self.__dict__.setdefault("careless", {})
        return known.setdefault(key, real(self, form))

    monkeypatch.setattr(Structures, "_keyed", careless)
    found = any(tried(name, machine())[0] for name in CASES)
    assert found != (field in ("copy", "reduced")), (
        field
    )  # copies are of no operator; reduced axes are those that have a combine function


def told_by_machines(graph: Graph, on: Machine) -> set[str]:
    """Constants whose change is seen in the prices."""
    planning, told, tries = build(graph, on, FULL), set[str](), Counter[str]()
    terms = PlanTerms(planning)
    for path, other in changes(on):
        tries[path] += 1
        if other.hierarchy != on.hierarchy or tries[path] > MOST_TRIES:
            continue
        try:
            again = build(graph, other, FULL)
        except (ValueError, ArithmeticError, TypeError):
            continue
        for v in planning.operators.values():
            times = again.problem.vertices[v].cost
            op, decision = graph.operator(planning.decisions[v].name), planning.decisions[v]
            if times.tolist() != planning.problem.vertices[v].cost.tolist():
                told.add(path)
            for choice in range(0, times.size, 41):
                assert (
                    times[choice]
                    == operator_entry(op, graph, decision.placement(choice), other)
                    == terms.operator_at(v, choice, other)
                ), path
    return told


def test_every_constant_of_the_machine_has_its_own_price() -> None:
    """What is remembered for one machine is not taken for another: by the checker's caches, by those of
    explanations.
    """
    told: set[str] = set()
    for name in ("two sums", "softmax"):
        told |= told_by_machines(together(CASES[name])[0], machine())
    for part in ("device", "others", "profiles", "levels"):
        assert any(path.startswith(f".{part}") for path in told), part


def dear_reference(x: np.ndarray) -> np.ndarray:
    for _ in range(40):
        x = np.tanh(x)
    return x


def cheap_reference(x: np.ndarray) -> np.ndarray:
    return x + 1.0


@opaque(reference=dear_reference)
def dear(x: np.ndarray) -> np.ndarray:
    return dear_reference(x)


@opaque(reference=cheap_reference)
def cheap(x: np.ndarray) -> np.ndarray:
    return cheap_reference(x)


@pytest.mark.parametrize("first", [dear, cheap])
def test_two_opaque_kernels_of_one_shape(first: Any) -> None:
    """The plan was an internal error, or `Optimal proved` for the wrong one."""
    second = cheap if first is dear else dear
    graph = trace(lambda x: second(first(x)), "two", {"x": ArraySpec((512, 4096), "float32")}).graph
    found = plan_graph(graph, load_machine("cloud-a100:1x4"))
    assert found.plan is not None
    a, b = (found.planning.problem.vertices[found.planning.operators[op.name]].cost for op in graph.operators)
    assert a.tolist() != b.tolist()
    assert all(r.verdict is Verdict.PROVED for r in check_plan(write_plan(None, found.plan)).results)


@pytest.mark.parametrize("forgotten", ["flops", "rows", "over"])
def test_a_form_that_forgets_what_counts_is_refuted(forgotten: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Forms that leave out a field for planner and checker alike: index sets say no."""
    real = forms.operator_form
    forms._operator_forms.cache_clear()
    monkeypatch.setattr(
        forms,
        "operator_form",
        lambda *given: replace(
            real(*given), **{forgotten: 0 if forgotten == "flops" else "" if forgotten == "rows" else ()}
        ),
    )
    graph = {"flops": zoo("mlp-unity"), "rows": zoo("dlrm"), "over": zoo("attention")}[forgotten]
    found = plan_graph(graph, load_machine("cloud-a100:2x2"))
    assert found.plan is not None
    wrong = [r for r in check_plan(write_plan(None, found.plan)).results if r.verdict is Verdict.REFUTED]
    forms._operator_forms.cache_clear()
    assert [r.kind for r in wrong] == ["Entries"]
