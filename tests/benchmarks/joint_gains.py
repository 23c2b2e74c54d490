"""What rules gain: plans without and with `--joint` of Unity's seven models and of twenty PyTorch modules.

    python tests/benchmarks/joint_gains.py [--only WORD] [--work 4] [--again] [--page]

runs the rows that are not there yet (--again: also those of other code than this), and writes all as a page into
`results/joint-gains.md`.  Rows are appended to `results/joint-gains.jsonl`; the last one of a model counts.

    machine     two devices of cloud-a100, space `complete`; the seven models forward and with a training step, the
                modules (`tests/torch_models/twenty.py`) forward
    plain       the best plan of the graph as it is; joint: of all equal programs, by the rules that are built in and
                the libraries that come along; both by the Python way in, under the same limit of steps of work
                (--work: millions, about seconds), so that a busy machine gives the same page
    gain        what the plain plan costs more, in hundredths of the joint one
    rules       of the chosen program, with how many of its operators each stands behind
    check, run  the checker's verdict on the joint plan's file; whether two virtual ranks give what the user's graph
                gives in one process (the seven models: of small sizes)

The script ends with 1 where a joint plan costs more than the plain one, is not proved by the checker, or runs unequal.
"""

from __future__ import annotations

import argparse
import json
import time
from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from seven_models import MODELS, SMALL, code_of

import shardproof
from shardproof.formal.rewriting.joint.gains import rewritings
from shardproof.models.sources import zoo

RESULTS = Path(__file__).resolve().parent / "results"
ROWS, PAGE = RESULTS / "joint-gains.jsonl", RESULTS / "joint-gains.md"
MACHINE = "cloud-a100:1x2"
WORK = 4.0
Row = dict[str, Any]


@dataclass(frozen=True)
class Case:
    """`model` makes what is planned, with its example inputs; `small` what is run, None: the same."""

    model: Callable[[], tuple[object, object]]
    train: str | None = None
    small: Callable[[], tuple[object, object]] | None = None


def cases() -> Mapping[str, Case]:
    """All rows, by name."""
    found = dict[str, Case]()
    for m in MODELS:
        sizes = {**m.sizes, **({"layers": 4} if m.name == "bert-large" else {})}
        small = {**sizes, **SMALL.get(m.name, {}), **TINY.get(m.name, {})}
        for train in (None, m.optimizer):
            found[m.name + (f" + {train}" if train else "")] = Case(
                lambda m=m, sizes=sizes: (zoo.build(m.name, batch=2 * m.batch, **sizes), None),  # type: ignore[misc]
                train,
                lambda m=m, small=small: (zoo.build(NAMED.get(m.name, m.name), batch=8, **small), None),  # type: ignore[misc]
            )
    from tests.torch_models.twenty import TWENTY

    return found | {f"torch {name}": Case(make) for name, make in TWENTY.items()}


NAMED: Mapping[str, str] = {"bert-large": "bert-tiny"}
TINY: Mapping[str, Mapping[str, int | str]] = {
    "mlp-8192": {"width": 64},
    "candle-uno": {"width": 64},
    "dlrm": {"rows": 100},
    "xdl": {"rows": 100, "tables": 2},
    "resnext50": {"size": 32, "blocks": "1-1-1-1", "stem": 8, "groups": 4, "classes": 8},
    "inception-v3": {"size": 75, "width": 2, "classes": 8},
}
"""What is run instead: names and sizes."""


def measured(case: Case, work: float) -> Row:
    """One row: seconds are of the processor."""
    row: Row = {}
    model, inputs = case.model()
    limit = {"train": case.train, "work_limit": int(work * 1e6), "compare": False}
    plans = {}
    for way in ("plain", "joint"):
        began = time.process_time()
        plans[way] = found = shardproof.plan(model, MACHINE, inputs=inputs, joint=way == "joint", **limit)  # type: ignore[arg-type]
        row[f"{way} s"] = round(time.process_time() - began, 1)
        row[way] = float(found.cost_s)
        row[f"{way} gap"] = float(1 - (found.lower_bound_s or 0) / found.cost_s)
    plain, joint = plans["plain"], plans["joint"]
    row["worse"] = joint.cost_s > plain.cost_s
    row["operators"] = len(plain.graph.operators)
    row["rules"], row["check"] = rules_of_plan(joint), joint.opened.published.verdict.value
    if case.small is not None:
        model, inputs = case.small()
        joint = shardproof.plan(model, MACHINE, inputs=inputs, joint=True, **limit)  # type: ignore[arg-type]
        row["rules run"] = rules_of_plan(joint)
    ran = joint.run()
    row["run"], row["difference"] = ran.equal, float(ran.difference)
    return row


def rules_of_plan(found: shardproof.Plan) -> dict[str, int]:
    """How many operators of the chosen program each rule stands behind."""
    bundle = found.bundle
    if bundle.joint is None:
        return {}
    libraries = set(bundle.joint.derivation.rules_name.split("+")[:1])
    return dict(
        Counter(
            rule if library[:12] in libraries else f"{rule} ({library[:6]})"
            for alike in rewritings(bundle.joint, bundle)
            for one in alike
            for rule, library in one.rules
        )
    )


