"""The command line contract: exit codes, one JSON object on stdout, messages that name the place and the next step."""

from __future__ import annotations

import json
import re
from pathlib import Path

import numpy as np
import pytest
from click.testing import CliRunner

from shardproof.__main__ import PURPOSES, VERBS, cli, run
from shardproof.models.machine import machine
from shardproof.models.machine.machine import builtin_names
from shardproof.models.problem.selection_problem import Edge, SelectionProblem, Usage, Vertex
from shardproof.proofs.selection.problem_file import problem_json


class Result:
    def __init__(self, code: int, out: str, err: str) -> None:
        self.code, self.out, self.err = code, out, err

    @property
    def json(self) -> dict[str, object]:
        document = json.loads(self.out)
        assert isinstance(document, dict) and self.out.count("\n") == 1, "stdout must hold exactly one JSON object"
        return document


@pytest.fixture
def shardproof(capsys: pytest.CaptureFixture[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.chdir(tmp_path)

    def call(*arguments: str | Path) -> Result:
        code = run([str(a) for a in arguments])
        seen = capsys.readouterr()
        return Result(code, seen.out, seen.err)

    return call


def write(path: Path, problem: SelectionProblem) -> Path:
    path.write_bytes(problem_json(problem))
    return path


def small(limit: int | None = None, costs: tuple[int, int] = (1, 0)) -> SelectionProblem:
    """Two vertices, two choices each; optimum 1 at (0, 0)."""
    table = np.array([[0, 9], [9, 0]], dtype=np.int64)
    amount = np.array([3, 1], dtype=np.int64)
    usages = () if limit is None else (Usage(0, 0, 2, amount, "weights of a"), Usage(1, 0, 2, amount, "weights of b"))
    return SelectionProblem(
        "small",
        (Vertex("a", np.array(costs)), Vertex("b", np.array([0, 5]))),
        (table,),
        (Edge(0, 1, 0),),
        usages,
        limit,
    )


def test_plan_check_run(shardproof) -> None:
    planned = shardproof("plan", "mlp-unity", "--machine", "localhost:4", "-o", "p.spz", "--json")
    assert planned.code == 0
    document = planned.json
    assert set(document) >= {
        "status",
        "cost",
        "lower_bound",
        "scale",
        "gap",
        "seconds",
        "certificate",
        "problem_sha256",
        "identity",
    }
    assert document["status"] == "optimal" and document["cost"] == document["lower_bound"] and document["gap"] == 0
    checked = shardproof("check", "p.spz", "--json")
    assert checked.code == 0 and checked.json["verdict"] == "proved"
    claims = checked.json["claims"]
    assert {c["kind"] for c in claims} >= {"Optimal", "Delivers", "Bytes", "Entries"} and all(
        c["verdict"] == "proved" for c in claims
    )
    optimal = next(c for c in claims if c["kind"] == "Optimal")
    assert (
        optimal["cost"] == document["cost"]
        and optimal["space"] == "complete"
        and "class-order" in optimal["assumptions"]
    )
    ran = shardproof("run", "p.spz", "-n", "4", "--virtual", "--json")
    assert ran.code == 0 and ran.json["equal"] is True and ran.json["bytes_counted_equal_priced"] is True


def test_two_runs_give_the_same_bytes(shardproof, tmp_path: Path) -> None:
    for name in ("a.spz", "b.spz"):
        assert shardproof("plan", "bert-tiny", "--machine", "cloud-a100:2x4", "-o", name).code == 0
    assert (tmp_path / "a.spz").read_bytes() == (tmp_path / "b.spz").read_bytes()


def test_damaged_plan_is_refused_and_not_run(shardproof, tmp_path: Path) -> None:
    assert shardproof("plan", "mlp-unity", "--machine", "localhost:2", "-o", "p.spz").code == 0
    whole = (tmp_path / "p.spz").read_bytes()
    (tmp_path / "cut.spz").write_bytes(whole[: len(whole) // 2])
    for verb in (("check", "cut.spz"), ("run", "cut.spz", "-n", "2", "--virtual"), ("explain", "cut.spz")):
        result = shardproof(*verb)
        assert result.code == 3 and "error:" in result.err and result.out == ""


def test_solve_and_check_a_problem(shardproof, tmp_path: Path) -> None:
    problem = write(tmp_path / "p.json", small())
    solved = shardproof("solve", problem, "-o", "c.spz", "--json")
    assert (
        solved.code == 0
        and solved.json["cost"] == solved.json["lower_bound"] == 1
        and solved.json["certificate"] == "c.spz"
    )
    assert shardproof("check", "c.spz", problem).code == 0
    alone = shardproof("check", "c.spz")
    assert alone.code == 3 and "give that problem's file too" in alone.err
    other = write(tmp_path / "q.json", small(costs=(2, 0)))
    assert shardproof("check", "c.spz", other).code == 3


@pytest.mark.parametrize("engine", ["native", "ilp", "smt"])
def test_engines_end_in_the_same_certificate_kind(shardproof, tmp_path: Path, engine: str) -> None:
    problem = write(tmp_path / "p.json", small(limit=4))
    solved = shardproof("solve", problem, "--engine", engine, "-o", "c.spz", "--json")
    assert solved.code == 0 and solved.json["status"] == "optimal" and solved.json["cost"] == 5
    assert shardproof("check", problem, "c.spz").code == 0


def test_infeasible_budget_names_the_step_the_tensors_and_what_would_work(shardproof, tmp_path: Path) -> None:
    problem = write(tmp_path / "p.json", small(limit=1))
    result = shardproof("solve", problem, "-o", "c.spz")
    assert result.code == 20 and "infeasible" in result.out and "weights of a" in result.out and "step 0" in result.out
    assert "least limit for which a solution is known is 2" in result.out
    assert shardproof("check", problem, "c.spz").code == 0


def test_infeasible_plan(shardproof) -> None:
    result = shardproof("plan", "mlp-unity", "--machine", "localhost:2", "--memory", "100kB", "-o", "p.spz")
    assert result.code == 20 and "limit" in result.out
    assert shardproof("check", "p.spz").code == 0, "the proof that nothing fits"


def test_audit(shardproof, tmp_path: Path) -> None:
    problem = write(tmp_path / "p.json", small())
    (tmp_path / "best.json").write_text("[0, 0]")
    (tmp_path / "worse.json").write_text("[1, 1]")
    assert shardproof("audit", problem, "--strategy", "best.json", "-o", "c.spz").code == 0
    assert shardproof("check", problem, "c.spz").code == 0
    worse = shardproof("audit", problem, "--strategy", "worse.json")
    assert worse.code == 10 and "refuted" in worse.out
    (tmp_path / "model.json").write_text(json.dumps({"*": {"b": {"ranks": 4}}}))
    result = shardproof("audit", "mlp-unity", "--machine", "localhost:4", "--strategy", "model.json", "--json")
    assert result.code in (0, 10) and result.json["assumptions"]


@pytest.mark.parametrize(
    ("arguments", "code", "words"),
    [
        (("plan", "bert-huge", "--machine", "cloud-a100:4x8", "-o", "p.spz"), 3, ["bert-huge", "zoo"]),
        (("plan", "mlp-unity", "--machine", "nowhere", "-o", "p.spz"), 3, ["nowhere"]),
        (
            ("plan", "mlp-unity", "--machine", "cloud-a100:4x8", "--space", "all", "-o", "p.spz"),
            3,
            ["unknown space 'all'", "complete"],
        ),
        (("plan", "mlp-unity", "--machine", "cloud-a100:4x8", "--memory", "lots", "-o", "p.spz"), 2, ["lots", "80GiB"]),
        (("plan", "mlp-unity", "--machine", "cloud-a100:4x8", "--batch", "0", "-o", "p.spz"), 2, ["batch"]),
        (
            (
                "plan",
                "mlp-unity-training",
                "--machine",
                "cloud-a100:4x8",
                "--train",
                "adam",
                "--loss",
                "nowhere",
                "-o",
                "p.spz",
            ),
            3,
            ["nowhere"],
        ),
        (
            ("plan", "mlp-unity", "--machine", "cloud-a100:4x8", "--joint", "--strategy", "s.json", "-o", "p.spz"),
            2,
            ["--strategy and --joint do not go together", "nothing is searched"],
        ),
        (("plan", "mlp-unity", "-o", "p.spz"), 2, ["--machine"]),
        (("fly",), 2, ["fly"]),
        (("check", "missing.spz"), 3, ["missing.spz"]),
        (("solve", "missing.json"), 3, ["missing.json"]),
        (("import", "missing.onnx"), 3, ["missing.onnx"]),
    ],
)
def test_bad_input(shardproof, arguments: tuple[str, ...], code: int, words: list[str]) -> None:
    result = shardproof(*arguments)
    assert result.code == code and all(w in result.err for w in words), result.err
    assert "Traceback" not in result.err and not Path("p.spz").exists()


def test_machine_file_with_a_missing_field(shardproof, tmp_path: Path) -> None:
    whole = (Path(machine.__file__).parent / "builtin" / "localhost.toml").read_text()
    line = next(x for x in whole.splitlines() if x.startswith("bandwidth"))
    (tmp_path / "m.toml").write_text(whole.replace(line + "\n", "", 1))
    result = shardproof("plan", "mlp-unity", "--machine", "m.toml", "-o", "p.spz")
    assert result.code == 3 and "m.toml" in result.err and "bandwidth" in result.err and "add bandwidth" in result.err


def test_problem_with_an_empty_domain(shardproof, tmp_path: Path) -> None:
    text = json.loads(problem_json(small()))
    text["vertices"][1]["cost"] = []
    (tmp_path / "p.json").write_text(json.dumps(text))
    result = shardproof("solve", "p.json")
    assert result.code == 3 and "'b'" in result.err and "empty domain" in result.err


def test_strategy_outside_the_space(shardproof, tmp_path: Path) -> None:
    (tmp_path / "s.json").write_text(json.dumps({"fc1": {"b": {"ranks": 3}}}))
    result = shardproof("audit", "mlp-unity", "--machine", "localhost:6", "--strategy", "s.json")
    assert result.code == 3 and "fc1" in result.err and "nearest" in result.err


def test_unsupported_operators_are_listed_all_at_once(shardproof, tmp_path: Path) -> None:
    onnx = pytest.importorskip("onnx")
    helper, kind = onnx.helper, onnx.TensorProto.FLOAT
    nodes = [
        helper.make_node("NonZero", ["x"], ["i"], name="where"),
        helper.make_node("Einsum", ["x", "x"], ["y"], name="ein", equation="ij,jk->ik"),
    ]
    graph = helper.make_graph(
        nodes,
        "g",
        [helper.make_tensor_value_info("x", kind, [2, 2])],
        [
            helper.make_tensor_value_info("y", kind, [2, 2]),
            helper.make_tensor_value_info("i", onnx.TensorProto.INT64, [2, None]),
        ],
    )
    onnx.save(helper.make_model(graph), str(tmp_path / "m.onnx"))
    result = shardproof("plan", "m.onnx", "--machine", "localhost:2", "-o", "p.spz")
    assert (
        result.code == 3
        and "NonZero" in result.err
        and "Einsum" in result.err
        and "where" in result.err
        and "ein" in result.err
    )


def test_interrupted_self_check_leaves_the_last_result(
    shardproof, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A result that our own checker refutes is exit 6, and the file that was there stays."""
    from shardproof.models.problem.claims import Verdict
    from shardproof.verify.selection import certificate as selection
    from shardproof.verify.verdict import CheckResult

    problem = write(tmp_path / "p.json", small())
    assert shardproof("solve", problem, "-o", "c.spz").code == 0
    before = (tmp_path / "c.spz").read_bytes()
    monkeypatch.setattr(
        selection,
        "check_selection",
        lambda *_: CheckResult("Optimal", Verdict.REFUTED, None, None, "", (), "broken on purpose"),
    )
    result = shardproof("solve", problem, "-o", "c.spz")
    assert result.code == 6 and "broken on purpose" in result.err and (tmp_path / "c.spz").read_bytes() == before


def test_the_help_page_has_every_verb_once() -> None:
    grouped = [verb for verbs in PURPOSES.values() for verb in verbs]
    assert sorted(grouped) == sorted(VERBS)
    page = CliRunner().invoke(cli, ["--help"]).output
    assert [w for w in re.findall(r"^  ([a-z-]+)  ", page, re.MULTILINE) if w in VERBS] == grouped


def test_machines_are_listed_with_what_they_are(capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["machine", "show"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert tuple(line.split()[0] for line in lines) == builtin_names()
    assert "localhost     8 ranks, 1 GiB each; not measured" in lines
