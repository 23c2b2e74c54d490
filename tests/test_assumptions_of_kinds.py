"""Flags of a claim are recomputed from all that its numbers rest on: a pipelined step is looked at on machines where
exactly one term matters, and the flag is there, and not where the term does not matter; every kind prints those that
any of its claims has.
"""

from __future__ import annotations

import json
from dataclasses import replace
from functools import cache
from pathlib import Path

import pytest

from shardproof.__main__ import run
from shardproof.models.layout.placement import space
from shardproof.models.machine.machine import Machine, load_machine
from shardproof.proofs.container.archive import read_container
from shardproof.proofs.pipelines.certificate import Interleaved, PipelineCertificate
from shardproof.proofs.pipelines.file import decode_pipeline
from shardproof.verify.pipelines.assumptions import assumptions, levels_crossed
from shardproof.verify.pipelines.division import micro_batch_graph
from shardproof.verify.plan.assumptions import all_assumptions

PROVED = Path(__file__).parent / "conformance" / "proved"


@cache
def certificate() -> PipelineCertificate:
    return decode_pipeline(read_container((PROVED / "pipeline-two.spz").read_bytes()))


@cache
def dgx(sizes: tuple[int, ...]) -> Machine:
    return load_machine("dgx-a100:" + "x".join(map(str, sizes)))


def with_forms(sizes: tuple[int, ...], collectives: tuple[str, ...], products: bool) -> Machine:
    """Levels nodes and gpus of which these have measured collectives; measured products or not."""
    machine = dgx(sizes)
    measured = next(level.collectives for level in machine.levels if level.collectives)
    levels = tuple(
        replace(level, collectives=measured if level.name in collectives else ()) for level in machine.levels
    )
    device = replace(machine.device, attentions=(), products=machine.device.products if products else ())
    return replace(machine, levels=levels, device=device)


def flags(machine: Machine, pairs: tuple[tuple[int, int], ...], **more: object) -> set[str]:
    c = replace(certificate(), machine=machine, pairs=pairs, **more)
    return set(assumptions(c, space(c.space), lambda m: micro_batch_graph(c.graph, m, c.division)[0]))


MEASURED = ("links-by-bandwidth", "sends-by-bandwidth", "measured-collectives", "measured-products", "roofline-work")


def named(found: set[str]) -> set[str]:
    return {f for f in found if f.startswith(MEASURED[:3])}


@pytest.mark.parametrize(
    ("sizes", "collectives", "pairs", "expected"),
    [
        # one stage on all devices: links of both levels may be used by reshardings, and nothing is sent
        ((2, 2), ("gpus",), ((1, 1),), {"measured-collectives(gpus)", "links-by-bandwidth(nodes)"}),
        # stages of one node each: only sends cross the nodes, and they go on over the links of the gpus
        (
            (2, 2),
            ("gpus",),
            ((2, 2),),
            {"measured-collectives(gpus)", "links-by-bandwidth(nodes)", "sends-by-bandwidth(gpus)"},
        ),
        # stages of one device each of one node: sends alone, over the gpus
        ((1, 2), ("gpus",), ((2, 2),), {"measured-collectives(gpus)", "sends-by-bandwidth(gpus)"}),
        # the other level is measured: what is sent crosses it by bandwidth
        (
            (2, 2),
            ("nodes",),
            ((2, 2),),
            {"measured-collectives(nodes)", "links-by-bandwidth(gpus)", "sends-by-bandwidth(nodes)"},
        ),
        # whatever stands last: the union of the pairs
        (
            (2, 2),
            ("gpus",),
            ((2, 2), (1, 1)),
            {"measured-collectives(gpus)", "links-by-bandwidth(nodes)", "sends-by-bandwidth(gpus)"},
        ),
        (
            (2, 2),
            ("gpus",),
            ((1, 1), (2, 2)),
            {"measured-collectives(gpus)", "links-by-bandwidth(nodes)", "sends-by-bandwidth(gpus)"},
        ),
        # nothing is measured: nothing is said of what is not
        ((2, 2), (), ((1, 1), (2, 2)), set()),
    ],
)
def test_levels_count_where_a_view_or_a_send_uses_them(
    sizes: tuple[int, ...], collectives: tuple[str, ...], pairs: tuple[tuple[int, int], ...], expected: set[str]
) -> None:
    assert named(flags(with_forms(sizes, collectives, False), pairs)) == expected


