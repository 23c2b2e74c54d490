"""Rows of the operator table: windows (convolution, pooling, enlarged kernels), constants,
embeddings.
"""

from __future__ import annotations

from .index_expressions import Call, Digit, Expression, Most, Read, Times, Total, number, where
from .meaning import Build, Define, Floor, Largest, Meaning, Quotient
from .nodes import AtLeast, Condition, Node
from .polynomial import ONE, Poly
from .row_parts import P, activate, at, in_range, inverse, need_ranks, size, word

# ---- windows
# ----------------------------------------------------------------------------------------------------------------------


def window(
    axis: str, n: Poly, k: Poly, s: Poly, padding: str
) -> tuple[tuple[Define, ...], tuple[Condition, ...], Poly, Poly]:
    """Definitions, preconditions, output size and offset of one windowed axis."""
    out, offset = P(f"out_{axis}"), P(f"before_{axis}")
    if padding == "valid":
        return (Floor(f"steps_{axis}", n - k, s),), (AtLeast(n - k),), P(f"steps_{axis}") + 1, P(0)
    total = P(f"total_{axis}")
    return (
        (
            Floor(f"out_{axis}", n + s - 1, s),
            Largest(f"total_{axis}", (out - 1) * s + k - n, P(0)),
            Floor(f"before_{axis}", total + 1, P(2)),
        ),
        (),
        out,
        offset,
    )


def conv(node: Node, ranks: tuple[int, ...]) -> Meaning:
    """Grouped convolution: group = input channels / weight channels."""
    need_ranks(ranks, 4, 4)
    padding = word(node, "padding")
    dh, ch, oh, ph = window("h", size(0, 2), size(1, 2), P("stride_h"), padding)
    dw, cw, ow, pw = window("w", size(0, 3), size(1, 3), P("stride_w"), padding)
    p = P("i2") * P("stride_h") + P("a") - ph
    q = P("i3") * P("stride_w") + P("b") - pw
    inside = where(
        Times((at(0, "i0", P("g") * size(1, 1) + P("c"), p, q), at(1, "i1", "c", "a", "b"))),
        *in_range(p, size(0, 2)),
        *in_range(q, size(0, 3)),
    )
    total = Total("c", size(1, 1), Total("a", size(1, 2), Total("b", size(1, 3), inside)))
    body = Digit("g", P("i1"), P("each"), activate(word(node, "activation"), total))
    define = (Quotient("groups", size(0, 1), size(1, 1)), Quotient("each", size(1, 0), P("groups")), *dh, *dw)
    return Meaning((size(0, 0), size(1, 0), oh, ow), body, (*ch, *cw), define)


def pool(kind: str) -> Build:
    def build(node: Node, ranks: tuple[int, ...]) -> Meaning:
        need_ranks(ranks, 4)
        padding = word(node, "padding")
        dh, ch, oh, ph = window("h", size(0, 2), P("kernel_h"), P("stride_h"), padding)
        dw, cw, ow, pw = window("w", size(0, 3), P("kernel_w"), P("stride_w"), padding)
        p = P("i2") * P("stride_h") + P("a") - ph
        q = P("i3") * P("stride_w") + P("b") - pw
        guards = (*in_range(p, size(0, 2)), *in_range(q, size(0, 3)))
        box = (("a", P("kernel_h")), ("b", P("kernel_w")))
        read = at(0, "i0", "i1", p, q)
        body: Expression
        if kind == "max":
            body = Most(box, guards, read)
        else:
            count: Expression = number(P("kernel_h") * P("kernel_w"))
            if kind == "inside":
                count = Total(
                    "d",
                    P("kernel_h"),
                    Total(
                        "e",
                        P("kernel_w"),
                        where(number(1), *(g.substitute({"a": P("d"), "b": P("e")}) for g in guards)),
                    ),
                )
            summed = Total("a", P("kernel_h"), Total("b", P("kernel_w"), where(read, *guards)))
            body = Times((inverse(count), summed))
        return Meaning((size(0, 0), size(0, 1), oh, ow), body, (*ch, *cw), (*dh, *dw))

    return build


