"""`shardproof.torch`: a live module laid out as planned, and what it sends compared with the plan; ranks are pretended."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from click.testing import CliRunner
from export_cases import MACHINE, MODELS

import shardproof
from shardproof.__main__ import cli
from shardproof.front_door import FrontDoor

torch = pytest.importorskip("torch")

HERE = Path(__file__).parent
pytestmark = [pytest.mark.torch, pytest.mark.filterwarnings("ignore")]

BESIDES = {"results", "loss.picked -> loss", "loss -> its place", "gradient of 2.bias"}
"""Places outside of the module: the plan's loss, and the gathering of results that are asked for whole.  And a bias: the
plan adds up its gradient where a gathered one lies, DTensor where parts of it lie, and sums those.
"""


def net(name: str) -> tuple[object, object]:
    names: dict[str, object] = {}
    exec(MODELS[name], names)  # noqa: S102
    torch.manual_seed(0)
    module, inputs = names["net"]()  # type: ignore[operator]
    return module, tuple(torch.randn_like(x) if x.is_floating_point() else x for x in inputs)


def planned(name: str, nodes: int, folder: Path, space: str | None = None) -> shardproof.Plan:
    (folder / "machine.toml").write_text(MACHINE.format(nodes=nodes, rate="0.2"))
    module, inputs = net(name)
    return shardproof.plan(module, str(folder / "machine.toml"), inputs=inputs, train="adam", space_name=space)


@pytest.mark.parametrize("nodes", [1, 2, 4])
def test_a_perceptron_sends_what_is_planned(nodes: int, tmp_path: Path) -> None:
    plan = planned("mlp", nodes, tmp_path, "complete,dtensor")
    found = shardproof.torch.verify(plan, *net("mlp"))
    assert found.planned_bytes > 0 and found.whole == ()
    places = {r.place for r in found.rows if r.verdict == "equal"}
    assert places and {r.place for r in found.differences} <= BESIDES, found.differences


def test_what_differs_is_named_by_place(tmp_path: Path) -> None:
    """Convolutions: heights that the plan cuts are gathered; nothing is hidden in a total."""
    plan = planned("attention", 2, tmp_path)
    found = shardproof.torch.verify(plan, *net("attention"))
    assert sum(r.verdict == "equal" for r in found.rows) >= len(found.rows) / 3, found.rows
    assert found.received_bytes == sum(r.received for r in found.rows)
    for r in found.differences:
        assert r.planned != r.received and (r.collectives or r.verdict == "plan only"), r


CUT = """
import torch
from torch import nn

class Words(nn.Module):
    def __init__(self):
        super().__init__()
        self.embed, self.head = nn.Embedding(512, 16), nn.Linear(16, 512, bias=False)

    def forward(self, ids, labels):
        x = self.head(self.embed(ids)).flatten(0, 1)
        return nn.functional.cross_entropy(x.float(), labels.flatten())

def net():
    return Words(), (torch.randint(512, (8, 6)), torch.randint(512, (8, 6)))
"""


@pytest.mark.parametrize("nodes", [1, 2])
def test_a_loss_inside_has_one_place_with_what_is_planned_for_it(nodes: int, tmp_path: Path) -> None:
    """Logits cut along the vocabulary: the operators of the plan's cross entropy are one function of the job.  Said
    before: `plan only` for each of them, and `job only` for the function.
    """
    names: dict[str, object] = {}
    exec(CUT, names)  # noqa: S102
    (tmp_path / "machine.toml").write_text(MACHINE.format(nodes=nodes, rate="0.2"))
    net = names["net"]
    module, inputs = net()  # type: ignore[operator]
    graph = shardproof.plan(module, "localhost:1", inputs=inputs, train="sgd").bundle.graph
    line = {name: {axis_of(graph, name, 512): {"gpu": 2, "node": nodes}} for name in ("head", "log_softmax")}
    (tmp_path / "strategy.json").write_text(json.dumps(line))
    plan = shardproof.plan(
        module, str(tmp_path / "machine.toml"), inputs=inputs, train="sgd", strategy=tmp_path / "strategy.json"
    )
    found = shardproof.torch.verify(plan, *net())  # type: ignore[operator]
    row = next(r for r in found.rows if r.place == "loss inside, function cross_entropy")
    assert row.planned > 0 and row.received > 0 and row.verdict != "job only"
    # 48 positions; a maximum and a sum of each in float32, reduced in parts that are gathered, are the plan's at least
    ranks = 2 * nodes
    assert row.planned >= 2 * 4 * 2 * (48 // ranks) * (ranks - 1)
    assert row.received == 3 * 4 * 48 * 2 * sum((n - 1) / n for n in (nodes, 2)), row
    assert not any(r.place.startswith(("gather", "log_softmax", "function cross")) for r in found.rows), found.rows


def axis_of(graph: object, name: str, extent: int) -> str:
    """The axis of an operator's result that is so long."""
    op = next(op for op in graph.operators if op.name == name)  # type: ignore[attr-defined]
    return next(a for a in op.output.axes if op.axis(a).extent == extent)


def test_a_module_that_sends_more_is_seen(tmp_path: Path) -> None:
    """A layer gathers its result once more than planned: `verify` names it."""
    plan = planned("mlp", 2, tmp_path, "complete,dtensor")
    module, inputs = net("mlp")
    before = shardproof.torch.verify(plan, *net("mlp"))

    class More(torch.nn.ReLU):
        def forward(self, x: object) -> object:
            return torch.sort(super().forward(x), -1).values  # no rule for it: whole tensors

    module[1] = More()  # type: ignore[index]
    after = shardproof.torch.verify(plan, module, inputs)
    assert dict(after.whole) == {"sort": 1} and after.received_bytes > before.received_bytes
    assert any("function sort" in r.place for r in after.differences)


