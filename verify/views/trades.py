"""Branches in two phases, a second time: which pairs of times a branch can have on a view, for every label.

Every decision is tried with every pair of what came before it, in the order of the graph; of the pairs that agree in
what is still open, those that another one is nowhere above are kept.
"""

from __future__ import annotations

from collections.abc import Sequence

from ...models.problem.selection_problem import Ints
from ...proofs.container.canonical import ContainerError

MOST_STATES = 1 << 21

State = tuple[int, ...]
Pair = tuple[int, int]


def undominated(pairs: set[Pair]) -> list[Pair]:
    """Pairs that no other one is at most equal to in both.

    >>> undominated({(3, 1), (1, 2), (2, 2)})
    [(1, 2), (3, 1)]
    """
    kept: list[Pair] = []
    for p in sorted(pairs):  # of those before it none is slower in the first: it has to be faster in the second
        if not kept or p[1] < kept[-1][1]:
            kept.append(p)
    return kept


def traded(
    members: Sequence[int],
    border: Sequence[int],
    classes: Sequence[Ints],
    costs: dict[int, Ints],
    phase_of: dict[int, int],
    links: Sequence[tuple[int, int, int, Ints]],
) -> tuple[tuple[tuple[int, ...], ...], tuple[tuple[int, ...], ...]]:
    """Labels in order, once per pair, and the pairs."""
    left = {v: sum(v in (a, b) for a, b, _, _ in links) for v in members}
    held: list[int] = []
    states: dict[State, list[Pair]] = {(): [(0, 0)]}
    steps = 0
    for v in members:
        held.append(v)
        due = [(a, b, p, times.tolist()) for a, b, p, times in links if v in (a, b) and a in held and b in held]
        mine = costs[v].tolist()
        grown: dict[State, list[Pair]] = {}
        for state, pairs in states.items():
            steps += len(mine) * len(pairs)
            if steps > MOST_STATES:
                raise ContainerError("views", f"a branch of {len(members)} decisions has too many trades to be checked")
            for choice, time in enumerate(mine):
                now = (*state, choice)
                more = [0, 0]
                more[phase_of[v]] += time
                for a, b, p, times in due:
                    more[p] += times[now[held.index(a)]][now[held.index(b)]]
                grown[now] = [(x + more[0], y + more[1]) for x, y in pairs]
        for a, b, _, _ in due:
            left[a] -= 1
            left[b] -= 1
        going = [w for w in held if not left[w] and w not in border]
        keep = [k for k, w in enumerate(held) if w not in going]
        held = [held[k] for k in keep]
        united: dict[State, set[Pair]] = {}
        for state, pairs in grown.items():
            united.setdefault(tuple(state[k] for k in keep), set()).update(pairs)
        states = {state: undominated(pairs) for state, pairs in united.items()}
    labelled: dict[tuple[int, ...], set[Pair]] = {}
    for state, pairs in states.items():
        label = tuple(int(of[state[held.index(v)]]) for v, of in zip(border, classes, strict=True))
        labelled.setdefault(label, set()).update(pairs)
    found = [(label, pair) for label in sorted(labelled) for pair in undominated(labelled[label])]
    return tuple(label for label, _ in found), tuple(pair for _, pair in found)
