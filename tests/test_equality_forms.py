"""Forms of operators beside NumPy: every element of what `verify.equality` says is evaluated, term by term."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from fractions import Fraction
from functools import partial
from itertools import product

import numpy as np
import pytest

from shardproof.models.equality.program import Step, Word
from shardproof.verify.equality.conditions import _same as index_of_same
from shardproof.verify.equality.forms import ONE
from shardproof.verify.equality.functions import Forms
from shardproof.verify.equality.index import HELD, OWN, Undecided, variable
from shardproof.verify.equality.indices import Bound
from shardproof.verify.equality.meaning import Meaning
from shardproof.verify.equality.reading import same
from shardproof.verify.equality.segments import Joined, Segments, Tensor
from shardproof.verify.equality.terms import Form, Head, Kind
from shardproof.verify.equality.unfolding import Lost, Unfolding
from shardproof.verify.equality.values import Tensors, Value

RNG = np.random.default_rng(0)


def seen(b: Bench, x: Value, y: Value) -> bool:
    """Whether two values are seen to be the same."""
    return same(b.tensors, x, y, Unfolding(b.forms, Lost()).equal)


class Bench:
    """Values of operators, and their forms evaluated on numbers."""

    def __init__(self) -> None:
        self.forms = Forms(lambda n: None)
        self.tensors = Tensors(self.forms)
        self.segments = Segments(Meaning(self.tensors))
        self.arrays: dict[str, np.ndarray] = {}
        self.known: dict[tuple[int, tuple[int, ...]], float] = {}

    def source(self, name: str, array: np.ndarray, floor: bool = False) -> Value:
        self.arrays[name] = array.squeeze()
        head = self.forms.head(Head(Kind.INPUT, name))
        if floor:
            self.forms.floors[head] = 0
        return self.tensors.source(head, array.shape)

    def do(self, operator: str, *reads: Value, **words: Word) -> Value:
        found = self.packed(operator, *reads, **words)
        assert isinstance(found, Value)
        return found

    def packed(self, operator: str, *reads: Tensor, **words: Word) -> Tensor:
        return self.segments.of(Step(operator, (), (), tuple(words.items())), reads)[0]

    def form(self, form: Form, env: Mapping[int, int]) -> float:
        total = 0.0
        for (ranges, factors), c in form:
            for values in product(*(range(a, b) for a, b in ranges)):
                here = {**env, **{-i - 1: v for i, v in enumerate(values)}}
                term = float(c)
                for h, at, p in factors:
                    term *= self.factor(h, [i[1] + sum(k * here[v] for v, k in i[0]) for i in at]) ** float(p)
                total += term
        return total

    def factor(self, h: int, at: Sequence[int]) -> float:
        key = (h, tuple(at))
        if key not in self.known:
            self.known[key] = self.evaluated(h, at)
        return self.known[key]

    def evaluated(self, h: int, at: Sequence[int]) -> float:
        head = self.forms.heads[h]
        match head.kind:
            case Kind.IOTA:
                return at[0]
            case Kind.INPUT:
                return float(self.arrays[head.name][tuple(at)])
            case Kind.ROOT:
                return math.sqrt(head.words[0])
        env = dict(enumerate(at[: head.free]))
        if head.kind is Kind.GREATEST:
            n = head.free
            over = [range(at[n + 2 * i], at[n + 2 * i + 1]) for i in range(head.bound)]
            return max(
                self.form(head.of[0], {**env, **{OWN + i: v for i, v in enumerate(vs)}}) for vs in product(*over)
            )
        of = [self.form(f, env) for f in head.of]
        match head.kind:
            case Kind.EXP:
                return math.exp(of[0])
            case Kind.LOG:
                return math.log(of[0])
            case Kind.BASE | Kind.NAMED:
                return of[0]
            case Kind.POSITIVE:
                return float(of[0] > 0)
            case Kind.NULL:
                return float(abs(of[0]) < 1e-9)
            case Kind.FUNCTION:
                one = {"tanh": math.tanh, "erf": math.erf, "maximum": max, "abs": abs}[head.name]
                return one(*of)
        raise AssertionError(head.kind)

    def numbers(self, value: Tensor) -> np.ndarray:
        if isinstance(value, Joined):
            return np.concatenate([self.numbers(p) for p in value.parts], value.dim)
        sizes = [n for d in value.digits for n in d]
        out = np.full(sizes, np.nan)
        for box, form in value.pieces:
            for place in product(*(range(a, b) for a, b in box)):
                assert np.isnan(out[place])  # pieces do not overlap
                out[place] = self.form(form, dict(enumerate(place)))
        return out.reshape(value.shape)


def test_attention_is_what_numpy_says() -> None:
    b = Bench()
    x, w = RNG.normal(size=(2, 6, 8)), RNG.normal(size=(8, 12))
    y = b.do("matmul", b.do("reshape", b.source("x", x), shape=(12, 8)), b.source("w", w))
    z = b.do("permute", b.do("reshape", y, shape=(2, 6, 3, 4)), dims=(0, 2, 1, 3))
    heads = b.do("reshape", z, shape=(6, 6, 4))
    s = b.do("mul", b.do("matmul", heads, b.do("permute", heads, dims=(0, 2, 1))), number=0.5)
    mask = b.do("tril", b.do("full", shape=(6, 6), value=1.0), diagonal=0)
    s = b.do("where", mask, s, b.do("full", shape=(6, 6), value=-5.0))
    e = b.do("exp", b.do("sub", s, b.do("amax", s, dims=(2,), keep=True)))
    p = b.do("div", e, b.do("sum", e, dims=(2,), keep=True))
    o = b.do("permute", b.do("reshape", b.do("matmul", p, heads), shape=(2, 3, 6, 4)), dims=(0, 2, 1, 3))
    o = b.do("reshape", o, shape=(2, 6, 12))

    za = (x.reshape(12, 8) @ w).reshape(2, 6, 3, 4).transpose(0, 2, 1, 3).reshape(6, 6, 4)
    sa = np.where(np.tril(np.ones((6, 6))) > 0, za @ za.transpose(0, 2, 1) / 2, -5.0)
    pa = np.exp(sa) / np.exp(sa).sum(2, keepdims=True)
    want = (pa @ za).reshape(2, 3, 6, 4).transpose(0, 2, 1, 3).reshape(2, 6, 12)
    assert np.allclose(b.numbers(o), want)
    halves = [b.do("slice", o, dim=2, start=a, stop=c, step=1) for a, c in ((0, 4), (4, 12))]
    assert seen(b, b.do("cat", *halves, dim=2), o)
    assert not seen(b, b.do("mul", o, number=2), o)


def _one_operator(b: Bench, x: np.ndarray) -> dict[str, tuple[Value, np.ndarray]]:
    v = b.source("x", x)
    ids = RNG.integers(0, 8, size=(2, 3))
    i, w = b.source("ids", ids, floor=True), b.source("w", w_ := RNG.normal(size=(8, 5)))
    rows = np.zeros((8, 5))
    np.add.at(rows, ids, w_[ids])
    centred = x - x.mean(2, keepdims=True)
    mean = b.do("div", b.do("sum", v, dims=(2,), keep=True), number=x.shape[2])
    apart = b.do("sub", v, mean)
    square = b.do("div", b.do("sum", b.do("mul", apart, apart), dims=(2,), keep=True), number=x.shape[2])
    picked = b.do("index", w, i)
    return {
        "cumsum": (b.do("cumsum", v, dim=1), x.cumsum(1)),
        "triu": (b.do("triu", v, diagonal=1), np.triu(x, 1)),
        "relu": (b.do("mul", v, b.do("gt", v, number=0)), np.maximum(x, 0)),
        "maximum": (b.do("maximum", v, b.do("neg", v)), np.abs(x)),
        "amin": (b.do("amin", v, dims=(1,), keep=False), x.min(1)),
        "norm": (
            b.do("mul", apart, b.do("rsqrt", b.do("add", square, number=1e-5))),
            centred / np.sqrt((centred**2).mean(2, keepdims=True) + 1e-5),
        ),
        "tanh": (b.do("tanh", b.do("sub", v, number=1, reverse=True)), np.tanh(1 - x)),
        "every second": (b.do("slice", v, dim=1, start=1, stop=6, step=2), x[:, 1:6:2]),
        "written": (
            b.do("slice_scatter", v, b.do("full", shape=(2, 2, 8), value=3.0), dim=1, start=2, stop=4, step=1),
            np.concatenate([x[:, :2], np.full((2, 2, 8), 3.0), x[:, 4:]], 1),
        ),
        "rows": (picked, w_[ids]),
        "rows added": (b.do("index_add", b.do("full", shape=(8, 5), value=0.0), i, picked), rows),
        "gather": (
            b.do("gather", b.do("reshape", v, shape=(12, 8)), b.do("reshape", i, shape=(6, 1)), dim=1),
            np.take_along_axis(x.reshape(12, 8)[:6], ids.reshape(6, 1), 1),
        ),
        "iota": (b.do("iota", n=4, start=1, step=2), np.arange(1, 9, 2)),
        "log of a sum": (b.do("log", b.do("sum", b.do("exp", v), dims=(2,), keep=False)), np.log(np.exp(x).sum(2))),
    }


def test_operators_are_what_numpy_says() -> None:
    b = Bench()
    for name, (value, want) in _one_operator(b, RNG.normal(size=(2, 6, 8))).items():
        assert value.shape == want.shape and np.allclose(b.numbers(value), want), name


def test_parts_of_a_vocabulary_add_up() -> None:
    b = Bench()
    i, w = b.source("ids", RNG.integers(0, 8, size=(2, 3)), floor=True), b.source("w", RNG.normal(size=(8, 5)))
    whole, parts = b.do("index", w, i), []
    for first in (0, 4):
        mask = b.do("logical_or", b.do("lt", i, number=first), b.do("ge", i, number=first + 4))
        local = b.do("where", mask, b.do("full", shape=(), value=0), b.do("sub", i, number=first))
        rows = b.do("index", b.do("slice", w, dim=0, start=first, stop=first + 4, step=1), local)
        parts.append(b.do("where", b.do("reshape", mask, shape=(2, 3, 1)), b.do("full", shape=(), value=0.0), rows))
    assert seen(b, b.do("add", *parts), whole)
    assert not seen(b, parts[0], whole)


def test_a_loop_over_heads_is_the_tensor() -> None:
    b = Bench()
    x = b.source("x", RNG.normal(size=(2, 3, 4)))
    turns = [b.do("reshape", b.do("slice", x, dim=1, start=h, stop=h + 1, step=1), shape=(2, 4)) for h in range(3)]
    stacked = b.do("cat", *(b.do("reshape", t, shape=(2, 1, 4)) for t in turns), dim=1)
    assert seen(b, stacked, x) and len(stacked.pieces) == 1
    swapped = b.do("cat", *(b.do("reshape", t, shape=(2, 1, 4)) for t in (turns[1], turns[0], turns[2])), dim=1)
    assert not seen(b, swapped, x)


def _named(b: Bench, value: Value) -> Value:
    """A tensor that has a name, as those of the one device have."""
    return b.tensors.apply(value, lambda f: b.forms.abstract(Kind.NAMED, "tensor", (), (f,)))


def taken_out(u: Unfolding, name: int, form: Form) -> Form:
    return u.without(form, name)


def test_names_give_way_to_what_they_stand_for() -> None:
    """Every operator of named tensors, each name taken out: the numbers stay."""
    b, unfolded = Bench(), 0
    x, w = RNG.uniform(0.5, 2, size=(2, 4, 3)), RNG.uniform(0.5, 2, size=(3, 3))
    y = b.do("matmul", b.do("reshape", b.source("x", x), shape=(8, 3)), b.source("w", w))
    one = _named(b, b.do("reshape", y, shape=(2, 4, 3)))
    two = _named(b, b.do("exp", b.do("mul", one, number=0.25)))
    half = b.do("slice", two, dim=1, start=2, stop=4, step=1)
    other = b.do("slice", one, dim=1, start=2, stop=4, step=1)
    made = {
        "sum": b.do("sum", two, dims=(1,), keep=True),
        "greatest": b.do("amax", two, dims=(2,), keep=True),
        "exp": b.do("exp", b.do("mul", one, number=-0.5)),
        "log": b.do("log", b.do("add", half, other)),
        "root": b.do("rsqrt", b.do("add", half, number=1.0)),
        "quotient": b.do("div", half, b.do("sum", half, dims=(2,), keep=True)),
        "truth": b.do("mul", b.do("gt", one, two), one),
        "larger": b.do("maximum", half, other),
        "function": b.do("tanh", b.do("mul", two, two)),
        "product": b.do("matmul", two, b.do("permute", two, dims=(0, 2, 1))),
    }
    for what, value in made.items():
        u = Unfolding(b.forms, Lost())
        want = b.numbers(value)
        while names := frozenset[int]().union(*(u.names(form) for _, form in value.pieces)):
            last = max(names)
            value = b.tensors.apply(value, partial(taken_out, u, last))
            assert np.allclose(b.numbers(value), want), what
            unfolded += 1
    assert unfolded > len(made)


@pytest.mark.parametrize("seed", range(12))
def test_what_is_packed_into_flat_buffers_is_what_numpy_says(seed: int) -> None:
    """Tensors of drawn sizes packed flat, gathered, cut, added and given other shapes."""
    rng, b = np.random.default_rng(seed), Bench()
    rows, ranks = rng.integers(1, 4, size=3), int(rng.integers(2, 4))
    shapes = [(int(rows[0]) * ranks, 3), (int(rows[1]) * ranks, 5), (int(rows[2]) * ranks,)]
    arrays = [rng.normal(size=s) for s in shapes]
    tensors = [b.source(f"p{k}", a) for k, a in enumerate(arrays)]
    sizes = [a.size // ranks for a in arrays]
    packed, want = list[Tensor](), list[np.ndarray]()
    for r in range(ranks):
        parts = []
        for t, a in zip(tensors, arrays, strict=True):
            n = len(a) // ranks
            mine = b.do("slice", t, dim=0, start=r * n, stop=r * n + n, step=1)
            parts.append(b.do("reshape", mine, shape=(a.size // ranks,)))
        packed.append(b.packed("cat", *parts, dim=0))
        want.append(np.concatenate([a.reshape(ranks, -1)[r] for a in arrays]))
    flat, all_of = b.packed("cat", *packed, dim=0), np.concatenate(want)
    assert np.allclose(b.numbers(flat), all_of)
    wide = b.packed("reshape", flat, shape=(ranks, sum(sizes)))
    assert np.allclose(b.numbers(wide), all_of.reshape(ranks, -1))
    first = 0
    for size, array, tensor in zip(sizes, arrays, tensors, strict=True):
        column = b.packed("slice", wide, dim=1, start=first, stop=first + size, step=1)
        back = b.do("reshape", column, shape=array.shape)
        assert np.allclose(b.numbers(back), array) and seen(b, back, tensor)
        first += size
    again = b.packed("reshape", wide, shape=(all_of.size,))
    assert np.allclose(b.numbers(b.packed("add", again, b.packed("mul", flat, number=0.5))), all_of * 1.5)
    low = int(rng.integers(0, sizes[0] + 1))
    try:  # a cut within a row may not be seen; where it is, it is right
        cut = b.packed("slice", flat, dim=0, start=low, stop=all_of.size - 1, step=1)
        assert np.allclose(b.numbers(cut), all_of[low:-1])
        new = b.packed(
            "slice_scatter", flat, b.do("full", shape=(2,), value=7.0), dim=0, start=low, stop=low + 2, step=1
        )
    except Undecided:
        return
    all_of[low : low + 2] = 7.0
    assert np.allclose(b.numbers(new), all_of)


def test_what_is_packed_otherwise_is_undecided() -> None:
    b = Bench()
    one = b.do("reshape", b.source("x", RNG.normal(size=(4, 3))), shape=(12,))
    two = b.do("reshape", b.source("y", RNG.normal(size=(3, 5))), shape=(15,))
    flat = b.packed("cat", one, two, dim=0)
    assert isinstance(flat, Joined) and flat.shape == (27,)
    wide = b.packed("reshape", b.packed("cat", flat, flat, dim=0), shape=(2, 27))
    assert isinstance(wide, Joined) and wide.dim == 1
    plain = b.source("z", RNG.normal(size=(2, 27)))
    other = b.do("reshape", b.source("v", RNG.normal(size=(2, 6))), shape=(12,))
    tall = b.packed("reshape", b.packed("cat", one, other, dim=0), shape=(8, 3))
    assert isinstance(tall, Joined) and [p.shape for p in tall.parts] == [(4, 3), (4, 3)]
    for operator, reads, words in (
        ("sum", (flat,), {"dims": (0,), "keep": False}),
        ("permute", (wide,), {"dims": (1, 0)}),
        ("slice", (flat,), {"dim": 0, "start": 0, "stop": 12, "step": 2}),
        ("slice", (flat,), {"dim": -1, "start": 0, "stop": 12, "step": 1}),
        ("slice", (flat,), {"dim": 0, "start": 20, "stop": 28, "step": 1}),
        ("cat", (wide, plain), {"dim": 0}),
        ("cat", (flat, plain), {"dim": 0}),
        ("add", (wide, b.source("r", RNG.normal(size=(27,)))), {}),
        ("add", (flat, b.source("one", RNG.normal(size=(1, 1)))), {}),
        ("add", (tall, b.source("of a part", RNG.normal(size=(4, 3)))), {}),
        ("reshape", (flat,), {"shape": (3, 3, 3)}),
        ("reshape", (flat,), {"shape": (2, 13)}),
    ):
        with pytest.raises(Undecided):
            b.packed(operator, *reads, **words)  # type: ignore[arg-type]


def test_bound_variables_of_one_value_are_that_number() -> None:
    """One of two values beside it stays a sum."""
    b = Bench()
    array = RNG.normal(size=(5, 5))
    b.source("x", array)
    factor = b.forms.head(Head(Kind.INPUT, "x")), (variable(-1), variable(-2)), ONE
    form: Form = (((((2, 3), (1, 3)), (factor,)), Fraction(1)),)
    fixed = b.forms.fix(form)
    assert all(len(ranges) == 1 for (ranges, _), _ in fixed)
    assert math.isclose(b.form(fixed, {}), array[2, 1] + array[2, 2]) and b.form(form, {}) == b.form(fixed, {})


def test_a_bound_variable_is_another_only_where_their_signs_differ() -> None:
    """[v - w = 0] says that v is w; [v + w = 0] says something else."""
    known = {0: (0, 4), HELD: (0, 4)}
    assert index_of_same([(HELD, Fraction(1)), (0, Fraction(-1))], Fraction(0), known, 1) == (HELD, (((0, 1),), 0))
    assert index_of_same([(HELD, Fraction(1)), (0, Fraction(1))], Fraction(0), known, 1) is None
    assert index_of_same([(HELD, Fraction(1)), (0, Fraction(-2))], Fraction(0), known, 1) is None


def test_a_sum_that_is_written_out_is_the_sum() -> None:
    b = Bench()
    w = b.source("w", RNG.normal(size=(8, 3)))
    whole = b.do("sum", w, dims=(0,), keep=False)
    rows = [b.do("reshape", b.do("slice", w, dim=0, start=k, stop=k + 1, step=1), shape=(3,)) for k in range(8)]
    squares = [b.do("mul", r, r) for r in rows]
    total = squares[0]
    for s in squares[1:]:
        total = b.do("add", total, s)
    assert seen(b, total, b.do("sum", b.do("mul", w, w), dims=(0,), keep=False))
    assert not seen(b, total, whole)
    assert not seen(b, b.do("add", total, squares[0]), b.do("sum", b.do("mul", w, w), dims=(0,), keep=False))


def test_beside_an_infinity_every_number_is_nothing() -> None:
    """exp(x - t L) = (1 - t) exp(x) of a truth value t, and x - t L = -L where t is 1; of nothing else."""
    b = Bench()
    x, z = (b.source(n, RNG.normal(size=(4, 4))) for n in "xz")
    above = b.do("triu", b.do("full", shape=(4, 4), value=1.0), diagonal=1)
    low, kept = b.do("full", shape=(4, 4), value=-math.inf), b.do("sub", above, number=1.0, reverse=True)
    masked = b.do("where", above, low, x)
    assert seen(b, b.do("exp", masked), b.do("mul", kept, b.do("exp", x)))
    assert not seen(b, b.do("exp", masked), b.do("exp", x))
    assert not seen(b, b.do("exp", masked), b.do("mul", above, b.do("exp", x)))
    assert seen(b, b.do("eq", masked, number=-math.inf), above) and seen(b, b.do("ne", masked, number=-math.inf), kept)
    assert not seen(b, b.do("eq", masked, number=math.inf), above)
    assert seen(b, b.do("eq", b.do("abs", x), number=math.inf), b.do("full", shape=(4, 4), value=0.0))
    high = b.do("where", above, b.do("neg", low), x)  # exp of an infinity is none
    assert not seen(b, b.do("exp", high), b.do("mul", kept, b.do("exp", x)))
    times = b.do("add", x, b.do("mul", z, low))  # of a sign that nobody knows
    assert not seen(b, b.do("exp", times), b.do("full", shape=(4, 4), value=0.0))
    assert not seen(b, b.do("exp", b.do("tanh", masked)), b.do("mul", kept, b.do("exp", b.do("tanh", x))))


def test_sums_that_a_mask_cuts() -> None:
    """Rows 4 and 5 look at columns up to their own: at 0 to 3 whole, at 4 and 5 by the mask."""
    b = Bench()
    x = b.source("x", RNG.normal(size=(8, 8)))
    below = b.do("tril", x, diagonal=0)
    rows = b.do("slice", b.do("sum", below, dims=(1,), keep=False), dim=0, start=4, stop=6, step=1)
    wide = b.do("slice", x, dim=0, start=4, stop=6, step=1)
    first = b.do("sum", b.do("slice", wide, dim=1, start=0, stop=4, step=1), dims=(1,), keep=False)
    own = b.do("tril", b.do("slice", wide, dim=1, start=4, stop=6, step=1), diagonal=0)
    total = b.do("add", first, b.do("sum", own, dims=(1,), keep=False))
    assert seen(b, rows, total) and np.allclose(b.numbers(rows), b.numbers(total))
    assert seen(b, *[b.do("reciprocal", t) for t in (rows, total)])
    strict = b.do("tril", b.do("slice", wide, dim=1, start=4, stop=6, step=1), diagonal=-1)
    assert not seen(b, rows, b.do("add", first, b.do("sum", strict, dims=(1,), keep=False)))
    ends = [b.do("sum", b.do("slice", x, dim=1, start=k, stop=8, step=1), dims=(1,), keep=False) for k in (0, 2)]
    begin = b.do("sum", b.do("slice", x, dim=1, start=0, stop=2, step=1), dims=(1,), keep=False)
    assert seen(b, b.do("sub", *ends), begin) and b.do("sub", *ends).pieces == begin.pieces


def test_what_is_divided_is_compared_over_one_denominator() -> None:
    """Blocks of attention joined by their logarithms of sums, as ring attention does: o - sigmoid(b - a) (o - p)."""
    b = Bench()
    s, v = b.source("s", RNG.normal(size=(3, 4))), b.source("v", RNG.normal(size=(4, 2)))
    parts = []
    for first in (0, 2):
        scores = b.do("slice", s, dim=1, start=first, stop=first + 2, step=1)
        total = b.do("log", b.do("sum", b.do("exp", scores), dims=(1,), keep=True))
        p = b.do("exp", b.do("sub", scores, total))
        parts.append((b.do("matmul", p, b.do("slice", v, dim=0, start=first, stop=first + 2, step=1)), total))
    (o, a), (p, c) = parts
    joined = [
        b.do("sub", o, b.do("mul", b.do("sigmoid", b.do("sub", *order)), b.do("sub", o, p)))
        for order in ((c, a), (a, c))
    ]
    e = b.do("exp", s)
    whole = b.do("div", b.do("matmul", e, v), b.do("sum", e, dims=(1,), keep=True))
    assert np.allclose(b.numbers(joined[0]), b.numbers(whole)) and seen(b, joined[0], whole)
    assert not seen(b, joined[1], whole) and not seen(b, o, whole)


def test_truth_values_that_are_given_are_0_or_1() -> None:
    b = Bench()
    t, x = b.source("t", np.array([1.0, 0.0, 1.0])), b.source("x", np.array([0.5, 2.0, 0.0]))
    b.forms.truths.add(b.forms.head(Head(Kind.INPUT, "t")))
    assert seen(b, b.do("gt", t, number=0.5), t) and seen(b, b.do("mul", t, t), t)
    assert not seen(b, b.do("gt", x, number=0.5), x) and not seen(b, b.do("gt", t, number=1.0), t)


def test_numbers_of_32_bits_are_the_fractions_that_they_are_nearest_to() -> None:
    b = Bench()
    for one, other, same_number in (
        (float(np.float32(1 / 12)), 1 / 12, True),
        (float(np.float32(0.1)), 0.1, True),
        (float(np.nextafter(np.float32(0.1), np.float32(1))), 0.1, False),
        (0.1 + 1e-9, 0.1, False),
    ):
        found = [b.do("full", shape=(2,), value=n) for n in (one, other)]
        assert seen(b, *found) is same_number, (one, other)


def test_what_is_not_known_is_undecided() -> None:
    b = Bench()
    x = b.source("x", RNG.normal(size=(6,)))
    with pytest.raises(Undecided, match="not known here"):
        b.do("bessel", x)
    with pytest.raises(Undecided, match="may be 0"):  # [x > 0] / [x > 0] is 1 only where x is
        b.do("div", b.do("gt", x, number=0), b.do("gt", x, number=0))
    with pytest.raises(Undecided, match="divides by zero"):
        b.do("div", x, b.do("full", shape=(6,), value=0.0))


def _labels(bound: Bound, first: int, end: int) -> tuple[Bench, Value, Value]:
    """How often each of four labels is one of `first` to `end` - 1, and whether it is the number that is excepted."""
    b = Bench()
    ids = b.source("ids", np.asarray([[0], [bound.below - 1], [bound.but], [0]]))
    head = b.forms.head(Head(Kind.INPUT, "ids"))
    b.forms.integers.add(head)
    b.forms.excepted[head] = bound
    wide = b.do("expand", ids, shape=(4, end - first))
    positions = b.do("expand", b.do("iota", n=end - first, start=first, step=1, dtype="int64"), shape=(4, end - first))
    hits = b.do("cast", b.do("eq", wide, positions), dtype="float32", was="bool")
    other = b.do("cast", b.do("eq", ids, number=bound.but), dtype="float32", was="bool")
    return b, b.do("sum", hits, dims=(1,), keep=True), other


@pytest.mark.parametrize("but", [-100, -2, -1, 5, 6])
@pytest.mark.parametrize(("first", "end"), [(0, 5), (-1, 5), (0, 6), (-1, 6), (0, 8), (1, 6), (0, 4), (1, 5)])
def test_a_label_that_is_excepted_is_counted_where_positions_have_it(but: int, first: int, end: int) -> None:
    """Summed over positions that have every label but one, [label = position] is 1 - [label = that]; 1 where they have
    all of them; neither where they have not: judged over all labels that there may be.
    """
    b, count, other = _labels(Bound(5, but), first, end)
    one = b.do("full", shape=(4, 1), value=1.0, dtype="float32")
    rest = b.do("sub", one, other)
    truth = {label: int(first <= label < end) for label in (*range(5), but)}
    assert seen(b, count, one) == all(truth.values())
    assert seen(b, count, rest) == all(n == (label != but) for label, n in truth.items())
