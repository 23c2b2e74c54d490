"""Exact evaluation of substitutions on one instance: numeric typing, values, and where two sides
differ.

    instance  =  integers for sizes, degrees and parameters (the names of conditions), and an array per pattern input

Everything comes from the operator table: `meaning` gives requirements and index expression, `shards` the device
coordinates; here they are read with integers in place of unknowns, independently of the symbolic typing that proofs
use.  A tensor's array has the coordinates times, partial sums, data axes; it denotes the sum over the partial-sum
coordinates.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from enum import Enum
from typing import Final, assert_never

import numpy as np

from .index_arrays import Array, EvaluationError, Exact, Ring, Run, evaluator
from .index_expressions import Expression, Index, substitute
from .ops import OPERATORS, Auxiliary, Floor, Join, Largest, Meaning, Part, Quotient, RankError, Shrunk, meaning
from .polynomial import ONE, Poly
from .rule import AtLeast, Condition, Divides, Equal, Node, OneOrMultiple, Substitution, divides, holds
from .shards import IllTyped, TensorType, Tree, result_trees, shards

LARGEST: Final = 1 << 22
"""Elements of the largest array that is evaluated."""


@dataclass(frozen=True)
class Step:
    """One operator on operands of fixed types.  `copies`: (operand, position of the coordinate its value must not
    depend on).
    """

    result: TensorType
    run: Run
    copies: tuple[tuple[int, int], ...]


@dataclass(frozen=True)
class Tensor:
    """A value with its type."""

    type: TensorType
    values: Array


class CopiesDiffer(ValueError):
    """A value that must be equal on all replicas is not; `place` names the operand, `detail` coordinates and values."""

    def __init__(self, place: str, detail: str) -> None:
        super().__init__(f"{place}: {detail}")
        self.place, self.detail = place, detail


class Difference(Enum):
    """What the two sides of a rule do on one instance."""

    LEFT_ILL_TYPED = "the left side does not type"
    PRECONDITION = "a precondition does not hold"
    LEFT_COPIES = "the left side reads unequal copies"
    RIGHT_ILL_TYPED = "the right side does not type"
    TYPE = "an output has another type"
    RIGHT_COPIES = "the right side reads unequal copies"
    VALUE = "an output has another value"
    NOWHERE = "both sides are equal"


@dataclass(frozen=True)
class Comparison:
    """Outcome on one instance; `detail` says where."""

    difference: Difference
    detail: str = ""


@dataclass
class Evaluator:
    """Compiles operators once per operand types; `ring` says where values live."""

    ring: Ring = field(default_factory=Exact)
    _steps: dict[tuple[object, ...], Step | str] = field(default_factory=dict, repr=False)
    _types: dict[tuple[object, ...], TensorType | str] = field(default_factory=dict, repr=False)

    def result_type(
        self, node: Node, operands: tuple[TensorType, ...], numbers: Mapping[str, int], place: str = "operator"
    ) -> TensorType:
        """Type of the result.  `IllTyped` if the operator does not type."""
        resolved = _resolved(node, numbers)
        key = (resolved.operator, resolved.parameters, operands)
        found = self._types.get(key)
        if found is None:
            try:
                found = apply_node(resolved, operands)[0]
            except IllTyped as error:
                found = error.message
            self._types[key] = found
        if isinstance(found, str):
            raise IllTyped(place, found)
        return found

    def step(
        self, node: Node, operands: tuple[TensorType, ...], numbers: Mapping[str, int], place: str = "operator"
    ) -> Step:
        """The operator on operands of these types.  `IllTyped` if it does not type, `EvaluationError` if it has no
        value.
        """
        resolved = _resolved(node, numbers)
        key = (resolved.operator, resolved.parameters, operands)
        found = self._steps.get(key)
        if found is None:
            try:
                found = _step(resolved, operands, self.ring)
            except IllTyped as error:
                found = error.message
            self._steps[key] = found
        if isinstance(found, str):
            raise IllTyped(place, found)
        return found

    def side(
        self, nodes: Sequence[Node], inputs: Sequence[Tensor], numbers: Mapping[str, int], side: str = ""
    ) -> list[Tensor]:
        """Tensors of all nodes of a side.  `IllTyped`, `EvaluationError` or `CopiesDiffer` name the operator."""
        out: list[Tensor] = []
        for k, node in enumerate(nodes):
            place = f"{side} operator {k} ({node.operator})".strip()
            operands = [out[w] if w >= 0 else inputs[-1 - w] for w in node.inputs]
            step = self.step(node, tuple(t.type for t in operands), numbers, place)
            for j, axis in step.copies:
                _check_copies(operands[j].values, axis, f"{place}, operand {j}")
            out.append(Tensor(step.result, step.run([t.values for t in operands])))
        return out

    def types(
        self, nodes: Sequence[Node], inputs: Sequence[TensorType], numbers: Mapping[str, int], side: str = ""
    ) -> list[TensorType]:
        """Types of all nodes of a side, without values."""
        out: list[TensorType] = []
        for k, node in enumerate(nodes):
            operands = tuple(out[w] if w >= 0 else inputs[-1 - w] for w in node.inputs)
            out.append(self.result_type(node, operands, numbers, f"{side} operator {k} ({node.operator})".strip()))
        return out

    def compare(self, rule: Substitution, values: Mapping[str, int], arrays: Mapping[str, Array]) -> Comparison:
        """Both sides of a rule on an instance.

        >>> from .rule import Pattern, node
        >>> r = Substitution("r", (Pattern("x", 1),), (node("relu", -1),), (node("add", -1, -1),), ((0, 0),))
        >>> Evaluator().compare(r, {"x.0": 1}, {"x": np.array([1], dtype=object)}).detail
        'output 0 at (0,): 1 on the left, 2 on the right'
        """
        inputs = [Tensor(t, arrays[p.name]) for p, t in zip(rule.inputs, input_types(rule, values), strict=True)]
        for tensor, p in zip(inputs, rule.inputs, strict=True):
            if tensor.values.shape != extents(tensor.type):
                raise EvaluationError(
                    f"input {p.name} has shape {tensor.values.shape}, its sizes are {extents(tensor.type)}"
                )
        try:
            left = self.side(rule.left, inputs, values, "left")
        except IllTyped as error:
            return Comparison(Difference.LEFT_ILL_TYPED, str(error))
        except CopiesDiffer as error:
            return Comparison(Difference.LEFT_COPIES, str(error))
        for c in rule.preconditions:
            if not holds(c, values):
                return Comparison(Difference.PRECONDITION, str(c))
        try:
            right = self.side(rule.right, inputs, values, "right")
        except IllTyped as error:
            return Comparison(Difference.RIGHT_ILL_TYPED, str(error))
        except CopiesDiffer as error:
            return Comparison(Difference.RIGHT_COPIES, str(error))
        for k, (a, b) in enumerate(rule.outputs):
            x, y = (side[w] if w >= 0 else inputs[-1 - w] for side, w in ((left, a), (right, b)))
            if signature(x.type) != signature(y.type):
                return Comparison(
                    Difference.TYPE, f"output {k}: {type_text(x.type)} on the left, {type_text(y.type)} on the right"
                )
            u, v = denotation(x, self.ring), denotation(y, self.ring)
            unequal = np.argwhere(np.not_equal(u, v))
            if len(unequal):
                at = tuple(int(i) for i in unequal[0])
                return Comparison(Difference.VALUE, f"output {k} at {at}: {u[at]} on the left, {v[at]} on the right")
        return Comparison(Difference.NOWHERE)


def input_types(rule: Substitution, values: Mapping[str, int]) -> tuple[TensorType, ...]:
    """Types of the pattern inputs; KeyError for a size that `values` lacks, `IllTyped` for a degree that does not
    divide.
    """
    out = []
    for p in rule.inputs:
        fixed = dict(p.fixed)
        sizes = tuple(fixed[a] if a in fixed else values[f"{p.name}.{a}"] for a in range(p.rank))
        degrees = tuple(values.get(f"{p.name}.{a}.degree", 1) if a not in fixed else 1 for a in range(p.rank))
        if any(n < 1 or d < 1 or n % d for n, d in zip(sizes, degrees, strict=True)):
            raise IllTyped(f"input {p.name}", f"sizes {sizes} with degrees {degrees}")
        out.append(plain_type(sizes, degrees))
    return tuple(out)


def plain_type(sizes: Sequence[int], degrees: Sequence[int]) -> TensorType:
    """A tensor without auxiliary coordinates."""
    return TensorType(tuple(map(Poly.of, sizes)), tuple(map(Poly.of, degrees)), (None,) * len(sizes))


def whole(p: Poly) -> int:
    """The integer a polynomial without unknowns stands for."""
    if p.constant is None:
        raise EvaluationError(f"{p} has no value: an unknown is left")
    return p.constant


def extents(t: TensorType) -> tuple[int, ...]:
    """Shape of the array of a tensor."""
    return (*(whole(e) for _, e in t.times), *map(whole, t.sums), *map(whole, t.sizes))


def signature(t: TensorType) -> tuple[object, ...]:
    """What outputs must agree in: sizes, degrees, copies, partial sums that are more than one part, times."""
    return (
        tuple(map(whole, t.sizes)),
        tuple(map(whole, t.degrees)),
        whole(t.copy),
        tuple(n for s in t.sums if (n := whole(s)) != 1),
        tuple((a, whole(e)) for a, e in t.times),
    )


def type_text(t: TensorType) -> str:
    """For people: `4x6/2 copy 2 sum 3 time 4`."""
    parts = [
        "x".join(f"{n}/{d}" if whole(d) > 1 else str(n) for n, d in zip(t.sizes, t.degrees, strict=True)) or "scalar"
    ]
    parts += [f"copy {t.copy}"] if t.copy != ONE else []
    parts += [f"sum {'x'.join(map(str, t.sums))}"] if t.sums else []
    parts += [f"time {','.join(f'{e} on axis {a}' for a, e in t.times)}"] if t.times else []
    return " ".join(parts)


def denotation(x: Tensor, ring: Ring) -> Array:
    """The value with its partial sums added up."""
    values = x.values
    for _ in x.type.sums:
        values = ring.total(np.moveaxis(values, len(x.type.times), -1), 1)
    return np.asarray(values)


def _check_copies(values: Array, axis: int, place: str) -> None:
    first = np.take(values, [0], axis=axis)
    unequal = np.argwhere(np.not_equal(values, first))
    if len(unequal):
        at = tuple(int(i) for i in unequal[0])
        zero = (*at[:axis], 0, *at[axis + 1 :])
        raise CopiesDiffer(place, f"copies differ: {values[at]} at {at}, {values[zero]} at {zero}")


def _resolved(node: Node, numbers: Mapping[str, int]) -> Node:
    numeric = OPERATORS[node.operator].numbers
    return Node(
        node.operator,
        (),
        tuple((k, numbers[v] if k in numeric and isinstance(v, str) else v) for k, v in node.parameters),
    )


def _step(node: Node, operands: tuple[TensorType, ...], ring: Ring) -> Step:
    result, coordinates, body, copies = apply_node(node, operands)
    shape = extents(result)
    if int(np.prod(shape, dtype=object)) > LARGEST:
        raise EvaluationError(f"a result of shape {shape} is too large to evaluate")
    run = evaluator(body, coordinates, shape, [extents(t) for t in operands], ring)
    return Step(result, run, tuple((j, len(operands[j].times) + len(operands[j].sums) + a) for j, a in copies))


def apply_node(
    node: Node, operands: tuple[TensorType, ...]
) -> tuple[TensorType, tuple[str, ...], Expression, tuple[tuple[int, int], ...]]:
    """Type, coordinates and lifted index expression of the result; operand axes whose copies must be equal.  Raises
    `IllTyped` if the operator does not type.
    """
    try:
        m = meaning(node, tuple(len(t.sizes) for t in operands))
    except RankError as error:
        raise IllTyped("", str(error)) from None
    names: dict[str, int] = {k: v for k, v in node.parameters if isinstance(v, int)}
    for j, t in enumerate(operands):
        for a, (s, d) in enumerate(zip(t.sizes, t.degrees, strict=True)):
            names[f"{j}.{a}"], names[f"{j}.{a}.degree"] = whole(s), whole(d)
    x = operands[0] if operands else None
    names["0.sum"] = whole(x.sums[0]) if x and x.sums else 1
    names["0.time"], names["0.time.axis"] = (whole(x.times[0][1]), x.times[0][0]) if x and x.times else (1, -1)
    trees: list[Tree | None] = list(result_trees(m, operands))
    if isinstance(m.tree, Part) and x is not None:
        tree = x.trees[m.tree.axis]
        if tree is None:
            raise IllTyped("", f"axis {m.tree.axis} was not joined by a concat")
        for one, other in tree.needs:
            _settle(whole(one) == whole(other), f"the operands joined axis {m.tree.axis} at {one} and at {other}")
        names[m.tree.at] = whole(tree.at)
        trees[m.tree.axis] = tree.first if m.tree.which == 0 else tree.second
    _define(m, names)
    for c in m.require:
        _settle(holds(c, names), f"needs {_said(c, names)}")
    if isinstance(m.tree, Join) and x is not None:
        a = m.tree.axis
        trees[a] = Tree(x.sizes[a], x.trees[a], operands[1].trees[a])
    here = _with_numbers(m, {k: Poly.of(v) for k, v in names.items()})
    degrees, copy, sums, times, conditions, body = shards("", here, operands)
    for c in conditions:
        _settle(holds(c, {}), f"needs {c}")
    _settle(all(whole(s) >= 1 for s in here.sizes), f"the result would have sizes {', '.join(map(str, here.sizes))}")
    result = TensorType(here.sizes, degrees, tuple(trees), copy, sums, times)
    coordinates = (
        *(f"t{j}" for j in range(len(times))),
        *(f"q{j}" for j in range(len(sums))),
        *(f"i{j}" for j in range(len(here.sizes))),
    )
    return result, coordinates, body, m.copies


def _define(m: Meaning, names: dict[str, int]) -> None:
    for d in m.define:
        match d:
            case Floor():
                names[d.name] = d.numerator.value(names) // d.denominator.value(names)
            case Largest():
                names[d.name] = max(d.first.value(names), d.second.value(names))
            case Quotient():
                v, w = d.value.value(names), d.divisor.value(names)
                _settle(divides(w, v), f"{w} does not divide {v}")
                names[d.name] = v // w
            case Shrunk():
                v, w = d.value.value(names), d.divisor.value(names)
                _settle(v == 1 or divides(w, v), f"{v} is neither 1 nor a multiple of {w}")
                names[d.name] = 1 if v == 1 else v // w
            case _:
                assert_never(d)


def _settle(good: bool, message: str) -> None:
    if not good:
        raise IllTyped("", message)


def _said(c: Condition, names: Mapping[str, int]) -> str:
    numbers = {k: Poly.of(v) for k, v in names.items()}
    match c:
        case Equal():
            return f"{c.left.substitute(numbers)} = {c.right.substitute(numbers)}"
        case AtLeast():
            return f"{c.value.substitute(numbers)} >= 0"
        case Divides() | OneOrMultiple():
            return f"{c.divisor.substitute(numbers)} to divide {c.value.substitute(numbers)}"
        case _:
            assert_never(c)


def _with_numbers(m: Meaning, names: Mapping[str, Poly]) -> Meaning:
    def index(ps: Index) -> Index:
        return tuple(p.substitute(names) for p in ps)

    a = m.auxiliary
    aux = (
        None
        if a is None
        else Auxiliary(
            a.copy.substitute(names),
            a.sums_taken,
            index(a.sums),
            a.times_taken,
            tuple((k, e.substitute(names)) for k, e in a.times),
        )
    )
    return Meaning(
        index(m.sizes),
        substitute(m.body, names),
        (),
        (),
        None if m.degrees is None else index(m.degrees),
        m.copies,
        m.tree,
        aux,
    )
