"""Draws docs/pictures/*.svg from the house's own objects, so that pictures stay true.

    python tests/pictures.py             writes all of them
    python tests/pictures.py --check     names those that are not current (tests/test_pictures.py)
    python tests/pictures.py --dark DIR  writes dark ones to a folder, to look at

flow, rooms      rooms and arrows are the imports of `tests/house.py`; shaded: what the verdict on a plan rests on
placement        boxes of `models.layout` for one product on 2 nodes x 4 gpus
resharding       boxes before and after, and the collective that `models.communication.resharding` derives
proof-tree       the records of a certificate and the bound that the checker finds for each
bound            bound and best solution, every time the search says them
schedule         the tasks of a pipelined plan on the streams of its certificate
parts            five small plans of one kind of file each: their members, sorted by what part of a plan they are
"""

from __future__ import annotations

import re
import sys
import tempfile
import zipfile
from collections.abc import Callable
from pathlib import Path
from unittest import mock

import house
from random_problems import grid_with_rows
from svg import Canvas

import shardproof
from shardproof.formal.selection.model.clock import STEPS, Clock
from shardproof.formal.selection.solve import solve
from shardproof.models.communication.resharding import derive
from shardproof.models.layout.layout import Layout, operand_layout
from shardproof.models.program.index import Access, Affine, Axis, Combine
from shardproof.models.schedules.problem import ScheduleProblem
from shardproof.proofs.pipelines.certificate import PipelineCertificate
from shardproof.proofs.selection.certificates import Record, Split
from shardproof.verify.selection import certificate as checker
from shardproof.verify.selection.ground import INFINITE

FOLDER = house.ROOT / "docs" / "pictures"


def flow() -> Canvas:
    """Model and machine to plan, certificate, verdict; the trusted part shaded."""
    c = Canvas(
        820, 250, "A model and a machine become a plan with a certificate; a checker without a search confirms it"
    )
    trusted = {m.split(".")[0] for m in house.closure("verify.plan.plan")}
    assert "formal" not in trusted and "backends" not in trusted
    c.label(20, 30, 130, 62, ["model", "PyTorch, JAX, ONNX"])
    c.label(20, 122, 130, 62, ["machine", "nodes, GPUs, links"])
    c.label(200, 76, 130, 62, ["search", "not believed"])
    c.label(380, 76, 160, 62, ["plan + certificate", "one file"])
    c.box(572, 20, 232, 212, "trust")
    c.text(688, 44, "what must be believed", "soft")
    c.label(592, 58, 192, 62, ["checker", "builds all costs again"], "box")
    c.label(592, 158, 192, 56, ["verdict", "proved, refuted, undecided"], "box")
    c.label(380, 180, 160, 52, ["run or export", "MPI, PyTorch, JAX"])
    c.arrow([(150, 61), (175, 61), (175, 97), (200, 97)])
    c.arrow([(150, 153), (175, 153), (175, 117), (200, 117)])
    c.arrow([(330, 107), (380, 107)])
    c.arrow([(540, 90), (592, 90)])
    c.arrow([(460, 138), (460, 180)])
    c.arrow([(688, 120), (688, 158)])
    return c


WORDS = {
    "models": ["models", "what is described"],
    "proofs": ["proofs", "what is kept"],
    "verify": ["verify", "what is believed"],
    "formal": ["formal", "what is decided"],
    "backends": ["backends", "what is run"],
}
PLACES = {"formal": (30, 120), "verify": (250, 120), "backends": (470, 120), "proofs": (250, 220), "models": (250, 320)}


def rooms() -> Canvas:
    """The five rooms with the arrows that imports draw."""
    c = Canvas(660, 410, "Five rooms: formal, verify and backends import proofs and models, and none of each other")
    trusted = {m.split(".")[0] for m in house.closure("verify.plan.plan")}
    c.label(30, 22, 600, 52, ["front door, Python, command line", "the only place that sees search and checker"])
    for name, (x, y) in PLACES.items():
        c.label(x, y, 160, 60, WORDS[name], "trust" if name in trusted else "box")
    arrows = {(m.split(".")[0], n.split(".")[0]) for m in house.modules() for n in house.imports(m)}
    lines = {
        ("formal", "proofs"): [(140, 180), (140, 238), (250, 238)],
        ("formal", "models"): [(80, 180), (80, 350), (250, 350)],
        ("verify", "proofs"): [(330, 180), (330, 220)],
        ("verify", "models"): [(390, 180), (390, 200), (430, 200), (430, 338), (410, 338)],
        ("backends", "proofs"): [(520, 180), (520, 238), (410, 238)],
        ("backends", "models"): [(580, 180), (580, 362), (410, 362)],
        ("proofs", "models"): [(330, 280), (330, 320)],
    }
    for pair in sorted(arrows):
        if pair[0] != pair[1]:
            c.arrow([(float(x), float(y)) for x, y in lines[pair]])
    for x in (110, 330, 550):
        c.arrow([(x, 74), (x, 120)])
    c.text(30, 396, "arrow: imports; shaded: what the verdict on a plan rests on", "soft", "start")
    return c


