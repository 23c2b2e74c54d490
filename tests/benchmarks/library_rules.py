"""Which rules of the libraries that come along fire on models, and what they gain in joint plans on two devices.

    python tests/benchmarks/library_rules.py [--only WORD] [--steps 8000000] [--again]
    python tests/benchmarks/library_rules.py --keep GENERATED.spz -o LIBRARY.spz

runs the models that are not there yet (--again: all), and writes all as a page into `results/library-rules.md`; --keep
writes those rules of a generated library that fire on some model.  A rule fires where its left side is found in the
e-graph, its preconditions hold with the sizes there, and its right side has a type, whether or not that pays; read
backwards it is the same rule.  It adds something where no other rule has added that before it.

    fires      rules of the libraries, each once
    groups     rules that fire where operators have more axes than they: heads and batches, broadcast rows, numbers

    steps      of libraries in the derivation: what is kept because a cheaper program needs it
    limit      steps of work and not seconds, so that a busy machine gives the same page; 8M are about 8 seconds; with
               0 nothing is planned, and the page is `results/rules-that-fire.md`
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
from dataclasses import replace
from fractions import Fraction
from importlib.util import find_spec
from itertools import permutations
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
from shardproof.models.rewrites.rule import Substitution
from shardproof.models.rewrites.terms import canonical_order, instantiate, term_of
from shardproof.models.sources import zoo
from shardproof.proofs.joint.books import Book, read_book
from shardproof.proofs.joint.derivation import Derivation, Step
from shardproof.proofs.rewrites.judgement import Proved
from shardproof.proofs.rewrites.library import read_library, write_library
from shardproof.proofs.rewrites.plain import BACKWARDS, DEFAULTS, plain_rules

ROOT = Path(__file__).resolve().parent
PAGE, FIRE_PAGE = ROOT / "results/library-rules.md", ROOT / "results/rules-that-fire.md"
"""The second one, of `--steps 0`, has what fires and no plans."""
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


def listened(rule: Rule, growing: list[Growing], fired: set[str]) -> Rule:
    """A rule that says which e-graph it is asked of, and which rules of its library fire."""

    def apply(g: Growing, op: Operator) -> Iterator[Addition]:
        growing[:] = [g]
        for addition in rule(g, op):
            fired.add(_name(addition))
            yield addition

    return apply


def fired_in(graph: Graph, books: Mapping[str, Book]) -> tuple[dict[str, set[str]], list[Growing], Derivation]:
    """The rules of each library that fire, the e-graph, and what is kept of it."""
    growing, fired = list[Growing](), {name: set[str]() for name in books}
    rules = {**SEARCHED, **{n: listened(rules_of(b), growing, fired[n]) for n, b in books.items()}}
    _, derivation = saturate(graph, rules, over=Clock(SATURATION_S).over)
    return fired, growing, derivation


def measured(graph: Graph, books: Mapping[str, Book], steps: int) -> dict[str, object]:
    """One model."""
    began = time.process_time()
    fired, growing, derivation = fired_in(graph, books)
    took = time.process_time() - began
    given = [s for g in growing for s in g.steps]
    adds = {name: {_name(s) for s in given if s.book == b.identity} for name, b in books.items()}
    where = load_machine(MACHINE), space("complete")
    costs, closed = [], True
    for some in () if not steps else (SEARCHED, {**SEARCHED, **{n: rules_of(b) for n, b in books.items()}}):
        found = plan_jointly(graph, *where, clock=Clock(work=steps), rules=some)
        costs.append(None if found.answer.cost is None else Fraction(found.answer.cost, found.planning.problem.scale))
        closed &= found.answer.gap() == 0
    without, with_rules = costs or (None, None)
    gain = None if without is None or with_rules is None else float(1 - with_rules / without)
    return {
        "operators": len(graph.operators),
        "fired": {name: sorted(rules) for name, rules in fired.items()},
        "adds": {name: sorted(rules) for name, rules in adds.items()},
        "groups": sorted({_name(s) for s in given if s.groups}),
        "steps": dict(sorted(Counter(s.rule for s in derivation.steps if s.book).items())),
        "seconds": round(took, 1),
        "without": None if without is None else float(without),
        "gain": gain,
        "closed": closed,
    }


def form(rule: Substitution) -> str:
    """A rule but for the names and the order of its pattern inputs, the order of operands of sums and products, and
    which side is which: two rules of one form are one.
    """
    (a, b), n = rule.outputs[0], len(rule.inputs)
    found = []
    for order in permutations(range(n)):
        sides = sorted(
            repr(canonical_order(instantiate(term_of(nodes, wire), order, {})))
            for nodes, wire in ((rule.left, a), (rule.right, b))
        )
        ranks = sorted((to, p.rank, p.fixed) for to, p in zip(order, rule.inputs, strict=True))
        found.append(f"{sides} {ranks}")
    return min(found)


def distinct(fired: Mapping[str, set[str]], books: Mapping[str, Book]) -> int:
    """Rules that fire, those of one form counted once."""
    return len({form(r) for name, book in books.items() for r in plain_rules(book.data) if r.name in fired[name]})


SUMS = frozenset({"add", "add_along", "subtract"})


def leads_nowhere(rule: Substitution) -> bool:
    """Whether a rule puts the terms of a sum in another order, and nothing else: there are more orders than all other
    programs together, and `add-many` has them as one operator.  Or makes operators of none that undo each other, such
    as two signs.
    """
    left, right = (Counter(n.operator for n in nodes) for nodes in (rule.left, rule.right))
    order = all(
        set(names) <= SUMS | {"take", "drop", "negate"} and sum(names[n] for n in SUMS) > 1 for names in (left, right)
    )
    more = [big - small for big, small in ((left, right), (right, left)) if small <= big]
    return order or any(sum(extra.values()) > 1 for extra in more)


def keep(books: Mapping[str, Book], generated: Path, to: Path, made: Mapping[str, Callable[[], Graph]]) -> None:
    """Write the rules of a generated library that fire on some model, and that no library that comes along has."""
    book, found, looked = read_book(generated.read_bytes()), set[str](), 0
    for name, make in made.items():
        try:
            fired, _, _ = fired_in(make(), {**books, "new": book})
        except (ImportError, ValueError) as error:
            print(name, "left out:", str(error)[:100], file=sys.stderr)
            continue
        found, looked = found | fired["new"], looked + 1
        print(name, len(fired["new"]), len(found), file=sys.stderr, flush=True)
    write_kept(books, generated, to, found, looked)


def write_kept(books: Mapping[str, Book], generated: Path, to: Path, found: set[str], looked: int) -> None:
    """Those of `found` that no library that comes along has, under names of their own."""
    library, _ = read_library(generated)
    known = {form(r) for b in books.values() for r in plain_rules(b.data)}
    kept = list[Proved]()
    for j in library.judgements:
        if isinstance(j, Proved) and j.rule.name in found and form(j.rule) not in known and not leads_nowhere(j.rule):
            known.add(form(j.rule))
            kept.append(j)
    named = tuple(replace(j, rule=replace(j.rule, name=f"m{k}")) for k, j in enumerate(kept))
    counts = {**dict(library.counts), "models looked at": looked, "kept: they fire there": len(kept)}
    title = f"{library.title}, that fire on models"
    write_library(to, replace(library, title=title, judgements=named, counts=tuple(sorted(counts.items()))))


def _name(step: Step | Addition) -> str:
    return step.rule.removesuffix(f" {BACKWARDS}")


def models() -> dict[str, Callable[[], Graph]]:
    """All that are measured."""
    made: dict[str, Callable[[], Graph]] = {
        n: lambda n=n, sizes=sizes: zoo.build(n, **sizes)  # type: ignore[misc]
        for n, sizes in ZOO.items()
    }
    return made | modules()


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


def page(rows: Mapping[str, Mapping[str, object]], books: Mapping[str, Book]) -> str:
    """All rows as Markdown."""
    names, added = ({name: set[str]() for name in books} for _ in range(2))
    lines = [
        "# Rules of the libraries that come along, on models",
        "",
        "`python tests/benchmarks/library_rules.py`: joint plans on "
        + MACHINE
        + ", seconds of one process for the e-graph.",
        "",
        "| model | operators | fire | add | by groups | steps kept | e-graph, s | without libraries, ms | gain | by |",
        "|---|---:|---:|---:|---:|---:|---:|---:|---:|---|",
    ]
    for name, row in sorted(rows.items()):
        fired, adds, steps, groups = row["fired"], row["adds"], row["steps"], row["groups"]
        assert isinstance(fired, dict) and isinstance(adds, dict) and isinstance(steps, dict)
        assert isinstance(groups, list)
        for book in fired:
            names[book].update(fired[book])
            added[book].update(adds[book])
        cost, gain = row["without"], row["gain"]
        assert isinstance(cost, float | None) and isinstance(gain, float | None)
        said = "" if gain is None else f"{gain:.2%}" + ("" if row["closed"] else " (not closed)")
        lines.append(
            f"| {name} | {row['operators']} | {sum(map(len, fired.values()))} | {sum(map(len, adds.values()))} | {len(groups)} | {sum(steps.values())} | {row['seconds']} "
            f"| {'' if cost is None else f'{1e3 * cost:.6f}'} | {said} | {', '.join(list(steps)[:6])} |"
        )
    return "\n".join([*lines, "", counted(names, added, books, len(rows))]) + "\n"


def fire_page(rows: Mapping[str, Mapping[str, object]], books: Mapping[str, Book]) -> str:
    """What fires, without plans."""
    names, added = ({name: set[str]() for name in books} for _ in range(2))
    lines = [
        "# Rules of the libraries that come along that fire on models",
        "",
        (
            "`python tests/benchmarks/library_rules.py --steps 0`: a rule fires where its left side is found in the e-graph "
            "of a model, its preconditions hold with the sizes there and its right side has a type; it adds where no other "
            f"rule has added that before it. At most {SATURATION_S:.0f} s a model; processor seconds of one process."
        ),
        "",
        f"| model | operators | {' | '.join(books)} | add | by groups | s |",
        f"|---|---:|{'---:|' * len(books)}---:|---:|---:|",
    ]
    for name, row in sorted(rows.items()):
        fired, adds, groups = row["fired"], row["adds"], row["groups"]
        assert isinstance(fired, dict) and isinstance(adds, dict) and isinstance(groups, list)
        for book in fired:
            names[book].update(fired[book])
            added[book].update(adds[book])
        many = " | ".join(str(len(fired[book])) for book in books)
        lines.append(
            f"| {name} | {row['operators']} | {many} | {sum(map(len, adds.values()))} | {len(groups)} "
            f"| {row['seconds']} |"
        )
    return "\n".join([*lines, "", counted(names, added, books, len(rows))]) + "\n"


def counted(
    names: Mapping[str, set[str]], added: Mapping[str, set[str]], books: Mapping[str, Book], models: int
) -> str:
    """How many rules fire, and add."""
    total = sum(len(plain_rules(b.data)) for b in books.values())
    return (
        f"{distinct(names, books)} of {total} rules fire on some of {models} models, those that are equal but for names "
        "counted once: "
        + ", ".join(f"{len(n)} of {name}.spz" for name, n in names.items())
        + f"; {distinct(added, books)} of them add what no other added before: "
        + ", ".join(f"{len(n)} of {name}.spz" for name, n in added.items())
        + "."
    )


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--only", default="")
    parser.add_argument("--steps", type=int, default=8_000_000)
    parser.add_argument("--again", action="store_true")
    parser.add_argument("--keep", type=Path)
    parser.add_argument("-o", "--output", type=Path)
    given = parser.parse_args()
    books = {path.stem: read_book(path.read_bytes()) for path in DEFAULTS}
    if given.keep is not None:
        keep(books, given.keep, given.output, {n: m for n, m in models().items() if given.only in n})
        return 0
    page_at = PAGE if given.steps else FIRE_PAGE
    kept = page_at.with_suffix(".json")
    rows = json.loads(kept.read_text(encoding="utf-8")) if kept.exists() and not given.again else {}
    rows = {name: row for name, row in rows.items() if "adds" in row}
    for name, make in models().items():
        if given.only in name and name not in rows:
            try:
                graph = make()
            except (ImportError, ValueError) as error:
                print(name, "left out:", str(error)[:100], file=sys.stderr)
                continue
            rows[name] = measured(graph, books, given.steps)
            print(name, json.dumps({k: v for k, v in rows[name].items() if k != "fired"}), file=sys.stderr, flush=True)
            kept.write_text(json.dumps(rows, indent=1, sort_keys=True) + "\n", encoding="utf-8")
    page_at.write_text(text := (page if given.steps else fire_page)(rows, books), encoding="utf-8")
    print(text)
    return 0


if __name__ == "__main__":
    sys.exit(main())
