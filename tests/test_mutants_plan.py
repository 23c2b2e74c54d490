"""Mutants of a real plan that must be rejected by construction.

A plan is a proof about a graph on a machine; a changed plan may still be true (another name of a device, a faster link
nobody uses), so random changes prove nothing.  Each class below is false or malformed by an argument given at its
maker.  All hashes are made right again (container, graph, machine), so that it is not the hash that saves the checker;
every mutant is written, read and checked like a file, and must end in exit 10 (refuted) or exit 3 (`ContainerError`):
no other exception, no memory blow-up, never proved.
"""

from __future__ import annotations

import hashlib
import json
import random
import tracemalloc
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from fractions import Fraction
from functools import cache
from itertools import islice
from typing import Any

import numpy as np
import pytest
from budgets import some_or_all

from shardproof.formal.plans.plan import plan_graph
from shardproof.models.cost.selection import build
from shardproof.models.layout.placement import Placement, space
from shardproof.models.machine.machine import Machine, load_machine
from shardproof.models.problem.claims import Infeasible, LowerBound, Optimal, Verdict, WithinGap
from shardproof.models.program.graph import Graph
from shardproof.models.sources.zoo import build as zoo
from shardproof.proofs.container.archive import Member, identity, read_container, write_container
from shardproof.proofs.container.canonical import ContainerError
from shardproof.proofs.plan.bundle import Plan, encode_plan, read_plan, write_plan
from shardproof.proofs.selection.certificates import Dual, Elimination, Open
from shardproof.verify.plan.plan import check_plan

Json = Any

MEMORY = 64 << 20
"""Bytes that checking a mutant may take at most; the plan itself takes a few."""


@cache
def original() -> Plan:
    """The MLP of Unity on 2 x 4 devices, proved optimal."""
    planned = plan_graph(zoo("mlp-unity"), load_machine("cloud-a100:2x4"), space("complete"))
    assert planned.plan is not None
    return planned.plan


@cache
def partial() -> Plan:
    """A plan with a memory limit, a copy, an all-gather and a reduce-scatter."""
    planned = plan_graph(zoo("mlp-8192", layers=3, batch=8), load_machine("cloud-a100:2x4"), space("complete"), 1 << 30)
    assert planned.plan is not None
    return planned.plan


def exit_code(data: bytes) -> int:
    """What `shardproof check` would exit with."""
    try:
        return check_plan(data, samples=50).exit_code
    except ContainerError:
        return 3


@dataclass(frozen=True)
class Mutant:
    name: str
    data: bytes
    watched: bool = False  # its memory is measured, which is slow


def test_the_originals_are_proved() -> None:
    for plan in (original(), partial()):
        checked = check_plan(write_plan(None, plan), samples=200)
        assert checked.verdict is Verdict.PROVED, [r.reason for r in checked.results]
    assert {m.collective for m in partial().communication} == {"none", "all-gather", "reduce-scatter"}
    assert partial().choices.copies


# Changes of the plan's own types: everything is encoded, and hashed, by the same code as a true plan.


