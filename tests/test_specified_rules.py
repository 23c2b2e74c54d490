"""Rules of users' operators: what their form promises, what is enumerated, and plans that use both."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from shardproof.__main__ import run
from shardproof.formal.rewriting.joint.rules.usable import usable
from shardproof.formal.rewriting.pools import operator_pool
from shardproof.formal.rewriting.prove import judge
from shardproof.models.rewrites.eval import Evaluator, plain_type
from shardproof.models.rewrites.index_arrays import Exact
from shardproof.models.rewrites.rule import Pattern, Substitution, SubstitutionError, node
from shardproof.models.rewrites.specified_rows import SPECIFIED, Statement, read_statement, wrong_statement
from shardproof.models.rewrites.terms import sides_text
from shardproof.models.sources.rules.placements import placed_operator, placement_rules
from shardproof.models.sources.rules.specified import node_of, operator_rules, statement_of
from shardproof.models.sources.specified import known
from shardproof.models.sources.specified.gradient import evaluate
from shardproof.models.sources.specified.specification import Specification, SpecificationError, specification
from shardproof.models.text import InputError
from shardproof.proofs.rewrites.judgement import Proved
from shardproof.proofs.rewrites.library import read_library
from shardproof.verify.rewrites.library import check_judgement

from .test_specified import DILATE, LEAST, MIX, RATIO, formulas, nothing_known, toml  # noqa: F401

CHANNELS: dict[str, object] = {
    "name": "channels",
    "formula": "y[b, i, o] = sum j, c: w[j, c, o] * x[b, i + j - 1, c]",
    "outside": "zero",
    "operands": {"x": ["b", "t", "c"], "w": ["j", "c", "o"]},
    "sizes": {"i": "t"},
}
PROMISED = {
    "local_mix": {"adds-x", "scales-x", "transpose-x", "adds-w", "scales-w", "transpose-w", "shards-b", "merge-b",
                  "shards-d", "merge-d"},
    "dilate": {"transpose-x", "shards-b", "merge-b"},
    "least": {"transpose-x", "shards-b", "merge-b"},
    "channels": {"adds-x", "scales-x", "transpose-x", "adds-w", "scales-w", "transpose-w", "shards-b", "merge-b",
                 "shards-o", "merge-o", "sums-c"},
}  # fmt: skip


@pytest.mark.parametrize("data", [MIX, DILATE, LEAST, CHANNELS], ids=lambda d: str(d["name"]))
def test_what_the_form_promises_is_proved_for_all_sizes(data: dict[str, object]) -> None:
    s = specification(data, "own")
    rules = operator_rules(s)
    assert {r.name.partition("-")[2] for r in rules} == PROMISED[s.name]
    for rule in rules:
        judgement = judge(rule)
        assert isinstance(judgement, Proved), rule.name
        assert check_judgement(judgement).word == "proved", rule.name


def test_a_proof_is_of_one_formula() -> None:
    """The right side's operator replaced by another one: no proof of before holds."""
    others = {
        "another offset": ("- 1, d]", "- 2, d]"),
        "another stride": ("i + j", "2*i + j"),
        "a factor twice": ("* w[j, d]", "* w[j, d] * w[j, d]"),
        "nothing outside": ("; outside zero", ""),
        "another size": ("i = t", "i = t + 1"),
        "the greatest": ("sum j", "max j"),
    }
    for rule in operator_rules(specification(MIX, "own")):
        proved = judge(rule)
        assert isinstance(proved, Proved)
        for name, (old, new) in others.items():
            right = tuple(
                replace(n, parameters=(("statement", str(n.parameter("statement")).replace(old, new)),))
                if n.operator == SPECIFIED else n for n in rule.right
            )  # fmt: skip
            if right == rule.right:
                continue
            forged = replace(proved, rule=replace(proved.rule, right=right))
            assert check_judgement(forged).word != "proved", (rule.name, name)


def test_functions_that_rules_do_not_know_are_refused_by_name() -> None:
    with pytest.raises(SpecificationError, match="rules know nothing of 'sqrt'; of functions they know abs, maximum"):
        operator_rules(specification(RATIO, "own"))


