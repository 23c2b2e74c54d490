"""Error bounds: what a plan says of the machines within them holds on machines drawn from them, the checker refuses what is
tighter than the truth, and a refutation that the bars cover is undecided.
"""

from __future__ import annotations

import json
import random
from dataclasses import replace
from fractions import Fraction
from math import ceil, floor
from pathlib import Path

import pytest

from shardproof.__main__ import run
from shardproof.formal.explain.audit import Outcome, audit
from shardproof.formal.explain.error_bounds import Box, with_error_bounds
from shardproof.formal.plans.plan import plan_graph
from shardproof.formal.plans.simple import named_plans
from shardproof.formal.plans.strategy import parse_strategy
from shardproof.models.cost.selection import build
from shardproof.models.layout.placement import space
from shardproof.models.machine.error_bounds import extreme
from shardproof.models.machine.machine import Machine, load_machine
from shardproof.models.machine.parts import STEP
from shardproof.models.problem.claims import Verdict
from shardproof.models.program.graph import Graph
from shardproof.models.sources.building.builder import Builder
from shardproof.models.sources.training import build_step
from shardproof.models.sources.zoo import build as zoo
from shardproof.proofs.container.archive import write_container
from shardproof.proofs.container.canonical import ContainerError, canonical
from shardproof.proofs.plan.bundle import Plan, decode_plan, encode_plan, read_plan, write_plan
from shardproof.proofs.plan.error_bounds import ErrorBounds
from shardproof.verify.plan.error_bounds import _Box, wrong_error_bounds
from shardproof.verify.plan.plan import check_plan


def barred(spec: str, level: str = "10 %", device: str = "5 %") -> Machine:
    """A built-in machine with bars on everything."""
    machine = load_machine(spec)
    share = {
        "level": Fraction(level.removesuffix(" %")) / 100,
        "device_class": Fraction(device.removesuffix(" %")) / 100,
    }
    paths = [p for p, _ in machine.sources if p.split(".")[0] in share and not p.endswith((".memory", ".odd"))]
    return replace(machine, bars=tuple((p, share[p.split(".")[0]]) for p in paths))


def drawn(machine: Machine, rng: random.Random) -> Machine:
    """A machine within the bars: every constant on its own, some at an end."""
    picks = {}
    for path, bar in machine.bars:
        t = rng.choice([-1.0, 1.0, rng.uniform(-1, 1)])
        picks[path] = (1 + bar) ** Fraction(round(t)) if abs(t) == 1 else Fraction(f"{float(1 + bar) ** t:.6f}")
    # one constant at a time: a bar that is just this wide, and its slow or fast end
    slow = replace(machine, bars=tuple((p, f - 1) for p, f in picks.items() if f > 1))
    fast = replace(machine, bars=tuple((p, 1 / f - 1) for p, f in picks.items() if f < 1))
    return replace(extreme(replace(extreme(slow, True), bars=fast.bars), False), bars=())


def graphs() -> list[Graph]:
    return [build_step(zoo("mlp-unity"), "sgd", None).graph, zoo("transformer-layer")]


@pytest.mark.parametrize("spec", ["cloud-a100:2x4", "dgx-a100:2x4"])
def test_claims_hold_on_machines_within_the_bars(spec: str) -> None:
    """Costs, differences and the bound, against tables built again for machines drawn from the bars."""
    rng, where = random.Random(7), space("one-per-level")
    for graph in graphs():
        machine = barred(spec)
        planned = plan_graph(graph, machine, where)
        whole = with_error_bounds(planned)
        bars, x = whole.bars, planned.answer.solution
        assert bars is not None and x is not None and bars.against
        ways = [planned.planning.solution(a.choices) for a in bars.against]
        seen: list[list[int]] = [[] for _ in bars.against]
        for number in range(4):
            ends = (extreme(machine, False), extreme(machine, True))
            other = build(graph, ends[number] if number < 2 else drawn(machine, rng), where)
            cost = other.problem.cost_of(x)
            assert bars.cost[0] <= cost <= bars.cost[1]
            if number < 2:
                assert cost == bars.cost[number]
            for a, y, found in zip(bars.against, ways, seen, strict=True):
                found.append(other.problem.cost_of(y) - cost)
                assert a.least <= found[-1] <= a.most, a.name
        best = plan_graph(graph, extreme(machine, False), where).answer.cost
        assert best is not None and bars.bound <= best


