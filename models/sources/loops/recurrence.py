"""Writes a recurrence as one `scan` and what stands around it: the loop keeps what needs the turn before.

    c = c + v(s)         where v needs no c:  the sum of v over the turns, made outside (a weight's gradient, a total)
    before               what needs no carry is written for all turns at once           (`building.lifting`)
    inside               what leads from carry to carry: the body of the scan
    after                what needs a carry and is needed by none: inside, or for all turns at once outside, whichever
                         leaves less to store of a turn and takes no rows from the loop

Who finds a recurrence (`jax`, `rerolled`) says what one turn does; that it is a loop of the language is tested here, by
`models.program.scan`, and `NoLoop` says what it lacks.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from math import prod
from typing import Final

from ...program.graph import Graph, GraphError, Role, Tensor
from ...program.index import Access, Affine, Axis, access
from ...program.operators import NodeKind, Operator
from ...program.scan import EACH, KINDS, LAST, REFUSED, SCAN, results, wrong
from ..building.lifting import Emit, Lifted, Lifter, as_graph, compose_access, parts
from ..building.scan import Loop, operator, result_copy
from .rows import rows_of

_OUTSIDE: Final = frozenset({*KINDS, NodeKind.WINDOW.value})
_PLACED: Final = frozenset({"update", "local_response", "strided_gradient", "fused_product"})
"""What may be written for all turns at once: kinds, and functions of them whose attributes name places."""


class NoLoop(Exception):
    """A recurrence that is no loop of the language; its text says why."""


@dataclass(frozen=True)
class Recurrence:
    """One turn: `body`, whose inputs are carries, and values that are there for every turn or the same in all.

    `carries`: (carry, next value).  `starts`: how every carry begins, its dimensions called as `Lifted.names` says.
    `known`: the other inputs, with the axis `turn` where they differ from turn to turn.  `each`: values wanted of every
    turn, `last`: carries wanted after the last one.  `reverse`: from the last position along `turn` to the first.
    """

    name: str
    body: Graph
    carries: tuple[tuple[str, str], ...]
    starts: tuple[Lifted, ...]
    known: Mapping[str, Lifted]
    each: tuple[str, ...]
    last: tuple[str, ...]
    turn: str
    turns: int
    reverse: bool = False


@dataclass(frozen=True)
class Written:
    """Where results stand: values of every turn (with the axis of turns), carries after the last."""

    each: dict[str, Lifted] = field(default_factory=dict)
    last: dict[str, Lifted] = field(default_factory=dict)


def write(r: Recurrence, emit: Emit, tensor: Callable[[str], Tensor]) -> Written:
    """Write the loop through `emit`, which names tensors; `tensor` finds one that was written.  Raises `NoLoop`; what
    was written till then is to be dropped.
    """
    try:
        return _Writer(r, emit, tensor).write_loop()
    except GraphError as e:
        raise NoLoop(str(e)) from None


class _Writer:
    def __init__(self, r: Recurrence, emit: Emit, tensor: Callable[[str], Tensor]) -> None:
        self.r, self.emit, self.tensor = r, emit, tensor
        self.lifter = Lifter(emit, self.r.body, r.turn, r.turns, r.known, f"{r.name}/")
        self.writer = {op.output.tensor: op for op in self.r.body.operators}
        self.out = Written()

    def write_loop(self) -> Written:
        r = self.r
        totals = self._totals()
        carries = [c for c in r.carries if c[0] not in totals]
        wanted = {*r.each, *(a.tensor for added in totals.values() for a in added)}
        apart = parts(r.body.operators, [c for c, _ in carries], [n for _, n in carries], wanted)
        inside, after = [*apart.inside], [*apart.after]
        carries, inside = self._computed(carries, inside)
        if after and not totals and self._stays(carries, inside, after):
            inside, after = [op for op in self.r.body.operators if op in {*inside, *after}], []
        for op in (*apart.before, *after):
            if op.kind.value not in _OUTSIDE or op.function in _PLACED:
                raise NoLoop(f"{op.name!r}: {op.function} is not written for all iterations at once")
        left = self._left(carries, inside, after, wanted)
        if carries:
            self._loop(carries, inside, left)
        for name in r.each:
            self.lifter.need(name)
            self.out.each[name] = self.lifter.known[name]
        for carry, added in totals.items():
            self.out.last[carry] = self._sum(carry, added)
        return self.out

    def _computed(
        self, carries: Sequence[tuple[str, str]], inside: Sequence[Operator]
    ) -> tuple[list[tuple[str, str]], list[Operator]]:
        """Carries, every next value of which an operator of the loop computes, and those operators: a carry may become
        what another one is or becomes, or what no turn changes.
        """
        r, written, seen = self.r, {op.output.tensor for op in inside}, set[str]()
        made, out = list[Operator](), list[tuple[str, str]]()
        tensors = list[Tensor]()
        for carry, following in carries:
            if following not in written or following in seen:
                t, name = r.body.tensor(following), f"next {carry}"
                axes = tuple(Axis(f"i{k}", n) for k, n in enumerate(t.shape))
                index = tuple(Affine.axis(a.name) for a in axes)
                made.append(Operator(name, "identity", axes, (Access(following, index),), Access(name, index)))
                tensors.append(replace(t, name=name, role=Role.VALUE))
                following = name
            seen.add(following)
            out.append((carry, following))
        if made:
            body = replace(r.body, tensors=(*r.body.tensors, *tensors), operators=(*r.body.operators, *made))
            self.r, self.lifter.body = replace(r, body=body), body
        return out, [*inside, *made]

    def _totals(self) -> dict[str, list[Access]]:
        """Carries that only add up what needs none of them -> what is added, as it is read."""
        r, out = self.r, dict[str, list[Access]]()
        following = [n for _, n in r.carries]
        for carry, name in r.carries:
            added, now = list[Access](), carry
            while now != name and (op := self._adder(now)) is not None:
                added += [a for a in op.inputs if a.tensor != now]
                now = op.output.tensor
                if now in following and now != name:
                    break
            used = any(a.tensor == name for o in r.body.operators for a in o.inputs)
            alone = not used and not {name, carry} & {*r.each} and following.count(name) == 1
            if now == name and added and alone and all(self._varies(a.tensor) for a in added):
                out[carry] = added
        return out

    def _adder(self, name: str) -> Operator | None:
        """The operator that adds one other value to a value which nobody else reads."""
        readers = [op for op in self.r.body.operators if any(a.tensor == name for a in op.inputs)]
        if len(readers) != 1 or name in self.r.each:
            return None
        (op,) = readers
        mine = [a for a in op.inputs if a.tensor == name]
        fits = op.function in ("add", "sum_inputs") and len(op.inputs) == 2 and len(mine) == 1
        shape, extents = self.r.body.tensor(name).shape, tuple(op.axis(n).extent for n in op.output.axes)
        return op if fits and mine[0].index == op.output.index and shape == extents else None

    def _varies(self, value: str) -> bool:
        """Whether a value of the body needs a turn or a carry."""
        moving = {c for c, _ in self.r.carries} | {n for n, v in self.r.known.items() if self.r.turn in v.access.axes}
        for op in self.r.body.operators:
            if any(a.tensor in moving for a in op.inputs):
                moving.add(op.output.tensor)
        return value in moving

    def _stays(self, carries: Sequence[tuple[str, str]], inside: Sequence[Operator], after: Sequence[Operator]) -> bool:
        """Whether what follows a carry stays in the loop: it may, keeps the rows, and leaves less of every turn."""
        if any(op.kind.value not in KINDS or op.function in REFUSED for op in after):
            return False
        both = [op for op in self.r.body.operators if op in {*inside, *after}]
        if len(self._rows(carries, both)) < len(self._rows(carries, inside)):
            return False
        size = self._size
        return size(self._left(carries, both, [], self.r.each)) < size(self._left(carries, inside, after, self.r.each))

    def _size(self, names: Iterable[str]) -> int:
        return sum(prod(self.r.body.tensor(n).shape) for n in names)

    def _rows(self, carries: Sequence[tuple[str, str]], inside: Sequence[Operator]) -> list[dict[str, int]]:
        return rows_of(inside, carries, {t.name: t.shape for t in self.r.body.tensors})

    def _left(
        self,
        carries: Sequence[tuple[str, str]],
        inside: Sequence[Operator],
        after: Sequence[Operator],
        wanted: Iterable[str],
    ) -> list[str]:
        """What the loop leaves of every turn."""
        read = {a.tensor for op in after for a in op.inputs} | {*wanted}
        own = [*(c for c, _ in carries), *(op.output.tensor for op in inside)]
        return [t for t in own if t in read]

    def _loop(self, carries: Sequence[tuple[str, str]], inside: Sequence[Operator], left: Sequence[str]) -> None:
        """The scan, and a copy per result."""
        r, body, lifter = self.r, self.r.body, self.lifter
        within = {c for c, _ in carries} | {op.output.tensor for op in inside}
        used = list(dict.fromkeys(a.tensor for op in inside for a in op.inputs if a.tensor not in within))
        for name in used:
            lifter.need(name)
        entering = [c for c, _ in carries]
        made = as_graph(r.name, body, [*entering, *used], inside, [n for _, n in carries])
        rows = self._rows(carries, inside)
        texts, inputs = [], []
        starts = {c: s for (c, _), s in zip(r.carries, r.starts, strict=True)}
        for k, name in enumerate((*entering, *used)):
            value = starts[name] if name in starts else self._plain(name)
            of = {row[name]: f"r{j}" for j, row in enumerate(rows) if name in row}
            names = tuple(of.get(d, f"v{k}.{d}") for d in range(len(body.tensor(name).shape)))
            lead = (r.turn,) if r.turn in value.access.axes else ()
            inputs.append(_renamed(value, names))
            texts.append(" ".join((*lead, *names)))
        wanted = [f"{EACH}{n}" for n in left]
        wanted += [f"{LAST}{c}" for c, _ in carries if c in r.last]
        if not wanted:
            return
        own = tuple(f"r{j}" for j in range(len(rows)))
        loop = Loop(made, len(carries), tuple(texts), own, r.turn, r.turns, tuple(wanted), r.reverse)
        op = operator(r.name, loop, inputs)
        dtype = body.tensor(entering[0]).dtype
        tensors = {a.tensor: self.tensor(a.tensor) for a in inputs}
        extent = {a.name: a.extent for a in op.axes}
        tensors[r.name] = Tensor(r.name, tuple(extent[a] for a in op.output.axes), dtype)
        if reason := wrong(op, Graph(r.name, tuple(tensors.values()), (op,), ())):
            raise NoLoop(reason)
        packed = self.emit(r.name, SCAN, op.axes, op.inputs, op.output.axes, op.attributes, dtype)
        op = replace(op, output=replace(op.output, tensor=packed))
        for result in results(op, made):
            axes, read, out = result_copy(op, result)
            copied = self.emit(f"{r.name}/{result.name}", "copy", axes, [read], out, (), dtype)
            of = {row[result.name]: f"r{j}" for j, row in enumerate(rows) if result.name in row}
            count = iter(range(len(body.tensor(result.name).shape)))
            names = tuple(of.get(d) or f"i{next(count)}" for d in range(len(body.tensor(result.name).shape)))
            value = Lifted(names, access(copied, *out))
            if result.each:
                lifter.known[result.name] = value
            else:
                self.out.last[result.name] = value

    def _plain(self, name: str) -> Lifted:
        """A value that a loop can read: axis by axis, or at one place."""
        value = self.lifter.known[name]
        single = [i.single for i in value.access.index if i.terms]
        if None not in single and len({*single}) == len(single) and not any(i.whole for i in value.access.index):
            return value
        return self.lifter.plain(name)

    def _sum(self, carry: str, added: Sequence[Access]) -> Lifted:
        """How a carry began, and the sums of what was added."""
        start = self.r.starts[[c for c, _ in self.r.carries].index(carry)]
        op, t = self.writer[dict(self.r.carries)[carry]], self.r.body.tensor(carry)
        adders = [o for o in self.r.body.operators if any(a in added for a in o.inputs)]
        reads, names = [_renamed(start, op.output.axes)], op.output.axes
        for a in added:
            own = next(o for o in adders if a in o.inputs).output.axes
            reads.append(compose_access(self.lifter.total(a.tensor), a, dict(zip(own, names, strict=True))))
        made = self.emit(f"{self.r.name}/{carry}", "sum_inputs", op.axes, reads, names, (), t.dtype)
        return Lifted(tuple(names), access(made, *names))


def _renamed(value: Lifted, names: Sequence[str]) -> Access:
    """The access of a value by other names of its dimensions."""
    of = dict(zip(value.names, names, strict=True))
    index = (replace(i, terms=tuple((of.get(n, n), c) for n, c in i.terms)) for i in value.access.index)
    return Access(value.access.tensor, tuple(index))
