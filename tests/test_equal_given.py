"""Verb `equal`: tensors of ranks whose values do not tell what they are (ones, zeros, copies, flat buffers, tables): right
jobs are never `different`, and what nothing tells is `undecided`, with the tensor.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest

torch = pytest.importorskip("torch")

import torch.distributed as dist
import torch.nn.functional as F

import shardproof
from shardproof.__main__ import run as command
from shardproof.formal.equality.givens import ProgramWithSources, constant_of
from shardproof.formal.equality.numbers import run_alone
from shardproof.formal.equality.tables import with_tables
from shardproof.models.equality.program import Described, RankProgram, Source
from shardproof.models.text import InputError

pytestmark = pytest.mark.torch
G = torch.Generator().manual_seed(0)
X, W = torch.randn(4, 8, generator=G), torch.randn(8, 8, generator=G)
Tensors = Mapping[str, torch.Tensor]
Made = tuple[Callable[..., Any], tuple[torch.Tensor, ...]]


def new(twins: bool = False) -> dict[str, torch.Tensor]:
    """Parameters of two norms, or of two layers that are copies of one."""
    if twins:
        return {"w1": W.clone(), "b1": X[0].clone(), "w2": W.clone(), "b2": X[0].clone()}
    return {"w1": torch.ones(8), "b1": torch.zeros(8), "w2": torch.ones(8), "b2": torch.zeros(8)}


def norms(x: torch.Tensor, p: Tensors) -> torch.Tensor:
    return F.layer_norm(torch.sin(F.layer_norm(x, (8,), p["w1"], p["b1"]) @ W), (8,), p["w2"], p["b2"])


def layers(x: torch.Tensor, p: Tensors) -> torch.Tensor:
    return torch.sin(x @ p["w1"] + p["b1"]) @ p["w2"] + p["b2"]


def one(body: Callable[..., Any] = norms, twins: bool = False) -> Callable[[], Made]:
    def made() -> Made:
        p = {n: t.requires_grad_() for n, t in new(twins).items()}
        return lambda x: body(x, p), (X,)

    return made


class Deep:
    """Holds a tensor where nobody looks for parameters."""

    def __init__(self, tensor: torch.Tensor, depth: int = 5) -> None:
        self.inner: Any = Deep(tensor, depth - 1) if depth else tensor

    def get(self) -> torch.Tensor:
        found = self
        while isinstance(found, Deep):
            found = found.inner
        return found


def gathered(part: torch.Tensor, size: int) -> torch.Tensor:
    out = torch.empty(size)
    dist.all_gather_into_tensor(out, part)
    return out


def hidden(rank: int, ranks: int) -> Made:
    held = {n: Deep(t) for n, t in new().items()}
    return lambda x: norms(x, {n: d.get() for n, d in held.items()}), (X,)


def hidden_twice(rank: int, ranks: int) -> Made:
    held = {n: Deep(t) for n, t in new().items()}
    return lambda x: norms(x, {n: d.get() * (1 + (n == "w2")) for n, d in held.items()}), (X,)


def renamed(rank: int, ranks: int, twins: bool = False, body: Callable[..., Any] = norms) -> Made:
    p = {n: t.requires_grad_() for n, t in new(twins).items()}
    q = {"z": p["w1"], "y": p["b1"], "k": p["w2"], "j": p["b2"]}
    return lambda x: body(x, {"w1": q["z"], "b1": q["y"], "w2": q["k"], "b2": q["j"]}), (X,)


def shards(rank: int, ranks: int) -> Made:
    n = 8 // ranks
    held = {k: Deep(t[rank * n : rank * n + n].clone()) for k, t in new().items()}
    return lambda x: norms(x, {k: gathered(d.get(), 8) for k, d in held.items()}), (X,)


def shards_forgotten(rank: int, ranks: int) -> Made:
    n = 8 // ranks
    held = {k: Deep(t[rank * n : rank * n + n].clone()) for k, t in new().items()}
    return lambda x: norms(x, {k: d.get().repeat(ranks) for k, d in held.items()}), (X,)


def flat(rank: int, ranks: int, deep: bool = True, order: tuple[int, ...] = (0, 1, 2, 3)) -> Made:
    full, n = torch.cat(list(new().values())), 32 // ranks
    mine = full[rank * n : rank * n + n].clone()
    held = Deep(mine, 5 if deep else 0)

    def f(x: torch.Tensor) -> torch.Tensor:
        parts = gathered(held.get(), 32).split(8)
        return norms(x, {n: parts[k] for n, k in zip(("w1", "b1", "w2", "b2"), order, strict=True)})

    return f, (X,)


def shared(rank: int, ranks: int) -> Made:
    q = {"n": torch.ones(8), "m": torch.zeros(8)}
    return lambda x: norms(x, {"w1": q["n"], "b1": q["m"], "w2": q["n"], "b2": q["m"]}), (X,)


def without_weights(rank: int, ranks: int) -> Made:
    return lambda x: F.layer_norm(torch.sin(F.layer_norm(x, (8,)) @ W), (8,)), (X,)


def master(rank: int, ranks: int) -> Made:
    """Parameters by name that are not used, but a flat copy of them."""
    p = new(True)
    copy = torch.cat([t.flatten() for t in p.values()])

    def f(x: torch.Tensor) -> torch.Tensor:
        w1, b1, w2, b2 = copy.split([64, 8, 64, 8])
        return layers(x, {"w1": w1.view(8, 8), "b1": b1, "w2": w2.view(8, 8), "b2": b2}) + 0 * p["w1"].sum()

    return f, (X,)


def table(said: float = 0.3) -> torch.Tensor:
    return torch.cos(torch.arange(8.0) * said)


def held_table(rank: int = 0, ranks: int = 1, said: float = 0.3) -> Made:
    t = table(said)
    return lambda x: x * t, (X,)


def computed_table(rank: int = 0, ranks: int = 1, said: float = 0.3) -> Made:
    return lambda x: x * table(said), (X,)


def meshed(rank: int, ranks: int) -> Made:
    """Two by two ranks: the layer is split over the first dimension of the mesh, the norm over the second."""
    a, b = rank // 2, rank % 2
    w1 = W[:, a * 4 : a * 4 + 4].clone()
    w2 = torch.ones(8)[b * 4 : b * 4 + 4].clone()

    def f(x: torch.Tensor) -> torch.Tensor:
        y = gathered((x @ w1).t().contiguous().view(-1), 64)
        wide = gathered(w2, 16).view(2, 8)[0]
        return y.view(4, 4, 4)[::2].reshape(8, 4).t() * wide

    return f, (X,)


def unmeshed() -> Made:
    w1, w2 = W.clone(), torch.ones(8)
    return lambda x: x @ w1 * w2, (X,)


IDS = torch.tensor([5, 1, 0, 2])


def rows() -> Made:
    return lambda ids, x: W[ids][:, :4] + x[torch.tensor([1, 0, 3, 2])][:, :4], (IDS, X)


def rows_on_ranks(rank: int, ranks: int) -> Made:
    """A constant of two whole numbers that stand in the ids, too."""
    n = slice(rank * 2, rank * 2 + 2)
    return lambda ids, x: W[ids][:, :4] + x[torch.tensor([1, 0])][:, :4], (IDS[n].clone(), X[n].clone())


def either(made: Callable[..., Made], **words: Any) -> Callable[[int, int], Made]:
    return lambda rank, ranks: made(rank, ranks, **words)


CASES: dict[str, tuple[Any, Any, bool, str]] = {
    "copies that are not found": (one(), hidden, False, "equal"),
    "copies that are not found, one doubled": (one(), hidden_twice, False, "different"),
    "other names": (one(), renamed, False, "equal"),
    "other names, with gradients": (one(), renamed, True, "equal"),
    "layers of the same numbers": (one(layers, True), either(renamed, twins=True, body=layers), True, "equal"),
    "shards that are gathered": (one(), shards, False, "equal"),
    "shards that are not gathered": (one(), shards_forgotten, False, "undecided"),
    "a flat buffer": (one(), flat, False, "undecided"),
    "a flat buffer by name": (one(), either(flat, deep=False), False, "undecided"),
    "a flat buffer out of order": (one(), either(flat, order=(1, 0, 3, 2)), False, "different"),
    "one for two": (one(), shared, False, "undecided"),
    "one for two, with gradients": (one(), shared, True, "undecided"),
    "left out": (one(), without_weights, False, "undecided"),
    "copies beside parameters": (one(layers, True), master, False, "undecided"),
    "a table that ranks compute": (held_table, computed_table, False, "undecided"),
    "a table that one device computes": (computed_table, held_table, False, "undecided"),
    "another table": (held_table, either(computed_table, said=0.31), False, "different"),
    "numbers that stand elsewhere, too": (rows, rows_on_ranks, False, "undecided"),
}


@pytest.mark.parametrize("name", CASES)
def test_what_values_do_not_tell_is_never_called_different(name: str) -> None:
    single, ranks, grad, verdict = CASES[name]
    found = shardproof.equal(single, ranks, ranks=2, grad=grad)
    assert found.answer == verdict, str(found)
    assert verdict != "undecided" or found.reason, str(found)


def test_two_dimensions_of_a_mesh() -> None:
    """The layer tells of one dimension which block of two a rank has; the norm's ones lie in the block of the other."""
    found = shardproof.equal(unmeshed, meshed, ranks=4)
    assert found.answer == "undecided" and "'w2' of rank 0, has values that do not tell where" in str(found), str(found)


