"""Two plans that tie: parts of the domains pay for the seam between them, and what is claimed stays below the
optimum.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial

import numpy as np
import pytest
from random_problems import layers_of_two_kinds

from shardproof.formal.selection.bound.accelerated import AcceleratedSweeper
from shardproof.formal.selection.bound.restricted_master import Column, master
from shardproof.formal.selection.bound.subgradient import apply_multipliers
from shardproof.formal.selection.bound.trws import Sweeper
from shardproof.formal.selection.model.clock import Clock
from shardproof.formal.selection.model.factored import allowed, build, whole
from shardproof.formal.selection.options import Options
from shardproof.formal.selection.options.tree import TREE, TreeOptions
from shardproof.formal.selection.primal.incumbent import Incumbent
from shardproof.formal.selection.tree import branch_on_columns as branching
from shardproof.formal.selection.tree.branch_and_bound import eliminator, new_run
from shardproof.formal.selection.tree.branch_on_columns import branch_on_columns
from shardproof.formal.selection.tree.proof_tree import Assembler, DualNode, Leaf, SplitNode
from shardproof.formal.selection.tree.run import ActiveColumns, Run
from shardproof.models.problem.claims import WithinGap
from shardproof.models.problem.selection_problem import Ints, SelectionProblem
from shardproof.proofs.selection.certificates import Open, SelectionCertificate
from shardproof.verify.selection.certificate import check_selection
from shardproof.verify.verdict import Verdict

CHEAP, LEAN = 0, 1


def best_of(problem: SelectionProblem) -> tuple[int, ...]:
    """By dynamic programming over layers and what is used."""
    assert problem.limit is not None
    states: dict[tuple[int, int], tuple[int, tuple[int, ...]]] = {(-1, 0): (0, ())}
    for i, v in enumerate(problem.vertices):
        following: dict[tuple[int, int], tuple[int, tuple[int, ...]]] = {}
        for (last, used), (cost, x) in states.items():
            for a in range(v.cost.size):
                key = a, used + int(problem.usages[i].amount[a])
                total = cost + int(v.cost[a]) + (0 if last < 0 else int(problem.tables[0][last, a]))
                if key[1] <= problem.limit and (key not in following or total < following[key][0]):
                    following[key] = total, (*x, a)
        states = following
    return min(states.values())[1]


@dataclass(frozen=True, eq=False)
class Start:
    search: Run
    tie: ActiveColumns
    root: DualNode
    lower: int


def start_of(
    problem: SelectionProblem, seconds: float | None = None, known: bool = True, options: TreeOptions = TREE
) -> Start:
    """The search at the prices at which the two uniform plans tie, messages swept there."""

    def make(part: SelectionProblem, until: Clock) -> Run:
        return new_run(part, Incumbent(part), until, options=Options(tree=options))

    search = make(problem, Clock(seconds))
    assert search.rows is not None
    if known:
        search.incumbent.offer(best_of(problem))
    n = len(problem.vertices)
    plans = tuple((a,) * n for a in (CHEAP, LEAN))
    mixed = master(
        [Column(x, problem.cost_of(x), search.rows.use(x).astype(np.float64)) for x in plans], search.rows.limit
    )
    prices = np.rint(mixed.n * search.denominator).astype(np.int64)
    network = build(search.base, allowed(problem))
    sweeper = Sweeper(network, list(range(n)))
    apply_multipliers(sweeper, search.rows, prices)
    moving = AcceleratedSweeper(sweeper)
    moving.run(60, Clock())
    moving.store()
    record, score = search.record(network, sweeper, search.rows.pairs(prices))
    lower = score.lower()
    assert lower is not None
    return Start(search, ActiveColumns(plans, np.arange(n), make), DualNode(record, allowed(problem), score), lower)


def proved(problem: SelectionProblem, start: Start) -> int:
    """The bound that the parts establish, the whole certificate checked."""
    search, root = start.search, start.root
    kept = root.score.fix(root.domains, search.incumbent.cost)
    root.child = branch_on_columns(search, start.tie, kept, root.record, start.lower)
    record, bound = Assembler(
        problem, search.base, search.incumbent.cost, search.enough(), partial(eliminator, search)
    ).assemble(root, whole(problem))
    assert search.incumbent.solution is not None
    bound = min(bound, search.incumbent.cost)
    claim = WithinGap(search.incumbent.solution, search.incumbent.cost, bound)
    result = check_selection(problem, SelectionCertificate(problem.sha256(), claim, record))
    assert result.verdict is Verdict.PROVED, result.reason
    assert result.lower_bound == bound
    return bound


@pytest.mark.parametrize("seed", range(4))
@pytest.mark.parametrize("share", [0.25, 0.5, 0.75])
def test_parts_pay_for_the_seam(share: float, seed: int) -> None:
    """The relaxation mixes both plans for nothing; in parts the seam comes back, and never more than the optimum
    costs.
    """
    n, seam = 24, 160
    problem = layers_of_two_kinds(n, seam, int(n * (20 + 40 * share)) + 7, seed)
    start = start_of(problem)
    best = problem.cost_of(best_of(problem))
    assert best - start.lower > 0.7 * seam, "the relaxation is free of the seam"
    assert start.lower < proved(problem, start) == best, "without a time limit until nothing is left"


def test_plans_of_a_part_stay_in_it(monkeypatch: pytest.MonkeyPatch) -> None:
    """Searched again around a vertex, they keep what earlier splits leave: outside they would say nothing about the
    part's prices.
    """
    depth: list[int] = []
    priced = branching._part

    def watched(search: Run, node: branching._Node, n: branching.Floats, enough: int) -> branching._Node | None:
        assert all(c.plan[v] in part.tolist() for c in node.plans for v, part in node.parts.items())
        depth.append(len(node.parts))
        return priced(search, node, n, enough)

    monkeypatch.setattr(branching, "_part", watched)
    problem = layers_of_two_kinds(24, 160, 727, 0)
    proved(problem, start_of(problem, options=TreeOptions(window=6)))  # reaches what was split before
    assert max(depth) > 1


def test_a_tie_is_closed_when_one_plan_is_best(monkeypatch: pytest.MonkeyPatch) -> None:
    """A seam dearer than the lean plan everywhere: the lean plan is optimal, which no prices on the whole show; one
    split does, and is the last.
    """
    splits: list[int] = []
    split = branching._split

    def counted(
        search: Run, tie: ActiveColumns, node: branching._Node
    ) -> tuple[SplitNode | None, list[branching._Node]]:
        splits.append(node.lower)
        return split(search, tie, node)

    monkeypatch.setattr(branching, "_split", counted)
    n = 16
    problem = layers_of_two_kinds(n, 2_000, n * 40, 1, others=9_000)
    assert set(best_of(problem)) == {LEAN}
    start = start_of(problem)
    best = problem.cost_of(best_of(problem))
    assert start.lower < 0.9 * best
    assert proved(problem, start) == best
    assert len(splits) == 1


def test_without_time_nothing_is_said() -> None:
    problem = layers_of_two_kinds(12, 160, 12 * 40, 0)
    start = start_of(problem)
    start.search.clock.stop()
    assert isinstance(
        branch_on_columns(start.search, start.tie, start.root.domains, start.root.record, start.lower), Leaf
    )
    assert proved(problem, start) == start.lower


def test_plans_that_do_not_tie_are_left_alone() -> None:
    """Both fit: the cheaper one is better at every price."""
    problem = layers_of_two_kinds(12, 160, 12 * 60 - 1, 0)
    start = start_of(problem)
    lean = start.tie.plans[1]
    other = (2, *lean[1:])
    draft = branch_on_columns(
        start.search,
        ActiveColumns((lean, other), start.tie.layer, start.tie.make),
        start.root.domains,
        start.root.record,
        start.lower,
    )
    assert isinstance(draft, Leaf) and isinstance(draft.record, Open)


def test_first_split_is_in_the_middle_and_covers_the_domain() -> None:
    problem = layers_of_two_kinds(20, 160, 20 * 40, 2)
    start = start_of(problem)
    start.root.child = branch_on_columns(start.search, start.tie, start.root.domains, start.root.record, start.lower)
    split = start.root.child
    assert isinstance(split, SplitNode) and split.vertex == 10
    assert sorted(a for part in split.parts for a in part) == [0, 1, 2, 3]
    assert CHEAP in split.parts[0] and LEAN in split.parts[1]
    assert 2 in split.parts[0] and 3 in split.parts[1], "labels go where their neighbours are cheaper"


def test_the_next_split_keeps_away_from_the_last() -> None:
    problem = layers_of_two_kinds(20, 160, 20 * 40, 2)
    network = build(new_run(problem, Incumbent(problem), Clock()).unit, whole(problem))
    cheap, lean = ((a,) * 20 for a in (CHEAP, LEAN))
    layer: Ints = np.arange(20)
    found = branching._where(network, layer, cheap, lean, {8}, 1)
    assert found is not None and found[0] == 15, "layers 10 to 19 are the longest run left"
    assert branching._where(network, layer, cheap, cheap, set(), 1) is None
    assert branching._where(network, layer, cheap, lean, set(range(0, 20, 2)), 1) is None
    patched = (*cheap[:3], *lean[3:6], *cheap[6:])
    found = branching._where(network, layer, cheap, patched, set(), 1)
    assert found is not None and found[0] == 4


@pytest.mark.parametrize("ahead", [1, 1_000])
def test_a_part_that_was_far_enough_goes_on_when_it_is_the_lowest(ahead: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """However early the second part is left, the parts end at the same place."""
    options = TreeOptions(part_ahead=ahead, part_stride=1)  # so that sweeps can be left early
    risen: list[int] = []
    goes_on = branching._swept_on

    def watched(search: Run, node: branching._Node) -> branching._Node:
        after = goes_on(search, node)
        risen.append(after.lower - node.lower)
        return after

    monkeypatch.setattr(branching, "_swept_on", watched)
    problem = layers_of_two_kinds(24, 160, 727, 0)
    start = start_of(problem, options=options)
    best = problem.cost_of(best_of(problem))
    bound = proved(problem, start)
    assert best - bound < 0.35 * (best - start.lower)
    assert all(gain >= 0 for gain in risen) and bool(risen) == (ahead > 1)


def test_sweeps_report_the_bound_at_their_prices() -> None:
    problem = layers_of_two_kinds(12, 160, 12 * 40, 0)
    start = start_of(problem)
    search, domains = start.search, start.root.domains
    assert search.rows is not None
    network = build(search.base, domains)
    sweeper = Sweeper(network, list(range(12)))
    n = np.array([2 * search.denominator], dtype=np.int64)
    found = branching._swept(search, sweeper, n, search.enough(), start.lower)
    lower = search.record(network, sweeper, search.rows.pairs(n))[1].lower()
    assert found is not None and lower is not None and lower - 1 <= found[0] <= lower
    assert not found[1] and lower < search.enough()
    near = branching._swept(search, sweeper, n, lower - 10, start.lower)
    assert near is not None and near[1], "it was enough for the time being"


def test_prices_stop_where_the_plans_reach_the_best_solution() -> None:
    problem = layers_of_two_kinds(12, 160, 12 * 40, 0)
    start = start_of(problem)
    search = start.search
    columns = [branching._column(search, x) for x in start.tie.plans]
    zero = np.zeros(1, dtype=np.int64)
    high = np.array([1_000 * search.denominator], dtype=np.int64)
    steps = branching._far_enough(search, columns[:1], zero, high)
    over = float(columns[0].use[0]) - 12 * 40
    reach = (search.incumbent.cost - columns[0].cost) / over / 1_000 * (1 << TREE.price_steps)
    assert reach <= steps <= reach + 1
    assert branching._far_enough(search, columns[1:], zero, high) == 1 << TREE.price_steps, (
        "a plan that leaves some of the limit gets cheaper"
    )
    dear = [Column(columns[0].plan, 10 * search.incumbent.cost, columns[0].use)]
    assert branching._far_enough(search, dear, zero, high) == 1 << TREE.price_steps, (
        "plans dearer than the best solution say nothing"
    )
