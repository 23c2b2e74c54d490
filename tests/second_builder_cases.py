"""Small plans of all kinds, for the second builder: a graph, a machine, a space and a memory limit each.

The constants of the made-up machine have no round quotients, so that a wrong rounding shows itself.
"""

from __future__ import annotations

import tempfile
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path
from typing import Any

import loop_cases  # type: ignore[import-not-found]

from shardproof.models.cost.selection import Planning, build
from shardproof.models.layout.placement import space
from shardproof.models.machine.machine import Machine, load_machine
from shardproof.models.program.graph import Graph, Role
from shardproof.models.program.index import Access, Affine, Axis, Combine, access
from shardproof.models.program.operators import Value
from shardproof.models.sources.building.attention import attention, lse_of, with_fused_gradients
from shardproof.models.sources.building.builder import Builder
from shardproof.models.sources.numpy.trace import trace
from shardproof.models.sources.training import build_step, training_step
from shardproof.models.sources.zoo import TINY, array_programs
from shardproof.models.sources.zoo import build as zoo

LIMIT = 1 << 16
"""Bytes per device of every case: the rows are built, whether they fit or not."""

MIXED = """
name = "mixed"
[[level]]
name = "nodes"
size = 2
bandwidth = "7e9"
latency = "11 us"
[[level]]
name = "gpus"
size = 2
bandwidth = "271 GB/s"
latency = "3.3 us"
[[device_class]]
name = "new"
memory = "80 GiB"
bandwidth = "2.1 TB/s"
launch = "2 us"
peaks = { float32 = "19 Tflop/s", float64 = "9.7 Tflop/s" }
[[device_class]]
name = "old"
memory = "16 GiB"
bandwidth = "0.3 TB/s"
launch = "1.7 us"
blocks = [1]
peaks = { float32 = "7 Tflop/s", float64 = "4.1 Tflop/s" }
[[resource]]
name = "switch"
devices = 4
capacity = "10 GB/s"
traffic = ["nodes"]
[[profile]]
function = "product"
dtype = "float32"
extents = [8, 16, 12]
seconds = "71 us"
[[profile]]
function = "product"
dtype = "float32"
extents = [4, 16, 12]
seconds = "37 us"
[[profile]]
function = "relu"
dtype = "float32"
extents = [2, 16]
seconds = "1 ns"
[sources]
"level.nodes" = "made up"
"level.gpus" = "made up"
"device_class.new" = "made up"
"device_class.old" = "made up"
"resource.switch" = "made up"
"profile.product" = "made up"
"profile.relu" = "made up"
"""


MEASURED = """
name = "measured"
[[level]]
name = "nodes"
size = 2
bandwidth = "7e9"
latency = "11 us"
[[level]]
name = "gpus"
size = 4
bandwidth = "271 GB/s"
latency = "3.3 us"
[level.all_gather]
fixed = "4.1 us"
hop = "0.37 us"
slow = "71 ns"
start = "7.3 us"
wire = "3.7 ps"
own = "1.3 ps"
[level.reduce_scatter]
fixed = "4.3 us"
hop = "0.41 us"
slow = "73 ns"
start = "7.9 us"
wire = "3.9 ps"
own = "1.7 ps"
[level.all_reduce]
fixed = "5.9 us"
hop = "0.53 us"
slow = "91 ns"
start = "9.7 us"
wire = "4.1 ps"
own = "0.7 ps"
[level.alltoall]
fixed = "6.1 us"
hop = "0.59 us"
slow = "61 ns"
start = "11 us"
wire = "5.3 ps"
own = "0.9 ps"
[[device_class]]
name = "g"
memory = "80 GiB"
bandwidth = "2.1 TB/s"
launch = "2 us"
peaks = { float32 = "19 Gflop/s", float64 = "9.7 Tflop/s" }
[[device_class.product]]
dtype = "float32"
processors = 3
launch = "2.3 us"
tail = "0.31 us"
step = "0.17 us"
split = "0.7 us"
sum = "0.3 ps"
result = "0.11 ns"
odd = "0.13"
[device_class.product.tiles]
2x4 = "0.37 us"
8x8 = "1.9 us"
[[device_class.attention]]
dtype = "float32"
direction = "forward"
processors = 3
launch = "2.9 us"
pace = "0.37 ns"
pair = "1.3 ns"
row = "0.7 ns"
wave = "0.0031"
band = "0.0047"
[[device_class.attention]]
dtype = "float32"
direction = "backward"
processors = 5
launch = "3.1 us"
pace = "0.23 ns"
pair = "1.9 ns"
row = "31 ns"
wave = "0.0011"
band = "0.0053"
[[device_class.attention]]
dtype = "float64"
direction = "forward"
processors = 2
launch = "3.7 us"
pace = "0.19 ns"
pair = "0.3 ns"
row = "0.9 ns"
wave = "0.013"
band = "0.017"
[sources]
"level.nodes" = "made up"
"level.gpus" = "made up"
"device_class.g" = "made up"
"""


