"""Plans of schedules that a user brings: a few are given, `schedules` carries them to the rest, nothing else is decided.

The plan holds the user's choices.  Its certificate says how far they are from the optimum: the solver's record where that holds whatever solution
is claimed, else its messages alone, else the bound of every vertex and edge on its own.
"""

from __future__ import annotations

from dataclasses import replace
from math import prod
from pathlib import Path

import numpy as np

from ..models.claims import Optimal, Status, WithinGap
from ..models.classes import COPY
from ..models.console import joined
from ..models.graph import Graph
from ..models.machine import Machine
from ..models.placement import Space, space
from ..models.problems import SelectionProblem
from ..models.selection import Notify, build
from ..proofs.certificates import Dual, Elimination, SelectionCertificate
from .plan import Planned, bundle, default_space
from .schedules import Propagated, propagate
from .selection.bounds import gather, row_costs, score
from .selection.clock import Progress
from .selection.network import Base, whole
from .selection.network import build as network_of
from .selection.solve import Answer, solve
from .strategy import ChoiceList, Strategy, StrategyError, load_strategy, resolve


def plan_strategy(
    graph: Graph, machine: Machine, strategy: Strategy, where: Space | None = None, memory_limit: int | None = None, *,
    time_limit_s: float | None = None, threads: int = 1, progress: Progress | None = None, notify: Notify | None = None,
) -> tuple[Planned, Propagated]:
    """The plan of a strategy.

    Raises `ScheduleConflict` or `StrategyError` for a strategy that contradicts itself or does not fit, `SpaceError` for a placement
    outside the space.  A strategy that exceeds the memory limit gives no plan.
    """
    carried = propagate(graph, machine, strategy)
    planning = build(graph, machine, where or _fitting(default_space(machine), graph, carried), memory_limit, notify)
    problem = planning.problem
    allowed = resolve(carried.strategy(machine), planning).allowed
    x = tuple(allowed[v][0] for v in range(len(problem.vertices)))
    best = solve(problem, time_limit_s=time_limit_s, progress=progress, threads=threads)
    if problem.limit is not None and problem.peak_of(x)[0] > problem.limit:
        return Planned(planning, Answer(Status.UNKNOWN, None, best.lower_bound, None, None, best.seconds), None), carried
    cost = problem.cost_of(x)
    certificate, bound = _certificate(problem, x, cost, best)
    answer = Answer(Status.OPTIMAL if bound >= cost else Status.FEASIBLE, certificate, bound, cost, x, best.seconds)
    return Planned(planning, answer, bundle(planning, answer)), carried


def _fitting(where: Space, graph: Graph, carried: Propagated) -> Space:
    """The default space, with uneven splits if a schedule has some."""
    extents = {op.name: {a.name: a.extent for a in op.axes} for op in graph.operators}
    items = [(p, extents[name]) for name, p in carried.choices.operators]
    items += [(p, {str(k): n for k, n in enumerate(graph.tensor(name).shape)}) for name, p in carried.choices.copies]
    uneven = any(extent[axis] % prod(row) for p, extent in items for axis, row in zip(p.axes, p.matrix, strict=False))
    return space(f"{where.name},uneven") if uneven else where


def _certificate(problem: SelectionProblem, x: tuple[int, ...], cost: int, best: Answer) -> tuple[SelectionCertificate, int]:
    """A certificate that claims `x`, and its bound.  Records that leave out what cannot beat the solver's own cost do not serve a dearer one."""
    found = best.certificate
    if found is not None and best.cost == cost and isinstance(found.claim, Optimal):
        return SelectionCertificate(found.problem_sha256, Optimal(x, cost), found.proof), cost
    if found is not None and isinstance(found.proof, Elimination) and found.proof.then is None and not found.proof.fine and isinstance(found.claim, Optimal):
        return SelectionCertificate(found.problem_sha256, WithinGap(x, cost, found.claim.cost), found.proof), found.claim.cost
    if found is not None and isinstance(found.proof, Dual):
        record = replace(found.proof, then=None, rounded=())  # its messages bound every solution; what follows only those that beat the solver's
        network = network_of(Base(problem, record.denominator), whole(problem))
        added, term = row_costs(network, record.multipliers)
        scored = score(network, *gather(network, record), added, term)
        if scored.bound is not None:
            bound = -(-scored.bound // scored.denominator)
            return SelectionCertificate(problem.sha256(), WithinGap(x, cost, bound), record), bound
    tables = [table.min() for table in problem.tables]
    bound = problem.constant + sum(int(v.cost.min()) for v in problem.vertices) + sum(int(tables[e.table]) for e in problem.edges)
    rows = [np.zeros(table.shape[0], dtype=np.int64) for table in problem.tables]
    columns = [np.zeros(table.shape[1], dtype=np.int64) for table in problem.tables]
    plain = Dual(tuple(rows[e.table] for e in problem.edges), tuple(columns[e.table] for e in problem.edges))
    return SelectionCertificate(problem.sha256(), WithinGap(x, cost, bound << problem.fine_bits), plain), bound << problem.fine_bits


def given_schedules(path: Path) -> Strategy:
    """A strategy file for a model.  Raises `StrategyError`."""
    found = load_strategy(path)
    if isinstance(found, ChoiceList):
        raise StrategyError(str(path), "is a list of choices, which belongs to a selection problem", 'write {"operator": {"axis": {"level": degree}}}')
    return found


def render_given(carried: Propagated, operators: int) -> str:
    """What became of the given schedules, in a few lines."""
    reached = {name for name, _ in carried.origin if not name.startswith(COPY)}
    idle = [n for n in carried.replicated if not n.startswith(COPY)]
    lines = [f"schedules given for {operators - len(reached | set(idle))} operators, carried to {len(reached)}; {len(idle)} are replicated"]
    if idle:
        lines.append("  replicated: " + ", ".join(idle[:8]) + (", .." if len(idle) > 8 else ""))
    lines += [f"  no room for axis {axis!r} of {name!r}, which {origin!r} splits" for name, axis, origin in carried.dropped[:8]]
    return joined(lines)
