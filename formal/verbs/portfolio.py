"""`plan` with several freedoms at once: what each search found, the best of them, and what was left out."""

from __future__ import annotations

from fractions import Fraction
from pathlib import Path

from ...models.machine.error_bounds import scaled_words
from ...models.terminal.console import Exit, Watch, emit, say
from ...models.text import seconds_text
from ...proofs.publishing.publisher import Among, Published, Publisher
from ..plans.portfolio.freedoms import Freedoms
from ..plans.portfolio.search import Best, Candidate, Searches
from ..plans.request import PlanRequest
from ..plans.time_limit import TimeLimit
from .results import outcome, spent


def plan_portfolio(
    publisher: Publisher,
    request: PlanRequest,
    freedoms: Freedoms,
    clock: TimeLimit,
    output: Path,
    as_json: bool,
    notes: list[str],
) -> int:
    """Search all, check, publish and say."""
    with Watch("planning") as watch:
        best = Searches(
            request, freedoms, clock, watch, watch.count, lambda words: watch.update(words, None, None)
        ).search_all()
    data, taken = best.data(), best.best_candidate
    if data is None or taken is None:
        return _nothing(best, as_json)
    with Watch("checking") as watch, clock.phase("check"):
        published = publisher.publish(output, data, notify=watch.count)
    code, status = outcome(published, request.gap)
    if as_json:
        emit(
            {
                **_document(best, published, status, taken.scale),
                **({"notes": notes} if notes else {}),
                **spent(clock, output),
            }
        )
        return code
    machine = request.machine
    named = f"{best.graph.name} on {machine.name} {'x'.join(map(str, machine.hierarchy))}"
    several = len(best.candidates) > 1
    say(f"{named}: {f'the best of {len(best.candidates)} plans' if several else 'one plan'}")
    among = zip(plans_among(best, published), gains(best), strict=True) if several else ()
    say(*(f"note: {note}" for note in notes), *(f"  {one.words}{gain}" for one, gain in among))
    say(*(f"left out: {x.part}: {x.why}" for x in best.left_out))
    say(_sentence(published, taken.scale, several))
    if bars := scaled_words(machine):
        say(bars)
    say(f"identity {published.identity}")
    say(f"wrote {output} ({published.size} bytes) in {clock.words()}", *published.advice)
    return code


def plans_among(best: Best, published: Published) -> tuple[Among, ...]:
    """Each of several plans: as the checker says, or, where the limit was over before its verdict, as the search does,
    which has no bounds then.
    """
    if published.checked or len(best.candidates) == 1:
        return published.among
    return tuple(Among(c.part, c.step, Fraction(0), c is best.best_candidate) for c in best.candidates)


def gains(best: Best) -> tuple[str, ...]:
    """What each plan gains over the one of placements alone, to a tenth of a percent; nothing where there is none."""
    base = next((c.step for c in best.candidates if c.alone), None)
    if not base:
        return ("",) * len(best.candidates)

    def words(candidate: Candidate) -> str:
        gain = float(1 - candidate.step / base)
        return f", {gain:.1%} less than placements alone" if gain >= 0.0005 else ", no gain"

    return tuple("" if c.alone else words(c) for c in best.candidates)


def _nothing(best: Best, as_json: bool) -> int:
    if as_json:
        left_out = [[x.part, x.why] for x in best.left_out]
        emit({"status": "unknown", "cost": None, "lower_bound": None, "left_out": left_out})
    else:
        say(*(f"{x.part}: {x.why}" for x in best.left_out))
        say("no plan was found; give it more time with --time-limit, or more --memory")
    return Exit.UNDECIDED


def _document(best: Best, published: Published, status: str, scale: int) -> dict[str, object]:
    cost, bound = published.cost, published.lower_bound
    return {
        "status": status,
        "cost": cost,
        "lower_bound": bound,
        "scale": scale,
        "gap": None if cost is None or bound is None else 1 - bound / cost if cost else 0.0,
        "among": [one.to_json() for one in plans_among(best, published)],
        "left_out": [[x.part, x.why] for x in best.left_out],
        "assumptions": list(published.assumptions),
        "verdict": published.verdict.value,
        "identity": published.identity,
        **published.to_json(),
    }


def _sentence(published: Published, scale: int, several: bool) -> str:
    if published.cost is None:
        return f"the checker says {published.verdict.value}: {published.reason}"
    step = seconds_text(published.cost, scale)
    if published.lower_bound is None:
        return f"step {step}; the checker says {published.verdict.value}: {published.reason}"
    gap = 1 - published.lower_bound / published.cost if published.cost else 0.0
    bound = seconds_text(published.lower_bound, scale)
    if not several:
        return f"step {step}; over its space between {bound} and {step} (gap {gap:.2%})"
    beyond = "plans that need several of them at once are not bounded"
    return f"step {step}; no plan of these searches takes less than {bound} (gap {gap:.2%}); {beyond}"
