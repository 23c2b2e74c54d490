"""Random tensors by the checker's forms and by NumPy beside one another: whatever is seen to be the same must have the
same numbers.  All pairs of one shape of a pool are compared, so one pool asks thousands of questions.
"""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import dataclass
from itertools import combinations
from math import prod

import numpy as np

from shardproof.models.equality.program import Step, Word
from shardproof.verify.equality.functions import Forms
from shardproof.verify.equality.index import Undecided
from shardproof.verify.equality.meaning import Meaning
from shardproof.verify.equality.reading import same
from shardproof.verify.equality.segments import Segments, Tensor
from shardproof.verify.equality.terms import Head, Kind
from shardproof.verify.equality.unfolding import Lost, Unfolding
from shardproof.verify.equality.values import Tensors, Value

DRAWS = 3
"""Inputs on which every tensor is evaluated."""
MOST_ELEMENTS = 64
MOST_WORK = 400_000
Arrays = list[np.ndarray]


class Enough(Exception):
    """A pool has taken more work than one may."""


@dataclass(frozen=True)
class Item:
    """A tensor: what is known of it, its numbers for every draw, real, whole or truth, and how it was made."""

    value: Tensor
    arrays: Arrays
    kind: str
    text: str

    @property
    def shape(self) -> tuple[int, ...]:
        return self.arrays[0].shape


def exact(x: np.ndarray) -> np.ndarray:
    """Without what rounding added: what is compared or cut off is a number of the real program."""
    return np.round(x, 9)


COMPARED: dict[str, Callable[..., np.ndarray]] = {
    "gt": np.greater,
    "ge": np.greater_equal,
    "lt": np.less,
    "le": np.less_equal,
    "eq": np.equal,
    "ne": np.not_equal,
}
TWO: dict[str, Callable[..., np.ndarray]] = {
    "add": np.add,
    "sub": np.subtract,
    "mul": np.multiply,
    "maximum": np.maximum,
    "minimum": np.minimum,
}
ONE: dict[str, Callable[..., np.ndarray]] = {"neg": np.negative, "abs": np.abs, "floor": lambda x: np.floor(exact(x))}
REDUCED: dict[str, Callable[..., np.ndarray]] = {"sum": np.sum, "amax": np.max, "amin": np.min}


