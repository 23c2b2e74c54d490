"""What the second builder reads: a program and a machine as plain data, out of their JSON."""

from __future__ import annotations

import json
from dataclasses import dataclass
from fractions import Fraction

from shardproof.models.program.operators import FUNCTIONS

BYTES = {
    "float64": 8,
    "float32": 4,
    "float16": 2,
    "bfloat16": 2,
    "int64": 8,
    "int32": 4,
    "int16": 2,
    "int8": 1,
    "uint8": 1,
    "bool": 1,
}


@dataclass(frozen=True)
class Axis:
    """`combine` is None where the axis is parallel."""

    extent: int
    combine: str | None
    splittable: bool


@dataclass(frozen=True)
class Index:
    """One dimension of an operand is touched at  sum of coefficient * axis + offset,  or entirely (`whole`)."""

    terms: tuple[tuple[str, int], ...]
    offset: int = 0
    whole: bool = False


@dataclass(frozen=True)
class Operand:
    tensor: str
    index: tuple[Index, ...]


@dataclass(frozen=True)
class Operator:
    """`flops` per point of the function table, `statistics`: how many values each normalised element depends on."""

    name: str
    function: str
    kind: str
    flops: int
    statistics: int
    axes: dict[str, Axis]
    inputs: tuple[Operand, ...]
    output: Operand
    attributes: dict[str, object]

    @property
    def written(self) -> list[str]:
        """Axes of the result, in its order."""
        return [index.terms[0][0] for index in self.output.index]

    @property
    def reduced(self) -> list[str]:
        """Axes that are reduced, in the operator's order."""
        return [name for name, axis in self.axes.items() if axis.combine is not None]


@dataclass(frozen=True)
class Tensor:
    name: str
    shape: tuple[int, ...]
    dtype: str
    role: str
    host: bool = False

    @property
    def size(self) -> int:
        """Bytes of a device per element."""
        return 0 if self.host else BYTES[self.dtype]


@dataclass(frozen=True)
class Program:
    """`state`: parameter -> the tensor that takes its place at the end of the step."""

    tensors: dict[str, Tensor]
    operators: tuple[Operator, ...]
    outputs: tuple[str, ...]
    state: dict[str, str]


@dataclass(frozen=True)
class ProductTable:
    """Measured products of one element type: seconds, per tile those of one step of 64."""

    processors: int
    tiles: dict[tuple[int, int], Fraction]
    launch: Fraction
    tail: Fraction
    step: Fraction
    split: Fraction
    sum: Fraction
    result: Fraction
    odd: Fraction


@dataclass(frozen=True)
class Device:
    """Peaks in flop/s per element type, memory bandwidth in bytes/s, seconds per launch; measured products, and measured
    attention by type and direction: processors, then the constants by name.
    """

    peaks: dict[str, Fraction]
    bandwidth: Fraction
    launch: Fraction
    products: dict[str, ProductTable]
    attention: dict[tuple[str, str], dict[str, Fraction]]
    host: Fraction | None


@dataclass(frozen=True)
class Machine:
    """Per level size, bytes/s and seconds per phase; the device behind every rank; measured seconds of boxes; per level
    the six constants of every collective, where they are measured.
    """

    sizes: tuple[int, ...]
    bandwidths: tuple[Fraction, ...]
    latencies: tuple[Fraction, ...]
    devices: tuple[Device, ...]
    measured: dict[tuple[str, str, tuple[int, ...]], Fraction]
    collectives: tuple[dict[str, tuple[Fraction, ...]], ...]


def read_program(text: str) -> Program:
    """The program of `Graph.to_json()`."""
    data = json.loads(text)
    tensors = {
        t["name"]: Tensor(t["name"], tuple(t["shape"]), t["dtype"], t["role"], t.get("host", False))
        for t in data["tensors"]
    }
    state = {parameter: value for parameter, value in data.get("state", [])}
    return Program(tensors, tuple(_operator(o) for o in data["operators"]), tuple(data["outputs"]), state)


def _operator(data: dict) -> Operator:
    row = FUNCTIONS[data["function"]]
    axes = {name: Axis(extent, combine, splittable) for name, extent, combine, splittable in data["axes"]}
    inputs = tuple(_operand(a) for a in data["inputs"])
    return Operator(
        data["name"],
        data["function"],
        row.kind.value,
        row.flops,
        len(row.statistics),
        axes,
        inputs,
        _operand(data["output"]),
        data["attributes"],
    )


def _operand(data: list) -> Operand:
    tensor, indices = data
    return Operand(tensor, tuple(_index(i) for i in indices))


def _index(data: str | dict) -> Index:
    if isinstance(data, str):
        return Index(((data, 1),))
    return Index(tuple((axis, factor) for axis, factor in data["terms"]), data["offset"], data.get("whole", False))


def read_machine(text: str) -> Machine:
    """The machine of `Machine.to_json()`."""
    data = json.loads(text)
    sizes = tuple(level["size"] for level in data["level"])
    ranks = 1
    for size in sizes:
        ranks *= size
    rest = next(c for c in data["device_class"] if not c.get("blocks"))
    devices = []
    for rank in range(ranks):
        block = rank * sizes[0] // ranks
        devices.append(_device(next((c for c in data["device_class"] if block in c.get("blocks", ())), rest)))
    measured = {
        (p["function"], p["dtype"], tuple(p["extents"])): Fraction(p["seconds"]) for p in data.get("profile", [])
    }
    return Machine(
        sizes,
        tuple(Fraction(level["bandwidth"]) for level in data["level"]),
        tuple(Fraction(level["latency"]) for level in data["level"]),
        tuple(devices),
        measured,
        tuple(_collectives(level) for level in data["level"]),
    )


def _collectives(level: dict) -> dict[str, tuple[Fraction, ...]]:
    names = ("all_gather", "reduce_scatter", "all_reduce", "alltoall")
    constants = ("fixed", "hop", "slow", "start", "wire", "own")
    return {name: tuple(Fraction(level[name][c]) for c in constants) for name in names if name in level}


def _device(data: dict) -> Device:
    return Device(
        {dtype: Fraction(v) for dtype, v in data["peaks"].items()},
        Fraction(data["bandwidth"]),
        Fraction(data["launch"]),
        {p["dtype"]: _product(p) for p in data.get("product", [])},
        {
            (a["dtype"], a["direction"]): {k: Fraction(v) for k, v in a.items() if k not in ("dtype", "direction")}
            for a in data.get("attention", [])
        },
        Fraction(data["host"]) if "host" in data else None,
    )


def _product(data: dict) -> ProductTable:
    tiles = {tuple(map(int, key.split("x"))): Fraction(value) for key, value in data["tiles"].items()}
    constants = ("launch", "tail", "step", "split", "sum", "result", "odd")
    return ProductTable(data["processors"], tiles, *(Fraction(data[c]) for c in constants))
