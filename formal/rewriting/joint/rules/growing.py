"""Grows an e-graph while operators are added to it, each with the step of its proof.

Classes with the same operator of the same operands are one by congruence (`twin`): whoever reads one may read the
other, and what becomes the same by that is one again.

An operator goes where it can run: after everything that computes what it reads, before everything that reads what it
computes, and before the next value of a parameter that it reads.  One that has no such place is left out; so is one
that is there already.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Final

from .....models.joint.egraph import EGraph
from .....models.joint.rules import DEFINE, EQUAL, LIBRARY
from .....models.program.graph import Graph, Role, Tensor
from .....models.program.index import Access, Affine
from .....models.program.operators import NodeKind, Operator, Value
from .....proofs.joint.books import Book
from .....proofs.joint.derivation import Derivation, Step
from .worth import Pays

NAMED: Final = "~"
"""What stands between the tensor and the number in the name of an added operator."""


@dataclass(frozen=True)
class Addition:
    """What one application of a rule adds: `operator`, equal to the first operator of `place`, and before it operators
    that define new tensors (which `operator` reads, and `place` may name).  Names of operators are given later; `place`
    holds operators that are there, and those defined.  `book`: the library that has the rule, None for those that are
    built in; `reads`: what its pattern inputs are, `numbers`: what its parameters are, `groups`: of which of their axes
    the dimensions of what it reads are part (`lifted`), where they are not the rule's.
    """

    rule: str
    operator: Operator
    place: tuple[Operator, ...]
    defined: tuple[tuple[Tensor, Operator], ...] = ()
    book: Book | None = None
    reads: tuple[str, ...] = ()
    numbers: tuple[tuple[str, int], ...] = ()
    groups: tuple[tuple[int, ...], ...] = ()


class Growing:
    """See the module docstring.  `pays`: what rules ask that pay on few machines only; None: they are applied."""

    def __init__(self, graph: Graph, pays: Pays | None = None) -> None:
        self.base, self.pays = graph, pays
        self._own = {op.name for op in graph.operators}
        self._wanted = {*graph.outputs, *(value for _, value in graph.state)}
        self.tensors: dict[str, Tensor] = {t.name: t for t in graph.tensors}
        self.order: list[Operator] = list(graph.operators)
        self._names = [op.name for op in self.order]
        self.steps: list[Step] = []
        self._known = {identity(op) for op in graph.operators}
        self._meaning: dict[object, str] = {}
        self._like: dict[object, Operator] = {}
        self._nodes: dict[str, list[Operator]] = {op.output.tensor: [op] for op in graph.operators}
        self._readers: dict[str, list[Operator]] = {}
        for op in graph.operators:
            self._read(op)
        self._taken = {op.name for op in graph.operators} | set(self.tensors)
        self._books: dict[str, Book] = {}
        self.by_libraries: set[str] = set()
        self._same: dict[object, Operator] = {}
        self._twins: dict[str, tuple[Operator, Operator]] = {}
        self.merged: list[str] = []
        for op in graph.operators:
            self._note(op)
            self._like.setdefault(identity(op, self.tensors[op.output.tensor]), op)

    def twin(self, tensor: str) -> tuple[Operator, Operator] | None:
        """An operator of a class, and the same operator of the class that stands for it; None for one that stands for
        itself.
        """
        return self._twins.get(tensor)

    def _note(self, op: Operator) -> None:
        """Join the class of an operator with one that has the same operator, and say so in `merged`."""
        if op.kind is NodeKind.OPAQUE:
            return
        other = self._same.setdefault(sameness(op, self.tensors[op.output.tensor]), op)
        ours, theirs = self._stands(op.output.tensor), self._stands(other.output.tensor)
        if ours == theirs:
            return
        if op.output.tensor == ours and (other.output.tensor != theirs or self._before(theirs, ours)):
            self._twins[ours] = (op, other)
            self.merged.append(ours)
        elif other.output.tensor == theirs:
            self._twins[theirs] = (other, op)
            self.merged.append(theirs)

    def _stands(self, tensor: str) -> str:
        while tensor in self._twins:
            tensor = self._twins[tensor][1].output.tensor
        return tensor

    def _before(self, one: str, other: str) -> bool:
        first, second = (min(self._names.index(op.name) for op in self._nodes[t]) for t in (one, other))
        return first < second

    def nodes(self, tensor: str) -> list[Operator]:
        """E-nodes of a class, the user's first."""
        return list(self._nodes.get(tensor, ()))

    def readers(self, tensor: str) -> list[Operator]:
        """E-nodes that read a class, the user's first."""
        return list(self._readers.get(tensor, ()))

    def only_for(self, tensor: str, reader: str) -> bool:
        """Whether only the user's operators of one class read another: then nothing else needs it."""
        found = {x.output.tensor for x in self._readers.get(tensor, ()) if x.name in self._own}
        return found == {reader} and tensor not in self._wanted

    def pays_beside(self, tensor: str, op: Operator, made: Operator) -> bool:
        """Whether `made`, which does what `op` does and what computes its operand `tensor`, may pay: another of the
        user's operators reads that class and is no map, which becomes part of no other, or it is wanted; so it is
        computed in every program, and `made` must take less than `op` alone.
        """
        others = (x for x in self._readers.get(tensor, ()) if x.name in self._own)
        kept = tensor in self._wanted or any(
            x.kind is not NodeKind.MAP and x.output.tensor != op.output.tensor for x in others
        )
        return not kept or self.pays is None or self.pays((op,), (made,), (), self.tensors)

    def _read(self, op: Operator) -> None:
        for t in dict.fromkeys(a.tensor for a in op.inputs):
            self._readers.setdefault(t, []).append(op)

    def tensor(self, name: str) -> Tensor:
        """A class."""
        return self.tensors[name]

    @property
    def added_operators(self) -> int:
        """Operators that the user's graph lacks."""
        return len(self.order) - len(self.base.operators)

    def add(self, a: Addition) -> bool:
        """Whether something was added."""
        if not a.defined and identity(a.operator) in self._known:
            return False
        before = (list(self.order), list(self.steps), dict(self.tensors))
        names, place, fresh, meant = dict[str, str](), a.place, list[Operator](), list[object]()
        for tensor, stated in a.defined:
            definition = _reading(stated, names)
            known = self._meaning.get(identity(definition, tensor))
            there = None if known is None else self.nodes(known)[0]
            if there is None and a.book is not None:
                there = self._like.get(identity(definition, tensor)) or self._like.get(_turned(definition, tensor))
            if there is not None:  # the same tensor by another name
                names[tensor.name] = there.output.tensor
                place = tuple(there if op is stated else op for op in place)
                continue
            name = self._name(tensor.name)
            made = replace(definition, name=name, output=replace(definition.output, tensor=name))
            names[tensor.name] = name
            place = tuple(made if op is stated else op for op in place)
            self.tensors[name] = replace(tensor, name=name)
            if not self._insert(made):
                self._forget(before, fresh, meant)
                return False
            self.steps.append(Step(DEFINE, made.name, (), facts(made)))
            meant.append(identity(definition, tensor))
            self._meaning[meant[-1]] = name
            fresh.append(made)
        operator = _reading(a.operator, names)
        common = a.book is not None and len({op.output.tensor for op in place}) < len(place)  # of both sides
        fits = a.rule == EQUAL or (self._one_type(operator, *place) and not common)
        is_there = identity(operator) in self._known or (a.book is not None and _turned(operator) in self._known)
        if is_there or not fits:
            self._forget(before, fresh, meant)
            return False
        operator = replace(operator, name=self._name(operator.output.tensor))
        if not self._insert(operator):
            self._forget(before, fresh, meant)
            return False
        self._known.update(identity(op) for op in (*fresh, operator))
        library = "" if a.book is None else a.book.identity
        self.steps.append(
            Step(
                a.rule,
                operator.name,
                tuple(op.name for op in place),
                (*facts(operator), *a.numbers),
                library,
                a.reads,
                a.groups,
            )
        )
        if a.book is not None:
            self._books[library] = a.book
            self.by_libraries |= {op.name for op in (*fresh, operator)}
        for op in (*fresh, operator):
            self._note(op)
            self._like.setdefault(identity(op, self.tensors[op.output.tensor]), op)
        return True

    def _one_type(self, *operators: Operator) -> bool:
        """Whether all real numbers that operators read and write are of one element type."""
        kinds = {self.tensors[a.tensor].dtype for op in operators for a in (*op.inputs, op.output)}
        return sum(k.startswith(("float", "bfloat")) for k in kinds) == 1

    def _forget(
        self,
        before: tuple[list[Operator], list[Step], dict[str, Tensor]],
        fresh: Sequence[Operator],
        meant: Sequence[object],
    ) -> None:
        """Take back `fresh` operators and what they `meant`."""
        gone = {op.name for op in fresh}
        for op in fresh:
            for nodes in (self._nodes[op.output.tensor], *(self._readers[a.tensor] for a in op.inputs)):
                nodes[:] = [w for w in nodes if w.name not in gone]
        self.order, self.steps, self.tensors = before
        self._names = [op.name for op in self.order] if gone else self._names
        for key in meant:
            del self._meaning[key]

    def egraph(self) -> EGraph:
        """What has grown."""
        given = {t.name for t in self.base.tensors}
        return EGraph(self.base, tuple(t for n, t in self.tensors.items() if n not in given), tuple(self.order))

    def derivation(self, rounds: int) -> Derivation:
        """The proof of every added operator."""
        return Derivation(LIBRARY, rounds, tuple(self.steps), tuple(self._books.values()))

    def _name(self, tensor: str) -> str:
        number = 1
        while f"{tensor}{NAMED}{number}" in self._taken:
            number += 1
        self._taken.add(f"{tensor}{NAMED}{number}")
        return f"{tensor}{NAMED}{number}"

    def _insert(self, op: Operator) -> bool:
        read, out = dict.fromkeys(a.tensor for a in op.inputs), op.output.tensor
        values = dict(self.base.state)
        parameters = {v: p for p, v in self.base.state}
        before = [w for t in read for w in self._nodes.get(t, ())]
        before += self._readers.get(parameters.get(out, ""), [])
        behind = [*self._readers.get(out, ()), *(w for t in read for w in self._nodes.get(values.get(t, ""), ()))]
        low = max((self._names.index(w.name) + 1 for w in before), default=0)
        high = min((self._names.index(r.name) for r in behind), default=len(self.order))
        # what is new is computed as soon as it can be
        own = min((self._names.index(w.name) for w in self._nodes.get(out, ())), default=-1)
        if low > high:
            return False
        at = max(low, min(high, own))
        self.order.insert(at, op)
        self._names.insert(at, op.name)
        self._nodes.setdefault(out, []).append(op)
        self._read(op)
        return True


