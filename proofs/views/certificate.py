"""A plan whose branches may run beside each other on views, and the proof that none is cheaper.

choices    placements of all operators and copies; those of branches on a view with their view
proved     no choice of {whole machine, one of the divisions} for every region, with placements of the space on the
           machine or the view, costs less than the claim of `least` says
"""

from __future__ import annotations

from dataclasses import dataclass

from ...models.communication.choices import Choices
from ...models.machine.machine import Machine
from ...models.program.graph import Graph
from ...models.views.regions import Region
from ..selection.certificates import SelectionCertificate


@dataclass(frozen=True, eq=False)
class SubmeshCertificate:
    """`least`: about the selection problem with views (docs/certificate-format.md, section 15).  `memory`: bytes that
    no device holds more than; `rows`: whether that problem has rows of what lies on the whole machine, under this
    limit.
    """

    graph: Graph
    machine: Machine
    space: str
    regions: tuple[Region, ...]
    choices: Choices
    least: SelectionCertificate
    memory: int | None = None
    rows: bool = False
