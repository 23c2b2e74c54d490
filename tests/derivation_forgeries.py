"""Random programs, what rules derive of them, and forgeries of these derivations.

programs   sums, products of elements and of matrices, maps, exchanged axes, parts, tensors side by side, softmax and
           sums over an axis, of few tensors, so that many rules find a place
said       what a step says is changed: never accepted, whatever the node computes
computes   the node is changed: accepted only where it computes the same, which is tried with numbers
"""

from __future__ import annotations

import random
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Final

import numpy as np

from shardproof.backends.execution.reference import random_inputs, run_graph
from shardproof.formal.rewriting.joint.rules.growing import Growing
from shardproof.formal.rewriting.joint.rules.library import rules_of
from shardproof.formal.rewriting.joint.saturate import RULES, Rule
from shardproof.models.joint.egraph import EGraph
from shardproof.models.program.graph import Graph
from shardproof.models.program.index import Access, Affine, Axis
from shardproof.models.program.operators import Operator
from shardproof.models.sources.building.builder import Builder
from shardproof.proofs.joint.books import read_book
from shardproof.proofs.joint.derivation import Derivation, Step
from shardproof.proofs.rewrites.plain import DEFAULTS
from shardproof.verify.joint.derivation import wrong_derivation

SHAPE: Final = (4, 4)
MOST: Final = 10
"""Operators that rules add to a program."""
OTHER: Final[Mapping[str, str]] = {
    "add": "multiply",
    "multiply": "add",
    "sum_inputs": "copy",
    "relu": "tanh",
    "tanh": "exp",
    "exp": "relu",
    "product": "product_sum",
}
"""Function -> another one that takes as many operands."""


@dataclass(frozen=True)
class Forgery:
    """`kind` of what is changed, whether in what is `said` or in what the node of `step` computes."""

    kind: str
    said: bool
    step: Step
    egraph: EGraph
    derivation: Derivation


def program(rng: random.Random, operators: int = 5) -> Graph:
    """A random program of square matrices."""
    b = Builder("drawn")
    tensors = [b.input("x", SHAPE), b.input("y", SHAPE), b.parameter("w", SHAPE), b.parameter("v", SHAPE)]
    i, j = Affine.axis("i"), Affine.axis("j")
    axes = [Axis("i", SHAPE[0]), Axis("j", SHAPE[1])]
    words = [*("add", "add", "multiply", "multiply", "map", "exchange", "softmax"), rng.choice(("matmul", "beside"))]
    for k in range(operators):
        name, one, two = f"t{k}", rng.choice(tensors[-4:]), rng.choice(tensors)
        match words.pop(rng.randrange(len(words))):
            case "add" | "multiply" as word:
                made = b.map(name, word, one, two)
            case "matmul":
                made = b.contract(name, "m k, k n -> m n", one, two)
            case "map":
                made = b.map(name, rng.choice(("relu", "tanh", "exp")), one)
            case "exchange":
                made = b.operator(name, "copy", axes, [Access(one, (j, i))], ["i", "j"])
            case "softmax":
                made = b.normalise(name, "softmax", "a b -> a b", one, over="b")
            case _:  # side by side, and a product with a part of it
                wide = [Axis("i", SHAPE[0]), Axis("j", 2 * SHAPE[1])]
                both = b.operator(
                    f"{name}.both",
                    "copy",
                    wide,
                    [Access(one, (i, j)), Access(two, (i, j.shift(-SHAPE[1])))],
                    ["i", "j"],
                )
                tall = b.parameter(f"{name}.tall", (2 * SHAPE[1], SHAPE[0]))
                made = b.contract(name, "m k, k n -> m n", both, tall)
        tensors.append(made)
    return b.build(tensors[-1], tensors[-2])


def rules() -> Mapping[str, Rule]:
    """The rules that are built in, and those of the libraries that come along."""
    books = [read_book(path.read_bytes()) for path in DEFAULTS]
    return {**RULES, **{b.title: rules_of(b) for b in books}}


