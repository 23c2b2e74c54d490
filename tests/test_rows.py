"""Distinct rows by mixed radix are NumPy's, in its order, whatever the numbers are."""

from __future__ import annotations

import numpy as np
import pytest

from shardproof.models.problem.rows import distinct_rows


@pytest.mark.parametrize("ends", [(0, 2), (0, 1 << 20), (0, 1 << 15), (0, 1 << 40), (-3, 3)], ids=str)
@pytest.mark.parametrize("shape", [(0, 3), (1, 1), (40, 1), (300, 4)], ids=str)
def test_they_are_those_of_numpy(ends: tuple[int, int], shape: tuple[int, int]) -> None:
    table = np.random.default_rng(0).integers(*ends, shape, dtype=np.int64)
    table = np.concatenate([table, table[::2]])
    wanted, which = np.unique(table, axis=0, return_inverse=True)
    distinct, of = distinct_rows(table)
    assert np.array_equal(distinct, wanted) and np.array_equal(of, which.reshape(-1))
    assert np.array_equal(distinct[of], table)
