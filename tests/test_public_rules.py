"""Public rule files: what is read, what is written, and what is refused with the rule's name.

Data: tests/data/rules (even-indexed halves of TASO's and FlexFlow's files; README there names the sources).
"""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from shardproof.models.rewrites.rule import Substitution
from shardproof.models.sources.rules.axiom_meaning import axiom_substitutions
from shardproof.models.sources.rules.axioms import check_term, parse_term, read_public_axioms
from shardproof.models.sources.rules.files import read_public_rules
from shardproof.models.sources.rules.formats import (
    PublicOperator,
    PublicRule,
    PublicTensor,
    RuleError,
    check_rules,
    parse_public_rules,
    write_public_rules,
)
from shardproof.models.sources.rules.meaning import Reading, reading_of, substitutions
from shardproof.models.sources.rules.wire import decode_rules, encode_rules
from shardproof.models.sources.rules.writer import public_rule

DATA = Path(__file__).parent / "data" / "rules"
FILES = {"taso-even.json": (67, 0), "flexflow-even.json": (320, 55)}


@pytest.mark.parametrize(("name", "count", "unbound"), [(n, *c) for n, c in FILES.items()])
def test_files_are_read_whole(name: str, count: int, unbound: int) -> None:
    rules = read_public_rules(DATA / name)
    assert len(rules) == count
    assert sum(bool(r.unbound) for r in rules) == unbound
    assert [r.index for r in rules] == [2 * k for k in range(count)]


@pytest.mark.parametrize("name", FILES)
def test_writing_gives_back_the_file(name: str) -> None:
    text = (DATA / name).read_text()
    rules = parse_public_rules(text)
    assert json.loads(write_public_rules(rules)) == json.loads(text)


@pytest.mark.parametrize("name", FILES)
def test_protobuf_round_trip(name: str, tmp_path: Path) -> None:
    rules = read_public_rules(DATA / name)
    data = encode_rules(rules)
    again = decode_rules(data)
    assert encode_rules(again) == data
    assert [(r.source, r.target, r.outputs) for r in again] == [(r.source, r.target, r.outputs) for r in rules]
    (tmp_path / "rules.pb").write_bytes(data)
    assert read_public_rules(tmp_path / "rules.pb") == again


def test_protobuf_bytes_of_a_rule() -> None:
    """The bytes of RELU(-1) => RELU(-1) by hand: tags, a negative int32 in ten bytes."""
    x = PublicTensor(-1)
    relu = PublicOperator("RELU", (x,))
    minus_one = b"\xff" * 9 + b"\x01"
    op = b"\x08\x08" + b"\x12\x0d" + b"\x08" + minus_one + b"\x10\x00"
    pair = b"\x08\x00\x10\x00\x18\x00\x20\x00"
    body = b"\x0a" + bytes([len(op)]) + op + b"\x12" + bytes([len(op)]) + op + b"\x1a\x08" + pair
    assert (
        encode_rules([PublicRule(0, "r", (relu,), (relu,), ((PublicTensor(0), PublicTensor(0)),))])
        == b"\x0a" + bytes([len(body)]) + body
    )


def rule(**changes: object) -> dict[str, object]:
    """A good rule with some fields replaced."""
    relu = {"type": "OP_RELU", "input": [{"opId": -1, "tsId": 0}], "para": []}
    good: dict[str, object] = {
        "name": "my_rule",
        "srcOp": [relu],
        "dstOp": [relu],
        "mappedOutput": [{"srcOpId": 0, "srcTsId": 0, "dstOpId": 0, "dstTsId": 0}],
    }
    return good | changes


def op(kind: str, *inputs: int, **parameters: int) -> dict[str, object]:
    return {
        "type": f"OP_{kind}",
        "input": [{"opId": i, "tsId": 0} for i in inputs],
        "para": [{"key": f"PM_{k}", "value": v} for k, v in parameters.items()],
    }


