"""Whether two graphs are the same up to names: of operators, tensors and axes, and the order of dimensions and of
commuting operands.

    1  every operator, axis, tensor and dimension gets a colour from what it is and what surrounds it (forward and
       backward passes)
    2  operators are listed in the order of a depth-first walk from the outputs; commuting operands and dimensions by
       colour
    3  tensors are numbered by first use, axes by first use in their operator; every operator is written as one line of
       text

Equal texts are a proof of sameness: a text says everything but names.  Colours only choose the order of what could
stand in any; where they leave a choice, equal graphs could get different texts, so a difference is reported with that
possibility (`ties`).  Numbers are compared to six digits: sizes such as 1/sqrt(64) come in several roundings.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from hashlib import blake2b

from shardproof.models.program.attention import ROLES, role
from shardproof.models.program.graph import Graph
from shardproof.models.program.index import Access, Affine
from shardproof.models.program.operators import NodeKind, Operator, Value

_COMMUTING = frozenset(
    {
        "product",
        "add",
        "multiply",
        "maximum",
        "minimum",
        "sum_inputs",
        "equal",
        "not_equal",
        "logical_and",
        "logical_or",
        "copy",
    }
)
_PASSES = 12
_CHOICES = 24


@dataclass(frozen=True)
class Difference:
    """The first difference: the operators concerned by their names in both graphs (empty: none), and what differs,
    in words.
    """

    left: str
    right: str
    what: str
    ties: bool

    def __str__(self) -> str:
        doubt = " (the graphs have symmetries, so this may be a matter of order)" if self.ties else ""
        return f"{self.left or 'nothing'} | {self.right or 'nothing'}: {self.what}{doubt}"


def same_up_to_names(left: Graph, right: Graph) -> Difference | None:
    """None if the graphs are the same up to names, else their first difference.

    >>> from shardproof.models.sources.building.builder import Builder
    >>> def mlp(name, hidden):
    ...     g = Builder(name)
    ...     x = g.map("r", "relu", g.contract(f"{name}.fc", "b k, k n -> b n", g.input("x", (4, 8)), g.parameter("w", (8, hidden))))
    ...     return g.build(x)
    >>> same_up_to_names(mlp("a", 16), mlp("b", 16)) is None
    True
    >>> print(same_up_to_names(mlp("a", 16), mlp("b", 32)))
    a.fc | b.fc: axes 16, 4, 8 sum | 32, 4, 8 sum
    """
    a, b = _Listing(left), _Listing(right)
    ties = a.ties or b.ties
    for mine, theirs in zip(a.lines, b.lines, strict=False):
        if mine.text != theirs.text:
            return _origin(a, b) or Difference(mine.name, theirs.name, _explained(mine, theirs), ties)
    if len(a.lines) != len(b.lines):
        longer = max(a.lines, b.lines, key=len)
        extra = longer[min(len(a.lines), len(b.lines))]
        what = f"{len(a.lines)} | {len(b.lines)} operators; the first one more is a {extra.function}"
        return Difference(*((extra.name, "") if longer is a.lines else ("", extra.name)), what, ties)
    for what, x, y in (("outputs", a.outputs, b.outputs), ("state", a.state, b.state), ("inputs", a.stored, b.stored)):
        if x != y:
            return Difference("", "", f"{what} are {x} | {y}", ties)
    return None


def _origin(a: _Listing, b: _Listing) -> Difference | None:
    """Where the graphs part, going forward: the first operators whose past the other graph does not have."""
    lost: list[Operator] = []
    for mine, other in ((a, b), (b, a)):
        left = Counter(other.forward.values())
        for op in mine.graph.operators:
            colour = mine.forward[op.name]
            if left[colour] == 0:
                lost.append(op)
                break
            left[colour] -= 1
    if len(lost) < 2:
        return None
    return Difference(lost[0].name, lost[1].name, _told(a, b, lost[0], lost[1]), False)


def _told(a: _Listing, b: _Listing, x: Operator, y: Operator) -> str:
    """What differs between two operators, whatever their axes are called."""

    def facts(listing: _Listing, op: Operator) -> list[tuple[str, str]]:
        axes = sorted(
            f"{e.extent}{' ' + e.combine.value if e.combine else ''}{'' if e.splittable else ' unsplittable'}"
            for e in op.axes
        )
        wanted = [i for i, o in enumerate(listing.graph.results) if o == op.output.tensor]
        stored = sorted(
            f"{t.role.value} {t.dtype}"
            for i in op.inputs
            if (t := listing.graph.tensor(i.tensor)).role.value != "value"
        )
        return [
            ("function", op.function),
            ("operands", str(len(op.inputs))),
            ("axes", ", ".join(axes)),
            ("attributes", ", ".join(_attributes(op))),
            ("element type", listing.graph.tensor(op.output.tensor).dtype),
            ("stored operands", ", ".join(stored)),
            ("place among the outputs", ", ".join(map(str, wanted)) or "none"),
        ]

    for (what, p), (_, q) in zip(facts(a, x), facts(b, y), strict=True):
        if p != q:
            return f"{what} {p} | {q}"
    return "its operands are read at other indices, or come from elsewhere"


@dataclass(frozen=True)
class _Line:
    """One operator: its name, and parts of its text."""

    name: str
    function: str
    axes: tuple[str, ...]
    operands: tuple[str, ...]
    output: str
    attributes: tuple[str, ...]

    @property
    def text(self) -> tuple[object, ...]:
        return (self.function, self.axes, self.operands, self.output, self.attributes)


def _explained(a: _Line, b: _Line) -> str:
    """What differs between two lines."""
    if a.function != b.function:
        return f"{a.function} | {b.function}"
    if len(a.operands) != len(b.operands):
        return f"{a.function} of {len(a.operands)} | {len(b.operands)} operands"
    for x, y in zip(a.axes, b.axes, strict=False):
        if x != y:
            (name, *mine), (_, *theirs) = x.split(), y.split()
            for what, p, q in zip(("extent", "combine", "splittable"), mine, theirs, strict=False):
                if p != q:
                    return f"axis {name} has {what} {p} | {q}"
    if len(a.axes) != len(b.axes):
        return f"{a.function} over {len(a.axes)} | {len(b.axes)} axes: {', '.join(a.axes)} | {', '.join(b.axes)}"
    for k, (x, y) in enumerate(zip((*a.operands, a.output), (*b.operands, b.output), strict=True)):
        if x != y:
            return f"{'output' if k == len(a.operands) else f'operand {k}'} is {x} | {y}"
    return f"attributes {', '.join(a.attributes)} | {', '.join(b.attributes)}"


def _hash(*parts: object) -> str:
    return blake2b(repr(parts).encode(), digest_size=8).hexdigest()


def _number(value: Value) -> str:
    return f"{float(value) + 0.0:.6g}" if isinstance(value, (int, float)) else str(value)


class _Listing:
    """A graph as lines, in canonical order."""

    def __init__(self, graph: Graph) -> None:
        self.graph = graph
        self.writer = {op.output.tensor: op for op in graph.operators}
        self.readers = graph.readers()
        wanted = {o: i for i, o in enumerate(graph.results)}
        self.tensor = {t.name: _hash(t.role.value, t.dtype, sorted(t.shape), wanted.get(t.name)) for t in graph.tensors}
        self.dim = {(t.name, k): _hash(n) for t in graph.tensors for k, n in enumerate(t.shape)}
        self.axis = {
            (op.name, a.name): _hash(a.extent, str(a.combine), a.splittable, _roles(op, a.name))
            for op in graph.operators
            for a in op.axes
        }
        for op in graph.operators:
            self._colour(op)
        self.forward = {op.name: self.tensor[op.output.tensor] for op in graph.operators}
        self._refine()
        for _ in range(_CHOICES):
            if not self._choose():
                break
            self._refine()
        self.ties = False
        self.number: dict[str, int] = {}
        self.order: dict[str, list[int]] = {}
        self.stored: list[str] = []
        self.lines: list[_Line] = []
        for tensor in graph.results:
            self._walk(tensor)
        self.outputs = [self.number[o] for o in graph.outputs]
        self.state = sorted((self.number[p], self.number[v]) for p, v in graph.state if p in self.number)

    def _refine(self) -> None:
        """Forward and backward passes until they tell nothing more apart."""
        classes = -1
        for _ in range(_PASSES):
            before, classes = classes, len({*self.dim.values(), *self.axis.values()})
            if classes == before:
                return
            for op in self.graph.operators:
                self._colour(op)
            for op in reversed(self.graph.operators):  # all readers of its result have their colours by now
                self._colour_reads(op.output.tensor)
                self._colour(op)
            for t in self.graph.tensors:
                if t.name not in self.writer:
                    self._colour_reads(t.name)

    def _choose(self) -> bool:
        """Break one symmetry (rows and columns of a square image): a member of the first class of equal dimensions
        or operands.
        """
        tied: dict[str, tuple[str, int]] = {}
        for t in self.graph.tensors:
            colours = [self.dim[t.name, k] for k in range(len(t.shape))]
            for k, c in enumerate(colours):
                if c in colours[:k] and t.shape[k] > 1:
                    tied.setdefault(c, (t.name, k))
        if tied:
            place = tied[min(tied)]
            self.dim[place] = _hash(self.dim[place], "chosen")
            return True
        twins: dict[str, str] = {}
        for op in self.graph.operators:
            seen: dict[str, Access] = {}
            for c, j in self._operands(op) if op.function in _COMMUTING else []:
                other = seen.setdefault(c, op.inputs[j])
                if other.tensor != op.inputs[j].tensor:
                    twins.setdefault(self.tensor[other.tensor], other.tensor)
        if twins:
            name = twins[min(twins)]
            self.tensor[name] = _hash(self.tensor[name], "chosen")
        return bool(twins)

    def _access(self, op: Operator, a: Access) -> str:
        index = [
            (self.dim[a.tensor, k], sorted((self.axis[op.name, t], c) for t, c in i.terms), i.offset, i.whole)
            for k, i in enumerate(a.index)
        ]
        return _hash(self.tensor[a.tensor], sorted(index))

    def _operands(self, op: Operator) -> list[tuple[str, int]]:
        """(colour, position) of the operands: by colour where they commute."""
        found = [(self._access(op, a), j) for j, a in enumerate(op.inputs)]
        return sorted(found) if op.function in _COMMUTING else found

    def _colour(self, op: Operator) -> None:
        """Colours of an operator's axes from its operands and result, then of its result from them."""
        operands = self._operands(op)
        touched: dict[str, list[object]] = {a.name: [] for a in op.axes}
        for place, (colour, j) in enumerate([*operands, ("output", -1)]):
            a = op.output if j < 0 else op.inputs[j]
            at = "output" if j < 0 else (colour if op.function in _COMMUTING else place)
            for k, i in enumerate(a.index):
                for t, c in i.terms:
                    others = sorted((self.axis[op.name, u], d) for u, d in i.terms if u != t)
                    touched[t].append((at, self.dim[a.tensor, k], c, i.offset, others))
        kind = _hash(op.function, _attributes(op), [c for c, _ in operands], self.tensor[op.output.tensor])
        for name, uses in touched.items():
            self.axis[op.name, name] = _hash(self.axis[op.name, name], sorted(map(repr, uses)))
        whole = _hash(kind, sorted(self.axis[op.name, a.name] for a in op.axes))
        self.tensor[op.output.tensor] = _hash(self.tensor[op.output.tensor], whole)
        for k, i in enumerate(op.output.index):
            self.dim[op.output.tensor, k] = _hash(self.dim[op.output.tensor, k], self.axis[op.name, i.single or ""])

    def _colour_reads(self, tensor: str) -> None:
        """Colours of a tensor and its dimensions from how they are read."""
        uses: list[str] = []
        dims: dict[int, list[str]] = {k: [] for k in range(len(self.graph.tensor(tensor).shape))}
        for i, j in self.readers[tensor]:
            reader = self.graph.operators[i]
            a, out = reader.inputs[j], self.tensor[reader.output.tensor]
            place = "any" if reader.function in _COMMUTING else j
            uses.append(_hash(reader.function, place, out, self._access(reader, a)))
            for k, index in enumerate(a.index):
                terms = sorted((self.axis[reader.name, t], c) for t, c in index.terms)
                dims[k].append(_hash(place, out, terms, index.offset, index.whole))
        self.tensor[tensor] = _hash(self.tensor[tensor], sorted(uses))
        for k, found in dims.items():
            self.dim[tensor, k] = _hash(self.dim[tensor, k], sorted(found))

    def _walk(self, tensor: str) -> None:
        """List what computes a tensor, operands first; number the tensor."""
        stack: list[tuple[str, bool]] = [(tensor, False)]
        while stack:
            name, done = stack.pop()
            if name in self.number:
                continue
            op = self.writer.get(name)
            if op is None:
                self._give(name)
                t = self.graph.tensor(name)
                self.stored.append(
                    f"T{self.number[name]}: {t.role.value} {t.dtype} {[t.shape[k] for k in self.order[name]]}"
                )
            elif done:
                self._give(name)
                self.lines.append(self.line(op))
            else:
                stack.append((name, True))
                stack += [(op.inputs[j].tensor, False) for _, j in reversed(self._sorted(op))]

    def _sorted(self, op: Operator) -> list[tuple[str, int]]:
        found = self._operands(op)
        if op.function in _COMMUTING and any(n > 1 for n in Counter(c for c, _ in found).values()):
            same = Counter((c, op.inputs[j]) for c, j in found)
            self.ties = self.ties or len(same) > len({c for c, _ in found})
        return found

    def _give(self, name: str) -> None:
        self.number[name] = len(self.number)
        colours = [self.dim[name, k] for k in range(len(self.graph.tensor(name).shape))]
        self.ties = self.ties or len(set(colours)) < len(colours)
        self.order[name] = sorted(range(len(colours)), key=lambda k: (colours[k], k))

    def line(self, op: Operator) -> _Line:
        """An operator as text."""
        accesses = [op.output, *(op.inputs[j] for _, j in self._sorted(op))]
        names: dict[str, str] = {}
        for a in accesses:
            for k in self.order[a.tensor]:
                for t, _ in sorted(a.index[k].terms, key=lambda term: (self.axis[op.name, term[0]], term[1])):
                    names.setdefault(t, f"a{len(names)}")
        for axis in sorted((x for x in op.axes if x.name not in names), key=lambda x: self.axis[op.name, x.name]):
            names[axis.name] = f"a{len(names)}"
        extents = {
            names[x.name]: f"{names[x.name]} {x.extent} {x.combine.value if x.combine else 'parallel'} {x.splittable}"
            for x in op.axes
        }

        def one(a: Access) -> str:
            return f"T{self.number[a.tensor]}[{', '.join(_index(a.index[k], names) for k in self.order[a.tensor])}]"

        axes = tuple(extents[k] for k in sorted(extents, key=lambda n: int(n[1:])))
        output = f"{one(op.output)} {self.graph.tensor(op.output.tensor).dtype}"
        return _Line(
            op.name, op.function, axes, tuple(one(a) for a in accesses[1:]), output, tuple(_attributes(op, names))
        )


