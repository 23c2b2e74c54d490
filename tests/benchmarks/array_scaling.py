"""Strong and weak scaling of three array programs to 128 ranks: processes, then virtual ranks, then a machine on paper.

    python tests/benchmarks/array_scaling.py [--write]

    matmul    a @ b, float64, m, n, k split in turn (the thesis' figure 8.2)
    jacobi    four sweeps of the Laplace equation, rows and columns split
    spmv      a sparse product, 16 entries a row (`for j in map[p[i]:p[i + 1]]`), entries split, sums all-reduced

Processes: MPI ranks of this computer, one thread each, which share its 2 cores: the slowest rank, median of 5 steps.
Virtual ranks: executed in this process at a small size, equal to one process, bytes counted beside priced.  Bytes per
rank at full size, most over the ranks, beside the least of the schedule (what ranks must receive and do not hold), and
beside bounds that no schedule is below:

    matmul    a rank that does 1/P of the products touches at least 3 (n^3 / P)^(2/3) elements of a, b and c
              (Loomis-Whitney; Irony, Toledo, Tiskin 2004; memory-independent, Al Daas et al. 2022): beside its boxes
    jacobi    a block of n^2 / P points that touches no border has at least 4 n / sqrt(P) neighbours on four sides of a
              rectangle: beside what the fullest rank receives in a sweep
"""

import argparse
import json
import sys
import time
from math import sqrt
from pathlib import Path
from statistics import median
from tempfile import TemporaryDirectory

import numpy as np

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

import shardproof
from shardproof import dace
from shardproof.backends.execution.interpreter import run_rank
from shardproof.backends.execution.launch import launch
from shardproof.backends.execution.run import run_virtual, slices
from shardproof.backends.lowering.program import lower
from shardproof.backends.lowering.traffic import received_elements, traffic
from shardproof.formal.plans.schedules import propagate
from shardproof.formal.plans.strategy import Rule, Strategy
from shardproof.models.communication.choices import Choices, communications, input_layout, output_layout
from shardproof.models.communication.root import root_transfers
from shardproof.models.machine.machine import load_machine
from shardproof.models.program.graph import Graph
from shardproof.models.sources.numpy.trace import trace
from shardproof.models.sources.zoo import array_programs as zoo
from shardproof.proofs.plan.bundle import Plan

PAGE = Path(__file__).parent / "results/array-scaling.md"
PROCESSES = (1, 2, 4, 8)
RANKS = (1, 2, 4, 8, 16, 32, 64, 128)
GRIDS = {
    1: (1, 1, 1),
    2: (2, 1, 1),
    4: (2, 2, 1),
    8: (2, 2, 2),
    16: (4, 2, 2),
    32: (4, 4, 2),
    64: (4, 4, 4),
    128: (8, 4, 4),
}
FIELDS = {1: (1, 1), 2: (2, 1), 4: (2, 2), 8: (4, 2), 16: (4, 4), 32: (8, 4), 64: (8, 8), 128: (16, 8)}
SIZES = {"matmul": (8192, 1024, 128), "jacobi": (8192, 2048, 128), "spmv": (1 << 20, 1 << 16, 256)}
"""Of the bytes, of the processes, of the virtual ranks."""
STEPS = 5


def sparse(rows: int):
    """A sparse product of `rows` rows."""

    @dace
    def spmv(p: dace.int64[rows + 1], col: dace.int64[16 * rows], val: dace.float64[16 * rows], x: dace.float64[rows]):
        b = np.zeros(rows)
        for i in dace.map[0:rows]:
            for j in dace.map[p[i] : p[i + 1]]:
                b[i] += val[j] * x[col[j]]
        return b

    return spmv


def program(name: str, n: int, ranks: int) -> tuple[Graph, Choices]:
    """The graph and its schedule."""
    if name == "matmul":
        graph = trace(zoo.matmul, name, {"a": (n, n), "b": (n, n)}).graph
        rule = Rule("matmul", tuple((a, (("0", d),)) for a, d in zip("mnk", GRIDS[ranks], strict=True)))
    elif name == "jacobi":
        graph = trace(zoo.jacobi, name, {"u": (n, n)}).graph
        rule = Rule("vertical", tuple((a, (("0", d),)) for a, d in zip(("i0", "i1"), FIELDS[ranks], strict=True)))
    else:
        graph = trace(sparse(n), name).graph
        rule = Rule("rows", (("e", (("0", ranks),)),))
    return graph, propagate(graph, load_machine(f"localhost:{ranks}"), Strategy((rule,))).choices


