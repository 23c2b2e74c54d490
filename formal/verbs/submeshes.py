"""`plan --submeshes`, and `explain` of its plans: branches beside each other on parts of the machine."""

from __future__ import annotations

from pathlib import Path

from ...models.problem.unit import rounding_bound, rounding_text
from ...models.terminal.console import Watch, emit, say
from ...models.text import seconds_text
from ...proofs.publishing.publisher import Publisher
from ...proofs.views.file import write_submesh_plan
from ..explain.views import submesh_json_of, submesh_lines_of
from ..plans.request import PlanRequest
from ..plans.submeshes.request import carry_out_on_submeshes
from ..plans.time_limit import TimeLimit
from .conflict import no_solution, publish_proof
from .results import asked_json, document, outcome, sentence


def run_submeshes(
    publisher: Publisher, request: PlanRequest, output: Path, as_json: bool, clock: TimeLimit, notes: list[str]
) -> int:
    """Plan with submeshes, publish, and say what was found."""
    with Watch("planning with submeshes") as watch:
        made = carry_out_on_submeshes(request, clock, watch, watch.count)
    graph, found, certificate = made.graph, made.found, made.certificate
    problem, answer = found.planning.problem, found.answer
    if certificate is None:
        return no_solution(publish_proof(publisher, problem, answer, clock), problem, answer, as_json, clock)
    with Watch("checking") as watch, clock.phase("check"):
        published = publisher.publish(output, write_submesh_plan(None, certificate), notify=watch.count)
    code, status = outcome(published, request.gap)
    plain, scale = found.plain, problem.scale
    if as_json:
        data = document(status, published, problem, request.gap, clock)
        data |= {
            "plan": str(output),
            "identity": published.identity,
            "space": problem.space,
            "assumptions": list(problem.assumptions),
            "rounding_bound": rounding_bound(problem),
            "branches": submesh_json_of(certificate),
            "whole_machine": None if plain.cost is None else plain.cost / scale,
            "whole_machine_lower_bound": None if plain.lower_bound is None else plain.lower_bound / scale,
        }
        data |= {} if made.step is None else {"loss": made.step.loss, "trained": len(made.step.trained)}
        data |= {"notes": notes} if notes else {}
        emit({**data, **asked_json(answer)})
        return code
    machine = request.machine
    regions = found.planning.regions
    divisions = sum(len(r.divisions) for r in regions)
    say(
        f"{graph.name} on {machine.name} {'x'.join(map(str, machine.hierarchy))}: {len(graph.operators)} operators, "
        f"regions: {len(regions)}, divisions of the machine: {divisions}, decisions: {len(problem.vertices)}",
        *(f"note: {note}" for note in notes),
    )
    if made.step is not None:
        say(f"{request.train}: {made.step.loss}; {len(made.step.trained)} weights are updated")
    say(sentence(published, problem), *submesh_lines_of(certificate))
    if plain.cost is not None and answer.cost is not None:
        proved = "proved optimal" if published.checked and plain.status.value == "optimal" else "best found"
        more = f": {plain.cost / answer.cost - 1:.3%} more than with submeshes" if plain.cost > answer.cost else ""
        say(f"everything on the whole machine: {seconds_text(plain.cost, scale)}, {proved}{more}")
    say(f"space {problem.space}; assumptions: {', '.join(problem.assumptions)}")
    say(rounding_text(problem))
    say(f"identity {published.identity}")
    say(f"wrote {output} ({published.size} bytes) in {clock.words()}", *published.advice)
    return code
