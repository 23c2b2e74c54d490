"""Milliseconds per operator to derive class, collective, bytes and phases of all its communication from index sets.

    python tests/benchmarks/communication_analysis.py [RANKS ..]        (default 8 64 512 4096)

Nothing is remembered from one repetition to the next; processor time, best and median of 9.  The bar: 1 ms for 8 ranks,
5 ms for 4,096.
"""

from __future__ import annotations

import sys
from pathlib import Path
from statistics import median

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from analysis_cases import PROGRAMS, milliseconds_per_operator, scheduled


def main(ranks: list[int]) -> None:
    print(f"{'program':<28} {'operators':>9}  " + "  ".join(f"{f'{n} ranks: best, median ms':>28}" for n in ranks))
    for name in PROGRAMS:
        columns, operators = [], 0
        for n in ranks:
            graph, hierarchy, choices = scheduled(name, n)
            operators = len(graph.operators)
            times = sorted(milliseconds_per_operator(graph, hierarchy, choices) for _ in range(9))
            columns.append(f"{times[0]:>19.3f} {median(times):>8.3f}")
        print(f"{name:<28} {operators:>9}  " + "  ".join(columns))


if __name__ == "__main__":
    main([int(a) for a in sys.argv[1:]] or [8, 64, 512, 4096])
