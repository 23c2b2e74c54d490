"""Cost function networks, graphical models and pseudo-Boolean programs: read exactly, solved, proved; refused with the
place.
"""

from __future__ import annotations

import gzip
import json
import lzma
import math
import random
from collections.abc import Iterator
from dataclasses import replace
from fractions import Fraction
from itertools import product
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from network_families import FAMILIES, HAS_TOULBAR2, least, small, toulbar2

from shardproof.__main__ import run
from shardproof.formal.selection.model.clock import Clock, Quiet
from shardproof.formal.selection.options import Options
from shardproof.formal.selection.options.limits import LIMITS
from shardproof.formal.selection.options.network import NETWORK
from shardproof.formal.selection.options.presolve import PRESOLVE
from shardproof.formal.selection.options.primal import PRIMAL
from shardproof.formal.selection.primal.incumbent import Incumbent
from shardproof.formal.selection.solve import solve
from shardproof.formal.selection.tree.branch_and_bound import new_run
from shardproof.formal.selection.tree.network_kernels import FAR
from shardproof.formal.selection.tree.network_nodes import Net, Node, first_node
from shardproof.formal.selection.tree.network_search import NetworkSearch
from shardproof.models.problem.claims import Status, Verdict
from shardproof.models.problem.selection_problem import FORBIDDEN, ProblemError, SelectionProblem
from shardproof.models.problem.uai import _exact
from shardproof.proofs.container.canonical import ContainerError
from shardproof.proofs.selection.certificates import Record, Reduced, Split
from shardproof.proofs.selection.load import load_selection_problem, selection_problem
from shardproof.verify.selection.certificate import check_selection

DATA = Path(__file__).parent / "data" / "wcsp"

OPTIMA = {
    "example.wcsp": 27,
    "warehouse.wcsp": 328,
    "zebra.wcsp": 0,
    "magic3.wcsp": 0,
    "oconnell_bayesnet.wcsp": 1589,
    "network.uai": 0,
    "GEOM40_6.wcsp": 0,
    "water.uai": 79587625,
}
"""What pytoulbar2 1.4.0.1 proves."""


def read(text: str) -> SelectionProblem:
    return selection_problem(text.encode(), "f")


def proved(problem: SelectionProblem, options: Options | None = None) -> int | None:
    """The optimum that the checker believes; None where it believes that there is none."""
    answer = solve(problem, options=options)
    assert answer.certificate is not None
    assert check_selection(problem, answer.certificate).verdict is Verdict.PROVED
    assert answer.status in (Status.OPTIMAL, Status.INFEASIBLE)
    return answer.cost


@pytest.mark.parametrize("name", sorted(OPTIMA))
def test_public_instances_have_the_published_optimum(name: str) -> None:
    assert proved(load_selection_problem(DATA / f"{name}.xz")) == OPTIMA[name]


@pytest.mark.parametrize("block", range(8))
def test_small_networks_equal_enumeration(block: int) -> None:
    for seed in range(25 * block, 25 * block + 25):
        text, domains, functions, top = small(seed)
        problem = read(text)
        assert proved(problem) == least(domains, functions, top), seed
        for x in random.Random(seed).sample(list(product(*(range(d) for d in domains))), 1):
            want = [t.get(tuple(x[v] for v in scope), d) for scope, d, t in functions]
            rest = [v.cost.size for v in problem.vertices[len(x) :]]
            if math.prod(rest) <= 2000:
                extended = [problem.cost_of((*x, *h)) for h in product(*map(range, rest))]
                allowed = [c for c in extended if c < FORBIDDEN]
                assert allowed == ([] if any(c >= top for c in want) else [sum(want)]), seed


@pytest.mark.skipif(not HAS_TOULBAR2, reason="needs pytoulbar2")
@pytest.mark.parametrize("family", sorted(FAMILIES))
def test_families_equal_toulbar2(family: str, tmp_path: Path) -> None:
    sizes = {"links": {"n": 7, "k": 8}, "pedigree": {"n": 20}, "photographs": {"n": 16}, "auction": {"n": 20},
             "colouring": {"n": 12}, "bayes": {"n": 10}, "warehouse": {"n": 4, "stores": 8}}  # fmt: skip
    for seed in range(3):
        text = FAMILIES[family](seed, **sizes[family])  # type: ignore[call-arg]
        path = tmp_path / f"{family}.{'uai' if family in ('pedigree', 'bayes') else 'wcsp'}"
        path.write_text(text)
        assert (proved(load_selection_problem(path)), True) == toulbar2(path)[:2], (family, seed)


WORDS = """words 4 4 6 100
4 4 4 3
2 0 1 -1 >= 1 100
2 1 2 -1 disj 1 2 7
3 0 1 2 -1 salldiff dec 5
3 0 1 2 -1 clique 1 1 3 1 3 2 2 3
2 2 3 -1 <= 0 1
-2 0 2 0 2
0 0 3
1 1 4
"""


