"""What a rank really holds: bytes of live blocks while its program runs.

    held after an instruction  =  sum over distinct buffers among the rank's slots (a view counts as the buffer it keeps
    alive)

Element sizes are those of the graph.  Blocks of the caller's inputs are to be copies, as they are on a machine of their
own.  Staging inside a transport and temporaries inside a kernel are not seen; `models.cost.memory` does not count them
either.
"""

from __future__ import annotations

from collections.abc import Mapping

from ...models.program.graph import Graph
from ..kernels import Array
from ..lowering.program import Slots


class Meter:
    """`peak`: most bytes held at once; `at`: number of the instruction after which that was."""

    def __init__(self, graph: Graph) -> None:
        self.peak, self.at = 0, -1
        self._size = {slot: graph.tensor(tensor).element_bytes for slot, tensor in Slots(graph).tensor_of.items()}

    def look(self, slots: Mapping[str, Array], number: int) -> None:
        """Count what is held after instruction `number`."""
        buffers: dict[int, int] = {}
        for slot, array in slots.items():
            whole = owner(array)
            buffers[id(whole)] = max(buffers.get(id(whole), 0), whole.size * self._size[slot])
        total = sum(buffers.values())
        if total > self.peak:
            self.peak, self.at = total, number


def owner(array: Array) -> Array:
    """The array whose buffer a view keeps alive; the array itself if it is no view."""
    here: Array = array
    while (base := here.base) is not None and hasattr(base, "size") and hasattr(base, "base"):
        here = base
    return here


def alone(array: Array) -> Array:
    """The array in a buffer of its own if it is a view of a larger one, which it would keep alive."""
    return array.copy() if owner(array).size > array.size else array
