"""Rules of libraries at operators of more axes than they have: groups of axes, batch axes, numbers; what is forged is refused."""

from __future__ import annotations

import json
import random
from collections.abc import Callable, Iterator
from dataclasses import replace
from functools import cache
from typing import cast

import numpy as np
import pytest
from budgets import some_or_all
from hypothesis import given, settings
from hypothesis import strategies as st

from shardproof.backends.execution.job import Options, build_program
from shardproof.backends.execution.reference import random_inputs, run_graph
from shardproof.backends.execution.run import run_virtual
from shardproof.formal.rewriting.joint import saturate as saturation
from shardproof.formal.rewriting.joint.rules.library import rules_of
from shardproof.formal.rewriting.joint.rules.lifted import BATCH, Dim, copy_of, flat
from shardproof.formal.rewriting.joint.saturate import saturate
from shardproof.formal.rewriting.joint.solve import joint_plan, plan_jointly
from shardproof.formal.selection.model.clock import Clock
from shardproof.models.joint.egraph import EGraph
from shardproof.models.layout.placement import space
from shardproof.models.machine.machine import load_machine
from shardproof.models.program.graph import Graph
from shardproof.models.program.index import Access, Axis, access
from shardproof.models.program.operators import Operator
from shardproof.models.sources.building.builder import Builder
from shardproof.proofs.container.archive import read_container, write_container
from shardproof.proofs.container.canonical import ContainerError, canonical
from shardproof.proofs.joint.books import read_book
from shardproof.proofs.joint.derivation import Derivation, Step
from shardproof.proofs.plan.bundle import read_plan, write_plan
from shardproof.proofs.rewrites.plain import DEFAULTS
from shardproof.verify.joint import libraries
from shardproof.verify.joint.derivation import wrong_derivation
from shardproof.verify.joint.libraries import wrong_instance
from tests.joint_cases import chain
from tests.test_joint_mutants import mutants

MUTANTS = some_or_all(600, 2000)
BOOKS = tuple(read_book(path.read_bytes()) for path in DEFAULTS)


def beside(b: Builder, first: str, other: str, extents: tuple[int, int, int], at: int) -> str:
    """Two tensors of three axes side by side along the second one."""
    i = access("", "a", "b", "c").index
    reads = (Access(first, i), Access(other, (i[0], i[1].shift(-at), i[2])))
    axes = [Axis(a, n) for a, n in zip("abc", extents, strict=True)]
    return b.operator("y", "copy", axes, reads, ("a", "b", "c"))


def heads() -> Graph:
    """Rows projected from heads, each part apart: both axes of a head are summed over."""
    b = Builder("heads")
    q, k, w = b.input("q", (2, 6, 2, 4)), b.input("k", (2, 5, 2, 4)), b.parameter("w", (2, 4, 64))
    p, r = (b.contract(n, "b s h d, h d m -> b s m", x, w) for n, x in (("p", q), ("r", k)))
    return b.build(beside(b, p, r, (2, 11, 64), 6))


def scores() -> Graph:
    """Attention's scores: a scale by a number, and products with two batch axes."""
    b = Builder("scores")
    q, k = b.input("q", (2, 6, 4, 8)), b.input("k", (2, 24, 4, 8))
    scaled = b.map("scaled", "scale", q, scale=0.125)
    return b.build(b.contract("scores", "b s h d, b t h d -> b h s t", scaled, k))


def gates() -> Graph:
    """A row that two tensors of rows are multiplied by, and a sum over two axes of what is added."""
    b = Builder("gates")
    x, z, g = b.input("x", (6, 4, 8)), b.input("z", (6, 4, 8)), b.parameter("g", (8,))
    p, q = (b.map(n, "multiply", t, g, text="a b c, c -> a b c") for n, t in (("p", x), ("q", z)))
    total = b.map("s", "add", p, q)
    return b.build(b.reduce("y", "a b c -> c", total))


