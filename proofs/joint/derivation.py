"""Why every added operator computes the tensor that it writes: one step per operator.

A step (rule, node, place, facts) says:  the operators of `place` compute the tensors they write, by the user's graph or
by earlier steps; the first of them writes the tensor that `node` writes; putting the others in for the tensors that
they write, both compute the same.  A step `define` has no place: its node is the first to write a new tensor.
`facts` are the sizes on which this rests.

A step by a rule of a library (`book`) is an instance of that rule:  `reads` are its pattern inputs (tensors, or numbers
that operators of the place scale by, as `= 0.5`), the place holds the
left side's operators, the one that is mapped first, then the right side's but the one that is mapped, which is `node`.
Where those have other axes than the rule's, `groups` has a list per pattern input: of which axis of the rule every
dimension is part (several are one axis, row-major), or BATCH: the rule is said for each of its values.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from .books import Book

NUMBER: Final = "= "
"""What begins the text of a number that a rule reads in place of a tensor."""
BATCH: Final = -1
"""Of a dimension that a rule does not speak of."""
MOST_AXIS: Final = 7
"""Number of an axis of a rule at most: patterns have up to 8."""


@dataclass(frozen=True)
class Step:
    """See the module docstring.  `book`: identity of the library that has the rule, empty for the rules that are built
    in; `reads`: what the pattern inputs of such a rule stand for.
    """

    rule: str
    node: str
    place: tuple[str, ...] = ()
    facts: tuple[tuple[str, int], ...] = ()
    book: str = ""
    reads: tuple[str, ...] = ()
    groups: tuple[tuple[int, ...], ...] = ()


@dataclass(frozen=True)
class Derivation:
    """Steps in the order of proof; `library`: identity of the rules; `rounds`: how often all rules were tried; `books`:
    the libraries that steps name.
    """

    library: str
    rounds: int
    steps: tuple[Step, ...]
    books: tuple[Book, ...] = ()

    @property
    def rules_name(self) -> str:
        """The rules, as claims name them: identities of those that are built in and of every library, shortened."""
        return "+".join(name[:12] for name in (self.library, *(b.identity for b in self.books)))
