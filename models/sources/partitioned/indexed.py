"""Says what operators of StableHLO are that read and write at positions: slices whose place is known, rows that are
looked up and added up, and order.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from math import prod
from typing import Final

import numpy as np

from ...equality.program import Word
from ..jax.ir import Op, body, combined_by, dialect, integer, integers, pairs, returns_argument
from ..jax.windows import neutral
from .operators import Handler, made_of, reduce_one
from .regions import extreme_of, order_of
from .writer import Writer, holds


def _starts(w: Writer, numbers: Sequence[int], shape: Sequence[int], sizes: Sequence[int]) -> list[int]:
    """Where a slice begins, pushed inside as XLA does."""
    found = []
    for number, n, size in zip(numbers, shape, sizes, strict=True):
        value = w.uniform(number)
        if n == size:
            found.append(0)
        elif value is None:
            raise w.refuse("a slice whose place depends on data")
        else:
            found.append(min(max(int(value), 0), n - size))
    return found


def dynamic_slice(w: Writer, op: Op, given: Sequence[int]) -> Sequence[int]:
    """A part whose place is known before the run."""
    sizes, number = integers(op, "slice_sizes"), given[0]
    for dim, start in enumerate(_starts(w, given[1:], w.shape(number), sizes)):
        number = w.slice(number, dim, start, start + sizes[dim])
    return [number]


def dynamic_update(w: Writer, op: Op, given: Sequence[int]) -> Sequence[int]:
    """A part that is replaced."""
    return [_replaced(w, given[0], given[1], _starts(w, given[2:], w.shape(given[0]), w.shape(given[1])))]


def _replaced(w: Writer, whole: int, part: int, starts: Sequence[int]) -> int:
    """`part` in the place of what begins at `starts`: along one dimension after another."""
    shape, sizes = w.shape(whole), w.shape(part)
    cut = [d for d in range(len(shape)) if sizes[d] != shape[d]]
    if not cut:
        return part
    first = cut[0]
    row = w.slice(whole, first, starts[first], starts[first] + sizes[first]) if len(cut) > 1 else whole
    new = _replaced(w, row, part, [0 if d == first else s for d, s in enumerate(starts)]) if len(cut) > 1 else part
    words: dict[str, Word] = {
        "dim": first,
        "start": starts[first],
        "stop": starts[first] + sizes[first],
        "step": 1,
    }
    return w.step("slice_scatter", (whole, new), words, shape, w.dtype(whole))


def _inside(w: Writer, ids: int, most: int) -> int:
    """Positions pushed inside 0 .. most, as XLA does; those that are there already as they are."""
    low, high = w.bounds(ids)
    if w.defined or (low >= 0 and high <= most):
        return ids
    shape, dtype = w.shape(ids), w.dtype(ids)
    return w.two("minimum", w.two("maximum", ids, w.full(shape, 0, dtype), dtype), w.full(shape, most, dtype), dtype)


def from_the_end(w: Writer, ids: int, extent: int) -> int | None:
    """x where positions are (x + extent if x < 0 else x), as JAX writes `table[x]`; None of others, and of those that
    pass through a type which does not hold the last position.
    """
    below = list[int]()
    while (maker := w.makers.get(ids)) is not None and maker.operator in ("reshape", "cast"):
        if not holds(w.dtype(ids), 0, extent - 1):
            return None
        below.append(ids)
        ids = maker.reads[0]
    if maker is None or maker.operator != "where":
        return None
    negative, other = w.makers.get(maker.reads[0]), w.makers.get(maker.reads[1])
    x = maker.reads[2]
    if negative is None or other is None or (negative.operator, other.operator) != ("lt", "add"):
        return None
    if (negative.reads, dict(negative.words)) != ((x,), {"number": 0}):
        return None
    if (other.reads, dict(other.words)) != ((x,), {"number": extent}):
        return None
    return w.reshape(x, w.shape(below[0])) if below else x


def _parts_of(w: Writer, ids: int, vector: int, many: int) -> list[int]:
    """Positions along each dimension, of vectors of them."""
    shape = w.shape(ids)
    if vector >= len(shape):
        return [ids]
    rest = tuple(n for k, n in enumerate(shape) if k != vector)
    return [w.reshape(w.slice(ids, vector, k, k + 1), rest) for k in range(many)]


def gather(w: Writer, op: Op, given: Sequence[int]) -> Sequence[int]:
    """Rows along dimensions (`x[ids]`, `x[i, j]`), or elements of each row (`take_along_axis`)."""
    d = dialect().GatherDimensionNumbers(op.attributes["dimension_numbers"])
    (table, ids), sizes = given, integers(op, "slice_sizes")
    along, batched, full = list(d.start_index_map), list(d.operand_batching_dims), w.shape(table)
    gone = [k for k in range(len(full)) if k in along or k in batched]
    rest = [k for k in range(len(full)) if k not in gone]
    if any(sizes[k] != 1 for k in gone) or any(sizes[k] != full[k] for k in rest) or not along:
        raise w.refuse(f"a gather of slices {sizes} of {full}; read are rows along dimensions")
    places = zip(along, _parts_of(w, ids, d.index_vector_dim, len(along)), strict=True)
    parts = [_inside(w, part, full[k] - 1) for k, part in places]
    kept = [k for k in range(len(full)) if k not in d.collapsed_slice_dims and k not in batched]
    many, vector = len(w.shape(parts[0])), d.index_vector_dim
    where = [k - (k > vector) for k in d.start_indices_batching_dims]
    others = [k for k in range(many) if k not in where]
    if batched:
        if len(parts) != 1:
            raise w.refuse("a gather along several dimensions of a batch")
        found = _picked(w, table, parts[0], Rows(tuple(batched), along[0], tuple(rest), tuple(where)))
    else:
        order = sorted(along)
        parts, wrap = [parts[along.index(k)] for k in order], False
        if w.defined and len(parts) == 1 and (named := from_the_end(w, parts[0], full[order[0]])) is not None:
            parts, wrap = [named], True
        shape = (*w.shape(parts[0]), *(full[k] for k in rest))
        found = w.step("index", (w.permute(table, [*order, *rest]), *parts), {"wrap": wrap}, shape, w.dtype(table))
    lead = [w.shape(parts[0])[k] for k in (*where, *others)]
    found = w.reshape(found, (*lead, *(full[k] if k in rest else 1 for k in kept)))
    place, behind = [-1] * (many + len(kept)), iter(range(many, many + len(kept)))
    for at in d.offset_dims:
        place[at] = next(behind)
    front = iter(range(many))
    return [w.permute(found, [p if p >= 0 else [*where, *others].index(next(front)) for p in place])]


@dataclass(frozen=True)
class Rows:
    """Dimensions of a table of which every row is read or written at positions of its own: those of the batch, that of
    the positions, the others; and which dimensions of the positions are those of the batch.
    """

    batched: tuple[int, ...]
    dim: int
    rest: tuple[int, ...]
    where: tuple[int, ...]


def _picked(w: Writer, table: int, ids: int, rows_of: Rows) -> int:
    """Elements of each row of a batch: batch, positions, what is left of the table."""
    full, where = w.shape(table), rows_of.where
    batched, along, rest = rows_of.batched, (rows_of.dim,), rows_of.rest
    others = [k for k in range(len(w.shape(ids))) if k not in where]
    batch = prod(full[k] for k in batched)
    inner, n = prod(full[k] for k in rest), full[along[0]]
    count = prod(w.shape(ids)[k] for k in others)
    rows = w.reshape(w.permute(table, [*batched, *rest, along[0]]), (batch, inner, n))
    at = w.expand(w.reshape(w.permute(ids, [*where, *others]), (batch, 1, count)), (batch, inner, count))
    found = w.step("gather", (rows, at), {"dim": 2}, (batch, inner, count), w.dtype(table))
    return w.permute(found, (0, 2, 1))


def scatter(w: Writer, op: Op, given: Sequence[int]) -> Sequence[int]:
    """Rows added up where positions say (gradients of `x[ids]`), or one part replaced whose place is known."""
    d = dialect().ScatterDimensionNumbers(op.attributes["scatter_dimension_numbers"])
    if len(given) != 3:
        raise w.refuse("a scatter of several tensors")
    target, ids, new = given
    along, full = list(d.scattered_dims_to_operand_dims), w.shape(target)
    batched = [*d.input_batching_dims, *d.scatter_indices_batching_dims]
    if returns_argument(op, 1):
        held = w.known.get(ids)
        if held is None or held.size != len(along) or batched:
            raise w.refuse("writes at positions that depend on data")
        start = [0] * len(full)
        for k, n in zip(along, held.reshape(-1).tolist(), strict=True):
            start[k] = int(n)
        sizes = iter([w.shape(new)[k] for k in d.update_window_dims])
        part = tuple(1 if k in list(d.inserted_window_dims) else next(sizes) for k in range(len(full)))
        if any(a < 0 or a + n > size for a, n, size in zip(start, part, full, strict=True)):
            return [target]  # XLA leaves out what lies outside
        return [_replaced(w, target, w.reshape(new, part), start)]
    added_up = combined_by(op) == "stablehlo.add"
    if added_up and list(d.input_batching_dims) and len(along) == 1:
        gone = [*along, *d.input_batching_dims]
        rest = [k for k in range(len(full)) if k not in gone]
        if any(k in d.inserted_window_dims for k in rest) or len(d.update_window_dims) != len(rest):
            raise w.refuse("a scatter into rows that leaves out a dimension")
        where = tuple(k - (k > d.index_vector_dim) for k in d.scatter_indices_batching_dims)
        (at,) = _parts_of(w, ids, d.index_vector_dim, 1)
        rows = Rows(tuple(d.input_batching_dims), along[0], tuple(rest), where)
        return [_added_in_rows(w, (target, at, new), rows, tuple(d.update_window_dims))]
    if not added_up or batched:
        raise w.refuse(f"a scatter that combines by a region of {_region_words(op)}; read are rows that are added up")
    return [_added_rows(w, op, (target, ids, new))]


def _region_words(op: Op) -> str:
    """The operators of a region."""
    return ", ".join(body(op)) or "nothing"


def _added_rows(w: Writer, op: Op, given: tuple[int, int, int]) -> int:
    """Rows added up along dimensions: left out of the windows, or of extent one in them, as XLA's simplifier writes."""
    d = dialect().ScatterDimensionNumbers(op.attributes["scatter_dimension_numbers"])
    target, ids, new = given
    along, full, inserted = list(d.scattered_dims_to_operand_dims), w.shape(target), list(d.inserted_window_dims)
    window_of = dict(zip([k for k in range(len(full)) if k not in inserted], d.update_window_dims, strict=True))
    whole = all(w.shape(new)[at] == (1 if k in along else full[k]) for k, at in window_of.items())
    if not whole or not set(inserted) <= set(along):
        raise w.refuse("a scatter of windows that are parts of rows; read are rows that are added up")
    thin = [window_of[k] for k in along if k in window_of]
    windows = [at for at in window_of.values() if at not in thin]
    free = [k for k in range(len(w.shape(new))) if k not in window_of.values()]
    turned_new = w.permute(new, [*free, *thin, *windows])
    source = w.reshape(turned_new, tuple(w.shape(new)[k] for k in (*free, *windows)))
    places = []
    for k, at in zip(along, _parts_of(w, ids, d.index_vector_dim, len(along)), strict=True):
        near, source = _kept_inside(w, at, source, full[k] - 1)
        places.append(near)
    order = [*along, *(k for k in range(len(full)) if k not in along)]
    turned = w.permute(target, order)
    added = w.step("index_add", (turned, *places, source), {"wrap": False}, w.shape(turned), w.dtype(target))
    return w.permute(added, [order.index(k) for k in range(len(full))])


