"""Takes loops apart: what of a body does not need the last turn is done for all turns at once.

    inside   operators that depend on a carry and on which a next carry depends
    before   operators of no carry, which the others read
    after    operators of a carry that no next carry needs

An operator outside has the axis of turns beside its own; what it reads of a turn, it reads of all of them.  A sum over
the turns (the gradient of a weight) is made where the numbers are multiplied, not after.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Final, Protocol

from ...program.graph import Graph, GraphError, Role
from ...program.index import Access, Affine, Axis, Combine
from ...program.operators import NodeKind, Operator, Value

LINEAR: Final = frozenset({"sum_inputs", "copy", "copy_gradient", "identity", "negate", "scale", "sum"})
"""Functions that may follow a sum over turns instead of going before it."""


class Emit(Protocol):
    """Adds an operator outside of the loop and returns what it writes."""

    def __call__(
        self,
        name: str,
        function: str,
        axes: Sequence[Axis],
        inputs: Sequence[Access],
        out: Sequence[str],
        attributes: Sequence[tuple[str, Value]] = ...,
        dtype: str = ...,
    ) -> str: ...


@dataclass(frozen=True)
class Lifted:
    """A value of the body outside of it: dimension k of the body is axis `names[k]` of the access (an axis it lacks: it
    is the same all along it), beside the axis of turns."""

    names: tuple[str, ...]
    access: Access


@dataclass(frozen=True)
class Parts:
    """Operators of a body by where they belong; see the module's docstring."""

    before: tuple[Operator, ...]
    inside: tuple[Operator, ...]
    after: tuple[Operator, ...]


def parts(
    operators: Sequence[Operator], carried: Iterable[str], following: Iterable[str], wanted: Iterable[str]
) -> Parts:
    """The operators of a body apart; `carried`: its carries, `following`: their next values, `wanted`: what else is
    read outside.  What nobody needs is left out.
    """
    live, needed = {*following, *wanted}, set(following)
    for op in reversed(operators):
        live |= {a.tensor for a in op.inputs} if op.output.tensor in live else set()
        needed |= {a.tensor for a in op.inputs} if op.output.tensor in needed else set()
    moving = {*carried}
    for op in operators:
        if any(a.tensor in moving for a in op.inputs):
            moving.add(op.output.tensor)
    kept = [op for op in operators if op.output.tensor in live]
    return Parts(
        tuple(op for op in kept if op.output.tensor not in moving),
        tuple(op for op in kept if op.output.tensor in moving & needed),
        tuple(op for op in kept if op.output.tensor in moving - needed),
    )


