"""Verb `equal`: what people got wrong in public reports is different, with the tensor named; the right variants are
equal, proved, and kept.
"""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

torch = pytest.importorskip("torch")

import equality_attacks as attacks
import equality_pairs as pairs

import shardproof
from shardproof.__main__ import run as command
from shardproof.formal.equality.question import ProgramWithSources, Question
from shardproof.models.problem.claims import Verdict
from shardproof.models.sources.distributed.capture import Unreadable, capture
from shardproof.models.text import InputError
from shardproof.proofs.container.archive import read_container
from shardproof.proofs.equality.file import decode_equality
from shardproof.verify.budget import Budget
from shardproof.verify.equality.certificate import check_pair

pytestmark = pytest.mark.torch
FILE = Path(pairs.__file__)
CASES = [(s, right, ranks, grad, "equal") for s, right, _, ranks, grad in pairs.FAMILIES] + [
    (s, wrong, ranks, grad, "different") for s, _, many, ranks, grad in pairs.FAMILIES for wrong in many
]


def run(capsys: pytest.CaptureFixture[str], *words: str) -> tuple[int, dict[str, object]]:
    code = command([*words, "--json"])
    return code, json.loads(capsys.readouterr().out)


@pytest.mark.parametrize(
    ("single", "distributed", "ranks", "grad", "verdict"), CASES, ids=[f"{c[1]}-{c[2]}" for c in CASES]
)
def test_families(
    single: str,
    distributed: str,
    ranks: int,
    grad: bool,
    verdict: str,
    capsys: pytest.CaptureFixture[str],
    tmp_path: Path,
) -> None:
    words = [f"{FILE}:{single}", f"{FILE}:{distributed}", "--ranks", str(ranks), "-o", str(tmp_path / "c.spz")]
    code, found = run(capsys, "equal", *words, *(["--grad"] if grad else []))
    assert (code, found["verdict"]) == ({"equal": 0, "different": 10}[verdict], verdict), found["reason"]
    if verdict == "equal":
        code, checked = run(capsys, "check", str(tmp_path / "c.spz"))
        assert code == 0 and checked["verdict"] == "proved"
    else:
        assert found["output"] or "collectives" in str(found["reason"])
        assert not (tmp_path / "c.spz").exists()