def test_functions_in_words_mean_what_toulbar2_says(tmp_path: Path) -> None:
    text = WORDS.replace("4 4 6 100", "4 4 7 100") + "2 1 2 0 -1\n"
    problem = read(text)
    cost: dict[tuple[int, ...], int] = {}
    for x in product(range(4), range(4), range(4), range(3)):
        total = max(x[1] + 1 - x[0], 0)  # x0 >= x1 + 1 with slack
        total += 0 if x[1] >= x[2] + 2 or x[2] >= x[1] + 1 else 7
        total += 5 * ((x[0] == x[1]) + (x[0] == x[2]) + (x[1] == x[2]))
        near = x[2] - x[3]
        shared = {(0, 0): 3, (1, 1): 4}
        total += max(near, 0) + shared.get((x[0], x[2]), 0) + shared.get((x[1], x[2]), 0)
        if (x[0] == 3) + (x[1] == 3) + (x[2] in (2, 3)) <= 1 and near <= 1:
            cost[x] = total
    for x in product(range(4), range(4), range(4), range(3)):
        best = min(problem.cost_of((*x, h)) for h in range(4))
        assert best == cost.get(x, FORBIDDEN) or (x not in cost and best >= FORBIDDEN)
    assert proved(problem) == min(cost.values())
    if HAS_TOULBAR2:
        (tmp_path / "w.wcsp").write_text(text)
        assert toulbar2(tmp_path / "w.wcsp")[:2] == (min(cost.values()), True)


def test_probabilities_are_costs_to_the_nearest_integer() -> None:
    values = ["0.3", "0.7", "0", "2.5", "1e-5", ".05"]
    problem = read(f"MARKOV 1 6 1 1 0 6 {' '.join(values)}")
    want = [FORBIDDEN if float(v) == 0 else _exact(v, "2.5") for v in values]
    assert problem.vertices[0].cost.tolist() == want
    assert want[:2] == [21202634, 12729656]  # as toulbar2 writes them
    assert read("BAYES 1 2 1 1 0 2 0.1 0.6").vertices[0].cost.tolist() == [23025850, 5108256]
    assert "9999999.50" in problem.assumptions[0]


@settings(max_examples=100, deadline=None)
@given(st.lists(st.floats(1e-12, 1.0), min_size=1, max_size=6))
def test_rounded_logarithms_are_exact(values: list[float]) -> None:
    texts = [repr(v) for v in values]
    problem = read(f"BAYES 1 {len(texts)} 1 1 0 {len(texts)} {' '.join(texts)}")
    assert problem.vertices[0].cost.tolist() == [_exact(t, "1") for t in texts]


def opb(seed: int) -> tuple[str, int | None]:
    """A program and its optimum by enumeration."""
    rng = random.Random(seed)
    n = rng.randint(1, 7)
    costs = [rng.randint(-9, 9) for _ in range(n)]
    lines = ["* drawn", "min: " + " ".join(f"{c:+d} x{i + 1}" for i, c in enumerate(costs)) + " ;"]
    rows = []
    for _ in range(rng.randint(0, 4)):
        scope = rng.sample(range(n), rng.randint(1, n))
        terms = [(rng.choice([-3, -2, -1, 1, 2, 3]), rng.random() < 0.3, v) for v in scope]
        relation, right = rng.choice([">=", ">=", "<=", "="]), rng.randint(-2, 4)
        rows.append((terms, relation, right))
        lines.append(" ".join(f"{a:+d} {'~' * no}x{v + 1}" for a, no, v in terms) + f" {relation} {right} ;")
    best: int | None = None
    for x in product((0, 1), repeat=n):
        sums = [(sum(a * (1 - x[v] if no else x[v]) for a, no, v in t), r, b) for t, r, b in rows]
        if all(s >= b if r == ">=" else s <= b if r == "<=" else s == b for s, r, b in sums):
            total = sum(c * y for c, y in zip(costs, x, strict=True))
            best = total if best is None else min(best, total)
    return "\n".join(lines) + "\n", best


@pytest.mark.parametrize("block", range(4))
def test_pseudo_boolean_programs_equal_enumeration(block: int) -> None:
    for seed in range(15 * block, 15 * block + 15):
        text, best = opb(seed)
        assert proved(read(text)) == best, seed


