r"""Puts values in place of variables, arrays, defaults and sums in the words of a script.

    $A  ${A}  "${B[@]}"  ${A:-8}  ${A:+--x}  $((A * 8))  ${#B[@]}

What only the one who starts the script can say (its arguments, the environment, output of commands) stays `$NAME`, and
so does a dollar in single quotes or behind a backslash: it is no value of a setting that is read, and the reader of the
arguments refuses it there.  A default counts where nothing else is said, and is listed.
"""

from __future__ import annotations

import ast
import operator
import re
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Final

from .quotes import Unread, end_of

MOST_EXPANDED: Final = 1 << 18
"""Characters of a word: variables in variables grow fast."""

_PLAIN: Final = re.compile(r"[^'\"`\\$\s{~]+")
_NAME: Final = re.compile(r"\$([A-Za-z_]\w*|[0-9@*#?$!_-])", re.ASCII)
_INSIDE: Final = re.compile(
    r"(#?)([A-Za-z_]\w*|[0-9]|[@*#?])(?:\[([^\]]*)\])?(?:(:?[-=+?])(.*))?", re.ASCII | re.DOTALL
)
_BRACES: Final = re.compile(r"\{[^{}\s]*(,|\.\.)[^{}\s]*\}")
_RUN: Final = "$(..)"
_MORE: Final = "holds more of the shell than variables and arrays"

Value = list[str]


@dataclass
class Shell:
    """Variables so far, in words (`arrays`: those that are arrays); those that were used; what was taken where nothing
    was said; and those of them that are `empty` then.
    """

    known: dict[str, Value] = field(default_factory=dict)
    arrays: set[str] = field(default_factory=set)
    used: set[str] = field(default_factory=set)
    defaults: list[str] = field(default_factory=list)
    empty: set[str] = field(default_factory=set)

    def words(self, text: str) -> Value:
        """Words of a word as it is written; variables outside quotes split.  Raises `Unread`.

        >>> Shell(known={"A": ["1 2"], "B": ["x", "y"]}, arrays={"B"}).words("--a=$A")
        ['--a=1', '2']
        """
        return _Expansion(self, text).all()

    def value(self, text: str) -> str:
        """The right side of an assignment, which no shell splits."""
        return _Expansion(self, text, split=False).as_text()

    def assign(self, name: str, values: Value, array: bool, added: bool) -> None:
        """`NAME=..` and `NAME+=..`."""
        before = self.known.get(name, [f"${name}"] if added and array else []) if added else []
        if added and not array:
            first = self.known.get(name, [f"${name}"])
            values = ["".join((*first[:1], *values)), *first[1:]]
            array = name in self.arrays
        elif array:
            values = [*before, *values]
        self.known[name] = values
        (self.arrays.add if array else self.arrays.discard)(name)

    def forget(self, name: str) -> None:
        """From here on only the one who starts the script knows it."""
        self.known.pop(name, None)
        self.arrays.discard(name)


