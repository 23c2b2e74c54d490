"""One registry of kinds of files, and every verb that takes a plan takes a plan of whatever kind: an answer, or a refusal
that says why and what to do.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pytest
from random_problems import grid_with_rows

import shardproof
from shardproof.__main__ import run
from shardproof.answers import Plan
from shardproof.formal.explain.differing import Differing
from shardproof.front_door import FrontDoor
from shardproof.models.problem.claims import Verdict
from shardproof.models.terminal.combinations import PLAN_KINDS
from shardproof.models.text import InputError
from shardproof.proofs.container.archive import MANIFEST, read_container, write_container
from shardproof.proofs.container.kinds import KINDS as NAMES
from shardproof.proofs.container.kinds import PLANS
from shardproof.proofs.overlap.certificate import OverlapCertificate
from shardproof.proofs.pipelines.certificate import PipelineCertificate
from shardproof.proofs.plan.bundle import Plan as Bundle
from shardproof.proofs.publishing.kind import plan_kind
from shardproof.proofs.publishing.publisher import Published
from shardproof.proofs.selection.problem_file import encode_problem
from shardproof.proofs.views.certificate import SubmeshCertificate
from shardproof.verify.verbs.kinds import KINDS
from shardproof.verify.verbs.programs import TELL

BATCH = ("--batch", "16")
MODELS = {
    "plan": ("mlp-unity", *BATCH, "--train", "sgd"),
    "joint": ("mlp-unity", *BATCH, "--joint"),
    "pipelined": ("mlp-8192:layers=4,width=64", *BATCH, "--train", "sgd", "--pipeline", "2:2"),
    "overlapped": ("mlp-unity", *BATCH, "--train", "sgd", "--overlap", "--memory", "1GiB"),
    "views": ("candle-uno:batch=16,width=64,tower=2,layers=1", "--views"),
    "portfolio": ("mlp-8192:layers=4,width=64", *BATCH, "--train", "sgd", "--joint", "--overlap"),
}
HOLDS = {
    "plan": Bundle,
    "joint": Bundle,
    "pipelined": PipelineCertificate,
    "both": PipelineCertificate,
    "overlapped": OverlapCertificate,
    "views": SubmeshCertificate,
    "portfolio": OverlapCertificate,
}


@pytest.fixture(scope="module")
def plans(tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    folder = tmp_path_factory.mktemp("kinds")
    out = {kind: str(folder / f"{kind}.spz") for kind in HOLDS}
    model, machine = "mlp-8192:layers=4,width=64", "localhost:2"
    both = shardproof.pipeline(model, machine, "sgd", stages="2:2", batch=16, overlap=True, work_limit=500_000)
    both.save(out["both"])
    for kind, words in MODELS.items():
        assert run(["plan", *words, "--machine", "localhost:2", "--work-limit", "500k", "-o", out[kind]]) in (0, 5)
    return out


def test_the_registry_knows_every_kind_once() -> None:
    members = [kind.member for kind in KINDS]
    assert members == list(TELL) == [m for m in NAMES if m != "problem.json"]
    assert set(PLANS) < set(members) and all(kind.words == NAMES[kind.member][0] for kind in KINDS)


@pytest.mark.parametrize("kind", HOLDS)
def test_the_door_opens_it(kind: str, plans: dict[str, str]) -> None:
    told = {"both": "pipelined", "portfolio": "overlapped"}.get(kind, kind)
    assert plan_kind(Path(plans[kind])) == told and told in PLAN_KINDS
    found = FrontDoor().open(Path(plans[kind]))
    assert isinstance(found.held, HOLDS[kind]) and found.published.verdict is Verdict.PROVED
    step, bound = found.seconds
    assert 0 < bound <= step and found.place == plans[kind]
    again: Published = FrontDoor().publish(None, Path(plans[kind]).read_bytes())
    assert (again.identity, again.cost, again.lower_bound) == (
        found.identity,
        found.published.cost,
        found.published.lower_bound,
    )


@pytest.mark.parametrize("kind", HOLDS)
def test_every_verb_answers(
    kind: str, plans: dict[str, str], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    plan, page = plans[kind], str(tmp_path / "page.html")

    def said(*words: str) -> dict[str, object]:
        capsys.readouterr()
        assert run([*words, "--json"]) in (0, 5), words
        found = json.loads(capsys.readouterr().out)
        assert isinstance(found, dict)
        return found

    identity = said("check", plan)["plans"][0]["identity"]  # type: ignore[index]
    assert said("explain", plan)["identity"] == identity
    assert said("report", plan, "-o", page)["identity"] == identity and Path(page).read_text().startswith("<!doctype")
    alone = kind in ("plan", "joint")
    found = said("diff", plan, plan, "-o", page, "--force")
    assert found["first"] == found["second"] == identity and ("differing" in found) is not alone
    ran = said("run", plan, "-n", "2", "--virtual")
    assert ran["identity"] == identity and ran["equal"] and ran["bytes_counted_equal_priced"] in (True, None)


def test_plans_of_one_model_are_compared_whatever_was_asked(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Programs that rules derive, other spaces and other limits are other problems of the same model."""
    model = ("mlp-8192:layers=3,width=64", *BATCH, "--machine", "localhost:2", "--train", "sgd")
    words = ["plan", *model, "--work-limit", "500k"]
    for name, more in {"a": [], "b": ["--joint"], "c": ["--memory", "1GiB"], "d": ["--space", "one-per-level"]}.items():
        assert run([*words, *more, "-o", str(tmp_path / f"{name}.spz")]) in (0, 5)
    told = {
        "b": "a rewritten program; step",
        "c": "under 1 GiB per device; step",
        "d": "in the space one-per-level; step",
    }
    for name, said in told.items():
        capsys.readouterr()
        assert run(["diff", str(tmp_path / "a.spz"), str(tmp_path / f"{name}.spz")]) == 0
        assert said in capsys.readouterr().out
    a, b = (shardproof.load(tmp_path / f"{name}.spz") for name in "ab")
    found = a.diff(b)
    assert isinstance(found, Differing) and found.parts[1] == "a rewritten program" and found.rows


