"""Settings against what is audited: sizes, types, batch, optimizer and recomputation are the model's and the options',
or refused by name; files as people have them; an audit that nothing fits says so and never prints infinity as a time.
"""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest

import shardproof
from shardproof.__main__ import run
from shardproof.formal.plans.frameworks import framework_settings, strategy_of_settings
from shardproof.formal.plans.strategy import StrategyError
from shardproof.models.machine.machine import load_machine
from shardproof.models.program.graph import Graph
from shardproof.models.sources import zoo
from shardproof.models.sources.frameworks.fit import fit_settings, of_a_pass, of_a_step, sizes_of
from shardproof.models.sources.frameworks.flags import read_settings
from shardproof.models.sources.frameworks.settings import Settings
from shardproof.models.sources.load import load_model
from shardproof.models.sources.training import build_step
from shardproof.models.text import InputError

FILES = Path(__file__).parent / "data" / "settings"
TINY = {"layers": 1, "sequence": 16, "width": 32, "heads": 4, "kv_heads": 2, "hidden": 64, "vocabulary": 32}
SPEC = "llama:layers=1,sequence=16,width=32,heads=4,kv_heads=2,hidden=64,vocabulary=32"


def llama(batch: int = 8, **sizes: int | str) -> Graph:
    return zoo.build("llama", batch=batch, **{**TINY, **sizes})  # type: ignore[arg-type]


def settings_of(text: str) -> Settings:
    found = read_settings(text)
    assert found is not None
    return found


def group(settings: Settings, name: str) -> list[str]:
    found = settings.to_json()[name]
    assert isinstance(found, (list, dict))
    return list(found)


RIGHT = {
    "--num-layers": 1,
    "--hidden-size": 32,
    "--ffn-hidden-size": 64,
    "--num-attention-heads": 4,
    "--group-query-attention --num-query-groups": 2,
    "--kv-channels": 8,
    "--seq-length": 16,
    "--vocab-size": 32,
}


@pytest.mark.parametrize("flag", RIGHT)
def test_a_size_is_the_models_or_refused_naming_both(flag: str) -> None:
    kept = fit_settings(settings_of(f"{flag} {RIGHT[flag]}"), llama())
    assert flag.split()[-1] in group(kept, "read") and not group(kept, "not_compared")
    other = 12345 if flag != "--num-layers" else 99
    with pytest.raises(InputError, match=rf"{flag.split()[-1]} {other}, the model has .*{RIGHT[flag]}"):
        fit_settings(settings_of(f"{flag} {other}"), llama())


def test_all_sizes_that_differ_are_named() -> None:
    with pytest.raises(InputError, match=r"--num-layers 99, .*--hidden-size 12345, .*another model than llama"):
        fit_settings(settings_of("--num-layers 99 --hidden-size 12345"), llama())
    with pytest.raises(InputError, match="--group-query-attention alone, the model has 2 heads of keys"):
        fit_settings(settings_of("--group-query-attention"), llama())


def test_sizes_of_every_transformer_of_the_zoo() -> None:
    """What the axes say is what the options said."""
    small = {"sequence": 64, "width": 64, "heads": 8, "vocabulary": 96}
    for name, sizes, own in (
        ("llama", small, {"layers": 3, "kv_heads": 2, "hidden": 96}),
        ("llama-3-8b", small, {"layers": 3, "kv_heads": 2, "hidden": 96}),
        ("moe", small, {"layers": 3, "kv_heads": 2, "hidden": 96, "experts": 4, "chosen": 2}),
        ("gpt-3-175b", small, {"depth": 3}),
    ):
        found = sizes_of(zoo.build(name, batch=8, **sizes, **own))  # type: ignore[arg-type]
        wanted = {("layers" if k == "depth" else k): v for k, v in (sizes | own).items()} | {"head": 8}
        assert {k: v for k, v in found.items() if k in wanted} == {k: frozenset({v}) for k, v in wanted.items()}, name
        trained = sizes_of(build_step(zoo.build(name, batch=8, **sizes, **own), "adam").graph)  # type: ignore[arg-type]
        assert trained == found, "gradients add no sizes"


