r"""Finds the settings of another framework that come nearest to a plan.

A framework is told degrees: tensor, context and data parallel ways, whether sequences are split where tensors are
whole, what the copies shard.  Every setting that fits the machine decides the operators of the forward pass
(`models.sources.frameworks.placements`); what it leaves open (gradients, the optimizer, where weights are stored) the
solver completes in the framework's favour.  With c_i the least cost of setting i and b_i <= c_i its proved bound:

    nearest    the setting of the least completion found, c = min c_i
    bound      no setting that was considered costs less than b = min b_i

Settings that do not fit (degrees that divide neither batch nor heads, placements outside the space, memory) are
excluded with their reason; one that time did not suffice for counts with the bound of the whole space.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from fractions import Fraction

from ...models.cost.selection import Planning
from ...models.layout.placement import SpaceError
from ...models.layout.targets.degrees import Flags
from ...models.problem.claims import Status, Verdict
from ...models.problem.selection_problem import SelectionProblem
from ...models.sources.frameworks.roles import roles
from ...models.text import InputError
from ...proofs.plan.bundle import Plan
from ...proofs.publishing.publisher import Nearest, Opened, Publisher
from ...proofs.selection.certificates import SelectionCertificate
from ...proofs.selection.file import write_certificate
from ..plans.frameworks import strategy_of_flags
from ..plans.strategy import StrategyError, resolve
from ..selection.model.clock import Clock, Progress
from ..selection.model.restrict import restrict
from ..selection.solve import solve
from .request import problem_of
from .stored_state import stored_state


@dataclass(frozen=True, eq=False)
class Setting:
    """A setting's least completion: `cost` None where none was found, `bound` None where none was proved.
    `certificate` is about `restricted`, the problem with the setting's choices only.
    """

    flags: Flags
    cost: int | None
    bound: int | None
    solution: tuple[int, ...] | None
    restricted: SelectionProblem
    certificate: SelectionCertificate | None


def settings(framework: str, devices: int, trained: bool) -> Iterator[Flags]:
    """Degrees to consider, those of the fewest ways first.  Splitting sequences is a choice of Megatron's, and what
    torchtitan's Llama does wherever tensors are split; torchtitan shards over the copies or has copies alone.

    >>> [(f.tp, f.cp, f.sequence_parallel) for f in settings("megatron", 2, False)]
    [(1, 1, False), (1, 2, False), (2, 1, False), (2, 1, True)]
    """
    ways = [d for d in range(1, devices + 1) if devices % d == 0]
    source = {"megatron": "Megatron", "torchtitan": "torchtitan"}[framework]
    for tp in ways:
        for cp in (d for d in ways if devices % (tp * d) == 0):
            for split in (False, True) if tp > 1 else (False,):
                if framework == "torchtitan" and split != (tp > 1):
                    continue
                plain = framework == "megatron" or tp * cp == 1
                for zero in (0, 1) if trained and plain else (1,) if trained else (0,):
                    yield Flags(source, tp=tp, cp=cp, sequence_parallel=split, zero=zero)


def nearest_settings(publisher: Publisher, found: Opened, framework: str, clock: Clock) -> Nearest:
    """The settings nearest to a checked plan, with the certificates of all of them checked.  Raises `InputError` for a
    plan with parts that settings are not compared with, and where none fits.
    """
    plan = found.held
    if not isinstance(plan, Plan) or plan.joint is not None:
        raise InputError(
            f"{found.place}: settings are compared with plans of one program on the whole machine; plan its model "
            "without --joint, --submeshes, --overlap and --pipeline"
        )
    cost, least = found.seconds
    planning, _ = problem_of(found, plan)
    tried, excluded = nearest(planning, framework, clock)
    proved = []
    for s in tried:
        known = s.certificate is not None and (
            publisher.publish(None, write_certificate(None, s.certificate), s.restricted).verdict is Verdict.PROVED
        )
        proved.append(max(least, Fraction(s.bound or 0, found.scale)) if known else least)
    best = next((s for s in tried if s.cost is not None), None)
    if best is None or best.cost is None:
        why = "; ".join(f"{setting}: {reason}" for setting, reason in excluded[:3])
        raise InputError(f"{plan.graph.name}: no settings of {framework} fit the plan's model and machine ({why})")
    own = Fraction(best.cost, found.scale), min(proved)
    return Nearest(framework, best.flags, plan, found.identity, (cost, least), own, len(tried), tuple(excluded))


def nearest(
    planning: Planning, framework: str, clock: Clock, progress: Progress | None = None
) -> tuple[list[Setting], list[tuple[str, str]]]:
    """Settings with their least completions, the cheapest first, and those that were excluded, with the reason."""
    graph, machine, problem = planning.graph, planning.machine, planning.problem
    found: list[Setting] = []
    excluded: list[tuple[str, str]] = []
    devices = 1
    for size in machine.hierarchy:
        devices *= size
    if not roles(graph).layers:
        return [], [(framework, f"{graph.name} has no attention, and {framework} trains transformers")]
    wanted = list(settings(framework, devices, bool(graph.state)))
    seen: set[tuple[tuple[int, tuple[int, ...]], ...]] = set()
    for n, flags in enumerate(wanted):
        try:
            allowed = resolve(strategy_of_flags(flags, graph, machine), planning).allowed
        except (SpaceError, StrategyError, InputError) as error:
            excluded.append((words(flags), str(error)[:200]))
            continue
        key = tuple(sorted(allowed.items()))
        if key in seen:
            continue
        seen.add(key)
        if clock.over():
            excluded.append((words(flags), "no time was left for it"))
            found.append(Setting(flags, None, None, None, problem, None))
            continue
        small = restrict(problem, allowed)
        answer = solve(small.inner, clock=clock.share(1 / (len(wanted) - n)), progress=progress)
        if answer.status is Status.INFEASIBLE:
            excluded.append((words(flags), "proved not to fit the memory"))
            continue
        x = None if answer.solution is None else small.solution_back(answer.solution)
        own = flags if x is None or not flags.zero else replace(flags, zero=_stage(planning, x, framework))
        found.append(Setting(own, answer.cost, answer.lower_bound, x, small.inner, answer.certificate))
    found.sort(key=lambda s: (s.cost is None, s.cost or 0, s.flags.tp * s.flags.cp))
    return found, excluded


def _stage(planning: Planning, x: tuple[int, ...], framework: str) -> int:
    """What the completion shards over the copies, as a stage of ZeRO."""
    schemes = {s.scheme for s in stored_state(planning, x)}
    if any("ZeRO-3" in s for s in schemes):
        return 3
    return 2 if framework == "torchtitan" else 1


def words(flags: Flags) -> str:
    """A setting in one line.

    >>> words(Flags("Megatron", tp=4, sequence_parallel=True, zero=1))
    'tp 4 with split sequences, cp 1, state sharded over copies'
    """
    split = " with split sequences" if flags.sequence_parallel else ""
    return f"tp {flags.tp}{split}, cp {flags.cp}" + (", state sharded over copies" if flags.zero else "")
