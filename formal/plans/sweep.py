"""A sweep: many plans of one file, machines x batches x limits x models, each a row of one table.

    [every]                         options of all plans, as on the command line of `plan`
    train = "adam"
    time-limit = 60
    [each]                          every combination of these is one plan; the last key runs fastest
    model = ["bert-large"]
    machine = ["dgx-a100:1x8", "dgx-a100:4x8"]
    memory = ["40GiB", "80GiB"]

A size with a name may be a range in [each], `prog.py:layer:N=64..4096*2` (doubled) or `N=64..512+64` (in steps): so
many models.  With `strategy = "plan.spz"` in [every] all rows have the placements of one plan, each with its own bound.

A row is a process of its own: one that dies is begun again, and loses nothing of the others.  What a row has answered
lies beside its plan, under a name made of its options and of the files that they name, so that the same command goes on
where it was stopped, whatever was added to the file meanwhile.
"""

from __future__ import annotations

import hashlib
import json
import os
import re
import signal
import subprocess
import sys
import tomllib
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from itertools import product
from math import prod
from pathlib import Path
from typing import Final

from ...models.files.json_text import JsonError, parse_json
from ...models.text import InputError, did_you_mean

_ROOT: Final = __name__.partition(".")[0]

MOST_ROWS: Final = 10_000
"""Plans of one sweep: more is a mistake in the file."""

MOST_TRIES: Final = 2
"""Processes of one row: a second one where the first was killed."""

NAME: Final = 12
"""Digits of a row's name."""

MODEL: Final = "model"

_RANGE: Final = re.compile(
    r"(?<=[:,])([A-Za-z_][A-Za-z_0-9]*)=([0-9]{1,10})\.\.([0-9]{1,10})([*+])([0-9]{1,10})(?=,|$)"
)
"""A size from a number to another, multiplied or added to."""

REFUSED: Final = {
    "output": "the sweep names the files itself",
    "json": "the table says it",
    "force": "sweep --again replaces plans",
}
"""Options of `plan` that are not those of a row."""

Value = str | int | float | bool | list[str | int | float]


@dataclass(frozen=True)
class Word:
    """An option of `plan`: whether it is a flag, what says no to it (empty: leaving it out), whether it may be given
    several times.
    """

    flag: bool = False
    no: str = ""
    several: bool = False


@dataclass(frozen=True)
class Row:
    """One plan of a sweep: `values` of what differs between rows, `arguments` of its command line without its file."""

    number: int
    values: tuple[tuple[str, str], ...]
    arguments: tuple[str, ...]

    @property
    def name(self) -> str:
        """The name of its files: of its arguments, and of the content of the files that these name."""
        digest = hashlib.sha256(json.dumps(self.arguments).encode())
        for word in self.arguments:
            for path in {word.partition("=")[2] or word, (word.partition("=")[2] or word).partition(":")[0]}:
                with suppress(OSError, ValueError):
                    if path and Path(path).is_file():
                        digest.update(hashlib.sha256(Path(path).read_bytes()).digest())
        return digest.hexdigest()[:NAME]


@dataclass(frozen=True)
class Outcome:
    """What a row has answered: the exit code of `plan` (below 0: the signal that ended it), what it printed, and how
    many processes that took.
    """

    code: int
    answer: Mapping[str, object]
    tries: int

    def seconds(self, key: str) -> float | None:
        """`cost` or `lower_bound` in seconds; None where there is none."""
        value, scale = self.answer.get(key), self.answer.get("scale")
        return value / scale if isinstance(value, int) and isinstance(scale, int) and scale else None

    @property
    def words(self) -> str:
        """The status, or why there is none."""
        if self.code < 0:
            return f"killed by {signal.Signals(-self.code).name}, {self.tries} times"
        status = self.answer.get("status")
        return str(status) if status is not None else str(self.answer.get("error", f"exit {self.code}"))


