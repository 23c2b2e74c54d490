"""Programs whose data begin and end on rank 0: inputs are scattered from it, outputs gathered to it.

    Load x            ->  Load x at the root (whole on rank 0, nothing elsewhere),  Move to x,  Free
    behind the end        Move y to the root,  and y is what lies there

The movements are those of `models.communication.root`, which prices them; everything between is as it was.
"""

from __future__ import annotations

from dataclasses import replace

from ...models.communication.choices import Choices, Communication
from ...models.communication.resharding import derive
from ...models.communication.root import root_layout, root_reshardings
from .program import Free, Instruction, Load, Move, Program, Slots


def with_root(program: Program, choices: Choices) -> Program:
    """The same program from rank 0 and back to it.

    >>> from ...models.sources.building.builder import Builder
    >>> from ...models.layout.placement import Placement
    >>> from .program import lower
    >>> g = Builder("g")
    >>> half = ((2,), (1,))
    >>> halves = Choices((("y", Placement(("i0",), half)),), (("y", Placement(("0",), half)),))
    >>> program = with_root(lower(g.build(g.map("y", "relu", g.input("x", (4,)))), (2,), halves), halves)
    >>> [type(i).__name__ for i in program.ranks[1]]
    ['Load', 'Move', 'Free', 'Compute', 'Free', 'Move', 'Free', 'Move', 'Free', 'Move', 'Free']
    """
    graph, hierarchy, slots = program.graph, program.hierarchy, Slots(program.graph)
    movements, outputs = list(program.movements), dict(program.outputs)
    number = dict[str, int]()
    behind = list[Instruction]()
    for tensor, direction, plan in root_reshardings(graph, hierarchy, choices):
        here, root = len(movements), slots.root[tensor]
        movements.append(Communication(tensor, None, None, 0, plan))
        if direction == "scatter":
            number[tensor] = here
            continue
        whole = root_layout(graph.tensor(tensor).shape, hierarchy)
        movements.append(Communication(tensor, None, None, 0, derive(whole, whole)))
        behind += [Move(tensor, root, here), Free(tensor), Move(root, tensor, here + 1), Free(root)]
        outputs[tensor] = tuple(whole.box(d) for d in range(len(program.ranks)))
    ranks = []
    for d, given in enumerate(program.ranks):
        out = list[Instruction]()
        for step in given:
            if isinstance(step, Load) and step.tensor in number:
                n, root = number[step.tensor], slots.root[step.tensor]
                box = movements[n].plan.source.box(d)
                out += [Load(root, step.tensor, box), Move(root, step.slot, n), Free(root)]
            else:
                out.append(step)
        ranks.append((*out, *behind))
    written = tuple((t, outputs[t]) for t, _ in program.outputs)
    return replace(program, movements=tuple(movements), ranks=tuple(ranks), outputs=written)
