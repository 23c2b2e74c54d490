"""The verbs `rules prove`, `refute`, `derive`, `check`, `show` end to end, through the front door."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from shardproof.__main__ import run
from shardproof.models.sources.rules.formats import parse_public_rules
from shardproof.proofs.container.archive import read_container, write_container

DATA = Path(__file__).parent / "data" / "rules"


def op(kind: str, *inputs: int, **parameters: int) -> dict[str, object]:
    return {
        "type": f"OP_{kind}",
        "input": [{"opId": i, "tsId": 0} for i in inputs],
        "para": [{"key": f"PM_{k}", "value": v} for k, v in parameters.items()],
    }


def rule(name: str, source: list[dict[str, object]], target: list[dict[str, object]]) -> dict[str, object]:
    pair = {"srcOpId": len(source) - 1, "srcTsId": 0, "dstOpId": len(target) - 1, "dstTsId": 0}
    return {"name": name, "srcOp": source, "dstOp": target, "mappedOutput": [pair]}


RULES = [
    rule(
        "associative",
        [op("MATMUL", -1, -2, ACTI=0), op("MATMUL", 0, -3, ACTI=0)],
        [op("MATMUL", -2, -3, ACTI=0), op("MATMUL", -1, 0, ACTI=0)],
    ),
    rule("wrong", [op("MATMUL", -1, -2, ACTI=0)], [op("MATMUL", -2, -1, ACTI=0)]),
    rule("doubled", [op("RELU", -1)], [op("EW_ADD", -1, -1)]),
]


@pytest.fixture
def file(tmp_path: Path) -> Path:
    path = tmp_path / "rules.json"
    path.write_text(json.dumps({"rule": RULES[:3]}))
    return path


def test_prove_says_what_the_contract_says(file: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    out = tmp_path / "proofs.spz"
    assert run(["rules", "prove", str(file), "--json", "--jobs", "1", "-o", str(out)]) == 10
    document = json.loads(capsys.readouterr().out)
    assert set(document) >= {"rules", "seconds"}
    by_name = {r["name"]: r for r in document["rules"]}
    assert by_name["associative"]["verdict"] == "proved" and by_name["associative"]["preconditions"] == []
    assert [r["index"] for r in document["rules"]] == [0, 1, 2]
    for name in ("wrong", "doubled"):
        assert by_name[name]["verdict"] == "refuted"
        assert {"instance", "inputs", "what"} <= set(by_name[name]["counterexample"])
    assert run(["rules", "check", str(out)]) == 0
    assert "1 proved" in capsys.readouterr().out
    assert run(["rules", "refute", str(file), "--json", "--jobs", "1"]) == 10
    assert [r["name"] for r in json.loads(capsys.readouterr().out)["rules"]] == ["wrong", "doubled"]


def test_check_counts_and_rejects_a_changed_proof(
    file: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out = tmp_path / "proofs.spz"
    run(["rules", "prove", str(file), "--jobs", "1", "-o", str(out)])
    capsys.readouterr()
    assert run(["rules", "check", str(out), "--json"]) == 0
    document = json.loads(capsys.readouterr().out)
    assert document["verdict"] == "proved" and document["counts"] == {
        "proved": 1,
        "refuted": 4,
    }  # doubled stands for three ranks
    members = read_container(out)
    rules = json.loads(members["rules.json"])  # type: ignore[arg-type]
    wrong = next(r for r in rules if r[1][1] == "wrong")
    right = next(r for r in rules if r[1][1] == "associative")
    right[1][3:6] = wrong[1][3:6]  # the proof of one rule with the sides of another
    right[1][2] = wrong[1][2]
    members["rules.json"] = json.dumps(rules, sort_keys=True, separators=(",", ":")).encode()
    bad = tmp_path / "bad.spz"
    write_container(bad, {k: v for k, v in members.items() if k != "manifest.json"})
    assert run(["rules", "check", str(bad)]) == 10
    assert "associative: rejected" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("change", "says"),
    [
        ({"srcOp": [op("FOO", -1)]}, "unknown operator OP_FOO"),
        ({"srcOp": [op("RELU", 0)]}, "cyclic"),
        ({"srcOp": [op("DROPOUT", -1)]}, "no meaning"),
        ({"srcOp": "x"}, "must be a list"),
        ({"dstOp": [op("MATMUL", -1, -1)], "srcOp": [op("CONV2D", -1, -1, STRIDE_H=1, STRIDE_W=1, PAD=0)]}, "ranks"),
    ],
)
def test_bad_rules_are_exit_3_and_named(
    change: dict[str, object], says: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "rules.json"
    path.write_text(json.dumps({"rule": [{**rule("my_rule", [op("RELU", -1)], [op("RELU", -1)]), **change}]}))
    assert run(["rules", "prove", str(path)]) == 3
    err = capsys.readouterr().err
    assert "my_rule" in err and says in err


def test_unbound_inputs_are_named_and_judged(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "rules.json"
    kept = rule(
        "harmless",
        [op("RELU", -1)],
        [op("CONCAT", -1, -2, AXIS=0, NUMDIM=2, NUM_INPUTS=2), op("SPLIT", 0, AXIS=0, NUM_OUTPUTS=2), op("RELU", 1)],
    )
    path.write_text(json.dumps({"rule": [rule("my_rule", [op("RELU", -1)], [op("EW_ADD", -1, -5)]), kept]}))
    assert run(["rules", "prove", str(path), "--jobs", "1", "--json"]) == 3  # the harmless one is true, but no rewrite
    said = capsys.readouterr()
    assert "my_rule: right-hand input -5 not bound" in said.err and "harmless: right-hand input -2" in said.err
    assert json.loads(said.out)["rules"][0]["verdict"] == "refuted"


def test_show(file: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    out, svg, back, smt = (tmp_path / n for n in ("proofs.spz", "rule.svg", "rule.json", "rule.smt2"))
    run(["rules", "prove", str(file), "--jobs", "1", "-o", str(out)])
    capsys.readouterr()
    assert (
        run(
            [
                "rules",
                "show",
                "associative",
                "--library",
                str(out),
                "--svg",
                str(svg),
                "--flexflow",
                str(back),
                "--smtlib",
                str(smt),
            ]
        )
        == 0
    )
    said = capsys.readouterr().out
    assert "(x1 @ x2) @ x3  =>  x1 @ (x2 @ x3)" in said and "no further precondition" in said and "equals term" in said
    assert svg.read_text().startswith("<svg") and svg.read_text().count("<rect") == 2 * (3 + 2)
    (written,) = parse_public_rules(back.read_text())
    assert [o.kind for o in written.source] == ["MATMUL", "MATMUL"]
    assert smt.read_text().startswith("(set-logic")
    assert run(["rules", "show", "--library", str(out)]) == 0
    assert run(["rules", "show", "associativ", "--library", str(out)]) == 3
    assert "there are associative" in capsys.readouterr().err


def test_derive_gives_a_second_proof(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    base, target, out = tmp_path / "base.json", tmp_path / "target.json", tmp_path / "derived.spz"
    base.write_text(json.dumps({"rule": RULES[:1]}))
    three = rule(
        "three",
        [op("MATMUL", -1, -2, ACTI=0), op("MATMUL", 0, -3, ACTI=0), op("MATMUL", 1, -4, ACTI=0)],
        [op("MATMUL", -3, -4, ACTI=0), op("MATMUL", -2, 0, ACTI=0), op("MATMUL", -1, 1, ACTI=0)],
    )
    target.write_text(json.dumps({"rule": [three]}))
    run(["rules", "prove", str(base), "--jobs", "1", "-o", str(tmp_path / "base.spz")])
    capsys.readouterr()
    assert (
        run(
            [
                "rules",
                "derive",
                str(target),
                "--from",
                str(tmp_path / "base.spz"),
                "--jobs",
                "1",
                "--json",
                "-o",
                str(out),
            ]
        )
        == 0
    )
    assert json.loads(capsys.readouterr().out)["derived"] == [{"name": "three", "steps": 2}]
    assert run(["rules", "check", str(out), "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["counts"] == {"derived": 1, "proved": 1}
    assert run(["rules", "show", "three", "--library", str(out)]) == 0
    assert "by associative" in capsys.readouterr().out


def test_checking_loads_no_solver(file: Path, tmp_path: Path) -> None:
    out = tmp_path / "proofs.spz"
    run(["rules", "prove", str(file), "--jobs", "1", "-o", str(out)])
    code = (
        "import sys\nfrom shardproof.__main__ import run\ncode = run(['rules', 'check', sys.argv[1]])\n"
        "bad = {m.partition('.')[0] for m in sys.modules} & {'z3', 'highspy', 'pulp', 'networkx', 'sympy', "
        "'numba', 'scipy', 'cvxpy'}\n"
        "bad |= {m for m in sys.modules if m.startswith('shardproof.formal')}\nsys.exit(code or bool(bad))"
    )
    done = subprocess.run(
        [sys.executable, "-c", code, str(out)], capture_output=True, text=True, check=False, cwd=tmp_path
    )
    assert done.returncode == 0, done.stdout + done.stderr
