"""What a user is shown and protected from: the table of reshardings, formulas, owners, and a doctored plan that
never starts a rank.
"""

from __future__ import annotations

import io
import json
from contextlib import redirect_stderr, redirect_stdout
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from array_cases import CASES
from test_run import SMALL, draw_choices

from shardproof.__main__ import run
from shardproof.backends.lowering.movements import beside, render, table, total
from shardproof.backends.lowering.traffic import traffic
from shardproof.backends.verbs import placed as cli
from shardproof.models.communication.choices import iteration_box, output_layout
from shardproof.models.sources.zoo import build
from shardproof.proofs.plan.bundle import read_plan, write_plan
from shardproof.verify.plan.boxes import DeviceBoxes, axis_blocks, boxes_of, written_by
from shardproof.verify.plan.communication import plain_layout
from shardproof.verify.plan.owners import not_covered, not_written, replicas, wrong_owner

ORDER = [
    "nothing to do",
    "reduction on sub-grids",
    "grid-mapped",
    "grid-to-grid",
    "halo exchange with neighbours",
    "general",
]


def shardproof(*words: str) -> tuple[int, str, str]:
    out, err = io.StringIO(), io.StringIO()
    with redirect_stdout(out), redirect_stderr(err):
        code = run(list(words))
    return int(code or 0), out.getvalue(), err.getvalue()


