"""The fit of measured attention: constants are found again, what is left out is predicted, and the machine files hold
what the rows give.
"""

from __future__ import annotations

import sys
from dataclasses import replace
from fractions import Fraction
from itertools import product
from pathlib import Path

import pytest

from shardproof.formal.calibration.attention_times import Attention, fit, seconds
from shardproof.formal.calibration.machine_forms import attention_form
from shardproof.models.machine.machine import load_machine
from shardproof.models.machine.measured import DIRECTIONS, AttentionForm
from shardproof.models.program.attention import operations
from shardproof.models.sources.building.attention import attention
from shardproof.models.sources.building.builder import Builder
from shardproof.models.text import InputError

ROOT = Path(__file__).parent


def rows_of(
    gpu: str,
    direction: str,
    monkeypatch: pytest.MonkeyPatch,
    tables: tuple[str, ...] = ("attention", "drawn-attention"),
) -> list[Attention]:
    monkeypatch.syspath_prepend(str(ROOT / "benchmarks"))
    for name in [m for m in sys.modules if m == "measured" or m.startswith("measured.")]:
        monkeypatch.delitem(sys.modules, name)
    from measured.attention import attention_rows

    return attention_rows(gpu, direction, tables=tables)


def test_constants_are_found_again() -> None:
    values = map(Fraction, ("5e-6", "2e-15", "2e-13", "1e-10", ".1", ".2"))
    true = AttentionForm("bfloat16", "backward", 100, *values)
    sizes = product((1, 8), (1, 16), (256, 2048, 8192), (64, 128), (False, True), (1.0,))
    rows = [Attention(*size) for size in sizes]
    found = fit([replace(r, seconds=float(seconds(true, r))) for r in rows], "bfloat16", "backward", 100)
    for name, value in true.constants():
        assert abs(getattr(found, name) / value - 1) < Fraction(1, 50), name
    with pytest.raises(InputError, match="no attention"):
        fit([], "bfloat16", "forward", 100)


def test_rows_count_what_the_cost_model_counts() -> None:
    g = Builder("g", "bfloat16")
    q, k, v = (g.input(n, (2, 16, 3, 8)) for n in "qkv")
    op = g.build(attention(g, "a", "b s h d, b t h d, b t h e -> b s h e", q, k, v, query="s", ahead=0)).operators[0]
    row = Attention(2, 3, 16, 8, True, 1.0)
    assert row.operations("forward") == operations(op) and row.operations("backward") == 10 * 8 + 14
    assert (row.rows, row.pairs, replace(row, causal=False).pairs) == (96, 6 * 136, 6 * 256)


@pytest.mark.parametrize("gpu", ["h100", "h200"])
@pytest.mark.parametrize("direction", DIRECTIONS)
def test_the_machine_files_hold_what_the_rows_give(gpu: str, direction: str, monkeypatch: pytest.MonkeyPatch) -> None:
    rows = rows_of(gpu, direction, monkeypatch)
    form, residual = attention_form("bfloat16", direction, rows, 132)
    machine = load_machine(f"dgx-{gpu}")
    for dtype in ("bfloat16", "float16"):
        known = machine.device.attention(dtype, direction)
        assert known is not None
        for name, value in known.constants():
            assert abs(float(getattr(form, name) - value)) <= 0.01 * float(value), name
    assert len(rows) == 86 and residual.mean < 0.09 and residual.held_out is not None and residual.held_out < 0.11
    place = f"device_class.{gpu}.attention.bfloat16.{direction}.pace"
    assert residual.words() in dict(machine.sources)[place]
    off = sorted(max(p / r.seconds, r.seconds / p) - 1 for r in rows for p in [float(seconds(form, r))])
    bar = dict(machine.bars)[place]
    assert sum(x <= bar for x in off) >= 0.9 * len(off) - 1 and off[int(0.9 * (len(off) - 1))] > float(bar) - 0.01


def test_the_roofline_misses_the_same_rows(monkeypatch: pytest.MonkeyPatch) -> None:
    """What the form is for: at the peak of dense products attention takes half as long as it does."""
    for direction, least in (("forward", 0.3), ("backward", 0.45)):
        rows = rows_of("h100", direction, monkeypatch)
        peak = float(load_machine("dgx-h100").device.peak("bfloat16"))
        off = [abs((2.4e-6 + r.pairs * r.operations(direction) / peak) / r.seconds - 1) for r in rows]
        assert sum(off) / len(off) > least


def test_shapes_drawn_after_the_fit_are_told(monkeypatch: pytest.MonkeyPatch) -> None:
    """Rows of another day's draw: nothing was fitted on them."""
    for direction in DIRECTIONS:
        rows = rows_of("h100", direction, monkeypatch, ("held-attention",))
        form = load_machine("dgx-h100").device.attention("bfloat16", direction)
        assert form is not None
        off = [abs(seconds(form, r) / r.seconds - 1) for r in rows]
        assert len(rows) == 48 and sum(off) / len(off) < 0.1
