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

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from fractions import Fraction
from typing import Final

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


@dataclass(frozen=True)
class Sayable:
    """What a framework is told: its `source` in messages, whether contexts are split (`context`), whether sequences are
    split where tensors are (`split`), and which stages of ZeRO it has; `whole`: the stages are of copies alone, where
    nothing else is split, so that 0 is said only then; `serves`: it has no training steps; `tensor`: whether it is told
    to split tensors.
    """

    source: str
    context: bool
    split: tuple[bool, ...]
    stages: tuple[int, ...]
    whole: bool = False
    serves: bool = False
    tensor: bool = True


FRAMEWORKS: Final[Mapping[str, Sayable]] = {
    "megatron": Sayable("Megatron", True, (False, True), (0, 1, 3)),
    "nemo": Sayable("NeMo", True, (False, True), (0, 1, 3)),
    "torchtitan": Sayable("torchtitan", True, (True,), (0, 2, 3), whole=True),
    "nanotron": Sayable("nanotron", False, (False, True), (0, 1)),
    "accelerate": Sayable("accelerate", True, (False,), (0, 2, 3), whole=True),
    "axolotl": Sayable("axolotl", False, (False,), (0, 2, 3), whole=True),
    "hf": Sayable("Hugging Face's Trainer", True, (False,), (0, 2, 3), whole=True),
    "deepspeed": Sayable("DeepSpeed", False, (False,), (0, 1, 2, 3), tensor=False),
    "maxtext": Sayable("MaxText", True, (True,), (0, 3)),
    "vllm": Sayable("vLLM", False, (False,), (0,), serves=True),
    "sglang": Sayable("SGLang", False, (False,), (0,), serves=True),
}
"""Target of `export` -> what it can be told; sequences are split by MaxText's `tensor_sequence` axis, and by
torchtitan's Llama wherever tensors are."""


def settings(framework: str, devices: int, trained: bool) -> Iterator[Flags]:
    """Degrees to consider, those of the fewest ways first.  Stage 1 stands for any that the framework has above 0, and
    is made exact by what the completion shards.

    >>> [(f.tp, f.cp, f.sequence_parallel) for f in settings("megatron", 2, False)]
    [(1, 1, False), (1, 2, False), (2, 1, False), (2, 1, True)]
    >>> [(f.tp, f.cp, f.zero) for f in settings("axolotl", 2, True)]
    [(1, 1, 0), (1, 1, 1), (2, 1, 1)]
    """
    ways = [d for d in range(1, devices + 1) if devices % d == 0]
    known = FRAMEWORKS[framework]
    for tp in ways if known.tensor else ways[:1]:
        for cp in (d for d in ways if devices % (tp * d) == 0):
            if cp > 1 and not known.context:
                continue
            for split in known.split if tp > 1 else (False,):
                plain = not known.whole or tp * cp == 1
                for zero in (0, 1) if trained and plain else (1,) if trained else (0,):
                    yield Flags(known.source, tp=tp, cp=cp, sequence_parallel=split, zero=zero)


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
        return [], [(framework, f"{graph.name} has no attention, and {framework} takes transformers")]
    if FRAMEWORKS[framework].serves and graph.state:
        return [], [(framework, f"{framework} serves models: plan a forward pass, without --train")]
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
        stage = 0 if x is None or not flags.zero else _stage(planning, x, FRAMEWORKS[framework].stages)
        if stage is None:
            excluded.append((words(flags), f"its cheapest completion shards what no setting of {framework} shards"))
            continue
        own = replace(flags, zero=stage or flags.zero)
        found.append(Setting(own, answer.cost, answer.lower_bound, x, small.inner, answer.certificate))
    found.sort(key=lambda s: (s.cost is None, s.cost or 0, s.flags.tp * s.flags.cp))
    return found, excluded


def _stage(planning: Planning, x: tuple[int, ...], stages: tuple[int, ...]) -> int | None:
    """What the completion shards over the copies, as a stage of ZeRO that the framework has; None where it has none."""
    schemes = {s.scheme for s in stored_state(planning, x)}
    if any("ZeRO-3" in s for s in schemes):
        return 3 if 3 in stages else None
    return next((s for s in stages if s in (1, 2)), None)


def words(flags: Flags) -> str:
    """A setting in one line.

    >>> words(Flags("Megatron", tp=4, sequence_parallel=True, zero=1))
    'tp 4 with split sequences, cp 1, state sharded over copies'
    """
    split = " with split sequences" if flags.sequence_parallel else ""
    return f"tp {flags.tp}{split}, cp {flags.cp}" + (", state sharded over copies" if flags.zero else "")
