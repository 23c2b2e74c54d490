"""Mutants that must be rejected by construction.

A certificate can be wrong in a way that makes it a weaker but valid proof, so random changes prove nothing about a
checker.  Every class below is invalid by an argument given at its maker.  Each mutant is written with correct hashes,
differs from the valid original in its bytes, goes through files (encode, decode, check) and must end in exit 10
(refuted) or exit 3 (malformed) with no other exception.
"""

from __future__ import annotations

import copy
import json
import random
import tracemalloc
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from functools import cache

import numpy as np
import pytest
import selection_cases as cases
from random_problems import shared_tables

from shardproof.models.problem.claims import Infeasible, LowerBound, Optimal, SelectionClaim, WithinGap
from shardproof.models.problem.selection_problem import FORBIDDEN, ProblemError, SelectionProblem, Usage, Vertex
from shardproof.proofs.container.archive import read_container, write_container
from shardproof.proofs.container.canonical import ContainerError
from shardproof.proofs.selection.certificates import (
    Dual,
    Elimination,
    Open,
    Point,
    Record,
    RowConflict,
    SelectionCertificate,
    Split,
)
from shardproof.proofs.selection.file import read_certificate, write_certificate
from shardproof.proofs.selection.problem_file import parse_problem, problem_json
from shardproof.verify.selection.certificate import check_selection


def exit_code(problem: bytes, certificate: bytes) -> int:
    """What `shardproof check` would exit with."""
    try:
        return check_selection(parse_problem(problem), read_certificate(certificate)).exit_code
    except (ContainerError, ProblemError):
        return 3


@dataclass(frozen=True)
class Original:
    """A valid certificate: exit 0."""

    name: str
    problem: SelectionProblem
    certificate: SelectionCertificate

    @property
    def claim(self) -> SelectionClaim:
        return self.certificate.claim

    @property
    def proof(self) -> Record:
        return self.certificate.proof

    def files(self) -> tuple[bytes, bytes]:
        return problem_json(self.problem), write_certificate(None, self.certificate)


@dataclass(frozen=True)
class Mutant:
    original: Original
    what: str
    problem: bytes
    certificate: bytes


def changed(
    o: Original,
    what: str,
    *,
    claim: SelectionClaim | None = None,
    proof: Record | None = None,
    problem: SelectionProblem | None = None,
) -> Mutant:
    """A mutant with honest hashes everywhere: a changed problem is re-hashed into the certificate."""
    p = problem or o.problem
    certificate = SelectionCertificate(p.sha256(), claim or o.claim, proof or o.proof)
    return Mutant(o, what, problem_json(p), write_certificate(None, certificate))


def edited(o: Original, what: str, edit: Callable[[dict], object]) -> Mutant:
    """The JSON head changed by `edit` (in place, or a new value returned), manifest written anew.  Floats and NaN
    are possible.
    """
    problem, data = o.files()
    members = read_container(data)
    head = json.loads(members["certificate.json"])
    head = edit(head) or head
    text = json.dumps(head).replace('"<raw ', "").replace(' raw>"', "")
    return Mutant(o, what, problem, write_container(None, {**members, "certificate.json": text.encode()}))


@cache
def originals() -> dict[str, list[Original]]:
    """Valid certificates of every kind, over problems with at least two vertices."""
    out: dict[str, list[Original]] = {"elimination": [], "points": [], "conflict": [], "dual": []}
    for seed in range(200):
        rng = random.Random(seed)
        free = shared_tables(seed, n=4, k=3, rows=False)
        best = cases.brute(free)
        if best is not None and len(free.vertices) >= 3 and len(out["elimination"]) < 6 and len(free.edges) >= 3:
            out["elimination"].append(
                Original(
                    f"elimination {seed}",
                    free,
                    cases.certified(free, Optimal(best[1], best[0]), cases.eliminate(free, rng)),
                )
            )
        tight = shared_tables(seed, n=3, k=3)
        if len(tight.vertices) < 2:
            continue
        best = cases.brute(tight)
        if best is not None and len(out["points"]) < 6 and any(v.cost.size > 1 for v in tight.vertices):
            claim: SelectionClaim = Optimal(best[1], best[0]) if seed % 2 else WithinGap(best[1], best[0], best[0])
            out["points"].append(Original(f"points {seed}", tight, cases.certified(tight, claim, cases.points(tight))))
        rowed = shared_tables(seed, n=3, k=3, forbidden=0)  # so that only resource rows can be in the way
        if cases.brute(rowed) is None and len(rowed.vertices) > 1 and len(out["conflict"]) < 5:
            proof = cases.points(rowed, conflicts=True)
            if any(isinstance(r, RowConflict) for r in records(proof)):
                out["conflict"].append(
                    Original(f"conflict {seed}", rowed, cases.certified(rowed, cases.named(rowed, proof), proof))
                )
        if tight.edges and len(out["dual"]) < 5:
            dual = cases.random_dual(tight, rng)
            bound, _ = cases.reference_dual(tight, dual, cases.whole(tight), float("inf"))
            if isinstance(bound, int):
                dual = replace(dual, multipliers=dual.multipliers or ((1, 1), (2, 1)))
                bound = cases.reference_dual(tight, dual, cases.whole(tight), float("inf"))[0]
                out["dual"].append(
                    Original(f"dual {seed}", tight, cases.certified(tight, LowerBound(int(bound)), dual))
                )
    return out


