r"""Finds where quotes, variables and sums of a shell end in a text.

'a b'   "a $b"   `cmd`   $(cmd "$a")   $((A * 8))   ${A:-${B}}   \x
"""

from __future__ import annotations

import re
from typing import Final

from ....text import InputError

DEEPEST: Final = 32
"""Quotes and brackets in one another; scripts have three."""

_PLAIN: Final = re.compile(r"[^'\"`\\$(){}]+")
_IN_QUOTES: Final = re.compile(r"[^\"`\\$]+")


class Unread(InputError):
    """What a script holds that is not read."""


def end_of(text: str, at: int, depth: int = 0) -> int:
    """Where the quote, variable, sum or escaped letter that begins at `at` ends; `at` + 1 for any other letter.

    Raises `Unread` for one without an end.

    >>> end_of("'a b' c", 0), end_of('"$(b "c")" d', 0), end_of("${A:-${B}}x", 0), end_of("\\\\$A", 0), end_of("ab", 0)
    (5, 10, 10, 2, 1)
    """
    if depth > DEEPEST:
        raise Unread(f"more than {DEEPEST} quotes and brackets in one another")
    c = text[at]
    if c == "\\":
        return min(at + 2, len(text))
    if c in "'`":
        end = text.find(c, at + 1)
        if end < 0:
            raise Unread(f"No closing quotation: {text[at : at + 40]!r}")
        return end + 1
    if c == '"':
        return _end_of_quote(text, at + 1, depth)
    if c == "$" and text[at + 1 : at + 2] in ("(", "{"):
        return end_of_bracket(text, at + 1, depth)
    return at + 1


def _end_of_quote(text: str, at: int, depth: int) -> int:
    begun = at
    while at < len(text):
        if (plain := _IN_QUOTES.match(text, at)) is not None:
            at = plain.end()
        elif text[at] == '"':
            return at + 1
        else:
            at = end_of(text, at, depth + 1)
    raise Unread(f"No closing quotation: {text[begun - 1 : begun + 40]!r}")


def end_of_bracket(text: str, at: int, depth: int = 0) -> int:
    """Where the bracket that opens at `at` is closed.  Raises `Unread`.

    >>> end_of_bracket("(a (b ')') c) d", 0)
    13
    """
    if depth > DEEPEST:
        raise Unread(f"more than {DEEPEST} quotes and brackets in one another")
    begun, opened = at, text[at]
    closed, inside = (")" if opened == "(" else "}"), 0
    while at < len(text):
        c = text[at]
        if c == opened:
            inside, at = inside + 1, at + 1
        elif c == closed:
            inside, at = inside - 1, at + 1
            if inside == 0:
                return at
        elif opened == "(" and c == "#" and text[at - 1].isspace():
            end = text.find("\n", at)
            at = len(text) if end < 0 else end
        elif (plain := _PLAIN.match(text, at)) is not None and opened != "(":
            at = plain.end()
        else:
            at = end_of(text, at, depth + 1)
    raise Unread(f"a bracket without an end: {text[begun : begun + 40]!r}")
