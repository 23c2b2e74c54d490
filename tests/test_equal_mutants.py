"""The checker of equality beside numbers: programs of ranks that are changed are never proved equal where numbers differ.

The pairs of `tests/data/equality` are right ones of `equality_pairs.py`, captured with PyTorch and kept, so that nothing
here needs it.  Numbers are NumPy's (`formal.equality.numbers`), which shares nothing with forms but the order of steps.
"""

from __future__ import annotations

import json
import random
import zipfile
from collections.abc import Sequence
from dataclasses import replace
from io import BytesIO
from pathlib import Path
from zlib import crc32

import numpy as np
import pytest
from budgets import some_or_all

from shardproof.formal.equality.numbers import run_ranks, run_single
from shardproof.formal.equality.parts import alike, part_elements
from shardproof.models.equality.pair import Known, Pair, Part
from shardproof.models.equality.program import Described, RankProgram, Source, Step
from shardproof.models.equality.schedule import Stuck
from shardproof.models.problem.claims import Verdict
from shardproof.proofs.container.archive import read_container
from shardproof.proofs.container.canonical import ContainerError
from shardproof.proofs.equality.file import decode_equality, write_equality
from shardproof.verify.budget import Budget
from shardproof.verify.equality.certificate import check_pair

DATA = Path(__file__).parent / "data" / "equality"
PAIRS = {p.stem: decode_equality(read_container(p.read_bytes())) for p in sorted(DATA.glob("*.spz"))}
CHEAP = ("embedding_vp", "fused_tp", "grid", "mlp_tp", "pipeline", "token_mean_dp")
PACKED = ("small_ddp", "small_fsdp")
"""Pairs whose ranks send many tensors in one flat buffer."""
DEAR = ("sorted_experts_tp", "windows_dp")
"""Pairs of which a mutant takes seconds: sorted tokens and grouped products, a convolution with pools."""


@pytest.mark.parametrize("name", PAIRS)
def test_right_pairs_are_proved_and_keep_their_bytes(name: str) -> None:
    pair = PAIRS[name]
    assert check_pair(pair, Budget.with_large()).verdict is Verdict.PROVED
    assert decode_equality(read_container(write_equality(pair))) == pair
    assert not differs(pair, 1)


def differs(pair: Pair, seed: int) -> bool:
    """Whether numbers differ: an output of a rank from its part, or ranks that wait for ever."""
    rng, single = np.random.default_rng(seed), pair.single
    known, given = dict(pair.constants), {}
    for source in single.sources:
        shape = single.tensors[source.number].shape
        if source.number in known:
            value = known[source.number].number
            given[source.number] = np.full(shape, value) if value is not None else _bytes(known[source.number], shape)
        elif single.tensors[source.number].dtype.startswith("int"):
            given[source.number] = rng.integers(0, 24, size=shape)
        else:
            given[source.number] = rng.normal(size=shape)
    names = {s.name: given[s.number] for s in single.sources}
    inputs = []
    for program, row in zip(pair.ranks, pair.given, strict=True):
        mine = {}
        for number, what in row:
            shape = program.tensors[number].shape
            if isinstance(what, Part):
                mine[number] = part_elements(names[what.of], what)
            else:
                mine[number] = np.full(shape, what.number) if what.number is not None else _bytes(what, shape)
        inputs.append(mine)
    whole = run_single(single, given)
    outputs = dict(single.outputs)
    try:
        values = run_ranks(pair.ranks, inputs)
    except IndexError:  # an index outside its tensor: the claim is about inputs on which both programs are defined
        return False
    except (Stuck, ValueError):
        return True
    for rank, results in enumerate(pair.results):
        numbers = dict(pair.ranks[rank].outputs)
        for name, part in results:
            if not alike(values[rank][numbers[name]], part_elements(whole[outputs[part.of]], part)):
                return True
    return False


def _bytes(known: Known, shape: tuple[int, ...]) -> np.ndarray:
    """A constant of which only the hash is kept: any numbers, the same for the same hash."""
    return np.random.default_rng(crc32(known.content.encode())).normal(size=shape)


KINDS = ("dropped", "op", "scaled", "slice", "number", "operand", "part", "function", "ranks", "swapped", "packed")


