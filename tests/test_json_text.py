"""One reader of JSON for every file: what Python's reader lets through silently is refused in all of them."""

from __future__ import annotations

import ast
import json
from collections.abc import Callable
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from shardproof.formal.plans.strategy import parse_config, read_strategy
from shardproof.models.files.json_text import JsonError, parse_json
from shardproof.models.machine.machine import Machine, load_machine
from shardproof.models.program.graph import Graph
from shardproof.models.sources.rules.formats import parse_public_rules
from shardproof.models.sources.zoo import build
from shardproof.proofs.container.canonical import parse
from shardproof.proofs.selection.load import selection_problem

ROOT = Path(__file__).resolve().parents[1]

values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | st.text(),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(), inner, max_size=4), max_leaves=12,
)  # fmt: skip


@given(values)
def test_reads_what_python_writes(value: object) -> None:
    try:
        assert parse_json(json.dumps(value)) == value
    except JsonError as error:
        assert "surrogate" in str(error) and any(
            "\ud800" <= c <= "\udfff" for c in json.dumps(value, ensure_ascii=False)
        )


@given(st.binary(max_size=40) | st.text(max_size=40))
def test_refuses_in_one_way(text: bytes | str) -> None:
    try:
        parse_json(text)
    except JsonError:
        return
    assert json.loads(text) is not Ellipsis


@pytest.mark.parametrize("text", [
    '{"a": 1, "a": 1}', '[{"b": {"a": 1, "c": 2, "a": 3}}]', '{"a": 1, "\\u0061": 2}', "NaN", "[Infinity]", "-Infinity", '"\\ud800"', '{"\\udfff": 1}', "[" * 100_000,
    "1" * 5000, "", "\ufeff1", b"\xff", b"\x00\x00\x00\x31", "[1] 2", '"\x1b"',
])  # fmt: skip
def test_what_is_refused(text: str | bytes) -> None:
    with pytest.raises(JsonError):
        parse_json(text)


def test_pairs_of_surrogates_are_characters_and_floats_can_be_refused() -> None:
    assert parse_json('"\\ud83d\\ude42"') == "🙂"
    assert parse_json("1.5") == 1.5
    for text in ("1.5", "1e3", "[0.0]"):
        with pytest.raises(JsonError):
            parse_json(text, floats=False)


def test_nobody_else_reads_json() -> None:
    for path in [
        ROOT / "__main__.py",
        *(
            f
            for room in ("models", "proofs", "formal", "verify", "backends")
            for f in sorted((ROOT / room).rglob("*.py"))
        ),
    ]:
        text = path.read_text(encoding="utf-8")
        if path.name == "json_text.py" or "json" not in text:
            continue
        for node in ast.walk(ast.parse(text)):
            called = ast.unparse(node.func) if isinstance(node, ast.Call) else ""
            assert not (isinstance(node, ast.ImportFrom) and node.module == "json")
            assert called not in ("json.load", "json.loads", "json.JSONDecoder"), (
                f"{path}:{node.lineno}: read JSON with models.files.json_text.parse_json"
            )


PROBLEM = (
    '{"problem": {"nodes": {"intervals": [[0, 2]], "costs": [[7, 4]], "usages": [[1, 9]]}, "edges": {"nodes": [], '
    '"costs": []}}}'
)

READERS: dict[str, tuple[Callable[[str], object], str]] = {
    "graph": (Graph.from_json, build("mlp-unity").to_json()),
    "machine": (Machine.from_json, load_machine("localhost").to_json()),
    "strategy": (read_strategy, '{"fc1": {"b": {"ranks": 2}}}'),
    "configuration": (lambda text: parse_config(text, ("ranks",)), '{"b": {"ranks": 2}}'),
    "problem, streamed": (lambda text: selection_problem(text.encode(), "f"), PROBLEM),
    "problem, whole": (lambda text: selection_problem(text.encode(), "f"), '{"more": 1, ' + PROBLEM[1:]),
    "member": (lambda text: parse(text.encode(), "member"), '{"a": {"b": [{"c": 1}]}}'),
    "rules": (
        parse_public_rules,
        json.dumps(
            {
                "rule": [
                    {
                        "name": "r",
                        "srcOp": [{"type": "OP_RELU", "input": [{"opId": -1, "tsId": 0}]}],
                        "dstOp": [{"type": "OP_RELU", "input": [{"opId": -1, "tsId": 0}]}],
                        "mappedOutput": [{"srcOpId": 0, "srcTsId": 0, "dstOpId": 0, "dstTsId": 0}],
                    }
                ]
            }
        ),
    ),
}


@pytest.mark.parametrize("name", READERS)
def test_every_object_of_every_kind_of_file_may_hold_a_key_once(name: str) -> None:
    """Each key of each object is written twice in turn, with its own value."""
    read, text = READERS[name]
    read(text)
    twice = [t for at in range(len(text)) if (t := _twice(text, at)) is not None]
    assert twice
    for wrong in twice:
        with pytest.raises(ValueError, match="twice"):
            read(wrong)


def _twice(text: str, at: int) -> str | None:
    """The text with the member that starts at `at` written twice, if one does."""
    decoder = json.JSONDecoder()
    if text[at] != '"':
        return None
    try:
        _, end = decoder.raw_decode(text, at)
        colon = end + (len(text[end:]) - len(text[end:].lstrip()))
        if text[colon : colon + 1] != ":":
            return None
        begin = colon + 1 + (len(text[colon + 1 :]) - len(text[colon + 1 :].lstrip()))
        _, end = decoder.raw_decode(text, begin)
    except ValueError:
        return None
    return text[:at] + text[at:end] + ", " + text[at:]
