"""A rule at operators of more axes than it has: which axes are one axis of the rule together, and of which it says
nothing.

    label    of a dimension of a tensor: an axis of the rule's tensor, or BATCH
    group    the dimensions of one label; the rule's axis is all of them, row-major in the order of their digits.  A
             group may be empty: an axis of one value
    batch    a dimension that every operator leaves as it is: the rule holds for each of its values, and a tensor that
             lacks it is the same for all of them.  So heads, batches and broadcast operands are rules of vectors
    digit    dimensions that operators read or write by one axis have one number

Axes that some operator sums over, lays side by side, cuts, normalises or exchanges are labelled as those of the rule's
operators that do the same; all others are batch.  `lifted_side` writes a side with its axes replaced by their groups.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import islice
from math import prod
from typing import Final, NamedTuple

from .....models.program.index import Access, Affine, Axis, Combine
from .....models.program.operators import Operator
from .....models.rewrites.rule import Node
from .....proofs.joint.derivation import BATCH

MOST_LABELS: Final = 4
"""Ways of labelling one place that are tried: rules that exchange axes have several, others hardly ever."""


class Dim(NamedTuple):
    """A dimension of a tensor."""

    label: int
    digit: int
    extent: int


Dims = tuple[Dim, ...]
Shapes = Mapping[str, tuple[int, ...]]


@dataclass(frozen=True)
class _Use:
    """What an operator does with an axis: `at` is where it stands in each operand and, last, in the result; `free`:
    read and written as it is; `moved`: an exchange takes it elsewhere.
    """

    at: tuple[int | None, ...]
    combine: Combine | None
    role: str
    free: bool
    shifted: bool

    def like(self, other: _Use) -> bool:
        """Whether two axes do the same in two operators, wherever they stand."""
        here, there = (tuple(d is None for d in u.at) for u in (self, other))
        return (here, self.combine, self.role) == (there, other.combine, other.role)


def _uses(op: Operator, shapes: Shapes, exchange: bool) -> dict[str, _Use] | None:
    """Of every axis; None where one stands twice in a tensor."""
    accesses = (*op.inputs, op.output)
    out = dict[str, _Use]()
    for a in op.axes:
        at, plain = list[int | None](), True
        for x in accesses:
            here = [d for d, i in enumerate(x.index) if any(n == a.name for n, _ in i.terms)]
            if len(here) > 1 or any(i.whole for i in x.index):
                return None
            at.append(here[0] if here else None)
            plain &= all(x.index[d].single is not None and shapes[x.tensor][d] == a.extent for d in here)
        role = "over" if a.name in op.over else "rows" if a.name == op.rows else ""
        read = any(d is not None for d in at[:-1])
        fixed = not exchange or _stays(op, at)
        out[a.name] = _Use(tuple(at), a.combine, role, plain and a.combine is None and read and not role and fixed,
                           not plain)  # fmt: skip
    return out


def _stays(op: Operator, at: Sequence[int | None]) -> bool:
    """Whether an exchange leaves an axis, and all before or all behind it, where they are."""
    d = at[0]
    names, out = [i.single for i in op.inputs[0].index], list(op.output.axes)
    return d is not None and d == at[-1] and (names[:d] == out[:d] or names[d:] == out[d:])


class _Parts:
    """Dimensions (wire, number) that are read or written by one axis, joined."""

    def __init__(self) -> None:
        self._above: dict[tuple[int, int], tuple[int, int]] = {}

    def root(self, at: tuple[int, int]) -> tuple[int, int]:
        while at in self._above:
            at = self._above[at]
        return at

    def join(self, one: tuple[int, int], other: tuple[int, int]) -> None:
        a, b = sorted((self.root(one), self.root(other)))
        if a != b:
            self._above[b] = a


def label_axes(
    left: Sequence[Node], samples: Sequence[Operator], sizes: Shapes, nodes: Mapping[int, Operator], shapes: Shapes,
    reads: Mapping[int, str],
) -> Iterator[dict[int, Dims]]:  # fmt: skip
    """The dimensions of all wires of a left side that is found at `nodes`; `samples`: its operators at some `sizes`,
    `shapes` of the tensors there, `reads`: what its pattern inputs are.
    """
    parts, known = _Parts(), dict[int, tuple[dict[str, _Use], dict[str, _Use]]]()
    for k, op in nodes.items():
        exchange = left[k].operator == "transpose"
        ours, theirs = _uses(op, shapes, exchange), _uses(samples[k], sizes, exchange)
        if ours is None or theirs is None:
            return
        known[k] = ours, theirs
        for use in ours.values():
            places = list(_places(left, k, use))
            for other in places[1:]:
                parts.join(places[0], other)
    bound, shifted, found = set[tuple[int, int]](), set[tuple[int, int]](), set[tuple[int, int]]()
    for k, (ours, _) in known.items():
        for use in ours.values():
            roots = {parts.root(p) for p in _places(left, k, use)}
            found |= roots
            bound |= set() if use.free else roots
            shifted |= roots if use.shifted else set()
    number = {r: i for i, r in enumerate(sorted(found, key=lambda r: (r not in shifted, r)))}
    todo = [
        (k, u)
        for k, (ours, _) in known.items()
        for u in ours.values()
        if parts.root(next(_places(left, k, u))) in bound
    ]
    tensors = {-1 - k: t for k, t in reads.items()} | {k: op.output.tensor for k, op in nodes.items()}
    for labels in islice(_assigned(left, {k: list(t.values()) for k, (_, t) in known.items()}, todo, {}), MOST_LABELS):
        dims = dict[int, Dims]()
        for wire, t in tensors.items():
            at = [parts.root((wire, d)) for d in range(len(shapes[t]))]
            if any(r not in number for r in at):
                return
            dims[wire] = tuple(
                Dim(labels.get((wire, d), BATCH), number[r], n)
                for d, (r, n) in enumerate(zip(at, shapes[t], strict=True))
            )
        if all(len({d[:2] for d in x}) == len(x) for x in dims.values()) and _in_order(left, nodes, dims):
            yield dims


def _places(left: Sequence[Node], k: int, use: _Use) -> Iterator[tuple[int, int]]:
    for wire, d in zip((*left[k].inputs, k), use.at, strict=True):
        if d is not None:
            yield wire, d


def _assigned(
    left: Sequence[Node],
    samples: Mapping[int, Sequence[_Use]],
    todo: Sequence[tuple[int, _Use]],
    labels: dict[tuple[int, int], int],
) -> Iterator[dict[tuple[int, int], int]]:
    """Labels of dimensions under which every axis does what one of the rule's does."""
    if not todo:
        yield labels
        return
    (k, use), *others = todo
    tried = list[dict[tuple[int, int], int]]()
    for axis in samples[k]:
        if use.like(axis):
            more = dict(zip(_places(left, k, use), (d for d in axis.at if d is not None), strict=True))
            if more not in tried and all(labels.get(p, label) == label for p, label in more.items()):
                tried.append(more)
                yield from _assigned(left, samples, others, {**labels, **more})


