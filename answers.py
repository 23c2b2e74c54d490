"""What the Python way in hands back: a checked plan, what it computed, and why there is none."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from fractions import Fraction
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Literal

from shardproof.limits import Limit, clock_of
from shardproof.models.communication.shardings import PlanShardings, plan_shardings
from shardproof.models.layout.placement import Placement
from shardproof.models.layout.sharding import Sharding
from shardproof.models.layout.submesh import Submesh
from shardproof.models.machine.machine import Machine
from shardproof.models.program.graph import Graph
from shardproof.models.text import InputError
from shardproof.proofs.pipelines.certificate import PipelineCertificate
from shardproof.proofs.plan.bundle import Plan as Bundle
from shardproof.proofs.publishing.placed import placed_plan

if TYPE_CHECKING:
    from shardproof.backends.execution.trainer import Trainer
    from shardproof.backends.kernels.blocks import Array
    from shardproof.formal.explain.compare import Comparison
    from shardproof.formal.explain.constraints import Constraints
    from shardproof.formal.explain.cost_table import CostRow
    from shardproof.formal.explain.deviation import Deviation
    from shardproof.formal.explain.differing import Differing
    from shardproof.formal.explain.explain import Explanation
    from shardproof.formal.explain.parallel_graph import PricedGraph
    from shardproof.formal.explain.sensitivity import Sensitivity
    from shardproof.formal.explain.stored_state import StoredState
    from shardproof.formal.explain.views import Branches
    from shardproof.formal.plans.overlap.explain import OverlapReport
    from shardproof.formal.plans.pipelines.explain import PipelineReport
    from shardproof.models.cost.selection import Planning
    from shardproof.proofs.publishing.publisher import Among, AnyPlan, Opened
    from shardproof.verify.verbs.kinds import Judged


Backend = Literal["numpy", "numba", "torch"]

Status = Literal["optimal", "within-gap", "feasible", "infeasible"]


class NoPlan(ValueError):
    """No plan was found.  `infeasible`: the checker has confirmed that none fits (file `proof`); else time was over."""

    def __init__(self, message: str, infeasible: bool, proof: bytes | None = None) -> None:
        super().__init__(message)
        self.infeasible, self.proof = infeasible, proof


@dataclass(frozen=True, eq=False)
class Plan:
    """A checked plan, whatever its parts: placements on the machine or on submeshes, a rewritten program, stages and
    micro-batches, reshardings beside operators.  `opened`: what its file holds and what the checker said of it.

    >>> made = plan("mlp-unity", "localhost:4", batch=64)
    >>> made.status, made.cost_s == made.lower_bound_s
    ('optimal', True)
    >>> print(made.layouts["fc1.weight"])
    [*, ranks]
    """

    opened: Opened

    @property
    def certificate(self) -> AnyPlan:
        """What the file holds."""
        return self.opened.held

    @property
    def bundle(self) -> Bundle:
        """Graph, machine and choices alone.  Raises `InputError` for a plan with stages, which have choices each."""
        held = self.opened.held
        if isinstance(held, PipelineCertificate):
            raise InputError(f"{self.opened.place}: a plan with stages has placements of every stage: see stages")
        return placed_plan(held)

    @property
    def identity(self) -> str:
        """Hash of the content, the same for the same plan whoever made the file."""
        return self.opened.identity

    @property
    def graph(self) -> Graph:
        """The graph that was planned, with the training step if there is one."""
        return self.opened.held.graph

    @property
    def machine(self) -> Machine:
        """The machine that it was planned for."""
        return self.opened.held.machine

    @property
    def space(self) -> str:
        """The set of placements over which the plan is (nearly) the cheapest."""
        return self.opened.held.space

    @property
    def parts(self) -> str:
        """What the plan has beside placements, in words."""
        from shardproof.proofs.publishing.placed import parts_of

        return parts_of(self.opened.held)

    @property
    def assumptions(self) -> tuple[str, ...]:
        """What the claim takes for granted, by name."""
        return self.opened.published.assumptions

    @property
    def status(self) -> Status:
        """What is proved of the cost."""
        cost, bound = self.opened.published.cost, self.opened.published.lower_bound
        if cost is None:
            return "infeasible"
        if bound is None:
            return "feasible"
        return "optimal" if bound >= cost else "within-gap"

    @property
    def cost_s(self) -> Fraction:
        """Seconds of a step, exact.  Raises `InputError` where nothing fits."""
        return self.opened.seconds[0]

    @property
    def step_s(self) -> Fraction:
        """The same."""
        return self.cost_s

    @property
    def lower_bound_s(self) -> Fraction | None:
        """Seconds that no plan that the claim is about goes below, as the checker established; None: nothing finite."""
        return None if self.opened.published.lower_bound is None else self.opened.seconds[1]

    @property
    def among(self) -> tuple[Among, ...]:
        """Of a plan that is the best of several: each of them, with its step and bound.

        >>> step = plan("mlp-unity", "localhost:2", batch=16, joint=True, overlap=True, work_limit=4_000_000)
        >>> min(one.step for one in step.among) == step.step_s, len(step.among) > 1
        (True, True)
        """
        return self.opened.published.among

    @property
    def placements(self) -> Mapping[str, Placement]:
        """Operator -> placement matrix, on the machine, its stage or its submesh."""
        from shardproof.formal.explain.differing import placement_table

        return {name: placement for name, (placement, _) in placement_table(self.opened.held).items()}

    @property
    def views(self) -> Mapping[str, Submesh | None]:
        """Operator -> the submesh that it runs on; None: the whole machine, or its stage."""
        return {name: placement.view for name, placement in self.placements.items()}

    @property
    def stages(self) -> tuple[Mapping[str, Placement], ...]:
        """Of every stage (virtual stage, where stages have several) operator -> placement matrix; none without
        stages.
        """
        held = self.opened.held
        stages = held.stages if isinstance(held, PipelineCertificate) else ()
        return tuple(dict(stage.choices.operators) for stage in stages)

    @property
    def micro_batches(self) -> int:
        """Equal parts of the batch that go through the stages; 1 without stages."""
        held = self.opened.held
        return held.micro if isinstance(held, PipelineCertificate) else 1

    @cached_property
    def shardings(self) -> PlanShardings:
        """All layouts over one mesh of named dimensions: what operators read and write, where tensors rest.  Raises
        `MeshError` if no mesh holds them, `InputError` for a plan with stages.
        """
        levels = [level.name for level in self.machine.levels]
        return plan_shardings(self.graph, self.machine.hierarchy, levels, self.bundle.choices)

    @property
    def layouts(self) -> Mapping[str, Sharding]:
        """Tensor -> where it rests: mesh dimensions per dimension of the tensor, and those it is partial over."""
        return self.shardings.rests

    def check(self) -> Judged[object]:
        """Check every claim again, from the bytes: tables rebuilt, certificates replayed."""
        from shardproof.proofs.container.archive import read_container
        from shardproof.verify.verbs.kinds import Effort, require_known

        members = read_container(self.opened.data)
        return require_known(members, self.opened.place).judge(members, Effort(), {})

    def explain(
        self, operator: str | None = None, time_limit_s: Limit = "default", work_limit: int | None = None
    ) -> Explanation | PipelineReport | OverlapReport | Branches:
        """Where the time goes and what other choices would cost; exactly, for one `operator` of a plan of placements
        alone.  Of stages, streams and branches what each of them does.
        """
        from shardproof.formal.explain.explain import explain
        from shardproof.formal.report.explained import explain_parts

        if self.opened.planning is None:
            if operator is not None:
                raise InputError(f"{self.opened.place}: has {self.parts}, and is explained as a whole")
            return explain_parts(self.opened).report
        clock = clock_of(time_limit_s, work_limit)
        return explain(self._planning, self._solution, self._alone.certificate, operator, clock=clock)

    def instead(
        self, operator: str, placement: str, time_limit_s: Limit = "default", work_limit: int | None = None
    ) -> Deviation:
        """The best plan in which an operator is placed as told (`"b over nodes, h over 2 of gpus"`), against this."""
        from shardproof.formal.explain.deviation import best_with
        from shardproof.formal.plans.strategy import parse_config

        config = parse_config(placement, tuple(level.name for level in self.machine.levels))
        return best_with(self._planning, self._solution, operator, config, clock_of(time_limit_s, work_limit))

    def ranks(self, operator: str) -> Constraints:
        """What each rank reads and writes at an operator, as formulas in the process coordinates."""
        from shardproof.formal.explain.constraints import plan_constraints

        return plan_constraints(self._alone, operator)

    def state(self) -> tuple[StoredState, ...]:
        """How a training step keeps weights, gradients and moments, and what synchronises them."""
        from shardproof.formal.explain.stored_state import stored_state

        return stored_state(self._planning, self._solution)

    def costs(self) -> tuple[CostRow, ...]:
        """Flops, bytes and the formula that decides, of every operator."""
        from shardproof.formal.explain.cost_table import cost_table

        return cost_table(self._planning, self._solution)

    def parallel_graph(self) -> PricedGraph:
        """The program with partitions, combines, replications and reductions between its operators, priced."""
        from shardproof.formal.explain.parallel_graph import priced_graph

        return priced_graph(self._planning, self._solution)

    def sensitivity(self, time_limit_s: Limit = "default", work_limit: int | None = None) -> Sensitivity:
        """How far each machine constant may move before another plan wins."""
        from shardproof.formal.explain.elsewhere import all_programs
        from shardproof.formal.explain.sensitivity import sensitivity

        if self.among:
            raise InputError(f"{self.opened.place}: is the best of several plans, whose proofs are of several problems")
        plan = self._alone
        subject, x = (self._planning, self._solution) if plan.joint is None else all_programs(plan)
        return sensitivity(subject, x, plan.certificate, clock=clock_of(time_limit_s, work_limit, 300.0))

    def diff(self, other: Plan) -> Comparison | Differing:
        """Every term in which the two plans differ, priced.  Of plans that do not answer one problem of placements
        (stages, streams, submeshes, rewritten programs, other spaces and limits): what a step takes, and every operator
        that is placed otherwise.  Raises `InputError` for another model or machine.
        """
        from shardproof.formal.explain.compare import compare
        from shardproof.formal.explain.differing import differing
        from shardproof.formal.explain.terms import PlanTerms

        if self.opened.planning is None or other.opened.planning is None:
            return differing(self.opened, other.opened)
        if self._planning.problem.sha256() != other._planning.problem.sha256():
            return differing(self.opened, other.opened)
        return compare(self._planning.problem, PlanTerms(self._planning), self._solution, other._solution)

    def report(
        self, path: Path | str | None = None, time_limit_s: Limit = "default", work_limit: int | None = None
    ) -> str:
        """One page of HTML that loads nothing: placements, memory, communication, prices, certificate; stages, streams
        and branches with their schedule.  Written to `path` if there is one.
        """
        from shardproof.formal.explain.explain import explain
        from shardproof.formal.plans.remarks import remarks
        from shardproof.formal.report.page import PageSubject, plan_page
        from shardproof.formal.report.parts import parts_page
        from shardproof.models.files.output import check_target, write_file

        target = None if path is None else check_target(Path(path), force=True, replaces_results=True)
        if self.opened.planning is None:
            page = parts_page(self.opened)
        else:
            said = remarks(self._planning, self._solution, clock=clock_of(time_limit_s, work_limit))
            clock = clock_of(time_limit_s, work_limit)
            found = explain(self._planning, self._solution, self._alone.certificate, clock=clock)
            page = plan_page(PageSubject(self._alone, self.opened.published, found, said))
        if target is not None:
            write_file(target, page.encode())
        return page

    def export(self, to: str, layouts_only: bool = False) -> str:
        """The text of a file that lays a job out as planned, for one of the targets of `shardproof export --to`: of
        megatron, nemo and their like the settings that come nearest (300 seconds to find them).  `layouts_only`:
        nothing but where tensors lie; otherwise a plan that a target cannot do is an `InputError`.
        """
        from shardproof.backends.export.flags import batch_of
        from shardproof.backends.verbs.export import SETTINGS, TARGETS, layouts_text
        from shardproof.front_door import FrontDoor

        if to in SETTINGS and layouts_only:
            raise InputError(f"{to} files hold settings, no layouts of tensors: leave out layouts_only")
        if to in SETTINGS:
            return SETTINGS[to](FrontDoor().nearest(self.opened, to, None), batch_of(self.graph))
        if to not in TARGETS:
            raise InputError(f"there is no export to {to!r}; choose one of {', '.join((*TARGETS, *SETTINGS))}")
        return layouts_text(self.opened, to, layouts_only).text

    def run(self, seed: int = 0, timeout_s: float = 600.0, backend: Backend = "numpy") -> Run:
        """Execute the plan on virtual ranks, with random inputs, and compare with one process.  `backend`: "numpy",
        "numba" or "torch" computes.  Raises `InputError` where PyTorch is asked for and not installed."""
        from shardproof.backends.execution.any_plan import execute
        from shardproof.backends.execution.comparison import tolerance_of
        from shardproof.backends.execution.conditioning import compare
        from shardproof.backends.execution.consent import check_consent
        from shardproof.backends.execution.libraries import check_library
        from shardproof.backends.execution.reference import random_inputs, run_graph

        held, graph = self.opened.held, self.opened.user_graph
        check_library(backend)
        check_consent(self.graph)
        arrays = random_inputs(graph, seed, "float64")
        ended = execute(held, self.opened.scale, arrays, timeout_s, backend)
        found = compare(graph, arrays, ended.outputs, run_graph(graph, arrays), tolerance_of(["float64"]))
        undetermined = tuple(name for name, _, _ in found.undetermined)
        moved = len(ended.traffic)
        return Run(ended.outputs, found.worst, found.equal, moved, ended.mismatches, undetermined)

    def trainer(
        self,
        data: str | Path | Callable[[int], Mapping[str, Array]] | None = None,
        *,
        seed: int = 0,
        dtype: Literal["float64", "float32", "own"] | None = None,
        inputs: Path | str | None = None,
        resume: Path | str | None = None,
        timeout_s: float = 600.0,
        backend: Backend = "numpy",
    ) -> Trainer:
        """Steps of the plan one after another on virtual ranks in this process, which keep parameters and moments.
        `data`: an `.npz` file or a folder of `.npy` with a leading axis of steps, FILE.py:NAME, or a function of the
        step's number, from 1, that gives {input: array}; None: drawn from seed and number.  `dtype`: of reals (own: of
        every tensor; None: as `run` does); `inputs`: an `.npz` with the parameters to begin with; `resume`: a folder
        that `save` wrote, under this or another plan of the model, whose seed and dtype are taken; `backend`:
        see `run`.

        Raises `InputError` for a plan without a training step, data or a state that does not fit, and where PyTorch is
        asked for and not installed.

        >>> trained = plan("mlp-unity", "localhost:2", batch=16, train="adam").trainer()
        >>> losses = [trained.step().loss for _ in range(3)]
        >>> trained.step_number, trained.state()["fc1.weight"].shape
        (3, (784, 512))
        """
        from shardproof.backends.execution.consent import check_consent
        from shardproof.backends.execution.job import Options
        from shardproof.backends.execution.repeatable import repeatable
        from shardproof.backends.execution.trainer import Trainer
        from shardproof.backends.execution.training_run import begin

        check_consent(self.graph)
        begun = begin(
            self.opened,
            self.opened.place,
            seed=seed,
            numbers=dtype,
            data="" if data is None or callable(data) else str(data),
            make=data if callable(data) else None,
            inputs=None if inputs is None else Path(inputs),
            resume=None if resume is None else Path(resume),
        )
        held, scale = self.opened.held, self.opened.scale
        options = Options(backend=backend, stored=begun.has_graph_types)
        return Trainer(repeatable(held, scale, options), begun, timeout_s)

    def save(self, path: Path | str, force: bool = False) -> None:
        """Write the `.spz` file.  Raises `OutputError` where something else than a plan stands, unless `force`."""
        from shardproof.models.files.output import check_target, write_file

        target = check_target(Path(path), force=force, replaces_results=True)
        write_file(target, self.opened.data)

    def __repr__(self) -> str:
        gap = ""
        if self.lower_bound_s is not None and self.status == "within-gap":
            gap = f" ({float(1 - self.lower_bound_s / self.cost_s):.3%})"
        step = "nothing fits" if self.status == "infeasible" else f"{float(self.cost_s):.6g} s, {self.status}{gap}"
        parts = f", {self.parts}" if self.opened.planning is None else ""
        return (
            f"<Plan {self.graph.name} on {self.machine.name} {'x'.join(map(str, self.machine.hierarchy))}{parts}: "
            f"{step}, {self.identity[:12]}>"
        )

    def _repr_html_(self) -> str:
        """What a notebook shows."""
        from shardproof.formal.report.notebook import plan_view

        return plan_view(self.machine, self.placements, repr(self)[1:-1])

    @property
    def _alone(self) -> Bundle:
        """The plan where it is one of placements alone.  Raises `InputError`."""
        held = self.opened.held
        if not isinstance(held, Bundle):
            raise InputError(f"{self.opened.place}: has {self.parts}; this is said of plans of placements alone")
        return held

    @property
    def _planning(self) -> Planning:
        from shardproof.formal.explain.request import problem_of

        return problem_of(self.opened, self._alone)[0]

    @property
    def _solution(self) -> tuple[int, ...]:
        return self._planning.solution(self._alone.choices)


Pipeline = PlanWithViews = Plan
"""Names of before plans had parts."""


@dataclass(frozen=True, eq=False)
class Run:
    """What a plan computed on as many ranks as it has devices.  `difference`: the largest from one process, relative;
    `equal`: no more than rounding explains; `mismatched`: those of its `movements` that sent more than is priced;
    `undetermined`: results that rounding decides in one process, too, left out of `difference`.
    """

    outputs: Mapping[str, Array]
    difference: float
    equal: bool
    movements: int
    mismatched: tuple[str, ...]
    undetermined: tuple[str, ...] = ()
