"""Shows a rule for people: both sides as text and as SVG, and its proof in words."""

from __future__ import annotations

from html import escape
from typing import assert_never

from ...models.rewrites.forced import at_degree_one_only, forced_texts
from ...models.rewrites.rule import Node, Pattern, Substitution
from ...models.rewrites.terms import sides_text
from ...proofs.rewrites.judgement import (
    Case,
    Cluster,
    Counterexample,
    Cut,
    Digits,
    Empty,
    Equality,
    Judgement,
    Keep,
    Known,
    Larger,
    Leaf,
    Pin,
    Proved,
    Refuted,
    Shown,
    Split,
    Step,
    Undecided,
    Unequal,
    Vacuous,
    Void,
    Zero,
)

WIDE, HIGH, GAP = 180, 30, 26


def input_text(p: Pattern) -> str:
    """`x: rank 2, any degrees`.

    >>> input_text(Pattern("w", 4, ((2, 3), (3, 3))))
    'w: rank 4, size 3 on axis 2, size 3 on axis 3, not sharded'
    """
    fixed = [f"size {n} on axis {a}" for a, n in p.fixed]
    return ", ".join([f"{p.name}: rank {p.rank}", *fixed, "any degrees" if p.sharded else "not sharded"])


def node_text(n: Node) -> str:
    """Operator and parameters."""
    words = [
        f"{k}={''.join(map(str, v)) if isinstance(v, tuple) else v}"
        for k, v in n.parameters
        if (k, v) != ("activation", "none")
    ]
    return f"{n.operator}[{', '.join(words)}]" if words else n.operator


def side_lines(rule: Substitution, nodes: tuple[Node, ...], outputs: tuple[int, ...]) -> list[str]:
    """One line per operator."""

    def wire(w: int) -> str:
        return f"%{w}" if w >= 0 else rule.inputs[-1 - w].name

    lines = [f"%{k} = {node_text(n)}({', '.join(map(wire, n.inputs))})" for k, n in enumerate(nodes)]
    return [*lines, f"gives {', '.join(map(wire, outputs))}"]


def rule_text(rule: Substitution, forced: tuple[tuple[str, int], ...] = ()) -> list[str]:
    """Both sides side by side, inputs, preconditions, and what typing forces."""
    left, right = sides_text(rule)
    lines = [f"rule {rule.name}:  {left}  =>  {right}", ""]
    a = side_lines(rule, rule.left, tuple(x for x, _ in rule.outputs))
    b = side_lines(rule, rule.right, tuple(y for _, y in rule.outputs))
    width = max(map(len, a))
    for k in range(max(len(a), len(b))):
        one, other = a[k] if k < len(a) else "", b[k] if k < len(b) else ""
        lines.append(f"  {one:<{width}}   |   {other}".rstrip())
    lines += ["", "for all", *(f"  {input_text(p)}" for p in rule.inputs)]
    if rule.symbols:
        lines.append(f"  {', '.join(rule.symbols)} >= 1")
    lines.append(
        "such that the left side types"
        + (", and" if rule.preconditions else "" if forced else "; no further precondition")
    )
    lines += [f"  {c}" for c in rule.preconditions]
    texts = forced_texts(rule, forced)
    if texts:
        lines += ["typing forces", *(f"  {t}" for t in texts)]
    ones = at_degree_one_only(rule, forced)
    return [*lines, f"holds at degree 1 only: {', '.join(ones)} can be nothing else"] if ones else lines


def judgement_text(judgement: Judgement) -> list[str]:
    """Verdict and proof, or counterexample, in words."""
    match judgement:
        case Proved():
            lines = ["proved"]
            for case in judgement.cases:
                lines += _case(case, judgement.rule)
            for c, e in zip(judgement.rule.preconditions, judgement.needed, strict=True):
                lines.append(f"  without {c}: fails ({e.what}) at {_instance(e)}")
            lines.append(f"  holds for example at {', '.join(f'{k} = {v}' for k, v in judgement.witness)}")
            return lines
        case Refuted():
            return ["refuted", *counterexample_text(judgement.rule, judgement.counterexample)]
        case Vacuous():
            if judgement.violation is not None:
                where = "on every instance" if judgement.cases else "where it was looked at"
                return [
                    f"vacuous: the left side reads unequal copies {where}",
                    *counterexample_text(judgement.rule, judgement.violation),
                ]
            return ["vacuous: the left side types for no sizes"]
        case Undecided():
            return [f"undecided: {judgement.reason}"]
        case _:
            assert_never(judgement)


