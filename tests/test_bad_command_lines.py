"""Bad command lines over all verbs: exit 2 or 3, a message that names the place, one JSON object where JSON was
asked for, never an internal error.
"""

from __future__ import annotations

import contextlib
import io
import json
import os
import re
import signal
from collections.abc import Iterator
from itertools import islice
from pathlib import Path

import numpy as np
import pytest

from shardproof.__main__ import SUBVERBS, VERBS, WORDS, run
from shardproof.models.problem.selection_problem import Edge, SelectionProblem, Vertex
from shardproof.models.sources.zoo import build
from shardproof.proofs.container.archive import write_container
from shardproof.proofs.selection.problem_file import encode_problem, problem_json

HANG_S = 10


class Hang(BaseException):
    """A command line took longer than `HANG_S`; nothing catches it."""


NUMBERS = [
    "nan",
    "inf",
    "-inf",
    "-1",
    "-0.5",
    "",
    " ",
    "x",
    "1e400",
    "1e999999999",
    "9" * 5000,
    "0x10",
    "1_0",
    "١",
    "½",
    "1,5",
    "\udcff",
    "--",
    "1e-400",
    "0",
]
INTEGERS = [*NUMBERS, "1.5", "1e3", "99999999999999999999999999"]
SHARES = [n for n in NUMBERS if n not in ("0", "1e-400")] + [
    "200%",
    "100%",
    "1",
    "-1%",
    "%",
    "1/0",
    "1/",
    "nan%",
    "1e99999",
]
AMOUNTS = [n for n in NUMBERS if n != "1e-400"] + [
    "GiB",
    "5XiB",
    "-5GiB",
    "0B",
    "9999999999TiB",
    "1e99TiB",
    "5 GiB/s",
    "80GiBGiB",
]

