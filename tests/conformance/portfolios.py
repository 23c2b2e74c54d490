"""Several plans of one job in the conformance suite: overlapped plans of one chain, each a file of its own inside."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from conformance.overlaps import by_hand
from conformance.writing import Head, Suite, changed, container
from shardproof.models.schedules.problem import ScheduleProblem
from shardproof.proofs.container.archive import identity, read_container
from shardproof.proofs.container.canonical import canonical
from shardproof.proofs.overlap.certificate import OverlapCertificate
from shardproof.proofs.overlap.file import encode_overlap

HEAD = "portfolio.json"


def members(plans: Sequence[OverlapCertificate], chosen: int = 0) -> dict[str, bytes]:
    files = [container(encode_overlap(plan)) for plan in plans]
    listed = [identity(read_container(file)) for file in files]
    head = {"format": "shardproof-portfolio/1", "chosen": chosen, "plans": listed}
    return {HEAD: canonical(head), **{f"plans/{i}.spz": file for i, file in enumerate(files)}}


def later(c: OverlapCertificate) -> OverlapCertificate:
    """The same plan, whose last task begins one unit later."""
    schedule = c.schedule
    assert schedule is not None and isinstance(schedule.subject, ScheduleProblem)
    ends = schedule.starts + np.array([task.time for task in schedule.subject.tasks], dtype=np.int64)
    starts = schedule.starts + (ends == schedule.makespan)
    slower = replace(schedule, starts=starts, makespan=schedule.makespan + 1)
    return replace(c, schedule=slower, makespan=c.makespan + c.quantum)


def suite() -> Suite:
    out = Suite("several plans")
    good, weak = by_hand((1, 0, 2)), replace(by_hand((3, 1)), lower_bound=1)

    def add(name: str, verdict: str, sentence: str, parts: dict[str, bytes], fault: str = "") -> None:
        out.add(f"portfolio-{name}", verdict, sentence, container(parts), fault=fault)

    add("two", "proved", "best of 2 plans, plan 0", members([good, weak]))
    add("second", "proved", "best of 2 plans, plan 1", members([weak, good], 1))
    add("one", "proved", "best of 1 plans, plan 0", members([good]))

    add(
        "limits",
        "refuted",
        "plan 1 keeps another memory limit than plan 0",
        members([good, by_hand((1, 0, 2), 1 << 20)]),
        "plans with and without a memory limit",
    )
    add(
        "taken",
        "refuted",
        "plan 1 is taken, and plan 0 takes less",
        members([good, later(good)], 1),
        "the slower plan is taken",
    )
    more = replace(good, lower_bound=good.makespan)
    add("inside", "refuted", "0:Overlap", members([more]), "a plan inside claims a bound that nothing proves")

    two = members([good, weak])

    def wrong(name: str, sentence: str, parts: dict[str, bytes], fault: str) -> None:
        add(name, "malformed", sentence, parts, fault)

    def swap(head: Head) -> None:
        head["plans"].reverse()

    wrong("swapped", "is another one than the file says", changed(two, HEAD, swap), "identities in another order")
    wrong("missing", "is missing", {k: v for k, v in two.items() if k != "plans/1.spz"}, "a plan is not there")
    wrong(
        "more",
        "belongs to no plan of the file",
        {**members([good]), "plans/1.spz": two["plans/1.spz"]},
        "a plan too many",
    )
    inner = members([good])
    nested = container(inner)
    head = {"format": "shardproof-portfolio/1", "chosen": 0, "plans": [identity(read_container(nested))]}
    wrong(
        "nested",
        "holds several plans itself",
        {HEAD: canonical(head), "plans/0.spz": nested},
        "several plans inside of several plans",
    )
    return out
