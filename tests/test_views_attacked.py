"""Attacks on plans with submeshes: what a file might claim without being refuted, a test for each that was tried."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import pytest
from test_views import _choice, certificate, fork, found, machine_of, reasons, uno

from shardproof.formal.plans.submeshes.problem import build_submesh_problem
from shardproof.models.communication.choices import copy_layout
from shardproof.models.communication.resharding import derive
from shardproof.models.cost.selection import Planning
from shardproof.models.cost.selection import build as build_problem
from shardproof.models.layout.placement import Placement, space
from shardproof.models.layout.submesh import Submesh
from shardproof.models.machine.machine import Machine, load_machine
from shardproof.models.problem.claims import LowerBound, Optimal
from shardproof.models.problem.selection_problem import FORBIDDEN, SelectionProblem
from shardproof.models.program.graph import Graph
from shardproof.models.sources.building.builder import Builder
from shardproof.models.views.regions import Branch, Region
from shardproof.proofs.container.canonical import ContainerError
from shardproof.proofs.views.certificate import SubmeshCertificate
from shardproof.proofs.views.file import decode_submesh_plan, encode_submesh_plan
from shardproof.verify.plan.used_entries import Entries
from shardproof.verify.views import certificate as checker
from shardproof.verify.views import prices, problem
from shardproof.verify.views.certificate import check_submesh_plan
from shardproof.verify.views.prices import part_of
from shardproof.verify.views.problem import rebuilt
from shardproof.verify.views.structure import parts_of, wrong_divisions


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
        (Submesh((), ()), "0 starts and 0 counts for 2 levels"),
        (Submesh((0,) * 30, (720,) * 30), "30 starts and 30 counts"),
        (Submesh((0, 0), (720720, 720720)), "no aligned part of 2"),
        (Submesh((2, 0), (1, 2)), "no aligned part of 2"),
    ],
)
def test_placements_are_listed_on_views_of_the_machine_alone(view: Submesh, said: str) -> None:
    """A placement of one byte per level would else have the checker list all placements of 2^20 devices per level."""
    assert said in reasons(_choice(certificate(uno()), 0, view=view))


HALVES = (Submesh((0, 0), (1, 1)), Submesh((0, 1), (1, 1)))
TEXT = "b n, b n -> b n"


def waiting() -> Graph:
    """`right` reads, by a copy outside of both branches, what `left` writes."""
    g = Builder("waiting", "float32")
    t = g.map("left", "relu", g.input("x", (8, 64)), text="b n -> b n")
    return g.build(g.map("join", "add", t, g.map("right", "relu", t, text="b n -> b n"), text=TEXT))


def replacing() -> Graph:
    """`right` writes the next value of the parameter that `left` reads."""
    g = Builder("replacing", "float32")
    w = g.parameter("w", (8, 64))
    y = g.map("left", "add", g.input("x", (8, 64)), w, text=TEXT)
    new = g.map("right", "relu", g.input("gradient", (8, 64)), text="b n -> b n")
    return replace(g.build(y), state=((w, new),))


def around() -> Graph:
    """One branch is left and entered again: `second` -> `outside` -> `third`."""
    g = Builder("around", "float32")
    x = g.input("x", (8, 64))
    first = g.map("first", "relu", x, text="b n -> b n")
    outside = g.map("outside", "relu", g.map("second", "relu", x, text="b n -> b n"), text="b n -> b n")
    third = g.map("third", "add", first, outside, text=TEXT)
    other = g.map("other", "relu", g.input("y", (8, 64)), text="b n -> b n")
    return g.build(g.map("join", "add", third, other, text=TEXT))


def chains() -> Graph:
    g, ends = Builder("chains", "float32"), []
    for name in ("left", "right"):
        x = g.map(f"{name}.0", "relu", g.input(f"{name}.x", (8, 64)), text="b n -> b n")
        ends.append(g.map(f"{name}.1", "relu", x, text="b n -> b n"))
    return g.build(g.map("join", "add", *ends, text=TEXT))


def beside(*branches: Branch) -> Region:
    return Region(branches, (HALVES,))


UNSOUND: dict[str, tuple[Graph, tuple[Region, ...], str]] = {
    "a branch that waits for the other by a copy": (
        waiting(),
        (beside((("left",),), (("right",),)),),
        "'right' has to wait for 'left'",
    ),
    "a next value beside a reader of the parameter": (
        replacing(),
        (beside((("left",),), (("right",),)),),
        "'right' has to wait for 'left'",
    ),
    "a branch that is left and entered again": (
        around(),
        (beside((("first", "second", "third"),), (("other",),)),),
        "region 0: phase 0 would have to wait for itself",
    ),
    "a region right behind another": (
        chains(),
        (beside((("left.0",),), (("right.0",),)), beside((("left.1",),), (("right.1",),))),
        "moves from one branch to another",
    ),
    "a branch of nothing": (
        chains(),
        (beside((("left.0", "left.1"),), ((),)),),
        "a branch has no operators",
    ),
    "an operator in two regions": (
        chains(),
        (beside((("left.0", "left.1"),), (("right.0", "right.1"),)), beside((("left.0",),), (("right.0",),))),
        "belongs to two branches",
    ),
}


@pytest.mark.parametrize("name", UNSOUND)
def test_branches_that_cannot_run_beside_each_other(name: str) -> None:
    """Each of these would be proved to take the time of the slower branch, which no order of its operators takes."""
    graph, regions, said = UNSOUND[name]
    graph.check()
    c = replace(certificate(found(chains(), machine_of((1, 2), "1e-6", "1e9"))), graph=graph, regions=regions)
    assert said in reasons(c)


def mixed() -> Machine:
    base = load_machine("cloud-a100:2x2")
    return replace(base, others=(replace(base.device, name="other", blocks=(0,)),))


NO_DIVISIONS: dict[str, tuple[Machine, tuple[tuple[Submesh, Submesh], ...], str]] = {
    "several classes of devices": (mixed(), ((Submesh((0, 0), (1, 2)), Submesh((1, 0), (1, 2))),), "several classes"),
    "links whose collectives were measured whole": (
        load_machine("dgx-h100:2x2"),
        ((Submesh((0, 0), (2, 1)), Submesh((0, 1), (2, 1))),),
        "measured whole",
    ),
    "one division twice": (load_machine("cloud-a100:1x2"), (HALVES, HALVES), "listed twice"),
    "a count that divides nothing": (
        load_machine("cloud-a100:1x4"),
        ((Submesh((0, 0), (1, 3)),) * 2,),
        "no aligned part",
    ),
    "a start between two views": (load_machine("cloud-a100:1x4"), ((Submesh((0, 1), (1, 2)),) * 2,), "no aligned part"),
    "a start behind the end": (load_machine("cloud-a100:1x4"), ((Submesh((0, 4), (1, 2)),) * 2,), "no aligned part"),
    "a view in another": (
        load_machine("cloud-a100:1x4"),
        ((Submesh((0, 2), (1, 2)), Submesh((0, 3), (1, 1))),),
        "share devices",
    ),
    "views that cross": (
        load_machine("cloud-a100:2x2"),
        ((Submesh((0, 1), (2, 1)), Submesh((1, 0), (1, 2))),),
        "share devices",
    ),
}


@pytest.mark.parametrize("name", NO_DIVISIONS)
def test_divisions_that_are_none(name: str) -> None:
    machine, divisions, said = NO_DIVISIONS[name]
    assert said in wrong_divisions(machine, [Region(((("left",),), (("right",),)), divisions)])


def test_views_that_are_neighbours_are_a_division() -> None:
    crossing = ((Submesh((0, 0), (2, 1)), Submesh((0, 1), (2, 1))), (Submesh((0, 0), (1, 1)), Submesh((1, 0), (1, 2))))
    assert wrong_divisions(load_machine("cloud-a100:2x2"), [Region(((("left",),), (("right",),)), crossing)]) == ""


def kept(shared: bool) -> Graph:
    """Branches of two operators each; of the left one what is between them is a result too.  `shared`: both begin with
    the same input.
    """
    g, ends, between = Builder("kept", "float32"), [], ""
    x = g.input("x", (64, 64))
    for name in ("left", "right"):
        at = x if shared or name == "left" else g.input("y", (64, 64))
        at = g.map(f"{name}.0", "relu", at, text="b n -> b n")
        between = between or at
        ends.append(g.map(f"{name}.1", "relu", at, text="b n -> b n"))
    return g.build(g.map("join", "add", *ends, text=TEXT), between)


@pytest.mark.parametrize("shared", [False, True])
def test_copies_that_others_need_belong_to_no_branch(shared: bool) -> None:
    """A result, and an input of two branches, are on the whole machine: no view prices their copies."""
    graph, machine = kept(shared), machine_of((1, 2), "1e-6", "1e9")
    branches = ((("left.1",),), (("right.0", "right.1"),))
    planning = build_problem(graph, machine, space("complete"), None)
    entries, regions = Entries(planning), (beside(*branches),)
    parts = parts_of(entries, regions)
    assert not {planning.copies[name] for name in planning.copies} & set(parts.place)
    both = (beside((("left.0",),), (("right.0", "right.1"),)),)
    assert not {planning.copies[name] for name in planning.copies} & set(parts_of(entries, both).place)
    plan = found(graph, machine, regions)
    assert reasons(certificate(plan)) == ""
    whole = (beside((("left.0", "left.1"),), (("right.0", "right.1"),)),)
    assert not {planning.copies[name] for name in planning.copies} & set(parts_of(entries, whole).place)
    assert "branch 0 does not hang together" in reasons(replace(certificate(plan), regions=whole))


def test_an_inner_copy_has_the_view_of_its_branch() -> None:
    """`around` reads x twice in one branch: its copy is the branch's own, and builder and checker say so."""
    g = Builder("twice", "float32")
    ends = []
    for name in ("left", "right"):
        x = g.input(f"{name}.x", (64, 64))
        ends.append(g.map(name, "add", x, x, text=TEXT))
    graph, machine = g.build(g.map("join", "add", *ends, text=TEXT)), machine_of((1, 2), "1e-4", "1e9")
    regions = (beside((("left",),), (("right",),)),)
    plan = found(graph, machine, regions)
    made = plan.planning.planning
    assert {made.copies[f"{name}.x"] for name in ("left", "right")} <= set(parts_of(Entries(made), regions).place)
    c = certificate(plan)
    assert reasons(c) == ""
    assert [p.view for _, p in c.choices.copies] == [*HALVES, None]
    for view in (None, HALVES[1]):
        (name, p), *others = c.choices.copies
        moved = replace(c, choices=replace(c.choices, copies=((name, replace(p, view=view)), *others)))
        assert "outside the space" in reasons(moved) if view is None else "is on two submeshes" in reasons(moved)


