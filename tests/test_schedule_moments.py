"""What memory lets run or begin at a moment: every condition of the rows that argue so, each by a file that would be
proved without it.
"""

from __future__ import annotations

from dataclasses import replace
from functools import cache
from itertools import permutations

import numpy as np
import pytest
from budgets import work
from conformance.schedules import ASIDE, CROWD, CROWD_ROWS, CROWD_STARTS, TIGHT, crowd_rows
from independent_checker.schedules import check_schedule as second_schedule

from shardproof.formal.schedules.bounds import frame
from shardproof.formal.schedules.crowded import memory_bound
from shardproof.formal.schedules.levels import raise_levels
from shardproof.formal.schedules.memory import list_schedule, store
from shardproof.formal.schedules.moments import Moments
from shardproof.formal.schedules.shop import shop
from shardproof.models.problem.claims import Verdict
from shardproof.models.schedules.problem import Holding, Precedence, ScheduleProblem, Stream, Task
from shardproof.proofs.schedules.certificate import (
    APART,
    FLOW,
    LEFT,
    ORDER,
    PATH,
    PRICE,
    SPLIT,
    WAITS,
    WORK,
    Refutation,
    ScheduleCertificate,
)
from shardproof.proofs.schedules.file import write_schedule
from shardproof.verify.schedules.certificate import check_schedule

Row = tuple[int, ...]


def verdict(problem: ScheduleProblem, starts: tuple[int, ...], bound: int, *found: Row) -> tuple[Verdict, str]:
    rows = np.array([[*row, *(0,) * (5 - len(row))] for row in found]).reshape(-1, 5)
    at = np.array(starts)
    end = int((at + np.array([t.time for t in problem.tasks])).max())
    result = check_schedule(
        ScheduleCertificate(problem.check(), at, end, bound, Refutation(bound - 1, rows), "by hand")
    )
    return result.verdict, result.reason


def refused(words: str, *given: object) -> None:
    found, reason = verdict(*given)  # type: ignore[arg-type]
    assert found is Verdict.REFUTED and words in reason, reason


PRICES = (PRICE, 0, 1, 0)
CLOSE = ((SPLIT, 0, 1), (PATH, 1), (PATH, 0))


def test_two_tasks_that_do_not_fit_beside_each_other_run_apart() -> None:
    both = (PRICES, (APART, 0, 1), *CLOSE)
    assert verdict(ASIDE, (0, 3), 6, *both)[0] is Verdict.PROVED
    refused("do not share a stream", ASIDE, (0, 3), 6, PRICES, *CLOSE)
    refused("may run at the same moment", replace(ASIDE, limits=(6,)), (0, 3), 6, *both)
    refused("there is no limit", replace(ASIDE, limits=(None,)), (0, 3), 6, *both)
    refused("there is no limit", ASIDE, (0, 3), 6, (PRICE, 1, 1), *both[1:])
    refused("there is no limit", ASIDE, (0, 3), 6, (PRICE, -1, 1), *both[1:])
    refused("a price is 0 or more", ASIDE, (0, 3), 6, (PRICE, 0, -1), *both[1:])
    refused("a price is 0 or more", ASIDE, (0, 3), 6, (PRICE, 0, 1, -1), *both[1:])
    refused("no price was named", ASIDE, (0, 3), 6, *both[1:])
    refused("no price was named", ASIDE, (0, 3), 6, PRICES, (APART, 0, 1), (APART, 0, 1), *CLOSE)
    refused("there is no task 2", ASIDE, (0, 3), 6, PRICES, (APART, 0, 2), *CLOSE)
    refused("there is no task -1", ASIDE, (0, 3), 6, PRICES, (APART, -1, 1), *CLOSE)
    refused("before a split", replace(ASIDE, tasks=(*ASIDE.tasks, Task("c", 1, (0,)))), (0, 3, 3), 6,
            (SPLIT, 0, 2), PRICES, (APART, 0, 1), *CLOSE, *CLOSE)  # fmt: skip
    short = replace(
        ASIDE, tasks=(Task("a", 0, (0,)), ASIDE.tasks[1]), holdings=(Holding(0, 3, 0, ()), ASIDE.holdings[1])
    )
    refused("task 0 takes no time", replace(short, limits=(6,)), (0, 0), 4, *both)
    turned = replace(ASIDE, tasks=(ASIDE.tasks[0], Task("b", 0, (1,))))
    refused("task 1 takes no time", turned, (0, 3), 4, *both)
    late = replace(ASIDE, tasks=(*ASIDE.tasks, Task("lead", 3, ())), precedences=(Precedence(2, 0),))
    assert verdict(late, (3, 0, 0), 6, PRICES, (APART, 0, 1), (ORDER, 1, 0), (PATH, 0))[0] is Verdict.PROVED