def records(root: Record) -> Iterator[Record]:
    yield root
    match root:
        case Split():
            for child in root.children:
                yield from records(child)
        case Dual() if root.then is not None:
            yield from records(root.then)


def with_messages(proof: Elimination, k: int, message: np.ndarray) -> Elimination:
    return replace(proof, messages=(*proof.messages[:k], message, *proof.messages[k + 1 :]))


def eliminations() -> Iterator[tuple[Original, Elimination]]:
    for o in originals()["elimination"]:
        assert isinstance(o.proof, Elimination)
        yield o, o.proof


def raised_messages() -> Iterator[Mutant]:
    """Messages are exact minima: any finite entry raised is above its sum, whatever the others are."""
    for o, proof in eliminations():
        for k, message in enumerate(proof.messages):
            for at in np.ndindex(message.shape):
                if message[at] < FORBIDDEN:
                    for raised in (int(message[at]) + 1, FORBIDDEN, (1 << 63) - 1):
                        new = message.copy()
                        new[at] = raised
                        yield changed(o, f"message {k} at {at} raised to {raised}", proof=with_messages(proof, k, new))


def broken_orders_and_scopes() -> Iterator[Mutant]:
    """The order must be a permutation; scopes ascend, hold all other vertices consumed and none eliminated; shapes
    are those of D.
    """
    for o, proof in eliminations():
        n = len(proof.order)
        yield changed(o, "order repeats", proof=replace(proof, order=(proof.order[1], *proof.order[1:])))
        yield changed(o, "order too short", proof=Elimination(proof.order[:-1], proof.scopes[:-1], proof.messages[:-1]))
        yield changed(o, "order out of range", proof=replace(proof, order=(*proof.order[:-1], n)))
        yield changed(o, "order negative", proof=replace(proof, order=(*proof.order[:-1], -1)))
        yield changed(o, "a message is missing", proof=replace(proof, messages=proof.messages[:-1]))
        yield changed(o, "a scope is missing", proof=replace(proof, scopes=proof.scopes[:-1]))
        for k, (scope, message) in enumerate(zip(proof.scopes, proof.messages, strict=True)):

            def new(
                scope_: tuple[int, ...], message_: np.ndarray, o: Original = o, proof: Elimination = proof, k: int = k
            ) -> Mutant:
                scopes = (*proof.scopes[:k], scope_, *proof.scopes[k + 1 :])
                return changed(
                    o, f"step {k}: scope {scope_}", proof=replace(with_messages(proof, k, message_), scopes=scopes)
                )

            if scope:
                yield new(scope[1:], message.min(axis=0))  # sound by itself, but leaves a table of an eliminated vertex
                yield new((*scope[:-1], n), message)
                yield new((*scope[:-1], -1), message)
                yield new((*scope, scope[-1]), np.repeat(message[..., None], message.shape[-1], axis=-1))
                yield changed(o, f"message {k} with an axis more", proof=with_messages(proof, k, message[..., None]))
                yield changed(o, f"message {k} cut", proof=with_messages(proof, k, message[1:]))
            if k and len(scope) < n - 1:
                gone = proof.order[0]
                size = o.problem.vertices[gone].cost.size
                yield new(
                    (gone, *scope) if not scope or gone < scope[0] else (*scope, gone),
                    np.stack([message] * size, axis=0 if not scope or gone < scope[0] else -1),
                )
            if len(scope) > 1:
                yield new(scope[::-1], message.transpose())
                if message.transpose().shape != message.shape or not np.array_equal(message, message.transpose()):
                    yield changed(
                        o, f"axes of message {k} reversed", proof=with_messages(proof, k, message.transpose())
                    )


