"""`Delivers` and `Bytes`: derived steps are proved, and every way of spoiling them is refuted with the rank and the
box.

Each mutant is wrong by construction: something is lost, summed twice, sent by a device that does not hold it, or
counted wrongly.
"""

from __future__ import annotations

import random
from collections.abc import Iterator
from dataclasses import replace

import numpy as np
import pytest

from shardproof.models.communication.resharding import CommunicationPlan, Reduction, derive
from shardproof.models.communication.transfers import Box, Exchange, Transfer, Transfers
from shardproof.models.layout.layout import Layout, LayoutSet, OpenDigit, axis_tables, layout_set
from shardproof.models.layout.placement import matrices, space
from shardproof.models.problem.claims import Verdict
from shardproof.models.program.index import Affine, Axis, Combine, access
from shardproof.verify.plan import transfers
from shardproof.verify.plan.boxes import Digit, volume
from shardproof.verify.plan.communication import check_bytes, check_delivers, plain_layout, totals
from shardproof.verify.plan.entries import communication_loads

SETS = [
    ((2, 4), "complete", (8, 4, 8)),
    ((2, 3), "complete,uneven", (7, 5, 4)),
    ((2, 2, 2), "complete,uneven", (5, 6, 7)),
    ((2, 1, 3), "complete,uneven", (4, 4, 6)),
    ((4,), "complete,uneven", (6, 3, 5)),
]


