"""Proved reduction programs on ranks and in frameworks: every device ends with its sum, and a wrong program is told."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

from shardproof.__main__ import run
from shardproof.backends.execution.collective_programs import plain, run_virtual
from shardproof.backends.export.collective_programs import jax_table, program_text
from shardproof.backends.verbs import programs as verb
from shardproof.formal.collective_programs.graph import explore
from shardproof.front_door import FrontDoor
from shardproof.models.collective_programs.parallelism import Hierarchy, ReductionRequest, Request, UnevenRequest
from shardproof.models.collective_programs.programs import Program
from shardproof.models.text import InputError
from shardproof.proofs.collective_programs.certificate import Cheapest
from shardproof.proofs.collective_programs.chosen import Chosen, chosen_programs
from shardproof.proofs.collective_programs.file import write_reduction

SMALL: dict[str, Request] = {
    "two levels": ReductionRequest((2, 2), ((2, 2),), (0,)),
    "two levels, literally": ReductionRequest((2, 2), ((2, 2),), (0,), reading="literal"),
    "two copies": ReductionRequest((2, 4), ((2, 2), (1, 2)), (0,)),
    "two axes": ReductionRequest((2, 4), ((1, 2), (2, 1), (1, 2)), (0, 1)),
    "the whole machine": ReductionRequest((2, 2), ((2, 1), (1, 2)), (0,), synthesis=Hierarchy.SYSTEM),
    "unequal nodes": UnevenRequest((2, 1)),
}


def programs_of(request: Request, most: int = 60) -> list[Program]:
    every = list(explore(request.system()).programs())
    return every[:: max(1, len(every) // most)]


@pytest.mark.parametrize("name", SMALL)
def test_every_program_ends_with_the_sum_on_virtual_ranks(name: str) -> None:
    system = SMALL[name].system()
    every = programs_of(SMALL[name])
    *outcomes, single = run_virtual(every, system, beside=True)
    assert len(outcomes) == len(every) > 1
    assert all(o.correct and not o.wrong for o in outcomes) and single.correct
    longer = [p for p in every if len(p) > 1]
    assert longer
    for outcome in run_virtual([p[:-1] for p in longer], system):
        assert not outcome.correct and outcome.wrong


def test_one_all_reduce_is_over_those_that_want_a_sum() -> None:
    system = SMALL["the whole machine"].system()
    assert system.wanted and {m.group for steps in plain(system).values() for m in steps} == {(0, 2), (1, 3)}


@pytest.fixture
def file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Path:
    monkeypatch.chdir(tmp_path)
    assert run(["reduce", "--hierarchy", "2x2", "--axes", "4", "--reduce", "0", "--bytes", "64MB", "-o", "p.spz"]) == 0
    capsys.readouterr()
    return tmp_path / "p.spz"


def test_the_command_line_runs_a_file(file: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["run", str(file), "-n", "4", "--virtual", "--json", "--repeat", "3", "--bytes", "4KiB"]) == 0
    out = capsys.readouterr().out
    told = json.loads(out)
    (one,) = told["programs"]
    assert out.count("\n") == 1 and told["transport"] == "virtual" and told["repeats"] == 3
    assert one["equal"] and one["all_reduce_equal"] and one["wrong"] == [] and one["payload"] == 4096
    assert one["measured"]["program_s"] > 0 and one["measured"]["all_reduce_s"] > 0 and one["priced_s"] > 0
    assert "median of 3 repetitions after 2" in told["what_is_measured"]
    assert run(["run", str(file), "-n", "4", "--virtual", "--repeat", "0"]) == 0
    out = capsys.readouterr().out
    assert "every device has its sum (1 MiB of drawn integers each, exactly)" in out and "measured" not in out


def test_a_wrong_program_is_told_from_a_right_one(
    file: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """As if the checker had let it through."""

    def short(certificate: object) -> tuple[Chosen, ...]:
        return tuple(replace(o, program=o.program[:-1]) for o in chosen_programs(certificate))  # type: ignore[arg-type]

    monkeypatch.setattr(verb, "chosen_programs", short)
    assert run(["run", str(file), "-n", "4", "--virtual", "--json"]) == 10
    (one,) = json.loads(capsys.readouterr().out)["programs"]
    assert not one["equal"] and one["wrong"] == [0, 1, 2, 3] and one["all_reduce_equal"]
    assert run(["run", str(file), "-n", "4", "--virtual"]) == 10
    assert "wrong on devices 0, 1, 2, 3" in capsys.readouterr().out


def test_several_reductions_of_a_best_placement_all_run(file: Path, capsys: pytest.CaptureFixture[str]) -> None:
    line = ["place", "--hierarchy", "2x4", "--axes", "4,2", "--reduce", "0:1MB", "--reduce", "1:1kB*9", "-o", "b.spz"]
    assert run(line) == 0
    capsys.readouterr()
    assert run(["run", "b.spz", "-n", "8", "--virtual", "--json", "--repeat", "0"]) == 0
    told = json.loads(capsys.readouterr().out)["programs"]
    assert [one["over"] for one in told] == [[0], [1]] and all(one["equal"] for one in told)
    assert all(one["measured"] == {"program_s": None, "all_reduce_s": None} for one in told)


def test_what_cannot_be_run_or_written_is_refused(file: Path, capsys: pytest.CaptureFixture[str]) -> None:
    def refused(code: int, words: str, *line: str) -> None:
        assert run(list(line)) == code
        assert words in capsys.readouterr().err, words

    refused(3, "for 4 devices, -n asks for 3 ranks; run it with -n 4", "run", "p.spz", "-n", "3", "--virtual")
    refused(3, "is more than 4 GiB; at most", "run", "p.spz", "-n", "4", "--virtual", "--bytes", "8GiB")
    refused(2, "is not between 0 and 10000", "run", "p.spz", "-n", "4", "--virtual", "--repeat", "-1")
    refused(3, "and --dtype do not go together", "run", "p.spz", "-n", "4", "--virtual", "--dtype", "float32")
    refused(3, "and --to dtensor do not go together", "export", "p.spz", "--to", "dtensor", "-o", "x.py")
    refused(
        3, "and --layouts-only do not go together", "export", "p.spz", "--to", "jax", "--layouts-only", "-o", "x.py"
    )
    assert run(["reduce", "--nodes", "2,1", "-o", "u.spz"]) == 0
    refused(3, "jax has meshes of equal parts, and these blocks are not; use --to torch", "export", "u.spz", "--to", "jax", "-o", "x.py")  # fmt: skip
    assert run(["place", "--hierarchy", "2x2", "--axes", "4", "-o", "places.spz"]) == 0
    refused(3, "holds placements of axes, not a plan", "run", "places.spz", "-n", "4", "--virtual")
    certificate, _ = FrontDoor().programs(file)
    cheaper = tuple(
        replace(p, claim=replace(p.claim, cost=1)) if isinstance(p.claim, Cheapest) else p for p in certificate.parts
    )
    write_reduction(Path("forged.spz"), replace(certificate, parts=cheaper))
    for line in (
        ["run", "forged.spz", "-n", "4", "--virtual"],
        ["export", "forged.spz", "--to", "torch", "-o", "x.py"],
    ):
        refused(10, "is refuted", *line)
    data = bytearray(file.read_bytes())
    data[len(data) // 2] ^= 1
    Path("bad.spz").write_bytes(bytes(data))
    refused(3, "bad.spz", "run", "bad.spz", "-n", "4", "--virtual")


@pytest.mark.parametrize("name", SMALL)
def test_jax_says_whole_axes_of_a_mesh_and_refuses_the_rest_by_name(name: str) -> None:
    said = 0
    for program in programs_of(SMALL[name]):
        one = Chosen(SMALL[name], program)
        kinds = {i.collective.short for i in program}
        plainly = name != "unequal nodes" and not kinds & {"R", "B"} and all(i.form.value != "Master" for i in program)
        if plainly:
            *_, steps = jax_table(one)
            assert isinstance(steps, tuple) and len(steps) == len(program) and all(over for _, over, _ in steps)
            said += 1
        else:
            with pytest.raises(InputError, match="use --to torch"):
                jax_table(one)
    assert said > 1 or name == "unequal nodes"


def job(line: list[str], **more: str) -> str:
    """A program that knows nothing of ours."""
    clean = {k: v for k, v in os.environ.items() if k != "PYTHONPATH"}
    done = subprocess.run(
        line,
        env={**clean, **more},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        timeout=240,
        check=False,
    )
    return f"{done.returncode}\n{done.stdout}"


def text_of(request: Request, programs: list[Program], target: str, edit: Callable[[str], str] = str) -> str:
    """All programs in one file, under their numbers; `edit`: what is done to its code."""
    tables, code = [], ""
    for number, program in enumerate(programs):
        one = Chosen(request, program)
        code, _, table = program_text((one,), "0" * 64, target).partition("PROGRAMS: dict[str, Program] = ")
        tables.append(table.partition("\n\nif __name__")[0].replace(repr(f"over {one.over}"), repr(str(number)), 1))
    return f"{edit(code)}PROGRAMS = {' | '.join(tables)}\n\nmain(PROGRAMS)\n"


@pytest.mark.torch
@pytest.mark.timeout(300)
@pytest.mark.parametrize("name", ["two levels, literally", "unequal nodes", "the whole machine"])
def test_exported_torch_files_equal_the_sum_on_gloo_ranks(name: str, tmp_path: Path) -> None:
    request = SMALL[name]
    ranks = sum(map(len, request.system().members))
    path, every = tmp_path / "job.py", programs_of(request, 12)
    torchrun = [sys.executable, "-m", "torch.distributed.run", "--nproc-per-node", str(ranks), str(path)]
    path.write_text(text_of(request, every, "torch"))
    out = job(torchrun, OMP_NUM_THREADS="1")
    assert out.startswith("0\n") and out.count("equal to the sum") == ranks * len(every), out
    path.write_text(text_of(request, every[-1:], "torch", lambda t: t.replace("step(collective, data, *mine)", "pass")))
    out = job(torchrun, OMP_NUM_THREADS="1")
    assert not out.startswith("0\n") and "DIFFERENT" in out


@pytest.mark.torch
@pytest.mark.timeout(300)
@pytest.mark.parametrize("name", ["two levels", "two copies", "two axes", "the whole machine"])
def test_exported_jax_files_equal_the_sum_on_virtual_devices(name: str, tmp_path: Path) -> None:
    request = SMALL[name]
    devices = sum(map(len, request.system().members))
    every = []
    for program in programs_of(request, 30):
        try:
            jax_table(Chosen(request, program))
        except InputError:
            continue
        every.append(program)
    path = tmp_path / "job.py"
    flags = {"JAX_PLATFORMS": "cpu", "XLA_FLAGS": f"--xla_force_host_platform_device_count={devices}"}
    path.write_text(text_of(request, every, "jax"))
    out = job([sys.executable, str(path)], **flags)
    assert out.startswith("0\n") and out.count("equal to the sum") == len(every), out
    path.write_text(text_of(request, every, "jax", lambda t: t.replace("if order:", "if False:").replace("lax.psum(data, over)", "data")))  # fmt: skip
    out = job([sys.executable, str(path)], **flags)
    assert out.startswith("1\n") and "DIFFERENT" in out


@pytest.mark.mpi
@pytest.mark.timeout(120)
def test_a_file_runs_on_mpi_ranks(file: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["run", str(file), "-n", "4", "--json", "--repeat", "2", "--bytes", "4KiB"]) == 0
    told = json.loads(capsys.readouterr().out)
    assert (
        told["transport"] == "mpi" and told["programs"][0]["equal"] and told["programs"][0]["measured"]["program_s"] > 0
    )
    certificate, _ = FrontDoor().programs(file)
    assert chosen_programs(certificate)[0].words == told["programs"][0]["words"]
