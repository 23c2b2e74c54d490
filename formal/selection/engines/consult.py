"""Puts a selection problem to another solver, on the columns that native messages leave: column generation
with a reduced-cost cutoff.

Messages m and multipliers n give a bound L and, for every choice, a reduced cost (`bound/dual.py`): a solution that
fits and takes the choice costs at least L + reduced cost.  With brackets T_e - m_e,u - m_e,v shifted to a least entry
of 0 the same holds of every table entry.  So for a cutoff s

    columns(s)  =  choices of reduced cost <= s,  entries of shifted bracket <= s                                     ->
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
made by the native search.  `EngineAnswer` records the conversation for the report.
Source: Kolmogorov, TPAMI 2006 (reparametrisation); Savchynskyy et al., "Global MAP-optimality by shrinking the
combinatorial search area", NIPS 2013.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, replace
from importlib.util import find_spec
from typing import Final, Literal, assert_never

import numpy as np

from ....models.problem.selection_problem import SelectionProblem
from ....proofs.selection.certificates import Dual
from ..bound.converge import converge
from ..bound.subgradient import factored_ascent
from ..model.clock import ANY, Allowance, Clock
from ..model.factored import allowed_domains, build, exact_cost
from ..model.resources import Rows
from ..options.engines import EngineOptions
from ..tree.run import Run
from .columns import Columns, Shifted, columns
from .encodings import Reply, cp_sat, ilp, smt
from .encodings.child import reply_in_time

EngineName = Literal["ilp", "smt", "cp-sat"]

NEEDS: Final[dict[EngineName, tuple[tuple[str, ...], str]]] = {
    "ilp": (("highspy", "pulp"), "pip install shardproof"),
    "smt": (("z3",), "pip install shardproof"),
    "cp-sat": (("ortools",), "pip install 'shardproof[solvers]'"),
}
"""Modules that an engine comes in, and how to get them."""

NO_SOLUTION: Final = ("infeasible", "unsat")
"""How the status words of the engines begin when nothing satisfies the program."""


class EngineRefused(ValueError):
    """The engine cannot be asked: the problem is too large for it, or it is not installed.  The message says which."""


def require_engine(engine: EngineName) -> None:
    """Raises `EngineRefused` where a package of the engine is not installed."""
    packages, how = NEEDS[engine]
    for package in packages:
        if find_spec(package) is None:
            raise EngineRefused(f"engine {engine} needs the package {package}, which is not installed: {how}")


@dataclass(frozen=True)
class EngineAnswer:
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


@dataclass(frozen=True)
class Alone:
    """An engine that decided alone: what it was asked, its answer, and whose proof the certificate holds.

    `cost`: exact, of the choices that it named (None: none, or they do not fit); `reasons`: linear programs or cases
    that it was asked about for the proof; `proof`: in words.
    """

    engine: EngineName
    solver: str
    vertices: int
    choices: int
    parts: int
    rows: int
    says: str
    cost: int | None
    seconds: float
    reasons: int
    proof: str

    def words(self, cost_text: Callable[[int], str], best: int | None) -> list[str]:
        """The conversation, line by line; `best`: cost of the solution that is claimed."""
        rows = f", {self.rows} memory rows" if self.rows else ""
        cost = "" if self.cost is None else f", cost {cost_text(self.cost)}"
        what = "linear programs" if self.engine == "ilp" else "cases"
        told = (
            f"{self.engine} ({self.solver}) decided alone: {self.vertices} decisions, {self.choices} choices, "
            f"{self.parts} parts{rows}; it answered {self.says!r} after {self.seconds:.1f} s{cost}"
        )
        beaten = self.cost is not None and best is not None and best < self.cost
        return [
            told,
            *(["its own proof holds a cheaper solution than it named"] if beaten else []),
            f"proof: {self.proof} (asked about {self.reasons} {what})",
        ]

    def to_json(self) -> dict[str, object]:
        """Name, question, answer and proof."""
        return {
            "name": self.engine,
            "solver": self.solver,
            "alone": True,
            "asked": {"vertices": self.vertices, "choices": self.choices, "parts": self.parts, "rows": self.rows},
            "answered": {"says": self.says, "cost": self.cost, "seconds": round(self.seconds, 3)},
            "reasons": self.reasons,
            "proof": self.proof,
        }


def conversation(asked: Sequence[EngineAnswer], cost: int | None, cost_text: Callable[[int], str]) -> list[str]:
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


def consult(run: Run, engine: EngineName) -> tuple[Dual | None, tuple[EngineAnswer, ...]]:
    """Ask `engine` until it has decided or its time is over; offers its solutions to the incumbent of `run`.

    Returns messages for the proof to start from (None: a vertex has no allowed choice), and the conversation.
    Raises `EngineRefused` when the engine can take no columns that hold a solution.
    """
    require_engine(engine)
    problem, clock, options = run.problem, run.clock, run.options.engines
    if any(d.size == 0 for d in allowed_domains(problem)):
        return None, ()
    if problem.fine is not None:
        run.base, run.denominator = run.unit, 1  # fine parts are given for whole units
    shifted = shift(run, clock.share(options.messages_share))
    bound = shifted.score.lower()
    if bound is None:
        return shifted.record, ()
    until = clock.at_most(
        None if clock.remaining_s() == float("inf") else options.asked_share * max(0.0, clock.remaining_s())
    )
    asked: list[EngineAnswer] = []
    events: list[int] = []
    most = most_parts(engine, options)
    cutoff = None if _takes(problem, options) else 1 + abs(bound) // options.first_cutoff
    while True:
        chosen = columns(shifted, bound, cutoff, options)
        if chosen is None or (size := size_in(engine, chosen.problem)) > most:
            if not any(a.cost is not None for a in asked):
                parts = (
                    f"more than {options.cells} table entries"
                    if chosen is None
                    else f"{size} parts, at most {most} can be asked about,"
                )
                raise EngineRefused(
                    f"engine {engine}: {problem.name}: {parts} even among what can cost at most {cutoff} more "
                    f"than the bound {bound}; "
                    "use --engine native, or a smaller space (--space one-per-level)"
                )
            break
        asked += ask(run, chosen, engine, bound, cutoff, until, events)
        last = asked[-1]
        if last.decided or until.over() or cutoff is None or chosen.complete:
            break
        if last.cost is not None:
            wider = (last.cost >> problem.fine_bits) - bound + _fine_slack(problem)
        elif last.says.startswith(NO_SOLUTION):
            wider = cutoff * options.wider
        else:
            break
        if wider <= cutoff:
            break
        cutoff = wider
    return shifted.record, tuple(asked)


def shift(run: Run, clock: Clock) -> Shifted:
    """Messages, with multipliers where resource rows may bind, and what they say of every choice."""
    run.progress.update("messages", None, None)
    network = build(run.base, allowed_domains(run.problem))
    sweeper = run.sweeper(network)
    converge(sweeper, clock if run.rows is None else clock.share(0.5))
    pairs: tuple[tuple[int, int], ...] = ()
    if run.rows is not None:
        state = factored_ascent(sweeper, run.rows, run.multipliers(run.rows, None), None, clock)
        pairs = run.rows.pairs(state.n)
    record, score = run.record(network, sweeper, pairs)
    sweeper.extra = [None] * len(network.domains)  # multipliers are not handed over
    theta = tuple(sweeper.theta(v) for v in range(len(network.domains)))
    return Shifted(run.problem, run.base, record, score, network.domains, theta)


def ask(
    run: Run,
    chosen: Columns,
    engine: EngineName,
    bound: int,
    cutoff: int | None,
    until: Clock,
    events: list[int],
) -> list[EngineAnswer]:
    """Ask about some columns, with more resource rows (added to `events`) as long as the answer breaks one."""
    problem, part = run.problem, chosen.problem
    out: list[EngineAnswer] = []
    size = size_in(engine, part)
    while True:
        run.progress.update(f"asking {engine}", bound, run.upper())
        at = run.clock.seconds()
        given = until.allowance()
        reply = reply_of(engine, part, given, run.threads, events)
        until.charge(given.steps or 0)
        broken: list[int] = []
        cost = None
        if reply.solution is not None and exact_cost(replace(part, limit=None), reply.solution) is None:
            reply = replace(reply, solution=None, final=False)  # rounded to choices that are none
        if reply.solution is not None:
            x = chosen.back(reply.solution)
            broken = _broken(problem, x, events, run.options.engines.rows_at_once)
            if not broken and problem.is_feasible(x):
                cost = problem.cost_of(x)
                run.incumbent.offer(x)
        whole = (
            cutoff is None
            or chosen.complete
            or cost is not None
            and (cost >> problem.fine_bits) + _fine_slack(problem) <= bound + cutoff
        )
        decided = reply.final and not broken and whole and (cost is not None or reply.solution is None)
        out.append(
            EngineAnswer(
                engine,
                len(part.vertices),
                sum(d.size for d in chosen.kept),
                size,
                len(events),
                bound << problem.fine_bits,
                None if cutoff is None or chosen.complete else cutoff << problem.fine_bits,
                at,
                run.clock.seconds() - at,
                reply.says + (f", {len(broken)} rows more are needed" if broken else ""),
                cost,
                decided,
            )
        )
        if not broken or not reply.final or until.over():
            return out
        events[:] = sorted({*events, *broken})


def reply_of(
    engine: EngineName, problem: SelectionProblem, given: Allowance, threads: int, events: Sequence[int]
) -> Reply:
    """The engine's answer to a problem with the resource rows `events`, in a process of its own where time is given."""
    told = replace(problem, fine=None) if engine == "ilp" else problem
    if given != ANY:
        reply = reply_in_time(engine, told, given, threads, events)
    else:
        match engine:
            case "ilp":
                reply = ilp.solve_ilp(told, ANY, threads, events)
            case "smt":
                reply = smt.solve_smt(told, ANY, events)
            case "cp-sat":
                reply = cp_sat.solve_cp_sat(told, ANY, events)
            case _:
                assert_never(engine)
    return (
        reply
        if told.fine is problem.fine
        else replace(reply, says=f"{reply.says} for costs in whole units of 2^{problem.fine_bits}")
    )


