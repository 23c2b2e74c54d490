"""Completes words in a shell: models and their sizes, machines, operators of a plan, optimizers, spaces.

    eval "$(_SHARDPROOF_COMPLETE=bash_source shardproof)"          (zsh_source, fish_source)

click asks each argument and option of the verb that stands on the line; those named in `COMPLETIONS` answer from what
there is, all others as click does (files, choices, options).
"""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import Final

import click
from click.shell_completion import CompletionItem

Items = list[CompletionItem]


def _starting(words: Iterable[str], incomplete: str) -> Items:
    return [CompletionItem(word) for word in words if word.startswith(incomplete)]


def _files(incomplete: str, *suffixes: str) -> Items:
    """Files of these kinds, and folders to look into."""
    folder = Path(incomplete) if incomplete.endswith("/") else Path(incomplete).parent
    try:
        found = sorted(folder.iterdir())
    except OSError:
        return []
    words = [f"{p}/" if p.is_dir() else str(p) for p in found if p.is_dir() or p.suffix in suffixes]
    return _starting(words, incomplete.removeprefix("./"))


def models(ctx: click.Context, incomplete: str) -> Items:
    """Zoo names; behind `NAME:` the sizes that are not given yet; files that hold models."""
    from ..sources.zoo import PUBLISHED, ZOO, sizes_of

    name, colon, given = incomplete.partition(":")
    if colon and (name in ZOO or name in PUBLISHED):
        *before, last = given.split(",")
        taken = {part.partition("=")[0] for part in before}
        head = f"{name}:{''.join(part + ',' for part in before)}"
        return [
            CompletionItem(f"{head}{key}=", help=f"default {value}")
            for key, value in sizes_of(name).items()
            if key not in taken and key.startswith(last)
        ]
    return _starting([*sorted(ZOO), *sorted(PUBLISHED)], incomplete) + _files(
        incomplete, ".onnx", ".pt2", ".json", ".py"
    )


def machines(ctx: click.Context, incomplete: str) -> Items:
    """Built-in machines, and TOML files."""
    from ..machine.machine import builtin_names

    return _starting(builtin_names(), incomplete) + _files(incomplete, ".toml")


def operators(ctx: click.Context, incomplete: str) -> Items:
    """Operators of the plan on the line."""
    import zipfile

    from ..files.json_text import parse_json

    # behind an option that still lacks its value, click has not told arguments apart
    path = ctx.params.get("plan_file") or next((word for word in ctx.args if word.endswith(".spz")), "")
    try:
        with zipfile.ZipFile(path) as plan:
            graph = parse_json(plan.read("graph.json"))
        return _starting([str(op["name"]) for op in graph["operators"]], incomplete) if isinstance(graph, dict) else []
    except (OSError, ValueError, LookupError, TypeError, zipfile.BadZipFile):  # no plan yet, or a broken one
        return []


def optimizers(ctx: click.Context, incomplete: str) -> Items:
    """Optimizers of training steps."""
    from ..sources.training.settings import OPTIMIZERS

    return _starting(sorted(OPTIMIZERS), incomplete)


def spaces(ctx: click.Context, incomplete: str) -> Items:
    """Spaces of placements."""
    from ..layout.placement import SPACES

    return _starting([f"{s}{tail}" for s in SPACES for tail in ("", ",uneven")], incomplete)


COMPLETIONS: Final = {
    "model": models,
    "subject": models,
    "file": models,
    "machine": machines,
    "op": operators,
    "train": optimizers,
    "space_name": spaces,
}
"""Name of an argument or option -> what completes it."""


def completing(command: click.Command) -> click.Command:
    """The command, whose arguments and options answer a shell that asks."""
    for parameter in command.params:
        if parameter.name in COMPLETIONS and not isinstance(parameter.type, click.Choice):
            parameter.__dict__["shell_complete"] = COMPLETIONS[parameter.name]
    return command


def verbs(table: Iterable[tuple[str, str]], incomplete: str) -> Items:
    """Verbs with their line of help, none of them loaded."""
    return [CompletionItem(name, help=words) for name, words in table if name.startswith(incomplete)]
