"""Mutants of real certificates that must be rejected by construction: each class states its argument.

`everything(original, rng, most)` gives up to `most` mutants per class, spread over the certificate.  Hashes are made
anew, so that only what is said can be wrong.  `weaker(..)` gives changes that stay valid proofs of less.
"""

from __future__ import annotations

import json
import random
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace
from itertools import islice

import numpy as np
import pytest

from shardproof.models.problem.claims import Infeasible, LowerBound, Optimal, SelectionClaim, WithinGap
from shardproof.models.problem.selection_problem import FORBIDDEN, Edge, SelectionProblem, Vertex
from shardproof.proofs.container.archive import Member, read_container, write_container
from shardproof.proofs.selection.certificates import Dual, Open, Record, Reduced, SelectionCertificate, Split
from shardproof.proofs.selection.file import write_certificate
from shardproof.proofs.selection.presolve_log import Rule
from shardproof.verify.selection import certificate as checker


@dataclass(frozen=True)
class Mutant:
    what: str
    problem: SelectionProblem
    certificate: bytes


@dataclass(eq=False)
class Original:
    """A certificate of an optimum that the checker accepts; `domains`: what is left of the vertex of every Split,
    as the checker finds it.
    """

    problem: SelectionProblem
    certificate: SelectionCertificate
    data: bytes = b""
    members: dict[str, Member] = field(default_factory=dict)
    domains: dict[int, list[int]] = field(default_factory=dict)

    def __post_init__(self) -> None:
        assert isinstance(self.certificate.claim, Optimal)
        self.data = write_certificate(None, self.certificate)
        self.members = dict(read_container(self.data))
        covering = checker._covering_parts

        def note(ground: object, record: Split, domains: list[np.ndarray], place: str) -> list[np.ndarray]:
            self.domains[id(record)] = domains[record.vertex].tolist()
            return covering(ground, record, domains, place)  # type: ignore[arg-type]

        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(checker, "_covering_parts", note)
            assert checker.check_selection(self.problem, self.certificate).exit_code == 0

    @property
    def claim(self) -> Optimal:
        assert isinstance(self.certificate.claim, Optimal)
        return self.certificate.claim

    def paths(self) -> Iterator[tuple[Record, Callable[[Record], Record]]]:
        """Every record, with what puts another one in its place."""
        todo: list[tuple[Record, Callable[[Record], Record]]] = [(self.certificate.proof, lambda r: r)]
        while todo:
            record, put = todo.pop()
            yield record, put
            if isinstance(record, Split):
                for i, child in enumerate(record.children):
                    todo.append(
                        (
                            child,
                            lambda r, s=record, i=i, put=put: put(
                                replace(s, children=(*s.children[:i], r, *s.children[i + 1 :]))
                            ),
                        )
                    )  # type: ignore[misc]
            elif isinstance(record, Reduced) or (isinstance(record, Dual) and record.then is not None):
                assert record.then is not None
                todo.append((record.then, lambda r, s=record, put=put: put(replace(s, then=r))))  # type: ignore[misc]

    def with_proof(self, what: str, proof: Record) -> Mutant:
        return Mutant(what, self.problem, write_certificate(None, replace(self.certificate, proof=proof)))

    def with_claim(self, what: str, claim: SelectionClaim) -> Mutant:
        return Mutant(what, self.problem, write_certificate(None, replace(self.certificate, claim=claim)))

    def with_problem(self, what: str, problem: SelectionProblem) -> Mutant:
        return Mutant(
            what, problem, write_certificate(None, replace(self.certificate, problem_sha256=problem.sha256()))
        )

    def edited(self, what: str, edit: Callable[[dict], object]) -> Mutant:
        head = json.loads(self.members["certificate.json"])
        edit(head)
        return Mutant(
            what, self.problem, write_container(None, {**self.members, "certificate.json": json.dumps(head).encode()})
        )


