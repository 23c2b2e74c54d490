"""The walk by single moves: its solutions are no worse than where it begins, its sums are those of the problem, and a
problem whose plain bound it meets is solved without anything compiled.
"""

from __future__ import annotations

import random
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from network_families import FAMILIES
from random_problems import shared_tables

from shardproof.formal.selection.model.clock import Clock
from shardproof.formal.selection.model.factored import Base, allowed_domains, build, exact_cost
from shardproof.formal.selection.options.primal import PRIMAL
from shardproof.formal.selection.primal.walk import _Walk, walk

ROOT = Path(__file__).resolve().parents[1]


@pytest.mark.parametrize("seed", range(40))
def test_the_best_that_was_met_is_no_worse_than_the_start(seed: int) -> None:
    problem = replace(shared_tables(seed), usages=(), limit=None)
    domains = allowed_domains(problem)
    if any(d.size == 0 for d in domains):
        return
    rng = random.Random(seed)
    network = build(Base(problem), domains)
    start = [rng.randrange(d.size) for d in domains]
    found = walk(network, start, -(1 << 60), Clock(), replace(PRIMAL, walk_idle=60))
    before, after = (exact_cost(problem, network.solution(x)) for x in (start, found))
    assert before is None or (after is not None and after <= before)


@pytest.mark.parametrize("seed", range(40))
def test_sums_that_are_carried_along_are_those_of_the_choice(seed: int) -> None:
    problem = replace(shared_tables(seed), usages=(), limit=None)
    domains = allowed_domains(problem)
    if any(d.size == 0 for d in domains):
        return
    rng = random.Random(seed)
    network = build(Base(problem), domains)
    state = _Walk(network, [0] * len(domains))
    for _ in range(20):
        slot = rng.randrange(state.local.size)
        state.move(slot, int(state.local[slot] - state.local[state.slots][state.owner[slot]]))
        fresh = _Walk(network, state.choice())
        assert state.total == fresh.total and np.array_equal(state.local, fresh.local)


def test_a_plain_bound_that_is_met_needs_nothing_compiled(tmp_path: Path) -> None:
    (tmp_path / "p.wcsp").write_text(FAMILIES["links"](1002, 16, 24), encoding="utf-8")  # type: ignore[call-arg]
    code = (
        "import sys; from shardproof.__main__ import run; "
        f"code = run(['solve', {str(tmp_path / 'p.wcsp')!r}, '-o', {str(tmp_path / 'c.spz')!r}]); "
        "assert code == 0 and 'numba' not in sys.modules, (code, 'numba' in sys.modules)"
    )
    done = subprocess.run([sys.executable, "-c", code], cwd=ROOT.parent, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert "proved optimal" in done.stdout
