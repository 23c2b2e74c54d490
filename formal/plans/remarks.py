"""What a proof does not say: remarks about a plan that is optimal, or nearly, and perhaps not what was
wanted.

    memory-exceeded   more than a device has
    fewer-devices     a part of the machine is as fast
    uneven-splits     splits that do not divide would be faster
    repeated-work     devices compute nothing, or what another device computes too
    memory            a training step planned without a limit
    smaller-space     the space is smaller than the one that would have been taken
    batch             the batch that was taken unasked, or one that does not divide

Every number is computed: prices are those of plans that were found (`remark_prices`).  Nothing here is part of a claim.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum
from fractions import Fraction
from math import gcd
from typing import Final

from ...models.cost.limits import TooLarge
from ...models.cost.selection import Planning
from ...models.layout.placement import space
from ...models.program.graph import Role
from ...models.text import LEAST_BARE_BYTES, bytes_text, seconds_text
from ..selection.model.clock import Clock
from .plan import default_space, require_size
from .remark_prices import ALL_S, Price, fewer_devices, in_words, least_memory, peak_bytes, uneven_price, waste

MOST: Final = 5
"""Remarks that are printed: who reads more?"""

WASTED: Final = Fraction(1, 2)
"""Share of the devices' time from which idle and repeated work is remarked on though each operator could be split
further: half the machine.
"""

CRAMPED: Final = Fraction(1, 4)
"""Share of the devices' time that no choice of the space could use, from which that is remarked on and other splits
are tried.
"""

FASTER: Final = Fraction(1, 20)
"""Share of the plan's cost that uneven splits must save: they are awkward to run."""


class Kind(Enum):
    """What a remark is about, most important first."""

    TOO_LARGE = "memory-exceeded"
    FEWER = "fewer-devices"
    UNEVEN = "uneven-splits"
    REPEATED = "repeated-work"
    MEMORY = "memory"
    SPACE = "smaller-space"
    BATCH = "batch"


@dataclass(frozen=True)
class Remark:
    """`numbers`: what the words are made of; costs in seconds, exact, as `p` or `p/q`."""

    kind: Kind
    words: str
    numbers: tuple[tuple[str, int | str], ...]

    def to_json(self) -> dict[str, object]:
        """Plain data."""
        return {"kind": self.kind.value, "words": self.words, **dict(self.numbers)}


@dataclass(frozen=True)
class Batch:
    """The batch size of a model; `unasked`: nobody gave it."""

    size: int
    unasked: bool


def remarks(
    planning: Planning, x: tuple[int, ...], batch: Batch | None = None, clock: Clock | None = None
) -> tuple[Remark, ...]:
    """Remarks on the plan `x`, most important first, at most `MOST`; nothing is priced when the clock is over.

    >>> from ...models.machine.machine import load_machine
    >>> from ...models.cost.selection import build
    >>> from ...models.sources.zoo import build as zoo
    >>> planning = build(zoo("mlp-unity"), load_machine("localhost:1"), space("complete"))
    >>> [r.words for r in remarks(planning, (0, 0, 0, 0), Batch(64, True))]
    ['batch 64 was taken, as --batch was not given']
    """
    clock = (clock or Clock()).at_most(ALL_S)
    cost = Fraction(planning.problem.cost_of(x), planning.problem.scale)
    lost = waste(planning, x)
    found = [*_memory(planning, x)]
    wasted = lost.chosen >= WASTED or lost.least >= CRAMPED
    if lost.least >= CRAMPED and not planning.space.uneven:
        found += _uneven(planning, cost, lost.cramped, clock)
    if lost.chosen >= CRAMPED or planning.machine.others:
        found += _fewer(planning, cost, clock)
    if wasted:
        found.append(_repeated(planning, lost.chosen, lost.least))
    found += [*_space(planning), *_batch(planning, batch, wasted)]
    return tuple(sorted(found, key=lambda r: list(Kind).index(r.kind))[:MOST])


def _memory(planning: Planning, x: tuple[int, ...]) -> list[Remark]:
    peak, (device, has) = peak_bytes(planning, x), least_memory(planning.machine)
    limit = planning.problem.limit
    numbers = (("peak_bytes", peak), ("device_bytes", has), ("device", device))
    if peak > has:
        return [
            Remark(
                Kind.TOO_LARGE,
                f"the plan needs {bytes_text(peak)} on the fullest device, and {device} has {bytes_text(has)}: "
                f"give --memory {_amount(has)}",
                numbers,
            )
        ]
    if planning.graph.state and limit is None:
        return [
            Remark(
                Kind.MEMORY,
                f"no memory limit was given: the plan needs {bytes_text(peak)} on the fullest device, {device} "
                f"has {bytes_text(has)}",
                numbers,
            )
        ]
    return []


def _fewer(planning: Planning, cost: Fraction, clock: Clock) -> list[Remark]:
    price = fewer_devices(planning, clock)
    if price is None or price.cost > cost:
        return []
    part, every = price.machine, planning.machine.devices
    size = "x".join(map(str, part.hierarchy))
    named = f" of class {part.device.name}" if planning.machine.others else f" ({size})" if len(part.levels) > 1 else ""
    words = (
        f"{part.devices} of the {every} devices{named} {'is' if part.devices == 1 else 'are'} "
        f"{'faster' if price.cost < cost else 'as fast'}: {_compared(price, cost)}"
    )
    return [
        Remark(
            Kind.FEWER, words, (("devices", part.devices), ("of", every), ("hierarchy", size), *_priced(price, cost))
        )
    ]


