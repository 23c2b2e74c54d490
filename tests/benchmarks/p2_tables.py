"""Tables about reduction programs against the published times of P2 (MLSys 2022), and against times of our own.

    python -m pytest does not collect this; run     python tests/benchmarks/p2_tables.py [--measure] [--no-groups]

1. accuracy     predicted against published seconds; which constants were fitted on the rows they are judged on;
   hold-outs
2. orders       the paper's row-major device order against the hardware-aligned one
3. groups       all 42 groups: programs, our synthesis and simulation times against the published ones
4. top-k        constants fitted on every fourth program; is the fastest measured program among the k best predicted?
   Ground truth: MPI ranks of one computer
                (`--measure` measures again, one minute; else tests/data/p2/local_ranks.csv is read)
"""

from __future__ import annotations

import sys
import time
from collections.abc import Sequence
from dataclasses import replace
from fractions import Fraction
from itertools import groupby
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from p2_appendix import FILE, Fit, Row, fit, rows

from shardproof.formal.calibration.calibrate import Calibration, calibrate, predict
from shardproof.formal.calibration.timings import Timing, program_of, read_timings, select_timings, write_timings
from shardproof.formal.collective_programs.graph import edge_costs, explore
from shardproof.formal.collective_programs.synthesize import synthesize
from shardproof.models.collective_programs.cost import Algorithm, LinkCost, m0, m1, m2
from shardproof.models.collective_programs.parallelism import Order, ReductionRequest
from shardproof.models.collective_programs.programs import words
from shardproof.models.machine.machine import Machine, load_machine
from shardproof.models.machine.parts import Resource

LOCAL = FILE.parent / "local_ranks.csv"


def all_reduce(row: Row, cost: LinkCost) -> float:
    system = row.request().system()
    return sum(cost.step_time(s) for s in system.execute(program_of("AllReduce", system))[1]) / cost.scale


def best(row: Row, cost: LinkCost, order: Order = Order.ROW_MAJOR) -> float:
    found = synthesize(row.request(order), cost).cost
    return (found or 0) / cost.scale


def judged(
    system: str,
    algorithm: Algorithm,
    model: object,
    machine: Machine | None = None,
    nodes: int = 0,
    order: Order = Order.ROW_MAJOR,
) -> tuple[Fit, Fit]:
    """AllReduce and cheapest program, predicted against published."""
    both: tuple[tuple[list[float], list[float]], ...] = (([], []), ([], []))
    for r in rows():
        if r.system == system and (not nodes or r.hierarchy[0] == nodes):
            cost = model(machine.resized(r.hierarchy) if machine else load_machine(r.machine), algorithm=algorithm)  # type: ignore[operator]
            for (predicted, measured), seconds, value in zip(
                both, (r.all_reduce[algorithm], r.optimal[algorithm]), (all_reduce, best), strict=True
            ):
                if seconds is not None:
                    predicted.append(value(r, cost) if value is all_reduce else best(r, cost, order))
                    measured.append(seconds)
    return fit(*both[0]), fit(*both[1])


def accuracy() -> None:
    print(
        "== 1. accuracy.  M2: all constants fitted by hand on these very rows, so its lines are not a prediction; "
        "M0, M1: the paper's own constants, fitted on nothing"
    )
    for system in ("A100", "V100"):
        for name, model, order in (
            ("M0 aligned", m0, Order.ALIGNED),
            ("M1", m1, Order.ROW_MAJOR),
            ("M2", m2, Order.ROW_MAJOR),
        ):
            for algorithm in Algorithm:
                a, o = judged(system, algorithm, model, order=order)
                print(f"{system} {algorithm.value} {name:10}  AllReduce {a}    cheapest {o}")
    print(
        "-- hold-outs: constants fitted by `machine calibrate` on AllReduce rows of some nodes only (cvxpy), "
        "judged on everything of the others; cheapest programs are never fitted"
    )
    for system in ("A100", "V100"):
        for source, target in ((2, 4), (4, 2)):
            c = calibrated(system, source)
            print(
                f"{system} fitted on {source} nodes ({c.fitted.rows} rows, error {100 * c.fitted.mean:.1f} %):",
                ", ".join(f"{k.path} {float(k.after or 0):.4g}" for k in c.constants),
            )
            for algorithm in Algorithm:
                a, o = judged(system, algorithm, m2, c.machine, target)
                print(f"    judged on {target} nodes, {algorithm.value:4}  AllReduce {a}    cheapest {o}")


