"""Exported files say equal layers once, and what they say, written out, is what was said before."""

from __future__ import annotations

import ast
import re
import sys
import types
from pathlib import Path
from typing import Any

import pytest
from export_cases import plan_data
from hypothesis import given, settings
from hypothesis import strategies as st

import shardproof
from shardproof.backends.export.dtensor import document, export_dtensor, refusals
from shardproof.backends.export.jax import export_jax
from shardproof.backends.export.layers import RUNTIME, every_layer, fold_layers, layers_text, plan_texts
from shardproof.models.communication.shardings import plan_shardings
from shardproof.proofs.plan.bundle import Plan

WORDS = st.sampled_from(("norm", "h", "w", "part", "grad:h", "x/h", "layer", "q.w", "a{b", "in 0 of 'h"))
NAMES = st.lists(WORDS | st.integers(0, 12).map(str), min_size=1, max_size=5).map(".".join)
LEAVES = st.integers(0, 3) | NAMES | st.sampled_from(((0.9, 1), None, True))
DATA = st.recursive(
    LEAVES,
    lambda inner: st.lists(inner, max_size=6) | st.dictionaries(NAMES, inner, max_size=6),
    max_leaves=30,
)


@settings(max_examples=100, deadline=None)
@given(DATA)
def test_written_out_it_is_what_it_was(data: Any) -> None:
    assert repr(every_layer(fold_layers(data))) == repr(data)


@settings(max_examples=200, deadline=None)
@given(st.data())
def test_layers_that_differ_here_and_there(draw: st.DataObject) -> None:
    """Tables as plans have them: forwards and backwards over layers, one of several values each, a few left out."""
    layers = draw.draw(st.integers(2, 9))
    order = [*range(layers)][:: draw.draw(st.sampled_from((1, -1)))]
    parts = draw.draw(st.lists(st.sampled_from("abcde"), min_size=1, max_size=5, unique=True))
    table: dict[str, object] = {"first": 0}
    for n in order:
        for part in parts:
            if draw.draw(st.integers(0, 9)):
                table[f"grad:h.{n}.{part}" if part < "c" else f"h.{n}.{part}"] = [
                    f"h.{n + draw.draw(st.sampled_from((0, 0, 0, 1)))}.{part} -> h.{n}.x",
                    draw.draw(st.sampled_from((1, 1, 1, 2))),
                ]
    table["last"] = 1
    short = fold_layers(table)
    assert repr(every_layer(short)) == repr(table)
    rows = [[k, *v] for k, v in table.items() if isinstance(v, list)]
    assert repr(every_layer(fold_layers(rows))) == repr(rows)


def test_what_is_equal_is_said_once() -> None:
    table = {"embedding": 1, **{f"h.{n}.{part}": [f"h.{n + 1}.in"] for n in range(40) for part in "ab"}, "head": 2}
    ends = ["h.{n+1}.in"]
    assert fold_layers(table) == {"embedding": 1, "h.{0..39}.a": ends, "h.{0..39}.b": ends, "head": 2}
    assert fold_layers({"a.0.w": 1, "a.1.w": 2}) == {"a.0.w": 1, "a.1.w": 2}, "nothing is equal"
    one_differs = {f"h.{n}.w": 1 + (n == 3) for n in range(8)}
    assert fold_layers(one_differs) == {"h.{0..2,4..7}.w": 1, "h.{3}.w": 2}
    both = [*(f"h.{n}.w" for n in range(4)), *(f"h.{n}.v" for n in range(4))]
    assert fold_layers(both) == ["h.{0..3;}.w", "h.{0..3}.v"] and every_layer(fold_layers(both)) == both


@pytest.mark.parametrize("name", ["w{0..3}", "w{n}", "{9999999999}", "h.{0;}"])
def test_names_that_look_like_ranges(name: str) -> None:
    data = {name: 1, "h.0.w": 1, "h.1.w": 1}
    said, made = plan_texts(data)
    assert fold_layers(data) == data and made.endswith(" = LAYOUTS") and "every_layer" not in layers_text(data)
    assert ast.literal_eval(said.partition(" = ")[2]) == data


def test_the_runtime_needs_nothing() -> None:
    imported = {n.module or "" for n in ast.walk(ast.parse(RUNTIME.read_text())) if isinstance(n, ast.ImportFrom)}
    assert imported <= {"__future__", "collections.abc", "typing"}


@pytest.fixture(scope="module")
def plan() -> Plan:
    made = shardproof.plan("llama:layers=6,batch=8,sequence=32,width=64,heads=4,kv_heads=2,hidden=96,vocabulary=64",
                           "localhost:4", train="adam")  # fmt: skip
    return made.bundle


def test_a_plan_of_layers(plan: Plan, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """The document that `parallelize` lays out by, before and after it went through a file; the file names no layer
    more than a few times.
    """
    found = plan_shardings(plan.graph, plan.machine.hierarchy, [v.name for v in plan.machine.levels], plan.choices)
    text = export_dtensor(plan, "ab" * 32, layouts_only=True).text
    data = plan_data(text)
    wanted = document(plan.graph, plan.machine.name, "ab" * 32, found, refusals(plan.graph, found))
    for word, table in wanted.items():
        assert repr(data[word]) == repr(table), word
    said = text[text.index("LAYOUTS: ") : text.index("\nfrom collections.abc")]
    assert len(said) < len(repr(wanted)) / 3 and "{0..5}" in said
    assert len(re.findall(r"layer3\b", said)) == 0, "layer 3 is one of a range everywhere"

    fake, sharding = types.ModuleType("jax"), types.ModuleType("jax.sharding")
    for stand_in in ("Mesh", "NamedSharding", "PartitionSpec"):
        setattr(sharding, stand_in, lambda *parts: parts)
    fake.sharding = sharding  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "jax", fake)
    monkeypatch.setitem(sys.modules, "jax.sharding", sharding)
    text = export_jax(plan, "cd" * 32).text
    names: dict[str, Any] = {}
    exec(compile(text, str(tmp_path / "specs.py"), "exec"), names)  # noqa: S102
    values = {t.name for t in plan.graph.tensors if t.role.value == "value"}
    assert set(names["RESULTS"]) <= values and {f"layer{n}.ffn.down" for n in range(6)} <= set(names["RESULTS"])
    assert len(text) < len(repr(names["SHARDY"])) and "layer{5..0}" in text


def test_nothing_is_folded_that_would_write_code() -> None:
    hostile = {f"h.{n}.'''\\\"": ['\n"""', n // 8] for n in range(4)}
    assert ast.literal_eval(plan_texts(hostile)[0].partition(" = ")[2]) == fold_layers(hostile)
    assert every_layer(fold_layers(hostile)) == hostile
