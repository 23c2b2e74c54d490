"""Programs to begin with where every tensor is kept, computed again or offloaded by itself: one rule for all tensors of
the first k blocks (`--recompute auto` without the choice tensor by tensor), nothing else.

    rule   all are computed again; only those that are cheap (no product, no attention: what Megatron-LM calls
           selective); where tensors may lie on hosts: the cheap ones computed again and the others offloaded; all
           offloaded
    k      0 (the graph as it is), all blocks, then halving: towards fewer where the smaller end does not fit, else
           towards the cheaper end
    cost   of the problem over all programs with the modes of this one, read off its tables: nothing is built again
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Final

from ....models.joint.egraph import EGraph, Modes
from ....models.joint.rules import AGAIN, EQUAL, OFFLOAD
from ....models.program.graph import Graph
from ....models.program.operators import NodeKind
from ....models.sources.training.recompute import block_of
from ....proofs.joint.derivation import Derivation

_NUMBER: Final = re.compile(r"\d+", re.ASCII)


def tensors_of_blocks(egraph: EGraph, derivation: Derivation) -> dict[str, tuple[str, ...]]:
    """Block -> its tensors that may be computed again, in the order of the forward pass; \"\" for those of no block."""
    writes = {op.name: op.output.tensor for op in egraph.operators}
    again = {writes[step.place[0]] for step in derivation.steps if step.rule == AGAIN}
    found: dict[str, list[str]] = {}
    for op in egraph.base.operators:
        if op.output.tensor in again:
            found.setdefault(block_of(op.name) or "", []).append(op.output.tensor)
    return {block: tuple(tensors) for block, tensors in found.items()}


NOTHING: Final = (
    "no tensor can be chosen to be computed again: the problem over all sets of them is too large, or has its axes in "
    "another order than the step"
)
"""Why a search over tensors is one over none."""


def has_choices(derivation: Derivation) -> bool:
    """Whether any tensor may be computed again."""
    return any(step.rule == AGAIN for step in derivation.steps)


def computed_again(egraph: EGraph, derivation: Derivation, program: Graph) -> tuple[str, ...]:
    """Tensors of the forward pass that a program computes again, in the order of the backward pass."""
    writes = {op.name: op.output.tensor for op in egraph.operators}
    of = {writes[s.node]: writes[s.place[0]] for s in derivation.steps if s.rule == AGAIN}
    back = _copies_back(derivation)
    return tuple(of[op.output.tensor] for op in program.operators if op.output.tensor in of and op.name not in back)


def tensors_on_hosts(egraph: EGraph, derivation: Derivation, program: Graph | None = None) -> frozenset[str]:
    """Tensors that may lie in the memory of hosts, or that do in one program."""
    writes = {op.name: op.output.tensor for op in egraph.operators}
    runs = None if program is None else {op.name for op in program.operators}
    back = _copies_back(derivation)
    return frozenset(writes[t] for node, t in back.items() if runs is None or node in runs)


def _copies_back(derivation: Derivation) -> dict[str, str]:
    """Copy from the host -> the user's operator of what it brings back."""
    return {s.node: s.place[0] for s in derivation.steps if s.rule == OFFLOAD and len(s.place) > 1}


@dataclass(frozen=True)
class Way:
    """What becomes of tensors: those computed again, those that lie on hosts; others are kept."""

    again: frozenset[str]
    away: frozenset[str] = frozenset()


CHEAP: Final = frozenset({NodeKind.MAP, NodeKind.LAYOUT, NodeKind.NORMALISE, NodeKind.REDUCE, NodeKind.GATHER})
"""Kinds of operators that cost about as much as reading what they write."""


def ways_of(egraph: EGraph, derivation: Derivation) -> tuple[Way, ...]:
    """The rules to begin with, each once."""
    every = frozenset(t for tensors in tensors_of_blocks(egraph, derivation).values() for t in tensors)
    cheap = every.intersection(op.output.tensor for op in egraph.base.operators if op.kind in CHEAP)
    found = [Way(every), Way(cheap)]
    if hosts := tensors_on_hosts(egraph, derivation):
        found += [Way(cheap, hosts - cheap), Way(every - hosts, hosts)]
    return tuple(dict.fromkeys(way for way in found if way.again or way.away))


def again_words(tensors: Sequence[str]) -> str:
    """The tensors for people: those whose names differ by numbers alone together.

    >>> again_words(["layer1.ffn.gelu", "layer0.ffn.gelu", "head"])
    '2 like layer1.ffn.gelu, head'
    """
    alike: dict[str, list[str]] = {}
    for t in tensors:
        alike.setdefault(_NUMBER.sub("#", t), []).append(t)
    return ", ".join(ts[0] if len(ts) == 1 else f"{len(ts)} like {ts[0]}" for ts in alike.values())


def modes_with(
    egraph: EGraph, derivation: Derivation, tensors: frozenset[str], hosts: frozenset[str] = frozenset()
) -> Modes:
    """The user's program in which every backward reader of `tensors` reads them computed again, or those of `hosts`
    from there.
    """
    writes = {op.name: op.output.tensor for op in egraph.operators}
    new = {writes[s.place[0]]: writes[s.node] for s in derivation.steps if s.rule == AGAIN}
    by_reading = {(op.output.tensor, tuple(a.tensor for a in op.inputs)): op.name for op in egraph.operators}
    named = dict[str, str]()
    for t, nodes in egraph.nodes.items():
        first = nodes[0]
        read = tuple(new[a.tensor] if a.tensor in tensors else a.tensor for a in first.inputs)
        named[t] = by_reading.get((t, read), first.name)
    for node, op in _copies_back(derivation).items():
        if writes[op] in hosts:
            named[writes[node]] = node
    return egraph.close_modes(named)


def without_rules(egraph: EGraph, derivation: Derivation) -> frozenset[str]:
    """Operators of the programs that differ from the user's in what is computed again alone."""
    found = {op.name for op in egraph.base.operators}
    again = set[str]()
    for step in derivation.steps:
        if step.rule in (AGAIN, OFFLOAD) and step.place[0] in found:
            again.add(step.node)
        elif step.rule != EQUAL or step.place[0] not in found | again or not again.intersection(step.place):
            continue
        found.add(step.node)
    return frozenset(found)


def halving(blocks: int, cost: Callable[[int], int | None], over: Callable[[], bool]) -> Iterator[int]:
    """Numbers of blocks whose cost was asked for; `cost`: None where nothing fits."""
    known: dict[int, int | None] = {}

    def ask(k: int) -> int | None:
        known[k] = cost(k)
        return known[k]

    low, high = 0, blocks
    least = ask(0)
    yield 0
    if not blocks or over():
        return
    most = ask(blocks)
    yield blocks
    while high - low > 1 and not over() and (least is not None or most is not None):
        middle = (low + high) // 2
        found = ask(middle)
        yield middle
        if found is None or (least is not None and (most is None or most < least)):
            low, least = middle, found
        else:
            high, most = middle, found
