"""Settings of Megatron and torchtitan nearest to a plan: read back, priced with proofs, run by torch alone."""

from __future__ import annotations

import ast
import json
import os
import subprocess
import sys
from collections import Counter
from dataclasses import replace
from fractions import Fraction
from pathlib import Path

import pytest
from click.testing import CliRunner
from export_cases import MACHINE

import shardproof
from shardproof.__main__ import cli, run
from shardproof.backends.export import dtensor, layers, pipelined, torchtitan
from shardproof.backends.export.flags import megatron_text, torchtitan_toml
from shardproof.backends.export.torchtitan import torchtitan_file
from shardproof.backends.verbs.export import SETTINGS
from shardproof.formal.explain.audit import audit
from shardproof.formal.explain.nearest import FRAMEWORKS, nearest, settings
from shardproof.formal.plans.frameworks import strategy_of_flags
from shardproof.formal.selection.model.clock import Clock, budget
from shardproof.front_door import FrontDoor
from shardproof.models.cost.selection import build
from shardproof.models.layout.placement import space
from shardproof.models.layout.targets.degrees import Flags
from shardproof.models.machine.machine import load_machine
from shardproof.models.program.graph import Graph
from shardproof.models.sources import zoo
from shardproof.models.sources.frameworks.flags import read_settings
from shardproof.models.sources.training import build_step
from shardproof.models.text import InputError
from shardproof.proofs.publishing.publisher import Nearest

HERE = Path(__file__).parent
TINY = {"layers": 1, "sequence": 16, "width": 32, "heads": 4, "kv_heads": 2, "hidden": 64, "vocabulary": 32}


def degrees(text: str) -> Flags:
    settings = read_settings(text)
    assert settings is not None
    return settings.flags


def llama(batch: int, **sizes: int) -> Graph:
    return zoo.build("llama", batch=batch, dtype="float32", **{**TINY, **sizes})


@pytest.fixture(scope="module")
def found(tmp_path_factory: pytest.TempPathFactory) -> Nearest:
    """One example on four devices: copies alone cannot use them."""
    folder = tmp_path_factory.mktemp("nearest")
    (folder / "m.toml").write_text(MACHINE.format(nodes=2, rate="0.2"))
    shardproof.plan(llama(2), str(folder / "m.toml"), space_name="one-per-level").save(folder / "p.spz")
    return FrontDoor().nearest(FrontDoor().open(folder / "p.spz"), "megatron", 120.0)


def test_the_nearest_is_the_least_of_all_and_proved(found: Nearest) -> None:
    cost, bound = found.free
    own, least = found.settings
    assert bound <= cost <= own and bound <= least <= own and found.flags.tp * found.flags.cp > 1
    low, high = found.distance
    assert 0 <= low <= high and low == max(0, least / cost - 1) and high == own / bound - 1
    planning = build(found.plan.graph, found.plan.machine, space(found.plan.space))
    costs = {}
    for flags in settings("megatron", 4, trained=False):
        try:
            strategy = strategy_of_flags(flags, planning.graph, planning.machine)
        except ValueError:
            continue
        report = audit(planning, strategy, 60.0)
        assert report.completed.cost is not None
        costs[flags] = Fraction(report.completed.cost, planning.problem.scale)
    assert min(costs.values()) == own == costs[found.flags] and len(set(costs.values())) > 1


def test_settings_that_do_not_fit_are_named(found: Nearest) -> None:
    reasons = dict(found.excluded)
    assert "tp 1, cp 1" in reasons and "do not divide" in reasons["tp 1, cp 1"], reasons
    assert found.tried + len(found.excluded) >= 6


def test_no_time_proves_the_bound_of_the_plan_only() -> None:
    planning = build(llama(2), load_machine("localhost:2"), space("one-per-level"))
    done, excluded = nearest(planning, "megatron", Clock(0.0))
    assert done and all(s.cost is None and s.bound is None for s in done)
    assert any("no time was left" in reason for _, reason in excluded)


