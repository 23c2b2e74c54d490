"""Mutants of placement and reduction certificates that must be rejected by construction.

Every class says why its members are wrong; each mutant is written with correct hashes, differs from the others in its
bytes, is read again and must end refuted (exit 10) or malformed (exit 3).  Oracles: the set of all programs (is the
mutated program one of them?) and the graph of states with exact distances (which inequality breaks?).
"""

from __future__ import annotations

import io
import random
import zipfile
from collections.abc import Iterator
from dataclasses import replace
from fractions import Fraction
from functools import cache

import numpy as np
import pytest
from reduction_cases import certificate, single

from shardproof.formal.collective_programs.graph import edge_costs, explore
from shardproof.models.collective_programs.collectives import ALL
from shardproof.models.collective_programs.parallelism import Order, PlacementProblem, ReductionRequest
from shardproof.models.collective_programs.programs import Form, Instruction
from shardproof.proofs.collective_programs.certificate import (
    DEAD,
    Best,
    Cheapest,
    Count,
    Impossible,
    Part,
    PlacementCertificate,
    ReductionCertificate,
    Term,
)
from shardproof.proofs.collective_programs.file import write_placement, write_reduction
from shardproof.proofs.container.archive import read_container, write_container
from shardproof.proofs.container.canonical import ContainerError
from shardproof.verify.collective_programs.program import check_members
from shardproof.verify.verdict import EXIT_CODES, worst

REQUESTS = (
    ReductionRequest((4, 16), ((4, 16),), (0,)),
    ReductionRequest((4, 16), ((1, 16), (2, 1), (2, 1)), (0, 2)),
    ReductionRequest((2, 2, 2), ((2, 2, 2),), (0,)),
)


def exit_code(data: bytes) -> int:
    """What `shardproof check` would exit with."""
    try:
        return EXIT_CODES[worst(r.verdict for r in check_members(read_container(data)))]
    except ContainerError:
        return 3


@cache
def valid(k: int) -> ReductionCertificate:
    return single(REQUESTS[k])


def _only(original: ReductionCertificate, part: Part) -> bytes:
    return write_reduction(None, replace(original, parts=(part,)))


def potentials(k: int) -> Iterator[bytes]:
    """The potentials are exact distances, so every state but the goal has a tight step: raising one state alone breaks
    it.  Lowering a state to which a tight step of a live state leads breaks that one; so does leaving it out (it then
    counts as 0)."""
    original = valid(k)
    part = original.parts[1]
    request = part.request
    phi = part.potentials.tolist()
    system = request.system()
    graph = explore(system)
    costs = edge_costs(graph, system, original.costs[0].model())
    entered = {
        e.target
        for s, leaving in enumerate(graph.edges)
        for e, c in zip(leaving, costs[s], strict=True)
        if phi[s] < DEAD and phi[s] == c + phi[e.target]
    }
    for s, value in enumerate(phi):
        if value < DEAD:
            for more in (1, 10**9):
                yield _only(original, replace(part, potentials=_changed(part, s, value + more)))
        if s in entered:
            yield _only(original, replace(part, potentials=_changed(part, s, value - 1)))
            if value > 0:
                yield _only(original, replace(part, potentials=_changed(part, s, 0)))
    yield _only(original, replace(part, potentials=np.append(part.potentials, 0)))  # more states than there are
    yield _only(original, replace(part, potentials=part.potentials + 1))  # the goal too


def _changed(part: Part, s: int, value: int) -> np.ndarray[tuple[int, ...], np.dtype[np.int64]]:
    out = part.potentials.copy()
    out[s] = value
    return out


def claims(k: int) -> Iterator[bytes]:
    """A claimed cost that the program does not have; a count that is not the number of paths; a possible request
    called impossible.
    """
    original = valid(k)
    count, cheapest = original.parts
    assert isinstance(count.claim, Count) and isinstance(cheapest.claim, Cheapest)
    for delta in (1, -1, 10**6, -(10**6)):
        yield _only(original, replace(cheapest, claim=replace(cheapest.claim, cost=cheapest.claim.cost + delta)))
        yield _only(
            original,
            replace(
                cheapest,
                claim=replace(cheapest.claim, cost=cheapest.claim.cost + delta),
                potentials=cheapest.potentials + (max(0, delta)),
            ),
        )
    lengths = count.claim.lengths
    for t in range(len(lengths)):
        for delta in (1, -1):
            changed = list(lengths)
            changed[t] = max(0, changed[t] + delta)
            if tuple(changed) != lengths:
                yield _only(original, replace(count, claim=Count(tuple(changed))))
    yield _only(original, replace(count, claim=Count((*lengths, 1))))
    yield _only(original, replace(count, claim=Count(lengths[:-1])))
    yield _only(original, replace(count, claim=Impossible()))


