"""Finds all programs of a reduction system at once: the closed graph of reachable states.

States are numbered in order of discovery: breadth first from the start, per state the patterns in the order of
`patterns`, per pattern the collectives in the order of `Collective`.  The goal is not expanded.  Certificates list
potentials in this order, so it is part of their format.

    programs of length t    paths of length t from the start to the goal; counted by one vector per length  -> lengths()
    syntax-guided search    programs by increasing size, states from which the goal cannot be reached are pruned  ->
                            programs()
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import lru_cache

from ...models.collective_programs.collectives import (
    Collective,
    CollectiveCost,
    CollectiveError,
    Groups,
    State,
    apply,
    rows_of,
)
from ...models.collective_programs.programs import Form, Pattern, Program, ReductionSystem, Tree, patterns

MAX_STATES = 200_000


@dataclass(frozen=True)
class Edge:
    """`forms[pattern]` with `kind` leads to state `target`; `rows[g]` as in `LoweredStep`, for the groups of one
    copy.
    """

    pattern: int
    kind: Collective
    target: int
    rows: tuple[int, ...]


@dataclass(frozen=True)
class StateGraph:
    """`edges[s]` leave state s in order; `goal` is None if no program reaches it."""

    forms: tuple[Pattern, ...]
    states: tuple[State, ...]
    edges: tuple[tuple[Edge, ...], ...]
    goal: int | None

    @property
    def size(self) -> tuple[int, int, int]:
        """(states, edges, dead states)."""
        return len(self.states), sum(map(len, self.edges)), self.alive().count(False)

    def alive(self) -> list[bool]:
        """States from which the goal can be reached."""
        back: list[list[int]] = [[] for _ in self.states]
        for s, leaving in enumerate(self.edges):
            for e in leaving:
                back[e.target].append(s)
        out = [False] * len(self.states)
        todo = [] if self.goal is None else [self.goal]
        while todo:
            s = todo.pop()
            if not out[s]:
                out[s] = True
                todo.extend(back[s])
        return out

    def lengths(self) -> tuple[int, ...]:
        """Number of programs of length 0, 1, 2, ..

        >>> from shardproof.models.collective_programs.parallelism import ReductionRequest
        >>> explore(ReductionRequest((4, 16), ((4, 16),), (0,)).system()).lengths()
        (0, 1, 4, 20, 22)
        """
        if self.goal is None:
            return (0,)
        alive = self.alive()
        now, out = {0: 1}, []
        while now:
            out.append(now.pop(self.goal, 0))
            after: dict[int, int] = {}
            for s, ways in now.items():
                for e in self.edges[s]:
                    if alive[e.target]:
                        after[e.target] = after.get(e.target, 0) + ways
            now = after
            if len(out) > len(self.states) + 1:
                raise CollectiveError("the state graph has a cycle; this reading lets a step lose information")
        return tuple(out)

    def programs(self, longest: int | None = None) -> Iterator[Program]:
        """Programs by increasing size, in order of their instructions; at most `longest` steps."""
        if self.goal is None:
            return
        alive = self.alive()
        now: list[tuple[int, Program]] = [(0, ())]
        steps = 0
        while now and (longest is None or steps < longest):
            steps += 1
            after = []
            for s, program in now:
                for e in self.edges[s]:
                    longer = (*program, self.forms[e.pattern].instruction(e.kind))
                    if e.target == self.goal:
                        yield longer
                    elif alive[e.target]:
                        after.append((e.target, longer))
            now = after


def explore(system: ReductionSystem) -> StateGraph:
    """The closed graph; `CollectiveError` beyond `MAX_STATES` states.  Systems that differ only in their devices
    share one graph.
    """
    return _explore(system.tree, system.chunks, system.reading, system.wanted)


@lru_cache(maxsize=32)
def _explore(tree: Tree, chunks: int, reading: str, wanted: Groups) -> StateGraph:
    system = ReductionSystem(tree, (tuple(range(tree.positions)),), chunks, reading, wanted).check()
    rules, forms, goal_state = system.rules, patterns(tree, system.rules), system.goal()
    options = [
        (i, p.groups, kind, p.form is Form.MASTER)
        for i, p in enumerate(forms)
        for kind in rules.allowed_collectives(p.form is Form.MASTER)
    ]
    states = [system.start()]
    number = {states[0]: 0}
    edges: list[tuple[Edge, ...]] = []
    while len(edges) < len(states):
        state = states[len(edges)]
        leaving = []
        for i, groups, kind, master in options if state != goal_state else ():
            after = apply(state, groups, kind, rules, master)
            if after is None or after == state:
                continue
            target = number.setdefault(after, len(states))
            if target == len(states):
                states.append(after)
                if target >= MAX_STATES:
                    raise CollectiveError(
                        f"more than {MAX_STATES} states; collapse the hierarchy or choose a reading without Master"
                    )
            leaving.append(Edge(i, kind, target, rows_moved(state, after, groups, kind)))
        edges.append(tuple(leaving))
    return StateGraph(forms, tuple(states), tuple(edges), number.get(goal_state))


def rows_moved(before: State, after: State, groups: Groups, kind: Collective) -> tuple[int, ...]:
    """Rows of the first device of every group, before the step (AllGather: after)."""
    source = after if kind is Collective.ALL_GATHER else before
    return tuple(rows_of(source[g[0]]).bit_count() for g in groups)


def edge_costs(graph: StateGraph, system: ReductionSystem, cost: CollectiveCost) -> list[list[int]]:
    """Cost of every edge on the devices of `system`; equal steps are priced once."""
    known: dict[tuple[int, Collective, tuple[int, ...]], int] = {}
    out: list[list[int]] = []
    for s, leaving in enumerate(graph.edges):
        row = []
        for e in leaving:
            key = (e.pattern, e.kind, e.rows)
            if key not in known:
                step = system.lower(graph.forms[e.pattern].groups, e.kind, graph.states[s], graph.states[e.target])
                known[key] = cost.step_time(step)
                if known[key] < 0:
                    raise CollectiveError(
                        f"cost model {cost.name!r} gives a step the negative cost {known[key]}; costs must be at "
                        f"least 0"
                    )
            row.append(known[key])
        out.append(row)
    return out


def follow(graph: StateGraph, program: Program) -> Sequence[tuple[int, int]]:
    """(state, position of the edge in it) along a program.  Raises `CollectiveError` if it leaves the graph."""
    at, path = 0, []
    for number, instruction in enumerate(program):
        for k, e in enumerate(graph.edges[at]):
            if graph.forms[e.pattern].instruction(e.kind) == instruction:
                path.append((at, k))
                at = e.target
                break
        else:
            raise CollectiveError(f"step {number} {instruction}: does not apply there")
    return path
