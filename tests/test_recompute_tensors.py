"""`--recompute tensors`: every tensor is kept or computed again by itself, with one claim over all sets of them."""

from __future__ import annotations

import json
import random
from collections.abc import Iterator
from contextlib import redirect_stdout
from dataclasses import replace
from fractions import Fraction
from io import StringIO
from itertools import chain, combinations
from pathlib import Path

import pytest
from budgets import some_or_all, work

from shardproof import load, plan
from shardproof.__main__ import run
from shardproof.formal.plans.request import PlanRequest
from shardproof.formal.plans.time_limit import TimeLimit
from shardproof.formal.rewriting.joint import growth
from shardproof.formal.rewriting.joint.checkpoints import (
    NOTHING,
    computed_again,
    halving,
    has_choices,
    modes_with,
    tensors_of_blocks,
    without_rules,
)
from shardproof.formal.rewriting.joint.request import carry_out_jointly
from shardproof.formal.rewriting.joint.rules.growing import facts
from shardproof.formal.rewriting.joint.rules.recompute import with_recomputation
from shardproof.formal.rewriting.joint.saturate import saturate
from shardproof.formal.selection.model.clock import Clock
from shardproof.formal.selection.relax_resources import relax_resources
from shardproof.models.cost.selection import build
from shardproof.models.joint.egraph import EGraph
from shardproof.models.joint.problem import JointSubject, build_joint
from shardproof.models.joint.rules import AGAIN, EQUAL, FIRST, LIBRARY
from shardproof.models.layout.placement import space
from shardproof.models.machine.machine import load_machine
from shardproof.models.problem.claims import Status, Verdict
from shardproof.models.program.operators import Operator
from shardproof.models.sources.building.builder import Builder
from shardproof.models.sources.training import TrainingStep, build_step
from shardproof.models.sources.zoo import build as zoo
from shardproof.models.text import InputError
from shardproof.proofs.joint.books import Rewrites
from shardproof.proofs.joint.derivation import Derivation, Step
from shardproof.proofs.plan.bundle import write_plan
from shardproof.verify.joint.derivation import wrong_derivation
from shardproof.verify.joint.plan import check_any_plan
from shardproof.verify.joint.twins import wrong_again

NONE = Rewrites(none=True)
MACHINE = load_machine("cloud-a100:1x2")
WHERE = space("one-per-level")


def deep(layers: int = 3, size: int = 64, batch: int = 512) -> TrainingStep:
    """A step whose activations outweigh its weights, in blocks `l0`, `l1`, ..."""
    b = Builder("deep")
    x = b.input("x", (batch, size))
    for i in range(layers):
        h = b.contract(f"l{i}.up", "b k, k n -> b n", x, b.parameter(f"l{i}.w", (size, 2 * size)))
        g = b.map(f"l{i}.act", "gelu", h)
        x = b.contract(f"l{i}.down", "b n, n k -> b k", g, b.parameter(f"l{i}.v", (2 * size, size)))
    return build_step(b.build(x), "sgd")


def widened(step: TrainingStep) -> tuple[EGraph, Derivation]:
    plain = EGraph(step.graph, (), step.graph.operators)
    return with_recomputation(plain, Derivation(LIBRARY, 1, ()), step)


def subsets(names: list[str]) -> Iterator[frozenset[str]]:
    return (frozenset(s) for s in chain.from_iterable(combinations(names, k) for k in range(len(names) + 1)))


def least_of_all_sets(step: TrainingStep, limit: int) -> int | None:
    """The least step over every set of tensors that is computed again, each planned as a program of its own."""
    egraph, derivation = widened(step)
    names = [t for tensors in tensors_of_blocks(egraph, derivation).values() for t in tensors]
    found = []
    for some in subsets(names):
        program = egraph.graph(modes_with(egraph, derivation, some))
        answer = relax_resources(build(program, MACHINE, WHERE, limit).problem, clock=Clock())
        assert answer.status in (Status.OPTIMAL, Status.INFEASIBLE)
        found += [] if answer.cost is None else [answer.cost]
    return min(found, default=None)