def values(name: str, graph: Graph) -> dict[str, np.ndarray]:
    """Numbers for the inputs."""
    rng = np.random.default_rng(1)
    tensors = {t.name: t.shape for t in graph.tensors if t.role.value == "input"}
    if name != "spmv":
        return {n: rng.standard_normal(shape) for n, shape in tensors.items()}
    rows, entries = tensors["x"][0], tensors["col"][0]
    given = {"p": np.arange(0, entries + 1, 16), "col": rng.integers(0, rows, entries)}
    return given | {n: rng.standard_normal(tensors[n]) for n in ("val", "x")}


def per_rank(name: str, n: int, ranks: int) -> dict[str, float]:
    """Bytes of one step, most over the ranks, beside the bounds."""
    graph, choices = program(name, n, ranks)
    received = np.zeros(ranks)
    for m in communications(graph, (ranks,), choices):
        received += np.array(received_elements(m)) * graph.tensor(m.tensor).element_bytes
    least = sum(t.bound * t.element_bytes for t in traffic(graph, (ranks,), choices)) / ranks
    out = {"received": float(received.max()), "least": least}
    if name == "matmul":
        op, placed = graph.operators[0], dict(choices.operators)["matmul"]
        boxes = [input_layout(op, j, graph, placed, (ranks,)) for j in (0, 1)]
        boxes.append(output_layout(op, graph, placed, (ranks,)))
        out |= {"touched": 8.0 * sum(int(b.volumes().max()) for b in boxes), "bound": 8 * 3 * (n**3 / ranks) ** (2 / 3)}
    if name == "jacobi":
        sweeps = sum(op.function == "scale" for op in graph.operators) or zoo.SWEEPS
        out |= {"touched": out["received"] / sweeps, "bound": 8 * 4 * n / sqrt(ranks) if ranks > 8 else 0.0}
    return out


# --- one rank of a job ------------------------------------------------------------------------------------------------


def rank(folder: Path, name: str, n: int) -> None:
    """Started by mpiexec: the step, timed between barriers."""
    from mpi4py import MPI

    from shardproof.backends.transport.mpi import MpiTransport

    world = MPI.COMM_WORLD
    graph, choices = program(name, n, world.Get_size())
    lowered, transport = lower(graph, (world.Get_size(),), choices), MpiTransport(world)
    whole, kept = slices(values(name, graph)), {}

    def source(tensor, box):
        if (tensor, box) not in kept:
            kept[tensor, box] = np.ascontiguousarray(whole(tensor, box))
        return kept[tensor, box]

    seconds = []
    for _ in range(STEPS + 1):
        world.Barrier()
        start = time.perf_counter()
        run_rank(lowered, world.Get_rank(), transport, source, np)
        seconds.append(time.perf_counter() - start)
    slowest = world.gather(seconds[1:], 0)
    if slowest:
        (folder / "seconds.json").write_text(json.dumps(median(max(s) for s in zip(*slowest, strict=True))))


def timed(name: str, n: int, ranks: int) -> float:
    """Seconds of a step on MPI ranks."""
    with TemporaryDirectory() as folder:
        launch([str(Path(__file__).resolve()), "--rank", folder, name, str(n)], ranks, 300)
        return float(json.loads((Path(folder) / "seconds.json").read_text()))


def weak(name: str, n: int, ranks: int) -> int:
    """The size whose work per rank is that of size n on one."""
    power = {"matmul": 3, "jacobi": 2, "spmv": 1}[name]
    return int(round(n * ranks ** (1 / power) / 16) * 16)


# --- the page ---------------------------------------------------------------------------------------------------------


