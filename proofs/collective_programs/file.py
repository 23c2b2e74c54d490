"""Writes certificates of placements and reduction programs as container members.

    placement.json   {"format", "hierarchy", "axes", "matrices"}
    reduction.json   {"format", "machines": [canonical machine text, ..], "costs": [..], "parts": [..], "best",
                     "shapes"}
    reduction.i64    all potentials, see `arrays`

A program is a list of [slice, form, ancestor or null, collective].  Decoding checks types and structure only; whether
it proves anything is for `verify` to say.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Final, TypeVar, assert_never

import numpy as np

from ...models.collective_programs.collectives import Collective
from ...models.collective_programs.cost import Algorithm
from ...models.collective_programs.parallelism import (
    Hierarchy,
    Matrix,
    Order,
    PlacementProblem,
    ReductionRequest,
    Request,
    UnevenRequest,
)
from ...models.collective_programs.programs import Form, Instruction, Program
from ...models.machine.machine import Machine
from ...models.machine.parts import MachineError
from ...models.problem.selection_problem import Ints
from ..container.archive import LIMITS, Limits, Member, read_array, read_container, read_json, write_container
from ..container.arrays import ArrayPool, ArrayTable
from ..container.canonical import Reader, canonical
from ..container.kinds import require_kind
from .certificate import (
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

PLACEMENT: Final = "placement.json"
REDUCTION: Final = "reduction.json"
ARRAYS: Final = "reduction.i64"
PLACEMENT_FORMAT: Final = "shardproof-placement/1"
REDUCTION_FORMAT: Final = "shardproof-reduction/1"
MAX_PARTS: Final = 100_000
MAX_STEPS: Final = 1000
MAX_SIZE: Final = 1 << 20


def write_placement(path: Path | str | None, certificate: PlacementCertificate) -> bytes:
    """Bytes of an `.spz` file that says which placements there are."""
    return write_container(path, encode_placement(certificate))


def write_reduction(path: Path | str | None, certificate: ReductionCertificate) -> bytes:
    """Bytes of an `.spz` file with programs and proofs."""
    return write_container(path, encode_reduction(certificate))


def read_reduction(source: bytes | Path | str, limits: Limits = LIMITS) -> ReductionCertificate | PlacementCertificate:
    """Inverse of both writers; `ContainerError` on anything malformed."""
    members = read_container(source, limits)
    if REDUCTION in members:
        return decode_reduction(members)
    require_kind(members, PLACEMENT)
    return decode_placement(members)


def encode_placement(certificate: PlacementCertificate) -> dict[str, Member]:
    problem = certificate.problem
    head = {
        "format": PLACEMENT_FORMAT,
        "hierarchy": list(problem.hierarchy),
        "axes": list(problem.axes),
        "matrices": [_rows(m) for m in certificate.matrices],
    }
    return {PLACEMENT: canonical(head)}


def decode_placement(members: Mapping[str, Member]) -> PlacementCertificate:
    """`ContainerError` names what is wrong."""
    head = read_json(members, PLACEMENT).fields("format", "hierarchy", "axes", "matrices")
    if head["format"].text() != PLACEMENT_FORMAT:
        head["format"].fail(f"this version reads {PLACEMENT_FORMAT!r} only")
    problem = PlacementProblem(_sizes(head["hierarchy"]), _sizes(head["axes"]))
    return PlacementCertificate(problem, tuple(_matrix(m) for m in head["matrices"].items(MAX_PARTS)))


def encode_reduction(certificate: ReductionCertificate) -> dict[str, Member]:
    pool = ArrayPool()
    machines = sorted({c.machine.to_json() for c in certificate.costs})
    costs = [
        {
            "preset": c.preset,
            "machine": machines.index(c.machine.to_json()),
            "payload": c.payload,
            "algorithm": c.algorithm.value,
            "devices": list(c.devices),
        }
        for c in certificate.costs
    ]
    parts = [
        {
            "request": _encode_request(p.request),
            "claim": _encode_claim(p.claim),
            "potentials": pool.add(np.asarray(p.potentials, dtype=np.int64)),
        }
        for p in certificate.parts
    ]
    best = None
    if certificate.best is not None:
        b = certificate.best
        terms = [{"reduce": list(t.reduce), "model": t.model, "weight": t.weight} for t in b.terms]
        best = {"matrix": b.matrix, "cost": b.cost, "terms": terms, "orders": list(b.orders)}
    head = {
        "format": REDUCTION_FORMAT,
        "machines": machines,
        "costs": costs,
        "parts": parts,
        "best": best,
        "shapes": pool.shapes(),
    }
    members: dict[str, Member] = {REDUCTION: canonical(head), ARRAYS: pool.flat()}
    if certificate.placement is not None:
        members.update(encode_placement(certificate.placement))
    return members


def decode_reduction(members: Mapping[str, Member]) -> ReductionCertificate:
    """`ContainerError` names what is wrong."""
    head = read_json(members, REDUCTION).fields("format", "machines", "costs", "parts", "best", "shapes")
    if head["format"].text() != REDUCTION_FORMAT:
        head["format"].fail(f"this version reads {REDUCTION_FORMAT!r} only")
    machines = [_machine(m) for m in head["machines"].items(64)]
    costs = tuple(_cost(c, machines) for c in head["costs"].items(1024))
    arrays = ArrayTable(head["shapes"], read_array(members, ARRAYS), MAX_PARTS)
    parts = []
    for item in head["parts"].items(MAX_PARTS):
        item.fields("request", "claim", "potentials")
        potentials: Ints = arrays.get(item["potentials"])
        if potentials.ndim != 1:
            item["potentials"].fail("must refer to a one-dimensional array")
        parts.append(Part(_request(item["request"]), _claim(item["claim"], len(costs)), potentials))
    placement = decode_placement(members) if PLACEMENT in members else None
    best = None if head["best"].is_null() else _best(head["best"], len(costs))
    return ReductionCertificate(costs, tuple(parts), placement, best)


def _rows(matrix: Matrix) -> list[list[int]]:
    return [list(row) for row in matrix]


def _encode_request(request: Request) -> dict[str, object]:
    match request:
        case ReductionRequest():
            return {
                "kind": "placement",
                "hierarchy": list(request.hierarchy),
                "matrix": _rows(request.matrix),
                "reduce": list(request.reduce),
                "order": request.order.value,
                "reading": request.reading,
                "synthesis": request.synthesis.value,
            }
        case UnevenRequest():
            return {"kind": "uneven", "nodes": list(request.nodes), "reading": request.reading}
        case _:
            assert_never(request)


def _encode_claim(claim: ReductionClaim) -> dict[str, object]:
    match claim:
        case Correct():
            return {"kind": "correct", "program": encode_program(claim.program)}
        case Cheapest():
            return {
                "kind": "cheapest",
                "program": encode_program(claim.program),
                "model": claim.model,
                "cost": claim.cost,
            }
        case Count():
            return {"kind": "count", "lengths": list(claim.lengths)}
        case Impossible():
            return {"kind": "impossible"}
        case _:
            assert_never(claim)


def encode_program(program: Program) -> list[list[object]]:
    """JSON value of a program."""
    return [[i.slice, i.form.value, i.ancestor, i.collective.value] for i in program]


def decode_program(value: Reader) -> Program:
    """Inverse of `encode_program`; `ContainerError` on unknown forms and collectives."""
    out = []
    for item in value.items(MAX_STEPS):
        parts = list(item.items(4))
        if len(parts) != 4:
            item.fail("must be [slice, form, ancestor or null, collective]")
        ancestor = None if parts[2].is_null() else parts[2].integer(0, 64)
        out.append(Instruction(parts[0].integer(0, 64), _word(parts[1], Form), ancestor, _word(parts[3], Collective)))
    return tuple(out)


_Word = TypeVar("_Word", Form, Collective, Order, Hierarchy, Algorithm)


def _word(value: Reader, words: type[_Word]) -> _Word:
    text = value.text(40)
    for member in words:
        if member.value == text:
            return member
    value.fail(f"unknown word {text!r}; one of {', '.join(str(m.value) for m in words)}")


def _sizes(value: Reader) -> tuple[int, ...]:
    return tuple(value.integers(1, MAX_SIZE, 64))


def _matrix(value: Reader) -> Matrix:
    return tuple(_sizes(row) for row in value.items(64))


def _machine(value: Reader) -> Machine:
    try:
        return Machine.from_json(value.text(1 << 16))
    except MachineError as error:
        value.fail(str(error))


def _cost(value: Reader, machines: list[Machine]) -> CostSpec:
    value.fields("preset", "machine", "payload", "algorithm", "devices")
    machine = machines[value["machine"].integer(0, len(machines) - 1)]
    devices = tuple(value["devices"].integers(0, machine.devices - 1, 1 << 16))
    return CostSpec(
        value["preset"].text(40),
        machine,
        value["payload"].integer(1, 1 << 62),
        _word(value["algorithm"], Algorithm),
        devices,
    )


def _request(value: Reader) -> Request:
    match value["kind"].text(40):
        case "placement":
            value.fields("kind", "hierarchy", "matrix", "reduce", "order", "reading", "synthesis")
            return ReductionRequest(
                _sizes(value["hierarchy"]),
                _matrix(value["matrix"]),
                tuple(value["reduce"].integers(0, 63, 64)),
                _word(value["order"], Order),
                value["reading"].text(40),
                _word(value["synthesis"], Hierarchy),
            )
        case "uneven":
            value.fields("kind", "nodes", "reading")
            return UnevenRequest(_sizes(value["nodes"]), value["reading"].text(40))
        case other:
            value["kind"].fail(f"unknown request {other!r}")


def _claim(value: Reader, models: int) -> ReductionClaim:
    match value["kind"].text(40):
        case "correct":
            value.fields("kind", "program")
            return Correct(decode_program(value["program"]))
        case "cheapest":
            value.fields("kind", "program", "model", "cost")
            return Cheapest(
                decode_program(value["program"]), value["model"].integer(0, models - 1), value["cost"].integer()
            )
        case "count":
            value.fields("kind", "lengths")
            return Count(tuple(item.integer(0) for item in value["lengths"].items(MAX_STEPS)))
        case "impossible":
            value.fields("kind")
            return Impossible()
        case other:
            value["kind"].fail(f"unknown claim {other!r}")


def _best(value: Reader, models: int) -> Best:
    value.fields("matrix", "cost", "terms", "orders")
    terms = []
    for item in value["terms"].items(64):
        item.fields("reduce", "model", "weight")
        terms.append(
            Term(
                tuple(item["reduce"].integers(0, 63, 64)),
                item["model"].integer(0, models - 1),
                item["weight"].integer(1, 1 << 40),
            )
        )
    orders = tuple(_word(o, Order).value for o in value["orders"].items(2))
    return Best(value["matrix"].integer(0, MAX_PARTS), value["cost"].integer(), tuple(terms), orders)