OPTIONS: dict[tuple[str, ...], dict[str, list[str]]] = {
    ("plan", "mlp-unity", "--machine", "localhost:2", "-o", "new.spz"): {
        "--micro-batch": ["0", "-1", "x", "1.5", "", "2", "auto", "2:twice", ":once", "9" * 400], "--precision": ["", "fp8", "bf16-master:scale=2"],
        "--time-limit": NUMBERS, "--threads": INTEGERS, "--gap": SHARES, "--batch": INTEGERS, "--memory": AMOUNTS,
        "--space": ["", "all", "complete,odd", "\x1b", "9" * 500], "--engine": ["", "cplex", "\udcff"], "--train": ["", "sgdd"], "--strategy": ["", "absent", "folder", "pipe", "noise"],
        "--vocabulary": ["", "tensorflow", "DTensor"],
    },
    ("solve", "problem.json"): {"--time-limit": NUMBERS, "--threads": INTEGERS, "--gap": SHARES, "--engine": ["x"]},
    ("fits", "mlp-unity", "--machine", "localhost:2"): {"--time-limit": NUMBERS, "--batch": INTEGERS, "--memory": AMOUNTS, "--train": ["x", ""], "--precision": ["x"]},
    ("audit", "problem.json", "--strategy", "choices.json"): {"--time-limit": NUMBERS, "--gap": SHARES, "--batch": INTEGERS, "--memory": AMOUNTS, "--engine": ["x"]},
    ("run", "plan.spz", "--virtual"): {"-n": [*INTEGERS, "3", "1"]},
    ("run", "plan.spz", "-n", "2", "--virtual"): {
        "--seed": [n for n in INTEGERS if n != "0"], "--timeout": NUMBERS, "--dtype": ["float16", ""], "--backend": ["", "tensorflow"],
        "--inputs": ["absent", "folder", "empty", "noise", "text", "pipe", "plan.spz", "other.npz", "one.npy", "cut.npz", "/dev/zero", ""],
    },
    ("run", "plan.spz", "-n", "2"): {"--hostfile": ["absent", "folder", "empty", "noise", ""], "--heartbeat-timeout": [*NUMBERS, "1.9", "601"]},
    ("export", "plan.spz", "-o", "new.py"): {"--to": ["", "csv", "DTensor", "\x1b"]},
    ("export", "plan.spz", "--to", "jax", "-o", "new.py", "--resolve"): {"--time-limit": NUMBERS, "--resolved": ["new.py", "folder", "-", ""]},
    ("explain", "plan.spz"): {"--error": SHARES, "--time-limit": NUMBERS, "--op": ["", "nobody", "\x1b[1m", "9" * 500]},
    ("explain", "plan.spz", "--op", "fc1"): {"--instead": ["{", '{"x": 1}', "b over nowhere", "b over 0 of ranks", "b over 99999999999 of ranks", "\udcff", '{"b": {"ranks": -1}}']},
    ("sensitivity", "plan.spz"): {"--solve-limit": NUMBERS, "--time-limit": NUMBERS},
    ("place", "--axes", "2,2"): {"--hierarchy": ["", "x", "2y2", "0x4", "-2x4", "2x", "9" * 400, "2x3", "1e3", "\udcff"]},
    ("place", "--hierarchy", "2x2"): {"--axes": ["", "3,3", "0,4", "-1", "4,4", "1.5", "2;2"]},
    ("place", "--hierarchy", "2x2", "--axes", "2,2"): {"--reduce": ["", "0", "0:", ":1GiB", "9:1GiB", "0:1GiB*0", "0:1GiB*x", "0:nan", "0,0:1GiB"]},
    ("reduce", "--hierarchy", "2x2", "--axes", "2,2"): {"--reduce": ["", "x", "2", "0,0", "-1"]},
    ("reduce", "--hierarchy", "2x2", "--axes", "2,2", "--reduce", "0"): {
        "--bytes": AMOUNTS, "--matrix": ["", "x", "[[2 1]", "[[3 1] [1 2]]", "[[2 2] [1 1]]", "[[0 4] [4 0]]", "[[99999999999999999999 1] [1 2]]"], "--machine": ["nowhere", "4"],
    },
    ("reduce",): {"--nodes": ["", "0", "x", "-1", "1,2,3x"]},
    ("import", "mlp-unity"): {"--batch": INTEGERS, "--train": ["adamm"], "--loss": ["x"], "--recompute": ["x"]},
    ("import", "mlp-unity", "--train", "sgd"): {
        "--loss": ["nobody", ""], "--recompute": ["nobody*"], "--micro-batch": [*INTEGERS, "7"], "--precision": ["", "bf16", "bf16-mixed:x=1", "bf16-mixed:reduce=int8", "fp16-mixed:growth=nan"],
    },
    ("machine", "calibrate", "p2-a100"): {"--timings": ["absent", "folder", "empty", "noise", "text", "pipe", "plan.spz", ""], "--rounds": INTEGERS, "--time-limit": NUMBERS, "--batch": ["1"]},
    ("machine", "calibrate", "dgx-a100"): {"--from": ["absent", "folder", "empty", "noise", "text", "pipe", "plan.spz", "", "rules.json", "choices.json"]},
    ("machine", "calibrate", "dgx-a100", "--from", "measured.csv"): {"--where": ["x", "nothing=1"], "--hold-out": ["nothing=1", "ranks=3"], "--keep": ["nothing", ""], "--operation": ["nothing", ""], "--save": ["new.csv"], "--timings": ["timings.csv"]},
    ("machine", "calibrate", "p2-a100", "--timings", "timings.csv"): {"--where": ["x", "=1", "nodes", "nothing=1"], "--hold-out": ["x", "nothing=1"]},
    ("plan", "mlp-unity", "--machine", "localhost:2", "--train", "sgd", "-o", "new.spz"): {"--pipeline": ["", "x", "0:1", "2:", "2:0", "-1:2", "9" * 400, "2:3", "2:2:2"]},
    ("schedule", "--stages", "2", "--micro-batches", "2", "--times", "1,1,1", "-o", "new.spz"): {
        "--kind": ["", "1F1B", "interleaved", "interleaved:0", "interleaved:x", "dualpipe-v", "\x1b[31m"], "--time-limit": NUMBERS, "--memory": INTEGERS,
        "--send": [n for n in INTEGERS if n != "0"], "--times": ["", "x", "1,1", "1,1,1;", "0,0,0", "1.5,1,1", "-1,1,1", "9" * 400 + ",1,1", "1,1,1;1,1,1;1,1,1"],
    },
    ("schedule", "--times", "1,1,1", "--micro-batches", "2"): {"--stages": INTEGERS},
    ("sweep", "sweep.toml", "-o", "swept"): {"--workers": [*INTEGERS, "mpi:2", "257"]},
    ("sweep", "sweep.toml"): {"-o": ["empty", "pipe", "/dev/null"]},
    ("rules", "prove", "rules.json"): {"--time-limit": NUMBERS, "--jobs": INTEGERS, "--degree": ["0", "-1", "x", "1.5", "9" * 400, "²"]},
    ("rules", "generate", "-o", "new.spz"): {"--operators": INTEGERS, "--jobs": INTEGERS, "--journal": ["folder", "text", "pipe"]},
    ("rules", "derive", "rules.json"): {"--from": ["absent", "folder", "noise", "empty", "plan.spz", "rules.json", "pipe"]},
    ("rules", "dtensor"): {"--only": ["", "nothing", "\x1b[31m"], "--jobs": INTEGERS, "--time-limit": NUMBERS},
    ("rules", "show"): {"--library": ["absent", "folder", "noise", "empty", "plan.spz", "pipe"]},
}  # fmt: skip
"""A command line -> option -> values that must be refused."""

