"""Regions: branches of a graph that may run beside each other, and the divisions of the machine they
are tried on.

    branch     operators, phase by phase (one phase; in a training step forward and backward), that are connected by
               tensors of their own: a tensor is the branch's own if one of its operators writes it and nothing else
               reads or keeps it, or if it has a copy and only the branch's operators touch that
    region     branches without a common operator, none of which reads what another one writes
    division   one view per branch; two of them are equal or have no common device
    time       of a phase under a division: the largest, over the views, of the sum over the operators of the view's
               branches and over the movements of their own tensors; phases come one after another, and what enters or
               leaves a view moves by itself, before or after

The region either runs on the whole machine, one operator after another, or under one of its divisions.
"""

from __future__ import annotations

import hashlib
import json
from dataclasses import dataclass

from ..layout.submesh import Submesh

Branch = tuple[tuple[str, ...], ...]
"""Names of operators per phase, in the graph's order."""


@dataclass(frozen=True)
class Region:
    """`branches[i][p]`: operators of branch i in phase p.  `divisions[m][i]`: the view of branch i under division m."""

    branches: tuple[Branch, ...]
    divisions: tuple[tuple[Submesh, ...], ...]

    @property
    def phases(self) -> int:
        """Number of phases of every branch."""
        return len(self.branches[0])

    def groups(self, division: int) -> tuple[tuple[Submesh, tuple[int, ...]], ...]:
        """The distinct views of a division, in order of their first branch, with their branches."""
        found: dict[Submesh, list[int]] = {}
        for i, view in enumerate(self.divisions[division]):
            found.setdefault(view, []).append(i)
        return tuple((view, tuple(members)) for view, members in found.items())


def regions_json(regions: tuple[Region, ...]) -> list[object]:
    """Regions as plain data."""
    return [
        {
            "branches": [[list(phase) for phase in branch] for branch in r.branches],
            "divisions": [[[list(v.starts), list(v.counts)] for v in views] for views in r.divisions],
        }
        for r in regions
    ]


def submesh_flags(flags: tuple[str, ...], regions: tuple[Region, ...], hierarchy: tuple[int, ...]) -> tuple[str, ...]:
    """Assumptions of a plan with submeshes: those without, of which one changes, and what it is optimal over."""
    text = json.dumps(regions_json(regions), sort_keys=True, separators=(",", ":"))
    digest = hashlib.sha256(text.encode()).hexdigest()[:12]
    divisions = sum(len(r.divisions) for r in regions)
    found = {*flags} - {"no-overlap"}
    found |= {"branches-beside-each-other", f"views({len(regions)} regions, {divisions} divisions, {digest})"}
    if any(r.phases > 1 for r in regions):
        found.add("tied-backward")
    if any(v.divides_links(hierarchy) for r in regions for views in r.divisions for v in views):
        found.add("shared-links-divided")
    return tuple(sorted(found))
