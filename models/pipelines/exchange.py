"""What stages of a pipeline send each other once a step: the updates of one may read what another has.

A tensor of the updates, or a gradient that updates alone read, whose readers lie in other stages than its writer is
sent to each of these.  So is the next value of a parameter to every other stage that reads the parameter: its home,
where the next value is written, updates it, the others have a copy.  Tied embeddings send a gradient to the home and
the new table back; clipping by the norm of all gradients sends sums of squares one way and a factor the other.

    depth of an operator of the updates  =  0, or the largest of   depth of the writer of an operand in its stage
                                                                   depth of such a writer in another stage, plus 1
    message   a tensor, from a stage behind its operators of some depth, to another stage before those of a larger one
    round n   of a view: what has come for it, then the operators of depth n of its stages, with their reshardings;
              what goes behind it to one view is sent together

    end of round n of view v  =  U_v[n] + max( end of round n-1 of v,  end of round m of w + sending )    m < n, from w

Blocks are those of the copy's layout, or of the reader's operand, equal on both sides, so rank r sends to rank r.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from ..communication.choices import needs_copy
from ..program.graph import Graph, Role
from .division import Division


@dataclass(frozen=True)
class Message:
    """`tensor` goes from stage `sender`, behind its updates of this depth, to stage `receiver`.  `reader`: the operator
    (its position) whose operand the block is; None: the tensor, or the parameter whose next value it is, has a layout
    of its own.
    """

    tensor: str
    sender: int
    receiver: int
    depth: int
    reader: int | None


class Exchange(NamedTuple):
    """`depth[i]`: of the updates, by position in the graph; messages by depth, tensor and receiver."""

    depth: Mapping[int, int]
    messages: tuple[Message, ...]

    @property
    def rounds(self) -> int:
        """How many there are; what comes last is waited for."""
        behind = [letter.depth + 1 for letter in self.messages]
        return 1 + max([*self.depth.values(), *behind], default=0)

    def of(self, stage: int) -> tuple[Message, ...]:
        """What a stage sends or is sent."""
        return tuple(x for x in self.messages if stage in (x.sender, x.receiver))

    def layouts(self, graph: Graph) -> frozenset[str]:
        """Tensors whose copies have one layout on all stages that have them."""
        following = {value: name for name, value in graph.state}
        return frozenset(following.get(x.tensor, x.tensor) for x in self.messages if x.reader is None)


def exchange(graph: Graph, division: Division, ends: Sequence[int]) -> Exchange:
    """What stages that end before these units send each other.

    >>> from ..sources.training import build_step
    >>> from ..sources.zoo.gpt import gpt
    >>> from .division import divide
    >>> step = build_step(gpt(batch=2, depth=2, sequence=8, width=8, heads=2, vocabulary=16), "sgd")
    >>> cut = divide(step.graph, step.passes)
    >>> [(x.tensor, x.sender, x.receiver) for x in exchange(step.graph, cut, (4, cut.units)).messages]
    [('grad:embedding.table/logits', 1, 0), ('embedding.table.next', 0, 1)]
    """
    place = {u: s for s, (i, j) in enumerate(zip((0, *ends), ends, strict=False)) for u in range(i, j)}
    stage = [place.get(u, -1) for u in division.unit]  # -1: every stage has it
    copied, following = needs_copy(graph), {value: name for name, value in graph.state}
    readers, phase = graph.readers(), division.phase
    writer = {op.output.tensor: i for i, op in enumerate(graph.operators)}
    depth: dict[int, int] = {}
    for i, op in enumerate(graph.operators):
        if phase[i] == "U":
            made = [writer[a.tensor] for a in op.inputs if a.tensor in writer]
            depth[i] = max((depth.get(w, 0) + (stage[w] not in (stage[i], -1)) for w in made), default=0)
    messages: set[Message] = set()
    for t in graph.tensors:
        uses = [i for i, _ in readers[t.name]]
        if t.role is Role.PARAMETER or t.name not in writer or stage[writer[t.name]] < 0:
            continue
        w = writer[t.name]
        here, own = stage[w], t.name in copied or t.name in following  # which rests in its parameter's copy
        if phase[w] != "F" and uses and all(phase[i] == "U" for i in uses):
            messages |= {
                Message(t.name, here, stage[i], depth.get(w, 0), None if own else i) for i in uses if stage[i] != here
            }
        if t.name in following:
            others = {stage[i] for i, _ in readers[following[t.name]]} - {here, -1}
            messages |= {Message(t.name, here, s, depth.get(w, 0), None) for s in others}
    order = {t.name: k for k, t in enumerate(graph.tensors)}
    return Exchange(depth, tuple(sorted(messages, key=lambda x: (x.depth, order[x.tensor], x.receiver))))
