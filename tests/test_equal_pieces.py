"""What readers of JAX write down of buffers that are written piece by piece, and which of several tensors with the same
numbers a rank's is taken for.
"""

from __future__ import annotations

import numpy as np
import pytest

from shardproof.formal.equality.numbers import run_single
from shardproof.formal.equality.parts import Places
from shardproof.formal.equality.relations import Relations
from shardproof.formal.equality.relations import _places as places_in
from shardproof.models.equality.pair import Part
from shardproof.models.equality.program import Described, RankProgram, Source, Step, Word
from shardproof.models.sources.partitioned.writer import Writer


def _buffer(order: tuple[int, ...]) -> tuple[Writer, int, dict[int, int]]:
    """Zeros of shape (3, 4) into which rows are written in this order, as `scan` does; the number of every row."""
    w = Writer()
    buffer = w.full((3, 4), 0.0, "float32")
    rows = {}
    for k in order:
        x = w.source(f"x{k}", "input", np.zeros(4), "float32")
        rows[k] = w.step("tanh", (x,), {}, (4,), "float32")
        words: dict[str, Word] = {"dim": 0, "start": k, "stop": k + 1, "step": 1}
        buffer = w.step("slice_scatter", (buffer, w.reshape(rows[k], (1, 4))), words, (3, 4), "float32")
    return w, buffer, rows


@pytest.mark.parametrize("order", [(0, 1, 2), (2, 1, 0), (1, 0, 2)])
def test_a_piece_of_a_buffer_is_what_was_written_there(order: tuple[int, ...]) -> None:
    w, buffer, rows = _buffer(order)
    for k in range(3):
        assert w.reshape(w.slice(buffer, 0, k, k + 1), (4,)) == rows[k]


def test_the_last_of_two_pieces_counts() -> None:
    w, buffer, _ = _buffer((0, 1, 0))
    last = max(s.reads[1] for s in w.steps if s.operator == "slice_scatter")
    assert w.slice(buffer, 0, 0, 1) == last


@pytest.mark.parametrize(("dim", "start", "stop", "step"), [(0, 1, 3, 1), (1, 1, 2, 1), (0, 0, 3, 2)])
def test_other_parts_are_cut_out_of_the_buffer(dim: int, start: int, stop: int, step: int) -> None:
    """Two pieces at once, another dimension, every other row."""
    w, buffer, _ = _buffer((0, 1, 2))
    made = w.makers[w.slice(buffer, dim, start, stop, step)]
    assert (made.operator, made.reads) == ("slice", (buffer,))


def test_what_no_piece_has_is_what_was_there_before() -> None:
    w, buffer, _ = _buffer((0, 1))
    assert w.makers[w.slice(buffer, 0, 2, 3)].operator == "full"


@pytest.mark.parametrize(
    ("operator", "number", "dtype", "same"),
    [
        ("maximum", -np.inf, "float32", True),
        ("minimum", np.inf, "float32", True),
        ("maximum", np.inf, "float32", False),
        ("minimum", -np.inf, "float32", False),
        ("maximum", 0.0, "float32", False),
        ("add", -np.inf, "float32", False),
    ],
)
@pytest.mark.parametrize("turned", [False, True])
def test_beside_no_number_the_other_one_is_taken(
    operator: str, number: float, dtype: str, same: bool, turned: bool
) -> None:
    w = Writer()
    x, end = w.source("x", "input", np.zeros(3), dtype), w.full((3,), number, dtype)
    made = w.two(operator, *((end, x) if turned else (x, end)), dtype)
    assert (made == x) == same


def test_extents_of_one_that_change_places_are_a_shape() -> None:
    w = Writer()
    x = w.source("x", "input", np.zeros((2, 1, 3)), "float32")
    assert w.makers[w.permute(x, (1, 0, 2))].operator == "reshape"
    assert w.makers[w.permute(x, (2, 1, 0))].operator == "permute"


@pytest.mark.parametrize("seed", range(40))
def test_moves_and_writes_are_what_numpy_makes_of_them(seed: int) -> None:
    """Random writes into buffers, parts, shapes and orders, each of what was made before."""
    rng = np.random.default_rng(seed)
    w = Writer()
    arrays = [rng.standard_normal(s) for s in ((3, 4), (1, 4), (3, 1), (2, 4), (1, 3, 4))]
    made = [(w.source(f"x{k}", "input", a, "float64"), a) for k, a in enumerate(arrays)]
    for _ in range(40):
        number, a = made[rng.integers(len(made))]
        other, b = made[rng.integers(len(made))]
        dim = int(rng.integers(a.ndim))
        match rng.integers(4):
            case 0:
                start = int(rng.integers(a.shape[dim]))
                stop, step = int(rng.integers(start + 1, a.shape[dim] + 1)), int(rng.choice([1, 1, 1, 2]))
                cut = tuple(slice(start, stop, step) if d == dim else slice(None) for d in range(a.ndim))
                made.append((w.slice(number, dim, start, stop, step), a[cut]))
            case 1:
                shape = tuple(int(n) for n in rng.permutation([*a.shape, 1][: 3 + (a.ndim < 3)]))
                made.append((w.reshape(number, shape), a.reshape(shape)))
            case 2:
                order = [int(d) for d in rng.permutation(a.ndim)]
                made.append((w.permute(number, order), a.transpose(order)))
            case _:
                if b.ndim != a.ndim or any(n > m for n, m in zip(b.shape, a.shape, strict=True)):
                    continue
                if any(b.shape[d] != a.shape[d] for d in range(a.ndim) if d != dim):
                    continue
                start = int(rng.integers(a.shape[dim] - b.shape[dim] + 1))
                stop, new = start + b.shape[dim], a.copy()
                new[tuple(slice(start, stop) if d == dim else slice(None) for d in range(a.ndim))] = b
                words: dict[str, Word] = {"dim": dim, "start": start, "stop": stop, "step": 1}
                made.append((w.step("slice_scatter", (number, other), words, a.shape, "float64"), new))
    numbers = run_single(w.program([]), dict(enumerate(arrays)))
    assert all(np.array_equal(numbers[n], a) for n, a in made)


