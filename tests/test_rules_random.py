"""Proofs against exact evaluation: every proved rule on at least 50 random shapes, and random mutants of proved rules.

A rule that is proved and then refuted by evaluation would be a hole in prover and checker alike; none may exist.  The
evaluator used here shares only the operator table with both.
"""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from budgets import work

from shardproof.formal.rewriting.facts import Reasoner
from shardproof.formal.rewriting.prove import judge
from shardproof.formal.rewriting.refute import fault, instances, satisfies
from shardproof.formal.rewriting.rule_files import load_rules
from shardproof.models.rewrites.eval import Difference, Evaluator
from shardproof.models.rewrites.index_arrays import EvaluationError, Exact
from shardproof.models.rewrites.instances import cases, draw_instances, integer_arrays
from shardproof.models.rewrites.rule import Node, Substitution, SubstitutionError
from shardproof.proofs.rewrites.judgement import Proved
from shardproof.proofs.rewrites.library import SHIPPED, read_library

DATA = Path(__file__).parent / "data" / "rules"


def evaluated(rule: Substitution, seed: int, wanted: int) -> tuple[int, list[tuple[Difference, dict[str, int]]]]:
    """(instances on which both sides are equal, failures) of at most `wanted` instances."""
    ring, rng = Exact(), np.random.default_rng(seed)
    evaluator = Evaluator(ring)
    equal, bad = 0, []
    for values in draw_instances(rule, seed, 12 * wanted, cases(rule)):
        try:
            outcome = evaluator.compare(rule, values, integer_arrays(rule, values, rng, ring)).difference
        except EvaluationError:
            continue
        if outcome is Difference.NOWHERE:
            equal += 1
        elif outcome not in (Difference.LEFT_ILL_TYPED, Difference.PRECONDITION, Difference.LEFT_COPIES):
            bad.append((outcome, values))
        if equal + len(bad) >= wanted:
            break
    return equal, bad


def mutant(rule: Substitution, rng: np.random.Generator) -> Substitution | None:
    """The rule with one operator, parameter or wire of its right side changed."""
    nodes = list(rule.right)
    if not nodes:
        return None
    k = int(rng.integers(len(nodes)))
    n = nodes[k]
    match int(rng.integers(4)):
        case 0 if n.inputs:
            j = int(rng.integers(len(n.inputs)))
            w = int(rng.integers(-len(rule.inputs), k))
            nodes[k] = replace(n, inputs=(*n.inputs[:j], w, *n.inputs[j + 1 :]))
        case 1 if len(n.inputs) == 2:
            nodes[k] = replace(n, inputs=n.inputs[::-1])
        case 2:
            others = (
                ["relu", "partition", "combine", "transpose", "replicate"]
                if len(n.inputs) == 1
                else ["add", "mul", "matmul", "linear", "concat", "stack"]
            )
            o = others[int(rng.integers(len(others)))]
            a = int(rng.integers(2))
            parameters = {
                "partition": (("axis", a), ("degree", "d")),
                "combine": (("axis", a), ("degree", "d")),
                "transpose": (("perm", (1, 0)),),
                "replicate": (("degree", "d"),),
                "linear": (("activation", "none"),),
                "concat": (("axis", a),),
            }.get(o, ())
            nodes[k] = Node(o, n.inputs, parameters)
        case 3 if "axis" in dict(n.parameters):
            nodes[k] = replace(
                n, parameters=tuple((key, 1 - v if key == "axis" and v in (0, 1) else v) for key, v in n.parameters)
            )
        case _:
            return None
    found = replace(rule, right=tuple(nodes), preconditions=())
    if found.right == rule.right:
        return None
    try:
        return found.check()
    except SubstitutionError:
        return None


def mutants(count: int, seed: int) -> list[Substitution]:
    rng = np.random.default_rng(seed)
    library, _ = read_library(SHIPPED / "generated-3.spz")
    rules = [j.rule for j in library.judgements]
    out: dict[Substitution, None] = {}
    while len(out) < count:
        found = mutant(rules[int(rng.integers(len(rules)))], rng)
        if found is not None:
            out.setdefault(found)
    return list(out)


def hold_up(rules: list[Substitution], shapes: int) -> int:
    """Judge, evaluate what is proved; the number of proved ones."""
    reasoner, proved = Reasoner(), 0
    for k, rule in enumerate(rules):
        judged = judge(rule, work(3), tries=60, reasoner=reasoner)
        if isinstance(judged, Proved):
            proved += 1
            _, bad = evaluated(judged.rule, k, shapes)
            assert not bad, (rule, bad[0])
    return proved


def test_mutants_that_are_proved_hold() -> None:
    assert hold_up(mutants(25, 5), 8) > 1


@pytest.mark.slow
def test_a_thousand_mutants() -> None:
    assert hold_up(mutants(1000, 6), 25) > 50


@pytest.mark.slow
@pytest.mark.parametrize("name", ["taso-even.json", "flexflow-even.json", "taso-axioms.json", "parallel"])
def test_every_proof_on_fifty_random_shapes(name: str) -> None:
    path = Path(name) if name == "parallel" else DATA / name
    reasoner = Reasoner()
    for item in load_rules(path):
        for rule in item.substitutions:
            judged = judge(rule, reasoner=reasoner)
            if isinstance(judged, Proved):
                equal, bad = evaluated(judged.rule, item.index, 50)
                assert not bad, (rule.name, bad[0])
                assert equal >= 1, rule.name


def test_shipped_rules_on_random_shapes() -> None:
    """Every fifteenth rule that comes with the package."""
    for path in sorted(SHIPPED.glob("*.spz")):
        library, _ = read_library(path)
        for k, j in enumerate(library.judgements[::15]):
            equal, bad = evaluated(j.rule, k, 10)
            assert not bad and equal, j.rule.name


def test_shipped_preconditions_are_needed_everywhere() -> None:
    """Each precondition has its stored counterexample (`rules check` replays it); here: every sampled instance that
    breaks it alone fails, so none is stronger than needed."""
    broken = 0
    for path in sorted(SHIPPED.glob("*.spz")):
        library, _ = read_library(path)
        for j in library.judgements:
            if not isinstance(j, Proved):
                continue
            assert len(j.needed) == len(j.rule.preconditions)
            for k, c in enumerate(j.rule.preconditions):
                others = tuple(d for d in j.rule.preconditions if d != c)
                found = 0
                for at in instances(replace(j.rule, preconditions=others), 400, k):
                    if not satisfies(j.rule, (c,), at):
                        assert fault(j.rule, at, k) is not None, (j.rule.name, c, at)
                        found += 1
                        if found == 3:
                            break
                assert found, (j.rule.name, c)
                broken += found
    assert broken > 150
