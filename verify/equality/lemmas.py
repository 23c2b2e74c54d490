"""Sees once what holds again and again: relations of layers, experts and ranks that are equal but for names.

    cell     what a tensor of a rank is: a part of a tensor of the one device, a constant, or an operation on cells;
             ranks that make the same have one cell
    lemma    a cell and a part of a tensor of the one device, both written out down to tensors that are cut off: those
             of the one device of which the cell has parts

A lemma is proved for all values of the tensors that are cut off, in forms of its own, so it holds wherever the same
operations are applied to parts of other tensors of these shapes.  This is the step of an induction over layers: if what
goes into a layer is related, what comes out of it is; layer 126 costs a comparison with layer 1.  Whole numbers and
truth values that are made of inputs without calculating with real numbers, and what is made of constants alone, are
written out: positions and masks have a meaning that others have not.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from math import isinf
from sys import maxsize
from typing import Final, NamedTuple

from ...models.equality.pair import Known, Pair, Runs
from ...models.equality.program import Described, Step, Word
from ...models.equality.schedule import ROOTS, Meeting
from .cuts import BEHIND, Ancestry
from .index import Undecided
from .indices import Bound, index_bounds
from .logarithms import Logarithms
from .reading import Operation, Reading, part
from .segments import Tensor
from .steps import Malformed
from .unfolding import Lost

MOST_CELLS: Final = 2048
"""Cells of one lemma: a sum over 512 ranks, each of three steps, has as many."""
MOST_WHOLES: Final = 256
"""Tensors of the one device of one lemma: more are not cut off where they might be."""

MOST_STEPS: Final = 32
"""Operations of a lemma behind one another: more are not what one relation is about."""
MOST_MISSED: Final = 8
"""Cells inside a lemma that no lemma showed to be what a relation says: behind a fault nothing is looked at long."""

Shape = tuple[int, ...]


class Piece(NamedTuple):
    """A part of a tensor of the one device."""

    whole: int
    runs: tuple[Runs, ...]


class Constant(NamedTuple):
    """A constant of a rank."""

    known: Known
    shape: Shape


class Made(NamedTuple):
    """Output `which` of an operation; `real`: it gets a name."""

    operation: int
    reads: tuple[int, ...]
    which: int
    shape: Shape
    real: bool


class Cut(NamedTuple):
    """Any tensor of this shape; `infinite`: the infinity of masks may stand in it; `logarithm`: that of 0 may."""

    shape: Shape
    infinite: bool
    logarithm: bool


class Start(NamedTuple):
    """A source of the one device; `floor`: whole numbers that are never below 0; a `bound` if one is known."""

    described: Described
    floor: bool
    bound: Bound | None
    known: Known | None


Cell = Piece | Constant | Made


class Lemma(NamedTuple):
    """The last of `cells` is this part of this one of `wholes`; what reads others stands behind them."""

    wholes: tuple[Cut | Start | Made, ...]
    cells: tuple[Cell, ...]
    whole: int
    runs: tuple[Runs, ...]


class Signature(NamedTuple):
    """What an operation makes of tensors of which shapes."""

    operation: int
    reads: tuple[Shape, ...]
    which: int
    shape: Shape


class Behind(NamedTuple):
    """Shapes of what an operation reads, and how many operations stand behind one another up to it."""

    shapes: tuple[Shape, ...]
    steps: int


def is_real(described: Described) -> bool:
    """Whether elements are real numbers."""
    return described.dtype.startswith(("float", "bfloat"))


def written_out(last: Sequence[int], reads: Callable[[int], Sequence[int]], most: int) -> dict[int, int] | None:
    """All that these are made of, each behind what it reads, and its place; None for more than `most`.

    >>> written_out([3], lambda n: [n - 1] if n else [], 9)
    {0: 0, 1: 1, 2: 2, 3: 3}
    """
    found: dict[int, int] = {}
    for start in last:
        waiting = [start]
        while waiting:
            n = waiting[-1]
            missing = [r for r in reads(n) if r not in found] if n not in found else []
            if missing:
                waiting += reversed(missing)
            else:
                found.setdefault(n, len(found))
                waiting.pop()
            if len(found) + len(waiting) > most:
                return None
    return found


@dataclass
class Seen:
    """Operations by number; which lemmas hold, and of which signatures the shape is right.  Nothing here is about one
    pair: of several pairs that are checked one after another each may use what was seen before.
    """

    operations: list[Operation] = field(default_factory=list)
    numbers: dict[Operation, int] = field(default_factory=dict)
    proved: dict[Lemma, bool] = field(default_factory=dict)
    shaped: set[Signature] = field(default_factory=set)


class Lemmas:
    """Cells of all ranks of a pair, and the lemmas that were looked at."""

    def __init__(self, pair: Pair, work: Callable[[int], None], seen: Seen | None = None, own: int = maxsize) -> None:
        """`own`: tensors of the one device that are no stacks of parts of others (`meshes`)."""
        self.pair, self.work, self.lost, self.own = pair, work, Lost(), own
        self.bounds = index_bounds(pair, work)
        self.missed = set[int]()
        self.cells = list[Cell]()
        self.steps = list[int]()
        self.first_uses: dict[Signature, tuple[bool, int]] = {}
        seen = seen or Seen()
        self.operations, self._numbers, self.proved, self.shaped = (
            seen.operations,
            seen.numbers,
            seen.proved,
            seen.shaped,
        )
        self._ids: dict[Cell, int] = {}
        self._holds: dict[tuple[int, int, tuple[Runs, ...]], bool] = {}
        self._made: dict[int, Made] = {}
        self._starts: dict[int, Start] = {}
        self._depth: dict[int, int] = {}
        self._infinite, self._logarithms = set[int](), Logarithms()
        self._firsts: dict[int, int] = {}
        self._ancestry = Ancestry(self._of, self._cut, self._unturned, work)
        self._write_down()

    # ------------------------------------------------------------------ the one device

    def _write_down(self) -> None:
        """What every tensor of the one device is made of, whether it is written out, whether it may be infinite.  What
        is made by the same operation of the same tensors is one tensor, the first.
        """
        program, constants, firsts = self.pair.single, dict(self.pair.constants), dict[Made, int]()
        bounds = self.bounds
        for source in program.sources:
            known, described = constants.get(source.number), program.tensors[source.number]
            self._starts[source.number] = Start(
                described, source.name in self.pair.floors, bounds.get(source.name), known
            )
            number = None if known is None else known.number
            self._depth[source.number] = 0 if number is not None else 2 if is_real(described) else 1
            if known is not None and (number is None or isinf(number)):  # in bytes there may be anything
                self._infinite.add(source.number)
        for step in program.steps:
            self.work(1)
            operation = self.operation(step.operator, (step.words,), False)
            depth = max((self._depth[i] for i in step.reads), default=0)
            infinite = any(isinstance(w, float) and isinf(w) for _, w in step.words)
            infinite = infinite or any(i in self._infinite for i in step.reads)
            for which, n in enumerate(step.makes):
                described = program.tensors[n]
                reads = tuple(self.first(i) for i in step.reads)
                self._made[n] = Made(operation, reads, which, described.shape, is_real(described))
                self._firsts[n] = firsts.setdefault(self._made[n], n)
                self._depth[n] = 2 if depth == 1 and is_real(described) else depth
                shapes = tuple(program.tensors[i].shape for i in step.reads)
                if described.dtype != "bool":  # 0 or 1, whatever was compared
                    self._infinite |= {n} if infinite else set()
                    self._logarithms.look(step, n, is_real(described) and not infinite, shapes)
                self.first_uses.setdefault(Signature(operation, shapes, which, described.shape), (True, n))

    def operation(self, operator: str, words: tuple[tuple[tuple[str, Word], ...], ...], together: bool) -> int:
        """The number of an operation."""
        one = Operation(operator, words, together)
        if one not in self._numbers:
            self._numbers[one] = len(self.operations)
            self.operations.append(one)
        return self._numbers[one]

    def first(self, whole: int) -> int:
        """The first tensor of the one device that is made of the same."""
        return self._firsts.get(whole, whole)

    # ------------------------------------------------------------------ ranks

    def cell(self, cell: Cell, behind: Behind | None = None) -> int:
        """The number of a cell; `behind`: of what it reads, where that is known."""
        if isinstance(cell, Piece):
            cell = Piece(self.first(cell.whole), cell.runs)
        found = self._ids.get(cell)
        if found is None:
            found = self._ids[cell] = len(self.cells)
            self.cells.append(cell)
            self.steps.append(0)
            if isinstance(cell, Made):
                behind = behind or self._behind(cell.reads)
                self.steps[found] = behind.steps
                signature = Signature(cell.operation, behind.shapes, cell.which, cell.shape)
                self.first_uses.setdefault(signature, (False, found))
        return found

    def _behind(self, reads: Sequence[int]) -> Behind:
        shapes = tuple(self.shape(i) for i in reads)
        return Behind(shapes, 1 + max((self.steps[i] for i in reads), default=0))

    def shape(self, number: int) -> Shape:
        """The shape of a cell."""
        cell = self.cells[number]
        return tuple(sum(n for _, _, n in runs) for runs in cell.runs) if isinstance(cell, Piece) else cell.shape

    def step_cells(
        self, meeting: Meeting, reads: Sequence[Sequence[int]], shapes: Sequence[Sequence[Shape]]
    ) -> list[list[int]]:
        """Cells that steps make, of what they read and the shapes that they say."""
        step = meeting[0][1]
        if step.operator == "send":
            one = self.operation("reshape", ((("shape", shapes[1][0]),),), False)
            return [[], [self.cell(Made(one, tuple(reads[0]), 0, shapes[1][0], False))]]
        if "ranks" not in dict(step.words):
            one = self.operation(step.operator, (step.words,), False)
            return [[self.cell(Made(one, tuple(reads[0]), k, s, False)) for k, s in enumerate(shapes[0])]]
        one = self.operation(step.operator, tuple(_of_members(s, meeting) for _, s in meeting), True)
        read = tuple(r[0] for r in reads)
        behind = self._behind(read)
        alike = step.operator in ("all_reduce", "all_gather", "broadcast")  # members have the same
        return [
            [self.cell(Made(one, read, 0 if alike and s == shapes[0] else k, s[0], False), behind)]
            for k, s in enumerate(shapes)
        ]

    # ------------------------------------------------------------------ what holds

    def hold(self, number: int, whole: int, runs: tuple[Runs, ...]) -> bool:
        """Whether a cell is seen to be this part, for all values of what its lemma cuts off."""
        cell, whole = self.cells[number], self.first(whole)
        if isinstance(cell, Piece) and cell == (whole, runs):
            return True
        key = number, whole, runs
        if key not in self._holds:
            before = self.lost.terms
            self._holds[key] = any(self._holds_behind(steps, number, whole, runs) for steps in BEHIND)
            if self._holds[key]:
                self.lost.terms = before  # nothing was made in vain
            else:
                self.missed.add(number)
        return self._holds[key]

    def _holds_behind(self, steps: int | None, number: int, whole: int, runs: tuple[Runs, ...]) -> bool:
        lemma = self.lemma(number, whole, runs, steps)
        if lemma is not None and lemma not in self.proved:
            self.proved[lemma] = self._prove(lemma)
        return lemma is not None and self.proved[lemma]

    def lemma(self, number: int, whole: int, runs: tuple[Runs, ...], steps: int | None) -> Lemma | None:
        """What is to be proved of a cell, where so many steps before its pieces are written out, of those in `BEHIND`;
        None where that is too long.
        """
        if self.steps[number] > MOST_STEPS:
            return None
        cells = written_out([number], self._reads, MOST_CELLS)
        self.work(1 + (MOST_CELLS if cells is None else len(cells)) // 8)
        if cells is None or sum(n in self.missed for n in cells if n != number) > MOST_MISSED:
            return None
        pieces = [c.whole for n in cells if isinstance(c := self.cells[n], Piece)]
        cuts = self._ancestry.cuts(pieces, whole, steps)
        wholes = written_out([*pieces, whole], lambda n: () if n in cuts else self._of(n), MOST_WHOLES)
        self.work(1 + (MOST_WHOLES if wholes is None else len(wholes)) // 8)
        if wholes is None:
            return None
        rows = list[Cut | Start | Made]()
        for n in wholes:
            made = self._made.get(n)
            if made is None:
                rows.append(self._starts[n])
            elif n in cuts:
                rows.append(Cut(made.shape, n in self._infinite, n in self._logarithms.found))
            else:
                rows.append(made._replace(reads=tuple(wholes[i] for i in made.reads)))
        return Lemma(tuple(rows), tuple(self._renamed(n, cells, wholes) for n in cells), wholes[whole], runs)

    def _unturned(self, whole: int) -> int:
        """Of what a tensor is another order of dimensions, or a multiple, or the stack of parts."""
        while whole in self._made:
            if whole >= self.own and len(self._made[whole].reads) == 1:
                (whole,) = self._made[whole].reads
                continue
            operation = self.operations[self._made[whole].operation]
            if operation.operator != "permute" and (operation.operator != "mul" or len(self._made[whole].reads) > 1):
                break
            (whole,) = self._made[whole].reads
        return whole

    def _of(self, whole: int) -> Sequence[int]:
        """What a tensor of the one device is made of."""
        return self._made[whole].reads if whole in self._made else ()

    def _cut(self, whole: int) -> bool:
        """Whether a tensor of the one device may be cut off."""
        return self._depth[whole] == 2 and whole in self._made

    def _reads(self, number: int) -> Sequence[int]:
        cell = self.cells[number]
        return cell.reads if isinstance(cell, Made) else ()

    def _renamed(self, number: int, cells: dict[int, int], wholes: dict[int, int]) -> Cell:
        cell = self.cells[number]
        match cell:
            case Piece():
                return Piece(wholes[cell.whole], cell.runs)
            case Made():
                return cell._replace(reads=tuple(cells[i] for i in cell.reads))
            case Constant():
                return cell

    def _prove(self, lemma: Lemma) -> bool:
        reading = Reading(self.work, self.lost)
        try:
            wholes = self._wholes(reading, lemma)
            values = list[Tensor]()
            for cell in lemma.cells:
                match cell:
                    case Piece():
                        values.append(part(reading.segments, wholes[cell.whole], cell.runs))
                    case Constant():
                        values.append(reading.constant(cell.known, cell.shape))
                    case Made():
                        values.append(reading.recognise(self.evaluate(reading, cell, values)))
            return reading.same(values[-1], part(reading.segments, wholes[lemma.whole], lemma.runs))
        except Undecided:
            return False

    def _wholes(self, reading: Reading, lemma: Lemma) -> list[Tensor]:
        wholes = list[Tensor]()
        for k, row in enumerate(lemma.wholes):
            match row:
                case Cut():
                    wholes.append(reading.any_tensor(str(k), row.shape, row.infinite, row.logarithm))
                case Start():
                    wholes.append(
                        reading.source(str(k), row.described, row.floor, row.bound)
                        if row.known is None
                        else reading.constant(row.known, row.described.shape)
                    )
                case Made():
                    value = self.evaluate(reading, row, wholes)
                    wholes.append(reading.name(value) if row.real else value)
        return wholes

    def evaluate(self, reading: Reading, made: Made, values: Sequence[Tensor] | Mapping[int, Tensor]) -> Tensor:
        """What an operation makes of these values.  Raises `Undecided`, and `Malformed` for another shape."""
        operation = self.operations[made.operation]
        reads = [values[i] for i in made.reads]
        value = operation.of(reading, reads)[made.which]
        if value.shape != made.shape:
            raise Malformed(
                f"{operation.operator} makes a tensor of shape {value.shape}, the program says {made.shape}"
            )
        self.shaped.add(Signature(made.operation, tuple(r.shape for r in reads), made.which, made.shape))
        return value

    def require_shapes(self) -> list[tuple[bool, int]]:
        """`Malformed` where an operation that was not looked at makes another shape than the program says; those of
        which that is not seen: whether it is the one device's, and its tensor or cell.
        """
        left = list[tuple[bool, int]]()
        for signature, use in self.first_uses.items():
            if signature in self.shaped:
                continue
            reading = Reading(self.work, self.lost)
            one = Made(signature.operation, tuple(range(len(signature.reads))), signature.which, signature.shape, False)
            try:
                self.evaluate(
                    reading, one, [reading.any_tensor(str(k), s, False, False) for k, s in enumerate(signature.reads)]
                )
            except Undecided:
                left.append(use)
        return left


def _of_members(step: Step, meeting: Meeting) -> tuple[tuple[str, Word], ...]:
    """The words of a collective, with the place in the group for a rank."""
    members = [r for r, _ in meeting]
    found = list[tuple[str, Word]]()
    for name, word in step.words:
        if name == "ranks":
            word = tuple(range(len(members)))
        elif name in ROOTS and isinstance(word, int):
            word = members.index(word)
        found.append((name, word))
    return tuple(found)
