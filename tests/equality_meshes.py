"""Pairs of ranks on a mesh, written by hand, and the same said rank by rank."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from itertools import product
from math import prod

import numpy as np

from shardproof.models.equality.pair import Known, Mesh, Moves, Pair, Part, Relation, Runs
from shardproof.models.equality.program import Described, RankProgram, Source, Step, Word

MOVED = {"number": ("number",), "value": ("value",), "start": ("start", "stop")}


@dataclass
class Writer:
    """Writes a program."""

    sources: list[Source] = field(default_factory=list)
    steps: list[Step] = field(default_factory=list)
    tensors: list[Described] = field(default_factory=list)

    def source(self, name: str, shape: tuple[int, ...], dtype: str = "float64", kind: str = "input") -> int:
        self.tensors.append(Described(shape, dtype))
        self.sources.append(Source(len(self.tensors) - 1, name, kind))
        return len(self.tensors) - 1

    def step(
        self, operator: str, reads: tuple[int, ...], made: tuple[int, ...], /, kind: str = "float64", **words: Word
    ) -> int:
        self.tensors.append(Described(made, kind))
        n = len(self.tensors) - 1
        self.steps.append(Step(operator, reads, (n,), tuple(words.items()), f"job.py:{len(self.steps) + 1}"))
        return n

    def program(self, **outputs: int) -> RankProgram:
        return RankProgram(tuple(self.sources), tuple(self.steps), tuple(outputs.items()), tuple(self.tensors))


def whole(shape: tuple[int, ...]) -> tuple[Runs, ...]:
    return tuple(((0, 0, n),) for n in shape)


def rank_by_rank(pair: Pair) -> Pair:
    """What a pair of a mesh says of every rank, without relations."""
    mesh = pair.mesh
    assert mesh is not None
    programs, given, results = {}, {}, {}
    for k, ranks in enumerate(mesh.ranks):
        for at, rank in zip(product(*map(range, mesh.sizes)), ranks, strict=True):
            steps = tuple(replace(s, words=_words(s, mesh, k, at)) for s in pair.ranks[k].steps)
            programs[rank] = replace(pair.ranks[k], steps=steps)
            given[rank] = tuple((n, _part(g, at) if isinstance(g, Part) else g) for n, g in pair.given[k])
            results[rank] = tuple((name, _part(p, at)) for name, p in pair.results[k])
    order = sorted(programs)
    return replace(
        pair,
        ranks=tuple(programs[r] for r in order),
        given=tuple(given[r] for r in order),
        results=tuple(results[r] for r in order),
        relations=tuple(() for _ in order),
        mesh=None,
    )


def _words(step: Step, mesh: Mesh, k: int, at: tuple[int, ...]) -> tuple[tuple[str, Word], ...]:
    words = dict(step.words)
    for name, others in MOVED.items():
        by = words.pop(f"{name}_moves", None)
        for other in others if by else ():
            words[other] += sum(m * c for m, c in zip(by, at, strict=True))  # type: ignore[operator, arg-type]
    if (along := words.pop("along", None)) is not None:
        table = np.asarray(mesh.ranks[k]).reshape(mesh.sizes)
        line = table[tuple(slice(None) if j in along else c for j, c in enumerate(at))]  # type: ignore[operator]
        words["ranks"] = tuple(line.reshape(-1).tolist())
        if "source" in words:
            words["source"] = words["ranks"][words["source"]]  # type: ignore[index]
    for name in ("to", "of"):
        if name in words:
            words[name] = mesh.ranks[words[name]][int(np.ravel_multi_index(at, mesh.sizes))]  # type: ignore[index]
    return tuple(words.items())


def _part(part: Part, at: tuple[int, ...]) -> Part:
    off = [sum(m * c for m, c in zip(row, at, strict=True)) for row in part.moves] or [0] * len(part.runs)
    runs = tuple(tuple((h, t + o, n) for h, t, n in lines) for lines, o in zip(part.runs, off, strict=True))
    return Part(part.of, runs)


def mesh_of(sizes: tuple[int, ...], classes: int = 1) -> Mesh:
    many = prod(sizes)
    ranks = tuple(tuple(range(c * many, (c + 1) * many)) for c in range(classes))
    return Mesh(sizes, ranks, tuple(range(classes * many)))


def block(of: str, shape: tuple[int, ...], moves: Moves) -> Part:
    """A part at the origin of the mesh."""
    return Part(of, whole(shape), moves)


def mlp(data: int, tensor: int, layers: int = 1) -> Pair:
    """Layers of x + relu(x a) b on data x tensor ranks: batches along the first dimension, columns of a and rows of b along
    the second; the loss is the mean of all elements, every rank's the same.
    """
    batch, width, hidden = 2 * data, 3, 2 * tensor
    one, rank = Writer(), Writer()
    x, h = one.source("x", (batch, width)), rank.source("x", (2, width))
    given = {h: block("x", (2, width), ((2, 0), (0, 0)))}
    relations = []
    for k in range(layers):
        a, b = (one.source(f"{n}{k}", s, kind="parameter") for n, s in (("a", (width, hidden)), ("b", (hidden, width))))
        c, d = (rank.source(f"{n}{k}", s, kind="parameter") for n, s in (("a", (width, 2)), ("b", (2, width))))
        given |= {c: block(f"a{k}", (width, 2), ((0, 0), (0, 2))), d: block(f"b{k}", (2, width), ((0, 2), (0, 0)))}
        before = x, h
        x, h = one.step("matmul", (x, a), (batch, hidden)), rank.step("matmul", (h, c), (2, 2))
        relations.append(Relation(h, x, whole((2, 2)), ((2, 0), (0, 2))))
        x, h = (w.step("maximum", (n,), s, number=0) for w, n, s in ((one, x, (batch, hidden)), (rank, h, (2, 2))))
        relations.append(Relation(h, x, whole((2, 2)), ((2, 0), (0, 2))))
        x, h = one.step("matmul", (x, b), (batch, width)), rank.step("matmul", (h, d), (2, width))
        h = rank.step("all_reduce", (h,), (2, width), op="sum", along=(1,))
        relations.append(Relation(h, x, whole((2, width)), ((2, 0), (0, 0))))
        x, h = one.step("add", (before[0], x), (batch, width)), rank.step("add", (before[1], h), (2, width))
        relations.append(Relation(h, x, whole((2, width)), ((2, 0), (0, 0))))
    loss = one.step("div", (one.step("sum", (x,), (), dims=(0, 1), keep=False),), (), number=batch * width)
    mine = rank.step("div", (rank.step("sum", (h,), (), dims=(0, 1), keep=False),), (), number=2 * width)
    mine = rank.step("all_reduce", (mine,), (), op="avg", along=(0,))
    results = (("loss", Part("loss", ())), ("y", block("y", (2, width), ((2, 0), (0, 0)))))
    return Pair(
        *(one.program(loss=loss, y=x), (rank.program(loss=mine, y=h),), (), (tuple(given.items()),), (results,), ()),
        (tuple(relations),),
        mesh_of((data, tensor)),
    )


def pipeline(data: int) -> Pair:
    """exp(2 x) on two stages of `data` ranks each, a batch along them."""
    batch = 3 * data
    one, first, last = Writer(), Writer(), Writer()
    x = one.source("x", (batch, 2))
    twice = one.step("mul", (x,), (batch, 2), number=2)
    out = one.step("exp", (twice,), (batch, 2))
    h = first.step("mul", (first.source("x", (3, 2)),), (3, 2), number=2)
    first.steps.append(Step("send", (h,), (), (("to", 1), ("tag", 0)), "job.py:9"))
    got = last.step("recv", (), (3, 2), of=0, tag=0)
    mine = last.step("exp", (got,), (3, 2))
    place = block("x", (3, 2), ((3,), (0,)))
    return Pair(
        *(one.program(y=out), (first.program(), last.program(y=mine)), (), (((0, place),), ())),
        ((), (("y", replace(place, of="y")),)),
        (),
        ((Relation(h, twice, place.runs, place.moves),), (Relation(got, twice, place.runs, place.moves),)),
        mesh_of((data,), 2),
    )


def constant(number: float) -> Known:
    return Known(number, float(number).hex())
