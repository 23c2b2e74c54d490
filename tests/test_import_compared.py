"""Imports are compared with the program that they came from: what differs is refused, with the place; what is not
compared is said.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

import shardproof
from shardproof.__main__ import run
from shardproof.backends.execution import differential
from shardproof.backends.execution.differential import SAMPLES, compare, sample, unlike
from shardproof.backends.kernels import KernelError
from shardproof.models.program.graph import Graph
from shardproof.models.sources.building.original import Differs, Original, Undefined, not_run
from shardproof.models.sources.numpy.program import ArraySpec, program
from shardproof.models.sources.numpy.trace import graph_of

PROGRAM = """
import numpy as np
from shardproof.models.sources.numpy.program import program

@program(x=(4, 3), w=(3, 5))
def layer(x, w):
    return np.maximum(x @ w, 0)
"""


def imported(function: Callable[..., object], **arguments: ArraySpec | tuple[int, ...]) -> tuple[Graph, Original]:
    taken: list[Original] = []
    specs = {n: a if isinstance(a, ArraySpec) else ArraySpec(a) for n, a in arguments.items()}
    return graph_of(function, "program", specs, taken.append), taken[0]


def test_the_command_line_says_what_was_compared(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file, out = tmp_path / "layer.py", tmp_path / "g.json"
    file.write_text(PROGRAM)
    assert run(["import", f"{file}:layer", "-o", str(out)]) == 0
    assert f"compared with NumPy {np.__version__} on 6 sets of numbers: equal" in capsys.readouterr().out
    assert "compared with NumPy" in json.loads(out.read_text())["compared"]
    assert run(["import", f"{file}:layer", "--no-compare", "-o", str(tmp_path / "h.json"), "--json"]) == 0
    told = json.loads(capsys.readouterr().out)
    assert told["compared"]["samples"] == 0 and told["compared"]["left_out"] == "--no-compare"
    assert Graph.from_json(out.read_text()).sha256() == told["sha256"]  # the note is no part of the identity
    plan = str(tmp_path / "p.spz")
    assert run(["plan", f"{file}:layer", "--machine", "localhost:2", "-o", plan, "--json"]) == 0
    assert "compared with NumPy" in json.loads(capsys.readouterr().out)["notes"][-1]
    assert run(["import", "mlp-unity", "--json"]) == 0
    assert "compared" not in json.loads(capsys.readouterr().out)


def test_a_difference_is_exit_3_wherever_a_model_is_given(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    file = tmp_path / "layer.py"
    file.write_text(PROGRAM)
    real = differential.run_graph
    monkeypatch.setattr(differential, "run_graph", lambda *a, **k: {n: v + 1 for n, v in real(*a, **k).items()})
    planned = ["plan", f"{file}:layer", "--machine", "localhost:2", "-o", str(tmp_path / "p.spz")]
    for words in (["import", f"{file}:layer"], planned):
        assert run(words) == 3
        assert "is not what NumPy" in capsys.readouterr().err
        assert not (tmp_path / "p.spz").exists()
        assert run([*words, "--no-compare"]) == 0
    with pytest.raises(Differs, match=r"layer: is not what NumPy .* computes \(generic numbers\): maximum\[0, 0\] is"):
        shardproof.plan(f"{file}:layer", "localhost:2")


def test_every_sample_finds_what_only_it_can() -> None:
    """An importer that is wrong in one way is caught by the set of numbers that shows it."""

    def of(wrong: Callable[[np.ndarray], np.ndarray], right: Callable[..., object], *ids: str) -> str:
        graph, original = imported(right, x=(40,), i=ArraySpec((6,), "int64"), m=ArraySpec((40,), "bool"))

        def run(values):
            return (np.asarray(wrong(**{n: values[n] for n in ("x", "i", "m") if n in values})),)

        with pytest.raises(Differs) as found:
            compare(graph, replace(original, run=run))
        return str(found.value)

    def all_of(x, i, m):
        return np.where(m, x, 0) + x[i].sum()

    told = of(lambda x, i, m: np.where(m, x, 0) + x[i].sum() * 2, all_of)
    assert "(generic numbers)" in told
    told = of(lambda x, i, m: np.where(m, x, 0) + x[np.abs(i)].sum(), all_of)
    assert "(negative numbers)" in told
    told = of(lambda x, i, m: np.minimum(x, 50) * m + 0 * i.sum(), lambda x, i, m: x * m + 0 * i.sum())
    assert "(special numbers)" in told
    told = of(lambda x, i, m: np.minimum(x, 8) * m + 0 * i.sum(), lambda x, i, m: x * m + 0 * i.sum())
    assert "(special numbers)" in told
    told = of(lambda x, i, m: np.where(x > 0, 1.0, 0.0) + 0 * i.sum(), lambda x, i, m: np.where(x >= 0, 1.0, 0.0))
    assert "(ties numbers)" in told


def test_gradients_are_compared_where_there_is_a_step() -> None:
    @program(x=(4, 3), w=ArraySpec((3, 5), "float64"))
    def layer(x, w):
        return np.tanh(x @ w)

    from shardproof.models.program.graph import Role

    graph, original = imported(layer, x=(4, 3), w=ArraySpec((3, 5), "float64", Role.PARAMETER))

    def gradients(values, output, weights):
        y = np.tanh(values["x"] @ values["w"])
        return {"w": values["x"].T @ (weights * (1 - y * y))}

    found = compare(graph, replace(original, gradients=gradients), trained=True)
    assert found.gradients == 1 and "gradients on 1" in found.words
    assert compare(graph, replace(original, gradients=gradients)).gradients == 0
    stopped = replace(original, gradients=lambda *a: {n: g * 0 for n, g in gradients(*a).items()})
    with pytest.raises(Differs, match="its gradients are not those of NumPy"):
        compare(graph, stopped, trained=True)


def test_what_is_not_compared_is_said(monkeypatch: pytest.MonkeyPatch) -> None:
    graph, original = imported(lambda x: x * 2, x=(3,))
    assert compare(graph, original, wanted=False).left_out == "--no-compare"
    assert compare(graph, not_run("PyTorch", "a saved program holds no module")).words == (
        "not compared with the program it came from: a saved program holds no module"
    )
    large, whole = imported(lambda x: x @ x, x=(500, 500))
    found = compare(large, whole)
    assert found.samples == 1 and "1 of 6 sets, one takes 3.8e+08 operations" in found.words
    monkeypatch.setattr(differential, "MOST_BYTES", 100_000)
    assert "one evaluation takes 3.8e+08 operations and 4 MiB" in compare(large, whole).left_out
    with pytest.raises(Differs, match="returns 2 arrays, the graph 1"):
        compare(graph, replace(original, run=lambda values: (values["x"] * 2,) * 2))


def test_what_our_kernels_cannot_run_is_said(monkeypatch: pytest.MonkeyPatch) -> None:
    def missing(*given: object, **options: object) -> dict[str, np.ndarray]:
        raise KernelError("operator 'mine'", "its kernel is not registered")

    monkeypatch.setattr(differential, "run_graph", missing)
    assert "it does not run here: operator 'mine'" in compare(*imported(lambda x: x * 2, x=(3,))).words


def test_numbers_that_the_framework_refuses_are_passed_over() -> None:
    graph, original = imported(lambda x, i: x[i], x=(3,), i=ArraySpec((2,), "int64"))
    found = compare(graph, original)  # outside: IndexError
    assert found.undefined == 1 and found.samples == len(SAMPLES) - 1

    def refuses(values):
        raise Undefined("never")

    assert compare(graph, replace(original, run=refuses)).left_out == "never"
    whole, cast = imported(lambda x: x.astype("int32"), x=(30,))
    assert compare(whole, cast).undefined == 1  # of NaN NumPy says nothing
    ordered, sorts = imported(lambda x: x * 2, x=(3,))
    assert compare(ordered, replace(sorts, ties=False)).samples == len(SAMPLES)


def test_samples_are_those_that_the_text_says() -> None:
    graph, _ = imported(
        lambda x, i, m: np.where(m, x, 0.5)[i], x=(30,), i=ArraySpec((50,), "int64"), m=ArraySpec((30,), "bool")
    )
    drawn = {kind: sample(graph, kind) for kind in SAMPLES}
    assert (drawn["outside"]["i"] < -30).any() and (drawn["outside"]["i"] > 29).any()
    assert (drawn["negative"]["i"] < 0).any() and np.abs(drawn["negative"]["i"]).max() <= 30
    assert drawn["negative"]["m"].all() and not drawn["outside"]["m"].any()
    assert {*np.unique(drawn["ties"]["x"])} <= {-2.0, -1.0, -0.5, 0.0, 0.5, 1.0, 2.0, 3.0}
    assert np.isnan(drawn["special"]["x"]).any() and np.isinf(drawn["special"]["x"]).any()
    assert all(
        np.array_equal(a, b, equal_nan=True)
        for a, b in zip(drawn["special"].values(), sample(graph, "special").values(), strict=True)
    )


@pytest.mark.parametrize(
    ("theirs", "own", "double", "same"),
    [
        ([1.0], [1.0], [1.0], True),
        ([1.0 + 1e-9], [1.0], [1.0], False),
        ([np.nan], [np.nan], [1.0], True),  # ours in the program's own type
        ([np.nan], [1.0], [1.0], False),
        ([1.0], [np.nan], [np.nan], False),
        ([np.inf], [-np.inf], [-np.inf], False),
        ([np.inf], [np.inf], [1e300], True),
        ([1.001], [1.0], [1.0005], True),  # rounding does that here
        ([1.0, 2.0], [1.0], [1.0], False),
    ],
)
def test_what_counts_as_the_same(theirs: list[float], own: list[float], double: list[float], same: bool) -> None:
    found = unlike(np.array(theirs), np.array(own), np.array(double), 2.0**-53)
    assert (found is None) == same
    whole = unlike(np.array([1, 2]), np.array([1, 3]), np.array([1, 3]), 2.0**-53)
    assert whole == "[1] is 2, ours 3 (1 of 2 elements differ)"
