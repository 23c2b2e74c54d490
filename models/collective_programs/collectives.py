"""Collective operations as executable rules on state matrices.

    state of position d    k rows (chunks of the payload); row i is the set S_d[i] of positions whose chunk i is
                           contained
    rows(d)                { i : S_d[i] not empty }
    start                  S_d[i] = {d} for all i          goal    S_d[i] = everybody, for all d and i

For a group d_0 .. d_(m-1), m >= 2, root d_0:

    AllReduce        rows(d) equal and not empty; for each i the sets S_d[i] pairwise disjoint      everybody gets the
                     row-wise union
    ReduceScatter    as AllReduce, and m divides |rows|     member j gets the union on the j-th contiguous part of the
    ascending rows
    Reduce           as AllReduce                                            the root gets the union, the others become
                     empty
    AllGather        no member empty; rows(d) pairwise disjoint                                       everybody gets all
                     rows
    Broadcast        root not empty, S_d[i] in S_root[i], one member differs from the root   everybody gets the root's
                     state

A step is a set of disjoint groups; it applies iff *every* group satisfies the rule; positions outside keep their state.
Information never decreases and grows with every step, so the graph of reachable states is finite and has no cycles.

A state is stored exactly and compactly: per position the pairs (rows, contributions) as bit masks, one pair per
distinct set of contributions, ascending by lowest row.  Nearly always that is one pair, so 512 positions x 512 rows
cost 512 pairs.

The paper's rules leave open what `Reading` fixes.  `paper` is the default; the others are the alternatives.

Source: P2 (MLSys 2022) sections 3.2, 3.3.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from enum import Enum
from functools import lru_cache
from typing import Final, Protocol, assert_never

DeviceState = tuple[tuple[int, int], ...]
"""(rows, contributions) pairs of bit masks; () is the empty state."""

State = tuple[DeviceState, ...]
"""One device state per position of a reduction group."""

Groups = tuple[tuple[int, ...], ...]
"""Disjoint groups, root first."""


class CollectiveError(ValueError):
    """A collective that is not defined on the states it is applied to, or an unknown reading; the message names the
    group and the rule.
    """


class Collective(Enum):
    """The five collectives of the paper."""

    ALL_REDUCE = "AllReduce"
    REDUCE_SCATTER = "ReduceScatter"
    ALL_GATHER = "AllGather"
    REDUCE = "Reduce"
    BROADCAST = "Broadcast"

    @property
    def short(self) -> str:
        """`AR`, `RS`, `AG`, `R` or `B`."""
        return _SHORT[self]


_SHORT: Final = {
    Collective.ALL_REDUCE: "AR",
    Collective.REDUCE_SCATTER: "RS",
    Collective.ALL_GATHER: "AG",
    Collective.REDUCE: "R",
    Collective.BROADCAST: "B",
}
ALL: Final = tuple(Collective)


class MasterGroups(Enum):
    """Which groups `Master(e)` selects: one per subtree of level e, or only the very first one."""

    PER_ANCESTOR = "per_ancestor"
    GLOBAL_FIRST = "global_first"


@dataclass(frozen=True)
class Reading:
    """What the paper leaves open.  `master`: collectives that Master may use; `master_last`: Master may slice at the
    last level; `skip_empty`: AllReduce, ReduceScatter and Reduce pass over groups that are empty throughout; `strict`:
    Broadcast needs every receiver to know less than the root; `guarded`: Master only if every position outside its
    groups is empty."""

    name: str
    master: tuple[Collective, ...] = (Collective.ALL_REDUCE,)
    masters: MasterGroups = MasterGroups.PER_ANCESTOR
    master_last: bool = True
    skip_empty: bool = False
    strict: bool = False
    guarded: bool = False

    def allowed_collectives(self, master: bool) -> tuple[Collective, ...]:
        """Collectives that an instruction may use; `master`: its form is Master."""
        return self.master if master else ALL


_AR, _RS, _AG, _R, _B = ALL
READINGS: Final = {
    r.name: r
    for r in (
        Reading("paper"),
        Reading("vacuous", (), skip_empty=True),
        Reading("guarded_ag", (_AR, _RS, _AG, _R), guarded=True),
        Reading("guarded_b", (_AR, _RS, _R, _B), guarded=True),
        Reading("strict_a", (_AR, _AG, _B), strict=True),
        Reading("strict_b", (_AR, _RS, _R, _B), strict=True),
        Reading("literal", ALL),
        Reading("literal_first", ALL, MasterGroups.GLOBAL_FIRST),
        Reading("strict_all", ALL, strict=True),
        Reading("no_master", ()),
        Reading("paper_first", masters=MasterGroups.GLOBAL_FIRST, master_last=False),
        Reading("paper_first_last", masters=MasterGroups.GLOBAL_FIRST),
    )
}
"""Named readings; `paper` is R2 of the note, `vacuous` R1, `guarded_ag` R3, `guarded_b` R4, `strict_a` R5,
`strict_b` R6.
"""


def reading(name: str) -> Reading:
    """Reading by name; `CollectiveError` lists the names.

    >>> reading("paper").masters.value
    'per_ancestor'
    """
    if name not in READINGS:
        raise CollectiveError(f"unknown reading {name!r}; choose one of {', '.join(READINGS)}")
    return READINGS[name]


PAPER: Final = READINGS["paper"]


def initial(positions: int, chunks: int) -> State:
    """Everybody holds its own chunks.

    >>> initial(2, 2)
    (((3, 1),), ((3, 2),))
    """
    return tuple((((1 << chunks) - 1, 1 << d),) for d in range(positions))


def final(positions: int, chunks: int) -> State:
    """Everybody holds the sum of everybody's chunks."""
    return ((((1 << chunks) - 1, (1 << positions) - 1),),) * positions


