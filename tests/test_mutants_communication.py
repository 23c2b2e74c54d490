"""Wrong communication plans of real programs: more than 300 distinct mutants, all refuted before anything runs.

The plans are those of zoo models (a perceptron, its training step, attention, BERT, convolutions with halos) on several
machines and schedules.  Every class below is wrong by construction:

    box shifted        a transfer's box moves by one: its target lacks the old elements, or the sender does not hold the
                       new ones
    box cut, grown     one element row less: something is missing; one more: sent twice, not held, or not wanted
    reduction doubled  summed twice;  reduction dropped: parts are taken for sums;  with another function, over another
                       digit
    owner missing      a transfer is left out, a member's tile is empty, a digit of the reduction is forgotten
    owner wrong        a sender that holds nothing of the box, a receiver that does not want it, sender and receiver
                       exchanged
    doubled            a transfer twice: elements arrive twice
    order              exchanges before the reduction, levels out of order, a reduction of replicas

`check_delivers` must say refuted with a reason, for every one; and the untouched plans are proved.
"""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Iterator
from dataclasses import replace
from functools import cache

import numpy as np
import pytest
from test_run import SMALL, choose, draw_choices

from shardproof.models.communication.choices import communications
from shardproof.models.communication.resharding import CommunicationPlan, Reduction
from shardproof.models.communication.transfers import Box, Exchange, Transfer, Transfers
from shardproof.models.layout.layout import OpenDigit
from shardproof.models.problem.claims import Verdict
from shardproof.models.program.graph import Graph
from shardproof.models.program.index import Combine
from shardproof.models.sources.zoo import build
from shardproof.verify.plan.boxes import inside, volume
from shardproof.verify.plan.communication import check_delivers, plain_layout

WANTED = 300


def halos(size: int, rows: int) -> tuple[Graph, tuple[int, ...], dict[str, dict[str, tuple[int, ...]]]]:
    """Three convolutions, rows of the image split: neighbours exchange halos."""
    graph = build("conv-stack", batch=2, size=size, channels=4, dtype="float64")
    return graph, (rows,), {op.name: {"y": (rows,)} for op in graph.operators if any(a.name == "y" for a in op.axes)}


def key(plan: CommunicationPlan) -> tuple[object, ...]:
    """What two equal plans have in common."""
    return (
        plan.source.hierarchy,
        plan.source.shape,
        plan.source.boxes.tobytes(),
        plan.source.open,
        plan.source.combine,
        plan.target.boxes.tobytes(),
        plan.target.open,
        plan.steps,
    )


@cache
def plans() -> tuple[tuple[str, CommunicationPlan], ...]:
    """Distinct plans with steps, with the movement they come from."""
    found: dict[tuple[object, ...], tuple[str, CommunicationPlan]] = {}

    def collect(name: str, graph: Graph, hierarchy: tuple[int, ...], choices: object) -> None:
        for m in communications(graph, hierarchy, choices):  # type: ignore[arg-type]
            if m.plan.steps:
                found.setdefault(key(m.plan), (f"{name} {hierarchy}: {m.tensor} to {m.reader}", m.plan))

    for size, rows in ((16, 4), (17, 4), (13, 3)):
        graph, hierarchy, table = halos(size, rows)
        collect("halo", graph, hierarchy, choose(graph, hierarchy, table))
    for name, make in sorted(SMALL.items()):
        graph = make()
        for seed, hierarchy in enumerate([(2, 2), (4,), (2, 3)]):
            collect(name, graph, hierarchy, draw_choices(graph, hierarchy, np.random.default_rng(seed)))
    return tuple(found.values())


def moved(box: Box, k: int, low: int, high: int) -> Box:
    """The box with interval k changed at its ends."""
    return (*box[:k], (box[k][0] + low, box[k][1] + high), *box[k + 1 :])


