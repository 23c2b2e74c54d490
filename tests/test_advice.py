"""What messages advise exists: every option and verb that a text of ours names is one of the command line."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from functools import cache
from pathlib import Path

import click

from shardproof import __main__ as front

ROOT = Path(front.__file__).parent
ROOMS = ("models", "proofs", "formal", "verify", "backends")
FOREIGN = {
    "--oversubscribe",
    "--allow-run-as-root",
    "--tag-output",
    "--std",
    "--gpu-architecture",
    "--xla",
    "--nproc-per-node",
}
"""Options of other programs: mpiexec, nvcc, XLA, torchrun."""

OTHERS = (
    ROOT / "models" / "sources" / "frameworks",
    ROOT / "backends" / "export" / "flags.py",
    ROOT / "backends" / "export" / "settings_files.py",
    ROOT / "formal" / "plans" / "pipelines" / "configuration.py",
    ROOT / "formal" / "report" / "page.py",
)
"""What reads and writes the options of other planners (Megatron, DeepSpeed, FSDP) names them; colours of a style
sheet.
"""


@cache
def texts() -> list[tuple[str, int, str]]:
    """Every string of the package that is no documentation: (file, line, text)."""
    found = []
    for path in [ROOT / "__main__.py", *(p for room in ROOMS for p in sorted((ROOT / room).rglob("*.py")))]:
        if any(path.is_relative_to(other) for other in OTHERS):
            continue
        nodes = list(ast.walk(ast.parse(path.read_text(encoding="utf-8"))))
        documentation = {
            id(n.body[0].value)
            for n in nodes
            if isinstance(n, ast.Module | ast.ClassDef | ast.FunctionDef) and n.body and isinstance(n.body[0], ast.Expr)
        }
        found += [
            (str(path.relative_to(ROOT)), n.lineno, n.value)
            for n in nodes
            if isinstance(n, ast.Constant) and isinstance(n.value, str) and id(n) not in documentation
        ]
    return found


def commands(
    command: click.Command, context: click.Context, words: tuple[str, ...] = ()
) -> Iterator[tuple[tuple[str, ...], click.Command]]:
    yield words, command
    if isinstance(command, click.Group):
        for name in command.list_commands(context):
            found = command.get_command(context, name)
            assert found is not None, name
            yield from commands(found, context, (*words, name))


CONTEXT = click.Context(front.cli)
COMMANDS = dict(commands(front.cli, CONTEXT))
OPTIONS = {
    "--help",
    "--version",
    *(text for c in COMMANDS.values() for p in c.params for text in (*p.opts, *p.secondary_opts)),
}


def test_options_that_texts_name_exist() -> None:
    wrong = [
        (path, line, option)
        for path, line, text in texts()
        for option in re.findall(r"(?<![\w-])--[a-z][a-z-]+", text)
        if option not in OPTIONS | FOREIGN
    ]
    assert not wrong


def test_verbs_that_texts_name_exist() -> None:
    wrong = []
    for path, line, text in texts():
        for verb, word in re.findall(r"(?<![\w./-])shardproof ([a-z]+)(?: ([a-z]+))?", text):
            known = (verb,) in COMMANDS and (
                not isinstance(COMMANDS[verb,], click.Group) or not word or (verb, word) in COMMANDS
            )
            if not known:
                wrong.append((path, line, verb, word))
    assert not wrong
