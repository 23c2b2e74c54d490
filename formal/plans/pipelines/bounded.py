"""Bounds one number of stages and micro-batches from below: leaves of runs of units, and what they say of
all cuts.

Leaves are runs of one unit, then of two, of four ..; equal ones are solved once.  Where reshardings run beside
operators, they count weighted channels (`models.pipelines.channels`).
"""

from __future__ import annotations

from dataclasses import dataclass, field
from fractions import Fraction
from functools import cached_property
from itertools import accumulate, product
from math import floor
from time import process_time

from ....models.cost.selection import Planning, build
from ....models.machine.machine import Machine
from ....models.pipelines.bound import IMPOSSIBLE, Bounds, Triangle, all_cuts_reach, least
from ....models.pipelines.channels import Channels
from ....models.pipelines.cuts import Hops, Passes, least_cut
from ....models.pipelines.exchange import Exchange
from ....models.pipelines.forbidden import without
from ....models.pipelines.nodes import loose, nodes
from ....models.pipelines.pieces import Pieces
from ....models.pipelines.views import equal_submesh, send_between, send_time
from ....models.pipelines.work import PER_SECOND, unit_work
from ....proofs.pipelines.certificate import Leaf
from ...selection.model.clock import Clock
from ..time_limit import TooSlow, problem_check_s
from .channels import weights
from .job import Job
from .known import Group, Placed, triangles, weighted_group, work_group
from .leaf import solve_leaf

WEIGHTS_SHARE = 0.1
"""Of the time that is left, to find weights of channels of one case."""

FINE = 16
"""Binary digits to which the bound of a case is found."""

ROOM = Fraction(3, 4)
"""Of the memory, for what stays and what is kept if evenly split; the rest is for what comes, goes, or is uneven."""

NO_STEP = 1 << 62
"""Picoseconds: no plan is known, or none fits."""

NO_LIMIT = 1 << 50
"""Bytes; rows are built all the same, to say what a stage needs."""


