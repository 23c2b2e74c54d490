"""The hash that a plan's certificate is about follows from docs/certificate-format.md: prices by the second builder, order
by `plan_identity`, with no code of the rooms but the table of functions.
"""

from __future__ import annotations

import json
from pathlib import Path

import plan_identity
import pytest
from independent_checker.reading import read_members
from second_builder.description import read_machine, read_program
from second_builder.tables import Tables
from second_builder_cases import CASES
from second_builder_comparison import tables_of

PLANS = sorted((Path(__file__).parent / "conformance" / "proved").glob("plan-*.spz"))
FAST = (
    "matmul chain, mixed machine, uneven",
    "partial sums",
    "softmax and norms",
    "convolution with halos",
    "embeddings",
    "pieces on two levels",
    "diagonals",
    "perceptron with adam",
)
"""The others take a second or three each."""


def agrees(name: str) -> None:
    planning = CASES[name].planning()
    p = planning.problem
    head = {
        "name": f"{planning.graph.name} on {planning.machine.name}",
        "limit": p.limit,
        "unit": "s",
        "scale": p.scale,
        "space": p.space,
        "assumptions": list(p.assumptions),
    }
    assert plan_identity.sha256(tables_of(planning), head, p.limit is not None) == p.sha256()


@pytest.mark.parametrize("name", FAST)
def test_the_hash_follows_from_the_document(name: str) -> None:
    agrees(name)


@pytest.mark.slow
@pytest.mark.parametrize("name", [n for n, case in CASES.items() if not case.slow and n not in FAST])
def test_the_hash_of_more_problems(name: str) -> None:
    agrees(name)


@pytest.mark.parametrize("path", PLANS, ids=lambda p: p.stem)
def test_the_hash_of_a_plan_follows_from_its_file(path: Path) -> None:
    """Graph, machine, space and limit out of the file, assumptions by the table of the document."""
    members = {name: content for name, (content, _) in read_members(path.read_bytes()).items()}
    plan, graph, machine = (json.loads(members[f"{name}.json"]) for name in ("plan", "graph", "machine"))
    limit = plan["memory_limit"]
    made = (
        "class-order closed-reads inputs-anywhere no-overlap one-copy-per-tensor one-step-redistribution receive-side"
    )
    assumed = {*made.split(), "whole-taps"}
    assumed |= set() if plan["space"].endswith(",uneven") else {"even-splits"}
    assumed |= {"no-memory-limit"} if limit is None else {"every-operand-received", "packing-not-counted"}
    assumed |= {"donated-state"} if limit is not None and graph.get("state") else set()
    head = {
        "name": f"{graph['name']} on {machine['name']}",
        "limit": limit,
        "unit": "s",
        "scale": 10**12,
        "space": plan["space"],
        "assumptions": sorted(assumed),
    }
    program, devices = read_program(members["graph.json"].decode()), read_machine(members["machine.json"].decode())
    found = plan_identity.sha256(Tables(program, devices, plan["space"], 10**12), head, limit is not None)
    assert found == plan["problem_sha256"]
