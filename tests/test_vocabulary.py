"""Spaces restricted to what DTensor or JAX can say: builder and checker draw one line, claims name it, prices follow."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from budgets import work
from click.testing import CliRunner

from shardproof.__main__ import cli, run
from shardproof.backends.export.dtensor import export_dtensor
from shardproof.backends.export.jax import export_jax
from shardproof.formal.plans.plan import plan_graph
from shardproof.formal.plans.vocabulary import plan_within
from shardproof.front_door import FrontDoor
from shardproof.models.cost.selection import build
from shardproof.models.cost.vocabulary import window_axes
from shardproof.models.layout.placement import SpaceError, space
from shardproof.models.layout.targets.axes import foreign_mesh
from shardproof.models.layout.targets.shardy import parts_of, read_mesh, read_sharding
from shardproof.models.machine.machine import Machine, load_machine
from shardproof.models.problem.claims import Optimal, Verdict
from shardproof.models.problem.selection_problem import FORBIDDEN
from shardproof.models.program.graph import Graph
from shardproof.models.sources.building.builder import Builder
from shardproof.models.sources.training import build_step
from shardproof.models.sources.zoo import build as zoo
from shardproof.proofs.plan.bundle import Plan, write_plan
from shardproof.verify.plan.plan import check_plan
from shardproof.verify.plan.vocabulary import restrict


def heads() -> Graph:
    """A matrix whose columns are three parts of four heads, as in a fused projection: 3 x 4 x 8 = 96."""
    g = Builder("heads")
    x = g.input("x", (8, 16))
    w = g.parameter("w", (16, 3, 4, 8), source_shape=(16, 96))
    return g.build(g.contract("y", "b m, m p h e -> b p h e", x, w))


def swapped() -> Graph:
    """A matrix with rows of two digits of which the second is ordered before the first among the axes."""
    g = Builder("swapped")
    w = g.parameter("w", (2, 8, 8), source_shape=(16, 8))
    y = g.contract("y", "b k, i j k -> b j i", g.input("x", (4, 8)), w)
    return g.build(y)


def patches() -> Graph:
    """A grouped convolution whose windows do not overlap: cut through windows or groups, every block is an equal one."""
    g = Builder("patches")
    x, w = g.input("x", (4, 4, 3, 16, 16)), g.parameter("w", (4, 8, 3, 4, 4))
    return g.build(g.convolution("y", x, w, stride=(4, 4)))


def twisted() -> Graph:
    """A matrix stored in a shape whose dimensions are no runs of its digits: it is said whole only."""
    g = Builder("twisted")
    w = g.parameter("w", (4, 6), source_shape=(8, 3))
    return g.build(g.contract("y", "b k, k n -> b n", g.input("x", (4, 4)), w))


GRAPHS = {
    "mlp": lambda: build_step(zoo("mlp-unity"), "adam").graph,
    "bert": lambda: build_step(zoo("bert-tiny"), "sgd").graph,
    "convolutions": lambda: build_step(zoo("conv-stack"), "sgd").graph,
    "heads": heads,
    "swapped": swapped,
    "patches": patches,
    "twisted": twisted,
}
MACHINES = ["localhost:4", "localhost:6", "localhost:12", "cloud-a100:2x4"]


def machine_of(name: str) -> Machine:
    return load_machine(name)


@pytest.mark.parametrize("target", ["dtensor", "jax"])
@pytest.mark.parametrize("machine", MACHINES)
@pytest.mark.parametrize("name", GRAPHS)
def test_builder_and_checker_draw_one_line(name: str, machine: str, target: str) -> None:
    """The builder from factored layouts, the checker from boxes, mesh dimension after mesh dimension."""
    if name == "bert" and machine == "localhost:12":
        pytest.skip("four seconds, and nothing that the others do not have")
    graph, target_machine, where = GRAPHS[name](), machine_of(machine), space(f"complete,{target}")
    ours = build(graph, target_machine, where).problem
    theirs = restrict(build(graph, target_machine, where.without_vocabulary), where, None).problem
    for v, (a, b) in enumerate(zip(ours.vertices, theirs.vertices, strict=True)):
        assert np.array_equal(a.cost, b.cost), (v, a.name)
    assert ours.sha256() == theirs.sha256()
    assert all((v.cost < FORBIDDEN).any() for v in ours.vertices), "one device's copy is always said"


def test_what_is_forbidden() -> None:
    """By hand, on four devices: heads may be cut in a fused matrix only if the three parts are cut to pieces before."""
    planning = build(heads(), load_machine("localhost:4"), space("complete,dtensor"))
    vertex = planning.operators["y"]
    decision, costs = planning.decisions[vertex], planning.problem.vertices[vertex].cost
    said = {decision.placement(i).words(["gpu"]) for i in range(len(costs)) if costs[i] < FORBIDDEN}
    unsaid = {decision.placement(i).words(["gpu"]) for i in range(len(costs)) if costs[i] >= FORBIDDEN}
    axes = decision.axes
    head = axes[2]
    assert f"{head} over gpu" in unsaid and f"{axes[0]} over gpu" in said, (said, unsaid)
    assert all(head not in words.split() or "of gpu" in words for words in said)


def test_the_order_of_the_mesh_separates_dtensor_from_jax() -> None:
    kept = {}
    for target in ("dtensor", "jax"):
        planning = build(swapped(), load_machine("cloud-a100:2x2"), space(f"complete,{target}"))
        kept[target] = [int((v.cost < FORBIDDEN).sum()) for v in planning.problem.vertices]
    assert kept["dtensor"] != kept["jax"] and all(a <= b for a, b in zip(*kept.values(), strict=True)), kept


def test_windows_of_convolutions() -> None:
    graph = zoo("conv-stack")
    found = [window_axes(op) for op in graph.operators]
    assert any(found) and all(not axes or len(axes) >= 2 for axes in found)


def test_windows_and_groups_stay_whole_for_dtensor() -> None:
    """Although their blocks are equal ones, which JAX says."""
    kept = {}
    for target in ("dtensor", "jax"):
        planning = build(patches(), load_machine("localhost:4"), space(f"complete,{target}"))
        vertex = planning.operators["y"]
        decision, costs = planning.decisions[vertex], planning.problem.vertices[vertex].cost
        words = {decision.placement(i).words(["gpu"]) for i in range(len(costs)) if costs[i] < FORBIDDEN}
        kept[target] = {axis for axis in decision.axes if f"{axis} over gpu" in words}
    assert kept["jax"] - kept["dtensor"] == {"g", "y", "x"} and {"b", "o"} <= kept["dtensor"], kept


def test_a_shape_of_other_digits_is_said_whole() -> None:
    planning = build(twisted(), load_machine("localhost:4"), space("complete,jax"))
    vertex = planning.operators["y"]
    decision, costs = planning.decisions[vertex], planning.problem.vertices[vertex].cost
    said = {decision.placement(i).words(["gpu"]) for i in range(len(costs)) if costs[i] < FORBIDDEN}
    assert said == {"b over gpu", "replicated over gpu", "b over 2 of gpu, replicated over 2 of gpu"}, said


def test_a_space_has_one_vocabulary_and_even_blocks() -> None:
    for name in ("complete,uneven,dtensor", "complete,dtensor,jax", "complete,tensorflow"):
        with pytest.raises(SpaceError, match="choose one of"):
            space(name)
    assert space("one-per-level,jax").without_vocabulary.name == "one-per-level"


@pytest.fixture(scope="module")
def pair() -> tuple[Plan, Plan]:
    """The plan of a graph whose best one cuts heads of a fused matrix, and the one within DTensor's layouts."""
    free = plan_graph(heads(), load_machine("localhost:4"))
    assert free.plan is not None
    within = plan_within(free.plan, "dtensor", work(60))
    assert within.plan is not None
    return free.plan, within.plan