STATEMENTS = {
    "no name": ("y[i] = x[i]; x[i]", "begins with the operator's name"),
    "no formula": ("own: y[i] = ; x[i]", "column 8"),
    "strange part": ("own: y[i] = x[i]; x(i)", "is no operand, no size"),
    "twice outside": ("own: y[i] = x[i]; x[i]; outside zero; outside zero", "is no operand, no size"),
    "no operand": ("own: y[i] = x[i]", "needs 1 to 8 operands"),
    "two of a name": ("own: y[i] = x[i]; x[i]; x[i]", "needs 1 to 8 operands"),
    "unknown operand": ("own: y[i] = z[i]; x[i]", "does not read 'z'"),
    "unbound": ("own: y[i] = x[j]; x[j]", "axis 'i' is not bound, or has no extent"),
    "twice bound": ("own: y[i] = sum i: x[i]; x[i]", "binds an axis twice"),
    "backwards": ("own: y[i] = sum j: x[i - j]; x[i]; j = 2", "reads 'x' backwards"),
    "size of an operand": ("own: y[i] = x[i]; x[i]; i = 3", "has a size already"),
    "size of nothing": ("own: y[i] = sum j: x[i + j]; x[t]; i = t; j = u", "'u' is no axis of an operand"),
}


@pytest.mark.parametrize("name", STATEMENTS)
def test_a_wrong_statement_is_refused_in_a_rule(name: str) -> None:
    text, message = STATEMENTS[name]
    assert message in wrong_statement(text)
    rule = Substitution("r", (Pattern("a", 1),), (node(SPECIFIED, -1, statement=text),), (), ((0, -1),))
    with pytest.raises(SubstitutionError, match="parameter statement"):
        rule.check()


def test_statements_are_read_as_they_are_written() -> None:
    s = statement_of(specification(MIX, "own"))
    assert read_statement(s.text) == s == Statement("local_mix", str(MIX["formula"]), (("x", ("b", "t", "d")), ("w", ("j", "d"))), (("i", "t"),), True)  # fmt: skip


@settings(max_examples=40, deadline=None)
@given(formulas(), st.integers(0, 1 << 16))
def test_rules_and_graphs_mean_the_same_by_a_formula(data: dict[str, object], seed: int) -> None:
    """The row of the table of rules, evaluated exactly, beside the evaluation by arrays; functions that are stood in
    for are left out.
    """
    s = specification(data, "own")
    if any(word in s.text for word in ("tanh", "sigmoid", "exp")):
        return
    statement = statement_of(s)
    rng = np.random.default_rng(seed)
    arrays = {"x": rng.integers(-4, 5, (2, 6)), "w": rng.integers(-4, 5, (3,))}
    step = Evaluator(Exact()).step(
        node_of(statement), tuple(plain_type(a.shape, (1,) * a.ndim) for a in arrays.values()), {}
    )
    found = step.run([a.astype(object) for a in arrays.values()])
    wanted = evaluate(s.formula, {n: a.astype(float) for n, a in arrays.items()}, s.extents({"x": (2, 6), "w": (3,)}))
    np.testing.assert_array_equal(np.asarray(found, dtype=float), wanted)


def test_placements_of_dtensor_are_decided() -> None:
    """All placements of an operator that sums channels: those that are right are proved, all others refuted."""
    data = {"name": "mix", "formula": "y[i, o] = sum j, c: x[i + j, c] * w[j, c, o]",
            "operands": {"x": ["t", "c"], "w": ["j", "c", "o"]}, "sizes": {"i": "t - j + 1"}}  # fmt: skip
    rules = [
        r for r in placement_rules((placed_operator(specification(data, "own")),)) if "Partial" not in str(r.reads)
    ]
    judged = [(r, judge(r.rule)) for r in rules]
    needs = {
        (*r.reads, r.writes): [str(c) for c in j.rule.preconditions if c not in r.rule.preconditions]
        for r, j in judged
        if isinstance(j, Proved)
    }
    assert needs == {
        ("Replicate", "Replicate", "Replicate"): [],
        ("Replicate", "Shard(2)", "Shard(1)"): [],
        ("Shard(1)", "Shard(1)", "Partial(sum)"): [],
        ("Shard(0)", "Replicate", "Shard(0)"): ["y.0 = 1"],  # without a halo: only windows of one place
        ("Shard(0)", "Shard(0)", "Partial(sum)"): needs["Shard(0)", "Shard(0)", "Partial(sum)"],
    }
    assert needs["Shard(0)", "Shard(0)", "Partial(sum)"]  # of some sizes


