"""Forged reduction programs and placements: programs, costs, potentials, counts, matrices, requests and machines
changed.

The truth is a search over states written from P2 (MLSys 2022) alone: sets of contributions per position and chunk, all
instructions of the language, Dijkstra.  Only the price of one step comes from the cost model of the file.
"""

from __future__ import annotations

import heapq
import random
from collections.abc import Iterator
from functools import cache
from itertools import product
from math import lcm, prod
from typing import Any

import reduction_cases as cases
from forgeries import Tally, change, change_array, head_of, put

from shardproof.models.collective_programs.collectives import (
    READINGS,
    Collective,
    CollectiveCost,
    LoweredStep,
    MasterGroups,
)
from shardproof.models.collective_programs.parallelism import Hierarchy, Order, ReductionRequest, Request, UnevenRequest
from shardproof.models.collective_programs.programs import Form, Program
from shardproof.models.problem.claims import Verdict
from shardproof.proofs.collective_programs.certificate import (
    Best,
    Cheapest,
    Correct,
    Count,
    Part,
    PlacementCertificate,
    ReductionCertificate,
)
from shardproof.proofs.collective_programs.file import (
    ARRAYS,
    PLACEMENT,
    REDUCTION,
    decode_placement,
    decode_reduction,
    encode_placement,
    encode_reduction,
)
from shardproof.proofs.container.archive import Member, read_container, write_container
from shardproof.proofs.container.canonical import ContainerError
from shardproof.verify.collective_programs.program import check_members

Json = Any
State = tuple[tuple[frozenset[int], ...], ...]
"""Per position and chunk: whose contributions are in."""

Groups = tuple[tuple[int, ...], ...]

THROUGH_FILES = 20
MOST_STATES = 4000
"""States of a system that the oracle looks at; forgeries that ask for larger systems are not drawn."""


@cache
def originals() -> tuple[tuple[str, dict[str, Member]], ...]:
    out = []
    for hierarchy, axes, reduce in (
        ((2, 2), (4,), (0,)),
        ((2, 2), (2, 2), (0,)),
        ((2, 3), (6,), (0,)),
        ((2, 2), (2, 2), (0, 1)),
        ((2, 4), (2, 4), (1,)),
    ):
        certificate = cases.certificate(hierarchy, axes, reduce)
        out.append(("best placement", encode_reduction(certificate)))
        assert certificate.placement is not None
        out.append(("placements", encode_placement(certificate.placement)))
    for request in (
        ReductionRequest((4,), ((4,),), (0,)), ReductionRequest((2, 2), ((2, 2),), (0,)), ReductionRequest((2, 2), ((2, 1), (1, 2)), (1,)),
        ReductionRequest((2, 2), ((2, 1), (1, 2)), (0, 1), Order.ALIGNED), UnevenRequest((2, 1)), UnevenRequest((3, 2)),
    ):  # fmt: skip
        certificate = cases.single(request)
        out.append(("one request", encode_reduction(certificate)))
        programs = [p.claim.program for p in certificate.parts if isinstance(p.claim, Cheapest)]
        correct = tuple(Part(request, Correct(program), certificate.parts[0].potentials[:0]) for program in programs)
        out.append(("correct", encode_reduction(ReductionCertificate((), correct))))
    return tuple(out)


def forge(seed: int) -> tuple[str, dict[str, Member], str]:
    """(kind, members, what was done)."""
    rng = random.Random(seed)
    kind, original = originals()[seed % len(originals())]
    members, done = dict(original), []
    for _ in range(rng.choice((1, 1, 1, 2, 3))):
        names = [name for name in (REDUCTION, PLACEMENT) if name in members]
        name = rng.choice(names)
        if ARRAYS in members and rng.random() < 0.3:
            done.append(change_array(members, ARRAYS, rng))
            continue
        if rng.random() < 0.06:
            other = originals()[rng.randrange(len(originals()))][1]
            members.update({n: other[n] for n in other if n in (PLACEMENT, ARRAYS) and n in members})
            done.append("parts of another file")
            continue
        head = head_of(members, name)
        done.append(change(head, rng, skip=frozenset({"format", "machines"})))
        put(members, name, head)
    return kind, members, "; ".join(done)


