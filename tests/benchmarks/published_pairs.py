"""Pairs of published configurations of one model, batch and machine: does `audit --against` decide them, and rightly?

    python tests/benchmarks/published_pairs.py --judge DIR [--json] [--page]

DIR is laid out as ../shared/data/measured.  Every row is predicted as in `published_steps.py`: by the plan's own model,
with nothing fitted on it.

    pair        two rows of one model, sequence, batch, machine and release whose configurations differ
    way         in what they differ: the first of `compared.Difference` in which they do
    bar         of a way: all pairs have | log of measured ratio - log of predicted ratio | within log(1 + bar)
    judged      pairs measured 10 % apart or more, each with the bars of the *other* families' pairs: of its way where
                these have 20 or more, else of all (the package's, where there is one family only); decided where the
                predicted ratio is beyond the bar

The bars of all families together are those of the package (`compared.BARS`), and the last line of the page.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Sequence
from dataclasses import dataclass
from fractions import Fraction
from itertools import combinations
from math import ceil, exp, log
from pathlib import Path

from real_steps import package

package()

from configurations.predicting import Told, predicted
from configurations.rows import Published
from configurations.tables import everything

from shardproof.formal.plans.pipelines.compared import (
    ANY_BAR,
    BARS,
    Difference,
    Faster,
    Manner,
    decide,
    differences,
    error_bound_of_pair,
)

PAGE = Path(__file__).parent / "results" / "published-pairs.md"
LEAST, APART = 20, 1.1
"""Pairs of a way from which a bar is read; measured ratio of a judged pair."""


@dataclass(frozen=True)
class Pair:
    """Two rows, the slower one measured first."""

    slow: Told
    fast: Told
    kinds: tuple[Difference, ...]

    @property
    def measured(self) -> float:
        """Log of the measured ratio, at least 0."""
        return log(self.slow.row.seconds / self.fast.row.seconds)

    @property
    def predicted(self) -> float:
        """Log of the predicted ratio."""
        return log(self.slow.seconds / self.fast.seconds)


def manner(row: Published) -> Manner:
    """How a published step runs."""
    return Manner(row.flags, row.micro_batches, row.chunks, str(row.again), None, row.kernels, row.hidden)


def pairs_of(told: Sequence[Told]) -> list[Pair]:
    """See the module docstring."""
    groups: dict[object, list[Told]] = {}
    for t in told:
        r = t.row
        release = r.label.split()[0] if r.family == "megatron_bridge" else ""
        groups.setdefault((r.family, release, r.model, r.seq, r.machine, r.tokens, r.frozen), []).append(t)
    found = []
    for group in groups.values():
        for a, b in combinations(group, 2):
            kinds = differences(manner(a.row), manner(b.row))
            if kinds:
                found.append(Pair(a, b, kinds) if a.row.seconds >= b.row.seconds else Pair(b, a, kinds))
    return found


def bars_of(pairs: Sequence[Pair]) -> tuple[dict[Difference, Fraction], Fraction]:
    """Bars of the ways that have enough pairs, and that of all."""

    def bar(some: Sequence[Pair]) -> Fraction:
        within = max(abs(p.measured - p.predicted) for p in some)
        return Fraction(ceil(100 * (exp(within) - 1)), 100)

    ways = {kind: [p for p in pairs if p.kinds[0] is kind] for kind in Difference}
    return {kind: bar(some) for kind, some in ways.items() if len(some) >= LEAST}, bar(pairs)


def judged(pairs: Sequence[Pair]) -> list[tuple[Pair, Faster]]:
    """What is said of the slower row of every pair that is far enough apart."""
    others = {
        family: [p for p in pairs if p.slow.row.family != family] for family in {p.slow.row.family for p in pairs}
    }
    bars = {family: bars_of(some) if some else (BARS, ANY_BAR) for family, some in others.items()}
    return [
        (p, decide(Fraction(exp(p.predicted)), error_bound_of_pair(p.kinds, *bars[p.slow.row.family])))
        for p in pairs
        if p.measured >= log(APART)
    ]


def document(pairs: Sequence[Pair]) -> dict[str, object]:
    """What `--json` prints."""

    def figures(some: Sequence[tuple[Pair, Faster]]) -> dict[str, int]:
        decided = [v for _, v in some if v is not Faster.UNDECIDED]
        return {
            "pairs": len(some),
            "decided": len(decided),
            "wrong": sum(v is Faster.FASTER for v in decided),
        }

    found = judged(pairs)
    bars, rest = bars_of(pairs)
    return {
        "families": {
            name: figures([x for x in found if x[0].slow.row.family == name])
            for name in sorted({p.slow.row.family for p in pairs})
        },
        "ways": {
            kind.value: figures([x for x in found if x[0].kinds[0] is kind])
            for kind in Difference
            if any(x[0].kinds[0] is kind for x in found)
        },
        "all": figures(found),
        "bars": {kind.value: float(bar) for kind, bar in bars.items()} | {"any": float(rest)},
    }


ABOUT = """Every pair of published rows of one model, sequence, batch, machine and release whose configurations differ, predicted by
the plan's own model (`published_steps.py`; nothing is fitted on steps).  A difference is decided where the predicted ratio is
beyond the bar of the way in which the two differ: the largest error of the published pairs of that way.
Pairs measured 10 % apart or more are judged, each family with the bars of the *other* families, so that no judged row
has a part in the bar that it is judged by.  Chosen with these rows in view: that ways are told apart (pairs of one tensor parallel
degree are predicted better than others), their order, that the largest error counts (within 98, 99, 99.5 and 99.9 % of
the pairs, 1, 1, 0 and 0 judged ones are decided wrongly), the least number of pairs of a way (20), and that whole
families are left out.  So this page is no test of them; rows kept apart are.

