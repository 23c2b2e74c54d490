"""Layers that repeat and many ranks: relations are seen once, and nothing that holds for one layer alone holds for others.

What a lemma cuts off is any tensor, so every test here has a pair that is right only for the tensors that are there, or
a step that is wrong in one of many layers or on one of many ranks.
"""

from __future__ import annotations

import random
from dataclasses import replace

import numpy as np
import pytest
from equality_layers import FAULTS, Fault, Writer, layered
from test_equal_mutants import PAIRS, differs, forged, mutant

from shardproof.formal.equality.elements import Elements
from shardproof.formal.equality.givens import ProgramWithSources
from shardproof.formal.equality.parts import Places
from shardproof.formal.equality.question import Question
from shardproof.models.equality.pair import Known, Pair, Part, Relation
from shardproof.models.equality.program import Step
from shardproof.models.problem.claims import Verdict
from shardproof.proofs.container.archive import read_container
from shardproof.proofs.container.canonical import ContainerError
from shardproof.proofs.equality.file import decode_equality, write_equality
from shardproof.verify.budget import Budget
from shardproof.verify.equality.certificate import check_pair
from shardproof.verify.equality.cuts import BACK, Ancestry
from shardproof.verify.equality.ranks import Sight, by_lemmas, compare
from shardproof.verify.equality.steps import Malformed

RNG = np.random.default_rng(0)


def right(layers: int, ranks: int) -> Pair:
    question = Question(*layered(layers, ranks))
    assert question.differs() is None
    return question.pair()


def verdict(pair: Pair) -> Verdict:
    return check_pair(pair, Budget.with_large()).verdict


def by_lemmas_alone(pair: Pair) -> Verdict:
    """What is seen without looking at all tensors, which `test_equal_mutants` tests."""
    try:
        equal = by_lemmas(Sight(pair, lambda things: None)).equal
    except (Malformed, LookupError, TypeError, ArithmeticError, ValueError):
        return Verdict.REFUTED
    return Verdict.PROVED if equal else Verdict.UNDECIDED


def lemmas(pair: Pair) -> tuple[int, int, bool]:
    """Lemmas that were proved, those that were not, and whether all tensors were looked at."""
    sight = Sight(pair, lambda things: None)
    sight.ranks()
    proved = sight.lemmas.proved.values()
    return sum(proved), len(proved) - sum(proved), sight._all is not None


def test_equal_layers_are_proved_once() -> None:
    two, eight = right(2, 4), right(8, 4)
    assert verdict(two) is verdict(eight) is Verdict.PROVED
    assert lemmas(two) == lemmas(eight) and lemmas(two)[1:] == (0, False)
    assert len(eight.relations[0]) > 3 * len(two.relations[0])


def test_work_of_more_layers_is_a_comparison() -> None:
    spent = []
    for layers in (4, 8, 16):
        things = 0

        def work(more: int) -> None:
            nonlocal things
            things += more

        assert compare(right(layers, 4), work).equal
        spent.append(things)
    assert spent[2] - spent[1] < 3 * (spent[1] - spent[0]) and spent[2] < 2 * spent[0]


@pytest.mark.parametrize("kind", FAULTS)
@pytest.mark.parametrize("rank", [3, None])
def test_a_fault_in_layer_7_of_8_is_different_with_rank_and_line(kind: str, rank: int | None) -> None:
    question = Question(*layered(8, 4, Fault(kind, 6, rank)))
    found = question.differs()
    assert found is not None and found.output == "output" and found.line == "layer.py:6"
    assert rank is None or "of rank 3" in found.reason
    assert by_lemmas_alone(question.pair()) is not Verdict.PROVED


@pytest.mark.parametrize(("layers", "ranks"), [(3, 2), (3, 4)])
def test_mutants_of_layers_are_proved_only_where_numbers_agree(layers: int, ranks: int) -> None:
    seen, proved = hunt(right(layers, ranks), 5, 7)
    assert seen > 2 > proved


