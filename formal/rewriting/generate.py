"""The generator: candidates of equal fingerprint are pruned by derivation, proved, and reduced to rules
none of which follows from the others.

    enumerate      every graph of the pools, exact fingerprints                                         (generate_terms)
    in order of size, for each candidate left = right:
      derivable    at most three steps of rules kept so far lead from one side to the other            -> pruned
      else judged  proved -> kept;  refuted, vacuous or undecided -> dropped and counted
    at the end     every kept rule that at most three steps of the *other* kept rules derive is dropped

Types and preconditions of steps are tested on one instance of the candidate, with unknowns drawn from distinct primes.
Workers test and judge batches against the rules kept when the batch was sent; the main process tests survivors again
against what was kept meanwhile, so the result does not depend on who was faster: batches and their order are fixed.

Progress goes to a journal, a line per batch; with the same settings a run takes it up again (kept rules are judged
anew, nothing is believed).
"""

from __future__ import annotations

import hashlib
import json
import multiprocessing
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from itertools import product
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Final

from ...models.files.json_text import parse_json
from ...models.rewrites.eval import Evaluator, input_types
from ...models.rewrites.instances import cases
from ...models.rewrites.rule import Pattern, Substitution, holds
from ...models.rewrites.shards import IllTyped, TensorType
from ...models.rewrites.terms import Apply, Term, rule_of, term_of
from ...models.rewrites.types import condition_names
from ...models.sources.rules.specified import is_reading, operator_rules
from ...models.sources.specified.specification import Specification
from ...models.text import InputError
from ...proofs.rewrites.judgement import Proved
from ..selection.model.clock import Clock
from .facts import Reasoner
from .generate_terms import PARALLEL, Candidate, Enumeration, Pool
from .prove import judge
from .rewrite import Search, store
from .terms import Typing, same_type

PRIMES: Final = (2, 3, 5, 7, 11, 13, 17, 19, 23, 29, 31, 37, 41, 43, 47, 53, 59, 61, 67, 71)
BATCH: Final = 48
STEPS: Final = 3
STEPS_PER_RULE: Final = 5_000_000
"""Most work for the judgement of one candidate."""


@dataclass
class Report:
    """Counts of a run: what was enumerated, what became of the candidates, what is kept."""

    graphs: int = 0
    classes: int = 0
    pairs: int = 0
    candidates: int = 0
    outcomes: Counter[str] = field(default_factory=Counter)
    kept_first: int = 0
    kept: int = 0
    parallel: int = 0

    def counts(self) -> dict[str, int]:
        """All of them by the words that the verb prints."""
        return {
            "graphs": self.graphs,
            "classes": self.classes,
            "pairs": self.pairs,
            "candidates": self.candidates,
            **{f"candidates {word}": n for word, n in self.outcomes.items()},
            "kept before minimising": self.kept_first,
            "kept": self.kept,
            "kept with parallel operators": self.parallel,
        }

    def to_json(self) -> dict[str, object]:
        """For the library's header."""
        return {
            "graphs": self.graphs,
            "classes": self.classes,
            "pairs": self.pairs,
            "candidates": self.candidates,
            "outcomes": dict(sorted(self.outcomes.items())),
            "kept_before_minimising": self.kept_first,
            "kept": self.kept,
            "parallel": self.parallel,
        }


@dataclass(frozen=True)
class Outcome:
    """What became of a candidate: `derivable`, `ill-typed`, `proved`, `refuted`, `vacuous` or `undecided`."""

    word: str
    proof: Proved | None = None


def rule_from(candidate: Candidate, name: str, sharded: Sequence[bool] | None = None) -> Substitution:
    """The candidate as a rule: inputs a, b, .. with unknown sizes, and unknown degrees where `sharded` (default:
    everywhere).
    """
    fixed = candidate.fixed or ((),) * len(candidate.ranks)
    inputs = tuple(
        Pattern("abcdefgh"[k], rank, fixed[k], sharded is None or sharded[k]) for k, rank in enumerate(candidate.ranks)
    )
    return rule_of(name, inputs, (candidate.left,), (candidate.right,))