def rows_of(state: DeviceState) -> int:
    """Mask of the rows that are not empty."""
    mask = 0
    for rows, _ in state:
        mask |= rows
    return mask


def apply(state: State, groups: Groups, kind: Collective, rules: Reading = PAPER, master: bool = False) -> State | None:
    """State after one step, or None if some group does not satisfy its rule.

    >>> s = initial(4, 4)
    >>> t = apply(s, ((0, 1), (2, 3)), Collective.REDUCE_SCATTER)
    >>> apply(t, ((0, 2), (1, 3)), Collective.ALL_REDUCE)
    (((3, 15),), ((12, 15),), ((3, 15),), ((12, 15),))
    >>> apply(t, ((0, 1), (2, 3)), Collective.ALL_REDUCE) is None
    True
    """
    if master and rules.guarded:
        inside = {d for group in groups for d in group}
        if any(s for d, s in enumerate(state) if d not in inside):
            return None
    out = list(state)
    for group in groups:
        after = _group([state[d] for d in group], kind, rules)
        if after is None:
            return None
        for d, new in zip(group, after, strict=True):
            out[d] = new
    return tuple(out)


def refusal(state: State, groups: Groups, kind: Collective, rules: Reading = PAPER, master: bool = False) -> str | None:
    """Why `apply` gives None, naming the first group; None if it applies."""
    if apply(state, groups, kind, rules, master) is not None:
        return None
    for group in groups:
        if _group([state[d] for d in group], kind, rules) is None:
            return (
                f"{kind.value} does not apply to the group of positions "
                f"{list(group[:8])}{'..' if len(group) > 8 else ''}: {_NEEDS[kind]}"
            )
    return f"{kind.value} by masters needs every other position to be empty (reading {rules.name!r})"


_NEEDS: Final = {
    _AR: "all members must hold the same rows, and no contribution twice",
    _RS: "all members must hold the same rows, no contribution twice, and their number must be divisible by the size "
    "of the group",
    _R: "all members must hold the same rows, and no contribution twice",
    _AG: "no member may be empty, and no row may be held twice",
    _B: "the root must know at least as much as every member, and more than one of them",
}


