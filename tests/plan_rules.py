"""The library of rules that joint plans use by default: what it says, for tensors of one to four axes, and how it is made.

`python tests/plan_rules.py` proves the rules and writes `proofs/rewrites/library/plans.spz`; `tests/test_joint_library.py` fails
while the file says something else.  A rule stands here if plans can use it (`formal.rewriting.joint.rules.usable.usable`), none that is
built in says it, and its right side can take less than its left.
"""

from __future__ import annotations

from collections.abc import Iterator

from shardproof.formal.rewriting.prove import judge
from shardproof.models.rewrites.rule import Node, Pattern, Substitution, node
from shardproof.proofs.rewrites.library import Library, write_library
from shardproof.proofs.rewrites.plain import DEFAULT

RANKS = (1, 2, 3, 4)
SWAPS = {2: ((1, 0),), 3: ((0, 2, 1), (1, 0, 2), (2, 1, 0)), 4: ((0, 1, 3, 2), (0, 2, 1, 3))}
"""Permutations that undo themselves."""


def rule(
    name: str, ranks: tuple[int, ...], left: tuple[Node, ...], right: tuple[Node, ...], out: int | None = None
) -> Substitution:
    """A rule of one result, the last operator of either side; `out`: a pattern input that the right side is."""
    inputs = tuple(Pattern(n, r) for n, r in zip("xyzw", ranks, strict=False))
    return Substitution(name, inputs, left, right, ((len(left) - 1, len(right) - 1 if out is None else out),)).check()


def rules() -> Iterator[Substitution]:
    """All of them."""
    for r in RANKS:
        both, three = (r, r), (r, r, r)
        yield rule(
            f"common-factor[rank{r}]",
            three,
            (node("mul", -1, -2), node("mul", -1, -3), node("add", 0, 1)),
            (node("add", -2, -3), node("mul", -1, 0)),
        )
        yield rule(
            f"common-scale[rank{r}]",
            (r, r, 0),
            (node("scale", -1, -3), node("scale", -2, -3), node("add", 0, 1)),
            (node("add", -1, -2), node("scale", 0, -3)),
        )
        yield rule(
            f"scale-twice[rank{r}]",
            (r, 0, 0),
            (node("scale", -1, -2), node("scale", 0, -3)),
            (node("mul", -2, -3), node("scale", -1, 0)),
        )
        for a in range(r):
            yield rule(
                f"sum-of-terms[rank{r},axis{a}]",
                both,
                (node("add", -1, -2), node("reduce_sum", 0, axis=a)),
                (node("reduce_sum", -1, axis=a), node("reduce_sum", -2, axis=a), node("add", 0, 1)),
            )
            yield rule(
                f"sum-of-scaled[rank{r},axis{a}]",
                (r, 0),
                (node("scale", -1, -2), node("reduce_sum", 0, axis=a)),
                (node("reduce_sum", -1, axis=a), node("scale", 0, -2)),
            )
            for which in (0, 1):
                part = node(f"split{which}", 0, axis=a)
                yield rule(
                    f"part-of-both[rank{r},axis{a},{which}]",
                    both,
                    (node("concat", -1, -2, axis=a), part),
                    (),
                    -1 - which,
                )
        for perm in SWAPS.get(r, ()):
            yield from turned(r, perm)
    yield from products()


def turned(r: int, perm: tuple[int, ...]) -> Iterator[Substitution]:
    """Axes exchanged: twice, before sums and products of elements, before sums over an axis."""
    text = f"rank{r},{''.join(map(str, perm))}"
    yield rule(
        f"exchange-twice[{text}]", (r,), (node("transpose", -1, perm=perm), node("transpose", 0, perm=perm)), (), -1
    )
    for word in ("add", "mul"):
        yield rule(
            f"{word}-exchanged[{text}]",
            (r, r),
            (node("transpose", -1, perm=perm), node("transpose", -2, perm=perm), node(word, 0, 1)),
            (node(word, -1, -2), node("transpose", 0, perm=perm)),
        )
    for a in range(r):
        if sorted(kept := [p for p in perm if p != perm[a]]) == kept:
            yield rule(
                f"sum-of-exchanged[{text},axis{a}]",
                (r,),
                (node("transpose", -1, perm=perm), node("reduce_sum", 0, axis=a)),
                (node("reduce_sum", -1, axis=perm[a]),),
            )


def products() -> Iterator[Substitution]:
    """Products of matrices, and of many of them."""
    for word, r, rows, columns in (("matmul", 2, 0, 1), ("batch_matmul", 3, 1, 2)):
        perm = SWAPS[r][0]

        def t(w: int, perm: tuple[int, ...] = perm) -> Node:
            return node("transpose", w, perm=perm)

        yield rule(f"{word}-exchanged", (r, r), (t(-2), t(-1), node(word, 0, 1)), (node(word, -1, -2), t(0)))
        yield rule(f"{word}-exchanged-back", (r, r), (t(-2), t(-1), node(word, 0, 1), t(2)), (node(word, -1, -2),))
        for name, left, out, right in (
            ("rows", (node(word, -1, -2), node(word, -3, -2)), (-1, -3), node(word, 0, -2)),
            ("columns", (node(word, -1, -2), node(word, -1, -3)), (-2, -3), node(word, -1, 0)),
        ):
            a = rows if name == "rows" else columns
            yield rule(
                f"{word}-beside[{name}]",
                (r, r, r),
                (*left, node("concat", 0, 1, axis=a)),
                (node("concat", *out, axis=a), right),
            )
        scaled = (
            (node("scale", -1, -3), node(word, 0, -2)),
            (node("scale", -2, -3), node(word, -1, 0)),
            (node(word, -1, -2), node("scale", 0, -3)),
        )
        for i, left in enumerate(scaled):
            for j, other in enumerate(scaled):
                if i != j:
                    yield rule(f"scaled-{word}[{'xyp'[i]} to {'xyp'[j]}]", (r, r, 0), left, other)


def library() -> Library:
    """The rules with their proofs."""
    return Library("rules of plans", tuple(judge(each) for each in rules()), origin="tests/plan_rules.py")


if __name__ == "__main__":
    write_library(DEFAULT, library())
