"""This module holds `plan --overlap`: placements with redistributions beside operators, for people and as data."""

from __future__ import annotations

from bisect import bisect_left
from dataclasses import dataclass, replace
from fractions import Fraction
from pathlib import Path

import numpy as np

from ...models.cost.selection import Planning
from ...models.layout.placement import Space
from ...models.machine.machine import Machine
from ...models.problem.claims import Infeasible, Verdict
from ...models.program.graph import Graph
from ...models.terminal.console import Exit, Watch, emit, say
from ...models.text import bytes_text, seconds_text
from ...proofs.publishing.publisher import Published, Publisher
from ..overlap.planned import Planned
from ..overlap.search import Overlapped, Unfit, every_order, overlapped
from ..overlap.tasks import COMPUTE, LINKS
from ..planning.plan import default_space
from ..planning.time_limit import TimeLimit, plan_check_seconds, tables_in_time
from ..selection.tree.infeasible import least_use
from .conflict import conflict, conflict_lines
from .results import outcome

CHECK_SHARE = 0.3
"""Of the time limit, kept for the checker."""

SHOWN = 5
"""Redistributions that are printed, the most exposed first."""


@dataclass(frozen=True)
class Exposed:
    """A redistribution: its time, and how much of it runs while no operator does, in units of the problem; the operator
    that begins when it has ended, which waited for it.
    """

    name: str
    time: int
    exposed: int
    waiting: str


def exposures(planned: Planned) -> list[Exposed]:
    """Every redistribution of a schedule, the most exposed first."""
    tasks, starts, exposed = planned.problem.tasks, planned.found.starts, planned.exposed().tolist()
    computing = sorted((int(starts[k]), k) for k, t in enumerate(tasks) if t.streams == (COMPUTE,))
    out = []
    for k, t in enumerate(tasks):
        if t.streams == (LINKS,):
            after = bisect_left(computing, (int(starts[k]) + t.time, -1))
            waiting = tasks[computing[after][1]].name if after < len(computing) else ""
            out.append(Exposed(t.name, t.time * planned.quantum, exposed[k] * planned.quantum, waiting))
    return sorted(out, key=lambda e: (-e.exposed, e.name))


def plan_overlap(
    publisher: Publisher,
    graph: Graph,
    machine: Machine,
    where: Space | None,
    memory: int | None,
    gap: Fraction,
    clock: TimeLimit,
    output: Path,
    as_json: bool,
) -> int:
    """Plan, check, publish and say."""
    with Watch("planning") as watch:
        planning = tables_in_time(graph, machine, where, default_space(machine), memory, clock, watch.count)
        clock.hold_back(plan_check_seconds(planning, clock))
        with clock.phase("search"):
            limit = clock.clock.share(1 - CHECK_SHARE)
            found = overlapped(planning, limit, gap, lambda words: watch.update(words, None, None))
    if found is None:
        return _nothing(planning, as_json)
    with Watch("checking") as watch, clock.phase("check"):
        published = publisher.overlap(output, found.certificate(), watch.count)
    if isinstance(found, Unfit):
        return _infeasible(found, published, output, clock, as_json)
    code, status = outcome(published, gap)
    rows = exposures(found.best)
    if as_json:
        data = _document(found, rows, published, status)
        emit(
            {
                **data,
                "plan": str(output),
                "seconds": round(clock.elapsed_s, 3),
                "processor_seconds": round(clock.processor_s, 3),
                "phases": clock.rounded(),
                "work": clock.work,
            }
        )
        return code
    say(*_lines(found, rows, published))
    say(f"identity {published.identity}")
    say(f"wrote {output} ({published.size} bytes) in {clock.words()}", *published.advice)
    return code


def _nothing(planning: Planning, as_json: bool) -> int:
    """What is said where neither a plan nor a proof was found."""
    limit = planning.problem.limit
    if as_json:
        emit({"status": "unknown", "cost": None, "lower_bound": None})
    elif limit is None:
        say("nothing was found or proved in this time; raise --time-limit")
    else:
        rows = every_order(planning)
        need = int(least_use(rows, np.array(rows.events(), dtype=np.int64)).max())
        least = f"at least {bytes_text(need)} are held, so that something may fit"
        say(f"nothing was found or proved within {bytes_text(limit)}; whatever the order, {least}")
        say("raise --memory or --time-limit")
    return Exit.UNDECIDED


