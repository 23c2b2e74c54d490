"""Verb `equal` of exported torchtitan settings: its Llama, cut by tensors and FSDP2 as the file does it, takes a step of
AdamW as one device does; without its part of the batch a rank does not.
"""

from __future__ import annotations

import importlib.util
import sys
from dataclasses import replace
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

torch = pytest.importorskip("torch")

from export_cases import MACHINE
from torch.nn import functional as F

import shardproof
from shardproof.backends.export.torchtitan import torchtitan_file
from shardproof.front_door import FrontDoor
from shardproof.models.layout.targets.degrees import Flags
from shardproof.models.sources import zoo
from shardproof.models.sources.training import build_step

pytestmark = [pytest.mark.torch, pytest.mark.slow]
SIZES = {"layers": 1, "width": 32, "heads": 4, "kv_heads": 2, "hidden": 64, "vocabulary": 64, "theta": 500_000}
TOKENS, WANTED = torch.randint(0, 64, (2, 2, 32), generator=torch.Generator().manual_seed(1))


@pytest.fixture(scope="module")
def layout(tmp_path_factory: pytest.TempPathFactory) -> ModuleType:
    """The module of an exported file: two ranks of tensor parallelism by two of FSDP2."""
    folder = tmp_path_factory.mktemp("titan")
    (folder / "m.toml").write_text(MACHINE.format(nodes=2, rate="0.2"))
    graph = build_step(zoo.build("llama", batch=2, dtype="float32", sequence=32, **SIZES), "adamw").graph
    plan = shardproof.plan(graph, str(folder / "m.toml"), space_name="one-per-level", work_limit=20_000_000)
    plan.save(folder / "p.spz")
    best = FrontDoor().nearest(FrontDoor().open(folder / "p.spz"), "torchtitan", 200.0)
    flags = Flags("torchtitan", tp=2, sequence_parallel=True, zero=3)
    (folder / "titan.py").write_text(torchtitan_file(replace(best, flags=flags), 2))
    spec = importlib.util.spec_from_file_location("titan", folder / "titan.py")
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules["titan"] = module
    spec.loader.exec_module(module)
    return module


def net() -> Any:
    sys.path.insert(0, str(Path(__file__).parent / "torch_models"))
    try:
        import titan_llama
    finally:
        sys.path.pop(0)
    torch.manual_seed(0)
    made = titan_llama.Transformer(**SIZES)
    with torch.no_grad():
        for p in made.parameters():
            p += torch.rand(p.shape) / 2 * (p.ndim == 1)
    return made


def step(model: Any) -> Any:
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3, eps=1e-4, foreach=False)

    def f(tokens: torch.Tensor, wanted: torch.Tensor) -> dict[str, torch.Tensor]:
        F.cross_entropy(model(tokens).flatten(0, 1), wanted.flatten()).backward()
        optimizer.step()
        return dict(model.named_parameters())

    return f


def single() -> Any:
    return step(net()), (TOKENS, WANTED)


@pytest.mark.parametrize("cut", [True, False], ids=["its part", "the first rows"])
def test_torchtitans_llama_takes_the_step_of_one_device(layout: ModuleType, cut: bool) -> None:
    def job(rank: int, ranks: int) -> Any:
        mesh = layout.make_mesh("cpu")
        model = layout.parallelize(net(), mesh)
        mine = [layout.batch_of(x, mesh).clone() if cut else x[:1].clone() for x in (TOKENS, WANTED)]
        return step(model), tuple(mine)

    found = shardproof.equal(single, job, ranks=4)
    assert found.answer == ("equal" if cut else "different"), str(found)
    assert len(found.outputs) == 4 * len(dict(net().named_parameters()))
