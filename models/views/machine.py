"""The machine of a view: level sizes of the view, and its share of every link (`layout.submesh`)."""

from __future__ import annotations

from dataclasses import replace
from fractions import Fraction
from math import prod

from ..layout.submesh import Submesh
from ..machine.machine import Collectives, Machine
from ..text import Inapplicable


def submesh_machine(machine: Machine, view: Submesh) -> Machine:
    """The machine of a view.  Raises `ValueError` where the view is none of the machine, or cannot be priced by itself:
    of several classes of devices, where reductions have a choice of programs, or where links with measured collectives
    would be divided.
    """
    if not view.fits(machine.hierarchy):
        raise ValueError(f"submesh {view.starts} {view.counts} is no box of the machine {machine.hierarchy}")
    if machine.others:
        raise Inapplicable(
            f"machine {machine.name!r} has several classes of devices; submeshes are priced on machines of one class",
            "leave out --submeshes, or take another machine",
        )
    if machine.collectives is not Collectives.HIERARCHICAL:
        raise Inapplicable(
            f"machine {machine.name!r} has {machine.collectives.value} collectives; "
            "submeshes are priced level by level",
            "leave out --submeshes, or plan with --collectives hierarchical",
        )
    if view.divides_links(machine.hierarchy) and any(level.collectives for level in machine.levels):
        raise ValueError(
            f"the submesh would have a part of links of {machine.name!r} whose collectives were measured whole"
        )
    levels = []
    for j, level in enumerate(machine.levels):
        share = prod((Fraction(c, h) for c, h in zip(view.counts[j + 1 :], machine.hierarchy[j + 1 :], strict=True)))
        levels.append(replace(level, size=view.counts[j], bandwidth=level.bandwidth * share))
    return replace(machine, levels=tuple(levels), resources=())
