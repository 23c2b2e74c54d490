"""The repository root is the package: what is listed is what exists, and there is one copy of everything.

Stories behind these tests (each happened while the layout was tried out): a subpackage that was not listed worked in
every editable install and was missing from the wheel; `conftest.py` in the root was shipped as
`shardproof/conftest.py`; pytest imported the root under the folder's name, so that every class existed twice and
`isinstance` failed; a shared environment tested another checkout.
"""

from __future__ import annotations

import re
import shutil
import subprocess
import sys
import sysconfig
import tomllib
import zipfile
from pathlib import Path

import pytest

import shardproof

ROOT = Path(__file__).resolve().parent.parent
ROOMS = ("backends", "formal", "models", "proofs", "verify")
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))
SETUPTOOLS = PROJECT["tool"]["setuptools"]


def found_packages() -> set[str]:
    inits = [init for room in ROOMS for init in (ROOT / room).rglob("__init__.py")]
    return {"shardproof"} | {".".join(("shardproof", *init.parent.relative_to(ROOT).parts)) for init in inits}


def test_listed_packages_are_the_folders() -> None:
    assert sorted(SETUPTOOLS["packages"]) == sorted(found_packages()), "edit packages in pyproject.toml"


def test_every_module_lies_in_a_package() -> None:
    orphans = [
        str(f.relative_to(ROOT))
        for room in ROOMS
        for f in (ROOT / room).rglob("*.py")
        if not (f.parent / "__init__.py").exists()
    ]
    assert orphans == [], "add __init__.py beside them"


def test_only_the_front_door_lies_in_the_root() -> None:
    # every *.py in the root would be shipped as a module of the package
    assert {p.name for p in ROOT.glob("*.py")} == {
        "__init__.py",
        "__main__.py",
        "answers.py",
        "api.py",
        "capture.py",
        "front_door.py",
        "limits.py",
        "on_ranks.py",
        "problems.py",
        "solutions.py",
    }
    assert {p.parent.name for p in ROOT.glob("*/__init__.py")} == set(ROOMS)


def test_data_files_are_listed() -> None:
    """Every file of the rooms that is not Python belongs to a pattern of package-data."""
    listed = {
        f
        for package, patterns in SETUPTOOLS["package-data"].items()
        for pattern in patterns
        for f in ROOT.joinpath(*package.split(".")[1:]).glob(pattern)
    }
    data = {
        f
        for room in ROOMS
        for f in (ROOT / room).rglob("*")
        if f.is_file() and f.suffix != ".py" and "__pycache__" not in f.parts and not f.name.startswith(".")
    }
    assert sorted(map(str, data - listed)) == [] and ROOT / "py.typed" in listed


def test_this_checkout_is_the_one_under_test() -> None:
    here = Path(shardproof.__file__).resolve().parent
    assert here in (ROOT, Path(sysconfig.get_paths()["purelib"], "shardproof").resolve())


def test_no_module_is_loaded_twice() -> None:
    """Nothing of the rooms is known under a name that does not start with `shardproof.`."""
    import shardproof.models.program.graph  # noqa: F401 - at least one module to look at

    names = {
        name
        for name, module in sys.modules.items()
        if (file := getattr(module, "__file__", None))
        and any(Path(file).resolve().is_relative_to(ROOT / room) for room in ROOMS)
    }
    assert "shardproof.models.program.graph" in names and {n for n in names if not n.startswith("shardproof.")} == set()


def test_version_is_written_alike() -> None:
    assert shardproof.__version__ == PROJECT["project"]["version"]


@pytest.mark.parametrize("name", shardproof.__all__)
def test_every_public_name_exists(name: str) -> None:
    if name == "torch":
        pytest.importorskip("torch")
    assert getattr(shardproof, name) is not None and name in dir(shardproof)


@pytest.mark.parametrize("name", ["nonsense", "formals"])
def test_unknown_names_are_attribute_errors(name: str) -> None:
    with pytest.raises(AttributeError, match=f"no attribute '{name}'"):
        getattr(shardproof, name)


