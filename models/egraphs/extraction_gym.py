"""Reads e-graphs as the extraction gym keeps them: JSON of `egraph-serialize`.

    {"nodes": {id: {"op", "cost", "eclass", "children": [node ids]}, ..}, "root_eclasses": [class ids], ..}

Children are nodes and stand for their classes.  `cost` is 1 and `children` empty where they are left out, as in
egraph-serialize; whatever else a node or the file says (`op`, `subsumed`, `class_data`, comments) changes no
extraction.  Costs are decimal numbers and kept exactly.  Negative costs are numbers like others (the gym's maxsat
family rewards classes that are reached); NaN and infinite ones are refused.

A root class may be without nodes: files of the gym's lean-egg family name roots by ids that their writer has merged
away.  Such roots are kept in `absent`, and claims carry them as an assumption.

Source: https://github.com/egraphs-good/extraction-gym, https://docs.rs/egraph-serialize.
"""

from __future__ import annotations

from decimal import Decimal
from typing import Final, NoReturn

from ..text import InputError, did_you_mean
from .egraph import EGraph

MOST_EXPONENT: Final = 150
"""Costs have at most so many digits behind the point, and before it: they stay integers of 1,000 bits."""

MOST_NODES: Final = 1 << 22
MOST_ID: Final = 10_000


class EGraphError(InputError):
    """A file that is no e-graph; the message names the node or class."""


def is_extraction_gym(value: object) -> bool:
    """Whether a JSON value looks like an e-graph of the gym.

    >>> is_extraction_gym({"nodes": {}, "root_eclasses": []}), is_extraction_gym({"nodes": [], "edges": []})
    (True, False)
    """
    return isinstance(value, dict) and "nodes" in value and "root_eclasses" in value


def from_extraction_gym(value: object, name: str) -> EGraph:
    """The e-graph of a JSON value whose numbers are ints and `Decimal`s.  Raises `EGraphError`.

    >>> node = {"op": "x", "cost": Decimal("0.5"), "eclass": "c", "children": []}
    >>> g = from_extraction_gym({"nodes": {"n": node}, "root_eclasses": ["c"]}, "one")
    >>> g.cost, g.scale, g.roots
    ((5,), 10, (0,))
    """
    if not isinstance(value, dict):
        raise EGraphError(f"{name}: must hold one JSON object")
    table, asked = value.get("nodes"), value.get("root_eclasses")
    if not isinstance(table, dict):
        raise EGraphError(f"{name}, nodes: must be an object of node id -> node")
    if len(table) > MOST_NODES:
        raise EGraphError(f"{name}, nodes: has {len(table)} nodes, more than {MOST_NODES}")
    if not isinstance(asked, list) or not asked:
        raise EGraphError(f"{name}, root_eclasses: must be a list with at least one class id: what is to be extracted")
    read = _Nodes(name, table)
    roots: set[int] = set()
    absent: list[str] = []
    for i, root in enumerate(asked):
        if not isinstance(root, str):
            raise EGraphError(f"{name}, root_eclasses[{i}]: must be a class id (a text)")
        if root in read.number:
            roots.add(read.number[root])
        elif root not in absent:
            absent.append(root)
    cost, scale = _integers(name, read.nodes, read.cost)
    return EGraph(
        name,
        tuple(read.number),
        tuple(read.nodes),
        tuple(read.owner),
        tuple(read.children),
        cost,
        scale,
        tuple(sorted(roots)),
        tuple(absent),
    )


class _Nodes:
    """The table of nodes: classes are numbered as they first occur."""

    def __init__(self, name: str, table: dict[str, object]) -> None:
        self._name = name
        self.nodes = list(table)
        self.number: dict[str, int] = {}
        self.owner: list[int] = []
        self.cost: list[int | Decimal] = []
        for node, entry in table.items():
            if not isinstance(entry, dict):
                self._fail(node, "must be an object with op, eclass, cost and children")
            eclass = entry.get("eclass")
            if not isinstance(eclass, str) or len(eclass) > MOST_ID or len(node) > MOST_ID:
                self._fail(node, "eclass must be a class id (a text)" if "eclass" in entry else "has no eclass")
            self.owner.append(self.number.setdefault(eclass, len(self.number)))
            cost = entry.get("cost", 1)
            if type(cost) is not int and not isinstance(cost, Decimal):
                self._fail(node, "cost must be a finite number")
            self.cost.append(cost if cost else 0)  # a zero with an exponent, or a sign, is 0
        place = {node: i for i, node in enumerate(self.nodes)}
        self.children: list[tuple[int, ...]] = []
        for node, entry in table.items():
            assert isinstance(entry, dict)
            listed = entry.get("children", [])
            if not isinstance(listed, list):
                self._fail(node, "children must be a list of node ids")
            classes = set()
            for child in listed:
                if not isinstance(child, str):
                    self._fail(node, "children must be a list of node ids")
                if child not in place:
                    near = did_you_mean(child, self.nodes) if len(self.nodes) <= 10_000 else ""
                    self._fail(node, f"child {child[:60]!r} is no node of this file{near}")
                classes.add(self.owner[place[child]])
            self.children.append(tuple(sorted(classes)))

    def _fail(self, node: str, message: str) -> NoReturn:
        raise EGraphError(f"{self._name}, node {node[:60]!r}: {message}")


def _integers(name: str, nodes: list[str], costs: list[int | Decimal]) -> tuple[tuple[int, ...], int]:
    """Costs as integers of 1/scale, with the least power of ten as scale."""
    digits = 0
    for node, cost in zip(nodes, costs, strict=True):
        number = Decimal(cost) if isinstance(cost, Decimal) or abs(cost) < 10**MOST_EXPONENT else Decimal("NaN")
        if (
            not number.is_finite()
            or len(number.as_tuple().digits) > 2 * MOST_EXPONENT
            or (number != 0 and abs(number.adjusted()) > MOST_EXPONENT)
        ):
            raise EGraphError(f"{name}, node {node[:60]!r}: cost must be a finite number of at most 150 digits")
        exponent = number.as_tuple().exponent
        assert isinstance(exponent, int)
        if number != 0:
            trimmed = str(int("".join(map(str, number.as_tuple().digits)))).rstrip("0")
            behind = -exponent - (len(number.as_tuple().digits) - len(trimmed)) if exponent < 0 else 0
            if behind > 2 * MOST_EXPONENT:
                raise EGraphError(f"{name}, node {node[:60]!r}: cost has more than {2 * MOST_EXPONENT} digits")
            digits = max(digits, behind)
    scale = 10**digits
    return tuple(_exact(cost, digits) for cost in costs), scale


def _exact(cost: int | Decimal, digits: int) -> int:
    """cost times 10**digits, an integer."""
    if isinstance(cost, int):
        return cost * power(digits)
    sign, figures, exponent = cost.as_tuple()
    assert isinstance(exponent, int)
    number, shift = int("".join(map(str, figures))), exponent + digits
    shifted = number * power(shift) if shift >= 0 else number // power(-shift)
    return -shifted if sign else shifted


def power(digits: int) -> int:
    """10 to the `digits`, which is not negative.

    >>> power(3)
    1000
    """
    found: int = 10**digits
    return found
