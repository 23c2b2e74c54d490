"""Every loader against hostile files: each either accepts or refuses with an error of ours (exit 3), quickly and in
little memory.

    python tests/fuzz_loaders.py [--cases 100000] [--seed 1] [LOADER ..]

prints counts per loader.  Case k of a loader is the same bytes in every run, so a failure is named by its number;
`--keep FOLDER` writes the files.  Every loader has a process of its own: a NumPy program is code, and a mutant of one
may leave another function under a name of NumPy's.
"""

from __future__ import annotations

import argparse
import contextlib
import gzip
import hashlib
import importlib.util
import io
import json
import lzma
import os
import random
import resource
import signal
import subprocess
import sys
import tempfile
import time
import warnings
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from functools import cache
from pathlib import Path

import numpy as np

HERE = Path(__file__).resolve().parent
if __name__ == "__main__":
    sys.path[:0] = [str(HERE)]

from budgets import work
from conformance.extractions import problems as extraction_problems
from conformance.extractions import suite as extraction_suite
from conformance.viewed import by_hand as viewed_by_hand
from fuzz_mutations import (
    Mutator,
    changed_arrays,
    changed_bytes,
    changed_gzip,
    changed_json,
    changed_members,
    changed_protobuf,
    changed_words,
)

from shardproof.__main__ import run
from shardproof.backends.execution.array_files import read_inputs
from shardproof.backends.execution.reference import check_inputs, random_inputs
from shardproof.formal.calibration.calibrate import calibrate
from shardproof.formal.calibration.timings import read_timings
from shardproof.formal.plans.plan import default_space
from shardproof.formal.plans.strategy import parse_config
from shardproof.formal.plans.strategy_file import load_strategy
from shardproof.formal.rewriting.egraphs.solve import extract
from shardproof.formal.schedules.overlap import overlap
from shardproof.formal.schedules.search import search
from shardproof.formal.schedules.shop import shop
from shardproof.formal.selection.solve import solve
from shardproof.models.cost import selection
from shardproof.models.egraphs.egraph import EGraph
from shardproof.models.machine import machine as machines
from shardproof.models.machine.machine import Machine, load_machine
from shardproof.models.problem.claims import Verdict
from shardproof.models.problem.selection_problem import Edge, SelectionProblem, Usage, Vertex
from shardproof.models.program.graph import Graph
from shardproof.models.schedules.pipeline import Pipeline
from shardproof.models.sources.load import load_model
from shardproof.models.sources.overlap.graph import read_overlap
from shardproof.models.sources.zoo import build
from shardproof.proofs.collective_programs.file import read_reduction
from shardproof.proofs.container.archive import read_container, write_container
from shardproof.proofs.egraphs.file import decode_extraction, write_extraction
from shardproof.proofs.plan.bundle import read_plan
from shardproof.proofs.schedules.certificate import Refutation, ScheduleCertificate
from shardproof.proofs.schedules.file import write_schedule
from shardproof.proofs.selection.file import decode_certificate, read_certificate, write_certificate
from shardproof.proofs.selection.load import load_problem, load_selection_problem, problem_of
from shardproof.proofs.selection.problem_file import encode_problem, problem_json
from shardproof.proofs.views.file import write_submesh_plan
from shardproof.verify.egraphs.extraction import check_extraction
from shardproof.verify.schedules.certificate import check_members as check_schedule_members
from shardproof.verify.selection.certificate import check_selection
from shardproof.verify.views.certificate import check_members as check_views_members

HANG_S = 10
"""Longest time that one file may take."""

MEMORY = 2 << 30
"""Address space that the cases of a loader may take beyond what the process had before them."""


HEAD = (
    f"{'loader':<20} {'accepted':>9} {'refused':>9} {'other':>6} {'seconds':>8} {'a second':>9} {'slowest':>8} "
    f"{'MiB':>6}"
)


class Hang(BaseException):
    """A case took longer than `HANG_S`; no loader catches it."""