def test_a_padded_vocabulary_is_the_models() -> None:
    assert fit_settings(settings_of("--vocab-size 50257 --tensor-model-parallel-size 8"), llama(vocabulary=51200))
    with pytest.raises(InputError, match="--vocab-size 50257"):
        fit_settings(settings_of("--vocab-size 50257"), llama(vocabulary=51200))


def test_what_the_model_has_no_axis_for_is_listed() -> None:
    kept = fit_settings(settings_of("--num-experts 8 --moe-router-topk 2 --swiglu"), llama())
    assert group(kept, "not_compared") == ["--num-experts", "--moe-router-topk", "--swiglu"]
    assert group(kept, "read") == []


@pytest.mark.parametrize(
    ("text", "graph", "message"),
    [
        ("--expert-model-parallel-size 2", {}, "experts over 2 devices, and llama has none"),
        ("[model]\nname = 'llama3'\nflavor = '70B'\n[parallelism]", {}, "model.flavor 70B 80, the model has 1 layers"),
        ("[model]\nflavor = 'debugmodel'\n[parallelism]", {}, "debugmodel 6, the model has 1 layers"),
        ("[training]\nseq_len = 4096\n[parallelism]", {}, "training.seq_len 4096, the model has a sequence of 16"),
        ("--use-flash-attn", {}, "products and softmax of whole scores; give --attention operator"),
    ],
)  # fmt: skip
def test_settings_of_another_model_are_refused(text: str, graph: dict[str, int], message: str) -> None:
    with pytest.raises(InputError, match=message):
        fit_settings(settings_of(text), llama(**graph))


def test_a_family_is_the_models() -> None:
    named = settings_of("[model]\nname = 'llama3'\n[parallelism]")
    fit_settings(named, llama())
    for other in (zoo.build("moe", batch=8, layers=1, sequence=16), zoo.build("bert-tiny", batch=8)):
        with pytest.raises(InputError, match="model.name llama3: .* is no dense decoder"):
            fit_settings(named, other)


def test_attention_is_the_models() -> None:
    fused = load_model(SPEC, 8, None, "operator")
    fit_settings(settings_of("--use-flash-attn"), fused)
    fit_settings(settings_of("--attention-backend unfused"), llama())
    fit_settings(settings_of("--attention-backend auto"), llama())
    with pytest.raises(InputError, match="attention of llama is one operator; give --attention matrices"):
        fit_settings(settings_of("--attention-backend unfused"), fused)


@pytest.mark.parametrize(
    ("text", "batch", "message"),
    [
        ("--micro-batch-size 1 --global-batch-size 64", 64, "make 8 micro-batches of 8, and one pass over a batch of 64"),
        ("--micro-batch-size 3", 8, "make passes of 24"),
        ("--global-batch-size 16", 8, "a global batch of 16, the model has 8; give --batch 16"),
        ('{"train_batch_size": 64, "gradient_accumulation_steps": 8}', 64, "8 micro-batches of 8"),
        ("--fp16", 8, "--fp16: llama computes in bfloat16; give the model with dtype=float16 or --precision fp16-master"),
        ("--recompute-granularity full --recompute-method uniform --recompute-num-layers 1", 8, "computes nothing again"),
    ],
)  # fmt: skip
def test_what_one_pass_does_not_say_is_refused(text: str, batch: int, message: str) -> None:
    with pytest.raises(InputError, match=message):
        of_a_pass(settings_of(text), llama(batch), 8)


@pytest.mark.parametrize(
    ("text", "batch"),
    [
        ("--micro-batch-size 1 --global-batch-size 64", 8),
        ("--micro-batch-size 2 --global-batch-size 16", 16),
        ("--global-batch-size 8", 8),
        ("--sequence-parallel", 3),
        ('{"train_batch_size": 64, "gradient_accumulation_steps": 8}', 8),
        ("--bf16 --optimizer sgd --accumulate-allreduce-grads-in-fp32", 8),
    ],
)  # fmt: skip
def test_one_pass_is_audited(text: str, batch: int) -> None:
    found = of_a_pass(settings_of(text), llama(batch), 8)
    if "sgd" in text:
        assert {"--optimizer", "--accumulate-allreduce-grads-in-fp32"} <= set(group(found, "no_effect"))