def calibrated(system: str, nodes: int) -> Calibration:
    mine = select_timings(read_timings(FILE), {"system": system, "nodes": str(nodes)})
    return calibrate(load_machine(f"p2-{system.lower()}"), mine)


def orders() -> None:
    print(
        "== 2. device orders, rows where they differ: seconds of the cheapest program (gain = row-major / "
        "aligned, predicted only)"
    )
    for r in rows():
        if r.request().system().members == r.request(Order.ALIGNED).system().members:
            continue
        out = []
        for algorithm in Algorithm:
            cost = m2(load_machine(r.machine), algorithm=algorithm)
            mine, aligned = best(r, cost), best(r, cost, Order.ALIGNED)
            out.append(
                f"{algorithm.value} measured "
                f"{r.optimal[algorithm] if r.optimal[algorithm] is not None else '-':>5} row-major {mine:6.2f} "
                f"aligned {aligned:6.2f} gain {mine / aligned:.2f}"
            )
        print(f"{r.system} {'x'.join(map(str, r.hierarchy))} {r.matrix} reduce {r.reduce}:", "; ".join(out))
    for system in ("A100", "V100"):
        for algorithm in Algorithm:
            measured = [
                r
                for r in rows()
                if r.system == system
                and r.optimal[algorithm] is not None
                and r.request().system().members != r.request(Order.ALIGNED).system().members
            ]
            if measured:
                errors = []
                for order in Order:
                    predicted = [best(r, m2(load_machine(r.machine), algorithm=algorithm), order) for r in measured]
                    errors.append(fit(predicted, [r.optimal[algorithm] or 0 for r in measured]).error)
                print(
                    f"{system} {algorithm.value}: {len(measured)} rows, error row-major {100 * errors[0]:.1f} %, "
                    f"aligned {100 * errors[1]:.1f} %"
                )


def groups() -> None:
    print(
        "== 3. the 42 groups: our times include every matrix of the group; simulation prices every program (ring "
        "and tree)"
    )
    synthesis = simulation = published = 0.0
    for key, members in groupby(rows(), key=lambda r: r.group):
        group = list(members)
        explore.__globals__["_explore"].cache_clear()
        start = time.perf_counter()
        graphs = [explore(r.request().system()) for r in group]
        programs = [list(g.programs()) for g in graphs]
        synthesised = time.perf_counter() - start
        start = time.perf_counter()
        faster = dict.fromkeys(Algorithm, 0)
        for r, g in zip(group, graphs, strict=True):
            for algorithm in Algorithm:
                costs = edge_costs(g, r.request().system(), m2(load_machine(r.machine), algorithm=algorithm))
                times = path_costs(g, costs)
                faster[algorithm] += sum(t < times[0] for t in times)
        simulated = time.perf_counter() - start
        total = sum(map(len, programs))
        if group[0].total is not None and total != group[0].total:
            raise SystemExit(f"{key}: {total} programs, published {group[0].total}")
        synthesis, simulation, published = (
            synthesis + synthesised,
            simulation + simulated,
            published + (group[0].published["synth_time_s"] or 0),
        )
        times = ", ".join(f"{k} {v if v is not None else '-'}" for k, v in group[0].published.items())
        print(
            f"{key[0]} {'x'.join(map(str, key[1])):5} {key[2]!s:11} reduce {key[3]!s:7} matrices {len(group)}  "
            f"programs {total:3}  predicted faster than AllReduce "
            f"ring {faster[Algorithm.RING]:3} tree {faster[Algorithm.TREE]:3}  synthesis {synthesised:.4f} s  "
            f"simulation {simulated:.4f} s  (paper: {times})"
        )
    print(f"all: synthesis {synthesis:.2f} s (paper {published:.2f} s), simulation of every program {simulation:.2f} s")


def path_costs(graph: object, costs: Sequence[Sequence[int]]) -> list[int]:
    """Cost of every program in the order of `programs`; the first one is the single AllReduce."""
    out, now = [], [(0, 0)]
    while now:
        after = []
        for s, c in now:
            for e, more in zip(graph.edges[s], costs[s], strict=True):  # type: ignore[attr-defined]
                if e.target == graph.goal:  # type: ignore[attr-defined]
                    out.append(c + more)
                else:
                    after.append((e.target, c + more))
        now = after
    return out


