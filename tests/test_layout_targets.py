"""Layouts in the words of DTensor, JAX and Shardy, and back: the same boxes, or refused by name."""

from __future__ import annotations

import re
from collections import Counter

import numpy as np
import pytest

from shardproof.models.layout.layout import Layout, operand_layout
from shardproof.models.layout.mesh import Mesh, MeshError, mesh
from shardproof.models.layout.placement import Placement, matrices, space
from shardproof.models.layout.sharding import Sharding, ShardingError, layout_of, sharding
from shardproof.models.layout.targets.axes import ForeignMesh, foreign_mesh, levels_as_axes
from shardproof.models.layout.targets.dtensor import placements, read_placements
from shardproof.models.layout.targets.jax import read_spec, spec_text, specification
from shardproof.models.layout.targets.shardy import (
    mesh_text,
    parts_of,
    read_mesh,
    read_sharding,
    sharding_text,
)
from shardproof.models.program.index import Access, Affine, Axis, Combine

HIERARCHIES = [(4,), (8,), (6,), (2, 4), (4, 8), (2, 6), (2, 2, 4), (3, 4)]
LEVELS = ("node", "gpu", "core")
EXTENTS = (1, 2, 3, 4, 5, 8, 12, 13, 16, 24, 64, 96)
TARGETS = ("dtensor", "jax", "shardy")


def drawn(draw: np.random.Generator) -> tuple[Layout, Mesh] | MeshError:
    """What an operator of one to three axes touches under a random placement: windows, diagonals of digits, partial
    results; over the coarsest mesh that holds it, or a finer one.
    """
    hierarchy = HIERARCHIES[draw.integers(len(HIERARCHIES))]
    n = int(draw.integers(1, 4))
    combine = (None, None, None, Combine.SUM, Combine.MAX)
    axes = tuple(Axis(f"a{i}", int(draw.choice(EXTENTS)), combine[draw.integers(len(combine))]) for i in range(n))
    table = matrices(
        [a.extent for a in axes], [True] * n, hierarchy, space(draw.choice(["complete", "complete,uneven"]))
    )
    picks = table[draw.integers(len(table), size=2)]
    own, other = (Placement(tuple(a.name for a in axes), tuple(map(tuple, m.tolist()))) for m in picks)
    reduced = tuple(a.name for a in axes if a.combine is not None)
    kept = [a for a in axes if a.combine is None] or list(axes)
    opened = reduced if any(a.combine is None for a in axes) else ()
    index, shape = [], []
    for a in kept:
        if draw.random() < 0.1:  # a window of three
            index.append(Affine(((a.name, 1), ("w", 1)), 0))
            shape.append(a.extent + 2)
        else:
            index.append(Affine.axis(a.name))
            shape.append(a.extent)
    if any(len(i.terms) > 1 for i in index):
        axes += (Axis("w", 3, None, False),)
        matrix = (*own.matrix[:-1], tuple([1] * len(hierarchy)), own.matrix[-1])
    else:
        matrix = own.matrix
    found = operand_layout(Access("t", tuple(index)), tuple(shape), axes, matrix, hierarchy, opened)
    try:
        return found, mesh(hierarchy, LEVELS[: len(hierarchy)], [own, other] if draw.random() < 0.5 else [own])
    except MeshError as error:
        return error


def there_and_back(target: str, kept: Sharding, layout: Layout, where: Mesh) -> Layout:
    """Written in the target's words, read again from them alone (and the mesh), as boxes."""
    own = ForeignMesh(tuple(zip(where.names, where.sizes, strict=True)), where)
    if target == "dtensor":
        read = read_placements(f"({', '.join(placements(kept, layout.shape, where))})", layout.shape, own)
    elif target == "jax":
        read = read_spec(spec_text(specification(kept, layout.shape, where)), layout.shape, own)
    else:
        levels = levels_as_axes(where, LEVELS[: len(where.hierarchy)])
        text = sharding_text(kept, levels)
        again = foreign_mesh(read_mesh(mesh_text(levels)), where.hierarchy, parts_of(text))
        return layout_of(read_sharding(text, layout.shape, again), layout.shape, again.mesh)
    return layout_of(read, layout.shape, where)


