"""Several freedoms at once: any combination of them gives one file, which is never worse than any of them alone, and the
checker believes nothing of what is said about its plans together.
"""

from __future__ import annotations

import json
import random
from collections.abc import Callable, Mapping
from dataclasses import replace
from fractions import Fraction
from itertools import product
from pathlib import Path

import composed_problems
import pytest

import shardproof
from shardproof.__main__ import run
from shardproof.formal.plans.portfolio.passes import derived_step
from shardproof.front_door import FrontDoor
from shardproof.models.machine.machine import load_machine
from shardproof.models.pipelines.division import divide
from shardproof.models.problem.claims import Verdict
from shardproof.models.program.graph import Graph
from shardproof.models.program.tensor import Role
from shardproof.models.sources.training import build_step
from shardproof.models.sources.zoo import build
from shardproof.models.sources.zoo.gpt import gpt
from shardproof.models.text import InputError
from shardproof.proofs.container.archive import read_container, write_container
from shardproof.proofs.container.canonical import ContainerError, canonical
from shardproof.proofs.container.kinds import PORTFOLIO
from shardproof.proofs.container.room import needs
from shardproof.proofs.pipelines.certificate import PipelineCertificate
from shardproof.proofs.pipelines.file import decode_pipeline
from shardproof.proofs.portfolio.file import decode_portfolio, write_portfolio
from shardproof.verify.budget import HELD_UNASKED, UNASKED, Budget
from shardproof.verify.portfolio.certificate import Checked, check_portfolio
from shardproof.verify.verbs import kinds
from shardproof.verify.verbs.kinds import KEPT, Effort, Judged, require_known
from shardproof.verify.verdict import CheckResult

MODEL, MACHINE = "mlp-8192:layers=4,width=64", "localhost:2"
LINE = ("plan", MODEL, "--batch", "16", "--train", "sgd", "--machine", MACHINE, "--work-limit", "1M", "--force")
FLAGS: Mapping[str, tuple[str, ...]] = {
    "stages": ("--pipeline", "2:2"),
    "overlap": ("--overlap",),
    "rewrites": ("--joint",),
    "submeshes": ("--views",),
    "memory": ("--memory", "1GiB"),
    "recompute": ("--recompute", "auto"),
}
FREEDOMS = ("stages", "overlap", "rewrites", "submeshes")


def combinations() -> list[tuple[str, ...]]:
    """All that go together: recomputation weighs time against memory, and a model without branches has no submeshes."""
    found = [tuple(n for n, on in zip(FLAGS, bits, strict=True) if on) for bits in product((0, 1), repeat=len(FLAGS))]
    alone = {("submeshes",)}
    return [names for names in found if ("recompute" not in names or "memory" in names) and names not in alone]


@pytest.fixture(scope="module")
def planned(tmp_path_factory: pytest.TempPathFactory) -> Callable[[tuple[str, ...]], Path]:
    folder, made = tmp_path_factory.mktemp("portfolio"), dict[tuple[str, ...], Path]()

    def plan(names: tuple[str, ...]) -> Path:
        if names not in made:
            path = folder / f"{'-'.join(names) or 'plain'}.spz"
            assert run([*LINE, *(word for n in names for word in FLAGS[n]), "-o", str(path)]) in (0, 5), names
            made[names] = path
        return made[names]

    return plan


@pytest.mark.parametrize(
    "names",
    [
        pytest.param(names, id="-".join(names) or "plain", marks=() if i % 6 == 5 else pytest.mark.slow)
        for i, names in enumerate(combinations())
    ],
)
def test_every_combination_gives_one_file_that_is_never_worse(
    names: tuple[str, ...], planned: Callable[[tuple[str, ...]], Path], capsys: pytest.CaptureFixture[str]
) -> None:
    path = planned(names)
    found = FrontDoor().open(path)
    assert found.published.verdict is Verdict.PROVED
    step, bound = found.seconds
    assert 0 < bound <= step
    rest = tuple(n for n in names if n not in FREEDOMS)
    for alone in (n for n in names if n in FREEDOMS and n != "submeshes"):
        assert step <= FrontDoor().open(planned((alone, *rest))).seconds[0] * Fraction(1001, 1000), alone
    capsys.readouterr()
    assert run(["run", str(path), "-n", "2", "--virtual", "--json"]) == 0
    ran = json.loads(capsys.readouterr().out)
    assert ran["equal"] and ran["identity"] == found.identity
    assert run(["explain", str(path), "--json"]) == 0
    said = json.loads(capsys.readouterr().out)
    assert said["identity"] == found.identity and len(said.get("among", ())) == len(found.published.among) != 1


