"""Where the elements of an operand are: a box on every device, and the digits of the device number along which it
is partial.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from math import prod

from .description import Operand, Operator
from .placements import Interval, Matrix, coordinates, device_rank, iteration_boxes, touched

Box = tuple[Interval, ...]


@dataclass(frozen=True)
class Digit:
    """One prime digit of the device number: at `level`, its coordinate is .. * prime * stride + digit * stride + .."""

    level: int
    stride: int
    prime: int


@dataclass(frozen=True)
class Tiling:
    """`boxes[d]`: one interval per dimension on device d.  `open`: parts of a reduction that are not combined yet."""

    boxes: tuple[Box, ...]
    open: tuple[Digit, ...] = ()

    @property
    def largest(self) -> int:
        """Elements on the fullest device."""
        return max(volume(box) for box in self.boxes)


def volume(box: Box) -> int:
    return prod(high - low for low, high in box)


def is_inside(inner: Box, outer: Box) -> bool:
    """Whether no element of `inner` is missing in `outer`."""
    return volume(inner) == 0 or all(a <= c and d <= b for (c, d), (a, b) in zip(inner, outer, strict=True))


def split_digits(matrix: Matrix, rows: Sequence[int]) -> tuple[Digit, ...]:
    """The prime digits of some rows."""
    out = []
    for row in rows:
        for level, degree in enumerate(matrix[row]):
            stride = prod(matrix[below][level] for below in range(row + 1, len(matrix)))
            prime = 2
            while degree > 1:
                while degree % prime == 0:
                    degree //= prime
                    out.append(Digit(level, stride * degree, prime))
                prime += 1
    return tuple(sorted(out, key=lambda d: (d.level, -d.stride)))


def without(digit: Digit, device: int, sizes: Sequence[int]) -> int:
    """The device whose `digit` is 0 instead."""
    place = coordinates(device, sizes)
    place[digit.level] -= place[digit.level] // digit.stride % digit.prime * digit.stride
    return device_rank(place, sizes)


def operand_tiling(
    op: Operator, operand: Operand, shape: Sequence[int], order: Sequence[str], matrix: Matrix, sizes: Sequence[int]
) -> Tiling:
    """Where an operator wants an input, or leaves its result: open in the reduction axes that are split."""
    boxes = []
    for box in iteration_boxes(op, order, matrix, sizes):
        boxes.append(tuple(touched(index, n, box) for index, n in zip(operand.index, shape, strict=True)))
    if operand is not op.output:
        return Tiling(tuple(boxes))
    return Tiling(
        tuple(boxes), split_digits(matrix, [i for i, a in enumerate(order) if op.axes[a].combine is not None])
    )