def removed_leaves(o: Original, rng: random.Random) -> Iterator[Mutant]:
    """Choices of the domain that no part covers, parts without a child, children that say nothing where something is
    needed, or a point where many choices are left."""
    for record, put in o.paths():
        if isinstance(record, Split):
            for i, part in enumerate(record.parts):
                rest = slice(i + 1, None)
                others = {a for k, other in enumerate(record.parts) if k != i for a in other}
                if (set(o.domains[id(record)]) & set(part)) - others:
                    cut = replace(
                        record,
                        parts=record.parts[:i] + record.parts[rest],
                        children=record.children[:i] + record.children[rest],
                    )
                    yield o.with_proof(f"split of {record.vertex}: part {i} and its child removed", put(cut))
                    if len(part) > 1:
                        for a in part:
                            if a in o.domains[id(record)] and a not in others:
                                smaller = (*record.parts[:i], tuple(b for b in part if b != a), *record.parts[rest])
                                yield o.with_proof(
                                    f"split of {record.vertex}: choice {a} taken out of part {i}",
                                    put(replace(record, parts=smaller)),
                                )
                yield o.with_proof(
                    f"split of {record.vertex}: child {i} removed",
                    put(replace(record, children=record.children[:i] + record.children[rest])),
                )
                yield o.with_proof(
                    f"split of {record.vertex}: part {i} emptied",
                    put(replace(record, parts=(*record.parts[:i], (), *record.parts[rest]))),
                )
                yield o.with_proof(
                    f"split of {record.vertex}: part {i} with a choice too many",
                    put(replace(record, parts=(*record.parts[:i], (*part, 1 << 30), *record.parts[rest]))),
                )
                opened = replace(record, children=(*record.children[:i], Open(), *record.children[rest]))
                yield o.with_proof(f"split of {record.vertex}: leaf {i} opened", put(opened))
            for vertex in (-1, 1 << 40):
                yield o.with_proof(f"split of vertex {vertex}", put(replace(record, vertex=vertex)))
        elif isinstance(record, Reduced):
            yield o.with_proof("nothing said about the reduced problem", put(replace(record, then=Open())))
    yield o.with_proof("open at the root", Open())


def widened_domains(o: Original, rng: random.Random) -> Iterator[Mutant]:
    """The problem gets one more choice: what the solution uses, but 1 cheaper.  So the claimed cost is not the
    least.
    """
    p = o.problem
    at: dict[int, list[int]] = {}
    for k, e in enumerate(p.edges):
        at.setdefault(e.u, []).append(k)
        at.setdefault(e.v, []).append(k)
    used: dict[int, list[int]] = {}
    for k, u in enumerate(p.usages):
        used.setdefault(u.vertex, []).append(k)
    for v in rng.sample(range(len(p.vertices)), len(p.vertices)):
        x = o.claim.solution[v]
        cost = p.vertices[v].cost
        vertices, edges, tables, usages = list(p.vertices), list(p.edges), list(p.tables), list(p.usages)
        vertices[v] = Vertex(p.vertices[v].name, np.append(cost, cost[x] - 1))
        for k in at.get(v, []):
            e = edges[k]
            if e.u == v and e.rows is None:
                tables.append(np.concatenate([p.tables[e.table], p.tables[e.table][[x]]]))
                edges[k] = Edge(e.u, e.v, len(tables) - 1, None, e.cols)
            elif e.u == v:
                edges[k] = replace(e, rows=np.append(e.rows, e.rows[x]))
            elif e.cols is None:
                tables.append(np.concatenate([p.tables[e.table], p.tables[e.table][:, [x]]], axis=1))
                edges[k] = Edge(e.u, e.v, len(tables) - 1, e.rows, None)
            else:
                edges[k] = replace(e, cols=np.append(e.cols, e.cols[x]))
        for k in used.get(v, []):
            usages[k] = replace(usages[k], amount=np.append(usages[k].amount, usages[k].amount[x]))
        wider = replace(p, vertices=tuple(vertices), edges=tuple(edges), tables=tuple(tables), usages=tuple(usages))
        yield o.with_problem(f"vertex {v} gets a cheaper choice", wider)


def changed_problems(o: Original, rng: random.Random) -> Iterator[Mutant]:
    """A number that the solution uses changes, so the claimed cost is wrong; or the limit falls below what the
    solution uses.
    """
    p, x = o.problem, o.claim.solution
    if p.limit is not None:
        peak = p.peak_of(x)[0]
        for less in range(1, 6):
            yield o.with_problem(f"limit {less} below the solution", replace(p, limit=peak - less))
    for change in (-1, 1, -1000):
        yield o.with_problem(f"constant changed by {change}", replace(p, constant=p.constant + change))
    for k in rng.sample(range(len(p.vertices)), len(p.vertices)):
        for change in (-1, 1):
            cost = p.vertices[k].cost.copy()
            cost[x[k]] += change
            yield o.with_problem(
                f"cost of vertex {k} changed by {change}",
                replace(p, vertices=(*p.vertices[:k], Vertex(p.vertices[k].name, cost), *p.vertices[k + 1 :])),
            )
        e = p.edges[k % len(p.edges)]
        if sum(other.table == e.table for other in p.edges[:2000]) == 1:
            table = p.tables[e.table].copy()
            table[x[e.u] if e.rows is None else e.rows[x[e.u]], x[e.v] if e.cols is None else e.cols[x[e.v]]] -= 1
            yield o.with_problem(
                f"used entry of table {e.table} lowered",
                replace(p, tables=(*p.tables[: e.table], table, *p.tables[e.table + 1 :])),
            )