def test_rewrites_and_overlap_meet_in_one_plan(planned: Callable[[tuple[str, ...]], Path], tmp_path: Path) -> None:
    """The program that rules derive is overlapped, and is less than either alone; the rules are in the same file."""
    both = FrontDoor().open(planned(("overlap", "rewrites")))
    alone = [FrontDoor().open(planned((n,))).seconds[0] for n in ("overlap", "rewrites")]
    assert both.seconds[0] < min(alone)
    assert not any(flag.startswith("same-function") for flag in both.published.assumptions)
    members = read_container(planned(("overlap", "rewrites")))
    plans = [content for name, content in members.items() if name.startswith("plans/") and isinstance(content, bytes)]
    overlapped = [p for p in plans if "overlap.json" in read_container(p)]
    # without the plan that derives it nobody knows that the rewritten program computes the same
    without = FrontDoor().read(write_portfolio(None, overlapped, 1))
    assert any(flag.startswith("same-function(") for flag in without.published.assumptions)


@pytest.mark.slow  # what is searched at all: tests/test_best.py
@pytest.mark.timeout(900)
def test_streams_of_the_step_as_it_is_given_are_searched_beside_recomputation(tmp_path: Path) -> None:
    """Placements alone compute blocks again, which is the cheaper of two ways to fit; with reshardings beside operators
    the other is.
    """
    sizes = "layers=2,sequence=8,width=32,heads=4,kv_heads=2,hidden=64,vocabulary=32,dtype=float32,batch=16"
    slow = tmp_path / "slow.toml"
    slow.write_text(composed_problems.MACHINE.replace('"4 GB/s"', '"300 MB/s"'))
    job = ["plan", f"llama:{sizes}", "--machine", f"{slow}:1x4", "--train", "adam", "--memory", "234192B"]
    job += ["--space", "one-per-level", "--overlap", "--recompute", "auto", "--work-limit", "6M"]
    assert run([*job, "-o", str(tmp_path / "both.spz")]) == 5
    found = FrontDoor().open(tmp_path / "both.spz")
    assert found.published.verdict is Verdict.PROVED
    settled, recomputed, given = found.published.among
    assert given.taken and given.step < recomputed.step < settled.step


def test_a_rewritten_program_is_cut_into_stages(tmp_path: Path) -> None:
    """Of the same file, whose derivation says that it computes what the step does; it takes less than the step's own
    stages, and runs in its stages.
    """
    target, path = tmp_path / "both.spz", tmp_path / "derived.spz"
    ask = ["bert-tiny:layers=1", "--batch", "8", "--train", "adam", "--machine", "localhost:4", "--work-limit", "5M"]
    assert run(["plan", *ask, "--pipeline", "2:2", "--joint", "-o", str(target)]) in (0, 5)
    both, members = FrontDoor().open(target), read_container(target)
    assert both.published.verdict is Verdict.PROVED
    assert not any(flag.startswith("same-function") for flag in both.published.assumptions)
    plans = [content for name, content in members.items() if name.startswith("plans/") and isinstance(content, bytes)]
    staged = [p for p in plans if "pipeline.json" in read_container(p)]
    own, derived = (decode_pipeline(read_container(p)) for p in staged)
    assert derived.graph.name == f"{own.graph.name}+rewritten" and derived.step < own.step
    path.write_bytes(staged[1])
    assert run(["run", str(path), "-n", "4", "--virtual"]) == 0