def settled() -> SubmeshCertificate:
    """Two chains, beside each other on two devices."""
    c = certificate(found(chains(), machine_of((1, 2), "1e-4", "1e9")))
    assert [p.view for _, p in c.choices.operators if p.view is not None]
    return c


def on(c: SubmeshCertificate, views: dict[str, Submesh]) -> SubmeshCertificate:
    """Branches on other views of the same size."""
    items = tuple((n, replace(p, view=views.get(n.split(".")[0], p.view))) for n, p in c.choices.operators)
    return replace(c, choices=replace(c.choices, operators=items))


@pytest.mark.parametrize("views", [(HALVES[0], HALVES[0]), (HALVES[1], HALVES[0])])
def test_views_that_no_division_gives_are_refuted(views: tuple[Submesh, Submesh]) -> None:
    c = on(settled(), {"left": views[0], "right": views[1]})
    assert "none of its divisions" in reasons(replace(c, regions=(replace(c.regions[0], divisions=(HALVES,)),)))


def test_one_branch_on_its_view_and_the_other_on_the_machine_is_refuted() -> None:
    """The whole machine has the devices of every view."""
    c = settled()
    items = tuple(
        (n, Placement(p.axes, ((1, 2), *((1, 1),) * len(p.axes))) if n.startswith("left") else p)
        for n, p in c.choices.operators
    )
    assert "none of its divisions" in reasons(replace(c, choices=replace(c.choices, operators=items)))


