"""Writes a shop in difference logic, for z3.

    s(t) >= head(t),   s(t) + time(t) + tail(t) <= C,   s(b) >= s(a) + time(a) + lag   for every link
    s(b) >= s(a) + time(a)  or  s(a) >= s(b) + time(b)                                 for every open pair
    sum of  if s(first) <= s(t) and some last task ends after s(t) then amount else 0   <=  limit,
                                                                    for every task t that takes memory

C is lowered below every schedule that is found, until there is none or the time is over.
"""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

from ...selection.model.clock import Allowance
from .question import Question, Reply

if TYPE_CHECKING:
    import z3


def solve_smt(asked: Question, given: Allowance) -> Reply:
    """Ask z3 within what is `given`; `Allowance.resources` of its own units."""
    import z3

    end = None if given.seconds is None else time.monotonic() + given.seconds
    resources = given.resources
    solver = z3.Solver(ctx=z3.Context())
    ctx = solver.ctx
    s = [z3.Int(f"s{t}", ctx) for t in range(len(asked.times))]
    for t, x in enumerate(s):
        solver.add(x >= asked.head[t])
    for a, b, lag in asked.links:
        solver.add(s[b] - s[a] >= asked.times[a] + lag)
    for a, b in asked.pairs:
        solver.add(z3.Or(s[b] - s[a] >= asked.times[a], s[a] - s[b] >= asked.times[b]))
    for t, store in asked.takers:
        terms = []
        for h in asked.held:
            if h.store != store:
                continue
            begun = [] if h.first in (None, t) else [s[h.first] <= s[t]]
            left = [z3.Or([s[x] + asked.times[x] > s[t] for x in h.last])] if h.last else []
            held = z3.And([*begun, *left]) if begun or left else z3.BoolVal(True, ctx)
            terms.append((held, h.amount))
        solver.add(z3.PbLe(terms, asked.limits[store]))
    makespan = asked.most + 1
    starts: list[int] | None = None
    while True:
        left_s = 1.0 if end is None else end - time.monotonic()
        if left_s <= 0 or (resources is not None and resources <= 0):
            return Reply(starts, "time is over")
        for t, x in enumerate(s):
            solver.add(x <= makespan - 1 - asked.tail[t] - asked.times[t])
        if end is not None:
            solver.set("timeout", max(1, int(left_s * 1000)))
        before = _spent(solver)
        if resources is not None:
            solver.set("rlimit", resources)
        said = solver.check()
        if resources is not None:
            resources -= _spent(solver) - before
        if said == z3.unsat:
            return Reply(starts, "unsat below" if starts else "unsat", makespan)
        if said != z3.sat:
            return Reply(starts, f"unknown ({solver.reason_unknown()})")
        model = solver.model()
        starts = [model.eval(x, model_completion=True).as_long() for x in s]
        makespan = max(x + asked.times[t] for t, x in enumerate(starts))


def _spent(solver: z3.Solver) -> int:
    """Units of resources so far."""
    found = solver.statistics()
    return int(found.get_key_value("rlimit count")) if "rlimit count" in found.keys() else 0  # noqa: SIM118
