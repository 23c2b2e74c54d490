"""Figures in README and docs are those of the page that they cite, made by the options that they name."""

from __future__ import annotations

import re
import shlex
from pathlib import Path

import pytest

from shardproof.formal.verbs.plan import plan_command

ROOT = Path(__file__).resolve().parent.parent
RESULTS = ROOT / "tests/benchmarks/results"
SCRIPTS = ROOT / "tests/benchmarks"
PAGES = sorted(p for p in RESULTS.glob("*.md") if p.name != "runs.md")  # runs.md has a command in every row
UNSAID = {"--machine", "-o", "--output", "--json"}
"""Options that change no figure, or are the column of a table."""


def words_of(command: str) -> set[str]:
    """Options of a command line."""
    return {w for w in shlex.split(command, comments=False, posix=False) if w.startswith("-")}


def plan_options(page: Path) -> list[str]:
    """Options of `shardproof plan ..` lines of a page, with their values."""
    lines = re.findall(r"^    shardproof plan (.*)$", page.read_text(encoding="utf-8"), re.MULTILINE)
    found: list[str] = []
    for line in lines:
        parts = line.split()
        for k, word in enumerate(parts):
            if word.startswith("-") and word not in UNSAID:
                value = parts[k + 1] if k + 1 < len(parts) and not parts[k + 1].startswith("-") else ""
                found.append(f"{word} {value}".strip())
    return sorted(set(found))


@pytest.mark.parametrize("page", PAGES, ids=lambda p: p.stem)
def test_a_page_of_results_names_the_command_that_made_it(page: Path) -> None:
    text = page.read_text(encoding="utf-8")
    scripts = re.findall(r"python (?:-m )?tests[/.](?:benchmarks[/.])?(\w+)(?:\.py)?((?: --?[\w-]+)*)", text)
    named = [(f, o) for s, o in scripts for f in (SCRIPTS / f"{s}.py", SCRIPTS.parent / f"{s}.py") if f.is_file()]
    assert named, "names no script of tests/benchmarks, nor one beside it"
    for script, options in named:
        source = script.read_text(encoding="utf-8")
        for option in words_of(options):
            assert f'"{option}"' in source, f"{script.name} has no option {option}"


def test_options_of_plans_on_pages_exist() -> None:
    known = {o for p in plan_command.params for o in (*p.opts, *p.secondary_opts)}
    for page in PAGES:
        for option in plan_options(page):
            assert option.split()[0] in known, (page.name, option)


def paragraphs(text: str) -> list[str]:
    """Paragraphs and items of lists."""
    return re.split(r"\n\s*\n|\n(?=[*|] )", text)


def citations(page: str) -> list[tuple[str, str]]:
    """(file, paragraph) of README, docs and the page of what was measured that cite a page of results."""
    found = []
    pages = [p for p in sorted((ROOT / "docs").rglob("*.md")) if p.parent.name != "history"]
    for file in (ROOT / "README.md", RESULTS / "measured.md", *pages):
        link = f"]({page}" if file.parent == RESULTS else f"benchmarks/results/{page}"
        found += [(file.name, p) for p in paragraphs(file.read_text(encoding="utf-8")) if link in p]
    return found


def test_figures_of_steps_on_gpus_are_those_of_their_page_with_its_options() -> None:
    """README said 3.0 % of steps planned with `--attention fused`, which was no default and nowhere said."""
    page = (RESULTS / "gpu.md").read_text(encoding="utf-8")
    options = plan_options(RESULTS / "gpu.md")
    means = re.findall(r"Mean error of a step ([\d.]+)%, worst (\d+)%", page)
    assert len(means) == 2 and options
    cited = [(f, p) for f, p in citations("gpu.md") if "H200" in p and "steps" in p]
    assert {f for f, _ in cited} >= {"README.md", "measured.md"}
    for file, text in cited:
        said = re.findall(r"([\d.]+) %", text.replace("*", ""))
        for mean, worst in means:
            assert mean in said and worst in said, (file, mean, worst)
        for option in options:
            assert option in text, f"{file} does not say {option}"


def test_the_script_of_that_page_plans_with_the_options_that_the_page_names() -> None:
    source = (SCRIPTS / "gpu_predicted.py").read_text(encoding="utf-8")
    (listed,) = re.findall(r"^OPTIONS = \[(.*)\]$", source, re.MULTILINE)
    given = [w.strip('" ') for w in listed.split(",")]
    assert [" ".join(given)] == plan_options(RESULTS / "gpu.md")
    assert "*OPTIONS" in source and '"--attention"' not in source
