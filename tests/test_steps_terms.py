"""Terms of composed steps that rest on our own measurements: maps that stream, what the host issues, narrow gradients."""

from __future__ import annotations

import csv
import sys
from fractions import Fraction
from functools import cache
from pathlib import Path
from statistics import median

from shardproof.formal.plans.pipelines.composed import StepShape, compose_step
from shardproof.formal.plans.pipelines.parts import StageWork
from shardproof.formal.plans.pipelines.stage_work import stage_work
from shardproof.models.cost.alone import Device
from shardproof.models.cost.kernels import STREAM, Kernels
from shardproof.models.layout.targets.degrees import Flags
from shardproof.models.machine.machine import load_machine
from shardproof.models.sources.frameworks.placements import shares
from shardproof.models.sources.load import with_attention
from shardproof.models.sources.training import build_step
from shardproof.models.sources.zoo import build

MEASURED = Path(__file__).parent / "data" / "measured"
MAPS = ("copy", "add", "gelu", "silu")
LARGE = 128 * 2**20
"""Bytes from which on a map neither fits into a cache nor waits for its launch."""


def table(path: Path) -> list[dict[str, str]]:
    with path.open(newline="", encoding="utf-8") as file:
        return list(csv.DictReader(file))


@cache
def work(precision: str = "bf16-master", recompute: str = "none", sums: bool = False) -> StageWork:
    model = with_attention(build("llama", layers=1, batch=1, sequence=512, width=512, hidden=1024), "fused")
    made = build_step(model, "adam", recompute=recompute, precision=precision)
    return stage_work(made, load_machine("dgx-h100:1x8"), Flags("Megatron"), 1, Kernels(sums=sums))


def test_maps_stream_as_fast_as_was_measured() -> None:
    for name, part in STREAM.items():
        rows = [
            r
            for r in table(MEASURED / "gpu" / f"{name}-memory.csv")
            if r["operation"] in MAPS and int(r["bytes"]) >= LARGE
        ]
        seen = median(int(r["bytes"]) / float(r["us"]) * 1e6 for r in rows)
        bandwidth = load_machine(f"dgx-{name}").device.bandwidth
        assert abs(float(part * bandwidth) / seen - 1) < 0.01, name


def test_chains_and_single_maps_stream_and_others_do_not() -> None:
    model = build("llama", layers=1, batch=8, sequence=4096, width=2048, hidden=8192)
    graph = with_attention(model, "fused")
    for name, part in (("dgx-h100", STREAM["h100"]), ("dgx-a100", Fraction(1))):
        device = Device(graph, load_machine(name), {})
        one = graph.operator("layer0.ffn.add")
        moved = device.read_by(one, 0) + device.read_by(one, 1) + device.bytes_of(one)
        here = device.machine.device
        least = moved / (here.bandwidth * part)
        assert least < device.seconds(one) < 1.02 * least + here.launch
        (chain,) = [k for k in device.kernels(list(graph.operators)) if "layer0.ffn.silu" in k.operators]
        assert chain.seconds < sum(device.seconds(graph.operator(n)) for n in chain.operators)
        norm = graph.operator("layer0.ffn.norm")
        assert device.seconds(norm) == device.planned_time(norm)


def test_gradients_that_are_reduced_in_half_the_bits_take_half_the_bytes() -> None:
    box, flags = load_machine("dgx-h100:1x8"), Flags("Megatron", micro_batch=1)
    wide, narrow = (work(p, sums=True) for p in ("bf16-master", "bf16-master:reduce=bfloat16"))
    carried = StepShape(2, 1, hidden=frozenset(), host=Fraction(0))
    steps = [compose_step(w, box, flags, carried) for w in (wide, narrow)]
    for name, part in wide.parts.items():
        other = narrow.parts[name]
        assert part.gradients == 2 * other.gradients and part.learnt == other.learnt == part.gradients // 4
        assert part.summed == other.summed  # autograd adds 16 bits in both
    assert 1.5 < steps[0].terms["gradients"] / steps[1].terms["gradients"] < 2.1


