"""Ranks of a mesh, all at once: what the checker makes of their programs is what they do, and faults of one rank, one
replica or one step are never proved.
"""

from __future__ import annotations

import json
import random
import zipfile
from dataclasses import replace
from io import BytesIO

import equality_meshes as meshes
import numpy as np
import pytest
from budgets import some_or_all
from test_equal_mutants import differs

from shardproof.formal.equality.alike import AlikeQuestion, alike_question, corner_ranks
from shardproof.formal.equality.mesh_numbers import run_meshes
from shardproof.formal.equality.numbers import run_ranks, run_single
from shardproof.formal.equality.parts import part_elements
from shardproof.formal.equality.question import ProgramWithSources, Question
from shardproof.models.equality.captured import Captured
from shardproof.models.equality.pair import Pair, Part
from shardproof.models.equality.program import RankProgram, Step, Word
from shardproof.models.equality.schedule import Stuck
from shardproof.models.problem.claims import Verdict
from shardproof.models.text import InputError
from shardproof.proofs.container.archive import read_container
from shardproof.proofs.container.canonical import ContainerError
from shardproof.proofs.equality.file import decode_equality, write_equality
from shardproof.verify.budget import Budget
from shardproof.verify.equality.certificate import check_pair
from shardproof.verify.equality.index import Undecided
from shardproof.verify.equality.meshes import stack_ranks
from shardproof.verify.equality.steps import Malformed

SIZES = (2, 3)
SOURCES = {
    "x": ((3, 4), "float64"),
    "i": ((3,), "int64"),
    "m": ((4, 3), "float64"),
    "s": ((1,), "float64"),
    "z": ((6, 2), "float64"),
    "t": ((3, 4), "bool"),
    "y": ((2, 2), "float64"),
    "q": ((3, 2), "float64"),
    "j": ((2, 2), "int64"),
}
"""What `operators` read, each rank its own rows of it, by number."""


def operators() -> dict[str, tuple[tuple[int, ...], dict[str, Word], tuple[int, ...], str]]:
    """What an operator reads, its words, the shape and type of what it makes."""
    x, i, m, s, z, t, y, q, j = range(len(SOURCES))
    return {
        "add": ((x, s), {}, (3, 4), "float64"),
        "sub": ((x, x), {}, (3, 4), "float64"),
        "mul": ((x,), {"number": 3}, (3, 4), "float64"),
        "exp": ((x,), {}, (3, 4), "float64"),
        "where": ((t, x, s), {}, (3, 4), "float64"),
        "gt": ((i,), {"number": 2, "number_moves": (1, 0)}, (3,), "bool"),
        "add i": ((i,), {"number": 4, "number_moves": (3, 1)}, (3,), "int64"),
        "sub i": ((i,), {"number": 4, "number_moves": (0, 2), "reverse": True}, (3,), "int64"),
        "full": ((), {"shape": (2, 2), "value": 1, "dtype": "int64", "value_moves": (5, 1)}, (2, 2), "int64"),
        "full f": ((), {"shape": (2, 2), "value": 0.5, "dtype": "float64"}, (2, 2), "float64"),
        "iota": ((), {"n": 4, "start": 1, "step": 2, "dtype": "int64"}, (4,), "int64"),
        "reshape": ((x,), {"shape": (2, 6)}, (2, 6), "float64"),
        "permute": ((x,), {"dims": (1, 0)}, (4, 3), "float64"),
        "expand": ((i,), {"shape": (2, 3)}, (2, 3), "int64"),
        "slice": ((x,), {"dim": 1, "start": 1, "stop": 3, "step": 1}, (3, 2), "float64"),
        "slice moved": ((z,), {"dim": 0, "start": 0, "stop": 2, "step": 1, "start_moves": (0, 2)}, (2, 2), "float64"),
        "slice from": ((z,), {"dim": 0, "start": 1, "stop": 3, "step": 1, "start_moves": (2, 0)}, (2, 2), "float64"),
        "slice_scatter": ((x, x), {"dim": 1, "start": 0, "stop": 4, "step": 1}, (3, 4), "float64"),
        "slice_scatter moved": (
            (z, y),
            {"dim": 0, "start": 0, "stop": 2, "step": 1, "start_moves": (0, 2)},
            (6, 2),
            "float64",
        ),
        "cat": ((x, x), {"dim": 0}, (6, 4), "float64"),
        "matmul": ((x, m), {}, (3, 3), "float64"),
        "sum": ((x,), {"dims": (1,), "keep": False}, (3,), "float64"),
        "amax": ((x,), {"dims": (0,), "keep": True}, (1, 4), "float64"),
        "amin": ((x,), {"dims": (0, 1), "keep": False}, (), "float64"),
        "cumsum": ((x,), {"dim": 1}, (3, 4), "float64"),
        "tril": ((x,), {"diagonal": 0}, (3, 4), "float64"),
        "index": ((z, i), {"wrap": False}, (3, 2), "float64"),
        "index_add": ((z, i, q), {"wrap": False}, (6, 2), "float64"),
        "gather": ((z, j), {"dim": 0, "wrap": False}, (2, 2), "float64"),
        "scatter_add": ((z, j, y), {"dim": 0, "wrap": False}, (6, 2), "float64"),
        "all_reduce": ((x,), {"op": "sum", "along": (0, 1)}, (3, 4), "float64"),
        "all_reduce max": ((x,), {"op": "max", "along": (1,)}, (3, 4), "float64"),
        "all_reduce min": ((x,), {"op": "min", "along": (0,)}, (3, 4), "float64"),
        "all_reduce avg": ((x,), {"op": "avg", "along": (1,)}, (3, 4), "float64"),
        "all_gather": ((x,), {"along": (0,)}, (6, 4), "float64"),
        "all_gather both": ((x,), {"along": (0, 1)}, (18, 4), "float64"),
        "all_gather last": ((x,), {"along": (1,)}, (9, 4), "float64"),
        "reduce_scatter": ((z,), {"op": "sum", "along": (0,)}, (3, 2), "float64"),
        "reduce_scatter last": ((z,), {"op": "avg", "along": (1,)}, (2, 2), "float64"),
        "reduce_scatter both": ((z,), {"op": "sum", "along": (0, 1)}, (1, 2), "float64"),
        "all_to_all": ((z,), {"along": (1,), "send": (2, 2, 2), "receive": (2, 2, 2)}, (6, 2), "float64"),
        "all_to_all first": ((z,), {"along": (0,), "send": (3, 3), "receive": (3, 3)}, (6, 2), "float64"),
        "all_to_all both": ((z,), {"along": (0, 1), "send": (1,) * 6, "receive": (1,) * 6}, (6, 2), "float64"),
        "broadcast": ((x,), {"along": (1,), "source": 2}, (3, 4), "float64"),
        "broadcast both": ((x,), {"along": (0, 1), "source": 4}, (3, 4), "float64"),
    }


