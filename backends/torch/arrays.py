"""Shows NumPy's arrays to PyTorch and back, on the same memory.

Real numbers of 32 and 64 bits; an array with a negative stride, or one that nobody may write, is copied (PyTorch
has neither).
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

import numpy as np
import torch

from ..kernels.blocks import Array

REALS: Final = (np.dtype("float32"), np.dtype("float64"))


def tensor(array: Array) -> torch.Tensor:
    """The tensor on an array's memory.

    >>> import numpy
    >>> tensor(numpy.arange(3.0)[::-1]).tolist()
    [2.0, 1.0, 0.0]
    """
    whole = np.asarray(array)
    if not whole.flags.writeable or any(n < 0 for n in whole.strides):
        whole = whole.copy()
    return torch.from_numpy(whole)


def array(values: torch.Tensor) -> Array:
    """The array on a tensor's memory."""
    return values.detach().numpy()  # type: ignore[no-any-return]


def are_real(arrays: Sequence[Array]) -> bool:
    """Whether all hold real numbers of one type that PyTorch computes in.

    >>> import numpy
    >>> are_real([numpy.zeros(1), numpy.zeros(2)]), are_real([numpy.zeros(1), numpy.zeros(1, "float32")])
    (True, False)
    """
    kinds = {a.dtype for a in arrays}
    return len(kinds) == 1 and kinds <= {*REALS}