def fault(row: Row) -> str:
    """What is wrong with a row, in words; nothing where all is as it must be."""
    if "error" in row:
        return str(row["error"])
    wrong = ["costs more than without rules"] if row["worse"] else []
    wrong += [] if row["check"] == "proved" else [f"the checker says {row['check']}"]
    wrong += [] if row["run"] else [f"runs unequal ({row['difference']:.1e})"]
    return ", ".join(wrong)


def gain(row: Row) -> float:
    """What the plain plan costs more."""
    return float(row["plain"] / row["joint"] - 1)


def page(found: Mapping[str, Row], code: str) -> str:
    """All rows as Markdown."""
    out = [
        HEAD,
        "| model | operators | as it is, us | jointly, us | gain | open | operators rewritten, by rule | s, as it is | s, jointly |",
        "|---|---:|---:|---:|---:|---:|---|---:|---:|",
    ]
    fine = [r for r in found.values() if not fault(r)]
    for r in fine:
        rules = ", ".join(f"{n} {rule}" for rule, n in sorted(r["rules"].items(), key=lambda x: (-x[1], x[0])))
        out.append(
            f"| {r['model']} | {r['operators']} | {1e6 * r['plain']:.3f} | {1e6 * r['joint']:.3f} | {gain(r):.2%} "
            f"| {open_gaps(r)} | {rules or 'none'} | {r['plain s']} | {r['joint s']} |"
        )
    wrong = [f"{r['model']}: {fault(r)}" for r in found.values() if fault(r)]
    missing = [name for name in cases() if name not in found]
    used = Counter(rule for r in fine for rule in r["rules"])
    out += [
        "",
        (
            f"{len(fine)} models, all joint plans proved by the checker, run and equal, none dearer than as it is; "
            f"{sum(gain(r) > 0 for r in fine)} of them gain."
        ),
        "Rules, and in how many models they stand behind an operator of the chosen program: "
        + ", ".join(f"{rule} {n}" for rule, n in sorted(used.items(), key=lambda x: (-x[1], x[0])))
        + ".",
        (
            f"Wrong: {'; '.join(wrong) or 'nothing'}. Not run: {', '.join(missing) or 'nothing'}. "
            f"Run by other code than that of this page: {sum(r['code'] != code for r in found.values())} of {len(found)} rows."
        ),
    ]
    return "\n".join([*out, ""])


def open_gaps(row: Row) -> str:
    """How far the joint plan, and the plain one, may be from the best."""
    open_ = [(way, row[f"{way} gap"]) for way in ("joint", "plain") if row[f"{way} gap"] > 0]
    return ", ".join(f"{'jointly' if way == 'joint' else 'as it is'} {share:.2%}" for way, share in open_) or "proved"


HEAD = f"""# What rules gain, on models

`python tests/benchmarks/joint_gains.py --page`: `plan` without and with `--joint` on {MACHINE}, space `complete`, {WORK:g} million steps of work each; `s`: seconds of the processor, check included.
`gain`: what the plan of the graph as it is costs more.  `open`: where the limit of work ended a search, the share of the cost between plan and bound.  Rules of libraries have the first letters of their library's identity.
The seven models of Unity have its sizes (the batch of two devices, BERT-Large with 4 layers) and are run with small ones; modules have few layers (`tests/torch_models/twenty.py`).
"""


def main() -> int:
    words = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    words.add_argument("--only", default="")
    words.add_argument("--work", type=float, default=WORK)
    words.add_argument("--rows", type=Path, default=ROWS)
    words.add_argument("--again", action="store_true", help="rows of other code are run again")
    words.add_argument("--page", action="store_true", help="write the page")
    asked = words.parse_args()
    code = code_of()
    there = {name for name, r in rows(asked.rows).items() if not asked.again or r.get("code") == code}
    for name, case in cases().items():
        if asked.only in name and name not in there:
            row = {"model": name, "code": code} | attempt(case, asked.work)
            with asked.rows.open("a") as f:
                f.write(json.dumps(row) + "\n")
            print(json.dumps(row), flush=True)
    found = rows(asked.rows)
    if asked.page:
        PAGE.write_text(page({name: found[name] for name in cases() if name in found}, code))
    return int(any(map(fault, found.values())))


def attempt(case: Case, work: float) -> Row:
    """The row, or what went wrong: the page says it, and the other rows are run."""
    try:
        return measured(case, work)
    except ValueError as error:
        return {"error": repr(error)[:300]}


def rows(path: Path) -> dict[str, Row]:
    """What was measured last of every model."""
    return {r["model"]: r for r in map(json.loads, path.read_text().splitlines())} if path.exists() else {}


if __name__ == "__main__":
    raise SystemExit(main())
