"""Pipelined training steps of the conformance suite: four layers of a perceptron in two stages, every placement the
first of its list, 1F1B; one leaf beside the least work.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from fractions import Fraction

from conformance.writing import Head, Suite, changed, container
from shardproof.formal.plans.pipelines.case import Case
from shardproof.formal.plans.pipelines.interleaved import interleaved_case
from shardproof.formal.plans.pipelines.job import Job
from shardproof.formal.plans.pipelines.outcome import SearchOutcome
from shardproof.formal.plans.pipelines.phases import StagePlan
from shardproof.formal.plans.pipelines.scheduled import schedule_stages
from shardproof.formal.selection.model.clock import Clock
from shardproof.models.layout.placement import space
from shardproof.models.machine.machine import Level, Machine, load_machine
from shardproof.models.pipelines.division import divide
from shardproof.models.pipelines.interleaved import weighted_bound
from shardproof.models.sources.training import build_step
from shardproof.models.sources.zoo import build
from shardproof.proofs.pipelines.certificate import PipelineCertificate
from shardproof.proofs.pipelines.file import encode_pipeline

CHUNKS_BYTES = 41_472
"""What the fuller of two views with two chunks each holds."""


def machine(devices: int = 1) -> Machine:
    """Two nodes of one device (or more) with links of round numbers."""
    plain = load_machine(f"cloud-a100:2x{devices}")
    levels = tuple(Level(x.name, x.size, Fraction(10**9), Fraction(1, 10**6)) for x in plain.levels)
    return replace(plain, name="two", levels=levels)


def by_hand(memory: int | None, starts: tuple[int, ...], leaf: bool) -> PipelineCertificate:
    step = build_step(build("mlp-8192", batch=4, width=32, layers=4), "sgd")
    job = Job(step.graph, divide(step.graph, step.passes), machine(), space("complete"), memory)
    case = Case(job, len(starts), 2)
    case.update_bound(1 << 62)
    if leaf:
        case.prove(1, Clock())
        case.leaves = {k: v for k, v in case.leaves.items() if k == (1, 2, 1, False)}
        case.passes = {}
        case.bound = 0
        case.update_bound(1 << 62)
    pieces, stages = case.pieces, []
    for i, j in zip(starts, (*starts[1:], job.division.units), strict=True):
        choices = dict.fromkeys(pieces.stage_vertices(i, j), 0)
        stages.append(StagePlan(i, j, choices, pieces.seconds(i, j, choices)))
    best = schedule_stages(case, stages, 0.0, Clock(), 2)
    assert best is not None
    return SearchOutcome(job, best, [case], case.bound).certificate()


def apart() -> PipelineCertificate:
    """Four stages on two nodes of two devices: sends differ, and the bound knows forward and backward of one unit."""
    step = build_step(build("mlp-8192", batch=4, width=32, layers=5), "sgd")
    job = Job(step.graph, divide(step.graph, step.passes), machine(2), space("complete"), None)
    case = Case(job, 4, 2)
    case.update_bound(1 << 62)
    case.prove(1, Clock())
    case.leaves = {}
    case.passes = {k: v for k, v in case.passes.items() if k[0] == 1}
    case.bound = 0
    case.update_bound(1 << 62)
    pieces, stages = case.pieces, []
    for i, j in zip(case.starts, (*case.starts[1:], job.division.units), strict=True):
        choices = dict.fromkeys(pieces.stage_vertices(i, j), 0)
        stages.append(StagePlan(i, j, choices, pieces.seconds(i, j, choices)))
    best = schedule_stages(case, stages, 0.0, Clock(), 2)
    assert best is not None
    return SearchOutcome(job, best, [case], case.bound).certificate()


def chunks() -> PipelineCertificate:
    """Two chunks on each of two views, the bound from least work with equal weights."""
    step = build_step(build("mlp-8192", batch=4, width=32, layers=5), "sgd")
    job = Job(step.graph, divide(step.graph, step.passes), machine(), space("complete"), None)
    case = interleaved_case(Case(job, 2, 2), 2)
    case.weights = (1,) * 18
    case.bound = weighted_bound(case.passes_known(case.bounds()), case.hops(), case.shape, case.weights)
    pieces, stages = case.pieces, []
    for i in range(4):
        choices = dict.fromkeys(pieces.stage_vertices(i, i + 1), 0)
        stages.append(StagePlan(i, i + 1, choices, pieces.seconds(i, i + 1, choices)))
    best = schedule_stages(case, stages, 0.0, Clock(), 2)
    assert best is not None
    return SearchOutcome(job, best, [case], case.bound).certificate()


def clipped() -> PipelineCertificate:
    """Gradients clipped by their norm: stages exchange sums of squares and the factor."""
    step = build_step(build("mlp-8192", batch=4, width=32, layers=3), "sgd:clip=1")
    job = Job(step.graph, divide(step.graph, step.passes), machine(), space("complete"), None)
    case = Case(job, 2, 2)
    case.update_bound(1 << 62)
    pieces, stages = case.pieces, []
    for i, j in ((0, 1), (1, job.division.units)):
        choices = dict.fromkeys(pieces.stage_vertices(i, j), 0)
        stages.append(StagePlan(i, j, choices, pieces.seconds(i, j, choices)))
    best = schedule_stages(case, stages, 0.0, Clock(), 2)
    assert best is not None
    return SearchOutcome(job, best, [case], case.bound).certificate()


def suite() -> Suite:
    out = Suite("pipelined step")

    def add(name: str, verdict: str, sentence: str, c: PipelineCertificate, fault: str = "") -> None:
        out.add(f"pipeline-{name}", verdict, sentence, container(encode_pipeline(c)), fault=fault)

    good = by_hand(None, (0, 2), True)
    add("two", "proved", "Pipeline     proved", good)
    add("work", "proved", "WithinGap    proved", by_hand(None, (0, 1), False))
    add("memory", "proved", "memory limit 1 MiB per device", by_hand(1 << 20, (0, 2), False))

    passes = apart()
    add("passes", "proved", "stages-in-the-machines-order", passes)

    def refuted(name: str, sentence: str, c: PipelineCertificate, fault: str) -> None:
        add(name, "refuted", sentence, c, fault)

    refuted("step", "the claim says", replace(good, step=good.step - 1), "a step shorter than it is")
    refuted("bound", "the leaves give a bound of", replace(good, lower_bound=good.lower_bound + 1), "a bound too high")
    (leaf,) = good.leaves
    refuted("leaf", "its certificate gives less than", replace(good, leaves=(replace(leaf, bound=leaf.bound + 1),)),
            "a leaf that says more than its certificate")  # fmt: skip
    refuted(
        "memory-exceeded", "the limit is 1024", replace(by_hand(None, (0, 2), False), memory=1024), "too little memory"
    )
    first, second = good.stages
    refuted("stages", "the stages are not all units", replace(good, stages=(first,)), "a stage is missing")
    pipe = good.schedule.subject
    quick = replace(good.schedule, subject=replace(pipe, send=0))  # type: ignore[arg-type]
    refuted("send", "takes longer than the schedule says", replace(good, schedule=quick), "sends that take no time")
    unit = tuple(
        u + 1 if u == 1 and p == "U" else u for u, p in zip(good.division.unit, good.division.phase, strict=True)
    )
    refuted("unit", "updates what unit 1 has", replace(good, division=replace(good.division, unit=unit)),
            "an update in another unit than its parameter")  # fmt: skip
    refuted("choices", "not those of its operators", replace(good, stages=(replace(first, choices=second.choices), second)),
            "placements of another stage")  # fmt: skip

    refuted("anywhere", "takes longer than the schedule says", replace(passes, ordered=False),
            "near sends of stages that may lie anywhere")  # fmt: skip
    swapped = tuple(replace(x, phase="B" if x.phase == "F" else "F") for x in passes.leaves)
    refuted("pass", "leaf 1 to 2", replace(passes, leaves=swapped), "a forward pass said to be the backward pass")
    add("without", "proved", "no-tensor", replace(passes, forbidden=("tensor",)))
    refuted("forbidden", "must be some of", replace(passes, forbidden=("data", "tensor")), "words in another order")

    both = clipped()
    add("exchange", "proved", "Pipeline     proved", both)
    refuted("exchange-step", "the claim says", replace(both, step=both.step - 1), "a step that does not wait for all")
    division = replace(both.division, unit=tuple(
        both.division.units - 1 if op.name == "norm:all" else u
        for op, u in zip(both.graph.operators, both.division.unit, strict=True)
    ))  # fmt: skip
    refuted("exchange-unit", "updates what unit 0 has", replace(both, division=division),
            "a norm that is added up at the other end")  # fmt: skip

    several = chunks()
    add("chunks", "proved", "stages:micro-batches:chunks 2:2:2", several)
    refuted("chunks-bound", "the leaves give a bound of", replace(several, lower_bound=several.lower_bound + 1),
            "a bound of several chunks a view too high")  # fmt: skip
    refuted("chunks-memory-exceeded", f"the limit is {CHUNKS_BYTES - 1}", replace(several, memory=CHUNKS_BYTES - 1),
            "a byte less than the chunks of a view hold together")  # fmt: skip

    whole = encode_pipeline(good)

    def malformed(name: str, sentence: str, change: Callable[[Head], object], fault: str) -> None:
        data = container(changed(whole, "pipeline.json", change))
        out.add(f"pipeline-{name}", "malformed", sentence, data, fault=fault)

    malformed("phases", "one unit and one phase", lambda h: h.update(phases=h["phases"][1:]), "a phase is missing")
    malformed("format", "reads 'shardproof-pipeline/1' only", lambda h: h.update(format="x"), "another format")
    malformed("graph", "is not the hash", lambda h: h.update(graph_sha256="0" * 64), "the hash of another graph")
    weights = changed(encode_pipeline(several), "pipeline.json", lambda h: h["interleaved"][0][3].pop())
    out.add("pipeline-chunks-weights", "malformed", "a weight for each of 18 lines", container(weights),
            fault="a line of several chunks a view without a weight")  # fmt: skip
    malformed("leaves", "certificates under leaves/", lambda h: h.update(leaves=[]), "a certificate that is not listed")
    return out
