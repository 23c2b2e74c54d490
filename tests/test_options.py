"""Options of the search: every one is listed and read, and what `solve` is given reaches every phase."""

from __future__ import annotations

import ast
import json
from dataclasses import fields
from fractions import Fraction
from pathlib import Path

import pytest
from budgets import work
from contest_cases import contest_problem
from house import ROOT
from random_problems import graphs_of_all_kinds

import shardproof.formal.selection.tree.dense_search  # noqa: F401  defaults are read when it is imported
from shardproof.__main__ import run
from shardproof.formal.selection.options import OPTIONS, Options, SolveOptions, TreeOptions, list_options, options_with
from shardproof.formal.selection.relax_resources import relax_resources
from shardproof.formal.selection.solve import solve
from shardproof.formal.selection.tree.run import Run
from shardproof.formal.verbs import solve as verb
from shardproof.models.problem.selection_problem import SelectionProblem

from .test_seams import TIGHT, bound_rows, ladder

PROBLEMS = Path(__file__).parent / "conformance" / "problems"
PHASES = tuple(f.name for f in fields(Options))


def test_every_option_is_read_somewhere() -> None:
    read = set()
    for path in Path(ROOT, "formal", "selection").rglob("*.py"):
        if path.parent.name != "options":
            nodes = ast.walk(ast.parse(path.read_text(encoding="utf-8")))
            read |= {n.attr for n in nodes if isinstance(n, ast.Attribute)}
    assert not {o.name for o in list_options(Options()) if o.name.partition(".")[2] not in read}


def test_every_option_has_a_unit_and_a_reason() -> None:
    shown = list(list_options(Options()))
    assert [o.name for o in shown] == [
        f"{p.name}.{f.name}" for p in fields(Options) for f in fields(getattr(Options(), p.name))
    ]
    assert all(o.value and o.unit and o.range and o.reason for o in shown)


def test_every_default_is_in_its_range_and_can_be_given() -> None:
    for row in list_options(Options()):
        assert options_with(Options(), [(row.name, row.value)]) == Options(), row.name
    changed = options_with(Options(), [("network.sweeps", "9"), ("tree.part_gap", "1/7"), ("primal.sizes", "3 4")])
    assert changed.network.sweeps == 9 and changed.tree.part_gap == Fraction(1, 7) and changed.primal.sizes == (3, 4)


@pytest.mark.parametrize(
    ("word", "told"),
    [
        ("network.sweep=9", "did you mean network.sweeps?"),
        ("sweeps=9", "no option of the search"),
        ("__class__.x=1", "no option of the search"),
        ("network", "no option of the search"),
        ("network.sweeps", "a whole number, 1 and more (double sweeps), not ''"),
        ("network.sweeps=0", "a whole number, 1 and more (double sweeps), not '0'"),
        ("network.sweeps=1.5", "a whole number, 1 and more (double sweeps), not '1.5'"),
        ("network.sweeps=" + "9" * 30, "a whole number, 1 and more"),
        ("network.shrink=2", "a number from 0 to 1 (share of the labels), not '2'"),
        ("network.shrink=nan", "a number from 0 to 1 (share of the labels), not 'nan'"),
        ("network.shrink=1/0", "a number from 0 to 1 (share of the labels), not '1/0'"),
        ("primal.sizes=3", "takes 2 numbers with spaces between, not '3'"),
    ],
)
def test_what_is_no_option_is_refused_by_name(word: str, told: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["solve", str(PROBLEMS / "limited.json"), "--set", word]) == 2
    assert told in " ".join(capsys.readouterr().err.split())


def test_what_is_set_reaches_the_search(monkeypatch: pytest.MonkeyPatch) -> None:
    seen = []
    monkeypatch.setattr(verb, "solve", lambda problem, options, **_: seen.append(options) or solve(problem))
    assert run(["solve", str(PROBLEMS / "limited.json"), "--set", "network.sweeps=9", "--set", "tree.nodes=5"]) == 0
    assert seen[0].network.sweeps == 9 and seen[0].tree.nodes == 5


STEP = ("mlp-8192:layers=3,width=64", "--batch", "8", "--train", "sgd")
PLANS = {
    "placements": ("mlp-unity", "--batch", "8"),
    "under a limit of memory": (*STEP, "--memory", "64MiB"),
    "stages": (*STEP, "--pipeline", "2:2"),
    "overlap": ("mlp-unity", "--batch", "8", "--overlap"),
    "submeshes": ("candle-uno:batch=16,width=64,tower=2,layers=1", "--submeshes"),
    "rewrites": ("mlp-unity", "--batch", "8", "--joint"),
}