class Lifter:
    """Writes operators of `body` outside, with the axis `turn` of `turns`; `known`: values of the body that are there
    already.  `prefix` begins the names of what is written.
    """

    def __init__(
        self, emit: Emit, body: Graph, turn: str, turns: int, known: Mapping[str, Lifted], prefix: str
    ) -> None:
        self.emit, self.body, self.turns, self.prefix = emit, body, turns, prefix
        self.known = dict(known)
        self.turn = turn
        self._whole: dict[str, Lifted] = {}
        self._sums: dict[str, Lifted] = {}
        self._writer = {op.output.tensor: op for op in body.operators}

    def varies(self, tensor: str) -> bool:
        """Whether a value differs from turn to turn."""
        return self.turn in self.known[tensor].access.axes

    def lift(self, op: Operator) -> None:
        """Write an operator for all turns."""
        names = self._free(op)
        varies = any(self.varies(a.tensor) for a in op.inputs)
        axes = [replace(a, name=names[a.name]) for a in op.axes]
        lead = [Axis(self.turn, self.turns)] if varies else []
        inputs = [self._read(op, a, names) for a in op.inputs]
        out = [*(a.name for a in lead), *(names[n] for n in op.output.axes)]
        given = self._attributes(op, names, len(lead))
        tensor = op.output.tensor
        made = self.emit(self.prefix + tensor, op.function, [*lead, *axes], inputs, out, given, self._dtype(tensor))
        self.known[tensor] = self._of(made, tensor, bool(lead))

    def total(self, tensor: str) -> Lifted:
        """A value summed over all turns."""
        if tensor not in self._sums:
            self._sums[tensor] = self._total(tensor)
        return self._sums[tensor]

    def _total(self, tensor: str) -> Lifted:
        op, shape = self._writer.get(tensor), self.body.tensor(tensor).shape
        if op is not None and tensor not in self.known:
            names = self._free(op)
            axes, out = [replace(a, name=names[a.name]) for a in op.axes], [names[n] for n in op.output.axes]
            given, dtype = self._attributes(op, names, 0), self._dtype(tensor)
            if op.kind is NodeKind.CONTRACT or (op.function == "sum" and not op.attribute("over", ())):
                for a in op.inputs:
                    self.need(a.tensor)
                inputs = [self._read(op, a, names) for a in op.inputs]
                if any(self.varies(a.tensor) for a in op.inputs):
                    axes.append(Axis(self.turn, self.turns, Combine.SUM))
                    made = self.emit(f"{self.prefix}{tensor}", op.function, axes, inputs, out, given, dtype)
                    return self._of(made, tensor, False)
            elif op.function in LINEAR:
                sums = {a.tensor: self.total(a.tensor) for a in op.inputs}
                inputs = [compose_access(sums[a.tensor], a, names) for a in op.inputs]
                made = self.emit(f"{self.prefix}{tensor}", op.function, axes, inputs, out, given, dtype)
                return self._of(made, tensor, False)
        self.need(tensor)
        names_ = [f"d{k}" for k in range(len(shape))]
        axes = [*(Axis(n, e) for n, e in zip(names_, shape, strict=True)), Axis(self.turn, self.turns, Combine.SUM)]
        reads = compose_access(
            self.known[tensor], Access(tensor, tuple(map(Affine.axis, names_))), {n: n for n in names_}
        )
        if not self.varies(tensor):
            raise GraphError(f"loop value {tensor!r}", "is the same in every iteration, so its sum is no gradient")
        made = self.emit(f"{self.prefix}{tensor}/turns", "sum", axes, [reads], names_, (), self._dtype(tensor))
        return self._of(made, tensor, False)

    def need(self, tensor: str) -> None:
        """Write a value outside, and what it is made of."""
        if tensor in self.known:
            return
        op = self._writer[tensor]
        for a in op.inputs:
            self.need(a.tensor)
        self.lift(op)

    def _dtype(self, tensor: str) -> str:
        return self.body.tensor(tensor).dtype

    def _of(self, made: str, tensor: str, varies: bool) -> Lifted:
        names = tuple(f"d{k}" for k in range(len(self.body.tensor(tensor).shape)))
        lead = (self.turn,) if varies else ()
        return Lifted(names, Access(made, tuple(map(Affine.axis, (*lead, *names)))))

    def _free(self, op: Operator) -> dict[str, str]:
        """Names for the operator's axes that are not that of the turns."""
        names = {a.name: a.name for a in op.axes}
        while self.turn in names.values():
            names = {k: f"{v}'" if v == self.turn else v for k, v in names.items()}
        return names

    def _read(self, op: Operator, a: Access, names: Mapping[str, str]) -> Access:
        value = self.known[a.tensor]
        box = {x.name: (0, x.extent) for x in op.axes}
        shape = self.body.tensor(a.tensor).shape
        inside = all(
            not i.whole and i.unclipped_interval(box)[0] >= 0 and i.unclipped_interval(box)[1] <= n
            for i, n in zip(a.index, shape, strict=True)
        )
        return compose_access(value if inside else self.plain(a.tensor), a, names)

    def plain(self, tensor: str) -> Lifted:
        """The value as a tensor with the dimensions of the body, which what is read whole or beside its ends needs."""
        value = self.known[tensor]
        wanted = ((self.turn,) if self.varies(tensor) else ()) + value.names
        if value.access.index == tuple(map(Affine.axis, wanted)):
            return value
        if tensor not in self._whole:
            shape = self.body.tensor(tensor).shape
            axes = [Axis(n, e) for n, e in zip(value.names, shape, strict=True)]
            axes = [*([Axis(self.turn, self.turns)] if self.varies(tensor) else []), *axes]
            made = self.emit(
                f"{self.prefix}{tensor}/all", "copy", axes, [value.access], wanted, (), self._dtype(tensor)
            )
            self._whole[tensor] = Lifted(value.names, Access(made, tuple(map(Affine.axis, wanted))))
        return self._whole[tensor]

    def _attributes(self, op: Operator, names: Mapping[str, str], shift: int) -> list[tuple[str, Value]]:
        """Attributes with the axes' new names, and dimensions counted from the axis of turns."""
        out: list[tuple[str, Value]] = []
        for key, value in op.attributes:
            if key in ("over", "positional") and isinstance(value, tuple):
                value = tuple(names[str(v)] for v in value)
            if key in ("at", "from") and isinstance(value, tuple) and op.function.endswith("_gradient"):
                value = tuple(int(v) + shift for v in value)
            out.append((key, value))
        return out


def compose_access(value: Lifted, a: Access, names: Mapping[str, str]) -> Access:
    """How an operator outside reads what one of the body read at `a`."""
    index = {n: _renamed(i, names) for n, i in zip(value.names, a.index, strict=True)}
    found = tuple(index.get(i.terms[0][0], i) if i.terms else i for i in value.access.index)
    return Access(value.access.tensor, found)


def _renamed(index: Affine, names: Mapping[str, str]) -> Affine:
    return Affine(tuple((names[n], c) for n, c in index.terms), index.offset, index.whole)


def as_graph(
    name: str, body: Graph, inputs: Sequence[str], operators: Sequence[Operator], outputs: Sequence[str]
) -> Graph:
    """A body of some of the operators; `inputs` are given, in this order."""
    kept = {op.output.tensor for op in operators}
    given = [replace(body.tensor(t), role=Role.INPUT, source_shape=None) for t in inputs]
    made = [replace(t, role=Role.VALUE, source_shape=None) for t in body.tensors if t.name in kept]
    return Graph(name, (*given, *made), tuple(operators), tuple(outputs)).check()


def splittable(candidates: Sequence[str], works: Callable[[Sequence[str]], bool]) -> tuple[str, ...]:
    """Of the candidates those that `works` of, each on its own and all together.

    >>> splittable(["a", "b"], lambda names: "b" not in names)
    ('a',)
    """
    alone = [n for n in candidates if works([n])]
    while alone and not works(alone):
        alone.pop()
    return tuple(alone)
