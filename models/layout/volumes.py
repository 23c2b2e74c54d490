"""Counts the points of boxes: per placement and device, over some of an operator's axes."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from ..problem.selection_problem import Ints


def device_volumes(tables: Sequence[Ints], codes: Ints, which: Sequence[int], devices: int) -> Ints:
    """Product of interval lengths over the dimensions `which`, per placement and device: shape (K, devices); 1 for
    no dimensions.
    """
    volume = np.ones((codes.shape[0], devices), dtype=np.int64)
    for i in which:
        volume = volume * (tables[i][..., 1] - tables[i][..., 0])[codes[:, i]]
    return volume
