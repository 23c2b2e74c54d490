"""`plan --best`: all that applies is searched, what does not apply is named, and `--without` leaves out what it says."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

import shardproof
from shardproof.__main__ import run
from shardproof.formal.plans.plan import fitting_space
from shardproof.formal.plans.portfolio import search as portfolio
from shardproof.formal.plans.portfolio.freedoms import Freedoms, everything
from shardproof.formal.plans.portfolio.search import AS_GIVEN, Best, Candidate, Searches
from shardproof.formal.plans.portfolio.words import FREEDOM_WORDS
from shardproof.formal.plans.request import PlanOutcome, PlanRequest
from shardproof.formal.plans.time_limit import TimeLimit
from shardproof.formal.selection.model.clock import Clock
from shardproof.formal.verbs.portfolio import gains
from shardproof.front_door import FrontDoor
from shardproof.models.layout.placement import space
from shardproof.models.machine.machine import load_machine
from shardproof.models.problem.claims import Verdict
from shardproof.models.sources.training import build_step
from shardproof.models.sources.zoo import build
from shardproof.models.text import InputError

MODEL = "mlp-8192:layers=3,width=64"
LINE = ("plan", MODEL, "--batch", "16", "--train", "sgd", "--machine", "localhost:2", "--work-limit", "2M", "--json")


def test_it_is_never_above_placements_and_says_what_each_part_gains(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    best, alone = tmp_path / "best.spz", tmp_path / "alone.spz"
    assert run([*LINE, "--best", "--memory", "1GiB", "-o", str(best)]) in (0, 5)
    said = json.loads(capsys.readouterr().out)
    assert run([*LINE, "--memory", "1GiB", "-o", str(alone)]) == 0
    plain = json.loads(capsys.readouterr().out)
    assert said["verdict"] == "proved"
    assert said["cost"] / said["scale"] < plain["cost"] / plain["scale"]
    assert said["among"][0]["parts"] == "operators one after another"
    assert {part for part, _ in said["left_out"]} >= {"submeshes"}
    assert FrontDoor().open(best).published.verdict is Verdict.PROVED


@pytest.mark.slow  # its answer is tested above, the words of what each part gains at `test_gains_are_over_placements_alone..`
def test_people_read_how_much_less_it_is(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run([*LINE[:-1], "--best", "--memory", "1GiB", "-o", str(tmp_path / "best.spz")]) in (0, 5)
    assert "% less" in capsys.readouterr().out


def test_what_it_does_without_is_not_searched(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    words = [w for word in FREEDOM_WORDS for w in ("--without", word)]
    assert run([*LINE, "--best", *words, "-o", str(tmp_path / "p.spz")]) == 0
    said = json.loads(capsys.readouterr().out)
    assert said["among"] == [] and sorted(said["left_out"]) == sorted([word, "--without"] for word in FREEDOM_WORDS)
    made = shardproof.plan(MODEL, "localhost:2", batch=16, train="sgd", best=True, without=FREEDOM_WORDS[:4])
    assert made.identity == said["identity"] and not made.among


def test_what_applies() -> None:
    """Reasons are those of the job."""
    graph, four, one = build("bert-tiny", 4), load_machine("localhost:4"), load_machine("localhost:1")

    def left(request: PlanRequest, *without: str) -> dict[str, str]:
        return {x.part: x.why for x in everything(request, without)[1].left_out}

    step = PlanRequest(graph, four, "adam", memory=1 << 30)
    assert left(step) == {}
    assert everything(step)[0].recompute == "auto"
    assert left(step, "stages") == {"stages": "--without"}
    assert everything(step, ("overlap",))[1].stages is not None and not everything(step, ("overlap",))[1].overlap
    assert set(left(PlanRequest(graph, four))) == {"stages", "recompute"}
    assert set(left(PlanRequest(graph, one, "adam"))) == {"stages", "overlap", "submeshes", "recompute"}
    assert set(left(PlanRequest(graph, four, "adam", micro_batch="2", memory=1 << 30))) == {"stages", "submeshes"}
    for said in (PlanRequest(graph, four, vocabulary="jax"), PlanRequest(graph, four, space=space("complete,jax"))):
        assert left(said)["rewrites"] == left(said)["submeshes"] == "no placement of jax says it"
    assert left(PlanRequest(graph, four, "adam", recompute="all", memory=1 << 30))["recompute"].startswith(
        "--recompute"
    )


def test_nothing_fits_and_every_part_says_why(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Placements too, whether recomputation settles them or not."""
    for more in ((), ("--without", "recompute")):
        assert run([*LINE, "--best", "--memory", "30KiB", *more, "-o", str(tmp_path / "p.spz")]) == 5
        said = dict(json.loads(capsys.readouterr().out)["left_out"])
        assert said["placements alone"].startswith("no placements fit the limit") and {"stages", "overlap"} <= set(said)


def test_misspelled_words_are_refused() -> None:
    """The command line has choices; Python has the same words."""
    for more in (
        {"best": True, "without": ("overlpa",)},
        {"best": True, "without": ("tensor",)},
        {"stages": "2:2", "without": ("tensr",)},
    ):
        with pytest.raises(InputError, match="without"):
            shardproof.plan(MODEL, "localhost:2", batch=16, train="sgd", **more)  # type: ignore[arg-type]


