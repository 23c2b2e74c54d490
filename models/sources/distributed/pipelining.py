"""Lets schedules of `torch.distributed.pipelining` run as one rank alone: before a first step all ranks vote whether
every stage knows the shapes that it sends, and read on the host what the others have said.

Here a stage that knows them goes on as if all did, which is what each of the others is asked in its own turn; one that
does not is refused by name.  The messages of the vote, which all stages send along the pipeline and back, are left out.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch

from ...equality.captured import Unreadable

VOTES = ("_warmup_forward_vote", "_warmup_backward_result")


@contextmanager
def voting_alone() -> Iterator[None]:
    """While it is entered, stages do not ask one another; of versions of PyTorch that have no vote nothing changes."""
    try:
        from torch.distributed.pipelining import stage as stages
    except ImportError:
        yield
        return
    kind, mode = stages.PipelineStage, getattr(stages, "InferenceMode", None)
    known = {name: getattr(kind, name) for name in VOTES if hasattr(kind, name)}
    if mode is None or len(known) != len(VOTES):
        yield
        return

    def vote(stage: Any, has_backward: bool, received_acc: torch.Tensor | None = None) -> torch.Tensor:
        if mode.needs_dynamic(stage._user_meta, has_backward):
            raise Unreadable(
                f"stage {stage.stage_index} asks its neighbours for shapes: give PipelineStage input_args and"
                " output_args, with requires_grad as they come"
            )
        return torch.ones(1, dtype=torch.int32)

    try:
        kind._warmup_forward_vote = vote
        kind._warmup_backward_result = lambda stage, received_result=None: torch.ones(1, dtype=torch.int32)
        yield
    finally:
        for name, method in known.items():
            setattr(kind, name, method)
