"""This module says what `check` says of a program in a container of its own kind (pipelined, overlapped, on views): its
subject, a line per claim, what is assumed.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Final, Generic, Protocol, TypeVar

from ...models.machine.machine import Machine
from ...models.problem.claims import Verdict
from ...models.program.graph import Graph
from ...models.text import bytes_text, seconds_text
from ...proofs.container.archive import Member, identity
from ...proofs.overlap.certificate import OverlapCertificate
from ...proofs.overlap.file import OVERLAP
from ...proofs.pipelines.certificate import PipelineCertificate
from ...proofs.pipelines.file import PIPELINE
from ...proofs.views.certificate import ViewsCertificate
from ...proofs.views.file import VIEWS
from ..overlap.certificate import judged as judged_overlap
from ..pipelines.bound import PICO
from ..pipelines.certificate import check_members as check_pipeline
from ..plan.own import Own
from ..verdict import CheckResult
from ..views.certificate import judged as judged_views

Notify = Callable[[int, int], None]


class _Program(Protocol):
    """A certificate about one graph on one machine."""

    @property
    def graph(self) -> Graph: ...
    @property
    def machine(self) -> Machine: ...
    @property
    def space(self) -> str: ...


C = TypeVar("C", bound=_Program)
Judge = Callable[[Mapping[str, Member], int, int, Notify], tuple[C, tuple[CheckResult, ...], int]]
"""(members, samples, cells, notify) -> certificate, one result per claim, units of its costs per second."""


@dataclass(frozen=True)
class Said:
    """Of one file: results, lines without its name, the subject as data."""

    results: tuple[CheckResult, ...]
    lines: list[str]
    document: dict[str, object]


@dataclass(frozen=True)
class Kind(Generic[C]):
    """How one kind of file is checked and told.  `cost`: what its costs are called; `extra`: a line of its own, then
    lines behind the claims.
    """

    words: str
    cost: str
    judge: Judge[C]
    extra: Callable[[C], list[str]]
    document: Callable[[C], dict[str, object]]

    def say(self, members: Mapping[str, Member], samples: int, cells: int, own: Own, notify: Notify) -> Said:
        """Check it; `ContainerError` for what is malformed."""
        c, results, scale = self.judge(members, samples, cells, notify)
        found = (*own.results(c.graph, c.machine), *results)
        first, *rest = self.extra(c)
        hierarchy = "x".join(map(str, c.machine.hierarchy))
        lines = [
            f"{self.words} {identity(members)}",
            f"  model {c.graph.name}: {len(c.graph.operators)} operators, sha256 {c.graph.sha256()}",
            f"  machine {c.machine.name} {hierarchy}: sha256 {c.machine.sha256()}",
            f"  {first}",
            *(self._claim(r, scale) for r in found),
            *(f"  {line}" for line in rest),
        ]
        assumed = next((r.assumptions for r in found if r.assumptions), ())
        head = {
            "model": {"name": c.graph.name, "sha256": c.graph.sha256(), "operators": len(c.graph.operators)},
            "machine": {"name": c.machine.name, "sha256": c.machine.sha256(), "hierarchy": list(c.machine.hierarchy)},
            "space": c.space,
        }
        return Said(found, [*lines, f"  assumptions: {', '.join(assumed)}"], {**head, **self.document(c)})

    def _claim(self, r: CheckResult, scale: int) -> str:
        line = f"  {r.kind:12} {r.verdict.value}"
        if r.kind in ("Optimal", "WithinGap") and r.cost is not None and r.lower_bound is not None:
            gap = 1 - r.lower_bound / r.cost if r.cost else 0.0
            cost, bound = seconds_text(r.cost, scale), seconds_text(r.lower_bound, scale)
            line += f"; {self.cost} {cost}; lower bound {bound} (gap {gap:.2%}); space {r.space}"
        if r.coverage is not None:
            line += f"; {r.coverage.words}"
        return line if r.verdict is Verdict.PROVED else f"{line}: {r.reason}"


def _pipelined(c: PipelineCertificate) -> list[str]:
    limit = "none" if c.memory is None else f"{bytes_text(c.memory)} per device"
    pairs = ", ".join([*(f"{p}:{m}" for p, m in c.pairs), *(f"{x.stages}:{x.micro}:{x.chunks}" for x in c.interleaved)])
    chunks = f" with {c.chunks} chunks each" if c.chunks > 1 else ""
    stages = f"{c.views} stages{chunks} of {c.division.units} units, {c.micro} micro-batches; memory limit {limit}"
    return [stages, f"enumerated   stages:micro-batches{':chunks' if c.interleaved else ''} {pairs}"]


def _viewed(c: ViewsCertificate) -> list[str]:
    divisions = sum(len(r.divisions) for r in c.regions)
    used = sorted({p.view for _, p in c.choices.operators if p.view is not None})
    return [f"regions: {len(c.regions)}; divisions: {divisions}; views in use: {len(used)}"]


def _pipeline_document(c: PipelineCertificate) -> dict[str, object]:
    return {
        "memory_limit": c.memory,
        "stages": [[s.first, s.end] for s in c.stages],
        "micro_batches": c.micro,
        "enumerated": [list(pair) for pair in c.pairs],
        **({"chunks": c.chunks} if c.chunks > 1 else {}),
        **({"interleaved": [[x.stages, x.micro, x.chunks] for x in c.interleaved]} if c.interleaved else {}),
    }


def _overlap_document(c: OverlapCertificate) -> dict[str, object]:
    return {
        "memory_limit": c.memory,
        "redistributions": sum(t.streams == (1,) for t in getattr(c.schedule and c.schedule.subject, "tasks", ())),
        "chains": [len(chain) for chain in c.chains],
        "weights": list(c.weights),
    }


def _views_document(c: ViewsCertificate) -> dict[str, object]:
    return {
        "regions": [{"branches": len(r.branches), "divisions": len(r.divisions)} for r in c.regions],
        "on_views": sum(p.view is not None for _, p in c.choices.operators),
    }


def _overlapped(c: OverlapCertificate) -> list[str]:
    limit = "none" if c.memory is None else f"{bytes_text(c.memory)} per device"
    return [f"operators on one stream of every device, redistributions beside them on another; memory limit {limit}"]


def _judged_pipeline(
    members: Mapping[str, Member], samples: int, cells: int, notify: Notify
) -> tuple[PipelineCertificate, tuple[CheckResult, ...], int]:
    return *check_pipeline(members, samples, cells, notify), PICO


PROGRAMS: Final[Mapping[str, Callable[[Mapping[str, Member], int, int, Own, Notify], Said]]] = {
    PIPELINE: Kind("pipelined training step", "step", _judged_pipeline, _pipelined, _pipeline_document).say,
    OVERLAP: Kind("overlapped plan", "time", judged_overlap, _overlapped, _overlap_document).say,
    VIEWS: Kind("plan with views", "cost", judged_views, _viewed, _views_document).say,
}
"""Member that gives the kind away -> its checker, with everything that is said."""
