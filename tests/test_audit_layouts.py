"""Layouts of tensors in the words of DTensor, JAX and Shardy, and torchtitan's settings, audited as strategies."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

import shardproof
from shardproof.__main__ import run
from shardproof.formal.plans.layouts import TensorLayouts, read_layouts, resolve_layouts
from shardproof.formal.plans.strategy import StrategyError
from shardproof.models.communication.choices import copy_layout
from shardproof.models.cost.selection import Planning, build
from shardproof.models.layout.placement import space
from shardproof.models.layout.targets.degrees import Flags
from shardproof.models.machine.machine import load_machine
from shardproof.models.sources import zoo
from shardproof.models.sources.frameworks.flags import read_settings
from shardproof.models.sources.training import build_step
from shardproof.models.text import InputError


@pytest.fixture(scope="module")
def planning() -> Planning:
    graph = build_step(zoo.build("mlp-unity", batch=64), "sgd").graph
    return build(graph, load_machine("cloud-a100:2x4"), space("complete"))


MESH = {"dp": 2, "tp": 4}
SAME = (
    {"mesh": MESH, "placements": {"fc1.weight": ["Replicate()", "Shard(1)"], "x": "(Shard(dim=0), Replicate())"}},
    {"mesh": MESH, "specs": {"fc1.weight": [None, "tp"], "x": "P('dp')"}},
    {
        "mesh": 'sdy.mesh @m = <["dp"=2, "tp"=4]>',
        "shardings": {"fc1.weight": '<@m, [{}, {"tp"}]>', "x": '#sdy.sharding<@m, [{"dp"}, {}]>'},
    },
)


def given(data: object) -> TensorLayouts:
    found = read_layouts(json.dumps(data))
    assert found is not None
    return found


@pytest.mark.parametrize("data", SAME, ids=["dtensor", "jax", "shardy"])
def test_three_words_for_one_strategy(data: object, planning: Planning) -> None:
    wanted = resolve_layouts(given(SAME[0]), planning).allowed
    found = resolve_layouts(given(data), planning)
    assert found.allowed == wanted and len(wanted) == 2
    weight = planning.copies["fc1.weight"]
    (choice,) = found.allowed[weight]
    placement = planning.decisions[weight].placement(choice)
    boxes = copy_layout("fc1.weight", planning.graph, placement, (2, 4)).boxes
    columns = planning.graph.tensor("fc1.weight").shape[1] // 4
    assert [boxes[r, 1].tolist() for r in range(5)] == [[c * columns, (c + 1) * columns] for c in (0, 1, 2, 3, 0)]
    assert "tensor:fc1.weight" not in found.free and "relu1" in found.free


@pytest.mark.parametrize("data", SAME, ids=["dtensor", "jax", "shardy"])
def test_the_verb_and_the_function(data: object, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "s.json").write_text(json.dumps(data))
    words = [
        "audit",
        "mlp-unity",
        "--batch",
        "64",
        "--machine",
        "cloud-a100:2x4",
        "--strategy",
        str(tmp_path / "s.json"),
    ]
    code = run([*words, "--json"])
    told = json.loads(capsys.readouterr().out)
    report = shardproof.audit("mlp-unity", "cloud-a100:2x4", tmp_path / "s.json", batch=64)
    assert code == report.exit_code in (0, 10) and told["strategy_cost"] == report.completed.cost
    assert told["strategy_cost"] >= told["best_cost"] == told["lower_bound"]
    assert run([*words, "--propagate"]) == 3 and "where tensors lie" in capsys.readouterr().err


def test_what_a_plan_exports_is_audited_as_optimal(tmp_path: Path) -> None:
    """Where an optimal plan keeps its tensors, said in Shardy's words, has an optimal completion."""
    plan = shardproof.plan("mlp-unity", "cloud-a100:2x4", batch=64, train="sgd")
    text = plan.export("jax")
    names: dict[str, object] = {}
    exec(text[text.index("IDENTITY = ") : text.index("def make_mesh")], names)  # noqa: S102 data only, without JAX
    data = {"mesh": names["SHARDY_MESH"], "shardings": names["SHARDY"]}
    (tmp_path / "s.json").write_text(json.dumps(data))
    plan.graph  # noqa: B018
    (tmp_path / "g.json").write_text(plan.graph.to_json())
    report = shardproof.audit(str(tmp_path / "g.json"), "cloud-a100:2x4", tmp_path / "s.json")
    assert report.outcome.value == "optimal" and len(report.free) < len(report.problem.vertices) / 2