def read_sweep(text: str, place: str, options: Mapping[str, Word]) -> tuple[Row, ...]:
    """The rows of a sweep.  `options`: words of `plan`.  Raises `InputError` with the key.

    >>> text = '[every]\\nmachine = "localhost:2"\\n[each]\\nmodel = ["mlp-unity"]\\nbatch = [8, 16]'
    >>> [" ".join(row.arguments) for row in read_sweep(text, "sweep.toml", {"machine": Word(), "batch": Word()})]
    ['--machine=localhost:2 --batch=8 -- mlp-unity', '--machine=localhost:2 --batch=16 -- mlp-unity']
    """
    try:
        data = tomllib.loads(text)
    except (tomllib.TOMLDecodeError, RecursionError) as error:
        raise InputError(f"{place}: is no TOML: {error}") from None
    for key in data:
        if key not in ("every", "each"):
            raise InputError(
                f"{place}: there is no table [{key}]{did_you_mean(key, ['every', 'each'])}; there are "
                "[every], options of all plans, and [each], lists of which every combination is a plan"
            )
    every, each = (_table(data.get(name, {}), f"{place}, [{name}]", options) for name in ("every", "each"))
    if twice := sorted(every.keys() & each.keys()):
        raise InputError(f"{place}: {twice[0]!r} stands in [every] and in [each]")
    lists: list[tuple[str, list[str | int | float]]] = []
    for key, value in each.items():
        if not isinstance(value, list) or not value:
            raise InputError(f"{place}, [each]: {key!r} is a list of values, such as {key} = [{_shown(value)}]")
        lists.append((key, _models(value, place) if key == MODEL else value))
        if len(set(map(_text, lists[-1][1]))) < len(lists[-1][1]):
            raise InputError(f"{place}, [each]: {key!r} names a value twice")
    for key in (MODEL, "machine"):
        if key not in every and key not in each:
            raise InputError(f"{place}: no {key!r} in [every] or [each]")
    for key, value in every.items():
        if isinstance(value, list) and (key == MODEL or not options[key].several):
            raise InputError(f"{place}, [every]: {key!r} has one value in a plan; several belong to [each]")
    count = prod(len(value) for _, value in lists)
    if count > MOST_ROWS:
        raise InputError(f"{place}: {count} plans, at most {MOST_ROWS} are one sweep")
    rows = []
    for number, chosen in enumerate(product(*(value for _, value in lists)), 1):
        values = dict(zip((key for key, _ in lists), chosen, strict=True))
        rows.append(
            Row(number, tuple((k, _text(v)) for k, v in values.items()), _arguments({**every, **values}, options))
        )
    return tuple(rows)


def _models(value: Value, place: str) -> list[str | int | float]:
    """Models with one number for every size.  Raises `InputError` for ranges that are none.

    >>> _models(["f.py:f:N=64..256*2,H=8"], "sweep.toml")
    ['f.py:f:N=64,H=8', 'f.py:f:N=128,H=8', 'f.py:f:N=256,H=8']
    """
    out: list[str | int | float] = []
    for model in value if isinstance(value, list) else [value]:
        text = str(model)
        found = _RANGE.search(text)
        if found is None:
            out.append(model)
            continue
        number, last, step = int(found[2]), int(found[3]), int(found[5])
        if not 1 <= number <= last or step < (2 if found[4] == "*" else 1):
            raise InputError(f"{place}: {found[0]!r} is no range of sizes; write N=64..4096*2 or N=64..512+64")
        sizes = list[str | int | float]()
        while number <= last and len(sizes) <= MOST_ROWS:
            sizes.append(f"{text[: found.start()]}{found[1]}={number}{text[found.end() :]}")
            number = number * step if found[4] == "*" else number + step
        out += _models(sizes, place)
        if len(out) > MOST_ROWS:
            raise InputError(f"{place}: {text!r} are more than {MOST_ROWS} plans, which is the most of one sweep")
    return out


def widest_gap(found: Sequence[Outcome]) -> float | None:
    """How far the plans of all rows are from the best at most, as a share; None where one has no bound."""
    gaps = [(o.seconds("cost"), o.seconds("lower_bound")) for o in found]
    shares = [(step - least) / step for step, least in gaps if step and least is not None]
    return max(shares) if shares and len(shares) == len(gaps) else None


