"""Cost function networks drawn at random in the families that the field measures itself on, as texts of files.

    links         radio links: |x - y| > d for interference, of weights far apart
    pedigree      genes of children from those of their parents, as probabilities
    photographs   which photographs a satellite takes: weights, exclusions of two and three
    warehouse     which warehouses open, which serves whom
    auction       which bids are won: bids that share a good exclude each other
    colouring     a colour per vertex, a cost per edge of one colour
    bayes         a Bayesian network, most probable values

Every draw is that of its seed alone.
"""

from __future__ import annotations

import json
import random
import subprocess
import sys
from collections.abc import Callable, Iterable
from importlib.util import find_spec
from itertools import combinations, product
from pathlib import Path
from typing import Final

Function = tuple[tuple[int, ...], int, dict[tuple[int, ...], int]]
"""Scope, default cost, cost of tuples."""


def wcsp(name: str, domains: list[int], functions: Iterable[Function], top: int) -> str:
    """The text of a wcsp file."""
    functions = list(functions)
    lines = [f"{name} {len(domains)} {max(domains)} {len(functions)} {top}", " ".join(map(str, domains))]
    for scope, default, tuples in functions:
        lines.append(" ".join(map(str, (len(scope), *scope, default, len(tuples)))))
        lines += [" ".join(map(str, (*values, cost))) for values, cost in tuples.items()]
    return "\n".join(lines) + "\n"


def uai(kind: str, domains: list[int], functions: list[tuple[tuple[int, ...], list[float]]]) -> str:
    """The text of a uai file."""
    lines = [kind, str(len(domains)), " ".join(map(str, domains)), str(len(functions))]
    lines += [" ".join(map(str, (len(scope), *scope))) for scope, _ in functions]
    lines += [f"{len(values)} {' '.join(f'{v:.6f}' for v in values)}" for _, values in functions]
    return "\n".join(lines) + "\n"


def links(seed: int, n: int = 14, k: int = 24) -> str:
    rng = random.Random(seed)
    values = sorted(rng.sample(range(16, 800, 14), k))
    functions: list[Function] = []
    for u, v in combinations(range(n), 2):
        if rng.random() < 8 / n:
            d, w = rng.choice([70, 126, 238]), rng.choice([1, 10, 100, 1000])
            far = {(a, b): w for a, b in product(range(k), repeat=2) if abs(values[a] - values[b]) <= d}
            functions.append(((u, v), 0, far))
    return wcsp(f"links{seed}", [k] * n, functions, 10**6)


