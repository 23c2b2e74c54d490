"""Overlapped plans of the conformance suite: three layers of a perceptron on two devices, every placement the first of
its list, scheduled; the bound from weights of operators, redistributions and one chain.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Literal

from budgets import work

from conformance.pipelines import machine
from conformance.writing import Head, Suite, changed, container
from shardproof.formal.plans.overlap.planned import schedule_solution
from shardproof.formal.plans.overlap.search import unfit
from shardproof.formal.plans.overlap.weights import Chain, edges_between, links_of, weighted_problem
from shardproof.formal.selection.solve import solve
from shardproof.models.cost.selection import Planning
from shardproof.models.cost.selection import build as build_problem
from shardproof.models.layout.placement import space
from shardproof.models.schedules.problem import ScheduleProblem
from shardproof.models.sources.zoo import build
from shardproof.proofs.overlap.certificate import OverlapCertificate
from shardproof.proofs.overlap.file import encode_overlap
from shardproof.proofs.schedules.certificate import ScheduleCertificate


def limited(memory: int | None) -> Planning:
    graph = build("mlp-8192", batch=4, width=32, layers=3)
    return build_problem(graph, machine(), space("complete"), memory)


def by_hand(weights: tuple[int, ...], memory: int | None = None, rows: Literal["", "every"] = "") -> OverlapCertificate:
    planning = limited(memory)
    graph = planning.graph
    x = (0,) * len(planning.decisions)
    made, names = schedule_solution(planning, x, 5.0), tuple(op.name for op in graph.operators)
    links = links_of(graph, list(range(len(names))), edges_between(planning))
    chain = Chain(names, frozenset(names), links)
    answer = solve(weighted_problem(planning, [chain][: len(weights) - 2], weights, rows))
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
        memory,
    )


def suite() -> Suite:
    out = Suite("overlapped plan")

    def add(name: str, verdict: str, sentence: str, c: OverlapCertificate, fault: str = "") -> None:
        out.add(f"overlap-{name}", verdict, sentence, container(encode_overlap(c)), fault=fault)

    good = by_hand((1, 0, 2))
    add("chain", "proved", "Overlap      proved", good)
    add("sums", "proved", "WithinGap    proved", by_hand((3, 1)))
    add("lower", "proved", "WithinGap    proved", replace(good, lower_bound=1))

    kept = by_hand((1, 0, 2), 1 << 20)
    rows = by_hand((3, 1), 1 << 20, "every")
    add("memory", "proved", "Schedule     proved", kept)
    add("memory-rows", "proved", "WithinGap    proved", rows)

    nothing = unfit(limited(1 << 10), work(30.0), thoroughly=False)
    assert nothing is not None
    none = nothing.certificate()
    add("infeasible", "proved", "Infeasible   proved", none)

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
    held = kept.schedule.subject
    assert isinstance(held, ScheduleProblem)
    without = replace(kept.schedule, subject=replace(held, holdings=held.holdings[1:]))
    refuted("memory-block", "holds other blocks", replace(kept, schedule=without), "a block that nobody counts")
    wide = replace(kept.schedule, subject=replace(held, limits=(1 << 30,)))
    refuted("memory-limit", "another memory limit", replace(kept, schedule=wide), "a schedule with more memory")
    tight = replace(kept.schedule, subject=replace(held, limits=(1 << 10,)))
    refuted("memory-above", "its limit is 1024", replace(kept, schedule=tight, memory=1 << 10), "more than the limit")
    refuted("infeasible-limit", "another problem", replace(none, memory=1 << 20), "another limit than the proof's")
    refuted(
        "infeasible-bound", "does not say that nothing fits", replace(none, least=good.least), "a bound, no conflict"
    )
    few = replace(good.choices, operators=good.choices.operators[1:])
    refuted("choices", "something is not decided", replace(good, choices=few), "an operator without a placement")

    whole = encode_overlap(good)

    def malformed(name: str, sentence: str, change: Callable[[Head], object], fault: str) -> None:
        data = container(changed(whole, "overlap.json", change))
        out.add(f"overlap-{name}", "malformed", sentence, data, fault=fault)

    malformed("format", "reads 'shardproof-overlap/1' only", lambda h: h.update(format="x"), "another format")
    malformed("nothing", "not all 0", lambda h: h.update(weights=[0, 0, 0]), "weights of nothing")
    malformed("memory-text", "memory_limit", lambda h: h.update(memory_limit="1GiB"), "a limit in words")
    malformed("few", "one per chain", lambda h: h.update(weights=[1, 1]), "a chain without a weight")
    malformed("no-makespan", "and there is a schedule", lambda h: h.update(makespan=None), "a schedule of nothing")
    malformed("graph", "is not the hash", lambda h: h.update(graph_sha256="0" * 64), "the hash of another graph")
    return out
