"""What `check` says of a plan with views, for people and as data."""

from __future__ import annotations

from collections.abc import Sequence

from ...models.problem.claims import Verdict
from ...proofs.views.certificate import ViewsCertificate
from ..verdict import CheckResult


def views_lines(c: ViewsCertificate, results: Sequence[CheckResult]) -> list[str]:
    """Lines of text: the subject, one per claim, what is assumed."""
    machine = f"{c.machine.name} {'x'.join(map(str, c.machine.hierarchy))}"
    divisions = sum(len(r.divisions) for r in c.regions)
    used = sorted({p.view for _, p in c.choices.operators if p.view is not None})
    lines = [
        f"  model {c.graph.name}: {len(c.graph.operators)} operators, sha256 {c.graph.sha256()}",
        f"  machine {machine}: sha256 {c.machine.sha256()}",
        f"  regions: {len(c.regions)}; divisions: {divisions}; views in use: {len(used)}",
    ]
    assumed: tuple[str, ...] = ()
    for r in results:
        line = f"  {r.kind:12} {r.verdict.value}"
        if r.kind in ("Optimal", "WithinGap") and r.cost is not None and r.lower_bound is not None:
            gap = 1 - r.lower_bound / r.cost if r.cost else 0.0
            line += f"; cost {r.cost}; lower bound {r.lower_bound} (gap {gap:.2%}); space {r.space}"
        if r.coverage is not None:
            line += f"; {r.coverage.words}"
        if r.verdict is not Verdict.PROVED:
            line += f": {r.reason}"
        lines.append(line)
        assumed = assumed or r.assumptions
    return [*lines, f"  assumptions: {', '.join(assumed)}"]


def views_document(c: ViewsCertificate) -> dict[str, object]:
    """The subject as data."""
    return {
        "model": {"name": c.graph.name, "sha256": c.graph.sha256(), "operators": len(c.graph.operators)},
        "machine": {"name": c.machine.name, "sha256": c.machine.sha256(), "hierarchy": list(c.machine.hierarchy)},
        "space": c.space,
        "regions": [{"branches": len(r.branches), "divisions": len(r.divisions)} for r in c.regions],
        "on_views": sum(p.view is not None for _, p in c.choices.operators),
    }