def test_a_part_of_a_sum_is_different_unless_it_is_asked_for(
    capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    words = [f"{FILE}:mlp_open", f"{FILE}:mlp_open_tp", "--ranks", "2"]
    assert run(capsys, "equal", *words)[1]["verdict"] == "different"
    layouts = tmp_path / "layouts.json"
    layouts.write_text('{"outputs": {"output": {"partial": "sum"}}}')
    assert run(capsys, "equal", *words, "--layouts", str(layouts))[1]["verdict"] == "equal"
    layouts.write_text('{"outputs": {"output": {"partial": "mean"}}}')
    assert run(capsys, "equal", *words, "--layouts", str(layouts))[1]["verdict"] == "different"
    layouts.write_text('{"outputs": {"output": {"partial": "product"}}}')
    assert command(["equal", *words, "--layouts", str(layouts)]) == 3
    for said, why in (
        ('{"outputs": {"nothing": "whole"}}', "has no output 'nothing'"),
        ('{"inputs": {"nothing": "whole"}}', "no rank has a tensor 'nothing'"),
        ('{"inputs": {"p.w1": {"shard": 0}}}', "has shape (16, 16), its part would be (8, 32)"),
    ):
        layouts.write_text(said)
        capsys.readouterr()
        assert command(["equal", *words, "--layouts", str(layouts)]) == 3
        assert why in capsys.readouterr().err


def _loss(x: torch.Tensor) -> Any:
    w = torch.randn(6, 3, generator=torch.Generator().manual_seed(5))

    def called(x: torch.Tensor) -> dict[str, torch.Tensor]:
        return {"loss": (x @ w).pow(2).mean(), "rows": torch.tensor(len(x)) + 0 * x.sum().long()}

    return called, (x,)


def _own_loss(rank: int, ranks: int, scale: float = 1.0, again: bool = False, uneven: bool = False) -> Any:
    """A rank's loss under data parallelism: of its own rows."""
    first, last = (0, 1) if uneven and not rank else (1, 4) if uneven else (rank * 4 // ranks, (rank + 1) * 4 // ranks)
    called, given = _loss(ROWS[0 if again else first : last - first if again else last].clone())
    return lambda x: {n: t * scale if n == "loss" else t for n, t in called(x).items()}, given


AVERAGE = (("op", "avg"),)


def test_a_mean_over_ranks_is_replayed(tmp_path: Path) -> None:
    def mean(**words: Any) -> Any:
        said = {"outputs": {"output.loss": {"partial": "mean"}, "output.rows": {"partial": "sum"}}}
        return shardproof.equal(
            lambda: _loss(ROWS), lambda r, n: _own_loss(r, n, **words), ranks=2, grad=False, layouts=said
        )

    found = mean()
    assert found, str(found)
    found.save(tmp_path / "c.spz")
    assert command(["check", str(tmp_path / "c.spz")]) == 0
    pair = decode_equality(read_container((tmp_path / "c.spz").read_bytes()))
    forged = tuple(
        replace(
            p,
            steps=tuple(
                replace(s, words=(("op", "sum"), *s.words[1:])) if s.words[:1] == AVERAGE else s for s in p.steps
            ),
        )
        for p in pair.ranks
    )
    assert forged != pair.ranks
    assert check_pair(replace(pair, ranks=forged), Budget.with_large()).verdict is not Verdict.PROVED
    for words in ({"scale": 0.5}, {"again": True}, {"uneven": True}):
        wrong = mean(**words)
        assert wrong.answer == "different" and wrong.output == "output.loss", (words, str(wrong))
    bare = shardproof.equal(lambda: _loss(ROWS), _own_loss, ranks=2)
    assert bare.answer == "different"
    with pytest.raises(InputError, match="'output.rows' has type int64"):
        said = {"outputs": {"output.rows": {"partial": "mean"}}}
        shardproof.equal(lambda: _loss(ROWS), _own_loss, ranks=2, layouts=said)


def test_what_is_written_down_is_what_ran() -> None:
    """Every single program on its own inputs, in NumPy, beside what PyTorch gave."""
    import numpy as np

    from shardproof.formal.equality.numbers import run_single

    for single, _, _, _, grad in pairs.FAMILIES:
        held = capture(getattr(pairs, single), None, 1, grad)
        values = run_single(
            held.program, {n: np.asarray(a, np.float64) if a.dtype.kind == "f" else a for n, a in held.arrays.items()}
        )
        for (name, number), result in zip(held.program.outputs, held.results, strict=True):
            assert np.allclose(values[number], result, rtol=1e-3, atol=1e-4), (single, name)


@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("draws", "random"),
        ("reads_host", "on the host"),
        ("picks", "depends on data"),
        ("nothing", "returns no tensor"),
    ],
)
def test_what_cannot_be_read_is_refused_by_name(name: str, words: str) -> None:
    with pytest.raises(Unreadable, match=words):
        capture(getattr(pairs, name), None, 1, False)


def _numbers(t: torch.Tensor) -> torch.Tensor:
    return t * torch.from_numpy(t.detach().numpy() * 2)


def _branch(t: torch.Tensor) -> torch.Tensor:
    return t if t.tolist()[0][0] > 0 else -t


def _given(t: torch.Tensor) -> torch.Tensor:
    v, i = torch.zeros(4), torch.zeros(4, dtype=torch.long)
    seen = v[:2]
    torch.max(t, 1, out=(v, i))
    return seen + t[0, :2]


def _strided(t: torch.Tensor) -> torch.Tensor:
    z = torch.zeros(4)
    z.as_strided((2,), (1,)).fill_(3)
    return t + z


