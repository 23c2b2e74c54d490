"""Training loops: K steps on ranks are K steps of one process, stopped and taken up again under the same plan, another
plan, fewer ranks; states that are whole, or refused.
"""

from __future__ import annotations

import errno
import json
import shutil
import signal
import subprocess
import sys
from collections.abc import Callable
from dataclasses import replace
from functools import cache
from pathlib import Path

import numpy as np
import pytest
from joint_cases import CASES
from test_pipeline_run import plan_of
from test_run import draw_choices
from test_views_training import certificate, towers

import shardproof
from shardproof.__main__ import run
from shardproof.answers import Plan
from shardproof.backends.execution import checkpoint
from shardproof.backends.execution.array_files import read_inputs
from shardproof.backends.execution.comparison import difference
from shardproof.backends.execution.feed import Feed, fed, first_values
from shardproof.backends.execution.interpreter import RankError
from shardproof.backends.execution.job import Options
from shardproof.backends.execution.launch import mpi_available
from shardproof.backends.execution.reference import run_graph
from shardproof.backends.execution.repeatable import repeatable
from shardproof.backends.execution.train_rank import Goal, train_job
from shardproof.backends.execution.trainer import Trainer
from shardproof.backends.execution.training_run import StepDone, begin, in_one_process
from shardproof.backends.kernels.library import OURS
from shardproof.models.files.output import OutputError
from shardproof.models.machine.machine import load_machine
from shardproof.models.problem.claims import Verdict
from shardproof.models.program.graph import Graph
from shardproof.models.sources.building.builder import Builder
from shardproof.models.sources.training import build_step
from shardproof.models.sources.zoo import build
from shardproof.models.sources.zoo.gpt import gpt
from shardproof.models.text import InputError
from shardproof.proofs.plan.bundle import Plan as Bundle
from shardproof.proofs.publishing.publisher import Opened, Published

MLP = "mlp-unity:batch=8,inputs=12,hidden=16,classes=8"


@cache
def language() -> Graph:
    """A decoder with tied embeddings, and Adam."""
    return build_step(gpt(batch=4, depth=1, sequence=4, width=8, heads=2, vocabulary=16), "adam").graph


@cache
def images() -> Graph:
    """Convolutions, and momentum."""
    return build_step(build("conv-stack", batch=4, size=6, channels=4), "sgd:rate=0.01,momentum=0.9").graph


MODELS: dict[str, Callable[[], Graph]] = {"language": language, "images": images}


def opened(graph: Graph, machine: str, seed: int) -> Opened:
    """A plan of drawn placements, uneven splits and split weights among them, as if it had been checked."""
    target = load_machine(machine)
    choices = draw_choices(graph, target.hierarchy, np.random.default_rng(seed))
    held = Bundle(graph, target, "complete,uneven", None, choices, (), None, ())  # type: ignore[arg-type]
    return Opened(held, Published(Verdict.PROVED, "", 1, 1, "", f"{machine} {seed}", None, 0), 1, b"")


def trainer(found: Opened, resume: Path | None = None, **more: object) -> Trainer:
    begun = begin(found, "p.spz", resume=resume, **more)  # type: ignore[arg-type]
    return Trainer(repeatable(found.held, found.scale, Options(stored=begun.has_graph_types)), begun, 30.0)


def steps(training: Trainer, count: int) -> list[StepDone]:
    return [training.step() for _ in range(count)]


def apart(training: Trainer) -> float:
    """How far the results of the last step are from those of one process that did all steps."""
    graph, _, expected = in_one_process(training.begun, training.step_number)
    got = training.results()
    assert set(got) == set(expected) == set(graph.results)
    return max(difference(got[n], expected[n]) for n in expected)


def same(one: dict[str, np.ndarray], other: dict[str, np.ndarray]) -> bool:
    return one.keys() == other.keys() and all(np.array_equal(one[n], other[n]) for n in one)


