"""What somebody would write who wants a false equality, or a false bound, to be believed: each is refused by name."""

from __future__ import annotations

import random
from collections import Counter
from dataclasses import replace
from fractions import Fraction

import pytest
from test_joint_mutants import planned, refused

from shardproof.formal.selection.solve import solve
from shardproof.models.joint.choices import Kind
from shardproof.models.joint.egraph import EGraph
from shardproof.models.joint.problem import JointSubject, build_joint
from shardproof.models.joint.rules import DEFINE, LIBRARY
from shardproof.models.layout.placement import space
from shardproof.models.machine.machine import load_machine
from shardproof.models.program.graph import Graph, Tensor
from shardproof.models.program.index import Affine, Axis, Combine, access
from shardproof.models.program.operators import Operator
from shardproof.models.sources.building.builder import Builder
from shardproof.proofs.joint.derivation import Derivation, Step
from shardproof.verify.joint.derivation import wrong_derivation
from shardproof.verify.joint.forms import facts_of
from shardproof.verify.joint.polynomials import OWN, Position, _somewhere
from shardproof.verify.joint.program import wrong_choices, wrong_cost, wrong_program

I, J, K = Axis("i", 8), Axis("j", 8), Axis("k", 8, Combine.SUM)
WHOLE = Axis("k", 8, Combine.SUM, False)
Attributes = tuple[tuple[str, object], ...]


def ij(tensor: str, i: str | Affine = "i", j: str | Affine = "j") -> object:
    return access(tensor, i, j)


def node(function: str, reads: list, output: str, *axes: Axis, **attributes: object) -> Operator:
    """An operator that a rule is said to have added."""
    found = tuple(sorted(attributes.items()))
    return Operator("new", function, axes or (I, J), tuple(reads), access(output, "i", "j"), found)  # type: ignore[arg-type]


def said(graph: Graph, rule: str, new: Operator, *place: str) -> str:
    """What the checker says of one added operator."""
    at = 1 + [op.name for op in graph.operators].index(place[0])
    egraph = EGraph(graph, (), (*graph.operators[:at], new, *graph.operators[at:]))
    return wrong_derivation(egraph, Derivation(LIBRARY, 1, (Step(rule, "new", place, facts_of(new)),)))


def product(scale: float = 1.0, **dtypes: str) -> Graph:
    """y = relu(scale * (x w)), g = relu_gradient(v, p)."""
    b = Builder("g")
    x, w, v = (b.input(t, (8, 8), dtypes.get(t, "float32")) for t in ("x", "w", "v"))
    p = b.contract("p", "i k, k j -> i j", x, w)
    s = b.map("s", "scale", p, scale=scale)
    y = b.map("y", "relu", s)
    return b.build(y, b.map("g", "relu_gradient", v, s), b.map("q", "power", s, exponent=-0.5))


def fused(function: str, output: str, *more: object, **attributes: object) -> Operator:
    reads = [access("x", "i", "k"), access("w", "k", "j"), *more]
    return node("fused_product", reads, output, I, J, WHOLE, epilogue=(function,), factors=2, **attributes)


def test_epilogues() -> None:
    graph = product(3.0)
    assert said(graph, "fuse-epilogue", fused("scale", "s", scale=3.0), "s", "p") == ""
    assert "different values" in said(graph, "fuse-epilogue", fused("scale", "s", scale=2.0), "s", "p")
    assert "form" in said(graph, "fuse-epilogue", fused("relu", "s"), "s", "p")
    assert said(graph, "fuse-epilogue", fused("relu", "y"), "y", "p")  # drops the scale between them
    assert "begins" in said(graph, "fuse-epilogue", fused("scale", "y", scale=3.0), "s", "p")
    free = replace(fused("scale", "s", scale=3.0), axes=(I, J, K))
    assert "must not be splittable" in said(graph, "fuse-epilogue", free, "s", "p")
    shorter = replace(fused("scale", "s", scale=3.0), axes=(I, J, replace(WHOLE, extent=4)))
    assert "different values" in said(graph, "fuse-epilogue", shorter, "s", "p")
    longer = replace(fused("scale", "s", scale=3.0), axes=(I, J, replace(WHOLE, extent=9)))
    assert said(graph, "fuse-epilogue", longer, "s", "p") == ""  # what lies outside reads 0