def test_a_bound_alone_says_nothing_about_a_plan() -> None:
    c = settled()
    assert isinstance(c.least.claim, Optimal)
    bound = replace(c.least, claim=LowerBound(c.least.claim.cost))
    assert "LowerBound says nothing" in reasons(replace(c, least=bound))


def test_a_vocabulary_is_refused_by_name() -> None:
    assert "vocabularies are for plans of the whole machine" in reasons(replace(settled(), space="complete,jax"))


def test_axes_under_other_names_are_outside_the_space() -> None:
    c = settled()
    name, p = c.choices.operators[0]
    renamed = (name, replace(p, axes=p.axes[::-1]))
    assert "outside the space" in reasons(
        replace(c, choices=replace(c.choices, operators=(renamed, *c.choices.operators[1:])))
    )


def test_a_state_that_is_read_after_it_is_replaced_is_refuted() -> None:
    """The parameter is read behind the operator that writes its next value."""
    g = Builder("late", "float32")
    w = g.parameter("w", (8, 64))
    new = g.map("right", "relu", g.input("gradient", (8, 64)), text="b n -> b n")
    y = g.map("left", "add", g.input("x", (8, 64)), w, text=TEXT)
    graph = replace(g.build(y), state=((w, new),))
    c = replace(settled(), graph=graph, regions=(beside((("left",),), (("right",),)),))
    with pytest.raises(ValueError, match="after"):
        reasons(c)