def test_both_passes_take_the_host_equally_long() -> None:
    rows = table(MEASURED / "host" / "passes.csv")
    ratios = [float(r["backward_us"]) / float(r["forward_us"]) for r in rows]
    assert len(ratios) >= 3 and 0.8 < median(ratios) < 1.25

    box, flags, host = load_machine("dgx-h100:1x8"), Flags("Megatron", tp=1, micro_batch=1), Fraction(1)
    for recompute in ("none", "all"):
        made = work(recompute=recompute)
        step = compose_step(made, box, flags, StepShape(1, 1, host=host))  # a second a kernel: nothing else counts
        forward, backward = ([p.passes[k] for p in made.parts.values()] for k in "FB")
        kernels = sum(x.kernels for x in (*forward, *backward)) - sum(x.again for x in backward)
        again = [
            Fraction(f.kernels + b.kernels - b.again, 2) * Fraction(b.again, max(1, f.kernels))
            for f, b in zip(forward, backward, strict=True)
        ]
        counted = ("first", *made.layers, "last")
        left = [n for n in made.parts if n not in counted]
        kernels -= sum(made.parts[n].passes[k].kernels for n in left for k in "FB")
        assert step.terms["micro-batches"] == host * (kernels + sum(again))
        assert (sum(again) > 0) == (recompute == "all")


def test_a_pass_that_the_host_delays_does_not_borrow_from_the_other() -> None:
    """Forward waits for the host and backward for the device: the sum of both, not the larger of the sums."""
    box, flags = load_machine("dgx-h100:1x8"), Flags("Megatron", micro_batch=1)
    part = work().parts["layer0"]
    forward, backward = (part.passes[k] for k in "FB")
    half = Fraction(forward.kernels + backward.kernels, 2)
    host = (forward.seconds + backward.seconds) / 2 / half  # between the two
    assert forward.seconds < host * half < backward.seconds
    steps = [compose_step(work(), box, flags, StepShape(1, 1, host=h)) for h in (Fraction(0), host)]
    grown = steps[1].parts["launches"] - steps[0].parts.get("launches", Fraction(0))
    assert grown >= host * half - forward.seconds


def experts(kernels: Kernels, ep: int = 2) -> StageWork:
    model = build("mixtral-8x7b", layers=1, batch=4 * ep, sequence=1024, capacity_percent=0)
    made = build_step(with_attention(model, "fused"), "adam", precision="bf16-master")
    return stage_work(made, load_machine("dgx-h100:1x8"), Flags("Megatron", ep=ep), 4, kernels)


def test_products_of_experts_apart_are_as_many_products() -> None:
    model = build("mixtral-8x7b", layers=1, batch=8, sequence=128, capacity_percent=0)
    op = model.operator("layer0.ffn.gate")
    times = dict[int, list[Fraction]]()
    for ep in (2, 8):
        ways = shares(Flags("Megatron", ep=ep), model, ep)
        devices = [Device(model, load_machine("dgx-h100"), ways, Kernels(experts=e)) for e in ("grouped", "apart")]
        times[ep] = [d.planned_time(op) for d in devices]
    each = devices[0].product_seconds(op, (8 * 128 * 2 // 8, 14336, 4096), 0)
    assert each is not None and times[2][1] == 4 * each * devices[0].steady > times[2][0]  # four experts a device
    assert times[8][0] == times[8][1]  # one


def test_gates_inside_a_kernel_of_experts_are_not_run_nor_cast() -> None:
    one, other = (experts(Kernels(eight=True, experts=e)) for e in ("grouped", "fused"))
    for kind, maps in (("F", 1), ("B", 1)):
        before, after = (w.parts["layer0"].passes[kind] for w in (one, other))
        assert before.seconds > after.seconds and before.products == after.products
        assert before.kernels - after.kernels > maps  # the gate, and casts of what it leaves
    plain, inside = (experts(Kernels(experts=e)).parts["layer0"].passes for e in ("grouped", "fused"))
    assert [plain[k].kernels - inside[k].kernels for k in "FB"] == [1, 1]
    dense = work()
    assert dense.parts["layer0"].passes["F"].seconds == narrower().parts["layer0"].passes["F"].seconds


def narrower() -> StageWork:
    model = with_attention(build("llama", layers=1, batch=1, sequence=512, width=512, hidden=1024), "fused")
    made = build_step(model, "adam", precision="bf16-master")
    return stage_work(made, load_machine("dgx-h100:1x8"), Flags("Megatron"), 1, Kernels(experts="fused"))


def test_releases_say_how_experts_run() -> None:
    sys.path.insert(0, str(Path(__file__).parent / "benchmarks"))
    from configurations.tables import experts_of

    said = {
        ("25.11", "Qwen3_30B_a3B", "FP8-MX"): "apart",
        ("26.04.01", "GPT OSS 120B", "BF16"): "apart",
        ("26.06", "GPT OSS 120B", "MXFP8"): "fused",
        ("26.06.01", "GPT OSS 120B", "MXFP8"): "apart",
        ("26.06.01", "Qwen3_30B_a3B", "MXFP8"): "fused",
        ("26.08", "Qwen3_30B_a3B", "BF16"): "grouped",
    }
    for (release, model, precision), how in said.items():
        assert experts_of({"release": release, "model": model, "precision": precision}) == how
