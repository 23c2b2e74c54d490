"""Rows of the operator table: elementwise, products, movement, reductions and compositions."""

from __future__ import annotations

from .index_expressions import Call, Digit, Expression, Index, Most, Plus, Read, Times, Total, number, where
from .meaning import Build, Join, Meaning, Part, Quotient, RankError
from .nodes import AtLeast, Equal, Node
from .polynomial import ONE
from .row_parts import (
    P,
    activate,
    at,
    axis_of,
    coordinates,
    degree,
    inverse,
    need_ranks,
    shift_index,
    size,
    sizes,
    with_size,
    word,
)

# ---- elementwise
# ----------------------------------------------------------------------------------------------------------------------


def elementwise(join: type[Plus | Times]) -> Build:
    def build(node: Node, ranks: tuple[int, ...]) -> Meaning:
        if ranks[0] != ranks[1]:
            raise RankError(f"operands have ranks {ranks}, which differ")
        r = ranks[0]
        same = tuple(Equal(size(0, a), size(1, a)) for a in range(r))
        return Meaning(sizes(0, r), join((at(0, *coordinates(r)), at(1, *coordinates(r)))), same)

    return build


def scale(node: Node, ranks: tuple[int, ...]) -> Meaning:
    if ranks[1] != 0:
        raise RankError(f"the factor has rank {ranks[1]}, needs 0")
    return Meaning(sizes(0, ranks[0]), Times((at(0, *coordinates(ranks[0])), at(1))))


def along_axis(join: type[Plus | Times]) -> Build:
    """Every slice of an axis with an entry of a vector: biases, gains of norms, scales of channels."""

    def build(node: Node, ranks: tuple[int, ...]) -> Meaning:
        r, a = ranks[0], axis_of(node, ranks[0])
        need_ranks(ranks[1:], 1)
        body = join((at(0, *coordinates(r)), at(1, f"i{a}")))
        return Meaning(sizes(0, r), body, (Equal(size(0, a), size(1, 0)),))

    return build


def subtract(node: Node, ranks: tuple[int, ...]) -> Meaning:
    if ranks[0] != ranks[1]:
        raise RankError(f"operands have ranks {ranks}, which differ")
    r = ranks[0]
    minus = Times((number(-1), at(1, *coordinates(r))))
    same = tuple(Equal(size(0, a), size(1, a)) for a in range(r))
    return Meaning(sizes(0, r), Plus((at(0, *coordinates(r)), minus)), same)


def negate(node: Node, ranks: tuple[int, ...]) -> Meaning:
    return Meaning(sizes(0, ranks[0]), Times((number(-1), at(0, *coordinates(ranks[0])))))


def map(function: str) -> Build:
    def build(node: Node, ranks: tuple[int, ...]) -> Meaning:
        return Meaning(sizes(0, ranks[0]), Call(function, (), (at(0, *coordinates(ranks[0])),)))

    return build


# ---- products
# ----------------------------------------------------------------------------------------------------------------------


def matmul(node: Node, ranks: tuple[int, ...]) -> Meaning:
    need_ranks(ranks, 2, 2)
    body = Total("k", size(0, 1), Times((at(0, "i0", "k"), at(1, "k", "i1"))))
    return Meaning((size(0, 0), size(1, 1)), body, (Equal(size(0, 1), size(1, 0)),))


def batch_matmul(node: Node, ranks: tuple[int, ...]) -> Meaning:
    need_ranks(ranks, 3, 3)
    body = Total("k", size(0, 2), Times((at(0, "i0", "i1", "k"), at(1, "i0", "k", "i2"))))
    same = (Equal(size(0, 0), size(1, 0)), Equal(size(0, 2), size(1, 1)))
    return Meaning((size(0, 0), size(0, 1), size(1, 2)), body, same)


def linear(node: Node, ranks: tuple[int, ...]) -> Meaning:
    need_ranks(ranks, 2, 2)
    body = Total("c", size(0, 1), Times((at(0, "i0", "c"), at(1, "i1", "c"))))
    return Meaning((size(0, 0), size(1, 0)), activate(word(node, "activation"), body), (Equal(size(0, 1), size(1, 1)),))


