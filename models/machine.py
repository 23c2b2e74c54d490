"""The machine: a hierarchy of levels over identical devices, read from TOML, every constant with its source.

    H = [h_0 .. h_L]     rank = (..(c_0 * h_1 + c_1) * h_2 + ..) + c_L      (row-major; level 0 is the outermost)

A link of level l joins one child subtree of that level to its siblings: one node's NIC, one GPU's switch port.  It carries
`bandwidth` bytes/s in and as much out, and *all* devices below the child share it.  A phase of communication that crosses
the level costs `latency` seconds.  Constants are decimal text, read as exact rationals (`quantities.py`); no float enters.

    [[level]]  name, size, bandwidth, latency            [[device_class]]  name, memory, bandwidth, launch?, peaks = {dtype = flop/s}
    [[resource]]?  name, devices, capacity, traffic      [sources]  "level.nodes.bandwidth" = "where the number comes from"

A source may cover a whole table ("device_class.a100.peaks"); the most specific one is kept for each constant.

>>> m = load_machine("dgx-a100:4x8")
>>> m.hierarchy, m.devices, m.coordinates(13), m.levels[0].bandwidth, m.device.peak("float16")
((4, 8), 32, (1, 5), Fraction(9000000000, 1), Fraction(150000000000000, 1))
>>> Machine.from_json(m.to_json()) == m
True
"""

from __future__ import annotations

import hashlib
import json
import re
import tomllib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from fractions import Fraction
from math import prod
from pathlib import Path
from typing import Final

from .graph import ELEMENT_BYTES
from .quantities import Dimension, QuantityError, exact_from, exact_text, parse

BUILTIN: Final = Path(__file__).parent / "machines"
"""Folder of the built-in machines, one TOML file each."""

FORMAT: Final = "shardproof-machine/1"
MAX_LEVELS: Final = 8
MAX_DEVICES: Final = 1 << 20
MAX_FILE: Final = 1 << 16
MAX_RESOURCES: Final = 64

_NAME: Final = re.compile(r"[A-Za-z0-9][A-Za-z0-9_-]{0,63}", re.ASCII)
_SIZES: Final = re.compile(r"[0-9]{1,8}(?:x[0-9]{1,8})*", re.ASCII)


class MachineError(ValueError):
    """A machine that is not well formed.  `place` names file, table and field; `hint` the next step."""

    def __init__(self, place: str, message: str, hint: str = "") -> None:
        super().__init__(f"{place}: {message}" + (f" ({hint})" if hint else ""))
        self.place, self.message, self.hint = place, message, hint


@dataclass(frozen=True)
class Level:
    """One level: `size` children per parent; `bandwidth` bytes/s per child link, each way; `latency` seconds per phase."""

    name: str
    size: int
    bandwidth: Fraction
    latency: Fraction


@dataclass(frozen=True)
class DeviceClass:
    """A kind of device: `peaks` dtype -> flop/s (sorted), `memory` bytes, `bandwidth` bytes/s, `launch` seconds per operator."""

    name: str
    peaks: tuple[tuple[str, Fraction], ...]
    memory: int
    bandwidth: Fraction
    launch: Fraction = Fraction(0)
    origin: str = field(default="", compare=False, repr=False)  # file it was read from, for messages only

    def peak(self, dtype: str) -> Fraction:
        """Flop/s for `dtype`.  Raises `MachineError` naming the dtype and the file."""
        for name, value in self.peaks:
            if name == dtype:
                return value
        place = f"{self.origin or 'machine'}, [[device_class]] {self.name!r}, peaks"
        raise MachineError(place, f"no peak for {dtype}", f"add {dtype} = \"... Tflop/s\" and its source; there are {', '.join(n for n, _ in self.peaks)}")


@dataclass(frozen=True)
class Resource:
    """A shared link or switch: one for every `devices` consecutive ranks, `capacity` bytes/s, loaded by the traffic of these levels.

    Kept and hashed with the machine; the cost model of selection does not price it yet.
    """

    name: str
    devices: int
    capacity: Fraction
    traffic: tuple[str, ...]


