"""What `place` and `reduce` say about reduction programs: a table for people, data for programs, a
drawing, the exit code.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from pathlib import Path

from ...models.collective_programs.parallelism import ReductionRequest, Request, matrix_text
from ...models.collective_programs.programs import fuse_all_reduces, words
from ...models.files.output import write_file
from ...models.problem.claims import Verdict
from ...models.terminal.console import Exit, emit, say
from ...models.text import seconds_text
from ...proofs.collective_programs.file import encode_program
from ...proofs.publishing.publisher import Published
from ..collective_programs.picture import picture
from ..collective_programs.request import Found, cheapest_of
from ..collective_programs.synthesize import Synthesis


def row(f: Found, best: bool, scale: int) -> list[str]:
    """A row of the table of `reduce`."""
    s = f.best
    if s.cost is None or s.program is None:
        return ["", name(f.request), "", str(s.count), "-", "-", "none"]
    single = "-" if s.all_reduce is None else seconds_text(s.all_reduce, scale)
    order = s.request.order.value if isinstance(s.request, ReductionRequest) and len(f.tried) > 1 else "-"
    return [
        "*" if best else "",
        name(f.request),
        order,
        str(s.count),
        single,
        seconds_text(s.cost, scale),
        words(s.program, s.request.system().tree),
    ]


def name(request: Request) -> str:
    """A request in a few characters."""
    return (
        matrix_text(request.matrix)
        if isinstance(request, ReductionRequest)
        else f"nodes of {','.join(map(str, request.nodes))}"
    )


def document(f: Found, proved: bool) -> dict[str, object]:
    """The best of a request as data."""
    s = f.best
    out: dict[str, object] = {
        "programs": s.count,
        "best": [],
        "cost": s.cost,
        "lower_bound": s.cost if proved else None,
        "all_reduce_cost": s.all_reduce,
    }
    if isinstance(s.request, ReductionRequest):
        out |= {"matrix": [list(row) for row in s.request.matrix], "order": s.request.order.value}
    else:
        out["nodes"] = list(s.request.nodes)
    if s.program is not None:
        system = s.request.system()
        _, steps = system.execute(s.program)
        out["best"] = [
            {
                "text": str(i),
                "slice": code[0],
                "form": code[1],
                "ancestor": code[2],
                "collective": code[3],
                "groups": [list(g) for g in step.groups],
            }
            for i, code, step in zip(s.program, encode_program(s.program), steps, strict=True)
        ]
        out["words"] = words(s.program, system.tree)
        out["fused_steps"] = len(fuse_all_reduces(system, s.program))
    return out


def draw(path: Path, s: Synthesis, hierarchy: tuple[int, ...]) -> None:
    """Write a picture of a program."""
    if s.program is None:
        return
    system = s.request.system()
    if isinstance(s.request, ReductionRequest):
        title = f"{matrix_text(s.request.matrix)}, reduce {list(s.request.reduce)}, {s.request.order.value}"
    else:
        title, hierarchy = name(s.request), (system.tree.positions,)
    write_file(path, picture(system.execute(s.program)[1], hierarchy, title, [str(i) for i in s.program]).encode())


def finish(published: Published, document: dict[str, object], as_json: bool, start: float) -> Exit:
    """The last words of a verb, and its exit code."""
    seconds = time.monotonic() - start
    if as_json:
        emit(
            {
                **document,
                "verdict": published.verdict.value,
                "seconds": round(seconds, 3),
                "certificate": None if published.path is None else str(published.path),
            }
        )
    elif published.path is not None:
        say(f"wrote {published.path} ({published.size} bytes) in {seconds:.1f} s", *published.advice)
    return Exit.DONE if published.verdict is Verdict.PROVED else Exit.UNDECIDED


def cheapest(tried: Sequence[Synthesis], scale: int) -> str:
    """The cheapest program and what it costs."""
    s = cheapest_of(tried).best
    if s.program is None or s.cost is None:
        return "none"
    return f"{seconds_text(s.cost, scale)} {words(s.program, s.request.system().tree)}"


def table(rows: list[list[str]]) -> None:
    """Print a table, indented."""
    widths = [max(len(row[k]) for row in rows) for k in range(len(rows[0]))]
    for row in rows:
        say("  " + "  ".join(cell.ljust(w) for cell, w in zip(row, widths, strict=True)).rstrip())
