"""The one way in for problems: our own JSON or `.spz`, IOPDDL JSON, PaSE tables, e-graphs, cost function
networks (`.wcsp`), graphical models (`.uai`), pseudo-Boolean programs (`.opb`); packed by gzip or xz, or not.  What a
file holds is seen from its first words, never from its name.

IOPDDL files are read as a stream (a gigabyte of text becomes int64 arrays without passing through Python objects); the
others are small.
"""

from __future__ import annotations

import io
import lzma
import re
import stat
import zlib
from pathlib import Path
from typing import BinaryIO, Final

from ...models.egraphs.egraph import EGraph
from ...models.egraphs.extraction_gym import EGraphError, from_extraction_gym, is_extraction_gym
from ...models.files.json_text import JsonError, parse_json
from ...models.problem.iopddl import from_iopddl, read_iopddl
from ...models.problem.pase import from_pase
from ...models.problem.pseudo_boolean import from_opb
from ...models.problem.selection_problem import ProblemError, SelectionProblem
from ...models.problem.uai import from_uai
from ...models.problem.wcsp import from_wcsp
from ..container.archive import LIMITS, read_file
from ..container.canonical import ContainerError
from ..container.room import check_room, needs
from .problem_file import MOST_TEXT, parse_problem

MOST_STREAM: Final = 1 << 33
"""Longest text, after unpacking, that is read as a stream."""

PIECE: Final = 1 << 20

MOST_XZ: Final = 1 << 27
"""Bytes of memory that unpacking xz may take: its file says how much it needs."""

_IOPDDL = re.compile(rb'\s*\{\s*"problem"\s*:')
_WRITTEN_ONLY: Final = (
    ("an LP file", re.compile(rb"\s*(\\[^\n]*\n\s*)*(minimi[sz]e|maximi[sz]e|minimum|maximum)\s", re.IGNORECASE)),
    ("an MPS file", re.compile(rb"\s*(\*[^\n]*\n\s*)*NAME\s")),
    ("an SMT-LIB file", re.compile(rb"\s*(;[^\n]*\n\s*)*\((set-|declare-|define-|assert)")),
)
"""Formats that other solvers read, and we do not."""

_PLAIN: Final = (
    (re.compile(rb"\s*(MARKOV|BAYES)\s"), from_uai),
    (re.compile(rb"\s*(\*|min\s*:|max\s*:|soft\s*:)|[^;{]*[<>]?=\s*[+-]?[0-9]+\s*;"), from_opb),
    (re.compile(rb"\s*[^\s{]\S*(\s+[0-9]+){4}\s"), from_wcsp),
)
"""Formats of words and numbers: how their texts begin, and who reads them."""


def load_selection_problem(path: Path) -> SelectionProblem:
    """The selection problem in a file.  Raises `ContainerError` or `ProblemError` naming the place."""
    return _selection(load_problem(path), str(path))


def load_problem(path: Path) -> SelectionProblem | EGraph:
    """The problem in a file, whichever kind.  Raises `ContainerError`, `ProblemError` or `EGraphError` naming the
    place.
    """
    place = str(path)
    try:
        if not stat.S_ISREG(path.stat().st_mode):
            raise ContainerError(f"file {place!r}", "is not a regular file")
        with open(path, "rb") as file:
            if file.read(4) != b"PK\3\4":
                file.seek(0)
                return _read(file, place)
    except (OSError, ValueError) as error:
        if isinstance(error, ProblemError | ContainerError | EGraphError):
            raise
        raise ContainerError(f"file {place!r}", f"cannot be read: {error}") from None
    try:
        return parse_problem(read_file(path, LIMITS.file), place)
    except ContainerError as error:
        raise ContainerError(place if error.place == "file" else f"{place}, {error.place}", error.message) from None


def selection_problem(data: bytes, place: str) -> SelectionProblem:
    """The selection problem in the bytes of a file; `place` names it in errors."""
    return _selection(problem_of(data, place), place)


def _selection(problem: SelectionProblem | EGraph, place: str) -> SelectionProblem:
    if isinstance(problem, EGraph):
        raise ContainerError(place, "holds an e-graph, not a selection problem; solve and check take it")
    return problem


def problem_of(data: bytes, place: str) -> SelectionProblem | EGraph:
    """The problem in the bytes of a file; `place` names it in errors."""
    return parse_problem(data, place) if data[:4] == b"PK\3\4" else _read(io.BytesIO(data), place)


