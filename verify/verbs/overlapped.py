"""What `check` says of an overlapped plan, for people and as data."""

from __future__ import annotations

from collections.abc import Sequence

from ...models.problem.claims import Verdict
from ...proofs.overlap.certificate import OverlapCertificate
from ..verdict import CheckResult


def overlap_lines(c: OverlapCertificate, results: Sequence[CheckResult]) -> list[str]:
    """Lines of text: the subject, one per claim, what is assumed."""
    machine = f"{c.machine.name} {'x'.join(map(str, c.machine.hierarchy))}"
    lines = [
        f"  model {c.graph.name}: {len(c.graph.operators)} operators, sha256 {c.graph.sha256()}",
        f"  machine {machine}: sha256 {c.machine.sha256()}",
        "  operators on one stream of every device, redistributions beside them on another",
    ]
    assumed: tuple[str, ...] = ()
    for r in results:
        line = f"  {r.kind:12} {r.verdict.value}"
        if r.kind in ("Optimal", "WithinGap") and r.cost is not None and r.lower_bound is not None:
            gap = 1 - r.lower_bound / r.cost if r.cost else 0.0
            line += f"; time {r.cost}; lower bound {r.lower_bound} (gap {gap:.2%}); space {r.space}"
        if r.coverage is not None:
            line += f"; {r.coverage.words}"
        if r.verdict is not Verdict.PROVED:
            line += f": {r.reason}"
        lines.append(line)
        assumed = assumed or r.assumptions
    return [*lines, f"  assumptions: {', '.join(assumed)}"]


def overlap_document(c: OverlapCertificate) -> dict[str, object]:
    """The subject as data."""
    return {
        "model": {"name": c.graph.name, "sha256": c.graph.sha256(), "operators": len(c.graph.operators)},
        "machine": {"name": c.machine.name, "sha256": c.machine.sha256(), "hierarchy": list(c.machine.hierarchy)},
        "space": c.space,
        "redistributions": sum(t.streams == (1,) for t in getattr(c.schedule and c.schedule.subject, "tasks", ())),
        "chains": [len(chain) for chain in c.chains],
        "weights": list(c.weights),
    }
