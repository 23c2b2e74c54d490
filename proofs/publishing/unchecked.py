"""What is published where the time for our own check is over: the file is written, nothing is said to be proved, and
the command that checks it is named.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from ...models.files.output import write_file
from ...models.problem.claims import Infeasible, LowerBound, Verdict
from ..container.archive import Member, identity, read_container
from .publisher import Published


def write_unchecked(path: Path | None, data: bytes) -> Published:
    """Write `data` (to no file where `path` is None) without a verdict; its cost is what it claims itself."""
    members = read_container(data)
    name = identity(members)
    if path is not None:
        write_file(path, data)
    reason = "not checked here: the time limit left too little for it"
    cost = claimed_cost(members)
    return Published(Verdict.UNDECIDED, "Unchecked", cost, None, reason, name, path, len(data), checked=False)


def claimed_cost(members: Mapping[str, Member]) -> int | None:
    """What a container says that its answer costs, in the units of its claim; None for one that claims no cost."""
    from ..egraphs.certificate import Extraction
    from ..egraphs.file import EXTRACTION, decode_extraction
    from ..overlap.file import OVERLAP, decode_overlap
    from ..pipelines.file import PIPELINE, decode_pipeline
    from ..portfolio.file import taken_plan
    from ..schedules.file import SCHEDULE, decode_schedule
    from ..selection.file import decode_certificate
    from ..views.file import VIEWS, decode_submesh_plan

    members = taken_plan(members)
    if PIPELINE in members:
        return decode_pipeline(members).step
    if OVERLAP in members:
        overlapped = decode_overlap(members)
        return None if overlapped.schedule is None else overlapped.makespan
    if SCHEDULE in members:
        return decode_schedule(members).makespan
    if EXTRACTION in members:
        extracted = decode_extraction(members).claim
        return extracted.cost if isinstance(extracted, Extraction) else None
    if VIEWS in members:
        claim = decode_submesh_plan(members).least.claim
    elif "certificate.json" in members:
        claim = decode_certificate(members).claim
    else:
        return None
    return None if isinstance(claim, Infeasible | LowerBound) else claim.cost