def test_importing_the_package_imports_nothing_else() -> None:
    code = (
        "import sys; before = set(sys.modules); import shardproof; print(sorted(m for m in set(sys.modules) - before "
        "if 'shardproof' in m))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, cwd=ROOT.parent)
    assert re.findall(r"'([^']*)'", done.stdout.replace("__editable___", "")) == ["shardproof"]


@pytest.mark.slow
def test_wheel_holds_the_package_and_nothing_else(tmp_path: Path) -> None:
    """Builds from a copy, so that no build folder appears in the checkout; needs setuptools from the package index."""
    copy = tmp_path / "a copy"
    shutil.copytree(
        ROOT,
        copy,
        ignore=shutil.ignore_patterns(".git", ".venv", "out", "build", "dist", "*.egg-info", "__pycache__", ".*_cache"),
    )
    subprocess.run(
        [sys.executable, "-m", "pip", "wheel", "--quiet", "--no-deps", "-w", str(tmp_path), str(copy)], check=True
    )
    (wheel,) = tmp_path.glob("shardproof-*.whl")
    names = {n for n in zipfile.ZipFile(wheel).namelist() if ".dist-info/" not in n}
    code = {f.relative_to(ROOT) for room in ROOMS for f in (ROOT / room).rglob("*.py")} | {
        Path("__init__.py"),
        Path("__main__.py"),
        Path("py.typed"),
    }
    data = {
        f.relative_to(ROOT)
        for f in (
            *(ROOT / "models" / "machine" / "builtin").glob("*.toml"),
            *(ROOT / "proofs" / "rewrites" / "library").glob("*.spz"),
        )
    }
    assert {f"shardproof/{f.as_posix()}" for f in code | data} <= names
    assert not any(n.split("/")[1] in {"tests", "docs", "bench", ".ci"} for n in names)


@pytest.mark.slow
def test_the_source_distribution_builds_and_runs_elsewhere(tmp_path: Path) -> None:
    """sdist -> wheel -> a folder of its own -> plan and check, with nothing of the checkout in reach."""
    copy, out, site = tmp_path / "a copy", tmp_path / "out", tmp_path / "site"
    shutil.copytree(
        ROOT,
        copy,
        ignore=shutil.ignore_patterns(".git", ".venv", "out", "build", "dist", "*.egg-info", "__pycache__", ".*_cache"),
    )
    out.mkdir()
    build = f"from setuptools.build_meta import build_sdist; build_sdist({str(out)!r})"
    subprocess.run([sys.executable, "-c", build], check=True, cwd=copy, capture_output=True)
    (source,) = out.glob("shardproof-*.tar.gz")
    pip = [sys.executable, "-m", "pip", "--quiet", "--disable-pip-version-check"]
    subprocess.run([*pip, "wheel", "--no-deps", "-w", str(out), str(source)], check=True)
    (wheel,) = out.glob("shardproof-*.whl")
    subprocess.run([*pip, "install", "--no-deps", "--target", str(site), str(wheel)], check=True)
    shutil.rmtree(copy)

    def run(*words: str) -> str:
        done = subprocess.run(
            [sys.executable, *words],
            capture_output=True,
            text=True,
            check=False,
            cwd=tmp_path,
            env={"PYTHONPATH": str(site), "PATH": "/usr/bin:/bin"},
        )
        assert done.returncode == 0, done.stderr
        return done.stdout

    assert str(site) in run("-c", "import shardproof; print(shardproof.__file__)")
    run("-m", "shardproof", "plan", "mlp-unity:batch=16", "--machine", "dgx-a100:1x2", "-o", "p.spz")
    assert "Optimal      proved" in run("-m", "shardproof", "check", "p.spz")
    assert "figure-9-reduction" in run("-m", "shardproof", "rules", "show", "figure-9-reduction")
    with zipfile.ZipFile(wheel) as held:
        (entry,) = (n for n in held.namelist() if n.endswith("METADATA"))
        metadata = held.read(entry).decode()
    assert all(f"Provides-Extra: {extra}" in metadata for extra in PROJECT["project"]["optional-dependencies"])
