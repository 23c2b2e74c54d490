"""Other people's solvers as sources of solutions: HiGHS through PuLP, toulbar2 when it is installed.

    rows := {};   loop:  ask the solver for  min F(x) under the rows so far;   x fits every row: done;   add the rows
                  that x breaks most

Any choice of rows is a relaxation, so an x that fits them all and is optimal for some of them is optimal.  None of that
is believed: a solution is evaluated exactly (`SelectionProblem`), and a bound is never asked for.  Every solver runs in
a process of its own, which is ended with its time: a crash or a memory blow-up in there is "no proposal" here, and the
caller may work on meanwhile.  Two or three rounds of at most 25 rows, scaled to 100, are what helped.
"""

from __future__ import annotations

import os
import pickle
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from dataclasses import dataclass
from importlib.util import find_spec
from typing import Final, Literal

import numpy as np
from numpy.typing import NDArray

from shardproof.models.problem.selection_problem import FORBIDDEN, Ints, SelectionProblem

Solver = Literal["highs", "toulbar2"]

ROUND: Final = 25
"""Most rows that one round adds."""

RELAXED_ROUNDS: Final = 3
"""Rounds of the linear relaxation before choices must be whole."""

PAIRS: Final = {"highs": 400_000, "toulbar2": 20_000_000}
"""Allowed pairs up to which a solver is asked: HiGHS has a variable for each."""

Floats = NDArray[np.float64]


def available() -> tuple[Solver, ...]:
    """Solvers that are installed, the stronger first.

    >>> set(available()) <= {"toulbar2", "highs"}
    True
    """
    needs: tuple[tuple[Solver, tuple[str, ...]], ...] = (("toulbar2", ("pytoulbar2",)), ("highs", ("pulp", "highspy")))
    return tuple(name for name, modules in needs if all(find_spec(m) is not None for m in modules))


def propose(
    problem: SelectionProblem, time_limit_s: float, solver: Solver | None = None, upper: int | None = None
) -> tuple[int, ...] | None:
    """A feasible solution within `time_limit_s`, by `solver` or else the first that is available and not too small for
    the problem.

    `upper`: only solutions that cost less are of interest (a good one makes toulbar2 much faster).  None: nothing
    found.

    >>> import numpy as np
    >>> from shardproof.models.problem.selection_problem import SelectionProblem, Vertex
    >>> p = SelectionProblem("one", (Vertex("a", np.array([3, 1, 2])),), (), ())
    >>> propose(p, 30.0) in ((1,), None)
    True
    """
    asked = ask(problem, time_limit_s, solver, upper)
    return None if asked is None else asked.answer()


def ask(
    problem: SelectionProblem, time_limit_s: float, solver: Solver | None = None, upper: int | None = None
) -> Asked | None:
    """Start a solver on another core; None when none is available that takes a problem of this size."""
    pairs = sum(problem.domain_size(e.u) * problem.domain_size(e.v) for e in problem.edges)
    names = [name for name in available() if solver in (None, name) and pairs <= PAIRS[name]]
    return Asked(problem, names[0], time_limit_s, upper) if names else None


