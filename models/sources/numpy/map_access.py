"""Translates what the body of a map reads and writes: `A[i, j]`, `x[col[j]]`, `b[i] = v`, `b[i] += v`.

An index is a sum of multiples of loop variables, a number, a slice, or an integer that was read (a gather).  A write is
at one loop variable per dimension, and becomes one update of the region that all turns write together; an update
`b[i] += v` sums v over the loops that run and that b lacks, products as one contraction.  What turns may not do to each
other is tested here; the rules stand in `mapped`.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from ...program.index import Affine, Axis, Combine
from .array import METHODS, Reshaped, TracedArray
from .elementwise import number
from .gather import positions, take
from .index import assign_at, expand_ellipsis, get
from .mapped import Mapped, Origin, Signature, Touch, common_loops, extent_of, laid_out, schedule, value_like
from .maps import TURNS, Loop, LoopIndex
from .recorder import Recorder, TraceError, place
from .segments import sum_by_rows
from .views import Terms, View, broadcast, constant, plain, transpose_view


def read(array: TracedArray, key: object) -> Mapped:
    """The elements of all turns.  Raises `TraceError` for an index that no view and no gather says."""
    recorder = array.recorder
    parts = tuple(_part(p) for p in expand_ellipsis(key, array.ndim))
    picked = [n for n, p in enumerate(parts) if isinstance(p, Mapped)]
    if len(picked) > 1:
        raise TraceError(place(), "an element is picked by data along two dimensions; gather along one after the other")
    affine = [slice(None) if n in picked else p for n, p in enumerate(parts)]
    used = [loop for loop in _loops(recorder) if any(isinstance(p, LoopIndex) and loop in p.loops for p in affine)]
    where, shape, taps = _places(array, affine, used)
    seen = array.share(lambda view: view.map_dimensions(shape, where, taps))
    touch = _touch(array, seen, used, parts, picked)
    if not picked:
        rows = seen if len(shape) > len(used) else TracedArray.of(recorder, seen.view)  # one element is a copy
        return Mapped(rows, used, Origin(array, parts), touch)
    (at,) = picked
    ids = value_like(recorder, parts[at])
    (loops_of_ids, (laid,)) = common_loops(recorder, [ids])
    if set(loops_of_ids) & set(used):
        raise TraceError(place(), "one loop indexes an array and picks from it by data; write the two in two steps")
    if ids.ndim:
        raise TraceError(place(), "an index inside a map is one integer, not an array of them")
    dim = len(used) + sum(isinstance(p, slice) or p is None for p in affine[:at])
    where_to = positions(recorder, laid_out(laid, loops_of_ids, 0), seen.shape[dim])
    found = take(recorder, seen.view, where_to, dim)
    loops = [*used, *loops_of_ids]
    order = sorted(loops, key=recorder.loops.index)
    before, ranks = len(used), len(found.shape)
    stands = [*range(before), *range(dim, dim + len(loops_of_ids))]
    own = [d for d in range(ranks) if d not in stands]
    turned = transpose_view(found, [*(stands[loops.index(x)] for x in order), *own])
    return Mapped(TracedArray.of(recorder, turned), order, Origin(array, parts), touch)


def write(array: TracedArray, key: object, value: object) -> None:
    """`array[key] = value` in every turn.  Raises `TraceError` for what turns may not do to each other."""
    recorder = array.recorder
    parts = tuple(_part(p) for p in expand_ellipsis(key, array.ndim))
    region, kept = _region(array, parts)
    running = _loops(recorder)
    given = value_like(recorder, value if number(value) is None else np.asarray(value).astype(array.dtype))
    extra = [loop for loop in running if loop not in kept]
    sums = given.added is not None and given.origin is not None and _same(given.origin, array, parts)
    affine = list(parts)
    where, shape, _ = _places(array, affine, kept)
    seen = array.share(lambda view: view.map_dimensions(shape, where))
    if sums and given.touch is not None:  # what `b[i] += v` reads is what it writes
        recorder.touched[:] = [t for t in recorder.touched if t[1] is not given.touch]
    if extra and not sums:
        raise TraceError(
            place(),
            f"every iteration of {len(extra)} loops writes the same element; index it by their variables, or sum "
            "with +=",
        )
    _touch(array, seen, kept, parts, [], write=True, sums=bool(extra))
    target = [p for p in region if not isinstance(p, int)]
    if extra:
        assert given.added is not None
        total, loops = _summed(recorder, given.added, kept, extra)
        old = get(array, tuple(region))
        laid = _as_region(Mapped(total, loops), kept, parts)
        fresh = laid if old.view.tensor in recorder.zeros else np.add(old, laid)
        assign_at(array, tuple(region), fresh)
        return
    _, (plain_value,) = common_loops(recorder, [given])
    laid = _as_region(plain_value, kept, parts)
    if laid.ndim > len(target):
        raise TraceError(place(), f"an array of shape {given.shape} is written into one element")
    assign_at(array, tuple(region), laid)


def _part(p: object) -> object:
    """A part of a key that the body of a map may have."""
    if isinstance(p, slice):
        if any(isinstance(b, (LoopIndex, Mapped)) for b in (p.start, p.stop, p.step)):
            raise TraceError(place(), "a slice with a loop variable in its bounds; loop over its elements, too")
        return p
    if p is None or isinstance(p, (LoopIndex, Mapped)):
        return p
    if isinstance(p, (bool, np.bool_)) or not isinstance(p, (int, np.integer)):
        raise TraceError(place(), f"an index of type {type(p).__name__} inside a map; index by loop variables")
    return int(p)


def _loops(recorder: Recorder) -> list[Loop]:
    return [loop for loop in recorder.loops if isinstance(loop, Loop)]


def _places(
    array: TracedArray, parts: Sequence[object], used: Sequence[Loop]
) -> tuple[list[Terms], list[int], list[int]]:
    """Where dimensions of the array lie among the loops used and the element's own; which of them walk a window."""
    own: list[int] = []
    where: list[Terms] = []
    taps: list[int] = []
    dim = 0
    for part in parts:
        if part is None:
            own.append(1)
            continue
        n = array.shape[dim]
        if isinstance(part, LoopIndex):
            where.append(_affine(array, part, used, n, dim))
            taps += [used.index(loop) for loop in part.loops[1:]]
        elif isinstance(part, slice):
            start, stop, step = part.indices(n)
            if step < 1 or start >= stop:
                raise TraceError(place(), f"slice {part} of a dimension of {n} inside a map is empty or runs backwards")
            where.append((((len(used) + len(own), step),), start))
            own.append(len(range(start, stop, step)))
        else:
            assert isinstance(part, int)
            if not -n <= part < n:
                raise TraceError(place(), f"index {part} is out of bounds for a dimension of {n}")
            where.append(constant(part % n))
        dim += 1
    return where, [*(extent_of(loop) for loop in used), *own], taps