def wrong_solutions(o: Original, rng: random.Random) -> Iterator[Mutant]:
    """Right bound, wrong solution: over the limit, at a forbidden pair, of another cost, or no solution at all."""
    p, x = o.problem, o.claim.solution
    infeasible = 0
    for v in rng.sample(range(len(x)), len(x)):
        size = p.domain_size(v)
        for a in range(size):
            y = (*x[:v], a, *x[v + 1 :])
            if a != x[v]:
                cost = p.cost_of(y)
                fits = cost < FORBIDDEN and (p.limit is None or p.peak_of(y)[0] <= p.limit)
                if not fits or cost != o.claim.cost:
                    infeasible += not fits
                    yield o.with_claim(
                        f"choice {a} of vertex {v}, which is {'infeasible' if not fits else 'of another cost'}",
                        replace(o.claim, solution=y),
                    )
                break
        yield o.with_claim(
            f"choice {size} of vertex {v}, which has {size}", replace(o.claim, solution=(*x[:v], size, *x[v + 1 :]))
        )
    assert infeasible > 0


def wrong_claims(o: Original, rng: random.Random) -> Iterator[Mutant]:
    """Costs that are not the solution's, bounds above it, and infeasibility of what has a solution."""
    x, cost = o.claim.solution, o.claim.cost
    for change in (-1, 1, -2, 1 << 64, -(1 << 64), -cost, -2 * cost):
        yield o.with_claim(f"cost off by {change}", Optimal(x, cost + change))
    for more in (1, 2, 1000, 1 << 62, 1 << 70):
        yield o.with_claim(f"lower bound {more} above", LowerBound(cost + more))
        yield o.with_claim(f"gap with a bound {more} above", WithinGap(x, cost, cost + more))
    steps = tuple(o.problem.events())
    yield o.with_claim("infeasible", Infeasible(steps, tuple(range(len(x))), None, None))
    yield o.with_claim(
        "infeasible with the solution as witness", Infeasible(steps, tuple(range(len(x))), o.problem.limit, x)
    )
    yield o.with_claim("solution too short", Optimal(x[:-1], cost))
    yield o.with_claim("solution too long", Optimal((*x, 0), cost))


