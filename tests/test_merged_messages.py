"""Adjacent reshardings: one message per partner, and all messages under way before the first is waited for."""

from __future__ import annotations

import threading

import numpy as np
import pytest
from array_cases import CASES, Case, check_outputs
from hypothesis import given, settings
from hypothesis import strategies as st

from shardproof.backends.execution.job import Options, build_program
from shardproof.backends.execution.launch import mpi_available, run_job
from shardproof.backends.execution.run import run_virtual
from shardproof.backends.execution.steps import carry_together
from shardproof.backends.kernels import Array
from shardproof.backends.transport.patterns import Pattern, PatternKind
from shardproof.backends.transport.requests import (
    JOINED_BYTES,
    AllReduce,
    Exchanged,
    Pending,
    Request,
    Result,
    Steps,
    apart,
    as_one,
    parts_of,
)
from shardproof.backends.transport.virtual import Hub, VirtualTransport
from shardproof.models.program.index import Combine

STENCILS = ["jacobi rows", "jacobi rows and columns", "jacobi in place", "convolutions by rows and columns"]


class Logged:
    """Virtual ranks that merge; every rank writes down what it starts, carries out and waits for."""

    def __init__(self, patch: pytest.MonkeyPatch) -> None:
        self.log: dict[int, list[tuple[str, tuple[int, ...]]]] = {}
        true_start, true_exchange, log = VirtualTransport.start, VirtualTransport.exchange, self.log

        def start(mine: VirtualTransport, request: Request) -> Pending:
            pending, rank = true_start(mine, request), mine.rank
            group = request.pattern.group if isinstance(request, Exchanged) else request.group
            log.setdefault(rank, []).append(("start", group))

            class Waited:
                def poll(self) -> bool:
                    return pending.poll()

                def wait(self) -> Result:
                    log[rank].append(("wait", group))
                    return pending.wait()

            return Waited()

        def exchange(mine: VirtualTransport, pattern: Pattern, *rest: object) -> dict[int, Array]:
            log.setdefault(mine.rank, []).append(("exchange", pattern.group))
            return true_exchange(mine, pattern, *rest)  # type: ignore[arg-type]

        patch.setattr(VirtualTransport, "start", start)
        patch.setattr(VirtualTransport, "exchange", exchange)


def run(case: Case, ranks: int) -> None:
    traced = case.traced()
    program = build_program(traced.graph, (ranks,), case.scheduled(traced, ranks).choices, Options(overlap=False))
    values = case.values(traced)
    check_outputs(traced, run_virtual(program, values).outputs, case.expected(values))


