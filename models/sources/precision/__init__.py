"""Mixed precision: which tensors of a model are half as wide, as a rewriting of its graph."""

from .rewriting import mixed_precision
from .settings import Precision, parse_precision

__all__ = ["Precision", "mixed_precision", "parse_precision"]