def is_parallel(rule: Substitution) -> bool:
    """Whether an operator of the rule changes how a tensor lies on devices."""
    return any(n.operator in PARALLEL for n in (*rule.left, *rule.right))


def ends(rule: Substitution) -> tuple[Term, Term]:
    """Left and right term of a rule of one output."""
    a, b = rule.outputs[0]
    return term_of(rule.left, a), term_of(rule.right, b)


class Pruner:
    """Rules kept so far, and the search that tests what they derive."""

    def __init__(self) -> None:
        self.rules = store()
        self.search = Search(self.rules)
        self.evaluator = Evaluator()
        self.reasoner = Reasoner()

    def add(self, rule: Substitution) -> None:
        """Keep a rule."""
        self.rules.add(rule)

    def typing(self, rule: Substitution) -> tuple[Typing, int, int] | None:
        """A general instance on which both sides type alike, and the numbers of both sides; None if there is none."""
        terms = self.rules.terms
        left, right = (terms.number(t) for t in ends(rule))
        for values, inputs in general_instances(rule):
            typing = Typing(terms, self.evaluator, inputs, values)
            if same_type(typing.type(left), typing.type(right)):
                return typing, left, right
        return None

    def derivable(self, rule: Substitution, skip: int = -1, thorough: bool = False) -> bool | None:
        """Whether kept rules (without number `skip`) lead from one side to the other; None if no general instance
        types both.
        """
        found = self.typing(rule)
        if found is None:
            return None
        typing, left, right = found
        self.search.slack = 6 if thorough else 3
        return self.search.derive(left, right, typing, STEPS, skip, 1_000_000 if thorough else 4_000) is not None

    def settle(self, candidate: Candidate, name: str) -> Outcome:
        """Prune or judge a candidate: with the most unknown degrees with which both sides type."""
        typed = []
        may = (True, False) if candidate.sharded else (False,)
        for sharded in sorted(product(may, repeat=len(candidate.ranks)), key=lambda s: s.count(False)):
            rule = rule_from(candidate, name, sharded)
            derivable = self.derivable(rule)
            if derivable is True:
                return Outcome("derivable")
            if derivable is False:
                judgement = judge(rule, Clock(work=STEPS_PER_RULE), reasoner=self.reasoner)
                if isinstance(judgement, Proved):
                    return Outcome("proved", judgement)
                return Outcome(type(judgement).__name__.lower())
            if cases(rule, 4):
                typed.append(rule)
        for rule in typed[:2]:  # no general instance types both sides: the rule needs a precondition
            judgement = judge(rule, Clock(work=STEPS_PER_RULE), reasoner=self.reasoner)
            if isinstance(judgement, Proved):
                return Outcome("derivable") if self.derivable(judgement.rule) else Outcome("proved", judgement)
        return Outcome("no general instance")


def general_instances(rule: Substitution) -> Iterator[tuple[dict[str, int], tuple[TensorType, ...]]]:
    """Instances of the left side under the preconditions, unknowns being distinct primes; one per case of typing."""
    for typed in cases(rule, 8):
        names = condition_names(typed.rule, typed.facts, typed.inputs)
        free = [s for s in typed.facts.low if s not in typed.facts.sigma]
        unknowns = {s: max(typed.facts.low[s] or 0, PRIMES[k % len(PRIMES)]) for k, s in enumerate(free)}
        values = {n: typed.facts.now(p).value(unknowns) for n, p in names.items()}
        if min(values.values(), default=1) < 1:
            continue
        try:
            inputs = input_types(rule, values)
        except IllTyped:
            continue
        if all(holds(c, values) for c in rule.preconditions):
            yield values, inputs


def tree_size(t: Term) -> int:
    """Operators, shared ones as often as they occur: an instance is never smaller than its rule."""
    return 1 + sum(map(tree_size, t.arguments)) if isinstance(t, Apply) else 0


