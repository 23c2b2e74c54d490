"""docs/certificate-format and proofs/ name the same things: members, formats, fields, kinds of claims and records.

A table in the document that starts with `<!-- fields: X -->` or `<!-- names: X -->` is compared, in both directions,
with what the code reads; so a record that is added without a word there fails here.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from dataclasses import fields, is_dataclass
from pathlib import Path
from typing import get_args, get_type_hints

import function_table
import pytest
from house import ROOT

from shardproof.models.collective_programs.collectives import READINGS
from shardproof.models.rewrites.ops import OPERATORS
from shardproof.proofs.rewrites.derivation import Derivation
from shardproof.proofs.rewrites.judgement import Judgement
from shardproof.proofs.schedules import certificate as schedules
from shardproof.proofs.selection.certificates import Record
from shardproof.proofs.selection.presolve_log import Rule

PAGES = [ROOT / "docs" / "certificate-format.md", *sorted((ROOT / "docs" / "certificate-format").glob("*.md"))]
TEXT = "\n".join(p.read_text(encoding="utf-8") for p in PAGES)


def tables(kind: str, name: str) -> list[list[str]]:
    """Cells of every row of the table that starts with the mark."""
    mark = f"<!-- {kind}: {name} -->"
    assert TEXT.count(mark) == 1, mark
    lines = TEXT.split(mark)[1].lstrip("\n").split("\n")
    rows = []
    for line in lines[2:]:
        if not line.startswith("|"):
            break
        rows.append([cell.strip() for cell in line.strip("|").split("|")])
    assert rows, mark
    return rows


def listed(kind: str, *names: str) -> list[str]:
    """What the first columns name."""
    found = []
    for name in names:
        for row in tables(kind, name):
            word = re.fullmatch(r"`([^`]+)`", row[0])
            assert word, row
            found.append(word[1])
    return found


def source(module: str) -> ast.Module:
    return ast.parse(Path(ROOT, f"{module}.py").read_text(encoding="utf-8"))


def texts(node: ast.AST) -> list[str]:
    return [n.value for n in ast.walk(node) if isinstance(n, ast.Constant) and isinstance(n.value, str)]


def assigned(module: str) -> Iterator[tuple[str, ast.expr]]:
    """Names and what a module assigns to them."""
    for n in ast.walk(source(module)):
        if isinstance(n, ast.AnnAssign | ast.Assign) and n.value is not None:
            for t in n.targets if isinstance(n, ast.Assign) else [n.target]:
                if isinstance(t, ast.Name):
                    yield t.id, n.value


def named(module: str) -> dict[str, list[str]]:
    """Texts in what a module assigns to a name."""
    return {name: texts(value) for name, value in assigned(module)}


def read(module: str) -> set[str]:
    """Every field that a module reads: arguments of `fields(..)`, tuples of names that they are taken from included."""
    tree = source(module)
    constants = {**named("proofs/plan/subject"), **named(module)}
    within = {name: [n.id for n in ast.walk(value) if isinstance(n, ast.Name)] for name, value in assigned(module)}
    out: set[str] = set()
    for call in ast.walk(tree):
        if isinstance(call, ast.Call) and isinstance(call.func, ast.Attribute) and call.func.attr == "fields":
            for part in (*call.args, *(k.value for k in call.keywords)):
                out |= set(texts(part))
                names = [n.id for n in ast.walk(part) if isinstance(n, ast.Name)]
                names += [inner for name in names for inner in within.get(name, [])]
                out |= {text for name in names for text in constants.get(name, [])}
    return out


@pytest.mark.parametrize(
    ("module", "marks", "beside"),
    [
        ("proofs/container/archive", ("manifest",), set()),
        # `shapes` is handed to the reader by its caller
        ("proofs/selection/problem_file", ("problem",), {"shapes"}),
        ("proofs/selection/file", ("certificate", "selection claims", "selection records"), set()),
        ("proofs/collective_programs/file", ("placement", "reduction"), set()),
        ("proofs/rewrites/library", ("rules",), set()),
        ("proofs/plan/bundle", ("plan",), set()),
        ("proofs/plan/error_bounds", ("bars",), set()),
        ("proofs/joint/file", ("joint",), set()),
        ("proofs/schedules/file", ("schedule",), set()),
        ("proofs/egraphs/file", ("extraction",), set()),
        ("proofs/pipelines/file", ("pipeline", "orders"), set()),
        ("proofs/overlap/file", ("overlap",), set()),
        ("proofs/views/file", ("views", "region"), set()),
    ],
)
def test_fields_are_those_of_the_document(module: str, marks: tuple[str, ...], beside: set[str]) -> None:
    found = set(listed("fields", *marks))
    if module.endswith("selection/file"):
        found |= {"kind"}
    assert found == read(module) | beside


def cases(module: str, function: str) -> set[str]:
    """Words that `match` tells apart in a function."""
    (body,) = (n for n in ast.walk(source(module)) if isinstance(n, ast.FunctionDef) and n.name == function)
    return {text for n in ast.walk(body) if isinstance(n, ast.MatchValue) for text in texts(n)}


@pytest.mark.parametrize(
    ("mark", "module", "function"),
    [
        ("selection claims", "proofs/selection/file", "_decode_claim"),
        ("selection records", "proofs/selection/file", "_decode_record"),
        ("reduction requests", "proofs/collective_programs/file", "_request"),
        ("reduction claims", "proofs/collective_programs/file", "_claim"),
        ("schedule subjects", "proofs/schedules/file", "_subject"),
        ("schedule bounds", "proofs/schedules/file", "_bound"),
        ("extraction claims", "proofs/egraphs/file", "_claim"),
        ("extraction records", "proofs/egraphs/file", "_record"),
    ],
)
def test_kinds_are_those_of_the_document(mark: str, module: str, function: str) -> None:
    names = listed("names", mark)
    assert set(names) == cases(module, function) and len(names) == len(set(names))


def test_every_record_of_a_selection_certificate_is_a_class_and_has_a_section() -> None:
    kinds = listed("names", "selection records")
    classes = {re.sub(r"(?<!^)(?=[A-Z])", "-", k.__name__).lower() for k in get_args(Record)}
    assert classes == set(kinds)
    sections = re.findall(r"^#### (\S+)$", TEXT, re.MULTILINE)
    assert sections == kinds


def proofs() -> Iterator[ast.Module]:
    for path in sorted(Path(ROOT, "proofs").rglob("*.py")):
        yield ast.parse(path.read_text(encoding="utf-8"))


def test_members_and_formats_are_those_of_the_document() -> None:
    said = {text for tree in proofs() for text in texts(tree)}
    prefixes = {
        text
        for tree in proofs()
        for n in ast.walk(tree)
        if isinstance(n, ast.AnnAssign) and isinstance(n.target, ast.Name) and n.target.id == "PREFIX"
        for text in texts(n)
    }
    members = {text for text in said if re.fullmatch(r"[a-z]+\.(json|i64)", text)}
    members |= {f"{prefix}.{kind}" for prefix in prefixes for kind in ("json", "i64")}
    assert set(listed("names", "members")) == members
    formats = {text for text in said if re.fullmatch(r"shardproof-[a-z-]+/\d+", text)}
    assert {row[1].strip("`") for row in tables("names", "formats")} == formats


def test_log_entries_are_those_of_the_document() -> None:
    assert [(row[0].strip("`"), int(row[1])) for row in tables("names", "log entries")] == [(r.name, r) for r in Rule]


def test_rows_of_refutations_are_those_of_the_document() -> None:
    rows = {row[0].strip("`"): int(row[1]) for row in tables("names", "schedule rows")}
    constants = {name: value for name, value in vars(schedules).items() if name.isupper() and isinstance(value, int)}
    assert rows == constants


def classes(kind: object, found: dict[str, set[str]]) -> dict[str, set[str]]:
    """Dataclasses below a type, by name, with the names of their fields."""
    if isinstance(kind, type) and is_dataclass(kind):
        names = {f.name for f in fields(kind) if f.init}
        if not names <= found.get(kind.__name__, set()) or kind.__name__ not in found:
            found.setdefault(kind.__name__, set()).update(names)
            hints = get_type_hints(kind)
            for f in fields(kind):
                if f.init:
                    classes(hints[f.name], found)
    for part in get_args(kind):
        classes(part, found)
    return found


def test_records_of_rules_are_those_of_the_document() -> None:
    found = classes(Derivation, classes(Judgement, {}))
    rows = {row[0].strip("`"): " ".join(row[1:]) for row in tables("names", "rule records")}
    assert set(rows) == set(found)
    lacking = [(k, n) for k, names in found.items() for n in names if not re.search(rf"\b{n}\b", rows[k])]
    assert not lacking


def test_words_of_models_are_those_of_the_document() -> None:
    assert listed("names", "readings") == list(READINGS)
    assert listed("names", "rule operators") == list(OPERATORS)
    flags = {t for t in texts(source("verify/plan/assumptions")) if re.fullmatch(r"[a-z]+(-[a-z]+)+\(?", t)}
    assert set(listed("names", "assumptions")) == {flag.rstrip("(") for flag in flags}


def test_claims_of_plans_are_those_of_the_document() -> None:
    tree = source("verify/plan/plan")
    calls = [n for n in ast.walk(tree) if isinstance(n, ast.Call) and isinstance(n.func, ast.Name)]
    kinds = {text for n in calls if n.func.id == "_result" for text in texts(n.args[1])}
    assert set(listed("names", "plan claims")) == kinds | {"Optimal"}


def test_claims_of_pipelined_steps_are_those_of_the_document() -> None:
    """Kinds that the checker gives its results; those of a pair of stages and micro-batches have a tail."""
    kinds: set[str] = set()
    for n in ast.walk(source("verify/pipelines/certificate")):
        if isinstance(n, ast.Call):
            name = n.func.attr if isinstance(n.func, ast.Attribute) else getattr(n.func, "id", "")
            given = [n.args[0]] if name in ("result", "CheckResult") and n.args else []
            kinds |= {t for a in (*given, *(k.value for k in n.keywords if k.arg == "kind")) for t in texts(a)}
        if isinstance(n, ast.Assign) and getattr(n.targets[0], "id", "") == "kind":
            kinds |= {t for t in texts(n.value)}
    assert {w.removesuffix(" P:M") for w in listed("names", "pipeline claims")} == kinds


def test_the_table_of_functions_is_true() -> None:
    start, end = TEXT.index(function_table.START) + len(function_table.START), TEXT.index(function_table.END)
    assert TEXT[start:end].strip() == function_table.table().strip(), "python tests/function_table.py"


def test_a_missing_word_is_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(f"{__name__}.TEXT", TEXT.replace("| `witness` |", "| `wit` |"))
    with pytest.raises(AssertionError):
        test_fields_are_those_of_the_document("proofs/selection/file", ("selection claims", "selection records"), set())