FULL = "--recompute-granularity full --recompute-method uniform --recompute-num-layers 1"


@pytest.mark.parametrize(
    ("text", "train", "recompute", "precision", "message"),
    [
        ("--optimizer sgd", "adam", "none", None, "--optimizer sgd, and --train adam"),
        ("--optimizer adam", "lion", "none", None, "--optimizer adam, and --train lion"),
        (FULL, "adam", "none", None, "--recompute-granularity, and --recompute none; give --recompute all"),
        (FULL, "adam", "layer0", None, "give --recompute all"),
        ("[activation_checkpoint]\nmode = 'none'\n[parallelism]", "adam", "all", None, "mode none, and --recompute all"),
        ("--bf16", "adam", "none", "fp16-master", "--bf16: llama computes in float16"),
        ("--fp16", "adam", "none", None, "dtype=float16 or --precision fp16-master"),
        ("--accumulate-allreduce-grads-in-fp32", "adam", "none", None, "in bfloat16; give --precision bf16-master"),
        ("--grad-reduce-in-bf16", "adam", "none", "bf16-mixed", "give --precision bf16-mixed:reduce=bfloat16"),
    ],
)  # fmt: skip
def test_what_the_step_does_not_say_is_refused(
    text: str, train: str, recompute: str, precision: str | None, message: str
) -> None:
    with pytest.raises(InputError, match=message):
        of_a_step(settings_of(text), llama(), train, recompute, precision)


def test_what_the_step_says_is_honoured() -> None:
    for text, train, recompute, precision in (
        ("--optimizer adam --bf16 --grad-reduce-in-bf16", "adamw:rate=1e-4", "none", None),
        (FULL, "adam", "all", None),
        ("--bf16 --accumulate-allreduce-grads-in-fp32", "adam", "none", "bf16-master"),
        (
            '{"bf16": {"enabled": true}, "communication_data_type": "bf16"}',
            "adam",
            "none",
            "bf16-mixed:reduce=bfloat16",
        ),
    ):
        of_a_step(settings_of(text), llama(), train, recompute, precision)


PUBLIC = {
    "deepspeed_zero3_offload.json": "offload is no plan of ours",
    "etp.txt": "--expert-tensor-parallel-size 1",
    "megatron_issue1031_70b.txt": "--recompute-num-layers 5",
    "megatron_llama3_8b_h100_fp8.args": "--fp8-format 'hybrid'",
    "offload.json": "offload_optimizer.device 'cpu': offload is no plan of ours",
    "torchtitan_deepseek_v3_671b.toml": "activation_checkpoint.mode 'selective'",
    "torchtitan_llama3_405b.toml": "model.converters 'float8'",
    "torchtitan_llama3_8b.toml": "activation_checkpoint.mode 'selective'",
    "vllm_serve_llama70b.args": "--pipeline-parallel-size 2",
}
READ = {
    "accelerate_fsdp.yaml": {"source": "accelerate", "zero": 3},
    "nanotron_tiny_llama_parallelism.yaml": {"tp": 2, "pp": 2, "dp": 2, "sequence_parallel": True, "zero": 0},
    "ds_auto.json": {"zero": 3},
    "ds_steps.json": {"zero": 1, "steps": 8, "global_batch": 64},
    "torchtitan_llama3_70b.toml": {"tp": 8, "zero": 3, "sequence_parallel": True, "micro_batch": 8},
    "zero3.json": {"zero": 3, "micro_batch": 1, "global_batch": 16},
    "launch.sh": {"tp": 2, "sequence_parallel": True, "zero": 1, "micro_batch": 1, "global_batch": 8},
    "megatron_gpt3_175b.sh": {"tp": 8, "pp": 16, "micro_batch": 1, "global_batch": 1536},
    "megatron_mixtral_8x7b.sh": {"tp": 1, "ep": 2, "zero": 1, "micro_batch": 1, "global_batch": 4, "devices": 2},
    "megatron_mixtral_test.yaml": {"tp": 2, "pp": 4, "zero": 1, "sequence_parallel": True, "global_batch": 256},
    "bigscience_tr11_176b.slurm": {"tp": 4, "pp": 12, "micro_batch": 2, "global_batch": 2048, "devices": 384},
    "fastchat_vicuna_13b.sh": {"zero": 3, "micro_batch": 1, "steps": 4, "devices": 8},
    "nanotron_qwen.yaml": {"tp": 2, "dp": 1, "micro_batch": 3, "sequence_parallel": True, "zero": 0},
    "nemo_llama2_70b.yaml": {"tp": 4, "pp": 4, "zero": 1, "micro_batch": 1, "global_batch": 2048, "devices": 1024},
    "torchtitan_qwen3_32b.toml": {"zero": 3, "micro_batch": 2, "passing": 2},
}