@pytest.mark.slow
@pytest.mark.parametrize(("layers", "ranks", "seed"), [(6, 2, 1), (4, 4, 2), (3, 8, 3)])
def test_many_mutants_of_layers(layers: int, ranks: int, seed: int) -> None:
    seen, proved = hunt(right(layers, ranks), 400, seed)
    assert seen > 200 > proved


def hunt(pair: Pair, count: int, seed: int) -> tuple[int, int]:
    """Of so many mutants: those whose numbers differ, and those that are proved; none is both."""
    rng, made, different, proved = random.Random(seed), 0, 0, 0
    while made < count:
        found = mutant(pair, rng)
        if found is None:
            continue
        made += 1
        if rng.random() < 0.3:
            found = forged(found, rng)
        numbers = any(differs(found, k) for k in (1, 2))
        outcome = by_lemmas_alone(found)
        assert not (numbers and outcome is Verdict.PROVED), f"mutant {made} of {count}, seed {seed}"
        different, proved = different + numbers, proved + (outcome is Verdict.PROVED)
    return different, proved


@pytest.mark.parametrize("name", sorted(PAIRS))
def test_mutants_of_kept_pairs_are_shown_by_lemmas_only_where_numbers_agree(name: str) -> None:
    assert hunt(PAIRS[name], 2, 11)[0] >= 1


# ---------------------------------------------------------------------- which relations are written down


def test_what_changes_little_is_not_taken_for_what_it_was() -> None:
    """A step that moves weights by rounding noise alone (a key's bias in attention, a row that no id reads) is a step."""

    def program(noise: float) -> tuple[ProgramWithSources, int]:
        w = Writer()
        old, gradient = w.source("p", RNG.normal(size=(8,))), w.source("x", RNG.normal(size=(8,)), "input")
        new = w.do("add", old, w.do("tanh", w.do("mul", gradient, number=noise)))
        return w.program(w.do("exp", w.do("mul", new, number=2.0))), new

    (one, whole), (rank, new) = program(1e-30), program(-3e-30)
    question = Question(one, [replace(rank, arrays=one.arrays)])
    assert question.differs() is None
    assert {r.number: r.whole for r in question.pair().relations[0]}[new] == whole


def test_of_places_with_the_same_numbers_the_usual_one_is_written_down() -> None:
    """1e-8 with noise behind it is 1e-8 in every block, and noise is another on every device; a rank has its own."""
    x = RNG.normal(size=(8,))

    def program(low: int, size: int, noise: float) -> ProgramWithSources:
        w = Writer()
        w.source("x", x[low : low + size], "input")
        return w.program(w.do("add", w.do("mul", 0, number=noise), number=1e-8))

    question = Question(program(0, 8, 1e-23), [program(0, 4, 3e-23), program(4, 4, -2e-23)])
    assert question.differs() is None
    for rank, rows in enumerate(question.pair().relations):
        assert [r.runs for r in rows if r.whole == 2] == [(((0, 4 * rank, 4),),)]


def test_tables_are_looked_for_where_their_first_element_is(monkeypatch: pytest.MonkeyPatch) -> None:
    """Of a rank's table that is no part of any of 5 tensors none is looked at; of a shard without its name one is."""
    table, weights = np.arange(12.0).reshape(3, 4), [RNG.normal(size=(3, 4)) for _ in range(5)]
    looked, find = [], Places.find

    def counted(self: Places, a: np.ndarray, whole: np.ndarray) -> object:
        looked.append((a, whole))
        return find(self, a, whole)

    monkeypatch.setattr(Places, "find", counted)

    def program(rank: bool) -> ProgramWithSources:
        w = Writer()
        total = w.source("x", weights[0] + 1, "input")
        for k, weight in enumerate(weights):
            total = w.do(
                "mul", total, w.source(f"c{k}" if rank else f"w{k}", weight, "constant" if rank else "parameter")
            )
        return w.program(w.do("add", total, w.source("table", table, "constant")) if rank else total)

    found = Question(program(False), [program(True)] * 5).givens
    assert [d.source.name for d in found.doubts] == ["table"] * 5
    assert [g[k].of for g in found.given for k in sorted(g)[1:-1]] == [f"w{k}" for k in range(5)] * 5
    assert not any(a.shape == table.shape and np.array_equal(a, table) for a, _ in looked)
    assert all(np.array_equal(a, whole) for a, whole in looked if a.shape == (3, 4))


