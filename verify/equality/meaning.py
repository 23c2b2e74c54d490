"""What the operators of a program of ranks compute, as forms (`models.equality.program` lists the operators).

Everything is over the real numbers: casts between floating-point types change nothing, truth values are 0 and 1.  A
choice by a condition is c a + (1 - c) b; what reads an index tensor is a sum over [index = v].  An infinity, as masks
add it, is one large number of which nothing else is known (`infinity`).  Of other functions nothing is known but that
equal operands give equal values.  Numbers near a fraction of small numbers, or the root of one, are taken for it; so is
the number of 32 bits that is nearest to a fraction of smaller ones.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from fractions import Fraction
from math import ceil, floor, inf, isinf, isnan, prod, trunc
from struct import pack, unpack
from typing import Final

from ...models.equality.program import Step, Word
from .functions import HALF, Forms
from .index import Index, Range, Undecided, variable
from .terms import Form, Kind
from .values import Tensors, Value

MOST_DENOMINATOR: Final = 1_000_000
MOST_SHORT: Final = 1000
"""Denominator of a fraction for which the number of 32 bits is taken that is nearest to it."""
NEAR: Final = Fraction(1, 1 << 50)
"""How near, as a part of it, a number must be to a fraction or a root to be taken for it."""

OPAQUE: Final = frozenset({"tanh", "erf", "sin", "cos", "floor", "ceil", "round", "trunc", "abs", "sign"})
"""Functions of one number of which nothing is known."""

EXACT: Final[Mapping[str, Callable[[Fraction], Fraction | int]]] = {
    "abs": abs,
    "sign": lambda x: (x > 0) - (x < 0),
    "floor": floor,
    "ceil": ceil,
    "trunc": trunc,
    "round": round,  # halves to the even number, as PyTorch does
}
"""What they are of a fraction that is known."""

COMPARED: Final = frozenset({"gt", "ge", "lt", "le", "eq", "ne"})
TWO: Final = frozenset({"add", "sub", "mul", "div", "maximum", "minimum", "pow"})


def real(value: Word, forms: Forms) -> Form:
    """A number as a form.

    >>> real(0.125, Forms(lambda n: None))
    ((((), ()), Fraction(1, 8)),)
    """
    if isinstance(value, tuple | str):
        raise Undecided(f"{value!r} is no number")
    if isinstance(value, float):
        if isnan(value):
            raise Undecided("reads a number that is none")
        if isinf(value):
            sign = 1 if value > 0 else -1
            return forms.times(forms.infinity(), Fraction(sign))
    exact = Fraction(value)
    near = exact.limit_denominator(MOST_DENOMINATOR)
    if abs(near - exact) <= NEAR * abs(exact):
        return forms.number(near)
    near = exact.limit_denominator(MOST_SHORT)
    if isinstance(value, float) and _in_float32(float(near)) == value:
        return forms.number(near)
    square = exact * exact
    near = square.limit_denominator(MOST_DENOMINATOR)
    if abs(near - square) <= 4 * NEAR * square:
        return forms.times(forms.root(near), Fraction(1 if exact > 0 else -1))
    return forms.number(exact)


def _in_float32(x: float) -> float:
    """The nearest number of 32 bits; infinite beyond them."""
    try:
        return float(unpack("f", pack("f", x))[0])
    except OverflowError:
        return inf


class Meaning:
    """Evaluates steps on values."""

    def __init__(self, tensors: Tensors) -> None:
        self.tensors, self.forms = tensors, tensors.forms

    def of(self, step: Step, reads: Sequence[Value]) -> tuple[Value, ...]:
        """What a step makes.  Raises `Undecided` for an operator or a shape that is not known here."""
        name = step.operator
        if name in TWO or name in COMPARED:
            return (self._two(step, reads),)
        if name in OPAQUE:
            return (self.tensors.apply(reads[0], lambda f: self._opaque(name, f)),)
        if name in ("topk", "sort"):
            return self._ordered(step, reads[0])
        rule = _RULES.get(name)
        if rule is None:
            raise Undecided(f"operator {name} is not known here")
        return (rule(self, step, reads),)

    def _opaque(self, name: str, f: Form) -> Form:
        if not f and name not in ("cos",):
            return f
        if name in EXACT and len(f) == 1 and f[0][0] == ((), ()):
            return self.forms.number(Fraction(EXACT[name](f[0][1])))
        if name == "abs" and self.forms.is_above_zero(f):
            return f
        return self.forms.abstract(Kind.FUNCTION, name, (), (f,))

    def _two(self, step: Step, reads: Sequence[Value]) -> Value:
        words = dict(step.words)
        function = self._function(step.operator)
        if "number" not in words:
            return self.tensors.pointwise(reads, lambda f: function(f[0], f[1]))
        number = real(words["number"], self.forms)
        if words.get("reverse"):
            return self.tensors.apply(reads[0], lambda f: function(number, f))
        return self.tensors.apply(reads[0], lambda f: function(f, number))

    def _function(self, name: str) -> Callable[[Form, Form], Form]:
        forms = self.forms

        def minus(a: Form, b: Form) -> Form:
            return forms.plus(a, forms.times(b, Fraction(-1)))

        def logical_not(a: Form) -> Form:
            return minus(forms.number(1), a)

        def power(a: Form, b: Form) -> Form:
            if not b:
                return forms.number(1)
            if len(b) == 1 and b[0][0] == ((), ()):
                return forms.power(a, b[0][1])
            return forms.abstract(Kind.FUNCTION, "pow", (), (a, b))

        def comparison(truth: Callable[[Form, Form], Form]) -> Callable[[Form, Form], Form]:
            def condition(a: Form, b: Form) -> Form:
                return truth(a, b) if forms.has_difference(a, b) else forms.beside_infinity(name, a, b)

            return condition

        found: dict[str, Callable[[Form, Form], Form]] = {
            "add": lambda a, b: forms.plus(a, b),
            "sub": minus,
            "mul": forms.product,
            "div": lambda a, b: forms.product(a, forms.power(b, Fraction(-1))),
            "pow": power,
            "maximum": lambda a, b: forms.larger((a, b)),
            "minimum": lambda a, b: forms.times(
                forms.larger((forms.times(a, Fraction(-1)), forms.times(b, Fraction(-1)))), Fraction(-1)
            ),
            "gt": comparison(lambda a, b: forms.positive(minus(a, b))),
            "lt": comparison(lambda a, b: forms.positive(minus(b, a))),
            "ge": comparison(lambda a, b: logical_not(forms.positive(minus(b, a)))),
            "le": comparison(lambda a, b: logical_not(forms.positive(minus(a, b)))),
            "eq": comparison(lambda a, b: forms.null(minus(a, b))),
            "ne": comparison(lambda a, b: logical_not(forms.null(minus(a, b)))),
        }
        return found[name]

    def _ordered(self, step: Step, x: Value) -> tuple[Value, ...]:
        """Rows in order: values and positions, each a function of the whole row.  A row whose position is several
        digits is its elements, each with its position: digits that are bound have no order of their own.
        """
        dim, over = self._row(step, x)
        words = tuple(f"{k}={w}" for k, w in step.words if k not in ("dim", "k"))
        first, gone, size = over[0][0], len(over) - 1, x.shape[dim]
        count = step.word("k") if step.operator == "topk" else size
        if not isinstance(count, int):
            raise Undecided("topk of no number")
        digits = (*x.digits[:dim], (count,), *x.digits[dim + 1 :])
        weights = [prod(n for _, (_, n) in over[i + 1 :]) for i in range(len(over))]
        place = self.forms.position((tuple((v, w) for (v, _), w in zip(over, weights, strict=True)), 0))
        behind = range(first + gone + 1, sum(map(len, x.digits)))
        names: dict[int, Index] = {v: variable(v - gone) for v in behind if gone}
        found = []
        for part in ("values", "positions"):
            pieces = []
            for box, form in x.pieces:
                of = (form, place) if gone else (form,)
                head = self.forms.substitute(self.forms.abstract(Kind.ROW, "sort", (part, *words), of, over), names)
                new = (*box[:first], (0, count), *box[first + gone + 1 :])
                pieces.append((new, self._at(head, first)))
            found.append(Value(digits, tuple(pieces)))
        return tuple(found)

    def _row(self, step: Step, x: Value) -> tuple[int, list[tuple[int, Range]]]:
        dim = step.word("dim")
        if not isinstance(dim, int):
            raise Undecided(f"{step.operator} along no dimension")
        over = [(v, (0, n)) for v, n in zip(x.variables(dim), x.digits[dim], strict=True)]
        if any(box[v] != whole for box, _ in x.pieces for v, whole in over):
            raise Undecided(f"{step.operator} along a dimension that is in pieces")
        return dim, over

    def _at(self, head: Form, v: int) -> Form:
        """A functional at a point of its row."""
        (((ranges, ((h, at, p),)), c),) = head
        return (((ranges, ((h, (*at, variable(v)), p),)), c),)


Rule = Callable[[Meaning, Step, Sequence[Value]], Value]


def _ints(step: Step, name: str) -> tuple[int, ...]:
    value = step.word(name)
    if not isinstance(value, tuple):
        raise Undecided(f"{step.operator} says no {name}")
    return value


def _int(step: Step, name: str) -> int:
    value = step.word(name)
    if not isinstance(value, int):
        raise Undecided(f"{step.operator} says no {name}")
    return value


def _where(m: Meaning, step: Step, reads: Sequence[Value]) -> Value:
    forms = m.forms

    def choice(f: Sequence[Form]) -> Form:
        apart = forms.plus(f[1], forms.times(f[2], Fraction(-1)))
        return forms.plus(f[2], forms.product(f[0], apart))

    return m.tensors.pointwise(reads, choice)


def _matmul(m: Meaning, step: Step, reads: Sequence[Value]) -> Value:
    a, b = reads
    n = len(a.shape)
    left = m.tensors.reshape(a, (*a.shape, 1))
    order = [*range(n - 2), n - 1, n - 2]
    turned = m.tensors.permute(b, order)
    right = m.tensors.reshape(turned, (*turned.shape[:-2], 1, *turned.shape[-2:]))
    left = m.tensors.permute(left, [*range(n - 1), n, n - 1])
    return m.tensors.reduce(m.tensors.multiply(left, right), [n], False)


def _hits(m: Meaning, index: Value, size: int, wrap: bool = False) -> Value:
    """[index = v], v the last dimension; `wrap`: negative ones count from the end, [index = v] + [index = v - n]."""
    wide = m.tensors.reshape(index, (*index.shape, 1))
    places = m.tensors.iota((*(1 for _ in index.shape), size), len(index.shape))
    forms = m.forms

    def hit(f: Sequence[Form]) -> Form:
        apart = forms.plus(f[0], forms.times(f[1], Fraction(-1)))
        found = forms.null(apart)
        return forms.plus(found, forms.null(forms.plus(apart, forms.number(size)))) if wrap else found

    return m.tensors.pointwise([wide, places], hit)


def _gather(m: Meaning, step: Step, reads: Sequence[Value]) -> Value:
    x, index = reads
    dim, n = _int(step, "dim"), len(reads[0].shape)
    hits = _hits(m, index, x.shape[dim], _wraps(step, False))  # .. i .., v
    for d in range(n):
        if d != dim:
            x = m.tensors.slice(x, d, 0, index.shape[d])
    moved = m.tensors.permute(x, [d for d in range(n) if d != dim] + [dim])
    wide = m.tensors.reshape(moved, (*moved.shape[:dim], 1, *moved.shape[dim:]))
    return m.tensors.reduce(m.tensors.multiply(hits, wide), [n], False)


def _scatter_add(m: Meaning, step: Step, reads: Sequence[Value]) -> Value:
    x, index, source = reads
    dim, n = _int(step, "dim"), len(x.shape)
    hits = _hits(m, index, x.shape[dim], _wraps(step, False))
    for d in range(n):
        source = m.tensors.slice(source, d, 0, index.shape[d])
    wide = m.tensors.reshape(source, (*source.shape, 1))
    total = m.tensors.reduce(m.tensors.multiply(hits, wide), [dim], False)  # v stands last
    order = list(range(n - 1))
    order.insert(dim, n - 1)
    return m.tensors.add(x, m.tensors.permute(total, order))


def _index(m: Meaning, step: Step, reads: Sequence[Value]) -> Value:
    """x[i, j, ..]: indexed dimensions stand first."""
    x, many = reads[0], len(reads) - 1
    shape = _broadcast([i.shape for i in reads[1:]])
    rest = x.shape[many:]
    total = m.tensors.reshape(x, (*(1 for _ in shape), *x.shape))
    for k, index in enumerate(reads[1:]):
        hits = _hits(m, m.tensors.expand(index, shape), x.shape[k], _wraps(step))  # shape, v
        wide = (*shape, *(hits.shape[-1] if j == k else 1 for j in range(many)), *(1 for _ in rest))
        total = m.tensors.multiply(total, m.tensors.reshape(hits, wide))
    return m.tensors.reduce(total, [len(shape) + k for k in range(many)], False)


def _index_add(m: Meaning, step: Step, reads: Sequence[Value]) -> Value:
    """x with the source added at x[i, j, ..]."""
    x, source, many = reads[0], reads[-1], len(reads) - 2
    shape = _broadcast([i.shape for i in reads[1:-1]])
    rest = x.shape[many:]
    source = m.tensors.expand(source, (*shape, *rest))
    total = m.tensors.reshape(source, (*shape, *(1 for _ in range(many)), *rest))
    for k, index in enumerate(reads[1:-1]):
        hits = _hits(m, m.tensors.expand(index, shape), x.shape[k], _wraps(step))
        wide = (*shape, *(hits.shape[-1] if j == k else 1 for j in range(many)), *(1 for _ in rest))
        total = m.tensors.multiply(total, m.tensors.reshape(hits, wide))
    return m.tensors.add(x, m.tensors.reduce(total, range(len(shape)), False))


def _wraps(step: Step, unsaid: bool = True) -> bool:
    """Whether negative positions count from the end, as the step says, or as steps mean that do not say it."""
    return bool(dict(step.words).get("wrap", unsaid))


def _broadcast(shapes: Sequence[tuple[int, ...]]) -> tuple[int, ...]:
    rank = max(map(len, shapes))
    wide = [(1,) * (rank - len(s)) + s for s in shapes]
    return tuple(next((n for n in sizes if n != 1), 1) for sizes in zip(*wide, strict=True))


def _triangle(m: Meaning, step: Step, x: Value) -> Value:
    """The part of matrices on and below (tril), on and above (triu) a diagonal."""
    n, k = len(x.shape), _int(step, "diagonal")
    one = (*(1 for _ in range(n - 2)), *x.shape[-2:])
    rows, columns, forms = m.tensors.iota(one, n - 2), m.tensors.iota(one, n - 1), m.forms
    low = step.operator == "tril"

    def inside(f: Sequence[Form]) -> Form:  # tril: not column - row > k; triu: column - row > k - 1, the same way round
        above = forms.positive(forms.plus(f[2], forms.times(f[1], Fraction(-1)), forms.number(-k if low else 1 - k)))
        return forms.product(f[0], forms.plus(forms.number(1), forms.times(above, Fraction(-1))) if low else above)

    return m.tensors.pointwise([x, rows, columns], inside)


def _cumsum(m: Meaning, step: Step, reads: Sequence[Value]) -> Value:
    x, dim, forms = reads[0], _int(step, "dim"), m.forms
    n, size = len(x.shape), x.shape[dim]
    source = m.tensors.reshape(m.tensors.permute(x, [*(d for d in range(n) if d != dim), dim]), _last(x, dim))
    at = m.tensors.iota((*(1 for _ in range(n - 1)), size, 1), n - 1)
    before = m.tensors.iota((*(1 for _ in range(n)), size), n)
    inside = m.tensors.pointwise(
        [at, before],
        lambda f: forms.plus(
            forms.number(1),
            forms.times(forms.positive(forms.plus(f[1], forms.times(f[0], Fraction(-1)))), Fraction(-1)),
        ),
    )
    total = m.tensors.reduce(m.tensors.multiply(source, inside), [n], False)
    order = list(range(n - 1))
    order.insert(dim, n - 1)
    return m.tensors.permute(total, order)


def _last(x: Value, dim: int) -> tuple[int, ...]:
    """The shape with a dimension moved to the end, and one of one element before it."""
    return (*(s for d, s in enumerate(x.shape) if d != dim), 1, x.shape[dim])


def _iota(m: Meaning, step: Step, reads: Sequence[Value]) -> Value:
    start, by = (real(step.word(k), m.forms) for k in ("start", "step"))
    forms = m.forms
    return m.tensors.apply(m.tensors.iota((_int(step, "n"),), 0), lambda f: forms.plus(forms.product(f, by), start))


def _powers(e: Fraction) -> Rule:
    return lambda m, s, r: m.tensors.apply(r[0], lambda f: m.forms.power(f, e))


def _sigmoid(m: Meaning, f: Form) -> Form:
    forms = m.forms
    return forms.power(forms.plus(forms.number(1), forms.exp(forms.times(f, Fraction(-1)))), Fraction(-1))


def _least(m: Meaning, step: Step, reads: Sequence[Value]) -> Value:
    minus = m.tensors.scale(reads[0], Fraction(-1))
    found = m.tensors.reduce(minus, _ints(step, "dims"), bool(step.word("keep")), greatest=True)
    return m.tensors.scale(found, Fraction(-1))


def _cast(m: Meaning, step: Step, reads: Sequence[Value]) -> Value:
    """To an integer type fractions are cut off; to truth values, everything but 0 is 1."""
    kind, x = str(step.word("dtype")), reads[0]
    if kind == "bool":
        one = m.forms.number(1)
        if any(m.forms.rests_on_infinity(f) for _, f in x.pieces):
            raise Undecided("the truth of an infinity")
        return m.tensors.apply(x, lambda f: m.forms.plus(one, m.forms.times(m.forms.null(f), Fraction(-1))))
    if kind.startswith(("int", "uint")) and step.word("was").__str__().startswith(("float", "bfloat")):
        return m.tensors.apply(x, lambda f: m._opaque("trunc", f))
    return x


_RULES: Final[Mapping[str, Rule]] = {
    "permute": lambda m, s, r: m.tensors.permute(r[0], _ints(s, "dims")),
    "expand": lambda m, s, r: m.tensors.expand(r[0], _ints(s, "shape")),
    "slice": lambda m, s, r: m.tensors.slice(r[0], _int(s, "dim"), _int(s, "start"), _int(s, "stop"), _int(s, "step")),
    "full": lambda m, s, r: m.tensors.full(_ints(s, "shape"), real(s.word("value"), m.forms)),
    "iota": _iota,
    "cast": _cast,
    "neg": lambda m, s, r: m.tensors.scale(r[0], Fraction(-1)),
    "exp": lambda m, s, r: m.tensors.apply(r[0], m.forms.exp),
    "log": lambda m, s, r: m.tensors.apply(r[0], m.forms.log),
    "log1p": lambda m, s, r: m.tensors.apply(r[0], lambda f: m.forms.log(m.forms.plus(m.forms.number(1), f))),
    "expm1": lambda m, s, r: m.tensors.apply(r[0], lambda f: m.forms.plus(m.forms.exp(f), m.forms.number(-1))),
    "sqrt": _powers(HALF),
    "rsqrt": _powers(-HALF),
    "reciprocal": _powers(Fraction(-1)),
    "sigmoid": lambda m, s, r: m.tensors.apply(r[0], lambda f: _sigmoid(m, f)),
    "logical_and": lambda m, s, r: m.tensors.multiply(r[0], r[1]),
    "logical_not": lambda m, s, r: m.tensors.apply(
        r[0], lambda f: m.forms.plus(m.forms.number(1), m.forms.times(f, Fraction(-1)))
    ),
    "logical_or": lambda m, s, r: m.tensors.pointwise(
        r, lambda f: m.forms.plus(f[0], f[1], m.forms.times(m.forms.product(f[0], f[1]), Fraction(-1)))
    ),
    "where": _where,
    "matmul": _matmul,
    "sum": lambda m, s, r: m.tensors.reduce(r[0], _ints(s, "dims"), bool(s.word("keep"))),
    "amax": lambda m, s, r: m.tensors.reduce(r[0], _ints(s, "dims"), bool(s.word("keep")), greatest=True),
    "amin": _least,
    "gather": _gather,
    "scatter_add": _scatter_add,
    "index": _index,
    "index_add": _index_add,
    "cumsum": _cumsum,
    "tril": lambda m, s, r: _triangle(m, s, r[0]),
    "triu": lambda m, s, r: _triangle(m, s, r[0]),
}
