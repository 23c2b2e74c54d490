"""Writes the conformance suite: small files of every kind, with what a checker has to say of each.

    python tests/conformance/make.py            writes tests/conformance/{proved,undecided,refuted,malformed,problems}/ and expected.json

    expected.json   a list of {"file", "with", "kind", "verdict", "exit", "sentence", "fault"}:  `with` names the file of
                    the problem, for selection certificates; `sentence` is in what `shardproof check` says; `fault` is
                    the one thing that is wrong with the file

Bytes depend on nothing but these modules and on what models and prices mean.  `tests/test_conformance.py` compares.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path

HERE = Path(__file__).parent
if __name__ == "__main__":  # started as a script: tests/ is where the package `conformance` lies
    sys.path.insert(0, str(HERE.parent))

from conformance import (
    equalities,
    extractions,
    joint,
    overlaps,
    pipelines,
    plans,
    portfolios,
    programs,
    rules,
    schedules,
    selection,
    sizes,
    viewed,
)

FOLDERS = ("proved", "undecided", "refuted", "malformed", "problems")
EXITS = {"proved": 0, "undecided": 5, "refuted": 10, "malformed": 3}


def files() -> dict[str, bytes]:
    """Every file of the suite by its path below this folder, `expected.json` included."""
    suite, out = selection.suite()
    out |= extractions.problems()
    suites = [suite, *programs.suites(), rules.suite(), plans.suite(), schedules.suite()]
    suites += [pipelines.suite(), overlaps.suite(), viewed.suite(), extractions.suite(), joint.suite()]
    suites += [portfolios.suite(), equalities.suite(), sizes.suite()]
    expected = []
    for case in (case for part in suites for case in part.cases):
        path = f"{case.verdict}/{case.name}.spz"
        if path in out:
            raise ValueError(f"two cases are called {path}")
        out[path] = case.data
        expected.append(
            {
                "file": path,
                "with": [case.problem] if case.problem else [],
                "kind": case.kind,
                "verdict": case.verdict,
                "exit": EXITS[case.verdict],
                "sentence": case.sentence,
                "fault": case.fault,
            }
        )
    text = json.dumps(sorted(expected, key=lambda e: str(e["file"])), indent=1, ensure_ascii=True)
    return {**out, "expected.json": f"{text}\n".encode()}


def main() -> None:
    wanted = files()
    for folder in FOLDERS:
        (HERE / folder).mkdir(exist_ok=True)
        for old in (HERE / folder).iterdir():
            if f"{folder}/{old.name}" not in wanted:
                old.unlink()
    for name, data in wanted.items():
        (HERE / name).write_bytes(data)
    print(f"{len(wanted)} files, {sum(map(len, wanted.values()))} bytes")


if __name__ == "__main__":
    main()
