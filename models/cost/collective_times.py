"""How long a collective takes on real links: start-up per hop, a slow protocol for small buffers, a
fast one for large.

    group      n ranks on N nodes, p = n / N of them on each; m groups at once share the port of a node; R rings
    L          inside a node  a0 + a1 (n - 1)                 across nodes  a0 (n - N) + a1 N      one term per hop
    q          bytes through a port, of a buffer of B bytes:  all_gather, reduce_scatter (n-1)/n B;  all_reduce twice
               that;  alltoall (n-p)/n B per rank;  send_recv B                                    ring, direct sends
    seconds    L e(B) + min( s B / R,  t d + w q / R + c o ),      d = ceil(log2 n), alltoall 1
    o          inside  B / n: a rank's own share, copied      across  m q / p: one flow alone cannot fill the port

Across nodes q carries the factor m (and alltoall the p ranks of a node).  Without a switch, alltoall sends to linked
peers directly (q: its share per peer) and to others around them (o: that share times the unlinked peers).
Six constants per machine, operation and level spanned: a0, a1 (seconds), s (slow), t (start of the fast protocol), w
(wire), c (copy or single flow), all >= 0, and c <= w inside, so that a time never falls with bytes or ranks.  e(B) = 1
below 6 KB, 1 + ramp from 24 KB on, linear between: NCCL opens more channels there; the ramp is one per table of rows.
Links that slow down for large buffers (sockets of a host that fill up) are `late`: then it is the larger of s B / R and
w q / R + c o - t d that counts.

Source of the form: NCCL's protocols (LL, LL128, Simple) and rings, J. Hu et al., "Demystifying NCCL", arXiv 2507.04786;
constants: fitted (`formal.calibration.collective_times`).

>>> fast = CollectiveTime(*(Fraction(x) for x in ("4e-6", "1e-6", "1e-11", "1e-5", "3e-12", "1e-12")))
>>> [float(round(fast.seconds(Operation.ALL_GATHER, Group(n), 1 << 28), 6)) for n in (2, 4, 8)]
[0.000552, 0.000698, 0.000779]
"""

from __future__ import annotations

from dataclasses import KW_ONLY, dataclass
from enum import StrEnum
from fractions import Fraction

__all__ = ["CollectiveTime", "Group", "Operation", "Parts", "parts", "ramp_position"]


class Operation(StrEnum):
    """What a group does together."""

    ALL_GATHER = "all_gather"
    REDUCE_SCATTER = "reduce_scatter"
    ALL_REDUCE = "all_reduce"
    ALL_TO_ALL = "alltoall"
    SEND_RECV = "send_recv"


@dataclass(frozen=True)
class Group:
    """Ranks that communicate.  `sharing`: groups that use a node's port at once; `rings`: of the links inside a node,
    1 behind a switch; `unlinked`: peers without a link of their own, None behind a switch.
    """

    ranks: int
    nodes: int = 1
    sharing: int = 1
    rings: int = 1
    unlinked: int | None = None

    def __post_init__(self) -> None:
        if not (1 <= self.nodes <= self.ranks and self.sharing >= 1 and self.rings >= 1):
            raise ValueError(f"{self}: needs 1 <= nodes <= ranks, sharing and rings at least 1")

    @property
    def per_node(self) -> Fraction:
        """Ranks of the group on each node."""
        return Fraction(self.ranks, self.nodes)


@dataclass(frozen=True)
class Parts:
    """What each constant is multiplied with: `fixed`, `hops` (counts), `slow`, `wire`, `own` (bytes), `depth`."""

    fixed: Fraction
    hops: Fraction
    slow: Fraction
    depth: Fraction
    wire: Fraction
    own: Fraction


def parts(operation: Operation, group: Group, size: Fraction | int) -> Parts:
    """The six multipliers of one collective; `size`: bytes of the buffer (all_gather: the result, reduce_scatter: the
    input, alltoall: what one rank holds).

    >>> parts(Operation.ALL_REDUCE, Group(8), 800).wire, parts(Operation.SEND_RECV, Group(2, 2), 800).wire
    (Fraction(1400, 1), Fraction(800, 1))
    """
    n, b, p = group.ranks, Fraction(size), group.per_node
    away = Fraction(n - 1, n)
    depth = Fraction(1 if operation is Operation.ALL_TO_ALL else (n - 1).bit_length())
    wire = {
        Operation.ALL_REDUCE: 2 * away * b,
        Operation.SEND_RECV: b,
    }.get(operation, away * b)
    if group.nodes > 1:
        if operation is Operation.ALL_TO_ALL:
            wire = p * (n - p) / n * b
        load = wire * group.sharing
        return Parts(n - Fraction(group.nodes), Fraction(group.nodes), b * group.sharing, depth, load, load / p)
    if operation is Operation.ALL_TO_ALL:
        share = b / n
        if group.unlinked is not None:
            return Parts(Fraction(1), Fraction(n - 1), share, depth, share, share * group.unlinked)
        return Parts(Fraction(1), Fraction(n - 1), b, depth, wire, share)
    rings = group.rings
    return Parts(Fraction(1), Fraction(n - 1), b / rings, depth, wire / rings, b / n / rings)


def ramp_position(size: Fraction | int) -> Fraction:
    """How far a buffer is on the ramp between 6 KB and 24 KB, from 0 to 1.

    >>> [ramp_position(x) for x in (512, 15_000, 1 << 20)]
    [Fraction(0, 1), Fraction(1, 2), Fraction(1, 1)]
    """
    return min(max((Fraction(size) - 6_000) / 18_000, Fraction(0)), Fraction(1))


@dataclass(frozen=True)
class CollectiveTime:
    """Six constants of one operation on one level of a machine, seconds and seconds per byte; see the module."""

    fixed: Fraction
    hop: Fraction
    slow: Fraction
    start: Fraction
    wire: Fraction
    own: Fraction
    _: KW_ONLY
    ramp: Fraction = Fraction(0)
    late: bool = False

    def seconds(self, operation: Operation, group: Group, size: Fraction | int) -> Fraction:
        """The exact time of one collective."""
        x = parts(operation, group, size)
        latency = (self.fixed * x.fixed + self.hop * x.hops) * (1 + self.ramp * ramp_position(size))
        slow, quick, start = self.slow * x.slow, self.wire * x.wire + self.own * x.own, self.start * x.depth
        return latency + (max(slow, quick - start) if self.late else min(slow, quick + start))