def _infeasible(found: Unfit, published: Published, output: Path, clock: TimeLimit, as_json: bool) -> int:
    """What is said where nothing fits in any order."""
    claim = found.least.claim
    if published.verdict is not Verdict.PROVED or not isinstance(claim, Infeasible):
        if as_json:
            emit({"status": "unknown", "cost": None, "lower_bound": None, **published.to_json()})
        else:
            say(f"the checker says {published.verdict.value}: {published.reason}", *published.advice)
        return Exit.UNDECIDED
    claim = replace(claim, least_limit=None)  # known of the rows, not of schedules
    if as_json:
        data = {"status": "infeasible", "cost": None, "lower_bound": None, "conflict": conflict(found.rows, claim)}
        more = {"verdict": published.verdict.value, "identity": published.identity, "plan": str(output)}
        emit(
            {
                **data,
                **more,
                "seconds": round(clock.elapsed_s, 3),
                "processor_seconds": round(clock.processor_s, 3),
                "phases": clock.rounded(),
                "work": clock.work,
            }
        )
        return Exit.INFEASIBLE
    graph = found.planning.graph
    say(f"{graph.name}: proved infeasible, whatever runs beside what and in whatever order")
    steps = [op.name for op in graph.operators]
    say(*("  " + line for line in conflict_lines(found.rows, claim, steps)))
    say(f"identity {published.identity}")
    say(f"wrote {output} ({published.size} bytes) in {clock.words()}", *published.advice)
    return Exit.INFEASIBLE


def _document(found: Overlapped, rows: list[Exposed], published: Published, status: str) -> dict[str, object]:
    scale, best = found.planning.problem.scale, found.best
    bound = found.lower_bound if published.lower_bound is None else published.lower_bound
    return {
        "status": status,
        "cost": best.makespan,
        "lower_bound": bound / scale if published.checked else None,
        "makespan": best.makespan / scale,
        "gap": None if not published.checked else 1 - bound / best.makespan if best.makespan else 0.0,
        "scale": scale,
        "schedule_lower_bound": best.found.lower_bound * best.quantum / scale,
        "operators": best.sums[0] / scale,
        "redistributions": best.sums[1] / scale,
        "hidden": sum(e.time - e.exposed for e in rows) / scale,
        "exposed": [[e.name, e.time / scale, e.exposed / scale, e.waiting] for e in rows if e.exposed],
        "weights": list(found.weights),
        "memory_limit": found.planning.problem.limit,
        "peak_memory": best.peak,
        "space": found.planning.space.name,
        "verdict": published.verdict.value,
        "identity": published.identity,
        **published.to_json(),
    }


def _lines(found: Overlapped, rows: list[Exposed], published: Published) -> list[str]:
    planning, best, scale = found.planning, found.best, found.planning.problem.scale
    machine = planning.machine
    shown, hidden = sum(e.exposed for e in rows), sum(e.time - e.exposed for e in rows)
    sizes, counted = "x".join(map(str, machine.hierarchy)), len(planning.graph.operators)
    named = f"{planning.graph.name} on {machine.name} {sizes}: {counted} operators"
    apart = f"{seconds_text(hidden, scale)} are hidden and {seconds_text(shown, scale)} exposed"
    both = [seconds_text(t, scale) for t in best.sums]
    lines = [
        f"{named}, {len(rows)} redistributions that take time",
        f"operators {both[0]}; redistributions {both[1]}, of which {apart}",
    ]
    lines += [
        f"  exposed {seconds_text(e.exposed, scale)} of {seconds_text(e.time, scale)}: {e.name}"
        + (f"; {e.waiting} waits" if e.waiting else "; nothing is left to run")
        for e in rows[:SHOWN]
        if e.exposed
    ]
    if best.peak is not None and planning.problem.limit is not None:
        limit = bytes_text(planning.problem.limit)
        lines.append(f"memory {bytes_text(best.peak)} at most, of {limit}, with what is fetched ahead")
    own = best.found.lower_bound * best.quantum
    lines.append(f"no schedule of these placements takes less than {seconds_text(own, scale)}")
    if published.lower_bound is None:
        return [*lines, f"the checker says {published.verdict.value}: {published.reason}"]
    gap = 1 - published.lower_bound / best.makespan if best.makespan else 0.0
    bound, step = (seconds_text(t, scale) for t in (published.lower_bound, best.makespan))
    return [*lines, f"time {step}; over all placements and schedules between {bound} and {step} (gap {gap:.2%})"]
