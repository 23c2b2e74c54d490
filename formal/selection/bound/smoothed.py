"""This module raises the bound of a dense problem along a smoothed dual, annealed from phase to phase: sweeps with a
soft minimum, multiplier steps along expected usage.

A sweep with plain minima gets stuck where no single vertex can raise the bound, and usage of one decoded solution is a
noisy direction for the multipliers.  With  softmin_t(x) = -t ln sum exp(-x / t)  instead, the dual has one maximum,
messages move all the time, and the shares

    p_v(a)  ~  exp(-gamma_v theta_v(a) / t),     gamma_v = 1 / max(edges ahead, edges behind)

that a sweep leaves are nearly those of the relaxed solution: their expected usage is the gradient for the rows, and
what MIR cuts are separated from.  t falls from phase to phase in proportion to the gap per vertex.  Any messages
and multipliers are valid, so after every phase a few plain sweeps tell the true bound; nothing here is trusted.
Source: T. Meltzer, A. Globerson, Y. Weiss, "Convergent message passing algorithms: a unifying view", UAI 2009.
"""

from __future__ import annotations

import numpy as np
from numba import njit

from ..model.clock import Clock
from .dense_dual import DenseBounder, State
from .multipliers import Steps


def smoothed_ascent(
    bounder: DenseBounder,
    state: State,
    upper: float,
    clock: Clock,
    phases: tuple[float, ...] | None = None,
    steps: int | None = None,
) -> State:
    """The best state met from `state` (itself included) by its true bound; `bounder.often` becomes the shares of
    the last phase.
    """
    f, options = bounder.flat, bounder.options
    phases = options.phases if phases is None else phases
    steps = options.phase_steps if steps is None else steps
    rows = f.events.size
    best, now = state, state.copy()
    shares, use = np.zeros(f.labels), np.zeros(rows)
    moves = Steps(rows + bounder.cuts.count, options.averaged)
    bounder.apply(now)
    for phase in phases:
        gap = max(upper - best.bound, 1e-6 * abs(upper), 1.0)
        temperature = phase * gap / f.vertices
        for step in range(steps):
            reach = options.reach * options.fall ** (step / steps)
            if clock.over():
                return best
            for forward in (True, False):
                _sweep(
                    bounder.order,
                    bounder.rank,
                    f.label,
                    bounder.weight,
                    f.near,
                    f.edge,
                    f.u,
                    f.v,
                    f.table,
                    bounder.cells,
                    f.message,
                    now.messages,
                    forward,
                    temperature,
                    options.cold * temperature,
                    shares,
                )
            if not rows:
                continue
            _expected(f.label, f.part, f.first, f.last, f.at, f.amount, shares, use)
            over = np.concatenate([use - f.limit, bounder.cuts.expected_over(shares)])
            least = (options.near * f.limit) ** 2
            here = moves.next(np.concatenate([now.n, now.k]), over, reach * gap, least)
            if here is None:
                continue
            now.n, now.k = here[:rows], here[rows:]
            bounder.apply(now)
        true = now.copy()
        for _ in range(options.polish):
            bounder.sweep(true.messages, True)
            true.bound = bounder.sweep(true.messages, False) + bounder.offset(true)
        if true.bound > best.bound:
            best = true
            best.step = state.step
    if shares.any():
        bounder.often = shares
    return best


@njit(cache=True, nogil=True, fastmath=True, error_model="numpy")
def _sweep(  # type: ignore[no-untyped-def]
    order, rank, label, weight, near, edge, u, v, table, cells, message, messages, forward, temperature, far, shares
):
    """As `dense_kernels.sweep` with soft minima of edges; writes the shares of every vertex as it is passed."""
    n = label.shape[0] - 1
    widest = 0
    for i in range(n):
        widest = max(widest, label[i + 1] - label[i])
    theta, h, low_of, total_of = np.empty(widest), np.empty(widest), np.empty(widest), np.empty(widest)
    inverse = 1.0 / temperature
    for step in range(n):
        i = order[step] if forward else order[n - 1 - step]
        here, k = label[i], label[i + 1] - label[i]
        for a in range(k):
            theta[a] = weight[here + a]
        ahead, behind = 0, 0
        for j in range(near[i], near[i + 1]):
            e = edge[j]
            other, side = (v[e], 2 * e) if u[e] == i else (u[e], 2 * e + 1)
            if (rank[other] > rank[i]) == forward:
                ahead += 1
            else:
                behind += 1
            at = message[side]
            for a in range(k):
                theta[a] += messages[at + a]
        low = theta[0]
        for a in range(1, k):
            low = min(low, theta[a])
        gamma = 1.0 / max(1, max(ahead, behind))
        total = 0.0
        for a in range(k):
            theta[a] = (theta[a] - low) * gamma
            shares[here + a] = np.exp(-theta[a] * inverse)
            total += shares[here + a]
        for a in range(k):
            shares[here + a] /= total
        for j in range(near[i], near[i + 1]):
            e = edge[j]
            mine_is_u = u[e] == i
            other = v[e] if mine_is_u else u[e]
            if (rank[other] > rank[i]) != forward:
                continue
            t, m = table[e], label[other + 1] - label[other]
            mine, out = (message[2 * e], message[2 * e + 1]) if mine_is_u else (message[2 * e + 1], message[2 * e])
            across, along = (m, 1) if mine_is_u else (1, k)
            for a in range(k):
                h[a] = theta[a] - messages[mine + a]
                messages[mine + a] = -h[a]
            for b in range(m):
                low_of[b] = np.inf
                total_of[b] = 0.0
            for a in range(k):
                for b in range(m):
                    low_of[b] = min(low_of[b], cells[t + a * across + b * along] + h[a])
            for a in range(k):
                for b in range(m):
                    d = cells[t + a * across + b * along] + h[a] - low_of[b]
                    if d < far:
                        total_of[b] += np.exp(-d * inverse)
            for b in range(m):
                messages[out + b] = low_of[b] - temperature * np.log(total_of[b])


@njit(cache=True, nogil=True)
def _expected(label, part, first, last, at, amount, shares, use):  # type: ignore[no-untyped-def]
    """Expected usage per row, written to `use`."""
    use[:] = 0.0
    rows = use.shape[0]
    for i in range(label.shape[0] - 1):
        for p in range(part[i], part[i + 1]):
            if first[p] >= last[p]:
                continue
            q = 0.0
            for a in range(label[i + 1] - label[i]):
                q += shares[label[i] + a] * amount[at[p] + a]
            use[first[p]] += q
            if last[p] < rows:
                use[last[p]] -= q
    total = 0.0
    for r in range(rows):
        total += use[r]
        use[r] = total
