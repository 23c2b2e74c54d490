"""A differential fuzzer of the JAX frontend: small programs are drawn, imported, and run by JAX and by us on the same
numbers.

    python tests/fuzz_jax.py --programs 20000 --seed 0 [--seconds 600]

A program is one to four operators with attributes, shapes and constants drawn from a seed.  What import refuses is
counted; what it accepts must compute what JAX does, on every set of numbers of `backends.execution.differential`.  JAX
compiles many programs at once, so that compiling costs little.  XLA itself dies on some (an integer divided by zero
while it folds constants), so programs run in a process of their own, which writes what it found after every pack; a
pack in which it dies is run again program by program, and the program that kills it is counted apart.
"""

from __future__ import annotations

import argparse
import json
import random
import resource
import signal
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import jax
import jax.numpy as jnp
import jax_draws
import jax_draws_known
import jax_draws_lax
import numpy as np
from jax_draws import FAULTS, Draw, run_steps

from shardproof.backends.execution.differential import SAMPLES, difference, sample
from shardproof.models.program.graph import Graph, GraphError, UnsupportedOperators
from shardproof.models.sources.building.original import Original
from shardproof.models.sources.jax import handlers, operators
from shardproof.models.sources.jax.importer import graph_of
from shardproof.models.sources.jax.original import PLAIN
from shardproof.models.sources.numpy.recorder import TraceError

Array = jax.Array
OPERATIONS = (*jax_draws.OPERATIONS, *jax_draws_lax.OPERATIONS, *jax_draws_known.OPERATIONS)


def draw(seed: int) -> Draw:
    """The program of a seed."""
    rng = random.Random(f"jax {seed}")
    d = Draw(rng)
    rank = rng.choice((0, 1, 1, 2, 2, 2, 3))
    shape = [rng.choice((1, 2, 3, 4, 5)) for _ in range(rank)]
    d.argument(shape, rng.choice(("float64", "float64", "float32", "int32", "int8", "uint8", "bool")))
    for _ in range(rng.choice((0, 1, 1, 2))):
        mine = [n if rng.random() < 0.8 else 1 for n in shape][rng.choice((0, 0, 0, 1)) :]
        d.argument(mine, rng.choice(("float64", "float64", "float32", "int32", "bool")))
    if rng.random() < 0.5:
        d.argument([rng.choice((1, 2, 3)) for _ in range(rng.choice((0, 1, 1, 2)))], "int32")
    for _ in range(rng.choice((1, 1, 2, 3, 4))):
        for _ in range(20):
            if rng.choice(OPERATIONS)(d):
                break
    return d


def _program(d: Draw) -> Callable[..., Array]:
    return lambda *a: run_steps(d, a, d.steps)[-1]


@dataclass
class Found:
    """Counts, and what differed: seed, words, where."""

    programs: int = 0
    accepted: int = 0
    refused: Counter[str] = field(default_factory=Counter)
    broken: list[tuple[int, str, str]] = field(default_factory=list)
    wrong: list[tuple[int, str, str]] = field(default_factory=list)
    failing: list[tuple[int, str]] = field(default_factory=list)
    """Programs that import accepts and XLA cannot compile or run: nobody knows what they compute."""
    died: list[tuple[int, str]] = field(default_factory=list)
    """Programs that end the process in which XLA compiles or runs them, and by which signal."""
    operators: Counter[str] = field(default_factory=Counter)

    def add(self, made: dict[str, Any]) -> None:
        """What another process found, as JSON has it."""
        self.programs += made["programs"]
        self.accepted += made["accepted"]
        self.refused.update(made["refused"])
        self.operators.update(made["operators"])
        for rows, more in ((self.broken, "broken"), (self.wrong, "wrong"), (self.failing, "failing")):
            rows.extend(tuple(row) for row in made[more])


class _Reads(dict[str, operators.Handler]):
    """The table of readers; keeps which were asked for."""

    def __init__(self) -> None:
        super().__init__(handlers.HANDLERS)
        self.read = set[str]()

    def get(self, name: str, default: object = None) -> operators.Handler | None:  # type: ignore[override]
        self.read.add(name)
        return super().get(name)


def fuzz(seeds: Sequence[int], found: Found) -> None:
    """The programs of some seeds, compiled by JAX together."""
    accepted: list[tuple[int, Draw, Graph, Original]] = []
    table, reads = handlers.HANDLERS, _Reads()
    handlers.HANDLERS = reads  # type: ignore[misc]
    try:
        _imported(seeds, found, accepted, reads)
    finally:
        handlers.HANDLERS = table  # type: ignore[misc]
    _compared(accepted, found)


def _imported(
    seeds: Sequence[int], found: Found, accepted: list[tuple[int, Draw, Graph, Original]], reads: _Reads
) -> None:
    for seed in seeds:
        d = draw(seed)
        found.programs += 1
        if not d.steps:
            continue
        taken: list[Original] = []
        reads.read.clear()
        try:
            graph = graph_of("fuzz", "fuzz", _program(d), d.arguments, original=taken.append)
        except (GraphError, UnsupportedOperators, TraceError) as error:
            found.refused[str(error).partition(":")[0][:60]] += 1
            if "JAX cannot lower" not in str(error) and any(word in str(error) for word in ("Error:", "Exception:")):
                found.broken.append((seed, ", ".join(d.words), str(error)[:300]))
            continue
        except FAULTS as error:
            found.broken.append((seed, ", ".join(d.words), f"{type(error).__name__}: {str(error)[:300]}"))
            continue
        accepted.append((seed, d, graph, taken[0]))
        found.operators.update(reads.read)