@pytest.mark.parametrize(
    ("model", "count"),
    [("language", 2), ("images", 4), *(pytest.param(m, 20, marks=pytest.mark.slow) for m in MODELS)],
)
def test_steps_on_ranks_are_those_of_one_process_and_go_on_anywhere(model: str, count: int, tmp_path: Path) -> None:
    graph = MODELS[model]()
    plans = [opened(graph, "localhost:4", 1), opened(graph, "localhost:2", 2), opened(graph, "2x2", 3)]
    whole = trainer(plans[0])
    losses = [s.loss for s in steps(whole, count)]
    assert apart(whole) <= 1e-9 and None not in losses and len(set(losses)) == count
    half = trainer(plans[0])
    steps(half, count // 2)
    assert half.save(tmp_path / "d").name == f"step-{count // 2:08}"
    for k, plan in enumerate(plans):
        later = trainer(plan, tmp_path / "d")
        assert [s.step for s in steps(later, count - count // 2)] == list(range(count // 2 + 1, count + 1))
        got, wanted = later.results(), whole.results()
        assert max(difference(got[n], wanted[n]) for n in wanted) <= 1e-9
        assert k > 0 or (same(got, wanted) and same(later.state(), whole.state()))


def test_replicas_that_differ_in_their_last_bits_go_on_as_they_were(tmp_path: Path) -> None:
    plan = opened(images(), "localhost:4", 5)
    one = trainer(plan)
    steps(one, 1)
    for rank, held in enumerate(one._held):  # what other strides may do to a replica
        held.renew({n: [(box, np.nextafter(b, rank * b)) for box, b in found] for n, found in held.blocks.items()})
    one.save(tmp_path)
    other = trainer(plan, tmp_path)
    for a, b in zip(one._held, other._held, strict=True):
        assert all(
            np.array_equal(x, y) for n in a.blocks for (_, x), (_, y) in zip(a.blocks[n], b.blocks[n], strict=True)
        )
    steps(one, 1), steps(other, 1)
    assert same(one.results(), other.results())


def test_what_no_step_renews_is_kept_and_goes_on(tmp_path: Path) -> None:
    """A constant of the program whose values it does not state is made up once, not in every step."""
    b = Builder("frozen", "float64")
    x = b.map("scaled", "multiply", b.input("x", (8, 4)), b.input("constant.scale", (8, 4)), text="i j, i j -> i j")
    y = b.contract("y", "i j, j k -> i k", x, b.parameter("w", (4, 4)))
    graph = build_step(b.build(b.reduce("loss", "i k -> ", y)), "sgd").graph
    assert fed(graph) == ("x",)
    one = trainer(opened(graph, "localhost:4", 2))
    steps(one, 1)
    one.save(tmp_path)
    assert np.array_equal(
        checkpoint.load(tmp_path, graph).whole["constant.scale"], first_values(graph, 0)["constant.scale"]
    )
    for machine, seed in (("localhost:4", 2), ("localhost:2", 3)):
        other = trainer(opened(graph, machine, seed), tmp_path)
        steps(other, 1)
        assert other.begun.state.keys() == {"w", "constant.scale"} == other.state().keys()
        assert apart(other) <= 1e-9


def test_adam_counts_its_steps() -> None:
    """t of the bias correction is the number of the step, also behind a state; formulas by hand."""
    training = trainer(opened(language(), "localhost:2", 4))
    graph, name = training.begun.graph, "block0.attention.qkv.weight"
    name = next(n for n, v in graph.state if graph.operators[graph.writer()[v]].function == "adam_update")
    m = v = 0.0
    for t in (1, 2, 3):
        before = training.state()
        data = training.begun.feed.at(t)
        gradient = graph.operators[graph.writer()[f"{name}.adam_m.next"]].inputs[1].tensor
        g = run_graph(graph, {**before, **data}, keep=[gradient])[gradient]
        m, v = 0.9 * m + 0.1 * g, 0.999 * v + 0.001 * g * g
        training.step()
        expected = before[name] - 0.001 * (m / (1 - 0.9**t)) / (np.sqrt(v / (1 - 0.999**t)) + 1e-8)
        np.testing.assert_allclose(training.state()[name], expected, rtol=1e-9, atol=1e-12)


def unchecked(held: object, scale: int) -> Opened:
    published = Published(Verdict.PROVED, "", 1, 1, "", type(held).__name__, None, 0)
    return Opened(held, published, scale, b"")  # type: ignore[arg-type]


def tied() -> Opened:
    forward = gpt(batch=4, depth=2, sequence=4, width=8, heads=2, vocabulary=16)
    return shardproof.pipeline(forward, "cloud-a100:2x2", "adam", stages="2:2", work_limit=200_000).opened


def overlapped() -> Opened:
    forward = build("mlp-unity", batch=8, inputs=12, hidden=16, classes=8)
    machine = "cloud-a100:2x2"
    return shardproof.plan(forward, machine, train="adam", overlap=True, work_limit=200_000).opened


KINDS: dict[str, Callable[[], Opened]] = {
    "pipelined": lambda: unchecked(plan_of("2x2"), 10**12),
    "interleaved": lambda: unchecked(plan_of("2x2 interleaved"), 10**12),
    "tied": tied,
    "overlapped": overlapped,
    "joint": lambda: shardproof.plan(CASES["step"](), "cloud-a100:2x2", joint=True, work_limit=200_000).opened,
    "views": lambda: unchecked(certificate(towers()), 1),
}
DEAR = {"interleaved", "tied"}


@pytest.mark.parametrize("kind", [pytest.param(k, marks=pytest.mark.slow if k in DEAR else ()) for k in KINDS])
def test_plans_of_every_kind_are_trained(kind: str, tmp_path: Path) -> None:
    plan = KINDS[kind]()
    whole, half = trainer(plan), trainer(plan)
    steps(whole, 4)
    assert apart(whole) <= 1e-9
    steps(half, 2)
    half.save(tmp_path / "d")
    later = trainer(plan, tmp_path / "d")
    steps(later, 2)
    assert same(later.results(), whole.results())
    other = trainer(opened(plan.user_graph, "localhost:2", 7), tmp_path / "d")
    steps(other, 2)
    got, wanted = other.results(), whole.results()
    assert max(difference(got[n], wanted[n]) for n in wanted) <= 1e-9


def test_a_run_of_16_bits_goes_on_bit_for_bit(tmp_path: Path) -> None:
    """Weights in float32, blocks of bfloat16 in two bytes: `--precision`, numbers of their own types."""
    graph = build_step(
        build("mlp-unity", batch=8, inputs=12, hidden=16, classes=8), "adam", precision="bf16-mixed"
    ).graph
    plan = opened(graph, "localhost:2", 3)
    whole, half = trainer(plan), trainer(plan)
    assert whole.begun.origin.numbers == "own"
    steps(whole, 2), steps(half, 1)
    half.save(tmp_path)
    later = trainer(plan, tmp_path)
    steps(later, 1)
    assert same(later.results(), whole.results())
    with pytest.raises(InputError, match="is a state in own, --dtype asks for float64"):
        trainer(plan, tmp_path, numbers="float64")


def test_training_begins_with_moments_of_zero_and_the_scale_of_a_loss() -> None:
    graph = build_step(
        build("mlp-unity", batch=8, inputs=12, hidden=16, classes=8), "adam", precision="fp16-mixed"
    ).graph
    first = first_values(graph, 0)
    assert not first["fc1.weight.adam_m"].any() and not first["fc1.weight.adam_v"].any() and first["fc1.weight"].any()
    assert float(first["loss_scale"]) == 65536 and float(first["loss_scale.steps"]) == 0
    assert fed(graph) == ("x", "labels") and not set(first) & {"x", "labels"}


def test_a_failing_rank_is_named_with_its_step(monkeypatch: pytest.MonkeyPatch) -> None:
    from shardproof.backends.execution import interpreter

    training, real = trainer(opened(images(), "localhost:2", 5)), OURS.execute
    training.step()

    def broken(xp, op, *rest):  # type: ignore[no-untyped-def]
        if op.name == "conv2":
            raise ValueError("out of luck")
        return real(xp, op, *rest)

    monkeypatch.setattr(interpreter, "library_of", lambda name: replace(OURS, execute=broken))
    with pytest.raises(RankError, match="step 2, .*conv2.*out of luck"):
        training.step()
    for again in (training.step, lambda: training.save("nowhere")):
        with pytest.raises(InputError, match="a step of this training failed"):
            again()
    assert not Path("nowhere").exists()


# data


def rows(graph: Graph, count: int) -> dict[str, np.ndarray]:
    drawn = [Feed(graph, 9).at(n + 1) for n in range(count)]
    return {n: np.stack([d[n] for d in drawn]) for n in fed(graph)}


def test_all_sources_of_data_give_the_same_steps(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    plan, graph = opened(images(), "localhost:2", 6), images()
    data = rows(graph, 2)
    monkeypatch.chdir(tmp_path)
    np.savez("d.npz", **data)
    Path("d").mkdir()
    for name, array in data.items():
        np.save(f"d/{name}.npy", array)
    Path("mine.py").write_text(
        "import numpy as np\nheld = np.load('d.npz')\ndef batch(n):\n    return {k: held[k][(n - 1) % 2] for k in held}\n"
    )
    given = [{"data": "d.npz"}, {"data": "d"}, {"data": "mine.py:batch"}, {"make": lambda n: {k: v[(n - 1) % 2] for k, v in data.items()}}]  # fmt: skip
    found = []
    for more in given:
        training = trainer(plan, **more)
        steps(training, 3)
        found.append(training.results())
    assert all(same(found[0], other) for other in found[1:])
    drawn = trainer(plan)
    steps(drawn, 3)
    assert not same(found[0], drawn.results())
    training.save("s")
    with pytest.raises(InputError, match="its steps had data of yours; give it again with --data"):
        trainer(plan, Path("s"))
    Path("late.py").write_text("def batch(n):\n    return {}[n]\n")
    with pytest.raises(InputError, match="late.py:batch, data of step 4: KeyError: 4"):
        trainer(plan, Path("s"), data="late.py:batch")


WRONG: dict[str, tuple[Callable[[dict[str, np.ndarray]], object], str]] = {
    "name": (lambda d: d.update(y=d.pop("image")), "has the arrays 'labels', 'y'; the inputs of .* are 'image', 'labels'"),
    "shape": (lambda d: d.update(image=d["image"][:, :1]), r"array 'image' has shape \(1, .*\) behind the axis of steps, the plan needs \(4, "),
    "type": (lambda d: d.update(image=d["image"].astype(int)), "array 'image' holds int64, the plan needs floating-point numbers"),
    "range": (lambda d: d.update(labels=d["labels"].astype(int) + 2**40), "array 'labels' holds int64, some beyond what int32"),
    "rows": (lambda d: d["labels"].__setitem__((0, 0), 1000), "array 'labels': holds the position 1000, and 'loss.picked' picks from"),
    "steps": (lambda d: d.update(image=d["image"][:1]), "need one leading axis of steps, equally long"),
}  # fmt: skip


def test_rows_of_a_table_are_asked_for_where_they_are(tmp_path: Path) -> None:
    """A label below 0 says that there is none; a word below 0, or one of a table's end, is no word."""
    good, graph = Feed(language(), 1).at(1), language()
    ids = {n: v for n, v in good.items() if n in fed(graph)}
    labels, words = ("labels", next(n for n in ids if n != "labels"))

    def fed_with(name: str, value: int) -> Feed:
        changed = {**ids, name: np.full_like(ids[name], value)}
        return Feed(graph, 1, make=lambda n: changed)

    fed_with(labels, -100).at(1)
    for name, value in ((words, -1), (words, 10**6), (labels, 10**6)):
        with pytest.raises(InputError, match=f"data of step 1: array '{name}': holds the position {value}, and '"):
            fed_with(name, value).at(1)
    np.savez(tmp_path / "in.npz", **{**first_values(graph, 0), **ids, words: np.full_like(ids[words], 10**6)})
    with pytest.raises(InputError, match="holds the position 1000000"):
        read_inputs(tmp_path / "in.npz", graph)


def test_files_that_are_no_data_are_told_what_they_are(tmp_path: Path) -> None:
    np.save(tmp_path / "x.npy", np.zeros((2, 3)))
    (tmp_path / "mine.py").write_text("def batch(n):\n    return {}\n")
    for name, words in (("x.npy", "it is one array"), ("mine.py", "the function is named, too; .*FILE.py:NAME")):
        with pytest.raises(InputError, match=words):
            Feed(images(), 1, data=str(tmp_path / name)).at(1)


def test_drawn_data_is_new_in_every_step_and_depends_on_seed_and_number_alone() -> None:
    first, again, next_, other = (Feed(images(), seed).at(n) for seed, n in ((1, 1), (1, 1), (1, 2), (2, 1)))
    assert same(first, again)
    assert all(not np.array_equal(first[n], x[n]) for x in (next_, other) for n in fed(images()))


@pytest.mark.parametrize("what", WRONG)
def test_data_that_does_not_fit_is_refused(what: str, tmp_path: Path) -> None:
    data = rows(images(), 2)
    WRONG[what][0](data)
    np.savez(tmp_path / "d.npz", **data)
    with pytest.raises(InputError, match=WRONG[what][1]):
        trainer(opened(images(), "localhost:2", 6), data=str(tmp_path / "d.npz"))


# states


@pytest.fixture
def state(tmp_path: Path) -> Path:
    training = trainer(opened(images(), "localhost:2", 5))
    for _ in range(2):
        training.step()
        training.save(tmp_path / "d")
    return tmp_path / "d"


def refused(state: Path, graph: Graph | None = None) -> str:
    with pytest.raises(InputError) as error:
        checkpoint.load(state, graph or images())
    return str(error.value)


def test_files_that_are_not_those_written_are_refused(state: Path) -> None:
    file, manifest = state / "step-00000002" / "rank-00000.npz", state / "step-00000002" / "manifest.json"
    whole, text = file.read_bytes(), manifest.read_bytes()
    for bad in (whole[:-1], whole[:200] + bytes([whole[200] ^ 1]) + whole[201:]):
        file.write_bytes(bad)
        assert refused(state).startswith(f"{file}: is not the file that ")
    file.unlink()
    assert refused(state).startswith(f"{file}: is missing")
    file.write_bytes(whole)
    for bad in (text[:-9], text.replace(b'"step":2', b'"step":3'), b"[]"):
        manifest.write_bytes(bad)
        assert refused(state).startswith(f"{manifest}: ")
    manifest.write_bytes(text)
    assert checkpoint.load(state, images()).step == 2
    assert "is a state of another model" in refused(state, language()) and "language" not in refused(state, language())
    shutil.rmtree(state / "step-00000002")
    assert checkpoint.load(state, images()).step == 1
    shutil.rmtree(state / "step-00000001")
    assert "holds no state" in refused(state) and "cannot be read" in refused(state / "nowhere")


def test_a_damaged_state_names_the_one_before(state: Path) -> None:
    (state / "step-00000002" / "manifest.json").unlink()
    assert "; the state before it: --resume " + str(state / "step-00000001") in refused(state)
    assert "before it" not in refused(state / "step-00000002")


def test_what_cannot_be_written_is_refused_before_the_first_step_and_leaves_nothing(
    state: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with pytest.raises(OutputError, match="a state takes .* are free there"):
        checkpoint.check_folder(state, 2, False, 1 << 62)
    found = checkpoint.load(state, images())

    def full(*_: object) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    with monkeypatch.context() as patch, pytest.raises(OutputError, match="step 3 cannot be written: No space left"):
        patch.setattr(checkpoint, "write_rank", full)
        checkpoint.save(state, 3, found.origin, found.ranks)
    assert sorted(p.name for p in state.iterdir()) == ["step-00000001", "step-00000002"]
    with (
        monkeypatch.context() as patch,
        pytest.raises(OutputError, match="cannot be a folder of checkpoints: No space"),
    ):
        patch.setattr(Path, "touch", full)
        checkpoint.check_folder(state, 2, False)


def test_a_state_of_later_steps_is_not_mixed_with_a_new_run(state: Path) -> None:
    training = trainer(opened(images(), "localhost:2", 5))
    training.step()
    with pytest.raises(InputError, match="holds a state of step 2 already, and this run begins behind step 1"):
        training.save(state)
    checkpoint.check_folder(state, 0, force=True)
    assert not list(state.iterdir())


KILLED = """
import os, signal, sys
from pathlib import Path
sys.path[:0] = {path!r}
import numpy as np
from test_train import images, opened, steps, trainer
from shardproof.backends.execution import checkpoint
training = trainer(opened(images(), "localhost:2", 5))
steps(training, 1)
training.save(Path({folder!r}))
steps(training, 1)
real = checkpoint.{function}
def dies(*words, **more):
    if {before}:
        os.kill(os.getpid(), signal.SIGKILL)
    real(*words, **more)
    os.kill(os.getpid(), signal.SIGKILL)
checkpoint.{function} = dies
training.save(Path({folder!r}))
"""


@pytest.mark.parametrize(
    ("function", "before"), [pytest.param("write_rank", False, marks=pytest.mark.slow), ("_sync", True)]
)
def test_a_kill_in_the_middle_of_a_save_leaves_the_last_state_whole(
    function: str, before: bool, tmp_path: Path
) -> None:
    folder, here = tmp_path / "d", Path(__file__).resolve().parent
    code = KILLED.format(
        path=[str(here.parent.parent), str(here)], folder=str(folder), function=function, before=before
    )
    ended = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=120, check=False)
    assert ended.returncode == -signal.SIGKILL, ended.stderr
    assert len(list(folder.glob(".unfinished-*"))) == 1
    plan = opened(images(), "localhost:2", 5)
    training, whole = trainer(plan, folder), trainer(plan)
    assert training.step_number == 1
    steps(training, 1), steps(whole, 2)
    assert same(training.results(), whole.results())
    training.save(folder)
    assert sorted(p.name for p in folder.iterdir()) == ["step-00000001", "step-00000002"]


# the command line


@pytest.fixture(scope="module")
def files(tmp_path_factory: pytest.TempPathFactory) -> Path:
    here = tmp_path_factory.mktemp("plans")
    split = {"fc1": {"n": {"ranks": 4}}, "fc2": {"k": {"ranks": 4}}}
    shardproof.plan(MLP, "localhost:4", train="adam", strategy=split).save(here / "four.spz")
    shardproof.plan(MLP, "localhost:2", train="adam").save(here / "two.spz")
    shardproof.plan(MLP, "localhost:2").save(here / "forward.spz")
    return here


def lines(capsys: pytest.CaptureFixture[str]) -> list[dict[str, object]]:
    return [json.loads(line) for line in capsys.readouterr().out.splitlines()]


def test_the_command_line_trains(
    files: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    four, two = str(files / "four.spz"), str(files / "two.spz")
    line = ["run", four, "-n", "4", "--virtual", "--json"]
    assert run([*line, "--steps", "4", "--no-compare", "-o", "o.npz"]) == 0
    whole = lines(capsys)
    assert [x["step"] for x in whole] == [1, 2, 3, 4] and all(x["seconds"] > 0 for x in whole)  # type: ignore[operator]
    assert "equal" not in whole[-1] and np.load("o.npz")["loss"] == whole[-1]["loss"]
    assert run([*line, "--steps", "2", "--save", "d", "--save-every", "1"]) == 0
    half = lines(capsys)
    assert [Path(str(x["saved"])).name for x in half] == ["step-00000001", "step-00000002"]
    assert half[-1]["equal"] is True
    assert run([*line, "--steps", "2", "--resume", "d"]) == 0
    assert [(x["step"], x["loss"]) for x in lines(capsys)] == [(x["step"], x["loss"]) for x in whole[2:]]
    assert run(["run", two, "-n", "2", "--virtual", "--steps", "2", "--resume", "d/step-00000001"]) == 0
    said = capsys.readouterr().out
    assert "steps 2 to 3" in said and "examples/s" in said and ": equal" in said
    assert f"loss {whole[1]['loss']:.9g}" in said


@pytest.mark.parametrize(
    ("typed", "code", "words"),
    [
        (["forward.spz", "-n", "2", "--steps", "2"], 3, "--steps needs a training step"),
        (["four.spz", "-n", "4", "--steps", "0"], 2, "is not between 1 and"),
        (["four.spz", "-n", "4", "--save", "d"], 2, "--save needs --steps"),
        (["four.spz", "-n", "4", "--steps", "2", "--save-every", "1"], 2, "--save-every needs --save"),
        (["four.spz", "-n", "4", "--steps", "2", "--trace", "t.json"], 2, "--steps and --trace do not go together"),
        (["four.spz", "-n", "4", "--steps", "2", "--resume", "nowhere"], 3, "nowhere: cannot be read"),
        (["four.spz", "-n", "4", "--steps", "2", "--data", "nowhere.npz"], 3, "nowhere.npz: cannot be read"),
        (["four.spz", "-n", "4", "--steps", "2", "--resume", "d", "--seed", "1"], 2, "--resume and --seed do not go"),
    ],
)
def test_what_does_not_go_is_refused(
    typed: list[str],
    code: int,
    words: str,
    files: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.chdir(files)
    assert run(["run", *typed, "--virtual"]) == code
    assert words in capsys.readouterr().err


def test_a_loss_that_is_no_number_is_said_once_with_the_state_before(
    files: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "late.py").write_text(
        "import numpy as np\n"
        "def batch(n):\n"
        "    return {'x': np.full((8, 12), np.nan if n > 1 else 1.0), 'labels': np.zeros(8, dtype=int)}\n"
    )
    line = ["run", str(files / "four.spz"), "-n", "4", "--virtual", "--json", "--steps", "3", "--save-every", "1"]
    assert run([*line, "--data", f"{tmp_path}/late.py:batch", "--save", str(tmp_path / "d"), "--no-compare"]) == 0
    said = capsys.readouterr()
    where = tmp_path / "d" / "step-00000001"
    assert said.err.count(f"note: the loss of step 2 is nan; the last state before it is {where}") == 1
    assert said.err.count("note:") == 1 and '"loss": null, "no_loss": "the loss is nan"' in said.out.splitlines()[1]


def test_different_results_are_refuted(
    files: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Ranks that lose their moments between steps are not one process."""
    from shardproof.backends.execution.held import RankBlocks

    def forgets(held: RankBlocks, tensor: str, box: tuple[tuple[int, int], ...]) -> np.ndarray:
        return held._base(tensor, box) if "adam_m" in tensor else real(held, tensor, box)

    real = RankBlocks.read
    monkeypatch.setattr(RankBlocks, "read", forgets)
    line = ["run", str(files / "four.spz"), "-n", "4", "--virtual", "--json"]
    assert run([*line, "--steps", "1"]) == 0
    assert run([*line, "--steps", "3"]) == 10
    assert lines(capsys)[-1]["equal"] is False


def test_python_trains(files: Path, tmp_path: Path) -> None:
    plan: Plan = shardproof.load(files / "two.spz")
    one = plan.trainer(seed=3)
    losses = [one.step().loss for _ in range(3)]
    assert plan.trainer(seed=4).step().loss != losses[0]
    other = plan.trainer(seed=3)
    other.step()
    other.save(tmp_path / "d")
    later = shardproof.load(files / "four.spz").trainer(resume=tmp_path / "d")
    assert later.step().loss == pytest.approx(losses[1], rel=1e-9)
    later = plan.trainer(resume=tmp_path / "d")
    assert [later.step().loss for _ in range(2)] == losses[1:]
    with pytest.raises(InputError, match="--steps needs a training step"):
        shardproof.load(files / "forward.spz").trainer()


# MPI


mpi = [pytest.mark.mpi, pytest.mark.skipif(not mpi_available(), reason="mpi4py or mpiexec is not installed")]


@pytest.mark.parametrize(
    "kind",
    [
        pytest.param("four", marks=mpi),  # stages on MPI: tests/test_run_backends.py
        *(pytest.param(k, marks=[*mpi, pytest.mark.slow]) for k in ("overlapped", "tied", "joint")),
    ],
)
def test_mpi_ranks_train_and_go_on(kind: str, files: Path, tmp_path: Path) -> None:
    plan = shardproof.load(files / "four.spz").opened if kind == "four" else KINDS[kind]()
    told: list[StepDone] = []

    def ranks(last: int, resume: Path | None, results: bool, save: Path | None = None) -> dict[str, np.ndarray]:
        begun = begin(plan, "p.spz", resume=resume)
        return train_job(plan, begun, Options(), Goal(last, save, results=results), 60.0, told.append)[0]

    whole = ranks(4, None, True)
    ranks(2, None, False, tmp_path)
    later = ranks(4, tmp_path, True)
    assert same(whole, later) and [s.step for s in told] == [1, 2, 3, 4, 1, 2, 3, 4]
    assert [s.loss for s in told[:4]] == [s.loss for s in told[4:]]
    _, _, expected = in_one_process(begin(plan, "p.spz"), 4)
    assert max(difference(whole[n], expected[n]) for n in expected) <= 1e-9
    virtual = trainer(plan, tmp_path)
    steps(virtual, 2)
    assert max(difference(virtual.results()[n], expected[n]) for n in expected) <= 1e-9


@pytest.mark.mpi
@pytest.mark.skipif(not mpi_available(), reason="mpi4py or mpiexec is not installed")
def test_data_that_fails_later_on_mpi_ranks_is_bad_input(
    files: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "late.py").write_text(
        "import numpy as np\n"
        "def batch(n):\n"
        "    return {'x': np.ones((8, 12 if n < 3 else 11)), 'labels': np.zeros(8, dtype=int)}\n"
    )
    line = ["run", str(files / "four.spz"), "-n", "4", "--json", "--steps", "4", "--data", f"{tmp_path}/late.py:batch"]
    assert run([*line, "--save", str(tmp_path / "d"), "--save-every", "1"]) == 3
    err = capsys.readouterr().err
    assert "data of step 3: array 'x' has shape (8, 11), the plan needs (8, 12)" in err
    assert checkpoint.load(tmp_path / "d", shardproof.load(files / "four.spz").opened.user_graph).step == 2


@pytest.mark.mpi
@pytest.mark.skipif(not mpi_available(), reason="mpi4py or mpiexec is not installed")
def test_a_rank_that_dies_is_named_with_its_step_and_the_state_before_is_whole(
    files: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "dies.py").write_text(
        "import numpy as np, os, signal\n"
        "def batch(n):\n"
        "    if n == 3:\n"
        "        os.kill(os.getpid(), signal.SIGKILL)\n"
        "    return {'x': np.ones((8, 12)), 'labels': np.zeros(8, dtype=int)}\n"
    )
    line = ["run", str(files / "four.spz"), "-n", "4", "--json", "--steps", "4", "--data", f"{tmp_path}/dies.py:batch"]
    assert run([*line, "--save", str(tmp_path / "d"), "--save-every", "1"]) == 6
    said = capsys.readouterr()
    assert "step 3: the process died" in said.err and len(said.out.splitlines()) == 3
    last = json.loads(said.out.splitlines()[-1])
    assert last["exit"] == 6 and "step 3: the process died" in last["error"]
    assert checkpoint.load(tmp_path / "d", shardproof.load(files / "four.spz").opened.user_graph).step == 2
