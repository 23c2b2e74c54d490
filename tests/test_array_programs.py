"""Array programs under hand-written schedules: the same numbers as the plain function, and the fewest bytes.

Every program of the thesis' evaluation on 1, 2, 4, 8 and 64 virtual ranks (64 is more than some of their axes have
elements), and on 1, 2, 4 and 8 MPI ranks in one job each.  The oracle is the NumPy function itself.  Bytes moved are
compared with what ranks must receive and do not hold; the programs that move more are listed here with the reason.
"""

from __future__ import annotations

from collections import Counter
from itertools import product
from pathlib import Path

import numpy as np
import pytest
from array_cases import CASES, RANKS, UP_TO_4, Case, P, check_outputs, run_case
from numpy.lib.stride_tricks import sliding_window_view
from test_run import draw_choices

from shardproof.backends.execution.job import write_job
from shardproof.backends.execution.launch import launch
from shardproof.backends.execution.reference import random_inputs
from shardproof.backends.execution.run import run_virtual
from shardproof.backends.lowering.program import lower
from shardproof.backends.lowering.traffic import table, traffic
from shardproof.formal.plans.schedules import propagate
from shardproof.formal.plans.strategy import Rule, Strategy
from shardproof.models.communication.choices import copy_layout, input_layout, output_layout
from shardproof.models.communication.transfers import Exchange
from shardproof.models.machine.machine import load_machine
from shardproof.models.sources.numpy.program import ArraySpec
from shardproof.models.sources.numpy.trace import trace
from shardproof.models.sources.zoo import array_programs as programs

REPLICAS = "each replica of the sum is reduced on its own"
IDLE = "ranks without a part take part in the sum"
TWICE = "several readers receive the same elements"
EXCESS = {
    "matmul k": {64: IDLE},  # 36 products: 28 ranks have none
    "softmax split": {64: IDLE},
    "monte carlo": {64: IDLE},
    "attention by heads": {64: IDLE},  # 8 heads
    "spmv csr entries": {64: IDLE},
    "fused projections by heads": {64: REPLICAS},  # every eighth of the ranks reduces the same sum
    "spmv rows": {4: TWICE},  # row[1:] and row[:-1] are two reads of the pointers
    "jacobi in place": {
        4: TWICE,
        8: TWICE,
        64: TWICE,
    },  # the interior is cut elsewhere than the whole, so that halos overlap
    "spmv csr rows": dict.fromkeys(
        (2, 4, 8, 64), "over-approximation"
    ),  # a rank's segments are known, but an index set is a box
}
"""Program -> ranks -> why more than the bound is moved.  Every other entry is equal to the bound."""


@pytest.mark.parametrize("ranks", RANKS)
@pytest.mark.parametrize("name", CASES)
def test_equal_to_numpy_and_fewest_bytes(name: str, ranks: int) -> None:
    traced, done, _ = run_case(CASES[name], ranks)
    entries = traffic(traced.graph, (ranks,), done.choices)
    assert all(t.moved >= t.bound for t in entries)
    more = [t for t in entries if t.moved > t.bound]
    assert all(t.reasons for t in more) and not any(t.reasons for t in entries if t.moved == t.bound)
    expected = EXCESS.get(name, {}).get(ranks)
    assert bool(more) == (expected is not None), table(more)
    for t in more:
        assert expected in "; ".join(t.reasons), table([t])


@pytest.mark.mpi
@pytest.mark.parametrize("ranks", [2, 4, *(pytest.param(k, marks=pytest.mark.slow) for k in (1, 8))])
def test_mpi_ranks_give_the_same(ranks: int, tmp_path: Path) -> None:
    """All programs in one job, because starting 8 ranks takes longer than running them."""
    work = []
    for k, name in enumerate(CASES):
        case = CASES[name]
        traced = case.traced()
        values = case.values(traced)
        folder = tmp_path / str(k)
        folder.mkdir()
        digits = {n: v.reshape(traced.graph.tensor(n).shape) for n, v in values.items()}
        write_job(folder, traced.graph, (ranks,), case.scheduled(traced, ranks).choices, digits)
        work.append((traced, case.expected(values), folder))
    launch([str(Path(__file__).parent / "mpi_jobs.py"), *(str(folder) for _, _, folder in work)], ranks, 120)
    for traced, expected, folder in work:
        results = list(traced.graph.outputs)
        outputs = {t: np.load(folder / f"outputs/{n}.npy") for n, t in enumerate(results)}
        check_outputs(traced, outputs, expected)


