"""Raises the bound of a dense problem along a smoothed dual, annealed from phase to phase: sweeps with a
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

from typing import Final

import numpy as np

from ..model.clock import Clock
from .dense_dual import DenseBounder, State
from .dense_kernels import expected_usage
from .multipliers import Steps

SOFT: Final = 10
"""So many times the work of a sweep takes one with a soft minimum: exponentials and logarithms."""


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
            clock.read(bounder.entries * SOFT)
            for forward in (True, False):
                bounder.sweep(now.messages, forward, (temperature, options.cold * temperature, shares))
            if not rows:
                continue
            expected_usage(f.label, f.spans, shares, use)
            over = np.concatenate([use - f.limit, bounder.cuts.expected_over(shares)])
            least = (options.near * f.limit) ** 2
            here = moves.next(np.concatenate([now.n, now.k]), over, reach * gap, least)
            if here is None:
                continue
            now.n, now.k = here[:rows], here[rows:]
            bounder.apply(now)
        true = now.copy()
        clock.read(bounder.entries * options.polish)
        for _ in range(options.polish):
            bounder.sweep(true.messages, True)
            true.bound = bounder.sweep(true.messages, False) + bounder.offset(true)
        if true.bound > best.bound:
            best = true
            best.step = state.step
    if shares.any():
        bounder.often = shares
    return best
