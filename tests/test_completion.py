"""Words that a shell is offered: verbs, models and their sizes, machines, operators of the plan on the line."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
from click.shell_completion import BashComplete

import shardproof
from shardproof.__main__ import VERBS, cli


def offered(*words: str) -> list[str]:
    """What completes the last word, words before it given."""
    complete = BashComplete(cli, {}, "shardproof", "_SHARDPROOF_COMPLETE")
    return [item.value for item in complete.get_completions(list(words[:-1]), words[-1])]


@pytest.mark.parametrize(
    ("words", "some"),
    [
        (("",), set(VERBS)),
        (("pl",), {"plan", "place"}),
        (("plan", "bert"), {"bert-large", "bert-tiny"}),
        (("plan", "bert-tiny:"), {"bert-tiny:layers=", "bert-tiny:batch="}),
        (("plan", "bert-tiny:layers=2,b"), {"bert-tiny:layers=2,batch="}),
        (("plan", "bert-tiny", "--machine", "dgx-a"), {"dgx-a100", "dgx-a100-40"}),
        (("audit", "vi"), {"vit", "vit-l"}),
        (("plan", "bert-tiny", "--train", "ad"), {"adam", "adamw"}),
        (("plan", "bert-tiny", "--space", "two"), {"two-per-level", "two-per-level,uneven"}),
        (("plan", "bert-tiny", "--engine", ""), {"native", "ilp", "smt"}),
        (("rules", "pr"), {"prove"}),
        (("machine", "s"), {"show"}),
        (("plan", "bert-tiny", "--mac"), {"--machine"}),
    ],
)
def test_offered(words: tuple[str, ...], some: set[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    found = offered(*words)
    assert some <= set(found) and all(f.startswith(words[-1]) for f in found)


def test_files_and_operators(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    for name in ("net.onnx", "cluster.toml", "notes.txt"):
        (tmp_path / name).write_text("")
    (tmp_path / "more").mkdir()
    assert offered("plan", "n") == ["net.onnx"] and offered("plan", "mo") == ["moe", "more/"]
    assert "cluster.toml" in offered("plan", "net.onnx", "--machine", "")
    shardproof.plan("mlp-unity", "localhost:2", batch=16).save(tmp_path / "p.spz")
    assert offered("explain", "p.spz", "--op", "fc") == ["fc1", "fc2"]
    for broken in ("notes.txt", "missing.spz"):
        assert offered("explain", broken, "--op", "fc") == []


def test_a_shell_asks_and_no_verb_is_loaded() -> None:
    """The protocol of click's bash script; completing a verb loads no search."""
    code = (
        "import sys; sys.argv[0] = 'shardproof'\nfrom shardproof.__main__ import main\n"
        "try:\n    main()\nfinally:\n    print(any(m.startswith('shardproof.formal') for m in sys.modules))"
    )
    told = {**os.environ, "_SHARDPROOF_COMPLETE": "bash_complete", "COMP_WORDS": "shardproof pla", "COMP_CWORD": "1"}
    root = Path(shardproof.__file__).resolve().parent.parent
    done = subprocess.run(
        [sys.executable, "-c", code], env=told, capture_output=True, text=True, check=False, cwd=root, timeout=60
    )
    assert done.stdout.splitlines() == ["plain,place", "plain,plan", "False"], done
