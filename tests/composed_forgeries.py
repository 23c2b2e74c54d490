"""Forgeries of composed plans: small files of every kind with something changed, hashes made right again, and an
enumeration that says whether what was accepted is true.

    python tests/composed_forgeries.py NUMBER [SEED]

What is drawn: a number, text or list of a member (choices, views, chains, weights, leaves, orders, cuts, pairs, the
schedule's subject, makespan, bound, space, limit, constants of the machine, the graph); numbers of an array (starts,
certificates); a member of another file; of several plans the number that is taken, or a plan of it forged likewise.  An
accepted forgery is true if its bound is at most the best of its own space, its plan takes what it says and fits its
limit, as `composed_files` counts.
"""

from __future__ import annotations

import hashlib
import random
import sys
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from composed_files import Found, compared, said
from composed_problems import BATCH, Problem
from forgeries import Tally, change, change_array, head_of, put

from shardproof.models.problem.claims import Verdict
from shardproof.proofs.container.archive import MANIFEST, Member, read_container, write_container
from shardproof.proofs.container.canonical import ContainerError
from shardproof.proofs.container.kinds import PORTFOLIO
from shardproof.proofs.portfolio.file import write_portfolio
from shardproof.verify.verbs.kinds import Effort, Judged, require_known

PROBLEMS = (
    Problem("products2", "2x2", "--overlap", 6016, True),
    Problem("readers", "1x2", "--overlap", 19000),
    Problem("fork", "1x2", "--views"),
    Problem("products3", "1x2", "--pipeline 2:2"),
    Problem("products3", "1x4", "--pipeline 2:2", 15000),
    Problem("scales6", "1x2", "--pipeline 2:2:2"),
    Problem("products3", "1x4", "--pipeline 2:2 --overlap"),
    Problem("fork", "1x2", "--views --overlap"),
)
HEADS = ("overlap.json", "views.json", "pipeline.json", "plan.json")
TWICE = 2
"""Of all changes in JSON, so many times as many are of what says what is claimed as of any other member."""
LONGEST = 40


@dataclass(frozen=True)
class File:
    """`members` without the list of them; `plans`: files of the plans inside, if there are several."""

    name: str
    members: Mapping[str, Member]
    plans: tuple[bytes, ...] = ()


def files(folder: Path, problems: Sequence[Problem] = PROBLEMS) -> list[File]:
    """Plans of the problems; of several plans in one file each by itself too."""
    found = []
    for number, problem in enumerate(problems):
        path = folder / f"{number}.spz"
        status, answer = said([*problem.line(folder), "--work-limit", "500k", "-o", str(path)])
        assert status in (0, 5), answer
        members = dict(read_container(path))
        plans = tuple(m for name, m in sorted(members.items()) if name.endswith(".spz") and isinstance(m, bytes))
        found.append(File(problem.name, _bare(members), plans))
        found += [File(f"{problem.name} [{i}]", _bare(read_container(plan))) for i, plan in enumerate(plans)]
    return found


def _bare(members: Mapping[str, Member]) -> dict[str, Member]:
    return {name: m for name, m in members.items() if name != MANIFEST}


def forged(file: File, others: Sequence[File], rng: random.Random) -> tuple[bytes, str, str]:
    """(bytes of the file, kind of forgery, what was done)."""
    if file.plans:
        plans, chosen = list(file.plans), head_of(dict(file.members), PORTFOLIO)["chosen"]
        if rng.random() < 0.2:
            return write_portfolio(None, plans, rng.randrange(len(plans))), "another plan is taken", ""
        i = rng.randrange(len(plans))
        plans[i], kind, what = forged(File(file.name, _bare(read_container(plans[i]))), others, rng)
        return write_portfolio(None, plans, chosen), f"inside: {kind}", what
    members = dict(file.members)
    kind, what = _change(members, others, rng)
    _rehash(members)
    return write_container(None, members), kind, what


