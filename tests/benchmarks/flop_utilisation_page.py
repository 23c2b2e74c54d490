"""The page of `flop_utilisation.py`: plans beside published steps, and what lies between."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from flop_utilisation import CASES, Case

HEAD = """# Model FLOP utilisation: plans beside published steps

Written by `python tests/benchmarks/flop_utilisation.py --page`; plans by the same script without `--page` (`one-per-level`, gap 3 %,
memory 80 GiB a device, placements chosen by the planner: not the published ones).  Utilisation is 3 x the forward work of products,
experts and attention (a causal mask's pairs once) over seconds, devices and the nominal dense peak, for the plan and for the published
step alike.

*In a row*: the plan's cost as claimed, nothing overlaps.  *Hidden*: the larger of all operators and all movements, the most that overlap
can give.  The published step, which overlaps what it can, should lie between.

| model | machine | published | utilisation | plan in a row | hidden | published between | certified gap |
|---|---|---|---|---|---|---|---|
"""


def page(found: Mapping[str, Any]) -> str:
    """The whole page; cases without a result are left out and said to be."""
    lines, notes = [], []
    for name, case in CASES.items():
        if name not in found:
            notes.append(f"* **{name}**: not planned.")
            continue
        row = found[name]
        serial, hidden = seconds(row, case)
        published = published_seconds(row, case)
        between = hidden <= published <= serial
        lines.append(
            f"| {name} | `{case.machine}` | {published:.3g} s | {share(row, case, published)} "
            f"| {serial:.3g} s, {share(row, case, serial)} ({off(serial, published)}) "
            f"| {hidden:.3g} s, {share(row, case, hidden)} ({off(hidden, published)}) "
            f"| {'yes' if between else 'no'} | {100 * row['gap']:.2g} % |"
        )
        notes.append(note(name, case, row))
    return HEAD + "\n".join(lines) + "\n\n## Why they differ\n\n" + "\n".join(notes) + "\n"


def seconds(row: Mapping[str, Any], case: Case) -> tuple[float, float]:
    """In a row, and with movements hidden."""
    work, moved = row["seconds"]["operators"], row["seconds"]["movements"]
    operators, movements = (case.count * part["FB"] + part["U"] for part in (work, moved))
    return operators + movements, max(operators, movements)


def total_work(row: Mapping[str, Any], case: Case) -> float:
    """Operations of a step."""
    return 3.0 * row["forward_work"] * case.count


def devices(case: Case) -> int:
    """Of the machine."""
    out = 1
    for size in case.machine.partition(":")[2].split("x"):
        out *= int(size)
    return out


def published_seconds(row: Mapping[str, Any], case: Case) -> float:
    """As printed, or from the printed rate by our count of the work."""
    return case.published or total_work(row, case) / (devices(case) * case.rate)


def share(row: Mapping[str, Any], case: Case, time: float) -> str:
    """Utilisation in words."""
    return f"{100 * total_work(row, case) / (time * devices(case) * case.peak):.1f} %"


def off(time: float, published: float) -> str:
    """How far from the published step."""
    return f"{100 * (time / published - 1):+.0f} %"


def note(name: str, case: Case, row: Mapping[str, Any]) -> str:
    """One case in words, with its dearest formulas."""
    work = row["seconds"]["operators"]["FB"]
    dear = ", ".join(f"{k} {100 * v / work:.0f} %" for k, v in list(by_cost(row["formulas"]))[:5])
    recompute = "" if case.recompute == "none" else ", every block recomputed"
    micro = "" if case.count == 1 else f", {case.count} micro-batches of {case.batch}"
    return (
        f"* **{name}**.  Published: {case.source}; {case.strategy}.  Plan: {case.precision}{micro}{recompute}; "
        f"{row['processor_seconds']} s of the processor.  Operators of a micro-batch: {dear}.  {case.missing}"
    )


def by_cost(formulas: Mapping[str, float]) -> list[tuple[str, float]]:
    """Dearest first."""
    return sorted(formulas.items(), key=lambda item: -item[1])
