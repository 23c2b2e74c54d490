"""Seeded random machines: one to four levels, rates without round quotients, two kinds of devices, measured
operators.
"""

from __future__ import annotations

import json
import random
from fractions import Fraction
from math import prod

from second_builder_random import DTYPES

from shardproof.models.machine.machine import Machine
from shardproof.models.program.graph import Graph

SPACES = (
    "complete",
    "complete,uneven",
    "two-per-level",
    "two-per-level,uneven",
    "one-per-level",
    "one-per-level,uneven",
)
HIERARCHIES = (
    *((n,) for n in range(1, 9)),
    (2, 2),
    (2, 3),
    (3, 2),
    (1, 4),
    (2, 4),
    (4, 2),
    (2, 1, 3),
    (2, 2, 2),
    (1, 2, 1, 3),
    (2, 1, 2, 2),
)


def random_machine(seed: int, graph: Graph) -> Machine:
    """Rates without round quotients, perhaps two kinds of devices, and perhaps measured times of operators of the
    graph.
    """
    rng = random.Random(seed)
    sizes = rng.choice(HIERARCHIES)

    def rate(low: int, high: int) -> str:
        return str(Fraction(rng.randint(low, high), rng.choice((1, 3, 7, 1000))))

    def device(name: str, blocks: list[int]) -> dict[str, object]:
        constants = {
            "name": name,
            "memory": "1000000",
            "bandwidth": rate(10**6, 10**10),
            "launch": rng.choice(("0", "1/3000000")),
            "peaks": {d: rate(10**6, 10**11) for d in DTYPES},
        }
        return {**constants, "blocks": blocks} if blocks else constants

    mixed = sizes[0] > 1 and rng.random() < 0.4
    data = {
        "format": "shardproof-machine/1",
        "name": f"random-{seed}",
        "level": [
            {
                "name": f"l{i}",
                "size": n,
                "bandwidth": rate(10**6, 10**10),
                "latency": rng.choice(("0", "1/70000", "1/1000000")),
            }
            for i, n in enumerate(sizes)
        ],
        "device_class": [
            device("old", []),
            *([device("new", sorted(rng.sample(range(sizes[0]), rng.randint(1, sizes[0] - 1))))] if mixed else []),
        ],
        "resource": [{"name": "switch", "devices": prod(sizes), "capacity": "1000", "traffic": ["l0"]}]
        if rng.random() < 0.2
        else [],
        "profile": _profiles(rng, graph, sizes) if rng.random() < 0.5 else [],
    }
    data["sources"] = {path: "made up" for path in _constants(data)}
    return Machine.from_json(json.dumps(data))


def _profiles(rng: random.Random, graph: Graph, sizes: tuple[int, ...]) -> list[dict[str, object]]:
    known = {}
    for op in graph.operators:
        for _ in range(3):
            extents = [
                -(-op.axis(a).extent // rng.choice((1, 1, *sizes)))
                for a in (*op.output.axes, *(x.name for x in op.reduced))
            ]
            known[op.function, graph.tensor(op.output.tensor).dtype, tuple(extents)] = (
                f"{rng.randint(1, 99)}/1000000000"
            )
    return [
        {"function": f, "dtype": d, "extents": list(e), "seconds": str(Fraction(s))}
        for (f, d, e), s in sorted(known.items())
        if e
    ]


def _constants(data: dict) -> list[str]:
    """Every constant needs a source."""
    levels = [f"level.{x['name']}.{k}" for x in data["level"] for k in ("bandwidth", "latency")]
    classes = [
        f"device_class.{c['name']}.{k}"
        for c in data["device_class"]
        for k in ("memory", "bandwidth", "launch", "peaks")
        if c[k] != "0"
    ]
    resources = [f"resource.{r['name']}.capacity" for r in data["resource"]]
    profiles = [f"profile.{p['function']}.{p['dtype']}.{'x'.join(map(str, p['extents']))}" for p in data["profile"]]
    return [*levels, *classes, *resources, *profiles]