@pytest.mark.parametrize(
    ("changes", "says"),
    [
        ({"srcOp": [op("FOO", -1)]}, "unknown operator OP_FOO"),
        ({"srcOp": [op("RELU", 1), op("RELU", 0)]}, "cyclic: operators 0 -> 1 -> 0"),
        ({"srcOp": [op("RELU", 0)]}, "cyclic: operators 0 -> 0"),
        ({"srcOp": [op("RELU", 1), op("RELU", -1)]}, "sort the list"),
        ({"dstOp": [op("RELU", 7)]}, "there is no operator 7"),
        ({"dstOp": [op("EW_ADD", -1)]}, "1 inputs, must be 2"),
        ({"dstOp": [op("CONCAT", -1, -2, NUM_INPUTS=3)]}, "PM_NUM_INPUTS says 3"),
        ({"dstOp": [op("RELU", -1, BAR=3)]}, "unknown parameter PM_BAR"),
        ({"dstOp": [{"type": "OP_RELU", "input": [{"opId": -1, "tsId": 1}]}]}, "must be 0"),
        ({"dstOp": [{"type": "OP_RELU"}]}, "field 'input' is missing"),
        ({"dstOp": "RELU"}, "must be a list"),
        ({"mappedOutput": []}, "nothing is claimed"),
        ({"srcOp": [op("CONCAT", AXIS=0)]}, "at least two inputs"),
        ({"srcOp": [op("SPLIT", -1, AXIS=0, NUM_OUTPUTS=0)]}, "has no output 0"),
        ({}, "two rules of the file have this name"),
        ({"mappedOutput": [{"srcOpId": 0, "srcTsId": 1, "dstOpId": 0, "dstTsId": 0}]}, "no output 1"),
        ({"mappedOutput": [{"srcOpId": True, "srcTsId": 0, "dstOpId": 0, "dstTsId": 0}]}, "32-bit integer"),
        ({"mappedOutput": [{"srcOpId": 0, "srcTsId": 0, "dstOpId": 0}]}, "'dstTsId' is missing"),
    ],
)
def test_bad_rules_are_named(changes: dict[str, object], says: str) -> None:
    with pytest.raises(RuleError, match="my_rule") as caught:
        parse_public_rules(json.dumps({"rule": [rule(), rule(**changes)]}))
    assert says in str(caught.value)


@pytest.mark.parametrize(
    "text",
    ["", "[1]", '{"rule": 3}', '{"rule": [{}], "rule": []}', '{"rule": [1.5]}', '{"rule": [NaN]}', "[" * 100_000],
)
def test_malformed_files(text: str) -> None:
    with pytest.raises(RuleError):
        parse_public_rules(text)


@pytest.mark.parametrize("cut", range(1, 60, 7))
def test_truncated_protobuf(cut: int) -> None:
    data = encode_rules(read_public_rules(DATA / "taso-even.json")[:1])
    with pytest.raises(RuleError):
        decode_rules(data[:-cut])


def test_unbound_right_hand_inputs_are_said() -> None:
    (bad,) = parse_public_rules(json.dumps({"rule": [rule(dstOp=[op("EW_ADD", -1, -5)])]}))
    assert bad.unbound == (-5,)
    assert "-5" in (bad.unbound_message() or "")
    (good,) = parse_public_rules(json.dumps({"rule": [rule()]}))
    assert good.unbound_message() is None


def test_axioms_are_read() -> None:
    axioms = read_public_axioms(DATA / "taso-axioms.json")
    assert [a.name for a in axioms] == [f"taso_axiom_{k}" for k in [*range(44), "L0", "L1", "L2"]]
    assert axioms[18].left == (
        "add",
        ("conv", "sh", "sw", "pad", "none", "x", "y"),
        ("conv", "sh", "sw", "pad", "none", "z", "w"),
    )
    assert sum(a.verdict == "sound" for a in axioms) == 35
    # concat on any axis, at ranks 2, 3, 4; the scalar keeps rank 0
    assert [(r["w"], r["x"], p["ax"]) for r, p in axioms[10].instances()] == [
        (0, n, k) for n in (2, 3, 4) for k in range(n)
    ]
    assert len(list(axioms[22].instances())) == 4


@pytest.mark.parametrize("text", ["(add x", "add x y)", "()", "(add x y) z", ""])
def test_malformed_terms(text: str) -> None:
    with pytest.raises(RuleError, match="axiom_7"):
        parse_term(text, "axiom_7")


@pytest.mark.parametrize("text", ["(foo x)", "(add x)", "(add x u)", "(concat q x y)", "(add x 3)"])
def test_ill_formed_terms(text: str) -> None:
    with pytest.raises(RuleError, match="axiom_7"):
        check_term(parse_term(text, "axiom_7"), ("x", "y"), {"ax": "axis<rank"}, "axiom_7")


@pytest.mark.parametrize("name", FILES)
def test_our_writer_gives_the_same_rules_back(name: str) -> None:
    """Read, mean, write, read, mean: the same substitutions (those of the FlexFlow file whose tensors have rank 3
    already).
    """
    rules = read_public_rules(DATA / name)
    reading = reading_of(rules)
    compared = 0
    for r in rules:
        (first, *_) = substitutions(r, reading)
        written = public_rule(first, r.index)
        if reading is Reading.TASO:
            assert [o.kind for o in written.source] == [o.kind for o in r.source]
            assert [o.inputs for o in written.source if o.kind != "SPLIT"] == [
                _renumbered(o.inputs, first, r) for o in r.source if o.kind != "SPLIT"
            ]
            compared += 1
            continue
        again = substitutions(check_rules((written,))[0], reading)[0]
        assert (again.left, again.right, again.outputs) == (first.left, first.right, first.outputs), r.name
        compared += 1
    assert compared == len(rules)


