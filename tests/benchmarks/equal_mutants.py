"""How the checker of equality judges mutants of right pairs: none may be proved where numbers differ.

    python tests/benchmarks/equal_mutants.py [--count 20000] [--seconds 1500] [--seed 0] [--large] [--state FILE] [--page]

Pairs: small ones that are kept in `tests/data/equality`, and jobs of `tests/equal_strangers` (transformers with tensor
and sequence parallelism, their gradients, attention in a ring, experts, ZeRO, a pipeline, convolutions) on 2 to 4
pretended ranks.  Mutants: those of `tests/test_equal_mutants.py`, and a tensor scaled by the number of ranks, a gradient
that is missing or not reduced, another group; a third of them changed twice, no two alike.  Numbers are looked at on two
sets of inputs.  A mutant that takes the checker more than twice the work of the right pair is undecided.  Lemmas that
were seen, of the right pair and of mutants before, are not proved again: a lemma is about no pair
(`verify/equality/lemmas.py`).  Mutant k is the same in every run of one seed but for those left out as alike, so a run
goes on where `--state` says that another ended; the page has a section per seed.
"""

from __future__ import annotations

import argparse
import json
import random
import re
import sys
import time
from collections import Counter
from collections.abc import Sequence
from dataclasses import replace
from hashlib import sha256
from pathlib import Path

HERE = Path(__file__).resolve()
sys.path[:0] = [str(HERE.parents[1]), str(HERE.parents[1] / "equal_strangers")]
import families
import families_more
import gpt
import llama
from test_equal_mutants import CHEAP, PAIRS, differs, mutant

from shardproof.formal.equality.layouts import NOTHING
from shardproof.formal.equality.request import ask, look
from shardproof.models.equality.pair import Pair
from shardproof.models.equality.program import RankProgram, Step
from shardproof.models.problem.claims import Verdict
from shardproof.proofs.container.canonical import ContainerError
from shardproof.verify.budget import Budget
from shardproof.verify.equality.certificate import check_pair
from shardproof.verify.equality.lemmas import Seen

PAGE = HERE.parent / "results" / "equal-mutants.md"
JOBS = (
    ("gpt", gpt.single, gpt.right, 2, True),
    ("llama, sequence parallel", llama.single_step, llama.right_sp, 4, False),
    ("llama", llama.single_step, llama.right, 2, False),
    ("norm of split rows", families.single_ln, families.right_ln, 3, True),
    ("ring", families.single_ring, families.right_ring, 4, False),
    ("softmax of split rows", families.single_sm, families.right_sm, 4, False),
    ("experts", families.single_moeg, families.right_moeg, 2, False),
    ("clipped by norm", families_more.single_clip, families_more.right_clip, 4, False),
    ("ZeRO 1", families_more.single_z1, families_more.right_z1, 2, False),
    ("pipeline", families_more.single_pp, families_more.right_pp, 4, False),
    ("heads by all-to-all", families_more.single_uly, families_more.right_uly, 4, False),
)
LARGE = 3
"""The first pairs, of which a mutant takes seconds: with `--large`, each once in `RARELY` rounds."""
RARELY = 8
MORE_WORK = 2
"""How much more work the checker may do on a mutant than on the right pair, before it is undecided."""
TRIES = 60
"""Draws of one kind, before another kind is drawn: many steps are no collective, and few pairs have all kinds."""
ROWS = {
    "collective dropped": ("dropped",),
    "reduction wrong": ("op",),
    "slice wrong": ("slice", "packed"),
    "ranks swapped": ("swapped", "ranks"),
    "scaled by the degree": ("degree",),
    "gradient missing": ("gradient",),
    "group wrong": ("group",),
    "part of another rank": ("part",),
    "operator, operand or number": ("function", "operand", "number", "scaled"),
}
"""Rows of the table, as the issue names them, and kinds of mutants."""
FURTHER = ("degree", "gradient", "group")


def drawn(pair: Pair, kinds: Sequence[str], rng: random.Random) -> Pair | None:
    """A mutant of one of these kinds; None where the draw has none."""
    return _further(pair, rng.choice(kinds), rng) if kinds[0] in FURTHER else mutant(pair, rng, kinds)


def _further(pair: Pair, kind: str, rng: random.Random) -> Pair | None:
    first, everywhere = rng.randrange(len(pair.ranks)), rng.random() < 0.5
    seed, programs = rng.random(), list(pair.ranks)
    for rank, program in enumerate(pair.ranks):
        if rank == first or everywhere:
            changed = _changed(program, kind, random.Random(seed), rank, len(pair.ranks))
            if changed is None:
                return None
            programs[rank] = changed
    return replace(pair, ranks=tuple(programs))


