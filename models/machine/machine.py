"""The machine: a hierarchy of levels over identical devices, read from TOML, every constant with its
source.

    H = [h_0 .. h_L]     rank = (..(c_0 * h_1 + c_1) * h_2 + ..) + c_L      (row-major; level 0 is the outermost)

A link of level l joins one child subtree of that level to its siblings: one node's NIC, one GPU's switch port.  It
carries `bandwidth` bytes/s in and as much out, and *all* devices below the child share it.  A phase of communication
that crosses the level costs `latency` seconds.  Constants are decimal text, read as exact rationals (`quantities.py`);
no float enters.

    [[level]]  name, size, bandwidth, latency            [[device_class]]  name, memory, bandwidth, launch?, blocks?,
    peaks = {dtype = flop/s}
    [[resource]]?  name, devices, capacity, traffic, only?        [reduction]?  tree_flow?, copy?, switch_quad?
    [[profile]]?  function, dtype, extents, seconds           measured operators, instead of the roofline
    (`parts.Profile`)
    [level.all_gather]? and so on, [[device_class.product]]?, [[device_class.attention]]?  measured forms, instead of
    links and peaks (`measured`)
    [sources]  "level.nodes.bandwidth" = "where the number comes from"
    [bars]?    "level.nodes.bandwidth" = "10 %"               how far it may be off: from value / 1.1 to value x 1.1
    host? in [[device_class]]  bytes/s between a device and its host (`parts.DeviceClass`)
    collectives?  hierarchical, library or synthesised        which programs reductions take (`parts.Collectives`)

Several device classes describe a mixed machine: each but one names its `blocks`, children of the outermost level, the
last one has the rest.  An operator takes the time of its slowest device.  A source may cover a whole table
("device_class.a100.peaks"); the most specific one is kept for each constant, and so for bars.  A constant without a bar
is taken as exact; `step` in [bars] is no constant (`models.machine.error_bounds`).

>>> m = load_machine("cloud-a100:4x8")
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
from collections.abc import Sequence
from dataclasses import dataclass, fields, replace
from fractions import Fraction
from math import prod
from pathlib import Path
from typing import Final

from ..files.json_text import JsonError, parse_json
from ..text import did_you_mean
from .measured import COLLECTIVES
from .parts import (
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
from .quantities import error_bound_text, exact_error_bound, exact_from, exact_text, parse
from .reader import FloatText, Parts, Reader

__all__ = [
    "BUILTIN",
    "Collectives",
    "DeviceClass",
    "Level",
    "Machine",
    "MachineError",
    "Profile",
    "ReductionConstants",
    "Resource",
    "builtin_names",
    "load_machine",
]

BUILTIN: Final = Path(__file__).parent / "builtin"
"""Folder of the built-in machines, one TOML file each."""

FORMAT: Final = "shardproof-machine/1"
DEFAULT: Final = "dgx-a100"
"""Whose links and devices bare sizes (`4x8`) have: a machine of which most constants were measured."""
MAX_FILE: Final = 1 << 21
_SIZES: Final = re.compile(r"[0-9]{1,8}(?:x[0-9]{1,8})*", re.ASCII)


@dataclass(frozen=True)
class Machine:
    """See the module docstring.  `device`: the class of all devices that no class of `others` has in its blocks.

    `sources`: one (constant, source text) pair per constant, sorted.  `bars`: (constant, relative error bound) of those
    that have one, sorted.  `collectives`: which programs reductions take.
    """

    name: str
    levels: tuple[Level, ...]
    device: DeviceClass
    sources: tuple[tuple[str, str], ...]
    resources: tuple[Resource, ...] = ()
    reduction: ReductionConstants | None = None
    others: tuple[DeviceClass, ...] = ()
    profiles: tuple[Profile, ...] = ()
    bars: tuple[tuple[str, Fraction], ...] = ()
    collectives: Collectives = Collectives.HIERARCHICAL

    def __hash__(self) -> int:
        """Computed once: a machine is part of many keys, and has hundreds of fractions."""
        known: int | None = self.__dict__.get("_hash")
        if known is None:
            known = hash(tuple(getattr(self, field.name) for field in fields(self)))
            object.__setattr__(self, "_hash", known)
        return known

    def __getstate__(self) -> dict[str, object]:
        """Without the hash: another process hashes text differently."""
        return {name: value for name, value in self.__dict__.items() if name != "_hash"}

    @property
    def classes(self) -> tuple[DeviceClass, ...]:
        """All device classes, `device` first."""
        return (self.device, *self.others)

    def class_of(self, rank: int) -> DeviceClass:
        """The class of a device."""
        block = rank // (self.devices // self.levels[0].size)
        return next((c for c in self.others if block in c.blocks), self.device)

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
                f"machine {self.name!r}",
                f"has {len(self.levels)} levels ({names}), got {len(sizes)} sizes {'x'.join(map(str, sizes))}",
                f"write {self.name}:{'x'.join(map(str, self.hierarchy))}, or a .toml file with other levels",
            )
        levels = tuple(replace(level, size=size) for level, size in zip(self.levels, sizes, strict=True))
        check_sizes(levels, self.resources, f"machine {self.name!r}")
        check_classes(levels, self.classes, f"machine {self.name!r}")
        return replace(self, levels=levels)

    def with_collectives(self, collectives: Collectives | str) -> Machine:
        """The same machine, whose reductions take these programs, or those of this name.  Raises `MachineError` for an
        unknown one, and where they have no choice.
        """
        named = collectives_of(str(collectives), self.levels, self.bars, f"machine {self.name!r}")
        return replace(self, collectives=named)

    def with_host(self, rate: Fraction | str, source: str) -> Machine:
        """The same machine with a link of `rate` bytes/s, each way, between every device and its host; `source`: where
        the number comes from.  Raises `QuantityError` for a text that is no rate.

        >>> load_machine("4x8").with_host("25 GB/s", "assumption: PCIe 4.0").device.carrier("to_host")[0]
        'host'
        """
        paths = {f"device_class.{c.name}.host": source for c in self.classes}
        rate = parse(rate, "rate") if isinstance(rate, str) else rate
        return replace(
            self,
            device=replace(self.device, host=rate),
            others=tuple(replace(c, host=rate) for c in self.others),
            sources=tuple(sorted({**dict(self.sources), **paths}.items())),
            bars=tuple(bar for bar in self.bars if bar[0] not in paths),
        )

    def to_json(self) -> str:
        """Canonical JSON text: equal machines give equal bytes.  Exact rationals are written `p` or `p/q`."""
        data: dict[str, object] = {
            "format": FORMAT,
            "name": self.name,
            "level": [_level_json(x) for x in self.levels],
            "device_class": [_class_json(c) for c in self.classes],
            "resource": [
                {"name": r.name, "devices": r.devices, "capacity": exact_text(r.capacity), "traffic": list(r.traffic)}
                | ({"only": list(r.only)} if r.only else {})
                for r in self.resources
            ],
            "sources": dict(self.sources),
        }
        if self.reduction is not None:  # left out otherwise: machines without it keep their hash
            constants = {
                "tree_flow": self.reduction.tree_flow,
                "copy": self.reduction.copy,
                "switch_quad": self.reduction.switch_quad,
            }
            data["reduction"] = {key: exact_text(value) for key, value in constants.items() if value is not None}
        if self.profiles:
            data["profile"] = [
                {"function": p.function, "dtype": p.dtype, "extents": list(p.extents), "seconds": exact_text(p.seconds)}
                for p in self.profiles
            ]
        if self.bars:
            data["bars"] = {path: error_bound_text(bar) for path, bar in self.bars}
        if self.collectives is not Collectives.HIERARCHICAL:
            data["collectives"] = self.collectives.value
        return json.dumps(data, sort_keys=True, separators=(",", ":"))

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
            data = parse_json(text)
        except JsonError as e:
            raise MachineError(place, f"is not JSON: {_short(e)}") from None
        if not isinstance(data, dict) or data.pop("format", None) != FORMAT:
            raise MachineError(place, f'lacks "format": "{FORMAT}"')
        return _machine(Reader(place, lambda value, _: exact_from(value), exact_error_bound).read(data))


def load_machine(spec: str, where: Path | None = None) -> Machine:
    """The machine that `spec` names: a built-in (`dgx-a100`), a built-in with sizes (`dgx-a100:4x8`), bare sizes
    (`4x8`: dgx-a100), or a TOML file (`my.toml`, `my.toml:4x8`), relative to the folder `where` (default: current
    folder).  Raises `MachineError`."""
    name, colon, tail = spec.rpartition(":")
    if not (colon and _SIZES.fullmatch(tail)):
        name, tail = spec, ""
    if _SIZES.fullmatch(name) and not tail:
        name, tail = DEFAULT, name
    names = builtin_names()
    if name in names:
        machine = _read_file(BUILTIN / f"{name}.toml", f"built-in machine {name!r}")
    elif name.endswith(".toml"):
        machine = _read_file((where or Path()) / name, name)
    else:
        raise MachineError(
            f"machine {spec[:200]!r}",
            f"is neither a built-in nor a .toml file{did_you_mean(name, names)}",
            f"built-in: {', '.join(names)}; with sizes: {DEFAULT}:4x8, or 4x8",
        )
    return machine.resized(tuple(int(size) for size in tail.split("x"))) if tail else machine


def builtin_names() -> tuple[str, ...]:
    """Names of the built-in machines, sorted.

    >>> " ".join(builtin_names()[:8])
    'cloud-a100 dgx-a100 dgx-a100-40 dgx-b200 dgx-h100 dgx-h200 gb200-nvl72 localhost'
    """
    return tuple(sorted(path.stem for path in BUILTIN.glob("*.toml")))


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
        data = tomllib.loads(raw.decode(), parse_float=FloatText)
    except UnicodeDecodeError as e:
        raise MachineError(place, f"is not UTF-8 text: {_short(e)}") from None
    except (ValueError, RecursionError) as e:
        raise MachineError(
            place, f"is not TOML: {_short(e)}", "see the files in models/machine/builtin for the form"
        ) from None
    return _machine(Reader(place, parse).read(data))


def _machine(parts: Parts) -> Machine:
    return Machine(
        parts.name,
        parts.levels,
        parts.device,
        parts.sources,
        parts.resources,
        parts.reduction,
        parts.others,
        parts.profiles,
        parts.bars,
        parts.collectives,
    )


def _level_json(level: Level) -> dict[str, object]:
    links: dict[str, object] = {
        "name": level.name,
        "size": level.size,
        "bandwidth": exact_text(level.bandwidth),
        "latency": exact_text(level.latency),
    }
    for operation, form in zip(COLLECTIVES, level.collectives, strict=False):  # none: machines keep their hash
        links[operation] = {key: exact_text(value) for key, value in form.constants()}
    return links


def _class_json(device: DeviceClass) -> dict[str, object]:
    constants: dict[str, object] = {
        "name": device.name,
        "memory": exact_text(Fraction(device.memory)),
        "bandwidth": exact_text(device.bandwidth),
        "launch": exact_text(device.launch),
        "peaks": {dtype: exact_text(v) for dtype, v in device.peaks},
    }
    if device.host is not None:
        constants["host"] = exact_text(device.host)
    if device.products:
        constants["product"] = [
            {
                "dtype": p.dtype,
                "processors": p.processors,
                "tiles": {f"{a}x{b}": exact_text(time) for a, b, time in p.tiles},
                **{key: exact_text(value) for key, value in p.constants()},
            }
            for p in device.products
        ]
    if device.attentions:
        constants["attention"] = [
            {
                "dtype": a.dtype,
                "direction": a.direction,
                "processors": a.processors,
                **{key: exact_text(value) for key, value in a.constants()},
            }
            for a in device.attentions
        ]
    return constants | ({"blocks": list(device.blocks)} if device.blocks else {})


def _short(error: Exception) -> str:
    return (str(error) or type(error).__name__).splitlines()[0][:200]
