"""What the conversion of an exported PyTorch program knows: nodes as plain data, values, constants,
names.

Handlers (`dense`, `window`, `layout`, `pointwise`) see no PyTorch object; only `program` and
`fold` do.  A constant of the program (a mask, position ids) stays a constant until an operator must read it; then it
becomes an input of the graph, with its contents beside it (`Context.stated`).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from math import prod
from typing import Final

import numpy as np
import numpy.typing as npt

from ...program.graph import Graph, GraphError
from ...program.index import Access, Affine, Axis
from ...program.operators import Value
from ...program.specified import Specified
from ..building.builder import Builder
from ..building.digits import Digits
from ..building.exact import INTEGERS, as_real, wrap_number
from ..building.flat import Flat, Named, Unsupported, letters
from ..building.intervals import Interval, inside, interval
from .integers import common_type, contents_within, wider_operands

Constant = npt.NDArray[np.generic]


class TorchError(ValueError):
    """A program that cannot be imported; `place` names the file, node or value."""

    def __init__(self, place: str, message: str) -> None:
        super().__init__(f"{place}: {message}")
        self.place, self.message = place, message


@dataclass(frozen=True)
class Ref:
    """A value of the program; `result` counts the results of its node."""

    node: str
    result: int = 0


Argument = Ref | bool | int | float | str | None | tuple["Argument", ...]


@dataclass(frozen=True)
class Node:
    """An operator call: `kind` (aten.add.Tensor), the name of its FX node, the path of the module that calls it,
    arguments by name.

    `own`: the innermost module is one of PyTorch's layers, so that its main operator may carry the module's name.
    """

    kind: str
    name: str
    path: str
    own: bool
    arguments: Mapping[str, Argument]
    shapes: tuple[tuple[int, ...], ...]
    dtypes: tuple[str, ...]

    @property
    def shape(self) -> tuple[int, ...]:
        """Shape of the first result."""
        return self.shapes[0]

    @property
    def dtype(self) -> str:
        """Element type of the first result."""
        return self.dtypes[0]

    def ref(self, name: str) -> Ref:
        """A tensor argument."""
        value = self.arguments.get(name)
        if isinstance(value, Ref):
            return value
        raise TorchError(f"node {self.name!r}", f"{self.kind}: argument {name} must be a tensor, not {value!r}")

    def refs(self, name: str) -> tuple[Ref, ...]:
        """A list of tensors."""
        value = self.arguments.get(name)
        if isinstance(value, tuple) and all(isinstance(v, Ref) for v in value):
            return tuple(v for v in value if isinstance(v, Ref))
        raise TorchError(f"node {self.name!r}", f"{self.kind}: argument {name} must be tensors, not {value!r}")

    def optional(self, name: str) -> Ref | None:
        """A tensor argument that may be absent."""
        value = self.arguments.get(name)
        return value if isinstance(value, Ref) else None

    def integer(self, name: str, default: int) -> int:
        """An integer (or flag)."""
        value = self.arguments.get(name)
        if value is None:
            return default
        if isinstance(value, int):
            return int(value)
        raise Unsupported(f"computed {name}")

    def integers(self, name: str) -> tuple[int, ...] | None:
        """A list of integers; a single one is a list of one."""
        value = self.arguments.get(name)
        if value is None:
            return None
        if isinstance(value, int):
            return (value,)
        if isinstance(value, tuple) and all(isinstance(v, int) for v in value):
            return tuple(v for v in value if isinstance(v, int))
        raise Unsupported(f"computed {name}")

    def number(self, name: str, default: float) -> float:
        """A number, a whole one from 2 to the 53 on as it stands."""
        value = self.arguments.get(name)
        if value is None:
            return default
        if isinstance(value, (int, float)):
            return as_real(value)
        raise Unsupported(f"computed {name}")

    def text(self, name: str, default: str) -> str:
        """A text."""
        value = self.arguments.get(name)
        return value if isinstance(value, str) else default


@dataclass
class Context(Flat):
    """State of one conversion.

    `weights`: placeholder -> (stored name, shape, element type), a parameter at its first use.  `shapes`, `dtypes`: of
    every value.  `constants`: contents of values that depend on no input and no weight; `makers`: the nodes that
    computed them; `emit` makes a tensor of one (`constants`).  `stated`: graph input -> contents it must have;
    `contents`: of every tensor that is a constant.  `chosen`: indices of the k largest -> (of what, k, along which
    dimension).  `opposite`: a negated mask -> the mask.
    `permutations`: values that hold every position once; `ascending`: tensors in order; `counted`: numbers per integer,
    or their running sums -> the integers; `pieces`: (dimension, parts first to last) of what is written part by part.
    `noise`: random numbers, even in [0, 1), -> what was added to them (`noise`); `drawn`: inputs that stand for random
    numbers, in words.  `specified`: uses of operators that the user specified.
    """

    g: Builder
    reserved: frozenset[str]
    weights: dict[str, tuple[str, tuple[int, ...], str]]
    read: frozenset[Ref]
    emit: Callable[[Context, Ref], str]
    values: dict[Ref, str] = field(default_factory=dict)
    shapes: dict[Ref, tuple[int, ...]] = field(default_factory=dict)
    dtypes: dict[Ref, str] = field(default_factory=dict)
    constants: dict[Ref, Constant] = field(default_factory=dict)
    makers: dict[Ref, Node] = field(default_factory=dict)
    stated: dict[str, Constant] = field(default_factory=dict)
    contents: dict[str, Constant] = field(default_factory=dict)
    chosen: dict[Ref, tuple[Ref, int, int]] = field(default_factory=dict)
    opposite: dict[Ref, Ref] = field(default_factory=dict)
    permutations: set[Ref] = field(default_factory=set)
    ascending: set[str] = field(default_factory=set)
    counted: dict[Ref, str] = field(default_factory=dict)
    pieces: dict[Ref, tuple[int, tuple[tuple[int, int, str], ...]]] = field(default_factory=dict)
    noise: dict[Ref, float] = field(default_factory=dict)
    drawn: list[str] = field(default_factory=list)
    where: dict[str, str] = field(default_factory=dict)
    places: dict[str, Node] = field(default_factory=dict)
    bands: dict[Ref, object] = field(default_factory=dict)
    shared: dict[tuple[tuple[int, ...], str, bytes], str] = field(default_factory=dict)
    casts: dict[tuple[str, str], str] = field(default_factory=dict)
    spans: dict[str, Interval] = field(default_factory=dict)
    specified: list[Specified] = field(default_factory=list)

    def name(self, node: Named, part: str = "") -> str:
        """Names follow the modules: `encoder.layer.0.query`, `encoder.layer.0.query.bias_add`."""
        at = self.places[node.name]
        short = at.kind.removeprefix("aten.").partition(".")[0].strip("_")
        path, ending = at.path, part or short
        if at.own and not part and path and path not in self.g.tensors and path not in self.reserved:
            ending = ""
        name = self.unique(".".join(filter(None, (path, ending))))
        self.where[name] = node.name
        return name

    def operator(
        self,
        node: Named,
        part: str,
        function: str,
        axes: Sequence[Axis],
        inputs: Sequence[Access],
        out: Sequence[str],
        attributes: Mapping[str, Value] | None = None,
        dtype: str | None = None,
    ) -> str:
        """Add an operator of the node, whose integers are computed in the element type of the result (`integers`)."""
        own = dtype or (self.places[node.name].dtype if node.name in self.places else "")
        if function in ("copy", "update") and dtype is None:
            dtype = common_type(self.g, inputs)
        if own in INTEGERS:
            for k in wider_operands(self.g, function, axes, inputs, attributes or {}, own, self._given()):
                inputs = [Access(self.convert(node, a.tensor, own), a.index) if j == k else a
                          for j, a in enumerate(inputs)]  # fmt: skip
        return super().operator(node, part, function, axes, inputs, out, attributes, dtype)

    def convert(self, node: Named, tensor: str, dtype: str) -> str:
        """A tensor in another element type, made once."""
        if (tensor, dtype) not in self.casts:
            shape = self.g.tensors[tensor].shape
            names = letters(len(shape))
            axes = [Axis(a, n) for a, n in zip(names, shape, strict=True)]
            read = Access(tensor, tuple(map(Affine.axis, names)))
            made = self.g.operator(self.name(node, "cast"), "cast", axes, [read], names, {"dtype": dtype}, dtype)
            self.casts[tensor, dtype] = made
        return self.casts[tensor, dtype]

    def within(self, value: Ref) -> Interval:
        """Between which numbers the elements of a value lie."""
        found = self.constants.get(value)
        if found is not None and found.dtype.kind in "iu" and found.size:
            return int(found.min()), int(found.max())
        return interval(self.g.operators, self.g.tensors, self.tensor(value), self._given())

    def _given(self) -> Mapping[str, Interval]:
        return contents_within(self.g, self.contents, self.spans)

    def tensor(self, value: Ref) -> str:
        """Our tensor of a value; weights and constants become tensors at their first use."""
        if value not in self.values:
            if value.node in self.weights:
                name, shape, dtype = self.weights[value.node]
                if name not in self.g.tensors:
                    self.g.parameter(name, shape or (1,), dtype, None if shape else ())
                self.values[value] = name
            elif value in self.constants:
                if self.constants[value].size == 0:
                    raise Unsupported("an operand without elements")
                self.values[value] = self.emit(self, value)
            elif self.noise.get(value) == 0.0:
                self.draw(value, "uniform in [0, 1)")
            elif value in self.noise:
                raise Unsupported("random numbers and a number, no mask of dropout; add it to a random input")
            else:
                raise TorchError(f"value {value.node!r}", "is used before any node computes it")
        return self.values[value]

    def draw(self, value: Ref, told: str) -> None:
        """Let random numbers be an input of the graph; `told`: how who runs it draws them."""
        at, shape = self.places[value.node], self.shapes[value]
        short = at.kind.removeprefix("aten.").partition(".")[0].strip("_")
        name = self.unique(".".join(filter(None, (at.path, short))))
        self.values[value] = self.g.input(name, shape or (1,), self.dtypes[value], None if shape else ())
        self.drawn.append(f"{name} ({told})")

    def operand(self, value: Ref) -> tuple[str, tuple[int, ...]]:
        """Tensor and shape of a value."""
        return self.tensor(value), self.shapes[value]

    def constant_of(self, value: Argument) -> Constant | None:
        """Contents of a constant or number, None for what is computed from inputs or weights."""
        if isinstance(value, Ref):
            return self.constants.get(value)
        return np.asarray(value) if isinstance(value, (bool, int, float)) else None

    def uniform(self, value: Argument) -> float | None:
        """The number that all elements of a constant are, if there is one."""
        found = self.constant_of(value)
        if found is None or found.size == 0:
            return None
        small = found[tuple(slice(0, 1) if n == 0 else slice(None) for n in found.strides)]
        first = small[(0,) * small.ndim]
        return as_real(first.item()) if bool(np.all(small == first)) else None

    def put(self, node: Node, tensor: str, result: int = 0) -> None:
        """Let a result of the node be `tensor`, integers as PyTorch's element type has them.  Raises `TorchError` if
        PyTorch says that it has another shape.
        """
        shape, ours = node.shapes[result], self.g.tensors[tensor].shape
        if ours != (shape or (1,)) and not (shape == () and prod(ours) == 1):
            raise TorchError(
                f"node {node.name!r}",
                f"{node.kind} has shape {shape}, the import makes {ours}; this is an error of the importer",
            )
        own, wanted = self.g.tensors[tensor].dtype, node.dtypes[result]
        wider = own in INTEGERS and wanted in INTEGERS and not inside(INTEGERS[own], wanted)
        if wider and not inside(interval(self.g.operators, self.g.tensors, tensor, self._given()), wanted):
            tensor = self.convert(node, tensor, wanted)
        self.values[Ref(node.name, result)] = tensor

    def alias(self, node: Node, value: Ref) -> None:
        """Let the result of the node be another value."""
        if value in self.constants:
            self.constants[Ref(node.name)] = self.constants[value]
        else:
            self.put(node, self.tensor(value))

    def fill(self, node: Node, number: float) -> None:
        """Let the result be the constant `number` everywhere; takes no memory."""
        kind = np.dtype("bool" if node.dtype == "bool" else "int64" if "int" in node.dtype else "float64")
        self.constants[Ref(node.name)] = np.broadcast_to(np.asarray(wrap_number(number, node.dtype), kind), node.shape)

    def require_unused(self, node: Node, first: int) -> None:
        """Refuse results from number `first` on if anybody reads them."""
        for k in range(first, len(node.shapes)):
            if Ref(node.name, k) in self.read:
                raise Unsupported(f"result {k} read")


Handler = Callable[[Context, Node], None]


def uniform_along(array: Constant, dim: int) -> bool:
    """Whether all slices along a dimension are equal."""
    if array.shape[dim] <= 1:
        return bool(array.shape[dim] == 1)
    if array.strides[dim] == 0:
        return True
    first = np.take(array, [0], axis=dim)
    return bool(np.all(np.equal(array, first)))


def dimension(node: Node, value: int, rank: int) -> int:
    """A dimension number that may count from the end.  Raises `TorchError` if it does not exist."""
    if not -rank <= value < max(rank, 1):
        raise TorchError(f"node {node.name!r}", f"dimension {value} does not exist in a tensor of rank {rank}")
    return value % rank if rank else 0


def flat_error(node: Node, error: GraphError) -> TorchError:
    """An error of the shared operators, with the node that caused it."""
    return TorchError(f"node {node.name!r}{f' (in {node.path})' if node.path else ''}", f"{node.kind}: {error.message}")


DTYPES: Final = frozenset(
    {"float64", "float32", "bfloat16", "float16", "int64", "int32", "int16", "int8", "uint8", "bool"}
)
"""PyTorch element types that we have, under the same names."""


@dataclass(frozen=True)
class Imported:
    """An imported program.

    `where`: operator -> FX node it came from.  `stated`: graph input -> contents it must have (constants of the
    program).  `digits`: what became of reshapes and transposes.  `patterns`: (pattern, operator) for compositions that
    became one function.  `notes`: what was done to the model, in words.  `results`: which of the program's
    results the outputs of the graph are.
    """

    graph: Graph
    where: Mapping[str, str]
    stated: Mapping[str, Constant]
    digits: Digits
    patterns: tuple[tuple[str, str], ...]
    notes: tuple[str, ...] = ()
    results: tuple[int, ...] = ()
