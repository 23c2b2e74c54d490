"""Recomputes the lower bound of steps whose views hold several chunks of the model, from stated weights.

Chunk c of S V lies on view c mod S, so view s has chunks s, s + S, ..; its laps are numbered 0 .. V - 1.  With f, b, u
of a chunk (forward, backward, updates; a = f + b) and d, e of a boundary (sends there and back), a line looks at some
tasks of one view: forwards of laps from k on, backwards of laps from l on, of all m micro-batches; k, l <= V, not both
V.

    first start   k < V:  forward of chunk c = s + k S needs f and d of everything before c; so does a later lap, and a
                          backward of any lap, which needs all f and d
                  k = V:  backward of the last lap needs all f and d, and b and e of what is behind that chunk
    work          m f and m b of the laps that are looked at: a view does one thing after another
    behind it     l < V:  backward of chunk c = s + l S is followed by b and e of everything before c; so is a later
                          lap, and a forward of any lap, which all b and e follow
                  l = V:  forward of the last lap is followed by f and d of what is behind that chunk, then all b and e
                  then view 0, behind its last backward, updates its chunks

    line(s, k, l)  T  >=  first start + work + what is behind it + u of view 0
    own(s)         T  >=  f and d of chunks before s  +  m a + u of all its chunks

A mean of lines, with weights of 0 or more, is below the largest of them, and what a chunk adds to it depends on its
number and its units alone.  Only lower bounds of runs are known: F <= f, B <= b, A and F + B <= a, W <= a + u,
V <= m a + u, and u >= 0; counts of f, b and u are put together as far as they go in pairs.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from ..budget import Budget
from .bound import NEVER, PLACE, RUN
from .cuts import Known

Counts = list[dict[str, int]]
"""Per chunk how often f, b, u, v = m a + u, and d and e of the boundary behind it are counted."""


def all_lines(views: int, chunks: int, micro: int) -> Iterator[Counts]:
    """What every line counts: of views in order, then k, then l; then own(s)."""
    parts = views * chunks
    for s in range(views):
        for k in range(chunks + 1):
            for lap in range(chunks + 1):
                if k == lap == chunks:
                    continue
                line: Counts = [dict.fromkeys("fbuvde", 0) for _ in range(parts)]
                last = s + views * (chunks - 1)
                for c, row in enumerate(line):
                    here, turn = c % views == s, c // views
                    # f and d are counted on the way to the tasks, or all of them where none is a forward
                    row["f"] += 1 if k == chunks or c < s + k * views else 0
                    row["f"] += micro if here and turn >= k else 0
                    row["f"] += 1 if lap == chunks and c > last else 0
                    row["b"] += 1 if lap == chunks or c < s + lap * views else 0
                    row["b"] += micro if here and turn >= lap else 0
                    row["b"] += 1 if k == chunks and c > last else 0
                    if c + 1 < parts:
                        row["d"] += 1 if k == chunks or c < s + k * views else 0
                        row["d"] += 1 if lap == chunks and c >= last else 0
                        row["e"] += 1 if lap == chunks or c < s + lap * views else 0
                        row["e"] += 1 if k == chunks and c >= last else 0
                    row["u"] += 1 if c % views == 0 else 0
                yield line
    for s in range(views):
        line = [dict.fromkeys("fbuvde", 0) for _ in range(parts)]
        for c, row in enumerate(line):
            row["f"] = row["d"] = 1 if c < s else 0
            row["v"] = 1 if c % views == s else 0
        yield line


def least_mean(
    known: Known, views: int, chunks: int, micro: int, weights: Sequence[int], budget: Budget | None = None
) -> int:
    """The least mean over all cuts, rounded up.  `weights`: of the lines in their order."""
    units, parts, whole = len(known.both) - 1, views * chunks, sum(weights)
    budget = Budget.with_large() if budget is None else budget
    budget.charge(RUN * 4 * parts * (len(weights) + units * units), PLACE)
    count: Counts = [dict.fromkeys("fbuvde", 0) for _ in range(parts)]
    for weight, line in zip(weights, all_lines(views, chunks, micro), strict=True):
        for total, once in zip(count, line, strict=True):
            for word, times in once.items():
                total[word] += weight * times
    ahead: list[int | None] = [0, *[None] * units]  # what the chunks so far add where they end with unit i - 1
    for r, k in enumerate(count):
        row: list[int | None] = [None] * (units + 1)
        for j in range(r + 1, units) if r + 1 < parts else (units,):
            sends = k["d"] * known.there[r + 1][j] + k["e"] * known.back[r + 1][j] if r + 1 < parts else 0
            for i in range(r, j):
                before = ahead[i]
                if before is None:
                    continue
                value = before + sends + _least(known, k, i, j)
                so_far = row[j]
                row[j] = value if so_far is None else min(so_far, value)
        ahead = row
    last = ahead[units]
    return NEVER if last is None else min(NEVER, -(-last // whole))


def _least(known: Known, count: dict[str, int], i: int, j: int) -> int:
    """The least that a chunk of units i .. j-1 adds."""
    f, b = known.forward[i][j], known.backward[i][j]
    both = max(known.both[i][j], f + b)
    updated = max(known.updated[i][j], both)
    pairs = min(count["f"], count["b"])
    triples = min(pairs, count["u"])
    alone = (count["f"] - pairs) * f + (count["b"] - pairs) * b
    return triples * updated + (pairs - triples) * both + alone + count["v"] * known.step[i][j]
