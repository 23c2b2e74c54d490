"""Exported jobs: what was planned is what ran, on gloo ranks; what a file cannot do is refused by name, or said."""

from __future__ import annotations

import itertools
import json
import os
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner
from export_cases import plan_data
from exported_programs import (
    ATTENTION,
    BLOCKS,
    HERE,
    MICRO,
    OPTIMIZERS,
    PRECISIONS,
    Case,
    differences,
    drawn,
    forward,
    ran,
)

import shardproof
from shardproof.__main__ import cli, run
from shardproof.backends.export.dtensor import export_dtensor
from shardproof.backends.export.jax import export_jax
from shardproof.backends.export.read_recipe import recipe
from shardproof.front_door import FrontDoor
from shardproof.models.program.graph import Graph
from shardproof.models.sources.training import build_step
from shardproof.models.sources.training.accumulation import accumulate
from shardproof.models.sources.zoo import build
from shardproof.models.text import InputError

torch = pytest.importorskip("torch")

pytestmark = [pytest.mark.torch, pytest.mark.timeout(900), pytest.mark.filterwarnings("ignore")]

SGD, ADAM, ADAMW, RMSPROP, ADAGRAD = OPTIMIZERS
SOME = [
    Case(),
    Case("bf16-mixed", "all", (2, 1), ADAMW, "fused"),
    Case("bf16-master", "blocks.1", (4, 2), ADAM, "matrices"),
    Case(None, "all", (2, 1), RMSPROP, "operator", "logits"),
    Case("bf16-master:reduce=bfloat16", "none", (1, 1), ADAGRAD, "operator", "logits"),
    Case("bf16-mixed", "all", (4, 2), SGD, "operator", "numbers"),
]
"""Every value of every part at least once."""

EVERY = [
    Case(p, r, m, o, a) for p, r, m, o, a in itertools.product(PRECISIONS, BLOCKS, MICRO, OPTIMIZERS, ATTENTION[::2])
]


def checked(cases: list[Case], folder: Path, ranks: int = 2, seeds: Sequence[int] = ()) -> list[dict[str, Any]]:
    told = ran(cases, folder, ranks, 7000, seeds)
    assert [t["case"] for t in told] == list(range(len(cases)))
    wrong = [(c, found) for c, t in zip(cases, told, strict=True) if (found := differences(c, t))]
    assert not wrong, wrong
    return told


def test_what_was_planned_is_what_ran(tmp_path: Path) -> None:
    told = checked(SOME, tmp_path)
    assert all(t["cut"] for t in told), "placements are drawn, and none splits anything"


@pytest.mark.slow
@pytest.mark.timeout(7200)
@pytest.mark.parametrize("micro", MICRO, ids="{0[0]}x{0[1]}".format)
@pytest.mark.parametrize("precision", PRECISIONS, ids=str)
def test_every_combination(precision: str | None, micro: tuple[int, int], tmp_path: Path) -> None:
    """Precision x recomputation x micro-batches x optimizer x attention; those that differ in recomputation alone are
    placed alike, so that what they keep can be compared.
    """
    some = [c for c in EVERY if (c.precision, c.micro) == (precision, micro)]
    assert len(some) * len(PRECISIONS) * len(MICRO) == len(EVERY) == 360
    seeds = [EVERY.index(replace(c, recompute="none")) for c in some]
    told = checked(some, tmp_path, seeds=seeds)
    kept = {c: t["kept_once"] for c, t in zip(some, told, strict=True)}
    more = []
    for c in some:
        if c.recompute == "none":
            all_, one = (kept[replace(c, recompute=r)] for r in ("all", "blocks.1"))
            if not (all_ < 0.8 * kept[c] and all_ < one < kept[c]):
                more.append((c, kept[c], one, all_))
    assert not more, more


def test_losses_on_every_layout() -> None:
    """Cut through classes, positions or both, unevenly and partial; nothing is gathered."""
    told = losses(2)
    assert told["cases"] > 200 and told["wrong"] == [] and told["value"] < 1e-9 and told["gradient"] < 1e-9


@pytest.mark.slow
def test_losses_on_every_layout_of_two_dimensions() -> None:
    told = losses(4)
    assert told["cases"] > 700 and told["wrong"] == [] and told["gathered"] == 0