def mutant(pair: Pair, rng: random.Random, kinds: Sequence[str] = KINDS) -> Pair | None:
    """A pair with one step, one part, or one group of one rank changed, or of all ranks alike."""
    kind = rng.choice(kinds)
    if kind == "part":
        rank = rng.randrange(len(pair.ranks))
        rows = [(n, g) for n, g in pair.given[rank] if isinstance(g, Part)]
        other = pair.given[rng.randrange(len(pair.ranks))]
        number, _ = rng.choice(rows)
        new = dict(other).get(number)
        if new is None or new == dict(pair.given[rank])[number]:
            return None
        row = tuple((n, new if n == number else g) for n, g in pair.given[rank])
        return replace(pair, given=(*pair.given[:rank], row, *pair.given[rank + 1 :]))
    if kind == "swapped":
        a, b = rng.sample(range(len(pair.ranks)), 2)
        rows = list(pair.results)
        rows[a], rows[b] = rows[b], rows[a]
        return replace(pair, results=tuple(rows)) if rows != list(pair.results) else None
    everywhere = rng.random() < 0.5
    first = rng.randrange(len(pair.ranks))
    index = rng.randrange(len(pair.ranks[first].steps))
    programs = []
    for rank, program in enumerate(pair.ranks):
        if rank != first and not (everywhere and index < len(program.steps)):
            programs.append(program)
            continue
        changed = _changed(program, index, kind, random.Random(index * 7 + 1))
        if changed is None:
            return None
        programs.append(changed)
    return replace(pair, ranks=tuple(programs))


def forged(pair: Pair, rng: random.Random) -> Pair:
    """A pair whose relations say of some tensors that they are others, or elsewhere."""
    alike_ = dict[tuple[int, ...], list[int]]()
    for number in {n for s in pair.single.steps for n in s.makes}:
        alike_.setdefault(pair.single.tensors[number].shape, []).append(number)
    rows = []
    for row in pair.relations:
        new = []
        for r in row:
            whole = rng.choice(alike_.get(pair.single.tensors[r.whole].shape, [r.whole]))
            runs = list(r.runs)
            if rng.random() < 0.5:
                sizes = pair.single.tensors[r.whole].shape
                runs = [
                    ((0, rng.randint(0, m - d[-1][0] - d[-1][2]), d[-1][0] + d[-1][2]),) for d, m in zip(runs, sizes)
                ]
            new.append(replace(r, whole=whole, runs=tuple(runs)) if rng.random() < 0.5 else r)
        rows.append(tuple(new))
    return replace(pair, relations=tuple(rows))


def _changed(program: RankProgram, index: int, kind: str, rng: random.Random) -> RankProgram | None:
    step = program.steps[index]
    words = dict(step.words)
    match kind:
        case "dropped" if "ranks" in words and step.operator in ("all_reduce", "broadcast"):
            shape = program.tensors[step.reads[0]].shape
            new = Step("reshape", step.reads, step.makes, (("shape", shape),), step.line)
        case "op" if "op" in words:
            new = _said(step, {**words, "op": {"sum": "avg", "avg": "sum", "max": "sum"}[str(words["op"])]})
        case "scaled" if step.operator in ("matmul", "sum", "exp", "where"):
            last = len(program.tensors)
            made = program.tensors[step.makes[0]]
            steps = list(program.steps)
            steps[index : index + 1] = [
                replace(step, makes=(last,)),
                Step("mul", (last,), step.makes, (("number", 2.0),), step.line),
            ]
            return replace(program, steps=tuple(steps), tensors=(*program.tensors, made))
        case "slice" if step.operator == "slice" and words["step"] == 1:
            size = program.tensors[step.reads[0]].shape[int(words["dim"])]  # type: ignore[arg-type]
            start, stop = int(words["start"]), int(words["stop"])  # type: ignore[arg-type]
            by = 1 if stop < size else -1
            if stop + by > size or start + by < 0:
                return None
            new = _said(step, {**words, "start": start + by, "stop": stop + by})
        case "packed" if step.operator == "slice_scatter":
            size, start, stop = (program.tensors[step.reads[0]].shape[int(words["dim"])], words["start"], words["stop"])  # type: ignore[arg-type]
            by = rng.choice([b for b in (-2, -1, 1, 2) if start + b >= 0 and stop + b <= size] or [0])  # type: ignore[operator]
            if not by:
                return None
            new = _said(step, {**words, "start": start + by, "stop": stop + by})  # type: ignore[operator]
        case "packed" if step.operator in ("cat", "all_gather", "reduce_scatter"):
            if step.operator == "cat":
                shapes = [program.tensors[i].shape for i in step.reads]
                if len(set(shapes)) > 1 or len(shapes) < 2:
                    return None
                new = replace(step, reads=step.reads[::-1])
            else:
                new = _said(step, {**words, "ranks": words["ranks"][::-1]})  # type: ignore[index]
        case "number" if "number" in words or "value" in words:
            key = "number" if "number" in words else "value"
            new = _said(step, {**words, key: float(words[key]) + 1.0})  # type: ignore[arg-type]
        case "operand" if len(step.reads) == 2 and step.operator in ("sub", "div", "add", "mul"):
            alike_ = [
                s.makes[0]
                for s in program.steps[:index]
                if s.makes
                and program.tensors[s.makes[0]] == program.tensors[step.reads[0]]
                and s.makes[0] != step.reads[0]
            ]
            if not alike_:
                return None
            new = replace(step, reads=(rng.choice(alike_), step.reads[1]))
        case "function" if step.operator in ("add", "sub", "mul", "exp", "amax", "gt", "tanh", "erf"):
            other = {"add": "sub", "sub": "add", "mul": "add", "exp": "neg", "amax": "sum", "gt": "lt", "tanh": "erf"}
            new = replace(step, operator=other.get(step.operator, "tanh"))
        case "ranks" if step.operator == "broadcast":
            ranks = words["ranks"]
            new = _said(step, {**words, "source": next(r for r in ranks if r != words["source"])})  # type: ignore[union-attr]
        case _:
            return None
    return replace(program, steps=(*program.steps[:index], new, *program.steps[index + 1 :]))