@pytest.mark.parametrize("seed", range(40))
def test_what_is_a_part_has_its_first_element(seed: int) -> None:
    """Arrays in which `find` sees a part, as block or as rows, up to rounding, with infinities: `having` names them."""
    rng = np.random.default_rng(seed)
    arrays = {}
    for k in range(6):
        a = rng.integers(-3, 4, size=(6, 4)).astype(rng.choice(["float32", "float64", "int64"]))
        if a.dtype.kind == "f":
            a = a * rng.choice([1e-7, 1.0, 1e5, 1e9]) * (1 + rng.normal(size=a.shape) * rng.choice([0, 1e-9, 1e-6]))
            a[rng.random(a.shape) < rng.choice([0, 0.1])] = rng.choice([np.inf, -np.inf, -1e30])
        arrays[str(k)] = a
    elements, seen = Elements(arrays), 0
    for a in arrays.values():
        low, many = rng.integers(0, 4), rng.integers(1, 4)
        for part in (a[low : low + many], a[[5, 1]], a[:, 1:3], a[1::2]):
            near = part * (1 + rng.normal(size=part.shape) * 1e-7) if part.dtype.kind == "f" else part
            for rank in range(2):
                fits = {n for n, whole in arrays.items() if Places(rank, 2).find(near, whole) is not None}
                seen += len(fits)
                assert fits <= set(elements.having(near))
    assert seen > 10


# ---------------------------------------------------------------------- what a lemma does not know


def pair_of(one: ProgramWithSources, rank: ProgramWithSources, *related: tuple[int, int]) -> Pair:
    """One rank that is given the same, with relations (its tensor, the one device's whole)."""

    def runs(shape: tuple[int, ...]) -> tuple[tuple[tuple[int, int, int], ...], ...]:
        return tuple(((0, 0, n),) for n in shape)

    single, mine = one.program, rank.program
    given = tuple((s.number, Part(s.name, runs(mine.tensors[s.number].shape))) for s in mine.sources)
    result = (("output", Part("output", runs(single.tensors[single.outputs[0][1]].shape))),)
    rows = tuple(Relation(n, w, runs(single.tensors[w].shape)) for n, w in related)
    return Pair(single, (mine,), (), (given,), (result,), (), (rows,))


def small() -> tuple[Writer, int]:
    w = Writer()
    return w, w.source("x", RNG.normal(size=(4,)), "input")


def test_what_holds_for_the_tensor_that_is_cut_off_alone_is_looked_at_among_all() -> None:
    """x - x is 0, which is no fact about any tensor; it is further away than a lemma is written out."""

    def program(more: bool) -> tuple[ProgramWithSources, int]:
        w, x = small()
        cut = w.do("add", w.do("mul", x, number=2.0), w.do("mul", x, number=-2.0))
        for _ in range(4):
            cut = w.do("neg", cut)
        return w.program(w.do("exp", w.do("mul", cut, number=3.0) if more else cut)), cut

    (one, whole), (rank, cut) = program(False), program(True)
    pair = pair_of(one, rank, (cut, whole), (cut + 2, whole + 1))
    assert by_lemmas_alone(pair) is Verdict.UNDECIDED
    assert verdict(pair) is Verdict.PROVED and not differs(pair, 1)