def _changed(program: RankProgram, kind: str, rng: random.Random, rank: int, ranks: int) -> RankProgram | None:
    steps, outputs = list(program.steps), list(program.outputs)
    match kind:
        case "degree":
            index = rng.choice([i for i, s in enumerate(steps) if s.makes and s.operator not in ("cast",)])
            step, last = steps[index], len(program.tensors)
            made = program.tensors[step.makes[0]]
            if not made.dtype.startswith("float"):
                return None
            factor = rng.choice([float(ranks), 1.0 / ranks])
            steps[index : index + 1] = [
                replace(step, makes=(last, *step.makes[1:])),
                Step("mul", (last,), step.makes[:1], (("number", factor),), step.line),
            ]
            return replace(program, steps=tuple(steps), tensors=(*program.tensors, made))
        case "gradient":
            which = rng.randrange(len(outputs))
            name, number = outputs[which]
            shape = program.tensors[number].shape
            others = [n for s in steps for n in s.makes if program.tensors[n].shape == shape and n != number]
            if not others:
                return None
            outputs[which] = name, rng.choice(others)
            return replace(program, outputs=tuple(outputs))
        case _:
            reduced = [i for i, s in enumerate(steps) if s.operator == "all_reduce"]
            if not reduced:
                return None
            index = rng.choice(reduced)
            words = dict(steps[index].words)
            group = words["ranks"]
            if not isinstance(group, tuple) or len(group) < 2:
                return None
            half = len(group) // 2
            mine = [group[:half], group[half:]]
            words["ranks"] = rng.choice(mine) if rng.random() < 0.3 else mine[rank in mine[1]]
            steps[index] = replace(steps[index], words=tuple(words.items()))
            return replace(program, steps=tuple(steps))


def numbered(pair: Pair, seed: int, number: int, seen: set[str]) -> tuple[str, Pair, str]:
    """Mutant `number`: its row of the table, the pair, and its hash, which is none of those seen."""
    rng = random.Random(f"{seed}/{number}")
    while True:
        row = rng.choice(list(ROWS))
        for _ in range(TRIES):
            found = drawn(pair, ROWS[row], rng)
            if found is not None and rng.random() < 1 / 3:
                found = drawn(found, ROWS[rng.choice(list(ROWS))], rng) or found
            if found is not None and (mark := _hash(found)) not in seen:
                return row, found, mark


def _hash(pair: Pair) -> str:
    return sha256(repr((pair.ranks, pair.given, pair.results)).encode()).hexdigest()[:16]


def judged(pair: Pair, budget: Budget, seen: Seen | None = None) -> Verdict:
    try:
        return check_pair(pair, budget, seen).verdict
    except ContainerError:
        return Verdict.UNDECIDED


Counts = Counter[tuple[str, str, str]]
"""By pair, row and what was found: `differ`, `open`, `proved`, `wrong`."""


def table(counts: Counts, head: str, names: Sequence[str], place: int) -> list[str]:
    """Rows of the pairs (`place` 0) or kinds of mutants (1)."""
    lines = [
        f"| {head} | mutants | numbers differ | undecided, numbers are the same | equal, numbers are the same |",
        "|---|--:|--:|--:|--:|",
    ]
    for name in (*names, "all"):
        row = [sum(n for key, n in counts.items() if key[2] == kind and name in (key[place], "all")) for kind in FOUND]
        lines.append(f"| {name} | {sum(row)} | {row[0]} | {row[1]} | {row[2]} |")
    return lines


FOUND = ("differ", "open", "proved")


def write(counts: Counts, names: Sequence[str], given: argparse.Namespace) -> None:
    """The tables, so far; on the page where that is asked for."""
    lines = [*table(counts, "mutant", list(ROWS), 1), "", *table(counts, "pair", names, 0)]
    wrong = sum(n for key, n in counts.items() if key[2] == "wrong")
    if not given.page:
        print("\n".join(lines), f"equal though numbers differ: {wrong}", sep="\n", flush=True)
        return
    large = "--large " * given.large
    words = f"{large}--count {given.count} --seed {given.seed} --page"
    said = (
        f"`python tests/benchmarks/equal_mutants.py {words}`: equal though numbers differ: **{wrong}**. No two mutants"
        " are alike; a third is changed twice. Undecided, or equal, with the same numbers: what was changed is read by"
        " nobody, or is a change that changes nothing."
    )
    PAGE.write_text(
        with_section(PAGE.read_text(), "\n".join([said, "", *lines]), f" {large}--count ", f"--seed {given.seed} ")
    )