def linear3(node: Node, ranks: tuple[int, ...]) -> Meaning:
    need_ranks(ranks, 3, 3)
    body = Total("c", size(0, 2), Times((at(0, P(0), "i1", "c"), at(1, P(0), "i2", "c"))))
    require = (
        Equal(degree(0, 2), degree(1, 2)),
        Equal(degree(0, 0), degree(1, 1)),
        Equal(degree(1, 0), degree(0, 1)),
        Equal(size(0, 2), size(1, 2)),
    )
    return Meaning(
        (ONE, size(0, 1), size(1, 1)),
        activate(word(node, "activation"), body),
        require,
        degrees=(degree(0, 2), degree(0, 1), degree(1, 1)),
        copies=((0, 0), (1, 0)),
    )


# ---- movement
# ----------------------------------------------------------------------------------------------------------------------


def transpose(node: Node, ranks: tuple[int, ...]) -> Meaning:
    """out[i_0, ..]: axis j of the result is axis perm[j] of the operand."""
    perm = node.parameter("perm")
    if not isinstance(perm, tuple) or len(perm) != ranks[0]:
        raise RankError(f"permutation {perm} of an operand of rank {ranks[0]}")
    return Meaning(tuple(size(0, a) for a in perm), Read(0, tuple(P(f"i{perm.index(a)}") for a in range(ranks[0]))))


def merge_axes(node: Node, ranks: tuple[int, ...]) -> Meaning:
    """Axes `axis`, `axis + 1` become one, row-major."""
    r, a = ranks[0], axis_of(node, ranks[0] - 1)
    shape = (*sizes(0, r)[:a], size(0, a) * size(0, a + 1), *sizes(0, r)[a + 2 :])
    flat = P(f"i{a}")
    index = (*coordinates(r)[:a], P("u"), flat - P("u") * size(0, a + 1), *(P(f"i{b}") for b in range(a + 1, r - 1)))
    return Meaning(shape, Digit("u", flat, size(0, a + 1), Read(0, index)))


def split_axis(node: Node, ranks: tuple[int, ...]) -> Meaning:
    """Axis `axis` becomes two digits, the second of size `inner`, row-major."""
    r, a = ranks[0], axis_of(node, ranks[0])
    shape = (*sizes(0, r)[:a], P("outer"), P("inner"), *sizes(0, r)[a + 1 :])
    index = (*coordinates(r)[:a], P(f"i{a}") * P("inner") + P(f"i{a + 1}"), *(P(f"i{b + 1}") for b in range(a + 1, r)))
    return Meaning(shape, Read(0, index), define=(Quotient("outer", size(0, a), P("inner")),))


def concat(node: Node, ranks: tuple[int, ...]) -> Meaning:
    if ranks[0] != ranks[1]:
        raise RankError(f"operands have ranks {ranks}, which differ")
    r, a = ranks[0], axis_of(node, ranks[0])
    n, i = size(0, a), P(f"i{a}")
    body = Plus((where(Read(0, tuple(coordinates(r))), n - 1 - i), where(Read(1, shift_index(r, a, -n)), i - n)))
    same = tuple(Equal(size(0, b), size(1, b)) for b in range(r) if b != a)
    return Meaning(with_size(0, r, a, n + size(1, a)), body, same, tree=Join(a))


def split_row(which: int) -> Build:
    """Part of an axis that a concat joined, before or after the joint."""

    def build(node: Node, ranks: tuple[int, ...]) -> Meaning:
        r, a = ranks[0], axis_of(node, ranks[0])
        new, by = (P("at"), P(0)) if which == 0 else (size(0, a) - P("at"), P("at"))
        return Meaning(with_size(0, r, a, new), Read(0, shift_index(r, a, by)), tree=Part(a, which, "at"))

    return build


def half(which: int) -> Build:
    """Half `which` of an axis of even size."""

    def build(node: Node, ranks: tuple[int, ...]) -> Meaning:
        r, a = ranks[0], axis_of(node, ranks[0])
        by = P("half") * which
        return Meaning(
            with_size(0, r, a, P("half")), Read(0, shift_index(r, a, by)), define=(Quotient("half", size(0, a), P(2)),)
        )

    return build


def take(node: Node, ranks: tuple[int, ...]) -> Meaning:
    """The first `length` elements of an axis."""
    r, a = ranks[0], axis_of(node, ranks[0])
    return Meaning(
        with_size(0, r, a, P("length")), Read(0, tuple(coordinates(r))), (AtLeast(size(0, a) - P("length")),)
    )


