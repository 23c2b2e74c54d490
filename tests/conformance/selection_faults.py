"""Selection certificates with one fault each: what is false in them, and what is not well formed."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import numpy as np

from conformance.selection_problems import (
    ALONG,
    BEST,
    CHAIN,
    EVERY,
    LEFT,
    LIMITED,
    LOG,
    MESSAGES,
    PACK,
    PACKED,
    ROUNDED,
    STEPS,
    TIGHT,
    ZOO,
    ZOO_BEST,
    F,
    certified,
    dual,
    exact,
    ints,
    leaves,
)
from conformance.writing import Head, Suite, changed, container, manifest, plain, retold, zipped
from shardproof.models.problem.claims import Infeasible, Optimal, SelectionClaim, WithinGap
from shardproof.models.problem.selection_problem import SelectionProblem
from shardproof.proofs.container.canonical import canonical
from shardproof.proofs.selection.certificates import (
    Dual,
    Point,
    Record,
    Reduced,
    RowConflict,
    Split,
)
from shardproof.proofs.selection.presolve_log import Rule


def refuted(out: Suite) -> None:
    def add(name: str, sentence: str, p: SelectionProblem, claim: SelectionClaim, proof: Record, fault: str) -> None:
        out.add(name, "refuted", sentence, container(certified(p, claim, proof)), f"problems/{p.name}.json", fault)

    best = Optimal(BEST, 12)
    add(
        "selection-wrong-cost",
        "claim: cost 11 is not the cost 12 of the solution",
        CHAIN,
        Optimal(BEST, 11),
        MESSAGES,
        "the cost is one too low",
    )
    add(
        "selection-forbidden-solution",
        "edge 0 (0, 1) is at a forbidden pair",
        CHAIN,
        Optimal((1, 2, 0), 12),
        MESSAGES,
        "the solution uses a forbidden pair",
    )
    add(
        "selection-over-the-limit",
        "usage 11 at step 1 is above the limit 9",
        LIMITED,
        Optimal(BEST, 12),
        exact(LIMITED, ALONG),
        "the solution does not fit the limit",
    )
    add(
        "selection-short-solution",
        "has 2 choices for 3 vertices",
        CHAIN,
        Optimal((1, 1), 12),
        MESSAGES,
        "a choice is missing",
    )
    add(
        "selection-no-such-choice",
        "choice 2 is not in 0..1",
        CHAIN,
        Optimal((2, 1, 0), 12),
        MESSAGES,
        "the solution names a choice that is not there",
    )
    add(
        "selection-bound-above-cost",
        "lower bound 13 is above the cost 12",
        CHAIN,
        WithinGap(BEST, 12, 13),
        MESSAGES,
        "the bound is above the cost",
    )
    add(
        "selection-cheaper-solution-inside",
        "the proof itself holds a feasible solution of cost 12",
        CHAIN,
        Optimal((0, 0, 1), 18),
        leaves(EVERY),
        "the proof holds a cheaper solution",
    )
    add(
        "selection-not-infeasible",
        "the proof itself holds a feasible solution",
        LIMITED,
        Infeasible((1,), (), None, None),
        leaves(EVERY),
        "there are solutions, and the proof holds one",
    )
    add(
        "selection-elimination-message",
        "message at (1,) is 5, above the sum of the consumed tables",
        CHAIN,
        best,
        replace(MESSAGES, messages=(ints(3, 0, 12), ints(2, 5), np.array(2))),
        "one entry of a message is too large",
    )
    add(
        "selection-elimination-infinite",
        "message at (2,) is 1152921504606846976, above the sum",
        CHAIN,
        best,
        replace(MESSAGES, messages=(ints(3, 0, F), ints(2, 4), np.array(2))),
        "a message is infinite where its sum is not",
    )
    add(
        "selection-elimination-order",
        "order must name each of the 3 vertices once",
        CHAIN,
        best,
        replace(MESSAGES, order=(0, 1, 1)),
        "a vertex is eliminated twice, another never",
    )
    add(
        "selection-elimination-scope",
        "leaves out [1] of the consumed tables",
        CHAIN,
        best,
        replace(MESSAGES, scopes=((), (2,), ()), messages=(np.array(0), ints(2, 4), np.array(2))),
        "a scope leaves out a neighbour",
    )
    add(
        "selection-elimination-shape",
        "message has shape (2,), its scope needs (3,)",
        CHAIN,
        best,
        replace(MESSAGES, messages=(ints(3, 0), ints(2, 4), np.array(2))),
        "a message is too short",
    )
    add(
        "selection-dual-denominator",
        "denominator 0 is not a positive integer",
        CHAIN,
        best,
        dual(denominator=0),
        "the denominator is 0",
    )
    add(
        "selection-dual-shape",
        "message has shape (3,), the table needs (2,)",
        CHAIN,
        best,
        replace(dual(), to_u=(ints(-3, 0, 0), ints(-4, -2, -12))),
        "a message is too long",
    )
    add(
        "selection-dual-no-limit",
        "multiplies resource rows, but the problem has no limit",
        CHAIN,
        best,
        dual(multipliers=((0, 1),)),
        "multiplies rows of a problem without a limit",
    )
    add(
        "selection-dual-negative-multiplier",
        "multiplier -1 of step 0 is not positive",
        PACK,
        PACKED,
        Dual((), (), 6, ((0, -1),)),
        "a multiplier is negative",
    )
    add(
        "selection-dual-steps",
        "steps of multipliers do not ascend",
        PACK,
        PACKED,
        Dual((), (), 6, ((0, 5), (0, 1))),
        "a step occurs twice",
    )
    add(
        "selection-dual-modulus",
        "modulus 0 is not positive",
        PACK,
        PACKED,
        Dual((), (), rounded=(replace(ROUNDED, modulus=0),)),
        "the modulus is 0",
    )
    add(
        "selection-dual-reference",
        "a reference choice does not exist",
        PACK,
        PACKED,
        Dual((), (), rounded=(replace(ROUNDED, reference=ints(2, 3)),)),
        "a reference choice is not there",
    )
    add(
        "selection-split-hole",
        "are in no part",
        CHAIN,
        best,
        Split(1, ((0,), (1,)), (leaves(EVERY), leaves(EVERY))),
        "choice 2 is in no part",
    )
    add(
        "selection-split-empty",
        "is empty or holds a choice outside 0..2",
        CHAIN,
        best,
        Split(1, ((0, 1, 2), ()), (MESSAGES, MESSAGES)),
        "a part is empty",
    )
    add(
        "selection-split-children",
        "has 2 parts and 1 children",
        CHAIN,
        best,
        Split(1, ((0, 1), (2,)), (MESSAGES,)),
        "a child is missing",
    )
    add(
        "selection-point",
        "more than one choice is left",
        CHAIN,
        best,
        Split(1, ((0,), (1,), (2,)), (Point(),) * 3),
        "a point where choices are left",
    )
    add(
        "selection-conflict",
        "rows need 5, which is not above 9",
        LIMITED,
        Infeasible((1,), (0, 1), None, None),
        RowConflict(((1, 1),)),
        "the rows can be met",
    )
    add(
        "selection-conflict-empty",
        "names no resource row",
        TIGHT,
        Infeasible((), (), None, None),
        RowConflict(()),
        "no row is named",
    )
    add(
        "selection-infeasible-strange",
        "claim: names step 3, where the proof finds no conflict",
        TIGHT,
        Infeasible((1, 3), (0, 1), None, None),
        RowConflict(((1, 1),)),
        "a step is named that the proof does not meet",
    )
    add(
        "selection-infeasible-witness",
        "least limit 6 is not the usage 5 of its witness",
        TIGHT,
        Infeasible((1,), (0, 1), 6, (0, 2, 0)),
        RowConflict(((1, 1),)),
        "the least limit is not the witness's peak",
    )
    add(
        "selection-infeasible-fits",
        "its own witness is feasible",
        LIMITED,
        Infeasible((1,), (0, 1), 6, (0, 0, 0)),
        RowConflict(((1, 1),)),
        "the witness fits the limit",
    )
    add(
        "selection-fine-without",
        "asks for the fine part of costs that have none",
        CHAIN,
        best,
        replace(exact(CHAIN, ALONG), fine=True),
        "there is no fine part",
    )
    _refuted_presolve(out)


def _refuted_presolve(out: Suite) -> None:
    """One entry of the log is replaced, or put in front, or the end is said wrong."""

    def add(name: str, sentence: str, at: int, entry: tuple[int, int, int, int], fault: str) -> None:
        log = LOG.copy()
        log[at] = entry
        proof = Reduced(log, STEPS, LEFT)
        data = container(certified(ZOO, Optimal(ZOO_BEST, 13), proof))
        out.add(f"selection-presolve-{name}", "refuted", sentence, data, "problems/zoo.json", fault)

    add("arc", "no choice leaves", 0, (Rule.ARC, 2, -1, 0), "every choice has an allowed cost")
    add("fix", "needs one choice, of allowed cost", 1, (Rule.FIX, 2, 0, 0), "two choices are left")
    add("merge", "has not exactly one partner", 2, (Rule.MERGE, 3, 4, 0), "every pair is allowed")
    add("follow", "has another neighbour", 3, (Rule.FOLLOW, 4, 3, 0), "the vertex has two neighbours")
    add(
        "separable",
        "table is not a sum of a row and a column term",
        2,
        (Rule.SEPARABLE, 3, 4, 0),
        "the table is no such sum",
    )
    add(
        "dominated",
        "choice 1 is not dominated by 0",
        5,
        (Rule.DOMINATED, 5, 1, 0),
        "the choice that leaves is the better one",
    )
    add("eliminate", "usage depends on the choice", 5, (Rule.ELIMINATE, 6, 0, 0), "the usage depends on the choice")
    add("overfull", "choice 0 of vertex 6 fits at step 0", 6, (Rule.OVERFULL, 6, 0, 0), "the choice fits")
    add("rows", "list of steps does not exist", 7, (Rule.ROWS, 1, 0, 0), "there is no such list of steps")
    add("gone", "vertex 0 does not exist any more", 8, (Rule.ELIMINATE, 0, 0, 0), "the vertex has left")
    add("rule", "unknown rule", 9, (max(Rule) + 1, 0, 0, 0), "there is no such rule")


def malformed(out: Suite) -> None:
    def add(name: str, sentence: str, data: bytes, fault: str, problem: str = "problems/chain.json") -> None:
        out.add(f"selection-{name}", "malformed", sentence, data, problem, fault)

    whole = certified(CHAIN, Optimal(BEST, 12), MESSAGES)
    data = container(whole)

    def head(name: str, sentence: str, change: Callable[[Head], object], fault: str) -> None:
        add(name, sentence, container(changed(whole, "certificate.json", change)), fault)

    def text(name: str, sentence: str, old: bytes, new: bytes, fault: str) -> None:
        add(name, sentence, container(retold(whole, "certificate.json", old, new)), fault)

    add("cut-off", "is not a zip file, or is cut off", data[:-7], "the last bytes are missing")
    add("bytes-behind", "bytes after its end", data + b"more", "bytes follow the end")
    add("bytes-before", "end record is inconsistent", b"#!" + data, "bytes stand before the first member")
    flipped = bytearray(data)
    flipped[data.index(b"shardproof-selection-certificate")] ^= 1
    add("bit-flipped", "size or checksum differs from its header", bytes(flipped), "one bit of a member is flipped")
    add(
        "no-manifest", "has no manifest.json", zipped([(n, plain(v)) for n, v in whole.items()]), "there is no manifest"
    )
    listing = manifest(whole)
    listing["members"]["certificate.i64"]["sha256"] = "0" * 64
    add("hash", "content does not have the listed sha256", container(whole, listing), "the manifest has another hash")
    listing = manifest(whole)
    listing["members"]["certificate.i64"]["shape"] = [3]
    add("manifest-shape", "does not fit", container(whole, listing), "the manifest has another shape")
    listing = manifest(whole)
    listing["members"]["more.json"] = listing["members"]["certificate.json"]
    add(
        "listed-not-there", "is listed but not there", container(whole, listing), "the manifest lists a member too many"
    )
    extra = {**whole, "stowaway.json": b"{}"}
    add(
        "there-not-listed", "is not listed in the manifest", container(extra, manifest(whole)), "a member is not listed"
    )
    listing = {**manifest(whole), "format": "shardproof-container/2"}
    add(
        "container-format",
        "this version reads 'shardproof-container/1' only",
        container(whole, listing),
        "a later format",
    )
    add(
        "name",
        "name must be a plain relative path",
        container({**whole, "../x": b"{}"}),
        "a name leads out of the folder",
    )
    double = [(n, plain(v)) for n, v in whole.items()]
    listed = [("manifest.json", canonical(manifest(whole)))]
    add("member-twice", "occurs twice", zipped([*double, double[0], *listed]), "a member occurs twice")
    add("kind", "holds nothing that this version knows", container({"other.json": b"{}"}), "no member that is known")
    add(
        "another-problem",
        "give that problem's file too",
        data,
        "the problem beside it is another one",
        "problems/shared.json",
    )
    text("float", "1.0 is not an integer", b'"cost":12', b'"cost":1.0', "a number is written with a fraction")
    text("flag-for-number", "must be an integer", b'"cost":12', b'"cost":true', "true for a number")
    text("key-twice", "occurs twice in one object", b'"cost":12', b'"cost":12,"cost":12', "a key occurs twice")
    text("not-json", "is not JSON", b'"cost":12', b'"cost":', "a value is missing")
    head(
        "format",
        "this version reads",
        lambda h: h.update(format="shardproof-selection-certificate/2"),
        "a later format",
    )
    head("field-unknown", "unknown field 'note'", lambda h: h.update(note=1), "an unknown field")
    head("field-missing", "field 'shapes' is missing", lambda h: h.pop("shapes"), "a field is missing")
    head("claim-unknown", "unknown claim 'best'", lambda h: h["claim"].update(kind="best"), "an unknown claim")
    head(
        "record-unknown", "unknown record 'guess'", lambda h: h["records"][0].update(kind="guess"), "an unknown record"
    )
    head(
        "problem-hash",
        "must be 64 hexadecimal digits",
        lambda h: h.update(problem_sha256=h["problem_sha256"].upper()),
        "capital digits",
    )
    head(
        "reference",
        "integer is out of range",
        lambda h: h["claim"].update(solution=99),
        "refers to an array that is not there",
    )
    head(
        "shapes",
        "does not fit the stored numbers",
        lambda h: h["shapes"].__setitem__(0, [400]),
        "a shape is larger than what is stored",
    )
    head(
        "stray-record",
        "belong to no parent",
        lambda h: h["records"].append({"kind": "point"}),
        "a record has no parent",
    )
    head("no-record", "the proof is empty", lambda h: h["records"].clear(), "there is no record")
    split = certified(CHAIN, Optimal(BEST, 12), leaves(EVERY))

    def children(numbers: list[int]) -> bytes:
        return container(changed(split, "certificate.json", lambda h: h["records"][0].update(children=numbers)))

    add("two-parents", "has two parents", children([1, 2]), "a record is the child of two")
    add("child-before", "integer is out of range", children([0, 1]), "a record is its own child")