def lowered_costs() -> Iterator[Mutant]:
    """A cost that the claimed solution uses is lowered (or forbidden): the claimed cost is wrong.
    Or a choice not used is lowered so far that the claimed solution is no longer best: an exact message is then above
    its sum."""
    for o in (*originals()["elimination"], *originals()["points"]):
        assert isinstance(o.claim, Optimal | WithinGap)
        for v, vertex in enumerate(o.problem.vertices):
            for a in range(vertex.cost.size):
                used = o.claim.solution[v] == a
                for value in (int(vertex.cost[a]) - 1, FORBIDDEN) if used else (-(10**9),):
                    cost = vertex.cost.copy()
                    cost[a] = value
                    vertices = (*o.problem.vertices[:v], Vertex(vertex.name, cost), *o.problem.vertices[v + 1 :])
                    p = replace(o.problem, vertices=vertices)
                    if (
                        used
                        or (o.name.startswith("elim") and _matters(o, v, a))
                        or (cases.brute(p) or (0,))[0] < o.claim.cost
                    ):
                        yield changed(o, f"cost of {v}, {a} set to {value}", problem=p)
        for t, table in enumerate(o.problem.tables):
            for at in {
                _pair(o.problem, e, o.claim.solution)
                for e in range(len(o.problem.edges))
                if o.problem.edges[e].table == t
            }:
                lower = table.copy()
                lower[at] -= 1
                tables = (*o.problem.tables[:t], lower, *o.problem.tables[t + 1 :])
                yield changed(o, f"table {t} lowered at {at}", problem=replace(o.problem, tables=tables))
        yield changed(o, "constant lowered", problem=replace(o.problem, constant=o.problem.constant - 1))
        yield changed(o, "constant raised", problem=replace(o.problem, constant=o.problem.constant + 1))
        if o.problem.limit is not None:
            peak = cases.peak(o.problem, o.claim.solution)
            if peak:
                yield changed(o, "limit below the solution", problem=replace(o.problem, limit=peak - 1))


def _matters(o: Original, v: int, a: int) -> bool:
    """Choice a of v is part of some allowed solution: lowering it by 10**9 lowers some exact message below the
    stored one.
    """
    domains = cases.whole(o.problem)
    return cases.brute(o.problem, [*domains[:v], [a], *domains[v + 1 :]], rows=False) is not None


def _pair(problem: SelectionProblem, e: int, x: tuple[int, ...]) -> tuple[int, int]:
    edge = problem.edges[e]
    row = x[edge.u] if edge.rows is None else int(edge.rows[x[edge.u]])
    return row, x[edge.v] if edge.cols is None else int(edge.cols[x[edge.v]])


def wrong_solutions() -> Iterator[Mutant]:
    """Right bound, wrong solution: infeasible, of another cost, of wrong length or outside the domains.  And right
    solution, wrong cost.
    """
    for o in (*originals()["elimination"], *originals()["points"]):
        claim = o.claim
        assert isinstance(claim, Optimal | WithinGap)
        for v, vertex in enumerate(o.problem.vertices):
            for a in (*range(vertex.cost.size), vertex.cost.size, -1, 1 << 40):
                x = (*claim.solution[:v], a, *claim.solution[v + 1 :])
                outside = not 0 <= a < vertex.cost.size
                if outside or not cases.feasible(o.problem, x) or sum(cases.entries(o.problem, x)) != claim.cost:
                    yield changed(o, f"solution {x}", claim=replace(claim, solution=x))
        yield changed(o, "solution too short", claim=replace(claim, solution=claim.solution[:-1]))
        yield changed(o, "solution too long", claim=replace(claim, solution=(*claim.solution, 0)))
        yield changed(o, "no solution", claim=replace(claim, solution=()))
        for cost in (claim.cost - 1, claim.cost + 1, -claim.cost - 1, claim.cost + (1 << 64), claim.cost - (1 << 64)):
            yield changed(o, f"cost {cost}", claim=replace(claim, cost=cost))
        yield changed(o, "bound above the cost", claim=WithinGap(claim.solution, claim.cost, claim.cost + 1))
        if o.name.startswith("points"):
            yield changed(o, "a bound that the leaves contradict", claim=LowerBound(claim.cost + 1))
            yield changed(o, "infeasible, say the leaves of a solution", claim=Infeasible((), (), None, None))


