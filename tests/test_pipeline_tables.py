"""What the search of a pipeline makes once: tables of cases, orders of stages, looks at cases before dear attempts."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace
from fractions import Fraction

import numpy as np
import pytest
from budgets import limited as limit_of
from budgets import work

from shardproof.formal.plans.pipelines import bounded, shelf
from shardproof.formal.plans.pipelines import case as case_module
from shardproof.formal.plans.pipelines import request as request_module
from shardproof.formal.plans.pipelines.case import Case, cases, orders
from shardproof.formal.plans.pipelines.job import Job
from shardproof.formal.plans.pipelines.request import PipelineRequest, carry_out_pipelined, is_crowded
from shardproof.formal.plans.pipelines.search import Wanted, _Search, search_pairs
from shardproof.formal.plans.pipelines.shelf import Shelf, bytes_of
from shardproof.formal.selection.model.clock import Clock
from shardproof.formal.selection.options import OPTIONS
from shardproof.formal.selection.relax_resources import relax_resources
from shardproof.formal.selection.solve import solve
from shardproof.models.cost.forms import operator_forms
from shardproof.models.layout.classes import axis_orders
from shardproof.models.layout.placement import space
from shardproof.models.machine.machine import load_machine
from shardproof.models.pipelines.division import divide
from shardproof.models.problem.claims import Infeasible
from shardproof.models.problem.selection_problem import SelectionProblem, Usage, Vertex
from shardproof.models.sources.training import TrainingStep, build_step
from shardproof.models.sources.zoo import build

SIZES = {"layers": 2, "width": 64, "heads": 4, "kv_heads": 2, "hidden": 128, "vocabulary": 256}
PAIRS = [(1, 1), (2, 4), (4, 4), (4, 8)]


@pytest.fixture(scope="module")
def step() -> TrainingStep:
    return build_step(build("llama", batch=8, sequence=64, **SIZES), "adam")


@pytest.fixture(scope="module")
def job(step: TrainingStep) -> Job:
    division = divide(step.graph, step.passes)
    return Job(step.graph, division, load_machine("localhost:4"), space("one-per-level"), None, overlap=True)


def test_tables_of_a_case_are_built_once_with_and_without_overlap(job: Job, monkeypatch: pytest.MonkeyPatch) -> None:
    """A search turns from case to case and comes back, and the search with overlap asks for the same problems."""
    built, real = Counter[object](), bounded.build

    def counted(graph, machine, *rest):  # type: ignore[no-untyped-def]
        built[graph.sha256(), machine.hierarchy] += 1
        return real(graph, machine, *rest)

    def build_all(kept: Shelf | None) -> list[int]:
        built.clear()
        for overlap in (False, True):
            shared = replace(job, overlap=overlap, shelf=kept)
            assert search_pairs(shared, PAIRS, work(30.0), Fraction(0)).best is not None
        return sorted(built.values())

    monkeypatch.setattr(bounded, "build", counted)
    once = build_all(Shelf())
    assert len(once) > 2 and once == [1] * len(once)
    assert len(build_all(None)) == len(once) and max(built.values()) > 1
    monkeypatch.setattr(shelf, "MOST_BYTES", 0)
    assert max(build_all(Shelf())) > 1


def test_both_searches_of_a_request_have_one_shelf(step: TrainingStep, monkeypatch: pytest.MonkeyPatch) -> None:
    seen: list[tuple[bool, Shelf | None]] = []
    real = request_module.search_pairs

    def noted(job: Job, *rest):  # type: ignore[no-untyped-def]
        seen.append((job.overlap, job.shelf))
        return real(job, *rest)

    monkeypatch.setattr(request_module, "search_pairs", noted)
    request = PipelineRequest(lambda which: step, load_machine("localhost:4"), overlap=True)
    assert carry_out_pipelined(request, limit_of(1.0))[0].best is not None
    assert [overlap for overlap, _ in seen] == [False, True]
    assert seen[0][1] is seen[1][1] is not None


def test_the_tables_that_were_used_longest_ago_go(job: Job, monkeypatch: pytest.MonkeyPatch) -> None:
    planning = cases(job, [(4, 8)])[0].pieces.planning
    size, kept = bytes_of(planning), Shelf()
    assert size > sum(t.nbytes for t in planning.problem.tables)
    monkeypatch.setattr(shelf, "MOST_BYTES", 2 * size)
    keys = [("graph", 1, micro, False) for micro in (1, 2, 4)]
    kept.put(keys[0], planning, 1.0)
    kept.put(keys[1], planning, 2.0)
    assert kept.get(keys[0]) == (planning, 1.0)
    kept.put(keys[2], planning, 3.0)
    assert kept.get(keys[1]) is None and kept.get(keys[0]) is not None and kept.get(keys[2]) == (planning, 3.0)


def test_all_open_cases_are_looked_at_before_a_plan_of_ones_own(job: Job, monkeypatch: pytest.MonkeyPatch) -> None:
    """The bound of all is that of the case that nobody looked at."""
    in_turn = search_pairs(replace(job, overlap=False), [(4, 8)], work(3.0), Fraction(0)).best
    assert in_turn is not None
    seen: list[tuple[str, int, int]] = []
    look = _Search.look
    monkeypatch.setattr(_Search, "look", lambda s, c: (seen.append(("look", c.stages, c.micro)), look(s, c))[1])
    monkeypatch.setattr(_Search, "attempt", lambda s, c, k=None: seen.append(("plan", c.stages, c.micro)))
    found = search_pairs(job, PAIRS, work(30.0), Fraction(0), wanted=Wanted(brought=in_turn))
    first = next(k for k, (what, *_) in enumerate(seen) if what == "plan")
    assert seen[first][1:] == (4, 8) and {what for what, *_ in seen[:first]} == {"look"}
    assert found.best is not None
    looked = {(p, m) for _, p, m in seen[:first]}
    assert all(c.bound >= found.best.step for c in found.cases if (c.stages, c.micro) not in looked)


def test_no_more_cases_are_looked_at_where_there_is_no_time_for_all(job: Job, monkeypatch: pytest.MonkeyPatch) -> None:
    """Every look takes a second: with ten there is time for all of them, with two one look has shown that there is not."""
    for seconds, looks in ((10.0, len(PAIRS)), (2.0, 1)):
        now, seen = [0.0], list[Case]()
        search = _Search(cases(job, PAIRS), Clock(), Fraction(0), lambda text: None, lambda s: None, Wanted())

        def look(case: Case, now: list[float] = now, seen: list[Case] = seen) -> None:
            seen.append(case)
            case.looked, now[0] = True, now[0] + 1

        monkeypatch.setattr(search, "look", look)
        search.look_at_all(Clock(seconds, now=lambda now=now: now[0]))  # type: ignore[misc]
        assert len(seen) == looks


def test_a_case_in_which_nothing_was_found_in_turn_is_not_tried_again(
    job: Job, monkeypatch: pytest.MonkeyPatch
) -> None:
    tried: list[tuple[int, int]] = []

    def none_fits(search: _Search, case: Case, *_: object) -> bool:
        tried.append((case.stages, case.micro))
        return False

    monkeypatch.setattr(_Search, "attempt_cut", none_fits)
    found = search_pairs(job, PAIRS, work(30.0), Fraction(0), wanted=Wanted(insist=False))
    assert found.best is None and found.failed == {(*pair, 1) for pair in tried} and len(found.failed) > 1
    tried.clear()
    search_pairs(job, PAIRS, work(30.0), Fraction(0), wanted=Wanted(insist=False, failed=found.failed))
    assert not tried


def test_stages_that_are_not_the_most_may_have_room(step: TrainingStep, monkeypatch: pytest.MonkeyPatch) -> None:
    """1F1B keeps as many activations as there are stages: fewer stages may have room where more have none."""
    request = PipelineRequest(lambda which: step, load_machine("localhost:4"), memory=1 << 30, tight=True)
    monkeypatch.setattr(Case, "roomy", lambda case: case.stages == 2)
    assert not is_crowded(request, step, PAIRS) and is_crowded(request, step, [(1, 1), (4, 8)])
    monkeypatch.setattr(Case, "roomy", lambda case: (case.stages, case.micro) == (1, 1))  # the whole machine is tight
    assert is_crowded(request, step, PAIRS)


def test_orders_of_a_stage_are_looked_for_once(job: Job) -> None:
    case = cases(job, [(2, 4)])[0]
    stages = case.plan((0, 2), work(30.0), next(iter(orders(case))))
    assert stages is not None
    first, end, choices = stages[0].first, stages[0].end, stages[0].choices
    once = case.time_stage(first, end, choices)
    assert case.time_stage(first, end, dict(choices)) is once and case.time_stage(first, end, choices, 1) is not once
    assert case.time_stage(first, end, choices, clock=work(1.0)).seconds.forward <= once.seconds.forward
    v = next(v for v in choices if len(case.pieces.planning.problem.vertices[v].cost) > 1)
    assert case.time_stage(first, end, choices | {v: 1 - min(1, choices[v])}) is not once
    now = case.time_stage(first, end, choices)
    case.forget()
    assert case.time_stage(first, end, choices) is not now


def test_options_of_units_are_kept_where_reshardings_run_beside_operators(
    job: Job, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Leaves of weighted channels are far from every stage, which is no reason to solve stages whole."""
    monkeypatch.setattr(case_module, "MOST_WHOLE", 0)
    monkeypatch.setattr(Case, "slack", lambda case, stages: 2 * case_module.FAR)
    for overlap in (False, True):
        case = cases(replace(job, overlap=overlap), [(2, 4)])[0]
        assert case.plan((0, 2), work(30.0), next(iter(orders(case)))) is not None
        assert (case._menus is not None) == overlap