def test_links_that_both_plans_use_are_equally_fast_for_both() -> None:
    """Two plans over one link that differ by 5 %: decided although the link may be off by half."""
    machine = barred("cloud-a100:2x4", "50 %", "1 %")
    planned = plan_graph(graphs()[0], machine, space("one-per-level"))
    box, x = Box(planned.planning), planned.answer.solution
    assert x is not None
    for _, y in named_plans(planned.planning):
        least, most, _ = box.difference(x, y)
        low, high = box.cost(y)
        own = box.cost(x)
        assert low - own[1] <= least and most <= high - own[0]  # never looser than without
    widths = [box.difference(x, y)[1] - box.difference(x, y)[0] for _, y in named_plans(planned.planning) if y != x]
    apart = [box.cost(y)[1] - box.cost(y)[0] + own[1] - own[0] for _, y in named_plans(planned.planning) if y != x]
    assert any(w < a for w, a in zip(widths, apart, strict=True))


@pytest.fixture(scope="module")
def small() -> Plan:
    return with_error_bounds(plan_graph(graphs()[0], barred("dgx-a100:2x2"), space("one-per-level")))


def test_the_checker_refuses_what_is_tighter_and_takes_what_is_looser(small: Plan) -> None:
    checked = check_plan(write_plan(None, small))
    assert checked.verdict is Verdict.PROVED and checked.results[-1].kind == "Bars"
    bars, bound = small.bars, next(r.lower_bound for r in checked.results if r.kind == "Optimal")
    assert bars is not None
    x = checked.planning.solution(small.choices)

    def wrong(changed: ErrorBounds) -> str:
        return wrong_error_bounds(checked.planning, x, changed, bound)

    first = bars.against[0]
    for tighter in (
        replace(bars, cost=(bars.cost[0] + 1, bars.cost[1])),
        replace(bars, cost=(bars.cost[0], bars.cost[1] - 1)),
        replace(bars, bound=bars.bound + 2),
        replace(bars, against=(replace(first, least=first.least + 3),)),
        replace(bars, against=(replace(first, most=first.most - 3),)),
        replace(bars, against=(replace(first, measure="level.none"),)),
        replace(bars, against=(replace(first, choices=replace(first.choices, operators=())),)),
    ):
        assert wrong(tighter).startswith("bars: "), tighter
    looser = replace(
        bars,
        cost=(bars.cost[0] - 5, bars.cost[1] + 5),
        bound=max(0, bars.bound - 5),
        against=tuple(replace(a, least=a.least - 9, most=a.most + 9) for a in bars.against),
    )
    assert not wrong(looser) and not wrong(bars)
    forged = replace(small, bars=replace(bars, bound=bars.bound * 2))
    assert check_plan(write_plan(None, forged)).verdict is Verdict.REFUTED


def test_every_interval_that_is_narrowed_is_refused(small: Plan) -> None:
    checked = check_plan(small)
    bars, x = small.bars, checked.planning.solution(small.choices)
    bound = next(r.lower_bound for r in checked.results if r.kind == "Optimal")
    assert bars is not None
    for number, a in enumerate(bars.against):
        for change in ({"least": a.least + 3}, {"most": a.most - 3}):
            others = tuple(replace(b, **change) if i == number else b for i, b in enumerate(bars.against))
            assert a.name in wrong_error_bounds(checked.planning, x, replace(bars, against=others), bound)