def enlarge(node: Node, ranks: tuple[int, ...]) -> Meaning:
    """Zero-pads a kernel to at least (kernel_h, kernel_w), floor of the half before."""
    need_ranks(ranks, 4)
    define: list[Define] = []
    index, guards = [P("i0"), P("i1")], list[Poly]()
    for a, axis in ((2, "h"), (3, "w")):
        define += [
            Largest(f"new_{axis}", size(0, a), P(f"kernel_{axis}")),
            Floor(f"lead_{axis}", P(f"new_{axis}") - size(0, a), P(2)),
        ]
        index.append(P(f"i{a}") - P(f"lead_{axis}"))
        guards += in_range(index[-1], size(0, a))
    return Meaning(
        (size(0, 0), size(0, 1), P("new_h"), P("new_w")), where(Read(0, tuple(index)), *guards), define=tuple(define)
    )


# ---- constants
# ----------------------------------------------------------------------------------------------------------------------


def eye(node: Node, ranks: tuple[int, ...]) -> Meaning:
    return Meaning((P("extent"), P("extent")), where(number(1), P("i0") - P("i1"), P("i1") - P("i0")))


def ones(rank: int) -> Build:
    def build(node: Node, ranks: tuple[int, ...]) -> Meaning:
        return Meaning(tuple(P(f"extent_{a}") for a in range(rank)), number(1))

    return build


def pool_kernel(node: Node, ranks: tuple[int, ...]) -> Meaning:
    """Depthwise weights 1/(kernel_h kernel_w)."""
    shape = (P("channels"), ONE, P("kernel_h"), P("kernel_w"))
    return Meaning(shape, inverse(number(P("kernel_h") * P("kernel_w"))))


def id_kernel(node: Node, ranks: tuple[int, ...]) -> Meaning:
    """Depthwise weights 1 at the centre, odd sizes only."""
    shape = (P("channels"), ONE, P("kernel_h"), P("kernel_w"))
    h, w = P("i2") - P("mid_h"), P("i3") - P("mid_w")
    define = (Quotient("mid_h", P("kernel_h") - 1, P(2)), Quotient("mid_w", P("kernel_w") - 1, P(2)))
    return Meaning(shape, where(number(1), h, -h, w, -w), define=define)


# ---- tables of rows
# -------------------------------------------------------------------------------------------------------------------


def embedding(node: Node, ranks: tuple[int, ...]) -> Meaning:
    """table[ids[i0], i1], as a sum over rows: hit(r; v) is 1 if v = r, else 0."""
    need_ranks(ranks, 2, 1)
    hit = Call("hit", (P("r"),), (at(1, "i0"),))
    return Meaning((size(1, 0), size(0, 1)), Total("r", size(0, 0), Times((hit, at(0, "r", "i1")))))


def embedding_rows(node: Node, ranks: tuple[int, ...]) -> Meaning:
    """table[ids[i0, i1], i2]: the rows of a bag one by one."""
    need_ranks(ranks, 2, 2)
    hit = Call("hit", (P("r"),), (at(1, "i0", "i1"),))
    total = Total("r", size(0, 0), Times((hit, at(0, "r", "i2"))))
    return Meaning((size(1, 0), size(1, 1), size(0, 1)), total)


def embedding_bag(node: Node, ranks: tuple[int, ...]) -> Meaning:
    """sum_l table[ids[i0, l], i1]."""
    need_ranks(ranks, 2, 2)
    hit = Call("hit", (P("r"),), (at(1, "i0", "l"),))
    total = Total("l", size(1, 1), Total("r", size(0, 0), Times((hit, at(0, "r", "i1")))))
    return Meaning((size(1, 0), size(0, 1)), total)
