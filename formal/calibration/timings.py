"""Measured times of reduction programs, as rows of a CSV file, and what model M2 says each row puts
on each kind of link.

Two forms of CSV are read, told apart by their header:

    own     machine, matrix, reduce, program, algorithm, payload, seconds       `program`: AllReduce, or words such as
            RS.L AR.P AG.L
    paper   nodes, gpus, matrix, reduce_axes, allreduce_ring_s, allreduce_tree_s     P2's appendix: two rows of ours per
            line

`machine` is the sizes of the machine's levels (4x16).  Every other column may be used to choose rows (`--where`,
`--hold-out`).
"""

from __future__ import annotations

import csv
import io
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from ...models.collective_programs.cost import PAYLOAD, Algorithm
from ...models.collective_programs.parallelism import Matrix, ReductionRequest
from ...models.collective_programs.programs import Program, ReductionSystem, label, patterns
from ...models.files.input import regular
from ...models.files.output import write_file
from ...models.text import InputError

OWN = ("machine", "matrix", "reduce", "program", "algorithm", "payload", "seconds")
PAPER = ("nodes", "gpus", "matrix", "reduce_axes", "allreduce_ring_s", "allreduce_tree_s")
MAX_ROWS = 100_000


@dataclass(frozen=True)
class Timing:
    """One measured program.  `columns`: the line it comes from; `place`: file and line."""

    hierarchy: tuple[int, ...]
    matrix: Matrix
    reduce: tuple[int, ...]
    program: str
    algorithm: Algorithm
    payload: int
    seconds: float
    place: str
    columns: tuple[tuple[str, str], ...] = ()

    def system(self) -> ReductionSystem:
        """The reduction that was measured, in the paper's device order."""
        return ReductionRequest(self.hierarchy, self.matrix, self.reduce).system()


def program_of(text: str, system: ReductionSystem) -> Program:
    """A program from its words.  Raises `InputError` naming the word.

    >>> from shardproof.models.collective_programs.programs import Tree, words
    >>> tree = Tree.regular((2, 2))
    >>> words(program_of("RS.L AR.P AG.L", ReductionSystem(tree, ((0, 1, 2, 3),), 4)), tree)
    'RS.L AR.P AG.L'
    """
    known = {}
    for pattern in patterns(system.tree, system.rules):
        for kind in system.rules.allowed_collectives(pattern.form.name == "MASTER"):
            known[f"{kind.short}.{label(pattern, system.tree)}"] = pattern.instruction(kind)
    out = []
    for word in ("AR.A" if text == "AllReduce" else text).split():
        if word not in known:
            raise InputError(f"program {text!r}: unknown step {word!r}; steps here: {', '.join(known)}")
        out.append(known[word])
    if not out:
        raise InputError("program: is empty; write AllReduce, or steps such as RS.L AR.P AG.L")
    return tuple(out)


def read_timings(path: Path) -> list[Timing]:
    """All rows of a CSV of either form.  Raises `InputError` naming file, line and column."""
    try:
        with regular(path).open(newline="", encoding="utf-8") as file:
            reader = csv.DictReader(file)
            header = reader.fieldnames or []
            paper = all(c in header for c in PAPER)
            if not paper and not all(c in header for c in OWN):
                raise InputError(
                    f"{path}: has the columns {', '.join(header)[:200]}; needs {', '.join(OWN)}, or {', '.join(PAPER)}"
                )
            out: list[Timing] = []
            for number, line in enumerate(reader, start=2):
                if number > MAX_ROWS:
                    raise InputError(f"{path}: more than {MAX_ROWS} lines")
                out.extend(_timing(line, paper, f"{path}, line {number}"))
    except (UnicodeDecodeError, csv.Error) as error:
        raise InputError(f"{path}: is not CSV text: {error}") from None
    if not out:
        raise InputError(f"{path}: holds no timing")
    return out


