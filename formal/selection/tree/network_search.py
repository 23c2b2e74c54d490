"""Branch and bound on small networks without resource rows, known as hybrid best-first search.

    presolve    what is left is searched (`presolve/presolve.py`): pairs, one table each
    node        messages are swept until the bound stalls, labels leave by reduced costs, again while many do: each
                round is one `Dual` record, and what it fixes holds below
    branching   a few vertices are tried, each part swept once; the one whose parts would leave the smallest tree
    order       depth first for some nodes, then from the open node of least bound
    restart     a tree that is not done after the first nodes begins anew, from messages of the linear relaxation

Records stay valid when a better solution turns up: a bound on fewer labels is no smaller, and against a smaller cost
more leave (`network_records`).
Sources: Allouche et al., "Anytime hybrid best-first search with tree decomposition for weighted CSP", 2015; Cooper et
al., "Soft arc consistency revisited", 2010.
"""

from __future__ import annotations

import heapq
from collections.abc import Callable

import numpy as np

from ....models.problem.selection_problem import Ints
from ....proofs.selection.certificates import Dual, Open, Record
from ..engines.encodings.relaxation import Relaxation
from ..model.dense import alternating, sides
from ..model.factored import Base
from ..model.infinity import INFINITY, NOTHING
from ..presolve.presolve import presolve
from . import network_kernels as kernels
from .network_kernels import FAR
from .network_nodes import Net, Node, first_node
from .network_records import record_of
from .run import Run

Heap = list[tuple[float, int, "Node"]]
"""Open nodes, least bound first."""


