"""Arrays on a GPU mean what arrays of NumPy mean: the zoo forward and training, 16 bits, plans on virtual and MPI ranks.

Kernels run eagerly through CuPy and fused through generated CUDA text; both are compared with one process of NumPy.
"""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from budgets import limited
from test_zoo_ranks import WITHOUT_LOSS, free_links

from shardproof.backends.execution.reference import random_inputs, run_graph
from shardproof.backends.execution.run import run_virtual
from shardproof.backends.lowering.program import lower
from shardproof.backends.transport.nccl import NcclTransport, nccl_module
from shardproof.backends.transport.requests import AllReduce
from shardproof.formal.plans.plan import plan_graph
from shardproof.models.layout.placement import space
from shardproof.models.program.graph import Graph
from shardproof.models.program.index import Combine
from shardproof.models.sources.training import build_step
from shardproof.models.sources.zoo import TINY, ZOO, build

pytestmark = pytest.mark.gpu


def host(array: object) -> np.ndarray:
    import cupy

    return np.asarray(cupy.asnumpy(array))


def compare(graph: Graph, relative: float, stored: bool = False) -> None:
    """One process on the GPU against one process of NumPy."""
    import cupy

    values = random_inputs(graph, 5, None if stored else "float64")
    expected, found = run_graph(graph, values, stored=stored), run_graph(graph, values, cupy, stored=stored)
    for name, array in expected.items():
        np.testing.assert_allclose(host(found[name]), array, rtol=relative, atol=relative / 10, err_msg=name)


@pytest.mark.parametrize("name", sorted(ZOO))
def test_a_model_forward(name: str) -> None:
    compare(build(name, **TINY[name]), 1e-9)


@pytest.mark.parametrize("name", sorted(set(ZOO) - WITHOUT_LOSS))
def test_a_training_step(name: str) -> None:
    compare(build_step(build(name, **TINY[name]), "adam").graph, 1e-8)


@pytest.mark.parametrize("name", ["bert-tiny", "llama", "moe", "vit", "dlrm"])
def test_a_training_step_in_bfloat16(name: str) -> None:
    """Every tensor in its own type.  A sum in another order may round to the other neighbour, once or twice."""
    options = {k: v for k, v in TINY[name].items() if k != "dtype"}
    compare(build_step(build(name, **options), "adam", precision="bf16-mixed").graph, 2.0**-5, stored=True)


@pytest.mark.parametrize("name", ["bert-tiny", "llama", "moe", "vit", "dlrm", "conv-stack", "rnnlm"])
def test_a_plan_on_eight_virtual_ranks(name: str) -> None:
    """Every rank a thread, all on one GPU."""
    import cupy

    graph = build_step(build(name, **TINY[name]), "adam").graph
    planned = plan_graph(graph, free_links(), space("complete,uneven"), limit=limited(5))
    assert planned.plan is not None
    values = random_inputs(graph, 5)
    found = run_virtual(lower(graph, (2, 4), planned.plan.choices), values, cupy).outputs
    for output, expected in run_graph(graph, values).items():
        np.testing.assert_allclose(host(found[output]), expected, rtol=1e-8, atol=1e-9, err_msg=output)


@pytest.mark.mpi
@pytest.mark.parametrize(
    "options",
    [
        ("bert-tiny", "--batch", "4"),
        ("bert-tiny", "--batch", "4", "--train", "adam"),
        ("bert-tiny", "--batch", "4", "--train", "adam", "--precision", "bf16-master"),
        ("bert-tiny", "--batch", "4", "--train", "adam", "--attention", "fused"),
    ],
    ids=["forward", "training", "bf16", "fused-attention"],
)
def test_four_mpi_ranks_on_one_gpu(options: tuple[str, ...], tmp_path: Path) -> None:
    """Through pinned host memory: NCCL wants a GPU for each rank."""
    shardproof = [sys.executable, "-m", "shardproof"]
    plan = str(tmp_path / "p.spz")
    subprocess.run([*shardproof, "plan", *options, "--machine", "localhost:4", "-o", plan], check=True, timeout=120)
    ran = subprocess.run(
        [*shardproof, "run", plan, "-n", "4", "--backend", "cupy", "--trace", str(tmp_path / "t.json")],
        check=False,
        capture_output=True,
        text=True,
        timeout=120,
        env=os.environ,
    )
    assert ran.returncode == 0, ran.stdout + ran.stderr
    assert ": equal" in ran.stdout
    assert "cupy" in ran.stdout


class Alone:
    """The bootstrap of a group of one."""

    def share(self, group: tuple[int, ...], identifier: object) -> object:
        return identifier


def test_nccl_itself_takes_every_request_of_a_group_of_one() -> None:
    """One GPU holds one NCCL rank: names, types and pointers are right; that several ranks agree needs several GPUs."""
    import cupy

    nccl = nccl_module()
    if nccl is None:
        pytest.skip("CuPy has no NCCL here")
    transport, alone = NcclTransport(0, Alone(), cupy, nccl), (0,)
    for dtype in ("float32", "float64", "float16", "int64", "uint8"):
        mine = cupy.arange(6).astype(dtype)
        for combine in (Combine.SUM, Combine.MAX, Combine.MIN):
            np.testing.assert_array_equal(host(transport.all_reduce(alone, mine, combine)), host(mine))
            np.testing.assert_array_equal(host(transport.reduce_scatter(alone, mine[None], combine)), host(mine))
            np.testing.assert_array_equal(host(transport.reduce(alone, 0, mine, combine)), host(mine))
        np.testing.assert_array_equal(host(transport.all_gather(alone, mine)), host(mine)[None])
        np.testing.assert_array_equal(host(transport.all_gather(alone, mine, (6,))), host(mine))
        np.testing.assert_array_equal(host(transport.reduce_scatter(alone, mine, Combine.SUM, (6,))), host(mine))
        held = transport.start(AllReduce(alone, mine, Combine.SUM))
        later = mine * 2  # queued beside it
        np.testing.assert_array_equal(host(held.wait()), host(mine))
        np.testing.assert_array_equal(host(later), 2 * host(mine))
