"""What a plan is about, as every kind of plan holds it: the graph with its constants, the machine,
their hashes.

head              {.., "graph_sha256", "machine_sha256", ..}
graph.json, machine.json      canonical JSON
constants/DIGEST  values of a constant input of the graph, where they are known and take at most 256 MiB in all
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from ...models.machine.machine import Machine, MachineError
from ...models.program.contents import constants, encode_contents, fill_contents
from ...models.program.graph import Graph, GraphError
from ..container.archive import Member, read_text
from ..container.canonical import ContainerError, Reader

MOST_CONSTANTS: Final = 1 << 28
"""Bytes of the constants that a plan holds; beyond, a run asks for them."""

HASHES: Final = ("graph_sha256", "machine_sha256")


def subject_hashes(graph: Graph, machine: Machine) -> dict[str, str]:
    """Fields of the head."""
    return dict(zip(HASHES, (graph.sha256(), machine.sha256()), strict=True))


def subject_members(graph: Graph, machine: Machine) -> dict[str, Member]:
    """Members of the container."""
    found = encode_contents(graph)
    small = sum(map(len, found.values())) <= MOST_CONSTANTS
    return {
        "graph.json": graph.to_json().encode(),
        "machine.json": machine.to_json().encode(),
        **({f"constants/{digest}": data for digest, data in found.items()} if small else {}),
    }


def read_subject(head: Reader, members: Mapping[str, Member]) -> tuple[Graph, Machine]:
    """Inverse of both.  `ContainerError` where a member is malformed, or other than the head says."""
    try:
        graph = Graph.from_json(read_text(members, "graph.json"))
        machine = Machine.from_json(read_text(members, "machine.json"))
    except (GraphError, MachineError) as error:
        raise ContainerError("member 'graph.json' or 'machine.json'", str(error)) from None
    graph = _with_constants(graph, members)
    for name, found in subject_hashes(graph, machine).items():
        same_hash(head[name], found)
    return graph, machine


def same_hash(stated: Reader, found: str) -> None:
    """Nothing if a hash is the one of what the file holds; else a `ContainerError` at its place."""
    if stated.text(64) != found:
        stated.fail(f"is not the hash of what the file holds ({found[:12]}..)")


def _with_constants(graph: Graph, members: Mapping[str, Member]) -> Graph:
    held = {name.removeprefix("constants/"): members[name] for name in members if name.startswith("constants/")}
    if not held.keys() <= constants(graph).keys():
        raise ContainerError("constants", f"{min(held.keys() - constants(graph).keys())!r} is none of the graph")
    try:
        return fill_contents(graph, {digest: m for digest, m in held.items() if isinstance(m, bytes)})
    except ValueError as error:
        raise ContainerError("constants", str(error)) from None