def _said(step: Step, words: dict[str, object]) -> Step:
    return replace(step, words=tuple(words.items()))  # type: ignore[arg-type]


def hunt(
    count: int, seed: int, names: Sequence[str] = tuple(sorted({*PAIRS} - {*DEAR}))
) -> tuple[int, int, int, list[str]]:
    """So many mutants: how many are proved, refuted by numbers, left open; those that are proved where numbers differ."""
    rng, proved, refuted, open_, wrong = random.Random(seed), 0, 0, 0, list[str]()
    done = 0
    while done < count:
        name = rng.choice(names)
        found = mutant(PAIRS[name], rng)
        if found is None:
            continue
        done += 1
        found = forged(found, rng) if rng.random() < 0.5 else found
        different = any(differs(found, k) for k in (1, 2))
        try:
            verdict = check_pair(found, Budget.with_large()).verdict
        except ContainerError:
            verdict = Verdict.UNDECIDED
        if verdict is Verdict.PROVED:
            proved += 1
            if different:
                wrong.append(f"{name}, mutant {done} of seed {seed}")
        else:
            refuted, open_ = refuted + different, open_ + (not different)
    return proved, refuted, open_, wrong


@pytest.mark.parametrize("number", some_or_all(8, 40))
def test_no_mutant_is_proved_where_numbers_differ(number: int) -> None:
    proved, refuted, open_, wrong = hunt(number, 0, CHEAP)
    assert not wrong
    assert refuted > number // 2 and proved + refuted + open_ == number


@pytest.mark.parametrize("number", some_or_all(5, 40))
def test_no_mutant_of_flat_buffers_is_proved_where_numbers_differ(number: int) -> None:
    proved, refuted, open_, wrong = hunt(number, 1, PACKED)
    assert not wrong
    assert refuted > number // 2 and proved + refuted + open_ == number


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(8))
def test_no_mutant_of_all_pairs_is_proved_where_numbers_differ(seed: int) -> None:
    proved, refuted, open_, wrong = hunt(250, seed)
    assert not wrong and proved + refuted + open_ == 250


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(10))
@pytest.mark.parametrize("name", DEAR)
def test_no_mutant_of_windows_and_sorted_rows_is_proved_where_numbers_differ(name: str, seed: int) -> None:
    proved, refuted, open_, wrong = hunt(8, seed, (name,))  # up to 14 s each
    assert not wrong and proved + refuted + open_ == 8


