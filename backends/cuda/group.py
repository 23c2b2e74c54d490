"""From a fused chain to generated kernels: what is launched, on which arrays.

    maps only                       one chain kernel
    a normalise, then maps          one row kernel with epilogue; gamma and beta are two more steps of it
    maps, then a normalise, ..      a chain kernel, then a row kernel

The statistics must run over the last dimensions, so that a row is dense.  Everything else has no text
(`KernelTextError`).

Writing and hashing a text takes about as long as a small kernel runs.  It depends on the instruction and on the layout
of its operands only, so an instruction keeps its recipes, also the knowledge that it has no text, and later launches
only look their arrays up.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from math import prod
from types import ModuleType

from ...models.program.graph import Graph
from ...models.program.index import access
from ...models.program.operators import NodeKind, Operator
from ..kernels import Array, Block
from ..kernels.blocks import align, view
from ..kernels.elementwise import number
from ..lowering.program import Fused
from . import chain, rows
from .kernel import C_TYPES, Kernel, KernelTextError, Operand, dense


@dataclass(frozen=True)
class Launch:
    """One kernel, its arrays in argument order, and which of them hold members' values."""

    kernel: Kernel
    arrays: tuple[Array, ...]
    results: dict[int, Array]


@dataclass(frozen=True)
class Recipe:
    """A launch without its arrays.

    `inputs`: (member, operand of it), or (member, None) for a member's value from an earlier launch; `results`:
    (member, element type).
    """

    kernel: Kernel
    inputs: tuple[tuple[int, int | None], ...]
    results: tuple[tuple[int, str], ...]


Box = dict[str, tuple[int, int]]


def launches(
    xp: ModuleType, graph: Graph, step: Fused, boxes: Sequence[Box], slots: Mapping[str, Array]
) -> list[Launch]:
    """The launches that compute every result of `step`, in order.  Raises `KernelTextError`."""
    group = _Group(xp, graph, step, boxes, slots)
    key = tuple(
        (a.dtype.str, a.shape, a.strides)
        for a in (slots[s] for m in step.members for s, _ in m.operands if s not in group.linked)
    )
    kept = step.recipes.get(key)
    if isinstance(kept, KernelTextError):
        raise KernelTextError(str(kept))
    if isinstance(kept, tuple):
        for recipe in kept:
            group.launch(recipe)
        return group.made
    try:
        group.write()
    except KernelTextError as error:
        step.recipes[key] = error
        raise
    step.recipes[key] = tuple(group.recipes)
    return group.made


