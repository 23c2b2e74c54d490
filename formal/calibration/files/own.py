"""Reads traces of `shardproof run --trace` together with the plan that ran: names say what, the plan says
how much.

An operator takes as long as on its slowest rank; a resharding as on the rank that came last, which waited for
nobody: its shortest span.  The k-th span of a name on every rank belong together; of several steps the median counts.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from pathlib import Path
from statistics import median
from typing import Final

from ....models.machine.machine import Machine
from ....models.text import InputError
from ....proofs.container.canonical import ContainerError
from ....proofs.plan.bundle import read_plan
from ...plans.linear import Forms, Linear, moved_name, why_not_linear
from .chrome import Event
from .observation import Observation, Terms

_OPERATOR: Final = re.compile(r"operator '([^']+)', which writes tensor '[^']+'")
_MOVED: Final = re.compile(r"(?:resharding|redistribution) of tensor '([^']+)' to (?:its copy|operator '([^']+)')")


def read(events: Sequence[Event], place: str, machine: Machine, path: Path | None) -> list[Observation]:
    """Rows of a trace.  Raises `InputError` without the plan, for a plan of another machine shape, and if no name of
    the trace is one of the plan.
    """
    if path is None:
        raise InputError(
            f"{place}: is a trace of 'shardproof run'; what its operators computed stands in the plan: --plan"
        )
    try:
        plan, _ = read_plan(path)
    except ContainerError as error:
        raise InputError(f"{path}: {error}") from None
    if plan.machine.hierarchy != machine.hierarchy:
        sizes = "x".join(map(str, plan.machine.hierarchy))
        raise InputError(f"{path}: its plan is for {sizes} devices; name the machine with them, {machine.name}:{sizes}")
    if reason := why_not_linear(machine):
        raise InputError(f"machine {machine.name!r}: no constants are fitted to it, because {reason}; use one without")
    forms = Forms(plan.graph, machine).of_plan(plan.choices, plan.communication)
    spans: dict[tuple[str, str], dict[object, list[float]]] = {}
    for e in events:
        length = e.get("dur")
        name = _name(str(e.get("name")))
        if name in forms and isinstance(length, int | float) and e.get("cat") in ("compute", "communication"):
            spans.setdefault((name, str(e["cat"])), {}).setdefault(e.get("tid"), []).append(length * 1e-6)
    out = []
    for (name, kind), ranks in spans.items():
        if len(set(forms[name])) != 1:  # one name, several movements: which span is which is not said
            continue
        form, pick = forms[name][0], max if kind == "compute" else min
        seconds = median(pick(together) for together in zip(*ranks.values(), strict=False))
        if seconds > 0 and (form.pieces or form.added):
            pieces = (tuple(p for piece in form.pieces for p in _floats(piece)),) if form.pieces else ()
            terms = Terms(pieces, _floats(form.added))
            out.append(Observation(terms, seconds, f"{place}, {name}", (("kind", kind),)))
    if not out:
        raise InputError(f"{place}: none of its names is an operator or resharding of {path}; give the plan that ran")
    return out


def _name(text: str) -> str:
    if found := _OPERATOR.fullmatch(text):
        return found[1]
    if found := _MOVED.fullmatch(text):
        return moved_name(found[1], found[2])
    return ""


def _floats(form: Linear) -> tuple[tuple[str, float], ...]:
    return tuple((path, float(c)) for path, c in form)