def of_exchange(plan: CommunicationPlan, i: int, rng: random.Random) -> Iterator[tuple[str, CommunicationPlan]]:
    step = plan.steps[i]
    assert isinstance(step, Exchange)
    source, target = plain_layout(plan.source), plain_layout(plan.target)
    devices = len(source.boxes)
    have = next((s.tiles for s in plan.steps if isinstance(s, Reduction)), source.boxes)
    n = rng.randrange(len(step.transfers))
    t = step.transfers[n]
    later = {u.source for s in plan.steps[i + 1 :] if isinstance(s, Exchange) for u in s.transfers}

    def swap(*new: Transfer) -> CommunicationPlan:
        changed = replace(step, transfers=Transfers.of([*step.transfers[:n], *new, *step.transfers[n + 1 :]]))
        return replace(plan, steps=(*plan.steps[:i], changed, *plan.steps[i + 1 :]))

    for k, (low, high) in enumerate(t.box):
        for way in (-1, 1):
            yield f"box shifted by {way} in dimension {k}", swap(replace(t, box=moved(t.box, k, way, way)))
        yield f"box cut in dimension {k}", swap(replace(t, box=moved(t.box, k, 0, -1)))
        yield f"box begun late in dimension {k}", swap(replace(t, box=moved(t.box, k, 1, 0)))
        wide = moved(t.box, k, 0, 1)
        if (
            high + 1 > plan.source.shape[k]
            or not inside(wide, target.boxes[t.target])
            or not inside(wide, have[t.source])
        ):
            yield f"box grown in dimension {k}", swap(replace(t, box=wide))
        if high - low > 2:
            yield (
                f"a row left out in dimension {k}",
                swap(replace(t, box=moved(t.box, k, 0, low + 1 - high)), replace(t, box=moved(t.box, k, 2, 0))),
            )
    yield "owner missing", swap()
    yield "sent twice", swap(t, t)
    yield "sent to itself", swap(replace(t, source=t.target))
    yield "direction reversed", swap(replace(t, source=t.target, target=t.source))
    yield "a rank that does not exist", swap(replace(t, source=devices))
    yield "a receiver that does not exist", swap(replace(t, target=devices))
    for d in range(devices):
        touches = all(max(a, x) < min(b, y) for (a, b), (x, y) in zip(have[d], t.box, strict=True))
        arrived = any(u.target == d for s in plan.steps if isinstance(s, Exchange) for u in s.transfers)
        if not touches and not arrived:
            yield "an owner that holds nothing of it", swap(replace(t, source=d))
            break
    for d in range(devices):
        if d not in (t.source, t.target) and not inside(t.box, target.boxes[d]):
            yield "a receiver that does not want it", swap(replace(t, target=d))
            break
    if t.target not in later:
        yield "the whole step left out", replace(plan, steps=(*plan.steps[:i], *plan.steps[i + 1 :]))
    yield "the step twice", replace(plan, steps=(*plan.steps[:i], step, *plan.steps[i:]))
    yield (
        "another level",
        replace(plan, steps=(*plan.steps[:i], replace(step, level=step.level + 1), *plan.steps[i + 1 :])),
    )
    others = [u for u in step.transfers if u.target != t.target]
    if others:
        other = rng.choice(others)
        if not inside(t.box, target.boxes[other.target]):
            yield (
                "two receivers exchanged",
                swap(replace(t, target=other.target), Transfer(other.source, t.target, t.box)),
            )


