"""What typing forces is said, preconditions are the weakest, and a library is called what it is.

Story: Unity's rule for a convolution split along its height was "proved, d >= 1, no further precondition"; its left
side types at d = 1 only.
"""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest

from shardproof.__main__ import run
from shardproof.formal.rewriting import prove
from shardproof.formal.rewriting.facts import Reasoner
from shardproof.formal.rewriting.prove import judge
from shardproof.formal.rewriting.refute import fault, instances, satisfies
from shardproof.models.rewrites.forced import at_degree_one_only, forced_values
from shardproof.models.rewrites.polynomial import Poly
from shardproof.models.rewrites.rule import Divides, Equal, Substitution, node
from shardproof.models.rewrites.value import right_fault, type_instance
from shardproof.models.sources.rules.parallel import conv, partition, replicate, rule, term, x, y
from shardproof.proofs.rewrites.judgement import Proved, Refuted, shown_cases
from shardproof.proofs.rewrites.library import SHIPPED, Library, read_library, write_library
from shardproof.verify.rewrites.library import check_library, library_result

from .substitution_cases import public
from .substitution_cases import rule as plain

SPATIAL = rule("spatial", [4, 4], conv(partition(x, 2), replicate(y), "same"), partition(conv(x, y, "same"), 2), False)
SAMPLES = rule("samples", [4, 4], conv(partition(x, 0), replicate(y), "same"), partition(conv(x, y, "same"), 0), False)
STATED = rule(
    "stated",
    [2],
    term("softmax", x, axis=1),
    term("combine", term("softmax", partition(x, 1), axis=1), axis=1, degree="d"),
    False,
)
REASONER = Reasoner()


def proved(r: Substitution) -> Proved:
    found = judge(r, reasoner=REASONER)
    assert isinstance(found, Proved), found
    return found


def test_typing_forces_a_degree() -> None:
    assert forced_values(SPATIAL, shown_cases(proved(SPATIAL))) == (("d", 1),)
    assert at_degree_one_only(SPATIAL, forced_values(SPATIAL)) == ("d",)
    assert forced_values(SAMPLES, shown_cases(proved(SAMPLES))) == ()
    assert at_degree_one_only(proved(STATED).rule, forced_values(proved(STATED).rule)) == ("d",), (
        "a precondition forces it as well"
    )


