"""Checks that a graph computes what its user specified: a formula in index notation, read here a second
time, without the reader that wrote the graph.

    result[o]  =  formula at o      as polynomials in elements of the operands (`verify.joint.polynomials`)

    places      operands and result lie in tensors of the graph, every axis in dimensions that make up its extent
    extents     an axis has one extent in all operands; the others are what their formulas give; the result has them
    inside      where nothing may be read outside an operand, nothing is
    operators   between operands and result are only operators that compute what lies between
    equal       both sides have the same normal form

Equality is over the real numbers, where neither side divides by zero or takes a root or logarithm of what is not above
0 (`where-defined`: x + log(x) - log(x) is x): casts from one type of them to another leave them as they are.

Verdict undecided: the formula or an operator on the way is nothing of which the language of polynomials knows enough.
"""

from __future__ import annotations

from typing import Final

from ...models.problem.claims import Verdict
from ...models.program.graph import Graph
from ...models.program.operators import Operator
from ...models.program.specified import Specified
from ..budget import Budget
from ..joint.meaning import Equation, Unfolding, wrong_values
from ..joint.polynomials import Polynomial, Position, Undecided
from ..verdict import CheckResult, worst
from .formula import FormulaValues, Wrong

KIND: Final = "Specified"

MOST_ON_THE_WAY: Final = 48
"""Operators between operands and result."""


def specified_result(graph: Graph, budget: Budget) -> CheckResult | None:
    """Whether the graph computes what was specified of it; None where nothing was."""
    if not graph.specified:
        return None
    results = [(_judge(use, graph, budget), use) for use in graph.specified]
    verdict = worst(v for (v, _), _ in results)
    reason = next((f"{use.name}, which writes {use.result.tensor!r}: {why}" for (v, why), use in results
                   if v is verdict and why), "")  # fmt: skip
    return CheckResult(KIND, verdict, None, None, "", ("real-arithmetic", "where-defined"), reason)


def _judge(use: Specified, graph: Graph, budget: Budget) -> tuple[Verdict, str]:
    try:
        wrong = _wrong(use, graph, budget)
    except (Wrong, KeyError, IndexError) as error:
        return Verdict.REFUTED, str(error)
    except Undecided as error:
        return Verdict.UNDECIDED, str(error)
    return (Verdict.REFUTED, wrong) if wrong else (Verdict.PROVED, "")


def _wrong(use: Specified, graph: Graph, budget: Budget) -> str:
    budget.charge(len(use.formula), "specification")
    values = FormulaValues(use, graph)
    if other := [p.tensor for p in use.places if not graph.tensor(p.tensor).dtype.startswith(("float", "bfloat"))]:
        raise Undecided(f"{other[0]!r} holds no real numbers")
    by = _between(use, graph)
    undecided: list[str] = []

    def sides(unfolding: Unfolding, at: tuple[Position, ...]) -> tuple[Polynomial, Polynomial]:
        found = unfolding.of_tensor(use.result.tensor, at)
        try:
            return found, values.at(at)
        except Undecided as error:
            undecided.append(str(error))
            raise

    said = "the graph computes other values than its formula says"
    equation = Equation(use.result.tensor, sides, use.name, said)
    wrong = wrong_values(graph, equation, by, False, budget, False, casts=True)
    if wrong and wrong != said:
        raise Undecided(wrong)
    return wrong


def _between(use: Specified, graph: Graph) -> dict[str, Operator]:
    """The operators that compute the result from the operands, by what they write."""
    ends = {p.tensor for _, _, p in use.operands}
    found: dict[str, Operator] = {}
    rest = [use.result.tensor]
    while rest:
        tensor = rest.pop()
        if tensor in ends or tensor in found:
            continue
        position = graph.writer().get(tensor)
        if position is None:
            raise Wrong(f"{tensor!r} is read on the way, and is no operand")
        if len(found) >= MOST_ON_THE_WAY:
            raise Undecided(f"more than {MOST_ON_THE_WAY} operators lie between its operands and its result")
        found[tensor] = graph.operators[position]
        rest += [a.tensor for a in found[tensor].inputs]
    if not found:
        raise Wrong("its result is one of its operands")
    return found
