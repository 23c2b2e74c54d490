"""Where two machines differ, constant by constant, and whether a machine is the built-in one whose
name it carries.

A constant is named as in [sources]: `level.gpus.bandwidth`, `device_class.a100.peaks.float16`.  A name proves nothing:
a plan for a "cloud-a100" with links of 10^40 B/s is a plan for another machine, and whoever reads it should be told.

>>> from dataclasses import replace
>>> m = load_machine("cloud-a100:4x8")
>>> fast = replace(m, levels=(m.levels[0], replace(m.levels[1], bandwidth=Fraction(10**40))))
>>> builtin_notice(m), builtin_notice(fast)[:66]
('', 'named cloud-a100, but 1 constant differs from the built-in machine')
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from fractions import Fraction
from typing import Final

from .machine import Machine, builtin_names, load_machine
from .measured import COLLECTIVES
from .quantities import exact_text

MOST_NAMED: Final = 3
"""Differences that a notice names; beyond, their number says how many there are."""


@dataclass(frozen=True)
class Difference:
    """A constant that differs; None: one of the machines has none of that name."""

    constant: str
    mine: Fraction | str | None
    theirs: Fraction | str | None

    def __str__(self) -> str:
        mine, theirs = _text(self.mine), _text(self.theirs)
        if mine == theirs:  # alike to the digits shown
            mine, theirs = _exact(self.mine), _exact(self.theirs)
        return f"{self.constant} {mine} instead of {theirs}"


def constants(machine: Machine) -> dict[str, Fraction | str]:
    """Everything a machine says but its name, its sizes and its sources."""
    return dict(_constants(machine))


def _constants(machine: Machine) -> Iterator[tuple[str, Fraction | str]]:
    yield "levels", ", ".join(x.name for x in machine.levels)
    for x in machine.levels:
        yield f"level.{x.name}.bandwidth", x.bandwidth
        yield f"level.{x.name}.latency", x.latency
        for operation, form in zip(COLLECTIVES, x.collectives, strict=False):
            yield from ((f"level.{x.name}.{operation}.{name}", value) for name, value in form.constants())
    yield "device classes", ", ".join(c.name for c in machine.classes)
    for c in machine.classes:
        at = f"device_class.{c.name}"
        yield f"{at}.memory", Fraction(c.memory)
        yield f"{at}.bandwidth", c.bandwidth
        yield f"{at}.launch", c.launch
        if c.host is not None:
            yield f"{at}.host", c.host
        yield f"{at}.blocks", ", ".join(map(str, c.blocks)) or "the rest"
        for dtype, peak in c.peaks:
            yield f"{at}.peaks.{dtype}", peak
        for p in c.products:
            product = f"{at}.product.{p.dtype}"
            yield f"{product}.processors", Fraction(p.processors)
            yield from ((f"{product}.{name}", value) for name, value in p.constants())
            for a, b, time in p.tiles:
                yield f"{product}.tiles.{a}x{b}", time
        for seen in c.attentions:
            attention = f"{at}.attention.{seen.dtype}.{seen.direction}"
            yield f"{attention}.processors", Fraction(seen.processors)
            yield from ((f"{attention}.{name}", value) for name, value in seen.constants())
    yield "resources", ", ".join(r.name for r in machine.resources) or "none"
    for r in machine.resources:
        at = f"resource.{r.name}"
        yield f"{at}.capacity", r.capacity
        yield f"{at}.devices", Fraction(r.devices)
        yield f"{at}.traffic", ", ".join(r.traffic)
        yield f"{at}.only", ", ".join(map(str, r.only)) or "all"
    yield "[reduction]", "none" if machine.reduction is None else "stated"
    if machine.reduction is not None:
        for name, given in (
            ("tree_flow", machine.reduction.tree_flow),
            ("copy", machine.reduction.copy),
            ("switch_quad", machine.reduction.switch_quad),
        ):
            if given is not None:
                yield f"reduction.{name}", given
    for path, share in machine.bars:
        yield f"bar of {path}", share
    yield "collectives", machine.collectives.value
    yield "profiles", str(len(machine.profiles))
    for profile in machine.profiles:
        yield profile.path, profile.seconds


def differences(mine: Machine, theirs: Machine) -> tuple[Difference, ...]:
    """Constants that differ, in the order of `mine`; names, sizes and sources are not compared."""
    a, b = constants(mine), constants(theirs)
    return tuple(
        Difference(name, a.get(name), b.get(name)) for name in dict.fromkeys((*a, *b)) if a.get(name) != b.get(name)
    )


def builtin_notice(machine: Machine) -> str:
    """What a reader who knows the built-in machine of this name must be told; empty if there is none, or it is the
    same but for its sizes.
    """
    if machine.name not in builtin_names():
        return ""
    found = differences(machine, load_machine(machine.name))
    if not found:
        return ""
    more = f", and {len(found) - MOST_NAMED} more" if len(found) > MOST_NAMED else ""
    count = "1 constant differs" if len(found) == 1 else f"{len(found)} constants differ"
    return (
        f"named {machine.name}, but {count} from the built-in machine: {'; '.join(map(str, found[:MOST_NAMED]))}{more}"
    )


def first_difference(mine: Machine, theirs: Machine) -> str:
    """The first field in which two machines differ, sizes, name and sources included; empty if they are the same."""
    if mine == theirs:
        return ""
    if found := differences(mine, theirs):
        return str(found[0])
    for name, a, b in (
        ("sizes", "x".join(map(str, mine.hierarchy)), "x".join(map(str, theirs.hierarchy))),
        ("name", mine.name, theirs.name),
    ):
        if a != b:
            return f"{name} {a[:200]!r} instead of {b[:200]!r}"
    a_sources, b_sources = dict(mine.sources), dict(theirs.sources)
    for name in dict.fromkeys((*a_sources, *b_sources)):
        if a_sources.get(name) != b_sources.get(name):
            return (
                f"the source of {name} {str(a_sources.get(name))[:200]!r} instead of {str(b_sources.get(name))[:200]!r}"
            )
    return "their order of constants"


def _text(value: Fraction | str | None) -> str:
    if value is None:
        return "nothing"
    if isinstance(value, str):
        return repr(value[:200])
    try:
        return f"{float(value):.6g}"
    except OverflowError:
        return _exact(value)


def _exact(value: Fraction | str | None) -> str:
    return exact_text(value)[:200] if isinstance(value, Fraction) else repr(value)