`undecided` is not an error: `audit --against` then names what to measure.  vTrain's steps on many nodes are predicted
worst (rank correlation 0.77 on [the page of steps](published-steps.md)), so few of their pairs are decided, and their bar
of tensor parallelism is what everybody else's pairs are judged by."""


def page(found: dict[str, object], folder: str) -> str:
    """Markdown."""
    lines = [
        "# Pairs of published configurations, decided",
        "",
        f"Made by `python tests/benchmarks/published_pairs.py --judge {folder} --page`.",
        "",
        ABOUT,
        "",
        "| | pairs 10 % apart | decided | decided wrongly |",
        "|---|---:|---:|---:|",
    ]
    families, ways, whole = found["families"], found["ways"], found["all"]
    assert isinstance(families, dict) and isinstance(ways, dict) and isinstance(whole, dict)
    for name, row in [*families.items(), *((f"differ first in {k}", v) for k, v in ways.items()), ("all", whole)]:
        share = f"{row['decided']} ({row['decided'] / row['pairs']:.0%})" if row["pairs"] else "0"
        lines.append(f"| {name} | {row['pairs']} | {share} | {row['wrong']} |")
    bars = found["bars"]
    assert isinstance(bars, dict)
    said = ", ".join(f"{name} {bar:.0%}" for name, bar in bars.items())
    return "\n".join([*lines, "", f"Bars of all families together, which `audit --against` takes: {said}.", ""])


def main(arguments: list[str] | None = None) -> int:
    """Exit status: 0."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--judge", type=Path, required=True, help="folder of measured steps")
    parser.add_argument("--json", action="store_true", help="one JSON object on standard output")
    parser.add_argument("--page", action="store_true", help="write results/published-pairs.md")
    given = parser.parse_args(arguments)
    if not given.judge.is_dir():
        parser.error(f"{given.judge} is no folder; name one laid out as the public tables are")
    told = [t for row in everything(given.judge).rows if isinstance(t := predicted(row), Told)]
    found = document(pairs_of(told))
    if given.page:
        named = given.judge.as_posix()
        named = "../shared/data/measured" if named.endswith("shared/data/measured") else named
        PAGE.write_text(page(found, named), encoding="utf-8")
    print(json.dumps(found) if given.json else json.dumps(found, indent=1))
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
