"""What the checker of equality knows of integer inputs: below what they lie where they are positions, and nothing else."""

from __future__ import annotations

from dataclasses import replace

import pytest

from shardproof.models.equality.pair import Pair, Part
from shardproof.models.equality.program import Described, RankProgram, Source, Step, Word
from shardproof.models.problem.claims import Verdict
from shardproof.proofs.container.canonical import ContainerError
from shardproof.verify.budget import Budget
from shardproof.verify.equality.certificate import check_pair
from shardproof.verify.equality.indices import Bound, index_bounds

F, I = "float32", "int64"
SOURCES = (Source(0, "w", "input"), Source(1, "ids", "input"))
WHOLE = ((0, Part("w", (((0, 0, 5),), ((0, 0, 3),)))), (1, Part("ids", (((0, 0, 4),),))))


def _step(operator: str, reads: tuple[int, ...], made: int, **words: Word) -> Step:
    return Step(operator, reads, (made,), tuple(words.items()))


def pair(
    single_reads: int = 4, rank_reads: int = 4, positions: int = 5, guarded: bool = False, wrap: bool = False
) -> Pair:
    """One device picks rows of w at the first ids; a rank multiplies them with how often its ids are a position."""
    cut = _step("slice", (1,), 2, dim=0, start=0, stop=single_reads, step=1)
    tensors = [Described((5, 3), F), Described((4,), I), Described((single_reads,), I), Described((single_reads, 3), F)]
    steps = [cut, _step("index", (0, 2), 3, wrap=wrap)]
    one = RankProgram(SOURCES, tuple(steps), (("output", 3),), tuple(tensors))
    if guarded:  # where(ids != -100, ids, 0), as losses do
        two = Described((single_reads,), "bool"), Described((), I), Described((single_reads,), I)
        more = (
            _step("ne", (2,), 3, number=-100),
            _step("full", (), 4, shape=(), value=0.0, dtype=I),
            _step("where", (3, 2, 4), 5),
            _step("index", (0, 5), 6, wrap=False),
        )
        one = RankProgram(SOURCES, (cut, *more), (("output", 6),), (*tensors[:3], *two, tensors[3]))
    steps += [
        _step("slice", (1,), 4, dim=0, start=4 - rank_reads, stop=4, step=1),
        _step("reshape", (4,), 5, shape=(rank_reads, 1)),
        _step("iota", (), 6, n=positions, start=0, step=1, dtype=I),
        _step("eq", (5, 6), 7),
        _step("cast", (7,), 8, dtype=F, was="bool"),
        _step("sum", (8,), 9, dims=(0, 1), keep=False),
        _step("div", (9,), 10, number=rank_reads),
        _step("mul", (3, 10), 11),
    ]
    tensors += [Described((rank_reads,), I), Described((rank_reads, 1), I), Described((positions,), I)]
    tensors += [Described((rank_reads, positions), "bool"), Described((rank_reads, positions), F)]
    tensors += [Described((), F), Described((), F), tensors[3]]
    rank = RankProgram(SOURCES, tuple(steps), (("output", 11),), tuple(tensors))
    part = Part("output", (((0, 0, single_reads),), ((0, 0, 3),)))
    return Pair(one, (rank,), (), (WHOLE,), ((("output", part),),), ("ids",), ((),))


def verdict(found: Pair) -> Verdict:
    return check_pair(found, Budget.with_large()).verdict


@pytest.mark.parametrize("guarded", [False, True])
def test_positions_lie_in_their_tensor(guarded: bool) -> None:
    assert index_bounds(pair(guarded=guarded), lambda n: None) == {"ids": Bound(5, None)}
    assert verdict(pair(guarded=guarded)) is Verdict.PROVED


def test_of_fewer_positions_nothing_is_known() -> None:
    assert verdict(pair(positions=4)) is Verdict.UNDECIDED


def test_what_may_be_negative_has_no_bound() -> None:
    assert verdict(replace(pair(wrap=True), floors=())) is Verdict.UNDECIDED
    assert verdict(replace(pair(), floors=())) is Verdict.PROVED  # where no position may be negative