def broken_splits() -> Iterator[Mutant]:
    """Parts must cover the domain, be non-empty and in range; every part has its child; a point has one choice per
    vertex.
    """
    for o in (*originals()["points"], *originals()["conflict"]):
        root = o.proof
        if not isinstance(root, Split):
            continue
        for i in range(len(root.parts)):
            rest = slice(i + 1, None)
            yield changed(
                o,
                f"part {i} and its child dropped",
                proof=Split(root.vertex, root.parts[:i] + root.parts[rest], root.children[:i] + root.children[rest]),
            )
            yield changed(
                o, f"child {i} dropped", proof=replace(root, children=root.children[:i] + root.children[rest])
            )
            yield changed(o, f"part {i} emptied", proof=replace(root, parts=(*root.parts[:i], (), *root.parts[rest])))
            yield changed(
                o,
                f"part {i} out of range",
                proof=replace(root, parts=(*root.parts[:i], (*root.parts[i], 99), *root.parts[rest])),
            )
            yield changed(
                o,
                f"part {i} negative",
                proof=replace(root, parts=(*root.parts[:i], (-1, *root.parts[i]), *root.parts[rest])),
            )
            yield changed(
                o,
                f"part {i} twice instead of its neighbour",
                proof=replace(root, parts=(*root.parts[: i - 1], root.parts[i], *root.parts[i:]))
                if i
                else Split(root.vertex, (), ()),
            )
        for vertex in (-1, len(o.problem.vertices), 1 << 70):
            yield changed(o, f"split of vertex {vertex}", proof=replace(root, vertex=vertex))
        yield changed(o, "a point at the root", proof=Point())


def broken_duals() -> Iterator[Mutant]:
    """Q >= 1, n_t > 0 on ascending steps of a problem with a limit, one message per edge end of the table's size."""
    for o in originals()["dual"]:
        d = o.proof
        assert isinstance(d, Dual)
        for q in (0, -1, -(1 << 80)):
            yield changed(o, f"denominator {q}", proof=replace(d, denominator=q))
        (t, n), *rest = d.multipliers
        for first in ((t, -n), (t, 0), (t, -(1 << 70))):
            yield changed(o, f"multiplier {first}", proof=replace(d, multipliers=(first, *rest)))
        yield changed(o, "step twice", proof=replace(d, multipliers=((t, n), (t, n), *rest)))
        yield changed(o, "steps descend", proof=replace(d, multipliers=((t, n), (t - 1, n))))
        yield changed(o, "rows of a problem without limit", problem=replace(o.problem, limit=None))
        yield changed(o, "edge missing", proof=replace(d, to_u=d.to_u[:-1], to_v=d.to_v[:-1]))
        yield changed(o, "edge too many", proof=replace(d, to_u=(*d.to_u, d.to_u[0])))
        yield changed(o, "message too long", proof=replace(d, to_u=(np.append(d.to_u[0], 0), *d.to_u[1:])))
        yield changed(o, "message too short", proof=replace(d, to_v=(*d.to_v[:-1], d.to_v[-1][1:])))
        yield changed(o, "message of two axes", proof=replace(d, to_v=(*d.to_v[:-1], d.to_v[-1][None])))
        if d.to_u[0].shape != d.to_v[0].shape:
            yield changed(o, "ends swapped", proof=replace(d, to_u=d.to_v, to_v=d.to_u))


