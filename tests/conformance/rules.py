"""Rule libraries of the conformance suite: a few judgements and one derivation, as their records stand in a file.

`SWAP`, `PAIR` and `PUSH` come from the libraries that ship, `WORSE` is refuted by one product, `NEVER` does not type.
"""

from __future__ import annotations

import json
from collections.abc import Callable

from conformance.writing import Head, Suite, changed, container
from shardproof.models.rewrites.semantics import semantics_hash
from shardproof.proofs.container.archive import Member
from shardproof.proofs.container.canonical import canonical

Json = list
ENTRY = '["Entries",[[[],[]],[[],[]]]]'
CLUSTERS = '[["Cluster",0,[["Member",1,[],[],[],[0],[%s]]]]]'
SAME = f'["Leaf",[["Keep"]],[["Keep"]],{CLUSTERS}]'
SWAP = (
    '["Proved",["Substitution","swap",[["Pattern","x",2,[],false],["Pattern","y",2,[],false]],'
    '[["Node","mul",[-1,-2],[]]],[["Node","mul",[-2,-1],[]]],[[0,0]],[]],'
    '[["Case",[],["Shown",[],[],[["Leaf",[["Keep"]],[["Keep"]],[["Cluster",0,[["Member",1,[],[],[],[1,0],'
    f'[{ENTRY},{ENTRY}]]]]]]]]]],[["x.0",4],["x.1",4],["y.0",4],["y.1",4]],[]]'
)
THREE = '["Entries",[[[],[]],[[],[]],[[],[]]]]'
SIZES = '[["d",2],["x.0",8],["x.0.degree",2],["x.1",4],["x.1.degree",2],["x.2",8],["x.2.degree",2]]'
PAIR = (
    '["Proved",["Substitution","pair",[["Pattern","x",3,[],true]],'
    '[["Node","partition",[-1],[["axis",0],["degree","d"]]],["Node","combine",[0],[["axis",0],["degree","d"]]]],'
    f'[],[[1,-1]],[]],[["Case",[],["Shown",[],[],[{SAME % THREE}]]]],{SIZES},[]]'
)
PUSH = (
    '["Proved",["Substitution","push",[["Pattern","x",3,[],true]],'
    '[["Node","partition",[-1],[["axis",0],["degree","d"]]],["Node","relu",[0],[]]],'
    '[["Node","relu",[-1],[]],["Node","partition",[0],[["axis",0],["degree","d"]]]],[[1,1]],[]],'
    f'[["Case",[],["Shown",[],[],[{SAME % f"""["Applied",[],[{SAME % THREE}]]"""}]]]],{SIZES},[]]'
)
DERIVED = (
    '["Derivation",["Substitution","derived",[["Pattern","x",3,[],false]],[["Node","relu",[-1],[]]],'
    '[["Node","partition",[-1],[["axis",0],["degree","d"]]],["Node","relu",[0],[]],'
    '["Node","combine",[1],[["axis",0],["degree","d"]]]],[[0,2]],[["Divides",[[1,"d"]],[[1,"x.0"]]]]],'
    '[[["Applied","pair",0,false,[["Apply",["relu",[]],[0]]],[["d","d"]]],["Applied","push",0,false,[0],[["d","d"]]]]]]'
)
WORSE = (
    '["Refuted",["Substitution","worse",[["Pattern","x",1,[],false],["Pattern","y",1,[],false]],'
    '[["Node","mul",[-1,-2],[]]],[["Node","add",[-1,-2],[]]],[[0,0]],[]],'
    '["Counterexample",[["x.0",1],["y.0",1]],[[2],[3]],"true","value"]]'
)
NEVER = (
    '["Vacuous",["Substitution","never",[["Pattern","x",2,[[1,2]],false],["Pattern","y",2,[[0,3]],false]],'
    '[["Node","matmul",[-1,-2],[]]],[["Node","matmul",[-1,-2],[]]],[[0,0]],[]],[["Case",[],["Void",null]]],null]'
)
OPEN = (
    '["Undecided",["Substitution","open",[["Pattern","x",1,[],false]],'
    '[["Node","exp",[-1],[]]],[["Node","gelu",[-1],[]]],[[0,0]],[]],"nothing was tried"]'
)


def library(judgements: list[str], derivations: list[str] | None = None) -> dict[str, Member]:
    """The members of a library of these records."""
    found, derived = [json.loads(j) for j in judgements], [json.loads(d) for d in derivations or []]
    operators = {n[1] for j in found for side in (j[1][3], j[1][4]) for n in side}
    head = {
        "format": "shardproof-rules/1",
        "title": "conformance",
        "semantics": semantics_hash(sorted(operators)),
        "origin": "by hand",
        "counts": {},
        "rules": len(found),
        "derived": len(derived),
    }
    return {"library.json": canonical(head), "rules.json": canonical(found), "derived.json": canonical(derived)}


