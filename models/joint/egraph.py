"""An e-graph of programs: tensors up to equality, and every operator that is known to compute one.

    class    a tensor by name; inputs and parameters are computed by nobody, every other class by one or more operators
    e-node   an operator: it computes its class from other classes
    base     the user's graph: of every class that it has, the first e-node is the user's operator
    mode     of a class: which of its e-nodes computes it, or none (the class is absent)
    graph    of modes that fit together: all results computed, nothing read that is absent, nothing computed that nobody
             reads.  Every such graph computes what the user's does

`operators` stand in one order in which every e-node comes after all e-nodes of the classes it reads, and the next value
of a parameter after all that may read the parameter; so every choice of modes is a program without cycles, in this
order.  New e-nodes are equal to what they are put beside by proof only (`verify/joint`); nothing here says why.

Source: egg (POPL 2021); TENSAT (MLSys 2021) for e-graphs of tensor programs.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import cached_property

from ..layout.classes import axis_orders, leading_dimensions, leading_of
from ..program.graph import Graph, GraphError, Role, Tensor
from ..program.operators import Operator
from .rules import LIBRARY

Modes = Mapping[str, str | None]
"""Class -> name of the e-node that computes it, None for an absent one; classes that are not named: the first."""


@dataclass(frozen=True)
class EGraph:
    """See the module docstring.  `tensors`: classes that the user's graph lacks; `operators`: all e-nodes in order."""

    base: Graph
    tensors: tuple[Tensor, ...]
    operators: tuple[Operator, ...]

    @cached_property
    def union(self) -> Graph:
        """All classes and e-nodes as one graph, where a tensor may have several writers: for shapes and axes only."""
        return Graph(
            self.base.name, (*self.base.tensors, *self.tensors), self.operators, self.base.outputs, self.base.state
        )

    @cached_property
    def user_order_graph(self) -> Graph:
        """`union` with the user's operators first: the order of axes is the user's as far as it says anything."""
        own = {op.name for op in self.base.operators}
        return replace(
            self.union, operators=(*self.base.operators, *(op for op in self.operators if op.name not in own))
        )

    @cached_property
    def nodes(self) -> dict[str, tuple[Operator, ...]]:
        """Class -> its e-nodes: the user's operator first, then in order."""
        own = {op.name for op in self.base.operators}
        found: dict[str, list[Operator]] = {}
        for op in self.operators:
            found.setdefault(op.output.tensor, []).append(op)
        return {t: tuple(sorted(ops, key=lambda op: op.name not in own)) for t, ops in found.items()}

    @cached_property
    def wanted_classes(self) -> frozenset[str]:
        """Classes that every graph computes: outputs that are computed, and next values of parameters."""
        return frozenset(t for t in (*self.base.outputs, *(v for _, v in self.base.state)) if t in self.nodes)

    @cached_property
    def readers(self) -> dict[str, tuple[str, ...]]:
        """Class -> classes with an e-node that reads it, in order, each once."""
        found: dict[str, dict[str, None]] = {t.name: {} for t in self.union.tensors}
        for op in self.operators:
            for a in op.inputs:
                found[a.tensor][op.output.tensor] = None
        return {t: tuple(classes) for t, classes in found.items()}

    @cached_property
    def optional(self) -> frozenset[str]:
        """Classes that some graph does without: not wanted, read by somebody, and whoever reads one is itself optional
        or has an e-node that does not read it.
        """
        out = set[str]()
        for op in reversed(self.operators):
            t = op.output.tensor
            if t in out or t in self.wanted_classes or not self.readers[t]:
                continue
            if all(
                r in out or any(all(a.tensor != t for a in n.inputs) for n in self.nodes[r]) for r in self.readers[t]
            ):
                out.add(t)
        return frozenset(out)

    def count(self, tensor: str, node: Operator | None) -> int:
        """How often an e-node reads a class; an absent class reads nothing."""
        return 0 if node is None else sum(a.tensor == tensor for a in node.inputs)

    def operators_under(self, modes: Modes) -> dict[str, Operator | None]:
        """Every computed class with its e-node under modes, or None."""
        out: dict[str, Operator | None] = {}
        for t, nodes in self.nodes.items():
            wanted = modes.get(t, nodes[0].name)
            out[t] = None if wanted is None else next((n for n in nodes if n.name == wanted), None)
            if wanted is not None and out[t] is None:
                raise GraphError(f"class {t!r}", f"has no operator {wanted!r}")
        return out

    def graph(self, modes: Modes) -> Graph:
        """The program of some modes, whose axes stand in the order of the e-graph.  Raises `GraphError` for modes that
        do not fit together.

        Named as the user's where it is the user's, else with `+rewritten`.
        """
        settled = self.operators_under(modes)
        chosen = tuple(op for op in self.operators if settled[op.output.tensor] is op)
        read = {a.tensor for op in chosen for a in op.inputs}
        computed = {op.output.tensor for op in chosen}
        for t in self.nodes:
            if t in read | self.wanted_classes and t not in computed:
                raise GraphError(f"class {t!r}", "is read or wanted, and absent")
            if t in computed and t not in read | self.wanted_classes and t in self.optional:
                raise GraphError(f"class {t!r}", "is computed, and nobody reads it")
        same = {op.name for op in chosen} == {op.name for op in self.base.operators}
        name = self.base.name if same else f"{self.base.name}+rewritten"
        tensors = tuple(t for t in self.union.tensors if t.role is not Role.VALUE or t.name in computed)
        alone = Graph(name, tensors, chosen, self.base.outputs, self.base.state)
        if not self._in_order(alone):
            kept = {t.name for t in tensors}
            told = replace(
                alone, leading=tuple(at for at in leading_dimensions(self.user_order_graph) if at[0] in kept)
            )
            if not self._in_order(told):  # axes of one class here may be of two in the program
                asked = {key: order for key, order in self.orders.items() if key in axis_orders(alone)}
                other = replace(alone, leading=leading_of(alone, asked))
                told = other if self._in_order(other) else told
            alone = told
        return alone.check()

    def _in_order(self, program: Graph) -> bool:
        return all(self.orders[key] == order for key, order in axis_orders(program).items())

    @cached_property
    def orders(self) -> dict[str, tuple[str, ...]]:
        """The order of axes of all e-nodes and classes."""
        return axis_orders(self.user_order_graph)

    def close_modes(self, modes: Modes) -> dict[str, str | None]:
        """Modes in which what nobody reads is absent and what is read is computed (by the e-node named, else by the
        first), from the results backwards.
        """
        out: dict[str, str | None] = {}
        needed = set(self.wanted_classes) | {t for t in self.nodes if t not in self.optional}
        for op in reversed(self.operators):
            t = op.output.tensor
            if t in out:
                continue
            wanted = modes.get(t) or self.nodes[t][0].name
            out[t] = wanted if t in needed else None
            if t in needed:
                needed.update(a.tensor for n in self.nodes[t] if n.name == wanted for a in n.inputs)
        return out

    @cached_property
    def sha256(self) -> str:
        """Hash of the user's graph, the new classes and all e-nodes in order."""
        h = hashlib.sha256(self.base.sha256().encode())
        h.update(self.union.to_json().encode())
        return h.hexdigest()


def claim_flags(egraph: EGraph, rounds: int, library: str = LIBRARY) -> tuple[str, ...]:
    """What a claim about all programs of an e-graph says of them."""
    added = len(egraph.operators) - len(egraph.base.operators)
    rules = "+".join(name[:12] for name in library.split("+"))
    return (f"graphs: egraph({rules}, rounds {rounds}, {added} operators added)", "real-arithmetic")