def process_rows(name: str) -> list[str]:
    """Strong and weak scaling on processes."""
    size, rows = SIZES[name][1], []
    first: dict[str, float] = {}
    for ranks in PROCESSES:
        cells = []
        for kind, n in (("strong", size), ("weak", weak(name, size, ranks))):
            s = timed(name, n, ranks)
            first.setdefault(kind, s)
            cells += [str(n), f"{s * 1e3:.1f}", f"{first[kind] / s:.2f}"]
        rows.append(f"| `{name}` | {ranks} | {' | '.join(cells)} |")
    return rows


def virtual_rows(name: str) -> list[str]:
    """Bytes per rank at full size to 128 ranks; executed on virtual ranks at a small one."""
    rows = []
    for ranks in RANKS:
        cells = []
        for n in (SIZES[name][0], weak(name, SIZES[name][0] // 16, ranks)):
            found = per_rank(name, n, ranks)
            beside = f"{found['touched'] / found['bound']:.2f}" if found.get("bound") else "-"
            cells += [str(n), f"{found['received'] / 1e6:.3f}", f"{found['least'] / 1e6:.3f}", beside]
        graph, choices = program(name, SIZES[name][2], ranks)
        given = values(name, graph)
        result = run_virtual(lower(graph, (ranks,), choices), given)
        one, alone = program(name, SIZES[name][2], 1)
        want = run_virtual(lower(one, (1,), alone), given).outputs
        worst = max(float(np.abs(result.outputs[k] - v).max() / np.abs(v).max()) for k, v in want.items())
        counted = all(t.fits for t in result.traffic)
        rows.append(f"| `{name}` | {ranks} | {' | '.join(cells)} | {worst:.0e} | {'yes' if counted else 'NO'} |")
    return rows


def paper_rows() -> list[tuple[int, float, float, float]]:
    """(devices, seconds, bound, seconds from and to a root) of the best plan of the 8192-cubed product."""
    out = []
    for nodes in (1, 2, 4, 8, 16):
        shapes = {"a": dace.float64[8192, 8192], "b": dace.float64[8192, 8192]}

        def matmul(a, b):
            return a @ b

        matmul.__annotations__ = shapes
        plan = shardproof.plan(matmul, machine=f"dgx-a100:{nodes}x8")
        assert plan.check().verdict.value == "proved"
        kept = plan.certificate
        assert isinstance(kept, Plan)
        root = sum(t.seconds for t in root_transfers(plan.graph, plan.machine, kept.choices))
        out.append((8 * nodes, float(plan.cost_s), float(plan.lower_bound_s or 0), float(root)))
    return out


def picture(rows: dict[str, list[tuple[int, float, float]]]) -> str:
    """Bytes that the fullest rank receives over ranks, both axes in powers of two; dashed the least."""
    width, height, left, bottom, top = 720, 320, 70, 40, 20
    colours = {"matmul": "#0057b8", "jacobi": "#c1272d", "spmv": "#2e7d32"}
    points = [v for line in rows.values() for _, a, b in line for v in (a, b) if v > 0]
    low, high = np.log2(min(points)) - 0.5, np.log2(max(points)) + 0.5

    def x(ranks: int) -> float:
        return left + (width - left - 20) * np.log2(ranks) / 7

    def y(v: float) -> float:
        return top + (height - top - bottom) * (high - np.log2(v)) / (high - low)

    out = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}" font-family="sans-serif" font-size="12">',
        f'<rect width="{width}" height="{height}" fill="#ffffff"/>',
    ]
    for ranks in RANKS:
        out.append(f'<text x="{x(ranks):.0f}" y="{height - 20}" text-anchor="middle" fill="#333333">{ranks}</text>')
    for power in range(int(np.ceil(low)), int(high) + 1, 3):
        out.append(
            f'<text x="{left - 8}" y="{y(2.0**power) + 4:.0f}" text-anchor="end" fill="#333333">{_size(power)}</text>'
        )
        out.append(
            f'<line x1="{left}" x2="{width - 20}" y1="{y(2.0**power):.0f}" y2="{y(2.0**power):.0f}" stroke="#dddddd"/>'
        )
    for k, (name, line) in enumerate(rows.items()):
        for which, dash in ((1, ""), (2, ' stroke-dasharray="6 4"')):
            seen = [(r[0], r[which]) for r in line if r[which] > 0]
            path = " ".join(f"{x(r):.1f},{y(v):.1f}" for r, v in seen)
            out.append(f'<polyline points="{path}" fill="none" stroke="{colours[name]}" stroke-width="2"{dash}/>')
        out.append(f'<text x="{width - 150}" y="{top + 16 * (k + 1)}" fill="{colours[name]}">{name}</text>')
    out.append(f'<text x="{width // 2}" y="{height - 4}" text-anchor="middle" fill="#333333">ranks</text>')
    return "\n".join([*out, "</svg>", ""])