def in_order(candidates: list[Candidate]) -> list[Candidate]:
    """Small ones first, among equals those with more inputs, which are more general."""

    def key(c: Candidate) -> tuple[int, int, int]:
        a, b = tree_size(c.left), tree_size(c.right)
        return max(a, b), a + b, -len(c.ranks)

    return sorted(candidates, key=key)


Progress = Callable[[str, int, int], None]


def _enumeration(progress: Progress, pool: str) -> Callable[[int, int], None]:
    def tell(done: int, total: int) -> None:
        progress(f"enumerating {pool}", done, total)

    return tell


def generate(
    pools: Sequence[Pool], workers: int = 2, journal: Path | None = None, progress: Progress | None = None
) -> tuple[list[Proved], Report]:
    """The kept rules with their proofs, smallest first, and the counts."""
    report = Report()
    found: dict[Candidate, None] = {}
    for pool in pools:
        e = Enumeration(pool)
        e.enumerate_all(_enumeration(progress, pool.name) if progress else None)
        found.update(dict.fromkeys(e.candidates()))
        report.graphs += e.counts.graphs
        report.classes += e.counts.classes
        report.pairs += e.counts.pairs
    candidates = in_order(list(found))
    report.candidates = len(candidates)
    kept = _first_pass(candidates, workers, journal, progress, report)
    report.kept_first = len(kept)
    kept = minimal_rules(kept, workers, progress)
    report.kept, report.parallel = len(kept), sum(is_parallel(p.rule) for p in kept)
    return [_renamed(p, f"g{k}") for k, p in enumerate(kept)], report


def judge_readings(operators: Sequence[Specification]) -> tuple[list[Proved], list[str]]:
    """Rules of other readings of users' operators, which no enumeration has: those that are proved, and the names of
    the others.
    """
    rules = [r for s in operators for r in operator_rules(s) if is_reading(r)]
    judged = [judge(r, Clock(work=STEPS_PER_RULE)) for r in rules]
    proved = [j for j in judged if isinstance(j, Proved)]
    return proved, [r.name for r, j in zip(rules, judged, strict=True) if not isinstance(j, Proved)]


def _renamed(p: Proved, name: str) -> Proved:
    return replace(p, rule=replace(p.rule, name=name))


def _first_pass(
    candidates: list[Candidate], workers: int, journal: Path | None, progress: Progress | None, report: Report
) -> list[Proved]:
    kept: list[Proved] = []
    local = Pruner()
    batches = [candidates[k : k + BATCH] for k in range(0, len(candidates), BATCH)]
    mark = hashlib.sha256(repr(candidates).encode()).hexdigest()
    words, resumed = _read_journal(journal, mark)
    for k, batch in enumerate(batches[: len(words)]):
        for candidate, word in zip(batch, words[k], strict=True):
            report.outcomes[word] += 1
            if word == "proved":
                outcome = local.settle(candidate, f"k{len(kept)}")
                if outcome.proof is not None:
                    kept.append(outcome.proof)
                    local.add(outcome.proof.rule)
    out = None
    if journal is not None:
        journal.parent.mkdir(parents=True, exist_ok=True)
        out = journal.open("a" if resumed else "w", encoding="utf-8")
        if not resumed:
            out.write(json.dumps({"settings": mark}) + "\n")
    with _crew(workers) as crew:
        at = len(words)
        sent = 0
        while at < len(batches):
            now = batches[at : at + len(crew)]
            new = [p.rule for p in kept[sent:]]
            sent = len(kept)
            for worker, batch in zip(crew, now, strict=False):
                worker.send((new, batch))
            for worker in crew[len(now) :]:
                worker.send((new, []))
            answers = [worker.recv() for worker in crew][: len(now)]
            for outcomes in answers:
                said = []
                for outcome in outcomes:
                    word = outcome.word
                    if outcome.proof is not None:
                        rule = replace(outcome.proof.rule, name=f"k{len(kept)}")
                        if len(kept) > sent and local.derivable(rule):
                            word = "derivable"
                        else:
                            kept.append(replace(outcome.proof, rule=rule))
                            local.add(rule)
                    report.outcomes[word] += 1
                    said.append(word)
                if out is not None:
                    out.write(json.dumps(said) + "\n")
                    out.flush()
            at += len(now)
            if progress is not None:
                progress(f"{len(kept)} rules; candidate", min(at * BATCH, len(candidates)), len(candidates))
    if out is not None:
        out.close()
    return kept