@pytest.mark.parametrize(
    "read",
    [
        lambda t: t * 2 if "nan" in repr(t) else t,
        lambda t: t * 2 if "-" in str(t) else t,
        lambda t: t * 2 if "-" in f"{t}" else t,
        lambda t: t * 2 if f"{t.sum():.1f}" == "0.0" else t,
    ],
)
def test_texts_of_data_are_refused_as_numbers_are(read: Any) -> None:
    with pytest.raises(Unreadable, match="on the host"):
        capture(lambda: (read, (ONCE,)), None, 1, False)


def test_texts_of_constants_and_shapes_are_none_of_data() -> None:
    def called(t: torch.Tensor) -> torch.Tensor:
        return t * len(repr(torch.ones(2))) if f"{t.shape}" else t

    assert capture(lambda: (called, (ONCE,)), None, 1, False).program.outputs


def _rows(many: int) -> Any:
    return lambda: (lambda x, y: {"x": x * 2, "y": (y @ torch.ones(6, 3)).sum()}, (ROWS[:many], ROWS[:0]))


ROWS = torch.randn(4, 6, generator=torch.Generator().manual_seed(4))


def test_ranks_may_have_no_positions(tmp_path: Path) -> None:
    """Of a tensor that is shorter than there are ranks, and of one that has none at all; their certificate is read."""

    def ranks(rank: int, many: int) -> Any:
        return (lambda x, y: {"x": x * 2, "y": (y @ torch.ones(6, 3)).sum()}), (ROWS[rank : min(rank + 1, 3)], ROWS[:0])

    found = shardproof.equal(_rows(3), ranks, ranks=4)
    assert found, str(found)
    found.save(tmp_path / "c.spz")
    assert command(["check", str(tmp_path / "c.spz")]) == 0
    lost = shardproof.equal(_rows(4), ranks, ranks=4)
    assert lost.answer == "undecided" and "no rank has" in str(lost)


ONCE = torch.randn(4, 4, generator=torch.Generator().manual_seed(3))
LOOKALIKES: dict[str, tuple[Any, Any, str]] = {
    "alpha of a number": (lambda t: t * 1 + torch.add(t, 1, alpha=2), lambda t: t + t + t, "different"),
    "alpha by position": (lambda t: torch.rsub(t, 2, alpha=3), lambda t: 2 - t, "different"),
    "decimals": (lambda t: torch.round(t, decimals=2), torch.round, "different"),
    "a narrow index": (lambda t: t.scatter(1, torch.tensor([[1], [0], [3], [2]]), t), lambda t: t * 1, "different"),
    "a branch on data": (_branch, lambda t: t * 1, "refused"),
    "numbers of an array": (_numbers, lambda t: t * (ONCE * 2), "refused"),
    "tensors of a list": (lambda t: torch._foreach_mul([t], 2.0)[0] + t, lambda t: ONCE * 2 + t, "refused"),
    "tensors passed in": (_given, lambda t: t[0, :2] * 1, "refused"),
    "a view by strides": (_strided, lambda t: t * 1, "different"),
    "a view out of order": (lambda t: t + t.as_strided((4, 4), (1, 4)), lambda t: t * 2, "refused"),
    "a view of what lies in two places": (lambda t: t.as_strided((2, 2), (1, 1)).sum(), lambda t: t.sum(), "refused"),
    "numbers beyond doubles": (
        lambda t: (t * 0).long() + torch.full((4,), 2**53 + 1),
        lambda t: (t * 0).long() + torch.full((4,), 2**53),
        "undecided",
    ),
}


@pytest.mark.parametrize("name", LOOKALIKES)
def test_what_only_looks_alike_is_not_equal(name: str) -> None:
    """Pairs that were proved equal and are not: a word of an operator that was dropped, a value that was frozen."""
    ranks, single, verdict = LOOKALIKES[name]
    try:
        one = capture(lambda: (single, (ONCE,)), None, 1, False)
        many = [capture(lambda rank, n: (ranks, (ONCE,)), r, 2, False) for r in range(2)]
    except Unreadable:
        assert verdict == "refused"
        return
    question = Question(
        ProgramWithSources(one.program, one.arrays), [ProgramWithSources(m.program, m.arrays) for m in many]
    )
    if question.differs(0) is not None:
        assert verdict == "different"
        return
    assert verdict == "undecided"
    assert check_pair(question.pair(), Budget.with_large()).verdict is Verdict.UNDECIDED


