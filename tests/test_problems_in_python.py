"""The Python way in to problems: the answers of the command line, with certificates that `check` takes."""

from __future__ import annotations

import json
from fractions import Fraction
from itertools import product
from pathlib import Path

import pytest

import shardproof
from shardproof.__main__ import run
from shardproof.front_door import FrontDoor
from shardproof.models.collective_programs.parallelism import (
    Order,
    PlacementProblem,
    ReductionRequest,
    reduction_groups,
)
from shardproof.models.text import InputError
from shardproof.proofs.collective_programs.chosen import chosen_programs
from shardproof.proofs.collective_programs.file import read_reduction
from shardproof.proofs.export.device_mesh import Nested, device_order

PROBLEMS = Path(__file__).parent / "conformance" / "problems"


def told(capsys: pytest.CaptureFixture[str], *line: str) -> dict[str, object]:
    assert run([*line, "--json"]) in (0, 10, 20)
    found: dict[str, object] = json.loads(capsys.readouterr().out.splitlines()[-1])
    return found


def test_place_says_what_the_command_line_says(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    found = shardproof.place((2, 4), (2, 4), ["0:1MB", "1:1kB*9"], engine="smt", order="aligned")
    line = ["--hierarchy", "2x4", "--axes", "2,4", "--reduce", "0:1MB", "--reduce", "1:1kB*9", "--order", "aligned"]
    said = told(capsys, "place", *line, "--engine", "smt")
    assert [[list(row) for row in m] for m in found.matrices] == said["matrices"] and found.best == said["best"]
    assert found.cost_s == found.lower_bound_s == Fraction(str(said["cost"])) / Fraction(str(said["scale"]))
    assert found.engine == said["engine"] and len(found.programs) == 2
    assert (found.programs[0].cost or 0) + 9 * (found.programs[1].cost or 0) == said["cost"]
    assert all(p.request.matrix == found.matrix for p in found.programs if isinstance(p.request, ReductionRequest))
    found.save(tmp_path / "p.spz")
    assert run(["check", str(tmp_path / "p.spz")]) == 0
    alone = shardproof.place("2x4", "2,4")
    assert alone.best is None and alone.cost_s is None and alone.verdict.value == "proved"
    with pytest.raises(InputError, match="depends on what is reduced"):
        _ = alone.devices
    assert shardproof.place("2x2", "4").devices == [0, 1, 2, 3]


def test_reduce_says_what_the_command_line_says(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    found = shardproof.reduce("2x4", "4,2", "0", payload="64MB", engine="ilp")
    line = ["--hierarchy", "2x4", "--axes", "4,2", "--reduce", "0", "--bytes", "64MB", "--engine", "ilp"]
    said = told(capsys, "reduce", *line)
    assert (found.count, found.words) == (said["programs"], said["words"]) and found.engine == said["engine"]
    assert found.cost_s * 10**12 == said["cost"] and found.matrix == tuple(map(tuple, said["matrix"]))  # type: ignore[arg-type, call-overload]
    assert found.run().equal and found.run(payload=1).equal
    compile(found.export("torch"), "x.py", "exec")
    compile(found.export("jax"), "x.py", "exec")
    found.save(tmp_path / "p.spz")
    (kept,) = chosen_programs(FrontDoor().programs(tmp_path / "p.spz")[0])
    assert kept == found.chosen
    assert run(["run", str(tmp_path / "p.spz"), "-n", "8", "--virtual", "--repeat", "0"]) == 0
    ordered = shardproof.reduce("2x4", "2,4", "0,1")
    (kept,) = chosen_programs(read_reduction(ordered.data))  # type: ignore[arg-type]
    assert kept == ordered.chosen and isinstance(kept.request, ReductionRequest)
    assert kept.request.order is Order.ALIGNED  # cheaper than row by row
    uneven = shardproof.reduce(nodes=(2, 1))
    assert uneven.matrix is None and uneven.run().equal
    only = shardproof.reduce("2x4", "4,2", "0", matrix="[[1 4] [2 1]]")
    assert only.matrix == ((1, 4), (2, 1))


@pytest.mark.parametrize(("engine", "alone"), [("native", False), ("ilp", False), ("smt", True)])
def test_solve_says_what_the_command_line_says(
    engine: str, alone: bool, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    for name in ("limited.json", "tight.json"):
        file = PROBLEMS / name
        found = shardproof.solve(file, engine=engine, alone=alone)  # type: ignore[arg-type]
        said = told(capsys, "solve", str(file), "--engine", engine, *(["--alone"] if alone else []))
        assert (found.status, found.cost, found.lower_bound) == (said["status"], said["cost"], said["lower_bound"])
        assert (None if found.choices is None else list(found.choices)) == said.get("solution")
        if alone:
            assert isinstance(found.engine, dict) and isinstance(said["engine"], dict)
            assert found.engine["asked"] == said["engine"]["asked"] and found.engine["proof"] == said["engine"]["proof"]
        found.save(tmp_path / "c.spz")
        assert run(["check", str(tmp_path / "c.spz"), str(file)]) == 0


def test_schedule_says_what_the_command_line_says(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    line = ["--stages", "2", "--micro-batches", "2", "--times", "1,1,1", "--memory", "2"]
    for kind in ("best", "1f1b"):
        found = shardproof.schedule(stages=2, micro_batches=2, times="1,1,1", memory=2, kind=kind)
        said = told(capsys, "schedule", *line, "--kind", kind)
        assert (found.status, found.makespan, found.lower_bound) == (
            said["status"],
            said["makespan"],
            said["lower_bound"],
        )
        assert (found.better is None) == ("better" not in said) and len(found.names) == len(found.starts) == 12
        found.save(tmp_path / "s.spz")
        assert run(["check", str(tmp_path / "s.spz")]) == 0
    asked = shardproof.schedule(stages=2, micro_batches=2, times="1,1,1", memory=2, engine="smt")
    assert isinstance(asked.engine, dict) and asked.engine["engine"] == "smt" and asked.status == "optimal"


REFUSED = {
    "machine needs reductions": lambda: shardproof.place("2x4", "2,4", machine="p2-a100"),
    "axes is missing": lambda: shardproof.reduce("2x4"),
    "nodes and hierarchy do not go together": lambda: shardproof.reduce("2x4", nodes="2,1"),
    "engine 'cp-sat': choose one of native, ilp, smt": lambda: shardproof.place("2x4", "2,4", engine="cp-sat"),  # type: ignore[arg-type]
    "reading 'x': choose one of": lambda: shardproof.reduce("2x4", "2,4", "0", reading="x"),
    "no program of any length does this": lambda: shardproof.reduce("4", "2,2", "0", synthesis="a"),
    "at least 1 byte": lambda: shardproof.reduce("2x2", "4", "0", payload=0),
    "choose one of torch, jax": lambda: shardproof.reduce("2x2", "4", "0").export("dtensor"),
    "choose one of devicemesh, jax": lambda: shardproof.place("2x2", "4").mesh("torch"),
    "alone needs engine": lambda: shardproof.solve(PROBLEMS / "chain.json", alone=True),
    "is an e-graph; write shardproof solve": lambda: shardproof.solve(PROBLEMS / "egraph.json"),
    "give all three": lambda: shardproof.schedule(stages=2),
    "a GRAPH and stages do not go together": lambda: shardproof.schedule("g.json", stages=2),
    "machine needs a GRAPH": lambda: shardproof.schedule(stages=2, micro_batches=2, times="1,1,1", machine="dgx-a100"),
    "keeps more activations on a stage": lambda: shardproof.schedule(stages=2, micro_batches=4, times="1,1,1", memory=2, kind="gpipe"),
}  # fmt: skip


@pytest.mark.parametrize("words", REFUSED)
def test_what_cannot_be_asked_is_refused(words: str) -> None:
    with pytest.raises(InputError, match=words):
        REFUSED[words]()


def flat(nested: Nested, at: tuple[int, ...]) -> int:
    for i in at:
        assert isinstance(nested, list)
        nested = nested[i]
    assert isinstance(nested, int)
    return nested


def test_lines_of_a_mesh_are_the_reduction_groups_of_its_axes() -> None:
    for hierarchy, axes in (((2, 4), (2, 4)), ((2, 2, 3), (3, 2, 2)), ((4, 4), (2, 4, 2))):
        for matrix in shardproof.place(hierarchy, axes).matrices:
            assert PlacementProblem(hierarchy, axes).require(matrix)
            order = device_order(matrix)
            for k in range(len(axes)):
                others = [range(size) if i != k else (0,) for i, size in enumerate(axes)]
                lines = {
                    tuple(flat(order, (*at[:k], i, *at[k + 1 :])) for i in range(axes[k])) for at in product(*others)
                }
                assert lines == (set(reduction_groups(matrix, (k,))))


@pytest.mark.torch
def test_meshes_are_those_of_the_frameworks(tmp_path: Path) -> None:
    """PyTorch's own groups are the reduction groups, in the process of rank 5 of 8."""
    import torch.distributed as dist
    from torch.testing._internal.distributed.fake_pg import FakeStore

    found = shardproof.place("2x4", "2,4", "0:1MB")
    room: dict[str, object] = {}
    exec(compile(found.mesh("devicemesh"), "mesh.py", "exec"), room)  # noqa: S102  what we have just written
    dist.init_process_group("fake", rank=5, world_size=8, store=FakeStore())
    try:
        mesh = room["make_mesh"]("cpu")  # type: ignore[operator]
        assert mesh.mesh.tolist() == found.devices
        for k in range(2):
            (group,) = [g for g in reduction_groups(found.matrix, (k,)) if 5 in g]
            assert tuple(dist.get_process_group_ranks(mesh.get_group(f"axis{k}"))) == group
    finally:
        dist.destroy_process_group()


def test_the_mesh_file_of_the_command_line(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file, line = tmp_path / "m.py", ["place", "--hierarchy", "2x4", "--axes", "2,4"]
    for target in ("devicemesh", "jax"):
        assert run([*line, "--reduce", "0:1MB", "--to", target, "--mesh", str(file), "--force"]) == 0
        assert file.read_text() == shardproof.place("2x4", "2,4", "0:1MB").mesh(target)
        assert (
            "DEVICES = [[0, 1, 4, 5], [2, 3, 6, 7]]" in file.read_text() and f"wrote {file}" in capsys.readouterr().out
        )
    for more, words in (
        (["--reduce", "0:1MB", "--to", "jax"], "--to needs --mesh"),
        (["--reduce", "0:1MB", "--mesh", "x.py"], "--mesh needs --to"),
        (["--to", "jax", "--mesh", "x.py"], "--mesh needs --reduce"),
    ):
        assert run([*line, *more]) == 2
        assert words in capsys.readouterr().err