def test_held_by_tasks_before_and_free_behind() -> None:
    """What came before has started and what comes after has not; what a running task reads is there."""
    streams = (Stream(0, "c"), Stream(0, "l"))
    tasks = (Task("a", 3, (0,)), Task("b", 3, (1,)), Task("before", 1, (0,)), Task("after", 1, (1,)))
    links = (Precedence(2, 0), Precedence(0, 3))
    kept = (Holding(0, 3, 2, (3,)), Holding(0, 3, 1, (1,)))
    problem = ScheduleProblem("held", streams, tasks, links, kept, (5,))
    rows = (PRICES, (APART, 0, 1), (SPLIT, 0, 1), (PATH, 1), (PATH, 0))
    assert verdict(problem, (1, 5, 0, 4), 7, *rows)[0] is Verdict.PROVED
    loose = replace(problem, precedences=(Precedence(0, 3),))  # "before" may come after both
    refused("may run at the same moment", loose, (1, 5, 0, 4), 7, *rows)
    early = replace(problem, precedences=(Precedence(2, 0),))  # "after" may be before
    refused("may run at the same moment", early, (1, 5, 0, 4), 7, *rows)
    elsewhere = replace(problem, holdings=(replace(kept[0], device=1), kept[1]), limits=(5, None))
    refused("may run at the same moment", elsewhere, (1, 5, 0, 4), 7, *rows)
    always = replace(problem, holdings=(Holding(0, 3, None, ()), kept[1]))
    assert verdict(always, (1, 4, 0, 7), 3, PRICES, (APART, 0, 1), (PATH, 0))[0] is Verdict.REFUTED  # b never fits


def test_a_task_waits_for_one_that_frees_its_memory() -> None:
    assert verdict(TIGHT, (0, 2), 4, PRICES, (WAITS, 0, 1), (PATH, 1))[0] is Verdict.PROVED
    refused("task 1 may start before task 0", replace(TIGHT, limits=(8,)), (0, 2), 4, PRICES, (WAITS, 0, 1), (PATH, 1))
    refused("task 0 may start before task 1", TIGHT, (0, 2), 4, PRICES, (WAITS, 1, 0), (PATH, 0))
    refused("there is no task 2", TIGHT, (0, 2), 4, PRICES, (WAITS, 2, 1), (PATH, 1))
    refused("there is no task 2", TIGHT, (0, 2), 4, PRICES, (WAITS, 0, 2), (PATH, 1))
    refused("no price was named", TIGHT, (0, 2), 4, (WAITS, 0, 1), (PATH, 1))
    still = replace(TIGHT, tasks=(TIGHT.tasks[0], Task("d", 0, (1,))))
    refused("task 1 takes no time", still, (0, 2), 2, PRICES, (WAITS, 0, 1), (PATH, 1))
    freed = replace(
        TIGHT, tasks=(*TIGHT.tasks, Task("x", 1, ())), holdings=(Holding(0, 3, None, (2,)), TIGHT.holdings[1])
    )
    refused("task 1 may start before task 0", freed, (0, 2, 0), 4, PRICES, (WAITS, 0, 1), (PATH, 1))
    behind = replace(freed, precedences=(Precedence(0, 2),))  # what frees it comes after task 0
    assert verdict(behind, (0, 3, 2), 4, PRICES, (WAITS, 0, 1), (PATH, 1))[0] is Verdict.PROVED


