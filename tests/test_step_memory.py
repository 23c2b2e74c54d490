"""What a device holds while a framework runs a step: numbers by hand, and which law the words of settings mean."""

from __future__ import annotations

from dataclasses import replace

import pytest

from shardproof.formal.plans.fitting import reserve_of
from shardproof.formal.plans.pipelines.configuration import storage_of
from shardproof.formal.plans.pipelines.parts import FIRST, LAST, Part, StageWork
from shardproof.formal.plans.pipelines.step_memory import KEPT, Running, Storage, memory_of_stage
from shardproof.models.layout.targets.degrees import Flags
from shardproof.models.program.graph import GraphError
from shardproof.models.sources.frameworks.flags import read_settings
from shardproof.models.sources.frameworks.settings import Settings
from shardproof.models.sources.training import build_step
from shardproof.models.sources.training.recompute import PREFIX
from shardproof.models.sources.zoo import build

LAYER = Part(kept=100, stored=4000, used=2000, gradients=2000, moments=8000, largest=50, learnt=1000, again=70)
WORK = StageWork({FIRST: Part(), "layer0": LAYER, LAST: Part(kept=30)}, ("layer0",), 10, "bfloat16")
NAMES = (FIRST, "layer0", LAST)


def held(storage: Storage, zero: int, copies: int = 4) -> dict[str, int]:
    return memory_of_stage(NAMES, WORK, Running((copies,), 0, 1, 1), Flags("x", zero=zero), storage)


def settings(text: str) -> Settings:
    found = read_settings(text)
    assert found is not None
    return found


def deepspeed(stage: int, more: str = "", beside: str = "") -> Storage:
    return storage_of(
        settings(f'{{"zero_optimization": {{"stage": {stage}{more}}}, "bf16": {{"enabled": true}}{beside}}}')
    )


def test_megatrons_memory_by_hand() -> None:
    plain = held(KEPT, 0)
    assert (plain["weights"], plain["gradients"], plain["optimizer"]) == (2000, 2000, 12000)
    assert plain["activations"] == 130 and plain["computed again"] == 70 and plain["results in passing"] == 100
    assert plain["update, beyond these"] == plain["buffers of gradients"] == 0
    assert held(KEPT, 1)["optimizer"] == 3000 and held(KEPT, 2)["gradients"] == 500
    sharded = held(KEPT, 3)
    assert sharded["weights"] == 500 and sharded["gathered weights"] == 4000


def test_deepspeeds_update_casts_the_gradients_of_its_share_all_at_once() -> None:
    """Stage 2 on 4 devices: 250 weights each; 6 bytes of each beside the state, 10 with Adam that is not fused."""
    fused = deepspeed(2, beside=', "optimizer": {"type": "AdamW"}')
    assert (fused.update, deepspeed(2).update, deepspeed(0).update) == (6, 10, 8)
    small = replace(deepspeed(2), bucket=1)
    found = held(small, 2)
    passing = (
        found["activations"] + found["computed again"] + found["results in passing"] + found["buffers of gradients"]
    )
    assert found["update, beyond these"] == 10 * 250 - passing
    assert sum(found.values()) == 2000 + 500 + 3000 + 2500
    assert sum(held(replace(small, update=6), 2).values()) == 2000 + 500 + 3000 + 1500


def test_deepspeeds_buffers_and_gathers_are_those_that_it_is_told() -> None:
    assert deepspeed(2).bucket == 500_000_000 and deepspeed(2, ', "reduce_bucket_size": 2e8').bucket == 200_000_000
    assert deepspeed(2).buckets == 1 and deepspeed(2, ', "overlap_comm": true').buckets == 2
    third = deepspeed(3, ', "sub_group_size": 100, "stage3_max_live_parameters": 0')
    assert (third.live, third.updated) == (0, 100)
    found = held(third, 3)
    assert found["gathered weights"] == 2 * 2000 and found["buffers of gradients"] == 2000  # no more than there are
    assert held(deepspeed(3), 3)["gathered weights"] == 4000  # two units are more than all that is left gathered
    assert held(replace(third, updated=0, update=100), 3)["update, beyond these"] > 0
    assert held(replace(third, update=100), 3)["update, beyond these"] == max(0, 100 * 100 - 4000 - 2000 - 300)