def _kept_inside(w: Writer, ids: int, source: int, most: int) -> tuple[int, int]:
    """Positions inside, and zeros for what XLA leaves out since it lies outside."""
    near = _inside(w, ids, most)
    if near == ids:
        return ids, source
    shape = w.shape(ids)
    ends = (w.step("ge", (ids,), {"number": 0}, shape, "bool"), w.step("le", (ids,), {"number": most}, shape, "bool"))
    good = w.step("logical_and", ends, {}, shape, "bool")
    good = w.reshape(good, (*shape, *(1 for _ in range(len(w.shape(source)) - len(shape)))))
    dtype, wide = w.dtype(source), w.shape(source)
    nothing = w.full(wide, 0.0, dtype)
    return near, w.step("where", (w.expand(good, wide), source, nothing), {}, wide, dtype)


def _added_in_rows(w: Writer, given: tuple[int, int, int], rows_of: Rows, windows: Sequence[int]) -> int:
    """Elements added up at positions of each row of a batch: the gradient of `take_along_axis`."""
    target, ids, new = given
    batched, dim, rest, where = rows_of.batched, rows_of.dim, rows_of.rest, rows_of.where
    full, many = w.shape(target), len(w.shape(ids))
    others = [k for k in range(many) if k not in where]
    batch, inner, n = prod(full[k] for k in batched), prod(full[k] for k in rest), full[dim]
    count = prod(w.shape(ids)[k] for k in others)
    order = [*batched, *rest, dim]
    rows = w.reshape(w.permute(target, order), (batch, inner, n))
    at = w.reshape(w.permute(ids, [*where, *others]), (batch, 1, count))
    free = [k for k in range(len(w.shape(new))) if k not in windows]
    source = w.permute(new, [*windows, *(free[k] for k in where), *(free[k] for k in others)])
    source = w.permute(w.reshape(source, (inner, batch, count)), (1, 0, 2))
    at, source = _kept_inside(w, w.expand(at, (batch, inner, count)), source, n - 1)
    made = w.step("scatter_add", (rows, at, source), {"dim": 2}, (batch, inner, n), w.dtype(target))
    made = w.reshape(made, tuple(full[k] for k in order))
    return w.permute(made, [order.index(k) for k in range(len(full))])