@pytest.mark.parametrize("kind", PLANS)
def test_what_is_set_reaches_every_problem_of_a_plan(
    kind: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Every run of the search of a problem, whoever asks for it, has the options of the command."""
    seen, begin = list[Options](), Run.__init__

    def beginning(made: Run, *given: object, **named: object) -> None:
        begin(made, *given, **named)  # type: ignore[arg-type]
        seen.append(made.options)

    monkeypatch.setattr(Run, "__init__", beginning)
    line = ("plan", *PLANS[kind], "--machine", "localhost:2", "-o", str(tmp_path / "p.spz"), "--work-limit", "4M")
    assert run([*line, "--set", "network.sweeps=9"]) in (0, 5)
    assert seen and {options.network.sweeps for options in seen} == {9}
    seen.clear()
    assert run([*line, "--force"]) in (0, 5)
    assert seen and all(options == OPTIONS for options in seen)


def test_the_verb_prints_them(capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["solve", "--options", "--json"]) == 0
    document = json.loads(capsys.readouterr().out)["options"]
    shown = [(o.name, o.value, o.unit, o.range, o.reason) for o in list_options(Options())]
    assert document == {n: {"value": v, "unit": u, "range": r, "reason": w} for n, v, u, r, w in shown}
    assert run(["solve", "--options"]) == 0
    table = capsys.readouterr().out
    assert all(o.name in table and o.value in table for o in list_options(Options()))
    assert run(["solve"]) == 2
    assert "PROBLEM" in capsys.readouterr().err


class Reads:
    """Which options are read from which phase, and whether from those that were given."""

    def __init__(self, given: Options, patch: pytest.MonkeyPatch) -> None:
        self.seen: dict[str, set[str]] = {phase: set() for phase in PHASES}
        self.others: set[tuple[str, str]] = set()
        for phase in PHASES:
            part = getattr(given, phase)
            self._watch(phase, part, patch)

    def _watch(self, phase: str, part: object, patch: pytest.MonkeyPatch) -> None:
        names = {f.name for f in fields(part)}  # type: ignore[arg-type]

        def read(one: object, name: str) -> object:
            if name in names:
                if one is part:
                    self.seen[phase].add(name)
                else:
                    self.others.add((phase, name))
            return object.__getattribute__(one, name)

        patch.setattr(type(part), "__getattribute__", read)


FACTORED = Options(
    solve=SolveOptions(dense_vertices_with_rows=10**6, plain_joint=0), tree=TreeOptions(nodes=1), limits=TIGHT
)
"""Neither the dense search nor elimination."""

ROWS, _ = bound_rows(0, Fraction(9, 10), 1)
"""Repeated blocks under a limit that binds."""


@pytest.mark.parametrize(
    ("problem", "given", "engine", "phases"),
    [
        (contest_problem(9, 5, 2, tight=0.4), Options(), "native", {"solve", "presolve", "dense", "primal"}),
        (ladder(60, 0), FACTORED, "native", {"solve", "limits", "bound", "tree", "decomposition"}),
        (ROWS, FACTORED, "native", {"solve", "limits", "bound", "tree", "decomposition", "primal"}),
        (graphs_of_all_kinds(8, rows=False), Options(), "native", {"solve", "elimination"}),
        (graphs_of_all_kinds(8, rows=False), Options(), "ilp", {"solve", "engines", "bound"}),
    ],
    ids=["dense", "repeated", "repeated under rows", "eliminated", "engine"],
)
def test_what_is_given_reaches_every_phase(
    problem: SelectionProblem, given: Options, engine: str, phases: set[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nothing is read from defaults, whatever search a problem gets."""
    reads = Reads(given, monkeypatch)
    answer = solve(problem, engine=engine, options=given, clock=work(3.0))  # type: ignore[arg-type]
    assert answer.solution is not None
    assert not reads.others
    assert {phase for phase in PHASES if reads.seen[phase]} >= phases


def test_relaxing_the_rows_hands_them_on(monkeypatch: pytest.MonkeyPatch) -> None:
    given = Options()
    reads = Reads(given, monkeypatch)
    relax_resources(contest_problem(9, 5, 2, tight=0.4), options=given)
    assert not reads.others and "relaxed_share" in reads.seen["solve"]


def test_options_change_what_a_search_does() -> None:
    """Without room for tables nothing is eliminated."""
    problem = graphs_of_all_kinds(11)
    stored = solve(problem).certificate
    without = Options(elimination=type(Options().elimination)(stored=0))
    bare = solve(problem, options=without).certificate
    assert stored is not None and bare is not None
    assert stored.proof.messages and not bare.proof.messages  # type: ignore[union-attr]


def test_an_engine_alone_has_no_options_of_the_native_search(capsys: pytest.CaptureFixture[str]) -> None:
    line = ["solve", str(PROBLEMS / "limited.json"), "--engine", "ilp", "--alone"]
    assert run([*line, "--set", "network.sweeps=9"]) == 2
    assert "network.sweeps is of the native search, which --alone does without" in capsys.readouterr().err
    assert run([*line, "--set", "engines.turns=3", "--work-limit", "5M"]) in (0, 5)
