"""One way in for selection problems: our own JSON or `.spz`, IOPDDL JSON, PaSE tables; gzipped or not."""

from __future__ import annotations

import json
from pathlib import Path

from ..models.frontends.iopddl import from_iopddl
from ..models.frontends.pase import from_pase
from ..models.problems import ProblemError, SelectionProblem
from .canonical import ContainerError
from .container import LIMITS, read_file
from .problem_file import MOST_TEXT, gunzip, parse_problem


def load_selection_problem(path: Path) -> SelectionProblem:
    """The problem in a file.  Raises `ContainerError` or `ProblemError` naming the place."""
    return selection_problem(read_file(path, LIMITS.file), str(path))


def selection_problem(data: bytes, place: str) -> SelectionProblem:
    """The problem in the bytes of a file; `place` names it in errors."""
    if data[:4] == b"PK\3\4":
        return parse_problem(data, place)
    if data[:2] == b"\x1f\x8b":
        data = gunzip(data, place, MOST_TEXT)
    try:
        head = json.loads(data)
    except (ValueError, RecursionError) as error:
        raise ContainerError(place, f"is neither JSON nor an .spz file: {error}") from None
    if not isinstance(head, dict):
        raise ContainerError(place, "must hold one JSON object")
    try:
        if "format" in head:
            return parse_problem(data, place)
        if "problem" in head:
            return from_iopddl(head)
        if "nodes" in head and "edges" in head:
            return from_pase(head)
    except ProblemError as error:
        raise ProblemError(f"{place}, {error.place}", error.message, error.hint) from None
    raise ContainerError(place, "is none of: our own problem JSON (key format), IOPDDL (key problem), PaSE tables (keys nodes and edges)")
