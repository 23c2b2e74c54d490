"""Where stages are cut under a memory limit: against all cuts and all options of units, and on a model."""

from __future__ import annotations

import itertools
import random
from dataclasses import replace
from fractions import Fraction
from functools import partial
from types import SimpleNamespace

import numpy as np
import pytest
from budgets import limited as limit_of
from budgets import work

from shardproof.formal.plans.pipelines import scheduled
from shardproof.formal.plans.pipelines.case import Case, cases, orders
from shardproof.formal.plans.pipelines.job import Job
from shardproof.formal.plans.pipelines.layouts import even_choices
from shardproof.formal.plans.pipelines.menus import AS_SLOW, Menus, Option, Sizes
from shardproof.formal.plans.pipelines.phases import StagePlan
from shardproof.formal.plans.pipelines.request import PipelineRequest, carry_out_pipelined, is_crowded, pairs_of
from shardproof.formal.plans.pipelines.scheduled import pipeline_of, schedule_stages, waiting
from shardproof.formal.plans.pipelines.search import FIRST_SHARE, Wanted, _Search, _seeds, search_pairs
from shardproof.formal.schedules.drawing import peaks
from shardproof.formal.schedules.published import one_forward_one_backward, starts_of
from shardproof.formal.schedules.published import orders as actions
from shardproof.formal.schedules.search import search
from shardproof.formal.schedules.shop import shop
from shardproof.formal.selection.model.clock import STEPS, Clock
from shardproof.models.layout.placement import space
from shardproof.models.machine.machine import load_machine
from shardproof.models.pipelines.division import divide
from shardproof.models.pipelines.work import unit_peak_bytes
from shardproof.models.sources.training import build_step
from shardproof.models.sources.zoo import build