def top_k(w: Writer, op: Op, given: Sequence[int]) -> Sequence[int]:
    """The k greatest of the last dimension and their positions."""
    rows = [made_of(w, r.type) for r in op.results]
    words: dict[str, Word] = {"dim": len(rows[0][0]) - 1, "k": integer(op, "k"), "largest": True}
    return w.steps_of("topk", (given[0],), words, rows)


def sort(w: Writer, op: Op, given: Sequence[int]) -> Sequence[int]:
    """Numbers in order along a dimension, and positions that are sorted with them."""
    dim, (shape, dtype), how = integer(op, "dimension"), made_of(w, op.results[0].type), order_of(op)
    if how is None or len(given) > 2:
        raise w.refuse(f"a sort of {len(given)} tensors by a region of {', '.join(body(op))}")
    words: dict[str, Word] = {"dim": dim, "descending": how == "gt"}
    found = w.steps_of("sort", (given[0],), words, ((shape, dtype), (shape, "int64")))
    if len(given) == 1:
        return found[:1]
    if not is_positions(w, given[1], dim):
        raise w.refuse("a sort of other numbers beside those that are compared")
    return [found[0], w.cast(found[1], made_of(w, op.results[1].type)[1])]


def is_positions(w: Writer, number: int, dim: int) -> bool:
    """Whether a tensor holds, everywhere, the position along a dimension."""
    held, shape = w.known.get(number), w.shape(number)
    run = np.arange(shape[dim]).reshape([-1 if k == dim else 1 for k in range(len(shape))])
    if held is not None:
        return bool((held == np.broadcast_to(run, shape)).all())
    maker, wide = w.makers.get(number), tuple(n if k == dim else 1 for k, n in enumerate(shape))
    if maker is not None and maker.operator == "expand" and w.shape(maker.reads[0]) == wide:
        maker = w.makers.get(maker.reads[0])
    if maker is not None and maker.operator == "reshape":
        maker = w.makers.get(maker.reads[0])
    plain = {"n": shape[dim], "start": 0.0, "step": 1.0}
    return maker is not None and maker.operator == "iota" and plain.items() <= dict(maker.words).items()


