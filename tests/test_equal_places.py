"""Verb `equal`: an output lies where the program itself says, by DTensor's placements or JAX's shardings."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable, Sequence
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import shardproof
from shardproof.formal.equality.layouts import NOTHING
from shardproof.formal.equality.request import ask_captured, capture_programs, look
from shardproof.models.equality.captured import Captured, Stated, Unreadable, runs_of
from shardproof.models.equality.program import Described, RankProgram, Source
from shardproof.models.sources.partitioned.shardings import ordered_groups
from shardproof.proofs.container.archive import read_container
from shardproof.proofs.container.canonical import ContainerError
from shardproof.proofs.equality.captured import decode_captured, write_captured

torch = pytest.importorskip("torch")
pytestmark = pytest.mark.torch

Made = tuple[Callable[..., object], tuple[object, ...]]
X = torch.randn(4, 4, generator=torch.Generator().manual_seed(0))


def _single() -> Made:
    return torch.tanh, (X,)


def _job(
    shape: Sequence[int], placements: Callable[[], Sequence[object]], part: Callable[[int], object]
) -> Callable[[int, int], Made]:
    """Every rank has `part(rank)`, and says that its tanh lies as `placements()` on a mesh of this shape."""

    def job(rank: int, ranks: int) -> Made:
        from torch.distributed.device_mesh import init_device_mesh
        from torch.distributed.tensor import DTensor

        mesh = init_device_mesh("cpu", tuple(shape))
        given = placements()
        return (lambda x: DTensor.from_local(torch.tanh(x), mesh, given, run_check=False)), (part(rank),)

    return job


def _shards(*dims: int | None) -> Callable[[], Sequence[object]]:
    def made() -> Sequence[object]:
        from torch.distributed.tensor import Replicate, Shard

        return [Replicate() if dim is None else Shard(dim) for dim in dims]

    return made


def _block(rank: int) -> object:
    row, column = divmod(rank, 2)
    return X[2 * row : 2 * row + 2, 2 * column : 2 * column + 2].clone()


@pytest.mark.parametrize(
    ("shape", "dims", "part", "answer"),
    [
        ((2, 2), (0, 1), _block, "equal"),
        ((2, 2), (1, 0), _block, "different"),
        ((2,), (0,), lambda r: X[2 * r : 2 * r + 2].clone(), "equal"),
        ((2,), (None,), lambda r: X[2 * r : 2 * r + 2].clone(), "different"),
        ((2,), (0,), lambda r: X.clone(), "different"),
        ((2,), (None,), lambda r: X.clone(), "equal"),
        ((4,), (0,), lambda r: X[[0, 2, 1, 3][r]][None].clone(), "different"),
    ],
)  # fmt: skip
def test_a_dtensor_lies_where_its_placements_say(
    shape: tuple[int, ...], dims: tuple[int | None, ...], part: Callable[[int], object], answer: str
) -> None:
    job = _job(shape, _shards(*dims), part)
    assert shardproof.equal(_single, job, ranks=int(np.prod(shape))).answer == answer


def test_what_a_user_says_of_layouts_stands_above_placements() -> None:
    job = _job((2,), _shards(None), lambda r: X[2 * r : 2 * r + 2].clone())
    assert shardproof.equal(_single, job, ranks=2, layouts={"outputs": {"output": {"shard": 0}}}).answer == "equal"


def test_a_tensor_of_another_shape_is_said_to_be_so() -> None:
    found = shardproof.equal(_single, _job((2,), _shards(0), lambda r: X.clone()), ranks=2)
    assert "by its sharding of a tensor of shape (8, 4), that of the one device has (4, 4)" in str(found.reason)


def test_a_mesh_of_some_ranks_has_a_part_of_the_one_device() -> None:
    """Rows are split by hand over groups, columns by DTensor inside each."""

    def job(turned: bool) -> Callable[[int, int], Made]:
        def made(rank: int, ranks: int) -> Made:
            from torch.distributed.device_mesh import init_device_mesh
            from torch.distributed.tensor import DTensor, Shard

            mesh = init_device_mesh("cpu", (2, 2), mesh_dim_names=("data", "model"))["model"]
            mine = _block(rank ^ 1 if turned else rank)
            return (lambda x: DTensor.from_local(torch.tanh(x), mesh, [Shard(1)], run_check=False)), (mine,)

        return made

    assert shardproof.equal(_single, job(False), ranks=4).answer == "equal"
    assert shardproof.equal(_single, job(True), ranks=4).answer == "different"


@pytest.mark.parametrize("ranks", [2, 3])
def test_parts_are_those_that_dtensor_cuts(ranks: int) -> None:
    """Also uneven ones, and those of a dimension that two axes split in the other order."""
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.tensor import Shard, distribute_tensor
    from torch.distributed.tensor.placement_types import _StridedShard

    from shardproof.models.sources.distributed.capture import _group, _stated

    whole = torch.arange(14 * 3).reshape(14, 3)
    for rank in range(2 * ranks):
        with _group(rank, 2 * ranks):
            mesh = init_device_mesh("cpu", (2, ranks))
            for placements in (
                [Shard(0), Shard(1)],
                [Shard(0), Shard(0)],
                [_StridedShard(0, split_factor=ranks), Shard(0)],
            ):
                cut = distribute_tensor(whole, mesh, placements, src_data_rank=None)
                (found,) = _stated("x", cut).values()
                index = [[there + k for _, there, many in runs for k in range(many)] for runs in found.runs]
                assert found.everywhere and found.whole == (14, 3)
                assert cut.to_local().tolist() == whole[index[0]][:, index[1]].tolist(), placements


def test_files_of_capture_keep_the_places(tmp_path: Path) -> None:
    one = tmp_path / "one.spz"
    one.write_bytes(write_captured(capture_programs(_single, None, False), True))
    for dims, same in (((0, 1), True), ((1, 0), False)):
        many = tmp_path / "many.spz"
        many.write_bytes(write_captured(capture_programs(_job((2, 2), _shards(*dims), _block), 4, False), False))
        question = ask_captured(one, many, None, NOTHING)
        assert (look(question, 0) is None) is same


@pytest.mark.parametrize(
    ("runs", "words"),
    [
        ((((0, 3, 2),),), "inside the whole"),
        ((((1, 0, 2),),), "one behind another"),
        ((((0, 0, 4), (4, 0, 4)),), "inside the whole"),
        (((),), "needs a run"),
        ((), "runs of every dimension"),
    ],
)
def test_places_that_no_program_says_are_refused(runs: Any, words: str) -> None:
    program = RankProgram((Source(0, "x", "input"),), (), (("output", 0),), (Described((2,), "float32"),))
    held = Captured(
        program, {0: np.zeros(2, np.float32)}, {}, (np.zeros(2),), outputs={"output": Stated((4,), runs)}
    )  # fmt: skip
    with pytest.raises(ContainerError, match=words):
        decode_captured(read_container_of(write_captured([held], False)))


def read_container_of(data: bytes) -> Any:
    import tempfile

    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "x.spz"
        path.write_bytes(data)
        return read_container(path)


@pytest.mark.parametrize(
    "groups",
    [
        "replica_groups=mesh['a'=4], device_ids=(0,2,1,3) {'a'}",
        "replica_groups=mesh['a'=4], device_ids=([2,2]T(1,0)) {'a':(1)2}",
        "replica_groups=mesh['a'=4], device_ids=([2,4]T(1,0)) {'a'}",
    ],
)
def test_an_order_of_devices_that_is_not_known_is_refused(groups: str) -> None:
    with pytest.raises(Unreadable, match="in an order that is not known here"):
        ordered_groups(f"%x = all-gather(%y), channel_id=1, {groups}")


def test_a_channel_has_groups_of_one_kind() -> None:
    one = "%x = f32[8]{0} all-gather(%y), channel_id=1, replica_groups=mesh['a'=4], device_ids=([2,2]T(1,0)) {'a'}"
    for groups in ("mesh['a'=4] {'a'}", "{{0,1,2,3}}", "mesh['a'=4], device_ids=([4]T(0)) {'a'}"):
        other = f"ROOT %z = f32[8]{{0}} all-reduce(%x), channel_id=N, replica_groups={groups}"
        assert ordered_groups(f"{one}\n  {other}".replace("N", "2"))[1] == ((0, 2, 1, 3),)
        with pytest.raises(Unreadable, match="channel 1 has groups of two kinds"):
            ordered_groups(f"{one}\n  {other}".replace("N", "1"))


def test_the_order_of_devices_is_that_of_the_text() -> None:
    text = "all-gather(%y), channel_id=1, replica_groups=mesh['a'=4], device_ids=([2,2]T(1,0)) {'a'}, dimensions={0}"
    assert ordered_groups(text) == {1: ((0, 2, 1, 3),)}
    for other in (text.replace(" ", ""), text.replace(", dev", ",\n  dev"), text.replace(", dev", ", /* of */ dev")):
        assert ordered_groups(other) == {1: ((0, 2, 1, 3),)}, other
    assert ordered_groups("all-gather(%y), channel_id=1, replica_groups=mesh['a'=4] {'a'}") == {}
    assert ordered_groups('all-gather(%y), channel_id=1, metadata={op_name="device_ids=(0,2)"}') == {}
    assert runs_of([0, 2, 1, 3]) == ((0, 0, 1), (1, 2, 1), (2, 1, 1), (3, 3, 1))


JAX = """
import json, jax, jax.numpy as jnp, numpy as np, shardproof
from jax import lax
from jax.sharding import Mesh, NamedSharding, PartitionSpec as P

