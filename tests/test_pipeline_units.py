"""What units of a pipelined step cost and hold, where names of operators are not those of tensors and stages share
constants; and menus of their placements.
"""

from __future__ import annotations

import itertools
import random
from dataclasses import replace
from fractions import Fraction
from functools import cache

import numpy as np
import pytest

from shardproof.formal.pipelines import case as cases
from shardproof.formal.pipelines.case import Job
from shardproof.formal.pipelines.search import Searched, planned
from shardproof.formal.selection.model.clock import Clock
from shardproof.models.cost.selection import build as build_problem
from shardproof.models.layout.placement import space
from shardproof.models.machine.machine import load_machine
from shardproof.models.pipelines.bound import IMPOSSIBLE, Bounds, closure, reached
from shardproof.models.pipelines.division import SHARED, divide
from shardproof.models.pipelines.micro import micro_batch
from shardproof.models.pipelines.pieces import Pieces
from shardproof.models.problem.claims import Verdict
from shardproof.models.sources.training import build_step
from shardproof.models.sources.zoo import build
from shardproof.verify.pipelines.bound import least_step
from shardproof.verify.pipelines.certificate import check_pipeline
from shardproof.verify.pipelines.leaves import Units
from shardproof.verify.plan.tables import CELLS


@cache
def renamed() -> tuple[Pieces, Units]:
    """A small Llama, whose stages all compute positions and masks, with operators named like other tensors."""
    sizes = {"layers": 1, "width": 64, "heads": 4, "kv_heads": 2, "hidden": 64, "vocabulary": 64, "sequence": 16}
    step = build_step(build("llama", batch=4, **sizes), "sgd")
    outputs = [op.output.tensor for op in step.graph.operators]
    others = [*outputs[1:], outputs[0]]
    operators = tuple(replace(op, name=name) for op, name in zip(step.graph.operators, others, strict=True))
    graph = replace(step.graph, operators=operators).check()
    division = divide(graph, step.passes)
    assert SHARED in division.unit
    planning = build_problem(micro_batch(graph, 2), load_machine("1x2"), space("complete"), 1 << 40)
    return Pieces(planning, division), Units(planning, division)


def test_builder_and_checker_agree_whatever_operators_are_called() -> None:
    pieces, units = renamed()
    rng, n, problem = random.Random(5), pieces.division.units, pieces.planning.problem
    for i, j in itertools.combinations(range(n + 1), 2):
        for times, once in ((1, False), (1, True), (2, True)):
            assert pieces.leaf(i, j, times, int(once)).problem.sha256() == units.leaf(i, j, times, once).sha256()
        x = {v: rng.randrange(problem.domain_size(v)) for v in range(len(problem.vertices))}
        found = pieces.seconds(i, j, x)
        assert (found.forward, found.backward, found.update) == units.seconds(i, j, x)
        names = [pieces.graph.operators[k].name for k in pieces.stage_operators(i, j)]
        assert names == units.operators(i, j)
        for kept, accumulated in ((1, False), (3, True)):
            change = np.zeros(len(problem.vertices) + 1, dtype=np.int64)
            for u in pieces.usages(i, j, kept, accumulated):
                change[u.start] += u.amount[x[u.vertex]]
                change[u.end] -= u.amount[x[u.vertex]]
            assert int(np.cumsum(change).max()) == units.peak(i, j, x, kept, 2 if accumulated else 1)


def answered(memory: int | None) -> Searched:
    step = build_step(build("bert-tiny", batch=4096), "adam")
    job = Job(step.graph, divide(step.graph, step.passes), load_machine("2x2"), space("complete"), memory)
    return planned(job, [(2, 4)], Clock(60.0), Fraction(1, 50))


def test_stages_of_unit_options_are_near_the_best_ones_and_fit(monkeypatch: pytest.MonkeyPatch) -> None:
    whole = answered(None).best
    monkeypatch.setattr(cases, "MOST_WHOLE", 0)
    free = answered(None).best
    assert whole is not None and free is not None and free.step <= 1.02 * whole.step
    limit = int(0.8 * max(free.memory))
    found = answered(limit)
    assert found.best is not None and max(found.best.memory) <= limit
    results = check_pipeline(found.certificate(), "seed", 50, CELLS)
    assert [r.reason for r in results if r.verdict is not Verdict.PROVED] == []
    assert answered(1 << 20).best is None


def test_a_value_is_reached_if_every_cut_has_a_line_at_it() -> None:
    rng = random.Random(3)
    for _ in range(150):
        n, m, limit = rng.randint(2, 7), rng.randint(1, 6), rng.randint(5, 20)
        runs = [
            {(i, j): rng.randint(0, 30) for i, j in itertools.combinations(range(n + 1), 2) if rng.random() < 0.7}
            for _ in range(3)
        ]
        one, updated, step = (closure(n, known) for known in runs)
        weight = [rng.randint(1, 6) for _ in range(n)]
        for i, j in itertools.combinations(range(n + 1), 2):
            if sum(weight[i:j]) > limit:
                one[i][j] = updated[i][j] = step[i][j] = IMPOSSIBLE
        forward = [rng.randint(0, 6) for _ in range(n)]
        there = [rng.randint(0, 3) for _ in range(n)]
        sends = [c + rng.randint(0, 3) for c in there]
        for p in range(2, n + 1):
            best = IMPOSSIBLE
            for cut in itertools.combinations(range(1, n), p - 1):
                worst = whole = ahead = 0
                for s, (i, j) in enumerate(itertools.pairwise((0, *cut, n))):
                    worst = max(worst, ahead + step[i][j], whole + m * one[i][j] if s else 0)
                    if j < n:
                        whole += (one if s else updated)[i][j] + sends[j]
                        ahead += sum(forward[i:j]) + there[j]
                best = min(best, worst)
            known = Bounds(one, updated, step)
            arguments = runs[0], runs[1], runs[2]
            for value in (best, best + 1):
                if value >= IMPOSSIBLE:
                    continue
                assert reached(known, forward, m, sends, there, p, value) == (value == best)
                checked = least_step(n, p, m, arguments, sends, (weight, limit), (value, forward, there))
                assert (checked == value) == (value == best) and checked <= value
