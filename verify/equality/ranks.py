"""Compares programs of ranks with the program of one device: forms of all tensors, step by step, then the outputs.

    one device   every tensor whose form is long gets a name, and stands for its form from then on
    ranks        run beside one another; a form that is one of those gets its name; collectives are sums, greatest
                 elements and concatenations of the tensors of their group
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

from ...models.equality.pair import Given, Known, Pair, Part
from ...models.equality.program import RankProgram, Source, Step
from ...models.equality.schedule import Meeting, Stuck, meetings
from .functions import Forms
from .index import Undecided
from .meaning import Meaning, real
from .terms import Form, Head, Kind
from .values import MOST_PIECES, Tensors, Value, require_few

MOST_CELLS: Final = 1 << 14
"""Into which parts may cut a tensor."""

LENGTHS: tuple[int, ...] = (3, 1, 12)
"""Terms above which a form of the one device gets a name: tried in this order."""


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
    length: int
    forms: Forms = field(init=False)
    sources: Mapping[str, Source] = field(init=False)
    named: set[int] = field(default_factory=set)
    seen: dict[int, str] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.forms = Forms(self.work)
        self.sources = {s.name: s for s in self.pair.single.sources}
        self.tensors = Tensors(self.forms)
        self.meaning = Meaning(self.tensors)

    # ------------------------------------------------------------------ sources

    def source(self, name: str) -> Value:
        """A whole tensor of the one device."""
        found = self.sources[name]
        if (known := dict(self.pair.constants).get(found.number)) is not None:
            return self.given(known, self.pair.single.tensors[found.number].shape)
        head = self.forms.head(Head(Kind.INPUT, name))
        if name in self.pair.floors:
            self.forms.floors[head] = 0
        return self.tensors.source(head, self.pair.single.tensors[found.number].shape)

    def given(self, given: Given, shape: tuple[int, ...]) -> Value:
        """What a source is."""
        if isinstance(given, Known):
            if given.number is not None:
                return self.tensors.full(shape, real(given.number, self.forms))
            return self.tensors.source(self.forms.head(Head(Kind.INPUT, given.content)), shape)
        return part(self.tensors, self.source(given.of), given)

    # ------------------------------------------------------------------ one device

    def one_device(self) -> dict[str, Value]:
        """The outputs of the one device."""
        program = self.pair.single
        values = {s.number: self.source(s.name) for s in program.sources}
        self.meaning.learning = True
        for step in program.steps:
            made = self.meaning.of(step, [values[i] for i in step.reads])
            for number, value in zip(step.makes, made, strict=True):
                require_shape(program, step, number, value)
                values[number] = self.tensors.apply(value, self._name) if self._long(value) else value
        self.meaning.learning = False
        return {name: values[number] for name, number in program.outputs}

    def _long(self, value: Value) -> bool:
        return any(len(f) > self.length or _depth(f) > 4 for _, f in value.pieces)

    def _name(self, form: Form) -> Form:
        if len(form) <= self.length and _depth(form) <= 4:
            return form
        found = self.forms.abstract(Kind.NAMED, "tensor", (), (form,))
        self.named.add(found[0][0][1][0][0])
        return found

    # ------------------------------------------------------------------ ranks

    def ranks(self) -> list[dict[int, Value]]:
        """The tensors of every rank.  Raises `Stuck`, `Undecided`."""
        programs = self.pair.ranks
        values = [
            {n: self.given(g, p.tensors[n].shape) for n, g in given}
            for p, given in zip(programs, self.pair.given, strict=True)
        ]
        for meeting in meetings(programs, self._looked):
            self.work(len(meeting))
            made = self._met(meeting, [[values[r][i] for i in s.reads] for r, s in meeting])
            for (rank, step), new in zip(meeting, made, strict=True):
                for number, value in zip(step.makes, new, strict=True):
                    require_shape(programs[rank], step, number, value)
                    values[rank][number] = self._recognised(value)
        return values

    def _looked(self, ranks: int) -> None:
        self.work(1 + ranks // 16)

    def _met(self, meeting: Meeting, reads: list[list[Value]]) -> list[tuple[Value, ...]]:
        rank, step = meeting[0]
        try:
            if step.operator == "send":
                return [(), (reads[0][0],)]
            if len(meeting) == 1 and "ranks" not in dict(step.words):
                return [self.meaning.of(step, reads[0])]
            return collective(self.tensors, meeting, [r[0] for r in reads])
        except Undecided as error:
            raise Undecided(f"rank {rank}, {step.operator}{step.line and f' ({step.line})'}: {error}") from None

    def _recognised(self, value: Value) -> Value:
        if not self._long(value):
            return value

        def name(form: Form) -> Form:
            if len(form) <= self.length and _depth(form) <= 4:
                return form
            found = self.forms.abstract(Kind.NAMED, "tensor", (), (form,))
            return found if found[0][0][1][0][0] in self.named else form

        return self.tensors.apply(value, name)


def require_shape(program: RankProgram, step: Step, number: int, value: Value) -> None:
    """`Malformed` where a step makes a tensor of another shape than the program says."""
    if value.shape != program.tensors[number].shape:
        said = program.tensors[number].shape
        raise Malformed(f"{step.operator} makes a tensor of shape {value.shape}, the program says {said}")


class Malformed(ValueError):
    """A program that no run can have: not undecided, but no program."""


def _depth(form: Form) -> int:
    """Variables that one term sums over, at most."""
    return max((len(ranges) for (ranges, _), _ in form), default=0)


def part(tensors: Tensors, whole: Value, place: Part) -> Value:
    """A part of a whole tensor: of every dimension its runs, one behind another."""
    for dim, runs in enumerate(place.runs):
        require_few(len(runs), 4 * MOST_PIECES)
        parts = [tensors.slice(whole, dim, there, there + many, one=True) for _, there, many in runs]
        whole = parts[0] if len(parts) == 1 else tensors.concatenate(parts, dim)
    return whole


def collective(tensors: Tensors, meeting: Meeting, reads: Sequence[Value]) -> list[tuple[Value, ...]]:
    """What every rank of a group has after a collective, in the order of the group."""
    step, many = meeting[0][1], len(meeting)
    ranks = [r for r, _ in meeting]
    match step.operator:
        case "all_reduce":
            return [(_reduced(tensors, step, reads),)] * many
        case "reduce":
            total = _reduced(tensors, step, reads)
            return [(total if r == step.word("target") else mine,) for r, mine in zip(ranks, reads, strict=True)]
        case "broadcast":
            return [(reads[ranks.index(_int(step, "source"))],)] * many
        case "all_gather":
            return [(tensors.concatenate(reads, 0),)] * many
        case "reduce_scatter":
            total = _reduced(tensors, step, reads)
            size, rest = divmod(total.shape[0], many)
            if rest:
                raise Malformed(f"{total.shape[0]} positions are scattered over {many} ranks")
            return [(tensors.slice(total, 0, i * size, (i + 1) * size),) for i in range(many)]
        case "all_to_all":
            pairs = list(zip((s for _, s in meeting), reads, strict=True))
            return [(tensors.concatenate([_segment(tensors, s, x, j) for s, x in pairs], 0),) for j in range(many)]
        case _:
            raise Undecided(f"collective {step.operator} is not known here")


def _int(step: Step, name: str) -> int:
    value = step.word(name)
    if not isinstance(value, int):
        raise Undecided(f"{step.operator} says no {name}")
    return value


def _segment(tensors: Tensors, step: Step, x: Value, j: int) -> Value:
    """What a rank sends to member `j` of its group."""
    sizes = step.word("send")
    if not isinstance(sizes, tuple):
        raise Undecided("all_to_all says no sizes")
    first = sum(sizes[:j])
    return tensors.slice(x, 0, first, first + sizes[j])


def _reduced(tensors: Tensors, step: Step, reads: Sequence[Value]) -> Value:
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


def same(tensors: Tensors, a: Value, b: Value) -> bool:
    """Whether two tensors have the same forms at every position."""
    if a.shape != b.shape:
        return False
    equal = tensors.pointwise([a, b], lambda f: tensors.forms.number(int(f[0] == f[1])))
    return all(form == tensors.forms.number(1) for _, form in equal.pieces)


def compare(pair: Pair, work: Callable[[int], None]) -> Outcome:
    """What is seen of a pair."""
    last = Outcome(False, "", "no length was tried")
    for length in LENGTHS:
        try:
            last = _compared(pair, work, length)
        except Stuck as stuck:
            return Outcome(False, "", str(stuck), stuck.waiting[0][1].line, True)
        except Undecided as error:
            last = Outcome(False, "", str(error))
        if last.equal:
            return last
    return last


def _compared(pair: Pair, work: Callable[[int], None], length: int) -> Outcome:
    sight = Sight(pair, work, length)
    wholes, values = sight.one_device(), sight.ranks()
    shapes = {name: pair.single.tensors[n].shape for name, n in pair.single.outputs}
    places: dict[str, list[Part]] = {name: [] for name in wholes}
    for rank, (program, results) in enumerate(zip(pair.ranks, pair.results, strict=True)):
        numbers = dict(program.outputs)
        if missing := [name for name in numbers if name not in dict(results)]:
            return Outcome(False, f"{missing[0]} of rank {rank}", "is no part of an output of the one device")
        for name, place in results:
            mine = values[rank][numbers[name]]
            theirs = part(sight.tensors, wholes[place.of], place)
            if not same(sight.tensors, mine, theirs):
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