def test_every_set_is_a_program_that_computes_it_again() -> None:
    step = deep(2)
    egraph, derivation = widened(step)
    blocks = tensors_of_blocks(egraph, derivation)
    assert blocks == {"l0": ("l0.up", "l0.act", "l0.down"), "l1": ("l1.up", "l1.act"), "": ("loss.log_softmax",)}
    assert wrong_derivation(egraph, derivation) == ""
    assert {s.rule for s in derivation.steps} == {AGAIN, EQUAL}
    assert without_rules(egraph, derivation) == {op.name for op in egraph.operators}
    for some in subsets([t for tensors in blocks.values() for t in tensors]):
        program = egraph.graph(modes_with(egraph, derivation, some))
        assert set(computed_again(egraph, derivation, program)) == some
        assert len(program.operators) == len(step.graph.operators) + len(some)


def test_the_last_is_computed_again_just_before_it_is_read() -> None:
    egraph, derivation = widened(deep(2))
    names = [op.name for op in egraph.graph(modes_with(egraph, derivation, frozenset({"l0.up", "l0.act"}))).operators]
    at = names.index("recompute:l0.up")
    assert names.index("l1.down") < at < names.index("recompute:l0.act~again1")
    assert names[names.index("recompute:l0.act~again1") + 1].startswith("grad:")


SLOW = pytest.mark.slow
SMALL_MOE = {
    "layers": 2,
    "width": 16,
    "heads": 2,
    "kv_heads": 1,
    "experts": 2,
    "vocabulary": 32,
    "hidden": 16,
    "sequence": 8,
}


LIMITS = [(1, 1_100_000)]

MORE = [(1, 800_000), (1, 1_500_000), (1, 1_000_000), (1, 1_300_000), (2, 1_100_000), (2, 1_500_000), (2, 2_000_000)]


@pytest.mark.parametrize(("layers", "limit"), [*LIMITS, *(pytest.param(*row, marks=SLOW) for row in MORE)])
def test_the_optimum_is_that_of_all_sets(layers: int, limit: int) -> None:
    """Against every set of tensors, each planned as a program of its own."""
    step = deep(layers)
    request = PlanRequest(step.graph, MACHINE, None, None, "tensors", WHERE, limit, rewrites=NONE)
    made = carry_out_jointly(request, TimeLimit(Clock()), of=step)
    assert made.found.answer.status is Status.OPTIMAL and made.plan is not None
    assert made.found.answer.cost == least_of_all_sets(step, limit)
    assert check_any_plan(write_plan(None, made.plan)).verdict is Verdict.PROVED


def mutants(egraph: EGraph, derivation: Derivation, rng: random.Random) -> Iterator[tuple[str, EGraph, Derivation]]:
    """Forgeries of one step that computes again."""
    k = rng.choice([k for k, s in enumerate(derivation.steps) if s.rule == AGAIN])
    step = derivation.steps[k]
    node = next(op for op in egraph.operators if op.name == step.node)
    operators = [op for op in egraph.operators if op.name != node.name]

    def told(**changes: object) -> Derivation:
        new = replace(step, **changes)  # type: ignore[arg-type]
        return replace(derivation, steps=(*derivation.steps[:k], new, *derivation.steps[k + 1 :]))

    def put(new: Operator) -> EGraph:
        return replace(egraph, operators=tuple(new if op.name == node.name else op for op in egraph.operators))

    other = rng.choice([op for op in egraph.base.operators if op.name != step.place[0]])
    yield "another operator", egraph, told(place=(other.name,))
    yield "no operator", egraph, told(place=())
    yield "two operators", egraph, told(place=(step.place[0], other.name))
    yield "an equality", egraph, told(rule=EQUAL)
    yield "other sizes", egraph, told(facts=step.facts[1:])
    yield "an older library", egraph, replace(derivation, library=FIRST)
    yield "another function", put(replace(node, function="tanh" if node.function != "tanh" else "gelu")), derivation
    given = [t.name for t in egraph.base.tensors if t.shape == egraph.union.tensor(node.inputs[0].tensor).shape]
    read = rng.choice([t for t in given if t != node.inputs[0].tensor] or [node.inputs[-1].tensor])
    yield (
        "another operand",
        put(replace(node, inputs=(replace(node.inputs[0], tensor=read), *node.inputs[1:]))),
        derivation,
    )
    if len(node.output.index) > 1 and node.axes[0].extent == node.axes[1].extent:
        turned = replace(node, output=replace(node.output, index=node.output.index[::-1]))
        yield "another order", put(turned), derivation
    tensors = tuple(
        replace(t, dtype="float32" if t.dtype != "float32" else "float64") if t.name == node.output.tensor else t
        for t in egraph.tensors
    )
    yield "another element type", replace(egraph, tensors=tensors), derivation
    yield "an attribute", put(replace(node, attributes=(*node.attributes, ("value", 2.0)))), derivation
    twice = told(node=rng.choice([op.name for op in operators if op.output.tensor != node.output.tensor]))
    yield "the meaning of another tensor", egraph, twice