@pytest.fixture(scope="module")
def plan(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("plan") / "mlp.spz"
    strategy = path.with_name("s.json")
    strategy.write_text('{"fc1": {"n": {"ranks": 4}}, "fc2": {"k": {"ranks": 4}}}')
    code, _, err = shardproof(
        "plan", "mlp-unity", "--batch", "8", "--machine", "localhost:4", "--strategy", str(strategy), "-o", str(path)
    )
    assert code in (0, 5), err
    return path


@pytest.mark.parametrize("name", CASES)
def test_the_table_of_redistributions(name: str) -> None:
    """Every one has the solver that took it and a reason from each one before; bytes are those counted; totals
    those of the traffic.
    """
    case = CASES[name]
    traced = case.traced()
    choices = case.scheduled(traced, 8).choices
    rows = table(traced.graph, (8,), choices)
    for row in rows:
        assert [a.solver for a in row.attempts] == ORDER[: len(row.attempts)]
        assert all(a.reason for a in row.attempts) and row.attempts[-1].groups > 0
        assert row.moved >= row.bound and bool(row.uses) == (len(row.attempts) > 1)
    entries = traffic(traced.graph, (8,), choices)
    assert sum(r.moved for r in rows) == sum(t.moved * t.element_bytes for t in entries)
    for t in entries:
        if t.moved > t.bound:
            assert any(f"all reshardings of {t.tensor!r}" in why for r in rows for why in r.reasons)
    moved, bound = total(traced.graph, (8,), choices)
    assert (moved, bound) == (
        sum(r.moved for r in rows),
        sum(t.bound * t.element_bytes for t in entries),
    ) and bound <= sum(r.bound for r in rows)
    for line in render(rows):
        if "the least possible" in line:
            assert any(f"{r.moved} received" in line and r.moved == r.bound for r in rows)


def test_least_is_said_only_of_the_least() -> None:
    """Four slices of one array are four reads, each the least on its own; all together they move more than they
    must.
    """
    case = CASES["jacobi in place"]
    traced = case.traced()
    choices = case.scheduled(traced, 8).choices
    rows = table(traced.graph, (8,), choices)
    moved, bound = total(traced.graph, (8,), choices)
    assert bound < moved and bound < sum(r.bound for r in rows)
    assert beside(moved, bound, "") == f"{moved}; lower bound {bound}"


def test_run_shows_it_without_starting_ranks(plan: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("run_virtual", "run_job"):
        monkeypatch.setattr(cli, name, None)
    code, out, _ = shardproof("run", str(plan), "-n", "4", "--communication")
    assert code == 0
    assert (
        "took it      reduction on sub-grids: every member wants" in out
        and "not          nothing to do: values are parts of sums" in out
    )
    assert "the least possible" in out and "reshardings have nothing to do" in out
    code, out, _ = shardproof("run", str(plan), "-n", "4", "--communication", "--json")
    found = json.loads(out)
    assert (
        code == 0 and sum(r["moved"] for r in found["redistributions"]) > 0 and found["redistributions"][0]["attempts"]
    )


def test_explain_prints_formulas(plan: Path) -> None:
    code, out, _ = shardproof("explain", str(plan), "--op", "fc2", "--symbolic")
    assert code == 0 and "p_k = c_ranks" in out and "a part of the sum along p_k" in out
    code, out, _ = shardproof("explain", str(plan), "--op", "fc2", "--symbolic", "--json")
    assert code == 0 and json.loads(out)["operands"][-1]["part_of_sum_along"] == ["k"]
    code, _, err = shardproof("explain", str(plan), "--op", "nobody", "--symbolic")
    assert code == 3 and "fc2" in err
    assert shardproof("explain", str(plan), "--symbolic")[0] == 2


@pytest.mark.parametrize("virtual", [True, False])
def test_a_doctored_plan_starts_no_rank(
    plan: Path, tmp_path: Path, virtual: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Totals, a collective and an owner changed, hashes made right again: `run` refuses with the place before
    anything starts.
    """
    for name in ("run_virtual", "run_job"):
        monkeypatch.setattr(cli, name, None)
    good, _ = read_plan(plan)
    at = next(i for i, m in enumerate(good.communication) if m.collective != "none")
    moved = good.communication[at]
    names = [n for n, _ in good.choices.operators]
    fc1 = good.choices.operators[names.index("fc1")][1]
    swapped = tuple(
        (n, replace(p, matrix=(p.matrix[1], p.matrix[0], *p.matrix[2:])) if n == "fc1" else p)
        for n, p in good.choices.operators
    )
    assert fc1.matrix[0] != fc1.matrix[1]
    doctored = [
        replace(
            good,
            communication=tuple(
                replace(m, loads=tuple(n - 1 for n in m.loads)) if i == at else m
                for i, m in enumerate(good.communication)
            ),
        ),
        replace(
            good,
            communication=tuple(
                replace(m, collective="none") if i == at else m for i, m in enumerate(good.communication)
            ),
        ),
        replace(good, communication=good.communication[:at] + good.communication[at + 1 :]),
        replace(good, communication=(*good.communication, moved)),
        replace(good, choices=replace(good.choices, operators=swapped)),
    ]
    for number, bad in enumerate(doctored):
        path = tmp_path / f"{number}.spz"
        write_plan(path, bad)
        code, out, err = shardproof("run", str(path), "-n", "4", *(["--virtual"] if virtual else []))
        assert code == 10 and not out, (number, code, err)
        assert "choices" in err or "movement" in err


@pytest.mark.parametrize(
    "name", [*sorted(SMALL), "jacobi in place", "spmv csr rows", "monte carlo", "fused projections by heads"]
)
def test_every_element_has_one_owner(name: str) -> None:
    graph = SMALL[name]() if name in SMALL else CASES[name].traced().graph
    for seed, hierarchy in enumerate([(2, 4), (3, 2), (64,)]):
        placements = dict(draw_choices(graph, hierarchy, np.random.default_rng(seed)).operators)
        for op in graph.operators:
            assert wrong_owner(op, graph, placements[op.name], hierarchy) == ""
            blocks = boxes_of(
                axis_blocks(
                    tuple(op.axis(a).extent for a in placements[op.name].axes), placements[op.name].matrix, hierarchy
                )
            )
            mine = iteration_box(op, placements[op.name], hierarchy, 1)
            assert [mine[a] for a in placements[op.name].axes] == list(blocks[1])
            assert written_by(op, graph, placements[op.name], hierarchy) == plain_layout(
                output_layout(op, graph, placements[op.name], hierarchy)
            )


def test_wrong_owners_are_found() -> None:
    """A box shifted, grown, cut, missing or doubled, in iteration spaces and in outputs that are parts of sums."""
    graph, hierarchy = build("mlp-unity", batch=8, inputs=24, hidden=16, classes=8), (2, 4)
    seen = set[str]()
    for op in graph.operators:
        for seed in range(12):
            placement = dict(draw_choices(graph, hierarchy, np.random.default_rng(seed)).operators)[op.name]
            extents = tuple(op.axis(a).extent for a in placement.axes)
            boxes, copies = (
                boxes_of(axis_blocks(extents, placement.matrix, hierarchy)),
                replicas(placement.matrix[-1], hierarchy),
            )
            assert not_covered(boxes, copies, extents) == ""
            wrote = written_by(op, graph, placement, hierarchy)
            for rank in (0, 3, 7):
                if all(low < high for low, high in boxes[rank]):
                    for k, (low, high) in enumerate(boxes[rank]):
                        for new in ((low + 1, high + 1), (low - 1, high), (low, high + 1), (low + 1, high), (low, low)):
                            wrong = not_covered(
                                (*boxes[:rank], (*boxes[rank][:k], new, *boxes[rank][k + 1 :]), *boxes[rank + 1 :]),
                                copies,
                                extents,
                            )
                            assert wrong
                            seen.add(wrong.split()[0])
                    twin = next((d for d in range(8) if copies[d] == copies[rank] and d != rank), None)
                    if twin is not None:
                        assert not_covered((*boxes[:twin], boxes[rank], *boxes[twin + 1 :]), copies, extents)
                for k, (low, high) in enumerate(wrote.boxes[rank]):
                    if low < high:
                        for new in ((low + 1, high), (low, high - 1)):
                            changed = (
                                *wrote.boxes[:rank],
                                (*wrote.boxes[rank][:k], new, *wrote.boxes[rank][k + 1 :]),
                                *wrote.boxes[rank + 1 :],
                            )
                            assert not_written(
                                DeviceBoxes.of(wrote.hierarchy, wrote.shape, changed, wrote.open), copies
                            )
            if wrote.open:
                assert not_written(replace(wrote, open=wrote.open[1:]), copies)  # a sum not declared: two owners
    assert seen >= {"rank"} and len(seen) > 1