MESH = (2, 4)
AXES = (Axis("m", 8), Axis("n", 8), Axis("k", 8, combine=Combine.SUM))
MATRIX = ((2, 1), (1, 2), (1, 2), (1, 1))
"""m over the nodes; n over 2 and k over 2 of the gpus."""


def layout_of(axes: str, matrix: tuple[tuple[int, ...], ...], mesh: tuple[int, ...], reduced: str = "") -> Layout:
    """Of a tensor of 8 x 8 that is indexed by two of the axes m, n, k."""
    access = Access("t", tuple(Affine.axis(a) for a in axes))
    return operand_layout(access, (8, 8), AXES, matrix, mesh, tuple(reduced))


def cells(c: Canvas, x: float, y: float, layout: Layout, size: float, names: tuple[str, str]) -> None:
    """A tensor, cut as the devices hold it: every box with the devices that have it."""
    holders: dict[tuple[tuple[int, int], ...], list[int]] = {}
    for device in range(len(layout.boxes)):
        holders.setdefault(layout.box(device), []).append(device)
    for ((top, bottom), (left, right)), devices in holders.items():
        w, h = (right - left) * size, (bottom - top) * size
        whole = len(devices) == len(layout.boxes)
        c.box(x + left * size, y + top * size, w, h, "box" if whole else f"c{devices[0]}", 0)
        c.text(x + left * size + w / 2, y + top * size + h / 2 + 5, " ".join(map(str, devices)))
    c.text(x - 12, y + 4 * size + 4, names[0], "soft")
    c.text(x + 4 * size, y - 8, names[1], "soft")


def placement() -> Canvas:
    """One product under one placement: matrix, and what each device holds of the operands."""
    c = Canvas(
        820, 330, "The placement of y = x w on 2 nodes of 4 gpus, and the boxes of x, w and y that it gives devices"
    )
    c.text(20, 34, "y[m,n] = sum over k of x[m,k] w[k,n]   on 2 nodes x 4 gpus", "ink bold", "start")
    c.text(20, 78, "placement", "ink bold", "start")
    for j, name in enumerate(("nodes", "gpus")):
        c.text(110 + 54 * j, 100, name, "soft")
    for i, (name, row) in enumerate(zip(("m", "n", "k", "copies"), MATRIX, strict=True)):
        c.text(70, 128 + 30 * i, name, "ink", "end")
        for j, degree in enumerate(row):
            c.box(86 + 54 * j, 108 + 30 * i, 48, 28, "c0" if degree > 1 else "none", 3)
            c.text(110 + 54 * j, 128 + 30 * i, str(degree))
    c.text(70, 258, "product", "soft", "end")
    for j, size in enumerate(MESH):
        c.text(110 + 54 * j, 258, f"= {size}", "soft")
    for k, (name, axes, reduced) in enumerate((("x", "mk", ""), ("w", "kn", ""), ("y", "mn", "k"))):
        x = 270 + 190 * k
        at = layout_of(axes, MATRIX, MESH, reduced)
        cells(c, x, 100, at, 18, (axes[0], axes[1]))
        c.text(x + 72, 78, f"{name}: partial sums" if at.open else name, "ink bold")
    c.text(
        250,
        276,
        "numbers: devices that hold the box. Two devices hold each box of x: one for each half of n.",
        "soft",
        "start",
    )
    c.text(
        250, 296, "The boxes of y are open in k: two devices hold a part of each sum, and must reduce.", "soft", "start"
    )
    return c


