"""In which element types a model computes: one text, `NAME` or `NAME:key=value,..`, as `--precision`
takes it.

    bf16-mixed, fp16-mixed      weights in float32, every operator in the type that torch.autocast gives it (`policy`)
    bf16-master, fp16-master    the model in that type as `module.to(torch.bfloat16)` has it, but for its loss, with
                                weights kept in float32 and cast once per step (Megatron, DeepSpeed, FSDP)

`reduce`: the type in which gradients of weights are summed over devices, float32 or the half type; the other numbers
are those of the loss scale, which float16 has (its gradients underflow otherwise; defaults of torch.amp.GradScaler).

Sources: Micikevicius et al., Mixed Precision Training (ICLR 2018); Kalamkar et al., A Study of BFLOAT16 for Deep
Learning Training (2019); the lists of torch.amp.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Final

HALF: Final[Mapping[str, str]] = MappingProxyType({"bf16": "bfloat16", "fp16": "float16"})
"""Short names of the half types, as the names of tensors and `--precision` have them."""

NAMES: Final = tuple(f"{short}-{how}" for how in ("mixed", "master") for short in HALF)
_SCALE: Final = ("growth", "backoff", "interval")


@dataclass(frozen=True)
class Precision:
    """`name`: see the module docstring; `reduce`: an element type; the loss scale grows by `growth` after `interval`
    steps without a number that is not finite, and shrinks by `backoff` after one with.
    """

    name: str
    reduce: str = "float32"
    growth: float = 2.0
    backoff: float = 0.5
    interval: int = 2000

    @property
    def half(self) -> str:
        """The narrow element type."""
        return HALF[self.name.partition("-")[0]]

    @property
    def autocast(self) -> bool:
        """Whether every operator chooses its type, as torch.autocast has it."""
        return self.name.endswith("-mixed")

    @property
    def has_loss_scale(self) -> bool:
        """Whether the loss is scaled: float16 has no numbers between 0 and 6e-8."""
        return self.half == "float16"


def parse_precision(text: str) -> Precision:
    """The precision of a text.  Raises ValueError that says what may be given.

    >>> parse_precision("bf16-mixed:reduce=bfloat16")
    Precision(name='bf16-mixed', reduce='bfloat16', growth=2.0, backoff=0.5, interval=2000)
    >>> parse_precision("bf16-mixed:growth=4")
    Traceback (most recent call last):
        ..
    ValueError: bf16-mixed has no 'growth'; it has: reduce
    """
    name, _, rest = text.partition(":")
    if name not in NAMES:
        raise ValueError(f"{name[:80]!r} is not one of {', '.join(map(repr, NAMES))}.")
    base = Precision(name)
    known = ("reduce", *(_SCALE if base.has_loss_scale else ()))
    given: dict[str, str] = {}
    for part in rest.split(",") if rest else ():
        key, equals, value = part.partition("=")
        if key not in known:
            raise ValueError(f"{name} has no {key[:80]!r}; it has: {', '.join(known)}")
        if not equals or key in given:
            raise ValueError(f"{part[:80]!r}: give {key}=VALUE once")
        given[key] = value
    reduce = given.get("reduce", base.reduce)
    if reduce not in ("float32", base.half):
        raise ValueError(f"reduce={reduce[:80]}: gradients of {name} are summed in float32 or {base.half}")
    return Precision(
        name,
        reduce,
        _number(given, "growth", base.growth, 1.0),
        _number(given, "backoff", base.backoff, 0.0, 1.0),
        int(_number(given, "interval", base.interval, 1, whole=True)),
    )


def _number(
    given: Mapping[str, str], key: str, default: float, low: float, high: float = 1e6, whole: bool = False
) -> float:
    text = given.get(key)
    if text is None:
        return default
    try:
        value = float(text[:40])
    except ValueError:
        raise ValueError(f"{key}={text[:80]}: is not a number") from None
    if not low <= value <= high or not value or (whole and not value.is_integer()):
        raise ValueError(f"{key}={text[:80]}: is out of range")
    return value
