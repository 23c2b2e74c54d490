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
    measured = random.Random(f"measured {seed}")  # drawn apart: the rest stays what it was
    for level in data["level"]:
        level.update(_collectives(measured) if measured.random() < 0.4 else {})
    for one in data["device_class"]:
        if measured.random() < 0.5:
            one["product"] = [_product(measured, d) for d in DTYPES if "float" in d and measured.random() < 0.8]
            one["product"] = one["product"] or [_product(measured, "float32")]
    seen = random.Random(f"attention {seed}")
    for one in data["device_class"]:
        both = [(d, way) for d in DTYPES if "float" in d for way in ("forward", "backward") if seen.random() < 0.6]
        if both and seen.random() < 0.5:
            one["attention"] = [_attention(seen, *each) for each in both]
    data["sources"] = {path: "made up" for path in _constants(data)}
    return Machine.from_json(json.dumps(data))


def _time(rng: random.Random, least: int, most: int) -> str:
    """Seconds of so many decades, perhaps none."""
    return "0" if rng.random() < 0.1 else str(Fraction(rng.randint(1, 999), 7 * 10 ** rng.randint(least, most)))


def _collectives(rng: random.Random) -> dict[str, dict[str, str]]:
    """Six constants of every operation of a level."""
    decades = {"fixed": (5, 8), "hop": (5, 8), "slow": (8, 12), "start": (5, 8), "wire": (9, 12), "own": (9, 12)}
    names = ("all_gather", "reduce_scatter", "all_reduce", "alltoall")
    return {name: {key: _time(rng, *range_) for key, range_ in decades.items()} for name in names}


def _product(rng: random.Random, dtype: str) -> dict[str, object]:
    """Tiles of a few elements, so that small products have several and waves."""
    decades = {"launch": (5, 8), "tail": (7, 9), "step": (7, 9), "split": (6, 9), "sum": (9, 12), "result": (8, 12)}
    sizes = sorted({(rng.choice((1, 2, 4, 8)), rng.choice((1, 2, 3, 8))) for _ in range(3)})
    return {
        "dtype": dtype,
        "processors": rng.choice((1, 2, 3, 5)),
        "tiles": {f"{a}x{b}": str(Fraction(rng.randint(1, 99), 3 * 10**8)) for a, b in sizes},
        **{key: _time(rng, *range_) for key, range_ in decades.items()},
        "odd": rng.choice(("0", "1/9")),
    }


def _attention(rng: random.Random, dtype: str, direction: str) -> dict[str, object]:
    """Constants such that pairs, queries and blocks that are not full all count in small boxes."""
    decades = {"launch": (5, 8), "pace": (8, 11), "pair": (7, 9), "row": (6, 9)}
    return {
        "dtype": dtype,
        "direction": direction,
        "processors": rng.choice((1, 2, 3, 5)),
        **{key: _time(rng, *range_) for key, range_ in decades.items()},
        "wave": rng.choice(("0", "1/90", "1/700")),
        "band": rng.choice(("0", "1/80", "1/900")),
    }


def _profiles(rng: random.Random, graph: Graph, sizes: tuple[int, ...]) -> list[dict[str, object]]:
    known = {}
    for op in graph.operators:
        for _ in range(3):
            extents = [
                -(-op.axis(a).extent // rng.choice((1, 1, *sizes)))
                for a in (*op.output.axes, *(x.name for x in op.reduction_axes))
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
    measured = [f"level.{x['name']}.{o}" for x in data["level"] for o, t in x.items() if isinstance(t, dict)]
    measured += [
        f"device_class.{c['name']}.product.{p['dtype']}" for c in data["device_class"] for p in c.get("product", [])
    ]
    measured += [
        f"device_class.{c['name']}.attention.{a['dtype']}.{a['direction']}"
        for c in data["device_class"]
        for a in c.get("attention", [])
    ]
    return [*levels, *classes, *resources, *profiles, *measured]