def changed_parts() -> Iterator[tuple[str, Plan]]:
    """One part replaced by one of another plan: the rebuilt problem is another one than the certificate's."""
    plan = original()
    for batch in (32, 63, 128):
        yield f"graph with batch {batch}", replace(plan, graph=zoo("mlp-unity", batch=batch))
    for name in ("mlp-uneven", "conv-stack", "mlp-unity-training"):
        yield f"graph {name}", replace(plan, graph=zoo(name))
    yield "graph of other name", replace(plan, graph=replace(plan.graph, name="other"))
    yield "graph of other type", replace(plan, graph=zoo("mlp-unity", dtype="float64"))
    yield (
        "fewer operators",
        replace(
            plan,
            graph=replace(
                plan.graph, operators=plan.graph.operators[:-1], outputs=(plan.graph.operators[-2].output.tensor,)
            ),
        ),
    )
    yield (
        "other outputs",
        replace(plan, graph=replace(plan.graph, outputs=(plan.graph.operators[0].output.tensor, *plan.graph.outputs))),
    )
    yield (
        "other activation",
        replace(
            plan,
            graph=replace(
                plan.graph,
                operators=tuple(
                    replace(op, function="gelu") if op.function == "relu" else op for op in plan.graph.operators
                ),
            ),
            machine=slow(plan.machine),
        ),
    )
    for spec in (
        "cloud-a100:4x2",
        "cloud-a100:8x1",
        "cloud-a100:1x8",
        "cloud-a100:2x2",
        "p2-v100:2x4",
        "pase-1080ti:2x4",
        "localhost:8",
    ):
        yield f"machine {spec}", replace(plan, machine=load_machine(spec))
    for level in range(2):
        for part in ("bandwidth", "latency"):
            value = getattr(plan.machine.levels[level], part)
            for factor in (Fraction(1, 2), Fraction(3), Fraction(10**9)):
                levels = list(plan.machine.levels)
                levels[level] = replace(levels[level], **{part: value * factor})
                yield (
                    f"{part} of level {level} times {factor}",
                    replace(plan, machine=replace(plan.machine, levels=tuple(levels))),
                )
    device = plan.machine.device
    yield (
        "device bandwidth",
        replace(plan, machine=replace(plan.machine, device=replace(device, bandwidth=device.bandwidth * 2))),
    )
    yield (
        "launch time",
        replace(plan, machine=replace(plan.machine, device=replace(device, launch=device.launch + Fraction(1, 10**6)))),
    )
    yield "slow device", replace(plan, machine=slow(plan.machine))
    for name in (
        "two-per-level",
        "one-per-level",
        "complete,uneven",
        "none",
        "",
        "complete,",
        "complete,uneven,even",
        "COMPLETE",
    ):
        yield f"space {name!r}", replace(plan, space=name)
    for limit in (0, 1, 1 << 20, 80 << 30, 1 << 62):
        yield f"memory limit {limit}", replace(plan, memory_limit=limit)
    yield "no memory limit", replace(partial(), memory_limit=None)
    yield "certificate of another plan", replace(plan, certificate=partial().certificate)
    yield "choices of another plan", replace(plan, choices=partial().choices)
    yield "communication of another plan", replace(plan, communication=partial().communication)


def slow(machine: Machine) -> Machine:
    return replace(
        machine, device=replace(machine.device, peaks=tuple((d, p / 10**6) for d, p in machine.device.peaks))
    )


def changed_choices() -> Iterator[tuple[str, Plan]]:
    """A placement of the space, but not the one of the certificate's solution; or none of the space."""
    for plan in (original(), partial()):
        planning = build(plan.graph, plan.machine, space(plan.space), plan.memory_limit)
        x = planning.solution(plan.choices)
        for v, decision in enumerate(planning.decisions):
            for choice in range(0, planning.problem.domain_size(v), 9):
                if choice != x[v]:
                    y = (*x[:v], choice, *x[v + 1 :])
                    yield f"{decision.name} has choice {choice}", replace(plan, choices=planning.choices(y))
    plan = original()
    (name, first), *rest = plan.choices.operators

    def with_first(placement: Placement, title: str) -> tuple[str, Plan]:
        return title, replace(plan, choices=replace(plan.choices, operators=((name, placement), *rest)))

    rows = len(first.matrix)
    yield with_first(replace(first, matrix=((2, 4), *((1, 1),) * (rows - 2), (1, 2))), "column beyond its level")
    yield with_first(replace(first, matrix=((1, 1),) * rows), "columns that leave devices out")
    yield with_first(replace(first, matrix=((1, 1),) * (rows - 1)), "a row less")
    yield with_first(replace(first, matrix=(*first.matrix, (1, 1))), "a row more")
    yield with_first(replace(first, matrix=tuple((*r, 1) for r in first.matrix)), "a column more")
    yield with_first(replace(first, matrix=tuple(r[:1] for r in first.matrix)), "a column less")
    yield with_first(replace(first, matrix=((1 << 40, 1), *first.matrix[1:])), "an entry of 2**40")
    yield with_first(replace(first, matrix=()), "no matrix")
    yield with_first(replace(first, axes=first.axes[::-1]), "axes in another order")
    yield with_first(replace(first, axes=("q",) * len(first.axes)), "axes of other names")
    operators, copies = plan.choices.operators, plan.choices.copies
    for title, kept in (
        ("first operator left out", operators[1:]),
        ("operator twice", (*operators, operators[0])),
        ("operators reversed", operators[::-1]),
        ("no operators", ()),
        ("unknown operator", (("q", first), *operators[1:])),
    ):
        yield title, replace(plan, choices=replace(plan.choices, operators=kept))
    yield "no copies", replace(plan, choices=replace(plan.choices, copies=()))
    yield "copy twice", replace(plan, choices=replace(plan.choices, copies=(*copies, *copies)))
    yield "copy of an input", replace(plan, choices=replace(plan.choices, copies=(*copies, ("x", first))))