def judge(seeds: range, tally: Tally) -> None:
    for seed in seeds:
        kind, members, what = forge(seed)
        accepted = False
        try:
            read = read_container(write_container(None, members)) if seed % THROUGH_FILES == 0 else members
            accepted = all(r.verdict is Verdict.PROVED for r in check_members(read))
        except ContainerError:
            pass
        tally.add(f"reduction: {kind}", accepted, accepted and holds(members), f"seed {seed}: {what}")


def holds(members: dict[str, Member]) -> bool:
    """Is everything that the file claims true?"""
    if REDUCTION not in members:
        return complete(decode_placement(members))
    certificate = decode_reduction(members)
    models = [spec.model() for spec in certificate.costs]
    fine = certificate.placement is None or complete(certificate.placement)
    fine = fine and all(_part(part, models) for part in certificate.parts)
    return fine and (certificate.best is None or _best(certificate, certificate.best, models))


def complete(certificate: PlacementCertificate) -> bool:
    """Every matrix with the given row and column products, each once: all products of divisors are tried."""
    hierarchy, axes = certificate.problem.hierarchy, certificate.problem.axes
    rows = [
        [row for row in product(*([d for d in range(1, h + 1) if h % d == 0] for h in hierarchy)) if prod(row) == p]
        for p in axes
    ]
    found = {m for m in product(*rows) if all(prod(row[j] for row in m) == h for j, h in enumerate(hierarchy))}
    return len(certificate.matrices) == len(found) and set(certificate.matrices) == found


def _part(part: Part, models: list[CollectiveCost]) -> bool:
    match part.claim:
        case Correct():
            return run(part.request, part.claim.program) is not None
        case Cheapest():
            steps = run(part.request, part.claim.program)
            model = models[part.claim.model]
            return steps is not None and sum(map(model.step_time, steps)) == part.claim.cost == cheapest(
                part.request, model
            )
        case Count():
            return counts(part.request) == part.claim.lengths
        case _:
            return cheapest(part.request, None) is None


def _best(certificate: ReductionCertificate, best: Best, models: list[CollectiveCost]) -> bool:
    placement = certificate.placement
    assert placement is not None
    (reading,) = {p.request.reading for p in certificate.parts}
    totals = []
    for matrix in placement.matrices:
        total = 0
        for term in best.terms:
            found = [
                cheapest(
                    ReductionRequest(placement.problem.hierarchy, matrix, term.reduce, Order(o), reading),
                    models[term.model],
                )
                for o in best.orders
            ]
            if None in found:
                return False
            total += term.weight * min(f for f in found if f is not None)
        totals.append(total)
    return totals[best.matrix] == best.cost == min(totals)


