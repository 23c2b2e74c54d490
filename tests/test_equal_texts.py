"""Verb `equal` on texts of JAX programs: StableHLO and HLO, before and after XLA's partitioner, beside what JAX computes."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from shardproof.models.equality.captured import Unreadable
from shardproof.models.sources.partitioned.devices import as_replicas
from shardproof.models.sources.partitioned.hlo import Tiles, lines_of, tiles_of
from shardproof.models.sources.partitioned.texts import ranks_said

HERE = Path(__file__).parent
needs_jax = pytest.mark.skipif(not find_spec("jax"), reason="jax is not installed")


def _process(words: list[str], folder: Path, ranks: int = 4) -> str:
    """What a process prints: JAX is told the number of devices before it is imported."""
    flags = {"JAX_PLATFORMS": "cpu", "XLA_FLAGS": f"--xla_force_host_platform_device_count={ranks}"}
    path = os.pathsep.join([*sys.path, str(HERE)])
    done = subprocess.run(
        [sys.executable, *words],
        capture_output=True,
        check=False,
        text=True,
        timeout=280,
        cwd=folder,
        env={**os.environ, **flags, "PYTHONPATH": path},
    )
    assert done.returncode == 0, done.stderr[-3000:]
    return done.stdout


def _judged(rows: list[list[Any]]) -> None:
    """Every verdict is what JAX's numbers say, and every proof is checked."""
    for name, form, same, code, said, checked in rows:
        assert (code, checked) == ((0, 0) if same else (10, None)), (name, form, same, said)
        found = json.loads(said)
        assert found["verdict"] == ("equal" if same else "different"), (name, form)
        if not same:
            assert found["numbers"][0] != found["numbers"][1], (name, form, found)
            assert found["line"] or form == "after.hlo", (name, form, found)  # fused: some steps have no line


# ------------------------------------------------------------------ pairs of texts


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("texts")


@pytest.fixture(scope="module")
def rows(folder: Path) -> list[list[Any]]:
    found: list[list[Any]] = json.loads(_process([str(HERE / "jax_texts.py"), str(folder)], folder))
    return found


@needs_jax
@pytest.mark.torch
def test_texts_are_judged_as_their_numbers_say(rows: list[list[Any]]) -> None:
    _judged(rows)
    assert len(rows) == 18 and sum(row[2] for row in rows) == 9


@needs_jax
@pytest.mark.torch
@pytest.mark.slow
def test_every_text_is_judged_as_its_numbers_say(tmp_path: Path) -> None:
    rows = json.loads(_process([str(HERE / "jax_texts.py"), str(tmp_path), "--every"], tmp_path))
    _judged(rows)
    assert len(rows) == 123 and sum(row[2] for row in rows) == 69


@needs_jax
@pytest.mark.torch
def test_lines_are_the_users_where_a_text_has_them(rows: list[list[Any]]) -> None:
    lines = {(name, form): json.loads(said)["line"] for name, form, _, code, said, _ in rows if code == 10}
    assert re.fullmatch(r"jax_pairs\.py:\d+", lines["perceptron_max on 4", "after.hlo"])
    assert re.fullmatch(r"perceptron_max_4\.mlir:\d+", lines["perceptron_max on 4", "mlir"])
    assert re.fullmatch(r"perceptron_max_4\.before\.hlo:\d+", lines["perceptron_max on 4", "before.hlo"])


SCANNED = """
import json, os, sys
sys.path.insert(0, {here!r})
import jax_scanned
from jax_texts import told, write

write("one", jax_scanned.single())
rows = []
for name in ("right", "wrong"):
    write(name, getattr(jax_scanned, name)(4))
    code, out, err = told("equal", "one.mlir", name + ".after.hlo", "--json", "--force", "-o", "proof.spz")
    rows.append([code, out or err, "scatter(" in open(name + ".after.hlo").read()])
print(json.dumps(rows))
"""


@needs_jax
@pytest.mark.torch
@pytest.mark.slow
def test_optimised_gradients_of_rows_that_are_looked_up(tmp_path: Path) -> None:
    """XLA's simplifiers leave scatters that add up windows of extent one, and gathers of them, in loops over layers."""
    found = json.loads(_process(["-c", SCANNED.format(here=str(HERE))], tmp_path))
    assert [(code, scattered) for code, _, scattered in found] == [(0, True), (10, True)], found


