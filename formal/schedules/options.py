"""What `schedule` is asked, on the command line and in Python: every option once."""

from __future__ import annotations

from dataclasses import KW_ONLY, dataclass
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from .engines.request import Engine


@dataclass(frozen=True)
class ScheduleOptions:
    """A `graph` of operators and collectives; or a pipeline: its stages, micro-batches, `times` of a stage, time of a
    `send`, most activations that a stage keeps (`memory`), and the best schedule or a published one (`kind`).
    """

    graph: Path | str | None = None
    _: KW_ONLY
    stages: int | None = None
    micro_batches: int | None = None
    times: str | None = None
    send: int = 0
    memory: int | None = None
    kind: str = "best"
    engine: Engine = "native"
    machine: str | None = None