@dataclass(frozen=True)
class Loader:
    """`load` is given the path of a file called `name`."""

    seeds: Callable[[], Sequence[bytes]]
    mutators: tuple[Mutator, ...]
    load: Callable[[Path], object]
    name: str


@dataclass
class Counts:
    """What became of the cases.  `other`: (number of the case, what it raised)."""

    accepted: int = 0
    refused: int = 0
    other: list[tuple[int, str]] = field(default_factory=list)
    seconds: float = 0.0
    slowest: float = 0.0
    kinds: Counter[str] = field(default_factory=Counter)


# --- valid files
# ----------------------------------------------------------------------------------------------------------------------


@cache
def _made(*arguments: str) -> bytes:
    with tempfile.TemporaryDirectory() as folder:
        with contextlib.chdir(folder), contextlib.redirect_stdout(io.StringIO()):
            Path("p.json").write_bytes(problem_json(problem()))
            Path("m.json").write_text(tiny().to_json())
            Path("r.json").write_bytes((HERE / "data" / "rules" / "flexflow-even.json").read_bytes())
            code = run([*arguments, "-o", "made"])
        assert code in (0, 20), (arguments, code)
        return Path(folder, "made").read_bytes()


def problem(limit: int | None = 5) -> SelectionProblem:
    table = np.array([[0, 9], [9, 0]], dtype=np.int64)
    amount = np.array([3, 1], dtype=np.int64)
    usages = () if limit is None else (Usage(0, 0, 2, amount, "weights of a"), Usage(1, 0, 2, amount, "weights of b"))
    return SelectionProblem(
        "small",
        tuple(Vertex(n, np.array([1, 0])) for n in "abc"),
        (table,),
        (Edge(0, 1, 0), Edge(1, 2, 0)),
        usages,
        limit,
    )


def graphs() -> list[bytes]:
    from shardproof.models.sources.training import build_step

    return [
        tiny().to_json().encode(),
        build_step(tiny(), "sgd", None).graph.to_json().encode(),
        build("mlp-unity").to_json().encode(),
    ]


@cache
def tiny() -> Graph:
    """A model of a few operators."""
    with tempfile.TemporaryDirectory() as folder:
        Path(folder, "tiny_program.py").write_bytes(PROGRAMS[2])
        return load_model(f"{folder}/tiny_program.py:f")


def tomls() -> list[bytes]:
    measured = (
        b'\n[[profile]]\nfunction = "product"\ndtype = "float32"\nextents = [64, 64, 64]\nseconds = "12 '
        b'us"\n\n[sources]\n"profile.product" = "measured"\n'
    )
    files = [path.read_bytes() for path in sorted(machines.BUILTIN.glob("*.toml"))]
    return [*files, files[0].replace(b"\n[sources]\n", measured)]


IOPDDL = {"problem": {"name": "p", "nodes": {"intervals": [[0, 2], [3, 4]], "costs": [[1, 2], [5, 6]], "usages": [[3, 4], [9, 9]]},
                      "edges": {"nodes": [[1, 0]], "costs": [[1, 2, 3, 10**18]]}, "usage_limit": 14, "comment": {"a": [1, {"b": None}]}}}  # fmt: skip
PASE = {
    "info": {"x": 1},
    "nodes": [{"name": "a", "configs": [[1]], "cost": [0.5, 3]}, {"name": "b", "cost": [0.25]}],
    "edges": [[0, 1, [[1], [0.125]]]],
}


def problems() -> list[bytes]:
    return [
        json.dumps(IOPDDL).encode(),
        json.dumps({"x": 1, **IOPDDL}).encode(),
        json.dumps(PASE).encode(),
        problem_json(problem()),
        problem_json(problem(None)),
        problem_json(problem(1)),
    ]


