"""E-graphs: classes of nodes that compute the same, from which an extraction chooses one node per
class it needs.

An **extraction** chooses for every root class a node, and for every class that a chosen node has as a child again one
node, and so on; nothing else is chosen, and no class comes, by children of chosen nodes, back to itself.  It costs

    sum over chosen nodes n of cost(n)

so a class that several chosen nodes share counts once (**DAG cost**).  Costs may be negative: a class of negative cost
lowers the sum only where something chosen has it as a child.

Source: Nelson and Oppen 1980 (congruence classes); Willsey et al., egg, POPL 2021 (extraction).
"""

from __future__ import annotations

import hashlib
import json
from dataclasses import dataclass
from functools import cached_property


@dataclass(frozen=True, eq=False)
class EGraph:
    """`owner[n]` is the class of node n, `children[n]` its distinct child classes in ascending order, `cost[n]` its
    cost in units of 1/`scale` (a power of ten).  `roots` are the root classes that have nodes, ascending; `absent`
    names those that have none, of which nothing can be asked.

    >>> g = EGraph("two", ("a", "b"), ("f", "g", "x"), (0, 0, 1), ((1,), (), ()), (1, 5, 2), 1, (0,), ())
    >>> g.members, g.cost_of([0, 2]), g.decimal(3)
    (((0, 1), (2,)), 3, '3')
    """

    name: str
    classes: tuple[str, ...]
    nodes: tuple[str, ...]
    owner: tuple[int, ...]
    children: tuple[tuple[int, ...], ...]
    cost: tuple[int, ...]
    scale: int
    roots: tuple[int, ...]
    absent: tuple[str, ...]

    @cached_property
    def members(self) -> tuple[tuple[int, ...], ...]:
        """Nodes of every class, ascending."""
        out: list[list[int]] = [[] for _ in self.classes]
        for node, owner in enumerate(self.owner):
            out[owner].append(node)
        return tuple(map(tuple, out))

    @property
    def has_negative_cost(self) -> bool:
        """Whether some cost is negative."""
        return any(c < 0 for c in self.cost)

    @property
    def assumptions(self) -> tuple[str, ...]:
        """What a claim about this e-graph takes for granted."""
        if not self.absent:
            return ()
        shown = " ".join(self.absent[:3]) + (f" and {len(self.absent) - 3} more" if len(self.absent) > 3 else "")
        return (f"absent-roots({len(self.absent)}: {shown})",)

    def cost_of(self, chosen: list[int] | tuple[int, ...]) -> int:
        """Sum of the costs of nodes."""
        return sum(self.cost[n] for n in chosen)

    def decimal(self, units: int) -> str:
        """A cost as the decimal number that it is.

        >>> EGraph("", (), (), (), (), (), 1000, (), ()).decimal(-1500)
        '-1.5'
        """
        whole, rest = divmod(abs(units), self.scale)
        digits = str(rest).zfill(len(str(self.scale)) - 1).rstrip("0") if self.scale > 1 else ""
        return f"{'-' if units < 0 else ''}{whole}{'.' if digits else ''}{digits}"

    def sha256(self) -> str:
        """Hash of what extractions depend on: ids, classes, children, costs, roots; not the name."""
        return self._sha256

    @cached_property
    def _sha256(self) -> str:
        head = {
            "format": "shardproof-egraph/1",
            "classes": self.classes,
            "nodes": self.nodes,
            "owner": self.owner,
            "children": self.children,
            "cost": self.cost,
            "scale": self.scale,
            "roots": self.roots,
            "absent": self.absent,
        }
        text = json.dumps(head, sort_keys=True, separators=(",", ":"), ensure_ascii=True)
        return hashlib.sha256(text.encode("ascii")).hexdigest()
