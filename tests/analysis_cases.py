"""Programs whose communication is analysed against the clock: shared by the test and the benchmark."""

from __future__ import annotations

import time

from shardproof.formal.plans.schedules import propagate
from shardproof.formal.plans.strategy import Rule, Strategy
from shardproof.models.communication import choices as placed
from shardproof.models.communication.choices import Choices, copy_layout, input_layout, output_layout
from shardproof.models.communication.resharding import analyse
from shardproof.models.layout import layout as tables
from shardproof.models.machine.machine import load_machine
from shardproof.models.program.graph import Graph
from shardproof.models.sources.numpy.program import ArraySpec
from shardproof.models.sources.numpy.trace import trace
from shardproof.models.sources.zoo import array_programs as programs

PROGRAMS = {
    "matmul, sum split": (programs.matmul, {}, "matmul", "k"),
    "softmax, rows split": (programs.softmax, {"x": (8, 4, 8, 4096)}, "row_max", "i3"),
    "attention, sequence split": (programs.attention, {"x": (8, 4096, 1024)}, "q", "i"),
    "jacobi": (programs.jacobi, {}, "vertical", "i0"),
    "convolutions": (programs.convolutions, {"x": (8, 3, 4096, 224)}, "einsum", "y"),
}


def milliseconds_per_operator(graph: Graph, hierarchy: tuple[int, ...], choices: Choices) -> float:
    """Index sets of every operand, class and totals of every resharding; nothing remembered from before."""
    placed._operand.cache_clear()
    tables._axis_block.cache_clear()
    placements, copies, readers = dict(choices.operators), dict(choices.copies), graph.readers()
    start = time.process_time()
    for tensor in graph.tensors:
        writer = next((op for op in graph.operators if op.output.tensor == tensor.name), None)
        at = None if writer is None else output_layout(writer, graph, placements[writer.name], hierarchy)
        if tensor.name in copies:
            rest = copy_layout(tensor.name, graph, copies[tensor.name], hierarchy)
            if at is not None:
                analyse(at, rest)
            at = rest
        for i, position in readers[tensor.name]:
            wanted = input_layout(graph.operators[i], position, graph, placements[graph.operators[i].name], hierarchy)
            if at is not None:
                analyse(at, wanted)
    return 1e3 * (time.process_time() - start) / len(graph.operators)


def scheduled(name: str, ranks: int) -> tuple[Graph, tuple[int, ...], Choices]:
    """A program with one axis split over all ranks, carried to all operators."""
    program, shapes, operator, axis = PROGRAMS[name]
    traced = trace(program, "p", {n: ArraySpec(s) for n, s in shapes.items()})
    machine = load_machine(f"localhost:{ranks}")
    choices = propagate(traced.graph, machine, Strategy((Rule(operator, ((axis, (("0", ranks),)),)),))).choices
    return traced.graph, machine.hierarchy, choices
