"""Published steps predicted by the plan's own model of times: whole configurations, nothing fitted on what is judged.

    python tests/benchmarks/published_steps.py --judge DIR [--fit DIR] [--json] [--only FAMILY ..] [--page]

DIR is laid out as ../shared/data/measured (any file, any row may be missing).  Every row becomes a configuration
(`configurations/tables.py`), one layer of which is priced on the package's machine file, and the step composed
(`formal/plans/pipelines/composed.py`), or it is counted in `left_out` with the reason.

With `--fit` one constant per family, the median of measured over predicted of another folder's rows, multiplies what is
predicted, and `constants` holds them: what a framework's software adds, which no machine file knows.

    mean_error, worst       of | predicted / measured - 1 |
    rank_correlation        Spearman, of seconds a token and GPU: the mean over groups of five or more rows that differ in
                            the configuration only, where a family has such groups; else over the family (null: a single row)
    bound_above_measured    rows whose step was faster than what the operators alone take in any completion of the
                            configuration under the plan's model: then no plan's proved bound holds for them either
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np
from real_steps import package

package()

from configurations.predicting import Told, predicted
from configurations.tables import everything
from measured.judging import spearman

PAGE = Path(__file__).parent / "results" / "published-steps.md"
LEAST = 5


def figures(rows: Sequence[Told]) -> dict[str, object]:
    """Rows, mean and worst error, rank correlation."""
    if not rows:
        return {"rows": 0, "mean_error": None, "worst": None, "rank_correlation": None}
    off = [abs(t.error) for t in rows]
    return {
        "rows": len(rows),
        "mean_error": float(np.mean(off)),
        "worst": float(max(off)),
        "rank_correlation": rank(rows),
    }


def rank(rows: Sequence[Told]) -> float | None:
    """See the module docstring."""
    groups: dict[object, list[Told]] = {}
    for t in rows:
        if t.row.group is not None:
            groups.setdefault(t.row.group, []).append(t)
    large = [g for g in groups.values() if len(g) >= LEAST]
    sets = large or [list(rows)]
    found = [spearman([t.told for t in g], [t.measured for t in g]) for g in sets if len(g) > 1]
    return float(np.mean(found)) if found else None


def constants(folder: Path, only: Sequence[str] | None) -> dict[str, float]:
    """Measured over predicted, the median of every family."""
    ratios: dict[str, list[float]] = {}
    for row in everything(folder).rows:
        if only is None or row.family in only:
            one = predicted(row)
            if isinstance(one, Told):
                ratios.setdefault(row.family, []).append(row.seconds / one.seconds)
    return {family: float(np.median(found)) for family, found in sorted(ratios.items())}


def document(told: Sequence[Told], left_out: dict[str, int]) -> dict[str, object]:
    """What `--json` prints."""
    names = sorted({t.row.family for t in told})
    return {
        "families": {n: figures([t for t in told if t.row.family == n]) for n in names},
        "all": figures(told),
        "bound_above_measured": sum(t.bound > t.row.seconds for t in told),
        "left_out": dict(sorted(left_out.items())),
    }


def main(arguments: list[str] | None = None) -> int:
    """Exit status: 0."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--judge", type=Path, required=True, help="folder of measured steps")
    parser.add_argument("--fit", type=Path, help="folder of other rows, for one constant per family")
    parser.add_argument("--json", action="store_true", help="one JSON object on standard output")
    parser.add_argument("--only", nargs="*", metavar="FAMILY")
    parser.add_argument("--page", action="store_true", help="write results/published-steps.md")
    parser.add_argument("--rows", action="store_true", help="every row on standard error")
    given = parser.parse_args(arguments)
    if not given.judge.is_dir():
        parser.error(f"{given.judge} is no folder; name one laid out as the public tables are")
    if given.fit is not None and not given.fit.is_dir():
        parser.error(f"{given.fit} is no folder; name one laid out as the public tables are")
    if given.fit is not None and given.page:
        parser.error("--page is of what nothing was fitted for; leave --fit out")
    factors = {} if given.fit is None else constants(given.fit, given.only)
    found = everything(given.judge)
    told = []
    for row in found.rows:
        if given.only is not None and row.family not in given.only:
            continue
        one = predicted(row)
        if isinstance(one, str):
            found.skip(one)
            continue
        one = replace(one, seconds=one.seconds * factors.get(row.family, 1.0))
        told.append(one)
        if given.rows:
            print(
                f"{one.error:+7.1%} {row.family} {row.label}: {one.seconds:.4g} of {row.seconds:.4g} s {one.words}",
                file=sys.stderr,
            )
    result = document(told, found.left_out) | ({} if given.fit is None else {"constants": factors})
    if given.page:
        from configurations.page import page

        PAGE.write_text(page(told, result, given.judge), encoding="utf-8")
    print(json.dumps(result) if given.json else json.dumps(result, indent=1))
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