@pytest.mark.parametrize("rounds", some_or_all(20, 60))
def test_no_forged_step_is_accepted(rounds: int) -> None:
    rng, seen = random.Random(7), dict[str, int]()
    cases = [widened(deep(2)), widened(deep(1, 16, 16)), widened(build_step(zoo("bert-tiny"), "sgd"))]
    for _ in range(rounds):
        egraph, derivation = rng.choice(cases)
        for kind, forged, steps in mutants(egraph, derivation, rng):
            if (forged, steps) != (egraph, derivation):
                assert wrong_derivation(forged, steps), kind
                seen[kind] = seen.get(kind, 0) + 1
    assert len(seen) >= 11 and min(seen.values()) >= rounds // 12, seen


def test_a_tensor_of_another_meaning_is_refused() -> None:
    """What has a meaning already gets no second one, whether it is the user's or a step's."""
    b = Builder("two")
    x = b.input("x", (8, 8))
    p = b.map("p", "tanh", x)
    q = b.map("q", "exp", x)
    graph = b.build(b.map("y", "add", p, q))
    one, other, y = graph.operators

    def again(op: Operator, name: str, tensor: str) -> tuple[Operator, Step]:
        node = replace(op, name=name, output=replace(op.output, tensor=tensor))
        return node, Step(AGAIN, name, (op.name,), facts(node))

    def wrong(*added: tuple[Operator, Step]) -> str:
        reads = replace(y, name="y~1", inputs=(replace(y.inputs[0], tensor="p2"), y.inputs[1]))
        new = {op.output.tensor for op, _ in added} - {"p"}
        shape = graph.tensor("p")
        tensors = tuple(replace(shape, name=t) for t in sorted(new))
        equal = (Step(EQUAL, "y~1", ("y", "p", added[0][0].name), facts(y)),) if new else ()
        order = (one, other, *(op for op, _ in added), y, *((reads,) if new else ()))
        egraph = EGraph(graph, tensors, order)
        return wrong_derivation(egraph, Derivation(LIBRARY, 1, (*(s for _, s in added), *equal)))

    assert wrong(again(one, "p2", "p2")) == ""
    assert "has a meaning already" in wrong(again(other, "q2", "p"))
    assert "has a meaning already" in wrong(again(one, "p2", "p2"), again(other, "q2", "p2"))


def test_what_may_give_something_else_is_not_computed_again() -> None:
    egraph, _ = widened(deep(1))
    graph, by = egraph.union, {op.name: op for op in egraph.operators}
    node, op = by["recompute:l0.up"], by["l0.up"]
    assert wrong_again(node, [op], graph) == ""
    opaque = replace(op, function="opaque")
    assert "nothing is known" in wrong_again(replace(node, function="opaque"), [opaque], graph)
    for change in ({"dtype": "float16"}, {"shape": (2, 2)}):
        tensors = tuple(replace(t, **change) if t.name == node.name else t for t in graph.tensors)  # type: ignore[arg-type]
        assert "shape and element type" in wrong_again(node, [op], replace(graph, tensors=tensors))


