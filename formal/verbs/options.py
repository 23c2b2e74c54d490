"""The options of the search on the command line: `solve --options` prints them, `--set` of `solve` and `plan`
changes one.
"""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Final

import click

from ...models.terminal.console import Exit, emit, say
from ..plans.report import table_text
from ..selection.options import OPTIONS, OptionRow, Options, list_options, options_with, use_options

_GIVEN: Final = "shardproof.options_of_the_search"
_NAMES: Final = "shardproof.names_of_options"
ALONE: Final = ("engines.", "elimination.", "solve.recursion")
"""How names of options begin that an engine alone, without the native search, looks at."""


def print_options(as_json: bool, problem: Path | None) -> int:
    """Every tuning constant of the search with its value, unit, range and reason, as a table or as one JSON object.

    The object maps the dotted name of an option to its `value` (text; several are separated by spaces), `unit`,
    `range` and `reason`.  Raises `UsageError` beside a problem.
    """
    if problem is not None:
        raise click.UsageError("--options prints constants and solves nothing: leave out PROBLEM")
    rows = list(list_options(OPTIONS))
    if as_json:
        emit({"options": {r.name: facts_of(r) for r in rows}})
    else:
        table = [(r.name, r.value, r.unit, r.range, r.reason) for r in rows]
        heads = ("option", "value", "unit", "range", "reason")
        say(table_text(f"{len(rows)} options of the search", heads, table, right=(1,)))
    return Exit.DONE


def facts_of(row: OptionRow) -> dict[str, str]:
    """An option without its name."""
    return {"value": row.value, "unit": row.unit, "range": row.range, "reason": row.reason}


def _settle(ctx: click.Context, param: click.Parameter, words: Sequence[str]) -> None:
    """Keep the options with what `--set NAME=VALUE` says.  Raises `UsageError` for what is none."""
    pairs = [(name, text) for name, _, text in (word.partition("=") for word in words)]
    try:
        ctx.meta[_GIVEN], ctx.meta[_NAMES] = options_with(OPTIONS, pairs), [name for name, _ in pairs]
    except ValueError as error:
        raise click.UsageError(f"--set {error}") from None


set_option = click.option(
    "--set",
    "settings",
    metavar="NAME=VALUE",
    multiple=True,
    expose_value=False,
    callback=_settle,
    help="Another value of a constant of the search, such as network.sweeps=9 ('shardproof solve --options' lists "
    "names, units and ranges); may be given several times.",
)


def options_given(alone: bool = False) -> Options:
    """The options of the command that runs.  `alone`: of an engine that decides without the native search; raises
    `UsageError` for those of that search.
    """
    names: list[str] = click.get_current_context().meta[_NAMES]
    if alone and (idle := [name for name in names if not name.startswith(ALONE)]):
        raise click.UsageError(f"--set {idle[0]} is of the native search, which --alone does without")
    given: Options = click.get_current_context().meta[_GIVEN]
    return given


def use_options_given() -> AbstractContextManager[None]:
    """Let every search of the command that runs take its options."""
    return use_options(options_given())
