"""Libraries of proved rules in joint plans: they fire, lower the cost, are checked step by step; forged steps and files are refused."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from dataclasses import replace
from itertools import islice
from pathlib import Path
from typing import cast

import numpy as np
import pytest
from budgets import some_or_all

import shardproof
from shardproof.__main__ import run
from shardproof.backends.execution.job import Options, build_program
from shardproof.backends.execution.reference import random_inputs, run_graph
from shardproof.backends.execution.run import run_virtual
from shardproof.formal.rewriting.joint import saturate as saturation
from shardproof.formal.rewriting.joint.rules import sides as rules_sides
from shardproof.formal.rewriting.joint.rules import written
from shardproof.formal.rewriting.joint.rules.library import rules_of
from shardproof.formal.rewriting.joint.rules.usable import usable, usable_rules
from shardproof.formal.rewriting.joint.saturate import SEARCHED, saturate
from shardproof.formal.rewriting.joint.solve import joint_plan, plan_jointly
from shardproof.formal.rewriting.prove import judge
from shardproof.formal.selection.model.clock import Clock
from shardproof.models.joint.egraph import EGraph
from shardproof.models.layout.placement import space
from shardproof.models.machine.machine import load_machine
from shardproof.models.program.graph import Graph, Role
from shardproof.models.program.operators import Operator
from shardproof.models.program.tensor import Tensor
from shardproof.models.rewrites.eval import extents, input_types
from shardproof.models.rewrites.instances import draw_instances
from shardproof.models.rewrites.polynomial import Poly
from shardproof.models.rewrites.rule import AtLeast, Substitution, node
from shardproof.models.sources.building.builder import Builder
from shardproof.models.text import InputError
from shardproof.proofs.container.archive import Member, read_container, write_container
from shardproof.proofs.container.canonical import ContainerError, canonical
from shardproof.proofs.joint.books import LIMITS, Book, read_book
from shardproof.proofs.joint.derivation import Derivation, Step
from shardproof.proofs.plan.bundle import read_plan, write_plan
from shardproof.proofs.rewrites.judgement import Proved
from shardproof.proofs.rewrites.library import SHIPPED, Library, read_library, write_library
from shardproof.proofs.rewrites.plain import BACKWARDS, DEFAULT, DEFAULTS, backwards, plain_rules
from shardproof.verify.joint import derivation as derivation_check
from shardproof.verify.joint.derivation import wrong_derivation
from shardproof.verify.joint.forms import facts_of
from shardproof.verify.joint.libraries import wrong_instance
from shardproof.verify.rewrites.library import check_members
from tests.plan_rules import library

GENERATED = SHIPPED / "generated-3.spz"
LAYERS = SHIPPED / "layers.spz"
BOOKS = {path.stem: read_book(path.read_bytes()) for path in (DEFAULT, GENERATED, LAYERS, SHIPPED / "taso-axioms.spz")}


@shardproof.program(x=(64, 32), y=(64, 32), z=(64, 32))
def common(x: np.ndarray, y: np.ndarray, z: np.ndarray) -> np.ndarray:
    return cast(np.ndarray, x * y + z * x)


RULES = {name: {rule.name: rule for rule in plain_rules(book.data)} for name, book in BOOKS.items()}


PROOF = read_library(DEFAULT)[0].judgements[0]


def book_of(*rules: Substitution) -> Book:
    """A library that says that rules are proved, whatever they say: what a plan's checker must not rest on."""
    assert isinstance(PROOF, Proved)
    return read_book(write_library(None, Library("said", tuple(replace(PROOF, rule=rule) for rule in rules))))


def factors(rank: int = 2) -> Graph:
    b = Builder("factors")
    shape = (8, 6, 4, 2)[:rank]
    x, y, z = (b.input(n, shape) for n in "xyz")
    return b.build(b.map("s", "add", b.map("p", "multiply", x, y), b.map("q", "multiply", z, x)))


def grown(graph: Graph, book: Book) -> tuple[EGraph, Derivation]:
    return saturate(graph, {"library": rules_of(book)})


