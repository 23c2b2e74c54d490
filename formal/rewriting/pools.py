"""The pools of the generator: which inputs and operators graphs are enumerated from.

    matrices, batches        tensors of rank 2 and 3 with all parallel operators: what Unity enumerates
    convolutions             images and kernels of several inputs; `depthwise`: a kernel for every channel
    kernels                  kernels of one place, padded with zeros to those of three by three
    windows                  greatest and average of windows, for any kernel and stride
    rows, rows-3, rows-4     softmax, norms, maps, sums and greatest values along axes, for rank 2 to 4
    shapes, shapes-3, -4     permutations, parts, tensors side by side and maps of elements
    scales                   products with a number
    tables                   rows that are looked up, and bags of them
    parts                    a product with tensors side by side as a sum of products: five operators, of few kinds
    activations              products and convolutions with a map of their result
    vectors                  biases and gains along an axis of a matrix; no operator reads one tensor twice
    layers, channels         the same of products and of convolutions, with parts and tensors side by side
    folds                    a gain and a bias of what is multiplied, given to the product: an operator more
    norms                    norms of rows and channels with gains and biases, of what is moved, looked up and scaled
    operator NAME            an operator that a user specifies, sums, tensors side by side, numbers to multiply by

Pools without parallel operators give rules for tensors that are not sharded: a plan's placements come after its rules.
Names of sizes: `d` a degree, `s` a stride, `k` a kernel, `n` a length.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from functools import partial
from itertools import permutations
from types import MappingProxyType
from typing import Final

from ...models.rewrites.specified_rows import SPECIFIED
from ...models.rewrites.terms import Label
from ...models.sources.rules.specified import statement_of
from ...models.sources.specified.specification import Specification, sample_extents
from ...models.text import InputError
from .generate_terms import Pool, label

MOST_OPERANDS: Final = 2
"""Operands of the operators that graphs are enumerated from."""

MAPS: Final = ("relu", "sigmoid", "tanh", "exp", "gelu", "silu")


def rank2_pool(most: int = 3) -> Pool:
    """Matrices: four plain ones, two of each sharded kind, and all operators of the set."""
    unary = [
        label("relu"),
        label("transpose", perm=(1, 0)),
        *(label(o, axis=a, degree="d") for o in ("partition", "combine") for a in (0, 1)),
        label("replicate", degree="d"),
        label("reduce", degree="d"),
        label("reduce", degree=2),
        *(label(o, axis=a) for o in ("split0", "split1") for a in (0, 1)),
    ]
    binary = [
        label("add"),
        label("mul"),
        label("matmul"),
        label("linear", activation="none"),
        label("linear", activation="relu"),
        *(label("concat", axis=a) for a in (0, 1)),
        label("stack"),
    ]
    return Pool("matrices", (((1, 1), 4), ((3, 1), 2), ((1, 3), 2)), (*unary, *binary), most)


def rank3_pool(most: int = 3) -> Pool:
    """Batches of matrices: three plain ones, one of each sharded kind; matmul is the batched one, splits and
    activations are left out.
    """
    unary = [
        label("relu"),
        label("transpose", perm=(0, 2, 1)),
        *(label(o, axis=a, degree="d") for o in ("partition", "combine") for a in (0, 1, 2)),
        label("replicate", degree="d"),
        label("reduce", degree="d"),
    ]
    binary = [label("add"), label("mul"), label("batch_matmul"), *(label("concat", axis=a) for a in (0, 1, 2))]
    return Pool("batches", (((1, 1, 1), 4), ((3, 1, 1), 2), ((1, 3, 1), 1), ((1, 1, 3), 2)), (*unary, *binary), most, 3)


def plain_pool(
    name: str,
    inputs: tuple[tuple[int, tuple[int, ...]], ...],
    labels: tuple[Label, ...],
    most: int,
    numbers: tuple[tuple[str, int], ...] = (),
    fixed: tuple[tuple[tuple[int, int], ...], ...] = (),
    ids: tuple[int, ...] = (),
    apart: tuple[tuple[str, ...], ...] = (),
) -> Pool:
    """A pool without degrees; `inputs`: (how many, their shape)."""
    rows = tuple(((1,) * len(shape), count) for count, shape in inputs)
    shapes = tuple(shape for _, shape in inputs)
    return Pool(name, rows, labels, most, 1, numbers, shapes, fixed, ids, tuple(map(frozenset, apart)), sharded=False)


def conv(padding: str, activation: str = "none", stride: str | int = "s") -> Label:
    """A convolution with one stride."""
    return label("conv", stride_h=stride, stride_w=stride, padding=padding, activation=activation)


def window(operator: str, padding: str) -> Label:
    """A pool of a square window."""
    return label(operator, kernel_h="k", kernel_w="k", stride_h="s", stride_w="s", padding=padding)


def convolution_pool(most: int = 3) -> Pool:
    """All channels of an image into all of another, twice."""
    labels: tuple[Label, ...] = (conv("same"), conv("valid"), label("add"), *(label("concat", axis=a) for a in (0, 1)))
    inputs = ((2, (2, 3, 5, 5)), (2, (3, 3, 3, 3)))
    return plain_pool("convolutions", inputs, labels, most, (("s", 2),), apart=(("conv",), ("add",), ("concat",)))


def depthwise_pool(most: int = 3) -> Pool:
    """A kernel of its own for every channel."""
    labels: tuple[Label, ...] = (conv("same"), conv("valid"), label("add"), label("concat", axis=0))
    inputs = ((2, (2, 4, 5, 5)), (2, (4, 1, 3, 3)))
    return plain_pool("depthwise", inputs, labels, most, (("s", 2),), apart=(("conv",), ("add",), ("concat",)))


def kernel_pool(most: int = 3) -> Pool:
    """Kernels of one place beside those of three by three."""
    labels: tuple[Label, ...] = (conv("same", stride=1), label("enlarge", kernel_h=3, kernel_w=3), label("add"))
    inputs = ((1, (2, 4, 5, 5)), (1, (4, 1, 1, 1)), (1, (4, 1, 3, 3)))
    return plain_pool("kernels", inputs, labels, most, (), ((), ((2, 1), (3, 1)), ((2, 3), (3, 3))), (), (("conv",),))


def window_pool(most: int = 3) -> Pool:
    """Two images."""
    labels: tuple[Label, ...] = tuple(
        window(w, p) for w in ("max_pool", "average_pool", "average_pool_inside") for p in ("same", "valid")
    )
    labels += (*map(label, MAPS), label("add"), *(label("concat", axis=a) for a in (0, 1)))
    labels += (label("transpose", perm=(0, 1, 3, 2)), label("transpose", perm=(1, 0, 2, 3)))
    apart = (("max_pool", "average_pool", "average_pool_inside"), (*MAPS, "add"), ("concat",), ("transpose",))
    return plain_pool("windows", ((2, (2, 3, 5, 5)),), labels, most, (("k", 2), ("s", 2)), apart=apart)


def row_pool(rank: int, most: int = 3) -> Pool:
    """Two tensors of a rank, and what is computed along their axes."""
    along = ("softmax", "layer_norm", "reduce_sum", "reduce_max")
    labels: tuple[Label, ...] = tuple(label(o, axis=a) for o in along for a in range(rank))
    labels += (*map(label, MAPS), label("add"), label("mul"), *(label("concat", axis=a) for a in range(rank)))
    labels += tuple(label("transpose", perm=p) for p in permutations(range(rank)) if p != tuple(range(rank)))[:5]
    apart = ((*along, *MAPS, "add", "mul"), ("concat",), ("transpose",))
    name = "rows" if rank == 2 else f"rows-{rank}"
    return plain_pool(name, ((2, (2, 3, 4, 5)[:rank]),), labels, most, apart=apart)


def shape_pool(rank: int, most: int = 3) -> Pool:
    """Two tensors of a rank whose sizes are alike, and how their elements move."""
    axes, same = range(rank), (4,) * rank
    labels: tuple[Label, ...] = tuple(label("transpose", perm=p) for p in permutations(axes) if p != tuple(axes))
    labels += tuple(label(o, axis=a) for o in ("concat", "half0", "half1") for a in axes)
    labels += tuple(label(o, axis=a, length="n") for o in ("take", "drop") for a in axes)
    labels += (*map(label, MAPS), label("add"), label("mul"))
    apart = ((*MAPS, "add", "mul"), ("concat",), ("half0", "half1"), ("take", "drop"))
    name = "shapes" if rank == 2 else f"shapes-{rank}"
    return plain_pool(name, ((2, same),), labels, most, (("n", 1),), apart=apart)


def scale_pool(most: int = 3) -> Pool:
    """Two matrices and two numbers."""
    labels: tuple[Label, ...] = (
        label("scale"),
        label("add"),
        label("mul"),
        label("matmul"),
        label("transpose", perm=(1, 0)),
    )
    labels += (label("reduce_sum", axis=0), label("reduce_sum", axis=1))
    return plain_pool("scales", ((2, (4, 4)), (2, ())), labels, min(most, 3))


def table_pool(most: int = 3) -> Pool:
    """Two tables, places of rows, and bags of places."""
    labels: tuple[Label, ...] = (
        label("embedding"),
        label("embedding_rows"),
        label("embedding_bag"),
        label("relu"),
        label("add"),
    )
    labels += (label("reduce_sum", axis=1), label("scale"), label("matmul"))
    labels += (label("concat", axis=0), label("concat", axis=1))
    inputs = ((2, (5, 3)), (1, (4,)), (1, (4, 2)), (1, ()), (1, (3, 3)))
    apart = (("embedding", "embedding_rows", "embedding_bag"), ("relu", "add", "scale", "matmul"), ("concat",))
    return plain_pool("tables", inputs, labels, most, ids=(1, 2), apart=apart)


def part_pool(most: int = 5) -> Pool:
    """Two matrices side by side, and a third one that is multiplied by them."""
    labels: tuple[Label, ...] = (label("matmul"), label("add"), label("concat", axis=1))
    labels += tuple(label(o, axis=0, length="n") for o in ("take", "drop"))
    return plain_pool(
        "parts",
        ((2, (4, 3)), (1, (6, 2))),
        labels,
        most,
        (("n", 3),),
        apart=(("matmul",), ("take", "drop", "concat"), ("add",)),
    )


def activation_pool(most: int = 2) -> Pool:
    """A product or convolution, and a map."""
    words = ("none", "relu", "sigmoid", "tanh")
    labels: tuple[Label, ...] = tuple(label("linear", activation=a) for a in words)
    labels += tuple(conv(p, a) for p in ("same", "valid") for a in words)
    labels += tuple(map(label, words[1:]))
    return plain_pool(
        "activations", ((1, (4, 3)), (1, (2, 3)), (1, (2, 3, 5, 5)), (1, (2, 3, 3, 3))), labels, most, (("s", 2),)
    )


ALONG: Final = ("add_along", "scale_along")
MOVES: Final = ("concat", "take", "drop", "transpose")
NORMS: Final = ("layer_norm", "layer_norm_affine", "rms_norm", "rms_norm_scaled")


def on_axes(operators: tuple[str, ...], axes: tuple[int, ...] = (0, 1)) -> tuple[Label, ...]:
    """Operators on each of some axes; a part has the length `n`."""
    return tuple(
        label(o, axis=a, **({"length": "n"} if o in ("take", "drop") else {})) for o in operators for a in axes
    )


def vector_pool(most: int = 3) -> Pool:
    """Two matrices, vectors along both of their axes, and a number: biases and gains that move."""
    labels: tuple[Label, ...] = (*on_axes(ALONG), *map(label, ("add", "mul", "subtract", "negate", "scale")))
    labels += (*on_axes(("concat", "take", "drop", "reduce_sum")), label("transpose", perm=(1, 0)))
    apart = (MOVES, ("reduce_sum",), ("mul", "scale", "negate"), ("subtract", "negate"))
    inputs = ((2, (4, 3)), (1, (4,)), (2, (3,)), (1, ()))
    return replace(plain_pool("vectors", inputs, labels, most, (("n", 1),), apart=apart), twice=False)


def layer_pool(most: int = 3) -> Pool:
    """Products of two matrices with two others, their biases, gains and parts."""
    labels: tuple[Label, ...] = (label("matmul"), label("add"), label("subtract"), label("negate"), label("scale"))
    labels += (*on_axes(ALONG), *on_axes(("concat", "take", "drop")), label("transpose", perm=(1, 0)))
    apart = (MOVES, ("subtract", "negate", "scale"))
    inputs = ((2, (4, 3)), (2, (3, 5)), (1, (4,)), (1, (3,)), (1, (5,)), (1, ()))
    return replace(plain_pool("layers", inputs, labels, most, (("n", 2),), apart=apart), twice=False)


def fold_pool(most: int = 4) -> Pool:
    """A product of a matrix with a gain and a bias along the axis that is summed: four operators, of few kinds."""
    labels: tuple[Label, ...] = (label("matmul"), *on_axes(ALONG, (1,)), label("scale_along", axis=0))
    labels += (label("reduce_sum", axis=0), label("layer_norm", axis=1), label("softmax", axis=1))
    apart = (("matmul",), ("reduce_sum",), ("layer_norm", "softmax"))
    inputs = ((1, (4, 3)), (1, (3, 5)), (1, (3,)), (1, (5,)))
    return replace(plain_pool("folds", inputs, labels, most, apart=apart), twice=False)


def norm_pool(most: int = 3) -> Pool:
    """Norms of rows and of channels with gains and biases, of what is moved, looked up and multiplied."""
    labels: tuple[Label, ...] = tuple(label(o, axis=1) for o in ("layer_norm", "rms_norm", "softmax"))
    labels += tuple(label("layer_norm_affine", axis=a, along=1) for a in (0, 1))
    labels += (label("rms_norm_scaled", axis=1, along=1), label("layer_norm", axis=0), label("embedding"))
    labels += (*on_axes(ALONG, (1,)), label("add"), label("mul"), *on_axes(("concat", "take", "drop")))
    apart = (MOVES, (*NORMS, "softmax"))
    inputs = ((2, (4, 3)), (2, (3,)), (1, (2,)))
    return replace(plain_pool("norms", inputs, labels, most, (("n", 1),), ids=(2,), apart=apart), twice=False)


def channel_pool(most: int = 3) -> Pool:
    """Convolutions of an image with two kernels, and biases and gains of channels."""
    labels: tuple[Label, ...] = (conv("same"), conv("valid"), label("add"), label("negate"), label("relu"))
    labels += (*on_axes(ALONG), *on_axes(("concat", "take", "drop")), window("max_pool", "valid"))
    labels += tuple(window("average_pool", p) for p in ("same", "valid"))
    apart = (("conv", "max_pool", "average_pool"), MOVES, ("negate", "relu"))
    inputs = ((1, (2, 3, 5, 5)), (2, (4, 3, 3, 3)), (1, (3,)), (2, (4,)))
    return replace(
        plain_pool("channels", inputs, labels, most, (("k", 2), ("n", 1), ("s", 2)), apart=apart), twice=False
    )


def operator_pool(s: Specification, most: int = 3) -> Pool:
    """A user's operator, sums, tensors side by side, and numbers to multiply by: two tensors of every operand."""
    if len(s.operands) > MOST_OPERANDS:
        raise InputError(
            f"{s.name} has {len(s.operands)} operands, graphs are enumerated of operators with up to {MOST_OPERANDS}; "
            "'rules prove FILE.toml -o rules.spz' proves what its form promises"
        )
    statement = statement_of(s)
    extents = sample_extents(s)
    shapes = dict.fromkeys(tuple(extents[a] for a in o.axes) for o in s.operands)
    ranks = {len(shape) for shape in shapes} | {len(s.formula.axes)}
    labels: tuple[Label, ...] = (label(SPECIFIED, statement=statement.text), label("add"), label("scale"))
    labels += tuple(label("concat", axis=a) for a in range(max(ranks)))
    apart = ((SPECIFIED,), ("add",), ("concat",), ("scale",))
    inputs = (*((2, shape) for shape in shapes), (1, ()))
    return plain_pool(f"operator {s.name}", inputs, labels, most, apart=apart)


POOLS: Final[Mapping[str, Callable[[int], Pool]]] = MappingProxyType(
    {
        "matrices": rank2_pool,
        "batches": rank3_pool,
        "convolutions": convolution_pool,
        "depthwise": depthwise_pool,
        "kernels": kernel_pool,
        "windows": window_pool,
        **{f"rows{'' if r == 2 else f'-{r}'}": partial(row_pool, r) for r in (2, 3, 4)},
        **{f"shapes{'' if r == 2 else f'-{r}'}": partial(shape_pool, r) for r in (2, 3, 4)},
        "scales": scale_pool,
        "tables": table_pool,
        "parts": lambda most: part_pool(most + 2),
        "activations": activation_pool,
        "vectors": vector_pool,
        "layers": layer_pool,
        "folds": lambda most: fold_pool(most + 1),
        "norms": norm_pool,
        "channels": channel_pool,
    }
)
"""Name -> the pool with so many operators a side at most."""
UNITYS: Final = ("matrices", "batches")
"""Those that are enumerated where none is named."""
