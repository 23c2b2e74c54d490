"""`place --experts`: experts of a mixture on ranks, layer by layer, with the makespan and what none goes below."""

from __future__ import annotations

import json
from dataclasses import dataclass
from fractions import Fraction
from pathlib import Path
from typing import Final

from ...models.files.output import write_file
from ...models.problem.claims import Infeasible, Verdict
from ...models.schedules.experts import ExpertPlaces
from ...models.sources.loads import layers_of, read_counts
from ...models.terminal.console import Exit, Watch, emit, say
from ...models.text import InputError
from ...proofs.publishing.publisher import Publisher
from ...proofs.selection.file import write_certificate
from ..schedules.experts import SMALL, better_places, place_experts
from ..selection.model.clock import budget
from ..selection.solve import solve

WORK: Final = 10_000_000
"""Steps of work for the proof that nothing is better in one layer, about ten seconds of a processor."""


@dataclass(frozen=True)
class _Layer:
    """One layer: its name, the placement, and what the checker says; `given`: the makespan of the order as it is."""

    name: str
    places: ExpertPlaces
    makespan: Fraction
    bound: Fraction
    proved: bool
    given: Fraction | None


def place_all_experts(
    publisher: Publisher, file: Path, ranks: int, more: int, permuted: Path | None, as_json: bool
) -> Exit:
    """Place every layer, say it, and write the counts in their new order.  Raises `InputError`."""
    if permuted is not None and more:
        raise InputError("experts with copies are no order of experts: leave out --permuted, or --copies")
    with Watch("placing experts"):
        found = [
            _placed(publisher, name, counts, ranks, more) for name, counts in layers_of(read_counts(file), str(file))
        ]
    if permuted is not None:
        text = json.dumps([[x.places.counts[e] for rank in x.places.ranks for e in rank] for x in found])
        write_file(permuted, text.encode())
    code = Exit.DONE if all(x.proved for x in found) else Exit.UNDECIDED
    if as_json:
        emit({"ranks": ranks, "copies": more, "layers": [_document(x) for x in found]})
        return code
    for x in found:
        gap = "the least (proved)" if x.proved else f"no placement takes less than {_text(x.bound)}"
        order = "" if x.given is None else f", {_text(x.given)} in the order as it is"
        average = Fraction(sum(x.places.counts), ranks)
        fullest = f"{_text(x.makespan)} tokens on the fullest of {ranks} ranks (average {_text(average)})"
        say(f"{x.name}: {fullest}, {gap}{order}")
        say(*(f"  rank {r}: {', '.join(map(str, held))}" for r, held in enumerate(x.places.ranks)))
    if permuted is not None:
        say(f"wrote {permuted}: counts in this order, for --expert-loads")
    return code


def _placed(publisher: Publisher, name: str, counts: tuple[int, ...], ranks: int, more: int) -> _Layer:
    places = place_experts(counts, ranks, more)
    makespan, bound = publisher.expert_places(places)
    if makespan > bound and not more and len(counts) <= SMALL:
        problem = better_places(places)
        certificate = solve(problem, clock=budget(None, WORK)).certificate
        if certificate is not None and isinstance(certificate.claim, Infeasible):
            data = write_certificate(None, certificate)
            if publisher.publish(None, data, problem).verdict is Verdict.PROVED:
                bound = makespan
    width = len(counts) // ranks
    given = None
    if not more:
        rows = tuple(tuple(range(r * width, (r + 1) * width)) for r in range(ranks))
        given = ExpertPlaces(counts, rows).makespan
    return _Layer(name, places, makespan, bound, makespan == bound, given)


def _document(x: _Layer) -> dict[str, object]:
    return {
        "layer": x.name,
        "ranks": [list(rank) for rank in x.places.ranks],
        "loads": [str(load) for load in x.places.loads],
        "makespan": str(x.makespan),
        "lower_bound": str(x.bound),
        "proved": x.proved,
        "as_given": None if x.given is None else str(x.given),
    }


def _text(tokens: Fraction) -> str:
    return str(tokens) if tokens.denominator == 1 else f"{float(tokens):.6g}"