@dataclass(frozen=True)
class Machine:
    """See the module docstring.  `sources`: one (constant, source text) pair per constant, sorted."""

    name: str
    levels: tuple[Level, ...]
    device: DeviceClass
    sources: tuple[tuple[str, str], ...]
    resources: tuple[Resource, ...] = ()

    @property
    def hierarchy(self) -> tuple[int, ...]:
        """Sizes of the levels, outermost first."""
        return tuple(level.size for level in self.levels)

    @property
    def devices(self) -> int:
        """Number of devices."""
        return prod(self.hierarchy)

    def coordinates(self, rank: int) -> tuple[int, ...]:
        """Row-major digits of `rank`, one per level.  Raises `MachineError` if there is no such rank."""
        if not 0 <= rank < self.devices:
            raise MachineError(f"machine {self.name!r}", f"no rank {rank}", f"ranks are 0 .. {self.devices - 1}")
        digits: list[int] = []
        for level in reversed(self.levels):
            rank, digit = divmod(rank, level.size)
            digits.append(digit)
        return tuple(reversed(digits))

    def resized(self, sizes: Sequence[int]) -> Machine:
        """The same links and devices with other level sizes.  Raises `MachineError` when the sizes do not fit."""
        if len(sizes) != len(self.levels):
            names = "x".join(level.name for level in self.levels)
            raise MachineError(
                f"machine {self.name!r}", f"has {len(self.levels)} levels ({names}), got {len(sizes)} sizes {'x'.join(map(str, sizes))}",
                f"write {self.name}:{'x'.join(map(str, self.hierarchy))}, or a .toml file with other levels",
            )
        levels = tuple(replace(level, size=size) for level, size in zip(self.levels, sizes, strict=True))
        machine = replace(self, levels=levels)
        _check_sizes(machine, f"machine {self.name!r}")
        return machine

    def to_json(self) -> str:
        """Canonical JSON text: equal machines give equal bytes.  Exact rationals are written `p` or `p/q`."""
        device: dict[str, object] = {
            "name": self.device.name, "memory": exact_text(Fraction(self.device.memory)), "bandwidth": exact_text(self.device.bandwidth),
            "launch": exact_text(self.device.launch), "peaks": {dtype: exact_text(v) for dtype, v in self.device.peaks},
        }
        return json.dumps(
            {
                "format": FORMAT,
                "name": self.name,
                "level": [
                    {"name": x.name, "size": x.size, "bandwidth": exact_text(x.bandwidth), "latency": exact_text(x.latency)} for x in self.levels
                ],
                "device_class": [device],
                "resource": [
                    {"name": r.name, "devices": r.devices, "capacity": exact_text(r.capacity), "traffic": list(r.traffic)} for r in self.resources
                ],
                "sources": dict(self.sources),
            },
            sort_keys=True, separators=(",", ":"),
        )

    def sha256(self) -> str:
        """Hash of the canonical JSON."""
        return hashlib.sha256(self.to_json().encode()).hexdigest()

    @staticmethod
    def from_json(text: str) -> Machine:
        """Read `to_json` text, which may be hostile.  Raises `MachineError` naming the place of the first problem."""
        place = "machine JSON"
        if len(text) > MAX_FILE:
            raise MachineError(place, f"is longer than {MAX_FILE} characters")
        try:
            data: object = json.loads(text, object_pairs_hook=_no_duplicates)
        except (ValueError, RecursionError) as e:
            raise MachineError(place, f"is not JSON: {_short(e)}") from None
        if not isinstance(data, dict) or data.pop("format", None) != FORMAT:
            raise MachineError(place, f'lacks "format": "{FORMAT}"')
        return _Reader(place, lambda value, _: exact_from(value)).machine(data)


def load_machine(spec: str, where: Path | None = None) -> Machine:
    """The machine that `spec` names: a built-in (`dgx-a100`), a built-in with sizes (`dgx-a100:4x8`), bare sizes (`4x8`: dgx-a100),
    or a TOML file (`my.toml`, `my.toml:4x8`), relative to the folder `where` (default: current folder).  Raises `MachineError`."""
    name, colon, tail = spec.rpartition(":")
    if not (colon and _SIZES.fullmatch(tail)):
        name, tail = spec, ""
    if _SIZES.fullmatch(name) and not tail:
        name, tail = "dgx-a100", name
    names = builtin_names()
    if name in names:
        machine = _read_file(BUILTIN / f"{name}.toml", f"built-in machine {name!r}")
    elif name.endswith(".toml"):
        machine = _read_file((where or Path()) / name, name)
    else:
        raise MachineError(f"machine {spec[:200]!r}", "is neither a built-in nor a .toml file", f"built-in: {', '.join(names)}; with sizes: dgx-a100:4x8, or 4x8")
    return machine.resized(tuple(int(size) for size in tail.split("x"))) if tail else machine


def builtin_names() -> tuple[str, ...]:
    """Names of the built-in machines, sorted.

    >>> builtin_names()
    ('dgx-a100', 'localhost', 'p2-a100', 'p2-v100', 'pase-1080ti', 'summit')
    """
    return tuple(sorted(path.stem for path in BUILTIN.glob("*.toml")))


class _FloatText(str):
    """A TOML float, kept as its text so that the message can quote it."""