def test_relu_from_its_output() -> None:
    graph = product(3.0)

    def node(function: str, reads: list[object], output: str) -> Operator:
        return replace(graph.operator("g"), name="new", inputs=tuple(reads))  # type: ignore[arg-type]

    def ij(tensor: str, i: str = "i0", j: str = "i1") -> object:
        return access(tensor, i, j)

    new = node("relu_gradient", [ij("v"), ij("y")], "g")
    assert said(graph, "relu-from-output", new, "g", "y") == ""
    for wrong in ([ij("y"), ij("y")], [ij("v"), ij("q")], [ij("v"), ij("p")], [ij("v"), ij("y", "i1", "i0")]):
        assert said(graph, "relu-from-output", node("relu_gradient", wrong, "g"), "g", "y"), wrong
    assert said(graph, "relu-from-output", node("relu_gradient", [ij("v"), ij("q")], "g"), "g", "q")
    other = replace(graph, operators=tuple(replace(o, function="abs") if o.name == "y" else o for o in graph.operators))
    assert "form" in said(other, "relu-from-output", new, "g", "y")  # [|x| > 0] is not [x > 0]


def test_bound_axes_are_not_captured() -> None:
    """The sum over k of x_ik y_kj, where y itself sums over an axis of the same name."""
    b = Builder("g")
    x, w, v = (b.input(t, (8, 8)) for t in ("x", "w", "v"))
    p = b.contract("p", "i k, k j -> i j", x, w)
    y = b.contract("y", "i k, k j -> i j", p, v)
    graph = b.build(y)
    inner = Operator(
        "inner", "product", (I, J, K), (access("w", "i", "k"), access("v", "k", "j")), access("t", "i", "j")
    )

    def proved(outer: Operator, made: Operator) -> str:
        egraph = EGraph(
            graph, (Tensor("t", (8, 8), "float32"),), (*graph.operators[:1], made, graph.operators[1], outer)
        )
        steps = (
            Step(DEFINE, "inner", (), facts_of(made)),
            Step("reassociate", "new", ("y", "p", "inner"), facts_of(outer)),
        )
        return wrong_derivation(egraph, Derivation(LIBRARY, 1, steps))

    right = node("product", [access("x", "i", "k"), access("t", "k", "j")], "y", I, J, K)
    assert proved(right, inner) == ""
    assert proved(replace(right, inputs=(access("x", "i", "k"), access("t", "j", "k"))), inner)
    assert proved(replace(right, inputs=(access("x", "k", "i"), access("t", "k", "j"))), inner)
    turned = replace(inner, inputs=(access("w", "k", "i"), access("v", "k", "j")))
    assert proved(right, turned)
    assert proved(right, replace(inner, inputs=(access("w", "i", "k"), access("v", "k", Affine.axis("j").shift(1)))))


def test_parts_with_offsets() -> None:
    b = Builder("g")
    x, y = b.input("x", (8, 6)), b.input("y", (8, 2))
    read = [access(x, "i", "j"), access(y, "i", Affine.axis("j").shift(-6))]
    c = b.operator("c", "copy", [I, J], read, ["i", "j"])
    graph = b.build(b.map("z", "gelu", c))

    def proved(at: int, rows: int = 2) -> str:
        parts = [
            Operator(f"part {t}", "gelu", (I, Axis("j", n)), (access(t, "i", "j"),), access(f"g {t}", "i", "j"))
            for t, n in (("x", 6), ("y", rows))
        ]
        new = node("copy", [ij("g x"), ij("g y", "i", Affine.axis("j").shift(-at))], "z")
        tensors = (Tensor("g x", (8, 6), "float32"), Tensor("g y", (8, rows), "float32"))
        egraph = EGraph(graph, tensors, (*parts, *graph.operators, new))
        steps = [Step(DEFINE, p.name, (), facts_of(p)) for p in parts]
        place = ("z", "c", "part x", "part y")
        return wrong_derivation(
            egraph, Derivation(LIBRARY, 1, (*steps, Step("map-of-parts", "new", place, facts_of(new))))
        )

    assert proved(6) == ""
    assert proved(5) and proved(7) and proved(6, 1)