def operator_pair(name: str) -> Pair:
    """One operator on 2 x 3 ranks, each with other numbers; the one device has them all, and no output of its own."""
    reads, words, shape, dtype = operators()[name]
    one, rank, given = meshes.Writer(), meshes.Writer(), []
    for source, (local, kind) in SOURCES.items():
        one.source(source, (6 * local[0], *local[1:]), kind)
        rows = ((3 * local[0], local[0]), *((0, 0) for _ in local[1:]))
        given.append((rank.source(source, local, kind), meshes.block(source, local, rows)))
    out = rank.step(name.partition(" ")[0], reads, shape, dtype, **words)
    program = rank.program(out=out)
    return Pair(one.program(x=0), (program,), (), (tuple(given),), ((),), (), ((),), meshes.mesh_of(SIZES))


def inputs_of(pair: Pair, seed: int) -> dict[str, np.ndarray]:
    rng = np.random.default_rng(seed)
    found = {}
    for source in pair.single.sources:
        described = pair.single.tensors[source.number]
        if described.dtype == "int64":
            found[source.name] = rng.integers(0, 3, described.shape)
        elif described.dtype == "bool":
            found[source.name] = rng.integers(0, 2, described.shape).astype(bool)
        else:
            found[source.name] = rng.normal(size=described.shape)
    return found