def losses(ranks: int) -> dict[str, Any]:
    done = subprocess.run(
        [sys.executable, "-W", "ignore", str(HERE / "losses_job.py"), str(ranks)],
        capture_output=True,
        check=False,
        text=True,
        timeout=800,
        env={**os.environ, "OMP_NUM_THREADS": "1", "PYTHONPATH": str(Path(shardproof.__file__).parents[1])},
    )
    assert done.returncode == 0, done.stderr[-3000:]
    told: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    return told


@pytest.mark.parametrize(
    ("train", "precision", "recompute", "part", "said"),
    [
        ("sgd", "fp16-mixed", "none", "precision", "float16 has a loss scale.*--precision bf16-mixed"),
        ("sgd", "fp16-master", "none", "precision", "float16 has a loss scale"),
        ("lion", None, "none", "optimizer", "does not build lion: plan with --train sgd"),
        ("muon", None, "none", "optimizer", "updated by adamw and by muon"),
        ("adafactor", None, "none", "optimizer", "does not build adafactor"),
    ],
)
def test_what_a_file_cannot_do_is_refused_by_name(
    train: str, precision: str | None, recompute: str, part: str, said: str
) -> None:
    graph = forward("inside", "operator")
    made = replace(drawn(Case(), 0), graph=build_step(graph, train, None, None, recompute, precision).graph)
    assert part in dict(recipe(made.graph).refused)
    with pytest.raises(InputError, match=f"{part}: .*{said}.*--layouts-only"):
        export_dtensor(made, "0" * 64)


def test_a_precision_of_two_rules_is_refused() -> None:
    """A weight that some operators read in float32, beside norms that write the half type: no job of ours does both."""
    step = build_step(forward("inside", "operator"), "sgd", None, None, "none", "bf16-master").graph

    def read(op: Any) -> Any:
        own = op.name == "embed"
        return replace(op, inputs=(replace(op.inputs[0], tensor="embed.weight"), op.inputs[1])) if own else op

    graph = replace(step, operators=tuple(map(read, step.operators)))
    assert recipe(step).refused == ()
    assert "as torch.autocast has it and others as a model in half" in dict(recipe(graph).refused)["precision"]


def test_blocks_that_are_no_modules_or_half_kept_are_refused() -> None:
    step = build_step(forward("inside", "operator"), "sgd", None, None, "all", None).graph
    kept = next(op for op in step.operators if op.name.startswith("recompute:blocks.0.gelu"))

    def before(op: Any) -> Any:
        def old(a: Any) -> Any:
            return replace(a, tensor="blocks.0.gelu") if a.tensor == kept.output.tensor else a

        return replace(op, inputs=tuple(map(old, op.inputs)))

    graph = replace(step, operators=tuple(before(op) for op in step.operators if op is not kept))
    assert "'blocks.0.gelu', which is kept" in dict(recipe(graph).refused)["recomputation"]
    text = step.to_json().replace('"blocks.0.', '"blocks.0_').replace(":blocks.0.", ":blocks.0_")
    assert "has no parameters" not in text
    renamed = Graph.from_json(
        step.to_json().replace("blocks.0.", "blocks.0x.").replace("recompute:blocks.0x.", "recompute:add_0.")
    )
    assert "block 'add_0' has no parameters" in dict(recipe(renamed).refused)["recomputation"]


