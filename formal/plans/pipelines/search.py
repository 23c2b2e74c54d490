"""Searches over cuts, views, micro-batches and placements of a pipelined training step.

Cases (stages, micro-batches) begin with a bound by least work.  First come leaves of one unit and a plan of one case
of many stages.  Then always the case of the least bound: leaves of one unit, which raise it, as many as it takes to see
that it is no better than the best plan; then a plan, then longer leaves, until the least bound is near the best plan,
or nothing raises it.  A plan without pipelines is the case (1, 1), so that no answer is worse than that.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from fractions import Fraction
from time import process_time
from typing import Protocol

from ...selection.model.clock import Clock, Overdue
from ..time_limit import TooSlow
from .bounded import NO_STEP
from .case import FAR, Case, cases, orders
from .cuts import best_cut
from .interleaved import InterleavedCase, interleaved_case
from .job import Job
from .outcome import SearchOutcome, Triple
from .phases import StagePlan
from .scheduled import Scheduled, schedule_stages

TRY_SECONDS, SCHEDULE_SECONDS = 0.2, 5.0
"""For the schedule of a plan under one limit of activations; for that of the best plan."""

TRY_SHARE = 0.01
"""Of the time of the search, for one such schedule at most: 1F1B is known, and little is gained upon it."""

LOOKS_SHARE = 0.4
"""Of the time: after it a plan is made, whatever cases were not looked at."""

BROUGHT_SHARE = 0.8
"""The same where a plan was brought: a look costs little then, and one case that nobody looked at is the bound of all.
"""

FIRST_SHARE = 0.5
"""Of the time that is left, for the first plans where there are other numbers of stages to look at."""


EARLY_SHARE = 0.1
"""Of the time, for a plan on the whole machine before any bound is looked for, where memory is not limited."""

LAST_SHARE, LAST_S = 0.2, 10.0
"""Of the time of the search, and at least so many seconds, for tables where there is no plan yet, beyond it: of the
processor, as beside many other programs a late answer is better than none.
"""

TIGHT = Fraction(1, 20)
"""Of the gap that is asked for: stages that are nearer to their leaves than this need no longer leaves."""

USUAL = 8
"""Micro-batches per stage of the first plans: with so many, filling and emptying take an eighth."""

MOST_FAILED = 3
"""Plans that are no better than the best known, one after another, until no more are made."""


class Tell(Protocol):
    """Hears of every step of the search: a text."""

    def __call__(self, text: str, /) -> None: ...


@dataclass(frozen=True)
class Wanted:
    """What is wanted of a search.  `below`: picoseconds of a plan from elsewhere: what is no better needs no search;
    `needed`: but one plan is looked for, however long it takes; `insist`: one that comes late is better than none;
    `brought`: a plan of the same step with reshardings and operators one after another; `failed`: cases (stages,
    micro-batches, chunks) in which that search found none, as what runs ahead takes more memory; `enough`: of the time,
    after which a plan is enough.
    """

    below: int = NO_STEP
    needed: bool = True
    insist: bool = True
    brought: Scheduled | None = None
    failed: frozenset[Triple] = frozenset()
    enough: float = 1.0


def _triple(case: Case) -> Triple:
    return case.stages, case.micro, case.chunks


def _seeds(found: Sequence[Case]) -> list[Case]:
    """Cases that are looked at before all others: of every number of stages the one whose micro-batches are nearest to
    `USUAL` times as many among those that have room for their activations, or the smallest; of one stage the fewest
    that have room.
    """

    def seed(cases_of: Sequence[Case]) -> Case:
        roomy = [c for c in cases_of if c.roomy()]
        if cases_of[0].stages == 1:
            return (roomy or cases_of)[0]
        return min(roomy, key=lambda c: abs(c.micro - USUAL * c.stages)) if roomy else cases_of[-1]

    stages = sorted({c.stages for c in found}, reverse=True)
    return [seed(sorted((c for c in found if c.stages == p), key=lambda c: c.micro)) for p in stages]


def search_pairs(
    job: Job,
    pairs: list[tuple[int, int]],
    clock: Clock,
    gap: Fraction,
    tell: Tell | None = None,
    triples: Sequence[tuple[int, int, int]] = (),
    hold: Callable[[float], None] | None = None,
    wanted: Wanted | None = None,
) -> SearchOutcome:
    """The best plan over these pairs (stages, micro-batches), and triples with a number of chunks, within the time, and
    the bound of all of them.  `hold`: hears how many processor seconds the check of what is known takes, and may end
    the clock earlier.
    """
    found = cases(job, pairs)
    base = {(c.stages, c.micro): c for c in found}
    for p, m, v in triples:
        found.append(interleaved_case(base.get((p, m)) or cases(job, [(p, m)])[0], v))
    for case in found:
        case.update_bound(NO_STEP)
        case.coarse = case.bound
        if isinstance(case, InterleavedCase):
            case.coarse_weights = case.weights
    wanted = wanted or Wanted()
    part = clock.share(wanted.enough)
    search_of = _Search(found, part, gap, tell or (lambda words: None), hold or (lambda seconds: None), wanted)
    search_of.run()
    if search_of.best is None and wanted.enough < 1 and not clock.over():
        search_of.clock = clock
        search_of.let(clock)
        search_of.run()
    if wanted.insist:
        search_of.at_last()
    best, most = search_of.best, search_of.most
    return SearchOutcome(job, best, found, min([most, *(c.bound for c in found)]), frozenset(search_of.failed))


class _Search:
    """What is known while pairs are looked at.  `most`: picoseconds of the best plan."""

    def __init__(
        self,
        found: list[Case],
        clock: Clock,
        gap: Fraction,
        tell: Tell,
        hold: Callable[[float], None],
        wanted: Wanted,
    ) -> None:
        self.found, self.clock, self.gap, self.tell, self.hold = found, clock, gap, tell, hold
        self.wanted = wanted
        self.best: Scheduled | None = None
        self.most = NO_STEP
        self.slack: dict[int, Fraction] = {}
        self.tried: set[int] = {id(c) for c in found if _triple(c) in wanted.failed}
        self.failed: set[Triple] = set()
        self.last: Case | None = None
        self.longer: Clock | None = None
        self.job = found[0].job
        self.let(clock)

    def run(self) -> None:
        """Search until nothing raises the bound or the time is over."""
        try:
            self.begin()
            self.close()
            self.improve()
        except (TooSlow, Overdue):  # no more tables, no more search: what is known by now is the answer
            pass

    def let(self, guard: Clock) -> None:
        """Tables may be built until that clock is over."""
        for case in self.found:
            case.guard = case.home.guard = guard

    def open(self, case: Case) -> bool:
        """Whether a case may still have a plan that is better by more than the gap, and better than what is known."""
        return case.bound < self.most * (1 - self.gap) and case.bound < self.of_interest

    @property
    def of_interest(self) -> int:
        """What a bound has to reach."""
        return self.most if self.wanted.needed and self.best is None else min(self.most, self.wanted.below)

    @property
    def try_seconds(self) -> float:
        """For the schedule of a plan under one limit of activations."""
        limit = self.clock.limit_s
        return TRY_SECONDS if limit is None else min(TRY_SECONDS, TRY_SHARE * limit)

    def turn_to(self, case: Case) -> None:
        """Give back the tables of the case that was looked at, unless the best plan is one of it."""
        last, kept = self.last, None if self.best is None else self.best.case.home
        if last is not None and last.home is not case.home and last.home is not kept:
            last.forget()
        self.last = case

    def prove(self, case: Case, size: int) -> None:
        """Leaves of `size` units."""
        self.turn_to(case)
        case.prove(size, self.clock, self.of_interest)
        case.update_bound(self.of_interest)
        self.say(case)

    def check_s(self) -> float:
        """Processor seconds of the check of what is known: of problems whose leaves the bound needs, and of the best
        plan's.
        """
        return sum(s for (p, m, _), s in self.job.check_s.items() if self.needs_check(p, m))

    def needs_check(self, stages: int, micro: int) -> bool:
        """Whether a problem is checked with the best plan: cases that least work rules out need no leaves."""
        cases = [c for c in self.found if (c.stages, c.micro) == (stages, micro)]
        best = self.best is not None and self.best.case.home in [c.home for c in cases]
        return best or any(c.coarse < self.most for c in cases)

    def look(self, case: Case) -> None:
        """What costs least to know: leaves on nodes, or, where a view is one node, those of the view."""
        self.turn_to(case)
        if case.nodes is None:
            self.prove(case, 1)
            return
        case.look(self.clock, self.of_interest)
        case.update_bound(self.of_interest)
        self.say(case)

    def late(self) -> bool:
        """Whether a plan that is not begun yet would come too late.  A limit of work lets what is begun end as a whole,
        and so does a search that has to bring a plan.
        """
        if self.clock.counts or not self.clock.over():
            return False
        if self.best is not None or not self.wanted.insist:
            return True
        return self.extend().over()

    def extend(self) -> Clock:
        """The time behind the limit of a search that has to bring a plan and has none: tables may be built in it, and
        stages be fitted into the memory.
        """
        if self.longer is None:
            self.longer = Clock(max(LAST_S, LAST_SHARE * (self.clock.limit_s or 0.0)), now=process_time)
            self.let(self.longer)
        return self.longer

    def attempt(self, case: Case, clock: Clock | None = None) -> None:
        """A plan where the bound is least, searched for until `clock` is over; None: that of the whole search."""
        clock = clock or self.clock
        self.turn_to(case)
        self.tried.add(id(case))
        tried, fits = list[tuple[int, ...]](), False
        for cut in dict.fromkeys([best_cut(case), *case.begins]):
            tried.append(cut)
            if self.late():
                break
            fits = bool(cut) and self.attempt_cut(case, cut, clock)  # no cut: leaves say that none fits
            if fits:
                break
        within = case.cut_within()
        if within is not None and within not in tried and not self.late():
            fits |= self.attempt_cut(case, within, clock)
        if not fits and not clock.over():
            self.failed.add(_triple(case))
        self.say(case)

    def attempt_cut(self, case: Case, cut: tuple[int, ...], clock: Clock) -> bool:
        """A plan with this cut; whether one fits."""
        for order in orders(case):
            if self.late():
                break
            planned_once, made_once = False, False
            for stages in self.placements(case, cut, order, clock):
                planned_once = True
                self.slack[id(case)] = min(case.slack(stages), self.slack.get(id(case), FAR))
                made = schedule_stages(case, stages, self.try_seconds, clock)
                made_once |= made is not None
                if made is not None and made.step < self.most:
                    self.best, self.most = made, made.step
            if planned_once:
                return made_once
        return False

    def placements(
        self, case: Case, cut: tuple[int, ...], order: tuple[int, ...], clock: Clock
    ) -> Iterator[list[StagePlan]]:
        """Placements of all stages: the cheapest by the sum, by weights of channels, mixed."""
        for channels in (None, *case.channels):
            if self.late():
                return
            stages = case.plan(cut, clock, order, channels)
            if stages is not None:
                yield stages
        if not self.late():
            yield from case.mix_placements(cut, clock, order)

    def say(self, case: Case) -> None:
        """What is known of a case, for people who wait; and what its check takes, for whoever keeps the time."""
        self.hold(self.check_s())
        chunks = f", {case.chunks} chunks each" if case.chunks > 1 else ""
        least = f"at least {case.bound / 1e9:.4g} ms" if case.bound < NO_STEP else "none fits"
        self.tell(f"{case.stages} stages, {case.micro} micro-batches{chunks}: {least}")

    def begin(self) -> None:
        """A plan on the whole machine, a look at a case of every number of stages, then plans, the least bound first,
        until there is one: leaves of what cannot be better end early then.  Under a memory limit the first plan is one
        of many stages: their tables are small, and there is most room; then others have their turn as long as there is
        time for first plans, since least bounds say little of what fits.  Cases that nobody could look at come last.
        """
        if self.wanted.brought is not None and self.bring(self.wanted.brought):
            return
        seeds = [case for case in _seeds(self.found) if case.bound < NO_STEP]
        whole = next((case for case in seeds if case.stages == 1 and self.job.memory is None), None)
        untried = whole is not None and id(whole) not in self.tried
        if whole is not None and untried and len(seeds) > 1 and self.best is None and self.open(whole):
            early = self.clock.share(EARLY_SHARE)
            self.attempt(whole, early)
            if early.over():  # with more time there may be a better one
                self.tried.discard(id(whole))
        looking = self.clock.share(LOOKS_SHARE)
        for case in seeds:
            if len(seeds) > 1 and not looking.over() and not case.looked:
                self.look(case)
                if case is seeds[0] and self.job.memory is not None and case.roomy() and self.wanted.below >= NO_STEP:
                    self.first(case)
                    looking = self.clock.at_most(None).share(LOOKS_SHARE)
        limited, trying = self.job.memory is not None, self.clock.at_most(None).share(FIRST_SHARE)
        while seeds and not self.clock.over() and (self.best is None or (limited and not trying.over())):
            case = min(seeds, key=lambda c: (not c.looked, c.bound))
            seeds.remove(case)
            self.first(case)

    def bring(self, plan: Scheduled) -> bool:
        """The placements of a plan in which nothing runs beside operators, in orders in which it does; then a look at
        every case that may be better, as their tables are there, and a plan of its own of the same case.  Whether that
        plan could be taken over.
        """
        case = next((c for c in self.found if _triple(c) == _triple(plan.case)), None)
        if case is None:
            return False
        self.turn_to(case)
        case.home.adopt_tables(plan.case.home)
        beside = [case.time_stage(s.first, s.end, s.choices) for s in plan.stages]
        for stages in (beside, plan.stages):  # what runs ahead may not have room
            made = schedule_stages(case, stages, self.try_seconds, self.clock, like=plan)
            if made is not None and made.step < self.most:
                self.best, self.most = made, made.step
                break
        self.say(case)
        self.look_at_all(self.clock.at_most(None).share(BROUGHT_SHARE))
        self.first(case)
        return self.best is not None

    def look_at_all(self, clock: Clock) -> None:
        """A look at every case that may be better, least bounds first, unless there is no time for all of them: the
        bound is that of the case that nobody looked at.
        """
        begun, looked = clock.seconds(), 0
        while not clock.over():
            left = [c for c in self.found if not c.looked and self.open(c)]
            spent = clock.seconds() - begun
            if not left or (looked and clock.remaining_s() < spent / looked * len(left)):
                break
            self.look(min(left, key=lambda c: c.bound))
            looked += 1

    def first(self, case: Case) -> None:
        """A plan of a case of which little is known, unless it was tried, or cannot be better."""
        if case.size == 0:
            self.prove(case, 1)
        if self.open(case) and id(case) not in self.tried:
            several = any(other.stages != case.stages for other in self.found)
            part = self.clock.at_most(None).share(FIRST_SHARE if several else 1.0)
            self.attempt(case, part)
            if self.best is None and part.over() and not self.clock.over():  # its options are there, and more come
                self.attempt(case)

    def close(self) -> None:
        """Always the case of the least bound: leaves of one unit, a plan, longer leaves, until that bound stays."""
        while not self.clock.over():
            case = min(self.found, key=lambda c: c.bound)
            if not self.open(case):
                break
            if not case.looked:
                self.look(case)
            elif case.size == 0:
                self.prove(case, 1)
            elif id(case) not in self.tried:
                self.attempt(case)
            elif self.helpful(case):
                cut = case.starts
                self.prove(case, min(2 * case.size, self.even(case)))
                if case.starts != cut:
                    self.attempt(case)
            else:
                break

    def at_last(self) -> None:
        """Where the time has brought no plan, what is found without any search, if its tables are ready soon."""
        if self.best is None and self.clock.over() and not self.extend().over():
            with suppress(TooSlow, Overdue):
                self.attempt(min(self.found, key=lambda c: (c.size == 0, not c.roomy(), c.stages, c.micro)))

    def helpful(self, case: Case) -> bool:
        """Whether longer leaves could raise a bound much: not where stages take what these say already."""
        return case.size < self.even(case) and self.slack.get(id(case), FAR) >= self.gap * TIGHT

    def even(self, case: Case) -> int:
        """Units of the longest stage where units are shared out evenly: longer leaves say no more."""
        return -(-case.job.division.units // case.parts)

    def improve(self) -> None:
        """Plans of other cases that may be better, until several in turn are not; then the schedule of the best."""
        failed = 0
        while failed < MOST_FAILED and not self.clock.over() and any(self.open(c) for c in self.found):
            rest = [c for c in self.found if id(c) not in self.tried and c.bound < self.of_interest]
            if not rest:
                break
            case, before = min(rest, key=lambda c: (c.size == 0, c.bound)), self.most
            if case.size == 0:
                self.prove(case, 1)
            if case.bound < self.of_interest:
                self.attempt(case)
            failed = 0 if self.most < before else failed + 1
            self.tried.add(id(case))
        best, clock = self.best, self.clock
        if best is not None and clock.remaining_s() > 1:
            seconds = min(SCHEDULE_SECONDS, clock.remaining_s() / 2)
            better = schedule_stages(best.case, best.stages, seconds, clock, like=best)
            if better is not None and better.step < best.step:
                self.best, self.most = better, better.step
