"""No forged rule library is believed: what is accepted must be true on small instances, by the evaluator that
shares only the operator table with the checker.
"""

from __future__ import annotations

from collections import Counter
from functools import cache

import numpy as np
import pytest

from shardproof.formal.rewriting.facts import Reasoner
from shardproof.formal.rewriting.prove import judge
from shardproof.models.rewrites.eval import Difference, Evaluator
from shardproof.models.rewrites.index_arrays import EvaluationError, Exact
from shardproof.models.rewrites.rule import Substitution
from shardproof.proofs.container.canonical import ContainerError
from shardproof.proofs.rewrites.judgement import Counterexample, Proved, Refuted
from shardproof.proofs.rewrites.library import SHIPPED, Library, read_library, write_library
from shardproof.verify.rewrites.library import check_library

from .rule_forgeries import forgeries
from .substitution_cases import differences
from .test_rule_functions import CASES

FEW, MANY, PARTS = 160, 30_000, 10
"""Forgeries in `make test` and, in parts, in `make test-slow`."""
INSTANCES = 8
IRRATIONAL = {
    "sigmoid",
    "tanh",
    "exp",
    "gelu",
    "softmax",
    "layer_norm",
    "layer_norm_affine",
    "rms_norm",
    "rms_norm_scaled",
}


@cache
def bases() -> tuple[Library, ...]:
    """The libraries that come with the package, and rules that hold by what a function is."""
    found = [read_library(path)[0] for path in sorted(SHIPPED.glob("*.spz"))]
    reasoner = Reasoner()
    judged = [judge(r, reasoner=reasoner) for name, (r, wanted) in CASES.items() if wanted is Proved and "relu" in name]
    functions = tuple(replace_name(j, k) for k, j in enumerate(judged) if isinstance(j, Proved))
    return (*found, Library("functions", functions))


def replace_name(j: Proved, k: int) -> Proved:
    r = j.rule
    return Proved(
        Substitution(f"f{k}", r.inputs, r.left, r.right, r.outputs, r.preconditions), j.cases, j.witness, j.needed
    )


def false_on(rule: Substitution, seed: int) -> object:
    """An instance on which the rule fails under its preconditions, or None."""
    fine = (Difference.NOWHERE, Difference.LEFT_ILL_TYPED, Difference.PRECONDITION, Difference.LEFT_COPIES)
    return next(((values, d) for values, d in differences(rule, seed, INSTANCES, 120) if d not in fine), None)


def refutes(rule: Substitution, e: Counterexample) -> bool:
    """Whether the independent evaluator sees the counterexample fail; irrational functions are left to the
    checker's bounds.
    """
    values = dict(e.instance)
    arrays = {}
    for p, entries in zip(rule.inputs, e.values, strict=True):
        shape = tuple(dict(p.fixed).get(a, values.get(f"{p.name}.{a}", 1)) for a in range(p.rank))
        arrays[p.name] = np.array(entries, dtype=object).reshape(shape)
    try:
        found = Evaluator(Exact()).compare(rule, values, arrays).difference
    except EvaluationError:
        return bool({n.operator for n in (*rule.left, *rule.right)} & IRRATIONAL)
    return found in (Difference.RIGHT_ILL_TYPED, Difference.TYPE, Difference.RIGHT_COPIES, Difference.VALUE)


@pytest.mark.timeout(3600)
@pytest.mark.parametrize(
    ("count", "part"), [(FEW, 0), *(pytest.param(MANY // PARTS, k + 1, marks=pytest.mark.slow) for k in range(PARTS))]
)
def test_what_is_accepted_is_true(count: int, part: int) -> None:
    words: Counter[str] = Counter()
    kinds: Counter[str] = Counter()
    for b, base in enumerate(bases()):
        for k, (kind, library, name) in enumerate(forgeries(base, count // len(bases()), b + 10 * part)):
            kinds[kind] += 1
            try:
                again, _ = read_library(write_library(None, library))
            except (ContainerError, ValueError) as error:
                assert isinstance(error, ContainerError), (kind, name, error)
                words["unreadable"] += 1
                continue
            result = next(r for r in check_library(again) if r.name == name)
            words[result.word] += 1
            rule = next(j.rule for j in (*library.derivations, *library.judgements) if j.rule.name == name)
            if result.word in ("proved", "derived"):
                assert (bad := false_on(rule, k)) is None, (kind, rule, bad)
            elif result.word == "refuted":
                (judgement,) = again.judgements
                assert isinstance(judgement, Refuted) and refutes(judgement.rule, judgement.counterexample), (
                    kind,
                    rule,
                )
    print(dict(kinds), dict(words))
    assert words["rejected"] > count * 2 // 3 and set(kinds) == {
        "rule",
        "precondition",
        "proof",
        "refutation",
        "derivation",
    }, words


def test_the_truth_says_no() -> None:
    """The evaluation that judges what is accepted finds false rules false, and true counterexamples true."""
    rules = [j.rule for j in bases()[0].judgements if isinstance(j, Proved)][:40]
    turned = [
        Substitution(r.name, r.inputs, r.left, r.left[:-1], tuple((a, len(r.left) - 2) for a, _ in r.outputs))
        for r in rules
        if len(r.left) > 1
    ]
    assert sum(false_on(r, 1) is not None for r in turned) > len(turned) // 2 > 3
    wrong, _ = CASES["relu add"]
    found = judge(wrong)
    assert isinstance(found, Refuted) and refutes(wrong, found.counterexample) and false_on(wrong, 1) is not None
    assert not refutes(
        wrong,
        Counterexample(
            found.counterexample.instance, tuple((0,) * len(v) for v in found.counterexample.values), "true", "value"
        ),
    )
