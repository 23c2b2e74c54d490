"""Strategy files: which entry wins, what is refused and with which words, and the way from a plan to a strategy and
back.
"""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

import shardproof
from shardproof.formal.explain.audit import audit, render_audit
from shardproof.formal.plans.strategy import (
    ChoiceList,
    Strategy,
    StrategyError,
    apply,
    choices_of,
    parse_config,
    parse_strategy,
    placement,
    read_strategy,
    resolve,
    strategy_of,
)
from shardproof.formal.plans.strategy_file import load_strategy
from shardproof.models.cost.selection import Planning, build
from shardproof.models.layout.placement import SpaceError, space
from shardproof.models.machine.machine import load_machine
from shardproof.models.problem.selection_problem import ProblemError
from shardproof.models.sources import zoo
from shardproof.models.sources.training.derived import derived_keys
from shardproof.models.sources.training.step import training_step
from shardproof.proofs.container.archive import write_container
from shardproof.proofs.plan.bundle import Plan


def test_a_plan_is_a_strategy_at_other_sizes(tmp_path: Path) -> None:
    """Its placements are those that it chose, by name; audited for a larger batch, and refused where they do not fit."""
    machine, plan = load_machine("localhost:4"), shardproof.plan("mlp-unity:batch=16", "localhost:4")
    plan.save(tmp_path / "p.spz")
    found = load_strategy(tmp_path / "p.spz")
    assert isinstance(found, Strategy)
    planning, held = build(plan.graph, machine, space("complete")), plan.opened.held
    assert isinstance(held, Plan)
    chosen, allowed = dict(held.choices.operators), apply(found, planning)
    assert len(allowed) == len(planning.decisions)
    for name, v in planning.operators.items():
        assert planning.decisions[v].placement(allowed[v][0]) == chosen[name]
    report = audit(build(zoo.build("mlp-unity", batch=64), machine, space("complete")), found)
    assert report.completed.cost is not None and report.best.cost is not None
    assert report.completed.cost >= report.best.cost
    with pytest.raises(StrategyError, match="matches no"):
        apply(found, build(zoo.build("alexnet", batch=16), machine, space("complete")))
    (tmp_path / "cut.spz").write_bytes((tmp_path / "p.spz").read_bytes()[:-40])
    with pytest.raises(StrategyError, match="cannot be read as a plan"):
        load_strategy(tmp_path / "cut.spz")


@pytest.mark.parametrize("member", ["overlap.json", "pipeline.json", "views.json"])
def test_a_plan_with_other_parts_is_no_strategy(member: str, tmp_path: Path) -> None:
    write_container(tmp_path / "o.spz", {member: b"{}"})
    with pytest.raises(StrategyError, match="is no plan of placements alone"):
        load_strategy(tmp_path / "o.spz")


@pytest.fixture(scope="module")
def planning() -> Planning:
    return build(zoo.build("mlp-unity-training"), load_machine("cloud-a100:2x4"), space("complete"))


def words(planning: Planning, strategy: str) -> dict[str, str]:
    levels = [level.name for level in planning.machine.levels]
    allowed = apply(parse_strategy(strategy), planning)
    return {
        d.name: d.placement(allowed[v][0]).words(levels)
        for v, d in enumerate(planning.decisions)
        if v in allowed and d.kind.value == "operator"
    }


def test_an_exact_name_beats_a_glob_wherever_it_stands(planning: Planning) -> None:
    found = words(planning, '{"fc1": {"n": {"gpus": 4}}, "fc*": {"b": {"nodes": 2}}}')
    assert found["fc1"] == "replicated over nodes, n over gpus"
    assert found["fc2"] == "b over nodes, replicated over gpus"
    assert set(found) == {"fc1", "fc1.dw", "fc2", "fc2.dw", "fc2.dx"}


def test_of_two_globs_the_later_wins_and_replaces(planning: Planning) -> None:
    found = words(planning, '{"fc*": {"b": {"nodes": 2}}, "fc2*": {"n": {"gpus": 2}}}')
    assert found["fc2"] == "replicated over nodes, n over 2 of gpus, replicated over 2 of gpus"
    assert found["fc1"] == "b over nodes, replicated over gpus"


def test_null_leaves_to_the_solver(planning: Planning) -> None:
    applied = resolve(parse_strategy('{"*": {"b": {"nodes": 2}}, "fc2": null}'), planning)
    assert "fc2" in applied.free and "fc1" not in applied.free and "tensor:fc1" in applied.free


