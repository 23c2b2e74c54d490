"""The scheme of a plan in the field's words: which parallelism every level carries, and how much.

Read off the products with weights, the grouped products and the attention of the forward pass.  A split axis is

    data        the first dimension of the activation that the weight does not have (the batch); of experts all of them
    sequence    another dimension of the activation that the weight does not have; the queries of an attention
    keys        the keys of an attention                                 (sequence and keys: context parallelism)
    expert      a dimension that weight, activation and result have; the groups of a grouped product
    tensor      any other dimension of the weight; heads of an attention

Weights are parameters and what is cast or copied of them.  An operator that is not split over a level is repeated on
it.  The share of a kind is that of the compute time of these operators.  What the operators between them do is said
where a level splits them along a sequence that the products do not split (Megatron's sequence parallelism).
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from fractions import Fraction
from types import MappingProxyType
from typing import Final

from ...models.cost.selection import Planning
from ...models.layout.classes import operator_key
from ...models.program.attention import role
from ...models.program.graph import Graph, Role
from ...models.program.operators import NodeKind, Operator
from ...models.sources.training.derived import derived_keys
from ...models.text import join_lines
from .stored_state import StoredState

PARALLELISM: Final[Mapping[str, str]] = MappingProxyType(
    {
        "data": "data parallelism",
        "sequence": "context parallelism (queries)",
        "keys": "context parallelism (keys)",
        "expert": "expert parallelism",
        "tensor": "tensor parallelism",
        "": "repeated",
    }
)
"""Kind of an axis -> words."""

LEAST: Final = Fraction(1, 200)
"""Share of the compute time below which a kind is not said."""
LEAST_BETWEEN: Final = Fraction(1, 20)
"""Share of the operators between below which their sequence is not said."""

PASSED_ON: Final = frozenset({"cast", "copy", "identity", "scale"})
"""Functions of one weight that leave it a weight."""


@dataclass(frozen=True)
class LevelParallelism:
    """One level of the machine: kind -> share of the compute time, the largest first; `between`: the share of the
    operators between the products that are split along their sequence."""

    level: str
    size: int
    shares: tuple[tuple[str, Fraction], ...]
    between: Fraction

    def words(self) -> str:
        """Such as `8 gpus: tensor parallelism 94 %, data parallelism 6 %`."""
        said = [(PARALLELISM[k], s) for k, s in self.shares if s >= LEAST]
        text = said[0][0] if len(said) == 1 else ", ".join(f"{k} {100 * float(s):.0f} %" for k, s in said)
        if dict(self.shares).get("sequence", 0) < LEAST and self.between >= LEAST_BETWEEN:
            text += f"; sequence parallelism for {100 * float(self.between):.0f} % of the operators between"
        return f"{self.size} {self.level}: {text}"


def parallelism_of(
    planning: Planning, x: Sequence[int], among: Collection[str] | None = None
) -> tuple[LevelParallelism, ...]:
    """One entry per level with more than one device, outermost first; empty for a graph without such products.
    `among`: names of the operators that count.

    >>> from ...models.cost.selection import build
    >>> from ...models.layout.placement import space
    >>> from ...models.machine.machine import load_machine
    >>> from ...models.sources.zoo import build as model
    >>> planning = build(model("mlp-unity", batch=8), load_machine("localhost:4"), space("complete"))
    >>> split = [[p.placement(c).degree("b") if "b" in p.axes else 1 for c in range(n)]
    ...          for p, n in ((d, len(d.placements)) for d in planning.decisions)]
    >>> [level.words() for level in parallelism_of(planning, [max(range(len(s)), key=s.__getitem__) for s in split])]
    ['4 ranks: data parallelism']
    """
    graph, levels = planning.graph, planning.machine.levels
    weights, later = _weights(graph), derived_keys(graph)
    spent: list[dict[str, Fraction]] = [{} for _ in levels]
    between: list[list[int]] = [[0, 0] for _ in levels]
    for op in graph.operators:
        v = planning.operators[op.name]
        costs = planning.costs[v]
        if operator_key(op.name) in later or costs is None or (among is not None and op.name not in among):
            continue
        placement, time = planning.decisions[v].placement(x[v]), int(costs.compute[x[v]])
        kinds = _kinds(op, graph, weights)
        for j, level in enumerate(levels):
            if level.size == 1:
                continue
            split = [a for a, row in zip(placement.axes, placement.matrix, strict=False) if row[j] > 1]
            if not kinds:
                between[j][0] += time if any(_along(op, a) for a in split) else 0
                between[j][1] += time
                continue
            ways = [kinds.get(a, "tensor") for a in split] or [""]
            for kind in ways:
                spent[j][kind] = spent[j].get(kind, Fraction(0)) + Fraction(time, len(ways))
    found = []
    for level, by_kind, (along, every) in zip(levels, spent, between, strict=True):
        total = sum(by_kind.values())
        if total:
            shares = sorted(((k, t / total) for k, t in by_kind.items()), key=lambda e: -e[1])
            found.append(LevelParallelism(level.name, level.size, tuple(shares), Fraction(along, max(every, 1))))
    return tuple(found)


def _weights(graph: Graph) -> set[str]:
    found = {t.name for t in graph.tensors if t.role is Role.PARAMETER}
    for op in graph.operators:
        if op.function in PASSED_ON and len(op.inputs) == 1 and op.inputs[0].tensor in found:
            found.add(op.output.tensor)
    return found


def _kinds(op: Operator, graph: Graph, weights: set[str]) -> dict[str, str]:
    """Axis -> kind, of an operator whose work the scheme is read off; else empty."""
    if op.kind is NodeKind.ATTENTION:
        batch = op.inputs[0].axes[0]
        named = {**dict.fromkeys(role(op, "query"), "sequence"), **dict.fromkeys(role(op, "key"), "keys")}
        return {a.name: named.get(a.name, "data" if a.name == batch else "tensor") for a in op.axes}
    if op.kind not in (NodeKind.CONTRACT, NodeKind.GROUPED):
        return {}
    of_weights = {a for i in op.inputs if i.tensor in weights for a in i.axes}
    acts = [i for i in op.inputs if i.tensor not in weights]
    if not of_weights or not acts:
        return {}
    alone = [a for a in acts[0].axes if a not in of_weights]
    shared = {a for i in acts for a in i.axes} & of_weights & {*op.output.axes}
    experts = shared | ({op.rows} if op.kind is NodeKind.GROUPED else set[str]())
    found = {a: "data" if experts or a == alone[0] else "sequence" for a in alone}
    return {**found, **{a: "expert" if a in experts else "tensor" for a in of_weights}}


def _along(op: Operator, axis: str) -> bool:
    """Whether an axis is the second of a result's three dimensions: its sequence."""
    return len(op.output.axes) == 3 and axis == op.output.axes[1]


def state_words(rows: Sequence[StoredState]) -> str:
    """How weights are kept, by their bytes: `ZeRO-3 97 % of the stored bytes, data parallel 3 %`."""
    total: dict[str, int] = {}
    for r in rows:
        kept = r.scheme.rpartition(", ")[2] if "ZeRO" in r.scheme else r.scheme
        total[kept] = total.get(kept, 0) + r.weight_bytes + r.gradient_bytes + r.state_bytes
    every = sum(total.values())
    said = [(k, Fraction(n, every)) for k, n in sorted(total.items(), key=lambda e: -e[1])] if every else []
    return ", ".join(f"{k} {100 * float(s):.0f} %" for k, s in said if s >= LEAST)


def render_parallelism(levels: Sequence[LevelParallelism], rows: Sequence[StoredState]) -> str:
    """The scheme in a line; empty without levels."""
    if not levels:
        return ""
    state = state_words(rows)
    said = " | ".join(level.words() for level in levels)
    return join_lines([f"parallelism (shares of the compute time of products and attention): {said}"]) + (
        f" | state, by stored bytes: {state}" if state else ""
    )
