"""What the conversion of an ONNX graph knows: values, constants, shapes, names, and where operators
came from.

Handlers (`dense`, `window`, `layout`, `pointwise`) see nodes as plain data; only `onnx` sees the file.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt

from ...program.graph import STATED
from ..building.builder import Builder
from ..building.flat import Flat, Unsupported
from ..building.stated import asked_for, constant_tensor

Constant = npt.NDArray[np.generic]
Attribute = int | float | str | tuple[int, ...] | tuple[float, ...] | Constant


class OnnxError(ValueError):
    """A file that cannot be imported; `place` names the file, node or value."""

    def __init__(self, place: str, message: str) -> None:
        super().__init__(f"{place}: {message}")
        self.place, self.message = place, message


@dataclass(frozen=True)
class Node:
    """An ONNX node as plain data; `name` is its own name, or its first output if it has none."""

    kind: str
    name: str
    inputs: tuple[str, ...]
    outputs: tuple[str, ...]
    attributes: Mapping[str, Attribute]

    def integer(self, name: str, default: int) -> int:
        """Integer attribute."""
        value = self.attributes.get(name, default)
        if isinstance(value, int):
            return value
        raise OnnxError(f"node {self.name!r}", f"attribute {name} must be an integer")

    def number(self, name: str, default: float) -> float:
        """Floating-point attribute.

        It is stored as float32; the shortest decimal that rounds to the stored value is what the author wrote.
        """
        value = self.attributes.get(name, default)
        if isinstance(value, (int, float)):
            return float(str(np.float32(value))) if name in self.attributes else float(value)
        raise OnnxError(f"node {self.name!r}", f"attribute {name} must be a number")

    def text(self, name: str, default: str) -> str:
        """Text attribute."""
        value = self.attributes.get(name, default)
        if isinstance(value, str):
            return value
        raise OnnxError(f"node {self.name!r}", f"attribute {name} must be text")

    def integers(self, name: str) -> tuple[int, ...] | None:
        """Attribute that is a list of integers; None if it is absent."""
        value = self.attributes.get(name)
        if value is None:
            return None
        if isinstance(value, tuple):
            return tuple(int(v) for v in value)
        raise OnnxError(f"node {self.name!r}", f"attribute {name} must be a list of integers")

    def has(self, position: int) -> bool:
        """Whether the optional input is given."""
        return len(self.inputs) > position and self.inputs[position] != ""


@dataclass(frozen=True)
class Weight:
    """A stored tensor of the file: shape, element type, and its contents when they are small and present."""

    shape: tuple[int, ...]
    dtype: str
    value: Callable[[], Constant | None]


@dataclass
class Context(Flat):
    """State of one conversion.

    `read`: values that some node reads, and outputs.  `values`: ONNX value -> our tensor.  `constants`: small known
    integers and scalars.  `reference`: shapes of all values under the file's own batch, when another one is asked for
    (both conversions are run; what differs is the batch).  `folded`: constants computed from shapes.  `where`: operator
    -> node.
    """

    g: Builder
    opset: int
    weights: Mapping[str, Weight]
    reserved: frozenset[str]
    read: frozenset[str]
    batch: int | None = None
    own_batch: int | None = None
    reference: Mapping[str, tuple[int, ...]] | None = None
    values: dict[str, str] = field(default_factory=dict)
    constants: dict[str, Constant] = field(default_factory=dict)
    folded: set[str] = field(default_factory=set)
    where: dict[str, str] = field(default_factory=dict)

    def tensor(self, value: str) -> str:
        """Our tensor for an ONNX value; stored weights become parameters at first use.  Scalars are stored with
        shape (1,).
        """
        if value not in self.values:
            if value in self.weights:
                weight = self.weights[value]
                shape, dtype = weight.shape, weight.dtype
            elif value in self.constants:
                array = self.constants[value]
                made = constant_tensor(self.g, self.unique(value, own=True), array, array.dtype.name)
                self.values[value] = made or asked_for(self.g, self.unique(STATED + value), array, array.dtype.name)
                return self.values[value]
            else:
                raise OnnxError(f"value {value!r}", "is used before any node computes it")
            source = None if shape else ()
            self.values[value] = self.g.parameter(self.unique(value, own=True), shape or (1,), dtype, source)
        return self.values[value]

    def shape(self, value: str) -> tuple[int, ...]:
        """Shape of an ONNX value (under our batch)."""
        t = self.g.tensors[self.tensor(value)]
        return () if t.source_shape == () else t.shape

    def dtype(self, value: str) -> str:
        """Element type of an ONNX value."""
        return self.g.tensors[self.tensor(value)].dtype

    def constant_of(self, value: str) -> Constant | None:
        """Contents of a constant, if it is small."""
        if value not in self.constants and value in self.weights:
            found = self.weights[value].value()
            if found is not None:
                self.constants[value] = found
        return self.constants.get(value)

    def integers(self, node: Node, position: int, what: str) -> tuple[int, ...]:
        """Contents of an input that must be a constant list of integers.  Raises `Unsupported` if it is computed."""
        found = self.constant_of(node.inputs[position])
        if found is None or found.dtype.kind not in "iu":
            raise Unsupported(f"computed {what}")
        return tuple(int(v) for v in found.reshape(-1))

    def integer_list(self, node: Node, attribute: str, position: int) -> tuple[int, ...] | None:
        """A list that older operator sets keep in an attribute and newer ones in an input."""
        listed = node.integers(attribute)
        if listed is None and node.has(position):
            return self.integers(node, position, attribute)
        return listed

    def result(self, node: Node, tensor: str, position: int = 0) -> None:
        """Let an output of the node be `tensor`."""
        self.values[node.outputs[position]] = tensor

    def require_unused(self, node: Node, first: int) -> None:
        """Refuse outputs from position `first` on if anybody reads them."""
        for value in node.outputs[first:]:
            if value in self.read:
                raise Unsupported(f"output {node.outputs.index(value)} read")


Handler = Callable[[Context, Node], None]


def position(axis: int, rank: int, place: str) -> int:
    """A dimension number that may count from the end.  Raises `OnnxError` if it does not exist."""
    if not -rank <= axis < rank:
        raise OnnxError(place, f"axis {axis} does not exist in a tensor of rank {rank}")
    return axis % rank
