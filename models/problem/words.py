"""Numbers and words of a text file, one after another, each with the line that it stands in when something is wrong.

Readers of `.wcsp` and `.uai` files take tokens in the order of the file; `ProblemError` names the line and the token.
"""

from __future__ import annotations

import re
from typing import Final

import numpy as np

from .selection_problem import Ints, ProblemError

MOST_TOKENS: Final = 1 << 24
"""Tokens of a text: some 700 MiB of Python objects."""

_SPACES: Final = re.compile(rb"\S+")


class Words:
    """The tokens of `text`, split at white space, and which comes next.

    >>> words = Words(b"3 x\\n 4 5")
    >>> words.integer("size"), words.word("name"), words.integers(2, "values").tolist()
    (3, 'x', [4, 5])
    """

    def __init__(self, text: bytes) -> None:
        self._text = text
        self._tokens = text.split()
        self._next = 0
        if len(self._tokens) > MOST_TOKENS:
            raise ProblemError("file", f"has {len(self._tokens)} words, more than {MOST_TOKENS}")

    def remaining(self) -> int:
        """How many tokens are left."""
        return len(self._tokens) - self._next

    def fail(self, message: str, back: int = 1, hint: str = "") -> ProblemError:
        """An error at the token taken `back` tokens ago."""
        return ProblemError(self._place(self._next - back), message, hint)

    def word(self, what: str) -> str:
        """The next token."""
        if self._next >= len(self._tokens):
            raise ProblemError(self._place(len(self._tokens) - 1), f"the file ends where {what} should follow")
        self._next += 1
        return self._tokens[self._next - 1].decode("utf-8", "replace")

    def integer(self, what: str, low: int | None = None, high: int | None = None) -> int:
        """The next token as an integer in low..high."""
        word = self.word(what)
        if not re.fullmatch(r"[+-]?[0-9]{1,30}", word):
            raise self.fail(f"{what} must be an integer, not {word[:40]!r}")
        value = int(word)
        if (low is not None and value < low) or (high is not None and value > high):
            raise self.fail(f"{what} is {value}, not in {'..' if low is None else low}..{'' if high is None else high}")
        return value

    def integers(self, count: int, what: str) -> Ints:
        """The next `count` tokens as int64, shape (count,)."""
        part = self._part(count, what)
        try:
            values = np.array(list(map(int, part)), dtype=np.int64)
        except (ValueError, OverflowError):
            return np.array([self.integer(what, -(1 << 62), 1 << 62) for _ in range(count)], dtype=np.int64)
        self._next += count
        return values

    def decimals(self, count: int, what: str) -> list[str]:
        """The next `count` tokens, each the text of a number that is not negative."""
        part = [token.decode("utf-8", "replace") for token in self._part(count, what)]
        for i, word in enumerate(part):
            if not re.fullmatch(r"\+?([0-9]{1,400}(\.[0-9]{0,400})?|\.[0-9]{1,400})([eE][+-]?[0-9]{1,4})?", word):
                self._next += i + 1
                raise self.fail(f"{what} must be a number that is not negative, not {word[:40]!r}")
        self._next += count
        return part

    def _part(self, count: int, what: str) -> list[bytes]:
        if count > self.remaining():
            raise ProblemError(
                self._place(len(self._tokens) - 1), f"the file ends after {self.remaining()} of {count} numbers: {what}"
            )
        return self._tokens[self._next : self._next + count]

    def _place(self, number: int) -> str:
        """`line 3, 'x'` of token `number`."""
        for k, match in enumerate(_SPACES.finditer(self._text)):
            if k == max(number, 0):
                line = self._text.count(b"\n", 0, match.start()) + 1
                return f"line {line}, {match.group()[:40].decode('utf-8', 'replace')!r}"
        return "line 1"
