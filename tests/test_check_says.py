"""What `check` says a plan is about, and the comparison with the reader's own model and machine: no field can
differ unnoticed.
"""

from __future__ import annotations

import json
import subprocess
import sys
from dataclasses import replace
from fractions import Fraction
from pathlib import Path

import pytest

from shardproof.__main__ import run
from shardproof.formal.plans.plan import plan_graph
from shardproof.models.machine.difference import builtin_notice, differences, first_difference
from shardproof.models.machine.machine import DeviceClass, Machine, Profile, builtin_names, load_machine
from shardproof.models.machine.text import to_toml
from shardproof.models.program.graph import Graph
from shardproof.models.sources.building.builder import Builder
from shardproof.models.sources.training import build_step
from shardproof.models.sources.zoo import build as zoo
from shardproof.proofs.plan.bundle import write_plan
from shardproof.verify.plan.own import wrong_machine, wrong_model

from .every_field import changed


def planned(path: Path, machine: Machine, graph: Graph | None = None) -> str:
    plan = plan_graph(zoo("mlp-unity") if graph is None else graph, machine).plan
    assert plan is not None
    write_plan(path, plan)
    return str(path)


def faster(machine: Machine) -> Machine:
    return replace(machine, levels=(*machine.levels[:-1], replace(machine.levels[-1], bandwidth=Fraction(10**40))))


