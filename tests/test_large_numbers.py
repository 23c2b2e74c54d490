"""Numbers at the edge of 64 bits in every reader of selection problems: taken exactly, or refused with the place; costs
from 10^18 on are forbidden, and the problem says so.

The truth is brute force over the text of the file, in Python integers, with no code of the package.
"""

from __future__ import annotations

import gzip
import json
import random
from collections import Counter
from fractions import Fraction
from itertools import product
from pathlib import Path

import numpy as np
import pytest

from shardproof.__main__ import run
from shardproof.formal.selection.model.clock import Clock
from shardproof.formal.selection.model.resources import Rows
from shardproof.formal.selection.solve import solve
from shardproof.models.problem.claims import Infeasible, Optimal, Verdict
from shardproof.models.problem.iopddl import FORBIDDEN_COSTS
from shardproof.models.problem.selection_problem import FORBIDDEN, Edge, ProblemError, SelectionProblem, Usage, Vertex
from shardproof.proofs.container.canonical import ContainerError
from shardproof.proofs.selection.load import selection_problem
from shardproof.proofs.selection.problem_file import encode_problem, parse_problem, problem_json
from shardproof.verify.selection.certificate import check_selection

CASES, SLOW_CASES = 250, 10_000
"""Random files of each kind."""

INFINITE = 10**18
EDGES = (2**31, 2**53, 10**18, 2**60, 2**61, 2**62, 2**63, 2**64, 2**100, 10**30)
"""Powers around which numbers are drawn."""


