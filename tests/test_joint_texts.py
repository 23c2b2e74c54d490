"""Texts of joint plans that nobody read: sizes of the tensors in `nodes.json`, and attributes of operators that look up
rows.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pytest

from shardproof.models.program.graph import Graph
from shardproof.models.program.operators import Operator
from shardproof.models.sources.building.builder import Builder
from shardproof.proofs.container.archive import MANIFEST, Member, read_container, write_container
from shardproof.proofs.container.canonical import ContainerError, canonical
from shardproof.proofs.joint.file import decode_joint
from shardproof.verify.joint import kinds
from shardproof.verify.joint.polynomials import Polynomial, Position, Undecided

FILE = Path(__file__).parent / "conformance" / "proved" / "joint-layer-2.spz"


def members() -> dict[str, Member]:
    return read_container(FILE)


def with_nodes(change: Callable[[dict], None]) -> dict[str, Member]:
    """The members with another `nodes.json`, hashed again."""
    held = members()
    nodes = json.loads(bytes(held["nodes.json"]))
    change(nodes)
    held["nodes.json"] = canonical(nodes)
    return read_container(write_container(None, {k: v for k, v in held.items() if k != MANIFEST}))


def test_every_size_of_every_tensor_of_the_added_operators_is_read() -> None:
    nodes = json.loads(bytes(members()["nodes.json"]))
    count = 0
    for t, tensor in enumerate(nodes["tensors"]):
        for k in range(len(tensor["shape"])):
            for by in (-1, 1, 7):

                def other(found: dict, t: int = t, k: int = k, by: int = by) -> None:
                    found["tensors"][t]["shape"][k] += by

                with pytest.raises(ContainerError, match=r"nodes\.json"):
                    decode_joint(with_nodes(other))
                count += 1
    assert count > 15


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (lambda n: n["tensors"][0].update(dtype="float16"), "its class is"),
        (lambda n: n["tensors"][0].update(role="parameter"), "its class is"),
        (lambda n: n["tensors"].append({**n["tensors"][0], "name": "stray"}), "has other tensors"),
        (lambda n: n["outputs"].append(n["tensors"][-1]["name"]), "has other tensors"),
    ],
    ids=["element type", "role", "a tensor more", "outputs"],
)
def test_what_differs_is_malformed(change: Callable[[dict], None], words: str) -> None:
    with pytest.raises(ContainerError, match=f"nodes.json.*({words}|member)"):
        decode_joint(with_nodes(change))


def test_the_file_as_it_is_is_read() -> None:
    assert decode_joint(with_nodes(lambda nodes: None)) == decode_joint(members())


def lookups() -> list[tuple[Operator, Graph]]:
    """An embedding and its transpose."""
    b = Builder("rows")
    ids, table = b.input("ids", (4,), "int64"), b.parameter("table", (9, 6))
    graph = b.build(b.embedding("rows", "v m, s -> s m", table, ids))
    return [(op, graph) for op in graph.operators if op.function in kinds.HITS]


def read(op: Operator, position: int, at: object) -> Polynomial:
    return Polynomial.number(1)


@pytest.mark.parametrize("attribute", [("padding_index", 0), ("scale", 2.0), ("mode", "mean")])
def test_an_unknown_attribute_of_a_lookup_is_undecided(attribute: tuple[str, object]) -> None:
    """What an operator with it computes is not what it computes without."""
    from dataclasses import replace

    found = lookups()
    assert found
    for op, graph in found:
        at = {a.name: Position(((a.name, 1),)) for a in op.axes}

        def value(op: Operator, graph: Graph = graph, at: dict = at) -> Polynomial:
            names = iter(f"_{k}" for k in range(99))
            return kinds.value(op, graph, at, lambda n: next(names), read, False)

        value(op)
        odd = replace(op, attributes=tuple(sorted((*op.attributes, attribute))))
        with pytest.raises(Undecided, match="attributes that are not known here"):
            value(odd)
