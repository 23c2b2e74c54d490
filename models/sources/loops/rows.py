"""Finds the rows of a loop: what its operators never join, so that parts of it are loops of their own.

Dimensions of tensors and axes of operators fall into classes: a dimension that is read along an axis alone belongs to
the class of that axis, and a carry's dimension to that of its next value.  A class is a *row* if nothing in it is
summed, normalised or read beside its place, and every carry and every operator's result has it once: what
`models.program.scan` demands of rows.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from ...program.operators import Operator

Key = tuple[str, str, object]


class _Classes:
    """Classes of keys that are the same (union-find)."""

    def __init__(self) -> None:
        self.above: dict[Key, Key] = {}

    def of(self, key: Key) -> Key:
        while (up := self.above.get(key, key)) != key:
            self.above[key] = self.above.get(up, up)
            key = up
        return key

    def join(self, a: Key, b: Key) -> None:
        self.above[self.of(a)] = self.of(b)


def rows_of(
    operators: Sequence[Operator], carries: Sequence[tuple[str, str]], shapes: Mapping[str, tuple[int, ...]]
) -> list[dict[str, int]]:
    """Per row the dimension that every tensor has it in (inputs may lack it), in the order of the first carry's
    dimensions.  `carries`: (carry, next value); `shapes`: of all tensors.

    >>> from ...program.index import Axis, access
    >>> h = Operator("h'", "tanh", (Axis("b", 4), Axis("n", 3)), (access("h", "b", "n"),), access("h'", "b", "n"))
    >>> rows_of([h], [("h", "h'")], {"h": (4, 3), "h'": (4, 3)})
    [{'h': 0, "h'": 0}, {'h': 1, "h'": 1}]
    """
    classes, joined = _Classes(), list[Key]()
    for op in operators:
        for a in (*op.inputs, op.output):
            for d, index in enumerate(a.index):
                own, name = ("tensor", a.tensor, d), index.single
                if name is not None and op.axis(name).extent == shapes[a.tensor][d]:
                    classes.join(own, ("axis", op.name, name))
                else:
                    joined += [own, *(("axis", op.name, n) for n, _ in index.terms)]
        joined += [("axis", op.name, x.name) for x in op.axes if x.combine is not None or x.name in op.over]
        at = op.attribute("at", ())
        joined += [("tensor", op.output.tensor, d) for d in at] if isinstance(at, tuple) else []
    for carry, following in carries:
        for d in range(len(shapes[carry])):
            classes.join(("tensor", carry, d), ("tensor", following, d))
    lost = {classes.of(key) for key in joined}
    read = {a.tensor for op in operators for a in op.inputs}
    needed = {t for pair in carries for t in pair} | {op.output.tensor for op in operators}
    found = []
    first = carries[0][0]
    for d, extent in enumerate(shapes[first]):
        of = classes.of(("tensor", first, d))
        places = {t: [k for k in range(len(shapes[t])) if classes.of(("tensor", t, k)) == of] for t in needed | read}
        once = all(len(p) == 1 or (not p and t not in needed) for t, p in places.items())
        whole = all(shapes[t][k] == extent for t, p in places.items() for k in p)
        if of not in lost and once and whole and extent > 1:
            found.append({t: p[0] for t, p in sorted(places.items()) if p})
    return found
