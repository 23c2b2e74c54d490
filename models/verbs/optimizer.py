"""What `--train`, `--loss`, `--precision` and `--micro-batch` take: an optimizer, perhaps with its
numbers; a scalar or a loss to be added; element types; a count.
"""

from __future__ import annotations

from typing import Any, Final

import click

from ..sources import precision
from ..sources.precision.settings import NAMES as PRECISIONS
from ..sources.training import OPTIMIZERS, parse_optimizer


class OptimizerText(click.ParamType):  # type: ignore[type-arg]  # generic from click 8.4 on only
    """`sgd`, or `adamw:rate=1e-4,decay=0.1,clip=1`: see `models.sources.training.settings`."""

    name = "optimizer"

    def get_metavar(self, param: click.Parameter, ctx: click.Context | None = None) -> str:
        """As click shows choices."""
        return f"[{'|'.join(OPTIMIZERS)}][:KEY=NUMBER,..]"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> str:
        try:
            parse_optimizer(value)
        except ValueError as error:
            self.fail(str(error), param, ctx)
        return str(value)


OPTIMIZER = OptimizerText()


class PrecisionText(click.ParamType):  # type: ignore[type-arg]  # generic from click 8.4 on only
    """`bf16-mixed`, or `bf16-mixed:reduce=bfloat16`: see `models.sources.precision.settings`."""

    name = "precision"

    def get_metavar(self, param: click.Parameter, ctx: click.Context | None = None) -> str:
        """As click shows choices."""
        return f"[{'|'.join(PRECISIONS)}][:KEY=VALUE,..]"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> str:
        try:
            precision.parse_precision(value)
        except ValueError as error:
            self.fail(str(error), param, ctx)
        return str(value)


PRECISION = PrecisionText()

PRECISION_HELP: Final = (
    "Mixed precision: weights in float32, operators in the types of torch.autocast (-mixed), or everything but the "
    "loss in 16 bits (-master)."
)
"""Help of `--precision`."""


class MicroText(click.ParamType):  # type: ignore[type-arg]  # generic from click 8.4 on only
    """A number of micro-batches, perhaps with `:once`, or `auto`."""

    name = "count"

    def get_metavar(self, param: click.Parameter, ctx: click.Context | None = None) -> str:
        """As click shows choices."""
        return "[N|N:once|auto]"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> str:
        text = str(value)
        number = text.removesuffix(":once")
        if text != "auto" and not (number.isascii() and number.isdigit() and 0 < len(number) < 10 and int(number) > 0):
            self.fail(f"{text[:40]!r}: give a number of parts, N or N:once, or 'auto'.", param, ctx)
        return text


MICRO = MicroText()

MICRO_HELP: Final = (
    "With --train: micro-batches that the batch is cut into, one after another, gradients added up and brought "
    "together in each, or once per step (N:once); auto (with --memory): what pays."
)
"""Help of `--micro-batch`."""

LOSS: Final = (
    "With --train: the scalar to minimise, or 'cross-entropy' or 'squared-error', perhaps with ':OUTPUT' (default: the "
    "loss that the model returns, else one that fits its output)."
)
"""Help of `--loss`."""