def test_generated_rules_make_plans_cheaper(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """From a file to rules, and from rules to a plan of another program that is equal on ranks."""
    monkeypatch.chdir(tmp_path)
    Path("own.toml").write_text(toml(MIX))
    assert run(["rules", "generate", "--operator", "own.toml", "--jobs", "1", "-o", "own.spz"]) == 0
    assert "9  kept without the operator" not in capsys.readouterr().out
    assert run(["rules", "check", "own.spz"]) == 0
    found = [" => ".join(sides_text(j.rule)) for j in read_library(Path("own.spz"))[0].judgements]
    assert "local_mix(a, b) + local_mix(a, c) => local_mix(a, b + c)" in found
    assert "concat[0](local_mix(a, b), local_mix(c, b)) => local_mix(concat[0](a, c), b)" in found
    assert "scale(local_mix(a, b), c) => local_mix(a, scale(b, c))" in found
    assert "local_mix(merge_axes[0](a), b) => merge_axes[0](local_mix_s(a, b))" in found
    Path("model.py").write_text(
        "from pathlib import Path\nimport shardproof\nfrom shardproof import float64, parameter\n"
        "own = shardproof.operator(Path(__file__).with_name('own.toml'))\n"
        "def two(x: float64[8, 64, 32], w: parameter(3, 32), v: parameter(3, 32)): return own(x, w) + own(x, v)\n"
        "def scaled(x: float64[64, 64, 32], w: parameter(3, 32), s: parameter()): return own(x * s, w)\n"
    )
    capsys.readouterr()
    for name in ("two", "scaled"):
        line = ["plan", f"model.py:{name}", "--machine", "localhost:2", "--joint", "--rules", "own.spz", "--json"]
        assert run([*line, "--force", "-o", "p.spz"]) == 0
        document = json.loads(capsys.readouterr().out)
        assert any(step.get("library") for step in document["rewrites"]), document["rewrites"]
        assert run(["check", "p.spz"]) == 0
        said = capsys.readouterr().out
        assert "Equivalent   proved" in said and "Specified    proved" in said
        for ranks in (["--virtual"],):
            assert run(["run", "p.spz", "-n", "2", *ranks]) == 0
            assert "equal" in capsys.readouterr().out


def test_the_verb_proves_a_specification(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("own.toml").write_text(toml(LEAST))
    assert run(["rules", "prove", "own.toml", "-o", "own.spz"]) == 0
    assert "3 proved" in capsys.readouterr().out
    assert run(["rules", "prove", "own.toml", "--degree", "2"]) == 3
    Path("ratio.toml").write_text(toml(RATIO))
    assert run(["rules", "prove", "ratio.toml"]) == 3
    assert run(["rules", "dtensor", "--operator", "own.toml", "--jobs", "1"]) == 0
    said = capsys.readouterr().out
    assert "Shard(0) -> Shard(0): proved" in said and "Shard(1) -> Shard(1)" not in said


def three(name: str = "three") -> Specification:
    return specification(
        {"name": name, "formula": "y[i] = x[i] * w[i] * v[i]", "operands": {n: ["i"] for n in "xwv"}}, "own"
    )


def test_operators_of_three_operands_are_proved_and_not_enumerated() -> None:
    assert all(isinstance(judge(r), Proved) for r in operator_rules(three()))
    with pytest.raises(InputError, match="rules prove FILE.toml"):
        operator_pool(three())


def test_which_rules_plans_can_use() -> None:
    rules = {r.name: usable(r) for r in operator_rules(specification(MIX, "own"))}
    assert rules["local_mix-adds-x"] and rules["local_mix-shards-b"] and rules["local_mix-scales-w"]
    assert not rules["local_mix-merge-b"]  # graphs have no operator that merges axes
    assert not any(usable(r) for r in operator_rules(specification(DILATE, "own")))  # two operators in graphs
    known.forget()
