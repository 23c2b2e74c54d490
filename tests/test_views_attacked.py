"""Attacks on plans with views: what a file might claim without being refuted, a test for each that was tried."""

from __future__ import annotations

import pytest
from test_views import _choice, certificate, found, machine_of, reasons, uno

from shardproof.models.layout.view import View
from shardproof.models.program.graph import Graph
from shardproof.models.sources.building.builder import Builder
from shardproof.verify.plan.used_entries import Entries
from shardproof.verify.views.problem import rebuilt
from shardproof.verify.views.structure import parts_of


def scans(first: str) -> Graph:
    """Two branches of operators that agree in everything but in which axes are never split: `first` is summed up
    (empty: none), then n.
    """
    g, ends = Builder("scans", "float32"), []
    for name in ("left", "right"):
        x = g.input(f"{name}.x", (64, 64))
        text = "b n -> b n"
        if first:
            x = g.normalise(f"{name}.first", "cumulative_sum", text, x, over=first)
        else:
            x = g.map(f"{name}.first", "relu", x, text=text)
        ends.append(g.normalise(f"{name}.then", "cumulative_sum", text, x, over="n"))
    return g.build(g.map("join", "add", *ends, text="b n, b n -> b n"))


@pytest.mark.parametrize("first", ["b", "n", ""])
def test_layouts_on_a_view_are_those_of_the_axes_that_may_be_split(first: str) -> None:
    """Equal extents and equal maps have other placements where other axes are whole, and so other layouts."""
    plan = found(scans(first), machine_of((1, 4), "1e-6", "1e9"))
    made = plan.planning
    entries = Entries(made.planning)
    assert rebuilt(entries, made.regions, parts_of(entries, made.regions)).sha256() == made.problem.sha256()
    assert reasons(certificate(plan)) == ""


@pytest.mark.parametrize(
    ("view", "said"),
    [
        (View((), ()), "0 starts and 0 counts for 2 levels"),
        (View((0,) * 30, (720,) * 30), "30 starts and 30 counts"),
        (View((0, 0), (720720, 720720)), "no aligned part of 2"),
        (View((2, 0), (1, 2)), "no aligned part of 2"),
    ],
)
def test_placements_are_listed_on_views_of_the_machine_alone(view: View, said: str) -> None:
    """A placement of one byte per level would else have the checker list all placements of 2^20 devices per level."""
    assert said in reasons(_choice(certificate(uno()), 0, view=view))