FILES = [
    "absent",
    "absent/deeper",
    "folder",
    "empty",
    "noise",
    "text",
    "pipe",
    "/dev/null",
    "/dev/zero",
    "round",
    "text/x",
    "ü漢.json",
    "x" * 300,
    "cut.spz",
    "",
    "a\nb.json",
]
SPZ = [*FILES, "problem.json", "other.spz"]
ARGUMENTS: dict[tuple[str, ...], list[str]] = {
    ("check", "{}"): [*FILES, "problem.json", "other.spz", "certificate.spz"],
    ("run", "{}", "-n", "2", "--virtual"): [*SPZ, "certificate.spz", "problem.spz", "library.spz"],
    ("export", "{}", "--to", "dtensor", "-o", "new.py"): [*SPZ, "certificate.spz", "problem.spz", "library.spz"],
    ("report", "{}", "-o", "new.html"): [*SPZ, "certificate.spz", "problem.spz", "library.spz"],
    ("diff", "{}", "plan.spz"): [*SPZ, "certificate.spz", "problem.spz", "library.spz"],
    ("diff", "plan.spz", "{}"): [*SPZ, "certificate.spz", "problem.spz", "library.spz"],
    ("equal", "{}", "model.py:net", "--ranks", "2"): [*FILES, "plan.spz", "mlp-unity", "absent.py:f", "text.py:", "no.module:f"],
    ("capture", "{}", "-o", "new.spz"): [*FILES, "plan.spz", "mlp-unity", "absent.py:f", "text.py:", "no.module:f"],
    ("verify-job", "{}", "model.py:net"): [*SPZ, "certificate.spz", "problem.spz", "library.spz"],
    ("verify-job", "plan.spz", "{}"): [*FILES, "plan.spz", "mlp-unity", "absent.py:f", "text.py:f", "text.py:", "no.module:f"],
    ("explain", "{}"): [*SPZ, "certificate.spz", "problem.spz", "library.spz"],
    ("sensitivity", "{}"): [*SPZ, "certificate.spz", "library.spz"],
    ("solve", "{}"): [*FILES, "other.spz", "certificate.spz", "plan.spz", "library.spz", "choices.json", "graph.json"],
    ("solve", "problem.json", "--known", "{}"): [*FILES, "plan.spz", "graph.json", "problem.json"],
    ("export", "{}", "--to", "mps", "-o", "new.mps"): [*FILES, "other.spz", "certificate.spz", "library.spz", "choices.json", "graph.json"],
    ("audit", "{}", "--strategy", "choices.json"): [*FILES, "plan.spz", "graph.json"],
    ("audit", "problem.json", "--strategy", "{}"): [*FILES, "plan.spz", "graph.json", "problem.json"],
    ("plan", "{}", "--machine", "localhost:2", "-o", "new.spz"): [*FILES, "plan.spz", "problem.json", "mlp-unty", "absent.py:f", "text.py:f", "text.py:", "no.module:f", "absent.onnx", "text.onnx", "graph.onnx"],
    ("plan", "mlp-unity", "--machine", "{}", "-o", "new.spz"): [*FILES, "nowhere", "localhots", "localhost:0", "localhost:2x2", "-1x4", "9" * 400 + "x2", "text.toml", "folder.toml", "absent.toml", "localhost:", "cloud-a100:4xx8"],
    ("machine", "show", "{}"): [*FILES, "nowhere", "localhost:0", "text.toml", "\x1b[31m"],
    ("import", "{}"): [*FILES, "plan.spz", "nothing"],
    ("rules", "check", "{}"): [*SPZ, "plan.spz", "problem.spz"],
    ("rules", "prove", "{}"): [*FILES, "plan.spz", "problem.json"],
    ("rules", "refute", "{}"): [*FILES, "plan.spz"],
    ("rules", "show", "{}"): ["nobody", "\x1b[31m"],
}  # fmt: skip
"""A command line -> what must be refused in the place of {}."""