class _Group:
    def __init__(
        self, xp: ModuleType, graph: Graph, step: Fused, boxes: Sequence[Box], slots: Mapping[str, Array]
    ) -> None:
        self.xp, self.graph, self.step, self.boxes, self.slots = xp, graph, step, boxes, slots
        self.linked = dict(step.links)
        self.axes = [graph.operators[m.operator].output.axes for m in step.members]
        self.shape = tuple(boxes[0][a][1] - boxes[0][a][0] for a in self.axes[0])
        self.recipes: list[Recipe] = []
        self.made: list[Launch] = []
        self.known: dict[int, Array] = {}

    def write(self) -> None:
        """Make all recipes, and their launches."""
        operators = [self.graph.operators[m.operator] for m in self.step.members]
        norms = [k for k, op in enumerate(operators) if op.kind is NodeKind.NORMALISE]
        if len(norms) > 1:
            raise KernelTextError("two normalisations in one chain")
        wanted = sorted({k for _, k in self.step.results})
        if not norms:
            return self.launch(self.chain(range(len(operators)), wanted))
        norm = norms[0]
        later = range(norm + 1, len(operators))
        read_later = {
            self.linked[slot]
            for k in (norm, *later)
            for slot, _ in self.step.members[k].operands
            if slot in self.linked
        }
        needed = [k for k in range(norm) if k in wanted or k in read_later]
        if needed:
            self.launch(self.chain(range(norm), needed))
        return self.launch(self.row(norm, later, [k for k in wanted if k >= norm]))

    def launch(self, recipe: Recipe) -> None:
        """The recipe on the arrays at hand."""
        inputs = [self.array(source) for source in recipe.inputs]
        results = {k: self.empty(dtype) for k, dtype in recipe.results}
        self.recipes.append(recipe)
        self.made.append(Launch(recipe.kernel, (*inputs, *results.values()), results))
        self.known.update(results)

    def array(self, source: tuple[int, int | None]) -> Array:
        """What a recipe's input is here."""
        member, position = source
        return self.known[member] if position is None else self.operand(member, position)

    def operand(self, member: int, position: int) -> Array:
        """An external operand as a view with one dimension per output dimension (length 1: broadcast)."""
        op = self.graph.operators[self.step.members[member].operator]
        slot, origin = self.step.members[member].operands[position]
        a = op.inputs[position]
        place = f"operator {op.name!r}, input {position}"
        seen = view(
            self.xp, Block(self.slots[slot], origin), a, self.boxes[member], self.graph.tensor(a.tensor).shape, 0, place
        )
        return align(seen, a.axes, op.output.axes)

    def describe_operand(self, array: Array) -> Operand:
        size = array.dtype.itemsize
        strides = tuple(0 if have == 1 else s // size for have, s in zip(array.shape, array.strides, strict=True))
        return Operand(str(array.dtype), strides)

    def arguments(
        self, members: Sequence[int], given: list[tuple[int, int | None]], numbers: dict[int, int]
    ) -> dict[int, list[int | tuple[int]]]:
        """Per member its arguments: an index into `given` (grown here), or (member,) for a value of this launch."""
        out: dict[int, list[int | tuple[int]]] = {}
        for k in members:
            out[k] = []
            for j, (slot, _) in enumerate(self.step.members[k].operands):
                source = self.linked.get(slot)
                if source is not None and source in numbers:
                    out[k].append((source,))
                    continue
                given.append((source, None) if source is not None else (k, j))
                out[k].append(len(given) - 1)
        return out

    def chain(self, members: Sequence[int], wanted: Sequence[int]) -> Recipe:
        numbers = {k: n for n, k in enumerate(members)}
        given: list[tuple[int, int | None]] = []
        arguments = self.arguments(members, given, numbers)
        steps = tuple(
            chain.Step(
                self.graph.operators[self.step.members[k].operator],
                tuple(len(given) + numbers[a[0]] if isinstance(a, tuple) else a for a in arguments[k]),
            )
            for k in members
        )
        spec = chain.Chain(
            self.shape,
            tuple(self.describe_operand(self.array(a)) for a in given),
            steps,
            tuple(numbers[k] for k in wanted),
        )
        return Recipe(chain.generate(spec), tuple(given), tuple(zip(wanted, chain.result_types(spec), strict=True)))

    def empty(self, dtype: str) -> Array:
        return self.xp.empty(self.shape, dtype=dtype)  # type: ignore[no-any-return]

    def row(self, norm: int, later: Sequence[int], wanted: Sequence[int]) -> Recipe:
        op, axes = self.graph.operators[self.step.members[norm].operator], self.axes[norm]
        over = len(op.over)
        if set(axes[len(axes) - over :]) != set(op.over) or op.function not in rows.FUNCTIONS:
            raise KernelTextError(f"operator {op.name!r}: the axes of the statistics are not the last ones")
        columns = prod(self.shape[len(axes) - over :])
        slot, _ = self.step.members[norm].operands[0]
        first: tuple[int, int | None] = (self.linked[slot], None) if slot in self.linked else (norm, 0)
        x = self.array(first)
        if x.shape != self.shape or not x.flags.c_contiguous:
            raise KernelTextError(f"operator {op.name!r}: its rows are not dense")
        given: list[tuple[int, int | None]] = []
        steps: list[chain.Step] = []
        affine = [(j, f) for j, f in ((1, "multiply"), (2, "add")) if j < len(op.inputs)]
        for j, _ in affine:
            given.append((norm, j))
        numbers = {norm: 0, **{k: n for n, k in enumerate(later, start=1)}}
        arguments = self.arguments(later, given, numbers)
        base = 1 + len(given)
        for n, (_, function) in enumerate(affine):
            steps.append(chain.Step(_binary(function, op), (0 if n == 0 else base + n - 1, 1 + n)))
        value = base + len(affine) - 1 if affine else 0
        for k in later:
            places = tuple(
                (value if a[0] == norm else base + len(affine) + numbers[a[0]] - 1) if isinstance(a, tuple) else 1 + a
                for a in arguments[k]
            )
            steps.append(chain.Step(self.graph.operators[self.step.members[k].operator], places))
        results_of = {norm: len(affine), **{k: len(affine) + n for n, k in enumerate(later, start=1)}}
        operands = tuple(self.row_column_strides(self.array(a), over) for a in given)
        spec = rows.Rows(
            op.function,
            prod(self.shape) // columns if columns else 0,
            columns,
            str(x.dtype),
            number(op, "epsilon", 1e-5),
            1.0,
            operands,
            tuple(steps),
            tuple(results_of[k] for k in wanted),
        )
        return Recipe(rows.generate(spec), (first, *given), tuple((k, str(x.dtype)) for k in wanted))

    def row_column_strides(self, array: Array, over: int) -> Operand:
        """(row, column) strides of an operand: its outer and its inner dimensions each walk as one, or the chain
        has no text.
        """
        if str(array.dtype) not in C_TYPES:
            raise KernelTextError(f"elements of type {array.dtype} have no generated kernel")
        size, split = array.dtype.itemsize, len(self.shape) - over
        walks = []
        for part in (slice(None, split), slice(split, None)):
            lengths, shape = array.shape[part], self.shape[part]
            strides = [s // size for s in array.strides[part]]
            if all(n == 1 for n in lengths):
                walks.append(0)
                continue
            inner = dense(shape)
            step = next(
                s // d for n, s, d in zip(reversed(lengths), reversed(strides), reversed(inner), strict=True) if n > 1
            )
            if tuple(lengths) != tuple(shape) or any(
                n > 1 and s != step * d for n, s, d in zip(lengths, strides, inner, strict=True)
            ):
                raise KernelTextError("an operand is broadcast along some of the row dimensions only")
            walks.append(step)
        return Operand(str(array.dtype), (walks[0], walks[1]))


def _binary(function: str, op: Operator) -> Operator:
    """gamma or beta of a normalisation, as an operator of its own."""
    names = tuple(op.output.axes)
    return Operator(
        f"{op.name} ({function})", function, op.axes, (access("x", *names), access("y", *names)), op.output, ()
    )
