"""Projections of the same rows as one product, and maps that flash-attn's kernels put together."""

from __future__ import annotations

from fractions import Fraction
from functools import cache

import pytest

from shardproof.models.cost.alone import Device, Kernel
from shardproof.models.cost.kernels import EAGER, Kernels
from shardproof.models.cost.projections import joint_kernels
from shardproof.models.layout.targets.degrees import Flags
from shardproof.models.machine.machine import load_machine
from shardproof.models.sources.frameworks.placements import shares
from shardproof.models.sources.load import with_attention
from shardproof.models.sources.training import TrainingStep, build_step
from shardproof.models.sources.zoo import build

BOX = load_machine("dgx-h100:1x8")


@cache
def llama() -> TrainingStep:
    model = build("llama", layers=1, batch=4, sequence=2048, width=2048, heads=16, kv_heads=16, hidden=8192)
    return build_step(with_attention(model, "fused"), "adam", precision="bf16-master")


def device(tp: int, kernels: Kernels | None = None) -> Device:
    return Device(llama().graph, BOX, shares(Flags("Megatron", tp=tp), llama().graph, 1), kernels or Kernels())


def of_pass(found: Device, kind: str) -> list[Kernel]:
    chosen = [op for op, (p, _) in zip(llama().graph.operators, llama().passes, strict=True) if p == kind]
    return found.kernels(chosen)


def by_name(kernels: list[Kernel]) -> dict[str, Fraction]:
    return {k.operators[0]: k.seconds for k in kernels}


PROJECTIONS = tuple(f"layer0.attention.{x}" for x in ("query", "key", "value"))
GATE = ("layer0.ffn.gate", "layer0.ffn.up")
ADDED = "grad:layer0.attention.norm"


@pytest.mark.parametrize("tp", (1, 4, 8))
def test_projections_are_priced_as_the_product_that_they_are_columns_of(tp: int) -> None:
    here = device(tp)
    apart = of_pass(here, "F")
    before, after = by_name(apart), by_name(joint_kernels(here, apart))
    rows, width = 4 * 2048, 2048
    for names, columns in ((PROJECTIONS, 3 * 2048), (GATE, 2 * 8192)):
        one = here.product_seconds(llama().graph.operator(names[0]), (rows, columns // tp, width), 0)
        assert sum(after[n] for n in names) == one < sum(before[n] for n in names)
    same = set(before) - {*PROJECTIONS, *GATE}
    assert same and all(before[n] == after[n] for n in same)


@pytest.mark.parametrize("tp", (1, 8))
def test_gradients_of_rows_are_one_sum_and_those_of_weights_lie_side_by_side(tp: int) -> None:
    here = device(tp)
    apart = of_pass(here, "B")
    before, after = by_name(apart), by_name(joint_kernels(here, apart))
    rows, width = 4 * 2048, 2048
    terms = [f"{ADDED}/{n}" for n in PROJECTIONS]
    deep = here.product_seconds(llama().graph.operator(terms[0]), (rows, width, 3 * 2048 // tp), 0)
    assert sum(after[n] for n in terms) == deep and after[ADDED] == 0 < before[ADDED]
    weights = [f"grad:{n}.weight.bf16" for n in PROJECTIONS]
    wide = here.product_seconds(llama().graph.operator(weights[0]), (3 * 2048 // tp, width, rows), 0)
    assert sum(after[n] for n in weights) == wide <= sum(before[n] for n in weights)
    assert len(before) == len(after)  # what is launched is counted as it was
    alone = "grad:layer0.attention.output.weight.bf16"
    assert before[alone] == after[alone]


def test_products_that_read_one_tensor_along_other_axes_stay_apart() -> None:
    """The gradient of an output's rows sums over the width, that of its weight over rows: one operand, two products."""
    here = device(1)
    names = ("grad:layer0.attention.attention", "grad:layer0.attention.output.weight.bf16")
    read = [{a.tensor for a in llama().graph.operator(n).inputs} for n in names]
    assert read[0] & read[1]
    apart = [k for k in of_pass(here, "B") if k.operators[0] in names]
    assert joint_kernels(here, apart) == apart and len(apart) == 2


def test_a_device_without_a_form_of_products_joins_nothing() -> None:
    here = Device(llama().graph, load_machine("localhost"), {}, Kernels())
    apart = of_pass(here, "F")
    assert joint_kernels(here, apart) == apart


def test_flash_kernels_turn_rows_at_once_and_leave_other_maps_apart() -> None:
    eager, flash, fused = (
        of_pass(device(1, k), "F") for k in (Kernels(chains=False), Kernels(chains=False, flash=True), Kernels())
    )
    names = [[k.operators for k in found] for found in (eager, flash, fused)]
    rotary = ("layer0.attention.query.swap", "layer0.attention.query.sine", "layer0.attention.query.rotary")
    assert all(len(n) == 1 for n in names[0]) and rotary in names[1] and rotary in names[2]
    assert ("layer0.ffn.silu",) in names[1] and ("layer0.ffn.silu",) not in names[2]
    seconds = [sum(k.seconds for k in found) for found in (eager, flash, fused)]
    assert seconds == sorted(seconds, reverse=True) and len({*seconds}) == 3
    norm = "layer0.ffn.norm"
    times = [by_name(found)[norm] for found in (eager, flash)]
    assert times[0] == times[1] / EAGER["rms_norm"]