def test_machines_without_bars_have_plans_as_before(small: Plan) -> None:
    plain = plan_graph(graphs()[0], load_machine("cloud-a100:2x2"), space("one-per-level"))
    assert (
        plain.plan is not None and with_error_bounds(plain) is plain.plan and "bars.json" not in encode_plan(plain.plan)
    )
    members = encode_plan(small)
    assert decode_plan(members).bars == small.bars == read_plan(write_plan(None, small))[0].bars
    assert decode_plan(members).machine == small.machine
    claimed = replace(plain.plan, bars=ErrorBounds((0, 1 << 60), 0, ()))
    result = check_plan(write_plan(None, claimed))
    assert result.verdict is Verdict.REFUTED and "the machine has none" in result.results[-1].reason


def test_a_refutation_that_the_bars_cover_is_undecided() -> None:
    """One strategy, wide and narrow bars: refuted, undecided, and which constant would tell."""
    graph = zoo("mlp-unity")
    strategy = parse_strategy('{"fc1": {}, "relu1": {}, "fc2": {}}')
    step = build_step(graph, "sgd", None).graph
    for level, wanted in (("1 %", Outcome.REFUTED), ("400 %", Outcome.UNDECIDED)):
        planning = build(step, barred("cloud-a100:2x4", level, "1 %"), space("complete"))
        report = audit(planning, strategy)
        assert report.outcome is wanted and report.nominal is Outcome.REFUTED and report.bars is not None
        (against,) = report.bars.against
        assert (against.verdict == "better") == (wanted is Outcome.REFUTED) and against.measure.startswith("level.")


def test_what_the_model_lacks_makes_small_differences_undecided() -> None:
    """A bar of `step` above the ratio of two costs: undecided, that of the constants decides else; both sides agree."""
    step, where = build_step(zoo("mlp-unity"), "sgd", None).graph, space("complete")
    strategy = parse_strategy('{"fc1": {}, "relu1": {}, "fc2": {}}')
    sharp = barred("cloud-a100:2x4", "1 %", "1 %")
    report = audit(build(step, sharp, where), strategy)
    own, best = report.completed.cost, report.best.cost
    assert own is not None and best is not None and report.outcome is Outcome.REFUTED and report.bars is not None
    ratio = Fraction(own, best)
    for bar, wanted in ((ratio - 1 + Fraction(1, 100), Outcome.UNDECIDED), ((ratio - 1) / 2, Outcome.REFUTED)):
        machine = replace(sharp, bars=(*sharp.bars, (STEP, bar)))
        planning = build(step, machine, where)
        found = audit(planning, strategy)
        assert found.outcome is wanted and found.bars is not None and found.solution is not None
        (against,), bound = found.bars.against, found.best.lower_bound
        assert against.least == floor(own / (1 + bar)) - best and against.most == ceil(own * (1 + bar)) - best
        assert found.bars.cost == (floor(best / (1 + bar)), ceil(best * (1 + bar))) and against.measure == STEP
        assert found.bars.bound <= best / (1 + bar)
        assert not wrong_error_bounds(planning, found.solution, found.bars, bound)
        tighter = [replace(against, least=against.least + 1), replace(against, most=against.most - 1)]
        costs = [(found.bars.cost[0] + 1, found.bars.cost[1]), (found.bars.cost[0], found.bars.cost[1] - 1)]
        claims = [replace(found.bars, against=(a,)) for a in tighter] + [replace(found.bars, cost=c) for c in costs]
        assert all(wrong_error_bounds(planning, found.solution, claim, bound) for claim in claims)