class NetworkSearch:
    """One search of the problem of `run`."""

    def __init__(self, run: Run) -> None:
        self.outer, self.options, self.clock = run, run.options.network, run.clock
        self.held = self.records = self.spent = self.count = 0
        self.begun_s = self.clock.seconds()
        self.goal = INFINITY

    def run(self) -> tuple[Record, int] | None:
        """A record and the bound that it establishes.  None where presolve cannot begin, or numbers are too large."""
        run = self.outer
        run.progress.update("reduction", None, None)
        presolved = presolve(run.problem, clock=self.clock, options=run.options.presolve)
        if presolved is None:
            return None
        if presolved.problem is None:
            return presolved.proof_back(Open()), INFINITY
        net = Net.of(presolved.problem, presolved.solution_back)
        if net is None:
            return None
        root = first_node(net, None, -FAR, 0)
        if not self._eliminated(root):
            open_: Heap = [(root.key, 0, root)]
            self._search(open_, self.options.first)
            if open_ and not self._over():
                core = self._core(root)
                if self._relaxed(core):
                    open_ = [(core.key, 0, core)]
                self._search(open_)
        record, bound = record_of(root, self.target, self.slack)
        if NOTHING < bound < run.enough():  # the tree is not done: what is above its bound already needs nothing below
            self.goal = bound
            record, bound = record_of(root, self.target, self.slack)
        return presolved.proof_back(record), bound if bound >= INFINITY else min(bound, run.incumbent.cost)

    def _eliminated(self, node: Node) -> bool:
        """Whether the whole problem of `node` was solved by elimination: as much of it is allowed as is little beside
        what the search has taken so far.
        """
        work = max(self.options.work, self.spent >> 5)
        network = node.net.flat.network
        outcome = self.outer.eliminate(network, min(work, self.outer.limits.last_joint), work)
        if outcome is None:
            return False
        if outcome.choice is not None:
            self.outer.incumbent.offer(node.net.lift(network.solution(outcome.choice)))
        node.exact = outcome.record
        self.records += 1
        return True

    def target(self, net: Net) -> int:
        """The bound, without the constant, that closes a node."""
        upper = min(self.outer.enough(), self.goal)
        return FAR >> 1 if upper >= INFINITY else net.q * (upper - 1) + 1 - net.constant

    def slack(self, net: Net) -> int:
        """Labels whose bound is above leave."""
        upper = self.outer.incumbent.cost
        return FAR >> 1 if upper >= INFINITY else net.q * (upper - 1) - net.constant

    # ------------------------------------------------------------------ the tree

    def _core(self, root: Node) -> Node:
        """The node at which the tree begins: those above were fixed and presolved, not branched on."""
        while root.reduced is not None and root.reduced[1] is not None:
            root = root.reduced[1]
        return root

    def _relaxed(self, node: Node) -> bool:
        """Whether the linear relaxation improves the messages of `node`, whose tree then begins anew."""
        net = node.net
        domains = net.domains(node.cnt, node.lab)
        pairs = net.flat.problem.edges
        if not node.children or sum(domains[e.u].size * domains[e.v].size for e in pairs) > self.options.relaxed:
            return False
        to_u, to_v = sides(net.flat.graph, node.messages)
        program = Relaxation(net.flat.problem, Base(net.flat.problem, net.q))
        found = program.solve(domains, Dual(tuple(to_u), tuple(to_v), net.q), self.clock).dual
        if found is None:
            return False
        messages = alternating(found.to_u, found.to_v)
        bound = self._settled(net, messages.copy(), node.cnt, node.lab, 0, 1)
        if bound <= node.bound:
            return False
        node.messages, node.children, node.vertex, node.bound = messages, [], -1, bound
        return True

    def _search(self, open_: Heap, nodes: int | None = None) -> None:
        """Work on open nodes, so many at most."""
        while open_ and not self._over() and (nodes is None or nodes > 0):
            _, _, node = heapq.heappop(open_)
            if node.depth:
                self.outer.progress.update("tree", node.net.units(node.bound), self.outer.upper())
            stack, left = [node], self.options.dive
            while stack and left > 0 and not self._over():
                node = stack.pop()
                left -= 1
                self._work(node)
                below = node.reduced[1] if node.reduced is not None else None
                stack += reversed(node.children) if below is None else [below]
            nodes = None if nodes is None else nodes - self.options.dive + left
            for node in stack:
                self.count += 1
                heapq.heappush(open_, (node.key, self.count, node))

    def _over(self) -> bool:
        """Out of time, of which the check of what was found has its part, or of room."""
        at = self.options
        full = self.held > at.held or self.records > at.records
        if full or self.clock.over():
            return True
        taken = self.clock.seconds() - self.begun_s
        return not self.clock.counts and self.clock.remaining_s() < self.options.check * taken

    def _work(self, node: Node) -> None:
        """Bound the node, fix labels, branch."""
        at, net = self.options, node.net
        flat = net.flat
        if node.depth and node.first and self._eliminated(node):
            return
        node.cnt, node.lab = node.cnt.copy(), node.lab.copy()
        messages = node.messages.copy()
        for turn in range(at.rounds):
            if int(node.cnt.max(initial=1)) == 1:
                node.point = True
                self._offer(node, node.lab[flat.label[:-1]], 0)
                return
            root = not node.depth
            self.clock.charge(flat.entries // 100)
            sweeps, share = (at.root_sweeps, at.share[0]) if root else (at.sweeps, at.share[1])
            bound = self._settled(net, messages, node.cnt, node.lab, sweeps, share)
            self._keep(node, messages, bound)
            if bound >= self.target(net):
                return
            self._primal(node, messages, self.outer.options.primal.turn_moves if root and not turn else 0)
            if bound >= self.target(net):
                return
            before = int(node.cnt.sum())
            gone = kernels.drop(flat.label, node.cnt, node.lab, net.excess, self.slack(net) - bound)
            if gone < 0:
                node.empty = True
                return
            if gone < at.again * before:
                break
        else:
            self._settled(net, messages, node.cnt, node.lab, 0, 1)  # excesses on what is left
        if int(node.cnt.max(initial=1)) == 1:
            node.point = True
            self._offer(node, node.lab[flat.label[:-1]], 0)
        elif int(node.cnt.sum()) > (at.shrink / 2 if net.dense else at.shrink) * flat.labels or not self._reduced(node):
            self._branch(node)

    def _settled(self, net: Net, messages: Ints, cnt: Ints, lab: Ints, most: int, share: int) -> int:
        """The bound of the labels left, after at most so many double sweeps; `net.excess` beside it."""
        self.spent += net.flat.entries * (1 + most)
        return int(
            kernels.settle(
                net.flat.graph,
                net.weight,
                net.cells,
                messages,
                cnt,
                lab,
                net.excess,
                (self.target(net), most, share),
            )
        )

    def _keep(self, node: Node, messages: Ints, bound: int) -> None:
        """A round of the node; messages of labels that have left are nobody's."""
        if not np.array_equal(messages, node.messages):
            node.messages = np.zeros_like(messages)
            kernels.write_messages(node.net.flat.graph, messages, node.cnt, node.lab, node.messages)
            self.held += messages.nbytes
        node.duals.append((node.messages, bound))
        node.bound = max(node.bound, bound)
        self.records += 1

    def _reduced(self, node: Node) -> bool:
        """Presolve what is left; False where that cannot be."""
        net = node.net
        domains = net.domains(node.cnt, node.lab)
        presolved = presolve(net.flat.problem, domains, self.clock, self.outer.options.presolve)
        if presolved is None:
            return False
        self.records += 1
        if presolved.problem is None:
            node.reduced = presolved, None
            return True
        lift = _chain(net.lift, presolved.solution_back)
        inner = Net.of(presolved.problem, lift)
        if inner is None:
            return False
        inner.dense = inner.flat.entries > net.entries(node.cnt)
        to_u, to_v = sides(net.flat.graph, node.messages)
        there = presolved.messages_there(Dual(tuple(to_u), tuple(to_v), net.q))
        messages = alternating(there.to_u, there.to_v) * inner.q // net.q
        bound = (node.bound + net.constant) * inner.q // net.q - inner.constant
        node.reduced = presolved, first_node(inner, messages, bound, node.depth + 1)
        return True

    # ------------------------------------------------------------------ solutions

    def _primal(self, node: Node, messages: Ints, rounds: int) -> None:
        net = node.net
        x = np.empty(net.flat.vertices, dtype=np.int64)
        kernels.decode(net.flat.graph, net.weight, net.cells, messages, node.cnt, node.lab, x)
        self._offer(node, x, rounds)

    def _offer(self, node: Node, x: Ints, rounds: int) -> None:
        """Descend from `x`, then offer it if it is better."""
        net = node.net
        cost = kernels.improve(
            net.flat.graph, net.weight, net.cells, node.cnt, node.lab, x, rounds, 1 + len(node.duals)
        )
        if cost < FAR >> 1 and cost <= self.slack(net):
            self.outer.incumbent.offer(net.lift(net.flat.solution(x)))

    # ------------------------------------------------------------------ branching

    def _branch(self, node: Node) -> None:
        net = node.net
        excess = net.excess.copy()
        best: tuple[float, int, list[tuple[int, ...]], list[int]] | None = None
        target = self.target(net)
        base, gap = node.bound, max(1, min(target, FAR >> 2) - node.bound)
        for v in self._candidates(node, excess):
            parts = self._parts(node, v, excess)
            reached = []
            for part in parts:
                cnt, lab = net.with_part(node.cnt, node.lab, v, part)
                reached.append(self._settled(net, node.messages.copy(), cnt, lab, 1, 1))
            size = sum(0.0 if r >= target else 2.0 ** (-8.0 * max(0, r - base) / gap) for r in reached)
            if best is None or size < best[0] - 1e-12:
                best = size, v, parts, reached
            if size == 0.0:
                break
        if best is None:
            raise ValueError("no vertex to branch on")
        _, node.vertex, parts, reached = best
        order = sorted(range(len(parts)), key=lambda k: (reached[k], k))
        node.parts = tuple(tuple(sorted(parts[k])) for k in order)
        self.records += 1
        for k in order:
            cnt, lab = net.with_part(node.cnt, node.lab, node.vertex, parts[k])
            bound = max(node.bound, min(reached[k], FAR))
            node.children.append(Node(net, bound, cnt, lab, node.messages, node.depth + 1))

    def _candidates(self, node: Node, excess: Ints) -> list[int]:
        """Vertices worth a trial: of few labels for their degree, and of much excess beside the cheapest label."""
        label, degree = node.net.flat.label, node.net.degree
        narrow: list[tuple[float, int]] = []
        second: list[tuple[int, int]] = []
        for i in np.flatnonzero(node.cnt > 1).tolist():
            here, k = label[i], int(node.cnt[i])
            mine = excess[here + node.lab[here : here + k]]
            narrow.append((k / (1.0 + degree[i]), i))
            second.append((-int(np.partition(mine, 1)[1]), i))
        both = [v for pair in zip(sorted(second), sorted(narrow), strict=True) for _, v in pair]
        return list(dict.fromkeys(both))[: self.options.candidates]

    def _parts(self, node: Node, v: int, excess: Ints) -> list[tuple[int, ...]]:
        here = node.net.flat.label[v]
        labels = node.lab[here : here + node.cnt[v]]
        ranked: list[int] = labels[np.argsort(excess[here + labels], kind="stable")].tolist()
        if len(ranked) <= self.options.singles:
            return [(a,) for a in ranked]
        return [(ranked[0],), tuple(ranked[1:])]


def _chain(
    outer: Callable[[tuple[int, ...]], tuple[int, ...]], inner: Callable[[tuple[int, ...]], tuple[int, ...]]
) -> Callable[[tuple[int, ...]], tuple[int, ...]]:
    return lambda x: outer(inner(x))
