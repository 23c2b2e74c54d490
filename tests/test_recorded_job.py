"""A recorded step of a pipeline job (tests/data/pipeline_job: step 1010 of ByteDance-Seed/StragglerAnalysis 8efcd7f,
Apache-2.0) replayed under its dependencies, and the best order of its operations."""

from __future__ import annotations

import csv
from pathlib import Path

import pytest
from benchmarks.recorded_job import batches, best_order, observed, replayed

ROWS = list(csv.DictReader((Path(__file__).parent / "data/pipeline_job/step.csv").open()))
MEASURED = max(float(r["start_s"]) + float(r["duration_s"]) for r in ROWS)


def test_a_recorded_step_replays() -> None:
    ranks = batches(ROWS)
    assert len(ranks) == 8
    assert replayed(ranks, observed(ranks), True) == pytest.approx(MEASURED, rel=1e-6)
    assert 0.9 * MEASURED < replayed(ranks, observed(ranks), False) < MEASURED


def test_what_is_slower_makes_the_step_longer() -> None:
    """The last stage works all the time: a tenth of a second more in one of its forwards is almost a tenth more, as
    the other replica was a little later.
    """
    ranks = batches(ROWS)
    known = observed(ranks)
    key = next(b.key for b in ranks[6] if "forward-compute" in b.key)
    gap, time = known[key]
    later = replayed(ranks, {**known, key: (gap, time + 0.1)}, True) - MEASURED
    assert 0.08 < later < 0.1001


def test_the_best_order_of_a_recorded_step_is_proved() -> None:
    recorded, best, least = best_order(ROWS, batches(ROWS), 60.0)
    assert best == least and 0 < recorded - best < 0.05 * recorded
