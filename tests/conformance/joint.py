"""Joint plans of the conformance suite: a layer whose activation may be the epilogue of its product, on two devices.

The e-graph is written by hand; the optimum is found by trying all solutions, the proof is one exact elimination.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace
from itertools import product
from typing import Final

from conformance.plans import LAYER, MACHINE
from conformance.rules import SWAP, library
from conformance.writing import Head, Suite, changed, container
from shardproof.models.communication.choices import communications
from shardproof.models.joint.egraph import EGraph
from shardproof.models.joint.problem import JointPlanning, JointSubject, build_joint
from shardproof.models.joint.rules import FIRST as LIBRARY
from shardproof.models.joint.rules import LIBRARIES
from shardproof.models.layout.placement import space
from shardproof.models.problem.claims import Optimal
from shardproof.models.problem.selection_problem import FORBIDDEN
from shardproof.models.program.graph import Graph, Role, Tensor
from shardproof.models.program.index import Axis, access
from shardproof.models.program.operators import Operator
from shardproof.proofs.container.archive import Member
from shardproof.proofs.joint.books import Book, read_book
from shardproof.proofs.joint.derivation import Derivation, Step
from shardproof.proofs.joint.file import Jointly
from shardproof.proofs.plan.bundle import Moved, Plan, encode_plan
from shardproof.proofs.selection.certificates import Elimination, SelectionCertificate
from shardproof.verify.plan.communication import totals

MULTIPLY, RELU = LAYER.operators
FUSED = Operator(
    "z~1",
    "fused_product",
    tuple(replace(a, splittable=a.combine is None) for a in MULTIPLY.axes),
    MULTIPLY.inputs,
    replace(MULTIPLY.output, tensor="z"),
    (("epilogue", ("relu",)), ("factors", 2)),
)
EGRAPH = EGraph(LAYER, (), (MULTIPLY, FUSED, RELU))
STEP = Step(
    "fuse-epilogue",
    "z~1",
    ("relu", "product"),
    (("axis b", 64), ("axis n", 16), ("sum over k, never split", 32)),
)


def solutions(of: JointPlanning) -> list[tuple[int, tuple[int, ...]]]:
    """Every solution that is one, cheapest first."""
    p = of.problem
    every = product(*(range(p.domain_size(v)) for v in range(len(p.vertices))))
    return sorted((c, x) for x in every if (c := p.cost_of(x)) < FORBIDDEN)


def members(
    of: JointPlanning,
    cost: int,
    x: tuple[int, ...],
    steps: tuple[Step, ...] = (STEP,),
    rules: str = LIBRARY,
    books: tuple[Book, ...] = (),
) -> dict[str, Member]:
    """The plan of a solution, with the claim that it is the best."""
    n = len(of.problem.vertices)
    record = Elimination(tuple(range(n)), tuple(tuple(range(v + 1, n)) for v in range(n)), ())
    graph, choices = of.plan(x)
    moved = tuple(
        Moved(m.tensor, m.writer, m.reader, m.position, m.plan.collective(), *totals(m.plan))
        for m in communications(graph, of.machine.hierarchy, choices)
    )
    certificate = SelectionCertificate(of.problem.sha256(), Optimal(x, cost), record)
    joint = Jointly(of.egraph, Derivation(rules, of.rounds, steps, books), of.skeleton.level)
    versions = (("made", "by hand"),)
    return encode_plan(Plan(graph, of.machine, of.space.name, None, choices, moved, certificate, versions, joint))


def suite() -> Suite:
    out = Suite("joint plan")
    of = build_joint(JointSubject(EGRAPH, 1, MACHINE, space("complete"), library=LIBRARY))
    every = solutions(of)
    cost, x = every[0]
    whole = members(of, cost, x)

    def add(name: str, verdict: str, sentence: str, files: dict[str, Member], fault: str = "") -> None:
        out.add(f"joint-{name}", verdict, sentence, container(files), fault=fault)

    def head(name: str, verdict: str, sentence: str, change: Callable[[Head], object], fault: str) -> None:
        add(name, verdict, sentence, changed(whole, "joint.json", change), fault)

    add("layer", "proved", "Equivalent   proved", whole)
    for level in (2, 3):
        add(f"layer-{level}", "proved", "Equivalent   proved", _level(level))
    worse_cost, worse = every[-1]
    add("worse", "undecided", "Optimal", members(of, worse_cost, worse), "another solution is cheaper")
    add("unproved", "refuted", "no step proves operator 'z~1'", members(of, cost, x, ()), "the derivation is empty")

    def step(i: int, value: object) -> Callable[[Head], object]:
        return lambda h: h["steps"][0].__setitem__(i, value)

    head("rule", "refuted", "it has not the form of this rule", step(0, "add-many"), "another rule")
    head("unknown-rule", "refuted", "there is no such rule", step(0, "magic"), "there is no such rule")
    head("place", "refuted", "its place begins with", step(2, ["product", "relu"]), "the place is turned round")
    head("short-place", "refuted", "it has not the form", step(2, ["relu"]), "the product is missing")
    head(
        "sizes",
        "refuted",
        "it rests on other sizes",
        step(3, [["axis b", 64], ["axis n", 16], ["sum over k", 32]]),
        "the sum may be split, it says",
    )
    head("library", "refuted", "it uses the rules", lambda h: h.update(library="0" * 64), "other rules")
    head("tags", "refuted", "it is about the problem", lambda h: h.update(tags=3), "other tags than the problem's")
    head("rounds", "refuted", "it is about the problem", lambda h: h.update(rounds=2), "another claim")
    other = build_joint(JointSubject(_unequal(), 1, MACHINE, space("complete"), library=LIBRARY))
    first = solutions(other)[0]
    add("unequal", "refuted", "it has not the form", members(other, *first), "the epilogue is another map")
    head("format", "malformed", "this version reads", lambda h: h.update(format="shardproof-joint/9"), "a later format")
    head("graphs", "malformed", "is not the hash", lambda h: h.update(graphs="0" * 64), "another hash of the e-graph")
    head("operators", "malformed", "leaves out", lambda h: h["operators"].pop(), "an operator is not listed")
    for name, verdict, sentence, files, fault in (*_twice(), *_by_library()):
        add(name, verdict, sentence, files, fault)
    less = {n: v for n, v in whole.items() if n != "nodes.json"}
    add("no-nodes", "malformed", "is missing", less, "the added operators are missing")
    return out


def _elements(name: str, function: str, reads: tuple[str, ...]) -> Operator:
    """A map of elements that writes the tensor that it is named after, up to ~."""
    axes = (Axis("i", 8), Axis("j", 6))
    to = name.partition("~")[0]
    return Operator(name, function, axes, tuple(access(t, "i", "j") for t in reads), access(to, "i", "j"))


def _of(operators: tuple[Operator, ...], more: tuple[Operator, ...], given: str) -> EGraph:
    tensors = [Tensor(t, (8, 6), role=Role.INPUT) for t in given]
    tensors += [Tensor(op.output.tensor, (8, 6)) for op in operators]
    base = Graph("elements", tuple(tensors), operators, (operators[-1].output.tensor,))
    return EGraph(base, (), (*operators, *more))


EQUAL_TOO: Final = tuple(LIBRARIES)[3]
"""The rules with congruence, the fourth that there were."""
FACTS: Final = (("axis i", 8), ("axis j", 6))
Case = tuple[str, str, str, dict[str, Member], str]


def _twice() -> Iterator[Case]:
    """exp is computed twice; the sum may read one of them twice."""
    operators = _elements("a", "exp", "x"), _elements("b", "exp", "x"), _elements("y", "add", ("a", "b"))
    of = build_joint(
        JointSubject(
            _of(operators, (_elements("y~1", "add", ("a", "a")),), "x"),
            1,
            MACHINE,
            space("complete"),
            library=EQUAL_TOO,
        )
    )
    best = solutions(of)[0]
    for name, verdict, sentence, place, fault in (
        ("twice", "proved", "Equivalent   proved", ("y", "b", "a"), ""),
        ("twice-turned", "refuted", "it is not 'y' with equal operands", ("y", "a", "b"), "the pair is turned round"),
        ("twice-alone", "refuted", "pairs of equal ones", ("y", "b"), "nothing is equal to what is replaced"),
        ("twice-other", "refuted", "are not the same", ("y", "b", "y"), "another operator than the one replaced"),
    ):
        yield (
            name,
            verdict,
            sentence,
            members(of, *best, (Step("equal-operators", "y~1", place, FACTS),), EQUAL_TOO),
            fault,
        )


def _by_library() -> Iterator[Case]:
    """A product of elements turned round, by the rule `swap` of a library."""
    book = read_book(container(library([SWAP])))
    egraph = _of((_elements("m", "multiply", ("x", "v")),), (_elements("m~1", "multiply", ("v", "x")),), "xv")
    of = build_joint(JointSubject(egraph, 1, MACHINE, space("complete"), library=f"{EQUAL_TOO}+{book.identity}"))
    best = solutions(of)[0]
    step = Step("swap", "m~1", ("m",), FACTS, book.identity, ("x", "v"))

    def case(name: str, verdict: str, sentence: str, step: Step, fault: str) -> Case:
        return f"by-library{name}", verdict, sentence, members(of, *best, (step,), EQUAL_TOO, (book,)), fault

    yield case("", "proved", "Equivalent   proved", step, "")
    yield case("-rule", "refuted", "proves no such rule", replace(step, rule="swop"), "there is no such rule in it")
    yield case("-reads", "refuted", "is no mul", replace(step, reads=("x", "x")), "another pattern input")
    yield case("-place", "refuted", "write the same tensor", replace(step, place=("m", "m")), "an operator twice")
    head = changed(
        members(of, *best, (step,), EQUAL_TOO, (book,)), "joint.json", lambda h: h.update(libraries=["0" * 64])
    )
    yield "by-library-other", "malformed", "is not the identity", head, "another library than the file holds"


def _level(level: int) -> dict[str, Member]:
    of = build_joint(JointSubject(EGRAPH, 1, MACHINE, space("complete"), level=level, library=LIBRARY))
    return members(of, *solutions(of)[0])


def _unequal() -> EGraph:
    attributes = (("epilogue", ("abs",)), ("factors", 2))
    return EGraph(LAYER, (), (MULTIPLY, replace(FUSED, attributes=attributes), RELU))


__all__ = ["suite"]
