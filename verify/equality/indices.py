"""Learns below what integer inputs lie: what the one device takes for positions in a tensor lies in it, where its
program is defined.

Positions of inputs are followed through views, and where they are taken unless they are negative.  Of an input it is
known where every element that anything reads, on the one device or on a rank, is such a position; what nobody reads may
be taken for one.  An input that may be negative is a position too where it is one unless it is one number, the same for
all: of labels with where(label != -100, label, 0) it is known that each is -100 or a position.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from ...models.equality.pair import Pair, Part
from ...models.equality.program import RankProgram, Step
from .index import Undecided

Places = NDArray[np.int64]
"""Of every element the one of the input that it is."""


class Bound(NamedTuple):
    """What is known of the elements of an input: each is a position `below` this, from 0 on, or the number `but`."""

    below: int
    but: int | None


class Held(NamedTuple):
    """A tensor of elements of an input; `but`: other than the input's where that is this number."""

    name: str
    places: Places
    but: int | None


@dataclass
class Known:
    """What is seen of one input: what is read, below what each element lies, which numbers may be there instead, which
    elements are compared with which number and else not read.
    """

    floor: bool
    read: NDArray[np.bool_]
    below: Places
    but: set[int] = field(default_factory=set)
    asked: list[tuple[int, Places]] = field(default_factory=list)


def index_bounds(pair: Pair, work: Callable[[int], None]) -> dict[str, Bound]:
    """Integer inputs of which it is known below what they lie, by name; those of `floors` are never below 0."""
    program, sources = pair.single, {s.name: s.number for s in pair.single.sources}
    constants = dict(pair.constants)
    whole = {
        n: _counted(program, i)
        for n, i in sources.items()
        if i not in constants and program.tensors[i].dtype.startswith("int")
    }
    if not whole:
        return {}
    inputs = {
        n: Known(n in pair.floors, np.zeros(p.size, np.bool_), np.zeros(p.size, np.int64)) for n, p in whole.items()
    }
    _follow(program, {sources[n]: Held(n, places, None) for n, places in whole.items()}, inputs, True, work)
    for rank, given in zip(pair.ranks, pair.given, strict=True):
        mine = dict[int, Held]()
        for number, what in given:
            if isinstance(what, Part) and what.of in whole:
                places = whole[what.of]
                for dim, runs in enumerate(what.runs):
                    places = places.take([t + k for _, t, many in runs for k in range(many)], dim)
                mine[number] = Held(what.of, places, None)
        if mine:
            _follow(rank, mine, inputs, False, work)
    found = dict[str, Bound]()
    for name, one in inputs.items():
        for number, places in one.asked:
            if number not in one.but:  # what is no position may be that number
                one.read[places.reshape(-1)] = True
        if one.below.any() and bool(np.all(one.below[one.read] > 0)) and len(one.but) <= 1:
            found[name] = Bound(int(one.below.max()), next(iter(one.but), None))
    return found


def _counted(program: RankProgram, number: int) -> Places:
    shape = program.tensors[number].shape
    return np.arange(int(np.prod(shape, dtype=np.int64)), dtype=np.int64).reshape(shape)


