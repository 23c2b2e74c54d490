"""Placements and collective programs of the conformance suite: four devices, two nodes of two.

Potentials are distances to the goal, found here by relaxing every step of the closed state graph until nothing changes.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from fractions import Fraction

import numpy as np

from conformance.writing import Head, Suite, changed, container
from shardproof.models.collective_programs.collectives import Collective, LoweredStep, apply, rows_of
from shardproof.models.collective_programs.cost import Algorithm
from shardproof.models.collective_programs.parallelism import (
    Hierarchy,
    PlacementProblem,
    ReductionRequest,
    UnevenRequest,
)
from shardproof.models.collective_programs.programs import Form, Instruction, patterns
from shardproof.models.machine.machine import Machine
from shardproof.models.machine.parts import DeviceClass, Level
from shardproof.models.problem.selection_problem import Ints
from shardproof.proofs.collective_programs.certificate import (
    DEAD,
    Best,
    Cheapest,
    Correct,
    CostSpec,
    Count,
    Impossible,
    Part,
    PlacementCertificate,
    ReductionCertificate,
    ReductionClaim,
    Term,
)
from shardproof.proofs.collective_programs.file import encode_placement, encode_reduction

MACHINE = Machine(
    "four",
    (
        Level("nodes", 2, Fraction(10**9), Fraction(1, 10**6)),
        Level("ranks", 2, Fraction(4 * 10**9), Fraction(1, 10**7)),
    ),
    DeviceClass("core", (("float32", Fraction(10**9)),), 1 << 30, Fraction(10**9)),
    tuple(
        sorted(
            (name, "made up")
            for name in (
                "level.nodes.bandwidth",
                "level.nodes.latency",
                "level.ranks.bandwidth",
                "level.ranks.latency",
                "device_class.core.memory",
                "device_class.core.bandwidth",
                "device_class.core.peaks.float32",
            )
        )
    ),
)
COST = CostSpec("linked", MACHINE, 1 << 20)
REQUEST = ReductionRequest((2, 2), ((2, 2),), (0,))
"""One axis of four over both levels: everybody reduces with everybody."""

RS, AR, AG = Collective.REDUCE_SCATTER, Collective.ALL_REDUCE, Collective.ALL_GATHER
WHOLE = (Instruction(0, Form.INSIDE, None, AR),)
STAGED = (
    Instruction(1, Form.INSIDE, None, RS),
    Instruction(1, Form.PARALLEL, 0, AR),
    Instruction(1, Form.INSIDE, None, AG),
)
NONE = np.zeros(0, dtype=np.int64)


def potentials(request: ReductionRequest, spec: CostSpec) -> tuple[Ints, tuple[int, ...]]:
    """(least cost from every state to the goal, in order of discovery; number of programs by length)."""
    system, model = request.system(), spec.model()
    options = [
        (p.groups, kind, p.form is Form.MASTER)
        for p in patterns(system.tree, system.rules)
        for kind in system.rules.allowed_collectives(p.form is Form.MASTER)
    ]
    states, number, steps = [system.start()], {system.start(): 0}, []
    while len(steps) < len(states):
        state, found = states[len(steps)], []
        for groups, kind, master in options if state != system.goal() else ():
            after = apply(state, groups, kind, system.rules, master)
            if after is None or after == state:
                continue
            if after not in number:
                number[after] = len(states)
                states.append(after)
            source = after if kind is AG else state
            rows = tuple(rows_of(source[g[0]]).bit_count() for g in groups)
            devices = tuple(tuple(row[p] for p in g) for row in system.members for g in groups)
            price = model.step_time(LoweredStep(kind, devices, rows * len(system.members), system.chunks))
            found.append((price, number[after]))
        steps.append(found)
    least = [DEAD] * len(states)
    ways = [[0] for _ in states]
    goal = number[system.goal()]
    least[goal] = 0
    for _ in states:
        least = [min([x, *(price + least[t] for price, t in found)]) for x, found in zip(least, steps, strict=True)]
    ways = {goal: 1}
    lengths = []
    while ways:
        lengths.append(ways.get(0, 0))
        ways = {s: n for s, found in enumerate(steps) if (n := sum(ways.get(t, 0) for _, t in found))}
    return np.array([min(x, DEAD) for x in least], dtype=np.int64), tuple(lengths)


def suites() -> tuple[Suite, Suite]:
    return _placements(), _programs()


def _placements() -> Suite:
    out = Suite("placements")
    problem = PlacementProblem((2, 6), (4, 3))
    every = PlacementCertificate(problem, (((2, 2), (1, 3)),))
    pair = PlacementCertificate(PlacementProblem((2, 2), (2, 2)), (((1, 2), (2, 1)), ((2, 1), (1, 2))))
    out.add("placement-one", "proved", "Complete     proved", container(encode_placement(every)))
    out.add("placement-two", "proved", "Complete     proved", container(encode_placement(pair)))
    none = PlacementCertificate(PlacementProblem((2, 2), (4, 2)), ())
    out.add("placement-none", "proved", "Complete     proved", container(encode_placement(none)))

    def refuted(name: str, sentence: str, certificate: PlacementCertificate, fault: str) -> None:
        data = container(encode_placement(certificate))
        out.add(f"placement-{name}", "refuted", sentence, data, fault=fault)

    lacking = replace(pair, matrices=pair.matrices[:1])
    refuted("missing", "1 matrices are listed, there are 2", lacking, "a placement is left out")
    twice = replace(pair, matrices=(pair.matrices[0],) * 2)
    refuted("twice", "a matrix is listed twice", twice, "a placement is listed twice")
    row = replace(pair, matrices=(((2, 2), (1, 1)), pair.matrices[1]))
    refuted("row", "matrix 0, row 0: product 4, the axis has 2", row, "a row has another product than its axis")
    column = replace(every, matrices=(((4, 1), (1, 3)),))
    refuted("column", "matrix 0, column 0: product 4, the level has 2", column, "a column has another product")
    shape = replace(pair, matrices=(((2,), (1,)), pair.matrices[1]))
    refuted("shape", "must have 2 rows of 2 positive entries", shape, "a matrix lacks a column")

    def malformed(name: str, sentence: str, change: Callable[[Head], object], fault: str) -> None:
        data = container(changed(encode_placement(pair), "placement.json", change))
        out.add(f"placement-{name}", "malformed", sentence, data, fault=fault)

    malformed("zero", "must be an integer in 1..", lambda h: h["matrices"][0][0].__setitem__(0, 0), "an entry is 0")
    malformed("format", "this version reads", lambda h: h.update(format="shardproof-placement/2"), "a later format")
    malformed("field", "unknown field 'order'", lambda h: h.update(order=1), "an unknown field")
    malformed("list", "must be a list", lambda h: h.update(axes=4), "a number for a list")
    return out


def _programs() -> Suite:
    out = Suite("collective programs")
    least, lengths = potentials(REQUEST, COST)
    cost = int(least[0])
    whole = COST.model().step_time(LoweredStep(AR, ((0, 1, 2, 3),), (4,), 4))

    def certificate(claim: ReductionClaim, phi: Ints = NONE, request: object = REQUEST) -> ReductionCertificate:
        return ReductionCertificate((COST,), (Part(request, claim, phi),))  # type: ignore[arg-type]

    def add(name: str, verdict: str, sentence: str, c: ReductionCertificate, fault: str = "") -> None:
        out.add(f"program-{name}", verdict, sentence, container(encode_reduction(c)), fault=fault)

    best = STAGED if cost < whole else WHOLE
    cheapest = Cheapest(best, 0, cost)
    add("correct", "proved", "Correct      proved", certificate(Correct(STAGED)))
    add("cheapest", "proved", "Cheapest     proved; cost", certificate(cheapest, least))
    add("count", "proved", "Count        proved", certificate(Count(lengths)))
    apart = ReductionRequest((2, 2), ((2, 2),), (0,), reading="no_master")
    add("reading", "proved", "Count        proved", certificate(Count(potentials(apart, COST)[1]), NONE, apart))
    beside = ReductionRequest((4,), ((2,), (2,)), (0,), synthesis=Hierarchy.SYSTEM)
    add("impossible", "proved", "Impossible   proved", ReductionCertificate((), (Part(beside, Impossible(), NONE),)))
    uneven = UnevenRequest((1, 2))
    masked = replace(COST, devices=(0, 2, 3))
    one = (Instruction(0, Form.INSIDE, None, AR),)
    add("uneven", "proved", "Correct      proved", ReductionCertificate((masked,), (Part(uneven, Correct(one), NONE),)))
    matrices = PlacementCertificate(PlacementProblem((2, 2), (2, 2)), (((1, 2), (2, 1)), ((2, 1), (1, 2))))
    parts = []
    for matrix in matrices.matrices:
        request = ReductionRequest((2, 2), matrix, (0,))
        phi, _ = potentials(request, COST)
        parts.append(Part(request, Cheapest(WHOLE, 0, int(phi[0])), phi))
    costs = [p.claim.cost for p in parts if isinstance(p.claim, Cheapest)]
    chosen = Best(costs.index(min(costs)), min(costs), (Term((0,), 0, 1),), ("row-major",))
    everything = ReductionCertificate((COST,), tuple(parts), matrices, chosen)
    add("best-placement", "proved", "Best         proved; cost", everything)

    add(
        "weak",
        "undecided",
        "potentials prove only that no program costs less than 0",
        certificate(cheapest),
        "there are no potentials",
    )
    dear = Cheapest(WHOLE if best is STAGED else STAGED, 0, _price(WHOLE if best is STAGED else STAGED))
    add(
        "dear",
        "undecided",
        f"no program costs less than {cost}",
        certificate(dear, least),
        "a program that is not the cheapest",
    )

    def refuted(name: str, sentence: str, c: ReductionCertificate, fault: str) -> None:
        add(name, "refuted", sentence, c, fault)

    refuted(
        "unfinished",
        "holds 0 of 4 contributions to chunk 2",
        certificate(Correct(STAGED[:2])),
        "the last step is missing",
    )
    refuted(
        "order",
        "chunk 0 is held twice",
        certificate(Correct((STAGED[2], *STAGED[:2]))),
        "gathered before it is scattered",
    )
    refuted("double", "would count twice", certificate(Correct((WHOLE[0], WHOLE[0]))), "contributions are added twice")
    refuted(
        "wrong-cost",
        f"the program costs {cost}, not {cost - 1}",
        certificate(replace(cheapest, cost=cost - 1), least),
        "the cost is one too low",
    )
    high = least.copy()
    high[0] += 1
    refuted("potential", "state 0: potential", certificate(cheapest, high), "a potential is one too high")
    raised = least + 1
    refuted("goal", "must not be positive", certificate(cheapest, raised), "the goal has a positive potential")
    refuted(
        "count", "programs by length are", certificate(Count((*lengths[:-1], lengths[-1] + 1))), "one program too many"
    )
    refuted("impossible", "the goal can be reached", certificate(Impossible()), "there is a program")
    refuted(
        "machine",
        "the cost model is for another machine",
        ReductionCertificate((masked,), (Part(REQUEST, cheapest, least),)),
        "the cost model leaves out a device",
    )
    refuted(
        "best-lacks",
        "no proved part for placement",
        replace(everything, parts=everything.parts[:1]),
        "a placement has no part",
    )
    worse = Best(1 - chosen.matrix, max(costs), chosen.terms, chosen.orders)
    if min(costs) < max(costs):
        add(
            "best-worse",
            "undecided",
            "the parts prove only that no placement costs less than",
            replace(everything, best=worse),
            "a placement that is not the best",
        )
    refuted(
        "best-cost", "costs", replace(everything, best=replace(chosen, cost=chosen.cost + 1)), "the sum is one too high"
    )

    whole_file = encode_reduction(certificate(cheapest, least))

    def malformed(name: str, sentence: str, change: Callable[[Head], object], fault: str) -> None:
        data = container(changed(whole_file, "reduction.json", change))
        out.add(f"program-{name}", "malformed", sentence, data, fault=fault)

    step = lambda h: h["parts"][0]["claim"]["program"][0]
    malformed(
        "collective", "unknown word 'Gossip'", lambda h: step(h).__setitem__(3, "Gossip"), "there is no such collective"
    )
    malformed(
        "step", "must be [slice, form, ancestor or null, collective]", lambda h: step(h).pop(), "a step has three parts"
    )
    malformed(
        "model",
        "integer is out of range",
        lambda h: h["parts"][0]["claim"].update(model=1),
        "there is no such cost model",
    )
    malformed(
        "request",
        "unknown request 'torus'",
        lambda h: h["parts"][0]["request"].update(kind="torus"),
        "there is no such request",
    )
    malformed(
        "claim", "unknown claim 'nice'", lambda h: h["parts"][0]["claim"].update(kind="nice"), "there is no such claim"
    )
    malformed(
        "algorithm",
        "unknown word 'star'",
        lambda h: h["costs"][0].update(algorithm="star"),
        "there is no such algorithm",
    )
    malformed("machine-text", "lacks", lambda h: h["machines"].__setitem__(0, "{}"), "the machine is no machine")
    return out


def _price(program: tuple[Instruction, ...]) -> int:
    return sum(COST.model().step_time(step) for step in REQUEST.system().execute(program)[1])


__all__ = ["MACHINE", "Algorithm", "suites"]