class Pool:
    """Tensors made of drawn inputs by drawn operators; `often` names those that are drawn more often."""

    def __init__(self, seed: int, often: tuple[str, ...] = (), size: int = 40) -> None:
        self.rng, self.numbers, self.left = random.Random(seed), np.random.default_rng(seed), MOST_WORK
        self.forms = Forms(self._work)
        self.tensors = Tensors(self.forms)
        self.segments = Segments(Meaning(self.tensors))
        self.items: list[Item] = []
        for k in range(3):
            self._source(f"x{k}", self._shape(self.rng.choice((4, 6, 8, 12))), False)
        for k in range(2):
            self._source(f"i{k}", self._shape(self.rng.choice((2, 3, 4, 6))), True)
        names = [n.removeprefix("_do_") for n in sorted(dir(self)) if n.startswith("_do_")]
        for _ in range(20 * size):
            if len(self.items) >= size:
                break
            name = self.rng.choice(often if often and self.rng.random() < 0.5 else names)
            recent = self.items[-14:] if self.rng.random() < 0.6 else self.items
            try:
                getattr(self, f"_do_{name}")(self.rng.choice(recent))
            except Undecided:
                continue

    def _work(self, things: int = 1) -> None:
        self.left -= things
        if self.left < 0:
            raise Enough

    def compare(self) -> tuple[int, int, list[str]]:
        """Pairs, those that are seen to be the same, and those of them whose numbers differ."""
        self.left, proved, wrong, pairs = MOST_WORK, 0, list[str](), 0
        for x, y in combinations(self.items, 2):
            if x.shape != y.shape:
                continue
            pairs += 1
            try:
                seen = self.same(x.value, y.value)
            except Undecided:
                continue
            proved += seen
            if seen and not all(np.allclose(a, b, atol=1e-7) for a, b in zip(x.arrays, y.arrays, strict=True)):
                wrong.append(f"{x.text} = {y.text}")
        return pairs, proved, wrong

    def same(self, x: Tensor, y: Tensor) -> bool:
        equal = Unfolding(self.forms, Lost()).equal
        rows = [[x, y]] if isinstance(x, Value) and isinstance(y, Value) else self.segments.cut([x, y])[1]
        return all(same(self.tensors, a, b, equal) for a, b in rows)

    # ------------------------------------------------------------------ what is drawn

    def _source(self, name: str, shape: tuple[int, ...], whole: bool) -> None:
        head = self.forms.head(Head(Kind.INPUT, name))
        arrays = [self.numbers.normal(size=shape) for _ in range(DRAWS)]
        if whole:
            low = self.rng.choice((0, -4))
            self.forms.integers.add(head)
            if low == 0:
                self.forms.floors[head] = 0
            arrays = [self.numbers.integers(low, 4, size=shape).astype(float) for _ in range(DRAWS)]
        self.items.append(Item(self.tensors.source(head, shape), arrays, "whole" if whole else "real", name))

    def _shape(self, elements: int) -> tuple[int, ...]:
        out = list[int]()
        while elements > 1:
            out.append(self.rng.choice([k for k in range(2, elements + 1) if elements % k == 0]))
            elements //= out[-1]
        if self.rng.random() < 0.3:
            out.insert(self.rng.randint(0, len(out)), 1)
        return tuple(out)

    def _dim(self, x: Item) -> int:
        if not x.shape:
            raise Undecided("a scalar")
        return self.rng.randrange(len(x.shape))

    def _like(self, x: Item, kind: str, shape: tuple[int, ...] | None = None) -> Item:
        alike = [i for i in self.items if i.kind == kind and i.shape == (x.shape if shape is None else shape)]
        if not alike:
            raise Undecided("nothing like it")
        return self.rng.choice(alike)

    def _made(self, operator: str, reads: list[Item], made: list[Arrays], kinds: list[str], **words: Word) -> None:
        if any(a.size > MOST_ELEMENTS or np.abs(a).max() > 1e4 for arrays in made for a in arrays):
            return
        values = self.segments.of(Step(operator, (), (), tuple(words.items())), [r.value for r in reads])
        text = f"{operator}({', '.join(r.text for r in reads)}; {words})"
        for part, (value, arrays, kind) in enumerate(zip(values, made, kinds, strict=True)):
            self.items.append(Item(value, arrays, kind, f"{text}[{part}]"))

    # ------------------------------------------------------------------ operators

    def _do_reshape(self, x: Item) -> None:
        shape = self._shape(prod(x.shape))
        self._made("reshape", [x], [[a.reshape(shape) for a in x.arrays]], [x.kind], shape=shape)

    def _do_permute(self, x: Item) -> None:
        dims = tuple(self.rng.sample(range(len(x.shape)), len(x.shape)))
        self._made("permute", [x], [[a.transpose(dims) for a in x.arrays]], [x.kind], dims=dims)

    def _do_slice(self, x: Item) -> None:
        d = self._dim(x)
        start, step = self.rng.randrange(x.shape[d]), self.rng.choice((1, 1, 2))
        stop = self.rng.randint(start + 1, x.shape[d])
        at = (*(slice(None),) * d, slice(start, stop, step))
        words: dict[str, Word] = {"dim": d, "start": start, "stop": stop, "step": step}
        self._made("slice", [x], [[a[at] for a in x.arrays]], [x.kind], **words)

    def _do_cat(self, x: Item) -> None:
        d = self._dim(x)
        rest = (*x.shape[:d], *x.shape[d + 1 :])
        fits = [
            i
            for i in self.items
            if i.kind == x.kind and len(i.shape) == len(x.shape) and (*i.shape[:d], *i.shape[d + 1 :]) == rest
        ]
        parts = [x, *self.rng.choices(fits, k=self.rng.choice((1, 1, 2)))]
        self.rng.shuffle(parts)
        made = [np.concatenate([p.arrays[k] for p in parts], d) for k in range(DRAWS)]
        self._made("cat", parts, [made], [x.kind], dim=d)

    def _do_order(self, x: Item) -> None:
        """Rows in order, ties in the order in which they stand."""
        d, down, operator = self._dim(x), self.rng.random() < 0.5, self.rng.choice(("sort", "topk"))
        if x.kind == "truth":
            return
        many = x.shape[d] if operator == "sort" else self.rng.randint(1, x.shape[d])
        at = (*(slice(None),) * d, slice(0, many))
        order = [np.argsort(-exact(a) if down else exact(a), d, kind="stable")[at] for a in x.arrays]
        rows = [np.take_along_axis(a, o, d) for a, o in zip(x.arrays, order, strict=True)]
        words: dict[str, Word] = {"descending": down} if operator == "sort" else {"k": many, "largest": down}
        self._made(operator, [x], [rows, [o.astype(float) for o in order]], [x.kind, "whole"], dim=d, **words)

    def _do_number(self, x: Item) -> None:
        name, n, turned = self.rng.choice(("add", "sub", "mul")), self.rng.choice((-2, -1, 1, 2, 3)), False
        if x.kind == "truth":
            return
        if name == "sub":
            turned = self.rng.random() < 0.5
        words: dict[str, Word] = {"number": n, "reverse": True} if turned else {"number": n}
        made = [TWO[name](n, a) if turned else TWO[name](a, n) for a in x.arrays]
        self._made(name, [x], [made], [x.kind], **words)

    def _do_two(self, x: Item) -> None:
        y, name = self._like(x, x.kind), self.rng.choice(sorted(TWO))
        if x.kind != "truth":
            made = [TWO[name](a, b) for a, b in zip(x.arrays, y.arrays, strict=True)]
            self._made(name, [x, y], [made], [x.kind])

    def _do_one(self, x: Item) -> None:
        name = self.rng.choice(sorted(ONE))
        if x.kind != "truth":
            self._made(name, [x], [[ONE[name](a) for a in x.arrays]], [x.kind])

    def _do_compare(self, x: Item) -> None:
        name = self.rng.choice(sorted(COMPARED))
        if x.kind == "truth":
            return
        if self.rng.random() < 0.3:
            y = self._like(x, x.kind)
            made = [COMPARED[name](exact(a), exact(b)) * 1.0 for a, b in zip(x.arrays, y.arrays, strict=True)]
            self._made(name, [x, y], [made], ["truth"])
            return
        n, turned = self.rng.choice((-1, 0, 1, 2, 3, 0.5, 1.5)), self.rng.random() < 0.3
        words: dict[str, Word] = {"number": n, "reverse": True} if turned else {"number": n}
        made = [(COMPARED[name](n, exact(a)) if turned else COMPARED[name](exact(a), n)) * 1.0 for a in x.arrays]
        self._made(name, [x], [made], ["truth"], **words)

    def _do_where(self, x: Item) -> None:
        y, c = self._like(x, x.kind), self._like(x, "truth")
        if x.kind != "truth":
            made = [np.where(t > 0, a, b) for t, a, b in zip(c.arrays, x.arrays, y.arrays, strict=True)]
            self._made("where", [c, x, y], [made], [x.kind])

    def _do_not(self, x: Item) -> None:
        if x.kind == "truth":
            self._made("logical_not", [x], [[1 - a for a in x.arrays]], ["truth"])

    def _do_cast(self, x: Item) -> None:
        names = {"real": "float32", "whole": "int64", "truth": "bool"}
        to = self.rng.choice([k for k in names if k != x.kind])
        cast: Callable[[np.ndarray], np.ndarray] = {
            "real": lambda a: a,
            "whole": lambda a: np.trunc(exact(a)),
            "truth": lambda a: (exact(a) != 0) * 1.0,
        }[to]
        self._made("cast", [x], [[cast(a) for a in x.arrays]], [to], dtype=names[to], was=names[x.kind])

    def _do_reduce(self, x: Item) -> None:
        name, keep = self.rng.choice(sorted(REDUCED)), self.rng.random() < 0.3
        dims = tuple(sorted({self._dim(x), self._dim(x)}))
        if x.kind != "truth":
            made = [REDUCED[name](a, axis=dims, keepdims=keep) for a in x.arrays]
            self._made(name, [x], [made], [x.kind], dims=dims, keep=keep)

    def _do_cumsum(self, x: Item) -> None:
        d = self._dim(x)
        if x.kind != "truth":
            self._made("cumsum", [x], [[np.cumsum(a, d) for a in x.arrays]], [x.kind], dim=d)

    def _do_expand(self, x: Item) -> None:
        shape = (self.rng.choice((2, 3)), *x.shape)
        self._made("expand", [x], [[np.broadcast_to(a, shape) for a in x.arrays]], [x.kind], shape=shape)

    def _do_index(self, x: Item) -> None:
        if not x.shape or x.kind == "truth":
            return
        n = x.shape[0]
        fits = [i for i in self.items if i.kind == "whole" and all((a >= -n).all() and (a < n).all() for a in i.arrays)]
        if fits:
            y = self.rng.choice(fits)
            made = [a[b.astype(int)] for a, b in zip(x.arrays, y.arrays, strict=True)]
            self._made("index", [x, y], [made], [x.kind])

    def _do_iota(self, x: Item) -> None:
        n, start, by = self.rng.choice((2, 3, 4, 6)), self.rng.choice((0, 1, -1)), self.rng.choice((1, 2, -1))
        made = [start + by * np.arange(float(n))] * DRAWS
        self._made("iota", [], [made], ["whole"], n=n, start=start, step=by, dtype="int64")