class Asked:
    """A solver at work.  Call `answer` or `stop` in the end."""

    def __init__(
        self, problem: SelectionProblem, solver: Solver, time_limit_s: float, upper: int | None = None
    ) -> None:
        self.problem, self.solver, self.upper = problem, solver, upper
        self._until = time.monotonic() + time_limit_s
        self._reply = tempfile.TemporaryFile()  # noqa: SIM115  `answer` closes it
        code = f"import sys; sys.path[:] = {sys.path!r}; from {__name__} import serve; serve()"
        with tempfile.TemporaryFile() as task:
            pickle.dump((problem, solver, time_limit_s, upper), task)
            task.seek(0)
            self._child = subprocess.Popen(
                [sys.executable, "-c", code], stdin=task, stdout=self._reply, stderr=subprocess.DEVNULL
            )

    def ready(self) -> bool:
        """True when `answer` will not wait."""
        return self._child.poll() is not None

    def answer(self) -> tuple[int, ...] | None:
        """The solution, waiting for it until the time is over; None if there is none, or it is not feasible, or not
        below `upper`.
        """
        try:
            self._child.wait(max(0.0, self._until - time.monotonic()))
        except subprocess.TimeoutExpired:
            pass
        self.stop()
        self._reply.seek(0)
        size = 8 * len(self.problem.vertices)
        text = self._reply.read(size + 1)
        self._reply.close()
        if len(text) != size:
            return None
        x = tuple(np.frombuffer(text, dtype=np.int64).tolist())
        if any(not 0 <= a < v.cost.size for a, v in zip(x, self.problem.vertices, strict=True)):
            return None
        if not self.problem.is_feasible(x) or (self.upper is not None and self.problem.cost_of(x) >= self.upper):
            return None
        return x

    def stop(self) -> None:
        """End the solver, if it still runs."""
        if self._child.poll() is None:
            self._child.kill()
            self._child.wait()


def serve() -> None:
    """The other process: problem from standard input, choices as int64 to standard output, which solvers cannot
    write to.
    """
    problem, solver, seconds, upper = pickle.load(sys.stdin.buffer)  # from `Asked` only
    reply = os.fdopen(os.dup(1), "wb")
    os.dup2(os.open(os.devnull, os.O_WRONLY), 1)
    clock = time.monotonic() + seconds
    x = _highs(problem, clock) if solver == "highs" else _toulbar2(problem, clock, upper)
    if x is not None:
        reply.write(np.array(x, dtype=np.int64).tobytes())
    reply.close()
    os._exit(0)  # solvers need not tidy up


@dataclass(frozen=True, eq=False)
class _Rows:
    """Resource rows of a problem: usage of fractional or whole choices at every event."""

    problem: SelectionProblem
    events: Ints
    first: Ints
    last: Ints

    @classmethod
    def of(cls, problem: SelectionProblem) -> _Rows:
        events = np.array(problem.events() if problem.limit is not None else [], dtype=np.int64)
        ends = np.array([(u.start, max(u.start, u.end)) for u in problem.usages], dtype=np.int64).reshape(-1, 2)
        return cls(problem, events, np.searchsorted(events, ends[:, 0]), np.searchsorted(events, ends[:, 1]))

    def usage(self, share: list[Floats]) -> Floats:
        """Usage at every event; `share[v]`: part of each choice of v."""
        change = np.zeros(self.events.size + 1)
        used = np.array([float(u.amount @ share[u.vertex]) for u in self.problem.usages])
        np.add.at(change, self.first, used)
        np.subtract.at(change, self.last, used)
        return np.asarray(np.cumsum(change)[:-1])

    def broken(self, share: list[Floats], known: set[int]) -> list[int]:
        """Rows not in `known` that are broken, most first."""
        if self.problem.limit is None or not self.events.size:
            return []
        use = self.usage(share)
        limit = float(self.problem.limit)
        order = np.argsort(-use, kind="stable")
        return [r for r in order[: 40 * ROUND].tolist() if use[r] > limit + 1e-6 * max(1.0, limit) and r not in known][
            :ROUND
        ]

    def terms(self, row: int) -> dict[int, Ints]:
        """Total amount per choice of every vertex in a row."""
        out: dict[int, Ints] = {}
        for k in np.flatnonzero((self.first <= row) & (row < self.last)).tolist():
            u = self.problem.usages[k]
            out[u.vertex] = out[u.vertex] + u.amount if u.vertex in out else u.amount
        return out


def _lazily(
    problem: SelectionProblem,
    until: float,
    solve: Callable[[set[int], float], list[Floats] | None],
    rounds: int | None = None,
    rows: set[int] | None = None,
) -> list[Floats] | None:
    """The loop of the module docstring; `solve(rows, seconds)` gives shares of choices.  Adds to `rows`."""
    table, known = _Rows.of(problem), set[int]() if rows is None else rows
    share = None
    while (left := until - time.monotonic()) > 0 and rounds != 0:
        share = solve(known, left)
        if share is None or not (more := table.broken(share, known)):
            return share
        known.update(more)
        rounds = None if rounds is None else rounds - 1
    return share


