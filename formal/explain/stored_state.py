"""How a training step keeps what it trains: weights, gradients and optimizer state per device, and
what brings gradients together.

Nothing here decides anything: the words are read off the layouts and the movements of the plan.

    weight       the parameter's copy          gradient    its copy (its writer's layout where it has one reader)
    state        the copies of what the optimizer remembers (moments)

    scheme                   weight       moments      read for use          gradients
    data parallel            replicated   replicated   where it lies         brought together
    data parallel, ZeRO-1    replicated   split        where it lies         brought together (ZeRO-2: and stored split)
    data parallel, ZeRO-3    split                     gathered, whole
    tensor parallel          split                     where it lies
    tensor parallel, ZeRO-3  split                     gathered, still split
    replicated, no sync      replicated                                      nothing moves: every device computes the
                                                                             whole gradient itself

A weight that is kept wider than it is computed with is read through its cast, which is what is gathered.

Source: Rajbhandari et al., ZeRO (SC 2020), section 5, for the three stages.
"""

from __future__ import annotations

from dataclasses import dataclass

from ...models.communication.choices import Communication, communications, copy_layout, input_layout, output_layout
from ...models.cost.selection import Planning
from ...models.layout.layout import Layout
from ...models.program.graph import Graph
from ...models.program.operators import Operator
from ...models.sources.training.clipping import CLIPPED
from ...models.sources.training.derived import GRADIENT
from ...models.sources.training.scaling import UNSCALED
from ...models.sources.training.updates import BETWEEN, INSIDE
from ...models.text import join_lines
from ..plans.report import bytes_text, label, pattern, table_text
from .terms import PlanTerms

UPDATES = ("sgd_update", "adam_update", "adamw_update", "lion_update")
"""Functions that write the next value of a weight; their first input is the weight."""

MOMENTS = ("adam_moment1", "adam_moment2", "momentum", "decayed_gradient")
"""Functions between a gradient and the update: of what is remembered, and of the weight."""


@dataclass(frozen=True)
class StoredState:
    """One trained parameter.  `*_bytes`: on the fullest device; `state`: what the optimizer remembers, `gathered`:
    collectives that bring the weight to its readers, `synchronised`: those that bring its gradient together, `renewed`:
    those from its next value to where it is stored."""

    parameter: str
    scheme: str
    weight: str
    gradient: str
    state: str
    synchronised: str
    gathered: str
    renewed: str
    weight_bytes: int
    gradient_bytes: int
    state_bytes: int

    def to_json(self) -> dict[str, object]:
        """Plain data."""
        return {
            "parameter": self.parameter,
            "scheme": self.scheme,
            "weight": self.weight,
            "gradient": self.gradient,
            "state": self.state,
            "synchronised": self.synchronised,
            "gathered": self.gathered,
            "renewed": self.renewed,
            "weight_bytes": self.weight_bytes,
            "gradient_bytes": self.gradient_bytes,
            "state_bytes": self.state_bytes,
        }


def stored_state(planning: Planning, x: tuple[int, ...]) -> tuple[StoredState, ...]:
    """One entry per trained parameter, in graph order; empty for a graph that is no training step of ours."""
    graph, writer = planning.graph, planning.graph.writer()
    updates = {
        p: graph.operators[writer[value]]
        for p, value in graph.state
        if graph.operators[writer[value]].function in UPDATES
    }
    if not updates:
        return ()
    view = _View(planning, x)
    out = []
    for weight, update in updates.items():
        gradient, moments = _read(graph, update, weight)
        out.append(view.of(weight, gradient, moments))
    return tuple(out)


def _read(graph: Graph, update: Operator, weight: str) -> tuple[str, list[str]]:
    """The gradient that an update works on, before clipping, and what it remembers."""
    writer, kept = graph.writer(), {name for name, _ in graph.state}
    between, inside = {f"{weight}{ending}" for ending in BETWEEN}, tuple(f"{weight}{begins}" for begins in INSIDE)
    gradient, moments, waiting = "", list[str](), [a.tensor for a in update.inputs if a.tensor != weight]
    seen = set[str]()
    while waiting:
        tensor = waiting.pop(0)
        if tensor in seen:
            continue
        seen.add(tensor)
        if tensor in kept:
            moments += [tensor] if tensor not in (weight, *moments) else []
            continue
        op = graph.operators[writer[tensor]]
        if op.function in MOMENTS or op.name in between or op.name.startswith(inside):
            waiting += [a.tensor for a in op.inputs]
        elif graph.tensor(tensor).dtype != "bool":  # whether gradients are finite is no gradient
            while op.name.startswith((CLIPPED, UNSCALED)):
                tensor = op.inputs[0].tensor
                op = graph.operators[writer[tensor]]
            gradient = tensor
    return gradient, moments


