"""Which rules of the libraries that come along fire on models, and what they gain in joint plans on two devices.

    python tests/benchmarks/library_rules.py [--only WORD] [--steps 8000000] [--again]

runs the models that are not there yet (--again: all), and writes all as a page into `results/library-rules.md`.  A rule
fires where its left side is found in the e-graph, its preconditions hold with the sizes there, and its right side is
added, whether or not that pays; read backwards it is the same rule, and what one rule added no other adds.

    groups     rules that fire where operators have more axes than they: heads and batches, broadcast rows, numbers

    steps      of libraries in the derivation: what is kept because a cheaper program needs it
    limit      steps of work and not seconds, so that a busy machine gives the same page; 8M are about 8 seconds
    gain       what the best plan without libraries' rules (but with those that are built in) costs more; -: neither
               closed
"""

from __future__ import annotations

import argparse
import json
import sys
import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from fractions import Fraction
from importlib.util import find_spec
from pathlib import Path

from shardproof.formal.rewriting.joint.rules.growing import Addition, Growing
from shardproof.formal.rewriting.joint.rules.library import rules_of
from shardproof.formal.rewriting.joint.saturate import SEARCHED, Rule, saturate
from shardproof.formal.rewriting.joint.solve import plan_jointly
from shardproof.formal.selection.model.clock import Clock
from shardproof.models.layout.placement import space
from shardproof.models.machine.machine import load_machine
from shardproof.models.program.graph import Graph
from shardproof.models.program.operators import Operator
from shardproof.models.sources import zoo
from shardproof.proofs.joint.books import Book, read_book
from shardproof.proofs.joint.derivation import Step
from shardproof.proofs.rewrites.plain import BACKWARDS, DEFAULTS

ROOT = Path(__file__).resolve().parent
KEPT, PAGE = ROOT / "results/library-rules.json", ROOT / "results/library-rules.md"
MACHINE = "cloud-a100:1x2"
SATURATION_S = 30.0
"""Seconds for the e-graph of one model; what was found by then is counted."""
ZOO: Mapping[str, Mapping[str, int]] = {
    "alexnet": {},
    "attention": {},
    "bert-tiny": {},
    "candle-uno": {},
    "conv-stack": {},
    "dlrm": {},
    "inception-v3": {},
    "llama": {"layers": 2},
    "mlp-8192": {},
    "mlp-unity": {},
    "moe": {},
    "resnet101": {},
    "resnext50": {},
    "rnnlm": {},
    "transformer": {"layers": 2},
    "transformer-layer": {},
    "vit": {"layers": 2},
    "xdl": {},
}


def listened(rule: Rule, growing: list[Growing]) -> Rule:
    """A rule that says which e-graph it is asked of."""

    def apply(g: Growing, op: Operator) -> Iterator[Addition]:
        growing[:] = [g]
        return rule(g, op)

    return apply


def measured(graph: Graph, books: list[Book], steps: int) -> dict[str, object]:
    """One model."""
    growing = list[Growing]()
    began = time.process_time()
    rules = {**SEARCHED, **{b.title: listened(rules_of(b), growing) for b in books}}
    _, derivation = saturate(graph, rules, over=Clock(SATURATION_S).over)
    took = time.process_time() - began
    given = [s for g in growing for s in g.steps]
    fired = {b.title: {_name(s) for s in given if s.book == b.identity} for b in books}
    where = load_machine(MACHINE), space("complete")
    costs, closed = [], True
    for some in (SEARCHED, {**SEARCHED, **{b.title: rules_of(b) for b in books}}):
        found = plan_jointly(graph, *where, clock=Clock(work=steps), rules=some)
        costs.append(None if found.answer.cost is None else Fraction(found.answer.cost, found.planning.problem.scale))
        closed &= found.answer.gap() == 0
    without, with_rules = costs
    gain = None if without is None or with_rules is None else float(1 - with_rules / without)
    return {
        "operators": len(graph.operators),
        "fired": {title: sorted(names) for title, names in fired.items()},
        "groups": sorted({_name(s) for s in given if s.groups}),
        "steps": dict(sorted(Counter(s.rule for s in derivation.steps if s.book).items())),
        "seconds": round(took, 1),
        "without": None if without is None else float(without),
        "gain": gain,
        "closed": closed,
    }