def _in_order(left: Sequence[Node], nodes: Mapping[int, Operator], dims: Mapping[int, Dims]) -> bool:
    """Whether what is exchanged lies in the rule's order, so that an exchange is one."""
    for k in nodes:
        for wire in (left[k].inputs[0], k) if left[k].operator == "transpose" else ():
            named = [d.label for d in dims[wire] if d.label != BATCH]
            if named != sorted(named):
                return False
    return True


def flat(dims: Dims, rank: int) -> tuple[int, ...]:
    """The shape that a rule sees."""
    return tuple(prod(d.extent for d in dims if d.label == a) for a in range(rank))


def _group(dims: Dims, label: int) -> list[Dim]:
    return sorted((d for d in dims if d.label == label), key=lambda d: d.digit)


Template = Sequence[tuple[Operator, tuple[int, ...]]]


def lifted_side(
    template: Template, operands: Mapping[int, Dims], names: Mapping[int, str], given: Mapping[int, Dims]
) -> list[tuple[Operator, tuple[int, ...]]] | None:
    """Every operator of a side with its axes replaced by their groups, and its shape; `operands`: dimensions of the
    pattern inputs, `names` of all wires, `given`: dimensions of what operators write, where they are there.  None where
    groups do not fit, or an operator would do nothing.
    """
    dims, out = dict(operands), list[tuple[Operator, tuple[int, ...]]]()
    last = [d.digit for of in given.values() for d in of]
    for k, (op, _) in enumerate(template):
        lifted = _lifted(op, [dims[int(a.tensor)] for a in op.inputs], given.get(k), last)
        if lifted is None:
            return None
        made, dims[k] = lifted
        if made.function == "copy" and len(made.inputs) == 1 and _same(made):
            return None
        inputs = tuple(replace(a, tensor=names[int(a.tensor)]) for a in made.inputs)
        made = replace(made, inputs=inputs, output=replace(made.output, tensor=names[k]))
        out.append((made, tuple(d.extent for d in dims[k])))
    return out


def _same(copy: Operator) -> bool:
    """Whether a copy is one of the whole tensor as it lies."""
    return tuple(i.single for i in copy.inputs[0].index) == copy.output.axes


Digits = dict[str, list[tuple[int, int]]]


