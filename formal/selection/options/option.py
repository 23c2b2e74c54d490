"""This module declares one option: a default with its unit and its reason."""

from __future__ import annotations

from dataclasses import field
from typing import TypeVar

T = TypeVar("T")


def option(default: T, unit: str, reason: str) -> T:
    """A field of a frozen dataclass of options, whose unit and reason are read by `listed`."""
    made: T = field(default=default, metadata={"unit": unit, "reason": reason})
    return made
