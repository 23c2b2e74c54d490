"""Small files that ask for much: structured attempts to reach the budget of `check`, per kind, by many levels, devices,
views, pairs, units, operators, axes, digits, rows and links.

    python tests/hostile_files.py KIND [COUNT] [SEED] [SHARE]     what each takes, the slowest and the largest last

An attempt is a call of a checker with a budget; a SHARE-th of the budget of a check without `--large` is given, so that
hundreds of them take minutes.  What counts is seconds of processor per cell that was charged: a check of a whole budget
takes as many more.
"""

from __future__ import annotations

import hashlib
import io
import json
import random
import resource
import sys
import time
import zipfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from fractions import Fraction
from functools import cache
from itertools import pairwise
from math import prod
from pathlib import Path

import numpy as np
from hostile_equalities import equalities

from shardproof.formal.plans.pipelines.case import Case
from shardproof.formal.plans.pipelines.job import Job
from shardproof.formal.plans.pipelines.outcome import SearchOutcome
from shardproof.formal.plans.pipelines.phases import StagePlan
from shardproof.formal.plans.pipelines.scheduled import schedule_stages
from shardproof.formal.selection.model.clock import Clock
from shardproof.models.collective_programs.parallelism import PlacementProblem
from shardproof.models.communication.choices import Choices
from shardproof.models.cost.limits import TooLarge
from shardproof.models.cost.selection import build
from shardproof.models.egraphs.egraph import EGraph
from shardproof.models.layout.placement import space
from shardproof.models.layout.submesh import Submesh
from shardproof.models.machine.machine import Level, Machine, load_machine
from shardproof.models.pipelines.division import divide
from shardproof.models.problem.claims import Infeasible, LowerBound, Optimal, WithinGap
from shardproof.models.program.graph import Graph
from shardproof.models.program.index import Access, Affine, Axis, Combine
from shardproof.models.schedules.pipeline import Pipeline
from shardproof.models.schedules.problem import Holding, Precedence, ScheduleProblem, Stream, Task
from shardproof.models.sources.building.builder import Builder
from shardproof.models.sources.training import build_step
from shardproof.models.sources.zoo import build as zoo
from shardproof.models.views.regions import Region
from shardproof.proofs.collective_programs.certificate import PlacementCertificate
from shardproof.proofs.container.archive import Limits, Member, identity, read_container, write_container
from shardproof.proofs.container.canonical import ContainerError, canonical
from shardproof.proofs.container.kinds import PORTFOLIO
from shardproof.proofs.egraphs.certificate import Dual as CutDual
from shardproof.proofs.egraphs.certificate import Extraction, ExtractionCertificate
from shardproof.proofs.overlap.certificate import OverlapCertificate
from shardproof.proofs.overlap.file import encode_overlap
from shardproof.proofs.pipelines.certificate import Interleaved, PipelineCertificate
from shardproof.proofs.pipelines.file import encode_pipeline
from shardproof.proofs.plan.bundle import Plan, decode_plan, encode_plan
from shardproof.proofs.portfolio.file import FORMAT as PORTFOLIO_FORMAT
from shardproof.proofs.rewrites.library import Library, read_library
from shardproof.proofs.schedules.certificate import Path as LongestPath
from shardproof.proofs.schedules.certificate import Refutation, ScheduleCertificate
from shardproof.proofs.selection.certificates import Open, SelectionCertificate
from shardproof.proofs.views.certificate import SubmeshCertificate
from shardproof.proofs.views.file import encode_submesh_plan
from shardproof.verify import budget as budgets
from shardproof.verify.budget import CELLS, Budget
from shardproof.verify.collective_programs.placement import check_placement
from shardproof.verify.collective_programs.program import check_members as check_programs
from shardproof.verify.egraphs.extraction import check_extraction
from shardproof.verify.joint.plan import _check as check_joint
from shardproof.verify.overlap.certificate import check_overlap
from shardproof.verify.pipelines.certificate import check_pipeline
from shardproof.verify.plan.plan import check_plan
from shardproof.verify.rewrites.library import check_library
from shardproof.verify.schedules.certificate import check_schedule
from shardproof.verify.selection.certificate import check_selection
from shardproof.verify.verbs.kinds import Effort, charge_reading, require_known
from shardproof.verify.views.certificate import check_submesh_plan

