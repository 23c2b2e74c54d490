"""Shows that of 10,000 forged derivations of random programs none is accepted that says or computes something else.

    python tests/benchmarks/forged_derivations.py [--forgeries 10000] [--seed 1]

Programs, derivations and kinds of forgeries: `tests/derivation_forgeries.py`.  Where a node was changed and the checker
still accepts it, the program with that node is run beside the user's: it must give the same numbers (operands of a sum
in another order).  Ends with 1 if some forgery is accepted that does not.
"""

from __future__ import annotations

import argparse
import sys
from collections import Counter
from itertools import count
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

from tests.derivation_forgeries import computes_the_same, draw, refused, rules


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--forgeries", type=int, default=10_000)
    parser.add_argument("--seed", type=int, default=1)
    given = parser.parse_args()
    some, tried, same, wrong, libraries = rules(), Counter[str](), Counter[str](), Counter[str](), 0
    programs = 0
    for seed in count(given.seed * 1_000_000):
        programs += 1
        for f in draw(seed, some):
            tried[f.kind] += 1
            libraries += bool(f.step.book)
            if not refused(f):
                (same if not f.said and computes_the_same(f) else wrong)[f.kind] += 1
        if tried.total() >= given.forgeries:
            break
    print("| forgery | tried | accepted, the same numbers | accepted |\n|---|---:|---:|---:|")
    for kind, n in sorted(tried.items()):
        print(f"| {kind} | {n} | {same[kind]} | {wrong[kind]} |")
    print(
        f"\n{tried.total()} forgeries ({libraries} of steps of libraries) of {programs} programs: {wrong.total()} accepted"
    )
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
