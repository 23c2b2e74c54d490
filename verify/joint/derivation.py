"""Checks derivations: every added operator computes the tensor that it writes, whatever the inputs.

    given     the operators of the user's graph: what they compute is what their tensors are
    define    the first operator of a new tensor: the tensor is what it computes
    offload   a new tensor is what the operator of the place computes, on hosts; or the node brings it back
    again     a new tensor is what the only operator of the place computes: the node is that operator, once more
    equal     the node is the first operator of the place with operands replaced by what the same operator computes
    library   a step by a rule of a library is an instance of it (`libraries`), and a step:
    step      the node and the first operator of the place write the same tensor; unfolding the other operators of the
              place, all of them given or proved before, both have the same normal form (`meaning`); whatever real
              numbers they read and write are of one element type, so that none is rounded elsewhere than before

By induction over the steps, in every program whose operators are among those proved, every tensor has the value that it
has in the user's program, over the real numbers.  The search for steps takes no part; a step that is not understood is
refused.
"""

from __future__ import annotations

from collections.abc import Mapping

from ...models.joint.egraph import EGraph
from ...models.joint.rules import AGAIN, DEFINE, EQUAL, LIBRARIES, OFFLOAD
from ...models.program.operators import Operator
from ...models.rewrites.rule import Substitution
from ...proofs.joint.derivation import Derivation, Step
from ..budget import Budget
from .forms import FORMS, facts_of
from .kinds import HITS
from .libraries import rules_in, wrong_instance
from .meaning import wrong_equation
from .twins import wrong_again, wrong_copy, wrong_twins
from .wellformed import wrong_egraph


def wrong_derivation(egraph: EGraph, derivation: Derivation, whole: Budget | None = None) -> str:
    """The first step that proves nothing, or an operator that no step proves; empty if all are proved.  Raises
    `ContainerError` for steps that take more work than files of this size may ask for, or than is left of the check.
    """
    if wrong := wrong_egraph(egraph):
        return wrong
    if derivation.library not in LIBRARIES:
        known_ones = ", ".join(name[:12] for name in LIBRARIES)
        return f"it uses the rules {derivation.library[:12]!r}, this checker knows {known_ones}"
    every = {op.name: op for op in egraph.operators}
    known = {op.name: op for op in egraph.base.operators}
    new = {t.name for t in egraph.tensors}
    defined, books = set[str](), {b.identity: rules_in(b) for b in derivation.books}
    size = sum(1 + len(op.axes) + sum(1 + len(a.index) for a in op.inputs) for op in egraph.operators)
    budget = Budget.of(size, whole)
    for number, step in enumerate(derivation.steps):
        place = f"step {number} ({step.rule[:40]}, {step.node[:80]!r})"
        if step.book and step.book not in books:
            return f"{place}: the file holds no library {step.book[:12]!r}"
        if not step.book and (step.reads or step.groups or step.rule not in LIBRARIES[derivation.library]):
            return f"{place}: there is no such rule"
        node = every.get(step.node)
        if node is None or step.node in known:
            return f"{place}: " + ("is about no operator" if node is None else "proves what is proved already")
        wrong = (
            _wrong_definition(egraph, node, step, new - defined)
            if step.rule == DEFINE and not step.book
            else _wrong_step(egraph, node, step, known, new - defined, budget, books)
        )
        if wrong:
            return f"{place}: {wrong}"
        if not step.book and (step.rule in (DEFINE, AGAIN) or (step.rule == OFFLOAD and len(step.place) == 1)):
            defined.add(node.output.tensor)
        known[node.name] = node
    if missing := sorted(every.keys() - known.keys()):
        return f"no step proves operator {missing[0]!r}"
    return ""


def _wrong_definition(egraph: EGraph, node: Operator, step: Step, free: set[str]) -> str:
    if node.output.tensor not in free:
        return f"{node.output.tensor!r} has a meaning already"
    if step.place:
        return "a definition has no place"
    if undefined := sorted({a.tensor for a in node.inputs} & free):
        return f"it reads {undefined[0]!r}, which has no meaning yet"
    inputs = node.inputs[:-1] if node.function in HITS else node.inputs  # the last one names rows
    kinds = {egraph.union.tensor(a.tensor).dtype for a in (*inputs, node.output)}
    if len(kinds) != 1 or not min(kinds).startswith(("float", "bfloat")):
        return f"it has element types {', '.join(sorted(kinds))}, not one of real numbers"
    return "" if step.facts == facts_of(node) else _facts(node)


def _wrong_step(
    egraph: EGraph,
    node: Operator,
    step: Step,
    known: dict[str, Operator],
    free: set[str],
    budget: Budget,
    books: Mapping[str, Mapping[str, Substitution]],
) -> str:
    if not step.place:
        return "it has no place"
    if unknown := [name for name in step.place if name not in known]:
        return f"operator {unknown[0][:80]!r} of its place is not proved yet"
    place = [known[name] for name in step.place]
    if step.rule == AGAIN and not step.book or step.rule == OFFLOAD and not step.book and len(place) == 1:
        fresh, judge = node.output.tensor in free, wrong_again if step.rule == AGAIN else wrong_copy
        wrong = judge(node, place, egraph.union) if fresh else f"{node.output.tensor!r} has a meaning already"
        return wrong or ("" if step.facts == facts_of(node) else _facts(node))
    if step.rule == OFFLOAD and not step.book:
        return wrong_copy(node, place, egraph.union) or ("" if step.facts == facts_of(node) else _facts(node))
    writes = [op.output.tensor for op in place]
    if writes[0] != node.output.tensor:
        return f"its place begins with what writes {writes[0]!r}, not {node.output.tensor!r}"
    if undefined := sorted({a.tensor for a in node.inputs} & free):
        return f"it reads {undefined[0]!r}, which has no meaning yet"
    if step.rule == EQUAL and not step.book:
        return wrong_twins(node, place, egraph.union) or ("" if step.facts == facts_of(node) else _facts(node))
    if len(set(writes)) != len(writes):
        return "two operators of its place write the same tensor"
    form = FORMS.get(step.rule) if not step.book else None
    sizes = facts_of(node)
    numbers = step.facts[len(sizes) :] if step.book else ()
    if step.facts != (*sizes, *numbers):
        return _facts(node)
    if form is None:
        rule = books[step.book].get(step.rule) if step.book else None
        if wrong := wrong_instance(rule, node, place, step.reads, egraph.union, numbers, step.groups):
            return wrong
    elif not form.fits(node, place, egraph.union):
        return "it has not the form of this rule"
    kinds = {egraph.union.tensor(a.tensor).dtype for op in (node, *place) for a in (*op.inputs, op.output)}
    if len(real := sorted(k for k in kinds if k.startswith(("float", "bfloat")))) > 1:
        return f"it has real numbers of several element types: {', '.join(real)}"
    by = {op.output.tensor: op for op in place[1:]}
    sign, defined = (False, False) if form is None else (form.sign, form.defined)
    return wrong_equation(egraph.union, place[0], node, by, sign, budget, defined)


def _facts(node: Operator) -> str:
    return "it rests on other sizes than it states: " + ", ".join(f"{name} {n}" for name, n in facts_of(node))
