"""The second checker as a command."""

from __future__ import annotations

import sys
from pathlib import Path

from . import check


def main(arguments: list[str]) -> int:
    if len(arguments) != 2:
        print("python -m independent_checker certificate.spz problem.json")
        return 2
    verdict, why = check(*(Path(a).read_bytes() for a in arguments))
    print(f"{verdict}: {why}")
    return {"proved": 0, "undecided": 5, "refuted": 10, "malformed": 3}[verdict]


if __name__ == "__main__":
    sys.setrecursionlimit(100_000)
    raise SystemExit(main(sys.argv[1:]))
