"""Every pair of options of a verb, given on the command line: refused by both names, or both change what comes out.

A verb is tried from one or more beginnings (a line, and what it reads); a probe is what is typed for an option.  What
comes out is the exit code, the JSON object without times, and the bytes of the files that were written; or, where that
takes long, what reaches the planner (`recorded`).
"""

from __future__ import annotations

import contextlib
import hashlib
import io
import json
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, fields, is_dataclass
from itertools import combinations
from pathlib import Path
from re import sub

import click
import numpy as np

from shardproof.__main__ import cli, run
from shardproof.formal.plans.time_limit import TimeLimit
from shardproof.formal.selection.model.clock import Clock
from shardproof.models.machine.machine import Machine
from shardproof.models.program.graph import Graph
from shardproof.models.terminal.combinations import Combinations

TIMES = frozenset(
    (
        "seconds",
        "processor_seconds",
        "phases",
        "overlap",
        "measured",
        "compute_seconds",
        "wait_seconds",
        "flight_seconds",
        "at",
    )
)
"""JSON entries that are times of this run, or hold some."""

REFUSED = (
    " do not go together: ",
    " needs ",
    ": are no settings of ",
    "has no branches that could run",
    ": leave out the model",
)


@dataclass(frozen=True)
class Start:
    """Where pairs begin: `line`, always typed; `probes`: option -> what is typed for it."""

    verb: tuple[str, ...]
    line: tuple[str, ...]
    probes: Mapping[str, tuple[str, ...]]


_SHA: dict[int, tuple[Graph, str]] = {}
"""Hashes of graphs, which are asked for again and again."""

_PLAIN: dict[int, tuple[object, object]] = {}
"""The same of other values that never change."""


class Recorded(Exception):
    """What reached a planner."""

    def __init__(self, *what: object) -> None:
        super().__init__()
        self.what = what


def recorded(name: str, *skip: int) -> Callable[..., object]:
    """A planner that plans nothing and says what it was asked; without arguments number `skip`."""

    def planner(*args: object, **keywords: object) -> object:
        kept = [a for k, a in enumerate(args) if k not in skip]
        raise Recorded(name, [plain(a) for a in kept], {k: plain(v) for k, v in sorted(keywords.items())})

    return planner


def plain(value: object) -> object:
    """A value as it can be compared."""
    match value:
        case Graph():
            if id(value) not in _SHA:
                _SHA[id(value)] = (value, value.sha256())
            return _SHA[id(value)][1]
        case Machine():
            return value.sha256()
        case TimeLimit():
            return plain(value.clock)
        case Clock():
            return [None if s is None else round(s, 1) for s in (value.limit_s, value.wall.limit_s)]
        case np.ndarray():  # whole, and not the middle left out as in its text
            return [value.dtype.str, value.shape, hashlib.sha256(np.ascontiguousarray(value)).hexdigest()]
        case _ if is_dataclass(value) and not isinstance(value, type):
            if id(value) not in _PLAIN:
                found = {f.name: plain(getattr(value, f.name)) for f in fields(value)}
                if not value.__dataclass_params__.frozen:  # type: ignore[attr-defined]
                    return found
                _PLAIN[id(value)] = (value, found)
            return _PLAIN[id(value)][1]
        case dict():
            return {str(k): plain(v) for k, v in value.items()}
        case list() | tuple():
            return [plain(v) for v in value]
        case _ if callable(value):
            return _called(value)
    return sub(r" at 0x[0-9a-f]+", "", repr(value))  # the place of an object says nothing of what was asked


def _called(make: Callable[[str], object]) -> object:
    """A maker of training steps, by the step that it makes."""
    try:
        step = make("none")
    except TypeError:
        return "a function"
    return step.graph.sha256() if hasattr(step, "graph") else repr(step)


def once(function: Callable[..., object], *skip: int) -> Callable[..., object]:
    """A function whose answers are kept, by its arguments but those of number `skip`; graphs count by identity."""
    known: dict[object, tuple[object, object]] = {}

    def kept(*args: object, **keywords: object) -> object:
        told = [id(a) if isinstance(a, Graph | Machine) else a for k, a in enumerate(args) if k not in skip]
        key = (tuple(told), tuple(sorted(keywords.items())))
        if key not in known:
            known[key] = (args, function(*args, **keywords))
        return known[key][1]

    return kept


