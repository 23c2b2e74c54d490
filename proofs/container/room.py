"""How much memory a file may ask for: a bound on what its JSON becomes, taken from the text before it
is parsed.

A small packed file can hold a long text, and a short text can become many Python objects (`{},` takes 24 times its
length).  The room grows with the bytes that the file really has; a file that needs more is refused with its place.
"""

from __future__ import annotations

from typing import Final

from .canonical import ContainerError

ROOM: Final = 1 << 30
"""Bytes that the values of any file may take."""

ROOM_PER_BYTE: Final = 1 << 9
"""Bytes more for every byte of the file, packed as it is: contest problems of 1.5 MB need 600 MB."""

_NEEDS: Final = {b"{": 300, b"[": 400, b",": 64, b":": 130}
"""Bytes per character of JSON text, at most: an object, a list (or the array made of it), an element, an entry of
an object.
"""

_TEXT: Final = 6
"""Bytes per byte of text: its pieces, the whole, its characters, and a text value of all of them."""


def most_text(file: int) -> int:
    """Bytes of text that are unpacked from a file of `file` bytes: what is longer needs more room than there is."""
    return (ROOM + ROOM_PER_BYTE * file) // _TEXT


def needs(text: bytes) -> int:
    """Bytes that the values of a JSON text (or of a piece of one) take at most.

    >>> needs(b'{},') > 64, needs(b'[0,0]') > 56
    (True, True)
    """
    return _TEXT * len(text) + sum(size * text.count(c) for c, size in _NEEDS.items())


def check_room(needed: int, file: int, place: str) -> None:
    """`ContainerError` if the values need more than a file of `file` bytes may ask for."""
    room = ROOM + ROOM_PER_BYTE * file
    if needed > room:
        raise ContainerError(
            place,
            f"is too large: its values need up to {needed >> 20} MiB, {room >> 20} MiB are there for a file of "
            f"{file} bytes",
        )
