"""Carries out a `Fused` instruction.

On the host: the box is cut into chunks of whole rows (along dimensions that no member takes statistics over), and every
chunk passes through all members before the next one starts.  Intermediate values and the temporaries of a function
(gelu has forty) then have the size of a chunk and stay in cache, where operator by operator they would have the size of
the tensor and go to memory and back.

    elements of a chunk  =  about what fits the second-level cache          (`CHUNK`)

A library whose functions are single passes (`Library.passes`) takes the box as it is: 5 maps of 1.6 million float32
take PyTorch 1.2 ms so, 2.8 ms in chunks, which are put together behind.

On a GPU: one generated kernel (`backends.cuda`), where the chain has one; otherwise operator by operator.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Hashable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import product
from math import prod
from types import ModuleType
from typing import Final

import numpy as np

from ...models.program.graph import Graph
from ...models.program.index import Access
from ...models.program.operators import NodeKind, Operator
from ..compiled.chains import ChainLibrary
from ..cuda import Kernel, KernelTextError
from ..cuda.group import Launch, launches
from ..kernels import Array, Block
from ..kernels.blocks import align, spread, view
from ..kernels.library import Library
from ..kernels.moments import Kept
from ..lowering.program import Compute, Fused

_PASSES: Final = frozenset({"add", "subtract", "multiply"})
_WRITTEN: Final = (np.dtype("float32"), np.dtype("float64"))
"""Element types of results that take the memory of an operand."""
CHUNK: Final = 1 << 17
"""Elements per chunk, twice that where a member takes statistics (a call of its kernel costs 0.1 ms).

