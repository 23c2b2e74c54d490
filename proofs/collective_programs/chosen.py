"""Finds the programs that a file of reduction programs is for: of what it proves, the ones that a job would run.

    best placement     per term the cheapest program on that placement, over the device orders that were tried
    otherwise          the cheapest program of all parts that claim one; without costs the first that is correct

Nothing is proved here: the checker has seen every part.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from ...models.collective_programs.parallelism import ReductionRequest, Request
from ...models.collective_programs.programs import Program, words
from ...models.text import InputError
from .certificate import Cheapest, Correct, CostSpec, Part, ReductionCertificate


@dataclass(frozen=True)
class Chosen:
    """`program` answers `request`; `cost` in units of 1/`scale` s by the cost model `spec` (None: none was claimed)."""

    request: Request
    program: Program
    cost: int | None = None
    spec: CostSpec | None = None

    @property
    def words(self) -> str:
        """The program in short, `RS.L AR.P AG.L`."""
        return words(self.program, self.request.system().tree)

    @property
    def length(self) -> str:
        """Its steps, in words."""
        return f"{len(self.program)} step{'s' if len(self.program) != 1 else ''}"

    @property
    def scale(self) -> int:
        """Units of `cost` in a second; 0 without costs."""
        return 0 if self.spec is None else self.spec.model().scale

    @property
    def over(self) -> str:
        """What is reduced, in words."""
        if isinstance(self.request, ReductionRequest):
            return f"axes {','.join(map(str, self.request.reduce))}"
        return f"nodes of {','.join(map(str, self.request.nodes))}"


def chosen_programs(certificate: ReductionCertificate) -> tuple[Chosen, ...]:
    """One program per reduction that the file is for.  Raises `InputError` for a file without one.

    >>> from ...models.collective_programs.collectives import Collective
    >>> from ...models.collective_programs.parallelism import UnevenRequest
    >>> from ...models.collective_programs.programs import Form, Instruction
    >>> import numpy as np
    >>> one = (Instruction(0, Form.INSIDE, None, Collective.ALL_REDUCE),)
    >>> part = Part(UnevenRequest((2, 1)), Correct(one), np.zeros(0, dtype=np.int64))
    >>> [(c.words, c.over) for c in chosen_programs(ReductionCertificate((), (part,)))]
    [('AR.A', 'nodes of 2,1')]
    """
    best, placement = certificate.best, certificate.placement
    if best is None or placement is None:
        found = _cheapest(certificate, certificate.parts)
        return (found,)
    matrix = placement.matrices[best.matrix]
    out = []
    for term in best.terms:
        here = [
            part
            for part in certificate.parts
            if isinstance(part.request, ReductionRequest)
            and (part.request.matrix, part.request.reduce) == (matrix, term.reduce)
            and isinstance(part.claim, Cheapest)
            and part.claim.model == term.model
        ]
        out.append(_cheapest(certificate, here))
    return tuple(out)


def _cheapest(certificate: ReductionCertificate, parts: Iterable[Part]) -> Chosen:
    known: list[Chosen] = []
    for part in parts:
        match part.claim:
            case Cheapest(program=program, model=model, cost=cost):
                known.append(Chosen(part.request, program, cost, certificate.costs[model]))
            case Correct(program=program):
                known.append(Chosen(part.request, program))
            case _:
                pass
    if not known:
        raise InputError("holds no program: it proves how many there are, or that there is none; make one with reduce")
    return min(known, key=lambda c: (c.cost is None, c.cost or 0))
