"""The page of architectures: totals are those of its rows, refusals of one cause stand together."""

from __future__ import annotations

import re
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent / "benchmarks"))

from architectures import MODULES, Entry, _run, load, save
from architectures_page import cause, page


def _tried(good: bool, reason: str = "") -> dict[str, object]:
    return {"good": good, "seconds": 1.5, "gigabytes": 0.5, "operators": 7, "reason": reason}


def test_totals_and_causes() -> None:
    entries = [Entry("timm_models", name, "convolution", name.upper(), True) for name in ("a", "b", "c", "d")]
    refused = "error: unsupported operators: aten.sort.default (2: x, y); supported operators: 'shardproof import'"
    tries = {
        "timm_models:a": {"import": _tried(True), "train": _tried(True)},
        "timm_models:b": {"import": _tried(False, refused), "train": _tried(False, "does not import")},
        "timm_models:c": {"import": _tried(True), "train": _tried(False, "error: operator 'z': no gradient of it")},
    }
    text = page(entries, tries)
    assert "**3 architectures tried, 2 import (67 %); 1 of these train (50 %).**" in text
    assert "The list holds 4" in text
    assert (
        "| aten.sort.default | import | 1: b |" in text and "| operator ..: no gradient of it | train | 1: c |" in text
    )
    rows = [line for line in text.splitlines() if line.startswith("| `")]
    assert len(rows) == 3 and "| yes | 7 | 1.5 | yes |" in rows[0]


def test_causes_have_no_places() -> None:
    one = "error: unsupported operators: aten.topk.default with its values read (1: a.b); supported operators: x"
    other = "error: unsupported operators: aten.topk.default with its values read (7: c, d, ..); supported operators: x"
    assert cause(one) == cause(other) == "aten.topk.default with its values read"
    assert cause("error: node 'slice_7': has shape (2, 0)") == cause("error: node 'slice_9': has shape (4, 0)")


def test_a_try_is_the_command_in_a_process_of_its_own(tmp_path: Path) -> None:
    graph = tmp_path / "g.json"
    made = _run(["import", "mlp-unity", "-o", str(graph)], 60.0, 4.0)
    assert made.good and graph.exists()
    read = _run(["import", str(graph), "--json"], 60.0, 4.0)
    assert read.good and read.operators > 0
    refused = _run(["import", str(tmp_path / "no.json"), "-o", str(tmp_path / "none.json")], 60.0, 4.0)
    assert not refused.good and re.search(r"^error: model .* is neither a zoo name nor a file", refused.reason)


def test_results_survive(tmp_path: Path) -> None:
    assert load(tmp_path / "r.json") == {}
    save(tmp_path / "r.json", {"a:b": {"import": _tried(True)}})
    assert load(tmp_path / "r.json")["a:b"]["import"] == _tried(True)


def test_every_list_is_a_file() -> None:
    folder = Path(__file__).parent / "benchmarks" / "published"
    assert all((folder / f"{name}.py").is_file() for name in MODULES)