def test_a_weight_that_has_its_next_value_is_not_read_again() -> None:
    """Experts: the backward pass of a layer's last product reads what comes behind its weight's update."""
    step = build_step(zoo("moe", 1, **SMALL_MOE), "sgd")
    egraph, derivation = widened(step)
    assert wrong_derivation(egraph, derivation) == ""
    again = {t for tensors in tensors_of_blocks(egraph, derivation).values() for t in tensors}
    assert "layer0.ffn.up" in again and "layer0.ffn.down" not in again


def test_with_rules_too() -> None:
    step = deep(2)
    egraph, derivation = saturate(step.graph)
    wide, proof = with_recomputation(egraph, derivation, step)
    assert wrong_derivation(wide, proof) == ""
    assert len(without_rules(wide, proof)) < len(wide.operators)
    build_joint(
        JointSubject(wide, proof.rounds, MACHINE, WHERE, level=1, memory_limit=1 << 40, library=proof.rules_name)
    )


MODELS = ("attention", "conv-stack", "dlrm", "mlp-unity", "transformer-layer", "xdl")


@pytest.mark.parametrize("model", [*MODELS, *(pytest.param(m, marks=SLOW) for m in ("moe", "rnnlm"))])
def test_steps_of_every_kind(model: str) -> None:
    """Whatever the operators: what is computed again is proved, and all of it at once is a program."""
    step = build_step(zoo(model), "adam", precision="bf16-mixed" if model == "transformer-layer" else None)
    egraph, derivation = widened(step)
    assert wrong_derivation(egraph, derivation) == ""
    every = frozenset(t for tensors in tensors_of_blocks(egraph, derivation).values() for t in tensors)
    program = egraph.graph(modes_with(egraph, derivation, every))
    assert set(computed_again(egraph, derivation, program)) <= every
    read = {a.tensor for op, p in zip(step.graph.operators, step.passes, strict=True) if p[0] != "F" for a in op.inputs}
    kept = {op.output.tensor for op, p in zip(step.graph.operators, step.passes, strict=True) if p[0] == "F"} & read
    assert kept - every <= set(step.graph.outputs) and len(program.operators) > len(step.graph.operators)


def test_what_all_layers_read_is_no_obstacle() -> None:
    """Rotary tables and masks are read by what every layer may compute again: their copy is there in every program."""
    sizes = {"layers": 2, "width": 32, "heads": 2, "kv_heads": 1, "hidden": 64, "vocabulary": 64, "sequence": 16}
    step = build_step(zoo("llama", 1, **sizes), "sgd")
    wide = growth.safe(step.graph, {}, again=(step, False))
    assert has_choices(wide[1])
    plain = build(step.graph, MACHINE, WHERE, 1 << 40).problem
    least = relax_resources(plain, clock=Clock())
    assert least.solution is not None
    limit = plain.peak_of(least.solution)[0] * 9 // 10
    request = PlanRequest(step.graph, MACHINE, None, None, "tensors", WHERE, limit, gap=Fraction(1, 4), rewrites=NONE)
    made = carry_out_jointly(request, TimeLimit(work(2)), of=step)
    assert made.plan is not None and check_any_plan(write_plan(None, made.plan)).verdict is Verdict.PROVED


