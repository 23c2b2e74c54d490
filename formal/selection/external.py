"""This module puts a selection problem to another solver, on the columns that native messages leave: column generation
with a reduced-cost cutoff.

Messages m and multipliers n give a bound L and, for every choice, an excess (`bounds`): a solution that fits and takes
the choice costs at least L + excess.  With brackets T_e - m_e,u - m_e,v shifted to a least entry of 0 the same holds of
every table entry.  So for a cutoff s

    columns(s)  =  choices of excess <= s,  entries of shifted bracket <= s                                     ->
                   columns()
    every solution of cost <= L + s uses columns(s) alone

and an engine that finds the cheapest solution among columns(s), at cost c, has decided the whole problem if c <= L + s;
otherwise it is asked again with s = c - L, which holds everything cheaper.  Of choices that all edges and rows see
alike only the cheapest is a column.  The costs handed over are the shifted ones: small numbers near 0, which is what
branch and bound and core-guided search are quick with (BERT-Large on 4x8: 302,018 choices and 193 million pairs become
111,000 columns; HiGHS and z3 need some 15 s each).

Resource rows are stated when a solution breaks them (row generation): the cheapest solution under some of the rows is
the cheapest if it keeps all.

Nothing that an engine says is believed: its choices are evaluated exactly and offered to the incumbent, the proof is
made by the native search.  `Asked` records the conversation for the report.
Source: Kolmogorov, TPAMI 2006 (reparametrisation); Savchynskyy et al., "Global MAP-optimality by shrinking the
combinatorial search area", NIPS 2013.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, replace
from typing import Final, Literal

import numpy as np
from numpy.typing import NDArray

from ...models.problem.selection_problem import FORBIDDEN, Edge, Fine, Ints, SelectionProblem, Usage, Vertex, fine_type
from ...proofs.selection.certificates import Dual
from .ascent import climb
from .bounds import Score
from .clock import Clock
from .encodings import Reply, ilp, smt
from .encodings.child import reply_in_time
from .messages import Sweeper
from .network import INFINITE, Base, Domains, allowed, build, saturate
from .seams import converge
from .search import Search

EngineName = Literal["ilp", "smt"]

MOST_PARTS: Final[dict[EngineName, int]] = {"ilp": 1_500_000, "smt": 500_000}
"""Parts of an encoding (variables, soft constraints) that an engine is asked about at most: each takes 2 to 8 kB
there (measured).
"""

WHOLE_PARTS: Final = 20_000
"""Parts up to which the whole problem is asked about at once (measured, transformer-p16: HiGHS had no solution to its
1.5 million parts after 60 s, and the cheapest among 4,214 columns after 0.7 s)."""

MOST_CELLS: Final = 40_000_000
"""Table entries that are looked at for columns (8 bytes each)."""

NO_SOLUTION: Final = ("infeasible", "unsat")
"""How the status words of the engines begin when nothing satisfies the program."""

FIRST_CUTOFF: Final = 100_000
"""The first cutoff is one part in so many of the bound, where not everything fits: messages that have converged are
nearer than that.
"""

WIDER: Final = 16
"""Factor of the cutoff after an answer that there is no solution among the columns."""

MESSAGES_SHARE: Final = 0.25
"""Of the time limit, for the messages."""

ASKED_SHARE: Final = 0.6
"""Of the time that is left then, for the engine; the rest is for the proof."""

ROWS_AT_ONCE: Final = 25
"""Resource rows added after a solution that breaks more."""


class EngineRefused(ValueError):
    """The engine cannot be asked: the problem is too large for it.  The message names the size."""


@dataclass(frozen=True)
class Asked:
    """One question to an engine and its answer; costs in units of the problem, seconds since the start of the run.

    `cutoff`: how far above the native bound `bound` columns reach; None: the whole problem was asked.  `rows`: resource
    rows that were stated.  `cost`: exact, of the choices that the engine named (None: none, or they do not fit).
    `decided`: by the engine's word no solution of the whole problem is cheaper.
    """

    engine: EngineName
    vertices: int
    columns: int
    parts: int
    rows: int
    bound: int
    cutoff: int | None
    at: float
    seconds: float
    says: str
    cost: int | None
    decided: bool

    def words(self, cost_text: Callable[[int], str]) -> str:
        """The conversation as one line."""
        about = (
            "the whole problem"
            if self.cutoff is None
            else f"what can cost at most {cost_text(self.cutoff)} more than the bound"
        )
        rows = f", {self.rows} memory rows" if self.rows else ""
        cost = "" if self.cost is None else f", cost {cost_text(self.cost)}"
        return (
            f"{self.engine} was asked at {self.at:.1f} s about {about}: {self.vertices} decisions, {self.columns} "
            f"choices, {self.parts} parts{rows}; "
            f"it answered {self.says!r} after {self.seconds:.1f} s{cost}{'' if self.decided else ' (decides nothing)'}"
        )

    def to_json(self) -> dict[str, object]:
        """The fields, seconds rounded."""
        return {**asdict(self), "at": round(self.at, 3), "seconds": round(self.seconds, 3)}


def conversation(asked: Sequence[Asked], cost: int | None, cost_text: Callable[[int], str]) -> list[str]:
    """What an engine was asked and said, line by line; `cost`: that of the answer whose proof was made."""
    lines = [a.words(cost_text) for a in asked]
    if asked and cost is not None:
        found = [a.cost for a in asked if a.cost is not None]
        if not found:
            lines.append(f"{asked[-1].engine} named no solution: this one is the native search's")
        elif min(found) > cost:
            wrong = " although it called its own the cheapest" if asked[-1].decided else ""
            lines.append(f"the native search found a cheaper solution than {asked[-1].engine}{wrong}")
    return lines


@dataclass(frozen=True, eq=False)
class Columns:
    """A problem on some columns, costs shifted by messages; `kept[v]`: the choices of v, ascending; `complete`: the
    cutoff left nothing out.
    """

    problem: SelectionProblem
    kept: tuple[Ints, ...]
    complete: bool

    def back(self, x: Sequence[int]) -> tuple[int, ...]:
        """A solution of `problem` as one of the whole."""
        return tuple(int(d[a]) for d, a in zip(self.kept, x, strict=True))


@dataclass(frozen=True, eq=False)
class Shifted:
    """A problem with the messages that shift it; everything in units of 1/Q, `theta[v]` without multipliers."""

    problem: SelectionProblem
    base: Base
    record: Dual
    score: Score
    domains: Domains
    theta: tuple[Ints, ...]


def consult(search: Search, engine: EngineName, seed: int = 0) -> tuple[Dual | None, tuple[Asked, ...]]:
    """Ask `engine` until it has decided or its time is over; offers its solutions to the incumbent of `search`.

    Returns messages for the proof to start from (None: a vertex has no allowed choice), and the conversation.
    Raises `EngineRefused` when the engine can take no columns that hold a solution.
    """
    problem, clock = search.problem, search.clock
    if any(d.size == 0 for d in allowed(problem)):
        return None, ()
    if problem.fine is not None:
        search.base, search.denominator = search.unit, 1  # fine parts are given for whole units
    shifted = shift(search, clock.share(MESSAGES_SHARE))
    bound = shifted.score.lower()
    if bound is None:
        return shifted.record, ()
    until = clock.at_most(None if clock.left() == float("inf") else ASKED_SHARE * max(0.0, clock.left()))
    asked: list[Asked] = []
    events: list[int] = []
    cutoff = None if _takes(problem) else 1 + abs(bound) // FIRST_CUTOFF
    while True:
        chosen = columns(shifted, bound, cutoff)
        if chosen is None or (size := _size(engine, chosen.problem)) > MOST_PARTS[engine]:
            if not any(a.cost is not None for a in asked):
                parts = (
                    f"more than {MOST_CELLS} table entries"
                    if chosen is None
                    else f"{size} parts, at most {MOST_PARTS[engine]} can be asked about,"
                )
                raise EngineRefused(
                    f"engine {engine}: {problem.name}: {parts} even among what can cost at most {cutoff} more "
                    f"than the bound {bound}; "
                    "use --engine native, or a smaller space (--space one-per-level)"
                )
            break
        asked += ask(search, chosen, engine, bound, cutoff, until, seed, events)
        last = asked[-1]
        if last.decided or until.over() or cutoff is None or chosen.complete:
            break
        if last.cost is not None:
            wider = (last.cost >> problem.fine_bits) - bound + _fine_slack(problem)
        elif last.says.startswith(NO_SOLUTION):
            wider = cutoff * WIDER
        else:
            break
        if wider <= cutoff:
            break
        cutoff = wider
    return shifted.record, tuple(asked)


def shift(search: Search, clock: Clock) -> Shifted:
    """Messages, with multipliers where resource rows may bind, and what they say of every choice."""
    search.progress.update("messages", None, None)
    network = build(search.base, allowed(search.problem))
    sweeper = Sweeper(network, list(range(len(network.domains))), search.threads)
    converge(sweeper, clock if search.rows is None else clock.share(0.5))
    pairs: tuple[tuple[int, int], ...] = ()
    if search.rows is not None:
        state = climb(sweeper, search.rows, search.multipliers(search.rows, None), None, clock)
        pairs = search.rows.pairs(state.n)
    record, score = search.record(network, sweeper, pairs)
    theta = [c.copy() for c in network.unary]
    for e, arc in enumerate(network.arcs):
        for v, message, index in ((arc.u, sweeper.to_u[e], arc.rows), (arc.v, sweeper.to_v[e], arc.cols)):
            theta[v] += message if index is None else message[index]
    return Shifted(search.problem, search.base, record, score, network.domains, tuple(saturate(t) for t in theta))


def columns(shifted: Shifted, bound: int, cutoff: int | None) -> Columns | None:
    """The columns within `cutoff` of `bound` (None: all), as a problem of its own in units of 1/Q; None when there
    are too many to look at.
    """
    problem, base = shifted.problem, shifted.base
    within = shifted.domains if cutoff is None else shifted.score.survivors(shifted.domains, bound + cutoff + 1)
    kept = _undominated(shifted, within)
    if sum(_ends(e, kept)[0][0].size * _ends(e, kept)[1][0].size for e in problem.edges) > MOST_CELLS:
        return None
    complete = all(np.count_nonzero(x < INFINITE) == d.size for x, d in zip(shifted.score.excess, within, strict=True))
    fine = problem.fine_parts()
    constant = base.constant
    digits: list[NDArray[np.unsignedinteger]] = []
    vertices = []
    for v, d in enumerate(kept):
        cost = shifted.theta[v][np.searchsorted(shifted.domains[v], d)]
        least = int(cost.min(initial=FORBIDDEN)) if d.size else 0
        constant += least
        vertices.append(Vertex(problem.vertices[v].name, cost - least))
        if fine:
            digits.append(fine[v][d].reshape(-1))
    tables: list[Ints] = []
    edges: list[Edge] = []
    for k, e in enumerate(problem.edges):
        (rows, row_of), (cols, col_of) = _ends(e, kept)
        cells = base.tables[e.table][np.ix_(rows, cols)]
        forbidden = cells >= INFINITE
        cells = cells - shifted.record.to_u[k][rows][:, None] - shifted.record.to_v[k][cols][None, :]
        least = int(cells.min(where=~forbidden, initial=INFINITE))
        if least < INFINITE:
            constant += least
            cells = cells - least
        if cutoff is not None:
            dear = cells > cutoff * base.denominator
            complete = complete and not (dear & ~forbidden).any()
            forbidden |= dear
        cells[forbidden] = FORBIDDEN
        edges.append(Edge(e.u, e.v, len(tables), row_of, col_of))
        tables.append(cells)
        if fine:
            part = fine[len(problem.vertices) + e.table][np.ix_(rows, cols)].copy()
            part[forbidden] = 0
            digits.append(part.reshape(-1))
    exact = None
    if problem.fine is not None:
        exact = Fine(problem.fine.bits, np.concatenate(digits).astype(fine_type(problem.fine.bits)))
    usages = tuple(Usage(u.vertex, u.start, u.end, u.amount[kept[u.vertex]], u.name) for u in problem.usages)
    part_of = SelectionProblem(
        problem.name,
        tuple(vertices),
        tuple(tables),
        tuple(edges),
        usages,
        problem.limit,
        constant,
        problem.scale,
        fine=exact,
    )
    return Columns(part_of, tuple(kept), complete or cutoff is None)


def _ends(edge: Edge, kept: Sequence[Ints]) -> tuple[tuple[Ints, Ints], tuple[Ints, Ints]]:
    """For both ends of an edge: the rows (columns) of its table that are reached, and which of them each choice
    reaches.
    """
    found = [
        np.unique(kept[v] if index is None else index[kept[v]], return_inverse=True)
        for v, index in ((edge.u, edge.rows), (edge.v, edge.cols))
    ]
    (rows, row_of), (cols, col_of) = found
    return (rows, row_of.reshape(-1).astype(np.int64)), (cols, col_of.reshape(-1).astype(np.int64))


def _undominated(shifted: Shifted, kept: Sequence[Ints]) -> list[Ints]:
    """Of choices that every edge and every row sees alike the cheapest, the first among equals."""
    problem = shifted.problem
    seen: list[list[Ints | None]] = [[] for _ in problem.vertices]
    for e in problem.edges:
        seen[e.u].append(e.rows)
        seen[e.v].append(e.cols)
    for u in problem.usages:
        seen[u.vertex].append(u.amount)
    fine = problem.fine_parts()
    out = []
    for v, d in enumerate(kept):
        if d.size < 2 or any(index is None for index in seen[v]):
            out.append(d)
            continue
        cost = shifted.theta[v][np.searchsorted(shifted.domains[v], d)]
        keys = [
            *(index[d] for index in seen[v] if index is not None),
            cost,
            *([fine[v][d].astype(np.int64)] if fine else []),
        ]
        order = np.lexsort(keys[::-1])
        same = np.stack(keys[: len(seen[v])], axis=1)[order] if seen[v] else np.zeros((d.size, 1), dtype=np.int64)
        first = np.concatenate(([True], (same[1:] != same[:-1]).any(axis=1)))
        out.append(np.sort(d[order[first]]))
    return out


def ask(
    search: Search,
    chosen: Columns,
    engine: EngineName,
    bound: int,
    cutoff: int | None,
    until: Clock,
    seed: int,
    events: list[int],
) -> list[Asked]:
    """Ask about some columns, with more resource rows (added to `events`) as long as the answer breaks one."""
    problem, part = search.problem, chosen.problem
    out: list[Asked] = []
    size = _size(engine, part)
    while True:
        search.progress.update(f"asking {engine}", bound, search.upper())
        at = search.clock.seconds()
        reply = _reply(
            engine, part, None if until.limit_s is None else max(0.0, until.left()), seed, search.threads, events
        )
        broken: list[int] = []
        cost = None
        if reply.solution is not None and any(a >= FORBIDDEN for a in _entries(part, reply.solution)):
            reply = replace(reply, solution=None, final=False)  # rounded to choices that are none
        if reply.solution is not None:
            x = chosen.back(reply.solution)
            broken = _broken(problem, x, events)
            if not broken and problem.is_feasible(x):
                cost = problem.cost_of(x)
                search.incumbent.offer(x)
        whole = (
            cutoff is None
            or chosen.complete
            or cost is not None
            and (cost >> problem.fine_bits) + _fine_slack(problem) <= bound + cutoff
        )
        decided = reply.final and not broken and whole and (cost is not None or reply.solution is None)
        out.append(
            Asked(
                engine,
                len(part.vertices),
                sum(d.size for d in chosen.kept),
                size,
                len(events),
                bound << problem.fine_bits,
                None if cutoff is None or chosen.complete else cutoff << problem.fine_bits,
                at,
                search.clock.seconds() - at,
                reply.says + (f", {len(broken)} rows more are needed" if broken else ""),
                cost,
                decided,
            )
        )
        if not broken or not reply.final or until.over():
            return out
        events[:] = sorted({*events, *broken})


def _reply(
    engine: EngineName, problem: SelectionProblem, seconds: float | None, seed: int, threads: int, events: Sequence[int]
) -> Reply:
    told = problem if engine == "smt" else replace(problem, fine=None)
    if seconds is not None:
        reply = reply_in_time(engine, told, seconds, seed, threads, events)
    elif engine == "smt":
        reply = smt.solve_smt(told, None, seed, events)
    else:
        reply = ilp.solve_ilp(told, None, seed, threads, events)
    return (
        reply
        if told.fine is problem.fine
        else replace(reply, says=f"{reply.says} for costs in whole units of 2^{problem.fine_bits}")
    )


def _size(engine: EngineName, problem: SelectionProblem) -> int:
    return smt.size_of(problem) if engine == "smt" else ilp.size_of(problem)


def _fine_slack(problem: SelectionProblem) -> int:
    """By how much the coarse cost of a solution may fall short of its cost, in coarse units."""
    return 0 if problem.fine is None else len(problem.vertices) + len(problem.edges)


def _takes(problem: SelectionProblem) -> bool:
    """True when the whole problem is small enough to be asked about at once."""
    return (
        sum(v.cost.size for v in problem.vertices) + sum(problem.tables[e.table].size for e in problem.edges)
        <= WHOLE_PARTS
    )


def _entries(problem: SelectionProblem, x: Sequence[int]) -> list[int]:
    cells = [int(v.cost[a]) for v, a in zip(problem.vertices, x, strict=True)]
    for e in problem.edges:
        row = x[e.u] if e.rows is None else int(e.rows[x[e.u]])
        col = x[e.v] if e.cols is None else int(e.cols[x[e.v]])
        cells.append(int(problem.tables[e.table][row, col]))
    return cells


def _broken(problem: SelectionProblem, x: tuple[int, ...], known: Sequence[int]) -> list[int]:
    """Rows not in `known` that `x` breaks, the worst first, at most `ROWS_AT_ONCE`."""
    if problem.limit is None:
        return []
    events = problem.events()
    change = np.zeros(len(events) + 1, dtype=np.int64)
    for u in problem.usages:
        first, last = np.searchsorted(events, [u.start, max(u.start, u.end)]).tolist()
        change[first] += int(u.amount[x[u.vertex]])
        change[last] -= int(u.amount[x[u.vertex]])
    use = np.cumsum(change)[:-1]
    worst = [events[k] for k in np.argsort(-use, kind="stable").tolist() if use[k] > problem.limit]
    return [t for t in worst if t not in known][:ROWS_AT_ONCE]