def _table(data: object, place: str, options: Mapping[str, Word]) -> dict[str, Value]:
    if not isinstance(data, dict):
        raise InputError(f"{place}: is not a table")
    out: dict[str, Value] = {}
    for word, value in data.items():
        key = word.replace("_", "-")
        if key in REFUSED:
            raise InputError(f"{place}: {word!r} is not for a row: {REFUSED[key]}")
        if key != MODEL and key not in options:
            known = sorted({MODEL, *options} - REFUSED.keys())
            raise InputError(f"{place}: plan has no option {word!r}{did_you_mean(key, known)}")
        if key in out:
            raise InputError(f"{place}: {word!r} is given twice")
        parts = value if isinstance(value, list) else [value]
        if not all(isinstance(part, str | int | float) for part in parts):
            raise InputError(f"{place}: {word!r} is neither text, number nor a list of them")
        if any(isinstance(part, str) and "\0" in part for part in parts):
            raise InputError(f"{place}: {word!r} holds a character that no command line can hold")
        out[key] = value
    return out


def _text(value: object) -> str:
    return str(value).lower() if isinstance(value, bool) else str(value)


def _shown(value: object) -> str:
    return f'"{value}"' if isinstance(value, str) else _text(value)


def _arguments(values: Mapping[str, Value], options: Mapping[str, Word]) -> tuple[str, ...]:
    out = list[str]()
    for key, value in values.items():
        if key == MODEL:
            continue
        for part in value if isinstance(value, list) else [value]:
            if not options[key].flag:
                out.append(f"--{key}={part}")
            elif not isinstance(part, bool):
                raise InputError(f"{key!r} is true or false, not {_shown(part)}")
            elif part or options[key].no:
                out.append(f"--{key}" if part else options[key].no)
    return (*out, "--", str(values[MODEL]))


@dataclass
class Runner:
    """Plans rows in processes of their own; plans go to `folder`.  `running`: those that are under way."""

    folder: Path
    running: set[subprocess.Popen[bytes]] = field(default_factory=set)
    stopped: bool = False

    def run(self, row: Row) -> Outcome:
        """What a row answers."""
        home = str(Path(next(iter(sys.modules[_ROOT].__path__))).parent)  # the child must find the package that we are
        path = os.pathsep.join(p for p in (home, os.environ.get("PYTHONPATH", "")) if p)
        plan = self.folder / f"{row.name}.spz"
        command = [sys.executable, "-P", "-m", _ROOT, "plan", "--json", "--force", "-o", str(plan), *row.arguments]
        for tries in range(1, MOST_TRIES + 1):
            child = subprocess.Popen(
                command,
                env={**os.environ, "PYTHONPATH": path},
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=subprocess.DEVNULL,
            )
            self.running.add(child)
            printed, _ = child.communicate()
            self.running.discard(child)
            if child.returncode >= 0 or self.stopped:
                break
        return Outcome(child.returncode, _answer(printed), tries)

    def stop(self) -> None:
        """Let what is under way come to an end; nothing is begun again."""
        self.stopped = True
        for child in [*self.running]:
            child.send_signal(signal.SIGTERM)


def _answer(printed: bytes) -> Mapping[str, object]:
    try:
        found = parse_json(printed)
    except JsonError:
        return {}
    return found if isinstance(found, dict) else {}


def table(rows: Sequence[tuple[Row, Outcome]]) -> tuple[tuple[str, ...], list[tuple[str, ...]]]:
    """Heads and lines of the table of a sweep; times in milliseconds."""
    keys = tuple(key for key, _ in rows[0][0].values) if rows else ()
    heads = (*keys, "status", "step ms", "at least ms", "gap %", "seconds", "plan")
    return heads, [(*(value for _, value in row.values), *_cells(row, found)) for row, found in rows]


def _cells(row: Row, found: Outcome) -> tuple[str, ...]:
    step, least = found.seconds("cost"), found.seconds("lower_bound")
    gap = "" if step is None or least is None or not step else f"{100 * (step - least) / step:.2f}"
    seconds = found.answer.get("seconds")
    return (
        found.words,
        "" if step is None else f"{1e3 * step:.6g}",
        "" if least is None else f"{1e3 * least:.6g}",
        gap,
        f"{seconds:.1f}" if isinstance(seconds, int | float) else "",
        f"{row.name}.spz" if found.answer.get("identity") else "",
    )
