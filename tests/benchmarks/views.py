"""Do branches beside each other win?  Inference and training steps of models with parallel branches on the whole machine
and with views, both proved and checked.

    python tests/benchmarks/views.py [--only WORD] [--limit S] [--runs] [--page]

Every row plans twice, as `shardproof.plan(..)` and `shardproof.plan(.., views=True)`, over the same placements, in a
process of its own; times are by the machine model.  `wins`: the plan with submeshes costs less than what is proved of every
plan without; `whole`: the best plan with submeshes, proved, uses none.  --runs: plans that use views are executed on virtual
ranks in one process (those of less than `MOST_BYTES`) and compared with one process.  Rows are kept one by one in
results/views.json and not run again, unless --runs is given and a row was not executed; so it can be stopped and started
again.  --page writes results/views.md.  Not a test.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import time
from fractions import Fraction
from math import prod
from pathlib import Path

import shardproof
from shardproof.models.text import InputError

RESULTS = Path(__file__).parent / "results"
STORE, PAGE = RESULTS / "views.json", RESULTS / "views.md"

MOST_BYTES = 3 << 30
"""Of all tensors on all ranks in float64; larger ones are not executed."""

UNO = "candle-uno:batch={},tower=4,layers=2"
UNO_NARROW = "candle-uno:batch={},tower=4,layers=2,width=512"
DLRM = "dlrm:batch={},tables=8,rows=100000,width=64,bag={}"
SMALL = "dlrm:batch=4,tables=3,rows=100000,width=16,bag=300000,dense=16,bottom=64-16,top=64-1"
INCEPTION = "inception-v3:batch={}"
INFERENCE: tuple[tuple[str, str, str], ...] = (
    *((UNO.format(batch), "cloud-a100:2x4", "complete") for batch in (16, 256, 4096)),
    *((UNO_NARROW.format(batch), "cloud-a100:2x4", "complete") for batch in (16, 4096)),
    (UNO.format(16), "cloud-a100:1x5", "complete"),
    (UNO.format(16), "cloud-a100:1x5", "complete,uneven"),
    *((INCEPTION.format(1), f"cloud-a100:{sizes}", "complete") for sizes in ("1x2", "1x3", "1x5", "4x1")),
    *((INCEPTION.format(batch), "cloud-a100:1x4", "complete") for batch in (1, 2, 4)),
    (INCEPTION.format(4), "cloud-a100:1x3", "complete"),
    *((INCEPTION.format(batch), "cloud-a100:1x3", "complete,uneven") for batch in (1, 4)),
    *((DLRM.format(1024, 30), f"cloud-a100:{sizes}", "complete") for sizes in ("1x3", "1x5", "3x1", "1x4", "4x1", "4x2")),
    *((DLRM.format(1024, 30), f"cloud-a100:{sizes}", "complete,uneven") for sizes in ("1x3", "1x5")),
    (DLRM.format(1024, 31), "cloud-a100:1x3", "complete"),
    *((DLRM.format(batch, 30), "cloud-a100:1x3", "complete") for batch in (1, 64)),
    *((SMALL, "cloud-a100:1x3", space) for space in ("complete", "complete,uneven")),
)  # fmt: skip
"""Model, machine, space."""
STEPS: tuple[tuple[str, str, str], ...] = (
    *((UNO.format(batch), "cloud-a100:2x4", "complete") for batch in (16, 256, 4096)),
    (UNO_NARROW.format(16), "cloud-a100:2x4", "complete"),
    *((UNO.format(16), "cloud-a100:1x5", space) for space in ("complete", "complete,uneven")),
    (UNO_NARROW.format(16), "cloud-a100:1x5", "complete"),
    *((INCEPTION.format(1), f"cloud-a100:{sizes}", "complete") for sizes in ("1x2", "1x3")),
    (INCEPTION.format(1), "cloud-a100:1x3", "complete,uneven"),
    *((DLRM.format(1024, 30), f"cloud-a100:{sizes}", "complete") for sizes in ("1x3", "1x4")),
    (DLRM.format(1024, 30), "cloud-a100:1x3", "complete,uneven"),
    (DLRM.format(1024, 30).replace("100000", "10000"), "cloud-a100:1x3", "complete"),
)
"""The same of training steps with SGD."""
ROWS: tuple[tuple[str, str, str, str], ...] = (*((*row, "") for row in INFERENCE), *((*row, "sgd") for row in STEPS))

FIRST = """# Branches beside each other