OTHERS: list[tuple[str, ...]] = [
    (), ("",), ("plna",), ("PLAN",), ("-x",), ("--jsn",), ("rules",), ("rules", "prov"), ("machine",), ("machine", "shwo"), ("rules", ""), ("\x1b[31m",), ("--",), ("plan",), ("plan", "mlp-unity"),
    ("plan", "mlp-unity", "--machine", "localhost:2"), ("plan", "--machine", "localhost:2", "-o", "new.spz"), ("plan", "a", "b", "--machine", "localhost:2", "-o", "new.spz"), ("check",), ("run", "plan.spz"),
    ("explain",), ("capture",), ("capture", "model.py:net"), ("capture", "model.py:net", "-o", "new.spz", "--ranks", "0"), ("equal",), ("equal", "model.py:net"), ("equal", "model.py:net", "--excess", "4"), ("equal", "model.py:net", "--plan", "plan.spz", "--grad"), ("equal", "model.py:net", "--plan", "certificate.spz"), ("equal", "model.py:net", "--plan", "absent.spz"), ("equal", "model.py:net", "model.py:net"), ("equal", "model.py:net", "model.py:net", "--ranks", "0"), ("verify-job",), ("verify-job", "plan.spz"), ("report",), ("report", "plan.spz"), ("report", "plan.spz", "-o", "folder"), ("diff",), ("diff", "plan.spz"), ("doctor", "x"), ("export",), ("export", "plan.spz"), ("export", "plan.spz", "--to", "jax"), ("export", "plan.spz", "--to", "jax", "-o", "folder"), ("export", "plan.spz", "--to", "jax", "-o", "new.py", "--time-limit", "3"), ("plan", "mlp-unity", "--machine", "localhost:2", "--space", "complete,uneven", "--vocabulary", "jax", "-o", "new.spz"), ("solve",), ("audit", "mlp-unity"), ("audit", "mlp-unity", "--strategy", "model.json"), ("place",), ("reduce",), ("reduce", "--nodes", "2,2", "--axes", "2"), ("schedule",), ("schedule", "--stages", "2"), ("schedule", "--stages", "2", "--times", "1,1,1"),
    ("explain", "plan.spz", "--instead", "b over ranks"), ("explain", "plan.spz", "--cost", "--op", "fc1"), ("explain", "plan.spz", "--symbolic"), ("explain", "plan.spz", "--state"), ("import",),
    ("plan", "mlp-unity", "--machine", "localhost:2", "-o", "new.spz", "--loss", "x"), ("plan", "mlp-unity", "--machine", "localhost:2", "-o", "new.spz", "--recompute", "auto"),
    ("plan", "graph.json", "--batch", "3", "--machine", "localhost:2", "-o", "new.spz"), ("machine", "calibrate"), ("machine", "calibrate", "p2-a100", "--train", "sgd", "--timings", "timings.csv"),
    ("machine", "calibrate", "p2-a100", "--model", "mlp-unity", "--timings", "timings.csv"), ("check", "certificate.spz"), ("check", "plan.spz", "absent"), ("check", "plan.spz", "noise"),
    ("plan", "mlp-unity", "--machine", "localhost:2", "-o", "a", "-o"), ("rules", "show", "g0", "--svg", "one", "--smtlib", "one"), ("plan", "mlp-unity", "--machine"), ("import", "mlp-unity", "--batch"),
    ("audit", "problem.json", "--strategy", "short.json"), ("audit", "problem.json", "--strategy", "outside.json"), ("audit", "mlp-unity", "--machine", "localhost:2", "--strategy", "choices.json"),
    ("run", "plan.spz", "-n", "2", "--virtual", "--allow-kernel", "x"),
]  # fmt: skip