# ------------------------------------------------------------------ texts beside programs, and what is refused

MORE = """
import contextlib, io, json, os, re, sys
sys.path.insert(0, {here!r})
import jax_pairs, jax_texts, shardproof
from jax_texts import told, write
from pathlib import Path
from shardproof.models.text import InputError
write("one", jax_pairs.perceptron())
write("many", jax_pairs.perceptron_right(4))
write("jit", jax_pairs.perceptron_jit(4))
tanh = lambda x, w1, w2: jax_pairs.jax.lax.psum(jax_pairs.jax.numpy.tanh(x @ w1) @ w2, "x")
P = jax_pairs.P
write("tanh", (jax_pairs.split(tanh, 4, (P(), P(None, "x"), P("x")), P()), jax_pairs.perceptron()[1]))
write("unread", (jax_pairs.jax.jit(lambda x, w1, w2, more: x @ w1 @ w2), (*jax_pairs.perceptron()[1], jax_pairs.X)))
job = jax_pairs.__file__
Path("two.py").write_text('''
import torch
def one():
    return lambda x, w1, w2: (x @ w1).tanh() @ w2, tuple(torch.randn(*s) for s in ((8, 8), (8, 16), (16, 8)))
def closed():
    w = torch.randn(8, 8)
    return lambda x: x @ w, (torch.randn(8, 8),)
def many(rank, ranks):
    return one()
''')
behind = Path("many.after.hlo").read_text()
def edited(name, old, new, count=1):
    text = re.sub(old, new, behind, count=count)
    assert text != behind, name
    Path(name).write_text(text)
edited("bare.hlo", r"sharding=\\{{[^}}]*\\}}, ", "", 0)
edited("half.hlo", r"replica_groups=\\{{\\{{0,1,2,3\\}}\\}}", "replica_groups={{{{0,1}},{{2,3}}}}")
edited("dots.hlo", r"constant\\(0.0447[0-9]*\\)", "constant({{...}})")
edited("uneven.hlo", r"devices=\\[1,4\\]<=\\[4\\]", "devices=[1,2,2]<=[4] last_tile_dim_replicate")
edited("strange.hlo", r"devices=\\[1,4\\]<=\\[4\\]", "manual")
edited("replicas.hlo", r", use_global_device_ids=true", "")
edited("start.hlo", r"all-reduce\\(", "all-reduce-start(")
lost = re.sub(r"(?m)^.*ROOT (%\\S+) = (\\S+) all-reduce\\((%\\S+)\\),.*$", r"  ROOT \\1 = \\2 copy(\\3)", behind)
assert lost != behind
Path("lost.hlo").write_text(lost)
Path("layouts.json").write_text(json.dumps({{"inputs": {{"input 1": {{"shard": 1}}, "input 2": {{"shard": 0}}}}}}))
Path("other.json").write_text(json.dumps({{"inputs": {{"input 1": {{"shard": 0}}}}}}))
Path("none.mlir").write_text("nothing")
Path("empty.hlo").write_text("")
Path("pmap.mlir").write_text(Path("one.mlir").read_text().replace("num_replicas = 1", "num_replicas = 4"))
calls = {calls!r}
rows = [[name, told("equal", *[w.replace("JOB", job) for w in words.split()])] for name, words in calls.items()]
print(json.dumps(rows + [["python", [shardproof.equal("one.mlir", "many.mlir").answer, "", ""]]]))
"""


def _place(line: str) -> str:
    """The file and the number of the line of `jax_pairs.py` that begins so."""
    lines = (HERE / "jax_pairs.py").read_text().splitlines()
    return f"jax_pairs.py:{1 + next(k for k, text in enumerate(lines) if text.startswith(line))}"