def _read_journal(journal: Path | None, mark: str) -> tuple[list[list[str]], bool]:
    """Words of the finished batches, and whether the journal is of this run."""
    if journal is None or not journal.exists():
        return [], False
    try:
        lines = [parse_json(line) for line in check_journal(journal).splitlines()]
    except ValueError:
        return [], False
    if not lines or lines[0] != {"settings": mark}:
        return [], False
    batches = [line for line in lines[1:] if isinstance(line, list)]
    return [list(map(str, batch)) for batch in batches], len(batches) == len(lines) - 1


def check_journal(journal: Path) -> bytes:
    """What the journal holds; `InputError` for a file that is no journal, because a new one would take its place."""
    try:
        if journal.is_dir() or journal.exists() and not journal.is_file():
            raise InputError(f"{journal}: is not a regular file; name another journal")
        data = journal.read_bytes() if journal.exists() else b""
    except OSError as error:
        raise InputError(f"{journal}: cannot be read: {error.strerror or error}") from None
    if data and not data.startswith(b'{"settings": '):
        raise InputError(f"{journal}: exists and is not a journal; name another file")
    return data


def minimal_rules(kept: list[Proved], workers: int, progress: Progress | None = None) -> list[Proved]:
    """The rules without those that at most three steps of the others derive; larger ones are given up first."""
    rules = [p.rule for p in kept]
    alive = [True] * len(rules)
    with _crew(workers) as crew:
        for worker in crew:
            worker.send((rules, None))
        suspects: list[int] = []
        chunks = [list(range(k, min(k + 16, len(rules)))) for k in range(0, len(rules), 16)]
        for k in range(0, len(chunks), len(crew)):
            now = chunks[k : k + len(crew)]
            for worker, chunk in zip(crew, now, strict=False):
                worker.send(("used", chunk))
            for worker, chunk in zip(crew, now, strict=False):
                suspects += [i for i, found in zip(chunk, worker.recv(), strict=True) if found]
            if progress is not None:
                progress("minimising", min(k * 16, len(rules)), len(rules))
    local = Pruner()
    for rule in rules:
        local.add(rule)
    for i in sorted(suspects, reverse=True):
        local.search.dead = frozenset(j for j, a in enumerate(alive) if not a) | {i}
        if local.derivable(rules[i], thorough=True):
            alive[i] = False
    return [p for p, a in zip(kept, alive, strict=True) if a]


@contextmanager
def _crew(workers: int) -> Iterator[list[Connection]]:
    """Worker processes, each at the other end of a pipe."""
    context = multiprocessing.get_context("spawn")
    ends_here, processes = [], []
    try:
        for _ in range(max(1, workers)):
            here, there = context.Pipe()
            process = context.Process(target=_work, args=(there,), daemon=True)
            process.start()
            there.close()
            ends_here.append(here)
            processes.append(process)
        yield ends_here
    finally:
        for here in ends_here:
            here.close()
        for process in processes:
            process.join(10)
            if process.is_alive():
                process.terminate()


def _work(pipe: Connection) -> None:
    """(new rules, batch) -> outcomes;  (rules, None): take them;  ("used", numbers) -> whether the other rules
    derive each.
    """
    pruner = Pruner()
    while True:
        try:
            first, second = pipe.recv()
        except (EOFError, OSError):
            return
        if first == "used":
            pipe.send([bool(pruner.derivable(pruner.rules.rules[i], skip=i, thorough=True)) for i in second])
            continue
        for rule in first:
            pruner.add(rule)
        if second is not None:
            pipe.send([pruner.settle(c, "candidate") for c in second])
