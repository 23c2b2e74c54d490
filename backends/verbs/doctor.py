"""The verb `doctor`: what is installed here, and which verbs lack something."""

from __future__ import annotations

import platform
import shutil
import subprocess
import sys
from dataclasses import dataclass
from importlib import metadata
from pathlib import Path
from typing import Final

import click

from ...models.terminal.combinations import Combinations
from ...models.terminal.console import Exit, emit, say
from ...models.terminal.options import json_option, refuse_combinations

SECONDS: Final = 10
"""Longest wait for a program that is asked for its version."""


@dataclass(frozen=True)
class Need:
    """`verb` needs the distributions `packages` (any one of those in a tuple), or `program`; `how` to get them."""

    verb: str
    packages: tuple[str, ...]
    how: str
    program: str = ""


NEEDS: Final = (
    Need("check, rules check", ("numpy",), "pip install shardproof"),
    Need(
        "plan, solve, audit, explain, report, diff", ("numpy", "numba", "highspy", "networkx"), "pip install shardproof"
    ),
    Need("solve, schedule --engine ilp|smt", ("pulp", "highspy", "z3-solver"), "pip install shardproof"),
    Need("solve, schedule --engine cp-sat", ("ortools",), "pip install 'shardproof[solvers]'"),
    Need("rules prove, rules generate", ("z3-solver", "sympy"), "pip install shardproof"),
    Need("machine calibrate", ("cvxpy",), "pip install shardproof"),
    Need("plan MODEL.onnx", ("onnx",), "pip install shardproof"),
    Need("plan FILE.py:NAME of PyTorch, equal, verify-job", ("torch",), "pip install 'shardproof[torch]'"),
    Need("run -n N, machine calibrate on ranks", ("mpi4py",), "pip install 'shardproof[mpi]'", "mpiexec"),
    Need("run --backend torch", ("torch",), "pip install 'shardproof[torch]'"),
    Need("run --backend cupy", ("cupy-cuda12x",), "pip install 'shardproof[gpu]'", "nvidia-smi"),
)
"""What a verb loads beside the standard library; what only one verb needs is loaded by it alone."""

EXPORTS: Final = (
    Need("a file of export --to jax", ("jax",), "pip install 'shardproof[jax]'"),
    Need("make docs", ("sphinx", "myst-parser", "furo"), "pip install 'shardproof[docs]'"),
)


@dataclass(frozen=True)
class NeedStatus:
    """One line: a need, the versions of what is there, and what is missing."""

    need: Need
    versions: tuple[tuple[str, str], ...]
    missing: tuple[str, ...]


def examine(need: Need) -> NeedStatus:
    """What is there of a need.

    >>> examine(Need("nothing", ("no-such-package",), "")).missing
    ('no-such-package',)
    """
    versions, missing = [], []
    for package in need.packages:
        try:
            versions.append((package, metadata.version(package)))
        except metadata.PackageNotFoundError:
            missing.append(package)
    if need.program and program(need.program) is None:
        missing.append(need.program)
    return NeedStatus(need, tuple(versions), tuple(missing))


def program(name: str) -> str | None:
    """Where a program is: beside this Python, or on the path."""
    own = Path(sys.prefix) / "bin" / name
    return str(own) if own.is_file() else shutil.which(name)


def version_line(words: list[str]) -> str:
    """The first line with a number in it that a program prints, else the first, or why there is none."""
    try:
        done = subprocess.run(words, capture_output=True, text=True, timeout=SECONDS, check=False)
    except (OSError, subprocess.TimeoutExpired) as error:
        return f"does not answer: {type(error).__name__}"
    text = (done.stdout or done.stderr).strip()
    lines = text.splitlines() or [f"exits with code {done.returncode}"]
    return " ".join(next((v for v in lines if any(c.isdigit() for c in v)), lines[0]).split())


@click.command("doctor")
@json_option
@refuse_combinations(Combinations("doctor", ("as_json",)))
def doctor_command(as_json: bool) -> int:
    """Say what is installed, which MPI and which GPU there are, and what is missing for which verb."""
    found = [examine(need) for need in (*NEEDS, *EXPORTS)]
    mpi, gpu = program("mpiexec"), program("nvidia-smi")
    which = {
        "mpi": "none" if mpi is None else f"{mpi}: {version_line([mpi, '--version'])}",
        "gpu": "none (no nvidia-smi)" if gpu is None else version_line([gpu, "-L"]),
    }
    try:
        own = metadata.version("shardproof")
    except metadata.PackageNotFoundError:
        own = "not installed; run from a checkout"
    about = {"shardproof": own, "python": platform.python_version(), "system": platform.platform(), **which}
    if as_json:
        verbs = [
            {"verb": f.need.verb, "there": dict(f.versions), "missing": list(f.missing), "how": f.need.how}
            for f in found
        ]
        emit({**about, "verbs": verbs})
        return Exit.DONE
    say(*(f"{name:<11} {text}" for name, text in about.items()), "")
    for f in found:
        there = ", ".join(f"{name} {version}" for name, version in f.versions)
        state = f"missing {', '.join(f.missing)}: {f.need.how}" if f.missing else f"ready ({there})"
        say(f"{f.need.verb:<42} {state}")
    return Exit.DONE