# ------------------------------------------------------------------ which of tensors with the same numbers


def _program(rows: int, steps: tuple[Step, ...], shapes: tuple[tuple[int, ...], ...], output: int) -> RankProgram:
    kinds = {2: "bool", 3: "bool", 4: "bool"} if len(shapes) > 4 else {}
    tensors = [
        Described((rows, 2), "float32"),
        *(Described(s, kinds.get(k, "float32")) for k, s in enumerate(shapes, 1)),
    ]
    return RankProgram((Source(0, "x", "input"),), steps, (("output", output),), tuple(tensors))


def _found(single: RankProgram, program: RankProgram, rank: int, ranks: int, first: int) -> dict[int, tuple[int, int]]:
    """Of the tensors of a rank that has rows from `first` on: of which they are parts, and where these begin."""
    x = np.random.default_rng(0).standard_normal((4, 2))
    mine = x[first : first + 2]
    given = {0: Part("x", (((0, first, 2),), ((0, 0, 2),)))}
    relations = Relations(single, [run_single(single, {0: x})])
    found = relations.of(rank, program, given, [run_single(program, {0: mine})], Places(rank, ranks))
    return {r.number: (r.whole, r.runs[0][0][1]) for r in found}


def _masked(rows: int) -> RankProgram:
    """where(position >= 1, x, -1e30)."""
    steps = (
        Step("iota", (), (1,), (("n", 2), ("start", 0.0), ("step", 1.0), ("dtype", "float32"))),
        Step("ge", (1,), (2,), (("number", 1.0),)),
        Step("reshape", (2,), (3,), (("shape", (1, 2)),)),
        Step("expand", (3,), (4,), (("shape", (rows, 2)),)),
        Step("full", (), (5,), (("shape", (rows, 2)), ("value", -1e30), ("dtype", "float32"))),
        Step("where", (4, 0, 5), (6,)),
    )
    return _program(rows, steps, ((2,), (2,), (1, 2), (rows, 2), (rows, 2), (rows, 2)), 6)


def test_beside_minus_1e30_numbers_still_tell_rows_apart() -> None:
    """Rank 2 of a mesh of 2 x 2 has the last rows; beside -1e30 all differences are small."""
    assert _found(_masked(4), _masked(2), 2, 4, 2)[6] == (6, 2)


def _turned(rows: int, way: tuple[int, ...]) -> RankProgram:
    """tanh(x), in another shape, and as it was."""
    steps = (
        Step("tanh", (0,), (1,)),
        Step("reshape", (1,), (2,), (("shape", way),)),
        Step("reshape", (2,), (3,), (("shape", (rows, 2)),)),
    )
    return _program(rows, steps, ((rows, 2), way, (rows, 2)), 3)


def test_another_arrangement_of_a_tensor_is_that_tensor() -> None:
    """Where two of the one device have its numbers: so the proof is not sent to what is made much later."""
    found = _found(_turned(4, (8,)), _turned(2, (2, 1, 2)), 1, 2, 2)
    assert (found[1], found[3]) == ((1, 2), (1, 2))


@pytest.mark.parametrize("rank", [0, 1, 8, 9, 260, 511])
def test_rows_of_a_micro_batch_are_looked_for_on_a_mesh(rank: int) -> None:
    """512 ranks as 64x8: of each of two micro-batches of 64 rows a rank has one, and an eighth of its columns."""
    cut = (
        Step("slice", (0,), (1,), (("dim", 0), ("start", 0), ("stop", 64), ("step", 1))),
        Step("slice", (0,), (2,), (("dim", 0), ("start", 64), ("stop", 128), ("step", 1))),
    )
    shapes = tuple(Described(shape, "int64") for shape in ((128, 2), (64, 2), (64, 2)))
    places = Places(rank, 512)
    places.learn_cuts(RankProgram((Source(0, "ids", "input"),), cut, (), shapes))
    found = places_in((1, 2, 8), (128, 2, 64), places)
    for row in (rank // 8, 64 + rank // 8):
        assert (((0, row, 1),), ((0, 0, 2),), ((0, rank % 8 * 8, 8),)) in found
