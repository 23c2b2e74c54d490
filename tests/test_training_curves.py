"""Small real data on MPI ranks: losses are those of one process, killed and resumed under three plans; the rules of the
benchmark refuse what is not.
"""

from __future__ import annotations

import sys
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from shardproof.backends.execution.launch import mpi_available

sys.path.insert(0, str(Path(__file__).resolve().parent / "benchmarks"))
import training_curves as curves
import training_feeds


@pytest.mark.mpi
@pytest.mark.slow
@pytest.mark.skipif(not mpi_available(), reason="mpi4py or mpiexec is not installed")
def test_curves_on_ranks_are_those_of_one_process(tmp_path: Path) -> None:
    found = curves.train(curves.MODELS["resnet"], tmp_path, 24, 10, 4)
    found.check()
    assert (len(found.one), len(found.killed), len(found.resumed["two"])) == (24, 10, 14)
    assert np.mean(found.one[-8:]) < found.one[0]
    assert curves.picture({"resnet": found}).count("<polyline") == 10


GOOD = curves.Curves(
    [3.0, 2.0, 1.0], [3.0, 2.0, 1.0], [3.0], {p: [2.0, 1.0] for p in curves.PLANS}, [1e-7] * 3, {"two": 1e-12}
)
WRONG = {
    "bits": (replace(GOOD, resumed={**GOOD.resumed, "batch": [2.0, 1.0 + 1e-15]}), "nobody killed"),
    "float32": (replace(GOOD, resumed={**GOOD.resumed, "two": [2.0, 1.0 + 2e-5]}), "resumed under two"),
    "no number": (replace(GOOD, resumed={**GOOD.resumed, "own": [2.0, float("nan")]}), "resumed under own"),
    "float64": (replace(GOOD, exact={"two": 2e-9}), "float64, two"),
}


@pytest.mark.parametrize("what", WRONG)
def test_curves_that_part_are_refused(what: str) -> None:
    GOOD.check()
    found, words = WRONG[what]
    with pytest.raises(curves.NotEqual, match=words):
        found.check()


def test_batches_of_real_data_depend_on_the_step_alone() -> None:
    for feed, name in ((training_feeds.letters, "words"), (training_feeds.digits, "image")):
        one, again, other = feed(7), feed(7), feed(8)
        assert all(np.array_equal(one[n], again[n]) for n in one) and not np.array_equal(one[name], other[name])
    text = bytes(training_feeds.letters(3)["words"][0].astype(np.uint8)).decode()
    assert text in (training_feeds.DATA / "text.txt").read_text()
    assert set(training_feeds.digits(1)["labels"]) <= set(range(10))