# ---- they are used ----


@pytest.mark.parametrize("name", ["common-factor[rank2]", "g66"], ids=["the default", "one that was generated"])
def test_a_rule_that_is_not_built_in_lowers_the_cost_of_a_numpy_function(name: str, tmp_path: Path) -> None:
    found, _ = read_library(GENERATED)
    write_library(tmp_path / "some.spz", replace(found, judgements=found.judgements[60:80], derivations=()))
    rules = (tmp_path / "some.spz",) if name == "g66" else ()
    plain = shardproof.plan(common, "cloud-a100:1x2")
    plan = shardproof.plan(common, "cloud-a100:1x2", joint=True, rules=rules)
    assert plan.cost_s is not None and plain.cost_s is not None and plan.cost_s < plain.cost_s
    joint, program = plan.bundle.joint, plan.bundle.graph
    assert joint is not None
    assert [b.identity for b in joint.derivation.books] == [read_library(rules[0] if rules else DEFAULT)[1]]
    assert [s.rule for s in joint.derivation.steps if s.book] == [name]
    assert sorted(op.function for op in program.operators) == ["add", "multiply"]
    assert saturate(joint.egraph.base)[1].steps == ()  # none of those that are built in
    arrays = random_inputs(joint.egraph.base, 1, "float64")
    expected = run_graph(joint.egraph.base, arrays)
    made = build_program(program, plan.bundle.machine.hierarchy, plan.bundle.choices, Options())
    outputs = run_virtual(made, arrays).outputs
    assert all(np.allclose(outputs[t], expected[t], atol=1e-12) for t in joint.egraph.base.results)


@pytest.mark.torch
def test_a_module_is_rewritten_too() -> None:
    import torch

    class Gate(torch.nn.Module):
        def forward(self, x: torch.Tensor, y: torch.Tensor, z: torch.Tensor) -> torch.Tensor:
            return x * y + z * x

    inputs = tuple(torch.rand(64, 32) for _ in range(3))
    plan = shardproof.plan(Gate(), "cloud-a100:1x2", joint=True, inputs=inputs)
    assert plan.bundle.joint is not None
    assert "common-factor[rank2]" in {s.rule for s in plan.bundle.joint.derivation.steps if s.book}
    assert sorted(op.function for op in plan.bundle.graph.operators) == ["add", "multiply"]


@pytest.mark.parametrize("rank", [1, 2, 3, 4])
def test_plans_of_every_rank_are_proved_and_read_again(rank: int) -> None:
    where = load_machine("cloud-a100:1x2"), space("complete")
    rules = {**SEARCHED, "library": rules_of(BOOKS["plans"])}
    found = plan_jointly(factors(rank), *where, clock=Clock(), rules=rules)
    plan = joint_plan(found)
    assert (
        plan is not None
        and "multiply" in {op.function for op in plan.graph.operators}
        and len(plan.graph.operators) == 2
    )
    assert write_plan(None, read_plan(data := write_plan(None, plan))[0]) == data


def test_the_library_is_what_its_script_makes() -> None:
    assert write_library(None, library()) == DEFAULT.read_bytes()
    assert all(map(usable, RULES["plans"].values())) and len(RULES["plans"]) == 100


def own_places() -> Iterator[tuple[Substitution, Substitution]]:
    for name, book in BOOKS.items():
        some = usable_rules(book)
        for rule in some[:: 1 if name == "plans" else 7]:
            yield rule, RULES[name][rule.name.removesuffix(f" {BACKWARDS}")]


