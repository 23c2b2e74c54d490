"""Interned terms and rewriting by rules in both directions, for derivations and for pruning.

A store holds every distinct term once as a number, so that equality is equality of numbers and what was found for a
subterm is found for all.  Terms that differ in the order of arguments of add and mul only are one term.
Pattern inputs of rules and of subjects are the same leaves: which is which is said by the role a term plays.

One step  t -> t'  replaces one subterm of t, wherever it occurs: an instance of one side of a rule by the same instance
                   of the other.  Typing
decides whether the step is allowed (`Typing`): on one instance whose sizes are distinct primes, so that what holds
there holds in general with near certainty; what is kept is checked symbolically by `verify.rewrites.derivation`.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from ...models.rewrites.eval import Evaluator, signature, whole
from ...models.rewrites.rule import Condition, Node, Parameter, Pattern, Substitution, holds
from ...models.rewrites.shards import IllTyped, TensorType
from ...models.rewrites.terms import COMMUTATIVE, Apply, Label, Term, term_of

Numbers = tuple[tuple[str, Parameter], ...]
Binding = tuple[tuple[int, ...], Numbers]
"""Term per pattern input of a rule (-1: not bound), values of its symbols."""


class Terms:
    """The store."""

    def __init__(self) -> None:
        self.labels: list[Label] = []
        self.label: list[int] = []
        """Label number per term; -1-k for pattern input k."""
        self.arguments: list[tuple[int, ...]] = []
        self._label_numbers: dict[Label, int] = {}
        self._numbers: dict[tuple[int, tuple[int, ...]], int] = {}
        self._parts: dict[int, tuple[int, ...]] = {}
        self._sizes: dict[int, int] = {}
        self._matches: dict[tuple[int, int], Numbers | None] = {}
        self._commutative: list[bool] = []

    def leaf(self, k: int) -> int:
        """Pattern input k."""
        return self._put(-1 - k, ())

    def label_number(self, label: Label) -> int:
        if label not in self._label_numbers:
            self._label_numbers[label] = len(self.labels)
            self.labels.append(label)
            self._commutative.append(label[0] in COMMUTATIVE)
        return self._label_numbers[label]

    def apply(self, label: int, arguments: tuple[int, ...]) -> int:
        """The operator with this label on terms; arguments of commutative operators are put in order."""
        return self._put(label, arguments)

    def _put(self, label: int, arguments: tuple[int, ...]) -> int:
        if label >= 0 and self._commutative[label] and arguments[0] > arguments[1]:
            arguments = arguments[::-1]
        key = (label, arguments)
        found = self._numbers.get(key)
        if found is None:
            found = len(self.label)
            self._numbers[key] = found
            self.label.append(label)
            self.arguments.append(arguments)
        return found

    def number(self, t: Term) -> int:
        """The number of a term."""
        if isinstance(t, int):
            return self.leaf(t)
        return self.apply(self.label_number(t.label), tuple(self.number(a) for a in t.arguments))

    def term(self, t: int) -> Term:
        """The term of a number."""
        label = self.label[t]
        return -1 - label if label < 0 else Apply(self.labels[label], tuple(self.term(a) for a in self.arguments[t]))

    def parts(self, t: int) -> tuple[int, ...]:
        """All subterms, arguments first, t last."""
        found = self._parts.get(t)
        if found is None:
            out: dict[int, None] = {}
            for a in self.arguments[t]:
                out.update(dict.fromkeys(self.parts(a)))
            found = self._parts[t] = (*out, t)
        return found

    def size(self, t: int) -> int:
        """Operators, shared ones once."""
        found = self._sizes.get(t)
        if found is None:
            found = self._sizes[t] = sum(self.label[s] >= 0 for s in self.parts(t))
        return found

    def leaves(self, t: int) -> tuple[int, ...]:
        """Pattern inputs that occur."""
        return tuple(-1 - self.label[s] for s in self.parts(t) if self.label[s] < 0)

    def substitute(self, t: int, old: int, new: int) -> int:
        """Every occurrence of `old` replaced."""
        if t == old:
            return new
        arguments = self.arguments[t]
        if not arguments or old not in self.parts(t):
            return t
        return self._put(self.label[t], tuple(self.substitute(a, old, new) for a in arguments))

    def matched_label(self, pattern: int, label: int) -> Numbers | None:
        """Values of the pattern label's symbols that make it `label`, or None."""
        key = (pattern, label)
        if key not in self._matches:
            self._matches[key] = _unified(self.labels[pattern], self.labels[label])
        return self._matches[key]