def changed_logs(o: Original, rng: random.Random) -> Iterator[Mutant]:
    """Entries that do not hold: said twice, about what has gone or never was, without what they rest on, or against the
    solution, which the limit allows."""
    for record, put in o.paths():
        if not isinstance(record, Reduced) or not len(record.log):
            continue
        log = record.log
        n = len(o.problem.vertices)
        removing = (Rule.FIX, Rule.MERGE, Rule.FOLLOW, Rule.ELIMINATE)
        gone = {int(v): k for k, (rule, v) in enumerate(log[:, :2].tolist()) if rule in removing}
        left: dict[int, list[int]] = {}
        for k, (rule, v, _, _) in enumerate(log.tolist()):
            if rule in (Rule.ARC, Rule.DOMINATED, Rule.OVERFULL):
                left.setdefault(v, []).append(k)

        def made(what: str, new: np.ndarray, record: Reduced = record, put: Callable[[Record], Record] = put) -> Mutant:
            return o.with_proof(what, put(replace(record, log=np.asarray(new, dtype=np.int64))))

        def insert(k: int, entry: tuple[int, int, int, int], log: np.ndarray = log) -> np.ndarray:
            return np.concatenate([log[:k], np.array([entry], dtype=np.int64), log[k:]])

        whole = record is o.certificate.proof
        for k in rng.sample(range(len(log)), min(len(log), 400)):
            rule, v, a, b = log[k].tolist()
            yield made(f"entry {k} twice", insert(k, (rule, v, a, b)))
            if rule in removing:
                yield made(f"vertex {v} fixed after entry {k} removed it", insert(k + 1, (Rule.FIX, v, 0, 0)))
                if rule == Rule.FIX and v in left:
                    yield made(
                        f"removal {left[v][-1]} left out, which entry {k} needs", np.delete(log, left[v][-1], axis=0)
                    )
                earlier = [w for w, m in gone.items() if m < k]
                if earlier and rule in (Rule.MERGE, Rule.FOLLOW):
                    yield made(
                        f"entry {k} with a neighbour that has gone",
                        np.concatenate([log[:k], [[rule, v, rng.choice(earlier), b]], log[k + 1 :]]),
                    )
                    yield made(
                        f"entry {k} with itself as neighbour",
                        np.concatenate([log[:k], [[rule, v, v, b]], log[k + 1 :]]),
                    )
                if earlier:
                    yield made(
                        f"entry {k} about a vertex that has gone",
                        np.concatenate([log[:k], [[rule, rng.choice(earlier), a, b]], log[k + 1 :]]),
                    )
                if left.get(v) and left[v][-1] < k:
                    m = left[v][-1]
                    yield made(
                        f"entry {m} moved behind {k}",
                        np.concatenate([log[:m], log[m + 1 : k + 1], log[m : m + 1], log[k + 1 :]]),
                    )
            if rule == Rule.DOMINATED:
                yield made(f"entry {k} dominated by itself", np.concatenate([log[:k], [[rule, v, a, a]], log[k + 1 :]]))
                yield made(
                    f"entry {k} about a choice that is not there",
                    np.concatenate([log[:k], [[rule, v, 1 << 20, b]], log[k + 1 :]]),
                )
            yield made(f"entry {k} becomes rule 10", np.concatenate([log[:k], [[10, v, a, b]], log[k + 1 :]]))
            yield made(
                f"entry {k} about vertex {n}",
                np.concatenate([log[:k], [[rule if rule != Rule.ROWS else int(Rule.FIX), n, a, b]], log[k + 1 :]]),
            )
            if whole and o.problem.limit is not None:
                w, t = rng.randrange(n), rng.choice(o.problem.events())
                yield made(
                    f"choice of the solution at {w} called overfull at {t}",
                    insert(0, (Rule.OVERFULL, w, o.claim.solution[w], t)),
                )
        for r in range(len(record.steps)):
            steps = record.steps[r]
            for what, new in (
                ("descending", steps[::-1]),
                ("one twice", np.append(steps, steps[-1:])),
                ("one that is no row", np.append(steps, 1 << 40)),
            ):
                if not np.array_equal(new, steps):
                    yield o.with_proof(
                        f"steps {r}: {what}",
                        put(replace(record, steps=(*record.steps[:r], np.asarray(new), *record.steps[r + 1 :]))),
                    )
            yield o.with_proof(f"steps {r} missing", put(replace(record, steps=record.steps[:r])))


def wrong_multipliers(o: Original, rng: random.Random) -> Iterator[Mutant]:
    """Multipliers are positive integers on ascending steps, the denominator is a positive integer."""
    for record, put in o.paths():
        if not isinstance(record, Dual):
            continue
        for q in (0, -1, -record.denominator):
            yield o.with_proof(f"denominator {q}", put(replace(record, denominator=q)))
        m = record.multipliers
        for k, (t, n) in enumerate(m):
            for wrong in (-n, 0, -1, -(1 << 70)):
                yield o.with_proof(
                    f"multiplier {k} becomes {wrong}",
                    put(replace(record, multipliers=(*m[:k], (t, wrong), *m[k + 1 :]))),
                )
            yield o.with_proof(f"step {t} twice", put(replace(record, multipliers=(*m[: k + 1], (t, n), *m[k + 1 :]))))
            if k:
                yield o.with_proof(
                    f"steps {k - 1} and {k} swapped",
                    put(replace(record, multipliers=(*m[: k - 1], m[k], m[k - 1], *m[k + 1 :]))),
                )


def wrong_shapes(o: Original, rng: random.Random) -> Iterator[Mutant]:
    """One message per end of an edge, of the table's size, along one axis."""
    for record, put in o.paths():
        if not isinstance(record, Dual) or not record.to_u:
            continue
        n = len(record.to_u)
        yield o.with_proof("an edge missing", put(replace(record, to_u=record.to_u[:-1], to_v=record.to_v[:-1])))
        yield o.with_proof(
            "an edge too many",
            put(replace(record, to_u=(*record.to_u, record.to_u[0]), to_v=(*record.to_v, record.to_v[0]))),
        )
        for e in rng.sample(range(n), min(n, 60)):
            for side, messages in (("to_u", record.to_u), ("to_v", record.to_v)):
                for what, new in (
                    ("too long", np.append(messages[e], 0)),
                    ("too short", messages[e][:-1]),
                    ("of two axes", messages[e][None]),
                ):
                    yield o.with_proof(
                        f"message {side} {e} {what}",
                        put(replace(record, **{side: (*messages[:e], new, *messages[e + 1 :])})),
                    )


