"""Pipelines up to 16 stages and 64 micro-batches: which makespans are proved, and where published schedules are optimal.

    python tests/benchmarks/schedules.py [--seconds 60] [--grid] [--published]
    python tests/benchmarks/schedules.py --drawn SEED [--cases N] [--time-limit S]

The grid solves uniform and random rational times (denominators cleared) at memory limits from 1F1B's (P) to GPipe's
(M), without and with sends, checks every certificate, and prints the gap.  The second table says for every (p, m,
memory, send) which published schedules are proved optimal among all schedules of the same chunks: `=`, `-x%` how
much shorter the best one is (`+`: or shorter still), `<x%` none shorter was found and at most so much can be gained, `-`
do not fit the memory or the number of micro-batches.

`--drawn` solves held-out cases: stages, micro-batches, times, memory and sends are drawn from the seed, nothing is
left out; it prints those that are not proved and how many are.
"""

from __future__ import annotations

import argparse
import random
import time
from collections.abc import Iterator
from fractions import Fraction
from math import lcm

from shardproof.formal.schedules.chunks import search_chunks
from shardproof.formal.schedules.drawing import peaks
from shardproof.formal.schedules.published import orders, starts_of, with_chunks
from shardproof.formal.schedules.search import Found, search
from shardproof.formal.schedules.shop import shop
from shardproof.formal.selection.model.clock import Clock
from shardproof.models.problem.claims import Verdict
from shardproof.models.schedules.pipeline import Pipeline, Times
from shardproof.models.text import InputError
from shardproof.proofs.schedules.certificate import ScheduleCertificate
from shardproof.verify.schedules.certificate import check_schedule

KINDS = ("gpipe", "1f1b", "interleaved:2", "zb-h1", "zb-v", "dualpipe-v")
GOAL = 0.005


def checked(pipe: Pipeline, found: Found) -> None:
    """SystemExit if our checker does not prove what was found."""
    certificate = ScheduleCertificate(pipe, found.starts, found.makespan, found.lower_bound, found.bound, "best")
    result = check_schedule(certificate)
    if result.verdict is not Verdict.PROVED:
        raise SystemExit(f"{pipe}: {result.reason}")


def rational(rnd: random.Random, stages: int) -> tuple[tuple[Times, ...], int]:
    """Random rational times between 1/2 and 2, as integers of one unit, and that unit's denominator."""
    rows = [
        [Fraction(rnd.randint(4, 16), 8) * Fraction(rnd.choice([1, 2, 3]), 2) for _ in range(3)] for _ in range(stages)
    ]
    scale = lcm(*(x.denominator for row in rows for x in row))
    return tuple((int(a * scale), int(b * scale), int(c * scale)) for a, b, c in rows), scale