def attention_backwards(rank: bool, wrong: bool = False) -> tuple[ProgramWithSources, list[int]]:
    """The row sums of a softmax's gradient, behind 300 steps: of dP P, and as kernels have it, of dO O; what both make."""
    w, x = Writer(), []
    for name in ("p", "v", "g"):
        x.append(w.source(name, RNG.normal(size=(4, 4)), "input"))
        for _ in range(100):
            x[-1] = w.do("exp", w.do("neg", x[-1]))
    p, v, g = x
    o = w.product(p, v)
    for _ in range(4):  # further back than a lemma is written out from its pieces
        o = w.do("neg", o)
    made = [n for s in w.steps for n in s.makes]
    if rank:
        return w.program(w.over("sum", w.do("mul", p if wrong else g, o), 1)), made
    d = w.product(g, w.turned(v, 1, 0))
    return w.program(w.over("sum", w.do("mul", d, p), 1)), made


def test_a_lemma_is_cut_off_where_both_sides_come_from() -> None:
    """rowsum(dO O) is rowsum(dP P), since O is P V and dP is dO V': O says nothing of it, what it is made of does."""
    (one, wholes), (rank, cells) = attention_backwards(False), attention_backwards(True)
    related = list(zip(cells, wholes, strict=True))
    pair = pair_of(one, rank, *related)
    assert by_lemmas_alone(pair) is Verdict.PROVED and lemmas(pair)[2] is False
    assert by_lemmas_alone(pair_of(one, attention_backwards(True, True)[0], *related)) is Verdict.UNDECIDED
    without_g = pair_of(
        one, rank, *(r for r in related if r[0] != max(s.makes[0] for s in rank.program.steps[400:600]))
    )
    assert by_lemmas_alone(without_g) is Verdict.PROVED, "one step further back"


def test_a_lemma_is_cut_off_at_its_pieces_too() -> None:
    """p (d - s) is d p - p s, where s is the sum of d p: what both come from is d p, of which the rank's says nothing."""

    def program(rank: bool) -> tuple[ProgramWithSources, int]:
        w = Writer()
        p, d = (w.do("exp", w.source(name, RNG.normal(size=(4, 4)), "input")) for name in "pd")
        both = w.do("mul", d, p)
        s = w.over("sum", both, 1)
        if rank:
            return w.program(w.do("mul", p, w.do("sub", d, s))), s
        return w.program(w.do("sub", both, w.do("mul", p, s))), s

    (one, whole), (rank, cell) = program(False), program(True)
    pair = pair_of(one, rank, *((n, n) for n in (1, 3, 4)), (cell, whole))
    assert by_lemmas_alone(pair) is Verdict.PROVED
    other = replace(
        rank.program, steps=tuple(replace(s, operator="add") if s.operator == "sub" else s for s in rank.program.steps)
    )
    assert by_lemmas_alone(replace(pair, ranks=(other,))) is Verdict.UNDECIDED