def broken_conflicts() -> Iterator[Mutant]:
    """A row conflict must exceed the limit: with the limit raised to what all usages need together, no row does."""
    for o in originals()["conflict"]:
        claim = o.claim
        assert isinstance(claim, Infeasible)
        enough = sum(int(u.amount.max()) for u in o.problem.usages)
        yield changed(o, "limit raised", problem=replace(o.problem, limit=enough))
        yield changed(o, "no limit", problem=replace(o.problem, limit=None))
        idle = tuple(Usage(u.vertex, u.start, u.end, u.amount * 0, u.name) for u in o.problem.usages)
        yield changed(o, "usages lowered", problem=replace(o.problem, usages=idle))
        for m in ((), ((99, 1),), ((1, -1),), ((1, 0),)):
            yield changed(o, f"conflict of {m}", proof=RowConflict(m))
        yield changed(o, "vertices descend", claim=replace(claim, vertices=(*claim.vertices, 0, 0)))
        yield changed(o, "step that does not exist", claim=replace(claim, steps=(*claim.steps, 10**6)))
        peak = cases.peak(o.problem, (0,) * len(o.problem.vertices))
        for least in (peak + 1, 10**30):  # the witness needs `peak`
            yield changed(
                o,
                "least limit above the witness",
                claim=replace(claim, least_limit=least, witness=(0,) * len(o.problem.vertices)),
            )
        yield changed(o, "steps twice", claim=replace(claim, steps=claim.steps + claim.steps[:1]))
        yield changed(o, "vertex that is not there", claim=replace(claim, vertices=(*claim.vertices, 77)))
        yield changed(o, "limit without witness", claim=replace(claim, least_limit=enough))
        yield changed(o, "witness without limit", claim=replace(claim, witness=(0,) * len(o.problem.vertices)))
        yield (
            changed(
                o,
                "witness above the least limit",
                claim=replace(claim, least_limit=0, witness=tuple(0 for _ in o.problem.vertices)),
            )
            if cases.peak(o.problem, (0,) * len(o.problem.vertices))
            else changed(o, "witness too short", claim=replace(claim, least_limit=enough, witness=()))
        )


def swapped_hashes() -> Iterator[Mutant]:
    """The certificate of one problem does not speak about another, and a hash is 64 hexadecimal digits."""
    everything = [o for group in originals().values() for o in group]
    for o, other in zip(everything, everything[1:] + everything[:1], strict=True):
        certificate = replace(o.certificate, problem_sha256=other.problem.sha256())
        yield Mutant(o, "hash of another problem", o.files()[0], write_certificate(None, certificate))
        yield Mutant(o, "another problem", other.files()[0], o.files()[1])
        yield Mutant(o, "renamed problem, hash kept", problem_json(replace(o.problem, name="renamed")), o.files()[1])
    for text in ("", "0" * 63, "G" * 64, "0" * 65):
        yield edited(everything[0], f"hash {text[:3]}", lambda h, text=text: h.update(problem_sha256=text))