def programs(k: int) -> Iterator[bytes]:
    """Programs that are not in the set of all programs, or are, but cost something else than the claim."""
    original = valid(k)
    part = original.parts[1]
    assert isinstance(part.claim, Cheapest)
    graph = explore(part.request.system())
    known = set(graph.programs())
    mine = part.claim.program
    tried = {mine[:i] + mine[i + 1 :] for i in range(len(mine))} | {
        mine[:i] + (mine[j],) + mine[i + 1 :] for i in range(len(mine)) for j in range(len(mine))
    }
    tried |= {mine + (step,) for step in mine} | {tuple(reversed(mine))}
    tried |= {mine[:i] + (replace(mine[i], collective=c),) + mine[i + 1 :] for i in range(len(mine)) for c in ALL}
    tried |= {
        mine[:i] + (Instruction(9, Form.INSIDE, None, mine[i].collective),) + mine[i + 1 :] for i in range(len(mine))
    }
    for program in sorted(tried - known, key=str):
        yield _only(original, replace(part, claim=replace(part.claim, program=program)))
    system, model = part.request.system(), original.costs[0].model()
    for program in sorted(known, key=str)[:40]:
        if sum(map(model.step_time, system.execute(program)[1])) != part.claim.cost:
            yield _only(original, replace(part, claim=replace(part.claim, program=program)))


