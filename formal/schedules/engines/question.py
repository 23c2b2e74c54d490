"""What an engine is asked about, a shop with the pairs of tasks whose order is open, and the answer
before anybody has looked at it.

Pairs are those of a stream that precedences leave open.  Memory is stated at the starts of tasks that take some, since
only there can it rise:  sum of amounts with  start(first) <= start(t) < latest end of last  is at most the limit.
"""

from __future__ import annotations

from dataclasses import asdict, dataclass

import numpy as np

from ....models.problem.selection_problem import Ints
from ....models.schedules.problem import ScheduleProblem
from ....models.text import InputError
from ..kernels import heads
from ..levels import before_bits
from ..shop import Shop

MOST_PAIRS = 200_000
"""Open pairs that anybody is asked about."""


@dataclass(frozen=True)
class MemoryHold:
    """`amount` of memory `store` from the start of `first` (None: 0) to the latest end of `last` (none: for good)."""

    store: int
    amount: int
    first: int | None
    last: tuple[int, ...]


@dataclass(frozen=True)
class Question:
    """Tasks with times, (before, after, lag), open pairs of every stream, memory; `head` and `tail`: longest paths;
    `most`: a makespan that is known to be possible.
    """

    times: tuple[int, ...]
    links: tuple[tuple[int, int, int], ...]
    streams: tuple[tuple[int, ...], ...]
    pairs: tuple[tuple[int, int], ...]
    held: tuple[MemoryHold, ...]
    limits: tuple[int, ...]
    head: tuple[int, ...]
    tail: tuple[int, ...]
    most: int

    @property
    def takers(self) -> tuple[tuple[int, int], ...]:
        """(task, store): tasks whose start takes memory."""
        return tuple(sorted({(h.first, h.store) for h in self.held if h.first is not None}))

    @property
    def parts(self) -> int:
        """Open pairs, and pairs of a task that takes memory and a holding."""
        stores = [0] * len(self.limits)
        for h in self.held:
            stores[h.store] += 1
        return len(self.pairs) + sum(stores[d] for _, d in self.takers)

    def to_json(self) -> dict[str, object]:
        """The fields."""
        return asdict(self)

    @staticmethod
    def of_json(value: dict[str, list[list[int]]]) -> Question:
        """Inverse of `to_json`, in the process of the engine."""
        fields = {k: tuple(tuple(x) if isinstance(x, list) else x for x in v) for k, v in value.items() if k != "most"}
        held = tuple(MemoryHold(h["store"], h["amount"], h["first"], tuple(h["last"])) for h in value["held"])  # type: ignore[call-overload]
        return Question(**{**fields, "held": held, "most": value["most"]})  # type: ignore[arg-type]


@dataclass(frozen=True)
class Reply:
    """What an engine said: starts (not yet believed), its own words, and the bound that it claims."""

    starts: object
    says: str
    claims: object = None


def question(problem: ScheduleProblem, shop: Shop, most: int, memory: bool) -> Question:
    """What is asked about `problem`, whose arrays are `shop`; without `memory` if the links of these keep the limits.

    >>> from ....models.schedules.pipeline import Pipeline
    >>> from ..shop import shop
    >>> pipe = Pipeline(((1, 1, 1),) * 2, 2, 0, 2)
    >>> asked = question(pipe.problem(), shop(pipe), 9, False)
    >>> len(asked.times), len(asked.pairs), asked.parts
    (12, 6, 6)
    """
    f, b = shop.forward, shop.backward
    bound = [d for d, limit in enumerate(problem.limits) if limit is not None] if memory else []
    place = {d: k for k, d in enumerate(bound)}
    source = np.repeat(np.arange(len(f.at) - 1), np.diff(f.at)).tolist()
    streams = [shop.tasks[shop.tasks_at[s] : shop.tasks_at[s + 1]] for s in range(shop.streams)]
    return Question(
        tuple(shop.times.tolist()),
        tuple(zip(source, f.to.tolist(), f.lag.tolist(), strict=True)),
        tuple(tuple(s.tolist()) for s in streams),
        _open_pairs(shop, streams),
        tuple(
            MemoryHold(place[h.device], h.amount, h.first, h.last)
            for h in problem.holdings
            if h.device in place and h.amount
        ),
        tuple(limit for limit in (problem.limits[d] for d in bound) if limit is not None),
        tuple(heads(f.order, shop.times, f.at, f.to, f.lag).tolist()),
        tuple(heads(b.order, shop.times, b.at, b.to, b.lag).tolist()),
        most,
    )


def _open_pairs(shop: Shop, streams: list[Ints]) -> tuple[tuple[int, int], ...]:
    """Pairs of a stream that links leave open.  `InputError` if there are more than `MOST_PAIRS`."""
    f = shop.forward
    bits = before_bits(f)
    found: set[tuple[int, int]] = set()
    for tasks in streams:
        leads = (bits[tasks][:, tasks // 64] >> (tasks % 64).astype(np.uint64) & np.uint64(1)).astype(np.bool_)
        open_ = np.triu(~(leads | leads.T), 1)
        if np.count_nonzero(open_) + len(found) > MOST_PAIRS:
            raise InputError(f"more than {MOST_PAIRS} open pairs of tasks; use --engine native, or a smaller problem")
        found |= {(int(a), int(b)) for a, b in zip(*(tasks[k] for k in np.nonzero(open_)), strict=True)}
    return tuple(sorted(found))