def test_arithmetic_of_integers_and_truth_values_is_not_that_of_reals() -> None:
    """x + x of truth values is x; a sum of integers is one modulo 2^32."""
    for kind in ("bool", "int32"):
        b = Builder("g")
        t, u = b.input("t", (8, 8), kind), b.input("u", (8, 8))
        s = b.map("s", "add", u, u)
        graph = b.build(b.map("y", "add", s, t))
        new = node("sum_inputs", [ij("u"), ij("u"), ij("t")], "y")
        assert "no real numbers" in said(graph, "add-many", new, "y", "s")


def test_numbers_of_two_precisions_are_not_mixed() -> None:
    graph = product(v="float16")
    new = replace(graph.operator("g"), name="new", inputs=(access("v", "i0", "i1"), access("y", "i0", "i1")))
    assert "several element types: float16, float32" in said(graph, "relu-from-output", new, "g", "y")


def test_unknown_functions_stay_unknown() -> None:
    """(x^-1/2)^2 x is not 1, a quotient by a tensor is no product, and what is opaque stays whole."""
    b = Builder("g")
    x, w = b.input("x", (8, 8)), b.input("w", (8, 8))
    d = b.map("d", "divide", x, w)
    y = b.map("y", "multiply", d, w)
    soft = b.operator("soft", "softmax", [I, J], [access(x, "i", "j")], ["i", "j"], {"over": ("j",)})
    graph = b.build(y, b.map("z", "add", soft, soft), b.map("m", "add", b.map("one", "shift", x, shift=0.0), w))
    assert said(graph, "read-through-copy", node("multiply", [ij("x"), ij("x")], "y"), "y", "d")
    assert said(graph, "add-many", node("sum_inputs", [ij("soft"), ij("soft"), ij("x")], "z"), "z", "soft")
    infinite = node("sum_inputs", [ij("x"), ij("w"), ij("w")], "m")
    assert said(graph, "add-many", infinite, "m", "one")


def test_a_mask_of_infinities_is_no_number() -> None:
    b = Builder("g")
    x, w = b.input("x", (8, 4)), b.input("w", (4, 8))
    p = b.contract("p", "i k, k j -> i j", x, w)
    graph = b.build(b.map("s", "shift", p, shift=float("-inf")))
    reads = [access("x", "i", "k"), access("w", "k", "j")]
    axes = (I, J, replace(WHOLE, extent=4))
    new = node("fused_product", reads, "s", *axes, epilogue=("shift",), factors=2, shift=float("-inf"))
    assert "no number" in said(graph, "fuse-epilogue", new, "s", "p")


@pytest.mark.parametrize("levels", [12, 30, 60])
def test_a_bomb_of_functions_of_functions_is_not_unfolded(levels: int) -> None:
    b = Builder("g")
    t = b.input("x", (8, 8))
    for k in range(levels):
        t = b.contract(f"m{k}", "i j, i j -> i j", t, t)
    graph = b.build(b.map("z", "add", t, t))
    new = node("product_sum", [ij("x")] * 4, "z")
    assert said(graph, "add-products", new, "z", *(f"m{k}" for k in range(levels)))  # or the suite's limit ends it


def test_sums_in_all_orders_are_bounded() -> None:
    """Six summed axes with many factors each: every order of the axes would be written out."""
    b = Builder("g")
    axes = [Axis(f"k{n}", 2, Combine.SUM) for n in range(6)]
    x = b.input("x", (8, 2, 2, 2, 2, 2, 2))
    reads = [access(x, "i", *(f"k{(n + s) % 6}" for n in range(6))) for s in range(6)] * 40
    p = b.operator("p", "product", [I, *axes], reads, ["i"])
    graph = b.build(b.map("y", "relu", p))
    whole = tuple(replace(a, splittable=False) for a in axes)
    attributes = (("epilogue", ("relu",)), ("factors", len(reads)))
    new = Operator("new", "fused_product", (I, *whole), tuple(reads), access("y", "i"), attributes)
    assert "too large" in said(graph, "fuse-epilogue", new, "y", "p")