def _read_file(path: Path, place: str) -> Machine:
    try:
        if not path.is_file():  # also keeps devices and pipes out
            raise MachineError(place, "no such file", f"built-in machines: {', '.join(builtin_names())}")
        with path.open("rb") as f:
            raw = f.read(MAX_FILE + 1)
    except (OSError, ValueError) as e:
        if isinstance(e, MachineError):
            raise
        raise MachineError(place, f"cannot be read: {_short(e)}") from None
    if len(raw) > MAX_FILE:
        raise MachineError(place, f"is larger than {MAX_FILE} bytes")
    try:
        data = tomllib.loads(raw.decode(), parse_float=_FloatText)
    except UnicodeDecodeError as e:
        raise MachineError(place, f"is not UTF-8 text: {_short(e)}") from None
    except (ValueError, RecursionError) as e:
        raise MachineError(place, f"is not TOML: {_short(e)}", "see the files in models/machines for the form") from None
    return _Reader(place, parse).machine(data)


def _short(error: Exception) -> str:
    return (str(error) or type(error).__name__).splitlines()[0][:200]


def _no_duplicates(pairs: list[tuple[str, object]]) -> dict[str, object]:
    out = dict(pairs)
    if len(out) != len(pairs):
        raise ValueError("a key occurs twice")
    return out


def _check_sizes(machine: Machine, place: str) -> None:
    for i, level in enumerate(machine.levels, start=1):
        if not 1 <= level.size <= MAX_DEVICES:
            raise MachineError(f"{place}, [[level]] {i} {level.name!r}, size", f"must be 1 .. {MAX_DEVICES}, is {level.size}")
    if machine.devices > MAX_DEVICES:
        raise MachineError(place, f"has {machine.devices} devices", f"at most {MAX_DEVICES} are supported")
    for i, r in enumerate(machine.resources, start=1):
        if r.devices < 1 or machine.devices % r.devices:
            raise MachineError(f"{place}, [[resource]] {i} {r.name!r}, devices", f"{r.devices} does not divide the {machine.devices} devices")


