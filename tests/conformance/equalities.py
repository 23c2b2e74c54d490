"""Claims of equality of the conformance suite: a feed-forward layer on four ranks (`tests/equality_pairs.py`, captured
and kept), and what is changed in it.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

from conformance.writing import Head, Suite, changed, container
from shardproof.models.equality.pair import Pair
from shardproof.models.equality.program import Step
from shardproof.proofs.container.archive import read_container
from shardproof.proofs.equality.file import EQUALITY, decode_equality, encode_equality

KEPT = Path(__file__).parent.parent / "data" / "equality"


def kept(name: str) -> Pair:
    return decode_equality(read_container((KEPT / f"{name}.spz").read_bytes()))


def changed_step(pair: Pair, operator: str, change: Callable[[Step], Step], ranks: range) -> Pair:
    """The first step of an operator changed, on some ranks."""
    programs = list(pair.ranks)
    for r in ranks:
        k = next(i for i, s in enumerate(programs[r].steps) if s.operator == operator)
        steps = (*programs[r].steps[:k], change(programs[r].steps[k]), *programs[r].steps[k + 1 :])
        programs[r] = replace(programs[r], steps=steps)
    return replace(pair, ranks=tuple(programs))


def suite() -> Suite:
    out = Suite("equality of programs")
    good, rows, stages = (kept(name) for name in ("mlp_tp", "embedding_vp", "pipeline"))
    everywhere = range(len(good.ranks))

    def add(name: str, verdict: str, sentence: str, pair: Pair, fault: str = "") -> None:
        out.add(f"equality-{name}", verdict, sentence, container(encode_equality(pair)), fault=fault)

    def malformed(name: str, change: Callable[[Head], object], fault: str) -> None:
        out.add(
            f"equality-{name}",
            "malformed",
            "equality.json",
            container(changed(encode_equality(good), EQUALITY, change)),
            fault=fault,
        )

    def said(**words: object) -> Callable[[Step], Step]:
        return lambda s: replace(s, words=tuple({**dict(s.words), **words}.items()))  # type: ignore[arg-type]

    def without(pair: Pair, operator: str, rank: int) -> Pair:
        program = pair.ranks[rank]
        steps = tuple(s for s in program.steps if s.operator != operator)
        programs = (*pair.ranks[:rank], replace(program, steps=steps), *pair.ranks[rank + 1 :])
        return replace(pair, ranks=programs)

    add("ranks", "proved", "Equal", good)
    add("rows", "proved", "integers-not-negative", rows)
    add("stages", "proved", "Equal", stages)
    add(
        "mean",
        "undecided",
        "not seen",
        changed_step(good, "all_reduce", said(op="avg"), everywhere),
        "a mean for a sum",
    )
    add(
        "apart", "refuted", "different collectives", changed_step(good, "all_reduce", said(op="max"), range(1)), "an op"
    )
    add(
        "unknown",
        "undecided",
        "not known here",
        changed_step(good, "erf", lambda s: replace(s, operator="bessel"), everywhere),
        "an operator",
    )
    add("unmet", "refuted", "for ever", without(stages, "send", 0), "a message that nobody sends")
    other = changed_step(stages, "broadcast", lambda s: replace(s, reads=(0,)), range(1, 2))
    add("shapes", "refuted", "different shapes", other, "a tensor of another shape is sent")
    malformed("format", lambda h: h.update(format="shardproof-equality/0"), "format")
    malformed("order", lambda h: h["programs"][0]["steps"].reverse(), "steps in another order")
    malformed("unread", lambda h: h["given"][0].pop(), "a source that is not given")
    return out