def write_timings(path: Path, timings: Sequence[Timing]) -> None:
    """The own form."""
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow(OWN)
    for t in timings:
        writer.writerow(
            [
                "x".join(map(str, t.hierarchy)),
                _text(t.matrix),
                " ".join(map(str, t.reduce)),
                t.program,
                t.algorithm.value,
                t.payload,
                repr(t.seconds),
            ]
        )
    write_file(path, text.getvalue().encode())


def _text(matrix: Matrix) -> str:
    return "[" + "".join("[" + " ".join(map(str, row)) + "]" for row in matrix) + "]"


def select_timings(timings: Sequence[Timing], conditions: Mapping[str, str]) -> list[Timing]:
    """Rows whose columns have these values.  Raises `InputError` for a column that does not exist."""
    names = [c for c, _ in timings[0].columns] if timings else []
    for column in conditions:
        if timings and column not in names:
            raise InputError(f"there is no column {column!r}; columns: {', '.join(names)}")
    return [t for t in timings if all(dict(t.columns).get(c) == v for c, v in conditions.items())]


def _timing(line: Mapping[str, str], paper: bool, place: str) -> list[Timing]:
    if any(v is None for v in line.values()) or None in line:
        raise InputError(f"{place}: has more or fewer fields than the header")
    columns = tuple(line.items())
    matrix = tuple(tuple(_integers(row, f"{place}, matrix")) for row in re.findall(r"\[([0-9 ,]+)\]", line["matrix"]))
    if not matrix:
        raise InputError(f"{place}, matrix: {line['matrix'][:40]!r} is not a matrix such as [[2 4][1 4]]")
    if paper:
        hierarchy = (*_integers(line["nodes"], f"{place}, nodes"), *_integers(line["gpus"], f"{place}, gpus"))
        reduce = tuple(_integers(line["reduce_axes"], f"{place}, reduce_axes"))
        found = [(a, line[f"allreduce_{a.value}_s"]) for a in Algorithm]
        return [
            Timing(
                hierarchy,
                matrix,
                reduce,
                "AllReduce",
                a,
                PAYLOAD,
                _seconds(text, f"{place}, allreduce_{a.value}_s"),
                place,
                (*columns, ("algorithm", a.value)),
            )
            for a, text in found
            if text
        ]
    try:
        algorithm = Algorithm(line["algorithm"])
    except ValueError:
        raise InputError(f"{place}, algorithm: is {line['algorithm'][:40]!r}, must be ring or tree") from None
    payload = _integers(line["payload"], f"{place}, payload")
    if len(payload) != 1 or payload[0] < 1:
        raise InputError(f"{place}, payload: must be a whole number of bytes")
    if not re.fullmatch(r"[0-9]{1,8}(x[0-9]{1,8})*", line["machine"]):
        raise InputError(f"{place}, machine: {line['machine'][:40]!r} is not sizes of levels such as 4x16")
    hierarchy = tuple(map(int, line["machine"].split("x")))
    reduce = tuple(_integers(line["reduce"], f"{place}, reduce"))
    return [
        Timing(
            hierarchy,
            matrix,
            reduce,
            line["program"],
            algorithm,
            payload[0],
            _seconds(line["seconds"], f"{place}, seconds"),
            place,
            columns,
        )
    ]


def _integers(text: str, place: str) -> list[int]:
    words = re.split(r"[ ,]+", text.strip("[] "))
    if not all(re.fullmatch(r"[0-9]{1,15}", w) for w in words):
        raise InputError(f"{place}: {text[:40]!r} is not a list of whole numbers")
    return [int(w) for w in words]


def _seconds(text: str, place: str) -> float:
    if not re.fullmatch(r"[0-9]{1,12}(\.[0-9]{1,20})?([eE]-?[0-9]{1,2})?", text) or not float(text) > 0:
        raise InputError(f"{place}: {text[:40]!r} is not a positive number of seconds")
    return float(text)