def rows() -> Iterator[tuple[tuple[str, ...], tuple[str, ...]]]:
    """(command line, words of which the message must name one; empty: nothing in particular)."""
    for line, options in OPTIONS.items():
        for option, values in options.items():
            yield from (((*line, option, value), (option, value)) for value in values)
    for line, files in ARGUMENTS.items():
        yield from ((tuple(file if word == "{}" else word for word in line), (file,)) for file in files)
    yield from ((line, ()) for line in OTHERS)


def silent(arguments: list[str]) -> int:
    with contextlib.redirect_stdout(io.StringIO()):
        return run(arguments)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """A folder of good files and of bad ones."""
    here = tmp_path_factory.mktemp("bad")
    with contextlib.chdir(here):
        problem = SelectionProblem(
            "p", tuple(Vertex(n, np.array([1, 0])) for n in "ab"), (np.array([[0, 9], [9, 0]]),), (Edge(0, 1, 0),)
        )
        Path("problem.json").write_bytes(problem_json(problem))
        write_container(Path("problem.spz"), encode_problem(problem))
        write_container(Path("other.spz"), {"x.json": b"{}"})
        Path("graph.json").write_text(build("mlp-unity").to_json())
        assert silent(["plan", "mlp-unity", "--machine", "localhost:2", "-o", "plan.spz"]) == 0
        assert silent(["solve", "problem.json", "-o", "certificate.spz"]) == 0
        rule = {
            "name": "r",
            **{side: [{"type": "OP_RELU", "input": [{"opId": -1, "tsId": 0}]}] for side in ("srcOp", "dstOp")},
        }
        Path("rules.json").write_text(
            json.dumps(
                {"rule": [{**rule, "mappedOutput": [dict.fromkeys(("srcOpId", "srcTsId", "dstOpId", "dstTsId"), 0)]}]}
            )
        )
        assert silent(["rules", "prove", "rules.json", "-o", "library.spz"]) == 0
        Path("cut.spz").write_bytes(Path("plan.spz").read_bytes()[:500])
        for name in ("text", "text.toml", "text.py", "text.onnx", "text.pt2", "graph.onnx"):
            Path(name).write_text("some text, and (more\n")
        Path("noise").write_bytes(bytes(range(256)) * 8)
        Path("empty").touch()
        Path("folder").mkdir()
        Path("folder.toml").mkdir()
        os.mkfifo("pipe")
        Path("round").symlink_to("round")
        Path("choices.json").write_text("[0, 1]")
        Path("sweep.toml").write_text('[each]\nmodel = ["mlp-unity"]\nmachine = ["localhost:2"]')
        Path("short.json").write_text("[0]")
        Path("outside.json").write_text("[0, 7]")
        Path("model.json").write_text('{"fc1": {"b": {"ranks": 2}}}')
        Path("timings.csv").write_text(
            "machine,matrix,reduce,program,algorithm,payload,seconds\n2x2,[[2 1][1 2]],0,AllReduce,ring,1024,0.001\n"
        )
        Path("measured.csv").write_text(
            "operation,ranks,bytes,us\nall_gather,8,1024,20\nall_gather,8,1048576,40\nall_gather,8,1073741824,5000\n"
        )
        np.savez("other.npz", x=np.zeros(3))
        np.save("one.npy", np.zeros(3))
        Path("cut.npz").write_bytes(Path("other.npz").read_bytes()[:100])
        yield here


