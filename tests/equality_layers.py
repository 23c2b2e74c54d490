"""Transformer layers on one device and tensor parallel on ranks, as programs of steps with values, for `equal`.

`layered(layers, ranks)` is right; a `Fault` is in one layer, on one rank or on all: `FAULTS` says which there are.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from math import prod

import numpy as np

from shardproof.formal.equality.givens import ProgramWithSources
from shardproof.models.equality.program import Described, RankProgram, Source, Step

TOKENS, WIDTH, HEADS, INNER = 3, 16, 8, 16

FAULTS = ("not summed", "summed twice", "doubled", "other function", "other head", "scores not scaled", "mask", "mean")
"""What is wrong in a layer."""


@dataclass(frozen=True)
class Fault:
    """`rank`: None for all."""

    kind: str
    layer: int
    rank: int | None


class Writer:
    """A program that grows step by step."""

    def __init__(self) -> None:
        self.tensors, self.sources = list[Described](), list[Source]()
        self.steps, self.arrays = list[Step](), dict[int, np.ndarray]()
        self.line = ""

    def source(self, name: str, array: np.ndarray, kind: str = "parameter") -> int:
        number = len(self.tensors)
        self.tensors.append(Described(array.shape, "float64"))
        self.sources.append(Source(number, name, kind))
        self.arrays[number] = array
        return number

    def shape(self, number: int) -> tuple[int, ...]:
        return self.tensors[number].shape

    def do(
        self, operator: str, *reads: int, to: Sequence[int] | None = None, kind: str = "float64", **words: object
    ) -> int:
        """A step; its shape is that of its first operand unless it is said."""
        number, dtype = len(self.tensors), kind
        self.tensors.append(Described(tuple(self.shape(reads[0]) if to is None else to), dtype))
        self.steps.append(Step(operator, reads, (number,), tuple(words.items()), self.line))  # type: ignore[arg-type]
        return number

    def over(self, operator: str, x: int, dim: int) -> int:
        shape = tuple(1 if d == dim else n for d, n in enumerate(self.shape(x)))
        return self.do(operator, x, to=shape, dims=(dim,), keep=True)

    def product(self, a: int, b: int) -> int:
        return self.do("matmul", a, b, to=(*self.shape(a)[:-1], self.shape(b)[-1]))

    def turned(self, x: int, *dims: int) -> int:
        return self.do("permute", x, to=[self.shape(x)[d] for d in dims], dims=dims)

    def shaped(self, x: int, *shape: int) -> int:
        assert prod(shape) == prod(self.shape(x))
        return self.do("reshape", x, to=shape, shape=shape)

    def program(self, output: int) -> ProgramWithSources:
        made = RankProgram(tuple(self.sources), tuple(self.steps), (("output", output),), tuple(self.tensors))
        return ProgramWithSources(made, self.arrays)


def layered(layers: int, ranks: int, fault: Fault | None = None) -> tuple[ProgramWithSources, list[ProgramWithSources]]:
    """One device, and so many ranks."""
    return _one(layers, 0, 1, None), [_one(layers, r, ranks, fault) for r in range(ranks)]


def _one(layers: int, rank: int, ranks: int, fault: Fault | None) -> ProgramWithSources:
    rng, w = np.random.default_rng(0), Writer()
    x = w.source("x", rng.normal(size=(TOKENS, WIDTH)), "input")
    for i in range(layers):
        w.line = f"layer.py:{i}"
        here = fault if fault is not None and fault.layer == i and fault.rank in (None, rank) else None
        wrong = "" if here is None else here.kind
        whole = {n: rng.normal(size=(WIDTH, WIDTH)) / 4 for n in ("q", "k", "v", "o")}
        whole |= {"up": rng.normal(size=(WIDTH, INNER)) / 4, "down": rng.normal(size=(INNER, WIDTH)) / 4}
        p = {}
        for name, array in whole.items():
            dim = 0 if name in ("o", "down") else 1
            p[name] = w.source(f"{i}.{name}", np.split(array, ranks, dim)[rank].copy())
        gains = [w.source(f"{i}.g{k}", rng.normal(size=(WIDTH,))) for k in (1, 2)]
        x = w.do("add", x, _attention(w, _norm(w, x, gains[0], wrong), p, ranks, wrong))
        x = w.do("add", x, _dense(w, _norm(w, x, gains[1], ""), p, ranks, wrong))
    w.line = "end"
    return w.program(x)


def _norm(w: Writer, x: int, gain: int, wrong: str) -> int:
    mean = w.do("div", w.over("sum", x, 1), number=float(WIDTH - (wrong == "mean")))
    centred = w.do("sub", x, mean)
    spread = w.do("div", w.over("sum", w.do("mul", centred, centred), 1), number=float(WIDTH))
    scale = w.do("rsqrt", w.do("add", spread, number=2.0**-16))
    return w.do("mul", w.do("mul", centred, scale), gain)


def _attention(w: Writer, h: int, p: dict[str, int], ranks: int, wrong: str) -> int:
    heads, size = HEADS // ranks, WIDTH // HEADS
    q, k, v = (w.turned(w.shaped(w.product(h, p[n]), TOKENS, heads, size), 1, 0, 2) for n in ("q", "k", "v"))
    if wrong == "other head" and heads > 1:
        first, rest = (
            w.do("slice", k, to=(b - a, TOKENS, size), dim=0, start=a, stop=b, step=1) for a, b in ((0, 1), (1, heads))
        )
        k = w.do("cat", rest, first, to=(heads, TOKENS, size), dim=0)
    scores = w.product(q, w.turned(k, 0, 2, 1))
    if wrong != "scores not scaled":
        scores = w.do("mul", scores, number=0.5)
    rows, columns = (
        w.shaped(w.do("iota", to=(TOKENS,), kind="int64", n=TOKENS, start=0, step=1, dtype="int64"), *shape)
        for shape in ((TOKENS, 1), (1, TOKENS))
    )
    seen = w.do("gt" if wrong == "mask" else "ge", rows, columns, to=(TOKENS, TOKENS), kind="bool")
    if wrong == "mask":  # the first row would be empty: it keeps its first key
        seen = w.do("logical_or", seen, w.do("eq", columns, number=0, to=(1, TOKENS), kind="bool"), to=(TOKENS, TOKENS))
    hidden = w.do("full", to=(), shape=(), value=float("-inf"), dtype="float64")
    scores = w.do("where", seen, scores, hidden, to=w.shape(scores))
    e = w.do("exp", w.do("sub", scores, w.over("amax", scores, 2)))
    o = w.product(w.do("div", e, w.over("sum", e, 2)), v)
    return _summed(w, w.product(w.shaped(w.turned(o, 1, 0, 2), TOKENS, heads * size), p["o"]), ranks, wrong)


def _dense(w: Writer, h: int, p: dict[str, int], ranks: int, wrong: str) -> int:
    u = w.product(h, p["up"])
    z = w.product(w.do("mul", u, w.do("tanh" if wrong == "other function" else "sigmoid", u)), p["down"])
    return _summed(w, z, ranks, "")


def _summed(w: Writer, x: int, ranks: int, wrong: str) -> int:
    if wrong == "doubled":
        x = w.do("mul", x, number=2.0)
    if ranks == 1:
        return x
    total = w.do("all_reduce", x, op="sum", ranks=tuple(range(ranks)))
    if wrong == "summed twice":
        return w.do("add", total, x)
    return x if wrong == "not summed" else total