def _lifted(
    op: Operator, operands: Sequence[Dims], given: Dims | None, last: Sequence[int]
) -> tuple[Operator, Dims] | None:
    digits: Digits = {}
    for access, dims in zip(op.inputs, operands, strict=True):
        if not all(_digits_of(op, i, _group(dims, d), digits) for d, i in enumerate(access.index)):
            return None
    if any(a.name not in digits for a in op.axes):
        return None
    batch: dict[int, int] = {}
    for d in (d for dims in operands for d in dims if d.label == BATCH):
        if batch.setdefault(d.digit, d.extent) != d.extent:
            return None
    own = op.output.axes
    made = tuple(Dim(BATCH, n, e) for n, e in sorted(batch.items()))
    made += tuple(Dim(j, n, e) for j, a in enumerate(own) for n, e in digits[a])
    if given is not None:
        if [d[::2] for d in _sorted(given)] != [d[::2] for d in _sorted(made)]:
            return None
        if [d for d in _sorted(given) if d.label == BATCH] != [d for d in _sorted(made) if d.label == BATCH]:
            return None
    out = _natural(op, operands, made, digits, last) if given is None else given
    inputs = list[Access]()
    for access, dims in zip(op.inputs, operands, strict=True):
        index = [_index(op, access, d, dims, digits) for d in dims]
        if None in index:
            return None
        inputs.append(Access(access.tensor, tuple(i for i in index if i is not None)))
    written = [_axis_name(d, own, out) for d in out]
    axes = [Axis(n, d.extent) for n, d in zip(written, out, strict=True)]
    for a in op.reduction_axes:
        axes += [replace(a, name=f"{a.name}_{p}", extent=e) for p, (_, e) in enumerate(digits[a.name])]
    attributes = list(op.attributes)
    for j, (key, value) in enumerate(attributes):
        if key in ("over", "rows"):
            named = [str(v) for v in value] if isinstance(value, tuple) else [str(value)]
            parts = tuple(f"{n}_{p}" for n in named for p in range(len(digits[n])))
            if not parts or (key == "rows" and len(parts) > 1):
                return None
            attributes[j] = key, parts if key == "over" else parts[0]
    output = Access(op.output.tensor, tuple(Affine.axis(n) for n in written))
    return Operator("", op.function, tuple(axes), tuple(inputs), output, tuple(attributes)), out


def _natural(op: Operator, operands: Sequence[Dims], made: Dims, digits: Digits, last: Sequence[int]) -> Dims:
    """The dimensions of a result: of an exchange in the rule's order, else as the `last` result of the side has them,
    or as its operands do, the widest first.
    """
    own, found = op.output.axes, list[Dim]()
    named = tuple(i.single or "" for i in op.inputs[0].index)
    if len(op.inputs) == 1 and sorted(named) == sorted(own) and named != own:
        return made
    if len(set(last)) == len(last) and sorted(d.digit for d in made) == sorted(last):
        return tuple(sorted(made, key=lambda d: last.index(d.digit)))
    for access, dims in sorted(zip(op.inputs, operands, strict=True), key=lambda x: -len(x[1])):
        for d in dims:
            if d.label == BATCH:
                found.append(d)
            elif len(terms := access.index[d.label].terms) > 0 and terms[0][0] in own:
                p = _group(dims, d.label).index(d)
                found += [Dim(own.index(terms[0][0]), *digits[terms[0][0]][p])]
    return tuple(dict.fromkeys(d for d in (*found, *made) if d in made))


def _sorted(dims: Dims) -> list[Dim]:
    return sorted(dims, key=lambda d: (d.label, d.digit))


def _digits_of(op: Operator, index: Affine, group: list[Dim], digits: Digits) -> bool:
    """Note the digits of the axes of an index; whether they fit those that are known."""
    if len(index.terms) == 1 and index.terms[0][1] == 1:
        name = index.terms[0][0]
        rest, extent = prod(d.extent for d in group[1:]), op.axis(name).extent
        if extent % rest or (not group and extent > 1):
            return False
        mine = [(d.digit, extent // rest if p == 0 else d.extent) for p, d in enumerate(group)]
        known = digits.setdefault(name, mine)
        return [e for _, e in known] == [e for _, e in mine]
    if len(group) > 1:
        return False
    for name, _ in index.terms:
        extent = op.axis(name).extent
        known = digits.setdefault(name, [(group[0].digit, extent)] if group else [])
        if len(known) > 1 or prod(e for _, e in known) != extent:
            return False
    return True


def _index(op: Operator, access: Access, d: Dim, dims: Dims, digits: Digits) -> Affine | None:
    """Where a dimension is read."""
    if d.label == BATCH:
        return Affine.axis(f"b{d.digit}")
    index, group = access.index[d.label], _group(dims, d.label)
    if len(index.terms) == 1 and index.terms[0][1] == 1:
        name, p = index.terms[0][0], group.index(d)
        rest = prod(x.extent for x in group[1:])
        if index.offset % rest:
            return None
        return Affine(((f"{name}_{p}", 1),), index.offset // rest if p == 0 else 0)
    return Affine(tuple((f"{name}_0", c) for name, c in index.terms if digits[name]), index.offset)


def _axis_name(d: Dim, own: Sequence[str], out: Dims) -> str:
    return f"b{d.digit}" if d.label == BATCH else f"{own[d.label]}_{_group(out, d.label).index(d)}"


def copy_of(dims: Dims, tensor: str, out: Dims, to: str) -> Operator | None:
    """A tensor in other order; None where it has not the same dimensions."""
    if _sorted(dims) != _sorted(out):
        return None
    names = {d: f"i{j}" for j, d in enumerate(out)}
    return Operator(
        "",
        "copy",
        tuple(Axis(names[d], d.extent) for d in out),
        (Access(tensor, tuple(Affine.axis(names[d]) for d in dims)),),
        Access(to, tuple(Affine.axis(names[d]) for d in out)),
    )
