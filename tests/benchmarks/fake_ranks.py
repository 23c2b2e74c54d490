"""Ten models on eight pretended ranks: what a planned job sends, place by place, beside what its plan moves.

python tests/benchmarks/fake_ranks.py [--only NAME ..] [--keep FILE.json]    writes the table of docs/exports.md

Every place that is not equal has one of these names:

    loss        the plan's own loss (a step of ours is planned with one; the job here sums squares)
    results     what the module returns is gathered, because whole results are asked for
    biases      their gradients: DTensor sums them after the parts, the plan where a gathered one lies
    functions   a function of PyTorch asked for it: its rule in DTensor wants another layout, or it ran on whole tensors
    followed    moves that only the job makes, or makes otherwise, between modules: DTensor follows what they read
    gradients   gradients of weights and values that the job sums in another order or another layout than the plan
"""

from __future__ import annotations

import argparse
import json
import sys
import time
import warnings
from pathlib import Path

HERE = Path(__file__).resolve().parent
PAGE = HERE.parent.parent / "docs" / "exports.md"
BEGIN, END = "<!-- table: fake ranks -->", "<!-- end: fake ranks -->"
KINDS = ("loss", "results", "biases", "functions", "gradients", "followed")


def kind(place: str) -> str:
    """Which of the names a place has."""
    if place == "results":
        return "results"
    if "function" in place:
        return "functions"
    if place.startswith(("loss", "gradient of loss")):
        return "loss"
    if place.startswith("gradient of "):
        return "biases" if place.endswith(("bias", "bias_add")) else "gradients"
    return "followed"


def counted(name: str, machine: str) -> dict[str, object]:
    """One model, planned within DTensor's vocabulary and run for one pass."""
    import ten
    import torch

    import shardproof

    torch.manual_seed(0)
    began = time.process_time()
    module, inputs = getattr(ten, name)()
    plan = shardproof.plan(
        module, machine, inputs=inputs, train="adam", space_name="one-per-level,dtensor", work_limit=40_000_000
    )
    torch.manual_seed(0)
    module, inputs = getattr(ten, name)()
    found = shardproof.torch.verify(plan, module, inputs)
    rest: dict[str, list[int]] = {k: [0, 0, 0] for k in KINDS}
    for row in found.differences:
        entry = rest[kind(row.place)]
        entry[0], entry[1], entry[2] = entry[0] + 1, entry[1] + row.planned, entry[2] + row.received
    equal = [r for r in found.rows if r.verdict == "equal"]
    return {
        "model": name,
        "identity": plan.identity,
        "planned": found.planned_bytes,
        "received": found.received_bytes,
        "equal": [len(equal), sum(r.planned for r in equal)],
        "rest": rest,
        "whole": dict(found.whole),
        "rows": [[r.place, r.planned, r.received] for r in found.differences],
        "cpu_s": round(time.process_time() - began, 1),
    }


def table(rows: list[dict[str, object]]) -> str:
    """The table of the page: places by name, with the KiB that are planned > sent."""
    head = "| model | plan > job, KiB | equal | " + " | ".join(KINDS) + " | on whole tensors |"
    lines = [head, "|---|---:|---:|" + "---:|" * len(KINDS) + "---|"]
    for r in rows:
        rest = r["rest"]
        assert isinstance(rest, dict)
        equal = r["equal"]
        assert isinstance(equal, list)
        cells = [f"{n}: {_kib(a)} > {_kib(b)}" if n else "" for n, a, b in (rest[k] for k in KINDS)]
        whole = r["whole"]
        assert isinstance(whole, dict)
        said = ", ".join(f"{k} {n}" for k, n in sorted(whole.items()))
        pair = f"{_kib(r['planned'])} > {_kib(r['received'])}"
        lines.append(f"| {r['model']} | {pair} | {equal[0]}: {_kib(equal[1])} | {' | '.join(cells)} | {said} |")
    return "\n".join(lines)


def _kib(n: object) -> str:
    assert isinstance(n, int)
    return f"{n / 1024:.1f}" if n else "0"


def main() -> None:
    """Command line."""
    sys.path[:0] = [str(HERE.parent), str(HERE.parent / "torch_models")]
    import ten
    from export_cases import MACHINE

    words = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else "")
    words.add_argument("--only", nargs="*")
    words.add_argument("--keep", type=Path, default=HERE.parent.parent / "out" / "fake_ranks.json")
    given = words.parse_args()
    warnings.simplefilter("ignore")
    done: dict[str, dict[str, object]] = json.loads(given.keep.read_text()) if given.keep.exists() else {}
    given.keep.parent.mkdir(parents=True, exist_ok=True)
    machine = given.keep.with_suffix(".toml")
    machine.write_text(MACHINE.format(nodes=4, rate="0.2"))
    names = [f.__name__ for f in ten.TEN]
    for name in given.only or names:
        if name not in done:
            done[name] = counted(name, str(machine))
            given.keep.write_text(json.dumps(done, indent=1))
            print(table([done[name]]).splitlines()[-1], f"{done[name]['cpu_s']} s of processor", flush=True)
    if set(done) == set(names):
        text = PAGE.read_text(encoding="utf-8")
        before, after = text.split(BEGIN)[0], text.split(END)[1]
        PAGE.write_text(f"{before}{BEGIN}\n{table([done[n] for n in names])}\n{END}{after}", encoding="utf-8")


if __name__ == "__main__":
    main()
