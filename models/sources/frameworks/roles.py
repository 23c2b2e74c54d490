r"""Roles of axes in a transformer, found by structure: what tensor, sequence, context, expert and data parallelism
split.

A dimension of a tensor and the axes that run over it are one *class* (joined where an access is a single axis over the
whole dimension).  Roles spread over classes from what has a structure of its own:

    attention    softmax of a product of two values, times a third: rows that all three have are batch b and heads
                 h; heads that keys have not, their groups g (the others are then k); queries s, keys t
    width m      what products with a weight sum whose result has heads: the projections of queries, keys and values
    hidden f     what a product with a weight makes of m, and another one sums back to m
    experts e    what a grouped product picks its weights by; their f by the same rule
    vocabulary v rows of a table that picks by an input of the program, and what the last product with a weight makes
                 of m

An axis without a role is whole on every device.  A product with a weight of which none of this holds is listed by name:
tensor parallelism says nothing of it.  The transformers of the zoo are written in these letters.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Final

from ...program.graph import Graph, Role
from ...program.operators import NodeKind, Operator
from ..training.derived import derived_keys

_LAYER: Final = re.compile(r"layer(\d*)\.", re.ASCII)
ZOO_LAYER: Final = re.compile(r"layer(\d+)\.", re.ASCII)
"""Names of operators and tensors of a layer in the zoo."""

_PATH: Final = re.compile(r"((?:[A-Za-z_]\w*\.|\d+\.)*?[A-Za-z_]\w*\.|layer)(\d+)\.", re.ASCII)
_HEADS: Final = ("h", "k", "g")

Node = tuple[str, str]
"""A dimension of a tensor, or an axis of an operator: its owner, and the number or name."""


@dataclass(frozen=True)
class Roles:
    """`letters`: operator -> axis -> role, of axes that have one; `layers`: how often attention is computed, and
    `repeated`: what names of one layer look like, its number first (None where they have no number in common);
    `unknown`: products with weights that have no role, in the order of the program.
    """

    letters: Mapping[str, Mapping[str, str]]
    layers: int
    repeated: re.Pattern[str] | None
    unknown: tuple[str, ...] = ()

    @property
    def letters_present(self) -> frozenset[str]:
        """The roles that some axis has."""
        return frozenset(letter for axes in self.letters.values() for letter in axes.values())


def of_zoo(graph: Graph) -> bool:
    """Whether a graph is a transformer of the zoo, whose axes are named by their roles."""
    names = {a.name for op in graph.operators for a in op.axes}
    return {"b", "s", "f"} <= names and bool(names & {"h", "k"}) and any(_LAYER.match(o.name) for o in graph.operators)


def roles(graph: Graph) -> Roles:
    """The roles of a graph: by name in the zoo, by structure elsewhere.

    >>> from ..zoo import build
    >>> found = roles(build("llama", layers=2, batch=8, sequence=64))
    >>> found.letters["layer0.ffn.down"]["f"], found.layers
    ('f', 2)
    """
    if not of_zoo(graph):
        return _Structure(graph).roles()
    layers = {m[1] for op in graph.operators if (m := _LAYER.match(op.name)) is not None}
    return Roles({op.name: {a.name: a.name for a in op.axes} for op in graph.operators}, len(layers), ZOO_LAYER)


class _Classes:
    """Dimensions and axes that run together."""

    def __init__(self) -> None:
        self._above: dict[Node, Node] = {}

    def find(self, node: Node) -> Node:
        root = node
        while (above := self._above.get(root, root)) != root:
            root = above
        while node != root:
            self._above[node], node = root, self._above.get(node, node)
        return root

    def join(self, a: Node, b: Node) -> None:
        a, b = sorted((self.find(a), self.find(b)))
        self._above[b] = a


@dataclass(frozen=True)
class _Attention:
    """Axes of one attention, as classes: rows that all operands have, groups, queries; `query` may be None."""

    shared: tuple[Node, ...]
    groups: tuple[Node, ...]
    query: Node | None

    def with_query(self, known: set[Node]) -> _Attention:
        """Keys of another sequence: the queries are those that have keys of their own elsewhere."""
        if self.query is not None or not (rows := [g for g in self.groups if g in known]):
            return self
        return _Attention(self.shared, tuple(g for g in self.groups if g != rows[0]), rows[0])


class _Structure:
    """The search for roles in one graph."""

    def __init__(self, graph: Graph) -> None:
        self.graph = graph
        later = derived_keys(graph)
        self.forward = [op for op in graph.operators if op.name not in later]
        self.by_output = {op.output.tensor: op for op in self.forward}
        self.classes = _joined(graph, graph.operators)
        self.letter: dict[Node, str] = {}
        self.keys: dict[Node, str] = {}  # classes of axes that stand beside the queries of their own operator
        self.pairs = _Classes()

    def axis(self, op: Operator, name: str) -> Node:
        return self.classes.find((f"op:{op.name}", name))

    def roles(self) -> Roles:
        both = [(op.name, a) for op in self.forward if (a := self._attention(op)) is not None]
        found = [a for _, a in both]
        queries = {a.query for a in found if a.query is not None}
        found = [a.with_query(queries) for a in found]
        batch = self._batch(found)
        if batch is not None:
            self.letter[batch] = "b"
        grouped = any(a.groups for a in found)
        for attention in found:
            if attention.query is not None:
                self.letter.setdefault(attention.query, "s")
            for node in attention.groups:
                self.letter.setdefault(node, "g")
            for node in attention.shared:
                self.letter.setdefault(node, "k" if grouped else "h")
        self._weights()
        self._side_by_side()
        out = {}
        for op in self.graph.operators:
            own = {a.name: self._of(op, a.name) for a in op.axes}
            out[op.name] = {name: letter for name, letter in own.items() if letter}
        unknown = tuple(op.name for op in self._products() if not self._has_role(op))
        return Roles(out, len(found), _repeated([name for name, _ in both]), unknown)

    def _of(self, op: Operator, axis: str) -> str:
        letter = self.letter.get(self.axis(op, axis), "")
        if letter != "s":
            return letter
        if op.kind is NodeKind.ATTENTION:
            return "t" if axis in _names(op, "key") else "s"
        beside = [a.name for a in op.axes if self.letter.get(self.axis(op, a.name)) == "s"]
        return self.keys.get(self.pairs.find((f"op:{op.name}", axis)), "s") if len(beside) > 1 else "s"

    # attention

    def _attention(self, op: Operator) -> _Attention | None:
        if op.function == "attention":
            q, k, v = (set(op.inputs[i].axes) for i in range(3))
            inner = {*_names(op, "feature"), *_names(op, "value_feature"), *_names(op, "key")}
            rows = [a.name for a in op.axes if a.name not in inner and a.name in q]
            query = next(iter(_names(op, "query")), "") or next(
                (r for r in rows if r not in k and self._runs_with_keys(op, r)), ""
            )
            return self._named(op, rows, k & v, query)
        if op.function != "softmax" or len(op.over) != 1:
            return None
        scores = self._behind(op.inputs[0].tensor)
        if scores is None or scores.kind is not NodeKind.CONTRACT or len(scores.inputs) != 2:
            return None
        if any(self.graph.tensor(a.tensor).role is Role.PARAMETER for a in scores.inputs):
            return None
        key = self._same_axis(op, op.over[0], scores)
        sides = [set(a.axes) for a in scores.inputs]
        if key is None or (key in sides[0]) == (key in sides[1]):
            return None
        queries, keys = (sides[1], sides[0]) if key in sides[0] else (sides[0], sides[1])
        rows = [a.name for a in scores.axes if a.combine is None and a.name in queries and a.name != key]
        same = self.axis(scores, key)
        query = next((r for r in rows if r not in keys and self.axis(scores, r) == same), "")
        return self._named(scores, rows, keys, query)

    def _named(self, op: Operator, rows: list[str], keys: set[str], query: str) -> _Attention:
        shared = tuple(self.axis(op, r) for r in rows if r in keys)
        groups = tuple(self.axis(op, r) for r in rows if r not in keys and r != query)
        return _Attention(shared, groups, self.axis(op, query) if query else None)

    def _runs_with_keys(self, op: Operator, row: str) -> bool:
        return any(self.axis(op, row) == self.axis(op, t) for t in _names(op, "key"))

    def _behind(self, tensor: str) -> Operator | None:
        """What computed a tensor, maps with scales and masks left out."""
        for _ in range(16):
            op = self.by_output.get(tensor)
            if op is None or op.kind not in (NodeKind.MAP, NodeKind.LAYOUT) or not op.inputs:
                return op
            rank = len(self.graph.tensor(op.output.tensor).shape)
            wide = [a.tensor for a in op.inputs if len(self.graph.tensor(a.tensor).shape) == rank]
            made = [t for t in wide if t in self.by_output]
            if not made:
                return op
            tensor = made[0]
        return None

    def _same_axis(self, op: Operator, axis: str, other: Operator) -> str | None:
        """The axis of another operator that lies at the same place of its result."""
        at = next((i for i, index in enumerate(op.inputs[0].index) if index.single == axis), None)
        index = other.output.index
        if at is None or len(index) != len(op.inputs[0].index):
            return None
        return index[at].single

    def _batch(self, found: list[_Attention]) -> Node | None:
        """The class of examples: the first dimension of what the program is given, which attention keeps apart."""
        given = [t for t in self.graph.tensors if t.role is Role.INPUT and t.contents is None and t.shape]
        given = [t for t in given if not t.name.startswith("constant.")]
        rows = [n for a in found for n in a.shared]
        for tensor in given:
            for dim in range(len(tensor.shape)):
                node = self.classes.find((f"tensor:{tensor.name}", str(dim)))
                if node in rows:
                    return node
        if found or not given:
            return None
        firsts = {self.classes.find((f"tensor:{t.name}", "0")) for t in given}
        return firsts.pop() if len(firsts) == 1 else None

    # weights

    def _products(self) -> list[Operator]:
        kinds = (NodeKind.CONTRACT, NodeKind.GROUPED)
        return [op for op in self.forward if op.kind in kinds and self._weight(op) is not None]

    def _weight(self, op: Operator) -> set[str] | None:
        """Axes of the weight of a product; None for products of values."""
        for operand in op.inputs[:2]:
            if self._of_parameter(operand.tensor):
                others = [a for a in op.inputs[:2] if a is not operand]
                return None if any(self._of_parameter(a.tensor) for a in others) else set(operand.axes)
        return None

    def _of_parameter(self, tensor: str) -> bool:
        """A weight, or one that layouts and casts made of it."""
        for _ in range(8):
            if self.graph.tensor(tensor).role is Role.PARAMETER:
                return True
            op = self.by_output.get(tensor)
            if op is None or op.kind not in (NodeKind.MAP, NodeKind.LAYOUT) or len(op.inputs) != 1:
                return False
            tensor = op.inputs[0].tensor
        return False

    def _ends(self, op: Operator) -> tuple[list[Node], list[Node]]:
        """Classes that a product with a weight sums, and those that the weight brings to its result."""
        weight = self._weight(op) or set()
        skip = set(self._experts(op))
        summed = [self.axis(op, a.name) for a in op.axes if a.combine is not None and a.name in weight - skip]
        made = [self.axis(op, a.name) for a in op.axes if a.combine is None and a.name in weight - skip]
        return summed, made

    def _experts(self, op: Operator) -> tuple[str, ...]:
        """Axes that tell the weights of a product apart: of a grouped one, or those of weight, values and result."""
        if op.kind is NodeKind.GROUPED:
            return (op.rows,)
        values = [a for a in op.inputs[:2] if not self._of_parameter(a.tensor)]
        common = (self._weight(op) or set()) & {x for a in values for x in a.axes} & set(op.output.axes)
        return tuple(a.name for a in op.axes if a.name in common)

    def _weights(self) -> None:
        products = self._products()
        ends = {op.name: self._ends(op) for op in products}
        heads = {node for node, letter in self.letter.items() if letter in _HEADS}
        for op in products:
            summed, made = ends[op.name]
            if heads & set(made) and not heads & set(summed):
                for node in summed:
                    self.letter.setdefault(node, "m")
        width = {node for node, letter in self.letter.items() if letter == "m"}
        for op in products:
            summed, made = ends[op.name]
            for name in self._experts(op):
                self.letter.setdefault(self.axis(op, name), "e")
            if width & set(made):
                continue
            back = [o for o in products if width & set(ends[o.name][1]) and set(ends[o.name][0]) & set(made)]
            if width & set(summed) and not heads & set(made):
                for node in (n for o in back for n in ends[o.name][0] if n in made):
                    self.letter.setdefault(node, "f")
        self._vocabulary(products, ends, width)

    def _vocabulary(
        self, products: list[Operator], ends: dict[str, tuple[list[Node], list[Node]]], width: set[Node]
    ) -> None:
        for op in self.forward:
            if op.kind is NodeKind.GATHER and self.graph.tensor(op.inputs[0].tensor).role is Role.PARAMETER:
                ids = op.inputs[1].tensor
                if self.graph.tensor(ids).role is Role.INPUT and not ids.startswith("constant."):
                    self.letter.setdefault(self.axis(op, op.rows), "v")
        last = products[-1] if products else None
        if last is None or last.kind is NodeKind.GROUPED:
            return
        summed, made = ends[last.name]
        summed_elsewhere = {n for o in products for n in ends[o.name][0]}
        if width & set(summed) and not any(n in self.letter or n in summed_elsewhere for n in made):
            for node in made:
                self.letter[node] = "v"

    def _has_role(self, op: Operator) -> bool:
        """Whether tensor parallelism splits a product with a weight, or it is a router of experts."""
        if not any(letter == "m" for letter in self.letter.values()):
            return True  # no transformer: nothing is asked of its products
        summed, made = self._ends(op)
        if any(self.letter.get(n) in (*_HEADS, "f", "v") for n in (*summed, *made)):
            return True
        experts = {o.axis(name).extent for o in self._products() for name in self._experts(o)}
        extents = {a.extent for a in op.axes if self.axis(op, a.name) in made}
        return any(self.letter.get(n) == "m" for n in summed) and bool(experts) and extents <= experts

    # keys beside queries

    def _side_by_side(self) -> None:
        """Tells keys from queries where an operator has both: what a softmax runs over, and whatever goes with it."""
        both = []
        for op in self.graph.operators:
            names = [a.name for a in op.axes if self.letter.get(self.axis(op, a.name)) == "s"]
            if len(names) > 1 and op.kind is not NodeKind.ATTENTION:
                both.append(op)
        self.pairs = _joined(self.graph, both)
        for op in both:
            if op.function == "softmax":
                for name in op.over:
                    self.keys[self.pairs.find((f"op:{op.name}", name))] = "t"


def _joined(graph: Graph, operators: Iterable[Operator]) -> _Classes:
    classes = _Classes()
    for op in operators:
        extents = {a.name: a.extent for a in op.axes}
        for access in (*op.inputs, op.output):
            shape = graph.tensor(access.tensor).shape
            for dim, index in enumerate(access.index):
                axis = index.single
                if axis is not None and extents[axis] == shape[dim] and shape[dim] > 1:
                    classes.join((f"tensor:{access.tensor}", str(dim)), (f"op:{op.name}", axis))
    return classes


def _repeated(attentions: list[str]) -> re.Pattern[str] | None:
    """Names of what lies in one layer: those that begin as attention's do, up to a number of its own in each layer."""
    found = [_PATH.match(name) for name in attentions]
    fronts = {m[1] for m in found if m is not None}
    numbers = {m[2] for m in found if m is not None}
    if len(fronts) != 1 or len(numbers) != len(attentions):
        return None
    return re.compile(rf"(?<![\w.]){re.escape(fronts.pop())}(\d+)\.", re.ASCII)


def _names(op: Operator, role: str) -> tuple[str, ...]:
    value = op.attribute(role, ())
    return tuple(str(v) for v in value) if isinstance(value, tuple) else (str(value),)
