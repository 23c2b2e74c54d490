"""The Python way in: plan a model, check a plan, read what it decided, audit a strategy, hand a plan on.

    import shardproof
    plan = shardproof.plan("bert-large", "cloud-a100:4x8", batch=8, train="adam", memory="80GiB")
    plan.check().verdict, plan.layouts["layer0.attention.query.weight"]
    plan.save("plan.spz")

The command line does the same things through the same functions: `formal.planning` makes plans, `front_door` has them
checked before anybody sees them.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from fractions import Fraction
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Literal

from shardproof.models.communication.shardings import PlanShardings, plan_shardings
from shardproof.models.layout.placement import Placement, space
from shardproof.models.layout.sharding import Sharding
from shardproof.models.machine.machine import Machine, load_machine
from shardproof.models.problem.claims import Verdict
from shardproof.models.program.graph import Graph
from shardproof.models.sources.load import load_model
from shardproof.models.text import InputError
from shardproof.proofs.plan.bundle import Plan as Bundle
from shardproof.proofs.plan.bundle import read_plan, write_plan

if TYPE_CHECKING:
    from shardproof.formal.explain.audit import AuditReport
    from shardproof.formal.explain.compare import Comparison
    from shardproof.formal.explain.explain import Explanation
    from shardproof.models.cost.selection import Planning
    from shardproof.verify.plan.plan import PlanCheck
    from shardproof.verify.verdict import CheckResult

Engine = Literal["native", "ilp", "smt"]
Target = Literal["dtensor", "jax"]


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
        return Fraction(self._main.cost or 0, self._planning.problem.scale)

    @property
    def lower_bound_s(self) -> Fraction | None:
        """Seconds that no plan of the space goes below, as the checker established; None: nothing finite."""
        bound = self._main.lower_bound
        return None if bound is None else Fraction(bound, self._planning.problem.scale)

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

    def explain(self, operator: str | None = None, time_limit_s: float | None = 60.0) -> Explanation:
        """Where the time goes and what other choices would cost; exactly, for one `operator`."""
        from shardproof.formal.explain.explain import explain

        solution = self._planning.solution(self.bundle.choices)
        return explain(self._planning, solution, self.bundle.certificate, operator, time_limit=time_limit_s)

    def diff(self, other: Plan) -> Comparison:
        """Every term in which the two plans differ, priced.  Raises `InputError` if they answer different problems."""
        from shardproof.formal.explain.compare import compare
        from shardproof.formal.explain.terms import PlanTerms

        if self._planning.problem.sha256() != other._planning.problem.sha256():
            raise InputError("the plans are of different problems (model, machine, space or limit): nothing to compare")
        ours, theirs = (p._planning.solution(p.bundle.choices) for p in (self, other))
        return compare(self._planning.problem, PlanTerms(self._planning), ours, theirs)

    def export(self, to: Target) -> str:
        """The text of a Python file that lays a job out as planned: with DTensor, or with JAX's PartitionSpecs."""
        from shardproof.backends.export.dtensor import export_dtensor
        from shardproof.backends.export.jax import export_jax

        match to:
            case "dtensor":
                return export_dtensor(self.bundle, self.identity).text
            case "jax":
                return export_jax(self.bundle, self.identity).text
            case _:
                raise InputError(f"there is no export to {to!r}; choose one of dtensor, jax")

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

    @property
    def _planning(self) -> Planning:
        return self.checked.planning

    @property
    def _main(self) -> CheckResult:
        return next(r for r in self.checked.results if r.kind in ("Optimal", "WithinGap", "LowerBound"))


def plan(
    model: object,
    machine: Machine | str,
    *,
    inputs: object = None,
    batch: int | None = None,
    train: str | None = None,
    loss: str | None = None,
    recompute: str = "none",
    precision: str | None = None,
    micro_batch: int | str = 1,
    memory: int | str | None = None,
    space_name: str | None = None,
    engine: Engine = "native",
    time_limit_s: float | None = 300.0,
    gap: Fraction = Fraction(0),
    threads: int = 2,
) -> Plan:
    """The best plan found for a model on a machine, checked.

    `model`: what the command line takes (zoo name, file, FILE.py:NAME), a `Graph`, a NumPy program, or a PyTorch module
    with its example `inputs`.  `micro_batch`: parts of the batch, or "auto".  `memory`: bytes per device, or a text
    such as "80GiB".  Raises `NoPlan`, `InputError`, and the errors of the frontends.
    """
    from shardproof.formal.explain.bars import with_bars
    from shardproof.formal.planning.request import PlanRequest, carry_out
    from shardproof.formal.planning.time_limit import TimeLimit
    from shardproof.formal.selection.model.clock import Clock
    from shardproof.verify.joint.plan import check_any_plan

    request = PlanRequest(
        _graph(model, inputs, batch),
        machine_of(machine),
        train,
        loss,
        recompute,
        None if space_name is None else space(space_name),
        _bytes(memory),
        engine=engine,
        gap=gap,
        threads=threads,
        precision=precision,
        micro_batch=str(micro_batch),
    )
    planned = carry_out(request, TimeLimit(Clock(time_limit_s))).planned
    if planned.plan is None:
        raise _no_plan(planned.planning, planned.answer.certificate)
    checked = check_any_plan(write_plan(None, with_bars(planned)))
    _refuse(checked)
    return Plan(checked.plan, checked)


