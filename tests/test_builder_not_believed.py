"""A builder of tables that errs is found out by the checkers of composed plans: an edge too few, an assumption that is
not said, a placement on a view that is left out.
"""

from __future__ import annotations

import importlib
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest
from composed_files import said
from composed_problems import Problem

from shardproof.models.cost.selection import Planning, build
from shardproof.models.problem.claims import Verdict
from shardproof.proofs.container.archive import Member, read_container
from shardproof.proofs.container.canonical import ContainerError
from shardproof.verify.verbs.kinds import Effort, Judged, require_known

KINDS = {
    "overlap": Problem("products2", "1x2", "--overlap"),
    "pipelines": Problem("products3", "1x2", "--pipeline 2:2"),
    "views": Problem("fork", "1x2", "--views"),
}


@pytest.fixture(scope="module", params=KINDS)
def file(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> tuple[str, dict[str, Member]]:
    """(room of the checker, members of a plan of its kind)."""
    folder = tmp_path_factory.mktemp(request.param)
    status, answer = said([*KINDS[request.param].line(folder), "--work-limit", "1M", "-o", str(folder / "p.spz")])
    assert status in (0, 5), answer
    return request.param, dict(read_container(folder / "p.spz"))


def judged(members: dict[str, Member]) -> Judged[object]:
    return require_known(members, "test").judge(members, Effort(), {})


def less_edges(planning: Planning) -> Planning:
    return replace(planning, problem=replace(planning.problem, edges=planning.problem.edges[1:]))


def less_said(planning: Planning) -> Planning:
    return replace(planning, problem=replace(planning.problem, assumptions=planning.problem.assumptions[1:]))


@pytest.mark.parametrize("fault", [less_edges, less_said])
def test_tables_are_not_believed(
    file: tuple[str, dict[str, Member]], fault: Callable[[Planning], Planning], monkeypatch: pytest.MonkeyPatch
) -> None:
    room, members = file
    assert judged(members).verdict is Verdict.PROVED
    module = importlib.import_module(f"shardproof.verify.{room}.certificate")
    monkeypatch.setattr(module, "build", lambda *a, **k: fault(build(*a, **k)))
    found = judged(members)
    assert found.verdict is Verdict.REFUTED
    words = "edges" if fault is less_edges else "assum"
    assert words in found.results[0].reason


def test_placements_on_a_view_are_not_believed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A list without its last placement."""
    from shardproof.verify.views import prices

    problem = Problem("fork", "1x4", "--views")
    status, _ = said([*problem.line(tmp_path), "--work-limit", "1M", "-o", str(tmp_path / "p.spz")])
    members = dict(read_container(tmp_path / "p.spz"))
    assert status in (0, 5) and judged(members).verdict is Verdict.PROVED
    listed = prices.matrices
    monkeypatch.setattr(prices, "matrices", lambda *a: listed(*a)[:-1])
    with pytest.raises(ContainerError, match=r"placements of '.*' on a submesh"):
        judged(members)
