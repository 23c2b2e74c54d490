"""Other engines asked for schedules: they find the shortest of small problems, and no lie of theirs gets through."""

from __future__ import annotations

import json
from importlib.util import find_spec
from pathlib import Path

import numpy as np
import pytest
from schedule_oracle import least_makespan
from test_schedule_moments import drawn, least

from shardproof.__main__ import run
from shardproof.formal.schedules.engines import child, consult
from shardproof.formal.schedules.engines.consult import broken
from shardproof.formal.schedules.engines.cp_sat import solve_cp_sat
from shardproof.formal.schedules.engines.ilp import solve_ilp
from shardproof.formal.schedules.engines.question import Question, Reply, question
from shardproof.formal.schedules.engines.smt import solve_smt
from shardproof.formal.schedules.shop import shop
from shardproof.formal.selection.model.clock import Allowance
from shardproof.models.schedules.pipeline import Pipeline
from shardproof.models.schedules.problem import ScheduleProblem

SMALL = ["schedule", "--stages", "2", "--micro-batches", "2", "--times", "1,1,1", "--memory", "2"]
"""12 tasks: F0.0 F0.1 F1.0 F1.1, then I and W likewise; the shortest schedule takes 7."""
GOOD = [0, 1, 1, 3, 3, 5, 2, 4, 4, 6, 5, 6]

ENGINES = ["ilp", "smt", pytest.param("cp-sat", marks=pytest.mark.skipif(not find_spec("ortools"), reason="OR-Tools"))]


def ask(engine: str, asked: Question) -> Reply:
    again = Question.of_json(json.loads(json.dumps(asked.to_json())))
    assert again == asked
    if engine == "ilp":
        return solve_ilp(again, Allowance(60.0), 1)
    return solve_smt(again, Allowance(60.0)) if engine == "smt" else solve_cp_sat(again, Allowance(60.0), 1)


def shortest(engine: str, problem: ScheduleProblem, asked: Question, expected: int) -> None:
    reply = ask(engine, asked)
    starts = consult.whole(reply.starts, len(problem.tasks))
    assert starts is not None and broken(problem, starts) is None
    assert int((starts + np.array(asked.times)).max()) == expected == reply.claims


@pytest.mark.parametrize("engine", ENGINES)
def test_engines_find_the_shortest_of_small_problems(engine: str) -> None:
    """Memory stated (orders of all tasks are the oracle), and memory as links of a pipeline."""
    for seed in range(8):
        problem = drawn(seed)
        most = sum(t.time for t in problem.tasks)
        shortest(engine, problem, question(problem, shop(problem), most, True), least(problem))
    for pipe in (
        Pipeline(((1, 1, 1),) * 2, 2, 0, 2),
        Pipeline(((1, 2, 1), (2, 1, 3)), 2, 1, 1),
        Pipeline(((3, 1, 2), (1, 2, 1)), 3, 0, None),
    ):
        expected = least_makespan(pipe)
        shortest(engine, pipe.problem(), question(pipe.problem(), shop(pipe), expected + 3, False), expected)
        if pipe.memory is not None:
            shortest(engine, pipe.problem(), question(pipe.problem(), shop(pipe), expected + 3, True), expected)


@pytest.mark.parametrize("engine", ["ilp", "smt"])
def test_nothing_is_found_below_the_shortest(engine: str) -> None:
    pipe = Pipeline(((1, 1, 1),) * 2, 2, 0, 2)
    assert ask(engine, question(pipe.problem(), shop(pipe), 6, False)).starts is None


def said(capsys: pytest.CaptureFixture[str], engine: str = "ilp") -> tuple[int, dict[str, object]]:
    code = run([*SMALL, "--engine", engine, "--work-limit", "20M", "--json"])
    return code, json.loads(capsys.readouterr().out)


def lying(monkeypatch: pytest.MonkeyPatch, text: str) -> None:
    code = f"import sys; sys.stdin.read(); sys.stdout.write({text!r})"
    monkeypatch.setattr(child, "_CODE", code.replace("{", "{{").replace("}", "}}"))  # which is formatted


def reply(starts: object, claims: object = None) -> str:
    return json.dumps({"starts": starts, "says": "Optimal", "claims": claims})


MOVED = {k: [*GOOD[:k], v, *GOOD[k + 1 :]] for k, v in {0: 2, 1: 0, 2: -1}.items()}


