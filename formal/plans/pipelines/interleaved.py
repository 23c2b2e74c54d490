"""One number of groups, micro-batches and chunks: its lower bound over all cuts into chunks.

Chunk c lies on view c mod S.  Leaves are those of S stages with as many micro-batches: a leaf knows its view and its
micro-batch only, so the case with one chunk a view and all with several share them, and the tables.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from ....models.pipelines.interleaved import Shape, weighted_bound
from ....models.pipelines.pieces import Pieces
from ....models.text import InputError
from ....proofs.pipelines.certificate import Interleaved, Leaf
from ...selection.model.clock import Clock
from .bounded import NO_STEP
from .case import Case
from .weights import weigh


@dataclass(eq=False)
class InterleavedCase(Case):
    """`chunks` on each of `stages` views; `base`: the case with one; `weights`: of the bound."""

    base: Case | None = None
    weights: tuple[int, ...] = ()
    coarse_weights: tuple[int, ...] = ()
    known: int = field(default=-1, repr=False)

    def __post_init__(self) -> None:
        super().__post_init__()
        self.leaves, self.passes = self.home.leaves, self.home.passes
        self.weighed, self.channels, self.tried = self.home.weighed, self.home.channels, self.home.tried

    @property
    def home(self) -> Case:
        """See `Case`."""
        return self if self.base is None else self.base

    @property
    def pieces(self) -> Pieces:
        """Those of the case with one chunk a view."""
        return super().pieces if self.base is None else self.base.pieces

    @property
    def node_pieces(self) -> Pieces:
        """Those of the case with one chunk a view."""
        return super().node_pieces if self.base is None else self.base.node_pieces

    def forget(self) -> None:
        """Give the tables back."""
        super().forget()
        if self.base is not None:
            self.base.forget()

    @property
    def shape(self) -> Shape:
        """What the bound is about."""
        return Shape(self.stages, self.chunks, self.micro)

    def update_bound(self, most: int) -> None:
        """The bound again, after leaves came in; weights are looked for anew where no plan is better yet."""
        count = len(self.leaves) + len(self.passes) + len(self.weighed)
        if count == self.known:
            return
        self.known = count
        known, hops = self.passes_known(self.bounds()), self.hops()
        if self.weights:
            self.bound = max(self.bound, weighted_bound(known, hops, self.shape, self.weights))
            if self.bound >= most:
                return
        found = weigh(known, hops, self.shape)
        self.begins = found.cuts or self.begins
        self.starts = self.begins[0] if self.begins else ()
        if found.bound > self.bound or not self.weights:
            self.bound, self.weights = max(self.bound, found.bound), found.weights

    def claim(self, coarse: bool) -> Interleaved:
        """What is claimed; `coarse`: that least work says enough."""
        return Interleaved(self.stages, self.micro, self.chunks, self.coarse_weights if coarse else self.weights)

    def look(self, clock: Clock, most: int = NO_STEP) -> None:
        """A look at the case with one chunk a view: leaves are the same."""
        self.looked = True
        if self.base is None:
            super().look(clock, most)
        elif not self.base.looked:
            self.base.look(clock)

    def _solved(
        self, pieces: Pieces, run: tuple[int, int], times: int, once: bool, phase: str, clock: Clock
    ) -> Leaf | None:
        known = self.passes.get((*run, phase)) if phase else self.leaves.get((*run, times, once))
        if pieces.channels is not None:
            known = self.weighed.get((*run, times, once, phase, pieces.channels), (None, 0, 0))[0]
        if known is not None and (pieces.joined or not known.nodes):
            return known
        return super()._solved(pieces, run, times, once, phase, clock)


def interleaved_case(base: Case, chunks: int) -> InterleavedCase:
    """The case with several chunks a view; `InputError` where there are too few units."""
    if base.stages < 2:
        raise InputError("--pipeline: chunks go around several stages; with one there is nothing to interleave")
    units = base.job.division.units
    if base.stages * chunks > units:
        raise InputError(
            f"--pipeline: {base.job.graph.name} has {units} units, too few for {base.stages} times {chunks} chunks"
        )
    return InterleavedCase(base.job, base.stages, base.micro, chunks=chunks, base=base)