@pytest.mark.parametrize("optimizer", ["sgd", "adam:clip=1"])
@pytest.mark.parametrize("model", ["bert-tiny", "gpt"])
def test_passes_are_found_from_the_graph(model: str, optimizer: str) -> None:
    """Operators whose names rules have changed: their pass is found again, and so are all cuts but next to them."""
    tied = gpt(batch=4, depth=1, sequence=4, width=8, heads=2, vocabulary=16)
    step = build_step(tied if model == "gpt" else build(model), optimizer)
    before = divide(step.graph, step.passes)
    rng = random.Random(3)
    for _ in range(12):
        new = set(rng.sample(range(len(step.graph.operators)), 4))
        operators = [replace(op, name=f"{op.name}'") if i in new else op for i, op in enumerate(step.graph.operators)]
        graph = replace(step.graph, operators=tuple(operators)).check()
        after = divide(graph, derived_step(step, graph).passes)
        assert after.phase == before.phase
        assert before.units - 2 * len(new) <= after.units <= before.units


def test_the_job_is_the_program_that_was_asked_about(
    planned: Callable[[tuple[str, ...]], Path], capsys: pytest.CaptureFixture[str]
) -> None:
    """Whatever program is taken: `check --model`, `diff` and the run beside one process are about the user's."""
    best = planned(("overlap", "rewrites"))
    found = FrontDoor().open(best)
    assert found.held.graph.name.endswith("+rewritten") and found.user_graph.name == "mlp-8192+sgd"
    step = ["--model", MODEL, "--batch", "16", "--train", "sgd"]
    assert run(["check", str(best), *step]) == 0
    assert run(["check", str(best), "--model", MODEL, "--batch", "32", "--train", "sgd"]) == 10
    assert run(["diff", str(best), str(planned(("stages",)))]) == 0
    capsys.readouterr()
    assert run(["run", str(best), "-n", "2", "--virtual"]) == 0
    assert capsys.readouterr().out.startswith("mlp-8192+sgd: ")