EQUAL = {
    "a text beside JAX": "JOB:perceptron many.mlir",
    "a text beside JAX, after": "JOB:perceptron jit.after.hlo",
    "JAX beside a text": "one.mlir JOB:perceptron_right --ranks 4",
    "PyTorch and a text": "two.py:one tanh.mlir",
    "layouts": "one.mlir bare.hlo --layouts layouts.json",
    "the text of one rank": "one.mlir one.after.hlo --ranks 1",
}
DIFFERENT = {
    "half": ("one.mlir half.hlo", _place('    return _columns(ranks, lambda y: lax.psum(y, "x"))')),
    "lost": ("one.mlir lost.hlo", _place("        return last(scale")),
    "another program": ("one.mlir unread.mlir --ranks 1", ""),
}
REFUSED = {
    "no layout": ("one.mlir bare.hlo", '{"inputs": {"input 1": {"shard": DIM}}}'),
    "another layout": ("one.mlir jit.mlir --layouts other.json", "lies otherwise by the text's own sharding"),
    "a layout against the text": ("one.mlir many.after.hlo --layouts other.json", "by the text's own sharding"),
    "groups of replicas": ("one.mlir replicas.hlo", "without use_global_device_ids"),
    "a shape that no sharding gives": ("one.mlir uneven.hlo", "as it is said to lie it has (8, 8)"),
    "a strange sharding": ("one.mlir strange.hlo", "a sharding that is not known here"),
    "constants": ("one.mlir dots.hlo", "print_large_constants"),
    "halves of collectives": ("one.mlir start.hlo", "start.hlo"),
    "arguments": ("JOB:data many.mlir", "keep_unused"),
    "ranks": ("one.mlir many.mlir --ranks 2", "is for 4 devices; leave --ranks out"),
    "how many": ("one.mlir one.before.hlo", "--ranks: one.before.hlo does not say"),
    "many devices": ("many.mlir many.mlir", "SINGLE is the program of one"),
    "closed": ("two.py:closed many.mlir", "beside a text every tensor is an argument"),
    "ranks of PyTorch": ("one.mlir two.py:many --ranks 2", "ranks of a PyTorch program have parts of them only"),
    "a file": ("one.mlir plan.spz --ranks 2", "plan.spz has none"),
    "gradients": ("one.mlir many.mlir --grad", "--grad: a text returns the gradients"),
    "alike": ("one.mlir many.mlir --alike 2x2", "--alike: the text is of all ranks"),
    "none": ("one.mlir none.mlir --ranks 2", "is no module of StableHLO"),
    "empty": ("one.mlir empty.hlo --ranks 2", "is neither StableHLO (module {..}) nor HLO text"),
    "pmap": ("one.mlir pmap.mlir", "is of 4 replicas (pmap)"),
    "missing": ("one.mlir missing.mlir", "there is no such file"),
}


@needs_jax
@pytest.mark.torch
def test_texts_beside_programs_and_what_is_refused(tmp_path: Path) -> None:
    calls = {**EQUAL, **{k: w for k, (w, _) in {**DIFFERENT, **REFUSED}.items()}}
    text = MORE.format(here=str(HERE), calls=calls)
    told = dict(json.loads(_process(["-c", text], tmp_path).splitlines()[-1]))
    assert told.pop("python")[0] == "equal"
    for name in EQUAL:
        assert told[name][0] == 0, (name, told[name])
    for name, (_, line) in DIFFERENT.items():
        assert told[name][0] == 10 and line in told[name][1], (name, told[name])
    for name, (_, words) in REFUSED.items():
        assert told[name][0] == 3 and words in told[name][2], (name, told[name])


MISREAD = """
import json, sys
sys.path.insert(0, {here!r})
import jax_pairs, shardproof
from jax_texts import write
from shardproof.models.sources.partitioned import collectives, machine, operators
from shardproof.models.text import InputError

write("one", jax_pairs.perceptron())
write("many", jax_pairs.perceptron_right(4))
write("jit", jax_pairs.perceptron_jit(4))

def lost(place, w, op, given):
    return given

def first(w, op, given):
    return [given[0]]

rows = []
for table, name, wrong in ((machine.COLLECTIVES, "stablehlo.all_reduce", lost), (machine.HANDLERS, "stablehlo.add", first)):
    before, table[name] = table[name], wrong
    for file in ("many.mlir", "jit.mlir", "many.before.hlo", "many.after.hlo"):
        try:
            rows.append([name, file, shardproof.equal("one.mlir", file, ranks=4).answer])
        except InputError as error:
            rows.append([name, file, str(error)])
    table[name] = before
print(json.dumps(rows))
"""


@needs_jax
@pytest.mark.torch
def test_an_operator_of_a_text_that_is_read_wrongly_is_refused(tmp_path: Path) -> None:
    """What is written down is compared with what the devices have, so neither verdict is given."""
    rows = json.loads(_process(["-c", MISREAD.format(here=str(HERE))], tmp_path).splitlines()[-1])
    assert len(rows) == 8
    for name, file, words in rows:
        assert "give another 'output' than the run itself" in words, (name, file, words)