PROVED = Path(__file__).parent / "conformance" / "proved"
Attempt = Callable[[Budget], object]

HIERARCHIES = (
    *((2,) * n for n in (3, 6, 9, 12)),
    *((4096,), (1, 4096), (4096, 1), (64, 64), (16, 16, 16), (8, 8, 8, 8), (512, 8), (2, 2048), (1024, 4), (1, 1)),
    *((7, 7, 7, 7), (3,) * 7, (60, 60), (2, 3, 4, 5, 6), (40, 8), (4, 8), (12, 12), (720,), (2, 6, 30), (27, 27)),
)
SPACES = (
    "complete",
    "two-per-level",
    "one-per-level",
    "complete,uneven",
    "one-per-level,uneven",
    "two-per-level,uneven",
)
EXTENTS = (1, 2, 3, 7, 12, 60, 64, 720, 1600, 4096, 5040, 1 << 20)


@cache
def machine(hierarchy: tuple[int, ...], measured: bool = False) -> Machine:
    plain = load_machine("dgx-a100:2x2" if measured else "cloud-a100:2x2")
    forms = plain.levels[-1].collectives
    levels = tuple(
        Level(f"l{k}", n, Fraction(10**9), Fraction(1, 10**6), forms if measured and k % 2 else ())
        for k, n in enumerate(hierarchy)
    )
    return replace(plain, levels=levels, resources=(), reduction=None, sources=())


def graph(rnd: random.Random) -> Graph:
    """One of many shapes, of a few numbers."""
    g, n = Builder("hostile", "float32"), rnd.choice((1, 2, 5, 20, 100, 400))
    kind = rnd.randrange(8)
    if kind == 0:  # a chain of maps of many dimensions
        dims = rnd.choice((1, 2, 4, 8, 12, 20, 40))
        shape = tuple(rnd.choice(EXTENTS[: 3 if dims > 8 else 9]) for _ in range(dims))
        letters = " ".join(f"a{k}" for k in range(dims))
        x = g.input("x", shape)
        for k in range(n):
            x = g.map(f"m{k}", "relu", x, text=f"{letters} -> {letters}")
        return g.build(x)
    if kind == 1:  # products, each read by the next
        x = g.input("x", (rnd.choice(EXTENTS), width := rnd.choice(EXTENTS)))
        for k in range(n):
            new = rnd.choice(EXTENTS)
            x = g.contract(f"p{k}", "b k, k n -> b n", x, g.parameter(f"w{k}", (width, new)))
            width = new
        return g.build(x)
    if kind == 2:  # one tensor, many readers
        x = g.map("x", "relu", g.input("a", (rnd.choice(EXTENTS), rnd.choice(EXTENTS))), text="i j -> i j")
        ends = [g.map(f"r{k}", "relu", x, text="i j -> i j") for k in range(min(n, 60))]
        while len(ends) > 1:
            ends = [*ends[2:], g.map(f"s{len(ends)}", "add", ends[0], ends[1], text="i j, i j -> i j")]
        return g.build(ends[0])
    if kind == 3:  # diagonals
        size = rnd.choice(EXTENTS[:9])
        x = g.map("x", "relu", g.input("a", (size, size)), text="i j -> i j")
        return g.build(g.map("d", "copy", x, text="i i -> i"))
    if kind == 4:  # windows: strided, with gaps, overlapping
        size, taps, stride = rnd.choice((64, 720, 4096)), rnd.choice((1, 3, 7, 16)), rnd.choice((1, 2, 3, 16))
        dims = rnd.choice((1, 2, 3))
        x = g.map(
            "x",
            "relu",
            g.input("a", (size,) * dims),
            text=" ".join(f"i{k}" for k in range(dims)) + " -> " + " ".join(f"i{k}" for k in range(dims)),
        )
        out = (size - taps) // stride + 1
        axes = [Axis(f"o{k}", out) for k in range(dims)] + [Axis(f"t{k}", taps, Combine.SUM) for k in range(dims)]
        index = tuple(Affine.axis(f"o{k}", stride).plus(f"t{k}") for k in range(dims))
        read = Access(x, index)
        w = g.parameter("w", (taps,) * dims)
        taken = Access(w, tuple(Affine.axis(f"t{k}") for k in range(dims)))
        return g.build(g.operator("c", "product", axes, [read, taken], [f"o{k}" for k in range(dims)], {}, "float32"))
    if kind == 5:  # rows looked up
        table, ids = (
            g.parameter("t", (rnd.choice(EXTENTS), rnd.choice(EXTENTS))),
            g.input("i", (rnd.choice(EXTENTS),), "int64"),
        )
        return g.build(g.embedding("e", "v m, s -> s m", table, ids))
    if kind == 6:
        name = rnd.choice(("attention", "bert-tiny", "conv-stack", "mlp-unity"))
        return zoo(name)
    return build_step(zoo(rnd.choice(("mlp-unity", "bert-tiny"))), rnd.choice(("sgd", "adam"))).graph


