"""When a number of the framework and ours are the same, known as a tolerance.

Ours is computed twice, in the program's element types and in double precision; how far the two are apart is what
rounding does there.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

import numpy as np
import numpy.typing as npt

from ...models.program.graph import Graph
from ...models.sources.building.original import Values

UNITS: Final = (1000, 100)
"""Units in the last place that are no difference: in double precision, where nothing else shows what rounding does, and
in coarser types.
"""
DOUBLE: Final = 2.0**-53


def real(x: Values) -> bool:
    return x.dtype.kind == "f"


def unlike(
    theirs: Values, own: Values, double: Values, unit: float, floor: float = 1.0, reals: bool = True
) -> str | None:
    """The first element that matches neither of ours, in words; `unit`: that of the last place of numbers of the size
    of the element and of `floor`, that of what it is computed from; `reals`: whether integers
    were made of real numbers.
    """
    if theirs.size != double.size:
        return f" has {theirs.size} elements, ours {double.size}"
    a, b, c = (np.asarray(x).reshape(-1) for x in (theirs, own, double))
    if a.dtype.kind not in "fc" or c.dtype.kind not in "fc":
        bad = (a != b) & (a != c)
        if (
            reals and a.dtype.kind in "iu" and c.dtype.kind in "iu"
        ):  # integers that reals were made, beyond what those tell apart
            wide = c.astype(np.float64)
            bad &= np.abs(a.astype(np.float64) - wide) > UNITS[unit != DOUBLE] * unit * np.abs(wide)
    else:
        a, b, c = (x.astype(np.float64) for x in (a, b, c))
        with np.errstate(all="ignore"):
            gap = np.where(np.isfinite(b) & np.isfinite(c), np.abs(b - c), 0.0)
            size = np.where(np.isfinite(c), np.abs(c), 0.0)
            bar = UNITS[unit != DOUBLE] * unit * (size + floor) + np.maximum(64 * gap, 4 * gap.max(initial=0.0))
            bad = ~(_near(a, b, bar) | _near(a, c, bar))
    if not bad.any():
        return None
    k = int(np.argmax(bad))
    place = tuple(int(n) for n in np.unravel_index(k, theirs.shape)) if theirs.ndim else ()
    at = f"[{', '.join(map(str, place))}]" if place else ""
    return f"{at} is {a[k].item():.7g}, ours {c[k].item():.7g} ({int(bad.sum())} of {bad.size} elements differ)"


def _near(a: Values, b: Values, bar: Values) -> npt.NDArray[np.bool_]:
    same = (a == b) | (np.isnan(a) & np.isnan(b))
    return np.where(np.isfinite(a) & np.isfinite(b), np.abs(a - b) <= bar, same)


def as_double(x: Values) -> Values:
    return x.astype(np.float64) if real(x) else x


def unit_of(graph: Graph) -> float:
    """The unit in the last place of the coarsest floating type of a graph."""
    units = {"bfloat16": 2.0**-8, "float16": 2.0**-11, "float32": 2.0**-24}
    return max((units.get(t.dtype, DOUBLE) for t in graph.tensors), default=DOUBLE)


def of_source_shape(graph: Graph, values: Mapping[str, Values]) -> dict[str, Values]:
    """Arrays as the program knows them."""
    return {
        n: v.reshape(t.shape if t.source_shape is None else t.source_shape)
        for n, v in values.items()
        for t in (graph.tensor(n),)
    }