@pytest.mark.parametrize("step", some_or_all(3, 1))
def test_every_rule_at_its_own_left_side_is_proved(step: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """What the search may write the checker sees equal: no rule of a library that comes along makes a plan that is refused."""
    fired = set[str]()
    monkeypatch.setattr(saturation, "glean", lambda g, first, rounds, most: (g.egraph(), g.derivation(rounds)))
    for rule, forwards in islice(own_places(), 0, None, step):
        values, book = next(draw_instances(forwards, 1, 8)), book_of(forwards)
        types, reads = input_types(rule, values), [f"in{k}" for k in range(len(rule.inputs))]
        numbers = {s: values[s] for s in rule.symbols}
        said = dict.fromkeys(written.OPEN, ())
        shapes = tuple(extents(x) for x in types)
        template = rules_sides.typed_side(rule, False, shapes, tuple(numbers.items()), tuple(said.items()))
        if template is None:
            continue
        side = rules_sides.side_of_graph(template, reads, {k: f"t{k}" for k in range(len(rule.left))})
        given = [Tensor(t, extents(x), "float32", Role.INPUT) for t, x in zip(reads, types, strict=True)]
        given += [Tensor(f"t{k}", shape, "float32", Role.VALUE) for k, (_, shape) in enumerate(side)]
        operators = tuple(replace(op, name=f"t{k}") for k, (op, _) in enumerate(side))
        graph = Graph("own", tuple(given), operators, (f"t{rule.outputs[0][0]}",)).check()
        egraph, derivation = grown(graph, book)
        assert wrong_derivation(egraph, derivation) == "", rule.name
        fired |= {s.rule for s in derivation.steps if s.book and s.rule == rule.name}
    assert len(fired) > 200 // step and sum(name.endswith(BACKWARDS) for name in fired) > 70 // step


def test_a_side_that_takes_no_less_is_left_out() -> None:
    """x y + x z for x (y + z) would be the rule read backwards."""
    backwards = Substitution(
        "backwards",
        RULES["plans"]["common-factor[rank2]"].inputs,
        (node("add", -2, -3), node("mul", -1, 0)),
        (node("mul", -1, -2), node("mul", -1, -3), node("add", 0, 1)),
        ((1, 2),),
    )
    b = Builder("sum")
    x, y, z = (b.input(n, (8, 6)) for n in "xyz")
    graph = b.build(b.map("p", "multiply", x, b.map("s", "add", y, z)))
    assert grown(graph, book_of(backwards))[1].steps == ()


def test_preconditions_are_decided_by_sizes() -> None:
    rule = RULES["plans"]["common-factor[rank2]"]
    for least, fires in ((8, True), (9, False)):
        asks = replace(rule, preconditions=(AtLeast(Poly.of("x.0") - least),))
        book = book_of(asks)
        egraph, derivation = grown(factors(), book)
        assert bool(derivation.steps) is fires
    egraph, derivation = grown(factors(), book_of(rule))
    steps = tuple(replace(s, book=book.identity if s.book else "") for s in derivation.steps)
    assert "asks that" in wrong_derivation(egraph, replace(derivation, steps=steps, books=(book,)))


def test_types_are_not_mixed() -> None:
    b = Builder("integers")
    x, y, z = (b.input(n, (8, 6), "int64") for n in "xyz")
    p, q = (b.map(n, "multiply", x, t, dtype="int64") for n, t in (("p", y), ("q", z)))
    assert grown(b.build(b.map("s", "add", p, q, dtype="int64")), BOOKS["plans"])[1].steps == ()


# ---- forged steps ----


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        ({"rule": "common-scale[rank2]"}, "no such rule|rank|is no|pattern|operators"),
        ({"rule": "common-factor[rank3]"}, "rank"),
        ({"rule": "mul-exchanged[rank2,10]"}, "pattern inputs"),
        ({"rule": "no-such-rule"}, "proves no such rule"),
        ({"rule": "define"}, "proves no such rule"),
        ({"rule": "equal-operators"}, "proves no such rule"),
        ({"book": ""}, "no such rule"),
        ({"book": "0" * 64}, "holds no library"),
        ({"place": ("s", "q", "p", "s.0~1")}, "is no mul"),
        ({"place": ("s", "p", "q")}, "operators of both sides"),
        ({"place": ("s", "p", "q", "s.0~1", "p")}, "same tensor"),
        ({"place": ("s", "p", "s.0~1", "q")}, "is no mul"),
        ({"place": ("p", "s", "q", "s.0~1")}, "begins with"),
        ({"reads": ("x", "z", "y")}, "is no mul"),
        ({"reads": ("x", "y")}, "pattern inputs"),
        ({"reads": ("x", "y", "nowhere")}, "pattern inputs"),
        ({"reads": ()}, "pattern inputs"),
        ({"facts": ()}, "other sizes"),
    ],
)
def test_forged_steps_are_refused(change: dict[str, object], reason: str) -> None:
    egraph, derivation = grown(factors(), BOOKS["plans"])
    assert wrong_derivation(egraph, derivation) == ""
    assert derivation.steps[1] == Step(
        "common-factor[rank2]",
        "s~1",
        ("s", "p", "q", "s.0~1"),
        derivation.steps[1].facts,
        BOOKS["plans"].identity,
        ("x", "y", "z"),
    )
    forged = replace(derivation.steps[1], **change)  # type: ignore[arg-type]
    wrong = wrong_derivation(egraph, replace(derivation, steps=(derivation.steps[0], forged)))
    assert any(r in wrong for r in reason.split("|")), wrong