def test_a_class_that_every_program_would_have_to_compute_is_refused() -> None:
    """Otherwise the user's program would be none of those that the bound is about, which it is below."""
    b = Builder("g")
    x = b.input("x", (8, 8))
    graph = b.build(b.map("y", "tanh", x))
    idle = Operator("idle", "negate", (I, J), (access("x", "i", "j"),), access("t", "i", "j"))
    egraph = EGraph(graph, (Tensor("t", (8, 8), "float32"),), (idle, *graph.operators))
    machine, where = load_machine("cloud-a100:2x2"), space("complete")
    forced, plain = (
        solve(build_joint(JointSubject(e, 1, machine, where)).problem).cost
        for e in (egraph, EGraph(graph, (), graph.operators))
    )
    assert forced is not None and plain is not None and forced > plain
    steps = (Step(DEFINE, "idle", (), facts_of(idle)),)
    assert "nobody reads it" in wrong_derivation(egraph, Derivation(LIBRARY, 1, steps))


def test_programs_are_compared_operator_by_operator() -> None:
    plan = planned()
    joint, graph = plan.joint, plan.graph
    assert joint is not None and wrong_program(graph, joint.egraph) == ""
    ops = graph.operators
    one = next(op for op in ops if op.function == "relu_gradient" or len(op.inputs) == 1)
    for other, why in (
        (replace(graph, outputs=graph.outputs[:-1]), "outputs"),
        (replace(graph, state=()), "state"),
        (replace(graph, operators=ops[1:]), "tensors"),
        (replace(graph, operators=(*ops, ops[-1])), "order"),
        (replace(graph, operators=ops[::-1]), "order"),
        (replace(graph, operators=tuple(replace(o, function="negate") if o is one else o for o in ops)), "none of"),
        (replace(graph, operators=tuple(replace(o, name="another") if o is one else o for o in ops)), "none of"),
        (replace(graph, tensors=graph.tensors[1:]), "tensors"),
        (replace(graph, tensors=(*graph.tensors, graph.tensors[0])), "tensors"),
        (replace(graph, tensors=tuple(replace(t, dtype="float64") for t in graph.tensors)), "another one"),
        (replace(graph, name="other"), "called"),
    ):
        assert why in wrong_program(other, joint.egraph), why
    twice = tuple(
        op for op in joint.egraph.operators if op.name in {o.name for o in ops} | {_second(joint.egraph, ops)}
    )
    assert "same class" in wrong_program(replace(graph, operators=twice), joint.egraph)


def _second(egraph: EGraph, chosen: tuple[Operator, ...]) -> str:
    """An operator of a class that another one computes."""
    names, writes = {op.name for op in chosen}, {op.output.tensor for op in chosen}
    return next(op.name for op in egraph.operators if op.name not in names and op.output.tensor in writes)