def _unified(pattern: Label, label: Label) -> Numbers | None:
    if pattern[0] != label[0]:
        return None
    out: list[tuple[str, Parameter]] = []
    for (_, p), (_, v) in zip(pattern[1], label[1], strict=True):
        if p != v:
            if (
                not isinstance(p, str)
                or not isinstance(v, int | str)
                or p in ("none", "relu", "same", "valid", "sigmoid", "tanh")
            ):
                return None
            out.append((p, v))
        elif isinstance(p, str):
            out.append((p, v))
    return tuple(out)


@dataclass(frozen=True)
class Direction:
    """One direction of output `output` of rule `rule`: terms numbered in the store.  `erasing`: a pattern input is
    lost, so that the other direction would have to invent it."""

    rule: int
    output: int
    forward: bool
    source: int
    target: int
    inputs: int
    erasing: bool


class Rules:
    """Rules as directions, indexed by the operator at the root of their source."""

    def __init__(self, terms: Terms) -> None:
        self.terms = terms
        self.rules: list[Substitution] = []
        self.by_root: dict[str, list[Direction]] = {}
        self.anywhere: list[Direction] = []

    def add(self, rule: Substitution) -> int:
        """Number of the new rule."""
        number = len(self.rules)
        self.rules.append(rule)
        for k, (a, b) in enumerate(rule.outputs):
            sides = [self.terms.number(term_of(nodes, w)) for nodes, w in ((rule.left, a), (rule.right, b))]
            for forward in (True, False):
                source, target = sides if forward else reversed(sides)
                if set(self.terms.leaves(target)) - set(self.terms.leaves(source)):
                    continue  # would invent a tensor
                erasing = bool(set(self.terms.leaves(source)) - set(self.terms.leaves(target)))
                d = Direction(number, k, forward, source, target, len(rule.inputs), erasing)
                label = self.terms.label[source]
                if label < 0:
                    self.anywhere.append(d)
                else:
                    self.by_root.setdefault(self.terms.labels[label][0], []).append(d)
        return number

    def candidates(self, t: int) -> Iterator[Direction]:
        """Directions whose source may match t at its root."""
        label = self.terms.label[t]
        if label >= 0:
            yield from self.by_root.get(self.terms.labels[label][0], ())
        yield from self.anywhere

    def matches(self, d: Direction, t: int) -> Iterator[Binding]:
        """All ways in which the source of d is t."""
        yield from self._match(((d.source, t),), (-1,) * d.inputs, ())

    def _match(self, todo: tuple[tuple[int, int], ...], bound: tuple[int, ...], numbers: Numbers) -> Iterator[Binding]:
        if not todo:
            yield bound, numbers
            return
        (p, t), rest = todo[0], todo[1:]
        terms = self.terms
        label = terms.label[p]
        if label < 0:
            k = -1 - label
            if bound[k] == -1:
                yield from self._match(rest, (*bound[:k], t, *bound[k + 1 :]), numbers)
            elif bound[k] == t:
                yield from self._match(rest, bound, numbers)
            return
        subject = terms.label[t]
        if subject < 0:
            return
        found = terms.matched_label(label, subject)
        if found is None:
            return
        joined = _joined(numbers, found)
        if joined is None:
            return
        ps, ts = terms.arguments[p], terms.arguments[t]
        yield from self._match((*zip(ps, ts, strict=True), *rest), bound, joined)
        if len(ts) == 2 and ts[0] != ts[1] and terms.labels[label][0] in COMMUTATIVE:
            yield from self._match(((ps[0], ts[1]), (ps[1], ts[0]), *rest), bound, joined)

    def instance(self, t: int, bound: Sequence[int], numbers: Mapping[str, Parameter]) -> int:
        """A rule's term with leaves and symbols replaced."""
        terms = self.terms
        label = terms.label[t]
        if label < 0:
            return bound[-1 - label]
        operator, parameters = terms.labels[label]
        if numbers and any(isinstance(v, str) and v in numbers and numbers[v] != v for _, v in parameters):
            label = terms.label_number(
                (operator, tuple((k, numbers.get(v, v) if isinstance(v, str) else v) for k, v in parameters))
            )
        return terms.apply(label, tuple(self.instance(a, bound, numbers) for a in terms.arguments[t]))