def test_where_nothing_can_be_chosen_it_is_said(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(growth, "_too_large", lambda egraph: len(egraph.operators) > len(egraph.base.operators))
    monkeypatch.chdir(tmp_path)
    command = ["plan", "bert-tiny:layers=1", *COMMAND[2:], "--memory", "1GiB", "--recompute", "tensors"]
    command += ["--work-limit", "1M"]
    assert run([*command, "-o", "p.spz"]) == 0
    assert f"note: {NOTHING}" in capsys.readouterr().out
    assert run([*command, "--overlap", "-o", "q.spz", "--json"]) in (0, 5)
    assert ["tensors computed again", NOTHING] in json.loads(capsys.readouterr().out)["left_out"]


def test_numbers_of_blocks_are_halved() -> None:
    costs = {0: None, 8: 80, 4: None, 6: 60, 5: 50}
    assert list(halving(8, lambda k: costs[k], lambda: False)) == [0, 8, 4, 6, 5]
    assert list(halving(0, lambda k: 1, lambda: False)) == [0]
    assert list(halving(8, lambda k: None, lambda: False)) == [0, 8]


COMMAND = ["plan", "bert-tiny", "--train", "sgd", "--machine", "dgx-a100:1x2", "--space", "one-per-level"]


LIMITED = [*COMMAND, "--memory", "3.2MiB", "--gap", "5%", "--work-limit", "20M", "--json"]


def answer(more: list[str], out: Path) -> dict[str, object]:
    """What the command line says of a plan that it finds."""
    text = StringIO()
    with redirect_stdout(text):
        assert run([*LIMITED, *more, "-o", str(out)]) == 0
    said: dict[str, object] = json.loads(text.getvalue())
    return said


def step_s(said: dict[str, object]) -> float:
    cost, scale = said["cost"], said["scale"]
    assert isinstance(cost, int) and isinstance(scale, int)
    return cost / scale


@pytest.fixture(scope="module")
def tensors(tmp_path_factory: pytest.TempPathFactory) -> tuple[dict[str, object], Path]:
    """A plan in which every tensor is left open, and its file."""
    out = tmp_path_factory.mktemp("tensors") / "p.spz"
    return answer(["--recompute", "tensors"], out), out


def test_on_the_command_line(
    tensors: tuple[dict[str, object], Path], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """It is cheaper than the step as it is and than whole blocks, fits, and runs."""
    said, out = tensors
    assert said["status"] in ("optimal", "feasible") and said["recomputed"] and said["rewrites"] == []
    peak, limit, as_it_is = said["peak_bytes"], said["limit_bytes"], said["as_it_is"]
    assert isinstance(peak, int) and isinstance(limit, int) and isinstance(as_it_is, float)
    assert peak <= limit and as_it_is > step_s(said)
    assert step_s(said) < step_s(answer(["--recompute", "auto"], tmp_path / "auto.spz"))
    graph = load(out).graph
    assert len(graph.operators) > len(build_step(zoo("bert-tiny"), "sgd").graph.operators)
    assert run(["run", str(out), "-n", "2", "--virtual"]) == 0
    assert "equal" in capsys.readouterr().out


def test_the_best_plan_weighs_single_tensors_too(
    tensors: tuple[dict[str, object], Path], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Beside whole blocks: never above, and the file says by which rule."""
    alone = [x for freedom in ("stages", "overlap", "submeshes", "rewrites") for x in ("--without", freedom)]
    best = answer(["--best", *alone], tmp_path / "best.spz")
    assert step_s(best) <= 1.001 * step_s(tensors[0])
    assert load(tmp_path / "best.spz").among and run(["run", str(tmp_path / "best.spz"), "-n", "2", "--virtual"]) == 0
    assert "equal" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("more", "words"),
    [
        ([], "--memory"),
        (["--memory", "1GiB", "--micro-batch", "2"], "--micro-batch"),
        (["--memory", "1GiB", "--vocabulary", "dtensor"], "--vocabulary"),
    ],
)
def test_what_does_not_go_together_is_refused(
    more: list[str], words: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run([*COMMAND, "--recompute", "tensors", *more, "-o", str(tmp_path / "p.spz")]) == 2
    assert words in capsys.readouterr().err


def test_from_python() -> None:
    found = plan(
        "bert-tiny:layers=1",
        "dgx-a100:1x2",
        train="sgd",
        recompute="tensors",
        memory="1.8MiB",
        space_name="one-per-level",
        gap=Fraction(1, 20),
        work_limit=1_000_000,
    )
    assert found.step_s > 0
    from shardproof import pipeline

    with pytest.raises(InputError, match="whole blocks"):
        pipeline("bert-tiny", "dgx-a100:1x2", "sgd", recompute="tensors", memory="1GiB")
