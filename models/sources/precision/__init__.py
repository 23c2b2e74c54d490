"""This package holds mixed precision: which tensors of a model are half as wide, as a rewriting of its graph."""

from .rewriting import mixed
from .settings import Precision, parsed

__all__ = ["Precision", "mixed", "parsed"]
