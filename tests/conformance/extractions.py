"""Extractions of the conformance suite: a small e-graph with a circle and a shared class, and proofs by hand.

    root  = l(left, shared) | r(right, shared) | twice(left, right)      0, 0, 1
    left  = a | back(root)                                               3, 0
    right = b                                                            4
    shared = s                                                           5

Cheapest: twice, a, b: 8; l with a and s costs 8 too, r with b and s 9.
"""

from __future__ import annotations

import copy
import json
from collections.abc import Callable

from conformance.writing import Head, Suite, changed, container
from shardproof.models.egraphs.extraction_gym import from_extraction_gym
from shardproof.proofs.egraphs.certificate import (
    ABSENT,
    Cut,
    Dual,
    Extraction,
    ExtractionCertificate,
    NoExtraction,
    Record,
    Split,
)
from shardproof.proofs.egraphs.file import EXTRACTION, encode_extraction


def node(cost: int, eclass: str, *children: str) -> Head:
    return {"op": "f", "cost": cost, "eclass": eclass, "children": list(children)}


GRAPH: Head = {
    "nodes": {
        "l": node(0, "root", "a", "s"),
        "r": node(0, "root", "b", "s"),
        "twice": node(1, "root", "a", "b"),
        "a": node(3, "left"),
        "back": node(0, "left", "l"),
        "b": node(4, "right"),
        "s": node(5, "shared"),
    },
    "root_eclasses": ["root"],
}
L, R, TWICE, A, BACK, B, S = range(7)
ROOT, LEFT, SHARED, RIGHT = 0, 1, 3, 2
CIRCLE: Head = {"nodes": {"f": node(1, "c", "g"), "g": node(1, "d", "f")}, "root_eclasses": ["c"]}
SIGNED: Head = {
    "nodes": {"f": node(2, "c", "x"), "g": node(0, "c"), "x": node(-3, "d"), "y": node(-9, "e")},
    "root_eclasses": ["c", "gone"],
}


def problems() -> dict[str, bytes]:
    """Files of the e-graphs."""
    return {
        f"problems/{name}.json": json.dumps(graph, indent=1).encode() + b"\n"
        for name, graph in (("egraph", GRAPH), ("egraph-circle", CIRCLE), ("egraph-signed", SIGNED))
    }


def digest(graph: Head) -> str:
    return from_extraction_gym(copy.deepcopy(graph), "").sha256()


def proof(
    chosen: tuple[int, ...],
    cost: int,
    records: tuple[Record, ...],
    *,
    bound: int | None = None,
    cuts: tuple[Cut, ...] = (),
    dominated: tuple[tuple[int, int], ...] = (),
    graph: Head = GRAPH,
) -> ExtractionCertificate:
    lower = cost if bound is None else bound
    return ExtractionCertificate(
        digest(graph), Extraction(chosen, cost, lower, bound is None), dominated, cuts, records
    )


LEAF = Dual(1, (), (), ())
ROWS = Dual(1, ((ROOT, LEFT, 3), (ROOT, RIGHT, 4), (ROOT, SHARED, 4)), (), ())
"""theta: l 0 + 3 + 4, r 0 + 4 + 4, twice 1 + 3 + 4, a 0, back -3, b 0, s 1.  Without the cut a circle is free."""
CUT = Cut(ROOT, (ROOT, LEFT))
"""D: r and a; l and twice have left, back has root."""
TIGHT = Dual(1, ((ROOT, RIGHT, 4), (ROOT, SHARED, 5)), (), ((0, 3),))
"""theta: l 5 + 3, r 4 + 5 - 3 + 3, twice 1 + 4 + 3, a 0, back 0, b 0, s 0."""
CASES = (Split(ROOT, ((L,), (R,), (TWICE,)), (1, 2, 3)), TIGHT, TIGHT, TIGHT)
BEST = (TWICE, A, B)


