"""The 8192-cubed matrix product of the thesis' figure 8.2 on 1 to 128 ranks: bytes and steps per rank beside the least;
executed scaled down.

    python tests/benchmarks/matmul_scaling.py [--size 8192] [--executed 256]

The schedules are the figure's (m, n, k split in turn).  Columns, per rank, float32:
    received     bytes that a rank receives, most over the ranks;      least     what must be received under this
                 schedule, shared out evenly
    calls        collectives that a rank calls;  steps of a ring: 2 (k - 1) messages in an all-reduce over k ranks
"""

from __future__ import annotations

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

import click
import numpy as np

from shardproof.backends.execution.reference import random_inputs
from shardproof.backends.execution.run import run_virtual
from shardproof.backends.lowering.collectives import count
from shardproof.backends.lowering.program import lower
from shardproof.backends.lowering.traffic import received_elements, traffic
from shardproof.formal.plans.schedules import propagate
from shardproof.formal.plans.strategy import Rule, Strategy
from shardproof.models.communication.choices import communications
from shardproof.models.machine.machine import load_machine
from shardproof.models.sources.numpy.trace import trace
from shardproof.models.sources.zoo import array_programs as programs

DEGREES = {
    1: (1, 1, 1),
    2: (2, 1, 1),
    4: (2, 2, 1),
    8: (2, 2, 2),
    16: (4, 2, 2),
    32: (4, 4, 2),
    64: (4, 4, 4),
    128: (8, 4, 4),
}


@click.command()
@click.option("--size", default=8192)
@click.option("--executed", default=256, help="Size that is executed.")
def main(size: int, executed: int) -> None:
    """Print the table."""
    print(
        f"{'ranks':>5} {'m n k':>6} {'received MB':>12} {'least MB':>9} {'calls':<14} {'ring steps':>10}   "
        f"executed {executed}: difference, bytes counted = bytes of the plan"
    )
    for ranks, degrees in DEGREES.items():
        splits = tuple((a, (("0", d),)) for a, d in zip("mnk", degrees, strict=True))
        line = ""
        for n in (size, executed):
            traced = trace(programs.matmul, "matmul", {"a": (n, n), "b": (n, n)})
            done = propagate(traced.graph, load_machine(f"localhost:{ranks}"), Strategy((Rule("matmul", splits),)))
            program = lower(traced.graph, (ranks,), done.choices)
            if n == size:
                entries = traffic(traced.graph, (ranks,), done.choices)
                most = (
                    max(
                        (max(received_elements(m)) for m in communications(traced.graph, (ranks,), done.choices)),
                        default=0,
                    )
                    * 4
                    / 1e6
                )
                least = sum(t.bound for t in entries) / ranks * 4 / 1e6
                calls = ", ".join(f"{k} {name}" for name, k in count(program).items()) or "none"
                line = (
                    f"{ranks:>5} {' '.join(map(str, degrees)):>6} {most:>12.3f} {least:>9.3f} {calls:<14} "
                    f"{2 * (degrees[2] - 1):>10}"
                )
            if n == executed:
                values = random_inputs(traced.graph, 0)
                result = run_virtual(program, values)
                worst = float(np.abs(result.outputs["matmul"] - values["a"] @ values["b"]).max())
                line += f"   {worst:.1e}, {all(t.fits and t.counted == t.priced for t in result.traffic)}"
        print(line)


if __name__ == "__main__":
    main()