def drawn(rng: random.Random, units: int) -> Menus:
    """Menus of options that cost more the less they keep."""
    menus = Menus(None, {}, 1, 1, True, lambda problem, known: None)  # type: ignore[arg-type]
    for u in range(units):
        cost, fixed, kept, options = rng.randint(50, 150), rng.randint(20, 60), rng.randint(10, 30), []
        for _ in range(rng.randint(1, 4)):
            options.append(Option({u: len(options)}, cost, fixed, kept))
            cost, fixed, kept = cost + rng.randint(0, 80), rng.randint(fixed // 2, fixed), rng.randint(kept // 2, kept)
        menus.options[u] = options
    return menus


def runs(starts: tuple[int, ...], units: int) -> list[tuple[int, int]]:
    return list(zip(starts, (*starts[1:], units), strict=True))


@pytest.mark.parametrize("seed", range(12))
def test_cuts_within_memory_are_the_best_by_their_own_times(seed: int) -> None:
    """The slowest stage is the least of all cuts; nearly so the sum of those that are not much slower."""
    rng = random.Random(seed)
    units, stages, limit = rng.randint(4, 8), rng.randint(2, 4), rng.randint(60, 400)
    menus = drawn(rng, units)
    activations = [stages - s for s in range(stages)]
    times = {n: menus._run_times(n, limit) for n in activations}
    found = menus.cut_within(activations, limit)
    assert found is not None
    value, starts = found
    assert starts[0] == 0 and list(starts) == sorted(set(starts))

    def slowest_and_sum(starts: tuple[int, ...]) -> tuple[float, float]:
        each = [float(times[n][i, j]) for n, (i, j) in zip(activations, runs(starts, units), strict=True)]
        return max(each), sum(each)

    every = [slowest_and_sum((0, *cut)) for cut in itertools.combinations(range(1, units), stages - 1)]
    least = min(slow for slow, _ in every)
    slow, total = slowest_and_sum(starts)
    assert value == pytest.approx(least) and slow <= AS_SLOW * least + 1e-6
    assert total <= min(total for slow, total in every if slow <= AS_SLOW * least) + 1e-6


def test_times_of_runs_are_below_every_choice_that_fits() -> None:
    """Whatever options fit, they take as long at least; and often longer than the fastest do."""
    reached = 0
    for seed in range(12):
        rng = random.Random(100 + seed)
        units, activations, limit = 5, rng.randint(1, 4), rng.randint(60, 300)
        menus = drawn(rng, units)
        times = menus._run_times(activations, limit)
        assert np.isinf(np.diag(times)).all()
        for i, j in itertools.combinations(range(units + 1), 2):
            for picked in itertools.product(*(menus.options[u] for u in range(i, j))):
                if sum(o.live_bytes(activations) for o in picked) <= limit:
                    assert times[i, j] <= sum(o.cost for o in picked) + 1e-6
            fastest = sum(min(o.cost for o in menus.options[u]) for u in range(i, j))
            assert times[i, j] >= fastest - 1e-6
            reached += bool(times[i, j] > fastest + 1e-6)
    assert reached > 20


def test_more_stages_than_units_have_no_cut() -> None:
    menus = drawn(random.Random(0), 3)
    assert menus.cut_within([4, 3, 2, 1], 100) is None
    found = menus.cut_within([1], 100)
    assert found is not None and found[1] == (0,)


FOUR = (4, 3, 2, 1)
"""Activations of 1F1B on four stages."""


@pytest.fixture(scope="module")
def free() -> Case:
    """Four stages of one device each, so that nothing but activations can be saved."""
    sizes = {"layers": 2, "width": 64, "heads": 4, "kv_heads": 2, "hidden": 128, "vocabulary": 256}
    step = build_step(build("llama", batch=8, sequence=64, **sizes), "adam")
    division, machine = divide(step.graph, step.passes), load_machine("localhost:4")
    return cases(Job(step.graph, division, machine, space("one-per-level"), None), [(4, 8)])[0]


def placed(free: Case, starts: tuple[int, ...]) -> tuple[list[StagePlan], tuple[int, ...]]:
    """Stages, and what waits at their cuts in 1F1B."""
    stages = free.plan(starts, work(30.0), next(orders(free)))
    assert stages is not None
    _, pipe = pipeline_of(free, stages, 4)
    return stages, waiting(free, stages, pipe, starts_of(pipe, actions("1f1b", pipe)))


def limited(free: Case, memory: int) -> Case:
    return cases(replace(free.job, memory=memory), [(4, 8)])[0]


def test_stages_that_fit_with_the_activations_of_1f1b_stay_as_they_are(free: Case) -> None:
    """Most units are on the last stage, which keeps one activation and has no room for four."""
    stages, queued = placed(free, (0, 1, 2, 3))
    limit = max(free.peak(s, k) + w for s, k, w in zip(stages, FOUR, queued, strict=True))
    case = limited(free, limit)
    assert case.fit_memory(stages, (4, 4, 4, 4), queued, work(30.0)) is None
    found = schedule_stages(case, stages, 0.0, work(30.0))
    assert found is not None and max(found.memory) <= limit
    assert all(a <= b for a, b in zip(found.kept, FOUR, strict=True))


def test_activations_of_1f1b_are_tried_beside_the_schedule_that_is_found(
    free: Case, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A search may end in a schedule in which every stage keeps as many activations as the first one's in 1F1B."""
    stages, queued = placed(free, (0, 1, 2, 3))
    case = limited(free, max(free.peak(s, k) + w for s, k, w in zip(stages, FOUR, queued, strict=True)))
    _, pipe = pipeline_of(case, stages, 4)
    row = one_forward_one_backward(pipe, 0, 4)
    starts = starts_of(pipe, [[(word, s, i) for word, _, i in row] for s in range(pipe.stages)])
    assert tuple(peaks(pipe.problem(), starts)) == (4, 4, 4, 4)
    found, asked = search(shop(pipe), work(1.0)), list[tuple[int, ...]]()

    def fit(given: list[StagePlan], kept: tuple[int, ...], queued: object, clock: object) -> list[StagePlan] | None:
        asked.append(tuple(kept))
        return given if kept[-1] == 1 else None

    monkeypatch.setattr(scheduled, "search", lambda *given, **named: replace(found, starts=starts))
    monkeypatch.setattr(case, "fit_memory", fit)
    made = schedule_stages(case, stages, 0.0, work(30.0), 4)
    assert FOUR in asked and made is not None and made.kept == FOUR


def test_fewer_activations_than_stages_are_kept_where_no_more_fit(free: Case) -> None:
    """Most units are on the first stage, which has room for three: that is faster than with two."""
    units = free.job.division.units
    stages, queued = placed(free, (0, units - 3, units - 2, units - 1))
    limit = free.peak(stages[0], 3) + max(queued)
    assert free.peak(stages[0], 4) > limit
    case = limited(free, limit)
    found, fewer = (schedule_stages(case, stages, 0.0, work(30.0), only) for only in (None, 2))
    assert found is not None and fewer is not None and max(found.memory) <= limit
    assert found.kept[0] == 3 and found.step < fewer.step


def test_what_waits_at_other_times_is_fitted_again(free: Case, monkeypatch: pytest.MonkeyPatch) -> None:
    """Stages that are placed anew take other times: they are asked for once more with what waits then."""
    stages, queued = placed(free, (0, 1, 2, 3))
    fits = max(free.peak(s, k) + w for s, k, w in zip(stages, FOUR, queued, strict=True))
    case, asked = limited(free, fits - 1), list[tuple[int, ...]]()

    def fit(given: list[StagePlan], kept: object, queued: tuple[int, ...], clock: object) -> list[StagePlan] | None:
        asked.append(queued)
        return [replace(s) for s in given] if len(asked) < 3 else None

    monkeypatch.setattr(case, "fit_memory", fit)
    assert schedule_stages(case, stages, 0.0, work(30.0), 4) is None
    assert len(asked) >= 3 and all(a <= b for a, b in zip(asked[0], asked[1], strict=True))


@pytest.mark.parametrize("model", ["llama", "mlp-uneven"])
def test_the_fullest_moment_of_a_unit_is_that_of_all_its_operators(model: str) -> None:
    """Against every moment: what a unit has written by then and its own operators still read."""
    sizes = {"layers": 2, "width": 16, "heads": 2, "kv_heads": 1, "hidden": 32, "vocabulary": 64, "sequence": 8}
    graph = build(model, batch=4, **(sizes if model == "llama" else {}))
    step = build_step(graph, "adam")
    division = divide(step.graph, step.passes)
    operators = step.graph.operators
    for unit, found in enumerate(unit_peak_bytes(step.graph, division)):
        own = [i for i in range(len(operators)) if division.unit[i] == unit]
        spans = []
        for i in own:
            name = operators[i].output.tensor
            t = step.graph.tensor(name)
            readers = [k for k in own if any(a.tensor == name for a in operators[k].inputs)]
            spans.append((i, max(readers, default=i), t.elements * t.element_bytes))
        assert found == max(sum(size for a, b, size in spans if a <= i <= b) for i in own)


def test_one_stage_has_several_micro_batches_where_memory_is_limited(free: Case) -> None:
    """Less than the whole batch is kept at a time: a plan where the step as it is does not fit."""
    machine, units = free.job.machine, free.job.division.units
    step = build_step(
        build("llama", batch=8, sequence=64, layers=2, width=64, heads=4, kv_heads=2, hidden=128, vocabulary=256),
        "adam",
    )
    assert [p for p in pairs_of("auto", step, machine, units) if p[0] == 1] == [(1, 1)]
    assert [p for p in pairs_of("auto", step, machine, units, 1 << 30) if p[0] == 1] == [(1, 1), (1, 2), (1, 4), (1, 8)]
    found = {}
    for micro in (1, 2):
        case = cases(free.job, [(1, micro)])[0]
        stages = case.plan((0,), work(30.0), next(orders(case)))
        assert stages is not None
        found[micro] = case.peak(stages[0], 1)
    assert found[2] < found[1]
    job = replace(free.job, memory=found[2] + (found[1] - found[2]) // 8)
    outcome = search_pairs(job, [(1, 1), (1, 2)], work(30.0), Fraction(0))
    assert outcome.best is not None and (outcome.best.case.stages, outcome.best.case.micro) == (1, 2)
    assert outcome.lower_bound <= outcome.best.step


def test_first_plans_leave_time_for_other_numbers_of_stages(free: Case) -> None:
    """Every number of stages has been looked at when the first plans are made, and no first plan has all the time."""
    job = replace(free.job, memory=free.peak(placed(free, (0, 1, 2, 3))[0][3], 4) * 2)
    clock = work(30.0)
    search = _Search(cases(job, [(1, 2), (2, 4), (4, 8)]), clock, Fraction(0), lambda _: None, lambda _: None, Wanted())
    shares: list[float | None] = []

    def attempt(case: Case, part: Clock | None = None) -> None:
        shares.append(None if part is None else part.limit_s)
        if part is not None and len(shares) == 1:  # its part is over before there is a plan: then all of the time
            part.charge(int(part.remaining_s() * STEPS) + 1)

    search.attempt = attempt  # type: ignore[method-assign]
    search.begin()
    assert all(case.looked for case in search.found)
    assert shares[0] is not None and shares[1] is None
    assert [s for s in shares[2:] if s is None] == [] and max(s for s in shares if s is not None) <= FIRST_SHARE * 30.0


def test_one_stage_begins_with_the_fewest_micro_batches_that_have_room(
    free: Case, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Case, "roomy", lambda case: case.micro > 1)
    assert [(c.stages, c.micro) for c in _seeds(cases(free.job, [(1, 1), (1, 2), (1, 4), (2, 8), (2, 1)]))] == [
        (2, 8),
        (1, 2),
    ]
    monkeypatch.setattr(Case, "roomy", lambda case: False)
    assert [(c.stages, c.micro) for c in _seeds(cases(free.job, [(1, 2), (1, 1)]))] == [(1, 1)]


def test_all_blocks_are_computed_again_first_only_where_no_stages_have_room(free: Case) -> None:
    """The whole machine may have no room for what many stages have room for."""
    sizes = {"layers": 2, "width": 64, "heads": 4, "kv_heads": 2, "hidden": 128, "vocabulary": 256}
    step = build_step(build("llama", batch=8, sequence=64, **sizes), "adam")
    pairs = [(1, 1), (2, 4), (4, 8)]

    def crowded(memory: int, tight: bool = True, pairs: list[tuple[int, int]] = pairs) -> bool:
        request = PipelineRequest(lambda which: step, free.job.machine, memory=memory, tight=tight)
        return is_crowded(request, step, pairs)

    assert not crowded(1 << 40) and crowded(1 << 10) and not crowded(1 << 10, tight=False)
    assert crowded(1 << 40, pairs=pairs[:1])
    needed = next(m for m in (1 << k for k in range(10, 40)) if not crowded(m))
    assert cases(replace(free.job, memory=needed), [(4, 8)])[0].roomy()


def test_options_that_came_too_late_are_looked_for_again(free: Case, monkeypatch: pytest.MonkeyPatch) -> None:
    """Where the time is over no option of less memory is found; with more time the same as by somebody who had it."""
    layouts = even_choices(free.pieces.planning, free.job.division.cuts, next(iter(orders(free))))
    assert layouts is not None
    late, ready = (cases(replace(free.job, memory=1 << 30), [(4, 8)])[0] for _ in range(2))

    def options(case: Case, clock: Clock) -> list[list[tuple[int, int, int]]]:
        assert case._by_units(case.pieces, (0, 1, 2, 3), clock, layouts) is not None and case._menus is not None
        case._menus.extend(1 << 30)
        return [sorted((o.cost, o.fixed, o.kept) for o in case._menus.options[u]) for u in sorted(case._menus.options)]

    over = work(30.0)
    over.charge(30 * STEPS)
    assert all(len(row) == 1 for row in options(late, over))
    before = len(late._menus.solved) if late._menus is not None else 0
    with monkeypatch.context() as patched:  # nor is any problem made that nobody has time to solve
        patched.setattr(Menus, "_priced", lambda *_: pytest.fail("a problem is made after the time is over"))
        assert all(len(row) == 1 for row in options(late, over))
    assert options(late, work(30.0)) == options(ready, work(30.0))
    assert late._menus is not None and len(late._menus.solved) > before > 0


def test_a_step_that_has_no_micro_batches_is_whole_on_one_device() -> None:
    """Operators that look at the whole batch: no stages are there that would be refused, so it is planned."""
    step = build_step(build("resnet101", batch=4, size=64), "sgd")
    assert pairs_of("auto", step, load_machine("localhost:1"), 5, 1 << 33) == [(1, 1)]
    named = build_step(build("mlp-uneven", batch=4), "sgd")
    assert pairs_of("auto", named, load_machine("localhost:1"), 1, 1 << 33) == [(1, 1), (1, 2), (1, 4)]


def test_a_plan_in_turn_is_where_the_search_with_overlap_begins(free: Case) -> None:
    """A clock that is over leaves no search, but the placements that are known run beside reshardings all the same."""
    found_by = partial(search_pairs, gap=Fraction(0))
    in_turn = found_by(free.job, [(4, 8)], work(3.0)).best
    assert in_turn is not None
    over = work(30.0)
    over.charge(30 * STEPS)
    beside = replace(free.job, overlap=True)
    for memory in (None, max(in_turn.memory)):
        job = replace(beside, memory=memory)
        wanted = Wanted(insist=False, brought=in_turn)
        found = found_by(job, [(2, 4), (4, 8)], over, wanted=wanted).best
        assert found is not None and found.case.stages == 4 and found.step <= in_turn.step
        assert memory is None or max(found.memory) <= memory
        assert found_by(job, [(2, 4), (4, 8)], over, wanted=Wanted(insist=False)).best is None
    assert found_by(beside, [(2, 4)], over, wanted=Wanted(insist=False, brought=in_turn)).best is None


@pytest.mark.parametrize("millions", [0.06, *(pytest.param(x, marks=pytest.mark.slow) for x in (0.25, 1.0))])
def test_stages_with_overlap_cost_no_more_than_stages_alone(millions: float) -> None:
    """With little work either search finds a plan; the one with more freedom had a dearer one."""
    sizes = {"layers": 4, "width": 64, "heads": 4, "kv_heads": 2, "hidden": 128, "vocabulary": 256}
    step = build_step(build("llama", batch=8, sequence=64, **sizes), "adam")
    asked = PipelineRequest(lambda which: step, load_machine("dgx-a100:2x4"))
    alone, both = (carry_out_pipelined(replace(asked, overlap=x), limit_of(millions))[0] for x in (False, True))
    assert alone.best is not None and both.best is not None
    assert both.job.overlap and both.best.step <= alone.best.step


def test_an_option_that_was_found_is_in_the_list_of_its_unit() -> None:
    """Lists are made again where there is something new, and are the same objects where there is not."""
    menus = Menus(None, {}, 1, 1, True, lambda problem, known: (len(known),))  # type: ignore[arg-type]
    part = SimpleNamespace(vertices=(7,), problem=SimpleNamespace(cost_of=lambda x: 10 + x[0]))
    menus.names, menus.sizes = ["one"], {0: Sizes({0: np.array([5, 3, 1])}, {0: np.zeros(3, dtype=np.int64)}, b"")}
    lists = []
    for price in (0.0, 5.0, 5.0):
        menus.options[0] = menus._of(0, part, (price,), 1.0)  # type: ignore[arg-type]
        lists.append(menus.options[0])
    assert [len(x) for x in lists] == [1, 2, 2] and lists[1] is lists[2]