def test_axes_that_some_matches_lack_are_ignored_there_and_listed(planning: Planning) -> None:
    applied = resolve(parse_strategy('{"*": {"b": {"nodes": 2}}}'), planning)
    assert set(applied.ignored) == {("w1.update", "b"), ("w2.update", "b")}


def test_levels_by_number_and_singular(planning: Planning) -> None:
    assert words(planning, '{"fc1": {"b": {"0": 2}, "n": {"gpu": 4}}}') == {"fc1": "b over nodes, n over gpus"}


def test_copies_have_dimensions_as_axes(planning: Planning) -> None:
    allowed = apply(parse_strategy('{"tensor:fc1": {"1": {"gpus": 4}}}'), planning)
    v = planning.copies["fc1"]
    assert list(allowed) == [v]
    assert planning.decisions[v].placement(allowed[v][0]).degree("1") == 4


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ('{"fcc": {}}', "closest: fc"),
        ('{"nothing*": {}}', "matches no operator"),
        ('{"tensor:relu1.dx": {}}', "no tensor with a layout of its own"),
        ('{"fc1": {"z": {"gpus": 2}}}', "axes: b, k, n"),
        ('{"*.update": {"b": {"gpus": 2}}}', "axes: k, n"),
        ('{"fc1": {"b": {"racks": 2}}}', "levels: nodes (or 0), gpus (or 1)"),
        ('{"fc1": {"b": {"gpus": 3}}}', "multiply to 3, which does not divide its size 4"),
        ('{"fc1": {"b": {"gpus": 4}, "n": {"gpus": 2}}}', "multiply to 8"),
        ('{"fc1": {"b": {"gpus": 0}}}', "not a degree of at least 1"),
        ('{"fc1": {"b": {"gpus": true}}}', "not a degree of at least 1"),
        ('{"fc1": {"b": 2}}', "not a table of degrees"),
        ('{"fc1": 2}', "not a placement"),
        ('{"fc1": {}, "fc1": {}}', "occurs twice"),
        ("3", "must be an object"),
        ("[0, 1]", "belongs to a selection problem"),
        ("{", "not a JSON strategy"),
        ("[" * 100_000, "not a JSON strategy"),
    ],
)
def test_what_does_not_fit_is_named(planning: Planning, text: str, said: str) -> None:
    with pytest.raises(StrategyError) as error:
        apply(parse_strategy(text, "my.json"), planning)
    assert said in str(error.value) and "my.json" in str(error.value)


def test_outside_the_space_names_operator_and_nearest(planning: Planning) -> None:
    narrow = build(planning.graph, planning.machine, space("one-per-level"))
    with pytest.raises(SpaceError, match="'fc1'.*outside the space; nearest inside"):
        apply(parse_strategy('{"fc1": {"b": {"gpus": 2}, "n": {"gpus": 2}}}'), narrow)
    with pytest.raises(SpaceError, match="'fc2'"):  # 10 classes over 4
        apply(parse_strategy('{"fc2": {"n": {"gpus": 4}}}'), planning)


def test_files(tmp_path: Path) -> None:
    path = tmp_path / "s.json"
    path.write_text("[0, null, 2]")
    assert load_strategy(path) == ChoiceList((0, None, 2), str(path))
    path.write_bytes(b"\xff\xfe{}")
    with pytest.raises(StrategyError, match="UTF-8"):
        load_strategy(path)
    with pytest.raises(StrategyError, match="cannot be read"):
        load_strategy(tmp_path / "missing.json")
    with pytest.raises(StrategyError, match="cannot be read"):
        load_strategy(tmp_path)
    with pytest.raises(StrategyError, match="entry 1"):
        read_strategy("[0, 1.5]")


def test_a_list_must_fit_the_problem(planning: Planning) -> None:
    n = len(planning.problem.vertices)
    with pytest.raises(ProblemError, match=f"2 choices for {n} vertices"):
        choices_of(ChoiceList((0, 0)), planning.problem)
    with pytest.raises(ProblemError, match="choice 10000 is not in"):
        choices_of(ChoiceList((10_000, *[None] * (n - 1))), planning.problem)