def facts(node: Operator) -> tuple[tuple[str, int], ...]:
    """Sizes on which a step rests."""
    return tuple(
        (f"{'sum over' if a.combine else 'axis'} {a.name}{'' if a.splittable else ', never split'}", a.extent)
        for a in node.axes
    )


def _turned(op: Operator, tensor: Tensor | None = None) -> object:
    """The identity of an operator with its operands in the other order, where that computes the same."""
    turned = op.function in ("add", "multiply", "product") and len(op.inputs) == 2
    return identity(replace(op, inputs=op.inputs[::-1]) if turned else op, tensor)


def is_real_value(graph: Graph | Growing, tensor: str) -> bool:
    """Whether a class is computed, and by real numbers."""
    t = graph.tensor(tensor)
    return t.role is Role.VALUE and t.dtype.startswith(("float", "bfloat"))


def _reading(op: Operator, names: dict[str, str]) -> Operator:
    return replace(op, inputs=tuple(replace(a, tensor=names.get(a.tensor, a.tensor)) for a in op.inputs))


def sameness(op: Operator, tensor: Tensor) -> object:
    """What two operators have in common that are the same, whatever they compute: all but the names of axes, which
    count where an attribute may speak of them.
    """
    said = any(k not in PLAIN and _text(v) for k, v in op.attributes)
    names = {a.name: a.name if said else f"#{i}" for i, a in enumerate(op.axes)}

    def rename_axes(a: Access) -> Access:
        return Access(
            a.tensor, tuple(Affine(tuple((names[n], c) for n, c in i.terms), i.offset, i.whole) for i in a.index)
        )

    return (
        (op.function, op.attributes, tuple(replace(a, name=names[a.name]) for a in op.axes)),
        tuple(rename_axes(a) for a in op.inputs),
        rename_axes(op.output).index,
        (tensor.shape, tensor.dtype),
    )


PLAIN: Final = frozenset({"arithmetic", "approximate", "dtype", "epilogue"})
"""Attributes of text that speak of no axis."""


def _text(value: Value) -> bool:
    return isinstance(value, str) or (isinstance(value, tuple) and any(isinstance(v, str) for v in value))


def identity(op: Operator, tensor: Tensor | None = None) -> object:
    """What two equal operators have in common: names of axes do not count.  `tensor`: the new one that it defines."""
    number = {a: i for i, a in enumerate(op.output.axes)}
    for access in op.inputs:
        for a in access.axes:
            number.setdefault(a, len(number))
    for axis in op.axes:
        number.setdefault(axis.name, len(number))

    def index(i: Affine) -> object:
        return tuple((number[a], c) for a, c in i.terms), i.offset, i.whole

    return (
        op.function,
        op.attributes,
        tuple(sorted((number[a.name], a.extent, str(a.combine), a.splittable) for a in op.axes)),
        tuple((a.tensor, tuple(index(i) for i in a.index)) for a in op.inputs),
        op.output.tensor if tensor is None else (tensor.shape, tensor.dtype),
    )
