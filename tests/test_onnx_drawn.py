"""Drawn ONNX programs and the node tests of the onnx wheel: what is imported has the reference's numbers.

`python tests/onnx_draws.py 0 20000` and `python tests/onnx_draws.py nodes` are the whole of it; here stand a sample, and by name
what they found.
"""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx_draws import REFUSED, Draw, Program, drawn, judged, modelled, of_the_wheel, ours

from shardproof.models.program.graph import UnsupportedOperators
from shardproof.models.sources.onnx.importer import load_onnx

SAMPLE = 300


def one(
    kind: str, inputs: dict[str, np.ndarray], stored: dict[str, np.ndarray] | None = None, opset: int = 13
) -> Program:
    """A program of one operator; stored tensors behind the inputs."""
    d = Draw(np.random.default_rng(0), opset, inputs=inputs, stored=stored or {})
    return Program(modelled(d, d.add(kind, [*inputs, *(stored or {})])), {**inputs, **(stored or {})}, kind)


def saved(program: Program, folder: Path) -> Path:
    onnx.save(program.model, str(folder / "one.onnx"))
    return folder / "one.onnx"


def test_drawn_programs_have_the_numbers_of_the_reference(tmp_path: Path) -> None:
    accepted = 0
    for seed in range(SAMPLE):
        try:
            program = drawn(seed)
        except Exception:  # noqa: BLE001, S112  # ONNX cannot make the model
            continue
        found = judged(program, tmp_path)
        assert not found or found.startswith(REFUSED), (program.words, found)
        accepted += not found
    assert accepted > 0.75 * SAMPLE


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore")
def test_the_node_tests_of_the_wheel_agree_with_their_own_outputs(tmp_path: Path) -> None:
    outcomes = [(program.words, judged(program, tmp_path, expected)) for program, expected in of_the_wheel()]
    assert [o for o in outcomes if o[1] and not o[1].startswith(REFUSED)] == []
    assert sum(not found for _, found in outcomes) > 150


@pytest.mark.parametrize("kept", ["stored", "fed"])
def test_rows_from_the_end_are_gathered(tmp_path: Path, kept: str) -> None:
    """They were rows of zeros: an embedding has no row -1."""
    table, ids = np.arange(8.0).reshape(4, 2), np.array([0, -1, -4])
    program = one("Gather", {"t": table, "i": ids}) if kept == "fed" else one("Gather", {"t": table}, {"i": ids})
    (found,) = ours(saved(program, tmp_path), program.feed)
    np.testing.assert_array_equal(found, table[ids])


def test_rows_of_old_files_and_known_rows_need_no_remainder(tmp_path: Path) -> None:
    table, ids = np.arange(8.0).reshape(4, 2), np.array([0, 3])
    for program in (one("Gather", {"t": table}, {"i": ids}), one("Gather", {"t": table, "i": ids}, opset=10)):
        assert [op.function for op in load_onnx(saved(program, tmp_path)).operators] == ["embedding"]


def test_quotients_and_means_of_whole_numbers_are_refused(tmp_path: Path) -> None:
    """ONNX cuts them towards zero; they were fractions."""
    x, y = np.array([7, -7, 1]), np.array([2, 2, 2])
    for program in (one("Div", {"x": x, "y": y}), one("ReduceMean", {"x": x.reshape(1, 3)})):
        with pytest.raises(UnsupportedOperators, match="whole numbers"):
            load_onnx(saved(program, tmp_path))


def test_shape_arithmetic_divides_towards_zero(tmp_path: Path) -> None:
    d = Draw(
        np.random.default_rng(0),
        13,
        inputs={"x": np.arange(6.0).reshape(2, 3)},
        stored={"a": np.array([-3]), "b": np.array([2])},
    )
    (target,) = d.add("Div", ["a", "b"])
    program = Program(modelled(d, d.add("Reshape", ["x", target])), {**d.inputs, **d.stored}, "")
    (found,) = ours(saved(program, tmp_path), program.feed)
    np.testing.assert_array_equal(
        found.reshape(-1), np.arange(6.0)
    )  # -3 / 2 is -1; floored it is -2, which is no shape


def test_a_sum_of_three_may_have_a_stored_scalar(tmp_path: Path) -> None:
    """It was refused: value '' is used before any node computes it."""
    program = one("Sum", {"x": np.arange(3.0), "y": np.ones(3)}, {"s": np.array(2.0)})
    (found,) = ours(saved(program, tmp_path), program.feed)
    np.testing.assert_array_equal(found, np.arange(3.0) + 3)
