"""The e-graph that a joint search is about: what rules give within some time, as far as a search can hold it.

too large       some class has more readers that can be chosen than tags say
same order      the axes of the user's operators stand as they do without the others, so that the user's plans are
                plans of the e-graph, at the same cost
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Final

from ....models.cost.limits import TooLarge
from ....models.joint.choices import Skeleton
from ....models.joint.egraph import EGraph
from ....models.joint.rules import MOST_NODES, ROUNDS
from ....models.program.graph import Graph
from ....models.sources.training import TrainingStep
from ....proofs.joint.derivation import Derivation, Step
from ...selection.model.clock import Clock
from .gleaning import defines, part_of
from .levels import SMALL
from .rules.recompute import with_recomputation
from .rules.worth import Pays
from .saturate import RULES, Rule, same_order, saturate

NARROWER: Final = (
    frozenset({"fuse-epilogue", "relu-from-output", "add-many", "product-of-parts"}),
    frozenset({"fuse-epilogue", "relu-from-output"}),
    frozenset[str](),
)
"""Rules that are tried where more give too large an e-graph."""
RULES_SHARE: Final = 0.15
"""Share of the time for one set of rules; what they have added by then is the e-graph."""
ALL_RULES_SHARE: Final = 0.3
"""Share of the time for all sets of rules that are tried."""


def _too_large(egraph: EGraph) -> bool:
    """Whether some class has too many readers that can be chosen."""
    try:
        return Skeleton(egraph, SMALL).rests is None
    except TooLarge:
        return True


def safe(
    graph: Graph,
    rules: Mapping[str, Rule] = RULES,
    clock: Clock | None = None,
    pays: Pays | None = None,
    rounds: int = ROUNDS,
    most: int = MOST_NODES,
    seconds: float | None = None,
    again: tuple[TrainingStep, bool] | None = None,
) -> tuple[EGraph, Derivation]:
    """The e-graph in which the user's plans cost what they cost, and that is not too large.  Rules that change that are
    left out: where it is too large, all but some (`NARROWER`); then what changes the order of axes (`_in_order`).
    `seconds`: for all that at most, None for a share of the clock's; `again`: the step that the graph is, whose tensors
    may be computed again, unless that makes it too large, and whether they may lie on hosts.
    """
    whole = clock or Clock()
    until = whole.share(ALL_RULES_SHARE) if seconds is None else whole.at_most(seconds)
    egraph, derivation = _by_rules(graph, rules, until, pays, rounds, most)
    if again is None:
        return egraph, derivation
    step, hosts = again
    for away in (True, False) if hosts else (False,):
        wide = with_recomputation(egraph, derivation, step, away)
        if same_order(wide[0]) and not _too_large(wide[0]):
            return wide
    return egraph, derivation


def _by_rules(
    graph: Graph, rules: Mapping[str, Rule], until: Clock, pays: Pays | None, rounds: int, most: int
) -> tuple[EGraph, Derivation]:
    def over() -> Callable[[], bool]:
        return until.share(RULES_SHARE / ALL_RULES_SHARE).over

    def grown(some: Mapping[str, Rule]) -> tuple[EGraph, Derivation]:
        return saturate(graph, some, rounds, most, over(), pays)

    egraph, derivation = grown(rules)
    for few in NARROWER:
        if not _too_large(egraph):
            break
        egraph, derivation = grown({n: rule for n, rule in rules.items() if n in few})
    return _in_order(egraph, derivation)


def _in_order(egraph: EGraph, derivation: Derivation) -> tuple[EGraph, Derivation]:
    """The e-graph without the rules whose steps change the order of the user's axes, found by halving the steps."""
    while not same_order(egraph):
        steps = derivation.steps
        low, high = 0, len(steps)  # so many first steps keep the order, and so many do not
        while high - low > 1:
            middle = (low + high) // 2
            kept = same_order(_by_steps(egraph, derivation, steps[:middle])[0])
            low, high = (middle, high) if kept else (low, middle)
        wrong = next((s for s in steps[high - 1 :] if not defines(s)), steps[high - 1])
        left = [s for s in steps if (s.rule, s.book) != (wrong.rule, wrong.book)]
        egraph, derivation = _by_steps(egraph, derivation, left)
    return egraph, derivation


def _by_steps(egraph: EGraph, derivation: Derivation, steps: Sequence[Step]) -> tuple[EGraph, Derivation]:
    """What some steps give: those whose places and operands are there, without new tensors that nobody reads."""
    operators, base = {op.name: op for op in egraph.operators}, {t.name for t in egraph.base.tensors}
    there, written, proved = {op.name for op in egraph.base.operators}, set(base), list[Step]()
    for step in steps:
        op = operators[step.node]
        if there.issuperset(step.place) and written.issuperset(a.tensor for a in op.inputs):
            there.add(op.name)
            written.add(op.output.tensor)
            proved.append(step)
    kept, named, read = {op.name for op in egraph.base.operators}, set[str](), set(base)
    for step in reversed(proved):
        op = operators[step.node]
        if op.name in named or op.output.tensor in read:
            kept.add(op.name)
            named.update(step.place)
            read.update(a.tensor for a in op.inputs)
    return part_of(egraph, derivation, kept)
