"""Evaluates steps as forms, on tensors that have names: what one device and ranks are read with.

A tensor of numbers of the one device gets a name, and stands for its form from then on; a form of ranks that has a name
gets it.  Collectives are sums, greatest elements and concatenations of the tensors of their group.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from fractions import Fraction
from math import prod

from ...models.equality.pair import Known, Runs
from ...models.equality.program import Described, Step, Word
from ...models.equality.schedule import Meeting
from .digits import meet
from .forms import Box
from .functions import Forms
from .index import LENT, Index, Undecided, constant, substitute
from .indices import Bound
from .meaning import Meaning, real
from .segments import Segments, Tensor
from .steps import Malformed
from .terms import Form, Head, Kind
from .unfolding import Lost, Unfolding
from .values import MOST_PIECES, Tensors, Value, require_few


@dataclass(frozen=True)
class Operation:
    """A step without the numbers of its tensors; `words` of every member of a group, in its order, with members for
    ranks; of a local step one.
    """

    operator: str
    words: tuple[tuple[tuple[str, Word], ...], ...]
    together: bool

    def of(self, reading: Reading, reads: Sequence[Tensor]) -> tuple[Tensor, ...]:
        """What it makes; of a collective what each member has.  Raises `Undecided`."""
        if not self.together:
            return reading.segments.of(Step(self.operator, (), (), self.words[0]), reads)
        meeting = tuple((k, Step(self.operator, (), (), words)) for k, words in enumerate(self.words))
        return tuple(made for (made,) in collective(reading.segments, meeting, reads))


class Reading:
    """Forms of its own, and what is known of them; `work(things)` is called for what is made, and may raise; `lost` is
    what comparisons may still make in vain.
    """

    def __init__(self, work: Callable[[int], None], lost: Lost) -> None:
        self.forms = Forms(work)
        self.tensors = Tensors(self.forms)
        self.meaning = Meaning(self.tensors)
        self.segments = Segments(self.meaning)
        self.unfolding = Unfolding(self.forms, lost)
        self.named = set[int]()
        self._rests: dict[int, bool] = {}

    # ------------------------------------------------------------------ what is given

    def constant(self, known: Known, shape: tuple[int, ...]) -> Tensor:
        """A constant."""
        if known.number is not None:
            return self.tensors.full(shape, real(known.number, self.forms))
        head = self.forms.head(Head(Kind.INPUT, known.content, ("constant",)))
        self.forms.take_for_infinite(head)  # in bytes there may be anything
        return self.tensors.source(head, shape)

    def source(self, name: str, described: Described, floor: bool, bound: Bound | None) -> Tensor:
        """A tensor of which nothing is known but its element type; `floor`: whole numbers that are never below 0; with
        a `bound` that they keep.
        """
        head = self.forms.head(Head(Kind.INPUT, name))
        if described.dtype == "bool":
            self.forms.truths.add(head)
        if described.dtype.startswith(("int", "uint")):
            self.forms.integers.add(head)
            if bound is not None and bound.but is not None and not floor:
                self.forms.excepted[head] = bound
            elif floor or bound is not None:
                self.forms.floors[head] = 0
                if bound is not None:
                    self.forms.ceilings[head] = bound.below
        return self.tensors.source(head, described.shape)

    def any_tensor(self, name: str, shape: tuple[int, ...], infinite: bool, logarithm: bool) -> Tensor:
        """A tensor of which nothing at all is known; `infinite`: the infinity of masks may stand in it; `logarithm`:
        that of 0 may.
        """
        head = self.forms.head(Head(Kind.INPUT, name, ("any",)))
        if infinite:
            self.forms.take_for_infinite(head)
        if logarithm:
            self.forms.take_for_logarithm(head)
        return self.tensors.source(head, shape)

    # ------------------------------------------------------------------ names

    def apply(self, value: Tensor, function: Callable[[Form], Form]) -> Tensor:
        """A function of every element's form."""
        return self.segments.each([value], lambda parts: self.tensors.apply(parts[0], function))

    def name(self, value: Tensor) -> Tensor:
        """A tensor of the one device, by name."""
        return self.apply(value, self._name)

    def recognise(self, value: Tensor) -> Tensor:
        """A tensor of a rank, by the names that its forms have."""
        return self.segments.each([value], lambda parts: self.tensors.apply_where(parts[0], self._recognise))

    def _name(self, form: Form) -> Form:
        found = self._abstract(form)
        if found is None:  # nothing rests on that it has a name
            return form
        self.named.add(found[0][0][1][0][0])
        return found

    def _recognise(self, form: Form, box: Box) -> Form:
        """By its name, if it has one.  Where a variable has one value, as of a rank that has one row of many, also by
        that of the form in which it is that number; where a sum is over the second four of rows of four, as of a rank
        that has one head, by that of the sum over any four.
        """
        one: dict[int, Index] = {v: constant(low) for v, (low, high) in box.items() if high - low == 1}
        settled = self.forms.fix(form)
        alone = self.forms.substitute(settled, one) if one else settled
        for same in dict.fromkeys((form, settled, alone)):
            if (found := self._known(same)) is not None:
                return found
        for any_block, which in self._blocks(alone):
            if (found := self._known(any_block)) is not None:
                return self.forms.substitute(found, {LENT: constant(which)})
        return form

    def _known(self, form: Form) -> Form | None:
        """The name that a form has."""
        found = self._abstract(form)
        return None if found is None or found[0][0][1][0][0] not in self.named else found

    def _blocks(self, form: Form) -> Iterator[tuple[Form, int]]:
        """A sum over a block of positions as one over block `LENT` of as many, and which block it is."""
        if len(form) != 1:
            return
        (((ranges, factors), c),) = form
        for i, (low, high) in enumerate(ranges):
            size = high - low
            if low % size or any(h == self.forms.iota for h, _, _ in factors):
                continue
            block: dict[int, Index] = {-i - 1: (((-i - 1, 1), (LENT, size)), 0)}
            moved = tuple((h, tuple(substitute(j, block) for j in at), p) for h, at, p in factors)
            over = tuple((0, size) if k == i else r for k, r in enumerate(ranges))
            yield self.forms.substitute((((over, moved), c),), {}), low // size

    def _abstract(self, form: Form) -> Form | None:
        """A form as an element of a tensor that it would be a name of; None for what is short."""
        if not self._long(form):
            return None
        try:
            return self.forms.abstract(Kind.NAMED, "tensor", (), (form,))
        except Undecided:
            return None

    def _long(self, form: Form) -> bool:
        """Whether a form says more than a tensor's element, or a multiple of it, and is made of inputs at all."""
        if len(form) == 1 and not form[0][0][0] and len(form[0][0][1]) == 1 and form[0][0][1][0][2] == 1:
            return False
        return any(self._rests_on_inputs(h) for (_, factors), _ in form for h, _, _ in factors)

    def _rests_on_inputs(self, h: int) -> bool:
        if h not in self._rests:
            head = self.forms.heads[h]
            self._rests[h] = head.kind in (Kind.INPUT, Kind.NAMED) or any(
                self._rests_on_inputs(g) for form in head.of for (_, factors), _ in form for g, _, _ in factors
            )
        return self._rests[h]

    # ------------------------------------------------------------------ comparison

    def same(self, a: Tensor, b: Tensor) -> bool:
        """Whether two tensors are seen to be the same at every position.  Raises `Undecided`."""
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


def same(tensors: Tensors, a: Value, b: Value, equal: Callable[[Form, Form, Box], bool]) -> bool:
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
                if not equal(f_here, g_here, here):
                    return False
                seen += prod(high - low for low, high in both)
    return seen == prod(a.shape)
