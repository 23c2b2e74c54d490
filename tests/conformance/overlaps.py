"""Overlapped plans of the conformance suite: three layers of a perceptron on two devices, every placement the first of
its list, scheduled; the bound from weights of operators, redistributions and one chain.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

from conformance.pipelines import machine
from conformance.writing import Head, Suite, changed, container
from shardproof.formal.overlap.search import Chain, edges_between, links_of, scheduled, weighted
from shardproof.formal.selection.solve import solve
from shardproof.models.cost.selection import build as build_problem
from shardproof.models.layout.placement import space
from shardproof.models.schedules.problem import ScheduleProblem
from shardproof.models.sources.zoo import build
from shardproof.proofs.overlap.certificate import OverlapCertificate
from shardproof.proofs.overlap.file import encode_overlap
from shardproof.proofs.schedules.certificate import ScheduleCertificate


def by_hand(weights: tuple[int, ...]) -> OverlapCertificate:
    graph = build("mlp-8192", batch=4, width=32, layers=3)
    planning = build_problem(graph, machine(), space("complete"), None)
    x = (0,) * len(planning.decisions)
    made, names = scheduled(planning, x, 5.0), tuple(op.name for op in graph.operators)
    links = links_of(graph, list(range(len(names))), edges_between(planning))
    chain = Chain(names, frozenset(names), links)
    answer = solve(weighted(planning, [chain][: len(weights) - 2], weights))
    assert answer.certificate is not None and answer.lower_bound is not None
    f = made.found
    return OverlapCertificate(
        graph,
        planning.machine,
        "complete",
        planning.choices(x),
        made.quantum,
        ScheduleCertificate(made.problem, f.starts, f.makespan, f.lower_bound, f.bound, "overlap"),
        (chain.operators,)[: len(weights) - 2],
        weights,
        made.makespan,
        min(made.makespan, -(-answer.lower_bound // sum(weights))),
        answer.certificate,
    )


def suite() -> Suite:
    out = Suite("overlapped plan")

    def add(name: str, verdict: str, sentence: str, c: OverlapCertificate, fault: str = "") -> None:
        out.add(f"overlap-{name}", verdict, sentence, container(encode_overlap(c)), fault=fault)

    good = by_hand((1, 0, 2))
    add("chain", "proved", "Overlap      proved", good)
    add("sums", "proved", "WithinGap    proved", by_hand((3, 1)))
    add("lower", "proved", "WithinGap    proved", replace(good, lower_bound=1))

    def refuted(name: str, sentence: str, c: OverlapCertificate, fault: str) -> None:
        add(name, "refuted", sentence, c, fault)

    refuted(
        "bound", "the certificate gives a bound of", replace(good, lower_bound=good.lower_bound + 1), "a bound too high"
    )
    refuted(
        "makespan", "the claim says", replace(good, makespan=good.makespan - 1), "a time shorter than the schedule's"
    )
    refuted("weights", "weights [1, 1, 2]", replace(good, weights=(1, 1, 2)), "weights of another bound")
    refuted("chain-order", "reads nothing that", replace(good, chains=(good.chains[0][::-1],)), "a chain backwards")
    problem = good.schedule.subject
    assert isinstance(problem, ScheduleProblem)
    free = replace(good.schedule, subject=replace(problem, precedences=problem.precedences[1:]))
    refuted("precedence", "waits for other tasks", replace(good, schedule=free), "a task that waits for nothing")
    quick = (replace(problem.tasks[0], time=0), *problem.tasks[1:])
    fast = replace(good.schedule, subject=replace(problem, tasks=quick))
    refuted("time", "the schedule says otherwise", replace(good, schedule=fast), "an operator that takes no time")
    few = replace(good.choices, operators=good.choices.operators[1:])
    refuted("choices", "something is not decided", replace(good, choices=few), "an operator without a placement")

    whole = encode_overlap(good)

    def malformed(name: str, sentence: str, change: Callable[[Head], object], fault: str) -> None:
        data = container(changed(whole, "overlap.json", change))
        out.add(f"overlap-{name}", "malformed", sentence, data, fault=fault)

    malformed("format", "reads 'shardproof-overlap/1' only", lambda h: h.update(format="x"), "another format")
    malformed("nothing", "not all 0", lambda h: h.update(weights=[0, 0, 0]), "weights of nothing")
    malformed("few", "one per chain", lambda h: h.update(weights=[1, 1]), "a chain without a weight")
    malformed("graph", "is not the hash", lambda h: h.update(graph_sha256="0" * 64), "the hash of another graph")
    return out