def test_there_are_many_and_every_verb_is_among_them() -> None:
    lines = [line for line, _ in rows()]
    assert len(lines) >= 200
    verbs = {verb for verb in VERBS if verb not in WORDS and verb not in SUBVERBS}
    assert verbs <= {line[0] for line in lines if line}
    assert {(v, w) for table in (WORDS, SUBVERBS) for v, words in table.items() for w in words} <= {
        line[:2] for line in lines
    }


STEP = 10
"""`make test` runs every tenth line without and every tenth with --json; `make test-slow` all of both."""


@pytest.mark.parametrize(
    ("as_json", "start", "step"),
    [
        (False, 0, STEP),
        (True, 2, STEP),
        pytest.param(False, 0, 1, marks=pytest.mark.slow),
        pytest.param(True, 0, 1, marks=pytest.mark.slow),
    ],
)
def test_refused_with_the_place_named(
    folder: Path, capsys: pytest.CaptureFixture[str], as_json: bool, start: int, step: int
) -> None:
    def ring(*_: object) -> None:
        raise Hang(f"longer than {HANG_S} s")

    before = signal.signal(signal.SIGALRM, ring)
    bad: list[str] = []
    files = sorted(p.name for p in folder.iterdir())
    try:
        with contextlib.chdir(folder):
            for line, places in islice(rows(), start, None, step):
                arguments = (
                    [*line, "--json"]
                    if as_json and line and line[-1] not in ("--", "--machine", "--batch", "-o")
                    else list(line)
                )
                signal.alarm(HANG_S)
                try:
                    code: object = run(arguments)
                except BaseException as error:
                    if isinstance(error, KeyboardInterrupt):
                        raise
                    code = f"{type(error).__name__}: {error}"
                signal.alarm(0)
                seen = capsys.readouterr()
                for fault in faults(code, seen.out, seen.err, places, "--json" in arguments):
                    bad.append(f"{' '.join(map(ascii, line))[:150]}: {fault}")
                if sorted(p.name for p in folder.iterdir()) != files:
                    bad.append(f"{line}: left {sorted(p.name for p in folder.iterdir())}")
                    files = sorted(p.name for p in folder.iterdir())
    finally:
        signal.signal(signal.SIGALRM, before)
    assert not bad, f"{len(bad)} of {len(list(rows()))}:\n" + "\n".join(bad)


def faults(code: object, out: str, err: str, places: tuple[str, ...], as_json: bool) -> Iterator[str]:
    """What is wrong with how a bad command line was answered."""
    if code not in (2, 3):
        yield f"exit {code}: {err[:200]}"
        return
    said = err.partition("\n")[0]
    if not said.startswith("error: ") and "Usage: " not in said:
        yield f"no error in {err[:100]!r}"
    if not all(line.isprintable() for line in (out + err).split("\n")):
        yield "control characters"
    if "Traceback" in err or "internal error" in err:
        yield f"traceback: {err[:200]}"
    words = [w for place in places for w in re.findall(r"[^\W_]{4,}", place.replace("reduce", "reduc"), re.ASCII)]
    shown = [
        p for place in (*places, *words) for p in (place[:60], place.encode("unicode_escape").decode("ascii")[:60])
    ]
    if "" not in places and places and not any(p in err for p in shown):
        yield f"names none of {places!r}: {err[:200]!r}"
    if as_json:
        try:
            document = json.loads(out)
            if document.get("exit") != code or not isinstance(document.get("error"), str):
                yield f"JSON: {out[:200]}"
        except ValueError:
            yield f"no JSON object on stdout: {out[:100]!r}"