def _size(power: int) -> str:
    words = ("", "Ki", "Mi", "Gi")
    return f"{2 ** (power % 10)} {words[power // 10]}B"


def page() -> tuple[str, str]:
    """The text and the picture."""
    processes = [row for name in SIZES for row in process_rows(name)]
    virtual = [row for name in SIZES for row in virtual_rows(name)]
    curves = {
        name: [
            (r, found["received"], found["least"]) for r in RANKS[1:] for found in [per_rank(name, SIZES[name][0], r)]
        ]
        for name in SIZES
    }
    paper = paper_rows()
    one = paper[0][0] * paper[0][1]
    lines = [
        "# Array programs to 128 ranks\n",
        "`python tests/benchmarks/array_scaling.py --write` (2 cores; what is measured and bounded: the script's head)\n",
        "![bytes that the fullest rank receives](array-scaling.svg)\n",
        "Bytes that the fullest rank receives in a step at full size (lines) and the least of the schedule per rank",
        "(dashed, the mean over ranks: inner ranks of jacobi have four neighbours, those at the border fewer).\n",
        "## Processes\n",
        "One computer with 2 cores: beyond 2 ranks processes share them, so that weak scaling above 2 can only show what",
        "ranks cost. t1 / tP: time on one rank over time on P; of strong scaling at best 2 here, of weak scaling at best 1",
        "up to 2 ranks and 2 / P beyond.\n",
        "| program | ranks | strong: size | ms | t1 / tP | weak: size | ms | t1 / tP |",
        "|---|---|---|---|---|---|---|---|",
        *processes,
        "\n## Bytes per rank, virtual ranks\n",
        "MB received by the fullest rank and the least of the schedule per rank; beside bound: elements touched over",
        "3 (n^3 / P)^(2/3) (matmul), received in a sweep over 4 n / sqrt(P) (jacobi, where a rank has four neighbours).",
        "Difference: from one rank, beside the largest number, at a small size; counted: bytes sent are within those priced.\n",
        "| program | ranks | strong: size | MB | least | beside bound | weak: size | MB | least | beside bound | difference | counted |",
        "|---|---|---|---|---|---|---|---|---|---|---|---|",
        *virtual,
        "\n## On paper: nodes of eight A100\n",
        "The 8192-cubed product in float64 on `dgx-a100:Nx8`: the best plan, proved, over all placements. It moves nothing",
        "where inputs begin where they are wanted (`inputs-anywhere`); the thesis' runs begin and end on one rank, which",
        "scatters and gathers (`models/communication/root.py`).\n",
        "| devices | step, us | proved bound, us | efficiency | from and to a root, us | efficiency with it |",
        "|---|---|---|---|---|---|",
        *(
            f"| {n} | {t * 1e6:.0f} | {b * 1e6:.0f} | {one / (n * t):.2f} | {r * 1e6:.0f} | {one / (n * (t + r)):.3f} |"
            for n, t, b, r in paper
        ),
        "",
    ]
    return "\n".join(lines), picture(curves)


def main() -> None:
    asked = argparse.ArgumentParser()
    asked.add_argument("--rank", nargs=3, metavar=("FOLDER", "PROGRAM", "SIZE"))
    asked.add_argument("--write", action="store_true")
    given = asked.parse_args()
    if given.rank:
        rank(Path(given.rank[0]), given.rank[1], int(given.rank[2]))
        return
    text, drawn = page()
    print(text)
    if given.write:
        PAGE.write_text(text, encoding="utf-8")
        PAGE.with_suffix(".svg").write_text(drawn, encoding="utf-8")


if __name__ == "__main__":
    main()
