"""Forgeries: valid files with something changed, hashes made right again, and counts of what the checker says about
them.

A change is drawn at random, so a forgery may be true (a weaker bound, a name); whoever judges asks an oracle about
every forgery that was accepted.
"""

from __future__ import annotations

import json
import random
from collections import Counter
from typing import Any

import numpy as np

from shardproof.proofs.container.archive import Member
from shardproof.proofs.container.canonical import canonical

Json = Any

NUMBERS = (0, 1, -1, 2, 3, 7, 99, 1 << 31, 1 << 57, 1 << 60, (1 << 63) - 1, -(1 << 63), 1 << 64, 10**30)
"""Numbers put in place of others."""


class Tally:
    """Counts per kind of forgery: rejected (refuted, undecided, malformed), accepted and true, accepted and false."""

    def __init__(self) -> None:
        self.rejected, self.true, self.false = Counter[str](), Counter[str](), Counter[str]()
        self.examples: list[str] = []

    def add(self, kind: str, accepted: bool, true: bool, what: str) -> None:
        (self.rejected if not accepted else self.true if true else self.false)[kind] += 1
        if accepted and not true:
            self.examples.append(f"{kind}: {what}")

    @property
    def total(self) -> int:
        return sum(self.rejected.values()) + sum(self.true.values()) + sum(self.false.values())

    def table(self) -> str:
        """One line per kind and one of all."""
        lines = [f"{'forgery':<28}{'total':>8}{'rejected':>10}{'accepted and true':>19}{'false accepts':>15}"]
        for kind in sorted({*self.rejected, *self.true, *self.false}):
            r, t, f = self.rejected[kind], self.true[kind], self.false[kind]
            lines.append(f"{kind:<28}{r + t + f:>8}{r:>10}{t:>19}{f:>15}")
        r, t, f = (sum(c.values()) for c in (self.rejected, self.true, self.false))
        return "\n".join([*lines, f"{'all':<28}{r + t + f:>8}{r:>10}{t:>19}{f:>15}"])


def places(value: Json, path: tuple[Any, ...] = ()) -> list[tuple[Any, ...]]:
    """Paths of everything inside a JSON value."""
    out = []
    items = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    for key, item in items:
        out.append((*path, key))
        out += places(item, (*path, key))
    return out


def at(value: Json, path: tuple[Any, ...]) -> Json:
    for key in path:
        value = value[key]
    return value


def number(rng: random.Random, old: int) -> int:
    return rng.choice(
        (old + 1, old - 1, old + 1, old - 1, 2 * old, -old, old + rng.randint(-9, 9), rng.choice(NUMBERS))
    )


def change(value: Json, rng: random.Random, *, skip: frozenset[str] = frozenset()) -> str:
    """One random change inside a JSON value, in place; what was done."""
    paths = [p for p in places(value) if not skip & set(map(str, p))]
    path = rng.choice(paths)
    inside, key = at(value, path[:-1]), path[-1]
    old = inside[key]
    match old:
        case bool():
            inside[key] = not old
        case int():
            inside[key] = number(rng, old)
        case str():
            others = [t for p in paths if isinstance(t := at(value, p), str)]
            inside[key] = rng.choice((*others, "", old + "x"))
        case list() if old and rng.random() < 0.7:
            i, j = rng.randrange(len(old)), rng.randrange(len(old))
            match rng.randrange(4):
                case 0:
                    del old[i]
                case 1:
                    old.insert(j, json.loads(json.dumps(old[i])))
                case 2:
                    old[i], old[j] = old[j], old[i]
                case _:
                    old[i] = json.loads(json.dumps(old[j]))
        case _:
            same = [at(value, p) for p in paths if type(at(value, p)) is type(old)]
            inside[key] = json.loads(json.dumps(rng.choice([None, 0, *same])))
    return f"{'.'.join(map(str, path))}: {str(old)[:40]}"


def change_array(members: dict[str, Member], name: str, rng: random.Random) -> str:
    """One or two numbers of an array member changed or exchanged."""
    array = np.array(members[name])
    if not array.size:
        return "nothing"
    for _ in range(rng.choice((1, 1, 2))):
        i, j = rng.randrange(array.size), rng.randrange(array.size)
        if rng.random() < 0.3:
            array[[i, j]] = array[[j, i]]
        else:
            array[i] = max(-(1 << 63), min((1 << 63) - 1, number(rng, int(array[i]))))
    members[name] = array
    return f"array {name}"


def put(members: dict[str, Member], name: str, head: Json) -> None:
    members[name] = canonical(head)


def head_of(members: dict[str, Member], name: str) -> Json:
    content = members[name]
    assert isinstance(content, bytes)
    return json.loads(content)
