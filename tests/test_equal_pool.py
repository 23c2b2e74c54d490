"""Verb `equal`, attacked: drawn tensors that are seen to be the same have the same numbers; steps that no run has are
refused; roots of collectives and positions of bags are what programs say.
"""

from __future__ import annotations

import random
from collections.abc import Mapping
from dataclasses import replace

import pytest
from equality_pool import Enough, Pool
from hostile_equalities import Drawn
from test_equal_mutants import PAIRS

from shardproof.models.equality.program import Described, RankProgram, Step, Word
from shardproof.models.equality.schedule import Stuck, meetings
from shardproof.models.problem.claims import Verdict
from shardproof.proofs.container.canonical import ContainerError
from shardproof.verify.budget import Budget
from shardproof.verify.equality.certificate import check_pair
from shardproof.verify.equality.conditions import Conditions
from shardproof.verify.equality.forms import Algebra
from shardproof.verify.equality.index import Undecided
from shardproof.verify.equality.steps import SIGNATURES, Malformed, require_step
from shardproof.verify.equality.terms import Form

OFTEN: Mapping[str, tuple[str, ...]] = {
    "all": (),
    "rows": ("order", "reshape", "permute"),
    "packed": ("cat", "permute", "reshape"),
    "whole": ("compare", "number", "cast", "not"),
    "conditions": ("compare", "compare", "not"),
    "picked": ("index", "iota", "where", "compare"),
}


def hunt(name: str, seeds: range) -> tuple[int, int, list[str]]:
    pairs, proved, wrong = 0, 0, list[str]()
    for seed in seeds:
        try:
            some, seen, found = Pool(seed, OFTEN[name]).compare()
        except Enough:
            continue
        pairs, proved, wrong = pairs + some, proved + seen, wrong + found
    return pairs, proved, wrong


@pytest.mark.parametrize("name", OFTEN)
def test_what_is_seen_to_be_the_same_has_the_same_numbers(name: str) -> None:
    pairs, proved, wrong = hunt(name, range(6))
    assert not wrong, wrong[:2]
    assert pairs > 200 and proved > 20


@pytest.mark.slow
@pytest.mark.parametrize("name", OFTEN)
def test_what_is_seen_to_be_the_same_has_the_same_numbers_in_many_pools(name: str) -> None:
    pairs, proved, wrong = hunt(name, range(1000, 1400))
    assert not wrong, wrong[:2]
    assert pairs > 5_000 and proved > 500


def _any_whole(self: Conditions, p: Form) -> bool:
    return any(factors for (_, factors), _ in p)


def _no_place(self: Algebra, index: object) -> Form:
    return self.number(1)


@pytest.mark.parametrize(
    ("broken", "name", "instead", "often", "seeds"),
    [
        (Conditions, "_whole", _any_whole, "conditions", range(20, 45)),
        (Algebra, "position", _no_place, "rows", range(56, 60)),
    ],
)
def test_a_checker_that_is_broken_is_found_out(
    broken: type, name: str, instead: object, often: str, seeds: range, monkeypatch: pytest.MonkeyPatch
) -> None:
    """[p > 0] of all numbers is taken for that of whole ones; digits of a row have no place."""
    monkeypatch.setattr(broken, name, instead)
    assert hunt(often, seeds)[2]


# ---- steps that no run has ----


def one(operator: str, shapes: tuple[tuple[int, ...], ...], kind: str = "float32", /, **words: Word) -> None:
    tensors = (*(Described(s, kind) for s in shapes), Described(shapes[0] if shapes else (), kind))
    step = Step(operator, tuple(range(len(shapes))), (len(shapes),), tuple(words.items()))
    require_step(RankProgram((), (step,), (), tensors), step)


X = ((2, 3),)


@pytest.mark.parametrize(
    ("operator", "shapes", "words", "reason"),
    [
        ("add", X * 2, {"alpha": 2.0}, "no word 'alpha'"),
        ("add", X * 3, {}, "3 operands"),
        ("add", X * 2, {"number": 2}, "2 operands"),
        ("add", X, {}, "1 operands"),
        ("exp", X, {"number": 2}, "no word"),
        ("sub", X, {"number": 2, "reverse": 1}, "says that reverse is 1"),
        ("matmul", X * 2, {"transposed": True}, "no word"),
        ("sort", X, {"dim": -1, "descending": False}, "says that dim is -1"),
        ("sort", X, {"dim": 2, "descending": False}, "says that dim is 2"),
        ("sort", X, {"dim": 0}, "says no descending"),
        ("topk", X, {"dim": 0, "k": -1, "largest": True}, "says that k is -1"),
        ("topk", X, {"dim": 0, "k": True, "largest": True}, "says that k is True"),
        ("cat", X * 2, {"dim": -1}, "says that dim is -1"),
        ("cat", (), {"dim": 0}, "0 operands"),
        ("permute", X, {"dims": (1, -2)}, "says that dims"),
        ("permute", X, {"dims": (0, 0)}, "says that dims"),
        ("sum", X, {"dims": (0, 0), "keep": False}, "says that dims"),
        ("sum", X, {"dims": (0,), "keep": 0}, "says that keep is 0"),
        ("reshape", X, {"shape": (-2, -3)}, "says that shape"),
        ("slice", X, {"dim": 0, "start": -1, "stop": 1, "step": 1}, "says that start is -1"),
        ("index", X * 2, {"wrap": "x"}, "says that wrap is x"),
        ("broadcast", X, {"ranks": (0, 1)}, "says no source"),
        ("full", (), {"shape": (), "value": 1.0, "dtype": "int32"}, "makes float32, and says int32"),
    ],
)
def test_a_step_that_no_run_has_is_refused(
    operator: str, shapes: tuple[tuple[int, ...], ...], words: dict[str, Word], reason: str
) -> None:
    with pytest.raises(Malformed, match=reason):
        one(operator, shapes, **words)