DEEP = """
name = "deep"
[[level]]
name = "islands"
size = 2
bandwidth = "1.3 GB/s"
latency = "70 us"
[[level]]
name = "nodes"
size = 1
bandwidth = "7 GB/s"
latency = "13 us"
[[level]]
name = "sockets"
size = 2
bandwidth = "31 GB/s"
latency = "0.7 us"
[[level]]
name = "cores"
size = 2
bandwidth = "97 GB/s"
latency = "0 s"
[[device_class]]
name = "core"
memory = "1 GiB"
bandwidth = "17 GB/s"
peaks = { float32 = "23 Gflop/s", float64 = "11 Gflop/s" }
[sources]
"level.islands" = "made up"
"level.nodes" = "made up"
"level.sockets" = "made up"
"level.cores" = "made up"
"device_class.core" = "made up"
"""

MACHINES = {"mixed": MIXED, "deep": DEEP, "measured": MEASURED}


@cache
def machine(name: str) -> Machine:
    """A machine of the files above (two kinds of nodes, a switch and measured operators; four levels), or one that
    everybody has.
    """
    if name not in MACHINES:
        return load_machine(name)
    with tempfile.TemporaryDirectory() as folder:
        (Path(folder) / f"{name}.toml").write_text(MACHINES[name], encoding="utf-8")
        return load_machine(f"{name}.toml", Path(folder))


def small(name: str, **options: int) -> Graph:
    """A model of the zoo at its smallest sizes."""
    sizes: dict[str, Any] = {**TINY[name], **options}
    return zoo(name, **sizes)


def chain(dtype: str = "float32") -> Graph:
    b = Builder("chain", dtype)
    x = b.contract("one", "b k, k n -> b n", b.input("x", (8, 12)), b.parameter("w1", (12, 16)))
    y = b.contract("two", "b n, n m -> b m", b.map("relu", "relu", x), b.parameter("w2", (16, 6)))
    return b.build(b.contract("three", "b m, m c -> b c", y, b.parameter("w3", (6, 4))))


def partial_sums() -> Graph:
    """Sums over parts that linear operators, sums again, and several readers ask for."""
    b = Builder("partial")
    s = b.contract("s", "i k, k j -> i j", b.input("x", (6, 8)), b.parameter("w", (8, 6)))
    t = b.map("t", "scale", s, text="i j -> j i", scale=2.0)
    u = b.map("u", "add", s, t)
    r = b.reduce("r", "i j -> i", u)
    return b.build(b.reduce("total", "i -> ", r), b.map("v", "multiply", u, u))


def extremes() -> Graph:
    """Maxima and minima of maxima, and of one scalar."""
    b = Builder("extremes", "float64")
    m = b.reduce("m", "b i j -> b i", b.input("x", (5, 6, 9)), Combine.MAX)
    n = b.reduce("n", "b i -> i", m, Combine.MIN)
    return b.build(b.map("d", "subtract", m, n, text="b i, i -> b i"), b.reduce("top", "i -> ", n, Combine.MAX))


def softmaxes() -> Graph:
    b = Builder("softmaxes")
    x = b.input("x", (4, 6, 8))
    p = b.normalise("p", "softmax", "b s t -> b s t", x, over=("t",))
    q = b.normalise("q", "layer_norm", "b s t, s t -> b s t", p, b.parameter("gamma", (6, 8)), over=("s", "t"))
    r = b.normalise("r", "rms_norm", "b s t -> b s t", q, over=("b",))
    return b.build(
        b.normalise("k", "top_k_mask", "b s t -> b s t", r, over=("t",), k=2),
        b.normalise("c", "cumulative_sum", "b s t -> b s t", r, over=("s",)),
    )


