"""The bound that looks at every cut: against all orders of forwards and backwards, its checker, and what that refuses."""

from __future__ import annotations

import itertools
import random
from collections.abc import Callable
from dataclasses import replace
from fractions import Fraction

import pytest
from budgets import work
from test_pipeline_attacks import reasons, shortest

from shardproof.formal.plans.pipelines.case import Case
from shardproof.formal.plans.pipelines.job import Job
from shardproof.formal.plans.pipelines.outcome import SearchOutcome
from shardproof.formal.plans.pipelines.scheduled import schedule_stages
from shardproof.formal.schedules.search import search
from shardproof.formal.schedules.shop import shop
from shardproof.models.layout.placement import space
from shardproof.models.machine.machine import load_machine
from shardproof.models.pipelines import cuts as built
from shardproof.models.pipelines.bound import closure
from shardproof.models.pipelines.cuts import Hops, Passes, Span, cut_bound, least_cut
from shardproof.models.pipelines.division import divide
from shardproof.models.pipelines.views import boundary_level, cut_levels, send_between, send_time
from shardproof.models.problem.claims import Verdict
from shardproof.models.schedules.pipeline import Pipeline
from shardproof.models.sources.training import build_step
from shardproof.models.sources.zoo import build
from shardproof.models.text import InputError
from shardproof.proofs.container.canonical import ContainerError
from shardproof.proofs.pipelines.certificate import Leaf, PipelineCertificate
from shardproof.proofs.pipelines.file import decode_pipeline, encode_pipeline
from shardproof.proofs.schedules.certificate import ScheduleCertificate
from shardproof.proofs.schedules.file import decode_schedule, encode_schedule
from shardproof.verify.pipelines import cuts as checked
from shardproof.verify.pipelines.bound import crossed_level, send_over
from shardproof.verify.pipelines.cuts import Known, none_below, takes
from shardproof.verify.schedules.certificate import check_schedule
from shardproof.verify.schedules.pipeline import pipeline_network

Units = list[tuple[int, int, int]]


def weakened(rng: random.Random, spans: list[Span]) -> list[Span]:
    """What may be known of these: each number less, or as it is."""
    return [tuple(max(0, x - rng.choice([0, 0, 1, 3])) for x in span) for span in spans]  # type: ignore[misc]


def exact(times: Units, micro: int) -> list[Span]:
    return [(f, b, f + b, f + b + u, micro * (f + b) + u) for f, b, u in times]


@pytest.mark.parametrize("seed", [0, 1])
def test_no_order_is_below_the_bound_of_a_cut(seed: int) -> None:
    """Whatever is known, exact or less; now and then the bound is above both plain lines, and met."""
    rng, better, met = random.Random(seed), 0, 0
    for _ in range(300):
        p, m = rng.choice([(2, 1), (2, 4), (3, 2), (3, 3), (3, 3)])
        times = [(rng.randint(0, 9), rng.randint(0, 9), rng.choice([0, rng.randint(0, 12)])) for _ in range(p)]
        lags = [[0, *(rng.choice([0, rng.randint(0, 15)]) for _ in range(p - 1))] for _ in range(2)]
        sends = [(Fraction(a), Fraction(b)) for a, b in zip(lags[0][1:], lags[1][1:], strict=True)]
        best = int(shortest(times, sends, m))
        spans = exact(times, m)
        value = cut_bound(spans, lags[0], lags[1], m)
        assert max(value, cut_bound(weakened(rng, spans), lags[0], lags[1], m)) <= best, (times, lags, m)
        better += value > plain(spans, lags, m)
        met += value == best
    assert better >= 8 and met >= 150


def plain(spans: list[Span], lags: list[list[int]], micro: int) -> int:
    """The larger of both lines without passes apart."""
    value = head = around = 0
    for s, (f, b, a, w, v) in enumerate(spans):
        value = max(value, head + v, around + micro * a if s else 0)
        if s + 1 < len(spans):
            head += f + lags[0][s + 1]
            around += (max(a, f + b) if s else w) + lags[0][s + 1] + lags[1][s + 1]
    return value