@pytest.mark.parametrize("name", operators())
def test_stacks_are_what_all_ranks_have(name: str) -> None:
    pair = operator_pair(name)
    wholes = inputs_of(pair, 1)
    each = meshes.rank_by_rank(pair)
    mine = [{n: part_elements(wholes[g.of], g) for n, g in row if isinstance(g, Part)} for row in each.given]
    ranks = run_ranks(each.ranks, mine)
    stacked, _ = stack_ranks(replace(pair, single=replace(pair.single, outputs=())), lambda things: None)
    given = {n: part_elements(wholes[g.of], g) for n, g in stacked.given[0] if isinstance(g, Part)}
    made = run_single(stacked.ranks[0], given)
    corners = list(np.ndindex(SIZES))
    (fast,) = run_meshes(pair.ranks, SIZES, [{n: made[n] for n, _ in pair.given[0]}], corners)
    (_, out), *_ = pair.ranks[0].outputs
    for one, values in zip(fast, ranks, strict=True):
        np.testing.assert_allclose(one[out].astype(float), values[out].astype(float), rtol=1e-12)
    expected = np.stack([values[out] for values in ranks]).reshape(*SIZES, *ranks[0][out].shape)
    np.testing.assert_allclose(made[out].astype(float), expected.astype(float), rtol=1e-12)
    assert made[out].shape == stacked.ranks[0].tensors[out].shape
    for source in pair.ranks[0].sources:
        got = np.stack([m[source.number] for m in mine]).reshape(made[source.number].shape)
        np.testing.assert_array_equal(made[source.number], got)


def check(pair: Pair) -> Verdict:
    return check_pair(pair, Budget.with_large()).verdict


@pytest.mark.parametrize("pair", [meshes.mlp(1, 4), meshes.mlp(2, 3), meshes.mlp(64, 8, 2), meshes.pipeline(4)])
def test_right_pairs_are_proved_and_keep_their_bytes(pair: Pair) -> None:
    assert check(pair) is Verdict.PROVED
    assert decode_equality(read_container(write_equality(pair))) == pair
    if sum(map(len, pair.mesh.ranks)) < 20:
        assert not differs(meshes.rank_by_rank(pair), 1)


def test_the_work_does_not_grow_with_ranks() -> None:
    spent = []
    for data, tensor in ((2, 2), (512, 16)):
        budget = Budget.with_large()
        before = budget.work
        assert check_pair(meshes.mlp(data, tensor), budget).verdict is Verdict.PROVED
        spent.append(before - budget.work)
    assert spent[1] < 2 * spent[0]


def mutant(pair: Pair, rng: random.Random) -> Pair | None:
    """A word, a move, an operand, a place, or the dimensions of a group, otherwise."""
    k = rng.randrange(len(pair.ranks))
    program, kind = (
        pair.ranks[k],
        rng.choice(["along", "op", "number", "operand", "place", "result", "dropped", "move"]),
    )
    index = rng.randrange(len(program.steps))
    step, words = program.steps[index], dict(program.steps[index].words)
    match kind:
        case "along" if "along" in words:
            words["along"] = rng.choice([(), (0,), (1,), (0, 1)][: 2 * len(pair.mesh.sizes)])
        case "op" if "op" in words:
            words["op"] = rng.choice(["sum", "avg", "max"])
        case "number" if "number" in words:
            words["number"] = words["number"] + rng.choice([-1, 1, 2])
        case "move" if "number" in words:
            words["number_moves"] = tuple(rng.randrange(2) for _ in pair.mesh.sizes)
        case "dropped" if step.operator == "all_reduce":
            step, words = replace(step, operator="reshape"), {"shape": program.tensors[step.reads[0]].shape}
        case "operand" if step.reads:
            there = [s.number for s in program.sources] + [n for s in program.steps[:index] for n in s.makes]
            same = [n for n in there if program.tensors[n] == program.tensors[step.reads[0]]]
            step = replace(step, reads=(rng.choice(same), *step.reads[1:]))
        case "place" | "result":
            rows = list(pair.given[k] if kind == "place" else pair.results[k])
            at = rng.randrange(len(rows)) if rows else 0
            if not rows or not isinstance(rows[at][1], Part) or not rows[at][1].runs:
                return None
            part = rows[at][1]
            moves = [list(m) for m in part.moves or [(0,) * len(pair.mesh.sizes)] * len(part.runs)]
            d, j = rng.randrange(len(moves)), rng.randrange(len(pair.mesh.sizes))
            moves[d][j] = rng.choice([0, 1, part.shape()[d], 2 * part.shape()[d]])
            if rng.random() < 0.3:
                moves = [m[::-1] for m in moves]
            rows[at] = rows[at][0], replace(part, moves=tuple(map(tuple, moves)) if any(map(any, moves)) else ())
            field = {"given" if kind == "place" else "results": _at(pair, k, tuple(rows), kind)}
            return replace(pair, **field)
        case _:
            return None
    steps = (*program.steps[:index], replace(step, words=tuple(words.items())), *program.steps[index + 1 :])
    changed = replace(program, steps=steps)
    return replace(pair, ranks=(*pair.ranks[:k], changed, *pair.ranks[k + 1 :])) if changed != program else None


