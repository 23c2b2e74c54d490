"""Plans for a range of sizes in the conformance suite: the layer of `plans`, with 64 to 256 rows."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from functools import cache

from conformance.plans import LAYER, best, planning
from conformance.writing import Head, Suite, changed, container
from shardproof.models.program.graph import Graph
from shardproof.models.program.index import Affine, access
from shardproof.proofs.container.archive import identity, read_container
from shardproof.proofs.container.canonical import canonical

HEAD = "sizes.json"
SIZES = (64, 128, 256)


def layer(rows: int, columns: int = 16, shifted: bool = False) -> Graph:
    """The layer, of a number of rows; `shifted`: its last operator reads one row further on."""
    tensors = (replace(t, shape=(rows, *t.shape[1:])) if t.name != "w" else t for t in LAYER.tensors)
    tensors = (replace(t, shape=tuple(columns if n == 16 else n for n in t.shape)) for t in tensors)
    extents = {64: rows, 16: columns}
    operators = [
        replace(op, axes=tuple(replace(a, extent=extents.get(a.extent, a.extent)) for a in op.axes))
        for op in LAYER.operators
    ]
    if shifted:
        operators[-1] = replace(operators[-1], inputs=(access("y", Affine.axis("b").shift(1), "n"),))
    return replace(LAYER, tensors=tuple(tensors), operators=tuple(operators)).check()


@cache
def plan(graph: Graph, where: str = "complete") -> bytes:
    return container(best(planning(graph, None, where)))


def members(
    plans: Sequence[bytes], sizes: Sequence[int] = SIZES, step: int = 4, gap: int = 10_000, taken: Sequence[int] = ()
) -> dict[str, bytes]:
    head = {
        "format": "shardproof-sizes/1",
        "name": "N",
        "step": step,
        "sizes": list(sizes),
        "plans": [identity(read_container(file)) for file in plans],
        "taken": list(taken or range(len(sizes) - 1)),
        "gap": gap,
    }
    return {HEAD: canonical(head), **{f"plans/{i}.spz": file for i, file in enumerate(plans)}}


def suite() -> Suite:
    out = Suite("plans for a range of sizes")

    def add(name: str, verdict: str, sentence: str, parts: dict[str, bytes], fault: str = "") -> None:
        out.add(f"sizes-{name}", verdict, sentence, container(parts), fault=fault)

    plans = [plan(layer(n)) for n in SIZES]
    good = members(plans)
    add("layer", "proved", "EverySize    proved", good)
    add("above", "proved", "placements of plan 2", members(plans, taken=(1, 2)))
    narrow = [plan(layer(n), "one-per-level") for n in (64, 256)]
    add("ends", "proved", "between N = 64 and 256", members(narrow, (64, 256)))
    mixed = members([plans[0], plan(layer(128), "one-per-level")], SIZES[:2])
    add("space", "refuted", "for another machine or space than plan 0", mixed, "plans over two spaces")
    add("gap", "undecided", "is shown, not", members(plans, gap=0), "a gap that is not shown")
    in_twos = members(plans[:2], SIZES[:2], step=2)
    add("step", "undecided", "blocks are not of one length", in_twos, "sizes at which sums have unequal parts")
    shifted = members([plan(layer(n, shifted=True)) for n in SIZES[:2]], SIZES[:2])
    add("window", "undecided", "in another way than along one axis", shifted, "an operator reads the next row")
    uneven = members([plan(layer(n), "one-per-level,uneven") for n in SIZES[:2]], SIZES[:2])
    add("uneven", "undecided", "depend on the size", uneven, "a space with unequal blocks")
    other = [plans[0], plan(layer(128, 32)), plans[2]]
    add("program", "refuted", "plan 1 is not of the program of N = 128", members(other), "another program between")
    ends = [plans[0], plan(layer(192))]
    add("proportion", "refuted", "neither equal nor in proportion", members(ends, (64, 256)), "another size at the end")

    def wrong(name: str, sentence: str, parts: dict[str, bytes], fault: str) -> None:
        add(name, "malformed", sentence, parts, fault)

    pair = members(plans[:2], SIZES[:2])

    def with_head(**fields: object) -> dict[str, bytes]:
        return changed(pair, HEAD, lambda head: head.update(fields))

    def swap(head: Head) -> None:
        head["plans"].reverse()

    wrong("swapped", "is another one than the file says", changed(pair, HEAD, swap), "identities in another order")
    wrong("descending", "ascending", with_head(sizes=[128, 64]), "sizes in another order")
    wrong("odd", "must be multiples of", with_head(step=128), "a size that is no multiple of the step")
    far = changed(good, HEAD, lambda head: head.update(taken=[0, 0]))
    wrong("taken", "must name one of the two plans", far, "placements of a plan that is no end")
    wrong("later", "this version reads", with_head(format="shardproof-sizes/9"), "a later format")
    one = {HEAD: members(plans[:1], SIZES[:1], taken=[0])[HEAD], "plans/0.spz": plans[0]}
    wrong("one", "two sizes or more", changed(one, HEAD, lambda head: head.update(taken=[])), "one size alone")
    return out