def test_wide_bars_of_constants_are_not_narrowed_by_what_is_lacking() -> None:
    """A bar of `step` of nearly nothing leaves every interval as it was."""
    wide, where = barred("cloud-a100:2x4", "80 %", "40 %"), space("one-per-level")
    planned = plan_graph(graphs()[0], wide, where)
    x = planned.answer.solution
    assert x is not None
    lacking = build(graphs()[0], replace(wide, bars=(*wide.bars, (STEP, Fraction(1, 10**6)))), where)
    for _, y in named_plans(planned.planning):
        if y != x:
            assert Box(lacking).difference(x, y) == Box(planned.planning).difference(x, y)
            assert _Box(lacking).difference(x, y) == _Box(planned.planning).difference(x, y)
    assert Box(lacking).cost(x) == Box(planned.planning).cost(x) == _Box(lacking).cost(x)


def test_plan_and_audit_say_it(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    text = (Path(__file__).parent.parent / "models/machine/builtin/cloud-a100.toml").read_text()
    Path("m.toml").write_text(text + '\n[bars]\n"level.nodes" = "300 %"\n"level.gpus" = "300 %"\n')
    assert run(["plan", "mlp-unity", "--train", "sgd", "--machine", "m.toml:2x4", "-o", "p.spz"]) == 0
    said = capsys.readouterr().out
    assert "error bounds of cloud-a100 (at most 300 %): on every machine within them this plan takes" in said
    assert "undecided against everything on every device" in said and "measure " in said
    assert run(["check", "p.spz", "--json"]) == 0
    assert "Bars" in {c["kind"] for c in json.loads(capsys.readouterr().out)["claims"]}
    Path("s.json").write_text('{"fc1": {}, "relu1": {}, "fc2": {}}')
    assert run(["audit", "mlp-unity", "--machine", "m.toml:2x4", "--strategy", "s.json", "--json"]) in (5, 10)
    assert json.loads(capsys.readouterr().out)["bars"]["against"][0]["name"] == "the strategy"


def test_another_plan_with_rows_of_several_lengths_is_malformed(small: Plan) -> None:
    """It was an internal error: NumPy refuses the matrix, after the file had been read."""
    members = dict(encode_plan(small))
    data = json.loads(members["bars.json"])  # type: ignore[arg-type]
    data["against"][0]["decisions"]["operators"][0][2][0] = [1, 1, 1]
    with pytest.raises(ContainerError, match="rows of one length"):
        check_plan(write_container(None, {**members, "bars.json": canonical(data)}))


def test_statistics_over_other_levels_are_not_alike() -> None:
    """A softmax cut along its own axis exchanges statistics: boxes of one size, but over another link."""
    g = Builder("softmax")
    graph = g.build(g.normalise("s", "softmax", "b n -> b n", g.input("x", (8, 8)), over="n"))
    machine = barred("cloud-a100:2x2", "50 %")
    planning = build(graph, machine, space("complete"))
    (v,) = planning.operators.values()
    box, ends = _Box(planning), (extreme(machine, False), extreme(machine, True))
    problems = [build(graph, m, space("complete")).problem for m in ends]
    x, size = [0] * len(planning.decisions), planning.problem.vertices[v].cost.size
    seen = 0
    for a in range(size):
        for b in range(size):
            one, two = ((*x[:v], c, *x[v + 1 :]) for c in (a, b))
            apart = [p.cost_of(two) - p.cost_of(one) for p in problems]
            least, most = box.difference(one, two)
            assert least <= min(apart) and max(apart) <= most, (a, b)
            seen += any(apart)
    assert seen


def test_another_plan_decides_everything_once(small: Plan) -> None:
    checked = check_plan(small)
    bars, x = small.bars, checked.planning.solution(small.choices)
    assert bars is not None
    first = bars.against[0]
    twice = replace(first.choices, operators=(*first.choices.operators, first.choices.operators[0]))
    changed = replace(bars, against=(replace(first, choices=twice), *bars.against[1:]))
    bound = next(r.lower_bound for r in checked.results if r.kind == "Optimal")
    assert "each once and in order" in wrong_error_bounds(checked.planning, x, changed, bound)
