"""Rebuilds the assumptions that a claim about a plan must state, from graph, machine, space and memory
limit alone.

Written a second time on purpose: the problem's own list (`models/cost/assumptions.py`) is what is checked.  A flag too
many is a statement that is not true of the plan, a flag too few hides one; both are refused.
"""

from __future__ import annotations

from ...models.layout.placement import Space
from ...models.machine.machine import Machine
from ...models.problem.selection_problem import SelectionProblem
from ...models.program.graph import Graph
from ...models.program.operators import NodeKind, Operator
from .attention_forms import attention_axes, form_of
from .bands import bounds_of
from .measured import product_of
from .structure import moves

_ALWAYS = (
    "class-order",
    "closed-reads",
    "inputs-anywhere",
    "no-overlap",
    "one-copy-per-tensor",
    "receive-side",
    "whole-taps",
)
_NAMED = 3


def wrong_assumptions(
    problem: SelectionProblem, graph: Graph, machine: Machine, where: Space, memory_limit: int | None
) -> str:
    """The first assumption that the problem leaves out, or states though it is not made; empty if there is none."""
    made, stated = all_assumptions(graph, machine, where, memory_limit), set(problem.assumptions)
    if missing := sorted(made - stated):
        return f"the assumption {missing[0]} is made and not stated"
    if extra := sorted(stated - made):
        return f"the assumption {extra[0][:200]} is stated and not made"
    return "" if len(problem.assumptions) == len(stated) else "an assumption is stated twice"


def all_assumptions(graph: Graph, machine: Machine, where: Space, memory_limit: int | None) -> set[str]:
    """Every assumption under which a plan's cost, bound and memory rows hold."""
    return fixed_assumptions(graph, machine, where, memory_limit) | measured_assumptions(graph, machine)


def fixed_assumptions(graph: Graph, machine: Machine, where: Space, memory_limit: int | None) -> set[str]:
    """Those that do not depend on what the machine's measured forms price."""
    found = set(_ALWAYS)
    if not where.uneven:
        found.add("even-splits")
    if where.vocabulary:
        found.add({"dtensor": "said-by-dtensor", "jax": "said-by-jax"}[where.vocabulary])
    if next(moves(graph), None) is not None:
        found.add("one-step-redistribution")
    if any(op.kind is NodeKind.GROUPED and op.attribute("load", "even") == "even" for op in graph.operators):
        found.add("even-groups")
    counted = tuple(
        op.name
        for op in graph.operators
        if op.kind is NodeKind.GROUPED and isinstance(op.attribute("load", "even"), tuple)
    )
    if counted:
        found.add(f"counted-groups({len(counted)}: " + _some(counted) + ")")
    if memory_limit is None:
        found.add("no-memory-limit")
    else:
        found.update(("every-operand-received", "packing-not-counted"))
        if graph.state:
            found.add("donated-state")
    banded = tuple(op.name for op in graph.operators if bounds_of(op) is not None)
    if banded:
        found.add(f"contiguous-queries({len(banded)}: " + _some(banded) + ")")
    if machine.resources:
        found.add("unpriced-resources(" + _some(tuple(r.name for r in machine.resources)) + ")")
    if machine.collectives.value != "hierarchical":
        found.add("collective-programs(" + machine.collectives.value + ")")
    pinned = tuple(
        f"{op.name}.{axis.name}"
        for op in graph.operators
        for axis in op.axes
        if not axis.splittable and axis.extent != 1
    )
    if pinned:
        found.add(f"unsplit-axes({len(pinned)}: " + _some(pinned) + ")")
    return found


def measured_assumptions(graph: Graph, machine: Machine) -> set[str]:
    """What is priced by measured forms and what is not, where there are any."""
    forms = [{p.dtype for p in c.products} for c in machine.classes]
    named = [level for level in machine.levels if level.collectives]
    attention = sorted({f.dtype for c in machine.classes for f in c.attentions})
    if not named and not any(forms) and not attention:
        return set()
    said = {"measured-collectives": [level.name for level in named]}
    said["links-by-bandwidth"] = [x.name for x in machine.levels if x not in named and x.size != 1]
    said["measured-products"] = sorted(set[str]().union(*forms))
    said["measured-attention"] = attention
    found = {f"{flag}({' '.join(names)})" for flag, names in said.items() if names}

    def by_roofline(op: Operator) -> bool:
        dtype = graph.computed_in(op)
        if seen := attention_axes(op):
            return any(form_of(c, dtype, seen.backward) is None for c in machine.classes)
        return product_of(op) is None or any(dtype not in types for types in forms)

    others = tuple(op.name for op in graph.operators if graph.flops_per_point(op) and by_roofline(op))
    return found | ({f"roofline-work({len(others)}: {_some(others)})"} if others else set())


def _some(names: tuple[str, ...]) -> str:
    shown, rest = names[:_NAMED], names[_NAMED:]
    return " ".join((*shown, f"and {len(rest)} more")) if rest else " ".join(shown)
