"""Which blocks to compute again when memory is short: plans of several candidate graphs, the cheapest
that fits.

    candidate k      the training step whose first k blocks are recomputed in the reverse pass       (k = 0: none, n:
                     all)
    order            0, unless its tensors are more than the memory of all devices (`least_bytes`): then it has no room;
                     unless 0 is proved to be the best even without rows: n; then halving the interval: towards
                     fewer where the smaller end does not fit, else towards the cheaper end

Under a time limit the plain step gets half of the time at least, the next half of what is left, and so on: a search
that was given a seventh found nothing but what always exists (BERT-Large at 4 GiB: 1.44 s after 7 s, 104.6 ms after 25
s).  Candidates that close leave the rest to the others.

Every candidate is a graph of its own with a certificate of its own.  The claim of the answer is about its graph, which
names the blocks; that no other set of blocks would be cheaper is not proved.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import accumulate
from math import ceil, log2
from typing import Final

from ...models.problem.selection_problem import SelectionProblem
from ...models.program.graph import Graph, Role
from ...models.sources.training import TrainingStep
from ..selection.model.clock import Clock
from .plan import Planned
from .tried import CandidateOutcome, best_without_rows

LEAST_SHARE: Final = 0.5
"""Of the time that is left, what a candidate gets at least."""

BEGIN_SHARE: Final = 0.1
"""Of the time limit: with less than that no other candidate is begun, as it could only be worse."""


@dataclass(frozen=True)
class Attempt:
    """One candidate: `blocks` of `of` recomputed."""

    blocks: int
    of: int
    tried: CandidateOutcome

    def to_json(self) -> dict[str, object]:
        """Plain data; times in units of 1/scale."""
        return {
            "recomputed_blocks": self.blocks,
            "of": self.of,
            **self.tried.to_json(),
        }


@dataclass(frozen=True, eq=False)
class Chosen:
    """The cheapest candidate that fits; without one, the last that was tried (its problem says what is too small)."""

    planned: Planned
    step: TrainingStep
    attempts: tuple[Attempt, ...]


def least_bytes(graph: Graph) -> int:
    """Bytes that all devices together hold at the fullest step, at least, wherever everything is placed: parameters,
    and every value from the step of its writer to that of its last reader (`models.cost.memory`).

    >>> from ...models.sources.zoo import build
    >>> least_bytes(build("mlp-unity"))
    1888256
    """
    end, readers, writer = len(graph.operators), graph.readers(), graph.writer()
    following, change = {value for _, value in graph.state}, [0] * (end + 1)
    for t in graph.tensors:
        uses = [i for i, _ in readers[t.name]]
        start, last = writer.get(t.name, 0), end
        if t.name in writer and t.name not in graph.outputs:
            last = start + 1 if t.name in following else max([i + 1 for i in uses], default=start + 1)
        if t.name in writer or (t.role is Role.PARAMETER and uses):
            change[start] += t.elements * t.element_bytes
            change[last] -= t.elements * t.element_bytes
    return max(accumulate(change))


def plan_with_checkpointing(
    names: tuple[str, ...],
    make: Callable[[str], TrainingStep],
    plan: Callable[[Graph, float | None], Planned],
    time_limit_s: float | None,
    clock: Clock | None = None,
    room: int | None = None,
) -> Chosen:
    """Try candidates.  `make`: step for a `--recompute` text; `plan`: plan of a graph within some seconds; `clock`:
    one that runs already; `room`: bytes of all devices together, if that is limited.
    """
    clock, n = (clock or Clock()).at_most(time_limit_s), len(names)
    known: dict[int, tuple[Planned, TrainingStep]] = {}
    attempts: list[Attempt] = []
    most = 2 + max(0, ceil(log2(max(1, n))))

    def attempt(k: int) -> int | None:
        step = make(",".join(names[:k]) if k else "none")
        seconds = (
            None
            if clock.limit_s is None
            else max(0.0, clock.remaining_s() * max(LEAST_SHARE, 1 / max(1, most - len(attempts))))
        )
        planned = plan(step.graph, seconds)
        known[k] = planned, step
        attempts.append(Attempt(k, n, CandidateOutcome.of(planned)))
        return planned.answer.cost

    def time_enough() -> bool:
        return clock.limit_s is None or clock.remaining_s() > BEGIN_SHARE * clock.limit_s

    least = None
    if n and room is not None and least_bytes(make("none").graph) > room:
        attempts.append(Attempt(0, n, CandidateOutcome("infeasible", None, None, None)))
    else:
        least = attempt(0)
    if n and (0 not in known or not best_without_rows(known[0][0])):
        most_cost = attempt(n)
        low, high = 0, n
        while high - low > 1 and time_enough() and (least is not None or most_cost is not None):
            middle = (low + high) // 2
            cost = attempt(middle)
            if cost is None or (least is not None and (most_cost is None or most_cost < least)):
                low, least = middle, cost
            else:
                high, most_cost = middle, cost
    fitting = [k for k, (planned, _) in known.items() if planned.answer.cost is not None]
    best = min(fitting, key=lambda k: (known[k][0].answer.cost or 0, k)) if fitting else attempts[-1].blocks
    return Chosen(*known[best], tuple(attempts))


def render_attempts(attempts: Sequence[Attempt], problem: SelectionProblem) -> list[str]:
    """What was tried, in the order of the number of blocks; `problem`: any of theirs, for the unit of costs."""
    lines = []
    for a in sorted(attempts, key=lambda a: a.blocks):
        lines.append(f"  {a.blocks} of {a.of} blocks with activation checkpointing: {a.tried.words(problem)}")
    return lines