def _whole(share: list[Floats]) -> list[int]:
    return [int(np.argmax(s)) for s in share]


def _highs(problem: SelectionProblem, until: float) -> list[int] | None:
    """PuLP and HiGHS: rows that the relaxation breaks first, then whole choices."""
    import pulp

    from shardproof.formal.selection.engines.encodings import ilp

    program = ilp.start(problem)
    if program is None:
        return None
    table, added = _Rows.of(problem), set[int]()

    def solve(rows: set[int], seconds: float, whole: bool) -> list[Floats] | None:
        for row in sorted(rows - added):
            terms = table.terms(row)
            most = max(int(a.max()) for a in terms.values())
            used = [
                100.0 * int(amount[a]) / most * var
                for v, amount in terms.items()
                for a, var in program.x[v].items()
                if amount[a]
            ]
            program.lp += pulp.lpSum(used) <= 100.0 * int(problem.limit or 0) / most, f"row_{row}"
        added.update(rows)
        program.lp.solve(pulp.HiGHS(msg=False, mip=whole, timeLimit=seconds, gapRel=0.0, threads=1))
        out = []
        for xs, vertex in zip(program.x, problem.vertices, strict=True):
            share = np.zeros(vertex.cost.size)
            for a, var in xs.items():
                share[a] = var.value() or 0.0
            if not share.any():
                return None
            out.append(share)
        return out

    rows: set[int] = set()
    _lazily(problem, until, lambda known, seconds: solve(known, seconds, False), RELAXED_ROUNDS, rows)
    share = _lazily(problem, until, lambda known, seconds: solve(known, seconds, True), None, rows)
    return None if share is None else _whole(share)


def _toulbar2(problem: SelectionProblem, until: float, upper: int | None) -> list[int] | None:
    """A cost function network; rows as linear constraints over choices."""
    import pytoulbar2

    table = _Rows.of(problem)

    def shifted(costs: Ints) -> tuple[Ints, int]:
        allowed = costs[costs < FORBIDDEN]
        return (costs - allowed.min(), int(allowed.min())) if allowed.size else (costs, 0)

    def solve(rows: set[int], seconds: float) -> list[Floats] | None:
        functions: list[tuple[list[int], Ints]] = []
        constant = problem.constant
        for v, vertex in enumerate(problem.vertices):
            costs, low = shifted(vertex.cost)
            constant += low
            functions.append(([v], costs))
        for e in problem.edges:
            t = problem.tables[e.table]
            t = t if e.rows is None else t[e.rows]
            costs, low = shifted(t if e.cols is None else t[:, e.cols])
            constant += low
            functions.append(([e.u, e.v], costs.reshape(-1)))
        most = sum(int(c[c < FORBIDDEN >> 1].max(initial=0)) for _, c in functions) + 1
        top = most if upper is None else max(1, min(most, (-(-upper >> problem.fine_bits)) - constant))
        network = pytoulbar2.CFN(top)
        for v, vertex in enumerate(problem.vertices):
            network.AddVariable(f"x{v}", range(vertex.cost.size))
        for scope, costs in functions:
            network.AddFunction(scope, np.minimum(costs, top).tolist())
        for row in sorted(rows):
            terms = [
                (v, a, int(q)) for v, amount in table.terms(row).items() for a, q in enumerate(amount.tolist()) if q
            ]
            network.AddGeneralizedLinearConstraint(terms, "<=", int(problem.limit or 0))
        found = network.Solve(timeLimit=max(1, int(seconds)))
        if not found:
            return None
        return [np.eye(vertex.cost.size)[int(a)] for vertex, a in zip(problem.vertices, found[0], strict=False)]

    share = _lazily(problem, until, solve)
    return None if share is None else _whole(share)