def parts() -> Graph:
    """Functions of parts side by side in the middle of three axes."""
    b = Builder("parts")
    x, z = b.input("x", (6, 3, 8)), b.input("z", (6, 5, 8))
    b.map("e", "exp", x)
    b.map("f", "exp", z)
    return b.build(beside(b, "e", "f", (6, 8, 8), 3))


GRAPHS: dict[str, Callable[[], Graph]] = {f.__name__: f for f in (heads, scores, gates, parts)}


@cache
def everything(name: str) -> tuple[EGraph, Derivation]:
    """All that the libraries that come along add, whether it pays or not."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(saturation, "glean", lambda g, first, rounds, most: (g.egraph(), g.derivation(rounds)))
        return saturate(GRAPHS[name](), {b.title: rules_of(b) for b in BOOKS})


def lifted_steps(name: str) -> list[Step]:
    return [s for s in everything(name)[1].steps if s.groups]


# ---- they are found, proved, executed ----


@pytest.mark.parametrize(
    ("name", "groups"),
    [
        ("heads", ((BATCH, 0, 1, 1), (0, 0, BATCH), (BATCH, 0, 1, 1))),
        ("scores", ((BATCH, BATCH, BATCH, 1), (BATCH, BATCH, BATCH, 0), ())),
        ("gates", ((0, 0, BATCH), (BATCH,))),
        ("parts", ((BATCH, 0, BATCH), (BATCH, 0, BATCH))),
    ],
)
def test_rules_hold_of_groups_of_axes(name: str, groups: tuple[tuple[int, ...], ...]) -> None:
    egraph, derivation = everything(name)
    assert wrong_derivation(egraph, derivation) == ""
    assert groups in {s.groups for s in lifted_steps(name)}, {(s.rule, s.groups) for s in lifted_steps(name)}


@pytest.mark.parametrize("name", sorted(GRAPHS))
def test_every_program_computes_what_the_users_does(name: str) -> None:
    """Each added operator of a wanted class, one at a time, with NumPy in double precision."""
    egraph, _ = everything(name)
    arrays = random_inputs(egraph.base, 3, "float64")
    expected = run_graph(egraph.base, arrays)
    made = 0
    for t, nodes in egraph.nodes.items():
        for node in nodes[1:]:
            program = egraph.graph(egraph.close_modes({t: node.name}))
            found = run_graph(program, arrays)
            assert all(np.allclose(found[o], expected[o], atol=1e-9) for o in egraph.base.outputs)
            made += 1
    assert made


def test_one_product_for_two_over_heads_is_planned_and_run() -> None:
    machine = load_machine("cloud-a100:1x2")
    found = plan_jointly(
        heads(), machine, space("complete"), clock=Clock(), rules={b.title: rules_of(b) for b in BOOKS}
    )
    plan = joint_plan(found)
    assert plan is not None and plan.joint is not None
    assert sorted(op.function for op in plan.graph.operators) == ["copy", "product"]
    assert any(s.groups for s in plan.joint.derivation.steps)
    assert write_plan(None, read_plan(data := write_plan(None, plan))[0]) == data
    arrays = random_inputs(heads(), 1, "float64")
    made = build_program(plan.graph, machine.hierarchy, plan.choices, Options())
    assert np.allclose(run_virtual(made, arrays).outputs["y"], run_graph(heads(), arrays)["y"], atol=1e-12)


def test_a_number_moves_to_the_smaller_tensor() -> None:
    """Attention's scale is as good behind the product; either way it is said as the number that it is."""
    egraph, derivation = everything("scores")
    step = next(s for s in lifted_steps("scores") if "= 0.125" in s.reads)
    assert {op.attribute("scale", 0) for op in egraph.operators if op.function == "scale"} == {0.125}
    assert len([op for op in egraph.nodes["scores"]]) == 3  # as it is, the keys scaled, the scores scaled
    for text in ("= 0.25", "= 0.125 ", "=0.125", "= 1/8", "= nan", "scaled"):
        forged = replace(step, reads=tuple(text if r == "= 0.125" else r for r in step.reads))
        steps = tuple(forged if s is step else s for s in derivation.steps)
        assert wrong_derivation(egraph, replace(derivation, steps=steps)), text


