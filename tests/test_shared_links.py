"""Shared and oversubscribed links in plans: what they leave is the rate of a level; what no rate says stays unpriced."""

from __future__ import annotations

import json
from dataclasses import replace
from fractions import Fraction
from math import prod
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

import shardproof
from shardproof.__main__ import run
from shardproof.models.layout.targets.degrees import Flags
from shardproof.models.machine.machine import Machine, Resource, load_machine
from shardproof.models.machine.parts import MachineError
from shardproof.models.machine.shared_links import planned_machine, with_shared_links
from shardproof.models.machine.topology import of_machine
from shardproof.models.text import InputError

TEXT = """
name = "leaf-and-spine"
[[level]]
name = "nodes"
size = 4
bandwidth = "40 GB/s"
latency = "10 us"
[[level]]
name = "gpus"
size = 2
bandwidth = "200 GB/s"
latency = "3 us"
[[device_class]]
name = "g"
memory = "16 GiB"
bandwidth = "1 TB/s"
launch = "5 us"
peaks = { float32 = "20 Tflop/s" }
"""
SPINE = """
[[resource]]
name = "uplink"
devices = 4
capacity = "20 GB/s"
traffic = ["nodes"]
"""


MODEL = "mlp-unity:batch=65536"


def sources(*more: str) -> str:
    known = ["level.nodes.bandwidth", "level.nodes.latency", "level.gpus.bandwidth", "level.gpus.latency"]
    device = [f"device_class.g.{x}" for x in ("memory", "bandwidth", "launch", "peaks.float32")]
    return "[sources]\n" + "".join(f'"{x}" = "assumption: made up"\n' for x in (*known, *device, *more))


def written(folder: Path, *resources: str, bandwidth: str = "40 GB/s") -> Path:
    names = [line.split('"')[1] for r in resources for line in r.splitlines() if line.startswith("name")]
    path = folder / f"machine{len(resources)}-{bandwidth.split()[0]}.toml"
    body = TEXT.replace("40 GB/s", bandwidth) + "".join(resources)
    path.write_text(body + sources(*(f"resource.{n}.capacity" for n in names)), encoding="utf-8")
    return path