@pytest.mark.parametrize(
    "name", ["matmul uneven m-n-k", "jacobi in place", "convolutions by rows", "attention by heads, projection by data"]
)
def test_bound_by_elements(name: str) -> None:
    """The bound of whole values again, element by element with sets of Python tuples."""
    case = CASES[name]
    traced = case.traced()
    graph, hierarchy, choices = traced.graph, (4,), case.scheduled(traced, 4).choices
    placements, copies = dict(choices.operators), dict(choices.copies)

    def elements(box: tuple[tuple[int, int], ...]) -> set[tuple[int, ...]]:
        return set(product(*(range(lo, hi) for lo, hi in box)))

    found = {t.tensor: t for t in traffic(graph, hierarchy, choices)}
    for op in graph.operators:
        name = op.output.tensor
        source = output_layout(op, graph, placements[op.name], hierarchy)
        if source.open:
            continue
        missing = 0
        for rank in range(4):
            wanted = set()
            for i, j in graph.readers()[name]:
                reader = graph.operators[i]
                wanted |= elements(input_layout(reader, j, graph, placements[reader.name], hierarchy).box(rank))
            if name in graph.outputs:
                wanted |= elements(copy_layout(name, graph, copies[name], hierarchy).box(rank))
            missing += len(wanted - elements(source.box(rank)))
        assert missing == (found[name].bound if name in found else 0)


def test_known_volumes() -> None:
    """Ring volumes of a sum of 24 x 20 numbers on 4 ranks, and a halo of one row each way."""
    case = CASES["matmul k"]
    traced = case.traced()
    (entry,) = traffic(traced.graph, (4,), case.scheduled(traced, 4).choices)
    assert (entry.tensor, entry.moved, entry.bound, entry.collectives) == (
        "matmul",
        2 * 3 * 480,
        2 * 3 * 480,
        ("all-reduce",),
    )
    case = CASES["jacobi rows"]
    traced = case.traced()
    entries = traffic(traced.graph, (4,), case.scheduled(traced, 4).choices)
    assert [(t.moved, t.bound) for t in entries] == [(2 * 3 * 17, 2 * 3 * 17)] * programs.SWEEPS