`python tests/benchmarks/views.py --runs --page`.  Microseconds of one step by the machine model, inference or (`sgd`) training; every number is a cost that the checker recomputed,
`at least` a bound that it confirmed.  Whole machine and views have the same placements (`space`), `complete,uneven` with pieces of unequal size.  `on virtual ranks` is empty where nothing was executed.  [Views](../../../docs/views.md).
"""
COLUMNS = (
    "model", "step", "machine", "space", "whole machine", "at least", "with views", "at least", "whole / views", "winner",
    "operators on views", "on virtual ranks", "processor s",
)  # fmt: skip


def row(model: str, machine: str, space: str, train: str, limit: float, runs: bool) -> dict[str, object]:
    """One row, planned, checked and perhaps executed.  Costs in seconds."""
    out: dict[str, object] = {"model": model, "machine": machine, "space": space, "train": train}
    step = train or None
    start = time.process_time()
    plain = shardproof.plan(model, machine, space_name=space, time_limit_s=limit, threads=1, train=step)
    out |= {"whole": float(plain.cost_s), "whole_bound": _bound(plain.lower_bound_s)}
    try:
        made = shardproof.plan(model, machine, space_name=space, views=True, time_limit_s=limit, threads=1, train=step)
    except InputError as error:
        return out | {"refused": str(error), "cpu": time.process_time() - start}
    out |= {"views": float(made.cost_s), "views_bound": _bound(made.lower_bound_s)}
    on = [view for view in made.views.values() if view is not None]
    out |= {"wins": plain.lower_bound_s is not None and made.cost_s < plain.lower_bound_s}
    out |= {"proved_whole": made.lower_bound_s == made.cost_s and not on}
    out |= {"open": made.lower_bound_s != made.cost_s or plain.lower_bound_s != plain.cost_s}
    out |= {"operators_on_views": len(on), "views_used": len(set(on)), "operators": len(made.views)}
    out |= {"cpu": time.process_time() - start}
    held = sum(prod(x.shape) for x in made.certificate.graph.tensors) * 8 * plain.machine.devices
    out |= {"bytes": held}
    if runs and on and held <= MOST_BYTES:
        ran = made.run()
        out |= {"run": {"difference": ran.difference, "equal": ran.equal, "mismatched": len(ran.mismatched)}}
        out |= {"ranks": plain.machine.devices}
    return out


def unexecuted(found: dict[str, object]) -> bool:
    """Whether a row has a plan on views that fits and was not run."""
    return (
        bool(found.get("operators_on_views")) and "run" not in found and int(str(found.get("bytes", 0))) <= MOST_BYTES
    )


def _bound(bound: Fraction | None) -> float | None:
    return None if bound is None else float(bound)


def winner(found: dict[str, object]) -> str:
    """Who wins, by proof or not."""
    if "refused" in found:
        return f"no views: {found['refused']}"
    if found["wins"]:
        return "views"
    return "whole machine" if found["proved_whole"] else "not decided" if found["open"] else "equal"


def page(rows: list[dict[str, object]]) -> str:
    """The page: a table and what it says in words."""

    def us(value: object) -> str:
        return "" if value is None else f"{float(str(value)) * 1e6:.3f}"

    lines = ["| " + " | ".join(COLUMNS) + " |", "|---|---|---|---|---:|---:|---:|---:|---:|---|---:|---|---:|"]
    for r in rows:
        ran = r.get("run")
        said = ""
        if isinstance(ran, dict):
            wrong = "" if not ran["mismatched"] else f", {ran['mismatched']} movements not as priced"
            said = f"{r['ranks']}: {'equal' if ran['equal'] else 'DIFFERENT'}{wrong}"
        ratio = f"{float(str(r['whole'])) / float(str(r['views'])):.3f}" if r.get("views") else ""
        cells = (
            f"`{r['model']}`", r.get("train") or "inference", r["machine"], r["space"], us(r["whole"]), us(r["whole_bound"]), us(r.get("views")),
            us(r.get("views_bound")), ratio, winner(r), f"{r.get('operators_on_views', '')} of {r.get('operators', '')}",
            said, f"{float(str(r['cpu'])):.1f}",
        )  # fmt: skip
        lines.append("| " + " | ".join(map(str, cells)) + " |")
    counts = {word: sum(winner(r) == word for r in rows) for word in ("views", "whole machine", "equal", "not decided")}
    total = ", ".join(f"{word} {n}" for word, n in counts.items())
    return f"{FIRST}\n" + "\n".join(lines) + f"\n\nWinners of {len(rows)} rows: {total}.\n"


def main() -> None:
    """Plan what is missing, then say."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", default="", help="rows whose model, machine or space has this word")
    parser.add_argument("--limit", type=float, default=60.0, help="seconds of each plan")
    parser.add_argument("--runs", action="store_true", help="execute what uses views")
    parser.add_argument("--page", action="store_true", help="write results/views.md")
    parser.add_argument("--row", type=int, help="one row, as JSON")
    given = parser.parse_args()
    if given.row is not None:
        print(json.dumps(row(*ROWS[given.row], given.limit, given.runs)))
        return
    known = json.loads(STORE.read_text()) if STORE.exists() else []
    have = {(r["model"], r["machine"], r["space"], r.get("train", "")): r for r in known}
    for number, key in enumerate(ROWS):
        if given.only not in " ".join(key) or (key in have and not (given.runs and unexecuted(have[key]))):
            continue
        words = [sys.executable, __file__, "--row", str(number), "--limit", str(given.limit)]
        done = subprocess.run(
            [*words, *(["--runs"] if given.runs else [])], capture_output=True, text=True, check=False
        )
        if done.returncode:
            print(*key, "failed:", done.stderr.strip().splitlines()[-1:])
            continue
        have[key] = json.loads(done.stdout)
        STORE.write_text(json.dumps([have[k] for k in ROWS if k in have], indent=1) + "\n")
        print(*key, winner(have[key]), have[key].get("run", ""), f"{have[key]['cpu']:.1f} s", flush=True)
    text = page([have[k] for k in ROWS if k in have])
    print(text)
    if given.page:
        PAGE.write_text(text)


if __name__ == "__main__":
    main()
