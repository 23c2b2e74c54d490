"""Peaks promised for Megatron's last rank: never below what was logged, and each part where its rule puts it."""

from __future__ import annotations

import csv
import sys
from dataclasses import replace
from pathlib import Path

import pytest

from shardproof.models.cost.training_memory import (
    Experts,
    Software,
    Split,
    Stage,
    Transformer,
    peak,
    total,
)

ROOT = Path(__file__).parent
DATA = ROOT / "data" / "measured"
GPT = Transformer(512, 8, 8, 64, 2048, 1024, 50304)
STAGE = Stage(((3, 0),), 4, 4, 4)


def test_states_of_the_optimizer_are_counted_by_hand() -> None:
    table, layer = 50304 * 512, 12 * 512 * 512 + 13 * 512
    parts = peak(GPT, Split(), STAGE, Software())
    count = table + 3 * layer + 2 * 512
    assert (parts["weights"], parts["gradients"], parts["optimizer"]) == (2 * count, 4 * count, 12 * count)
    assert parts["logits"] == 6 * 4 * 1024 * 50304
    shared = peak(GPT, Split(sharded=8), STAGE, Software())
    assert shared["optimizer"] == -(-12 * count // 8)
    assert total({k: v for k, v in parts.items()}) > total(shared)


def test_interleaving_holds_a_micro_batch_per_stage_and_chunk() -> None:
    plain = peak(GPT, Split(), STAGE, Software())["activations"]
    chunks = replace(STAGE, chunks=((1, 0),) * 3)
    assert peak(GPT, Split(), chunks, Software())["activations"] == pytest.approx(3 * plain)
    assert replace(chunks, in_turn=5).in_flight() == (11, 0)


def test_scores_kept_by_an_unfused_attention() -> None:
    fused, kept = (peak(GPT, Split(), STAGE, Software(fused_attention=f))["activations"] for f in (True, False))
    tokens = 4 * 1024
    assert kept - fused == 3 * tokens * (5 * 8 * 1024 - 2 * 512 - 4 * 8)
    halves = [peak(GPT, Split(tensor=t, sequence=True), STAGE, Software())["activations"] for t in (1, 2)]
    assert halves[0] == pytest.approx(2 * halves[1])


def test_experts_are_held_where_they_live() -> None:
    mixed = replace(GPT, bias=False, experts=Experts(8, 2, 1024))
    stage = Stage(((0, 3),), 4, 4, 4)
    all_here, four = (peak(mixed, Split(expert=e), stage, Software()) for e in (1, 4))
    assert all_here["weights"] - four["weights"] == 2 * 3 * 6 * 2 * 512 * 1024


@pytest.fixture
def megatron(monkeypatch: pytest.MonkeyPatch) -> object:
    monkeypatch.syspath_prepend(str(ROOT / "benchmarks"))
    for name in [m for m in sys.modules if m == "measured" or m.startswith("measured.")]:
        monkeypatch.delitem(sys.modules, name)
    from measured import megatron

    return megatron


def test_no_logged_peak_is_above_its_promise(megatron: object) -> None:
    with (DATA / "megatron" / "golden.csv").open(encoding="utf-8") as file:
        rows = list(csv.DictReader(file))
    over = {r["case"]: megatron.promised(r) / float(r["mem_max_allocated"]) - 1 for r in rows}  # type: ignore[attr-defined]
    assert len(over) > 30 and min(over.values()) >= 0, min(over.items(), key=lambda x: x[1])
    dense = [over[r["case"]] for r in rows if not r["experts"]]
    assert sum(x <= 0.05 for x in dense) > 0.7 * len(dense)
    figures = megatron.within(DATA, DATA)  # type: ignore[attr-defined]
    assert figures["rows"] == len(rows) and figures["below_measured"] == 0 and "unread" not in figures
    assert megatron.within(DATA, DATA / "nowhere") == {"rows": 0}  # type: ignore[attr-defined]
