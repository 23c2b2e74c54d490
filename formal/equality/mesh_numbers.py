"""Runs what all ranks of a mesh do on numbers, at once: every tensor with the dimensions of the mesh in front, of one
element where all ranks along a dimension have the same.

Nothing here proves anything; the checker reads programs of a mesh itself (`verify/equality/stacks.py`), and shares
nothing with this.
"""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import product
from math import prod

import numpy as np

from ...models.equality.program import COLLECTIVES, RankProgram, Step, Word
from ...models.equality.schedule import Stuck
from .meshes import MOVING
from .numbers import After, Array, Numbers, evaluate, same_array

POINTWISE = frozenset(
    {
        *("add", "sub", "mul", "div", "maximum", "minimum", "pow", "gt", "ge", "lt", "le", "eq", "ne", "where"),
        *("logical_and", "logical_or", "logical_not", "cast", "neg", "exp", "log", "sqrt", "rsqrt", "reciprocal"),
        *("abs", "sign", "tanh", "erf", "sigmoid", "sin", "cos", "floor", "ceil", "round", "trunc", "log1p", "expm1"),
    }
)
"""Operators of elements at the same place."""


def run_meshes(
    programs: Sequence[RankProgram],
    sizes: tuple[int, ...],
    given: Sequence[Numbers],
    corners: Sequence[tuple[int, ...]],
    after: After = same_array,
) -> list[list[dict[int, Array]]]:
    """Of every program, which is that of a mesh of ranks (a stage), all tensors of the ranks at `corners`; what is sent
    comes to the ranks at the same places of another.  Raises `Stuck`, with numbers of ranks.
    """
    runs = [_Running(p, MeshRun(sizes), dict(g), corners, after) for p, g in zip(programs, given, strict=True)]
    sent: dict[tuple[object, ...], deque[Array]] = {}
    moved = True
    with np.errstate(all="ignore"):
        while moved:
            moved = False
            for k, mine in enumerate(runs):
                while mine.goes_on(k, sent):
                    moved = True
    waiting = tuple((k * prod(sizes), r.program.steps[r.at]) for k, r in enumerate(runs) if r.at < len(r.program.steps))
    if waiting:
        raise Stuck(waiting, "ranks wait for one another for ever")
    if left := [key for key, queue in sent.items() if queue]:
        steps = [s for s in programs[int(str(left[0][0]))].steps if s.operator == "send"]
        raise Stuck(((int(str(left[0][0])) * prod(sizes), steps[-1]),), "messages are never received")
    return [r.found for r in runs]


@dataclass
class _Running:
    """The ranks of one program under way: what steps yet to come read, and all that those at `corners` had."""

    program: RankProgram
    runner: MeshRun
    values: dict[int, Array]
    corners: Sequence[tuple[int, ...]]
    after: After
    at: int = 0
    found: list[dict[int, Array]] = field(init=False)
    left: Counter[int] = field(init=False)

    def __post_init__(self) -> None:
        self.found = [{n: _at(x, at) for n, x in self.values.items()} for at in self.corners]
        self.left = Counter(i for s in self.program.steps for i in s.reads)

    def goes_on(self, mine: int, sent: dict[tuple[object, ...], deque[Array]]) -> bool:
        """Takes the next step; False where there is none, or it waits for a message."""
        if self.at == len(self.program.steps):
            return False
        step = self.program.steps[self.at]
        reads = [self.values[i] for i in step.reads]
        if step.operator == "send":
            sent.setdefault((mine, step.word("to"), step.word("tag")), deque()).append(reads[0])
            self._keep(step, ())
        elif step.operator == "recv":
            queue = sent.get((step.word("of"), mine, step.word("tag")))
            if not queue:
                return False
            x, many = queue.popleft(), self.runner.many
            self._keep(step, (x.reshape(x.shape[:many] + self.program.tensors[step.makes[0]].shape),))
        else:
            self._keep(step, self.runner.step(step, reads))
        self.at += 1
        return True

    def _keep(self, step: Step, made: Sequence[Array]) -> None:
        """What a step made; what no step reads any more is forgotten."""
        self.left.subtract(step.reads)
        for i in step.reads:
            if not self.left[i]:
                self.values.pop(i, None)
        for number, value in zip(step.makes, made, strict=True):
            self.values[number] = self.after(value, self.program.tensors[number].dtype)
            for found, at in zip(self.found, self.corners, strict=True):
                found[number] = _at(self.values[number], at)
            if not self.left[number]:
                del self.values[number]


def _at(x: Array, at: tuple[int, ...]) -> Array:
    """What the rank at these coordinates has."""
    return np.array(x[tuple(c if n > 1 else 0 for c, n in zip(at, x.shape, strict=False))])


def _moved(words: Mapping[str, Word], at: Sequence[int]) -> dict[str, Word]:
    """The words of the rank at these coordinates."""
    found = dict(words)
    for name, others in MOVING.items():
        by = found.pop(f"{name}_moves", None)
        for other in others if isinstance(by, tuple) else ():
            here = found[other]
            if isinstance(here, int) and isinstance(by, tuple):
                found[other] = here + sum(m * c for m, c in zip(by, at, strict=True))
    return found