def pedigree(seed: int, n: int = 60) -> str:
    """Two alleles per person are one variable of three genotypes; some are observed, with errors."""
    rng = random.Random(seed)
    functions: list[tuple[tuple[int, ...], list[float]]] = []
    for i in range(n):
        if i < n // 4:
            functions.append(((i,), [0.49, 0.42, 0.09]))
        else:
            father, mother = rng.sample(range(max(0, i - n // 3), i), 2)
            table = []
            for f, m in product(range(3), repeat=2):
                p, q = f / 2, m / 2
                table += [(1 - p) * (1 - q), p * (1 - q) + q * (1 - p), p * q]
            functions.append(((father, mother, i), table))
        if rng.random() < 0.6:
            seen = rng.randrange(3)
            functions.append(((i,), [0.95 if a == seen else 0.025 for a in range(3)]))
    return uai("BAYES", [3] * n, functions)


def photographs(seed: int, n: int = 50) -> str:
    rng = random.Random(seed)
    domains = [rng.choice([2, 4]) for _ in range(n)]
    top = 10**6
    functions: list[Function] = [((i,), 0, {(0,): rng.choice([1, 2, 1000, 2000])}) for i in range(n)]
    near = [(u, v) for u, v in combinations(range(n), 2) if v - u <= 8 and rng.random() < 0.5]
    for u, v in near:
        pairs = {(a, b): top for a in range(1, domains[u]) for b in range(1, domains[v]) if rng.random() < 0.4}
        functions.append(((u, v), 0, pairs))
    for _ in range(n // 3):
        u = rng.randrange(n - 8)
        scope = tuple(sorted(rng.sample(range(u, u + 8), 3)))
        bad = {t: top for t in product(*(range(1, domains[v]) for v in scope)) if rng.random() < 0.3}
        functions.append((scope, 0, bad))
    return wcsp(f"photographs{seed}", domains, functions, top)


def warehouse(seed: int, n: int = 10, stores: int = 25) -> str:
    rng = random.Random(seed)
    top = 10**7
    places = [(rng.random(), rng.random()) for _ in range(n + stores)]
    functions: list[Function] = [((i,), 0, {(1,): rng.randint(3000, 9000)}) for i in range(n)]
    for s in range(n, n + stores):
        (x, y) = places[s]
        cost = {(i,): int(10000 * ((x - places[i][0]) ** 2 + (y - places[i][1]) ** 2) ** 0.5) for i in range(n)}
        functions.append(((s,), 0, cost))
        functions += [((i, s), 0, {(0, i): top}) for i in range(n)]
    return wcsp(f"warehouse{seed}", [2] * n + [n] * stores, functions, top)


def auction(seed: int, n: int = 60, goods: int = 40) -> str:
    rng = random.Random(seed)
    bids = [frozenset(rng.sample(range(goods), rng.randint(2, 5))) for _ in range(n)]
    top = 10**6
    functions: list[Function] = [((i,), 0, {(0,): len(b) * 100 + rng.randint(0, 120)}) for i, b in enumerate(bids)]
    functions += [((u, v), 0, {(1, 1): top}) for u, v in combinations(range(n), 2) if bids[u] & bids[v]]
    return wcsp(f"auction{seed}", [2] * n, functions, top)


def colouring(seed: int, n: int = 30, k: int = 3) -> str:
    rng = random.Random(seed)
    near = [(u, v) for u, v in combinations(range(n), 2) if rng.random() < 4.5 / n]
    functions = [(pair, 0, {(a, a): 1 for a in range(k)}) for pair in near]
    return wcsp(f"colouring{seed}", [k] * n, functions, len(near) + 1)


def bayes(seed: int, n: int = 25) -> str:
    rng = random.Random(seed)
    domains = [rng.randint(2, 4) for _ in range(n)]
    functions: list[tuple[tuple[int, ...], list[float]]] = []
    for i in range(n):
        parents = tuple(rng.sample(range(max(0, i - 6), i), min(i, rng.randint(0, 3))))
        table: list[float] = []
        for _ in product(*(range(domains[p]) for p in parents)):
            weights = [rng.random() ** 3 * (rng.random() < 0.9) for _ in range(domains[i])]
            weights[0] += 1e-3
            parts = [int(1e6 * w / sum(weights)) for w in weights]
            parts[0] += 10**6 - sum(parts)  # a row sums to 1: toulbar2 divides others by their sum
            table += [p / 1e6 for p in parts]
        functions.append(((*parents, i), table))
    return uai("BAYES", domains, functions)


FAMILIES: Final[dict[str, Callable[[int], str]]] = {
    "links": links,
    "pedigree": pedigree,
    "photographs": photographs,
    "warehouse": warehouse,
    "auction": auction,
    "colouring": colouring,
    "bayes": bayes,
}


def small(seed: int) -> tuple[str, list[int], list[Function], int]:
    """(text, domains, functions, upper bound) of a network small enough to be enumerated: one to four variables in a
    scope, forbidden tuples, default costs.
    """
    rng = random.Random(seed)
    n = rng.randint(1, 6)
    domains = [rng.randint(1, 4) for _ in range(n)]
    top = rng.choice([10, 60, 10**6])
    functions: list[Function] = []
    for _ in range(rng.randint(0, 9)):
        scope = tuple(rng.sample(range(n), rng.randint(0, min(4, n))))
        default = rng.choice([0, 0, 3, top])
        every = list(product(*(range(domains[v]) for v in scope))) if scope else []
        chosen = [t for t in every if rng.random() < 0.6]
        functions.append(
            (scope, default if scope else min(default, 3), {t: rng.choice([0, 1, 5, 9, top, top + 7]) for t in chosen})
        )
    return wcsp(f"small{seed}", domains, functions, top), domains, functions, top


def least(domains: list[int], functions: list[Function], top: int) -> int | None:
    """The least cost of all values of all variables, single costs from `top` on forbidden; None where none is left."""
    best: int | None = None
    for x in product(*(range(d) for d in domains)):
        total = 0
        for scope, default, tuples in functions:
            cost = tuples.get(tuple(x[v] for v in scope), default)
            if cost >= top:
                break
            total += cost
        else:
            best = total if best is None else min(best, total)
    return best


HAS_TOULBAR2: Final = find_spec("pytoulbar2") is not None

_ASK: Final = """
import json, resource, sys
import pytoulbar2
problem = pytoulbar2.CFN()
problem.Read(sys.argv[1])
found = problem.Solve(timeLimit=int(sys.argv[2]))
used = resource.getrusage(resource.RUSAGE_SELF)
closed = found is not None and problem.GetDDualBound() >= found[1] - 0.5
print("\\n" + json.dumps([None if found is None else found[1], closed, used.ru_utime + used.ru_stime]))
"""


def toulbar2(path: Path, limit_s: int = 60) -> tuple[int | None, bool, float]:
    """(cost of the best solution, whether the search ended, processor seconds) of toulbar2 on a file, in a process of
    its own: what one file sets stays set for the next, and what it cannot read ends the process.  It does not always
    keep its limit (505.wcsp): twice as much and it is ended without an answer.
    """
    try:
        ran = subprocess.run(
            [sys.executable, "-c", _ASK, str(path), str(limit_s)],
            check=False,
            capture_output=True,
            text=True,
            timeout=2 * limit_s,
        )
    except subprocess.TimeoutExpired:
        return None, False, float(2 * limit_s)
    cost, closed, seconds = json.loads(ran.stdout.strip().splitlines()[-1])
    return None if cost is None else round(cost), closed, seconds
