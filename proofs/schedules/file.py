"""Writes certificates of schedules as container members.

    schedule.json    {"format", "objective", "subject", "makespan", "lower_bound", "bound", "kind"}
    schedule.i64     start times, then the rows of a refutation

A pipeline is kept as its numbers, any other problem task by task.  Decoding checks types and structure only; whether it
proves anything is for `verify` to say.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path as FilePath
from typing import Final, assert_never

import numpy as np

from ...models.schedules.pipeline import Pipeline, Times
from ...models.schedules.problem import Holding, Precedence, ScheduleProblem, Stream, Task
from ...models.text import InputError
from ..container.archive import LIMITS, Limits, Member, read_array, read_container, read_json, write_container
from ..container.canonical import Reader, canonical
from ..container.kinds import require_kind
from .certificate import Bound, Load, Path, Refutation, ScheduleCertificate

SCHEDULE: Final = "schedule.json"
ARRAY: Final = "schedule.i64"
FORMAT: Final = "shardproof-schedule/1"
OBJECTIVE: Final = "makespan"
MOST: Final = 1 << 22


def write_schedule(path: FilePath | str | None, certificate: ScheduleCertificate) -> bytes:
    """Bytes of an `.spz` file with a schedule."""
    return write_container(path, encode_schedule(certificate))


def read_schedule(source: bytes | FilePath | str, limits: Limits = LIMITS) -> ScheduleCertificate:
    """Inverse of `write_schedule`; `ContainerError` on anything malformed."""
    members = read_container(source, limits)
    require_kind(members, SCHEDULE)
    return decode_schedule(members)


def encode_schedule(certificate: ScheduleCertificate) -> dict[str, Member]:
    """Members of the container."""
    starts = np.asarray(certificate.starts, dtype=np.int64)
    rows = np.zeros((0, 5), dtype=np.int64)
    bound: dict[str, object]
    match certificate.bound:
        case Path():
            bound = {"kind": "path"}
        case Load(stream, least_head, least_tail):
            bound = {"kind": "load", "stream": stream, "head": least_head, "tail": least_tail}
        case Refutation(makespan, found):
            bound, rows = {"kind": "refutation", "makespan": makespan}, np.asarray(found, dtype=np.int64)
        case _:
            assert_never(certificate.bound)
    head = {
        "format": FORMAT,
        "objective": OBJECTIVE,
        "subject": _encode_subject(certificate.subject),
        "makespan": certificate.makespan,
        "lower_bound": certificate.lower_bound,
        "bound": bound,
        "kind": certificate.kind,
        "tasks": len(starts),
    }
    return {SCHEDULE: canonical(head), ARRAY: np.concatenate([starts, rows.reshape(-1)])}


def decode_schedule(members: Mapping[str, Member]) -> ScheduleCertificate:
    """`ContainerError` names what is wrong."""
    head = read_json(members, SCHEDULE).fields(
        "format", "objective", "subject", "makespan", "lower_bound", "bound", "kind", "tasks"
    )
    if head["format"].text() != FORMAT:
        head["format"].fail(f"this version reads {FORMAT!r} only")
    if head["objective"].text() != OBJECTIVE:
        head["objective"].fail(f"this version knows the objective {OBJECTIVE!r} only")
    flat = read_array(members, ARRAY)
    tasks = head["tasks"].integer(1, 1 << 40)
    if flat.ndim != 1 or len(flat) < tasks or (len(flat) - tasks) % 5:
        head["tasks"].fail(f"{ARRAY} must hold the start of every task and rows of five numbers")
    subject = _subject(head["subject"])
    there = subject.tasks if isinstance(subject, Pipeline) else len(subject.tasks)
    if tasks != there:
        head["tasks"].fail(f"{tasks} start times for {there} tasks")
    bound = _bound(head["bound"], flat[tasks:].reshape(-1, 5))
    if not isinstance(bound, Refutation) and len(flat) != tasks:
        head["bound"].fail("rows belong to a refutation")
    return ScheduleCertificate(
        subject, flat[:tasks], head["makespan"].integer(), head["lower_bound"].integer(), bound, head["kind"].text(200)
    )


def _bound(value: Reader, rows: np.ndarray[tuple[int, ...], np.dtype[np.int64]]) -> Bound:
    match value["kind"].text(40):
        case "path":
            value.fields("kind")
            return Path()
        case "load":
            value.fields("kind", "stream", "head", "tail")
            return Load(*(value[name].integer(0, 1 << 62) for name in ("stream", "head", "tail")))
        case "refutation":
            value.fields("kind", "makespan")
            return Refutation(value["makespan"].integer(0, 1 << 62), rows)
        case other:
            value["kind"].fail(f"unknown bound {other!r}; path, load or refutation")


def _encode_subject(subject: Pipeline | ScheduleProblem) -> dict[str, object]:
    if isinstance(subject, Pipeline):
        return {
            "kind": "pipeline",
            "times": [list(t) for t in subject.times],
            "micro_batches": subject.micro_batches,
            "send": subject.send,
            "memory": subject.memory,
            "chunks": subject.chunks,
            "wave": subject.wave,
            **({"hops": list(subject.hops)} if subject.hops else {}),
            **({"uneven": True} if subject.uneven else {}),
        }
    return {
        "kind": "tasks",
        "name": subject.name,
        "unit": subject.unit,
        "scale": subject.scale,
        "streams": [[s.device, s.kind] for s in subject.streams],
        "tasks": [[t.name, t.time, list(t.streams)] for t in subject.tasks],
        "precedences": [[p.before, p.after, p.lag] for p in subject.precedences],
        "holdings": [[h.device, h.amount, h.first, list(h.last)] for h in subject.holdings],
        "limits": list(subject.limits),
    }


def _subject(value: Reader) -> Pipeline | ScheduleProblem:
    try:
        match value["kind"].text(40):
            case "pipeline":
                return _pipeline(value).check()
            case "tasks":
                return _problem(value).check()
            case other:
                value["kind"].fail(f"unknown subject {other!r}; pipeline or tasks")
    except InputError as error:
        value.fail(str(error))


def _pipeline(value: Reader) -> Pipeline:
    value.fields("kind", "times", "micro_batches", "send", "memory", "chunks", "wave", optional=("hops", "uneven"))
    times: list[Times] = []
    for row in value["times"].items(1 << 12):
        numbers = row.integers(0, 1 << 40, 3)
        if len(numbers) != 3:
            row.fail("must be [F, I, W]")
        times.append((numbers[0], numbers[1], numbers[2]))
    memory = None if value["memory"].is_null() else value["memory"].integer(0, 1 << 40)
    return Pipeline(
        tuple(times),
        value["micro_batches"].integer(0, 1 << 40),
        value["send"].integer(0, 1 << 40),
        memory,
        value["chunks"].integer(0, 1 << 40),
        value["wave"].flag(),
        tuple(value["hops"].integers(0, 1 << 40, 1 << 12)) if value.has("hops") else (),
        value.has("uneven") and value["uneven"].flag(),
    )


def _problem(value: Reader) -> ScheduleProblem:
    value.fields("kind", "name", "unit", "scale", "streams", "tasks", "precedences", "holdings", "limits")
    streams = [
        Stream(s[0].integer(0, 1 << 20), s[1].text(100)) for s in (r.parts(2) for r in value["streams"].items(1 << 16))
    ]
    tasks = [
        Task(t[0].text(1000), t[1].integer(0, 1 << 40), tuple(t[2].integers(0, 1 << 20, 1 << 16)))
        for t in (r.parts(3) for r in value["tasks"].items(MOST))
    ]
    before = []
    for item in value["precedences"].items(MOST):
        numbers = item.integers(0, 1 << 40, 3)
        if len(numbers) != 3:
            item.fail("must be [before, after, lag]")
        before.append(Precedence(*numbers))
    holdings = [
        Holding(
            h[0].integer(0, 1 << 20),
            h[1].integer(0, 1 << 62),
            None if h[2].is_null() else h[2].integer(0, 1 << 40),
            tuple(h[3].integers(0, 1 << 40, MOST)),
        )
        for h in (r.parts(4) for r in value["holdings"].items(MOST))
    ]
    limits = tuple(None if x.is_null() else x.integer(0, 1 << 62) for x in value["limits"].items(1 << 16))
    return ScheduleProblem(
        value["name"].text(1000),
        tuple(streams),
        tuple(tasks),
        tuple(before),
        tuple(holdings),
        limits,
        value["unit"].text(40),
        value["scale"].integer(1, 1 << 62),
    )