# ------------------------------------------------------------------ where tensors lie

PLACES = """
import itertools, json, re
import jax, numpy as np
from jax.sharding import Mesh, NamedSharding, PartitionSpec as P
rows = []
devices = np.array(jax.devices())
for sizes, order in (((4,), (0,)), ((2, 2), (0, 1)), ((2, 2), (1, 0)), ((2, 4), (0, 1)), ((4, 2), (1, 0))):
    many = int(np.prod(sizes))
    mesh = Mesh(devices[:many].reshape(sizes).transpose(order), ("a", "b")[: len(sizes)])
    names = [None, *mesh.axis_names, mesh.axis_names, mesh.axis_names[::-1]]
    for first, second in itertools.product(names, names):
        used = [n for x in (first, second) for n in ([x] if isinstance(x, str) else x or ())]
        if len(used) != len(set(used)):
            continue
        lies = NamedSharding(mesh, P(first, second))
        text = jax.jit(lambda x: x + 1, in_shardings=lies).lower(np.zeros((16, 8), np.float32)).as_text(dialect="hlo")
        said = re.search(r"sharding=(\\{.*?\\}), frontend", text)[1]
        there = lies.devices_indices_map((16, 8))
        rows.append([said, [[list(c.indices(n)[:2]) for c, n in zip(there[d], (16, 8))] for d in mesh.devices.flat]])
print(json.dumps(rows))
"""


@needs_jax
@pytest.mark.torch
def test_shardings_lie_where_jax_says(tmp_path: Path) -> None:
    rows = json.loads(_process(["-c", PLACES], tmp_path, 8))
    assert len(rows) > 40
    for said, there in rows:
        tiles = tiles_of(said)
        mine = [[[c.start, c.stop] for c in tiles.part((16, 8), rank)] for rank in range(len(there))]
        assert mine == there, said


def test_shardings_of_texts() -> None:
    whole = Tiles((), ())
    assert tiles_of("{replicated}") == whole and not whole.cuts
    assert tiles_of("{devices=[2,2]0,2,1,3}") == tiles_of("{devices=[2,2]<=[2,2]T(1,0)}")
    assert not tiles_of("{devices=[1,1,4]<=[4] last_tile_dim_replicate}").cuts
    for text in ("{manual}", "{devices=[2,2]0,1,2}", "{devices=[2,2]0,1,2,2}", "{devices=[2]<=[4]}", "{maximal device=0}",
                 "{devices=[2,1,2]<=[4] last_tile_dims={manual}}", "{mesh['x'=4], [{'x'}]}"):  # fmt: skip
        with pytest.raises(Unreadable, match="sharding"):
            tiles_of(text)
    for shape in ((7, 4), (8,), (8, 4, 2)):
        with pytest.raises(Unreadable):
            tiles_of("{devices=[2,2]<=[4]}").part(shape, 0)
    with pytest.raises(Unreadable):
        tiles_of("{devices=[2,2]<=[4]}").part((8, 4), 4)


@pytest.mark.parametrize(
    ("text", "many"),
    [
        ("module @f attributes {mhlo.num_partitions = 8 : i32, mhlo.num_replicas = 1 : i32} {", 8),
        ("HloModule f, num_partitions=2", 2),
        ('sdy.mesh @mesh = <["x"=2, "y"=4]>', 8),
        ('HloModule f, frontend_attributes={xla.sdy.meshes={mesh = #sdy.mesh<["x"=4]>}}', 4),
        ("x = f32[8] parameter(0), sharding={devices=[2,2]<=[2,2]T(1,0)}", 4),
        ("x = f32[8] parameter(0), sharding={devices=[4]3,2,1,0}", 4),
        ("HloModule f", None),
        ("/* num_partitions=4 */ HloModule f, num_partitions=2", 2),
        ("HloModule f, /* num_partitions=4 */ num_partitions=2", 2),
        ('HloModule f, frontend_attributes={note="num_partitions=4"},\n num_partitions=2', 2),
        ("HloModule f, frontend_attributes={note={num_partitions=4}}, num_partitions=2", 2),
        ("HloModule f, entry_computation_layout={(f32[8]{0})->f32[8]{0}}\nENTRY main { num_partitions=3 }", None),
        ("// num_partitions = 4\nmodule @f attributes {mhlo.num_partitions = 2 : i32} {", 2),
        ('module @"mhlo.num_partitions = 4" attributes {mhlo.num_partitions = 2 : i32} {', 2),
        ('// sdy.mesh @mesh = <["x"=8]>\nmodule @f {sdy.mesh @mesh = <["x"=2, "y"=4]>', 8),
    ],
)
def test_how_many_devices_a_text_is_for(text: str, many: int | None) -> None:
    assert ranks_said(text) == many