@pytest.mark.parametrize(
    ("data", "message"),
    [
        ({"mesh": {"a": 3}, "specs": {"x": []}}, "is not the machine's 2 x 4"),
        ({"mesh": [2, 4], "specs": {}}, "no table of sizes"),
        ({"mesh": MESH, "specs": []}, "is not an object"),
        ({"mesh": MESH, "specs": {}, "placements": {}}, "stands beside"),
        ({"mesh": MESH, "specs": {"fc9.weight": []}}, r"matches no tensor \(did you mean 'fc"),
        ({"mesh": MESH, "specs": {"fc*.weight": ["dp", "dp"]}}, "tensor 'fc1.weight': axis 'dp' cuts two"),
        ({"mesh": MESH, "placements": {"x": ["Partial(sum)", "Replicate()"]}}, "partial results lie nowhere"),
        ({"mesh": MESH, "placements": {"x": 3}}, "are no placements"),
        ({"mesh": MESH, "shardings": {"x": ["dp"]}}, "is no text of Shardy"),
        (
            {"mesh": MESH, "specs": {"x": [["tp", "dp"]]}},
            "no choice of 'tensor:x' in the space 'complete' leaves 'x' so",
        ),
        ({"mesh": "<[]>", "specs": {"x": []}}, "nothing devices"),
    ],
)
def test_what_does_not_fit_is_named(data: object, message: str, planning: Planning) -> None:
    with pytest.raises(StrategyError, match=message):
        resolve_layouts(given(data), planning)


@pytest.mark.parametrize(
    "text", ["", "{", "[]", "3", '{"mesh": {}}', '{"specs": {}}', "\x00", '{"a": {"b": {"c": 2}}}']
)
def test_other_files_are_left_to_others(text: str) -> None:
    assert read_layouts(text) is None


TITAN = """
[model]
name = "llama3"
[training]
local_batch_size = 2
global_batch_size = 64
[parallelism]
data_parallel_replicate_degree = 1
data_parallel_shard_degree = 8
tensor_parallel_degree = 8
"""


@pytest.mark.parametrize(
    ("text", "wanted"),
    [
        (
            TITAN,
            Flags("torchtitan", tp=8, sequence_parallel=True, zero=3, micro_batch=2, global_batch=64, dp=8),
        ),
        ("[parallelism]\nfsdp_reshard_after_forward = 'never'", Flags("torchtitan", zero=2)),
        ("[parallelism]\ndata_parallel_shard_degree = 1\n", Flags("torchtitan", zero=0, dp=1)),
        (
            "--training.steps 5 --parallelism.tensor_parallel_degree=2 --parallelism.context_parallel_degree 4",
            Flags("torchtitan", tp=2, cp=4, sequence_parallel=True, zero=3),
        ),
    ],
)
def test_torchtitan(text: str, wanted: Flags) -> None:
    settings = read_settings(text)
    assert settings is not None and settings.flags == wanted


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("[parallelism]\ntensor_parallel_degree = 0", "not a whole number from 1"),
        ("[parallelism]\ntensor_parallel_degree = -1", "not a whole number from 1"),
        ("[parallelism]\ntensor_parallel_degree = 'two'", "not a whole number"),
        ("[parallelism]\nx = [", "no TOML"),
        ("parallelism = 3\n[training]\n#\n[parallelism]\n", "no TOML"),
        ("training = 3\n[parallelism]", "not an object"),
        ("[parallelism]\nfsdp_reshard_after_forward = 'x'", "none of default"),
        ("[parallelism]\n[training]\nlocal_batch_size = 'x'", "not a whole number"),
        ("--parallelism.tensor_parallel_degree '", "cannot be split"),
        ("--parallelism.tensor_parallel_degree", "''"),
    ],
)
def test_wrong_settings_of_torchtitan(text: str, message: str) -> None:
    with pytest.raises(InputError, match=message):
        read_settings(text)
    with pytest.raises(InputError, match="8 data parallel copies of 8 devices are not 16"):
        read_settings(TITAN).flags.copies(16)  # type: ignore[union-attr]