def test_products_alone_are_measured() -> None:
    found = flags(with_forms((2, 2), (), True), ((2, 2),))
    assert any(f.startswith("measured-products(") for f in found)
    assert any(f.startswith("roofline-work(") for f in found)  # relu and the like have no form
    assert named(found) == {"links-by-bandwidth(nodes gpus)"}
    bare = flags(with_forms((2, 2), (), False), ((2, 2),))
    assert not any(f.startswith(MEASURED) for f in bare)


def test_sends_and_micro_batches_are_assumed_where_there_are_any() -> None:
    machine = with_forms((2, 2), (), False)
    alone, staged, cut = (flags(machine, pairs) for pairs in (((1, 1),), ((2, 1),), ((1, 2),)))
    assert "sends-do-not-wait" in staged and "sends-do-not-wait" not in alone | cut
    assert "accumulation-in-the-product" in cut and "accumulation-in-the-product" not in alone | staged
    assert "stages-in-the-machines-order" in flags(machine, ((2, 1),), ordered=True)
    assert "stages-in-the-machines-order" not in flags(machine, ((1, 1),), ordered=True) | staged
    assert {"no-tensor", "no-data"} <= flags(machine, ((2, 1),), forbidden=("tensor", "data"))
    chunks = (Interleaved(2, 2, 2, ()),)
    assert {"sends-do-not-wait", "accumulation-in-the-product"} <= flags(machine, ((1, 1),), interleaved=chunks)


def test_the_limit_is_the_files() -> None:
    machine = with_forms((2, 2), (), False)
    free, tight = (flags(machine, ((2, 2),), memory=memory) for memory in (None, 1 << 30))
    rows = {"every-operand-received", "packing-not-counted"}
    assert "no-memory-limit" in free and not rows & free
    assert "no-memory-limit" not in tight and rows <= tight


def test_a_pair_on_one_machine_assumes_what_a_plan_does() -> None:
    c, machine = certificate(), with_forms((2, 2), ("gpus",), True)
    plain = all_assumptions(c.graph, machine, space(c.space), None)
    assert plain <= flags(machine, ((1, 1),), memory=None)


@pytest.mark.parametrize(
    ("sizes", "stages", "expected"),
    [((2, 4), 1, []), ((2, 4), 2, [0, 1]), ((2, 4), 4, [0, 1]), ((1, 4), 2, [1]), ((1, 4), 4, [1])],
)
def test_levels_that_sends_cross(sizes: tuple[int, ...], stages: int, expected: list[int]) -> None:
    assert list(levels_crossed(dgx(sizes), stages)) == expected


def test_a_step_from_the_command_line_states_what_its_sends_rest_on(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    command = "plan mlp-8192:layers=3,width=16 --batch 4 --train sgd --machine dgx-a100:2x2 --pipeline 2:2 -o p.spz"
    assert run(command.split()) in (0, 5)
    capsys.readouterr()
    assert run(["check", "p.spz", "--json"]) in (0, 5)
    document = json.loads(capsys.readouterr().out)
    for claim in document["claims"]:
        assert {"links-by-bandwidth(nodes)", "sends-by-bandwidth(gpus)", "no-memory-limit"} <= set(claim["assumptions"])


ALONE = sorted(p.name for p in PROVED.glob("*.spz") if not p.name.startswith(("selection", "extraction")))
"""Files that need no problem beside them."""


@pytest.mark.parametrize("file", ALONE)
def test_what_is_printed_is_all_that_any_claim_assumes(file: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["check", str(PROVED / file), "--json"]) in (0, 5)
    document = json.loads(capsys.readouterr().out)
    for about in document.get("plans", ()):
        assert {a for c in document["claims"] for a in c["assumptions"]} <= set(about["assumptions"])
        assert about["assumptions"] == sorted(about["assumptions"])
