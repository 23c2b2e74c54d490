"""Options and fixtures of the whole suite: golden files, what a marker needs, repeatable property tests."""

from __future__ import annotations

import gc
import os
import runpy
import shutil
import signal
import sys
import threading
from collections.abc import Callable, Generator
from functools import cache
from importlib.util import find_spec
from pathlib import Path

import pytest
from dear_tests import DEAR
from hypothesis import settings

GOLDEN = Path(__file__).parent / "golden"

# All clocks three times as fast, here and in all that tests start: SHARDPROOF_TEST_CLOCK_SCALE=3.
if os.environ.get("SHARDPROOF_TEST_CLOCK_SCALE"):
    SCALED = Path(__file__).parent / "scaled_clocks"
    os.environ["PYTHONPATH"] = os.pathsep.join(filter(None, (str(SCALED), os.environ.get("PYTHONPATH"))))
    runpy.run_path(str(SCALED / "sitecustomize.py"))

# Tests start hundreds of commands and ranks.  Where bytecode may not be written each of them compiles the package again.
os.environ.pop("PYTHONDONTWRITEBYTECODE", None)
sys.dont_write_bytecode = False

# Shells ignore SIGINT in what they start with `&`, and so would every command that a test starts and interrupts.
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN and threading.current_thread() is threading.main_thread():
    signal.signal(signal.SIGINT, signal.default_int_handler)

# The same examples in every run: a failure on one machine is a failure on all.
settings.register_profile("repeatable", derandomize=True, deadline=None, print_blob=True)
settings.load_profile("repeatable")


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption(
        "--update-golden", action="store_true", help="write what the tests produce to tests/golden instead of comparing"
    )


@pytest.fixture
def golden(request: pytest.FixtureRequest) -> Callable[[str, str], None]:
    """`golden("name.txt", text)` compares text with tests/golden/name.txt; `pytest --update-golden` writes the file."""

    def compare(name: str, text: str) -> None:
        path = GOLDEN / name
        if request.config.getoption("--update-golden"):
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(text, encoding="utf-8")
            return
        if not path.exists():
            pytest.fail(f"{path} does not exist; create it with: pytest --update-golden", pytrace=False)
        assert text == path.read_text(encoding="utf-8"), (
            f"differs from {path}; if that is right: pytest --update-golden"
        )

    return compare


@pytest.fixture(scope="session")
def mpiexec() -> str:
    """Path of the mpiexec that belongs to the mpi4py of this environment (the MPICH wheel puts it beside python)."""
    beside = Path(sys.executable).parent / "mpiexec"
    found = str(beside) if beside.exists() else shutil.which("mpiexec")
    if found is None:
        pytest.skip("no mpiexec")
    return found


@cache
def _lacks(marker: str) -> str | None:
    """What keeps tests with this marker from running here, or None."""
    match marker:
        case "mpi":
            return None if find_spec("mpi4py") else "mpi4py is not installed: pip install 'shardproof[mpi]'"
        case "torch":
            return None if find_spec("torch") else "torch is not installed: pip install 'shardproof[torch]'"
        case "coq":
            return None if shutil.which("coqc") else "no coqc on the PATH"
        case "gpu":
            if not find_spec("cupy"):
                return "cupy is not installed: pip install 'shardproof[gpu]'"
            import cupy  # not before this marker is met: it loads CUDA

            try:
                return None if cupy.cuda.runtime.getDeviceCount() else "no GPU"
            except cupy.cuda.runtime.CUDARuntimeError as e:
                return f"no GPU: {e}"
    return None


def _from_the_end() -> bool:
    """Whether this is the second of two processes: it reads the files from the last to the first, so that each of them
    compiles one half, and finds the other compiled, where none was (a fresh clone).
    """
    return os.environ.get("PYTEST_XDIST_WORKER", "gw0") == "gw1"


@pytest.hookimpl(wrapper=True)
def pytest_make_collect_report(
    collector: pytest.Collector,
) -> Generator[None, pytest.CollectReport, pytest.CollectReport]:
    report = yield
    if isinstance(collector, pytest.Dir) and _from_the_end():
        report.result = list(reversed(report.result or []))
    return report


def pytest_collection_finish() -> None:
    """What is there now stays to the end: sixteen thousand tests are not looked through for cycles again and again."""
    gc.collect()
    gc.freeze()
    gc.set_threshold(10_000, 10, 10)


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    if "PYTEST_XDIST_WORKER" in os.environ:  # which wants one order in all of them
        items.sort(key=lambda item: item.path)
    names = {item.nodeid.removeprefix("tests/") for item in items}
    collected = {name.partition("[")[0] for name in names}
    gone = [n for n in DEAR if n.partition("[")[0] in collected and n not in names]
    if gone and not any("::" in word for word in config.args):
        raise pytest.UsageError(f"tests/dear_tests.py lists tests that are gone: {', '.join(gone)}")
    for item in items:
        if item.nodeid.removeprefix("tests/") in DEAR:
            item.add_marker("slow")
        for marker in ("mpi", "torch", "coq", "gpu"):
            if item.get_closest_marker(marker) and (reason := _lacks(marker)):
                item.add_marker(pytest.mark.skip(reason=reason))
