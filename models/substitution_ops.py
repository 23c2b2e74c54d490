"""The operator table of substitutions: typing preconditions, result type and index expression of every operator.

A row gives, for fixed ranks and fixed enumerated parameters, a `Meaning`: pure data over the names listed in `index_expressions`.
Everything that reasons about or evaluates substitutions interprets these rows and nothing else.

Defined names (`define`): floor of a quotient, or maximum of two integers, usable in all later fields.

Shard degrees follow one rule generated from the index expression (`substitution_shards`), unless a row states them; rows that state them
are the four data-axis operators and `linear3` of FlexFlow's public rule file, whose axis 0 is a replica axis.
Device index: Replicate adds a COPY extent (values never depend on it), a contraction over a sharded axis adds a PARTIAL-SUM coordinate,
Reduce sums the outermost one, Pipeline adds a TIME coordinate and Batch removes it.

Conventions made explicit: SAME padding puts ceil(T/2) before; average pooling counts padding (`average_pool`) or not
(`average_pool_inside`); maximum pooling never sees padding.

Source: `shared/research/substitutions.md`, sections 2 and 3.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from types import MappingProxyType
from typing import Final

from .index_expressions import Call, Digit, Expression, Index, Most, Number, Plus, Read, Times, Total, Where, number, where
from .polynomial import ONE, Poly
from .substitution import AtLeast, Condition, Divides, Equal, Node, OneOrMultiple, SubstitutionError


@dataclass(frozen=True)
class Floor:
    """name = floor(numerator / denominator), denominator >= 1."""

    name: str
    numerator: Poly
    denominator: Poly


@dataclass(frozen=True)
class Largest:
    """name = max(first, second)."""

    name: str
    first: Poly
    second: Poly


@dataclass(frozen=True)
class Quotient:
    """name = value / divisor; a typing precondition that divisor divides value."""

    name: str
    value: Poly
    divisor: Poly


@dataclass(frozen=True)
class Shrunk:
    """name = 1 if value = 1, else value / divisor; a typing precondition that value is 1 or a multiple."""

    name: str
    value: Poly
    divisor: Poly


Define = Floor | Largest | Quotient | Shrunk


@dataclass(frozen=True)
class Join:
    """Split tree of output axis `axis`: operand 0's extent before operand 1's."""

    axis: int


@dataclass(frozen=True)
class Part:
    """The operator takes part `which` (0 or 1) of the split tree of operand 0 on `axis`; `at`: the name bound to the split point."""

    axis: int
    which: int
    at: str


@dataclass(frozen=True)
class Auxiliary:
    """Change of the auxiliary coordinates.  Output: `copy` multiplies the copy extent; `sums`, `times`: (extents taken from the front of
    the operand's list, new extents put there); body names q0.., t0.. are the new coordinates."""

    copy: Poly = ONE
    sums_taken: int = 0
    sums: tuple[Poly, ...] = ()
    times_taken: int = 0
    times: tuple[tuple[int, Poly], ...] = ()


@dataclass(frozen=True)
class Meaning:
    """`sizes`, `degrees` (None: generated) of the result, `require` its typing preconditions, `body` its value at i0, i1, ..

    `copies`: (operand, axis) whose value must not depend on that axis.  `auxiliary` None: the operator acts pointwise on devices and times.
    """

    sizes: tuple[Poly, ...]
    body: Expression
    require: tuple[Condition, ...] = ()
    define: tuple[Define, ...] = ()
    degrees: tuple[Poly, ...] | None = None
    copies: tuple[tuple[int, int], ...] = ()
    tree: Join | Part | None = None
    auxiliary: Auxiliary | None = None


Words = MappingProxyType[str, object]
Build = Callable[[Node, tuple[int, ...]], Meaning]


@dataclass(frozen=True)
class Row:
    """One operator.  `numbers`: numeric parameters (integer >= 1 or symbol); `words`: enumerated parameters and their values;
    `integers`: parameters that are plain integers >= 0 (axes); `permutations`: parameters that are permutations."""

    name: str
    arity: tuple[int, int]
    build: Build
    numbers: tuple[str, ...] = ()
    words: tuple[tuple[str, tuple[str, ...]], ...] = ()
    integers: tuple[str, ...] = ()
    permutations: tuple[str, ...] = ()

    def check(self, node: Node, rule: str, place: str) -> None:
        """`SubstitutionError` unless the node has the row's operands and parameters."""
        if not self.arity[0] <= len(node.inputs) <= self.arity[1]:
            raise SubstitutionError(rule, place, f"has {len(node.inputs)} operands, needs {self.arity[0]} to {self.arity[1]}")
        words = dict(self.words)
        known = {*self.numbers, *words, *self.integers, *self.permutations}
        given = dict(node.parameters)
        if set(given) != known or len(given) != len(node.parameters):
            raise SubstitutionError(rule, place, f"has parameters {sorted(given)}, needs {sorted(known)}")
        for key, value in node.parameters:
            if key in words:
                fits = value in words[key]
            elif key in self.integers:
                fits = type(value) is int and 0 <= value < 8
            elif key in self.permutations:
                fits = isinstance(value, tuple) and sorted(value) == list(range(len(value)))
            else:
                fits = (type(value) is int and 1 <= value < 1 << 31) or (isinstance(value, str) and value.isidentifier())
            if not fits:
                raise SubstitutionError(rule, place, f"parameter {key} cannot be {value!r}")


class RankError(ValueError):
    """Operands of the wrong rank, or an axis that does not exist."""


P = Poly.of


def size(k: int, a: int) -> Poly:
    """Size of axis a of operand k."""
    return P(f"{k}.{a}")


def degree(k: int, a: int) -> Poly:
    """Degree of axis a of operand k."""
    return P(f"{k}.{a}.degree")


def _at(k: int, *index: Poly | str) -> Read:
    return Read(k, tuple(P(i) for i in index))


def _i(rank: int) -> list[Poly]:
    return [P(f"i{a}") for a in range(rank)]


def _sizes(k: int, rank: int) -> tuple[Poly, ...]:
    return tuple(size(k, a) for a in range(rank))


def _ranks(given: tuple[int, ...], *wanted: int) -> None:
    if given != wanted:
        raise RankError(f"operands have ranks {given}, needs {wanted}")


def _axis(node: Node, rank: int, key: str = "axis") -> int:
    axis = node.parameter(key)
    if not isinstance(axis, int) or axis >= rank:
        raise RankError(f"has no axis {axis}: rank {rank}")
    return axis


def _word(node: Node, key: str) -> str:
    return str(node.parameter(key))


def _activated(activation: str, e: Expression) -> Expression:
    return e if activation == "none" else Call(activation, (), (e,))


def _moved(rank: int, axis: int, by: Poly) -> Index:
    return tuple(P(f"i{a}") + by if a == axis else P(f"i{a}") for a in range(rank))


def _changed(k: int, rank: int, axis: int, new: Poly) -> tuple[Poly, ...]:
    return tuple(new if a == axis else size(k, a) for a in range(rank))


def _in_range(p: Poly, n: Poly) -> tuple[Poly, Poly]:
    return p, n - 1 - p


# ---- elementwise ------------------------------------------------------------------------------------------------------------------------


def _elementwise(join: type[Plus] | type[Times]) -> Build:
    def build(node: Node, ranks: tuple[int, ...]) -> Meaning:
        if ranks[0] != ranks[1]:
            raise RankError(f"operands have ranks {ranks}, which differ")
        r = ranks[0]
        same = tuple(Equal(size(0, a), size(1, a)) for a in range(r))
        return Meaning(_sizes(0, r), join((_at(0, *_i(r)), _at(1, *_i(r)))), same)

    return build


def _scale(node: Node, ranks: tuple[int, ...]) -> Meaning:
    if ranks[1] != 0:
        raise RankError(f"the factor has rank {ranks[1]}, needs 0")
    return Meaning(_sizes(0, ranks[0]), Times((_at(0, *_i(ranks[0])), _at(1))))


def _map(function: str) -> Build:
    def build(node: Node, ranks: tuple[int, ...]) -> Meaning:
        return Meaning(_sizes(0, ranks[0]), Call(function, (), (_at(0, *_i(ranks[0])),)))

    return build


# ---- products ---------------------------------------------------------------------------------------------------------------------------


def _matmul(node: Node, ranks: tuple[int, ...]) -> Meaning:
    _ranks(ranks, 2, 2)
    body = Total("k", size(0, 1), Times((_at(0, "i0", "k"), _at(1, "k", "i1"))))
    return Meaning((size(0, 0), size(1, 1)), body, (Equal(size(0, 1), size(1, 0)),))


def _batch_matmul(node: Node, ranks: tuple[int, ...]) -> Meaning:
    _ranks(ranks, 3, 3)
    body = Total("k", size(0, 2), Times((_at(0, "i0", "i1", "k"), _at(1, "i0", "k", "i2"))))
    same = (Equal(size(0, 0), size(1, 0)), Equal(size(0, 2), size(1, 1)))
    return Meaning((size(0, 0), size(0, 1), size(1, 2)), body, same)


def _linear(node: Node, ranks: tuple[int, ...]) -> Meaning:
    _ranks(ranks, 2, 2)
    body = Total("c", size(0, 1), Times((_at(0, "i0", "c"), _at(1, "i1", "c"))))
    return Meaning((size(0, 0), size(1, 0)), _activated(_word(node, "activation"), body), (Equal(size(0, 1), size(1, 1)),))


def _linear3(node: Node, ranks: tuple[int, ...]) -> Meaning:
    _ranks(ranks, 3, 3)
    body = Total("c", size(0, 2), Times((_at(0, P(0), "i1", "c"), _at(1, P(0), "i2", "c"))))
    require = (
        Equal(degree(0, 2), degree(1, 2)), Equal(degree(0, 0), degree(1, 1)), Equal(degree(1, 0), degree(0, 1)),
        Equal(size(0, 2), size(1, 2)),
    )
    return Meaning(
        (ONE, size(0, 1), size(1, 1)), _activated(_word(node, "activation"), body), require,
        degrees=(degree(0, 2), degree(0, 1), degree(1, 1)), copies=((0, 0), (1, 0)),
    )


# ---- movement ---------------------------------------------------------------------------------------------------------------------------


def _transpose(node: Node, ranks: tuple[int, ...]) -> Meaning:
    """out[i_0, ..]: axis j of the result is axis perm[j] of the operand."""
    perm = node.parameter("perm")
    if not isinstance(perm, tuple) or len(perm) != ranks[0]:
        raise RankError(f"permutation {perm} of an operand of rank {ranks[0]}")
    return Meaning(tuple(size(0, a) for a in perm), Read(0, tuple(P(f"i{perm.index(a)}") for a in range(ranks[0]))))


def _merge_axes(node: Node, ranks: tuple[int, ...]) -> Meaning:
    """Axes `axis`, `axis + 1` become one, row-major."""
    r, a = ranks[0], _axis(node, ranks[0] - 1)
    sizes = (*_sizes(0, r)[:a], size(0, a) * size(0, a + 1), *_sizes(0, r)[a + 2 :])
    flat = P(f"i{a}")
    index = (*_i(r)[:a], P("u"), flat - P("u") * size(0, a + 1), *(P(f"i{b}") for b in range(a + 1, r - 1)))
    return Meaning(sizes, Digit("u", flat, size(0, a + 1), Read(0, index)))


def _split_axis(node: Node, ranks: tuple[int, ...]) -> Meaning:
    """Axis `axis` becomes two digits, the second of size `inner`, row-major."""
    r, a = ranks[0], _axis(node, ranks[0])
    sizes = (*_sizes(0, r)[:a], P("outer"), P("inner"), *_sizes(0, r)[a + 1 :])
    index = (*_i(r)[:a], P(f"i{a}") * P("inner") + P(f"i{a + 1}"), *(P(f"i{b + 1}") for b in range(a + 1, r)))
    return Meaning(sizes, Read(0, index), define=(Quotient("outer", size(0, a), P("inner")),))


def _concat(node: Node, ranks: tuple[int, ...]) -> Meaning:
    if ranks[0] != ranks[1]:
        raise RankError(f"operands have ranks {ranks}, which differ")
    r, a = ranks[0], _axis(node, ranks[0])
    n, i = size(0, a), P(f"i{a}")
    body = Plus((where(Read(0, tuple(_i(r))), n - 1 - i), where(Read(1, _moved(r, a, -n)), i - n)))
    same = tuple(Equal(size(0, b), size(1, b)) for b in range(r) if b != a)
    return Meaning(_changed(0, r, a, n + size(1, a)), body, same, tree=Join(a))


def _split(which: int) -> Build:
    """Part of an axis that a concat joined, before or after the joint."""

    def build(node: Node, ranks: tuple[int, ...]) -> Meaning:
        r, a = ranks[0], _axis(node, ranks[0])
        new, by = (P("at"), P(0)) if which == 0 else (size(0, a) - P("at"), P("at"))
        return Meaning(_changed(0, r, a, new), Read(0, _moved(r, a, by)), tree=Part(a, which, "at"))

    return build


def _half(which: int) -> Build:
    """Half `which` of an axis of even size."""

    def build(node: Node, ranks: tuple[int, ...]) -> Meaning:
        r, a = ranks[0], _axis(node, ranks[0])
        by = P("half") * which
        return Meaning(_changed(0, r, a, P("half")), Read(0, _moved(r, a, by)), define=(Quotient("half", size(0, a), P(2)),))

    return build


def _take(node: Node, ranks: tuple[int, ...]) -> Meaning:
    """The first `length` elements of an axis."""
    r, a = ranks[0], _axis(node, ranks[0])
    return Meaning(_changed(0, r, a, P("length")), Read(0, tuple(_i(r))), (AtLeast(size(0, a) - P("length")),))


def _drop(node: Node, ranks: tuple[int, ...]) -> Meaning:
    """All but the first `length` elements of an axis."""
    r, a = ranks[0], _axis(node, ranks[0])
    rest = size(0, a) - P("length")
    return Meaning(_changed(0, r, a, rest), Read(0, _moved(r, a, P("length"))), (AtLeast(rest - 1),))


# ---- reductions and compositions --------------------------------------------------------------------------------------------------------


def _along(r: int, axis: int, variable: str) -> Index:
    return tuple(P(variable) if a == axis else P(f"i{a}") for a in range(r))


def _reduced(r: int, axis: int, variable: str) -> Index:
    return tuple(P(variable) if a == axis else P(f"i{a if a < axis else a - 1}") for a in range(r))


def _sum_axis(node: Node, ranks: tuple[int, ...]) -> Meaning:
    r, a = ranks[0], _axis(node, ranks[0])
    sizes = (*_sizes(0, r)[:a], *_sizes(0, r)[a + 1 :])
    return Meaning(sizes, Total("v", size(0, a), Read(0, _reduced(r, a, "v"))))


def _max_axis(node: Node, ranks: tuple[int, ...]) -> Meaning:
    r, a = ranks[0], _axis(node, ranks[0])
    sizes = (*_sizes(0, r)[:a], *_sizes(0, r)[a + 1 :])
    return Meaning(sizes, Most((("v", size(0, a)),), (), Read(0, _reduced(r, a, "v"))))


def _mean_axis(node: Node, ranks: tuple[int, ...]) -> Meaning:
    r, a = ranks[0], _axis(node, ranks[0])
    sizes = (*_sizes(0, r)[:a], *_sizes(0, r)[a + 1 :])
    return Meaning(sizes, Times((_inverse(number(size(0, a))), Total("v", size(0, a), Read(0, _reduced(r, a, "v"))))))


def _inverse(e: Expression) -> Expression:
    return Call("reciprocal", (), (e,))


def _softmax(node: Node, ranks: tuple[int, ...]) -> Meaning:
    """exp(x[i]) / sum_v exp(x[v]): equal over the reals to the shifted form that is computed."""
    r, a = ranks[0], _axis(node, ranks[0])
    below = Total("v", size(0, a), Call("exp", (), (Read(0, _along(r, a, "v")),)))
    return Meaning(_sizes(0, r), Times((Call("exp", (), (Read(0, tuple(_i(r))),)), _inverse(below))))


def _layer_norm(node: Node, ranks: tuple[int, ...]) -> Meaning:
    """(x - mean) / sqrt(variance + epsilon), mean and variance over `axis`; `root` is v -> 1/sqrt(v + epsilon)."""
    r, a = ranks[0], _axis(node, ranks[0])
    n = _inverse(number(size(0, a)))

    def centred(at: Index, variable: str) -> Expression:
        mean = Times((number(-1), n, Total(variable, size(0, a), Read(0, _along(r, a, variable)))))
        return Plus((Read(0, at), mean))

    variance = Times((n, Total("v", size(0, a), Times((centred(_along(r, a, "v"), "m"), centred(_along(r, a, "v"), "l"))))))
    return Meaning(_sizes(0, r), Times((centred(tuple(_i(r)), "c"), Call("root", (), (variance,)))))


# ---- windows ----------------------------------------------------------------------------------------------------------------------------


def _window(axis: str, n: Poly, k: Poly, s: Poly, padding: str) -> tuple[tuple[Define, ...], tuple[Condition, ...], Poly, Poly]:
    """Definitions, preconditions, output size and offset of one windowed axis."""
    out, offset = P(f"out_{axis}"), P(f"before_{axis}")
    if padding == "valid":
        return (Floor(f"steps_{axis}", n - k, s),), (AtLeast(n - k),), P(f"steps_{axis}") + 1, P(0)
    total = P(f"total_{axis}")
    return (
        Floor(f"out_{axis}", n + s - 1, s),
        Largest(f"total_{axis}", (out - 1) * s + k - n, P(0)),
        Floor(f"before_{axis}", total + 1, P(2)),
    ), (), out, offset


def _conv(node: Node, ranks: tuple[int, ...]) -> Meaning:
    """Grouped convolution: group = input channels / weight channels."""
    _ranks(ranks, 4, 4)
    padding = _word(node, "padding")
    dh, ch, oh, ph = _window("h", size(0, 2), size(1, 2), P("stride_h"), padding)
    dw, cw, ow, pw = _window("w", size(0, 3), size(1, 3), P("stride_w"), padding)
    p = P("i2") * P("stride_h") + P("a") - ph
    q = P("i3") * P("stride_w") + P("b") - pw
    inside = where(
        Times((_at(0, "i0", P("g") * size(1, 1) + P("c"), p, q), _at(1, "i1", "c", "a", "b"))), *_in_range(p, size(0, 2)), *_in_range(q, size(0, 3)),
    )
    total = Total("c", size(1, 1), Total("a", size(1, 2), Total("b", size(1, 3), inside)))
    body = Digit("g", P("i1"), P("each"), _activated(_word(node, "activation"), total))
    define = (Quotient("groups", size(0, 1), size(1, 1)), Quotient("each", size(1, 0), P("groups")), *dh, *dw)
    return Meaning((size(0, 0), size(1, 0), oh, ow), body, (*ch, *cw), define)


def _pool(kind: str) -> Build:
    def build(node: Node, ranks: tuple[int, ...]) -> Meaning:
        _ranks(ranks, 4)
        padding = _word(node, "padding")
        dh, ch, oh, ph = _window("h", size(0, 2), P("kernel_h"), P("stride_h"), padding)
        dw, cw, ow, pw = _window("w", size(0, 3), P("kernel_w"), P("stride_w"), padding)
        p = P("i2") * P("stride_h") + P("a") - ph
        q = P("i3") * P("stride_w") + P("b") - pw
        guards = (*_in_range(p, size(0, 2)), *_in_range(q, size(0, 3)))
        box = (("a", P("kernel_h")), ("b", P("kernel_w")))
        read = _at(0, "i0", "i1", p, q)
        body: Expression
        if kind == "max":
            body = Most(box, guards, read)
        else:
            count: Expression = number(P("kernel_h") * P("kernel_w"))
            if kind == "inside":
                count = Total("d", P("kernel_h"), Total("e", P("kernel_w"), where(number(1), *(g.put({"a": P("d"), "b": P("e")}) for g in guards))))
            summed = Total("a", P("kernel_h"), Total("b", P("kernel_w"), where(read, *guards)))
            body = Times((_inverse(count), summed))
        return Meaning((size(0, 0), size(0, 1), oh, ow), body, (*ch, *cw), (*dh, *dw))

    return build


def _enlarge(node: Node, ranks: tuple[int, ...]) -> Meaning:
    """Zero-pads a kernel to at least (kernel_h, kernel_w), floor of the half before."""
    _ranks(ranks, 4)
    define: list[Define] = []
    index, guards = [P("i0"), P("i1")], []
    for a, axis in ((2, "h"), (3, "w")):
        define += [Largest(f"new_{axis}", size(0, a), P(f"kernel_{axis}")), Floor(f"lead_{axis}", P(f"new_{axis}") - size(0, a), P(2))]
        index.append(P(f"i{a}") - P(f"lead_{axis}"))
        guards += _in_range(index[-1], size(0, a))
    return Meaning((size(0, 0), size(0, 1), P("new_h"), P("new_w")), where(Read(0, tuple(index)), *guards), define=tuple(define))


# ---- constants --------------------------------------------------------------------------------------------------------------------------


def _eye(node: Node, ranks: tuple[int, ...]) -> Meaning:
    return Meaning((P("extent"), P("extent")), where(number(1), P("i0") - P("i1"), P("i1") - P("i0")))


def _ones(rank: int) -> Build:
    def build(node: Node, ranks: tuple[int, ...]) -> Meaning:
        return Meaning(tuple(P(f"extent_{a}") for a in range(rank)), number(1))

    return build


def _pool_kernel(node: Node, ranks: tuple[int, ...]) -> Meaning:
    """Depthwise weights 1/(kernel_h kernel_w)."""
    sizes = (P("channels"), ONE, P("kernel_h"), P("kernel_w"))
    return Meaning(sizes, _inverse(number(P("kernel_h") * P("kernel_w"))))


def _id_kernel(node: Node, ranks: tuple[int, ...]) -> Meaning:
    """Depthwise weights 1 at the centre, odd sizes only."""
    sizes = (P("channels"), ONE, P("kernel_h"), P("kernel_w"))
    h, w = P("i2") - P("mid_h"), P("i3") - P("mid_w")
    define = (Quotient("mid_h", P("kernel_h") - 1, P(2)), Quotient("mid_w", P("kernel_w") - 1, P(2)))
    return Meaning(sizes, where(number(1), h, -h, w, -w), define=define)


# ---- tables of rows ---------------------------------------------------------------------------------------------------------------------


def _embedding(node: Node, ranks: tuple[int, ...]) -> Meaning:
    """table[ids[i0], i1], as a sum over rows: hit(r; v) is 1 if v = r, else 0."""
    _ranks(ranks, 2, 1)
    hit = Call("hit", (P("r"),), (_at(1, "i0"),))
    return Meaning((size(1, 0), size(0, 1)), Total("r", size(0, 0), Times((hit, _at(0, "r", "i1")))))


def _embedding_bag(node: Node, ranks: tuple[int, ...]) -> Meaning:
    """sum_l table[ids[i0, l], i1]."""
    _ranks(ranks, 2, 2)
    hit = Call("hit", (P("r"),), (_at(1, "i0", "l"),))
    total = Total("l", size(1, 1), Total("r", size(0, 0), Times((hit, _at(0, "r", "i1")))))
    return Meaning((size(1, 0), size(0, 1)), total)


# ---- parallel operators -----------------------------------------------------------------------------------------------------------------


def _degrees(rank: int, axis: int, new: Poly) -> tuple[Poly, ...]:
    return tuple(new if a == axis else degree(0, a) for a in range(rank))


def _partition(node: Node, ranks: tuple[int, ...]) -> Meaning:
    r, a = ranks[0], _axis(node, ranks[0])
    new = P("degree") * degree(0, a)
    return Meaning(_sizes(0, r), Read(0, tuple(_i(r))), (Divides(new, size(0, a)),), degrees=_degrees(r, a, new), auxiliary=Auxiliary())


def _combine(node: Node, ranks: tuple[int, ...]) -> Meaning:
    r, a = ranks[0], _axis(node, ranks[0])
    define = (Quotient("left_over", degree(0, a), P("degree")),)
    return Meaning(_sizes(0, r), Read(0, tuple(_i(r))), define=define, degrees=_degrees(r, a, P("left_over")), auxiliary=Auxiliary())


def _tile(node: Node, ranks: tuple[int, ...]) -> Meaning:
    """Replicate on a data axis, as FlexFlow's public rules have it: x[i mod n]."""
    r, a = ranks[0], _axis(node, ranks[0])
    body = Digit("u", P(f"i{a}"), size(0, a), Read(0, _moved(r, a, -P("u") * size(0, a))))
    new = P("degree") * degree(0, a)
    return Meaning(_changed(0, r, a, P("degree") * size(0, a)), body, degrees=_degrees(r, a, new), auxiliary=Auxiliary())


def _block_sum(node: Node, ranks: tuple[int, ...]) -> Meaning:
    """Reduce on a data axis: sum of `degree` equal blocks."""
    r, a = ranks[0], _axis(node, ranks[0])
    define = (Shrunk("left_over", degree(0, a), P("degree")), Quotient("block", size(0, a), P("degree")))
    body = Total("u", P("degree"), Read(0, _moved(r, a, P("u") * P("block"))))
    return Meaning(_changed(0, r, a, P("block")), body, define=define, degrees=_degrees(r, a, P("left_over")), auxiliary=Auxiliary())


def _replicate(node: Node, ranks: tuple[int, ...]) -> Meaning:
    r = ranks[0]
    return Meaning(_sizes(0, r), Read(0, tuple(_i(r))), degrees=_degrees(r, -1, ONE), auxiliary=Auxiliary(copy=P("degree")))


def _reduce(node: Node, ranks: tuple[int, ...]) -> Meaning:
    """Sums the outermost PARTIAL-SUM coordinate, which must have extent `degree`."""
    r = ranks[0]
    body = Total("u", P("degree"), Read(0, tuple(_i(r)), device=(P("u"),)))
    require = (Equal(P("0.sum"), P("degree")),)
    return Meaning(_sizes(0, r), body, require, degrees=_degrees(r, -1, ONE), auxiliary=Auxiliary(sums_taken=1))


def _stack(node: Node, ranks: tuple[int, ...]) -> Meaning:
    """Two tensors become the two parts of a partial sum."""
    if ranks[0] != ranks[1]:
        raise RankError(f"operands have ranks {ranks}, which differ")
    r = ranks[0]
    same = tuple(Equal(f(0, a), f(1, a)) for f in (size, degree) for a in range(r))
    q = P("q0")
    body = Plus((where(_at(0, *_i(r)), -q), where(_at(1, *_i(r)), q - 1)))
    return Meaning(_sizes(0, r), body, same, degrees=_degrees(r, -1, ONE), auxiliary=Auxiliary(sums=(P(2),)))


def _pipeline(node: Node, ranks: tuple[int, ...]) -> Meaning:
    """Cuts an axis into `steps` pieces that are processed one after another."""
    r, a = ranks[0], _axis(node, ranks[0])
    body = Read(0, _moved(r, a, P("t0") * P("piece")))
    define = (Quotient("piece", size(0, a), P("steps")),)
    fits = (Divides(degree(0, a), P("piece")),)
    aux = Auxiliary(times=((a, P("steps")),))
    return Meaning(_changed(0, r, a, P("piece")), body, fits, define, degrees=_degrees(r, -1, ONE), auxiliary=aux)


def _batch(node: Node, ranks: tuple[int, ...]) -> Meaning:
    """Joins the outermost TIME coordinate, of `steps` pieces, to an axis."""
    r, a = ranks[0], _axis(node, ranks[0])
    i, n = P(f"i{a}"), size(0, a)
    body = Digit("t", i, n, Read(0, _moved(r, a, -P("t") * n), time=(P("t"),)))
    require = (Equal(P("0.time"), P("steps")), Equal(P("0.time.axis"), P(a)))
    return Meaning(_changed(0, r, a, P("steps") * n), body, require, degrees=_degrees(r, -1, ONE), auxiliary=Auxiliary(times_taken=1))


def _accumulate(node: Node, ranks: tuple[int, ...]) -> Meaning:
    """Sums over the outermost TIME coordinate (weight gradients)."""
    r = ranks[0]
    body = Total("t", P("0.time"), Read(0, tuple(_i(r)), time=(P("t"),)))
    return Meaning(_sizes(0, r), body, degrees=_degrees(r, -1, ONE), auxiliary=Auxiliary(times_taken=1))


ACTIVATIONS: Final = ("none", "relu", "sigmoid", "tanh")
_ACT = (("activation", ACTIVATIONS),)
_WINDOW = ("stride_h", "stride_w")
_PAD = (("padding", ("same", "valid")),)
_KERNEL = ("kernel_h", "kernel_w")
_AX = ("axis",)

_ROWS: Final = (
    Row("add", (2, 2), _elementwise(Plus)),
    Row("mul", (2, 2), _elementwise(Times)),
    Row("scale", (2, 2), _scale),
    *(Row(f, (1, 1), _map(f)) for f in ("relu", "sigmoid", "tanh", "exp", "gelu")),
    Row("matmul", (2, 2), _matmul),
    Row("batch_matmul", (2, 2), _batch_matmul),
    Row("linear", (2, 2), _linear, words=_ACT),
    Row("linear3", (2, 2), _linear3, words=_ACT),
    Row("transpose", (1, 1), _transpose, permutations=("perm",)),
    Row("merge_axes", (1, 1), _merge_axes, integers=_AX),
    Row("split_axis", (1, 1), _split_axis, ("inner",), integers=_AX),
    Row("concat", (2, 2), _concat, integers=_AX),
    Row("split0", (1, 1), _split(0), integers=_AX),
    Row("split1", (1, 1), _split(1), integers=_AX),
    Row("half0", (1, 1), _half(0), integers=_AX),
    Row("half1", (1, 1), _half(1), integers=_AX),
    Row("take", (1, 1), _take, ("length",), integers=_AX),
    Row("drop", (1, 1), _drop, ("length",), integers=_AX),
    Row("reduce_sum", (1, 1), _sum_axis, integers=_AX),
    Row("reduce_max", (1, 1), _max_axis, integers=_AX),
    Row("reduce_mean", (1, 1), _mean_axis, integers=_AX),
    Row("softmax", (1, 1), _softmax, integers=_AX),
    Row("layer_norm", (1, 1), _layer_norm, integers=_AX),
    Row("conv", (2, 2), _conv, _WINDOW, (*_PAD, *_ACT)),
    Row("max_pool", (1, 1), _pool("max"), (*_KERNEL, *_WINDOW), _PAD),
    Row("average_pool", (1, 1), _pool("padded"), (*_KERNEL, *_WINDOW), _PAD),
    Row("average_pool_inside", (1, 1), _pool("inside"), (*_KERNEL, *_WINDOW), _PAD),
    Row("enlarge", (1, 1), _enlarge, _KERNEL),
    Row("eye", (0, 0), _eye, ("extent",)),
    *(Row(f"ones{r}", (0, 0), _ones(r), tuple(f"extent_{a}" for a in range(r))) for r in (1, 2, 3, 4)),
    Row("pool_kernel", (0, 0), _pool_kernel, ("channels", *_KERNEL)),
    Row("id_kernel", (0, 0), _id_kernel, ("channels", *_KERNEL)),
    Row("embedding", (2, 2), _embedding),
    Row("embedding_bag", (2, 2), _embedding_bag),
    Row("partition", (1, 1), _partition, ("degree",), integers=_AX),
    Row("combine", (1, 1), _combine, ("degree",), integers=_AX),
    Row("tile", (1, 1), _tile, ("degree",), integers=_AX),
    Row("block_sum", (1, 1), _block_sum, ("degree",), integers=_AX),
    Row("replicate", (1, 1), _replicate, ("degree",)),
    Row("reduce", (1, 1), _reduce, ("degree",)),
    Row("stack", (2, 2), _stack),
    Row("pipeline", (1, 1), _pipeline, ("steps",), integers=_AX),
    Row("batch", (1, 1), _batch, ("steps",), integers=_AX),
    Row("accumulate", (1, 1), _accumulate),
)

OPERATORS: Final = MappingProxyType({row.name: row for row in _ROWS})
"""Operator name -> row."""


def meaning(node: Node, ranks: tuple[int, ...]) -> Meaning:
    """The row of an operator for operands of these ranks; `RankError` if they do not fit.

    >>> from .substitution import node as n
    >>> m = meaning(n("matmul", -1, -2), (2, 2))
    >>> [str(s) for s in m.sizes], [str(c) for c in m.require]
    (['0.0', '1.1'], ['0.1 = 1.0'])
    """
    return OPERATORS[node.operator].build(node, ranks)