def reduce(w: Writer, op: Op, given: Sequence[int]) -> Sequence[int]:
    """Of numbers with their positions the greatest or least and where it is first (`argmax`); else of one tensor."""
    if len(given) != 4:
        return reduce_one(w, op, given)
    dims, how = integers(op, "dimensions"), extreme_of(op)
    if how is None or len(dims) != 1 or not is_positions(w, given[1], dims[0]):
        raise w.refuse(f"reduces 2 operands by a region of {', '.join(body(op))}")
    (shape, dtype), (_, whole), dim = made_of(w, op.results[0].type), made_of(w, op.results[1].type), dims[0]
    kind = np.dtype("float32" if dtype in ("bfloat16", "float16") else dtype)
    nothing = neutral("maximum" if how == "amax" else "minimum", kind)
    if (w.uniform(given[2]), w.uniform(given[3])) != (nothing, 0):
        raise w.refuse("a reduction of numbers with their positions that starts from something else than nothing")
    wide = (*shape[:dim], 1, *shape[dim:])
    words: dict[str, Word] = {"dim": dim, "k": 1, "largest": how == "amax"}
    found = w.steps_of("topk", (given[0],), words, ((wide, dtype), (wide, whole)))
    values = w.step(how, (given[0],), {"dims": dims, "keep": False}, shape, dtype)
    return [values, w.reshape(found[1], shape)]