def counterexample_text(rule: Substitution, e: Counterexample) -> list[str]:
    """Sizes, entries, and what goes wrong."""
    what = {
        "typing": "the right side does not type",
        "shape": "an output has another type",
        "copy": "copies that must be equal are not",
        "value": "an output has another value",
    }.get(e.what, e.what)
    lines = [f"  at {_instance(e)}: {what}"]
    for p, values in zip(rule.inputs, e.values, strict=False):
        if values:
            shown = ", ".join(map(str, values[:24])) + (", .." if len(values) > 24 else "")
            lines.append(f"    {p.name} = [{shown}]")
    return lines


def _instance(e: Counterexample) -> str:
    return ", ".join(f"{k} = {v}" for k, v in e.instance)


def _case(case: Case, rule: Substitution) -> list[str]:
    head = f"  case {case.choices}: " if case.choices else "  "
    match case.outcome:
        case Void():
            return [f"{head}no instance falls under it"]
        case Unequal() as u:
            names = ", ".join(rule.inputs[k].name for k in u.ones)
            return [
                (
                    f"{head}copies differ: with {names} all 1 and the other inputs all 0, replicas 0 and {u.at} are 0 "
                    f"and positive"
                )
            ]
        case Shown() as shown:
            facts = sum(map(len, shown.owed))
            lines = [
                f"{head}types of the right side follow from those of the left"
                + (f" by {facts} linear facts" if facts else " directly")
            ]
            for k, e in enumerate(shown.copies):
                lines += [f"    copies {k} are equal:", *_equality(e, 6)]
            for k, e in enumerate(shown.outputs):
                lines += [f"    output {k}:", *_equality(e, 6)]
            return lines
        case _:
            assert_never(case.outcome)


def _equality(e: Equality, deep: int) -> list[str]:
    pad = " " * deep
    match e:
        case Split():
            return [
                f"{pad}either {e.guard} >= 0:",
                *_equality(e.yes, deep + 2),
                f"{pad}or {e.guard} < 0:",
                *_equality(e.no, deep + 2),
            ]
        case Larger():
            return [
                f"{pad}either maximum {e.number} is its first argument:",
                *_equality(e.first, deep + 2),
                f"{pad}or its second:",
                *_equality(e.second, deep + 2),
            ]
        case Empty():
            return [f"{pad}this cannot happen ({_fact(len(e.fact))})"]
        case Leaf():
            lines = []
            for word, steps in (("left", e.left), ("right", e.right)):
                for k, step in enumerate(steps):
                    lines += [f"{pad}{word} term {k}: {said}" for said in _step(step)]
            return [*lines, *(f"{pad}{_cluster(c)}" for c in e.clusters)] or [f"{pad}both sides are 0"]
        case _:
            assert_never(e)


def _step(step: Step) -> list[str]:
    match step:
        case Keep():
            return []
        case Zero():
            return [f"vanishes ({_fact(len(step.fact))})"]
        case Cut():
            return [f"is cut at {step.guard} >= 0", *_step(step.yes), *_step(step.no)]
        case Pin():
            return [f"{step.variable} can only be {step.value}", *_step(step.rest)]
        case Digits():
            return [f"{step.variable} is written in digits of base {step.modulus}", *_step(step.rest)]
        case Known():
            inside = [f"in the argument: {said}" for s in step.steps for said in _step(s)]
            return [
                *inside,
                f"is rewritten by the axiom {step.axiom!r} of its function",
                *(said for s in step.rest for said in _step(s)),
            ]
        case _:
            assert_never(step)


