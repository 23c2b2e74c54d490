"""Compares programs of ranks with the program of one device: every tensor of a rank of which a relation is said, then
the outputs.

    ranks        run beside one another; a tensor of which a relation says that it is a part of one of the one device is
                 that part from then on, if it is seen to be by a lemma (`lemmas`)
    all tensors  where lemmas do not show all outputs, what no lemma shows is looked at once more: every tensor of
                 numbers of the one device gets a name and stands for its form, a form of ranks that has a name gets it
    outputs      in the part that a rank says it has, its form is the form of the whole, at every position; the ranks
                 together have every position

All of it holds for the sizes of the programs, for all real values of their inputs.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from itertools import pairwise, product
from math import prod
from sys import maxsize
from typing import Final

from ...models.equality.pair import Given, Known, Pair, Part, Relation, Runs
from ...models.equality.program import Step
from ...models.equality.schedule import Stuck, meetings
from .index import Undecided
from .lemmas import Constant, Lemmas, Made, Piece, Seen, is_real, written_out
from .reading import Reading, part
from .segments import Tensor
from .steps import Malformed, require_shape, require_step
from .unfolding import Lost

MOST_CELLS: Final = 1 << 14
"""Into which parts may cut a tensor."""

TWO_OUTPUTS: Final = frozenset({"topk", "sort"})
MOST_MISSED: Final = 16
"""Relations of a rank that no lemma shows, on the average, before all tensors are looked at."""
NO_OUTPUT: Final = frozenset({"send", "barrier"})


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
    before: Seen | None = None
    own: int = maxsize
    lemmas: Lemmas = field(init=False)
    where: dict[int, tuple[int, Step]] = field(default_factory=dict)
    parts: dict[tuple[int, tuple[Runs, ...]], Tensor] = field(default_factory=dict)
    values: dict[int, Tensor] = field(default_factory=dict)
    widely: bool = False
    missed: int = 0
    _all: tuple[Reading, dict[int, Tensor]] | None = None

    def __post_init__(self) -> None:
        for step in self.pair.single.steps:
            self.work(1)
            require_step(self.pair.single, step)
            require_outputs(step)
        self.lemmas = Lemmas(self.pair, self.work, self.before, self.own)

    # ------------------------------------------------------------------ ranks

    def ranks(self) -> list[dict[int, int]]:
        """The cells of every rank's tensors.  Raises `Stuck`, `Undecided`."""
        programs, lemmas = self.pair.ranks, self.lemmas
        numbers = {s.name: s.number for s in self.pair.single.sources}
        cells: list[dict[int, int]] = [
            {n: self._given(g, numbers, p.tensors[n].shape) for n, g in given}
            for p, given in zip(programs, self.pair.given, strict=True)
        ]
        relations = [{r.number: r for r in rows} for rows in self.pair.relations]
        for meeting in meetings(programs, self._looked):
            self.work(len(meeting) + len(meeting) ** 2 // 256)  # every member has a cell of what all send
            for rank, step in meeting:
                require_step(programs[rank], step)
                require_outputs(step)
            shapes = [[programs[rank].tensors[n].shape for n in step.makes] for rank, step in meeting]
            made = lemmas.step_cells(meeting, [[cells[r][i] for i in s.reads] for r, s in meeting], shapes)
            for (rank, step), new in zip(meeting, made, strict=True):
                for number, cell in zip(step.makes, new, strict=True):
                    self.where.setdefault(cell, (rank, step))
                    cells[rank][number] = self._related(cell, relations[rank].get(number))
        return cells

    def _looked(self, ranks: int) -> None:
        self.work(1 + ranks // 16)

    def _given(self, given: Given, numbers: dict[str, int], shape: tuple[int, ...]) -> int:
        if isinstance(given, Known):
            return self.lemmas.cell(Constant(given, shape))
        cell = self.lemmas.cell(Piece(numbers[given.of], given.runs))
        if self.lemmas.shape(cell) != shape:
            raise Malformed(f"a part of {given.of} has shape {self.lemmas.shape(cell)}, the program says {shape}")
        return cell

    def _related(self, cell: int, relation: Relation | None) -> int:
        """The part of the one device's tensor that a cell is, if that is seen; else the cell."""
        if relation is None:
            return cell
        if tuple(sum(n for _, _, n in runs) for runs in relation.runs) != self.lemmas.shape(cell):
            return cell
        if self.seen(cell, relation.whole, relation.runs):
            return self.lemmas.cell(Piece(relation.whole, relation.runs))
        return cell

    def seen(self, cell: int, whole: int, runs: tuple[Runs, ...]) -> bool:
        """Whether a cell is seen to be a part of a tensor of the one device: by a lemma, `widely` among all tensors."""
        if self.lemmas.hold(cell, whole, runs):
            return True
        self.missed += 1
        if not self.widely:
            if self.missed > MOST_MISSED * len(self.pair.ranks):
                raise Undecided("no lemmas show what relations say")
            return False
        value = self.value(cell)
        try:
            return self.all_tensors()[0].same(value, self._part(whole, runs))
        except Undecided:
            return False

    # ------------------------------------------------------------------ all tensors

    def all_tensors(self) -> tuple[Reading, dict[int, Tensor]]:
        """The tensors of the one device, by name."""
        if self._all is None:
            reading, program, values = Reading(self.work, Lost()), self.pair.single, dict[int, Tensor]()
            constants = dict(self.pair.constants)
            for s in program.sources:
                if (known := constants.get(s.number)) is not None:
                    values[s.number] = reading.constant(known, program.tensors[s.number].shape)
                else:
                    floor, bounds = s.name in self.pair.floors, self.lemmas.bounds
                    values[s.number] = reading.source(s.name, program.tensors[s.number], floor, bounds.get(s.name))
            for step in program.steps:
                self.work(1)
                made = reading.segments.of(step, [values[i] for i in step.reads])
                for number, value in zip(step.makes, made, strict=True):
                    require_shape(program, step, number, value.shape)
                    values[number] = reading.name(value) if is_real(program.tensors[number]) else value
            self._all = reading, values
        return self._all

    def _part(self, whole: int, runs: tuple[Runs, ...]) -> Tensor:
        key = whole, runs
        if key not in self.parts:
            reading, wholes = self.all_tensors()
            self.parts[key] = part(reading.segments, wholes[whole], runs)
        return self.parts[key]

    def value(self, number: int) -> Tensor:
        """What a cell is, among all tensors.  Raises `Undecided` with the rank and the step."""
        reading, _ = self.all_tensors()
        lemmas = self.lemmas

        def reads(n: int) -> Sequence[int]:
            cell = lemmas.cells[n]
            return cell.reads if isinstance(cell, Made) and n not in self.values else ()

        for n in written_out([number], reads, maxsize) or ():
            if n in self.values:
                continue
            cell = lemmas.cells[n]
            match cell:
                case Piece():
                    self.values[n] = self._part(cell.whole, cell.runs)
                case Constant():
                    self.values[n] = reading.constant(cell.known, cell.shape)
                case Made():
                    self.values[n] = reading.recognise(self._made(reading, n, cell))
        return self.values[number]

    def _made(self, reading: Reading, number: int, cell: Made) -> Tensor:
        try:
            return self.lemmas.evaluate(reading, cell, self.values)
        except Undecided as error:
            rank, step = self.where[number]
            raise Undecided(f"rank {rank}, {step.operator}{step.line and f' ({step.line})'}: {error}") from None

    def require_shapes(self) -> None:
        """`Malformed` where a step makes another shape than its program says, whether or not it was looked at."""
        for single, number in self.lemmas.require_shapes():
            if single:
                self.all_tensors()
            else:
                self.value(number)


def require_outputs(step: Step) -> None:
    """`Malformed` for a step that makes another number of tensors than its operator."""
    many = 2 if step.operator in TWO_OUTPUTS else 0 if step.operator in NO_OUTPUT else 1
    if len(step.makes) != many:
        raise Malformed(f"{step.operator} makes {len(step.makes)} tensors")


def compare(pair: Pair, work: Callable[[int], None], seen: Seen | None = None, own: int = maxsize) -> Outcome:
    """What is seen of a pair; `seen`: lemmas that were, and those of this pair from then on; `own` as of `Lemmas`."""
    try:
        sight = Sight(pair, work, seen, own)
        found = by_lemmas(sight)
        if not found.equal and not found.stuck:
            sight.widely = True
            found = by_lemmas(sight)
        return found
    except Undecided as error:
        return Outcome(False, "", str(error))


def by_lemmas(sight: Sight) -> Outcome:
    """What lemmas show; `widely`, among all tensors too."""
    try:
        places = _places(sight)
        if isinstance(places, Outcome):
            return places
        sight.require_shapes()
        for name, number in sight.pair.single.outputs:
            if not covers(places[name], sight.pair.single.tensors[number].shape, sight.work):
                return Outcome(False, name, "no rank has some of its positions")
    except Stuck as stuck:
        return Outcome(False, "", str(stuck), stuck.waiting[0][1].line, True)
    except Undecided as error:
        return Outcome(False, "", str(error))
    return Outcome(True)


def _places(sight: Sight) -> dict[str, list[Part]] | Outcome:
    """The parts of outputs that ranks are seen to have."""
    pair, cells = sight.pair, sight.ranks()
    wholes, places = dict(pair.single.outputs), {name: list[Part]() for name, _ in pair.single.outputs}
    for rank, (program, results) in enumerate(zip(pair.ranks, pair.results, strict=True)):
        numbers = dict(program.outputs)
        if missing := [name for name in numbers if name not in dict(results)]:
            return Outcome(False, f"{missing[0]} of rank {rank}", "is no part of an output of the one device")
        for name, place in results:
            if not sight.seen(cells[rank][numbers[name]], wholes[place.of], place.runs):
                return Outcome(False, f"{name} of rank {rank}", f"is not seen to be its part of {place.of}")
            places[place.of].append(place)
    return places


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