@pytest.mark.parametrize("phases", [((), ()), (("cell.rnaseq.dense0",),)])
def test_branches_have_one_phase_or_two_all_of_them(phases: Branch) -> None:
    """Three phases, or two in one branch only."""
    c = certificate(uno())
    (region,) = c.regions
    several = len(phases) > 1
    branches = tuple((*branch, *phases) if several or not b else branch for b, branch in enumerate(region.branches))
    with pytest.raises(ContainerError, match="all of one phase or all of two"):
        decode_submesh_plan(encode_submesh_plan(replace(c, regions=(replace(region, branches=branches),))))


@pytest.mark.parametrize(
    ("counts", "shares"),
    [((2, 1, 1), (1, 4)), ((1, 2, 1), (1, 2)), ((2, 2, 1), (1, 2)), ((2, 1, 2), (1, 2)), ((1, 1, 2), (1, 1))],
)
def test_views_of_one_division_share_a_link_by_its_devices(counts: tuple[int, ...], shares: tuple[int, int]) -> None:
    """Of a link of the outermost level that a view crosses, it has the part of the devices below that are its own."""
    machine = load_machine("cloud-a100:2x2")
    three = replace(machine, levels=(machine.levels[0], *machine.levels))
    three = replace(three, levels=tuple(replace(level, size=2) for level in three.levels))
    found = part_of(three, Submesh((0, 0, 0), counts))
    outermost = next(j for j, n in enumerate(counts) if n > 1)
    assert found.levels[outermost].bandwidth * shares[1] == three.levels[outermost].bandwidth * shares[0]
    assert found.hierarchy == counts


def test_branches_across_all_nodes_are_priced_at_their_part_of_the_network() -> None:
    """Both views cross both nodes' links at once; each has half: builder and checker agree, and whole links are told
    from halves.
    """
    graph, machine = fork(True, 2), machine_of((2, 2), "1e-6", "1e10")
    across = Region(
        ((("left0", "left1"),), (("right0", "right1"),)), ((Submesh((0, 0), (2, 1)), Submesh((0, 1), (2, 1))),)
    )
    planning = build_problem(graph, machine, space("complete"), None)
    made = build_submesh_problem(planning, (across,))
    entries = Entries(planning)
    parts = parts_of(entries, (across,))
    again = rebuilt(entries, (across,), parts)
    assert again.sha256() == made.problem.sha256()
    assert "shared-links-divided" in again.assumptions
    inner = parts.inner[0, 0]
    assert inner
    alone = (machine.levels[0].bandwidth, part_of(machine, Submesh((0, 0), (2, 1))).levels[0].bandwidth)
    assert alone[0] == 2 * alone[1]


LIMITS = {
    "cells": (prices, "MOST_CELLS", "too entangled"),
    "ways": (problem, "MOST_LABELS", "too many ways"),
    "levels": (problem, "MOST_LEVELS", "too many to be checked"),
}


