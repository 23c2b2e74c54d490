"""Decides whether a program on ranks computes what one device computes: numbers first, then what is to be proved.

stuck       ranks that wait for ever, or call different collectives: different
numbers     on the inputs that are given, on drawn ones and on large ones: where an output differs, different, with
            the first step behind which no tensor is one of the one device, a part of one, or a part of its sum
proved      else it is a `Pair` for the checker; what that does not see to be equal is undecided
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from hashlib import sha256

import numpy as np

from ...models.equality.pair import Given, Known, Pair, Part
from ...models.equality.program import Described, RankProgram, Source, Step
from ...models.equality.schedule import Stuck
from .layouts import NOTHING, Layout, Layouts
from .numbers import Array, Numbers, run_alone, run_ranks, run_single
from .parts import Places, alike, first_difference, named_first, part_elements
from .relations import Relations

LARGE = 1000.0
"""What large inputs are multiplied with: exp overflows unless the greatest element is subtracted."""


ROUNDED: Mapping[str, float] = {"float64": 1e-9, "float32": 1e-3, "float16": 5e-2, "bfloat16": 1e-1}
EIGHT_BITS = 5e-1
"""How far a run in such numbers may be from one in double precision, as a part of the greatest element; whole numbers
and truth values likewise, since they may come of rounded ones.  What is made of numbers of fewer bits is
as far as they are."""


@dataclass(frozen=True, eq=False)
class ProgramWithSources:
    """A program with the values of its sources."""

    program: RankProgram
    arrays: Mapping[int, Array]


def misread(held: ProgramWithSources, received: Numbers, results: Sequence[Array]) -> str:
    """The first output that the steps give otherwise than the run itself did, where what is received is the same; empty
    if there is none.
    """
    values = run_alone(held.program, _doubles(held.arrays), _doubles(received))
    rough = max((ROUNDED.get(t.dtype, 0.0) for s in held.program.steps for t in _made(held.program, s)), default=0.0)
    for (name, number), result in zip(held.program.outputs, results, strict=True):
        near = max(ROUNDED.get(held.program.tensors[number].dtype, EIGHT_BITS), rough)
        if number not in values or not alike(values[number], result, near):
            return name
    return ""


def _made(program: RankProgram, step: Step) -> list[Described]:
    return [program.tensors[n] for n in step.makes]


def _doubles(arrays: Numbers) -> dict[int, Array]:
    return {n: a.astype(np.float64) if _real(a) else a for n, a in arrays.items()}


@dataclass(frozen=True)
class Difference:
    """Why programs are different: the output, its rank, the place where it breaks, numbers that show it."""

    output: str
    rank: int | None
    reason: str
    line: str = ""
    numbers: tuple[float, float] | None = None


class Unmatched(ValueError):
    """A rank's tensor is no part of any of the one device: nothing can be compared."""


