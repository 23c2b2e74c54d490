"""Bytes of the array programs under hand-written schedules, beside the least that ranks must receive.

    python tests/benchmarks/array_programs.py [RANKS ..]        (default 8)

One line per program and number of ranks that moves anything; the reason stands where more than the bound is moved.
"""

from __future__ import annotations

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from array_cases import CASES

from shardproof.backends.lowering.traffic import traffic


def main(ranks: list[int]) -> None:
    print(f"{'program':<40} {'ranks':>5} {'collectives':<28} {'moved, bytes':>12} {'bound':>9}  reason")
    for name, case in CASES.items():
        traced = case.traced()
        for n in ranks:
            entries = traffic(traced.graph, (n,), case.scheduled(traced, n).choices)
            words = dict.fromkeys(c for t in entries for c in t.collectives if c != "none")
            reasons = dict.fromkeys(r for t in entries for r in t.reasons)
            moved, bound = (
                sum(x * t.element_bytes for t, x in zip(entries, values, strict=True))
                for values in ([t.moved for t in entries], [t.bound for t in entries])
            )
            print(f"{name:<40} {n:>5} {', '.join(words) or '-':<28} {moved:>12} {bound:>9}  {'; '.join(reasons)}")


if __name__ == "__main__":
    main([int(a) for a in sys.argv[1:]] or [8])