def test_what_is_left_when_a_task_starts() -> None:
    assert verdict(CROWD, CROWD_STARTS, 10, *crowd_rows((WORK, 1, 0, 0)))[0] is Verdict.PROVED
    assert verdict(CROWD, CROWD_STARTS, 11, *CROWD_ROWS)[0] is Verdict.PROVED
    refused("shows 10 only", CROWD, CROWD_STARTS, 11, *crowd_rows((WORK, 1, 0, 0)))
    refused("shows 0 only", CROWD, CROWD_STARTS, 11, *crowd_rows((WORK, 1, 0, 7)))
    refused("shows 11 only", CROWD, CROWD_STARTS, 12, *CROWD_ROWS)
    refused("time has no price", CROWD, CROWD_STARTS, 10, PRICES, (WORK, 1, 0, 0))
    refused("no price was named", CROWD, CROWD_STARTS, 10, (WORK, 1, 0, 0))
    refused("no price was named", CROWD, CROWD_STARTS, 10, (LEFT, 1, 8, 0), (PATH, 8))
    refused("there is no task 10", CROWD, CROWD_STARTS, 10, *crowd_rows((WORK, 10, 0, 0)))
    refused("there is no task 10", CROWD, CROWD_STARTS, 10, *crowd_rows((LEFT, 1, 10, 0)))
    refused("there is no task -1", CROWD, CROWD_STARTS, 10, *crowd_rows((LEFT, 1, -1, 0)))
    refused("there is no stream 2", CROWD, CROWD_STARTS, 10, *crowd_rows((WORK, 1, 2, 0)))
    refused("there is no stream 2", CROWD, CROWD_STARTS, 10, *crowd_rows((LEFT, 1, 8, 2)))
    refused("task 2 takes no time", CROWD, CROWD_STARTS, 10, *crowd_rows((WORK, 2, 0, 0)))
    assert verdict(CROWD, CROWD_STARTS, 10, *crowd_rows((LEFT, 1, 3, 0)), (PATH, 3))[0] is Verdict.REFUTED
    wide = replace(CROWD, limits=(13,))
    refused("shows 7 only", wide, CROWD_STARTS, 10, *crowd_rows((WORK, 1, 0, 0)))


def test_work_that_counts_and_work_that_does_not() -> None:
    """Prices and flows of 0 are fine; the task itself has not begun before its start; tails count beside the work."""
    nothing = (PRICE, 0, 0, 4)
    assert verdict(CROWD, CROWD_STARTS, 7, nothing, (WORK, 1, 0, 0))[0] is Verdict.PROVED
    refused("shows 7 only", CROWD, CROWD_STARTS, 8, nothing, (WORK, 1, 0, 0))
    assert verdict(CROWD, CROWD_STARTS, 6, nothing, (WORK, 5, 0, 0))[0] is Verdict.PROVED
    assert verdict(CROWD, CROWD_STARTS, 10, *crowd_rows((WORK, 1, 0, 1)))[0] is Verdict.PROVED
    refused("shows 10 only", CROWD, CROWD_STARTS, 11, *crowd_rows((WORK, 1, 0, 1)))
    refused("shows 0 only", CROWD, CROWD_STARTS, 7, nothing, (WORK, 1, 0, 3))  # all that counts may have begun
    refused("shows 6 only", CROWD, CROWD_STARTS, 10, nothing, (LEFT, 1, 3, 0), (PATH, 3))  # nothing leads to x1
    for flow in ((FLOW, 3, 2, 0), (FLOW, 10, 5, 0), (FLOW, 13, 9, 7)):
        assert verdict(CROWD, CROWD_STARTS, 10, *crowd_rows(flow, (WORK, 1, 0, 0)))[0] is Verdict.PROVED
    refused("no price was named", CROWD, CROWD_STARTS, 10, (FLOW, 3, 2, 12), *crowd_rows((WORK, 1, 0, 0)))
    first = replace(ASIDE, tasks=(*ASIDE.tasks, Task("lead", 3, ())), precedences=(Precedence(2, 0),))
    rows = (PRICES, (FLOW, 0, 2, 0), (APART, 0, 1), (ORDER, 1, 0), (PATH, 0))
    assert verdict(first, (3, 0, 0), 6, *rows)[0] is Verdict.PROVED


def test_what_the_first_task_keeps_is_held_once_it_has_started() -> None:
    tasks = (Task("k", 1, ()), Task("b", 2, (0,)), Task("a", 2, (1,)))
    kept = (Holding(0, 3, 0, (0,)), Holding(0, 4, 1, (1,)))
    problem = ScheduleProblem("first", (Stream(0, "c"), Stream(0, "l")), tasks, (), kept, (6,))
    refused("task 1 may start before task 2", problem, (2, 0, 2), 4, PRICES, (WAITS, 2, 1), (PATH, 1))
    before = replace(problem, precedences=(Precedence(2, 0), Precedence(1, 2)))  # what comes after b has not begun
    refused("task 1 may start before task 2", before, (4, 0, 2), 5, PRICES, (WAITS, 2, 1), (PATH, 1))


@pytest.mark.parametrize("row", [1, 2])
def test_flows_are_what_keeps_gains_from_counting(row: int) -> None:
    """Without one of them more seems to have begun; one more of them, or a negative one, is refused."""
    rows = list(crowd_rows((WORK, 1, 0, 0)))
    assert rows[row][0] == FLOW
    refused("only, not more than 9", CROWD, CROWD_STARTS, 10, *(r for k, r in enumerate(rows) if k != row))


