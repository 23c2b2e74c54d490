"""Reduction logs that must be refused by construction, and the rules of the replay against their definitions.

`selection_log_oracle` states every rule of `proofs/selection/presolve_log.py` once more, by loops over single entries.
The replay must accept exactly the entries for which it is true.  The mutants are certificates with correct hashes,
changed in ways whose argument stands at their maker; each goes through files and must end in exit 10 (refuted) or 3
(malformed).
"""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Iterator
from dataclasses import replace
from functools import cache

import numpy as np
import pytest
import selection_cases as cases
import selection_reduction_cases as tiny
from budgets import some_or_all
from random_problems import reducible
from selection_log_oracle import State
from test_mutants_selection import Mutant, Original, changed, edited, exit_code

from shardproof.formal.selection.presolve.presolve import presolve
from shardproof.models.problem.claims import LowerBound, Optimal
from shardproof.models.problem.selection_problem import SelectionProblem
from shardproof.proofs.container.archive import read_container, write_container
from shardproof.proofs.selection.certificates import Open, Reduced
from shardproof.proofs.selection.presolve_log import Rule
from shardproof.verify.selection.certificate import check_selection
from shardproof.verify.selection.ground import Facts, Ground, Refuted
from shardproof.verify.selection.presolve import replay


def accepted(problem: SelectionProblem, entry: tuple[int, int, int, int]) -> bool:
    ground = Ground(problem)
    try:
        replay(ground, Reduced(np.array([entry], dtype=np.int64), (), Open()), list(ground.full), Facts(), "record")
    except Refuted:
        return False
    return True


def entries_about(problem: SelectionProblem) -> Iterator[tuple[Rule, int, int, int]]:
    """Every entry that names existing things, and some that do not."""
    n, k = len(problem.vertices), max(v.cost.size for v in problem.vertices)
    for i in range(-1, n + 1):
        for rule in (Rule.FIX, Rule.ELIMINATE):
            yield rule, i, 0, 0
        for j in range(-1, n + 1):
            yield from ((rule, i, j, 0) for rule in (Rule.ARC, Rule.MERGE, Rule.FOLLOW, Rule.SEPARABLE))
            yield from ((Rule.IMPLIED, i, j, h) for h in range(-1, n + 1))
        for a in range(-1, k + 1):
            yield from ((Rule.DOMINATED, i, a, b) for b in range(-1, k + 1))
            yield from ((Rule.OVERFULL, i, a, t) for t in range(-2, 7))
            yield from ((Rule.CLIQUE, i, a, h) for h in range(n - 1, n + 2))


@pytest.mark.parametrize("seeds", some_or_all(50, 110))
def test_the_replay_accepts_exactly_what_the_rules_say(seeds: int) -> None:
    seen = Counter[tuple[str, bool]]()
    for seed in range(seeds):
        problem = reducible(seed, n=4, k=3)
        reduction = presolve(problem) if seed % 2 else None
        if reduction is not None and reduction.problem is not None and reduction.problem.edges:
            problem = reduction.problem  # nothing applies here except what the reducer left on purpose
        state = State(problem)
        for entry in entries_about(problem):
            right = state.applies(*entry)
            assert accepted(problem, (int(entry[0]), *entry[1:])) == right, (seed, entry)
            seen[entry[0].name, right] += 1
    for rule in Rule:
        assert rule is Rule.ROWS or (seen[rule.name, True] >= 5 and seen[rule.name, False] >= 100), seen


@cache
def originals() -> list[Original]:
    """Optimal certificates through a log and points, on problems whose log uses several rules."""
    out = []
    for seed in range(400):
        problem = reducible(seed, n=6, k=4)
        best = cases.brute(problem)
        reduction = presolve(problem)
        if (
            best is None
            or reduction is None
            or reduction.problem is None
            or len(set(reduction.log[:, 0].tolist())) < 4
            or len(problem.vertices) < 4
        ):
            continue
        proof = reduction.proof_back(cases.points(reduction.problem))
        out.append(Original(f"log {seed}", problem, cases.certified(problem, Optimal(best[1], best[0]), proof)))
        if len(out) == 40:
            break
    return out


def with_log(
    o: Original, log: list[tuple[int, ...]] | np.ndarray, what: str, steps: tuple[np.ndarray, ...] | None = None
) -> Mutant:
    assert isinstance(o.proof, Reduced)
    rows = np.array(log, dtype=np.int64).reshape(-1, 4)
    return changed(o, what, proof=replace(o.proof, log=rows, steps=o.proof.steps if steps is None else steps))


def entries_of(o: Original) -> list[tuple[int, int, int, int]]:
    assert isinstance(o.proof, Reduced)
    return [tuple(entry) for entry in o.proof.log.tolist()]