def resharding() -> Canvas:
    """Three pairs of layouts on four ranks, and the collective that leads from one to the other."""
    c = Canvas(820, 300, "Layouts before and after a resharding on four ranks, and the collective that is derived")
    four = (4,)
    rows, columns = ((4,), (1,), (1,), (1,)), ((1,), (4,), (1,), (1,))
    copies, summed = ((1,), (1,), (1,), (4,)), ((1,), (1,), (4,), (1,))
    pairs = (
        (layout_of("mn", rows, four), layout_of("mn", columns, four)),
        (layout_of("mn", rows, four), layout_of("mn", copies, four)),
        (layout_of("mn", summed, four, "k"), layout_of("mn", rows, four)),
    )
    for k, (before, after) in enumerate(pairs):
        x = 34 + 268 * k
        plan = derive(before, after)
        c.text(x + 112, 34, plan.collective(), "ink bold")
        for at, place in ((before, 0), (after, 142)):
            cells(c, x + place, 80, at, 11, ("", ""))
            c.text(x + place + 44, 66, "partial" if at.open else "before" if not place else "after", "soft")
        c.arrow([(x + 94, 124), (x + 136, 124)])
        c.text(x + 112, 200, f"{plan.loads()[0]} elements enter each rank", "soft")
    c.text(20, 240, "A tensor of 8 x 8 on four ranks; numbers: the ranks that hold a box.", "soft", "start")
    c.text(20, 260, "Nobody names the collective: it follows from the boxes before and after.", "soft", "start")
    c.text(20, 280, "A partial tensor is no replica: every rank holds a part of each sum.", "soft", "start")
    return c


class Said:
    """What a search says of its bound and its best solution."""

    def __init__(self) -> None:
        self.seen: list[tuple[int | None, int | None]] = []

    def update(self, stage: str, lower: int | None, upper: int | None) -> None:
        """Serves as the progress of the search."""
        self.seen.append((lower, upper))

    def count(self, done: int, total: int) -> None:
        """Counts are not drawn."""


def proof_tree() -> Canvas:
    """The certificate of a small problem: every record, choices that are left there, and its bound alone."""
    answer = solve(grid_with_rows(3))
    assert answer.certificate is not None and answer.cost is not None
    opened: list[tuple[Record, list[int], float]] = []
    real = checker._open

    def watch(ground, record, domains, *rest):  # type: ignore[no-untyped-def]
        sizes = [len(d) for d in domains]
        frame = real(ground, record, domains, *rest)
        opened.append((record, sizes, frame.value))
        return frame

    with mock.patch.object(checker, "_open", watch):
        assert checker.check_selection(grid_with_rows(3), answer.certificate).verdict.value == "proved"
    at = {id(record): (sizes, value) for record, sizes, value in opened}
    depth = _depth(answer.certificate.proof)
    c = Canvas(820, 76 + 66 * depth, "The proof tree of a problem with nine vertices, with the bound of every record")
    c.text(20, 34, f"A certificate: nothing costs less than {answer.cost}", "ink bold", "start")
    c.text(
        20, 54, "nine vertices of six choices, under resource rows; open: more than one choice is left", "soft", "start"
    )

    def draw(record: Record, left: float, right: float, y: float) -> float:
        x = (left + right) / 2
        sizes, value = at[id(record)]
        name = type(record).__name__
        bound = "B = infinity" if value == INFINITE else f"B = {value}"
        free = sum(n > 1 for n in sizes)
        what = {"Dual": f"{bound}, {free} of {len(sizes)} open", "Split": "either, or"}.get(name, bound)
        c.label(x - 96, y, 192, 46, [name, what], "trust" if name in ("Point", "RowConflict") else "box")
        below = record.children if isinstance(record, Split) else [r for r in (getattr(record, "then", None),) if r]
        for k, child in enumerate(below):
            width = (right - left) / len(below)
            to = draw(child, left + k * width, left + (k + 1) * width, y + 66)
            c.path([(x, y + 46), (to, y + 66)])
        return x

    draw(answer.certificate.proof, 0, 820, 72)
    return c


def _depth(record: Record) -> int:
    below = record.children if isinstance(record, Split) else [r for r in (getattr(record, "then", None),) if r]
    return 1 + max((_depth(r) for r in below), default=0)