def convolution(stride: int, pad: int, dilation: int, pad_end: int) -> Graph:
    """Images read with halos by a convolution, a pool and another convolution."""
    b = Builder("convolution")
    x = b.convolution(
        "c1",
        b.input("x", (2, 3, 13, 10)),
        b.parameter("w1", (4, 3, 3, 3)),
        (stride, 1),
        (pad, pad),
        (dilation, 1),
        (pad_end, pad),
    )
    y = b.pool("pool", "max_pool", b.map("relu", "relu", x), (3, 2), (2, 1), (1, 0))
    return b.build(
        b.convolution("c2", y, b.parameter("w2", (2, 4, 2, 2))), b.pool("mean", "average_pool", y, (2, 2), (2, 2))
    )


def grouped() -> Graph:
    b = Builder("grouped")
    x = b.convolution("c", b.input("x", (2, 4, 2, 7, 5)), b.parameter("w", (4, 3, 2, 3, 3)), (1, 1), (1, 1))
    return b.build(b.reduce("mean", "b g o y x -> b g o", x, scale=1 / 35))


def embeddings() -> Graph:
    """Rows picked one by one and in bags, from one table that is read twice, and added back."""
    b = Builder("embeddings")
    table, ids = b.parameter("table", (12, 4)), b.input("ids", (6, 2), "int32")
    bag = b.embedding("bag", "v m, b q -> b m", table, ids)
    rows = b.embedding("rows", "v m, b q -> b q m", table, ids)
    axes = [Axis("v", 12), Axis("m", 4), Axis("b", 6, Combine.SUM)]
    added = b.operator(
        "added",
        "embedding_gradient",
        axes,
        [access(bag, "b", "m"), access(b.input("at", (6,), "int64"), "b")],
        ["v", "m"],
        {"rows": "v"},
    )
    return b.build(rows, added)


def pieces() -> Graph:
    """Concatenated, cut, padded, strided, and read where there is nothing."""
    b = Builder("pieces")
    x, y = b.input("x", (6, 5)), b.map("y", "relu", b.input("z", (4, 5)))
    joined = b.operator(
        "joined",
        "copy",
        [Axis("i", 10), Axis("j", 5)],
        [access(x, "i", "j"), access(y, Affine.axis("i").shift(-6), "j")],
        ["i", "j"],
    )
    tail = b.operator(
        "tail", "copy", [Axis("i", 4), Axis("j", 5)], [access(joined, Affine.axis("i").shift(6), "j")], ["i", "j"]
    )
    odd = b.operator(
        "odd",
        "copy",
        [Axis("i", 5), Axis("j", 2)],
        [access(joined, Affine.axis("i", 2).shift(1), Affine.axis("j", 3))],
        ["i", "j"],
    )
    padded = b.operator(
        "padded",
        "copy",
        [Axis("i", 8), Axis("j", 7)],
        [access(tail, Affine.axis("i").shift(-2), Affine.axis("j").shift(-1))],
        ["i", "j"],
    )
    beyond = b.operator(
        "beyond", "copy", [Axis("i", 3), Axis("j", 5)], [access(tail, Affine.axis("i").shift(4), "j")], ["i", "j"]
    )
    return b.build(odd, padded, beyond)


def nothing_wanted() -> Graph:
    """A partial sum of which the reader sees nothing: no phase is paid for."""
    b = Builder("nothing")
    s = b.contract("s", "i k, k j -> i j", b.input("x", (4, 8)), b.parameter("w", (8, 6)))
    return b.build(
        b.operator(
            "beyond", "copy", [Axis("i", 4), Axis("j", 6)], [access(s, Affine.axis("i").shift(4), "j")], ["i", "j"]
        )
    )


def diagonals() -> Graph:
    """One axis through two dimensions: of an input, of a result that is read so, and of a trace."""
    b = Builder("diagonals")
    s = b.contract("s", "i k, k j -> i j", b.input("x", (6, 4)), b.parameter("w", (4, 6)))
    d = b.map("d", "relu", s, text="i i -> i")
    return b.build(d, b.reduce("trace", "i i -> ", s), b.map("e", "add", s, d, text="i j, j -> i j"))


