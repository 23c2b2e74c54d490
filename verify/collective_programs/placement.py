"""Checks `Complete`: that these are all placements of axes over a hierarchy.

    valid      every matrix has positive entries, row products p_i and column products h_j
    distinct   no matrix twice
    counted    their number is the product over the primes q of N_q, the number of non-negative integer tables with row
               sums v_q(p_i) and column sums v_q(h_j).  N_q is counted column by column over the multiset of what the
               rows still need, not listed.

Valid, distinct and as many as there are: all of them.
"""

from __future__ import annotations

from collections.abc import Sequence
from math import prod

from ...models.problem.claims import Verdict
from ...proofs.collective_programs.certificate import PlacementCertificate
from ...proofs.collective_programs.file import PLACEMENT
from ...proofs.container.canonical import ContainerError
from ...proofs.container.effort import OBJECT
from ..budget import Budget
from ..verdict import CheckResult

MOST_EXPONENTS = 20
"""Prime factors of the number of devices, with multiplicity: bounds the work of counting."""


def check_placement(certificate: PlacementCertificate, budget: Budget | None = None) -> CheckResult:
    """Verdict on `Complete`."""
    budget = Budget.of(0) if budget is None else budget
    problem = certificate.problem
    space = f"axes {list(problem.axes)} over {list(problem.hierarchy)}"
    reason = _fault(problem.hierarchy, problem.axes, certificate.matrices, budget)
    return CheckResult("Complete", Verdict.REFUTED if reason else Verdict.PROVED, None, None, space, (), reason)


def _fault(
    hierarchy: Sequence[int], axes: Sequence[int], matrices: Sequence[tuple[tuple[int, ...], ...]], budget: Budget
) -> str:
    if not hierarchy or not axes or any(x < 1 for x in (*hierarchy, *axes)):
        return "hierarchy and axes must be positive and not empty"
    if max(prod(hierarchy), prod(axes)) > 1 << MOST_EXPONENTS:
        raise ContainerError(
            f"member {PLACEMENT!r}", f"is too large to be checked: more than 2**{MOST_EXPONENTS} devices"
        )
    budget.charge(OBJECT * 8 * (1 + len(matrices)) * len(axes) * len(hierarchy), f"member {PLACEMENT!r}")
    for k, matrix in enumerate(matrices):
        if (
            len(matrix) != len(axes)
            or any(len(row) != len(hierarchy) for row in matrix)
            or any(x < 1 for row in matrix for x in row)
        ):
            return f"matrix {k}: must have {len(axes)} rows of {len(hierarchy)} positive entries"
        for i, row in enumerate(matrix):
            if prod(row) != axes[i]:
                return f"matrix {k}, row {i}: product {prod(row)}, the axis has {axes[i]}"
        for j, size in enumerate(hierarchy):
            if prod(row[j] for row in matrix) != size:
                return f"matrix {k}, column {j}: product {prod(row[j] for row in matrix)}, the level has {size}"
    if len(set(matrices)) != len(matrices):
        return "a matrix is listed twice"
    wanted = count_matrices(hierarchy, axes, budget)
    if wanted != len(matrices):
        return f"{len(matrices)} matrices are listed, there are {wanted}"
    return ""


def count_matrices(hierarchy: Sequence[int], axes: Sequence[int], budget: Budget | None = None) -> int:
    """Number of placements, without listing them.  Axes and levels of 1 have one way to be filled.

    >>> count_matrices((4, 4, 16, 16), (16, 16, 16)), count_matrices((4, 9), (6, 6)), count_matrices((4,), (2,))
    (312, 1, 0)
    """
    budget = Budget.of(0) if budget is None else budget
    hierarchy, axes = ([n for n in sizes if n > 1] for sizes in (hierarchy, axes))
    budget.charge(OBJECT * 2 * sum({*hierarchy, *axes}), "placements")
    primes = {
        q
        for n in {*hierarchy, *axes}
        for q in range(2, n + 1)
        if n % q == 0 and all(q % r for r in range(2, int(q**0.5) + 1))
    }
    return prod(_tables([_exponent(n, q) for n in axes], [_exponent(n, q) for n in hierarchy], budget) for q in primes)


def _exponent(n: int, q: int) -> int:
    e = 0
    while n % q == 0:
        n //= q
        e += 1
    return e


def _tables(rows: Sequence[int], columns: Sequence[int], budget: Budget) -> int:
    ways = {tuple(r for r in rows if r): 1}
    for c in columns:
        after: dict[tuple[int, ...], int] = {}
        for need, number in ways.items():
            # choose what each row takes of this column, row by row; the rest of the column goes along
            partial: dict[tuple[tuple[int, ...], int], int] = {((), c): number}
            for r in need:
                grown: dict[tuple[tuple[int, ...], int], int] = {}
                budget.charge(OBJECT * 16 * len(partial) * (1 + r), "placements")
                for (left, rest), w in partial.items():
                    for take in range(min(r, rest) + 1):
                        key = (tuple(sorted((*left, r - take))), rest - take)
                        grown[key] = grown.get(key, 0) + w
                partial = grown
            for (left, rest), w in partial.items():
                if rest == 0:
                    after[left] = after.get(left, 0) + w
        ways = after
    return sum(w for need, w in ways.items() if not any(need))
