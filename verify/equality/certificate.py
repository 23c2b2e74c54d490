"""Checks claims of equality: finds the forms of both programs again, and compares every output of every rank.

Claim `Equal`: for all real values of the inputs every output of every rank, gradients included, is the part that it is
said to be of the output of the one device, and the ranks together have all of it.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from math import isfinite
from typing import Final

from ...models.equality.pair import Known, Pair
from ...models.equality.program import RankProgram
from ...models.problem.claims import Verdict
from ...proofs.container.archive import Member
from ...proofs.container.canonical import ContainerError
from ...proofs.container.effort import OBJECT
from ...proofs.equality.file import decode_equality
from ..budget import Budget
from ..verdict import CheckResult
from .index import Undecided
from .lemmas import Seen, is_real
from .meshes import stack_ranks
from .ranks import Outcome, compare
from .steps import Malformed

KIND: Final = "Equal"
PLACED: Final = frozenset(
    {
        *("reshape", "permute", "expand", "slice", "cat", "slice_scatter", "tril", "triu", "gather", "index", "where"),
        *("all_gather", "all_to_all", "broadcast", "recv", "amax", "amin", "maximum", "minimum", "full", "iota"),
        *("topk", "sort"),
    }
)
"""Operators whose whole numbers are there before; all others calculate them, casts included."""
THINGS: Final = 160
"""Objects that one term or factor takes, with what is looked at to put it in order."""


def check_members(members: Mapping[str, Member], budget: Budget) -> tuple[Pair, CheckResult]:
    """What the file is about, and the verdict on it."""
    pair = decode_equality(members)
    return pair, check_pair(pair, budget)


def check_pair(pair: Pair, budget: Budget, seen: Seen | None = None) -> CheckResult:
    """The verdict on one pair; `ContainerError` for more work than the budget has; `seen` as of `compare`."""

    def work(things: int) -> None:
        budget.charge(OBJECT * THINGS * things, "the forms of the programs")

    try:
        _require_constants(pair)
        outcome = _compare_mesh(pair, work, seen) if pair.mesh is not None else compare(pair, work, seen)
    except (Malformed, LookupError, TypeError, ArithmeticError, ValueError, RecursionError, StopIteration) as error:
        if isinstance(error, ContainerError):
            raise
        raise ContainerError("equality.json", f"holds no program: {error}") from None
    ranks = len(pair.ranks) if pair.mesh is None else sum(map(len, pair.mesh.ranks))
    space = f"{ranks} ranks, {len(pair.single.steps)} steps on one device"
    if outcome.equal:
        return CheckResult(KIND, Verdict.PROVED, None, None, space, assumptions(pair))
    place = f"{outcome.place} " if outcome.place else ""
    verdict = Verdict.REFUTED if outcome.stuck else Verdict.UNDECIDED
    return CheckResult(KIND, verdict, None, None, space, assumptions(pair), f"{place}{outcome.reason}")


def _compare_mesh(pair: Pair, work: Callable[[int], None], seen: Seen | None) -> Outcome:
    """What is seen of ranks of a mesh, all at once."""
    try:
        stacked, own = stack_ranks(pair, work)
    except Undecided as error:
        return Outcome(False, "", str(error))
    return compare(stacked, work, seen, own)


def _require_constants(pair: Pair) -> None:
    """`Malformed` where one content has several shapes, types or numbers, or real numbers are given as others."""
    held: dict[str, tuple[object, ...]] = {}
    sources = {s.name: pair.single.tensors[s.number] for s in pair.single.sources}
    stated = [(pair.single, pair.constants), *zip(pair.ranks, pair.given, strict=True)]
    for program, given in stated:
        for number, what in given:
            made = program.tensors[number]
            if isinstance(what, Known):
                said = (made.shape, made.dtype, None if what.number is None else what.number.hex())
                if held.setdefault(what.content, said) != said:
                    raise Malformed(f"content {what.content[:40]} is of {held[what.content]} and of {said}")
            elif is_real(made) != is_real(sources[what.of]):
                raise Malformed(f"{what.of!r} of {sources[what.of].dtype} is given as {made.dtype}")


ORDERED = frozenset({"topk", "sort"})
"""Whose positions of equal elements PyTorch leaves open, or settles otherwise than another that is written so."""


def assumptions(pair: Pair) -> tuple[str, ...]:
    """What the claim rests on besides the checker, by name."""
    found = ["real-arithmetic", "captured-steps", "stated-parts", "where-defined"]
    known = [g for given in (pair.constants, *pair.given) for _, g in given if isinstance(g, Known)]
    if any(k.number is None for k in known):
        found.append("equal-hashes")
    words = (w for p in (pair.single, *pair.ranks) for s in p.steps for _, w in s.words)
    if any(isinstance(w, float) and isfinite(w) and w % 1 for w in (*words, *(k.number for k in known))):
        found.append("numbers-near-fractions")
    if any(_counts(p) for p in (pair.single, *pair.ranks)):
        found.append("integers-do-not-wrap")
    if pair.floors:
        found.append("integers-not-negative")
    if pair.mesh is not None and len(pair.mesh.captured) < sum(map(len, pair.mesh.ranks)):
        found.append("alike-ranks")
    if any(s.operator in ORDERED for p in (pair.single, *pair.ranks) for s in p.steps):
        found.append("no-ties")
    return tuple(found)


def _counts(program: RankProgram) -> bool:
    """Whether whole numbers are calculated, which wrap around where their type ends."""
    return any(
        s.operator not in PLACED and any(program.tensors[n].dtype.startswith(("int", "uint")) for n in s.makes)
        for s in program.steps
    )
