"""What `plan` is asked, on the command line and in Python: every option once, with what it is where it is not given.

Texts are as users write them; `PlanRequest.of` and `freedoms_of` read them.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import KW_ONLY, dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from ...models.joint.rules import MOST_NODES, ROUNDS
from ...proofs.joint.books import Book, Rewrites
from ...proofs.rewrites.plain import DEFAULTS

if TYPE_CHECKING:
    from ...models.machine.machine import Machine
    from ...models.sources.load import Attention
    from ..explain.request import Splits
    from ..selection.question import Engine


@dataclass(frozen=True)
class Job:
    """A model on a machine.  `model`: what a command line takes, or an object; `batch`: its size; `compare`: whether an
    import is run beside its source; `memory`: bytes of a device; `space_name`: the placements that are searched.
    """

    model: object
    machine: Machine | str
    _: KW_ONLY
    batch: int | None = None
    compare: bool = True
    memory: int | str | None = None
    space_name: str | None = None


@dataclass(frozen=True, kw_only=True)
class RewriteOptions:
    """Which rewrites a search uses: libraries (none: those that come along), how often all are tried, how many
    operators they add, in how many seconds (None: a share of the limit).
    """

    rules: tuple[Path | str, ...] = ()
    rewrite_rounds: int = ROUNDS
    rewrite_nodes: int = MOST_NODES
    rewrite_time: float | None = None

    def rewrites(self, open_book: Callable[[Path], Book]) -> Rewrites:
        """The same with the libraries opened."""
        books = tuple(open_book(Path(where)) for where in self.rules or DEFAULTS)
        return Rewrites(books, self.rewrite_rounds, self.rewrite_nodes, self.rewrite_time)


@dataclass(frozen=True, kw_only=True)
class StepOptions:
    """A training step: optimizer, loss, what its backward pass computes again, what is in 16 bits."""

    train: str | None = None
    loss: str | None = None
    recompute: str = "none"
    precision: str | None = None


@dataclass(frozen=True)
class PlanOptions(RewriteOptions, StepOptions, Job):
    """See `shardproof.plan`."""

    _: KW_ONLY
    micro_batch: int | str = 1
    vocabulary: str | None = None
    attention: Attention | None = None
    strategy: Path | str | Splits | None = None
    joint: bool = False
    views: bool = False
    overlap: bool = False
    stages: str | None = None
    interleave: int = 1
    best: bool = False
    without: tuple[str, ...] = ()
    engine: Engine = "native"
    threads: int = 2

    def rewrites(self, open_book: Callable[[Path], Book]) -> Rewrites:
        """What a joint search may use; nothing is read where none is asked for."""
        if self.joint or (self.best and "rewrites" not in self.without):
            return super().rewrites(open_book)
        return Rewrites(none=True)
