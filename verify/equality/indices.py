"""Learns below what integer inputs lie: what the one device takes for positions in a tensor lies in it, where its
program is defined.

Positions of inputs are followed through views, and where they are taken unless they are negative.  Of an input it is
known where every element that anything reads, on the one device or on a rank, is such a position; what nobody reads may
be taken for one.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

import numpy as np
from numpy.typing import NDArray

from ...models.equality.pair import Pair, Part
from ...models.equality.program import RankProgram, Step
from .index import Undecided

Places = NDArray[np.int64]
"""Of every element the one of the input that it is."""


def index_bounds(pair: Pair, work: Callable[[int], None]) -> dict[str, int]:
    """Integer inputs that are never below 0 and of which it is known below what they lie, by name."""
    program, sources = pair.single, {s.name: s.number for s in pair.single.sources}
    constants = dict(pair.constants)
    whole = {n: _counted(program, i) for n in pair.floors if (i := sources.get(n, -1)) >= 0 and i not in constants}
    if not whole:
        return {}
    below = {name: np.zeros(places.size, np.int64) for name, places in whole.items()}
    read = {name: np.zeros(places.size, np.bool_) for name, places in whole.items()}
    held = {sources[name]: (name, places) for name, places in whole.items()}
    _follow(program, held, read, below, work)
    for rank, given in zip(pair.ranks, pair.given, strict=True):
        mine = dict[int, tuple[str, Places]]()
        for number, what in given:
            if isinstance(what, Part) and what.of in whole:
                places = whole[what.of]
                for dim, runs in enumerate(what.runs):
                    places = places.take([t + k for _, t, many in runs for k in range(many)], dim)
                mine[number] = what.of, places
        if mine:
            _follow(rank, mine, read, None, work)
    found = dict[str, int]()
    for name, sizes in below.items():
        if sizes.any() and bool(np.all(sizes[read[name]] > 0)):
            found[name] = int(sizes.max())
    return found


def _counted(program: RankProgram, number: int) -> Places:
    shape = program.tensors[number].shape
    return np.arange(int(np.prod(shape, dtype=np.int64)), dtype=np.int64).reshape(shape)


def _follow(
    program: RankProgram,
    held: dict[int, tuple[str, Places]],
    read: Mapping[str, NDArray[np.bool_]],
    below: Mapping[str, Places] | None,
    work: Callable[[int], None],
) -> None:
    """Marks what is read of inputs; on the one device also below what positions lie."""
    known = dict[int, bool]()  # comparisons of what is never below 0, of which the answer is one
    for step in program.steps:
        if step.reads and (answer := known.get(step.reads[0])) is not None:
            if step.operator in ("reshape", "expand"):
                known.update(dict.fromkeys(step.makes, answer))
            elif step.operator == "where" and (taken := step.reads[1 if answer else 2]) in held:
                name, places = held[taken]
                held[step.makes[0]] = name, np.broadcast_to(places, program.tensors[step.makes[0]].shape)
                continue
        mine = [(k, *held[i]) for k, i in enumerate(step.reads) if i in held]
        if not mine:
            continue
        work(1 + sum(places.size for _, _, places in mine) // 16)
        if (view := _view(program, step, mine[0][2])) is not None:
            held[step.makes[0]] = mine[0][1], view
            continue
        if (answer := _answer(step)) is not None:
            known.update(dict.fromkeys(step.makes, answer))
            continue
        for k, name, places in mine:
            at = places.reshape(-1)
            read[name][at] = True
            if below is not None and (size := _size(program, step, k)):
                sizes = below[name][at]
                below[name][at] = np.where(sizes > 0, np.minimum(sizes, size), size)
    for _, number in program.outputs:
        if number in held:
            name, places = held[number]
            read[name][places.reshape(-1)] = True


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