def test_the_claim_is_proved_and_names_the_restriction(pair: tuple[Plan, Plan]) -> None:
    free, within = pair
    checked = check_plan(write_plan(None, within))
    assert checked.verdict is Verdict.PROVED
    main = next(r for r in checked.results if r.kind == "Optimal")
    assert main.space == "complete,dtensor" and "said-by-dtensor" in main.assumptions
    assert isinstance(free.certificate.claim, Optimal) and isinstance(within.certificate.claim, Optimal)
    assert within.certificate.claim.cost >= free.certificate.claim.cost
    refused = export_dtensor(within, "0" * 64).refused
    assert not [r for r in refused if not r.reason.startswith("slice:")], refused


def test_another_line_is_refuted(pair: tuple[Plan, Plan]) -> None:
    """The free plan's certificate under the restricted name, and the other way round."""
    free, within = pair
    for plan, name in ((free, "complete,dtensor"), (within, "complete"), (within, "complete,jax")):
        checked = check_plan(write_plan(None, replace(plan, space=name)))
        parts = checked.results[0]
        assert parts.verdict is Verdict.REFUTED and "certificate: it is about the problem" in parts.reason, name


@pytest.mark.parametrize(("target", "exporter"), [("dtensor", export_dtensor), ("jax", export_jax)])
def test_the_verb_prints_the_price(target: str, exporter: object, tmp_path: Path) -> None:
    planned = plan_graph(heads(), load_machine("localhost:4"))
    assert planned.plan is not None
    (tmp_path / "p.spz").write_bytes(write_plan(None, planned.plan))
    words = ["export", str(tmp_path / "p.spz"), "--to", target, "-o", str(tmp_path / "x.py")]
    more = ["--resolve", "--resolved", str(tmp_path / "r.spz"), "--json"]
    done = CliRunner().invoke(cli, [*words, *more], standalone_mode=False, obj=FrontDoor())
    assert done.exit_code == 0, done.output
    told = json.loads(done.stdout)
    least, most = told["price"]
    assert least == most >= 0 and told["restricted"]["cost_s"] >= told["free"]["cost_s"] > 0
    assert check_plan(tmp_path / "r.spz").verdict is Verdict.PROVED
    again = CliRunner().invoke(cli, [*words, "--force", "--resolve"], standalone_mode=False, obj=FrontDoor())
    assert f"what {target} costs you: " in again.output and "(optimal)" in again.output, again.output
    if target == "jax":
        names: dict[str, object] = {}
        body = (tmp_path / "x.py").read_text()
        exec(body[body.index("IDENTITY = ") : body.index("def make_mesh")], names)  # noqa: S102 data only, without JAX
        axes = read_mesh(str(names["SHARDY_MESH"]))
        assert axes == (("ranks", 4),) and names["SHARDY"]
        for name, text in dict(names["SHARDY"]).items():  # type: ignore[call-overload]
            where = foreign_mesh(axes, (4,), parts_of(text))
            found = read_sharding(text, [0] * text.count("{"), where)
            wanted = {**names["PARAMETERS"], **names["RESULTS"]}[name]  # type: ignore[dict-item]
            assert [where.mesh.size(s) for s in found.splits] == [4 if s else 1 for s in wanted]
    assert exporter is not None and compile((tmp_path / "x.py").read_text(), "x.py", "exec")