def test_steps_that_give_other_numbers_than_the_run_are_refused(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """An operator that is read wrongly: its own run says so, whatever the proof would."""
    from shardproof.models.sources.distributed import operators

    monkeypatch.setitem(operators.HANDLERS, "erf", operators.HANDLERS["tanh"])  # type: ignore[index]
    code = command(["equal", f"{FILE}:mlp", f"{FILE}:gathered", "--ranks", "2"])
    assert code == 3 and "SINGLE: the steps that were written down give another 'output'" in capsys.readouterr().err


def test_a_word_that_is_dropped_behind_a_collective_is_seen(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """An operator that is read wrongly in a program that communicates, and on ranks alone."""
    from shardproof.models.sources.distributed import operators

    def as_tanh(recorder: Any, args: Any, kwargs: Any, out: Any) -> Any:
        name = "tanh" if recorder.received else "erf"
        return recorder.step(name, (recorder.number(args[0]),), {}, ((tuple(out.shape), out.dtype),))

    monkeypatch.setitem(operators.HANDLERS, "erf", as_tanh)  # type: ignore[index]
    code = command(["equal", f"{FILE}:gelu_of_sum", f"{FILE}:gelu_of_sum_tp", "--ranks", "2"])
    assert code == 3 and "rank 0: the steps that were written down give another" in capsys.readouterr().err


@pytest.mark.parametrize("ranks", [2, 4])
def test_collectives_give_what_gloo_ranks_give(ranks: int, tmp_path: Path) -> None:
    """Our reading of every collective, and whole programs, beside real ranks."""
    import subprocess
    import sys

    import equality_job as job
    import numpy as np

    from shardproof.formal.equality.numbers import run_ranks

    programs = [n for _, right, wrong, many, _ in pairs.FAMILIES if many == ranks for n in (right, *wrong)]
    cases = [*job.CASES, *(p for p in programs if p not in ("ordered_otherwise",))]
    words = [sys.executable, job.__file__]
    running = [
        subprocess.Popen([*words, str(r), str(ranks), str(tmp_path / "store"), str(tmp_path), *cases])
        for r in range(ranks)
    ]
    try:
        codes = [process.wait(timeout=300) for process in running]
    finally:
        for process in running:
            process.kill()
    assert codes == [0] * ranks
    real = [np.load(tmp_path / f"{r}.npz") for r in range(ranks)]
    for case in cases:
        held = [capture(lambda r, n, case=case: job.made(case, r, n), r, ranks, False) for r in range(ranks)]
        given = [
            {n: np.asarray(a, np.float64) if a.dtype.kind == "f" else a for n, a in h.arrays.items()} for h in held
        ]
        values = run_ranks([h.program for h in held], given)
        for rank, h in enumerate(held):
            for name, number in h.program.outputs:
                ours, theirs = values[rank][number], real[rank][f"{case}/{name}"]
                assert np.allclose(ours, theirs, rtol=1e-3, atol=1e-4), (case, rank, name)


@pytest.mark.parametrize("name", attacks.ATTACKS)
def test_attacks_are_not_proved(name: str) -> None:
    one, ranks, inputs, many, verdict = attacks.ATTACKS[name]
    found = shardproof.equal(*attacks.makers(one, ranks, inputs), ranks=many)
    assert found.answer == verdict, str(found)


@pytest.mark.parametrize("name", attacks.ASSUMED)
def test_what_wraps_around_is_assumed_not_to(name: str) -> None:
    one, ranks, inputs, many = attacks.ASSUMED[name]
    found = shardproof.equal(*attacks.makers(one, ranks, inputs), ranks=many)
    assert found and "integers-do-not-wrap" in found.assumptions


@pytest.mark.parametrize("name", attacks.READ)
def test_masks_and_empty_tensors_are_read(name: str) -> None:
    one, inputs = attacks.READ[name]
    found = shardproof.equal(*attacks.makers(one, attacks.everywhere(one), inputs), ranks=1)
    assert found, str(found)


def test_the_python_way_in(tmp_path: Path) -> None:
    """Of `docs/howto/equal.md`: a verdict, its certificate, a test's assertion."""
    found = shardproof.equal(pairs.mlp, pairs.mlp_tp, ranks=4, grad=True)
    assert found and found.answer == "equal" and "real-arithmetic" in found.assumptions
    assert {"rank": 1, "tensor": "p.b1", "is": "p.b1, 8:16 of dimension 0"} in found.inputs
    found.save(tmp_path / "c.spz")
    assert command(["check", str(tmp_path / "c.spz")]) == 0
    wrong = shardproof.equal(pairs.mlp, pairs.mlp_no_sum, ranks=4)
    assert not wrong and wrong.answer == "different" and wrong.output == "output" and wrong.numbers is not None
    with pytest.raises(InputError, match="no certificate"):
        wrong.save(tmp_path / "d.spz")
    shardproof.assert_equal_on_mesh(pairs.mlp, pairs.grid, (2, 2), grad=False)
    with pytest.raises(AssertionError, match=r"different: output of rank 0 .*equality_pairs.py"):
        shardproof.assert_equal_on_mesh(pairs.mlp, pairs.mlp_no_sum, 4)
    open_ = {"outputs": {"output": {"partial": "sum"}}}
    assert shardproof.equal(pairs.mlp_open, pairs.mlp_open_tp, ranks=2, layouts=open_)


def test_whole_numbers_are_an_assumption() -> None:
    held = capture(lambda: (lambda t: t + 1, (torch.tensor([1, 250], dtype=torch.uint8),)), None, 1, False)
    question = Question(ProgramWithSources(held.program, held.arrays), [ProgramWithSources(held.program, held.arrays)])
    assert question.differs(0) is None
    assert "integers-do-not-wrap" in check_pair(question.pair(), Budget.with_large()).assumptions


def test_tensors_of_no_part_are_refused() -> None:
    one, two = capture(pairs.mlp, None, 1, False), capture(pairs.mlp_other_weights, 0, 1, False)
    with pytest.raises(ValueError, match="no part of any tensor"):
        Question(ProgramWithSources(one.program, one.arrays), [ProgramWithSources(two.program, two.arrays)]).differs(0)


def test_corners_of_a_mesh_run_where_ranks_are_alike() -> None:
    found = shardproof.equal(pairs.mlp, pairs.mlp_tp, ranks=(8,), grad=True)
    assert found.answer == "equal" and "alike-ranks" in found.assumptions, found.reason
    assert {row["rank"] for row in found.outputs} == {0, 1, 7}
    assert "alike-ranks" not in shardproof.equal(pairs.mlp, pairs.mlp_tp, ranks=8, grad=True).assumptions
    wrong = shardproof.equal(pairs.mlp, pairs.mlp_no_sum, ranks=(8,))
    assert wrong.answer == "different" and wrong.rank in (0, 1, 7)


@pytest.mark.parametrize(
    ("distributed", "alike", "reason"),
    [
        ("pipeline", (2,), "leave --alike out"),
        ("mlp_tp", (0,), "write sizes of a mesh"),
        ("mlp_tp", (1 << 15,), "at most 16384"),
    ],
)
def test_ranks_that_are_not_alike_are_refused(distributed: str, alike: tuple[int, ...], reason: str) -> None:
    with pytest.raises(InputError, match=reason):
        shardproof.equal(pairs.mlp, getattr(pairs, distributed), ranks=alike)


def test_alike_says_how_many_ranks_there_are() -> None:
    with pytest.raises(InputError, match="leave layouts out"):
        shardproof.equal(pairs.mlp, pairs.mlp_tp, ranks=(8,), layouts={})
    words = ["equal", f"{FILE}:mlp", f"{FILE}:mlp_tp", "--alike", "8"]
    assert command([*words, "--ranks", "8"]) == 2 and command([*words, "--layouts", "l.json"]) == 2