class _View:
    def __init__(self, planning: Planning, x: tuple[int, ...]) -> None:
        self.planning, self.x, self.graph = planning, x, planning.graph
        self.hierarchy, self.terms = planning.machine.hierarchy, PlanTerms(planning)
        choices = planning.choices(x)
        self.placements, self.copies = dict(choices.operators), dict(choices.copies)
        self.moved: dict[str, list[Communication]] = {}
        for m in communications(planning.graph, self.hierarchy, choices, planning.machine):
            self.moved.setdefault(m.tensor, []).append(m)
        self.following = dict(self.graph.state)
        self.writer, self.readers = self.graph.writer(), self.graph.readers()

    def of(self, weight: str, gradient: str, moments: list[str]) -> StoredState:
        stored, kept = self._layout(weight), [self._layout(m) for m in moments]
        update = self.graph.operators[self.writer[self.following[weight]]].name
        narrow = [op.output.tensor for op in self.graph.operators if op.function == "cast" and self._casts(op, weight)]
        fetched = [m for t in (weight, *narrow) for m in self.moved.get(t, []) if m.reader != update]
        gathered = [m for m in fetched if any(m.plan.loads())]
        brought = self._brought(gradient)
        split, split_state = _split(stored), any(_split(k) for k in kept)
        if split:
            still = any(_split(m.plan.target) for m in gathered)
            scheme = (
                "tensor parallel" if not gathered else "tensor parallel, ZeRO-3" if still else "data parallel, ZeRO-3"
            )
        elif not brought:
            scheme = "replicated, no sync"
        elif split_state:
            scheme = "data parallel, ZeRO-2" if _split(self._layout(gradient)) else "data parallel, ZeRO-1"
        else:
            scheme = "data parallel"
        return StoredState(
            weight,
            scheme,
            self._words(weight),
            self._words(gradient),
            _joined([self._words(m) for m in moments]) or "none",
            _joined(brought) or "none",
            _joined([m.plan.collective() for m in gathered]) or "none",
            _joined(
                [
                    m.plan.collective()
                    for m in self.moved.get(self.following[weight], [])
                    if m.reader is None and any(m.plan.loads())
                ]
            )
            or "none",
            self._bytes(weight),
            self._bytes(gradient),
            sum(self._bytes(m) for m in moments),
        )

    def _casts(self, op: Operator, weight: str) -> bool:
        """Whether an operator makes the narrow copy of a weight that the model computes with."""
        return op.inputs[0].tensor == weight and not op.name.startswith(GRADIENT)

    def _layout(self, tensor: str) -> Layout:
        if tensor in self.copies:
            return copy_layout(tensor, self.graph, self.copies[tensor], self.hierarchy)
        i, j = self.readers[tensor][0]
        if tensor in self.writer:
            op = self.graph.operators[self.writer[tensor]]
            layout = output_layout(op, self.graph, self.placements[op.name], self.hierarchy)
            if not layout.open:
                return layout
        return input_layout(
            self.graph.operators[i], j, self.graph, self.placements[self.graph.operators[i].name], self.hierarchy
        )

    def _bytes(self, tensor: str) -> int:
        return int(self._layout(tensor).volumes().max()) * self.graph.tensor(tensor).element_bytes

    def _words(self, tensor: str) -> str:
        """Where a tensor rests: the words of its copy's placement, or of the operator that writes it for the one
        that reads it.
        """
        if tensor in self.planning.copies:
            v = self.planning.copies[tensor]
        else:
            v = self.planning.operators[self.graph.operators[self.readers[tensor][0][0]].name]
        words = self.terms.words(v, self.x[v])
        return words if _split(self._layout(tensor)) else "replicated" if self.planning.machine.devices > 1 else words

    def _brought(self, gradient: str) -> list[str]:
        """Collectives between the partial sums of a gradient and where it is stored, through sums of several
        contributions and reshapes.
        """
        found = [
            m.plan.collective()
            for m in self.moved.get(gradient, [])
            if (m.reader is None or gradient not in self.copies) and any(m.plan.loads())
        ]
        op = self.graph.operators[self.writer[gradient]]
        if op.function in ("sum_inputs", "copy", "identity", "scale", "cast"):
            for a in op.inputs:
                if a.tensor in self.writer and a.tensor.startswith("grad:"):
                    found += [f for f in self._brought(a.tensor) if "reduce" in f]
        return found


def _split(layout: Layout) -> bool:
    """Does some device hold less than all of the tensor?"""
    total = 1
    for n in layout.shape:
        total *= n
    return int(layout.volumes().min()) < total


def _joined(words: list[str]) -> str:
    return "; ".join(dict.fromkeys(words))


def render_stored_state(rows: tuple[StoredState, ...], width: int = 190, color: bool = False) -> str:
    """A table with one row per group of parameters that differ in their numbers only, then the bytes of each
    scheme; empty without rows.
    """
    if not rows:
        return ""
    groups: dict[tuple[object, ...], list[StoredState]] = {}
    for r in rows:
        key = (
            pattern(r.parameter),
            r.scheme,
            r.weight,
            r.gradient,
            r.state,
            r.synchronised,
            r.gathered,
            r.renewed,
            r.weight_bytes,
            r.state_bytes,
        )
        groups.setdefault(key, []).append(r)
    lines = []
    for members in groups.values():
        r, n = members[0], len(members)
        lines.append(
            [
                label([m.parameter for m in members]),
                f"x{n}" if n > 1 else "",
                r.scheme,
                r.weight,
                r.gradient,
                r.state,
                r.synchronised,
                f"{r.gathered} / {r.renewed}" if (r.gathered, r.renewed) != ("none", "none") else "-",
                bytes_text(n * (r.weight_bytes + r.gradient_bytes + r.state_bytes)),
            ]
        )
    columns = [
        "parameter",
        "",
        "parallelism",
        "weight",
        "gradient",
        "optimizer state",
        "gradient synchronised by",
        "weight gathered for use / renewed by",
        "bytes per device",
    ]
    table = table_text("stored state", columns, lines, (8,), width, color)
    total: dict[str, list[int]] = {}
    for r in rows:
        sums = total.setdefault(r.scheme, [0, 0, 0, 0])
        for i, value in enumerate((1, r.weight_bytes, r.gradient_bytes, r.state_bytes)):
            sums[i] += value
    summary = [
        f"{scheme}: {n} parameters, per device {bytes_text(w)} of weights, {bytes_text(g)} of gradients, "
        f"{bytes_text(s)} of optimizer state"
        for scheme, (n, w, g, s) in sorted(total.items(), key=lambda item: -item[1][0])
    ]
    return join_lines([table, "", *summary])