def load(path: Path | str) -> Plan:
    """A plan from its file, checked.  Raises `RefutedPlan`, or `ContainerError` for what is no plan."""
    from shardproof.verify.joint.plan import check_any_plan

    checked = check_any_plan(Path(path))
    _refuse(checked)
    return Plan(read_plan(Path(path))[0], checked)


def audit(
    model: object,
    machine: Machine | str,
    strategy: str | Path,
    *,
    inputs: object = None,
    batch: int | None = None,
    memory: int | str | None = None,
    space_name: str | None = None,
    time_limit_s: float | None = 300.0,
    gap: Fraction = Fraction(0),
) -> AuditReport:
    """Whether a strategy (its file) is optimal, refuted by a better one, or undecided."""
    from shardproof.formal.explain.audit import audit as audit_planning
    from shardproof.formal.planning.frameworks import framework_flags, strategy_of_flags
    from shardproof.formal.planning.plan import fitting_space
    from shardproof.formal.planning.strategy import ChoiceList, load_strategy
    from shardproof.models.cost.selection import build

    graph, target = _graph(model, inputs, batch), machine_of(machine)
    flags = framework_flags(strategy)
    read = load_strategy(strategy) if flags is None else strategy_of_flags(flags, graph, target, str(strategy))
    if isinstance(read, ChoiceList):
        raise InputError(f"{strategy} is a list of choices, which belongs to a selection problem, not to a model")
    where = fitting_space(graph, target) if space_name is None else space(space_name)
    report = audit_planning(build(graph, target, where, _bytes(memory)), read, time_limit_s, gap)
    if report.certificate is not None:
        from shardproof.front_door import FrontDoor

        if FrontDoor().certificate(None, report.certificate, report.problem).verdict is not Verdict.PROVED:
            raise RuntimeError("our own checker did not confirm the audit; please report it")
    if report.bars is not None and report.planning is not None and report.held is not None:
        from shardproof.front_door import FrontDoor

        within = FrontDoor().bars(report.planning, report.held, report.bars, report.lower_bound)
        if within.verdict is not Verdict.PROVED:
            raise RuntimeError(f"our own checker did not confirm the audit ({within.reason}); please report it")
    return report


def machine_of(machine: Machine | str) -> Machine:
    """A machine: itself, a built-in name, name:4x8, or a TOML file."""
    return machine if isinstance(machine, Machine) else load_machine(machine)


def _graph(model: object, inputs: object, batch: int | None) -> Graph:
    if isinstance(model, Graph):
        return model.check()
    if isinstance(model, str | Path):
        return load_model(str(model), batch)
    if batch is not None:
        raise InputError("batch applies to zoo names and files; a function or a module has its shapes already")
    if inputs is None and callable(model):
        from shardproof.models.sources.numpy.program import is_numpy_program
        from shardproof.models.sources.numpy.trace import trace

        if is_numpy_program(model):
            return trace(model).graph
    return _module(model, inputs)


def _module(model: object, inputs: object) -> Graph:
    """A PyTorch module; it is copied to the meta device, so that its weights stay where they are."""
    try:
        import torch
    except ImportError:
        torch = None
    if torch is None or not isinstance(model, torch.nn.Module):
        raise InputError(
            f"a {type(model).__name__} is no model; give a name or file, a Graph, a function decorated with "
            f"@shardproof.program, or a PyTorch module with inputs="
        )
    if inputs is None:
        raise InputError("a PyTorch module needs inputs=, a tensor, a tuple of tensors or a dictionary")
    from shardproof.models.sources.building.stated import carried
    from shardproof.models.sources.torch.importer import convert
    from shardproof.models.sources.torch.program import build

    found = convert(build(lambda: (model, inputs), type(model).__name__))
    return carried(found.graph, found.stated)


def _bytes(memory: int | str | None) -> int | None:
    if not isinstance(memory, str):
        return memory
    from shardproof.models.terminal.options import AMOUNT

    return int(AMOUNT.convert(memory, None, None))


def _refuse(checked: PlanCheck) -> None:
    from shardproof.proofs.publishing.publisher import RefutedPlan

    for r in checked.results:
        if r.verdict is Verdict.REFUTED:
            raise RefutedPlan(f"{r.kind} is refuted: {r.reason}")


def _no_plan(planning: Planning, certificate: object) -> NoPlan:
    from shardproof.front_door import FrontDoor
    from shardproof.models.problem.claims import Infeasible
    from shardproof.proofs.selection.certificates import SelectionCertificate

    if isinstance(certificate, SelectionCertificate) and isinstance(certificate.claim, Infeasible):
        published = FrontDoor().certificate(None, certificate, planning.problem)
        if published.verdict is Verdict.PROVED:
            least = certificate.claim.least_limit
            known = "" if least is None else f"; the least limit for which a plan is known is {least} bytes"
            return NoPlan(
                f"{planning.graph.name}: proved that no plan fits {planning.problem.limit} bytes{known}", True
            )
    return NoPlan(f"{planning.graph.name}: no plan found within the time limit; give it more time", infeasible=False)
