"""`fits`: verdicts that the checker confirms, margins, and the least changes, each beside its neighbours."""

from __future__ import annotations

import json

import pytest

from shardproof.__main__ import run

MODEL = "llama:layers=2,sequence=64,width=64,heads=4,kv_heads=2,hidden=128,vocabulary=256"
ZERO1 = '{"zero_optimization": {"stage": 1, "reduce_bucket_size": 1}, "train_micro_batch_size_per_gpu": 4, "train_batch_size": 16}'


def said(capsys: pytest.CaptureFixture[str], *words: str, model: str = MODEL) -> tuple[int, dict[str, object]]:
    code = run(["fits", model, "--batch", "16", "--machine", "localhost:4", *words, "--json"])
    return code, json.loads(capsys.readouterr().out)


def test_a_forward_pass_fits_or_not_with_its_margin(capsys: pytest.CaptureFixture[str]) -> None:
    """The least limit under which it fits is between the two verdicts."""
    model = MODEL.replace("layers=2", "layers=1")
    code, found = said(capsys, model=model)
    assert code == 0 and found["verdict"] == "fits" and found["changes"] == []
    peak = found["peak_bytes"]
    assert isinstance(peak, int) and isinstance(found["parts"], dict)
    assert found["parts"]["stored"] + found["parts"]["passing"] == peak < found["memory_bytes"]
    code, same = said(capsys, "--memory", f"{-(-peak // 1024)}KiB", model=model)
    assert code == 0 and isinstance(same["peak_bytes"], int) and same["peak_bytes"] <= peak + 1024
    code, none = said(capsys, "--memory", "100KiB", model=model)
    assert code == 20 and none["verdict"] == "does not fit" and none["peak_bytes"] is None


@pytest.mark.slow
def test_settings_that_do_not_fit_and_the_least_changes_that_do(capsys: pytest.CaptureFixture[str]) -> None:
    ask = ("--train", "adam", "--strategy", ZERO1)
    code, found = said(capsys, *ask)
    running = found["configuration"]
    assert code == 0 and isinstance(running, dict) and running["memory"]["activations"] > 0
    code, none = said(capsys, *ask, "--memory", "2050KiB")
    assert code == 20 and none["verdict"] == "does not fit"
    changes = {c["kind"]: c for c in none["changes"]}  # type: ignore[attr-defined]
    assert set(changes) == {"micro-batches", "nodes"}, "of two layers one that is computed again is there whole"
    for change in changes.values():
        assert change["least"] and change["verdict"] == "fits"
        assert change["peak_bytes"] <= 2050 << 10 and change["configuration"]["memory_bytes"] <= 2050 << 10
    assert changes["micro-batches"]["micro_batches"] == 2
    assert changes["nodes"]["devices"] == 8
    code, same = said(capsys, "--train", "adam", "--memory", "2050KiB", "--strategy", ZERO1.replace('": 4', '": 2'))
    assert code == 0 and same["micro_batches"] == 2, "the change that was named is one that fits"


def test_what_fits_does_not_take_is_refused(capsys: pytest.CaptureFixture[str]) -> None:
    words = ["fits", MODEL, "--batch", "16", "--machine", "localhost:4"]
    for more, code, message in (
        (["--strategy", "--pipeline-model-parallel-size 2 --micro-batch-size 1"], 3, "2 stages hold"),
        (["--strategy", "--num-layers 3", "--train", "adam"], 3, "the model has 2 layers"),
        (["--strategy", '{"*": null}'], 3, "no settings of a framework"),
        (["--recompute", "all"], 2, "--train"),
        (["--precision", "bf16-master"], 2, "--train"),
    ):
        assert run([*words, *more]) == code, more
        assert message in capsys.readouterr().err


def test_it_says_so_to_people(capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["fits", MODEL, "--batch", "16", "--machine", "localhost:4"]) == 0
    out = capsys.readouterr().out
    assert "fits (proved): at most" in out and "are left" in out and "stored" in out


def test_a_model_without_layers_that_repeat_has_nothing_to_compute_again(capsys: pytest.CaptureFixture[str]) -> None:
    model, job = "mlp-8192:layers=3,width=64", ["--batch", "16", "--train", "sgd", "--machine", "localhost:4"]
    assert run(["fits", model, *job, "--memory", "20KiB", "--json"]) == 20
    said = json.loads(capsys.readouterr().out)
    assert [c["kind"] for c in said["changes"]] == ["nodes"] and said["changes"][0]["least"]
    assert said["space"] == "complete"  # in which it is proved
    assert run(["plan", model, *job, "--memory", "20KiB", "-o", "unused.spz", "--json"]) == 20
    assert json.loads(capsys.readouterr().out)["status"] == "infeasible"


def test_what_settings_take_as_they_run_decides(capsys: pytest.CaptureFixture[str]) -> None:
    """ZeRO-2's update casts gradients: 16.8 MB, where placements of what the settings leave open hold less."""
    small = "llama:layers=2,sequence=4,width=256,heads=4,kv_heads=2,hidden=1024,vocabulary=256"
    words = ["fits", small, "--batch", "4", "--machine", "localhost:4", "--train", "adam", "--json", "--strategy"]
    two = (
        '{"zero_optimization": {"stage": 2, "reduce_bucket_size": 1}, "train_micro_batch_size_per_gpu": 1, '
        '"bf16": {"enabled": true}}'
    )
    found = {}
    for limit in ("20MiB", "17MiB", "15MiB"):
        code = run([*words, two, "--memory", limit])
        found[code] = json.loads(capsys.readouterr().out)
    assert {code: said["verdict"] for code, said in found.items()} == {
        0: "fits",
        5: "undecided",
        10: "does not fit as it runs",
    }
    parts = found[10]["configuration"]["memory"]
    assert parts["update, beyond these"] > parts["gradients"] and found[10]["reserved_bytes"] == 0


def test_a_part_of_the_memory_is_kept_and_said(capsys: pytest.CaptureFixture[str]) -> None:
    words = ["fits", MODEL, "--batch", "16", "--machine", "localhost:4", "--memory", "80GiB"]
    assert run(words) == 0
    out = capsys.readouterr().out
    assert "of 78 GiB on a device" in out and "driver and libraries keep 2 GiB of 80 GiB" in out
    assert run([*words, "--reserve", "0", "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["reserved_bytes"] == 0
    assert run([*words, "--reserve", "80GiB"]) == 3
    assert "leaves nothing" in capsys.readouterr().err


def test_stages_have_an_estimate(capsys: pytest.CaptureFixture[str]) -> None:
    """Nothing is proved of them; the first stage holds the activations of two micro-batches."""
    two = "--pipeline-model-parallel-size 2 --micro-batch-size 1 --global-batch-size 16 --bf16"
    code, found = said(capsys, "--train", "adam", "--strategy", two)
    assert code == 5 and found["verdict"] == "fits as it runs" and found["space"] is None
    running = found["configuration"]
    assert isinstance(running, dict) and found["micro_batches"] == 8
    code, none = said(capsys, "--train", "adam", "--strategy", two, "--memory", f"{running['memory_bytes'] // 2048}KiB")
    assert code == 10 and none["verdict"] == "does not fit as it runs"
    assert not any(change["least"] for change in none["changes"])  # type: ignore[attr-defined]