def networks() -> list[bytes]:
    """Cost function networks, graphical models, pseudo-Boolean programs."""
    return [
        b"two 2 2 2 10\n2 2\n1 0 3 1\n1 0\n2 0 1 0 1\n1 1 10\n",
        (
            b"w 3 3 6 99\n3 3 2\n-2 0 1 0 1\n0 0 3\n2 1 0 0 -1\n3 0 1 2 99 2\n0 0 0 1\n1 1 1 0\n2 0 1 -1 >= 1 9\n"
            b"3 0 1 2 -1 salldiff dec 5\n3 0 1 2 -1 clique 1 1 2 1 2 1 1\n"
        ),
        b"MARKOV\n3\n2 2 3\n2\n2 0 1\n3 0 1 2\n\n4\n 4.2 .9 0 1\n\n12\n 1 2 3 4 5 6 7 8 9 1e-3 11 12\n",
        b"BAYES 2 2 2 2 1 0 2 0 1 2 0.436 0.564 4 0.128 0.872 0.92 0.08",
        b"* #variable= 3 #constraint= 2\nmin: +3 x1 -2 x2 1 ~x3 ;\n+1 x1 +2 ~x2 -1 x3 >= 1 ;\n1 x1 1 x2 = 1 ;\n",
    ]


def packed_networks() -> list[bytes]:
    return [lzma.compress(text) for text in networks()]


def packed_problems() -> list[bytes]:
    return [gzip.compress(text, mtime=0) for text in problems()]


def problem_containers() -> list[bytes]:
    return [write_container(None, encode_problem(problem(limit))) for limit in (None, 5)]


def plans() -> list[bytes]:
    return [
        _made("plan", "m.json", "--machine", "localhost:2"),
        _made("plan", "m.json", "--machine", "cloud-a100:2x2", "--train", "sgd", "--memory", "1GiB"),
    ]


def certificates() -> list[bytes]:
    return [_made("solve", "p.json"), _made("solve", "p.json", "--engine", "ilp")]


def reductions() -> list[bytes]:
    return [
        _made("place", "--hierarchy", "2x4", "--axes", "2,4"), _made("reduce", "--hierarchy", "2x2", "--axes", "2,2", "--reduce", "0"),
        _made("place", "--hierarchy", "2x2", "--axes", "2,2", "--reduce", "0:1GiB"), _made("reduce", "--nodes", "2,1"),
    ]  # fmt: skip


def schedules() -> list[bytes]:
    """A pipeline with a load, one with a refutation that splits, and a problem task by task."""
    pipe = Pipeline(((1, 2, 1), (2, 1, 1)), 2, 1, 2)
    found = search(shop(pipe), work(5.0))
    whole = ScheduleCertificate(pipe, found.starts, found.makespan, found.lower_bound, found.bound, "best")
    rows = np.array([[2, 0, 1, 0, 0], [3, 1, 0, 0, 0], [3, 1, 0, 0, 0]])
    split = replace(whole, lower_bound=6, bound=Refutation(5, rows))
    return [write_schedule(None, c) for c in (whole, split, replace(whole, subject=pipe.problem()))]


def egraphs() -> list[bytes]:
    """The conformance suite's: with a circle, without an extraction, with negative costs and a root that is gone."""
    return list(extraction_problems().values())


def extractions() -> list[bytes]:
    """Proofs of the conformance suite about its first e-graph."""
    return [c.data for c in extraction_suite().cases if c.verdict == "proved" and c.problem == "problems/egraph.json"]


def viewed() -> list[bytes]:
    """Two branches beside each other, and the same on the whole machine."""
    return [write_submesh_plan(None, viewed_by_hand(launch)) for launch in ("1/10000", "0")]


def overlap_graphs() -> list[bytes]:
    gather = {"group": "0", "ranks": 4, "in_bytes": 64, "table_ms": 0.25}
    nodes = [
        [0, "input", "primals_1", [], [4, 8], "bf16", 64],
        [1, "input", "mm_1", [], [16, 16], "f32", 1024],
        [2, "collective", "all_gather_into_tensor.default", [0], [16, 8], "bf16", 256, gather],
        [3, "wait", "wait_tensor.default", [2], [16, 8], "bf16", 256],
        [4, "compute", "mm.default", [1, 3], [16, 8], "f32", 512],
    ]
    columns = ["id", "kind", "op", "inputs", "shape", "dtype", "bytes", "more"]
    return [json.dumps({"columns": columns, "groups": {"0": 4}, "outputs": [4], "nodes": nodes}).encode()]