@dataclass
class Question:
    """One device and ranks; `pair()` after `differs()`."""

    single: ProgramWithSources
    ranks: Sequence[ProgramWithSources]
    said: Layouts = NOTHING
    places: list[Places] = field(init=False)
    given: list[dict[int, Given]] = field(init=False)
    results: list[list[tuple[str, Part]]] = field(init=False)
    runs: list[tuple[Numbers, Sequence[Numbers]]] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.places = [Places(r, len(self.ranks)) for r in range(len(self.ranks))]
        names = {s.name: np.asarray(self.single.arrays[s.number]) for s in self.single.program.sources}
        self.wholes = {n: a for n, a in names.items() if not n.startswith("cotangent ")}
        there = {s.name for held in self.ranks for s in held.program.sources}
        for name in self.said.inputs:
            if name not in there:
                raise Unmatched(f"--layouts: no rank has a tensor {name!r}; there are {', '.join(sorted(there))}")
        self.given = [self._given(rank, held) for rank, held in enumerate(self.ranks)]
        self.results = [[] for _ in self.ranks]

    # ------------------------------------------------------------------ what ranks are given

    def _given(self, rank: int, held: ProgramWithSources) -> dict[int, Given]:
        found: dict[int, Given] = {}
        rest = list[Source]()
        for source in held.program.sources:  # what values tell comes first: it says where the others lie
            if source.name.startswith("cotangent "):
                continue
            array = np.asarray(held.arrays[source.number])
            part, sure = self._part(rank, source, array)
            if part is not None and sure:
                self.places[rank].learn(array.shape, self.wholes[part.of].shape, part.runs)
                found[source.number] = part
            else:
                rest.append(source)
        for source in rest:
            array = np.asarray(held.arrays[source.number])
            part, _ = self._part(rank, source, array)
            if part is not None:
                found[source.number] = part
            elif source.kind == "constant":
                found[source.number] = constant_of(array)
            else:
                raise Unmatched(
                    f"{source.kind} {source.name!r} of rank {rank}, shape {tuple(array.shape)}, is no part of any"
                    " tensor of the one device: give ranks parts of the same values, or say where they lie (--layouts)"
                )
        return found

    def _part(self, rank: int, source: Source, array: Array) -> tuple[Part | None, bool]:
        if source.kind == "constant" and array.size and bool(np.all(array == array.flat[0])):
            return None, False
        if (said := self.said.inputs.get(source.name)) is not None:
            if source.name not in self.wholes:
                raise Unmatched(f"--layouts: the one device has no tensor {source.name!r}")
            return self._stated(said, source.name, rank, array, self.wholes[source.name]), True
        for name in named_first(source.name, self.wholes):
            place = self.places[rank].find(array, self.wholes[name])
            if place is not None:
                return Part(name, place[0]), place[1]
        return None, False

    def _stated(self, said: Layout, name: str, rank: int, array: Array, whole: Array) -> Part:
        """The part that `--layouts` says; `Unmatched` where the rank's tensor has another shape."""
        part = said.part(name, whole.shape, rank, len(self.ranks))
        shape = tuple(sum(run[2] for run in runs) for runs in part.runs)
        if shape != array.shape:
            raise Unmatched(
                f"--layouts: {name!r} of rank {rank} has shape {tuple(array.shape)}, its part would be {shape}"
            )
        return part

    # ------------------------------------------------------------------ numbers

    def differs(self, seed: int = 0) -> Difference | None:
        """The first output in which numbers differ; None if they are the same."""
        rng = np.random.default_rng(seed)
        base = {s.number: np.asarray(self.single.arrays[s.number]) for s in self.single.program.sources}
        drawn = {n: (rng.standard_normal(a.shape) if _real(a) else _drawn(a, rng)) for n, a in base.items()}
        large = {n: (a.astype(np.float64) * LARGE if _real(a) else a) for n, a in base.items()}
        self.runs.clear()
        try:
            for k, inputs in enumerate((base, drawn, large)):
                inputs = _doubles(inputs)
                if k == 0:
                    self._find_results(inputs)
                if (found := self._compared(inputs, k == 2)) is not None:
                    return found
        except Stuck as stuck:
            rank, step = stuck.waiting[0]
            return Difference("", rank, str(stuck), step.line)
        except IndexError as error:  # the one device ran: a rank looks for what is not there
            return Difference("", None, f"a rank reads outside a tensor on inputs of this kind: {error}")
        return None

    def _inputs(self, inputs: Mapping[int, Array]) -> list[dict[int, Array]]:
        """What ranks are given, of what the one device is given."""
        names = {s.name: inputs[s.number] for s in self.single.program.sources}
        found = []
        for rank, held in enumerate(self.ranks):
            mine = dict[int, Array]()
            for source in held.program.sources:
                given = self.given[rank].get(source.number)
                if isinstance(given, Part):
                    mine[source.number] = part_elements(names[given.of], given)
                else:
                    mine[source.number] = np.asarray(held.arrays[source.number])
            found.append(mine)
        return found

    def _find_results(self, inputs: Mapping[int, Array]) -> None:
        """In which parts of the outputs of the one device the ranks' outputs lie; gradients as what they belong to."""
        whole = run_single(self.single.program, inputs)
        wholes = {name: whole[n] for name, n in self.single.program.outputs}
        values = run_ranks([h.program for h in self.ranks], self._inputs(inputs))
        for rank, held in enumerate(self.ranks):
            names = {s.name: s.number for s in held.program.sources}
            for name, number in held.program.outputs:
                if not name.startswith("grad "):
                    self.results[rank].append((name, self._result(rank, name, values[rank][number], wholes)))
            placed = dict(self.results[rank])
            for source in held.program.sources:
                if source.name.startswith("cotangent "):
                    part = placed[source.name.removeprefix("cotangent ")]
                    self.given[rank][source.number] = Part(f"cotangent {part.of}", part.runs)
            for name, _ in held.program.outputs:
                given = self.given[rank].get(names.get(name.removeprefix("grad "), -1))
                if name.startswith("grad ") and isinstance(given, Part) and f"grad {given.of}" in wholes:
                    self.results[rank].append((name, Part(f"grad {given.of}", given.runs)))

    def _result(self, rank: int, name: str, array: Array, wholes: Mapping[str, Array]) -> Part:
        whole = wholes.get(name)
        if whole is None:
            raise Unmatched(f"output {name!r} of rank {rank} is none of the one device ({', '.join(wholes)})")
        said = self.said.outputs.get(name)
        if said is not None and not said.partial:
            return self._stated(said, name, rank, array, whole)
        place = self.places[rank].find(array, whole)
        if place is not None and self.places[rank].usual(array.shape, whole.shape, place[0]):
            return Part(name, place[0])
        if array.ndim != whole.ndim or any(n > m for n, m in zip(array.shape, whole.shape, strict=True)):
            raise Unmatched(
                f"output {name!r} of rank {rank} has shape {tuple(array.shape)}, which is no part of"
                f" {tuple(whole.shape)} of the one device"
            )
        runs = []
        for n, m in zip(array.shape, whole.shape, strict=True):
            first = self.places[rank].first(n, m) if 0 < n < m else 0
            runs.append(((0, min(first, m - n), n),))
        return Part(name, tuple(runs))

    def _compared(self, inputs: Mapping[int, Array], only_finite: bool) -> Difference | None:
        whole = run_single(self.single.program, inputs)
        wholes = {name: whole[n] for name, n in self.single.program.outputs}
        values = run_ranks([h.program for h in self.ranks], self._inputs(inputs))
        if not only_finite:
            self.runs.append((whole, values))
        for rank, held in enumerate(self.ranks):
            numbers = dict(held.program.outputs)
            for name, part in self.results[rank]:
                mine, theirs = values[rank][numbers[name]], part_elements(wholes[part.of], part)
                if only_finite:
                    bad = bool(np.isfinite(theirs).all() and not np.isfinite(mine).all())
                    reason = f"is not finite on large inputs, where {part.of} of the one device is"
                else:
                    bad, reason = not alike(mine, theirs), f"is not its part of {part.of} of the one device"
                if bad:
                    at, x, y = first_difference(mine, theirs)
                    where, line = self._breaks(rank, numbers[name], whole, values)
                    return Difference(name, rank, f"{reason}: at {list(at)}{where}", line, (x, y))
        return None

    def _breaks(
        self, rank: int, output: int, whole: Mapping[int, Array], values: Sequence[Mapping[int, Array]]
    ) -> tuple[str, str]:
        """The first step of a rank on the way to an output which makes of tensors that are known one that is not."""
        program = self.ranks[rank].program
        needed, wholes = {output}, [a for a in whole.values() if a.size]
        for step in reversed(program.steps):
            if needed & set(step.makes):
                needed |= set(step.reads)
        known = {s.number: "" for s in program.sources}
        first: tuple[str, str] | None = None
        for step in program.steps:
            for number in set(step.makes) & needed:
                word = self._explained(rank, number, wholes, values)
                if word is not None:
                    known[number] = word
                elif all(i in known for i in step.reads) and step.operator not in ("full", "iota"):
                    partial = [known[i] for i in step.reads if known[i]]
                    said = f"; {step.operator} reads {partial[0]}" if partial else f"; breaks at {step.operator}"
                    if partial or first is None:
                        found = (said, step.line)
                        if partial:
                            return found
                        first = found
        if first is None and known.get(output):
            return f"; it is {known[output]}", next((s.line for s in program.steps if output in s.makes), "")
        return first or ("", "")

    def _explained(
        self, rank: int, number: int, wholes: Sequence[Array], values: Sequence[Mapping[int, Array]]
    ) -> str | None:
        """ "" for a tensor of the one device or a block of one, a word for a part of a sum; None for anything else."""
        mine = values[rank][number]
        if mine.size <= 1 or bool(np.all(mine == mine.flat[0])):
            return ""
        here = Places(rank, len(values))
        here.known, here.firsts = dict(self.places[rank].known), dict(self.places[rank].firsts)
        for array in wholes:
            if array.ndim == mine.ndim and all(m % n == 0 for n, m in zip(mine.shape, array.shape, strict=True) if n):
                first = [here.part_number(m // n) * n for n, m in zip(mine.shape, array.shape, strict=True)]
                if alike(mine, array[tuple(slice(f, f + n) for f, n in zip(first, mine.shape, strict=True))]):
                    return ""
        others = [v[number] for v in values if number in v and v[number].shape == mine.shape]
        if len(others) == len(values) > 1:
            total = np.sum([o.astype(np.float64) for o in others], axis=0)
            if any(alike(total, array) for array in wholes if array.shape == total.shape):
                return f"a part of a sum over ranks (tensor of shape {list(mine.shape)})"
        return None

    def shape(self, name: str, output: bool) -> tuple[int, ...]:
        """Shape of a source, or of an output, of the one device."""
        program = self.single.program
        numbers = dict(program.outputs) if output else {s.name: s.number for s in program.sources}
        return program.tensors[numbers[name]].shape

    # ------------------------------------------------------------------ what is to be proved

    def pair(self) -> Pair:
        """The question for the checker."""
        sources = self.single.program.sources
        constants = [
            (s.number, constant_of(np.asarray(self.single.arrays[s.number]))) for s in sources if s.kind == "constant"
        ]
        floors = tuple(
            s.name
            for s in sources
            if np.issubdtype((a := np.asarray(self.single.arrays[s.number])).dtype, np.integer)
            and a.size
            and bool(np.all(a.astype(np.int64) >= 0))
        )
        found = Relations(self.single.program, [whole for whole, _ in self.runs])
        relations = tuple(
            found.of(rank, held.program, [ranks[rank] for _, ranks in self.runs], self.places[rank])
            for rank, held in enumerate(self.ranks)
        )
        return Pair(
            self.single.program,
            tuple(h.program for h in self.ranks),
            tuple(constants),
            tuple(tuple(sorted(g.items())) for g in self.given),
            tuple(tuple(r) for r in self.results),
            floors,
            relations,
        )


def _drawn(a: Array, rng: np.random.Generator) -> Array:
    """Whole numbers between the least and the greatest of those that are given; truth values as they are."""
    if not a.size or a.dtype == bool:
        return a
    return rng.integers(int(a.astype(np.int64).min()), int(a.astype(np.int64).max()) + 1, size=a.shape).astype(a.dtype)


def _real(a: Array) -> bool:
    return bool(np.issubdtype(a.dtype, np.floating))


def constant_of(array: Array) -> Known:
    """A constant: one number, or its bytes."""
    content = f"{array.dtype} {tuple(array.shape)} {sha256(np.ascontiguousarray(array).tobytes()).hexdigest()}"
    if array.size and bool(np.all(array == array.flat[0])):
        return Known(float(array.flat[0]), content)
    return Known(None, content)
