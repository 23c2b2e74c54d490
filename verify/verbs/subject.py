"""This module says what a checked plan is about, for its reader: model, machine, limit, space and assumptions, with the
hashes that tell two of one name apart.
"""

from __future__ import annotations

from ...models.cost.selection import Planning
from ...models.files.json_text import parse_json
from ...models.joint.problem import stated
from ...models.machine.difference import builtin_notice
from ...models.machine.text import render
from ...models.text import bytes_text
from ...proofs.joint.file import Jointly
from ...proofs.plan.bundle import Plan


def subject_lines(plan: Plan, planning: Planning, show_machine: bool) -> list[str]:
    """Lines of text, before the verdicts; with `show_machine` every constant of the machine."""
    graph, machine = plan.graph, plan.machine
    limit = "none" if plan.memory_limit is None else f"{bytes_text(plan.memory_limit)} per device"
    notice = builtin_notice(machine)
    return [
        f"  model {graph.name}: {len(graph.operators)} operators, sha256 {graph.sha256()}",
        f"  machine {machine.name} {'x'.join(map(str, machine.hierarchy))}: sha256 {machine.sha256()}",
        *([_asked_line(plan.joint)] if plan.joint is not None else []),
        *([f"  note: the machine is {notice}"] if notice else []),
        *([f"    {line}" for line in render(machine).split("\n")] if show_machine else []),
        f"  memory limit {limit}; space {plan.space}; assumptions: {', '.join(_assumptions(plan, planning))}",
    ]


def subject_document(plan: Plan, planning: Planning, show_machine: bool) -> dict[str, object]:
    """The same as data."""
    graph, machine = plan.graph, plan.machine
    notice = builtin_notice(machine)
    return {
        "model": {
            "name": graph.name,
            "sha256": graph.sha256(),
            "operators": len(graph.operators),
            "tensors": len(graph.tensors),
        },
        "machine": {
            "name": machine.name,
            "sha256": machine.sha256(),
            "hierarchy": list(machine.hierarchy),
            **({"notice": notice} if notice else {}),
            **({"constants": parse_json(machine.to_json())} if show_machine else {}),
        },
        "memory_limit": plan.memory_limit,
        "space": plan.space,
        "assumptions": _assumptions(plan, planning),
        **({} if plan.joint is None else {"asked": _asked(plan.joint)}),
    }


def _assumptions(plan: Plan, planning: Planning) -> list[str]:
    """What the claims rest on; of a joint plan the graphs that they are about too."""
    of = () if plan.joint is None else stated(plan.joint.egraph, plan.joint.derivation.rounds)
    return sorted({*planning.problem.assumptions, *of})


def _asked(joint: Jointly) -> dict[str, object]:
    """The user's graph, which the program of a joint plan is equal to, and the e-graph that it was chosen from."""
    base = joint.egraph.base
    return {"name": base.name, "sha256": base.sha256(), "operators": len(base.operators), "graphs": joint.egraph.sha256}


def _asked_line(joint: Jointly) -> str:
    asked = _asked(joint)
    what = f"{asked['name']}: {asked['operators']} operators, sha256 {asked['sha256']}"
    return f"  chosen among the programs of an e-graph of {what}"