def with_section(page: str, section: str, *words: str) -> str:
    """The page with one section per command: of other seeds as they are.

    >>> with_section("# Title\\n\\n`python a --seed 0 `\\n", "`python b --seed 1 `", "--seed 1 ")
    '# Title\\n\\n`python a --seed 0 `\\n\\n`python b --seed 1 `\\n'
    """
    title, *sections = re.split(r"\n\n(?=`python )", page.rstrip("\n"))
    kept = [s for s in sections if not all(w in s.splitlines()[0] for w in words)]
    return "\n\n".join([title, *kept, section]) + "\n"


def keep(counts: Counts, number: int, seen: set[str], given: argparse.Namespace) -> None:
    """Where another run goes on."""
    if given.state:
        state = {
            "seed": given.seed,
            "number": number,
            "seen": sorted(seen),
            "counts": [[*k, n] for k, n in counts.items()],
        }
        given.state.write_text(json.dumps(state))


def right_pairs(large: bool) -> dict[str, tuple[Pair, int, Seen]]:
    """The pairs, each with the work that the checker may do on a mutant of it, and the lemmas seen."""
    llama.sizes(heads=4)
    pairs = {}
    for name, single, right, ranks, gradients in JOBS[0 if large else LARGE :]:
        question = ask(single, right, ranks, gradients, NOTHING)
        if look(question, 0) is not None:
            raise SystemExit(f"{name} is right, and differs")
        pairs[f"{name}, {ranks} ranks"] = question.pair()
    pairs |= {f"kept: {name}, {len(PAIRS[name].ranks)} ranks": PAIRS[name] for name in CHEAP}
    found = {}
    for name, pair in pairs.items():
        budget, seen = Budget.with_large(), Seen()
        work = budget.work
        if judged(pair, budget, seen) is not Verdict.PROVED:
            raise SystemExit(f"{name} is right, and not proved")
        found[name] = pair, MORE_WORK * (work - budget.work), seen
        print(f"{name}: {len(pair.ranks[0].steps)} steps", flush=True)
    return found


def rounds(names: Sequence[str], large: int) -> list[str]:
    """The order in which pairs take their turns."""
    turns = []
    for k in range(RARELY):
        turns += [name for i, name in enumerate(names) if i >= large or k == 0]
    return turns


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--count", type=int, default=20000)
    parser.add_argument("--seconds", type=float, default=1500.0)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--large", action="store_true", help="the transformers too, of which a mutant takes seconds")
    parser.add_argument("--state", type=Path)
    parser.add_argument("--page", action="store_true")
    given = parser.parse_args()
    counts, number, marks, start = Counts(), 0, set[str](), time.process_time()
    if given.state and given.state.exists():
        state = json.loads(given.state.read_text())
        if state["seed"] != given.seed:
            raise SystemExit(f"{given.state} is of seed {state['seed']}")
        number, marks = state["number"], set(state["seen"])
        counts = Counts({(pair, row, found): n for pair, row, found, n in state["counts"]})
    pairs = right_pairs(given.large) if number < given.count else {}
    names = list(pairs) or sorted({key[0] for key in counts})
    turns = rounds(names, LARGE * given.large)
    while number < given.count and time.process_time() - start < given.seconds:
        name = turns[number % len(turns)]
        pair, work, seen = pairs[name]
        row, found, mark = numbered(pair, given.seed, number, marks)
        try:
            different = any(differs(found, seed) for seed in (1, 2))
        except (ValueError, KeyError):  # no program
            different = True
        proved = judged(found, replace(Budget.with_large(), work=work), seen) is Verdict.PROVED
        if proved and different:
            print(f"WRONG: {name}, {row}, seed {given.seed}, number {number}", flush=True)
        counts[name, row, ("wrong" if different else "proved") if proved else "differ" if different else "open"] += 1
        marks.add(mark)
        number += 1
        if number % 200 == 0:
            print(number, round(time.process_time() - start), flush=True)
            keep(counts, number, marks, given)
    keep(counts, number, marks, given)
    write(counts, names, given)
    if any(key[2] == "wrong" for key in counts):
        raise SystemExit(1)


if __name__ == "__main__":
    main()
