"""Small programs of ranks that ask for much: the part of `hostile_files` that is about claims of equality."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace

from shardproof.models.equality.pair import Known, Pair, Part, Relation
from shardproof.models.equality.program import Described, RankProgram, Source, Step
from shardproof.proofs.equality.file import decode_equality, encode_equality
from shardproof.verify.budget import Budget
from shardproof.verify.equality.certificate import check_pair


class Drawn:
    """A program that grows step by step."""

    def __init__(self, *sources: tuple[tuple[int, ...], str]) -> None:
        self.tensors = [Described(shape, dtype) for shape, dtype in sources]
        self.sources = [Source(k, f"x{k}", "input") for k in range(len(sources))]
        self.steps = list[Step]()

    def step(self, operator: str, reads: tuple[int, ...], made: tuple[int, ...], /, **words: object) -> int:
        number = len(self.tensors)
        dtype = self.tensors[reads[0]].dtype if reads else "float32"
        self.tensors.append(Described(made, dtype))
        self.steps.append(Step(operator, reads, (number,), tuple(words.items())))  # type: ignore[arg-type]
        return number

    def shape(self, number: int) -> tuple[int, ...]:
        return self.tensors[number].shape

    def program(self, output: int) -> RankProgram:
        return RankProgram(tuple(self.sources), tuple(self.steps), (("output", output),), tuple(self.tensors))


def whole(name: str, shape: tuple[int, ...]) -> Part:
    return Part(name, tuple(((0, 0, n),) for n in shape))


def _same(program: RankProgram, single: RankProgram) -> Iterator[Relation]:
    """Tensors of one number and shape are said to be the same, whether or not they are."""
    there = {n for s in single.steps for n in s.makes}
    for step in program.steps:
        for n in step.makes:
            if n in there and single.tensors[n].shape == program.tensors[n].shape:
                yield Relation(n, n, whole("", program.tensors[n].shape).runs)


def pair(program: RankProgram, ranks: int = 1, single: RankProgram | None = None) -> Pair:
    """Every rank does the same as the one device."""
    given = tuple((s.number, whole(s.name, program.tensors[s.number].shape)) for s in program.sources)
    name, output = program.outputs[0]
    result = ((name, whole(name, program.tensors[output].shape)),)
    one = single or program
    relations = tuple(_same(program, one)) if ranks <= 64 else ()
    return Pair(one, (program,) * ranks, (), (given,) * ranks, (result,) * ranks, (), (relations,) * ranks)


def _squared(rnd: random.Random) -> Pair:
    """Products of sums of products."""
    n = rnd.choice((2, 8, 1 << 20))
    d = Drawn(*(((n, n), "float32") for _ in range(rnd.choice((2, 4, 8)))))
    at = list(range(len(d.sources)))
    for _ in range(rnd.choice((8, 40, 400))):
        name = rnd.choice(("add", "mul", "matmul", "sub", "maximum", "div"))
        at.append(d.step(name, (rnd.choice(at), rnd.choice(at[-6:])), (n, n)))
    return pair(d.program(at[-1]), rnd.choice((1, 4)))


def _powers(rnd: random.Random) -> Pair:
    """Powers of powers, numbers beyond all numbers."""
    d = Drawn(((4,), "float32"), ((4,), "float32"))
    at = d.step("add", (0, 1), (4,)) if rnd.random() < 0.5 else 0
    for _ in range(rnd.choice((3, 12, 60, 600))):
        number = rnd.choice((2.0, 3.0, 4.0, 64.0, 0.5, -7.0, 1 / 3, 1e300, 5e-324, 1 << 40))
        name = rnd.choice(("pow", "mul", "mul", "div", "exp", "log", "rsqrt", "sigmoid"))
        words = {"number": number} if name in ("pow", "mul", "div") else {}
        at = d.step(name, (at,), (4,), **words)
    return pair(d.program(at))


def _pieces(rnd: random.Random) -> Pair:
    """Slices put together otherwise."""
    n, dims = rnd.choice((64, 512, 4096)), rnd.choice((1, 2, 3))
    shape = (n,) * dims
    d = Drawn((shape, "float32"), (shape, "float32"))
    at = [0, 1]
    for _ in range(rnd.choice((1, 3, 6))):
        dim, size = rnd.randrange(dims), rnd.choice((1, 3, 16, n // 2))
        cuts, parts = range(0, n, size), []
        for k in [*cuts][: rnd.choice((50, 300, 1200))]:
            stop = min(n, k + size)
            one = (*shape[:dim], stop - k, *shape[dim + 1 :])
            parts.append(d.step("slice", (rnd.choice(at),), one, dim=dim, start=k, stop=stop, step=1))
        if rnd.random() < 0.5:
            rnd.shuffle(parts)
        total = sum(d.shape(p)[dim] for p in parts)
        made = d.step("cat", tuple(parts), (*shape[:dim], total, *shape[dim + 1 :]), dim=dim)
        if total == n:
            at.append(d.step(rnd.choice(("add", "mul")), (made, rnd.choice(at)), shape))
        else:
            at = [made, made]
            shape = d.shape(made)
            break
    return pair(d.program(d.step("sum", (at[-1],), (), dims=tuple(range(dims)), keep=False)))


def _digits(rnd: random.Random) -> Pair:
    """Reshapes and permutations."""
    bits = rnd.choice((6, 12, 30))
    shape: tuple[int, ...] = (1 << bits,)
    d = Drawn((shape, "float32"), (shape, "float32"))
    at, other = 0, 1
    for _ in range(rnd.choice((4, 20, 100))):
        left, new = bits, list[int]()
        while left:
            k = rnd.randint(1, min(left, 6))
            new.append(1 << k)
            left -= k
        if len(new) > 16:
            continue
        at = d.step("reshape", (at,), tuple(new), shape=tuple(new))
        order = list(range(len(new)))
        rnd.shuffle(order)
        at = d.step("permute", (at,), tuple(new[k] for k in order), dims=tuple(order))
        if rnd.random() < 0.4:
            at = d.step("reshape", (at,), shape, shape=shape)
            at = d.step(rnd.choice(("add", "mul")), (at, other), shape)
    return pair(d.program(d.step("reshape", (at,), shape, shape=shape)))


def _conditions(rnd: random.Random) -> Pair:
    """Truths of truths, sums over positions, rows in order."""
    n = rnd.choice((4, 16, 4096))
    d = Drawn(((n, n), "float32"), ((n, n), "float32"), ((n, n), "int64"))
    at = 0
    for _ in range(rnd.choice((3, 10, 40))):
        kind = rnd.randrange(7)
        if kind == 0:
            at = d.step("mul", (d.step("gt", (at, 1), (n, n)), at), (n, n))
        elif kind == 1:
            at = d.step(rnd.choice(("tril", "triu")), (at,), (n, n), diagonal=rnd.randint(-3, 3))
        elif kind == 2:
            at = d.step("cumsum", (at,), (n, n), dim=rnd.randrange(2))
        elif kind == 3:
            at = d.step("gather", (at, 2), (n, n), dim=rnd.randrange(2))
        elif kind == 4:
            at = d.step("scatter_add", (at, 2, 1), (n, n), dim=rnd.randrange(2))
        elif kind == 5:
            at = d.step("where", (d.step("eq", (at, 1), (n, n)), at, 1), (n, n))
        else:
            one = d.step("amax", (at,), (n, 1), dims=(1,), keep=True)
            at = d.step("sub", (at, one), (n, n))
    return pair(d.program(at))


def _meetings(rnd: random.Random) -> Pair:
    """Many ranks that wait for one another."""
    ranks = rnd.choice((16, 256, 4096))
    n = ranks * rnd.choice((1, 4))
    d = Drawn(((n, 4), "float32"))
    at = 0
    for _ in range(rnd.choice((1, 3, 12, 200))):
        name = rnd.choice(("all_reduce", "broadcast", "all_to_all", "local", "scattered"))
        group = tuple(range(ranks))
        if name == "all_reduce":
            how = rnd.choice(("sum", "max", "product", "avg"))
            at = d.step("all_reduce", (at,), (n, 4), op=how, ranks=group)
        elif name == "broadcast":
            at = d.step("broadcast", (at,), (n, 4), ranks=group, source=rnd.randrange(ranks))
        elif name == "all_to_all":
            even = (n // ranks,) * ranks
            at = d.step("all_to_all", (at,), (n, 4), ranks=group, send=even, receive=even)
        elif name == "scattered":
            one = d.step("reduce_scatter", (at,), (n // ranks, 4), op="sum", ranks=group)
            at = d.step("all_gather", (one,), (n, 4), ranks=group)
        else:
            at = d.step(rnd.choice(("exp", "neg", "tanh")), (at,), (n, 4))
    one = Drawn(((n, 4), "float32"))
    return pair(d.program(at), ranks, one.program(one.step("exp", (0,), (n, 4))))


def _parts(rnd: random.Random) -> Pair:
    """Ranks with every second row."""
    n, dims = rnd.choice((64, 1024, 8192)), rnd.choice((1, 2, 3))
    shape = (n,) * dims
    d = Drawn((shape, "float32"))
    program = d.program(d.step("exp", (0,), shape))
    made = pair(program, rnd.choice((1, 8, 64)))
    step = rnd.choice((1, 2, 8))
    runs = tuple(tuple((k, (k * 7) % (n // step) * step, step) for k in range(0, n, step)) for _ in range(dims))
    given, results = list(made.given), list(made.results)
    for rank in range(len(made.ranks)):
        if rnd.random() < 0.7:
            given[rank] = ((0, Part("x0", runs)),)
            results[rank] = (("output", Part("output", runs)),)
    return Pair(made.single, made.ranks, (), tuple(given), tuple(results), (), made.relations)


def _bound(rnd: random.Random) -> Pair:
    """Sums over many variables that look alike."""
    dims = rnd.choice((3, 6, 12, 16))
    shape = (rnd.choice((2, 3, 64)),) * dims
    d = Drawn((shape, "float32"), (shape, "float32"))
    at = [0, 1]
    for _ in range(rnd.choice((1, 4, 12))):
        order = list(range(dims))
        rnd.shuffle(order)
        one = d.step("permute", (rnd.choice(at),), shape, dims=tuple(order))
        at.append(d.step(rnd.choice(("mul", "add")), (one, rnd.choice(at)), shape))
        gone = tuple(sorted(rnd.sample(range(dims), rnd.randint(1, dims))))
        kept = tuple(1 if k in gone else n for k, n in enumerate(shape))
        total = d.step(rnd.choice(("sum", "amax")), (at[-1],), kept, dims=gone, keep=True)
        at.append(d.step(rnd.choice(("mul", "exp", "tanh")), (at[-1], total), shape))
        if d.steps[-1].operator != "mul":
            last = d.steps.pop()
            d.steps.append(Step(last.operator, last.reads[:1], last.makes, last.words))
    return pair(d.program(at[-1]))


def _doubled(rnd: random.Random) -> Pair:
    """Functions of functions of positions, each read twice: no input stands anywhere, and paths double."""
    d = Drawn(((4,), "float32"))
    at = d.step("iota", (), (4,), n=4, start=0.0, step=1.0)
    for _ in range(rnd.choice((8, 30, 60))):
        one = d.step("sin", (at,), (4,))
        at = d.step("tanh", (d.step("add", (at, one), (4,)),), (4,))
    return pair(d.program(d.step("mul", (at, 0), (4,))))


FAMILIES: tuple[Callable[[random.Random], Pair], ...] = (
    *(_squared, _powers, _pieces, _digits, _conditions, _meetings, _parts, _bound, _doubled),
)


def equalities(rnd: random.Random) -> Callable[[Budget], object]:
    """One attempt: drawn, perhaps with constants, written, read again, checked."""
    made = rnd.choice(FAMILIES)(rnd)
    if rnd.random() < 0.1:
        given = tuple((*row[:-1], (row[-1][0], Known(0.1, ""))) for row in made.given)
        made = replace(made, given=given)
    members: Mapping[str, object] = encode_equality(made)
    return lambda budget: check_pair(decode_equality(members), budget)  # type: ignore[arg-type]