class _Reader:
    """Turns untrusted tables into a machine; `number` reads one constant.  Tables of TOML and of JSON have the same form."""

    def __init__(self, place: str, number: Callable[[str, Dimension], Fraction]) -> None:
        self.place, self.number = place, number
        self.constants: list[tuple[str, str]] = []  # (path, place), in file order

    def machine(self, data: Mapping[str, object]) -> Machine:
        self._keys(data, self.place, ("name", "level", "device_class", "sources"), ("resource",))
        name = self._name(data, self.place)
        levels = tuple(self._level(t, p) for t, p in self._tables(data, "level", MAX_LEVELS))
        if not levels:
            raise MachineError(self.place, "has no [[level]]", "add one [[level]] with name, size, bandwidth, latency per level of the machine")
        self._distinct("level", [x.name for x in levels])
        classes = [self._device(t, p) for t, p in self._tables(data, "device_class", MAX_LEVELS)]
        if len(classes) != 1:
            raise MachineError(
                f"{self.place}, [[device_class]]", f"found {len(classes)}, exactly one is supported",
                "all devices are alike; describe a mixed machine by its slowest class",
            )
        resources = tuple(self._resource(t, p, levels) for t, p in self._tables(data, "resource", MAX_RESOURCES))
        self._distinct("resource", [r.name for r in resources])
        machine = Machine(name, levels, classes[0], self._sources(data["sources"]), resources)
        _check_sizes(machine, self.place)
        return machine

    def _level(self, table: Mapping[str, object], place: str) -> Level:
        self._keys(table, place, ("name", "size", "bandwidth", "latency"), ())
        name = self._name(table, place)
        place, path = f"{place} {name!r}", f"level.{name}"
        return Level(
            name, self._integer(table, place, "size"),
            self._constant(table, place, path, "bandwidth", "rate"), self._constant(table, place, path, "latency", "time", zero=True),
        )

    def _device(self, table: Mapping[str, object], place: str) -> DeviceClass:
        self._keys(table, place, ("name", "memory", "bandwidth", "peaks"), ("launch",))
        name = self._name(table, place)
        place, path = f"{place} {name!r}", f"device_class.{name}"
        memory = self._constant(table, place, path, "memory", "bytes")
        if memory.denominator != 1:
            raise MachineError(f"{place}, memory", "is not a whole number of bytes")
        peaks = table["peaks"]
        if not isinstance(peaks, dict) or not peaks:
            raise MachineError(f"{place}, peaks", "must be a table dtype = flop/s with at least one entry", 'write [device_class.peaks] and float32 = "19.5 Tflop/s"')
        self._keys(peaks, f"{place}, peaks", (), tuple(ELEMENT_BYTES))
        rates = [(d, self._constant(peaks, f"{place}, peaks", f"{path}.peaks", d, "flops")) for d in sorted(peaks)]
        bandwidth = self._constant(table, place, path, "bandwidth", "rate")
        launch = self._constant(table, place, path, "launch", "time", zero=True) if table.get("launch", "0") != "0" else Fraction(0)
        return DeviceClass(name, tuple(rates), int(memory), bandwidth, launch, self.place)

    def _resource(self, table: Mapping[str, object], place: str, levels: Sequence[Level]) -> Resource:
        self._keys(table, place, ("name", "devices", "capacity", "traffic"), ())
        name = self._name(table, place)
        place = f"{place} {name!r}"
        traffic, known = table["traffic"], [x.name for x in levels]
        if not isinstance(traffic, list) or not traffic or any(t not in known for t in traffic) or any(traffic.count(t) > 1 for t in known):
            raise MachineError(f"{place}, traffic", "must list the levels whose traffic loads it", f"levels: {', '.join(known)}")
        capacity = self._constant(table, place, f"resource.{name}", "capacity", "rate")
        return Resource(name, self._integer(table, place, "devices"), capacity, tuple(traffic))

    def _sources(self, table: object) -> tuple[tuple[str, str], ...]:
        place = f"{self.place}, [sources]"
        if not isinstance(table, dict):
            raise MachineError(place, "must be a table", '"level.nodes.bandwidth" = "where the number comes from"')
        used: set[str] = set()
        out: list[tuple[str, str]] = []
        for path, where in self.constants:
            parts = path.split(".")
            key = next((k for n in range(len(parts), 1, -1) if (k := ".".join(parts[:n])) in table), None)
            if key is None:
                raise MachineError(where, "has no source", f'add "{path}" = "..." to [sources]; an assumption says "assumption: ..."')
            text = table[key]
            if not isinstance(text, str) or not text.strip() or len(text) > 1000:
                raise MachineError(f"{place}, {key!r}", "must be text of 1 to 1000 characters")
            used.add(key)
            out.append((path, text))
        for key in table:
            if key not in used:
                known = ", ".join(path for path, _ in self.constants)
                raise MachineError(f"{place}, {key[:80]!r}", "belongs to no constant of this file, or others cover it entirely", f"constants: {known}")
        return tuple(sorted(out))

    def _constant(self, table: Mapping[str, object], place: str, path: str, key: str, dimension: Dimension, zero: bool = False) -> Fraction:
        value, place = table[key], f"{place}, {key}"
        if isinstance(value, (int, _FloatText)) and not isinstance(value, bool):
            raise MachineError(place, f"is a bare number, {str(value)[:40]}", f'constants are text, so that they are exact: {key} = "{str(value)[:40]}"')
        if not isinstance(value, str):
            raise MachineError(place, f"must be text, is {type(value).__name__}", f'for example {key} = "9e9"')
        try:
            number = self.number(value, dimension)
        except QuantityError as e:
            raise MachineError(place, e.message, e.hint) from None
        if number == 0 and not zero:
            raise MachineError(place, "must be greater than 0")
        self.constants.append((f"{path}.{key}", place))
        return number

    def _tables(self, data: Mapping[str, object], key: str, limit: int) -> list[tuple[Mapping[str, object], str]]:
        tables = data.get(key, [])
        if not isinstance(tables, list) or not all(isinstance(t, dict) for t in tables):
            raise MachineError(f"{self.place}, {key}", "must be an array of tables", f"write [[{key}]] with double brackets")
        if len(tables) > limit:
            raise MachineError(f"{self.place}, [[{key}]]", f"occurs {len(tables)} times, at most {limit} are supported")
        return [(t, f"{self.place}, [[{key}]] {i}") for i, t in enumerate(tables, start=1)]

    def _keys(self, table: Mapping[str, object], place: str, required: tuple[str, ...], optional: tuple[str, ...]) -> None:
        for key in required:
            if key not in table:
                raise MachineError(f"{place}, {key}", "is missing", f"add {key}; required: {', '.join(required)}")
        for key in table:
            if key not in required and key not in optional:
                raise MachineError(f"{place}, {key[:80]!r}", "is unknown", f"known: {', '.join((*required, *optional))}")

    def _name(self, table: Mapping[str, object], place: str) -> str:
        name = table["name"]
        if not isinstance(name, str) or not _NAME.fullmatch(name):
            raise MachineError(f"{place}, name", f"{str(name)[:40]!r} is not a name", "letters, digits, - and _, at most 64")
        return name

    def _integer(self, table: Mapping[str, object], place: str, key: str) -> int:
        value = table[key]
        if type(value) is not int or not 1 <= value <= MAX_DEVICES:
            raise MachineError(f"{place}, {key}", f"must be a whole number from 1 to {MAX_DEVICES}, is {str(value)[:40]!r}", f"write {key} = 8")
        return value

    def _distinct(self, key: str, names: Sequence[str]) -> None:
        for i, name in enumerate(names):
            if name in names[:i]:
                raise MachineError(f"{self.place}, [[{key}]] {i + 1}, name", f"{name!r} is used twice")