def test_cuts_are_what_pieces_and_whole_are_made_of() -> None:
    """7 is the whole of 6 and 5; of the pieces 5 is met on the way, 8 is made of what is, 9 of nothing of it."""
    made = {3: (1,), 4: (2,), 5: (3, 4), 6: (1, 3), 7: (6, 5), 8: (4, 3), 9: (0,)}

    def cuts(*pieces: int, never: int = -1) -> list[int]:
        found = Ancestry(lambda n: made.get(n, ()), lambda n: n != never, lambda n: n, lambda things: None)
        return sorted(found.cuts(pieces, 7, None))

    assert cuts(5) == [1, 3, 5]  # 6 is met at what 5 is made of
    assert cuts(8) == [1, 3, 4]  # not 8: what it is made of is met
    assert cuts(9) == [9] and cuts(5, 9) == [1, 3, 5, 9]
    assert cuts(6, 7) == [5, 6]  # the whole is never cut off: it would be any tensor
    assert cuts(5, never=5) == [1, 3, 4]

    def before(*pieces: int, steps: int) -> list[int]:
        """5 is 4 in another order."""
        turns = {5: 4}
        found = Ancestry(lambda n: made.get(n, ()), lambda n: n != 0, lambda n: turns.get(n, n), lambda things: None)
        return sorted(found.cuts(pieces, 7, steps))

    assert before(5, 3, steps=0) == [3, 4] and before(9, steps=0) == [9] and before(9, steps=1) == []
    assert before(8, steps=1) == [3, 4] and before(8, steps=2) == [1, 2]
    assert before(8, 3, steps=1) == [1, 4], "3 is written out, though 8 is made of it"
    assert sorted(
        Ancestry(lambda n: made.get(n, ()), lambda n: True, lambda n: 4 if n == 5 else n, lambda things: None).cuts(
            [5], 7, None
        )
    ) == [1, 3, 4]

    def ways(length: int) -> list[int]:
        """A piece and a whole that are so many operations behind 0, on ways of their own."""
        far = {first + k: (first + k - 1 if k > 1 else 0,) for first in (100, 200) for k in range(1, length + 1)}
        found = Ancestry(lambda n: far.get(n, ()), lambda n: True, lambda n: n, lambda things: None)
        return [n - 100 for n in sorted(found.cuts([100 + length], 200 + length, None))]

    assert ways(6) == ways(BACK - 1) == [-100] and ways(BACK + 1) == [BACK + 1]


def test_what_is_cut_off_may_hold_the_infinity_of_masks() -> None:
    """s > s - 1 is true of every number, and false of an infinity."""

    def program(written: bool) -> tuple[ProgramWithSources, int]:
        w, x = small()
        mask = w.do("gt", x, number=0.0, kind="bool")
        hidden = w.do("full", to=(), shape=(), value=float("-inf"), dtype="float64")
        s = w.do("where", mask, x, hidden, to=(4,))
        if written:
            return w.program(w.do("full", to=(4,), kind="bool", shape=(4,), value=1, dtype="bool")), s
        return w.program(w.do("gt", s, w.do("sub", s, number=1.0), kind="bool")), s

    (one, s), (rank, t) = program(False), program(True)
    pair = pair_of(one, rank, (t, s))
    assert verdict(pair) is Verdict.UNDECIDED
    finite = replace(pair, single=_with_number(one.program, s, 5.0))
    assert verdict(replace(finite, ranks=(_with_number(rank.program, t, 5.0),))) is Verdict.PROVED


def _with_number(program: object, upto: int, value: float) -> object:
    steps = tuple(
        replace(s, words=tuple((k, value if k == "value" and isinstance(w, float) else w) for k, w in s.words))
        if s.operator == "full" and s.makes[0] < upto
        else s
        for s in program.steps  # type: ignore[attr-defined]
    )
    return replace(program, steps=steps)  # type: ignore[type-var]


def test_positions_of_a_sort_are_no_inputs() -> None:
    """A tensor of whole numbers that is cut off is not taken for one of which a least value is known."""

    def program(doubt: bool) -> tuple[ProgramWithSources, int]:
        w, x = small()
        number = len(w.tensors)
        values = w.do("sort", x, dim=0, descending=False)
        place = w.do("full", to=(4,), kind="int64", shape=(4,), value=0, dtype="int64")
        w.steps[-2] = Step("sort", (x,), (values, place), (("dim", 0), ("descending", False)), "")
        del w.steps[-1]
        if doubt:
            return w.program(w.do("full", to=(4,), kind="bool", shape=(4,), value=1, dtype="bool")), number + 1
        return w.program(w.do("ge", place, number=0, kind="bool")), number + 1

    (one, p), (rank, q) = program(False), program(True)
    assert verdict(pair_of(one, rank, (q, p))) is Verdict.UNDECIDED


def test_a_constant_of_a_rank_is_no_input_that_is_called_like_its_hash() -> None:
    w, x = small()
    pair = pair_of(w.program(w.do("exp", x)), w.program(len(w.tensors) - 1))
    assert verdict(pair) is Verdict.PROVED
    assert verdict(replace(pair, given=(((0, Known(None, "x")),),))) is Verdict.UNDECIDED