def changed_claims() -> Iterator[tuple[str, Plan]]:
    """The claim is false, or its certificate does not support it because a number in it is false."""
    plan = original()
    certificate, claim = plan.certificate, plan.certificate.claim
    assert isinstance(claim, Optimal)

    def claims(new: object, title: str) -> tuple[str, Plan]:
        return title, replace(plan, certificate=replace(certificate, claim=new))

    for change in (-1, 1, -claim.cost, -2 * claim.cost, 1 << 80):
        yield claims(Optimal(claim.solution, claim.cost + change), f"cost {change:+}")
        yield claims(
            WithinGap(claim.solution, claim.cost + change, min(claim.cost, claim.cost + change)),
            f"cost {change:+} within a gap",
        )
    yield claims(WithinGap(claim.solution, claim.cost, claim.cost + 1), "bound above the cost")
    yield claims(Optimal(tuple(a + 1 for a in claim.solution), claim.cost), "other solution")
    yield claims(Optimal(claim.solution[:-1], claim.cost), "shorter solution")
    yield claims(Optimal((*claim.solution, 0), claim.cost), "longer solution")
    yield claims(Optimal(tuple(-1 for _ in claim.solution), claim.cost), "negative solution")
    yield claims(LowerBound(claim.cost), "choices without a solution")
    yield claims(Infeasible((), (), None, None), "infeasible with choices")
    yield claims(Infeasible((), (), 1, claim.solution), "infeasible with a witness and no limit")
    for digest in ("0" * 64, hashlib.sha256(b"").hexdigest()):
        yield f"problem {digest[:6]}", replace(plan, certificate=replace(certificate, problem_sha256=digest))
    proof = certificate.proof
    if isinstance(proof, Elimination):
        for k in range(len(proof.messages)):  # a message raised by 2**40 is above every sum of this problem
            messages = (*proof.messages[:k], np.asarray(proof.messages[k] + (1 << 40)), *proof.messages[k + 1 :])
            yield (
                f"message {k} raised",
                replace(plan, certificate=replace(certificate, proof=replace(proof, messages=messages))),
            )
        yield "order cut", replace(plan, certificate=replace(certificate, proof=replace(proof, order=proof.order[:-1])))
    if isinstance(proof, Dual):
        yield (
            "messages cut",
            replace(plan, certificate=replace(certificate, proof=replace(proof, to_u=proof.to_u[:-1]))),
        )
        yield "denominator 0", replace(plan, certificate=replace(certificate, proof=replace(proof, denominator=0)))


def changed_totals() -> Iterator[tuple[str, Plan]]:
    """The totals of a movement follow from the choices: any other number is false."""
    for plan in (original(), partial()):
        for n, m in enumerate(plan.communication):
            for part, value in (
                ("tensor", "q"),
                ("writer", "q"),
                ("reader", "q"),
                ("position", m.position + 1),
                ("collective", "all-to-all, fast"),
                *(
                    (name, tuple(x + (i == level) for i, x in enumerate(getattr(m, name))))
                    for name in ("loads", "phases")
                    for level in range(2)
                ),
                ("loads", m.loads[:1]),
                ("phases", (*m.phases, 0)),
                ("loads", (1 << 62, 1 << 62)),
            ):
                wrong = (*plan.communication[:n], replace(m, **{part: value}), *plan.communication[n + 1 :])
                yield f"{m.tensor}: {part} {value}", replace(plan, communication=wrong)
            yield (
                f"{m.tensor}: left out",
                replace(plan, communication=(*plan.communication[:n], *plan.communication[n + 1 :])),
            )
            yield (
                f"{m.tensor}: twice",
                replace(plan, communication=(*plan.communication[:n], m, m, *plan.communication[n + 1 :])),
            )
        yield "nothing moves", replace(plan, communication=())


