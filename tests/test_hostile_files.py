"""One budget ends every check of every kind: files that reach it, by what is counted; the slow part by what it takes."""

from __future__ import annotations

import random
import resource
from dataclasses import replace
from fractions import Fraction
from itertools import islice

import hostile_files
import pytest
from test_limits import diagonal

from shardproof.models.cost import limits
from shardproof.models.cost.limits import Listing, OverBudget, Steps, TooLarge, check_sizes
from shardproof.models.layout.placement import space
from shardproof.models.layout.submesh import Submesh
from shardproof.models.machine.machine import load_machine
from shardproof.models.views.regions import Region
from shardproof.proofs.collective_programs.certificate import PlacementCertificate
from shardproof.proofs.container.canonical import ContainerError
from shardproof.verify.budget import ASKED, UNASKED, Budget
from shardproof.verify.collective_programs.placement import count_matrices
from shardproof.verify.pipelines import bound, cuts
from shardproof.verify.pipelines.interleaved import least_mean
from shardproof.verify.plan import effort
from shardproof.verify.rewrites.library import check_library
from shardproof.verify.views.structure import devices, meet, wrong_divisions

SECONDS, MEBIBYTES = 60, 2048
"""What a check without `--large` may take."""


def little(cells: int = 1 << 16) -> Budget:
    return Budget(cells, 1 << 27, None, False)


@pytest.mark.parametrize("kind", hostile_files.KINDS)
def test_every_kind_ends_in_its_budget(kind: str) -> None:
    """Whatever is asked: a verdict, or a refusal that names the option, and never more cells than there are."""
    ends = set()
    for _, attempt in islice(hostile_files.attempts(kind, 6, 7), 6):
        _, cells, end = hostile_files.tried(attempt, 4096)
        assert 0 <= cells <= UNASKED // 4096
        ends.add(end)
    assert "memory" not in ends
    assert not {e.split(" ")[0] for e in ends} - {"judged", "--large", "ContainerError", "TooLarge", "ProblemError"}


@pytest.mark.parametrize("kind", hostile_files.KINDS)
def test_nothing_to_spend_is_enough_to_refuse(kind: str) -> None:
    """With one cell every kind is refused, naming the option, before anything is done."""
    (_, attempt) = next(hostile_files.attempts(kind, 1, 3))
    with pytest.raises((ContainerError, TooLarge)) as caught:
        attempt(little(1))
    assert "'shardproof check --large' takes its time" in str(caught.value) or isinstance(caught.value, TooLarge)


@pytest.mark.slow
@pytest.mark.timeout(1800)
@pytest.mark.parametrize("kind", hostile_files.KINDS)
def test_two_hundred_attempts_take_a_minute_and_two_gibibytes_at_most(kind: str) -> None:
    """With a 16th of the budget, a 16th of the time; the cells that were charged are as many as the work is worth."""
    share, worst = 16, 0.0
    for number, attempt in hostile_files.attempts(kind, 200, 1):
        seconds, cells, end = hostile_files.tried(attempt, share)
        assert seconds < SECONDS / share + 1, (kind, number, seconds, cells, end)
        worst = max(worst, seconds)
    used = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss >> 10
    print(f"{kind}: slowest {worst:.1f} s of 1/{share}, {used} MiB")
    assert used < MEBIBYTES


# ---- what the attack found


def test_views_of_a_division_are_compared_by_their_intervals() -> None:
    """64 views of 4,096 devices, pairwise: a few numbers each, counted before."""
    machine = hostile_files.machine((64, 64))
    views = tuple(Submesh((k, 0), (1, 64)) for k in range(64))
    region = Region(tuple(((f"b{k}",),) for k in range(64)), (views,))
    given = little(1 << 24)
    assert wrong_divisions(machine, [region], given) == ""
    assert 0 < (1 << 24) - given.work < 1 << 23
    with pytest.raises(ContainerError, match="--large"):
        wrong_divisions(machine, [region], little(1 << 10))
    twice = replace(region, divisions=((*views[:-1], Submesh((0, 0), (2, 64))),))
    assert "share devices" in wrong_divisions(machine, [twice], given)