def _change(members: dict[str, Member], others: Sequence[File], rng: random.Random) -> tuple[str, str]:
    texts = sorted(n for n in members if n.endswith(".json"))
    arrays = sorted(n for n in members if n.endswith(".i64"))
    draw = rng.random()
    if draw < 0.2 and arrays:
        name = rng.choice(arrays)
        return "array", change_array(members, name, rng)
    if draw < 0.25:
        name, other = rng.choice(sorted(members)), rng.choice([f for f in others if not f.plans])
        if name in other.members:
            members[name] = other.members[name]
        return "member of another", name
    name = rng.choice([*texts, *[n for n in texts if n in HEADS] * TWICE * len(texts)])
    head, what = head_of(members, name), ""
    for _ in range(rng.choice((1, 1, 1, 2))):
        what += change(head, rng, skip=frozenset({"format"})) + " "
    put(members, name, head)
    return name.partition("/")[0], what


def _rehash(members: dict[str, Member]) -> None:
    """The hashes of the graph and of the machine that the file states, made those of what it has."""
    for head in (name for name in HEADS if name in members):
        data = head_of(members, head)
        for field, name in (("graph_sha256", "graph.json"), ("machine_sha256", "machine.json")):
            content = members.get(name)
            if isinstance(data, dict) and field in data and isinstance(content, bytes):
                data[field] = hashlib.sha256(content).hexdigest()
        put(members, head, data)


def accepted(data: bytes) -> Judged[object] | None:
    """What the checker establishes, if it proves all claims."""
    try:
        members = read_container(data)
        found = require_known(members, "a forgery").judge(members, Effort(samples=100), {})
    except ContainerError:
        return None
    return found if found.verdict is Verdict.PROVED else None


def lies(data: bytes, found: Judged[object]) -> list[str]:
    """What is not true of an accepted file."""
    members, wrong = read_container(data), list[str]()
    plans = [(members, found)]
    if found.among:
        inner = [m for name, m in sorted(members.items()) if name.endswith(".spz")]
        plans = [(read_container(m), one) for m, one in zip(inner, found.among, strict=True) if isinstance(m, bytes)]
    seen = list[Found]()
    for one, judged in plans:
        assert judged.main.cost is not None and judged.main.lower_bound is not None
        scale = judged.rounding[0].scale
        seen.append(compared(one, scale, judged.main.cost, judged.main.lower_bound, BATCH))
        wrong += seen[-1].wrong()
    if found.among and seen[found.chosen].cost > min(f.cost for f in seen):
        wrong.append("the plan that is taken is not the least")
    return wrong


def tally(made: Sequence[File], number: int, seed: int, every: int = 0) -> Tally:
    """Counts of so many forgeries of these files, in turn."""
    counts, known = Tally(), dict[str, list[str]]()
    for k in range(number):
        rng = random.Random(f"{seed}:{k}")
        file = made[k % len(made)]
        try:
            data, kind, what = forged(file, made, rng)
        except (ContainerError, OverflowError, ValueError):  # nothing that a file could hold
            continue
        place = hashlib.sha256(data).hexdigest()
        try:
            found = accepted(data)
        except Exception as error:  # noqa: BLE001  whatever is in a file, a checker says what is wrong with it
            counts.add("the checker fails", True, False, f"{file.name}: {what[:200]} {type(error).__name__}: {error}")
            continue
        if found is not None and place not in known:
            try:
                known[place] = lies(data, found)
            except Exception as error:  # noqa: BLE001  the evaluation cannot say: somebody has to look
                known[place] = [f"not evaluated: {type(error).__name__}: {error}"]
        false = known[place] if found is not None else []
        counts.add(kind, found is not None, not false, f"{file.name}: {what[:200]} {false}")
        if every and (k + 1) % every == 0:
            sys.stdout.write(f"{k + 1} forgeries\n{counts.table()}\n" + "".join(f"{e}\n" for e in counts.examples[-9:]))
            sys.stdout.flush()
    return counts


if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as at:
        whole = tally(files(Path(at)), int(sys.argv[1]), int(sys.argv[2]) if len(sys.argv) > 2 else 0, 2000)
        raise SystemExit(bool(whole.examples))
