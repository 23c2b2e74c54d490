"""The conformance suite: every file gets its verdict, by the public command and (selection) by a second checker."""

from __future__ import annotations

import ast
import json
import random
import sys
from collections import Counter
from pathlib import Path

import forgeries_selection
import independent_checker
import pytest
import test_schedule_search
from conformance.make import EXITS, FOLDERS, files
from forgeries import head_of, put
from independent_checker.__main__ import main
from independent_checker.collective import check_collective
from independent_checker.extraction import check_extraction as second_extraction
from independent_checker.schedules import check_schedule as second_schedule

from shardproof.__main__ import run
from shardproof.formal.collective_programs.synthesize import synthesize
from shardproof.models.collective_programs.cost import PRESETS, Algorithm
from shardproof.models.collective_programs.parallelism import ReductionRequest
from shardproof.models.machine.machine import load_machine
from shardproof.models.problem.selection_problem import ProblemError
from shardproof.proofs.collective_programs.certificate import CostSpec, ReductionCertificate
from shardproof.proofs.collective_programs.file import write_reduction
from shardproof.proofs.container.archive import write_container
from shardproof.proofs.container.canonical import ContainerError
from shardproof.proofs.schedules.file import write_schedule
from shardproof.proofs.selection.file import decode_certificate
from shardproof.proofs.selection.problem_file import parse_problem
from shardproof.verify.schedules.certificate import check_schedule
from shardproof.verify.selection.certificate import check_selection

HERE = Path(__file__).parent / "conformance"
EXPECTED = json.loads((HERE / "expected.json").read_text(encoding="utf-8"))
CLAIMED = {"proved", "undecided", "refuted"}


def paths(entry: dict) -> list[str]:
    return [str(HERE / name) for name in (entry["file"], *entry["with"])]


@pytest.mark.parametrize("entry", EXPECTED, ids=lambda e: e["file"])
def test_the_command_says_what_is_expected(entry: dict, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["check", *paths(entry)]) == entry["exit"] == EXITS[entry["verdict"]]
    said = capsys.readouterr()
    assert entry["sentence"] and entry["sentence"] in said.out + said.err
    assert run(["check", "--json", *paths(entry)]) == entry["exit"]
    document = json.loads(capsys.readouterr().out)
    if entry["verdict"] in CLAIMED:
        assert document["verdict"] == entry["verdict"] and "error" not in document
    else:
        assert document["claims"] == [] and document["exit"] == 3 and entry["sentence"] in document["error"]


def test_the_script_writes_these_bytes() -> None:
    wanted = files()
    there = {f"{folder}/{p.name}" for folder in FOLDERS for p in (HERE / folder).iterdir()} | {"expected.json"}
    assert there == set(wanted), "python tests/conformance/make.py"
    different = [name for name, data in wanted.items() if (HERE / name).read_bytes() != data]
    assert not different, f"{different}: python tests/conformance/make.py"


def test_the_suite_is_small_and_covers_every_kind() -> None:
    count = Counter((e["kind"], e["verdict"]) for e in EXPECTED)
    kinds = {kind for kind, _ in count}
    assert kinds == {
        "selection certificate",
        "plan",
        "joint plan",
        "rule library",
        "collective programs",
        "placements",
        "schedule",
        "pipelined step",
        "overlapped plan",
        "plan with submeshes",
        "several plans",
        "plans for a range of sizes",
        "extraction",
        "equality of programs",
    }
    for kind in kinds:
        assert all(count[kind, verdict] >= 3 for verdict in ("proved", "refuted", "malformed")), kind
    assert all(e["fault"] for e in EXPECTED if e["verdict"] != "proved"), "a file without a named fault"
    faults = Counter((e["kind"], e["fault"]) for e in EXPECTED if e["fault"])
    assert not [f for f, n in faults.items() if n > 2], "one fault again and again"
    assert sum((HERE / name).stat().st_size for e in EXPECTED for name in (e["file"], *e["with"])) < 14 << 17


@pytest.mark.parametrize(
    "entry", [e for e in EXPECTED if e["kind"] == "selection certificate"], ids=lambda e: e["file"]
)
def test_a_second_checker_agrees(entry: dict) -> None:
    """Written from docs/certificate-format.md alone."""
    verdict, why = independent_checker.check(*(Path(p).read_bytes() for p in paths(entry)))
    assert verdict == entry["verdict"], why


COLLECTIVE = [e for e in EXPECTED if e["kind"] in ("placements", "collective programs") and e["verdict"] != "malformed"]


@pytest.mark.parametrize("entry", COLLECTIVE, ids=lambda e: e["file"])
def test_a_second_checker_of_collective_programs_agrees(entry: dict) -> None:
    """It judges claims; of what is not well formed below the members it says nothing."""
    assert check_collective((HERE / entry["file"]).read_bytes()) == entry["verdict"]


