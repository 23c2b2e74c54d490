"""`run` of a plan with a schedule: executed, compared with one process, its time beside the planned
one, and said.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import asdict, dataclass
from pathlib import Path

from ...models.program.graph import Graph
from ...models.terminal.console import Exit, Watch, emit, report_error, say
from ..execution import comparison
from ..execution.array_files import read_inputs
from ..execution.conditioning import compare
from ..execution.interpreter import RankError
from ..execution.launch import LaunchError
from ..execution.provenance import made_up, of_run, rounds
from ..execution.reference import random_inputs, run_graph
from ..execution.run import Traffic
from ..execution.step_report import losses, step_lines, worst_parameter
from ..kernels import Array
from ..trace import Span, chrome, write_json

Writer = Callable[[Path, Mapping[str, Array]], None]


@dataclass(frozen=True)
class RunRequest:
    """What the user asked of a run.  `pace`: tasks last at least so many times their planned time;
    `library`: who computes operators, numpy, numba or torch; `from_root`: data begin and end on rank 0.
    """

    ranks: int
    virtual: bool
    inputs: Path | None
    seed: int
    dtype: str | None
    timeout: float
    trace: Path | None
    output: Path | None
    write: Writer
    as_json: bool
    pace: float
    library: str
    from_root: bool = False


@dataclass(frozen=True, eq=False)
class RunResult:
    """What a run gave.  `sent`: (tensor, elements sent, elements priced) of what goes between stages; `seconds`:
    measured from the first task to the last, None where nothing was measured.
    """

    outputs: Mapping[str, Array]
    transport: str
    spans: tuple[Span, ...]
    traffic: tuple[Traffic, ...] = ()
    sent: tuple[tuple[str, int, int], ...] = ()
    seconds: float | None = None


@dataclass(frozen=True, eq=False)
class Subject:
    """What is run.  `words`: what kind of plan, for people; `facts`: the same as data.  `planned`: the schedule as
    times of lines behind those of the ranks; `lines`: their names; `seconds`: of the planned step.
    """

    graph: Graph
    identity: str
    words: str
    facts: Mapping[str, object]
    planned: list[Span]
    lines: Mapping[int, str]
    seconds: float


def run_scheduled(
    subject: Subject, asked: RunRequest, execute: Callable[[Mapping[str, Array], bool], RunResult]
) -> int:
    """Execute and say what came of it.  `execute(inputs, stored)`."""
    graph = subject.graph
    stored = asked.dtype == "own" or (asked.dtype is None and rounds(graph))
    kind = None if stored else asked.dtype or "float64"
    arrays = (
        random_inputs(graph, asked.seed, kind)
        if asked.inputs is None
        else read_inputs(asked.inputs, graph, None if stored else asked.dtype)
    )
    ranks = f"{asked.ranks} {'virtual' if asked.virtual else 'MPI'} ranks"
    start = time.monotonic()
    try:
        with Watch(f"running on {ranks}"):
            found = execute(arrays, stored)
    except (RankError, LaunchError) as error:
        first, *rest = str(error).split("\n")
        return report_error(first, Exit.INTERNAL, asked.as_json, rest)
    seconds = time.monotonic() - start
    with Watch("running in one process"):
        expected = run_graph(graph, arrays, stored=stored)
    precision = of_run(graph, arrays, stored)
    compared = compare(graph, arrays, found.outputs, expected, comparison.tolerance_of(precision.computed), stored)
    wrong = [t.place for t in found.traffic if not t.fits]
    wrong += [f"sending {t}" for t, sent, priced in found.sent if sent != priced]
    if asked.trace is not None:
        write_json(asked.trace, chrome([*found.spans, *subject.planned], graph.name, subject.lines))
    if asked.output is not None:
        asked.write(asked.output, found.outputs)
    made = made_up(graph, asked.seed) if asked.inputs is None else None
    if asked.as_json:
        made_json = {"precision": asdict(precision), "made_up": None if made is None else asdict(made)}
        counted = {"bytes_counted_equal_priced": None if not asked.virtual else not wrong}
        about = {"identity": subject.identity, "ranks": asked.ranks, "transport": found.transport}
        spent = {"seconds": round(seconds, 3), **subject.facts, **compared.facts()}
        emit({**about, **spent, **made_json, **counted, **_step_json(subject, asked, found, expected)})
    else:
        say(
            f"{graph.name}: {subject.words}, {ranks}, transport {found.transport}, {seconds:.2f} s",
            *("  " + line for line in (*([] if made is None else made.lines()), *precision.lines())),
            *("  " + line for line in _step_text(subject, asked, found, expected)),
            *("  " + line for line in compared.lines()),
        )
    if wrong:
        say(f"error: bytes counted differ from those of the plan at: {', '.join(wrong[:5])}", err=True)
    return Exit.DONE if compared.equal and not wrong else Exit.REFUTED


def _step_json(
    subject: Subject, asked: RunRequest, found: RunResult, expected: Mapping[str, Array]
) -> dict[str, object]:
    """What was sent, how long the step took, and what it made of losses and parameters."""
    graph = subject.graph
    return {
        "sent": {t: sent * graph.tensor(t).element_bytes for t, sent, _ in found.sent},
        "step_seconds": {"planned": subject.seconds, "measured": found.seconds, "pace": asked.pace},
        "loss": {name: list(pair) for name, pair in losses(graph, found.outputs, expected).items()},
        "renewed": worst_parameter(graph, found.outputs, expected, comparison.difference),
    }


def _step_text(subject: Subject, asked: RunRequest, found: RunResult, expected: Mapping[str, Array]) -> Iterator[str]:
    """The same for a terminal."""
    if asked.virtual:
        fits, sent = sum(t.fits for t in found.traffic), sum(a == b for _, a, b in found.sent)
        between = f" and in {sent} of {len(found.sent)} tensors sent between them" if found.sent else ""
        of = " of the stages" if found.sent else ""
        yield f"bytes counted = bytes priced in {fits} of {len(found.traffic)} reshardings{of}{between}"
    if found.seconds is not None:
        yield _times(subject.seconds, found.seconds, asked.pace)
    yield from step_lines(subject.graph, found.outputs, expected, comparison.difference)


def _times(planned: float, measured: float, pace: float) -> str:
    """The step's time in words."""
    said = f"from the first task to the last {1e3 * measured:.4g} ms; planned {1e3 * planned:.4g} ms"
    if pace <= 0:
        return f"{said} on the machine of the plan"
    return f"{said}, {1e3 * pace * planned:.4g} ms at {pace:g} times the planned times (this says the order, no speed)"
