"""Translates complex values as pairs of real tensors, and Fourier transforms as products with their
matrices.

    (a + i b) (c + i d)          a c - b d,  a d + b c
    X[k] = sum_n x[n] w^(n k)    w = exp(-+ 2 pi i / N): cosines and sines up to `DIRECT`, beyond that in steps,

    n = N2 n1 + n2,  k = k1 + N1 k2:   X = sum_n2 w^(n2 k1) w2^(n2 k2) sum_n1 w1^(n1 k1) x        N1 N2 = N

so that a transform of length N costs N (N1 + N2 + ..) products, and is priced as what is computed.  What is linear over
the reals (views, slices, sums, additions) is done to both parts by the real operator.

Source: Cooley and Tukey, An algorithm for the machine calculation of complex Fourier series, 1965.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from math import isqrt, prod, sqrt
from typing import Final

import numpy as np

from ...program.index import Access, Affine, Axis, Combine
from ..building.flat import Unsupported, concatenate, matrix_product, part_of, pointwise, reorder
from .context import Argument, Constant, Context, Handler, Node, Ref, dimension
from .layout import flip_dimension

DIRECT: Final = 64
"""Longest transform that is one product."""

Held = tuple[str, tuple[int, ...]]
"""A tensor and its shape."""

Pair = tuple[Held, Held | None]
"""Real and imaginary part; None is zero."""

_LINEAR: Final = frozenset(
    {
        "view",
        "_unsafe_view",
        "reshape",
        "unsqueeze",
        "squeeze",
        "permute",
        "transpose",
        "t",
        "expand",
        "repeat",
        "clone",
    }
    | {"slice", "select", "split_with_sizes", "split", "unbind", "cat", "stack", "constant_pad_nd", "roll", "flip"}
    | {"alias", "detach", "contiguous", "add", "sub", "neg", "sum", "mean", "slice_scatter", "select_scatter", "copy"}
    | {"lift_fresh_copy", "view_copy", "index_select", "_to_copy", "div"}
)


def is_complex(c: Context, node: Node) -> bool:
    """Whether the node reads or makes complex values."""
    flat = [v for a in node.arguments.values() for v in (a if isinstance(a, tuple) else (a,))]
    kinds = [*node.dtypes, *(c.dtypes.get(v, "") for v in flat if isinstance(v, Ref))]
    return any(k.startswith("complex") for k in kinds)


def convert(c: Context, node: Node, real: Mapping[str, Handler]) -> None:
    """Convert a node with complex values; `real`: the handlers of real ones.  Raises `Unsupported`."""
    kind = node.kind.removeprefix("aten.").partition(".")[0]
    if kind in _HANDLERS:
        _HANDLERS[kind](c, node)
    elif kind == "mul" and all(isinstance(node.arguments[k], Ref) for k in ("self", "other")):
        _multiplied(c, node)
    elif (kind in _LINEAR or kind == "mul") and not (kind == "div" and _complex(c, node.arguments["other"])):
        _each(c, node, real[kind])
    else:
        raise Unsupported("complex numbers")


def _complex(c: Context, value: Argument) -> bool:
    return isinstance(value, Ref) and c.dtypes[value].startswith("complex")


def _real_type(dtype: str) -> str:
    return {"complex64": "float32", "complex128": "float64"}.get(dtype, dtype)


def _parts(c: Context, value: Ref) -> tuple[Ref, Ref]:
    """The parts of a value, as values of their own."""
    real, imaginary = (Ref(f"{value.node}/{k}", value.result) for k in ("real", "imaginary"))
    if not _complex(c, value):
        c.shapes[imaginary], c.dtypes[imaginary] = c.shapes[value], c.dtypes[value]
        c.constants[imaginary] = np.broadcast_to(np.zeros(()), c.shapes[value])
        return value, imaginary
    for part in (real, imaginary):
        c.shapes[part], c.dtypes[part] = c.shapes[value], _real_type(c.dtypes[value])
    if real in c.values or real in c.constants:
        return real, imaginary
    if value in c.constants:
        c.constants[real], c.constants[imaginary] = c.constants[value].real, c.constants[value].imag
    elif value.node in c.weights:
        _stored(c, value, (real, imaginary))
    return real, imaginary


def _stored(c: Context, value: Ref, parts: tuple[Ref, Ref]) -> None:
    """A complex weight is stored as PyTorch stores it: the parts side by side in a last dimension of two."""
    name, shape, dtype = c.weights[value.node]
    if name not in c.g.tensors:
        c.g.parameter(name, (*shape, 2), _real_type(dtype))
    node = Node("aten.view_as_real", value.node, "", False, {}, (shape,), (_real_type(dtype),))
    c.places[node.name] = node
    for k, part in enumerate(parts):
        c.values[part] = _picked(c, node, name, k)


def _picked(c: Context, node: Node, tensor: str, k: int) -> str:
    """Element `k` of the last dimension."""
    shape = c.g.tensors[tensor].shape[:-1]
    names = [f"i{d}" for d in range(len(shape))] or ["n"]
    axes = [Axis(a, n) for a, n in zip(names, shape or (1,), strict=True)]
    index = (*(Affine.axis(a) for a in names[: len(shape)]), Affine((), k))
    return c.operator(node, ("real", "imaginary")[k], "copy", axes, [Access(tensor, index)], names)


def _pair(c: Context, value: Ref) -> Pair:
    if not _complex(c, value):
        return c.operand(value), None
    real, imaginary = _parts(c, value)
    return c.operand(real), c.operand(imaginary)


def _put(c: Context, node: Node, real: str, imaginary: str) -> None:
    for part, tensor in (("real", real), ("imaginary", imaginary)):
        ref = Ref(f"{node.name}/{part}")
        c.values[ref], c.shapes[ref], c.dtypes[ref] = tensor, node.shape, _real_type(node.dtype)


def _each(c: Context, node: Node, handler: Handler) -> None:
    """The same operator on both parts; a number that is added concerns the real one."""
    for k, part in enumerate(("real", "imaginary")):

        def of(value: Argument, k: int = k) -> Argument:
            if isinstance(value, Ref):
                return _parts(c, value)[k]
            return tuple(map(of, value)) if isinstance(value, tuple) else value

        given = {n: of(v) for n, v in node.arguments.items()}
        added = node.kind.startswith(("aten.add.", "aten.sub."))
        if k == 1 and added and not isinstance(given["other"], Ref):
            given["other"] = 0.0
        if "dtype" in given and isinstance(given["dtype"], str):
            given["dtype"] = _real_type(given["dtype"])
        own = replace(node, name=f"{node.name}/{part}", arguments=given, dtypes=tuple(map(_real_type, node.dtypes)))
        c.places[own.name] = own
        for r, (shape, dtype) in enumerate(zip(own.shapes, own.dtypes, strict=True)):
            c.shapes[Ref(own.name, r)], c.dtypes[Ref(own.name, r)] = shape, dtype
            if Ref(node.name, r) in c.read:
                c.read |= {Ref(own.name, r)}
        handler(c, own)


def _combined(
    c: Context,
    node: Node,
    part: str,
    left: Pair,
    right: Pair,
    product: Callable[[str, Held, Held], str],
    shape: tuple[int, ...],
) -> tuple[str, str]:
    """Parts of a product of pairs."""
    (a, b), (x, y) = left, right
    real, imaginary = product(f"{part}real", a, x), None
    if b is not None and y is not None:
        both = product(f"{part}both", b, y)
        real = pointwise(c, node, f"{part}real_part", "subtract", [(real, shape), (both, shape)])
    if y is not None:
        imaginary = product(f"{part}imaginary", a, y)
    if b is not None:
        crossed = product(f"{part}crossed", b, x)
        imaginary = (
            crossed
            if imaginary is None
            else pointwise(c, node, f"{part}imaginary_part", "add", [(imaginary, shape), (crossed, shape)])
        )
    if imaginary is None:
        raise Unsupported("two real factors")
    return real, imaginary


def _multiplied(c: Context, node: Node) -> None:
    left, right = _pair(c, node.ref("self")), _pair(c, node.ref("other"))
    made = _combined(c, node, "", left, right, lambda p, u, v: pointwise(c, node, p, "multiply", [u, v]), node.shape)
    _put(c, node, *made)


def _matrix(c: Context, node: Node) -> None:
    left, right = _pair(c, node.ref("self")), _pair(c, node.ref("mat2"))
    _put(c, node, *_combined(c, node, "", left, right, lambda p, u, v: matrix_product(c, node, p, u, v), node.shape))


def _made(c: Context, node: Node) -> None:
    (real, _), (imaginary, _) = (c.operand(node.ref(k)) for k in ("real", "imag"))
    _put(c, node, real, imaginary)


def _polar(c: Context, node: Node) -> None:
    size, angle = (c.operand(node.ref(k)) for k in ("abs", "angle"))
    turned_by = [pointwise(c, node, f, f, [angle]) for f in ("cos", "sin")]
    real, imaginary = (
        pointwise(c, node, f"{p}_part", "multiply", [size, (t, angle[1])])
        for p, t in zip(("real", "imaginary"), turned_by, strict=True)
    )
    _put(c, node, real, imaginary)


def _conjugated(c: Context, node: Node) -> None:
    real, imaginary = (c.operand(v) for v in _parts(c, node.ref("self")))
    _put(c, node, real[0], pointwise(c, node, "negate", "negate", [imaginary]))


def _as_real(c: Context, node: Node) -> None:
    parts = [c.operand(v) for v in _parts(c, node.ref("self"))]
    columns = [c.view(node, "column", t, (*s, 1)) for t, s in parts]
    c.put(node, concatenate(c, node, "", columns, len(node.shape) - 1))


def _as_complex(c: Context, node: Node) -> None:
    tensor = c.tensor(node.ref("self"))
    _put(c, node, _picked(c, node, tensor, 0), _picked(c, node, tensor, 1))


def _one(k: int) -> Handler:
    def part(c: Context, node: Node) -> None:
        c.alias(node, _parts(c, node.ref("self"))[k])

    return part


def _absolute(c: Context, node: Node) -> None:
    squares = [pointwise(c, node, "square", "power", [c.operand(v)], exponent=2.0) for v in _parts(c, node.ref("self"))]
    total = pointwise(c, node, "sum", "add", [(t, node.shape) for t in squares])
    c.put(node, pointwise(c, node, "", "sqrt", [(total, node.shape)]))


def _filled(c: Context, node: Node) -> None:
    """Memory that is not set, or set to a real number."""
    value = node.arguments.get("fill_value", 0.0)
    if not isinstance(value, (int, float)):
        raise Unsupported("complex numbers")
    c.constants[Ref(node.name)] = np.broadcast_to(np.asarray(complex(value)), node.shape)


def _constant(c: Context, node: Node, name: str, contents: Constant, dtype: str) -> Held:
    ref = Ref(f"{node.name}/{name}")
    c.constants[ref], c.shapes[ref], c.dtypes[ref] = contents, contents.shape, dtype
    return c.operand(ref)


def _along(c: Context, node: Node, part: str, x: Held, k: int, matrix: Held) -> str:
    """sum_n x[.., n, ..] matrix[n, k]."""
    names = [f"i{d}" for d in range(len(x[1]))]
    out = ["k" if d == k else a for d, a in enumerate(names)]
    extents = {**dict(zip(names, x[1], strict=True)), "k": matrix[1][1]}
    axes = [*(Axis(a, extents[a]) for a in out), Axis(names[k], x[1][k], Combine.SUM)]
    reads = [Access(x[0], tuple(map(Affine.axis, names))), Access(matrix[0], (Affine.axis(names[k]), Affine.axis("k")))]
    return c.operator(node, part, "product", axes, reads, out)


def _wave(n: int, rows: int, columns: int, sign: int) -> tuple[Constant, Constant]:
    """Cosines and signed sines of 2 pi i j / n; the multiple is reduced first, so that angles are exact."""
    turns = (np.arange(rows)[:, None] * np.arange(columns) % n) * (2 * np.pi / n)
    return np.cos(turns), sign * np.sin(turns)


def _transformed(c: Context, node: Node, x: Pair, k: int, sign: int, dtype: str) -> Pair:
    """The discrete Fourier transform of a pair along dimension k."""
    shape = x[0][1]
    n = shape[k]
    first = next((d for d in range(isqrt(n), 1, -1) if n % d == 0), 1) if n > DIRECT else 1
    if first == 1:
        cosines, sines = _wave(n, n, n, sign)
        waves: Pair = (
            _constant(c, node, f"cos{n}{sign}", cosines, dtype),
            _constant(c, node, f"sin{n}{sign}", sines, dtype),
        )
        real, imaginary = _combined(c, node, "", x, waves, lambda p, u, v: _along(c, node, p, u, k, v), shape)
        return (real, shape), (imaginary, shape)
    second = n // first
    digits = (*shape[:k], first, second, *shape[k + 1 :])
    split: Pair = _moved(x, lambda t: (c.view(node, "digits", t, digits), digits))
    inner = _transformed(c, node, split, k, sign, dtype)
    spread = (first, second, *[1] * (len(shape) - k - 1))
    cosines, sines = (w.reshape(spread) for w in _wave(n, first, second, sign))
    factors: Pair = (
        _constant(c, node, f"twiddle_cos{n}{sign}", cosines, dtype),
        _constant(c, node, f"twiddle_sin{n}{sign}", sines, dtype),
    )
    real, imaginary = _combined(
        c, node, "twiddle.", inner, factors, lambda p, u, v: pointwise(c, node, p, "multiply", [u, v]), digits
    )
    outer = _transformed(c, node, ((real, digits), (imaginary, digits)), k + 1, sign, dtype)
    order = [*range(k), k + 1, k, *range(k + 2, len(digits))]
    return _moved(outer, lambda t: (c.view(node, "merge", reorder(c, node, "order", t, order), shape), shape))


def _moved(x: Pair, move: Callable[[str], Held]) -> Pair:
    return move(x[0][0]), None if x[1] is None else move(x[1][0])


def _scale(node: Node, shape: Sequence[int], dims: Sequence[int]) -> float:
    count = prod(shape[k] for k in dims)
    return {0: 1.0, 1: 1.0 / sqrt(count), 2: 1.0 / count}[node.integer("normalization", 0)]


def _scaled(c: Context, node: Node, x: Pair, factor: float) -> Pair:
    if factor == 1.0:
        return x
    return _moved(x, lambda t: (pointwise(c, node, "scale", "scale", [(t, x[0][1])], scale=factor), x[0][1]))


def _forward(c: Context, node: Node) -> None:
    """_fft_r2c and _fft_c2c over given dimensions."""
    source = node.ref("self")
    x, shape = _pair(c, source), c.shapes[source]
    dims = [dimension(node, d, len(shape)) for d in node.integers("dim") or ()]
    sign = -1 if node.integer("forward", 1) else 1
    dtype = _real_type(node.dtype)
    for k in reversed(dims):
        x = _transformed(c, node, x, k, sign, dtype)
    if node.shape != shape:  # one side only
        half = {dims[-1]: (1, 0)}
        x = _moved(x, lambda t: (part_of(c, node, "half", t, node.shape, half), node.shape))
    real, imaginary = _scaled(c, node, x, _scale(node, shape, dims))
    if imaginary is None:
        raise Unsupported("no dimension")
    _put(c, node, real[0], imaginary[0])


def _backward(c: Context, node: Node) -> None:
    """_fft_c2r: the other side is the conjugate of this one, backwards."""
    x, shape = _pair(c, node.ref("self")), c.shapes[node.ref("self")]
    dims = [dimension(node, d, len(shape)) for d in node.integers("dim") or ()]
    k, n = dims[-1], node.shape[dims[-1]]
    for d in dims[:-1]:
        x = _transformed(c, node, x, d, 1, node.dtype)
    own, missing = n // 2 + 1, n - n // 2 - 1
    if shape[k] != own:
        raise Unsupported(f"{shape[k]} frequencies for {n} elements")
    if missing:
        rest = [*shape[:k], missing, *shape[k + 1 :]]
        sides = []
        for (t, _), function in zip((v for v in x if v is not None), ("identity", "negate"), strict=True):
            other = flip_dimension(c, node, "turn", part_of(c, node, "inside", t, rest, {k: (1, 1)}), k)
            if function == "negate":
                other = pointwise(c, node, "conjugate", "negate", [(other, rest)])
            sides.append((concatenate(c, node, "sides", [t, other], k), node.shape))
        x = sides[0], sides[1]
    y, _ = _scaled(c, node, _transformed(c, node, x, k, 1, node.dtype), _scale(node, node.shape, dims))
    c.put(node, y[0])


_HANDLERS: Final[Mapping[str, Handler]] = {
    **dict.fromkeys(("bmm", "mm"), _matrix),
    "complex": _made,
    "polar": _polar,
    **dict.fromkeys(("_conj", "_conj_physical", "conj", "conj_physical"), _conjugated),
    "view_as_real": _as_real,
    "view_as_complex": _as_complex,
    "real": _one(0),
    "imag": _one(1),
    "abs": _absolute,
    **dict.fromkeys(("empty", "empty_like", "new_empty", "full", "full_like", "zeros_like", "new_zeros"), _filled),
    **dict.fromkeys(("_fft_r2c", "_fft_c2c"), _forward),
    "_fft_c2r": _backward,
}
