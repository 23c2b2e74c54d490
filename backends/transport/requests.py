"""Requests: one collective each, as data, so that it can be carried out at once or started now and
finished later.

A resharding is a generator of requests (`backends.execution.steps`); whoever drives it decides.  `Result`: an
array, or per sender an array.
"""

from __future__ import annotations

from collections.abc import Generator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import accumulate, pairwise
from types import ModuleType
from typing import Final, Protocol, TypeGuard

from ...models.program.index import Combine
from ..kernels import Array
from .patterns import Pattern, PatternKind


@dataclass(frozen=True, eq=False)
class ReduceScatter:
    """`parts`: (members, n); the result is the combination of everyone's row of this rank: (n,).

    With `counts`, `parts` is flat: counts[k] elements for member k, and the result has this rank's.
    """

    group: tuple[int, ...]
    parts: Array
    combine: Combine
    counts: tuple[int, ...] | None = None


@dataclass(frozen=True, eq=False)
class AllGather:
    """`array`: (n,); the result is everyone's: (members, n).  With `counts`, member k brings counts[k] elements,
    and the result is flat.
    """

    group: tuple[int, ...]
    array: Array
    counts: tuple[int, ...] | None = None


@dataclass(frozen=True, eq=False)
class AllReduce:
    """`array`: (n,); the result is the combination."""

    group: tuple[int, ...]
    array: Array
    combine: Combine


@dataclass(frozen=True, eq=False)
class Exchanged:
    """Send `outgoing[target]`, receive `incoming[source]` elements of the type of `like`."""

    pattern: Pattern
    outgoing: Mapping[int, Array]
    incoming: Mapping[int, int]
    like: Array


Request = ReduceScatter | AllGather | AllReduce | Exchanged
Result = Array | dict[int, Array]
Steps = Generator[Request | None, Result, Array]
"""Asks for collectives, one per phase, returns the block.  None: this rank has no part in the phase (its result is an
empty dict).

All ranks have the same phases, so that a phase begun early is the same phase on every rank."""


JOINED_BYTES: Final = 1 << 16
"""Bytes up to which collectives are joined: beyond, copying what they bring takes longer than starting another one."""


class Pending(Protocol):
    """A request under way."""

    def poll(self) -> bool:
        """Let it make progress; never waits.  Whether looking again is of no use: `wait` is next."""

    def wait(self) -> Result:
        """Its result."""


def as_one(xp: ModuleType, requests: Sequence[Request]) -> Request | None:
    """One collective that does the work of several of one kind, group, combination and element type, on what they
    bring one behind the other: the same numbers are combined in the same order.  Exchanges between neighbours of one
    group become one, with one message per partner.  None where they differ, where they bring more than `JOINED_BYTES`,
    for those with counts, other exchanges, and all-reduces that the group does not cut evenly (joined, other bytes
    would move).
    """
    first = requests[0]
    if isinstance(first, Exchanged):
        return _one_exchange(xp, [r for r in requests if between_neighbours(r)], len(requests))
    given = [r.parts if isinstance(r, ReduceScatter) else r.array for r in requests if not isinstance(r, Exchanged)]
    if {_alike(r) for r in requests} != {_alike(first)} or len({a.dtype for a in given}) > 1:
        return None
    if sum(a.nbytes for a in given) > JOINED_BYTES:
        return None
    match first:
        case AllReduce(group=group) if any(a.size % len(group) for a in given):
            return None
        case AllReduce() | AllGather(counts=None):
            return replace(first, array=xp.concatenate(given))
        case ReduceScatter(counts=None):
            return replace(first, parts=xp.concatenate(given, axis=-1))
        case _:
            return None


def between_neighbours(request: Request) -> TypeGuard[Exchanged]:
    """Whether it consists of single messages, which nobody else waits for."""
    return isinstance(request, Exchanged) and request.pattern.kind is PatternKind.NEIGHBOURS


def _one_exchange(xp: ModuleType, requests: Sequence[Exchanged], asked: int) -> Exchanged | None:
    if len(requests) < asked or len({(r.pattern.group, r.like.dtype) for r in requests}) > 1:
        return None
    outgoing: dict[int, list[Array]] = {}
    incoming: dict[int, int] = {}
    for r in requests:
        for partner, array in r.outgoing.items():
            outgoing.setdefault(partner, []).append(array)
        for partner, size in r.incoming.items():
            incoming[partner] = incoming.get(partner, 0) + size
    sent = {partner: parts[0] if len(parts) == 1 else xp.concatenate(parts) for partner, parts in outgoing.items()}
    return Exchanged(requests[0].pattern, sent, incoming, requests[0].like)


def _alike(request: Request) -> object:
    match request:
        case AllReduce(group=group, combine=combine):
            return "all-reduce", group, combine
        case ReduceScatter(group=group, combine=combine, counts=counts):
            return "reduce-scatter", group, combine, counts
        case AllGather(group=group, counts=counts):
            return "all-gather", group, counts
        case Exchanged():
            return "exchange"


def apart(result: Result, requests: Sequence[Request]) -> list[Result]:
    """The results of `requests` from that of `as_one`."""
    if isinstance(result, dict):
        taken = dict.fromkeys(result, 0)
        out: list[Result] = []
        for r in requests:
            sizes = r.incoming if isinstance(r, Exchanged) else {}
            out.append({partner: result[partner][taken[partner] : taken[partner] + n] for partner, n in sizes.items()})
            taken |= {partner: taken[partner] + n for partner, n in sizes.items()}
        return out
    given = [r.parts if isinstance(r, ReduceScatter) else r.array for r in requests if not isinstance(r, Exchanged)]
    edges = [0, *accumulate(a.shape[-1] for a in given)]
    return [result[..., a:b] for a, b in pairwise(edges)]


def array_of(result: Result) -> Array:
    """The result of a request that gives one array."""
    if isinstance(result, dict):
        raise TypeError("an exchange gives one array per sender")
    return result


def parts_of(result: Result) -> dict[int, Array]:
    """The result of an exchange."""
    if not isinstance(result, dict):
        raise TypeError("only an exchange gives one array per sender")
    return result
