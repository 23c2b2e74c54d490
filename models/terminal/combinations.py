"""Which options of a verb go together: one table per verb, read before any work is done.

Every option of the verb is named in its table.  A pair that stands in no row is honoured: both options change what
comes out, which `tests/test_option_pairs.py` looks at, pair by pair.  The rows say the rest, and why:

    Apart("joint", ("pipeline", "recompute=auto"), "..")    neither of the others beside the first
    Needs("loss", ("train",), "..")                         not without one of these

A term is an option, or some of its values: `recompute=auto`, `pipeline=*:*:*` (`fnmatch`).  A file that the verb reads
stands in the table by its kind, `plan_file=pipelined`, and is asked as soon as the kind is known.  The command line and
Python read the same table (`models.terminal.options.refuse_combinations`, `api`); names are those of Python, and
`{name}` in a reason is an option as it is written there.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import Field, dataclass, field, fields
from fnmatch import fnmatchcase
from typing import Any, ClassVar, Final, Protocol

from ..text import InputError


class Keywords(Protocol):
    """A frozen dataclass, whose fields are keywords of a Python function (`models.keywords`)."""

    __dataclass_fields__: ClassVar[dict[str, Field[Any]]]


@dataclass(frozen=True)
class Apart:
    """`first` goes with none of `others`."""

    first: str
    others: tuple[str, ...]
    reason: str


@dataclass(frozen=True)
class Needs:
    """`option` goes only with one of `one_of`."""

    option: str
    one_of: tuple[str, ...]
    reason: str


Row = Apart | Needs


@dataclass(frozen=True)
class Combinations:
    """The table of a verb.  `options`: all of them, by name.  `kinds`: of a file that it reads, by name, what it may
    be and how that is said.  `neutral`: values that ask for what is done anyway.  `unmeasured`: options beside which
    nothing that comes out changes, and why that is right: those that permit, or say how long or with what.
    """

    verb: str
    options: tuple[str, ...]
    rows: tuple[Row, ...] = ()
    kinds: Mapping[str, Mapping[str, str]] = field(default_factory=dict)
    neutral: Mapping[str, str] = field(default_factory=dict)
    unmeasured: Mapping[str, str] = field(default_factory=dict)

    def __post_init__(self) -> None:
        known = {*self.options, *self.kinds}
        terms = [t for row in self.rows for t in _terms(row)]
        unknown = {_name(t) for t in terms} - known | {*self.neutral, *self.unmeasured} - {*self.options}
        if unknown or len(set(self.options)) != len(self.options):
            raise ValueError(f"the table of {self.verb} has rows of {sorted(unknown)}, which are no options of it")

    def refusal(self, given: Mapping[str, object], spelled: Mapping[str, str]) -> str | None:
        """Why what is given does not go together, or None.  `given`: options and their values, without those that were
        left out; kinds of files as far as they are known.  `spelled`: how the user writes every name.

        >>> table = Combinations("plan", ("joint", "loss", "train"), (Needs("loss", ("train",), "it is of a step"),))
        >>> table.refusal({"loss": "y"}, {"loss": "--loss", "train": "--train"})
        '--loss needs --train: it is of a step'
        """
        asked = {k: v for k, v in given.items() if k not in self.neutral or str(v) != self.neutral[k]}
        for row in self.rows:
            match row:
                case Apart(first, others, reason):
                    other = next((o for o in others if _holds(o, given if self._is_neutral(o) else asked)), None)
                    if other is not None and _holds(first, asked):
                        pair = " and ".join(self._written(t, given, spelled) for t in (first, other))
                        return f"{pair} do not go together: {reason.format_map(spelled)}"
                case Needs(option, one_of, reason):
                    later = any(_name(t) in self.kinds and _name(t) not in given for t in one_of)
                    if _holds(option, asked) and not later and not any(_holds(t, asked) for t in one_of):
                        wanted = " or ".join(self._wanted(t, spelled) for t in one_of)
                        written = self._written(option, asked, spelled)
                        return f"{written} needs {wanted}: {reason.format_map(spelled)}"
        return None

    def _is_neutral(self, term: str) -> bool:
        """Whether a term is a neutral value, which counts where a row names it."""
        name, _, pattern = term.partition("=")
        return self.neutral.get(name) == pattern

    def _written(self, term: str, given: Mapping[str, object], spelled: Mapping[str, str]) -> str:
        """A term that holds, as the user wrote it."""
        name, _, pattern = term.partition("=")
        if name in self.kinds:
            return self.kinds[name][str(given[name])]
        if not pattern:
            return spelled[name]
        value = given[name]
        texts = value if isinstance(value, tuple) else (value,)
        return " ".join([spelled[name], next(str(t) for t in texts if fnmatchcase(str(t), pattern))[:40]])

    def _wanted(self, term: str, spelled: Mapping[str, str]) -> str:
        """A term that does not hold."""
        name, _, value = term.partition("=")
        if name in self.kinds:
            return self.kinds[name][value]
        return f"{spelled[name]} {value}" if value else spelled[name]


def require_keywords(table: Combinations, options: Keywords, **more: str) -> None:
    """Raises `InputError` where keywords do not go together by the table of their verb.  `more`: options of the verb
    that the function has under another name, or always.
    """
    values = {f.name: (getattr(options, f.name), f.default) for f in fields(options) if f.name in table.options}
    given = {name: value for name, (value, default) in values.items() if value is not None and value != default}
    refusal = table.refusal(given | more, {name: name for name in table.options})
    if refusal is not None:
        raise InputError(refusal)


def _terms(row: Row) -> tuple[str, ...]:
    return (row.first, *row.others) if isinstance(row, Apart) else (row.option, *row.one_of)


def _name(term: str) -> str:
    return term.partition("=")[0]


def _holds(term: str, given: Mapping[str, object]) -> bool:
    name, equals, pattern = term.partition("=")
    if name not in given:
        return False
    value = given[name]
    texts = value if isinstance(value, tuple) else (value,)
    return not equals or any(fnmatchcase(str(t), pattern) for t in texts)


PLAN_KINDS: Final[Mapping[str, str]] = {
    "plan": "a plan",
    "joint": "a joint plan",
    "pipelined": "a pipelined plan",
    "overlapped": "an overlapped plan",
    "views": "a plan with submeshes",
    "reduction": "a reduction program",
    "sizes": "a file of plans for a range of sizes",
    "other": "a file that is no plan",
}
"""What a file of a plan may be (`proofs.publishing.kind.plan_kind`), and how it is said."""

OUTPUT: Final = ("output", "force", "as_json")
FORCE: Final[Mapping[str, str]] = {"force": "permits to replace a file, where there is one"}
TIME: Final[Mapping[str, str]] = {"time_limit": "what takes less time is the same"}
LIMIT: Final[Mapping[str, str]] = {**TIME, "work_limit": "what takes less work is the same"}