def wide(rng: random.Random, low: int = 0) -> int:
    """Mostly small numbers, sometimes one beside an edge."""
    if rng.random() < 0.75:
        return rng.randint(max(low, -3), 9)
    return max(low, rng.choice((1, 1, 1, -1)) * rng.choice(EDGES) // rng.choice((1, 1, 2)) + rng.randint(-2, 2))


def iopddl(rng: random.Random) -> dict:
    """A contest file of two or three nodes; one of the fields has numbers from anywhere."""
    n, strange = rng.randint(2, 3), rng.choice(("usages", "intervals", "costs", "edges", "limit"))

    def number(field: str, low: int = 0) -> int:
        return wide(rng, low) if field == strange else rng.randint(0, 9)

    sizes = [rng.randint(1, 2) for _ in range(n)]
    nodes = {
        "intervals": [[number("intervals", -(10**31)), number("intervals", -(10**31))] for _ in range(n)],
        "costs": [[number("costs", -(2**70)) for _ in range(k)] for k in sizes],
        "usages": [[number("usages") for _ in range(k)] for k in sizes],
    }
    pairs = [[i, i + 1] for i in range(n - 1)]
    edges = {
        "nodes": pairs,
        "costs": [[number("edges", -(2**70)) for _ in range(sizes[i] * sizes[j])] for i, j in pairs],
    }
    problem = {"name": "wide", "nodes": nodes, "edges": edges}
    if rng.random() < 0.9:
        problem["usage_limit"] = number("limit") if strange != "usages" else wide(rng)
    return {"problem": problem}


def truth(file: dict) -> tuple[int, tuple[int, ...]] | None:
    """(least cost, first such solution) of a contest file, None if nothing fits."""
    p = file["problem"]
    nodes, best = p["nodes"], None
    for x in product(*(range(len(c)) for c in nodes["costs"])):
        entries = [c[a] for c, a in zip(nodes["costs"], x, strict=True)]
        entries += [
            c[x[i] * len(nodes["costs"][j]) + x[j]]
            for (i, j), c in zip(p["edges"]["nodes"], p["edges"]["costs"], strict=True)
        ]
        starts = [s for s, _ in nodes["intervals"]]
        peak = max(
            sum(u[a] for (s, e), u, a in zip(nodes["intervals"], nodes["usages"], x, strict=True) if s <= t < e)
            for t in starts
        )
        if (
            max(entries) < INFINITE
            and ("usage_limit" not in p or peak <= p["usage_limit"])
            and (best is None or sum(entries) < best[0])
        ):
            best = sum(entries), x
    return best


def read(text: bytes) -> SelectionProblem | None:
    """The problem, None if it is refused with its place."""
    try:
        return selection_problem(text, "wide.json")
    except (ProblemError, ContainerError) as error:
        assert "wide.json" in str(error)
        return None


def judged(problem: SelectionProblem, best: tuple[int, tuple[int, ...]] | None) -> None:
    """What is solved and checked about the problem is the truth."""
    answer = solve(problem, threads=1)
    assert answer.certificate is not None
    claim = answer.certificate.claim
    if best is None:
        assert isinstance(claim, Infeasible)
    else:
        assert isinstance(claim, Optimal) and claim.cost == best[0]
    assert check_selection(problem, answer.certificate).verdict is Verdict.PROVED


def contest_files(cases: int) -> Counter[str]:
    counts = Counter[str]()
    for seed in range(cases):
        rng = random.Random(seed)
        file = iopddl(rng)
        text = json.dumps(file).encode()
        problem = read(text)
        turned = {"problem": dict(reversed(file["problem"].items()))}
        for other in (
            gzip.compress(text),
            json.dumps(turned).encode(),
            b'{"x":1,' + text[1:],
        ):  # the last is read by another path
            again = read(other)
            assert (again is None) == (problem is None) and (
                again is None or problem is None or again.sha256() == problem.sha256()
            )
        if problem is None:
            counts["refused"] += 1
            continue
        p = file["problem"]
        for vertex, costs in zip(problem.vertices, p["nodes"]["costs"], strict=True):
            assert vertex.cost.tolist() == [c if c < INFINITE else FORBIDDEN for c in costs]
        live = [(s, e, u) for (s, e), u in zip(p["nodes"]["intervals"], p["nodes"]["usages"], strict=True) if s < e]
        assert [(u.start, u.end, u.amount.tolist()) for u in problem.usages] == live
        assert problem.limit == p.get("usage_limit")
        dear = any(c >= INFINITE for list_ in (*p["nodes"]["costs"], *p["edges"]["costs"]) for c in list_)
        assert problem.assumptions == ((FORBIDDEN_COSTS,) if dear else ())
        best = truth(file)
        judged(problem, best)
        counts["infeasible" if best is None else "optimal"] += 1
        text = problem_json(problem)
        assert parse_problem(text).sha256() == parse_problem(gzip.compress(text)).sha256() == problem.sha256()
    return counts


def test_contest_files_with_wide_numbers_are_read_exactly_or_refused() -> None:
    counts = contest_files(CASES)
    assert min(counts["refused"], counts["infeasible"], counts["optimal"]) > CASES // 20, counts


@pytest.mark.slow
def test_many_contest_files_with_wide_numbers() -> None:
    print(contest_files(SLOW_CASES))


def two(usages: list[list[int]], intervals: list[list[int]], limit: int) -> dict:
    return {
        "problem": {
            "name": "two",
            "nodes": {"intervals": intervals, "costs": [[1], [2]], "usages": usages},
            "edges": {"nodes": [], "costs": []},
            "usage_limit": limit,
        }
    }


@pytest.mark.parametrize(("file", "place"), [
    (two([[10**19], [10**19]], [[0, 2], [0, 2]], 3 * 2**60), r"nodes\.usages\[0\]: 10000000000000000000 is out of range"),
    (two([[4], [4]], [[0, 10**19], [2**60 + 5, 10**19 + 9]], 5), r"nodes\.intervals\[0\]: 10000000000000000000 is out of range"),
    (two([[2**61], [2**61]], [[0, 2], [0, 2]], 5), r"usages: sum of largest amounts 4611686018427387904 is not below 2\*\*62"),
    (two([[1], [1]], [[0, 2**62], [0, 2]], 5), r"usage 0 'node 0': steps must lie between"),
    (two([[1], [1]], [[0, 2], [0, 2]], 10**30), r"limit: must not be above 2\*\*62"),
])  # fmt: skip
def test_numbers_that_do_not_fit_are_refused_with_their_place(file: dict, place: str) -> None:
    with pytest.raises(ProblemError, match=place):
        selection_problem(json.dumps(file).encode(), "two.json")


@pytest.mark.parametrize("file", [
    two([[12 * 10**17], [12 * 10**17]], [[0, 2], [0, 2]], 2**61),  # 2.4 * 10^18 in use; 2 * 2^60 would fit
    # both live at 10^18 + 5; both ends at 2^60 would not meet
    two([[4], [4]], [[0, 10**18 + 10], [10**18 + 5, 10**18 + 9]], 5),
])  # fmt: skip
def test_infeasible_problems_with_numbers_above_the_forbidden_cost(
    file: dict, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """These got `Optimal proved`: their usages and interval ends became 2**60."""
    assert truth(file) is None
    path, out = tmp_path / "two.json", tmp_path / "two.spz"
    path.write_text(json.dumps(file))
    assert run(["solve", str(path), "-o", str(out)]) == 20
    assert run(["check", str(path), str(out)]) == 0
    assert "Infeasible" in capsys.readouterr().out


def test_a_forbidden_cost_is_an_assumption_of_the_claim(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = two([[1], [1]], [[0, 2], [0, 2]], 5)
    file["problem"]["nodes"]["costs"] = [[1, 10**30], [2]]
    file["problem"]["nodes"]["usages"] = [[1, 1], [1]]
    path, out = tmp_path / "two.json", tmp_path / "two.spz"
    path.write_text(json.dumps(file))
    assert run(["solve", str(path), "-o", str(out)]) == 0
    capsys.readouterr()
    assert run(["check", str(path), str(out), "--json"]) == 0
    assert FORBIDDEN_COSTS in json.loads(capsys.readouterr().out)["claims"][0]["assumptions"]


ODD = ("1.5", "1e3", "true", "null", '"7"', "NaN", "Infinity", "-Infinity", "[1]", "{}", "1e400", "1" * 5000)
"""JSON values that are no integers of 64 bits."""


@pytest.mark.parametrize("field", ["usages", "intervals", "costs", "limit", "pairs", "tables"])
@pytest.mark.parametrize("value", ODD)
def test_what_is_no_integer_is_refused_in_every_field(field: str, value: str) -> None:
    text = odd({field: value})
    if (field, value) != ("limit", "null"):  # no limit
        for form in (text, '{"x":0,' + text[1:]):
            assert read(form.encode()) is None
    assert read(odd({field: "1 " if field == "pairs" else "-0"}).encode()) is not None


def odd(changed: dict[str, str]) -> str:
    parts = {"usages": "3", "intervals": "2", "costs": "1", "limit": "9", "pairs": "1", "tables": "0"} | changed
    nodes = f'{{"intervals":[[0,{parts["intervals"]}],[0,2]],"costs":[[{parts["costs"]}],[1]],"usages":[[{parts["usages"]}],[1]]}}'
    edges = f'{{"nodes":[[0,{parts["pairs"]}]],"costs":[[{parts["tables"]}]]}}'
    return f'{{"problem":{{"name":"wide.json","nodes":{nodes},"edges":{edges},"usage_limit":{parts["limit"]}}}}}'


def own(rng: random.Random) -> dict:
    """A problem in our own JSON; one field has numbers from anywhere."""
    strange = rng.choice(("cost", "table", "amount", "start", "end", "limit", "constant", "scale", "map"))

    def number(field: str) -> int:
        return wide(rng, -(2**70)) if field == strange else rng.randint(0, 1) if field == "map" else rng.randint(0, 9)

    usages = [
        {"vertex": v, "start": number("start"), "end": number("end"), "amount": [number("amount"), number("amount")]}
        for v in (0, 1)
    ]
    return {
        "format": "shardproof-selection/1", "name": "own", "vertices": [{"name": str(v), "cost": [number("cost"), number("cost")]} for v in (0, 1)],
        "tables": [[[number("table"), number("table")], [number("table"), number("table")]]],
        "edges": [{"u": 0, "v": 1, "table": 0, "rows": [number("map"), number("map")], "cols": None}],
        "usages": usages, "limit": number("limit"), "constant": number("constant"), "scale": max(1, number("scale")),
    }  # fmt: skip


def own_truth(file: dict) -> tuple[int, tuple[int, ...]] | None:
    best = None
    for x in product((0, 1), (0, 1)):
        entries = [v["cost"][a] for v, a in zip(file["vertices"], x, strict=True)]
        entries.append(file["tables"][0][file["edges"][0]["rows"][x[0]]][x[1]])
        peak = max(
            sum(u["amount"][x[u["vertex"]]] for u in file["usages"] if u["start"] <= t < u["end"])
            for t in [u["start"] for u in file["usages"]]
        )
        cost = file["constant"] + sum(entries)
        if max(entries) < 2**60 and peak <= file["limit"] and (best is None or cost < best[0]):
            best = cost, x
    return best


def own_files(cases: int) -> Counter[str]:
    counts = Counter[str]()
    for seed in range(cases):
        file = own(random.Random(seed))
        problem = read(json.dumps(file).replace('"own"', '"wide.json"').encode())
        if problem is None:
            counts["refused"] += 1
            continue
        best = own_truth(file)
        judged(problem, best)
        counts["infeasible" if best is None else "optimal"] += 1
        members = encode_problem(problem)
        assert problem.scale == file["scale"] and members
    return counts


def test_our_own_files_with_wide_numbers_are_read_exactly_or_refused() -> None:
    counts = own_files(CASES)
    assert min(counts["refused"], counts["optimal"]) > CASES // 20 and counts["infeasible"], counts


@pytest.mark.slow
def test_many_of_our_own_files_with_wide_numbers() -> None:
    print(own_files(SLOW_CASES))


def a_float(rng: random.Random) -> object:
    kind = rng.randrange(8)
    if kind < 4:
        return rng.choice((0, 1, 3, 0.5, 0.75, 1.1, -0.0, -2))
    if kind < 6:
        return rng.uniform(-1, 1) * 2.0 ** rng.randint(-60, 40)
    return rng.choice(
        (
            5e-324,
            1e-308,
            2.0**52 + 0.5,
            2**53,
            2**53 + 1,
            10**17,
            1e17,
            2.0**56,
            2.0**57,
            1e300,
            2**100,
            float("inf"),
            float("nan"),
            True,
            "1",
        )
    )


def pase_files(cases: int) -> Counter[str]:
    counts = Counter[str]()
    for seed in range(cases):
        rng = random.Random(seed)
        nodes = [{"name": str(v), "cost": [a_float(rng) for _ in range(2)]} for v in range(2)]
        file = {"nodes": nodes, "edges": [[0, 1, [[a_float(rng) for _ in range(2)] for _ in range(2)]]]}
        problem = read(json.dumps(file).encode())
        if problem is None:
            counts["refused"] += 1
            continue
        table = file["edges"][0][2]
        exact = {
            x: sum(
                (Fraction(c) for c in (nodes[0]["cost"][x[0]], nodes[1]["cost"][x[1]], table[x[0]][x[1]])), Fraction(0)
            )
            for x in product((0, 1), (0, 1))
        }
        for x, cost in exact.items():
            assert Fraction(problem.cost_of(x), problem.scale) == cost
        answer = solve(problem, threads=1)
        assert answer.certificate is not None and isinstance(answer.certificate.claim, Optimal)
        assert Fraction(answer.certificate.claim.cost, problem.scale) == min(exact.values())
        assert check_selection(problem, answer.certificate).verdict is Verdict.PROVED
        assert parse_problem(problem_json(problem)).sha256() == problem.sha256()
        counts["optimal"] += 1
    return counts


def test_tables_of_floats_are_scaled_exactly_or_refused() -> None:
    counts = pase_files(CASES)
    assert min(counts.values()) > CASES // 20, counts


@pytest.mark.slow
def test_many_tables_of_floats() -> None:
    print(pase_files(SLOW_CASES))


def test_weighted_usages_near_the_bound_show_no_false_conflict() -> None:
    """Multipliers of 4,096 times usages of 2^60 left int64: the search saw a conflict that is none, and ended
    without an answer.
    """
    x, y = Vertex("x", np.array([1])), Vertex("y", np.array([2, 0]))
    usages = (Usage(0, 2, 8, np.array([5])), Usage(1, 8, 9, np.array([3, 2**60 - 1])))
    problem = SelectionProblem("near", (x, y), (np.array([[1, 5]]),), (Edge(0, 1, 0),), usages, 2**60 - 2)
    answer = solve(problem)
    assert (answer.solution, answer.cost) == ((0, 0), 4) and answer.certificate is not None
    assert (
        isinstance(answer.certificate.claim, Optimal)
        and check_selection(problem, answer.certificate).verdict is Verdict.PROVED
    )
    rows = Rows(problem)
    assert rows.conflict([np.array([0]), np.array([0, 1])], True, Clock()) is None
    assert rows.conflict([np.array([0]), np.array([1])], True, Clock()) == ((8, 1),)


def test_conflicts_between_rows_of_wide_usages_are_exact() -> None:
    """No row alone is broken, their sum is: one vertex uses either row, each beside as much of the other."""
    usages = tuple(
        Usage(v, t, t + 1, np.array([2**60, 0] if t == 0 else [0, 2**60])) for v in (0, 1, 2) for t in (0, 1)
    )
    problem = SelectionProblem(
        "between", tuple(Vertex(f"v{v}", np.array([0, 0])) for v in range(3)), (), (), usages, 2**60
    )
    found = Rows(problem).conflict([np.array([0, 1])] * 3, True, Clock())
    assert found is not None and sum(n for _, n in found) > 0
    f = 3 * min(sum(n for t, n in found if t == k) for k in (0, 1)) * 2**60 - sum(n for _, n in found) * 2**60
    assert f > 0


def test_sums_of_usages_stay_exact_up_to_the_bound() -> None:
    """The largest numbers that are taken: every sum of usages is below 2**62 and evaluated as it is."""
    top = (1 << 61) - 1
    file = two([[top], [top]], [[0, 2], [1, 3]], 2 * top)
    problem = read(json.dumps(file).replace("two", "wide.json").encode())
    assert problem is not None and problem.peak_of((0, 0)) == (2 * top, 1) and np.int64(2 * top) == 2 * top
    judged(problem, (3, (0, 0)))
    file["problem"]["usage_limit"] -= 1
    tight = read(json.dumps(file).encode())
    assert tight is not None
    judged(tight, None)
