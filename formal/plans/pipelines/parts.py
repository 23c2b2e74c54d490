"""Names what a stage of a configuration repeats, and what a step does once: its parts, their passes, their sizes."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from fractions import Fraction

FIRST, LAST, ONCE, NEVER, TIED = "first", "last", "once", "never", "tied"
"""Parts that are no layers: see `stage_work`."""


@dataclass(frozen=True)
class Meeting:
    """A collective of the tensor parallel devices: `operation` on `size` bytes; `sorted_rows`: of rows of experts,
    which have to be sorted first and so cannot hide behind the product beside them.
    """

    operation: str
    size: int
    sorted_rows: bool = False


@dataclass
class Pass:
    """Of one part in one pass: seconds of products and of all kernels, how many these are (`again` of them of the
    forward pass once more), and its meetings; `pairs`: seconds of attention; `keys`: bytes of keys and values that
    context parallel devices hand on.
    """

    seconds: Fraction = Fraction(0)
    products: Fraction = Fraction(0)
    kernels: int = 0
    meetings: list[Meeting] = field(default_factory=list)
    pairs: Fraction = Fraction(0)
    keys: int = 0
    again: int = 0


@dataclass
class Part:
    """A layer, or an end: passes `F`, `B`, `U`; bytes that one micro-batch keeps; bytes of the weights of this part
    here as they are stored, as they are used, of their gradients and of their moments; `rows`: bytes that cross to the
    experts of other devices in one pass; `work`: of products and attention of the whole micro-batch, forward;
    `least`: seconds that no completion is below in the plan's model, for its operators alone; `largest`: bytes of the
    largest result that comes and goes; `summed`: seconds in which a micro-batch adds its gradients to those before;
    `learnt`: weights here that are trained; `again`: bytes that are computed again, all there at once.
    """

    passes: dict[str, Pass] = field(default_factory=lambda: {p: Pass() for p in "FBU"})
    kept: int = 0
    stored: int = 0
    used: int = 0
    gradients: int = 0
    moments: int = 0
    rows: int = 0
    work: int = 0
    least: Fraction = Fraction(0)
    largest: int = 0
    summed: Fraction = Fraction(0)
    learnt: int = 0
    again: int = 0


@dataclass(frozen=True)
class StageWork:
    """`parts`: name -> part; `layers`: names of the layers, in order; `stream`: bytes here of what goes from layer to
    layer; `dtype`: in which most of the products are.
    """

    parts: Mapping[str, Part]
    layers: tuple[str, ...]
    stream: int
    dtype: str

    @property
    def first(self) -> Part:
        """What comes before the layers."""
        return self.parts[FIRST]

    @property
    def last(self) -> Part:
        """What comes behind them."""
        return self.parts[LAST]