CASES = (((2, 2), ((2, 2),)), ((2, 3), ((2, 3),)), ((2, 4), ((2, 4),)), ((2, 4), ((2, 2), (1, 2))), ((4, 2), ((4, 2),)))
PAYLOADS = (1 << 13, 1 << 17, 1 << 20)


def measure() -> None:
    """Every program of every case at every payload, the fastest of seven rounds."""
    from shardproof.backends.execution.collective_programs import run_mpi

    out = []
    for hierarchy, matrix in CASES:
        request = ReductionRequest(hierarchy, matrix, (0,))
        system = request.system()
        programs = list(explore(system).programs())
        for payload in PAYLOADS:
            width = -(-payload // (8 * system.chunks))
            outcomes = run_mpi(programs, system, width, repeats=7, timeout_s=120)
            if not all(o.correct for o in outcomes):
                raise SystemExit("a program gave a wrong sum")
            for program, o in zip(programs, outcomes, strict=True):
                fastest = min(o.seconds)  # other work on the computer only adds
                out.append(
                    Timing(
                        hierarchy,
                        matrix,
                        (0,),
                        words(program, system.tree),
                        Algorithm.RING,
                        width * 8 * system.chunks,
                        fastest,
                        "measured",
                    )
                )
            print(f"measured {hierarchy} {matrix} {payload} B: {len(programs)} programs", flush=True)
    write_timings(LOCAL, out)


def local_machine() -> Machine:
    """One computer: ranks in two levels, and a memory that all of them share."""
    base = load_machine("cloud-a100:2x2")
    guess = Fraction(10**9)
    levels = tuple(replace(x, bandwidth=guess, latency=Fraction(1, 20000)) for x in base.levels)
    return replace(base, name="local", levels=levels)


def with_memory(machine: Machine, devices: int) -> Machine:
    return replace(
        machine,
        resources=(Resource("memory", devices, Fraction(2 * 10**9), ("nodes", "gpus")),),
        sources=(*machine.sources, ("resource.memory.capacity", "guess")),
    )


def top_k() -> None:
    print(
        "== 4. top-k on our own ground truth: MPI ranks that share two cores of one computer (which is no "
        "hierarchy: an adverse case)"
    )
    timings = read_timings(LOCAL)
    cases = [list(g) for _, g in groupby(timings, key=lambda t: (t.hierarchy, t.matrix, t.payload))]
    hits = dict.fromkeys((1, 2, 3, 5, 6, 10), 0)
    losses = []
    for case in cases:
        # constants of this shape, from every fourth program at all payloads: at most a quarter of the rows judged
        others = [
            t for c in cases if (c[0].hierarchy, c[0].matrix) == (case[0].hierarchy, case[0].matrix) for t in c[::4]
        ]
        machine = with_memory(local_machine(), case[0].hierarchy[0] * case[0].hierarchy[1]).resized(case[0].hierarchy)
        fitted = calibrate(machine, others, latencies=True).machine
        predicted = [predict(fitted, t, latencies=True) for t in case]
        order = sorted(range(len(case)), key=lambda i: (predicted[i], i))
        fastest = min(range(len(case)), key=lambda i: case[i].seconds)
        place = order.index(fastest) + 1
        losses.append(case[order[0]].seconds / case[fastest].seconds)
        for k in hits:
            hits[k] += place <= k
        f = fit(predicted, [t.seconds for t in case])
        print(
            f"{case[0].hierarchy} {case[0].matrix} {case[0].payload:8} B: fastest {case[fastest].program:20} "
            f"{1e3 * case[fastest].seconds:7.2f} ms is number {place:2} of {len(case)}; "
            f"chosen {case[order[0]].program:20} {losses[-1]:.2f} x;  {f}"
        )
    paper = "paper A100 46.8, 71.0, 72.6, 74.2, 90.3, 94.4 %; V100 60.5, 67.1, 71.1, 76.3, 76.3, 88.1 %"
    print(
        f"{len(cases)} cases, top-k:",
        ", ".join(f"{k}: {100 * h / len(cases):.0f} %" for k, h in hits.items()),
        f"({paper}; other systems, not comparable)",
    )
    print(
        f"time lost by the predicted choice: mean {sum(losses) / len(losses):.2f} x, worst {max(losses):.2f} x of "
        f"the fastest program"
    )


if __name__ == "__main__":
    if "--measure" in sys.argv:
        measure()
    accuracy()
    orders()
    if "--no-groups" not in sys.argv:
        groups()
    if LOCAL.exists():
        top_k()
