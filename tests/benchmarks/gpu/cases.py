"""The cases of `gpu.models.STEPS` as programs that `shardproof plan FILE.py:NAME` reads: gpt2_8_1024 is gpt2 with 8 rows
of 1,024 positions, in bfloat16.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path

import torch
from torch import nn

sys.path.insert(0, str(Path(__file__).parents[1]))

from gpu.models import STEPS, language


def case(name: str, batch: int, positions: int) -> Callable[[], tuple[nn.Module, tuple[torch.Tensor, torch.Tensor]]]:
    """A factory of one model and its example inputs."""

    def make() -> tuple[nn.Module, tuple[torch.Tensor, torch.Tensor]]:
        ids = torch.randint(0, STEPS[name][0][5], (batch, positions))
        return language(name).bfloat16(), (ids, ids.clone())

    return make


for _name, (_, _cases) in STEPS.items():
    for _batch, _positions in _cases:
        globals()[f"{_name.replace('-', '_')}_{_batch}_{_positions}"] = case(_name, _batch, _positions)
