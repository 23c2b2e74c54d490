"""A file decides nothing that is executed: every route from a plan, a graph, a strategy, a machine or an .npz to an
import, none taken.
"""

from __future__ import annotations

import io
import json
import os
import pickle
import zipfile
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from shardproof.__main__ import run
from shardproof.backends.cuda import chain, rows
from shardproof.backends.cuda.kernel import Operand, dense
from shardproof.backends.execution import consent
from shardproof.backends.execution.launch import mpi_available
from shardproof.backends.execution.reference import random_inputs, run_graph
from shardproof.backends.kernels import KernelError
from shardproof.models.program import opaque
from shardproof.models.program.graph import Graph, Role, Tensor
from shardproof.models.program.index import Access, Affine, Axis, access
from shardproof.models.program.opaque import OpaqueError, kernels_of
from shardproof.models.program.operators import Operator, Value


class Command:
    """What a pickle can hold: a call of the shell."""

    def __init__(self, canary: Path) -> None:
        self.canary = canary

    def __reduce__(self) -> tuple[object, ...]:
        return os.system, (f"touch {self.canary}",)


def hostile(kernel: str, payload: bytes) -> Graph:
    """An opaque operator called `kernel` on constant bytes, its result added to an input."""
    numbers = tuple(payload)
    tensors = (
        Tensor("x", (1,), "float64", Role.INPUT),
        Tensor("bytes", (len(numbers),), "uint8"),
        Tensor("y", (1,), "float64"),
        Tensor("z", (1,), "float64"),
    )
    attributes: tuple[tuple[str, Value], ...] = (("flops", 1), ("kernel", kernel), ("positional", ("i",)))
    return Graph(
        "hostile",
        tensors,
        (
            Operator(
                "bytes",
                "constant",
                (Axis("k", len(numbers), None, False),),
                (),
                access("bytes", "k"),
                (("values", numbers),),
            ),
            Operator(
                "y", "opaque", (Axis("i", 1),), (Access("bytes", (Affine.everything(),)),), access("y", "i"), attributes
            ),
            Operator("z", "add", (Axis("i", 1),), (access("x", "i"), access("y", "i")), access("z", "i")),
        ),
        ("z",),
    ).check()


@pytest.fixture
def shardproof(capsys: pytest.CaptureFixture[str]):
    def call(*arguments: str) -> tuple[int, dict[str, object], str]:
        code = run([*arguments, "--json"])
        seen = capsys.readouterr()
        return code, json.loads(seen.out) if seen.out else {}, seen.err

    return call


KERNELS = (
    "pickle:loads",
    "_pickle:loads",
    "os:system",
    "builtins:exec",
    "builtins:eval",
    "subprocess:getoutput",
    "marshal:loads",
    "lying_here:f",
    "lying_here.f",
    "",
    ":",
    "os:",
    "shardproof.backends.execution.consent:allow",
    "../lying_here:f",
)


