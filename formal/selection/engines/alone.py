"""Lets another engine decide a problem alone: its answer is the claim, its own proof is the certificate.

The engine gets the whole problem as its encoding states it: no messages, presolve or cutoff of ours.  What it names is
evaluated exactly; then it is asked for the reasons, which become records that the checker replays:

    ilp   HiGHS: branch and bound for the answer, duals of its linear programs for the proof    `proof_by_duals.py`
    smt   z3: its optimiser for the answer; for the proof messages that are its unknowns        `proof_by_duals.py`,
          or unsatisfiable cores where it says that nothing fits                                `proof_by_cores.py`
    cp-sat    CP-SAT: its search for the answer, assumptions that cannot hold for the proof     `cp_sat_cores.py`, which
                                                                                                `proof_by_cores.py` asks

Status and bound follow from the records alone.  An engine that calls the wrong solution the cheapest, names duals that
are none, or calls infeasible what is not, gets a weaker bound or another solution, never a claim.
"""

from __future__ import annotations

from dataclasses import replace
from importlib.metadata import version
from typing import Final, assert_never

from ....models.problem.selection_problem import SelectionProblem
from ....proofs.selection.certificates import (
    Dual,
    Elimination,
    Open,
    Point,
    Record,
    Reduced,
    RowConflict,
    Split,
)
from ..bound.plain import plain_dual
from ..model.factored import Domains, exact_cost, whole
from ..model.infinity import INFINITY
from ..tree.proof_tree import Assembler
from ..tree.run import Run
from .consult import Alone, EngineName, EngineRefused, most_parts, reply_of, require_engine, size_in
from .cp_sat_cores import CpSatCores
from .encodings import Reply, all_events
from .encodings.messages import Messages
from .encodings.relaxation import Relaxation
from .proof_by_cores import CoreProof, Cores
from .proof_by_duals import DualProof, exact_elimination, offer

PACKAGES: Final[dict[EngineName, tuple[str, str]]] = {
    "ilp": ("HiGHS", "highspy"),
    "smt": ("z3", "z3-solver"),
    "cp-sat": ("CP-SAT", "ortools"),
}
"""What an engine is called, and the package that it comes in."""

REASONS: Final[dict[EngineName, str]] = {
    "ilp": "HiGHS' LP duals",
    "smt": "z3's messages, and cores where it branched",
    "cp-sat": "CP-SAT's cores",
}
"""Whose proof a certificate holds."""


def question(run: Run, engine: EngineName) -> Alone:
    """The whole problem of `run` as a question to `engine`, without an answer.

    Raises `EngineRefused` when it is too large for the encoding, or the engine is not installed.
    """
    require_engine(engine)
    problem, options = run.problem, run.options.engines
    size, most = size_in(engine, problem), most_parts(engine, options)
    if size > most:
        raise EngineRefused(
            f"engine {engine}: {problem.name}: {size} parts, at most {most} can be asked about alone; "
            "leave out --alone: the engine is then asked about what native messages leave open"
        )
    name, package = PACKAGES[engine]
    choices, rows = sum(v.cost.size for v in problem.vertices), len(all_events(problem))
    solver = f"{name} {version(package)}"
    return Alone(engine, solver, len(problem.vertices), choices, size, rows, "time is over", None, 0.0, 0, "")


def answer_to(run: Run, asked: Alone) -> Alone:
    """The question with the answer; its solution is offered to the incumbent of `run`."""
    problem, clock = run.problem, run.clock
    options = run.options.engines
    share = options.smt_share if asked.engine == "smt" else options.asked_share
    at, given = clock.seconds(), clock.share(share).allowance()
    reply = reply_of(asked.engine, problem, given, run.threads, all_events(problem))
    clock.charge(given.steps or 0)
    cost = _cost(problem, reply)
    if reply.solution is not None and cost is not None:
        offer(run, reply.solution)
    return replace(asked, says=reply.says, cost=cost, seconds=clock.seconds() - at)


def _cost(problem: SelectionProblem, reply: Reply) -> int | None:
    """Of the choices that the engine named; None if they are none, or do not fit."""
    x = reply.solution
    if x is None or len(x) != len(problem.vertices):
        return None
    if any(type(a) is not int or not 0 <= a < v.cost.size for a, v in zip(x, problem.vertices, strict=True)):
        return None
    return None if exact_cost(problem, x) is None else problem.cost_of(x)


def proof_of(run: Run, asked: Alone) -> tuple[Record, int, int]:
    """The record made of the engine's reasons, its bound in whole units, and how many reasons it was asked for."""
    engine = asked.engine
    prover: DualProof | CoreProof
    match engine:
        case "ilp":
            prover = DualProof(Relaxation(run.problem, run.base))
        case "smt" if asked.says.startswith("unsat"):
            prover = CoreProof(run.problem, Cores(run).ask)
        case "smt":
            prover = DualProof(Messages(run.problem, run.base))
        case "cp-sat":
            prover = CoreProof(run.problem, CpSatCores(run).ask)
        case _:
            assert_never(engine)
    tree = replace(run, explorer=prover.explore).search()

    def eliminator(domains: Domains, before: Elimination) -> tuple[Elimination, int] | None:
        again = exact_elimination(run, domains, run.clock)
        return None if again is None else (again.record, again.value)

    base = run.base if isinstance(prover, DualProof) else run.unit
    maker = Assembler(run.problem, run.incumbent.cost, run.enough(), base, eliminator)
    return *maker.assemble(tree, whole(run.problem)), prover.asked


def whose(problem: SelectionProblem, engine: EngineName, proof: Record | None, bound: int | None, closed: bool) -> str:
    """Whose proof a certificate holds.  `bound`: what is claimed of every solution, in units of the problem; `closed`:
    nothing is left open.
    """
    plain = plain_dual(problem)[1]
    trivial = plain < INFINITY and (bound is None or bound <= plain << problem.fine_bits)
    if proof is None or (trivial and not closed):
        return "none: the answer is the engine's, the bound is trivial"
    if not _rests(proof, engine):
        return "least entries and amounts alone: no reason of the engine was needed"
    return REASONS[engine]


def _rests(root: Record, engine: EngineName) -> bool:
    """True when the records hold something that the engine said: messages, multipliers, or cases of cores."""
    todo = [root]
    while todo:
        record = todo.pop()
        match record:
            case Dual():
                if engine != "cp-sat" and (record.multipliers or any(m.any() for m in (*record.to_u, *record.to_v))):
                    return True
                todo += [] if record.then is None else [record.then]
            case Split():
                if engine != "ilp":
                    return True
                todo += record.children
            case Elimination() | RowConflict() | Point() | Open():
                pass
            case Reduced():
                todo.append(record.then)
            case _:
                assert_never(record)
    return False