def _index(index: Affine, names: dict[str, str]) -> str:
    terms = sorted((names[t], c) for t, c in index.terms)
    text = " + ".join(f"{c} {t}" if c != 1 else t for t, c in terms)
    return (
        f"{text} + {index.offset}{' whole' if index.whole else ''}" if index.offset or index.whole or not text else text
    )


def _roles(op: Operator, axis: str) -> tuple[str, ...]:
    """How attributes name an axis."""
    named = [k for k, v in op.attributes if k in _AXIS_NAMES and v == axis]
    roles = [k for k in ROLES if axis in role(op, k)] if op.kind is NodeKind.ATTENTION else []
    return (*named, *roles, *(["over"] if axis in op.over else []))


_AXIS_NAMES = ("rows", "along", "axis")


def _attributes(op: Operator, names: dict[str, str] | None = None) -> list[str]:
    """Attributes as text; axes by their new names, or left out."""
    out = []
    for key, value in sorted(op.attributes):
        if key == "over":
            out.append(f"over={sorted(names[a] for a in op.over)}" if names is not None else f"over={len(op.over)}")
        elif key in ROLES and op.kind is NodeKind.ATTENTION:
            members = role(op, key)
            out.append(f"{key}={sorted(names[a] for a in members)}" if names is not None else f"{key}={len(members)}")
        elif key in _AXIS_NAMES:
            out.append(f"{key}={names[str(value)]}" if names is not None else key)
        else:
            out.append(f"{key}={_number(value)}")
    return out