@pytest.fixture
def canary(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A file that every payload would make; modules that make it lie in the current folder, under names that a run
    imports.
    """
    path = tmp_path / "canary"
    monkeypatch.chdir(tmp_path)
    for name in ("lying_here", "numpy", "mpi4py", "cupy", "json"):
        (tmp_path / f"{name}.py").write_text(f"open({str(path)!r}, 'w').close()\ndef f(x): return x\n")
    return path


def payload(kernel: str, canary: Path) -> bytes:
    if "pickle" in kernel:
        return pickle.dumps(Command(canary))
    return f"touch {canary}".encode() if kernel.startswith(("os", "sub")) else f"open({str(canary)!r}, 'w')".encode()


def planned(shardproof, graph: Graph, folder: Path, ranks: int = 2) -> None:
    (folder / "g.json").write_text(graph.to_json())
    code, _, err = shardproof("plan", "g.json", "--machine", f"localhost:{ranks}", "-o", "g.spz")
    assert code == 0, err


@pytest.mark.parametrize("kernel", ["pickle:loads", "os:system", "lying_here:f", ""])
def test_a_plan_runs_no_kernel_of_its_own_choice(kernel: str, canary: Path, shardproof) -> None:
    planned(shardproof, hostile(kernel, payload(kernel, canary)), canary.parent)
    code, found, _ = shardproof("check", "g.spz")
    assert (code, found["kernels"]) == (0, [kernel]), "what a plan names is said"
    for way in ((), ("--virtual",)):
        code, _, err = shardproof("run", "g.spz", "-n", "2", *way)
        assert code == 3 and "--allow-kernel" in err
    assert not canary.exists()


@pytest.mark.parametrize("kernel", KERNELS)
def test_a_graph_runs_no_kernel_of_its_own_choice(kernel: str, canary: Path) -> None:
    """Where kernels are called, whoever calls."""
    graph = Graph.from_json(hostile(kernel, payload(kernel, canary)).to_json())
    with pytest.raises(KernelError, match="was not allowed to run"):
        run_graph(graph, random_inputs(graph, 0))
    assert not canary.exists()


def test_check_says_in_words_which_kernels_a_plan_names(
    canary: Path, shardproof, capsys: pytest.CaptureFixture[str]
) -> None:
    planned(shardproof, hostile("pickle:loads", b"N."), canary.parent)
    capsys.readouterr()
    assert run(["check", "g.spz"]) == 0
    assert "kernels of the user's own, which no claim covers: 'pickle:loads'" in capsys.readouterr().out


def test_consent_is_per_name(canary: Path, shardproof, monkeypatch: pytest.MonkeyPatch) -> None:
    """One allowed kernel does not let another one in, and what is allowed runs."""
    monkeypatch.setattr(opaque, "_REGISTRY", {})
    planned(shardproof, hostile("pickle:loads", payload("pickle:loads", canary)), canary.parent)
    assert shardproof("run", "g.spz", "-n", "2", "--virtual", "--allow-kernel", "pickle:dumps")[0] == 3
    assert not canary.exists()
    assert shardproof("run", "g.spz", "-n", "2", "--virtual", "--allow-kernel", "pickle:loads")[0] != 3
    assert canary.exists(), "the payload is live: with consent it runs"


@pytest.mark.parametrize("name", ["x", "os:", ":f", "os:system()", "a b:c", "../a:b", "a:b\n", ""])
def test_what_is_allowed_must_be_a_name(name: str) -> None:
    with pytest.raises(OpaqueError, match="not the name of a kernel"):
        consent.allow(name)


def test_a_kernel_that_is_allowed_and_not_there_is_an_input_error(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.syspath_prepend(str(tmp_path))
    (tmp_path / "raising_module.py").write_text("raise SystemError('no')\n")
    for name in ("no_such_module:f", "raising_module:f", "os:no_such"):
        with pytest.raises(OpaqueError, match="cannot be loaded"):
            consent.allow(name)
    with pytest.raises(OpaqueError, match="is not a function"):
        consent.allow("os:sep")


def test_ranks_are_told_only_what_was_allowed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(opaque, "_REGISTRY", {"mine:f": len, "other:g": len})
    graph = hostile("mine:f", b"ab")
    assert consent.to_ranks(graph)["kernels"] == ["mine:f"], "what the graph does not name stays at home"
    assert consent.to_ranks(hostile("pickle:loads", b"ab")) == {"kernels": [], "paths": []}
    assert kernels_of(graph) == ("mine:f",)


@pytest.mark.mpi
@pytest.mark.skipif(not mpi_available(), reason="mpi4py or mpiexec is not installed")
def test_ranks_have_the_consent_too_and_import_nothing_from_the_current_folder(
    canary: Path, tmp_path: Path, shardproof, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The kernel of the user's module runs on ranks; modules called numpy, mpi4py and json beside the plan do not."""
    monkeypatch.setattr(opaque, "_REGISTRY", {})
    home = tmp_path / "home"
    home.mkdir()
    (home / "my_kernels.py").write_text("def total(x):\n    return x.sum(keepdims=True).astype('float64')\n")
    monkeypatch.syspath_prepend(str(home))
    planned(shardproof, hostile("my_kernels:total", b"abc"), tmp_path)
    code, found, err = shardproof("run", "g.spz", "-n", "2", "--allow-kernel", "my_kernels:total", "-o", "out.npz")
    assert code == 0 and found["equal"], err
    assert not canary.exists()


def test_an_npz_with_objects_is_refused(canary: Path, shardproof) -> None:
    (canary.parent / "g.json").write_text(
        replace(
            hostile("a:b", b"ab"), operators=(), outputs=("x",), tensors=(Tensor("x", (1,), "float64", Role.INPUT),)
        ).to_json()
    )
    graph = Graph(
        "g",
        (Tensor("x", (2,), "float64", Role.INPUT), Tensor("y", (2,), "float64")),
        (Operator("y", "exp", (Axis("i", 2),), (access("x", "i"),), access("y", "i")),),
        ("y",),
    )
    planned(shardproof, graph, canary.parent)
    held = np.array([Command(canary), Command(canary)], dtype=object)
    np.savez("objects.npz", x=held)
    raw = io.BytesIO()
    pickle.dump({"x": held}, raw)
    (canary.parent / "pickle.npz").write_bytes(raw.getvalue())
    with zipfile.ZipFile("member.npz", "w") as file:
        file.writestr("x.npy", raw.getvalue())
    np.save("array.npy", held)
    for name in ("objects.npz", "pickle.npz", "member.npz", "array.npy"):
        code, _, err = shardproof("run", "g.spz", "-n", "2", "--virtual", "--inputs", name)
        assert code == 3 and name in err, (name, err)
    assert not canary.exists()


@pytest.mark.parametrize("suffix", [".spz", ".json", ".onnx", ".toml", ".npz", ".pt2"])
def test_a_pickle_under_any_name_is_refused(suffix: str, canary: Path, shardproof) -> None:
    """A pickle instead of every kind of file that a verb takes."""
    file = canary.parent / f"hostile{suffix}"
    file.write_bytes(pickle.dumps(Command(canary)))
    for words in (
        ("check", file.name),
        ("run", file.name, "-n", "2", "--virtual"),
        ("explain", file.name),
        ("plan", file.name, "--machine", "localhost:2", "-o", "p.spz"),
        ("plan", "mlp-unity", "--machine", file.name, "-o", "p.spz"),
        ("audit", "mlp-unity", "--machine", "localhost:2", "--strategy", file.name),
        ("solve", file.name, "-o", "p.spz"),
    ):
        code, _, _ = shardproof(*words)
        assert code in (2, 3), (words, code)
    assert not canary.exists()


def test_strategies_and_machines_are_data(canary: Path, shardproof) -> None:
    """Text that would be code, as a key, an axis, a level and a name."""
    code = f"__import__('os').system('touch {canary}')"
    (canary.parent / "s.json").write_text(json.dumps({code: {"b": {"ranks": 2}}}))
    assert shardproof("audit", "mlp-unity", "--machine", "localhost:2", "--strategy", "s.json")[0] == 3
    (canary.parent / "s.json").write_text(json.dumps({"*": {code: {"ranks": 2}}}))
    assert shardproof("audit", "mlp-unity", "--machine", "localhost:2", "--strategy", "s.json")[0] == 3
    (canary.parent / "m.toml").write_text(f'name = "{code}"\n[[level]]\nname = "{code}"\nsize = 2\n')
    assert shardproof("plan", "mlp-unity", "--machine", "m.toml", "-o", "p.spz")[0] == 3
    assert not canary.exists()


HOSTILE = st.sampled_from(
    [
        "NAME",
        'x0; system("touch canary");',
        '*/ asm(""); /*',
        "\n}\n#include <cstdlib>\n",
        "\u202e",
        "v0_0",
        "threadIdx",
    ]
)


@given(HOSTILE, HOSTILE, HOSTILE)
def test_no_name_of_a_file_reaches_the_text_of_a_kernel(operator: str, tensor: str, axis: str) -> None:
    """The text holds numbers and words of our own: with other names of operators, tensors and axes it stays as it
    is, to the byte.
    """

    def texts(operator: str, tensor: str, axis: str) -> list[str]:
        op = Operator(
            operator,
            "scale",
            (Axis(axis, 8),),
            (access(tensor, axis),),
            access(tensor + "'", axis),
            (("scale", 0.5), (operator, tensor)),
        )
        gelu = Operator(
            operator,
            "gelu",
            (Axis(axis, 8),),
            (access(tensor, axis),),
            access(tensor + "'", axis),
            (("approximate", tensor),),
        )
        operand, steps = Operand("float32", dense((8,))), (chain.Step(op, (0,)), chain.Step(gelu, (1,)))
        return [
            chain.generate(chain.Chain((8,), (operand,), steps, (1,))).text,
            rows.generate(rows.Rows("softmax", 4, 8, "float32", 1e-5, 1.0, (), steps, (2,))).text,
        ]

    assert texts(operator, tensor, axis) == texts("op", "t", "a")


def test_names_are_no_paths(canary: Path, shardproof) -> None:
    """Tensors called like files outside: job folders number their files, and written outputs stay members of one
    archive.
    """
    name = "../../escaped"
    graph = Graph(
        "../g",
        (Tensor("../x", (2,), "float64", Role.INPUT), Tensor(name, (2,), "float64")),
        (Operator(name, "exp", (Axis("i", 2),), (access("../x", "i"),), access(name, "i")),),
        (name,),
    )
    planned(shardproof, graph, canary.parent)
    before = {p for p in canary.parent.parent.rglob("*") if "escaped" in p.name}
    assert shardproof("run", "g.spz", "-n", "2", "--virtual", "-o", "out.npz", "--trace", "t.json")[0] == 0
    assert {p for p in canary.parent.parent.rglob("*") if "escaped" in p.name} == before
