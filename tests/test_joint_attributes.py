"""Added operators with other attributes or other axes that may be split: refused, or they compute the same and the
placements that they have are sound.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

import numpy as np
import pytest
from test_joint_rules import PLACES

from shardproof.backends.execution.reference import random_inputs, run_graph
from shardproof.formal.rewriting.joint.saturate import saturate
from shardproof.models.joint.egraph import EGraph
from shardproof.models.program.operators import Operator
from shardproof.proofs.joint.derivation import Derivation
from shardproof.verify.joint.derivation import wrong_derivation
from shardproof.verify.joint.forms import facts_of

STRANGE = (
    *(("scale", 2.0), ("epsilon", 9.0), ("value", 3.0), ("rate", 1.0), ("approximate", "tanh"), ("low", 0.0)),
    *(("arithmetic", "float16"), ("count_include_pad", 1), ("exclusive", 1), ("factors", 1), ("shift", 1.0)),
)


def attributed(op: Operator) -> Iterator[Operator]:
    """One attribute less, more, or with another value."""
    for k, (name, value) in enumerate(op.attributes):
        yield replace(op, attributes=(*op.attributes[:k], *op.attributes[k + 1 :]))
        if isinstance(value, int | float):
            yield replace(op, attributes=(*op.attributes[:k], (name, value + 1), *op.attributes[k + 1 :]))
        elif isinstance(value, tuple) and len(set(value)) > 1:
            yield replace(op, attributes=(*op.attributes[:k], (name, value[::-1]), *op.attributes[k + 1 :]))
    known = dict(op.attributes)
    for name, value in STRANGE:
        if name not in known:
            yield replace(op, attributes=tuple(sorted((*op.attributes, (name, value)))))


def split(op: Operator) -> Iterator[Operator]:
    """One axis may be split that was never, or the other way round."""
    for k, a in enumerate(op.axes):
        yield replace(op, axes=(*op.axes[:k], replace(a, splittable=not a.splittable), *op.axes[k + 1 :]))


def with_operator(egraph: EGraph, derivation: Derivation, new: Operator) -> tuple[EGraph, Derivation]:
    """An added operator in another form, whose step states the sizes that it has."""
    operators = tuple(new if op.name == new.name else op for op in egraph.operators)
    steps = tuple(replace(s, facts=facts_of(new)) if s.node == new.name else s for s in derivation.steps)
    return replace(egraph, operators=operators), replace(derivation, steps=steps)


@pytest.mark.parametrize("name", PLACES)
def test_other_attributes_compute_the_same_or_are_refused(name: str) -> None:
    graph = PLACES[name]()
    egraph, derivation = saturate(graph)
    own = {op.name for op in graph.operators}
    inputs = random_inputs(graph, 0, "float64")
    wanted = run_graph(graph, inputs)
    refused = 0
    for op in egraph.operators:
        for new in () if op.name in own else attributed(op):
            other, proof = with_operator(egraph, derivation, new)
            if wrong_derivation(other, proof):
                refused += 1
                continue
            found = run_graph(other.graph(other.close_modes({new.output.tensor: new.name})), inputs)
            for result in graph.results:
                np.testing.assert_allclose(found[result], wanted[result], rtol=1e-8, atol=1e-9)
    assert refused > 5


@pytest.mark.parametrize("name", PLACES)
def test_a_sum_behind_which_something_is_applied_is_never_split(name: str) -> None:
    """Of the axes that were never split only sums of plain products may be: their parts are added up."""
    graph = PLACES[name]()
    egraph, derivation = saturate(graph)
    own = {op.name for op in graph.operators}
    for op in egraph.operators:
        for new in () if op.name in own else split(op):
            changed = next(a for a, b in zip(new.axes, op.axes, strict=True) if a != b)
            accepted = wrong_derivation(*with_operator(egraph, derivation, new)) == ""
            if accepted and changed.splittable:
                assert (new.function, changed.combine is not None) == ("product", True), changed.name
