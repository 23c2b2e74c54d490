"""Verb `capture`: programs that were written down are compared without their code; files that no run has are refused."""

from __future__ import annotations

import json
import random
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

torch = pytest.importorskip("torch")

import equality_pairs as pairs
import numpy as np

from shardproof.__main__ import run as command
from shardproof.models.sources.distributed.capture import capture
from shardproof.proofs.container.archive import read_container, write_container
from shardproof.proofs.container.canonical import ContainerError, canonical
from shardproof.proofs.equality.captured import CAPTURED, VALUES, decode_captured, write_captured

pytestmark = pytest.mark.torch
FILE = Path(pairs.__file__)
HERE = Path(__file__).parent


@pytest.fixture(scope="module")
def files(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    folder = tmp_path_factory.mktemp("captured")
    found = {}
    for name, ranks in (("mlp", None), ("pipeline", 2), ("pipeline_swapped", 2)):
        found[name] = folder / f"{name}.spz"
        words = ["capture", f"{FILE}:{name}", "-o", str(found[name]), *(["--ranks", str(ranks)] if ranks else [])]
        assert command(words) == 0
    return found


def told(capsys: pytest.CaptureFixture[str], *words: str) -> tuple[int, dict[str, Any]]:
    capsys.readouterr()
    code = command([*words, "--json"])
    return code, json.loads(capsys.readouterr().out)


def test_files_are_compared_as_their_programs_are(
    files: dict[str, Path], capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    for name, code in (("pipeline", 0), ("pipeline_swapped", 10)):
        proof = tmp_path / f"{name}.spz"
        live = told(capsys, "equal", f"{FILE}:mlp", f"{FILE}:{name}", "--ranks", "2")
        read = told(capsys, "equal", str(files["mlp"]), str(files[name]), "-o", str(proof))
        assert (live[0], read[0]) == (code, code)
        assert live[1]["reason"] == read[1]["reason"] and live[1]["inputs"] == read[1]["inputs"]
        assert proof.exists() == (code == 0)
    assert command(["check", str(tmp_path / "pipeline.spz")]) == 0


def test_the_module_is_the_verb(tmp_path: Path) -> None:
    words = [sys.executable, "-m", "shardproof.capture", f"{FILE}:mlp", "-o", str(tmp_path / "one.spz")]
    done = subprocess.run(words, capture_output=True, text=True, check=False, cwd=tmp_path, timeout=120)
    assert done.returncode == 0 and "compared with the run" in done.stdout, done.stderr


def test_what_goes_wrong_in_time_is_not_lost(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """A file holds values and steps; a job whose results are read before they are there is refused, not written."""
    timing = Path(__file__).parent / "equal_strangers" / "timing.py"
    for name in ("p_early", "p_nowait", "p_overwritten", "p_deadlock"):
        code, said = told(capsys, "capture", f"{timing}:{name}", "--ranks", "2", "-o", str(tmp_path / "r.spz"))
        assert code == 3 and "`equal` on the programs" in said["error"] and not (tmp_path / "r.spz").exists(), name


def test_what_is_kept_is_what_was_captured() -> None:
    found = [capture(pairs.pipeline, rank, 2, False) for rank in range(2)]
    read = decode_captured(read_container(write_captured(found, False)))
    assert not read.device
    for kept, one in zip(read.programs, found, strict=True):
        assert kept.program == one.program
        for source in one.program.sources:
            a, b = kept.arrays[source.number], np.asarray(one.arrays[source.number])
            assert a.dtype == b.dtype and a.shape == b.shape and a.tobytes() == b.tobytes()


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (("pipeline", "mlp"), "was written with --ranks"),
        (("mlp", "mlp"), "was written without --ranks"),
        (("mlp", "pipeline", "--ranks", "3"), "has 2; leave --ranks out"),
        (("mlp", "pipeline", "--grad"), "capture --grad"),
    ],
)
def test_pairs_that_do_not_fit_are_refused(
    files: dict[str, Path], words: tuple[str, ...], said: str, capsys: pytest.CaptureFixture[str]
) -> None:
    paths = [str(files[w]) if w in files else w for w in words]
    assert command(["equal", *paths]) == 3
    assert said in capsys.readouterr().err


def test_a_file_of_ranks_stands_beside_a_file(files: dict[str, Path], capsys: pytest.CaptureFixture[str]) -> None:
    assert command(["equal", str(files["mlp"]), f"{FILE}:pipeline", "--ranks", "2"]) == 3
    assert "is to be one too" in capsys.readouterr().err


def changed(value: Any, rng: random.Random) -> Any:
    """A JSON value with one part replaced by another."""
    if isinstance(value, dict) and value and rng.random() < 0.95:
        key = rng.choice(sorted(value))
        return {**value, key: changed(value[key], rng)}
    if isinstance(value, list) and value and rng.random() < 0.95:
        k = rng.randrange(len(value))
        if rng.random() < 0.1:
            return [*value[:k], *value[k + 1 :]]
        return [*value[:k], changed(value[k], rng), *value[k + 1 :]]
    if isinstance(value, int) and not isinstance(value, bool):
        return rng.choice([value + 1, value - 1, 0, -1, 1 << 40, 1 << 70])
    if isinstance(value, str):
        return rng.choice(["", "sum", "matmul", "full", "float64", "nonsense", "nan", "inf", "0x1p+900"])
    return rng.choice([None, True, [], {}, 7, "text"])


def test_hostile_files_are_refused_or_answered(
    files: dict[str, Path], capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    """Whatever one part of a file is replaced by: an exit code of ours, and no error that is not one."""
    rng, codes = random.Random(0), list[int]()
    for name in ("mlp", "pipeline"):
        members = read_container(files[name])
        head = json.loads(bytes(members[CAPTURED]))  # type: ignore[arg-type]
        for _ in range(100):
            (tmp_path / "x.spz").write_bytes(
                write_container(None, {**members, CAPTURED: canonical(changed(head, rng))})
            )
            pair = {**{k: str(v) for k, v in files.items()}, name: str(tmp_path / "x.spz")}
            codes.append(command(["equal", pair["mlp"], pair["pipeline"]]))
            capsys.readouterr()
    assert set(codes) <= {0, 3, 5, 10} and codes.count(3) > 100


def test_numbers_are_ones_of_their_type(files: dict[str, Path]) -> None:
    members = read_container(files["mlp"])
    values = np.asarray(members[VALUES]).copy()
    values[0] += 1  # no number of 32 bits
    with pytest.raises(ContainerError, match="float32 does not have"):
        decode_captured({**members, VALUES: values})
    values[0] -= 1
    with pytest.raises(ContainerError, match="fewer values"):
        decode_captured({**members, VALUES: values[:-1]})
