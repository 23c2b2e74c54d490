"""Verb `equal` on jobs as an engineer writes them who knows nothing of it (`tests/equal_strangers`): right ones are equal,
wrong ones different with the tensor named; races and deadlocks of ranks.
"""

from __future__ import annotations

import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

torch = pytest.importorskip("torch")

import shardproof

HERE = Path(__file__).parent / "equal_strangers"
pytestmark = [pytest.mark.torch, pytest.mark.filterwarnings("ignore::FutureWarning")]


@pytest.fixture(autouse=True)
def _beside(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(str(HERE))


def judge(job: str, single: str, distributed: str, ranks: int, grad: bool, sizes: Mapping[str, Any]) -> Any:
    module = __import__(job)
    if sizes or hasattr(module, "sizes"):
        module.sizes(**sizes)
    assert Path(str(sys.modules[job].__file__)).parent == HERE
    return shardproof.equal(getattr(module, single), getattr(module, distributed), ranks=ranks, grad=grad)


FEW = (
    ("gpt", "single", "right", 2, True, {}),
    ("llama", "single_step", "right_sp", 2, False, {}),
    ("families", "single_acc", "right_dp", 2, False, {}),
    ("families", "single_moeg", "right_moeg", 2, False, {}),
    ("families", "single_ring", "right_ring", 3, False, {}),
    ("families_more", "single_clip", "right_clip", 2, False, {}),
    ("families_more", "single_z1", "right_z1", 2, False, {}),
    ("families_more", "single_z3", "right_z3", 2, False, {}),
    ("families_late", "single_skip", "right_skip", 2, False, {}),
    ("families_late", "single_smooth", "right_smooth", 2, False, {}),
    ("families_late", "single_balance", "right_balance", 2, False, {}),
    ("ring_backward", "single", "right", 2, False, {}),
    ("gshard", "single", "right", 2, False, {}),
    ("ulysses_gqa", "single", "right", 2, False, {}),
    ("flat_buffers", "single", "right", 2, False, {}),
    ("serving", "single", "right", 4, False, {}),
    ("kv_order", "single", "right", 4, False, {}),
    ("one_head", "single", "right", 2, True, {}),
)
MORE = (
    ("clip_accumulated", "single", "right", 2, False, {}),
    ("families_late", "single_skip", "right_skip", 4, False, {}),
    ("families_late", "single_window", "right_window", 4, False, {}),
    ("families_late", "single_smooth", "right_smooth", 4, False, {}),
    ("families_late", "single_dpo", "right_dpo", 2, False, {}),
    ("gpt", "single", "right", 3, True, {"heads": 9}),
    ("gpt", "single", "right", 8, True, {"layers": 4}),
    ("llama", "single_step", "right", 4, False, {}),
    ("llama", "single_step", "right", 2, False, {"tie": True}),
    ("llama", "single_step", "right", 2, False, {"sdpa": True}),
    ("llama", "single_step", "right", 2, False, {"qwen": True}),
    ("llama", "single_step", "right_sp", 2, False, {"qwen": True}),
    ("llama", "single_step", "right_sp", 4, False, {"layers": 4}),
    ("llama", "single_step", "right_kv", 8, False, {}),
    ("families", "single_acc", "right_acc", 2, False, {}),
    ("families", "single_ln", "right_ln", 4, True, {}),
    ("families", "single_sm", "right_sm", 4, False, {}),
    ("families", "single_moeg", "right_moeg", 4, False, {}),
    ("families_more", "single_clip", "right_clip", 4, False, {}),
    ("families_more", "single_z1", "right_z1", 4, False, {}),
    ("families_more", "single_z3", "right_z3", 4, False, {}),
    ("families_more", "single_pp", "right_pp", 4, False, {}),
    ("families_more", "single_uly", "right_uly", 4, False, {}),
    ("families_more", "single_conv", "right_conv", 2, False, {}),
    ("families_more", "single_conv", "right_conv", 4, False, {}),
    ("families_more", "single_mybn", "right_mybn", 2, False, {}),
    ("families_more", "single_mybn", "right_mybn", 4, False, {}),
)


@pytest.mark.parametrize("case", FEW, ids=lambda c: f"{c[0]}-{c[2]}-{c[3]}")
def test_right_jobs_are_equal(case: tuple[Any, ...]) -> None:
    found = judge(*case)
    assert found.answer == "equal", found.reason


def test_a_logarithm_that_may_be_of_nothing_is_compared_by_nobody() -> None:
    """lse == -inf where a block masks whole rows: nothing is known of a comparison of what may be no number."""
    assert judge("zigzag", "single", "right", 2, False, {}).answer == "undecided"


@pytest.mark.slow
@pytest.mark.parametrize("case", MORE, ids=lambda c: f"{c[0]}-{c[2]}-{c[3]}-{c[5]}")
def test_more_right_jobs_are_equal(case: tuple[Any, ...]) -> None:
    found = judge(*case)
    assert found.answer == "equal", found.reason


WRONG = (
    ("llama", "single_step", "w_spnorm", 2, False, "output.g.norm.weight"),
    ("families", "single_acc", "wrong_acc", 2, False, "output."),
    ("families", "single_moeg", "wrong_moeg", 2, False, "output.wg"),
    ("families_more", "single_clip", "wrong_clip", 2, False, "output.a"),
    ("families_more", "single_z3", "wrong_z3", 2, False, "output."),
    ("families_late", "single_smooth", "wrong_smooth", 2, False, "output.loss"),
    ("families_late", "single_balance", "wrong_seed", 2, False, "output.loss"),
    ("ring_backward", "single", "wrong", 2, False, "output.2"),
    ("gshard", "single", "wrong_expert", 2, False, "output.w1"),
    ("ulysses_gqa", "single", "wrong", 2, False, "output"),
    ("flat_buffers", "single", "wrong_old", 2, False, "output.0.weight"),
    ("flat_buffers", "single", "wrong_sum", 2, False, "output."),
    ("serving", "single", "wrong_kv", 4, False, "output"),
    ("kv_order", "single", "wrong_pos", 4, False, "output.0"),
    ("one_head", "single", "wrong_local", 2, True, "output"),
    ("one_head", "single", "wrong_backward", 2, True, "grad input 0"),
    ("clip_accumulated", "single", "wrong_clip", 2, False, "output."),
)
MORE_WRONG = (
    ("families_late", "single_skip", "wrong_skip", 2, False, "output"),
    ("families_late", "single_window", "wrong_window", 4, False, "output"),
    ("families_late", "single_smooth", "wrong_mean", 2, False, "output.loss"),
    ("families_late", "single_balance", "wrong_balance", 2, False, "output.loss"),
    ("families_late", "single_dpo", "wrong_dpo", 2, False, "output.0"),
    *(
        ("gpt", "single", f"w_{bug}", 2, True, "output")
        for bug in ("bias", "emb_mask", "max_local", "sum_local", "scale")
    ),
    *(("gpt", "single", f"w_{bug}", 2, True, "grad wte") for bug in ("no_f", "head_copy", "no_update")),
    ("gpt", "single", "w_max_sum", 2, True, "output"),
    ("llama", "single_step", "w_mask", 4, False, "output.loss"),
    ("llama", "single_step", "w_sum_local", 4, False, "output.loss"),
    ("llama", "single_step", "w_kv", 8, False, ""),
    ("llama", "single_step", "w_kvgrad", 8, False, "output.g.layers.0.self_attn.k_proj.weight"),
    ("families", "single_acc", "wrong_dp", 2, False, "output."),
    ("families", "single_ln", "wrong_ln", 2, True, "output"),
    ("families", "single_ring", "wrong_ring", 2, False, "output"),
    ("families", "single_ring", "wrong_ring2", 4, False, "output"),
    ("families", "single_cring", "wrong_cring", 2, False, "output"),
    ("families", "single_sm", "wrong_sm", 2, False, "output"),
    ("families", "single_moe", "wrong_moe", 2, True, "output"),
    ("families", "single_moeg", "wrong_moeg2", 2, False, "output.w1"),
    ("families_more", "single_pp", "wrong_pp", 2, False, "output.0.weight"),
    ("families_more", "single_uly", "wrong_uly", 2, False, "output"),
    ("families_more", "single_mybn", "wrong_mybn", 2, False, "output.c1.weight"),
)


@pytest.mark.parametrize("case", WRONG, ids=lambda c: f"{c[0]}-{c[2]}")
def test_wrong_jobs_are_different(case: tuple[Any, ...]) -> None:
    found = judge(*case[:5], {})
    assert found.answer == "different" and found.output.startswith(case[5]), found


@pytest.mark.slow
@pytest.mark.parametrize("case", MORE_WRONG, ids=lambda c: f"{c[0]}-{c[2]}")
def test_more_wrong_jobs_are_different(case: tuple[Any, ...]) -> None:
    found = judge(*case[:5], {"qwen": True} if case[2] == "w_qnorm" else {})
    assert found.answer == "different" and found.output.startswith(case[5]), found


@pytest.mark.slow
def test_offsets_of_positions_that_all_ranks_share_are_not_called_different() -> None:
    """Rotary positions tell how far apart two are: a rank that begins elsewhere computes the same."""
    assert judge("llama", "single_step", "w_rope", 2, False, {"heads": 4}).answer != "different"


RACES = {
    "early": "reads what allreduce",
    "nowait": "reads what allreduce",
    "overwritten": "writes what _allgather_base",
    "isend_write": "writes what send",
    "irecv_early": "reads what recv",
    "order": "ranks of a group call different collectives",
    "deadlock": "where a send waits until it is received: rank 0 at send",
    "unpaired": "wait for one another for ever",
    "other_group": "reads what allreduce",
    "crossed": "different groups of the same ranks",
    "crossed_message": "different groups of the same ranks",
    "received_reduced": "reads what recv",
    "future_late": "reads what allreduce",
    "futures_late": "reads what allreduce",
    "then_late": "reads what a callback",
    "then_first_waited": "reads what a callback",
    "then_reads": "writes what a callback",
    "functional_late": "reads what all_reduce",
    "functional_in_place": "reads what all_reduce",
    "functional_write": "writes what all_gather_into_tensor",
}


@pytest.mark.parametrize("name", RACES)
def test_what_goes_wrong_in_time_is_different(name: str) -> None:
    found = judge("timing", "single_sum", f"p_{name}", 2, False, {})
    assert found.answer == "different" and RACES[name] in found.reason, found
    assert found.line.startswith("timing.py:")


IN_TIME = [
    "ok",
    "halves",
    "future",
    "odd_even",
    "isend_ok",
    "groups_ok",
    "futures",
    "then",
    "functional",
    "asked_later",
]


@pytest.mark.parametrize("name", IN_TIME)
def test_right_jobs_are_not_called_late(name: str) -> None:
    assert judge("timing", "single_sum", f"p_{name}", 2, False, {}).answer == "equal"


@pytest.mark.parametrize(
    ("name", "reason"), [("asked", r"is completed: call wait\(\)"), ("then_calls", "in a callback of a future")]
)
def test_what_hangs_on_the_time_is_refused(name: str, reason: str) -> None:
    with pytest.raises(ValueError, match=reason):
        judge("timing", "single_sum", f"p_{name}", 2, False, {})


def test_collectives_before_a_job_is_called_are_refused() -> None:
    """Nothing is sent then: what the job rests on would not be there."""
    with pytest.raises(ValueError, match=r"allreduce_ \(timing.py:\d+\) runs before what is called is called"):
        judge("timing", "single_sum", "p_before", 2, False, {})


def test_rows_that_constants_tell_apart_are_replaced() -> None:
    x, y = torch.randn(4, 6), torch.randn(2, 6)

    def put(*rows: int) -> Any:
        def f(x: Any, y: Any) -> Any:
            out = x * 2
            out[torch.tensor(rows)] = y
            out[torch.tensor(rows[:1])] = 0.5
            return out

        return f

    def columns(rank: int, ranks: int, *rows: int) -> object:
        return put(*rows), (x.chunk(ranks, 1)[rank].clone(), y.chunk(ranks, 1)[rank].clone())

    def verdict(*rows: int) -> str:
        return shardproof.equal(lambda: (put(2, 0), (x, y)), lambda r, n: columns(r, n, *rows), ranks=2).answer

    assert verdict(2, 0) == "equal"
    assert verdict(0, 2) == "different"
    with pytest.raises(ValueError, match="positions that may be the same"):
        verdict(2, 2)
