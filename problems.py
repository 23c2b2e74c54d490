"""The Python way in to problems that are no model: place parallelism axes on a machine, synthesise the reductions over
them, solve a selection problem, schedule a pipeline, see that a parallel program computes what one device does.

    import shardproof
    best = shardproof.reduce("4x16", "16,2,2", "0,2", payload="1GiB")
    best.words, best.cost_s, best.run().equal
    best.save("program.spz")

The command line does the same things through the same functions, and arguments have the names of its options.  What is
handed back was accepted by the checker; `save` writes the file that `shardproof check` takes.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import KW_ONLY, dataclass
from fractions import Fraction
from math import prod
from pathlib import Path
from typing import TYPE_CHECKING, Literal, get_args

from shardproof.formal.collective_programs.options import ProgramOptions, require_word
from shardproof.formal.schedules.options import ScheduleOptions
from shardproof.limits import Allowance, SearchLimits, limit_of
from shardproof.models.keywords import keywords_of
from shardproof.models.problem.claims import Verdict
from shardproof.models.terminal.combinations import require_keywords
from shardproof.models.text import InputError
from shardproof.solutions import Equality, Placements, Reduction, Schedule, Solution, bytes_of

if TYPE_CHECKING:
    from shardproof.formal.schedules.engines.request import Answer as ScheduleAnswer
    from shardproof.formal.selection.answer import Answer
    from shardproof.formal.selection.question import Engine
    from shardproof.models.collective_programs.parallelism import Matrix
    from shardproof.models.problem.selection_problem import SelectionProblem

Sizes = str | Sequence[int]
"""As on the command line, "4x16" or "16,2,2", or the integers."""


@dataclass(frozen=True)
class PlaceKeywords(ProgramOptions):
    """See `place`."""

    hierarchy: Sizes
    axes: Sizes
    reductions: str | Sequence[str] = ()


@dataclass(frozen=True)
class ReduceKeywords(ProgramOptions):
    """See `reduce`."""

    hierarchy: Sizes | None = None
    axes: Sizes | None = None
    over: Sizes | None = None
    _: KW_ONLY
    matrix: str | Matrix | None = None
    nodes: Sizes | None = None
    payload: int | str = "2GiB"
    synthesis: str = "d-collapsed"


@dataclass(frozen=True)
class SolveKeywords(SearchLimits):
    """See `solve`."""

    problem: SelectionProblem | Path | str
    _: KW_ONLY
    engine: Engine = "native"
    alone: bool = False
    threads: int = 2
    known: Sequence[int] | Path | str | None = None


@dataclass(frozen=True)
class ScheduleKeywords(Allowance, ScheduleOptions):
    """See `schedule`."""


@keywords_of(PlaceKeywords)
def place(options: PlaceKeywords) -> Placements:
    """All placements of parallelism axes over a hierarchy, proved complete; for reductions also the best one.

    `hierarchy`, `axes`: sizes, such as "4x16" and "16,2,2".  `reductions`: "AXES:BYTES" or "AXES:BYTES*N", bytes per
    device, N times per step.  `machine`: by default that of the number of levels.  The others are those of `shardproof
    place --help`.  Raises `InputError`, `ParallelismError` for sizes that do not fit.

    >>> found = place("2x4", "2,4", "0:1MB")
    >>> found.matrices, found.best, found.devices, found.verdict.value
    ((((1, 2), (2, 2)), ((2, 1), (1, 4))), 0, [[0, 1, 4, 5], [2, 3, 6, 7]], 'proved')
    """
    from shardproof.formal.collective_programs.asked import engine_json
    from shardproof.formal.collective_programs.request import place_axes
    from shardproof.formal.verbs.combinations import PLACE
    from shardproof.formal.verbs.reduction_options import reduction
    from shardproof.front_door import FrontDoor
    from shardproof.models.collective_programs.parallelism import PlacementProblem
    from shardproof.proofs.collective_programs.chosen import chosen_programs
    from shardproof.proofs.collective_programs.file import write_placement, write_reduction

    require_keywords(PLACE, options)
    problem = PlacementProblem(_sizes(options.hierarchy, "hierarchy", "x"), _sizes(options.axes, "axes", ","))
    texts = (options.reductions,) if isinstance(options.reductions, str) else options.reductions
    found = place_axes(problem, [reduction(text) for text in texts], options.machine, options.how())
    matrices, told = found.placement.matrices, engine_json(found.asked).get("engine")
    if found.certificate is None or found.best is None:
        data = write_placement(None, found.placement)
        return Placements(FrontDoor().publish(None, data), data, told, matrices)
    data = write_reduction(None, found.certificate)
    costs = tuple(Fraction(total, found.scale) for total in found.totals)
    programs = chosen_programs(found.certificate)
    return Placements(FrontDoor().publish(None, data), data, told, matrices, found.best.matrix, costs, programs)


@keywords_of(ReduceKeywords)
def reduce(options: ReduceKeywords) -> Reduction:
    """The cheapest program that reduces over some axes, with a proof that no program of any length is cheaper.

    `hierarchy`, `axes`: sizes, such as "4x16" and "16,2,2"; `over`: the numbers of the axes that are reduced, "0,2".
    `matrix`: only on this placement, "[[2 4] [1 4]]"; otherwise on the best of all.  `nodes`: instead of these, numbers
    of devices of nodes that all reduce, "4,4,2".  `payload`: bytes per device, or a text such as "1GiB".  The others
    are those of `shardproof reduce --help`.  Raises `ParallelismError`, and `InputError` also where no program does it.

    >>> found = reduce("2x2", "4", "0", payload="64MB")
    >>> found.words, found.count, found.cost_s < found.all_reduce_s, found.run().equal
    ('RS.L AR.P AG.L', 47, True, True)
    """
    from shardproof.formal.collective_programs.asked import engine_json
    from shardproof.formal.collective_programs.request import reduce_axes, reduce_nodes
    from shardproof.formal.verbs.combinations import REDUCE
    from shardproof.formal.verbs.reduction_options import matrix as read_matrix
    from shardproof.front_door import FrontDoor
    from shardproof.models.collective_programs.parallelism import Hierarchy, PlacementProblem, ReductionRequest
    from shardproof.proofs.collective_programs.chosen import Chosen
    from shardproof.proofs.collective_programs.file import write_reduction

    require_keywords(REDUCE, options)
    how, amount = options.how(), bytes_of(options.payload)
    if options.nodes is not None:
        made = reduce_nodes(_sizes(options.nodes, "nodes", ","), options.machine, amount, how)
    else:
        problem = PlacementProblem(_sizes(options.hierarchy, "hierarchy", "x"), _sizes(options.axes, "axes", ","))
        only = read_matrix(options.matrix) if isinstance(options.matrix, str) else options.matrix
        tree = Hierarchy(require_word(options.synthesis, [h.value for h in Hierarchy], "synthesis"))
        made = reduce_axes(problem, _sizes(options.over, "over", ",", 0), only, options.machine, amount, how, tree)
    data = write_reduction(None, made.certificate)
    published, best = FrontDoor().publish(None, data), made.winner.best
    if best.program is None or best.cost is None:
        raise InputError(f"no program of any length does this; that is {published.verdict.value}")
    chosen = Chosen(best.request, best.program, best.cost, made.spec)
    where = best.request.matrix if isinstance(best.request, ReductionRequest) else None
    single = None if best.all_reduce is None else Fraction(best.all_reduce, chosen.scale)
    told = engine_json(made.asked).get("engine")
    return Reduction(published, data, told, sum(f.best.count for f in made.rows), chosen, where, single)


@keywords_of(SolveKeywords)
def solve(options: SolveKeywords) -> Solution:
    """The best solution of a selection problem: one choice per vertex, with costs of choices and of pairs, and limits.

    `problem`: a file that `shardproof solve` takes, or the problem.  `engine`: "ilp" (HiGHS), "smt" (z3) or "cp-sat"
    looks for the solution; `alone`: it decides alone, and what it gives makes the certificate (`Solution.engine` says
    what it was asked and answered).  `gap`: stop within it.  `known`: a solution that the search begins with and is
    never worse than, or a file of it (`shardproof solve --known`).  `time_limit_s`, `work_limit`, `effort`: as for
    `plan`.
    Raises `InputError` for e-graphs, and where an engine cannot be asked.

    >>> import numpy as np
    >>> from shardproof.models.problem.selection_problem import Edge, SelectionProblem, Vertex
    >>> two = Vertex("a", np.array([1, 0])), Vertex("b", np.array([0, 5]))
    >>> pair = SelectionProblem("pair", two, (np.array([[0, 9], [9, 0]]),), (Edge(0, 1, 0),))
    >>> found = solve(pair, engine="ilp", alone=True)
    >>> found.status, found.cost, found.choices, found.engine["answered"]["cost"]
    ('optimal', 1, (0, 0), 1)
    """
    from shardproof.formal.plans.time_limit import check_seconds
    from shardproof.formal.selection.engines.consult import EngineRefused
    from shardproof.formal.selection.question import Engine
    from shardproof.formal.selection.solve import solve
    from shardproof.formal.verbs.combinations import SOLVE

    require_keywords(SOLVE, options)
    require_word(options.engine, get_args(Engine), "engine")
    asked = _selection_problem(options.problem)
    share, limit = options.enough()
    begun = _known(options.known, asked)
    limit.hold_back(check_seconds(asked, limit))
    try:
        found = solve(
            asked.check(),
            clock=limit.clock.at_most(None),
            gap=share,
            engine=options.engine,
            alone=options.alone,
            threads=options.threads,
            known=begun,
        )
    except EngineRefused as error:
        raise InputError(str(error)) from None
    return _solution(asked, found)


def _selection_problem(problem: SelectionProblem | Path | str) -> SelectionProblem:
    """The problem that is given, or that a file is of."""
    from shardproof.models.egraphs.egraph import EGraph
    from shardproof.models.problem.selection_problem import SelectionProblem
    from shardproof.proofs.selection.load import load_problem

    asked = problem if isinstance(problem, SelectionProblem) else load_problem(Path(problem))
    if isinstance(asked, EGraph):
        raise InputError(f"{problem}: is an e-graph; write shardproof solve {problem} for its extraction")
    return asked


def _known(known: Sequence[int] | Path | str | None, problem: SelectionProblem) -> tuple[tuple[int, ...], ...]:
    """What a search begins with: a solution, one of a file, or none."""
    from shardproof.formal.selection.engines.encodings.answers import read_answer, require_solution

    if known is None:
        return ()
    if isinstance(known, (str, Path)):
        return (read_answer(Path(known).read_text(encoding="utf-8"), problem),)
    return (require_solution(known, problem),)


def _solution(asked: SelectionProblem, found: Answer) -> Solution:
    """What was found, with the status that the checker gives it."""
    from shardproof.formal.verbs.results import asked_json
    from shardproof.front_door import FrontDoor
    from shardproof.models.problem.claims import Infeasible
    from shardproof.proofs.selection.file import write_certificate

    if found.certificate is None:
        raise InputError(f"{asked.name}: nothing was found in the time that it was given; give it more time")
    data = write_certificate(None, found.certificate)
    published = FrontDoor().publish(None, data, asked)
    proved = published.verdict is Verdict.PROVED
    status: Literal["optimal", "feasible", "infeasible", "unknown"]
    if found.solution is None:
        status = "infeasible" if proved and isinstance(found.certificate.claim, Infeasible) else "unknown"
    else:
        cost, bound = published.cost, published.lower_bound
        status = "optimal" if proved and cost is not None and bound is not None and bound >= cost else "feasible"
    told = asked_json(found).get("engine")
    return Solution(published, data, told, status, found.solution, asked.scale)


@keywords_of(ScheduleKeywords)
def schedule(options: ScheduleKeywords) -> Schedule:
    """The shortest schedule of a pipeline, or a published one (`kind`) and whether a shorter one exists; or that of a
    `graph` of operators and collectives (.json).

    `times`: forward, backward for inputs, backward for weights, "1,1,1", or a triple per stage separated by ';';
    `send`: time of a send; `memory`: most activations that a stage keeps.  The others are those of `shardproof schedule
    --help`.  Raises `InputError`, also for a published schedule that does not fit the memory.

    >>> found = schedule(stages=2, micro_batches=2, times="1,1,1", memory=2)
    >>> found.makespan, found.lower_bound, found.status, len(found.starts)
    (Fraction(7, 1), Fraction(7, 1), 'optimal', 12)
    """
    from shardproof.formal.schedules.engines.request import Engine as Engines
    from shardproof.formal.schedules.engines.request import parse_times, schedule_graph, schedule_pipeline
    from shardproof.formal.verbs.combinations import SCHEDULE
    from shardproof.formal.verbs.schedule import CHECK_SHARE, SCHEDULE_S
    from shardproof.models.schedules.pipeline import Pipeline
    from shardproof.models.sources.overlap.graph import read_overlap

    require_keywords(SCHEDULE, options, subject="pipeline" if options.graph is None else "graph")
    require_word(options.engine, get_args(Engines), "engine")
    limit = limit_of(options.time_limit_s, options.work_limit, SCHEDULE_S)
    clock, stages = limit.clock.share(1 - CHECK_SHARE), options.stages
    if options.graph is not None:
        read = read_overlap(Path(options.graph), options.machine)
        found, _ = schedule_graph(read.problem, options.engine, clock)
    else:
        if stages is None or options.micro_batches is None or options.times is None:
            raise InputError('a pipeline has stages, micro_batches and times, such as 4, 8 and "1,1,1"; give all three')
        times = parse_times(options.times, stages)
        pipe = Pipeline(times, options.micro_batches, options.send, options.memory).check()
        found = schedule_pipeline(pipe, options.kind, options.engine, clock)
    if not found.fits:
        raise InputError(f"{options.kind}: keeps more activations on a stage than the memory {options.memory} is for")
    return _schedule(found)


def _schedule(found: ScheduleAnswer) -> Schedule:
    """What was found, with the status that the checker gives it."""
    from shardproof.front_door import FrontDoor
    from shardproof.proofs.schedules.file import write_schedule

    data, scale = write_schedule(None, found.certificate()), found.scale
    published = FrontDoor().publish(None, data)
    bound = published.lower_bound
    best = found.found.makespan if found.shorter is None else found.shorter
    closed = published.verdict is Verdict.PROVED and bound is not None and bound >= found.found.makespan
    told = None
    if found.asked is not None:
        told = found.asked.to_json(lambda units: float(Fraction(units, scale)), best)
    return Schedule(
        published,
        data,
        told,
        "optimal" if closed else "refuted" if found.shorter is not None else "feasible",
        tuple(Fraction(int(s), scale) for s in found.found.starts),
        tuple(t.name for t in found.problem.tasks),
        Fraction(found.found.makespan, scale),
        None if bound is None else Fraction(bound, scale),
        None if found.shorter is None else Fraction(found.shorter, scale),
    )


def _sizes(value: Sizes | None, name: str, separator: str, least: int = 1) -> tuple[int, ...]:
    """Integers, as texts of the command line say them."""
    from shardproof.formal.verbs.reduction_options import sizes

    if value is None:
        raise InputError(f'{name} is missing; give for example {name}="{"4x16" if separator == "x" else "0,2"}"')
    text = value if isinstance(value, str) else separator.join(map(str, value))
    return sizes(text, name, separator, least)


def equal(
    single: Callable[[], object] | Path | str,
    distributed: Callable[[int, int], object] | Path | str | None = None,
    *,
    ranks: int | Sequence[int] | None = None,
    grad: bool = False,
    layouts: Path | str | Mapping[str, object] | None = None,
    seed: int = 0,
    plan: Path | str | None = None,
    excess: int = 0,
) -> Equality:
    """Whether what ranks compute is what one device computes: PyTorch or JAX programs, run once without a cluster.

    `single()` and `distributed(rank, ranks)` return what is called and its inputs; `ranks`: 1 to 512.  `distributed`
    may be the path of a plan (.spz) or of the file that `export` made of it for DTensor: `single()` then returns
    (module, example inputs), and `ranks` are the plan's.  Of JAX `distributed(ranks)` returns one program for all
    (docs/howto/equal.md).  Either may be the path of a text, StableHLO (.mlir) or HLO (.hlo, .txt).  `grad`: gradients
    too, of all inputs and parameters that require one.  `layouts`: a JSON file or its object (`shardproof equal
    --help`).  `ranks` may be sizes of a mesh, (64, 8): those at its corners run, and no others (assumption
    `alike-ranks`).  `plan`: the proof is tied to this plan in one file, which says optimal, equal, and that no rank
    receives more bytes than are priced and `excess`; `distributed` is then its exported file, or left out.  Raises
    `InputError` for what cannot be read, naming operator and line.

        w = torch.randn(4, 8)

        def one():
            return lambda x: x @ w.t() @ w, (torch.ones(2, 8),)

        def rows(rank, ranks):
            mine = w.chunk(ranks)[rank].clone()

            def f(x):
                y = x @ mine.t() @ mine
                dist.all_reduce(y)
                return y

            return f, (torch.ones(2, 8),)

        shardproof.equal(one, rows, ranks=2).answer  # 'equal'
    """
    from shardproof.formal.equality.job import Given, ask_any, prove_tied
    from shardproof.formal.equality.request import describe, look
    from shardproof.front_door import FrontDoor

    number, alike = (ranks, ()) if ranks is None or isinstance(ranks, int) else (None, tuple(ranks))
    given = Given(number, grad, layouts, alike, plan, excess)
    question, tie = ask_any(single, distributed, given, FrontDoor())
    found = look(question, seed)
    where = describe(question)["inputs"], describe(question)["outputs"]
    if found is not None:
        return Equality("different", found.reason, found.output, found.rank, found.line, found.numbers, *where, (), b"")
    if tie is not None and (more := tie.too_much(question.pair())):
        return Equality("undecided", more, "", None, "", None, *where, (), b"")
    data, published = prove_tied(question, tie, lambda data: FrontDoor().publish(None, data))
    proved = published.verdict is Verdict.PROVED and not question.doubt
    return Equality(
        *("equal" if proved else "undecided", "" if proved else question.doubt or published.reason, "", None, "", None),
        *(*where, tuple(published.assumptions), data),
        question.rounding() if proved else None,
    )


def assert_equal_on_mesh(
    single: Callable[[], object],
    distributed: Callable[[int, int], object],
    mesh: int | Sequence[int],
    *,
    grad: bool | None = None,
    layouts: Path | str | Mapping[str, object] | None = None,
) -> None:
    """For tests: `AssertionError` unless `distributed` is proved to compute what `single` does, on as many ranks as a
    mesh of these sizes has; the message names tensor, rank, line and numbers.  `grad`: of PyTorch programs, unless
    said otherwise.

        def test_my_layer():
            shardproof.assert_equal_on_mesh(single, parallel, (2, 4))
    """
    from shardproof.models.sources.jax.importer import is_jax

    grad = not is_jax(single) if grad is None else grad
    found = equal(single, distributed, ranks=mesh if isinstance(mesh, int) else prod(mesh), grad=grad, layouts=layouts)
    if not found:
        raise AssertionError(str(found))