def grid() -> Iterator[tuple[str, Pipeline]]:
    """The cases of the first table."""
    rnd = random.Random(2)
    for p in (2, 4, 8, 16):
        for m in sorted({max(2, p // 2), p, 2 * p, 64}):
            for memory in sorted({min(p, m), min(2 * p, m), m}):
                for send in (0, 1):
                    yield "1,1,1", Pipeline(((1, 1, 1),) * p, m, send, memory)
                    yield "10,13,9", Pipeline(((10, 13, 9),) * p, m, 2 * send, memory)
                    times, scale = rational(rnd, p)
                    yield "rational", Pipeline(times, m, send * scale // 4, memory)


def solve_grid(seconds: float, skip: int) -> None:
    """Print one row per case and how many are proved."""
    search(shop(Pipeline(((1, 2, 3), (3, 1, 2), (2, 3, 1)), 3, 0, 2)), Clock(3.0))  # compiles
    print("  p   m   K  send  times        makespan      bound     gap   seconds", flush=True)
    proved = near = total = 0
    slowest = 0.0
    for number, (name, pipe) in enumerate(grid()):
        if number % skip:
            continue
        start = time.monotonic()
        found = search(shop(pipe), Clock(seconds))
        checked(pipe, found)
        spent = time.monotonic() - start
        gap = 1 - found.lower_bound / found.makespan
        total, proved, near = total + 1, proved + (gap == 0), near + (gap < GOAL)
        slowest = max(slowest, spent)
        print(
            f"{pipe.stages:3} {pipe.micro_batches:3} {pipe.memory:3} {pipe.send:5}  {name:<9} {found.makespan:11} "
            f"{found.lower_bound:10} {gap:7.2%} {spent:8.1f}{'' if gap < GOAL else '  *'}",
            flush=True,
        )
    print(f"{total} cases: {proved} proved optimal, {near} with a gap below {GOAL:.1%}; slowest {slowest:.1f} s")


def drawn(rnd: random.Random) -> tuple[str, Pipeline]:
    """A case: 2 to 16 stages, up to 64 micro-batches, memory between 1F1B's and GPipe's, sends in every second case."""
    p = rnd.randint(2, 16)
    m = rnd.randint(2, 64)
    memory = rnd.randint(min(p, m), m)
    if rnd.random() < 0.5:
        row = tuple(rnd.randint(1, 20) for _ in range(3))
        kind, times, unit = "uniform", ((row[0], row[1], row[2]),) * p, row[0]
    else:
        kind = "rational"
        times, unit = rational(rnd, p)
    send = rnd.randint(0, unit) if rnd.random() < 0.5 else 0
    return kind, Pipeline(times, m, send, memory)


def solve_drawn(seed: int, cases: int, seconds: float) -> None:
    """Solve and check drawn cases; print the misses and the counts."""
    rnd = random.Random(seed)
    search(shop(Pipeline(((1, 2, 3), (3, 1, 2), (2, 3, 1)), 3, 0, 2)), Clock(3.0))  # compiles
    print(f"seed {seed}, {seconds:g} s a case; not proved (*: gap of {GOAL:.1%} or more):")
    print("case   p   m   K  send  times        makespan      bound     gap   seconds", flush=True)
    proved = near = 0
    spent = time.process_time()
    for number in range(1, cases + 1):
        kind, pipe = drawn(rnd)
        start = time.monotonic()
        found = search(shop(pipe), Clock(seconds))
        checked(pipe, found)
        gap = 1 - found.lower_bound / found.makespan
        proved, near = proved + (gap == 0), near + (gap < GOAL)
        if gap:
            print(
                f"{number:4} {pipe.stages:3} {pipe.micro_batches:3} {pipe.memory:3} {pipe.send:5}  {kind:<9} "
                f"{found.makespan:11} {found.lower_bound:10} {gap:7.2%} {time.monotonic() - start:8.1f}"
                f"{'' if gap < GOAL else '  *'}",
                flush=True,
            )
        if number % 50 == 0 or number == cases:
            print(
                f"{number} cases: {proved} proved optimal, {near} with a gap below {GOAL:.1%}; "
                f"{time.process_time() - spent:.0f} s of the processor",
                flush=True,
            )


def published(seconds: float) -> None:
    """Print the second table."""
    print("times 1,1,1 (and 1,2,0: a backward in one piece)")
    print("times  p   m   K send  " + "".join(f"{k:>14}" for k in KINDS), flush=True)
    for times in ((1, 1, 1), (1, 2, 0)):
        for p, m in ((2, 4), (2, 8), (4, 4), (4, 8), (4, 16), (8, 8), (8, 16), (8, 32)):
            for memory in sorted({p, p + 1, 2 * p, max(m, 2 * p)}):
                for send in (0, 1):
                    pipe = Pipeline((times,) * p, m, send, memory)
                    cells = [verdict(kind, pipe, seconds) for kind in KINDS]
                    label = ",".join(map(str, times))
                    print(f"{label} {p:3} {m:3} {memory:3} {send:4}  " + "".join(f"{c:>14}" for c in cells), flush=True)


def verdict(kind: str, pipe: Pipeline, seconds: float) -> str:
    """One cell of the second table."""
    cut = with_chunks(kind, pipe)
    try:
        starts = starts_of(cut, orders(kind, cut))
    except InputError:
        return "-"
    problem = cut.problem()
    if any(peak > (limit or peak) for peak, limit in zip(peaks(problem, starts), problem.limits, strict=True)):
        return "-"
    makespan = max(int(s) + t.time for s, t in zip(starts, problem.tasks, strict=True))
    found = search_chunks(cut, Clock(seconds), starts)
    if found.lower_bound == makespan:
        return "="
    checked(cut, found)
    if found.makespan < makespan:
        return f"-{1 - found.makespan / makespan:.1%}{'' if found.makespan == found.lower_bound else '+'}"
    return f"<{1 - found.lower_bound / makespan:.1%}"


def main() -> None:
    """Command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seconds", type=float, default=60.0, help="for each case of the grid")
    parser.add_argument("--skip", type=int, default=1, help="every n-th case of the grid")
    parser.add_argument("--grid", action="store_true", help="the first table only")
    parser.add_argument("--published", action="store_true", help="the second table only")
    parser.add_argument("--drawn", type=int, metavar="SEED", help="held-out cases drawn from a seed, instead")
    parser.add_argument("--cases", type=int, default=100, help="how many are drawn")
    parser.add_argument("--time-limit", type=float, default=45.0, help="seconds for each drawn case")
    words = parser.parse_args()
    if words.drawn is not None:
        solve_drawn(words.drawn, words.cases, words.time_limit)
        return
    if not words.published:
        solve_grid(words.seconds, words.skip)
    if not words.grid:
        published(min(words.seconds, 5.0))


if __name__ == "__main__":
    main()