@dataclass(eq=False)
class Bounded:
    """`stages` stages and `micro` micro-batches.  `bound`: picoseconds that a step takes at least; `coarse`: what least
    work alone says; `chunks`: on each of `stages` views (`interleaved`);
    `begins`: cuts from which better ones are looked for; `weighed`: leaves of `channels`, where phases overlap;
    `tried`: weights that were looked at.  `guard`: until when tables may be built.
    """

    job: Job
    stages: int
    micro: int
    leaves: dict[tuple[int, int, int, bool], Leaf] = field(default_factory=dict)
    passes: dict[tuple[int, int, str], Leaf] = field(default_factory=dict)
    weighed: dict[tuple[object, ...], Placed] = field(default_factory=dict)
    channels: list[Channels] = field(default_factory=list)
    tried: list[Channels] = field(default_factory=list)
    bound: int = 0
    coarse: int = 0
    starts: tuple[int, ...] = ()
    size: int = 0
    looked: bool = False
    chunks: int = 1
    begins: tuple[tuple[int, ...], ...] = ()
    guard: Clock | None = None
    _pieces: Pieces | None = None
    _joined: Pieces | None = None

    def __post_init__(self) -> None:
        machine = equal_submesh(self.job.machine, self.stages)
        assert machine is not None
        self.machine = machine
        self.graph = self.job.micro_batch(self.micro)
        self.work = unit_work(self.job.amounts(self.micro), machine)
        self.forward = unit_work(self.job.amounts(self.micro), machine, "F")
        self.backward = unit_work(self.job.amounts(self.micro), machine, "B") if self.job.overlap else []
        self.fixed, self.kept, self.crowded = self.job.unit_bytes(self.micro)
        self.nodes = nodes(machine, self.job.where) if self.job.single else None

    @property
    def parts(self) -> int:
        """Runs of units that a plan has."""
        return self.stages * self.chunks

    @property
    def home(self) -> Bounded:
        """The case whose tables this one uses."""
        return self

    @property
    def pieces(self) -> Pieces:
        """The problem on one view, built when it is first needed."""
        if self._pieces is None:
            limit = NO_LIMIT if self.job.memory is None else self.job.memory
            planning = self._built(self.machine, limit, False)
            planning = without(planning, self.job.division, self.job.forbidden)
            self._pieces = Pieces(planning, self.job.division)
        return self._pieces

    @property
    def node_pieces(self) -> Pieces:
        """The problem in which every node of the view is one device; only where there are `nodes`."""
        if self._joined is None:
            assert self.nodes is not None
            planning = self._built(self.nodes, None, True)
            self._joined = Pieces(planning, self.job.division, loose(planning), True)
        return self._joined

    def _built(self, machine: Machine, limit: int | None, joined: bool) -> Planning:
        """A problem, built or from the shelf, and a note of what its check takes."""
        shelf, case = self.job.shelf, (self.stages, self.micro, joined)
        known = None if shelf is None else shelf.get((self.job.graph.sha256(), *case))
        if known is None:
            begun = process_time()
            planning = build(self.graph, machine, self.job.where, limit, self.in_time)
            known = planning, problem_check_s(process_time() - begun)
            if shelf is not None:
                shelf.put((self.job.graph.sha256(), *case), *known)
        planning, self.job.check_s[case] = known
        return planning

    def in_time(self, done: int, total: int) -> None:
        """Hears of tables that are built; `TooSlow` when their time is over."""
        if self.guard is not None and self.guard.remaining_s() <= 0:
            less = "raise it, or ask for less (--space one-per-level)"
            raise TooSlow(f"tables of {self.job.where.name!r} do not fit into the time limit: {less}")

    def adopt_tables(self, other: Bounded) -> None:
        """Take the tables of an equal case of another search of the same step, which may have left the shelf."""
        if self._pieces is None and other._pieces is not None:
            key = self.stages, self.micro, False
            self._pieces, self.job.check_s[key] = other._pieces, other.job.check_s[key]

    def forget(self) -> None:
        """Give the tables back; leaves and bound stay."""
        self._pieces = self._joined = None

    @property
    def weighed_leaves(self) -> list[Leaf]:
        """Leaves of weighted channels."""
        return [leaf for leaf, _, _ in self.weighed.values()]

    def bounds(self) -> Bounds:
        """What every run of units takes at least, as far as it is known."""
        return self.run_bounds()[1]

    def passes_known(self, both: Bounds) -> Passes:
        """What is known of runs of units, forward and backward apart."""
        return Passes(*self.run_bounds()[0], both.one, both.updated, both.step)

    def run_bounds(self) -> tuple[tuple[Triangle, Triangle], Bounds]:
        """What runs of units take at least: forward and backward apart, and all else."""
        groups: dict[Channels | None, Group] = {None: work_group(self.forward, self.backward, self.work, self.micro)}
        runs = [((i, j), leaf) for (i, j, _, _), leaf in self.leaves.items()]
        runs += [((i, j), leaf) for (i, j, _), leaf in self.passes.items()]
        for (i, j), leaf in runs:
            groups[None].learn(leaf, i, j)
        for leaf, i, j in self.weighed.values():
            assert leaf.channels is not None
            if leaf.channels not in groups:
                groups[leaf.channels] = weighted_group(leaf.channels, self.forward, self.backward, self.micro)
            groups[leaf.channels].learn(leaf, i, j)
        n = self.job.division.units
        forward, backward, *found = triangles(n, groups.values())
        for i in range(n):
            for j in range(i + 1, n + 1):
                if self.too_heavy(i, j):
                    for rows in found:
                        rows[i][j] = IMPOSSIBLE
        return (forward, backward), Bounds(*found)

    def exchange(self, ends: tuple[int, ...]) -> Exchange:
        """What stages that end before these units send each other once a step."""
        return self.job.exchange(ends)

    def hops(self) -> Hops:
        """Sends in front of every stage, in picoseconds."""
        cuts, stages = self.job.division.cuts, range(1, self.parts)

        def ways(k: int) -> list[list[int]]:
            return [[], *([0, *(floor(PER_SECOND * self.hop(pair[k], s)) for pair in cuts)] for s in stages)]

        return Hops(ways(0), ways(1))

    def hop(self, tensor: str, boundary: int) -> Fraction:
        """Seconds to send a tensor between the stages (chunks: they go around) at a boundary."""
        t = self.graph.tensor(tensor)
        return send_between(self.job.machine, self.stages, t.elements * t.element_bytes, boundary)

    def too_heavy(self, first: int, end: int) -> bool:
        """Whether no placement of these units fits the memory, evenly split over a view, with one activation kept."""
        limit = self.job.memory
        return limit is not None and self.live_bytes(first, end, 1) > limit * self.machine.devices

    def live_bytes(self, first: int, end: int, activations: int) -> int:
        """Bytes that a stage of these units has at least, on all its devices together, with so many activations."""
        fixed, kept = self._sums
        return fixed[end] - fixed[first] + activations * (kept[end] - kept[first])

    @cached_property  # bounds ask for every run of units
    def _sums(self) -> tuple[list[int], list[int]]:
        """Bytes of all units in front of every one."""
        return [0, *accumulate(self.fixed)], [0, *accumulate(self.kept)]

    def roomy(self) -> bool:
        """Whether the first of even stages has room for as many activations as there are stages, which 1F1B keeps, and
        the last one, where losses are computed, for its fullest unit, as it is written and as it is read.
        """
        limit, units = self.job.memory, self.job.division.units
        first = -(-units // self.parts)
        most = self.live_bytes(0, first, min(self.parts, self.micro))
        last = sum(self.fixed[units - first :]) + 2 * max(self.crowded[units - first :])
        return limit is None or max(most, last) <= ROOM * limit * self.machine.devices

    def sends(self) -> list[int]:
        """Per cut, picoseconds there and back at least; one entry per unit, the first of no meaning."""
        return [0, *(floor(PER_SECOND * self.send(c, False)) for c in range(1, self.job.division.units))]

    def send(self, cut: int, outermost: bool) -> Fraction:
        """Seconds to send forward and back at a cut."""
        return sum((self.one_way(t, outermost) for t in self.job.division.cuts[cut - 1]), Fraction(0))

    def one_way(self, tensor: str, outermost: bool) -> Fraction:
        """Seconds to send a tensor to the neighbouring view."""
        t = self.graph.tensor(tensor)
        return send_time(self.job.machine, self.stages, t.elements * t.element_bytes, outermost)

    def update_bound(self, most: int) -> None:
        """The bound again, after leaves came in; `most`: what is of no interest."""
        known, sends = self.bounds(), self.sends()
        value, starts = least(known, self.micro, sends, self.stages, most)
        self.starts = starts or self.starts
        there = [0, *(floor(PER_SECOND * self.one_way(pair[0], False)) for pair in self.job.division.cuts)]

        def holds(value: int) -> bool:
            return all_cuts_reach(known, self.forward, self.micro, sends, there, self.stages, value)

        low, high = max(self.bound, value), most
        step = max(1, low >> 8)
        while low < most and step > low >> FINE:  # longer steps while they hold, then shorter ones
            at = min(low + step, high, most)
            if at > low and holds(at):
                low, step = at, 2 * step if high == most else step // 2
            else:
                high, step = at, step // 2
        self.bound = low
        if (self.passes or self.weighed) and self.starts and self.stages > 1 and low < most:
            better = least_cut(self.passes_known(known), self.hops(), self.micro, self.starts, low, most)
            if better is not None:
                self.bound, self.starts = better[0], better[1] or self.starts

    def look(self, clock: Clock, most: int = NO_STEP) -> None:
        """Solve leaves of one unit on nodes, where there are some: a bound that costs little."""
        self.looked = True
        if self.nodes is not None:
            self._prove(1, clock, most, True)
            self._joined = None

    def prove(self, size: int, clock: Clock, most: int = NO_STEP) -> None:
        """Solve the leaves of `size` units, those that say most first, until the bound is `most`."""
        self.looked = True
        self._prove(size, clock, most, False)
        self.size = size

    def _prove(self, size: int, clock: Clock, most: int, joined: bool) -> None:
        whole, n = self.node_pieces if joined else self.pieces, self.job.division.units
        for pieces, (times, once, phase) in product(self.weighing(whole, clock), self._kinds()):
            alike: dict[object, list[int]] = {}
            for i in range(n - size + 1):
                key = pieces.pass_key(i, i + size) if phase else pieces.key(i, i + size, once)
                if pieces.channels is not None:
                    key = pieces.weighed_key(i, i + size, once)
                alike.setdefault(key, []).append(i)
            for runs in sorted(alike.values(), key=lambda runs: (-len(runs), runs[0])):
                leaf = self._solved(pieces, (runs[0], runs[0] + size), times, once, phase, clock)
                if leaf is not None:
                    for i in runs:
                        self._learn(leaf, i, i + size)
                    if most < NO_STEP:
                        self.update_bound(most)
                    if self.bound >= most:
                        return

    def _solved(
        self, pieces: Pieces, run: tuple[int, int], times: int, once: bool, phase: str, clock: Clock
    ) -> Leaf | None:
        """See `leaf.solved`."""
        return solve_leaf(pieces, (self.stages, self.micro), run, times, once, phase, clock)

    def _learn(self, leaf: Leaf, first: int, end: int) -> None:
        """A leaf of these units, unless one is known that says as much."""
        if leaf.channels is not None:
            key = (first, end, leaf.times, leaf.once, leaf.phase, leaf.channels)
            if key not in self.weighed or self.weighed[key][0].bound < leaf.bound:
                self.weighed[key] = leaf, first, end
        elif leaf.phase:
            before = self.passes.get((first, end, leaf.phase))
            if before is None or before.bound < leaf.bound:
                self.passes[first, end, leaf.phase] = leaf
        else:
            before = self.leaves.get((first, end, leaf.times, leaf.once))
            if before is None or before.bound < leaf.bound:
                self.leaves[first, end, leaf.times, leaf.once] = leaf

    def weighing(self, pieces: Pieces, clock: Clock) -> list[Pieces]:
        """The problem with every weights of channels that its leaves have; itself where nothing overlaps."""
        if not self.job.overlap:
            return [pieces]
        if not self.channels:
            best, *others = weights(pieces, self.micro, clock.share(WEIGHTS_SHARE))
            self.channels.append(best)
            self.tried += [best, *others]
        return [pieces.weighing(channels) for channels in self.channels]

    def _kinds(self) -> list[tuple[int, bool, str]]:
        """What leaves count: (micro-batches, whether updates too, the pass or both).  Of one stage the step counts, of
        several what a micro-batch takes too.
        """
        if self.stages == 1:
            return [(self.micro, True, "")]
        whole = dict.fromkeys([(self.micro, True, ""), (1, False, ""), (1, True, "")])
        return [*whole, (1, False, "F"), (1, False, "B")]

    def prove_run(self, first: int, end: int, clock: Clock) -> None:
        """Solve the leaves of one run of units, however many a step counts."""
        for times, once in sorted({(1, False), (1, True), (self.micro, True)}):
            leaf = self._solved(self.pieces, (first, end), times, once, "", clock)
            if leaf is not None:
                self._learn(leaf, first, end)
