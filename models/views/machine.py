"""The machine of a view: level sizes of the view, and its share of every link (`models.layout.view`)."""

from __future__ import annotations

from dataclasses import replace
from fractions import Fraction
from math import prod

from ..layout.view import View
from ..machine.machine import Machine


def view_machine(machine: Machine, view: View) -> Machine:
    """The machine of a view.  Raises `ValueError` where the view is none of the machine, or where no part of it can be
    priced by itself: several classes of devices, measured collectives.
    """
    if not view.fits(machine.hierarchy):
        raise ValueError(f"view {view.starts} {view.counts} is no box of the machine {machine.hierarchy}")
    if machine.others or any(level.collectives for level in machine.levels):
        raise ValueError(
            f"machine {machine.name!r} has several classes of devices or measured collectives; views are priced on "
            "machines of one class by bandwidth and latency: leave out --views, or take another machine"
        )
    levels = []
    for j, level in enumerate(machine.levels):
        share = prod((Fraction(c, h) for c, h in zip(view.counts[j + 1 :], machine.hierarchy[j + 1 :], strict=True)))
        levels.append(replace(level, size=view.counts[j], bandwidth=level.bandwidth * share))
    return replace(machine, levels=tuple(levels), resources=())