def repeated_entries() -> Iterator[Mutant]:
    """No entry applies twice in a row: the vertex, choice, edge or row that it names has gone."""
    for o in originals():
        log = entries_of(o)
        for k, entry in enumerate(log):
            yield with_log(o, [*log[: k + 1], entry, *log[k + 1 :]], f"entry {k} twice")


def false_first_entries() -> Iterator[Mutant]:
    """An entry that the definition refuses, before everything else."""
    for o in originals():
        state = State(o.problem)
        wrong = [
            e for e in entries_about(o.problem) if not state.applies(*e) and e[1] in range(len(o.problem.vertices))
        ]
        for rule in Rule:
            some = [e for e in wrong if e[0] is rule]
            for entry in random.Random(1).sample(some, min(2, len(some))):
                yield with_log(o, [(int(rule), *entry[1:]), *entries_of(o)], f"{entry} first")


def vertices_that_are_gone() -> Iterator[Mutant]:
    """After FIX, MERGE, FOLLOW, ELIMINATE the vertex does not exist any more."""
    for o in originals():
        log = entries_of(o)
        for k, entry in enumerate(log):
            if entry[0] in (Rule.FIX, Rule.MERGE, Rule.FOLLOW, Rule.ELIMINATE):
                for rule in (Rule.FIX, Rule.ELIMINATE):
                    yield with_log(
                        o,
                        [*log[: k + 1], (int(rule), entry[1], 0, 0), *log[k + 1 :]],
                        f"{rule.name} of a vertex that entry {k} removed",
                    )


def missing_removals() -> Iterator[Mutant]:
    """Without the last entry that takes choices from a vertex, the FIX of that vertex finds more than one choice."""
    for o in originals():
        log = entries_of(o)
        for k, entry in enumerate(log):
            if entry[0] != Rule.FIX:
                continue
            removals = [
                m for m in range(k) if log[m][0] in (Rule.ARC, Rule.DOMINATED, Rule.OVERFULL) and log[m][1] == entry[1]
            ]
            if removals:
                yield with_log(
                    o,
                    [e for m, e in enumerate(log) if m != removals[-1]],
                    f"entry {removals[-1]} left out, needed by {k}",
                )


def swapped_order() -> Iterator[Mutant]:
    """An entry that names a vertex, moved behind the entry that removes the vertex."""
    for o in originals():
        log = entries_of(o)
        for k, entry in enumerate(log):
            if entry[0] in (Rule.FIX, Rule.MERGE, Rule.FOLLOW, Rule.ELIMINATE):
                for m in range(k):
                    if log[m][1] == entry[1] and log[m][0] != Rule.ROWS:
                        yield with_log(
                            o, [*log[:m], *log[m + 1 : k + 1], log[m], *log[k + 1 :]], f"entry {m} behind {k}"
                        )


def unknown_things() -> Iterator[Mutant]:
    """Rules, vertices, neighbours, choices and lists of steps that do not exist."""
    for o in originals()[:12]:
        log = entries_of(o)
        for rule in (0, -1, len(Rule) + 1, 1 << 40, -(1 << 62)):
            yield with_log(o, [*log, (rule, 0, 0, 0)], f"rule {rule}")
            yield with_log(o, [(rule, 0, 0, 0), *log], f"rule {rule} first")
        for rule in Rule:
            for vertex in (-1, len(o.problem.vertices), 1 << 62):
                yield with_log(o, [(int(rule), vertex, 0, 1), *log], f"{rule.name} of vertex {vertex}")
        for k, entry in enumerate(log[:6]):
            if entry[0] in (Rule.MERGE, Rule.FOLLOW, Rule.SEPARABLE, Rule.ARC):
                for other in (entry[1], -2, len(o.problem.vertices)):
                    yield with_log(
                        o,
                        [*log[:k], (entry[0], entry[1], other, 0), *log[k + 1 :]],
                        f"entry {k} with neighbour {other}",
                    )
            if entry[0] in (Rule.DOMINATED, Rule.OVERFULL):
                yield with_log(
                    o, [*log[:k], (entry[0], entry[1], 99, entry[3]), *log[k + 1 :]], f"entry {k} with choice 99"
                )
            if entry[0] == Rule.DOMINATED:
                yield with_log(o, [*log[:k], (*entry[:3], entry[2]), *log[k + 1 :]], f"entry {k} dominated by itself")


def wrong_steps() -> Iterator[Mutant]:
    """Rows that are not there, do not ascend, or are all of them."""
    for o in originals():
        assert isinstance(o.proof, Reduced)
        if not o.proof.steps:
            continue
        steps = o.proof.steps
        for what, new in {
            "step that is no row": np.append(steps[-1], 77),
            "steps descend": np.append(steps[-1][::-1], steps[-1][:1]) if steps[-1].size else np.array([1, 0]),
            "step twice": np.append(steps[-1], steps[-1][-1:]) if steps[-1].size else np.array([77, 77]),
        }.items():
            yield with_log(o, o.proof.log, what, (*steps[:-1], new))
        yield with_log(o, o.proof.log, "steps missing", steps[:-1])
        yield with_log(
            o, [(int(Rule.ROWS), 0, 0, 0), *entries_of(o)], "all rows kept", (np.array(o.problem.events()), *steps[1:])
        )