STRATEGIES = [
    b'{"fc1": {"b": {"ranks": 2}}, "tensor:x": null, "fc*": {"m": {"0": 2}}}',
    b"[0, 1, null, 2]",
    b'{"*": {}}',
]
CONFIGS = [b"b over nodes, h over 2 of gpus", b'{"b": {"nodes": 2}}', b"replicated", b"one device"]
NAMES = [b"cloud-a100", b"cloud-a100:4x8", b"4x8", b"localhost:2", b"summit:2x2x3", b"m.toml", b"m.toml:2x2"]


def models() -> list[bytes]:
    return [b"mlp-unity", b"bert-tiny", b"m.onnx", b"p.py:f", b"shardproof.models:x", b"m.json"]


@cache
def onnx_files() -> list[bytes]:
    import onnx
    from onnx import TensorProto, helper, numpy_helper

    def weight(name: str, *shape: int) -> onnx.TensorProto:
        return numpy_helper.from_array(np.ones(shape, dtype=np.float32), name)

    def ints(name: str, *values: int) -> onnx.TensorProto:
        return numpy_helper.from_array(np.array(values, dtype=np.int64), name)

    def model(
        nodes: list[onnx.NodeProto], shape: list[int], result: list[int], weights: list[onnx.TensorProto]
    ) -> bytes:
        graph = helper.make_graph(
            nodes,
            "g",
            [helper.make_tensor_value_info("x", TensorProto.FLOAT, shape)],
            [helper.make_tensor_value_info("y", TensorProto.FLOAT, result)],
            weights,
        )
        made = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)])
        made.ir_version = 8
        return made.SerializeToString()

    node = helper.make_node
    window = [
        node("Conv", ["x", "w"], ["a"], strides=[2, 2], pads=[1, 1, 1, 1], kernel_shape=[3, 3], dilations=[1, 1], group=1), node("Relu", ["a"], ["b"]),
        node("MaxPool", ["b"], ["c"], kernel_shape=[2, 2], strides=[2, 2]), node("GlobalAveragePool", ["c"], ["d"]), node("Flatten", ["d"], ["e"]), node("Gemm", ["e", "v"], ["y"], transB=1),
    ]  # fmt: skip
    dense = [
        node("MatMul", ["x", "w"], ["a"]), node("Reshape", ["a", "s"], ["b"]), node("Transpose", ["b"], ["c"], perm=[0, 2, 1, 3]), node("Softmax", ["c"], ["d"], axis=-1),
        node("ReduceMean", ["d"], ["m"], axes=[-1], keepdims=1), node("Sub", ["d", "m"], ["e"]), node("Concat", ["e", "d"], ["f"], axis=3), node("Slice", ["f", "z", "t", "ax"], ["y"]),
    ]  # fmt: skip
    return [
        model(window, [2, 4, 8, 8], [2, 6], [weight("w", 4, 4, 3, 3), weight("v", 6, 4)]),
        model(
            dense,
            [2, 4, 8],
            [2, 3, 4, 2],
            [weight("w", 8, 12), ints("s", 2, 4, 3, 4), ints("z", 0), ints("t", 2), ints("ax", 3)],
        ),
    ]


@cache
def arrays() -> list[bytes]:
    out = []
    for dtype in ("float32", "float64"):
        made = io.BytesIO()
        np.savez(made, **random_inputs(tiny(), 1, dtype))
        out.append(made.getvalue())
    return out


TIMINGS = [
    (HERE / "data" / "p2" / "appendix.csv").read_bytes()[:1500].rsplit(b"\n", 1)[0],
    (
        b"machine,matrix,reduce,program,algorithm,payload,seconds\n2x2,[[2 1][1 "
        b"2]],0,AllReduce,ring,1024,0.001\n2x2,[[2 1][1 2]],1,RS.A AG.A,tree,4096,1e-3\n"
    ),
]