@pytest.mark.parametrize(
    ("text", "words"),
    [
        (reply(MOVED[0]), "F1.0 starts before F0.0 is there"),
        (reply(MOVED[1]), "F0.0 and F0.1 run on one stream at the same time"),
        (reply(MOVED[2]), "F1.0 starts at -1"),
        (reply([0] * 12), "starts before"),
        (reply(GOOD[:11]), "not 12 whole numbers"),
        (reply([*GOOD, 9]), "not 12 whole numbers"),
        (reply([GOOD]), "not 12 whole numbers"),
        (reply([float(x) for x in GOOD]), "not 12 whole numbers"),
        (reply([x + 0.5 for x in GOOD]), "not 12 whole numbers"),
        (reply([str(x) for x in GOOD]), "not 12 whole numbers"),
        (reply([False, *GOOD[1:]]), "not 12 whole numbers"),
        (reply([*GOOD[:11], 1 << 70]), "not 12 whole numbers"),
        (reply([*GOOD[:11], None]), "not 12 whole numbers"),
        (reply({"0": 0}), "not 12 whole numbers"),
        (reply("starts"), "not 12 whole numbers"),
    ],
)
def test_impossible_proposals_are_said_and_not_used(
    text: str, words: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    lying(monkeypatch, text)
    code, document = said(capsys)
    assert (code, document["status"], document["makespan"], document["verdict"]) == (0, "optimal", 7, "proved")
    asked = document["engine"]
    assert isinstance(asked, dict) and asked["makespan"] is None and words in asked["unusable"]


@pytest.mark.parametrize(
    ("code", "words"),
    [
        ("raise SystemExit(9)", "its process ended with 9"),
        ("import os; os.kill(os.getpid(), 9)", "its process ended with -9"),
        ("print('makespan 7')", "nothing that can be read"),
        ("print('[' * 100000)", "nothing that can be read"),
        ("print('[1, 2]')", "nothing that can be read"),
        ("import sys; sys.stdout.buffer.write(b'\\xff\\xfe')", "nothing that can be read"),
        ("pass", "nothing that can be read"),
        (
            f"print({reply(GOOD).replace('[0,', '[NaN,')!r})".replace("{", "{{").replace("}", "}}"),
            "nothing that can be read",
        ),
    ],
)
def test_an_engine_that_dies_or_babbles_said_nothing(
    code: str, words: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(child, "_CODE", code)
    ended, document = said(capsys, "smt")
    assert (ended, document["makespan"]) == (0, 7)
    asked = document["engine"]
    assert isinstance(asked, dict) and words in asked["says"] and asked["claims"] is None


def test_answers_that_are_too_long_are_not_read(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(child, "MOST_BYTES", 20)
    lying(monkeypatch, reply(GOOD))
    _, document = said(capsys)
    assert document["engine"]["says"] == "nothing that can be read"  # type: ignore[index]


@pytest.mark.timeout(60)
def test_an_engine_that_keeps_no_time_is_ended(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(child, "GRACE", 0.1)
    monkeypatch.setattr(child, "_CODE", "import time; time.sleep(600)")
    # the engine is what is ended; whether our own search closes its proof in what is left is another matter
    assert run([*SMALL, "--engine", "ilp", "--time-limit", "1"]) in (0, 5)
    told = capsys.readouterr().out
    assert "it answered 'time is over'" in told and "it proposed nothing" in told


@pytest.mark.parametrize("claims", [8, 1 << 50])
def test_a_claimed_bound_above_a_schedule_is_called_wrong(
    claims: int, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    lying(monkeypatch, reply(None, claims))
    assert run([*SMALL, "--engine", "ilp"]) == 0
    told = capsys.readouterr().out
    assert "makespan 7, proved: none is shorter" in told
    assert f"claims that none is shorter than {claims}, which is wrong" in told


@pytest.mark.parametrize("claims", ["7", 7.0, True, [7], {}, 1 << 70])
def test_bounds_that_are_no_numbers_are_not_told(
    claims: object, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    lying(monkeypatch, reply(GOOD, claims))
    code, document = said(capsys)
    asked = document["engine"]
    assert code == 0 and isinstance(asked, dict) and asked["claims"] is None and asked["makespan"] == 7


def test_a_schedule_that_is_worse_or_names_micro_batches_otherwise_is_no_harm(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Valid but long, and valid with equal micro-batches in another order."""
    for starts in ([x + 5 for x in GOOD], [GOOD[k ^ 1] for k in range(12)]):
        lying(monkeypatch, reply(starts))
        code, document = said(capsys)
        assert (code, document["makespan"], document["engine"]["unusable"]) == (0, 7, None)  # type: ignore[index]


def test_memory_that_a_proposal_exceeds_is_named(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    lying(monkeypatch, reply(GOOD))
    code = run([*SMALL[:-1], "1", "--engine", "ilp", "--json"])
    document = json.loads(capsys.readouterr().out)
    assert code == 0 and document["engine"]["unusable"] == "device 0 holds 2, its limit is 1"


def test_published_schedules_and_graphs_are_asked_about_too(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run([*SMALL, "--engine", "smt", "--kind", "1f1b", "--json"]) == 10
    document = json.loads(capsys.readouterr().out)
    assert document["engine"]["makespan"] == document["better"] == 7
    graph = Path(__file__).parent / "data" / "overlap" / "llama3_8b_fw_256_1d.json.gz"
    assert run(["schedule", str(graph), "--engine", "ilp"]) == 3
    assert "open pairs" in capsys.readouterr().err


def test_what_cannot_be_asked_is_refused_by_name(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    large = ["schedule", "--stages", "16", "--micro-batches", "64", "--times", "1,1,1", "--engine", "ilp"]
    assert run(large) == 3
    assert "at most 20000 can be asked about; use --engine native" in capsys.readouterr().err
    monkeypatch.setattr(consult, "find_spec", lambda name: None)
    assert run([*SMALL, "--engine", "cp-sat"]) == 3
    assert (
        "needs the package ortools, which is not installed: pip install 'shardproof[solvers]'"
        in capsys.readouterr().err
    )
