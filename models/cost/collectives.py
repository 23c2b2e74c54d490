"""Times of collectives by the measured forms of a level (`models.machine.measured`), for many of them
at once.

    seconds = fixed + hop (g - 1) + min( slow g s,  start d + (wire k (g - 1) + own) s )

Each collective is rounded up to the unit on its own, so that a sum of them needs no common denominator.
"""

from __future__ import annotations

from collections.abc import Sequence
from fractions import Fraction

import numpy as np

from ..communication.collective_steps import Step
from ..machine.machine import Machine
from ..machine.measured import COLLECTIVES, CollectiveForm
from ..problem.exact import SAFE, ceil_sum
from ..problem.selection_problem import Ints, TooFine


def measured_levels(machine: Machine) -> tuple[int, ...]:
    """Levels whose collectives have measured forms."""
    return tuple(i for i, level in enumerate(machine.levels) if level.collectives)


def step_times(
    steps: Sequence[Step], shape: tuple[int, ...], element_bytes: int, machine: Machine, unit: Fraction
) -> Ints:
    """Units of all steps together: an array of `shape`.  Raises `TooFine` for what is not below 2**62.

    Steps of levels without measured forms are left out: their links price them.
    """
    total: Ints = np.zeros(shape, dtype=np.int64)
    for step in steps:
        forms = machine.levels[step.level].collectives
        if not forms:
            continue
        form = forms[COLLECTIVES.index(step.operation)]
        found = np.zeros(step.share.shape, dtype=np.int64)
        here = step.share > 0
        for g in np.unique(step.members[here]).tolist():
            at = here & (step.members == g)
            found[at] = _times(form, step.operation, g, step.share[at], element_bytes, unit)
        total[slice(None) if step.rows is None else step.rows] += found
        if total.size and int(total.max()) >= SAFE:
            raise TooFine(int(total.max()))
    return total


def _times(form: CollectiveForm, operation: str, g: int, share: Ints, element_bytes: int, unit: Fraction) -> Ints:
    one = np.ones_like(share)
    hops = form.fixed + form.hop * (g - 1)
    depth = 1 if operation == "alltoall" else (g - 1).bit_length()
    passes = 2 if operation == "all_reduce" else 1
    slow = ceil_sum([(hops / unit, one), (form.slow * g * element_bytes / unit, share)])
    pace = form.wire * passes * (g - 1) + form.own
    fast = ceil_sum([((hops + form.start * depth) / unit, one), (pace * element_bytes / unit, share)])
    return np.minimum(slow, fast)