@pytest.mark.parametrize("zero", [0, 1, 2, 3])
@pytest.mark.parametrize(("tp", "cp"), [(1, 1), (2, 1), (2, 2), (4, 1)])
def test_both_files_are_read_back(found: Nearest, tp: int, cp: int, zero: int) -> None:
    batch, copies = 8, 4 // (tp * cp)
    plain = Flags("Megatron", tp=tp, cp=cp, sequence_parallel=tp > 1, zero=zero)
    made = replace(found, flags=plain)
    wanted = replace(plain, micro_batch=batch // copies, global_batch=batch)
    assert degrees(megatron_text(made, batch)) == wanted
    if zero > 1 or (zero == 0 and tp * cp == 1):
        titan = degrees(torchtitan_toml(made, batch))
        assert titan == replace(wanted, source="torchtitan", dp=copies, zero=zero if copies * cp > 1 else 0)


READ_BACK = [
    (target, tp, cp, split, zero)
    for target, known in FRAMEWORKS.items()
    for tp, cp in ((1, 1), (2, 1), (4, 1), (1, 2), (2, 2))
    for split in known.split
    for zero in known.stages
    if (cp == 1 or known.context) and split == (split and tp > 1) and (tp == 1 or known.tensor)
]


@pytest.mark.parametrize(("target", "tp", "cp", "split", "zero"), READ_BACK)
def test_every_file_is_read_back_to_the_same_strategy(
    found: Nearest, target: str, tp: int, cp: int, split: bool, zero: int
) -> None:
    """The same placements of all operators, the same stage of ZeRO, the same examples at once."""
    if tp > 1 and FRAMEWORKS[target].split == (True,):
        split = True
    batch, copies = 8, 4 // (tp * cp)
    flags = Flags(FRAMEWORKS[target].source, tp=tp, cp=cp, sequence_parallel=split, zero=zero)
    made = replace(found, framework=target, flags=flags)
    text = torchtitan_toml(made, batch) if target == "torchtitan" else SETTINGS[target](made, batch)
    read = degrees(text)
    assert read.source == flags.source and read.copies(4) == copies
    assert read.micro_batch in ((0,) if target in ("accelerate", "vllm", "sglang") else (batch // copies,))
    if copies > 1 or (target == "torchtitan" and zero):
        assert read.zero == zero or copies * cp == 1 or (target == "torchtitan" and not zero)
    graph = build_step(llama(8), "adam").graph if not FRAMEWORKS[target].serves else llama(8)
    plain = replace(flags, zero=read.zero if copies == 1 or target == "torchtitan" else zero)
    machine = load_machine("localhost:4")
    assert strategy_of_flags(read, graph, machine).rules == strategy_of_flags(plain, graph, machine).rules


def test_names_and_words_of_a_plan_stay_in_the_comments_of_every_file(
    found: Nearest, monkeypatch: pytest.MonkeyPatch
) -> None:
    from shardproof.backends.export import flags as module

    found = replace(found, flags=Flags("x", tp=2))
    told = [target for target in FRAMEWORKS if target not in ("torchtitan", "deepspeed")]
    plain = {target: degrees(SETTINGS[target](found, 8)) for target in told}
    with pytest.raises(InputError, match="copies alone, and the settings split tensors"):
        SETTINGS["deepspeed"](found, 8)
    for target in ("nanotron", "axolotl", "vllm", "sglang", "deepspeed"):
        with pytest.raises(InputError, match="no word for context parallelism"):
            SETTINGS[target](replace(found, framework=target, flags=Flags("x", cp=2)), 8)
    monkeypatch.setattr(module, "left_to_settings", lambda _: (("loss", "x\nmodel: {tensor_model_parallel_size: 64}"),))
    evil = replace(found.plan.graph, name="x\n--tensor-parallel-size 64\nparallelism: {tp: 64}")
    made = replace(found, plan=replace(found.plan, graph=evil))
    for target, flags in plain.items():
        assert degrees(SETTINGS[target](made, 8)) == flags


def test_what_a_framework_has_no_word_for_is_not_considered_or_refused(tmp_path: Path) -> None:
    for target, known in FRAMEWORKS.items():
        for flags in settings(target, 4, trained=not known.serves):
            assert flags.source == known.source and (known.context or flags.cp == 1)
            assert not flags.sequence_parallel or True in known.split
    step = build_step(llama(4), "adam").graph
    shardproof.plan(step, "localhost:2", space_name="one-per-level").save(tmp_path / "p.spz")
    assert run(["export", str(tmp_path / "p.spz"), "--to", "vllm", "-o", str(tmp_path / "x")]) == 3
    planning = build(step, load_machine("localhost:2"), space("one-per-level"))
    _, excluded = nearest(planning, "vllm", budget(None, 1_000_000))
    assert excluded == [("vllm", "vllm serves models: plan a forward pass, without --train")]
    for target in ("nanotron", "maxtext"):
        done, excluded = nearest(planning, target, budget(None, 30_000_000))
        stages = FRAMEWORKS[target].stages
        assert all(s.flags.zero in stages for s in done if s.cost is not None)
        assert done or any("shards what no setting" in reason for _, reason in excluded)


@pytest.mark.parametrize("zero", [0, 1, 2, 3])
def test_megatron_gets_what_its_sharding_requires_and_a_launcher_the_flags_alone(
    found: Nearest, zero: int, tmp_path: Path
) -> None:
    """Its user guide: five arguments together; a strategy alone is one that Megatron never reads."""
    text = megatron_text(replace(found, flags=Flags("Megatron", zero=zero)), 8)
    words = [w for line in text.splitlines() if not line.startswith("#") for w in line.split()]
    together = {"--use-megatron-fsdp", "--data-parallel-sharding-strategy", "--no-gradient-accumulation-fusion"}
    together |= {"--ckpt-format", "fsdp_dtensor"}
    assert together & {*words} == (together if zero > 1 else set())
    assert ("--use-distributed-optimizer" in words) == (zero > 0)
    assert ("CUDA_DEVICE_MAX_CONNECTIONS" in text) == (zero > 1)
    (tmp_path / "args.txt").write_text(text)
    hint = next(line for line in text.splitlines() if line.startswith("# behind a launcher: ")).partition(": ")[2]
    line = f"printf '%s\\n' {hint.replace('FILE', 'args.txt')}"
    done = subprocess.run(["bash", "-c", line], capture_output=True, check=True, text=True, cwd=tmp_path)
    assert done.stdout.split("\n")[:-1] == words


def test_names_stay_in_their_comment(found: Nearest) -> None:
    evil = replace(found.plan.graph, name='x\n--tensor-model-parallel-size 64\n"""\nimport os\n')
    made = replace(found, plan=replace(found.plan, graph=evil))
    ours = [line for line in megatron_text(found, 8).splitlines() if not line.startswith("#")]
    assert [line for line in megatron_text(made, 8).splitlines() if not line.startswith("#")] == ours
    assert degrees(megatron_text(made, 8)) == degrees(megatron_text(found, 8))
    code = compile(torchtitan_file(made, 8), "x.py", "exec")
    assert "os" not in code.co_names


def test_what_a_configuration_leaves_out_stays_in_its_comments(found: Nearest, monkeypatch: pytest.MonkeyPatch) -> None:
    """Words of a plan come from its file: a comment of the TOML, and of the text of Python around it, holds them all."""
    from shardproof.backends.export import flags as module

    evil = 'x\n[parallelism]\ntensor_parallel_degree = 64\n"""\nimport os\n\\'
    plain = degrees(torchtitan_toml(found, 8))
    monkeypatch.setattr(module, "left_to_settings", lambda _: (("loss", evil), ("precision", '"' * 7 + "\\n")))
    text = torchtitan_toml(found, 8)
    assert degrees(text) == plain and text.count("# not in these settings, and yours to give: ") == 2
    names: dict[str, object] = {}
    code = compile(torchtitan_file(found, 8), "x.py", "exec")
    assert "os" not in code.co_names
    pytest.importorskip("torch")
    exec(code, names)  # noqa: S102
    assert names["CONFIG"] == "\n" + text


def test_the_verb(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    plan, out = str(tmp_path / "p.spz"), str(tmp_path / "x")
    shardproof.plan(llama(2), "localhost:2", space_name="one-per-level").save(tmp_path / "p.spz")
    done = CliRunner().invoke(
        cli, ["export", plan, "--to", "megatron", "-o", out, "--json"], standalone_mode=False, obj=FrontDoor()
    )
    told = json.loads(done.stdout)
    least, most = told["distance"]
    assert 0 <= least <= most and told["nearest"]["cost_s"] >= told["free"]["cost_s"] and told["tried"] >= 2
    flags = degrees((tmp_path / "x").read_text())
    assert flags.tp == told["settings"]["tp"]
    assert shardproof.load(plan).export("megatron") == (tmp_path / "x").read_text(), "one way for both"
    capsys.readouterr()
    assert run(["export", plan, "--to", "torchtitan", "-o", out + ".py"]) == 0
    text = capsys.readouterr().out
    assert "more than the optimum, proved over" in text and "completed in their favour" in text
    assert run(["plan", "mlp-unity", "--batch", "8", "--machine", "localhost:2", "--joint", "-o", out + "j"]) == 0
    assert run(["export", out + "j", "--to", "megatron", "-o", out + "4"]) == 3
    assert "without --joint" in capsys.readouterr().err
    assert run(["export", plan, "--to", "megatron", "--resolve", "-o", out + "2"]) == 2
    assert "always gets its nearest settings" in capsys.readouterr().err
    shardproof.plan("mlp-unity", "localhost:2", batch=8).save(tmp_path / "m.spz")
    assert run(["export", str(tmp_path / "m.spz"), "--to", "megatron", "-o", out + "3"]) == 3
    assert "no settings of megatron fit" in capsys.readouterr().err and not Path(out + "3").exists()


@pytest.mark.torch
@pytest.mark.slow
@pytest.mark.timeout(900)
def test_torchtitans_llama_trains_as_in_one_process(tmp_path: Path) -> None:
    """Three steps of AdamW on four gloo ranks: by the nearest settings of a plan, and by four others."""
    pytest.importorskip("torch")
    sys.path.insert(0, str(HERE / "torch_models"))
    try:
        import titan_llama
    finally:
        sys.path.pop(0)
    (tmp_path / "m.toml").write_text(MACHINE.format(nodes=2, rate="0.2"))
    sizes = {**titan_llama.SIZES, "sequence": titan_llama.SEQUENCE}
    graph = build_step(zoo.build("llama", batch=2, dtype="float32", **sizes), "adamw").graph
    machine = str(tmp_path / "m.toml")
    shardproof.plan(graph, machine, space_name="one-per-level", work_limit=100_000_000).save(tmp_path / "p.spz")
    best = FrontDoor().nearest(FrontDoor().open(tmp_path / "p.spz"), "torchtitan", 200.0)
    assert best.flags.tp > 1, "two examples on four devices"
    others = {
        "tensor": Flags("torchtitan", tp=4, sequence_parallel=True),
        "both": Flags("torchtitan", tp=2, sequence_parallel=True, zero=3),
        "gathered": Flags("torchtitan", tp=2, sequence_parallel=True, zero=2),
    }
    files = []
    for name, made in {"best": best, **{k: replace(best, flags=f) for k, f in others.items()}}.items():
        files.append(tmp_path / f"{name}.py")
        files[-1].write_text(torchtitan_file(made, 2))
    done = subprocess.run(
        [sys.executable, "-W", "ignore", str(HERE / "titan_job.py"), str(HERE / "torch_models" / "titan_llama.py")]
        + ["4", "2", *map(str, files)],
        capture_output=True,
        check=False,
        text=True,
        timeout=600,
        env={**os.environ, "OMP_NUM_THREADS": "1", "PYTHONPATH": ""},
    )
    assert done.returncode == 0, done.stderr[-3000:]
    told = [json.loads(line) for line in done.stdout.splitlines()]
    assert [t["file"] for t in told] == [f.name for f in files]
    for t in told:
        assert t["losses"][0] > t["losses"][1] > t["losses"][2], "it learns"
        assert t["difference"] < 1e-5 and t["gradient"] < 1e-5, t
        assert any("Shard" in p for p in t["placements"].values())


def test_another_model_is_refused(found: Nearest, tmp_path: Path) -> None:
    torch = pytest.importorskip("torch")
    path = tmp_path / "x.py"
    path.write_text(torchtitan_file(found, 2))
    names: dict[str, object] = {}
    exec(compile(path.read_text(), str(path), "exec"), names)  # noqa: S102
    with pytest.raises(ValueError, match="no parameter 'tok_embeddings.weight'"):
        names["parallelize"](torch.nn.Linear(2, 2), None)  # type: ignore[operator]
    with pytest.raises(ValueError, match="is none of torchtitan's Llama"):
        torchtitan_file(replace(found, plan=replace(found.plan, graph=zoo.build("mlp-unity"))), 2)


RUNTIMES = {
    "torchtitan": (torchtitan.RUNTIME, layers.RUNTIME),
    "dtensor": (*dtensor.RUNTIME, layers.RUNTIME),
    "stages": (*dtensor.RUNTIME, *pipelined.STAGES, layers.RUNTIME),
}


@pytest.mark.parametrize("target", RUNTIMES)
def test_no_function_of_an_exported_file_hides_another(target: str) -> None:
    """Texts are put one behind another: a name that two of them have is the second's for both."""
    trees = [ast.parse(path.read_text(encoding="utf-8")) for path in RUNTIMES[target]]
    names = Counter(n.name for t in trees for n in t.body if isinstance(n, ast.FunctionDef | ast.ClassDef))
    assert not [name for name, many in names.items() if many > 1]