def drop(node: Node, ranks: tuple[int, ...]) -> Meaning:
    """All but the first `length` elements of an axis."""
    r, a = ranks[0], axis_of(node, ranks[0])
    rest = size(0, a) - P("length")
    return Meaning(with_size(0, r, a, rest), Read(0, shift_index(r, a, P("length"))), (AtLeast(rest - 1),))


# ---- reductions and compositions
# ------------------------------------------------------------------------------------------------------


def along(r: int, axis: int, variable: str) -> Index:
    return tuple(P(variable) if a == axis else P(f"i{a}") for a in range(r))


def reduced_index(r: int, axis: int, variable: str) -> Index:
    return tuple(P(variable) if a == axis else P(f"i{a if a < axis else a - 1}") for a in range(r))


def sum_axis(node: Node, ranks: tuple[int, ...]) -> Meaning:
    r, a = ranks[0], axis_of(node, ranks[0])
    shape = (*sizes(0, r)[:a], *sizes(0, r)[a + 1 :])
    return Meaning(shape, Total("v", size(0, a), Read(0, reduced_index(r, a, "v"))))


def max_axis(node: Node, ranks: tuple[int, ...]) -> Meaning:
    r, a = ranks[0], axis_of(node, ranks[0])
    shape = (*sizes(0, r)[:a], *sizes(0, r)[a + 1 :])
    return Meaning(shape, Most((("v", size(0, a)),), (), Read(0, reduced_index(r, a, "v"))))


def mean_axis(node: Node, ranks: tuple[int, ...]) -> Meaning:
    r, a = ranks[0], axis_of(node, ranks[0])
    shape = (*sizes(0, r)[:a], *sizes(0, r)[a + 1 :])
    return Meaning(
        shape, Times((inverse(number(size(0, a))), Total("v", size(0, a), Read(0, reduced_index(r, a, "v")))))
    )


def softmax(node: Node, ranks: tuple[int, ...]) -> Meaning:
    """exp(x[i]) / sum_v exp(x[v]): equal over the reals to the shifted form that is computed."""
    r, a = ranks[0], axis_of(node, ranks[0])
    below = Total("v", size(0, a), Call("exp", (), (Read(0, along(r, a, "v")),)))
    return Meaning(sizes(0, r), Times((Call("exp", (), (Read(0, tuple(coordinates(r))),)), inverse(below))))


def layer_norm(node: Node, ranks: tuple[int, ...]) -> Meaning:
    """(x - mean) / sqrt(variance + epsilon), mean and variance over `axis`; `root` is v -> 1/sqrt(v + epsilon)."""
    r, a = ranks[0], axis_of(node, ranks[0])
    n = inverse(number(size(0, a)))

    def minus_mean(at: Index, variable: str) -> Expression:
        mean = Times((number(-1), n, Total(variable, size(0, a), Read(0, along(r, a, variable)))))
        return Plus((Read(0, at), mean))

    variance = Times(
        (n, Total("v", size(0, a), Times((minus_mean(along(r, a, "v"), "m"), minus_mean(along(r, a, "v"), "l")))))
    )
    return Meaning(sizes(0, r), Times((minus_mean(tuple(coordinates(r)), "c"), Call("root", (), (variance,)))))


def rms_norm(node: Node, ranks: tuple[int, ...]) -> Meaning:
    """x / sqrt(mean of squares over `axis` + epsilon)."""
    r, a = ranks[0], axis_of(node, ranks[0])
    here = Read(0, along(r, a, "v"))
    mean = Times((inverse(number(size(0, a))), Total("v", size(0, a), Times((here, here)))))
    return Meaning(sizes(0, r), Times((Read(0, tuple(coordinates(r))), Call("root", (), (mean,)))))


def with_gain(norm: Build, beta: bool) -> Build:
    """A norm over `axis`, times operand 1 and, with `beta`, plus operand 2: vectors along axis `along`."""

    def build(node: Node, ranks: tuple[int, ...]) -> Meaning:
        need_ranks(ranks[1:], *(1 for _ in ranks[1:]))
        plain, b = norm(node, ranks[:1]), axis_of(node, ranks[0], "along")
        body: Expression = Times((plain.body, at(1, f"i{b}")))
        body = Plus((body, at(2, f"i{b}"))) if beta else body
        return Meaning(plain.sizes, body, tuple(Equal(size(0, b), size(k, 0)) for k in range(1, len(ranks))))

    return build