def subject(rnd: random.Random) -> tuple[Graph, Machine, str]:
    where = rnd.choice(SPACES)
    return graph(rnd), machine(rnd.choice(HIERARCHIES), rnd.random() < 0.2), where


def nothing(digest: str = "0" * 64) -> SelectionCertificate:
    return SelectionCertificate(digest, LowerBound(0), Open())


def plan_of(rnd: random.Random) -> Plan:
    g, m, where = subject(rnd)
    words = where + rnd.choice(("", "", "", ",dtensor", ",jax")) if "uneven" not in where else where
    memory = rnd.choice((None, 1 << 50))
    choices, certificate = Choices((), ()), nothing()
    if rnd.random() < 0.7:
        try:
            small = Budget(budgets.UNASKED >> 6, 1 << 22, None, False)
            from shardproof.verify.plan.effort import charge_tables

            charge_tables(g, m, space(where), small, "")
            planning = build(g, m, space(where), memory)
            x = tuple(rnd.randrange(planning.problem.domain_size(v)) for v in range(len(planning.decisions)))
            cost = planning.problem.cost_of(x)
            choices = planning.choices(x)
            certificate = SelectionCertificate(planning.problem.sha256(), WithinGap(x, cost, 0), Open())
            words = where
        except (ContainerError, TooLarge, ValueError):
            pass
    return Plan(g, m, words, memory, choices, (), certificate, ())


def plans(rnd: random.Random) -> Attempt:
    plan = plan_of(rnd)
    return lambda budget: check_plan(plan, samples=1000, cells=CELLS, budget=budget)


def joint_of(rnd: random.Random) -> Plan:
    plan = decode_plan(
        read_container(PROVED / rnd.choice(("joint-layer.spz", "joint-layer-2.spz", "joint-layer-3.spz")))
    )
    assert plan.joint is not None
    joint = replace(plan.joint, tags=rnd.randrange(4))
    if rnd.random() < 0.3:
        steps = joint.derivation.steps * rnd.choice((1, 10, 1000))
        joint = replace(joint, derivation=replace(joint.derivation, steps=steps))
    return replace(
        plan,
        joint=joint,
        machine=machine(rnd.choice(HIERARCHIES), rnd.random() < 0.2),
        space=rnd.choice(SPACES),
        memory_limit=rnd.choice((None, 1 << 50)),
    )


def joint_plans(rnd: random.Random) -> Attempt:
    plan = joint_of(rnd)
    joint = plan.joint
    assert joint is not None
    return lambda budget: check_joint(plan, joint, "seed", 1000, CELLS, None, budget)