PROGRAMS = [
    (
        b"import numpy as np\nimport shardproof\n\n\n@shardproof.program(a=(4, 6), b=(6, 5))\ndef f(a, b):\n    c = a "
        b"@ b\n    for i in range(2):\n        c = np.maximum(c * 2.0 + i, 0.5)\n    return c / c.sum(axis=1, "
        b"keepdims=True)\n"
    ),
    (
        b"import numpy as np\nfrom shardproof import program, parameter\n\n\n@program(x=(2, 3, 8), w=parameter(8, "
        b"4))\ndef f(x, w):\n    y = np.einsum('abc,cd->abd', x, w)\n    z = y.reshape(2, 12).T[1:, ::2]\n    w[...] "
        b"= w * 0.5\n    return np.exp(z), np.where(z > 0, z, 0)\n"
    ),
    (
        b"import numpy as np\nfrom shardproof import program, parameter\n\n\n@program(x=(4, 6), w=parameter(6, 4), "
        b"v=parameter(4, 2))\ndef f(x, w, v):\n    return np.tanh(x @ w) @ v\n"
    ),
]


# --- loaders
# ----------------------------------------------------------------------------------------------------------------------


def _text(path: Path) -> str:
    return path.read_bytes().decode("utf-8", "surrogateescape")  # as the command line hands bytes over


def _graph(path: Path) -> object:
    """A graph that is accepted can be planned, or is refused by what plans it."""
    graph = load_model(str(path))
    graph.sha256()
    machine = load_machine("localhost:2")
    return selection.build(graph, machine, default_space(machine))


def _schedule(path: Path) -> object:
    """A schedule file that is read is checked."""
    return check_schedule_members(read_container(path))


def _egraph(path: Path) -> object:
    """An e-graph that is accepted is extracted from, and the certificate is read back and proved."""
    graph = load_problem(path)
    if not isinstance(graph, EGraph):
        return graph
    found = write_extraction(None, extract(graph, work(2.0)).certificate)
    assert check_extraction(graph, decode_extraction(read_container(found))).verdict is Verdict.PROVED
    return graph


def _extraction(path: Path) -> object:
    """An extraction that is read is checked against the e-graph that it was made for."""
    certificate = decode_extraction(read_container(path))
    graph = problem_of(egraphs()[0], "egraph.json")
    assert isinstance(graph, EGraph)
    return check_extraction(graph, certificate)


def _viewed(path: Path) -> object:
    """A plan with submeshes that is read is checked."""
    return check_views_members(read_container(path), 20, 1 << 16)


def _overlap(path: Path) -> object:
    """A graph that is accepted can be scheduled."""
    read = read_overlap(path)
    return overlap(read.problem, work(0.01)) if len(read.problem.tasks) < 100 else read


def _machine(path: Path) -> object:
    """A machine that is accepted is its own JSON read back, and prices a small model."""
    machine = load_machine(str(path))
    assert Machine.from_json(machine.to_json()).sha256() == machine.sha256()
    return selection.build(tiny(), machine, default_space(machine)) if machine.devices <= 8 else None


def _problem(path: Path) -> object:
    """A problem that is accepted can be solved, and its certificate is read back and checked."""
    found = load_selection_problem(path)
    found.sha256()
    if max((v.cost.size for v in found.vertices), default=0) > 100:
        return None
    answer = solve(found, clock=work(2))
    if answer.certificate is None:
        return None
    return check_selection(found, decode_certificate(read_container(write_certificate(None, answer.certificate))))


def _names(path: Path) -> object:
    with contextlib.chdir(path.parent):
        return load_machine(_text(path))


def _model(path: Path) -> object:
    with contextlib.chdir(path.parent):
        return load_model(_text(path).replace("/", "_"))


def _inputs(path: Path) -> object:
    found = read_inputs(path, tiny())
    check_inputs(tiny(), found)
    return found


def _timings(path: Path) -> object:
    """Timings that are accepted can be fitted to, or are refused by what fits; fitting takes long, so one in twenty
    is.
    """
    rows = read_timings(path)
    chosen = hashlib.sha256(path.read_bytes()).digest()[0] % 20 == 0
    return calibrate(load_machine("p2-a100"), rows, (), True) if chosen else rows


