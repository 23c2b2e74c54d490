"""Bounds how far rounding alone moves two programs apart that are equal over the real numbers.

A first-order running error analysis: beside every tensor x stands an array e with |computed x - exact x| <= e, on the
inputs given, for the element types that the programs say.  u is the unit roundoff of the type that is made.

    a + b       ea + eb + u |a + b|                    a b     |a| eb + |b| ea + ea eb + u |a b|
    sums        sum of e + g (sum of |x| + e), g = n u / (1 - n u) of n additions in any order
    f(x)        how far f gets on x - e .. x + e (f is monotone on either side of 0), + 4 units in the last place
    choices     where a comparison may turn out otherwise: how far apart the two values are

The programs compute the same over the real numbers, so their outputs differ by no more than both errors together.
Products and sums of 16-bit numbers are added up in float32 and rounded once.  Nothing of this is part of a proof.
Sources: Higham, Accuracy and Stability of Numerical Algorithms, 2nd edition, sections 3.3 and 4.2.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from math import inf, prod
from typing import Final

import numpy as np
from numpy.typing import NDArray

from ...models.equality.pair import Part
from ...models.equality.program import RankProgram, Step
from ...models.equality.schedule import Meeting, group, meetings
from .numbers import Array, Numbers, evaluate, meet, run_ranks, run_single
from .parts import part_elements

Reals = NDArray[np.float64]
Errors = dict[int, Reals]

ASSUMED: Final = ("steps-rounded-once", "functions-within-4-ulps", "16-bit-sums-in-float32", "no-other-kernels")
"""What the bound rests on beside the steps: see the module, and docs/howto/equal.md."""
ULPS: Final = 4
"""Units in the last place within which functions are computed (exp, log, tanh, ..): libraries state 1 to 4."""
MOST_WORK: Final = 1 << 26
"""Elements of all tensors of all programs: about ten seconds and 4 GiB; beyond no bound is computed, and it is said."""


@dataclass(frozen=True)
class Precision:
    """`unit`: of roundoff; `least`: the least normal number; `most`: the greatest; `sums`: the unit of sums."""

    unit: float
    least: float
    most: float
    sums: float


PRECISIONS: Final[Mapping[str, Precision]] = {
    "float64": Precision(2.0**-53, 2.0**-1022, 1.7e308, 2.0**-53),
    "float32": Precision(2.0**-24, 2.0**-126, 3.4e38, 2.0**-24),
    "bfloat16": Precision(2.0**-8, 2.0**-126, 3.3e38, 2.0**-24),
    "float16": Precision(2.0**-11, 2.0**-14, 65504.0, 2.0**-24),
}
MOVED: Final = frozenset(
    {"reshape", "permute", "expand", "slice", "cat", "slice_scatter", "tril", "triu", "all_gather", "all_to_all"}
)
MONOTONE: Final = frozenset(
    {
        *("exp", "log", "sqrt", "rsqrt", "reciprocal", "tanh", "erf", "sigmoid", "log1p", "expm1", "sign"),
        *("floor", "ceil", "round", "trunc"),
    }
)
EXACT: Final = frozenset({"sign", "floor", "ceil", "round", "trunc"})
COMPARED: Final = frozenset({"gt", "ge", "lt", "le", "eq", "ne"})


@dataclass(frozen=True)
class Bound:
    """The output of a rank that rounding moves most, beside that of the one device: `bound` (infinite where none is
    known), `measured` with every step rounded, and the element type of the output.
    """

    output: str
    rank: int
    bound: float
    measured: float
    precision: str


def rounding_bound(
    single: RankProgram,
    ranks: Sequence[RankProgram],
    given: tuple[Numbers, Sequence[Numbers]],
    results: Sequence[Sequence[tuple[str, Part]]],
) -> Bound | None:
    """Of programs that are equal over the real numbers, on the inputs given.  None where there is no real output, or
    where programs are too large.
    """
    if sum(prod(t.shape) for p in (single, *ranks) for t in p.tensors) > MOST_WORK:
        return None
    one = Errors()
    whole = run_single(single, given[0])
    with np.errstate(all="ignore"):
        for step in single.steps:
            one.update(zip(step.makes, made_errors(single, step, whole, _read(step, whole, one)), strict=True))
    values = run_ranks(ranks, given[1])
    many = errors_of_ranks(ranks, values)
    rounded_one = run_single(single, _stored(single, given[0]), round_to)
    rounded_many = run_ranks(ranks, [_stored(p, g) for p, g in zip(ranks, given[1], strict=True)], round_to)
    outputs, found = dict(single.outputs), list[Bound]()
    for rank, (program, places) in enumerate(zip(ranks, results, strict=True)):
        numbers = dict(program.outputs)
        for name, part in places:
            n, w = numbers[name], outputs[part.of]
            dtype = program.tensors[n].dtype
            if dtype not in PRECISIONS or not values[rank][n].size:
                continue
            of = np.asarray(part_elements(_error(w, whole, one), part), np.float64)
            bound = float(np.max(np.nan_to_num(of + _error(n, values[rank], many[rank]), nan=inf, posinf=inf)))
            apart = np.abs(np.subtract(rounded_many[rank][n], part_elements(rounded_one[w], part), dtype=np.float64))
            found.append(Bound(name, rank, bound, float(np.max(np.nan_to_num(apart, posinf=inf))), dtype))
    return max(found, key=lambda b: (b.bound, b.measured, -b.rank), default=None)


def errors_of_ranks(ranks: Sequence[RankProgram], values: Sequence[Numbers]) -> list[Errors]:
    """Of every tensor of every rank, in a run that made these values."""
    many = [Errors() for _ in ranks]
    with np.errstate(all="ignore"):
        for meeting in meetings(ranks):
            reads = [_read(s, values[r], many[r]) for r, s in meeting]
            if len(meeting) == 1 and "ranks" not in dict(meeting[0][1].words):
                (rank, step) = meeting[0]
                rows: Sequence[tuple[Reals, ...]] = [made_errors(ranks[rank], step, values[rank], reads[0])]
            else:
                rows = _met_errors(ranks, meeting, values, reads)
            for (rank, step), row in zip(meeting, rows, strict=True):
                many[rank].update(zip(step.makes, row, strict=True))
    return many


def _error(number: int, values: Numbers, errors: Errors) -> Reals:
    """What stands beside a tensor: nothing is wrong with one that is given."""
    return errors[number] if number in errors else np.zeros(values[number].shape)


def _read(step: Step, values: Numbers, errors: Errors) -> list[Reals]:
    return [_error(n, values, errors) for n in step.reads]


def _times(x: Array, e: Reals) -> Reals:
    """|x| e; nothing where nothing is wrong, whatever x is."""
    return np.asarray(np.where(e == 0, 0.0, np.abs(x).astype(np.float64) * e))


def _apart(x: Array, v: Array) -> Reals:
    apart = np.nan_to_num(np.abs(np.subtract(x, v, dtype=np.float64)), nan=inf, posinf=inf)
    return np.asarray(np.where(x == v, 0.0, apart))


def _finish(v: Array, e: Reals, dtype: str, units: float = 1.0) -> Reals:
    """An error with that of rounding what is made; infinite where it may overflow."""
    p = PRECISIONS.get(dtype)
    if p is None:
        return e
    size = np.where(np.isfinite(v), np.abs(v) + np.where(np.isfinite(e), e, 0.0), 0.0)
    total = e + np.where(np.isfinite(v), units * p.unit * size + p.least * (units > 0), 0.0)
    return np.asarray(np.where((size > p.most) | np.isnan(total), inf, total))


def _gamma(count: Array | float, unit: float) -> Reals:
    n = np.asarray(count, np.float64) * unit
    return np.asarray(np.where(n < 1, n / (1 - np.minimum(n, 0.999)), inf))


def _evaluated(step: Step, reads: Sequence[Array]) -> Reals:
    """What a step that makes one tensor makes of these, as real numbers."""
    return np.asarray(evaluate(step, reads)[0], np.float64)


def made_errors(program: RankProgram, step: Step, values: Numbers, errors: Sequence[Reals]) -> tuple[Reals, ...]:
    """Beside what a local step makes."""
    reads = [values[n] for n in step.reads]
    made = [values[n] for n in step.makes]
    dtypes = [program.tensors[n].dtype for n in step.makes]
    if step.operator in ("topk", "sort"):
        return _ordered_errors(step, made, errors[0])
    e = _made_error(step, reads, errors, made[0], dtypes[0])
    return (np.broadcast_to(np.asarray(e, np.float64), made[0].shape),)


def _made_error(step: Step, reads: list[Array], errors: Sequence[Reals], v: Array, dtype: str) -> Reals:
    name, words = step.operator, dict(step.words)
    if name in MOVED:
        return _evaluated(step, errors)
    match name:
        case "full" | "iota":
            exact = bool(np.all(round_to(v, dtype) == v))
            return np.zeros(v.shape) if exact else _finish(v, np.zeros(v.shape), dtype)
        case "cast":
            if dtype in PRECISIONS:
                finer = PRECISIONS.get(str(words["was"]), PRECISIONS["float64"]).unit <= PRECISIONS[dtype].unit
                return _finish(v, errors[0], dtype) if finer and words["was"] != dtype else errors[0]
            return _between(step, reads[0], errors[0], v)
        case "neg" | "abs":
            return errors[0]
        case "sin" | "cos":
            return _finish(v, errors[0], dtype, 2 * ULPS)
        case "sum" | "cumsum":
            return _summed(step, reads[0], errors[0], v, dtype)
        case "amax" | "amin":
            return _evaluated(Step("amax", (), (), step.words), errors)
        case "matmul":
            return _product(reads, errors, v, dtype)
        case "where":
            either = np.maximum(errors[1], errors[2])
            sure = np.where(reads[0], errors[1], errors[2])
            return np.asarray(np.where(errors[0] > 0, either + _apart(reads[1], reads[2]), sure))
        case "gather" | "index":
            found = np.asarray(_evaluated(step, [errors[0], *reads[1:]]))
            return found if not any(e.any() for e in errors[1:]) else np.full(v.shape, inf)
        case "scatter_add" | "index_add":
            return _added(step, reads, errors, v, dtype)
        case "logical_and" | "logical_or" | "logical_not":
            return np.asarray(np.max(np.stack(np.broadcast_arrays(*errors)), axis=0))
    if name in MONOTONE:
        return _finish(v, _between(step, reads[0], errors[0], v), dtype, 0 if name in EXACT else 2 * ULPS)
    return _two_errors(step, reads, errors, v, dtype)


def _two_errors(step: Step, reads: list[Array], errors: Sequence[Reals], v: Array, dtype: str) -> Reals:
    name, words = step.operator, dict(step.words)
    operands, wrong = list(reads), list(errors)
    if "number" in words:
        said = words["number"]
        n = float(said) if isinstance(said, int | float) else inf
        e = 0.0 if np.float32(n) == n or dtype not in PRECISIONS else abs(n) * PRECISIONS[dtype].unit
        operands.insert(0 if words.get("reverse") else 1, np.asarray(n))
        wrong.insert(0 if words.get("reverse") else 1, np.asarray(e))
    (a, b), (ea, eb) = operands, wrong
    match name:
        case "add" | "sub":
            return _finish(v, ea + eb, dtype)
        case "mul":
            return _finish(v, _times(a, eb) + _times(b, ea) + _times(ea, eb), dtype)
        case "div":
            left = np.abs(b).astype(np.float64) - eb
            found = np.where((ea == 0) & (eb == 0), 0.0, (ea + _times(v, eb)) / np.maximum(left, 0.0))
            return _finish(v, np.asarray(np.where((left > 0) | (np.isinf(left)), found, inf)), dtype)
        case "maximum" | "minimum":
            return np.asarray(np.maximum(ea, eb))
        case "pow" if not np.any(eb) or "number" in words:
            return _finish(v, _between(step, reads[0], errors[0], v), dtype, 2 * ULPS)
        case _ if name in COMPARED:
            near = np.abs(np.subtract(a, b, dtype=np.float64)) <= ea + eb
            return np.asarray(np.where((ea + eb > 0) & near, 1.0, 0.0))
        case _:
            return np.where(np.broadcast_to(ea + eb, v.shape) > 0, inf, _finish(v, np.zeros(v.shape), dtype, 2 * ULPS))


def _between(step: Step, x: Array, e: Reals, v: Array) -> Reals:
    """How far a function that is monotone on either side of 0 gets from v on x - e .. x + e."""
    at: Reals = np.asarray(x, np.float64)
    high, low = _evaluated(step, [at + e]), _evaluated(step, [at - e])
    found = np.maximum(_apart(high, v), _apart(low, v))
    crosses = (np.abs(at) <= e) & (e > 0)
    if crosses.any():
        found = np.where(crosses, np.maximum(found, _apart(_evaluated(step, [np.zeros_like(at)]), v)), found)
    return np.asarray(np.where(e == 0, 0.0, found))


def _summed(step: Step, x: Array, e: Reals, v: Array, dtype: str) -> Reals:
    wrong = _evaluated(step, [e])
    sizes = _evaluated(step, [np.abs(x).astype(np.float64) + e])
    words = dict(step.words)
    dims = words["dims"] if "dims" in words else (int(str(words["dim"])),)
    count = prod(x.shape[d] for d in dims) if isinstance(dims, tuple) else 1
    p = PRECISIONS.get(dtype)
    return _finish(v, np.asarray(wrong + (0.0 if p is None else _gamma(max(0, count - 1), p.sums) * sizes)), dtype)


def _product(reads: list[Array], errors: Sequence[Reals], v: Array, dtype: str) -> Reals:
    a, b = (np.abs(x).astype(np.float64) for x in reads)
    ea, eb = errors
    p = PRECISIONS.get(dtype)
    wrong = a @ eb + ea @ b + ea @ eb
    if p is not None:
        wrong = wrong + _gamma(a.shape[-1], p.sums) * ((a + ea) @ (b + eb))
    return _finish(v, np.asarray(np.nan_to_num(wrong, nan=inf, posinf=inf)), dtype)


def _added(step: Step, reads: list[Array], errors: Sequence[Reals], v: Array, dtype: str) -> Reals:
    ids = reads[1:-1]
    if any(e.any() for e in errors[1:-1]):
        return np.full(v.shape, inf)
    base, source = np.abs(reads[0]).astype(np.float64), np.abs(reads[-1]).astype(np.float64)
    wrong = _evaluated(step, [errors[0], *ids, errors[-1]])
    sizes = _evaluated(step, [base + errors[0], *ids, source + errors[-1]])
    count = _evaluated(step, [np.zeros(base.shape), *ids, np.ones(source.shape)])
    p = PRECISIONS.get(dtype)  # rows are added to the tensor one by one, in its own precision
    return np.asarray(wrong + (0.0 if p is None else _gamma(count, p.unit) * sizes + p.least * np.asarray(count)))


def _ordered_errors(step: Step, made: list[Array], e: Reals) -> tuple[Reals, ...]:
    """The k-th number of a row moves no further than any of them; positions are sure where nothing is wrong."""
    dim = dict(step.words)["dim"]
    most = np.max(e, axis=int(str(dim)), keepdims=True) if e.shape[int(str(dim))] else e
    values = np.broadcast_to(most, made[0].shape)
    return values, np.full(made[0].shape, inf if e.any() else 0.0)


def _met_errors(
    ranks: Sequence[RankProgram], meeting: Meeting, values: Sequence[Numbers], reads: Sequence[list[Reals]]
) -> Sequence[tuple[Reals, ...]]:
    """Beside what ranks have after a collective or a message."""
    first, step = meeting[0]
    op = dict(step.words).get("op")
    if step.operator not in ("all_reduce", "reduce", "reduce_scatter") or op in ("max", "min"):
        rows = meet(ranks, meeting, reads)
        if op in ("max", "min"):  # of errors always the greatest
            rows = meet(ranks, tuple((r, _as_max(s)) for r, s in meeting), reads)
        return [tuple(np.asarray(x, np.float64) for x in row) for row in rows]
    dtype = ranks[first].tensors[step.makes[0]].dtype
    p = PRECISIONS.get(dtype)
    given = [values[r][s.reads[0]] for r, s in meeting]
    if op == "product":
        return [tuple(np.full(values[r][n].shape, inf) for n in s.makes) for r, s in meeting]
    sizes = [[np.abs(x).astype(np.float64) + e[0]] for x, e in zip(given, reads, strict=True)]
    wrong, total = meet(ranks, meeting, reads), meet(ranks, meeting, sizes)
    gamma = 0.0 if p is None else float(_gamma(len(group(step)) + (op == "avg"), p.unit))
    found, units = list[tuple[Reals, ...]](), 0 if p is None else 1
    for (rank, mine), w, t in zip(meeting, wrong, total, strict=True):
        row = list[Reals]()
        for n, a, b in zip(mine.makes, w, t, strict=True):
            apart = np.asarray(a, np.float64) + gamma * np.asarray(b, np.float64)
            row.append(_finish(values[rank][n], np.asarray(apart), dtype, units))
        found.append(tuple(row))
    return found


def _as_max(step: Step) -> Step:
    words = tuple((k, "max" if k == "op" else w) for k, w in step.words)
    return Step(step.operator, step.reads, step.makes, words, step.line)


def _stored(program: RankProgram, given: Numbers) -> dict[int, Array]:
    """Inputs as the program holds them."""
    return {n: round_to(x, program.tensors[n].dtype) for n, x in given.items()}


def round_to(value: Array, dtype: str) -> Array:
    """Numbers as an element type has them, to nearest, ties to even, in double precision.

    >>> round_to(np.array([0.1, 1.0]), "bfloat16").tolist()
    [0.10009765625, 1.0]
    """
    if dtype not in PRECISIONS or dtype == "float64":
        return value
    if dtype != "bfloat16":
        with np.errstate(over="ignore"):
            return np.asarray(value.astype(dtype).astype(np.float64))
    single = np.asarray(value, np.float32)
    bits = single.view(np.uint32)
    near = ((bits + 0x7FFF + ((bits >> 16) & 1)) & np.uint32(0xFFFF0000)).view(np.float32)
    return np.asarray(np.where(np.isfinite(single), near, single).astype(np.float64))
