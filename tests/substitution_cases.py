"""Rules and mutants shared by the tests of the substitution prover and its checker."""

from __future__ import annotations

import random
from collections.abc import Iterator
from dataclasses import replace
from itertools import chain
from pathlib import Path

import numpy as np

from shardproof.formal.rewriting.refute import instances
from shardproof.models.rewrites.eval import Difference, Evaluator
from shardproof.models.rewrites.index_arrays import EvaluationError, Exact
from shardproof.models.rewrites.instances import draw_instances, integer_arrays
from shardproof.models.rewrites.ops import OPERATORS
from shardproof.models.rewrites.rule import Node, Parameter, Pattern, Substitution, SubstitutionError, node
from shardproof.models.sources.rules.axiom_meaning import axiom_substitutions
from shardproof.models.sources.rules.axioms import read_public_axioms
from shardproof.models.sources.rules.files import read_public_rules
from shardproof.models.sources.rules.meaning import reading_of, substitutions

DATA = Path(__file__).parent / "data" / "rules"

ALIKE = (
    ("add", "mul"),
    ("relu", "sigmoid", "tanh"),
    ("split0", "split1"),
    ("half0", "half1"),
    ("partition", "combine"),
    ("tile", "block_sum", "partition"),
    ("max_pool", "average_pool", "average_pool_inside"),
    ("replicate", "reduce"),
    ("softmax", "layer_norm", "rms_norm"),
    ("add_along", "scale_along"),
)


def public(name: str) -> list[Substitution]:
    """The substitutions of a public file (`taso-even`, `flexflow-even` or `taso-axioms`)."""
    if name == "taso-axioms":
        return [s for a in read_public_axioms(DATA / f"{name}.json") for s in axiom_substitutions(a)]
    rules = read_public_rules(DATA / f"{name}.json")
    return [s for r in rules for s in substitutions(r, reading_of(rules))]


def rule(
    inputs: str, left: list[Node], right: list[Node], out: tuple[int, int], rank: int = 2, sharded: bool = False
) -> Substitution:
    """A rule over inputs of one rank; an input `w0` has rank 0, `i1` rank 1, `x4` rank 4."""
    patterns = tuple(Pattern(n, int(n[1:]) if n[1:] else rank, (), sharded) for n in inputs.split())
    return Substitution("test", patterns, tuple(left), tuple(right), (out,))


def differences(r: Substitution, seed: int, most: int, tries: int = 400) -> Iterator[tuple[dict[str, int], Difference]]:
    """Outcome of the independent numpy evaluator on up to `most` random instances that satisfy the preconditions."""
    evaluator, rng = Evaluator(Exact()), np.random.default_rng(seed)
    seen: set[tuple[tuple[str, int], ...]] = set()
    for values in chain(draw_instances(r, seed, tries), instances(r, tries, seed, (tuple(range(1, 10)),))):
        key = tuple(sorted(values.items()))
        if key in seen:
            continue
        if len(seen) == most:
            return
        seen.add(key)
        try:
            yield values, evaluator.compare(r, values, integer_arrays(r, values, rng, Exact())).difference
        except EvaluationError:
            continue


def mutants(rules: list[Substitution], count: int, seed: int) -> Iterator[Substitution]:
    """`count` well-formed rules, each a random rule with one or two random changes, all different from their
    originals.
    """
    rng, made = random.Random(seed), 0
    seen: set[tuple[object, ...]] = set()
    while made < count:
        base = rng.choice(rules)
        new = base
        for _ in range(rng.choice((1, 1, 2))):
            new = _changed(new, rng)
        key = (new.inputs, new.left, new.right, new.outputs)
        if key in seen or (new.left, new.right, new.outputs) == (base.left, base.right, base.outputs):
            continue
        seen.add(key)
        try:
            new.check()
        except SubstitutionError:
            continue
        made += 1
        yield replace(new, name=f"{base.name}~{made}", preconditions=())


def _changed(r: Substitution, rng: random.Random) -> Substitution:
    side = rng.choice([s for s in ("left", "right") if getattr(r, s)] or ["left"])
    nodes: list[Node] = list(getattr(r, side))
    if not nodes:
        return r
    k = rng.randrange(len(nodes))
    n = nodes[k]
    how = rng.randrange(4)
    if how == 0 and len(n.inputs) == 2:
        nodes[k] = Node(n.operator, n.inputs[::-1], n.parameters)
    elif how == 1 and n.inputs:
        j = rng.randrange(len(n.inputs))
        wire = rng.choice([w for w in range(-len(r.inputs), k) if w != n.inputs[j]] or [n.inputs[j]])
        nodes[k] = Node(n.operator, tuple(wire if i == j else w for i, w in enumerate(n.inputs)), n.parameters)
    elif how == 2:
        options = [o for group in ALIKE if n.operator in group for o in group if o != n.operator]
        if options:
            nodes[k] = Node(rng.choice(options), n.inputs, n.parameters)
    elif n.parameters:
        j = rng.randrange(len(n.parameters))
        key, value = n.parameters[j]
        new = _other(n, key, value, rng)
        nodes[k] = Node(n.operator, n.inputs, tuple((a, new if i == j else b) for i, (a, b) in enumerate(n.parameters)))
    return replace(r, **{side: tuple(nodes)})


def _other(n: Node, key: str, value: Parameter, rng: random.Random) -> Parameter:
    words = dict(OPERATORS[n.operator].words)
    if key in words:
        return rng.choice(words[key])
    if isinstance(value, tuple):
        return tuple(rng.sample(value, len(value)))
    if key == "axis":
        return rng.randrange(3)
    return rng.choice((1, 2, 3))


__all__ = ["differences", "mutants", "node", "public", "rule"]