@pytest.mark.parametrize(
    ("flow", "words"),
    [
        ((FLOW, 3, 0, 1), "no flow leads from 3 to 0"),
        ((FLOW, 2, 3, 1), "no flow leads from 2 to 3"),
        ((FLOW, 3, 4, 1), "no flow leads"),
        ((FLOW, 12, 6, 1), "no flow leads from 12 to 6"),
        ((FLOW, 14, 7, 1), "no flow leads from 14"),
        ((FLOW, -1, 2, 1), "no flow leads from -1"),
        ((FLOW, 3, 2, -1), "a flow is 0 or more"),
    ],
)
def test_flows_follow_what_is_needed(flow: Row, words: str) -> None:
    refused(words, CROWD, CROWD_STARTS, 10, *crowd_rows(flow, (WORK, 1, 0, 0)))
    refused("no price was named", CROWD, CROWD_STARTS, 10, (FLOW, 3, 2, 0), (WORK, 1, 0, 0))


@cache
def least(problem: ScheduleProblem) -> int:
    """The shortest schedule of a small problem: every order of its tasks, each as early as streams, precedences and
    memory allow behind the start of the one before.
    """
    n, best = len(problem.tasks), 1 << 60
    times = [t.time for t in problem.tasks]
    for order in permutations(range(n)):
        place = {t: k for k, t in enumerate(order)}
        if any(place[p.before] > place[p.after] for p in problem.precedences):
            continue
        starts: dict[int, int] = {}
        now = 0
        for t in order:
            ready = [starts[p.before] + times[p.before] + p.lag for p in problem.precedences if p.after == t]
            busy = [
                starts[u] + times[u] for u in starts if set(problem.tasks[u].streams) & set(problem.tasks[t].streams)
            ]
            now = max([now, *ready, *busy])
            moments = sorted({now, *(starts[u] + times[u] for u in starts if starts[u] + times[u] > now)})
            for moment in moments:
                held = 0
                for h in problem.holdings:
                    begun = h.first is None or h.first == t or h.first in starts
                    over = bool(h.last) and all(u in starts and starts[u] + times[u] <= moment for u in h.last)
                    held += h.amount if begun and not over else 0
                limit = problem.limits[0]
                if limit is None or held <= limit:
                    now = moment
                    break
            else:
                break
            starts[t] = now
        else:
            best = min(best, max(starts[t] + times[t] for t in range(n)))
    return best


def drawn(seed: int) -> ScheduleProblem:
    """Six tasks on two streams with precedences and a limit that binds."""
    random = np.random.default_rng(seed)
    n = 6
    tasks = tuple(Task(f"t{k}", int(random.integers(1, 6)), (int(random.integers(2)),)) for k in range(n))
    before = tuple(Precedence(a, b) for a in range(n) for b in range(a + 1, n) if random.random() < 0.3)
    holdings = []
    for k in range(n):
        readers = [p.after for p in before if p.before == k] or [k]
        holdings.append(Holding(0, int(random.integers(1, 5)), k, tuple(readers)))
    holdings.append(Holding(0, 2, None, (int(random.integers(n)),)))
    streams = (Stream(0, "c"), Stream(0, "l"))
    wide = ScheduleProblem(f"drawn {seed}", streams, tasks, before, tuple(holdings), (None,))
    for limit in range(3, 30):  # the tightest that program order takes, and perhaps one more
        problem = replace(wide, limits=(limit + seed % 2,))
        order = np.arange(n)
        if list_schedule(shop(problem), store(problem), -order.astype(float), order) is not None:
            return problem
    raise AssertionError("no limit fits")


def test_bounds_by_memory_are_proved_and_never_above_the_shortest() -> None:
    """40 problems, all orders of their tasks: the bound is proved by the checker, and no schedule is shorter."""
    raised = 0
    for seed in range(40):
        problem = drawn(seed)
        arrays = shop(problem)
        start = raise_levels(frame(arrays))
        shortest = least(problem)
        assert start.value <= shortest
        order = np.arange(6)
        starts = list_schedule(arrays, store(problem), -order.astype(float), order)
        assert starts is not None
        end = int((starts + arrays.times).max())
        found = memory_bound(start, problem, end, work(1.0))
        if found is None:
            continue
        raised += 1
        assert start.value < found.value <= shortest, seed
        result = check_schedule(ScheduleCertificate(problem, starts, end, found.value, found.bound, "drawn"))
        assert result.verdict is Verdict.PROVED, (seed, result.reason)
    assert raised > 7


