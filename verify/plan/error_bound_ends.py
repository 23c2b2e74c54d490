"""Rebuilds the ends of error bounds, a second time: the fastest and the slowest machine, and the least and
the most of a constant.

    a rate r with bar b    from r / (1 + b) to r (1 + b);  fast: the most
    a time t with bar b    from t / (1 + b) to t (1 + b);  fast: the least
    no bar                 exact;  memory, `odd`, `wave`, `band`, `switch_quad` never have one that counts

Written from docs/certificate-format.md, section 9, "Error bounds";
shares nothing with `models/machine/error_bounds.py`.
"""

from __future__ import annotations

from dataclasses import replace
from fractions import Fraction

from ...models.machine.machine import Machine
from ...models.machine.measured import AttentionForm, CollectiveForm, ProductForm
from ...models.machine.parts import DeviceClass, Level, Profile

OPERATIONS = ("all_gather", "reduce_scatter", "all_reduce", "alltoall")
"""Order of a level's forms."""


def widest_error_bound(machine: Machine) -> Fraction:
    """The largest bar; 0 if there is none."""
    return max([Fraction(0), *(bar for _, bar in machine.bars)])


def end(machine: Machine, slow: bool) -> Machine:
    """The machine with every constant at its slow, or at its fast end.

    >>> from ...models.machine.machine import load_machine
    >>> m = replace(load_machine("cloud-a100"), bars=(("level.nodes.latency", Fraction(1)),))
    >>> end(m, True).levels[0].latency / end(m, False).levels[0].latency
    Fraction(4, 1)
    """
    ends = _End(machine, slow)
    return replace(
        machine,
        bars=(),
        levels=tuple(map(ends.level, machine.levels)),
        device=ends.device(machine.device),
        others=tuple(map(ends.device, machine.others)),
        profiles=tuple(map(ends.profile, machine.profiles)),
    )


class _End:
    def __init__(self, machine: Machine, slow: bool) -> None:
        self.bars, self.slow = {path: 1 + bar for path, bar in machine.bars}, slow

    def time(self, value: Fraction, *place: str) -> Fraction:
        by = self.bars.get(".".join(place), Fraction(1))
        return value * by if self.slow else value / by

    def rate(self, value: Fraction, *place: str) -> Fraction:
        return value * value / self.time(value, *place)

    def level(self, level: Level) -> Level:
        at = ("level", level.name)
        forms = []
        for operation, f in zip(OPERATIONS, level.collectives, strict=False):
            fixed, hop, slow = (self.time(getattr(f, k), *at, operation, k) for k in ("fixed", "hop", "slow"))
            start, wire, own = (self.time(getattr(f, k), *at, operation, k) for k in ("start", "wire", "own"))
            forms.append(CollectiveForm(fixed, hop, slow, start, wire, own))
        bandwidth, latency = self.rate(level.bandwidth, *at, "bandwidth"), self.time(level.latency, *at, "latency")
        return replace(level, bandwidth=bandwidth, latency=latency, collectives=tuple(forms))

    def product(self, form: ProductForm, *at: str) -> ProductForm:
        tiles = [(a, b, self.time(t, *at, "tiles", f"{a}x{b}")) for a, b, t in form.tiles]
        launch, tail, step = (self.time(getattr(form, k), *at, k) for k in ("launch", "tail", "step"))
        split, summed, result = (self.time(getattr(form, k), *at, k) for k in ("split", "sum", "result"))
        return ProductForm(
            form.dtype, form.processors, tuple(tiles), launch, tail, step, split, summed, result, form.odd
        )

    def attention(self, form: AttentionForm, *at: str) -> AttentionForm:
        way = form.direction
        launch, pace, pair, row = (self.time(getattr(form, k), *at, way, k) for k in ("launch", "pace", "pair", "row"))
        return AttentionForm(form.dtype, way, form.processors, launch, pace, pair, row, form.wave, form.band)

    def device(self, device: DeviceClass) -> DeviceClass:
        at = ("device_class", device.name)
        return replace(
            device,
            bandwidth=self.rate(device.bandwidth, *at, "bandwidth"),
            launch=self.time(device.launch, *at, "launch"),
            host=None if device.host is None else self.rate(device.host, *at, "host"),
            peaks=tuple((dtype, self.rate(peak, *at, "peaks", dtype)) for dtype, peak in device.peaks),
            products=tuple(self.product(form, *at, "product", form.dtype) for form in device.products),
            attentions=tuple(self.attention(form, *at, "attention", form.dtype) for form in device.attentions),
        )

    def profile(self, row: Profile) -> Profile:
        """Outwards to whole picoseconds, at least one."""
        exact = self.time(row.seconds, row.path) * 10**12
        whole = exact.numerator // exact.denominator
        whole = whole + (whole != exact) if self.slow else max(whole, 1)
        return replace(row, seconds=Fraction(whole, 10**12))