def _at(pair: Pair, k: int, rows: tuple, kind: str) -> tuple:
    old = pair.given if kind == "place" else pair.results
    return (*old[:k], rows, *old[k + 1 :])


@pytest.mark.parametrize("number", some_or_all(10, 60))
@pytest.mark.parametrize("pair", [meshes.mlp(2, 3), meshes.mlp(2, 2, 2), meshes.pipeline(3)])
def test_mutants_are_not_proved_where_numbers_differ(pair: Pair, number: int) -> None:
    rng, seen, proved = random.Random(7), 0, 0
    while seen < number:
        found = mutant(pair, rng)
        if found is None or found == pair:
            continue
        seen += 1
        try:
            verdict = check(found)
        except ContainerError:
            continue
        if verdict is Verdict.PROVED:
            proved += 1
            assert not differs(meshes.rank_by_rank(found), 1), found
    assert proved < seen / 2


def question(pair: Pair) -> Question:
    """The question of all ranks of a pair, with numbers."""
    each, wholes = meshes.rank_by_rank(pair), inputs_of(pair, 3)
    numbers = {s.number: wholes[s.name] for s in pair.single.sources}
    ranks = [
        ProgramWithSources(p, {n: part_elements(wholes[g.of], g) for n, g in given if isinstance(g, Part)})
        for p, given in zip(each.ranks, each.given, strict=True)
    ]
    return Question(ProgramWithSources(pair.single, numbers), ranks)


@pytest.mark.parametrize(("pair", "sizes"), [(meshes.mlp(4, 2), (4, 2)), (meshes.pipeline(4), (4,))])
def test_the_mesh_of_ranks_is_found(pair: Pair, sizes: tuple[int, ...]) -> None:
    asked = question(pair)
    assert asked.differs(0) is None
    found = asked.mesh_pair()
    assert found is not None and found.mesh is not None
    assert found.mesh.sizes == sizes and found.mesh.ranks == pair.mesh.ranks
    assert check(found) is Verdict.PROVED
    assert meshes.rank_by_rank(found).ranks == meshes.rank_by_rank(pair).ranks


def with_fault(asked: Question, rank: int, index: int) -> Question:
    """The same, where a step of one rank is another."""
    ranks = list(asked.ranks)
    program = ranks[rank].program
    step = program.steps[index]
    assert step.operator == "maximum"
    steps = (*program.steps[:index], replace(step, operator="minimum"), *program.steps[index + 1 :])
    ranks[rank] = replace(ranks[rank], program=replace(program, steps=steps))
    return Question(asked.single, ranks)


def test_a_fault_of_one_rank_of_64_is_named() -> None:
    asked = with_fault(question(meshes.mlp(8, 8, 3)), 37, 6)
    found = asked.differs(0)
    assert found is not None and "of rank 37" in found.reason and found.line == "job.py:7"
    assert asked.mesh_pair() is None


@pytest.mark.slow  # 6 processor seconds: relations of 126 layers, for the line
def test_a_fault_of_one_layer_of_126_is_named() -> None:
    pair = meshes.mlp(2, 2, 126)
    program = pair.ranks[0]
    at = 76 * 5 + 1
    step = replace(program.steps[at], operator="neg", words=())
    wrong = replace(pair, ranks=(replace(program, steps=(*program.steps[:at], step, *program.steps[at + 1 :])),))
    assert check(pair) is Verdict.PROVED
    assert check(wrong) is not Verdict.PROVED
    found = question(wrong).differs(0)
    assert found is not None and found.line == f"job.py:{at + 1}"


def test_a_fault_of_one_replica_is_no_mesh() -> None:
    pair = meshes.mlp(8, 2)
    asked = question(pair)
    for rank in (6, 7):  # both tensor ranks of one replica
        asked = with_fault(asked, rank, 1)
    assert asked.differs(0) is not None and asked.mesh_pair() is None


def test_ranks_that_were_not_captured_are_an_assumption() -> None:
    pair = meshes.mlp(4, 2)
    assert "alike-ranks" not in check_pair(pair, Budget.with_large()).assumptions
    some = replace(pair, mesh=replace(pair.mesh, captured=(0, 1, 2, 7)))
    assert "alike-ranks" in check_pair(some, Budget.with_large()).assumptions