def overlap_of(rnd: random.Random) -> OverlapCertificate:
    g, m, where = subject(rnd)
    names = [op.name for op in g.operators]
    chains = tuple(tuple(names[: rnd.randrange(1, len(names) + 1)]) for _ in range(rnd.choice((0, 1, 16))))
    return OverlapCertificate(
        g,
        m,
        where,
        Choices((), ()),
        1,
        None,
        chains if rnd.random() < 0.3 else (),
        (1, 1),
        0,
        0,
        SelectionCertificate("0" * 64, Infeasible((), (), None, None), Open()),
        rnd.choice((1, 1 << 20, 1 << 50)),
    )


def overlapped(rnd: random.Random) -> Attempt:
    c = overlap_of(rnd)
    return lambda budget: check_overlap(c, "seed", 1000, CELLS, None, budget)


def branched(rnd: random.Random) -> tuple[Graph, tuple[str, ...]]:
    """Parallel branches of some products, added up."""
    g, count = Builder("branches", "float32"), rnd.choice((2, 2, 3, 8, 64))
    long, sizes = rnd.choice((1, 2, 4, 8)), [rnd.choice(EXTENTS[3:9]) for _ in range(2)]
    ends, names = [], []
    for b in range(count):
        x = g.input(f"x{b}", (sizes[0], sizes[1]))
        mine = []
        for k in range(long):
            mine.append(f"b{b}.{k}")
            x = g.contract(mine[-1], "b k, k n -> b n", x, g.parameter(f"w{b}.{k}", (sizes[1], sizes[1])))
        ends.append(x)
        names.append(tuple(mine))
    while len(ends) > 1:
        ends = [*ends[2:], g.map(f"s{len(ends)}", "add", ends[0], ends[1], text="b n, b n -> b n")]
    return g.build(ends[0]), tuple(names)


def views_of(rnd: random.Random) -> SubmeshCertificate:
    g, names = branched(rnd)
    if rnd.random() < 0.2:
        g = build_step(g, "sgd").graph
    hierarchy = rnd.choice(HIERARCHIES)
    m = machine(hierarchy)
    divisions: list[tuple[Submesh, ...]] = []
    for _ in range(rnd.choice((1, 2, 8, 64))):
        level = rnd.choice([k for k, n in enumerate(hierarchy) if n > 1] or [0])
        size = hierarchy[level]
        parts = rnd.choice([n for n in range(1, size + 1) if size % n == 0])
        views = []
        for b in range(len(names)):
            starts, counts = [0] * len(hierarchy), list(hierarchy)
            counts[level] = size // parts
            starts[level] = (b % parts) * counts[level]
            views.append(Submesh(tuple(starts), tuple(counts)))
        if rnd.random() < 0.2:
            views[-1] = Submesh((0,) * len(hierarchy), (1,) * len(hierarchy))
        divisions.append(tuple(views))
    region = Region(tuple((b,) for b in names), tuple(dict.fromkeys(divisions)))
    where = rnd.choice(SPACES)
    choices, cost = Choices((), ()), 0
    try:
        from shardproof.verify.plan.effort import charge_tables
        from shardproof.verify.plan.used_entries import Entries
        from shardproof.verify.views.certificate import _Chosen
        from shardproof.verify.views.structure import parts_of

        charge_tables(g, m, space(where), Budget(budgets.UNASKED >> 6, 1 << 22, None, False), "")
        planning = build(g, m, space(where), None)
        choices = planning.choices((0,) * len(planning.decisions))
        made = SubmeshCertificate(g, m, where, (region,), choices, nothing())
        entries = Entries(planning)
        cost = _Chosen(made, entries, parts_of(entries, (region,))).time()
    except (ContainerError, TooLarge, ValueError):
        pass
    least = SelectionCertificate("0" * 64, Optimal((), cost), Open())
    return SubmeshCertificate(g, m, where, (region,), choices, least)


def viewed(rnd: random.Random) -> Attempt:
    c = views_of(rnd)
    return lambda budget: check_submesh_plan(c, "seed", 1000, CELLS, None, budget)