X = np.random.default_rng(0).normal(size=(8, 8)).astype(np.float32)
W, ONES = X[0], np.ones(8, np.float32)
mesh = Mesh(np.array(jax.devices()[:4]).reshape(2, 2), ("x", "y"))
xy, yx, x, y, whole = (NamedSharding(mesh, p) for p in (P(("x", "y")), P(("y", "x")), P("x"), P("y"), P()))

def mapped(given, made):
    return jax.shard_map(jnp.tanh, mesh=mesh, in_specs=given.spec, out_specs=made.spec, check_vma=False)

def split(given, made):
    return jax.jit(lambda a: jnp.tanh(a @ a), in_shardings=given, out_shardings=made)

def gathered(given):
    inner = lambda x, w: x * jnp.tanh(lax.with_sharding_constraint(jnp.sin(w), whole))[:, None]
    return jax.jit(inner, in_shardings=(whole, given), out_shardings=whole)

def turned(x, w):
    return x * jnp.tanh(jnp.sin(jnp.concatenate([w[:2], w[4:6], w[2:4], w[6:]])))[:, None]

def right(x, w):
    return x * jnp.tanh(jnp.sin(w))[:, None]

def says(single, function, *given):
    found = shardproof.equal(lambda: (single, given), lambda ranks: (function, given), ranks=4)
    same = bool(np.allclose(single(*given), function(*given), atol=1e-5))
    return [found.answer, same, found.reason]

