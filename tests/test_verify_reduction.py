"""The checker of reduction programs: what it accepts, weaker certificates, hostile files, times, the command line."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from reduction_cases import certificate, single

from shardproof.__main__ import run
from shardproof.formal.collective_programs.graph import explore
from shardproof.formal.collective_programs.synthesize import synthesize
from shardproof.models.collective_programs.cost import PAYLOAD, Algorithm
from shardproof.models.collective_programs.parallelism import Hierarchy, Order, ReductionRequest, Request, UnevenRequest
from shardproof.models.machine.machine import load_machine
from shardproof.models.problem.claims import Verdict
from shardproof.proofs.collective_programs.certificate import (
    Cheapest,
    Correct,
    CostSpec,
    Impossible,
    Part,
    ReductionCertificate,
)
from shardproof.proofs.collective_programs.file import decode_reduction, read_reduction, write_reduction
from shardproof.proofs.container.canonical import ContainerError
from shardproof.verify.collective_programs.program import check_reduction
from shardproof.verify.collective_programs.replay import ReplayError, replay

NONE = np.zeros(0, dtype=np.int64)


@pytest.mark.parametrize(
    "request_",
    [
        ReductionRequest((4, 16), ((4, 16),), (0,)),
        ReductionRequest((4, 16), ((1, 16), (2, 1), (2, 1)), (0, 2)),
        ReductionRequest((4, 16), ((1, 16), (2, 1), (2, 1)), (0, 2), Order.ALIGNED),
        ReductionRequest((2, 2, 2), ((2, 2, 2),), (0,)),
        ReductionRequest((2, 4), ((2, 2), (1, 2)), (0,), reading="vacuous"),
        ReductionRequest((2, 2), ((2, 2),), (0,), reading="literal_first"),
        ReductionRequest((2, 4), ((2, 2), (1, 2)), (0,), synthesis=Hierarchy.ROW),
        ReductionRequest((2, 4), ((2, 2), (1, 2)), (0,), synthesis=Hierarchy.COLUMN),
        ReductionRequest((2, 2), ((1, 2), (2, 1)), (1,), synthesis=Hierarchy.SYSTEM),
        UnevenRequest((4, 2, 4)),
    ],
)
def test_valid_certificates_are_proved_through_files(request_: Request) -> None:
    original = single(request_)
    data = write_reduction(None, original)
    again = read_reduction(data)
    assert isinstance(again, ReductionCertificate) and write_reduction(None, again) == data
    results = check_reduction(again)
    assert [r.verdict for r in results] == [Verdict.PROVED] * 2
    cheapest = next(r for r in results if r.kind == "Cheapest")
    claim = next(p.claim for p in original.parts if isinstance(p.claim, Cheapest))
    assert cheapest.cost == cheapest.lower_bound == claim.cost


def test_the_independent_replay_accepts_every_program_and_agrees_on_the_steps() -> None:
    """Row by row, with its own groups and rules: all programs of small systems of every kind."""
    requests: list[Request] = [
        ReductionRequest((2, 4), ((2, 2), (1, 2)), (0,)),
        ReductionRequest((2, 6), ((1, 2), (2, 1), (1, 3)), (0, 1), Order.ALIGNED),
        ReductionRequest((2, 2, 2), ((2, 2, 2),), (0,)),
        ReductionRequest((2, 4), ((1, 4), (2, 1)), (0, 1), synthesis=Hierarchy.ROW),
        UnevenRequest((3, 1, 2)),
    ]
    tried = 0
    for request in requests:
        system = request.system()
        for program in explore(system).programs():
            mine = replay(request, program, False, False)
            theirs = system.execute(program)[1]
            assert [(s.collective, sorted(zip(s.groups, s.rows, strict=True))) for s in mine] == [
                (s.collective, sorted(zip(s.groups, s.rows, strict=True))) for s in theirs
            ]
            tried += 1
            with pytest.raises(ReplayError):
                replay(request, program[:-1], False, False)
    assert tried > 1400


def test_a_weaker_certificate_is_accepted_with_its_weaker_bound() -> None:
    """Half of every potential, or only the first potentials (unlisted states count as 0), prove less, and nothing
    false.
    """
    original = single(ReductionRequest((4, 16), ((4, 16),), (0,)))
    part = original.parts[1]
    assert isinstance(part.claim, Cheapest)
    for weaker in (
        part.potentials // 2,
        np.minimum(part.potentials, part.claim.cost // 2),
        part.potentials[:0],
        part.potentials * 0,
    ):
        result = check_reduction(replace(original, parts=(replace(part, potentials=weaker),)))[0]
        assert result.verdict is Verdict.UNDECIDED and result.cost == part.claim.cost
        assert result.lower_bound is not None and result.lower_bound <= part.claim.cost // 2


def test_the_bound_holds_for_programs_of_any_length() -> None:
    """A graph cut at a length is not closed: potentials of the first states alone do not pass when they claim the
    optimum.
    """
    original = single(ReductionRequest((2, 2, 2), ((2, 2, 2),), (0,)))
    part = original.parts[1]
    for kept in (1, 10, 60, 150):
        result = check_reduction(replace(original, parts=(replace(part, potentials=part.potentials[:kept]),)))[0]
        assert result.verdict is Verdict.REFUTED


def test_impossible_requests_are_proved_impossible() -> None:
    """The system hierarchy cannot split the devices of one node."""
    request = ReductionRequest((4,), ((2,), (2,)), (0,), synthesis=Hierarchy.SYSTEM)
    parts = synthesize(request).parts(0)
    assert [type(p.claim) for p in parts] == [Impossible]
    assert check_reduction(ReductionCertificate((), parts))[0].verdict is Verdict.PROVED
    possible = Part(ReductionRequest((2, 2), ((2, 2),), (0,)), Impossible(), NONE)
    assert check_reduction(ReductionCertificate((), (possible,)))[0].verdict is Verdict.REFUTED


def test_a_program_alone_is_proved_correct() -> None:
    request = ReductionRequest((2, 4), ((2, 2), (1, 2)), (0,))
    programs = list(explore(request.system()).programs())
    parts = tuple(Part(request, Correct(p), NONE) for p in programs)
    assert {r.verdict for r in check_reduction(ReductionCertificate((), parts))} == {Verdict.PROVED}
    broken = tuple(Part(request, Correct(p[:-1]), NONE) for p in programs)
    assert {r.verdict for r in check_reduction(ReductionCertificate((), broken))} == {Verdict.REFUTED}


def test_nothing_claimed_is_nothing_proved() -> None:
    assert check_reduction(ReductionCertificate((), ()))[0].verdict is Verdict.UNDECIDED


@pytest.mark.parametrize("sizes", [(4, 16), (8, 8, 8)])
@pytest.mark.timeout(60)
def test_large_programs_are_checked(sizes: tuple[int, ...]) -> None:
    machine = load_machine("summit" if len(sizes) == 3 else "p2-a100").resized(sizes)
    original = single(ReductionRequest(sizes, (sizes,), (0,)), CostSpec("m2", machine, PAYLOAD))
    results = check_reduction(decode_reduction_bytes(write_reduction(None, original)))
    assert {r.verdict for r in results} == {Verdict.PROVED}


def decode_reduction_bytes(data: bytes) -> ReductionCertificate:
    out = read_reduction(data)
    assert isinstance(out, ReductionCertificate)
    return out


def test_best_placement_is_proved_and_needs_every_part() -> None:
    original = certificate((4, 16), (16, 2, 2), (0, 2))
    results = check_reduction(original)
    assert results[-1].kind == "Best" and {r.verdict for r in results} == {Verdict.PROVED}
    for k in range(len(original.parts)):
        if isinstance(original.parts[k].claim, Cheapest):
            without = replace(original, parts=original.parts[:k] + original.parts[k + 1 :])
            assert check_reduction(without)[-1].verdict is Verdict.REFUTED


def test_other_fields_are_refused() -> None:
    with pytest.raises(ContainerError, match="is missing"):
        decode_reduction({"reduction.json": b'{"format":"shardproof-reduction/1"}', "reduction.i64": NONE})


def test_command_line(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """The contract of the command line: documents, exit codes, the file is checked by `check`."""
    assert run(["place", "--hierarchy", "4x16", "--axes", "4,16", "--json"]) == 0
    document = json.loads(capsys.readouterr().out)
    assert document["count"] == 3 and document["matrices"] == [[[1, 4], [4, 4]], [[2, 2], [2, 8]], [[4, 1], [1, 16]]]
    out = tmp_path / "prog.spz"
    svg = tmp_path / "prog.svg"
    assert (
        run(
            [
                "reduce",
                "--hierarchy",
                "4x16",
                "--axes",
                "16,2,2",
                "--reduce",
                "0,2",
                "-o",
                str(out),
                "--svg",
                str(svg),
                "--json",
            ]
        )
        == 0
    )
    document = json.loads(capsys.readouterr().out)
    assert document["programs"] == 188 and [m["programs"] for m in document["matrices"]] == [47] * 4
    assert document["reading"] == "paper" and document["cost"] == document["lower_bound"] < document["all_reduce_cost"]
    assert [s["collective"] for s in document["best"]] == ["ReduceScatter", "AllReduce", "AllGather"]
    assert svg.read_text().startswith("<svg")
    assert run(["check", str(out), "--json"]) == 0
    document = json.loads(capsys.readouterr().out)
    assert document["verdict"] == "proved" and {c["kind"] for c in document["claims"]} == {
        "Complete",
        "Count",
        "Cheapest",
        "Best",
    }
    data = bytearray(out.read_bytes())
    data[len(data) // 2] ^= 1
    out.write_bytes(bytes(data))
    assert run(["check", str(out)]) == 3


@pytest.mark.parametrize(
    ("words", "code", "text"),
    [
        (["place", "--hierarchy", "4x16", "--axes", "4,8"], 3, "do not fill the hierarchy"),
        (["place", "--hierarchy", "4x16"], 2, "--axes is missing"),
        (["place", "--hierarchy", "4xq", "--axes", "4"], 3, "is not a list of integers"),
        (["reduce", "--hierarchy", "4x16", "--axes", "4,16", "--reduce", "2"], 3, "no such axis"),
        (
            ["reduce", "--hierarchy", "4x16", "--axes", "4,16", "--reduce", "0", "--matrix", "[[4 1] [2 8]]"],
            3,
            "row 0|row 1|column",
        ),
        (["reduce", "--hierarchy", "2x2x2x2", "--axes", "16", "--reduce", "0"], 3, "name one with --machine"),
        (["reduce", "--hierarchy", "4", "--axes", "2,2", "--reduce", "0", "--synthesis", "a"], 20, ""),
        (["reduce", "--nodes", "4,0"], 3, "at least 1"),
        (
            ["reduce", "--hierarchy", "4x16", "--axes", "64", "--reduce", "0", "--machine", "nowhere"],
            3,
            "neither a built-in",
        ),
        (["place", "--hierarchy", "4x16", "--axes", "4,16", "--reduce", "0"], 3, "write axes, bytes"),
    ],
)
def test_errors_of_the_command_line(words: list[str], code: int, text: str, capsys: pytest.CaptureFixture[str]) -> None:
    import re

    assert run(words) == code
    assert re.search(text, capsys.readouterr().err)


def test_uneven_nodes_on_the_command_line(tmp_path: Path) -> None:
    out = tmp_path / "uneven.spz"
    assert run(["reduce", "--nodes", "4,2,4", "--machine", "p2-a100:4x16", "-o", str(out)]) == 0
    assert run(["check", str(out)]) == 0
    again = read_reduction(out)
    assert isinstance(again, ReductionCertificate) and again.costs[0].devices == (0, 1, 2, 3, 16, 17, 32, 33, 34, 35)
    assert again.costs[0].algorithm is Algorithm.RING