def test_the_verb_plan_takes_a_vocabulary(tmp_path: Path) -> None:
    words = ["plan", "mlp-unity", "--machine", "localhost:4", "--vocabulary", "jax", "-o", str(tmp_path / "p.spz")]
    done = CliRunner().invoke(cli, words, standalone_mode=False, obj=FrontDoor())
    assert done.exit_code == 0 and "complete,jax" in done.output, done.output


def test_joint_and_pipelined_plans_say_the_next_step(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    joint, piped, out = (str(tmp_path / name) for name in ("j.spz", "p.spz", "x.py"))
    assert run(["plan", "mlp-unity", "--batch", "64", "--machine", "localhost:4", "--joint", "-o", joint]) == 0
    assert run(["export", joint, "--to", "jax", "-o", out]) == 0
    capsys.readouterr()
    assert run(["export", joint, "--to", "jax", "--resolve", "-o", out, "--force"]) == 3
    assert "plan its model without --joint" in capsys.readouterr().err
    words = ["plan", "bert-tiny", "--train", "sgd", "--machine", "localhost:2", "--pipeline", "2:2", "--gap", "90%"]
    assert run([*words, "--work-limit", "30M", "-o", piped]) in (0, 5)
    for verb in (
        ["sensitivity", piped],
        ["export", piped, "--to", "jax", "-o", out + "1"],
    ):
        capsys.readouterr()
        assert run(verb) == 3
        assert "without --pipeline" in capsys.readouterr().err, verb