def _group(members: Sequence[DeviceState], kind: Collective, rules: Reading) -> Sequence[DeviceState] | None:
    m = len(members)
    match kind:
        case Collective.ALL_REDUCE | Collective.REDUCE_SCATTER | Collective.REDUCE:
            if rules.skip_empty and not any(members):
                return members
            union = _union(members)
            if union is None:
                return None
            if kind is Collective.ALL_REDUCE:
                return (union,) * m
            if kind is Collective.REDUCE:
                return (union, *((),) * (m - 1))
            parts = split_rows(rows_of(union), m)
            if parts is None:
                return None
            return [_cut(union, part) for part in parts]
        case Collective.ALL_GATHER:
            held = 0
            pairs: list[tuple[int, int]] = []
            for s in members:
                rows = rows_of(s)
                if not rows or rows & held:
                    return None
                held |= rows
                pairs.extend(s)
            return (_canonical(pairs),) * m
        case Collective.BROADCAST:
            root = members[0]
            if not root or not all(s == root or _knows(root, s) for s in members[1:]):
                return None
            same = sum(s == root for s in members[1:])
            if same == m - 1 or (rules.strict and same):
                return None
            return (root,) * m
        case _:
            assert_never(kind)


def _union(members: Sequence[DeviceState]) -> DeviceState | None:
    """Row-wise union of members that hold the same rows with disjoint contributions; None if they do not, or hold
    nothing.
    """
    root = members[0]
    if len(root) == 1:
        rows, total = root[0]
        for s in members[1:]:
            if len(s) != 1 or s[0][0] != rows or s[0][1] & total:
                break
            total |= s[0][1]
        else:
            return ((rows, total),)
    held = rows_of(root)
    if not held or any(rows_of(s) != held for s in members):
        return None
    pairs = list(root)
    for s in members[1:]:
        finer = []
        for rows, have in pairs:
            for more, new in s:
                common = rows & more
                if common:
                    if have & new:
                        return None
                    finer.append((common, have | new))
        pairs = finer
    return _canonical(pairs)


def _canonical(pairs: list[tuple[int, int]]) -> DeviceState:
    merged: dict[int, int] = {}
    for rows, c in pairs:
        merged[c] = merged.get(c, 0) | rows
    return tuple(sorted(((rows, c) for c, rows in merged.items()), key=lambda p: p[0] & -p[0]))


def _cut(state: DeviceState, part: int) -> DeviceState:
    if len(state) == 1:
        return ((state[0][0] & part, state[0][1]),)
    return _canonical([(rows & part, c) for rows, c in state if rows & part])


def _knows(root: DeviceState, other: DeviceState) -> bool:
    """Every set of `other` is contained in the root's."""
    for rows, c in other:
        for more, known in root:
            if rows & more:
                if c & ~known:
                    return False
                rows &= ~more
        if rows:
            return False
    return True


@lru_cache(maxsize=65536)
def split_rows(rows: int, parts: int) -> tuple[int, ...] | None:
    """Contiguous equal parts of the ascending list of rows; None if they cannot be equal.

    >>> split_rows(0b1111, 2), split_rows(0b10101, 2)
    ((3, 12), None)
    """
    count = rows.bit_count()
    if count % parts:
        return None
    size = count // parts
    out = []
    part = taken = 0
    while rows:
        low = rows & -rows
        part |= low
        rows ^= low
        taken += 1
        if taken == size:
            out.append(part)
            part = taken = 0
    return tuple(out)


@dataclass(frozen=True)
class LoweredStep:
    """One step on the whole machine: all `groups` (device numbers, root first, disjoint) run at once.

    `rows[g]`: rows that the first device of group g holds before the step (AllGather: after); of `chunks` rows in all,
    so that group g moves S_g = rows[g] / chunks of the payload.
    """

    collective: Collective
    groups: Groups
    rows: tuple[int, ...]
    chunks: int


class CollectiveCost(Protocol):
    """A cost model of steps.  A program costs the sum of its steps."""

    @property
    def name(self) -> str:
        """Names the model with its constants: part of every claim."""
        ...

    @property
    def scale(self) -> int:
        """Costs are integers in units of 1/scale seconds."""
        ...

    def step_time(self, step: LoweredStep) -> int:
        """Cost of one step, rounded once to an integer >= 0."""
        ...
