"""Forty small problems for every combination of a plan's parts: programs of 2 to 6 operators and steps of training made
of such, on 2 to 8 slow devices, half of them with a memory limit.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from second_builder_random import random_graph

from shardproof.models.program.graph import Graph
from shardproof.models.sources.building.builder import Builder

BATCH = 8
"""No other extent of a program that is trained is as large."""

MACHINE = """name = "slow"

[[level]]
name = "nodes"
size = 2
bandwidth = "1 GB/s"
latency = "2 us"

[[level]]
name = "devices"
size = 2
bandwidth = "4 GB/s"
latency = "500 ns"

[[device_class]]
name = "core"
memory = "1 GiB"
bandwidth = "5 GB/s"
launch = "1 us"
[device_class.peaks]
float64 = "5 Gflop/s"
float32 = "10 Gflop/s"
float16 = "20 Gflop/s"
bfloat16 = "20 Gflop/s"
int64 = "5 Gflop/s"
int32 = "10 Gflop/s"
int16 = "10 Gflop/s"
int8 = "10 Gflop/s"
uint8 = "10 Gflop/s"
bool = "10 Gflop/s"

[sources]
"level.nodes" = "assumption: a machine of a test, on which every part of a plan pays somewhere"
"level.devices" = "assumption: a machine of a test"
"device_class.core" = "assumption: a machine of a test"
"""


def products(layers: int, width: int = 32, maps: bool = False) -> Graph:
    """Products with weights, one behind the other, and a sum of everything; perhaps a map behind each."""
    g = Builder("products", "float32")
    at = g.input("x", (BATCH, width))
    for k in range(layers):
        at = g.contract(f"layer{k}.dot", "b i, i j -> b j", at, g.parameter(f"w{k}", (width, width)))
        if maps:
            at = g.map(f"layer{k}.relu", "relu", at, text="b j -> b j")
    return g.build(g.reduce("loss", "b j -> ", at))


def scales(layers: int, width: int = 32) -> Graph:
    """Like `products`, a factor per column in place of a product."""
    g = Builder("scales", "float32")
    at = g.input("x", (BATCH, width))
    for k in range(layers):
        at = g.map(f"a{k}", "multiply", at, g.parameter(f"w{k}", (width,)), text="b i, i -> b i")
    return g.build(g.reduce("loss", "b j -> ", at))


def fork(shared: bool = True, batch: int = 4, width: int = 64) -> Graph:
    """Two branches, from one input or two, and their sum."""
    g = Builder("fork", "float32")
    x = g.input("x", (batch, width))
    start = g.map("start", "relu", x, text="b n -> b n") if shared else x
    other = start if shared else g.input("y", (batch, width))
    weights = [g.parameter(f"{n}.w", (width, width)) for n in ("left", "right")]
    ends = [
        g.contract(n, "b k, k n -> b n", at, w)
        for n, at, w in zip(("left", "right"), (start, other), weights, strict=True)
    ]
    return g.build(g.map("join", "add", *ends, text="b n, b n -> b n"))


def two_readers(width: int = 64) -> Graph:
    """A product that another one and a sum read."""
    g = Builder("readers", "float32")
    x = g.input("x", (4, width))
    y = g.contract("y", "b i, i j -> b j", x, g.parameter("w", (width, width)))
    z = g.contract("z", "b i, i j -> b j", y, g.parameter("v", (width, width)))
    return g.build(z, g.reduce("s", "b j -> b", y))


def distributes(width: int = 64) -> Graph:
    """x w + x v."""
    g = Builder("distributes", "float32")
    x = g.input("x", (4, width))
    ends = [g.contract(n, "b i, i j -> b j", x, g.parameter(w, (width, width))) for n, w in (("y", "w"), ("z", "v"))]
    return g.build(g.map("t", "add", *ends, text="b j, b j -> b j"))


def reassociates(width: int = 64) -> Graph:
    """relu((x w) v), v narrow."""
    g = Builder("reassociates", "float32")
    y = g.contract("y", "b i, i j -> b j", g.input("x", (4, width)), g.parameter("w", (width, width)))
    z = g.contract("z", "b i, i j -> b j", y, g.parameter("v", (width, 4)))
    return g.build(g.map("t", "relu", z, text="b j -> b j"))


PROGRAMS: dict[str, Callable[[], Graph]] = {
    "products2": lambda: products(2),
    "products3": lambda: products(3),
    "products4": lambda: products(4),
    "products5": lambda: products(5),
    "maps3": lambda: products(3, maps=True),
    "scales3": lambda: scales(3),
    "scales6": lambda: scales(6),
    "fork": fork,
    "apart": lambda: fork(shared=False),
    "readers": two_readers,
    "distributes": distributes,
    "reassociates": reassociates,
    "drawn1": lambda: random_graph(1, 3),
    "drawn4": lambda: random_graph(4, 3),
    "drawn7": lambda: random_graph(7, 3),
}


@dataclass(frozen=True)
class Problem:
    """`flags`: of `plan`; `memory`: bytes; `binds`: the best plan without the limit is better than any within it."""

    program: str
    devices: str
    flags: str = ""
    memory: int | None = None
    binds: bool = False

    @property
    def name(self) -> str:
        limit = "" if self.memory is None else f" {self.memory}"
        return f"{self.program} {self.devices} {self.flags}{limit}"

    def line(self, folder: Path) -> list[str]:
        """The command without what it writes to."""
        graph, machine = folder / "graph.json", folder / "machine.toml"
        graph.write_text(PROGRAMS[self.program]().to_json())
        machine.write_text(MACHINE)
        trained = ["--train", "sgd"] if "--pipeline" in self.flags or "--train" in self.flags else []
        flags = [word for word in self.flags.split() if word != "--train"]
        limit = [] if self.memory is None else ["--memory", f"{self.memory}B"]
        return ["plan", str(graph), "--machine", f"{machine}:{self.devices}", *trained, *flags, *limit]


CHEAP = (
    Problem("readers", "2x2", "", 13400, True),
    Problem("distributes", "1x4", "--joint", 10100),
    Problem("products2", "2x2", "--overlap", 6016, True),
    Problem("readers", "1x2", "--overlap", 19000),
    Problem("fork", "1x2", "--views"),
    Problem("fork", "1x2", "--views --overlap --joint"),
    Problem("reassociates", "1x4", "--joint"),
    Problem("products3", "1x2", "--pipeline 2:4"),
    Problem("products3", "1x4", "--pipeline 2:2", 15000),
    Problem("products4", "1x2", "--pipeline auto"),
    Problem("products5", "1x2", "--pipeline 2:2:2"),
    Problem("scales3", "1x4", "--pipeline 2:2 --overlap"),
)
DEAR = (
    Problem("products2", "1x4", "", 3400, True),
    Problem("fork", "1x4", "", 10400, True),
    Problem("scales3", "2x2", "", 1400, True),
    Problem("distributes", "2x2", "", 10400, True),
    Problem("drawn1", "1x2"),
    Problem("drawn4", "2x2"),
    Problem("drawn7", "1x2", "--overlap"),
    Problem("products2", "1x2", "--overlap", 9400),
    Problem("scales3", "2x2", "--overlap", 1500, True),
    Problem("fork", "1x2", "--overlap"),
    Problem("distributes", "1x2", "--overlap --joint"),
    Problem("distributes", "2x2", "--joint", 10400, True),
    Problem("reassociates", "2x2", "--joint --overlap"),
    Problem("reassociates", "1x2", "--joint", 12000),
    Problem("apart", "1x2", "--views"),
    Problem("fork", "1x4", "--views", 12000),
    Problem("products3", "1x4", "--pipeline 2:2 --overlap"),
    Problem("products3", "2x2", "--pipeline 2:4 --overlap", 16000),
    Problem("products3", "2x2", "--pipeline 2:4", 15000),
    Problem("products3", "1x2", "--pipeline 1:1 --joint"),
    Problem("scales3", "1x2", "--pipeline 2:2 --joint", 20000),
    Problem("products5", "2x2", "--pipeline 2:2:2"),
    Problem("products5", "2x2", "--pipeline 4:2"),
    Problem("products5", "2x4", "--pipeline 4:2", 16000),
    Problem("scales6", "1x2", "--pipeline 2:4:2"),
    Problem("scales6", "1x2", "--pipeline 2:2 --interleave 2"),
    Problem("maps3", "1x4", "--pipeline 2:2 --recompute auto", 20000),
    Problem("maps3", "1x2", "--pipeline 2:4 --recompute layer0", 40000),
)