def _affine(array: TracedArray, part: LoopIndex, used: Sequence[Loop], n: int, dim: int) -> Terms:
    if lost := [loop for loop in part.loops if loop not in array.recorder.loops]:
        raise TraceError(place(), f"a loop variable is used after its map has ended ({len(lost)})")
    for loop, _ in part.terms:
        if loop.rows is not None and loop.extent == 0:
            if len(part.terms) > 1 or part.offset or part.terms[0][1] != 1:
                raise TraceError(place(), "entries of rows index an array as they are first: x[j]")
            loop.extent = n
        if loop.rows is not None and loop.extent != n:
            raise TraceError(place(), f"entries of rows index arrays of {loop.extent} and of {n} elements")
    if any(coef < 1 for _, coef in part.terms):
        raise TraceError(place(), "an index that falls with a loop variable is not supported; reverse the array first")
    low = part.offset + sum(coef * loop.start for loop, coef in part.terms)
    high = low + sum(coef * loop.step * (loop.extent - 1) for loop, coef in part.terms)
    if low < 0 or high >= n:
        raise TraceError(
            place(), f"indices {low} to {high} of a map leave dimension {dim}, which has {n} elements; narrow the map"
        )
    return tuple((used.index(loop), coef * loop.step) for loop, coef in part.terms), low


