"""What a release needs says what is so: versions agree, continuous integration and hooks run what exists."""

from __future__ import annotations

import re
import tomllib
from pathlib import Path

import yaml

import shardproof

ROOT = Path(__file__).resolve().parent.parent
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
TARGETS = set(re.findall(r"^([a-z-]+):", (ROOT / "Makefile").read_text(encoding="utf-8"), re.MULTILINE))


def read(name: str) -> dict:
    return yaml.safe_load((ROOT / name).read_text(encoding="utf-8"))


def test_the_workflow_runs_the_commands_of_a_developer_on_every_supported_python() -> None:
    jobs = read(".github/workflows/test.yml")["jobs"]
    pythons = jobs["base"]["strategy"]["matrix"]["python"]
    classified = re.findall(r"Python :: (3\.\d+)", "\n".join(PROJECT["classifiers"]))
    assert pythons == classified and f">={pythons[0]}" == PROJECT["requires-python"]
    runs = [step["run"] for job in jobs.values() for step in job["steps"] if "run" in step]
    assert (ROOT / ".ci" / "run").stat().st_mode & 0o111 and runs[0] == ".ci/run"
    assert set(jobs["more"]["strategy"]["matrix"]["target"]) <= TARGETS and runs[1] == "make ${{ matrix.target }}"


def test_hooks_run_tests_and_tools_that_exist() -> None:
    (local,) = read(".pre-commit-config.yaml")["repos"]
    entries = [hook["entry"].split() for hook in local["hooks"]]
    assert all(words[:2] == [".venv/bin/python", "-m"] and words[2] in ("ruff", "pytest") for words in entries)
    assert all((ROOT / w).is_file() for words in entries for w in words if w.startswith("tests/"))


def test_the_version_has_its_part_of_the_changelog_and_of_the_citation() -> None:
    log = (ROOT / "CHANGELOG.md").read_text(encoding="utf-8")
    versions = re.findall(r"^## \[([\d.]+|Unreleased)\](?: - (\d{4}-\d\d-\d\d))?$", log, re.MULTILINE)
    assert [v for v, _ in versions[:2]] == ["Unreleased", shardproof.__version__]
    citation = read("CITATION.cff")
    assert (citation["version"], str(citation["date-released"])) == versions[1]
    assert citation["license"] == PROJECT["license"]
    released = log[log.index(f"## [{shardproof.__version__}]") :]
    assert len(released.splitlines()) <= 60 and not [line for line in released.splitlines() if len(line) > 130]


def test_a_format_that_the_changelog_names_is_one_of_ours() -> None:
    log = (ROOT / "CHANGELOG.md").read_text(encoding="utf-8")
    (named,) = re.findall(r"a number of its own \(`(shardproof-\w+/\d+)`\)", log)
    assert any(f'"{named}"' in p.read_text(encoding="utf-8") for p in (ROOT / "proofs").rglob("*.py"))


def test_what_is_said_of_hostile_files_names_pages_that_exist() -> None:
    text = (ROOT / "SECURITY.md").read_text(encoding="utf-8")
    for link, anchor in re.findall(r"\]\(([^)#]+)(?:#([^)]+))?\)", text):
        page = (ROOT / link).read_text(encoding="utf-8")
        heads = [
            re.sub(r"[^\w -]", "", h.lower()).replace(" ", "-") for h in re.findall(r"^#+ (.*)$", page, re.MULTILINE)
        ]
        assert not anchor or anchor in heads, (link, anchor)
