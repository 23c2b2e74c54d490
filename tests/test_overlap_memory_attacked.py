"""What an overlapped plan holds, where a block is easily forgotten: parameters that are read once, next values that are
read again, results that nothing reads.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np
from test_overlap_memory import limited, small

from shardproof.formal.plans.overlap.tasks import tasks_of
from shardproof.models.cost.selection import Planning
from shardproof.models.sources.building.builder import Builder
from shardproof.verify.overlap.certificate import expected_tasks
from shardproof.verify.overlap.memory import Block, blocks, inescapable
from shardproof.verify.plan.used_entries import Entries


def test_a_parameter_of_one_reader_stays_to_the_end() -> None:
    found = _blocks(small())
    assert [(64 * 64 * 4, -1, ())] * 2 == [b for b in found if b[1] == -1 and not b[2]]


def test_a_next_value_that_is_read_again_and_a_result_that_nothing_reads_are_held() -> None:
    """`after` reads from the parameter's copy what `next` wrote; nothing reads `after`."""
    g = Builder("state", "float32")
    w, x = g.parameter("w", (64,)), g.input("x", (64,))
    new = g.map("next", "add", w, x, text="b, b -> b")
    after = g.map("after", "relu", new, text="b -> b")
    graph = replace(g.build(after), state=((w, new),)).check()
    found = _blocks(graph)
    assert (64 * 4, -1, ()) in found  # the parameter's copy
    assert sum(last == () for _, _, last in found) == 2  # and the result's
    assert all(last or first is not None for _, first, last in found)


def test_a_result_that_nothing_needs_is_held_while_it_is_written() -> None:
    g = Builder("idle")
    x = g.input("x", (64,))
    g.map("nobody", "relu", x, text="b -> b")
    found = _blocks(g.build(g.map("all", "relu", x, text="b -> b")).check())
    assert (64 * 4, 0, (0,)) in found


def test_an_operator_that_may_take_no_time_holds_nothing_in_every_order() -> None:
    """An interval of no length holds nothing: a row for it would make a bound that some order is below."""
    planning = limited(small(), "localhost:2", 1 << 40)
    instant = planning.operators["a"]
    vertex = planning.problem.vertices[instant]
    free = replace(vertex, cost=np.concatenate([[0], vertex.cost[1:]]).astype(np.int64))
    vertices = tuple(free if v == instant else old for v, old in enumerate(planning.problem.vertices))
    quick = replace(planning, problem=replace(planning.problem, vertices=vertices))
    at = {0}  # the step of "a", the first operator

    def steps(found: Planning) -> set[tuple[int, int, int]]:
        return {(u.vertex, u.start, u.end) for u in inescapable(Entries(found)) if set(range(u.start, u.end)) == at}

    assert instant in {v for v, _, _ in steps(planning)}
    assert instant not in {v for v, _, _ in steps(quick)}


def _blocks(graph) -> list[Block]:  # type: ignore[no-untyped-def]
    """Everything whole on both devices: the last choice is replication."""
    planning = limited(graph, "localhost:2", 1 << 40)
    entries = Entries(planning)
    x = tuple(
        next(
            c
            for c in range(planning.problem.domain_size(v))
            if d.placement(c).matrix
            == (*(((1,) * len(planning.machine.hierarchy),) * len(d.axes)), d.placement(c).matrix[-1])
        )
        for v, d in enumerate(planning.decisions)
    )
    found = blocks(entries, x, expected_tasks(entries, x, 1)[2])
    built = tasks_of(planning, x, 1).holdings
    assert found == sorted((h.amount, -1 if h.first is None else h.first, h.last) for h in built)
    return found
