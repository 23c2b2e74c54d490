"""Carries messages, multipliers and MIR cuts of an enclosing problem over to a reduced one, known as a
warm start: good starting values, of which nothing has to be true.
"""

from __future__ import annotations

import numpy as np

from ....models.problem.selection_problem import Ints
from ..model.dense import DenseProblem, Floats, alternating
from ..options.dense import DENSE, DenseOptions
from ..presolve.presolve import Presolved
from . import dense_kernels as kernels
from .dense_dual import State
from .mir_cuts import NONE, Cut, Cuts, build, usage_of


def rows_left(presolved: Presolved) -> Ints:
    """Steps of the enclosing problem that the rows of the reduced problem stand for."""
    return presolved.steps[-1] if presolved.steps else np.array(presolved.original.events(), dtype=np.int64)


def transfer(
    old: DenseProblem, state: State, presolved: Presolved, new: DenseProblem, options: DenseOptions = DENSE
) -> State:
    """Messages and multipliers of an enclosing problem on the reduced one, where vertices and rows have stayed; any
    numbers are valid.
    """
    there = presolved.messages_there(state.dual(old))
    n = np.zeros(new.events.size)
    positive = np.flatnonzero(state.n)
    if positive.size and new.events.size:
        np.add.at(n, _same_rows(old, positive, presolved, new), state.n[positive])
    return State(alternating(there.to_u, there.to_v).astype(np.float64), n, step=max(state.step, options.carried_step))


def _same_rows(old: DenseProblem, rows: Ints, presolved: Presolved, new: DenseProblem) -> Ints:
    """Rows of `new` in place of `rows` of the enclosing problem."""
    steps = rows_left(presolved)[new.events]  # the enclosing problem's steps behind the new rows
    at = np.clip(np.searchsorted(steps, old.events[rows]), 0, steps.size - 1)
    before = np.maximum(at - 1, 0)
    # a row is dropped for a neighbour that uses at least as much whatever is chosen; a row that stays is its own
    # neighbour
    mean = mean_usage(new)
    out: Ints = np.where((steps[at] == old.events[rows]) | (mean[at] >= mean[before]), at, before)
    return out


def carry(old: DenseProblem, state: State, cuts: Cuts, presolved: Presolved, new: DenseProblem) -> tuple[Cuts, Floats]:
    """MIR cuts of an enclosing problem on the reduced one, with multipliers; where a reference has left, the
    label that uses about as much.
    """
    used = np.flatnonzero(state.k > 0)
    if not used.size or not new.events.size:
        return NONE, np.zeros(0)
    rows = np.array([cuts.kinds[c].row for c in used.tolist()], dtype=np.int64)
    places = _same_rows(old, rows, presolved, new)
    kinds: dict[tuple[int, int], int] = {}
    out: list[Cut] = []
    k: list[float] = []
    for c, place in zip(used.tolist(), places.tolist(), strict=True):
        cut = cuts.kinds[c]
        if (place, cut.modulus) in kinds:  # two rows that have become one
            k[kinds[place, cut.modulus]] += float(state.k[c])
            continue
        kinds[place, cut.modulus] = len(out)
        use, wanted = usage_of(new, place), usage_of(old, cut.row)
        reference = np.zeros(new.vertices, dtype=np.int64)
        for w, (v, labels) in enumerate(presolved.left):
            label = int(old.label[v] + cut.reference[v])
            at = int(np.searchsorted(labels, old.choice[label]))
            if at < labels.size and labels[at] == old.choice[label]:
                reference[w] = at
            else:
                reference[w] = int(np.argmin(np.abs(use[new.label[w] : new.label[w + 1]] - wanted[label])))
        out.append(Cut(place, cut.modulus, reference))
        k.append(float(state.k[c]))
    return build(new, tuple(out)), np.array(k)


def mean_usage(flat: DenseProblem) -> Floats:
    """Usage per row if every vertex used the mean of its labels."""
    sizes, out = np.diff(flat.label), np.zeros(flat.events.size)
    kernels.expected_usage(flat.label, flat.spans, np.repeat(1.0 / sizes, sizes), out)
    return out
