"""What a rank really holds: bytes of live blocks while its program runs.

    held after an instruction  =  sum over distinct buffers among the rank's slots (a view counts as the buffer it keeps alive)

Element sizes are those of the graph.  Blocks of the caller's inputs are to be copies, as they are on a machine of their own.  Staging
inside a transport and temporaries inside a kernel are not seen; `models.memory` does not count them either.
"""

from __future__ import annotations

from collections.abc import Mapping

from ..models.graph import Graph
from .kernels import Array


class Meter:
    """`peak`: most bytes held at once; `at`: number of the instruction after which that was."""

    def __init__(self, graph: Graph) -> None:
        self.peak, self.at = 0, -1
        self._size = {t.name: t.element_bytes for t in graph.tensors}
        self._operand = {f"{op.name}[{j}]": a.tensor for op in graph.operators for j, a in enumerate(op.inputs)}

    def look(self, slots: Mapping[str, Array], number: int) -> None:
        """Count what is held after instruction `number`."""
        buffers: dict[int, int] = {}
        for slot, array in slots.items():
            whole = owner(array)
            buffers[id(whole)] = max(buffers.get(id(whole), 0), whole.size * self._size[self._tensor(slot)])
        total = sum(buffers.values())
        if total > self.peak:
            self.peak, self.at = total, number

    def _tensor(self, slot: str) -> str:
        """The tensor in a slot: `t`, `t as written`, or `op[j]`."""
        if slot in self._size:
            return slot
        return self._operand[slot] if slot in self._operand else slot.removesuffix(" as written")


def owner(array: Array) -> Array:
    """The array whose buffer a view keeps alive; the array itself if it is no view."""
    here: Array = array
    while (base := here.base) is not None and hasattr(base, "size"):
        here = base
    return here


def alone(array: Array) -> Array:
    """The array in a buffer of its own if it is a view of a larger one, which it would keep alive."""
    return array.copy() if owner(array).size > array.size else array
