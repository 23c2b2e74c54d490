"""Tables of audits (`benchmarks/audits.py`, `mlperf_audits.py`): machines with a level for each degree, and who was right."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parent / "benchmarks"))

import audits
import mlperf_audits

from shardproof.models.layout.targets.degrees import Flags
from shardproof.models.machine.machine import load_machine
from shardproof.models.sources.frameworks.placements import nested_degrees


@pytest.mark.parametrize(
    ("gpu", "tp", "cp", "copies", "levels"),
    [
        ("H100", 8, 2, 64, [("nodes", 64, 2 * 400), ("pairs", 2, 400), ("gpus", 8, 375)]),  # a pair is two nodes
        ("H200", 4, 2, 64, [("nodes", 64, 400), ("pairs", 2, 4 * 375), ("gpus", 4, 375)]),  # a pair is in one node
        ("GB200", 4, 2, 64, [("racks", 8, 3600), ("copies", 8, 8 * 720), ("pairs", 2, 4 * 720), ("gpus", 4, 720)]),
        ("GB200", 4, 2, 4, [("copies", 4, 8 * 720), ("pairs", 2, 4 * 720), ("gpus", 4, 720)]),
    ],
)
def test_every_degree_has_a_level(gpu: str, tp: int, cp: int, copies: int, levels: list[tuple[str, int, int]]) -> None:
    made = mlperf_audits.machine(gpu, tp, cp, copies)
    assert [(x.name, x.size, x.bandwidth / 10**9) for x in made.levels] == levels
    ways = nested_degrees(made, Flags("Megatron", tp=tp, cp=cp), copies)
    assert all(sum(d > 1 for d in degrees) <= 1 for degrees in ways[:3]) and ways[0][-1] == tp and ways[1][-2] == cp
    assert made.device == load_machine(mlperf_audits.KINDS[gpu]).device and not made.bars


def test_who_was_right_and_the_bar_that_the_other_groups_give() -> None:
    assert audits._said([1.0, 2.0], [3.0, 4.0]) == "right" == audits._said([-2.0, -1.0], [4.0, 3.0])
    assert audits._said([1.0, 2.0], [4.0, 3.0]) == "wrong" and audits._said([-1.0, 2.0], [3.0, 4.0]) == "undecided"
    groups = {
        "a": [{"cost": 1.0, "ms": 10.0}, {"cost": 2.0, "ms": 30.0}],  # a ratio of 3 where 2 is told
        "b": [{"cost": 1.0, "ms": 10.0}, {"cost": 2.0, "ms": 10.0}],
    }
    assert audits.found_elsewhere(groups, "b") == pytest.approx(0.5) and audits.found_elsewhere(groups, "a") == 1.0
