"""`plan --overlap`: placements with reshardings beside operators, for people and as data."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np

from ...models.cost.selection import Planning
from ...models.problem.claims import Infeasible, Verdict
from ...models.terminal.console import Exit, Watch, emit, say
from ...models.text import bytes_text, seconds_text
from ...proofs.overlap.file import write_overlap
from ...proofs.publishing.publisher import Published, Publisher
from ..plans.overlap.explain import Exposed, exposures, host_copies_json, stream_lines
from ..plans.overlap.request import carry_out_overlapped
from ..plans.overlap.search import NothingFits, Overlapped, every_order
from ..plans.request import PlanRequest
from ..plans.time_limit import TimeLimit
from ..selection.tree.infeasible import least_use
from .conflict import conflict, conflict_lines
from .results import outcome, spent


def plan_overlap(publisher: Publisher, request: PlanRequest, clock: TimeLimit, output: Path, as_json: bool) -> int:
    """Plan, check, publish and say."""
    with Watch("planning") as watch:
        planning, found = carry_out_overlapped(
            request, clock, watch.count, lambda words: watch.update(words, None, None)
        )
    if found is None:
        return _nothing(planning, as_json)
    with Watch("checking") as watch, clock.phase("check"):
        published = publisher.publish(output, write_overlap(None, found.certificate()), notify=watch.count)
    if isinstance(found, NothingFits):
        return _infeasible(found, published, output, clock, as_json)
    code, status = outcome(published, request.gap)
    rows = tuple(exposures(found.best.problem, found.best.found.starts, found.best.quantum))
    if as_json:
        data = _document(found, rows, published, status)
        emit(
            {
                **data,
                **spent(clock, output),
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


def _infeasible(found: NothingFits, published: Published, output: Path, clock: TimeLimit, as_json: bool) -> int:
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
        more = {"verdict": published.verdict.value, "identity": published.identity}
        emit(
            {
                **data,
                **more,
                **spent(clock, output),
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


def _document(found: Overlapped, rows: tuple[Exposed, ...], published: Published, status: str) -> dict[str, object]:
    scale, best = found.planning.problem.scale, found.best
    bound = found.lower_bound if published.lower_bound is None else published.lower_bound
    return {
        "status": status,
        "cost": best.makespan,
        "lower_bound": bound if published.checked else None,
        "makespan": best.makespan / scale,
        "gap": None if not published.checked else 1 - bound / best.makespan if best.makespan else 0.0,
        "scale": scale,
        "schedule_lower_bound": best.found.lower_bound * best.quantum / scale,
        "operators": best.sums[0] / scale,
        "redistributions": best.sums[1] / scale,
        **host_copies_json(rows, scale),
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


def _lines(found: Overlapped, rows: tuple[Exposed, ...], published: Published) -> list[str]:
    planning, best, scale = found.planning, found.best, found.planning.problem.scale
    machine = planning.machine
    sizes, counted = "x".join(map(str, machine.hierarchy)), len(planning.graph.operators)
    named = f"{planning.graph.name} on {machine.name} {sizes}: {counted} operators"
    lines = [f"{named}, {len(rows)} reshardings that take time", *stream_lines(best.sums, rows, scale)]
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