def test_elements_that_the_one_device_does_not_pick_with_have_no_bound() -> None:
    """The rank counts the last of the ids, which is no position of the one device."""
    assert index_bounds(pair(single_reads=3), lambda n: None) == {}
    assert verdict(pair(single_reads=3)) is Verdict.UNDECIDED
    assert verdict(pair(single_reads=4, rank_reads=1)) is Verdict.PROVED


@pytest.mark.parametrize(("operator", "number"), [("ne", 2), ("eq", -100), ("lt", -1), ("gt", 0)])
def test_only_what_is_always_true_lets_ids_through(operator: str, number: int) -> None:
    found = pair(guarded=True)
    steps = tuple(
        replace(s, operator=operator, words=(("number", number),)) if s.operator == "ne" else s
        for s in found.single.steps
    )
    assert verdict(replace(found, single=replace(found.single, steps=steps))) is Verdict.UNDECIDED


def _otherwise(operator: str, number: int) -> Pair:
    """The one device takes ids where a comparison of them is not true."""
    found = pair(guarded=True)
    steps = tuple(
        replace(s, operator=operator, words=(("number", number),))
        if s.operator == "ne"
        else replace(s, reads=(3, 4, 2))
        if s.operator == "where"
        else s
        for s in found.single.steps
    )
    return replace(found, single=replace(found.single, steps=steps))


@pytest.mark.parametrize(("operator", "number"), [("lt", 0), ("lt", -3), ("le", -1), ("eq", -100)])
def test_what_is_never_true_lets_ids_through(operator: str, number: int) -> None:
    """As JAX writes positions: where(ids < 0, ids + n, ids)."""
    assert index_bounds(_otherwise(operator, number), lambda n: None) == {"ids": Bound(5, None)}
    assert verdict(_otherwise(operator, number)) is Verdict.PROVED


@pytest.mark.parametrize(("operator", "number"), [("lt", 1), ("le", 0), ("eq", 0), ("ne", -100), ("ge", 0), ("gt", -1)])
def test_what_may_be_true_lets_no_ids_through(operator: str, number: int) -> None:
    assert index_bounds(_otherwise(operator, number), lambda n: None) == {}
    assert verdict(_otherwise(operator, number)) is Verdict.UNDECIDED


def test_a_comparison_the_other_way_round_lets_no_ids_through() -> None:
    found = _otherwise("lt", 0)
    steps = tuple(
        replace(s, words=(*s.words, ("reverse", True))) if s.operator == "lt" else s for s in found.single.steps
    )
    assert verdict(replace(found, single=replace(found.single, steps=steps))) is Verdict.UNDECIDED


def _gathers(wrap: bool | None, wraps: bool | None, floors: tuple[str, ...]) -> Pair:
    def program(word: bool | None) -> RankProgram:
        words: dict[str, Word] = {"dim": 0} if word is None else {"dim": 0, "wrap": word}
        tensors = (Described((5,), F), Described((4,), I), Described((4,), F))
        return RankProgram(SOURCES, (_step("gather", (0, 1), 2, **words),), (("output", 2),), tensors)

    given = ((0, Part("w", (((0, 0, 5),),))), (1, Part("ids", (((0, 0, 4),),))))
    result = (("output", Part("output", (((0, 0, 4),),))),)
    return Pair(program(wrap), (program(wraps),), (), (given,), (result,), floors, ((),))


def test_negative_positions_count_from_the_end_only_where_a_step_says_so() -> None:
    assert verdict(_gathers(True, True, ())) is Verdict.PROVED
    assert verdict(_gathers(None, False, ())) is Verdict.PROVED
    assert verdict(_gathers(True, False, ())) is Verdict.UNDECIDED
    assert verdict(_gathers(True, False, ("ids",))) is Verdict.PROVED


def test_a_word_of_another_kind_is_refused() -> None:
    found = _gathers(True, True, ())
    step = replace(found.single.steps[0], words=(("dim", 0), ("wrap", 1)))
    with pytest.raises(ContainerError, match="wrap"):
        verdict(replace(found, single=replace(found.single, steps=(step,))))