def test_gains_are_over_placements_alone_and_reasons_name_no_option_that_nobody_typed(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run([*LINE[:-1], "--best", "--without", "stages", "-o", str(tmp_path / "p.spz")]) in (0, 5)
    said = capsys.readouterr().out
    assert "% less than placements alone" in said and "--submeshes" not in said and "--pipeline" not in said
    ten, nine = Candidate(b"", 10, 1, alone=True), Candidate(b"", 9, 1)
    graph = build("bert-tiny", 4)
    assert gains(Best(graph, (nine, ten), ())) == (", 10.0% less than placements alone", "")
    almost = Candidate(b"", 99_999, 10_000)
    assert gains(Best(graph, (almost, ten), ())) == (", no gain", "")
    assert gains(Best(graph, (nine, nine), ())) == ("", "")


@pytest.mark.parametrize(
    ("words", "told"),
    [
        (("--without", "overlap"), "--without overlap needs --best"),
        (("--best", "--without", "tensor"), "it forbids placements of stages alone"),
        (("--best", "--overlap"), "it searches this already"),
        (("--best", "--memory", "1GiB", "--recompute", "none"), "unless --without recompute says no"),
        (("--best", "--pipeline", "2:2", "--without", "stages"), "one asks for them, the other does without"),
    ],
)
def test_what_does_not_go_together(words: tuple[str, ...], told: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert run([*LINE, *words, "-o", "p.spz"]) != 0
    assert told in capsys.readouterr().err


def test_no_search_is_begun_with_too_little_time_where_there_is_a_plan() -> None:
    """Limits of work are for all of it; a limit of seconds leaves each search time to end as a whole."""
    now = [0.0]
    limit = TimeLimit(Clock(100.0, now=lambda: now[0]), checks=True)
    request = PlanRequest(build("mlp-8192", layers=2, width=8, batch=4), load_machine("localhost:2"))
    searches = Searches(request, Freedoms(overlap=True), limit)
    searches.found.append(Candidate(b"", 1, 1))
    begun = []

    def search() -> str:
        begun.append(now[0])
        return ""

    for now[0] in (50.0, 95.0):
        searches._attempt("overlap", search)
    assert begun == [50.0] and [x.part for x in searches.left_out] == ["overlap"]


def test_a_search_in_which_memory_ends_is_left_out_where_there_is_a_plan() -> None:
    """The plan that is there is kept; without one the user is told that memory ended."""
    request = PlanRequest(build("mlp-8192", layers=2, width=8, batch=4), load_machine("localhost:2"))
    searches = Searches(request, Freedoms(overlap=True), TimeLimit(Clock(), checks=True))

    def search() -> str:
        raise MemoryError

    with pytest.raises(MemoryError):
        searches._attempt("overlap", search)
    searches.found.append(Candidate(b"", 1, 1))
    searches._attempt("overlap", search)
    assert [(x.part, x.why) for x in searches.left_out] == [("overlap", "memory ended in it")]


@pytest.mark.parametrize("settled", ["none", "layer0"])
def test_the_step_as_it_is_given_is_searched_where_blocks_are_computed_again(
    settled: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What placements alone prefer is the dearer of the two with streams, at times by a tenth."""
    graph = build("bert-tiny")
    step = build_step(graph, "sgd", recompute=settled)
    monkeypatch.setattr(portfolio, "carry_out", lambda *_: PlanOutcome(step.graph, None, step))  # type: ignore[arg-type]
    request = PlanRequest(graph, load_machine("localhost:2"), "sgd", recompute="auto", memory=1 << 30)
    freedoms = Freedoms(overlap=True, submeshes=True, rewrites=True)
    searches, asked = Searches(request, freedoms, TimeLimit(Clock(None, work=2_000_000))), list[tuple[str, bool]]()

    def record(job: PlanRequest, *_: object) -> str:
        asked.append((searches.part, job.graph.sha256() == step.graph.sha256()))
        return "none"

    for name in ("_overlapped", "_on_submeshes", "_jointly"):
        monkeypatch.setattr(searches, name, record)
    monkeypatch.setattr(searches, "_keep_placements", lambda planned: "")
    searches.search_all()
    own = [("submeshes", True), ("overlap", True), ("rewrites", True)]
    given = [(AS_GIVEN.format(part=part), False) for part, _ in own]
    if settled == "none":
        assert asked == own
    else:
        assert asked == [*own[:2], *given[:2], own[2], given[2]]


def test_parts_are_searched_in_the_space_of_the_placements() -> None:
    """What did not fit into the whole limit does not fit into a part of it: Mixtral on 64 devices took 10 GB there."""
    request = PlanRequest(build("mlp-8192", layers=2, width=8, batch=4), load_machine("localhost:4"))
    searches = Searches(request, Freedoms(placements=True, overlap=True), TimeLimit(Clock(None, work=2_000_000)))
    asked = []
    searches._overlapped = lambda job: asked.append(job.space) or ""  # type: ignore[method-assign,func-returns-value,assignment]
    searches.search_all()
    assert searches.alone is not None and asked == [searches.alone.planning.space]


def test_spaces_that_nobody_asked_for_have_a_bound() -> None:
    dense = build_step(build("bert-tiny"), "sgd").graph
    assert fitting_space(dense, load_machine("8x8")).name == "complete"
    wide = build_step(build("mixtral-8x7b", layers=1), "sgd").graph
    assert fitting_space(wide, load_machine("8x8")).name == "two-per-level"