def command(verb: tuple[str, ...]) -> click.Command:
    """The command of a verb, or of a word of it."""
    found: click.Command = cli
    for word in verb:
        assert isinstance(found, click.Group)
        inner = found.get_command(click.Context(found), word)
        assert inner is not None
        found = inner
    return found


def commands() -> Iterator[tuple[tuple[str, ...], click.Command]]:
    """All of them."""

    def below(group: click.Command, path: tuple[str, ...]) -> Iterator[tuple[tuple[str, ...], click.Command]]:
        if not isinstance(group, click.Group):
            yield path, group
            return
        for word in group.list_commands(click.Context(group)):
            inner = group.get_command(click.Context(group), word)
            assert inner is not None
            yield from below(inner, (*path, word))

    return below(cli, ())


def table_of(found: click.Command) -> Combinations:
    """The table that a command reads."""
    return found.callback.combinations  # type: ignore[union-attr, no-any-return]


def options_of(found: click.Command) -> dict[str, str]:
    """Name -> as it is typed."""
    return {p.name or "": max(p.opts, key=len) for p in found.params if isinstance(p, click.Option)}


class Tried:
    """Outcomes of command lines of one beginning, each run once, in a folder whose new files are part of it."""

    def __init__(self, start: Start, folder: Path) -> None:
        self.start, self.folder = start, folder
        self.flags = options_of(command(start.verb))
        self.known: dict[frozenset[str], tuple[str, object]] = {}

    def outcome(self, names: frozenset[str]) -> tuple[str, object]:
        """("refused", message), or ("done", what came out)."""
        if names not in self.known:
            self.known[names] = self._run([w for n in sorted(names) for w in self.start.probes[n]])
        return self.known[names]

    def _run(self, typed: list[str]) -> tuple[str, object]:
        before = set(self.folder.rglob("*"))
        out, err = io.StringIO(), io.StringIO()
        line = [*self.start.verb, *self.start.line, *typed]
        with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
            try:
                code = run([*line, *([] if "--json" in line else ["--json"])])
            except Recorded as what:
                return "done", repr(what.what)
        said = err.getvalue()
        if code in (2, 3) and any(w in said for w in REFUSED):
            return "refused", said.split("\n")[0]
        assert code not in (2, 3, 6), (line, said)
        text = out.getvalue()
        assert text.count("\n") == 1, (line, text)
        document = timeless(json.loads(text))
        if isinstance(document, dict) and self.start.verb == ("run",):
            document.pop("operators", None)  # in the order of their times
        assert isinstance(document, dict), line
        written = {}
        for path in sorted({p for p in self.folder.rglob("*") if p.is_file()} - before):
            written[path.name] = hashlib.sha256(path.read_bytes()).hexdigest()
            path.unlink()
        return "done", (int(code), json.dumps(document, sort_keys=True), tuple(sorted(written.items())))

    def faults(self) -> Iterator[str]:
        """Pairs that are dropped, and refusals that do not name what was typed."""
        table, base = table_of(command(self.start.verb)), self.outcome(frozenset())
        assert base[0] == "done", (self.start, base)
        for name in self.start.probes:
            if name not in table.unmeasured and self.outcome(frozenset({name})) == base:
                yield f"{self.flags[name]} changes nothing"
        for one, other in combinations(self.start.probes, 2):
            both = self.outcome(frozenset({one, other}))
            if both[0] == "refused":
                typed = [w for n in (one, other) for w in (self.flags[n], *self.start.probes[n])]
                if not any(word in str(both[1]) for word in typed):
                    yield f"{typed} is refused by other names: {both[1]}"
                continue
            for kept, dropped in ((one, other), (other, one)):
                if dropped not in table.unmeasured and both == self.outcome(frozenset({kept})):
                    yield f"{self.flags[kept]} drops {self.flags[dropped]}"


def timeless(value: object) -> object:
    """JSON without the times of this run."""
    if isinstance(value, dict):
        return {k: timeless(v) for k, v in value.items() if k not in TIMES}
    return [timeless(v) for v in value] if isinstance(value, list) else value