@dataclass(frozen=True)
class MeshRun:
    """Evaluates steps of ranks of a mesh."""

    sizes: tuple[int, ...]

    @property
    def many(self) -> int:
        """Dimensions of the mesh."""
        return len(self.sizes)

    def step(self, step: Step, reads: Sequence[Array]) -> Sequence[Array]:
        """What a step makes of these."""
        words, k = dict(step.words), self.many
        if step.operator == "barrier":
            return ()
        if step.operator in COLLECTIVES:
            return (self._collective(step, words, reads[0]),)
        if any(name.endswith("_moves") for name in words):
            return self._each(step, reads)
        if step.operator in POINTWISE:
            wide = max(x.ndim for x in reads)
            return evaluate(step, [x.reshape(x.shape[:k] + (1,) * (wide - x.ndim) + x.shape[k:]) for x in reads])
        match step.operator, words:
            case "matmul", _:
                return evaluate(step, reads)
            case "reshape", {"shape": tuple(shape)}:
                return (reads[0].reshape(reads[0].shape[:k] + shape),)
            case "permute", {"dims": tuple(dims)}:
                return (reads[0].transpose((*range(k), *(d + k for d in dims))),)
            case "expand", {"shape": tuple(shape)}:
                (x,) = reads
                x = x.reshape(x.shape[:k] + (1,) * (len(shape) + k - x.ndim) + x.shape[k:])
                return (np.broadcast_to(x, x.shape[:k] + shape),)
            case "sum" | "amax" | "amin", {"dims": tuple(dims)}:
                return evaluate(_said(step, dims=tuple(d + k for d in dims)), reads)
            case "slice" | "cat" | "gather", {"dim": int(dim)}:
                lead = np.broadcast_shapes(*(x.shape[:k] for x in reads))
                return evaluate(_said(step, dim=dim + k), [np.broadcast_to(x, lead + x.shape[k:]) for x in reads])
            case "full" | "iota", _:
                return tuple(x.reshape((1,) * k + x.shape) for x in evaluate(step, ()))
            case _:
                return self._each(step, reads)

    def _each(self, step: Step, reads: Sequence[Array]) -> Sequence[Array]:
        """Rank by rank, but once for those along dimensions in which nothing differs."""
        words, k = dict(step.words), self.many
        moves = [w for name, w in step.words if name.endswith("_moves") and isinstance(w, tuple)]
        moving = tuple(n if any(by[j] for by in moves) else 1 for j, n in enumerate(self.sizes))
        lead = np.broadcast_shapes(moving, *(x.shape[:k] for x in reads))
        rows = []
        for at in product(*map(range, lead)):
            here = replace(step, words=tuple(_moved(words, at).items()))
            rows.append(evaluate(here, [_at(x, at) for x in reads]))
        return [np.stack(row).reshape(lead + row[0].shape) for row in zip(*rows, strict=True)]

    def _collective(self, step: Step, words: Mapping[str, Word], x: Array) -> Array:
        """What a group does, over the dimensions of the mesh in which its ranks differ."""
        along, k = words["along"], self.many
        if not isinstance(along, tuple):
            raise ValueError(f"{step.operator} along {along}")
        lead = tuple(n if j in along else x.shape[j] for j, n in enumerate(self.sizes))
        x = np.broadcast_to(x, lead + x.shape[k:])
        once = tuple(1 if j in along else n for j, n in enumerate(lead))
        front = np.moveaxis(x, along, range(len(along)))  # the group, others, the rank's own
        rest = front.shape[len(along) : k]
        group = front.reshape(prod(self.sizes[j] for j in along), *front.shape[len(along) :])
        many, local = len(group), x.shape[k:]
        match step.operator:
            case "all_reduce":
                return _reduced(words["op"], group).reshape(once + local)
            case "all_gather":
                own = np.moveaxis(group, 0, len(rest))
                return own.reshape(once + (many * local[0], *local[1:]))
            case "broadcast":
                return np.asarray(group[int(words["source"])]).reshape(once + local)  # type: ignore[arg-type]
            case "reduce_scatter":
                total = _reduced(words["op"], group)
                parts = np.moveaxis(total.reshape(*rest, many, local[0] // many, *local[1:]), len(rest), 0)
                return self._back(parts, along, lead)
            case "all_to_all":
                pairs = group.reshape(many, *rest, many, local[0] // many, *local[1:])
                turned = np.moveaxis(pairs, (len(rest) + 1, 0), (0, len(rest) + 1))
                return self._back(turned.reshape(many, *rest, *local), along, lead)
            case other:
                raise ValueError(f"collective {other} of a mesh is not known here")

    def _back(self, parts: Array, along: tuple[int, ...], lead: tuple[int, ...]) -> Array:
        """What every member of a group has, in the first dimension, at its coordinates."""
        wide = parts.reshape(*(lead[j] for j in along), *parts.shape[1:])
        return np.moveaxis(wide, range(len(along)), along)


def _said(step: Step, **words: Word) -> Step:
    return replace(step, words=tuple({**dict(step.words), **words}.items()))


def _reduced(op: object, group: Array) -> Array:
    match op:
        case "sum":
            return np.asarray(group.sum(0))
        case "avg":
            return np.asarray(group.mean(0))
        case "max":
            return np.asarray(group.max(0))
        case "min":
            return np.asarray(group.min(0))
        case _:
            return np.asarray(group.prod(0))


def coordinates(sizes: Sequence[int], places: Sequence[int]) -> Iterator[tuple[int, ...]]:
    """Of places in a mesh, row by row."""
    for place in places:
        yield tuple(int(c) for c in np.unravel_index(place, tuple(sizes)))
