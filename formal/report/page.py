"""Writes a checked plan, or the difference of two, as one page of HTML that needs nothing else.

What is on the page is what `explain` says: every number comes from the plan's tables or its certificate.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from ...models.communication.shardings import plan_shardings
from ...models.layout.mesh import MeshError
from ...models.problem.claims import Verdict
from ...models.problem.unit import rounding_text
from ...models.text import bytes_text as memory_text
from ...proofs.plan.bundle import Plan
from ...proofs.publishing.publisher import Published
from ..explain.compare import Comparison
from ..explain.explain import Explanation, OperatorTerms, percent_above
from ..plans.remarks import Remark
from ..plans.report import amount, bytes_text, label, pattern, percent
from .drawing import PARTS, REPLICATED, Palette, bar, key, steps, strip
from .memory import held_over_time
from .program import program_drawing
from .words import escape, sentence

MOST_ROWS = 400
"""Rows of the table of operators; the cheapest beyond are one row."""
MOST_BARS = 24
"""Rows of the other tables."""

STYLE = """
:root{color-scheme:light;--ink:#1d1d1b;--soft:#6b6b66;--line:#dcdcd6;--paper:#fcfcfa}
body{font:15px/1.5 system-ui,sans-serif;color:var(--ink);background:var(--paper);margin:0 auto;max-width:1120px;
padding:24px}
h1{font-size:1.6em;margin:.2em 0}h2{font-size:1.15em;margin:2em 0 .5em;border-bottom:1px solid var(--line)}
nav{margin-bottom:1em}nav a{margin-right:1.1em}a{color:#2f6db5;text-decoration:none}a:hover{text-decoration:underline}
table{border-collapse:collapse;font-size:13px;width:100%}th{text-align:left;color:var(--soft);font-weight:500}
td,th{padding:3px 10px 3px 0;vertical-align:middle;border-bottom:1px solid #eeeee9}
td.n,th.n{text-align:right;white-space:nowrap}
td.name{overflow-wrap:anywhere;min-width:180px}tr:target{background:#fff3c9}
.facts{display:flex;flex-wrap:wrap;gap:10px}
.facts div{border:1px solid var(--line);border-radius:6px;padding:8px 14px;background:#fff}
.facts b{display:block;font-size:1.25em}.facts span,.soft{color:var(--soft)}
.key b{font-weight:500;font-size:13px;margin-right:1em}.key span{margin-right:1em;font-size:13px;white-space:nowrap}
.key i{display:inline-block;width:12px;height:12px;margin-right:5px;border-radius:2px}
svg text{font:11px system-ui,sans-serif}svg .on{fill:#fff;text-anchor:middle;font-size:10.5px}svg .axis{fill:#6b6b66}
svg .end{text-anchor:end}svg .mid{text-anchor:middle}
svg .grid{stroke:#e6e6e0}svg .limit{stroke:#b8474f;stroke-dasharray:5 4}
svg.wide{width:100%;height:auto;background:#fff;border:1px solid var(--line);border-radius:6px}
svg.strip{border-radius:3px}
.proved{color:#2c7a45}.not{color:#b8474f}ul{padding-left:1.2em}code{font-size:.92em;overflow-wrap:anywhere}
section{overflow-x:auto}
"""


@dataclass(frozen=True, eq=False)
class PageSubject:
    """What a page of one plan is made of.  `published`: what the checker said of its bytes."""

    plan: Plan
    published: Published
    explanation: Explanation
    remarks: Sequence[Remark] = ()


def plan_page(shown: PageSubject) -> str:
    """The page of a plan."""
    plan, e = shown.plan, shown.explanation
    groups = _groups(e)
    palette = Palette()
    layers = _layers(shown, groups, palette)
    sections = [
        ("summary", "", _summary(shown)),
        ("mesh", "Mesh and layers", key({**palette.colours, "copies": REPLICATED}, "axes") + _mesh(plan) + layers),
        ("program", "Narrow places", _program(plan, e)),
        ("memory", "Memory over the step", _memory(plan)),
        ("communication", "Communication", _communication(e, groups)),
        ("decides", "What decides", _decides(shown, groups)),
        ("certificate", "Certificate and assumptions", _certificate(shown)),
    ]
    return page(f"{plan.graph.name} on {plan.machine.name}", sections)


def diff_page(first: PageSubject, second: PageSubject, compared: Comparison) -> str:
    """The page of two plans for one problem."""
    p = compared.problem
    rows = "".join(
        f'<tr><td class="name">{escape(label(r.names))}</td><td class="n">{f"x{r.count}" if r.count > 1 else ""}</td>'
        f"<td>{escape(r.first)}</td><td>{escape(r.second)}</td>"
        f'<td class="n">{amount(r.difference, p, signed=True)}</td></tr>'
        for r in compared.rows[:MOST_ROWS]
    )
    other = len(compared.rows) - MOST_ROWS
    table = (
        '<table><tr><th>term</th><th></th><th>first</th><th>second</th><th class="n">second costs more</th></tr>'
        f"{rows}</table>" + (f'<p class="soft">and {other} rows more</p>' if other > 0 else "")
    )
    numbers = facts(
        [
            ("first", amount(compared.first_cost, p)),
            ("second", amount(compared.second_cost, p)),
            ("difference", amount(compared.difference, p, signed=True)),
        ]
    )
    sections = [
        ("summary", "", numbers),
        ("terms", "Every term in which they differ", table),
        ("first", "The first in memory", _memory(first.plan)),
        ("second", "The second in memory", _memory(second.plan)),
        ("certificate", "Certificates", _certificate(first) + _certificate(second)),
    ]
    return page(f"two plans of {first.plan.graph.name} on {first.plan.machine.name}", sections)


def page(title: str, sections: list[tuple[str, str, str]]) -> str:
    """HTML of sections: anchor, head and text of each."""
    links = "".join(f'<a href="#{name}">{escape(head)}</a>' for name, head, _ in sections if head)
    body = "".join(
        f'<section id="{name}">{f"<h2>{escape(head)}</h2>" if head else ""}{text}</section>'
        for name, head, text in sections
    )
    return (
        f'<!doctype html>\n<html lang="en"><head><meta charset="utf-8"><title>{escape(title)}</title>'
        f'<meta name="viewport" content="width=device-width"><style>{STYLE}</style></head><body>'
        f"<h1>{escape(title)}</h1><nav>{links}</nav>{body}</body></html>\n"
    )


def facts(pairs: Sequence[tuple[str, str]]) -> str:
    """Boxes of a name and a value each."""
    return (
        '<div class="facts">'
        + "".join(f"<div><b>{escape(b)}</b><span>{escape(a)}</span></div>" for a, b in pairs)
        + "</div>"
    )


def _bound(shown: PageSubject) -> int | None:
    """Bound of the claim.  A joint plan's is about all programs that its e-graph holds, and the checker's to say."""
    return shown.explanation.lower_bound if shown.plan.joint is None else shown.published.lower_bound


def _status(shown: PageSubject) -> str:
    e, bound = shown.explanation, _bound(shown)
    if bound is None:
        return "feasible; no bound is proved"
    if bound >= e.cost:
        return "proved optimal"
    return f"proved within {percent(e.cost - bound, e.cost)} of the optimum"


def _summary(shown: PageSubject) -> str:
    plan, e = shown.plan, shown.explanation
    p = e.planning.problem
    levels = " x ".join(f"{level.size} {level.name}" for level in plan.machine.levels)
    held = held_over_time(plan.graph, plan.machine, plan.choices)
    peak = max((int(v.max()) for v in held.values() if v.size), default=0)
    rows = [
        ("a step takes", amount(e.cost, p)),
        ("status", _status(shown)),
        ("machine", f"{plan.machine.name}, {levels}"),
        ("space", plan.space),
        ("operators", f"{len(plan.graph.operators):,}"),
        ("most memory on a device", memory_text(peak)),
        ("memory limit", "none" if plan.memory_limit is None else memory_text(plan.memory_limit)),
        *among_rows(shown.published),
    ]
    words = f"<p>{escape(e.parallelism())}</p>" if e.scheme else ""
    return facts(rows) + words + f'<p class="soft">plan <code>{escape(shown.published.identity)}</code></p>'


def among_rows(published: Published) -> list[tuple[str, str]]:
    """Of the best of several plans: a row for each."""
    return [(f"plan {i} of {len(published.among)}", one.words) for i, one in enumerate(published.among, 1)]


def _groups(e: Explanation) -> list[list[OperatorTerms]]:
    """Operators, and copies that cost something; repeated layers together."""
    found: dict[tuple[object, ...], list[OperatorTerms]] = {}
    for o in e.operators:
        if o.kind == "copy" and not o.time:
            continue
        found.setdefault((o.kind, pattern(o.name), o.words, o.time), []).append(o)
    return list(found.values())


def _title(members: list[OperatorTerms]) -> str:
    return ("copy of " if members[0].kind == "copy" else "") + label([m.name for m in members])


def _mesh(plan: Plan) -> str:
    try:
        found = plan_shardings(plan.graph, plan.machine.hierarchy, [v.name for v in plan.machine.levels], plan.choices)
    except MeshError as error:
        return f'<p class="soft">No mesh of named dimensions holds this plan: {escape(str(error))}.</p>'
    dimensions = " x ".join(f"{d.name} {d.size}" for d in found.mesh.dimensions)
    return (
        f"<p>Mesh: {escape(dimensions)}. A strip has a box per level of the machine; its colours are the axes that cut "
        f"it.</p>"
    )


def _program(plan: Plan, e: Explanation) -> str:
    times = {o.name: o.time for o in e.operators if o.kind == "operator"}
    return program_drawing(plan.graph, times, e.planning.problem)


def _layers(shown: PageSubject, groups: list[list[OperatorTerms]], palette: Palette) -> str:
    plan, e = shown.plan, shown.explanation
    placements, copies = dict(plan.choices.operators), dict(plan.choices.copies)
    p = e.planning.problem
    most = max((len(g) * g[0].time for g in groups), default=1)
    rows, left = [], 0
    heavy = sorted(range(len(groups)), key=lambda i: -len(groups[i]) * groups[i][0].time)[:MOST_ROWS]
    shown_groups = set(heavy)
    for number, members in enumerate(groups):
        one, n = members[0], len(members)
        if number not in shown_groups:
            left += n * one.time
            continue
        placement = placements[one.name] if one.kind == "operator" else copies[one.name]
        parts = {
            "compute": n * one.compute,
            "reduction": n * (one.statistics + one.summing),
            "resharding": n * one.moving,
        }
        rows.append(
            f'<tr id="g{number}"><td class="name">{escape(_title(members))}</td>'
            f'<td class="n">{f"x{n}" if n > 1 else ""}</td>'
            f"<td>{strip(placement, plan.machine.hierarchy, palette, one.kind == 'copy')}</td>"
            f"<td>{bar(parts, most, 200)}</td>"
            f'<td class="n">{amount(n * one.time, p)}</td></tr>'
        )
    head = '<tr><th>operator</th><th></th><th>placement</th><th>time</th><th class="n"></th></tr>'
    rest = (
        f'<p class="soft">{len(groups) - len(heavy)} rows more take {amount(left, p)} together.</p>'
        if len(groups) > len(heavy)
        else ""
    )
    return f"{key(PARTS, 'time')}<table>{head}{''.join(rows)}</table>{rest}"


def _memory(plan: Plan) -> str:
    held = {k: v.tolist() for k, v in held_over_time(plan.graph, plan.machine, plan.choices).items()}
    peak = max((max(v, default=0) for v in held.values()), default=0)
    unit, name = next(
        (
            (u, t)
            for u, t in ((1 << 30, "GiB"), (1 << 20, "MiB"), (1 << 10, "KiB"))
            if max(peak, plan.memory_limit or 0) >= u
        ),
        (1, "bytes"),
    )
    said = "; ".join(
        f"{cls}: most {memory_text(max(v))} at step {v.index(max(v))}, {plan.graph.operators[v.index(max(v))].name}"
        for cls, v in held.items()
        if v
    )
    return steps(held, plan.memory_limit, unit, name) + f"<p>{escape(said)}</p>"


def _communication(e: Explanation, groups: list[list[OperatorTerms]]) -> str:
    levels = [level.name for level in e.planning.machine.levels]
    totals = [sum(o.bytes_per_level[i] for o in e.operators) for i in range(len(levels))]
    p = e.planning.problem
    head = "".join(f'<th class="n">{escape(name)}</th>' for name in levels)
    moving = [(i, g) for i, g in enumerate(groups) if any(g[0].bytes_per_level)]
    moving.sort(key=lambda ig: -len(ig[1]) * (ig[1][0].summing + ig[1][0].moving))
    rows = "".join(
        f'<tr><td class="name"><a href="#g{i}">{escape(_title(g))}</a></td>'
        + "".join(f'<td class="n">{bytes_text(len(g) * b) if b else "-"}</td>' for b in g[0].bytes_per_level)
        + f'<td class="n">{amount(len(g) * (g[0].summing + g[0].moving), p)}</td></tr>'
        for i, g in moving[:MOST_BARS]
    )
    total = "".join(f'<td class="n"><b>{bytes_text(t)}</b></td>' for t in totals)
    if not moving:
        return "<p>Nothing moves.</p>"
    more = f'<p class="soft">and {len(moving) - MOST_BARS} rows more</p>' if len(moving) > MOST_BARS else ""
    return (
        "<p>Bytes through the busiest link of every level, and the time of it.</p>"
        f'<table><tr><th>operator</th>{head}<th class="n">time</th></tr>{rows}'
        f"<tr><td>all of the plan</td>{total}<td></td></tr></table>{more}"
    )


def _decides(shown: PageSubject, groups: list[list[OperatorTerms]]) -> str:
    e = shown.explanation
    p = e.planning.problem
    sums = {
        "compute": sum(o.compute for o in e.operators),
        "reduction": sum(o.statistics + o.summing for o in e.operators),
        "resharding": sum(o.moving for o in e.operators),
    }
    causes = "".join(
        f'<tr><td>{name}</td><td>{bar({name: t}, e.cost)}</td><td class="n">{amount(t, p)}</td>'
        f'<td class="n">{percent(t, e.cost)}</td></tr>'
        for name, t in sums.items()
    )
    priced = [(i, g) for i, g in enumerate(groups) if g[0].at_most is not None]
    priced.sort(key=lambda ig: -(ig[1][0].at_least or 0))
    rows = "".join(
        f'<tr><td class="name"><a href="#g{i}">{escape(_title(g))}</a></td>'
        f"<td>{escape(g[0].words)}</td><td>{escape(g[0].neighbour or '')}</td>"
        f'<td class="n">{amount(g[0].at_least, p, signed=True)}</td>'
        f'<td class="n">{amount(g[0].at_most, p, signed=True)}</td></tr>'
        for i, g in priced[:MOST_BARS]
    )
    worth = "".join(
        f"<li>If every true cost is within {100 * float(w.error):g} % of the table, the plan is within "
        f"{percent_above(w.ratio)} of the true optimum.</li>"
        for w in e.worth
    )
    remarks = "".join(f"<li>{escape(r.words)}</li>" for r in shown.remarks)
    return (
        f"<table>{causes}</table><h3>Choices that the certificate holds fast</h3>"
        "<p>Another choice costs at least what the certificate proves, and at most what it costs with everything else "
        "unchanged.</p>"
        '<table><tr><th>operator</th><th>placement</th><th>cheapest alone</th><th class="n">at least</th>'
        f'<th class="n">at most</th></tr>{rows}</table><ul>{worth}{remarks}</ul>'
    )


def _certificate(shown: PageSubject) -> str:
    e, published = shown.explanation, shown.published
    p = e.planning.problem
    proved = published.verdict is Verdict.PROVED
    proved_bound, joint = _bound(shown), shown.plan.joint is not None
    bound = "nothing finite" if proved_bound is None else amount(proved_bound, p)
    what = "no plan of any program of its e-graph, in the" if joint else "no plan of the"
    assumed = "".join(
        f"<li><code>{escape(f.partition('(')[0])}</code> {escape(sentence(f))}</li>"
        for f in published.assumptions or p.assumptions
    )
    return (
        f"<p>Claim <b>{escape(published.kind)}</b>: {what} space <code>{escape(p.space or '')}</code> takes "
        f"less than {bound}; this one takes {amount(e.cost, p)}. The checker, which loads no search and no solver, "
        f"says "
        f'<b class="{"proved" if proved else "not"}">{escape(published.verdict.value)}</b>'
        f"{escape(': ' + published.reason) if published.reason else ''}. Check it again: "
        f"<code>shardproof check PLAN</code>; {escape(rounding_text(p))}.</p>"
        f"<p>It holds under these assumptions:</p><ul>{assumed}</ul>"
    )