def _name(step: Step) -> str:
    return step.rule.removesuffix(f" {BACKWARDS}")


def modules() -> dict[str, Callable[[], Graph]]:
    """Small members of families of PyTorch modules; none where there is no PyTorch."""
    if find_spec("torch") is None or find_spec("transformers") is None:
        return {}
    sys.path.insert(0, str(ROOT.parent.parent))
    from shardproof.models.sources.objects import graph_of_object
    from tests.torch_models.families import FAMILIES

    def imported(make: Callable[[], tuple[object, object]]) -> Graph:
        module, inputs = make()
        return graph_of_object(module, inputs, None, None, lambda note: None, lambda original: None, False)

    named = {f"torch {family}/{n}": make for family, held in FAMILIES.items() for n, make in held.items()}
    return {name: lambda make=make: imported(make) for name, make in named.items()}  # type: ignore[misc]


def page(rows: Mapping[str, Mapping[str, object]], books: list[Book]) -> str:
    """All rows as Markdown."""
    names = {b.title: set[str]() for b in books}
    lines = [
        "# Rules of the libraries that come along, on models",
        "",
        "`python tests/benchmarks/library_rules.py`: joint plans on "
        + MACHINE
        + ", seconds of one process for the e-graph.",
        "",
        "| model | operators | rules that fire | by groups | steps kept | e-graph, s | without libraries, ms | gain | by |",
        "|---|---:|---:|---:|---:|---:|---:|---:|---|",
    ]
    for name, row in sorted(rows.items()):
        fired, steps, groups = row["fired"], row["steps"], row["groups"]
        assert isinstance(fired, dict) and isinstance(steps, dict) and isinstance(groups, list)
        for title in fired:
            names.setdefault(title, set()).update(fired[title])
        cost, gain = row["without"], row["gain"]
        assert isinstance(cost, float | None) and isinstance(gain, float | None)
        said = "" if gain is None else f"{gain:.2%}" + ("" if row["closed"] else " (not closed)")
        lines.append(
            f"| {name} | {row['operators']} | {sum(map(len, fired.values()))} | {len(groups)} | {sum(steps.values())} | {row['seconds']} "
            f"| {'' if cost is None else f'{1e3 * cost:.6f}'} | {said} | {', '.join(list(steps)[:6])} |"
        )
    total = sum(map(len, names.values()))
    lines += [
        "",
        f"{total} rules fire on some model: " + ", ".join(f"{len(n)} of {t!r}" for t, n in names.items()) + ".",
    ]
    return "\n".join(lines) + "\n"


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--only", default="")
    parser.add_argument("--steps", type=int, default=8_000_000)
    parser.add_argument("--again", action="store_true")
    given = parser.parse_args()
    books = [read_book(path.read_bytes()) for path in DEFAULTS]
    rows = json.loads(KEPT.read_text(encoding="utf-8")) if KEPT.exists() and not given.again else {}
    made: dict[str, Callable[[], Graph]] = {
        n: lambda n=n, sizes=sizes: zoo.build(n, **sizes)  # type: ignore[misc]
        for n, sizes in ZOO.items()
    }
    made |= modules()
    for name, make in made.items():
        if given.only in name and name not in rows:
            try:
                graph = make()
            except (ImportError, ValueError) as error:
                print(name, "left out:", str(error)[:100], file=sys.stderr)
                continue
            rows[name] = measured(graph, books, given.steps)
            print(name, json.dumps({k: v for k, v in rows[name].items() if k != "fired"}), file=sys.stderr, flush=True)
            KEPT.write_text(json.dumps(rows, indent=1, sort_keys=True) + "\n", encoding="utf-8")
    PAGE.write_text(text := page(rows, books), encoding="utf-8")
    print(text)
    return 0


if __name__ == "__main__":
    sys.exit(main())