def test_fsdp_has_no_half_copy_and_autocast_casts() -> None:
    fsdp = storage_of(settings("FULL_SHARD"))
    found = held(fsdp, 3)
    assert (found["weights"], found["gradients"], found["optimizer"]) == (1000, 1000, 2000)
    assert found["gathered weights"] == 3 * 2000
    once = held(fsdp, 2)
    assert once["weights"] == 1000 + 2000 and once["gathered weights"] == 0
    told = "trainer: {precision: bf16}\nmodel: {tensor_model_parallel_size: 2}\noptim: {name: distributed_fused_adam}\n"
    nemo = storage_of(settings(told))
    assert (nemo.copies, nemo.buckets, held(nemo, 1)["weights"], held(nemo, 1)["optimizer"]) == ("cast", 0, 4000, 2000)
    alone = storage_of(settings("distributed_type: 'NO'\nmixed_precision: bf16\n"))
    assert alone.copies == "cast" and held(alone, 0)["gathered weights"] == 2000
    assert held(alone, 0)["buffers of gradients"] == 2000 and held(alone, 0, 1)["buffers of gradients"] == 0


@pytest.mark.parametrize(
    ("words", "live"),
    [
        ("--fsdp full_shard --fsdp_transformer_layer_cls_to_wrap L", None),
        ("--fsdp full_shard", 0),
        ("distributed_type: FSDP\nfsdp_config: {fsdp_limit_all_gathers: false}\n", None),
        ("distributed_type: FSDP\nfsdp_config: {fsdp_limit_all_gathers: true}\n", 0),
    ],
)
def test_gathers_that_are_not_limited_hold_all_units(words: str, live: int | None) -> None:
    found = storage_of(settings(words))
    assert found.live == live
    assert held(replace(found, copies="kept"), 3)["gathered weights"] == 4000


def test_fused_adam_takes_nothing() -> None:
    trainer = "--bf16 True --fsdp full_shard --optim {}"
    assert [storage_of(settings(trainer.format(o))).update for o in ("adamw_torch", "adamw_torch_fused")] == [4, 0]


def test_types_of_weights() -> None:
    for text, wanted in (
        ("mixed_precision: bf16\ndistributed_type: MULTI_GPU\n", "bf16-mixed"),
        ("base_model: x\nmicro_batch_size: 1\nbf16: true\n", None),
        ("base_model: x\nmicro_batch_size: 1\nbf16: true\nfsdp: [full_shard]\n", "bf16-master:reduce=bfloat16"),
        ("[parallelism]\ndata_parallel_shard_degree = 1\ndata_parallel_replicate_degree = 8\n", "bf16-mixed"),
        ("[parallelism]\ndata_parallel_shard_degree = 8\n", "bf16-master"),
        ("trainer: {precision: bf16}\nmodel: {tensor_model_parallel_size: 2, micro_batch_size: 1}\n", "bf16-mixed"),
        ("trainer: {precision: bf16}\nmodel: {tensor_model_parallel_size: 2, megatron_amp_O2: true}\n", "bf16-master"),
        ("model: {tensor_model_parallel_size: 2}\nmixed_precision: bf16_mixed\n", "bf16-master"),
        ('{"output_dir": "x", "per_device_train_batch_size": 1, "pure_bf16": true}', None),
    ):
        assert settings(text).precision == wanted, text


def test_the_batch_that_a_framework_takes_is_said() -> None:
    said = settings("--micro-batch-size 2 --bf16").to_json()["by_default"]
    assert said == ["batch of a step by default one --micro-batch-size 2 a copy, audited as the model's"]
    assert settings("--micro-batch-size 2 --global-batch-size 8").to_json()["by_default"] == []


def test_the_core_of_attention_is_computed_again() -> None:
    graph = build("llama", layers=2, batch=1, sequence=16)
    step = build_step(graph, "sgd", recompute="attention")
    again = {op.name for op in step.graph.operators if op.name.startswith(PREFIX)}
    assert again == {f"{PREFIX}layer{i}.attention.{name}" for i in range(2) for name in ("scores", "mask", "softmax")}
    assert step.recomputed == ("layer0.attention.softmax", "layer1.attention.softmax")
    with pytest.raises(GraphError, match="there is no attention"):
        build_step(build("mlp-unity"), "sgd", recompute="attention")


def test_what_megatron_computes_again_selectively() -> None:
    for text in ("--recompute-granularity selective", "--recompute-activations"):
        found = settings(text).recompute
        assert found is not None and found.value == "attention"
    listed = settings("--recompute-granularity selective --recompute-modules core_attn").recompute
    assert listed is not None and listed.value == "attention"


def test_driver_and_libraries_keep_a_part_of_a_card() -> None:
    assert [reserve_of(n << 30) >> 20 for n in (3, 16, 24, 40, 80)] == [0, 819, 1228, 2048, 2048]
