"""A checked plan with stages, streams or submeshes as one page of HTML that needs nothing else: what `explain` says of
it, its schedule as a picture, where its operators run, and its certificate.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from fractions import Fraction

from ...models.pipelines.work import PER_SECOND
from ...models.problem.claims import Verdict
from ...models.schedules.pipeline import Pipeline
from ...models.schedules.problem import ScheduleProblem
from ...models.text import bytes_text, seconds_text
from ...proofs.overlap.certificate import OverlapCertificate
from ...proofs.pipelines.certificate import PipelineCertificate
from ...proofs.publishing.publisher import Opened
from ...proofs.views.certificate import SubmeshCertificate
from ..explain.differing import Differing, placement_table
from ..explain.views import branch_summaries
from ..plans.overlap.explain import explain_overlap
from ..plans.pipelines.explain import explain_pipeline
from ..schedules.drawing import picture
from .drawing import REPLICATED, Palette, degrees, key, strip
from .page import MOST_ROWS, among_rows, facts, page
from .words import escape, sentence

_HIDDEN = "<p>All are hidden.</p>"

Section = tuple[str, str, str]
"""Anchor, head and text."""


def parts_page(found: Opened) -> str:
    """The page of a plan that has more than placements on the machine."""
    held = found.held
    match held:
        case PipelineCertificate():
            own = _stages(held)
        case OverlapCertificate():
            own = _streams(held, found.scale)
        case SubmeshCertificate():
            own = _branches(held)
        case _:
            raise TypeError("a plan of placements alone has a page of its own")
    sections = [("summary", "", _summary(found)), *own, _placements(found), _certificate(found)]
    return page(f"{held.graph.name} on {held.machine.name}", sections)


def parts_diff_page(first: Opened, second: Opened, found: Differing) -> str:
    """The page of two plans of one model, of which not both are of placements alone."""
    steps = [seconds_text(t.numerator, t.denominator) for t in found.steps]
    numbers = facts([(f"first: {found.parts[0]}", steps[0]), (f"second: {found.parts[1]}", steps[1])])
    rows = found.rows[:MOST_ROWS]
    more = f'<p class="soft">and {len(found.rows) - MOST_ROWS} more</p>' if len(found.rows) > MOST_ROWS else ""
    sections = [
        ("summary", "", numbers),
        ("placements", "Operators that are placed otherwise", _table(("operator", "first", "second"), rows) + more),
        *(
            (f"{name}-certificate", f"The certificate of the {name}", _certificate(one)[2])
            for name, one in (("first", first), ("second", second))
        ),
    ]
    return page(f"two plans of {first.held.graph.name} on {first.held.machine.name}", sections)


def _summary(found: Opened) -> str:
    held, published = found.held, found.published
    levels = " x ".join(f"{level.size} {level.name}" for level in held.machine.levels)
    memory = held.memory if isinstance(held, PipelineCertificate | OverlapCertificate) else None
    rows = [
        ("machine", f"{held.machine.name}, {levels}"),
        ("space", held.space),
        ("operators", f"{len(held.graph.operators):,}"),
        ("memory limit", "none" if memory is None else bytes_text(memory)),
    ]
    if published.cost is not None:
        cost, bound = found.seconds
        gap = f"proved within {float(1 - bound / cost):.2%} of the least" if cost and bound < cost else "proved optimal"
        step = seconds_text(cost.numerator, cost.denominator)
        rows = [("a step takes", step), ("status", gap if bound else "feasible; no bound is proved"), *rows]
    rows += among_rows(published)
    return facts(rows) + f'<p class="soft">plan <code>{escape(found.identity)}</code></p>'


def _table(heads: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    """The first column is text, the others stand right."""
    first, *others = heads
    head = f"<tr><th>{escape(first)}</th>" + "".join(f'<th class="n">{escape(h)}</th>' for h in others) + "</tr>"
    body = "".join(
        f'<tr><td class="name">{escape(row[0])}</td>'
        + "".join(f'<td class="n">{escape(cell)}</td>' for cell in row[1:])
        + "</tr>"
        for row in rows
    )
    return f"<table>{head}{body}</table>"


def _stages(c: PipelineCertificate) -> list[Section]:
    report, pipe = explain_pipeline(c), c.schedule.subject
    assert isinstance(pipe, Pipeline)
    rows = [
        (
            f"{s}, from {r.begins}",
            f"{r.devices[0]}..{r.devices[1]}",
            str(r.units),
            *(seconds_text(round(t * PER_SECOND), PER_SECOND) for t in (r.forward, r.backward, r.update)),
            f"{float(r.busy):.1%}",
            f"{float(r.moving):.1%}",
            str(r.kept),
            bytes_text(r.peak),
            " | ".join(level.words() for level in r.levels),
        )
        for s, r in enumerate(report.stages)
    ]
    heads = ("stage", "devices", "units", "forward", "backward", "updates", "busy", "moving", "kept", "memory", "how")
    cases = "this number" if c.case_count == 1 else f"{c.case_count} pairs of numbers"
    micro = f"<p>{c.micro} micro-batches; the claim is about {cases} of stages and micro-batches.</p>"
    drawn = picture(pipe.problem(), c.schedule.starts, "One step", Fraction(c.quantum, PER_SECOND))
    return [("stages", "Stages", micro + _table(heads, rows)), ("schedule", "Schedule", drawn)]


def _streams(c: OverlapCertificate, scale: int) -> list[Section]:
    if c.schedule is None:
        return [("fits", "Nothing fits", "<p>No placement fits the limit, in whatever order.</p>")]
    report, subject = explain_overlap(c, scale), c.schedule.subject
    assert isinstance(subject, ScheduleProblem)
    operators, moved = (seconds_text(t, scale) for t in report.sums)
    copied = sum(e.time for e in report.rows if e.host)
    copies = f", copies to hosts and back {seconds_text(copied, scale)} on another" if copied else ""
    text = f"<p>Operators take {operators}, reshardings {moved} on a stream beside them{copies}.</p>"
    rows = [
        (e.name, seconds_text(e.time, scale), seconds_text(e.exposed, scale), e.waiting)
        for e in report.rows[:MOST_ROWS]
        if e.exposed
    ]
    table = _table(("resharding", "takes", "exposed", "who waits"), rows) if rows else _HIDDEN if report.sums[1] else ""
    drawn = picture(subject, c.schedule.starts, "One step", Fraction(c.quantum, scale))
    return [("streams", "Two streams", text + table), ("schedule", "Schedule", drawn)]


def _branches(c: SubmeshCertificate) -> list[Section]:
    levels = [level.name for level in c.machine.levels]
    rows = [
        (
            f"region {b.region}: {b.first} .. {b.last}",
            str(b.operators),
            "the whole machine" if b.view is None else b.view.words(levels, c.machine.hierarchy),
        )
        for b in branch_summaries(c)
    ]
    return [("branches", "Branches", _table(("branch", "operators", "where"), rows))]


def _placements(found: Opened) -> Section:
    palette, rows, machine = Palette(), [], found.held.machine
    listed = placement_table(found.held)
    for name, (placement, where) in list(listed.items())[:MOST_ROWS]:
        drawn = strip(placement, degrees(placement) or machine.hierarchy, palette)
        rows.append(f'<tr><td class="name">{escape(name)}</td><td>{escape(where)}</td><td>{drawn}</td></tr>')
    more = f'<p class="soft">and {len(listed) - MOST_ROWS} operators more</p>' if len(listed) > MOST_ROWS else ""
    table = f"<table><tr><th>operator</th><th>where</th><th>placement</th></tr>{''.join(rows)}</table>"
    return "placements", "Placements", key({**palette.colours, "copies": REPLICATED}, "axes") + table + more


def _certificate(found: Opened) -> Section:
    published = found.published
    proved = published.verdict is Verdict.PROVED
    assumed = "".join(
        f"<li><code>{escape(f.partition('(')[0])}</code> {escape(sentence(f))}</li>" for f in published.assumptions
    )
    reason = escape(": " + published.reason) if published.reason else ""
    text = (
        f"<p>Claim <b>{escape(published.kind)}</b>. The checker, which loads no search and no solver, says "
        f'<b class="{"proved" if proved else "not"}">{escape(published.verdict.value)}</b>{reason}. Check it again: '
        f"<code>shardproof check PLAN</code>.</p><p>It holds under these assumptions:</p><ul>{assumed}</ul>"
    )
    return "certificate", "Certificate and assumptions", text
