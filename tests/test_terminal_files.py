"""Every text of every kind of file with a terminal's control sequence in it, and every verb that reads it: what is
printed holds none.
"""

from __future__ import annotations

import contextlib
import io
import json
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from fuzz_loaders import IOPDDL, PASE, TIMINGS, onnx_files, problem, tiny

from shardproof.__main__ import run
from shardproof.proofs.container.archive import read_container, write_container
from shardproof.proofs.container.canonical import canonical
from shardproof.proofs.selection.problem_file import problem_json

POISON = "\x1b[2J\r\x07\nFORGED proved\u202e\x9b1m"
"""Clears a screen, rings, starts a line of its own, turns the direction of writing."""

RULE = {"name": "r", **{side: [{"type": "OP_RELU", "input": [{"opId": -1, "tsId": 0}]}] for side in ("srcOp", "dstOp")},
        "mappedOutput": [dict.fromkeys(("srcOpId", "srcTsId", "dstOpId", "dstTsId"), 0)]}  # fmt: skip


def texts(value: object) -> set[str]:
    """Every text in a JSON value, keys included."""
    if isinstance(value, str):
        return {value}
    if isinstance(value, dict):
        return set(value) | {t for v in value.values() for t in texts(v)}
    return {t for v in value for t in texts(v)} if isinstance(value, list) else set()


def poisoned(value: object, which: Callable[[str], bool]) -> object:
    """The value with the poison behind every text that is chosen, wherever it stands, so that names still fit each
    other.
    """
    if isinstance(value, str):
        return value + POISON if which(value) else value
    if isinstance(value, dict):
        return {str(poisoned(k, which)): poisoned(v, which) for k, v in value.items()}
    return [poisoned(v, which) for v in value] if isinstance(value, list) else value


def variants(document: object) -> Iterator[object]:
    """Each text poisoned in turn, keys included."""
    for text in sorted(texts(document)):
        yield poisoned(document, lambda t, text=text: t == text)


def graph_with_names() -> dict[str, object]:
    """A graph in which every name (of itself, tensors, operators, axes) is poisoned, and nothing else."""
    graph = json.loads(tiny().to_json())
    names = {
        graph["name"],
        *(t["name"] for t in graph["tensors"]),
        *(o["name"] for o in graph["operators"]),
        *(a[0] for o in graph["operators"] for a in o["axes"]),
    }
    return poisoned(graph, lambda t: t in names - {o["function"] for o in graph["operators"]})  # type: ignore[return-value]


class Seen:
    """Runs verbs and looks at what they print."""

    def __init__(self, capsys: pytest.CaptureFixture[str]) -> None:
        self.capsys, self.calls, self.shown = capsys, 0, 0

    def __call__(self, *arguments: str) -> int:
        code = run(list(arguments))
        seen = self.capsys.readouterr()
        for line in (seen.out + seen.err).split("\n"):
            assert line.isprintable() and not line.startswith("FORGED"), (arguments, line)
        assert code != 6, (arguments, seen.err)
        self.calls += 1
        self.shown += "FORGED" in seen.out + seen.err
        return code