@pytest.mark.parametrize("seed", range(20))
def test_boxes_meet_where_they_have_devices_in_common(seed: int) -> None:
    rnd, machine = random.Random(seed), load_machine("cloud-a100:4x6")

    def view() -> Submesh:
        counts = tuple(rnd.choice([n for n in range(1, size + 1) if size % n == 0]) for size in (4, 6))
        return Submesh(tuple(rnd.randrange(0, s, n) for s, n in zip((4, 6), counts, strict=True)), counts)

    for _ in range(50):
        one, other = view(), view()
        assert meet(one, other) == bool({*devices(one, machine)} & {*devices(other, machine)})


def test_a_diagonal_on_many_devices_is_refused_before_it_is_built() -> None:
    machine = load_machine("cloud-a100:40x8")
    with pytest.raises(TooLarge, match="cells of diagonals"):
        check_sizes(diagonal(1600), machine, space("complete"))
    assert check_sizes(diagonal(64), load_machine("cloud-a100:2x4"), space("complete")).coupled > 0


def test_listing_placements_is_counted_before_it_fills_memory() -> None:
    """Axes of one element have no other placement, and columns all the same."""
    shapes = [1] * 57 + [4, 4]
    filled = Listing((4, 16), space("complete"), Steps()).entries(shapes)
    assert filled > limits.SMALL.entries
    g = hostile_files.Builder("ones", "float32")
    letters = " ".join(f"a{k}" for k in range(len(shapes)))
    x = g.map("m", "relu", g.input("x", shapes), text=f"{letters} -> {letters}")
    with pytest.raises(TooLarge, match="listing|placements|columns"):
        check_sizes(g.build(x), hostile_files.machine((4, 16)), space("complete"), limits.SMALL)


def test_counting_is_one_budget_of_steps() -> None:
    steps = Steps(1000)
    with pytest.raises(OverBudget, match="takes more than 1000 steps"):
        Listing((2,) * 12, space("complete"), steps).entries([64] * 6)
    assert steps.taken <= 1001


@pytest.mark.parametrize("part", ["table", "least", "front", "cuts", "lines"])
def test_programs_over_cuts_are_counted(part: str) -> None:
    """What each looks at is charged before: with little to spend it ends, whatever the pairs of a file are."""
    n, stages, micro = 60, 4, 8
    one = {(k, k + 1): 5 + k % 3 for k in range(n)}
    sends = [1] * (n + 1)
    rows = bound.table(n, [one], None, Budget.with_large())
    if part == "table":
        with pytest.raises(ContainerError, match="program over cuts.*--large"):
            bound.table(n, [one], None, little())
        return
    if part == "least":
        spare = little(3 * bound.RUN * n * 3 * n + 1)
        with pytest.raises(ContainerError, match="program over cuts.*--large"):
            bound.least_step(n, stages, micro, ([one], [one], [one]), sends, None, None, spare)
        return
    if part == "front":
        with pytest.raises(ContainerError, match="program over cuts.*--large"):
            bound._below(n, stages, micro, (rows, rows, rows), sends, (1 << 60, [1] * n, sends), little())
        return
    hops = [[1] * n for _ in range(n)]
    known = cuts.Known(rows, rows, rows, rows, rows, hops, hops)
    with pytest.raises(ContainerError, match="program over cuts.*--large"):
        if part == "cuts":
            cuts.none_below(known, stages, micro, 1 << 60, little())
        else:
            least_mean(known, 2, 2, micro, (1,) * 18, little())


def test_cuts_are_charged_one_by_one() -> None:
    n = 40
    one = {(k, k + 1): 5 for k in range(n)}
    rows = bound.table(n, [one], None, Budget.with_large())
    hops = [[0] * n for _ in range(n)]
    known = cuts.Known(rows, rows, rows, rows, rows, hops, hops)
    spent = []
    for wanted in (50, 1 << 60):
        budget = Budget.with_large()
        before = budget.work
        cuts.none_below(known, 5, 8, wanted, budget)
        spent.append(before - budget.work)
    assert spent[1] > spent[0]


