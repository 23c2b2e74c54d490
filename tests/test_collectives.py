"""The rules of the five collectives, against a second implementation by sets, on every reachable state up to 64
devices.

`models.collective_programs.collectives` stores states compactly; the oracle here keeps one Python set per device and
row, as the definition says.
"""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from shardproof.formal.collective_programs.graph import explore
from shardproof.models.collective_programs.collectives import (
    ALL,
    READINGS,
    Collective,
    CollectiveError,
    Reading,
    State,
    apply,
    final,
    initial,
    reading,
    refusal,
    split_rows,
)
from shardproof.models.collective_programs.parallelism import ReductionRequest, UnevenRequest
from shardproof.models.collective_programs.programs import (
    Form,
    ReductionSystem,
    Tree,
    fuse_all_reduces,
    label,
    patterns,
    words,
)

Explicit = list[list[frozenset[int]]]


def explicit(state: State, chunks: int) -> Explicit:
    out = []
    for s in state:
        rows = [frozenset[int]()] * chunks
        for mask, c in s:
            members = frozenset(q for q in range(c.bit_length()) if c >> q & 1)
            for i in range(chunks):
                if mask >> i & 1:
                    assert not rows[i]
                    rows[i] = members
        out.append(rows)
    return out


def oracle(
    state: Explicit, groups: tuple[tuple[int, ...], ...], kind: Collective, rules: Reading, master: bool
) -> Explicit | None:
    """The table of the note, literally."""
    out = [list(rows) for rows in state]
    k = range(len(state[0]))
    outside = set(range(len(state))) - {d for g in groups for d in g}
    if master and rules.guarded and any(any(state[d]) for d in outside):
        return None
    for g in groups:
        s = [state[d] for d in g]
        rows = [{i for i in k if x[i]} for x in s]
        union = [frozenset().union(*(x[i] for x in s)) for i in k]
        if kind in (Collective.ALL_REDUCE, Collective.REDUCE_SCATTER, Collective.REDUCE):
            if rules.skip_empty and not any(rows):
                continue
            if (
                not rows[0]
                or any(r != rows[0] for r in rows)
                or any(s[a][i] & s[b][i] for i in k for a in range(len(g)) for b in range(a))
            ):
                return None
            held = sorted(rows[0])
            if kind is Collective.REDUCE_SCATTER and len(held) % len(g):
                return None
            for j, d in enumerate(g):
                part = (
                    held[j * len(held) // len(g) : (j + 1) * len(held) // len(g)]
                    if kind is Collective.REDUCE_SCATTER
                    else held
                )
                part = [] if kind is Collective.REDUCE and j else part
                out[d] = [union[i] if i in part else frozenset() for i in k]
        elif kind is Collective.ALL_GATHER:
            if not all(rows) or sum(map(len, rows)) != len(set().union(*rows)):
                return None
            for d in g:
                out[d] = list(union)
        else:
            if not rows[0] or any(x[i] - s[0][i] for x in s for i in k) or all(x == s[0] for x in s[1:]):
                return None
            if rules.strict and any(x == s[0] for x in s[1:]):
                return None
            for d in g:
                out[d] = list(s[0])
    return out


@pytest.mark.parametrize("name", sorted(READINGS))
@pytest.mark.parametrize("sizes", [(4,), (2, 2), (2, 3), (3, 2), (2, 2, 2)])
def test_every_step_from_every_state(name: str, sizes: tuple[int, ...]) -> None:
    """All instructions, allowed or not, in all reachable states."""
    system = ReductionRequest(sizes, (sizes,), (0,), reading=name).system()
    graph = explore(system)
    tried = 0
    for state in graph.states[:120]:
        whole = explicit(state, system.chunks)
        for pattern in graph.forms:
            master = pattern.form is Form.MASTER
            for kind in ALL:
                got, want = (
                    apply(state, pattern.groups, kind, system.rules, master),
                    oracle(whole, pattern.groups, kind, system.rules, master),
                )
                assert (got is None) == (want is None)
                assert got is None or explicit(got, system.chunks) == want
                assert (refusal(state, pattern.groups, kind, system.rules, master) is None) == (got is not None)
                tried += 1
    assert tried >= len(graph.states[:120]) * 5


@pytest.mark.parametrize(
    "request_",
    [
        ReductionRequest((4, 16), ((4, 16),), (0,)),
        ReductionRequest((2, 4, 4), ((2, 4, 4),), (0,)),
        UnevenRequest((4, 2, 3)),
    ],
)
def test_compact_states_agree_with_explicit_ones_on_large_systems(request_: ReductionRequest | UnevenRequest) -> None:
    """Every edge of the graph, up to 64 devices."""
    system = request_.system()
    graph = explore(system)
    shown = [explicit(s, system.chunks) for s in graph.states[:80]]
    edges = 0
    for s, leaving in enumerate(graph.edges[:80]):
        for e in leaving:
            pattern = graph.forms[e.pattern]
            want = oracle(shown[s], pattern.groups, e.kind, system.rules, pattern.form is Form.MASTER)
            assert want == explicit(graph.states[e.target], system.chunks)
            edges += 1
    assert edges > 40


@given(st.integers(0, (1 << 12) - 1), st.integers(1, 6))
def test_rows_are_split_contiguously(rows: int, parts: int) -> None:
    listed = [i for i in range(12) if rows >> i & 1]
    got = split_rows(rows, parts)
    if len(listed) % parts:
        assert got is None
    elif listed:
        size = len(listed) // parts
        assert got == tuple(sum(1 << i for i in listed[j * size : (j + 1) * size]) for j in range(parts))


def test_no_step_leaves_the_goal() -> None:
    goal = final(4, 4)
    for pattern in patterns(Tree.regular((2, 2))):
        for kind in ALL:
            assert apply(goal, pattern.groups, kind) is None


def test_the_examples_of_the_paper_that_are_wrong() -> None:
    """Figure 4: ReduceScatter then AllReduce of different chunks; AllReduce twice over the same data."""
    scattered = apply(initial(4, 4), ((0, 1), (2, 3)), Collective.REDUCE_SCATTER)
    assert scattered is not None and "same rows" in str(refusal(scattered, ((0, 1),), Collective.ALL_REDUCE))
    reduced = apply(initial(4, 4), ((0, 2), (1, 3)), Collective.ALL_REDUCE)
    assert reduced is not None and "twice" in str(refusal(reduced, ((0, 2),), Collective.ALL_REDUCE))


def test_groups_of_table_2() -> None:
    """The paper's table of communication patterns over [(rack, 1), (server, 2), (CPU, 2), (GPU, 4)]; levels count
    from the root, 0.
    """
    tree = Tree.regular((1, 2, 2, 4))
    groups = {label: p.groups for p in patterns(tree) for label in [(p.slice, p.form, p.ancestor)]}
    four = tuple(tuple(range(4 * i, 4 * i + 4)) for i in range(4))
    assert groups[3, Form.INSIDE, None] == four
    assert groups[3, Form.PARALLEL, 2] == tuple(sorted((8 * s + j, 8 * s + 4 + j) for s in range(2) for j in range(4)))
    assert groups[3, Form.PARALLEL, 0] == tuple((j, 4 + j, 8 + j, 12 + j) for j in range(4))
    assert groups[3, Form.MASTER, 0] == ((0, 4, 8, 12),)
    assert groups[2, Form.INSIDE, None] == (tuple(range(8)), tuple(range(8, 16)))
    assert groups[2, Form.PARALLEL, 0] == tuple((j, 8 + j) for j in range(8))
    assert groups[0, Form.INSIDE, None] == (tuple(range(16)),)


def test_four_patterns_at_two_levels_and_their_letters() -> None:
    tree = Tree.regular((4, 16))
    assert [label(p, tree) for p in patterns(tree)] == ["A", "L", "P", "M"]
    first = reading("literal_first")
    assert [label(p, tree) for p in patterns(tree, first)] == ["A", "L", "P", "M", "F"]
    assert [len(patterns(Tree.regular(s), reading("paper_first_last"))) for s in ((2, 2, 2),)] == [11]


def test_adjacent_all_reduces_are_fused_only_where_that_is_the_same() -> None:
    system = ReductionSystem(Tree.regular((2, 2)), ((0, 1, 2, 3),), 4)
    by_words = {words(p, system.tree): p for p in explore(system).programs()}
    assert [
        len(fuse_all_reduces(system, by_words[w]))
        for w in ("AR.L AR.P", "AR.P AR.L", "RS.A AG.A", "AR.L AR.M B.A", "R.L B.L AR.P")
    ] == [1, 1, 2, 3, 3]
    steps = fuse_all_reduces(system, by_words["RS.L AG.L AR.M B.L"])
    assert [s.collective.short for s in steps] == ["RS", "AG", "AR", "B"]


def test_rows_moved_are_those_of_the_note() -> None:
    """[8 4] over 2x16, reduce axis 0: RS.L moves everything, AR.P a quarter, AG.L everything again (rows after)."""
    system = ReductionRequest((2, 16), ((2, 4), (1, 4)), (0,)).system()
    program = next(p for p in explore(system).programs() if words(p, system.tree) == "RS.L AR.P AG.L")
    _, steps = system.execute(program)
    assert [(set(s.rows), s.chunks, len(s.groups)) for s in steps] == [({8}, 8, 8), ({2}, 8, 16), ({8}, 8, 8)]


def test_errors_name_the_step_and_the_rule() -> None:
    system = ReductionRequest((2, 2), ((2, 2),), (0,)).system()
    good = next(p for p in explore(system).programs() if len(p) == 3)
    with pytest.raises(CollectiveError, match="step 1 .* does not apply to the group of positions"):
        system.execute((good[0], good[0]))
    with pytest.raises(CollectiveError, match="no such instruction"):
        master = next(p for p in patterns(system.tree) if p.form is Form.MASTER)
        system.groups(master.instruction(Collective.REDUCE))
    with pytest.raises(CollectiveError, match="unknown reading 'x'; choose one of"):
        reading("x")
