"""This module says why every added operator computes the tensor that it writes: one step per operator.

A step (rule, node, place, facts) says:  the operators of `place` compute the tensors they write, by the user's graph or
by earlier steps; the first of them writes the tensor that `node` writes; putting the others in for the tensors that
they write, both compute the same.  A step `define` has no place: its node is the first to write a new tensor.
`facts` are
the sizes on which this rests.
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Step:
    """See the module docstring."""

    rule: str
    node: str
    place: tuple[str, ...] = ()
    facts: tuple[tuple[str, int], ...] = ()


@dataclass(frozen=True)
class Derivation:
    """Steps in the order of proof; `library`: identity of the rules; `rounds`: how often all rules were tried."""

    library: str
    rounds: int
    steps: tuple[Step, ...]
