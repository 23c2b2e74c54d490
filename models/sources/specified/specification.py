"""Reads the specification of an operator that no table of ours holds: a TOML file.

    name = "local_mix"                                                or "NAMESPACE::NAME", as PyTorch calls it
    formula = "y[b, i, d] = sum j: x[b, i + j - 1, d] * w[j, d]"      (`models.program.formula`)
    outside = "zero"                                                  what is read outside; left out: nothing is
    flops = 2                                                         per point of all axes; it is what the formula says

    [operands]                                                        in the order in which the operator takes them
    x = ["b", "t", "d"]
    w = ["j", "d"]

    [sizes]                                                           of axes that no operand has
    i = "t"

    [gradient]                                                        of operands, where `grad` is that of the output
    w = "dw[j, d] = sum b, i: grad[b, i, d] * x[b, i + j - 1, d]"

Everything else follows from the formula: operations, which axes may be split, halos, parts of sums, the gradient.  What
the file states of these all the same is compared with what follows.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from math import prod
from typing import Final

from ...program.formula import Apply, Expression, Formula, FormulaError, Size, axes_of, read_formula, read_size, reads
from ...program.operators import FUNCTIONS
from ...text import InputError, did_you_mean

GRADIENT: Final = "grad"
"""What the gradient of the output is called in formulas of gradients."""

_NAME: Final = re.compile(r"([A-Za-z_]\w*::)?[A-Za-z_]\w*", re.ASCII)
_KEYS: Final = ("name", "formula", "outside", "flops", "operands", "sizes", "gradient")


def operations(f: Formula) -> int:
    """Floating-point operations per point of all axes: of every function, and one to combine.

    >>> operations(read_formula("y[i] = sum j: x[i + j] * w[j]"))
    2
    """

    def of(e: Expression) -> int:
        return FUNCTIONS[e.function].flops + sum(map(of, e.of)) if isinstance(e, Apply) else 0

    return of(f.body) + (f.combine is not None)


class SpecificationError(InputError):
    """A specification that is wrong; `place` says where."""

    def __init__(self, place: str, message: str) -> None:
        super().__init__(f"{place}: {message}")
        self.place, self.message = place, message


@dataclass(frozen=True)
class Operand:
    """A tensor that the operator takes, and the names of its axes."""

    name: str
    axes: tuple[str, ...]


@dataclass(frozen=True)
class Specification:
    """An operator.  `text`: its formula as written; `sizes`: of axes that no operand has; `outside`: whether what is
    read outside an operand is 0; `gradients`: formulas of operands' gradients, as written.
    """

    name: str
    text: str
    formula: Formula
    operands: tuple[Operand, ...]
    sizes: tuple[tuple[str, str, Size], ...]
    outside: bool
    gradients: tuple[tuple[str, str], ...] = ()

    @property
    def short(self) -> str:
        """The name without a namespace."""
        return self.name.rpartition("::")[2]

    @property
    def axes(self) -> tuple[str, ...]:
        """All axes of the formula: of the output, then those that are combined."""
        return (*self.formula.axes, *self.formula.over)

    @property
    def compound(self) -> frozenset[str]:
        """Axes that stand in an index with something else: windows."""
        return frozenset(a for r in reads(self.formula.body) for i in r.index if i.single is None for a, _ in i.terms)

    def extents(self, shapes: Mapping[str, tuple[int, ...]]) -> dict[str, int]:
        """Extent of every axis where operands have these shapes.  Raises `SpecificationError`."""
        found: dict[str, int] = {}
        for operand in self.operands:
            shape = shapes[operand.name]
            if len(shape) != len(operand.axes):
                raise SpecificationError(
                    self.name, f"operand {operand.name!r} has axes {', '.join(operand.axes)}, and is given {shape}"
                )
            for axis, n in zip(operand.axes, shape, strict=True):
                if found.setdefault(axis, n) != n:
                    raise SpecificationError(
                        self.name, f"axis {axis!r} is {found[axis]} long, and {n} in operand {operand.name!r}"
                    )
        for axis, _, size in self.sizes:
            found[axis] = size.value(found)
            if found[axis] < 1:
                raise SpecificationError(self.name, f"axis {axis!r} is {found[axis]} long where operands have {shapes}")
        if not self.outside:
            self._inside(found)
        return found

    def _inside(self, extents: Mapping[str, int]) -> None:
        box = {a: (0, extents[a]) for a in self.axes}
        axes = {o.name: o.axes for o in self.operands}
        for r in reads(self.formula.body):
            for index, axis in zip(r.index, axes[r.operand], strict=True):
                low, high = index.unclipped_interval(box)
                if low < 0 or high > extents[axis]:
                    raise SpecificationError(
                        self.name,
                        f"reads {r.operand!r} along {axis!r} from {low} to {high - 1}, which has 0 to "
                        f'{extents[axis] - 1}; state outside = "zero", or shorter sizes',
                    )


def specification(data: Mapping[str, object], place: str) -> Specification:
    """The operator that the tables of a file say; `place` names it.  Raises `SpecificationError`.

    >>> axes = {"x": ["t"], "w": ["j"]}
    >>> s = specification({"name": "mix", "formula": "y[i] = sum j: x[i + j] * w[j]", "operands": axes,
    ...     "sizes": {"i": "t - j + 1"}}, "mix.toml")
    >>> s.extents({"x": (8,), "w": (3,)})["i"]
    6
    """
    for key in data:
        if key not in _KEYS:
            near = did_you_mean(key, _KEYS)
            raise SpecificationError(place, f"key {key!r} says nothing{near}; there are {', '.join(_KEYS)}")
    name, text = _text(data, "name", place), _text(data, "formula", place)
    if not _NAME.fullmatch(name):
        raise SpecificationError(place, f"name = {name!r}: letters, digits and underscores, perhaps behind NAMESPACE::")
    outside = data.get("outside")
    if outside not in (None, "zero"):
        raise SpecificationError(place, f'outside = {outside!r}: it is "zero", or left out where nothing is outside')
    formula = _formula(text, f"{place}, formula")
    operands = _operands(data.get("operands"), f"{place}, operands")
    sizes = _sizes(data.get("sizes", {}), operands, formula, f"{place}, sizes")
    made = Specification(name, text, formula, operands, sizes, outside == "zero", _gradients(data, operands, place))
    _check(made, f"{place}, formula")
    flops = data.get("flops", operations(formula))
    if flops != operations(formula):
        raise SpecificationError(
            place, f"flops = {flops!r}, the formula has {operations(formula)} per point of its axes; leave it out"
        )
    return made


def _text(data: Mapping[str, object], key: str, place: str) -> str:
    value = data.get(key)
    if not isinstance(value, str) or not value.strip() or not value.isprintable():
        raise SpecificationError(place, f"needs {key} = a text of one line")
    return value


def _formula(text: str, place: str) -> Formula:
    try:
        return read_formula(text)
    except FormulaError as error:
        raise SpecificationError(f"{place}, {error.place}", error.message) from None


def _table(value: object, place: str) -> dict[str, object]:
    if not isinstance(value, dict):
        raise SpecificationError(place, "must be a table of names")
    return value


def _operands(value: object, place: str) -> tuple[Operand, ...]:
    table = _table({} if value is None else value, place)
    if not table:
        raise SpecificationError(place, 'needs every operand and its axes: x = ["b", "t"]')
    out = []
    for name, axes in table.items():
        if not name.isidentifier() or name == GRADIENT:
            raise SpecificationError(place, f"{name!r} can be no name of an operand")
        if not isinstance(axes, list) or not all(isinstance(a, str) and a.isidentifier() for a in axes):
            raise SpecificationError(place, f"{name} must be a list of names of axes")
        if len(set(axes)) != len(axes):
            raise SpecificationError(place, f"{name} has an axis twice; give each a name, and state no size twice")
        out.append(Operand(name, tuple(axes)))
    return tuple(out)


def _sizes(
    value: object, operands: tuple[Operand, ...], formula: Formula, place: str
) -> tuple[tuple[str, str, Size], ...]:
    given = {a for o in operands for a in o.axes}
    out = []
    for axis, text in _table(value, place).items():
        if axis in given:
            raise SpecificationError(place, f"axis {axis!r} has the size that its operand has; leave it out")
        if axis not in (*formula.axes, *formula.over):
            raise SpecificationError(place, f"{axis!r} is no axis of the formula")
        if not isinstance(text, str | int) or isinstance(text, bool):
            raise SpecificationError(place, f"{axis} must be a text such as 't - j + 1'")
        try:
            size = read_size(str(text))
        except FormulaError as error:
            raise SpecificationError(f"{place}, {axis}, {error.place}", error.message) from None
        if unknown := sorted(set(size.names) - given):
            raise SpecificationError(place, f"{axis} = {text!r} uses {unknown[0]!r}, which is no axis of an operand")
        out.append((axis, str(text), size))
    return tuple(out)


def _gradients(data: Mapping[str, object], operands: tuple[Operand, ...], place: str) -> tuple[tuple[str, str], ...]:
    out = []
    for name, text in _table(data.get("gradient", {}), f"{place}, gradient").items():
        if name not in {o.name for o in operands}:
            raise SpecificationError(f"{place}, gradient", f"{name!r} is no operand")
        if not isinstance(text, str):
            raise SpecificationError(f"{place}, gradient", f"{name} must be a formula")
        out.append((name, text))
    return tuple(out)


def check_names(f: Formula, operands: Mapping[str, tuple[str, ...]], extents: frozenset[str], place: str) -> None:
    """Every name of a formula is one: `operands` with their axes, `extents`: axes that have one.  Raises
    `SpecificationError`.
    """
    bound = (*f.axes, *f.over)
    if twice := sorted({a for a in bound if bound.count(a) > 1}):
        raise SpecificationError(place, f"axis {twice[0]!r} is bound twice")
    for r in reads(f.body):
        if r.operand not in operands:
            near = did_you_mean(r.operand, operands)
            raise SpecificationError(place, f"{r.operand!r} is no operand{near}; there are {', '.join(operands)}")
        if len(r.index) != len(operands[r.operand]):
            wanted = ", ".join(operands[r.operand])
            raise SpecificationError(place, f"{r.operand!r} has axes {wanted}, and is read at {len(r.index)} indices")
    for axis in axes_of(f.body):
        if axis not in bound:
            raise SpecificationError(place, f"index {axis!r} is unbound: neither an axis of the output nor combined")
    for axis in bound:
        if axis not in extents:
            raise SpecificationError(place, f"axis {axis!r} has no extent: no operand has it; state it in [sizes]")
    if idle := [a for a in f.over if a not in axes_of(f.body)]:
        raise SpecificationError(place, f"nothing is read along {idle[0]!r}, which is combined")


def _check(s: Specification, place: str) -> None:
    known = {a for o in s.operands for a in o.axes} | {axis for axis, _, _ in s.sizes}
    check_names(s.formula, {o.name: o.axes for o in s.operands}, frozenset(known), place)
    if unread := {o.name for o in s.operands} - {r.operand for r in reads(s.formula.body)}:
        raise SpecificationError(place, f"does not read operand {min(unread)!r}")
    for r in reads(s.formula.body):
        for index in r.index:
            if backwards := [a for a, c in index.terms if c < 0]:
                raise SpecificationError(
                    place, f"{r.operand!r} is read backwards along {backwards[0]!r}; count that axis from its other end"
                )


def sample_extents(s: Specification) -> dict[str, int]:
    """Small extents that fit a specification, longest first.  Raises `SpecificationError` where none up to 6 do."""
    names = tuple(dict.fromkeys(a for o in s.operands for a in o.axes))
    for n in (4, 5, 6, 3, 2, 1):
        for windows in (3, 2, 1, 4):
            extents = {a: windows if a in s.formula.over else n for a in names}
            shapes = {o.name: tuple(extents[a] for a in o.axes) for o in s.operands}
            try:
                found = s.extents(shapes)
            except SpecificationError as error:
                last = error
                continue
            if prod(found.values()) <= 1 << 16:
                return found
    raise SpecificationError(last.place, f"no extents up to 6 fit it: {last.message}")