@pytest.mark.parametrize("kind", HOLDS)
@pytest.mark.parametrize("target", ["dtensor", "jax"])
def test_layouts_are_written_or_refused_by_name(
    kind: str, target: str, plans: dict[str, str], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    words = ["export", plans[kind], "--to", target, "-o", str(tmp_path / "x.py")]
    capsys.readouterr()
    code = run(words)
    error = capsys.readouterr().err
    # no such file says what runs beside what: refused with what that costs, unless it is left to the job
    if kind in ("overlapped", "portfolio"):
        assert code == 3 and "order: reshardings beside operators, a step of" in error and "takes" in error
        assert run([*words, "--layouts-only"]) == 0 and "order" in Path(tmp_path / "x.py").read_text()
    elif kind == "both" and target == "dtensor":
        assert code == 3 and "overlap" in error
        assert run([*words, "--layouts-only"]) == 0
    elif kind == "views":
        assert code == 3 and "no operators on parts of a mesh" in error and "without --submeshes" in error
    elif kind in ("pipelined", "both") and target == "jax":
        assert code != 0 and "without --pipeline" in error
    else:
        assert code == 0 and not error.startswith("error")


@pytest.mark.parametrize("kind", HOLDS)
def test_sensitivity_answers_or_says_why(kind: str, plans: dict[str, str], capsys: pytest.CaptureFixture[str]) -> None:
    capsys.readouterr()
    code = run(["sensitivity", plans[kind], "--work-limit", "500k"])
    error = capsys.readouterr().err
    assert code in (0, 5) if kind in ("plan", "joint") else code == 3 and "made without --" in error


@pytest.mark.parametrize("kind", HOLDS)
def test_python_has_the_same_methods(kind: str, plans: dict[str, str], tmp_path: Path) -> None:
    made = shardproof.load(plans[kind])
    assert isinstance(made, Plan) and made.status in ("optimal", "within-gap")
    assert made.check().verdict is Verdict.PROVED and made.identity == made.check().identity
    assert made.lower_bound_s is not None and 0 < made.lower_bound_s <= made.cost_s == made.step_s
    assert set(made.placements) == {op.name for op in made.graph.operators} == set(made.views)
    assert (len(made.stages), made.micro_batches) == ((2, 2) if kind in ("pipelined", "both") else (0, 1))
    assert made.explain() and made.report().startswith("<!doctype") and made.diff(made) is not None
    ended = made.run()
    assert ended.equal and not ended.mismatched
    made.save(tmp_path / "again.spz")
    assert (tmp_path / "again.spz").read_bytes() == Path(plans[kind]).read_bytes()
    assert "<table>" in made._repr_html_() and made.graph.name in repr(made)


def test_what_is_said_of_placements_alone_is_refused_of_others(plans: dict[str, str]) -> None:
    made = shardproof.load(plans["pipelined"])
    asked: list[Callable[[], object]] = [
        made.costs,
        made.state,
        made.parallel_graph,
        made.sensitivity,
        lambda: made.instead("fc1", "b over ranks"),
        lambda: made.ranks("fc1"),
        lambda: made.explain("fc1"),
    ]
    for ask in asked:
        with pytest.raises(InputError, match="2 stages, 2 micro-batches"):
            ask()
    with pytest.raises(InputError, match="placements of every stage"):
        made.shardings  # noqa: B018


def test_plans_of_different_kinds_are_compared(plans: dict[str, str], capsys: pytest.CaptureFixture[str]) -> None:
    capsys.readouterr()
    assert run(["diff", plans["plan"], plans["overlapped"]]) == 0
    text = capsys.readouterr().out
    assert "operators one after another" in text and "reshardings beside operators" in text
    assert len(text.splitlines()) >= 4 and "\\n" not in text
    assert run(["diff", plans["plan"], plans["views"]]) == 3
    assert "of different models" in capsys.readouterr().err


@pytest.mark.parametrize("kind", HOLDS)
def test_what_claims_something_is_judged_whatever_lies_beside_it(
    kind: str, plans: dict[str, str], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """A file with a problem inside is no file of a problem: beside a good one its claims would go unread."""
    both = str(tmp_path / "both.spz")
    members = {name: held for name, held in read_container(Path(plans[kind])).items() if name != MANIFEST}
    write_container(both, {**members, **encode_problem(grid_with_rows(2, 2))})
    capsys.readouterr()
    code = run(["check", both, plans[kind], "--json"])
    said = json.loads(capsys.readouterr().out)
    assert code == 3 or [p["file"] for p in said["plans"]] == [both, plans[kind]]


def test_what_is_no_plan_is_called_by_its_name(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    other = str(tmp_path / "p.spz")
    assert run(["place", "--hierarchy", "2x2", "--axes", "4", "-o", other]) == 0
    for verb in (["run", other, "-n", "4"], ["explain", other], ["report", other, "-o", other + ".html"]):
        capsys.readouterr()
        assert run(verb) == 3
        assert "holds placements of axes, not a plan" in capsys.readouterr().err
