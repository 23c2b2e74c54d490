"""Leaves on nodes: no entry of a problem of nodes is above that of the view's, a step costs no less than they say, and
the checker refuses those that are no bound."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace
from fractions import Fraction
from functools import cache

import numpy as np
import pytest
from budgets import work

from shardproof.formal.plans.pipelines.job import Job
from shardproof.formal.plans.pipelines.outcome import SearchOutcome
from shardproof.formal.plans.pipelines.search import search_pairs
from shardproof.formal.selection.model.clock import Clock
from shardproof.models.cost.selection import Planning
from shardproof.models.cost.selection import build as build_problem
from shardproof.models.layout.placement import space
from shardproof.models.machine.machine import Machine, load_machine
from shardproof.models.machine.measured import CollectiveForm
from shardproof.models.machine.parts import Profile
from shardproof.models.pipelines.division import divide
from shardproof.models.pipelines.nodes import loose, nodes, single
from shardproof.models.problem.claims import Verdict
from shardproof.models.problem.selection_problem import Ints
from shardproof.models.program.graph import Graph
from shardproof.models.program.index import Affine, Axis, Combine, access
from shardproof.models.sources.building.builder import Builder
from shardproof.models.sources.training import build_step
from shardproof.models.sources.zoo import build
from shardproof.proofs.container.archive import read_container, write_container
from shardproof.proofs.container.canonical import ContainerError, canonical
from shardproof.proofs.pipelines.certificate import Leaf, PipelineCertificate
from shardproof.proofs.pipelines.file import decode_pipeline, encode_pipeline
from shardproof.verify.budget import CELLS, Budget
from shardproof.verify.pipelines import nodes as checked
from shardproof.verify.pipelines.certificate import check_pipeline
from shardproof.verify.plan.structure import moves


def training(name: str, batch: int, optimizer: str = "adam", **sizes: int | str) -> Graph:
    return build_step(build(name, batch=batch, **sizes), optimizer).graph


def shifted() -> Graph:
    """What is read beyond an edge, the largest of a row, and a product that all sorts of readers want."""
    g = Builder("shifted")
    g.input("x", (8, 8))
    g.parameter("w", (8, 8))
    late = [access("x", Affine.axis("i").shift(-1), "j")]
    g.operator("late", "copy", [Axis("i", 8), Axis("j", 8)], late, ["i", "j"])
    g.contract("y", "i k, k j -> i j", "late", "w")
    g.operator("back", "copy", [Axis("i", 4), Axis("j", 8)], [access("y", Affine.axis("i").shift(2), "j")], ["i", "j"])
    g.operator("most", "max", [Axis("i", 8), Axis("j", 8, Combine.MAX)], [access("y", "i", "j")], ["i"])
    g.normalise("soft", "softmax", "i j -> i j", "y", over=["j"])
    return g.build("most", "soft", "back")


def projection(planning: Planning, joined: Planning, vertex: int) -> Ints:
    """Choice on the view -> choice on nodes."""
    a, b = planning.decisions[vertex], joined.decisions[vertex]
    assert a.name == b.name and a.axes == b.axes
    number = {m.tobytes(): i for i, m in enumerate(b.placements)}
    return np.array([number[np.ascontiguousarray(m[:, :1]).tobytes()] for m in a.placements])


GRAPHS: dict[str, Callable[[], Graph]] = {
    "bert-tiny": lambda: training("bert-tiny", 4),
    "llama": lambda: training("llama", 4, layers=1, width=64, heads=4, kv_heads=2, hidden=96, sequence=16, vocabulary=64),
    "dlrm": lambda: training("dlrm", 8, "sgd"),
    "shifted": shifted,
}  # fmt: skip


@pytest.mark.parametrize("machine", ["cloud-a100:2x2", "cloud-a100:4x2", "cloud-a100:2x4", "summit:2x2x3"])
@pytest.mark.parametrize("name", GRAPHS)
def test_no_entry_on_nodes_is_above_one_on_the_view(name: str, machine: str) -> None:
    graph, view, where = GRAPHS[name](), load_machine(machine), space("two-per-level")
    small = nodes(view, where)
    assert single(graph) and small is not None
    assert small == checked.node_machine(view, where) and checked.simple(graph)
    planning, joined = build_problem(graph, view, where), build_problem(graph, small, where)
    assert planning.problem.scale == joined.problem.scale
    free = loose(joined)
    assert free == checked.free(graph, list(moves(graph))) and len(free) < len(joined.routes)
    to = [projection(planning, joined, v) for v in range(len(planning.decisions))]
    for v, vertex in enumerate(planning.problem.vertices):
        assert (joined.problem.vertices[v].cost[to[v]] <= vertex.cost).all(), planning.decisions[v].name
    seen: set[tuple[int, ...]] = set()
    for k, (e, f) in enumerate(zip(planning.problem.edges, joined.problem.edges, strict=True)):
        key = (e.table, f.table, *(id(part) for part in (e.rows, e.cols, f.rows, f.cols)))
        if k in free or key in seen:
            continue
        seen.add(key)
        assert (entries(joined, k, to[e.u], to[e.v]) <= entries(planning, k, *every(planning, k))).all(), k


def every(planning: Planning, edge: int) -> tuple[Ints, Ints]:
    e = planning.problem.edges[edge]
    u, v = (np.arange(planning.problem.domain_size(x)) for x in (e.u, e.v))
    return u, v


def entries(planning: Planning, edge: int, rows: Ints, cols: Ints) -> Ints:
    """Costs of an edge for all pairs of these choices."""
    e = planning.problem.edges[edge]
    r, c = rows if e.rows is None else e.rows[rows], cols if e.cols is None else e.cols[cols]
    return planning.problem.tables[e.table][np.ix_(r, c)]


def test_what_a_shift_cuts_is_loose() -> None:
    g = Builder("cut")
    g.input("x", (8, 8))
    for name, rows, shift in (("late", 8, -1), ("early", 8, 1), ("middle", 4, 2)):
        read = [access("x", Affine.axis("i").shift(shift), "j")]
        g.operator(name, "copy", [Axis("i", rows), Axis("j", 8)], read, ["i", "j"])
    graph = g.build("late", "early", "middle")
    small = nodes(load_machine("cloud-a100:2x2"), space("complete"))
    assert small is not None and single(graph)
    joined = build_problem(graph, small, space("complete"))
    assert {joined.decisions[joined.routes[e].target].name for e in loose(joined)} == {"late", "early"}
    assert checked.free(graph, list(moves(graph))) == loose(joined)


def test_an_axis_in_two_dimensions_has_no_bound_of_nodes() -> None:
    """The devices of a node read the blocks of a diagonal, a node the square around them."""
    g = Builder("diagonal")
    g.input("x", (8, 8))
    g.operator("diagonal", "copy", [Axis("i", 8)], [access("x", "i", "i")], ["i"])
    graph = g.build("diagonal")
    assert not single(graph) and not checked.simple(graph)


def odd_machines() -> dict[str, Machine]:
    m = load_machine("cloud-a100:4x8")
    form = CollectiveForm(*[Fraction(1)] * len(CollectiveForm.__dataclass_fields__))
    measured = replace(m.levels[0], collectives=(form,) * 4)
    profile = Profile("matmul", "float32", (1, 1, 1), Fraction(1))
    return {
        "three nodes": m.resized((3, 8)),
        "one node": m.resized((1, 8)),
        "nodes of one": m.resized((4, 1)),
        "one level": replace(m, levels=m.levels[:1]),
        "classes": replace(m, others=(replace(m.device, name="other", blocks=(0,)),)),
        "profiles": replace(m, profiles=(profile,)),
        "collectives": replace(m, levels=(measured, *m.levels[1:])),
        "products": replace(m, device=load_machine("dgx-a100").device),
        "attention": replace(m, device=replace(m.device, attentions=load_machine("dgx-h100").device.attentions)),
    }


@pytest.mark.parametrize("name", odd_machines())
def test_machines_whose_nodes_are_no_bound(name: str) -> None:
    machine = odd_machines()[name]
    assert nodes(machine, space("complete")) is None and checked.node_machine(machine, space("complete")) is None


@pytest.mark.parametrize("name", ["complete,uneven", "complete,dtensor"])
def test_spaces_whose_nodes_are_no_bound(name: str) -> None:
    machine = load_machine("cloud-a100:4x8")
    assert nodes(machine, space(name)) is None and checked.node_machine(machine, space(name)) is None


def test_convolutions_have_no_bound_of_nodes() -> None:
    graph = build("alexnet", batch=4)
    assert not single(graph) and not checked.simple(graph)


@cache
def found() -> SearchOutcome:
    """A plan, and of the step without pipelines what its nodes say, nothing else."""
    step = build_step(build("mlp-8192"), "sgd")
    division = divide(step.graph, step.passes)
    job = Job(step.graph, division, load_machine("cloud-a100:2x2"), space("complete"), None)
    known = search_pairs(job, [(1, 1), (2, 4)], work(60), Fraction(1, 100))
    assert known.best is not None
    whole = known.cases[0]
    whole.leaves.clear()
    whole.bound = whole.coarse
    whole.look(Clock())
    whole.update_bound(known.best.step)
    return replace(known, lower_bound=min(case.bound for case in known.cases))


def refused(c: PipelineCertificate) -> str:
    """Why the checker refuses it; empty if it does not."""
    return next((r.reason for r in check_pipeline(c, "seed", 50, CELLS) if r.verdict is not Verdict.PROVED), "")


def changed(c: PipelineCertificate, old: Leaf, **parts: object) -> PipelineCertificate:
    return replace(c, leaves=tuple(replace(x, **parts) if x is old else x for x in c.leaves))  # type: ignore[arg-type]


def test_leaves_on_nodes_hold_and_are_kept_in_files() -> None:
    c = found().certificate()
    assert any(leaf.nodes for leaf in c.leaves) and refused(c) == ""
    again = decode_pipeline(read_container(write_container(None, encode_pipeline(c))))
    assert [(x.nodes, x.phase, x.bound) for x in again.leaves] == [(x.nodes, x.phase, x.bound) for x in c.leaves]
    results = check_pipeline(c, "seed", 50, CELLS)
    assert {r.kind for r in results} >= {"Space 1:1 nodes", "Entries 1:1 nodes"}


def test_a_problem_of_nodes_takes_no_assumption_away() -> None:
    """It has no memory rows; the claim is about those of the plan all the same."""
    c = replace(found().certificate(), memory=80 << 30)
    plain = replace(c, leaves=tuple(leaf for leaf in c.leaves if not leaf.nodes), lower_bound=0)
    said = [{r.kind: r.assumptions for r in check_pipeline(x, "seed", 50, CELLS)}["WithinGap"] for x in (c, plain)]
    assert said[0] == said[1]


def test_leaves_on_nodes_are_below_those_of_the_view() -> None:
    case = replace(found().cases[0], leaves={}, passes={})
    case.look(Clock())
    below = dict(case.leaves)
    case.prove(1, Clock())
    assert below and all(leaf.bound <= case.leaves[key].bound for key, leaf in below.items())


def test_leaves_on_nodes_of_another_problem_are_refused() -> None:
    c = found().certificate()
    joined = [leaf for leaf in c.leaves if leaf.nodes]
    for leaf in joined:
        assert refused(changed(c, leaf, nodes=False))
    for leaf in [leaf for leaf in c.leaves if not leaf.nodes][:3]:
        assert refused(changed(c, leaf, nodes=True))
    for leaf in joined:  # what every entry may be rounded up by belongs to it
        assert "certificate gives less" in refused(changed(c, leaf, bound=leaf.bound + leaf.times))


def test_leaves_on_nodes_where_they_are_no_bound_are_refused() -> None:
    """Views of one node; and a machine that measured its collectives since."""
    c = found().certificate()
    leaf = next(leaf for leaf in c.leaves if leaf.nodes)
    assert "no bound there" in refused(replace(c, leaves=(*c.leaves, replace(leaf, stages=2, micro=4))))
    level = replace(c.machine.levels[0], collectives=odd_machines()["collectives"].levels[0].collectives)
    wrong = replace(c, machine=replace(c.machine, levels=(level, *c.machine.levels[1:])))
    assert refused(wrong)


@pytest.mark.parametrize("words", [["node"], ["nodes", "F"], ["F", "F"], ["nodes", "nodes"], ["F", "nodes", "F"], [""]])
def test_words_behind_a_leaf(words: list[str]) -> None:
    members = encode_pipeline(found().certificate())
    head = json.loads(bytes(members["pipeline.json"]))
    head["leaves"][0] = [*head["leaves"][0][:7], *words]
    with pytest.raises(ContainerError):
        decode_pipeline({**members, "pipeline.json": canonical(head)})


def test_more_cuts_than_anybody_waits_for_are_too_large() -> None:
    """A small file may name a thousand pairs of a graph of many units: said before any problem is built."""
    c, whole = found().certificate(), Budget.with_large()
    assert all(r.verdict is Verdict.PROVED for r in check_pipeline(c, "seed", 20, CELLS, budget=whole))
    spent = Budget.with_large().work - whole.work
    with pytest.raises(ContainerError, match="--large"):
        check_pipeline(c, "seed", 20, CELLS, budget=Budget(spent - 1, whole.held, None, large=False))