def forgeries(egraph: EGraph, derivation: Derivation, rng: random.Random) -> Iterator[Forgery]:
    """Each kind at a random step."""
    k = rng.randrange(len(derivation.steps))
    step = derivation.steps[k]
    node = next(op for op in egraph.operators if op.name == step.node)

    def say(kind: str, new: Step) -> Iterator[Forgery]:
        if new != step:
            steps = (*derivation.steps[:k], new, *derivation.steps[k + 1 :])
            yield Forgery(kind, True, step, egraph, replace(derivation, steps=steps))

    def compute(kind: str, new: Operator) -> Iterator[Forgery]:
        if new != node:
            operators = tuple(new if op is node else op for op in egraph.operators)
            yield Forgery(kind, False, step, replace(egraph, operators=operators), derivation)

    yield from say("no such rule", replace(step, rule=step.rule + "'"))
    yield from say("no such library", replace(step, book="f" * 64))
    yield from say("a shorter place", replace(step, place=step.place[:-1] if step.place else ("t0",)))
    yield from say("its own proof", replace(step, place=(step.node, *step.place[1:])))
    yield from say("a missing size", replace(step, facts=step.facts[:-1]))
    name, n = step.facts[0]
    yield from say("another size", replace(step, facts=((name, n + 1), *step.facts[1:])))
    yield from say("one size more", replace(step, facts=(*step.facts, ("s", 1))))
    if step.book:
        yield from say("a missing input", replace(step, reads=step.reads[:-1]))
        yield from say("an input that is not there", replace(step, reads=("nowhere", *step.reads[1:])))
        yield from say("a rule that is built in", replace(step, book="", reads=()))
    at = rng.randrange(len(node.inputs))
    a = node.inputs[at]

    def with_input(new: Access) -> Operator:
        return replace(node, inputs=(*node.inputs[:at], new, *node.inputs[at + 1 :]))

    t = egraph.union.tensor(a.tensor)
    others = [o.name for o in egraph.union.tensors if (o.shape, o.dtype) == (t.shape, t.dtype) and o.name != t.name]
    if others:
        yield from compute("another operand", with_input(replace(a, tensor=rng.choice(others))))
    axis = rng.randrange(len(a.index))
    moved = tuple(i.shift(1) if d == axis else i for d, i in enumerate(a.index))
    yield from compute("an operand moved", with_input(replace(a, index=moved)))
    yield from compute("indices exchanged", with_input(replace(a, index=a.index[::-1])))
    yield from compute("operands exchanged", replace(node, inputs=node.inputs[::-1]))
    if node.function in OTHER:
        yield from compute("another function", replace(node, function=OTHER[node.function]))


def refused(f: Forgery) -> bool:
    """Whether the checker refuses a forgery."""
    return wrong_derivation(f.egraph, f.derivation) != ""


def computes_the_same(f: Forgery) -> bool:
    """Whether the program with the changed node gives what the user's gives, on random numbers."""
    node = next(op for op in f.egraph.operators if op.name == f.step.node)
    modes = f.egraph.close_modes({node.output.tensor: node.name})
    base = f.egraph.base
    if node.output.tensor in {t.name for t in base.tensors}:
        other = f.egraph.graph({**modes, node.output.tensor: node.name})
        arrays = random_inputs(base, 3, "float64")
        one, two = run_graph(base, arrays), run_graph(other, arrays)
        return all(np.allclose(one[t], two[t], rtol=1e-6, atol=1e-9, equal_nan=True) for t in base.results)
    return True  # a new tensor is what its first operator computes


def draw(seed: int, some: Mapping[str, Rule]) -> Iterator[Forgery]:
    """Forgeries of the derivation of one random program; what does not pay is not left out of it."""
    rng = random.Random(seed)
    grown, order = Growing(program(rng)), list(some.values())
    rng.shuffle(order)
    for rule in order:
        for op in list(grown.order):
            for addition in list(rule(grown, op))[:3]:
                if grown.added_operators < MOST:
                    grown.add(addition)
    egraph, derivation = grown.egraph(), grown.derivation(1)
    if derivation.steps:
        assert wrong_derivation(egraph, derivation) == ""
        for _ in range(4):
            yield from forgeries(egraph, derivation, rng)
