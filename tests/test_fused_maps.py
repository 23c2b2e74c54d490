"""Chains of maps with maps beside them, padded operands and results in place: the numbers of one operator after another.

Chunks are made small, so that programs have many; halos lie in some and not in others.
"""

import numpy as np
import pytest
from array_cases import CASES
from hypothesis import given, settings
from hypothesis import strategies as st
from test_runtime import Aligned, Launcher

from shardproof import dace
from shardproof.backends.cuda import shim
from shardproof.backends.execution import fused
from shardproof.backends.execution.job import Options, build_program
from shardproof.backends.execution.reference import random_inputs, run_graph
from shardproof.backends.execution.run import run_virtual
from shardproof.backends.kernels.blocks import Block, cover
from shardproof.backends.kernels.library import OURS
from shardproof.backends.lowering.program import Compute, Fused
from shardproof.formal.plans.schedules import propagate
from shardproof.formal.plans.strategy import Strategy
from shardproof.models.machine.machine import load_machine
from shardproof.models.sources.numpy.trace import trace
from shardproof.models.sources.zoo import array_programs as zoo

N, M = 37, 23


def steps(program, ranks: int = 1):
    """The graph and the instructions that compute."""
    graph = trace(program).graph
    done = propagate(graph, load_machine(f"localhost:{ranks}"), Strategy(()))
    built = build_program(graph, (ranks,), done.choices, Options())
    return graph, built, [i for i in built.ranks[0] if isinstance(i, (Compute, Fused))]


def test_maps_that_do_not_read_each_other_are_one_chain() -> None:
    _, _, found = steps(_total)
    assert [len(i.members) for i in found if isinstance(i, Fused)] == [6] and len(found) == 1


def test_a_sweep_of_jacobi_is_one_chain() -> None:
    _, _, found = steps(_small_jacobi)
    assert [len(i.members) for i in found if isinstance(i, Fused)] == [4] * zoo.SWEEPS
    assert len(found) == zoo.SWEEPS


@dace
def _total(a: dace.float64[N, M], b: dace.float64[N, M], c: dace.float64[N, M]):
    return (a + b) * (b - c) + np.sqrt(c * c)


@dace
def _small_jacobi(u: dace.float64[N, M]):
    return zoo.jacobi(u)


@settings(max_examples=60, deadline=None)
@given(st.data())
def test_random_chains_in_small_chunks(data: st.DataObject) -> None:
    """Sums, products, roots and shifted reads, in any shape of tree."""
    plan = data.draw(
        st.lists(st.tuples(st.sampled_from("+-*spd"), st.integers(0, 9), st.integers(0, 9)), min_size=2, max_size=9)
    )

    @dace
    def program(a: dace.float64[N, M], b: dace.float64[N, M], row: dace.float64[M]):
        values = [a, b, row * np.ones_like(a)]
        for what, i, j in plan:
            x, y = values[i % len(values)], values[j % len(values)]
            match what:
                case "+":
                    values.append(x + y)
                case "-":
                    values.append(x - y)
                case "*":
                    values.append(x * y)
                case "s":
                    values.append(np.sqrt(np.abs(x)))
                case "p":
                    values.append(np.pad(x, 1)[2:, 1:-1] + np.pad(y, 1)[:-2, 1:-1])
                case _:
                    values.append(np.pad(x, 2)[2:-2, 4:] - y)
        return values[-1], values[-2]

    chunk = data.draw(st.sampled_from((40, 150, 10_000)))
    graph, built, _ = steps(program)
    values = random_inputs(graph, 3)
    kept, fused.CHUNK = fused.CHUNK, chunk
    try:
        ours = run_virtual(built, values).outputs
    finally:
        fused.CHUNK = kept
    for name, want in run_graph(graph, values).items():
        np.testing.assert_array_equal(ours[name], want)


@pytest.mark.parametrize(
    "name", ["jacobi rows and columns", "jacobi in place", "softmax split", "convolutions by rows"]
)
@pytest.mark.parametrize("ranks", [2, 4])
def test_on_ranks_with_halos(name: str, ranks: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(fused, "CHUNK", 60)
    case = CASES[name]
    traced = case.traced()
    values = case.values(traced)
    built = build_program(traced.graph, (ranks,), case.scheduled(traced, ranks).choices, Options())
    outputs = run_virtual(built, values).outputs
    (tensor, shape), want = traced.results[0], case.expected(values)[0]
    np.testing.assert_allclose(outputs[tensor].reshape(shape), want, rtol=1e-12, atol=1e-12)


@settings(max_examples=200, deadline=None)
@given(st.data())
def test_margins_are_filled_and_nothing_else(data: st.DataObject) -> None:
    shape = data.draw(st.lists(st.integers(1, 5), min_size=1, max_size=3))
    low = [data.draw(st.integers(-3, n)) for n in shape]
    high = [data.draw(st.integers(a + 1, n + 4)) for a, n in zip(low, shape, strict=True)]
    array = np.arange(float(np.prod(shape))).reshape(shape) + 1
    got = cover(np, Block(array, (0,) * len(shape)), low, high, shape, -7.0, "here")
    wide = np.full([n + 12 for n in shape], -7.0)
    wide[tuple(slice(6, 6 + n) for n in shape)] = array
    np.testing.assert_array_equal(got, wide[tuple(slice(a + 6, b + 6) for a, b in zip(low, high, strict=True))])


@pytest.mark.skipif(not shim.available(), reason="no g++ on the PATH")
@pytest.mark.parametrize("name", ["total", "jacobi"])
def test_maps_beside_a_chain_through_generated_kernels(name: str) -> None:
    """What a GPU would run, on the CPU: kernels with several first members, and padded reads."""
    graph, _, found = steps(_total if name == "total" else _small_jacobi)
    values = random_inputs(graph, 2)
    expected = {**run_graph(graph, values, keep=[op.output.tensor for op in graph.operators]), **values}
    launcher = Launcher()
    done = []
    for step in found:
        assert isinstance(step, Fused)
        linked, slots = dict(step.links), {}
        for member in step.members:
            for (slot, origin), access in zip(member.operands, graph.operators[member.operator].inputs, strict=True):
                if slot not in linked:  # a block that begins at its origin
                    block = expected[access.tensor][tuple(slice(o, None) for o in origin)]
                    slots[slot] = shim.empty(block.shape, "float64")
                    slots[slot][...] = block
        fused.execute_fused(Aligned(), graph, step, slots, OURS, launcher)
        done.append((step, slots))
    assert launcher.kernels
    launcher.compile()
    for step, slots in done:
        results = fused.execute_fused(Aligned(), graph, step, slots, OURS, launcher)
        for slot, k in step.results:
            want = expected[graph.operators[step.members[k].operator].output.tensor]
            np.testing.assert_allclose(results[slot], want, rtol=1e-13, atol=1e-13)