def test_nothing_fires_twice_under_two_names() -> None:
    """A rule of ranks 1, 2, 3 and 4 is one rule where axes are grouped: every operator is there once."""
    for name in GRAPHS:
        egraph, _ = everything(name)
        seen = set[object]()
        for op in egraph.operators:
            numbers = {a: k for k, a in enumerate(op.output.axes)}
            for a in (a for x in op.inputs for a in x.axes):
                numbers.setdefault(a, len(numbers))
            read = (
                (x.tensor, tuple(tuple((numbers[n], c) for n, c in i.terms) + (i.offset,) for i in x.index))
                for x in op.inputs
            )
            key = (op.function, op.attributes, op.output.tensor, tuple(read))
            assert key not in seen, (name, op.name)
            seen.add(key)


def test_an_exchange_that_moves_nothing_is_none() -> None:
    """Operators read their operands in any order, so a rule adds no exchange where it found none."""
    for name in GRAPHS:
        egraph, derivation = everything(name)
        steps = {s.node: s for s in derivation.steps}
        for op in egraph.operators:
            if op.function == "copy" and op.name in steps and len(op.inputs) == 1:
                assert tuple(i.single for i in op.inputs[0].index) != op.output.axes


@settings(max_examples=40, deadline=None)
@given(st.lists(st.tuples(st.integers(-1, 2), st.integers(1, 4)), max_size=5), st.permutations(range(5)))
def test_a_flat_shape_has_all_elements(labels: list[tuple[int, int]], order: list[int]) -> None:
    dims = tuple(Dim(label, k, n) for k, (label, n) in enumerate(labels))
    batch = np.prod([d.extent for d in dims if d.label == BATCH], dtype=int)
    assert np.prod(flat(dims, 3), dtype=int) * batch == np.prod([d.extent for d in dims], dtype=int)
    turned = tuple(dims[k] for k in order if k < len(dims))
    copy = copy_of(dims, "x", turned, "y")
    assert copy is not None and len(copy.axes) == len(dims)
    assert copy_of(dims, "x", (*turned, Dim(0, 9, 2)), "y") is None


# ---- what is forged is refused ----


def forged(egraph: EGraph, derivation: Derivation, rng: random.Random) -> Iterator[tuple[str, EGraph, Derivation]]:
    """Kinds of forgery at one random step that has groups."""
    k = rng.choice([k for k, s in enumerate(derivation.steps) if s.groups])
    step = derivation.steps[k]

    def with_step(new: Step) -> Derivation:
        return replace(derivation, steps=(*derivation.steps[:k], new, *derivation.steps[k + 1 :]))

    j = rng.choice([j for j, g in enumerate(step.groups) if g])
    own = step.groups[j]
    others = step.groups[:j], step.groups[j + 1 :]
    yield "a dimension more", egraph, with_step(replace(step, groups=(*others[0], (*own, BATCH), *others[1])))
    yield "a dimension less", egraph, with_step(replace(step, groups=(*others[0], own[:-1], *others[1])))
    yield "an axis that is none", egraph, with_step(replace(step, groups=(*others[0], (7, *own[1:]), *others[1])))
    yield "a group less", egraph, with_step(replace(step, groups=step.groups[:-1]))
    yield "a group more", egraph, with_step(replace(step, groups=(*step.groups, ())))
    yield "no groups", egraph, with_step(replace(step, groups=()))
    spoken = [d for d, label in enumerate(own) if label != BATCH]
    if spoken:
        d = rng.choice(spoken)
        less = (*own[:d], BATCH, *own[d + 1 :])
        yield "an axis of the rule as batch", egraph, with_step(replace(step, groups=(*others[0], less, *others[1])))
    yield from mutants(egraph, derivation, rng)