def test_apply_is_the_exported_file(tmp_path: Path) -> None:
    from shardproof.backends.export.traffic import fake_process_group

    plan = planned("mlp", 2, tmp_path)
    names: dict[str, object] = {}
    exec(compile(plan.export("dtensor"), "exported.py", "exec"), names)  # noqa: S102
    with fake_process_group(4):
        mesh = names["make_mesh"]("cpu")  # type: ignore[operator]
        theirs = names["parallelize"](net("mlp")[0], mesh)  # type: ignore[operator]
        ours = shardproof.torch.apply(plan, net("mlp")[0])
        assert [n for n, _ in ours.named_parameters()] == [n for n, _ in net("mlp")[0].named_parameters()]
        for (a, x), (b, y) in zip(theirs.named_parameters(), ours.named_parameters(), strict=True):
            assert (a, x.placements) == (b, y.placements)
        with pytest.raises(ValueError, match="the plan's"):
            shardproof.torch.apply(plan, net("mlp")[0], torch.distributed.init_device_mesh("cpu", (4,)))
    with fake_process_group(8), pytest.raises(ValueError, match="the job has 8 ranks, the plan 4 devices"):
        shardproof.torch.apply(plan, net("mlp")[0])
    with pytest.raises(ValueError, match="no parameter"):
        shardproof.torch.verify(plan, net("attention")[0], net("attention")[1])


def test_the_verb(tmp_path: Path) -> None:
    plan = planned("mlp", 2, tmp_path, "complete,dtensor")
    plan.save(tmp_path / "p.spz")
    (tmp_path / "model.py").write_text(MODELS["mlp"])
    words = ["verify-job", str(tmp_path / "p.spz"), f"{tmp_path / 'model.py'}:net"]
    run = CliRunner().invoke
    done = run(cli, [*words, "--json"], standalone_mode=False, obj=FrontDoor())
    told = json.loads(done.stdout)
    assert told["identity"] == plan.identity and {r[0] for r in told["rows"] if r[1] != "equal"} <= BESIDES
    told_in_words = run(cli, words, standalone_mode=False, obj=FrontDoor())
    text, beyond = told_in_words.output, told["received"] - told["planned"]
    assert "places send what is planned" in text and "job only  results" in text
    assert beyond == told["beyond"] > 0 and f"--excess {beyond} allows them" in text
    assert done.return_value == told_in_words.return_value == 10
    for allowed, code in ((beyond - 1, 10), (beyond, 0)):
        assert run(cli, [*words, "--excess", str(allowed)], standalone_mode=False, obj=FrontDoor()).return_value == code
    (tmp_path / "other.py").write_text(MODELS["convolutions"])
    words[-1] = f"{tmp_path / 'other.py'}:net"
    with pytest.raises(ValueError, match="is not the model of"):
        run(cli, words, standalone_mode=False, obj=FrontDoor(), catch_exceptions=False)


def test_what_is_no_plan_of_the_module_is_refused(tmp_path: Path) -> None:
    from shardproof.backends.export.traffic import fake_process_group

    plan = planned("mlp", 2, tmp_path)
    plan.save(tmp_path / "p.spz")
    for given in (str(tmp_path / "p.spz"), plan.bundle):
        with pytest.raises(TypeError, match=r"is no checked plan; shardproof.load"):
            shardproof.torch.apply(given, net("mlp")[0])
    module, inputs = net("mlp")
    more = torch.nn.Sequential(*module, torch.nn.Linear(32, 32))  # type: ignore[misc]
    with (
        fake_process_group(4),
        pytest.raises(ValueError, match=r"'4\.(weight|bias)' is trained, and the plan does not know it"),
    ):
        shardproof.torch.apply(plan, more)(*inputs).sum().backward()


def test_micro_batches_are_counted_one_after_another(tmp_path: Path) -> None:
    (tmp_path / "machine.toml").write_text(MACHINE.format(nodes=2, rate="0.2"))
    module, inputs = net("mlp")
    plan = shardproof.plan(module, str(tmp_path / "machine.toml"), inputs=inputs, train="adam", micro_batch=4)
    assert "micro-batches    4\n" in plan.export("dtensor")
    found = shardproof.torch.verify(plan, *net("mlp"))
    equal = [r for r in found.rows if r.verdict == "equal"]
    assert not any("@" in r.place for r in found.rows) and any(len(r.collectives) >= 4 for r in equal), found.rows


@pytest.mark.parametrize("model", ["mlp", pytest.param("gpt2", marks=pytest.mark.slow)])
def test_the_page_has_the_rows_that_its_command_prints(
    model: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """docs/exports.md, ten models on eight pretended ranks: stale once, as nobody looked."""
    monkeypatch.syspath_prepend(str(HERE / "benchmarks"))
    monkeypatch.syspath_prepend(str(HERE / "torch_models"))
    import fake_ranks

    (tmp_path / "m.toml").write_text(MACHINE.format(nodes=4, rate="0.2"))
    row = fake_ranks.table([fake_ranks.counted(model, str(tmp_path / "m.toml"))]).splitlines()[-1]
    assert row in fake_ranks.PAGE.read_text(encoding="utf-8").splitlines(), "python tests/benchmarks/fake_ranks.py"