def _compared(accepted: list[tuple[int, Draw, Graph, Original]], found: Found) -> None:
    if not accepted:
        return
    together = jax.jit(
        lambda given: [run_steps(d, a, d.steps)[-1] for (_, d, *_), a in zip(accepted, given, strict=True)],
        compiler_options=dict(PLAIN),
    )
    for kind in SAMPLES:
        drawn = [sample(graph, kind) for _, _, graph, _ in accepted]
        given = []
        for (_, d, graph, _), values in zip(accepted, drawn, strict=True):
            names = ["a", *(f"arg{k}" for k in range(1, len(d.arguments)))]
            given.append(
                [
                    jnp.asarray(values[n].reshape(a.shape)) if n in values else jnp.zeros(a.shape, a.dtype)
                    for n, a in zip(names, d.arguments, strict=True)
                ]
            )
        try:
            made = [np.asarray(y) for y in together(given)]
        except jax.errors.JaxRuntimeError as error:
            if len(accepted) > 1:  # XLA fails on one of them: which, and what of the others
                for one in accepted:
                    _compared([one], found)
            else:
                found.failing.append((accepted[0][0], str(error)[:120]))
                jax.clear_caches()
            return
        for (seed, d, graph, original), values, theirs in zip(accepted, drawn, made, strict=True):
            try:
                told = difference(graph, values, {graph.outputs[0]: theirs}, kind, original.zeros)
            except FAULTS as error:
                found.broken.append((seed, ", ".join(d.words), f"{kind}: {type(error).__name__}: {error}"))
                continue
            if told is not None:
                found.wrong.append((seed, ", ".join(d.words), f"{kind}: {told}"))
    found.accepted += len(accepted)
    jax.clear_caches()  # thousands of programs would fill the memory


def fuzz_apart(seeds: range, found: Found, seconds: float, pack: int = 50) -> None:
    """The programs of some seeds in a process of their own, and in another one behind each that kills it."""
    end = time.monotonic() + seconds
    while seeds and time.monotonic() < end:
        words = [sys.executable, __file__, "--seed", str(seeds[0]), "--programs", str(len(seeds)), "--pack", str(pack)]
        with subprocess.Popen(words, stdout=subprocess.PIPE, text=True) as process:
            assert process.stdout is not None
            for line in process.stdout:
                if line.startswith("{"):
                    found.add(json.loads(line))
                    seeds = seeds[pack:]
                if time.monotonic() >= end:
                    process.kill()
                    return
        if process.returncode == 0 and not seeds:
            return
        if process.returncode >= 0:
            raise RuntimeError(f"the process that runs seeds {seeds} ended with {process.returncode}")
        if pack == 1:
            found.programs += 1
            found.died.append(
                (seeds[0], f"{signal.Signals(-process.returncode).name}: {', '.join(draw(seeds[0]).words)}")
            )
            seeds = seeds[1:]
        else:
            fuzz_apart(seeds[:pack], found, end - time.monotonic(), 1)
            seeds = seeds[pack:]


def main() -> None:
    """See the module docstring."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--programs", type=int, default=20_000)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--seconds", type=float, default=600.0)
    parser.add_argument("--pack", type=int, default=0, help="run here, so many at a time; a line of JSON for each pack")
    parser.add_argument("--show", type=int, help="print the program of this seed")
    asked = parser.parse_args()
    jax.config.update("jax_enable_x64", True)
    if asked.show is not None:
        d = draw(asked.show)
        print(d.arguments, d.words)
        print(jax.jit(lambda *a: run_steps(d, a, d.steps)[-1]).lower(*d.arguments).as_text())
        return
    seeds = range(asked.seed, asked.seed + asked.programs)
    if asked.pack:
        for first in seeds[:: asked.pack]:
            part = Found()
            fuzz(seeds[first - asked.seed :][: asked.pack], part)
            print(json.dumps(vars(part)), flush=True)
        return
    found = Found()
    fuzz_apart(seeds, found, asked.seconds)
    spent = resource.getrusage(resource.RUSAGE_CHILDREN)
    print(
        f"{found.programs} programs from seed {asked.seed}: {found.accepted} accepted, {found.programs - found.accepted} "
        f"refused, {len({s for s, *_ in found.wrong})} wrong, {len({s for s, *_ in found.broken})} broken, {len({s for s, *_ in found.failing})} fail in XLA, {len(found.died)} kill XLA, {spent.ru_utime + spent.ru_stime:.0f} s of processor"
    )
    print("operators read:", ", ".join(f"{n} {found.operators[n]}" for n in handlers.HANDLERS))
    for seed, told in found.failing:
        print(f"  XLA fails {seed}: {told}")
    for seed, told in found.died:
        print(f"  XLA dies {seed}: {told}")
    seen: Counter[int] = Counter()
    for what, rows in (("wrong", found.wrong), ("broken", found.broken)):
        for seed, words, told in rows:
            seen[seed] += 1
            if seen[seed] == 1:
                print(f"  {what} {seed}: {words}: {told}")


if __name__ == "__main__":
    main()