FAULTS = {
    "two 2 2 1 9\n2 2\n2 0 0 0 0\n": "line 3, '0': the scope names a variable twice",
    "two 2 2 1 9\n2 2\n2 0 5 0 0\n": "line 3, '5': a variable is 5, not in 0..1",
    "two 2 2 1 9\n2 2\n2 0 1 0 1\n0 2 3\n": "line 4, '0': the tuple [0, 2] is outside of the domains of variables [0, 1]: [2, 2] values",
    "two 2 2 1 9\n2 2\n2 0 1 0 1\n0 x 3\n": "line 4, 'x': values and cost of a tuple must be an integer",
    "two 2 2 1 9\n2 2\n2 0 1 0 2\n0 1 3\n": "line 4, '3': the file ends after 3 of 6 numbers",
    "two 2 2 1 9\n2 2\n2 0 1 -1 sregular 3\n": "line 3, 'sregular': the function 'sregular' is not supported",
    "two 2 2 1 9\n2 2\n2 0 1 -1 salldiff var 3\n": "salldiff var 3 is not supported",
    "two 2 2 1 9\n2 2\n2 0 1 0 -1\n": "line 3, '-1': shared function 1 is not there",
    "two 2 2 1 9\n2 2\n2 0 1 0 0\n7\n": "line 4, '7': follows the last of the 1 functions",
    "two 2 2 1 9\n2 99999999\n": "line 2, '99999999': the size of a domain is 99999999",
    "MARKOV 1 2 1 1 0 3 1 1 1": "function 0 has 3 entries, its scope needs 2",
    "MARKOV 1 2 1 1 0 2 1 -1": "must be a number that is not negative, not '-1'",
    "MARKOV 1 2 1 1 0 2 1 nan": "must be a number that is not negative, not 'nan'",
    "BAYES 1 2 1 1 0 2 1 1 0": "line 1, '0': follows the last function (evidence",
    "min: 1 x1 x2 ;\n": "line 1, 'x2': a product of variables is not supported",
    "min: 1 x1 ;\n1 x1 1 x2 >= 1": "line 2, '1': the file ends here",
    "max: 1 x1 ;\n": "line 1, 'max:': 'max:' is not supported",
    "* c\nsoft: 4 ;\n": "line 2, 'soft:': 'soft:' is not supported",
    "min: 1 x1 ;\n+1 x1 ;\n": "line 2, ';': a constraint needs",
}


@pytest.mark.parametrize("text", sorted(FAULTS))
def test_bad_files_are_refused_with_their_place(text: str) -> None:
    with pytest.raises(ProblemError) as error:
        read(text)
    assert FAULTS[text] in str(error.value)


def test_a_short_file_cannot_ask_for_memory() -> None:
    wide = "wide 9 60000 1 9\n" + "60000 " * 9 + "\n9 0 1 2 3 4 5 6 7 8 0 0\n"
    many = "many 2 4000 40 9\n4000 4000\n" + "2 0 1 0 0\n" * 40
    bomb = "bomb 3 300 1 9\n300 300 300\n" + "3 0 1 2 0 0\n"
    for text in (wide, many, bomb):
        with pytest.raises(ProblemError, match="at most"):
            read(text)


def test_packed_files_are_read_and_broken_ones_refused(tmp_path: Path) -> None:
    text = small(3)[0].encode()
    want = selection_problem(text, "f").sha256()
    for pack in (gzip.compress, lzma.compress):
        assert selection_problem(pack(text), "f").sha256() == want
        for broken in (pack(text)[:-5], pack(text) + b"x"):
            with pytest.raises(ContainerError):
                selection_problem(broken, "f")