def instance() -> tuple[Substitution, Operator, list[Operator], Graph]:
    egraph, derivation = grown(factors(), BOOKS["plans"])
    by = {op.name: op for op in egraph.operators}
    rule = RULES["plans"]["common-factor[rank2]"]
    return rule, by["s~1"], [by[n] for n in derivation.steps[1].place], egraph.union


def test_each_condition_of_an_instance() -> None:
    """One change each, of rule, place or sizes, of what is an instance."""
    rule, step, place, graph = instance()
    reads = ("x", "y", "z")
    assert wrong_instance(rule, step, place, reads, graph) == ""
    first, *others = rule.inputs
    scaled = replace(place[1], function="add")
    wider = replace(graph, tensors=tuple(replace(t, shape=(8, 7)) if t.name == "p" else t for t in graph.tensors))
    cases: dict[str, tuple[Substitution, Operator, list[Operator], Graph]] = {
        "than one result": (replace(rule, outputs=((2, 1), (0, 0))), step, place, graph),
        "result that is computed": (replace(rule, outputs=((-1, 1),)), step, place, graph),
        "fixed sizes": (replace(rule, inputs=(replace(first, fixed=((0, 9),)), *others)), step, place, graph),
        "operators of both sides": (rule, step, [*place, place[0]], graph),
        "is no mul": (rule, step, [place[0], scaled, *place[2:]], graph),
        "of size": (rule, step, place, wider),
        "says nothing of these sizes": (
            replace(rule, left=(node("matmul", -1, -2), *rule.left[1:])),
            step,
            place,
            graph,
        ),
        "does not copy": (replace(rule, right=rule.right[:1], outputs=((2, -1),)), step, place, graph),
    }
    for reason, of in cases.items():
        assert reason in wrong_instance(of[0], of[1], of[2], reads, of[3])


def test_an_activation_inside_a_product_is_not_understood() -> None:
    b = Builder("linear")
    x, w = b.input("x", (8, 6)), b.parameter("w", (4, 6))
    graph = b.build(b.map("y", "relu", b.contract("p", "m k, n k -> m n", x, w)))
    inputs = RULES["taso-axioms"]["taso_axiom_1[rank2]"].inputs
    p, y = graph.operators
    for word, wrong in (("none", ""), ("relu", "is no linear")):
        left = (node("linear", -1, -2, activation=word), node("relu", 0))
        rule = Substitution("same", inputs, left, left, ((1, 1),))
        assert wrong in wrong_instance(rule, y, [y, p, p], ("x", "w"), graph)
        assert bool(wrong_instance(rule, y, [y, p, p], ("x", "w"), graph)) is bool(wrong)


