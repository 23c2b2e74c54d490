"""Activation checkpointing tensor by tensor: what a backward pass reads is kept since the forward pass, computed again
just before it is read, or lies in the memory of the host meanwhile.

    h            a tensor of the forward pass that is no result, with at most `MOST_READERS` readers
    again(h)     a new class: the operator of h once more (rule `compute-again`), before its first reader.  What its
                 own block alone reads comes behind its operands' classes of the block, which it may read in turn; what
                 other blocks read too reads what is kept
    readers      every operator of the backward pass that reads h may read again(h) in its place, and so may the
                 operators of other classes again(..) (rule `equal-operators`)

    away(h)      with a link to the host: h on hosts, copied there as soon as it is computed, and the copy back, which
                 gives again(h) too (rule `offload`)

So one problem holds every set of these tensors, each with every placement: the claim is over all of them.  An operator
with several such operands has one e-node per set of them, up to `MOST_OPERANDS`; beyond, all or none.

Source: Chen et al., Training Deep Nets with Sublinear Memory Cost (2016); Jain et al., Checkmate (MLSys 2020), whose
integer program decides the same without placements.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from itertools import product
from typing import Final

from .....models.joint.egraph import EGraph
from .....models.joint.rules import AGAIN, EQUAL, OFFLOAD
from .....models.program.graph import Role, Tensor
from .....models.program.index import Access, Affine, Axis
from .....models.program.operators import NodeKind, Operator
from .....models.sources.training import TrainingStep
from .....models.sources.training.recompute import PREFIX, block_of
from .....proofs.joint.derivation import Derivation, Step
from .growing import NAMED, facts

MOST_OPERANDS: Final = 3
"""Operands of one operator that are kept or computed again each by itself: eight e-nodes.  Attention reads three."""

MOST_READERS: Final = 8
"""Readers of one tensor, of its block and of the backward pass: their choices stand together in the tags of its copy,
and in those of what computes it again.
"""


AWAY: Final = "offload:"
"""How the names of what lies on hosts, and of the copies there and back, begin."""


def with_recomputation(
    egraph: EGraph, derivation: Derivation, step: TrainingStep, hosts: bool = False
) -> tuple[EGraph, Derivation]:
    """The e-graph of a training step with every tensor that may be computed again, and the proof of what is added.
    `hosts`: or may lie on hosts.

    >>> from .....models.joint.rules import LIBRARY
    >>> from .....models.sources.training import build_step
    >>> from .....models.sources.zoo import build
    >>> step = build_step(build("mlp-unity"), "sgd")
    >>> plain = EGraph(step.graph, (), step.graph.operators)
    >>> wide, derivation = with_recomputation(plain, Derivation(LIBRARY, 1, ()), step)
    >>> [t.name for t in wide.tensors]
    ['recompute:loss.log_softmax', 'recompute:relu1', 'recompute:fc1']
    """
    return _Widening(egraph, derivation, step, hosts).whole()


class _Widening:
    """`again`: tensor -> the first operator of the class that computes it again."""

    def __init__(self, egraph: EGraph, derivation: Derivation, step: TrainingStep, hosts: bool) -> None:
        self.egraph, self.derivation, self.hosts = egraph, derivation, hosts
        passes = zip(step.graph.operators, step.passes, strict=True)
        behind = {op.name for op, (phase, _) in passes if phase != "F"}
        steps = enumerate(egraph.operators)
        self.begin = next((i for i, op in steps if op.name in behind), len(egraph.operators))
        self.blocks = self._blocks()
        first = {op.output.tensor: i for i, op in reversed(list(enumerate(egraph.operators)))}
        self.replaced = {parameter: first[value] for parameter, value in egraph.base.state}
        self.private = set[str]()
        self.candidates = self._candidates()
        self.taken = {t.name for t in egraph.union.tensors} | {op.name for op in egraph.operators}
        self.again: dict[str, Operator] = {}
        self.order: list[Operator] = []
        self.tensors: list[Tensor] = []
        self.steps: list[Step] = []
        self.away: dict[str, Operator] = {}

    def _blocks(self) -> dict[str, str]:
        """Tensor of the forward pass -> its block; "" where what shares the name keeps nothing to itself."""
        named = {op.output.tensor: block_of(op.name) or "" for op in self.egraph.operators[: self.begin]}
        read = [
            (named[a.tensor], named[op.output.tensor])
            for op in self.egraph.operators[: self.begin]
            for a in op.inputs
            if a.tensor in named
        ]
        inner = {mine for mine, reader in read if mine == reader}
        return {t: block if block in inner else "" for t, block in named.items()}

    def whole(self) -> tuple[EGraph, Derivation]:
        """The e-graph, in its order."""
        for i, op in enumerate(self.egraph.operators):
            if i >= self.begin:
                for a in op.inputs:
                    self._compute_again(a.tensor, i)
            self.order.append(op)
            if i >= self.begin:
                self._readings(op)
        wide = EGraph(self.egraph.base, (*self.egraph.tensors, *self.tensors), tuple(self._with_copies()))
        steps = (*self.derivation.steps, *self.steps)
        return wide, replace(self.derivation, rounds=max(1, self.derivation.rounds), steps=steps)

    def _candidates(self) -> dict[str, Operator]:
        """Tensors that may be computed again, each with the user's operator that computes it."""
        graph, own = self.egraph, {op.name for op in self.egraph.base.operators}
        results = {*graph.base.outputs, *(value for _, value in graph.base.state)}
        inside, behind = dict[str, set[str]](), dict[str, set[str]]()
        for i, op in enumerate(graph.operators):
            for a in op.inputs:
                if i >= self.begin:
                    behind.setdefault(a.tensor, set()).add(op.output.tensor)
                elif op.name in own:
                    inside.setdefault(a.tensor, set()).add(op.output.tensor)
        found = dict[str, Operator]()
        for op in graph.operators[: self.begin]:
            t = op.output.tensor
            if op.name not in own or op.kind is NodeKind.OPAQUE or t in results:
                continue
            if len(inside.get(t, set()) | behind.get(t, set())) <= MOST_READERS:
                found[t] = op
            if {self.blocks[r] for r in inside.get(t, ())} <= {self.blocks[t]}:
                self.private.add(t)
        return found

    def _compute_again(self, t: str, here: int) -> None:
        """The class that computes `t` again, before step `here`, behind those that it may read in turn."""
        waiting = [t]
        while waiting:  # a chain may be as long as a sequence
            t = waiting[-1]
            op = self.candidates.get(t)
            if op is None or not self._comes(t, here):
                waiting.pop()
                continue
            # what other blocks read is needed before its block's backward pass; what is in none would come all at once
            chain = t in self.private and bool(self.blocks[t])
            before = [a.tensor for a in op.inputs if chain and self.blocks.get(a.tensor) == self.blocks[t]]
            if more := [x for x in before if self._comes(x, here)]:
                waiting.append(more[0])
                continue
            known = self.egraph.union.tensor(t)
            name = self._free(PREFIX + t)
            self.tensors.append(Tensor(name, known.shape, known.dtype, Role.VALUE))
            first = replace(op, name=name, output=replace(op.output, tensor=name))
            self._add(first, AGAIN, (op,))
            if self.hosts:
                self._bring_back(op, first)
            self._readings(first)
            self.again[t] = first
            waiting.pop()

    def _bring_back(self, op: Operator, again: Operator) -> None:
        """The copy of what `op` writes to hosts, whose place in the order comes later, and the copy back."""
        known = self.egraph.union.tensor(op.output.tensor)
        there = Tensor(self._free(AWAY + known.name), known.shape, known.dtype, Role.VALUE, host=True)
        axes = tuple(Axis(f"i{k}", n) for k, n in enumerate(known.shape))
        index = tuple(Affine.axis(a.name) for a in axes)
        of, back = Access(known.name, index), Access(again.output.tensor, index)
        away = Operator(there.name, "to_host", axes, (of,), Access(there.name, index))
        self.tensors.append(there)
        self.away[known.name] = away
        self.steps.append(Step(OFFLOAD, away.name, (op.name,), facts(away)))
        node = Operator(self._free(f"{there.name}{NAMED}back"), "from_host", axes, (Access(there.name, index),), back)
        self._add(node, OFFLOAD, (op, again, away))

    def _with_copies(self) -> Iterator[Operator]:
        """The operators in order, copies to hosts behind the last that writes what they copy."""
        last = {op.output.tensor: op.name for op in self.order if op.output.tensor in self.away}
        for op in self.order:
            yield op
            if last.get(op.output.tensor) == op.name:
                yield self.away[op.output.tensor]

    def _comes(self, t: str, here: int) -> bool:
        """Whether a tensor can be computed again before step `here`, and is not yet: not from a parameter that has its
        next value by then.
        """
        op = self.candidates.get(t)
        return (
            op is not None and t not in self.again and all(self.replaced.get(a.tensor, here) >= here for a in op.inputs)
        )

    def _free(self, name: str) -> str:
        while name in self.taken:
            name += "'"
        self.taken.add(name)
        return name

    def _readings(self, op: Operator) -> None:
        """The operator with some of its operands computed again, in every way."""
        read = [t for t in dict.fromkeys(a.tensor for a in op.inputs) if t in self.again]
        ways: Iterator[tuple[bool, ...]] = product((False, True), repeat=len(read))
        if len(read) > MOST_OPERANDS:
            ways = iter([(True,) * len(read)])
        number = 0
        for way in ways:
            chosen = [t for t, taken in zip(read, way, strict=True) if taken]
            if not chosen:
                continue
            number += 1
            seen, place = op, [op]
            for t in chosen:
                first = self.again[t]
                new = first.output.tensor
                seen = replace(seen, inputs=tuple(replace(a, tensor=new) if a.tensor == t else a for a in seen.inputs))
                place += [self.egraph.nodes[t][0], first]
            self._add(replace(seen, name=self._free(f"{op.name}{NAMED}again{number}")), EQUAL, tuple(place))

    def _add(self, op: Operator, rule: str, place: tuple[Operator, ...]) -> None:
        self.order.append(op)
        self.steps.append(Step(rule, op.name, tuple(p.name for p in place), facts(op)))
