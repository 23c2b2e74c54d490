"""Compares programs of ranks with the program of one device: forms of all tensors, step by step, then the outputs.

    one device   every tensor of numbers gets a name, and stands for its form from then on
    ranks        run beside one another; collectives are sums, greatest elements and concatenations of the tensors of
                 their group; a form that has a name gets it; a tensor of which a relation says that it is a part of one
                 of the one device is that part from then on, if it is seen to be (`unfolding`)
    outputs      in the part that a rank says it has, its form is the form of the whole, at every position; the ranks
                 together have every position

All of it holds for the sizes of the programs, for all real values of their inputs.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from fractions import Fraction
from itertools import pairwise, product
from math import prod
from typing import Final

from ...models.equality.pair import Given, Known, Pair, Part, Relation, Runs
from ...models.equality.program import Source, Step
from ...models.equality.schedule import Meeting, Stuck, meetings
from .digits import meet
from .functions import Forms
from .index import Index, Undecided, constant
from .meaning import Meaning, real
from .segments import Segments, Tensor
from .steps import Malformed, require_shape, require_step
from .terms import Form, Head, Kind
from .unfolding import Unfolding
from .values import MOST_PIECES, Tensors, Value, require_few

MOST_CELLS: Final = 1 << 14
"""Into which parts may cut a tensor."""


@dataclass(frozen=True)
class Outcome:
    """`equal`, or why not: `place` is the output with its rank, `reason` what is not seen to be equal there."""

    equal: bool
    place: str = ""
    reason: str = ""
    line: str = ""
    stuck: bool = False


@dataclass
class Sight:
    """Evaluates the programs of a pair."""

    pair: Pair
    work: Callable[[int], None]
    forms: Forms = field(init=False)
    sources: Mapping[str, Source] = field(init=False)
    named: set[int] = field(default_factory=set)
    rests: dict[int, bool] = field(default_factory=dict)
    wholes: dict[int, Tensor] = field(default_factory=dict)
    parts: dict[tuple[int, tuple[Runs, ...]], Tensor] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.forms = Forms(self.work)
        self.sources = {s.name: s for s in self.pair.single.sources}
        self.tensors = Tensors(self.forms)
        self.meaning = Meaning(self.tensors)
        self.segments = Segments(self.meaning)
        self.unfolding = Unfolding(self.forms)

    # ------------------------------------------------------------------ sources

    def source(self, name: str) -> Tensor:
        """A whole tensor of the one device."""
        found = self.sources[name]
        if (known := dict(self.pair.constants).get(found.number)) is not None:
            return self.source_value(known, self.pair.single.tensors[found.number].shape)
        head = self.forms.head(Head(Kind.INPUT, name))
        if self.pair.single.tensors[found.number].dtype.startswith(("int", "uint")):
            self.forms.integers.add(head)
            if name in self.pair.floors:
                self.forms.floors[head] = 0
        self.meaning.extents[head] = self.pair.single.tensors[found.number].shape
        return self.tensors.source(head, self.pair.single.tensors[found.number].shape)

    def source_value(self, given: Given, shape: tuple[int, ...]) -> Tensor:
        """What a source is."""
        if isinstance(given, Known):
            if given.number is not None:
                return self.tensors.full(shape, real(given.number, self.forms))
            return self.tensors.source(self.forms.head(Head(Kind.INPUT, given.content)), shape)
        return part(self.segments, self.source(given.of), given.runs)

    # ------------------------------------------------------------------ one device

    def one_device(self) -> dict[str, Tensor]:
        """The outputs of the one device."""
        program, values = self.pair.single, self.wholes
        values |= {s.number: self.source(s.name) for s in program.sources}
        self.meaning.learning = True
        for step in program.steps:
            self.work(1)
            require_step(program, step)
            made = self.segments.of(step, [values[i] for i in step.reads])
            for number, value in zip(step.makes, made, strict=True):
                require_shape(program, step, number, value.shape)
                real = program.tensors[number].dtype.startswith(("float", "bfloat"))
                values[number] = self._applied(value, self._name) if real else value
        self.meaning.learning = False
        return {name: values[number] for name, number in program.outputs}

    def _applied(self, value: Tensor, function: Callable[[Form], Form]) -> Tensor:
        """A function of every element's form."""
        return self.segments.each([value], lambda parts: self.tensors.apply(parts[0], function))

    def _name(self, form: Form) -> Form:
        if not self._long(form):
            return form
        try:
            found = self.forms.abstract(Kind.NAMED, "tensor", (), (form,))
        except Undecided:  # nothing rests on that it has a name
            return form
        self.named.add(found[0][0][1][0][0])
        return found

    def _long(self, form: Form) -> bool:
        """Whether a form says more than a tensor's element, or a multiple of it, and is made of inputs at all."""
        if len(form) == 1 and not form[0][0][0] and len(form[0][0][1]) == 1 and form[0][0][1][0][2] == 1:
            return False
        return any(self._rests_on_inputs(h) for (_, factors), _ in form for h, _, _ in factors)

    def _rests_on_inputs(self, h: int) -> bool:
        if h not in self.rests:
            head = self.forms.heads[h]
            self.rests[h] = head.kind in (Kind.INPUT, Kind.NAMED) or any(
                self._rests_on_inputs(g) for form in head.of for (_, factors), _ in form for g, _, _ in factors
            )
        return self.rests[h]

    # ------------------------------------------------------------------ ranks

    def ranks(self) -> list[dict[int, Tensor]]:
        """The tensors of every rank.  Raises `Stuck`, `Undecided`."""
        programs = self.pair.ranks
        values: list[dict[int, Tensor]] = [
            {n: self.source_value(g, p.tensors[n].shape) for n, g in given}
            for p, given in zip(programs, self.pair.given, strict=True)
        ]
        relations = [{r.number: r for r in rows} for rows in self.pair.relations]
        for meeting in meetings(programs, self._looked):
            self.work(len(meeting))
            for rank, step in meeting:
                require_step(programs[rank], step)
            made = self._met(meeting, [[values[r][i] for i in s.reads] for r, s in meeting])
            for (rank, step), new in zip(meeting, made, strict=True):
                for number, value in zip(step.makes, new, strict=True):
                    require_shape(programs[rank], step, number, value.shape)
                    values[rank][number] = self._related(self._recognised(value), relations[rank].get(number))
        return values

    def _looked(self, ranks: int) -> None:
        self.work(1 + ranks // 16)

    def _met(self, meeting: Meeting, reads: list[list[Tensor]]) -> list[tuple[Tensor, ...]]:
        rank, step = meeting[0]
        try:
            if step.operator == "send":
                receiver, there = meeting[1]
                shape = self.pair.ranks[receiver].tensors[there.makes[0]].shape
                return [(), (self.segments.reshape(reads[0][0], shape),)]
            if len(meeting) == 1 and "ranks" not in dict(step.words):
                return [self.segments.of(step, reads[0])]
            return collective(self.segments, meeting, [r[0] for r in reads])
        except Undecided as error:
            raise Undecided(f"rank {rank}, {step.operator}{step.line and f' ({step.line})'}: {error}") from None

    def _recognised(self, value: Tensor) -> Tensor:
        def name(form: Form) -> Form:
            if not self._long(form):
                return form
            try:
                found = self.forms.abstract(Kind.NAMED, "tensor", (), (form,))
            except Undecided:
                return form
            return found if found[0][0][1][0][0] in self.named else form

        return self._applied(value, name)

    def _related(self, value: Tensor, relation: Relation | None) -> Tensor:
        """The part of the one device's tensor that a value is, if that is seen; else the value."""
        if relation is None:
            return value
        key = relation.whole, relation.runs
        try:
            if key not in self.parts:
                self.parts[key] = part(self.segments, self.wholes[relation.whole], relation.runs)
            return self.parts[key] if self.same(value, self.parts[key]) else value
        except Undecided:
            return value

    def same(self, a: Tensor, b: Tensor) -> bool:
        """Whether two tensors are seen to be the same at every position."""
        if a.shape != b.shape:
            return False
        if isinstance(a, Value) and isinstance(b, Value):
            return same(self.tensors, a, b, self.unfolding.equal)
        _, rows = self.segments.cut([a, b])
        return all(same(self.tensors, one, two, self.unfolding.equal) for one, two in rows)


def part(segments: Segments, whole: Tensor, place: Sequence[Runs]) -> Tensor:
    """A part of a whole tensor: of every dimension its runs, one behind another."""
    for dim, runs in enumerate(place):
        require_few(len(runs), 4 * MOST_PIECES)
        parts = [segments.slice(whole, dim, there, there + many, one=True) for _, there, many in runs]
        whole = parts[0] if len(parts) == 1 else segments.concatenate(parts, dim)
    return whole


def collective(segments: Segments, meeting: Meeting, reads: Sequence[Tensor]) -> list[tuple[Tensor, ...]]:
    """What every rank of a group has after a collective, in the order of the group."""
    step, many = meeting[0][1], len(meeting)
    ranks = [r for r, _ in meeting]
    match step.operator:
        case "all_reduce":
            return [(_reduced(segments, step, reads),)] * many
        case "reduce":
            total = _reduced(segments, step, reads)
            return [(total if r == step.word("target") else mine,) for r, mine in zip(ranks, reads, strict=True)]
        case "broadcast":
            return [(reads[ranks.index(_int(step, "source"))],)] * many
        case "all_gather":
            return [(segments.concatenate(reads, 0),)] * many
        case "reduce_scatter":
            total = _reduced(segments, step, reads)
            size, rest = divmod(total.shape[0], many)
            if rest:
                raise Malformed(f"{total.shape[0]} positions are scattered over {many} ranks")
            return [(segments.slice(total, 0, i * size, (i + 1) * size),) for i in range(many)]
        case "all_to_all":
            pairs = list(zip((s for _, s in meeting), reads, strict=True))
            return [(segments.concatenate([_segment(segments, s, x, j) for s, x in pairs], 0),) for j in range(many)]
        case _:
            raise Undecided(f"collective {step.operator} is not known here")


def _int(step: Step, name: str) -> int:
    value = step.word(name)
    if not isinstance(value, int):
        raise Undecided(f"{step.operator} says no {name}")
    return value


def _segment(segments: Segments, step: Step, x: Tensor, j: int) -> Tensor:
    """What a rank sends to member `j` of its group."""
    sizes = step.word("send")
    if not isinstance(sizes, tuple):
        raise Undecided("all_to_all says no sizes")
    first = sum(sizes[:j])
    return segments.slice(x, 0, first, first + sizes[j])


def _reduced(segments: Segments, step: Step, reads: Sequence[Tensor]) -> Tensor:
    return segments.each(reads, lambda parts: _reduction(segments.tensors, step, parts))


def _reduction(tensors: Tensors, step: Step, reads: Sequence[Value]) -> Value:
    match step.word("op"):
        case "sum":
            return tensors.add(*reads)
        case "avg":
            return tensors.scale(tensors.add(*reads), Fraction(1, len(reads)))
        case "max":
            return tensors.pointwise(reads, tensors.forms.larger)
        case "min":
            minus = [tensors.scale(r, Fraction(-1)) for r in reads]
            return tensors.scale(tensors.pointwise(minus, tensors.forms.larger), Fraction(-1))
        case "product":
            total = reads[0]
            for r in reads[1:]:
                total = tensors.multiply(total, r)
            return total
        case other:
            raise Undecided(f"a reduction by {other} is not known here")


def same(tensors: Tensors, a: Value, b: Value, equal: Callable[[Form, Form], bool]) -> bool:
    """Whether two tensors have equal forms at every position."""
    if a.shape != b.shape:
        return False
    a, b = tensors.alike([a, b])
    seen = 0
    for box, f in a.pieces:
        for other, g in b.pieces:
            both = meet(box, other)
            if all(low < high for low, high in both):
                tensors.forms.work(1)
                one: dict[int, Index] = {v: constant(x) for v, (x, y) in enumerate(both) if y - x == 1}
                here = dict(enumerate(both))
                f_here, g_here = (tensors.forms.within(tensors.forms.substitute(h, one), here) for h in (f, g))
                if not equal(f_here, g_here):
                    return False
                seen += prod(high - low for low, high in both)
    return seen == prod(a.shape)


def compare(pair: Pair, work: Callable[[int], None]) -> Outcome:
    """What is seen of a pair."""
    try:
        return _compared(pair, work)
    except Stuck as stuck:
        return Outcome(False, "", str(stuck), stuck.waiting[0][1].line, True)
    except Undecided as error:
        return Outcome(False, "", str(error))


def _compared(pair: Pair, work: Callable[[int], None]) -> Outcome:
    sight = Sight(pair, work)
    wholes, values = sight.one_device(), sight.ranks()
    shapes = {name: pair.single.tensors[n].shape for name, n in pair.single.outputs}
    places: dict[str, list[Part]] = {name: [] for name in wholes}
    for rank, (program, results) in enumerate(zip(pair.ranks, pair.results, strict=True)):
        numbers = dict(program.outputs)
        if missing := [name for name in numbers if name not in dict(results)]:
            return Outcome(False, f"{missing[0]} of rank {rank}", "is no part of an output of the one device")
        for name, place in results:
            theirs = part(sight.segments, wholes[place.of], place.runs)
            if not sight.same(values[rank][numbers[name]], theirs):
                return Outcome(False, f"{name} of rank {rank}", f"is not seen to be its part of {place.of}")
            places[place.of].append(place)
    for name, found in places.items():
        if not covers(found, shapes[name], work):
            return Outcome(False, name, "no rank has some of its positions")
    return Outcome(True)


def covers(places: Sequence[Part], shape: tuple[int, ...], work: Callable[[int], None]) -> bool:
    """Whether parts together have every position of a tensor: counted over cells that no run cuts."""
    cuts = []
    for dim, n in enumerate(shape):
        edges = {0, n}
        for place in places:
            for _, there, many in place.runs[dim]:
                edges |= {there, there + many}
        cuts.append(sorted(e for e in edges if 0 <= e <= n))
    many = prod(len(c) - 1 for c in cuts)
    if many > MOST_CELLS:
        raise Undecided(f"parts cut a tensor into more than {MOST_CELLS} cells")
    work(1 + many * sum(1 + len(runs) for p in places for runs in p.runs) // 16)
    cells = product(*(list(pairwise(c)) for c in cuts))
    return all(
        any(
            all(any(t <= a and b <= t + m for _, t, m in runs) for runs, (a, b) in zip(p.runs, cell, strict=True))
            for p in places
        )
        for cell in cells
        if prod(b - a for a, b in cell)
    )
