"""A plan and its job in one file: `check` says optimal, equal, bytes; parts that do not belong together are refused,
whichever is another one, and bytes are counted the same by who writes and by who checks.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from dataclasses import replace
from functools import cache
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from shardproof.__main__ import run as command
from shardproof.formal.equality.job import count_received
from shardproof.models.equality.pair import Mesh, Pair, Part
from shardproof.models.equality.program import Described, RankProgram, Source, Step
from shardproof.models.problem.claims import Verdict
from shardproof.models.text import InputError
from shardproof.proofs.container.archive import MANIFEST, Member, identity, read_container, write_container
from shardproof.proofs.container.canonical import ContainerError, canonical
from shardproof.proofs.equality.file import decode_equality, write_equality
from shardproof.proofs.equality.job import decode_job, write_job
from shardproof.proofs.plan.bundle import Plan
from shardproof.verify.budget import Budget
from shardproof.verify.equality.certificate import check_members
from shardproof.verify.equality.job import bytes_into, check_job, runs_of_box, wrong_job
from shardproof.verify.verbs.kinds import Effort, Judged, Tied, require_known

GROUP = (0, 2, 3)
KINDS = (
    "all_reduce",
    "all_gather",
    "reduce_scatter",
    "all_to_all",
    "broadcast",
    "reduce",
    "recv",
    "barrier",
    "send",
    "add",
)


@given(
    st.sampled_from(KINDS),
    st.integers(0, 4),
    st.integers(1, 5),
    st.sampled_from(("float32", "bfloat16", "int64", "bool")),
)
def test_writer_and_checker_count_alike(kind: str, rows: int, width: int, dtype: str) -> None:
    """Two countings that share no code, of every operator that says something to other ranks, and of one that does not."""
    taken = (2, 0, rows)
    shapes = {
        "all_gather": ((rows, width), (3 * rows, width)),
        "reduce_scatter": ((3 * rows, width), (rows, width)),
        "all_to_all": ((rows, width), (2 + rows, width)),
    }
    before, after = shapes.get(kind, ((rows, width), (rows, width)))
    words: tuple[tuple[str, object], ...] = (("ranks", GROUP), ("op", "sum"), ("source", 2), ("target", 2))
    words = (*words, ("send", (rows, 0, 0)), ("receive", taken))
    if kind in ("recv", "send", "add"):
        words = (("of", 2), ("to", 2), ("tag", 0))
    step = Step(kind, () if kind == "recv" else (0,), (1,), words)  # type: ignore[arg-type]
    program = RankProgram(
        (Source(0, "x", "input"),), (step,), (("y", 1),), (Described(before, dtype), Described(after, dtype))
    )
    counted = bytes_into(program, 3, step)
    ranks = [program if r in GROUP else RankProgram((), (), (), ()) for r in range(4)]
    assert max(bytes_into(program, r, step) for r in GROUP) == count_received(_Priced(), ranks).most  # type: ignore[arg-type]
    size = {"float32": 4, "bfloat16": 2, "int64": 8, "bool": 1}[dtype]
    n = rows * width
    assert counted == size * {
        "all_reduce": 4 * -(-n // 3), "all_gather": 2 * n, "reduce_scatter": 2 * n, "all_to_all": 2 * width,
        "broadcast": n, "reduce": n, "recv": n,
    }.get(kind, 0)  # fmt: skip


class _Priced:
    """A plan that moves nothing."""

    communication = ()
    graph = type("graph", (), {"state": ()})


@given(st.data())
def test_runs_of_a_box_are_its_positions(data: st.DataObject) -> None:
    """Against numpy: the positions of a box of digits, as a flat user shape has them."""
    digits = tuple(data.draw(st.lists(st.integers(1, 4), min_size=1, max_size=4)))
    cut = data.draw(st.integers(1, len(digits)))
    shape = tuple(int(np.prod(part)) for part in (digits[:cut], digits[cut:]) if part)
    box = tuple(tuple(sorted((data.draw(st.integers(0, n)), data.draw(st.integers(0, n))))) for n in digits)
    whole = np.arange(int(np.prod(digits))).reshape(digits)
    kept = whole[tuple(slice(low, high) for low, high in box)].reshape(-1)
    found = runs_of_box(box, digits, shape)
    assert found is not None
    places = [[there + k for _, there, many in runs for k in range(many)] for runs in found]
    assert np.arange(int(np.prod(shape))).reshape(shape)[np.ix_(*places)].reshape(-1).tolist() == kept.tolist()


def test_runs_of_a_box_that_is_none() -> None:
    assert runs_of_box(((0, 3), (0, 4)), (6, 4), (4, 6)) is None


MODEL = """
import torch
from torch import nn