def of_reduction(plan: CommunicationPlan, i: int, rng: random.Random) -> Iterator[tuple[str, CommunicationPlan]]:
    step = plan.steps[i]
    assert isinstance(step, Reduction)
    hierarchy = plan.source.hierarchy

    def with_(*steps: Reduction | Exchange) -> CommunicationPlan:
        return replace(plan, steps=(*plan.steps[:i], *steps, *plan.steps[i + 1 :]))

    yield "reduction doubled", with_(step, step)
    yield "reduction dropped", with_()
    yield "maximum in place of the sum", with_(replace(step, combine=Combine.MAX))
    yield "minimum in place of the sum", with_(replace(step, combine=Combine.MIN))
    for k in range(len(step.digits)):
        rest = replace(
            step,
            digits=(*step.digits[:k], *step.digits[k + 1 :]),
            scattered=(*step.scattered[:k], *step.scattered[k + 1 :]),
        )
        yield f"owners along digit {k} missing", with_(rest)
        yield (
            f"digit {k} twice",
            with_(replace(step, digits=(*step.digits, step.digits[k]), scattered=(*step.scattered, step.scattered[k]))),
        )
        d = step.digits[k]
        for changed in (
            OpenDigit(d.level, d.stride * 2, d.prime),
            OpenDigit(d.level, d.stride, d.prime + 1),
            OpenDigit((d.level + 1) % len(hierarchy), d.stride, d.prime),
        ):
            if changed != d:
                yield (
                    f"digit {k} is another",
                    with_(replace(step, digits=(*step.digits[:k], changed, *step.digits[k + 1 :]))),
                )
        flags = tuple(s != (j == k) for j, s in enumerate(step.scattered))
        yield f"flag {k} reversed", with_(replace(step, scattered=flags))
    d = rng.choice([d for d, tile in enumerate(step.tiles) if volume(tile)])
    for k in range(len(step.tiles[d])):
        for low, high, what in ((1, 1, "shifted"), (-1, -1, "shifted back"), (0, -1, "cut"), (1, 0, "begun late")):
            yield (
                f"tile {what} in dimension {k}",
                with_(replace(step, tiles=(*step.tiles[:d], moved(step.tiles[d], k, low, high), *step.tiles[d + 1 :]))),
            )
    yield (
        "tile missing",
        with_(replace(step, tiles=(*step.tiles[:d], tuple((0, 0) for _ in step.tiles[d]), *step.tiles[d + 1 :]))),
    )
    yield "one tile less", with_(replace(step, tiles=step.tiles[:-1]))
    if len(plan.steps) > 1:
        yield "exchange before the reduction", replace(plan, steps=(*plan.steps[i + 1 :], step))
    closed = replace(plan.source, open=(), combine=None)
    yield "replicas summed", replace(plan, source=closed)
    yield (
        "the target left partial",
        replace(plan, target=replace(plan.target, open=plan.source.open, combine=plan.source.combine)),
    )


def mutants() -> Iterator[tuple[str, str, CommunicationPlan]]:
    """(class, movement, plan): at most 12 per step, spread over the classes."""
    rng = random.Random(11)
    for where, plan in plans():
        for i, step in enumerate(plan.steps):
            found = list(of_exchange(plan, i, rng) if isinstance(step, Exchange) else of_reduction(plan, i, rng))
            for what, mutant in rng.sample(found, min(12, len(found))):
                yield what, where, mutant


def test_the_plans_themselves_are_proved() -> None:
    assert len(plans()) > 60
    kinds = {m.collective() for _, m in plans()}
    assert {"all-gather", "all-reduce", "all-to-all", "reduce-scatter"} <= kinds
    assert sum(name.startswith("halo") for name, _ in plans()) >= 6
    for where, plan in plans():
        result = check_delivers(plan)
        assert result.verdict is Verdict.PROVED, (where, result.reason)


def test_every_mutant_is_refuted_and_all_are_different() -> None:
    seen: set[tuple[object, ...]] = {key(plan) for _, plan in plans()}
    classes: Counter[str] = Counter()
    for what, where, mutant in mutants():
        if key(mutant) in seen:
            continue
        seen.add(key(mutant))
        result = check_delivers(mutant)
        assert result.verdict is Verdict.REFUTED, (what, where, mutant.steps)
        assert result.reason
        classes[what.partition(" in dimension")[0]] += 1
    assert sum(classes.values()) >= WANTED
    assert len(classes) >= 25, classes


@pytest.mark.parametrize("what", ["box shifted", "reduction doubled", "owner missing"])
def test_the_three_named_by_the_issue(what: str) -> None:
    """One box shifted by one, one reduction doubled, one owner missing: on every plan that has such a step."""
    rng = random.Random(5)
    tried = 0
    for where, plan in plans():
        for i, step in enumerate(plan.steps):
            found = of_exchange(plan, i, rng) if isinstance(step, Exchange) else of_reduction(plan, i, rng)
            for name, mutant in found:
                if name.startswith(what):
                    tried += 1
                    result = check_delivers(mutant)
                    assert result.verdict is Verdict.REFUTED, (name, where)
    assert tried >= 20
