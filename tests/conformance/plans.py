"""Plans of the conformance suite: a layer of a perceptron and a training step of one weight, on two devices.

Small enough that every combination of choices is tried here, and that the proof is a tree of exact eliminations.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace
from fractions import Fraction
from functools import cache
from itertools import product

from conformance.writing import Head, Suite, changed, container
from shardproof.formal.explain.error_bounds import error_bounds_of
from shardproof.models.communication.choices import Choices, communications
from shardproof.models.cost.selection import Planning, build
from shardproof.models.layout.placement import space
from shardproof.models.machine.machine import Machine
from shardproof.models.machine.parts import DeviceClass, Level
from shardproof.models.problem.claims import Infeasible, LowerBound, Optimal, SelectionClaim, WithinGap
from shardproof.models.problem.selection_problem import Ints
from shardproof.models.program.graph import Graph, Role, Tensor
from shardproof.models.program.index import Axis, Combine, access
from shardproof.models.program.operators import Operator
from shardproof.proofs.container.archive import Member
from shardproof.proofs.plan.bundle import Moved, Plan, encode_plan
from shardproof.proofs.selection.certificates import (
    Elimination,
    Point,
    Record,
    RowConflict,
    SelectionCertificate,
    Split,
)
from shardproof.verify.plan.communication import totals

SOURCES = ("level.ranks.bandwidth", "level.ranks.latency", "device_class.core.memory", "device_class.core.bandwidth")
MACHINE = Machine(
    "pair",
    (Level("ranks", 2, Fraction(2 * 10**9), Fraction(1, 10**6)),),
    DeviceClass("core", (("float32", Fraction(10**9)),), 1 << 20, Fraction(10**9)),
    tuple((name, "made up") for name in sorted((*SOURCES, "device_class.core.peaks.float32"))),
)
SUM = Combine.SUM

LAYER = Graph(
    "layer",
    (
        Tensor("x", (64, 32), role=Role.INPUT),
        Tensor("w", (32, 16), role=Role.PARAMETER),
        Tensor("y", (64, 16)),
        Tensor("z", (64, 16)),
    ),
    (
        Operator(
            "product",
            "product",
            (Axis("b", 64), Axis("n", 16), Axis("k", 32, SUM)),
            (access("x", "b", "k"), access("w", "k", "n")),
            access("y", "b", "n"),
        ),
        Operator("relu", "relu", (Axis("b", 64), Axis("n", 16)), (access("y", "b", "n"),), access("z", "b", "n")),
    ),
    ("z",),
).check()

STEP = Graph(
    "step",
    (
        Tensor("x", (64, 32), role=Role.INPUT),
        Tensor("g", (64, 16), role=Role.INPUT),
        Tensor("w", (32, 16), role=Role.PARAMETER),
        Tensor("y", (64, 16)),
        Tensor("dw", (32, 16)),
        Tensor("w.next", (32, 16)),
    ),
    (
        Operator(
            "forward",
            "product",
            (Axis("b", 64), Axis("n", 16), Axis("k", 32, SUM)),
            (access("x", "b", "k"), access("w", "k", "n")),
            access("y", "b", "n"),
        ),
        Operator(
            "gradient",
            "product",
            (Axis("k", 32), Axis("n", 16), Axis("b", 64, SUM)),
            (access("x", "b", "k"), access("g", "b", "n")),
            access("dw", "k", "n"),
        ),
        Operator(
            "update",
            "sgd_update",
            (Axis("k", 32), Axis("n", 16)),
            (access("w", "k", "n"), access("dw", "k", "n")),
            access("w.next", "k", "n"),
            (("rate", 0.5),),
        ),
    ),
    ("y",),
    (("w", "w.next"),),
).check()


@cache
def planning(graph: Graph, limit: int | None, where: str = "complete") -> Planning:
    return build(graph, MACHINE, space(where), limit)


@cache
def solutions(of: Planning) -> list[tuple[int, tuple[int, ...]]]:
    """Every feasible solution with its cost, cheapest first."""
    p = of.problem
    every = product(*(range(p.domain_size(v)) for v in range(len(p.vertices))))
    return sorted((p.cost_of(x), x) for x in every if p.is_feasible(x))


def proof(of: Planning, ub: float) -> Record:
    """A tree of splits, each leaf an exact elimination where that bound is enough, else a point."""
    p = of.problem
    n = len(p.vertices)
    free = {x: p.cost_of(x) for x in product(*(range(p.domain_size(v)) for v in range(n)))}

    def below(domains: tuple[tuple[int, ...], ...]) -> Record:
        if min(free[x] for x in product(*domains)) >= ub:
            return elimination(of)
        v = next((v for v, d in enumerate(domains) if len(d) > 1), None)
        if v is None:
            return Point()
        parts = tuple((a,) for a in domains[v])
        return Split(v, parts, tuple(below((*domains[:v], part, *domains[v + 1 :])) for part in parts))

    return below(tuple(tuple(range(p.domain_size(v))) for v in range(n)))


def elimination(of: Planning) -> Elimination:
    """All vertices in order, each over all that come after; messages left to the checker."""
    n = len(of.problem.vertices)
    return Elimination(tuple(range(n)), tuple(tuple(range(v + 1, n)) for v in range(n)), ())


def plan(of: Planning, claim: SelectionClaim, record: Record, x: tuple[int, ...] | None) -> dict[str, Member]:
    """The members of a plan with the choices `x`."""
    choices = Choices((), ()) if x is None else of.choices(x)
    certificate = SelectionCertificate(of.problem.sha256(), claim, record)
    limit = of.problem.limit
    moved = () if x is None else tuple(_moved(of, choices))
    versions = (("made", "by hand"),)
    return encode_plan(Plan(of.graph, of.machine, of.space.name, limit, choices, moved, certificate, versions))


def _moved(of: Planning, choices: Choices) -> Iterator[Moved]:
    for m in communications(of.graph, of.machine.hierarchy, choices):
        yield Moved(m.tensor, m.writer, m.reader, m.position, m.plan.collective(), *totals(m.plan))


def best(of: Planning) -> dict[str, Member]:
    """The cheapest plan, proved optimal."""
    cost, x = solutions(of)[0]
    return plan(of, Optimal(x, cost), proof(of, cost), x)


def barred() -> dict[str, Member]:
    """The cheapest plan on a machine whose links may be off, against two others; intervals by enumerating entries."""
    shares = {"level": Fraction(1, 10), "device_class": Fraction(1, 20)}
    paths = [p for p, _ in MACHINE.sources if not p.endswith(".memory")]
    machine = replace(
        MACHINE, bars=tuple((p, shares[p.partition(".")[0]]) for p in paths if p.partition(".")[0] in shares)
    )
    of = build(LAYER, machine, space("complete"), None)
    cost, x = solutions(of)[0]
    others = [y for _, y in solutions(of)[1:40:20]]
    bars = error_bounds_of(of, x, cost, [(f"other {k}", y) for k, y in enumerate(others)])
    certificate = SelectionCertificate(of.problem.sha256(), Optimal(x, cost), proof(of, cost))
    choices = of.choices(x)
    moved, versions = tuple(_moved(of, choices)), (("made", "by hand"),)
    whole = Plan(of.graph, of.machine, of.space.name, None, choices, moved, certificate, versions, None, bars)
    return encode_plan(whole)


def suite() -> Suite:
    out = Suite("plan")

    def add(name: str, verdict: str, sentence: str, members: dict[str, Member], fault: str = "") -> None:
        out.add(f"plan-{name}", verdict, sentence, container(members), fault=fault)

    layer, step = planning(LAYER, None), planning(STEP, None)
    add("layer", "proved", "Optimal      proved; cost", best(layer))
    uneven = planning(LAYER, None, "one-per-level,uneven")
    add("uneven", "proved", "space one-per-level,uneven; assumptions: class-order", best(uneven))
    add("training", "proved", "Optimal      proved; cost", best(step))
    peaks = sorted({peak(planning(STEP, 1 << 40), x) for _, x in solutions(step)})
    tight = planning(STEP, peaks[len(peaks) // 2])
    add(
        "training-limit", "proved", "space complete; assumptions: class-order, closed-reads, donated-state", best(tight)
    )
    layer_peaks = sorted({peak(planning(LAYER, 1 << 40), x) for _, x in solutions(layer)})
    fits = planning(LAYER, layer_peaks[0])
    add("limit", "proved", f"memory limit {layer_peaks[0] >> 10} KiB per device", best(fits))
    whole = barred()
    add("bars", "proved", "Bars         proved", whole)
    for name, sentence, change in (
        ("cost", "the plan costs", lambda h: h["cost"].__setitem__(1, h["cost"][1] - 1)),
        ("bound", "is proved by nothing", lambda h: h.update(bound=h["bound"] + 2)),
        ("least", "the difference lies between", lambda h: h["against"][0].update(least=h["against"][0]["least"] + 3)),
        ("most", "the difference lies between", lambda h: h["against"][1].update(most=h["against"][1]["most"] - 3)),
        ("measure", "has no bar of", lambda h: h["against"][0].update(measure="level.none")),
    ):
        add(
            f"bars-{name}",
            "refuted",
            sentence,
            changed(whole, "bars.json", change),
            f"bars.json: a {name} that does not hold",
        )
    later = changed(whole, "bars.json", lambda h: h.update(format="shardproof-bars/9"))
    add("bars-format", "malformed", "this version reads", later, "bars.json: a later format")
    none = {**best(layer), "bars.json": whole["bars.json"]}
    add("bars-none", "refuted", "the machine has none", none, "bars.json beside a machine without bars")
    loose = planning(LAYER, 1 << 40)
    step_, vertices, needs = crowded(loose)
    short = planning(LAYER, needs - 1)
    witness = next(y for _, y in solutions(loose) if peak(loose, y) == layer_peaks[0])
    claim = Infeasible((step_,), vertices, layer_peaks[0], witness)
    conflict = RowConflict(((step_, 1),))
    add("infeasible", "proved", "Infeasible   proved", plan(short, claim, conflict, witness))
    cost, x = solutions(layer)[0]
    gap = WithinGap(x, cost, cost - 1)
    add("within-gap", "proved", "WithinGap    proved; cost", plan(layer, gap, elimination(layer), x))
    add(
        "lower-bound",
        "proved",
        "LowerBound   proved; lower bound",
        plan(layer, LowerBound(cost), elimination(layer), None),
    )

    worse_cost, worse = next((c, y) for c, y in solutions(layer) if c > cost)
    add(
        "not-the-best",
        "undecided",
        "the proof shows only the bound",
        plan(layer, Optimal(worse, worse_cost), elimination(layer), worse),
        "a plan that is not the best",
    )

    def refuted(name: str, sentence: str, members: dict[str, Member], fault: str) -> None:
        add(name, "refuted", sentence, members, fault)

    whole = best(layer)
    refuted(
        "wrong-cost", "claim: cost", plan(layer, Optimal(x, cost - 1), elimination(layer), x), "the cost is one too low"
    )
    certificate = plan(layer, Optimal(worse, worse_cost), elimination(layer), worse)
    other = {n: v for n, v in certificate.items() if n.startswith("certificate")}
    refuted("choices", "the certificate's solution", {**whole, **other}, "the certificate is about other choices")

    def head(
        name: str,
        verdict: str,
        sentence: str,
        change: Callable[[Head], object],
        fault: str,
        of: dict[str, Member] = whole,
    ) -> None:
        add(name, verdict, sentence, changed(of, "plan.json", change), fault)

    limited = best(fits)
    head(
        "limit-changed",
        "refuted",
        "it is about the problem",
        lambda h: h.update(memory_limit=layer_peaks[0] + 1),
        "the memory limit is another one",
        limited,
    )
    head(
        "limit-forgotten",
        "refuted",
        "it is about the problem",
        lambda h: h.update(memory_limit=None),
        "the memory limit is left out",
        limited,
    )
    head(
        "space-changed",
        "refuted",
        "it is about the problem",
        lambda h: h.update(space="complete,uneven"),
        "another space is named",
    )
    head(
        "outside",
        "refuted",
        "is outside the space",
        lambda h: h["decisions"]["operators"][0].__setitem__(2, [[4]] * 4),
        "a matrix is no placement",
    )
    head(
        "row-missing",
        "refuted",
        "must have a row per axis, one of replication",
        lambda h: h["decisions"]["operators"][0][2].pop(),
        "a matrix lacks a row",
    )
    head(
        "operator-missing",
        "refuted",
        "the operators are not the graph's",
        lambda h: h["decisions"]["operators"].pop(),
        "an operator has no placement",
    )
    moving = plan(layer, WithinGap(worse, worse_cost, 0), elimination(layer), worse)
    add("moving", "proved", "Bytes        proved", moving)
    head(
        "movement-missing",
        "refuted",
        "the plan lists 1 communications, its choices cause 2",
        lambda h: h["communication"].pop(),
        "a movement is left out",
        moving,
    )
    head(
        "load",
        "refuted",
        "movement 0 of 'y'",
        lambda h: h["communication"][0].__setitem__(5, [1]),
        "a load is another one",
        moving,
    )
    head(
        "collective",
        "refuted",
        "movement 0 of 'y'",
        lambda h: h["communication"][0].__setitem__(4, "gossip"),
        "a collective is called another name",
        moving,
    )
    head(
        "phase",
        "refuted",
        "movement 0 of 'y'",
        lambda h: h["communication"][0].__setitem__(6, [7]),
        "there are other phases",
        moving,
    )
    slower = MACHINE.to_json().replace('"2000000000"', '"1000000000"')
    assert slower != MACHINE.to_json()
    renamed = {**whole, "machine.json": slower.encode()}
    machine = Machine.from_json(slower)
    refuted(
        "machine",
        "it is about the problem",
        changed(renamed, "plan.json", lambda h: h.update(machine_sha256=machine.sha256())),
        "a link is half as fast, and the hash is changed with it",
    )
    stepped = best(step)
    forgetful = Graph(STEP.name, STEP.tensors, STEP.operators, STEP.outputs)
    without = {**stepped, "graph.json": forgetful.to_json().encode()}
    refuted(
        "state",
        "it is about the problem",
        changed(without, "plan.json", lambda h: h.update(graph_sha256=forgetful.sha256())),
        "the next value of the weight is forgotten",
    )

    def malformed(name: str, sentence: str, members: dict[str, Member], fault: str) -> None:
        add(name, "malformed", sentence, members, fault)

    head(
        "graph-hash",
        "malformed",
        "is not the hash of what the file holds",
        lambda h: h.update(graph_sha256="0" * 64),
        "another hash of the graph",
    )
    head(
        "machine-hash",
        "malformed",
        "is not the hash of what the file holds",
        lambda h: h.update(machine_sha256="0" * 64),
        "another hash of the machine",
    )
    head(
        "problem-hash",
        "malformed",
        "is not the hash of what the file holds",
        lambda h: h.update(problem_sha256="0" * 64),
        "another hash of the problem",
    )
    head(
        "format",
        "malformed",
        "this version reads 'shardproof-plan/1' only",
        lambda h: h.update(format="shardproof-plan/9"),
        "a later format",
    )
    head("field", "malformed", "unknown field 'note'", lambda h: h.update(note=""), "an unknown field")
    head("space-unknown", "malformed", "unknown space 'all'", lambda h: h.update(space="all"), "there is no such space")
    head(
        "zero",
        "malformed",
        "must be an integer in 1..",
        lambda h: h["decisions"]["operators"][0][2][0].__setitem__(0, 0),
        "a degree is 0",
    )
    malformed("no-graph", "is missing", {n: v for n, v in whole.items() if n != "graph.json"}, "the graph is missing")
    broken = LAYER.to_json().replace('["y",["b","n"]]]', '["z",["b","n"]]]')
    assert broken != LAYER.to_json()
    malformed(
        "graph-order",
        "before it is written",
        {**whole, "graph.json": broken.encode()},
        "an operator reads its own result",
    )
    malformed(
        "machine-float",
        "machine.json",
        {**whole, "machine.json": MACHINE.to_json().replace('"2000000000"', "2e9").encode()},
        "a float for a fraction",
    )
    malformed(
        "no-certificate",
        "is missing",
        {n: v for n, v in whole.items() if not n.startswith("certificate")},
        "the certificate is missing",
    )
    return out


def peak(of: Planning, x: tuple[int, ...]) -> int:
    return of.problem.peak_of(x)[0]


def crowded(of: Planning) -> tuple[int, tuple[int, ...], int]:
    """(step, vertices that use something, bytes) where the least usages add up to most."""
    p, found = of.problem, []
    for t in p.events():
        used: dict[int, Ints] = {}
        for u in p.usages:
            if u.start <= t < u.end:
                used[u.vertex] = used[u.vertex] + u.amount if u.vertex in used else u.amount
        least = {v: int(a.min()) for v, a in used.items()}
        found.append((sum(least.values()), t, tuple(v for v, n in sorted(least.items()) if n)))
    needs, t, vertices = max(found)
    return t, vertices, needs


__all__ = ["suite"]