def _cluster(c: Cluster) -> str:
    if not c.others:
        return f"term {c.first} cancels by itself"
    parts = []
    for m in c.others:
        renamed = ", ".join(f"{v} -> {p}" for v, p in m.assignment if str(p) != v)
        parts.append(f"term {m.number}" + (f" with {renamed}" if renamed else ""))
    return f"term {c.first} equals {'; '.join(parts)}"


def _fact(n: int) -> str:
    return "visibly" if n == 0 else f"a combination of {n} inequalities"


def rule_svg(rule: Substitution) -> str:
    """Both sides drawn: inputs on top, outputs at the bottom, an arrow between the sides."""
    left, wide, high = _drawn(rule, rule.left, tuple(a for a, _ in rule.outputs), 20)
    right, wide2, high2 = _drawn(rule, rule.right, tuple(b for _, b in rule.outputs), wide + 90)
    middle = max(high, high2) / 2
    arrow = f'<text x="{wide + 45}" y="{middle}" text-anchor="middle" font-size="26">&#8658;</text>'
    title = escape(f"{rule.name}: {'  =>  '.join(sides_text(rule))}")
    conditions = escape(", ".join(map(str, rule.preconditions)) or "no precondition")
    width, height = wide2 + 20, max(high, high2) + 60
    style = (
        "<style>text{font-family:sans-serif;font-size:12px}.p rect{fill:#fde2c4}.o rect{fill:#d7eed7}.i "
        "rect{fill:#e8e8f4}rect{stroke:#555}path{stroke:#555;fill:none}</style>"
    )
    foot = f'<text x="20" y="{height - 12}">{conditions}</text>'
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" width="{width}" height="{height}" viewBox="0 0 {width} {height}">'
        f"<title>{title}</title>{style}{left}{arrow}{right}{foot}</svg>\n"
    )


_PARALLEL = frozenset(
    {"partition", "combine", "replicate", "reduce", "stack", "tile", "block_sum", "pipeline", "batch", "accumulate"}
)


def _drawn(rule: Substitution, nodes: tuple[Node, ...], outputs: tuple[int, ...], x0: int) -> tuple[str, int, int]:
    used = sorted({w for n in nodes for w in n.inputs if w < 0} | {w for w in outputs if w < 0}, reverse=True)
    level: dict[int, int] = dict.fromkeys(used, 0)
    for k, n in enumerate(nodes):
        level[k] = 1 + max((level[w] for w in n.inputs), default=0)
    rows: dict[int, list[int]] = {}
    for w, l in level.items():
        rows.setdefault(l, []).append(w)
    place: dict[int, tuple[int, int]] = {}
    columns = max(map(len, rows.values()), default=1)
    total = columns * (WIDE + GAP)
    parts = []
    for l, row in sorted(rows.items()):
        start = x0 + (total - len(row) * (WIDE + GAP)) // 2
        for k, w in enumerate(row):
            place[w] = (start + k * (WIDE + GAP), 20 + l * (HIGH + GAP))
    for k, n in enumerate(nodes):
        x, y = place[k]
        for j, w in enumerate(n.inputs):
            u, v = place[w]
            end = x + WIDE * (j + 1) // (len(n.inputs) + 1)
            parts.append(
                f'<path d="M{u + WIDE // 2},{v + HIGH} C{u + WIDE // 2},{v + HIGH + 14} {end},{y - 14} {end},{y}"/>'
            )
    for w, (x, y) in place.items():
        word = rule.inputs[-1 - w].name if w < 0 else node_text(nodes[w])
        kind = "i" if w < 0 else "p" if nodes[w].operator in _PARALLEL else "o"
        bold = ' stroke-width="2.5"' if w in outputs else ""
        parts.append(
            f'<g class="{kind}"><rect x="{x}" y="{y}" width="{WIDE}" height="{HIGH}" rx="5"{bold}/>'
            f'<text x="{x + WIDE // 2}" y="{y + 19}" text-anchor="middle">{escape(word)}</text></g>'
        )
    return "".join(parts), x0 + total, 20 + (max(rows, default=0) + 1) * (HIGH + GAP)