class _Text:
    """Text of a file, unpacked if it is gzipped; `ContainerError` if that is cut off, followed by more, or too long."""

    def __init__(self, file: BinaryIO, place: str) -> None:
        self._file, self._place = file, place
        magic = file.read(6)
        file.seek(0)
        self._inflater = zlib.decompressobj(31) if magic[:2] == b"\x1f\x8b" else None
        self._xz = lzma.LZMADecompressor(lzma.FORMAT_XZ, MOST_XZ) if magic == b"\xfd7zXZ\0" else None
        self._given = self._taken = self._needed = 0
        self._back = b""

    def read(self, n: int) -> bytes:
        """Up to n bytes (n > 0), b"" at the end."""
        out, self._back = self._back[:n], self._back[n:]
        if not out:
            if self._xz is not None:
                out = self._unpacked_xz(self._xz, n)
            else:
                out = self._taking(n) if self._inflater is None else self._unpacked(self._inflater, n)
            self._given += len(out)
            self._needed += needs(out)
            check_room(self._needed, self._taken, self._place)
            if self._given > MOST_STREAM:
                raise ContainerError(self._place, f"text has more than {MOST_STREAM} bytes")
        return out

    def _taking(self, n: int) -> bytes:
        """Up to n bytes of the file as it is."""
        data = self._file.read(n)
        self._taken += len(data)
        return data

    def _unpacked(self, inflater: zlib._Decompress, n: int) -> bytes:
        out = b""
        try:
            while not out and not inflater.eof:
                packed = inflater.unconsumed_tail or self._taking(PIECE)
                if not packed:
                    raise ContainerError(self._place, "gzip data is cut off")
                out = inflater.decompress(packed, n)
        except zlib.error as error:
            raise ContainerError(self._place, f"is not a gzip file: {error}") from None
        if inflater.eof and (inflater.unused_data or self._file.read(1)):
            raise ContainerError(self._place, "gzip data has more behind its end")
        return out

    def _unpacked_xz(self, inflater: lzma.LZMADecompressor, n: int) -> bytes:
        out = b""
        try:
            while not out and not inflater.eof:
                packed = self._taking(PIECE) if inflater.needs_input else b""
                if not packed and inflater.needs_input:
                    raise ContainerError(self._place, "xz data is cut off")
                out = inflater.decompress(packed, n)
        except lzma.LZMAError as error:
            raise ContainerError(self._place, f"is not an xz file that can be read: {error}") from None
        if inflater.eof and (inflater.unused_data or self._file.read(1)):
            raise ContainerError(self._place, "xz data has more behind its end")
        return out

    def put_back(self, text: bytes) -> None:
        """`text` is what the next reads return first."""
        self._back = text + self._back


def _read(file: BinaryIO, place: str) -> SelectionProblem | EGraph:
    text = _Text(file, place)
    start = text.read(PIECE)
    try:
        if _IOPDDL.match(start):
            text.put_back(start)
            return read_iopddl(text.read)
        return _parse(_all(text, start, place), place)
    except ProblemError as error:
        raise ProblemError(f"{place}, {error.place}", error.message, error.hint) from None


def _all(text: _Text, start: bytes, place: str) -> bytes:
    pieces, size = [start], len(start)
    while piece := text.read(PIECE):
        pieces.append(piece)
        size += len(piece)
        if size > MOST_TEXT:
            raise ContainerError(
                place,
                f"text has more than {MOST_TEXT} bytes; only IOPDDL files with the key problem first may be longer",
            )
    return b"".join(pieces)


def _parse(data: bytes, place: str) -> SelectionProblem | EGraph:
    network = _PLAIN[-1][0].match(data[:PIECE])  # of any name, that of another format too
    for name, begins in () if network else _WRITTEN_ONLY:
        if begins.match(data[:PIECE]):
            raise ContainerError(place, f"is {name}, which is written and not read; give the problem as .opb or .wcsp")
    for begins, reader in _PLAIN:
        if begins.match(data[:PIECE]):
            return reader(data)
    try:
        head = parse_json(data)
    except JsonError as error:
        raise ContainerError(place, f"is neither JSON nor an .spz file: {error}") from None
    if not isinstance(head, dict):
        raise ContainerError(place, "must hold one JSON object")
    if "format" in head:
        del head  # read again, without floats
        return parse_problem(data, place)
    if "problem" in head:
        return from_iopddl(head)
    if is_extraction_gym(head):
        del head  # read again, with costs to their last digit
        try:
            return from_extraction_gym(parse_json(data, decimals=True), place)
        except JsonError as error:
            raise ContainerError(place, f"is no e-graph: {error}") from None
    if "nodes" in head and "edges" in head:
        return from_pase(head)
    raise ContainerError(
        place,
        "is none of: our own problem JSON (key format), IOPDDL (key problem), PaSE tables (keys nodes and edges), "
        "an e-graph of the extraction gym (keys nodes and root_eclasses), a wcsp, uai or opb text",
    )
