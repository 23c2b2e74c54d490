"""`plan` of a program whose size is a range: what was planned, and how near every size is to its best plan."""

from __future__ import annotations

from pathlib import Path

from ...models.problem.claims import Verdict
from ...models.terminal.console import Exit, Watch, emit, say
from ...proofs.publishing.publisher import Publisher
from ..plans.request import PlanRequest
from ..plans.sizes import ENOUGH, SizedOutcome, SizeRange, SizesSearch
from ..plans.time_limit import TimeLimit
from .results import spent


def plan_sizes(
    publisher: Publisher,
    asked: SizeRange,
    request: PlanRequest,
    clock: TimeLimit,
    output: Path,
    as_json: bool,
    notes: list[str],
) -> int:
    """Plan, check, publish and say."""
    with Watch("planning"):
        found = SizesSearch(publisher, asked, request, clock, notes).search_all()
        clock.settle()
    with Watch("checking") as watch, clock.phase("check"):
        published = publisher.publish(output, found.data, notify=watch.count)
    proved = published.verdict is Verdict.PROVED
    code = Exit.DONE if proved and found.head.gap_share <= (request.gap or ENOUGH) else Exit.UNDECIDED
    if as_json:
        emit(
            {
                "status": "feasible",
                "cost": None,
                "lower_bound": None,
                "gap": float(found.head.gap_share) if proved else None,
                "sizes": {"name": asked.name, "sizes": list(found.head.sizes), "step": found.head.step},
                "taken": list(found.head.taken),
                "gaps": [float(gap) for gap in found.gaps],
                "assumptions": list(published.assumptions),
                "verdict": published.verdict.value,
                "identity": published.identity,
                **({"notes": notes} if notes else {}),
                **published.to_json(),
                **spent(clock, output),
            }
        )
        return code
    machine, graph = request.machine, request.graph
    named = f"{graph.name} on {machine.name} {'x'.join(map(str, machine.hierarchy))}"
    say(f"{named}, {found.head.words}: {len(graph.operators)} operators, {len(found.plans)} plans")
    say(*(f"note: {note}" for note in notes))
    say(*(f"  {line}" for line in class_lines(found)))
    gap = f"{float(found.head.gap_share):.4%}"
    if proved:
        say(f"at every size the placements that are taken are within {gap} of the best, proved")
    else:
        say(f"the checker says {published.verdict.value}: {published.reason}")
    say(f"identity {published.identity}")
    say(f"wrote {output} ({published.size} bytes) in {clock.words()}", *published.advice)
    return code


def class_lines(found: SizedOutcome) -> list[str]:
    """The sizes that have the placements of one plan, and how near they are to the best at least."""
    head = found.head
    runs = [(size, size, i, found.own[i]) for i, size in enumerate(head.sizes[:1])]
    for i, number in enumerate(head.taken):
        low, high = head.sizes[i : i + 2]
        between = [(low + head.step, high - head.step, number, found.gaps[i])] if high - low > head.step else []
        for one in (*between, (high, high, i + 1, found.own[i + 1])):
            first, _, plan, gap = runs[-1]
            if one[2] == plan:
                runs[-1] = first, one[1], plan, max(gap, one[3])
            else:
                runs.append(one)
    return [
        f"{head.name} = {first}{f'..{last}' if last > first else ''}: placements of {head.name} = {head.sizes[plan]}, "
        f"within {float(gap):.4%} of the best"
        for first, last, plan, gap in runs
    ]
