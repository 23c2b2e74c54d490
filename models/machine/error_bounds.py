"""What error bounds mean: the machines within them, of which the fastest and the slowest are named.

    bar b of a rate r       any rate from r / (1 + b) to r (1 + b)
    bar b of a time t       any time from t / (1 + b) to t (1 + b)
    bar b of `step`         of no constant: how far the ratio of the times of two whole steps may be off at the
                            machine's own constants, from ratio / (1 + b) to ratio (1 + b), by what the model lacks

Every constant with a bar may be anywhere within it, whatever the others are.  No price of a plan falls when a rate
falls or a time rises, so every plan's cost on any machine within the bars lies between its costs on the two extreme
machines.
Plain numbers (`odd`, `wave`, `band`, `switch_quad`) and sizes (memory) have no bar that counts.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from fractions import Fraction
from math import ceil, floor

from .machine import Machine
from .measured import COLLECTIVES, AttentionForm, ProductForm
from .parts import STEP, DeviceClass, Level, Profile
from .quantities import error_bound_text


def extreme(machine: Machine, slow: bool) -> Machine:
    """The slowest or the fastest machine within the bars; its constants are exact and it has no bars.

    >>> from .machine import load_machine
    >>> m = replace(load_machine("cloud-a100"), bars=(("level.nodes.bandwidth", Fraction(1, 2)),))
    >>> float(extreme(m, True).levels[0].bandwidth), float(extreme(m, False).levels[0].bandwidth)
    (6000000000.0, 13500000000.0)
    """
    bars = dict(machine.bars)

    def time(path: str, value: Fraction) -> Fraction:
        factor = 1 + bars.get(path, Fraction(0))
        return value * factor if slow else value / factor

    def rate(path: str, value: Fraction) -> Fraction:
        factor = 1 + bars.get(path, Fraction(0))
        return value / factor if slow else value * factor

    return replace(
        machine,
        levels=tuple(_level(x, time, rate) for x in machine.levels),
        device=_device(machine.device, time, rate),
        others=tuple(_device(c, time, rate) for c in machine.others),
        profiles=tuple(_profile(p, time, slow) for p in machine.profiles),
        bars=(),
    )


def step_error_bound(machine: Machine) -> Fraction:
    """The bar of what the model lacks, 0 without one."""
    return dict(machine.bars).get(STEP, Fraction(0))


def widest(machine: Machine) -> Fraction:
    """The largest bar of a constant, 0 without any."""
    return max((bar for _, bar in machine.bars), default=Fraction(0))


def scaled_words(machine: Machine) -> str:
    """What bars mean for any cost, without looking at the plan: no constant is off by more than the widest, and costs
    are sums, maxima and minima of constants times counts; empty without bars.

    >>> from .machine import load_machine
    >>> scaled_words(load_machine("cloud-a100"))
    ''
    """
    bar = widest(machine)
    if not bar:
        return ""
    factor = f"{float(1 + bar):.4g}"
    known = f"error bounds of {machine.name} (at most {error_bound_text(bar)})"
    return (
        f"{known}: on a machine within them this costs between 1 / {factor} and {factor} of that, as does what it is "
        "compared with: the claim is about the constants as they stand"
    )


Moved = Callable[[str, Fraction], Fraction]


def _level(level: Level, time: Moved, rate: Moved) -> Level:
    path = f"level.{level.name}"
    forms = tuple(
        replace(form, **{key: time(f"{path}.{operation}.{key}", value) for key, value in form.constants()})
        for operation, form in zip(COLLECTIVES, level.collectives, strict=False)
    )
    return replace(
        level,
        bandwidth=rate(f"{path}.bandwidth", level.bandwidth),
        latency=time(f"{path}.latency", level.latency),
        collectives=forms,
    )


def _device(device: DeviceClass, time: Moved, rate: Moved) -> DeviceClass:
    path = f"device_class.{device.name}"
    products = []
    for form in device.products:
        place = f"{path}.product.{form.dtype}"
        moved = {key: time(f"{place}.{key}", value) for key, value in form.constants()} | {"odd": form.odd}
        tiles = tuple((a, b, time(f"{place}.tiles.{a}x{b}", value)) for a, b, value in form.tiles)
        products.append(ProductForm(form.dtype, form.processors, tiles, **moved))
    attentions = []
    for seen in device.attentions:
        place = f"{path}.attention.{seen.dtype}.{seen.direction}"
        moved = {key: time(f"{place}.{key}", value) for key, value in seen.constants()}
        moved |= {"wave": seen.wave, "band": seen.band}
        attentions.append(AttentionForm(seen.dtype, seen.direction, seen.processors, **moved))
    return replace(
        device,
        bandwidth=rate(f"{path}.bandwidth", device.bandwidth),
        launch=time(f"{path}.launch", device.launch),
        host=None if device.host is None else rate(f"{path}.host", device.host),
        peaks=tuple((d, rate(f"{path}.peaks.{d}", v)) for d, v in device.peaks),
        products=tuple(products),
        attentions=tuple(attentions),
    )


def _profile(row: Profile, time: Moved, slow: bool) -> Profile:
    """Measured times stay whole picoseconds, rounded outwards."""
    picoseconds = time(row.path, row.seconds) * 10**12
    return replace(row, seconds=Fraction(ceil(picoseconds) if slow else max(1, floor(picoseconds)), 10**12))
