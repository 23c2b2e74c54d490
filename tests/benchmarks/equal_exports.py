"""Whether exported files of our own plans compute what one device does: ten models, forward, backward and Adam.

    python tests/benchmarks/equal_exports.py [--models bert,gpt2] [--nodes 1,2] [--mutants 20] [--page]

Each model of `tests/torch_models/ten.py` (but the one that needs torchvision; for it one of dense towers with
residuals, as candle-uno has) is planned with Adam for a slow machine on which splitting pays, exported for DTensor, and
`equal` compares a step of training, or a pass with all gradients, on as many pretended ranks.  Mutants: the ranks'
programs with a collective that is dropped or reduces otherwise, a number, a slice or an operand that is another; those
that are proved must give the same numbers.  Rows that a run is not about stay on the page.
"""

from __future__ import annotations

import argparse
import contextlib
import random
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

import torch
from torch import nn

HERE = Path(__file__).resolve()
sys.path[:0] = [str(HERE.parents[1]), str(HERE.parents[1] / "torch_models")]
import ten
from export_cases import MACHINE
from kept_rows import with_kept_rows
from test_equal_mutants import differs, mutant

import shardproof
from shardproof.formal.equality.layouts import NOTHING
from shardproof.formal.equality.question import Question
from shardproof.formal.equality.request import ask_planned, exported_file, look
from shardproof.models.equality.pair import Pair
from shardproof.models.problem.claims import Verdict
from shardproof.proofs.container.archive import read_container
from shardproof.proofs.container.canonical import ContainerError
from shardproof.proofs.equality.file import decode_equality, write_equality
from shardproof.verify.budget import Budget
from shardproof.verify.equality.certificate import check_pair

PAGE = HERE.parent / "results" / "equal-exports.md"
WORK = 120_000_000
"""Of the search for a plan, in its own units: what the tests of exporters give."""


class Uno(nn.Module):  # type: ignore[misc]
    """Dense towers of features, joined, and dense layers with residuals, as candle-uno has."""

    def __init__(self, width: int = 32) -> None:
        super().__init__()
        self.towers = nn.ModuleList(
            nn.Sequential(nn.Linear(n, width), nn.ReLU(), nn.Linear(width, width)) for n in (8, 12)
        )
        self.first, self.second = nn.Linear(2 * width + 4, width), nn.Linear(width, width)
        self.last = nn.Linear(width, 1)

    def forward(self, cells: torch.Tensor, drugs: torch.Tensor, dose: torch.Tensor) -> torch.Tensor:
        low = [tower(x).relu() for tower, x in zip(self.towers, (cells, drugs), strict=True)]
        x = self.first(torch.cat([*low, dose], 1)).relu()
        return self.last(x + self.second(x).relu())


def uno() -> ten.Made:
    return Uno(), (torch.zeros(16, 8), torch.zeros(16, 12), torch.zeros(16, 4))


MODELS = {f.__name__: f for f in (*ten.TEN, uno) if f.__name__ != "resnet"}


@contextlib.contextmanager
def exported(name: str, nodes: int) -> Iterator[Path]:
    """The exported file of a model's plan on so many nodes of two devices."""
    with tempfile.TemporaryDirectory() as folder:
        machine, file = Path(folder) / "machine.toml", Path(folder) / f"layout_of_{name}.py"
        machine.write_text(MACHINE.format(nodes=nodes, rate="0.2"))
        torch.manual_seed(0)
        module, inputs = MODELS[name]()
        plan = shardproof.plan(module, str(machine), inputs=inputs, train="adam", work_limit=WORK)
        file.write_text(plan.export("dtensor"))
        yield file


def asked(name: str, file: Path, gradients: bool) -> Question:
    with exported_file(file, lambda path, target: "") as layout:
        return ask_planned(MODELS[name], layout, str(file), None, gradients, NOTHING)


def hunt(pair: Pair, count: int) -> tuple[int, int, int, int]:
    """Of so many mutants: those whose numbers differ, those left open, those proved, and those proved wrongly."""
    rng, made, refuted, left, proved, wrong = random.Random(0), 0, 0, 0, 0, 0
    while made < count:
        found = mutant(pair, rng)
        if found is None:
            continue
        made += 1
        different = any(differs(found, seed) for seed in (1, 2))
        try:
            verdict = check_pair(found, Budget.with_large()).verdict
        except ContainerError:
            verdict = Verdict.UNDECIDED
        refuted, left = refuted + different, left + (not different and verdict is not Verdict.PROVED)
        proved += verdict is Verdict.PROVED
        wrong += verdict is Verdict.PROVED and different
    return refuted, left, proved, wrong


def row(name: str, file: Path, ranks: int, gradients: bool, mutants: int) -> str:
    clock = time.process_time()
    question = asked(name, file, gradients)
    found = look(question, 0)
    what = "gradients" if gradients else "step of Adam"
    if found is not None:
        return f"| {name} | {ranks} | {what} | | different: {found.output} of rank {found.rank} | | | | |"
    pair = question.pair()
    data, took = write_equality(pair), time.process_time() - clock
    clock = time.process_time()
    judged = check_pair(decode_equality(read_container(data)), Budget.with_large())
    replay = time.process_time() - clock
    proved = judged.verdict is Verdict.PROVED and not question.doubt
    verdict = "equal" if proved else f"undecided: {question.doubt or judged.reason}"
    steps, sent = len(pair.ranks[0].steps), sum("ranks" in dict(s.words) for s in pair.ranks[0].steps)
    seen = hunt(pair, mutants) if mutants and proved else (0, 0, 0, 0)
    if seen[3]:
        raise SystemExit(f"{name}: {seen[3]} mutants are proved whose numbers differ")
    told = f"{seen[0]}, {seen[1]}, {seen[2]}" if mutants else ""
    parts = f"{took:.1f} | {replay:.1f} | {len(data) / 1e3:.0f} | {told}"
    return f"| {name} | {ranks} | {what} | {steps}, {sent} | {verdict} | {parts} |"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--models", default=",".join(MODELS))
    parser.add_argument("--nodes", default="1,2")
    parser.add_argument("--mutants", type=int, default=0)
    parser.add_argument("--page", action="store_true")
    given = parser.parse_args()
    lines = [
        "| model | ranks | compared | steps, collectives | verdict | found, s | replayed, s | kB | mutants: differ, open, proved |",
        "|---|--:|---|--:|---|--:|--:|--:|--:|",
    ]
    print("\n".join(lines))
    for nodes in map(int, given.nodes.split(",")):
        for name in given.models.split(","):
            with exported(name, nodes) as file:
                for gradients in (False, True):
                    lines.append(row(name, file, 2 * nodes, gradients, given.mutants if not gradients else 0))
                    print(lines[-1], flush=True)
            if given.page:  # as far as it came
                write_page(lines, given.nodes, given.mutants)


def write_page(lines: list[str], nodes: str, mutants: int) -> None:
    words = f"--nodes {nodes} --mutants {mutants} --page"
    command = f"`python tests/benchmarks/equal_exports.py {words}`, or in pieces (`--models`): processor seconds of all"
    command += " threads (found: both programs run and written down, numbers, relations); two devices a node; the"
    command += " certificate's kB."
    page = PAGE if nodes == "1" else PAGE.with_stem(f"{PAGE.stem}-{nodes.replace(',', '-')}-nodes")
    rows = with_kept_rows(page, lines, 3)
    text = "\n".join([f"# {(__doc__ or '').splitlines()[0]}", "", command, "", *rows])
    page.write_text(text + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