def test_steps_that_nothing_reads_have_to_be_steps_too() -> None:
    pair = right(2, 2)
    program = pair.ranks[1]
    number = len(program.tensors)
    for step, shape in ((Step("exp", (0,), (number,)), (3, 15)), (Step("exp", (0,), (number, number + 1)), (3, 16))):
        tensors = (*program.tensors, *(replace(program.tensors[0], shape=shape) for _ in step.makes))
        bad = replace(program, steps=(*program.steps, step), tensors=tensors)
        with pytest.raises(ContainerError, match="holds no program"):
            verdict(replace(pair, ranks=(pair.ranks[0], bad)))
        whole = replace(
            pair.single,
            steps=(
                *pair.single.steps,
                replace(step, makes=tuple(len(pair.single.tensors) + k for k in range(len(step.makes)))),
            ),
            tensors=(*pair.single.tensors, *(replace(program.tensors[0], shape=shape) for _ in step.makes)),
        )
        with pytest.raises(ContainerError, match="holds no program"):
            verdict(replace(pair, single=whole))


def test_the_same_of_the_same_is_one_tensor_of_the_one_device() -> None:
    """A backward pass normalises once more: a relation to either tensor is one to both."""
    w, x = small()
    first, again = w.do("exp", x), w.do("exp", x)
    one = w.program(w.do("mul", first, again))
    v, y = small()
    mine = v.do("exp", y)
    rank = v.program(v.do("mul", mine, mine))
    pair = pair_of(one, rank, (mine, again), (mine + 1, again + 1))
    assert lemmas(pair)[1:] == (0, False) and verdict(pair) is Verdict.PROVED
    other = replace(
        pair,
        single=replace(
            pair.single,
            steps=(pair.single.steps[0], replace(pair.single.steps[1], operator="tanh"), pair.single.steps[2]),
        ),
    )
    assert verdict(other) is Verdict.UNDECIDED and differs(other, 1)


@pytest.mark.parametrize("change", ["root", "group", "order", "op"])
def test_collectives_of_a_lemma_know_their_groups(change: str) -> None:
    """Layer 1 sends as it should, layer 2 from another root, in another order, by another reduction."""

    def program(rank: int, ranks: int, wrong: str) -> ProgramWithSources:
        w = Writer()
        x = w.source("x", np.split(np.arange(8.0) ** 2 / 100, ranks)[rank], "input")
        for layer in range(3):
            bad = layer == 1 and wrong
            if ranks == 1:
                x = w.do("mul", w.do("exp", x), number=2.0)
                continue
            group = (1, 0) if bad == "order" else (0, 1)
            e = w.do("exp", x)
            wide = w.do("all_gather", e, to=(8,), ranks=group)
            if bad == "op":
                wide = w.do("add", wide, wide)
            total = w.do("all_reduce", wide, op="max" if bad == "op" else "sum", ranks=(0, 1))
            total = w.do("broadcast", total, ranks=(0, 1), source=int(bad == "root"))
            at = 4 * rank if bad != "group" else 4 * (1 - rank)
            x = w.do("slice", total, to=(4,), dim=0, start=at, stop=at + 4, step=1)
        return w.program(x)

    def pair(wrong: str) -> tuple[Pair, bool]:
        question = Question(program(0, 1, ""), [program(r, 2, wrong) for r in range(2)])
        same = question.differs() is None
        return question.pair(), same

    good, same = pair("")
    assert same and verdict(good) is Verdict.PROVED
    changed, same = pair(change)
    assert (verdict(changed) is Verdict.PROVED) <= same and same is (change in ("root", "op"))


def test_layers_keep_their_bytes() -> None:
    pair = right(3, 4)
    assert decode_equality(read_container(write_equality(pair))) == pair