def _region(array: TracedArray, parts: Sequence[object]) -> tuple[list[object], list[Loop]]:
    """The parts of the key with the range of a loop for its variable, and those loops by dimension."""
    region: list[object] = []
    kept: list[Loop] = []
    for part in parts:
        if isinstance(part, LoopIndex):
            ((loop, coef),) = part.terms if len(part.terms) == 1 else ((None, 0),)
            if loop is None or coef * loop.step != 1 or loop in kept or loop.rows is not None:
                raise TraceError(
                    place(),
                    "a write inside a map is at one loop variable per dimension, each of step 1, and not at an entry "
                    "of a row",
                )
            low = part.offset + loop.start
            region.append(slice(low, low + loop.extent))
            kept.append(loop)
        elif isinstance(part, Mapped):
            raise TraceError(place(), "a write inside a map where the data say is not supported; sum by rows with +=")
        else:
            region.append(part)
    return region, kept


def _as_region(value: Mapped, kept: Sequence[Loop], parts: Sequence[object]) -> TracedArray:
    """The value with dimensions in the order of the key: loops, slices and new axes as they stand."""
    slots = [p for p in parts if not isinstance(p, int)]
    loops_at = [n for n, p in enumerate(slots) if isinstance(p, LoopIndex)]
    own_at = [n for n, p in enumerate(slots) if not isinstance(p, LoopIndex)]
    if value.ndim > len(own_at) or any(loop not in kept for loop in value.loops):
        raise TraceError(place(), f"an element of shape {value.shape} does not fit where it is written")
    shape = [1] * len(slots)
    places: list[Terms] = []
    for loop in value.loops:
        at = loops_at[list(kept).index(loop)]
        shape[at] = extent_of(loop)
        places.append(plain(at))
    for d, n in enumerate(value.shape):
        at = own_at[len(own_at) - value.ndim + d]
        shape[at] = n
        places.append(plain(at))
    return TracedArray.of(value.recorder, value.array.view.map_dimensions(shape, places))


def _summed(
    recorder: Recorder, added: Mapped, kept: Sequence[Loop], extra: Sequence[Loop]
) -> tuple[TracedArray, list[Loop]]:
    """What is added to every element, summed over the loops that it lacks; and its loops."""
    loops, (value,) = common_loops(recorder, [added])
    entries = [loop for loop in extra if loop.rows is not None]
    if len(entries) > 1 or any(s.rows is not None and s.rows[0] not in kept for s in entries):
        raise TraceError(place(), "entries of rows are summed into an element of their row, b[i] += ..")
    owner = entries[0].rows[0] if entries and entries[0].rows is not None else None
    if entries and entries[0] not in loops:
        raise TraceError(place(), "what is summed over the entries of a row does not depend on them")
    full = [loop for loop in _loops(recorder) if (loop in loops or loop in extra) and loop is not owner]
    laid = laid_out(value, full, value.ndim)
    wide = broadcast(laid.view, [*(extent_of(loop) for loop in full), *value.shape])
    dims = [d for d, loop in enumerate(full) if loop in extra and loop not in entries]
    total = _sum(recorder, wide, dims)
    left = [loop for d, loop in enumerate(full) if d not in dims]
    if dims:
        schedule(recorder, total, {f"i{d}": loop.degrees for d, loop in enumerate(full)})
    if owner is not None:
        at = left.index(entries[0])
        total = sum_by_rows(recorder, total, at, entries[0])
        names = {f"i{d}": loop.degrees for d, loop in enumerate(left) if d != at}
        schedule(recorder, total, {**names, "e": entries[0].degrees, "r": owner.degrees})
        left[at] = owner
    return TracedArray.of(recorder, total), left


def _sum(recorder: Recorder, view: View, dims: Sequence[int]) -> View:
    """The sum over dimensions; of a product that was just made, one contraction."""
    if not dims:
        return view
    names = [f"i{d}" for d in range(len(view.shape))]
    axes = [
        Axis(a, n, Combine.SUM if d in dims else None) for d, (a, n) in enumerate(zip(names, view.shape, strict=True))
    ]
    ordered = [a for a in axes if a.combine is None] + [a for a in axes if a.combine is not None]
    out = [a.name for a in axes if a.combine is None]
    made = next((m for m in reversed(recorder.made) if m.output.tensor == view.tensor), None)
    kinds = {recorder.tensors[a.tensor].dtype for a in made.inputs} if made is not None else set()
    if made is not None and made.function == "multiply" and view.identity and kinds == {recorder.dtype(view).name}:
        rename = dict(zip(made.output.axes, names, strict=True))
        inputs = [
            replace(a, index=tuple(replace(i, terms=tuple((rename[t], c) for t, c in i.terms)) for i in a.index))
            for a in made.inputs
        ]
        return recorder.emit("product", "product", ordered, inputs, out, recorder.dtype(view))
    return recorder.emit("sum", "sum", ordered, [view.access(names)], out, recorder.dtype(view))


