"""Enumerates graphs and their exact fingerprints: candidates for substitutions.

Graphs of one output are terms.  Size by size, every operator is applied to the representatives found so far; the value
is exact mod 2^31 - 1 on fixed random inputs, nonlinear functions are fixed polynomials.  The fingerprint of a term is
its type (sizes, degrees, copies, partial sums) with its value; a fingerprint met before gives a candidate (term, first
term with it), a new one a representative.  A term with a part that is not a representative is never built: it is
rewritten by the rule that its part belongs to, so no candidate is lost up to derivation.  Graphs of several outputs
need no rules of their own for the same reason: each output is rewritten by itself.

Several pools of inputs (ranks, degrees) are enumerated one after another; a candidate is written without the degrees it
was found with, because the prover finds what degrees it needs.  Source: Unity (OSDI 2022), section 4.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from itertools import product
from typing import Final

import numpy as np

from ...models.rewrites.eval import Evaluator, Step, Tensor, denotation, plain_type, signature
from ...models.rewrites.index_arrays import PRIME, Array, EvaluationError, Modular
from ...models.rewrites.ops import OPERATORS
from ...models.rewrites.rule import Node, Parameter
from ...models.rewrites.shards import IllTyped, TensorType
from ...models.rewrites.specified_rows import SPECIFIED, STATEMENT, read_statement
from ...models.rewrites.terms import Label, Term
from .terms import Terms

LOOK_UPS: Final = frozenset({"embedding", "embedding_rows", "embedding_bag"})
"""Operators whose second operand holds numbers of rows."""
LOOKED_UP: Final = 4
"""Rows that are looked up: tables of pools have at least as many."""
PARALLEL: Final = frozenset({"partition", "combine", "replicate", "reduce", "stack", "pipeline", "batch", "accumulate"})


@dataclass(frozen=True)
class Pool:
    """Inputs and operators of one enumeration: `inputs` are (degrees, how many); symbols have the values `numbers`.

    `shapes`: sizes of every row of `inputs`; where there are none all sizes are `size`.  `fixed`: (axis, size) of every
    row that rules ask for as they are.  `ids`: rows that hold numbers of rows of a table, and are read by look-ups
    only.  `apart`: sets of operators that are not put inside each other.  `twice`: whether an operator may read one
    tensor twice, which operators of models hardly ever do.  `sharded`: whether rules are asked for unknown degrees of
    the inputs.
    """

    name: str
    inputs: tuple[tuple[tuple[int, ...], int], ...]
    labels: tuple[Label, ...]
    most: int
    size: int = 6
    numbers: tuple[tuple[str, int], ...] = (("d", 3),)
    shapes: tuple[tuple[int, ...], ...] = ()
    fixed: tuple[tuple[tuple[int, int], ...], ...] = ()
    ids: tuple[int, ...] = ()
    apart: tuple[frozenset[str], ...] = ()
    sharded: bool = True
    twice: bool = True


@dataclass(frozen=True)
class Candidate:
    """Two terms of equal fingerprint, inputs numbered by first use; `ranks` of the inputs, and their sizes (axis, size)
    that are `fixed`; `sharded`: whether their degrees are unknown.
    """

    left: Term
    right: Term
    ranks: tuple[int, ...]
    fixed: tuple[tuple[tuple[int, int], ...], ...] = ()
    sharded: bool = True


@dataclass
class Counts:
    """What an enumeration met."""

    graphs: int = 0
    classes: int = 0
    pairs: int = 0
    candidates: int = 0
    by_size: list[tuple[int, int]] = field(default_factory=list)


def label(operator: str, **parameters: Parameter) -> Label:
    """Shorthand.

    >>> label("partition", degree="d", axis=0)
    ('partition', (('axis', 0), ('degree', 'd')))
    """
    return operator, tuple(sorted(parameters.items()))


def _operands(name: Label) -> int:
    """How many operands an operator takes."""
    operator, parameters = name
    if operator == SPECIFIED:
        return len(read_statement(str(dict(parameters)[STATEMENT])).operands)
    return OPERATORS[operator].arity[0]


class Enumeration:
    """One pool.  `enumerate_all` fills `candidates`."""

    def __init__(self, pool: Pool, seed: int = 1) -> None:
        self.pool, self.numbers = pool, dict(pool.numbers)
        self.terms = Terms()
        self.ring = Modular()
        self.evaluator = Evaluator(self.ring)
        self.counts = Counts()
        self.pairs: list[tuple[int, int]] = []
        self._types: list[TensorType] = []
        self._type_numbers: dict[TensorType, int] = {}
        self._signatures: list[tuple[object, ...]] = []
        self._steps: dict[tuple[int, tuple[int, ...]], tuple[int, Step] | None] = {}
        self._type: dict[int, int] = {}
        self._value: dict[int, Array] = {}
        self._closure: dict[int, frozenset[int]] = {}
        self._seen: set[int] = set()
        self._classes_of: dict[tuple[tuple[object, ...], bytes], int] = {}
        self._labels = [(self.terms.label_number(name), _operands(name)) for name in pool.labels]
        self.levels: list[list[int]] = [[]]
        rng = np.random.default_rng(seed)
        leaf = 0
        self._ids = set[int]()
        self._inside: dict[int, frozenset[str]] = {}
        for row, (degrees, count) in enumerate(pool.inputs):
            shape = pool.shapes[row] if pool.shapes else (pool.size,) * len(degrees)
            kind = self._type_number(plain_type(shape, degrees))
            for _ in range(count):
                t = self.terms.leaf(leaf)
                leaf += 1
                low, high = (0, LOOKED_UP) if row in pool.ids else (1, PRIME)
                values = rng.integers(low, high, shape)
                self._ids |= {t} if row in pool.ids else set()
                self._enter(t, kind, np.asarray(values, dtype=np.int64), frozenset())
                self.levels[0].append(t)

    def enumerate_all(self, progress: Callable[[int, int], None] | None = None) -> None:
        """Enumerate all sizes."""
        for size in range(1, self.pool.most + 1):
            self.levels.append([])
            for at, (number, arity) in enumerate(self._labels):
                if progress is not None:
                    progress((size - 1) * len(self._labels) + at, self.pool.most * len(self._labels))
                if arity == 1:
                    for a in self.levels[size - 1]:
                        self._try(number, (a,), size)
                elif arity == 2:
                    self._pairs(number, size)
                else:
                    self._wide(number, arity, size)
            self.counts.by_size.append((size, len(self.levels[size])))
        self.counts.classes = len(self._classes_of)
        self.counts.pairs = len(self.pairs)

    def _pairs(self, number: int, size: int) -> None:
        """All ordered pairs of representatives whose operators together are size - 1."""
        for small in range(size):
            other = size - 1 - small
            for a in self.levels[small]:
                mine = self._closure[a]
                for b in self.levels[other]:
                    if len(mine | self._closure[b]) == size - 1:
                        self._try(number, (a, b), size)
                if small == size - 1:  # b among the parts of a, in both orders
                    for b in sorted(mine):
                        if len(self._closure[b]) != other:
                            self._try(number, (a, b), size)
                            if b != a and len(self._closure[b]) != size - 1:
                                self._try(number, (b, a), size)

    def _wide(self, number: int, arity: int, size: int) -> None:
        """The first operand is any representative, the others are inputs: gains and biases."""
        for a in self.levels[size - 1]:
            for others in product(self.levels[0], repeat=arity - 1):
                self._try(number, (a, *others), size)

    def _try(self, number: int, arguments: tuple[int, ...], size: int) -> None:
        name = self.terms.labels[number][0]
        inside = frozenset[str]().union(*(self._inside.get(a, frozenset()) for a in arguments))
        if any(name in group and group & inside for group in self.pool.apart):
            return
        if not self.pool.twice and len(set(arguments)) < len(arguments):
            return
        ids = {1} if name in LOOK_UPS else set()
        if self._ids and {k for k, a in enumerate(arguments) if a in self._ids} != ids:
            return
        t = self.terms.apply(number, arguments)
        if t in self._seen:
            return
        self._seen.add(t)
        key = (number, tuple(self._type[a] for a in arguments))
        if key not in self._steps:
            operator, parameters = self.terms.labels[number]
            try:
                step = self.evaluator.step(
                    Node(operator, (), parameters), tuple(self._types[k] for k in key[1]), self.numbers
                )
                self._steps[key] = (self._type_number(step.result), step)
            except (IllTyped, EvaluationError):
                self._steps[key] = None
        found = self._steps[key]
        if found is None:
            return
        kind, step = found
        value = step.run([self._value[a] for a in arguments])
        self.counts.graphs += 1
        fingerprint = (self._signatures[kind], denotation(Tensor(self._types[kind], value), self.ring).tobytes())
        first = self._classes_of.get(fingerprint)
        if first is not None:
            self.pairs.append((t, first))
            return
        self._classes_of[fingerprint] = t
        self._inside[t] = inside | {name}
        self._enter(t, kind, value, frozenset().union(*(self._closure[a] for a in arguments)) | {t})
        self.levels[size].append(t)

    def _enter(self, t: int, kind: int, value: Array, closure: frozenset[int]) -> None:
        self._type[t], self._value[t], self._closure[t] = kind, value, closure
        if not closure:
            self._classes_of[(self._signatures[kind], value.tobytes())] = t

    def _type_number(self, t: TensorType) -> int:
        if t not in self._type_numbers:
            self._type_numbers[t] = len(self._types)
            self._types.append(t)
            self._signatures.append(signature(t))
        return self._type_numbers[t]

    def candidates(self) -> list[Candidate]:
        """Pairs with inputs renamed by first use, each once, in order of discovery."""
        out: dict[Candidate, None] = {}
        ranks = [len(degrees) for degrees, count in self.pool.inputs for _ in range(count)]
        fixed = [
            self.pool.fixed[row] if self.pool.fixed else ()
            for row, (_, count) in enumerate(self.pool.inputs)
            for _ in range(count)
        ]
        for t, first in self.pairs:
            order: dict[int, int] = {}
            left, right = self._renamed(t, order), self._renamed(first, order)
            names = sorted(order, key=lambda k: order[k])
            sizes = tuple(fixed[k] for k in names)
            of = tuple(ranks[k] for k in names)
            out.setdefault(Candidate(left, right, of, sizes if any(sizes) else (), self.pool.sharded))
        self.counts.candidates = len(out)
        return list(out)

    def _renamed(self, t: int, order: dict[int, int]) -> Term:
        whole = self.terms.term(t)

        def visit(s: Term) -> Term:
            if isinstance(s, int):
                return order.setdefault(s, len(order))
            return type(s)(s.label, tuple(visit(a) for a in s.arguments))

        return visit(whole)
