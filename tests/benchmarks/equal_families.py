"""Whether right and wrong variants of parallel code are told apart, and how long finding a proof and its replay take.

    python tests/benchmarks/equal_families.py [--only mlp_tp,attention_tp] [--page]

The families of `tests/equality_pairs.py`, written from public reports of silent faults: each a right job and wrong ones
on 2 to 4 pretended ranks.  Rows that a run is not about stay on the page.
"""

from __future__ import annotations

import argparse
import sys
import time
from pathlib import Path

HERE = Path(__file__).resolve()
sys.path.insert(0, str(HERE.parents[1]))
import equality_pairs as pairs
from kept_rows import with_kept_rows

from shardproof.formal.equality.layouts import NOTHING
from shardproof.formal.equality.request import ask, look
from shardproof.models.problem.claims import Verdict
from shardproof.proofs.container.archive import read_container
from shardproof.proofs.equality.file import decode_equality, write_equality
from shardproof.verify.budget import Budget
from shardproof.verify.equality.certificate import check_pair

PAGE = HERE.parent / "results" / "equal-families.md"
HEAD = (
    "| right job | ranks | verdict | found, s | replayed, s | wrong jobs | different |",
    "|---|--:|---|--:|--:|--:|--:|",
)


def judged(single: str, job: str, ranks: int, gradients: bool) -> tuple[str, float, float]:
    """Verdict, processor seconds of finding (programs run and written down, numbers, relations) and of the replay."""
    clock = time.process_time()
    question = ask(getattr(pairs, single), getattr(pairs, job), ranks, gradients, NOTHING)
    if (found := look(question, 0)) is not None:
        return f"different: {found.output}", time.process_time() - clock, 0.0
    data = write_equality(question.mesh_pair() or question.pair())
    took, clock = time.process_time() - clock, time.process_time()
    result = check_pair(decode_equality(read_container(data)), Budget.with_large())
    proved = result.verdict is Verdict.PROVED and not question.doubt
    return "equal" if proved else f"undecided: {question.doubt or result.reason}", took, time.process_time() - clock


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--only", default="", help="right jobs, by name")
    parser.add_argument("--page", action="store_true")
    given = parser.parse_args()
    only, lines = [n for n in given.only.split(",") if n], list(HEAD)
    for single, right, wrong, ranks, gradients in pairs.FAMILIES:
        if only and right not in only:
            continue
        verdict, found, replayed = judged(single, right, ranks, gradients)
        told = [judged(single, job, ranks, gradients)[0] for job in wrong]
        if "equal" in told:
            raise SystemExit(f"{wrong[told.index('equal')]} is wrong, and equal")
        different = sum(t.startswith("different") for t in told)
        parts = f"{found:.1f} | {replayed:.1f} | {len(wrong)} | {different}"
        lines.append(f"| {right} | {ranks} | {verdict} | {parts} |")
        print(lines[-1], flush=True)
    if given.page:
        words = "`python tests/benchmarks/equal_families.py --page`, or in pieces (`--only`): processor seconds of all"
        words += " threads (found: both programs run and written down, numbers, relations); no wrong job is equal."
        rows = with_kept_rows(PAGE, lines, 2)
        PAGE.write_text(
            "\n".join([f"# {(__doc__ or '').splitlines()[0]}", "", words, "", *rows]) + "\n", encoding="utf-8"
        )


if __name__ == "__main__":
    main()
