"""Computes grouped products: every point meets the group that its id names, as one matrix product per
group.

    out[o] = SUM over the reduction axes with ids[s] = e of  A_1[..] A_2[..] .. A_n[..]

For a group e, the points s of the box with ids[s] = e become one axis, along which factors that depend on s are
picked; the rest is a product of factors (`contract.multiplied`).  Results go back to their points, or, where e is an
axis of the result, into its row e.  Points whose id is no group of the box add nothing, so that parts over e add up.

Source: Gale et al., MegaBlocks (2022), section 4: tokens of an expert side by side, no padding, none dropped.
"""

from __future__ import annotations

from math import prod

from .blocks import Array, KernelError, align, lengths, view
from .contract import Factor, product_of
from .task import Task

_POINT = "point of a group"


def grouped_product(t: Task) -> Array:
    """The (partial) sum of products over the box.  Raises `KernelError` for factors of groups that depend on points."""
    groups, out, points = t.op.rows, t.op.output.axes, t.op.inputs[-1].axes
    *reads, ids_access = t.op.inputs
    shapes = [t.graph.tensor(a.tensor).shape for a in t.op.inputs]
    factors: list[Factor] = [
        (a.axes, view(t.xp, t.operands[j], a, t.box, shapes[j], 0, f"{t.place}, input {j}"))
        for j, a in enumerate(reads)
    ]
    result: Array = t.xp.zeros(t.shape, dtype=t.xp.result_type(*[x for _, x in factors]))
    if 0 in lengths(t.box, [a.name for a in t.op.axes]):
        return result
    if any(groups in axes and set(axes) & set(points) for axes, _ in factors):
        raise KernelError(t.place, f"a factor depends on the group axis {groups!r} and on the points in groups")
    none = t.op.axis(groups).extent  # where ids are read outside their tensor
    ids = view(t.xp, t.operands[-1], ids_access, t.box, shapes[-1], none, f"{t.place}, input {len(reads)}")
    low, high = t.box[groups]
    kept = [a for a in out if a in points]  # axes of points that the result has
    rest = tuple(a for a in out if a not in points and a != groups)
    whole = (*(a for a in points if a in kept), *rest)
    order = [a for a in out if a != groups]
    for e in range(low, high):
        where = dict(zip(points, t.xp.nonzero(ids == e), strict=True))
        if not len(where[points[0]]):
            continue
        mine = [_of_group(factor, groups, e - low, where) for factor in factors]
        if kept and all(_POINT not in axes for axes, _ in mine):
            mine.append(((_POINT,), t.xp.ones(len(where[points[0]]), dtype=result.dtype)))
        elif not any(_POINT in axes for axes, _ in mine):  # the same for every point: as often as there are points
            mine.append(((), t.xp.asarray(len(where[points[0]]), dtype=result.dtype)))
        axes, array = product_of(t.xp, mine, (*((_POINT,) if kept else ()), *rest))
        part = result if groups not in out else result[tuple(slice(None) if a != groups else e - low for a in out)]
        if not kept:
            part += align(array, axes, order)
            continue
        moved = align(array, axes, (_POINT, *rest))
        seen = part.transpose([order.index(a) for a in whole])  # a view: points first
        place = tuple(where[a] for a in whole[: len(kept)])
        if len(kept) == len(points):  # every point once
            seen[place] += moved
        else:
            t.xp.add.at(seen, place, moved)
    read = {a for x in t.op.inputs for a in x.axes}
    again = prod(lengths(t.box, [a.name for a in t.op.reduction_axes if a.name not in read and a.name != groups]))
    return result if again == 1 else result * again


def _of_group(factor: Factor, groups: str, e: int, where: dict[str, Array]) -> Factor:
    """A factor at one group, its axes of points replaced by the one axis of the group's points."""
    axes, array = factor
    if groups in axes:
        array = array[tuple(e if a == groups else slice(None) for a in axes)]
        return tuple(a for a in axes if a != groups), array
    mine = [a for a in axes if a in where]
    if not mine:
        return factor
    others = tuple(a for a in axes if a not in where)
    picked = align(array, axes, (*mine, *others))[tuple(where[a] for a in mine)]
    return (_POINT, *others), picked
