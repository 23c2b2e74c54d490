"""Files whose check ends undecided: no verb says that they are proved, and bounds are those that the proof shows."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

from shardproof.__main__ import run
from shardproof.formal.plans.plan import communication
from shardproof.formal.plans.simple import named_plans
from shardproof.models.communication.choices import Choices
from shardproof.models.cost.selection import build
from shardproof.models.layout.placement import space
from shardproof.models.problem.claims import Infeasible, Optimal
from shardproof.models.terminal.console import Exit
from shardproof.proofs.plan.bundle import Plan, read_plan, write_plan
from shardproof.proofs.selection.certificates import Open

PLAN = ("plan", "mlp-unity:batch=64", "--machine", "localhost:4", "--train", "adam")
Call = Callable[..., tuple[int, str, str]]


@pytest.fixture(scope="module")
def plan(tmp_path_factory: pytest.TempPathFactory) -> Plan:
    """A plan within a limit that does not bind."""
    path = tmp_path_factory.mktemp("plan") / "p.spz"
    assert run([*PLAN, "--memory", "64MiB", "-o", str(path)]) == Exit.DONE
    return read_plan(path)[0]


@pytest.fixture
def call(capsys: pytest.CaptureFixture[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Call:
    """Carries out a command line in an empty folder."""
    monkeypatch.chdir(tmp_path)

    def made(*arguments: str) -> tuple[int, str, str]:
        code = run([*arguments])
        seen = capsys.readouterr()
        return code, seen.out, seen.err

    return made


def test_nothing_fits_is_not_said_of_what_is_not_shown(plan: Plan, call: Call) -> None:
    claim = Infeasible((), (), None, None)
    false = replace(plan.certificate, claim=claim)
    write_plan(Path("p.spz"), replace(plan, choices=Choices((), ()), communication=(), certificate=false))
    assert call("check", "p.spz")[0] == Exit.UNDECIDED
    code, out, err = call("explain", "p.spz")
    assert code == Exit.UNDECIDED and "infeasible" not in out and "undecided" in err
    code, out, _ = call("explain", "p.spz", "--json")
    assert code == Exit.UNDECIDED and json.loads(out)["status"] == "unknown"


def test_optimal_is_not_said_of_what_is_not_shown(plan: Plan, call: Call) -> None:
    """A dear plan that claims to be the best, without a proof."""
    planning = build(plan.graph, plan.machine, space(plan.space), plan.memory_limit)
    x = max((x for _, x in named_plans(planning)), key=planning.problem.cost_of)
    cost = planning.problem.cost_of(x)
    claim = plan.certificate.claim
    assert isinstance(claim, Optimal) and cost > 2 * claim.cost
    choices = planning.choices(x)
    moved = communication(plan.graph, plan.machine, choices)
    false = replace(plan.certificate, claim=Optimal(x, cost), proof=Open())
    write_plan(Path("p.spz"), replace(plan, choices=choices, communication=moved, certificate=false))
    assert call("check", "p.spz")[0] == Exit.UNDECIDED
    _, out, _ = call("explain", "p.spz", "--json")
    assert json.loads(out)["lower_bound"] < cost
    assert call("report", "p.spz", "-o", "page.html")[0] in (Exit.DONE, Exit.UNDECIDED)
    assert "proved optimal" not in Path("page.html").read_text(encoding="utf-8")
    code, out, _ = call("sensitivity", "p.spz", "--work-limit", "1M")
    assert code == Exit.UNDECIDED and "proved optimal again" not in out