def summed(layout: Layout) -> list[int]:
    """Of every device, the first of those that its partial results are combined with: six devices are one group,
    whether they are said as 2 x 3 or as 3 x 2 digits.
    """
    first = list(range(len(layout.boxes)))
    below = {j: int(np.prod(layout.hierarchy[j + 1 :])) for j in range(len(layout.hierarchy))}
    for digit in layout.open:
        step = digit.stride * below[digit.level]
        for device in range(len(first)):
            at = device // step % digit.prime
            first[device] = min(first[device], first[device - at * step])
    for device in range(len(first)):
        while first[first[device]] != first[device]:
            first[device] = first[first[device]]
    return first


def round_trips(count: int, seed: int) -> dict[str, Counter[str]]:
    """Layouts by target: `identical`, or the word of the refusal."""
    draw, out = np.random.default_rng(seed), {t: Counter[str]() for t in TARGETS}
    for _ in range(count):
        found = drawn(draw)
        if isinstance(found, MeshError):
            for t in TARGETS:
                out[t]["no mesh"] += 1
            continue
        layout, where = found
        try:
            kept = sharding(layout, where)
        except ShardingError as error:
            word = "no row of equal blocks" if "equal blocks" in str(error) else str(error).partition(":")[0][:40]
            for t in TARGETS:
                out[t][word] += 1
            continue
        for t in TARGETS:
            try:
                back = there_and_back(t, kept, layout, where)
            except ShardingError as error:
                word = re.match(r"(order|uneven|partial):", str(error))
                assert word is not None, (t, str(error))
                out[t][word[1]] += 1
                continue
            assert np.array_equal(back.boxes, layout.boxes), (t, str(kept), layout.shape, where)
            assert back.combine == layout.combine and summed(back) == summed(layout), (t, str(kept), where)
            out[t]["identical"] += 1
    return out


@pytest.mark.parametrize("count", [600, pytest.param(10_000, marks=pytest.mark.slow)])
def test_layouts_come_back(count: int) -> None:
    found = round_trips(count, seed=count)
    for target in TARGETS:
        assert sum(found[target].values()) == count and found[target]["identical"] > count / 3, found
    assert found["dtensor"]["identical"] > found["jax"]["identical"]
    assert found["shardy"]["identical"] > found["jax"]["identical"]
    assert not set(found["shardy"]) & {"order", "uneven"}, "Shardy pads as we do, and names any order"


def test_dtensor_means_the_same_boxes() -> None:
    """Offsets as PyTorch computes them, of everything that is written for it."""
    torch = pytest.importorskip("torch")
    from torch.distributed.tensor._utils import _compute_local_shape_and_global_offset as local
    from torch.distributed.tensor.placement_types import Replicate, Shard

    draw, seen = np.random.default_rng(5), 0
    while seen < 150:
        found = drawn(draw)
        if isinstance(found, MeshError):
            continue
        layout, where = found
        try:
            words = placements(sharding(layout, where), layout.shape, where)
        except ShardingError:
            continue
        made = [Shard(int(w[6:-1])) if w.startswith("Shard") else Replicate() for w in words]
        for device, at in enumerate(where.coordinates().tolist()):
            shape, offset = local(torch.Size(layout.shape), where.sizes, lambda i, at=at: at[i], made)
            box = tuple((o, o + n) if n else (0, 0) for o, n in zip(offset, shape, strict=True))
            assert box == layout.box(device), (words, layout.shape, device)
        seen += 1