def test_all_verbs_say_so(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "rules.spz"
    write_library(path, Library("t", (proved(SPATIAL), proved(SAMPLES))))
    said = {}
    for words in (
        ["rules", "prove", str(path), "--jobs", "1"],
        ["rules", "check", str(path)],
        ["check", str(path)],
        ["rules", "show", "--library", str(path)],
        ["rules", "show", "spatial", "--library", str(path)],
    ):
        assert run(words) == 0
        said[" ".join(words[:2])] = text = capsys.readouterr().out
        assert "at degree 1 only" in text and "d = 1" in text + "d = 1" * (words[0] == "check" or len(words) == 4), (
            words
        )
        assert not any("samples" in line and "degree 1 only" in line for line in text.splitlines())
    assert "no further precondition" not in text
    for words, key in (
        (["rules", "prove", str(path), "--jobs", "1", "--json"], "rules"),
        (["rules", "check", str(path), "--json"], "rules"),
        (["rules", "show", "--library", str(path), "--json"], "rules"),
    ):
        assert run(words) == 0
        found = {r["name"]: r for r in json.loads(capsys.readouterr().out)[key]}
        assert found["spatial"]["degree_1_only"] == ["d"] and not found["samples"].get("degree_1_only")
    assert run(["rules", "show", "spatial", "--library", str(path), "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["forced"] == ["d = 1"]


def test_a_library_of_refuted_rules_is_not_called_proved_rules(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    wrong = judge(plain("x y", [node("matmul", -1, -2)], [node("matmul", -2, -1)], (0, 0)), reasoner=REASONER)
    assert isinstance(wrong, Refuted)
    path = tmp_path / "rules.spz"
    for judgements, kind in (
        ((wrong,), "Refutations"),
        ((wrong, proved(SAMPLES)), "Judgements"),
        ((proved(SAMPLES),), "Rules"),
    ):
        write_library(path, Library("t", judgements))
        assert library_result(check_library(Library("t", judgements))).kind == kind
        assert run(["check", str(path)]) == 0
        text = capsys.readouterr().out
        assert kind in text and f"1 {'proved' if kind == 'Rules' else 'refuted'}" in text
        assert kind == "Rules" or "Rules" not in text
        assert run(["rules", "check", str(path)]) == 0
        assert ("1 refuted" in capsys.readouterr().out) is (kind != "Rules")
    assert library_result(check_library(Library("t", ()))).verdict.value == "undecided"


def small_values(r: Substitution, seed: int, most: int) -> dict[str, set[int]]:
    """Values that each name takes on instances of the left side under the preconditions."""
    out: dict[str, set[int]] = {}
    for k, at in enumerate(instances(r, 4 * most, seed)):
        if k == most:
            break
        for n, v in at.items():
            out.setdefault(n, set()).add(v)
    return out


def test_forced_values_are_those_of_all_instances() -> None:
    """Rules of all files: what is called forced has that value on every instance, and nothing else is stuck at 1
    for want of being said.
    """
    rules = [*public("flexflow-even")[::24], *public("taso-axioms")[::18]]
    rules += [
        j.rule
        for path in sorted(SHIPPED.glob("*.spz"))
        for j in read_library(path)[0].judgements[::80]
        if isinstance(j, Proved)
    ]
    for r in (*rules, SPATIAL):
        forced = dict(forced_values(r))
        values = small_values(r, 3, 60)
        for name, seen in values.items():
            if name in forced:
                assert seen == {forced[name]}, (r.name, name)
            else:
                assert len(seen) > 1 or len(values) == 0 or max(map(len, values.values())) < 3, (
                    r.name,
                    name,
                    "is stuck at one value and not said to be forced",
                )


@pytest.mark.parametrize("step", [41, pytest.param(1, marks=pytest.mark.slow)])
def test_public_preconditions_are_the_weakest(step: int) -> None:
    """No instance that breaks a precondition (all others kept, or none) types and has equal values: else the
    precondition says too much.
    """
    looked = 0
    for name in ("taso-even", "taso-axioms", "flexflow-even"):
        for r in public(name)[::step]:
            found = judge(r, reasoner=REASONER)
            if not isinstance(found, Proved) or not found.rule.preconditions:
                continue
            for k, c in enumerate(found.rule.preconditions):
                others = tuple(d for d in found.rule.preconditions if d != c)
                for keep in dict.fromkeys((others, ())):
                    tried = 0
                    for at in instances(replace(r, preconditions=keep), 300, k):
                        if satisfies(r, found.rule.preconditions if not keep else (c,), at):
                            continue
                        holds = right_fault(type_instance(r, at)) is None and all(
                            fault(r, at, seed) is None for seed in (1, 2, 3)
                        )
                        assert not holds, (r.name, str(c), at)
                        tried += 1
                        looked += 1
                        if tried == 12:
                            break
    assert looked > 30


def test_a_precondition_that_says_too_much_is_exchanged(monkeypatch: pytest.MonkeyPatch) -> None:
    """The right side asks for x.1 = d, which is enough; the rule also holds at x.1 = 2 d, so the weaker
    `d divides x.1` is found instead.
    """
    r = plain(
        "x",
        [node("relu", -1)],
        [node("partition", -1, axis=1, degree="d"), node("relu", 0), node("combine", 1, axis=1, degree="d")],
        (0, 2),
    )
    d, size = Poly.of("d"), Poly.of("x.1")
    monkeypatch.setattr(prove, "stated_condition", lambda c, typed, names: Equal(size, d))
    monkeypatch.setattr(prove, "spare_conditions", lambda typed, names: [Divides(d, size)])
    assert proved(r).rule.preconditions == (Divides(d, size),)
    monkeypatch.setattr(prove, "spare_conditions", lambda typed, names: [])
    assert proved(r).rule.preconditions == (Equal(size, d),), "without a weaker one the rule is proved as it was"
