"""The passes of a program that rules made of a training step, so that it can be cut into stages as the step can.

    operator that the step has   its pass and position there
    F    what depends on no gradient and something of F reads, or nobody; at the last position of its operands
    B    what depends on a gradient, or is read by B alone; where the forward operator is that reads its forward operand
    U    what writes a next value, or depends on what U writes

Positions guide where cuts are looked for; whoever checks a pipeline finds units in the graph alone.
"""

from __future__ import annotations

from dataclasses import replace

from ....models.program.graph import Graph
from ....models.sources.training import TrainingStep

Pass = tuple[str, int]


def derived_step(step: TrainingStep, graph: Graph) -> TrainingStep:
    """The training step whose program is `graph`, which rules made of that of `step`."""
    return replace(step, graph=graph, passes=passes_of(step, graph))


def passes_of(step: TrainingStep, graph: Graph) -> tuple[Pass, ...]:
    """Of every operator of `graph`.

    >>> from ....models.sources.training import build_step
    >>> from ....models.sources.zoo import build
    >>> step = build_step(build("bert-tiny"), "sgd")
    >>> passes_of(step, step.graph) == step.passes
    True
    """
    known = {op.name: p for op, p in zip(step.graph.operators, step.passes, strict=True)}
    readers, writer = graph.readers(), graph.writer()
    renewed = {value for _, value in graph.state}
    found: list[Pass] = [known.get(op.name, ("", -1)) for op in graph.operators]
    for i in reversed(range(len(graph.operators))):  # what the backward pass alone reads is its own
        op = graph.operators[i]
        if op.name not in known:
            ends = {found[r][0] for r, _ in readers[op.output.tensor]}
            found[i] = ("U" if op.output.tensor in renewed else "B" if ends and ends <= {"B", "U"} else "F"), -1
    for i, op in enumerate(graph.operators):
        if op.name in known:
            continue
        made = [found[writer[a.tensor]] for a in op.inputs if a.tensor in writer]
        phase = max([found[i][0], *(p for p, _ in made)], key="FBU".index)
        forward = [place for p, place in made if p == "F"]
        if phase == "F":
            found[i] = "F", max(forward, default=0)
        elif phase == "U":
            found[i] = "U", -1
        else:
            first = max(forward, default=0)
            last = min((place for p, place in made if p == "B"), default=first)
            near = [found[r] for a in op.inputs for r, _ in readers[a.tensor]]
            places = [place for p, place in near if p == "F" and first < place <= last]
            found[i] = "B", min(places, default=max(first, last))
    return tuple(found)