def test_a_text_says_one_number_of_devices() -> None:
    with pytest.raises(Unreadable, match="num_partitions is said to be 2 and 4"):
        ranks_said("HloModule f, num_partitions=2, num_partitions=4")


def test_groups_keep_the_order_of_a_mesh_that_a_module_does_not_say() -> None:
    axes = '#stablehlo.replica_group_mesh_axes<mesh = @mesh, axes = [#stablehlo.axis_ref<name = "a">]>'
    text = (
        "<{channel_handle = #stablehlo.channel_handle<handle = 7, type = 0>, replica_groups = GROUPS,"
        " use_global_device_ids}>"
    )
    said = as_replicas(text.replace("GROUPS", axes), {7: ((0, 1), (2, 3))})
    assert said == "<{replica_groups = dense<[[0, 1], [2, 3]]> : tensor<2x2xi64>}>"
    assert as_replicas(text.replace("GROUPS", axes), {8: ((0, 1), (2, 3))}) == f"<{{replica_groups = {axes}}}>"


def test_lines_of_older_texts() -> None:
    text = '  %a.1 = f32[] add(%x, %y), metadata={op_name="jit(f)/add" source_file="/u/step.py" source_line=7}'
    assert lines_of("f.hlo", text).places == {"a.1": "step.py:7"}


def test_parts_of_a_sharding_cover_the_whole_once() -> None:
    rng = np.random.default_rng(0)
    for _ in range(50):
        blocks = rng.choice([1, 2, 3], 3)
        many = int(np.prod(blocks))
        order = ",".join(map(str, rng.permutation(many)))
        tiles = tiles_of(f"{{devices=[{','.join(map(str, blocks))}]{order}}}")
        seen = np.zeros(tuple(int(b) * 2 for b in blocks), int)
        for rank in range(many):
            seen[tiles.part(seen.shape, rank)] += 1
        assert (seen == 1).all()


# ------------------------------------------------------------------ programs that torch.export saved for each rank

EXPORTED = """
import torch, torch.distributed as dist
import torch.distributed._functional_collectives as fc
from torch.testing._internal.distributed.fake_pg import FakeStore
import json, shardproof

torch.manual_seed(0)
W1, W2, X = torch.randn(8, 16), torch.randn(16, 8), torch.randn(4, 8)

class Half(torch.nn.Module):
    def __init__(self, w1, w2, reduces):
        super().__init__()
        self.w1, self.w2, self.reduces = torch.nn.Parameter(w1), torch.nn.Parameter(w2), reduces
    def forward(self, x):
        y = (x @ self.w1).tanh() @ self.w2
        return fc.all_reduce(y, "sum", dist.group.WORLD) if self.reduces else y

for rank in range(2):
    dist.init_process_group("fake", store=FakeStore(), rank=rank, world_size=2)
    mine = slice(rank * 8, rank * 8 + 8)
    for name, reduces in (("right", True), ("lost", False)):
        program = torch.export.export(Half(W1[:, mine].clone(), W2[mine].clone(), reduces), (X,))
        torch.export.save(program, f"{name}{rank}.pt2")
    dist.destroy_process_group()

def one():
    return Half(W1, W2, False), (X,)

def saved(name):
    def many(rank, ranks):
        return torch.export.load(f"{name}{rank}.pt2").module(), (X,)
    return many

print(json.dumps([shardproof.equal(one, saved(name), ranks=2).answer for name in ("right", "lost")]))
"""


@pytest.mark.torch
@pytest.mark.skipif(not find_spec("torch"), reason="PyTorch is not installed")
def test_programs_that_were_exported_for_each_rank(tmp_path: Path) -> None:
    assert json.loads(_process(["-c", EXPORTED], tmp_path).splitlines()[-1]) == ["equal", "different"]