def _torch(path: Path) -> object:
    return load_model(str(path))


@cache
def torch_programs() -> list[bytes]:
    import torch

    exported = torch.export.export(torch.nn.Sequential(torch.nn.Linear(8, 4), torch.nn.ReLU()), (torch.zeros(2, 8),))
    out = io.BytesIO()
    torch.export.save(exported, out)
    return [out.getvalue()]


def _python(path: Path) -> object:
    from shardproof.models.sources.building import python_file

    before = dict(vars(np))  # a program with one word changed may assign to np.where
    try:
        with contextlib.redirect_stdout(io.StringIO()), contextlib.redirect_stderr(io.StringIO()):
            return load_model(f"{path}:f")
    finally:
        vars(np).update(before)
        python_file._LOADED.clear()
        sys.modules.pop(path.stem, None)


LOADERS: dict[str, Loader] = {
    **(
        {"PyTorch program": Loader(torch_programs, (changed_bytes,), _torch, "m.pt2")}
        if importlib.util.find_spec("torch")
        else {}
    ),
    "graph": Loader(graphs, (changed_json, changed_json, changed_bytes), _graph, "m.json"),
    "machine": Loader(tomls, (changed_words, changed_words, changed_bytes), _machine, "m.toml"),
    "machine name": Loader(lambda: NAMES, (changed_words, changed_bytes), _names, "name"),
    "model name": Loader(models, (changed_words, changed_bytes), _model, "name"),
    "problem": Loader(problems, (changed_json, changed_json, changed_bytes), _problem, "p.json"),
    "problem, gzipped": Loader(packed_problems, (changed_gzip, changed_bytes), _problem, "p.json.gz"),
    "network": Loader(networks, (changed_words, changed_words, changed_bytes), _problem, "p.wcsp"),
    "network, xz": Loader(packed_networks, (changed_bytes,), _problem, "p.wcsp.xz"),
    "problem container": Loader(
        problem_containers, (changed_members, changed_members, changed_bytes), _problem, "p.spz"
    ),
    "plan": Loader(plans, (changed_members, changed_members, changed_bytes), read_plan, "p.spz"),
    "certificate": Loader(certificates, (changed_members, changed_members, changed_bytes), read_certificate, "c.spz"),
    "reduction": Loader(reductions, (changed_members, changed_members, changed_bytes), read_reduction, "r.spz"),
    "schedule": Loader(schedules, (changed_members, changed_members, changed_bytes), _schedule, "s.spz"),
    "e-graph": Loader(egraphs, (changed_json, changed_json, changed_bytes), _egraph, "g.json"),
    "extraction": Loader(extractions, (changed_members, changed_members, changed_bytes), _extraction, "e.spz"),
    "plan with submeshes": Loader(viewed, (changed_members, changed_members, changed_bytes), _viewed, "v.spz"),
    "overlap graph": Loader(overlap_graphs, (changed_json, changed_json, changed_bytes), _overlap, "g.json"),
    "onnx": Loader(
        onnx_files, (changed_protobuf, changed_protobuf, changed_bytes), lambda p: load_model(str(p)), "m.onnx"
    ),
    "inputs": Loader(arrays, (changed_arrays, changed_arrays, changed_bytes), _inputs, "x.npz"),
    "strategy": Loader(lambda: STRATEGIES, (changed_json, changed_bytes), load_strategy, "s.json"),
    "configuration": Loader(
        lambda: CONFIGS, (changed_words, changed_bytes), lambda p: parse_config(_text(p), ("nodes", "gpus")), "c"
    ),
    "timings": Loader(lambda: TIMINGS, (changed_words, changed_words, changed_bytes), _timings, "t.csv"),
    "NumPy program": Loader(
        lambda: PROGRAMS, (changed_words, changed_words, changed_bytes), _python, "fuzzed_program.py"
    ),
}