def test_an_axis_may_run_through_levels() -> None:
    where = foreign_mesh([("dp", 4), ("tp", 4)], (2, 8))
    kept = read_placements(["Shard(0)", "Shard(1)"], (8, 8), where)
    assert kept.splits == (("dp_0", "dp_1"), ("tp",))
    boxes = layout_of(kept, (8, 8), where.mesh).boxes
    assert [boxes[r, 0].tolist() for r in (0, 4, 8, 12)] == [[0, 2], [2, 4], [4, 6], [6, 8]]
    swapped = read_spec(["tp", "dp"], (8, 8), where)
    assert layout_of(swapped, (8, 8), where.mesh).boxes[1, 0].tolist() == [2, 4]
    outer = read_spec([["tp", "dp"]], (16,), where)  # another order than the mesh's, which JAX says
    assert [layout_of(outer, (16,), where.mesh).boxes[r, 0, 0] for r in (0, 1, 4)] == [0, 4, 1]
    with pytest.raises(ShardingError, match="order: dimension 0"):
        placements(outer, (16,), where.mesh)


@pytest.mark.parametrize(
    ("axes", "message"),
    [
        ([("a", 3), ("b", 4)], "is not the machine's 2 x 4"),
        ([("a", 2), ("a", 4)], "one name"),
        ([("a", 8), ("b", -1)], "is not the machine's"),
        ([], "nothing"),
    ],
)
def test_meshes_that_are_none(axes: list[tuple[str, int]], message: str) -> None:
    with pytest.raises(ShardingError, match=message):
        foreign_mesh(axes, (2, 4))
    with pytest.raises(ShardingError, match="do not divide each other"):
        foreign_mesh([("a", 3), ("b", 2)], (2, 3))


@pytest.mark.parametrize(
    ("target", "text", "message"),
    [
        ("dtensor", "(Shard(0), Shard(9))", "has 2 dimensions"),
        ("dtensor", "(Shard(0),)", "1 placements for a mesh of 2"),
        ("dtensor", "(Shard(0), Half())", "is no placement"),
        ("dtensor", "(Partial(sum), Partial(max))", "kind max, sum"),
        ("dtensor", "(Shard(1), Shard(1))", "uneven: dimension 1 of 6"),
        ("jax", "P('dp', 'dp')", "cuts two dimensions"),
        ("jax", "P('dp', 'no')", "no axis 'no'; it has dp, tp"),
        ("jax", "P(None, ('dp', 'tp'))", "uneven: dimension 1 of 6"),
        ("jax", "P(__import__('os').system('x'))", "is no PartitionSpec"),
        ("jax", "P(1)", "is no PartitionSpec"),
        ("jax", "P(None, None, 'dp')", "3 entries for an array of 2"),
        ("shardy", '<@mesh, [{"dp", ?}, {}]>', "say no layout"),
        ("shardy", '<@mesh, [{"dp"}p1, {}]>', "say no layout"),
        ("shardy", '<@mesh, [{"dp"}]>', "1 dimensions for a tensor of 2"),
        ("shardy", '<@mesh, [{"dp"}, {"dp"}]>', "twice"),
        ("shardy", '<@mesh, [{"tp":(3)2}, {}]>', "has no part"),
        ("shardy", '<@mesh, [{"dp"}, {}], replicated={"dp"}>', "twice"),
        ("shardy", "[[[", "is no sharding"),
    ],
)
def test_words_that_say_nothing(target: str, text: str, message: str) -> None:
    where = foreign_mesh([("dp", 2), ("tp", 4)], (2, 4))
    read = {"dtensor": read_placements, "jax": read_spec, "shardy": read_sharding}[target]
    with pytest.raises(ShardingError, match=re.escape(message)):
        read(text, (8, 6), where)


def test_long_garbage_is_refused_at_once() -> None:
    where = foreign_mesh([("dp", 2), ("tp", 4)], (2, 4))
    spaces = "<@mesh, [" + '{"dp"' + '   ,   "dp"' * 2000 + " "
    for text in (spaces, "<@mesh, [" + "{}" * 9000, '<["a"=2' + " " * 30000, '"' + "\\" * 30000):
        with pytest.raises(ShardingError):
            read_sharding(text, (8,), where)
        with pytest.raises(ShardingError):
            read_mesh(text)


def test_names_are_quoted() -> None:
    where = foreign_mesh([('a"b\\', 2), ("c", 2)], (4,))
    assert read_mesh(mesh_text(where)) == where.axes
    kept = Sharding((('a"b\\',), ("c",)))
    assert read_sharding(sharding_text(kept, where), (2, 2), where) == kept
