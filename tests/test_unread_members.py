"""A file holds nothing beside what it claims: a member that no checker reads is refused by name, whatever the kind."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from shardproof.proofs.container.archive import MANIFEST, read_container, write_container
from shardproof.proofs.container.canonical import ContainerError
from shardproof.verify.verbs.kinds import KINDS, Effort, kind_of, problem_by_hash, require_known

PROVED = Path(__file__).parent / "conformance" / "proved"


def smallest() -> dict[str, Path]:
    """The smallest kept file of every kind that needs no problem beside it."""
    found: dict[str, Path] = {}
    for path in sorted(PROVED.glob("*.spz"), key=lambda p: (p.stat().st_size, p.name)):
        kind = kind_of(read_container(path))
        if kind is not None and not kind.apart:
            found.setdefault(kind.member, path)
    return found


SMALLEST = smallest()


MADE_BY_PYTORCH = {"job.json"}
"""Kinds of which no file is kept: `tests/test_equal_job.py` makes one, and puts a spare member in."""


def test_every_kind_has_one() -> None:
    assert set(SMALLEST) | MADE_BY_PYTORCH == {kind.member for kind in KINDS if not kind.apart}


@pytest.mark.parametrize("member", SMALLEST)
@pytest.mark.parametrize("name", ["spare.json", "leaves.txt", "plan.i64"])
def test_what_belongs_to_nothing_is_refused(member: str, name: str) -> None:
    members = read_container(SMALLEST[member])
    judged = require_known(members, "test").judge(members, Effort(), problem_by_hash(None))
    assert judged.results and name not in members
    spare = np.arange(3, dtype=np.int64) if name.endswith("i64") else b"{}"
    kept = {n: m for n, m in members.items() if n != MANIFEST}
    held = read_container(write_container(None, {**kept, name: spare}))
    with pytest.raises(ContainerError, match=name):
        require_known(held, "test").judge(held, Effort(), problem_by_hash(None))