@pytest.mark.parametrize("number", MUTANTS)
def test_no_forged_step_of_groups_is_accepted(number: int) -> None:
    rng, seen, kinds = random.Random(36), 0, dict[str, int]()
    while seen < number:
        name = rng.choice(sorted(GRAPHS))
        egraph, derivation = everything(name)
        for kind, graphs, steps in forged(egraph, derivation, rng):
            turned = [a for a, b in zip(graphs.operators, egraph.operators, strict=True) if a != b]
            if kind == "swapped inputs" and turned[0].function in ("add", "multiply"):
                continue  # the same sum or product
            if (graphs, steps) != (egraph, derivation):
                assert wrong_derivation(graphs, steps), (name, kind)
                seen += 1
                kinds[kind] = kinds.get(kind, 0) + 1
    assert min(kinds.values()) >= number // 200 and len(kinds) >= 15, kinds


def instance(name: str, at: int = 0) -> tuple[Step, Callable[..., str]]:
    """A step of groups, and what the checker says of it with changes."""
    egraph, _ = everything(name)
    by = {op.name: op for op in egraph.operators}
    step = lifted_steps(name)[at]
    book = next(b for b in BOOKS if b.identity == step.book)
    numbers = step.facts[len([f for f in step.facts if f[0].startswith(("axis", "sum over"))]) :]

    def said(
        groups: tuple[tuple[int, ...], ...] = step.groups,
        reads: tuple[str, ...] = step.reads,
        change: Callable[[Operator], Operator] = lambda op: op,
        graph: Graph = egraph.union,
    ) -> str:
        rule = libraries.rules_in(book)[step.rule]
        place = [change(by[n]) for n in step.place]
        return wrong_instance(rule, change(by[step.node]), place, reads, graph, numbers, groups)

    assert said() == ""
    return step, said


def test_each_condition_of_groups() -> None:
    """One change each of what is an instance, which no other condition refuses."""
    step, said = instance("heads")
    (q, w, k) = step.groups
    assert "have part" in said(groups=(q, w))
    assert "none of axes" in said(groups=((*q, BATCH), w, k))
    assert "none of axes" in said(groups=((*q[:-1], 2), w, k))
    assert "none of axes" in said(groups=((*q[:-1], -2), w, k))
    assert "says nothing of these sizes" in said(groups=((BATCH, BATCH, BATCH, 1), w, k))
    everything_batch = tuple(tuple(BATCH for _ in g) for g in step.groups)
    assert "does not leave a dimension" in said(groups=everything_batch)

    def without_batch(op: Operator) -> Operator:
        """What writes another axis in place of its batch."""
        if op.function != "product" or len(op.output.index) != 3:
            return op
        names = (op.output.index[2], *op.output.index[1:])
        return replace(op, output=replace(op.output, index=names))

    assert "does not write axis" in said(change=without_batch)
    step, said = instance("parts")
    graph = everything("parts")[0].union
    for changed in graph.tensors:
        if changed.name in {"y", "e"}:
            wider = replace(changed, shape=(*changed.shape[:1], changed.shape[1] + 1, *changed.shape[2:]))
            tensors = tuple(wider if t is changed else t for t in graph.tensors)
            assert "of size" in said(graph=replace(graph, tensors=tensors))