def kernels() -> Graph:
    """Opaque kernels of different work, one of which reads an operand whole, and views that read all."""
    b = Builder("kernels")
    x, w = b.input("x", (8, 6)), b.parameter("w", (6, 6))
    axes = [Axis("i", 8), Axis("j", 6, None, False)]
    one = b.operator(
        "one",
        "opaque",
        axes,
        [access(x, "i", "j"), Access(w, (Affine.everything(), Affine.axis("j")))],
        ["i", "j"],
        {"kernel": "a:b", "flops": 7},
    )
    two = b.operator(
        "two",
        "opaque",
        axes,
        [access(one, "i", "j"), Access(w, (Affine.everything(), Affine.axis("j")))],
        ["i", "j"],
        {"kernel": "a:c", "flops": 70001},
    )
    return b.build(b.map("z", "relu", b.view("flat", two, (4, 12))))


def positions() -> Graph:
    """Operators without inputs, comparisons, choices, casts: every element type."""
    b = Builder("positions")
    i = b.iota("i", (6, 4), 0, dtype="int64")
    mask = b.map("mask", "less", i, b.input("n", (6, 4), "int64"))
    half = b.map("half", "cast", b.input("x", (6, 4)), dtype="float16")
    wide = b.map("wide", "cast", half, dtype="float64")
    tiny = b.map("tiny", "cast", wide, dtype="int8")
    brain = b.map("brain", "cast", wide, dtype="bfloat16")
    picked = b.map("picked", "where", mask, half, b.input("y", (6, 4), "float16"), dtype="float16")
    return b.build(b.map("sum", "add", picked, picked, dtype="float16"), tiny, brain)


def scalars() -> Graph:
    b = Builder("scalars")
    s = b.reduce("s", "i -> ", b.input("x", (6,)))
    t = b.map("t", "multiply", s, s)
    return b.build(b.map("y", "multiply", b.input("z", (4, 3)), t, text="i j, -> i j"), t)


def ones() -> Graph:
    """Axes of one element beside axes that can be split."""
    b = Builder("ones")
    x = b.contract("x", "a b k, k c -> a b c", b.input("i", (1, 4, 1)), b.parameter("w", (1, 6)))
    return b.build(
        b.normalise("p", "softmax", "a b c -> a b c", x, over=("a",)), b.reduce("s", "a b c -> b c", x, Combine.MAX)
    )


def pairs() -> Graph:
    b = Builder("pairs", "float64")
    x, y = b.input("x", (6, 4)), b.input("y", (4, 8))
    axes = [Axis("i", 6), Axis("j", 8), Axis("k", 4, Combine.SUM)]
    s = b.operator("s", "product_sum", axes, [access(x, "i", "k"), access(y, "k", "j")] * 2, ["i", "j"])
    return b.build(
        b.map("n", "batch_norm", s, *(b.parameter(f"p{i}", (8,)) for i in range(4)), text="i j, j, j, j, j -> i j")
    )


def fused() -> Graph:
    """Products with epilogues: of the sums themselves, with an operand of the result's shape, with one along an axis."""
    b = Builder("fused")
    x, w, bias = b.input("x", (8, 6)), b.parameter("w", (6, 4)), b.parameter("b", (4,))
    axes = [Axis("i", 8), Axis("j", 4), Axis("k", 6, Combine.SUM, splittable=False)]
    reads = [access(x, "i", "k"), access(w, "k", "j")]
    y = b.operator("y", "fused_product", axes, reads, ["i", "j"], {"epilogue": ("gelu",), "factors": 2})
    more = [*reads, access(bias, "j"), access(y, "i", "j")]
    attributes: dict[str, Value] = {"epilogue": ("add", "relu", "relu_gradient"), "factors": 2}
    return b.build(b.operator("z", "fused_product", axes, more, ["i", "j"], attributes))


def unread() -> Graph:
    """A result that nobody reads and nobody wants, an input that has several readers and is wanted."""
    b = Builder("unread")
    x = b.input("x", (8, 6))
    y = b.map("y", "relu", x)
    b.contract("large", "i j, k j -> i k", y, b.parameter("w", (64, 6)))
    return b.build(b.map("z", "add", x, y), x)


def moments() -> Graph:
    """Stored values whose next values are read before the step ends, and are wanted by the user too."""
    b = Builder("moments")
    w, m, x = b.parameter("w", (6, 4)), b.parameter("m", (6, 4)), b.input("x", (8, 6))
    g = b.contract("g", "b i, b j -> i j", x, b.contract("y", "b i, i j -> b j", x, w))
    after = b.map("m.next", "adam_moment1", m, g)
    new = b.map("w.next", "sgd_update", w, after)
    b.map("norm", "multiply", after, after)
    return replace(b.build("norm", after), state=(("w", new), ("m", after))).check()