def random_case(rng: random.Random) -> tuple[Passes, Known, Hops, int, int]:
    """Runs of units, more than their sums now and then; sends by boundary and cut; stages, micro-batches."""
    n, m = rng.randint(3, 7), rng.randint(1, 6)
    p = rng.randint(2, min(4, n))
    rows: list[dict[tuple[int, int], int]] = [{} for _ in range(5)]
    for k in range(n):
        f, b, u = rng.randint(0, 9), rng.randint(0, 9), rng.choice([0, rng.randint(0, 20)])
        for row, value in zip(rows, (f, b, f + b, f + b + u, m * (f + b) + u), strict=True):
            row[k, k + 1] = value
    i = rng.randrange(n - 1)
    for k in (2, 3, 4):
        rows[k][i, i + 2] = rows[k][i, i + 1] + rows[k][i + 1, i + 2] + rng.randint(0, 9)
    tables = [closure(n, row) for row in rows]
    there, back = ([[0, *(rng.choice([0, rng.randint(0, 8)]) for _ in range(n - 1))] for _ in range(p)] for _ in "ab")
    return Passes(*tables), Known(*tables, there, back), Hops(there, back), p, m


def test_search_and_checker_agree_on_the_least_cut() -> None:
    rng = random.Random(7)
    for _ in range(200):
        passes, known, hops, p, m = random_case(rng)
        n = len(passes.one) - 1
        cuts = [(0, *cut) for cut in itertools.combinations(range(1, n), p - 1)]
        values = {cut: takes(known, cut, m) for cut in cuts}
        for cut in cuts:
            spans = [passes.span(i, j) for i, j in zip(cut, (*cut[1:], n), strict=True)]
            lags = [[0, *(way[s][cut[s]] for s in range(1, p))] for way in (hops.there, hops.back)]
            assert cut_bound(spans, lags[0], lags[1], m) == values[cut]
        least = min(values.values())
        for start in (cuts[0], cuts[-1]):
            found = least_cut(passes, hops, m, start, 0, 1 << 40)
            assert found is not None and found[0] == least == values[found[1]]
            assert least_cut(passes, hops, m, start, 0, least) == (least, ())
        assert none_below(known, p, m, least) and not none_below(known, p, m, least + 1)


def test_too_many_cuts_give_no_answer(monkeypatch: pytest.MonkeyPatch) -> None:
    rng = random.Random(3)
    passes, known, hops, p, m = random_case(rng)
    while len(passes.one) - 1 < p + 2 or p == 2:
        passes, known, hops, p, m = random_case(rng)
    least = least_cut(passes, hops, m, tuple(range(p)), 0, 1 << 40)
    assert least is not None
    monkeypatch.setattr(built, "MOST_PREFIXES", 0)
    monkeypatch.setattr(checked, "MOST_CUTS", 0)
    assert least_cut(passes, hops, m, tuple(range(p)), 0, 1 << 40) is None
    assert not none_below(known, p, m, 1)


def test_neighbours_differ_at_the_outermost_level_that_separates_them() -> None:
    for words, stages, expected in (
        ("2x4", 2, [0]),
        ("2x4", 4, [1, 0, 1]),
        ("2x4", 8, [1, 1, 1, 0, 1, 1, 1]),
        ("4x8", 16, [1, 1, 1, 0] * 3 + [1, 1, 1]),
    ):
        machine = load_machine(f"cloud-a100:{words}")
        assert [boundary_level(machine, stages, s) for s in range(1, stages)] == expected
        assert [crossed_level(machine, stages, s) for s in range(1, stages)] == expected
        for s, level in enumerate(expected, 1):
            seconds = send_between(machine, stages, 10**6, s)
            assert seconds == send_over(machine, stages, 10**6, level)
            assert seconds == send_time(machine, stages, 10**6, level == cut_levels(machine, stages)[0])