def _same(origin: Origin, array: TracedArray, parts: Sequence[object]) -> bool:
    """Whether a write is at the element that was read."""
    return origin.array.cell is array.cell and _keys(origin.parts) == _keys(parts)


def _keys(parts: Sequence[object]) -> list[object]:
    return [
        ("at", tuple((id(loop), c) for loop, c in p.terms), p.offset)
        if isinstance(p, LoopIndex)
        else ("by", id(p))
        if isinstance(p, Mapped)
        else (p.start, p.stop, p.step)
        if isinstance(p, slice)
        else p
        for p in parts
    ]


def _touch(
    array: TracedArray,
    seen: TracedArray,
    used: Sequence[Loop],
    parts: Sequence[object],
    picked: Sequence[int],
    write: bool = False,
    sums: bool = False,
) -> Touch:
    """Take down an access, and test it against the others of the map to the same buffer."""
    recorder = array.recorder
    cell: object = array.cell
    if isinstance(cell, Reshaped):
        cell = _root(cell)
        signature: Signature = ("reshaped", id(seen))
    elif picked:
        signature = ("data", id(seen))
    else:
        signature = tuple(_terms(i, used) for i in seen.region.index)
    touch = Touch(signature, tuple(_loops(recorder)), tuple(used), place(), write, sums)
    recorder.touched.append((cell, touch))
    return touch


def _terms(index: Affine, used: Sequence[Loop]) -> object:
    """An index by the loops themselves, which other accesses may have in another order."""
    places = ((int(d), c) for d, c in index.terms)
    return tuple(sorted((id(used[d]) if d < len(used) else d - len(used), c) for d, c in places)), index.offset


def _check_turns(recorder: Recorder) -> None:
    """Raises `TraceError` where a turn may touch what another one writes; the outermost map has ended."""
    cells = {id(cell): cell for cell, _ in recorder.touched}
    for cell in cells.values():
        touches = [t for c, t in recorder.touched if c is cell and isinstance(t, Touch)]
        writes = [t for t in touches if t.write]
        if apart := [t for t in touches if writes and t.signature != writes[0].signature]:
            raise TraceError(
                apart[0].at,
                "a map reads or writes elements of an array that other iterations write; iterations run in any order: "
                "write into another array, or end the map and begin another",
            )
        summed = {loop for t in writes if t.sums for loop in t.loops if loop not in t.kept}
        if early := [t for t in touches if not t.sums and summed & set(t.loops)]:
            raise TraceError(
                early[0].at,
                "an iteration reads a sum that is not finished, or writes over it; do it outside of that loop",
            )


def _root(cell: Reshaped) -> object:
    source = cell.source.cell
    return _root(source) if isinstance(source, Reshaped) else source


_GET, _SET = METHODS["__getitem__"], METHODS["__setitem__"]


def _get(array: TracedArray, key: object) -> object:
    user = array.recorder.called_by_user and bool(array.recorder.loops)
    return read(array, key) if user or _is_mapped(key) else _GET(array, key)


def _set(array: TracedArray, key: object, value: object) -> None:
    user = array.recorder.called_by_user and bool(array.recorder.loops)
    if user or _is_mapped(key) or isinstance(value, (Mapped, LoopIndex)):
        write(array, key, value)
    else:
        _SET(array, key, value)


def _is_mapped(key: object) -> bool:
    return any(isinstance(p, (Mapped, LoopIndex)) for p in (key if isinstance(key, tuple) else (key,)))


TURNS.append(_check_turns)
METHODS["__getitem__"] = _get
METHODS["__setitem__"] = _set