def test_layouts_alone_are_said_everywhere(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    plan = shardproof.plan("mlp-unity", "localhost:2", batch=16, train="lion")
    plan.save(tmp_path / "p.spz")
    words = ["export", str(tmp_path / "p.spz"), "--to", "dtensor", "-o", str(tmp_path / "x.py")]
    assert run(words) == 3
    assert "optimizer: the file does not build lion" in capsys.readouterr().err and not (tmp_path / "x.py").exists()
    assert run([*words, "--layouts-only"]) == 0
    shown = capsys.readouterr().out
    assert "layouts only: what else the plan says is not in the dtensor file" in shown and "optimizer: lion" in shown
    text = (tmp_path / "x.py").read_text()
    assert "LAYOUTS ONLY.  The job has to do what else the plan says:" in text and "    optimizer        lion" in text
    assert plan_data(text)["program"] is None and plan_data(text)["left_out"][3][0] == "optimizer"
    told = CliRunner().invoke(
        cli, [*words, "--layouts-only", "--force", "--json"], standalone_mode=False, obj=FrontDoor()
    )
    assert json.loads(told.stdout)["left_out"]["optimizer"].startswith("lion") and json.loads(told.stdout)["done"] == {}
    assert plan.export("dtensor", layouts_only=True) == text
    with pytest.raises(InputError, match="does not build lion"):
        plan.export("dtensor")
    assert run(["export", str(tmp_path / "p.spz"), "--to", "jax", "-o", str(tmp_path / "y.py")]) == 0
    assert "is not in the jax file" in capsys.readouterr().out
    assert "LEFT_OUT = " in (tmp_path / "y.py").read_text() and export_jax(plan.bundle, "0" * 64).left_out
    assert (
        run(["export", str(tmp_path / "p.spz"), "--to", "megatron", "--layouts-only", "-o", str(tmp_path / "z")]) == 2
    )


def test_half_gradients_that_are_clipped_add_up_in_float32() -> None:
    """Found by the matrix: the norm of summed gradients said that it multiplies numbers of the half type."""
    step = build_step(forward("inside", "operator"), ADAMW, None, None, "none", "bf16-master:reduce=bfloat16")
    made = accumulate(step, 2).graph.check()
    norm = next(op for op in made.operators if op.name == "norm:embed.weight")
    assert norm.attribute("arithmetic", "") == "" and made.tensor(norm.inputs[0].tensor).dtype == "float32"
    assert recipe(made).clip == 0.5


def test_a_plan_without_training_leaves_nothing_out() -> None:
    plan = shardproof.plan("mlp-unity", "localhost:2", batch=16)
    made = export_dtensor(plan.bundle, "0" * 64)
    assert made.done == made.left_out == () and plan_data(made.text)["program"] is None


def test_what_a_plan_says_is_read_from_its_graph_not_its_name() -> None:
    """A file may call its graph anything."""
    graph = build_step(build("bert-tiny", layers=1), "adamw", None, None, "all", "bf16-mixed").graph
    named = replace(graph, name="bert-tiny+sgd")
    assert recipe(named) == recipe(graph) and recipe(named).precision == "bf16-mixed"
    assert recipe(named).groups[0].kind == "adamw" and recipe(named).recomputed == ("layer0",)


@pytest.fixture(scope="module")
def job() -> Any:
    """A function that lays the case's module out in a pretended job: (names of the file, planned module, optimizer)."""

    def made(case: Case, change: Any = lambda module: None) -> Any:
        sys.path.insert(0, str(HERE / "torch_models"))
        try:
            import program
        finally:
            sys.path.pop(0)
        names: dict[str, Any] = {}
        exec(compile(export_dtensor(drawn(case, 1), "0" * 64).text, "exported.py", "exec"), names)  # noqa: S102
        mesh = names["make_mesh"]("cpu")
        module, inputs = program.net(case.kind)
        change(module)
        return names, names["parallelize"](module, mesh), mesh, inputs

    return made


def test_a_job_that_does_otherwise_raises(job: Any) -> None:
    from shardproof.backends.export.traffic import fake_process_group

    half, plain = Case("bf16-master", "all", (2, 1), ADAMW), Case()
    with fake_process_group(2):
        with pytest.raises(ValueError, match=r"parameter '.*' is torch.bfloat16, in the plan float32; .*hand over"):
            job(half, lambda m: m.to(torch.bfloat16))
        with pytest.raises(ValueError, match="is torch.float64, in the plan float32"):
            job(plain, lambda m: m.double())
        names, model, mesh, inputs = job(half)
        with pytest.raises(ValueError, match="the plan's optimizer is AdamW, not SGD: leave the class out"):
            names["make_optimizer"](model, mesh, torch.optim.SGD, lr=1e-3)
        own = names["make_optimizer"](model, mesh, torch.optim.AdamW, lr=0.5)
        assert own.optimizer.param_groups[0]["lr"] == 0.5 and own.optimizer.param_groups[0]["betas"] == (0.8, 0.999)
        steps = names["make_optimizer"](model, mesh)
        part = tuple(x[:4] for x in inputs)
        model(*part).backward()
        with pytest.raises(RuntimeError, match="a step in 2 micro-batches, and 1 backward passes came"):
            steps.step()
        model(*part).backward()
        model(*part).backward()
        steps.step()
        with pytest.raises(ValueError, match="the plan's loss is what the model returns: give no target"):
            names["train_step"](model, steps, *inputs, target=inputs[1])
        with pytest.raises(ValueError, match="a batch of 7, which 2 micro-batches do not divide"):
            names["train_step"](model, steps, *(x[:7] for x in inputs))


def test_types_and_kernels_that_differ_raise(job: Any) -> None:
    from shardproof.backends.export.traffic import fake_process_group

    def wide(module: Any) -> None:
        """A layer that computes in float32 whatever it is given."""
        inner = module.blocks[0].n2.forward
        module.blocks[0].n2.forward = lambda x: inner(x).float()

    def written_out(module: Any) -> None:
        for block in module.blocks:
            block.forward = lambda x, block=block: (
                x + block.o(torch.softmax(block.q(x) @ block.k(x).mT, -1) @ block.v(x))
            )

    with fake_process_group(2):
        _, model, _, inputs = job(Case("bf16-master"), wide)
        with pytest.raises(RuntimeError, match=r"module 'blocks.0.n2' gives torch.float32, in the plan bfloat16"):
            model(*inputs)
        _, model, _, inputs = job(Case(), written_out)
        with pytest.raises(RuntimeError, match="attention 2 times in one kernel .* --attention matrices"):
            model(*inputs)
        with pytest.raises(ValueError, match=r"the module has no parameter 'blocks.1"):
            job(Case(recompute="all"), lambda m: m.blocks.__delitem__(0))


def test_the_old_call_forms_work(job: Any) -> None:
    from shardproof.backends.export.traffic import fake_process_group

    with fake_process_group(2):
        names, model, mesh, inputs = job(Case(optimizer=ADAM))
        steps = names["make_optimizer"](model, mesh, torch.optim.Adam, lr=1e-3)
        loss = model(*inputs)
        steps.zero_grad()
        loss.backward()
        steps.step()
        plain = torch.optim.Adam(model.parameters(), lr=1e-3)
        model(*inputs).backward()
        plain.step()


def test_what_will_run_whole_is_foretold(tmp_path: Path) -> None:
    """A fused projection that the plan cuts by heads, which DTensor does not say: attention runs on whole tensors."""
    from export_cases import MACHINE

    sys.path.insert(0, str(HERE / "torch_models"))
    try:
        import ten
    finally:
        sys.path.pop(0)
    (tmp_path / "m.toml").write_text(MACHINE.format(nodes=1, rate="0.2"))
    module, inputs = ten.causal()
    plan = shardproof.plan(module, str(tmp_path / "m.toml"), inputs=inputs, train="adam", space_name="one-per-level")
    made = export_dtensor(plan.bundle, plan.identity)
    assert [(w.function, w.bytes) for w in made.whole] == [("attention", 4 * 4 * 16 * 32 * 4)]
    assert plan_data(made.text)["runs_whole"] == [["scaled_dot_product_attention", "attention", 32768]]
    assert "run on whole tensors on every rank" in made.text
    found = shardproof.torch.verify(plan, *ten.causal())
    assert dict(found.whole) == {"scaled_dot_product_attention": 1}


def test_settings_say_what_they_leave_out() -> None:
    from fractions import Fraction

    from shardproof.backends.export.flags import batch_of, megatron_text, torchtitan_toml
    from shardproof.backends.export.torchtitan import torchtitan_file
    from shardproof.models.layout.targets.degrees import Flags
    from shardproof.models.sources.frameworks.flags import read_settings
    from shardproof.proofs.publishing.publisher import Nearest

    sizes = {"layers": 1, "sequence": 16, "width": 32, "heads": 4, "kv_heads": 2, "hidden": 64, "vocabulary": 32}
    step = accumulate(build_step(build("llama", batch=8, **sizes), "adamw", None, None, "all", "bf16-master"), 2)
    assert batch_of(step.graph) == 8
    plan = replace(drawn(Case(), 0), graph=step.graph)
    one = (Fraction(1), Fraction(1))
    made = Nearest("megatron", Flags("Megatron", tp=2), plan, "0" * 64, one, one, 1)
    for text in (megatron_text(made, 8), torchtitan_file(made, 8), torchtitan_toml(made, 8)):
        for words in ("precision", "bf16-master", "layer0", "micro-batches", "adamw lr 0.001"):
            assert words in text
    names: dict[str, Any] = {}
    exec(compile(torchtitan_file(made, 8), "x.py", "exec"), names)  # noqa: S102
    assert names["CONFIG"] == "\n" + torchtitan_toml(made, 8)
    read = read_settings(megatron_text(made, 8))
    assert read is not None and read.flags.tp == 2 and read.flags.global_batch == 8