def test_a_plan_on_shared_uplinks_is_one_on_slower_links(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Two nodes share 20 GB/s: each link has 10 when both send; the file's machine says so, and the checker reads it."""
    costs = []
    for path in (written(tmp_path, SPINE), written(tmp_path, bandwidth="10 GB/s"), written(tmp_path)):
        out = tmp_path / f"{path.stem}.spz"
        line = ["plan", MODEL, "--machine", str(path), "--train", "sgd", "--space", "two-per-level"]
        assert run([*line, "-o", str(out), "--json"]) == 0
        found = json.loads(capsys.readouterr().out)
        assert "unpriced-resources(uplink)" not in found["assumptions"]
        noted = [n for n in found.get("notes", []) if "level nodes is priced at 10 GB/s a link" in n]
        assert bool(noted) is (path.stem == "machine1-40")
        assert run(["check", str(out)]) == 0
        assert "proved in" in capsys.readouterr().out
        costs.append(found["cost"])
        planned = shardproof.plan(MODEL, str(path), train="sgd", space_name="two-per-level")
        assert round(planned.cost_s * 10**12) == found["cost"]
    assert costs[0] == costs[1] > costs[2]


RATES = st.integers(1, 400).map(lambda n: Fraction(n) * 10**9)


@given(RATES, RATES, st.sampled_from([("nodes", 8), ("nodes", 16), ("gpus", 8), ("gpus", 16), ("gpus", 1)]))
def test_no_link_and_no_shared_link_is_faster_than_what_is_priced(
    bandwidth: Fraction, capacity: Fraction, what: tuple[str, int]
) -> None:
    """Every link of the level sends a byte: what is priced is what the busiest of links and resources takes."""
    level, devices = what
    box = load_machine("cloud-a100:4x8")
    levels = tuple(replace(x, bandwidth=bandwidth if x.name == level else x.bandwidth) for x in box.levels)
    machine = replace(box, levels=levels, resources=(Resource("r", devices, capacity, (level,)),))
    j = [x.name for x in box.levels].index(level)
    priced, notes = with_shared_links(machine)
    links = of_machine(machine)
    each = [1 / rate for rate in links.levels[j].rates]
    through = devices // prod(box.hierarchy[j + 1 :])
    each += [through / rate for bus in links.buses for rate in bus.rates]
    assert not links.switches and 1 / priced.levels[j].bandwidth == max(each)
    assert bool(notes) is (max(each) > 1 / bandwidth) and priced.resources == ()
    assert with_shared_links(priced) == (priced, ())
    assert priced.resized((2, 8)).devices == 16, "sizes of what is left are free"


def test_one_slow_link_is_everybodys() -> None:
    box = load_machine("cloud-a100:4x8")
    slow = replace(box, resources=(Resource("old-nic", 8, Fraction(10**9), ("nodes",), (2,)),))
    assert planned_machine(slow).levels[0].bandwidth == 10**9


def test_what_no_rate_says_stays_in_the_machine_and_is_stated() -> None:
    ring = load_machine("p2-v100:1x2")
    assert with_shared_links(ring) == (ring, ())
    assert with_shared_links(load_machine("p2-v100")) == (load_machine("p2-v100"), ())
    measured = load_machine("dgx-a100:2x8")
    shared = Resource("r", 8, Fraction(10**9), ("gpus",))
    kept = replace(measured, resources=(shared,))
    assert with_shared_links(kept) == (kept, ())
    nodes, notes = with_shared_links(
        replace(measured, resources=(replace(shared, traffic=("nodes", "gpus"), devices=16),))
    )
    assert nodes.levels[0].bandwidth == 5 * 10**8 and nodes.resources and len(notes) == 1
    cut = replace(load_machine("cloud-a100:4x8"), resources=(Resource("r", 4, Fraction(1), ("nodes",)),))
    with pytest.raises(MachineError, match="cut through the links of nodes"):
        planned_machine(cut)


def test_bars_and_sources_follow_the_constant_that_counts() -> None:
    box: Machine = replace(
        load_machine("cloud-a100:4x8"),
        resources=(Resource("r", 16, Fraction(10**9), ("nodes",)),),
        bars=(("level.nodes.bandwidth", Fraction(1, 10)), ("resource.r.capacity", Fraction(1, 2))),
    )
    box = replace(box, sources=tuple(sorted((*box.sources, ("resource.r.capacity", "a data sheet")))))
    found, _ = with_shared_links(box)
    assert found.bars == (("level.nodes.bandwidth", Fraction(1, 2)),)
    said = dict(found.sources)
    assert said["level.nodes.bandwidth"].endswith("shared by 2 links: a data sheet")
    assert "resource.r.capacity" not in said and Machine.from_json(found.to_json()) == found


def test_degrees_that_leave_devices_idle_name_the_machine_to_ask_about(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    strategy = tmp_path / "three.json"
    strategy.write_text('{"fc*": {"b": {"ranks": 3}}}', encoding="utf-8")
    line = ["audit", "mlp-unity:batch=66", "--strategy", str(strategy), "--machine"]
    assert run([*line, "localhost:8"]) == 3
    said = capsys.readouterr().err
    assert "a machine that leaves 2 devices idle: --machine localhost:6" in said
    assert run([*line, "localhost:6"]) in (0, 10), "the machine that is named is one that fits"
    assert run([*line, "localhost:2"]) == 3
    assert "--machine localhost:3" in capsys.readouterr().err
    with pytest.raises(InputError, match="6 of them would do"):
        Flags("Megatron", tp=3).copies(8)
    with pytest.raises(InputError, match="a machine of 3 devices or a multiple"):
        Flags("Megatron", tp=3).copies(2)
