"""Writes what DTensor may say of an operator as rules to prove: operands and results that lie on two ranks.

    Replicate    both ranks have the tensor
    Shard(d)     it is what the ranks have, side by side along dimension d; shards of any two sizes
    Partial      it is the sum of what the ranks have; or the average, the greatest, the least

    operator(whole operands)  =  what the ranks' results, each of the operator on what the rank has, are together

A rule of two ranks says it for every number of ranks: n ranks are two, the last one and all others, as laying side by
side, adding up, the greatest and the least are associative; the average of n is that of the last one and of the average
of all others with weights s = 1/n and 1 - s, and rules are stated for any s.

Dimensions that the operator asks to be equal are cut alike, as DTensor cuts equal dimensions at equal places.
Convolutions have one group and no padding.  Source: torch.distributed.tensor, placements and strategies of operators.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import product
from typing import Final

from ...rewrites.ops import RankError, meaning
from ...rewrites.polynomial import Poly
from ...rewrites.rule import Condition, Equal, Node, Parameter, Pattern, Substitution
from ...rewrites.specified_rows import SPECIFIED, STATEMENT
from ...rewrites.terms import Apply, Term, rule_of
from ..specified.specification import Specification
from .specified import statement_of

REPLICATE: Final = "Replicate"
PARTIAL: Final = "Partial(sum)"
REDUCTIONS: Final = ("sum", "avg", "max", "min")
"""What Partial adds up to; rules of two ranks state the average with any weights s and 1 - s."""


@dataclass(frozen=True)
class Placed:
    """An operator of ATen as one of rules: the `ranks` of its operands, the `rank` of its result, its parameters."""

    aten: str
    operator: str
    ranks: tuple[int, ...]
    rank: int
    parameters: tuple[tuple[str, Parameter], ...] = ()

    @property
    def name(self) -> str:
        """For people: the operator, and the axis, permutation or rank that it is stated for."""
        said = ", ".join(f"{k} {v}" for k, v in self.parameters if k in ("axis", "perm"))
        said = f"rank {self.rank}" if self.operator in ("add", "mul") else said
        return f"{self.aten}({said})" if said else self.aten


def convolution(s: int) -> str:
    """The statement of a convolution of one group and stride s, without padding."""
    sizes = [f"{i} = ({n} - {k}) // {s} + 1" if s > 1 else f"{i} = {n} - {k} + 1" for i, n, k in ("ihp", "jvq")]
    at = [f"{s}*{i} + {k}" if s > 1 else f"{i} + {k}" for i, k in ("ip", "jq")]
    body = f"y[b, o, i, j] = sum c, p, q: x[b, c, {', '.join(at)}] * w[o, c, p, q]"
    return "; ".join([f"conv{s}: {body}", "x[b, c, h, v]", "w[o, c, p, q]", *sizes])


def _table() -> Iterator[Placed]:
    for r in (1, 2, 3):
        for aten, operator in (("aten.add.Tensor", "add"), ("aten.mul.Tensor", "mul")):
            yield Placed(aten, operator, (r, r), r)
    for word in ("relu", "sigmoid", "tanh", "exp", "gelu", "silu"):
        yield Placed(f"aten.{word}.default", word, (2,), 2)
    yield Placed("aten.mm.default", "matmul", (2, 2), 2)
    yield Placed("aten.bmm.default", "batch_matmul", (3, 3), 3)
    yield Placed("aten.permute.default", "transpose", (2,), 2, (("perm", (1, 0)),))
    for a in (0, 1):
        axis = (("axis", a),)
        yield Placed("aten.cat.default", "concat", (2, 2), 2, axis)
        for aten, operator in (
            ("aten.sum.dim_IntList", "reduce_sum"),
            ("aten.amax.default", "reduce_max"),
            ("aten.mean.dim", "reduce_mean"),
        ):
            yield Placed(aten, operator, (2,), 1, axis)
        yield Placed("aten._softmax.default", "softmax", (2,), 2, axis)
    yield Placed("aten.native_layer_norm.default", "layer_norm", (2,), 2, (("axis", 1),))
    for s in (1, 2):
        yield Placed(f"aten.convolution.default(stride {s})", SPECIFIED, (4, 4), 4, ((STATEMENT, convolution(s)),))
    window = (("kernel_h", "k"), ("kernel_w", "k"), ("padding", "valid"), ("stride_h", "s"), ("stride_w", "s"))
    yield Placed("aten.max_pool2d.default", "max_pool", (4,), 4, window)
    yield Placed("aten.avg_pool2d.default", "average_pool", (4,), 4, window)
    yield Placed("aten.embedding.default", "embedding", (2, 1), 2)


def placed_operator(s: Specification) -> Placed:
    """An operator that a user specifies.  Raises `SpecificationError` where rules cannot say it."""
    text = statement_of(s).text
    ranks = tuple(len(o.axes) for o in s.operands)
    return Placed(s.name, SPECIFIED, ranks, len(s.formula.axes), ((STATEMENT, text),))


TABLE: Final = tuple(_table())
"""Operators whose placements are decided."""


def placements(rank: int, reduction: str = "sum") -> tuple[str, ...]:
    """What DTensor may say of a tensor of this rank on one dimension of a mesh, with one kind of Partial.

    >>> placements(1)
    ('Replicate', 'Shard(0)', 'Partial(sum)')
    """
    return (REPLICATE, *(f"Shard({d})" for d in range(rank)), f"Partial({reduction})")


@dataclass(frozen=True)
class PlacementRule:
    """`rule` says that operands placed as `reads` give a result placed as `writes`, where each rank applies the
    operator to what it has.
    """

    placed: Placed
    reads: tuple[str, ...]
    writes: str
    rule: Substitution


def placement_rules(table: tuple[Placed, ...] = TABLE, reduction: str = "sum") -> Iterator[PlacementRule]:
    """Every operator with every placement of operands and result; with another `reduction` than the sum those that are
    partial.

    >>> found = [p for p in placement_rules() if p.placed.aten == "aten.mm.default"]
    >>> len(found), found[0].rule.name
    (64, 'aten.mm.default: Replicate, Replicate -> Replicate')
    """
    for placed in table:
        for reads in product(*(placements(r, reduction) for r in placed.ranks)):
            for writes in placements(placed.rank, reduction):
                if reduction == "sum" or f"Partial({reduction})" in (*reads, writes):
                    yield PlacementRule(placed, reads, writes, _rule(placed, reads, writes))


def _rule(placed: Placed, reads: tuple[str, ...], writes: str) -> Substitution:
    inputs, whole, parts = list[Pattern](), list[Term](), list[tuple[Term, Term]]()
    first = list[int]()
    for k, (rank, placement) in enumerate(zip(placed.ranks, reads, strict=True)):
        first.append(len(inputs))
        name = f"x{k}" if len(placed.ranks) > 3 else "xyz"[k]
        if placement == REPLICATE:
            inputs.append(Pattern(name, rank))
            whole.append(len(inputs) - 1)
            parts.append((len(inputs) - 1, len(inputs) - 1))
            continue
        inputs += [Pattern(f"{name}0", rank), Pattern(f"{name}1", rank)]
        both = len(inputs) - 2, len(inputs) - 1
        whole.append(_together(placement, *both, rank))
        parts.append(both)
    operator = placed.operator, tuple(sorted(placed.parameters))
    ranks = [Apply(operator, tuple(p[j] for p in parts)) for j in (0, 1)]
    left: Term = Apply(operator, tuple(whole))
    name = f"{placed.name}: {', '.join(reads)} -> {writes}"
    right = tuple[Term, ...](ranks) if writes == REPLICATE else (_together(writes, ranks[0], ranks[1], placed.rank),)
    if AVERAGE in (*reads, writes):
        inputs.append(Pattern("s", 0))
        left, right = _weighted(left, len(inputs) - 1), tuple(_weighted(t, len(inputs) - 1) for t in right)
    found = rule_of(name, tuple(inputs), (left,) * len(right), right)
    needs = tuple(_alike(placed, reads, [inputs[k].name for k in first]))
    return Substitution(found.name, found.inputs, found.left, found.right, found.outputs, needs)


AVERAGE: Final = "Partial(avg)"
WEIGHT: Final = -1
"""Stands for the pattern input that weighs, until there is one."""


def _weighted(t: Term, weight: int) -> Term:
    """A term with its weight put in."""
    if isinstance(t, int):
        return weight if t == WEIGHT else t
    return Apply(t.label, tuple(_weighted(a, weight) for a in t.arguments))


def _together(placement: str, a: Term, b: Term, rank: int) -> Term:
    """What two ranks' tensors of a rank are together."""
    if placement == PARTIAL:
        return Apply(("add", ()), (a, b))
    if placement.startswith("Partial"):
        names = [f"i{k}" for k in range(rank)]
        at = f"[{', '.join(names)}]"
        if placement == AVERAGE:
            text = f"avg: y{at} = s[] * a{at} + (1 - s[]) * b{at}; s[]; a{at}; b{at}"
            return Apply((SPECIFIED, ((STATEMENT, text),)), (WEIGHT, a, b))
        if a == b:
            return a
        row = f"row: y[{', '.join(['n', *names])}] = a{at}; a{at}; n = 1"
        a, b = (Apply((SPECIFIED, ((STATEMENT, row),)), (t,)) for t in (a, b))
        rows, how, all_of = Apply(("concat", (("axis", 0),)), (a, b)), placement[8:-1], f"a[{', '.join(['n', *names])}]"
        text = f"{how}: y{at} = {how} n: {all_of}; {all_of}"
        return Apply((SPECIFIED, ((STATEMENT, text),)), (rows,))
    return Apply(("concat", (("axis", int(placement[6:-1])),)), (a, b))


def _alike(placed: Placed, reads: tuple[str, ...], names: list[str]) -> Iterator[Condition]:
    """Dimensions that the operator asks to be equal and that are both cut are cut at one place."""
    try:
        asks = meaning(
            Node(placed.operator, tuple(-1 - k for k in range(len(reads))), placed.parameters), placed.ranks
        ).require
    except RankError:
        return
    for c in asks:
        if isinstance(c, Equal) and len(c.left.names) == len(c.right.names) == 1:
            (j, d), (k, e) = (next(iter(side.names)).split(".")[:2] for side in (c.left, c.right))
            if reads[int(j)] == f"Shard({d})" and reads[int(k)] == f"Shard({e})":
                yield Equal(Poly.of(f"{names[int(j)]}.{d}"), Poly.of(f"{names[int(k)]}.{e}"))