def bound() -> Canvas:
    """Bound and best solution of a search, each time that it says them."""
    said = Said()
    answer = solve(grid_with_rows(4), progress=said, clock=Clock(work=100 * STEPS))  # the same on a busy machine
    lower, upper, seen = None, None, list[tuple[int | None, int | None]]()
    for low, high in [*said.seen, (answer.lower_bound, answer.cost)]:
        lower, upper = max((x for x in (low, lower) if x is not None), default=None), high or upper
        if seen[-1:] != [(lower, upper)]:
            seen.append((lower, upper))
    assert answer.cost is not None and seen[-1] == (answer.cost, answer.cost)
    values = [x for pair in seen for x in pair if x is not None]
    least, most = min(values) - 4, max(values) + 4
    c = Canvas(820, 340, "A search closes: the cost of its best solution falls, its bound rises, and they meet")
    c.text(20, 34, "A search closes: sixteen vertices under resource rows", "ink bold", "start")

    def point(k: int, value: int) -> tuple[float, float]:
        return 90 + 610 * k / (len(seen) - 1), round(290 - 220 * (value - least) / (most - least), 1)

    c.path([(90, 60), (90, 290), (710, 290)])
    for index, (name, kind) in enumerate((("bound", "lower"), ("best solution", "upper"))):
        line: list[tuple[float, float]] = []
        for k, pair in enumerate(seen):
            if (value := pair[index]) is not None:
                x, y = point(k, value)
                line += [(round(x, 1), line[-1][1]), (round(x, 1), y)] if line else [(round(x, 1), y)]
        c.path(line, kind)
        first = next(v for pair in seen if (v := pair[index]) is not None)
        c.text(80, line[0][1] + 5, str(first), "soft", "end")
        c.text(line[0][0] + 8, line[0][1] - 8, name, "ink", "start")
    c.text(716, point(len(seen) - 1, answer.cost)[1] + 5, f"{answer.cost}: proved", "ink bold", "start")
    c.text(400, 316, "reports of the search: presolve, local search, bounds, tree", "soft")
    return c


def schedule() -> Canvas:
    """A pipelined step on its stages, and an overlapped forward pass on its two streams."""
    plan = shardproof.pipeline("bert-tiny:batch=8", "localhost:4", train="sgd", stages="2:4")
    cut = plan.certificate
    assert isinstance(cut, PipelineCertificate)
    pipeline = cut.schedule.subject
    assert not isinstance(pipeline, ScheduleProblem)
    c = Canvas(
        820, 320, "A training step on two stages with four micro-batches, and a pass with communication overlapped"
    )
    c.text(20, 34, "Stages: bert-tiny's training step on two submeshes, four micro-batches", "ink bold", "start")
    span = 640 / cut.step
    for s in range(pipeline.stages):
        c.text(112, 74 + 44 * s, f"ranks {2 * s}, {2 * s + 1}", "ink", "end")
    for kind in (0, 1):
        for s in range(pipeline.stages):
            for i in range(pipeline.micro_batches):
                start = int(cut.schedule.starts[pipeline.task(kind, s, i)])
                w = pipeline.times_of(s)[kind] * span
                c.box(round(124 + start * span, 1), 54 + 44 * s, round(w, 1), 32, f"c{3 * kind}", 2)
                c.text(round(124 + start * span + w / 2, 1), 75 + 44 * s, f"{'FB'[kind]}{i}", "ink")
    end, low = (round(124 + t * span, 1) for t in (cut.schedule.makespan, cut.lower_bound))
    c.box(end, 54, 764 - end, 76, "c2", 2)
    c.text(end + 6, 97, "update", "ink", "start")
    c.path([(low, 48), (low, 146)], "lower")
    c.text(low - 6, 156, "no step is shorter: the bound", "soft", "end")
    c.path([(764, 48), (764, 146)], "upper")
    c.text(770, 164, "this step", "soft", "end")
    streams(c, 220)
    return c


def streams(c: Canvas, top: int) -> None:
    """Two streams of a pass that overlaps reshardings with operators."""
    over = shardproof.plan("bert-tiny:batch=1", "localhost:4", overlap=True).certificate
    problem = over.schedule.subject
    c.text(20, top, "Streams: bert-tiny's forward pass, communication beside operators", "ink bold", "start")
    span = 640 / over.schedule.makespan
    for n, stream in enumerate(problem.streams):
        c.text(112, top + 40 + 44 * n, {"compute": "operators", "links": "links"}[stream.kind], "ink", "end")
    for task, start in zip(problem.tasks, over.schedule.starts.tolist(), strict=True):
        (n,) = task.streams
        x, w = round(124 + start * span, 1), round(task.time * span, 1)
        c.box(x, top + 20 + 44 * n, w, 32, "c0" if n == 0 else "c1", 1)
        if w > 8 * len(task.name) + 4:
            c.text(x + w / 2, top + 41 + 44 * n, task.name)


