"""What the Python way in hands back: checked plans, and why there is none."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from fractions import Fraction
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Literal

from shardproof.models.communication.shardings import PlanShardings, plan_shardings
from shardproof.models.layout.placement import Placement
from shardproof.models.layout.sharding import Sharding
from shardproof.models.layout.view import View
from shardproof.models.machine.machine import Machine
from shardproof.models.program.graph import Graph
from shardproof.models.text import InputError
from shardproof.proofs.plan.bundle import Plan as Bundle
from shardproof.proofs.plan.bundle import write_plan

if TYPE_CHECKING:
    from shardproof.backends.kernels.blocks import Array
    from shardproof.formal.explain.compare import Comparison
    from shardproof.formal.explain.constraints import Constraints
    from shardproof.formal.explain.cost_table import CostRow
    from shardproof.formal.explain.deviation import Deviation
    from shardproof.formal.explain.explain import Explanation
    from shardproof.formal.explain.parallel_graph import PricedGraph
    from shardproof.formal.explain.sensitivity import Sensitivity
    from shardproof.formal.explain.stored_state import StoredState
    from shardproof.formal.pipelines.explain import PipelineReport
    from shardproof.formal.selection.model.clock import Clock
    from shardproof.models.cost.selection import Planning
    from shardproof.proofs.pipelines.certificate import PipelineCertificate
    from shardproof.proofs.views.certificate import ViewsCertificate
    from shardproof.verify.plan.plan import PlanCheck
    from shardproof.verify.verdict import CheckResult


Limit = float | Literal["default"] | None
"""Seconds of the wall; None: any number; "default": those of the function, and none where steps of work are given."""


class NoPlan(ValueError):
    """No plan was found.  `infeasible`: the checker has confirmed that none fits; otherwise the time was over."""

    def __init__(self, message: str, infeasible: bool) -> None:
        super().__init__(message)
        self.infeasible = infeasible


@dataclass(frozen=True, eq=False)
class Plan:
    """A checked plan.  `bundle` is what its file holds: graph, machine, choices, certificate.

    >>> made = plan("mlp-unity", "localhost:4", batch=64)
    >>> made.status, made.cost_s == made.lower_bound_s
    ('optimal', True)
    >>> print(made.layouts["fc1.weight"])
    [*, ranks]
    """

    bundle: Bundle
    checked: PlanCheck

    @property
    def identity(self) -> str:
        """Hash of the content, the same for the same plan whoever made the file."""
        return self.checked.identity

    @property
    def graph(self) -> Graph:
        """The graph that was planned, with the training step if there is one."""
        return self.bundle.graph

    @property
    def machine(self) -> Machine:
        """The machine that it was planned for."""
        return self.bundle.machine

    @property
    def space(self) -> str:
        """The set of placements over which the plan is (nearly) the cheapest."""
        return self.bundle.space

    @property
    def assumptions(self) -> tuple[str, ...]:
        """What the claim takes for granted, by name."""
        return self._main.assumptions

    @property
    def status(self) -> Literal["optimal", "within-gap", "feasible"]:
        """What is proved of the cost."""
        cost, bound = self._main.cost, self._main.lower_bound
        if bound is None or cost is None:
            return "feasible"
        return "optimal" if bound >= cost else "within-gap"

    @property
    def cost_s(self) -> Fraction:
        """Seconds of a step, exact."""
        problem = self._planning.problem
        return Fraction(problem.cost_of(self._solution), problem.scale)

    @property
    def lower_bound_s(self) -> Fraction | None:
        """Seconds that no plan of the space goes below, as the checker established; None: nothing finite."""
        cost, bound = self._main.cost, self._main.lower_bound  # of a joint plan in units of its own
        return None if bound is None or not cost else self.cost_s * Fraction(bound, cost)

    @property
    def placements(self) -> Mapping[str, Placement]:
        """Operator -> placement matrix."""
        return dict(self.bundle.choices.operators)

    @cached_property
    def shardings(self) -> PlanShardings:
        """All layouts over one mesh of named dimensions: what operators read and write, where tensors rest.  Raises
        `MeshError` if no mesh holds them.
        """
        levels = [level.name for level in self.machine.levels]
        return plan_shardings(self.graph, self.machine.hierarchy, levels, self.bundle.choices)

    @property
    def layouts(self) -> Mapping[str, Sharding]:
        """Tensor -> where it rests: mesh dimensions per dimension of the tensor, and those it is partial over."""
        return self.shardings.rests

    def check(self) -> PlanCheck:
        """Check every claim again, from the bytes: tables rebuilt, certificate replayed."""
        from shardproof.verify.joint.plan import check_any_plan

        return check_any_plan(write_plan(None, self.bundle))

    def explain(
        self, operator: str | None = None, time_limit_s: Limit = "default", work_limit: int | None = None
    ) -> Explanation:
        """Where the time goes and what other choices would cost; exactly, for one `operator`."""
        from shardproof.formal.explain.explain import explain

        clock = _clock(time_limit_s, work_limit)
        return explain(self._planning, self._solution, self.bundle.certificate, operator, clock=clock)

    def instead(
        self, operator: str, placement: str, time_limit_s: Limit = "default", work_limit: int | None = None
    ) -> Deviation:
        """The best plan in which an operator is placed as told (`"b over nodes, h over 2 of gpus"`), against this."""
        from shardproof.formal.explain.deviation import forced
        from shardproof.formal.planning.strategy import parse_config

        config = parse_config(placement, tuple(level.name for level in self.machine.levels))
        return forced(self._planning, self._solution, operator, config, _clock(time_limit_s, work_limit))

    def ranks(self, operator: str) -> Constraints:
        """What each rank reads and writes at an operator, as formulas in the process coordinates."""
        from shardproof.formal.explain.constraints import plan_constraints

        return plan_constraints(self.bundle, operator)

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
        from shardproof.formal.explain.sensitivity import sensitivity

        return sensitivity(
            self._planning, self._solution, self.bundle.certificate, clock=_clock(time_limit_s, work_limit, 300.0)
        )

    def diff(self, other: Plan) -> Comparison:
        """Every term in which the two plans differ, priced.  Raises `InputError` if they answer different problems."""
        from shardproof.formal.explain.compare import compare
        from shardproof.formal.explain.terms import PlanTerms

        if self._planning.problem.sha256() != other._planning.problem.sha256():
            raise InputError("the plans are of different problems (model, machine, space or limit): nothing to compare")
        ours, theirs = (p._planning.solution(p.bundle.choices) for p in (self, other))
        return compare(self._planning.problem, PlanTerms(self._planning), ours, theirs)

    def report(
        self, path: Path | str | None = None, time_limit_s: Limit = "default", work_limit: int | None = None
    ) -> str:
        """One page of HTML that loads nothing: placements, memory, communication, prices, certificate.  Written to
        `path` if there is one.
        """
        from shardproof.formal.planning.remarks import remarks
        from shardproof.formal.report.page import Shown, plan_page
        from shardproof.front_door import FrontDoor
        from shardproof.models.files.output import check_target, write_file

        target = None if path is None else check_target(Path(path), force=True, replaces_results=True)
        published = FrontDoor().plan(None, self.bundle)
        said = remarks(self._planning, self._solution, clock=_clock(time_limit_s, work_limit))
        page = plan_page(Shown(self.bundle, published, self.explain(None, time_limit_s, work_limit), said))
        if target is not None:
            write_file(target, page.encode())
        return page

    def export(self, to: str, layouts_only: bool = False) -> str:
        """The text of a file that lays a job out as planned, for one of the targets of `shardproof export --to`: of
        megatron and torchtitan the settings that come nearest (300 seconds are given to find them).  `layouts_only`:
        nothing but where tensors lie; otherwise a plan that a target cannot do is an `InputError`.
        """
        from shardproof.backends.export.flags import batch_of
        from shardproof.backends.verbs.export import SETTINGS, TARGETS
        from shardproof.front_door import FrontDoor

        if to in SETTINGS and layouts_only:
            raise InputError(f"{to} files hold settings, no layouts of tensors: leave out layouts_only")
        if to in SETTINGS:
            return SETTINGS[to](FrontDoor().nearest_to(self.checked, to, None), batch_of(self.graph))
        if to not in TARGETS:
            raise InputError(f"there is no export to {to!r}; choose one of {', '.join((*TARGETS, *SETTINGS))}")
        return TARGETS[to](self.bundle, self.identity, layouts_only).text

    def run(self, seed: int = 0, timeout_s: float = 600.0) -> Run:
        """Execute the plan on virtual ranks in this process, with random inputs, and compare with one process."""
        return _run(self.bundle, seed, timeout_s)

    def save(self, path: Path | str, force: bool = False) -> None:
        """Write the `.spz` file.  Raises `OutputError` where something else than a plan stands, unless `force`."""
        from shardproof.models.files.output import check_target, write_file

        target = check_target(Path(path), force=force, replaces_results=True)
        write_file(target, write_plan(None, self.bundle))

    def __repr__(self) -> str:
        gap = ""
        if self.lower_bound_s is not None and self.status == "within-gap":
            gap = f" ({float(1 - self.lower_bound_s / self.cost_s):.3%})"
        return (
            f"<Plan {self.graph.name} on {self.machine.name} {'x'.join(map(str, self.machine.hierarchy))}: "
            f"{float(self.cost_s):.6g} s, {self.status}{gap}, {self.identity[:12]}>"
        )

    def _repr_html_(self) -> str:
        """What a notebook shows."""
        from shardproof.formal.report.notebook import plan_view

        return plan_view(self.bundle, repr(self)[1:-1])

    @property
    def _solution(self) -> tuple[int, ...]:
        return self._planning.solution(self.bundle.choices)

    @property
    def _planning(self) -> Planning:
        return self.checked.planning

    @property
    def _main(self) -> CheckResult:
        return next(r for r in self.checked.results if r.kind in ("Optimal", "WithinGap", "LowerBound"))


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


def _clock(seconds: Limit, steps: int | None, default_s: float = 60.0) -> Clock:
    from shardproof.formal.selection.model.clock import budget

    return budget(seconds, steps, default_s)


def _run(bundle: Bundle, seed: int, timeout_s: float) -> Run:
    from shardproof.backends.execution.comparison import allowed
    from shardproof.backends.execution.conditioning import compare
    from shardproof.backends.execution.consent import check_consent
    from shardproof.backends.execution.job import Options, prepared
    from shardproof.backends.execution.reference import random_inputs, run_graph
    from shardproof.backends.execution.run import run_virtual

    check_consent(bundle.graph)
    arrays = random_inputs(bundle.asked, seed, "float64")
    program = prepared(bundle.graph, bundle.machine.hierarchy, bundle.choices, Options())
    ended = run_virtual(program, arrays, timeout_s=timeout_s, trace=True)
    found = compare(bundle.asked, arrays, ended.outputs, run_graph(bundle.asked, arrays), allowed(["float64"]))
    wrong = tuple(t.place for t in ended.traffic if not t.fits)
    undetermined = tuple(name for name, _, _ in found.undetermined)
    return Run(ended.outputs, found.worst, found.equal, len(ended.traffic), wrong, undetermined)


@dataclass(frozen=True, eq=False)
class PlanWithViews:
    """A checked plan whose branches may run beside each other.  `certificate` is what its file holds; `scale`: units
    of its costs in a second; times in seconds, exact.

    >>> made = plan("candle-uno:batch=16,width=512,tower=2,layers=1", "cloud-a100:2x2", views=True)
    >>> made.status, len(set(made.views.values()) - {None})
    ('optimal', 4)
    """

    certificate: ViewsCertificate
    results: tuple[CheckResult, ...]
    scale: int

    @property
    def status(self) -> Literal["optimal", "within-gap", "feasible"]:
        """What is proved of the cost, over the placements on the machine and on the views that were open."""
        if self.lower_bound_s is None:
            return "feasible"
        return "optimal" if self.lower_bound_s >= self.cost_s else "within-gap"

    @property
    def cost_s(self) -> Fraction:
        """Seconds of a step, as the checker priced the choices."""
        cost = self._main.cost
        if cost is None:
            raise InputError(f"{self.certificate.graph.name}: the certificate claims a lower bound only")
        return Fraction(cost, self.scale)

    @property
    def lower_bound_s(self) -> Fraction | None:
        """Seconds that no plan with these views goes below; None: nothing finite."""
        bound = self._main.lower_bound
        return None if bound is None else Fraction(bound, self.scale)

    @property
    def assumptions(self) -> tuple[str, ...]:
        """What the claim takes for granted, by name; `views(..)` says over which regions and divisions it holds."""
        return self._main.assumptions

    @property
    def placements(self) -> Mapping[str, Placement]:
        """Operator -> placement matrix, on the machine or on its view."""
        return dict(self.certificate.choices.operators)

    @property
    def views(self) -> Mapping[str, View | None]:
        """Operator -> the part of the machine that it runs on; None: the whole."""
        return {name: placement.view for name, placement in self.certificate.choices.operators}

    def run(self, seed: int = 0, timeout_s: float = 600.0) -> Run:
        """Execute on virtual ranks, as `Plan.run` does."""
        from shardproof.proofs.views.certificate import as_plan

        return _run(as_plan(self.certificate), seed, timeout_s)

    def save(self, path: Path | str, force: bool = False) -> None:
        """Write the `.spz` file, as `Plan.save` does."""
        from shardproof.models.files.output import check_target, write_file
        from shardproof.proofs.views.file import write_views

        target = check_target(Path(path), force=force, replaces_results=True)
        write_file(target, write_views(None, self.certificate))

    def __repr__(self) -> str:
        c = self.certificate
        used = len(set(self.views.values()) - {None})
        where = f"{c.graph.name} on {c.machine.name}"
        return f"<PlanWithViews {where}: {float(self.cost_s):.6g} s, {self.status}, views: {used}>"

    @property
    def _main(self) -> CheckResult:
        return next(r for r in self.results if r.kind in ("Optimal", "WithinGap", "LowerBound"))


@dataclass(frozen=True, eq=False)
class Pipeline:
    """A checked pipelined training step.  `certificate` is what its file holds; times in seconds, exact."""

    certificate: PipelineCertificate
    results: tuple[CheckResult, ...]

    @property
    def step_s(self) -> Fraction:
        """Seconds of a step."""
        return Fraction(self.certificate.step, 10**12)

    @property
    def lower_bound_s(self) -> Fraction:
        """Seconds that no enumerated pair of stages and micro-batches goes below."""
        return Fraction(self.certificate.lower_bound, 10**12)

    @property
    def micro_batches(self) -> int:
        """Equal parts of the batch."""
        return self.certificate.micro

    @property
    def placements(self) -> tuple[Mapping[str, Placement], ...]:
        """Per stage (chunk, where stages have several), operator -> placement matrix on its part of the machine."""
        return tuple(dict(stage.choices.operators) for stage in self.certificate.stages)

    @property
    def identity(self) -> str:
        """Hash of the file's content."""
        from shardproof.proofs.container.archive import identity, read_container
        from shardproof.proofs.pipelines.file import write_pipeline

        return identity(read_container(write_pipeline(None, self.certificate)))

    def explain(self) -> PipelineReport:
        """Per stage its placements in the field's words, where its time goes, what fills its memory; the schedule."""
        from shardproof.formal.pipelines.explain import explain_pipeline

        return explain_pipeline(self.certificate)

    def export(self, to: str, layouts_only: bool = False) -> str:
        """The text of a file that runs the stages as planned: "dtensor", for torch's own pipelining.  `layouts_only`:
        stages and where tensors lie alone; otherwise a plan that such a file cannot do is an `InputError`.
        """
        from shardproof.backends.verbs.export_pipelined import pipelined_text

        return pipelined_text(self.certificate, self.identity, to, layouts_only).text

    def save(self, path: Path | str, force: bool = False) -> None:
        """Write the `.spz` file, as `Plan.save` does."""
        from shardproof.models.files.output import check_target, write_file
        from shardproof.proofs.pipelines.file import write_pipeline

        target = check_target(Path(path), force=force, replaces_results=True)
        write_file(target, write_pipeline(None, self.certificate))

    def __repr__(self) -> str:
        c = self.certificate
        chunks = f" of {c.chunks} chunks" if c.chunks > 1 else ""
        return (
            f"<Pipeline {c.graph.name} on {c.machine.name}: {c.views} stages{chunks}, {c.micro} micro-batches, "
            f"{float(self.step_s):.6g} s, at least {float(self.lower_bound_s):.6g} s>"
        )