def suite() -> Suite:
    out = Suite("extraction")

    def add(
        name: str, verdict: str, sentence: str, c: ExtractionCertificate, fault: str = "", at: str = "egraph"
    ) -> None:
        data = container(encode_extraction(c))
        out.add(f"extraction-{name}", verdict, sentence, data, f"problems/{at}.json", fault)

    add("cut", "proved", "Optimal      proved; cost 8; 1 roots", proof(BEST, 8, (TIGHT,), cuts=(CUT,)))
    add("tie", "proved", "Optimal      proved; cost 8", proof((L, A, S), 8, (TIGHT,), cuts=(CUT,)))
    add(
        "gap",
        "proved",
        "WithinGap    proved; cost 9; lower bound 8",
        proof((R, B, S), 9, (TIGHT,), bound=8, cuts=(CUT,)),
    )
    add("cases", "proved", "Optimal      proved; cost 8", proof(BEST, 8, CASES, cuts=(CUT,)))
    fixing = (Dual(1, TIGHT.children, (), TIGHT.cuts, 1), LEAF)
    add("fixed", "proved", "Optimal      proved; cost 8", proof(BEST, 8, fixing, cuts=(CUT,)))
    absent = (Split(RIGHT, ((B,), (ABSENT,)), (1, 2)), TIGHT, TIGHT)
    add("absent", "proved", "Optimal      proved; cost 8", proof(BEST, 8, absent, cuts=(CUT,)))
    thirds = Dual(3, ((ROOT, RIGHT, 12), (ROOT, SHARED, 13)), (), ((0, 9),))
    add("rounded", "proved", "Optimal      proved; cost 8", proof(BEST, 8, (thirds,), cuts=(CUT,)))
    none = ExtractionCertificate(digest(CIRCLE), NoExtraction())
    add("none", "proved", "Infeasible   proved", none, at="egraph-circle")
    reward = Dual(1, (), ((1, 3), (2, 9)), ())
    signed = proof((0, 2), -1, (reward,), graph=SIGNED)
    add("signed", "proved", "assumed: absent-roots(1: gone)", signed, at="egraph-signed")

    def undecided(name: str, sentence: str, c: ExtractionCertificate, fault: str) -> None:
        add(name, "undecided", sentence, c, fault)

    undecided("no-cut", "a lower bound of 4, the claim says 8", proof(BEST, 8, (ROWS,)), "a circle is paid by nobody")
    part = (Split(ROOT, ((L, R), (TWICE,)), (1, 2)), LEAF, LEAF)
    undecided("open-case", "a lower bound of 5, the claim says 8", proof(BEST, 8, part), "one of the cases shows less")

    def refuted(name: str, sentence: str, c: ExtractionCertificate, fault: str, at: str = "egraph") -> None:
        add(name, "refuted", sentence, c, fault, at)

    tight = (TIGHT,)
    refuted("circle", "run in a circle", proof((L, BACK, S), 5, tight, cuts=(CUT,)), "a class needs itself")
    refuted("missing", "class 'right' is needed and has no chosen node", proof((TWICE, A), 4, tight, cuts=(CUT,)), "a needed class has no node")  # fmt: skip
    refuted("superfluous", "class 'shared' has a chosen node and is not needed", proof((*BEST, S), 13, tight, cuts=(CUT,)), "a node that nothing needs")  # fmt: skip
    refuted("twice", "class 'left' has two chosen nodes", proof((*BEST, BACK), 8, tight, cuts=(CUT,)), "two nodes of a class")  # fmt: skip
    refuted("no-node", "chosen node 7 does not exist", proof((*BEST, 7), 8, tight, cuts=(CUT,)), "a node that is not there")  # fmt: skip
    refuted("cost", "the chosen nodes cost 8, the claim says 7", proof(BEST, 7, tight, cuts=(CUT,)), "another cost")
    refuted("kind", "a claim WithinGap with lower bound 8", proof(BEST, 8, tight, bound=8, cuts=(CUT,)), "a gap of nothing")  # fmt: skip
    refuted("above", "a claim WithinGap with lower bound 9", proof(BEST, 8, tight, bound=9, cuts=(CUT,)), "the bound is above the cost")  # fmt: skip
    refuted("empty", "the proof is empty", proof(BEST, 8, ()), "there is no record")
    negative = Dual(1, ((ROOT, RIGHT, -1),), (), ())
    refuted("negative", "multipliers must not be negative", proof(BEST, 8, (negative,)), "a negative multiplier")
    refuted(
        "denominator", "the denominator must be at least 1", proof(BEST, 8, (Dual(0, (), (), ()),)), "denominator 0"
    )
    refuted("root-parent", "class 0 is a root", proof(BEST, 8, (Dual(1, (), ((ROOT, 1),), ()),)), "a parent row of a root")  # fmt: skip
    refuted("no-class", "class 9 is not there", proof(BEST, 8, (Dual(1, ((ROOT, 9, 1),), (), ()),)), "a class that is not there")  # fmt: skip
    refuted("no-cut-there", "there is no cut 1", proof(BEST, 8, (Dual(1, (), (), ((1, 1),)),), cuts=(CUT,)), "a cut that is not there")  # fmt: skip
    refuted("top", "its top must be one of them", proof(BEST, 8, tight, cuts=(Cut(SHARED, (ROOT, LEFT)),)), "the top is no class of the cut")  # fmt: skip
    refuted("order", "its classes must ascend", proof(BEST, 8, tight, cuts=(Cut(ROOT, (LEFT, ROOT)),)), "classes that do not ascend")  # fmt: skip
    uncovered = (Split(ROOT, ((L,), (TWICE,)), (1, 2)), LEAF, LEAF)
    refuted("uncovered", "node 1 of class 0 is in no part", proof(BEST, 8, uncovered), "a node is in no part")
    present = (Split(RIGHT, ((B,),), (1,)), TIGHT)
    refuted("present", "no part leaves class 2 out", proof(BEST, 8, present, cuts=(CUT,)), "absence is in no part")
    pair = proof(BEST, 8, tight, cuts=(CUT,), dominated=((A, BACK),))
    refuted("dominated", "has a child that the first has not", pair, "a node that needs more dominates")
    pair = proof(BEST, 8, tight, cuts=(CUT,), dominated=((B, S),))
    refuted("dominated-class", "no node of the same class", pair, "a node of another class dominates")
    refuted("none-there", "can be extracted", ExtractionCertificate(digest(GRAPH), NoExtraction()), "there is an extraction")  # fmt: skip
    spoken = ExtractionCertificate(digest(CIRCLE), NoExtraction(), (), (), (LEAF,))
    refuted("none-proof", "needs no proof", spoken, "a proof of what needs none", "egraph-circle")

    def malformed(name: str, sentence: str, change: Callable[[Head], object], fault: str) -> None:
        members = changed(encode_extraction(proof(BEST, 8, tight, cuts=(CUT,))), EXTRACTION, change)
        out.add(f"extraction-{name}", "malformed", sentence, container(members), "problems/egraph.json", fault)

    malformed(
        "hash", "give that e-graph's file too", lambda h: h.update(egraph_sha256="0" * 64), "about another e-graph"
    )
    malformed("format", "this version reads", lambda h: h.update(format="shardproof-extraction/0"), "an unknown format")
    malformed("claim", "unknown claim 'best'", lambda h: h["claim"].update(kind="best"), "an unknown claim")
    malformed("record", "unknown record 'sum'", lambda h: h["records"][0].update(kind="sum"), "an unknown record")
    malformed("field", "unknown field 'more'", lambda h: h.update(more=1), "an unknown field")
    malformed("pairs", "must hold tuples of 2 numbers", lambda h: h.update(dominated=[1]), "half a pair")
    malformed("tree", "record 0 names record 0", lambda h: h["records"][0].update(then=[0]), "a record that is its own child")  # fmt: skip
    malformed("orphan", "record 1 is named by none", lambda h: h["records"].append(h["records"][0]), "a record without a parent")  # fmt: skip
    return out
