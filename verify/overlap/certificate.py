"""Checks overlapped plans.  It searches nothing and believes nothing that it can compute.

Overlap    the choices are those of all operators and copies; the schedule's tasks, times and precedences are the
           plan's, and so are the blocks that are held in memory, if there is a limit; its makespan times the quantum
           is the claimed one
Schedule   the schedule obeys them (`verify.schedules`)
Space, Entries   the choices are the space's, the entries those of index sets
WithinGap  for every placement the time is at least C, M and every P, hence their weighted mean, whose least the
           certificate proves: all operators run on one stream (C), but copies to
           hosts and back, which have one of their own, and all reshardings on one (M); a chain of
           operators, each of which reads what the one before writes, takes its operators and the reshardings on
           the way, and all operators that depend on its end, directly or not, run behind it on one stream (P); with a
           limit it may be the least among placements that obey `memory.inescapable`
Infeasible of a file without a schedule: no placement obeys `memory.inescapable` and `memory.unavoidable`

What waits for what: a resharding for the operator that writes the tensor, or for what filled the copy; an operator
for the reshardings of its operands, or for what these would have waited for, where they take no time; the writer of
a next value for all other operators that read the parameter.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from functools import partial
from itertools import pairwise

from ...models.cost.limits import TooLarge
from ...models.cost.selection import Planning, build
from ...models.layout.placement import SpaceError, space
from ...models.problem.claims import Infeasible, LowerBound, Optimal, Verdict, WithinGap
from ...models.problem.selection_problem import FORBIDDEN, Edge, Ints, Vertex
from ...models.problem.unit import rounding_bound
from ...models.program.operators import HOST_COPIES as HOST
from ...models.schedules.problem import ScheduleProblem
from ...proofs.container.archive import Member, identity
from ...proofs.container.canonical import NO_ROOM, ContainerError
from ...proofs.container.effort import OBJECT
from ...proofs.overlap.certificate import OverlapCertificate
from ...proofs.overlap.file import decode_overlap
from ...proofs.schedules.certificate import ScheduleCertificate
from ..budget import Budget
from ..plan.assumptions import wrong_assumptions
from ..plan.effort import AGAIN, BOX, ENTRY, charge_tables
from ..plan.plan import entries_result, space_result
from ..plan.structure import replaces, uses
from ..plan.used_entries import Entries, wrong_structure
from ..plan.vocabulary import restrict
from ..schedules.certificate import check_schedule
from ..selection.certificate import check_selection
from ..selection.multiples import multiple
from ..verdict import CheckResult, Rounding
from .memory import blocks, inescapable, unavoidable

FLAGS = ("one-stream-of-redistributions", "statistics-in-their-operator", "synchronous-weights")
"""Assumed beside those of the problem, of which `no-overlap` is none any more."""
OF_HOSTS = "one-stream-of-host-copies"
"""Of plans that copy tensors to hosts: on a stream of their own, beside operators and reshardings."""

Progress = Callable[[int, int], None]
Wanted = tuple[list[tuple[str, int, tuple[int, ...]]], set[tuple[int, int, int]], list[int | None]]
"""(name, time, streams) of every task, (before, after, lag) of every precedence, the task of every movement."""


def check_members(
    members: Mapping[str, Member],
    samples: int,
    cells: int,
    notify: Progress | None = None,
    budget: Budget | None = None,
) -> tuple[OverlapCertificate, tuple[CheckResult, ...]]:
    """The certificate of a container, and one result per claim; `ContainerError` for what is malformed."""
    certificate, results, _ = judge_members(members, samples, cells, notify, budget)
    return certificate, results


def judge_members(
    members: Mapping[str, Member],
    samples: int,
    cells: int,
    notify: Progress | None = None,
    budget: Budget | None = None,
) -> tuple[OverlapCertificate, tuple[CheckResult, ...], tuple[Rounding, ...]]:
    """`check_members`, and how times are rounded."""
    try:
        certificate = decode_overlap(members)
    except ContainerError:
        raise
    except MemoryError:
        raise ContainerError("overlap", NO_ROOM) from None
    except (ArithmeticError, AttributeError, LookupError, TypeError, ValueError) as error:
        raise ContainerError("overlap", f"is malformed: {type(error).__name__}: {str(error)[:300]}") from None
    return certificate, *_checked(certificate, identity(members), samples, cells, notify, budget)


def check_overlap(
    c: OverlapCertificate,
    seed: str,
    samples: int,
    cells: int,
    notify: Progress | None = None,
    budget: Budget | None = None,
) -> tuple[CheckResult, ...]:
    """One result per claim."""
    return _checked(c, seed, samples, cells, notify, budget)[0]


def _checked(
    c: OverlapCertificate, seed: str, samples: int, cells: int, notify: Progress | None, budget: Budget | None
) -> tuple[tuple[CheckResult, ...], tuple[Rounding, ...]]:
    """(one result per claim, how times are rounded)."""
    budget = Budget.with_large() if budget is None else budget
    try:
        where = space(c.space)
        charge_tables(c.graph, c.machine, where.without_vocabulary, budget, "overlap")
        whole = build(c.graph, c.machine, where.without_vocabulary, c.memory, notify)
        planning = restrict(whole, where, c.memory, budget) if where.vocabulary else whole
    except TooLarge as error:
        raise ContainerError("overlap", f"is too large to be checked: {error}") from None
    except ContainerError:
        raise
    except (ArithmeticError, LookupError, TypeError, ValueError) as error:
        raise ContainerError("overlap", f"no problem can be built from it: {str(error)[:300]}") from None
    rounding = (Rounding(planning.problem.scale, rounding_bound(planning.problem)),)
    hosts = (OF_HOSTS,) if any(op.function in HOST for op in c.graph.operators) else ()
    flags = tuple(sorted({*FLAGS, *hosts, *planning.problem.assumptions} - {"no-overlap"}))
    entries = Entries(planning, budget)
    wrong = wrong_structure(entries) or wrong_assumptions(planning.problem, c.graph, c.machine, where, c.memory)
    if c.schedule is None:
        tables = partial(entries_result, whole, None, samples, cells, seed, notify, entries.budget)
        return _infeasible(entries, wrong, c, flags, tables), rounding
    moves, bits = len(entries.moves), len(c.graph.operators) ** 2 >> 3
    budget.charge((AGAIN + 4 * BOX * c.machine.devices) * (moves + len(c.chains)) + bits, "tasks of the plan")
    x = () if wrong else _solution(planning, c)
    if isinstance(x, str):
        wrong, x = x, ()
    made = c.schedule
    wrong = wrong or wrong_tasks(entries, x, c, made)
    if wrong:
        return (replace(_refuted("Overlap", c, wrong), assumptions=flags),), rounding
    first = CheckResult("Overlap", Verdict.PROVED, None, None, c.space, flags, "")
    schedule = replace(check_schedule(made, budget), kind="Schedule")
    said = entries_result(whole, x, samples, cells, seed, notify, budget)
    bound = _bounded(entries, c)
    found = (first, schedule, bound, space_result(planning), said)
    return tuple(replace(r, assumptions=flags) for r in found), rounding


def _infeasible(
    entries: Entries, wrong: str, c: OverlapCertificate, flags: tuple[str, ...], tables: Callable[[], CheckResult]
) -> tuple[CheckResult, ...]:
    """One result per claim of a file that says that nothing fits.  `tables`: the one about entries that are drawn."""
    if not wrong and (c.choices.operators or c.choices.copies or c.chains or c.lower_bound):
        wrong = "nothing is scheduled, and yet something is chosen or bounded"
    if not wrong and c.memory is None:
        wrong = "nothing is scheduled, and there is no limit that is too small"
    if not wrong and not isinstance(c.least.claim, Infeasible):
        wrong = "nothing is scheduled, and the certificate does not say that nothing fits"
    if wrong:
        return (_refuted("Overlap", c, wrong),)
    try:
        rows = (*inescapable(entries), *unavoidable(entries))
        found = check_selection(
            replace(entries.planning.problem, usages=rows, limit=c.memory).check(), c.least, budget=entries.budget
        )
    except ValueError as error:
        raise ContainerError("overlap", f"rows: {str(error)[:200]}") from None
    first = CheckResult("Overlap", Verdict.PROVED, None, None, c.space, flags, "")
    said = tables()
    claim = replace(found, kind="Infeasible", cost=None, space=c.space)
    return tuple(replace(r, assumptions=flags) for r in (first, claim, space_result(entries.planning), said))


def _refuted(kind: str, c: OverlapCertificate, reason: str) -> CheckResult:
    return CheckResult(kind, Verdict.REFUTED, None, None, c.space, FLAGS, reason)


def _solution(planning: Planning, c: OverlapCertificate) -> tuple[int, ...] | str:
    """Choices of all vertices, or what is wrong."""
    found: dict[int, int] = {}
    for items, known in ((c.choices.operators, planning.operators), (c.choices.copies, planning.copies)):
        for name, placement in items:
            if name not in known or known[name] in found:
                return f"choices: {name!r} is decided nowhere, or twice"
            try:
                found[known[name]] = planning.decisions[known[name]].choice(placement)
            except SpaceError as error:
                return f"choices: {error}"
    if len(found) < len(planning.decisions):
        return "choices: something is not decided"
    for v, choice in found.items():
        if int(planning.problem.vertices[v].cost[choice]) >= FORBIDDEN:
            return f"choices: the placement of {planning.decisions[v].name!r} is none that {planning.space.name!r} has"
    x = tuple(found[v] for v in range(len(found)))
    for e in planning.problem.edges:
        row = x[e.u] if e.rows is None else int(e.rows[x[e.u]])
        column = x[e.v] if e.cols is None else int(e.cols[x[e.v]])
        if int(planning.problem.tables[e.table][row, column]) >= FORBIDDEN:
            ends = (planning.decisions[v].name for v in (e.u, e.v))
            return f"choices: nothing is moved between those of {' and '.join(map(repr, ends))}"
    return x


def expected_tasks(entries: Entries, x: tuple[int, ...], quantum: int) -> Wanted:
    """Tasks and precedences of a plan, and the task of every movement."""
    planning, graph = entries.planning, entries.planning.graph
    problem = planning.problem
    at = {op.name: k for k, op in enumerate(graph.operators)}

    def units(value: object) -> int:
        return -(-int(value) // quantum)  # type: ignore[call-overload, no-any-return]

    tasks: list[tuple[str, int, tuple[int, ...]]] = [
        (
            op.name,
            units(problem.vertices[planning.operators[op.name]].cost[x[planning.operators[op.name]]]),
            (2 if op.function in HOST else 0,),
        )
        for op in graph.operators
    ]
    after: set[tuple[int, int, int]] = set()
    moving: list[int | None] = []
    for move, e in zip(entries.moves, problem.edges, strict=True):
        row = x[e.u] if e.rows is None else int(e.rows[x[e.u]])
        column = x[e.v] if e.cols is None else int(e.cols[x[e.v]])
        time = int(problem.tables[e.table][row, column])
        moving.append(len(tasks) if time else None)
        if time:
            tasks.append((f"{move.tensor} to {move.reader or 'its copy'}", units(time), (1,)))
    ready: dict[str, int] = {}  # tensor -> what fills its copy
    for move, task in zip(entries.moves, moving, strict=True):
        if move.reader is None and move.writer is not None:
            ready[move.tensor] = at[move.writer] if task is None else task
            if task is not None:
                after.add((at[move.writer], task, 0))
    for move, task in zip(entries.moves, moving, strict=True):
        if move.reader is None:
            continue
        source = ready.get(move.tensor) if move.writer is None else at[move.writer]
        if task is not None:
            after.add((task, at[move.reader], 0))
            if source is not None:
                after.add((source, task, 0))
        elif source is not None:
            after.add((source, at[move.reader], 0))
    used, writer = uses(graph), {op.output.tensor: op.name for op in graph.operators}
    for value, parameter in replaces(graph).items():
        after |= {(at[name], at[writer[value]], 0) for name, _ in used[parameter] if name != writer[value]}
    return tasks, after, moving


def wrong_tasks(entries: Entries, x: tuple[int, ...], c: OverlapCertificate, made: ScheduleCertificate) -> str:
    """Why the schedule `made` is not one of the plan; empty if it is."""
    subject = made.subject
    if not isinstance(subject, ScheduleProblem):
        return "the schedule is one of a pipeline"
    tasks, after, moving = expected_tasks(entries, x, c.quantum)
    hosts = any(streams == (2,) for _, _, streams in tasks)
    if [(s.device, s.kind) for s in subject.streams] != [(0, "compute"), (0, "links"), *[(0, "host")] * hosts]:
        return "the schedule has other streams than one of operators, one of reshardings, and one of copies to hosts"
    if subject.limits != (c.memory,):
        return "the schedule has another memory limit than the plan"
    for k, (have, want) in enumerate(zip(subject.tasks, tasks, strict=False)):
        if (have.name, have.time, have.streams) != want:
            return f"task {k}: {want[0]!r} takes {want[1]} on stream {want[2][0]}, the schedule says otherwise"
    if len(subject.tasks) != len(tasks):
        return f"the plan has {len(tasks)} tasks, its schedule {len(subject.tasks)}"
    if {(p.before, p.after, p.lag) for p in subject.precedences} != after:
        return "something waits for other tasks than in the plan"
    held = sorted((h.amount, -1 if h.first is None else h.first, h.last) for h in subject.holdings)
    if held != ([] if c.memory is None else blocks(entries, x, moving)):
        return "the schedule holds other blocks in memory than the plan"
    if made.makespan * c.quantum != c.makespan:
        return f"the schedule takes {made.makespan * c.quantum}, the claim says {c.makespan}"
    return ""


def counted_chain(entries: Entries, names: tuple[str, ...]) -> tuple[set[str], set[int]] | str:
    """(operators that P counts, reshardings that it counts), or why the names are no chain."""
    graph = entries.planning.graph
    if not names:
        return set(), set()
    known = {op.name: op for op in graph.operators}
    if set(names) - set(known) or len(set(names)) < len(names):
        return "chain: names what is no operator, or an operator twice"
    fills = {m.tensor: k for k, m in enumerate(entries.moves) if m.reader is None}
    reads = {(m.tensor, m.reader): k for k, m in reversed(list(enumerate(entries.moves))) if m.reader is not None}
    edges: set[int] = set()
    for first, second in pairwise(names):
        tensor = known[first].output.tensor
        if (tensor, second) not in reads:
            return f"chain: {second!r} reads nothing that {first!r} writes"
        number = reads[tensor, second]
        edges.add(number)
        if entries.moves[number].writer is None:
            edges.add(fills[tensor])
    behind = {known[names[-1]].output.tensor}
    counted = set(names)
    for op in graph.operators:  # in an order in which everything is written before it is read
        if any(a.tensor in behind for a in op.inputs):
            behind.add(op.output.tensor)
            if op.function not in HOST:  # they have a stream of their own
                counted.add(op.name)
    return counted, edges


def _bounded(entries: Entries, c: OverlapCertificate) -> CheckResult:
    """The claim about the lower bound."""
    paths, reason, value = [], "", 0
    for names in c.chains:
        found = counted_chain(entries, names)
        if isinstance(found, str):
            reason = found
        else:
            paths.append(found)
    if not reason:
        value, reason = _least(entries, paths, c)
    if not reason and not c.lower_bound <= min(value, c.makespan):
        reason = f"the certificate gives a bound of {value}, the claim says {c.lower_bound}"
    kind = "Optimal" if c.lower_bound == c.makespan else "WithinGap"
    verdict = Verdict.REFUTED if reason else Verdict.PROVED
    cost, bound = (None, None) if reason else (c.makespan, c.lower_bound)
    return CheckResult(kind, verdict, cost, bound, c.space, FLAGS, reason)


def _least(entries: Entries, paths: list[tuple[set[str], set[int]]], c: OverlapCertificate) -> tuple[int, str]:
    """(what the certificate proves, empty), or (0, why it proves nothing)."""
    planning = entries.planning
    problem, (each, moved, *along) = planning.problem, c.weights
    operator_of = {v: name for name, v in planning.operators.items()}
    copied = {op.name for op in planning.graph.operators if op.function in HOST}
    vertices = []
    for v, vertex in enumerate(problem.vertices):
        factor = 0
        if v in operator_of:
            factor = 0 if operator_of[v] in copied else each
            factor += sum(w for w, (counted, _) in zip(along, paths, strict=True) if operator_of[v] in counted)
        vertices.append(Vertex(vertex.name, multiple(vertex.cost, factor)))
    seen: dict[tuple[int, int], int] = {}
    tables: list[Ints] = []
    edges: list[Edge] = []
    chains = OBJECT * len(paths) * (len(problem.vertices) + len(problem.edges))
    ways = len(paths) + 1  # an edge counts itself and chains, so a table has so many factors at most
    entries.budget.charge(chains + ENTRY * ways * sum(t.size for t in problem.tables), "weights")
    entries.budget.hold(ways * sum(t.size for t in problem.tables), "weights")
    for k, e in enumerate(problem.edges):
        factor = moved + sum(w for w, (_, on_the_way) in zip(along, paths, strict=True) if k in on_the_way)
        if (e.table, factor) not in seen:
            seen[e.table, factor] = len(tables)
            tables.append(multiple(problem.tables[e.table], factor))
        edges.append(Edge(e.u, e.v, seen[e.table, factor], e.rows, e.cols))
    try:
        other = replace(
            problem, vertices=tuple(vertices), tables=tuple(tables), edges=tuple(edges), usages=(), limit=None
        ).check()
        if c.memory is not None and c.least.problem_sha256 != other.sha256():  # both are below every plan in the limit
            other = replace(other, usages=inescapable(entries), limit=c.memory).check()
        result = check_selection(other, c.least, budget=entries.budget)
    except ValueError as error:
        raise ContainerError("overlap", f"weights: {str(error)[:200]}") from None
    claim = c.least.claim
    if result.verdict is not Verdict.PROVED or not isinstance(claim, Optimal | WithinGap | LowerBound):
        return 0, f"weights {list(c.weights)}: {result.reason or 'no bound'}"
    least = claim.cost if isinstance(claim, Optimal) else claim.lower_bound
    return -(-least // sum(c.weights)), ""
