"""Reads JSON text piece by piece: a file of a gigabyte of numbers is never in memory as text or as Python
objects.

Only what large problem files need: objects whose values are read in the order of the file, and lists of flat lists,
which arrive a chunk of inner lists at a time.  Errors name the place in the document and the position in the text.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from typing import Final, NoReturn

from ..files.json_text import JsonError, parse_json
from .selection_problem import ProblemError

CHUNK: Final = 1 << 20
MOST_PIECE: Final = 1 << 28
"""Longest inner list, string or skipped value, in bytes of text."""

_SPACES: Final = re.compile(rb"[ \t\r\n]*")
_CLOSE: Final = re.compile(rb"\](?=[ \t\r\n]*\])")
_QUOTE: Final = re.compile(rb'["\\]')
_BRACKET: Final = re.compile(rb'["\[\]{}]')
_PLAIN_END: Final = re.compile(rb"[,:\]}\s]")


class JsonStream:
    """`read(n)` returns up to n bytes of the text, b"" at its end.

    >>> import io
    >>> s = JsonStream(io.BytesIO(b'{"a": [[1, 2], []], "b": "x"}').read)
    >>> [(key, list(s.lists(key)) if key == "a" else s.value(key)) for key in s.keys("top")]
    [('a', [[[1, 2], []]]), ('b', 'x')]
    """

    def __init__(self, read: Callable[[int], bytes]) -> None:
        self._read = read
        self._buffer = b""
        self._at = 0
        self._before = 0  # bytes of text before the buffer
        self._ended = False

    def fail(self, place: str, message: str) -> NoReturn:
        raise ProblemError(place, f"{message} (byte {self._before + self._at} of the text)")

    def keys(self, place: str) -> Iterator[str]:
        """Keys of the object that comes next; the caller reads each value before it asks for the next key."""
        self._expect(b"{", place)
        seen: set[str] = set()
        if self._next(place) == b"}":
            self._at += 1
            return
        while True:
            key = self._string(place)
            if key in seen:
                self.fail(place, f"key {key!r} occurs twice")
            seen.add(key)
            self._expect(b":", place)
            yield key
            if not self._more(b"}", place):
                return

    def lists(self, place: str) -> Iterator[list[list[object]]]:
        """The inner lists of the list of flat lists that comes next, in order, many at a time."""
        self._expect(b"[", place)
        if self._next(place) == b"]":
            self._at += 1
            return
        number = 0
        while True:
            batch = self._batch() or [self._one(f"{place}[{number}]")]
            yield batch
            number += len(batch)
            if not self._more(b"]", f"{place}[{number - 1}]"):
                return

    def _batch(self) -> list[list[object]]:
        """The inner lists that the buffer holds to their ends; empty if that is not plain to see (then `_one` finds
        out why).
        """
        close = _CLOSE.search(self._buffer, self._at)
        end = close.start() if close else self._buffer.rfind(b"]", self._at)
        if end < 0:
            return []
        try:
            batch = parse_json(b"[%b]" % self._buffer[self._at : end + 1])
        except JsonError:
            return []
        if not isinstance(batch, list) or set(map(type, batch)) != {list}:
            return []
        self._at = end + 1
        return batch

    def _one(self, place: str) -> list[object]:
        if self._next(place) != b"[":
            self.fail(place, "must be a list")
        piece = self._through(b"]", place)
        if b"[" in piece[1:] or b"{" in piece:
            self.fail(place, "must be a flat list")
        found = self._parsed(piece, place)
        assert isinstance(found, list)
        return found

    def value(self, place: str) -> object:
        """Any value, as Python objects."""
        return self._parsed(self._raw(place), place)

    def end(self, place: str) -> None:
        """Nothing but white space may be left."""
        if self._skip_space():
            self.fail(place, "has more text behind its end")

    def _parsed(self, piece: bytes, place: str) -> object:
        try:
            return parse_json(piece)
        except JsonError as error:
            self.fail(place, f"is not JSON: {error}")

    def _raw(self, place: str) -> bytes:
        """Text of the next value: through its closing bracket or quote, or up to what ends a plain value."""
        first = self._next(place)
        if first == b'"':
            return self._taken(self._behind_string(0, place))
        if first in b"[{":
            return self._taken(self._behind_brackets(place))
        n = self._found(_PLAIN_END, 0, place, end=True)
        if n == 0:
            self.fail(place, "has no value")
        return self._taken(n)

    def _string(self, place: str) -> str:
        if self._next(place) != b'"':
            self.fail(place, "needs a string here")
        value = self._parsed(self._taken(self._behind_string(0, place)), place)
        assert isinstance(value, str)
        return value

    def _behind_string(self, n: int, place: str) -> int:
        """The string that starts n bytes from here ends before this offset."""
        n += 1
        while True:
            n = self._found(_QUOTE, n, place)
            if self._buffer[self._at + n] == 0x22:
                return n + 1
            n += 2  # a backslash and what it escapes

    def _behind_brackets(self, place: str) -> int:
        """The list or object that starts here ends before this offset."""
        n = depth = 0
        while True:
            n = self._found(_BRACKET, n, place)
            c = self._buffer[self._at + n]
            if c == 0x22:
                n = self._behind_string(n, place)
                continue
            n += 1
            depth += 1 if c in b"[{" else -1
            if depth == 0:
                return n

    def _found(self, pattern: re.Pattern[bytes], n: int, place: str, end: bool = False) -> int:
        """Offset of the first match at offset n or later; the end of the text counts as one if `end`, else it is an
        error.
        """
        while True:
            match = pattern.search(self._buffer, self._at + n)
            if match is not None:
                return match.start() - self._at
            n = max(n, len(self._buffer) - self._at)
            if n > MOST_PIECE:
                self.fail(place, f"value is longer than {MOST_PIECE} bytes")
            if not self._fill():
                if end:
                    return n
                self.fail(place, "text ends too early")

    def _taken(self, n: int) -> bytes:
        """The next n bytes, consumed."""
        piece = self._buffer[self._at : self._at + n]
        self._at += n
        return piece

    def _more(self, close: bytes, place: str) -> bool:
        """True after a comma, False after the closing bracket."""
        c = self._next(place)
        if c not in (b",", close):
            self.fail(place, f"needs ',' or '{close.decode()}' here, has {c!r}")
        self._at += 1
        return c == b","

    def _expect(self, c: bytes, place: str) -> None:
        found = self._next(place)
        if found != c:
            self.fail(place, f"needs '{c.decode()}' here, has {found!r}")
        self._at += 1

    def _next(self, place: str) -> bytes:
        """The next byte that is not white space, not consumed."""
        if not self._skip_space():
            self.fail(place, "text ends too early")
        return self._buffer[self._at : self._at + 1]

    def _skip_space(self) -> bool:
        while True:
            self._at = _SPACES.match(self._buffer, self._at).end()  # type: ignore[union-attr]  # it matches nothing too
            if self._at < len(self._buffer):
                return True
            if not self._fill():
                return False

    def _through(self, close: bytes, place: str) -> bytes:
        """Text from here through the next `close`."""
        seen = 0
        while True:
            end = self._buffer.find(close, self._at + seen)
            if end >= 0:
                piece = self._buffer[self._at : end + 1]
                self._at = end + 1
                return piece
            seen = len(self._buffer) - self._at
            if seen > MOST_PIECE:
                self.fail(place, f"list is longer than {MOST_PIECE} bytes")
            if not self._fill():
                self.fail(place, "text ends too early")

    def _fill(self) -> bool:
        """More text behind the buffer, what was consumed dropped; False at the end."""
        if self._ended:
            return False
        more = self._read(
            max(CHUNK, len(self._buffer) - self._at)
        )  # doubling: a long list is not copied once per chunk
        self._ended = not more
        self._before += self._at
        self._buffer = self._buffer[self._at :] + more
        self._at = 0
        return bool(more)
