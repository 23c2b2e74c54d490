"""Turns untrusted tables into the parts of a machine.  TOML files and our JSON have tables of one form and
are read by one
reader.

Every refusal names file, table, field and the next step; nothing is skipped: an unknown key, a constant without a
source and a source without a constant are errors.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from fractions import Fraction
from typing import Final

from ..program.graph import ELEMENT_BYTES
from ..program.graph_file import MOST_EXTENT
from ..program.operators import FUNCTIONS
from .measured import COLLECTIVES, DIRECTIONS, MAX_TILES, AttentionForm, CollectiveForm, ProductForm
from .parts import (
    MAX_DEVICES,
    MAX_LEVELS,
    MAX_PROFILES,
    MAX_RESOURCES,
    STEP,
    Collectives,
    DeviceClass,
    Level,
    MachineError,
    Profile,
    ReductionConstants,
    Resource,
    check_classes,
    check_sizes,
    collectives_of,
)
from .quantities import Dimension, QuantityError, parse_error_bound

_NAME: Final = re.compile(r"[A-Za-z0-9][A-Za-z0-9_-]{0,63}", re.ASCII)
_FORMS: Final = ("product", "attention")
_TILE: Final = re.compile(r"([1-9][0-9]{0,5})x([1-9][0-9]{0,5})", re.ASCII)


class FloatText(str):
    """A number that a parser would have made a float, kept as its text so that the refusal can quote it."""


@dataclass(frozen=True)
class Parts:
    """What a file says; the fields of `Machine`."""

    name: str
    levels: tuple[Level, ...]
    device: DeviceClass
    others: tuple[DeviceClass, ...]
    sources: tuple[tuple[str, str], ...]
    resources: tuple[Resource, ...]
    reduction: ReductionConstants | None
    profiles: tuple[Profile, ...]
    bars: tuple[tuple[str, Fraction], ...]
    collectives: Collectives


class Reader:
    """Reads the tables of one file.  `place` names the file, `number` reads one constant and `bar` one error bound
    (`QuantityError` if they cannot).
    """

    def __init__(
        self,
        place: str,
        number: Callable[[str, Dimension], Fraction],
        bar: Callable[[str], Fraction] = parse_error_bound,
    ) -> None:
        self.place, self.number, self.bar = place, number, bar
        self.constants: list[tuple[str, str]] = []  # (path, place), in file order

    def read(self, data: Mapping[str, object]) -> Parts:
        """The checked parts.  Raises `MachineError` at the first problem."""
        self._keys(
            data,
            self.place,
            ("name", "level", "device_class", "sources"),
            ("resource", "reduction", "profile", "bars", "collectives"),
        )
        name = self._name(data, self.place)
        levels = tuple(self._level(t, p) for t, p in self._tables(data, "level", MAX_LEVELS))
        if not levels:
            raise MachineError(
                self.place,
                "has no [[level]]",
                "add one [[level]] with name, size, bandwidth, latency per level of the machine",
            )
        self._distinct("level", [x.name for x in levels])
        classes = [self._device(t, p) for t, p in self._tables(data, "device_class", MAX_LEVELS)]
        if not classes:
            raise MachineError(self.place, "has no [[device_class]]", "add one with name, memory, bandwidth and peaks")
        self._distinct("device_class", [c.name for c in classes])
        check_classes(levels, classes, self.place)
        resources = tuple(self._resource(t, p, levels) for t, p in self._tables(data, "resource", MAX_RESOURCES))
        self._distinct("resource", [r.name for r in resources])
        check_sizes(levels, resources, self.place)
        reduction = self._reduction(data["reduction"]) if "reduction" in data else None
        profiles = tuple(self._profile(t, p) for t, p in self._tables(data, "profile", MAX_PROFILES))
        paths = [p.path for p in profiles]
        if len(set(paths)) < len(paths):
            raise MachineError(
                f"{self.place}, [[profile]]", f"{next(p for p in paths if paths.count(p) > 1)!r} is given twice"
            )
        (rest,) = (c for c in classes if not c.blocks)
        others = tuple(c for c in classes if c.blocks)
        sources = self._sources(data["sources"])
        bars = self._bars(data["bars"]) if "bars" in data else ()
        collectives = collectives_of(data.get("collectives", "hierarchical"), levels, bars, self.place)
        return Parts(name, levels, rest, others, sources, resources, reduction, profiles, bars, collectives)

    def _level(self, table: Mapping[str, object], place: str) -> Level:
        self._keys(table, place, ("name", "size", "bandwidth", "latency"), COLLECTIVES)
        name = self._name(table, place)
        place, path = f"{place} {name!r}", f"level.{name}"
        return Level(
            name,
            self._integer(table, place, "size"),
            self._constant(table, place, path, "bandwidth", "rate"),
            self._constant(table, place, path, "latency", "time", zero=True),
            self._collectives(table, place, path),
        )

    def _collectives(self, table: Mapping[str, object], place: str, path: str) -> tuple[CollectiveForm, ...]:
        """All operations, or none: a plan that were priced half by one law and half by another would be neither."""
        given = [o for o in COLLECTIVES if o in table]
        if not given:
            return ()
        if len(given) < len(COLLECTIVES):
            missing = next(o for o in COLLECTIVES if o not in table)
            raise MachineError(
                f"{place}, {missing}", f"is missing beside {given[0]}", f"give all of {', '.join(COLLECTIVES)}, or none"
            )
        out = []
        for operation in COLLECTIVES:
            constants, at = self._table(table, operation, place)
            self._keys(constants, at, ("fixed", "hop", "slow", "start", "wire", "own"), ())
            out.append(
                CollectiveForm(
                    *(
                        self._constant(constants, at, f"{path}.{operation}", key, "time", zero=True)
                        for key in ("fixed", "hop", "slow", "start", "wire", "own")
                    )
                )
            )
        return tuple(out)

    def _device(self, table: Mapping[str, object], place: str) -> DeviceClass:
        self._keys(table, place, ("name", "memory", "bandwidth", "peaks"), ("launch", "host", "blocks", *_FORMS))
        name = self._name(table, place)
        place, path = f"{place} {name!r}", f"device_class.{name}"
        memory = self._constant(table, place, path, "memory", "bytes")
        if memory.denominator != 1:
            raise MachineError(f"{place}, memory", "is not a whole number of bytes")
        peaks = table["peaks"]
        if not isinstance(peaks, dict) or not peaks:
            raise MachineError(
                f"{place}, peaks",
                "must be a table dtype = flop/s with at least one entry",
                'write [device_class.peaks] and float32 = "19.5 Tflop/s"',
            )
        self._keys(peaks, f"{place}, peaks", (), tuple(ELEMENT_BYTES))
        rates = [(d, self._constant(peaks, f"{place}, peaks", f"{path}.peaks", d, "flops")) for d in sorted(peaks)]
        bandwidth = self._constant(table, place, path, "bandwidth", "rate")
        launch = (
            self._constant(table, place, path, "launch", "time", zero=True)
            if table.get("launch", "0") != "0"
            else Fraction(0)
        )
        host = self._constant(table, place, path, "host", "rate") if "host" in table else None
        products = [
            self._product(t, p, path, rates) for t, p in self._tables(table, "product", len(ELEMENT_BYTES), place)
        ]
        self._distinct("device_class.product", [p.dtype for p in products])
        most = len(ELEMENT_BYTES) * len(DIRECTIONS)
        attentions = [self._attention(t, p, path, rates) for t, p in self._tables(table, "attention", most, place)]
        self._distinct("device_class.attention", [f"{a.dtype} {a.direction}" for a in attentions])
        return DeviceClass(
            name,
            tuple(rates),
            int(memory),
            bandwidth,
            launch,
            self._blocks(table, place, "blocks"),
            self.place,
            tuple(sorted(products, key=lambda p: p.dtype)),
            tuple(sorted(attentions, key=lambda a: (a.dtype, a.direction))),
            host,
        )

    def _product(
        self, table: Mapping[str, object], place: str, path: str, peaks: Sequence[tuple[str, Fraction]]
    ) -> ProductForm:
        kinds: dict[str, Dimension] = dict.fromkeys(("launch", "tail", "step", "split", "sum", "result"), "time")
        kinds["odd"] = "number"
        self._keys(table, place, ("dtype", "processors", "tiles", *kinds), ())
        dtype = self._peaked(table, place, peaks)
        path = f"{path}.product.{dtype}"
        constants = {key: self._constant(table, place, path, key, kinds[key], zero=True) for key in kinds}
        tiles, at = self._table(table, "tiles", place)
        if not 1 <= len(tiles) <= MAX_TILES:
            raise MachineError(at, f"has {len(tiles)} tiles; 1 to {MAX_TILES} are supported", '128x256 = "0.4 us"')
        found = []
        for key in tiles:
            size = _TILE.fullmatch(key)
            if size is None:
                raise MachineError(f"{at}, {key[:40]!r}", "is not a tile", 'rows x columns, as 128x256 = "0.4 us"')
            found.append((int(size[1]), int(size[2]), self._constant(tiles, at, f"{path}.tiles", key, "time")))
        return ProductForm(dtype, self._integer(table, place, "processors"), tuple(sorted(found)), **constants)

    def _attention(
        self, table: Mapping[str, object], place: str, path: str, peaks: Sequence[tuple[str, Fraction]]
    ) -> AttentionForm:
        kinds: dict[str, Dimension] = dict.fromkeys(("launch", "pace", "pair", "row"), "time")
        kinds |= dict.fromkeys(("wave", "band"), "number")
        self._keys(table, place, ("dtype", "direction", "processors", *kinds), ())
        dtype, direction = self._peaked(table, place, peaks), table["direction"]
        if not isinstance(direction, str) or direction not in DIRECTIONS:
            raise MachineError(
                f"{place}, direction", f"{str(direction)[:40]!r} is no direction", f"one of {', '.join(DIRECTIONS)}"
            )
        path = f"{path}.attention.{dtype}.{direction}"
        constants = {key: self._constant(table, place, path, key, kinds[key], zero=True) for key in kinds}
        return AttentionForm(dtype, direction, self._integer(table, place, "processors"), **constants)

    def _peaked(self, table: Mapping[str, object], place: str, peaks: Sequence[tuple[str, Fraction]]) -> str:
        """The element type of a measured form."""
        dtype = table["dtype"]
        if not isinstance(dtype, str) or dtype not in [d for d, _ in peaks]:
            raise MachineError(
                f"{place}, dtype", f"{str(dtype)[:40]!r} has no peak in this class", "name one of its peaks"
            )
        return dtype

    def _resource(self, table: Mapping[str, object], place: str, levels: Sequence[Level]) -> Resource:
        self._keys(table, place, ("name", "devices", "capacity", "traffic"), ("only",))
        name = self._name(table, place)
        place = f"{place} {name!r}"
        traffic, known = table["traffic"], [x.name for x in levels]
        if (
            not isinstance(traffic, list)
            or not traffic
            or any(t not in known for t in traffic)
            or any(traffic.count(t) > 1 for t in known)
        ):
            raise MachineError(
                f"{place}, traffic", "must list the levels whose traffic loads it", f"levels: {', '.join(known)}"
            )
        capacity = self._constant(table, place, f"resource.{name}", "capacity", "rate")
        return Resource(
            name, self._integer(table, place, "devices"), capacity, tuple(traffic), self._blocks(table, place, "only")
        )

    def _blocks(self, table: Mapping[str, object], place: str, key: str) -> tuple[int, ...]:
        """Numbers of blocks, ascending; none if the key is absent."""
        if key not in table:
            return ()
        value = table[key]
        if (
            not isinstance(value, list)
            or any(type(v) is not int or not 0 <= v < MAX_DEVICES for v in value)
            or sorted(set(value)) != value
            or not value
        ):
            raise MachineError(
                f"{place}, {key}",
                "must list numbers of blocks, ascending",
                f"for example {key} = [2]: the third one; leave it out if all have it",
            )
        return tuple(value)

    def _profile(self, table: Mapping[str, object], place: str) -> Profile:
        self._keys(table, place, ("function", "dtype", "extents", "seconds"), ())
        function, dtype, extents = table["function"], table["dtype"], table["extents"]
        if not isinstance(function, str) or function not in FUNCTIONS:
            raise MachineError(
                f"{place}, function",
                f"{str(function)[:40]!r} is not a function",
                "the names are those of 'shardproof import --list-ops'",
            )
        if not isinstance(dtype, str) or dtype not in ELEMENT_BYTES:
            raise MachineError(
                f"{place}, dtype", f"{str(dtype)[:40]!r} is not an element type", f"known: {', '.join(ELEMENT_BYTES)}"
            )
        if (
            not isinstance(extents, list)
            or not extents
            or len(extents) > 64
            or any(type(n) is not int or not 1 <= n <= MOST_EXTENT for n in extents)
        ):
            raise MachineError(
                f"{place}, extents",
                "must list the local extents: of the output's axes, then of the reduction axes",
                "for example extents = [512, 1024, 4096]",
            )
        path = Profile(function, dtype, tuple(extents), Fraction(0)).path
        seconds = self._constant(table, place, path, "seconds", "time")
        if (seconds * 10**12).denominator != 1:
            raise MachineError(f"{place}, seconds", "is not a whole number of picoseconds", "round it")
        return Profile(function, dtype, tuple(extents), seconds)

    def _reduction(self, table: object) -> ReductionConstants:
        place = f"{self.place}, [reduction]"
        if not isinstance(table, dict) or not table:
            raise MachineError(place, "must be a table with at least one constant", 'for example tree_flow = "6 GB/s"')
        kinds: dict[str, Dimension] = {"tree_flow": "rate", "copy": "rate", "switch_quad": "number"}
        self._keys(table, place, (), tuple(kinds))
        return ReductionConstants(
            **{key: self._constant(table, place, "reduction", key, kinds[key]) for key in kinds if key in table}
        )

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
                raise MachineError(
                    where, "has no source", f'add "{path}" = "..." to [sources]; an assumption says "assumption: ..."'
                )
            text = table[key]
            if not isinstance(text, str) or not text.strip() or len(text) > 1000:
                raise MachineError(f"{place}, {key!r}", "must be text of 1 to 1000 characters")
            used.add(key)
            out.append((path, text))
        for key in table:
            if key not in used:
                known = ", ".join(path for path, _ in self.constants)
                raise MachineError(
                    f"{place}, {key[:80]!r}",
                    "belongs to no constant of this file, or others cover it entirely",
                    f"constants: {known}",
                )
        return tuple(sorted(out))

    def _bars(self, table: object) -> tuple[tuple[str, Fraction], ...]:
        """One (constant, bar) pair per constant that has one, and per `step`, sorted; the most specific key counts, as
        for sources.
        """
        place = f"{self.place}, [bars]"
        if not isinstance(table, dict) or not table:
            raise MachineError(place, "must be a table with at least one bar", '"level.nodes.bandwidth" = "10 %"')
        used: set[str] = set()
        out: list[tuple[str, Fraction]] = []
        for path in (*(path for path, _ in self.constants), STEP):
            parts = path.split(".")
            least = 1 if path == STEP else 2
            key = next((k for n in range(len(parts), least - 1, -1) if (k := ".".join(parts[:n])) in table), None)
            if key is None:
                continue
            used.add(key)
            text = table[key]
            if not isinstance(text, str):
                raise MachineError(f"{place}, {key!r}", "must be text", f'for example "{key}" = "10 %"')
            try:
                out.append((path, self.bar(text)))
            except QuantityError as e:
                raise MachineError(f"{place}, {key!r}", e.message, e.hint) from None
        for key in table:
            if key not in used:
                known = ", ".join(path for path, _ in self.constants)
                raise MachineError(
                    f"{place}, {key[:80]!r}",
                    "belongs to no constant of this file, or others cover it entirely",
                    f"constants: {known}",
                )
        return tuple(sorted(out))

    def _constant(
        self, table: Mapping[str, object], place: str, path: str, key: str, dimension: Dimension, zero: bool = False
    ) -> Fraction:
        value, place = table[key], f"{place}, {key}"
        if isinstance(value, (int, FloatText)) and not isinstance(value, bool):
            raise MachineError(
                place,
                f"is a bare number, {str(value)[:40]}",
                f'constants are text, so that they are exact: {key} = "{str(value)[:40]}"',
            )
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

    def _tables(
        self, data: Mapping[str, object], key: str, limit: int, place: str = ""
    ) -> list[tuple[Mapping[str, object], str]]:
        tables, place = data.get(key, []), place or self.place
        if not isinstance(tables, list) or not all(isinstance(t, dict) for t in tables):
            raise MachineError(f"{place}, {key}", "must be an array of tables", f"write [[{key}]] with double brackets")
        if len(tables) > limit:
            raise MachineError(f"{place}, [[{key}]]", f"occurs {len(tables)} times, at most {limit} are supported")
        return [(t, f"{place}, [[{key}]] {i}") for i, t in enumerate(tables, start=1)]

    def _table(self, data: Mapping[str, object], key: str, place: str) -> tuple[Mapping[str, object], str]:
        table, at = data[key], f"{place}, {key}"
        if not isinstance(table, dict):
            raise MachineError(at, "must be a table", "see models/machine/builtin/dgx-h100.toml for the form")
        return table, at

    def _keys(
        self, table: Mapping[str, object], place: str, required: tuple[str, ...], optional: tuple[str, ...]
    ) -> None:
        for key in required:
            if key not in table:
                raise MachineError(f"{place}, {key}", "is missing", f"add {key}; required: {', '.join(required)}")
        for key in table:
            if key not in required and key not in optional:
                raise MachineError(
                    f"{place}, {key[:80]!r}", "is unknown", f"known: {', '.join((*required, *optional))}"
                )

    def _name(self, table: Mapping[str, object], place: str) -> str:
        name = table["name"]
        if not isinstance(name, str) or not _NAME.fullmatch(name):
            raise MachineError(
                f"{place}, name", f"{str(name)[:40]!r} is not a name", "letters, digits, - and _, at most 64"
            )
        return name

    def _integer(self, table: Mapping[str, object], place: str, key: str) -> int:
        value = table[key]
        if type(value) is not int or not 1 <= value <= MAX_DEVICES:
            raise MachineError(
                f"{place}, {key}",
                f"must be a whole number from 1 to {MAX_DEVICES}, is {str(value)[:40]!r}",
                f"write {key} = 8",
            )
        return value

    def _distinct(self, key: str, names: Sequence[str]) -> None:
        for i, name in enumerate(names):
            if name in names[:i]:
                raise MachineError(f"{self.place}, [[{key}]] {i + 1}, name", f"{name!r} is used twice")
