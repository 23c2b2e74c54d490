"""Writes a machine as plain text with units: what `shardproof machine show` prints.

>>> from shardproof.models.machine.machine import load_machine
>>> print(render(load_machine("localhost:4")).splitlines()[0])
machine localhost: 4 devices = 4 ranks
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from fractions import Fraction

from ..text import bytes_text, join_lines
from .machine import Collectives, Machine
from .measured import COLLECTIVES, DEPTH
from .parts import DeviceClass, Level
from .quantities import error_bound_text, show


def render(machine: Machine) -> str:
    """Levels, device, resources, and the source of every constant; ends without a newline."""
    shape = " x ".join(f"{level.size} {level.name}" for level in machine.levels)
    head = [
        f"machine {machine.name}: {machine.devices} device{'s' if machine.devices > 1 else ''} = {shape}",
        f"sha256 {machine.sha256()}" + _collectives(machine, "\ncollectives {}"),
        "",
    ]
    rows = [*_level_rows(machine), *(row for device in machine.classes for row in _device_rows(machine, device))]
    if machine.profiles:
        rows += [_GAP, ("measured", "element type", "local extents", "time")]
        rows += [
            (p.function, p.dtype, "x".join(map(str, p.extents)), show(p.seconds, "time")) for p in machine.profiles
        ]
    if machine.resources:
        rows += [_GAP, ("resource", "devices", "capacity", "traffic of (priced for reduction programs)")]
        for r in machine.resources:
            traffic = ", ".join(r.traffic) + (f"; only {', '.join(map(str, r.only))}" if r.only else "")
            rows.append((r.name, str(r.devices), show(r.capacity, "rate"), traffic))
    if machine.reduction is not None:
        constants = machine.reduction
        rows += [_GAP, ("reduction programs", "", "", "")]
        rates = (("tree_flow", constants.tree_flow), ("copy", constants.copy))
        rows += [(name, show(value, "rate"), "", "") for name, value in rates if value is not None]
        quad = constants.switch_quad
        rows += [] if quad is None else [("switch_quad", show(quad, "number"), "", "")]
    return join_lines([*head, *_columns(rows), "", "sources", *_sources(machine)])


_Row = tuple[str, str, str, str]
_GAP: _Row = ("", "", "", "")


def _level_rows(machine: Machine) -> list[_Row]:
    """Links of the levels, and the forms of their measured collectives."""
    rows: list[_Row] = [("level", "size", "per child, each way", "per phase")]
    rows += [(x.name, str(x.size), show(x.bandwidth, "rate"), show(x.latency, "time")) for x in machine.levels]
    for level in machine.levels:
        if level.collectives:
            rows += [_GAP, (f"in {level.name}", "fixed, per hop", "slow protocol", "fast: start, wire, own")]
        for operation, form in zip(COLLECTIVES, level.collectives, strict=False):
            starts = f"{show(form.fixed, 'time')}, {show(form.hop, 'time')}"
            fast = f"{show(form.start, 'time')}, {_pace(form.wire)}, {_pace(form.own)}"
            rows += [(operation, starts, _pace(form.slow), fast)]
    return rows


def _device_rows(machine: Machine, device: DeviceClass) -> list[_Row]:
    """Memory, peaks and measured forms of a class of devices."""
    rows: list[_Row] = [_GAP, ("device", "memory", "memory bandwidth", "launch")]
    host = [("to its host", "", show(device.host, "rate"), "")] if device.host is not None else []
    memory = show(Fraction(device.memory), "bytes")
    rows += [(device.name, memory, show(device.bandwidth, "rate"), show(device.launch, "time")), *host]
    blocks = f"{machine.levels[0].name} {', '.join(map(str, device.blocks))}"
    rows += [("of", blocks, "", "")] if device.blocks else []
    rows += [_GAP, ("dtype", "peak", "", "")]
    rows += [(dtype, show(peak, "flops"), "", "") for dtype, peak in device.peaks]
    for p in device.products:
        rows += [_GAP, ("product", "processors", "launch, tail, step", "split, sum, result; odd")]
        starts = ", ".join(show(x, "time") for x in (p.launch, p.tail, p.step))
        parts = f"{show(p.split, 'time')}, {_pace(p.sum)}, {show(p.result, 'time')}/element; {show(p.odd, 'number')}"
        rows += [(p.dtype, str(p.processors), starts, parts), ("tile", "of 64 along k", "at full rate", "")]
        for a, b, time in p.tiles:
            rate = show(Fraction(round(2 * a * b * DEPTH * p.processors / time / 10**12)) * 10**12, "flops")
            rows += [(f"{a}x{b}", show(time, "time"), rate, "")]
    if device.attentions:
        rows += [_GAP, ("attention", "processors", "launch, at full rate", "pair, row; wave, band")]
    for seen in device.attentions:
        rate = show(1 / seen.pace, "flops").lstrip("~") if seen.pace else "0"
        numbers = ", ".join(show(x, "number") for x in (seen.wave, seen.band))
        parts = f"{show(seen.pair, 'time')}, {show(seen.row, 'time')}; {numbers}"
        name = f"{seen.dtype} {seen.direction}"
        rows += [(name, str(seen.processors), f"{show(seen.launch, 'time')}, {rate}", parts)]
    return rows


def _sources(machine: Machine) -> list[str]:
    """A line per constant; the constants of one measured form, which are fitted together, share theirs."""
    bars = dict(machine.bars)
    lines: dict[tuple[str, str, str], list[str]] = {}
    for path, text in machine.sources:
        parts = path.split(".")
        width = (
            5
            if ".attention." in path
            else 4
            if ".product." in path
            else 3
            if len(parts) == 4 and parts[0] == "level"
            else len(parts)
        )
        bar = f" (within {error_bound_text(bars[path])})" if path in bars else ""
        lines.setdefault((".".join(parts[:width]), bar, text), []).append(".".join(parts[width:]))
    return [
        f"  {form} ({', '.join(names)}){bar}: {text}" if any(names) else f"  {form}{bar}: {text}"
        for (form, bar, text), names in lines.items()
    ]


def _pace(value: Fraction) -> str:
    """Seconds per byte as its inverse, which people know."""
    return f"{show(1 / value, 'rate').lstrip('~')}" if value else "0"


def _columns(rows: Sequence[tuple[str, ...]]) -> list[str]:
    widths = [max(len(row[k]) for row in rows) for k in range(len(rows[0]))]
    return ["  ".join(cell.ljust(w) for cell, w in zip(row, widths, strict=True)).rstrip() for row in rows]


def to_toml(machine: Machine) -> str:
    """A machine file that reads back as the same machine.

    >>> from shardproof.models.machine.machine import load_machine
    >>> to_toml(load_machine("localhost:4")).splitlines()[:5]
    ['name = "localhost"', '', '[[level]]', 'name = "ranks"', 'size = 4']
    """
    out = [f'name = "{machine.name}"' + _collectives(machine, '\ncollectives = "{}"')]
    for level in machine.levels:
        out += _level_toml(level)
    for r in machine.resources:
        traffic = ", ".join(f'"{t}"' for t in r.traffic)
        out += [
            "",
            "[[resource]]",
            f'name = "{r.name}"',
            f"devices = {r.devices}",
            f'capacity = "{_decimal(r.capacity)}"',
            f"traffic = [{traffic}]",
        ]
        out += [f"only = [{', '.join(map(str, r.only))}]"] if r.only else []
    if machine.reduction is not None:
        constants = machine.reduction
        named = (("tree_flow", constants.tree_flow), ("copy", constants.copy), ("switch_quad", constants.switch_quad))
        out += ["", "[reduction]", *(f'{name} = "{_decimal(value)}"' for name, value in named if value is not None)]
    for device in machine.classes:
        out += _device_toml(machine, device)
    for p in machine.profiles:
        extents = ", ".join(map(str, p.extents))
        out += [
            "",
            "[[profile]]",
            f'function = "{p.function}"',
            f'dtype = "{p.dtype}"',
            f"extents = [{extents}]",
            f'seconds = "{_decimal(p.seconds)}"',
        ]
    out += ["", "[sources]", *(f"{json.dumps(path)} = {json.dumps(text)}" for path, text in machine.sources)]
    if machine.bars:
        out += [
            "",
            "[bars]",
            *(f"{json.dumps(path)} = {json.dumps(error_bound_text(bar))}" for path, bar in machine.bars),
        ]
    return "\n".join(out) + "\n"


def _level_toml(level: Level) -> list[str]:
    """Lines of a level, with its measured collectives."""
    out = [
        "",
        "[[level]]",
        f'name = "{level.name}"',
        f"size = {level.size}",
        f'bandwidth = "{_decimal(level.bandwidth)}"',
        f'latency = "{_decimal(level.latency)}"',
    ]
    for operation, form in zip(COLLECTIVES, level.collectives, strict=False):
        out += [f"[level.{operation}]", *(f'{name} = "{_decimal(value)}"' for name, value in form.constants())]
    return out


def _device_toml(machine: Machine, device: DeviceClass) -> list[str]:
    """Lines of a class of devices."""
    out = [
        "",
        "[[device_class]]",
        f'name = "{device.name}"',
        f'memory = "{device.memory} B"',
        f'bandwidth = "{_decimal(device.bandwidth)}"',
    ]
    stated = any(path == f"device_class.{device.name}.launch" for path, _ in machine.sources)
    out += [f'launch = "{_decimal(device.launch)}"'] if stated else []
    out += [f'host = "{_decimal(device.host)}"'] if device.host is not None else []
    out += [f"blocks = [{', '.join(map(str, device.blocks))}]"] if device.blocks else []
    out += ["[device_class.peaks]", *(f'{dtype} = "{_decimal(peak)}"' for dtype, peak in device.peaks)]
    for product in device.products:
        out += ["[[device_class.product]]", f'dtype = "{product.dtype}"', f"processors = {product.processors}"]
        out += [f'{name} = "{_decimal(value)}"' for name, value in product.constants()]
        out += ["[device_class.product.tiles]"]
        out += [f'{a}x{b} = "{_decimal(time)}"' for a, b, time in product.tiles]
    for seen in device.attentions:
        out += ["[[device_class.attention]]", f'dtype = "{seen.dtype}"', f'direction = "{seen.direction}"']
        out += [f"processors = {seen.processors}"]
        out += [f'{name} = "{_decimal(value)}"' for name, value in seen.constants()]
    return out


def _collectives(machine: Machine, form: str) -> str:
    """What is said of the programs of reductions: nothing of those that every machine has."""
    return "" if machine.collectives is Collectives.HIERARCHICAL else form.format(machine.collectives.value)


def _decimal(value: Fraction) -> str:
    """Exact decimal text: a constant was read from one, so its denominator has no other primes than 2 and 5.  With an
    exponent, so that it is not taken for a number whose unit was forgotten.
    """
    digits = 0
    while value.denominator != 1 and digits < 80:
        value, digits = value * 10, digits + 1
    if value.denominator != 1:
        raise ValueError(f"{value} has no finite decimal text")
    whole = str(value.numerator)
    zeros = len(whole) - len(whole.rstrip("0")) if value else 0
    exponent = zeros - digits
    return f"{whole[: len(whole) - zeros]}e{exponent}" if value else whole


def outline(machine: Machine) -> str:
    """A machine on one line: levels, devices, and whether operators or links were measured.

    >>> from .machine import load_machine
    >>> outline(load_machine("dgx-h100"))
    'dgx-h100      4 nodes x 8 gpus, 80 GiB each; measured in part'
    """
    levels = " x ".join(f"{level.size} {level.name}" for level in machine.levels)
    room = " and ".join(dict.fromkeys(bytes_text(c.memory) for c in machine.classes))
    measured = machine.profiles or machine.bars or any(c.products or c.attentions for c in machine.classes)
    return f"{machine.name:<13} {levels}, {room} each; {'measured in part' if measured else 'not measured'}"