def malformed_files(o: Original, rng: random.Random) -> Iterator[Mutant]:
    """Not what the format says."""
    last = len(json.loads(o.members["certificate.json"])["records"]) - 1
    for i in range(1, 16):
        yield Mutant(f"cut at {i}/16", o.problem, o.data[: len(o.data) * i // 16])
    for text in ("", "0" * 63, "0" * 64, "G" * 64, o.problem.sha256()[::-1]):
        yield o.edited(f"hash {text[:4]!r}", lambda h, text=text: h.update(problem_sha256=text))
    flat = o.members["certificate.i64"]
    assert not isinstance(flat, bytes)
    for what, new in (("cut", flat[:-1]), ("too long", np.append(flat, 0)), ("of two axes", flat[None])):
        yield Mutant(f"numbers {what}", o.problem, write_container(None, {**o.members, "certificate.i64": new}))
    for r in range(min(last + 1, 12)):
        yield o.edited(f"record {r} of no kind", lambda h, r=r: h["records"][r].update(kind="trust me"))
        yield o.edited(f"record {r} with a field too many", lambda h, r=r: h["records"][r].update(bound=1))
        yield o.edited(f"record {r} is its own child", lambda h, r=r: h["records"][r].update(then=[r]))
        yield o.edited(f"record {r} removed", lambda h, r=r: h["records"].pop(r))
        yield o.edited(f"record {r} twice", lambda h, r=r: h["records"].append(h["records"][r]))
    for value in (1.0, True, "1", None, float("nan"), [1]):
        yield o.edited(f"cost {value!r}", lambda h, value=value: h["claim"].update(cost=value))
        yield o.edited(f"solution {value!r}", lambda h, value=value: h["claim"].update(solution=value))
    yield o.edited("no records", lambda h: h.update(records=[]))
    yield o.edited("other format", lambda h: h.update(format="shardproof-selection-certificate/2"))


CLASSES = (
    removed_leaves, widened_domains, changed_problems, wrong_solutions, wrong_claims, changed_logs, wrong_multipliers, wrong_shapes, malformed_files,
)  # fmt: skip


def of_class(
    o: Original, make: Callable[[Original, random.Random], Iterator[Mutant]], most: int, seed: int = 1
) -> list[Mutant]:
    """Up to `most` mutants of one class, more of the few that there are of trees."""
    return list(islice(make(o, random.Random(seed)), max(most, 40) if make is removed_leaves else most))


def weaker(o: Original, rng: random.Random) -> Iterator[Mutant]:
    """Valid proofs of something else: other messages, larger or fewer multipliers, rows dropped.  What they prove
    is for the checker to say.
    """
    duals = [
        (record, put) for record, put in o.paths() if isinstance(record, Dual) and record.then is None
    ]  # nothing rests on what they fix
    while True:
        record, put = rng.choice(duals)
        kind = rng.choice(["message", "multiplier", "no multiplier", "denominator"])
        if kind == "message" and record.to_u:
            e, change = rng.randrange(len(record.to_u)), rng.choice([-1, 1, 1000, -(10**6)])
            side, messages = rng.choice([("to_u", record.to_u), ("to_v", record.to_v)])
            new = messages[e].copy()
            new[rng.randrange(new.size)] += change * rng.choice([1, record.denominator])
            yield o.with_proof(
                f"message {side} {e} changed", put(replace(record, **{side: (*messages[:e], new, *messages[e + 1 :])}))
            )
        elif kind == "multiplier" and record.multipliers:
            k = rng.randrange(len(record.multipliers))
            t, n = record.multipliers[k]
            changed = (
                *record.multipliers[:k],
                (t, max(1, n + rng.choice([-1, 1, n, -n // 2]))),
                *record.multipliers[k + 1 :],
            )
            if changed != record.multipliers:
                yield o.with_proof(f"multiplier {k} changed", put(replace(record, multipliers=changed)))
        elif kind == "no multiplier" and record.multipliers:
            k = rng.randrange(len(record.multipliers))
            yield o.with_proof(
                f"multiplier {k} left out",
                put(replace(record, multipliers=record.multipliers[:k] + record.multipliers[k + 1 :])),
            )
        elif kind == "denominator":
            yield o.with_proof(
                "denominator raised", put(replace(record, denominator=record.denominator + rng.randint(1, 3)))
            )