def test_rules_that_rest_on_what_functions_do_are_left_out() -> None:
    """exp(x) exp(y) = exp(x + y) is proved, by an axiom that a plan's checker does not have."""
    inputs = RULES["plans"]["add-exchanged[rank2,10]"].inputs
    left, right = (node("exp", -1), node("exp", -2), node("mul", 0, 1)), (node("add", -1, -2), node("exp", 0))
    judged = judge(Substitution("powers", inputs, left, right, ((2, 1),)))
    assert isinstance(judged, Proved)
    assert plain_rules(write_library(None, Library("axioms", (judged, PROOF)))) == (PROOF.rule,)


def test_a_rule_that_is_false_proves_nothing() -> None:
    """A library may say what it likes: both sides are compared at the place."""
    rule = RULES["plans"]["common-factor[rank2]"]
    false = replace(rule, right=(node("add", -2, -3), node("mul", -2, 0)))
    book = book_of(false)
    egraph, derivation = grown(factors(), book)
    assert derivation.steps and "compute different values" in wrong_derivation(egraph, derivation)


def forged_files() -> dict[str, tuple[dict[str, object], str]]:
    return {
        "another identity": ({"libraries": ["0" * 64]}, "is not the identity"),
        "no identity": ({"libraries": []}, "must name 1 to 16"),
        "twice": ({"libraries": [BOOKS["plans"].identity] * 2}, "must name 1 to 16"),
        "one more": ({"libraries": [BOOKS["plans"].identity, "1" * 64]}, "rules-1.spz"),
    }


def members() -> dict[str, Member]:
    found = plan_jointly(
        factors(),
        load_machine("cloud-a100:1x2"),
        space("complete"),
        clock=Clock(),
        rules={"library": rules_of(BOOKS["plans"])},
    )
    plan = joint_plan(found)
    assert plan is not None
    return read_container(write_plan(None, plan))


@pytest.mark.parametrize("kind", forged_files())
def test_forged_files_are_refused(kind: str) -> None:
    change, reason = forged_files()[kind]
    held = members()
    head = json.loads(cast(bytes, held["joint.json"])) | change
    with pytest.raises(ContainerError, match=reason):
        read_plan(write_container(None, {**held, "joint.json": canonical(head)}))


def test_another_library_in_the_file_is_refused() -> None:
    held = members()
    with pytest.raises(ContainerError, match="is not the identity"):
        read_plan(write_container(None, {**held, "rules-0.spz": BOOKS["generated-3"].data}))
    more = write_container(None, {**read_container(BOOKS["plans"].data), "more.json": b"{}"})
    with pytest.raises(ContainerError, match="is not the identity"):
        read_plan(write_container(None, {**held, "rules-0.spz": more}))
    with pytest.raises(ContainerError, match=r"rules-0\.spz"):
        read_plan(write_container(None, {n: m for n, m in held.items() if n != "rules-0.spz"}))
    head = json.loads(cast(bytes, held["joint.json"]))
    head["steps"] = [s[:4] for s in head["steps"]]
    with pytest.raises(ContainerError, match="which no step names"):
        read_plan(write_container(None, {**held, "joint.json": canonical(head)}))


# ---- the front door ----


def plan(tmp_path: Path, *more: str, model: str = "mlp-unity") -> int:
    return run(["plan", model, "--machine", "localhost:2", "-o", str(tmp_path / "out.spz"), *more])


