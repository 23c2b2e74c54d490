"""What do DTensor and JAX cost?  The ten models of `tests/torch_models/ten.py`, one step of Adam each on 2 x 2 devices,
planned over all placements and over those that each framework can say, all proved.

    python tests/benchmarks/vocabularies.py [--limit S] [--only NAME]

Each row: operators, seconds of a step of the free plan, per framework the least and most that the restriction costs
(equal where both plans are proved optimal), and the processor seconds.  Needs the extra [torch], transformers and
torchvision.  Not a test.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
import time
from fractions import Fraction
from pathlib import Path

import shardproof

TESTS = Path(__file__).resolve().parents[1]
VOCABULARIES = ("dtensor", "jax")


def price(free: shardproof.Plan, within: shardproof.Plan) -> str:
    """Least and most that the restriction costs, in percent of the free optimum."""
    bound, own_bound = free.lower_bound_s, within.lower_bound_s
    if bound is None or own_bound is None:
        return "unknown"
    least, most = max(Fraction(0), own_bound / free.cost_s - 1), within.cost_s / bound - 1
    words = [f"{float(100 * x):.4f} %" for x in (least, most)]
    return words[0] if least == most else f"{words[0]} to {words[1]}"


def main() -> None:
    """Command line."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--limit", type=float, default=300.0)
    parser.add_argument("--only", default="")
    given = parser.parse_args()
    sys.path[:0] = [str(TESTS), str(TESTS / "torch_models")]
    import ten
    import torch
    from export_cases import MACHINE

    print("| model | operators | free plan | DTensor | JAX | processor |\n|---|---:|---:|---:|---:|---:|")
    with tempfile.TemporaryDirectory() as folder:
        machine = Path(folder) / "machine.toml"
        machine.write_text(MACHINE.format(nodes=2, rate="0.2"))
        for factory in ten.TEN:
            if given.only not in factory.__name__:
                continue
            torch.manual_seed(0)
            module, inputs = factory()
            begun = time.process_time()
            plans = [
                shardproof.plan(
                    module, str(machine), inputs=inputs, train="adam", vocabulary=v, time_limit_s=given.limit
                )
                for v in (None, *VOCABULARIES)
            ]
            prices = " | ".join(price(plans[0], p) for p in plans[1:])
            seconds = time.process_time() - begun
            step = f"{float(plans[0].cost_s) * 1e3:.4g} ms ({plans[0].status})"
            name, count = factory.__name__, len(plans[0].graph.operators)
            print(f"| `{name}` | {count} | {step} | {prices} | {seconds:.0f} s |", flush=True)


if __name__ == "__main__":
    main()
