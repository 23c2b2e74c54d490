"""What a plan with submeshes decided, region by region, for people and as data."""

from __future__ import annotations

from dataclasses import dataclass

from ...models.layout.submesh import Submesh
from ...proofs.views.certificate import SubmeshCertificate


@dataclass(frozen=True)
class Branched:
    """One branch of a region: first and last operator of its first phase, how many operators it has, how many of them
    in a second phase, its view (None: the whole machine).
    """

    region: int
    first: str
    last: str
    operators: int
    backward: int
    view: Submesh | None


Branches = tuple[Branched, ...]


def branch_summaries(c: SubmeshCertificate) -> tuple[Branched, ...]:
    """Every branch, in order."""
    placed = dict(c.choices.operators)
    out = []
    for r, region in enumerate(c.regions):
        for branch in region.branches:
            first = branch[0] or branch[-1]
            count = sum(map(len, branch))
            out.append(Branched(r, first[0], first[-1], count, count - len(branch[0]), placed[first[0]].view))
    return tuple(out)


def submesh_lines_of(c: SubmeshCertificate) -> list[str]:
    """A line per region, and one per branch of those that run on views."""
    levels, lines = [level.name for level in c.machine.levels], []
    rows = branch_summaries(c)
    for r, region in enumerate(c.regions):
        mine = [b for b in rows if b.region == r]
        side = all(b.view is not None for b in mine)
        how = "beside each other" if side else "one after another on the whole machine"
        lines.append(f"region {r}: {len(mine)} branches {how}; {len(region.divisions)} divisions were open")
        for b in mine if side else ():
            assert b.view is not None
            where = b.view.words(levels, c.machine.hierarchy)
            count = f"{b.operators} operators" + (", forward and backward" if b.backward else "")
            lines.append(f"  {b.first} .. {b.last} ({count}) on {where}")
    return lines


def submesh_json_of(c: SubmeshCertificate) -> list[dict[str, object]]:
    """The same as data."""
    return [
        {
            "region": b.region,
            "first": b.first,
            "last": b.last,
            "operators": b.operators,
            "backward": b.backward,
            "view": None if b.view is None else {"starts": list(b.view.starts), "counts": list(b.view.counts)},
        }
        for b in branch_summaries(c)
    ]