def certified() -> tuple[Case, PipelineCertificate]:
    """Four stages on a machine of two nodes, whose bound needs passes apart and the order of the stages."""
    step, machine = build_step(build("bert-tiny", batch=16), "sgd"), load_machine("cloud-a100:2x2")
    job = Job(step.graph, divide(step.graph, step.passes), machine, space("complete"), None)
    case = Case(job, 4, 4)
    case.update_bound(1 << 62)
    case.prove(1, work(60.0))
    case.update_bound(1 << 62)
    stages = case.plan(case.starts, work(60.0), (0, 1, 2))
    assert stages is not None
    best = schedule_stages(case, stages, 0.1, work(60.0))
    assert best is not None
    return case, SearchOutcome(job, best, [case], case.bound).certificate()


def test_leaves_end_where_a_pair_cannot_be_better() -> None:
    """What says most is solved first; a certificate of few leaves is as good as one of all."""
    case, c = certified()
    few = Case(case.job, 4, 4)
    few.update_bound(1 << 62)
    wanted = few.bound + (case.bound - few.bound) // 4
    few.prove(1, work(60.0), wanted)
    assert few.bound == wanted
    all_of, some = ({id(x): x for x in (*k.leaves.values(), *k.passes.values())} for k in (case, few))
    assert 0 < len(some) < len(all_of)
    fewer = replace(c, leaves=tuple(some.values()))
    assert reasons(replace(fewer, lower_bound=wanted)) == "" and reasons(fewer)


def phases(c: PipelineCertificate, change: Callable[[Leaf], Leaf | None]) -> PipelineCertificate:
    """With every leaf of a pass changed, or left out."""
    rows = [change(leaf) if leaf.phase else leaf for leaf in c.leaves]
    return replace(c, leaves=tuple(x for x in rows if x is not None))


def test_passes_apart_and_stages_in_order_are_proved_and_nothing_more(monkeypatch: pytest.MonkeyPatch) -> None:
    case, c = certified()
    assert c.ordered and {leaf.phase for leaf in c.leaves} == {"", "F", "B"}
    assert reasons(c) == ""
    again = decode_pipeline(encode_pipeline(c))
    assert again.ordered and [x.phase for x in again.leaves] == [x.phase for x in c.leaves]
    refused = {
        "the claim says": replace(c, lower_bound=c.lower_bound + 1),
        "the claim says ": phases(c, lambda x: None),
        "its certificate gives less": phases(c, lambda x: replace(x, bound=x.bound + 1)),
        "leaf": phases(c, lambda x: replace(x, phase="B" if x.phase == "F" else "F")),
        "counts 4 micro-batches": phases(c, lambda x: replace(x, times=4, once=True)),
        "counts 1 micro-batches and updates": phases(c, lambda x: replace(x, once=True)),
    }
    for reason, mutant in refused.items():
        assert reason.strip() in reasons(mutant), reason
    # a plan whose sends are all the longest may lie anywhere, its bound not
    monkeypatch.setattr(Case, "hop", lambda self, tensor, boundary: self.one_way(tensor, True))
    stages = case.plan(case.starts, work(60.0), (0, 1, 2))
    far = None if stages is None else schedule_stages(case, stages, 0.1, work(60.0))
    assert far is not None
    anywhere = SearchOutcome(case.job, far, [case], case.bound).certificate()
    assert reasons(anywhere) == "" and "the claim says" in reasons(replace(anywhere, ordered=False))
    # an honest certificate of both passes is none of one
    both = next(leaf for leaf in c.leaves if not leaf.phase and not leaf.once)
    assert "leaf" in reasons(replace(c, leaves=(*c.leaves, replace(both, phase="F"))))