def test_files_as_people_have_them() -> None:
    """Each is read whole, or refused at the first word that matters."""
    assert {f.name for f in FILES.iterdir()} - {"README.md"} == {*PUBLIC, *READ}
    for name, message in PUBLIC.items():
        with pytest.raises(StrategyError, match=re.escape(message)):
            framework_settings(FILES / name)
    for name, wanted in READ.items():
        found = framework_settings(FILES / name)
        assert found is not None and {k: getattr(found.flags, k) for k in wanted} == wanted, name
    whole = framework_settings(FILES / "torchtitan_llama3_70b.toml")
    assert whole is not None and whole.recompute is not None and whole.recompute.value == "all"
    fit_settings(whole, zoo.build("llama-3-70b", batch=8))
    with pytest.raises(InputError, match="model.flavor 70B 80, the model has 2 layers"):
        fit_settings(whole, zoo.build("llama-3-8b", batch=8, layers=2))


def test_a_text_is_given_as_a_file_is(tmp_path: Path) -> None:
    (tmp_path / "f.txt").write_text("FULL_SHARD")
    graph, machine = llama(), load_machine("localhost:4")
    both = [framework_settings(source) for source in (tmp_path / "f.txt", "FULL_SHARD")]
    rules = [strategy_of_settings(s, graph, machine).rules for s in both if s is not None]
    assert rules[0] == rules[1] and len(rules) == 2
    assert framework_settings(tmp_path / "missing" / "f.txt") is None
    with pytest.raises(StrategyError, match="neither a file nor settings"):
        framework_settings("missing.txt")


