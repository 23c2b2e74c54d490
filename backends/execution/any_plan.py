"""A checked plan on virtual ranks of this process, whatever its parts."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING

from ...proofs.overlap.certificate import OverlapCertificate
from ...proofs.pipelines.certificate import PipelineCertificate
from ...proofs.publishing.placed import placed_plan
from ..kernels import Array
from ..lowering.stages import staged_program
from ..lowering.streams import streams_program
from .job import Options, build_program, machine_text
from .pipeline import run_pipeline
from .run import Traffic, run_virtual
from .streams import run_streams_virtual

if TYPE_CHECKING:
    from ...proofs.publishing.publisher import AnyPlan


@dataclass(frozen=True, eq=False)
class Executed:
    """`sent`: (tensor, elements sent, elements priced) of what goes between stages."""

    outputs: Mapping[str, Array]
    traffic: tuple[Traffic, ...]
    sent: tuple[tuple[str, int, int], ...] = ()

    @property
    def mismatches(self) -> tuple[str, ...]:
        """Places that moved more than the plan prices."""
        between = (f"sending {tensor}" for tensor, sent, priced in self.sent if sent != priced)
        return (*(t.place for t in self.traffic if not t.fits), *between)


def execute(
    held: AnyPlan, scale: int, inputs: Mapping[str, Array], timeout_s: float, library: str = "numpy"
) -> Executed:
    """Run it on as many ranks as it has devices; `scale`: units of its costs in a second; `library`: who computes
    operators, numpy or torch.  Raises `RankError` that
    names rank and operator when one fails.
    """
    match held:
        case PipelineCertificate():
            cut = run_pipeline(staged_program(held, library=library), inputs, timeout_s)
            return Executed(cut.outputs, cut.traffic, cut.sent)
        case OverlapCertificate():
            beside = run_streams_virtual(streams_program(held, scale, library=library), inputs, timeout_s=timeout_s)
            return Executed(beside.outputs, beside.traffic)
        case _:
            plan = placed_plan(held)
            options = Options(backend=library, machine=machine_text(plan.machine))
            program = build_program(plan.graph, plan.machine.hierarchy, plan.choices, options)
            ended = run_virtual(program, inputs, timeout_s=timeout_s, trace=True)
            return Executed(ended.outputs, ended.traffic)
