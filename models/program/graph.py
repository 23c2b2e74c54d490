"""The computation graph: tensors, operators in topological order, and its own JSON.

A tensor dimension is one *digit*: importers split and merge flat axes into digits (1024 = 16 heads x 64) so that
reshapes disappear.  `source_shape` keeps the shape the user knows; row-major, the two are views of each other.

Invariants (tested by `Graph.check`):
* names of tensors and operators are unique; every operator writes one tensor, every tensor has at most one writer
* operators are in topological order; tensors without writer are inputs or parameters
* every axis of an operator has one extent >= 1, every output index is a single parallel axis of the dimension's extent
* input indices name axes of the operator and have as many maps as the tensor has dimensions
* reduction axes do not occur in the output, and are combined as the operator's function combines
  (`operators.Function.combines`)
* taps of a window, which its kernels read whole, are not splittable
* `state`: a parameter has one next value, computed, of its shape and element type, which is no next value of another;
  nothing reads the parameter after its next value is written, because the two share their storage
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from enum import Enum
from math import inf, isfinite, isnan, nan, prod
from typing import Final

from ..files.json_text import JsonError, parse_json
from . import attention, attention_pairs, fused
from .contents import DIGEST, Contents
from .index import Access, Affine, Axis, Combine
from .operators import BY_DATA, EVEN, FUNCTIONS, LOADS, NodeKind, Operator, Value


class GraphError(ValueError):
    """A graph that is not well formed; `place` names the operator or tensor."""

    def __init__(self, place: str, message: str) -> None:
        super().__init__(f"{place}: {message}")
        self.place, self.message = place, message


class UnsupportedOperators(ValueError):
    """A model uses operators we cannot represent.  `missing` maps operator kind -> places, all listed at once;
    `nearest` some kinds -> how to write them otherwise.
    """

    def __init__(
        self,
        missing: dict[str, list[str]],
        hint: str = "supported operators: 'shardproof import --list-ops'",
        nearest: Mapping[str, str] | None = None,
    ) -> None:
        parts = [
            f"{kind} ({len(at)}: {', '.join(at[:4])}{', ..' if len(at) > 4 else ''})"
            + (f", nearest: {nearest[kind]}" if nearest and nearest.get(kind) else "")
            for kind, at in sorted(missing.items())
        ]
        super().__init__(f"unsupported operators: {'; '.join(parts)}; {hint}")
        self.missing = missing


class Role(Enum):
    """What a tensor is to the program."""

    INPUT = "input"
    PARAMETER = "parameter"
    VALUE = "value"


STATED: Final = "constant."
"""How importers begin the name of an input whose contents the program states: `contents`, where they are known."""


@dataclass(frozen=True)
class Tensor:
    """`shape` in digits, element type `dtype` (float32, bfloat16, float16, float64, int64, int32, bool).  `contents`:
    of an input that is a constant of the program.  `frozen`: a parameter that no training step changes.
    """

    name: str
    shape: tuple[int, ...]
    dtype: str = "float32"
    role: Role = Role.VALUE
    source_shape: tuple[int, ...] | None = None
    contents: Contents | None = None
    frozen: bool = False

    @property
    def elements(self) -> int:
        """Number of elements."""
        return prod(self.shape)

    @property
    def element_bytes(self) -> int:
        """Bytes per element."""
        return ELEMENT_BYTES[self.dtype]


ELEMENT_BYTES = {
    "float64": 8,
    "float32": 4,
    "bfloat16": 2,
    "float16": 2,
    "int64": 8,
    "int32": 4,
    "int16": 2,
    "int8": 1,
    "uint8": 1,
    "bool": 1,
}


@dataclass(frozen=True)
class Graph:
    """See the module docstring.  `outputs`: tensors the user wants, in order.

    `state`: pairs (parameter, tensor that holds its next value).  The next value is stored where the parameter was, in
    the layout that the parameter has at the start of the step, so that steps can follow each other.
    """

    name: str
    tensors: tuple[Tensor, ...]
    operators: tuple[Operator, ...]
    outputs: tuple[str, ...]
    state: tuple[tuple[str, str], ...] = ()
    _by_name: dict[str, Tensor] = field(init=False, repr=False, compare=False, hash=False, default_factory=dict)
    _by_operator: dict[str, Operator] = field(init=False, repr=False, compare=False, hash=False, default_factory=dict)

    def __post_init__(self) -> None:
        self._by_name.update({t.name: t for t in self.tensors})
        self._by_operator.update({op.name: op for op in self.operators})

    def tensor(self, name: str) -> Tensor:
        """The tensor called `name`; KeyError if there is none."""
        return self._by_name[name]

    def operator(self, name: str) -> Operator:
        """The operator called `name`; KeyError if there is none."""
        return self._by_operator[name]

    def flops_per_point(self, op: Operator) -> int:
        """Floating-point operations of `op` per point of its iteration space (attention: per pair of query and key):
        none where the result is integer or logical.
        """
        if not self.tensor(op.output.tensor).dtype.startswith(("float", "bfloat")):
            return 0
        if op.kind is NodeKind.OPAQUE:  # what its reference does
            flops = op.attribute("flops", op.spec.flops)
            return flops if isinstance(flops, int) and flops >= 0 else op.spec.flops
        if op.kind is NodeKind.ATTENTION:
            return attention.operations(op)
        return op.spec.flops * (len(op.inputs) // 2 if op.function == "product_sum" else 1)

    def computed_in(self, op: Operator) -> str:
        """The element type whose peak counts for `op`: its result's; attention computes in its first operand's."""
        return self.tensor((op.inputs[0] if op.kind is NodeKind.ATTENTION else op.output).tensor).dtype

    def points(self, op: Operator) -> int:
        """Points of the iteration space of `op` that cost: all, but one row of a table that rows are picked from or
        added to, and one group of a grouped product; of attention the pairs of query and key that its band leaves.
        """
        if op.kind is NodeKind.ATTENTION:
            return attention_pairs.points(op)
        return prod(a.extent for a in op.axes if a.name != op.rows)

    def work(self, op: Operator) -> int:
        """Floating-point operations of `op` on one device."""
        return self.points(op) * self.flops_per_point(op)

    @property
    def results(self) -> tuple[str, ...]:
        """What running the graph gives: its outputs, then the next values of its state."""
        return tuple(dict.fromkeys((*self.outputs, *(value for _, value in self.state))))

    def writer(self) -> dict[str, int]:
        """Tensor name -> position of the operator that writes it."""
        return {op.output.tensor: i for i, op in enumerate(self.operators)}

    def readers(self) -> dict[str, list[tuple[int, int]]]:
        """Tensor name -> [(operator position, input position)], in order."""
        out: dict[str, list[tuple[int, int]]] = {t.name: [] for t in self.tensors}
        for i, op in enumerate(self.operators):
            for j, a in enumerate(op.inputs):
                out[a.tensor].append((i, j))
        return out

    def check(self) -> Graph:
        """Return self if every invariant of the module docstring holds, else raise `GraphError`."""
        if len(self._by_name) != len(self.tensors):
            raise GraphError(f"graph {self.name!r}", "two tensors have the same name")
        names: set[str] = set()
        for op in self.operators:
            if op.name in names:
                raise GraphError(f"operator {op.name!r}", "name is used twice")
            names.add(op.name)
        for t in self.tensors:
            if any(n < 1 for n in t.shape):
                raise GraphError(
                    f"tensor {t.name!r}", f"has a dimension of size {min(t.shape)}; every extent must be at least 1"
                )
            if any(n > MOST_AXIS for n in t.shape):
                raise GraphError(f"tensor {t.name!r}", _too_long(max(t.shape)))
            if t.contents is not None and (t.role is not Role.INPUT or not DIGEST.fullmatch(t.contents.digest)):
                raise GraphError(f"tensor {t.name!r}", "has contents: it must be an input, and they a sha256")
            if t.frozen and t.role is not Role.PARAMETER:
                raise GraphError(f"tensor {t.name!r}", "is frozen, and no parameter")
            if t.dtype not in ELEMENT_BYTES:
                raise GraphError(f"tensor {t.name!r}", f"unknown element type {t.dtype!r}")
            if t.elements * t.element_bytes > MOST_WORK:
                raise GraphError(f"tensor {t.name!r}", _too_large(f"takes {t.elements * t.element_bytes} bytes"))
            if t.source_shape is not None and prod(t.source_shape) != t.elements:
                raise GraphError(f"tensor {t.name!r}", f"source shape {t.source_shape} has another size than {t.shape}")
        ready = {t.name for t in self.tensors if t.role is not Role.VALUE}
        for op in self.operators:
            self._check_operator(op, ready)
            ready.add(op.output.tensor)
        for o in self.outputs:
            if o not in ready:
                raise GraphError(f"output {o!r}", "is not computed by any operator")
        self._check_state(ready)
        return self

    def _check_state(self, ready: set[str]) -> None:
        writer, readers = self.writer(), self.readers()
        used: set[str] = set()
        for name, value in self.state:
            place = f"state of {name!r}"
            if name not in self._by_name or self._by_name[name].role is not Role.PARAMETER:
                raise GraphError(place, "is not a parameter")
            if value not in ready or value not in writer:
                raise GraphError(place, f"next value {value!r} is not computed by any operator")
            if {name, value} & used:
                raise GraphError(place, f"{name!r} or {value!r} occurs in two pairs")
            used |= {name, value}
            old, new = self._by_name[name], self._by_name[value]
            if (old.shape, old.dtype) != (new.shape, new.dtype):
                raise GraphError(
                    place, f"has shape {old.shape} of {old.dtype}, its next value {value!r} {new.shape} of {new.dtype}"
                )
            late = [self.operators[i].name for i, _ in readers[name] if i > writer[value]]
            if late:
                raise GraphError(place, f"operator {late[0]!r} reads it after {value!r} has taken its place")

    def _check_operator(self, op: Operator, ready: set[str]) -> None:
        place = f"operator {op.name!r}"
        if op.function not in FUNCTIONS:
            raise GraphError(place, f"unknown function {op.function!r}")
        low, high = op.spec.arity
        if not low <= len(op.inputs) <= high:
            raise GraphError(place, f"{op.function} takes {low}..{high} inputs, got {len(op.inputs)}")
        axes = {a.name: a for a in op.axes}
        if len(axes) != len(op.axes):
            raise GraphError(place, "two axes have the same name")
        if any(a.extent < 1 for a in op.axes):
            raise GraphError(place, "every axis needs an extent of at least 1")
        if any(a.extent > MOST_AXIS for a in op.axes):
            raise GraphError(place, _too_long(max(a.extent for a in op.axes)))
        for a in (*op.inputs, op.output):
            if a.tensor not in self._by_name:
                raise GraphError(place, f"tensor {a.tensor!r} does not exist")
            t = self._by_name[a.tensor]
            if len(a.index) != len(t.shape):
                raise GraphError(place, f"{a.tensor!r} has {len(t.shape)} dimensions, access has {len(a.index)}")
            for index in a.index:
                for name, coef in index.terms:
                    if name not in axes:
                        raise GraphError(place, f"access to {a.tensor!r} uses unknown axis {name!r}")
                    if coef < 1:
                        raise GraphError(
                            place, f"access to {a.tensor!r}: coefficient {coef} of {name!r} must be at least 1"
                        )
                reach = abs(index.offset) + sum(coef * axes[name].extent for name, coef in index.terms)
                if reach > MOST_WORK:
                    raise GraphError(place, _too_large(f"reads {a.tensor!r} up to position {reach}"))
        for a in op.inputs:
            if a.tensor not in ready:
                raise GraphError(place, f"reads {a.tensor!r} before it is written")
        if op.output.tensor in ready:
            raise GraphError(place, f"writes {op.output.tensor!r}, which already has a value")
        for k, i in enumerate(op.output.index):
            extent = self._by_name[op.output.tensor].shape[k]
            single = i.single
            if single is None or axes[single].combine is not None or axes[single].extent != extent:
                raise GraphError(
                    place, f"dimension {k} of output {op.output.tensor!r} must be one parallel axis of extent {extent}"
                )
        written = set(op.output.axes)
        if len(written) < len(op.output.index):
            raise GraphError(place, f"two dimensions of output {op.output.tensor!r} have the same axis")
        for axis in op.axes:
            if axis.combine is None and axis.name not in written:
                raise GraphError(place, f"axis {axis.name!r} is neither reduced nor in the output")
        self._check_reductions(op, place)
        for name in op.over:
            if name not in axes:
                raise GraphError(place, f"attribute over names unknown axis {name!r}")
            if op.kind is NodeKind.NORMALISE and not op.spec.statistics and axes[name].splittable:
                raise GraphError(place, f"{op.function} reads axis {name!r} whole, so it must not be splittable")
        if op.kind in BY_DATA and op.rows not in axes:
            raise GraphError(place, f"{op.function} needs attribute rows: the name of the row axis")
        if op.kind is NodeKind.GROUPED and (op.rows in op.inputs[-1].axes or op.attribute("load", EVEN) not in LOADS):
            raise GraphError(
                place,
                f"{op.function} needs ids that do not depend on axis {op.rows!r}, and attribute load: one of {LOADS}",
            )
        if op.kind is NodeKind.ATTENTION and (reason := attention.wrong(op)):
            raise GraphError(place, reason)
        if reason := fused.wrong(op):
            raise GraphError(place, reason)
        if op.function == "product_sum" and len(op.inputs) % 2:
            raise GraphError(place, "product_sum takes pairs of inputs")
        if self.work(op) > MOST_WORK:
            raise GraphError(place, _too_large(f"does {self.work(op)} operations on one device"))
        operands = [self._by_name[a.tensor] for a in (*op.inputs, op.output)]
        moved = sum(t.elements * t.element_bytes for t in operands)
        if op.kind is NodeKind.GATHER:  # one element of the table per point
            moved += self.points(op) * operands[0].element_bytes
        if moved > MOST_WORK:
            raise GraphError(place, _too_large(f"reads and writes {moved} bytes"))

    def _check_reductions(self, op: Operator, place: str) -> None:
        """A file may not say how partial results add up: that follows from the function."""
        named, allowed, used = (
            {name for a in op.inputs for name in a.axes},
            op.spec.combines,
            {a.combine for a in op.reduced},
        )
        if len(used) > 1:
            raise GraphError(
                place,
                f"reduction axes {', '.join(a.name for a in op.reduced)} are combined in {len(used)} ways; an "
                f"operator has one",
            )
        for axis in op.reduced:
            if not allowed:
                raise GraphError(place, f"{op.function} has no reduction axes, and axis {axis.name!r} is one")
            if axis.combine not in allowed:
                said = axis.combine.value if axis.combine else None
                raise GraphError(
                    place,
                    f"{op.function} combines partial results by {allowed[0].value}, axis {axis.name!r} says {said}",
                )
            if axis.splittable and (
                op.kind is NodeKind.WINDOW or (op.function == "strided_gradient" and axis.name not in named)
            ):
                raise GraphError(
                    place, f"{op.function} reads whole windows, so the tap axis {axis.name!r} must not be splittable"
                )

    def to_json(self) -> str:
        """Canonical JSON text (sorted keys, no spaces): equal graphs give equal bytes."""
        return json.dumps(
            {
                "format": "shardproof-graph/1",
                "name": self.name,
                "tensors": [
                    {
                        "name": t.name,
                        "shape": list(t.shape),
                        "dtype": t.dtype,
                        "role": t.role.value,
                        **({} if t.source_shape is None else {"source_shape": list(t.source_shape)}),
                        **({} if t.contents is None else {"contents": t.contents.digest}),
                        **({"frozen": True} if t.frozen else {}),
                    }
                    for t in self.tensors
                ],
                "operators": [_operator_json(op) for op in self.operators],
                "outputs": list(self.outputs),
                **({"state": [list(pair) for pair in self.state]} if self.state else {}),
            },
            sort_keys=True,
            separators=(",", ":"),
            allow_nan=False,
        )

    def sha256(self) -> str:
        """Hash of the canonical JSON."""
        return hashlib.sha256(self.to_json().encode()).hexdigest()

    @staticmethod
    def from_json(text: str) -> Graph:
        """Read `to_json` text.  Raises `GraphError` naming the place of the first problem."""
        try:
            data = parse_json(text)
        except JsonError as e:
            raise GraphError("graph file", f"is not our JSON: {str(e)[:200]}") from None
        if not isinstance(data, dict) or data.get("format") != "shardproof-graph/1":
            raise GraphError("graph file", 'lacks "format": "shardproof-graph/1"')
        try:
            tensors = tuple(
                Tensor(
                    _text(t["name"]),
                    _ints(t["shape"]),
                    _text(t["dtype"]),
                    Role(t["role"]),
                    _ints(t["source_shape"]) if "source_shape" in t else None,
                    Contents(_text(t["contents"])) if "contents" in t else None,
                    _flag(t.get("frozen", False)),
                )
                for t in data["tensors"]
            )
            operators = tuple(_operator_from(o) for o in data["operators"])
            graph = Graph(
                _text(data["name"]),
                tensors,
                operators,
                tuple(_text(o) for o in data["outputs"]),
                _pairs(data.get("state", [])),
            )
        except (KeyError, TypeError, ValueError, AttributeError, IndexError, OverflowError) as e:
            raise GraphError("graph file", f"{type(e).__name__}: {str(e)[:200]}") from None
        return graph.check()


MOST_AXIS = (1 << 31) - 1
"""Largest extent of one axis: positions along it are int32 in kernels, MPI counts and index tensors."""


def _too_long(extent: int) -> str:
    return (
        f"has an axis of {extent}, more than int32 can count ({MOST_AXIS}); reshape it into two axes, or plan a "
        f"smaller instance"
    )


MOST_WORK = 1 << 62
"""Most bytes of a tensor, operations of an operator and positions along a dimension: they are computed in int64."""


def _too_large(what: str) -> str:
    return f"{what}, more than 2**62; plan a smaller instance"


MOST_EXTENT = 1 << 40
"""Largest extent, coefficient or offset a file may hold: products of a few stay far below what Python needs memory
for.
"""


def _text(value: object) -> str:
    if not isinstance(value, str):
        raise ValueError(f"{value!r} is not a text")
    return value


def _int(value: object) -> int:
    if type(value) is not int or abs(value) > MOST_EXTENT:
        raise ValueError(f"{str(value)[:40]} is not an integer of at most 2**40")
    return value


def _flag(value: object) -> bool:
    if not isinstance(value, bool):
        raise ValueError(f"{value!r} is neither true nor false")
    return value


def _pairs(values: object) -> tuple[tuple[str, str], ...]:
    if not isinstance(values, list) or any(not isinstance(v, list) or len(v) != 2 for v in values):
        raise ValueError("state is not a list of pairs")
    return tuple((_text(a), _text(b)) for a, b in values)


def _ints(values: Sequence[object]) -> tuple[int, ...]:
    if not isinstance(values, list):
        raise ValueError(f"{values!r} is not a list")
    return tuple(_int(v) for v in values)


def _affine_json(i: Affine) -> object:
    if i.single is not None:
        return i.single
    return {"terms": [[a, c] for a, c in i.terms], "offset": i.offset, **({"whole": True} if i.whole else {})}


def _affine_from(data: object) -> Affine:
    if isinstance(data, str):
        return Affine.axis(data)
    if not isinstance(data, dict):
        raise ValueError(f"{data!r} is not an index")
    return Affine(
        tuple((_text(a), _int(c)) for a, c in data["terms"]), _int(data["offset"]), _flag(data.get("whole", False))
    )


def _access_from(data: Sequence[object]) -> Access:
    tensor, index = data
    if not isinstance(index, list):
        raise ValueError(f"{index!r} is not a list of indices")
    return Access(_text(tensor), tuple(_affine_from(i) for i in index))


_NON_FINITE: Final = {"inf": inf, "-inf": -inf, "nan": nan}
"""Numbers that JSON lacks, by the texts that name them; as `nan` is one object, graphs that hold it can be equal."""


def _value_json(v: Value) -> object:
    """A number that JSON lacks is an object `{"float": "-inf"}`: a text of the same letters stays a text."""
    if isinstance(v, float) and not isfinite(v):
        return {"float": "nan" if isnan(v) else "inf" if v > 0 else "-inf"}
    return list(v) if isinstance(v, tuple) else v


def _value_from(v: object) -> Value:
    if isinstance(v, list):
        return tuple(_text(x) for x in v) if any(isinstance(x, str) for x in v) else _ints(v)
    if isinstance(v, dict):
        number = _NON_FINITE.get(_text(v["float"])) if v.keys() == {"float"} else None
        if number is None:
            raise ValueError(f'{str(v)[:60]} is not an attribute value: {{"float": one of {", ".join(_NON_FINITE)}}}')
        return number
    if isinstance(v, str) or type(v) is int or (isinstance(v, float) and isfinite(v)):  # 1e999 is read as infinite
        return v
    raise ValueError(f"{str(v)[:60]!r} is not an attribute value")


def _operator_json(op: Operator) -> dict[str, object]:
    def one(a: Access) -> list[object]:
        return [a.tensor, [_affine_json(i) for i in a.index]]

    return {
        "name": op.name,
        "function": op.function,
        "axes": [[a.name, a.extent, a.combine.value if a.combine else None, a.splittable] for a in op.axes],
        "inputs": [one(a) for a in op.inputs],
        "output": one(op.output),
        "attributes": {k: _value_json(v) for k, v in op.attributes},
    }


def _operator_from(data: dict[str, object]) -> Operator:
    axes, inputs, output, attributes = data["axes"], data["inputs"], data["output"], data["attributes"]
    if not (
        isinstance(axes, list)
        and isinstance(inputs, list)
        and isinstance(output, list)
        and isinstance(attributes, dict)
    ):
        raise ValueError(f"operator {data.get('name')!r} is malformed")

    return Operator(
        _text(data["name"]),
        _text(data["function"]),
        tuple(Axis(_text(n), _int(e), Combine(c) if c is not None else None, _flag(s)) for n, e, c, s in axes),
        tuple(_access_from(a) for a in inputs),
        _access_from(output),
        tuple(sorted((_text(k), _value_from(v)) for k, v in attributes.items())),
    )
