"""Memory rows of all programs of an e-graph: those of `models.cost.memory`, as far as one vertex
knows the program.

Step t is the t-th e-node; T e-nodes in all.  A program has the rows of its own operators at their steps: what is not
chosen takes nothing, and between two of its steps a device holds nothing that it does not hold at one of them.  A
usage depends on one vertex, so where the choice of a vertex leaves readers or writers open, the earliest writer and the
latest reader count:

    choice         holds                                  over
    runs(n)        what n writes, in its layout           its step, if the class has a vertex for where it rests; else
                                                          up to the latest reader
                   the operands of n that may move        its step
                   a given tensor that the user's         from 0 to the step of n; to the end if it is a parameter or
                   program reads once, as n reads it      wanted
    copy           the copy, in its layout                from the earliest writer (given: 0) to the latest reader; to
                                                          the end if it is wanted or a parameter
    passed(n)      what n wrote, in its layout            from behind n's step to the latest reader
    given          the whole tensor, if the user's        from 0 as a copy
                   program reads it twice
    absent         nothing

So a plan that fits these rows fits those of its program (flag `rows-of-open-programs`); a limit that is too small here
may not be too small there, by what the choices leave open.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from math import prod

import numpy as np

from ..cost.structures import Keyed, Structures
from ..problem.selection_problem import Ints, Usage
from ..program.graph import Role
from .choices import Block, Kind, Skeleton

FLAG = "rows-of-open-programs"


class Rows:
    """Usages of a problem over all programs; `of` gives those of one vertex."""

    def __init__(self, skeleton: Skeleton, structures: Structures) -> None:
        self.skeleton, self.egraph, self.structures = skeleton, skeleton.egraph, structures
        self.step = {op.name: i for i, op in enumerate(self.egraph.operators)}
        self.end = len(self.egraph.operators)
        self.wanted = set(self.egraph.base.outputs)
        reads = Counter(a.tensor for op in self.egraph.base.operators for a in op.inputs)
        given = (t.name for t in self.egraph.union.tensors if t.name not in self.egraph.nodes)
        self.at_reader = {t for t in given if reads[t] < 2 and t not in skeleton.stored}
        self._volumes: dict[int, Ints] = {}

    def of(
        self, v: int, tensor: str, rests: bool, blocks: Sequence[Block], spans: Sequence[tuple[int, int]]
    ) -> list[Usage]:
        """Usages of a vertex, whose blocks have these choices."""
        size = spans[-1][1]
        found: dict[tuple[int, int], Ints] = {}
        for block, (low, high) in zip(blocks, spans, strict=True):
            for start, stop, amount in self._held(tensor, rests, block):
                if stop > start:
                    row = found.setdefault((start, stop), np.zeros(size, dtype=np.int64))
                    row[low:high] += amount
        name = f"copy of {tensor}" if rests else tensor
        return [Usage(v, start, stop, found[start, stop], name) for start, stop in sorted(found)]

    def _held(self, t: str, rests: bool, block: Block) -> list[tuple[int, int, Ints | int]]:
        assumed = block.open_modes(t, rests)
        first, last = self._writer(t, assumed), self._last(t, assumed)
        n = block.node
        match block.kind:
            case Kind.COPY:
                return [(first, last, self._amount(self.structures.copy_layouts(t), t))]
            case Kind.PASSED if n is not None:
                found = self._by_layout(self.structures.output_layouts(n), t)
                return [(self.step[n.name] + 1, last, found)]
            case Kind.GIVEN if t not in self.at_reader:
                shape = self.egraph.union.tensor(t).shape
                return [(0, last, prod(shape) * self.egraph.union.tensor(t).element_bytes)]
            case Kind.RUNS if n is not None:
                i = self.step[n.name]
                rest = self.skeleton.homes.get(t, t) in self.skeleton.rests
                out: list[tuple[int, int, Ints | int]] = [
                    (i, i + 1 if rest else max(last, i + 1), self._amount(self.structures.output_layouts(n), t))
                ]
                for j, a in enumerate(n.inputs):
                    read = self._amount(self.structures.read(n, j), a.tensor)
                    if a.tensor in self.at_reader:
                        out.append((0, self.end if self._kept(a.tensor) else i + 1, read))
                    else:
                        out.append((i, i + 1, read))
                return out
            case _:
                return []

    def _kept(self, t: str) -> bool:
        return t in self.wanted or self.egraph.union.tensor(t).role is Role.PARAMETER

    def _writer(self, t: str, assumed: Mapping[str, tuple[str | None, ...]]) -> int:
        """Step of the earliest e-node that may compute it; 0 for a given tensor."""
        nodes = self.egraph.nodes.get(t, ())
        return min((self.step[n.name] for n in nodes if t not in assumed or n.name in assumed[t]), default=0)

    def _last(self, t: str, assumed: Mapping[str, tuple[str | None, ...]]) -> int:
        """Step behind the latest e-node that may read it."""
        if self._kept(t):
            return self.end
        nodes = (
            n for r in self.egraph.readers[t] for n in self.egraph.nodes[r] if r not in assumed or n.name in assumed[r]
        )
        steps = [self.step[n.name] + 1 for n in nodes if self.egraph.count(t, n)]
        return max(steps, default=self._writer(t, assumed) + 1)

    def _by_layout(self, held: Keyed, t: str) -> Ints:
        """Bytes on the fullest device, per layout."""
        layouts = held.layouts
        if id(layouts) not in self._volumes:
            self._volumes[id(layouts)] = layouts.volumes()
        return self._volumes[id(layouts)] * self.egraph.union.tensor(t).element_bytes

    def _amount(self, held: Keyed, t: str) -> Ints:
        """The same per placement."""
        return self._by_layout(held, t)[held.layouts.of_choice]