@pytest.mark.parametrize("name", LIMITS)
def test_what_is_too_large_to_be_checked_is_said(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """A file cannot have the checker fill its memory: each table is counted before it is made."""
    module, limit, said = LIMITS[name]
    c = certificate(uno())
    monkeypatch.setattr(module, limit, 1)
    with pytest.raises(ContainerError, match=said):
        check_submesh_plan(c, "seed", 1, 1)


def outside() -> Graph:
    """Two branches, behind them a sum that is read twice: its copy is no branch's."""
    g = Builder("outside", "float32")
    ends = [g.map(name, "relu", g.input(f"{name}.x", (64, 64)), text="b n -> b n") for name in ("left", "right")]
    both = g.map("join", "add", *ends, text=TEXT)
    return g.build(g.map("twice", "add", both, g.map("last", "relu", both, text="b n -> b n"), text=TEXT))


def test_copies_of_others_are_on_the_machine() -> None:
    """A copy that no branch touches has no view, and the problem has no choice for that."""
    plan = found(outside(), machine_of((1, 2), "1e-4", "1e9"), (beside((("left",),), (("right",),)),))
    c, made = certificate(plan), plan.planning.planning
    assert made.copies["join"] not in parts_of(Entries(made), c.regions).place
    assert reasons(c) == ""
    alone = {"join": HALVES[0]}
    items = tuple(
        (n, Placement(p.axes, tuple((1,) * len(row) for row in p.matrix), alone[n]) if n in alone else p)
        for n, p in c.choices.copies
    )
    assert "'join' belongs to no branch" in reasons(replace(c, choices=replace(c.choices, copies=items)))


def test_a_result_that_rests_with_a_parameter_belongs_to_no_branch() -> None:
    """The next value of a parameter is asked for too: the copy in which both rest is on the whole machine."""
    g = Builder("kept", "float32")
    w = g.parameter("w", (8, 64))
    new = g.map("left", "add", g.input("x", (8, 64)), w, text=TEXT)
    y = g.map("right", "relu", g.input("y", (8, 64)), text="b n -> b n")
    regions = (beside((("left",),), (("right",),)),)
    for outputs in ((y,), (y, new), (y, w)):
        graph = replace(g.build(*outputs), state=((w, new),))
        planning = build_problem(graph, machine_of((1, 2), "1e-4", "1e9"), space("complete"), None)
        place = parts_of(Entries(planning), regions).place
        assert (planning.copies["w"] in place) == (outputs == (y,))


Built = Callable[[SelectionProblem], SelectionProblem]


def longer(p: SelectionProblem) -> SelectionProblem:
    """The first resharding that takes time takes a unit more."""
    n = next(n for n, t in enumerate(p.tables) if ((t > 0) & (t < FORBIDDEN)).any())
    table = p.tables[n].copy()
    table[(table > 0) & (table < FORBIDDEN)] += 1
    return replace(p, tables=(*p.tables[:n], table, *p.tables[n + 1 :]))


WRONG: dict[str, tuple[str, Built]] = {
    "an edge less": ("edge", lambda p: replace(p, edges=p.edges[:-1])),
    "an assumption less": ("assum", lambda p: replace(p, assumptions=p.assumptions[1:])),
    "a longer resharding": ("", longer),
}


@pytest.mark.parametrize("name", WRONG)
def test_a_wrong_builder_is_not_believed(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """The tables of the whole machine are built by code that the search has too."""
    said, change = WRONG[name]

    def other(*of: object) -> Planning:
        planning = build_problem(*of)  # type: ignore[arg-type]
        return replace(planning, problem=change(planning.problem))

    c = settled()
    monkeypatch.setattr(checker, "build", other)
    refuted = reasons(c)
    assert refuted and said in refuted


def test_movements_must_bring_what_is_priced(monkeypatch: pytest.MonkeyPatch) -> None:
    c = settled()
    with monkeypatch.context() as m:
        m.setattr(
            checker,
            "output_layout",
            lambda op, graph, p, sizes: checker.input_layout(
                op, 0, graph, Placement(p.axes, ((2, 1), *p.matrix[1:])), sizes
            ),
        )
        assert "layouts differ from what index sets give" in reasons(c)
    other = Placement(("0", "1"), ((2, 1), (1, 1), (1, 1)))
    with monkeypatch.context() as m:
        m.setattr(
            checker,
            "input_layout",
            lambda op, k, graph, p, sizes: copy_layout(op.inputs[k].tensor, graph, other, sizes),
        )
        assert "layouts differ from what index sets give" in reasons(c)
    with monkeypatch.context() as m:
        m.setattr(checker, "derive", lambda a, b: derive(a, a))
        assert "movement" in reasons(c)
    with monkeypatch.context() as m:
        m.setattr(checker, "wrong_owner", lambda *of: "nobody owns it")
        assert "nobody owns it" in reasons(c)
