"""Small e-graphs for tests: random ones with circles, all of their extractions by enumeration, and changed certificates."""

from __future__ import annotations

import gzip
import random
from collections.abc import Iterator
from dataclasses import replace
from itertools import product
from pathlib import Path

from shardproof.models.egraphs.egraph import EGraph
from shardproof.models.egraphs.extraction_gym import from_extraction_gym
from shardproof.models.files.json_text import parse_json
from shardproof.proofs.egraphs.certificate import (
    ABSENT,
    Cut,
    Dual,
    Extraction,
    ExtractionCertificate,
    NoExtraction,
    Split,
)

DATA = Path(__file__).parent / "data" / "egraphs"


def gym(name: str) -> EGraph:
    """An e-graph of tests/data/egraphs."""
    return from_extraction_gym(
        parse_json(gzip.decompress((DATA / f"{name}.json.gz").read_bytes()), decimals=True), name
    )


def random_egraph(seed: int, *, signed: bool = False) -> EGraph:
    """At most eight classes and fifteen nodes; circles are frequent, and so are e-graphs without an extraction."""
    rnd = random.Random(seed)
    classes = rnd.randint(1, 8)
    owner = [*range(classes), *(rnd.randrange(classes) for _ in range(rnd.randint(0, 7)))]
    low = -3 if signed else 0
    leaves = rnd.choice((0.2, 0.4))
    children, cost = [], []
    for _ in owner:
        count = 0 if rnd.random() < leaves else rnd.randint(1, 3)
        children.append(tuple(sorted({rnd.randrange(classes) for _ in range(count)})))
        cost.append(rnd.randint(low, 6))
    roots = tuple(sorted({rnd.randrange(classes) for _ in range(rnd.randint(1, 2))}))
    names = tuple(f"c{i}" for i in range(classes))
    return EGraph(
        f"random {seed}", names, tuple(f"n{i}" for i in range(len(owner))), tuple(owner), tuple(children), tuple(cost), 1, roots, ()
    )  # fmt: skip


def extractions(graph: EGraph) -> dict[tuple[int, ...], int]:
    """Every extraction and its cost: all choices of a node per class, those with a circle left out."""
    found: dict[tuple[int, ...], int] = {}
    for choice in product(*graph.members):
        needed, stack = set(graph.roots), list(graph.roots)
        while stack:
            for d in graph.children[choice[stack.pop()]]:
                if d not in needed:
                    needed.add(d)
                    stack.append(d)
        done: set[int] = set()
        while ready := [c for c in needed - done if set(graph.children[choice[c]]) <= done]:
            done.update(ready)
        if done == needed:
            chosen = tuple(sorted(choice[c] for c in needed))
            found[chosen] = sum(graph.cost[n] for n in chosen)
    return found


def enumerated(graph: EGraph) -> int | None:
    """Least cost over all extractions; None if there is none."""
    return min(extractions(graph).values(), default=None)


def mutants(
    graph: EGraph, good: ExtractionCertificate, rnd: random.Random
) -> Iterator[tuple[str, ExtractionCertificate]]:
    """Certificates with one false thing in them, for ever; every one says more than `good` shows, or something else."""
    claim = good.claim
    assert isinstance(claim, Extraction)

    def claimed(**changes: object) -> ExtractionCertificate:
        return replace(good, claim=replace(claim, **changes))

    while True:
        if claim.chosen:
            n = rnd.choice(claim.chosen)
            others = [m for m in graph.members[graph.owner[n]] if m != n]
            if others:
                m = rnd.choice(others)
                changed = tuple(sorted({*claim.chosen} - {n} | {m}))
                yield "another node, same cost claimed", claimed(chosen=changed)
            yield "a class left out", claimed(chosen=tuple(c for c in claim.chosen if c != n))
        unused = [n for n in range(len(graph.nodes)) if n not in claim.chosen]
        if unused:
            yield "a node more", claimed(chosen=(*claim.chosen, rnd.choice(unused)))
        yield "a node that is not there", claimed(chosen=(*claim.chosen, len(graph.nodes)))
        yield "cheaper", claimed(cost=claim.cost - rnd.randint(1, 3), lower_bound=claim.cost - 3)
        yield "dearer", claimed(cost=claim.cost + 1)
        yield "the bound raised", claimed(lower_bound=claim.lower_bound + rnd.randint(1, 3))
        yield "the bound lowered, still called optimal", claimed(lower_bound=claim.lower_bound - 1)
        yield "called within a gap", claimed(optimal=False)
        yield "no extraction", replace(good, claim=NoExtraction())
        yield "no extraction, nothing else", ExtractionCertificate(good.egraph_sha256, NoExtraction())
        yield "another e-graph", replace(good, egraph_sha256="0" * 64)
        yield "no proof", replace(good, records=())
        node, other = (rnd.randrange(len(graph.nodes)) for _ in range(2))
        if graph.owner[node] != graph.owner[other]:
            yield "dominated by another class's", replace(good, dominated=(*good.dominated, (node, other)))
        yield "dominated by itself", replace(good, dominated=(*good.dominated, (node, node)))
        yield from _changed_records(graph, good, rnd)


def _changed_records(
    graph: EGraph, good: ExtractionCertificate, rnd: random.Random
) -> Iterator[tuple[str, ExtractionCertificate]]:
    k = rnd.randrange(len(good.records))
    record = good.records[k]

    def put(new: Dual | Split) -> ExtractionCertificate:
        return replace(good, records=(*good.records[:k], new, *good.records[k + 1 :]))

    if isinstance(record, Split):
        part = rnd.randrange(len(record.parts))
        kept = tuple(p if i != part else () for i, p in enumerate(record.parts))
        yield "split: a part left empty", put(replace(record, parts=kept))
        without = tuple(tuple(n for n in p if n != ABSENT) for p in record.parts)
        if without != record.parts:
            yield "split: without absence", put(replace(record, parts=without))
        return
    for name in ("children", "parents", "cuts"):
        rows = getattr(record, name)
        if rows:
            i = rnd.randrange(len(rows))
            yield f"{name}: negative", put(replace(record, **{name: (*rows[:i], (*rows[i][:-1], -1), *rows[i + 1 :])}))
            far = (len(graph.classes) + len(good.cuts), *rows[i][1:])
            yield f"{name}: not there", put(replace(record, **{name: (*rows[:i], far, *rows[i + 1 :])}))
    yield "denominator 0", put(replace(record, denominator=0))
    yield "denominator negative", put(replace(record, denominator=-1))
    if graph.roots:
        yield "a root with a parent row", put(replace(record, parents=(*record.parents, (graph.roots[0], 1))))
    if good.cuts and record.cuts:
        j = rnd.choice(record.cuts)[0]
        cut = good.cuts[j]
        outside = [c for c in range(len(graph.classes)) if c not in cut.classes]
        if outside:
            changed = replace(cut, top=rnd.choice(outside))
            yield "a top outside", replace(good, cuts=(*good.cuts[:j], changed, *good.cuts[j + 1 :]))
        twice = Cut(cut.top, (*cut.classes, cut.classes[-1]))
        yield "a class twice", replace(good, cuts=(*good.cuts[:j], twice, *good.cuts[j + 1 :]))