def running_sum(w: Writer, op: Op, given: Sequence[int]) -> Sequence[int]:
    """A sum over a window that reaches back to the first, or on to the last position: `cumsum`."""
    number, shape = given[0], w.shape(given[0])
    sizes, strides, dilation, base = (
        integers(op, n) or (1,) * len(shape)
        for n in ("window_dimensions", "window_strides", "window_dilations", "base_dilations")
    )
    edges, wide = pairs(op, "padding", len(shape)), [d for d, n in enumerate(sizes) if n != 1]
    plain = {*strides, *dilation, *base} == {1} and len(given) == 2 and combined_by(op) == "stablehlo.add"
    if not plain or len(wide) != 1 or sizes[wide[0]] != shape[wide[0]] or w.uniform(given[1]) != 0:
        raise w.refuse(f"windows of {sizes} combined by a region of {', '.join(body(op))}; read are running sums")
    (dim,) = wide
    if any(e != (0, 0) for d, e in enumerate(edges) if d != dim):
        raise w.refuse("windows with padding along another dimension")
    back = edges[dim] == (0, shape[dim] - 1)
    if not back and edges[dim] != (shape[dim] - 1, 0):
        raise w.refuse(f"windows with padding {edges[dim]}; read are running sums")
    made = w.step("cumsum", (_turned(w, number, dim, back),), {"dim": dim}, shape, w.dtype(number))
    return [_turned(w, made, dim, back)]


def _turned(w: Writer, number: int, dim: int, back: bool) -> int:
    parts = [w.slice(number, dim, i, i + 1) for i in reversed(range(w.shape(number)[dim]))] if back else []
    return w.cat(parts, dim) if back else number


INDEXED: Final[Mapping[str, Handler]] = {
    "stablehlo.dynamic_slice": dynamic_slice,
    "stablehlo.dynamic_update_slice": dynamic_update,
    "stablehlo.gather": gather,
    "stablehlo.scatter": scatter,
    "chlo.top_k": top_k,
    "stablehlo.sort": sort,
    "stablehlo.reduce": reduce,
    "stablehlo.reduce_window": running_sum,
}
