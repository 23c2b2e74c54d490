"""Leaves out of a captured program what nothing needs: steps, and what lay in flat buffers before they were written.

    demand    of a tensor of one dimension the positions that are needed; of others whether any is

Inputs stay, and what has a gradient among the outputs.  A buffer that is written piece by piece needs of what lay there
only what no piece takes the place of.  What needs nothing of an operand reads zeros in its place: memory that nobody
had set is no part of a program.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from itertools import accumulate, pairwise

from ...equality.program import KEPT, Described, RankProgram, Step

Intervals = tuple[tuple[int, int], ...]


def merge(intervals: Iterable[tuple[int, int]]) -> Intervals:
    """Intervals in order, those that meet as one.

    >>> merge([(4, 6), (0, 2), (2, 3)])
    ((0, 3), (4, 6))
    """
    found = list[tuple[int, int]]()
    for low, high in sorted(i for i in intervals if i[0] < i[1]):
        if found and low <= found[-1][1]:
            found[-1] = (found[-1][0], max(high, found[-1][1]))
        else:
            found.append((low, high))
    return tuple(found)


def without(intervals: Intervals, low: int, high: int) -> Intervals:
    """Intervals without the positions from `low` up to `high`.

    >>> without(((0, 5),), 1, 3)
    ((0, 1), (3, 5))
    """
    return merge(piece for a, b in intervals for piece in ((a, min(b, low)), (max(a, high), b)))


def inside(intervals: Intervals, low: int, high: int) -> Intervals:
    """The positions from `low` up to `high`, counted from `low`.

    >>> inside(((0, 5),), 4, 9)
    ((0, 1),)
    """
    return merge((max(a, low) - low, min(b, high) - low) for a, b in intervals)


def without_waste(program: RankProgram) -> RankProgram:
    """The program without steps, sources and memory that nothing needs.

    >>> described = Described((4,), "float32")
    >>> write = Step("slice_scatter", (0, 1), (2,), (("dim", 0), ("start", 0), ("stop", 4), ("step", 1)))
    >>> found = without_waste(RankProgram((), (write,), (("output", 2),), (described,) * 3))
    >>> [(s.operator, s.reads, s.makes) for s in found.steps]
    [('full', (), (3,)), ('slice_scatter', (3, 1), (2,))]
    """
    tensors, kept = list(program.tensors), list[Step]()
    demand: dict[int, list[tuple[int, int]]] = {n: [_all(tensors[n])] for _, n in program.outputs}
    for step in reversed(program.steps):
        if step.operator not in KEPT and not any(n in demand for n in step.makes):
            continue
        reads, zeros = list(step.reads), list[Step]()
        for k, wanted in enumerate(_demands(step, tensors, demand)):
            if wanted:
                demand.setdefault(reads[k], []).extend(wanted)
            elif tensors[reads[k]].shape != (0,):
                was = tensors[reads[k]]
                words = (("shape", was.shape), ("value", 0.0), ("dtype", was.dtype))
                zeros.append(Step("full", (), (len(tensors),), words, step.line))
                reads[k] = len(tensors)
                tensors.append(was)
            else:
                demand.setdefault(reads[k], [])
        kept += [Step(step.operator, tuple(reads), step.makes, step.words, step.line), *reversed(zeros)]
    named = {name.removeprefix("grad ") for name, _ in program.outputs if name.startswith("grad ")}
    sources = [s for s in program.sources if s.number in demand or s.kind == "input" or s.name in named]
    return RankProgram(tuple(sources), tuple(reversed(kept)), program.outputs, tuple(tensors))


def _all(tensor: Described) -> tuple[int, int]:
    """All positions of a tensor of one dimension, or anything of another."""
    return (0, tensor.shape[0]) if len(tensor.shape) == 1 else (0, 1)


def _demands(step: Step, tensors: Sequence[Described], demand: dict[int, list[tuple[int, int]]]) -> list[Intervals]:
    """What is needed of each operand."""
    whole: list[Intervals] = [(_all(tensors[n]),) for n in step.reads]
    if len(step.makes) != 1 or any(len(tensors[n].shape) != 1 for n in (*step.makes, *step.reads)):
        return whole
    words, wanted = dict(step.words), merge(demand.get(step.makes[0], ()))
    match step.operator, words:
        case "slice_scatter", {"start": int(start), "stop": int(stop), "step": 1}:
            return [without(wanted, start, stop), inside(wanted, start, stop)]
        case "slice", {"start": int(start), "stop": int(stop), "step": 1}:
            return [merge((a + start, b + start) for a, b in wanted)]
        case "cat", _:
            edges = [0, *accumulate(tensors[n].shape[0] for n in step.reads)]
            return [inside(wanted, low, high) for low, high in pairwise(edges)]
        case _:
            return whole