def _follow(
    program: RankProgram,
    held: dict[int, Held],
    inputs: Mapping[str, Known],
    defined: bool,
    work: Callable[[int], None],
) -> None:
    """Marks what is read of inputs; of the one device, which is `defined`, also below what positions lie."""
    known = dict[int, bool]()  # comparisons of what is never below 0, of which the answer is one
    others = dict[int, tuple[Held, bool, int]]()  # comparisons of what may be, with the number that answers otherwise
    for step in program.steps:
        first, made = step.reads[:1], step.makes[:1]
        if step.operator in ("reshape", "expand") and first and first[0] in known:
            known[made[0]] = known[first[0]]
        if step.operator == "where" and (taken := _taken(program, step, held, known, others)) is not None:
            held[made[0]] = taken
            continue
        mine = [(k, held[i]) for k, i in enumerate(step.reads) if i in held]
        if not mine:
            continue
        one = mine[0][1]
        work(1 + sum(h.places.size for _, h in mine) // 16)
        if (view := _view(program, step, one.places)) is not None:
            held[made[0]] = one._replace(places=view)
            continue
        if inputs[one.name].floor and (answer := _answer(step)) is not None:
            known.update(dict.fromkeys(step.makes, answer))
            continue
        if not inputs[one.name].floor and one.but is None and (but := _other(step)) is not None:
            others[made[0]] = one, *but
            inputs[one.name].asked.append((but[1], one.places))
            continue
        for k, h in mine:
            seen, at = inputs[h.name], h.places.reshape(-1)
            seen.read[at] = True
            if defined and (size := _size(program, step, k)) and (seen.floor or not _wraps(step)):
                sizes = seen.below[at]
                seen.below[at] = np.where(sizes > 0, np.minimum(sizes, size), size)
                seen.but |= set() if h.but is None else {h.but}
    for _, number in program.outputs:
        if number in held:
            inputs[held[number].name].read[held[number].places.reshape(-1)] = True


def _taken(
    program: RankProgram,
    step: Step,
    held: Mapping[int, Held],
    known: Mapping[int, bool],
    others: Mapping[int, tuple[Held, bool, int]],
) -> Held | None:
    """What a choice takes of an input, if that is known: always, or unless the input is one number."""
    condition, shape = step.reads[0], program.tensors[step.makes[0]].shape
    if condition in known:
        one = held.get(step.reads[1 if known[condition] else 2])
        return None if one is None else one._replace(places=np.broadcast_to(one.places, shape))
    if condition in others:
        asked, answer, but = others[condition]
        one = held.get(step.reads[1 if answer else 2])
        same = one is not None and one.name == asked.name and np.array_equal(one.places, asked.places)
        if same and asked.places.shape == shape:
            return asked._replace(but=but)
    return None


def _other(step: Step) -> tuple[bool, int] | None:
    """What a comparison with one number is of all others, and the number."""
    number = dict(step.words).get("number")
    if step.operator not in ("ne", "eq") or not isinstance(number, int) or isinstance(number, bool):
        return None
    return step.operator == "ne", number


def _wraps(step: Step) -> bool:
    """Whether positions of a step may be negative."""
    return bool(dict(step.words).get("wrap", step.operator in ("index", "index_add")))


def _view(program: RankProgram, step: Step, places: Places) -> Places | None:
    """Which elements of the input a view has; None for what is no view."""
    words, made = dict(step.words), program.tensors[step.makes[0]] if step.makes else None
    try:
        match step.operator, words:
            case "reshape", {"shape": tuple(shape)}:
                return places.reshape(shape)
            case "permute", {"dims": tuple(dims)}:
                return places.transpose(dims)
            case "expand", {"shape": tuple(shape)}:
                return np.broadcast_to(places, shape)
            case "slice", {"dim": int(dim), "start": int(start), "stop": int(stop), "step": int(by)}:
                return places[(*(slice(None),) * dim, slice(start, stop, by))]
            case "cast", _ if made is not None and made.dtype == program.tensors[step.reads[0]].dtype:
                return places
    except ValueError as error:
        raise Undecided(f"{step.operator} of a tensor of shape {places.shape}: {error}") from None
    return None


def _answer(step: Step) -> bool | None:
    """What a comparison is of every number that is not below 0; None where it is not one answer."""
    words = dict(step.words)
    number = words.get("number")
    if words.get("reverse") or not isinstance(number, int) or isinstance(number, bool):
        return None
    if number < 0 and step.operator in ("ne", "gt", "ge", "lt", "le", "eq"):
        return step.operator in ("ne", "gt", "ge")
    return {"lt": False, "ge": True}.get(step.operator) if number == 0 else None


def _size(program: RankProgram, step: Step, operand: int) -> int:
    """The extent of the dimension in which elements of an operand are positions; 0 if they are none."""
    words, shape = dict(step.words), program.tensors[step.reads[0]].shape
    match step.operator:
        case "gather" | "scatter_add" if operand == 1:
            dim = words.get("dim")
            return shape[dim] if isinstance(dim, int) and 0 <= dim < len(shape) else 0
        case "index" if operand:
            return shape[operand - 1] if operand <= len(shape) else 0
        case "index_add" if 0 < operand < len(step.reads) - 1:
            return shape[operand - 1] if operand <= len(shape) else 0
    return 0