@pytest.mark.parametrize(
    ("strategy", "message"),
    [
        ("--tensor-model-paralel-size 2", "did you mean '--tensor-model-parallel-size'"),
        ("--tensor-parallel-size 4 --pipeline-parallel-size 2", "--pipeline-parallel-size 2"),
        ("tensor_paralel_degree = 8", "did you mean 'parallelism.tensor_parallel_degree'"),
        ('{"zero_optimization": {"stagee": 3}}', "did you mean 'zero_optimization.stage'"),
        ("--num-layers 99 --hidden-size 12345", "the model has 1 layers"),
        ("--fp8-format hybrid", "8 and 4 bits"),
        ("--cp-comm-type a2a", "all_gather"),
        ("HYBRID_SHARD", "hybrid sharding"),
        ("FULL_SHRAD", "did you mean 'full_shard'"),
        (str(FILES / "torchtitan_deepseek_v3_671b.toml"), "activation_checkpoint.mode"),
        (str(FILES / "offload.json"), "offload"),
        (str(FILES / "etp.txt"), "--expert-tensor-parallel-size"),
    ],
)  # fmt: skip
def test_the_command_line_and_python_refuse_by_name(
    strategy: str, message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(["audit", SPEC, "--batch", "8", "--machine", "localhost:4", "--strategy", strategy]) == 3
    assert message in capsys.readouterr().err
    with pytest.raises((StrategyError, InputError), match=re.escape(message)):
        shardproof.audit(SPEC, "localhost:4", strategy, batch=8)


def test_the_answer_lists_all_groups(capsys: pytest.CaptureFixture[str]) -> None:
    text = "--tensor-model-parallel-size 2 --sequence-parallel --lr 1e-4 --swiglu --bf16 --cp-comm-type allgather"
    words = ["audit", SPEC, "--batch", "8", "--machine", "localhost:4", "--strategy", text]
    assert run([*words, "--json"]) in (0, 10)
    said = json.loads(capsys.readouterr().out)["settings"]
    assert said == {
        "framework": "Megatron",
        "read": {"--tensor-model-parallel-size": 2, "--sequence-parallel": True, "--bf16": True},
        "by_default": [],
        "no_effect": ["--lr"],
        "not_compared": ["--swiglu"],
        "unsupported": ["--cp-comm-type"],
        "not_said": [],
    }
    assert run(words) in (0, 10)
    assert "settings of Megatron: 3 words read; 1 change nothing in our model (--lr)" in capsys.readouterr().out
    report = shardproof.audit(SPEC, "localhost:4", text, batch=8)
    assert report.settings is not None and report.to_json()["settings"] == said


def test_settings_decide_recomputation_of_the_step(capsys: pytest.CaptureFixture[str]) -> None:
    words = ["audit", SPEC, "--batch", "8", "--machine", "localhost:2", "--train", "sgd", "--json"]
    words += ["--work-limit", "500k", "--strategy"]
    text = f"--micro-batch-size 4 --global-batch-size 8 {FULL}"
    assert run([*words, text]) in (0, 5, 10)
    assert FULL.split()[0] in json.loads(capsys.readouterr().out)["settings"]["read"]
    assert run([*words, text, "--recompute", "none"]) == 3
    assert "give --recompute all" in capsys.readouterr().err
    assert run([*words, "--micro-batch-size 4 --bf16"]) in (0, 5, 10)
    masters = json.loads(capsys.readouterr().out)
    assert run([*words, "--micro-batch-size 4"]) in (0, 5, 10)
    plain = json.loads(capsys.readouterr().out)
    assert masters["strategy_peak_bytes"] > plain["strategy_peak_bytes"], "weights in float32 are kept beside"
    assert run([*words, "--micro-batch-size 4 --accumulate-allreduce-grads-in-fp32"]) == 3
    assert "--precision bf16-master" in capsys.readouterr().err
    assert run(["audit", SPEC, "--machine", "localhost:2", "--strategy", "NO_SHARD", "--precision", "bf16-mixed"]) == 2
    assert "--precision needs --train" in capsys.readouterr().err
    with pytest.raises(InputError, match="give them to pipeline"):
        shardproof.plan(SPEC, "localhost:2", batch=8, train="adam", strategy="NO_SHARD")


@pytest.mark.parametrize(
    ("text", "precision"),
    [
        ("--bf16", "bf16-master"),
        ("--bf16 --grad-reduce-in-bf16", "bf16-master:reduce=bfloat16"),
        ("--fp16 --sequence-parallel", "fp16-master:reduce=float16"),
        ("--fp16 --accumulate-allreduce-grads-in-fp32", "fp16-master"),
        ("--sequence-parallel", None),
        ('{"bf16": {"enabled": true}}', "bf16-master:reduce=bfloat16"),
        ('{"bf16": {"enabled": true}, "communication_data_type": "fp32"}', "bf16-master"),
        ('{"bf16": {"enabled": false}}', None),
        ("[training]\nmixed_precision_param = 'bfloat16'\n[parallelism]", "bf16-master"),
        ("[training]\nmixed_precision_param = 'float32'\n[parallelism]", None),
        ("[parallelism]\ntensor_parallel_degree = 2", "bf16-master"),
        ("[parallelism]\ntensor_parallel_degree = 2\ndata_parallel_shard_degree = 1", None),
    ],
)
def test_settings_say_the_precision_of_the_step(text: str, precision: str | None) -> None:
    found = settings_of(text)
    assert found.precision == precision
    if precision is not None:
        of_a_step(found, llama(), "adam", "none", precision)


SECONDS = re.compile(r"[0-9.]+e\+[0-9]+ m?s\b")


def test_nothing_fits_and_the_audit_says_so(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Before: "no completion takes less than 1.181e+09 s", exit 5."""
    zero3 = '{"zero_optimization": {"stage": 3}, "train_micro_batch_size_per_gpu": 1, "train_batch_size": 4}'
    words = ["audit", SPEC, "--batch", "4", "--machine", "localhost:2", "--train", "sgd", "--memory", "4kB"]
    words += ["--work-limit", "1M"]
    assert run([*words, "--strategy", zero3, "-o", str(tmp_path / "c.spz")]) == 20
    out = capsys.readouterr().out
    assert "infeasible (proved): nothing fits" in out and "limit is 4000" in out and not SECONDS.search(out)
    assert run([*words, "--strategy", zero3, "--json"]) == 20
    said = json.loads(capsys.readouterr().out)
    assert said["outcome"] == "infeasible" and said["conflict"]["limit"] == 4000
    assert said["strategy_lower_bound"] is None and said["lower_bound"] is None
    assert "a-step-in-micro-batches-keeps-what-one-micro-batch-keeps" in {*said["assumptions"], *out.split()}
    assert (tmp_path / "c.spz").stat().st_size > 0


@pytest.mark.parametrize(
    "words",
    [
        ["audit", "--strategy", "NO_SHARD"],
        pytest.param(["audit", "--strategy", "NO_SHARD", "--joint"], marks=pytest.mark.slow),
        ["audit", "--train", "adam", "--strategy", "--pipeline-model-parallel-size 2 --micro-batch-size 1"],
        pytest.param(["audit", "--train", "adam", "--pipeline", "auto", "--strategy", "--micro-batch-size 1"], marks=pytest.mark.slow),
        ["plan", "--train", "adam", "--pipeline", "2:4", "-o", "p.spz"],
        pytest.param(["plan", "--train", "adam", "--pipeline", "2:2:2", "-o", "p.spz"], marks=pytest.mark.slow),
        pytest.param(["plan", "--train", "adam", "--pipeline", "2:4", "--strategy", "x.txt", "-o", "p.spz"], marks=pytest.mark.slow),
        pytest.param(["plan", "--train", "adam", "--micro-batch", "auto", "-o", "p.spz"], marks=pytest.mark.slow),
        pytest.param(["plan", "--train", "adam", "--recompute", "auto", "-o", "p.spz"], marks=pytest.mark.slow),
        pytest.param(["plan", "--joint", "-o", "p.spz"], marks=pytest.mark.slow),
        pytest.param(["plan", "--overlap", "-o", "p.spz"], marks=pytest.mark.slow),
    ],
)  # fmt: skip
def test_infinity_is_never_printed_as_a_time(
    words: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Memory that nothing fits, in all that audits and plans: no answer has a time of centuries."""
    monkeypatch.chdir(tmp_path)
    Path("x.txt").write_text("--pipeline-model-parallel-size 2 --micro-batch-size 1")
    model = SPEC.replace("layers=1", "layers=2")
    ask = [words[0], model, *words[1:], "--batch", "4", "--machine", "localhost:2", "--memory", "4kB"]
    for json_too in ([], ["--json"]):
        code = run([*ask, *json_too, "--work-limit", "60M"])
        captured = capsys.readouterr()
        assert code in (5, 20) or (code == 3 and "--memory" in captured.err), (code, captured)
        assert not SECONDS.search(captured.out + captured.err), captured
        if json_too and code != 3:
            assert not large(json.loads(captured.out), ""), captured.out


def large(value: object, at: str) -> list[str]:
    """Places of numbers that are no times: seconds of years, picoseconds beyond 2^60."""
    if isinstance(value, dict):
        return [place for key, inner in value.items() for place in large(inner, f"{at}.{key}")]
    if isinstance(value, list):
        return [place for inner in value for place in large(inner, at)]
    return [at] if isinstance(value, (int, float)) and not isinstance(value, bool) and abs(value) >= 1 << 60 else []


@pytest.mark.slow
def test_a_sum_that_no_certificate_holds_refutes_nothing(capsys: pytest.CaptureFixture[str]) -> None:
    """A stage whose weights are more than the memory: before, "the plan takes 100.0% less", exit 10."""
    model = "llama:layers=4,sequence=4,width=32,heads=4,kv_heads=2,hidden=64,vocabulary=4096"
    ask = ["audit", model, "--batch", "4", "--machine", "localhost:4", "--train", "adam", "--memory", "1500kB"]
    stages = "--pipeline-model-parallel-size 4 --micro-batch-size 1"
    assert run([*ask, "--pipeline", "auto", "--strategy", stages, "--work-limit", "150M"]) == 5
    out = capsys.readouterr().out
    assert "no completion fits" in out and "100.0%" not in out and "which no certificate holds" in out
