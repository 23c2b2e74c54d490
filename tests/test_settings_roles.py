"""Roles of axes by structure: the letters of the zoo found again without its names, and those of models of people."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Final

import pytest

from shardproof.__main__ import run
from shardproof.models.layout.targets.degrees import Flags
from shardproof.models.machine.machine import load_machine
from shardproof.models.program.graph import Graph
from shardproof.models.program.operators import NodeKind
from shardproof.models.sources.frameworks.fit import sizes_of
from shardproof.models.sources.frameworks.placements import shares, splits
from shardproof.models.sources.frameworks.roles import Roles, _Structure, roles
from shardproof.models.sources.load import load_model
from shardproof.models.sources.training import training_step
from shardproof.models.sources.zoo import build
from shardproof.models.text import InputError

MODELS: Final = Path(__file__).parent / "roles_models.py"
LETTERS: Final = frozenset("bshkgfvetm")
SMALL: Final = {"layers": 2, "batch": 8, "sequence": 16, "width": 32, "heads": 4, "hidden": 64, "vocabulary": 128}


def by_structure(graph: Graph) -> Roles:
    return _Structure(graph).roles()


@pytest.mark.parametrize(
    ("name", "sizes"),
    [
        ("llama", {**SMALL, "kv_heads": 2}),
        ("llama", {**SMALL, "kv_heads": 4}),
        ("moe", {"layers": 2, "batch": 8}),
        ("bert-large", {"layers": 2, "batch": 8}),
        ("transformer", {"batch": 8}),
    ],
)
def test_structure_finds_the_letters_of_the_zoo(name: str, sizes: dict[str, int]) -> None:
    """Axis by axis.  Projections of keys run over the sequence of their own input, s, where the zoo writes t."""
    graph = build(name, **sizes)
    found, named = by_structure(graph), 0
    assert found.unknown == ()
    for op in graph.operators:
        names = {a.name for a in op.axes}
        for axis in op.axes:
            letter = found.letters[op.name].get(axis.name, "")
            if axis.name not in LETTERS or axis.extent == 1:
                assert letter in ("", "s") or axis.extent == 1, (op.name, axis.name, letter)
            elif axis.name == "t" and "s" not in names:
                assert letter == "s", (op.name, axis.name, letter)
            else:
                assert letter == axis.name, (op.name, axis.name, letter)
                named += 1
    assert named > 100


def test_gradients_have_the_roles_of_what_they_are_of() -> None:
    """By structure, every operator of a training step is split as by name: forward, backward and optimizer."""
    graph = training_step(build("llama", **SMALL, kv_heads=2), "adam")
    found, named = by_structure(graph), roles(graph)
    seen = 0
    for op in graph.operators:
        mine, theirs = found.letters[op.name], named.letters[op.name]
        for axis in op.axes:
            if theirs.get(axis.name) in set("hkgfvm"):
                assert mine.get(axis.name) == theirs[axis.name], (op.name, axis.name, mine)
                seen += 1
    assert seen > 300


def test_what_has_no_role_is_refused_by_name() -> None:
    machine = load_machine("localhost:4")
    for name in ("mlp-unity", "alexnet"):
        graph = build(name)
        placed = splits(Flags("FSDP", zero=3), graph, machine)  # copies split the batch of any model
        assert any(split for _, split in placed), name
        for flags in (Flags("x", tp=2), Flags("x", cp=2), Flags("x", tp=2, sequence_parallel=True)):
            with pytest.raises(InputError, match="no attention is recognised"):
                splits(flags, graph, machine)


EXPECTED: Final = (
    (r"(q_proj|k_proj|v_proj|query_key_value|c_attn|self\.(query|key|value)|self_attn\.bmm)$", {"head", "m"}),
    (r"(o_proj|out_proj|attn\.c_proj|attention\.dense|attention\.output\.dense|self_attn\.addmm)$", {"head", "m"}),
    (r"(gate_proj|up_proj|fc1|c_fc|dense_h_to_4h|intermediate\.dense|linear1)$", {"f", "m"}),
    (r"(down_proj|fc2|mlp\.c_proj|dense_4h_to_h|layer\.\d+\.output\.dense|linear2)$", {"f", "m"}),
    (r"experts\.grouped_mm(#2)?$", {"e", "f", "m"}),
    (r"(lm_head|predictions\.decoder|^head)$", {"v", "m"}),
)
"""Names of modules, as their authors give them -> roles of their products, heads whole as one."""


@pytest.mark.torch
@pytest.mark.parametrize(
    "name", ["llama", "qwen2", "qwen3", "gemma", "mixtral", "gpt2", "neox", "opt", "bert", "plain"]
)
def test_models_of_transformers(name: str) -> None:
    graph = load_model(f"{MODELS}:{name}")
    found, named = roles(graph), 0
    assert found.layers == 2
    for op in graph.operators:
        if op.kind not in (NodeKind.CONTRACT, NodeKind.GROUPED):
            continue
        letters = {"head" if x in "hkg" else x for x in found.letters[op.name].values()} - {"b", "s"}
        wanted = next((roles for pattern, roles in EXPECTED if re.search(pattern, op.name)), None)
        if wanted is not None:
            assert letters == wanted, (op.name, letters)
            named += 1
    assert named >= 9, named
    sizes = sizes_of(graph)
    kv = {2} if name in ("llama", "qwen2", "qwen3", "gemma", "mixtral") else {4}
    wanted = {"layers": {2}, "width": {32}, "hidden": {48}, "heads": {4}, "kv_heads": kv, "head": {8}, "sequence": {16}}
    assert {k: set(sizes[k]) for k in wanted} == wanted and sizes["vocabulary"] == {64}
    machine = load_machine("dgx-a100:2x4")
    cases = [Flags("FSDP", zero=3), Flags("x", cp=2)]
    tensor = [
        Flags("x", tp=2),
        Flags("x", tp=4),
        Flags("x", tp=2, sequence_parallel=True, zero=1),
        Flags("x", tp=2, cp=2),
    ]
    for flags in cases + tensor:
        if name == "bert" and flags.tp > 1:
            with pytest.raises(InputError, match=r"operator 'm\.cls\.predictions\.transform\.dense' is no projection"):
                splits(flags, graph, machine)
            continue
        placed = {op: {a: dict(d) for a, d in split} for op, split in splits(flags, graph, machine)}
        parts = shares(flags, graph, machine.devices // (flags.tp * flags.cp))
        for op in graph.operators:
            ways = 1
            for levels in placed[op.name].values():
                for degree in levels.values():
                    ways *= degree
            assert ways <= machine.devices
            heads = [a for a, x in found.letters[op.name].items() if x in "hkgfv"]
            if heads and flags.tp > 1 and op.kind is NodeKind.CONTRACT:
                split = 1
                for axis in heads:
                    split *= parts[op.name].get(axis, 1)
                keys_alone = not any(x == "g" for x in found.letters[op.name].values())
                assert split == flags.tp or (keys_alone and kv == {2}), (op.name, split, flags)


@pytest.mark.torch
@pytest.mark.slow
@pytest.mark.parametrize("name", ["llama", "gpt2", "mixtral"])
def test_audits_of_models_of_transformers(name: str, capsys: pytest.CaptureFixture[str]) -> None:
    """The whole way: settings, sizes of the model, proof; and a size that is another model's."""
    words = ["audit", f"{MODELS}:{name}", "--machine", "localhost:4", "--strategy"]
    text = "--tensor-model-parallel-size 2 --sequence-parallel --num-layers 2 --hidden-size 32 --num-attention-heads 4"
    for strategy in (text, "FULL_SHARD", "distributed_type: FSDP\nfsdp_config: {fsdp_version: 2}\n"):
        assert run([*words, strategy, "--json"]) in (0, 10)
        said = json.loads(capsys.readouterr().out)
        assert said["strategy_cost"] >= said["lower_bound"] > 0 if "strategy_cost" in said else said["outcome"]
    assert run([*words, f"{text} --ffn-hidden-size 64"]) == 3
    assert "the model has a feed-forward width of 48" in capsys.readouterr().err