def net(width=16, rows=8):
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(16, 32), nn.GELU(), nn.Linear(32, width)), (torch.zeros(rows, 16),)

def other():
    return net(rows=16)

def wider():
    return net(width=32)
"""


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with a model, plans of it, exported files, and the file of a plan with its job."""
    pytest.importorskip("torch")
    from export_cases import MACHINE

    folder = tmp_path_factory.mktemp("job")
    (folder / "model.py").write_text(MODEL)
    slow = MACHINE.format(nodes=1, rate="0.02")
    (folder / "machine.toml").write_text(slow)
    (folder / "other.toml").write_text(slow.replace('"4 GB/s"', '"3 GB/s"'))
    (folder / "four.toml").write_text(slow.replace("size = 2", "size = 4"))
    for name, model, machine, more in (
        ("plan", "net", "machine", ("--train", "sgd")),
        ("machine", "net", "other", ("--train", "sgd")),
        ("four", "net", "four", ("--train", "sgd")),
        ("batch", "other", "machine", ("--train", "sgd")),
        ("wider", "wider", "machine", ("--train", "sgd")),
        ("forward", "net", "machine", ()),
    ):
        words = ["plan", f"{folder / 'model.py'}:{model}", "--machine", str(folder / f"{machine}.toml"), *more]
        assert command([*words, "-o", str(folder / f"{name}.spz")]) == 0
        export = ["export", str(folder / f"{name}.spz"), "--to", "dtensor", "-o", str(folder / f"{name}.py")]
        assert command(export) == 0
    words = ["equal", f"{folder / 'model.py'}:net", "--plan", str(folder / "plan.spz"), "--excess", "1KiB"]
    assert command([*words, "-o", str(folder / "job.spz")]) == 0
    return folder


def said(capsys: pytest.CaptureFixture[str], *words: str) -> tuple[int, dict[str, object]]:
    capsys.readouterr()
    code = command([*words, "--json"])
    return code, json.loads(capsys.readouterr().out or "{}")


def judged(data: bytes) -> list[tuple[str, Verdict, str]]:
    members = read_container(data)
    return [(r.kind, r.verdict, r.reason) for r in require_known(members, "job").judge(members, Effort(), {}).results]


@cache
def _plan_inside(plan: bytes) -> Judged[object]:
    """A plan as its checker finds it, once for all files that hold it."""
    members = read_container(plan)
    return require_known(members, "plan").judge(members, Effort(), {})


def judged_parts(data: bytes) -> dict[str, tuple[Verdict, str]]:
    """The same as `judged`, part by part."""
    members = read_container(data)
    job, plan = decode_job(members), members["plan.spz"]
    assert isinstance(plan, bytes)
    inside = _plan_inside(plan)
    pair, equal = check_members(job.equality, Budget.with_large())
    assert isinstance(inside.held, Plan)
    found = check_job(job, inside.held, inside.results, inside.main, pair, equal)
    return {r.kind: (r.verdict, r.reason) for r in found}


