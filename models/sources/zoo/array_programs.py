"""Builds array programs: plain NumPy functions that are planned, split and executed as they stand.

The programs of the thesis on automatic partitioning of array programs (chapter 8) and what its public code could not
do: split softmax, both output projections of attention, fused projections, halos.  Each function runs on NumPy arrays
unchanged; the shapes in the decorators are the sizes that `shardproof plan models/sources/zoo/array_programs.py:NAME`
plans.

>>> from ..numpy.trace import trace
>>> [op.name for op in trace(jacobi, arguments={"u": (8, 8)}).graph.operators][:4]
['vertical', 'horizontal', 'add', 'u_2']
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np
import numpy.typing as npt
from numpy.lib.stride_tricks import sliding_window_view

from ..numpy.program import ArraySpec, parameter, program

Array = npt.NDArray[np.float64]
Integers = npt.NDArray[np.int32]

SWEEPS = 4
"""Sweeps of `jacobi`."""


@program(a=(4096, 4096), b=(4096, 4096))
def matmul(a: Array, b: Array) -> Array:
    """Matrix product (thesis 8.1.1), axes m, n, k; all of its schedules are degrees of these three."""
    return a @ b


@program(row=ArraySpec((16385,), "int32"), col=ArraySpec((16384, 32), "int32"), val=(16384, 32), x=(16384,))
def spmv(row: Integers, col: Integers, val: Array, x: Array) -> Array:
    """Sparse matrix-vector product (8.1.2) with CSR row pointers and entries padded to the longest row.

    Row i has `row[i+1] - row[i]` entries.  A rank's rows need one pointer more than it has rows, so that neighbours
    read overlapping pieces of `row`; index sets of `row`, `col` and `val` are exact intervals.  Which elements of `x`
    are read depends on data: all of it is (over-approximation, 4.7).
    """
    length = row[1:] - row[:-1]
    inside = np.arange(val.shape[1]) < length[:, None]
    products = np.where(inside, val * x[col], 0.0)
    return np.add.reduce(products, axis=1)  # type: ignore[no-any-return]


def spmv_csr(row: Integers, col: Integers) -> Callable[[Array, Array], Array]:
    """The same product for a matrix whose structure is known when the program is traced: entries packed, `val` of
    shape (entries,).
    """

    def product(val: Array, x: Array) -> Array:
        return np.add.reduceat(val * x[col], row[:-1])

    entries, columns = int(row[-1]), int(col.max()) + 1
    return program(val=(entries,), x=(columns,))(product)


@program(x=(8, 16, 512, 512))
def softmax(x: Array) -> Array:
    """Softmax over the last axis (8.1.3); splitting that axis all-reduces the two row statistics."""
    row_max = np.maximum.reduce(x, axis=-1, keepdims=True)
    exponent = np.exp(x - row_max)
    row_sum = np.add.reduce(exponent, axis=-1, keepdims=True)
    return exponent / row_sum


@program(
    x=(8, 512, 1024),
    w_q=parameter(1024, 16, 64),
    w_k=parameter(1024, 16, 64),
    w_v=parameter(1024, 16, 64),
    w_o=parameter(1024, 1024),
)
def attention(x: Array, w_q: Array, w_k: Array, w_v: Array, w_o: Array) -> Array:
    """Multi-head self-attention (8.1.4); Megatron-LM splits h.  The output projection may be split by heads or by
    data.
    """
    q = np.einsum("bik,khj->bhij", x, w_q)
    k = np.einsum("bik,khj->bhij", x, w_k)
    v = np.einsum("bik,khj->bhij", x, w_v)
    scores = np.einsum("bhik,bhjk->bhij", q, k) / np.sqrt(w_q.shape[2])
    values = np.einsum("bhik,bhkj->bhij", softmax(scores), v)
    joined = np.einsum("bhse->bshe", values).reshape(x.shape)
    return np.einsum("bik,kj->bij", joined, w_o)  # type: ignore[no-any-return]


@program(x=(8, 512, 1024), w_qkv=parameter(1024, 3072), w_o=parameter(1024, 1024))
def fused_qkv(x: Array, w_qkv: Array, w_o: Array, heads: int = 16) -> Array:
    """Attention with one projection for queries, keys and values: the case that the thesis lists as failing.

    The head axis is a digit of the flat columns, 3072 = 3 x 16 x 64; splitting it is a block-cyclic layout of the flat
    axis.
    """
    b, s, e = x.shape
    qkv = x @ w_qkv
    q, k, v = (part.reshape(b, s, heads, e // heads).transpose(0, 2, 1, 3) for part in np.split(qkv, 3, axis=-1))
    scores = q @ k.swapaxes(-1, -2) / np.sqrt(e // heads)
    values = softmax(scores) @ v
    return values.transpose(0, 2, 1, 3).reshape(b, s, e) @ w_o


@program(x=(512,), y=(512,), z=(512,))
def monte_carlo(x: Array, y: Array, z: Array) -> Array:
    """Monte-Carlo integral of exp(-(x^2 + y^2 + z^2)) (section 3.2): the samples are all triples of three random sets.

    The iteration space, 512^3 points, is larger than any tensor; every one of its axes can be split.
    """
    f, g, h = np.exp(-x * x), np.exp(-y * y), np.exp(-z * z)
    total = np.einsum("i,j,k->", f, g, h)
    return total / (x.size * y.size * z.size)  # type: ignore[no-any-return]


@program(u=(4096, 4096))
def jacobi(u: Array) -> Array:
    """Jacobi sweeps of the Laplace equation, zero boundary: every sweep reads a halo of one row or column."""
    for _ in range(SWEEPS):
        p = np.pad(u, 1)
        vertical = p[:-2, 1:-1] + p[2:, 1:-1]
        horizontal = p[1:-1, :-2] + p[1:-1, 2:]
        u = 0.25 * (vertical + horizontal)
    return u


@program(u=(4096, 4096))
def jacobi_in_place(u: Array) -> Array:
    """The same with a fixed boundary, written in place."""
    u = u.copy()
    for _ in range(SWEEPS):
        u[1:-1, 1:-1] = 0.25 * (u[:-2, 1:-1] + u[2:, 1:-1] + u[1:-1, :-2] + u[1:-1, 2:])
    return u


def convolution(x: Array, w: Array, stride: int = 1) -> Array:
    """3x3 convolution of `x[b, c, y, x]` with `w[o, c, k, l]`, zero padding, then relu."""
    rim = w.shape[2] // 2
    windows = sliding_window_view(np.pad(x, ((0, 0), (0, 0), (rim, rim), (rim, rim))), w.shape[2:], axis=(2, 3))
    return np.maximum(np.einsum("bcyxkl,ockl->boyx", windows[:, :, ::stride, ::stride], w), 0.0)  # type: ignore[no-any-return]


@program(x=(8, 3, 224, 224), w1=parameter(64, 3, 3, 3), w2=parameter(64, 64, 3, 3), w3=parameter(128, 64, 3, 3))
def convolutions(x: Array, w1: Array, w2: Array, w3: Array) -> Array:
    """Three convolution layers, the last with stride 2: splitting rows or columns exchanges halos."""
    return convolution(convolution(convolution(x, w1), w2), w3, stride=2)


PROGRAMS: Sequence[Callable[..., object]] = (
    matmul,
    spmv,
    softmax,
    attention,
    fused_qkv,
    monte_carlo,
    jacobi,
    jacobi_in_place,
    convolutions,
)
"""Those with sizes of their own; `spmv_csr` makes one from a matrix."""
