"""Times of collectives: monotone, exact, six constants found again, and measured group sizes predicted from others."""

from __future__ import annotations

import csv
import sys
from fractions import Fraction
from pathlib import Path

import numpy as np
import pytest

from shardproof.formal.calibration.collective_times import Measured, Ratios, fit
from shardproof.models.cost.collective_times import CollectiveTime, Group, Operation
from shardproof.models.machine.rings import CUBE_MESH, rings

ROOT = Path(__file__).parent
DATA = ROOT / "data" / "measured"

TIME = CollectiveTime(
    *(Fraction(x) for x in ("5e-6", "8e-7", "5e-12", "1e-5", "2.7e-12", "1.5e-12")), ramp=Fraction(1, 8)
)


@pytest.mark.parametrize("operation", Operation)
@pytest.mark.parametrize("nodes", [1, 2])
def test_a_time_never_falls_with_bytes_or_ranks(operation: Operation, nodes: int) -> None:
    sizes = [0, 1, 512, 6_000, 10_000, 24_000, 10**6, 10**8, 10**10]
    table = [[TIME.seconds(operation, Group(n, nodes), b) for b in sizes] for n in (2, 4, 6, 8, 16)]
    assert all(isinstance(t, Fraction) for row in table for t in row)
    for row in table:
        assert row == sorted(row)
    for column in zip(*table, strict=True):
        if operation is not Operation.SEND_RECV and (nodes == 1 or operation is not Operation.ALL_TO_ALL):
            assert list(column) == sorted(column)


def test_groups_at_once_share_the_port() -> None:
    alone, eight = (TIME.seconds(Operation.ALL_GATHER, Group(4, 4, sharing=m), 10**10) for m in (1, 8))
    assert eight / alone == pytest.approx(8, rel=1e-3)
    with pytest.raises(ValueError, match="nodes <= ranks"):
        Group(2, 4)


def _all_reduce(gpu: str) -> dict[int, list[Measured]]:
    out: dict[int, list[Measured]] = {}
    with (DATA / "vtrain" / "all_reduce.csv").open(encoding="utf-8") as file:
        for row in csv.DictReader(file):
            n = int(row["ranks"])
            held = rings(CUBE_MESH, range(n)) if gpu == "V100" else 1
            if row["gpu"] == gpu and held:
                group = Group(n, rings=held)
                seconds = int(row["out_of_place_ns"]) / 1e9
                out.setdefault(n, []).append(Measured(Operation.ALL_REDUCE, group, int(row["bytes"]), seconds))
    return out


def _error(time: CollectiveTime, rows: list[Measured]) -> float:
    return float(np.mean([abs(float(time.seconds(r.operation, r.group, r.size)) / r.seconds - 1) for r in rows]))


def test_group_sizes_left_out_are_predicted_within_four_percent() -> None:
    rows = _all_reduce("A100")
    left_out = []
    for n in (3, 4, 5, 6, 7):
        found = fit([r for m in rows if m != n for r in rows[m]], Ratios(0.0, 0.0))
        left_out.append(_error(found.time, rows[n]))
    assert np.mean(left_out) < 0.04 and max(left_out) < 0.045
    ends = fit(rows[2] + rows[8], Ratios(0.0, 0.0))
    assert np.mean([_error(ends.time, rows[n]) for n in (3, 4, 5, 6, 7)]) < 0.04


def test_rings_of_the_cube_mesh_explain_the_sizes_of_v100_groups() -> None:
    rows = _all_reduce("V100")
    assert 5 not in rows  # five of the eight have no ring: their rate is not one of NVLink
    found = fit(rows[2] + rows[8], Ratios(0.0, 0.0))
    assert all(_error(found.time, rows[n]) < 0.08 for n in (3, 4, 6, 7))
    alike = fit(
        [Measured(r.operation, Group(r.group.ranks), r.size, r.seconds) for r in rows[2] + rows[8]], Ratios(0, 0)
    )
    assert alike.mean_error > 0.3 > 6 * found.mean_error  # behind a switch eight would not be three times as fast as


def test_one_group_size_borrows_what_it_cannot_separate() -> None:
    rows = _all_reduce("A100")
    found = fit(rows[2], Ratios(0.25, 0.5))
    assert found.borrowed
    assert float(found.time.hop / found.time.fixed) == pytest.approx(0.25, rel=1e-3)
    assert float(found.time.own / found.time.wire) == pytest.approx(0.5, rel=1e-3)


def test_the_families_are_judged(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(str(ROOT / "benchmarks"))
    for name in [m for m in sys.modules if m == "measured" or m.startswith("measured.")]:
        monkeypatch.delitem(sys.modules, name)
    from measured import collectives

    for judged, most in ((collectives.nccl, 0.05), (collectives.alpa, 0.08), (collectives.vidur, 0.25)):
        figures = judged(DATA, DATA)
        assert figures["rows"] > 30 and 0 < figures["mean_error"] < most, (judged, figures)
    assert collectives.nccl(DATA, DATA / "nowhere") == {"rows": 0}


@pytest.mark.parametrize("operation", Operation)
def test_links_that_slow_down_never_fall_either(operation: Operation) -> None:
    late = CollectiveTime(*(Fraction(x) for x in ("5e-6", "8e-7", "2e-12", "1e-4", "8e-12", "3e-12")), late=True)
    sizes = [0, 1, 512, 10**5, 10**7, 10**8, 10**10]
    times = [late.seconds(operation, Group(8, 2), b) for b in sizes]
    assert times == sorted(times)
    steps = [(b - a) / (y - x) for a, b, x, y in zip(times, times[1:], sizes, sizes[1:], strict=False)]
    if operation is not Operation.SEND_RECV:
        assert steps[-1] > steps[3], "a byte of a large buffer takes longer"


def test_late_links_are_found_again() -> None:
    true = CollectiveTime(*(Fraction(x) for x in ("4e-6", "1e-6", "1e-11", "4e-4", "4e-11", "4e-12")), late=True)
    rows = [
        Measured(
            Operation.ALL_REDUCE, Group(n, 2), 1 << b, float(true.seconds(Operation.ALL_REDUCE, Group(n, 2), 1 << b))
        )
        for n in (4, 8, 16)
        for b in range(10, 30)
    ]
    assert fit(rows, Ratios(0.0, 0.0), late=True).mean_error < 0.02 < fit(rows, Ratios(0.0, 0.0)).mean_error