@pytest.mark.parametrize(
    ("kind", "operator", "words"),
    [
        ("int64", "full", {"shape": (), "value": 0.5, "dtype": "int64"}),
        ("bool", "full", {"shape": (), "value": 2.0, "dtype": "bool"}),
        ("int64", "iota", {"n": 4, "start": 0.0, "step": 0.5, "dtype": "int64"}),
    ],
)
def test_constants_are_numbers_of_their_type(kind: str, operator: str, words: dict[str, Word]) -> None:
    with pytest.raises(Malformed, match="makes"):
        one(operator, (), kind, **words)
    one(operator, (), kind, **{**words, **{k: 1.0 for k in words if k in ("value", "step")}})


def test_a_word_twice_and_an_operator_that_is_none_are_refused() -> None:
    tensors = (Described((2,), "float32"),) * 2
    step = Step("add", (0,), (1,), (("number", 1), ("number", 2)))
    with pytest.raises(Malformed, match="twice"):
        require_step(RankProgram((), (step,), (), tensors), step)
    with pytest.raises(Undecided, match="not known here"):
        one("roll", X, shift=1)
    assert len(SIGNATURES) > 40


def test_no_pair_is_proved_with_a_word_or_an_operand_more() -> None:
    rng, names = random.Random(5), sorted({*PAIRS} - {"sorted_experts_tp", "windows_dp"})
    for k in range(24):
        pair = PAIRS[names[k % len(names)]]
        rank = rng.randrange(len(pair.ranks))
        program = pair.ranks[rank]
        at = rng.choice([i for i, s in enumerate(program.steps) if s.reads])
        step = program.steps[at]
        changed = (
            replace(step, words=(*step.words, (rng.choice(("alpha", "foo", "scale")), rng.choice((2.0, True, "x"))))),
            replace(step, reads=(*step.reads, step.reads[0]) if step.operator not in ("cat", "index") else ()),
        )[k % 2]
        steps = (*program.steps[:at], changed, *program.steps[at + 1 :])
        ranks = (*pair.ranks[:rank], replace(program, steps=steps), *pair.ranks[rank + 1 :])
        try:
            verdict = check_pair(replace(pair, ranks=ranks), Budget.with_large()).verdict
        except ContainerError:
            continue
        assert verdict is not Verdict.PROVED, (names[k % len(names)], changed)


# ---- roots, bags ----


@pytest.mark.parametrize(
    ("operator", "root", "more"), [("broadcast", "source", ()), ("reduce", "target", (("op", "sum"),))]
)
def test_ranks_that_name_different_roots_wait_for_ever(operator: str, root: str, more: tuple[()]) -> None:
    def program(r: int) -> RankProgram:
        step = Step(operator, (0,), (1,), (*more, ("ranks", (0, 1)), (root, r)))
        return RankProgram((), (step,), (), (Described((2,), "float32"),) * 2)

    assert len(list(meetings([program(1), program(1)]))) == 1
    with pytest.raises(Stuck, match="different ranks that send or receive"):
        list(meetings([program(0), program(1)]))


@pytest.mark.parametrize(
    ("send", "receive", "fine"),
    [
        (((1, 2), (3, 4)), ((1, 3), (2, 4)), True),
        (((1, 2), (3, 4)), ((1, 2), (3, 4)), False),
        (((1, 2), (3, 4)), ((1, 3), (2, 5)), False),
        (((1, 2, 0), (3, 4, 0)), ((1, 3), (2, 4)), False),
    ],
)
def test_what_one_rank_sends_is_what_the_other_receives(
    send: tuple[tuple[int, ...], ...], receive: tuple[tuple[int, ...], ...], fine: bool
) -> None:
    programs = []
    for rank in range(2):
        drawn = Drawn(((sum(send[rank]), 4), "float32"))
        words = {"ranks": (0, 1), "send": send[rank], "receive": receive[rank]}
        programs.append(drawn.program(drawn.step("all_to_all", (0,), (sum(receive[rank]), 4), **words)))
    if fine:
        assert len(list(meetings(programs))) == 1
        return
    with pytest.raises(Stuck, match="send and receive different sizes"):
        list(meetings(programs))