def of_corners(pair: Pair, wrong: int | None = None) -> AlikeQuestion:
    """The question of a mesh's corners; `wrong`: a step that is another one on every rank."""
    asked, stages = question(pair), len(pair.ranks)
    if wrong is not None:
        for rank in range(len(asked.ranks)):
            asked = with_fault(asked, rank, wrong)
    corners = [asked.ranks[r] for r in corner_ranks(pair.mesh.sizes, stages)]
    programs = [Captured(c.program, c.arrays, {}, ()) for c in (asked.single, *corners)]
    return alike_question(programs[0], programs[1:], pair.mesh.sizes, stages)


@pytest.mark.parametrize(
    "pair", [meshes.mlp(3, 2), meshes.mlp(64, 8), meshes.mlp(1, 5), meshes.pipeline(2), meshes.pipeline(64)]
)
def test_corners_of_a_mesh_are_enough_for_ranks_that_are_alike(pair: Pair) -> None:
    asked = of_corners(pair)
    assert asked.differs(0) is None and asked.many == sum(map(len, pair.mesh.ranks))
    found = asked.pair()
    assert found.mesh.captured == tuple(corner_ranks(pair.mesh.sizes, len(pair.ranks)))
    assert asked.outputs == sum(map(len, meshes.rank_by_rank(found).results))
    result = check_pair(found, Budget.with_large())
    assert result.verdict is Verdict.PROVED
    assert ("alike-ranks" in result.assumptions) is (len(found.mesh.captured) < asked.many)
    plain = [replace(s, line="") for s in meshes.rank_by_rank(found).ranks[-1].steps]
    assert plain == [replace(s, line="") for s in meshes.rank_by_rank(pair).ranks[-1].steps]


def test_ranks_that_are_alike_and_wrong_are_different() -> None:
    found = of_corners(meshes.mlp(8, 4, 3), 6).differs(0)
    assert found is not None and found.output == "loss" and found.rank in corner_ranks((8, 4))


def with_stage(pair: Pair, stage: int, program: RankProgram) -> Pair:
    return replace(pair, ranks=(*pair.ranks[:stage], program, *pair.ranks[stage + 1 :]))


def test_stages_whose_corners_are_alike_and_wrong_are_different() -> None:
    pair = meshes.pipeline(5)
    got, *steps = pair.ranks[1].steps
    wrong = replace(steps[0], operator="neg", reads=got.makes)
    asked = of_corners(with_stage(pair, 1, replace(pair.ranks[1], steps=(got, wrong))))
    found = asked.differs(0)
    assert found is not None and found.output == "y" and found.rank in corner_ranks((5,), 2)[3:]


def test_stages_that_wait_for_ever_are_different() -> None:
    pair = meshes.pipeline(5)
    unsent = replace(pair.ranks[0], steps=pair.ranks[0].steps[:-1])
    with pytest.raises(Stuck, match="wait for one another for ever: rank 5 at recv"):
        run_stages(with_stage(pair, 0, unsent))
    twice = replace(pair.ranks[0], steps=(*pair.ranks[0].steps, pair.ranks[0].steps[-1]))
    with pytest.raises(Stuck, match="never received: rank 0 at send"):
        run_stages(with_stage(pair, 0, twice))


def run_stages(pair: Pair) -> None:
    given = {n: np.ones((1, *pair.ranks[0].tensors[n].shape)) for n, _ in pair.given[0]}
    run_meshes(pair.ranks, pair.mesh.sizes, [given, {}], [(0,)])


def test_messages_among_the_ranks_of_a_mesh_are_refused() -> None:
    send, recv = Step("send", (0,), (), (("to", 0), ("tag", 0))), Step("recv", (), (1,), (("of", 0), ("tag", 0)))
    program = replace(meshes.mlp(4, 2).ranks[0], steps=(send, recv))
    corners = [Captured(program, {}, {}, ()) for _ in corner_ranks((4, 2))]
    with pytest.raises(InputError, match="send to one another"):
        alike_question(corners[0], corners, (4, 2))


def test_corners_that_are_not_alike_are_refused() -> None:
    asked = with_fault(question(meshes.mlp(4, 2)), 7, 1)
    corners = [asked.ranks[r] for r in corner_ranks((4, 2))]
    programs = [Captured(c.program, c.arrays, {}, ()) for c in (asked.single, *corners)]
    with pytest.raises(InputError, match=r"rank 7 is not like rank 0: minimum \(job.py:2\) in the place of maximum"):
        alike_question(programs[0], programs[1:], (4, 2))