def suite() -> Suite:
    out = Suite("rule library")

    def add(name: str, verdict: str, sentence: str, members: dict[str, Member], fault: str = "") -> None:
        out.add(f"rules-{name}", verdict, sentence, container(members), fault=fault)

    add("proved", "proved", "Rules        proved; 1 rules: 1 proved", library([SWAP]))
    add("derived", "proved", "Rules        proved; 3 rules: 1 derived, 2 proved", library([PAIR, PUSH], [DERIVED]))
    add(
        "judgements",
        "proved",
        "Judgements   proved; 3 rules: 1 proved, 1 refuted, 1 vacuous",
        library([SWAP, WORSE, NEVER]),
    )
    add("refutation", "proved", "Refutations  proved; 1 rules: 1 refuted", library([WORSE]))
    add(
        "open", "undecided", "open: nothing was tried (1 of 2)", library([SWAP, OPEN]), "nothing is claimed of one rule"
    )
    add("empty", "undecided", "holds no rule", library([]), "there is no rule")

    def refuted(
        name: str, sentence: str, old: str, new: str, fault: str, of: list[str], more: list[str] | None = None
    ) -> None:
        judged = [j.replace(old, new) for j in of]
        derived = [d.replace(old, new) for d in more or []]
        assert [judged, derived] != [of, more or []], name
        add(name, "refuted", sentence, library(judged, derived), fault)

    refuted(
        "pairing",
        "swap: rejected",
        '[1,0],[["Entries"',
        '[0,1],[["Entries"',
        "entries of different inputs are paired",
        [SWAP],
    )
    refuted(
        "right-side", "swap: rejected", '"mul",[-2,-1]', '"add",[-2,-1]', "the right side is another operator", [SWAP]
    )
    refuted("witness", "swap: rejected: witness", '["y.1",4]', '["y.1",3]', "the witness does not type", [SWAP])
    refuted(
        "case-missing",
        "swap: rejected: case []: is missing",
        '"Case",[]',
        '"Case",[0]',
        "the only case is called another",
        [SWAP],
    )
    refuted("cluster", "terms are in no cluster", CLUSTERS % THREE, "[]", "terms are in no cluster", [PAIR])
    refuted(
        "counterexample",
        "claimed to fail by value, found None",
        "[[2],[3]]",
        "[[2],[2]]",
        "both sides are 4 there",
        [WORSE],
    )
    refuted(
        "what",
        "claimed to fail by shape, found value",
        '"true","value"',
        '"true","shape"',
        "it fails by value, not by shape",
        [WORSE],
    )
    refuted("vacuous", "never: rejected", "[[0,3]]", "[[0,2]]", "the left side has instances", [NEVER])
    refuted(
        "step-place",
        "derived: rule derived, output 0, step 0 (pair): what it replaces does not occur",
        '"pair",0,false',
        '"pair",0,true',
        "a step is read the wrong way",
        [PAIR, PUSH],
        [DERIVED],
    )
    refuted(
        "step-rule",
        "no such proved rule",
        '["Applied","push"',
        '["Applied","pull"',
        "a step names a rule that is not there",
        [PAIR, PUSH],
        [DERIVED],
    )
    refuted(
        "precondition",
        "does not type whenever the left side does",
        ',[["Divides",[[1,"d"]],[[1,"x.0"]]]]',
        ",[]",
        "the precondition is left out",
        [PAIR, PUSH],
        [DERIVED],
    )

    whole = library([PAIR, PUSH], [DERIVED])

    def malformed(name: str, sentence: str, member: str, change: Callable[[Head], object], fault: str) -> None:
        add(name, "malformed", sentence, changed(whole, member, change), fault)

    malformed(
        "count",
        "announces another number of rules than there are",
        "library.json",
        lambda h: h.update(rules=3),
        "another number is announced",
    )
    malformed(
        "semantics",
        "operators of these rules meant something else",
        "library.json",
        lambda h: h.update(semantics="0" * 16),
        "another hash of the operators",
    )
    malformed(
        "class",
        "is 'Guess', must be one of",
        "rules.json",
        lambda h: h[0].__setitem__(0, "Guess"),
        "there is no such record",
    )
    malformed("fields", "Proved has 4 fields, not 3", "rules.json", lambda h: h[0].pop(), "a field is missing")
    malformed(
        "type", "must be an integer", "rules.json", lambda h: h[0][1][2][0].__setitem__(2, "3"), "a text for a number"
    )
    malformed(
        "polynomial",
        "symbols of a term must be sorted",
        "derived.json",
        lambda h: h[0][1][6][0].__setitem__(1, [[1, "d"], [1, "d"]]),
        "a term occurs twice",
    )
    malformed(
        "names",
        "two rules have one name",
        "rules.json",
        lambda h: h[1][1].__setitem__(1, "pair"),
        "two rules have one name",
    )
    malformed(
        "union",
        "is 'Cut', must be one of",
        "rules.json",
        lambda h: h[0][2][0][2][3][0].__setitem__(0, "Cut"),
        "a record stands where another kind belongs",
    )
    short = {name: value for name, value in whole.items() if name != "derived.json"}
    add("member", "malformed", "is missing", short, "a member is missing")
    return out
