"""How two checked plans of one model on one machine differ, whatever their parts: what a step takes, what is proved,
and every operator that is placed otherwise.

Plans of placements alone that answer one problem are compared term by term instead (`compare.py`), where the rows add
up to the difference; with stages, streams or submeshes a step is no sum of terms, and programs that rules derive, other
spaces and other limits make other problems.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from fractions import Fraction
from typing import TYPE_CHECKING, assert_never

from ...models.layout.placement import Placement
from ...models.text import InputError, bytes_text, seconds_text
from ...proofs.overlap.certificate import OverlapCertificate
from ...proofs.pipelines.certificate import PipelineCertificate
from ...proofs.plan.bundle import Plan
from ...proofs.publishing.placed import parts_of
from ...proofs.publishing.publisher import Opened
from ...proofs.views.certificate import SubmeshCertificate

if TYPE_CHECKING:
    from ...proofs.publishing.publisher import AnyPlan

SHOWN = 40
"""Operators that are printed; `--json` has all."""


@dataclass(frozen=True)
class Differing:
    """`steps`: seconds of both, `bounds`: what is proved of each claim.  `parts`: of both, in words.  `rows`: operator,
    its placement in the first, in the second.
    """

    steps: tuple[Fraction, Fraction]
    bounds: tuple[Fraction, Fraction]
    parts: tuple[str, str]
    rows: tuple[tuple[str, str, str], ...]
    operators: int

    def to_json(self) -> dict[str, object]:
        """Plain data, times in seconds."""
        return {
            "step_s": [float(t) for t in self.steps],
            "lower_bound_s": [float(t) for t in self.bounds],
            "parts": list(self.parts),
            "operators": self.operators,
            "differing": [list(row) for row in self.rows],
        }


def placement_table(held: AnyPlan) -> dict[str, tuple[Placement, str]]:
    """Operator -> its placement, and where that is: on a stage, a submesh, or "" for the whole machine."""
    match held:
        case PipelineCertificate():
            return {
                name: (placement, f"stage {s % held.views}" + (f", chunk {s // held.views}" if held.chunks > 1 else ""))
                for s, stage in enumerate(held.stages)
                for name, placement in stage.choices.operators
            }
        case SubmeshCertificate():
            levels = [level.name for level in held.machine.levels]
            return {
                name: (p, "" if p.view is None else p.view.words(levels, held.machine.hierarchy))
                for name, p in held.choices.operators
            }
        case Plan() | OverlapCertificate():
            return {name: (placement, "") for name, placement in held.choices.operators}
        case _:
            assert_never(held)


def differing(first: Opened, second: Opened) -> Differing:
    """Compare.  Raises `InputError` for plans of different models or machines, and for one without choices."""
    a, b = first.held, second.held
    graphs = [opened.user_graph.sha256() for opened in (first, second)]
    for what, same in (
        ("models", graphs[0] == graphs[1]),
        ("machines", a.machine.sha256() == b.machine.sha256()),
    ):
        if not same:
            raise InputError(f"{first.place} and {second.place} are of different {what}: nothing to compare")
    words = [_words(held) for held in (a, b)]
    names = [op.name for op in a.graph.operators]
    names += [name for name in words[1] if name not in words[0]]
    rows = [(n, words[0].get(n, "not there"), words[1].get(n, "not there")) for n in names]
    costs, bounds = zip(first.seconds, second.seconds, strict=True)
    kept = tuple(row for row in rows if row[1] != row[2])
    asked = [(held.space, memory_limit(held)) for held in (a, b)]
    told = [parts_of(held) + _asked_words(mine, asked) for held, mine in zip((a, b), asked, strict=True)]
    return Differing(costs, bounds, (told[0], told[1]), kept, len(names))


def memory_limit(held: AnyPlan) -> int | None:
    """Bytes that no device holds more than; None where none was asked for."""
    return held.memory_limit if isinstance(held, Plan) else held.memory


def _asked_words(mine: tuple[str, int | None], both: Sequence[tuple[str, int | None]]) -> str:
    """Space and memory limit of one of two plans, where they are not those of the other."""
    (one, other), (space, limit) = both, mine
    words = f" in the space {space}" if one[0] != other[0] else ""
    if one[1] != other[1]:
        words += " under no memory limit" if limit is None else f" under {bytes_text(limit)} per device"
    return words


def _words(held: AnyPlan) -> Mapping[str, str]:
    levels = [level.name for level in held.machine.levels]
    return {
        name: placement.words(levels) + (f" on {where}" if where else "")
        for name, (placement, where) in placement_table(held).items()
    }


def render_differing(found: Differing, first: str, second: str) -> list[str]:
    """For people."""
    lines = []
    for name, parts, step, bound in zip((first, second), found.parts, found.steps, found.bounds, strict=True):
        proved = f"at least {seconds_text(bound.numerator, bound.denominator)}" if bound else "no bound is proved"
        lines.append(f"{name}: {parts}; step {seconds_text(step.numerator, step.denominator)} ({proved})")
    one, other = found.steps
    if one != other:
        less, more = (first, second) if one < other else (second, first)
        lines.append(f"{less} takes {float(1 - min(one, other) / max(one, other)):.2%} less than {more}")
    lines.append(f"{len(found.rows)} of {found.operators} operators are placed otherwise")
    lines += [f"  {name}: {mine} | {theirs}" for name, mine, theirs in found.rows[:SHOWN]]
    if len(found.rows) > SHOWN:
        lines.append(f"  and {len(found.rows) - SHOWN} more (--json has all)")
    return lines