def test_a_doubt_names_tensor_and_line(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    words = [f"{__file__}:{n}" for n in ("held_table", "computed_table")]
    assert command(["equal", *words, "--ranks", "2"]) == 5
    said = capsys.readouterr().out
    assert "undecided: " in said and "of rank 0" in said and "test_equal_given.py:" in said


def test_a_tensor_of_no_part_is_refused_where_outputs_differ() -> None:
    with pytest.raises(InputError, match="'t' of rank 0, shape .* is no part of any tensor"):
        shardproof.equal(computed_table, either(held_table, said=0.31), ranks=2)


@pytest.mark.parametrize(
    ("table", "steps"),
    [
        ([0, 1, 6, 7], 3),
        ([[0, 1], [1, 2]], 5),
        ([[True, False, False], [True, True, False]], 9),
        ([[[3, 1, -1]] * 2] * 4, 5),
        ([5, 3, 8, 8, 8, 2], 4),
        ([1 << 60, 0], 0),
        ([0.5, 1.5], 0),
        (list(np.random.default_rng(0).permutation(900)), 0),
    ],
)
def test_tables_of_whole_numbers_are_steps(table: list[Any], steps: int) -> None:
    array = np.asarray(table)
    source = Source(0, "t", "parameter")
    program = RankProgram((source,), (), (("output", 0),), (Described(array.shape, str(array.dtype)),))
    given: dict[int, Any] = {0: constant_of(array)}
    made = with_tables(ProgramWithSources(program, {0: array}), given)
    assert bool(steps) is (not given) is (not made.program.sources)
    assert not steps or len(made.program.steps) <= steps
    assert np.array_equal(run_alone(made.program, {0: array} if given else {}, {})[0], array)


UNKNOWN: dict[str, tuple[Callable[..., Any], tuple[torch.Tensor, ...]]] = {
    "aten.logcumsumexp": (lambda x: torch.logcumsumexp(x, 0), (X,)),
    "aten.lgamma": (torch.lgamma, (X,)),
    "aten._cdist_forward": (lambda x: torch.cdist(x.view(1, 4, 8), W.view(1, 4, -1)[..., :8]), (X,)),
}


@pytest.mark.parametrize("name", UNKNOWN)
def test_an_operator_that_is_not_read_is_named_with_its_line(name: str) -> None:
    """Exit status 3, as `docs/howto/equal.md` says: nothing of such a program is compared."""
    called, inputs = UNKNOWN[name]
    with pytest.raises(InputError, match=rf"operator {name} \(test_equal_given.py:\d+\) is not known here"):
        shardproof.equal(lambda: (lambda *given: called(*given), inputs), lambda r, n: (called, inputs), ranks=2)