def attentions(ahead: int | None = None, behind: int | None = None, block: int | None = None) -> Graph:
    """Grouped queries with a band, whose result and log-sum-exp two readers want."""
    b = Builder("attentions")
    q, k, v = b.input("q", (2, 6, 2, 3, 4)), b.input("k", (2, 8, 2, 4)), b.input("v", (2, 8, 2, 5))
    a = attention(
        b, "a", "b s h g d, b t h d, b t h e -> b s h g e", q, k, v, query="s", ahead=ahead, behind=behind, block=block
    )
    l = lse_of(b, "l", a)
    return b.build(b.map("relu", "relu", a), b.map("scaled", "scale", l, scale=2.0), a)


def trained_attention() -> Graph:
    """A step of causal attention, one operator per gradient."""
    b = Builder("trained")
    x = b.input("x", (2, 6, 4))
    q, k, v = (b.contract(n, "b s i, i d -> b s d", x, b.parameter(f"w{n}", (4, 5))) for n in "qkv")
    return training_step(b.build(attention(b, "a", "b s d, b t d, b t e -> b s e", q, k, v, query="s", ahead=0)), "sgd")


def masked_attention() -> Graph:
    """A mask per head, no positions."""
    b = Builder("masked", "float64")
    q, k, v = b.input("q", (4, 6, 4)), b.input("k", (4, 6, 4)), b.input("v", (4, 6, 4))
    return b.build(
        attention(b, "a", "h s d, h t d, h t e, h s t -> h s e", q, k, v, b.input("m", (4, 6, 6), "bool"), scale=0.5)
    )


def packed_gradients() -> Graph:
    """Gradients of grouped queries as one operator, out of one step of training."""
    b = Builder("packed")
    q, k, v = b.parameter("q", (2, 4, 2, 3, 4)), b.parameter("k", (2, 6, 2, 4)), b.parameter("v", (2, 6, 2, 2))
    a = attention(b, "a", "b s h g d, b t h d, b t h e -> b s h g e", q, k, v, query="s", ahead=2)
    step = training_step(with_fused_gradients(b.build(a)), "sgd")
    (op,) = (o for o in step.operators if o.function == "attention_gradients")
    given = {x.tensor: replace(step.tensor(x.tensor), role=Role.INPUT) for x in op.inputs}
    return Graph("packed", (*given.values(), step.tensor(op.output.tensor)), (op,), (op.output.tensor,)).check()


@dataclass(frozen=True)
class Case:
    """`slow`: left to `make test-slow`."""

    graph: Callable[[], Graph]
    machine: str = "localhost:4"
    space: str = "complete"
    slow: bool = False

    def planning(self) -> Planning:
        """The problem that the planner builds."""
        return build(self.graph(), machine(self.machine), space(self.space), LIMIT)


def _array(name: str, **shapes: tuple[int, ...]) -> Callable[[], Graph]:
    return lambda: trace(getattr(array_programs, name), arguments=shapes).graph