def _joined(a: Numbers, b: Numbers) -> Numbers | None:
    if not b:
        return a
    out = dict(a)
    for k, v in b:
        if out.setdefault(k, v) != v:
            return None
    return tuple(sorted(out.items(), key=lambda kv: kv[0]))


class Typing:
    """Types of terms on one instance.  `inputs`: types of the pattern inputs; `numbers`: values of symbols."""

    def __init__(
        self, terms: Terms, evaluator: Evaluator, inputs: Sequence[TensorType], numbers: Mapping[str, int]
    ) -> None:
        self.terms, self.evaluator, self.inputs, self.numbers = terms, evaluator, inputs, numbers
        self._types: dict[int, TensorType | None] = {}

    def type(self, t: int) -> TensorType | None:
        """Type of a term, None if it does not type."""
        if t not in self._types:
            label = self.terms.label[t]
            if label < 0:
                self._types[t] = self.inputs[-1 - label]
            else:
                operands = []
                for a in self.terms.arguments[t]:
                    found = self.type(a)
                    if found is None:
                        break
                    operands.append(found)
                else:
                    operator, parameters = self.terms.labels[label]
                    try:
                        self._types[t] = self.evaluator.result_type(
                            Node(operator, (), parameters), tuple(operands), self.numbers
                        )
                    except (IllTyped, KeyError):
                        self._types[t] = None
                self._types.setdefault(t, None)
        return self._types[t]

    def allows(self, rule: Substitution, binding: Binding) -> bool:
        """Whether the bound terms are what the rule's pattern inputs say and the preconditions hold."""
        values: dict[str, int] = {}
        bound, numbers = binding
        for p, t in zip(rule.inputs, bound, strict=True):
            if t == -1:
                return False
            found = self.type(t)
            if found is None or not fits(p, found):
                return False
            for a in range(p.rank):
                values[f"{p.name}.{a}"], values[f"{p.name}.{a}.degree"] = whole(found.sizes[a]), whole(found.degrees[a])
        for k, v in numbers:
            values[k] = self.numbers[v] if isinstance(v, str) and v in self.numbers else v if isinstance(v, int) else 0
        return all(_holds(c, values) for c in rule.preconditions)


def _holds(c: Condition, values: Mapping[str, int]) -> bool:
    try:
        return holds(c, values)
    except KeyError:
        return False


def fits(p: Pattern, t: TensorType) -> bool:
    """Whether a tensor may stand for a pattern input: its rank, no time coordinates, fixed sizes.

    Copies, partial sums and degrees are free: they do not change what a tensor denotes, and that both sides type with
    them is tested on the whole (`verify.rewrites.derivation` says why that is enough).
    """
    return len(t.sizes) == p.rank and not t.times and all(t.sizes[a].constant == n for a, n in p.fixed)


def same_type(x: TensorType | None, y: TensorType | None) -> bool:
    """Whether one may replace the other."""
    return x is not None and y is not None and (x is y or signature(x) == signature(y))