@dataclass
class _Expansion:
    """One pass over a word: `out` whole words, `open` the one that is being made, None where none has begun."""

    shell: Shell
    text: str
    split: bool = True
    out: Value = field(default_factory=list)
    open: str | None = None

    def all(self) -> Value:
        self.run(self.text, quoted=False)
        if self.open is not None:
            self.out.append(self.open)
        if sum(map(len, self.out)) > MOST_EXPANDED:
            raise Unread("grows too long")
        return self.out

    def as_text(self) -> str:
        return " ".join(self.all())

    def add(self, text: str) -> None:
        self.open = (self.open or "") + text

    def put(self, values: Value, quoted: bool, several: bool) -> None:
        """Values of a variable: in quotes whole (`several`: each a word), else split."""
        for n, value in enumerate(values):
            if n and (several or not quoted) and (self.split or quoted):
                if self.open is not None:
                    self.out.append(self.open)
                    self.open = None
            elif n:
                self.add(" ")
            if quoted or not self.split:
                self.add(value)
                continue
            parts = value.split()
            if parts and value[:1].isspace() and self.open is not None:
                self.out.append(self.open)
                self.open = None
            for k, part in enumerate(parts):
                if k:
                    self.out.append(self.open or "")
                    self.open = None
                self.add(part)
            if value[-1:].isspace() and self.open is not None:
                self.out.append(self.open)
                self.open = None

    def run(self, text: str, quoted: bool) -> None:
        at = 0
        while at < len(text):
            c = text[at]
            end = at + 1 if quoted and c == "'" else end_of(text, at)
            if not quoted and (plain := _PLAIN.match(text, at)) is not None:
                self.add(plain[0])
                end = plain.end()
            elif c == "\\":
                self.escape(text[at + 1 : end], quoted)
            elif c == "'" and not quoted:
                self.add(text[at + 1 : end - 1])
            elif c == '"' and not quoted:
                if self.open is None and not _only_arrays(text[at + 1 : end - 1]):
                    self.open = ""
                self.run(text[at + 1 : end - 1], quoted=True)
            elif c == "`":
                self.put([_RUN], quoted=True, several=False)
            elif c == "$":
                end = self.variable(text, at, end, quoted)
            elif c == "~" and not quoted and self.open is None and text[at + 1 : at + 2] in ("", "/", "\\"):
                self.add("$HOME")
            elif c == "{" and not quoted and self.split and _BRACES.match(text, at) is not None:
                raise Unread(_MORE)
            elif c.isspace() and not quoted and self.split:
                if self.open is not None:
                    self.out.append(self.open)
                    self.open = None
            else:
                self.add(c)
            at = end

    def escape(self, letter: str, quoted: bool) -> None:
        if letter != "\n":
            self.add(letter if not quoted or letter in '"\\`$' else f"\\{letter}")

    def variable(self, text: str, at: int, end: int, quoted: bool) -> int:
        """What stands for a variable, and where it ends."""
        if text.startswith("$((", at) and text[at + 2 : end].endswith("))"):
            self.put([self.sum(text[at + 3 : end - 2])], quoted, several=False)
        elif text.startswith("$(", at):
            self.put([_RUN], quoted=True, several=False)
        elif text.startswith("${", at):
            values, several = self.in_braces(text[at + 2 : end - 1], quoted)
            self.put(values, quoted, several)
        elif (found := _NAME.match(text, at)) is not None:
            values, several = self.plain(found[1], "")
            self.put(values, quoted, several)
            return found.end()
        elif text[at + 1 : at + 2] in "'\"" and not quoted and at + 1 < len(text):  # $'..' and $".."
            raise Unread(_MORE)
        else:
            raise Unread(_MORE)
        return end

    def plain(self, name: str, index: str) -> tuple[Value, bool]:
        """Values of a variable, and whether each is a word of its own in quotes."""
        shell = self.shell
        if name in ("@", "*"):  # a script that is given as it is has no arguments
            shell.defaults.append("arguments of the script: none")
            return [], name == "@"
        if name not in shell.known:
            return [f"${name}"], False
        shell.used.add(name)
        values = shell.known[name]
        if index in ("@", "*"):
            return (values, True) if index == "@" else ([" ".join(values)], False)
        if index:
            if index.isdigit() and int(index) < len(values) and not any("$" in v for v in values):
                return [values[int(index)]], False
            return [f"${name}"], False
        if name in shell.arrays and len(values) > 1:
            raise Unread(f"${name} is an array; write ${{{name}[@]}}")
        return values[:1] or [""], False

    def in_braces(self, inner: str, quoted: bool) -> tuple[Value, bool]:
        found = _INSIDE.fullmatch(inner)
        if found is None:
            bare = re.match(r"[!#]?([A-Za-z_]\w*|[0-9@*#?])", inner, re.ASCII)
            if bare is None:
                raise Unread(_MORE)
            return [f"${bare[1]}"], False
        count, name, index, sign, other = found.groups()
        if count:
            values = self.shell.known.get(name)
            if values is None or any("$" in v for v in values):
                return [f"$#{name}"], False
            return [str(len(values) if index else len(values[0]) if values else 0)], False
        values, several = self.plain(name, index or "")
        if sign is None:
            return values, several
        known = name in self.shell.known
        empty = not any(values)
        if known and sign[0] == ":" and re.fullmatch(r"(\$(\w+|[^\w\s]|\(\.\.\)))+", "".join(values), re.ASCII):
            return values, several  # it may be empty
        if sign[-1] == "+":
            if not known:
                return [f"${name}"], False
            return ([], False) if empty and sign[0] == ":" else self.instead(other, self.other(other), quoted)
        if sign[-1] == "?" or (known and not (empty and sign[0] == ":")):
            return values, several
        chosen = self.other(other)
        self.shell.defaults.append(f"{name}={' '.join(chosen)} by default")
        if not any(chosen):
            self.shell.empty.add(name)
        if sign[-1] == "=":
            self.shell.assign(name, [" ".join(chosen)], array=False, added=False)
            return chosen, False  # which splits as any value
        return self.instead(other, chosen, quoted)

    def other(self, text: str) -> Value:
        """The text that stands in place of a variable."""
        inner = _Expansion(self.shell, text, split=False)
        inner.run(text, quoted=False)
        return [*inner.out, inner.open or ""]

    def instead(self, text: str, values: Value, quoted: bool) -> tuple[Value, bool]:
        """It in place of the variable: quotes in it hold words together."""
        if quoted or not self.split:
            return values, False
        self.run(text, quoted=False)
        return [], False

    def sum(self, text: str) -> str:
        """`$((A * 8))` of variables that are known; unknown as a whole where one is not."""
        filled = "".join(self.sum_parts(text))
        if "$" in filled:
            return _RUN
        try:
            tree = ast.parse(filled.strip().replace("/", "//")[:400], mode="eval").body
            return str(_number(tree))
        except (ValueError, SyntaxError, ZeroDivisionError, RecursionError):
            raise Unread(f"$(({text[:40]})) is no sum of whole numbers") from None

    def sum_parts(self, text: str) -> Value:
        out, at = [], 0
        while at < len(text):
            end = end_of(text, at)
            name = re.compile(r"[A-Za-z_]\w*", re.ASCII).match(text, at)
            if text[at] == "$":
                inner = _Expansion(self.shell, text, split=False)
                end = inner.variable(text, at, end, quoted=True)
                out.append(inner.open or "$")
            elif name is not None:
                out.append(f"({''.join(self.shell.known.get(name[0], ['$'])[:1]) or 0})")
                self.shell.used.add(name[0])
                end = name.end()
            elif text[at] != '"':
                out.append(text[at])
            at = end
        return out


def _only_arrays(text: str) -> bool:
    """Whether quotes hold arrays alone, which may be no word at all."""
    return re.fullmatch(r"(\$@|\$\{([A-Za-z_]\w*\[@\]|@)\})+", text, re.ASCII) is not None


_STEPS: Final[dict[type[ast.operator], Callable[[int, int], int]]] = {
    ast.Add: operator.add,
    ast.Sub: operator.sub,
    ast.Mult: operator.mul,
    ast.FloorDiv: lambda a, b: abs(a) // abs(b) * (1 if (a < 0) == (b < 0) else -1),
    ast.Mod: lambda a, b: a - b * (abs(a) // abs(b) * (1 if (a < 0) == (b < 0) else -1)),
}


def _number(node: ast.expr) -> int:
    match node:
        case ast.Constant(value=int(n)) if not isinstance(n, bool) and abs(n) < 1 << 62:
            return n
        case ast.UnaryOp(op=ast.USub(), operand=inner):
            return -_number(inner)
        case ast.BinOp(left=left, op=step, right=right) if type(step) in _STEPS:
            found = _STEPS[type(step)](_number(left), _number(right))
            if abs(found) < 1 << 62:
                return found
    raise ValueError("no sum of whole numbers")