def test_a_library_that_does_not_check_is_refused(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    found, _ = read_library(DEFAULT)
    first = found.judgements[0]
    forged = replace(first, rule=replace(first.rule, right=(node("add", -2, -3), node("mul", -2, 0))))
    write_library(tmp_path / "false.spz", replace(found, judgements=(forged, *found.judgements[1:])))
    (tmp_path / "none.spz").write_text("{}")
    for name, code, said in (
        ("false.spz", 10, "common-factor[rank1]"),
        ("none.spz", 3, "none.spz"),
        ("absent.spz", 3, "absent.spz"),
    ):
        assert plan(tmp_path, "--joint", "--rules", str(tmp_path / name)) == code
        assert said in capsys.readouterr().err and not (tmp_path / "out.spz").exists()


def test_what_is_of_rewrites_needs_a_search_of_them(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for option, value in (("--rules", str(DEFAULT)), ("--rewrite-rounds", "3"), ("--rewrite-nodes", "7")):
        assert plan(tmp_path, option, value) == 2
        assert f"{option} needs --joint or --best" in capsys.readouterr().err
        assert plan(tmp_path, "--best", "--without", "rewrites", option, value) == 2
        assert option in capsys.readouterr().err
    assert (
        plan(tmp_path, "--joint", "--rewrite-rounds", "0") == 2
        and plan(tmp_path, "--joint", "--rewrite-nodes", "20001") == 2
    )
    with pytest.raises(InputError, match="rewrite_rounds=9: give 1 to 8"):
        shardproof.plan("mlp-unity", "localhost:2", joint=True, rewrite_rounds=9)


def test_rounds_and_nodes_are_honoured(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """What two products have in common is taken out in one round, and tanh becomes the epilogue of what is left in
    the next.
    """
    (tmp_path / "sums.py").write_text(
        "import numpy as np\nimport shardproof\n\n\n@shardproof.program(x=(8, 8), v=(8, 8), w=(8, 8))\n"
        "def sums(x, v, w):\n    return np.tanh(x @ v + x @ w)\n"
    )
    sizes = {}
    for rounds, nodes in ((1, 2000), (3, 2000), (3, 2)):
        more = ("--rewrite-rounds", str(rounds), "--rewrite-nodes", str(nodes), "--json", "--force")
        assert plan(tmp_path, "--joint", *more, model=f"{tmp_path / 'sums.py'}:sums") == 0
        graphs = json.loads(capsys.readouterr().out)["graphs"]
        joint = shardproof.load(tmp_path / "out.spz").bundle.joint
        assert joint is not None and joint.derivation.rounds == graphs["rounds"] == rounds
        assert (graphs["most_rounds"], graphs["most_operators_added"]) == (rounds, nodes)
        sizes[rounds, nodes] = len(joint.egraph.operators) - len(joint.egraph.base.operators)
    assert sizes[3, 2] == 2 < sizes[1, 2000] < sizes[3, 2000]


def test_the_time_of_rewriting_is_honoured(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """What rules have added by then is searched; no time is nothing, and the plan is that of the graph as it is."""
    (tmp_path / "gate.py").write_text(
        "import shardproof\n\n\n@shardproof.program(x=(64, 32), y=(64, 32), z=(64, 32))\n"
        "def gate(x, y, z):\n    return x * y + z * x\n"
    )
    found = {}
    for seconds in ("0.000001", "20"):
        more = ("--rewrite-time", seconds, "--json", "--force")
        assert plan(tmp_path, "--joint", *more, model=f"{tmp_path / 'gate.py'}:gate") == 0
        said = json.loads(capsys.readouterr().out)
        assert said["graphs"]["most_seconds"] == float(seconds)
        found[seconds] = said
    assert found["0.000001"]["rewrites"] == [] and found["20"]["rewrites"]
    cost = {seconds: said["cost"] / said["scale"] for seconds, said in found.items()}
    assert cost["0.000001"] == pytest.approx(found["20"]["as_it_is"]) and cost["20"] < cost["0.000001"]
    for wrong in ("0", "-1", "x"):
        assert plan(tmp_path, "--joint", "--rewrite-time", wrong) == 2 and "--rewrite-time" in capsys.readouterr().err
    with pytest.raises(InputError, match="rewrite_time 0 is not a number of seconds above 0"):
        shardproof.plan("mlp-unity", "localhost:2", joint=True, rewrite_time=0)


def test_plans_say_rule_library_and_place(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "gate.py").write_text(
        "import shardproof\n\n\n@shardproof.program(x=(64, 32), y=(64, 32), z=(64, 32))\n"
        "def gate(x, y, z):\n    return x * y + z * x\n"
    )
    assert plan(tmp_path, "--joint", "--json", model=f"{tmp_path / 'gate.py'}:gate") == 0
    (one,) = json.loads(capsys.readouterr().out)["rewrites"]
    name = BOOKS["plans"].identity
    assert (one["rule"], one["library"], one["place"]) == (
        "common-factor[rank2]",
        name,
        ["multiply", "multiply_2", "add"],
    )
    assert run(["explain", str(tmp_path / "out.spz")]) == 0
    assert f"common-factor[rank2]: of library {name[:12]}" in capsys.readouterr().out
    assert run(["check", str(tmp_path / "out.spz")]) == 0
    out = capsys.readouterr().out
    assert f"+{name[:12]}, rounds 2, 2 operators added)" in out and out.count("graphs: egraph(") == 1


# ---- rules with parameters, read in either direction ----

NETWORKS = read_book((SHIPPED / "networks.spz").read_bytes())


def parameters() -> tuple[EGraph, Derivation, int]:
    """A derivation that a rule with parameters takes part in, and the number of its step."""
    b = Builder("kernels")
    x, w, v = b.input("x", (2, 3, 9, 9)), b.parameter("w", (5, 3, 3, 3)), b.parameter("v", (5, 3, 3, 3))
    p, q = (b.convolution(n, x, k, stride=(2, 2)) for n, k in (("p", w), ("q", v)))
    egraph, derivation = grown(b.build(b.map("s", "add", p, q)), NETWORKS)
    (at,) = (k for k, s in enumerate(derivation.steps) if s.book)
    return egraph, derivation, at


def test_parameters_are_read_off_the_operators_and_stated() -> None:
    egraph, derivation, at = parameters()
    assert wrong_derivation(egraph, derivation) == ""
    step = derivation.steps[at]
    assert step.facts[-1] == ("s", 2) and ("sum over c", 3) in step.facts


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        (lambda facts: facts[:-1], "what the parameters of its rule are"),
        (lambda facts: (*facts, ("s", 2)), "what the parameters of its rule are"),
        (lambda facts: (*facts[:-1], ("t", 2)), "what the parameters of its rule are"),
        (lambda facts: (*facts[:-1], ("s", 0)), "what the parameters of its rule are"),
        (lambda facts: (*facts[:-1], ("s", -2)), "what the parameters of its rule are"),
        (lambda facts: (*facts[:-1], ("s", 1)), "of size"),
        (lambda facts: (*facts[:-1], ("s", 3)), "of size"),
        (lambda facts: (*facts[1:], facts[0]), "other sizes"),
    ],
)
def test_forged_parameters_are_refused(change: Callable[[tuple[object, ...]], object], reason: str) -> None:
    egraph, derivation, at = parameters()
    steps = list(derivation.steps)
    steps[at] = replace(steps[at], facts=cast(tuple[tuple[str, int], ...], change(steps[at].facts)))
    assert reason in wrong_derivation(egraph, replace(derivation, steps=tuple(steps)))


def test_a_step_says_in_which_direction_it_reads_its_rule() -> None:
    """x (y + z) from x y + x z and back; under the other name neither is an instance."""
    rule = RULES["plans"]["common-factor[rank2]"]
    book = book_of(backwards(rule))
    egraph, derivation = grown(factors(), book)
    name = f"{rule.name} {BACKWARDS} {BACKWARDS}"
    assert [s.rule for s in derivation.steps if s.book] == [name] and wrong_derivation(egraph, derivation) == ""
    steps = tuple(replace(s, rule=backwards(rule).name) if s.book else s for s in derivation.steps)
    assert "is no add" in wrong_derivation(egraph, replace(derivation, steps=steps))


def test_rows_are_looked_up_by_whole_numbers_only() -> None:
    """A new tensor of rows has ids as its last operand; of other operators no operand may be whole numbers."""
    b = Builder("rows")
    table, ids = b.parameter("t", (64, 16)), b.input("ids", (32, 8), "int64")
    e = b.embedding("e", "v m, b q -> b q m", table, ids)
    graph = b.build(b.map("s", "add", e, e))
    rows, made = graph.operator("e"), Tensor("new", (32, 8, 16), "float32")
    node = replace(rows, name="new", output=replace(rows.output, tensor="new"))
    total = graph.operator("s")
    whole = replace(total.inputs[0], tensor="ids", index=node.inputs[1].index)
    added = replace(total, name="new", inputs=(whole, whole), output=replace(total.output, tensor="new"))
    for op, wrong in ((node, ""), (added, "element types")):
        egraph = EGraph(graph, (made,), (rows, op, total))
        found = derivation_check._wrong_definition(egraph, op, Step("define", "new", (), facts_of(op)), {"new"})
        assert wrong in found if wrong else found == ""


def test_an_epilogue_is_that_of_its_rule() -> None:
    b = Builder("linear")
    x, w = b.input("x", (8, 6)), b.parameter("w", (4, 6))
    graph = b.build(b.map("y", "relu", b.contract("p", "m k, n k -> m n", x, w)))
    egraph, derivation = grown(graph, BOOKS["generated-3"])
    assert wrong_derivation(egraph, derivation) == ""
    made = {op.name for op in egraph.operators if op.function == "fused_product"}
    step = next(s for s in derivation.steps if s.book and s.node in made)
    fused = next(op for op in egraph.operators if op.name == step.node)
    assert fused.attribute("epilogue", ()) == ("relu",)
    other = replace(fused, attributes=tuple((k, ("tanh",) if k == "epilogue" else v) for k, v in fused.attributes))
    forged = replace(egraph, operators=tuple(other if op is fused else op for op in egraph.operators))
    assert "is no linear" in wrong_derivation(forged, derivation)


def test_what_libraries_give_takes_no_room_from_the_rules_that_are_built_in() -> None:
    """Libraries only add, up to what is asked for."""
    b = Builder("sums")
    terms = [b.input(f"x{k}", (8, 6)) for k in range(6)]
    total = b.map("m", "multiply", terms[1], terms[0])
    for k, t in enumerate(terms[2:]):
        total = b.map(f"s{k}", "add", total, b.map(f"m{k}", "multiply", t, terms[0]))
    graph = b.build(total)
    alone, proofs = saturate(graph, SEARCHED)
    both, derivation = saturate(graph, {**SEARCHED, "library": rules_of(BOOKS["plans"])})
    assert {op.name for op in alone.operators} <= {op.name for op in both.operators}
    assert proofs.steps == derivation.steps[: len(proofs.steps)] and any(s.book for s in derivation.steps)
    few, _ = saturate(graph, {**SEARCHED, "library": rules_of(BOOKS["plans"])}, most=len(proofs.steps) + 2)
    assert len(few.operators) - len(graph.operators) <= len(proofs.steps) + 2
    assert wrong_derivation(both, derivation) == ""


def test_an_audit_compares_with_what_libraries_give(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "gate.py").write_text(
        "import shardproof\n\n\n@shardproof.program(x=(64, 32), y=(64, 32), z=(64, 32))\n"
        "def gate(x, y, z):\n    return x * y + z * x\n"
    )
    (tmp_path / "free.json").write_text("{}")
    asked = [
        "audit",
        f"{tmp_path / 'gate.py'}:gate",
        "--machine",
        "localhost:2",
        "--strategy",
        str(tmp_path / "free.json"),
    ]
    for rules, code in ((DEFAULT, 10), (SHIPPED / "parallel.spz", 0)):
        assert run([*asked, "--joint", "--rules", str(rules), "--json"]) == code
        said = json.loads(capsys.readouterr().out)
        assert [b["identity"] for b in said["libraries"]] == [read_book(rules.read_bytes()).identity]
        assert [r["rule"] for r in said["rewrites"]] == (["common-factor[rank2]"] if code else [])
    assert run([*asked, "--rules", str(DEFAULT)]) == 2 and "--rules needs --joint" in capsys.readouterr().err


@pytest.mark.parametrize("path", DEFAULTS, ids=[path.stem for path in DEFAULTS])
def test_the_libraries_that_come_along_are_proved(path: Path) -> None:
    """No search replays them again."""
    found = check_members(read_container(path.read_bytes(), LIMITS)).rules
    assert len(found) >= 100 and {r.word for r in found} == {"proved"}