def test_numbers_of_corners_that_do_not_move_are_refused() -> None:
    asked = of_corners(meshes.mlp(4, 2))
    program = asked.ranks[-1].program
    words = (("number", 5),)
    steps = (program.steps[0], replace(program.steps[1], words=words), *program.steps[2:])
    ranks = [*asked.ranks[:-1], replace(asked.ranks[-1], program=replace(program, steps=steps))]
    with pytest.raises(InputError, match="leave --alike out"):
        AlikeQuestion(asked.single, ranks, sizes=(4, 2)).differs(0)


def forged(pair: Pair, **fields: object) -> bytes:
    with zipfile.ZipFile(BytesIO(write_equality(pair))) as archive:
        document = json.loads(archive.read("equality.json"))
    for path, value in fields.items():
        *way, last = path.split("__")
        inner = document
        for key in way:
            inner = inner[int(key) if key.isdigit() else key]
        inner[int(last) if last.isdigit() else last] = value
    return json.dumps(document).encode()


@pytest.mark.parametrize(
    ("fields", "reason"),
    [
        ({"mesh__ranks": [[0, 1, 2, 3, 4, 4]]}, "one place"),
        ({"mesh__ranks": [[0, 1, 2, 3, 4]]}, "all coordinates"),
        ({"mesh__sizes": [2, 0]}, "must be an integer"),
        ({"mesh__captured": []}, "needs ranks"),
        ({"mesh__captured": [9]}, "must be an integer"),
        ({"given__0__0__1__3": [[2, 0]]}, "moves for every dimension"),
        ({"given__0__0__1__3": [[0, 0], [0, 0]]}, "one that moves"),
    ],
)
def test_meshes_that_are_none_are_refused(fields: dict[str, object], reason: str) -> None:
    with pytest.raises(ContainerError, match=reason):
        decode_equality({"equality.json": forged(meshes.mlp(2, 3), **fields)})


def test_parts_do_not_move_without_a_mesh() -> None:
    pair = replace(meshes.mlp(2, 3), mesh=None)
    with pytest.raises(ContainerError, match="no mesh"):
        decode_equality(read_container(write_equality(pair)))


@pytest.mark.parametrize(
    ("words", "error"),
    [
        ({"op": "sum", "along": (2,)}, Malformed),
        ({"op": "sum", "along": (1, 0)}, Malformed),
        ({"op": "sum", "ranks": (0, 1)}, Malformed),
        ({"op": "sum", "along": (1,), "number_moves": (1, 1)}, Malformed),
        ({"op": "product", "along": (1,)}, Undecided),
        ({"op": "sum", "along": (1,), "more": 1}, Malformed),
    ],
)
def test_words_that_a_mesh_does_not_have_are_refused(words: dict[str, Word], error: type[Exception]) -> None:
    pair = meshes.mlp(2, 3)
    with pytest.raises(error):
        stack_ranks(replace(pair, ranks=(_with_words(pair.ranks[0], 3, words),)), lambda things: None)


def _with_words(program: RankProgram, index: int, words: dict[str, Word]) -> RankProgram:
    step = replace(program.steps[index], words=tuple(words.items()))
    assert step.operator == "all_reduce"
    return replace(program, steps=(*program.steps[:index], step, *program.steps[index + 1 :]))


def test_a_barrier_of_a_mesh_changes_nothing() -> None:
    pair = meshes.mlp(4, 2)
    program = pair.ranks[0]
    steps = (*program.steps[:2], Step("barrier", (), (), (("along", (0, 1)),)), *program.steps[2:])
    stopped = replace(pair, ranks=(replace(program, steps=steps),))
    found = of_corners(stopped)
    assert found.differs(0) is None and check(stopped) is check(found.pair()) is Verdict.PROVED
    for words in ((("along", (2,)),), (("ranks", (0, 1)),), (("along", (0,)), ("op", "sum"))):
        wrong = replace(program, steps=(*program.steps[:2], Step("barrier", (), (), words), *program.steps[2:]))
        with pytest.raises(Malformed):
            stack_ranks(replace(pair, ranks=(wrong,)), lambda things: None)


def test_positions_that_no_rank_has_are_missed() -> None:
    pair = meshes.mlp(2, 3)
    ((loss, (name, y)),) = pair.results
    result = check_pair(replace(pair, results=((loss, (name, replace(y, moves=()))),)), Budget.with_large())
    assert result.verdict is Verdict.UNDECIDED