@pytest.mark.parametrize("ranks", [1, 2, 4, 8, 16, 32, 64, 128])
def test_figure_8_2(ranks: int) -> None:
    """The 8192-cubed product of the thesis, planned at full size: bytes and steps per rank beside the bound;
    executed scaled down by 64.
    """
    degrees = {
        1: (1, 1, 1),
        2: (2, 1, 1),
        4: (2, 2, 1),
        8: (2, 2, 2),
        16: (4, 2, 2),
        32: (4, 4, 2),
        64: (4, 4, 4),
        128: (8, 4, 4),
    }[ranks]
    splits = tuple((a, (("0", d),)) for a, d in zip("mnk", degrees, strict=True))
    for size in (8192, 128):
        traced = trace(programs.matmul, "matmul", {"a": (size, size), "b": (size, size)})
        done = propagate(traced.graph, load_machine(f"localhost:{ranks}"), Strategy((Rule("matmul", splits),)))
        entries = traffic(traced.graph, (ranks,), done.choices)
        m, n, k = degrees
        each = 2 * (k - 1) * (size // m) * (size // n)  # all-reduce in every group of k ranks
        assert sum(t.moved for t in entries) == sum(t.bound for t in entries) == m * n * each
    result = run_virtual(lower(traced.graph, (ranks,), done.choices), values := random_inputs(traced.graph, 0))
    np.testing.assert_allclose(result.outputs["matmul"], values["a"] @ values["b"], rtol=1e-10, atol=1e-10)


# --- what rank tiling must get right
# -------------------------------------------------------------------------------------


def sums(x, y):
    return np.max(x, axis=1), np.min(x, axis=0), np.sum(x * y), np.any(x > 2, axis=0)


def strided(x):
    return x[1::3, :] + x[:-2:3, :]


def halo(x):
    return sliding_window_view(x, (5, 3))[::2, ::1].sum(axis=(-2, -1))


def periodic(x):
    return np.roll(x, 1, axis=0) - 2 * x + np.roll(x, -1, axis=0)


def cyclic(x, w):
    return (x @ w).reshape(x.shape[0], 3, 4, 5).max(axis=3)


def joined(x, y):
    return np.concatenate([x[2:], y, x[:2]]) * np.pad(y, ((3, x.shape[0] - 3), (0, 0)))


def embedded(table, ids):
    return table[ids].mean(axis=1)


TILING = {
    "write conflicts max": Case(sums, {"x": (6, 10), "y": (10,)}, {"max": {"i1": P}}),
    "write conflicts min": Case(sums, {"x": (6, 10), "y": (10,)}, {"min": {"i0": P}}),
    "write conflicts sum of everything": Case(
        sums, {"x": (6, 10), "y": (10,)}, {"sum": {"i0": (1, 2, 2, 2, 8), "i1": (1, 1, 2, 4, 8)}}
    ),
    "broadcast operand": Case(sums, {"x": (6, 10), "y": (10,)}, {"multiply": {"i0": P}}),
    "strides": Case(strided, {"x": (24, 4)}, {"add": {"i0": P}}),
    "strides against whole": Case(lambda x: strided(x + 1), {"x": (24, 4)}, {"add": {"i0": P}, "add_2": {"i0": P}}),
    "halo two wide, stride two": Case(lambda x: halo(x * 2), {"x": (21, 9)}, {"sum": {"i0": P}, "multiply": {"i0": P}}),
    "halo in two dimensions": Case(
        lambda x: halo(x * 2),
        {"x": (21, 19)},
        {
            "sum": {"i0": (1, 2, 2, 4, 8), "i1": (1, 1, 2, 2, 8)},
            "multiply": {"i0": (1, 2, 2, 4, 8), "i1": (1, 1, 2, 2, 8)},
        },
    ),
    "periodic": Case(periodic, {"x": (11, 3)}, {"subtract": {"i0": P}}),
    "block-cyclic digits": Case(cyclic, {"x": (4, 6), "w": (6, 60)}, {"matmul": {"n.1": UP_TO_4}}),
    "block-cyclic against blocks": Case(
        cyclic, {"x": (4, 6), "w": (6, 60)}, {"matmul": {"n.0": (1, 2, 2, 2, 2)}, "max": {"i2": UP_TO_4}}
    ),
    "more ranks than elements": Case(programs.matmul, {"a": (3, 2), "b": (2, 1)}, {"matmul": {"m": P}}),
    "more ranks than elements to sum": Case(programs.matmul, {"a": (3, 2), "b": (2, 3)}, {"matmul": {"k": P}}),
    "pieces put together": Case(joined, {"x": (7, 3), "y": (5, 3)}, {"multiply": {"i0": P}, "concatenate": {"i0": P}}),
    "table rows split": Case(embedded, {"table": (13, 4), "ids": ArraySpec((6, 3), "int64")}, {"take": {"rows": P}}),
    "table columns split": Case(
        embedded, {"table": (13, 4), "ids": ArraySpec((6, 3), "int64")}, {"take": {"i1": UP_TO_4}}
    ),
}


@pytest.mark.parametrize("ranks", [1, 2, 4, 8, 64])
@pytest.mark.parametrize("name", TILING)
def test_rank_tiling(name: str, ranks: int) -> None:
    run_case(TILING[name], ranks)


@pytest.mark.parametrize("name", [*CASES, *TILING])
def test_any_placement(name: str) -> None:
    """Every operator and copy placed at random, uneven splits included: no schedule is needed for the numbers to be
    right.
    """
    case = {**CASES, **TILING}[name]
    traced = case.traced()
    values = case.values(traced)
    digits = {n: v.reshape(traced.graph.tensor(n).shape) for n, v in values.items()}
    for seed, hierarchy in enumerate([(2, 4), (3, 2)]):
        choices = draw_choices(traced.graph, hierarchy, np.random.default_rng(seed))
        result = run_virtual(lower(traced.graph, hierarchy, choices), digits)
        check_outputs(traced, result.outputs, case.expected(values))
        assert all(t.fits for t in result.traffic)
        assert all(t.moved >= t.bound for t in traffic(traced.graph, hierarchy, choices))


@pytest.mark.parametrize("name", ["jacobi rows", "jacobi rows and columns", "convolutions by rows and columns"])
def test_halos_are_one_message_per_neighbour_and_sweep(name: str) -> None:
    """However many shifted views of an array a stencil reads, corners among them."""
    case = CASES[name]
    traced = case.traced()
    program = lower(traced.graph, (8,), case.scheduled(traced, 8).choices)
    sent: Counter[tuple[str, int, int]] = Counter()
    for movement in program.movements:
        for step in movement.plan.steps:
            if isinstance(step, Exchange):
                sent.update({(movement.tensor, t.source, t.target) for t in step.transfers})
    assert sent and set(sent.values()) == {1}
