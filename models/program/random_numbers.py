"""Random numbers of the operator `random`: each follows from a seed, the number of the draw and the element's index.

    z  =  mix(key + index * g)          mix, g: of SplitMix64, arithmetic modulo 2**64
    key   =  mix(mix(seed) + draw)      index: row-major, in the whole array and not in a rank's part of it
    uniform   (z >> 11) / 2**53         in [0, 1)
    normal    sqrt(-2 log u) cos(2 pi v),  u in (0, 1] and v in [0, 1) of the indices 2 i and 2 i + 1

So a rank makes the numbers of its own block and needs no other, and they are the same on any number of ranks: uniform
ones bit for bit, normal ones as far as log and cos of the device agree with themselves.

Source: G. L. Steele, D. Lea, C. H. Flood, Fast splittable pseudorandom number generators, OOPSLA 2014, figure 17.
"""

from __future__ import annotations

from types import ModuleType
from typing import Final

import numpy as np
import numpy.typing as npt

Words = npt.NDArray[np.uint64]
Numbers = npt.NDArray[np.float64]

DISTRIBUTIONS: Final = ("uniform", "normal")
"""What `random` may draw: uniform in [0, 1), or normal with mean 0 and deviation 1."""

_WORD: Final = (1 << 64) - 1
_GAMMA: Final = 0x9E3779B97F4A7C15
_FIRST: Final = 0xBF58476D1CE4E5B9
_SECOND: Final = 0x94D049BB133111EB


def draw_numbers(xp: ModuleType, distribution: str, seed: int, draw: int, index: npt.NDArray[np.int64]) -> Numbers:
    """float64 numbers of the elements at `index`, an integer array of `xp` (NumPy or CuPy).  Raises `ValueError` for
    another distribution.

    >>> import numpy as np
    >>> whole = draw_numbers(np, "uniform", 7, 0, np.arange(6))
    >>> bool((whole[4:] == draw_numbers(np, "uniform", 7, 0, np.arange(4, 6))).all()), bool((whole < 1).all())
    (True, True)
    """
    key = _mix_number(_mix_number(seed & _WORD) + draw)
    place = index.astype("uint64")
    match distribution:
        case "uniform":
            return _unit(xp, key, place)
        case "normal":
            two = xp.asarray(2, dtype="uint64")
            even, odd = _unit(xp, key, place * two), _unit(xp, key, place * two + xp.asarray(1, dtype="uint64"))
            return xp.sqrt(-2.0 * xp.log(even + 2.0**-53)) * xp.cos((2.0 * xp.pi) * odd)  # type: ignore[no-any-return]
        case _:
            raise ValueError(f"distribution {distribution!r}: choose one of {', '.join(DISTRIBUTIONS)}")


def _unit(xp: ModuleType, key: int, place: Words) -> Numbers:
    """The 53 leading bits of the mixed words, as numbers in [0, 1)."""

    def word(value: int) -> Words:  # an array: NumPy warns where scalars wrap around
        return xp.full((1,), value, dtype="uint64")  # type: ignore[no-any-return]

    z = place.reshape(-1) * word(_GAMMA) + word(key)
    z = (z ^ (z >> word(30))) * word(_FIRST)
    z = (z ^ (z >> word(27))) * word(_SECOND)
    z = z ^ (z >> word(31))
    return ((z >> word(11)).astype("float64") * 2.0**-53).reshape(place.shape)


def _mix_number(value: int) -> int:
    z = (value + _GAMMA) & _WORD
    z = ((z ^ (z >> 30)) * _FIRST) & _WORD
    z = ((z ^ (z >> 27)) * _SECOND) & _WORD
    return z ^ (z >> 31)