def _renumbered(inputs: tuple[PublicTensor, ...], s: Substitution, r: PublicRule) -> tuple[PublicTensor, ...]:
    """Pattern inputs are numbered by first use when we write."""
    names = [p.name for p in s.inputs]
    return tuple(t if t.operator >= 0 else PublicTensor(-1 - names.index(f"x{-t.operator}")) for t in inputs)


def test_ranks_follow_from_the_operators() -> None:
    rules = read_public_rules(DATA / "taso-even.json")
    found = {r.name: [tuple(p.rank for p in s.inputs) for s in substitutions(r, Reading.TASO)] for r in rules}
    assert found["taso_pb_rule_0"] == [(2, 2, 2)] and found["taso_pb_rule_60"] == [(4, 4, 4)]
    assert any(len(v) == 3 for v in found.values()), "rules of elementwise operators stand for ranks 2, 3 and 4"
    assert dict(substitutions(rules[30], Reading.TASO)[0].inputs[2].fixed) == {2: 3, 3: 3}


@pytest.mark.parametrize(
    ("kind", "parameters", "says"),
    [
        ("DROPOUT", {}, "no meaning"),
        ("LINEAR", {"ACTI": 7}, "PM_ACTI 7"),
        ("CONV2D", {"STRIDE_H": 1, "STRIDE_W": 1}, "PM_PAD"),
        ("PARTITION", {"PARALLEL_DIM": 0}, "PM_PARALLEL_DEGREE is missing"),
        ("SPLIT", {"AXIS": 0, "NUM_OUTPUTS": 3}, "3 outputs"),
        ("TRANSPOSE", {"NUMDIM": 2, "PERM": 0}, "permutation"),
        ("SOFTMAX", {}, "PM_AXIS is missing"),
        ("CONV2D", {"STRIDE_H": 1, "STRIDE_W": 1, "PAD": 0, "GROUP": 4}, "PM_GROUP is not read"),
        ("RELU", {"AXIS": 1}, "PM_AXIS is not read"),
        ("TANH", {"ACTI": 2}, "PM_ACTI is not read"),
        ("SIGMOID", {"GROUP": 1}, "PM_GROUP is not read"),
        ("RELU", {"NUM_OUTPUTS": 2}, "PM_NUM_OUTPUTS 2"),
        ("RELU", {"NUMDIM": 1 << 30}, "rank"),
        ("CONV2D", {"STRIDE_H": 1, "STRIDE_W": 1, "PAD": 0, "KERNEL_H": 0, "KERNEL_W": 1}, "kernel of size 0"),
    ],
)
def test_what_has_no_meaning_is_named(kind: str, parameters: dict[str, int], says: str) -> None:
    inputs = [-1, -2] if kind in ("LINEAR", "CONV2D") else [-1]
    (bad,) = parse_public_rules(json.dumps({"rule": [rule(dstOp=[op(kind, *inputs, **parameters)])]}))
    with pytest.raises(RuleError, match="my_rule") as caught:
        substitutions(bad, Reading.FLEXFLOW if kind == "PARTITION" else Reading.TASO)
    assert says in str(caught.value)


def test_pipelines_softmax_and_batch_come_back() -> None:
    """Read, mean, write: operators that the published files know by name but do not use."""
    source = [
        op("PIPELINE", -1, PARALLEL_DIM=1, PARALLEL_DEGREE=4),
        op("SOFTMAX", 0, AXIS=2),
        op("BATCH", 1, PARALLEL_DIM=1, PARALLEL_DEGREE=4),
    ]
    (read,) = parse_public_rules(
        json.dumps(
            {
                "rule": [
                    rule(
                        srcOp=source,
                        dstOp=[op("SOFTMAX", -1, AXIS=2)],
                        mappedOutput=[{"srcOpId": 2, "srcTsId": 0, "dstOpId": 0, "dstTsId": 0}],
                    )
                ]
            }
        )
    )
    (found,) = substitutions(read, Reading.FLEXFLOW)
    assert [(n.operator, dict(n.parameters)) for n in found.left] == [
        ("pipeline", {"axis": 1, "steps": 4}),
        ("softmax", {"axis": 2}),
        ("batch", {"axis": 1, "steps": 4}),
    ]
    again = public_rule(found)
    assert [o.kind for o in again.source] == ["PIPELINE", "SOFTMAX", "BATCH"] and substitutions(
        again, Reading.FLEXFLOW
    )[0].left == found.left


def test_axioms_become_substitutions() -> None:
    found = [s.check() for a in read_public_axioms(DATA / "taso-axioms.json") for s in axiom_substitutions(a)]
    assert len(found) == 135 and len({s.name for s in found}) == 135
    conv = next(s for s in found if s.name == "taso_axiom_13[rank4,pad=same]")
    assert conv.symbols == ("sh", "sw") and [n.operator for n in conv.left] == ["conv", "relu"]
