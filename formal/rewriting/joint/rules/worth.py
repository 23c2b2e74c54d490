"""Whether a rewriting can pay on a machine: the price of what it replaces beside that of what it adds,
on one device.

A joint search takes longer the more there is to choose from.  Some rewritings are worth their place on few machines
only: products of one tensor at once save reading it and starting kernels, and cost a copy of the other factors, so they
gain nothing where products take as long as their operations do.  What is left out here is not in the e-graph, so no
claim speaks of it.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from fractions import Fraction

from .....models.cost.selection import build
from .....models.layout.placement import space
from .....models.machine.machine import Machine
from .....models.program.graph import Graph, Role, Tensor
from .....models.program.operators import Operator

Pays = Callable[[Sequence[Operator], Sequence[Operator], Sequence[Operator], Mapping[str, Tensor]], bool]
"""Of operators, those in their place, those of these that stay as large on more devices, and the tensors."""


def worth(machine: Machine) -> Pays:
    """Whether operators cost less than others, on one device or as a share of the work of the machine's."""
    alike = replace(machine, others=(), resources=())  # what rules save is weighed on devices of the first class
    one = alike.resized([1] * len(machine.levels))
    launch = max(c.launch for c in machine.classes)
    known: dict[object, Fraction] = {}

    def price(op: Operator, tensors: Mapping[str, Tensor]) -> Fraction:
        """Seconds on one device, without the launch."""
        read = {a.tensor: tensors[a.tensor] for a in op.inputs}
        key = (replace(op, name="", inputs=(), output=replace(op.output, tensor="")),) + tuple(
            (a.index, tensors[a.tensor].shape, tensors[a.tensor].dtype) for a in op.inputs
        )
        if key not in known:
            given = (Tensor(t.name, t.shape, t.dtype, Role.INPUT, host=t.host) for t in read.values())
            out = tensors[op.output.tensor]
            problem = build(Graph("one", (*given, out), (op,), (out.name,)), one, space("complete")).problem
            known[key] = Fraction(problem.cost_of((0,) * len(problem.vertices)), problem.scale) - launch
        return known[key]

    def pays(
        old: Sequence[Operator], new: Sequence[Operator], whole: Sequence[Operator], tensors: Mapping[str, Tensor]
    ) -> bool:
        starts = (len(old) - len(new)) * launch
        fixed = sum((price(op, tensors) for op in whole), Fraction(0))
        gain = sum((price(op, tensors) for op in old), Fraction(0)) + fixed
        gain -= sum((price(op, tensors) for op in new), Fraction(0))
        return gain - fixed + starts > 0 or gain / machine.devices - fixed + starts > 0

    return pays
