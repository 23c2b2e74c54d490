"""Options that `place` and `reduce` share, and what their texts mean: sizes, axes, matrices,
reductions.
"""

from __future__ import annotations

import re

import click

from ...models.collective_programs.collectives import READINGS
from ...models.collective_programs.cost import PRESETS, Algorithm
from ...models.collective_programs.parallelism import Matrix, Order
from ...models.terminal.options import output_option
from ...models.text import InputError, parse_bytes

hierarchy_option = click.option("--hierarchy", help="Sizes of the levels, outermost first, such as 4x16.")
axes_option = click.option("--axes", help="Sizes of the parallelism axes, such as 16,2,2.")
machine_option = click.option(
    "--machine", help="Built-in name or TOML file; default by number of levels: p2-a100 (2), summit (3)."
)
algorithm_option = click.option(
    "--algorithm",
    type=click.Choice([a.value for a in Algorithm]),
    default="ring",
    show_default=True,
    help="How AllReduce moves data.",
)
model_option = click.option(
    "--model",
    "preset",
    type=click.Choice(PRESETS),
    default="linked",
    show_default=True,
    help="Cost model: linked = bandwidth, contention and latency.",
)
order_option = click.option(
    "--order",
    type=click.Choice(["both", *(o.value for o in Order)]),
    default="both",
    show_default=True,
    help="Order of devices when several axes are reduced.",
)
engine_option = click.option(
    "--engine",
    type=click.Choice(["native", "ilp", "smt"]),
    default="native",
    show_default=True,
    help="Who searches; the proof is the same.",
)
reading_option = click.option(
    "--reading",
    type=click.Choice(list(READINGS)),
    default="paper",
    show_default=True,
    help="What the paper's rules leave open.",
)
certificate_option = output_option("-o", "--output", help="Write the certificate here (.spz).", replaces_results=True)


def sizes(text: str | None, option: str, separator: str, least: int = 1) -> tuple[int, ...]:
    """Integers of at least `least`; an option that is missing or wrong is named, with an example."""
    example = "4x16" if separator == "x" else "0,2" if least == 0 else "16,2,2"
    if text is None:
        raise click.UsageError(f"{option} is missing; write for example {option} {example}")
    parts = re.split(r"[x,]", text.strip())
    if not all(re.fullmatch(r"[0-9]{1,6}", p.strip()) for p in parts):
        raise InputError(f"{option} {text!r} is not a list of integers; write for example {option} {example}")
    values = tuple(int(p) for p in parts)
    if any(v < least for v in values):
        raise InputError(f"{option} {text!r}: entries must be at least {least}")
    return values


def matrix(text: str) -> Matrix:
    """A placement matrix, a bracket per axis."""
    rows = re.findall(r"\[([0-9 ,]+)\]", text)
    if not rows or re.sub(r"[\[\]0-9 ,]", "", text):
        raise InputError(f"--matrix {text!r}: write one bracket per axis, such as '[[2 4] [1 4]]'")
    return tuple(tuple(int(x) for x in row.replace(",", " ").split()) for row in rows)


def reduction(text: str) -> tuple[tuple[int, ...], int, int]:
    """(axes, bytes, times) of `0,2:1GiB*4`."""
    match = re.fullmatch(r"([0-9,]+):([^*]+)(?:\*([0-9]{1,9}))?", text)
    if match is None:
        raise InputError(
            f"--reduce {text!r}: write axes, bytes and perhaps how often per step, such as 0:1GiB or 0,2:50MB*4"
        )
    times = int(match[3] or 1)
    if times < 1:
        raise InputError(f"--reduce {text!r}: must happen at least once")
    try:
        return sizes(match[1], "--reduce", ",", 0), parse_bytes(match[2]), times
    except InputError as error:
        raise InputError(f"--reduce {text!r}: {error}") from None
