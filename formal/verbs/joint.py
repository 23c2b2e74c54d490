"""`plan --joint`: algebra and placement optimised together, and what is said about it."""

from __future__ import annotations

from fractions import Fraction
from pathlib import Path
from typing import Final

from ...models.joint.problem import JointPlanning
from ...models.joint.rules import LIBRARY
from ...models.machine.error_bounds import scaled_words
from ...models.problem.unit import rounding_bound, rounding_text
from ...models.program.graph import Graph
from ...models.terminal.console import Watch, emit, say
from ...models.text import bytes_text, seconds_text
from ...proofs.plan.bundle import write_plan
from ...proofs.publishing.publisher import Publisher
from ..explain.summary import next_commands, short_flags
from ..plans.request import TENSORS, PlanRequest
from ..plans.time_limit import TimeLimit
from ..rewriting.joint.checkpoints import NOTHING, again_words, computed_again, has_choices, tensors_on_hosts
from ..rewriting.joint.gains import Gain, gains, lines
from ..rewriting.joint.job import Joint, has_hosts
from ..rewriting.joint.request import carry_out_jointly
from ..selection.answer import Answer
from .conflict import no_solution, publish_proof
from .results import asked_json, asked_lines, document, outcome, sentence

GAINS_S = 20.0
"""Seconds at most for planning programs again with a rewriting undone."""


def run_joint(
    publisher: Publisher, request: PlanRequest, output: Path, as_json: bool, clock: TimeLimit, notes: list[str]
) -> int:
    """Plan jointly, publish, and say what was found."""
    with Watch("planning jointly") as watch:
        made = carry_out_jointly(request, clock, watch, watch.count)
    graph, step, found, plan = made.graph, made.step, made.found, made.plan
    problem, answer = found.planning.problem, found.answer
    if plan is None:
        return no_solution(publish_proof(publisher, problem, answer, clock), problem, answer, as_json, clock)
    with Watch("checking") as watch, clock.phase("check"):
        published = publisher.publish(output, write_plan(None, plan), notify=watch.count)
    code, status = outcome(published, request.gap)
    not_kept = _not_kept(request, found, plan.graph)
    if request.recompute == TENSORS and found.planning.rounds and not has_choices(found.derivation):
        notes = [*notes, NOTHING]
    cost = Fraction(answer.cost or 0, problem.scale)
    gained: list[Gain] | None = None
    if published.checked:  # else the time is over
        with Watch("undoing rewritings"), clock.phase("remarks"):
            gained = list(gains(plan, cost, clock.rest(min(GAINS_S, 0.1 * (clock.clock.limit_s or GAINS_S)))))
    plain = None if found.plain.cost is None else Fraction(found.plain.cost, found.plain_scale)
    if as_json:
        data = document(status, published, problem, request.gap, clock)
        data |= {
            "plan": str(output),
            "identity": published.identity,
            "space": problem.space,
            "assumptions": list(problem.assumptions),
            "rounding_bound": rounding_bound(problem),
            "rewrites": None if gained is None else [r for g in gained for r in g.to_json()],
            "graphs": _programs_json(request, found),
            "as_it_is": None if plain is None else float(plain),
        }
        if request.memory is not None:
            data |= {"peak_bytes": peak(found.planning, answer), "limit_bytes": request.memory}
        data |= {} if step is None else {"loss": step.loss, "trained": len(step.trained)}
        data |= not_kept
        data |= {"notes": notes} if notes else {}
        emit({**data, **asked_json(answer)})
        return code
    machine = request.machine
    say(*_program_lines(graph, request, found, notes))
    if step is not None:
        say(f"{request.train}: {step.loss}; {len(step.trained)} weights are updated")
    for what, tensors in not_kept.items():
        say(f"{_NOT_KEPT[what]}: {again_words(tensors) or 'nothing'}")
    say(sentence(published, problem), *asked_lines(answer, problem))
    if plain is not None:
        say(*_plain_lines(found, plain, cost, published.checked))
    if request.memory is not None:
        say(_memory_line(found, request.memory))
    if bars := scaled_words(machine):
        say(bars)
    if gained is not None and not request.rewrites.none:
        say("rewritten:", *lines(gained))
    say(f"space {problem.space}; assumptions: {short_flags(problem.assumptions)}", rounding_text(problem))
    say(f"identity {published.identity}", f"wrote {output} ({published.size} bytes) in {clock.words()}")
    say(*published.advice, next_commands(str(output)))
    return code


_NOT_KEPT: Final = {"recomputed": "computed again in the backward pass", "offloaded": "offloaded to hosts"}


def _not_kept(request: PlanRequest, found: Joint, program: Graph) -> dict[str, list[str]]:
    """Tensors that a program computes again, and those that lie on hosts where the machine says how."""
    if request.recompute != TENSORS:
        return {}
    egraph, derivation = found.planning.egraph, found.derivation
    again = {"recomputed": list(computed_again(egraph, derivation, program))}
    away = {"offloaded": sorted(tensors_on_hosts(egraph, derivation, program))} if has_hosts(request.machine) else {}
    return again | away


def _memory_line(found: Joint, limit: int) -> str:
    """What the fullest device holds of its limit."""
    room = bytes_text(peak(found.planning, found.answer))
    return f"memory: {room} of {bytes_text(limit)} on the fullest device, by the rows of all programs"


def _programs_json(request: PlanRequest, found: Joint) -> dict[str, object]:
    """The equal programs that were looked at, and what was allowed."""
    return {
        "library": LIBRARY,
        "libraries": [{"identity": book.identity, "title": book.title} for book in request.rewrites.books],
        "rounds": found.planning.rounds,
        "most_rounds": request.rewrites.rounds,
        "most_operators_added": request.rewrites.nodes,
        "most_seconds": request.rewrites.seconds,
        "operators": len(found.planning.egraph.operators),
        "sha256": found.planning.egraph.sha256,
    }


def _program_lines(graph: Graph, request: PlanRequest, found: Joint, notes: list[str]) -> list[str]:
    """The same for a terminal."""
    machine, planning = request.machine, found.planning
    added = len(planning.egraph.operators) - len(graph.operators)
    out = [
        (
            f"{graph.name} on {machine.name} {'x'.join(map(str, machine.hierarchy))}: {len(graph.operators)} "
            f"operators, {added} equal ones added by rules {found.derivation.rules_name} in {planning.rounds} rounds, "
            f"{len(planning.problem.vertices)} decisions"
        ),
        *(f"note: {note}" for note in notes),
    ]
    if not planning.rounds:
        out.append("note: tables of all programs take longer than the time limit allows: the graph stays as it is")
    return out


def _plain_lines(found: Joint, plain: Fraction, cost: Fraction, checked: bool) -> list[str]:
    """What the graph as it is costs beside the joint plan."""
    proved = "proved optimal" if checked and found.plain.status.value == "optimal" else "best found"
    less = "" if plain <= cost or not cost else f": {float((plain - cost) / cost):.3%} more than jointly"
    out = [f"the graph as it is: {seconds_text(found.plain.cost or 0, found.plain_scale)}, {proved}{less}"]
    if plain < cost:
        out.append("note: that is less than jointly, whose rows count for all programs that a choice leaves open")
    return out


def peak(planning: JointPlanning, answer: Answer) -> int:
    """Bytes on the fullest device under the solution."""
    return planning.problem.peak_of(answer.solution or ())[0]
