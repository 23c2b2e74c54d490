"""The plan against data parallel, Megatron and context parallel for BERT-Large: the table of the note.

    python tests/benchmarks/known_strategies.py [--small]        (from an environment where shardproof is installed)

Every strategy is completed by the solver where it says nothing, and the completion is proved best; the plan's own
optimality is proved too unless the row says otherwise.
"""

from __future__ import annotations

import sys
import time
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from strategies import KNOWN

from shardproof.formal.plans.report import amount, percent, table_text
from shardproof.formal.plans.strategy import apply
from shardproof.formal.selection.model.restrict import restrict
from shardproof.formal.selection.solve import solve
from shardproof.models.cost.selection import build
from shardproof.models.layout.placement import space
from shardproof.models.machine.machine import load_machine
from shardproof.models.sources import zoo

CASES = (("4x8", 8, "complete"), ("32x8", 256, "two-per-level"))


def main() -> None:
    rows = []
    for sizes, batch, where in CASES[: 1 if "--small" in sys.argv else None]:
        started = time.monotonic()
        planning = build(zoo.build("bert-large", batch=batch), load_machine(f"cloud-a100:{sizes}"), space(where))
        built = time.monotonic() - started
        best = solve(planning.problem, time_limit_s=300)
        case = f"{sizes}, batch {batch}, {where}"
        if best.cost is None or best.lower_bound is None:
            rows.append([case, "plan", best.status.value, "", "", f"{built + best.seconds:.1f}"])
            continue
        gap = percent(best.cost - best.lower_bound, best.cost)
        rows.append(
            [
                case,
                "plan",
                f"{best.status.value}, gap {gap}",
                amount(best.cost, planning.problem),
                "",
                f"{built + best.seconds:.1f}",
            ]
        )
        for name, make in KNOWN.items():
            small = restrict(planning.problem, apply(make(planning.graph, planning.machine), planning))
            answer = solve(small.inner, time_limit_s=120)
            more = "" if answer.cost is None else "+" + percent(answer.cost - best.cost, best.cost)
            rows.append(
                [
                    case,
                    name,
                    f"best completion: {answer.status.value}",
                    amount(answer.cost, planning.problem),
                    more,
                    f"{answer.seconds:.1f}",
                ]
            )
    print(
        table_text(
            "BERT-Large forward, 24 layers, sequence 512",
            ["case", "strategy", "proof", "time", "against the plan", "seconds"],
            rows,
            (3, 4, 5),
        )
    )


if __name__ == "__main__":
    main()