@pytest.mark.parametrize(
    ("maker", "step"),
    [
        (changed_parts, 1),
        (changed_choices, 1),
        (changed_claims, 1),
        *some_or_all((changed_totals, 3), (changed_totals, 1)),
    ],
)
def test_changed_plans_are_rejected(maker: Callable[[], Iterator[tuple[str, Plan]]], step: int) -> None:
    """Every third total in an ordinary run: a movement has 14 changes, so that each kind of them is met somewhere."""
    seen = set()
    for name, plan in islice(maker(), 0, None, step):
        data = write_plan(None, plan)
        assert exit_code(data) in (3, 10), name
        seen.add(data)
    assert len(seen) > 20


# Changes of the JSON text, hashed again: shapes and sizes that no plan of ours has.


def set_at(path: tuple[str | int, ...], value: Json) -> Callable[[Json], None]:
    def change(document: Json) -> None:
        for step in path[:-1]:
            document = document[step]
        document[path[-1]] = value

    return change


def delete_at(path: tuple[str | int, ...]) -> Callable[[Json], None]:
    def change(document: Json) -> None:
        for step in path[:-1]:
            document = document[step]
        del document[path[-1]]

    return change


def many_axes(document: Json) -> None:
    """5,000 axes of extent 1 in one operator: fine as index notation, absurd as a placement."""
    op = document["operators"][0]
    extra = [[f"a{i}", 1, "sum", True] for i in range(5000)]
    op["axes"] += extra


def all_extents(n: int) -> Callable[[Json], None]:
    def change(document: Json) -> None:
        for t in document["tensors"]:
            t["shape"] = [n for _ in t["shape"]]
            t.pop("source_shape", None)
        for op in document["operators"]:
            for axis in op["axes"]:
                axis[1] = n

    return change


VALUES: list[Json] = [
    None,
    True,
    1.5,
    float("nan"),
    float("inf"),
    -1,
    0,
    1 << 63,
    10**40,
    "",
    "x" * 20_000,
    [],
    {},
    [[[[]]]],
    [None],
    {"a": 1},
]
PLAN_FIELDS: list[tuple[str | int, ...]] = [
    ("format",),
    ("space",),
    ("memory_limit",),
    ("problem_sha256",),
    ("graph_sha256",),
    ("machine_sha256",),
    ("decisions",),
    ("decisions", "operators"),
    ("decisions", "operators", 0),
    ("decisions", "operators", 0, 0),
    ("decisions", "operators", 0, 1),
    ("decisions", "operators", 0, 2),
    ("decisions", "operators", 0, 2, 0),
    ("decisions", "operators", 0, 2, 0, 0),
    ("decisions", "copies"),
    ("communication",),
    ("communication", 0),
    ("communication", 0, 5),
    ("communication", 0, 5, 0),
    ("versions",),
]
GRAPH_FIELDS: list[tuple[str | int, ...]] = [
    ("format",),
    ("tensors",),
    ("tensors", 0),
    ("tensors", 0, "name"),
    ("tensors", 0, "shape"),
    ("tensors", 0, "shape", 0),
    ("tensors", 0, "dtype"),
    ("tensors", 0, "role"),
    ("operators",),
    ("operators", 0),
    ("operators", 0, "name"),
    ("operators", 0, "function"),
    ("operators", 0, "axes"),
    ("operators", 0, "axes", 0),
    ("operators", 0, "axes", 0, 0),
    ("operators", 0, "axes", 0, 1),
    ("operators", 0, "inputs"),
    ("operators", 0, "inputs", 0),
    ("operators", 0, "inputs", 0, 1),
    ("operators", 0, "inputs", 0, 1, 0),
    ("operators", 0, "output"),
    ("outputs",),
]
MACHINE_FIELDS: list[tuple[str | int, ...]] = [
    ("format",),
    ("level",),
    ("level", 0),
    ("level", 0, "size"),
    ("level", 0, "bandwidth"),
    ("level", 0, "latency"),
    ("device_class",),
    ("device_class", 0, "bandwidth"),
    ("device_class", 0, "memory"),
    ("device_class", 0, "peaks"),
    ("sources",),
]
INDEX = {"terms": [["b", 1], ["k", 1]], "offset": 0}
SPECIAL: list[tuple[str, str, Callable[[Json], None]]] = [
    ("graph.json", "5000 axes", many_axes),
    *(("graph.json", f"all extents {n}", all_extents(n)) for n in (1, 7, 1 << 31, 1 << 62, 10**30)),
    *(
        ("graph.json", f"offset {n}", set_at(("operators", 0, "inputs", 0, 1, 0), {**INDEX, "offset": n}))
        for n in (10**30, -(10**30), 1 << 62, "1", 0.5)
    ),
    *(
        ("graph.json", f"coefficient {n}", set_at(("operators", 0, "inputs", 0, 1, 0), {**INDEX, "terms": [["b", n]]}))
        for n in (0, -1, 10**30, 1 << 62)
    ),
    ("graph.json", "unknown axis", set_at(("operators", 0, "inputs", 0, 1, 0), "q")),
    ("graph.json", "operators reversed", lambda d: d["operators"].reverse()),
    ("graph.json", "operator twice", lambda d: d["operators"].append(d["operators"][0])),
    ("graph.json", "tensor twice", lambda d: d["tensors"].append(d["tensors"][0])),
    ("graph.json", "function unknown", set_at(("operators", 0, "function"), "scatter_add")),
    *(("machine.json", f"{n} nodes", set_at(("level", 0, "size"), n)) for n in (3, 4096, 1 << 16, 10**9, 1 << 64)),
    *(
        ("machine.json", f"bandwidth {n}", set_at(("level", 0, "bandwidth"), n))
        for n in ("0", "1/3", "-1", "1e9", "9" * 80, "1/" + "9" * 80, "9" * 5000)
    ),
    (
        "machine.json",
        "9 levels",
        lambda d: d.update(level=[{**d["level"][0], "name": f"l{i}", "size": 1 << 16} for i in range(9)]),
    ),
    ("machine.json", "no float32 peak", delete_at(("device_class", 0, "peaks", "float32"))),
    ("plan.json", "field unknown", set_at(("more",), 1)),
    (
        "plan.json",
        "one decision ten thousand times",
        lambda d: d["decisions"].update(operators=d["decisions"]["operators"][:1] * 10_000),
    ),
    ("plan.json", "a million entries", set_at(("decisions", "operators", 0, 2, 0), [1] * 1_000_000)),
]


