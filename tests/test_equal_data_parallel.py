"""Verb `equal`: training steps of FSDP2 and DistributedDataParallel as they run, right and wrong; what they pack into flat
buffers; memory that they give back.
"""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

torch = pytest.importorskip("torch")

import equality_data_parallel as jobs
import equality_job
import numpy as np
import torch.distributed as dist

import shardproof
from shardproof.__main__ import run as command
from shardproof.formal.equality.numbers import run_ranks
from shardproof.models.sources.distributed.capture import Unreadable, capture

pytestmark = pytest.mark.torch
FILE = Path(jobs.__file__)
CASES = [
    (one, job, ranks, verdict)
    for one, right, wrong, ranks in jobs.FAMILIES
    for verdict, many in (("equal", right), ("different", wrong))
    for job in many
]


@pytest.mark.parametrize(
    ("one", "job", "ranks", "verdict"), CASES, ids=[f"{job.__name__}-{ranks}" for _, job, ranks, _ in CASES]
)
def test_steps(
    one: Any, job: Any, ranks: int, verdict: str, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    certificate = tmp_path / "c.spz"
    words = [f"{FILE}:{one.__name__}", f"{FILE}:{job.__name__}", "--ranks", str(ranks), "-o", str(certificate)]
    code = command(["equal", *words, "--json"])
    found = json.loads(capsys.readouterr().out)
    assert (code, found["verdict"]) == ({"equal": 0, "different": 10}[verdict], verdict), found["reason"]
    if verdict == "equal":
        assert command(["check", str(certificate)]) == 0
    else:
        assert found["output"].startswith("output.") and not certificate.exists()


GLOO = ("ddp", "ddp_accumulated", "ddp_hook", "ddp_inner", "ddp_last_unreduced", "small_ddp")


def test_buckets_give_what_gloo_ranks_give(tmp_path: Path) -> None:
    """Whole steps beside two real ranks."""
    words = [sys.executable, equality_job.__file__]
    running = [
        subprocess.Popen([*words, str(r), "2", str(tmp_path / "store"), str(tmp_path), *GLOO], stderr=subprocess.PIPE)
        for r in range(2)
    ]
    try:
        said = [process.communicate(timeout=300)[1].decode()[-2000:] for process in running]
    finally:
        for process in running:
            process.kill()
    assert [p.returncode for p in running] == [0, 0], said
    real = [np.load(tmp_path / f"{r}.npz") for r in range(2)]
    for case in GLOO:
        held = [capture(getattr(jobs, case), r, 2, False) for r in range(2)]
        given = [
            {n: np.asarray(a, np.float64) if a.dtype.kind == "f" else a for n, a in h.arrays.items()} for h in held
        ]
        values = run_ranks([h.program for h in held], given)
        for rank, h in enumerate(held):
            for name, number in h.program.outputs:
                assert np.allclose(values[rank][number], real[rank][f"{case}/{name}"], rtol=1e-4, atol=1e-5), (
                    case,
                    name,
                )


def _freed(x: torch.Tensor) -> torch.Tensor:
    y = x * 2
    size = y.untyped_storage().size()
    y.untyped_storage().resize_(0)
    y.untyped_storage().resize_(size)
    return y + 0


def _freed_and_written(x: torch.Tensor) -> torch.Tensor:
    y = x * 2
    size = y.untyped_storage().size()
    y.untyped_storage().resize_(0)
    y.untyped_storage().resize_(size)
    y.view(-1).copy_(x.reshape(-1))
    return y + 0


def _freed_and_written_in_part(x: torch.Tensor) -> torch.Tensor:
    y = x * 2
    size = y.untyped_storage().size()
    y.untyped_storage().resize_(0)
    y.untyped_storage().resize_(size)
    y[:1].copy_(x[:1])
    return y + 0


def test_what_is_given_back_is_not_read() -> None:
    x = torch.ones(2, 3)
    for read in (_freed, _freed_and_written_in_part):
        with pytest.raises(Unreadable, match="given back"):
            capture(lambda read=read: (read, (x,)), None, 1, False)
    assert shardproof.equal(lambda: (lambda x: x + 0, (x,)), lambda r, n: (_freed_and_written, (x,)), ranks=2)


def _beside(write: bool) -> Callable[[torch.Tensor], torch.Tensor]:
    """Two pieces of one buffer that no view operator made of each other."""
    storage = torch.zeros(8)
    pieces = [[[[[storage[:3], storage[2:6]]]]]]  # deeper than sources are looked for

    def f(x: torch.Tensor) -> torch.Tensor:
        one, two = pieces[0][0][0][0]
        one.copy_(x[:3])
        if write:
            two.fill_(5)
        return one + 0

    return f


def test_pieces_of_one_buffer_are_seen_to_overlap() -> None:
    x = torch.arange(4.0) + 1
    held = capture(lambda: (_beside(True), (x,)), None, 1, False)
    values = run_ranks([held.program], [held.arrays])[0]
    assert np.array_equal(values[dict(held.program.outputs)["output"]], [1, 2, 5])


def _asked(op: Any, by_options: bool) -> Callable[[torch.Tensor], torch.Tensor]:
    def f(x: torch.Tensor) -> torch.Tensor:
        x = x.clone()
        if by_options:
            dist.all_reduce(x, op=op)
        else:
            dist.group.WORLD.allreduce([x], op).wait()
        return x

    return f


def test_reductions_are_read_off_what_is_passed_on() -> None:
    x = torch.rand(4) + 1

    def verdict(op: Any, by_options: bool, one: Callable[[torch.Tensor], torch.Tensor]) -> str:
        return shardproof.equal(lambda: (one, (x,)), lambda r, n: (_asked(op, by_options), (x,)), ranks=2).answer

    assert verdict(dist.ReduceOp.MAX, False, lambda x: x * 1) == "equal"
    assert verdict(dist.ReduceOp.SUM, False, lambda x: x * 2) == "equal"
    assert verdict(dist.ReduceOp.AVG, True, lambda x: x * 2) == "different"
    assert verdict(dist.ReduceOp.PREMUL_SUM(0.25), True, lambda x: x / 2) == "equal"
    assert verdict(dist.ReduceOp.PREMUL_SUM(0.25), True, lambda x: x * 2) == "different"
    with pytest.raises(ValueError, match="BXOR"):
        verdict(dist.ReduceOp.BXOR, True, lambda x: x * 1)


def _sharded_pass(rank: int, ranks: int) -> Any:
    """A layer of DTensors whose activations are cut by rows between its products."""
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.tensor import DTensor, Replicate, Shard

    mesh, w = init_device_mesh("cpu", (ranks,)), (torch.arange(36.0).reshape(6, 6) / 36).requires_grad_()

    def f(x: torch.Tensor) -> torch.Tensor:
        whole = DTensor.from_local(x, mesh, [Replicate()], run_check=False)
        weight = DTensor.from_local(w, mesh, [Replicate()], run_check=False)
        rows = torch.tanh(whole @ weight).redistribute(mesh, [Shard(0)])
        return (rows * rows).redistribute(mesh, [Replicate()]).to_local()

    return f, (x_of_ranks(),)


def x_of_ranks() -> torch.Tensor:
    return torch.arange(24.0).reshape(4, 6) / 24 - 0.5


def test_a_rank_is_not_given_the_place_of_the_one_before() -> None:
    """DTensor's caches keep the mesh of the rank that was captured before, whose coordinate is another."""

    def single() -> Any:
        w = (torch.arange(36.0).reshape(6, 6) / 36).requires_grad_()
        return lambda x: torch.tanh(x @ w) ** 2, (x_of_ranks(),)

    found = shardproof.equal(single, _sharded_pass, ranks=2, grad=True)
    assert found, str(found)
    held = [capture(_sharded_pass, r, 2, False) for r in range(2)]
    starts = [dict(s.words)["start"] for h in held for s in h.program.steps if s.operator == "slice"]
    assert starts == [0, 2]


def test_attention_as_one_operator_is_its_parts() -> None:
    """Forward, log sum exp and gradients beside PyTorch's kernel, causal, masked, scaled, and with grouped queries."""
    from torch.nn.attention import SDPBackend, sdpa_kernel

    g = torch.Generator().manual_seed(0)
    many = tuple(torch.randn(2, 4, 5, 4, generator=g) for _ in range(3))
    few = (many[0], *(t[:, :2].clone() for t in many[1:]))
    mask, grouped = torch.randn(5, 5, generator=g), {"enable_gqa": True, "is_causal": True}
    for words in ({}, {"is_causal": True}, {"attn_mask": mask}, {"scale": 0.3}, grouped):
        given = few if words is grouped else many

        def called(q: Any, k: Any, v: Any, words: Any = words) -> torch.Tensor:
            with sdpa_kernel(SDPBackend.FLASH_ATTENTION):
                return torch.nn.functional.scaled_dot_product_attention(q, k, v, **words)

        held = capture(lambda called=called, given=given: (called, given), None, 1, True)
        from shardproof.formal.equality.numbers import run_single

        values = run_single(held.program, held.arrays)
        leaves = [t.clone().requires_grad_() for t in given]
        out = called(*leaves)
        cotangent = next(held.arrays[s.number] for s in held.program.sources if s.name.startswith("cotangent"))
        out.backward(torch.as_tensor(cotangent))
        want = [out.detach(), *(t.grad for t in leaves)]
        for (name, number), theirs in zip(held.program.outputs, want, strict=True):
            assert np.allclose(values[number], theirs, rtol=1e-4, atol=1e-5), (words, name)


def _queries(rank: int, ranks: int, first_group: int = 0) -> Any:
    """A rank's heads with its groups of keys and values, as of a llama under tensor parallelism."""
    from torch.nn.attention import SDPBackend, sdpa_kernel

    g = torch.Generator().manual_seed(0)
    q, k, v = (torch.randn(2, heads, 5, 4, generator=g) for heads in (4, 2, 2))
    heads, groups = 4 // ranks, 2 // ranks

    def called(q: Any, k: Any, v: Any) -> torch.Tensor:
        with sdpa_kernel(SDPBackend.FLASH_ATTENTION):
            return torch.nn.functional.scaled_dot_product_attention(q, k, v, is_causal=True, enable_gqa=True)

    mine = slice((rank + first_group) % 2 * groups, (rank + first_group) % 2 * groups + groups)
    return called, (q[:, rank * heads : (rank + 1) * heads].clone(), k[:, mine].clone(), v[:, mine].clone())


def test_grouped_queries_are_split_by_heads() -> None:
    found = shardproof.equal(lambda: _queries(0, 1), _queries, ranks=2, grad=True)
    assert found, str(found)
    swapped = shardproof.equal(lambda: _queries(0, 1), lambda r, n: _queries(r, n, 1), ranks=2)
    assert swapped.answer == "different" and swapped.output == "output"