@given(st.data())
def test_a_plan_as_strategy_gives_the_plan(data: st.DataObject) -> None:
    planning = _PLANNING
    x = tuple(data.draw(st.integers(0, planning.problem.domain_size(v) - 1)) for v in range(len(planning.decisions)))
    text = strategy_of(planning, x).to_json()
    again = parse_strategy(text)
    assert isinstance(again, Strategy) and set(json.loads(text)) == {
        *planning.operators,
        *("tensor:" + n for n in planning.copies),
    }
    assert apply(again, planning) == {v: (a,) for v, a in enumerate(x)}


def test_words_of_every_placement_are_read_back() -> None:
    levels = tuple(level.name for level in _PLANNING.machine.levels)
    for d in _PLANNING.decisions:
        for choice in range(len(d.placements)):
            p = d.placement(choice)
            config = parse_config(p.words(levels), levels)
            assert placement(config, d.axes, _PLANNING.machine, d.name) == p


def test_configurations_that_are_not_understood() -> None:
    machine = load_machine("cloud-a100:2x4")
    for text in ("b on nodes", "b over x of gpus", "{", '{"b": 3}', "b over 99999999999 of gpus"):
        with pytest.raises(StrategyError, match="configuration"):
            parse_config(text, ("nodes", "gpus"))
    with pytest.raises(StrategyError, match="two axes take all"):
        placement(parse_config("b over gpus, n over gpus", ("nodes", "gpus")), ("b", "n"), machine, "fc1")
    with pytest.raises(StrategyError, match="no axis 'z'"):
        placement(parse_config("z over gpus", ("nodes", "gpus")), ("b", "n"), machine, "fc1")


_PLANNING = build(zoo.build("mlp-unity-training"), load_machine("cloud-a100:2x4"), space("complete"))


def test_a_glob_of_the_layers_does_not_pin_the_optimizer() -> None:
    """`layer*` means the layers: gradients and updates, which share the prefix and have none of the axes, are the
    solver's unless they are named.
    """
    graph = training_step(zoo.build("bert-tiny", batch=8, layers=1, sequence=8), "adam")
    planning = build(graph, load_machine("cloud-a100:2x2"), space("complete"))
    later = derived_keys(graph)
    assert {n for n in planning.operators if n.startswith("grad:") or n.endswith(".next")} == {
        n for n in later if n in planning.operators
    }
    for glob in ("layer*", "*", "*layer0.ffn*"):
        applied = resolve(parse_strategy(json.dumps({glob: {"b": {"nodes": 2}}})), planning)
        (said,) = applied.derived
        assert said.key == glob and said.left and not said.pinned and set(said.left) <= later & set(applied.free)
        assert not later & {n for n, v in planning.operators.items() if v in applied.allowed}
        assert set(applied.bare) == {
            n for n, v in planning.operators.items() if v in applied.allowed and "b" not in planning.decisions[v].axes
        }
    named = resolve(parse_strategy('{"*": {"b": {"nodes": 2}}, "*.next": {}, "grad:layer0.ffn.gelu": {}}'), planning)
    (pinned,) = (d for d in named.derived if d.pinned)
    assert pinned.key == "*.next" and set(pinned.pinned) == {n for n in planning.operators if n.endswith(".next")}
    assert "grad:layer0.ffn.gelu" not in named.free and "grad:layer0.ffn.add" in named.free
    copies = resolve(parse_strategy('{"tensor:*": {}}'), planning)
    assert "tensor:layer0.ffn.up.weight" not in copies.free and "tensor:layer0.ffn.up.weight.adam_m" in copies.free


def test_an_audit_judges_what_was_meant_and_says_whom_it_left_alone() -> None:
    """Data parallel by a glob: with updates pinned to replicas it would be dearer than what the solver completes,
    and nothing would tell.
    """
    graph = training_step(zoo.build("mlp-unity", batch=64), "adam")
    planning = build(graph, load_machine("cloud-a100:1x4"), space("complete"))
    meant = audit(planning, parse_strategy('{"*": {"b": {"gpus": 4}}}'))
    silent = audit(planning, parse_strategy('{"*": {"b": {"gpus": 4}}, "*.next": {}}'))
    assert (
        meant.completed.cost is not None
        and silent.completed.cost is not None
        and meant.completed.cost < silent.completed.cost
    )
    text = render_audit(meant)
    assert "match '*' and are not pinned by it" in text and "adam_m.next" in text
    assert "gradient or optimizer operators pinned by '*.next'" in render_audit(silent)
    assert [d["key"] for d in meant.to_json()["derived"]] == ["*"]  # type: ignore[union-attr, call-overload]