def truncated_files() -> Iterator[Mutant]:
    for group in originals().values():
        problem, data = group[0].files()
        for i in range(1, 9):
            yield Mutant(group[0], f"certificate cut at {i}/9", problem, data[: len(data) * i // 9])
            yield Mutant(group[0], f"problem cut at {i}/9", problem[: len(problem) * i // 9], data)


def bad_numbers() -> Iterator[Mutant]:
    """Every integer of the JSON head in turn replaced by something that Python would take for an integer, or is
    absurd.
    """
    for group in originals().values():
        o = group[0]
        head = json.loads(read_container(o.files()[1])["certificate.json"])
        paths = list(_integers(head))
        for path in random.Random(1).sample(paths, min(10, len(paths))):
            for raw in ("1.0", "true", "NaN", "-Infinity", "1e3", '"1"', "9" * 5000, "[1]", "{}", "1" + "0" * 200):
                yield edited(
                    o,
                    f"{path} := {raw[:9]}",
                    lambda h, path=path, raw=raw: _put(h, path, f"<raw {raw} raw>" if '"' not in raw else "1"),
                )


def _integers(value: object, path: tuple[object, ...] = ()) -> Iterator[tuple[object, ...]]:
    if type(value) is int:
        yield path
    elif isinstance(value, list | dict):
        for key, item in value.items() if isinstance(value, dict) else enumerate(value):
            yield from _integers(item, (*path, key))


def _put(head: dict, path: tuple, value: object) -> None:
    at: object = head
    for key in path[:-1]:
        at = at[key]  # type: ignore[index]
    at[path[-1]] = value  # type: ignore[index]


def broken_structure() -> Iterator[Mutant]:
    """The record table: a tree in preorder, every record used once; array references inside the table; known words
    only.
    """
    o = originals()["points"][0]

    def each(what: str, edit: Callable[[dict], object]) -> Mutant:
        return edited(o, what, edit)

    yield each("no records", lambda h: h.update(records=[]))
    yield each("records null", lambda h: h.update(records=None))
    yield each("child is itself", lambda h: h["records"][0]["children"].__setitem__(0, 0))
    yield each("child is negative", lambda h: h["records"][0]["children"].__setitem__(0, -1))
    yield each("child beyond the end", lambda h: h["records"][0]["children"].__setitem__(0, len(h["records"])))
    yield each("child twice", lambda h: h["records"][0]["children"].__setitem__(1, h["records"][0]["children"][0]))
    yield each("stray record", lambda h: h["records"].append({"kind": "open"}))
    yield each("backward child", lambda h: h["records"][-1].update(kind="split", vertex=0, parts=[0, 0], children=[0]))
    yield each("unknown record", lambda h: h["records"][-1].update(kind="trust-me"))
    yield each("unknown claim", lambda h: h["claim"].update(kind="true"))
    yield each("unknown field", lambda h: h.update(extra=1))
    yield each("missing field", lambda h: h.pop("shapes") and None)
    yield each("other format", lambda h: h.update(format="shardproof-selection-certificate/2"))
    yield each("not an object", lambda h: [h])
    yield each("array number too large", lambda h: h["claim"].update(solution=len(h["shapes"])))
    yield each("array number negative", lambda h: h["claim"].update(solution=-1))
    yield each("shape too large", lambda h: h["shapes"].__setitem__(0, [1 << 40]))
    yield each("shape absurd", lambda h: h["shapes"].__setitem__(0, [1 << 40] * 32))
    yield each("shape negative", lambda h: h["shapes"].__setitem__(0, [-1]))
    yield each("shape of 33 axes", lambda h: h["shapes"].__setitem__(0, [1] * 33))
    yield each("shape of empty axes", lambda h: h["shapes"].__setitem__(0, [0, 1 << 40, 1 << 40]))
    yield each("numbers left over", lambda h: h["shapes"].pop() and None)
    yield each("many shapes more", lambda h: h["shapes"].extend([[1]] * 200_000))
    yield each("lengths do not fit", lambda h: h["records"][0].update(parts=h["records"][0]["parts"][::-1]))
    d = originals()["dual"][0]
    yield edited(
        d,
        "messages refer to arrays that are not there",
        lambda h: h["records"][0].update(to_u=h["records"][0]["to_v"], shapes=1),
    )
    yield edited(d, "two children of a dual", lambda h: h["records"][0].update(then=[1, 1]))
    yield edited(d, "repeated step pair of three", lambda h: h["records"][0].update(multipliers=[[1, 1, 1]]))
    problem, data = o.files()
    members = read_container(data)
    flat = members["certificate.i64"]
    assert not isinstance(flat, bytes)
    for what, value in (
        ("one number less", flat[:-1]),
        ("one number more", np.append(flat, 0)),
        ("two axes", flat[None]),
        ("bytes", b"abc"),
    ):
        yield Mutant(o, f"numbers: {what}", problem, write_container(None, {**members, "certificate.i64": value}))


def bad_problems() -> Iterator[Mutant]:
    """Problems that are not well formed, with the certificate bound to them as far as it can be."""
    o = originals()["points"][0]
    problem, data = o.files()
    head = json.loads(problem)
    cost = head["vertices"][0]["cost"]
    for what, edit in {
        "empty domain": lambda h: h["vertices"][0].update(cost=[]),
        "overflow-sized cost": lambda h: h["vertices"][0].update(cost=[(1 << 60) - 1] * len(cost)),
        "cost beyond int64": lambda h: h["vertices"][0].update(cost=[1 << 63] * len(cost)),
        "negative beyond the guard": lambda h: h["vertices"][0].update(cost=[-(1 << 62)] * len(cost)),
        "float cost": lambda h: h["vertices"][0].update(cost=[1.0] * len(cost)),
        "bool cost": lambda h: h["vertices"][0].update(cost=[True] * len(cost)),
        "NaN cost": lambda h: h["vertices"][0].update(cost=[float("nan")] * len(cost)),
        "negative usage": lambda h: h["usages"][0].update(amount=[-1] * len(h["usages"][0]["amount"])),
        "negative limit": lambda h: h.update(limit=-1),
        "loop": lambda h: h["edges"].append({"u": 0, "v": 0, "table": 0}),
        "edge to nowhere": lambda h: h["edges"].append({"u": 0, "v": 99, "table": 0}),
        "table that is not there": lambda h: h["edges"].append({"u": 0, "v": 1, "table": 99}),
        "constant too large": lambda h: h.update(constant=1 << 57),
    }.items():
        new = copy.deepcopy(head)
        edit(new)
        yield Mutant(o, what, json.dumps(new).encode(), data)


CLASSES: dict[str, Callable[[], Iterator[Mutant]]] = {
    f.__name__: f
    for f in (
        raised_messages, broken_orders_and_scopes, lowered_costs, wrong_solutions, broken_splits, broken_duals, broken_conflicts,
        swapped_hashes, truncated_files, bad_numbers, broken_structure, bad_problems,
    )
}  # fmt: skip


WATCHED = 4
"""Of so many mutants the memory of one is counted, which takes three times as long as the check; the verdict of all."""


@cache
def mutants(name: str) -> tuple[Mutant, ...]:
    return tuple(CLASSES[name]())


def test_the_originals_are_proved() -> None:
    for group in originals().values():
        assert len(group) >= 5
        for o in group:
            result = check_selection(parse_problem(o.files()[0]), read_certificate(o.files()[1]))
            assert result.exit_code == 0, (o.name, result.reason)


@pytest.mark.parametrize("name", CLASSES)
def test_mutants_are_rejected(name: str) -> None:
    made = mutants(name)
    assert len(made) >= 10
    accepted = []
    for k, m in enumerate(made):
        assert (m.problem, m.certificate) != m.original.files(), f"{m.original.name}: {m.what} changes nothing"
        watched = k % WATCHED == 0
        if watched:
            tracemalloc.start()
        try:
            if exit_code(m.problem, m.certificate) not in (10, 3):
                accepted.append((m.original.name, m.what))
            assert not watched or tracemalloc.get_traced_memory()[1] < 256 << 20, m.what
        finally:
            tracemalloc.stop()
    assert not accepted


def test_at_least_350_different_mutants() -> None:
    found = {(m.problem, m.certificate) for name in CLASSES for m in mutants(name)}
    assert len(found) >= 350


def test_lowered_messages_are_accepted_as_weaker() -> None:
    """Not a must-reject class: a lower message is a valid, weaker proof, and the bound that is left is reported."""
    codes = set()
    for o, proof in eliminations():
        assert isinstance(o.claim, Optimal)
        for k, message in enumerate(proof.messages):
            lowered = changed(o, "", proof=with_messages(proof, k, message - 1))
            result = check_selection(o.problem, read_certificate(lowered.certificate))
            if result.exit_code == 10:  # a later exact message now stands above its sum
                assert k < len(proof.messages) - 1
                continue
            codes.add(result.exit_code)
            assert result.lower_bound is not None and result.lower_bound <= o.claim.cost
        last = with_messages(proof, len(proof.messages) - 1, proof.messages[-1] - 5)
        assert check_selection(o.problem, cases.certified(o.problem, o.claim, last)).lower_bound == o.claim.cost - 5
    assert codes >= {5}


def test_a_dual_over_a_cheaper_problem_never_proves_the_old_optimum() -> None:
    """Any integers are a valid Dual, so lowering a cost is not a false statement: the checker's own bound drops
    instead.
    """
    tried = 0
    for seed in range(80):
        p = shared_tables(seed, n=3, k=3)
        best = cases.brute(p)
        if best is None:
            continue
        claim = Optimal(best[1], best[0])
        for v, vertex in enumerate(p.vertices):
            for a in range(vertex.cost.size):
                cost = vertex.cost.copy()
                cost[a] = -1000
                q = replace(p, vertices=(*p.vertices[:v], Vertex(vertex.name, cost), *p.vertices[v + 1 :]))
                if (cases.brute(q) or (claim.cost,))[0] >= claim.cost:
                    continue
                tree = cases.random_tree(q, random.Random(seed), claim.cost)
                tried += 1
                assert check_selection(q, cases.certified(q, claim, tree)).exit_code in (5, 10)
                assert check_selection(q, cases.certified(q, claim, Open())).exit_code in (5, 10)
    assert tried > 100
