"""The operator table of substitutions: typing preconditions, result type and index expression of
every operator.

A row gives, for fixed ranks and fixed enumerated parameters, a `Meaning`: pure data over the names listed in
`index_expressions`.  Everything that reasons about or evaluates substitutions interprets these rows and nothing else.

Defined names (`define`): floor of a quotient, or maximum of two integers, usable in all later fields.

Shard degrees follow one rule generated from the index expression (`shards`), unless a row states them; rows that state
them are the four data-axis operators and `linear3` of FlexFlow's public rule file, whose axis 0 is a replica axis.
Device index: Replicate adds a COPY extent (values never depend on it), a contraction over a sharded axis adds a
PARTIAL-SUM coordinate, Reduce sums the outermost one, Pipeline adds a TIME coordinate and Batch removes it.

Conventions made explicit: SAME padding puts ceil(T/2) before; average pooling counts padding (`average_pool`) or not
(`average_pool_inside`); maximum pooling never sees padding.
"""

from __future__ import annotations

from types import MappingProxyType
from typing import Final

from . import dense_rows as dense
from . import parallel_rows as parallel
from . import window_rows as windowed
from .index_expressions import Plus, Times
from .meaning import Auxiliary, Define, Floor, Join, Largest, Meaning, Part, Quotient, RankError, Row, Shrunk
from .nodes import Node
from .specified_rows import MOST_OPERANDS, SPECIFIED, STATEMENT, specified_meaning, wrong_statement

ACTIVATIONS: Final = ("none", "relu", "sigmoid", "tanh")
_ACT = (("activation", ACTIVATIONS),)
_WINDOW = ("stride_h", "stride_w")
_PAD = (("padding", ("same", "valid")),)
_KERNEL = ("kernel_h", "kernel_w")
_AX = ("axis",)

_ROWS: Final = (
    Row("add", (2, 2), dense.elementwise(Plus)),
    Row("mul", (2, 2), dense.elementwise(Times)),
    Row("subtract", (2, 2), dense.subtract),
    Row("negate", (1, 1), dense.negate),
    Row("scale", (2, 2), dense.scale),
    Row("scale_along", (2, 2), dense.along_axis(Times), integers=_AX),
    Row("add_along", (2, 2), dense.along_axis(Plus), integers=_AX),
    *(Row(f, (1, 1), dense.map(f)) for f in ("relu", "sigmoid", "tanh", "exp", "gelu", "silu")),
    Row("matmul", (2, 2), dense.matmul),
    Row("batch_matmul", (2, 2), dense.batch_matmul),
    Row("linear", (2, 2), dense.linear, words=_ACT),
    Row("linear3", (2, 2), dense.linear3, words=_ACT),
    Row("transpose", (1, 1), dense.transpose, permutations=("perm",)),
    Row("merge_axes", (1, 1), dense.merge_axes, integers=_AX),
    Row("split_axis", (1, 1), dense.split_axis, ("inner",), integers=_AX),
    Row("concat", (2, 2), dense.concat, integers=_AX),
    Row("split0", (1, 1), dense.split_row(0), integers=_AX),
    Row("split1", (1, 1), dense.split_row(1), integers=_AX),
    Row("half0", (1, 1), dense.half(0), integers=_AX),
    Row("half1", (1, 1), dense.half(1), integers=_AX),
    Row("take", (1, 1), dense.take, ("length",), integers=_AX),
    Row("drop", (1, 1), dense.drop, ("length",), integers=_AX),
    Row("reduce_sum", (1, 1), dense.sum_axis, integers=_AX),
    Row("reduce_max", (1, 1), dense.max_axis, integers=_AX),
    Row("reduce_mean", (1, 1), dense.mean_axis, integers=_AX),
    Row("softmax", (1, 1), dense.softmax, integers=_AX),
    Row("layer_norm", (1, 1), dense.layer_norm, integers=_AX),
    Row("layer_norm_affine", (3, 3), dense.with_gain(dense.layer_norm, True), integers=(*_AX, "along")),
    Row("rms_norm", (1, 1), dense.rms_norm, integers=_AX),
    Row("rms_norm_scaled", (2, 2), dense.with_gain(dense.rms_norm, False), integers=(*_AX, "along")),
    Row("conv", (2, 2), windowed.conv, _WINDOW, (*_PAD, *_ACT)),
    Row("max_pool", (1, 1), windowed.pool("max"), (*_KERNEL, *_WINDOW), _PAD),
    Row("average_pool", (1, 1), windowed.pool("padded"), (*_KERNEL, *_WINDOW), _PAD),
    Row("average_pool_inside", (1, 1), windowed.pool("inside"), (*_KERNEL, *_WINDOW), _PAD),
    Row("enlarge", (1, 1), windowed.enlarge, _KERNEL),
    Row("eye", (0, 0), windowed.eye, ("extent",)),
    *(Row(f"ones{r}", (0, 0), windowed.ones(r), tuple(f"extent_{a}" for a in range(r))) for r in (1, 2, 3, 4)),
    Row("pool_kernel", (0, 0), windowed.pool_kernel, ("channels", *_KERNEL)),
    Row("id_kernel", (0, 0), windowed.id_kernel, ("channels", *_KERNEL)),
    Row("embedding", (2, 2), windowed.embedding),
    Row("embedding_rows", (2, 2), windowed.embedding_rows),
    Row("embedding_bag", (2, 2), windowed.embedding_bag),
    Row(SPECIFIED, (1, MOST_OPERANDS), specified_meaning, texts=((STATEMENT, wrong_statement),)),
    Row("partition", (1, 1), parallel.partition, ("degree",), integers=_AX),
    Row("combine", (1, 1), parallel.combine, ("degree",), integers=_AX),
    Row("tile", (1, 1), parallel.tile, ("degree",), integers=_AX),
    Row("block_sum", (1, 1), parallel.block_sum, ("degree",), integers=_AX),
    Row("replicate", (1, 1), parallel.replicate, ("degree",)),
    Row("reduce", (1, 1), parallel.reduce, ("degree",)),
    Row("all_reduce", (1, 1), parallel.all_reduce, ("degree",)),
    Row("stack", (2, 2), parallel.stack),
    Row("pipeline", (1, 1), parallel.pipeline, ("steps",), integers=_AX),
    Row("batch", (1, 1), parallel.batch, ("steps",), integers=_AX),
    Row("accumulate", (1, 1), parallel.accumulate),
)

OPERATORS: Final = MappingProxyType({row.name: row for row in _ROWS})
"""Operator name -> row."""


def meaning(node: Node, ranks: tuple[int, ...]) -> Meaning:
    """The row of an operator for operands of these ranks; `RankError` if they do not fit.

    >>> from .nodes import node as n
    >>> m = meaning(n("matmul", -1, -2), (2, 2))
    >>> [str(s) for s in m.sizes], [str(c) for c in m.require]
    (['0.0', '1.1'], ['0.1 = 1.0'])
    """
    return OPERATORS[node.operator].build(node, ranks)


__all__ = [
    "ACTIVATIONS",
    "OPERATORS",
    "Auxiliary",
    "Define",
    "Floor",
    "Join",
    "Largest",
    "Meaning",
    "Part",
    "Quotient",
    "RankError",
    "Row",
    "Shrunk",
    "meaning",
]