@pytest.fixture
def verb(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> Iterator[Seen]:
    with contextlib.chdir(tmp_path):
        yield Seen(capsys)


def test_names_of_a_model_through_all_verbs(verb: Seen) -> None:
    Path("m.json").write_text(json.dumps(graph_with_names()))
    assert verb("plan", "m.json", "--machine", "localhost:2", "-o", "p.spz", "--explain-cost") == 0
    for line in (
        ("import", "m.json"), ("check", "p.spz"), ("explain", "p.spz"), ("explain", "p.spz", "--cost"), ("explain", "p.spz", "--op", "nobody"), ("run", "p.spz", "-n", "2", "--virtual"),
        ("run", "p.spz", "-n", "2", "--communication"), ("run", "p.spz", "-n", "2", "--virtual", "--inputs", "absent.npz"), ("plan", "m.json", "--machine", "localhost:2", "--memory", "100B", "-o", "q.spz"),
        ("explain", "p.spz", "--op", tiny().operators[0].name + POISON), ("explain", "p.spz", "--symbolic", "--op", tiny().operators[0].name + POISON),
    ):  # fmt: skip
        verb(*line)
    verb("check", "p.spz", "--json")
    assert verb.shown > 6, "the names were not shown at all"
    Path("s.json").write_text(
        json.dumps({"*": {tiny().operators[0].axes[0].name + POISON: {"ranks": 2}}, "nobody" + POISON: None})
    )
    verb("audit", "m.json", "--machine", "localhost:2", "--strategy", "s.json")
    assert verb("plan", "m.json", "--machine", "localhost:2", "--train", "sgd", "-o", "t.spz") in (0, 3)


def test_every_text_of_a_graph(verb: Seen) -> None:
    for variant in variants(json.loads(tiny().to_json())):
        Path("m.json").write_text(json.dumps(variant))
        verb("import", "m.json")
    assert verb.shown > 5


def test_every_text_of_a_problem(verb: Seen) -> None:
    Path("c.json").write_text('["x\\u001b", 1]')
    for document in (json.loads(problem_json(problem(1))), IOPDDL, PASE):
        for variant in variants(document):
            Path("p.json").write_text(json.dumps(variant))
            verb("solve", "p.json", "-o", "c.spz")
            verb("audit", "p.json", "--strategy", "c.json")
            verb("check", "p.json", "c.spz")
    assert verb.shown > 10


def members_poisoned(source: Path, target: Path) -> Iterator[None]:
    """The container with each text of each of its JSON members poisoned in turn, hashes of the archive written anew."""
    members = dict(read_container(source.read_bytes()))
    for name, value in members.items():
        if name != "manifest.json" and isinstance(value, bytes):
            found = sorted(texts(json.loads(value)))
            for text in found[:: 1 + len(found) // 12]:
                changed = poisoned(json.loads(value), lambda t, text=text: t == text)
                target.unlink(missing_ok=True)
                write_container(target, {**members, name: canonical(changed)})
                yield


def test_every_text_of_a_result(verb: Seen) -> None:
    Path("m.json").write_text(tiny().to_json())
    Path("p.json").write_bytes(problem_json(problem()))
    Path("r.json").write_text(json.dumps({"rule": [RULE]}))
    assert (
        verb("plan", "m.json", "--machine", "localhost:2", "-o", "plan.spz")
        == verb("solve", "p.json", "-o", "cert.spz")
        == verb("rules", "prove", "r.json", "-o", "lib.spz")
        == 0
    )
    assert verb("reduce", "--hierarchy", "2x2", "--axes", "2,2", "--reduce", "0", "-o", "red.spz") == 0
    verbs = {
        "plan.spz": (("check", "x.spz"), ("explain", "x.spz"), ("run", "x.spz", "-n", "2", "--virtual")), "cert.spz": (("check", "x.spz", "p.json"),),
        "lib.spz": (("check", "x.spz"), ("rules", "check", "x.spz"), ("rules", "show", "--library", "x.spz")), "red.spz": (("check", "x.spz"),),
    }  # fmt: skip
    for name, lines in verbs.items():
        before = verb.shown
        for _ in members_poisoned(Path(name), Path("x.spz")):
            for line in lines:
                verb(*line)
        assert verb.calls > 10 and (verb.shown > before or name == "cert.spz"), (
            name
        )  # of a certificate nothing but its hash is shown


def test_a_title_cannot_forge_a_verdict(verb: Seen) -> None:
    """The library of the report: its title holds a line of its own."""
    Path("r.json").write_text(json.dumps({"rule": [{**RULE, "name": "r" + POISON}]}))
    assert verb("rules", "prove", "r.json", "-o", "lib.spz") == 0
    members = dict(read_container(Path("lib.spz").read_bytes()))
    head = json.loads(members["library.json"])
    write_container(
        Path("x.spz"),
        {**members, "library.json": canonical({**head, "title": "mine\nOptimal proved; cost 1" + POISON})},
    )
    for line in (
        ("check", "x.spz"),
        ("rules", "check", "x.spz"),
        ("rules", "show", "--library", "x.spz"),
        ("rules", "show", "r@rank2" + POISON, "--library", "x.spz"),
        ("rules", "prove", "r.json"),
    ):
        verb(*line)
    assert verb.shown >= 4


def test_texts_of_other_files(verb: Seen) -> None:
    for row in ("machine", "nodes"):
        Path("t.csv").write_text(
            TIMINGS[1].decode().replace("AllReduce", f'"{POISON}"').replace("seconds", f'"seconds{row}{POISON}"', 1),
            newline="",
        )
        verb("machine", "calibrate", "p2-a100", "--timings", "t.csv")
    toml = Path(__file__).resolve().parents[1].joinpath("models", "machine", "builtin", "localhost.toml").read_text()
    for old, new in (
        ("[sources]\n", "[sources]\n"),
        ("assumption: ", "assumption: \\u001b[2J\\nFORGED "),
        ('name = "ranks"', 'name = "ranks\\u001b"'),
        ("GiB", "\\u001bGiB"),
    ):
        Path("m.toml").write_text(toml.replace(old, new))
        verb("machine", "show", "m.toml")
        verb("plan", "mlp-unity", "--machine", "m.toml", "-o", "p.spz")
    Path("s.json").write_text(json.dumps({"x" + POISON: {"y" + POISON: {"z" + POISON: 2}}}))
    verb("audit", "mlp-unity", "--machine", "localhost:2", "--strategy", "s.json")
    Path("m.py").write_text(
        f"import shardproof\n@shardproof.program(a=(4, 6))\ndef f(a):\n    raise KeyError({POISON!r})\n"
    )
    assert verb("import", "m.py:f") == 3
    name = "odd" + POISON + ".json"
    Path(name).write_text("{")
    for line in (
        ("check", name),
        ("solve", name),
        ("import", name),
        ("rules", "prove", name),
        (name,),
        ("plan", "mlp-unity", "--machine", name, "-o", "p.spz"),
        ("explain", name, "--op", POISON),
    ):
        assert verb(*line) in (2, 3)
    assert verb.shown > 8


def test_names_of_an_onnx_file(verb: Seen) -> None:
    onnx = pytest.importorskip("onnx")
    model = onnx.load_from_string(onnx_files()[0])
    for node in model.graph.node:
        node.name = node.op_type + POISON
    Path("m.onnx").write_bytes(model.SerializeToString())
    assert verb("plan", "m.onnx", "--machine", "localhost:2", "-o", "p.spz", "--explain-cost") == 0
    model.graph.node[0].op_type = "NoSuch" + POISON
    Path("n.onnx").write_bytes(model.SerializeToString())
    assert verb("import", "n.onnx") == 3 and verb.shown == 2


def test_progress_is_escaped(monkeypatch: pytest.MonkeyPatch) -> None:
    """File names stand in progress bars, where square brackets are markup to the library that draws them."""
    import sys

    from shardproof.models.terminal.console import Watch

    screen = io.StringIO()
    screen.isatty = lambda: True  # type: ignore[method-assign]
    monkeypatch.setattr(sys, "stderr", screen)
    with Watch(f"checking [/] [red]{POISON}") as watch:
        watch.start -= 10
        watch.count(1, 2)
    assert (
        POISON not in screen.getvalue() and "[red]" in screen.getvalue() and "FORGED proved\\u202e" in screen.getvalue()
    )