SCHEDULES = [e for e in EXPECTED if e["kind"] == "schedule" and e["verdict"] != "malformed"]


@pytest.mark.parametrize("entry", SCHEDULES, ids=lambda e: e["file"])
def test_a_second_checker_of_schedules_agrees(entry: dict) -> None:
    assert second_schedule((HERE / entry["file"]).read_bytes()) == entry["verdict"]


EXTRACTIONS = [e for e in EXPECTED if e["kind"] == "extraction"]


@pytest.mark.parametrize("entry", EXTRACTIONS, ids=lambda e: e["file"])
def test_a_second_checker_of_extractions_agrees(entry: dict) -> None:
    verdict, why = second_extraction(*(Path(p).read_bytes() for p in paths(entry)))
    assert verdict == entry["verdict"], why


@pytest.mark.slow
def test_a_second_checker_agrees_on_changed_schedules() -> None:
    """Schedules of the search, and what somebody could have got wrong in them."""
    rnd, found = random.Random(5), Counter[str]()
    for seed in range(40):
        certificate = test_schedule_search.solved(test_schedule_search.small(seed))
        changed = test_schedule_search.mutants(certificate, rnd)
        for what, mutant in [("nothing", certificate), *(next(changed) for _ in range(10))]:
            verdict = check_schedule(mutant).verdict.value
            assert second_schedule(write_schedule(None, mutant)) == verdict, (seed, what)
            found[verdict] += 1
    assert found["proved"] >= 40 and found["refuted"] > 100


@pytest.mark.parametrize("preset", PRESETS)
@pytest.mark.parametrize(("machine", "sizes"), [("p2-a100", (2, 4)), ("p2-v100", (2, 8)), ("cloud-a100", (2, 4))])
def test_prices_of_collective_programs_follow_from_the_document(
    machine: str, sizes: tuple[int, int], preset: str
) -> None:
    """Counts and cheapest programs of the search, on machines with switches, copies and flow limits."""
    nodes, ranks = sizes
    spec = CostSpec(preset, load_machine(machine).resized(sizes), 1 << 20, Algorithm.TREE)
    for matrix, reduce in ((((nodes, 2), (1, ranks // 2)), (0,)), (((1, 2), (nodes, ranks // 2)), (1,))):
        parts = synthesize(ReductionRequest(sizes, matrix, reduce), spec.model()).parts(0)
        assert check_collective(write_reduction(None, ReductionCertificate((spec,), parts))) == "proved"


@pytest.mark.parametrize("path", sorted(Path(independent_checker.__file__).parent.glob("*.py")), ids=lambda p: p.name)
def test_the_second_checker_shares_nothing(path: Path) -> None:
    """The standard library and its own modules: nothing of shardproof, and no way around that."""
    tree = ast.parse(path.read_text(encoding="utf-8"))
    names = {a.name for n in ast.walk(tree) if isinstance(n, ast.Import) for a in n.names}
    for n in ast.walk(tree):
        if isinstance(n, ast.ImportFrom):
            assert n.level < 2, "an import from outside the folder"
            names |= {n.module or ""} if n.level == 0 else set()
    assert {name.split(".")[0] for name in names} <= set(sys.stdlib_module_names)
    assert not {"importlib", "runpy", "subprocess"} & names
    called = {n.func.id for n in ast.walk(tree) if isinstance(n, ast.Call) and isinstance(n.func, ast.Name)}
    assert not {"__import__", "exec", "eval"} & called


def test_the_second_checker_is_a_command(capsys: pytest.CaptureFixture[str]) -> None:
    entry = next(e for e in EXPECTED if e["file"] == "refuted/selection-wrong-cost.spz")
    assert main(paths(entry)) == 10
    assert capsys.readouterr().out == "refuted: the solution costs 12\n"


@pytest.mark.slow
def test_a_second_checker_agrees_on_forgeries() -> None:
    """Certificates of the search, and thousands changed at random: one verdict from both checkers."""
    found: Counter[str] = Counter()
    for seed in range(6000):
        _, problem, members, what = forgeries_selection.forge(seed)
        text = json.dumps(problem).encode()
        try:
            parsed = parse_problem(text)
            put(
                members, "certificate.json", {**head_of(members, "certificate.json"), "problem_sha256": parsed.sha256()}
            )
            verdict = check_selection(parsed, decode_certificate(members)).verdict.value
        except (ContainerError, ProblemError):
            verdict = "malformed"
        assert independent_checker.check(write_container(None, members), text)[0] == verdict, (seed, what)
        found[verdict] += 1
    assert min(found[v] for v in EXITS) > 100
