"""Decides whether a program on ranks computes what one device computes: numbers first, then what is to be proved.

in time     what a collective that is under way makes is read, or what it reads is written; ranks that wait for ever, or
            call different collectives: different
numbers     on the inputs that are given, on drawn ones and on large ones: where an output differs, different, with
            the first step behind which no tensor is one of the one device, a part of one, or a part of its sum
proved      else it is a `Pair` for the checker; what that does not see to be equal is undecided
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace

import numpy as np

from ...models.equality.captured import Stated
from ...models.equality.pair import Given, Pair, Part, Runs
from ...models.equality.program import Described, RankProgram, Step
from ...models.equality.schedule import Race, Stuck
from ...models.text import InputError
from .breaks import Breaks
from .givens import Givens, ProgramWithSources, Unmatched, constant_of, placed_part, stated_part
from .layouts import NOTHING, Layouts
from .meshes import Alone, Classes, classes_of, mesh_pair
from .numbers import After, Array, Numbers, Rounding, run_alone, run_ranks, run_single, same_array
from .parts import NEAR, Places, alike, first_difference, greatest, one_rule, part_elements, rounded_alike, tell_others
from .relations import Relations
from .rounding import Bound, rounding_bound
from .tables import with_tables
from .varied import in_doubles, is_real, vary

LEAST_RANKS = 8
"""From so many ranks on those of a mesh are looked at all at once; fewer are as soon looked at one after another."""
ROUNDED: Mapping[str, float] = {"float64": 1e-9, "float32": 1e-3, "float16": 5e-2, "bfloat16": 1e-1}
EIGHT_BITS = 5e-1
"""How far a run in such numbers may be from one in double precision, as a part of the greatest element; whole numbers
and truth values likewise, since they may come of rounded ones.  What is made of fewer bits is as far as they are."""
ONCE = 1e-4
"""What one rounding changes, as a part of what those of a run do."""
DOUBLE = 2.0**-52
"""What one rounding changes in double precision."""


def misread(held: ProgramWithSources, received: Numbers, results: Sequence[Array]) -> str:
    """The first output that the steps give otherwise than the run itself did, where what is received is the same; empty
    if there is none.
    """
    values = run_alone(held.program, in_doubles(held.arrays), in_doubles(received))
    rough = max((ROUNDED.get(t.dtype, 0.0) for s in held.program.steps for t in _made(held.program, s)), default=0.0)
    rounded: Numbers | None = None
    for (name, number), result in zip(held.program.outputs, results, strict=True):
        near = max(ROUNDED.get(held.program.tensors[number].dtype, EIGHT_BITS), rough)
        if number not in values:
            return name
        if alike(values[number], result, near):
            continue
        if rounded is None:
            once = Rounding(max(near, ROUNDED["float32"]) * ONCE)
            rounded = run_alone(held.program, in_doubles(held.arrays), in_doubles(received), once)
        small = near * greatest(results)
        if not rounded_alike(values[number], result, small, (values[number], rounded[number])):
            return name
    return ""


def _made(program: RankProgram, step: Step) -> list[Described]:
    return [program.tensors[n] for n in step.makes]


@dataclass(frozen=True)
class Difference:
    """Why programs are different: the output, its rank, the place where it breaks, numbers that show it."""

    output: str
    rank: int | None
    reason: str
    line: str = ""
    numbers: tuple[float, float] | None = None


@dataclass
class Question:
    """One device and ranks; `pair()` after `differs()`."""

    single: ProgramWithSources
    ranks: Sequence[ProgramWithSources]
    said: Layouts = NOTHING
    races: Sequence[tuple[int, Race]] = ()
    stuck: Stuck | None = None
    places: list[Places] = field(init=False)
    givens: Givens = field(init=False)
    given: list[dict[int, Given]] = field(init=False)
    results: list[list[tuple[str, Part]]] = field(init=False)
    runs: list[tuple[Numbers, Sequence[Numbers]]] = field(default_factory=list)
    doubt: str = ""
    read: bool = False
    """Whether the programs come from files, and may be such as cannot be run."""

    def __post_init__(self) -> None:
        self.places = self._places()
        self.givens = Givens(self.single, self.ranks, self.said, self.places)
        self.given = self.givens.given
        self.ranks = [with_tables(held, given) for held, given in zip(self.ranks, self.given, strict=True)]
        for program in dict.fromkeys(held.program for held in self.ranks):
            for places in self.places:
                places.learn_cuts(program)
        tell_others(self.places)
        self.results = [[] for _ in self.ranks]

    @property
    def many(self) -> int:
        """Ranks of the job."""
        return len(self.ranks)

    @property
    def outputs(self) -> int:
        """Outputs of all ranks."""
        return sum(len(mine) for mine in self.results)

    @property
    def numbers(self) -> Sequence[int]:
        """Those of which programs are held."""
        return range(len(self.ranks))

    def _places(self) -> list[Places]:
        """What is to be learnt of every rank."""
        return [Places(r, len(self.ranks)) for r in range(len(self.ranks))]

    # ------------------------------------------------------------------ numbers

    def _values(self, given: Sequence[Numbers], after: After = same_array) -> Sequence[Numbers]:
        """All tensors of ranks that are given this."""
        return run_ranks([h.program for h in self.ranks], given, after)

    def _where(self, rank: int, output: int, whole: Numbers, values: Sequence[Numbers]) -> tuple[str, str]:
        """Where an output of a rank breaks that differs, in words, and the line."""
        programs = [h.program for h in self.ranks]
        return Breaks(self.single.program, programs, self.given, self.places, whole, values).first(rank, output)

    def differs(self, seed: int = 0) -> Difference | None:
        """The first output in which numbers differ; None if they are the same, or differ only where it is in doubt what
        a rank is given: `doubt` says of which tensors.  Raises `InputError` for a rank's input that is no part of any,
        and where no parameter is one, if outputs are not the same.
        """
        self.runs.clear()
        self.doubt = ""
        for rank, race in self.races:
            return Difference("", rank, f"rank {rank} {race.reason}", race.line)
        try:
            if self.stuck is not None:
                raise self.stuck
            base = in_doubles({s.number: np.asarray(self.single.arrays[s.number]) for s in self.single.program.sources})
            self._find_results(base)
            found = self._beyond(self._compared(base, False), base, False)
            if found is not None and (lone := self.givens.lone()):
                if lone.source.kind != "input" and self.givens.has_match():
                    return replace(found, reason=f"{found.reason}; {lone}")
                raise InputError(
                    f"{lone}: give ranks parts of the same values, or say where they lie (--layouts); outputs differ"
                    f" ({found.output} of rank {found.rank})"
                )
            if found is not None:
                return found
            found = self._varied(seed, frozenset())
            if found is not None and (still := self.givens.still()):
                first, found = found, self._varied(seed, still)
                if found is None:
                    self._doubtful(first)
            return found
        except Stuck as stuck:
            rank, step = stuck.waiting[0]
            return Difference("", rank, str(stuck), step.line)
        except IndexError as error:  # the one device ran
            return Difference("", None, f"a rank reads outside a tensor on the inputs given: {error}")

    def _varied(self, seed: int, still: frozenset[str]) -> Difference | None:
        """The first difference on drawn, large and small inputs; constants and what stays `still` are as they are."""
        base = {s.number: np.asarray(self.single.arrays[s.number]) for s in self.single.program.sources}
        stay = {s.number for s in self.single.program.sources if s.kind == "constant" or s.name in still}
        del self.runs[1:]
        for kind in vary(self.single.program, base, stay, seed):
            inputs, seen = kind.arrays, len(self.runs)
            try:
                run_single(self.single.program, inputs)
            except IndexError:  # no inputs on which the one device runs: other numbers, the same positions
                inputs |= {n: a for n, a in base.items() if not is_real(a)}
            try:
                found = self._beyond(self._compared(inputs, kind.only_finite), inputs, kind.only_finite)
            except IndexError as error:
                found = Difference("", None, f"a rank reads outside a tensor on inputs of this kind: {error}")
            del self.runs[seen + kind.kept :]
            if found is not None:
                return found
        return None

    def _beyond(self, found: Difference | None, inputs: Numbers, only_finite: bool) -> Difference | None:
        """A difference, or the first other one where it is the gradient of what is in doubt."""
        doubtful = self.givens.doubtful()
        if found is None or (found.rank, found.output) not in doubtful:
            return found
        self._doubtful(found)
        return self._compared(inputs, only_finite, doubtful)

    def _doubtful(self, found: Difference) -> None:
        where = f"{found.output} of rank {found.rank}" if found.output else found.reason
        line = f", {found.line}" if found.line else ""
        self.doubt = f"{self.givens.in_words()}; numbers differ only where such tensors are varied ({where}{line})"

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
        values = self._values(self._inputs(inputs))
        numbers = [dict(held.program.outputs) for held in self.ranks]
        rules = {
            name: self._one_rule([v.get(n.get(name, -1)) for n, v in zip(numbers, values, strict=True)], wholes[name])
            for name in wholes
        }
        for rank, held in enumerate(self.ranks):
            names = {s.name: s.number for s in held.program.sources}
            for name, number in held.program.outputs:
                if not name.startswith("grad "):
                    part = self._result(rank, name, name, values[rank][number], wholes, rules.get(name, ()))
                    self.results[rank].append((name, part))
            placed = dict(self.results[rank])
            for source in held.program.sources:
                if source.name.startswith("cotangent "):
                    part = placed[source.name.removeprefix("cotangent ")]
                    self.given[rank][source.number] = Part(f"cotangent {part.of}", part.runs)
            for name, number in held.program.outputs:
                given = self.given[rank].get(names.get(name.removeprefix("grad "), -1))
                if name.startswith("grad ") and isinstance(given, Part) and f"grad {given.of}" in wholes:
                    part = Part(f"grad {given.of}", given.runs)
                    if part.shape() != values[rank][number].shape or name in held.outputs:  # sharded otherwise
                        part = self._result(rank, name, part.of, values[rank][number], wholes)
                    self.results[rank].append((name, part))

    def _one_rule(self, arrays: Sequence[Array | None], whole: Array) -> tuple[bool, ...]:
        """Of every dimension of an output whether one rule cuts it for all ranks; none where one lacks it."""
        found = []
        for places, array in zip(self.places, arrays, strict=True):
            place = None if array is None else places.find(array, whole)
            if array is None or place is None:
                return ()
            found.append((place[0], array.shape, whole.shape))
        return tuple(one_rule(self.places, found))

    def _result(
        self,
        rank: int,
        name: str,
        of: str,
        array: Array,
        wholes: Mapping[str, Array],
        rules: Sequence[bool] = (),
    ) -> Part:
        """In which part of an output of the one device one of a rank lies."""
        whole = wholes.get(of)
        if whole is None:
            raise Unmatched(f"output {name!r} of rank {rank} is none of the one device ({', '.join(wholes)})")
        said = self.said.outputs.get(name)
        if said is not None and said.partial is None:
            return stated_part(said, name, rank, array, whole, len(self.ranks))
        stated = self.ranks[rank].outputs.get(name) if said is None else None
        if stated is not None and (stated.everywhere or stated.whole == whole.shape):
            return placed_part(stated, name, of, rank, array, whole)
        place = self.places[rank].find(array, whole)
        if stated is not None and stated.shape() == array.shape and len(stated.whole) == whole.ndim:
            return self._within(stated, of, rank, whole.shape, None if place is None else place[0])
        free = rules or (False,) * whole.ndim
        if place is not None and self.places[rank].usual(array.shape, whole.shape, place[0], free):
            return Part(of, place[0])
        if array.ndim != whole.ndim or any(n > m for n, m in zip(array.shape, whole.shape, strict=True)):
            raise Unmatched(
                f"output {name!r} of rank {rank} has shape {tuple(array.shape)}, which is no part of"
                f" {tuple(whole.shape)} of the one device"
            )
        runs = []
        for n, m in zip(array.shape, whole.shape, strict=True):
            first = self.places[rank].first(n, m) if 0 < n < m else 0
            runs.append(((0, min(first, m - n), n),))
        return Part(of, tuple(runs))

    def _within(self, stated: Stated, of: str, rank: int, shape: Sequence[int], found: Sequence[Runs] | None) -> Part:
        """The part where a program says it of a tensor of some ranks, which is itself a part of the one device's: it
        begins where values or inputs tell.
        """
        runs = list[Runs]()
        for dim, (said, n, m) in enumerate(zip(stated.runs, stated.whole, shape, strict=True)):
            if n > m:
                raise Unmatched(
                    f"{of!r} of rank {rank} is of shape {stated.whole}, the one device's has {tuple(shape)}"
                )
            first = self.places[rank].first(n, m) if 0 < n < m else 0
            if n < m and found is not None and len(found[dim]) == len(said):
                first = found[dim][0][1] - said[0][1]
            first = max(0, min(first, m - n))
            runs.append(tuple((here, first + there, many) for here, there, many in said))
        return Part(of, tuple(runs))

    def _compared(
        self, inputs: Numbers, only_finite: bool, without: frozenset[tuple[int, str]] = frozenset()
    ) -> Difference | None:
        """The first output of a rank that differs, but those of `without`."""
        given = self._inputs(inputs)
        whole = run_single(self.single.program, inputs)
        outputs = dict(self.single.program.outputs)
        values = self._values(given)
        rounded: tuple[Numbers, Sequence[Numbers]] | None = None
        if not only_finite:
            self.runs.append((whole, values))
        for rank, held in enumerate(self.ranks):
            numbers = dict(held.program.outputs)
            for name, part in self.results[rank]:
                mine, theirs = values[rank][numbers[name]], part_elements(whole[outputs[part.of]], part)
                if (rank, name) in without:
                    continue
                if only_finite:
                    bad = bool(np.isfinite(theirs).all() and not np.isfinite(mine).all())
                    reason = f"is not finite on large inputs, where {part.of} of the one device is"
                else:
                    bad, reason = not alike(mine, theirs), f"is not its part of {part.of} of the one device"
                if bad and not only_finite:
                    if rounded is None:
                        once = Rounding(DOUBLE)
                        rounded = run_single(self.single.program, inputs, once), self._values(given, once)
                    of = part_elements(rounded[0][outputs[part.of]], part)
                    small = NEAR * greatest(whole[n] for n in outputs.values())
                    again = rounded[1][rank][numbers[name]]
                    bad = not rounded_alike(mine, theirs, small, (theirs, of), (mine, again))
                if bad:
                    at, x, y = first_difference(mine, theirs)
                    where, line = self._where(rank, numbers[name], whole, values)
                    return Difference(name, rank, f"{reason}: at {list(at)}{where}", line, (x, y))
        return None

    def rounding(self) -> Bound | None:
        """How far rounding alone moves outputs apart on the inputs given, behind `differs()`."""
        base = in_doubles({s.number: np.asarray(self.single.arrays[s.number]) for s in self.single.program.sources})
        try:
            given = base, self._inputs(base)
            return rounding_bound(self.single.program, [h.program for h in self.ranks], given, self.results)
        except (Stuck, IndexError):  # numbers did not get that far
            return None

    def shape(self, name: str, output: bool) -> tuple[int, ...]:
        """Shape of a source, or of an output, of the one device."""
        program = self.single.program
        numbers = dict(program.outputs) if output else {s.name: s.number for s in program.sources}
        return program.tensors[numbers[name]].shape

    # ------------------------------------------------------------------ what is to be proved

    def mesh_pair(self) -> Pair | None:
        """The question of all ranks of a mesh at once; None where they are none, or few."""
        if len(self.ranks) < LEAST_RANKS:
            return None
        programs = {rank: h.program for rank, h in enumerate(self.ranks)}
        classes = classes_of(list(programs.values()))
        return None if classes is None else self.pair_of(classes, programs)

    def pair_of(self, classes: Classes, programs: Mapping[int, RankProgram]) -> Pair | None:
        """The question of ranks of a mesh, of programs by rank; None where they differ more than a mesh can say."""
        found = Relations(self.single.program, [whole for whole, _ in self.runs])
        order = {rank: k for k, rank in enumerate(programs)}
        seen = {
            rank: Alone(p, self.given[k], self.results[k], [ranks[k] for _, ranks in self.runs], self.places[k])
            for (rank, k), p in zip(order.items(), programs.values(), strict=True)
        }
        return mesh_pair(seen, classes, found, self._plain())

    def pair(self) -> Pair:
        """The question of ranks one after another."""
        found = Relations(self.single.program, [whole for whole, _ in self.runs])
        relations = tuple(
            found.of(rank, held.program, self.given[rank], [ranks[rank] for _, ranks in self.runs], self.places[rank])
            for rank, held in enumerate(self.ranks)
        )
        return replace(self._plain(), single=found.single_with_changed(), relations=relations)

    def _plain(self) -> Pair:
        """The question without relations."""
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
        return Pair(
            self.single.program,
            tuple(h.program for h in self.ranks),
            tuple(constants),
            tuple(tuple(sorted(g.items())) for g in self.given),
            tuple(tuple(r) for r in self.results),
            floors,
            tuple(() for _ in self.ranks),
        )
