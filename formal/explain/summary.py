"""A plan on one screen: its parallelism in words, what its step is spent on, and what fills its memory.

    time      of vertex v: its entry c_v, under the kind of its operator;  of edges: resharding.  Shares of the step
    memory    usages that hold at the fullest step, by what their tensor is: weights, optimizer states, gradients
              (what the backward pass computes), activations (what the forward pass computed), operands received
    flags     assumptions without what they list: `check` names every operator

Nothing here decides anything; `shardproof explain` says it operator by operator.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from fractions import Fraction
from shlex import quote
from typing import Final

from ...models.cost.selection import DecisionKind, Planning
from ...models.program.graph import Graph, Role
from ...models.program.operators import NodeKind
from ...models.sources.training import TrainingStep
from ...models.text import bytes_text
from ..plans.report import label, pattern
from .parallelism import parallelism_of, render_parallelism
from .stored_state import stored_state

KINDS: Final[Mapping[NodeKind, str]] = {
    NodeKind.CONTRACT: "products",
    NodeKind.GROUPED: "products",
    NodeKind.ATTENTION: "attention",
    NodeKind.OPAQUE: "functions of the user",
}
"""Kinds of operators whose time is said apart; all others are \"other operators\"."""
OTHER: Final = "other operators"
MOVING: Final = "communication"
"""Reductions and reshardings together; `explain` says them apart."""
MOST: Final = 3
"""Groups of operators that are named as those that take most."""
LEAST: Final = Fraction(1, 200)
"""Share below which a part is not said."""

_LISTED: Final = re.compile(r"\((\d+): [^()]*\)")


def short_flags(flags: Iterable[str]) -> str:
    """Assumptions, with the number of operators that one is about in place of their names.

    >>> short_flags(["even-splits", "roofline-work(2: add mul)", "measured-collectives(gpus)"])
    'even-splits, roofline-work(2), measured-collectives(gpus)'
    """
    return ", ".join(_LISTED.sub(r"(\1)", flag) for flag in flags)


def parallelism_line(planning: Planning, x: tuple[int, ...]) -> list[str]:
    """The parallelism of every level and how state is kept, in a line; none without products and levels."""
    words = render_parallelism(parallelism_of(planning, x), stored_state(planning, x))
    return [words] if words else []


def time_line(planning: Planning, x: Sequence[int]) -> str:
    """What the step is spent on, and the groups of repeated operators that take most.

    >>> from ...models.layout.placement import space
    >>> from ...models.machine.machine import load_machine
    >>> from ...models.cost.selection import build
    >>> from ...models.sources.zoo import build as model
    >>> planning = build(model("mlp-unity", batch=8), load_machine("localhost:2"), space("complete"))
    >>> time_line(planning, [0] * len(planning.decisions))
    'time: products 98.1 %, other operators 1.91 %; most in fc{1..2} (98.1 %), relu1 (1.91 %)'
    """
    problem, graph = planning.problem, planning.graph
    spent: dict[str, int] = {}
    alike: dict[str, tuple[int, list[str]]] = {}
    for decision, vertex, choice in zip(planning.decisions, problem.vertices, x, strict=True):
        time = int(vertex.cost[choice])
        if decision.kind is DecisionKind.COPY:
            spent[MOVING] = spent.get(MOVING, 0) + time
            continue
        kind = KINDS.get(graph.operator(decision.name).kind, OTHER)
        spent[kind] = spent.get(kind, 0) + time
        total, names = alike.get(pattern(decision.name), (0, []))
        alike[pattern(decision.name)] = total + time, [*names, decision.name]
    whole = problem.cost_of(tuple(x))
    spent[MOVING] = spent.get(MOVING, 0) + whole - problem.constant - sum(spent.values())
    if whole <= 0:
        return "time: nothing takes any"
    parts = sorted(spent.items(), key=lambda p: -p[1])
    most = sorted(alike.values(), key=lambda p: -p[0])[:MOST]
    said = ", ".join(f"{kind} {_share(t, whole)}" for kind, t in parts if Fraction(t, whole) >= LEAST)
    named = ", ".join(f"{label(names)} ({_share(t, whole)})" for t, names in most if Fraction(t, whole) >= LEAST)
    return f"time: {said}" + (f"; most in {named}" if named else "")


def _share(part: int, whole: int) -> str:
    return f"{100 * part / whole:.3g} %"


def memory_parts(planning: Planning, x: Sequence[int], step: TrainingStep | None) -> dict[str, int]:
    """Bytes that rows count at the fullest step, by what they hold, the largest first; empty without a limit."""
    problem = planning.problem
    if problem.limit is None:
        return {}
    _, at = problem.peak_of(tuple(x))
    kinds = _kinds(planning.graph, step)
    found: dict[str, int] = {}
    for u in problem.usages:
        if u.start <= at < u.end:
            name = u.name.removesuffix(" as written")
            kind = "operands received" if name.startswith("operands of ") else kinds.get(name, "activations")
            found[kind] = found.get(kind, 0) + int(u.amount[x[u.vertex]])
    return dict(sorted(found.items(), key=lambda p: (-p[1], p[0])))


def _kinds(graph: Graph, step: TrainingStep | None) -> dict[str, str]:
    """Tensor -> what it is, of all but activations."""
    trained = {w for w, _ in step.trained} if step is not None else set[str]()
    states = {p for p, _ in graph.state} - trained
    found = {t.name: "weights" for t in graph.tensors if t.role is Role.PARAMETER}
    found |= {t.name: "inputs" for t in graph.tensors if t.role is Role.INPUT}
    found |= dict.fromkeys(states, "optimizer states")
    if step is not None:
        behind = zip(graph.operators, step.passes, strict=False) if len(step.passes) == len(graph.operators) else ()
        found |= {op.output.tensor: "gradients" for op, (phase, _) in behind if phase != "F"}
    return found


def memory_words(parts: Mapping[str, int]) -> str:
    """Such as `: weights 1 GiB, activations 512 MiB`; empty without parts."""
    whole = sum(parts.values())
    said = ", ".join(f"{kind} {bytes_text(n)}" for kind, n in parts.items() if whole and Fraction(n, whole) >= LEAST)
    return f": {said}" if said else ""


def next_commands(file: str) -> str:
    """What is useful to do with a plan file, as a shell takes it.

    >>> next_commands("my plan.spz").split("; ")[1]
    "shardproof report 'my plan.spz' -o 'my plan.html'"
    """
    page = quote(file.removesuffix(".spz") + ".html")
    plan = quote(file)
    return f"next: shardproof explain {plan}; shardproof report {plan} -o {page}; shardproof check {plan}"