def layouts(hierarchy: tuple[int, ...], name: str, shape: tuple[int, int, int]) -> tuple[LayoutSet, LayoutSet]:
    """A tensor partial along m, and how a convolution with stride 2 reads it."""

    def tables(axes: tuple[Axis, ...]):
        return axis_tables(
            axes, matrices([a.extent for a in axes], [a.splittable for a in axes], hierarchy, space(name)), hierarchy
        )

    b, c, y = shape
    written = tables((Axis("b", b), Axis("c", c), Axis("y", y), Axis("m", 12, Combine.SUM)))
    reader = tables(
        (Axis("b", b), Axis("o", 8), Axis("y", y // 2), Axis("c", c, Combine.SUM), Axis("i", 3, Combine.SUM, False))
    )
    return (
        layout_set(access("t", *"bcy"), shape, written, ("m",)),
        layout_set(access("t", "b", "c", Affine.axis("y", 2).plus("i").shift(-1)), shape, reader),
    )


@pytest.mark.parametrize(("hierarchy", "name", "shape"), SETS)
def test_derived_steps_deliver_what_they_cost(
    hierarchy: tuple[int, ...], name: str, shape: tuple[int, int, int]
) -> None:
    rng = random.Random(7)
    a, b = layouts(hierarchy, name, shape)
    for _ in range(80):
        plan = derive(a.layout(rng.randrange(len(a))), b.layout(rng.randrange(len(b))))
        delivered = check_delivers(plan)
        assert delivered.verdict is Verdict.PROVED, delivered.reason
        counted = check_bytes(plan, plan.loads(), plan.phases())
        assert counted.verdict is Verdict.PROVED, counted.reason
        assert totals(plan) == communication_loads(plain_layout(plan.source), plain_layout(plan.target))


@pytest.mark.parametrize("pairs", [transfers.MOST_PAIRS, 1])
def test_naive_simulation_agrees(pairs: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Element by element: which contributions every device ends with, as plain sets."""
    monkeypatch.setattr(transfers, "MOST_PAIRS", pairs)
    rng = random.Random(8)
    a, b = layouts((2, 3), "complete,uneven", (4, 3, 4))
    for _ in range(40):
        plan = derive(a.layout(rng.randrange(len(a))), b.layout(rng.randrange(len(b))))
        start, end = plain_layout(plan.source), plain_layout(plan.target)
        state: list[dict[tuple[int, ...], frozenset[int]]] = [
            {e: frozenset([d]) for e in elements(box)} for d, box in enumerate(start.boxes)
        ]
        for step in plan.steps:
            if isinstance(step, Reduction):
                sums = [dict[tuple[int, ...], frozenset[int]]() for _ in state]
                for group in step.groups((2, 3)):
                    for m in group:
                        sums[m] = {
                            e: frozenset().union(*(state[other][e] for other in group)) for e in elements(step.tiles[m])
                        }
                state = sums
            else:
                before = [dict(s) for s in state]
                for t in step.transfers:
                    for e in elements(t.box):
                        state[t.target][e] = before[t.source][e]
        for d, box in enumerate(end.boxes):
            for e in elements(box):
                group = {r for r in range(6) if leader(r, start.open) == leader(min(state[d][e]), start.open)}
                assert state[d][e] == (group if start.open else frozenset([min(state[d][e])]))
        assert check_delivers(plan).verdict is Verdict.PROVED


def leader(device: int, digits: tuple[Digit, ...]) -> int:
    """The device of the same group whose open digits are 0."""
    for d in digits:
        device = d.device_at_zero(device, (2, 3))
    return device


def elements(box: Box) -> list[tuple[int, ...]]:
    out: list[tuple[int, ...]] = [()]
    for low, high in box:
        out = [(*e, x) for e in out for x in range(low, high)]
    return out


def shifted(box: Box, shape: tuple[int, ...]) -> Box | None:
    """The box moved by one where there is room."""
    for k, (low, high) in enumerate(box):
        if high < shape[k]:
            return (*box[:k], (low + 1, high + 1), *box[k + 1 :])
    return None


def spoiled(plan: CommunicationPlan, rng: random.Random) -> Iterator[tuple[str, CommunicationPlan]]:
    """(what was done, a plan that must be refuted)."""
    boxes = plain_layout(plan.source).boxes
    devices = len(boxes)

    def with_step(i: int, *steps: Reduction | Exchange) -> CommunicationPlan:
        return replace(plan, steps=(*plan.steps[:i], *steps, *plan.steps[i + 1 :]))

    for i, step in enumerate(plan.steps):
        yield "step dropped", with_step(i)
        yield "step doubled", with_step(i, step, step)
        if isinstance(step, Reduction):
            yield "other function", with_step(i, replace(step, combine=Combine.MAX))
            yield "digit missing", with_step(i, replace(step, digits=step.digits[1:], scattered=step.scattered[1:]))
            yield (
                "digit doubled",
                with_step(
                    i,
                    replace(
                        step, digits=(*step.digits, step.digits[0]), scattered=(*step.scattered, step.scattered[0])
                    ),
                ),
            )
            yield "flags reversed", with_step(i, replace(step, scattered=tuple(not s for s in step.scattered)))
            d = next(d for d in range(devices) if volume(step.tiles[d])) if any(map(volume, step.tiles)) else None
            if d is not None:
                moved = shifted(step.tiles[d], plan.source.shape)
                if moved is not None:
                    yield (
                        "tile shifted",
                        with_step(i, replace(step, tiles=(*step.tiles[:d], moved, *step.tiles[d + 1 :]))),
                    )
                yield (
                    "tile missing",
                    with_step(
                        i,
                        replace(
                            step,
                            tiles=(
                                *step.tiles[:d],
                                tuple((0, 0) for _ in moved or step.tiles[d]),
                                *step.tiles[d + 1 :],
                            ),
                        ),
                    ),
                )
            yield "tile list cut", with_step(i, replace(step, tiles=step.tiles[:-1]))
            if len(plan.steps) > 1:
                yield "steps swapped", replace(plan, steps=tuple(reversed(plan.steps)))
        else:
            n = rng.randrange(len(step.transfers))
            t = step.transfers[n]

            def swap(*new: Transfer, i: int = i, step: Exchange = step, n: int = n) -> CommunicationPlan:
                return with_step(
                    i, replace(step, transfers=Transfers.of([*step.transfers[:n], *new, *step.transfers[n + 1 :]]))
                )

            yield "transfer missing", swap()
            yield "transfer doubled", swap(t, t)
            yield "rank that does not exist", swap(replace(t, source=devices))
            yield "negative rank", swap(replace(t, target=-1))
            yield "sent to itself", swap(replace(t, source=t.target))
            yield "direction reversed", swap(replace(t, source=t.target, target=t.source))
            yield "empty box", swap(replace(t, box=((0, 0), *t.box[1:])))
            every = step.transfers
            yield "boxes of other rank", with_step(i, replace(step, transfers=replace(every, boxes=every.boxes[:, 1:])))
            yield (
                "boxes without ends",
                with_step(i, replace(step, transfers=replace(every, boxes=every.boxes[:, :, :1]))),
            )
            yield "senders missing", with_step(i, replace(step, transfers=replace(every, sources=every.sources[1:])))
            moved = shifted(t.box, plan.source.shape)
            if moved is not None:
                yield "box shifted", swap(replace(t, box=moved))
            low, high = t.box[0]
            yield "box beyond the tensor", swap(replace(t, box=((low, plan.source.shape[0] + 1), *t.box[1:])))
            if high - low > 1:
                yield "box too small", swap(replace(t, box=((low, high - 1), *t.box[1:])))
            for stranger in range(devices):
                holds = (
                    any(max(a, x) < min(b, y) for (a, b), (x, y) in [(boxes[stranger][0], t.box[0])])
                    if volume(boxes[stranger])
                    else False
                )
                if not holds and not any(
                    u.target == stranger for s in plan.steps if isinstance(s, Exchange) for u in s.transfers
                ):
                    yield "sender holds nothing of it", swap(replace(t, source=stranger))
                    break
            yield "wrong level", with_step(i, replace(step, level=(step.level + 1) % (len(plan.source.hierarchy) + 1)))
    if not plan.steps and volume(plain_layout(plan.target).boxes[0]) < np.prod(plan.target.shape):
        d = next((d for d, box in enumerate(plain_layout(plan.target).boxes) if volume(box)), None)
        if d is not None and devices > 1:
            yield (
                "needless transfer",
                replace(
                    plan,
                    steps=(
                        Exchange(
                            0,
                            Transfers.of(
                                [Transfer((d + devices // 2) % devices, d, plain_layout(plan.target).boxes[d])]
                            ),
                        ),
                    ),
                ),
            )


@pytest.mark.parametrize(("hierarchy", "name", "shape"), SETS)
def test_spoiled_steps_are_refuted(hierarchy: tuple[int, ...], name: str, shape: tuple[int, int, int]) -> None:
    rng = random.Random(9)
    a, b = layouts(hierarchy, name, shape)
    count: dict[str, int] = {}
    for _ in range(40):
        plan = derive(a.layout(rng.randrange(len(a))), b.layout(rng.randrange(len(b))))
        for what, mutant in spoiled(plan, rng):
            result = check_delivers(mutant)
            assert result.verdict is Verdict.REFUTED, (what, plan.steps)
            assert result.reason
            count[what] = count.get(what, 0) + 1
    assert sum(count.values()) > 300
    assert len(count) > 15


@pytest.mark.parametrize(("hierarchy", "name", "shape"), SETS[:3])
def test_wrong_totals_are_refuted(hierarchy: tuple[int, ...], name: str, shape: tuple[int, int, int]) -> None:
    rng = random.Random(10)
    a, b = layouts(hierarchy, name, shape)
    for _ in range(20):
        plan = derive(a.layout(rng.randrange(len(a))), b.layout(rng.randrange(len(b))))
        loads, phases = totals(plan)
        for i in range(len(hierarchy)):
            for change in (-1, 1):
                assert (
                    check_bytes(plan, [x + change * (k == i) for k, x in enumerate(loads)], phases).verdict
                    is Verdict.REFUTED
                )
                assert (
                    check_bytes(plan, loads, [x + change * (k == i) for k, x in enumerate(phases)]).verdict
                    is Verdict.REFUTED
                )
        assert check_bytes(plan, loads[:-1], phases).verdict is Verdict.REFUTED
        for i, step in enumerate(plan.steps):
            if isinstance(step, Reduction):
                padded = replace(
                    plan, steps=(*plan.steps[:i], replace(step, padded=step.padded + 1), *plan.steps[i + 1 :])
                )
                assert check_bytes(padded, loads, phases).verdict is Verdict.REFUTED


def whole(hierarchy: tuple[int, ...], open_: tuple[OpenDigit, ...] = ()) -> Layout:
    devices = int(np.prod(hierarchy))
    return Layout(hierarchy, (6,), np.tile(np.array([[0, 6]]), (devices, 1, 1)), open_, Combine.SUM if open_ else None)


def test_a_partial_tensor_is_no_replica() -> None:
    """Same boxes, but parts of a sum: doing nothing delivers a replica and not a sum, reducing delivers a sum and
    spoils a replica.
    """
    digit = (OpenDigit(0, 1, 2),)
    assert check_delivers(CommunicationPlan(whole((2,)), whole((2,)), ())).verdict is Verdict.PROVED
    nothing = check_delivers(CommunicationPlan(whole((2,), digit), whole((2,)), ()))
    assert nothing.verdict is Verdict.REFUTED
    assert "partial" in nothing.reason
    reduce = derive(whole((2,), digit), whole((2,))).steps
    assert check_delivers(CommunicationPlan(whole((2,), digit), whole((2,)), reduce)).verdict is Verdict.PROVED
    twice = check_delivers(CommunicationPlan(whole((2,)), whole((2,)), reduce))
    assert twice.verdict is Verdict.REFUTED
    assert "replicas" in twice.reason
    assert check_delivers(CommunicationPlan(whole((2,)), whole((2,), digit), ())).verdict is Verdict.REFUTED


def test_reasons_name_rank_and_box() -> None:
    block = np.array([[[0, 3]], [[3, 6]]])
    plan = derive(Layout((2,), (6,), block), whole((2,)))
    (step,) = plan.steps
    assert isinstance(step, Exchange)
    lost = check_delivers(replace(plan, steps=(replace(step, transfers=step.transfers[1:]),)))
    assert lost.reason == "rank 0 lacks 3 elements of its target box ((0, 6),)"
    stolen = check_delivers(
        replace(plan, steps=(replace(step, transfers=Transfers.of([Transfer(0, 1, ((2, 4),)), *step.transfers])),))
    )
    assert (
        stolen.reason
        == "transfer of ((2, 4),) from rank 0 to rank 1: the sender does not hold it at the start of the exchange "
        "over level 0"
    )


@pytest.mark.parametrize(
    ("wrong", "why"),
    [
        (Transfer(-1, 1, ((0, 3),)), "there are 2 ranks"),
        (Transfer(2, 1, ((0, 3),)), "there are 2 ranks"),
        (Transfer(0, -1, ((0, 3),)), "there are 2 ranks"),
        (Transfer(0, 2, ((0, 3),)), "there are 2 ranks"),
        (Transfer(0, 1, ((-1, 3),)), "it is not a box of the tensor of shape (6,)"),
        (Transfer(0, 1, ((0, 7),)), "it is not a box of the tensor of shape (6,)"),
        (Transfer(0, 1, ((3, 0),)), "it is not a box of the tensor of shape (6,)"),
        (Transfer(0, 1, ((2, 2),)), "nothing is sent"),
        (Transfer(1, 1, ((3, 6),)), "level 0 is not the first one it crosses"),
        (Transfer(0, 1, ((2, 4),)), "the sender does not hold it at the start of the exchange over level 0"),
    ],
)
def test_reasons_name_the_first_transfer_that_is_wrong(wrong: Transfer, why: str) -> None:
    plan = derive(Layout((2,), (6,), np.array([[[0, 3]], [[3, 6]]])), whole((2,)))
    (step,) = plan.steps
    assert isinstance(step, Exchange)
    spoilt = check_delivers(
        replace(plan, steps=(replace(step, transfers=Transfers.of([step.transfers[0], wrong, wrong])),))
    )
    assert spoilt.verdict is Verdict.REFUTED
    assert spoilt.reason == f"transfer of {wrong.box} from rank {wrong.source} to rank {wrong.target}: {why}"


def test_elements_that_cannot_be_counted_are_refuted() -> None:
    """Sums that would wrap are no sums."""
    n = 1 << 61
    halves = np.array([[[0, n], [0, 1]], [[n, 2 * n], [0, 1]]])
    plan = derive(Layout((2,), (2 * n, 1), halves), Layout((2,), (2 * n, 1), np.array([[[0, 2 * n], [0, 1]]] * 2)))
    assert "too many elements" in check_delivers(plan).reason
    assert "too many elements" in check_bytes(plan, (n,), (1,)).reason


def test_totals_of_ranks_that_do_not_exist_are_refuted() -> None:
    plan = derive(Layout((2,), (6,), np.array([[[0, 3]], [[3, 6]]])), whole((2,)))
    (step,) = plan.steps
    assert isinstance(step, Exchange)
    for source, target in ((-1, 0), (2, 0), (0, -1), (0, 2)):
        spoilt = replace(plan, steps=(replace(step, transfers=Transfers.of([Transfer(source, target, ((0, 3),))])),))
        assert "there are 2 ranks" in check_bytes(spoilt, (3,), (1,)).reason


def test_a_box_from_many_senders_is_covered_by_all_of_them_together(monkeypatch: pytest.MonkeyPatch) -> None:
    """On 2x2 devices rank 1 forwards columns that it got from two ranks as one box; without one of them it may not."""
    first = [Transfer(2, 0, ((4, 6),)), Transfer(3, 0, ((6, 8),))]
    have, need = np.array([[[0, 2]], [[2, 4]], [[4, 6]], [[6, 8]]]), np.array([[[0, 8]], [[0, 8]], [[4, 6]], [[6, 8]]])
    second = [Transfer(1, 0, ((2, 4),)), Transfer(0, 1, ((0, 2),)), Transfer(0, 1, ((4, 8),))]
    plan = CommunicationPlan(
        Layout((2, 2), (8,), have),
        Layout((2, 2), (8,), need),
        (Exchange(0, Transfers.of(first)), Exchange(1, Transfers.of(second))),
    )
    assert check_delivers(plan).verdict is Verdict.PROVED
    lacking = replace(plan, steps=(Exchange(0, Transfers.of(first[:1])), plan.steps[1]))
    assert "does not hold it" in check_delivers(lacking).reason
    gap = replace(plan, steps=(Exchange(0, Transfers.of([first[0], Transfer(3, 0, ((7, 8),))])), plan.steps[1]))
    assert "does not hold it" in check_delivers(gap).reason
    both = replace(
        plan,
        steps=(
            plan.steps[0],
            Exchange(
                1,
                Transfers.of(
                    [*second[:1], Transfer(0, 1, ((0, 2),)), Transfer(0, 1, ((4, 8),)), Transfer(0, 1, ((0, 2),))]
                ),
            ),
        ),
    )
    assert check_delivers(both).reason == "rank 1 receives elements of ((0, 2),) that it already has"
    monkeypatch.setattr(transfers, "MOST_CELLS", 1)
    assert check_delivers(plan).reason == "((4, 8),) is sent from 2 boxes, too finely cut to be checked"


def test_boxes_with_ends_exchanged_count_nothing() -> None:
    plan = derive(Layout((2,), (6,), np.array([[[0, 3]], [[3, 6]]])), whole((2,)))
    (step,) = plan.steps
    assert isinstance(step, Exchange)
    more = [*step.transfers, Transfer(0, 1, ((6, 0),)), Transfer(1, 0, ((6, 0),))]
    assert totals(replace(plan, steps=(replace(step, transfers=Transfers.of(more)),))) == ((3,), (1,))


@pytest.mark.parametrize("short", [0, 1])
def test_every_member_of_a_sum_holds_a_part_of_it(short: int) -> None:
    boxes = np.array([[[0, 6]], [[0, 6]]])
    plan = derive(Layout((2,), (6,), boxes, (OpenDigit(0, 1, 2),), Combine.SUM), whole((2,)))
    assert check_delivers(plan).verdict is Verdict.PROVED
    less = boxes.copy()
    less[short, 0, 1] = 4
    lacking = CommunicationPlan(replace(plan.source, boxes=less), plan.target, plan.steps)
    assert check_delivers(lacking).reason == f"reduction: rank {short} holds no part of ((0, 6),), which its group sums"


def test_what_is_too_finely_cut_is_not_believed(monkeypatch: pytest.MonkeyPatch) -> None:
    plan = derive(Layout((2,), (6,), np.array([[[0, 3]], [[3, 6]]])), whole((2,)))
    monkeypatch.setattr(transfers, "MOST_CELLS", 1)
    assert "too finely cut" in check_delivers(plan).reason


def test_boxes_of_one_phase_have_one_rank() -> None:
    with pytest.raises(ValueError, match="different numbers of dimensions"):
        Transfers.of([Transfer(0, 1, ((0, 2),)), Transfer(0, 1, ((0, 2), (0, 2)))])


def test_layouts_that_are_none_are_refuted() -> None:
    good = whole((2, 2))
    for bad in (
        replace(good, boxes=good.boxes[:3]),
        replace(good, boxes=good.boxes + 1),
        replace(good, boxes=good.boxes[:, :, ::-1].copy()),
        replace(good, open=(OpenDigit(2, 1, 2),), combine=Combine.SUM),
        replace(good, open=(OpenDigit(0, 2, 2),), combine=Combine.SUM),
        replace(good, open=(OpenDigit(0, 1, 3),), combine=Combine.SUM),
        replace(good, open=(OpenDigit(0, 0, 2),), combine=Combine.SUM),
        whole((4,)),
    ):
        assert check_delivers(CommunicationPlan(bad, good, ())).verdict is Verdict.REFUTED
