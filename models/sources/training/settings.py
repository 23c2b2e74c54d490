"""Which optimizer, with which numbers: one text, `NAME` or `NAME:key=value,..`, as `--train` takes it.

    sgd      rate 0.01, momentum 0, nesterov 0, decay 0
    adam     rate 0.001, beta1 0.9, beta2 0.999, epsilon 1e-8, decay 0 (added to the gradient)
    adamw    the same, decay 0.01 (of the weight itself)
    rmsprop  rate 0.01, beta2 0.99 (torch's alpha), epsilon 1e-8, momentum 0, decay 0 (added to the gradient)
    adagrad  rate 0.01, epsilon 1e-10, decay 0 (added to the gradient)
    lion     rate 0.0001, beta1 0.9, beta2 0.99, decay 0 (of the weight itself)
    muon     rate 0.001, momentum 0.95, nesterov 1, decay 0.1 (of the weight itself), epsilon 1e-7, iterations 5,
             match_rms 0 (1: the rate of adamw fits); of hidden matrices, others have adamw with rate adamw_rate 0.001
    adafactor  rate 0.01, power 0.8, epsilon 0 (that of the element type), epsilon2 0.001, d 1, decay 0 (of the weight)

and of all: `clip` (of the norm of all gradients together; none), `step` (from 1; Adam corrects its bias by it).  `bits`
(of sgd, adam, adamw, lion): of each number that is remembered for a weight in 16 bits, 32 or 16.  Defaults are those of
torch.optim; Lion's of its paper; but for bits, which torch.optim has as the weight has them.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Final

DEFAULTS: Final[Mapping[str, Mapping[str, float]]] = MappingProxyType(
    {
        "sgd": {"rate": 0.01, "momentum": 0.0, "nesterov": 0, "decay": 0.0, "bits": 32},
        "adam": {"rate": 0.001, "beta1": 0.9, "beta2": 0.999, "epsilon": 1e-8, "decay": 0.0, "bits": 32},
        "adamw": {"rate": 0.001, "beta1": 0.9, "beta2": 0.999, "epsilon": 1e-8, "decay": 0.01, "bits": 32},
        "rmsprop": {"rate": 0.01, "beta2": 0.99, "epsilon": 1e-8, "momentum": 0.0, "decay": 0.0},
        "adagrad": {"rate": 0.01, "epsilon": 1e-10, "decay": 0.0},
        "lion": {"rate": 0.0001, "beta1": 0.9, "beta2": 0.99, "decay": 0.0, "bits": 32},
        "muon": {
            "rate": 0.001,
            "momentum": 0.95,
            "nesterov": 1,
            "decay": 0.1,
            "epsilon": 1e-7,
            "iterations": 5,
            "match_rms": 0,
            "adamw_rate": 0.001,
        },
        "adafactor": {"rate": 0.01, "power": 0.8, "epsilon": 0.0, "epsilon2": 1e-3, "d": 1.0, "decay": 0.0},
    }
)
OPTIMIZERS: Final = tuple(DEFAULTS)

NEWTON_SCHULZ: Final = (3.4445, -4.7750, 2.0315)
"""Coefficients of the quintic iteration of Jordan et al., Muon (2024)."""

_LIMITS: Final[Mapping[str, tuple[float, float]]] = MappingProxyType(
    {
        "rate": (0, 1e6),
        "beta1": (0, 1),
        "beta2": (0, 1),
        "momentum": (0, 1),
        "nesterov": (0, 1),
        "decay": (0, 1e6),
        "iterations": (0, 99),
        "bits": (16, 32),
        "match_rms": (0, 1),
        "adamw_rate": (0, 1e6),
        "power": (0, 10),
        "d": (1, 1e30),
    }
)
_NUMBER: Final = re.compile(r"(?:[0-9]+\.?[0-9]*|\.[0-9]+)(?:e[+-]?[0-9]{1,2})?", re.ASCII | re.IGNORECASE)
_MOST_TEXT: Final = 200


@dataclass(frozen=True)
class Settings:
    """Numbers of the update; None: the optimizer's default.  `clip`: largest norm of all gradients, None for any;
    `coefficients`: a, b, c of muon's iteration."""

    rate: float | None = None
    beta1: float | None = None
    beta2: float | None = None
    epsilon: float | None = None
    momentum: float | None = None
    nesterov: float | None = None
    decay: float | None = None
    clip: float | None = None
    step: int = 1
    iterations: float | None = None
    match_rms: float | None = None
    adamw_rate: float | None = None
    power: float | None = None
    epsilon2: float | None = None
    d: float | None = None
    bits: float | None = None
    coefficients: tuple[float, float, float] = NEWTON_SCHULZ

    def number(self, optimizer: str, name: str) -> float:
        """One of the numbers.  Raises ValueError for an optimizer that does not have it."""
        defaults = DEFAULTS.get(optimizer)
        if defaults is None or name not in defaults:
            raise ValueError(f"unknown optimizer {optimizer!r}; known: {', '.join(OPTIMIZERS)}")
        given: float | None = getattr(self, name)
        return defaults[name] if given is None else given


def parse_optimizer(text: str) -> tuple[str, Settings]:
    """Optimizer and settings of a text.  Raises ValueError that says what may be given.

    >>> parse_optimizer("sgd:momentum=0.9,clip=1") == ("sgd", Settings(momentum=0.9, clip=1.0))
    True
    >>> parse_optimizer("lion:epsilon=1")
    Traceback (most recent call last):
        ..
    ValueError: lion has no 'epsilon'; it has: rate, beta1, beta2, decay, bits, clip, step
    """
    name, _, rest = text.partition(":")
    if name not in DEFAULTS:
        raise ValueError(f"{name[:_MOST_TEXT]!r} is not one of {', '.join(map(repr, OPTIMIZERS))}.")
    known = (*DEFAULTS[name], "clip", "step")
    numbers: dict[str, float] = {}
    for part in rest.split(",") if rest else ():
        key, equals, value = part.partition("=")
        if key not in known:
            raise ValueError(f"{name} has no {key[:_MOST_TEXT]!r}; it has: {', '.join(known)}")
        if not equals or key in numbers or len(value) > 64 or not _NUMBER.fullmatch(value):
            raise ValueError(f"{part[:_MOST_TEXT]!r}: give {key}=NUMBER once, such as {key}=0.1")
        number = float(value)
        low, high = _LIMITS.get(key, (0, float("inf")))
        whole = key in ("step", "nesterov", "iterations", "match_rms")
        odd = (whole and not number.is_integer()) or (key == "bits" and number not in (16, 32))
        if not low <= number <= high or odd or (key in ("clip", "step") and not number):
            raise ValueError(f"{part[:_MOST_TEXT]!r}: is out of range")
        numbers[key] = number
    step = int(numbers.pop("step", 1))
    return name, Settings(step=step, coefficients=NEWTON_SCHULZ, **numbers)