def case(name: str, number: int, seed: int = 1) -> bytes:
    """The bytes of a case."""
    loader = LOADERS[name]
    seeds = loader.seeds()
    rng = random.Random(f"{seed} {name} {number}")
    mutator, chosen = rng.choice(loader.mutators), rng.choice(seeds)
    try:
        return mutator(rng, chosen, seeds)
    except RecursionError:  # of the mutator: a file that it had nested too deeply
        return changed_bytes(rng, chosen, seeds)


@contextmanager
def _clock() -> Iterator[None]:
    def ring(*_: object) -> None:
        raise Hang(f"longer than {HANG_S} s")

    before = signal.signal(signal.SIGALRM, ring)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)


def fuzz(name: str, numbers: Sequence[int], seed: int = 1, keep: Path | None = None) -> Counts:
    """What the loader makes of these cases."""
    loader, counts = LOADERS[name], Counts()
    fast = "/dev/shm" if os.access("/dev/shm", os.W_OK) else None
    with tempfile.TemporaryDirectory(dir=fast) as folder, _clock(), warnings.catch_warnings():
        warnings.simplefilter("ignore")
        path = Path(folder, loader.name)
        (Path(folder, "m.toml") if path.name != "m.toml" else path).write_bytes(tomls()[0])
        start = time.monotonic()
        for number in numbers:
            data = case(name, number, seed)
            path.write_bytes(data)
            began = time.monotonic()
            signal.setitimer(signal.ITIMER_REAL, HANG_S)
            try:
                loader.load(path)
                counts.accepted += 1
            except BaseException as error:
                signal.setitimer(signal.ITIMER_REAL, 0)
                if isinstance(error, KeyboardInterrupt) and name != "NumPy program":
                    raise
                if isinstance(error, ValueError) and type(error).__module__.startswith("shardproof."):
                    counts.refused += 1
                    counts.kinds[type(error).__name__] += 1
                else:
                    counts.other.append((number, f"{type(error).__name__}: {str(error)[:200]}"))
                    if keep is not None:
                        keep.mkdir(parents=True, exist_ok=True)
                        keep.joinpath(f"{name.replace(' ', '-')}-{number}").write_bytes(data)
            signal.setitimer(signal.ITIMER_REAL, 0)
            counts.slowest = max(counts.slowest, time.monotonic() - began)
        counts.seconds = time.monotonic() - start
    return counts


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("loaders", nargs="*", metavar="LOADER", help=", ".join(LOADERS))
    parser.add_argument("--cases", type=int, default=100_000)
    parser.add_argument("--start", type=int, default=0)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--keep", type=Path)
    parser.add_argument("--row", action="store_true", help=argparse.SUPPRESS)
    asked = parser.parse_args()
    if len(asked.loaders) != 1:
        print(HEAD, flush=True)
        words = [
            sys.executable,
            __file__,
            "--cases",
            str(asked.cases),
            "--start",
            str(asked.start),
            "--seed",
            str(asked.seed),
        ]
        words += ["--keep", str(asked.keep)] if asked.keep else []
        return max(
            [subprocess.run([*words, "--row", name], check=False).returncode for name in asked.loaders or LOADERS]
        )
    if not asked.row:
        print(HEAD, flush=True)
    (name,) = asked.loaders
    LOADERS[name].seeds()
    load_model("mlp-unity")
    limit = int(Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize() + MEMORY
    resource.setrlimit(resource.RLIMIT_AS, (limit, resource.getrlimit(resource.RLIMIT_AS)[1]))
    found = fuzz(name, range(asked.start, asked.start + asked.cases), asked.seed, asked.keep)
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss >> 10
    print(
        f"{name:<20} {found.accepted:>9} {found.refused:>9} {len(found.other):>6} {found.seconds:>8.1f} "
        f"{asked.cases / found.seconds:>9.0f} "
        f"{found.slowest:>7.2f}s {peak:>6}",
        flush=True,
    )
    for kind, n in Counter(what for _, what in found.other).most_common(40):
        print(f"    {n:>6} x {kind}   (case {next(k for k, w in found.other if w == kind)})")
    return 1 if found.other else 0


if __name__ == "__main__":
    sys.exit(main())
