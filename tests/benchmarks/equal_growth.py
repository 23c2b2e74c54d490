"""How the work of a proof that ranks compute what one device does grows with layers and with ranks.

    python tests/benchmarks/equal_growth.py [--kind llama] [--cases 1x2,4x2,16x2] [--page]

A case is LAYERSxRANKS of a model of `equal_models.py`, outputs and all gradients.  Lemmas are what the checker proves;
relations beyond them are compared with one of them.
"""

from __future__ import annotations

import argparse
import resource
import time
from pathlib import Path

import equal_models as models

from shardproof.formal.equality.question import ProgramWithSources, Question
from shardproof.models.sources.distributed.capture import capture
from shardproof.proofs.container.archive import read_container
from shardproof.proofs.equality.file import decode_equality, write_equality
from shardproof.verify.budget import Budget
from shardproof.verify.equality.certificate import check_pair
from shardproof.verify.equality.ranks import Sight

PAGE = Path(__file__).resolve().parent / "results" / "equal-growth.md"


def row(kind: str, layers: int, ranks: int) -> str:
    """One line of the table."""
    clock = time.process_time()
    one = capture(lambda: models.model(kind, layers), None, 1, True)
    many = [capture(lambda r, n: models.model(kind, layers, r, n), r, ranks, True) for r in range(ranks)]
    captured, clock = time.process_time() - clock, time.process_time()
    held = [ProgramWithSources(m.program, m.arrays) for m in many]
    question = Question(ProgramWithSources(one.program, one.arrays), held)
    if (found := question.differs(0)) is not None:
        return f"| {layers} | {ranks} | different: {found.output} of rank {found.rank} | | | | | | |"
    data = write_equality(question.pair())
    related, clock = time.process_time() - clock, time.process_time()
    pair = decode_equality(read_container(data))
    verdict = check_pair(pair, Budget.with_large()).verdict
    checked = time.process_time() - clock
    sight = Sight(pair, lambda things: None)
    sight.ranks()
    relations = sum(map(len, pair.relations))
    said = "equal" if verdict.value == "proved" else verdict.value
    parts = f"{captured:.1f} | {related:.1f} | {checked:.1f} | {len(data) / 1e3:.0f}"
    return f"| {layers} | {ranks} | {said} | {relations} | {len(sight.lemmas.proved)} | {parts} |"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--kind", default="llama")
    parser.add_argument("--cases", default="1x2,4x2,16x2,4x4,4x8,16x8")
    parser.add_argument("--page", action="store_true")
    asked = parser.parse_args()
    lines = [
        "| layers | ranks | verdict | relations | lemmas | written down, s | numbers and relations, s | checked, s | kB |",
        "|--:|--:|---|--:|--:|--:|--:|--:|--:|",
    ]
    print("\n".join(lines))
    models.capture(lambda: models.model(asked.kind, 1), None, 1, True)  # PyTorch loads what it needs
    for case in asked.cases.split(","):
        layers, ranks = map(int, case.split("x"))
        lines.append(row(asked.kind, layers, ranks))
        print(lines[-1], flush=True)
        if asked.page:
            memory = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
            command = f"`python tests/benchmarks/equal_growth.py --kind {asked.kind} --cases {asked.cases} --page`"
            words = f"{command}: outputs and all gradients, 16 heads of 4; processor seconds of all threads, measured"
            words += f" beside three other sessions on two cores; kB of the certificate; peak memory {memory:.0f} MiB."
            title = (__doc__ or "").splitlines()[0]
            PAGE.write_text("\n".join([f"# {title}", "", words, "", *lines]) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