class System:
    """Who reduces: copies of the positions, first position of every block per level, wanted sums, chunks."""

    def __init__(self, request: Request) -> None:
        self.rules = READINGS[request.reading]
        if isinstance(request, UnevenRequest):
            n = sum(request.nodes)
            first = [sum(request.nodes[:i]) for i, size in enumerate(request.nodes) for _ in range(size)]
            self.copies, self.starts, self.chunks = (
                [list(range(n))],
                [[0] * n, first, list(range(n))],
                lcm(n, *request.nodes),
            )
            self.wanted = [frozenset(range(n))] * n
            return
        matrix, levels = request.matrix, range(len(request.hierarchy))
        cells = [(i, j) for j in levels for i in range(len(matrix))]  # digits of a device, most significant first
        digits = list(product(*(range(matrix[i][j]) for i, j in cells)))
        over = [(i, j) for i in request.reduce for j in levels]
        if request.order is Order.ALIGNED:
            over = [(i, j) for j in levels for i in request.reduce]

        def part(device: int, wanted: list[tuple[int, int]]) -> tuple[int, ...]:
            return tuple(digits[device][cells.index(c)] for c in wanted)

        rest = [c for c in cells if c not in over]
        teams: dict[tuple[int, ...], list[int]] = {}
        for device in range(len(digits)):
            teams.setdefault(part(device, rest), []).append(device)
        copies = sorted(sorted(team, key=lambda d: part(d, over)) for team in teams.values())
        if request.synthesis in (Hierarchy.COLLAPSED, Hierarchy.REDUCTION):
            if request.synthesis is Hierarchy.COLLAPSED:
                sizes = [prod(matrix[i][j] for i in request.reduce) for j in levels]
            else:
                sizes = [matrix[i][j] for i, j in over]
            n = len(copies[0])
            self.copies, self.chunks, self.wanted = copies, n, [frozenset(range(n))] * n
        else:
            by_row = [(i, j) for i in range(len(matrix)) for j in levels]
            order = list(range(len(digits)))
            sizes = list(request.hierarchy)
            if request.synthesis is not Hierarchy.SYSTEM:
                sizes = [matrix[i][j] for i, j in (cells if request.synthesis is Hierarchy.COLUMN else by_row)]
            if request.synthesis is Hierarchy.ROW:
                order.sort(key=lambda d: part(d, by_row))
            self.copies, self.chunks = [order], len(order)
            self.wanted = [next(frozenset(order.index(x) for x in team) for team in copies if d in team) for d in order]
            n = len(order)
        self.starts, width = [[0] * n], n
        for size in sizes:
            width //= size
            self.starts.append([p // width * width for p in range(n)])

    @property
    def n(self) -> int:
        return len(self.starts[0])

    def start(self) -> State:
        return tuple((frozenset({p}),) * self.chunks for p in range(self.n))

    def goal(self) -> State:
        return tuple((w,) * self.chunks for w in self.wanted)

    def groups(self, level: int, form: Form, ancestor: int | None) -> Groups:
        """Groups of two and more positions."""
        found: dict[tuple[int, int], list[int]] = {}
        for p in range(self.n):
            offset = p - self.starts[level][p]
            if form is Form.INSIDE:
                found.setdefault((self.starts[level][p], 0), []).append(p)
                continue
            assert ancestor is not None
            above = self.starts[ancestor][p]
            if form is Form.PARALLEL or (
                offset == 0 and (self.rules.masters is MasterGroups.PER_ANCESTOR or above == 0)
            ):
                found.setdefault((above, offset), []).append(p)
        return tuple(sorted(tuple(g) for g in found.values() if len(g) > 1))

    def language(self) -> dict[Groups, bool]:
        """Groups of every instruction, the first form that has them decides whether it is a Master."""
        out: dict[Groups, bool] = {}
        last = len(self.starts) - 1
        for level in range(last + 1):
            forms: list[tuple[Form, int | None]] = [(Form.INSIDE, None), *((Form.PARALLEL, e) for e in range(level))]
            if self.rules.master and (self.rules.master_last or level < last):
                forms += [(Form.MASTER, e) for e in range(level)]
            for form, e in forms:
                groups = self.groups(level, form, e)
                if groups:
                    out.setdefault(groups, form is Form.MASTER)
        return out

    def allowed(self, master: bool) -> tuple[Collective, ...]:
        return self.rules.master if master else tuple(Collective)

    def step(self, state: State, groups: Groups, kind: Collective, master: bool) -> State | None:
        """The state after one instruction, None where a group does not satisfy its rule."""
        if (
            master
            and self.rules.guarded
            and any(any(state[p]) for p in range(self.n) if not any(p in g for g in groups))
        ):
            return None
        out = list(state)
        for g in groups:
            after = self._group([state[p] for p in g], kind)
            if after is None:
                return None
            for p, new in zip(g, after, strict=True):
                out[p] = tuple(new)
        return tuple(out)

    def _group(self, members: list[tuple[frozenset[int], ...]], kind: Collective) -> list[list[frozenset[int]]] | None:
        rows, nothing = range(self.chunks), frozenset[int]()
        held = [{i for i in rows if x[i]} for x in members]
        size = len(members)
        if kind is Collective.BROADCAST:
            root = members[0]
            if not held[0] or any(not x[i] <= root[i] for x in members for i in rows):
                return None
            same = sum(x == root for x in members[1:])
            return None if same == size - 1 or (self.rules.strict and same) else [list(root)] * size
        if kind is Collective.ALL_GATHER:
            if not all(held) or sum(map(len, held)) != len(set().union(*held)):
                return None
            return [[next((x[i] for x in members if x[i]), nothing) for i in rows]] * size
        if self.rules.skip_empty and not any(held):
            return [list(x) for x in members]
        if not held[0] or any(h != held[0] for h in held):
            return None
        union = [nothing.union(*(x[i] for x in members)) for i in rows]
        if any(len(union[i]) != sum(len(x[i]) for x in members) for i in rows):
            return None
        if kind is Collective.ALL_REDUCE:
            return [union] * size
        if kind is Collective.REDUCE:
            return [union, *([[nothing] * self.chunks] * (size - 1))]
        mine = sorted(held[0])
        if len(mine) % size:
            return None
        share = len(mine) // size
        return [[union[i] if i in mine[k * share : (k + 1) * share] else nothing for i in rows] for k in range(size)]

    def lowered(self, groups: Groups, kind: Collective, before: State, after: State) -> LoweredStep:
        source = after if kind is Collective.ALL_GATHER else before
        moved = tuple(sum(map(bool, source[g[0]])) for g in groups)
        return LoweredStep(
            kind,
            tuple(tuple(copy[p] for p in g) for copy in self.copies for g in groups),
            moved * len(self.copies),
            self.chunks,
        )

    def edges(self, state: State) -> Iterator[tuple[State, Groups, Collective]]:
        """What can follow a state that is not the goal."""
        for groups, master in self.language().items():
            for kind in self.allowed(master):
                after = self.step(state, groups, kind, master)
                if after is not None and after != state:
                    yield after, groups, kind


@cache
def system(request: Request) -> System:
    return System(request)


@cache
def graph(request: Request) -> dict[State, list[tuple[State, Groups, Collective]]]:
    """Every reachable state with what follows it."""
    s = system(request)
    out: dict[State, list[tuple[State, Groups, Collective]]] = {}
    todo = [s.start()]
    while todo:
        state = todo.pop()
        if state not in out:
            out[state] = [] if state == s.goal() else list(s.edges(state))
            todo += [after for after, _, _ in out[state]]
            assert len(out) <= MOST_STATES
    return out


def run(request: Request, program: Program) -> list[LoweredStep] | None:
    """The steps of a program that ends with what is wanted; None otherwise."""
    s = system(request)
    state, steps, language = s.start(), [], s.language()
    for i in program:
        if (
            not 0 <= i.slice < len(s.starts)
            or (i.form is Form.INSIDE) != (i.ancestor is None)
            or (i.ancestor is not None and i.ancestor >= i.slice)
        ):
            return None
        groups = s.groups(i.slice, i.form, i.ancestor)
        if groups not in language or i.collective not in s.allowed(language[groups]):
            return None
        after = s.step(state, groups, i.collective, language[groups])
        if after is None:
            return None
        steps.append(s.lowered(groups, i.collective, state, after))
        state = after
    return steps if state == s.goal() else None


@cache
def cheapest(request: Request, model: CollectiveCost | None) -> int | None:
    """Cost of the cheapest program (without a model: its length), None if there is none."""
    s, states = system(request), graph(request)
    best = {s.start(): 0}
    queue = [(0, 0, s.start())]
    number = 0
    while queue:
        cost, _, state = heapq.heappop(queue)
        if state == s.goal():
            return cost
        if cost > best[state]:
            continue
        for after, groups, kind in states[state]:
            total = cost + (1 if model is None else model.step_time(s.lowered(groups, kind, state, after)))
            if after not in best or total < best[after]:
                best[after] = total
                number += 1
                heapq.heappush(queue, (total, number, after))
    return None


@cache
def counts(request: Request) -> tuple[int, ...]:
    """Number of programs of length 0, 1, .. up to the longest path."""
    s, states = system(request), graph(request)
    now, out = {s.start(): 1}, []
    while now:
        out.append(now.get(s.goal(), 0))
        after: dict[State, int] = {}
        for state, ways in now.items():
            for target, _, _ in states[state]:
                after[target] = after.get(target, 0) + ways
        now = after
    while len(out) > 1 and out[-1] == 0:
        out.pop()
    return tuple(out)