def _uneven(planning: Planning, cost: Fraction, cramped: tuple[str, ...], clock: Clock) -> list[Remark]:
    price = uneven_price(planning, clock)
    if price is None or price.cost > cost * (1 - FASTER):
        return []
    axes = in_words(planning.graph, cramped)
    words = (
        f"{len(cramped)} of {len(planning.graph.operators)} operators have no axes that divide evenly over all "
        f"{planning.machine.devices} devices ({axes}): "
        f"--space {price.space}, {_compared(price, cost)}"
    )
    return [
        Remark(
            Kind.UNEVEN,
            words,
            (("operators", len(cramped)), ("of", len(planning.graph.operators)), ("axes", axes), *_priced(price, cost)),
        )
    ]


def _repeated(planning: Planning, chosen: Fraction, least: Fraction) -> Remark:
    n, name = planning.machine.devices, planning.space.name
    words = (
        f"{_percent(chosen)} of the time of the {n} devices goes into what another device computes too, or into "
        f"nothing; "
    )
    words += (
        f"with every operator in the most blocks that the space {name!r} has for it: {_percent(least)}"
        if least
        else f"the space {name!r} has a choice without for every operator"
    )
    return Remark(Kind.REPEATED, words, (("devices", n), ("share", str(chosen)), ("least_share", str(least))))


def _space(planning: Planning) -> list[Remark]:
    """A space with fewer rows per level than the default one, where that is larger and fits."""
    here, machine = planning.space, planning.machine
    usual = space(default_space(machine).name + (",uneven" if here.uneven else ""))
    most = max((_prime_factors(n) for n in machine.hierarchy), default=0)  # rows of a column that can differ from 1
    mine, other = (min(most, w.rows_per_level if w.rows_per_level is not None else most) for w in (here, usual))
    if mine >= other:
        return []
    try:
        require_size(planning.graph, machine, usual)
    except TooLarge:
        return []
    words = (
        f"the proof is about the space {here.name!r}; {usual.name!r}, taken where --space is not given and time "
        f"allows, holds more plans"
    )
    return [Remark(Kind.SPACE, words, (("space", here.name), ("usual", usual.name)))]


def _batch(planning: Planning, batch: Batch | None, wasted: bool) -> list[Remark]:
    """A batch that was taken unasked, or one with which the devices do not come out even."""
    size = batch.size if batch is not None else _leading(planning) if wasted else None
    if size is None:
        return []
    n = planning.machine.devices
    over = gcd(size, n)
    uneven = over < min(size, n) and not planning.space.uneven
    unasked = batch is not None and batch.unasked
    if not uneven and not unasked:
        return []
    below, above = size // n * n, -(-size // n) * n
    name = "batch" if batch is not None else "the first dimension of the inputs,"
    words = f"{name} {size}" + (" was taken, as --batch was not given" if unasked else "")
    if over < n and not planning.space.uneven:
        fit = f"{below} and {above} do" if below else f"{above} does"
        words += ("; it divides over " if unasked else " divides over ") + f"{over} of {n} devices, {fit} over all"
    return [
        Remark(
            Kind.BATCH,
            words,
            (
                ("batch", size),
                ("devices", n),
                ("divides_over", over),
                ("below", below),
                ("above", above),
                ("unasked", int(unasked)),
            ),
        )
    ]


def _leading(planning: Planning) -> int | None:
    """The first dimension of the inputs, if they agree in it."""
    sizes = {t.shape[0] if t.shape else 0 for t in planning.graph.tensors if t.role is Role.INPUT}
    return sizes.pop() if len(sizes) == 1 and sizes != {0} else None


def _compared(price: Price, cost: Fraction) -> str:
    scale = price.cost.denominator
    text = f"a plan of the space {price.space!r} costs {seconds_text(price.cost.numerator, scale)}"
    if price.cost == cost:
        return f"{text} too"
    times = cost / price.cost
    return f"{text}, " + (f"{float(times):.1f} times less" if times >= 2 else f"{_percent(1 - price.cost / cost)} less")


def _priced(price: Price, cost: Fraction) -> tuple[tuple[str, int | str], ...]:
    return ("space", price.space), ("price", str(price.cost)), ("cost", str(cost))


def _percent(share: Fraction) -> str:
    return f"{100 * float(share):.3g} %"


def _amount(n: int) -> str:
    """Bytes as an option is given."""
    return f"{n >> 30}GiB" if n % (1 << 30) == 0 else f"{n}B" if n < LEAST_BARE_BYTES else str(n)


def _prime_factors(n: int) -> int:
    count, p = 0, 2
    while p * p <= n:
        if n % p == 0:
            n, count = n // p, count + 1
        else:
            p += 1
    return count + (n > 1)


__all__ = ["Batch", "Kind", "Remark", "remarks"]