def circle() -> ScheduleProblem:
    """A step of an MLP with reshardings beside operators, shrunk: two tasks were found to be apart before a link that
    puts them in order.
    """
    operators = (431026, 431026, 431026, 430186, 93623, 549, 186, 6, 186, 47178, 140435, 107547, 117029, 140435)
    operators += (107547, 431026, 140435, 430186, 117029, 561738, 107547, 140435)
    times = (*operators, 5121363, 5121363, 5728178, 5728178, 5182045, 5728178)
    before = ((1, 15), (6, 7), (7, 8), (8, 9), (9, 10), (10, 12), (12, 26), (15, 17), (17, 19), (26, 15))
    kept = ((65536, 1, (2, 14, 15)), (4, 6, ()), (65536, 14, (16,)), (65536, 16, (27,)), *[(262144, 19, (19,))] * 3)
    held = (*((65536, None, ()),) * 2, *((262144, None, ()),) * 2, (262144, 17, (19,)), *kept)
    return ScheduleProblem(
        "circle",
        (Stream(0, "compute"), Stream(0, "links")),
        tuple(Task(f"t{k}", time, (int(k >= len(operators)),)) for k, time in enumerate(times)),
        tuple(Precedence(a, b) for a, b in before),
        tuple(Holding(0, *h) for h in held),
        (1769475,),
    ).check()


def test_pairs_that_links_put_in_order_are_not_split() -> None:
    """They were linked both ways, which ended in "precedences run in a circle".  Nothing is above the load of a stream
    here, since a schedule is as short.
    """
    problem = circle()
    arrays, urgent = shop(problem), np.random.default_rng(0).random((3, len(problem.tasks)))[2]
    starts = list_schedule(arrays, store(problem), urgent, np.argsort(-urgent))
    start = raise_levels(frame(arrays))
    assert starts is not None and int((starts + arrays.times).max()) == start.value
    assert memory_bound(start, problem, 34819864, work(1.0)) is None


def test_the_most_that_has_begun_is_the_most_of_all_sets_that_fit() -> None:
    """Against all sets of tasks that hold what comes before them."""
    for seed in range(40):
        problem = drawn(seed)
        moments = Moments(problem, shop(problem), 0)
        counted = np.arange(6)
        for t in range(6):
            known, barred = moments.ancestors([t], True) | {t}, moments.ancestors([t], False)
            most = -1
            for bits in range(64):
                taken = {k for k in range(6) if bits >> k & 1}
                if not known <= taken or taken & barred:
                    continue
                if any(p.after in taken and p.before not in taken for p in problem.precedences):
                    continue
                held = 0
                for h in problem.holdings:
                    over = bool(h.last) and set(h.last) <= taken - {t}
                    held += h.amount * ((h.first is None or h.first in taken) and not over)
                if held <= (problem.limits[0] or 0):
                    most = max(most, sum(problem.tasks[k].time for k in taken - {t}))
            if most >= 0:
                assert moments.work(t, counted)[1] >= most


def test_changed_arguments_prove_nothing_that_is_not_so() -> None:
    """Rows, limits and amounts changed at random: both checkers say the same, and what is proved is true."""
    random = np.random.default_rng(3)
    proved = refuted = 0
    for seed in range(30):
        problem = drawn(seed)
        arrays = shop(problem)
        starts = list_schedule(arrays, store(problem), -np.arange(6.0), np.arange(6))
        assert starts is not None
        end = int((starts + arrays.times).max())
        found = memory_bound(raise_levels(frame(arrays)), problem, end, work(1.0))
        if found is None or not isinstance(found.bound, Refutation):
            continue
        for _ in range(40):
            rows, changed, value = found.bound.rows.copy(), problem, found.value
            word = int(random.integers(5))
            at = int(random.integers(len(rows)))
            if word == 0:
                rows = np.delete(rows, at, axis=0)
            elif word == 1:
                rows[at, int(random.integers(5))] += int(random.choice([-1, 1, 2, 5]))
            elif word == 2:
                rows[at, 3] = rows[at, 3] * int(random.choice([0, 2, -1])) + int(random.integers(2))
            elif word == 3:
                changed = replace(problem, limits=((problem.limits[0] or 0) + int(random.integers(1, 4)),))
            else:
                value += 1
            if random.random() < 0.3:
                value = found.value + 1
            bound = Refutation(value - 1, rows)
            certificate = ScheduleCertificate(changed, starts, end, min(value, end), bound, "changed")
            verdict = check_schedule(certificate).verdict
            assert second_schedule(write_schedule(None, certificate)) == verdict.value, (seed, word)
            if verdict is Verdict.PROVED:
                proved += 1
                assert certificate.lower_bound <= least(changed), (seed, word, rows.tolist())
            refuted += verdict is Verdict.REFUTED
    assert proved > 10 and refuted > 50
