"""Times and bytes on real machines: constants fitted on one folder of public measurements, judged on another.

    python tests/benchmarks/real_steps.py --fit DIR --judge DIR [--json] [--only FAMILY ..]
    python tests/benchmarks/real_steps.py --fit DIR --cross PARTS [--seed N] [--json] [--only FAMILY ..]

With `--cross` the one folder is cut into parts (`measured/folds.py`) and every part judged by what was fitted on the others.
Both folders are laid out alike (`vtrain/single.csv.gz`, `dgxc/steps.csv.gz`, ..; any file or row may be missing).  The
constants of every family are fitted on `--fit` alone; what `--judge` measured is read only to judge the predictions.

    rows, mean_error, worst_error    of | predicted / measured - 1 |, as fractions
    groups, picked_within_2_percent, rank_correlation
                                     vtrain: over groups of five or more rows that differ in the strategy only
    pairs, pairs_right               tables: rows that differ by more than 5 %, and how many are put in the right order
    rows, below_measured, within_5_percent, worst_over
                                     megatron: bytes promised against the peak measured

With `--json`, one object per family on one line of standard output and nothing else; a family whose model fails has
an object with the one field `error`, and the exit status is 1.
"""

from __future__ import annotations

import argparse
import importlib.util
import json
import os
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory

ROOT = Path(__file__).resolve().parents[2]


def package() -> None:
    """Make `shardproof` importable where it is not installed: the root of the repository is the package."""
    if importlib.util.find_spec("shardproof") is not None:
        return
    spec = importlib.util.spec_from_file_location(
        "shardproof", ROOT / "__init__.py", submodule_search_locations=[str(ROOT)]
    )
    if spec is None or spec.loader is None:
        raise SystemExit(f"{ROOT} holds no package; install it with `pip install -e {ROOT}`")
    module = importlib.util.module_from_spec(spec)
    sys.modules["shardproof"] = module
    spec.loader.exec_module(module)


@contextmanager
def _quiet() -> Iterator[None]:
    """What solvers print goes to standard error: standard output is for the figures alone."""
    sys.stdout.flush()
    kept = os.dup(1)
    os.dup2(2, 1)
    try:
        yield
    finally:
        sys.stdout.flush()
        os.dup2(kept, 1)
        os.close(kept)


def main(arguments: list[str] | None = None) -> int:
    """Exit status: 0, or 1 if a family failed."""
    package()
    from measured.families import FAMILIES
    from measured.folds import cut, joined
    from measured.judging import words

    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--fit", type=Path, required=True, help="folder of measurements that constants are fitted on")
    parser.add_argument("--judge", type=Path, help="folder of measurements that are predicted")
    parser.add_argument("--cross", type=int, metavar="PARTS", help="cut the folder of --fit instead, 2 to 20 parts")
    parser.add_argument("--seed", type=int, default=0, help="of the cut")
    parser.add_argument("--json", action="store_true", help="one JSON object on standard output")
    parser.add_argument("--only", nargs="*", choices=sorted(FAMILIES), metavar="FAMILY", help="these families alone")
    given = parser.parse_args(arguments)
    if (given.judge is None) == (given.cross is None):
        parser.error("name either --judge DIR or --cross PARTS")
    if given.cross is not None and not 2 <= given.cross <= 20:
        parser.error(f"--cross {given.cross}: from 2 to 20 parts")
    for folder in (given.fit, given.judge):
        if folder is not None and not folder.is_dir():
            parser.error(f"{folder} is no folder; name one laid out as the public tables are")
    found: dict[str, object] = {}
    failed = False
    with TemporaryDirectory(prefix="real-steps-") as scratch:
        if given.cross is None:
            sides = [(given.fit, given.judge)]
        else:
            sides = list(cut(given.fit, Path(scratch), given.cross, given.seed))
        for name, family in FAMILIES.items():
            if given.only is not None and name not in given.only:
                continue
            start = time.process_time()
            try:
                with _quiet():
                    parts = [dict(family(fit, judge)) for fit, judge in sides]
                figures = parts[0] if len(parts) == 1 else joined(parts)
            except Exception as error:  # noqa: BLE001  one family that fails must not hide the others
                failed, figures = True, {"error": f"{type(error).__name__}: {error}"}
            found[name] = figures
            print(f"{name}: {words(figures)} ({time.process_time() - start:.1f} s)", file=sys.stderr, flush=True)
    if given.json:
        print(json.dumps(found))
    return int(failed)


if __name__ == "__main__":
    raise SystemExit(main())