Measured on one core with 1 MiB of second-level cache, float32, 2048 x 2048, operator by operator -> fused: bias, relu
4.6 -> 3.0 ms; bias, gelu, residual 395 -> 209 ms; residual, layer norm 18 -> 16 ms.  Chunks of 2^15 to 2^19 elements
are equally good for maps, smaller ones are not."""

Run = Callable[[Kernel, Sequence[Array]], None]
"""Launches a generated kernel."""


_Twin = tuple[str, Hashable, tuple[Hashable, ...]]
"""Function, attributes and where the operands are."""


class MemberError(RuntimeError):
    """Member number `member` of a fused instruction failed; the reason is its cause."""

    def __init__(self, member: int, reason: Exception) -> None:
        super().__init__(str(reason))
        self.member, self.reason = member, reason


@dataclass(frozen=True, eq=False)
class _Chain:
    """A chain to be executed: its step, the boxes of its members, memory by slot, and what normalisations share."""

    xp: ModuleType
    graph: Graph
    step: Fused
    boxes: Sequence[dict[str, tuple[int, int]]]
    slots: Mapping[str, Array]
    library: Library
    moments: dict[str, Kept]

    @property
    def result_members(self) -> list[int]:
        """Members that are results."""
        return list(dict.fromkeys(k for _, k in self.step.results))

    @property
    def whole(self) -> tuple[tuple[int, int], ...]:
        """The output box."""
        return tuple(self.boxes[0][a] for a in self.graph.operators[self.step.members[0].operator].output.axes)


def execute_fused(
    xp: ModuleType,
    graph: Graph,
    step: Fused,
    slots: Mapping[str, Array],
    library: Library,
    run: Run | None = None,
    moments: dict[str, Kept] | None = None,
) -> dict[str, Array]:
    """The results by slot.  `run` launches generated kernels on arrays of `xp`; without it, chunk by chunk.
    `moments`: what normalisations share, which generated kernels do not.

    Raises `MemberError`.
    """
    boxes = [{a.name: i for a, i in zip(graph.operators[m.operator].axes, m.box, strict=True)} for m in step.members]
    chain = _Chain(xp, graph, step, boxes, slots, library, {} if moments is None or run is not None else moments)
    own = _own(graph, step, slots, library) if run is None and isinstance(library, ChainLibrary) else None
    if own is not None:
        found = own
    elif len({tuple(b[a] for a in graph.operators[m.operator].output.axes) for m, b in zip(step.members, boxes)}) > 1:
        found = _apart(chain)
    elif run is not None:
        found = _generated(chain, run)
    else:
        found = _chunked(chain)
    return {slot: found[k] for slot, k in step.results}


def _own(graph: Graph, step: Fused, slots: Mapping[str, Array], library: ChainLibrary) -> dict[int, Array] | None:
    try:
        return library.chain(graph, step, slots)
    except Exception as e:
        raise MemberError(0, e) from e


def _apart(chain: _Chain) -> dict[int, Array]:
    """Members one after another, each on its own box: chains with reductions whose library does not take them."""
    graph, step, slots = chain.graph, chain.step, chain.slots
    linked, values = dict(step.links), list[Block]()
    for k, (member, box) in enumerate(zip(step.members, chain.boxes, strict=True)):
        op = graph.operators[member.operator]
        given = [values[linked[s]] if s in linked else Block(slots[s], origin) for s, origin in member.operands]
        try:
            made = chain.library.execute(chain.xp, op, graph, box, given)
            values.append(Block(made, tuple(box[a][0] for a in op.output.axes)))
        except Exception as e:
            raise MemberError(k, e) from e
    return {k: values[k].array for k in chain.result_members}


def _chunked(chain: _Chain) -> dict[int, Array]:
    xp, graph, step, boxes, slots = chain.xp, chain.graph, chain.step, chain.boxes, chain.slots
    library, whole = chain.library, chain.whole
    out_axes = [graph.operators[m.operator].output.axes for m in step.members]
    fixed = {
        axes.index(a) for m, axes in zip(step.members, out_axes, strict=True) for a in graph.operators[m.operator].over
    }
    parts = [whole] if library.passes else list(chunks(whole, fixed, CHUNK * (2 if fixed else 1)))
    if len(parts) == 1 and not library.passes:
        return _members(chain, whole, {})
    views = {
        k: _views(xp, graph, m, box, slots, dict(step.links))
        for k, (m, box) in enumerate(zip(step.members, boxes, strict=True))
        if graph.operators[m.operator].kind is NodeKind.MAP
        and graph.operators[m.operator].function in library.functions
    }
    if len(parts) == 1:
        here = {k: [v.on(v.box) if isinstance(v, Padded) else v for v in each] for k, each in views.items()}
        return _members(chain, whole, here)
    results: dict[int, Array] = {}
    for part in parts:
        where = tuple(slice(lo - low, hi - low) for (lo, hi), (low, _) in zip(part, whole, strict=True))
        cut = {k: [_part(v, where, part) for v in each] for k, each in views.items()}
        last = len(step.members) - 1
        into = results[last][where] if last in results else None
        values = _members(chain, part, cut, into)
        for k in chain.result_members:
            if k not in results:
                results[k] = _destination(xp, step, slots, whole, values[k])
            if values[k] is not into:
                results[k][where] = values[k]
    return results


def _views(
    xp: ModuleType,
    graph: Graph,
    member: Compute,
    box: dict[str, tuple[int, int]],
    slots: Mapping[str, Array],
    linked: Mapping[str, int],
) -> list[Array | Padded | None]:
    """Operands of a map operator on the whole box, with one dimension per output dimension; None for values of the
    chain.

    A chunk then costs a slice per operand: preparing operands anew would take longer than a small chunk itself, but for
    operands with padding, which whole would be a copy in memory, and chunk by chunk is one in cache.
    """
    op = graph.operators[member.operator]
    out: list[Array | Padded | None] = []
    for j, ((slot, origin), a) in enumerate(zip(member.operands, op.inputs, strict=True)):
        if slot in linked:
            out.append(None)
            continue
        place = f"operator {op.name!r}, input {j}"
        whole = Padded(xp, Block(slots[slot], origin), a, op.output.axes, box, graph.tensor(a.tensor).shape, place)
        out.append(whole if whole.is_padded else whole.on(box))
    return out


@dataclass(frozen=True)
class Padded:
    """An operand that leaves its tensor somewhere on the box."""

    xp: ModuleType
    block: Block
    access: Access
    out: tuple[str, ...]
    box: Mapping[str, tuple[int, int]]
    shape: tuple[int, ...]
    place: str

    @property
    def is_padded(self) -> bool:
        """Whether it does."""
        spans = (i.unclipped_interval(dict(self.box)) for i in self.access.index if not i.whole)
        sizes = (n for i, n in zip(self.access.index, self.shape, strict=True) if not i.whole)
        return any(low < 0 or high > n for (low, high), n in zip(spans, sizes, strict=True))

    def on(self, box: Mapping[str, tuple[int, int]]) -> Array:
        """The operand there, with one dimension per output dimension."""
        seen = view(self.xp, self.block, self.access, dict(box), self.shape, 0, self.place)
        return align(seen, self.access.axes, self.out)


def _part(given: Array | Padded | None, where: Sequence[slice], part: Sequence[tuple[int, int]]) -> Array | None:
    if given is None:
        return None
    if isinstance(given, Padded):
        return given.on({**given.box, **dict(zip(given.out, part, strict=True))})
    return given[tuple(w if n != 1 else slice(None) for n, w in zip(given.shape, where, strict=True))]


def _destination(
    xp: ModuleType, step: Fused, slots: Mapping[str, Array], whole: Sequence[tuple[int, int]], value: Array
) -> Array:
    """Memory for a result: that of the operand nobody else reads, if it fits."""
    shape = tuple(hi - lo for lo, hi in whole)
    spare = slots.get(step.reuse) if step.reuse is not None else None
    if (
        spare is not None
        and spare.shape == shape
        and spare.dtype == value.dtype
        and spare.flags.c_contiguous
        and spare.flags.writeable
    ):
        return spare
    return xp.empty(shape, dtype=value.dtype)  # type: ignore[no-any-return]


def _members(
    chain: _Chain,
    part: Sequence[tuple[int, int]],
    cut: Mapping[int, Sequence[Array | None]],
    into: Array | None = None,
) -> dict[int, Array]:
    """The values of the members that are results, on a part of the output box, in memory of their own; `cut`: operands
    of map members there, where they are prepared; `into`: where the last member writes, if it is one pass.

    Such a member computes nothing where an earlier one has the same function of the same memory, and its value stays
    as small as its operands.  A value is forgotten behind its last reader, which writes into its memory where the
    library can (`Library.writes`); else the next one gets it, in cache.
    """
    xp, graph, step, library, wanted = chain.xp, chain.graph, chain.step, chain.library, chain.result_members
    linked, values, twins = dict(step.links), dict[int, Array](), dict[_Twin, Array]()
    low, shape = tuple(lo for lo, _ in part), tuple(hi - lo for lo, hi in part)
    last = {linked[slot]: k for k, m in enumerate(step.members) for slot, _ in m.operands if slot in linked}
    for k, (member, box) in enumerate(zip(step.members, chain.boxes, strict=True)):
        op = graph.operators[member.operator]
        ends = [j for j, reader in last.items() if reader == k and j not in wanted]
        try:
            if k in cut:
                given = [
                    values[linked[slot]] if have is None else have
                    for (slot, _), have in zip(member.operands, cut[k], strict=True)
                ]
                at_end = into if k == len(step.members) - 1 else None
                own = _spare(values, ends, given, cut) if op.function in library.writes else at_end
                values[k] = _mapped_value(xp, op, given, library, twins, own)
            else:
                here = {**box, **dict(zip(op.output.axes, part, strict=True))}
                blocks = [
                    Block(xp.broadcast_to(values[linked[slot]], shape), low)
                    if slot in linked
                    else Block(chain.slots[slot], origin)
                    for slot, origin in member.operands
                ]
                values[k] = library.execute(xp, op, graph, here, blocks, None, kept_for(chain.moments, member))
        except Exception as e:
            raise MemberError(k, e) from e
        for j in ends:
            gone = _memory(values.pop(j)) if cut else None
            if not cut or _memory(values[k]) != gone:  # else its memory lives on
                twins = {key: value for key, value in twins.items() if gone not in key[2] and _memory(value) != gone}
    given = [v for each in cut.values() for v in each if v is not None]
    out = dict[int, Array]()
    for k in wanted:
        if values[k] is into:
            out[k] = values[k]
            continue
        value = spread(xp, values[k], shape)
        shared = cut and any(xp.may_share_memory(value, other) for other in (*given, *out.values()))
        out[k] = value.copy() if shared else value
    return out


def _spare(
    values: Mapping[int, Array],
    ending: Collection[int],
    given: Sequence[Array],
    cut: Mapping[int, Sequence[Array | None]],
) -> Array | None:
    """Memory of a value of the chain that ends here, for a result of its shape and type; None where somebody else has
    it, too.
    """
    if not ending or len({g.dtype for g in given}) > 1 or given[0].dtype not in _WRITTEN:
        return None
    shape = np.broadcast_shapes(*(g.shape for g in given))
    others = [v for j, v in values.items() if j not in ending] + [
        v for each in cut.values() for v in each if v is not None
    ]
    for value in (values[j] for j in sorted(ending)):
        rest = [*others, *(g for g in given if _memory(g) != _memory(value))]
        usable = value.shape == shape and value.flags.c_contiguous and value.flags.writeable
        if usable and not any(np.may_share_memory(value, v) for v in rest):
            return value
    return None


def _mapped_value(
    xp: ModuleType,
    op: Operator,
    given: Sequence[Array],
    library: Library,
    twins: dict[_Twin, Array],
    into: Array | None,
) -> Array:
    """A map of operands that are at hand: in the memory `into`, where the library writes there, or the function is the
    ufunc of its name on operands of that shape and type; else that of an equal map before.
    """
    if into is not None and op.function in library.writes:
        library.writes[op.function](given, op, into)
        for key in [key for key, v in twins.items() if _memory(into) in (*key[2], _memory(v))]:
            del twins[key]
        return into
    alike = into is not None and all(g.shape == into.shape and g.dtype == into.dtype for g in given)
    if alike and op.function in _PASSES:
        return getattr(xp, op.function)(*given, out=into)  # type: ignore[no-any-return]
    key = op.function, op.attributes, tuple(map(_memory, given))
    if key not in twins:
        twins[key] = library.functions[op.function](xp, given, op)
    return twins[key]


def _memory(array: Array) -> Hashable:
    """Where the numbers of an array are that lives: two of the same are one."""
    found = array.__array_interface__
    return found["data"], array.shape, array.strides, array.dtype.str


def kept_for(moments: dict[str, Kept], step: Compute) -> Kept | None:
    """Where a step finds or leaves its moments; None where it shares none."""
    return None if step.moments is None else moments.setdefault(step.moments, Kept())


def chunks(whole: Sequence[tuple[int, int]], fixed: set[int], most: int) -> Iterator[tuple[tuple[int, int], ...]]:
    """The box in row-major pieces of about `most` elements, never cut along the dimensions `fixed`.

    >>> list(chunks(((0, 4), (0, 3)), set(), 6))
    [((0, 2), (0, 3)), ((2, 4), (0, 3))]
    >>> list(chunks(((0, 4), (0, 3)), {0}, 6))
    [((0, 4), (0, 1)), ((0, 4), (1, 3))]
    """
    lengths = [max(0, hi - lo) for lo, hi in whole]
    pieces = [1] * len(whole)
    size = prod(lengths)
    for k, n in enumerate(lengths):  # the outer dimensions first, so that a piece is as contiguous as possible
        if size <= most + most // 2 or k in fixed or n < 2:
            continue
        pieces[k] = min(n, -(-size // most))
        size = -(-size // pieces[k])
    cuts = [
        [(lo + n * i // p, lo + n * (i + 1) // p) for i in range(p)] if p > 1 else [(lo, hi)]
        for (lo, hi), n, p in zip(whole, lengths, pieces, strict=True)
    ]
    yield from product(*cuts)


def _generated(chain: _Chain, run: Run) -> dict[int, Array]:
    try:
        planned: list[Launch] = launches(chain.xp, chain.graph, chain.step, chain.boxes, chain.slots)
        results: dict[int, Array] = {}
        for launch in planned:
            run(launch.kernel, launch.arrays)
            results.update(launch.results)
        return results
    except KernelTextError:
        return _members(chain, chain.whole, {})


def alone(step: Compute) -> Fused:
    """One operator as a chain of its own."""
    return Fused((step,), (), ((step.slot, 0),))