def test_the_json_has_one_scale(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for names in (("overlap",), ("stages",), ("overlap", "rewrites", "stages")):
        capsys.readouterr()
        words = [word for n in names for word in FLAGS[n]]
        assert run([*LINE, *words, "--json", "-o", str(tmp_path / "p.spz")]) in (0, 5)
        said = json.loads(capsys.readouterr().out)
        opened = FrontDoor().open(tmp_path / "p.spz")
        assert (Fraction(said["cost"], said["scale"]), Fraction(said["lower_bound"], said["scale"])) == opened.seconds
        assert said["status"] in ("optimal", "feasible") and said["gap"] == pytest.approx(
            float(1 - opened.seconds[1] / opened.seconds[0])
        )


def test_python_takes_them_together() -> None:
    made = shardproof.plan(MODEL, MACHINE, batch=16, train="sgd", joint=True, overlap=True, work_limit=1_000_000)
    assert len(made.among) == 3 and made.step_s == min(one.step for one in made.among if one.step is not None)
    assert made.lower_bound_s == min(one.bound for one in made.among) and made.check().verdict is Verdict.PROVED
    staged = shardproof.plan(MODEL, MACHINE, batch=16, train="sgd", stages="2:2", work_limit=1_000_000)
    assert len(staged.stages) == 2 and not staged.among


@pytest.fixture(scope="module")
def parts(planned: Callable[[tuple[str, ...]], Path]) -> list[bytes]:
    return [planned((n,)).read_bytes() for n in ("overlap", "rewrites", "stages")]


def judged(data: bytes, effort: Effort | None = None) -> Judged[object]:
    members = read_container(data)
    return require_known(members, "test").judge(members, effort or Effort(), {})


def test_the_least_is_taken_and_the_least_bound_counts(parts: list[bytes]) -> None:
    each = [judged(p) for p in parts]
    steps = [Fraction(j.main.cost or 0, j.scale) for j in each]
    bounds = [Fraction(j.main.lower_bound or 0, j.scale) for j in each]
    for chosen in range(len(parts)):
        found = judged(write_portfolio(None, parts, chosen))
        if steps[chosen] > min(steps):
            assert found.verdict is Verdict.REFUTED and "takes less" in found.main.reason
            continue
        assert found.verdict is Verdict.PROVED and found.main.cost == each[chosen].main.cost
        assert found.scale == each[chosen].scale
        assert found.main.lower_bound == min(bounds) * found.scale // 1
        assert {a for j in each for a in j.main.assumptions} <= set(found.main.assumptions)
        wanted = [f"{i}:{r.kind}" for i, j in enumerate(each) for r in j.results]
        assert [r.kind for r in found.results] == [found.main.kind, *wanted]


def test_what_is_wrong_inside_is_wrong_outside(parts: list[bytes]) -> None:
    """A plan inside that its own checker refutes refutes the file, whichever is taken."""
    from shardproof.proofs.overlap.file import decode_overlap, write_overlap

    certificate = decode_overlap(read_container(parts[0]))
    forged = write_overlap(None, replace(certificate, lower_bound=certificate.makespan))
    assert judged(forged).verdict is Verdict.REFUTED
    for chosen in (0, 1):
        assert judged(write_portfolio(None, [forged, parts[1]], chosen)).verdict is Verdict.REFUTED


def _checked(**changed: object) -> Checked:
    graph, machine = shardproof.plan("mlp-unity", MACHINE, batch=16).graph, load_machine(MACHINE)
    claim = CheckResult("WithinGap", Verdict.PROVED, 100, 90, "complete", ("a",))
    return replace(Checked(graph, graph, machine, None, 10, claim, Verdict.PROVED), **changed)  # type: ignore[arg-type]


def _claim(cost: int | None, bound: int | None) -> CheckResult:
    return CheckResult("WithinGap", Verdict.PROVED, cost, bound, "complete", ("b",))


def _renamed(graph: Graph, role: Role) -> Graph:
    t = next(t for t in graph.tensors if t.role is role)
    tensors = tuple(replace(x, dtype="float64") if x.name == t.name else x for x in graph.tensors)
    return replace(graph, tensors=tensors)


def test_every_condition_can_say_no() -> None:
    good = _checked()
    assert check_portfolio([good, replace(good, claim=_claim(110, 80))], 0).lower_bound == 80
    wrong: Mapping[str, Checked] = {
        "another machine": replace(good, machine=load_machine("localhost:4")),
        "another memory limit": replace(good, memory=1 << 30),
        "other inputs": replace(good, asked=_renamed(good.asked, Role.INPUT)),
        "parameters": replace(good, asked=_renamed(good.asked, Role.PARAMETER)),
        "takes less": replace(good, claim=_claim(99, 90)),
    }
    for words, other in wrong.items():
        result = check_portfolio([good, other], 0)
        assert result.verdict is Verdict.REFUTED and words in result.reason
        assert result.cost is result.lower_bound is None
    assert check_portfolio([replace(good, claim=_claim(None, None)), good], 0).verdict is Verdict.REFUTED
    open_ = replace(good, verdict=Verdict.UNDECIDED)
    for plans in ([good, open_], [open_, good]):
        assert check_portfolio(plans, 0).verdict is Verdict.UNDECIDED
    nothing = check_portfolio([good, replace(good, claim=_claim(120, None))], 0)
    assert nothing.lower_bound == 0
    scaled = check_portfolio([good, replace(good, scale=7, claim=_claim(80, 60))], 0)
    assert scaled.lower_bound == 85  # 60 / 7 s, rounded down to tenths


def test_programs_that_no_rule_derives_are_an_assumption() -> None:
    good = _checked()
    other = replace(good.asked, name="other")
    assert check_portfolio([good, replace(good, asked=other)], 0).assumptions != check_portfolio([good], 0).assumptions
    derived = replace(good, derived=other)
    assert not any("same" in a for a in check_portfolio([derived, replace(good, asked=other)], 0).assumptions)
    doubtful = replace(derived, verdict=Verdict.UNDECIDED)
    assert any("same" in a for a in check_portfolio([doubtful, replace(good, asked=other)], 0).assumptions)


def test_malformed_files_name_the_place(parts: list[bytes]) -> None:
    good = dict(read_container(write_portfolio(None, parts[:2], 0)))
    head = json.loads(bytes(good[PORTFOLIO]))
    nested = write_portfolio(None, [write_portfolio(None, parts[:2], 0), parts[2]], 0)
    cases = {
        "belongs to no plan": {**good, "plans/2.spz": parts[2]},
        "is missing": {k: v for k, v in good.items() if k != "plans/1.spz"},
        "is another one": {**good, "plans/1.spz": parts[2]},
        "different plans": {**good, PORTFOLIO: canonical({**head, "plans": [head["plans"][0]] * 2})},
        "out of range": {**good, PORTFOLIO: canonical({**head, "chosen": 2})},
        "reads 'shardproof": {**good, PORTFOLIO: canonical({**head, "format": "shardproof-portfolio/2"})},
        "holds several plans itself": dict(read_container(nested)),
    }
    for words, members in cases.items():
        members.pop("manifest.json", None)
        with pytest.raises(ContainerError, match=words):
            decode_portfolio(read_container(write_container(None, members)))


def test_what_is_inside_spends_the_room_of_the_file(parts: list[bytes]) -> None:
    from shardproof.proofs.container.archive import LIMITS

    members = read_container(write_portfolio(None, parts, 0))
    inside = (m for p in parts for m in read_container(p).values())
    size = sum(len(m) if isinstance(m, bytes) else m.nbytes for m in [*members.values(), *inside])
    decode_portfolio(members, replace(LIMITS, total=size))
    with pytest.raises(ContainerError, match="would expand"):
        decode_portfolio(members, replace(LIMITS, total=size - 1))


def test_what_stages_do_without_nobody_takes(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """A search that cannot do without tensor splits is not asked: its plan would have them."""
    words = [*LINE, *FLAGS["stages"], *FLAGS["overlap"], "--without", "tensor", "-o", str(tmp_path / "p.spz")]
    assert run(words) in (0, 5)
    held = FrontDoor().open(tmp_path / "p.spz").held
    assert isinstance(held, PipelineCertificate) and held.forbidden == ("tensor",) and held.overlap is not None
    for other in ("rewrites", "submeshes"):
        capsys.readouterr()
        assert run([*words, *FLAGS[other]]) == 2
        assert "--without and" in capsys.readouterr().err


def test_the_model_of_an_assumed_program_is_not_proved(
    planned: Callable[[tuple[str, ...]], Path], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Whoever swaps the cheaper plan's program for another of the same interface gets no `proved` for the user's."""
    members = read_container(planned(("overlap", "rewrites")))
    plans = [content for name, content in members.items() if name.startswith("plans/") and isinstance(content, bytes)]
    path, step = tmp_path / "p.spz", ["--model", MODEL, "--batch", "16", "--train", "sgd"]
    for chosen, code in ((1, 5), (0, 0)):
        kept = [p for p in plans if "overlap.json" in read_container(p)]
        write_portfolio(path, kept if chosen else kept[:1], chosen)
        capsys.readouterr()
        assert run(["check", str(path), *step]) == code
        told = capsys.readouterr().out
        assert ("assumed and not proved" in told) is bool(chosen)
        assert run(["check", str(path)]) == 0  # under an assumption with a name


def test_tables_are_kept_of_the_plan_that_is_taken_alone(parts: list[bytes]) -> None:
    plain = shardproof.plan(MODEL, MACHINE, batch=16, train="sgd", work_limit=1_000_000).opened.data
    order = [parts[1], plain]
    costs = [Fraction(j.main.cost or 0, j.scale) for j in map(judged, order)]
    found = judged(write_portfolio(None, order, costs.index(min(costs))))
    assert [one.planning is not None for one in found.among] == [c == min(costs) for c in costs]


def test_the_same_steps_give_the_same_bytes(tmp_path: Path) -> None:
    files = [tmp_path / "a.spz", tmp_path / "b.spz"]
    for file in files:
        assert run([*LINE, *FLAGS["overlap"], *FLAGS["rewrites"], "--work-limit", "500k", "-o", str(file)]) in (0, 5)
    assert files[0].read_bytes() == files[1].read_bytes()


def test_constants_are_not_moved_in_several_problems_at_once(
    planned: Callable[[tuple[str, ...]], Path], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    plain = shardproof.plan(MODEL, MACHINE, batch=16, train="sgd", work_limit=1_000_000).opened.data
    path = tmp_path / "p.spz"
    write_portfolio(path, [plain], 0)
    with pytest.raises(InputError, match="the best of several plans"):
        shardproof.load(path).sensitivity()
    assert run(["sensitivity", str(path)]) == 3
    assert "the best of several plans" in capsys.readouterr().err


def test_reading_what_is_inside_is_charged(parts: list[bytes], monkeypatch: pytest.MonkeyPatch) -> None:
    read: list[int] = []
    monkeypatch.setattr(kinds, "charge_reading", lambda members, budget: read.append(len(members)) or 0)
    judged(write_portfolio(None, parts, 0))
    assert read == [len(read_container(p)) for p in parts]


def test_short_lists_cost_what_it_takes_to_read_them() -> None:
    """`["",[],[]]` takes as long as a hundred letters: it is charged by what its values take, not by its letters."""
    spent = []
    for text in (b"x" * 1100, b'["",[],[]],' * 100):
        budget = Budget.without_large()
        kinds.charge_reading({"a.json": text}, budget)
        spent.append(UNASKED - budget.work)
    assert 1100 * 10 < spent[0] < spent[1] // 10


def test_what_plans_hold_together_is_counted(parts: list[bytes]) -> None:
    """Each alone is held, all of them are not: they are kept until the last is judged."""
    data = write_portfolio(None, parts, 0)
    entries = [sum(needs(m) for m in read_container(p).values() if isinstance(m, bytes)) // KEPT for p in parts]
    with pytest.raises(ContainerError, match="plan 1, .*tables have"):
        judged(data, Effort(budget=Budget(held=max(entries))))


def test_a_file_of_many_long_plans_is_refused_before_it_is_read(parts: list[bytes]) -> None:
    """6 MB of rows of nothing in each of 27 took 72 s and 1.7 GiB."""
    members = dict(read_container(next(p for p in parts if "plan.json" in read_container(p))))
    head = json.loads(bytes(members["plan.json"]))
    row = ["t", "w", "r", 0, "c", [], []]
    heads = [{**head, "communication": [row] * 100_000, "versions": {"n": str(k)}} for k in range(3)]
    plans = [write_container(None, {**members, "plan.json": canonical(one)}) for one in heads]
    share = 16
    budget = Budget(UNASKED // share, HELD_UNASKED // share, None, False)
    with pytest.raises(ContainerError, match="plan 1, container.*--large"):
        judged(write_portfolio(None, plans, 0), Effort(budget=budget))


def test_a_machine_that_is_too_large_as_one_is_left_to_stages(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """The overlapped search wrote a file that `check` refuses; placements ended the whole command."""
    model = ["mlp-8192:layers=3,width=64", "--batch", "4096", "--train", "sgd", "--machine", "dgx-h100:1024x8"]
    words = ["--memory", "1GiB", "--work-limit", "1M", "-o", str(tmp_path / "p.spz"), "--json"]
    for alone in (["--overlap"], ["--overlap", "--space", "one-per-level"], ["--submeshes"]):
        assert run(["plan", *model, *words, *alone]) == 3
        said = json.loads(capsys.readouterr().out)["error"]
        assert said == "machine 'dgx-h100': 8192 devices, at most 4096 are planned as one"  # not our own check's words
    run(["plan", *model, *words, "--best", "--pipeline", "2:4", "--space", "one-per-level", "--force"])
    found = json.loads(capsys.readouterr().out)
    why = dict(found["left_out"])
    assert all("at most 4096" in why[part] for part in ("placements alone", "overlap", "rewrites")), why
    assert isinstance(found["cost"], int) and run(["check", "--large", str(tmp_path / "p.spz")]) in (0, 5)