def test_a_stage_that_does_not_fit_is_not_asked_for_the_limit_from_which_it_would(
    job: Job, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[float] = []
    real = case_module.relax_resources

    def noted(problem: SelectionProblem, **rest):  # type: ignore[no-untyped-def]
        asked.append(rest["options"].tree.least_limit_s)
        return real(problem, **rest)

    monkeypatch.setattr(case_module, "relax_resources", noted)
    case = cases(replace(job, overlap=False, memory=1 << 12), [(2, 4)])[0]
    stages = case.plan((0, 2), work(30.0), next(iter(orders(case))))
    assert stages is not None and case._fit_whole(stages[0], 1, 1 << 12, work(30.0)) is None
    assert asked == [0.0]


@pytest.mark.parametrize("ask", [solve, relax_resources])
def test_no_limit_is_looked_for_where_nobody_asks_for_one(ask) -> None:  # type: ignore[no-untyped-def]
    amount = np.array([3, 4], dtype=np.int64)
    vertices = tuple(Vertex(name, np.array([1, 2], dtype=np.int64)) for name in "ab")
    problem = SelectionProblem("full", vertices, (), (), tuple(Usage(v, 0, 1, amount) for v in (0, 1)), 5).check()
    options = replace(OPTIONS, tree=replace(OPTIONS.tree, least_limit_s=0.0))
    for given, limit in ((None, 6), (options, None)):
        certificate = ask(problem, options=given).certificate
        assert certificate is not None and isinstance(certificate.claim, Infeasible)
        assert certificate.claim.least_limit == limit


def test_equal_operators_have_one_form(step: TrainingStep) -> None:
    forms = operator_forms(step.graph, axis_orders(step.graph))
    assert len({id(form) for form in forms.values()}) == len(set(forms.values())) < len(forms)