def test_a_plan_is_what_the_solution_says() -> None:
    plan = planned()
    joint, solution = plan.joint, plan.certificate.claim.solution  # type: ignore[union-attr]
    assert joint is not None
    planning = build_joint(
        JointSubject(joint.egraph, joint.derivation.rounds, plan.machine, space(plan.space), level=joint.tags)
    )
    assert wrong_choices(plan.graph, plan.choices, planning, solution) == ""
    assert wrong_choices(plan.graph, plan.choices, planning, solution[:-1])
    seen = 0
    for v, d in enumerate(planning.decisions):
        for choice in (0, d.size - 1):
            other = (*solution[:v], choice, *solution[v + 1 :])
            (new, k), (old, n) = d.block(choice), d.block(solution[v])
            copies = (new.kind is Kind.COPY, old.kind is Kind.COPY)
            same = d.rests and (copies == (False, False) or (copies == (True, True) and k == n))
            if choice != solution[v] and not same:
                assert wrong_choices(plan.graph, plan.choices, planning, other), d.name
                seen += 1
    assert seen > 10
    for choices in (
        replace(plan.choices, operators=plan.choices.operators[1:]),
        replace(plan.choices, copies=plan.choices.copies[1:]),
        replace(plan.choices, operators=(*plan.choices.operators, plan.choices.operators[0])),
    ):
        assert wrong_choices(plan.graph, choices, planning, solution)
    alone, joint_problem = planning.problem, replace(planning.problem, scale=planning.problem.scale // 1000)
    cost = alone.cost_of(solution)
    assert wrong_cost(alone, solution, alone, cost) == ""
    assert wrong_cost(alone, solution, alone, cost + 1)
    terms = 2 * (len(alone.vertices) + len(alone.edges))
    assert wrong_cost(alone, solution, joint_problem, cost // 1000) == ""
    assert wrong_cost(alone, solution, joint_problem, cost // 1000 + terms + 1)
    assert Fraction(cost, alone.scale) > 0


def test_a_joint_plan_over_a_vocabulary_is_refused() -> None:
    from shardproof.proofs.container.canonical import ContainerError

    with pytest.raises(ContainerError, match="vocabularies are for plans of one program"):
        refused(replace(planned(), space="complete,dtensor"))


def test_what_has_a_meaning_is_not_defined_again() -> None:
    graph = product()
    new = replace(graph.operator("y"), name="new", function="tanh")
    egraph = EGraph(graph, (), (*graph.operators, new))
    steps = (Step(DEFINE, "new", (), facts_of(new)),)
    assert "has a meaning already" in wrong_derivation(egraph, Derivation(LIBRARY, 1, steps))


def two_steps(
    graph: Graph, first: tuple[str, Operator, tuple[str, ...]], second: tuple[str, Operator, tuple[str, ...]]
) -> str:
    """What the checker says of two operators, of which the second rests on the first."""
    steps = tuple(Step(rule, op.name, place, facts_of(op)) for rule, op, place in (first, second))
    return wrong_derivation(EGraph(graph, (), (*graph.operators, first[1], second[1])), Derivation(LIBRARY, 1, steps))


def test_what_was_lost_at_an_edge_does_not_come_back() -> None:
    """Turned on by one, then back: the first element is lost on the way."""
    b = Builder("g")
    x = b.input("x", (8,))
    c = b.operator("c", "copy", [I], [access(x, Affine.axis("i").shift(1))], ["i"])
    d = b.operator("d", "copy", [I], [access(c, Affine.axis("i").shift(-1))], ["i"])
    y = b.map("y", "negate", d)
    graph = b.build(y)
    own = graph.operator("y")
    axis = own.axes[0].name

    def reads(name: str, tensor: str, shift: int) -> Operator:
        return replace(own, name=name, inputs=(access(tensor, Affine.axis(axis).shift(shift)),))

    one = ("read-through-copy", reads("one", "c", -1), ("y", "d"))
    assert said(graph, "read-through-copy", reads("new", "c", -1), "y", "d") == ""
    assert "different" in two_steps(graph, one, ("read-through-copy", reads("two", "x", 0), ("one", "c")))
    assert "different" in said(graph, "read-through-copy", reads("new", "c", 0), "y", "d")


def test_signs_are_those_of_what_they_are_taken_of() -> None:
    """[-relu(x) > 0] is 0, not [x > 0]; [0 x > 0] is 0."""
    b = Builder("g")
    x, v = b.input("x", (8, 8)), b.input("v", (8, 8))
    epilogue = {"epilogue": ("relu", "negate"), "factors": 1}
    y = b.operator("y", "fused_product", [I, J], [access(x, "i", "j")], ["i", "j"], epilogue)
    epilogue = {"epilogue": ("relu",), "factors": 1}
    z = b.operator("z", "fused_product", [I, J], [access(x, "i", "j")], ["i", "j"], epilogue)
    graph = b.build(b.map("g", "relu_gradient", v, x), y, z)
    of = graph.operator("g")
    read = {t: access(t, *(i.terms[0][0] for i in of.output.index)) for t in ("v", "y", "z")}
    assert said(graph, "relu-from-output", replace(of, name="new", inputs=(read["v"], read["z"])), "g", "z") == ""
    assert said(graph, "relu-from-output", replace(of, name="new", inputs=(read["v"], read["y"])), "g", "y")
    zero = product(0.0)
    of = zero.operator("g")
    new = replace(of, name="new", inputs=(access("v", "i0", "i1"), access("y", "i0", "i1")))
    assert said(zero, "relu-from-output", new, "g", "y") == ""  # both are 0 where s is: nothing is said of s


def test_a_factor_twice_is_a_square() -> None:
    b = Builder("g")
    x, w = b.input("x", (8, 8)), b.input("w", (8, 8))
    p = b.contract("p", "i j, i j -> i j", x, x)
    graph = b.build(b.contract("y", "i j, i j -> i j", p, w))
    alone = Operator("alone", "product", (I, J), (access("w", "i", "j"),), access("t", "i", "j"))
    for reads, proved in (([ij("x"), ij("t")], False), ([ij("x"), ij("x"), ij("t")], True)):
        new = node("product", reads, "y")
        egraph = EGraph(graph, (Tensor("t", (8, 8), "float32"),), (alone, *graph.operators, new))
        steps = (
            Step(DEFINE, "alone", (), facts_of(alone)),
            Step("reassociate", "new", ("y", "p", "alone"), facts_of(new)),
        )
        assert (wrong_derivation(egraph, Derivation(LIBRARY, 1, steps)) == "") == proved


def test_what_is_not_understood_is_refused_by_name() -> None:
    b = Builder("g")
    x, n = b.input("x", (8, 8)), b.input("n", (8, 8), "int32")
    c = b.operator("c", "copy", [I, J], [access(x, "j", "i")], ["i", "j"])
    m = b.map("m", "abs", b.operator("e", "copy", [I, J], [access(n, "j", "i")], ["i", "j"], None, "int32"))
    t = b.map("t", "cast", c, dtype="float32")
    graph = b.build(b.reduce("s", "i j -> i", c), m, t)
    of = {name: graph.operator(name) for name in ("s", "m", "t")}

    def turned(name: str, tensor: str) -> Operator:
        op = of[name]
        return replace(op, name="new", inputs=(replace(op.inputs[0], tensor=tensor, index=op.inputs[0].index[::-1]),))

    assert said(graph, "read-through-copy", turned("s", "x"), "s", "c") == ""
    assert "computes no real" in said(graph, "read-through-copy", turned("m", "n"), "m", "e")
    assert "element type" in said(graph, "read-through-copy", turned("t", "x"), "t", "c")
    whole = replace(of["s"], name="new", inputs=(access("x", Affine((("i", 1),), 0, True), "j"),))
    assert said(graph, "read-through-copy", whole, "s", "c")


def test_sums_of_too_many_terms_are_refused() -> None:
    b = Builder("g")
    xs = [b.input(f"x{k}", (8, 8)) for k in range(30)]
    s = b.map("s", "sum_inputs", *xs)
    p = b.contract("p", "i j, i j -> i j", s, s)
    q = b.map("q", "add", p, xs[0])
    r = b.map("r", "sum_inputs", *[x for x in xs for _ in range(20)])
    graph = b.build(q, b.map("u", "add", r, xs[0]))
    new = node("product_sum", [ij("x0")] * 2, "q")
    assert "more than 512 terms" in said(graph, "add-products", new, "q", "p", "p") or said(
        graph, "add-products", new, "q", "p"
    )
    many = node("sum_inputs", [ij(x) for x in xs for _ in range(20)] + [ij("x0")], "u")
    assert "more than 512 terms" in said(graph, "add-many", many, "u", "r")
    axes = [Axis(f"k{n}", 2, Combine.SUM) for n in range(7)]
    b = Builder("g")
    x = b.input("x", (8, *[2] * 7))
    graph = b.build(
        b.map("y", "relu", b.operator("p", "product", [I, *axes], [access(x, "i", *(a.name for a in axes))], ["i"]))
    )
    attributes = (("epilogue", ("relu",)), ("factors", 1))
    whole = tuple(replace(a, splittable=False) for a in axes)
    new = Operator("new", "fused_product", (I, *whole), graph.operator("p").inputs, access("y", "i"), attributes)
    assert "more than 6 axes" in said(graph, "fuse-epilogue", new, "y", "p")


def test_a_place_is_met_only_where_it_is() -> None:
    """Against all values: of an axis of a functional's own and of one outside."""
    rng, seen = random.Random(4), Counter[bool]()
    for _ in range(3000):
        extents = {f"{OWN}0.0": rng.randint(1, 5), "a": rng.randint(1, 4)}
        terms = [(axis, rng.choice((-2, -1, 1, 2, 3))) for axis in extents if rng.random() < 0.7]
        at, n = Position(tuple(terms), rng.randint(-4, 4)), rng.randint(1, 6)
        found = _somewhere(at, n, extents)
        seen[found] += 1
        of = dict(terms)
        values = [
            [of.get(f"{OWN}0.0", 0) * own + of.get("a", 0) * a + at.offset for own in range(extents[f"{OWN}0.0"])]
            for a in range(extents["a"])
        ]
        right = all(any(0 <= v < n for v in row) for row in values)
        assert right or not found, (at, n, extents)
        if of.get(f"{OWN}0.0") == 1 and "a" not in of:
            assert found == right, (at, n, extents)
    assert min(seen.values()) > 300
