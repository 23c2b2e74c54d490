"""Writes a shop for CP-SAT (OR-Tools): intervals that do not overlap, memory as a cumulative resource."""

from __future__ import annotations

from ...selection.model.clock import STEPS, Allowance
from .question import Question, Reply


def solve_cp_sat(asked: Question, given: Allowance, threads: int) -> Reply:
    """Ask CP-SAT for `seconds`.  Raises `ModuleNotFoundError` when OR-Tools is not installed."""
    from ortools.sat.python import cp_model

    model = cp_model.CpModel()
    most, n = asked.most, len(asked.times)
    starts = [model.new_int_var(asked.head[t], most - asked.tail[t] - asked.times[t], f"s{t}") for t in range(n)]
    boxes = [model.new_fixed_size_interval_var(s, asked.times[t], f"i{t}") for t, s in enumerate(starts)]
    makespan = model.new_int_var(0, most, "makespan")
    for t, s in enumerate(starts):
        model.add(makespan >= s + asked.times[t] + asked.tail[t])
    for a, b, lag in asked.links:
        model.add(starts[b] >= starts[a] + asked.times[a] + lag)
    for tasks in asked.streams:
        model.add_no_overlap([boxes[t] for t in tasks])
    kept: list[list[object]] = [[] for _ in asked.limits]
    demands: list[list[int]] = [[] for _ in asked.limits]
    for k, h in enumerate(asked.held):
        begin = model.new_constant(0) if h.first is None else starts[h.first]
        end = model.new_int_var(0, most + 1, f"e{k}")
        model.add(end >= begin)
        for t in h.last:
            model.add(end >= starts[t] + asked.times[t])
        if not h.last:
            model.add(end == most + 1)
        size = model.new_int_var(0, most + 1, f"d{k}")
        kept[h.store].append(model.new_interval_var(begin, size, end, f"h{k}"))
        demands[h.store].append(h.amount)
    for d, limit in enumerate(asked.limits):
        model.add_cumulative(kept[d], demands[d], limit)
    model.minimize(makespan)
    solver = cp_model.CpSolver()
    if given.seconds is not None:
        solver.parameters.max_time_in_seconds = given.seconds
    if given.steps is not None:
        solver.parameters.max_deterministic_time = given.steps / STEPS
    solver.parameters.num_workers = threads if given.steps is None else 1
    status = solver.solve(model)
    says = solver.status_name(status)
    if status not in (cp_model.OPTIMAL, cp_model.FEASIBLE):
        return Reply(None, says)
    return Reply([int(solver.value(s)) for s in starts], says, round(solver.best_objective_bound))
