"""A folder of measurements cut into parts, each judged by constants fitted on the others.

Rows that answer for one another stay together: all strategies of a `vtrain` group, all runs of one MLPerf system.  Other
tables are cut row by row.  Which part a row falls into depends on its text alone (SHA-256), not on its neighbours.
"""

from __future__ import annotations

import csv
import gzip
import hashlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path

from .rows import Cells, read

TOGETHER: dict[str, tuple[str, ...]] = {
    "vtrain/single": ("hidden", "heads", "layers", "seq", "global_batch", "gpus"),
    "mlperf_405b/steps": ("org", "system", "gpus"),
}
"""Columns that name what stays together."""

WHOLE = ("vtrain/all_reduce",)
"""Tables that every part keeps: they are no answers of a family."""


def part_of(name: str, row: Cells, parts: int, seed: int) -> int:
    """Number of the part that a row falls into.

    >>> part_of("x", {"a": "1", "b": "2"}, 3, 0) == part_of("x", {"b": "2", "a": "1"}, 3, 0)
    True
    """
    columns = TOGETHER.get(name, tuple(sorted(k for k in row if k)))
    text = "|".join([name, str(seed), *(f"{c}={row.get(c)}" for c in columns)])
    return int(hashlib.sha256(text.encode()).hexdigest(), 16) % parts


def cut(source: Path, into: Path, parts: int, seed: int = 0) -> Iterator[tuple[Path, Path]]:
    """Write folders `into/N/fit` and `into/N/judge` for every part and yield them."""
    tables: dict[str, tuple[Sequence[str], list[Cells]]] = {}
    for file in sorted([*source.rglob("*.csv.gz"), *source.rglob("*.csv")]):
        name = file.relative_to(source).as_posix().removesuffix(".gz").removesuffix(".csv")
        rows = read(source, name)
        tables[name] = (list(rows[0]) if rows else (), rows)
    for part in range(parts):
        for side in ("fit", "judge"):
            for name, (columns, rows) in tables.items():
                kept = [
                    r for r in rows if name in WHOLE or (part_of(name, r, parts, seed) == part) == (side == "judge")
                ]
                path = into / str(part) / side / f"{name}.csv.gz"
                path.parent.mkdir(parents=True, exist_ok=True)
                with gzip.open(path, "wt", encoding="utf-8", newline="", compresslevel=1) as written:
                    writer = csv.DictWriter(written, columns)
                    writer.writeheader()
                    writer.writerows(kept)
        yield into / str(part) / "fit", into / str(part) / "judge"


def joined(found: Sequence[Mapping[str, object]]) -> dict[str, object]:
    """Figures of all parts as one: means weighted by rows (ranks: by groups), worsts, sums of counts.

    >>> joined([{"rows": 1, "mean_error": 0.1, "worst_error": 0.1}, {"rows": 3, "mean_error": 0.3, "worst_error": 0.5}])
    {'rows': 4, 'mean_error': 0.25, 'worst_error': 0.5}
    """
    out: dict[str, object] = {}
    filled = [f for f in found if f.get("rows")]
    for key in dict.fromkeys(k for f in filled for k in f):
        values = [f[key] for f in filled if key in f]
        if all(isinstance(v, Mapping) for v in values):
            out[key] = joined([v for v in values if isinstance(v, Mapping)])
        elif not all(isinstance(v, int | float) for v in values):
            out[key] = values[0]
        elif key.startswith("worst"):
            out[key] = max(float(str(v)) for v in values)
        elif key == "constants":
            out[key] = values[0]
        elif all(isinstance(v, int) for v in values):
            out[key] = sum(int(str(v)) for v in values)
        else:
            weight = _weights(filled, key)
            out[key] = sum(w * float(str(v)) for w, v in zip(weight, values, strict=True)) / sum(weight)
    return out or {"rows": 0}


def _weights(found: Sequence[Mapping[str, object]], key: str) -> list[float]:
    """Of every part that has the figure: its groups for ranks, else its rows."""
    count: Callable[[Mapping[str, object]], object] = (
        (lambda f: f.get("groups", 0)) if key == "rank_correlation" else (lambda f: f["rows"])
    )
    return [float(str(count(f))) for f in found if key in f]