def size_in(engine: EngineName, problem: SelectionProblem) -> int:
    """Parts of the engine's encoding of a problem."""
    sizes = {"ilp": ilp.size_of, "smt": smt.size_of, "cp-sat": cp_sat.size_of}
    return sizes[engine](problem)


def most_parts(engine: EngineName, options: EngineOptions) -> int:
    """Parts that an engine is asked about at most."""
    return {"ilp": options.ilp_parts, "smt": options.smt_parts, "cp-sat": options.cp_sat_parts}[engine]


def _fine_slack(problem: SelectionProblem) -> int:
    """By how much the coarse cost of a solution may fall short of its cost, in coarse units."""
    return 0 if problem.fine is None else len(problem.vertices) + len(problem.edges)


def _takes(problem: SelectionProblem, options: EngineOptions) -> bool:
    """True when the whole problem is small enough to be asked about at once."""
    return (
        sum(v.cost.size for v in problem.vertices) + sum(problem.tables[e.table].size for e in problem.edges)
        <= options.whole_parts
    )


def _broken(problem: SelectionProblem, x: tuple[int, ...], known: Sequence[int], most: int) -> list[int]:
    """Rows not in `known` that `x` breaks, the worst first, at most `most`."""
    if problem.limit is None:
        return []
    events, use = problem.events(), Rows(problem).use(x)
    worst = [events[k] for k in np.argsort(-use, kind="stable").tolist() if use[k] > problem.limit]
    return [t for t in worst if t not in known][:most]
