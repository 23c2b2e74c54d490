"""What only one verb needs is loaded only by it: each verb in a fresh process, and what it loaded.

The names are those of docs/packages.md; that a checker loads no solver is `tests/test_import_directions.py`.
"""

from __future__ import annotations

import json
import re
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

import shardproof

ROOT = Path(__file__).resolve().parent.parent
HEAVY = {
    "z3", "pulp", "highspy", "cvxpy", "networkx", "sympy", "onnx", "numba", "torch", "jax", "mpi4py", "cupy", "scipy", "click", "rich",
}  # fmt: skip
MODULES = {"z3-solver": "z3", "cupy-cuda12x": "cupy", "PyYAML": "yaml"}
CODE = """
import json, runpy, sys
sys.argv = ["shardproof", *sys.argv[1:]]
try:
    runpy.run_module("shardproof", run_name="__main__", alter_sys=True)
except SystemExit as e:
    assert e.code in (0, 10), e.code
print("\\n" + json.dumps(sorted(m.partition(".")[0] for m in sys.modules if "." not in m)))
"""


def loaded(folder: Path, *words: str) -> set[str]:
    """Heavy packages that a command line loads."""
    done = subprocess.run(
        [sys.executable, "-c", CODE, *words],
        capture_output=True,
        text=True,
        check=False,
        cwd=folder,
        env={"PYTHONPATH": str(Path(shardproof.__file__).resolve().parent.parent), "PATH": "/usr/bin:/bin"},
        timeout=120,
    )
    assert done.returncode == 0, done.stderr
    return set(json.loads(done.stdout.splitlines()[-1])) & HEAVY


def test_verbs_load_what_they_need(tmp_path: Path) -> None:
    plan = str(tmp_path / "p.spz")
    search = loaded(tmp_path, "plan", "mlp-unity:batch=16", "--machine", "localhost:2", "-o", plan)
    assert "numba" in search and search <= {"numba", "rich", "click", "networkx", "highspy", "scipy"}, search
    assert loaded(tmp_path, "check", plan) <= {"click"}
    assert "networkx" in loaded(tmp_path, "report", plan, "-o", "page.html")
    assert "sympy" in loaded(tmp_path, "explain", plan, "--op", "fc1", "--symbolic")
    assert loaded(tmp_path, "machine", "show", "localhost") <= {"click"}
    place = ("place", "--hierarchy", "2x4", "--axes", "4,2")
    assert not loaded(tmp_path, *place) & {"z3", "pulp", "highspy"}
    assert "z3" in loaded(tmp_path, *place, "--engine", "smt") and "pulp" in loaded(tmp_path, *place, "--engine", "ilp")
    assert "z3" in loaded(tmp_path, "rules", "prove", str(ROOT / "examples" / "rules.json"), "--jobs", "1")


@pytest.mark.parametrize("package", ["z3-solver", "pulp", "highspy", "cvxpy", "networkx", "sympy"])
def test_the_page_names_every_file_that_imports_a_solver(package: str) -> None:
    page = (ROOT / "docs" / "packages.md").read_text(encoding="utf-8")
    row = next(line for line in page.splitlines() if line.startswith(f"| `{package}` |"))
    listed = {word for word in row.split("|")[2].replace("`", "").replace(",", " ").split() if "/" in word}
    module = re.compile(rf"^\s*(import|from) {MODULES.get(package, package)}\b", re.MULTILINE)
    folders = ("models", "proofs", "formal", "verify", "backends")
    files = [f for folder in folders for f in (ROOT / folder).rglob("*.py")]
    needed = {f.relative_to(ROOT).as_posix() for f in files if _imports(f.read_text(encoding="utf-8"), module)}
    assert needed == listed


def _imports(text: str, module: re.Pattern[str]) -> bool:
    """Whether a program imports it when it runs, not for types alone (a block `if TYPE_CHECKING` at the margin)."""
    return module.search(re.sub(r"^if TYPE_CHECKING:\n((    .*)?\n)+", "", text, flags=re.MULTILINE)) is not None


def required() -> list[str]:
    """Distributions that the package asks for, but those of its developers."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    extras = project["optional-dependencies"]
    listed = [*project["dependencies"], *extras["mpi"], *extras["torch"], extras["gpu"][0], extras["dev"][0]]
    return [d.split(">=")[0].split("[")[0] for d in listed]


@pytest.mark.parametrize("package", required())
def test_every_package_is_in_use_and_named(package: str) -> None:
    """An import in our code, and a row of the page whose files hold it."""
    page = (ROOT / "docs" / "packages.md").read_text(encoding="utf-8")
    module = MODULES.get(package, package)
    name = package.removesuffix("-cuda12x")
    row = next(line for line in page.splitlines() if line.startswith("|") and f"`{name}`" in line.split("|")[1])
    places = [word for word in row.split("|")[2].replace("`", "").replace(",", " ").split() if "/" in word]
    if not places:
        assert package == "numpy"
        return
    for place in places:
        path = ROOT / place
        files = [path] if path.is_file() else sorted(path.rglob("*.py"))
        texts = [f.read_text(encoding="utf-8") for f in files]
        words = (f"import {module}", f"from {module}") if package != "mpich" else ("mpiexec", "mpich")
        if package in ("click", "rich", "mpi4py", "mpich", "pytest", "hypothesis"):
            continue  # two packages share a row, of which some files hold one
        assert any(word in text for word in words for text in texts), (package, place)
