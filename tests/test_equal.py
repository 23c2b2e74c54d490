"""Verb `equal`: what people got wrong in public reports is different, with the tensor named; the right variants are
equal, proved, and kept.
"""

from __future__ import annotations

import json
from pathlib import Path

import pytest

pytest.importorskip("torch")

import equality_pairs as pairs

from shardproof.__main__ import run as command
from shardproof.formal.equality.question import Held, Question
from shardproof.models.sources.distributed.capture import Unreadable, capture

pytestmark = pytest.mark.torch
FILE = Path(pairs.__file__)
CASES = [(s, right, ranks, grad, "equal") for s, right, _, ranks, grad in pairs.FAMILIES] + [
    (s, wrong, ranks, grad, "different") for s, _, many, ranks, grad in pairs.FAMILIES for wrong in many
]


def run(capsys: pytest.CaptureFixture[str], *words: str) -> tuple[int, dict[str, object]]:
    code = command([*words, "--json"])
    return code, json.loads(capsys.readouterr().out)


@pytest.mark.parametrize(("single", "distributed", "ranks", "grad", "verdict"), CASES, ids=[c[1] for c in CASES])
def test_families(
    single: str,
    distributed: str,
    ranks: int,
    grad: bool,
    verdict: str,
    capsys: pytest.CaptureFixture[str],
    tmp_path: Path,
) -> None:
    words = [f"{FILE}:{single}", f"{FILE}:{distributed}", "--ranks", str(ranks), "-o", str(tmp_path / "c.spz")]
    code, found = run(capsys, "equal", *words, *(["--grad"] if grad else []))
    assert (code, found["verdict"]) == ({"equal": 0, "different": 10}[verdict], verdict), found["reason"]
    if verdict == "equal":
        code, checked = run(capsys, "check", str(tmp_path / "c.spz"))
        assert code == 0 and checked["verdict"] == "proved"
    else:
        assert found["output"] or "collectives" in str(found["reason"])
        assert not (tmp_path / "c.spz").exists()


def test_a_part_of_a_sum_is_different_unless_it_is_asked_for(
    capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    words = [f"{FILE}:mlp_open", f"{FILE}:mlp_open_tp", "--ranks", "2"]
    assert run(capsys, "equal", *words)[1]["verdict"] == "different"
    layouts = tmp_path / "layouts.json"
    layouts.write_text('{"outputs": {"output": {"partial": "sum"}}}')
    assert run(capsys, "equal", *words, "--layouts", str(layouts))[1]["verdict"] == "equal"
    layouts.write_text('{"outputs": {"output": {"partial": "mean"}}}')
    assert command(["equal", *words, "--layouts", str(layouts)]) == 3
    layouts.write_text('{"outputs": {"nothing": "whole"}}')
    assert command(["equal", *words, "--layouts", str(layouts)]) == 3


def test_what_is_written_down_is_what_ran() -> None:
    """Every single program on its own inputs, in NumPy, beside what PyTorch gave."""
    import numpy as np

    from shardproof.formal.equality.numbers import run_single

    for single, _, _, _, grad in pairs.FAMILIES:
        held = capture(getattr(pairs, single), None, 1, grad)
        values = run_single(
            held.program, {n: np.asarray(a, np.float64) if a.dtype.kind == "f" else a for n, a in held.arrays.items()}
        )
        for (name, number), result in zip(held.program.outputs, held.results, strict=True):
            assert np.allclose(values[number], result, rtol=1e-3, atol=1e-4), (single, name)


@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("draws", "random"),
        ("reads_host", "on the host"),
        ("picks", "depends on data"),
        ("nothing", "returns no tensor"),
    ],
)
def test_what_cannot_be_read_is_refused_by_name(name: str, words: str) -> None:
    with pytest.raises(Unreadable, match=words):
        capture(getattr(pairs, name), None, 1, False)


def test_tensors_of_no_part_are_refused() -> None:
    one, two = capture(pairs.mlp, None, 1, False), capture(pairs.mlp_other_weights, 0, 1, False)
    with pytest.raises(ValueError, match="no part of any tensor"):
        Question(Held(one.program, one.arrays), [Held(two.program, two.arrays)])