def _rewritten(name: str, change: object) -> bytes:
    """A file whose JSON has gone through `change`, with hashes that fit."""
    from shardproof.proofs.container.archive import write_container
    from shardproof.proofs.container.canonical import canonical

    with zipfile.ZipFile(BytesIO((DATA / f"{name}.spz").read_bytes())) as archive:
        head = json.loads(archive.read("equality.json"))
    change(head)  # type: ignore[operator]
    return write_container(None, {"equality.json": canonical(head)})


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (lambda h: h.update(format="shardproof-equality/0"), "reads"),
        (lambda h: h["single"]["steps"][0].__setitem__(1, [9999]), "9999|reads"),
        (lambda h: h["programs"][0]["steps"].reverse(), "no step before"),
        (lambda h: h["results"].pop(), "as many lists"),
        (lambda h: h["given"][0].pop(), "given once"),
        (lambda h: h["results"][0][0][1][2][0].__setitem__(0, [0, 5, 99]), "inside the whole|hold"),
        (lambda h: h["single"]["outputs"].clear(), "needs an output|no such"),
        (lambda h: h["ranks"].__setitem__(0, 77), "out of range"),
        (lambda h: h["relations"].pop(), "as many lists of relations"),
        (lambda h: h["relations"][0].append(h["relations"][0][0]), "once"),
        (lambda h: h["relations"][0][0].__setitem__(1, 9999), "out of range"),
        (lambda h: h["relations"][0][0][2][0].__setitem__(0, [0, 0, 1]), "hold"),
    ],
)
def test_malformed_files_are_refused(change: object, words: str) -> None:
    with pytest.raises(ContainerError, match=words):
        decode_equality(read_container(_rewritten("mlp_tp", change)))


@pytest.mark.parametrize("name", CHEAP)
def test_forged_relations_are_believed_by_nobody(name: str) -> None:
    """What a relation says wrongly is not used; right programs stay proved or become undecided, never refuted."""
    rng = random.Random(name)
    verdicts = {check_pair(forged(PAIRS[name], rng), Budget.with_large()).verdict for _ in range(2)}
    assert verdicts <= {Verdict.PROVED, Verdict.UNDECIDED}


def test_an_output_that_is_left_out_is_not_proved() -> None:
    def change(head: dict[str, list[list[object]]]) -> None:
        head["results"][1].pop()

    pair = decode_equality(read_container(_rewritten("mlp_tp", change)))
    result = check_pair(pair, Budget.with_large())
    assert result.verdict is Verdict.UNDECIDED and "no part" in result.reason


def test_positions_that_no_rank_has_are_not_proved() -> None:
    pair = PAIRS["norm_sp"]
    results = tuple(
        tuple((n, replace(p, runs=pair.results[0][i][1].runs)) for i, (n, p) in enumerate(row)) for row in pair.results
    )
    programs = (pair.ranks[0], pair.ranks[0])
    given = (pair.given[0], pair.given[0])
    found = check_pair(replace(pair, results=results, ranks=programs, given=given), Budget.with_large())
    assert found.verdict is not Verdict.PROVED


def test_a_shape_that_no_run_has_is_refused() -> None:
    def change(head: dict[str, dict[str, list[list[object]]]]) -> None:
        number = head["single"]["outputs"][0][1]
        head["single"]["tensors"][number][0] = [1, 8, 16]  # type: ignore[index]
        for row in head["results"]:
            row[0][1][2][0] = [[0, 0, 1]]  # type: ignore[index, call-overload]
        for program in head["programs"]:
            program["tensors"][program["outputs"][0][1]][0] = [1, 8, 16]  # type: ignore[call-overload, index]

        head["relations"] = [[] for _ in head["relations"]]  # type: ignore[assignment]

    pair = decode_equality(read_container(_rewritten("mlp_tp", change)))
    with pytest.raises(ContainerError, match="the program says"):
        check_pair(pair, Budget.with_large())