product = lambda a: jnp.tanh(a @ a)
rows = [says(jnp.tanh, mapped(a, b), X) for a in (xy, yx, x, y) for b in (xy, yx, x, y) if (a in (x, y)) == (b in (x, y))]
rows += [says(product, split(a, b), X) for a, b in ((xy, yx), (x, y), (y, x), (whole, yx), (yx, xy))]
rows += [says(single, gathered(s), X, W) for s in (xy, yx, x, y) for single in (right, turned)]
print(json.dumps(rows))
"""


@pytest.mark.skipif(not find_spec("jax"), reason="jax is not installed")
def test_jax_outputs_lie_where_their_shardings_say_and_devices_keep_their_order() -> None:
    flags = {"JAX_PLATFORMS": "cpu", "XLA_FLAGS": "--xla_force_host_platform_device_count=4"}
    done = subprocess.run(
        [sys.executable, "-c", JAX],
        capture_output=True,
        check=False,
        text=True,
        timeout=250,
        env={**os.environ, **flags, "PYTHONPATH": os.pathsep.join(sys.path)},
    )
    assert done.returncode == 0, done.stderr[-3000:]
    rows = json.loads(done.stdout)
    assert len(rows) == 8 + 5 + 8 and {same for _, same, _ in rows} == {True, False}
    for answer, same, reason in rows:
        assert answer == ("equal" if same else "different"), (same, reason)


CUT = {
    "chunk": lambda x, r, n: x.chunk(n)[r],
    "tensor_split": lambda x, r, n: x.tensor_split(n)[r],
    "halves of neighbours": lambda x, r, n: x[: len(x) // 2] if r // (n // 2) == 0 else x[len(x) // 2 :],
    "halves in turn": lambda x, r, n: x[: len(x) // 2] if r % 2 == 0 else x[len(x) // 2 :],
    "quarters": lambda x, r, n: x.chunk(2)[r // 2].chunk(2, 1)[r % 2],
}
WRONG = {
    "backwards": lambda x, r, n: x.chunk(n)[n - 1 - r],
    "one twice": lambda x, r, n: x.chunk(n)[min(r, n - 2)],
    "mixed halves": lambda x, r, n: x[: len(x) // 2] if r in (0, 1, 2) else x[len(x) // 2 :],
}


@pytest.mark.parametrize("name", [*CUT, *WRONG])
def test_whole_inputs_that_ranks_cut_themselves(name: str) -> None:
    """One rule says where the results of all ranks lie; blocks in an order that no rule gives are other outputs."""
    cut, rows = {**CUT, **WRONG}[name], 8 if "halves" in name or name == "quarters" else 10
    x = torch.randn(rows, 8, generator=torch.Generator().manual_seed(0))

    def many(rank: int, ranks: int) -> object:
        return lambda x: torch.tanh(cut(x, rank, ranks)), (x,)

    found = shardproof.equal(lambda: (torch.tanh, (x,)), many, ranks=4)
    assert found.answer == ("equal" if name in CUT else "different"), found.reason


def _every_nth(shift: int) -> Callable[[int, int], Made]:
    def job(rank: int, ranks: int) -> Made:
        first = (rank + shift) % ranks
        return (lambda x: torch.relu(x[first::ranks] @ W)), (Y,)

    return job


W, Y = (torch.randn(n, 4, generator=torch.Generator().manual_seed(n)) for n in (4, 9))


@pytest.mark.parametrize("ranks", [2, 3])
@pytest.mark.parametrize("shift", [0, 1])
def test_every_nth_row_of_whole_inputs(ranks: int, shift: int) -> None:
    """Rank r has rows r, r + n, ..: one rule for all ranks, with rows that are equal (of zeros) among them; ranks that
    have each other's rows are different.
    """
    found = shardproof.equal(lambda: (lambda x: torch.relu(x @ W), (Y,)), _every_nth(shift), ranks=ranks)
    assert found.answer == ("different" if shift else "equal"), str(found)


def test_gradients_lie_where_their_placements_say() -> None:
    """A gradient has placements of its own, which are kept beside those of outputs."""
    from shardproof.models.sources.distributed.capture import capture

    def job(rank: int, ranks: int) -> Made:
        from torch.distributed.device_mesh import init_device_mesh
        from torch.distributed.tensor import Shard, distribute_tensor

        mesh = init_device_mesh("cpu", (ranks,))
        weight = torch.nn.Parameter(distribute_tensor(X, mesh, [Shard(1)], src_data_rank=None))
        return (lambda x: (x * weight).full_tensor().square().sum()), (
            distribute_tensor(X, mesh, [Shard(1)], src_data_rank=None),
        )

    held = capture(job, 1, 2, True)
    assert held.outputs["grad weight"] == Stated((4, 4), (((0, 0, 4),), ((0, 2, 2),)))