@cache
def step(layers: int, hierarchy: tuple[int, ...], stages: int, memory: int | None) -> PipelineCertificate:
    """A pipelined step that is what it says."""
    made = build_step(zoo("mlp-8192", batch=8, width=16, layers=layers), "sgd")
    job = Job(made.graph, divide(made.graph, made.passes), machine(hierarchy), space("one-per-level"), memory)
    case = Case(job, stages, 2)
    case.update_bound(1 << 62)
    pieces, units = case.pieces, job.division.units
    cuts = [round(k * units / stages) for k in range(stages + 1)]
    plan = []
    for i, j in pairwise(cuts):
        choices = dict.fromkeys(pieces.stage_vertices(i, j), 0)
        plan.append(StagePlan(i, j, choices, pieces.seconds(i, j, choices)))
    best = schedule_stages(case, plan, 0.0, Clock(), 2)
    assert best is not None
    return replace(SearchOutcome(job, best, [case], case.bound).certificate(), leaves=())


def pipeline_of(rnd: random.Random) -> PipelineCertificate:
    stages = rnd.choice((2, 2, 4))
    hierarchy = rnd.choice(((2, 1), (4, 1), (4, 2), (8, 1)))
    if hierarchy[0] % stages:
        stages = 2
    c = step(rnd.choice((5, 9, 30, 90)), hierarchy, stages, rnd.choice((None, 1 << 30)))
    mine = [p for p, _ in c.pairs]
    most = prod(hierarchy)
    views = [n for n in (1, 2, 4, 8) if most % n == 0 and (n <= hierarchy[0] or n in (hierarchy[0] * hierarchy[1],))]
    extra = {(p, m) for p in views for m in rnd.choice(((1,), (1, 2), (1, 2, 4, 8)))}
    pairs = tuple(dict.fromkeys([*c.pairs, *sorted(extra)]))
    chunks = tuple(
        Interleaved(p, m, v, (1,) * (p * (v + 1) ** 2))
        for p in views
        if p > 1
        for m in (1, 2, 4)
        for v in (2, 3, 6, 20)
    )
    assert mine
    return replace(
        c,
        pairs=pairs,
        interleaved=rnd.sample(chunks, k=min(len(chunks), rnd.choice((0, 0, 2, 8))))
        and chunks[: rnd.choice((1, 4, 9))],
        ordered=rnd.random() < 0.5,
        lower_bound=rnd.choice((c.lower_bound, c.step, c.lower_bound + 1, (c.lower_bound + c.step) // 2)),
        machine=replace(c.machine, levels=c.machine.levels),
    )


def pipelined(rnd: random.Random) -> Attempt:
    c = pipeline_of(rnd)
    return lambda budget: check_pipeline(c, "seed", 1000, CELLS, None, budget)


@cache
def real() -> Mapping[str, Member]:
    """Members of a plan that is what it says."""
    return read_container(PROVED / "plan-layer.spz")


def stored(members: Mapping[str, Member], plain: bool) -> bytes:
    """A container of any expansion; `plain`: not deflated, so that the container around it is the one that expands."""
    data = write_container(None, members, Limits(ratio=1 << 30))
    if not plain:
        return data
    out = io.BytesIO()
    with zipfile.ZipFile(io.BytesIO(data)) as packed, zipfile.ZipFile(out, "w") as archive:
        for info in packed.infolist():
            archive.writestr(info, packed.read(info), compress_type=zipfile.ZIP_STORED)
    return out.getvalue()


def long(rnd: random.Random, size: int) -> dict[str, Member]:
    """Members of a plan of which a list, a text or an array takes about `size` bytes; what a row says differs."""
    members = dict(real())
    head = json.loads(bytes(members["plan.json"]))
    match rnd.randrange(6):
        case 0:
            row = rnd.choice(
                (["t", "w", "r", 0, "c", [], []], ["", "", "", 0, "", [], []], ["", None, None, 0, "", [1], [1]])
            )
            head["communication"] = [row] * (size // len(json.dumps(row)))
        case 1:
            head["decisions"]["operators"] = [["", [], rnd.choice(([[1]], [], [[1, 1], [1, 1]]))]] * (size // 14)
        case 2:
            head["versions"] = {f"{k:x}": "" for k in range(size // 9)}
        case 3:
            head["communication"] = [["t", "w", "r", 0, "c", [1] * (size // 4), [1] * (size // 4)]]
        case 4:
            members[rnd.choice(("certificate.i64", "x"))] = np.zeros(size // 8, dtype=np.int64)
        case 5:
            graph = json.loads(bytes(members["graph.json"]))
            graph["tensors"] += [{**graph["tensors"][0], "name": f"n{k:x}"} for k in range(size // 60)]
            members["graph.json"] = canonical(graph)
            head["graph_sha256"] = hashlib.sha256(bytes(members["graph.json"])).hexdigest()
    members["plan.json"] = canonical(head)
    return members


def drawn_plan(rnd: random.Random) -> dict[str, Member]:
    """Members of a plan of any kind that asks for much."""
    match rnd.randrange(5):
        case 0:
            return encode_plan(plan_of(rnd))
        case 1:
            return encode_plan(joint_of(rnd))
        case 2:
            return encode_overlap(overlap_of(rnd))
        case 3:
            return encode_submesh_plan(views_of(rnd))
        case _:
            return encode_pipeline(pipeline_of(rnd))


def portfolios(rnd: random.Random) -> Attempt:
    """Many plans, alike but for a number; long ones, of up to 64 MiB in all; portfolios in portfolios."""
    count = rnd.choice((1, 2, 8, 27, 64))
    if rnd.random() < 0.5:
        given = long(rnd, min(1 << 24, rnd.choice((1 << 18, 1 << 22, 1 << 26)) // count))
    else:
        given = drawn_plan(rnd)
    deflated = rnd.random() < 0.7
    plain = [stored({**given, "number": np.array([k])}, not deflated) for k in range(count)]
    for _ in range(rnd.choice((0, 0, 0, 0, 1, 5))):
        plain = [portfolio(plain)]
    data = portfolio(plain)

    def attempt(budget: Budget) -> object:
        members = read_container(data)
        charge_reading(members, budget)
        return require_known(members, "file").judge(members, Effort(budget=budget), {})

    return attempt


def portfolio(plain: Sequence[bytes]) -> bytes:
    """A file of these plans, as small as it may be: what it expands to decides that."""
    names = [identity(read_container(data)) for data in plain]
    head = canonical({"format": PORTFOLIO_FORMAT, "chosen": 0, "plans": names})
    members: dict[str, Member] = {f"plans/{k}.spz": data for k, data in enumerate(plain)}
    return write_container(None, {PORTFOLIO: head, **members})


def schedules(rnd: random.Random) -> Attempt:
    n, streams = rnd.choice((2, 30, 300, 3000)), rnd.choice((1, 2, 30, 300))
    count = rnd.choice((10, 1000, 100_000))
    rows = np.array(
        [
            [rnd.randrange(16), rnd.randrange(n), rnd.randrange(max(n, streams)), rnd.randrange(5), rnd.randrange(5)]
            for _ in range(min(count, 3000))
        ],
        dtype=np.int64,
    )
    if rnd.random() < 0.5:
        rows[:, 0] = rnd.randrange(16)
    rows = np.tile(rows, (max(1, count // len(rows)), 1))
    if rnd.random() < 0.3:
        stages, micro = rnd.choice(((2, 4096), (256, 300), (64, 64), (4, 8)))
        subject: object = Pipeline(((1, 1, 1),) * stages, micro, 1, rnd.choice((None, 3)))
        tasks = 3 * stages * micro
        starts = np.arange(tasks, dtype=np.int64) * 3
        made = ScheduleCertificate(
            subject, starts, 1, 0, Refutation(0, rows) if rnd.random() < 0.5 else LongestPath(), "x"
        )
        return lambda budget: check_schedule(made, budget)
    tasks_ = tuple(
        Task(f"t{k}", 1, tuple(sorted(rnd.sample(range(streams), min(streams, rnd.choice((1, 2, 30)))))))
        for k in range(n)
    )
    links = tuple(
        dict.fromkeys(Precedence(*sorted(rnd.sample(range(n), 2))) for _ in range(rnd.choice((0, n, 10 * n))))
    )
    held = tuple(Holding(0, 1, None, (k,)) for k in range(rnd.choice((0, n))))
    problem = ScheduleProblem(
        "x", tuple(Stream(0, f"s{k}") for k in range(streams)), tasks_, links, held, (rnd.choice((None, n)),)
    )
    starts = np.arange(n, dtype=np.int64)
    c = ScheduleCertificate(problem, starts, n, 0, Refutation(n, rows), "x")
    return lambda budget: check_schedule(c, budget)


@cache
def makers_of(member: str, count: int) -> tuple[Callable[..., dict[str, bytes]], ...]:
    """Makers of `budget_cases` whose files are so many, one of them `member`."""
    from budget_cases import MAKERS

    return tuple(m for m in MAKERS if member in (files := m(50)) and len(files) == count)


def selections(rnd: random.Random) -> Attempt:
    from shardproof.proofs.selection.file import decode_certificate
    from shardproof.proofs.selection.load import selection_problem

    files = rnd.choice(makers_of("certificate.spz", 2))(rnd.choice((2, 3, 5, 8, 13, 20, 34)))
    name, data = next((name, data) for name, data in files.items() if name != "certificate.spz")
    problem = selection_problem(data, name)
    certificate = decode_certificate(read_container(files["certificate.spz"]))
    return lambda budget: check_selection(problem, certificate, None, budget)


def reductions(rnd: random.Random) -> Attempt:
    files = rnd.choice(makers_of("reduction.spz", 1))(rnd.choice((1, 2, 3, 5, 8, 13, 20, 34)))
    members = read_container(files["reduction.spz"])
    return lambda budget: check_programs(members, budget)


def placements(rnd: random.Random) -> Attempt:
    def numbers(total: int) -> tuple[int, ...]:
        out = []
        while total > 1:
            n = min(total, 1 << rnd.randrange(1, 6))
            out.append(n)
            total //= n
        return tuple(out)

    total = 1 << rnd.choice((4, 10, 16, 20))
    levels, axes = numbers(total), numbers(total)
    axes += (1,) * rnd.choice((0, 0, 1000, 100_000))
    levels += (1,) * rnd.choice((0, 0, 3, 100))
    if rnd.random() < 0.3:
        n = rnd.choice((720720, 510510, 1 << 20, 999983, 1048573))
        levels, axes = (n,) * 1 + (1,) * rnd.choice((0, 5)), (n,)
    row = tuple(tuple(1 for _ in levels) for _ in axes) if len(levels) * len(axes) < 1 << 18 else ()
    c = PlacementCertificate(PlacementProblem(levels, axes), (row,) * rnd.choice((0, 1, 50)))
    return lambda budget: check_placement(c, budget)


def extractions(rnd: random.Random) -> Attempt:
    n, each, fan = rnd.choice((3, 30, 300, 3000)), rnd.choice((1, 2, 8)), rnd.choice((1, 2, 8))
    owner, children = [], []
    for c in range(n):
        for _ in range(each):
            owner.append(c)
            below = range(c + 1, n) if rnd.random() < 0.8 else range(n)
            children.append(tuple(sorted(rnd.sample(below, min(len(below), rnd.randrange(fan + 1))))))
    for c in range(n):
        owner.append(c)
        children.append(())
    order = sorted(range(len(owner)), key=lambda k: owner[k])
    g = EGraph(
        "hostile",
        tuple(f"c{k}" for k in range(n)),
        tuple(f"n{k}" for k in range(len(owner))),
        tuple(owner[k] for k in order),
        tuple(children[k] for k in order),
        (1,) * len(owner),
        1,
        (0,),
        (),
    )
    leaf = next(k for k, node in enumerate(g.children) if g.owner[k] == 0 and not node)
    count = rnd.choice((1, 100, 10_000))
    rows = tuple((rnd.randrange(n), rnd.randrange(n), 1) for _ in range(rnd.choice((0, 3, 100))))
    records = tuple(CutDual(1, rows, (), (), k + 1 if k + 1 < count else None) for k in range(count))
    c = ExtractionCertificate(g.sha256(), Extraction((leaf,), 1, 0, False), (), (), records)
    return lambda budget: check_extraction(g, c, budget)


@cache
def libraries() -> tuple[Library, ...]:
    return tuple(
        read_library(PROVED / name)[0]
        for name in ("rules-proved.spz", "rules-derived.spz", "rules-judgements.spz", "rules-refutation.spz")
    )


def rules(rnd: random.Random) -> Attempt:
    library = rnd.choice(libraries())
    judgements = library.judgements * rnd.choice((1, 10, 100))
    if rnd.random() < 0.6:
        changed = []
        for j in judgements:
            if hasattr(j, "witness"):
                times = rnd.choice((1, 2, 6, 20))
                witness = tuple((name, value * times if rnd.random() < 0.7 else value) for name, value in j.witness)
                j = replace(j, witness=witness)
            changed.append(j)
        judgements = tuple(changed)
    made = replace(library, judgements=judgements, derivations=library.derivations * rnd.choice((1, 10)))
    return lambda budget: check_library(made, budget=budget)


KINDS: Mapping[str, Callable[[random.Random], Attempt]] = {
    "plan": plans,
    "joint": joint_plans,
    "overlap": overlapped,
    "views": viewed,
    "pipelined": pipelined,
    "portfolio": portfolios,
    "schedule": schedules,
    "selection": selections,
    "reduction": reductions,
    "placement": placements,
    "extraction": extractions,
    "rules": rules,
    "equality": equalities,
}


def attempts(kind: str, count: int, seed: int) -> Iterator[tuple[int, Attempt]]:
    """Attempts by number; what cannot be built is drawn again."""
    for number in range(count):
        for again in range(20):
            try:
                yield number, KINDS[kind](random.Random(f"{kind}:{seed}:{number}:{again}"))
                break
            except (ContainerError, TooLarge, ValueError, KeyError, AssertionError, IndexError):
                continue


def tried(attempt: Attempt, share: int) -> tuple[float, int, str]:
    """(seconds of processor, cells charged, what came of it) with one `share`-th of a budget."""
    given = budgets.UNASKED // share
    budget = Budget(given, budgets.HELD_UNASKED // share, None, False)
    before = time.process_time()
    try:
        attempt(budget)
        end = "judged"
    except (ContainerError, TooLarge, ValueError) as error:
        end = "--large" if "--large" in str(error) else type(error).__name__ + " " + str(error)[:80]
    except MemoryError:
        end = "memory"
    return time.process_time() - before, given - budget.work, end


def main(kind: str, count: int = 200, seed: int = 0, share: int = 16, most: float = 300.0) -> None:
    found, start = [], time.process_time()
    for number, attempt in attempts(kind, count, seed):
        before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
        seconds, cells, end = tried(attempt, share)
        grown = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before
        found.append((seconds, cells, grown >> 10, number, end))
        if seconds > 60 / share:
            print(f"{kind} {number}: {seconds:.1f} s, {cells:,} cells, {end}", flush=True)
        if len(found) % 20 == 0:
            slowest, *_, which, _ = max(found)
            print(f"{kind}: {len(found)} so far, slowest {slowest:.2f} s ({which})", flush=True)
        if time.process_time() - start > most:
            print(f"stopped after {len(found)} of {count}")
            break
    ends: dict[str, int] = {}
    for *_, end in found:
        ends[end.split(" ")[0]] = ends.get(end.split(" ")[0], 0) + 1
    worst = max(found)
    paces = [(s / max(c, 1) * 1e9, s, n, e) for s, c, _, n, e in found if s > 0.3]
    print(
        f"{kind}: {len(found)} attempts, {ends}; slowest {worst[0]:.2f} s of 1/{share} ({worst[3]}: {worst[4]}); "
        f"most memory {resource.getrusage(resource.RUSAGE_SELF).ru_maxrss >> 10} MiB; "
        f"nanoseconds per cell at most {max(paces, default=(0, 0, 0, ''))} "
    )


if __name__ == "__main__":
    main(sys.argv[1], *(int(x) for x in sys.argv[2:]))