def test_the_front_keeps_what_the_squares_kept() -> None:
    """Sums in front of a unit without those that another one is nowhere above: sorted, as compared with each other."""
    rnd = random.Random(5)
    for _ in range(200):
        n, stages = rnd.randint(3, 9), rnd.randint(2, 3)
        step = [[rnd.randint(1, 40) if i < j else 0 for j in range(n + 1)] for i in range(n)]
        one = [[rnd.randint(1, 20) if i < j else 0 for j in range(n + 1)] for i in range(n)]
        sends, there, forward = ([rnd.randint(0, 5) for _ in range(n + 1)] for _ in range(3))
        wanted = rnd.randint(10, 120)
        goal = (wanted, forward[:n], there)
        found = bound._below(n, stages, 2, (one, one, step), sends, goal, Budget.with_large())
        todo, some = [(0, stages, 0, 0)], False
        while todo and not some:
            i, left, whole, ahead = todo.pop()
            for j in range(i + 1, n - left + 2) if left > 1 else (n,):
                if ahead + step[i][j] >= wanted or (i and whole + 2 * one[i][j] >= wanted):
                    continue
                some = some or left == 1
                todo.append((j, left - 1, whole + one[i][j] + sends[j], ahead + sum(forward[i:j]) + there[j]))
        assert found == some


def test_placements_of_many_ones_are_counted() -> None:
    assert count_matrices((4, 4), (16, 1, 1, 1)) == count_matrices((4, 4), (16,)) == 1
    assert count_matrices((1, 8, 1), (2, 1, 4)) == count_matrices((8,), (2, 4))
    with pytest.raises(ContainerError, match="--large"):
        count_matrices((1 << 20,), (1 << 20,), little())
    problem = hostile_files.PlacementProblem((2,) * 20, (2,) * 20 + (1,) * 100_000)
    with pytest.raises(ContainerError, match="--large"):
        hostile_files.check_placement(PlacementCertificate(problem, ((),) * 1000), little(1 << 24))


def test_evaluations_of_rules_are_counted() -> None:
    library = hostile_files.libraries()[0]
    whole = Budget.with_large()
    before = whole.work
    check_library(library, budget=whole)
    spent = before - whole.work
    assert spent > len(library.judgements) << 20
    check_library(library, budget=little(spent))
    with pytest.raises(ContainerError, match="--large"):
        check_library(library, budget=little(spent - 1))


def test_what_needs_large_is_known_to_who_writes() -> None:
    for change in (
        lambda b: b.charge(UNASKED + 1, "x"),
        lambda b: b.hold((1 << 27) + 1, "x"),
        lambda b: effort.charge_steps("x", limits.SMALL.cells_at_once + 1, 1, b),
    ):
        budget = Budget.with_large()
        assert not budget.needs_large
        change(budget)
        assert budget.needs_large
    budget = Budget.with_large()
    budget.charge(UNASKED, "x")
    assert not budget.needs_large and Fraction(budget.work, UNASKED) > 1


def test_tensors_that_nobody_reads_are_counted() -> None:
    """20,000 inputs without a reader take seconds in every plan of a file, and no table."""
    spent = []
    for more in (0, 1000):
        g = hostile_files.Builder("inputs", "float32")
        for k in range(more):
            g.input(f"n{k}", (4,))
        x = g.map("m", "relu", g.input("x", (4,)), text="i -> i")
        budget = Budget.with_large()
        effort.charge_tables(g.build(x), load_machine("cloud-a100:2x2"), space("complete"), budget, "plan")
        spent.append(ASKED - budget.work)
    assert 1000 * effort.TENSOR <= spent[1] - spent[0] < 2000 * effort.TENSOR