PARTS = ("subject", "program", "places", "order", "claim")
"""The parts of a plan; members of a file belong to one of them."""
MEMBERS = {
    "graph": "subject", "machine": "subject", "base": "subject", "joint": "program", "nodes": "program",
    "plan": "places", "views": "places", "overlap": "order", "pipeline": "order", "schedule": "order",
    "certificate": "claim", "least": "claim", "leaves": "claim",
}  # fmt: skip
ROLES = {
    "graph": "what runs", "machine": "where it runs", "base": "as the user has it", "joint": "rules, where they apply",
    "plan": "a placement each", "views": "on submeshes", "overlap": "placements and their order on streams",
    "pipeline": "stages, placements, micro-batches", "certificate": "no plan is faster", "least": "no step is shorter",
    "leaves": "bounds of regions",
}  # fmt: skip
"""What a member of a file holds."""
MLP = "mlp-unity:batch=64"
STEP = "mlp-8192:layers=4,width=64,batch=16"
ASKED: dict[str, Callable[[], shardproof.Plan]] = {
    "plan": lambda: shardproof.plan(MLP, "localhost:4", train="sgd", work_limit=5_000_000),
    "plan --joint": lambda: shardproof.plan(MLP, "localhost:4", train="sgd", joint=True, work_limit=5_000_000),
    "plan --submeshes": lambda: shardproof.plan(
        "candle-uno:batch=16,tower=2,layers=1,width=512", "cloud-a100:2x2", views=True, work_limit=5_000_000
    ),
    "plan --overlap": lambda: shardproof.plan(MLP, "localhost:4", train="sgd", overlap=True, work_limit=5_000_000),
    "plan --pipeline 2:2": lambda: shardproof.pipeline(
        STEP, "localhost:2", train="sgd", stages="2:2", work_limit=5_000_000
    ),
}


def members_of(plan: shardproof.Plan) -> list[str]:
    """Members of a plan's file, without endings, each once; what a joint plan's graph is derived from is its subject."""
    with tempfile.TemporaryDirectory() as folder:
        plan.save(Path(folder) / "p.spz")
        with zipfile.ZipFile(Path(folder) / "p.spz") as file:
            return list(
                dict.fromkeys(re.split(r"[./]", name)[0] for name in file.namelist() if name != "manifest.json")
            )


def parts() -> Canvas:
    """What the files of five plans hold, by the part of a plan that it is."""
    c = Canvas(860, 96 + 70 * len(ASKED), "The parts of a plan, and the members of five plans' files that are them")
    for k, part in enumerate(PARTS):
        c.text(253 + 132 * k, 34, part, "ink bold")
    words = ("asked about", "rewritten, or not", "on which devices", "when", "what is proved")
    for k, line in enumerate(words):
        c.text(253 + 132 * k, 52, line, "soft")
    for row, (name, made) in enumerate(ASKED.items()):
        top = 68 + 70 * row
        c.text(20, top + 36, name, "ink bold", "start")
        names = members_of(made())
        held: dict[str, list[str]] = {part: [] for part in PARTS}
        for member in names:
            part = "program" if member == "graph" and "base" in names else MEMBERS[member]
            held[part].append(member)
        for k, part in enumerate(PARTS):
            if members := held[part]:
                wide = part == "order"  # whose member says places, too
                x, w = (454, 258) if wide else (190 + 132 * k, 126)
                c.box(x, top, w, 58, "trust" if part == "claim" else "box")
                c.text(x + w / 2, top + 25, ", ".join(members[:2]))
                rest = f"and {', '.join(members[2:])}" if members[2:] else ROLES[members[0]]
                c.text(x + w / 2, top + 44, rest, "soft")
    c.text(
        20, c.height - 10, "A cell: members of the file that `plan` writes. Empty: nothing of its own.", "soft", "start"
    )
    return c


PICTURES: dict[str, Callable[[], Canvas]] = {
    "flow": flow,
    "rooms": rooms,
    "placement": placement,
    "resharding": resharding,
    "proof-tree": proof_tree,
    "bound": bound,
    "schedule": schedule,
    "parts": parts,
}


def main(words: list[str]) -> int:
    """Command line."""
    old = []
    for name, draw in PICTURES.items():
        path = FOLDER / f"{name}.svg"
        match words:
            case ["--check"]:
                if not path.exists() or path.read_text(encoding="utf-8") != draw().svg():
                    old.append(name)
            case ["--dark", folder]:
                Path(folder, f"{name}.svg").write_text(draw().svg("dark"), encoding="utf-8")
            case _:
                path.write_text(draw().svg(), encoding="utf-8")
    if old:
        print(f"not current: {', '.join(old)}; run python tests/pictures.py")
    return 1 if old else 0


if __name__ == "__main__":
    raise SystemExit(main(sys.argv[1:]))
