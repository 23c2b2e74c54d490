"""Cheapest programs as an SMT formula without the state graph: the rules of the collectives written a second time, for
small groups.

S[t][d][i] is the set of contributions as a bit vector, c[t] the instruction of step t (or stop):
    (S1)  S[0] is the start, S[T] the goal; a stop is followed by stops
    (S2)  c[t] = o implies the rule of o for every group, and S[t+1] as the rule says; positions outside keep their
         state   -> _rule()
    (S3)  sum_t cost(c[t], rows moved) < bound
         -> cheaper_program()
It is for small groups (n <= 8): 0.7 s for n = 4, 200 s for n = 16 were measured.
"""

from __future__ import annotations

from collections.abc import Sequence

import z3

from shardproof.models.collective_programs.collectives import (
    Collective,
    CollectiveCost,
    CollectiveError,
    LoweredStep,
    Reading,
)
from shardproof.models.collective_programs.programs import Form, Pattern, Program, ReductionSystem, patterns

MAX_POSITIONS = 8
"""Largest reduction group of the formula."""


def cheaper_program(system: ReductionSystem, cost: CollectiveCost, bound: int | None, longest: int) -> Program | None:
    """A program of at most `longest` steps that costs less than `bound` (None: anything), or None if z3 says that
    there is none.
    """
    n, k, rules = system.tree.positions, system.chunks, system.rules
    if n > MAX_POSITIONS or system.wanted:
        raise CollectiveError(
            f"the SMT formula is for at most {MAX_POSITIONS} positions that all reduce together, not {n}; use the "
            f"native engine"
        )
    forms = patterns(system.tree, rules)
    options = [(p, kind) for p in forms for kind in rules.allowed_collectives(p.form is Form.MASTER)]
    solver = z3.Solver()
    states = [[[z3.BitVec(f"s_{t}_{d}_{i}", n) for i in range(k)] for d in range(n)] for t in range(longest + 1)]
    choice = [z3.Int(f"c_{t}") for t in range(longest)]
    prices = [z3.Int(f"p_{t}") for t in range(longest)]
    for d in range(n):
        for i in range(k):
            solver.add(states[0][d][i] == 1 << d, states[longest][d][i] == (1 << n) - 1)
    for t in range(longest):
        now, then = states[t], states[t + 1]
        solver.add(choice[t] >= 0, choice[t] <= len(options))
        stop = choice[t] == len(options)
        solver.add(
            z3.Implies(stop, z3.And(prices[t] == 0, *(then[d][i] == now[d][i] for d in range(n) for i in range(k))))
        )
        if t:
            solver.add(z3.Implies(choice[t - 1] == len(options), stop))
        for o, (pattern, kind) in enumerate(options):
            solver.add(
                z3.Implies(
                    choice[t] == o,
                    z3.And(
                        _rule(now, then, pattern, kind, rules),
                        _price(now, then, prices[t], pattern, kind, system, cost),
                    ),
                )
            )
    if bound is not None:
        solver.add(z3.Sum(prices) < bound)
    answer = solver.check()
    if answer == z3.unknown:
        raise CollectiveError(f"z3 gave up ({solver.reason_unknown()}); use the native engine")
    if answer == z3.unsat:
        return None
    model = solver.model()
    taken = [model.eval(c, model_completion=True).as_long() for c in choice]
    return tuple(options[o][0].instruction(options[o][1]) for o in taken if o < len(options))


Rows = list[list[z3.BitVecRef]]


def _rule(now: Rows, then: Rows, pattern: Pattern, kind: Collective, rules: Reading) -> z3.BoolRef:
    n, k = len(now), len(now[0])
    inside = {d for g in pattern.groups for d in g}
    out = [then[d][i] == now[d][i] for d in range(n) if d not in inside for i in range(k)]
    if pattern.form is Form.MASTER and rules.guarded:
        out += [now[d][i] == 0 for d in range(n) if d not in inside for i in range(k)]
    for g in pattern.groups:
        rule = _group(now, then, g, kind, rules)
        if rules.skip_empty and kind in (Collective.ALL_REDUCE, Collective.REDUCE_SCATTER, Collective.REDUCE):
            empty = z3.And([z3.And(now[d][i] == 0, then[d][i] == 0) for d in g for i in range(k)])
            rule = z3.Or(empty, rule)
        out.append(rule)
    return z3.And(out)


def _group(now: Rows, then: Rows, g: tuple[int, ...], kind: Collective, rules: Reading) -> z3.BoolRef:
    k, m, root = len(now[0]), len(g), g[0]
    held = {d: [now[d][i] != 0 for i in range(k)] for d in g}
    union = [_or([now[d][i] for d in g]) for i in range(k)]
    out: list[z3.BoolRef] = []
    match kind:
        case Collective.ALL_REDUCE | Collective.REDUCE_SCATTER | Collective.REDUCE:
            out.append(z3.Or(held[root]))
            for i in range(k):
                out += [held[d][i] == held[root][i] for d in g[1:]]
                seen = now[root][i]
                for d in g[1:]:
                    out.append(seen & now[d][i] == 0)
                    seen = seen | now[d][i]
            if kind is Collective.REDUCE_SCATTER:
                total = _count(held[root])
                out.append(total % m == 0)
                for j, d in enumerate(g):
                    for i in range(k):
                        rank = _count(held[root][:i])
                        mine = z3.And(rank * m >= j * total, rank * m < (j + 1) * total)
                        out.append(then[d][i] == z3.If(mine, union[i], z3.BitVecVal(0, len(now))))
            else:
                gets = g if kind is Collective.ALL_REDUCE else g[:1]
                out += [then[d][i] == (union[i] if d in gets else 0) for d in g for i in range(k)]
        case Collective.ALL_GATHER:
            out += [z3.Or(held[d]) for d in g]
            out += [z3.AtMost(*(held[d][i] for d in g), 1) for i in range(k)]
            out += [then[d][i] == union[i] for d in g for i in range(k)]
        case Collective.BROADCAST:
            out.append(z3.Or(held[root]))
            out += [now[d][i] & ~now[root][i] == 0 for d in g[1:] for i in range(k)]
            less = [z3.Or([now[d][i] != now[root][i] for i in range(k)]) for d in g[1:]]
            out.append(z3.And(less) if rules.strict else z3.Or(less))
            out += [then[d][i] == now[root][i] for d in g for i in range(k)]
    return z3.And(out)


def _price(
    now: Rows,
    then: Rows,
    price: z3.ArithRef,
    pattern: Pattern,
    kind: Collective,
    system: ReductionSystem,
    cost: CollectiveCost,
) -> z3.BoolRef:
    """Price by the rows of the first group's first device; all groups are required to move as many."""
    source = then if kind is Collective.ALL_GATHER else now
    moved = [_count([source[g[0]][i] != 0 for i in range(len(now[0]))]) for g in pattern.groups]
    lowered = tuple(tuple(row[p] for p in g) for row in system.members for g in pattern.groups)
    table = [
        z3.And(moved[0] == r, price == cost.step_time(LoweredStep(kind, lowered, (r,) * len(lowered), system.chunks)))
        for r in range(1, system.chunks + 1)
    ]
    return z3.And(z3.Or(table), *(other == moved[0] for other in moved[1:]))


def _or(vectors: list[z3.BitVecRef]) -> z3.BitVecRef:
    out = vectors[0]
    for v in vectors[1:]:
        out = out | v
    return out


def _count(flags: Sequence[z3.BoolRef]) -> z3.ArithRef:
    return z3.Sum([z3.If(f, 1, 0) for f in flags]) if flags else z3.IntVal(0)
