"""Index expressions on numpy arrays: the exact evaluator's inner part.

    compiled(body, coordinates, shape, operands, ring)  ->  f(arrays) = the array of values of `body` at every point of
    `shape`

Expressions are lifted ones of one instance: reads give all coordinates of their operand, and no name is left but the
coordinates of the output and what the expression binds.  A grid axis belongs to every output coordinate; sums and
maxima add one axis behind and remove it again.  All index arithmetic is done once, when the expression is compiled;
running it is gathers and ring operations.  A read outside its operand that no guard masks is an error of the operator
table, not zero.

Rings: `Modular` (integers mod 2^31 - 1, nonlinear functions are fixed polynomials with a constant term: what differs as
a formula differs with near certainty) and `Exact` (integers and fractions; relu is relu, irrational functions are
stand-ins that have every property which `functions.FUNCTIONS` lists: what is proved from the properties must hold for
them too, and what differs for them differs for some function).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from fractions import Fraction
from typing import Any, Final, Protocol, assert_never

import numpy as np
import numpy.typing as npt

from .index_expressions import Call, Digit, Expression, Most, Number, Plus, Read, Times, Total, Where
from .polynomial import Poly

Array = npt.NDArray[Any]
"""int64 (modular) or object (exact): a ring decides."""
Grid = npt.NDArray[np.int64]
Run = Callable[[Sequence[Array]], Array]

PRIME: Final = (1 << 31) - 1


class EvaluationError(ValueError):
    """An expression that has no value here: division by zero, or a read outside an operand."""


class Ring(Protocol):
    """Where values live."""

    def whole(self, values: Grid) -> Array: ...

    def add(self, x: Array, y: Array) -> Array: ...

    def multiply(self, x: Array, y: Array) -> Array: ...

    def total(self, x: Array, copies: int) -> Array:
        """Sum over the last axis, times `copies`."""
        ...

    def call(self, function: str, index: Sequence[Grid], arguments: Sequence[Array]) -> Array: ...


def _coefficients(function: str) -> list[int]:
    seed = sum((k + 1) * ord(c) for k, c in enumerate(function))
    return [int(v) for v in np.random.default_rng(seed).integers(2, 1 << 30, 4)]


class Modular:
    """Integers mod 2^31 - 1 in int64.

    >>> r = Modular()
    >>> r.multiply(np.array([PRIME - 1]), np.array([PRIME - 1])).tolist()
    [1]
    """

    def __init__(self) -> None:
        self._polynomials: dict[str, list[int]] = {}

    def whole(self, values: Grid) -> Array:
        return values % PRIME

    def add(self, x: Array, y: Array) -> Array:
        return (x + y) % PRIME

    def multiply(self, x: Array, y: Array) -> Array:
        return (x * y) % PRIME

    def total(self, x: Array, copies: int) -> Array:
        out: Array = np.asarray(x.sum(axis=-1) % PRIME * (copies % PRIME) % PRIME)
        return out

    def call(self, function: str, index: Sequence[Grid], arguments: Sequence[Array]) -> Array:
        x = arguments[0]
        if function == "reciprocal":
            if not x.all():
                raise EvaluationError("division by zero")
            return _power(x, PRIME - 2)
        if function == "hit":
            return np.asarray(x == index[0]).astype(np.int64)
        c = self._polynomials.setdefault(function, _coefficients(function))
        return (((c[3] * x + c[2]) % PRIME * x + c[1]) % PRIME * x + c[0]) % PRIME


class Exact:
    """Integers and fractions in object arrays."""

    def whole(self, values: Grid) -> Array:
        return values.astype(object)

    def add(self, x: Array, y: Array) -> Array:
        out: Array = x + y
        return out

    def multiply(self, x: Array, y: Array) -> Array:
        out: Array = x * y
        return out

    def total(self, x: Array, copies: int) -> Array:
        return np.asarray(x.sum(axis=-1) * copies, dtype=object)

    def call(self, function: str, index: Sequence[Grid], arguments: Sequence[Array]) -> Array:
        x = arguments[0]
        match function:
            case "reciprocal":
                if not all(x.flat):
                    raise EvaluationError("division by zero")
                return _each(lambda v: Fraction(1) / v, x)
            case "hit":
                return np.asarray(x == index[0]).astype(object)
            case "relu":
                return _each(lambda v: max(v, 0), x)
            case "tanh":
                return _each(_squashed, x)
            case "sigmoid":
                return _each(lambda v: (1 + _squashed(v)) / 2, x)
            case "gelu":
                return _each(lambda v: v * (1 + _squashed(v)) / 2, x)
            case "exp":
                return _each(_power_of_two, x)
            case "root":
                return _each(lambda v: Fraction(3) / (2 + v * v), x)
            case _:
                c = [v % 7 + 1 for v in _coefficients(function)]
                return _each(lambda v: ((c[3] * v + c[2]) * v + c[1]) * v + c[0], x)


def _squashed(v: int | Fraction) -> Fraction:
    """Monotone, odd, between -1 and 1."""
    v = Fraction(v)
    return v / (1 + abs(v))


def _power_of_two(v: int | Fraction) -> Fraction:
    """Positive, monotone, a sum goes to a product."""
    v = Fraction(v)
    if v.denominator != 1 or abs(v) > Fraction(4096):
        raise EvaluationError(f"2 to the power of {v}")
    return Fraction(1 << max(int(v), 0), 1 << max(-int(v), 0))


def evaluator(
    body: Expression,
    coordinates: Sequence[str],
    shape: tuple[int, ...],
    operands: Sequence[tuple[int, ...]],
    ring: Ring,
) -> Run:
    """See the module docstring.  `operands`: shapes of the operand arrays.

    >>> from .index_expressions import Total, Read, Times
    >>> i, k, j = (Poly.of(s) for s in "ikj")
    >>> product = Total("k", Poly.of(2), Times((Read(0, (i, k)), Read(1, (k, j)))))
    >>> evaluator(product, "ij", (1, 1), [(1, 2), (2, 1)], Exact())([np.array([[2, 3]]), np.array([[5], [7]])]).tolist()
    [[31]]
    """
    axes = len(shape)
    names: dict[str, int | Grid] = {
        c: np.arange(n).reshape((1,) * a + (n,) + (1,) * (axes - 1 - a))
        for a, (c, n) in enumerate(zip(coordinates, shape, strict=True))
    }
    run = _Builder(operands, ring).build(body, names, np.ones((1,) * axes, dtype=bool), axes)
    return lambda arrays: np.broadcast_to(run(arrays), shape)


class _Builder:
    def __init__(self, operands: Sequence[tuple[int, ...]], ring: Ring) -> None:
        self.operands, self.ring = operands, ring

    def value(self, p: Poly, names: Mapping[str, int | Grid], axes: int) -> Grid:
        total: int | Grid = 0
        for monomial, c in p.terms.items():
            term: int | Grid = c
            for s in monomial:
                term = term * names[s]
            total = total + term
        grid = np.asarray(total, dtype=np.int64)
        return grid.reshape(grid.shape + (1,) * (axes - grid.ndim)) if grid.ndim else grid.reshape((1,) * axes)

    def build(self, e: Expression, names: dict[str, int | Grid], mask: npt.NDArray[np.bool_], axes: int) -> Run:
        ring = self.ring
        match e:
            case Read():
                return self._read(e, names, mask, axes)
            case Number():
                constant = ring.whole(self.value(e.value, names, axes))
                return lambda arrays: constant
            case Call():
                index = [self.value(p, names, axes) for p in e.index]
                arguments = [self.build(a, names, mask, axes) for a in e.arguments]
                return lambda arrays: ring.call(e.function, index, [a(arrays) for a in arguments])
            case Plus():
                return self._fold(ring.add, [self.build(t, names, mask, axes) for t in e.terms])
            case Times():
                return self._fold(ring.multiply, [self.build(t, names, mask, axes) for t in e.factors])
            case Where():
                inside = np.ones((1,) * axes, dtype=bool)
                for g in e.guards:
                    inside = inside & (self.value(g, names, axes) >= 0)
                body = self.build(e.body, names, mask & inside, axes)
                return lambda arrays: np.where(inside, body(arrays), 0)
            case Total():
                return self._total(e, names, mask, axes)
            case Most():
                return self._most(e, names, mask, axes)
            case Digit():
                n, m = self.value(e.numerator, names, axes), self.value(e.modulus, names, axes)
                return self.build(e.body, {**names, e.variable: n // m}, mask, axes)
            case _:
                assert_never(e)

    @staticmethod
    def _fold(join: Callable[[Array, Array], Array], parts: list[Run]) -> Run:
        if len(parts) == 2:
            first, second = parts
            return lambda arrays: join(first(arrays), second(arrays))

        def fold(arrays: Sequence[Array]) -> Array:
            out = parts[0](arrays)
            for p in parts[1:]:
                out = join(out, p(arrays))
            return out

        return fold

    def _read(self, e: Read, names: dict[str, int | Grid], mask: npt.NDArray[np.bool_], axes: int) -> Run:
        k, shape = e.operand, self.operands[e.operand]
        coordinates = [self.value(p, names, axes) for p in e.index]
        clipped = []
        for g, n in zip(coordinates, shape, strict=True):
            if np.any(mask & ((g < 0) | (g >= n))):
                raise EvaluationError(f"reads outside operand {k}")
            clipped.append(np.clip(g, 0, n - 1))
        if not clipped:
            return lambda arrays: arrays[k].reshape((1,) * axes)
        flat = np.zeros((1,) * axes, dtype=np.int64)
        for g, n in zip(clipped, shape, strict=True):
            flat = flat * n + g
        return lambda arrays: arrays[k].reshape(-1)[flat]

    def _total(self, e: Total, names: dict[str, int | Grid], mask: npt.NDArray[np.bool_], axes: int) -> Run:
        extent = self.value(e.extent, names, axes)
        count = int(extent.max())
        variable = np.arange(count).reshape((1,) * axes + (count,))
        if np.any(extent != count):
            raise EvaluationError(f"the range of {e.variable} is not the same everywhere")
        inner = {n: g[..., None] if isinstance(g, np.ndarray) and g.ndim == axes else g for n, g in names.items()}
        body = self.build(e.body, {**inner, e.variable: variable}, mask[..., None], axes + 1)
        ring = self.ring

        def total(arrays: Sequence[Array]) -> Array:
            out = body(arrays)
            return ring.total(out, 1 if out.shape[-1] == count else count)

        return total

    def _most(self, e: Most, names: dict[str, int | Grid], mask: npt.NDArray[np.bool_], axes: int) -> Run:
        extents = [int(self.value(n, names, axes).max()) for _, n in e.ranges]
        new = len(e.ranges)
        inner = {
            n: g.reshape(g.shape + (1,) * new) if isinstance(g, np.ndarray) and g.ndim == axes else g
            for n, g in names.items()
        }
        for a, ((v, _), n) in enumerate(zip(e.ranges, extents, strict=True)):
            inner[v] = np.arange(n).reshape((1,) * (axes + a) + (n,) + (1,) * (new - 1 - a))
        inside = np.ones((1,) * (axes + new), dtype=bool)
        for g in e.guards:
            inside = inside & (self.value(g, inner, axes + new) >= 0)
        body = self.build(e.body, inner, mask.reshape(mask.shape + (1,) * new) & inside, axes + new)
        last = tuple(range(axes, axes + new))
        where = np.broadcast_to(inside, np.broadcast_shapes(inside.shape, (1,) * axes + tuple(extents)))
        if not np.all(where.any(axis=last)):
            raise EvaluationError("a maximum over nothing")

        def most(arrays: Sequence[Array]) -> Array:
            values = body(arrays)
            full = np.broadcast_shapes(values.shape, where.shape)
            values = np.broadcast_to(values, full)
            low = values.min() if values.size else 0
            out: Array = np.where(where, values, low).max(axis=last)
            return out

        return most


def _power(x: Array, n: int) -> Array:
    out = np.ones_like(x)
    while n:
        if n & 1:
            out = out * x % PRIME
        x = x * x % PRIME
        n >>= 1
    return out


def _each(f: Callable[[int | Fraction], int | Fraction], x: Array) -> Array:
    out = np.empty(x.shape, dtype=object)
    for at, v in np.ndenumerate(x):
        out[at] = f(v)
    return out
