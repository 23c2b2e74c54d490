"""What a joint plan rewrote, by which rules and where, and what each rewriting gains.

rewriting   a class whose e-node is not the user's; rules are those of the steps that prove the e-node, places the
            user's operators that they rest on
alike       classes with the same functions in their e-nodes, rewritten in the same way: repeated layers
gain        what the best plan of the program costs more with all alike rewritings undone and everything placed anew;
            None where that was not planned to the end
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from fractions import Fraction

from ....models.cost.selection import build
from ....models.joint.egraph import EGraph
from ....models.joint.rules import AGAIN, DEFINE, EQUAL, LIBRARIES, OFFLOAD, STATEMENTS
from ....models.layout.placement import space
from ....models.problem.claims import Status
from ....models.text import seconds_text
from ....proofs.joint.derivation import Derivation
from ....proofs.joint.file import Jointly
from ....proofs.plan.bundle import Plan
from ...plans.simple import simple_plans
from ...selection.model.clock import Clock
from ...selection.relax_resources import relax_resources
from ...selection.solve import solve
from .starts import Kind, kinds


@dataclass(frozen=True)
class Rewriting:
    """One rewritten class: `rules` in the order of proof, each with the identity of its library, `place`: the user's
    operators, `operator`: the e-node that computes `tensor` now; `sizes`: on which it rests.
    """

    tensor: str
    rules: tuple[tuple[str, str], ...]
    place: tuple[str, ...]
    operator: str
    sizes: tuple[tuple[str, int], ...]


@dataclass(frozen=True)
class Gain:
    """Rewritings that are alike, and what they gain together in seconds."""

    rewritings: tuple[Rewriting, ...]
    gain: Fraction | None

    def to_json(self) -> list[dict[str, object]]:
        """One object per rewriting; `gain` is that of all `alike`; `library`: identities of the libraries of its
        rules, each once.
        """
        gain = None if self.gain is None else float(self.gain)
        return [
            {
                "rule": " + ".join(rule for rule, _ in r.rules),
                "library": " + ".join(dict.fromkeys(library for _, library in r.rules)),
                "place": list(r.place),
                "tensor": r.tensor,
                "operator": r.operator,
                "sizes": dict(r.sizes),
                "alike": len(self.rewritings),
                "gain": gain,
            }
            for r in self.rewritings
        ]


def rewritings(joint: Jointly, plan: Plan) -> list[tuple[Rewriting, ...]]:
    """Rewritten classes of a plan, those that are alike together.  What only reads a tensor that is computed again is
    none: nothing about it is another program but where the tensor comes from (`checkpoints.computed_again`).
    """
    egraph, steps = joint.egraph, {s.node: s for s in joint.derivation.steps}
    kind_of: dict[str, Kind] = {t: kind for kind, classes in kinds(egraph).items() for t in classes}
    found: dict[object, list[Rewriting]] = {}
    for op in plan.graph.operators:
        t = op.output.tensor
        if op.name in steps and (steps[op.name].book or steps[op.name].rule != DEFINE):
            rules, place = _proof(joint.derivation, egraph, op.name)
            used = {rule for rule, _ in rules}
            if used <= {AGAIN, EQUAL, OFFLOAD} and used & {AGAIN, OFFLOAD}:
                continue
            one = Rewriting(t, rules, place, op.name, steps[op.name].facts)
            position = [n.name for n in egraph.nodes[t]].index(op.name)
            found.setdefault((kind_of.get(t, ()), position), []).append(one)
    return [tuple(alike) for alike in found.values()]


def _proof(derivation: Derivation, egraph: EGraph, node: str) -> tuple[tuple[tuple[str, str], ...], tuple[str, ...]]:
    """Rules that prove an e-node, first to last, with their libraries; the user's operators that they rest on."""
    steps, place = {s.node: s for s in derivation.steps}, dict[str, None]()
    rules = dict[tuple[str, str], None]()

    def visit(name: str) -> None:
        step = steps.get(name)
        if step is None:
            place[name] = None
            return
        for part in step.place:
            visit(part)
        if step.book or step.rule != DEFINE:
            rules[step.rule, step.book or derivation.library] = None

    visit(node)
    order = {op.name: i for i, op in enumerate(egraph.base.operators)}
    return tuple(rules), tuple(sorted(place, key=order.__getitem__))


def gains(plan: Plan, cost: Fraction, clock: Clock) -> Iterator[Gain]:
    """Every group of rewritings with what it gains over the plan, which costs `cost` seconds."""
    if plan.joint is None:
        return
    egraph = plan.joint.egraph
    writers = {op.output.tensor: op.name for op in plan.graph.operators}
    for alike in rewritings(plan.joint, plan):
        undone: dict[str, str | None] = {t: writers.get(t) for t in egraph.nodes}
        undone.update({r.tensor: egraph.nodes[r.tensor][0].name for r in alike})
        gain = None
        if not clock.over():
            graph = egraph.graph(egraph.close_modes(undone))
            planning = build(graph, plan.machine, space(plan.space), plan.memory_limit)
            search = solve if plan.memory_limit is None else relax_resources
            answer = search(planning.problem, clock=clock, brought=simple_plans(planning))
            if answer.status is Status.OPTIMAL and answer.cost is not None:
                gain = Fraction(answer.cost, planning.problem.scale) - cost
        yield Gain(alike, gain)


def _time(gain: Fraction) -> str:
    return ("-" if gain < 0 else "") + seconds_text(abs(gain.numerator), gain.denominator)


def _statement(rule: str, library: str) -> str:
    """What a rule says, or whose it is: text of rules of libraries is that of `rules show`."""
    return STATEMENTS[rule] if library in LIBRARIES else f"of library {library[:12]}"


def lines(found: list[Gain]) -> list[str]:
    """For people."""
    out = []
    for g in found:
        first, more = g.rewritings[0], len(g.rewritings) - 1
        gained = "not known" if g.gain is None else _time(g.gain)
        said = "; ".join(f"{rule}: {_statement(rule, library)}" for rule, library in first.rules)
        out.append(
            f"  {first.tensor} computed by {first.operator} instead of {', '.join(first.place)}"
            + (f", and {more} more alike" if more else "")
            + f"; gains {gained} ({said})"
        )
    return out or ["  nothing: no rule makes it faster"]