def test_unreadable_files(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    if os.geteuid() == 0:
        pytest.skip("root may read everything")
    with contextlib.chdir(folder):
        for name in ("plan.spz", "problem.json", "graph.json"):
            Path(name).chmod(0)
            for line in (("check", name), ("solve", name), ("plan", name, "--machine", "localhost:2", "-o", "new.spz")):
                assert run(list(line)) == 3 and name in capsys.readouterr().err
            Path(name).chmod(0o600)


@pytest.mark.parametrize(
    "line",
    [
        ("-h",),
        ("plan", "-h"),
        ("rules", "-h"),
        ("rules", "prove", "-h"),
        ("machine", "show", "-h"),
        ("machine", "calibrate", "-h"),
        ("--version",),
    ],
)
def test_help(line: tuple[str, ...], capsys: pytest.CaptureFixture[str]) -> None:
    assert run(list(line)) == 0 and capsys.readouterr().err == ""


@pytest.mark.parametrize(
    ("line", "meant"),
    [
        (("plna",), "plan"), (("chekc",), "check"), (("rules", "prov"), "prove"), (("machine", "calibrat"), "calibrate"), (("plan", "mlp-unty", "--machine", "4", "-o", "x.spz"), "mlp-unity"),
        (("machine", "show", "localhots"), "localhost"), (("machine", "show", "dgx-a10:4x8"), "cloud-a100"), (("plan", "--machin", "4"), "--machine"),
    ],
)  # fmt: skip
def test_the_nearest_is_named(
    line: tuple[str, ...], meant: str, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    with contextlib.chdir(tmp_path):
        assert run(list(line)) in (2, 3)
    assert meant in capsys.readouterr().err.partition("Usage")[0]


@pytest.mark.parametrize(
    ("line", "words"),
    [
        (("run", "certificate.spz", "-n", "2"), "holds a certificate of a selection problem, not a plan; check takes it"),
        (("run", "library.spz", "-n", "2"), "holds a rule library, not a plan; rules check"),
        (("rules", "check", "plan.spz"), "holds a plan, not a rule library; run, explain"),
        (("solve", "certificate.spz"), "holds a certificate of a selection problem, not a selection problem"),
        (("plan", "plan.spz", "--machine", "4", "-o", "new.spz"), "is a result, not a model"),
        (("explain", "other.spz"), "does not hold a plan (members: x.json)"),
    ],
)  # fmt: skip
def test_the_wrong_kind_is_called_by_its_name(
    folder: Path, line: tuple[str, ...], words: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with contextlib.chdir(folder):
        assert run(list(line)) == 3
    said = capsys.readouterr().err
    assert words in said and line[1 if line[0] != "rules" else 2] in said


def test_the_last_line_does_not_say_proved_where_a_file_was_refused(
    folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with contextlib.chdir(folder):
        assert run(["check", "plan.spz", "noise"]) == 3
        said = capsys.readouterr()
        assert said.out.splitlines()[-1].startswith("not checked: 1 of 2 files") and "noise" in said.err
        assert run(["check", "plan.spz", "noise", "--json"]) == 3
        document = json.loads(capsys.readouterr().out)
        assert document["verdict"] == "undecided" and document["exit"] == 3 and "noise" in document["error"]
        for line in (["import", "--list-ops", "--json"], ["rules", "show", "--json"]):
            assert run(line) == 0 and json.loads(capsys.readouterr().out)