@pytest.mark.torch
@pytest.mark.parametrize("name", ["plan", "forward"])
def test_one_file_says_optimal_equal_bytes(
    made: Path, name: str, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    target, net, plan = str(tmp_path / "job.spz"), f"{made / 'model.py'}:net", str(made / f"{name}.spz")
    code, found = said(capsys, "equal", net, str(made / f"{name}.py"), "--plan", plan, "--excess", "1KiB", "-o", target)
    assert (code, found["verdict"]) == (0, "equal")
    code, checked = said(capsys, "check", target, "--model", net, *(["--train", "sgd"] if name == "plan" else []))
    assert code == 0 and checked["verdict"] == "proved"
    claims = checked["claims"]
    assert isinstance(claims, list) and [c["kind"] for c in claims] == ["Model", "Optimal", "Equal", "Bytes"]
    assert claims[3]["cost"] == found["received"] and any("same-function" in a for a in claims[2]["assumptions"])
    assert command(["check", target]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert [line.split()[0] for line in lines if "  proved" in line] == ["Optimal", "Equal", "Bytes"]
    assert command(["explain", target]) == 3 and "a plan with its job" in capsys.readouterr().err


@pytest.mark.torch
def test_more_than_priced_is_refused_unless_it_is_said(
    made: Path, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    words = ["equal", f"{made / 'model.py'}:net", "--plan", str(made / "plan.spz"), "-o", str(tmp_path / "job.spz")]
    code, found = said(capsys, *words)
    beyond = int(str(found["received"])) - int(str(found["priced"]))
    assert beyond > 0, "a case is wanted that receives more"
    assert code == 10 and not (tmp_path / "job.spz").exists()
    assert found["verdict"] == "more bytes" and found["computes"] == "equal"
    assert command(words) == 10
    text = capsys.readouterr().out
    assert "\nequal: " in text and "\nbytes: refuted: " in text and f"--excess {beyond}" in text, (
        "both answers are said"
    )
    assert said(capsys, *words, "--excess", str(beyond))[0] == 0


@pytest.mark.torch
def test_what_does_not_fit_is_refused(made: Path, capsys: pytest.CaptureFixture[str]) -> None:
    net, plan = f"{made / 'model.py'}:net", str(made / "plan.spz")
    for words, code, words_said in (
        ([net, str(made / "machine.py"), "--plan", plan], 3, "export it anew"),
        ([net, plan, "--plan", plan], 3, "or nothing"),
        ([net, "--plan", str(made / "job.spz")], 3, "a plan with its job"),
        ([net, "--plan", plan, "--grad"], 2, "--grad"),
        ([net, "--excess", "4"], 2, "--plan"),
        ([net], 2, "DISTRIBUTED"),
        ([net, "--plan", plan, "--ranks", "4"], 3, "leave --ranks out"),
    ):
        assert command(["equal", *words]) == code, words
        assert words_said in capsys.readouterr().err


@pytest.mark.torch
def test_in_python(made: Path, tmp_path: Path) -> None:
    import runpy

    import shardproof

    net = runpy.run_path(str(made / "model.py"))["net"]
    found = shardproof.equal(net, plan=made / "plan.spz", excess=1024)
    found.save(tmp_path / "job.spz")
    assert found and command(["check", str(tmp_path / "job.spz")]) == 0
    more = shardproof.equal(net, plan=made / "plan.spz")
    assert more.answer == "undecided" and "more than priced" in more.reason
    with pytest.raises(InputError, match="grad"):
        shardproof.equal(net, plan=made / "plan.spz", grad=True)


def _parts(made: Path) -> tuple[bytes, Pair, str]:
    members = read_container(made / "job.spz")
    plan, proof, text = (members[name] for name in ("plan.spz", "equality.spz", "job.py"))
    assert isinstance(plan, bytes) and isinstance(proof, bytes) and isinstance(text, bytes)
    return plan, decode_equality(read_container(proof)), text.decode()


def _of(made: Path, name: str) -> tuple[bytes, str]:
    return (made / f"{name}.spz").read_bytes(), (made / f"{name}.py").read_text()


def _renamed(text: str, plan: bytes) -> str:
    """An exported file that says that it is of this plan."""
    import re

    return re.sub(r"('identity': ')[0-9a-f]{64}'", rf"\g<1>{identity(read_container(plan))}'", text)


def _swapped(pair: Pair) -> Pair:
    """Ranks are given each other's parts, in all that they are given and make."""
    return replace(
        pair, ranks=pair.ranks[::-1], given=pair.given[::-1], results=pair.results[::-1], relations=pair.relations[::-1]
    )


def _reduced_once_more(pair: Pair) -> Pair:
    """Rank programs with one more collective, of what nobody reads."""
    found = []
    for program in pair.ranks:
        number = len(program.tensors)
        read = max((s.number for s in program.sources), key=lambda n: int(np.prod(program.tensors[n].shape)))
        words = (("op", "sum"), ("ranks", tuple(range(len(pair.ranks)))))
        step = Step("all_reduce", (read,), (number,), words)
        found.append(replace(program, steps=(*program.steps, step), tensors=(*program.tensors, program.tensors[read])))
    return replace(pair, ranks=tuple(found))


def _forged(made: Path) -> Mapping[str, tuple[Callable[[], bytes], str]]:
    """Name -> (the file, the claim that must fall)."""
    plan, pair, text = _parts(made)

    def write(p: bytes = plan, e: Pair = pair, t: str = text, trains: bool = True, excess: int = 1024) -> bytes:
        return write_job(p, write_equality(e), t, trains, excess)

    def plan_of(name: str, lie: bool) -> Callable[[], bytes]:
        other = _of(made, name)[0]
        return lambda: write(p=other, t=_renamed(text, other) if lie else text)

    def less(pair: Pair) -> Pair:
        return replace(pair, results=tuple(r[:-1] for r in pair.results))

    def moved(pair: Pair) -> Pair:
        """Every rank is said to have a weight of rank 0."""
        rows = []
        for program, held in zip(pair.ranks, pair.given, strict=True):
            first = dict(pair.given[0])
            names = {s.number: s.name for s in program.sources}
            rows.append(tuple((n, first[n] if names[n] == "0.weight" else g) for n, g in held))
        return replace(pair, given=tuple(rows))

    return {
        "as it is": (write, ""),
        "another machine's plan": (plan_of("machine", False), "Equal"),
        "a plan of four devices, said to be": (plan_of("four", True), "Equal"),
        "a plan of another batch, said to be": (plan_of("batch", True), "Equal"),
        "a plan of wider weights, said to be": (plan_of("wider", True), "Equal"),
        "a plan without training, said to be": (plan_of("forward", True), "Equal"),
        "the job of another machine": (lambda: write(t=_of(made, "machine")[1]), "Equal"),
        "a job that names no plan": (lambda: write(t="print(1)\n"), "Equal"),
        "a job that names two plans": (lambda: write(t=text + text), "Equal"),
        "another pass": (lambda: write(trains=False), "Equal"),
        "ranks the other way round": (lambda: write(e=_swapped(pair)), "Equal"),
        "a weight of another rank": (lambda: write(e=moved(pair)), "Equal"),
        "an output less": (lambda: write(e=less(pair)), "Equal"),
        "nothing allowed": (lambda: write(excess=0), "Bytes"),
        "one collective more": (lambda: write(e=_reduced_once_more(pair)), "Bytes"),
    }


@pytest.mark.torch
def test_parts_that_do_not_belong_together(made: Path) -> None:
    for name, (write, falls) in _forged(made).items():
        found = judged_parts(write())
        if not falls:
            assert all(v is Verdict.PROVED for v, _ in found.values()), found
        elif name == "an output less":  # that one the proof itself does not have
            assert found[falls][0] is not Verdict.PROVED, name
        else:
            assert found[falls][0] is Verdict.REFUTED, (name, found)


@pytest.mark.torch
def test_the_optimum_falls_with_the_plan(made: Path) -> None:
    """A plan whose choices are another one's is refuted inside, and the first claim says why."""
    plan, pair, text = _parts(made)
    members = dict(read_container(plan))
    head = json.loads(bytes(members["plan.json"]))
    head["communication"][0][5] = [0, 1]
    members["plan.json"] = canonical(head)
    forged = write_container(None, {k: v for k, v in members.items() if k != MANIFEST})
    found = judged(write_job(forged, write_equality(pair), _renamed(text, forged), True, 1 << 20))
    assert found[0][1] is Verdict.REFUTED and found[0][2].startswith("Bytes:")


@pytest.mark.torch
@pytest.mark.parametrize(
    "change",
    [
        "missing plan.spz",
        "missing equality.spz",
        "missing job.py",
        "more",
        "hash",
        "proof",
        "plan",
        "format",
        "pass",
        "kind",
    ],
)
def test_malformed_files_are_refused(made: Path, change: str) -> None:
    members: dict[str, Member] = {k: v for k, v in read_container(made / "job.spz").items() if k != MANIFEST}
    head = json.loads(bytes(members["job.json"]))
    if change.startswith("missing"):
        del members[change.split()[1]]
    elif change == "more":
        members["more"] = b"x"
    elif change == "kind":
        members["equality.spz"] = members["plan.spz"]
        head["equality"] = head["plan"]
    else:
        key = {"hash": "file", "proof": "equality"}.get(change, change)
        head[key] = head[key][::-1]
    members["job.json"] = canonical(head)
    with pytest.raises(ContainerError):
        judged(write_container(None, members))


@pytest.mark.torch
def test_what_the_file_holds(made: Path) -> None:
    members = read_container(made / "job.spz")
    job = decode_job(members)
    held = require_known(members, "job").judge(members, Effort(), {}).held
    assert isinstance(held, Tied) and isinstance(held.plan.held, Plan) and job.text == (made / "plan.py").read_text()
    assert any(isinstance(g, Part) for _, g in _parts(made)[1].given[0])


@pytest.mark.torch
def test_ranks_of_a_mesh_are_no_job_of_a_plan(made: Path) -> None:
    """Each of its programs is of many ranks: neither their number nor their bytes would be those of the plan's."""
    members = read_container(made / "job.spz")
    held, pair = require_known(members, "job").judge(members, Effort(), {}).held, _parts(made)[1]
    assert isinstance(held, Tied) and isinstance(held.plan.held, Plan)
    job, plan = decode_job(members), held.plan.held
    assert wrong_job(job, plan, pair) == ""
    mesh = Mesh((1,), tuple((rank,) for rank in range(len(pair.ranks))), (0,))
    assert "ranks of a mesh" in wrong_job(job, plan, replace(pair, mesh=mesh))
