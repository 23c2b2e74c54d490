"""Forged plans: members changed or exchanged between plans, claims, choices, totals, and all hashes made right again.

The truth of a plan that was accepted: its claim by brute force over the selection problem of its graph, machine, space
and limit, its choices those of the solution, its movements those that its choices cause.  The tables are those of
`models`; a second builder has tests of its own.
"""

from __future__ import annotations

import json
import random
from functools import cache
from typing import Any

from forgeries import Tally, change, change_array, head_of, put
from forgeries_selection import true

from shardproof.formal.plans.plan import communication, plan_graph
from shardproof.models.cost.selection import Planning, build
from shardproof.models.layout.placement import space
from shardproof.models.machine.machine import Machine, load_machine
from shardproof.models.program.graph import Graph
from shardproof.models.sources.zoo import build as zoo
from shardproof.proofs.container.archive import Member, write_container
from shardproof.proofs.container.canonical import ContainerError
from shardproof.proofs.plan.bundle import decode_plan, encode_plan
from shardproof.proofs.selection.problem_file import problem_json
from shardproof.verify.plan.plan import check_plan

Json = Any

SAMPLES = 20
"""Entries that are checked again per plan, beside those that its choices use."""

CASES = (
    ("mlp-unity", {"batch": 8}, "localhost:2", "complete", None), ("mlp-8192", {"layers": 1, "batch": 8}, "localhost:2", "complete", None),
    ("mlp-8192", {"layers": 1, "batch": 6}, "localhost:3", "complete", None), ("mlp-8192", {"layers": 1, "batch": 4}, "cloud-a100:2x2", "complete", None),
    ("mlp-unity", {"batch": 4}, "localhost:2", "one-per-level", None), ("mlp-unity", {"batch": 8}, "localhost:2", "complete", 1 << 30),
    ("mlp-8192", {"layers": 1, "batch": 8}, "localhost:2", "complete", 400 << 20),
)  # fmt: skip


@cache
def originals() -> tuple[tuple[str, dict[str, Member]], ...]:
    out = []
    for model, sizes, machine, where, limit in CASES:
        planned = plan_graph(zoo(model, **sizes), load_machine(machine), space(where), limit)
        assert planned.plan is not None
        members = encode_plan(planned.plan)
        assert check_plan(write_container(None, members), samples=SAMPLES).exit_code == 0
        out.append((f"{model} on {machine}", members))
    return tuple(out)


def forge(seed: int) -> tuple[str, dict[str, Member], str]:
    """(kind, members with right hashes, what was done)."""
    rng = random.Random(seed)
    members = dict(originals()[seed % len(originals())][1])
    kinds, done = [], []
    for _ in range(rng.choice((1, 1, 1, 2))):
        kind = rng.choice(("claim", "record", "array", "choices", "totals", "plan", "graph", "machine", "exchanged"))
        kinds.append(kind)
        match kind:
            case "claim" | "record":
                head = head_of(members, "certificate.json")
                done.append(change(head["claim" if kind == "claim" else "records"], rng))
                put(members, "certificate.json", head)
            case "array":
                done.append(change_array(members, "certificate.i64", rng))
            case "choices" | "totals" | "plan":
                head = head_of(members, "plan.json")
                part = {"choices": head["decisions"], "totals": head["communication"], "plan": head}[kind]
                done.append(change(part, rng) if part else "nothing")
                put(members, "plan.json", head)
            case "graph" | "machine":
                head = head_of(members, f"{kind}.json")
                done.append(change(head, rng))
                put(members, f"{kind}.json", head)
            case _:
                other = originals()[rng.randrange(len(originals()))][1]
                for name in rng.choice(
                    (["graph.json"], ["machine.json"], ["plan.json"], ["certificate.json", "certificate.i64"])
                ):
                    members[name] = other[name]
                    done.append(f"{name} of another plan")
    _hash_again(members, rng.random() < 0.7)
    return kinds[0], members, "; ".join(done)


def _hash_again(members: dict[str, Member], rebuild: bool) -> None:
    """Hashes of graph and machine and, with `rebuild`, of the problem that graph, machine, space and limit give."""
    try:
        head, certificate = head_of(members, "plan.json"), head_of(members, "certificate.json")
        graph, machine = _parts(members)
        head["graph_sha256"], head["machine_sha256"] = graph.sha256(), machine.sha256()
        if rebuild:
            certificate["problem_sha256"] = _planning(
                graph.to_json(), machine.to_json(), head["space"], head["memory_limit"]
            ).problem.sha256()
        head["problem_sha256"] = certificate["problem_sha256"]
        put(members, "plan.json", head)
        put(members, "certificate.json", certificate)
    except (
        ArithmeticError,
        AttributeError,
        LookupError,
        TypeError,
        ValueError,
    ):  # it will be malformed for the checker too
        return


def _parts(members: dict[str, Member]) -> tuple[Graph, Machine]:
    texts = [members[name] for name in ("graph.json", "machine.json")]
    return Graph.from_json(bytes(texts[0]).decode()), Machine.from_json(bytes(texts[1]).decode())


@cache
def _planning(graph: str, machine: str, where: str, limit: int | None) -> Planning:
    return build(Graph.from_json(graph), Machine.from_json(machine), space(where), limit)


@cache
def _problem(graph: str, machine: str, where: str, limit: int | None) -> Json:
    return json.loads(problem_json(_planning(graph, machine, where, limit).problem))


def holds(members: dict[str, Member]) -> bool:
    """Is everything that an accepted plan says true?"""
    plan = decode_plan(members)
    parts = plan.graph.to_json(), plan.machine.to_json(), plan.space, plan.memory_limit
    claim = plan.certificate.claim
    if not true(_problem(*parts), claim):
        return False
    solution = getattr(claim, "solution", None)
    if solution is None:
        return not plan.communication and not plan.choices.operators
    choices = _planning(*parts).choices(solution)
    return plan.choices == choices and plan.communication == communication(plan.graph, plan.machine, choices)


def judge(seeds: range, tally: Tally) -> None:
    for seed in seeds:
        kind, members, what = forge(seed)
        accepted = False
        try:
            accepted = check_plan(write_container(None, members), samples=SAMPLES).exit_code == 0
        except ContainerError:
            pass
        tally.add(f"plan: {kind}", accepted, accepted and holds(members), f"seed {seed}: {what}")