def test_passes_are_leaves_of_one_phase_on_both_sides() -> None:
    """Problems of search and checker are the same; together they cost what a leaf costs, and runs that look alike in
    both passes together are told apart.
    """
    from shardproof.verify.pipelines.leaves import Units as Rebuilt

    case, c = certified()
    pieces = case.pieces
    units = Rebuilt(pieces.planning, c.division)
    n = c.division.units
    for i in range(n):
        f, b = (pieces.one_pass(i, i + 1, phase) for phase in "FB")
        whole = pieces.leaf(i, i + 1, 1, 0)
        for part, phase in ((f, "F"), (b, "B")):
            assert part.problem.sha256() == units.leaf(i, i + 1, 1, False, phase).sha256()
        for x in ([0] * len(whole.vertices), [len(v.cost) - 1 for v in whole.problem.vertices]):
            assert f.problem.cost_of(x) + b.problem.cost_of(x) == whole.problem.cost_of(x)
    for i, j in itertools.combinations(range(n), 2):
        same = pieces.pass_key(i, i + 1) == pieces.pass_key(j, j + 1)
        assert same == all(units.alike(i, i + 1, False, p) == units.alike(j, j + 1, False, p) for p in "FB")


def test_a_phase_is_forward_or_backward() -> None:
    _, c = certified()
    whole = encode_pipeline(c)
    for phase in ("U", "", "FB"):
        from conformance.writing import changed

        data = changed(whole, "pipeline.json", lambda h, p=phase: h["leaves"][0].append(p))  # type: ignore[misc]
        with pytest.raises(ContainerError):
            decode_pipeline(data)


def test_sends_take_what_their_boundary_takes() -> None:
    """Nodes of two stages: sends between nodes are the slow ones.  A shorter send, or stages of unknown places, are
    refused even where the schedule allows them.
    """
    _, c = certified()
    pipe = c.schedule.subject
    assert isinstance(pipe, Pipeline) and len(pipe.hops) == 3
    assert pipe.hops[1] == pipe.send > max(pipe.hops[0], pipe.hops[2])
    assert "takes longer than the schedule says" in reasons(replace(c, ordered=False))
    for k in range(3):
        hops = tuple(h - 1 if i == k else h for i, h in enumerate(pipe.hops))
        quick = replace(c.schedule, subject=replace(pipe, hops=hops, send=max(hops)))
        assert "takes longer than the schedule says" in reasons(replace(c, schedule=quick))


def test_hops_are_lags_between_stages_everywhere() -> None:
    rng = random.Random(5)
    for _ in range(20):
        p, m = rng.randint(2, 4), rng.randint(1, 4)
        hops = tuple(rng.randint(0, 5) for _ in range(p - 1))
        times = tuple((rng.randint(1, 4), rng.randint(1, 4), rng.randint(0, 2)) for _ in range(p))
        pipe = Pipeline(times, m, max(hops), rng.choice([None, 2]), hops=hops).check()
        net, _ = pipeline_network(pipe, False)
        arcs = sorted((a.before, a.after, a.lag) for a in pipe.problem().precedences)
        assert arcs == sorted(zip(net.before.tolist(), net.after.tolist(), net.lag.tolist(), strict=True))
        assert {lag for _, _, lag in arcs} == {0, *hops}
        found = search(shop(pipe), work(0.1))
        c = ScheduleCertificate(pipe, found.starts, found.makespan, found.lower_bound, found.bound, "best")
        assert check_schedule(c).verdict is Verdict.PROVED
        assert decode_schedule(encode_schedule(c)).subject == pipe
        longer = replace(pipe, hops=tuple(h + 9 for h in hops), send=pipe.send + 9)
        assert check_schedule(replace(c, subject=longer)).verdict is Verdict.REFUTED
    pipe = Pipeline(((1, 1, 0),) * 3, 2, 4, None, hops=(4, 1))
    assert pipe.check() is pipe
    for wrong in ({"chunks": 2}, {"send": 5}, {"hops": (4,)}, {"hops": (4, -1)}):
        with pytest.raises(InputError):
            replace(pipe, **wrong).check()
