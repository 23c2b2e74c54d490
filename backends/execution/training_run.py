"""A run of many steps: where it begins, what feeds it, which result is its loss, and what one process makes of it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Literal

import numpy as np

from ...models.program.graph import Graph
from ..kernels import Array
from ..lowering.numbered import at_step, check_trains
from . import checkpoint
from .array_files import known_values
from .checkpoint import Origin
from .feed import Feed, Maker, fed, first_values, given_values
from .held import Blocks
from .provenance import rounds
from .reference import as_stored, run_graph

if TYPE_CHECKING:
    from ...proofs.publishing.publisher import Opened

Numbers = Literal["float64", "float32", "own"]
"""Element types of a run: of all reals, or every tensor in its own type."""


@dataclass(frozen=True)
class StepDone:
    """A step that all ranks have done.  `loss`: None where the program has none; `seconds`: from its data to its end;
    `saved`: where the state behind it was written.
    """

    step: int
    loss: float | None
    seconds: float
    saved: str | None = None


@dataclass(frozen=True, eq=False)
class StartState:
    """Where a run begins: behind step number `step`.  `graph`: what one process runs; `state`: tensors that last,
    whole, as ranks keep them; `ranks`: what every rank held under this very plan, or nothing.
    """

    graph: Graph
    origin: Origin
    feed: Feed
    step: int
    state: Mapping[str, Array]
    ranks: tuple[Blocks, ...] = field(default=(), repr=False)

    @property
    def has_graph_types(self) -> bool:
        """Whether blocks have the types of the graph."""
        return self.origin.numbers == "own"

    @property
    def loss(self) -> str | None:
        """The scalar output called `loss`, else the first one."""
        scalars = [n for n in self.graph.outputs if self.graph.tensor(n).shape == ()]
        return "loss" if "loss" in scalars else next(iter(scalars), None)

    @property
    def no_loss(self) -> str | None:
        """Why there is none."""
        shapes = ", ".join(f"{n!r} {self.graph.tensor(n).shape}" for n in self.graph.outputs[:5])
        return None if self.loss is not None else f"no output of the program is a number: {shapes or 'it has none'}"

    @property
    def examples(self) -> int | None:
        """The first extent that all data has in common."""
        shapes = [t.source_shape or t.shape for t in map(self.graph.tensor, fed(self.graph))]
        firsts = {s[0] for s in shapes if s}
        return firsts.pop() if len(firsts) == 1 else None


def begin(
    found: Opened,
    place: str,
    *,
    seed: int = 0,
    numbers: Numbers | None = None,
    data: str = "",
    make: Maker | None = None,
    inputs: Path | None = None,
    resume: Path | None = None,
) -> StartState:
    """Where a run of a plan's steps begins.  `data`, `make`: see `Feed`; `inputs`: an `.npz` file with values of
    parameters, and of the inputs of every step where there is no data; `resume`: a folder of checkpoints, whose seed
    and numbers are taken.  `place`: what errors call the plan.

    Raises `InputError` for a plan without a training step, and whatever does not fit the model, before any step.
    """
    graph = found.user_graph
    check_trains(graph, place)
    kept = None if resume is None else checkpoint.load(resume, graph)
    if kept is not None:
        checkpoint.check_goes_on(kept, numbers, bool(data) or make is not None)
        numbers, seed = "own" if kept.origin.numbers == "own" else _named(kept.origin.numbers), kept.origin.seed
    numbers = numbers or ("own" if rounds(graph) else "float64")
    stored, dtype = numbers == "own", None if numbers == "own" else numbers
    same = str(inputs) if inputs is not None and not data and make is None else ""
    feed = Feed(graph, seed, dtype, stored, data, same, make).absolute()
    origin = Origin(graph.sha256(), graph.name, found.identity, numbers, seed, feed.is_random)
    done = 0 if kept is None else kept.step
    feed.at(done + 1)  # what does not fit is refused now
    if kept is not None:
        same_plan = kept.origin.plan == found.identity and len(kept.ranks) == found.held.machine.devices
        return StartState(graph, origin, feed, done, kept.whole, kept.ranks if same_plan else ())
    state = first_values(graph, seed, dtype) if inputs is None else given_values(inputs, graph, dtype)
    return StartState(graph, origin, feed, done, as_stored(graph, state) if stored else state)


def _named(numbers: str) -> Numbers:
    return "float32" if numbers == "float32" else "float64"


def base_of(begun: StartState) -> dict[str, Array]:
    """What ranks begin with, whole: the state, and constants of the program."""
    known = known_values(begun.graph, None if begun.has_graph_types else begun.origin.numbers)
    return {**begun.state, **(as_stored(begun.graph, known) if begun.has_graph_types else known)}


def in_one_process(begun: StartState, last: int) -> tuple[Graph, dict[str, Array], dict[str, Array]]:
    """(program, what is given to it, its results) of step `last`, when one process does all steps."""
    state = dict(begun.state)
    inputs: dict[str, Array] = {}
    found: dict[str, Array] = {}
    graph = begun.graph
    for number in range(begun.step + 1, last + 1):
        inputs, graph = {**state, **begun.feed.at(number)}, at_step(begun.graph, number)
        found = run_graph(graph, inputs, stored=begun.has_graph_types)
        state |= {name: found[value] for name, value in graph.state}
    return graph, inputs, found


def scalar_of(whole: Mapping[str, Array], name: str | None) -> float | None:
    """The loss among results."""
    return None if name is None else float(np.asarray(whole[name]))


def is_due(step: int, last: int, every: int | None) -> bool:
    """Whether the state is written behind a step: the last one, and every so many.

    >>> [n for n in range(1, 8) if is_due(n, 7, 3)]
    [3, 6, 7]
    """
    return step == last or (every is not None and step % every == 0)