@pytest.mark.parametrize("name", STENCILS)
@pytest.mark.parametrize("ranks", [2, 4])
def test_merged_messages_bring_what_single_ones_bring(name: str, ranks: int, monkeypatch: pytest.MonkeyPatch) -> None:
    before = Logged(monkeypatch)
    run(CASES[name], ranks)
    single = {rank: len(found) for rank, found in before.log.items()}
    before.log.clear()
    monkeypatch.setattr(VirtualTransport, "merges", True)
    run(CASES[name], ranks)
    for rank, found in before.log.items():
        assert sum(what != "wait" for what, _ in found) <= single[rank]
    if name == "jacobi rows":  # up and down are one exchange
        assert {rank: len(found) for rank, found in before.log.items()} == {r: n // 2 for r, n in single.items()}


def test_messages_of_different_groups_are_all_under_way(monkeypatch: pytest.MonkeyPatch) -> None:
    """Rank 1 has a neighbour on either side, which is in one exchange alone."""
    seen, hub, got = Logged(monkeypatch), Hub(10), dict[int, list[list[float]]]()

    def steps(rank: int, group: tuple[int, ...]) -> Steps:
        other = next((r for r in group if r != rank), rank)
        mine, pattern = np.full(2, float(rank)), Pattern(PatternKind.NEIGHBOURS, group, group[0], ())
        request = Exchanged(pattern, {other: mine}, {other: 2}, mine) if rank in group else None
        arrived = parts_of((yield request))
        return arrived.get(other, mine * 0)

    def work(rank: int) -> None:
        transport = VirtualTransport(hub, rank, (3,), np)
        transport.account("all")
        found = carry_together(np, transport, [steps(rank, (0, 1)), steps(rank, (1, 2))])
        got[rank] = [list(a) for a in found]

    threads = [threading.Thread(target=work, args=(r,)) for r in range(3)]
    for t in threads:
        t.start()
    for t in threads:
        t.join()
    assert got == {0: [[1, 1], [0, 0]], 1: [[0, 0], [2, 2]], 2: [[0, 0], [1, 1]]}
    assert [what for what, _ in seen.log[1]] == ["start", "start", "wait", "wait"]


def test_members_of_a_group_begin_the_same_in_the_same_order(monkeypatch: pytest.MonkeyPatch) -> None:
    seen = Logged(monkeypatch)
    monkeypatch.setattr(VirtualTransport, "merges", True)
    run(CASES["jacobi rows and columns"], 4)
    begun = {rank: [g for what, g in found if what != "wait"] for rank, found in seen.log.items()}
    for rank, mine in begun.items():
        for other in {member for group in mine for member in group} - {rank}:
            shared = [g for g in mine if other in g]
            assert shared == [g for g in begun[other] if rank in g], (rank, other)


def exchange(outgoing: dict[int, list[float]], incoming: dict[int, int], dtype: str = "float64") -> Exchanged:
    pattern = Pattern(PatternKind.NEIGHBOURS, (0, 1, 2), 0, ())
    arrays = {r: np.array(v, dtype=dtype) for r, v in outgoing.items()}
    return Exchanged(pattern, arrays, incoming, np.zeros(0, dtype=dtype))


@settings(max_examples=60, deadline=None)
@given(
    st.lists(st.dictionaries(st.sampled_from([1, 2]), st.lists(st.floats(0, 9), max_size=4)), min_size=2, max_size=4)
)
def test_what_comes_together_is_taken_apart(sent: list[dict[int, list[float]]]) -> None:
    """To a partner that sends back what it gets."""
    requests = [exchange(parts, {r: len(v) for r, v in parts.items()}) for parts in sent]
    joined = as_one(np, requests)
    assert isinstance(joined, Exchanged) and set(joined.outgoing) == {r for parts in sent for r in parts}
    found = [parts_of(r) for r in apart(dict(joined.outgoing), requests)]
    assert [{r: list(v) for r, v in parts.items()} for parts in found] == sent


def test_what_is_not_alike_stays_apart() -> None:
    one = exchange({1: [1.0]}, {1: 1})
    assert as_one(np, [one, exchange({1: [1.0]}, {1: 1}, "float32")]) is None
    other = Exchanged(Pattern(PatternKind.ALL_TO_ALL, (0, 1, 2), 0, ()), {}, {}, one.like)
    assert as_one(np, [one, other]) is None and as_one(np, [other, one]) is None
    assert as_one(np, [one, AllReduce((0, 1, 2), one.like, Combine.SUM)]) is None
    small, large = np.zeros(16), np.zeros(JOINED_BYTES // 8)
    assert as_one(np, [AllReduce((0, 1), small, Combine.SUM)] * 2) is not None
    assert as_one(np, [AllReduce((0, 1), small, Combine.SUM), AllReduce((0, 1), large, Combine.SUM)]) is None


@pytest.mark.mpi
@pytest.mark.skipif(not mpi_available(), reason="no MPI")
def test_stencils_over_mpi() -> None:
    case = CASES["jacobi rows and columns"]
    traced = case.traced()
    values = case.values(traced)
    choices = case.scheduled(traced, 4).choices
    check_outputs(
        traced, run_job(traced.graph, (4,), choices, values, Options(overlap=False)).outputs, case.expected(values)
    )
