"""The runner of benchmarks: it knows every script, and writes what was run, where and under which load."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

from benchmarks import run


def test_every_script_is_a_benchmark_or_a_part_of_one() -> None:
    known = run.benchmarks()
    others = {p.stem for p in run.HERE.glob("*.py")} - set(known) - {"run", "kept_rows"}
    assert len(known) >= 20 and all(known.values())
    assert all(name.endswith("_page") and name.removesuffix("_page") in known for name in others), others
    assert set(known) >= run.NEED_WORDS


def test_a_run_leaves_a_row(tmp_path: Path) -> None:
    store, page = tmp_path / "runs.jsonl", tmp_path / "runs.md"
    call = [sys.executable, run.__file__, "array_programs", "--store", str(store), "--page", str(page), "--", "2"]
    for _ in range(2):
        done = subprocess.run(call, capture_output=True, text=True, timeout=250, check=False)
        assert done.returncode == 0, done.stderr
    rows = [json.loads(line) for line in store.read_text().splitlines()]
    assert len(rows) == 2 and rows[0]["name"] == "array_programs" and rows[0]["words"] == ["2"]
    assert rows[0]["cpu_s"] > 0 and len(rows[0]["load"]) == 2 and rows[0]["commit"] and rows[0]["lines"]
    text = page.read_text()
    assert text.count("| `array_programs 2` |") == 2 and text.count("## array_programs") == 1
    assert rows[1]["lines"][-1] in text


def test_an_unknown_name_is_refused() -> None:
    done = subprocess.run([sys.executable, run.__file__, "nobody"], capture_output=True, text=True, check=False)
    assert done.returncode == 2 and "there is no benchmark 'nobody'" in done.stderr and "contest" in done.stderr
