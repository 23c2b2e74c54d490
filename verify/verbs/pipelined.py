"""What `check` says of a pipelined training step, for people and as data."""

from __future__ import annotations

from collections.abc import Sequence

from ...models.problem.claims import Verdict
from ...models.text import bytes_text, seconds_text
from ...proofs.pipelines.certificate import PipelineCertificate
from ..pipelines.bound import PICO
from ..verdict import CheckResult


def pipeline_lines(c: PipelineCertificate, results: Sequence[CheckResult]) -> list[str]:
    """Lines of text: the subject, one per claim, what is enumerated and assumed."""
    limit = "none" if c.memory is None else f"{bytes_text(c.memory)} per device"
    machine = f"{c.machine.name} {'x'.join(map(str, c.machine.hierarchy))}"
    lines = [
        f"  model {c.graph.name}: {len(c.graph.operators)} operators, sha256 {c.graph.sha256()}",
        f"  machine {machine}: sha256 {c.machine.sha256()}",
        f"  {len(c.stages)} stages of {c.division.units} units, {c.micro} micro-batches; memory limit {limit}",
    ]
    assumed: tuple[str, ...] = ()
    for r in results:
        line = f"  {r.kind:12} {r.verdict.value}"
        if r.kind in ("Optimal", "WithinGap") and r.cost is not None and r.lower_bound is not None:
            cost, bound = seconds_text(r.cost, PICO), seconds_text(r.lower_bound, PICO)
            line += f"; step {cost}; lower bound {bound}; space {r.space}"
        if r.coverage is not None:
            line += f"; {r.coverage.words}"
        if r.verdict is not Verdict.PROVED:
            line += f": {r.reason}"
        lines.append(line)
        assumed = assumed or r.assumptions
    pairs = ", ".join(f"{p}:{m}" for p, m in c.pairs)
    return [*lines, f"  enumerated   stages:micro-batches {pairs}", f"  assumptions: {', '.join(assumed)}"]


def pipeline_document(c: PipelineCertificate) -> dict[str, object]:
    """The subject as data."""
    return {
        "model": {"name": c.graph.name, "sha256": c.graph.sha256(), "operators": len(c.graph.operators)},
        "machine": {"name": c.machine.name, "sha256": c.machine.sha256(), "hierarchy": list(c.machine.hierarchy)},
        "memory_limit": c.memory,
        "space": c.space,
        "stages": [[s.first, s.end] for s in c.stages],
        "micro_batches": c.micro,
        "enumerated": [list(pair) for pair in c.pairs],
    }