def test_rows_that_are_marked_at_one_position_are_one_form() -> None:
    """[c = 0] x[c] is [c = 0] x[0], as where a row is replaced at a position that is masked; and no [c = 1] x[0]."""

    def program(marked: int, picked: int) -> RankProgram:
        tensors = (Described((2, 5), F), Described((5,), I), Described((5,), "bool"), Described((5,), F))
        steps = [
            _step("iota", (), 1, n=5, start=0, step=1, dtype=I),
            _step("eq", (1,), 2, number=marked),
            _step("cast", (2,), 3, dtype=F, was="bool"),
        ]
        source = 0
        if picked >= 0:
            steps += [
                _step("slice", (0,), 5, dim=1, start=picked, stop=picked + 1, step=1),
                _step("expand", (5,), 6, shape=(2, 5)),
            ]
            source = 6
        steps.append(_step("mul", (source, 3), 4))
        tensors = (*tensors, Described((2, 5), F), Described((2, 1), F), Described((2, 5), F))
        return RankProgram((Source(0, "x", "input"),), tuple(steps), (("output", 4),), tensors)

    whole = Part("x", (((0, 0, 2),), ((0, 0, 5),)))
    made = (("output", Part("output", whole.runs)),)
    for marked, picked in ((0, 0), (1, 0), (3, 3), (0, 1)):
        found = Pair(program(marked, -1), (program(marked, picked),), (), (((0, whole),),), (made,), (), ((),))
        assert (verdict(found) is Verdict.PROVED) == (marked == picked)


def _ignored(number: int, minus: int, guard: str = "ne") -> Pair:
    """The one device picks rows of w at labels that are not -100, else row 0; a rank multiplies them with the count of
    its labels that are positions, and with those that are `minus`, over how many there are.
    """
    found = pair(guarded=True)
    one = tuple(replace(s, words=(("number", number),)) if s.operator == guard else s for s in found.single.steps)
    rank, eq = found.ranks[0], next(s for s in found.ranks[0].steps if s.operator == "eq")
    total = next(s for s in rank.steps if s.operator == "sum")
    many = len(rank.tensors)
    more = (
        _step("eq", (5,), many, number=minus),
        _step("cast", (many,), many + 1, dtype=F, was="bool"),
        _step("sum", (many + 1,), many + 2, dims=(0, 1), keep=False),
        _step("add", (total.makes[0], many + 2), many + 3),
    )
    guarded = (
        _step("ne", (2,), many + 4, number=number),
        _step("full", (), many + 5, shape=(), value=0.0, dtype=I),
        _step("where", (many + 4, 2, many + 5), many + 6),
    )
    tensors = (
        *(Described((4, 1), "bool"), Described((4, 1), F), Described((), F), Described((), F)),
        *(Described((4,), "bool"), Described((), I), Described((4,), I)),
    )
    steps = list[Step]()
    for s in rank.steps:
        if s.operator == "index":
            steps += [*guarded, replace(s, reads=(0, many + 6))]
            continue
        steps.append(replace(s, reads=(many + 3,)) if s.operator == "div" else s)
        steps += more if s is total else ()
    assert eq in steps
    changed = replace(rank, steps=tuple(steps), tensors=(*rank.tensors, *tensors))
    return replace(found, single=replace(found.single, steps=one), ranks=(changed,), floors=())


def test_labels_are_positions_or_the_number_that_is_ignored() -> None:
    """Every label that is no position is -100, where the one device is defined: nothing else is known of it."""
    assert index_bounds(_ignored(-100, -100), lambda n: None) == {"ids": Bound(5, -100)}
    assert verdict(_ignored(-100, -100)) is Verdict.PROVED
    assert verdict(_ignored(-100, -1)) is Verdict.UNDECIDED
    assert verdict(_ignored(-100, 3)) is Verdict.UNDECIDED


def test_two_numbers_that_are_ignored_are_not_one() -> None:
    found = _ignored(-100, -100)
    more = replace(found.ranks[0], steps=found.ranks[0].steps)
    picks = found.single.steps
    many = len(found.single.tensors)
    again = (
        _step("ne", (2,), many, number=-7),
        _step("where", (many, 2, 4), many + 1),
        _step("index", (0, many + 1), many + 2, wrap=False),
    )
    tensors = (Described((4,), "bool"), Described((4,), I), Described((4, 3), F))
    one = replace(found.single, steps=(*picks, *again), tensors=(*found.single.tensors, *tensors))
    assert index_bounds(replace(found, single=one, ranks=(more,)), lambda n: None) == {}
