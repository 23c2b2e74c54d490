"""Makes the program of step number n out of that of the first: Adam divides by 1 - beta^t, and t counts steps.

    adam_update, adamw_update    attribute `step` := step + n - 1

Nothing else of a graph depends on the number of a step.  Adafactor's rates do, but stand in its operators as numbers of
one step that cannot be told apart from others: such a graph is refused.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Final

from ...models.program.graph import Graph
from ...models.text import InputError
from .program import Program

COUNTING: Final = ("adam_update", "adamw_update")
"""Functions whose attribute `step` is the number of the step."""


def at_step(graph: Graph, number: int) -> Graph:
    """The graph of step `number`, from 1; the graph itself where its operators do not count.

    >>> from ...models.sources.training import training_step
    >>> from ...models.sources.zoo import build
    >>> third = at_step(training_step(build("mlp-unity"), "adam"), 3)
    >>> third.operator("fc1.weight.next").attribute("step", 1)
    3
    """
    if number == 1 or not any(op.function in COUNTING for op in graph.operators):
        return graph
    operators = []
    for op in graph.operators:
        if op.function in COUNTING:
            first = op.attribute("step", 1)
            counted = {**dict(op.attributes), "step": (first if isinstance(first, int) else 1) + number - 1}
            op = replace(op, attributes=tuple(sorted(counted.items())))
        operators.append(op)
    return replace(graph, operators=tuple(operators))


def program_at(program: Program, number: int) -> Program:
    """The program whose operators are those of step `number`."""
    graph = at_step(program.graph, number)
    return program if graph is program.graph else replace(program, graph=graph)


def check_trains(graph: Graph, place: str) -> None:
    """Raise `InputError` unless steps of the graph can follow each other.  `place`: the plan's file."""
    if not graph.state:
        raise InputError(
            f"{place}: --steps needs a training step, and {graph.name!r} has no next values of parameters; "
            f"plan it with --train"
        )
    if any(".adafactor_" in name for name, _ in graph.state):
        raise InputError(
            f"{place}: --steps needs an optimizer whose steps differ by data alone, and Adafactor's rates in this plan "
            f"are the numbers of one step; plan with --train adam, adamw, sgd, lion, muon, rmsprop or adagrad"
        )