def wrong_inside() -> Iterator[Mutant]:
    """The record inside is about the reduced problem; the solution in the claim is one of the original problem."""
    for o in originals():
        assert isinstance(o.proof, Reduced) and isinstance(o.claim, Optimal)
        reduction = presolve(o.problem)
        assert reduction is not None and reduction.problem is not None
        for cut in (1, len(o.claim.solution) // 2):
            yield changed(
                o, f"solution without {cut} choices", claim=replace(o.claim, solution=o.claim.solution[:-cut])
            )
        yield changed(o, "cost one lower", claim=replace(o.claim, cost=o.claim.cost - 1))
        yield (
            changed(
                o,
                "no proof inside what does not cover",
                proof=replace(o.proof, then=cases.points(reduction.problem, [[0]] * len(reduction.problem.vertices))),
            )
            if any(v.cost.size > 1 for v in reduction.problem.vertices)
            else changed(o, "cost one higher", claim=replace(o.claim, cost=o.claim.cost + 1))
        )


def malformed_logs() -> Iterator[Mutant]:
    """Four columns of one length, one child."""
    for o in originals()[:6]:
        yield edited(o, "three columns", lambda h: h["records"][0]["log"].pop() and None)
        yield edited(o, "five columns", lambda h: h["records"][0]["log"].append(0))
        yield edited(o, "column that is not there", lambda h: h["records"][0]["log"].__setitem__(0, 10**6))
        yield edited(
            o,
            "columns of two lengths",
            lambda h: (
                h["records"][0]["log"].__setitem__(0, h["claim"]["solution"])
                if len(h["claim"]["solution"] if isinstance(h["claim"]["solution"], list) else [])
                else h["records"][0].update(log=[])
            ),
        )
        yield edited(o, "no child", lambda h: h["records"][0].update(then=[]))
        yield edited(o, "two children", lambda h: h["records"][0].update(then=[1, 1]))
        yield edited(o, "field too many", lambda h: h["records"][0].update(vertex=1))
        yield edited(o, "steps are no list", lambda h: h["records"][0].update(steps=None))
    o = originals()[0]
    problem, data = o.files()
    members = read_container(data)
    flat = members["certificate.i64"]
    assert not isinstance(flat, bytes)
    yield Mutant(o, "numbers cut", problem, write_container(None, {**members, "certificate.i64": flat[:-3]}))


CLASSES = {
    f.__name__: f
    for f in (
        repeated_entries, false_first_entries, vertices_that_are_gone, missing_removals, swapped_order, unknown_things, wrong_steps, wrong_inside, malformed_logs,
    )
}  # fmt: skip


@cache
def mutants(name: str) -> tuple[Mutant, ...]:
    return tuple(CLASSES[name]())


def test_the_originals_are_proved() -> None:
    assert len(originals()) >= 30
    for o in originals():
        assert check_selection(o.problem, o.certificate).exit_code == 0


@pytest.mark.parametrize("name", CLASSES)
def test_mutants_are_rejected(name: str) -> None:
    made = mutants(name)
    assert len(made) >= 20
    wrong = []
    for m in made:
        assert (m.problem, m.certificate) != m.original.files(), f"{m.original.name}: {m.what} changes nothing"
        code = exit_code(m.problem, m.certificate)
        if code not in (10, 3):
            wrong.append((m.original.name, m.what, code))
    assert not wrong


def test_at_least_1000_different_mutants() -> None:
    assert len({(m.problem, m.certificate) for name in CLASSES for m in mutants(name)}) >= 1000


def test_any_single_number_changed_never_proves_too_much() -> None:
    """Some changes leave a valid log; none may prove a bound above the optimum, whatever the record inside says."""
    codes = Counter[int]()
    for seed, o in enumerate(originals()):
        rng = random.Random(seed)
        assert isinstance(o.proof, Reduced) and isinstance(o.claim, Optimal)
        for _ in range(12):
            log = o.proof.log.copy()
            log[rng.randrange(len(log)), rng.randrange(4)] += rng.choice([-2, -1, 1, 2])
            ground = Ground(o.problem)
            try:
                made = replay(ground, replace(o.proof, log=log), list(ground.full), Facts(), "record")
            except Refuted:
                codes[10] += 1
                continue
            assert made is not None
            best = int(tiny.landscape(made.problem).min())
            assert best <= o.claim.cost
            proof = Reduced(log, o.proof.steps, cases.points(made.problem))
            result = check_selection(o.problem, cases.certified(o.problem, LowerBound(o.claim.cost + 1), proof))
            codes[result.exit_code] += 1
            assert result.exit_code in (5, 10)
    assert codes[10] > 200 and codes[5] > 5
