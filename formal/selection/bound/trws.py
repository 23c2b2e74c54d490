"""The messages of a network, as sequential tree-reweighted message passing (TRW-S) reads and writes
them: over factored tables, in integers.

State: one message per edge end, m_e,u over table rows and m_e,v over table columns, in units of 1/Q.  With

    theta_v(a) = c_v(a) + sum_{e at v} m_e,v(index of a)          bracket_e(r, c) = T_e[r, c] - m_e,u(r) - m_e,v(c)

any messages give the bound   constant + sum_v min theta_v + sum_e min bracket_e.   A sweep visits the vertices in a
fixed order; vertex u gives the share gamma_u of theta_u - min theta_u to each edge ahead, in whole units,

    m_e,u(r) -= delta(r),   delta(r) = min_{a in class r} gamma_u (theta_u(a) - min theta_u)
    m_e,v(c)  = min_r ( T_e[r, c] - m_e,u(r) )

after which min bracket_e = 0.  With a edges ahead and b behind, gamma is 1/max(a, b).  The bound never falls.

Integers, not floats: minima of int64 are as fast as those of double (8 lanes), tables are read where they are, and the
messages are a certificate as they stand.  Only the excess over the minimum travels, so numbers stay of local size.
Sweeps: `bound/accelerated.py`, their loops: `bound/sweep_kernels.py`.

Source: Kolmogorov, "Convergent tree-reweighted message passing", TPAMI 2006; the same, "A new look at reweighted
message passing", TPAMI 2015.
"""

from __future__ import annotations

import numpy as np

from ....models.problem.selection_problem import Ints
from ....proofs.selection.certificates import Dual
from ..model.factored import Network, saturate
from ..options.bound import BOUND, BoundOptions
from .dual import gather, spread


def message_limit(network: Network) -> int:
    """Messages of at most this magnitude cannot make an int64 sum wrap on this network."""
    most = max((len(a) for a in network.around), default=0)
    return (1 << 57) // (most + 4)


class Sweeper:
    """Messages on one network, and the order of its sweeps.  `to_u[e]`, `to_v[e]`: shape (rows,), (columns,) of the
    kept table of arc e.

    `extra[v]`: what the multipliers of resource rows add to the costs of v's labels.
    """

    def __init__(
        self, network: Network, order: list[int] | None = None, threads: int = 1, options: BoundOptions = BOUND
    ) -> None:
        self.network = network
        self.options = options
        self.threads = threads
        self.limit = message_limit(network)
        self.extra: list[Ints | None] = [None] * len(network.unary)
        zeros: dict[int, Ints] = {}
        self.to_u: list[Ints] = [_zero(network.tables[a.table].shape[0], zeros) for a in network.arcs]
        self.to_v: list[Ints] = [_zero(network.tables[a.table].shape[1], zeros) for a in network.arcs]
        self.order = list(range(len(network.unary))) if order is None else order

    def costs(self, v: int) -> Ints:
        """A fresh array with the costs of the labels of `v`, multipliers included."""
        extra = self.extra[v]
        return self.network.unary[v].copy() if extra is None else saturate(self.network.unary[v] + extra)

    def theta(self, v: int) -> Ints:
        """Reparametrised cost of the labels of `v`; FORBIDDEN where not allowed."""
        out = self.costs(v)
        for e in self.network.around[v]:
            arc = self.network.arcs[e]
            message, index = (self.to_u[e], arc.rows) if arc.u == v else (self.to_v[e], arc.cols)
            out += message if index is None else message[index]
        return saturate(out)

    def dual(self, multipliers: tuple[tuple[int, int], ...] = ()) -> Dual:
        """The messages as a record, with these multipliers in their costs."""
        return Dual(*spread(self.network, self.to_u, self.to_v), self.network.base.denominator, multipliers)


def _zero(size: int, known: dict[int, Ints]) -> Ints:
    return known.setdefault(size, np.zeros(size, dtype=np.int64))


def load(sweeper: Sweeper, warm: Dual) -> None:
    """Start `sweeper` from the messages of a record (of any denominator)."""
    to_u, to_v = gather(sweeper.network, warm)
    q = sweeper.network.base.denominator
    sweeper.to_u = [m if q == warm.denominator else m * q // warm.denominator for m in to_u]
    sweeper.to_v = [m if q == warm.denominator else m * q // warm.denominator for m in to_v]
