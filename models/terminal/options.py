"""Types of command-line options: what a value may be is said once, and refused as a usage error that
names the option.

Numbers are ASCII digits of a bounded length: `float` takes `nan`, `int` takes `1_0`, and `Fraction("1e999999999")`
takes all memory.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from fractions import Fraction
from functools import wraps
from pathlib import Path
from typing import Any, Final, TypeVar, cast

import click

from ..files.output import check_target
from ..machine.quantities import QuantityError, parse
from ..text import InputError, parse_bytes, parse_fraction, parse_memory
from .combinations import Combinations
from .console import results_apart, say

LONGEST_WAIT_S: Final = 10**9
"""More seconds than anybody waits (31 years); clocks and timers of the system take this many."""

MOST_STEPS: Final = 10**15
"""More steps of work than anybody waits for: a million take about a second."""

LONGEST_TEXT: Final = 64
"""Characters of a number."""

Command = TypeVar("Command", bound=Callable[..., Any])

_DECIMAL: Final = re.compile(r"[+-]?(?:[0-9]+\.?[0-9]*|\.[0-9]+)(?:[eE][+-]?[0-9]{1,2})?", re.ASCII)
_INTEGER: Final = re.compile(r"[+-]?[0-9]+", re.ASCII)
_FORCE: Final = "shardproof.force"


class Seconds(click.ParamType):  # type: ignore[type-arg]  # generic from click 8.4 on only
    """A span of time: at least `low` and more than zero, at most `high` (seconds)."""

    name = "seconds"

    def __init__(self, low: float = 0.0, high: float = LONGEST_WAIT_S) -> None:
        self.low, self.high = low, high

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> float:
        if isinstance(value, float | int):
            return float(value)
        if len(value) > LONGEST_TEXT or not _DECIMAL.fullmatch(value):
            self.fail(f"{value[:LONGEST_TEXT]!r} is not a number of seconds, such as 60 or 0.5.", param, ctx)
        seconds = float(value)
        if not max(self.low, 5e-324) <= seconds <= self.high:
            self.fail(f"{value} is not between {self.low:g} and {self.high:.0f} seconds.", param, ctx)
        return seconds


class Count(click.ParamType):  # type: ignore[type-arg]
    """An integer between two bounds, both included."""

    name = "integer"

    def __init__(self, low: int, high: int) -> None:
        self.low, self.high = low, high

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> int:
        if isinstance(value, int):
            return value
        if len(value) > LONGEST_TEXT or not _INTEGER.fullmatch(value):
            self.fail(f"{value[:LONGEST_TEXT]!r} is not an integer.", param, ctx)
        if not self.low <= int(value) <= self.high:
            self.fail(f"{value} is not between {self.low} and {self.high}.", param, ctx)
        return int(value)


class Factor(click.ParamType):  # type: ignore[type-arg]
    """A decimal number: more than zero, at most a million."""

    name = "factor"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> float:
        if isinstance(value, float | int):
            return float(value)
        if len(value) > LONGEST_TEXT or not _DECIMAL.fullmatch(value):
            self.fail(f"{value[:LONGEST_TEXT]!r} is not a number, such as 2 or 0.5.", param, ctx)
        if not 0 < float(value) <= 10**6:
            self.fail(f"{value} is not between 0 and 10**6.", param, ctx)
        return float(value)


class Share(click.ParamType):  # type: ignore[type-arg]
    """A part of a whole, `0.01`, `1%` or `1/100`: at least 0, less than 1."""

    name = "share"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Fraction:
        if isinstance(value, Fraction):
            return value
        try:
            share = parse_fraction(value, "the value")
        except InputError as error:
            self.fail(f"{error}.", param, ctx)
        if share >= 1:
            meant = f"; for {value} percent write {value}%" if share < 100 and not value.endswith("%") else ""
            self.fail(f"{value} is not less than 1 (100 %){meant}.", param, ctx)
        return share


class Amount(click.ParamType):  # type: ignore[type-arg]
    """Bytes, `80GiB` or `500MB`: between one and 2**60.  `bare`: whether a small number without a unit is bytes, as
    where the option's name says so, or asks back; `none`: whether 0 is an amount.
    """

    name = "bytes"

    def __init__(self, bare: bool, none: bool = False) -> None:
        self.bare, self.none = bare, none

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> int:
        if isinstance(value, int):
            return value
        if self.none and value == "0":
            return 0
        try:
            amount = parse_bytes(value) if self.bare else parse_memory(value)
        except InputError as error:
            curve = "" if self.bare or ".." not in value else " A curve over several limits is 'shardproof sweep'."
            self.fail(f"{error}.{curve}", param, ctx)
        if not 1 <= amount <= 1 << 60:
            self.fail(f"{value} is not between 1 byte and 2**60 bytes.", param, ctx)
        return amount


class Rate(click.ParamType):  # type: ignore[type-arg]
    """Bytes per second, `25GB/s`: between one and 2**60, exactly."""

    name = "rate"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Fraction:
        if isinstance(value, Fraction):
            return value
        try:
            rate = parse(value, "rate")
        except QuantityError as error:
            self.fail(f"{error}.", param, ctx)
        if not 1 <= rate <= 1 << 60:
            self.fail(f"{value} is not between 1 B/s and 2**60 B/s.", param, ctx)
        return rate


class Steps(click.ParamType):  # type: ignore[type-arg]
    """Steps of work, `24000000` or `24M`: more than zero."""

    name = "steps"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> int:
        if isinstance(value, int):
            return value
        match = re.fullmatch(r"([0-9]{1,15})([kMG]?)", value, re.ASCII)
        if match is None:
            self.fail(f"{value[:LONGEST_TEXT]!r} is not a number of steps, such as 24000000 or 24M.", param, ctx)
        steps = int(match[1]) * {"": 1, "k": 10**3, "M": 10**6, "G": 10**9}[match[2]]
        if not 0 < steps <= MOST_STEPS:
            self.fail(f"{value} is not between 1 and {MOST_STEPS} steps.", param, ctx)
        return steps


SECONDS: Final = Seconds()
STEPS: Final = Steps()
SHARE: Final = Share()
FACTOR: Final = Factor()
AMOUNT: Final = Amount(bare=True)
MEMORY: Final = Amount(bare=False)
MEMORY_OR_NONE: Final = Amount(bare=False, none=True)
RATE: Final = Rate()
BATCH: Final = Count(1, (1 << 31) - 1)
THREADS: Final = Count(1, 1024)
SEED: Final = Count(0, (1 << 64) - 1)
RANKS: Final = Count(1, 1 << 16)
REPEATS: Final = Count(0, 10_000)


Subject = TypeVar("Subject")
Options = TypeVar("Options")


def options_as(kind: type[Options]) -> Callable[[Callable[[Subject, Options], int]], Callable[..., int]]:
    """A command takes what was given as one frozen dataclass, with a field per option, after the object of the group.

    >>> from dataclasses import dataclass
    >>> @dataclass(frozen=True)
    ... class Given:
    ...     size: int
    >>> options_as(Given)(lambda room, given: given.size)(None, size=3)
    3
    """

    def decorate(command: Callable[[Subject, Options], int]) -> Callable[..., int]:
        @wraps(command)
        def invoke(subject: Subject, /, **given: Any) -> int:
            return command(subject, kind(**given))

        return invoke

    return decorate


def given_options() -> dict[str, object]:
    """Options of the command that is running which the user gave, by name, with their values."""
    ctx = click.get_current_context()
    default = (click.core.ParameterSource.DEFAULT, click.core.ParameterSource.DEFAULT_MAP, None)
    names = [p.name or "" for p in ctx.command.params if isinstance(p, click.Option)]
    return {n: ctx.params.get(n, True) for n in names if ctx.get_parameter_source(n) not in default}


def refuse_combinations(table: Combinations) -> Callable[[Command], Command]:
    """A command refuses options that do not go together by `table`, before it does anything; what it does then prints
    results on stdout, and nothing else.
    """

    def decorate(command: Command) -> Command:
        @wraps(command)
        def invoke(*args: Any, **given: Any) -> Any:
            refusal = table.refusal(given_options(), _flags())
            if refusal is not None:
                raise click.UsageError(refusal)
            with results_apart():
                return command(*args, **given)

        invoke.combinations = table  # type: ignore[attr-defined]  # read by the tests that give all pairs
        return cast("Command", invoke)

    return decorate


def require_combination(table: Combinations, **kinds: str) -> None:
    """The same, as soon as the kinds of files are known.  Raises `InputError`."""
    refusal = table.refusal(given_options() | kinds, _flags())
    if refusal is not None:
        raise InputError(refusal)


def _flags() -> dict[str, str]:
    """Name of an option -> as it is written, the long way; of a switch that was turned off as that is written."""
    ctx = click.get_current_context()
    return {
        p.name or "": max(
            p.secondary_opts if p.secondary_opts and not ctx.params.get(p.name or "") else p.opts, key=len
        )
        for p in ctx.command.params
    }


json_option = click.option("--json", "as_json", is_flag=True, help="Print one JSON object.")

attention_option = click.option(
    "--attention",
    type=click.Choice(("operator", "fused", "matrices")),
    help="Attention as one operator that stores no scores, wherever it is recognised (fused: its gradients are one "
    "operator, too), or as products and softmax (default: the operator in PyTorch programs, fused where a training "
    "step calls PyTorch's kernel; other models as they are written).",
)


loads_option = click.option(
    "--expert-loads",
    type=click.Path(path_type=Path),
    help="JSON of tokens of every expert (a list, a list per layer, or by operator) in place of even groups.",
)


compare_option = click.option(
    "--compare/--no-compare",
    default=True,
    help="Run what is imported beside the program that it came from, on small random numbers, and refuse it where they "
    "differ (on where the framework is installed).",
)


operator_option = click.option(
    "--operator",
    "operators",
    type=click.Path(path_type=Path),
    multiple=True,
    help="A specification (TOML) of an operator of your own that MODEL calls: docs/howto/operators.md.",
)


def output_option(
    *names: str, help: str, required: bool = False, replaces_results: bool = False
) -> Callable[[Command], Command]:
    """An option that names a file to be written.  Whether it can be is tried when the command line is read, before any
    work.

    Commands with such an option also take `force_option`.
    """

    def try_output(ctx: click.Context, param: click.Parameter, value: str | None) -> Path | None:
        if value is None or ctx.resilient_parsing:
            return None
        if value in ("-", ""):
            raise click.BadParameter(
                "results are written to a regular file; name one ('./-' for a file of that name).", ctx, param
            )
        path = Path(value)
        taken: dict[Path, str] = ctx.meta.setdefault("shardproof.outputs", {})
        real = check_target(path, force=bool(ctx.meta.get(_FORCE)), replaces_results=replaces_results)
        if real in taken:
            raise click.BadParameter(f"{value} is written by {taken[real]} already.", ctx, param)
        taken[real] = param.opts[0]
        if path.is_symlink():
            say(f"note: {path} is a link; {real} will be written", err=True)
        return path

    return click.option(*names, type=str, metavar="FILE", required=required, help=help, callback=try_output)


def replaces_files() -> bool:
    """Whether the command that is running was given `--force`."""
    return bool(click.get_current_context().meta.get(_FORCE))


def _remember(ctx: click.Context, param: click.Parameter, value: bool) -> None:
    ctx.meta[_FORCE] = value


force_option = click.option(
    "--force",
    is_flag=True,
    is_eager=True,
    expose_value=False,
    callback=_remember,
    help="Let output replace files that are not results of ours.",
)
"""Eager: known when the outputs are tried."""
