"""Reads files with measured times, whatever their form: output of nccl-tests, Chrome traces, tables;
gzipped or not.
"""

from __future__ import annotations

import gzip
import zlib
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import MappingProxyType
from typing import Final

from ....models.cost.collective_times import Operation
from ....models.files.input import regular
from ....models.files.json_text import JsonError, parse_json
from ....models.machine.machine import Machine
from ....models.text import InputError
from . import chrome, nccl_tests, own, tables
from .observation import Observation

MAX_BYTES: Final = 1 << 30
"""Of a file, unpacked."""


def read(
    path: Path,
    machine: Machine,
    operation: Operation | None = None,
    plan: Path | None = None,
    conditions: Mapping[str, str] = MappingProxyType({}),
) -> tuple[list[Observation], int]:
    """The rows of a file, and how many were left out for want of a time.  `plan`: of our own trace; `conditions`: lines
    of a table whose columns have other values are not looked at.  Raises `InputError` naming file, line and what to do.
    """
    text, place = _text(path), str(path)
    start = text.lstrip()[:1]
    if start in "{[" and start:
        try:
            data = parse_json(text)
        except JsonError as error:
            raise InputError(f"{place}: is not JSON: {error}") from None
        if chrome.looks_like(data):
            events = chrome.events_of(data, place)
            if events and chrome.is_own(events):
                return own.read(events, place, machine, plan), 0
            return chrome.read(data, place, machine.levels[-1].size), 0
        lines = tables.json_lines(data, place)
    elif nccl_tests.looks_like(text):
        return nccl_tests.read(text, place, operation), 0
    else:
        lines = tables.csv_lines(text, place)
    asked = [line for line in lines if all(line[1].get(c, v) == v for c, v in conditions.items())]
    if lines and not asked:
        raise InputError(f"{place}: no row has {', '.join(f'{c}={v}' for c, v in conditions.items())}")
    found = tables.observations(asked, place, operation, machine.levels[-1].size)
    return list(found.rows), found.skipped


def _text(path: Path) -> str:
    try:
        raw = regular(path).read_bytes()
    except OSError as error:
        raise InputError(f"{path}: cannot be read: {error.strerror or error}") from None
    if raw[:2] == b"\x1f\x8b":
        try:
            with gzip.open(path) as file:
                raw = file.read(MAX_BYTES + 1)
        except (OSError, EOFError, zlib.error) as error:
            raise InputError(f"{path}: is gzipped and cannot be unpacked: {error}") from None
    if len(raw) > MAX_BYTES:
        raise InputError(f"{path}: is larger than {MAX_BYTES} bytes")
    try:
        return raw.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        raise InputError(f"{path}: is not UTF-8 text (byte {error.start})") from None


MACHINES: Final = ("gpu", "cluster", "system", "machine", "folder", "table")
"""Columns that tell machines apart: rows of one fit agree in them."""


def select_rows(rows: Sequence[Observation], conditions: Mapping[str, str]) -> list[Observation]:
    """Rows whose columns have these values.  Raises `InputError` for a column that no row has."""
    known = sorted({c for r in rows for c, _ in r.columns})
    for column in conditions:
        if column not in known:
            raise InputError(f"there is no column {column!r}; columns: {', '.join(known)}")
    return [r for r in rows if all(dict(r.columns).get(c) == v for c, v in conditions.items())]


def one_machine(rows: Sequence[Observation]) -> None:
    """Raises `InputError` if the rows are of several machines."""
    for column in MACHINES:
        values = sorted({v for r in rows for c, v in r.columns if c == column})
        if len(values) > 1:
            more = ", .." if len(values) > 8 else ""
            raise InputError(
                f"the rows are of several machines: {column} is {', '.join(values[:8])}{more}; choose one with "
                f"--where {column}={values[0]}"
            )
