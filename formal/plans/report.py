"""Makes plain text from results: amounts with units, and tables.  Nothing is printed here."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from io import StringIO
from itertools import groupby
from typing import Final

from ...models.problem.selection_problem import SelectionProblem
from ...models.text import Lines, escape_text

_NUMBER: Final = re.compile(r"(\d+)", re.ASCII)
_LIST: Final = re.compile(r"\(([^()]*,[^()]*)\)")
"""Names between brackets, such as the blocks of a step that are computed again."""
_SEPARATORS: Final = ("", ".", "/")
"""What stands around a number that is a whole part of a path."""
_RUNS: Final = 6
"""Runs of layers in one label: more do not fit into a column."""
_TIMES: Final = ((1.0, "s"), (1e-3, "ms"), (1e-6, "us"), (1e-9, "ns"))


def amount(value: int | None, problem: SelectionProblem, signed: bool = False) -> str:
    """A cost of the problem with its unit; times are shown with six significant digits.

    >>> from shardproof.models.problem.selection_problem import SelectionProblem
    >>> amount(1_720_742, SelectionProblem("p", (), (), (), scale=10**12, unit_name="s"))
    '1.72074 us'
    """
    if value is None:
        return "unknown"
    sign = "+" if signed and value > 0 else ""
    if problem.scale == 1 or problem.unit_name != "s":
        text = f"{value:,}" if problem.scale == 1 else f"{value / problem.scale:.6g}"
        return f"{sign}{text} {problem.unit_name}".rstrip()
    seconds = value / problem.scale
    if seconds == 0:
        return "0"
    size, unit = next(((s, u) for s, u in _TIMES if abs(seconds) >= s), (1e-12, "ps"))
    return f"{sign}{seconds / size:.6g} {unit}"


def bytes_text(value: int) -> str:
    """Bytes in decimal units.

    >>> bytes_text(2_500_000)
    '2.5 MB'
    """
    for size, unit in ((10**12, "TB"), (10**9, "GB"), (10**6, "MB"), (10**3, "kB")):
        if abs(value) >= size:
            return f"{value / size:.4g} {unit}"
    return f"{value} B"


def percent(part: int, whole: int) -> str:
    """`part` as a share of `whole`.

    >>> percent(1, 8), percent(-1, 8)
    ('12.5 %', '-12.5 %')
    """
    return "0 %" if part == 0 else f"{100 * part / whole:.3g} %" if whole else "-"


def pattern(name: str) -> str:
    """The name with every number replaced by '*'; equal for the same operator of repeated layers."""
    return _NUMBER.sub("*", name)


def label(names: Sequence[str]) -> str:
    """One label for names that differ in their numbers only: ranges stand as they are where they are a whole part of a
    path, in braces inside a word.

    >>> label(["layers.0.q", "layers.1.q", "layers.2.q"]), label(["layer0.q", "layer1.q"]), label(["fc1"])
    ('layers.0..2.q', 'layer{0..1}.q', 'fc1')
    >>> label([f"h.{k}.mul#2" for k in (0, 1, 3, 5, 7, 8)])
    'h.{0..1,3,5,7..8}.mul#2'
    """
    parts = [_NUMBER.split(n) for n in names]
    out: list[str] = []
    columns = [*zip(*parts, strict=True)]
    for k, column in enumerate(columns):
        distinct = sorted(set(column), key=lambda s: (len(s), s))
        if len(distinct) == 1:
            out.append(column[0])
            continue
        whole = columns[k - 1][0][-1:] in _SEPARATORS and columns[k + 1][0][:1] in _SEPARATORS
        runs = _ranges([int(s) for s in distinct])
        out.append(runs[0] if whole and len(runs) == 1 and " " not in runs[0] else "{" + ",".join(runs) + "}")
    return "".join(out)


def labels(names: Iterable[str]) -> list[str]:
    """One label for all names that differ in their numbers only, in order of the first of each.

    >>> labels(["layer0", "layer1", "head", "layer2"])
    ['layer{0..2}', 'head']
    """
    alike: dict[str, list[str]] = {}
    for name in names:
        alike.setdefault(pattern(name), []).append(name)
    return [label(group) for group in alike.values()]


def short_title(name: str) -> str:
    """The name of a graph with every list in it as labels.

    >>> short_title("llama+adamw+recompute(layer0,layer1,layer2)+micro(2)")
    'llama+adamw+recompute(layer{0..2})+micro(2)'
    """
    return _LIST.sub(lambda m: f"({','.join(labels(m[1].split(',')))})", name)


def _ranges(numbers: list[int]) -> list[str]:
    """Runs of consecutive numbers, at most `_RUNS` of them; beyond that what they lie between and how many they are."""
    runs = []
    for _, run in groupby(enumerate(numbers), key=lambda p: p[1] - p[0]):
        values = [n for _, n in run]
        runs.append(str(values[0]) if len(values) == 1 else f"{values[0]}..{values[-1]}")
    return runs if len(runs) <= _RUNS else [f"{len(numbers)} of {numbers[0]}..{numbers[-1]}"]


def table_text(
    title: str,
    columns: Sequence[str],
    rows: Sequence[Sequence[str]],
    right: Sequence[int] = (),
    width: int = 160,
    color: bool = False,
) -> Lines:
    """A table as text, cells escaped; columns `right` are right-aligned.  Without `color` it holds no control
    characters.
    """
    from rich.console import Console  # most commands print no table
    from rich.table import Table

    table = Table(
        title=escape_text(title) or None,
        title_justify="left",
        box=None,
        pad_edge=False,
        header_style="bold" if color else "none",
        title_style="bold" if color else "none",
    )
    for i, name in enumerate(columns):
        table.add_column(name, justify="right" if i in right else "left", overflow="fold", no_wrap=i in right)
    for row in rows:
        table.add_row(*map(escape_text, row))
    out = StringIO()
    Console(
        file=out,
        width=width,
        force_terminal=color,
        color_system="standard" if color else None,
        markup=False,
        highlight=False,
        emoji=False,
    ).print(table)
    return Lines("\n".join(line.rstrip() for line in out.getvalue().splitlines()))
