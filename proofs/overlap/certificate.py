"""A plan whose reshardings run beside its operators, and how far its time is from the least.

every device    one stream of operators, one of reshardings; all devices do the same at the same time
memory          blocks from the task that makes them to the last that needs them, never above the limit
time            makespan of the schedule, in units of `quantum` units of the problem
proved          time >= lower bound, for all placements of the space and all orders:

    C    the sum of the operators' times                 M    the sum of the reshardings' times
    P_k  a chain of operators with the reshardings between them, and all operators that come behind its end
    time  >=  every one of them  >=  their weighted mean  >=  the least weighted sum / the sum of the weights

infeasible      no placement fits the limit in any order: already what every order holds at one moment is too much
"""

from __future__ import annotations

from dataclasses import dataclass

from ...models.communication.choices import Choices
from ...models.machine.machine import Machine
from ...models.program.graph import Graph
from ..schedules.certificate import ScheduleCertificate
from ..selection.certificates import SelectionCertificate


@dataclass(frozen=True, eq=False)
class OverlapCertificate:
    """`chains`: names of operators, each of which reads what the one before it writes.  `weights`: of C, M and every
    chain.  `quantum`: units of the problem per unit of the schedule.  `makespan`, `lower_bound`: in units of the
    problem.  `least`: about the problem with weighted costs.  `memory`: bytes per device, or None.

    `schedule` None: infeasible; there are no choices and no chains, and `least` is about the problem of the planned
    step whose rows are those that no order escapes.
    """

    graph: Graph
    machine: Machine
    space: str
    choices: Choices
    quantum: int
    schedule: ScheduleCertificate | None
    chains: tuple[tuple[str, ...], ...]
    weights: tuple[int, ...]
    makespan: int
    lower_bound: int
    least: SelectionCertificate
    memory: int | None = None