def test_solve_and_check_take_these_files(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    texts = {"a.wcsp": small(1)[0], "b.uai": FAMILIES["bayes"](1, n=6), "c.opb": opb(2)[0]}  # type: ignore[call-arg]
    for name, text in texts.items():
        path, cert = tmp_path / name, tmp_path / f"{name}.spz"
        path.write_text(text)
        code = run(["solve", str(path), "--json", "-o", str(cert)])
        shown = json.loads(capsys.readouterr().out)
        assert code in (0, 20) and shown["status"] in ("optimal", "infeasible")
        assert run(["check", str(cert), str(path), "--json"]) == 0
        assert json.loads(capsys.readouterr().out)["verdict"] == "proved"


def test_the_upper_bound_is_an_assumption() -> None:
    problem = read("one 1 2 1 5\n2\n1 0 0 2\n0 5\n1 4\n")
    assert problem.vertices[0].cost.tolist() == [FORBIDDEN, 4]
    assert any("upper bound 5" in text for text in problem.assumptions)
    assert np.array_equal(read("one 1 2 1 6\n2\n1 0 0 2\n0 5\n1 4\n").vertices[0].cost, [5, 4])


TREE = Options(
    limits=replace(LIMITS, joint=0, last_joint=0),
    network=replace(NETWORK, shrink=0.8, dive=3),
    primal=replace(PRIMAL, turn_moves=0, walk_idle=0),
)
"""Nothing is eliminated, and first solutions are bad."""


RELAXED = replace(TREE, network=replace(TREE.network, first=1))
"""The linear relaxation is asked as soon as there is a tree."""


@pytest.mark.parametrize("options", [TREE, RELAXED], ids=["tree", "relaxed"])
@pytest.mark.parametrize("block", range(4))
def test_the_tree_alone_equals_enumeration(block: int, options: Options) -> None:
    for seed in range(300 + 10 * block, 310 + 10 * block):
        text, domains, functions, top = small(seed)
        assert proved(read(text), options) == least(domains, functions, top), seed


@pytest.mark.parametrize("family", ["links", "photographs", "auction", "colouring", "warehouse"])
def test_the_tree_alone_equals_elimination(family: str) -> None:
    """Trees of many nodes, presolved again on the way; costs fall while they grow."""
    sizes = {"links": {"n": 8, "k": 9}, "photographs": {"n": 18}, "auction": {"n": 24}, "colouring": {"n": 16},
             "warehouse": {"n": 5, "stores": 8}}  # fmt: skip
    for seed in range(10, 14):
        problem = read(FAMILIES[family](seed, **sizes[family]))  # type: ignore[call-arg]
        assert proved(problem, TREE) == proved(problem) == proved(problem, RELAXED), (family, seed)


def test_a_relaxation_closes_most_of_an_auction_at_its_root() -> None:
    """Pairs alone leave 40 % open; cliques and the relaxation 2 %."""
    problem = read(FAMILIES["auction"](50, n=60, goods=40))  # type: ignore[call-arg]
    bounds = []
    for clique, first in ((99, 999), (3, 1)):
        options = Options(
            limits=replace(LIMITS, joint=0, last_joint=0),
            presolve=replace(PRESOLVE, clique=clique),
            network=replace(NETWORK, first=first, records=8, work=0),
        )
        answer = solve(problem, options=options)
        assert answer.certificate is not None and answer.lower_bound is not None
        assert check_selection(problem, answer.certificate).verdict is Verdict.PROVED
        bounds.append(answer.lower_bound)
    best = proved(problem)
    assert best is not None and bounds[0] < 0.8 * best and 0.95 * best < bounds[1] <= best


def test_a_tree_that_is_not_done_has_a_bound_that_is_proved() -> None:
    problem = load_selection_problem(DATA / "CELAR6-SUB0.wcsp.xz")
    for records in (1, 10, 30):
        answer = solve(problem, options=Options(network=replace(NETWORK, records=records)))
        assert answer.status is Status.FEASIBLE and answer.cost is not None and answer.lower_bound is not None
        assert answer.lower_bound <= 159 <= answer.cost and answer.certificate is not None
        assert check_selection(problem, answer.certificate).verdict is Verdict.PROVED


def test_radio_links_are_proved() -> None:
    """One row of the published table of frequency assignments; hopeless for elimination (44 labels, width 7)."""
    assert proved(load_selection_problem(DATA / "CELAR6-SUB0.wcsp.xz")) == 159


def begun(problem: SelectionProblem, options: Options) -> tuple[NetworkSearch, Node]:
    """A search and the node of its whole problem, not presolved."""
    run = new_run(problem, Incumbent(problem), Clock(), options, Fraction(0), Quiet(), 1)
    net = Net.of(problem, lambda x: x)
    assert net is not None
    return NetworkSearch(run), first_node(net, None, -FAR, 0)


def test_a_trial_below_the_bound_of_its_node_counts_as_no_gain() -> None:
    """Bounds come from above a node, messages may be worth less: an exponent overflowed on cat_paths."""
    problem = read(FAMILIES["auction"](7, n=12, goods=8))  # type: ignore[call-arg]
    search, root = begun(problem, Options())
    search.outer.incumbent.offer((1,) + (0,) * 11)
    root.bound = search.target(root.net) - 1
    search._branch(root)
    assert root.children and min(child.bound for child in root.children) >= root.bound


def test_what_has_left_since_comes_back_before_a_log_of_presolve() -> None:
    """Solutions fall while the tree grows, so that logs are about labels that the checker has fixed: those of one
    vertex in ten, not of every vertex.
    """
    split = left = 0
    for seed in range(20, 26):
        problem = read(FAMILIES["pedigree"](seed, n=60))  # type: ignore[call-arg]
        answer = solve(problem, options=TREE)
        assert answer.certificate is not None and answer.status is Status.OPTIMAL
        assert check_selection(problem, answer.certificate).verdict is Verdict.PROVED
        below = 0
        for record in records_of(answer.certificate.proof):
            below = below + 1 if isinstance(record, Split) and len(record.parts) == 1 else 0
            split, left = split + (below > 0), left + isinstance(record, Reduced)
    assert left > 10
    assert 0 < split < 6 * left


def records_of(record: Record) -> Iterator[Record]:
    yield record
    for child in record.children if isinstance(record, Split) else [getattr(record, "then", None)]:
        if child is not None:
            yield from records_of(child)
