"""Every output pasted into README and docs comes from its command: the fenced blocks are executed and compared line by line.

A block line `$ shardproof ..` is run; `$ cat FILE` writes the lines below it to FILE; `..` stands for lines left out.
Every other line must occur in the command's output, in order.
"""

from __future__ import annotations

import re
import shlex
from pathlib import Path

import click
import pytest

from shardproof.__main__ import VERBS, cli, run

ROOT = Path(__file__).resolve().parent.parent
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md"))]


def blocks(text: str, language: str) -> list[str]:
    """Fenced blocks of a language, '' for those without a name."""
    fences = re.findall(r"^```(\w*)\n(.*?)^```$", text, re.MULTILINE | re.DOTALL)
    return [body for name, body in fences if name == language]


def commands(text: str) -> list[tuple[str, list[str]]]:
    """(command, lines below it) of every fenced block."""
    found: list[tuple[str, list[str]]] = []
    for block in blocks(text, ""):
        for line in block.splitlines():
            if line.startswith("$ "):
                found.append((line[2:], []))
            elif found:
                found[-1][1].append(line)
    return found


def squeeze(line: str) -> str:
    return " ".join(line.split())


def as_a_clone(folder: Path) -> None:
    """Files that pages name lie where a clone has them."""
    for name in ("tests", "examples"):
        (folder / name).symlink_to(ROOT / name)


WITH_COMMANDS = [p for p in PAGES if commands(p.read_text(encoding="utf-8"))]


NEEDS_TORCH = ("tutorial.md",)


def marked(pages: list[Path]) -> list[object]:
    """Pages as parameters, those with PyTorch models marked."""
    return [
        pytest.param(
            p,
            id=p.relative_to(ROOT).as_posix(),
            marks=[pytest.mark.torch] if p.name in NEEDS_TORCH else [],
        )
        for p in pages
    ]


@pytest.mark.parametrize("page", marked(WITH_COMMANDS))
def test_outputs(
    page: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("COLUMNS", "200")
    as_a_clone(tmp_path)
    ran = 0
    for command, lines in commands(page.read_text(encoding="utf-8")):
        words = shlex.split(command)
        expected = [squeeze(line) for line in lines if line.strip() and line.strip() != ".."]
        if words[0] == "cat":
            Path(words[1]).write_text("\n".join(lines) + "\n", encoding="utf-8")
            continue
        assert words[0] == "shardproof" and words[1] in VERBS, command
        run(words[1:])
        ran += 1
        seen = iter([squeeze(line) for line in capsys.readouterr().out.splitlines()])
        for line in expected:
            assert line in seen, (
                f"{command}: the line {line!r} of {page.name} is not in the output, or not in this order"
            )
    assert ran


@pytest.mark.parametrize("page", WITH_COMMANDS, ids=lambda p: p.relative_to(ROOT).as_posix())
def test_commands_are_understood(page: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Every verb, option and value of a page; nothing is run."""
    monkeypatch.chdir(tmp_path)
    as_a_clone(tmp_path)
    for line, _ in commands(page.read_text(encoding="utf-8")):
        program, *words = shlex.split(line)
        if program == "shardproof":
            command: click.Command | None = cli
            context, name = click.Context(cli), program
            while isinstance(command, click.Group) and words:
                name, *words = words
                command = command.get_command(context, name)
            assert command is not None, line
            command.make_context(name, words, parent=context)


WITH_PYTHON = [p for p in PAGES if blocks(p.read_text(encoding="utf-8"), "python")]


@pytest.mark.parametrize("page", WITH_PYTHON, ids=lambda p: p.name)
def test_python(
    page: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Blocks of Python run, one after another, in one namespace; blocks of `output` are what they print."""
    monkeypatch.chdir(tmp_path)
    as_a_clone(tmp_path)
    namespace: dict[str, object] = {}
    for body in blocks(page.read_text(encoding="utf-8"), "python"):
        exec(body, namespace)  # noqa: S102
    assert namespace
    seen = iter(capsys.readouterr().out.splitlines())
    for line in [line for body in blocks(page.read_text(encoding="utf-8"), "output") for line in body.splitlines()]:
        assert line in seen, f"the line {line!r} of {page.name} is not printed, or not in this order"


def test_the_readme_runs_its_jobs() -> None:
    """Both commands' outputs and the three jobs stay in the README."""
    verbs = {shlex.split(c)[1] for c, _ in commands(PAGES[0].read_text(encoding="utf-8")) if not c.startswith("cat ")}
    assert {"plan", "check", "explain", "audit", "rules", "run"} <= verbs and len(WITH_COMMANDS) >= 4


def test_the_readme_is_a_front_page() -> None:
    """It fits on a screen or two, begins with a picture and the install line, and says its limits."""
    text = PAGES[0].read_text(encoding="utf-8")
    prose = re.sub(r"^```.*?^```$", "", text, flags=re.MULTILINE | re.DOTALL)
    assert len(text.splitlines()) <= 70 and len(text.split()) <= 600
    assert not [line for line in prose.splitlines() if len(line) > 100]
    order = [text.index(part) for part in ("docs/pictures/", "pip install", "```python", "## Limits")]
    assert order == sorted(order) and {"make plan", "make test"} <= set(re.findall(r"make \w+", text))


def test_readme_says_no(tmp_path: Path) -> None:
    """The comparison can fail: a block with a wrong line has lines to miss."""
    ((command, lines),) = commands("```\n$ shardproof machine show\nno such machine\n```\n")
    assert command == "shardproof machine show" and lines == ["no such machine"]
