"""What DTensor chooses for operators is kept from one captured rank to the next, and no rank's own place with it."""

from __future__ import annotations

import pytest

torch = pytest.importorskip("torch")

from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.tensor import DTensor, Replicate, Shard, distribute_tensor

from shardproof.models.equality.captured import Captured
from shardproof.models.sources.distributed import choices
from shardproof.models.sources.distributed.capture import capture

pytestmark = pytest.mark.torch


def step(rank: int, ranks: int) -> object:
    """A layer on a 2 x 2 mesh: seven rows and five columns, which no two ranks share evenly."""
    generator = torch.Generator().manual_seed(0)
    mesh = init_device_mesh("cpu", (2, 2), mesh_dim_names=("data", "tensor"))
    x = distribute_tensor(torch.randn(7, 6, generator=generator), mesh, [Shard(0), Replicate()])
    w = nn.Parameter(distribute_tensor(torch.randn(6, 5, generator=generator), mesh, [Replicate(), Shard(1)]))

    def f(x: DTensor) -> dict[str, torch.Tensor]:
        y = (x @ w).relu().view(7, 5, 1).sum(0)
        y.square().sum().backward()
        return {"y": y, "w": w.grad}

    return f, (x,)


def weighed(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """How many choices every operator has, as they are weighed."""
    from torch.distributed.tensor import _sharding_prop as inner

    found, select = list[int](), inner._select_min_cost_strategy

    def noting(strategy: object, schema: object = None) -> object:
        found.append(len(strategy.strategies))
        return select(strategy, schema)

    monkeypatch.setattr(inner, "_select_min_cost_strategy", noting)
    return found


def captured(rank: int) -> Captured:
    return capture(step, rank, 4, False)


def test_programs_are_those_of_ranks_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    alone = []
    for rank in range(4):
        choices._kept.clear()
        alone.append(captured(rank))
    choices._kept.clear()
    many = weighed(monkeypatch)
    together = [captured(0)]
    first = sum(n > 1 for n in many)
    together += [captured(rank) for rank in range(1, 4)]
    assert first and sum(n > 1 for n in many) == first, "the other ranks are told"
    for a, b in zip(alone, together, strict=True):
        assert (a.program, a.inputs, a.outputs) == (b.program, b.inputs, b.outputs)
    assert len({c.program for c in together}) > 1, "ranks have other parts"


def test_meshes_of_other_sizes_and_other_numbers_choose_anew() -> None:
    choices._kept.clear()
    captured(0)
    kept = len(choices._kept)
    captured(1)
    assert len(choices._kept) == kept

    def other(rank: int, ranks: int) -> object:
        mesh = init_device_mesh("cpu", (4, 1), mesh_dim_names=("data", "tensor"))
        x = distribute_tensor(torch.ones(7, 6), mesh, [Shard(0), Replicate()])
        return lambda x: x.relu().full_tensor(), (x,)

    capture(other, 0, 4, False)
    assert len(choices._kept) > kept
    assert choices._words(1) != choices._words(1.0) != choices._words(True)


def test_a_strategy_that_a_job_registers_is_asked(monkeypatch: pytest.MonkeyPatch) -> None:
    """DTensor knows `relu`; a job that lists other placements for it is not given the choice of one that did not."""
    from torch.distributed.tensor._op_schema import OpSpec, OpStrategy

    propagator, relu = DTensor._op_dispatcher.sharding_propagator, torch.ops.aten.relu.default
    single, whole = choices._tables(propagator)
    choices._kept.clear()
    before = captured(0).program
    asked = 0

    def whole_only(schema: object) -> OpStrategy:
        """Relu of a whole tensor alone."""
        nonlocal asked
        asked += 1
        given = schema.args_schema[0].strategies[0].output_spec  # type: ignore[attr-defined]
        spec = type(given)(given.mesh, (Replicate(),) * given.mesh.ndim, tensor_meta=given.tensor_meta)
        strategies = schema.args_schema[0].strategies  # type: ignore[attr-defined]
        return OpStrategy([OpSpec(spec, (spec,), [[0.0] * len(strategies)])])

    monkeypatch.delitem(single, relu, raising=False)
    monkeypatch.setitem(whole, relu, whole_only)
    after = captured(0).program
    assert asked and after != before
    choices._kept.clear()
    assert captured(0).program == after
