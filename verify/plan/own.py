"""Checks a plan's model and machine against those that a reader means: a plan proves something about what
it holds, whatever the names say.

Equal canonical texts are the same model or machine.  Otherwise the first field that differs is named, with the reader's
value:  the claim `Model` or `Machine` is refuted.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass
from typing import cast

from ...models.files.json_text import parse_json
from ...models.machine.difference import first_difference
from ...models.machine.machine import Machine
from ...models.problem.claims import Verdict
from ...models.program.graph import Graph
from ..verdict import CheckResult

Parts = list[dict[str, object]]

_SHOWN = 120
"""Characters of a value in a message."""


@dataclass(frozen=True)
class ReaderSubject:
    """What the reader means; None: not said."""

    graph: Graph | None = None
    machine: Machine | None = None

    def results(self, graph: Graph, machine: Machine) -> tuple[CheckResult, ...]:
        """One claim for each that is said."""
        wrong: list[tuple[str, str]] = []
        if self.graph is not None:
            wrong.append(("Model", wrong_model(graph, self.graph)))
        if self.machine is not None:
            wrong.append(("Machine", wrong_machine(machine, self.machine)))
        return tuple(
            CheckResult(kind, Verdict.REFUTED if why else Verdict.PROVED, None, None, "", (), why)
            for kind, why in wrong
        )


def wrong_machine(planned: Machine, own: Machine) -> str:
    """The first constant in which the plan's machine differs from the reader's; empty if they are the same."""
    if planned.to_json() == own.to_json():
        return ""
    return f"the plan's machine has {first_difference(planned, own)}"


def wrong_model(planned: Graph, own: Graph) -> str:
    """The first operator, tensor or list in which the plan's graph differs from the reader's; empty if they are the
    same.
    """
    if planned.to_json() == own.to_json():
        return ""
    found = next(_model(_fields(planned), _fields(own)), "the canonical texts differ")
    return found if bool(planned.state) == bool(own.state) else f"{found}; {_STEP[bool(planned.state)]}"


_STEP = {
    True: "the plan is of a training step: say --train, and --precision and the others, as they were for 'plan'",
    False: "the plan is of the model alone, without a training step: leave out --train",
}
"""Whether the plan has state that is renewed, and the reader's model not -> what else to say."""


def _fields(graph: Graph) -> dict[str, object]:
    return cast("dict[str, object]", parse_json(graph.to_json()))  # our own text, written a moment ago


def _model(planned: dict[str, object], own: dict[str, object]) -> Iterator[str]:
    for key in ("name", "operators", "tensors", "outputs", "state"):
        if key not in ("operators", "tensors"):
            yield from _different(key, planned.get(key, []), own.get(key, []))
            continue
        a, b, kind = cast("Parts", planned[key]), cast("Parts", own[key]), key[:-1]
        for number, (x, y) in enumerate(zip(a, b, strict=False)):
            yield from _different(f"{kind} {number}, name", x["name"], y["name"])
            for field in sorted({*x, *y}):
                yield from _different(f"{kind} {x['name']!r}, {field}", x.get(field), y.get(field))
        yield from _different(f"number of {key}", len(a), len(b))


def _different(place: str, planned: object, own: object) -> Iterator[str]:
    a, b = json.dumps(planned, sort_keys=True), json.dumps(own, sort_keys=True)  # as text: NaN is NaN, 1 is not 1.0
    if a != b:
        at = next((i for i, (x, y) in enumerate(zip(a, b, strict=False)) if x != y), min(len(a), len(b)))
        start = 0 if max(len(a), len(b)) <= _SHOWN else max(0, at - _SHOWN // 2)
        yield f"{place}: the plan has {_cut(a, start)}, your model {_cut(b, start)}"


def _cut(text: str, start: int) -> str:
    return (".." if start else "") + text[start : start + _SHOWN] + (".." if start + _SHOWN < len(text) else "")
