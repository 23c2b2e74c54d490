"""How the checker of equality judges mutants of right pairs: none may be proved where numbers differ.

    python tests/benchmarks/equal_mutants.py [--count 20000] [--seconds 1500] [--seed 0] [--large] [--page]

Pairs: small ones that are kept in `tests/data/equality`, and jobs of `tests/equal_strangers` (transformers with tensor and sequence parallelism, their gradients, attention in
a ring, experts, ZeRO, a pipeline, convolutions) on 2 to 4 pretended ranks.  Mutants: those of
`tests/test_equal_mutants.py` (a collective that is dropped or reduces otherwise, a slice, an operand, a number, a part,
swapped ranks), and a tensor scaled by the number of ranks, a gradient that is missing or not reduced, another group.
Numbers are looked at on two sets of inputs.  A mutant that takes the checker more than twice the work of the right
pair is undecided.  Lemmas that were seen, of the right pair and of mutants before, are not proved again: a lemma is about
no pair (`verify/equality/lemmas.py`).
"""

from __future__ import annotations

import argparse
import random
import sys
import time
from collections import Counter
from collections.abc import Sequence
from dataclasses import replace
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
MORE_WORK = 2
"""How much more work the checker may do on a mutant than on the right pair, before it is undecided."""


def more(pair: Pair, rng: random.Random) -> tuple[str, Pair | None]:
    """A mutant of one of the further kinds."""
    kind = rng.choice(["degree", "gradient", "group"])
    first, everywhere = rng.randrange(len(pair.ranks)), rng.random() < 0.5
    seed, programs = rng.random(), list(pair.ranks)
    for rank, program in enumerate(pair.ranks):
        if rank == first or everywhere:
            changed = _changed(program, kind, random.Random(seed), len(pair.ranks))
            if changed is None:
                return kind, None
            programs[rank] = changed
    return kind, replace(pair, ranks=tuple(programs))


def _changed(program: RankProgram, kind: str, rng: random.Random, ranks: int) -> RankProgram | None:
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
            index = rng.randrange(len(steps))
            words = dict(steps[index].words)
            group = words.get("ranks")
            if not isinstance(group, tuple) or len(group) < 4 or steps[index].operator != "all_reduce":
                return None
            half = len(group) // 2
            mine = [(*group[:half],), (*group[half:],)]
            words["ranks"] = mine[rng.randrange(2)]
            steps[index] = replace(steps[index], words=tuple(words.items()))
            return replace(program, steps=tuple(steps))


def judged(pair: Pair, budget: Budget, seen: Seen | None = None) -> Verdict:
    try:
        return check_pair(pair, budget, seen).verdict
    except ContainerError:
        return Verdict.UNDECIDED


def write(
    counts: Counter[tuple[str, int, str]], wrong: int, names: Sequence[tuple[str, int]], given: argparse.Namespace
) -> None:
    """The table, so far; on the page where that is asked for."""
    lines = [
        "| pair | ranks | mutants | numbers differ | undecided, numbers are the same | equal, numbers are the same |",
        "|---|--:|--:|--:|--:|--:|",
    ]
    for name, ranks in names:
        differ, left, proved = (counts[name, ranks, k] for k in ("differ", "open", "proved"))
        lines.append(f"| {name} | {ranks} | {differ + left + proved} | {differ} | {left} | {proved} |")
    total = [sum(n for (_, _, k), n in counts.items() if k == kind) for kind in ("differ", "open", "proved")]
    lines.append(f"| all | | {sum(total)} | {total[0]} | {total[1]} | {total[2]} |")
    if not given.page:
        print("\n".join(lines))
        print(f"equal though numbers differ: {wrong}")
        return
    large = "--large " * given.large
    words = f"{large}--count {given.count} --seconds {given.seconds:.0f} --seed {given.seed} --page"
    command = f"`python tests/benchmarks/equal_mutants.py {words}`: equal though numbers differ: **{wrong}**."
    PAGE.write_text("\n".join([f"# {(__doc__ or '').splitlines()[0]}", "", command, "", *lines]) + "\n")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--count", type=int, default=20000)
    parser.add_argument("--seconds", type=float, default=1500.0)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--large", action="store_true", help="the transformers too, of which a mutant takes seconds")
    parser.add_argument("--page", action="store_true")
    given = parser.parse_args()
    llama.sizes(heads=4)
    pairs, works, seen = {}, {}, {}
    for name, single, right, ranks, gradients in JOBS[0 if given.large else LARGE :]:
        question = ask(single, right, ranks, gradients, NOTHING)
        budget = Budget.with_large()
        work = budget.work
        if look(question, 0) is not None or judged(pair := question.pair(), budget) is not Verdict.PROVED:
            raise SystemExit(f"{name} is right, and not proved")
        pairs[name, ranks], works[name, ranks] = pair, MORE_WORK * (work - budget.work)
        seen[name, ranks] = Seen()
        judged(pair, Budget.with_large(), seen[name, ranks])
        print(f"{name} on {ranks} ranks: {len(pair.ranks[0].steps)} steps", flush=True)
    for name in CHEAP:
        key = f"kept: {name}", len(PAIRS[name].ranks)
        pairs[key], seen[key], budget = PAIRS[name], Seen(), Budget.with_large()
        work = budget.work
        if judged(pairs[key], budget, seen[key]) is not Verdict.PROVED:
            raise SystemExit(f"{name} is right, and not proved")
        works[key] = MORE_WORK * (work - budget.work)
    rng, counts, wrong, start = random.Random(given.seed), Counter[tuple[str, int, str]](), 0, time.process_time()
    names = list(pairs)
    while sum(counts.values()) < given.count and time.process_time() - start < given.seconds:
        key = names[sum(counts.values()) % len(names)]
        _, found = more(pairs[key], rng) if rng.random() < 0.3 else ("", mutant(pairs[key], rng))
        if found is None:
            continue
        try:
            different = any(differs(found, seed) for seed in (1, 2))
        except (ValueError, KeyError):  # no program
            different = True
        verdict = judged(found, replace(Budget.with_large(), work=works[key]), seen[key])
        proved = verdict is Verdict.PROVED
        wrong += proved and different
        if proved and different:
            print(f"WRONG: {key}, seed {given.seed}, number {sum(counts.values())}", flush=True)
        counts[(*key, "proved" if proved else "differ" if different else "open")] += 1
        if sum(counts.values()) % 500 == 0:
            print(sum(counts.values()), wrong, round(time.process_time() - start), flush=True)
            write(counts, wrong, names, given)
    write(counts, wrong, names, given)
    if wrong:
        raise SystemExit(1)


if __name__ == "__main__":
    main()
