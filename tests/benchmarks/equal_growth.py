"""How the work of a proof that ranks compute what one device does grows with layers and with ranks.

    python tests/benchmarks/equal_growth.py [--kind llama] [--cases 1x2,4x2,16x8,1x8x8,126x64x8] [--page]

A case is LAYERSxRANKS of a model of `equal_models.py`, tensor parallel, every rank written down, outputs and all
gradients; or LAYERSxDATAxTENSOR: replicas of tensor parallel ranks, of which those at the corners of the mesh are
written down, as `equal --alike DATAxTENSOR` does.  Lemmas are what the checker proves; relations beyond them are
compared with one of them.  From 8 ranks on relations are stated once for all ranks of a mesh.  Rows that a run is not
about stay on the page.
"""

from __future__ import annotations

import argparse
import resource
import time
from collections.abc import Sequence
from pathlib import Path

import equal_models as models
from kept_rows import with_kept_rows

from shardproof.formal.equality.alike import alike_question, corner_ranks
from shardproof.formal.equality.question import ProgramWithSources, Question
from shardproof.models.equality.captured import Captured
from shardproof.models.sources.distributed.capture import capture
from shardproof.proofs.container.archive import read_container
from shardproof.proofs.equality.file import decode_equality, write_equality
from shardproof.verify.budget import Budget
from shardproof.verify.equality.certificate import check_pair
from shardproof.verify.equality.lemmas import Seen

PAGE = Path(__file__).resolve().parent / "results" / "equal-growth.md"


def question_of(one: Captured, many: Sequence[Captured], mesh: tuple[int, ...]) -> Question:
    """Of the corners of a mesh, or of all ranks."""
    if mesh:
        return alike_question(one, many, mesh)
    held = [ProgramWithSources(m.program, m.arrays) for m in many]
    return Question(ProgramWithSources(one.program, one.arrays), held)


def row(kind: str, layers: int, mesh: tuple[int, ...]) -> str:
    """One line of the table; `mesh`: ranks, or replicas and ranks of each."""
    data, ranks = (1, mesh[0]) if len(mesh) == 1 else (mesh[0], mesh[0] * mesh[1])
    batch, clock = max(models.B, data), time.process_time()
    one = capture(lambda: models.model(kind, layers, batch=batch), None, 1, True)
    corners = corner_ranks(mesh) if data > 1 else range(ranks)
    many = [
        capture(lambda r, n: models.model(kind, layers, r, n, data=data, batch=batch), r, ranks, True) for r in corners
    ]
    captured, clock = time.process_time() - clock, time.process_time()
    question = question_of(one, many, mesh if data > 1 else ())
    head = f"| {layers} | {ranks} | {len(many)} |"
    if (found := question.differs(0)) is not None:
        return f"{head} different: {found.output} of rank {found.rank} | | | | | | |"
    said = question.mesh_pair() or question.pair()
    data_of_file = write_equality(said)
    related, clock = time.process_time() - clock, time.process_time()
    pair = decode_equality(read_container(data_of_file))
    seen = Seen()
    result = check_pair(pair, Budget.with_large(), seen)
    checked = time.process_time() - clock
    relations = sum(map(len, pair.relations))
    word = "equal" if result.verdict.value == "proved" else result.verdict.value
    parts = f"{captured:.1f} | {related:.1f} | {checked:.1f} | {len(data_of_file) / 1e3:.0f}"
    return f"{head} {word} | {relations} | {sum(seen.proved.values())} | {parts} |"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--kind", default="llama")
    parser.add_argument("--cases", default="1x2,16x2,4x8,16x8,1x8x8,1x64x8,16x64x8,126x64x8")
    parser.add_argument("--positions", type=int, default=models.S, help="of a text; fewer for many layers and ranks")
    parser.add_argument("--page", action="store_true")
    asked = parser.parse_args()
    models.S = asked.positions
    lines = [
        "| layers | ranks | written down | verdict | relations | lemmas | written down, s | numbers and relations, s | checked, s | kB |",
        "|--:|--:|--:|---|--:|--:|--:|--:|--:|--:|",
    ]
    print("\n".join(lines))
    models.capture(lambda: models.model(asked.kind, 1), None, 1, True)  # PyTorch loads what it needs
    for case in asked.cases.split(","):
        layers, *mesh = map(int, case.split("x"))
        lines.append(row(asked.kind, layers, tuple(mesh)))
        print(lines[-1], flush=True)
        if asked.page:
            memory = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
            words = f"--kind {asked.kind} --positions {models.S} --page"
            command = f"`python tests/benchmarks/equal_growth.py {words}`, or in pieces (`--cases`)"
            words = (
                f"{command}: outputs and all gradients, {models.HEADS} heads of {models.D}; processor seconds of all"
            )
            words += " threads, measured beside other sessions on two cores; kB of the certificate; peak memory"
            words += f" {memory:.0f} MiB. Where fewer ranks are written down than there are, the assumption"
            words += " `alike-ranks` stands in the verdict."
            title = (__doc__ or "").splitlines()[0]
            rows = with_kept_rows(PAGE, lines, 3)
            PAGE.write_text("\n".join([f"# {title}", "", words, "", *rows]) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
