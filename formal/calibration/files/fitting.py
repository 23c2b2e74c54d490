r"""Reads constants of a machine from measured times: fitted, judged term by term, or refused.

    x_c > 0        inverse rates and times, within a factor 1000 of the machine's; those asked to be kept are fixed
    row i          f_i(x) = sum of maxima of linear pieces (`observation.terms`),  measured t_i
    fit            least sum | f_i / t_i - 1 |; pieces are fixed where they are largest, the linear problem is solved
                   (cvxpy), and again until they stay
    shares         A_ic = x_c df_i/dx_c / f_i:  how much of row i's time constant c is, at the solution
    identified     no combination of columns of A (each of length 1) vanishes: the least singular value is 1 % or more;
                   else the constants in it are refused by name, with a measurement that would separate them
    bar of c       the larger of: 90 % of (max(f_i / t_i, t_i / f_i) - 1) / A_ic over the rows of which c is half or
                   more (ten rows of the largest share where none is), so that blaming c alone explains nine rows of
                   ten; 1.645 standard errors, from A and the mean square; the mean over all rows

Measured forms of a level or element type that is fitted are dropped: they would be priced with instead of the new
constants.  A constant that no row depends on is kept, and said to be.  The bar says how far the *model with this
constant* is off, which is more than how well the mean is known: it is what a claim about a plan has to carry.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass, replace
from fractions import Fraction
from math import ceil
from typing import Final

import numpy as np
from numpy.typing import NDArray

from ....models.machine.machine import Machine
from ....models.machine.measured import COLLECTIVES
from ....models.machine.parts import DeviceClass
from ....models.machine.quantities import MOST_BAR
from ....models.text import InputError
from ...plans.linear import values
from ..fit import Residuals
from ..solver import solve
from .observation import Observation, Terms, terms

Floats = NDArray[np.float64]

_ROUNDS: Final = 40
_SINGULAR: Final = 0.01
_RELEVANT: Final = 0.2
"""Share of a vanishing combination from which on a constant is named in it."""


@dataclass(frozen=True)
class Fitted:
    """One constant: before, after, its bar; `rows` that depend on it, the largest `share` of one; `kept`: why it was
    not fitted, else empty; `mean_error` of the rows of which it is half or more (None: there is none).
    """

    path: str
    before: Fraction
    after: Fraction
    bar: Fraction | None
    rows: int
    share: float
    kept: str
    mean_error: float | None


@dataclass(frozen=True)
class FileCalibration:
    """The machine with its new constants, bars and sources, and how well it fits."""

    machine: Machine
    constants: tuple[Fitted, ...]
    before: Residuals
    fitted: Residuals
    held_before: Residuals | None
    held: Residuals | None


def calibrate_files(
    machine: Machine,
    rows: Sequence[Observation],
    held: Sequence[Observation],
    keep: Collection[str],
    source: str,
) -> FileCalibration:
    """Fit; `source` says in [sources] where the rows are from.  Raises `InputError` for constants that no row
    separates.

    >>> from ....models.machine.machine import load_machine
    >>> from .observation import Touched
    >>> rows = [Observation(Touched(n), 1e-5 + n / 5e11, "made up") for n in (10**4, 10**6, 10**8, 10**9)]
    >>> found = calibrate_files(load_machine("dgx-a100"), rows, (), (), "made up")
    >>> {c.path: f"{float(c.after):.3g}" for c in found.constants if not c.kept}
    {'device_class.a100.bandwidth': '5e+11', 'device_class.a100.launch': '1e-05'}
    """
    start = _start(machine, rows, keep)
    forms = [terms(r, machine) for r in rows]
    used = {path for f in forms for path in _paths(f)}
    paths = [p for p in start if p in used and p not in keep]
    if not paths:
        raise InputError("every constant that these rows depend on is kept; leave out a --keep")
    table = _Table(forms, [r.seconds for r in rows], start, paths)
    x = table.solve()
    shares = table.shares(x)
    predicted = table.at(x)

    def missing(path: str) -> str:
        return f"{measurement(path, machine)}, or keep the machine's with --keep {path}"

    refuse(paths, shares, missing)
    after, bars = {}, dict(machine.bars)
    off = np.maximum(predicted / table.seconds, table.seconds / predicted) - 1
    for c, path in enumerate(paths):
        after[path] = Fraction(f"{x[c] if _is_time(path) else 1 / x[c]:.3e}")
        bars[path] = error_bound_of(path, c, shares, off, missing)
    errors = predicted / table.seconds - 1
    constants = [
        _fitted_constant(path, value, after[path], bars[path], shares[:, paths.index(path)], errors)
        if path in after
        else _kept_constant(path, value, dict(machine.bars).get(path), path in keep)
        for path, value in start.items()
    ]
    fitted, dropped = _replaced(machine, after)
    judged = residuals(fitted, rows)
    fitted = _with_sources(fitted, machine, constants, dropped, bars, f"fitted to {len(rows)} rows of {source}", judged)
    return FileCalibration(
        fitted,
        tuple(constants),
        residuals(machine, rows),
        judged,
        residuals(machine, held) if held else None,
        residuals(fitted, held) if held else None,
    )


def _start(machine: Machine, rows: Sequence[Observation], keep: Collection[str]) -> dict[str, Fraction]:
    """The constants of a machine that may be fitted.  Raises `InputError` where nothing can be."""
    if not rows:
        raise InputError("no row is left to fit; check --where and --hold-out")
    if machine.others:
        raise InputError(
            f"machine {machine.name!r} has several device classes, and no file says which it measured; calibrate a "
            f"machine of one class each"
        )
    start = {path: value for path, value in values(machine).items()}
    unknown = sorted(set(keep) - start.keys())
    if unknown:
        raise InputError(f"--keep {unknown[0]!r} is no constant of this machine; constants: {', '.join(start)}")
    return start


def _with_sources(
    fitted: Machine,
    machine: Machine,
    constants: Sequence[Fitted],
    dropped: tuple[str, ...],
    bars: dict[str, Fraction],
    how: str,
    judged: Residuals,
) -> Machine:
    """The machine with what its constants rest on; `dropped`: beginnings of paths that it no longer has."""
    said = {
        c.path: f"calibrated: {how}, by `shardproof machine calibrate --from`: "
        f"{judged.words()}; {c.rows} rows depend on it"
        for c in constants
        if not c.kept
    }
    sources = {p: s for p, s in (dict(machine.sources) | said).items() if not p.startswith(dropped)}
    bars = {p: b for p, b in bars.items() if not p.startswith(dropped)}
    return replace(fitted, sources=tuple(sorted(sources.items())), bars=tuple(sorted(bars.items())))


def _kept_constant(path: str, value: Fraction, bar: Fraction | None, asked: bool) -> Fitted:
    """A constant that stays: because it was `asked`, or because no row depends on it."""
    before = value if _is_time(path) else 1 / value
    return Fitted(path, before, before, bar, 0, 0.0, "kept, as asked" if asked else "no row depends on it, kept", None)


def _fitted_constant(
    path: str, value: Fraction, after: Fraction, bar: Fraction, shares: Floats, errors: Floats
) -> Fitted:
    """A constant with what the rows say of it.  `shares`: of the time of every row; `errors`: of its prediction."""
    mine = shares >= 0.5
    return Fitted(
        path,
        value if _is_time(path) else 1 / value,
        after,
        bar,
        int((shares > 0.001).sum()),
        float(shares.max()),
        "",
        float(np.abs(errors[mine]).mean()) if mine.any() else None,
    )


def residuals(machine: Machine, rows: Sequence[Observation]) -> Residuals:
    """What the machine predicts against what was measured."""
    start = values(machine)
    table = _Table([terms(r, machine) for r in rows], [r.seconds for r in rows], start, [])
    return Residuals.of(table.at(np.zeros(0)), table.seconds)


def _is_time(path: str) -> bool:
    return path.endswith((".latency", ".launch"))


def _paths(form: Terms) -> list[str]:
    return [p for pieces in (*form.steps, form.added) for p, _ in pieces]


class _Table:
    """Rows as arrays: `added` once, and of every step the pieces, of which the largest counts."""

    def __init__(self, forms: list[Terms], seconds: list[float], start: dict[str, Fraction], paths: list[str]) -> None:
        self.seconds = np.array(seconds)
        self.start = np.array([max(float(start[p]), 1e-9 if _is_time(p) else 0.0) for p in paths])
        column = {p: c for c, p in enumerate(paths)}
        count, width = len(forms), len(paths) + 1  # the last column holds what is fixed, in seconds
        self.added = np.zeros((count, width))
        most = max((len(f.steps) for f in forms), default=0)
        deep = max((len(s) for f in forms for s in f.steps), default=0)
        self.pieces = np.zeros((most, deep, count, width))
        for i, form in enumerate(forms):
            for path, amount in form.added:
                self._put(self.added[i], path, amount, column, start)
            for s, step in enumerate(form.steps):
                for d, (path, amount) in enumerate(step):
                    self._put(self.pieces[s, d, i], path, amount, column, start)

    @staticmethod
    def _put(row: Floats, path: str, amount: float, column: dict[str, int], start: dict[str, Fraction]) -> None:
        if path in column:
            row[column[path]] += amount
        else:
            row[-1] += amount * float(start[path])

    def active(self, x: Floats) -> Floats:
        """The linear form of every row at x; its last column is fixed."""
        out, full = self.added.copy(), np.append(x, 1.0)
        rows = np.arange(len(out))
        for step in self.pieces:
            out += step[(step @ full).argmax(axis=0), rows]
        return out

    def at(self, x: Floats) -> Floats:
        found: Floats = self.active(x) @ np.append(x, 1.0)
        return found

    def shares(self, x: Floats) -> Floats:
        found: Floats = self.active(x)[:, :-1] * x / self.at(x)[:, None]
        return found

    def off(self, x: Floats) -> float:
        return float(np.abs(self.at(x) / self.seconds - 1).mean())

    def solve(self) -> Floats:
        import cvxpy

        best = x = self.start
        seen = set()
        for _ in range(_ROUNDS):
            linear = self.active(x) / self.seconds[:, None]
            key = linear.tobytes()
            if key in seen:
                break
            seen.add(key)
            scaled, fixed = linear[:, :-1] * self.start, linear[:, -1]
            used = scaled.any(axis=0)
            factor = cvxpy.Variable(len(self.start), bounds=[0.001, 1000])
            problem = cvxpy.Problem(
                cvxpy.Minimize(
                    cvxpy.sum(cvxpy.abs(scaled @ factor + fixed - 1)) + 1e-6 * cvxpy.sum(cvxpy.abs(factor - 1))
                )
            )
            if solve(problem) not in ("optimal", "optimal_inaccurate"):
                raise InputError(f"the fit failed: the solver says {problem.status}")
            x = np.where(used, np.asarray(factor.value) * self.start, x)
            if self.off(x) < self.off(best):
                best = x
        return np.asarray(best)


def error_bound_of(path: str, c: int, shares: Floats, off: Floats, missing: Callable[[str], str]) -> Fraction:
    """The error bound of constant `c`; `off`: by which factor less one every row errs; `missing`: what to measure, or
    else to do, to tell a constant.  Raises `InputError` where it would be larger than any bar.
    """
    column = shares[:, c]
    mine = column >= 0.5
    if not mine.any():
        mine = column >= np.sort(column)[-min(10, len(column))]
        mine &= column > 0
    blamed = float(np.quantile(off[mine] / column[mine], 0.9)) if mine.any() else np.inf
    free = max(1, len(off) - shares.shape[1])
    sigma = float(np.sqrt((off**2).sum() / free))
    try:
        covariance = np.linalg.inv(shares.T @ shares) * sigma**2
        standard = 1.645 * float(np.sqrt(max(covariance[c, c], 0.0)))
    except np.linalg.LinAlgError:
        standard = np.inf
    bar = max(blamed, standard, float(off.mean()), 0.001)
    if not bar <= float(MOST_BAR):
        raise InputError(
            f"{path} cannot be told from these rows: it is at most {100 * float(column.max()):.1f} % of a row's time; "
            f"measure {missing(path)}"
        )
    return Fraction(ceil(1000 * bar), 1000)


def refuse(paths: list[str], shares: Floats, missing: Callable[[str], str]) -> None:
    """Raises `InputError` naming the constants of which only a combination shows in the rows."""
    named = tied(paths, shares)
    if len(named) == 1:
        raise InputError(
            f"{named[0]} cannot be told from these rows: others decide all of them; measure {missing(named[0])}"
        )
    if named:
        raise InputError(
            f"{named[0]} and {' and '.join(named[1:])} cannot be told apart: no row separates them; measure "
            f"{missing(max(named, key=paths.index))}"
        )


def tied(paths: Sequence[str], shares: Floats) -> list[str]:
    """Constants of which only a combination shows, the heaviest in it first; one that shows nowhere alone; empty if all
    are apart.
    """
    lengths = np.sqrt((shares**2).sum(axis=0))
    for c, path in enumerate(paths):
        if lengths[c] == 0:
            return [path]
    _, singular, combined = np.linalg.svd(shares / lengths, full_matrices=len(shares) < len(paths))
    if len(singular) == len(paths) and singular[-1] >= _SINGULAR:
        return []
    weights = np.abs(combined[-1])
    order = np.argsort(-weights)
    named = [paths[c] for c in order if weights[c] >= _RELEVANT]
    return named if len(named) > 1 else [paths[c] for c in order[:2]]


def measurement(path: str, machine: Machine) -> str:
    """The measurement that a constant alone decides.

    >>> from ....models.machine.machine import load_machine
    >>> measurement("level.nodes.bandwidth", load_machine("dgx-a100"))
    'an all_gather of 256 MB or more across nodes (all_gather_perf -b 256M -e 1G)'
    """
    kind, name, *rest = path.split(".")
    if kind == "level":
        where = f"across {name}" if name == machine.levels[0].name and len(machine.levels) > 1 else f"among {name}"
        if rest == ["latency"]:
            return f"an all_reduce of 8 bytes to 1 KB {where} (all_reduce_perf -b 8 -e 1K)"
        return f"an all_gather of 256 MB or more {where} (all_gather_perf -b 256M -e 1G)"
    if rest[0] == "peaks":
        return f"a product of {rest[1]} with every size at least 8192"
    if rest == ["launch"]:
        return "an elementwise operator on a few elements"
    return "an elementwise operator on 256 MB or more"


def _replaced(machine: Machine, after: dict[str, Fraction]) -> tuple[Machine, tuple[str, ...]]:
    """The machine with its new constants; measured forms of the same links and products, which would price instead of
    them, are dropped: prefixes of their constants.
    """
    dropped = [
        f"level.{x.name}.{operation}."
        for x in machine.levels
        if x.collectives and {f"level.{x.name}.bandwidth", f"level.{x.name}.latency"} & after.keys()
        for operation in COLLECTIVES
    ]
    device = f"device_class.{machine.device.name}"
    gone = [p.dtype for p in machine.device.products if f"{device}.peaks.{p.dtype}" in after]
    levels = tuple(
        replace(
            x,
            bandwidth=after.get(f"level.{x.name}.bandwidth", x.bandwidth),
            latency=after.get(f"level.{x.name}.latency", x.latency),
            collectives=() if any(d.startswith(f"level.{x.name}.") for d in dropped) else x.collectives,
        )
        for x in machine.levels
    )
    found = replace(machine, levels=levels, device=_device(machine.device, after, gone))
    return found, (*dropped, *(f"{device}.product.{dtype}." for dtype in gone))


def _device(device: DeviceClass, after: dict[str, Fraction], gone: list[str]) -> DeviceClass:
    place = f"device_class.{device.name}"
    return replace(
        device,
        bandwidth=after.get(f"{place}.bandwidth", device.bandwidth),
        launch=after.get(f"{place}.launch", device.launch),
        peaks=tuple((d, after.get(f"{place}.peaks.{d}", v)) for d, v in device.peaks),
        products=tuple(p for p in device.products if p.dtype not in gone),
    )