CASES: dict[str, Case] = {
    "matmul chain": Case(chain, "cloud-a100:2x2"),
    "loop over a batch": Case(loop_cases.lstm, "cloud-a100:2x2", "complete,uneven"),
    "loop of rows, some lacked by its weights": Case(loop_cases.selective, "cloud-a100:2x3", "complete,uneven"),
    "loop on a mixed machine": Case(lambda: loop_cases.lstm(dtype="float32"), "mixed"),
    "matmul chain in doubles": Case(lambda: chain("float64"), "summit:2x1x3", "complete,uneven"),
    "matmul chain, mixed machine": Case(chain, "mixed"),
    "matmul chain, mixed machine, uneven": Case(chain, "mixed", "two-per-level,uneven"),
    "matmul chain on four levels": Case(chain, "deep", "one-per-level"),
    "matmul chain on one level of eight": Case(chain, "localhost:8", "one-per-level"),
    "operations near 2**62": Case(
        lambda: small("linear-training", batch=1 << 20, inputs=1 << 10, outputs=1 << 10), "cloud-a100:2x2"
    ),
    "uneven perceptron on 7": Case(lambda: small("mlp-uneven"), "localhost:7", "complete,uneven"),
    "uneven perceptron on 2x3": Case(lambda: small("mlp-uneven"), "cloud-a100:2x3", "complete,uneven"),
    "partial sums": Case(partial_sums, "cloud-a100:2x2"),
    "partial sums, uneven": Case(partial_sums, "localhost:5", "complete,uneven"),
    "extremes": Case(extremes, "cloud-a100:2x3", "complete,uneven"),
    "softmax and norms": Case(softmaxes, "cloud-a100:2x2", "two-per-level"),
    "softmax and norms on 7": Case(softmaxes, "localhost:7", "one-per-level,uneven"),
    "convolution, strided and padded": Case(lambda: convolution(2, 1, 1, 0), "localhost:3", "complete,uneven"),
    "convolution, dilated": Case(lambda: convolution(1, 0, 2, 0), "localhost:3", "complete,uneven"),
    "convolution with halos": Case(lambda: convolution(1, 1, 1, 1), "localhost:5", "complete,uneven"),
    "grouped convolution": Case(grouped, "cloud-a100:2x2", "two-per-level"),
    "embeddings": Case(embeddings, "cloud-a100:2x3"),
    "embeddings, uneven": Case(embeddings, "localhost:5", "complete,uneven"),
    "pieces": Case(pieces, "localhost:6", "complete,uneven"),
    "pieces on two levels": Case(pieces, "cloud-a100:2x3", "complete,uneven"),
    "nothing wanted": Case(nothing_wanted, "cloud-a100:2x2"),
    "diagonals": Case(diagonals, "cloud-a100:2x3"),
    "opaque kernels": Case(kernels, "cloud-a100:2x2"),
    "positions and element types": Case(positions, "cloud-a100:2x2"),
    "scalars": Case(scalars, "cloud-a100:2x2"),
    "scalars on a mixed machine": Case(scalars, "mixed"),
    "axes of one element": Case(ones, "cloud-a100:2x2", "complete,uneven"),
    "pairs of products": Case(pairs, "cloud-a100:2x2"),
    "an unread result": Case(unread, "cloud-a100:2x2"),
    "epilogues": Case(fused, "cloud-a100:2x2"),
    "moments that are read": Case(moments, "localhost:6"),
    "attention operator": Case(attentions, "cloud-a100:2x2"),
    "causal attention operator": Case(lambda: attentions(ahead=2), "cloud-a100:2x2"),
    "causal attention operator, mixed machine": Case(lambda: attentions(ahead=2), "mixed"),
    "attention operator in a window, uneven": Case(
        lambda: attentions(ahead=1, behind=2), "localhost:3", "complete,uneven"
    ),
    "attention operator in blocks, uneven": Case(
        lambda: attentions(ahead=0, block=4), "localhost:3", "complete,uneven"
    ),
    "gradients of attention as one operator": Case(packed_gradients, "cloud-a100:2x2"),
    "gradients of attention as one operator, uneven": Case(packed_gradients, "localhost:3", "two-per-level,uneven"),
    "masked attention operator": Case(masked_attention, "cloud-a100:2x3", "two-per-level,uneven"),
    "attention": Case(lambda: small("attention", batch=2, tokens=4, width=8, heads=2), "cloud-a100:2x2"),
    "attention, uneven": Case(
        lambda: small("attention", batch=3, tokens=5, width=8, heads=2), "localhost:3", "complete,uneven"
    ),
    "perceptron with sgd": Case(lambda: training_step(small("mlp-unity"), "sgd"), "cloud-a100:2x2"),
    "perceptron with adam": Case(lambda: training_step(small("mlp-unity"), "adam"), "localhost:3", "complete,uneven"),
    "perceptron with adamw, clipped": Case(lambda: training_step(small("mlp-unity"), "adamw:clip=1"), "cloud-a100:2x2"),
    "perceptron with momentum and decay": Case(
        lambda: training_step(small("mlp-unity"), "sgd:momentum=0.9,nesterov=1,decay=0.1"),
        "localhost:3",
        "complete,uneven",
    ),
    "perceptron in mixed precision": Case(
        lambda: build_step(small("mlp-unity"), "adam", precision="bf16-mixed").graph, "cloud-a100:2x2"
    ),
    "perceptron in half precision, scaled": Case(
        lambda: build_step(small("mlp-unity"), "sgd", precision="fp16-master:reduce=float16").graph,
        "localhost:3",
        "complete,uneven",
    ),
    "perceptron with lion": Case(lambda: training_step(small("mlp-unity"), "lion:decay=0.1"), "localhost:4"),
    "perceptron with rmsprop": Case(lambda: training_step(small("mlp-unity"), "rmsprop:momentum=0.9"), "localhost:4"),
    "perceptron with adagrad": Case(lambda: training_step(small("mlp-unity"), "adagrad"), "localhost:4"),
    "perceptron with muon": Case(lambda: training_step(small("mlp-unity"), "muon:iterations=1"), "cloud-a100:2x2"),
    "perceptron with adafactor, uneven": Case(
        lambda: training_step(small("mlp-unity"), "adafactor"), "localhost:3", "complete,uneven"
    ),
    "convolutions with sgd": Case(
        lambda: training_step(small("conv-stack", batch=2, size=9, channels=2), "sgd"), "cloud-a100:2x2"
    ),
    "convolutions with sgd, uneven": Case(
        lambda: training_step(small("conv-stack", batch=2, size=9, channels=2), "sgd"), "localhost:3", "complete,uneven"
    ),
    "attention with adam": Case(lambda: training_step(small("attention"), "adam"), "localhost:2"),
    "recommendation with adam": Case(lambda: training_step(small("dlrm"), "adam"), "localhost:2"),
    "recommendation with sgd, uneven": Case(
        lambda: training_step(small("xdl"), "sgd"), "localhost:3", "complete,uneven"
    ),
    "array program: jacobi": Case(_array("jacobi", u=(9, 8)), "localhost:3", "complete,uneven"),
    "array program: softmax": Case(_array("softmax", x=(2, 2, 4, 6)), "cloud-a100:2x2"),
    "convolution, dilated, on two levels": Case(
        lambda: convolution(1, 0, 2, 0), "cloud-a100:2x2", "one-per-level,uneven", slow=True
    ),
    "attention on four levels": Case(lambda: small("attention"), "deep", "one-per-level", slow=True),
    "encoder with adam, recomputed": Case(
        lambda: build_step(small("bert-tiny", layers=1), "adam", recompute="all").graph, "cloud-a100:2x2", slow=True
    ),
    "measured chain": Case(chain, "measured"),
    "measured chain, uneven": Case(chain, "measured", "complete,uneven", slow=True),
    "measured epilogues": Case(fused, "measured"),
    "measured partial sums": Case(partial_sums, "measured", "complete,uneven"),
    "measured softmax and norms": Case(softmaxes, "measured", "one-per-level"),
    "measured attention": Case(attentions, "measured", "complete,uneven"),
    "measured causal attention": Case(lambda: attentions(ahead=2), "measured", "complete,uneven"),
    "measured attention in blocks": Case(
        lambda: attentions(ahead=0, block=4), "measured", "complete,uneven", slow=True
    ),
    "measured masked attention": Case(masked_attention, "measured", "two-per-level,uneven"),
    "measured gradients of attention as one operator": Case(packed_gradients, "measured"),
    "measured attention with sgd": Case(trained_attention, "measured", "one-per-level,uneven"),
    "measured transformer with adam": Case(
        lambda: training_step(small("attention"), "adam"), "measured", "one-per-level", slow=True
    ),
    "encoder with sgd, uneven": Case(
        lambda: training_step(small("transformer"), "sgd"), "localhost:3", "complete,uneven", slow=True
    ),
    "decoder": Case(lambda: small("llama"), "cloud-a100:2x2", slow=True),
    "experts with adam": Case(lambda: training_step(small("moe"), "adam"), "localhost:2", slow=True),
    "residual network with sgd": Case(
        lambda: training_step(small("resnet101"), "sgd"), "localhost:3", "complete,uneven", slow=True
    ),
    "recurrent network with adam": Case(lambda: training_step(small("rnnlm"), "adam"), "cloud-a100:2x2", slow=True),
    "inception": Case(lambda: small("inception-v3"), "localhost:5", "complete,uneven", slow=True),
    "vision transformer": Case(lambda: small("vit"), "cloud-a100:2x3", "two-per-level,uneven", slow=True),
    "attention on 2x4": Case(
        lambda: training_step(small("attention"), "adam"), "cloud-a100:2x4", "two-per-level", slow=True
    ),
    "grouped residual network": Case(lambda: small("resnext50"), "cloud-a100:2x2", slow=True),
}