def texts(plan: Plan) -> dict[str, Member]:
    members = read_container(write_plan(None, plan))
    return {name: value for name, value in members.items() if name != "manifest.json"}


def rehashed(members: dict[str, Member]) -> bytes:
    """The container with hashes of graph and machine in plan.json as a writer would put them, where that is
    possible.
    """
    head = json.loads(members["plan.json"])  # type: ignore[arg-type]
    for name, read in (("graph", Graph.from_json), ("machine", Machine.from_json)):
        text = members[f"{name}.json"]
        assert isinstance(text, bytes)
        try:
            digest = read(text.decode()).sha256()
        except (
            ArithmeticError,
            AttributeError,
            LookupError,
            RecursionError,
            TypeError,
            ValueError,
        ):  # here only a hash is wanted
            digest = hashlib.sha256(text).hexdigest()
        if isinstance(head, dict) and f"{name}_sha256" in head and head[f"{name}_sha256"] is not None:
            head[f"{name}_sha256"] = digest
    return write_container(
        None, {**members, "plan.json": json.dumps(head, sort_keys=True, separators=(",", ":")).encode()}
    )


def changed_texts() -> Iterator[Mutant]:
    base = texts(original())
    for member, fields in (("plan.json", PLAN_FIELDS), ("graph.json", GRAPH_FIELDS), ("machine.json", MACHINE_FIELDS)):
        raw = base[member]
        assert isinstance(raw, bytes)
        for path in fields:
            before = json.loads(raw)
            for step in path:
                before = before[step]
            # `null` is a memory limit; an empty list is no change where it was empty, and 0 none where it was 0
            for value in VALUES if path != ("memory_limit",) else VALUES[1:]:
                if value == before and type(value) is type(before) or (path == ("versions",) and value == {}):
                    continue
                if path[-1] == "latency" and value == "":
                    continue
                document = json.loads(raw)
                set_at(path, value)(document)
                if member == "plan.json" and path[-1] in ("graph_sha256", "machine_sha256"):
                    yield Mutant(
                        f"{member} {path} = {value!r:.20}",
                        write_container(None, {**base, member: json.dumps(document).encode()}),
                    )
                else:
                    yield Mutant(
                        f"{member} {path} = {value!r:.20}", rehashed({**base, member: json.dumps(document).encode()})
                    )
            if isinstance(path[-1], str) and path[-1] not in ("source_shape",):
                document = json.loads(raw)
                delete_at(path)(document)
                yield Mutant(f"{member} without {path}", rehashed({**base, member: json.dumps(document).encode()}))
    for member, name, change in SPECIAL:
        document = json.loads(base[member])  # type: ignore[arg-type]
        change(document)
        yield Mutant(f"{member} {name}", rehashed({**base, member: json.dumps(document).encode()}), watched=True)
    for member in ("plan.json", "graph.json", "machine.json", "certificate.json"):
        raw = base[member]
        assert isinstance(raw, bytes)
        for name, text in (
            ("deep list", b"[" * 100_000 + b"]" * 100_000),
            ("deep object", b'{"a":' * 100_000 + b"1" + b"}" * 100_000),
            ("empty", b""),
            ("cut", raw[: len(raw) // 2]),
            ("a list", b"[]"),
            ("null", b"null"),
            ("bytes", bytes(range(256))),
            ("an integer of 100,000 digits", b"9" * 100_000),
            ("repeated key", raw[:-1] + b',"format":"x"}'),
            ("two documents", raw + raw),
            ("not ASCII", raw.replace(b"float32", "flöat32".encode())),
            ("surrogate", raw.replace(b"format", b"\\ud800")),
        ):
            if text != raw:
                yield Mutant(f"{member} {name}", write_container(None, {**base, member: text}), watched=True)
        yield Mutant(f"{member} is an array", write_container(None, {**base, member: np.arange(3)}))
        yield Mutant(f"no {member}", write_container(None, {k: v for k, v in base.items() if k != member}))


@pytest.mark.parametrize("step", some_or_all(10, 1))
def test_changed_texts_are_rejected(step: int) -> None:
    """An ordinary run takes a tenth of the values of each field; what is left out, or is no JSON, always."""
    count = 0
    for k, mutant in enumerate(changed_texts()):
        if k % step and " = " in mutant.name:
            continue
        if mutant.watched:
            tracemalloc.start()
        try:
            assert exit_code(mutant.data) in (3, 10), mutant.name
            assert not mutant.watched or tracemalloc.get_traced_memory()[1] < MEMORY, mutant.name
        finally:
            tracemalloc.stop()
        count += 1
    assert count > 600 // step


def test_truncated_files_are_rejected() -> None:
    data = write_plan(None, original())
    for size in {0, 1, 3, 21, 22, len(data) - 1, *range(0, len(data), 97)}:
        assert exit_code(data[:size]) == 3, size
    for tail in (b"\0", b"PK\5\6", data):
        assert exit_code(data + tail) == 3


def test_flipped_bits_are_rejected_or_change_nothing() -> None:
    """A zip file has bytes that mean nothing (version made by, attributes): then the content, and so the identity,
    is the same.
    """
    data = write_plan(None, original())
    same, rng = identity(read_container(data)), random.Random(3)
    rejected = 0
    for _ in range(300):
        at = rng.randrange(len(data))
        flipped = data[:at] + bytes([data[at] ^ 1 << rng.randrange(8)]) + data[at + 1 :]
        try:
            checked = check_plan(flipped, samples=10)
        except ContainerError:
            rejected += 1
        else:
            assert checked.identity == same, at
    assert rejected > 250


def test_bombs_and_strangers_are_rejected() -> None:
    members = dict(encode_plan(original()))
    assert exit_code(write_container(None, {**members, "certificate.i64": np.zeros(1 << 20, dtype=np.int64)})) in (
        3,
        10,
    )
    assert exit_code(write_container(None, {"plan.json": members["plan.json"]})) == 3
    assert exit_code(write_container(None, {})) == 3
    for junk in (b"", b"PK", b"plan", bytes(1000), b"PK\5\6" + bytes(18)):
        assert exit_code(junk) == 3


def test_weaker_true_claims_are_not_refuted() -> None:
    """A true claim with a weaker certificate is not false: it is undecided, or proved as the weaker claim it is."""
    plan = original()
    claim = plan.certificate.claim
    assert isinstance(claim, Optimal)
    weaker = replace(
        plan, certificate=replace(plan.certificate, claim=WithinGap(claim.solution, claim.cost, claim.cost - 1))
    )
    assert exit_code(write_plan(None, weaker)) == 0
    assert exit_code(write_plan(None, replace(plan, certificate=replace(plan.certificate, proof=Open())))) == 5
    assert read_plan(write_plan(None, weaker))[0] != plan