def problems(k: int) -> Iterator[bytes]:
    """The right proof of another problem: other bandwidths, payload, algorithm, readings or axes change costs or
    states.
    """
    original = valid(k)
    part = original.parts[1]
    spec = original.costs[0]
    for factor in (Fraction(1, 2), Fraction(999, 1000), Fraction(2)):
        levels = tuple(replace(level, bandwidth=level.bandwidth * factor) for level in spec.machine.levels)
        yield _only(
            replace(original, costs=(replace(spec, machine=replace(spec.machine, levels=levels, reduction=None)),)),
            part,
        )
    for payload in (spec.payload + 10**6, spec.payload // 2, 1):
        yield _only(replace(original, costs=(replace(spec, payload=payload),)), part)
    yield _only(replace(original, costs=(replace(spec, preset="m3"),)), part)
    assert isinstance(part.request, ReductionRequest)
    longer = (2 * spec.machine.hierarchy[0], *spec.machine.hierarchy[1:])
    yield _only(replace(original, costs=(replace(spec, machine=spec.machine.resized(longer)),)), part)
    yield _only(
        replace(original, costs=(replace(spec, preset="linked", devices=tuple(range(spec.machine.devices))),)), part
    )
    yield _only(original, replace(part, request=replace(part.request, reading="unheard")))
    yield _only(original, replace(part, request=replace(part.request, reduce=(5,))))
    yield _only(original, replace(part, request=replace(part.request, hierarchy=(3, *part.request.hierarchy[1:]))))
    yield _only(original, replace(part, request=replace(part.request, matrix=part.request.matrix[:-1])))


def placements() -> Iterator[bytes]:
    """A list that lacks a placement, repeats one, or holds a matrix with a wrong product."""
    original = certificate((4, 16), (16, 2, 2), (0, 2)).placement
    assert original is not None
    matrices, problem = original.matrices, original.problem
    for i, m in enumerate(matrices):
        yield write_placement(None, PlacementCertificate(problem, matrices[:i] + matrices[i + 1 :]))
        yield write_placement(None, PlacementCertificate(problem, (*matrices, m)))
        for r in range(len(m)):
            for c in range(len(m[0])):
                row = tuple(x * 2 if j == c else x for j, x in enumerate(m[r]))
                yield write_placement(
                    None, PlacementCertificate(problem, (*matrices[:i], (*m[:r], row, *m[r + 1 :]), *matrices[i + 1 :]))
                )
        yield write_placement(None, PlacementCertificate(problem, (*matrices[:i], m[1:] + m[:1], *matrices[i + 1 :])))
    for axes in ((16, 4), (16, 2, 2, 2), (16, 2), (8, 2, 4)):
        yield write_placement(None, PlacementCertificate(PlacementProblem((4, 16), axes), matrices))
    yield write_placement(None, PlacementCertificate(PlacementProblem((16, 4), (16, 2, 2)), matrices))


def best() -> Iterator[bytes]:
    """Another placement or cost than the least, a missing part, another order or weight than the proofs are for."""
    original = certificate((4, 16), (16, 2, 2), (0, 2))
    b = original.best
    assert b is not None

    def changed(**fields: object) -> bytes:
        return write_reduction(None, replace(original, best=replace(b, **fields)))  # type: ignore[arg-type]

    yield changed(cost=b.cost + 1)
    yield changed(cost=b.cost - 1)
    yield changed(cost=2 * b.cost, terms=(Term((0, 2), 0, 3),))
    yield changed(terms=(Term((0,), 0),))
    yield changed(terms=())
    yield changed(orders=())
    yield changed(orders=("aligned", "aligned"))
    for m in range(9):
        costs = [p.claim.cost for p in original.parts if isinstance(p.claim, Cheapest)]
        if m >= 4 or min(costs[2 * m : 2 * m + 2]) > b.cost:
            yield changed(matrix=m)
    yield write_reduction(None, replace(original, placement=None))
    for k, part in enumerate(original.parts):
        if isinstance(part.claim, Cheapest):
            yield write_reduction(None, replace(original, parts=original.parts[:k] + original.parts[k + 1 :]))
    alone = replace(original, best=Best(b.matrix, b.cost, b.terms, (Order.ROW_MAJOR.value,)))
    if (
        min(
            p.claim.cost
            for p in original.parts
            if isinstance(p.claim, Cheapest)
            and p.request.order is Order.ROW_MAJOR
            and p.request.matrix == original.placement.matrices[b.matrix]
        )
        > b.cost
    ):  # type: ignore[union-attr]
        yield write_reduction(None, alone)


def malformed() -> Iterator[bytes]:
    """Members that are missing, fields that are unknown, of the wrong type or out of range."""
    members = read_container(write_reduction(None, valid(0)))
    text = members["reduction.json"]
    assert isinstance(text, bytes)
    for old, new in (
        (b'"best":null', b'"best":0'),
        (b'"best":null', b'"worst":null'),
        (b'"cheapest"', b'"dearest"'),
        (b'"AllReduce"', b'"AllReduced"'),
        (b'"ring"', b'"circle"'),
        (b'"InsideGroup"', b'"OutsideGroup"'),
        (b'"model":0', b'"model":1'),
        (b'"model":0', b'"model":-1'),
        (b'"model":0', b'"model":true'),
        (b'"machine":0', b'"machine":1'),
        (b'"payload":', b'"payload":-'),
        (b'"kind":"count"', b'"kind":"correct"'),
        (b'"row-major"', b'"column-major"'),
        (b'"d-collapsed"', b'"e"'),
        (b'"shardproof-reduction/1"', b'"shardproof-reduction/2"'),
        (b'"reduce":[0]', b'"reduce":[0.0]'),
        (b'"reduce":[0]', b'"reduce":[-1]'),
    ):
        assert old in text
        yield write_container(None, {**members, "reduction.json": text.replace(old, new, 1)})
    yield write_container(None, {k: v for k, v in members.items() if k != "reduction.i64"})
    yield write_container(None, {**members, "reduction.i64": np.zeros(3, dtype=np.int64)})
    yield write_container(None, {**members, "reduction.i64": b"bytes"})
    whole = write_reduction(None, valid(0))
    rng = random.Random(4)
    with zipfile.ZipFile(
        io.BytesIO(whole)
    ) as archive:  # compressed bytes only: a zip has fields (such as attributes) that carry no content
        insides = [
            at
            for i in archive.infolist()
            for at in range(
                i.header_offset + 30 + len(i.filename), i.header_offset + 30 + len(i.filename) + i.compress_size
            )
        ]
    for at in sorted(rng.sample(insides, 60)):
        yield whole[:at] + bytes([whole[at] ^ (1 << rng.randrange(8))]) + whole[at + 1 :]


CLASSES = {
    **{f"{f.__name__}-{k}": (f, k) for f in (potentials, claims, programs, problems) for k in range(len(REQUESTS))},
    **{f.__name__: (f, None) for f in (placements, best, malformed)},
}


def mutants(name: str) -> list[bytes]:
    make, k = CLASSES[name]
    return list(make() if k is None else make(k))  # type: ignore[operator]


def test_the_originals_are_proved() -> None:
    for k in range(len(REQUESTS)):
        assert exit_code(write_reduction(None, valid(k))) == 0
    assert exit_code(write_reduction(None, certificate((4, 16), (16, 2, 2), (0, 2)))) == 0


@pytest.mark.parametrize(
    "name", [pytest.param(n, marks=[pytest.mark.slow] if n == "potentials-2" else []) for n in sorted(CLASSES)]
)
def test_every_mutant_is_rejected(name: str) -> None:
    accepted = [i for i, data in enumerate(mutants(name)) if exit_code(data) not in (3, 10)]
    assert not accepted


def test_there_are_enough_different_mutants() -> None:
    originals = {write_reduction(None, valid(k)) for k in range(len(REQUESTS))}
    found = {data for name in CLASSES for data in mutants(name)}
    assert len(found) >= 500 and not found & originals
