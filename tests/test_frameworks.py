"""Configurations of Megatron, DeepSpeed and FSDP, read and audited as strategies."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from click.testing import CliRunner

from shardproof.formal.plans.frameworks import framework_settings, strategy_of_flags
from shardproof.formal.plans.strategy import StrategyError, resolve
from shardproof.models.cost.selection import build
from shardproof.models.layout.placement import space
from shardproof.models.layout.targets.degrees import Flags
from shardproof.models.machine.machine import load_machine
from shardproof.models.sources import zoo
from shardproof.models.sources.frameworks.flags import read_settings
from shardproof.models.sources.frameworks.placements import nested_degrees, splits
from shardproof.models.sources.training import build_step
from shardproof.models.text import InputError

SMALL = {
    "layers": 1,
    "batch": 8,
    "sequence": 64,
    "width": 64,
    "heads": 8,
    "kv_heads": 4,
    "hidden": 128,
    "vocabulary": 256,
}
MACHINE = "dgx-a100:2x8"


def placed(flags: Flags, graph: object | None = None) -> dict[str, dict[str, dict[str, int]]]:
    """Operator -> axis -> level -> degree."""
    found = splits(flags, graph or zoo.build("llama", **SMALL), load_machine(MACHINE))  # type: ignore[arg-type]
    return {name: {a: dict(d) for a, d in split} for name, split in found}


@pytest.mark.parametrize(
    ("text", "wanted"),
    [
        ("--tensor-model-parallel-size 8", Flags("Megatron", tp=8)),
        (
            "--tensor-model-parallel-size=4 --sequence-parallel \\\n --context-parallel-size 2 # words",
            Flags("Megatron", tp=4, cp=2, sequence_parallel=True),
        ),
        (
            "--use-distributed-optimizer --use-megatron-fsdp --data-parallel-sharding-strategy optim_grads_params",
            Flags("Megatron", zero=3),
        ),
        ("--use-megatron-fsdp --data-parallel-sharding-strategy no_shard", Flags("Megatron")),
        (
            "--use-distributed-optimizer --use-megatron-fsdp --data-parallel-sharding-strategy no_shard",
            Flags("Megatron"),
        ),
        ("--use-distributed-optimizer --data-parallel-sharding-strategy no_shard", Flags("Megatron", zero=1)),
        ("--sequence-parallel", Flags("Megatron")),
        ("--lr 1e-4 --micro-batch-size 2 --global-batch-size 64", Flags("Megatron", micro_batch=2, global_batch=64)),
        ('{"train_batch_size": 64, "zero_optimization": {"stage": 2}}', Flags("DeepSpeed", zero=2, global_batch=64)),
        ("SHARD_GRAD_OP\n", Flags("FSDP", zero=2)),
        ('{"fc1": {"b": {"gpus": 8}}}', None),
        ("[1, null]", None),
        ('{"train_batch_size": "auto", "zero_optimization": {"stage": 1}}', Flags("DeepSpeed", zero=1)),
    ],
)
def test_what_a_file_says(text: str, wanted: Flags | None) -> None:
    settings = read_settings(text)
    assert (None if settings is None else settings.flags) == wanted


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("--tensor-model-parallel-size", "followed by nothing"),
        ("--tensor-model-parallel-size eight", "'eight', not a whole number"),
        ("--tensor-model-parallel-size 0", "is 0, not a whole number from 1"),
        ("--use-megatron-fsdp --data-parallel-sharding-strategy all", "none of no_shard"),
        ("--data-parallel-sharding-strategy optim", "counts only with --use-megatron-fsdp"),
        (
            "--use-distributed-optimizer --data-parallel-sharding-strategy optim_grads_params",
            "counts only with --use-megatron-fsdp",
        ),
        ("--use-megatron-fsdp --use-distributed-optimizer", "depends on the version of Megatron; give --data-parallel"),
        ('--tensor-model-parallel-size "8', "cannot be split"),
        ('{"zero_optimization": {"stage": 4}}', "stage 4 is none of"),
        ('{"zero_optimization": 3}', "not an object"),
        ('{"zero_optimization": {"stage": "auto"}}', "'auto', not a whole number"),
        ("full shard", "did you mean 'full_shard'"),
    ],
)
def test_a_wrong_file_is_told_so(text: str, message: str) -> None:
    with pytest.raises(InputError, match=message):
        read_settings(text)


def test_megatron_splits_heads_and_width_and_the_batch_outside() -> None:
    found = placed(Flags("Megatron", tp=4))
    assert found["layer0.ffn.up"] == {"f": {"gpus": 4}, "b": {"nodes": 2, "gpus": 2}}
    assert found["layer0.attention.scores"] == {"k": {"gpus": 4}, "b": {"nodes": 2, "gpus": 2}}
    assert found["layer0.ffn.norm"] == {"b": {"nodes": 2, "gpus": 2}}
    assert found["embedding"] == {"v": {"gpus": 4}, "b": {"nodes": 2, "gpus": 2}}
    together = placed(Flags("Megatron", tp=4, sequence_parallel=True))
    assert together["layer0.ffn.norm"] == {"s": {"gpus": 4}, "b": {"nodes": 2, "gpus": 2}}
    assert together["layer0.ffn.up"] == found["layer0.ffn.up"]


def test_more_ways_than_heads_of_keys_go_on_over_their_groups() -> None:
    found = placed(Flags("Megatron", tp=8))
    assert found["layer0.attention.query"] == {"k": {"gpus": 4}, "g": {"gpus": 2}, "b": {"nodes": 2}}
    assert found["layer0.attention.key"] == {"k": {"gpus": 4}, "b": {"nodes": 2}}, "each head of keys is held twice"
    with pytest.raises(StrategyError, match="do not divide its f 12"):
        strategy_of_flags(Flags("Megatron", tp=8), zoo.build("llama", **SMALL | {"hidden": 12}), load_machine(MACHINE))


def test_context_splits_the_sequence_of_queries_or_of_keys() -> None:
    found = placed(Flags("Megatron", tp=2, cp=4))
    assert found["layer0.attention.scores"]["s"] == {"gpus": 4}
    assert "t" not in found["layer0.attention.scores"]
    assert found["layer0.attention.key"]["t"] == {"gpus": 4}
    assert found["layer0.ffn.norm"] == {"s": {"gpus": 4}, "b": {"nodes": 2}}


def test_degrees_fill_levels_from_the_inside() -> None:
    machine = load_machine("dgx-a100:4x8")
    assert nested_degrees(machine, Flags("Megatron", tp=16), 2) == ((2, 8), (1, 1), (1, 1), (2, 1))
    assert nested_degrees(machine, Flags("Megatron", ep=4), 32) == ((1, 1), (1, 1), (1, 4), (4, 2))
    with pytest.raises(InputError, match="tp 3 x pp 1 x cp 1 is 3, which does not divide 32"):
        Flags("Megatron", tp=3).copies(machine.devices)
    with pytest.raises(InputError, match="pp 2 is a schedule"):
        placed(Flags("Megatron", pp=2))
    with pytest.raises(InputError, match="no attention is recognised"):
        placed(Flags("Megatron", tp=2), zoo.build("alexnet", batch=16))


def test_experts_are_split_inside_the_copies() -> None:
    graph = zoo.build("moe", layers=1, batch=16, sequence=64)
    found = placed(Flags("Megatron", ep=8), graph)
    experts = [s for s in found.values() if "e" in s]
    assert experts
    assert all(s["e"] == {"gpus": 8} for s in experts)


def test_nothing_sharded_pins_the_optimizer() -> None:
    graph = build_step(zoo.build("llama", **SMALL | {"batch": 16}), "adam").graph
    kept, sharded = placed(Flags("FSDP"), graph), placed(Flags("FSDP", zero=3), graph)
    assert kept["layer0.ffn.up.weight.next"] == {}
    assert "layer0.ffn.up.weight.next" not in sharded
    assert placed(Flags("Megatron", tp=8), graph)["layer0.ffn.up.weight.next"] == {"f": {"gpus": 8}}
    assert not [n for n in kept if n.startswith("grad:")]


def test_what_it_decides_lies_in_the_space_and_stays_decided() -> None:
    graph, machine = zoo.build("llama", **SMALL), load_machine(MACHINE)
    planning = build(graph, machine, space("two-per-level"))
    strategy = strategy_of_flags(Flags("Megatron", tp=4, sequence_parallel=True), graph, machine)
    applied = resolve(strategy, planning)
    assert len(applied.allowed) == len(graph.operators)
    assert all(len(choices) == 1 for choices in applied.allowed.values())


def test_audit_takes_the_file(tmp_path: Path) -> None:
    from shardproof.formal.verbs.audit import audit_command
    from shardproof.front_door import FrontDoor

    said = {}
    tensor = "--tensor-model-parallel-size 8"
    files = {"copies": "NO_SHARD", "tensor": tensor, "sequence": f"{tensor} --sequence-parallel"}
    for name, text in files.items():
        file = tmp_path / f"{name}.txt"
        file.write_text(text, encoding="utf-8")
        assert framework_settings(file) is not None
        done = CliRunner().invoke(
            audit_command,
            ["transformer-layer", "--batch", "8", "--machine", "cloud-a100:1x8", "--strategy", str(file), "--json"],
            obj=FrontDoor(),
            standalone_mode=False,
        )
        assert done.exception is None, done.output
        said[name] = json.loads(done.stdout)
    assert [said[n]["outcome"] for n in files] == ["refuted", "refuted", "optimal"]
