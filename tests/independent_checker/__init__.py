"""A second checker of selection certificates, collective programs and schedules, written from docs/certificate-format.md alone: standard
library only.

    cd tests; python -m independent_checker certificate.spz problem.json

It is slow (Python integers, dictionaries, no vectors) and short, so that it can be read beside the document; modules
follow its sections.  `check` gives (verdict, why): "proved", "refuted", "undecided" or "malformed".
"""

from __future__ import annotations

from itertools import pairwise

from .bounds import INFINITE
from .problem import Problem, read_problem
from .reading import Malformed, Refuted, need
from .records import read_certificate
from .walk import Walk


def check(certificate: bytes, problem: bytes) -> tuple[str, str]:
    """(verdict, why) of a certificate about a problem, from the bytes of both files."""
    try:
        p, sha256 = read_problem(problem)
        about, claim, records = read_certificate(certificate)
        return judge(p, sha256, about, claim, records)
    except Malformed as error:
        return "malformed", str(error)
    except Refuted as error:
        return "refuted", str(error)


def judge(p: Problem, sha256: str, about: str, claim: dict, records: list[dict]) -> tuple[str, str]:
    need(about == sha256, "is about another problem")  # the command line: not checked
    kind, ub, needed = claim["kind"], INFINITE, claim.get("lower_bound", INFINITE)
    if "solution" in claim:
        x = claim["solution"]
        need(len(x) == len(p.costs), "solution", Refuted)
        need(all(0 <= a < len(c) for a, c in zip(x, p.costs, strict=True)), "solution", Refuted)
        ub, forbidden = p.cost(x)
        need(not forbidden and (p.limit is None or p.peak(x)[0] <= p.limit), "the solution is not feasible", Refuted)
        need(ub == claim["cost"], f"the solution costs {ub}", Refuted)
        needed = claim["cost"] if kind == "optimal" else claim["lower_bound"]
        need(needed <= ub, "the bound is above the cost", Refuted)
    if kind == "infeasible":
        witnessed(p, claim)
    walk = Walk(records, ub, p.bits, len(p.costs))
    bound = min(walk.below(0, p, [list(range(len(c))) for c in p.costs], None), ub)
    need(walk.cheapest >= needed, f"the proof holds a solution that costs {walk.cheapest}", Refuted)
    if bound < needed:
        return "undecided", f"only the bound {bound}"
    if kind == "infeasible":
        steps, vertices = set(claim["steps"]), set(claim["vertices"])
        need(steps <= walk.met_steps and vertices <= walk.met_vertices, "names what the proof does not meet", Refuted)
        if not (walk.rests_steps <= steps and walk.rests_vertices <= vertices):
            return "undecided", "does not name all that the proof rests on"
    return "proved", f"bound {bound}"


def witnessed(p: Problem, claim: dict) -> None:
    for values in (claim["steps"], claim["vertices"]):
        need(all(a < b for a, b in pairwise(values)), "does not ascend", Refuted)
    need(all(0 <= v < len(p.costs) for v in claim["vertices"]), "names a vertex that is not there", Refuted)
    x, least = claim["witness"], claim["least_limit"]
    need((x is None) == (least is None), "witness and least limit come together", Refuted)
    if x is None:
        return
    need(p.limit is not None, "there is no limit", Refuted)
    need(len(x) == len(p.costs) and all(0 <= a < len(c) for a, c in zip(x, p.costs, strict=True)), "witness", Refuted)
    need(not p.cost(x)[1], "the witness is forbidden", Refuted)
    need(p.peak(x)[0] == least, "least limit", Refuted)
    need(least > p.limit, "the witness is feasible", Refuted)