def test_an_axis_is_one_of_the_rules_everywhere_or_nowhere() -> None:
    """x y + z x of squares is an instance for each row, for each column, and whole, but not of rows by columns."""
    b = Builder("squares")
    x, y, z = (b.input(n, (8, 8)) for n in "xyz")
    graph = b.build(b.map("s", "add", b.map("p", "multiply", x, y), b.map("q", "multiply", z, x)))
    egraph, derivation = saturate(graph, {"library": rules_of(BOOKS[0])})
    by, step = {op.name: op for op in egraph.operators}, derivation.steps[-1]
    rule, place = libraries.rules_in(BOOKS[0])["common-factor[rank1]"], [by[n] for n in step.place]
    for groups, wrong in (
        (((0, BATCH),) * 3, ""),
        (((BATCH, 0),) * 3, ""),
        (((0, 0),) * 3, ""),
        (((BATCH, BATCH),) * 3, ""),
        (((0, BATCH), (BATCH, 0), (BATCH, 0)), "and is none"),
    ):
        assert wrong in wrong_instance(rule, by[step.node], place, step.reads, egraph.union, (), groups)
        assert bool(wrong) is bool(wrong_instance(rule, by[step.node], place, step.reads, egraph.union, (), groups))


def test_a_number_is_only_what_operators_scale_by() -> None:
    step, said = instance("scores")
    at = step.reads.index("= 0.125")
    wrong = [*step.reads]
    wrong[at] = "= 0.25"
    assert "by the number" in said(reads=tuple(wrong))
    wrong[at] = "0.125"
    assert "pattern inputs" in said(reads=tuple(wrong))
    other = [*step.reads]
    other[(at + 1) % len(other)] = "= 0.125"
    assert said(reads=tuple(other))

    def more(op: Operator) -> Operator:
        return replace(op, attributes=(*op.attributes, ("other", 1))) if op.function == "scale" else op

    assert "by the number" in said(change=more)


@pytest.mark.parametrize(
    ("extents", "sizes", "fits"),
    [
        ([2, 3, 4], [6, 4], True),
        ([2, 3, 4], [8, 3], True),
        ([2, 3, 4], [12, 3], False),
        ([], [1, 1], True),
        ([], [2], False),
        ([1, 1, 5], [5], True),
        ([5], [], False),
        ([6], [2, 3], False),
    ],
)
def test_extents_fall_into_sizes(extents: list[int], sizes: list[int], fits: bool) -> None:
    assert libraries._fall_into(extents, sizes) is fits


def test_a_hostile_number_of_dimensions_is_given_up() -> None:
    primes = [2, 3, 5, 7, 11, 13, 17, 19, 23, 29, 31, 37, 41, 43, 47, 53]
    whole = int(np.prod([int(p) for p in primes], dtype=object))
    assert not libraries._fall_into(primes, [whole, whole, whole, whole])


@pytest.mark.parametrize(
    ("groups", "reason"),
    [
        ([], "is empty"),
        ([["0"]], "must be an integer"),
        ([[-2]], "integer in -1"),
        ([[99]], "integer in -1"),
        (3, "list"),
    ],
)
def test_files_with_odd_groups_are_refused(groups: object, reason: str) -> None:
    found = plan_jointly(
        heads(),
        load_machine("cloud-a100:1x2"),
        space("complete"),
        clock=Clock(),
        rules={b.title: rules_of(b) for b in BOOKS},
    )
    plan = joint_plan(found)
    assert plan is not None
    held = read_container(write_plan(None, plan))
    head = json.loads(cast(bytes, held["joint.json"]))
    (at,) = [k for k, s in enumerate(head["steps"]) if len(s) == 7]
    head["steps"][at][6] = groups
    with pytest.raises(ContainerError, match=reason):
        read_plan(write_container(None, {**held, "joint.json": canonical(head)}))


def test_steps_by_rules_that_are_built_in_have_no_groups() -> None:
    egraph, derivation = saturate(chain())
    assert derivation.steps and wrong_derivation(egraph, derivation) == ""
    at = next(k for k, s in enumerate(derivation.steps) if s.place)
    steps = list(derivation.steps)
    steps[at] = replace(steps[at], groups=((0,),))
    assert "no such rule" in wrong_derivation(egraph, replace(derivation, steps=tuple(steps)))
