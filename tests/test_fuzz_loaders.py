"""Every loader accepts or refuses: no hostile file is an internal error, a hang or a grab for memory
(`fuzz_loaders`; 100,000 cases each in the slow part).
"""

from __future__ import annotations

import importlib.util
import json
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
from fuzz_loaders import LOADERS, PASE, case, fuzz, graphs, problem
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from shardproof.formal.plans.strategy import read_strategy
from shardproof.models.machine.machine import Machine, load_machine
from shardproof.models.program.graph import Graph
from shardproof.proofs.selection.load import selection_problem
from shardproof.proofs.selection.problem_file import problem_json

CASES, SLOW_CASES = 60, 100_000
NEEDS = {"onnx": "onnx", "PyTorch program": "torch"}


@pytest.mark.parametrize("name", LOADERS)
def test_accepted_or_refused(name: str) -> None:
    if name in NEEDS and importlib.util.find_spec(NEEDS[name]) is None:
        pytest.skip(f"{NEEDS[name]} is not installed")
    found = fuzz(name, range(CASES))
    assert found.other == [] and found.accepted + found.refused == CASES
    assert found.refused >= CASES // 10, "these cases test nothing"


@pytest.mark.slow
@pytest.mark.timeout(7200)
@pytest.mark.parametrize("name", LOADERS)
def test_accepted_or_refused_a_hundred_thousand_times(name: str) -> None:
    if name in NEEDS and importlib.util.find_spec(NEEDS[name]) is None:
        pytest.skip(f"{NEEDS[name]} is not installed")
    script = Path(__file__).with_name("fuzz_loaders.py")
    done = subprocess.run(
        [sys.executable, str(script), "--cases", str(SLOW_CASES), name], capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stdout + done.stderr


def test_valid_files_are_accepted_and_cases_are_reproducible(tmp_path: Path) -> None:
    for name, loader in LOADERS.items():
        if name in NEEDS and importlib.util.find_spec(NEEDS[name]) is None:
            continue
        seeds = loader.seeds()
        (tmp_path / "m.toml").write_bytes(LOADERS["machine"].seeds()[0])
        for seed in seeds if not name.endswith("name") else seeds[:1]:
            (tmp_path / loader.name).write_bytes(seed)
            loader.load(tmp_path / loader.name)
        assert [case(name, k) for k in range(5)] == [case(name, k) for k in range(5)]
        assert len({case(name, k) for k in range(50)} - set(seeds)) > 25


def test_the_fuzzer_says_no() -> None:
    """A loader with a fault of each kind is found out."""
    from dataclasses import replace

    import fuzz_loaders

    def faulty(path: Path) -> object:
        data = path.read_bytes()
        if data.startswith(b'{"'):
            raise KeyError("x")
        raise ValueError("not one of ours")

    before = LOADERS["strategy"]
    try:
        LOADERS["strategy"] = replace(before, load=faulty)
        found = fuzz("strategy", range(20))
        assert len(found.other) == 20 and {what[:9] for _, what in found.other} <= {"KeyError:", "ValueErro"}
        fuzz_loaders.HANG_S = 0.2
        LOADERS["strategy"] = replace(before, load=lambda _: [None for _ in iter(int, 1)])
        assert "longer than" in fuzz("strategy", range(1)).other[0][1]
    finally:
        LOADERS["strategy"] = before
        fuzz_loaders.HANG_S = 10


scalars = (
    st.none() | st.booleans() | st.integers(-(2**70), 2**70) | st.integers(-3, 9) | st.floats() | st.text(max_size=6)
)
junk = st.recursive(
    scalars,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=4), inner, max_size=3),
    max_leaves=6,
)


def like(value: object) -> st.SearchStrategy[object]:
    """JSON values shaped like `value`: here and there junk, a part missing, an element more."""
    if isinstance(value, dict):
        same: st.SearchStrategy[object] = st.fixed_dictionaries(
            {}, optional={k: like(v) for k, v in value.items()}
        ) | st.fixed_dictionaries({k: like(v) for k, v in value.items()})
    elif isinstance(value, list) and value:
        same = st.lists(like(value[0]), max_size=3) | st.tuples(*(like(v) for v in value[:6])).map(list)
    elif isinstance(value, int) and not isinstance(value, bool):
        same = st.just(value) | st.integers(-2, 2**33)
    else:
        same = st.just(value)
    return st.one_of(same, same, same, same, same, same, same, junk)


READERS: dict[str, tuple[Callable[[str], object], object]] = {
    "graph": (Graph.from_json, json.loads(graphs()[0])),
    "machine": (Machine.from_json, json.loads(load_machine("summit").to_json())),
    "own problem": (lambda text: selection_problem(text.encode(), "f"), json.loads(problem_json(problem()))),
    "PaSE tables": (lambda text: selection_problem(text.encode(), "f"), PASE),
    "strategy": (read_strategy, {"fc1": {"b": {"ranks": 2}}, "x*": None}),
}


@pytest.mark.parametrize("name", READERS)
def test_structures_of_any_shape(name: str) -> None:
    read, value = READERS[name]

    @settings(max_examples=30, deadline=None, derandomize=True, suppress_health_check=list(HealthCheck), database=None)
    @given(like(value))
    def accepted_or_refused(document: object) -> None:
        try:
            read(json.dumps(document))
        except ValueError as error:
            assert type(error).__module__.startswith("shardproof."), error

    accepted_or_refused()
