"""Layouts as shardings over a mesh, and back."""

from __future__ import annotations

import random
from functools import cache
from math import prod

import numpy as np
import pytest
from budgets import some_or_all

from shardproof.models.layout.layout import Layout, operand_layout
from shardproof.models.layout.mesh import Mesh, MeshDimension, MeshError, mesh
from shardproof.models.layout.placement import Placement, matrices, space
from shardproof.models.layout.sharding import Sharding, ShardingError, layout_of, sharding, unfold
from shardproof.models.program.index import Affine, Axis, Combine, access

MACHINES = ((8,), (2, 4), (4, 8), (2, 2, 3), (6,), (12,), (2, 8, 2))


EXTENTS = (1, 3, 5, 6, 8, 12, 16, 24, 48)


@cache
def _placements(extents: tuple[int, ...], hierarchy: tuple[int, ...], name: str) -> np.ndarray:
    return matrices(extents, (True,) * len(extents), hierarchy, space(name))


def _random_case(rng: random.Random) -> tuple[Layout, Mesh]:
    """The output of an operator with two parallel axes and a reduced one, under a random placement of a random
    machine, on the mesh of that placement and two others.
    """
    hierarchy = rng.choice(MACHINES)
    uneven = rng.random() < 0.3
    extents = tuple(rng.choice(EXTENTS[i::3]) for i in range(3))
    axes = (Axis("i", extents[0]), Axis("j", extents[1]), Axis("k", extents[2], Combine.SUM))
    every = _placements(extents, hierarchy, "complete,uneven" if uneven else "complete")
    picked = [every[rng.randrange(len(every))] for _ in range(3)]
    placements = [Placement(("i", "j", "k"), tuple(tuple(map(int, row)) for row in m)) for m in picked]
    made = operand_layout(access("y", "i", "j"), extents[:2], axes, placements[0].matrix, hierarchy, ("k",))
    return made, mesh(hierarchy, tuple(f"level{i}" for i in range(len(hierarchy))), placements)


@pytest.mark.parametrize("count", some_or_all(1_500, 10_000))
def test_random_layouts_there_and_back(count: int) -> None:
    """Each comes back identical or is refused by name; most are not refused."""
    rng = random.Random(22)
    same = refused = 0
    while same + refused < count:
        try:
            layout, where = _random_case(rng)
            found = sharding(layout, where)
        except (ShardingError, MeshError) as error:
            assert "mesh" in str(error) or "dimension" in str(error), error
            refused += 1
            continue
        again = layout_of(found, layout.shape, where)
        assert again == layout and again.combine == layout.combine, (found, layout.hierarchy)
        assert sharding(again, where) == found
        same += 1
    assert same > 0.7 * count, same


def test_powers_of_two_always_have_a_mesh() -> None:
    rng = random.Random(5)
    for hierarchy in ((8,), (2, 4), (4, 8), (2, 8, 2)):
        every = matrices((64, 64, 64), (True,) * 3, hierarchy, space("complete"))
        placements = [
            Placement(("i", "j", "k"), tuple(tuple(map(int, row)) for row in every[rng.randrange(len(every))]))
            for _ in range(50)
        ]
        made = mesh(hierarchy, ("a", "b", "c")[: len(hierarchy)], placements)
        assert prod(made.sizes) == prod(hierarchy)
        assert len(set(made.names)) == len(made.names)


def test_a_mesh_that_cannot_be() -> None:
    two_three = Placement(("i",), ((2,), (3,)))
    three_two = Placement(("i",), ((3,), (2,)))
    with pytest.raises(MeshError, match=r"level gpu of 6 devices is cut at strides 2 and 3, of which neither divides"):
        mesh((6,), ("gpu",), [two_three, three_two])


def test_the_coordinates_of_a_mesh_are_those_of_the_device_number() -> None:
    made = mesh((2, 8), ("node", "gpu"), [Placement(("i",), ((1, 4), (2, 2)))])
    at = made.coordinates()
    assert [int(np.ravel_multi_index(tuple(row), made.sizes)) for row in at] == list(range(16))


def test_what_is_refused() -> None:
    where = Mesh((4,), (MeshDimension("gpu", 0, 1, 4),))
    axes = (Axis("y", 8), Axis("t", 3, splittable=False))
    halo = operand_layout(access("x", Affine.axis("y").plus("t")), (10,), axes, ((4,), (1,), (1,)), (4,))
    with pytest.raises(ShardingError, match="dimension 0 of 10 is no row of equal blocks over gpu"):
        sharding(halo, where)
    other = Mesh((2, 2), (MeshDimension("a", 0, 1, 2), MeshDimension("b", 1, 1, 2)))
    with pytest.raises(ShardingError, match="the mesh over"):
        sharding(halo, other)
    with pytest.raises(ShardingError, match="1024 is 16 x 64, of which the 64 is cut into 4"):
        unfold(Sharding(((), ("gpu",))), (16, 64), (1024,), where)
    with pytest.raises(ShardingError, match="320 is 5 x 64, of which the 5 is cut into 4"):
        unfold(Sharding((("gpu",), ())), (5, 64), (320,), where)
    with pytest.raises(ShardingError, match="are not the dimensions"):
        unfold(Sharding(((), ())), (16, 64), (32, 32), where)


def test_unfolding_holds_on_every_device() -> None:
    """The boxes of the digits, spelled out as positions of the flat shape, are the boxes of the unfolded sharding."""
    rng = random.Random(7)
    where = Mesh((2, 8), (MeshDimension("n", 0, 1, 2), MeshDimension("g0", 1, 2, 4), MeshDimension("g1", 1, 1, 2)))
    kept = 0
    for _ in range(2000):
        digits = tuple(rng.choice((1, 2, 3, 4, 8)) for _ in range(4))
        shape = (digits[0] * digits[1], digits[2] * digits[3])
        names = list(where.names)
        rng.shuffle(names)
        splits: list[tuple[str, ...]] = [(), (), (), ()]
        for name in names[: rng.randrange(4)]:
            k = rng.randrange(4)
            splits[k] = tuple(sorted((*splits[k], name), key=where.names.index))
        given = Sharding(tuple(splits))
        try:
            flat = unfold(given, digits, shape, where)
        except ShardingError:
            continue
        kept += 1
        fine, whole = layout_of(given, digits, where), layout_of(flat, shape, where)
        numbers = np.arange(prod(digits)).reshape(digits)
        for device in range(where.devices):
            a = numbers[tuple(slice(lo, hi) for lo, hi in fine.box(device))]
            b = numbers.reshape(shape)[tuple(slice(lo, hi) for lo, hi in whole.box(device))]
            assert sorted(a.ravel().tolist()) == sorted(b.ravel().tolist()), (given, digits, flat)
    assert kept > 500