def full_machine() -> Machine:
    """A machine with everything that a machine can have."""
    m = load_machine("p2-v100:2x4")
    other = DeviceClass("slow", m.device.peaks, m.device.memory // 2, m.device.bandwidth / 2, Fraction(1, 10**6), (1,))
    shared = tuple(replace(r, only=(0, 1)) for r in m.resources)
    bars = (("level.gpus.bandwidth", Fraction(1, 10)), ("level.nodes.bandwidth", Fraction(1, 5)))
    profiles = (Profile("relu", "float32", (4, 8), Fraction(1, 10**6)),)
    return replace(m, others=(other,), resources=shared, profiles=profiles, bars=bars)


@pytest.fixture(scope="module")
def plan_file(tmp_path_factory: pytest.TempPathFactory) -> str:
    return planned(tmp_path_factory.mktemp("says") / "plan.spz", load_machine("cloud-a100:1x2"))


def test_check_says_what_a_plan_is_about(plan_file: str, capsys: pytest.CaptureFixture[str]) -> None:
    graph, machine = zoo("mlp-unity"), load_machine("cloud-a100:1x2")
    assert run(["check", plan_file]) == 0
    text = capsys.readouterr().out
    assert f"model mlp-unity: 3 operators, sha256 {graph.sha256()}" in text
    assert f"machine cloud-a100 1x2: sha256 {machine.sha256()}" in text
    assert (
        "memory limit none; space complete; assumptions: " in text and "no-memory-limit" in text and "note:" not in text
    )
    assert run(["check", plan_file, "--json"]) == 0
    (about,) = json.loads(capsys.readouterr().out)["plans"]
    assert (
        about["model"]["sha256"] == graph.sha256()
        and about["machine"]["sha256"] == machine.sha256()
        and "constants" not in about["machine"]
    )
    assert about["memory_limit"] is None and about["space"] == "complete" and "no-memory-limit" in about["assumptions"]


def test_constants_on_demand(plan_file: str, capsys: pytest.CaptureFixture[str]) -> None:
    machine = load_machine("cloud-a100:1x2")
    assert run(["check", plan_file, "--show-machine"]) == 0
    text = capsys.readouterr().out
    assert all(constant in text for constant, _ in machine.sources) and "270 GB/s" in text
    assert run(["check", plan_file, "--show-machine", "--json"]) == 0
    (about,) = json.loads(capsys.readouterr().out)["plans"]
    assert about["machine"]["constants"] == json.loads(machine.to_json())


@pytest.mark.parametrize("verb", ["check", "explain"])
def test_a_built_in_name_with_other_constants_is_said(
    verb: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = planned(tmp_path / "forged.spz", faster(load_machine("cloud-a100:1x2")))
    words = (
        "named cloud-a100, but 1 constant differs from the built-in machine: level.gpus.bandwidth 1e+40 instead of "
        "2.7e+11"
    )
    assert run([verb, path]) == 0
    assert words in capsys.readouterr().out
    assert run([verb, path, "--json"]) == 0
    document = json.loads(capsys.readouterr().out)
    assert words == (document["plans"][0]["machine"]["notice"] if verb == "check" else document["machine_notice"])


def test_own_model_and_machine(plan_file: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    graph = tmp_path / "graph.json"
    graph.write_text(zoo("mlp-unity").to_json(), encoding="utf-8")
    toml = tmp_path / "own.toml"
    toml.write_text(to_toml(load_machine("cloud-a100:1x2")), encoding="utf-8")
    for arguments in (
        ["--model", "mlp-unity", "--machine", "cloud-a100:1x2"],
        ["--model", str(graph)],
        ["--machine", str(toml)],
    ):
        assert run(["check", plan_file, *arguments]) == 0, capsys.readouterr()
        assert "proved" in capsys.readouterr().out
    for arguments, kind, words in (
        (["--model", "mlp-unity", "--batch", "8"], "Model", "operator 'fc1', axes"),
        (["--model", "linear-training"], "Model", "name"),
        (["--model", "mlp-unity", "--train", "sgd"], "Model", "name"),
        (["--machine", "cloud-a100:1x4"], "Machine", "sizes '1x2' instead of '1x4'"),
        (["--machine", "p2-a100:1x2"], "Machine", "device_class.a100.memory 8.58993e+10 instead of 4.29497e+10"),
    ):
        assert run(["check", plan_file, *arguments, "--json"]) == 10
        claims = {c["kind"]: c for c in json.loads(capsys.readouterr().out)["claims"]}
        assert claims[kind]["verdict"] == "refuted" and words in claims[kind]["reason"]
        assert claims["Parts"]["verdict"] == "proved"  # the plan is what it says; it is not what the reader means


def test_a_training_plan_is_compared_with_its_training_graph(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = planned(
        tmp_path / "train.spz", load_machine("localhost:2"), build_step(zoo("mlp-unity", batch=4), "sgd", None).graph
    )
    own = ["--model", "mlp-unity", "--batch", "4"]
    assert run(["check", path, *own, "--train", "sgd"]) == 0
    assert run(["check", path, *own, "--train", "adam"]) == 10
    assert run(["check", path, *own]) == 10
    assert "Model        refuted" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("arguments", "code"),
    [
        (["--train", "sgd"], 2),
        (["--batch", "4"], 2),
        (["--model", "mlp-unity", "--train", "sgdd"], 2),
        (["--model", "mlp-unity", "--train", "sgd", "--recompute", "auto"], 2),
        (["--model", "no-such"], 3),
        (["--machine", "no-such"], 3),
    ],
)
def test_what_cannot_be_compared(
    plan_file: str, arguments: list[str], code: int, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(["check", plan_file, *arguments]) == code
    assert "proved" not in capsys.readouterr().out


def test_only_plans_can_be_compared(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = str(tmp_path / "placements.spz")
    assert run(["place", "--hierarchy", "2x2", "--axes", "2,2", "-o", path]) == 0
    assert run(["check", path, "--machine", "cloud-a100:2x2"]) == 3
    assert "holds no model, which --machine is about" in capsys.readouterr().err


def test_no_frontend_is_loaded_without_a_model(plan_file: str) -> None:
    program = (
        "import sys; from shardproof.__main__ import run; code = run(['check', sys.argv[1], '--machine', "
        "'cloud-a100:1x2']);"
        "print([m for m in sys.modules if m.startswith(('shardproof.models.sources.load', "
        "'shardproof.models.sources.training', 'shardproof.formal'))]); sys.exit(code)"
    )
    done = subprocess.run([sys.executable, "-c", program, plan_file], stdout=subprocess.PIPE, text=True, check=True)
    assert done.stdout.splitlines()[-1] == "[]"


ALIKE = {"dgx-a100-40", "dgx-h100"}
"""Machines with the fields of another one, dgx-a100 and dgx-h200, and other numbers."""


@pytest.mark.parametrize("name", [pytest.param(n, marks=[pytest.mark.slow] * (n in ALIKE)) for n in builtin_names()])
def test_every_constant_of_a_built_in_machine(name: str) -> None:
    machine, count = load_machine(name), 0
    assert builtin_notice(machine) == ""
    for place, other in changed(machine):
        assert wrong_machine(machine, other) and wrong_machine(other, machine), place
        if place.startswith((".name", ".sources")) or place.endswith(".size"):
            continue
        assert f"named {name}, but" in builtin_notice(other), place
        count += 1
    assert count > 10


def test_every_constant_of_a_machine_with_everything() -> None:
    machine, places = full_machine(), []
    for place, other in changed(machine):
        assert wrong_machine(machine, other), place
        assert first_difference(machine, other) not in ("", "their order of constants") or "sources" in place, place
        if not (place.startswith((".name", ".sources")) or place.endswith(".size")):
            assert differences(machine, other), place
            places.append(place)
    for part in ("levels", "device.", "others", "resources", "reduction", "profiles", "bars"):
        assert any(place.startswith(f".{part}") for place in places), part


def test_two_levels_exchanged_are_noticed() -> None:
    machine = load_machine("cloud-a100:4x8")
    assert differences(replace(machine, levels=machine.levels[::-1]), machine)


def small_network() -> Graph:
    g = Builder("small")
    x, w = g.input("x", (2, 3, 8, 8)), g.parameter("w", (4, 3, 3, 3))
    y = g.convolution("conv", x, w, pad=(1, 1))
    return g.build(g.map("scaled", "scale", g.map("relu", "relu", y), scale=0.5))


@pytest.mark.parametrize(
    "graph", [small_network(), build_step(zoo("mlp-unity", batch=4), "sgd", None).graph], ids=["network", "training"]
)
def test_every_field_of_a_graph(graph: Graph) -> None:
    count = 0
    assert wrong_model(graph, graph) == ""
    for place, other in changed(graph):
        assert wrong_model(graph, other) not in ("", "the canonical texts differ"), place
        count += 1
    assert count > 100


def test_a_model_beside_its_training_step_is_told_what_to_say() -> None:
    graph = zoo("mlp-unity", batch=16)
    step = build_step(graph, "sgd").graph
    assert wrong_model(step, graph).endswith("say --train, and --precision and the others, as they were for 'plan'")
    assert wrong_model(graph, step).endswith("leave out --train")
    assert "--train" not in wrong_model(step, build_step(graph, "adam").graph)