def test_a_slice_outside_its_tensor_is_not_proved() -> None:
    """It has the shape that is said, and no position: nothing would be compared."""
    shape = Described((4,), "float32")
    cut = (("dim", 0), ("start", 4), ("stop", 6), ("step", 1))
    tensors = (shape, Described((2,), "float32"))
    single = RankProgram(
        (Source(0, "x", "input"),),
        (Step("slice", (0,), (1,), (("dim", 0), ("start", 0), ("stop", 2), ("step", 1))),),
        (("output", 1),),
        tensors,
    )
    rank = replace(single, steps=(Step("slice", (0,), (1,), cut),))
    whole, made = Part("x", (((0, 0, 4),),)), Part("output", (((0, 0, 2),),))
    pair = Pair(single, (rank,), (), (((0, whole),),), ((("output", made),),), (), ((),))
    assert check_pair(pair, Budget.with_large()).verdict is Verdict.UNDECIDED
    assert check_pair(replace(pair, ranks=(single,)), Budget.with_large()).verdict is Verdict.PROVED


@pytest.mark.parametrize(
    ("operator", "kinds"),
    [
        ("logical_and", ("float32", "float32", "bool")),
        ("add", ("bool", "bool", "bool")),
        ("maximum", ("float32", "int64", "int64")),
        ("mul", ("float32", "float32", "int32")),
    ],
)
def test_operators_that_mean_something_else_of_their_types_are_undecided(
    operator: str, kinds: tuple[str, str, str]
) -> None:
    tensors = tuple(Described((2,), kind) for kind in kinds)
    sources = (Source(0, "x", "input"), Source(1, "y", "input"))
    program = RankProgram(sources, (Step(operator, (0, 1), (2,)),), (("output", 2),), tensors)
    runs = (((0, 0, 2),),)
    given = ((0, Part("x", runs)), (1, Part("y", runs)))
    pair = Pair(program, (program,), (), (given,), ((("output", Part("output", runs)),),), (), ((),))
    assert check_pair(pair, Budget.with_large()).verdict is Verdict.UNDECIDED


def test_a_cast_that_lies_about_its_types_is_refused() -> None:
    tensors = (Described((2,), "float32"), Described((2,), "int64"))
    cast = Step("cast", (0,), (1,), (("dtype", "int64"), ("was", "int32")))
    program = RankProgram((Source(0, "x", "input"),), (cast,), (("output", 1),), tensors)
    runs = (((0, 0, 2),),)
    pair = Pair(program, (program,), (), (((0, Part("x", runs)),),), ((("output", Part("output", runs)),),), (), ((),))
    with pytest.raises(ContainerError, match="says int32"):
        check_pair(pair, Budget.with_large())


def _with_runs(runs: list[list[int]]) -> bytes:
    """A file in which the first part of the first rank has these runs in its first dimension."""

    def change(head: dict[str, list]) -> None:
        row = next(r for r in head["given"][0] if r[1][0] == "part" and r[1][2])
        row[1][2][0] = runs or [[0, 0, 0], *row[1][2][0]]

    return _rewritten("mlp_tp", change)


def test_runs_of_no_positions_stand_alone() -> None:
    with pytest.raises(ContainerError, match="stands alone"):
        decode_equality(read_container(_with_runs([])))
    with pytest.raises(ContainerError, match="runs hold 0 positions"):
        decode_equality(read_container(_with_runs([[0, 0, 0]])))


def test_floors_are_of_integers() -> None:
    with pytest.raises(ContainerError, match="no integer input"):
        decode_equality(read_container(_rewritten("mlp_tp", lambda h: h["floors"].append("p.w1"))))


def test_a_group_without_its_rank_is_refuted() -> None:
    pair = PAIRS["mlp_tp"]
    program = pair.ranks[0]
    for ranks in ((1, 2, 3), (0, 0, 1, 2)):
        steps = tuple(
            replace(s, words=tuple((k, ranks if k == "ranks" else w) for k, w in s.words)) for s in program.steps
        )
        found = check_pair(replace(pair, ranks=(replace(program, steps=steps), *pair.ranks[1:])), Budget.with_large())
        assert found.verdict is Verdict.REFUTED and "not once" in found.reason


def test_different_collectives_are_refuted() -> None:
    pair = PAIRS["mlp_tp"]
    program = pair.ranks[0]
    k = next(i for i, s in enumerate(program.steps) if s.operator == "all_reduce")
    words = tuple((a, "max" if a == "op" else w) for a, w in program.steps[k].words)
    steps = (*program.steps[:k], replace(program.steps[k], words=words), *program.steps[k + 1 :])
    found = check_pair(replace(pair, ranks=(replace(program, steps=steps), *pair.ranks[1:])), Budget.with_large())
    assert found.verdict is Verdict.REFUTED and "different collectives" in found.reason
